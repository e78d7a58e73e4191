/* SPDX-License-Identifier: Apache-2.0 */
/* The product of each level; contract: wr_kernels.matmul. */
#ifndef WR_KERNELS_MATMUL_H
#define WR_KERNELS_MATMUL_H

#include "kernels/kernels.h"

#define DECLARE_MATMUL(level)                                                                                                                                  \
    void wr_matmul_##level(const struct wr_quant *, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *, float *y, size_t ldy, void *work);

DECLARE_MATMUL(scalar)
#ifdef WR_X86
DECLARE_MATMUL(avx2)
DECLARE_MATMUL(avxvnni)
DECLARE_MATMUL(avx512)
DECLARE_MATMUL(avx512vnni)
DECLARE_MATMUL(amx)
#endif
#ifdef WR_ARM64
DECLARE_MATMUL(neon)
DECLARE_MATMUL(dotprod)
DECLARE_MATMUL(i8mm)
#endif
#undef DECLARE_MATMUL

#endif
