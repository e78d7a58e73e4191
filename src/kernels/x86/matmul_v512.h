/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 512 bits for matmul_body.h: AVX-512 F, BW, DQ, VL; with VNNI if the file that includes this is compiled for it. */
#ifndef WR_MATMUL_V512_H
#define WR_MATMUL_V512_H

#include <immintrin.h>
#include "kernels/x86/matmul_rows.h"

#define LANES 16 /* f32 of a vector: weight rows of a panel */
#define TILE_PANELS 2
#define BLOCK_M TILE_M
#define FETCH_NEXT 0
#define FEW_M 64
#define dot_u8_total(v, acc, start) dot_u8_end(acc, start)
#ifdef __AVX512VNNI__
#define TILE_M 8 /* activation rows of a tile, at most */
#define BYTES_BY_PAIRS 0
#else
#define TILE_M 4         /* a row has three vectors a panel: the int16 sums, the int32 ones they go into, and the f32 accumulators */
#define BYTES_BY_PAIRS 1 /* 8-bit weights are multiplied as int16: a pair of u8 x s8 products overflows the int16 sums of maddubs */
#endif

typedef __m512i vi;
typedef __m512 vf;

ALWAYS_INLINE vi vi_load(const void *p) { return _mm512_load_si512(p); }
ALWAYS_INLINE void vi_store(void *p, vi v) { _mm512_store_si512(p, v); }
ALWAYS_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
ALWAYS_INLINE vi vi_set8(int8_t x) { return _mm512_set1_epi8(x); }
ALWAYS_INLINE vi vi_set16(int16_t x) { return _mm512_set1_epi16(x); }
ALWAYS_INLINE vi vi_set32(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE vi vi_copies16(const void *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(p)); } /* 16 bytes, in each 128-bit part */
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE vi vi_add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE vi vi_sub16(vi a, vi b) { return _mm512_sub_epi16(a, b); }
ALWAYS_INLINE vi vi_sub32(vi a, vi b) { return _mm512_sub_epi32(a, b); }
ALWAYS_INLINE vi vi_right16(vi a, unsigned n) { return _mm512_srli_epi16(a, n); }
ALWAYS_INLINE vi vi_left16(vi a, unsigned n) { return _mm512_slli_epi16(a, n); }
ALWAYS_INLINE vi vi_right32(vi a, unsigned n) { return _mm512_srli_epi32(a, n); }
ALWAYS_INLINE vi vi_right32_signed(vi a, unsigned n) { return _mm512_srai_epi32(a, n); }
ALWAYS_INLINE vi vi_left32(vi a, unsigned n) { return _mm512_slli_epi32(a, n); }
ALWAYS_INLINE vi vi_where_set(vi a, vi bit, vi b) { return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(a, bit), b); } /* bytes of b, or 0 */
ALWAYS_INLINE vi vi_shuffle8(vi a, vi index) { return _mm512_shuffle_epi8(a, index); }
ALWAYS_INLINE vi vi_halves(vi a, vi b) { return _mm512_mask_blend_epi16(0xaaaaaaaau, a, b); } /* of each dword the low half of a, the high half of b */
ALWAYS_INLINE vi vi_low32(vi a, vi b) { return _mm512_unpacklo_epi32(a, b); }
ALWAYS_INLINE vi vi_high32(vi a, vi b) { return _mm512_unpackhi_epi32(a, b); }
ALWAYS_INLINE vi vi_low64(vi a, vi b) { return _mm512_unpacklo_epi64(a, b); }
ALWAYS_INLINE vi vi_high64(vi a, vi b) { return _mm512_unpackhi_epi64(a, b); }
ALWAYS_INLINE vf vi_to_f32(vi a) { return _mm512_cvtepi32_ps(a); }
ALWAYS_INLINE vi vi_from_f32(vf a) { return _mm512_cvtps_epi32(a); }

ALWAYS_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_from_bits(vi v) { return _mm512_castsi512_ps(v); }
ALWAYS_INLINE vf vf_from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
ALWAYS_INLINE vf vf_from_low_f16(vi v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); } /* of each dword */
/* Of both halves of each dword. Through memory: a conversion that loads takes no shuffle, and there is one port for those. */
ALWAYS_INLINE void vf_from_both_f16(vi v, vf *low, vf *high)
{
    const vi order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m256i halves[2];
    _mm512_storeu_si512(halves, _mm512_permutexvar_epi16(order, v));
    __asm__("" : "+m"(halves));
    *low = _mm512_cvtph_ps(halves[0]);
    *high = _mm512_cvtph_ps(halves[1]);
}
ALWAYS_INLINE vf vf_from_bf16(const void *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16)); }

ALWAYS_INLINE __mmask16 first_lanes(unsigned n) { return (__mmask16)((1u << n) - 1); }
ALWAYS_INLINE vf vf_load_first(const float *p, unsigned n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
ALWAYS_INLINE void vf_store_first(float *p, vf v, unsigned n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

/* 16 bytes of each of four rows, one row a 128-bit part: vector j holds rows j, 4 + j, 8 + j and 12 + j, so that four vectors transposed within the
 * parts give the rows in order. */
ALWAYS_INLINE vi vi_row_pieces(const struct rows *w, size_t offset, int j)
{
    vi v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row_at(w, j) + offset)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row_at(w, 4 + j) + offset)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row_at(w, 8 + j) + offset)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row_at(w, 12 + j) + offset)), 3);
}

/* The even, the odd dwords of LANES pairs. */
ALWAYS_INLINE vi vi_even32(const void *p)
{
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_epi32(vi_load(p), even, vi_load((const uint8_t *)p + 64));
}
ALWAYS_INLINE vi vi_odd32(const void *p)
{
    const vi odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_epi32(vi_load(p), odd, vi_load((const uint8_t *)p + 64));
}

#ifdef __AVX512VNNI__

#define VNNI "" /* the encoding of its instructions */
typedef int32_t __attribute__((may_alias)) any32;

/* acc += sums of 4 adjacent products u8 x s8, w by the 4 bytes at x; or of 2, w by the 2 int16 at x. One instruction of assembly each: from
 * intrinsics gcc 12 copies and spills the accumulators of a tile. */
ALWAYS_INLINE vi dot_u8(vi acc, vi w, const void *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const any32 *)x));
    return acc;
}
ALWAYS_INLINE vi dot_u8_all(vi acc, vi w, vi x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
}
ALWAYS_INLINE vi dot_s16_all(vi acc, vi w, vi x)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
}
#define U8_STEPS(bits) 8 /* no limit */
ALWAYS_INLINE vi dot_u8_begin(const int32_t *start) { return vi_set32(*start); }
ALWAYS_INLINE vi dot_u8_from(vi start) { return start; }
ALWAYS_INLINE vi dot_u8_end(vi acc, vi start)
{
    (void)start;
    return acc;
}
ALWAYS_INLINE vi dot_s16(vi acc, vi w, const void *x)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const any32 *)x));
    return acc;
}

ALWAYS_INLINE vi dot_s8(vi acc, vi w, const void *x) /* not wanted here */
{
    (void)w;
    (void)x;
    return acc;
}

#else

#define IN_ORDER(acc) __asm__("" : "+v"(acc)) /* gcc 12 would make a tree of the sums and spill its leaves */

/* Sums of 4 adjacent products u8 x s8, w by the 4 bytes at x. They are int16: steps of at most 2 * 15 * 127, or as much with 5 or 6 bits. */
#define U8_STEPS(bits) ((bits) <= 4 ? 8 : (bits) == 5 ? 4 : 2)
ALWAYS_INLINE vi dot_u8_begin(const int32_t *start)
{
    (void)start;
    return vi_zero();
}
ALWAYS_INLINE vi dot_u8_all(vi acc, vi w, vi x)
{
    acc = _mm512_add_epi16(acc, _mm512_maddubs_epi16(w, x));
    IN_ORDER(acc);
    return acc;
}
ALWAYS_INLINE vi dot_u8(vi acc, vi w, const void *x) { return dot_u8_all(acc, w, vi_set32(load32(x))); }
ALWAYS_INLINE vi dot_u8_from(vi start)
{
    (void)start;
    return vi_zero();
}
ALWAYS_INLINE vi dot_u8_end(vi acc, vi start) { return vi_add32(_mm512_madd_epi16(acc, vi_set16(1)), start); }

/* acc += sums of 2 adjacent products, w by the 2 int16 at x. */
ALWAYS_INLINE vi dot_s16_all(vi acc, vi w, vi x)
{
    acc = vi_add32(acc, _mm512_madd_epi16(w, x));
    IN_ORDER(acc);
    return acc;
}
ALWAYS_INLINE vi dot_s16(vi acc, vi w, const void *x) { return dot_s16_all(acc, w, vi_set32(load32(x))); }

/* acc += sums of 4 adjacent products, w by the 4 bytes at x, both signed; x is never -128. */
ALWAYS_INLINE vi dot_s8(vi acc, vi w, const void *x)
{
    const vi xs = vi_set32(load32(x)), sx = _mm512_mask_sub_epi8(xs, _mm512_movepi8_mask(w), vi_zero(), xs); /* x, negated where w is negative */
    return vi_add32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(w), sx), vi_set16(1)));
}

#endif

#endif
