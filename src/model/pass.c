/* SPDX-License-Identifier: Apache-2.0 */
#include "model/pass.h"

#include <stdio.h>
#include "base/num.h"
#include "memory/deal.h"

#define HEAD_WORDS_PER_ROW 256 /* of the logits buffer, beyond one whole row: a tile then has work for every thread */

struct widths {
    size_t h, g, u, k; /* floats; k: the longest activation */
};

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static struct widths widths_of(const struct wr_hparams *hp)
{
    size_t n_q = (size_t)hp->n_head * hp->head_dim, n_kv = (size_t)hp->n_head_kv * hp->head_dim;
    return (struct widths){max_size(hp->n_embd, n_q), max_size(n_q + 2 * n_kv, hp->n_ff), max_size(max_size(hp->n_ff, hp->n_embd), n_q),
        max_size(max_size(hp->n_embd, n_q), hp->n_ff)};
}

static uint64_t member_bytes(const struct wr_hparams *hp)
{
    uint64_t attention = wr_attention_work_bytes(hp->head_dim);
    return attention > WR_MATMUL_WORK_BYTES ? wr_round_up(attention, 64) : WR_MATMUL_WORK_BYTES;
}

static uint64_t n_ropes(const struct wr_hparams *hp) { return hp->window > 0 ? 2 : 1; }

void wr_model_scratch(const struct wr_model *m, bool precise, uint64_t *base, uint64_t *per_row, uint64_t *per_thread)
{
    const struct wr_hparams *hp = &m->hp;
    struct widths w = widths_of(hp);
    *base = (uint64_t)hp->n_vocab * sizeof(float) + n_ropes(hp) * (hp->n_rot / 2) * sizeof(float) + 21 * 64 +
            2 * WR_ARENA_ALIGN; /* 64-byte alignment of each part, pages of the regions */
    *per_row = (hp->n_embd + w.h + w.g + w.u + 4ull * hp->n_head + n_ropes(hp) * hp->n_rot + HEAD_WORDS_PER_ROW) * sizeof(float) + w.k * (precise ? 2 : 1) +
               (w.k / WR_GROUP + 1) * 4 * sizeof(float);
    *per_thread = member_bytes(hp) + wr_pager_seam_bytes(wr_plan_longest_row(m->uses, m->n_uses));
}

uint64_t wr_model_idle_bytes(const struct wr_model *m)
{
    struct widths w = widths_of(&m->hp);
    return (w.g + w.u) * sizeof(float);
}

/* g, and u behind it: the head needs h alone. */
void *wr_pass_idle(const struct wr_pass *p) { return p->g; }

static void *take(uint8_t **at, uint64_t bytes)
{
    void *p = *at;
    *at += wr_round_up(bytes, 64);
    return p;
}

uint64_t wr_pass_init(struct wr_pass *p, void *scratch, bool precise)
{
    const struct wr_hparams *hp = &p->model->hp;
    struct widths w = widths_of(hp);
    uint64_t n = p->max_rows;
    uint8_t *at = scratch;
    p->h_width = w.h;
    p->g_width = w.g;
    p->u_width = w.u;
    p->member_bytes = member_bytes(hp);
    p->member_work = take(&at, p->member_bytes * wr_team_size(p->team));
    p->x = take(&at, n * hp->n_embd * sizeof(float));
    p->h = take(&at, n * w.h * sizeof(float));
    p->g = take(&at, n * w.g * sizeof(float));
    p->u = take(&at, n * w.u * sizeof(float));
    p->attend_state = take(&at, 4 * n * hp->n_head * sizeof(float));
    for (uint32_t i = 0; i < n_ropes(hp); i++) {
        p->rope[i].cos = take(&at, n * (hp->n_rot / 2) * sizeof(float));
        p->rope[i].sin = take(&at, n * (hp->n_rot / 2) * sizeof(float));
        p->rope[i].inv_freq = take(&at, hp->n_rot / 2 * sizeof(float));
    }
    p->act.precise = precise;
    p->act.q8 = take(&at, precise ? 0 : n * w.k);
    p->act.q16 = take(&at, precise ? n * w.k * 2 : 0);
    p->act.d = take(&at, n * (w.k / WR_GROUP + 1) * sizeof(float));
    p->act.s = take(&at, n * (w.k / WR_GROUP + 1) * sizeof(float));
    p->act.s16 = take(&at, n * (w.k / WR_GROUP + 1) * 2 * sizeof(float));
    p->logits = take(&at, (hp->n_vocab + n * HEAD_WORDS_PER_ROW) * sizeof(float));
    const float *factors = p->model->rope_factors != WR_NO_WEIGHT ? wr_pager_vector(p->pager, p->model->rope_factors) : NULL;
    wr_rope_inv_freq(p->rope[0].inv_freq, hp->n_rot, hp->rope_base, factors);
    for (uint32_t i = 0; i < hp->n_rot / 2; i++) p->rope[0].inv_freq[i] /= hp->rope_factor;
    if (hp->window > 0) wr_rope_inv_freq(p->rope[1].inv_freq, hp->n_rot, hp->rope_base_local, factors);
    return (uint64_t)(at - (uint8_t *)scratch);
}

bool wr_pass_fail(struct wr_pass *p, int code, const char *format, ...)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&p->failed, &none, 1)) return false;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    wr_err(&p->err, code, "%s", text);
    return false;
}

struct each_row {
    struct wr_pass *p;
    wr_pass_row_fn *fn;
    void *arg;
    _Atomic uint32_t next;
};

static void each_row_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct each_row *e = arg;
    for (;;) {
        uint32_t row = atomic_fetch_add(&e->next, 4);
        if (row >= e->p->m) return;
        for (uint32_t i = row; i < e->p->m && i < row + 4; i++) e->fn(e->p, i, e->arg);
    }
}

void wr_pass_each_row(struct wr_pass *p, wr_pass_row_fn *fn, void *arg)
{
    struct each_row e = {.p = p, .fn = fn, .arg = arg};
    if (p->m <= 2)
        each_row_member(&e, 0, 1);
    else
        wr_team_run(p->team, each_row_member, &e);
}

struct products {
    struct wr_pass *p;
    const struct wr_product *product;
    uint32_t first_item, n_items; /* items [first_item, first_item + n_items) of the products' items in a row */
    bool in_memory;               /* all of them */
    struct wr_deal deal;
};

/* The product that an item, counted over all products in a row, belongs to; *item becomes the one of its weight. */
static const struct wr_product *product_of(const struct products *s, uint32_t *item)
{
    const struct wr_product *product = s->product;
    *item += s->first_item;
    for (; *item >= wr_pager_items(s->p->pager, product->weight); product++) *item -= wr_pager_items(s->p->pager, product->weight);
    return product;
}

static bool is_ready(void *products, uint32_t item)
{
    const struct products *s = products;
    uint32_t weight = product_of(s, &item)->weight;
    return wr_pager_ready(s->p->pager, weight, item);
}

/* Up to n items of one weight from `item` on: those of a weight in memory together. Returns how many, 0 when the pass has failed. */
static uint32_t product_items(struct products *s, uint32_t item, uint32_t n, uint32_t member)
{
    struct wr_pass *p = s->p;
    const struct wr_product *product = product_of(s, &item);
    const struct wr_tensor *t = p->model->uses[product->weight].tensor;
    const uint32_t left = wr_pager_items(p->pager, product->weight) - item;
    struct wr_lease lease;
    struct wr_rows rows;
    if (!s->in_memory)
        n = 1;
    else if (n > left)
        n = left;
    if (!wr_pager_acquire(p->pager, product->weight, item, n, member, &lease)) {
        weir_err err;
        int code = wr_pager_error(p->pager, &err);
        wr_pass_fail(p, code, "%s", err.text);
        return 0;
    }
    while (wr_lease_next(&lease, &rows))
        p->kernels->matmul(t->quant, wr_ref_address(p->device, &rows.ref), t->row_bytes, rows.n_rows, &p->act, product->y + rows.first_row, product->ld,
            p->member_work + member * p->member_bytes);
    wr_pager_release(&lease, p->device->ops->fence(p->device));
    return n;
}

static void products_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct products *s = arg;
    uint32_t first, n;
    while ((n = wr_deal_take(&s->deal, member, &first)) != 0) {
        for (uint32_t i = 0, done; i < n; i += done) {
            if (atomic_load_explicit(&s->p->failed, memory_order_relaxed) || (done = product_items(s, first + i, n - i, member)) == 0) return;
        }
    }
}

static bool run_products(struct products *s)
{
    s->in_memory = !wr_pager_streams(s->p->pager);
    wr_deal_begin(&s->deal, s->n_items, wr_team_threads(s->p->team), s->in_memory ? NULL : is_ready, s);
    wr_team_run(s->p->team, products_member, s);
    return !atomic_load(&s->p->failed);
}

bool wr_pass_products(struct wr_pass *p, const struct wr_product *product, uint32_t n)
{
    struct products s = {.p = p, .product = product};
    for (uint32_t i = 0; i < n; i++) s.n_items += wr_pager_items(p->pager, product[i].weight);
    return run_products(&s);
}

/* The head's rows are gathered: its row is the row-th that wants logits. */
static uint32_t position_of(const struct wr_pass *p, uint32_t row)
{
    uint32_t i = 0;
    if (!p->gathered) return p->rows[row].position;
    while (!p->rows[i].logits || row-- > 0) i++;
    return p->rows[i].position;
}

void wr_pass_add_vector(struct wr_pass *p, float *y, uint32_t vector, size_t n)
{
    if (vector != WR_NO_WEIGHT) p->kernels->add(y, wr_pager_vector(p->pager, vector), n);
}

void wr_pass_begin_act(struct wr_pass *p, const float *x, size_t ld, uint32_t k)
{
    p->act.m = p->m;
    p->act.k = k;
    p->act.x = x;
    p->act.ldx = ld;
}

void wr_pass_round_row(struct wr_pass *p, uint32_t row, void *none)
{
    const struct wr_act *a = &p->act;
    bool finite = a->k % WR_GROUP == 0 ? p->kernels->quantize(a, row) : p->kernels->all_finite(a->x + row * a->ldx, a->k);
    if (!finite)
        wr_pass_fail(
            p, WEIR_E_NONFINITE, "an activation of position %u is not finite: the weights are damaged or not of this architecture", position_of(p, row));
}

struct join {
    float *y;
    size_t ld;
    uint32_t bias, post_norm, norm;
};

static void join_row(struct wr_pass *p, uint32_t row, void *arg)
{
    const struct join *j = arg;
    const uint32_t n = p->model->hp.n_embd;
    const float eps = p->model->hp.eps;
    float *x = p->x + (size_t)row * n;
    if (j->y != NULL) {
        float *y = j->y + row * j->ld;
        wr_pass_add_vector(p, y, j->bias, n);
        if (j->post_norm != WR_NO_WEIGHT) p->kernels->rmsnorm(y, wr_pager_vector(p->pager, j->post_norm), y, n, eps);
        p->kernels->add(x, y, n);
    }
    if (j->norm == WR_NO_WEIGHT) return;
    p->kernels->rmsnorm(x, wr_pager_vector(p->pager, j->norm), p->h + row * p->h_width, n, eps);
    wr_pass_round_row(p, row, NULL);
}

bool wr_pass_join(struct wr_pass *p, float *y, size_t ld, uint32_t bias, uint32_t post_norm, uint32_t norm)
{
    struct join j = {y, ld, bias, post_norm, norm};
    wr_pass_begin_act(p, p->h, p->h_width, p->model->hp.n_embd);
    wr_pass_each_row(p, join_row, &j);
    return !atomic_load(&p->failed);
}

static void embed(void *user, size_t i, const void *row)
{
    struct wr_pass *p = user;
    const struct wr_hparams *hp = &p->model->hp;
    float *x = p->x + i * hp->n_embd;
    p->model->uses[p->model->token_embd].tensor->quant->decode_f32(row, x, hp->n_embd);
    for (uint32_t d = 0; hp->embedding_scale != 0 && d < hp->n_embd; d++) x[d] *= hp->embedding_scale;
}

static int embed_rows(struct wr_pass *p, weir_err *err)
{
    int32_t ids[WR_ROW_SLOTS];
    for (uint32_t i = 0; i < p->m; i += WR_ROW_SLOTS) {
        uint32_t n = p->m - i < WR_ROW_SLOTS ? p->m - i : WR_ROW_SLOTS;
        for (uint32_t j = 0; j < n; j++) ids[j] = p->rows[i + j].token;
        struct wr_pass part = *p;
        part.x = p->x + (size_t)i * p->model->hp.n_embd;
        int rc = wr_pager_rows(p->pager, p->model->token_embd, ids, n, embed, &part, err);
        if (rc < 0) return rc;
    }
    return 0;
}

static void cap_row(struct wr_pass *p, uint32_t row, void *arg)
{
    const uint32_t n_words = *(const uint32_t *)arg;
    const float cap = p->model->hp.final_softcap;
    float *logits = p->logits + (size_t)row * n_words;
    for (uint32_t i = 0; i < n_words; i++) logits[i] = cap * wr_tanh(logits[i] / cap);
}

/* Final norm and head for the rows that want logits, gathered at the front of h. */
static int run_head(struct wr_pass *p, wr_head_fn *fn, void *user, weir_err *err)
{
    const struct wr_hparams *hp = &p->model->hp;
    uint32_t m = p->m, n_want = 0;
    for (uint32_t i = 0; i < m; i++) {
        if (!p->rows[i].logits) continue;
        for (uint32_t d = 0; d < hp->n_embd; d++) p->x[(size_t)n_want * hp->n_embd + d] = p->x[(size_t)i * hp->n_embd + d];
        n_want++;
    }
    if (n_want == 0) return 0;
    p->m = n_want;
    p->gathered = true;
    int rc = 0;
    if (!wr_pass_join(p, NULL, 0, WR_NO_WEIGHT, WR_NO_WEIGHT, p->model->output_norm)) goto failed;
    uint32_t words_per_item = wr_pager_item_rows(p->pager, p->model->output), n_all = wr_pager_items(p->pager, p->model->output);
    const float *bias = p->model->output_bias != WR_NO_WEIGHT ? wr_pager_vector(p->pager, p->model->output_bias) : NULL;
    uint64_t room = (hp->n_vocab + (uint64_t)p->max_rows * HEAD_WORDS_PER_ROW) / n_want;
    uint32_t n_tile = room >= hp->n_vocab ? n_all : (uint32_t)(room / words_per_item);
    for (uint32_t item = 0; item < n_all && rc == 0; item += n_tile) {
        uint32_t n = n_all - item < n_tile ? n_all - item : n_tile, word = item * words_per_item;
        uint32_t n_words = hp->n_vocab - word < n * words_per_item ? hp->n_vocab - word : n * words_per_item;
        /* y points so that the item's own row numbers land in this tile. */
        struct wr_product product = {p->model->output, p->logits - word, n_words};
        struct products s = {.p = p, .product = &product, .first_item = item, .n_items = n};
        run_products(&s);
        for (uint32_t i = 0; bias != NULL && i < n_want; i++) p->kernels->add(p->logits + (size_t)i * n_words, bias + word, n_words);
        if (!atomic_load(&p->failed) && !p->kernels->all_finite(p->logits, (size_t)n_want * n_words))
            wr_pass_fail(p, WEIR_E_NONFINITE, "a logit of words %u to %u is not finite: the output weights are damaged", word, word + n_words - 1);
        if (atomic_load(&p->failed)) goto failed;
        if (hp->final_softcap != 0) wr_pass_each_row(p, cap_row, &n_words);
        wr_guard_leave(); /* the caller's code may allocate */
        rc = fn(user, word, n_words, n_want, p->logits);
        wr_guard_enter("a pass");
    }
    p->m = m;
    return rc;
failed:
    p->m = m;
    if (err != NULL) *err = p->err;
    return p->err.code;
}

/* Positions that the rows take, and whether they are a tree; 0: they are one that cannot be run. */
static uint32_t positions_of(const struct wr_pass *p, const struct wr_pass_row *rows, uint32_t m, bool *branches)
{
    const uint32_t first = rows[0].position;
    uint32_t end = first + 1;
    bool whole = true;
    *branches = false;
    for (uint32_t i = 1; i < m; i++) {
        const uint32_t position = rows[i].position;
        if (rows[i].sequence != rows[i - 1].sequence) return *branches ? 0 : m; /* a tree is of one sequence */
        *branches = *branches || position != rows[i - 1].position + 1;
        whole = whole && position > first && position <= rows[i - 1].position + 1;
        if (position >= end) end = position + 1;
    }
    return !*branches ? m : whole && m <= p->tree.n_positions && end / WR_TILE == first / WR_TILE ? end - first : 0;
}

void wr_pass_keep_row(struct wr_pass *p, uint32_t row, uint32_t position)
{
    for (uint32_t il = 0; p->branches && il < p->tree.n_layer; il++)
        for (uint32_t head = 0; head < p->tree.n_head_kv; head++) wr_kv_copy(p->kv, position, &p->tree, row, il, head);
}

int wr_pass_run(struct wr_pass *p, const struct wr_pass_row *rows, uint32_t m, wr_head_fn *fn, void *user, weir_err *err)
{
    p->rows = rows;
    p->m = m;
    p->gathered = false;
    atomic_store(&p->failed, 0);
    struct wr_kv *kv = &p->kv[rows[0].sequence];
    const uint32_t n = positions_of(p, rows, m, &p->branches);
    int rc = n > 0 ? wr_kv_begin(kv, rows[0].position, n, err) : wr_err(err, WEIR_E_FAIL, "a pass of %u rows from position %u is no tree", m, rows[0].position);
    if (rc < 0) return rc;
    wr_pager_begin(p->pager, fn != NULL);
    wr_guard_enter("a pass");
    rc = embed_rows(p, err);
    for (uint32_t il = 0; rc == 0 && il < p->model->hp.n_layer; il++) {
        if (p->cancel != NULL && *p->cancel != 0)
            rc = wr_err(err, WEIR_E_CANCELLED, "interrupted");
        else if (!p->model->arch->layer(p, il)) {
            rc = p->err.code;
            if (rc != WEIR_E_CANCELLED) wr_err_prefix(&p->err, rc, "layer %u", il);
            if (err != NULL) *err = p->err;
        } else if (p->tick != NULL) {
            wr_guard_leave();
            p->tick(p->tick_user, il + 1, p->model->hp.n_layer);
            wr_guard_enter("a pass");
        }
    }
    if (rc == 0 && fn != NULL) rc = run_head(p, fn, user, err);
    wr_guard_leave();
    wr_pager_end(p->pager, rc != 0);
    wr_kv_end(kv, rc != 0);
    return rc;
}
