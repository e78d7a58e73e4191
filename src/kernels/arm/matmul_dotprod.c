/* SPDX-License-Identifier: Apache-2.0 */
/* The product on AArch64 with dot products of bytes (sdot). */
#include "kernels/arm/vector.h"

/* Panels hold [4s][ROWS][4] bytes. */
ALWAYS_INLINE void put_codes(int8_t *panel, const int8x16_t v[ROWS])
{
    const int32x4x4_t rows = {{vreinterpretq_s32_s8(v[0]), vreinterpretq_s32_s8(v[1]), vreinterpretq_s32_s8(v[2]), vreinterpretq_s32_s8(v[3])}};
    vst4q_s32((int32_t *)(void *)panel, rows);
}

ALWAYS_INLINE void dots(const int8_t *w, const int8_t *const x[TILE_M], const unsigned n, const unsigned m, int32x4_t sum[TILE_M])
{
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        sum[i] = vdupq_n_s32(0);
        UNROLL for (unsigned k = 0; k < n; k += 16)
        {
            const int8x16_t xs = vld1q_s8(x[i] + k);
            const int8_t *ws = w + ROWS * k;
            sum[i] = vdotq_laneq_s32(sum[i], vld1q_s8(ws), xs, 0);
            sum[i] = vdotq_laneq_s32(sum[i], vld1q_s8(ws + 16), xs, 1);
            sum[i] = vdotq_laneq_s32(sum[i], vld1q_s8(ws + 32), xs, 2);
            sum[i] = vdotq_laneq_s32(sum[i], vld1q_s8(ws + 48), xs, 3);
        }
    }
}

#include "kernels/arm/matmul_body.h"

void wr_matmul_dotprod(
    const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    matmul(quant, rows, stride, n_rows, act, y, ldy, work);
}
