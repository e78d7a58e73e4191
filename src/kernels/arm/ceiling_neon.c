/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of any AArch64. */
#include "kernels/arm/vector.h"

enum { CHAINS = 4, STEP_PRODUCTS = 16 }; /* rows of activations: each has ROWS sums, 16 in all, beside its accumulator */

ALWAYS_INLINE int32x4_t products(int32x4_t sum, int8x16_t *w)
{
    CHANGED(*w);
    sum = vpadalq_s16(sum, vmlal_high_s8(vmull_s8(vget_low_s8(*w), vget_low_s8(*w)), *w, *w));
    CHANGED(sum);
    return sum;
}

ALWAYS_INLINE void group_sums(int8x16_t *w, const unsigned n, int32x4_t sum[CHAINS])
{
    int32x4_t part[CHAINS][ROWS];
    UNROLL for (unsigned k = 0; k < n; k += 16)
    {
        UNROLL for (int i = 0; i < CHAINS; i++) { UNROLL for (int r = 0; r < ROWS; r++) part[i][r] = products(k == 0 ? vdupq_n_s32(0) : part[i][r], w); }
    }
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vpaddq_s32(vpaddq_s32(part[i][0], part[i][1]), vpaddq_s32(part[i][2], part[i][3]));
}

#include "kernels/arm/ceiling_body.h"

uint64_t wr_ceiling_mix_neon(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n) { return ceiling_mix(what, quant, precise, n); }
void wr_ceiling_read_neon(const void *memory, size_t bytes) { ceiling_read(memory, bytes); }
