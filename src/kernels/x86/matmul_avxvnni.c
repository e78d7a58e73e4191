/* SPDX-License-Identifier: Apache-2.0 */
/* The product on AVX2, FMA, F16C with AVX-VNNI. */
#include "kernels/x86/matmul_v256.h"
#include "kernels/x86/matmul_body.h"

void wr_matmul_avxvnni(
    const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    matmul(quant, rows, stride, n_rows, act, y, ldy, work);
}
