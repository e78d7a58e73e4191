/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by rule g: keys and values of the pass's rows are rounded and stored first, then every row attends over what
 * is stored. A work item is one KV head and up to WR_TILE_MAX_Q (row, query head) pairs, so that a tile of keys is widened
 * once for all of them; spans are merged in ascending order whatever the split.
 */
#include <math.h>
#include <string.h>
#include "model/pass.h"

struct attention {
    struct wr_pass *p;
    uint32_t il, n_blocks, group, n_items;
    _Atomic uint32_t next;
};

static uint64_t floats(uint64_t n) { return wr_round_up(n * sizeof(float), 64); }

uint64_t wr_attention_work_bytes(uint32_t head_dim)
{
    return 4 * floats(WR_TILE_MAX_Q) + 2 * floats((uint64_t)WR_TILE_MAX_Q * head_dim) + floats(WR_TILE_MAX_Q * WR_TILE);
}

static void *take(uint8_t **at, uint64_t bytes)
{
    void *p = *at;
    *at += bytes;
    return p;
}

static void rope_angles(struct wr_pass *p, uint32_t row, void *arg)
{
    uint32_t n_half = p->model->hp.n_rot / 2;
    for (size_t i = 0; i < sizeof p->rope / sizeof *p->rope && p->rope[i].inv_freq != NULL; i++)
        wr_rope_angles(p->rows[row].position, p->rope[i].inv_freq, n_half, p->rope[i].cos + row * n_half, p->rope[i].sin + row * n_half);
}

/* Adds biases to q, k and v of a row, norms and rotates q and k, stores its key and value. */
static void store_row(struct wr_pass *p, uint32_t row, uint32_t il)
{
    const struct wr_hparams *hp = &p->model->hp;
    uint32_t n_half = hp->n_rot / 2, position = p->rows[row].position;
    float *q = p->g + row * p->g_width, *k = q + hp->n_head * hp->head_dim, *v = k + hp->n_head_kv * hp->head_dim;
    const struct wr_layer *l = &p->model->layers[il];
    const struct wr_rope *rope = &p->rope[l->local];
    wr_pass_add_vector(p, q, l->q_bias, hp->n_head * hp->head_dim);
    wr_pass_add_vector(p, k, l->k_bias, hp->n_head_kv * hp->head_dim);
    wr_pass_add_vector(p, v, l->v_bias, hp->n_head_kv * hp->head_dim);
    for (uint32_t h = 0; l->q_norm != WR_NO_WEIGHT && h < hp->n_head + hp->n_head_kv; h++) {
        const float *w = wr_pager_vector(p->pager, h < hp->n_head ? l->q_norm : l->k_norm);
        p->kernels->rmsnorm(q + h * hp->head_dim, w, q + h * hp->head_dim, hp->head_dim, hp->eps);
    }
    p->kernels->rope(q, hp->n_head + hp->n_head_kv, hp->head_dim, hp->n_rot, rope->cos + row * n_half, rope->sin + row * n_half, hp->rope_interleaved);
    const struct wr_kv *kv = &p->kv[p->rows[row].sequence];
    for (uint32_t h = 0; h < hp->n_head_kv; h++) {
        struct wr_ref key = wr_kv_keys(kv, il, h, position, 1), value = wr_kv_values(kv, il, h, position, 1);
        if (!p->kernels->kv_store(kv->type, hp->head_dim, k + h * hp->head_dim, v + h * hp->head_dim, wr_ref_address(p->device, &key), position % WR_KV_BLOCK,
                wr_ref_address(p->device, &value)))
            wr_pass_fail(p, WEIR_E_NONFINITE, "a key or value of position %u is not finite, or beyond what KV type %s holds", position, wr_kv_name(kv->type));
    }
}

/* Rows of one K block go to one member: their keys are neighbours in memory. */
static void store_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    struct wr_pass *p = a->p;
    uint32_t skew = p->rows[0].position % WR_KV_BLOCK;
    for (;;) {
        uint32_t block = atomic_fetch_add(&a->next, WR_KV_BLOCK);
        if (block >= p->m + skew) return;
        for (uint32_t i = block; i < block + WR_KV_BLOCK; i++)
            if (i >= skew && i - skew < p->m) store_row(p, i - skew, a->il);
    }
}

/* Pairs [first, first + n_q) of (row, query head of the KV head's group), all of one sequence. */
static void attend_pairs(struct attention *a, uint32_t head, uint32_t first, uint32_t n_q, uint8_t *work)
{
    struct wr_pass *p = a->p;
    const struct wr_hparams *hp = &p->model->hp;
    uint32_t dim = hp->head_dim, window = p->model->layers[a->il].local ? hp->window : UINT32_MAX, begin = UINT32_MAX, last = 0;
    const float *q[WR_TILE_MAX_Q];
    uint32_t position[WR_TILE_MAX_Q], oldest[WR_TILE_MAX_Q], from[WR_TILE_MAX_Q], to[WR_TILE_MAX_Q];
    float *m = take(&work, floats(WR_TILE_MAX_Q)), *l = take(&work, floats(WR_TILE_MAX_Q)), *o = take(&work, floats((uint64_t)WR_TILE_MAX_Q * dim));
    float *all_m = take(&work, floats(WR_TILE_MAX_Q)), *all_l = take(&work, floats(WR_TILE_MAX_Q)), *all_o = take(&work, floats((uint64_t)WR_TILE_MAX_Q * dim));
    const struct wr_kv *kv = &p->kv[p->rows[first / a->group].sequence];
    struct wr_tile tile = {.type = kv->type,
        .head_dim = dim,
        .n_q = n_q,
        .q = q,
        .first = from,
        .last = to,
        .scale = hp->attention_scale,
        .m = m,
        .l = l,
        .o = o,
        .work = (float *)work};

    for (uint32_t i = 0; i < n_q; i++) {
        uint32_t row = (first + i) / a->group, in_group = (first + i) % a->group;
        q[i] = p->g + row * p->g_width + (head * a->group + in_group) * dim;
        position[i] = p->rows[row].position;
        oldest[i] = position[i] < window ? 0 : position[i] - window + 1;
        if (oldest[i] < begin) begin = oldest[i];
        if (position[i] > last) last = position[i];
        all_m[i] = -INFINITY;
        all_l[i] = 0;
    }
    begin = begin / WR_TILE * WR_TILE; /* tiles before it are seen by no query */
    for (uint32_t span = begin / WR_SPAN * WR_SPAN; span <= last; span += WR_SPAN) {
        for (uint32_t i = 0; i < n_q; i++) {
            m[i] = -INFINITY;
            l[i] = 0;
        }
        memset(o, 0, n_q * dim * sizeof *o);
        for (uint32_t base = span > begin ? span : begin; base <= last && base < span + WR_SPAN; base += WR_TILE) {
            uint32_t n = last - base + 1 < WR_TILE ? last - base + 1 : WR_TILE;
            for (uint32_t i = 0; i < n_q; i++) {
                from[i] = oldest[i] < base ? 0 : oldest[i] - base;
                to[i] = position[i] < base ? 0 : position[i] - base + 1 < WR_TILE ? position[i] - base + 1 : WR_TILE;
            }
            struct wr_ref keys = wr_kv_keys(kv, a->il, head, base, n), values = wr_kv_values(kv, a->il, head, base, n);
            tile.k = wr_ref_address(p->device, &keys);
            tile.v = wr_ref_address(p->device, &values);
            struct wr_ref next = wr_kv_keys(kv, a->il, head, base + n, 1);
            tile.next_k = base + n > last ? NULL : wr_ref_address(p->device, &next);
            p->kernels->attend_tile(&tile);
        }
        for (uint32_t i = 0; i < n_q; i++) wr_attend_merge(&all_m[i], &all_l[i], all_o + i * dim, m[i], l[i], o + i * dim, dim);
    }
    for (uint32_t i = 0; i < n_q; i++) {
        uint32_t row = (first + i) / a->group, in_group = (first + i) % a->group;
        float *out = p->h + row * p->h_width + (head * a->group + in_group) * dim;
        for (uint32_t d = 0; d < dim; d++) out[d] = all_o[i * dim + d] / all_l[i];
    }
}

static void attend_item(struct attention *a, uint32_t item, uint8_t *work)
{
    struct wr_pass *p = a->p;
    uint32_t head = item / a->n_blocks, first = item % a->n_blocks * WR_TILE_MAX_Q, n_pairs = p->m * a->group;
    uint32_t end = n_pairs - first < WR_TILE_MAX_Q ? n_pairs : first + WR_TILE_MAX_Q;
    for (uint32_t next; first < end; first = next) {
        for (next = first + 1; next < end && p->rows[next / a->group].sequence == p->rows[first / a->group].sequence;) next++;
        attend_pairs(a, head, first, next - first, work);
    }
}

static void attend_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    for (;;) {
        uint32_t item = atomic_fetch_add(&a->next, 1);
        if (item >= a->n_items) return;
        if (a->p->cancel != NULL && *a->p->cancel != 0) { /* of many rows over a long context a layer takes seconds */
            wr_pass_fail(a->p, WEIR_E_CANCELLED, "interrupted");
            return;
        }
        attend_item(a, a->n_items - 1 - item, a->p->member_work + member * a->p->member_bytes); /* the longest of each head first */
    }
}

static struct attention attention_of(struct wr_pass *p, uint32_t il)
{
    const struct wr_hparams *hp = &p->model->hp;
    struct attention a = {.p = p, .il = il, .group = hp->n_head / hp->n_head_kv};
    a.n_blocks = (p->m * a.group + WR_TILE_MAX_Q - 1) / WR_TILE_MAX_Q;
    a.n_items = a.n_blocks * hp->n_head_kv;
    return a;
}

bool wr_attention_store(struct wr_pass *p, uint32_t il)
{
    struct attention a = attention_of(p, il);
    if (p->m <= 2)
        store_member(&a, 0, 1);
    else
        wr_team_run(p->team, store_member, &a);
    return !atomic_load(&p->failed);
}

bool wr_attention_attend(struct wr_pass *p, uint32_t il)
{
    struct attention a = attention_of(p, il);
    wr_team_run(p->team, attend_member, &a);
    return !atomic_load(&p->failed);
}

bool wr_attention(struct wr_pass *p, uint32_t il)
{
    const struct wr_layer *l = &p->model->layers[il];
    const struct wr_hparams *hp = &p->model->hp;
    uint32_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    if (il == 0) {
        wr_pass_each_row(p, rope_angles, NULL);
        if (!wr_pass_join(p, NULL, 0, WR_NO_WEIGHT, WR_NO_WEIGHT, l->attn_norm)) return false;
    }
    struct wr_product in[] = {{l->q, p->g, p->g_width}, {l->k, p->g + n_q, p->g_width}, {l->v, p->g + n_q + n_kv, p->g_width}};
    if (!wr_pass_products(p, in, 3) || !wr_attention_store(p, il) || !wr_attention_attend(p, il)) return false;
    wr_pass_begin_act(p, p->h, p->h_width, n_q);
    wr_pass_each_row(p, wr_pass_round_row, NULL);
    struct wr_product out = {l->o, p->u, p->u_width};
    return !atomic_load(&p->failed) && wr_pass_products(p, &out, 1) && wr_pass_join(p, p->u, p->u_width, l->o_bias, l->attn_post_norm, l->ffn_norm);
}
