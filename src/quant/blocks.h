/* SPDX-License-Identifier: Apache-2.0 */
/* What the block formats have in common; included by their files alone. */
#ifndef WR_QUANT_BLOCKS_H
#define WR_QUANT_BLOCKS_H

#include <string.h>
#include "base/num.h"
#include "quant/quant.h"

static inline float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return wr_f32_from_f16(h);
}

/* The nearest finite half goes to p; returns its value. */
static inline float store_half(uint8_t *p, float x)
{
    const uint16_t h = wr_f16_from_f32(fminf(fmaxf(x, -WR_F16_MAX), WR_F16_MAX));
    memcpy(p, &h, 2);
    return wr_f32_from_f16(h);
}

/* The integer of lo..hi whose step is nearest to x. */
static inline int nearest_step(float x, float step, int lo, int hi) { return step == 0 ? 0 : (int)fminf(fmaxf(rintf(x / step), (float)lo), (float)hi); }

/* The value of largest magnitude, with its sign. */
static inline float largest_of(const float *x, int n)
{
    float largest = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(largest)) largest = x[i];
    }
    return largest;
}

/* Scale and minimum of 32 values as codes from 0 (the least one) to `top` (the largest one): two halves to `head`. Fills the codes. */
static inline void fit_range(const float *x, int top, uint8_t *head, uint8_t *q)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < WR_GROUP; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    const float min = store_half(head + 2, lo), scale = store_half(head, fmaxf(hi / (float)top - min / (float)top, 0)); /* hi - min may overflow */
    for (int i = 0; i < WR_GROUP; i++) q[i] = (uint8_t)nearest_step(x[i] - min, scale, 0, top);
}

/* decode_f32 by way of decode_group. The products are exact or rounded once, so a sum has one rounding after them, with or without fma. */
typedef void decode_group_fn(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min);
static inline void decode_by_groups(decode_group_fn *decode_group, size_t group, bool has_min, const void *blocks, float *out, size_t n)
{
    for (size_t g = 0; g < n / group; g++, out += group) {
        int8_t q[WR_GROUP];
        float scale, min;
        decode_group(blocks, g, q, &scale, &min);
        for (size_t i = 0; i < group; i++) out[i] = has_min ? (float)q[i] * scale + min : (float)q[i] * scale;
    }
}

/* ---- 256 elements with scales of scales ---- */

#define K_ELEMS 256

/* Q4_K and Q5_K: scales and minimums of 8 groups in 6 bits each. The first four lie in the low bits of bytes 0..3 and 4..7; of the others the low
 * nibbles share bytes 8..11 and the upper two bits are the top bits of the bytes before. */
static inline void k_pair(const uint8_t s[12], size_t g, int *scale, int *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        *min = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
}

/* In rising order of g, on zeroed bytes. */
static inline void k_set_pair(uint8_t s[12], size_t g, int scale, int min)
{
    if (g < 4) {
        s[g] = (uint8_t)scale;
        s[g + 4] = (uint8_t)min;
    } else {
        s[g + 4] = (uint8_t)((scale & 15) | (min & 15) << 4);
        s[g - 4] |= (uint8_t)(scale >> 4 << 6);
        s[g] |= (uint8_t)(min >> 4 << 6);
    }
}

/* Scales and minimums of a block of w = q * scale - min, q from 0 to `top`: each group from its least value (or 0) to its largest one (or 0), in
 * steps of d and dmin, of which there are `most`. Fills the codes. */
static inline void k_fit_ranges(const float *x, int group, int top, int most, uint8_t *d_at, uint8_t *dmin_at, int *scales, int *mins, uint8_t *q)
{
    float range[K_ELEMS / 16], low[K_ELEMS / 16];
    const int n = K_ELEMS / group;
    for (int g = 0; g < n; g++) {
        float lo = 0, hi = 0;
        for (int i = 0; i < group; i++) {
            lo = fminf(lo, x[g * group + i]);
            hi = fmaxf(hi, x[g * group + i]);
        }
        range[g] = hi / (float)top - lo / (float)top; /* divided first: the difference of two finite floats may overflow */
        low[g] = -lo;
    }
    const float d = store_half(d_at, largest_of(range, n) / (float)most), dmin = store_half(dmin_at, largest_of(low, n) / (float)most);
    for (int g = 0; g < n; g++) {
        scales[g] = nearest_step(range[g], d, 0, most);
        mins[g] = nearest_step(low[g], dmin, 0, most);
        for (int i = g * group; i < (g + 1) * group; i++) q[i] = (uint8_t)nearest_step(x[i] + dmin * (float)mins[g], d * (float)scales[g], 0, top);
    }
}

/* Scales of a block of w = q * scale, q from `lowest` up to -lowest - 1, in 16 groups: the value of largest magnitude becomes the lowest code, and the
 * scale of largest magnitude the lowest of its codes. Fills the codes, less `lowest`. */
static inline void k_fit_signed(const float *x, int lowest, int lowest_scale, uint8_t *d_at, int *scales, uint8_t *q)
{
    float range[K_ELEMS / 16];
    for (int g = 0; g < K_ELEMS / 16; g++) range[g] = largest_of(x + g * 16, 16) / (float)lowest;
    const float d = store_half(d_at, largest_of(range, K_ELEMS / 16) / (float)lowest_scale);
    for (int g = 0; g < K_ELEMS / 16; g++) {
        scales[g] = nearest_step(range[g], d, lowest_scale, -lowest_scale - 1);
        for (int i = g * 16; i < (g + 1) * 16; i++) q[i] = (uint8_t)(nearest_step(x[i], d * (float)scales[g], lowest, -lowest - 1) - lowest);
    }
}

#endif
