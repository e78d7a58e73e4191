/* SPDX-License-Identifier: Apache-2.0 */
/* The product on AArch64 with products of 2 x 8 by 8 x 2 bytes (smmla). */
#include "kernels/arm/vector.h"

ALWAYS_INLINE int8x16_t low_halves(int8x16_t a, int8x16_t b) { return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))); }
ALWAYS_INLINE int8x16_t high_halves(int8x16_t a, int8x16_t b) { return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))); }

/* Panels hold [8s][ROWS][8] bytes. */
ALWAYS_INLINE void put_codes(int8_t *panel, const int8x16_t v[ROWS])
{
    vst1q_s8(panel, low_halves(v[0], v[1]));
    vst1q_s8(panel + 16, low_halves(v[2], v[3]));
    vst1q_s8(panel + 32, high_halves(v[0], v[1]));
    vst1q_s8(panel + 48, high_halves(v[2], v[3]));
}

/* Two weight rows by two activation rows; one activation row is taken twice. */
ALWAYS_INLINE void dots(const int8_t *w, const int8_t *const x[TILE_M], const unsigned n, const unsigned m, int32x4_t sum[TILE_M])
{
    UNROLL for (unsigned i = 0; i < m; i += 2)
    {
        int32x4_t rows01 = vdupq_n_s32(0), rows23 = vdupq_n_s32(0);
        UNROLL for (unsigned k = 0; k < n; k += 16)
        {
            const int8x16_t x0 = vld1q_s8(x[i] + k), x1 = m == 1 ? x0 : vld1q_s8(x[i + 1] + k), low = low_halves(x0, x1), high = high_halves(x0, x1);
            const int8_t *ws = w + ROWS * k;
            rows01 = vmmlaq_s32(rows01, vld1q_s8(ws), low);
            rows23 = vmmlaq_s32(rows23, vld1q_s8(ws + 16), low);
            rows01 = vmmlaq_s32(rows01, vld1q_s8(ws + 32), high);
            rows23 = vmmlaq_s32(rows23, vld1q_s8(ws + 48), high);
        }
        sum[i] = vuzp1q_s32(rows01, rows23);
        if (m > 1) sum[i + 1] = vuzp2q_s32(rows01, rows23);
    }
}

#include "kernels/arm/matmul_body.h"

void wr_matmul_i8mm(const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    matmul(quant, rows, stride, n_rows, act, y, ldy, work);
}
