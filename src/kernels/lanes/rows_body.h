/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on rows of activations in 16 lanes (see ref/rows.c and ref/rope.c for what they compute). Included after a lanes_<level>.h. */
#include "kernels/ops.h"
#include "kernels/lanes/num_body.h"

#define INFINITE 0x7f800000 /* magnitude bits of infinity; NaNs are above */
#define F16_INFINITE 0x7c00

void LEVEL(rmsnorm)(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    uint32_t whole = n & ~15u;
    v16 p = v_zero();
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 a = v_load(x + i);
        p = v_fma(a, a, p);
    }
    if (whole < n) {
        v16 a = v_load_n(x + whole, n - whole); /* fma(0, 0, p) = p: p is never -0 */
        p = v_fma(a, a, p);
    }
    v16 r = v_set(1.0f / sqrtf(v_fold_sum(p) / (float)n + eps));
    for (uint32_t i = 0; i < whole; i += 16) v_store(y + i, v_mul(v_mul(v_load(x + i), r), v_load(w + i)));
    if (whole < n) v_store_n(y + whole, v_mul(v_mul(v_load_n(x + whole, n - whole), r), v_load_n(w + whole, n - whole)), n - whole);
}

/* Largest magnitude (as bits) of n elements. */
LANES int32_t max_magnitude(const float *x, size_t n)
{
    size_t i = 0;
    v16i m0 = v_zero_i(), m1 = v_zero_i();
    for (; i + 32 <= n; i += 32) {
        m0 = v_max_i(m0, v_magnitude(v_load(x + i)));
        m1 = v_max_i(m1, v_magnitude(v_load(x + i + 16)));
    }
    if (i + 16 <= n) {
        m0 = v_max_i(m0, v_magnitude(v_load(x + i)));
        i += 16;
    }
    if (i < n) m1 = v_max_i(m1, v_magnitude(v_load_n(x + i, (uint32_t)(n - i))));
    return v_fold_max_i(v_max_i(m0, m1));
}

LANES v16i quantize_16(const float *x, v16 inverse, int32_t max) { return v_max_i(v_min_i(v_round_i(v_mul(v_load(x), inverse)), v_set_i(max)), v_set_i(-max)); }

/* n <= 16 groups, `at` of all: what there is one of for each group is computed for all at once. */
LANES bool quantize_groups(const struct wr_act *act, const float *x, size_t at, uint32_t n)
{
    const int32_t max = act->precise ? 32767 : 127;
    int32_t sums[32];
    float largest[16], inverse[16];
    for (uint32_t g = 0; g < n; g++) largest[g] = wr_f32_from_bits((uint32_t)max_magnitude(x + g * WR_GROUP, WR_GROUP));
    const v16 amax = v_load_n(largest, n), tiny = v_set(0x1p-100f), all = v_set((float)max);
    if (v_fold_max_i(v_magnitude(amax)) >= INFINITE) return false;
    v_store(inverse, v_where_less(amax, tiny, v_zero(), v_div(all, amax)));
    v_store_n(act->d + at, v_where_less(amax, tiny, v_zero(), v_div(amax, all)), n);
    for (uint32_t g = 0; g < n; g++, x += WR_GROUP) {
        const size_t to = (at + g) * WR_GROUP;
        const v16i q0 = quantize_16(x, v_set(inverse[g]), max), q1 = quantize_16(x + 16, v_set(inverse[g]), max);
        if (act->precise) {
            v_store_i16(act->q16 + to, q0);
            v_store_i16(act->q16 + to + 16, q1);
        } else {
            v_store_i8(act->q8 + to, q0);
            v_store_i8(act->q8 + to + 16, q1);
        }
        sums[2 * g] = v_fold_sum_i(q0);
        sums[2 * g + 1] = v_fold_sum_i(q1);
    }
    for (uint32_t i = 0; i < 2 * n; i++) act->s16[2 * at + i] = (float)sums[i];
    for (uint32_t g = 0; g < n; g++) act->s[at + g] = (float)(sums[2 * g] + sums[2 * g + 1]);
    return true;
}

bool LEVEL(quantize)(const struct wr_act *act, uint32_t row)
{
    const size_t groups = act->k / WR_GROUP;
    const float *x = act->x + row * act->ldx;
    for (size_t g = 0; g < groups; g += 16)
        if (!quantize_groups(act, x + g * WR_GROUP, row * groups + g, groups - g < 16 ? (uint32_t)(groups - g) : 16)) return false;
    return true;
}

void LEVEL(add)(float *x, const float *y, size_t n)
{
    size_t whole = n & ~(size_t)15;
    for (size_t i = 0; i < whole; i += 16) v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
    uint32_t rest = (uint32_t)(n - whole);
    if (rest) v_store_n(x + whole, v_add(v_load_n(x + whole, rest), v_load_n(y + whole, rest)), rest);
}

void LEVEL(silu_mul)(float *gate, const float *up, size_t n)
{
    size_t whole = n & ~(size_t)15;
    for (size_t i = 0; i < whole; i += 16) v_store(gate + i, v_mul(v_silu(v_load(gate + i)), v_load(up + i)));
    uint32_t rest = (uint32_t)(n - whole);
    if (rest) v_store_n(gate + whole, v_mul(v_silu(v_load_n(gate + whole, rest)), v_load_n(up + whole, rest)), rest);
}

void LEVEL(gelu_mul)(float *gate, const float *up, size_t n)
{
    size_t whole = n & ~(size_t)15;
    for (size_t i = 0; i < whole; i += 16) v_store(gate + i, v_mul(v_gelu(v_load(gate + i)), v_load(up + i)));
    uint32_t rest = (uint32_t)(n - whole);
    if (rest) v_store_n(gate + whole, v_mul(v_gelu(v_load_n(gate + whole, rest)), v_load_n(up + whole, rest)), rest);
}

bool LEVEL(all_finite)(const float *x, size_t n) { return max_magnitude(x, n) < INFINITE; }

/* One pair; the tails of a head. */
LANES void rotate(float *p0, float *p1, float c, float s)
{
    float x0 = *p0, x1 = *p1;
    *p0 = fmaf(x0, c, -(x1 * s));
    *p1 = fmaf(x0, s, x1 * c);
}

static void rope_interleaved(float *x, uint32_t n_half, const float *c, const float *s)
{
    uint32_t i = 0;
    for (; i + 8 <= n_half; i += 8) {
        v16 v = v_load(x + 2 * i), cc = v_load_pairs(c + i), ss = v_load_pairs(s + i);
        v16 product = v_mul(v_dup_odd(v), v_even_odd(v_neg(ss), cc)); /* x1 * -s has the bits of -(x1 * s) */
        v_store(x + 2 * i, v_fma(v_dup_even(v), v_even_odd(cc, ss), product));
    }
    for (; i < n_half; i++) rotate(x + 2 * i, x + 2 * i + 1, c[i], s[i]);
}

static void rope_halves(float *x, uint32_t n_half, const float *c, const float *s)
{
    uint32_t i = 0;
    for (; i + 16 <= n_half; i += 16) {
        v16 x0 = v_load(x + i), x1 = v_load(x + n_half + i), cc = v_load(c + i), ss = v_load(s + i);
        v_store(x + i, v_fma(x0, cc, v_neg(v_mul(x1, ss))));
        v_store(x + n_half + i, v_fma(x0, ss, v_mul(x1, cc)));
    }
    for (; i < n_half; i++) rotate(x + i, x + n_half + i, c[i], s[i]);
}

void LEVEL(rope)(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *c, const float *s, bool interleaved)
{
    for (uint32_t h = 0; h < n_heads; h++) {
        if (interleaved)
            rope_interleaved(x + (size_t)h * head_dim, n_rot / 2, c, s);
        else
            rope_halves(x + (size_t)h * head_dim, n_rot / 2, c, s);
    }
}

/* Rounds n <= 16 elements; true if none is infinite or NaN after it. Full stores, so out holds 16. */
LANES bool round_f16(const float *x, uint32_t n, uint16_t out[16])
{
    v_store_f16(out, v_load_n(x, n));
    return v_fold_max_i(v_magnitude(v_load_f16(out))) < INFINITE;
}

/* 32 dimensions of a key or value; false if one of them or their scale is not finite. */
LANES bool quantize_stored(const float *x, const int32_t max, int8_t q[WR_GROUP], uint16_t *scale)
{
    int32_t bits = max_magnitude(x, WR_GROUP);
    if (bits >= INFINITE) return false;
    float amax = wr_f32_from_bits((uint32_t)bits), all = (float)max;
    bool zero = amax < 0x1p-100f;
    v16 inverse = v_set(zero ? 0.0f : all / amax);
    v_store_i8(q, quantize_16(x, inverse, max));
    v_store_i8(q + 16, quantize_16(x + 16, inverse, max));
    *scale = wr_f16_from_f32(zero ? 0.0f : amax / all);
    return *scale < F16_INFINITE;
}

/* A key or value of one head: values `step` apart in q, scales `step` apart behind them. */
LANES bool store_q8_0(const float *x, uint32_t head_dim, int8_t *q, uint16_t *scale, const uint32_t step)
{
    for (uint32_t i = 0; i < head_dim; i += WR_GROUP, scale += step) {
        int8_t group[WR_GROUP];
        if (!quantize_stored(x + i, 127, group, scale)) return false;
        for (uint32_t j = 0; j < WR_GROUP; j++) q[(i + j) * step] = group[j];
    }
    return true;
}

LANES bool store_q4_0(const float *x, uint32_t head_dim, uint8_t *q, uint16_t *scale)
{
    for (uint32_t i = 0; i < head_dim; i += WR_GROUP, q += WR_GROUP / 2, scale++) {
        int8_t group[WR_GROUP];
        if (!quantize_stored(x + i, 7, group, scale)) return false;
        for (uint32_t j = 0; j < WR_GROUP / 2; j++) q[j] = (uint8_t)((group[j] & 15) | group[j + WR_GROUP / 2] << 4);
    }
    return true;
}

bool LEVEL(kv_store)(enum wr_kv_type type, uint32_t head_dim, const float *k, const float *v, void *k_block, uint32_t slot, void *v_row)
{
    if (type == WR_KV_F32) {
        for (uint32_t i = 0; i < head_dim; i++) ((float *)k_block)[i * WR_KV_BLOCK + slot] = k[i];
        memcpy(v_row, v, head_dim * sizeof *v);
        return LEVEL(all_finite)(k, head_dim) && LEVEL(all_finite)(v, head_dim);
    }
    if (type != WR_KV_F16) {
        int8_t *k8 = k_block, *v8 = v_row;
        uint8_t *v4 = v_row;
        return store_q8_0(k, head_dim, k8 + slot, (uint16_t *)(void *)(k8 + head_dim * WR_KV_BLOCK) + slot, WR_KV_BLOCK) &&
               (type == WR_KV_Q8_0 ? store_q8_0(v, head_dim, v8, (uint16_t *)(void *)(v8 + head_dim), 1)
                                   : store_q4_0(v, head_dim, v4, (uint16_t *)(void *)(v4 + head_dim / 2)));
    }
    bool finite = true;
    for (uint32_t i = 0; i < head_dim; i += 16) {
        uint32_t n = head_dim - i < 16 ? head_dim - i : 16;
        uint16_t rounded[16];
        finite = round_f16(k + i, n, rounded) && finite;
        uint16_t *column = (uint16_t *)k_block + (size_t)i * WR_KV_BLOCK + slot;
        for (uint32_t j = 0; j < n; j++) column[j * WR_KV_BLOCK] = rounded[j];
        finite = round_f16(v + i, n, rounded) && finite;
        memcpy((uint16_t *)v_row + i, rounded, n * sizeof *rounded);
    }
    return finite;
}
