/* SPDX-License-Identifier: Apache-2.0 */
/* 16 f32 lanes in one zmm register: what lanes/rows_body.h and lanes/attend_body.h are written in. */
#ifndef WR_KERNELS_LANES_H
#define WR_KERNELS_LANES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LEVEL(op) wr_##op##_avx512
#define LANES static inline __attribute__((always_inline))

typedef __m512 v16;
typedef __m512i v16i;

/* SHAPE(queries, blocks of K, vectors of V) of the attention register tiles. 8 x 2 accumulators leave room for the vectors and a
 * broadcast; with few queries more vectors keep both FMA units busy (4 cycles latency). */
#define LANES_MAX_Q 8
#define LANES_SHAPES(SHAPE) SHAPE(1, 4, 4) SHAPE(2, 4, 4) SHAPE(3, 4, 4) SHAPE(4, 4, 4) SHAPE(5, 2, 2) SHAPE(6, 2, 2) SHAPE(7, 2, 2) SHAPE(8, 2, 2)

LANES __mmask16 lanes_below(uint32_t n) { return (__mmask16)((1u << n) - 1); } /* n <= 16 */

LANES v16 v_zero(void) { return _mm512_setzero_ps(); }
LANES v16 v_set(float x) { return _mm512_set1_ps(x); }
LANES v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
LANES void v_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
LANES v16 v_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(lanes_below(n), p); } /* lanes >= n are 0 and not read */
LANES void v_store_n(float *p, v16 x, uint32_t n) { _mm512_mask_storeu_ps(p, lanes_below(n), x); }
LANES v16 v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LANES v16 v_set_f16(uint16_t x) { return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)x)); }
LANES v16 v_load_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
/* The low, and the high, 4 bits of 16 bytes, in two's complement. */
LANES v16 v_load_i4_low(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 28), 28));
}
LANES v16 v_load_i4_high(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)), 4)); }
LANES void v_store_f16(uint16_t *p, v16 x) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }

LANES v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
LANES v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
LANES v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
LANES v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
LANES v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
LANES v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); } /* b where a is NaN */
LANES v16 v_neg(v16 x) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN))); }
LANES v16 v_rint(v16 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Adds n, an integer, to the exponent field. */
LANES v16 v_scale2(v16 x, v16 n) { return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23))); }
/* The same of the low 9 bits of n. */
LANES v16 v_scale2_low(v16 x, v16 n) { return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(n), 23))); }
LANES void v_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
/* Lanes [lo, hi) of x, else of y. */
LANES v16 v_keep(v16 x, v16 y, uint32_t lo, uint32_t hi) { return _mm512_mask_blend_ps((__mmask16)(lanes_below(hi) & ~lanes_below(lo)), y, x); }
LANES v16 v_where_less(v16 a, v16 b, v16 yes, v16 no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes); }
LANES v16 v_where_nan(v16 a, v16 yes, v16 no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), no, yes); }

/* (x0 x0 x2 x2 ...), (x1 x1 x3 x3 ...), (a0 b1 a2 b3 ...), and 8 floats as (p0 p0 p1 p1 ...). */
LANES v16 v_dup_even(v16 x) { return _mm512_moveldup_ps(x); }
LANES v16 v_dup_odd(v16 x) { return _mm512_movehdup_ps(x); }
LANES v16 v_even_odd(v16 a, v16 b) { return _mm512_mask_blend_ps(0xaaaa, a, b); }
LANES v16 v_load_pairs(const float *p)
{
    const v16i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}

/* Rule b: +8, +4, +2, +1. */
LANES float v_fold_sum(v16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
LANES float v_fold_max(v16 x) { return _mm512_reduce_max_ps(x); }

LANES v16i v_magnitude(v16 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MAX)); }
LANES v16i v_zero_i(void) { return _mm512_setzero_si512(); }
LANES v16i v_max_i(v16i a, v16i b) { return _mm512_max_epi32(a, b); }
LANES v16i v_min_i(v16i a, v16i b) { return _mm512_min_epi32(a, b); }
LANES v16i v_set_i(int32_t x) { return _mm512_set1_epi32(x); }
LANES v16i v_round_i(v16 x) { return _mm512_cvtps_epi32(x); } /* half to even */
LANES int32_t v_fold_max_i(v16i x) { return _mm512_reduce_max_epi32(x); }
LANES int32_t v_fold_sum_i(v16i x) { return _mm512_reduce_add_epi32(x); }
LANES void v_store_i8(int8_t *p, v16i x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x)); }
LANES void v_store_i16(int16_t *p, v16i x) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(x)); }

#endif
