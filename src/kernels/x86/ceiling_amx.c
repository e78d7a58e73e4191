/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of AMX; those of what matmul_amx.c leaves to AVX-512 with VNNI are VNNI's. */
#include "kernels/ceiling_level.h"
#include "kernels/x86/matmul_v512.h"

enum { TILE_ROWS = 16, SUMS = 4 };

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} whole = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}},
  groups = {.palette = 1, .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 8}}; /* as in matmul_amx.c */

/* Products of whole tiles: 64 of k. */
static uint64_t products(uint64_t n)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(whole));
    for (uint64_t b = 0; b < n; b++)
        __asm__ volatile("tdpbssd %tmm6, %tmm4, %tmm0\n\ttdpbssd %tmm7, %tmm4, %tmm1\n\ttdpbssd %tmm6, %tmm5, %tmm2\n\ttdpbssd %tmm7, %tmm5, %tmm3");
    __asm__ volatile("tilerelease");
    return n * SUMS * TILE_ROWS * LANES * 64 * 2;
}

#define CHANGED(v) __asm__ volatile("" : "+v"(v))
#define STEP(new, x, w, old)                                                                                                                                   \
    __asm__ volatile("tilestored %%tmm" old ", (%0,%1)\n\ttilezero %%tmm" new "\n\ttdpbssd %%tmm" w ", %%tmm" x ", %%tmm" new                                  \
                     :                                                                                                                                         \
                     : "r"(sums[(j + 1) % SUMS]), "r"((ptrdiff_t)sizeof(vi))                                                                                   \
                     : "memory")

/* Rule e: products of groups of 32, their sums through memory into vectors, and what these do with them. */
ALWAYS_INLINE uint64_t mix(const bool has_min, uint64_t n)
{
    _Alignas(64) int32_t sums[SUMS][TILE_ROWS][LANES] = {{{0}}};
    vf one = vf_set(1), acc[TILE_ROWS];
    UNROLL for (int r = 0; r < TILE_ROWS; r++) acc[r] = vf_zero();
    __asm__ volatile("ldtilecfg %0" : : "m"(groups));
    for (uint64_t b = 0; b < n; b++) {
        UNROLL for (int j = 0; j < SUMS; j++)
        {
            if (j == 0) STEP("0", "4", "6", "1");
            if (j == 1) STEP("1", "5", "7", "2");
            if (j == 2) STEP("2", "4", "6", "3");
            if (j == 3) STEP("3", "5", "7", "0");
            UNROLL for (int r = 0; r < TILE_ROWS; r++)
            {
                CHANGED(one);
                acc[r] = vf_fma(vi_to_f32(vi_load(sums[j][r])), vf_mul(one, one), acc[r]);
                CHANGED(acc[r]);
            }
            UNROLL for (int r = 0; r < TILE_ROWS && has_min; r++)
            {
                CHANGED(one);
                acc[r] = vf_fma(one, vf_mul(one, one), acc[r]);
                CHANGED(acc[r]);
            }
        }
    }
    __asm__ volatile("tilerelease");
    return n * SUMS * WR_GROUP * TILE_ROWS * LANES * 2;
}

NEVER_INLINE uint64_t mix_plain(uint64_t n) { return mix(false, n); }
NEVER_INLINE uint64_t mix_min(uint64_t n) { return mix(true, n); }

uint64_t wr_ceiling_mix_amx(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n)
{
    if (what == WR_MIX_INT8) return products(n);
    if (what == WR_MIX_FORMAT && !quant->is_float && quant->group == WR_GROUP && !precise) return quant->has_min ? mix_min(n) : mix_plain(n);
    return wr_ceiling_mix_avx512vnni(what, quant, precise, n);
}

void wr_ceiling_read_amx(const void *memory, size_t bytes) { wr_ceiling_read_avx512vnni(memory, bytes); }
