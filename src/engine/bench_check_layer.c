/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole layers against the reference kernels and against double precision. A row depends on those before it alone, so the first rows of a pass are a pass of their
 * own. The double-precision layers are those of the llama family (RMSNorm, interleaved RoPE, causal grouped-query attention, SwiGLU), with weights
 * as they are decoded and nothing else rounded.
 */
#include <math.h>
#include <string.h>
#include "engine/bench.h"
#include "model/pass.h"

#define N_CHECKED 4u /* rows */
/* What a few layers add to a row is moved by about 0.015 of its length when their activations are rounded to int8, and by 0.0004 when keys and values
 * are to f16 and activations at most to int16 (measured: 64 to 2048 dimensions, Q4_0, Q6_K, F16); by 0.01 when those are to q8_0, by 0.2 when values are to
 * 4 bits. Twice that is a defect. */
#define MOST_INT8 0.03
#define MOST_FINE 0.001
#define MOST_Q8_0 0.02
#define MOST_K8V4 0.4

struct layers {
    struct wr_pass *p;
    uint32_t n;                     /* rows */
    double *x, *h, *g, *u, *before; /* [n][widest]; before: the embeddings */
    float *x_pass, *row;            /* [n][n_embd] of the pass; [members][longest row] */
    size_t longest;
    /* The product at work: to[i * ld + r] = from[i * k ...] . row r */
    const double *from;
    double *to;
    size_t ld;
    uint32_t weight;
    _Atomic uint32_t next;
};

static size_t widest(const struct wr_hparams *hp)
{
    size_t n_q = (size_t)hp->n_head * hp->head_dim, n_kv = (size_t)hp->n_head_kv * hp->head_dim, n = n_q + 2 * n_kv;
    if (hp->n_embd > n) n = hp->n_embd;
    return hp->n_ff > n ? hp->n_ff : n;
}

uint64_t wr_check_layers_bytes(const struct wr_pass *p)
{
    const struct wr_hparams *hp = &p->model->hp;
    return N_CHECKED * (5 * widest(hp) * sizeof(double) + hp->n_embd * sizeof(float)) + wr_team_size(p->team) * widest(hp) * sizeof(float);
}

static void product_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct layers *l = arg;
    struct wr_pass *p = l->p;
    const struct wr_tensor *t = p->model->uses[l->weight].tensor;
    const uint64_t k = t->ne[0];
    float *w = l->row + member * l->longest;
    struct wr_lease lease;
    struct wr_rows rows;
    for (uint32_t item; (item = atomic_fetch_add(&l->next, 1)) < wr_pager_items(p->pager, l->weight);) {
        if (!wr_pager_acquire(p->pager, l->weight, item, 1, member, &lease)) return; /* everything is in memory */
        while (wr_lease_next(&lease, &rows)) {
            const uint8_t *bytes = wr_ref_address(p->device, &rows.ref);
            for (uint32_t r = 0; r < rows.n_rows; r++) {
                t->quant->decode_f32(bytes + r * t->row_bytes, w, k);
                for (uint32_t i = 0; i < l->n; i++) {
                    double sum = 0;
                    for (uint64_t j = 0; j < k; j++) sum += (double)w[j] * l->from[i * k + j];
                    l->to[i * l->ld + rows.first_row + r] = sum;
                }
            }
        }
        wr_pager_release(&lease, p->device->ops->fence(p->device));
    }
}

static void product(struct layers *l, uint32_t weight, const double *from, double *to, size_t ld)
{
    l->weight = weight;
    l->from = from;
    l->to = to;
    l->ld = ld;
    atomic_store(&l->next, 0);
    wr_team_run(l->p->team, product_member, l);
}

/* h = rmsnorm(x) */
static void norm(struct layers *l, uint32_t weight)
{
    const uint32_t n = l->p->model->hp.n_embd;
    const float *w = wr_pager_vector(l->p->pager, weight);
    for (uint32_t i = 0; i < l->n; i++) {
        double sum = 0;
        for (uint32_t d = 0; d < n; d++) sum += l->x[i * n + d] * l->x[i * n + d];
        for (uint32_t d = 0; d < n; d++) l->h[i * n + d] = l->x[i * n + d] / sqrt(sum / n + (double)l->p->model->hp.eps) * (double)w[d];
    }
}

static void add(struct layers *l, const double *y)
{
    for (size_t i = 0; i < (size_t)l->n * l->p->model->hp.n_embd; i++) l->x[i] += y[i];
}

static void rotate(const struct wr_hparams *hp, double *heads, uint32_t n_heads, uint32_t position)
{
    for (uint32_t h = 0; h < n_heads; h++) {
        for (uint32_t i = 0; i < hp->n_rot / 2; i++) {
            double angle = position * pow((double)hp->rope_base, -2.0 * i / hp->n_rot), c = cos(angle), s = sin(angle);
            double *x = heads + h * hp->head_dim + 2 * i, x0 = x[0], x1 = x[1];
            x[0] = x0 * c - x1 * s;
            x[1] = x0 * s + x1 * c;
        }
    }
}

/* h [n][heads] from g [n][q, k, v] */
static void attend(struct layers *l)
{
    const struct wr_hparams *hp = &l->p->model->hp;
    const uint32_t dim = hp->head_dim, n_q = hp->n_head * dim, n_kv = hp->n_head_kv * dim, width = n_q + 2 * n_kv;
    for (uint32_t i = 0; i < l->n; i++) rotate(hp, l->g + i * width, hp->n_head + hp->n_head_kv, i);
    for (uint32_t i = 0; i < l->n; i++) {
        for (uint32_t head = 0; head < hp->n_head; head++) {
            const double *q = l->g + i * width + head * dim, *k = l->g + n_q + head / (hp->n_head / hp->n_head_kv) * dim, *v = k + n_kv;
            double p[N_CHECKED], sum = 0, *out = l->h + i * n_q + head * dim;
            for (uint32_t j = 0; j <= i; j++) {
                double score = 0;
                for (uint32_t d = 0; d < dim; d++) score += q[d] * k[j * width + d];
                sum += p[j] = exp(score / sqrt(dim));
            }
            for (uint32_t d = 0; d < dim; d++) {
                out[d] = 0;
                for (uint32_t j = 0; j <= i; j++) out[d] += p[j] / sum * v[j * width + d];
            }
        }
    }
}

static void layer(struct layers *l, const struct wr_layer *w)
{
    const struct wr_hparams *hp = &l->p->model->hp;
    const uint32_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim, width = n_q + 2 * n_kv;
    norm(l, w->attn_norm);
    product(l, w->q, l->h, l->g, width);
    product(l, w->k, l->h, l->g + n_q, width);
    product(l, w->v, l->h, l->g + n_q + n_kv, width);
    attend(l);
    product(l, w->o, l->h, l->u, hp->n_embd);
    add(l, l->u);
    norm(l, w->ffn_norm);
    product(l, w->gate, l->h, l->g, hp->n_ff);
    product(l, w->up, l->h, l->u, hp->n_ff);
    for (size_t i = 0; i < (size_t)l->n * hp->n_ff; i++) l->g[i] *= l->u[i] / (1 + exp(-l->g[i]));
    product(l, w->down, l->g, l->u, hp->n_embd);
    add(l, l->u);
}

static void embed(void *user, size_t i, const void *row)
{
    struct layers *l = user;
    const struct wr_model *model = l->p->model;
    model->uses[model->token_embd].tensor->quant->decode_f32(row, l->row, model->hp.n_embd);
    for (uint32_t d = 0; d < model->hp.n_embd; d++) l->x[i * model->hp.n_embd + d] = (double)l->row[d];
}

static int compare(const struct layers *l, double most, wr_bench_row *row, weir_err *err)
{
    const size_t n = (size_t)l->n * l->p->model->hp.n_embd;
    double error = 0, added = 0, max_error = 0, max_output = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)l->x_pass[i] - l->x[i], a = l->x[i] - l->before[i];
        error += e * e;
        added += a * a;
        max_error = fmax(max_error, fabs(e));
        max_output = fmax(max_output, fabs(l->x[i]));
    }
    row->max_rel_error = max_error / max_output;
    if (sqrt(error / added) <= most) return 0;
    return wr_err(err, WEIR_E_FAIL, "what the layers add to the first %u rows is off by %.3g of itself from double precision; rounding explains %.3g", l->n,
        sqrt(error / added), most);
}

int wr_bench_check_layers(struct wr_bench *b, struct wr_pass *p, const struct wr_pass_row *rows, uint32_t m, void *work, wr_bench_row *row, weir_err *err)
{
    const struct wr_model *model = p->model;
    const struct wr_kernels *kernels = p->kernels;
    struct layers l = {.p = p, .n = m < N_CHECKED ? m : N_CHECKED, .longest = widest(&model->hp)};
    const size_t part = N_CHECKED * l.longest, bytes = (size_t)l.n * model->hp.n_embd * sizeof(float);
    int32_t ids[N_CHECKED];
    l.x = work;
    l.h = l.x + part;
    l.g = l.h + part;
    l.u = l.g + part;
    l.before = l.u + part;
    l.x_pass = (float *)(l.before + part);
    l.row = l.x_pass + N_CHECKED * model->hp.n_embd;
    memcpy(l.x_pass, p->x, bytes);
    p->kernels = b->reference;
    int rc = wr_pass_run(p, rows, l.n, NULL, NULL, err);
    p->kernels = kernels;
    if (rc < 0) return rc;
    if (memcmp(l.x_pass, p->x, bytes) != 0) return wr_err(err, WEIR_E_FAIL, "the first %u rows differ from those of the reference kernels", l.n);
    for (uint32_t i = 0; i < l.n; i++) ids[i] = rows[i].token;
    rc = wr_pager_rows(p->pager, model->token_embd, ids, l.n, embed, &l, err);
    if (rc < 0) return rc;
    memcpy(l.before, l.x, part * sizeof *l.before);
    for (uint32_t il = 0; il < model->hp.n_layer; il++) layer(&l, &model->layers[il]);
    const bool fine = p->act.precise || model->uses[model->layers[0].q].tensor->quant->is_float;
    row->outputs = (uint64_t)m * model->hp.n_embd;
    row->outputs_verified = (uint64_t)l.n * model->hp.n_embd;
    const enum wr_kv_type kv = p->kv[rows[0].sequence].type;
    return compare(&l, fmax(fine ? MOST_FINE : MOST_INT8, kv == WR_KV_K8V4 ? MOST_K8V4 : kv == WR_KV_Q8_0 ? MOST_Q8_0 : 0), row, err);
}
