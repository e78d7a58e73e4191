/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number functions whose code is their definition (docs/NUMERICS.md rule c): the same
 * operations in the same order in scalar code and in lanes, so every CPU gives the same bits.
 */
#ifndef WR_BASE_NUM_H
#define WR_BASE_NUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t wr_bits_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float wr_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* IEEE binary16 <-> binary32: widening is exact (NaN payloads kept, quiet), narrowing rounds to nearest even. */
float wr_f32_from_f16(uint16_t h);
uint16_t wr_f16_from_f32(float x);
static inline float wr_f32_from_bf16(uint16_t h) { return wr_f32_from_bits((uint32_t)h << 16); }

/* Constants of exp, shared with the vector versions in kernels/. */
#define WR_EXP_LOG2E 0x1.715476p+0f
#define WR_EXP_LN2HI 0x1.62e430p-1f
#define WR_EXP_LN2LO -0x1.05c610p-29f
#define WR_EXP_C2 0x1.fffffcp-2f
#define WR_EXP_C3 0x1.555492p-3f
#define WR_EXP_C4 0x1.5558f2p-5f
#define WR_EXP_C5 0x1.1239e4p-7f
#define WR_EXP_C6 0x1.6a243p-10f
#define WR_EXP_MIN -87.0f /* below: +0 */
#define WR_EXP_MAX 88.7f  /* above: +inf */

#define WR_GELU_INNER 0.7978845608f /* sqrt(2 / pi) */
#define WR_GELU_CUBIC 0.044715f

float wr_exp(float x);  /* NaN gives NaN; largest error over all floats 0.8943 ulp */
float wr_tanh(float y); /* 1 - 2 / (1 + exp(2y)) */
/* The tanh form. */
static inline float wr_gelu(float x)
{
    float inner = (WR_GELU_INNER * x) * fmaf(WR_GELU_CUBIC, x * x, 1.0f);
    return (0.5f * x) * (1.0f + wr_tanh(inner));
}
static inline float wr_silu(float x) { return x / (1.0f + wr_exp(-x)); }

/* f64, for RoPE tables: |error| well below what shows after one rounding to f32. */
double wr_sin(double x); /* |x| < 2^31 */
double wr_cos(double x);
double wr_pow(double x, double y); /* x > 0, finite result */
double wr_ln(double x);            /* x > 0 */

/* Philox4x32-10 (Salmon et al., SC'11): out[4] from counter[4] and key[2]. */
void wr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Sets this thread's MXCSR / FPCR: round to nearest, denormals kept, exceptions masked. Every compute thread calls it. */
void wr_num_thread_init(void);

#endif
