/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of AArch64 with products of matrices of bytes. */
#include "kernels/arm/vector.h"

enum { CHAINS = 8, STEP_PRODUCTS = 32 };

ALWAYS_INLINE int32x4_t products(int32x4_t sum, int8x16_t *w)
{
    CHANGED(*w);
    sum = vmmlaq_s32(sum, *w, *w);
    CHANGED(sum);
    return sum;
}

/* The sums of two activation rows with two weight rows each, and with the other two. */
ALWAYS_INLINE void group_sums(int8x16_t *w, const unsigned n, int32x4_t sum[CHAINS])
{
    int32x4_t part[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) part[i] = vdupq_n_s32(0);
    UNROLL for (unsigned k = 0; k < n; k += 8) { UNROLL for (int i = 0; i < CHAINS; i++) part[i] = products(part[i], w); }
    UNROLL for (int i = 0; i < CHAINS; i += 2)
    {
        sum[i] = vuzp1q_s32(part[i], part[i + 1]);
        sum[i + 1] = vuzp2q_s32(part[i], part[i + 1]);
    }
}

#include "kernels/arm/ceiling_body.h"

uint64_t wr_ceiling_mix_i8mm(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n) { return ceiling_mix(what, quant, precise, n); }
void wr_ceiling_read_i8mm(const void *memory, size_t bytes) { ceiling_read(memory, bytes); }
