/* SPDX-License-Identifier: Apache-2.0 */
/* 16 f32 lanes in four NEON registers: what lanes/rows_body.h and lanes/attend_body.h are written in. */
#ifndef WR_KERNELS_LANES_H
#define WR_KERNELS_LANES_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LEVEL(op) wr_##op##_neon
#define LANES static inline __attribute__((always_inline))

typedef struct {
    float32x4_t a, b, c, d; /* lanes 0-3, 4-7, 8-11, 12-15 */
} v16;
typedef struct {
    int32x4_t a, b, c, d;
} v16i;

/* SHAPE(queries, blocks of K, vectors of V) of the attention register tiles: accumulators, widened vectors and a broadcast in 32 registers, of
 * which a vector takes four. */
#define LANES_MAX_Q 6
#define LANES_SHAPES(SHAPE) SHAPE(1, 2, 2) SHAPE(2, 2, 2) SHAPE(3, 1, 1) SHAPE(4, 1, 1) SHAPE(5, 1, 1) SHAPE(6, 1, 1)

#define V16(f, ...) ((v16){f(a, __VA_ARGS__), f(b, __VA_ARGS__), f(c, __VA_ARGS__), f(d, __VA_ARGS__)})
#define V16I(f, ...) ((v16i){f(a, __VA_ARGS__), f(b, __VA_ARGS__), f(c, __VA_ARGS__), f(d, __VA_ARGS__)})
#define UNARY(part, op, x) op(x.part)
#define BINARY(part, op, x, y) op(x.part, y.part)
#define BLEND(part, mask, yes, no) vbslq_f32(mask.part, yes.part, no.part)

typedef struct {
    uint32x4_t a, b, c, d;
} v16_mask;

/* All ones in lanes [0, n), n <= 16. */
LANES v16_mask lanes_below(uint32_t n)
{
    const uint32x4_t count = vdupq_n_u32(n);
    return (v16_mask){vcgtq_u32(count, (uint32x4_t){0, 1, 2, 3}), vcgtq_u32(count, (uint32x4_t){4, 5, 6, 7}), vcgtq_u32(count, (uint32x4_t){8, 9, 10, 11}),
        vcgtq_u32(count, (uint32x4_t){12, 13, 14, 15})};
}

LANES v16 v_set(float x)
{
    const float32x4_t v = vdupq_n_f32(x);
    return (v16){v, v, v, v};
}
LANES v16 v_zero(void) { return v_set(0.0f); }
LANES v16 v_load(const float *p) { return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
LANES void v_store(float *p, v16 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
LANES v16 v_load_n(const float *p, uint32_t n) /* lanes >= n are 0 and not read */
{
    float lanes[16] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return v_load(lanes);
}
LANES void v_store_n(float *p, v16 x, uint32_t n)
{
    float lanes[16];
    v_store(lanes, x);
    memcpy(p, lanes, n * sizeof *p);
}
LANES float32x4_t load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
LANES v16 v_load_f16(const uint16_t *p) { return (v16){load_f16(p), load_f16(p + 4), load_f16(p + 8), load_f16(p + 12)}; }
LANES v16 v_set_f16(uint16_t x)
{
    const float32x4_t v = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x)));
    return (v16){v, v, v, v};
}
LANES v16 bytes_to_f32(int8x16_t v)
{
    const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_high_s8(v);
    return (v16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high))};
}
LANES v16 v_load_i8(const int8_t *p) { return bytes_to_f32(vld1q_s8(p)); }
/* The low, and the high, 4 bits of 16 bytes, in two's complement. */
LANES v16 v_load_i4_low(const uint8_t *p) { return bytes_to_f32(vshrq_n_s8(vreinterpretq_s8_u8(vshlq_n_u8(vld1q_u8(p), 4)), 4)); }
LANES v16 v_load_i4_high(const uint8_t *p) { return bytes_to_f32(vshrq_n_s8(vreinterpretq_s8_u8(vld1q_u8(p)), 4)); }
LANES void store_f16(uint16_t *p, float32x4_t x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
LANES void v_store_f16(uint16_t *p, v16 x)
{
    store_f16(p, x.a);
    store_f16(p + 4, x.b);
    store_f16(p + 8, x.c);
    store_f16(p + 12, x.d);
}

LANES v16 v_add(v16 x, v16 y) { return V16(BINARY, vaddq_f32, x, y); }
LANES v16 v_sub(v16 x, v16 y) { return V16(BINARY, vsubq_f32, x, y); }
LANES v16 v_mul(v16 x, v16 y) { return V16(BINARY, vmulq_f32, x, y); }
LANES v16 v_div(v16 x, v16 y) { return V16(BINARY, vdivq_f32, x, y); }
#define FMA(part, x, y, z) vfmaq_f32(z.part, x.part, y.part)
LANES v16 v_fma(v16 x, v16 y, v16 z) { return V16(FMA, x, y, z); }
LANES v16 v_neg(v16 x) { return V16(UNARY, vnegq_f32, x); }
LANES v16 v_rint(v16 x) { return V16(UNARY, vrndnq_f32, x); }
/* Adds n, an integer, to the exponent field. */
#define SCALE2(part, x, n) vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.part), vshlq_n_s32(vcvtnq_s32_f32(n.part), 23)))
LANES v16 v_scale2(v16 x, v16 n) { return V16(SCALE2, x, n); }
/* The same of the low 9 bits of n. */
#define SCALE2_LOW(part, x, n) vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.part), vshlq_n_s32(vreinterpretq_s32_f32(n.part), 23)))
LANES v16 v_scale2_low(v16 x, v16 n) { return V16(SCALE2_LOW, x, n); }
LANES void v_prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }
/* Lanes [lo, hi) of x, else of y. */
LANES v16 v_keep(v16 x, v16 y, uint32_t lo, uint32_t hi)
{
    const v16_mask l = lanes_below(lo), h = lanes_below(hi);
    const v16_mask keep = {vbicq_u32(h.a, l.a), vbicq_u32(h.b, l.b), vbicq_u32(h.c, l.c), vbicq_u32(h.d, l.d)};
    return V16(BLEND, keep, x, y);
}
LANES v16 v_where_less(v16 x, v16 y, v16 yes, v16 no)
{
    const v16_mask less = {vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c), vcltq_f32(x.d, y.d)};
    return V16(BLEND, less, yes, no);
}
LANES v16 v_max(v16 x, v16 y) { return v_where_less(y, x, x, y); } /* y where x is NaN */
LANES v16 v_where_nan(v16 x, v16 yes, v16 no)
{
    const v16_mask number = {vceqq_f32(x.a, x.a), vceqq_f32(x.b, x.b), vceqq_f32(x.c, x.c), vceqq_f32(x.d, x.d)};
    return V16(BLEND, number, no, yes);
}

/* (x0 x0 x2 x2 ...), (x1 x1 x3 x3 ...), (x0 y1 x2 y3 ...), and 8 floats as (p0 p0 p1 p1 ...). */
LANES v16 v_dup_even(v16 x) { return V16(BINARY, vtrn1q_f32, x, x); }
LANES v16 v_dup_odd(v16 x) { return V16(BINARY, vtrn2q_f32, x, x); }
LANES v16 v_even_odd(v16 x, v16 y)
{
    const uint32x4_t even = {UINT32_MAX, 0, UINT32_MAX, 0};
    const v16_mask mask = {even, even, even, even};
    return V16(BLEND, mask, x, y);
}
LANES v16 v_load_pairs(const float *p)
{
    const float32x4_t low = vld1q_f32(p), high = vld1q_f32(p + 4);
    return (v16){vzip1q_f32(low, low), vzip2q_f32(low, low), vzip1q_f32(high, high), vzip2q_f32(high, high)};
}

/* Rule b: +8, +4, +2, +1. */
LANES float v_fold_sum(v16 x)
{
    const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
LANES float v_fold_max(v16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

#define MAGNITUDE_BITS(part, x) vandq_s32(vreinterpretq_s32_f32(x.part), vdupq_n_s32(INT32_MAX))
LANES v16i v_magnitude(v16 x) { return V16I(MAGNITUDE_BITS, x); }
LANES v16i v_set_i(int32_t x)
{
    const int32x4_t v = vdupq_n_s32(x);
    return (v16i){v, v, v, v};
}
LANES v16i v_zero_i(void) { return v_set_i(0); }
LANES v16i v_max_i(v16i x, v16i y) { return V16I(BINARY, vmaxq_s32, x, y); }
LANES v16i v_min_i(v16i x, v16i y) { return V16I(BINARY, vminq_s32, x, y); }
LANES v16i v_round_i(v16 x) { return V16I(UNARY, vcvtnq_s32_f32, x); } /* half to even */
LANES int32_t v_fold_max_i(v16i x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }
LANES int32_t v_fold_sum_i(v16i x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
LANES int16x8_t pack_i16(int32x4_t x, int32x4_t y) { return vcombine_s16(vmovn_s32(x), vmovn_s32(y)); }
LANES void v_store_i8(int8_t *p, v16i x) { vst1q_s8(p, vcombine_s8(vmovn_s16(pack_i16(x.a, x.b)), vmovn_s16(pack_i16(x.c, x.d)))); }
LANES void v_store_i16(int16_t *p, v16i x)
{
    vst1q_s16(p, pack_i16(x.a, x.b));
    vst1q_s16(p + 8, pack_i16(x.c, x.d));
}

#endif
