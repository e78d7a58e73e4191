/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of AArch64 with dot products of bytes. */
#include "kernels/arm/vector.h"

enum { CHAINS = 8, STEP_PRODUCTS = 16 };

ALWAYS_INLINE int32x4_t products(int32x4_t sum, int8x16_t *w)
{
    CHANGED(*w);
    sum = vdotq_s32(sum, *w, *w);
    CHANGED(sum);
    return sum;
}

ALWAYS_INLINE void group_sums(int8x16_t *w, const unsigned n, int32x4_t sum[CHAINS])
{
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vdupq_n_s32(0);
    UNROLL for (unsigned k = 0; k < n; k += 4) { UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = products(sum[i], w); }
}

#include "kernels/arm/ceiling_body.h"

uint64_t wr_ceiling_mix_dotprod(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n) { return ceiling_mix(what, quant, precise, n); }
void wr_ceiling_read_dotprod(const void *memory, size_t bytes) { ceiling_read(memory, bytes); }
