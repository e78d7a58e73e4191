/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WR_KERNELS_FOLD_H
#define WR_KERNELS_FOLD_H

#define FOLD_PARTIALS 16 /* rule b: element i belongs to partial sum i mod 16 */

/* The sum of the partials, +8, +4, +2, +1; they are used up. */
static inline float fold_sum(float p[FOLD_PARTIALS])
{
    for (int half = FOLD_PARTIALS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) p[i] += p[i + half];
    }
    return p[0];
}

#endif
