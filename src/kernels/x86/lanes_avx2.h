/* SPDX-License-Identifier: Apache-2.0 */
/* 16 f32 lanes in two ymm registers: what lanes/rows_body.h and lanes/attend_body.h are written in. */
#ifndef WR_KERNELS_LANES_H
#define WR_KERNELS_LANES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LEVEL(op) wr_##op##_avx2
#define LANES static inline __attribute__((always_inline))

typedef struct {
    __m256 a, b; /* lanes 0-7, 8-15 */
} v16;
typedef struct {
    __m256i a, b;
} v16i;

/* SHAPE(queries, blocks of K, vectors of V) of the attention register tiles: accumulators, widened vectors and a broadcast in 16 registers. */
#define LANES_MAX_Q 6
#define LANES_SHAPES(SHAPE) SHAPE(1, 2, 4) SHAPE(2, 2, 2) SHAPE(3, 1, 1) SHAPE(4, 1, 1) SHAPE(5, 1, 1) SHAPE(6, 1, 1)

#define V16(fa, fb) ((v16){fa, fb})
#define V16I(fa, fb) ((v16i){fa, fb})

/* All ones in lanes [0, n), n <= 16. */
LANES v16i lanes_below(uint32_t n)
{
    __m256i count = _mm256_set1_epi32((int32_t)n);
    return V16I(
        _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)));
}

LANES v16 v_zero(void) { return V16(_mm256_setzero_ps(), _mm256_setzero_ps()); }
LANES v16 v_set(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return V16(v, v);
}
LANES v16 v_load(const float *p) { return V16(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
LANES void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LANES v16 v_load_n(const float *p, uint32_t n) /* lanes >= n are 0 and not read */
{
    v16i m = lanes_below(n);
    return V16(_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b));
}
LANES void v_store_n(float *p, v16 x, uint32_t n)
{
    v16i m = lanes_below(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    _mm256_maskstore_ps(p + 8, m.b, x.b);
}
LANES v16 v_load_f16(const uint16_t *p)
{
    return V16(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
LANES v16 v_set_f16(uint16_t x)
{
    __m256 v = _mm256_cvtph_ps(_mm_set1_epi16((int16_t)x));
    return V16(v, v);
}
LANES v16 v_load_i8(const int8_t *p)
{
    return V16(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}
/* The low, and the high, 4 bits of 16 bytes, in two's complement. */
LANES v16 bytes_to_f32(__m128i x)
{
    return V16(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))));
}
LANES __m128i i4_to_i8(__m128i x)
{
    const __m128i value = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm_shuffle_epi8(value, _mm_and_si128(x, _mm_set1_epi8(15)));
}
LANES v16 v_load_i4_low(const uint8_t *p) { return bytes_to_f32(i4_to_i8(_mm_loadu_si128((const __m128i *)p))); }
LANES v16 v_load_i4_high(const uint8_t *p) { return bytes_to_f32(i4_to_i8(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4))); }
LANES void v_store_f16(uint16_t *p, v16 x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

LANES v16 v_add(v16 x, v16 y) { return V16(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
LANES v16 v_sub(v16 x, v16 y) { return V16(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
LANES v16 v_mul(v16 x, v16 y) { return V16(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
LANES v16 v_div(v16 x, v16 y) { return V16(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
LANES v16 v_fma(v16 x, v16 y, v16 z) { return V16(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
LANES v16 v_max(v16 x, v16 y) { return V16(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); } /* y where x is NaN */
LANES v16 v_neg(v16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return V16(_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign));
}
LANES v16 v_rint(v16 x)
{
    return V16(_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Adds n, an integer, to the exponent field. */
LANES __m256 scale2(__m256 x, __m256 n) { return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23))); }
LANES v16 v_scale2(v16 x, v16 n) { return V16(scale2(x.a, n.a), scale2(x.b, n.b)); }
/* The same of the low 9 bits of n. */
LANES __m256 scale2_low(__m256 x, __m256 n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}
LANES v16 v_scale2_low(v16 x, v16 n) { return V16(scale2_low(x.a, n.a), scale2_low(x.b, n.b)); }
LANES void v_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
/* Lanes [lo, hi) of x, else of y. */
LANES v16 v_keep(v16 x, v16 y, uint32_t lo, uint32_t hi)
{
    v16i l = lanes_below(lo), h = lanes_below(hi);
    return V16(_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(_mm256_andnot_si256(l.a, h.a))),
        _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(_mm256_andnot_si256(l.b, h.b))));
}
LANES v16 v_where_less(v16 x, v16 y, v16 yes, v16 no)
{
    return V16(_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)), _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)));
}
LANES v16 v_where_nan(v16 x, v16 yes, v16 no)
{
    return V16(_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)), _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)));
}

/* (x0 x0 x2 x2 ...), (x1 x1 x3 x3 ...), (x0 y1 x2 y3 ...), and 8 floats as (p0 p0 p1 p1 ...). */
LANES v16 v_dup_even(v16 x) { return V16(_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b)); }
LANES v16 v_dup_odd(v16 x) { return V16(_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b)); }
LANES v16 v_even_odd(v16 x, v16 y) { return V16(_mm256_blend_ps(x.a, y.a, 0xaa), _mm256_blend_ps(x.b, y.b, 0xaa)); }
LANES v16 v_load_pairs(const float *p)
{
    __m256 v = _mm256_loadu_ps(p);
    return V16(_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)), _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
}

/* Rule b: +8, +4, +2, +1. */
LANES float v_fold_sum(v16 x)
{
    __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
LANES float v_fold_max(v16 x)
{
    __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

LANES v16i v_magnitude(v16 x)
{
    const __m256i m = _mm256_set1_epi32(INT32_MAX);
    return V16I(_mm256_and_si256(_mm256_castps_si256(x.a), m), _mm256_and_si256(_mm256_castps_si256(x.b), m));
}
LANES v16i v_zero_i(void) { return V16I(_mm256_setzero_si256(), _mm256_setzero_si256()); }
LANES v16i v_max_i(v16i x, v16i y) { return V16I(_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)); }
LANES v16i v_min_i(v16i x, v16i y) { return V16I(_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)); }
LANES v16i v_set_i(int32_t x)
{
    __m256i v = _mm256_set1_epi32(x);
    return V16I(v, v);
}
LANES v16i v_round_i(v16 x) { return V16I(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)); } /* half to even */
LANES int32_t v_fold_max_i(v16i x)
{
    __m256i a = _mm256_max_epi32(x.a, x.b);
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
LANES int32_t v_fold_sum_i(v16i x)
{
    __m256i a = _mm256_add_epi32(x.a, x.b);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
LANES __m256i pack_i16(v16i x) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8); }
LANES void v_store_i8(int8_t *p, v16i x)
{
    __m256i w = pack_i16(x);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
LANES void v_store_i16(int16_t *p, v16i x) { _mm256_storeu_si256((__m256i *)p, pack_i16(x)); }

#endif
