/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 256 bits for matmul_body.h: AVX2 with FMA and F16C; with VNNI if the file that includes this is compiled for it, else integer dot products go
 * through int16 pairs. */
#ifndef WR_MATMUL_V256_H
#define WR_MATMUL_V256_H

#include <immintrin.h>
#include "kernels/x86/matmul_rows.h"

#define LANES 8 /* f32 of a vector: weight rows of a panel */
#ifdef __AVXVNNI__
#define TILE_PANELS 1
#define TILE_M 6 /* activation rows of a tile: 6 integer and 6 f32 accumulators of 16 registers */
#define BLOCK_M 6
#define FETCH_NEXT 0
#define FEW_M 64
#define BYTES_BY_PAIRS 0
#else
#define TILE_PANELS 2
#define TILE_M 4     /* activation rows of a tile: 3 by two panels, 4 by one; integer sums and f32 accumulators leave few of 16 registers */
#define BLOCK_M 24   /* activation rows that meet two panels while these are in the first-level cache */
#define FEW_M 7      /* with 8 rows many are faster: 1.2 of the rate with Q4_0, as fast with Q6_K and Q8_0 (Zen 3) */
#define FETCH_NEXT 1 /* whether the next block's activations and the next tile's accumulators are fetched meanwhile */
#ifndef __clang__
#define KEEP_ORDER 1
#endif
#define BYTES_BY_PAIRS 1 /* 8-bit weights are multiplied as int16: a pair of u8 x s8 products overflows the int16 sums of maddubs */
#endif

typedef __m256i vi;
typedef __m256 vf;

ALWAYS_INLINE vi vi_load(const void *p) { return _mm256_load_si256(p); }
ALWAYS_INLINE void vi_store(void *p, vi v) { _mm256_store_si256(p, v); }
ALWAYS_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
ALWAYS_INLINE vi vi_set8(int8_t x) { return _mm256_set1_epi8(x); }
ALWAYS_INLINE vi vi_set16(int16_t x) { return _mm256_set1_epi16(x); }
ALWAYS_INLINE vi vi_set32(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vi vi_copies16(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(p)); } /* 16 bytes, in each 128-bit part */
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE vi vi_add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE vi vi_sub16(vi a, vi b) { return _mm256_sub_epi16(a, b); }
ALWAYS_INLINE vi vi_sub32(vi a, vi b) { return _mm256_sub_epi32(a, b); }
ALWAYS_INLINE vi vi_right16(vi a, unsigned n) { return _mm256_srli_epi16(a, n); }
ALWAYS_INLINE vi vi_left16(vi a, unsigned n) { return _mm256_slli_epi16(a, n); }
ALWAYS_INLINE vi vi_right32(vi a, unsigned n) { return _mm256_srli_epi32(a, n); }
ALWAYS_INLINE vi vi_right32_signed(vi a, unsigned n) { return _mm256_srai_epi32(a, (int)n); }
ALWAYS_INLINE vi vi_left32(vi a, unsigned n) { return _mm256_slli_epi32(a, n); }
ALWAYS_INLINE vi vi_where_set(vi a, vi bit, vi b) { return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(a, bit), bit), b); } /* bytes of b, or 0 */
ALWAYS_INLINE vi vi_shuffle8(vi a, vi index) { return _mm256_shuffle_epi8(a, index); }
ALWAYS_INLINE vi vi_halves(vi a, vi b) { return _mm256_blend_epi16(a, b, 0xaa); } /* of each dword the low half of a, the high half of b */
ALWAYS_INLINE vi vi_low32(vi a, vi b) { return _mm256_unpacklo_epi32(a, b); }
ALWAYS_INLINE vi vi_high32(vi a, vi b) { return _mm256_unpackhi_epi32(a, b); }
ALWAYS_INLINE vi vi_low64(vi a, vi b) { return _mm256_unpacklo_epi64(a, b); }
ALWAYS_INLINE vi vi_high64(vi a, vi b) { return _mm256_unpackhi_epi64(a, b); }
ALWAYS_INLINE vf vi_to_f32(vi a) { return _mm256_cvtepi32_ps(a); }
ALWAYS_INLINE vi vi_from_f32(vf a) { return _mm256_cvtps_epi32(a); }

ALWAYS_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
ALWAYS_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_from_bits(vi v) { return _mm256_castsi256_ps(v); }
ALWAYS_INLINE vf vf_from_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
ALWAYS_INLINE vf vf_from_low_f16(vi v) /* of each dword */
{
    const vi low = _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(low, 0x08)));
}
ALWAYS_INLINE void vf_from_both_f16(vi v, vf *low, vf *high) /* of each dword */
{
    const __m256i order = _mm256_permute4x64_epi64(v, 0xd8); /* so that the shuffles, which stay within 128 bits, give the dwords as they were */
    const __m256 a = _mm256_cvtph_ps(_mm256_castsi256_si128(order)), b = _mm256_cvtph_ps(_mm256_extracti128_si256(order, 1));
    *low = _mm256_shuffle_ps(a, b, 0x88);
    *high = _mm256_shuffle_ps(a, b, 0xdd);
}
ALWAYS_INLINE vf vf_from_bf16(const void *p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16)); }

ALWAYS_INLINE __m256i first_lanes(unsigned n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
ALWAYS_INLINE vf vf_load_first(const float *p, unsigned n) { return _mm256_maskload_ps(p, first_lanes(n)); }
ALWAYS_INLINE void vf_store_first(float *p, vf v, unsigned n) { _mm256_maskstore_ps(p, first_lanes(n), v); }

/* 16 bytes of each of two rows, one row a 128-bit part: vector j holds rows j and 4 + j, so that four vectors transposed within the parts give the
 * rows in order. */
ALWAYS_INLINE vi vi_row_pieces(const struct rows *w, size_t offset, int j)
{
    const __m128i low = _mm_loadu_si128((const void *)(row_at(w, j) + offset)), high = _mm_loadu_si128((const void *)(row_at(w, 4 + j) + offset));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* The even, the odd dwords of LANES pairs. */
ALWAYS_INLINE vi vi_even32(const void *p)
{
    const __m256 a = _mm256_load_ps(p), b = _mm256_load_ps((const float *)p + 8);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
}
ALWAYS_INLINE vi vi_odd32(const void *p)
{
    const __m256 a = _mm256_load_ps(p), b = _mm256_load_ps((const float *)p + 8);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
}

#ifdef __AVXVNNI__

/* acc += sums of 4 adjacent products u8 x s8, or of 2 of int16. One instruction of assembly each: from intrinsics gcc 12 copies the accumulators of a
 * tile. */
#define VNNI "%{vex%} " /* the encoding of its instructions */
ALWAYS_INLINE vi dot_u8_all(vi acc, vi w, vi x)
{
    __asm__(VNNI "vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    return acc;
}
ALWAYS_INLINE vi dot_s16_all(vi acc, vi w, vi x)
{
    __asm__(VNNI "vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    return acc;
}
#define U8_STEPS(bits) 8 /* no limit */
#define dot_u8_total(v, acc, start) dot_u8_end(acc, start)
ALWAYS_INLINE vi dot_u8_begin(const int32_t *start) { return vi_set32(*start); }
ALWAYS_INLINE vi dot_u8_from(vi start) { return start; }
ALWAYS_INLINE vi dot_u8_end(vi acc, vi start)
{
    (void)start;
    return acc;
}
ALWAYS_INLINE vi dot_s8(vi acc, vi w, const void *x) /* not wanted here */
{
    (void)w;
    (void)x;
    return acc;
}

#else

#define IN_ORDER(acc) __asm__("" : "+x"(acc)) /* gcc 12 would make a tree of the sums and spill its leaves */

/* Sums of 4 adjacent products u8 x s8, w by the 4 bytes at x. They are int16: steps of at most 2 * 15 * 127, or as much with 5 or 6 bits. */
#define U8_STEPS(bits) ((bits) <= 4 ? 8 : (bits) == 5 ? 4 : 2)
ALWAYS_INLINE vi dot_u8_begin(const int32_t *start)
{
    (void)start;
    return vi_zero();
}
ALWAYS_INLINE vi dot_u8_all(vi acc, vi w, vi x)
{
    acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
    IN_ORDER(acc);
    return acc;
}
ALWAYS_INLINE vi dot_u8_from(vi start)
{
    (void)start;
    return vi_zero();
}
ALWAYS_INLINE vi dot_u8_end(vi acc, vi start) { return vi_add32(_mm256_madd_epi16(acc, vi_set16(1)), start); }
/* The same in a tile of v panels: of two it has no register to spare for the ones. */
ALWAYS_INLINE vi dot_u8_total(const unsigned v, vi acc, vi start)
{
    if (v == 1) return dot_u8_end(acc, start);
    static const int16_t ones[16] __attribute__((aligned(32))) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    __asm__("vpmaddwd %1, %0, %0" : "+x"(acc) : "m"(*(const vi *)(const void *)ones));
    return vi_add32(acc, start);
}

/* acc += sums of 2 adjacent products, w by the 2 int16 at x. */
ALWAYS_INLINE vi dot_s16_all(vi acc, vi w, vi x)
{
    acc = vi_add32(acc, _mm256_madd_epi16(w, x));
    IN_ORDER(acc);
    return acc;
}

/* acc += sums of 4 adjacent products, w by the 4 bytes at x, both signed; x is never -128. */
ALWAYS_INLINE vi dot_s8(vi acc, vi w, const void *x)
{
    const vi sx = _mm256_sign_epi8(vi_set32(load32(x)), w);
    return vi_add32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), sx), vi_set16(1)));
}

#endif

/* w by what lies at x. */
ALWAYS_INLINE vi dot_u8(vi acc, vi w, const void *x) { return dot_u8_all(acc, w, vi_set32(load32(x))); }
ALWAYS_INLINE vi dot_s16(vi acc, vi w, const void *x) { return dot_s16_all(acc, w, vi_set32(load32(x))); }

#endif
