/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by rule g: keys and values of the pass's rows are rounded and stored first, then every row attends over what
 * is stored. A work item is one KV head and up to WR_TILE_MAX_Q (row, query head) pairs, so that a tile of keys is widened
 * once for all of them; spans are merged in ascending order whatever the split. Where all tiles are in memory, an item goes
 * through its tiles; where some come from disk, a run of tiles goes through all items. Where items are few, each span of theirs
 * is work of its own, and the spans are merged when all are there: rule g cuts at positions, not by the number of threads.
 *
 * Rows of a tree share the tiles before the one that they lie in, which has room for one branch. So keys and values of all rows go to a place beside it first.
 * Then, a head at a time, rows go in order to their positions in the tile and attend: those of a row's own branch are there when its turn comes,
 * because a branch is in order and the next one begins where it leaves it. A row sees what it would have seen alone.
 */
#include <math.h>
#include <string.h>
#include "model/pass.h"

struct attention {
    struct wr_pass *p;
    uint32_t il, n_blocks, group, n_items;
    uint32_t n_spans;            /* of each item, computed apart; 0: an item goes through them all */
    uint32_t tile_from, tile_to; /* the run of tiles at work; 0, 0: all of them */
    _Atomic uint32_t next;
};

static uint64_t floats(uint64_t n) { return wr_round_up(n * sizeof(float), 64); }

uint64_t wr_attention_work_bytes(uint32_t head_dim)
{
    return 4 * floats(WR_TILE_MAX_Q) + floats((uint64_t)WR_TILE_MAX_Q * head_dim) + floats(WR_TILE_MAX_Q * WR_TILE);
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

/* Adds biases to q, k and v of a row, norms and rotates q and k, rotates what the KV type wants rotated, stores its key and value. */
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
    const struct wr_kv *kv = p->branches ? &p->tree : &p->kv[p->rows[row].sequence];
    const uint32_t place = p->branches ? row : position;
    const uint32_t n_rotated =
        wr_kv_rotates_keys(kv->type) && !p->heads_rotated ? hp->n_head + (wr_kv_rotates_values(kv->type) ? 2 : 1) * hp->n_head_kv : 0; /* q, k, v */
    for (uint32_t h = 0; h < n_rotated; h++) wr_hadamard(q + h * hp->head_dim, hp->head_dim);
    for (uint32_t h = 0; h < hp->n_head_kv; h++) {
        struct wr_ref key = wr_kv_keys(kv, il, h, place, 1), value = wr_kv_values(kv, il, h, place, 1);
        if (!p->kernels->kv_store(kv->type, hp->head_dim, k + h * hp->head_dim, v + h * hp->head_dim, wr_ref_address(p->device, &key), place % WR_KV_BLOCK,
                wr_ref_address(p->device, &value)))
            wr_pass_fail(p, WEIR_E_NONFINITE, "a key or value of position %u is not finite, or beyond what KV type %s holds", position, wr_kv_name(kv->type));
    }
}

/* Rows of one K block go to one member: their keys are neighbours in memory. */
static void store_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    struct wr_pass *p = a->p;
    uint32_t skew = p->branches ? 0 : p->rows[0].position % WR_KV_BLOCK;
    for (;;) {
        uint32_t block = atomic_fetch_add(&a->next, WR_KV_BLOCK);
        if (block >= p->m + skew) return;
        for (uint32_t i = block; i < block + WR_KV_BLOCK; i++)
            if (i >= skew && i - skew < p->m) store_row(p, i - skew, a->il);
    }
}

/*
 * A work item's queries: pairs (row, query head of the KV head's group), all of one sequence. Softmax needs no pass of its own over the scores: with the
 * maximum m so far, the sum l of exp(s - m) and the sum O of exp(s - m) v, a tile with maximum m' makes
 *
 *     m_new = max(m, m'),  l_new = l exp(m - m_new) + sum exp(s - m_new),  O_new = O exp(m - m_new) + sum exp(s - m_new) v
 *
 * and O / l is the result (Milakov & Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867). So tiles may come one by one and be gone
 * after that: each query sees the same operations in the same order wherever its tiles lie.
 */
struct queries {
    struct attention *a;
    const struct wr_kv *kv;
    uint32_t head, n_q, begin, last; /* positions of the first tile that any sees, and of the last key */
    const float *q[WR_TILE_MAX_Q];
    float *out[WR_TILE_MAX_Q]; /* [head_dim] in p->h: O over the spans, then the result */
    uint32_t position[WR_TILE_MAX_Q], oldest[WR_TILE_MAX_Q], from[WR_TILE_MAX_Q], to[WR_TILE_MAX_Q];
    float *m, *l, *o, *all_m, *all_l; /* of the span, o [n_q][head_dim]; of the spans before it */
};

static void set_queries(struct queries *s, struct attention *a, uint32_t head, uint32_t first, uint32_t n_q)
{
    struct wr_pass *p = a->p;
    const struct wr_hparams *hp = &p->model->hp;
    const uint32_t dim = hp->head_dim, window = p->model->layers[a->il].local ? hp->window : UINT32_MAX;
    s->a = a;
    s->kv = &p->kv[p->rows[first / a->group].sequence];
    s->head = head;
    s->n_q = n_q;
    s->begin = UINT32_MAX;
    s->last = 0;
    for (uint32_t i = 0; i < n_q; i++) {
        const uint32_t row = (first + i) / a->group, in_group = (first + i) % a->group, position = p->rows[row].position;
        s->q[i] = p->g + row * p->g_width + (head * a->group + in_group) * dim;
        s->out[i] = p->h + row * p->h_width + (head * a->group + in_group) * dim;
        s->position[i] = position;
        s->oldest[i] = position < window ? 0 : position - window + 1;
        if (s->oldest[i] < s->begin) s->begin = s->oldest[i];
        if (position > s->last) s->last = position;
    }
    if (p->branches) { /* its queries are grouped in two ways, and what is kept of one begins at the same tile in both: at that of the root, the first of all */
        const uint32_t root = p->rows[0].position;
        s->begin = root < window ? 0 : root - window + 1;
    }
    s->begin = s->begin / WR_TILE * WR_TILE; /* tiles before it are seen by no query */
}

/* The state of pairs from `first` on is kept in the pass, one for each span that is computed apart: m and l in its state, O in u. */
static void keep_state(struct queries *s, uint32_t first, uint32_t span)
{
    struct wr_pass *p = s->a->p;
    const struct wr_hparams *hp = &p->model->hp;
    const size_t n_all = (size_t)p->max_rows * hp->n_head, at = (size_t)s->head * p->m * s->a->group + first, at_span = (size_t)span * p->m * hp->n_head + at;
    s->m = p->attend_state + at_span;
    s->l = s->m + n_all;
    s->all_m = p->attend_state + 2 * n_all + at;
    s->all_l = s->all_m + n_all;
    s->o = p->u + at_span * hp->head_dim;
}

/* The span at work joins those before it; with the last one the result is complete. */
static void merge_span(struct queries *s, bool is_last)
{
    const uint32_t dim = s->a->p->model->hp.head_dim;
    for (uint32_t i = 0; i < s->n_q; i++) wr_attend_merge(&s->all_m[i], &s->all_l[i], s->out[i], s->m[i], s->l[i], s->o + i * dim, dim);
    for (uint32_t i = 0; is_last && i < s->n_q; i++) {
        for (uint32_t d = 0; d < dim; d++) s->out[i][d] /= s->all_l[i];
        if (wr_kv_rotates_values(s->kv->type) && !s->a->p->heads_rotated) wr_hadamard(s->out[i], dim);
    }
}

/* The tile of positions [base, base + WR_TILE), base >= begin; tiles come in ascending order. With the last one the result is complete. Tiles before
 * `there` are in memory now. */
static void attend_tile(struct queries *s, uint32_t base, uint32_t there, uint8_t *work)
{
    struct wr_pass *p = s->a->p;
    const struct wr_hparams *hp = &p->model->hp;
    const uint32_t dim = hp->head_dim, n = s->last - base + 1 < WR_TILE ? s->last - base + 1 : WR_TILE;
    const bool ends = base + n > s->last;
    for (uint32_t i = 0; base == s->begin && i < s->n_q; i++) {
        s->all_m[i] = -INFINITY;
        s->all_l[i] = 0;
    }
    if (base == s->begin || base % WR_SPAN == 0) {
        for (uint32_t i = 0; i < s->n_q; i++) {
            s->m[i] = -INFINITY;
            s->l[i] = 0;
        }
        memset(s->o, 0, s->n_q * dim * sizeof *s->o);
    }
    for (uint32_t i = 0; i < s->n_q; i++) {
        s->from[i] = s->oldest[i] < base ? 0 : s->oldest[i] - base;
        s->to[i] = s->position[i] < base ? 0 : s->position[i] - base + 1 < WR_TILE ? s->position[i] - base + 1 : WR_TILE;
    }
    struct wr_ref keys = wr_kv_keys(s->kv, s->a->il, s->head, base, n), values = wr_kv_values(s->kv, s->a->il, s->head, base, n);
    struct wr_ref next = ends || base + WR_TILE >= there ? (struct wr_ref){0} : wr_kv_keys(s->kv, s->a->il, s->head, base + WR_TILE, 1);
    struct wr_tile tile = {.type = s->kv->type,
        .head_dim = dim,
        .n_q = s->n_q,
        .k = wr_ref_address(p->device, &keys),
        .v = wr_ref_address(p->device, &values),
        .q = s->q,
        .first = s->from,
        .last = s->to,
        .scale = hp->attention_scale,
        .m = s->m,
        .l = s->l,
        .o = s->o,
        .work = (float *)work,
        .next_k = next.bytes > 0 ? wr_ref_address(p->device, &next) : NULL};
    p->kernels->attend_tile(&tile);
    if (s->a->n_spans == 0 && (ends || (base + WR_TILE) % WR_SPAN == 0)) merge_span(s, ends);
}

static void item_pairs(const struct attention *a, uint32_t item, uint32_t *head, uint32_t *first, uint32_t *end)
{
    const uint32_t n_pairs = a->p->m * a->group;
    *head = item / a->n_blocks;
    *first = item % a->n_blocks * WR_TILE_MAX_Q;
    *end = n_pairs - *first < WR_TILE_MAX_Q ? n_pairs : *first + WR_TILE_MAX_Q;
}

/* Pairs from `first` on of one sequence: up to the one that is returned. */
static uint32_t same_sequence(const struct attention *a, uint32_t first, uint32_t end)
{
    const struct wr_pass_row *rows = a->p->rows;
    uint32_t next = first + 1;
    while (next < end && rows[next / a->group].sequence == rows[first / a->group].sequence) next++;
    return next;
}

/* All tiles of an item, or of one span of it; they are in memory. */
static void attend_item(struct attention *a, uint32_t item, uint32_t span, uint8_t *work)
{
    const uint32_t dim = a->p->model->hp.head_dim;
    struct queries s;
    uint32_t head, first, end;
    item_pairs(a, item, &head, &first, &end);
    s.m = take(&work, floats(WR_TILE_MAX_Q));
    s.l = take(&work, floats(WR_TILE_MAX_Q));
    s.all_m = take(&work, floats(WR_TILE_MAX_Q));
    s.all_l = take(&work, floats(WR_TILE_MAX_Q));
    s.o = take(&work, floats((uint64_t)WR_TILE_MAX_Q * dim));
    for (uint32_t next; first < end; first = next) {
        next = same_sequence(a, first, end);
        set_queries(&s, a, head, first, next - first);
        uint32_t from = s.begin, to = s.last + 1;
        if (a->n_spans > 0) {
            keep_state(&s, first, span);
            from = span * WR_SPAN;
            if (to > from + WR_SPAN) to = from + WR_SPAN;
        }
        for (uint32_t base = from; base < to; base += WR_TILE) attend_tile(&s, base, UINT32_MAX, work);
    }
}

/* The spans of an item that were computed apart. The first of them began with `all_m` and `all_l` of no span. */
static void merge_item(struct attention *a, uint32_t item)
{
    struct queries s;
    uint32_t head, first, end;
    item_pairs(a, item, &head, &first, &end);
    for (uint32_t next; first < end; first = next) {
        next = same_sequence(a, first, end);
        set_queries(&s, a, head, first, next - first);
        for (uint32_t span = 0; span <= s.last / WR_SPAN; span++) {
            keep_state(&s, first, span);
            merge_span(&s, span == s.last / WR_SPAN);
        }
    }
}

/* Tiles [tile_from, tile_to) of an item, whose state is kept from call to call. */
static void attend_item_part(struct attention *a, uint32_t item, uint8_t *work)
{
    struct queries s;
    uint32_t head, first, end;
    item_pairs(a, item, &head, &first, &end);
    set_queries(&s, a, head, first, end - first);
    keep_state(&s, first, 0);
    const uint32_t begin = s.begin / WR_TILE;
    for (uint32_t tile = a->tile_from > begin ? a->tile_from : begin; tile < a->tile_to && tile * WR_TILE <= s.last; tile++)
        attend_tile(&s, tile * WR_TILE, a->tile_to * WR_TILE, work);
}

/* The rows of a tree in the tile that they lie in, for one head. */
static void attend_branches(struct attention *a, uint32_t head, uint8_t *work)
{
    struct wr_pass *p = a->p;
    struct wr_kv *kv = &p->kv[p->rows[0].sequence];
    const uint32_t base = p->rows[0].position / WR_TILE * WR_TILE;
    struct queries s;
    for (uint32_t row = 0, next; row < p->m; row = next) {
        next = row;
        do { /* rows that follow one another see one another, and nothing else is in the way */
            wr_kv_copy(kv, p->rows[next].position, &p->tree, next, a->il, head);
            next++;
        } while (next < p->m && p->rows[next].position == p->rows[next - 1].position + 1);
        for (uint32_t first = row * a->group, n; first < next * a->group; first += n) {
            n = next * a->group - first < WR_TILE_MAX_Q ? next * a->group - first : WR_TILE_MAX_Q;
            set_queries(&s, a, head, first, n);
            keep_state(&s, first, 0);
            attend_tile(&s, base, base + WR_TILE, work);
        }
    }
}

static void branches_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    uint8_t *work = a->p->member_work + member * a->p->member_bytes;
    for (uint32_t head; (head = atomic_fetch_add(&a->next, 1)) < a->p->model->hp.n_head_kv;) attend_branches(a, head, work);
}

static void attend_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    uint8_t *work = a->p->member_work + member * a->p->member_bytes;
    const uint32_t n_each = a->n_spans > 0 ? a->n_spans : 1, n = a->n_items * n_each;
    for (;;) {
        uint32_t item = atomic_fetch_add(&a->next, 1);
        if (item >= n) return;
        if (a->p->cancel != NULL && *a->p->cancel != 0) { /* of many rows over a long context a layer takes seconds */
            wr_pass_fail(a->p, WEIR_E_CANCELLED, "interrupted");
            return;
        }
        item = n - 1 - item; /* the longest of each head first */
        if (a->tile_to > 0)
            attend_item_part(a, item, work);
        else
            attend_item(a, item / n_each, item % n_each, work);
    }
}

static void merge_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    for (uint32_t item; (item = atomic_fetch_add(&a->next, 1)) < a->n_items;) merge_item(a, item);
}

/* Spans that are computed apart: where threads would find too few items, and the pass, which has room for max_rows, has room for the state of each span. A
 * window sees one span or two. */
static uint32_t spans_apart(const struct attention *a)
{
    const struct wr_pass *p = a->p;
    uint32_t last = 0;
    for (uint32_t i = 0; i < p->m; i++)
        if (p->rows[i].position > last) last = p->rows[i].position;
    const uint32_t n = last / WR_SPAN + 1, n_threads = wr_team_size(p->team);
    const bool few = n_threads > 1 && a->n_items < 4 * n_threads;
    return n > 1 && few && !p->model->layers[a->il].local && (uint64_t)n * p->m <= p->max_rows ? n : 0;
}

/* Tiles outside, items inside: a run of tiles that are in memory is seen by all items before the ring's slots are given back. Members share the items of a
 * run as they share all others, for members do not wait for one another (base/team.h). Tiles [from, to) come from the ring; the tile of a tree is none of them
 * and is the last. */
static bool attend_runs(struct attention *a, struct wr_kv *kv, uint32_t from, uint32_t to)
{
    struct wr_pass *p = a->p;
    const uint32_t end = p->rows[p->m - 1].position / WR_TILE + !p->branches;
    weir_err err;
    for (a->tile_from = 0; a->tile_from < end; a->tile_from = a->tile_to) {
        uint32_t n = 0;
        int rc = a->tile_from >= from && a->tile_from < to ? wr_kv_take(kv, a->il, a->tile_from, &n, &err) : 0;
        if (rc < 0) return wr_pass_fail(p, rc, "%s", err.text);
        a->tile_to = n > 0 ? a->tile_from + n : a->tile_from < from ? from : end;
        if (a->tile_to > end) a->tile_to = end;
        atomic_store(&a->next, 0);
        wr_team_run(p->team, attend_member, a);
        if (n > 0) wr_kv_give_back(kv, p->device->ops->fence(p->device));
        if (atomic_load(&p->failed)) return false;
    }
    atomic_store(&a->next, 0);
    if (p->branches) wr_team_run(p->team, branches_member, a);
    return true;
}

static struct attention attention_of(struct wr_pass *p, uint32_t il)
{
    const struct wr_hparams *hp = &p->model->hp;
    struct attention a = {.p = p, .il = il, .group = hp->n_head / hp->n_head_kv};
    a.n_blocks = (p->m * a.group + WR_TILE_MAX_Q - 1) / WR_TILE_MAX_Q;
    a.n_items = a.n_blocks * hp->n_head_kv;
    return a;
}

/* A spilled context is that of all rows. */
static struct wr_kv *sequence_of(struct wr_pass *p) { return &p->kv[p->rows[0].sequence]; }

bool wr_attention_store(struct wr_pass *p, uint32_t il)
{
    struct attention a = attention_of(p, il);
    weir_err err;
    int rc = wr_kv_layer_begin(sequence_of(p), il, &err);
    if (rc < 0) return wr_pass_fail(p, rc, "%s", err.text);
    if (p->m <= 2)
        store_member(&a, 0, 1);
    else
        wr_team_run(p->team, store_member, &a);
    return !atomic_load(&p->failed);
}

bool wr_attention_attend(struct wr_pass *p, uint32_t il)
{
    struct attention a = attention_of(p, il);
    uint32_t from = 0, to = 0;
    weir_err err;
    if (!wr_kv_streams(sequence_of(p), il, &from, &to) && !p->branches) {
        a.n_spans = spans_apart(&a);
        wr_team_run(p->team, attend_member, &a);
        atomic_store(&a.next, 0);
        if (a.n_spans > 0 && !atomic_load(&p->failed)) wr_team_run(p->team, merge_member, &a);
    } else if (!attend_runs(&a, sequence_of(p), from, to))
        return false;
    if (atomic_load(&p->failed)) return false;
    int rc = wr_kv_layer_end(sequence_of(p), il, &err);
    return rc == 0 || wr_pass_fail(p, rc, "%s", err.text);
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
