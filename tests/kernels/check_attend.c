/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: tiles against the reference with equal bits, and whole contexts (tiles, spans, merge) against softmax in double precision. */
#include "check.h"

#define U 0x1p-24 /* unit roundoff of f32 */

enum mask { FULL, CAUSAL, WINDOW, RANDOM, SPARSE, N_MASKS };
static const char *const mask_names[] = {"full", "causal", "window", "random", "sparse"};

struct problem {
    struct wr_tile t; /* all but the state, which every level gets as a copy */
    const float *q[WR_TILE_MAX_Q];
    uint32_t first[WR_TILE_MAX_Q], last[WR_TILE_MAX_Q];
    float *q_data, *m, *l, *o;
};

struct state {
    float *m, *l, *o, *work;
};

static size_t alignment(enum wr_kv_type type) { return type == WR_KV_F32 ? 4 : 2; }

static void fill_mask(struct check *c, struct problem *p, enum mask kind)
{
    const uint32_t n = p->t.n_q, start = check_below(c, WR_TILE), group = 1 + check_below(c, 4);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t a = check_below(c, WR_TILE + 1), b = check_below(c, WR_TILE + 1);
        switch (kind) {
        case FULL:
            a = 0, b = WR_TILE;
            break;
        case CAUSAL:
            a = 0, b = start + i / group + 1;
            break; /* GQA heads of one row beside each other */
        case WINDOW:
            b = start + i / group + 1, a = b > 40 ? b - 40 : 0;
            break;
        case SPARSE:
            b = check_below(c, 3) ? a : a + 1;
            break; /* most see nothing, the others one key */
        default:
            break; /* any order, also first > last */
        }
        p->first[i] = a < WR_TILE ? a : WR_TILE;
        p->last[i] = b < WR_TILE ? b : WR_TILE;
    }
}

static bool in_blocks(enum wr_kv_type type) { return type == WR_KV_Q8_0 || type == WR_KV_K8V4; }

/* The layout, by itself: value d of `stored`, 16 keys (the one in `slot`) or, with n_slots 1, one value. */
static double value(const void *stored, enum wr_kv_type type, uint32_t n_d, uint32_t n_slots, uint32_t slot, uint32_t d)
{
    const size_t at = (size_t)d * n_slots + slot;
    if (type == WR_KV_F32) return (double)((const float *)stored)[at];
    if (type == WR_KV_F16) return (double)wr_f32_from_f16(((const uint16_t *)stored)[at]);
    const int8_t *q = stored;
    if (type == WR_KV_K8V4 && n_slots == 1) { /* of every 16 bytes the low halves, then the high ones; 8 to 15 stand for -8 to -1 */
        int both = (uint8_t)q[d / 32 * 16 + d % 16], half = d % 32 < 16 ? both % 16 : both / 16;
        return (half < 8 ? half : half - 16) * (double)wr_f32_from_f16(((const uint16_t *)(const void *)(q + n_d / 2))[d / 32]);
    }
    return q[at] * (double)wr_f32_from_f16(((const uint16_t *)(const void *)(q + n_d * n_slots))[d / 32 * n_slots + slot]);
}

static double key_value(const uint8_t *keys, enum wr_kv_type type, uint32_t n_d, uint32_t position, uint32_t d)
{
    return value(keys + (size_t)(position / 16) * 16 * wr_kv_key_bytes(type, n_d), type, n_d, 16, position % 16, d);
}

static double value_value(const uint8_t *values, enum wr_kv_type type, uint32_t n_d, uint32_t position, uint32_t d)
{
    return value(values + (size_t)position * wr_kv_value_bytes(type, n_d), type, n_d, 1, 0, d);
}

/* Stores the key and the value x[2][n_d] of a position. */
static void store(struct check *c, enum wr_kv_type type, uint32_t n_d, const float *x, uint8_t *keys, uint8_t *values, uint32_t position)
{
    uint8_t *block = keys + position / 16 * 16 * wr_kv_key_bytes(type, n_d);
    c->ref->kv_store(type, n_d, x, x + n_d, block, position % 16, values + position * wr_kv_value_bytes(type, n_d));
}

/* Fills a tile's K and V; values stay finite in the type. */
static void fill_kv(struct check *c, struct problem *p, enum check_data kind, void *k, void *v)
{
    const uint32_t n_d = p->t.head_dim;
    float *x = malloc(2 * n_d * sizeof *x);
    const bool tiny = check_below(c, 4) == 0; /* p * v underflows: O of -0 */
    for (uint32_t key = 0; key < WR_TILE; key++) {
        check_fill(c, kind, x, 2 * (size_t)n_d);
        if (tiny) check_fill(c, CHECK_DENORMAL, x + n_d, n_d);
        store(c, p->t.type, n_d, x, k, v, key);
    }
    free(x);
}

/* NaN in all that no query sees: K beside visible keys too, because a score of a masked key is never used. */
static void poison(struct problem *p, void *k, void *v)
{
    const uint32_t n_d = p->t.head_dim, slot_bytes = p->t.type == WR_KV_F32 ? 4 : 2;
    /* Of q8_0 and k8v4 the scales, which are behind the integers. */
    const uint32_t n = in_blocks(p->t.type) ? n_d / 32 : n_d, k_behind = in_blocks(p->t.type) ? n_d * 16 : 0;
    const uint32_t v_behind = p->t.type == WR_KV_K8V4 ? n_d / 2 : p->t.type == WR_KV_Q8_0 ? n_d : 0;
    const size_t key_bytes = wr_kv_key_bytes(p->t.type, n_d), value_bytes = wr_kv_value_bytes(p->t.type, n_d);
    const float nan = NAN;
    const uint16_t half_nan = 0x7e00;
    for (uint32_t key = 0; key < WR_TILE; key++) {
        bool seen = false;
        for (uint32_t i = 0; i < p->t.n_q; i++) seen = seen || (key >= p->first[i] && key < p->last[i]);
        uint8_t *block = (uint8_t *)k + key / 16 * 16 * key_bytes + k_behind, *row = (uint8_t *)v + key * value_bytes + v_behind;
        for (uint32_t i = 0; i < n && !seen; i++) {
            memcpy(block + (i * 16 + key % 16) * slot_bytes, slot_bytes == 4 ? (const void *)&nan : &half_nan, slot_bytes);
            memcpy(row + i * slot_bytes, slot_bytes == 4 ? (const void *)&nan : &half_nan, slot_bytes);
        }
    }
}

static struct problem make(struct check *c, enum wr_kv_type type, uint32_t head_dim, uint32_t n_q, enum mask mask, enum check_data kind, bool fresh)
{
    struct problem p = {.t = {.type = type, .head_dim = head_dim, .n_q = n_q, .scale = 1.0f / sqrtf((float)head_dim)}};
    const size_t n = (size_t)n_q * head_dim;
    void *k = check_alloc((size_t)WR_TILE * wr_kv_key_bytes(type, head_dim), 16);
    void *v = check_alloc((size_t)WR_TILE * wr_kv_value_bytes(type, head_dim), alignment(type));
    fill_kv(c, &p, kind, k, v);
    fill_mask(c, &p, mask);
    poison(&p, k, v);
    p.t.k = k;
    p.t.v = v;
    p.t.next_k = check_below(c, 2) ? k : NULL;
    p.t.softcap = check_below(c, 3) == 0 ? 30.0f : 0.0f;
    p.q_data = check_alloc(n * 4, 4);
    p.m = malloc(n_q * 4);
    p.l = malloc(n_q * 4);
    p.o = malloc(n * 4);
    check_fill(c, check_below(c, 2) ? CHECK_NORMAL : kind, p.q_data, n);
    for (uint32_t i = 0; i < n_q; i++) {
        bool empty = fresh || check_below(c, 4) == 0;
        p.m[i] = empty ? -INFINITY : check_normal(c) * 5;
        p.l[i] = empty ? 0.0f : 1.0f + fabsf(check_normal(c)) * 50;
        for (uint32_t d = 0; d < head_dim; d++) p.o[i * head_dim + d] = empty ? 0.0f : check_below(c, 20) == 0 ? -0.0f : check_normal(c) * 10;
    }
    return p;
}

static void unmake(struct problem *p)
{
    check_free((void *)p->t.k);
    check_free((void *)p->t.v);
    check_free(p->q_data);
    free(p->m);
    free(p->l);
    free(p->o);
}

/* Runs level k on a copy of the problem's state. */
static struct state run_tile(const struct wr_kernels *k, const struct problem *p)
{
    const size_t n_q = p->t.n_q, n_d = p->t.head_dim;
    struct state s = {check_alloc(n_q * 4, 4), check_alloc(n_q * 4, 4), check_alloc(n_q * n_d * 4, 4), check_alloc(n_q * WR_TILE * 4, 64)};
    memcpy(s.m, p->m, n_q * 4);
    memcpy(s.l, p->l, n_q * 4);
    memcpy(s.o, p->o, n_q * n_d * 4);
    struct wr_tile t = p->t;
    const float *q[WR_TILE_MAX_Q];
    for (uint32_t i = 0; i < n_q; i++) q[i] = p->q_data + i * n_d;
    t.q = q;
    t.first = p->first;
    t.last = p->last;
    t.m = s.m;
    t.l = s.l;
    t.o = s.o;
    t.work = s.work;
    k->attend_tile(&t);
    return s;
}

static void free_state(struct state *s)
{
    check_free(s->m);
    check_free(s->l);
    check_free(s->o);
    check_free(s->work);
}

static bool same_state(const struct state *a, const struct state *b, size_t n_q, size_t n_d)
{
    return check_diff_f32(a->m, b->m, n_q) == n_q && check_diff_f32(a->l, b->l, n_q) == n_q && check_diff_f32(a->o, b->o, n_q * n_d) == n_q * n_d;
}

static void tile(struct check *c, enum wr_kv_type type, uint32_t head_dim, uint32_t n_q, enum mask mask, enum check_data kind)
{
    struct problem p = make(c, type, head_dim, n_q, mask, kind, check_below(c, 2));
    struct state want = run_tile(c->ref, &p);
    bool untouched = true, finite = true;
    for (uint32_t i = 0; i < n_q; i++) {
        if (p.first[i] >= p.last[i]) {
            untouched = untouched && !memcmp(want.m + i, p.m + i, 4) && !memcmp(want.l + i, p.l + i, 4) &&
                        !memcmp(want.o + i * head_dim, p.o + i * head_dim, head_dim * 4);
        }
        finite = finite && isfinite(want.l[i]) && c->ref->all_finite(want.o + i * head_dim, head_dim);
    }
    check_that(c, untouched && finite, "attend scalar type %d head_dim %u n_q %u %s %s: state of a blind query moved, or NaN of unseen keys came in", type,
        head_dim, n_q, mask_names[mask], check_data_name(kind));
    for (uint32_t l = 0; l < c->n_levels; l++) {
        struct state got = run_tile(c->level[l], &p);
        bool intact = check_intact(got.m) && check_intact(got.l) && check_intact(got.o) && check_intact(got.work);
        check_that(c, same_state(&want, &got, n_q, head_dim) && intact, "attend %s type %d head_dim %u n_q %u %s %s softcap %g: %s", c->level[l]->level, type,
            head_dim, n_q, mask_names[mask], check_data_name(kind), (double)p.t.softcap, intact ? "not the reference's bits" : "wrote outside");
        free_state(&got);
    }
    free_state(&want);
    unmake(&p);
}

/* exp at x <= 0, one key at a time seen through l: m = 0 and l = 0 before, so l = exp(x) after. */
static void exp_everywhere(struct check *c)
{
    static const float special[] = {0.0f, -0.0f, -87.0f, -88.7f, -0x1p-149f, -3.4e38f, -0x1p-30f};
    const uint32_t step = c->quick ? 10000019 : 40009;
    float *k = check_alloc(WR_TILE * 4, 64), *v = check_alloc(WR_TILE * 4, 4), *work = check_alloc(WR_TILE_MAX_Q * WR_TILE * 4, 64);
    memset(v, 0, WR_TILE * 4);
    memset(k, 0, WR_TILE * 4);
    uint32_t at = 0, wrong[CHECK_MAX_LEVELS] = {0};
    for (uint64_t bits = 0x80000000u; bits <= 0xff7fffffu; at++) {
        float x[WR_TILE_MAX_Q], o[WR_TILE_MAX_Q], m[WR_TILE_MAX_Q], l[WR_TILE_MAX_Q], one = 1.0f;
        uint32_t first[WR_TILE_MAX_Q], last[WR_TILE_MAX_Q];
        const float *q[WR_TILE_MAX_Q];
        for (uint32_t i = 0; i < WR_TILE_MAX_Q; i++) {
            if (at == 0 && i < 3 * sizeof special / sizeof special[0]) {
                float s = special[i / 3];
                x[i] = i % 3 == 0 ? s : nextafterf(s, i % 3 == 1 ? -INFINITY : INFINITY);
                if (x[i] > 0) x[i] = -x[i];
            } else {
                x[i] = wr_f32_from_bits((uint32_t)(bits <= 0xff7fffffu ? bits : 0x80000000u));
                bits += step;
            }
            if (i == 0) k[0] = one;
            q[i] = x + i;
            first[i] = 0;
            last[i] = 1;
        }
        for (uint32_t level = 0; level < c->n_levels; level++) {
            for (uint32_t i = 0; i < WR_TILE_MAX_Q; i++) o[i] = m[i] = l[i] = 0.0f;
            struct wr_tile t = {WR_KV_F32, 1, WR_TILE_MAX_Q, k, v, q, first, last, 1.0f, 0.0f, m, l, o, work};
            c->level[level]->attend_tile(&t);
            for (uint32_t i = 0; i < WR_TILE_MAX_Q; i++) wrong[level] += wr_bits_from_f32(l[i]) != wr_bits_from_f32(wr_exp(x[i]));
        }
    }
    for (uint32_t level = 0; level < c->n_levels; level++)
        check_that(c, wrong[level] == 0, "exp %s: %u values differ from wr_exp", c->level[level]->level, wrong[level]);
    check_free(k);
    check_free(v);
    check_free(work);
}

/* A NaN or infinity that a query sees must reach its result, whatever the level. */
static void non_finite(struct check *c)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, wr_f32_from_bits(0x7fc00001), wr_f32_from_bits(0x7f812345), wr_f32_from_bits(0xffc00080)};
    for (uint32_t level = 0; level <= c->n_levels; level++) {
        const struct wr_kernels *k = level ? c->level[level - 1] : c->ref;
        for (uint32_t round = 0; round < 60; round++) {
            struct problem p = make(c, WR_KV_F32, 64, 1 + check_below(c, 9), FULL, CHECK_NORMAL, true);
            uint32_t row = check_below(c, p.t.n_q);
            p.q_data[row * 64 + check_below(c, 64)] = bad[round % 6];
            p.t.softcap = 0.0f; /* a cap would hide an infinity */
            struct state open = run_tile(k, &p);
            bool right = true;
            for (uint32_t i = 0; i < p.t.n_q; i++) {
                float o = open.o[i * 64] / open.l[i];
                right = right && isfinite(o) == (i != row);
            }
            check_that(c, right, "attend %s: %f in query %u of %u does not reach its result, or another's", k->level, (double)bad[round % 6], row, p.t.n_q);
            free_state(&open);
            unmake(&p);
        }
    }
}

/* One query over `n` positions: tiles, spans, merge, by level k; out[head_dim]. kv as stored. */
static void attend_context(const struct wr_kernels *k, enum wr_kv_type type, uint32_t head_dim, const uint8_t *keys, const uint8_t *values, const float *q,
    uint32_t first, uint32_t last, float scale, float softcap, float *out)
{
    const size_t k_bytes = (size_t)WR_TILE * wr_kv_key_bytes(type, head_dim), v_bytes = (size_t)WR_TILE * wr_kv_value_bytes(type, head_dim);
    float *work = check_alloc(WR_TILE * 4, 64), *o = malloc(head_dim * 4), m = -INFINITY, l = 0.0f;
    memset(out, 0, head_dim * 4);
    for (uint32_t span = 0; span < last; span += WR_SPAN) {
        float m2 = -INFINITY, l2 = 0.0f;
        memset(o, 0, head_dim * 4);
        for (uint32_t pos = span; pos < last && pos < span + WR_SPAN; pos += WR_TILE) {
            uint32_t a = first > pos ? first - pos : 0, b = last - pos < WR_TILE ? last - pos : WR_TILE;
            struct wr_tile t = {
                type, head_dim, 1, keys + pos / WR_TILE * k_bytes, values + pos / WR_TILE * v_bytes, &q, &a, &b, scale, softcap, &m2, &l2, o, work};
            k->attend_tile(&t);
        }
        wr_attend_merge(&m, &l, out, m2, l2, o, head_dim);
    }
    for (uint32_t d = 0; d < head_dim; d++) out[d] /= l;
    check_free(work);
    free(o);
}

static void context(struct check *c, enum wr_kv_type type, uint32_t head_dim, uint32_t n, uint32_t first, enum check_data kind, float softcap)
{
    const uint32_t padded = (n + WR_TILE - 1) / WR_TILE * WR_TILE;
    uint8_t *keys = calloc(padded, wr_kv_key_bytes(type, head_dim)), *values = calloc(padded, wr_kv_value_bytes(type, head_dim));
    float *x = malloc(head_dim * 8), *q = malloc(head_dim * 4), *out = malloc(head_dim * 4), *other = malloc(head_dim * 4);
    const float scale = 1.0f / sqrtf((float)head_dim);
    for (uint32_t pos = 0; pos < n; pos++) {
        check_fill(c, kind, x, 2 * (size_t)head_dim);
        store(c, type, head_dim, x, keys, values, pos);
    }
    check_fill(c, CHECK_NORMAL, q, head_dim);
    attend_context(c->ref, type, head_dim, keys, values, q, first, n, scale, softcap, out);

    double *s = malloc(n * sizeof *s), max = -INFINITY, l = 0, spread = 0, v_max = 0;
    for (uint32_t pos = first; pos < n; pos++) {
        double dot = 0, size = 0;
        for (uint32_t d = 0; d < head_dim; d++) {
            double product = (double)q[d] * key_value(keys, type, head_dim, pos, d);
            dot += product;
            size += fabs(product);
        }
        s[pos] = softcap != 0.0f ? softcap * tanh(dot * (double)scale / softcap) : dot * (double)scale;
        max = fmax(max, s[pos]);
        spread = fmax(spread, size * (double)scale);
    }
    for (uint32_t pos = first; pos < n; pos++) l += exp(s[pos] - max);
    /* Random data: rounding errors of n terms add like sqrt(n) (Higham and Mary 2019). A score is off by delta, a probability by a factor of 1 + 2 delta; the
     * soft cap adds the rounding of tanh near 1, times the cap. */
    const double delta = (2 * sqrt(head_dim) + 4) * U * spread + 4 * U * (double)softcap;
    const double allowed_per_v = 2 * delta + (2 * sqrt(n) + 16) * U;
    double worst = 0;
    for (uint32_t d = 0; d < head_dim; d++) {
        double y = 0;
        for (uint32_t pos = first; pos < n; pos++) {
            double v = value_value(values, type, head_dim, pos, d);
            y += exp(s[pos] - max) * v;
            v_max = fmax(v_max, fabs(v));
        }
        worst = fmax(worst, fabs(out[d] - y / l));
    }
    check_that(c, worst <= allowed_per_v * v_max, "attention scalar type %d head_dim %u positions [%u, %u) %s softcap %g: error %g, allowed %g", type, head_dim,
        first, n, check_data_name(kind), (double)softcap, worst, allowed_per_v * v_max);
    for (uint32_t i = 0; i < c->n_levels; i++) {
        attend_context(c->level[i], type, head_dim, keys, values, q, first, n, scale, softcap, other);
        check_that(c, !memcmp(out, other, head_dim * 4), "attention %s type %d head_dim %u positions [%u, %u) %s: not the reference's bits", c->level[i]->level,
            type, head_dim, first, n, check_data_name(kind));
    }
    free(keys);
    free(values);
    free(x);
    free(q);
    free(out);
    free(other);
    free(s);
}

static void merge(struct check *c)
{
    enum { D = 7 };
    float o[D], o2[D], kept[D], m = -INFINITY, l = 0.0f;
    check_fill(c, CHECK_NORMAL, o, D);
    check_fill(c, CHECK_NORMAL, o2, D);
    memcpy(kept, o2, sizeof kept);
    wr_attend_merge(&m, &l, o, 1.5f, 2.0f, o2, D);
    check_that(c, m == 1.5f && l == 2.0f && !memcmp(o, kept, sizeof o), "merge into an empty span is not a copy");
    check_fill(c, CHECK_NORMAL, o2, D);
    wr_attend_merge(&m, &l, o, -INFINITY, 0.0f, o2, D);
    check_that(c, m == 1.5f && l == 2.0f && !memcmp(o, kept, sizeof o), "merging an empty span changes the state");
    wr_attend_merge(&m, &l, o, -INFINITY, NAN, o2, D);
    check_that(c, isnan(l), "merge loses the NaN of a span whose scores overflowed");
    for (uint32_t round = 0; round < 200; round++) {
        float a = check_normal(c) * 10, b = check_normal(c) * 10, la = 1 + fabsf(check_normal(c)), lb = 1 + fabsf(check_normal(c));
        check_fill(c, CHECK_NORMAL, o, D);
        check_fill(c, CHECK_NORMAL, o2, D);
        memcpy(kept, o, sizeof kept);
        m = a;
        l = la;
        wr_attend_merge(&m, &l, o, b, lb, o2, D);
        double top = fmax((double)a, (double)b), ea = exp(a - top), eb = exp(b - top), want = la * ea + lb * eb;
        bool right = m == fmaxf(a, b) && fabs(l - want) <= 8 * U * want * 20; /* a - m is rounded: up to 20 of it in the exponent */
        for (int d = 0; d < D; d++) right = right && fabs(o[d] - (kept[d] * ea + o2[d] * eb)) <= 160 * U * (fabs(kept[d] * ea) + fabs(o2[d] * eb));
        check_that(c, right, "merge of m %g and %g: away from double precision", (double)a, (double)b);
    }
}

void check_attend(struct check *c)
{
    static const uint32_t head_dims[] = {32, 64, 96, 128, 160, 256, 512, 80, 40, 72, 1, 15};
    const uint32_t n_dims = sizeof head_dims / sizeof head_dims[0], n_blocked = 7; /* the first ones: multiples of 32 */
    for (uint32_t n_q = 1; n_q <= WR_TILE_MAX_Q; n_q += c->quick || n_q >= 20 ? 7 : 1) {
        for (uint32_t mask = 0; mask < N_MASKS; mask++) {
            for (uint32_t i = 0; i < 2 * WR_N_KV_TYPES; i++) {
                const enum wr_kv_type type = i % WR_N_KV_TYPES;
                tile(c, type, head_dims[check_below(c, in_blocks(type) ? n_blocked : n_dims)], n_q, mask, check_below(c, CHECK_N_DATA));
            }
        }
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        for (uint32_t kind = 0; kind < CHECK_N_DATA; kind++) {
            tile(c, WR_KV_F16, head_dims[i], 1 + check_below(c, 12), CAUSAL, kind);
            tile(c, WR_KV_F32, head_dims[i], 1 + check_below(c, 12), RANDOM, kind);
            for (uint32_t type = WR_KV_Q8_0; type <= WR_KV_K8V4 && i < n_blocked; type++)
                tile(c, type, head_dims[i], 1 + check_below(c, 12), kind % 2 ? CAUSAL : RANDOM, kind);
        }
    }
    static const enum check_data kinds[] = {CHECK_NORMAL, CHECK_WIDE, CHECK_OUTLIER};
    for (uint32_t type = 0; type < WR_N_KV_TYPES; type++) {
        for (uint32_t i = 0; i < 3; i++) {
            context(c, type, 64, 1, 0, kinds[i], 0.0f);
            context(c, type, 128, 300, 0, kinds[i], 0.0f);
            context(c, type, in_blocks(type) ? 96 : 80, 700, 250, kinds[i], 30.0f);
            if (!c->quick) context(c, type, 32, 2 * WR_SPAN + 300, i * 4000, kinds[i], 0.0f);
        }
    }
    merge(c);
    exp_everywhere(c);
    non_finite(c);
}

/* ---- bench ---- */

struct attend_bench {
    const struct wr_kernels *k;
    struct wr_tile t;
    uint32_t n_tiles, at; /* tiles in memory, the next one */
    const uint8_t *kv;
};

static void run_attend(void *arg)
{
    struct attend_bench *b = arg;
    size_t keys = (size_t)WR_TILE * wr_kv_key_bytes(b->t.type, b->t.head_dim), values = (size_t)WR_TILE * wr_kv_value_bytes(b->t.type, b->t.head_dim);
    b->t.k = b->kv + (keys + values) * b->at;
    b->t.v = b->kv + (keys + values) * b->at + keys;
    b->at = b->at + 1 < b->n_tiles ? b->at + 1 : 0;
    b->k->attend_tile(&b->t);
}

void bench_attend(struct check *c)
{
    static const struct {
        uint32_t head_dim, n_q;
        bool from_memory;
    } shapes[] = {{64, 1, false}, {64, 3, false}, {64, WR_TILE_MAX_Q, false}, {128, 1, false}, {128, 4, false}, {128, 8, false}, {128, WR_TILE_MAX_Q, false},
        {64, 3, true}, {128, 4, true}};
    const size_t all = 96u << 20; /* more than the caches hold */
    uint8_t *kv = malloc(all);
    float *q = check_alloc(WR_TILE_MAX_Q * 128 * 4, 64), *state = check_alloc(WR_TILE_MAX_Q * 130 * 4, 64),
          *work = check_alloc(WR_TILE_MAX_Q * WR_TILE * 4, 64);
    const float *rows[WR_TILE_MAX_Q];
    uint32_t first[WR_TILE_MAX_Q], last[WR_TILE_MAX_Q];
    for (size_t i = 0; i < all / 2; i++) ((uint16_t *)kv)[i] = (uint16_t)(0x3000 + i * 2654435761u % 0x800 + (i * 40503 & 1) * 0x8000);
    check_fill(c, CHECK_NORMAL, q, WR_TILE_MAX_Q * 128);
    memset(state, 0, WR_TILE_MAX_Q * 130 * 4);
    static const enum wr_kv_type types[] = {WR_KV_F16, WR_KV_Q8_0, WR_KV_K8V4};
    for (uint32_t s = 0; s < 3 * sizeof shapes / sizeof shapes[0]; s++) {
        const enum wr_kv_type type = types[s % 3];
        const uint32_t n_d = shapes[s / 3].head_dim, n_q = shapes[s / 3].n_q;
        const size_t tile_bytes = WR_TILE * ((size_t)wr_kv_key_bytes(type, n_d) + wr_kv_value_bytes(type, n_d));
        const bool from_memory = shapes[s / 3].from_memory;
        for (uint32_t i = 0; i < n_q; i++) rows[i] = q + i * n_d, first[i] = 0, last[i] = WR_TILE;
        for (uint32_t i = 0; i <= c->n_levels; i++) {
            struct attend_bench b = {i ? c->level[i - 1] : c->ref,
                {type, n_d, n_q, NULL, NULL, rows, first, last, 0.1f, 0.0f, state, state + WR_TILE_MAX_Q, state + 2 * WR_TILE_MAX_Q, work},
                from_memory ? (uint32_t)(all / tile_bytes) : 1, 0, kv};
            char shape[64];
            snprintf(shape, sizeof shape, "D %u, %u queries, %s, %s", n_d, n_q, wr_kv_name(type), from_memory ? "memory" : "cache");
            double seconds = check_seconds(run_attend, &b);
            if (from_memory)
                check_rate("attend", shape, b.k->level, (double)tile_bytes, seconds, "GB/s");
            else
                check_rate("attend", shape, b.k->level, 4.0 * n_q * n_d * WR_TILE, seconds, "GFLOPS");
        }
    }
    free(kv);
    check_free(q);
    check_free(state);
    check_free(work);
}
