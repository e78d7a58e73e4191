/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product as rules e and f state it. It reads weights through the decoders of src/quant alone, so it is right for
 * every format that has one. y holds the accumulators: a weight group is decoded once and meets every activation row.
 */
#include "kernels/matmul.h"

#include <math.h>

/* Rule e: y[i * ldy] for one weight row. */
static void row_of_integers(const struct wr_quant *quant, const void *row, const struct wr_act *act, float *y, size_t ldy)
{
    const size_t group = quant->group, n_groups = act->k / group;
    for (size_t g = 0; g < n_groups; g++) {
        int8_t q[WR_GROUP];
        float scale, min;
        quant->decode_group(row, g, q, &scale, &min);
        for (uint32_t i = 0; i < act->m; i++) {
            const size_t at = i * (size_t)act->k + g * group;
            int32_t sum = 0; /* at most 32 * 128 * 32767: exact */
            for (size_t j = 0; j < group; j++) sum += q[j] * (act->precise ? act->q16[at + j] : act->q8[at + j]);
            const float d = act->d[at / WR_GROUP], s = group == WR_GROUP ? act->s[at / WR_GROUP] : act->s16[at / 16];
            float acc = fmaf((float)sum, scale * d, y[i * ldy]);
            if (quant->has_min) acc = fmaf(s, min * d, acc);
            y[i * ldy] = acc;
        }
    }
}

/* Rule f. */
static void row_of_floats(const struct wr_quant *quant, const void *row, const struct wr_act *act, float *y, size_t ldy)
{
    enum { CHUNK = 256 }; /* a multiple of every block size */
    float w[CHUNK];
    const uint8_t *blocks = row;
    for (size_t k = 0; k < act->k; k += CHUNK) {
        const size_t n = act->k - k < CHUNK ? act->k - k : CHUNK;
        quant->decode_f32(blocks + k / quant->block_elems * quant->block_bytes, w, n);
        for (uint32_t i = 0; i < act->m; i++) {
            const float *x = act->x + i * act->ldx + k;
            float acc = y[i * ldy];
            for (size_t j = 0; j < n; j++) acc = fmaf(w[j], x[j], acc);
            y[i * ldy] = acc;
        }
    }
}

void wr_matmul_scalar(
    const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    (void)work;
    for (uint32_t r = 0; r < n_rows; r++) {
        const void *row = (const uint8_t *)rows + r * stride;
        for (uint32_t i = 0; i < act->m; i++) y[i * ldy + r] = 0.0f;
        if (quant->is_float)
            row_of_floats(quant, row, act, y + r, ldy);
        else
            row_of_integers(quant, row, act, y + r, ldy);
    }
}
