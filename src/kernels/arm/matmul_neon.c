/* SPDX-License-Identifier: Apache-2.0 */
/* The product on any AArch64. */
#include "kernels/arm/vector.h"

/* Panels hold [16s][ROWS][16] bytes. Two products of bytes fit an int16: at most 2 * 128 * 127. */
ALWAYS_INLINE void put_codes(int8_t *panel, const int8x16_t v[ROWS]) { UNROLL for (int r = 0; r < ROWS; r++) vst1q_s8(panel + 16 * r, v[r]); }

ALWAYS_INLINE void dots(const int8_t *w, const int8_t *const x[TILE_M], const unsigned n, const unsigned m, int32x4_t sum[TILE_M])
{
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        int32x4_t part[ROWS];
        UNROLL for (unsigned k = 0; k < n; k += 16)
        {
            const int8x16_t xs = vld1q_s8(x[i] + k);
            UNROLL for (unsigned r = 0; r < ROWS; r++)
            {
                const int8x16_t ws = vld1q_s8(w + ROWS * k + 16 * r);
                const int16x8_t pairs = vmlal_high_s8(vmull_s8(vget_low_s8(ws), vget_low_s8(xs)), ws, xs);
                part[r] = k == 0 ? vpaddlq_s16(pairs) : vpadalq_s16(part[r], pairs);
            }
        }
        sum[i] = vpaddq_s32(vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3]));
    }
}

#include "kernels/arm/matmul_body.h"

void wr_matmul_neon(const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    matmul(quant, rows, stride, n_rows, act, y, ldy, work);
}
