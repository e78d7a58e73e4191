/* SPDX-License-Identifier: Apache-2.0 */
/* What each level brings to ceiling.c. */
#ifndef WR_CEILING_LEVEL_H
#define WR_CEILING_LEVEL_H

#include "kernels/ceiling.h"

/* Runs the mix `n` times; gives its multiply-adds x 2. */
#define DECLARE_CEILING(level)                                                                                                                                 \
    uint64_t wr_ceiling_mix_##level(enum wr_mix, const struct wr_quant *, bool precise, uint64_t n);                                                           \
    void wr_ceiling_read_##level(const void *memory, size_t bytes);

#ifdef WR_X86
DECLARE_CEILING(avx2)
DECLARE_CEILING(avxvnni)
DECLARE_CEILING(avx512)
DECLARE_CEILING(avx512vnni)
DECLARE_CEILING(amx)
#endif
#ifdef WR_ARM64
DECLARE_CEILING(neon)
DECLARE_CEILING(dotprod)
DECLARE_CEILING(i8mm)
#endif
#undef DECLARE_CEILING

#endif
