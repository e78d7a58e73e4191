/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on rows of activations: rules b, c and d as code. */
#include "kernels/ops.h"

#include "base/num.h"
#include "kernels/ref/fold.h"

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u /* magnitude bits of infinity; NaNs are above */
#define F16_INFINITE 0x7c00

void wr_rmsnorm_scalar(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    float p[FOLD_PARTIALS] = {0};
    for (uint32_t i = 0; i < n; i++) p[i % FOLD_PARTIALS] = fmaf(x[i], x[i], p[i % FOLD_PARTIALS]);
    float r = 1.0f / sqrtf(fold_sum(p) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * w[i];
}

/* One group of 32: d, s and s16[2], and q through q8 or q16. False if a value is not finite. */
static bool quantize_group(const float *x, float max, int8_t *q8, int16_t *q16, float *d, float *s, float *s16)
{
    uint32_t amax_bits = 0;
    for (int i = 0; i < WR_GROUP; i++) {
        uint32_t bits = wr_bits_from_f32(x[i]) & MAGNITUDE;
        if (bits > amax_bits) amax_bits = bits;
    }
    if (amax_bits >= INFINITE) return false;
    float amax = wr_f32_from_bits(amax_bits);
    bool zero = amax < 0x1p-100f; /* below, max / amax would overflow */
    float inverse = zero ? 0.0f : max / amax;
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < WR_GROUP; i++) {
        float q = rintf(x[i] * inverse);
        q = q > max ? max : q < -max ? -max : q;
        sum[i / 16] += (int32_t)q;
        if (q8)
            q8[i] = (int8_t)q;
        else
            q16[i] = (int16_t)q;
    }
    *d = zero ? 0.0f : amax / max;
    *s = (float)(sum[0] + sum[1]);
    for (int h = 0; h < 2; h++) s16[h] = (float)sum[h];
    return true;
}

bool wr_quantize_scalar(const struct wr_act *act, uint32_t row)
{
    size_t groups = act->k / WR_GROUP;
    for (size_t g = 0; g < groups; g++) {
        size_t at = row * groups + g;
        int8_t *q8 = act->precise ? NULL : act->q8 + at * WR_GROUP;
        int16_t *q16 = act->precise ? act->q16 + at * WR_GROUP : NULL;
        const float *x = act->x + row * act->ldx + g * WR_GROUP;
        if (!quantize_group(x, act->precise ? 32767.0f : 127.0f, q8, q16, act->d + at, act->s + at, act->s16 + 2 * at)) return false;
    }
    return true;
}

void wr_add_scalar(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += y[i];
}

void wr_silu_mul_scalar(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) gate[i] = wr_silu(gate[i]) * up[i];
}

void wr_gelu_mul_scalar(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) gate[i] = wr_gelu(gate[i]) * up[i];
}

bool wr_all_finite_scalar(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((wr_bits_from_f32(x[i]) & MAGNITUDE) >= INFINITE) return false;
    }
    return true;
}

const char *wr_kv_name(enum wr_kv_type type)
{
    static const char *const names[WR_N_KV_TYPES] = {"f16", "f32", "q8_0", "k8v4"};
    return names[type];
}

static bool in_blocks(enum wr_kv_type type) { return type == WR_KV_Q8_0 || type == WR_KV_K8V4; }

bool wr_kv_rotates_keys(enum wr_kv_type type) { return in_blocks(type); }

bool wr_kv_rotates_values(enum wr_kv_type type) { return type == WR_KV_K8V4; }

bool wr_kv_fits(enum wr_kv_type type, uint32_t head_dim) { return !in_blocks(type) || head_dim % WR_GROUP == 0; }

uint32_t wr_kv_key_bytes(enum wr_kv_type type, uint32_t head_dim)
{
    if (in_blocks(type)) return head_dim + head_dim / WR_GROUP * (uint32_t)sizeof(uint16_t);
    return head_dim * (type == WR_KV_F16 ? 2 : 4);
}

uint32_t wr_kv_value_bytes(enum wr_kv_type type, uint32_t head_dim) { return wr_kv_key_bytes(type, head_dim) - (type == WR_KV_K8V4 ? head_dim / 2 : 0); }

/* Rule d for 32 dimensions of a key or value, whose scale is then rounded to f16. False if a value or the scale is not finite. */
static bool quantize_stored(const float *x, float max, int8_t *q, uint16_t *scale)
{
    float d, s, s16[2];
    if (!quantize_group(x, max, q, NULL, &d, &s, s16)) return false;
    *scale = wr_f16_from_f32(d);
    return *scale < F16_INFINITE;
}

/* A key or value of one head: values `step` apart in q, scales `step` apart behind them. */
static bool store_q8_0(const float *x, uint32_t head_dim, int8_t *q, uint16_t *scale, uint32_t step)
{
    for (uint32_t i = 0; i < head_dim; i += WR_GROUP, scale += step) {
        int8_t group[WR_GROUP];
        if (!quantize_stored(x + i, 127.0f, group, scale)) return false;
        for (uint32_t j = 0; j < WR_GROUP; j++) q[(i + j) * step] = group[j];
    }
    return true;
}

/* A value of one head in two's complement of 4 bits: dimensions j and j + 16 of a group share a byte, j in its low half. */
static bool store_q4_0(const float *x, uint32_t head_dim, uint8_t *q, uint16_t *scale)
{
    for (uint32_t i = 0; i < head_dim; i += WR_GROUP, q += WR_GROUP / 2, scale++) {
        int8_t group[WR_GROUP];
        if (!quantize_stored(x + i, 7.0f, group, scale)) return false;
        for (uint32_t j = 0; j < WR_GROUP / 2; j++) q[j] = (uint8_t)((group[j] & 15) | (group[j + WR_GROUP / 2] & 15) << 4);
    }
    return true;
}

bool wr_kv_store_scalar(enum wr_kv_type type, uint32_t head_dim, const float *k, const float *v, void *k_block, uint32_t slot, void *v_row)
{
    if (type == WR_KV_F32) {
        for (uint32_t i = 0; i < head_dim; i++) {
            ((float *)k_block)[i * WR_KV_BLOCK + slot] = k[i];
            ((float *)v_row)[i] = v[i];
        }
        return wr_all_finite_scalar(k, head_dim) && wr_all_finite_scalar(v, head_dim);
    }
    if (in_blocks(type)) {
        int8_t *k8 = k_block, *v8 = v_row;
        uint8_t *v4 = v_row;
        return store_q8_0(k, head_dim, k8 + slot, (uint16_t *)(void *)(k8 + head_dim * WR_KV_BLOCK) + slot, WR_KV_BLOCK) &&
               (type == WR_KV_Q8_0 ? store_q8_0(v, head_dim, v8, (uint16_t *)(void *)(v8 + head_dim), 1)
                                   : store_q4_0(v, head_dim, v4, (uint16_t *)(void *)(v4 + head_dim / 2)));
    }
    bool finite = true;
    for (uint32_t i = 0; i < head_dim; i++) {
        uint16_t hk = wr_f16_from_f32(k[i]), hv = wr_f16_from_f32(v[i]);
        ((uint16_t *)k_block)[i * WR_KV_BLOCK + slot] = hk;
        ((uint16_t *)v_row)[i] = hv;
        finite = finite && (hk & 0x7fff) < F16_INFINITE && (hv & 0x7fff) < F16_INFINITE;
    }
    return finite;
}
