/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instruction mixes of one level, in registers alone. Included once by each level, after what it has of its own:
 * - products: one step of integer products of bytes, STEP_PRODUCTS of them, into a sum
 * - group_sums: the sums of a group of `n` weights of ROWS rows with each of CHAINS activation rows, rows in lanes
 *
 * The instructions are those that the tiles of matmul_body.h cannot do without; loads, which those also do, have ports of their own. What a volatile
 * statement of assembly may have changed cannot be computed once and used again, left out, or moved to where registers run out.
 */
#include "kernels/ceiling_level.h"

ALWAYS_INLINE int32x4_t products_s16(int32x4_t sum, int16x8_t *w)
{
    CHANGED(*w);
    sum = vmlal_s16(sum, vget_low_s16(*w), vget_low_s16(*w));
    CHANGED(sum);
    return sum;
}

ALWAYS_INLINE float32x4_t multiply_add(float32x4_t acc, float32x4_t a, float32x4_t *one)
{
    CHANGED(*one);
    acc = vfmaq_f32(acc, a, *one);
    CHANGED(acc);
    return acc;
}

/* Rule e: `n` groups of weights, as CHAINS activation rows meet them. */
ALWAYS_INLINE uint64_t mix(const unsigned group, const bool precise, const bool has_min, uint64_t n)
{
    int8x16_t w = vdupq_n_s8(1);
    int16x8_t w16 = vdupq_n_s16(1);
    float32x4_t one = vdupq_n_f32(1), acc[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vdupq_n_f32(0);
    for (uint64_t b = 0; b < n; b++) {
        int32x4_t sum[CHAINS];
        if (precise) {
            UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vdupq_n_s32(0);
            UNROLL for (unsigned k = 0; k < group; k++) { UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = products_s16(sum[i], &w16); }
        } else {
            group_sums(&w, group, sum);
        }
        UNROLL for (int i = 0; i < CHAINS; i++)
        {
            for (int times = 0; times < (has_min ? 2 : 1); times++) { /* the scale; the minimum */
                CHANGED(one);
                float32x4_t scale = vmulq_f32(one, one);
                acc[i] = multiply_add(acc[i], times == 0 ? vcvtq_f32_s32(sum[i]) : one, &scale);
            }
        }
    }
    return n * group * ROWS * CHAINS * 2;
}

#define MIX(name, group, precise)                                                                                                                              \
    NEVER_INLINE uint64_t name(bool has_min, uint64_t n) { return has_min ? mix(group, precise, true, n) : mix(group, precise, false, n); }
MIX(mix_bytes, 32, false)
MIX(mix_pairs, 32, true)
MIX(mix_bytes_of_16, 16, false)
MIX(mix_pairs_of_16, 16, true)

NEVER_INLINE uint64_t dots_s8(uint64_t n)
{
    int8x16_t w = vdupq_n_s8(1);
    int32x4_t sum[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vdupq_n_s32(0);
    for (uint64_t b = 0; b < n; b++) { UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = products(sum[i], &w); }
    return n * STEP_PRODUCTS * CHAINS * 2;
}

NEVER_INLINE uint64_t dots_s16(uint64_t n)
{
    int16x8_t w = vdupq_n_s16(1);
    int32x4_t sum[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vdupq_n_s32(0);
    for (uint64_t b = 0; b < n; b++) { UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = products_s16(sum[i], &w); }
    return n * ROWS * CHAINS * 2;
}

NEVER_INLINE uint64_t multiply_adds(uint64_t n)
{
    float32x4_t one = vdupq_n_f32(1), acc[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vdupq_n_f32(0);
    for (uint64_t b = 0; b < n; b++) { UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = multiply_add(acc[i], one, &one); }
    return n * ROWS * CHAINS * 2;
}

static uint64_t ceiling_mix(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n)
{
    if (what == WR_MIX_INT8) return dots_s8(n);
    if (what == WR_MIX_INT16) return dots_s16(n);
    if (what == WR_MIX_FMA || quant->is_float) return multiply_adds(n);
    if (quant->group == 16) return precise ? mix_pairs_of_16(quant->has_min, n) : mix_bytes_of_16(quant->has_min, n);
    return precise ? mix_pairs(quant->has_min, n) : mix_bytes(quant->has_min, n);
}

/* As on x86, where it was measured: four streams, fetched ahead. */
enum { STREAMS = 4, READ_AHEAD = 2048 };

static void ceiling_read(const void *memory, size_t bytes)
{
    const size_t each = bytes / STREAMS / 128 * 128;
    const uint8_t *p = memory;
    uint8x16_t seen[STREAMS];
    UNROLL for (int s = 0; s < STREAMS; s++) seen[s] = vdupq_n_u8(0);
    for (size_t at = 0; at < each; at += 128) {
        UNROLL for (size_t s = 0; s < STREAMS; s++)
        {
            __builtin_prefetch(p + s * each + at + READ_AHEAD);
            __builtin_prefetch(p + s * each + at + READ_AHEAD + 64);
            UNROLL for (size_t i = 0; i < 128; i += 16) seen[s] = veorq_u8(seen[s], vld1q_u8(p + s * each + at + i));
        }
    }
    UNROLL for (int s = 0; s < STREAMS; s++) CHANGED(seen[s]);
}
