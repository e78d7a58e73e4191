/* SPDX-License-Identifier: Apache-2.0 */
/* What a router does with its logits, a few hundred at most: the same code at every level. Rules b, c and h. */
#include "kernels/kernels.h"

#include "base/num.h"
#include "kernels/ref/fold.h"

void wr_softmax(float *x, uint32_t n)
{
    float max = -INFINITY, p[FOLD_PARTIALS] = {0};
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > max) max = x[i];
    for (uint32_t i = 0; i < n; i++) {
        x[i] = wr_exp(x[i] - max);
        p[i % FOLD_PARTIALS] += x[i];
    }
    const float sum = fold_sum(p);
    for (uint32_t i = 0; i < n; i++) x[i] /= sum;
}

void wr_top_k(const float *x, uint32_t n, uint32_t k, uint32_t *index)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) { /* by insertion: of equal ones the earlier stays in front */
        if (n_kept == k && !(x[i] > x[index[k - 1]])) continue;
        uint32_t at = n_kept < k ? n_kept++ : k - 1;
        for (; at > 0 && x[i] > x[index[at - 1]]; at--) index[at] = index[at - 1];
        index[at] = i;
    }
}
