/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over one KV tile with the running softmax state (m, l, O) of Milakov and Gimelshein (arXiv 1805.02867); rule g.
 * A query is computed by itself, so nothing depends on how many share the call.
 */
#include "kernels/ops.h"

#include "base/num.h"
#include "kernels/ref/fold.h"

static float scaled(int8_t q, const void *scales, size_t i) { return (float)q * wr_f32_from_f16(((const uint16_t *)scales)[i]); } /* exact: 8 bits times 11 */

/* Dimension d of the key in a slot of a K block, and of a position's V. */
static float key_value(enum wr_kv_type type, uint32_t n_d, const uint8_t *block, uint32_t slot, uint32_t d)
{
    const size_t i = d * WR_KV_BLOCK + slot;
    if (type == WR_KV_F32) return ((const float *)(const void *)block)[i];
    if (type == WR_KV_F16) return wr_f32_from_f16(((const uint16_t *)(const void *)block)[i]);
    return scaled(((const int8_t *)block)[i], block + n_d * WR_KV_BLOCK, d / WR_GROUP * WR_KV_BLOCK + slot);
}

static float value_value(enum wr_kv_type type, uint32_t n_d, const uint8_t *row, uint32_t d)
{
    if (type == WR_KV_F32) return ((const float *)(const void *)row)[d];
    if (type == WR_KV_F16) return wr_f32_from_f16(((const uint16_t *)(const void *)row)[d]);
    if (type == WR_KV_Q8_0) return scaled(((const int8_t *)row)[d], row + n_d, d / WR_GROUP);
    const uint8_t both = row[d / WR_GROUP * (WR_GROUP / 2) + d % (WR_GROUP / 2)], n = d % WR_GROUP < WR_GROUP / 2 ? both & 15 : both >> 4;
    return scaled((int8_t)((n ^ 8) - 8), row + n_d / 2, d / WR_GROUP);
}

static void attend_one(const struct wr_tile *t, uint32_t i)
{
    const uint32_t n_d = t->head_dim, first = t->first[i], last = t->last[i];
    const size_t key_bytes = wr_kv_key_bytes(t->type, n_d), value_bytes = wr_kv_value_bytes(t->type, n_d);
    const float *q = t->q[i];
    float *o = t->o + (size_t)i * n_d, *p = t->work + (size_t)i * WR_TILE;

    float max = -INFINITY;
    for (uint32_t j = first; j < last; j++) {
        const uint32_t slot = j % WR_KV_BLOCK;
        const uint8_t *block = (const uint8_t *)t->k + (j - slot) * key_bytes;
        float s = 0.0f;
        for (uint32_t d = 0; d < n_d; d++) s = fmaf(q[d], key_value(t->type, n_d, block, slot, d), s);
        s *= t->scale;
        if (t->softcap != 0.0f) s = t->softcap * wr_tanh(s / t->softcap);
        if (s > max) max = s;
        p[j] = s;
    }
    max += 0.0f; /* -0 becomes +0: which of two equal zeros is met first depends on the order */
    if (max > t->m[i]) {
        float a = wr_exp(t->m[i] - max); /* the first tile of a span: exp(-inf) = +0 times l = 0 and O = 0 */
        t->m[i] = max;
        t->l[i] *= a;
        for (uint32_t d = 0; d < n_d; d++) o[d] *= a;
    }
    float sum[FOLD_PARTIALS] = {0};
    for (uint32_t j = first; j < last; j++) {
        p[j] = wr_exp(p[j] - t->m[i]);
        sum[j % FOLD_PARTIALS] += p[j];
    }
    t->l[i] += fold_sum(sum);
    for (uint32_t j = first; j < last; j++) {
        const uint8_t *row = (const uint8_t *)t->v + j * value_bytes;
        for (uint32_t d = 0; d < n_d; d++) o[d] = fmaf(p[j], value_value(t->type, n_d, row, d), o[d]);
    }
}

void wr_attend_tile_scalar(const struct wr_tile *t)
{
    for (uint32_t i = 0; i < t->n_q; i++) {
        if (t->first[i] < t->last[i]) attend_one(t, i);
    }
}

/* m = -inf alone does not mean empty: a span of scores that overflowed to -inf has l = NaN, which must reach the result. */
static bool span_empty(float m, float l) { return m == -INFINITY && l == 0.0f; }

void wr_attend_merge(float *m, float *l, float *o, float m2, float l2, const float *o2, uint32_t head_dim)
{
    if (span_empty(m2, l2)) return;
    if (span_empty(*m, *l)) {
        *m = m2;
        *l = l2;
        memcpy(o, o2, head_dim * sizeof *o);
        return;
    }
    float max = *m > m2 ? *m : m2;
    float a1 = wr_exp(*m - max), a2 = wr_exp(m2 - max);
    *m = max;
    *l = fmaf(*l, a1, l2 * a2);
    for (uint32_t d = 0; d < head_dim; d++) o[d] = fmaf(o[d], a1, o2[d] * a2);
}
