/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864), rule c, and the rotation of stored heads, rule g. */
#include "kernels/ops.h"

#include "base/num.h"

void wr_rope_inv_freq(float *inv_freq, uint32_t n_rot, float base, const float *factors)
{
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        float f = (float)(1.0 / wr_pow((double)base, 2.0 * i / n_rot));
        inv_freq[i] = factors ? f / factors[i] : f;
    }
}

void wr_rope_angles(uint32_t position, const float *inv_freq, uint32_t n_half, float *c, float *s)
{
    for (uint32_t i = 0; i < n_half; i++) {
        double angle = (double)position * (double)inv_freq[i];
        c[i] = (float)wr_cos(angle);
        s[i] = (float)wr_sin(angle);
    }
}

void wr_rope_scalar(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *c, const float *s, bool interleaved)
{
    uint32_t n_half = n_rot / 2;
    for (uint32_t h = 0; h < n_heads; h++) {
        float *head = x + (size_t)h * head_dim;
        for (uint32_t i = 0; i < n_half; i++) {
            float *p0 = interleaved ? head + 2 * i : head + i;
            float *p1 = interleaved ? head + 2 * i + 1 : head + i + n_half;
            float x0 = *p0, x1 = *p1;
            *p0 = fmaf(x0, c[i], -(x1 * s[i]));
            *p1 = fmaf(x0, s[i], x1 * c[i]);
        }
    }
}

void wr_hadamard(float *x, uint32_t head_dim)
{
    const uint32_t n = head_dim & -head_dim; /* the lowest bit that is set */
    const float norm = 1.0f / sqrtf((float)n);
    for (float *part = x; part < x + head_dim; part += n) {
        for (uint32_t step = 1; step < n; step *= 2) {
            for (uint32_t i = 0; i < n; i += 2 * step) {
                for (uint32_t j = i; j < i + step; j++) {
                    const float a = part[j], b = part[j + step];
                    part[j] = a + b;
                    part[j + step] = a - b;
                }
            }
        }
        for (uint32_t i = 0; i < n; i++) part[i] *= norm;
    }
}
