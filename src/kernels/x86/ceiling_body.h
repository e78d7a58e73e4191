/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instruction mixes of one level, in registers alone. Included once by each level, after its vectors (matmul_v256.h, matmul_v512.h).
 *
 * The instructions are those that the tiles of matmul_panel.h cannot do without; loads, which those also do, have ports of their own. What a volatile
 * statement of assembly may have changed cannot be computed once and used again, left out, or moved to where registers run out.
 */
#include "kernels/ceiling_level.h"

/* Results that are under way at once: two instructions a cycle, with a latency of up to 5. AVX2 has registers for 4 of a mix, each of which has a sum, a
 * total and an accumulator; the CPU overlaps its groups. */
enum { MIX_CHAINS = LANES == 16 ? 8 : 4, CHAINS = 12 };

#if LANES == 16
#define CHANGED(v) __asm__ volatile("" : "+v"(v))
#else
#define CHANGED(v) __asm__ volatile("" : "+x"(v))
#endif

#if defined __AVX512VNNI__ || defined __AVXVNNI__
ALWAYS_INLINE vi products_u8(vi sum, vi *w, bool first)
{
    __asm__ volatile(VNNI "vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(*w));
    return sum;
}
ALWAYS_INLINE vi products_s16(vi sum, vi *w, bool first)
{
    __asm__ volatile(VNNI "vpdpwssd %1, %1, %0" : "+v"(sum) : "v"(*w));
    return sum;
}
#else
#if LANES == 16
#define MADDUBS _mm512_maddubs_epi16
#define MADD _mm512_madd_epi16
#define ADD16 _mm512_add_epi16
#else
#define MADDUBS _mm256_maddubs_epi16
#define MADD _mm256_madd_epi16
#define ADD16 _mm256_add_epi16
#endif
ALWAYS_INLINE vi products_u8(vi sum, vi *w, bool first)
{
    CHANGED(*w);
    sum = first ? MADDUBS(*w, *w) : ADD16(sum, MADDUBS(*w, *w));
    CHANGED(sum);
    return sum;
}
ALWAYS_INLINE vi products_s16(vi sum, vi *w, bool first)
{
    CHANGED(*w);
    sum = first ? MADD(*w, *w) : vi_add32(sum, MADD(*w, *w));
    CHANGED(sum);
    return sum;
}
#endif

/* Rule e: `n` groups of weights of so many `bits`, as MIX_CHAINS activation rows meet them. */
ALWAYS_INLINE uint64_t mix(const unsigned group, const unsigned bits, const bool bytes, const bool has_min, uint64_t n)
{
    const unsigned steps = bytes ? group / 4 : group / 2, part = bytes && U8_STEPS(bits) < steps ? U8_STEPS(bits) : steps;
    vi w = vi_set8(1), start = vi_zero();
    vf one = vf_set(1), acc[MIX_CHAINS];
    UNROLL for (int i = 0; i < MIX_CHAINS; i++) acc[i] = vf_zero();
    for (uint64_t b = 0; b < n; b++) {
        vi sum[MIX_CHAINS], total[MIX_CHAINS];
        UNROLL for (unsigned first = 0; first < steps; first += part)
        {
            UNROLL for (int i = 0; i < MIX_CHAINS; i++) sum[i] = bytes ? start : vi_zero();
            UNROLL for (unsigned s = first; s < first + part; s++)
            {
                UNROLL for (int i = 0; i < MIX_CHAINS; i++) sum[i] = bytes ? products_u8(sum[i], &w, s == first) : products_s16(sum[i], &w, s == first);
            }
            UNROLL for (int i = 0; i < MIX_CHAINS; i++) total[i] = bytes ? dot_u8_end(sum[i], first == 0 ? start : total[i]) : sum[i];
            UNROLL for (int i = 0; i < MIX_CHAINS; i++) CHANGED(total[i]);
        }
        UNROLL for (int i = 0; i < MIX_CHAINS; i++)
        {
            CHANGED(one);
            acc[i] = vf_fma(vi_to_f32(total[i]), vf_mul(one, one), acc[i]);
            CHANGED(acc[i]);
        }
        UNROLL for (int i = 0; i < MIX_CHAINS && has_min; i++)
        {
            CHANGED(one);
            acc[i] = vf_fma(one, vf_mul(one, one), acc[i]);
            CHANGED(acc[i]);
        }
    }
    return n * group * LANES * MIX_CHAINS * 2;
}

#define MIX(name, group, bits, bytes)                                                                                                                          \
    NEVER_INLINE uint64_t name(bool has_min, uint64_t n) { return has_min ? mix(group, bits, bytes, true, n) : mix(group, bits, bytes, false, n); }
MIX(mix_4bits, 32, 4, true)
MIX(mix_5bits, 32, 5, true)
MIX(mix_8bits, 32, 8, true)
MIX(mix_pairs, 32, 16, false)
MIX(mix_4bits_of_16, 16, 4, true)
MIX(mix_6bits_of_16, 16, 6, true)
MIX(mix_pairs_of_16, 16, 16, false)

NEVER_INLINE uint64_t dots(const bool bytes, uint64_t n)
{
    vi w = vi_set8(1), sum[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vi_zero();
    for (uint64_t b = 0; b < n; b++) {
        UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = bytes ? products_u8(sum[i], &w, false) : products_s16(sum[i], &w, false);
    }
    UNROLL for (int i = 0; i < CHAINS; i++) CHANGED(sum[i]);
    return n * (bytes ? 4 : 2) * LANES * CHAINS * 2;
}

NEVER_INLINE uint64_t multiply_adds(uint64_t n)
{
    vf one = vf_set(1), acc[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vf_zero();
    for (uint64_t b = 0; b < n; b++) {
        UNROLL for (int i = 0; i < CHAINS; i++)
        {
            acc[i] = vf_fma(one, one, acc[i]);
            CHANGED(acc[i]);
        }
    }
    return n * LANES * CHAINS * 2;
}

static uint64_t format_mix(const struct wr_quant *quant, bool precise, uint64_t n)
{
    if (quant->is_float) return multiply_adds(n);
    switch (quant->id) {
    case WR_TYPE_Q4_0:
    case WR_TYPE_Q4_1:
    case WR_TYPE_Q4_K:
    case WR_TYPE_TQ2_0:
        return precise ? mix_pairs(quant->has_min, n) : mix_4bits(quant->has_min, n);
    case WR_TYPE_Q5_0:
    case WR_TYPE_Q5_1:
    case WR_TYPE_Q5_K:
        return precise ? mix_pairs(quant->has_min, n) : mix_5bits(quant->has_min, n);
    case WR_TYPE_Q2_K:
    case WR_TYPE_Q3_K:
        return precise ? mix_pairs_of_16(quant->has_min, n) : mix_4bits_of_16(quant->has_min, n);
    case WR_TYPE_Q6_K:
        return precise ? mix_pairs_of_16(quant->has_min, n) : mix_6bits_of_16(quant->has_min, n);
    default: /* as the widest; formats that are decoded first end here too */
        return precise || BYTES_BY_PAIRS ? mix_pairs(quant->has_min, n) : mix_8bits(quant->has_min, n);
    }
}

static uint64_t ceiling_mix(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n)
{
    switch (what) {
    case WR_MIX_FMA:
        return multiply_adds(n);
    case WR_MIX_INT8:
        return dots(true, n);
    case WR_MIX_INT16:
        return dots(false, n);
    default:
        return format_mix(quant, precise, n);
    }
}

/* The fastest of 1 to 8 streams, with and without fetching ahead: 18.0 GB/s, one plain stream 15.6 (Xeon, 1 thread, medians of 4). */
enum { STREAMS = 4, READ_AHEAD = 2048 };

static void ceiling_read(const void *memory, size_t bytes)
{
    const size_t each = bytes / STREAMS / 128 * 128;
    const char *p = memory;
    vi seen[STREAMS];
    UNROLL for (int s = 0; s < STREAMS; s++) seen[s] = vi_zero();
    for (size_t at = 0; at < each; at += 128) {
        UNROLL for (size_t s = 0; s < STREAMS; s++)
        {
            _mm_prefetch(p + s * each + at + READ_AHEAD, _MM_HINT_T1);
            _mm_prefetch(p + s * each + at + READ_AHEAD + 64, _MM_HINT_T1);
            UNROLL for (size_t i = 0; i < 128; i += sizeof(vi)) seen[s] = vi_xor(seen[s], vi_load(p + s * each + at + i));
        }
    }
    UNROLL for (int s = 0; s < STREAMS; s++) CHANGED(seen[s]);
}
