/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend_tile in 16 lanes (see ref/attend.c for what it computes). Scores have keys in lanes, outputs have dimensions in lanes, so both are plain chains of
 * FMAs in the order of rule g, and a register tile of several queries loads each K and V vector once. With more than one group of queries a part of K or V
 * that fits L1 is widened to f32 once and shared by all groups. Included after rows_body.h.
 */
#define PART_FLOATS 4096 /* 16 KiB of widened K or V on the stack: half of the smallest L1 */
#define PART_DIMS 128    /* of K: 2 blocks x 128 x 16 */
#define PART_BLOCKS (PART_FLOATS / (PART_DIMS * WR_KV_BLOCK))
#define PART_KEYS 128 /* of V: 128 keys x 2 vectors */
#define PART_VECTORS (PART_FLOATS / (PART_KEYS * 16))

/* Register tiles stay in registers only if their loops are gone before the compiler splits arrays into scalars. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* The queries that see something in the tile, in groups of similar size. */
struct queries {
    uint32_t n, n_groups, per_group;
    uint32_t first, last;          /* [first, last) covers what any of them sees */
    uint32_t index[WR_TILE_MAX_Q]; /* row in wr_tile */
    const float *q[WR_TILE_MAX_Q];
};

/* ---- scores ---- */

struct score_args {
    const float *const *q; /* [nq] -> at dimension 0 */
    uint32_t d0, n_d;      /* dimensions [d0, d0 + n_d); d0 > 0: out holds the sums so far */
    const void *k;         /* first block, at dimension d0 */
    size_t stride;         /* elements from block to block */
    uint32_t n_blocks;
    float *out; /* [nq][WR_TILE], at the first block */
};

LANES v16 load_kv(const void *p, size_t at, bool half) { return half ? v_load_f16((const uint16_t *)p + at) : v_load((const float *)p + at); }

LANES void score_blocks(const struct score_args *a, uint32_t block, const uint32_t nq, const uint32_t nb, const bool half)
{
    v16 acc[LANES_MAX_Q][4];
    const float *q[LANES_MAX_Q];
    float *out = a->out + (size_t)block * WR_KV_BLOCK;
    const size_t k0 = block * a->stride;
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        q[i] = a->q[i] + a->d0;
        UNROLL
        for (uint32_t b = 0; b < nb; b++) acc[i][b] = a->d0 ? v_load(out + i * WR_TILE + b * WR_KV_BLOCK) : v_zero();
    }
    const uint32_t n_d = a->n_d;
    for (uint32_t d = 0; d < n_d; d++) {
        v16 k[4];
        UNROLL
        for (uint32_t b = 0; b < nb; b++) k[b] = load_kv(a->k, k0 + b * a->stride + (size_t)d * WR_KV_BLOCK, half);
        UNROLL
        for (uint32_t i = 0; i < nq; i++) {
            v16 x = v_set(q[i][d]);
            UNROLL
            for (uint32_t b = 0; b < nb; b++) acc[i][b] = v_fma(x, k[b], acc[i][b]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        UNROLL
        for (uint32_t b = 0; b < nb; b++) v_store(out + i * WR_TILE + b * WR_KV_BLOCK, acc[i][b]);
    }
}

/* ---- outputs ---- */

struct mix_args {
    const float *p;             /* [nq][WR_TILE], at the first key */
    const void *v;              /* first key, first of the dimensions */
    size_t stride;              /* elements from key to key */
    uint32_t n_keys, n_vectors; /* n_vectors * 16 dimensions */
    float *o[LANES_MAX_Q];      /* -> first of the dimensions */
};

LANES void mix_vectors(const struct mix_args *a, uint32_t vector, const uint32_t nq, const uint32_t nv, const bool half)
{
    v16 acc[LANES_MAX_Q][4];
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        UNROLL
        for (uint32_t j = 0; j < nv; j++) acc[i][j] = v_load(a->o[i] + (vector + j) * 16);
    }
    const float *p = a->p;
    const uint32_t n_keys = a->n_keys;
    size_t at = (size_t)vector * 16;
    for (uint32_t key = 0; key < n_keys; key++, at += a->stride) {
        v16 v[4];
        UNROLL
        for (uint32_t j = 0; j < nv; j++) v[j] = load_kv(a->v, at + j * 16, half);
        UNROLL
        for (uint32_t i = 0; i < nq; i++) {
            v16 x = v_set(p[i * WR_TILE + key]);
            UNROLL
            for (uint32_t j = 0; j < nv; j++) acc[i][j] = v_fma(x, v[j], acc[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        UNROLL
        for (uint32_t j = 0; j < nv; j++) v_store(a->o[i] + (vector + j) * 16, acc[i][j]);
    }
}

#define SHAPE_FUNCTIONS(nq, nb, name, half)                                                                                                                    \
    static void score_##nq##_##name(const struct score_args *a)                                                                                                \
    {                                                                                                                                                          \
        uint32_t block = 0;                                                                                                                                    \
        for (; block + nb <= a->n_blocks; block += nb) score_blocks(a, block, nq, nb, half);                                                                   \
        for (; block < a->n_blocks; block++) score_blocks(a, block, nq, 1, half);                                                                              \
    }                                                                                                                                                          \
    static void mix_##nq##_##name(const struct mix_args *a)                                                                                                    \
    {                                                                                                                                                          \
        uint32_t vector = 0;                                                                                                                                   \
        for (; vector + nb <= a->n_vectors; vector += nb) mix_vectors(a, vector, nq, nb, half);                                                                \
        for (; vector < a->n_vectors; vector++) mix_vectors(a, vector, nq, 1, half);                                                                           \
    }
#define SHAPE(nq, nb) SHAPE_FUNCTIONS(nq, nb, f32, false) SHAPE_FUNCTIONS(nq, nb, f16, true)
LANES_SHAPES(SHAPE)
#undef SHAPE

#define SHAPE(nq, nb) {score_##nq##_f32, score_##nq##_f16},
static void (*const score_table[LANES_MAX_Q][2])(const struct score_args *) = {LANES_SHAPES(SHAPE)};
#undef SHAPE
#define SHAPE(nq, nb) {mix_##nq##_f32, mix_##nq##_f16},
static void (*const mix_table[LANES_MAX_Q][2])(const struct mix_args *) = {LANES_SHAPES(SHAPE)};
#undef SHAPE

/* ---- the tile ---- */

static struct queries find_queries(const struct wr_tile *t)
{
    struct queries s = {.first = WR_TILE};
    for (uint32_t i = 0; i < t->n_q; i++) {
        if (t->first[i] >= t->last[i]) continue;
        if (t->first[i] < s.first) s.first = t->first[i];
        if (t->last[i] > s.last) s.last = t->last[i];
        s.index[s.n] = i;
        s.q[s.n++] = t->q[i];
    }
    s.n_groups = (s.n + LANES_MAX_Q - 1) / LANES_MAX_Q;
    if (s.n) s.per_group = (s.n + s.n_groups - 1) / s.n_groups;
    return s;
}

/* Rows [n_rows][n_cols] (n_cols a multiple of 16) of f16, `stride` elements apart, to dense f32. */
static void widen(const uint16_t *from, size_t stride, uint32_t n_rows, uint32_t n_cols, float *to)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t c = 0; c < n_cols; c += 16) v_store(to + (size_t)r * n_cols + c, v_load_f16(from + r * stride + c));
    }
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }
static const void *kv_at(const struct wr_tile *t, const void *p, size_t element) { return (const char *)p + element * (t->type == WR_KV_F16 ? 2 : 4); }

/* Raw scores of every query with the blocks that any of them sees: work[s][key], s counted among the seeing queries. */
static void scores(const struct wr_tile *t, const struct queries *s, float *part)
{
    const bool half = t->type == WR_KV_F16, share = half && s->n_groups > 1;
    const uint32_t end = (s->last + WR_KV_BLOCK - 1) / WR_KV_BLOCK;
    const uint32_t block_step = share ? PART_BLOCKS : WR_TILE / WR_KV_BLOCK, d_step = share ? PART_DIMS : t->head_dim;
    for (uint32_t block = s->first / WR_KV_BLOCK; block < end; block += block_step) {
        const uint32_t n_blocks = least(block_step, end - block);
        for (uint32_t d = 0; d < t->head_dim; d += d_step) {
            const uint32_t n_d = least(d_step, t->head_dim - d);
            const void *k = kv_at(t, t->k, ((size_t)block * t->head_dim + d) * WR_KV_BLOCK);
            if (share) widen(k, (size_t)t->head_dim * WR_KV_BLOCK, n_blocks, n_d * WR_KV_BLOCK, part);
            for (uint32_t i = 0; i < s->n; i += s->per_group) {
                struct score_args a = {s->q + i, d, n_d, share ? part : k, (size_t)(share ? n_d : t->head_dim) * WR_KV_BLOCK, n_blocks,
                    t->work + (size_t)i * WR_TILE + block * WR_KV_BLOCK};
                score_table[least(s->per_group, s->n - i) - 1][half && !share](&a);
            }
        }
    }
}

/* Scores to probabilities in place, and the state (m, l, O) to the new maximum. */
static void softmax(const struct wr_tile *t, uint32_t i, float *p)
{
    const uint32_t first = t->first[i], last = t->last[i];
    const v16 scale = v_set(t->scale), cap = v_set(t->softcap), none = v_set(-INFINITY);
    v16 max = none;
    for (uint32_t j = first & ~15u; j < last; j += 16) {
        v16 s = v_mul(v_load(p + j), scale);
        if (t->softcap != 0.0f) s = v_mul(cap, v_tanh(v_div(s, cap)));
        v_store(p + j, s);
        if (j < first || j + 16 > last) s = v_keep(s, none, most(first, j) - j, least(last - j, 16));
        max = v_max(s, max);
    }
    float top = v_fold_max(max) + 0.0f; /* -0 becomes +0 */
    if (top > t->m[i]) {
        float a = wr_exp(t->m[i] - top), *o = t->o + (size_t)i * t->head_dim;
        t->m[i] = top;
        t->l[i] *= a;
        uint32_t d = 0;
        for (; d + 16 <= t->head_dim; d += 16) v_store(o + d, v_mul(v_load(o + d), v_set(a)));
        for (; d < t->head_dim; d++) o[d] *= a;
    }
    const v16 m = v_set(t->m[i]);
    v16 sum = v_zero();
    for (uint32_t j = first & ~15u; j < last; j += 16) {
        v16 e = v_exp(v_sub(v_load(p + j), m));
        if (j < first || j + 16 > last) e = v_keep(e, v_zero(), most(first, j) - j, least(last - j, 16)); /* sum + 0 = sum: it is never -0 */
        v_store(p + j, e);
        sum = v_add(sum, e);
    }
    t->l[i] += v_fold_sum(sum);
}

/* O of queries [i, i + n) of `s` with the keys [first, last), which all of them see. v: [key0 ..] of the dimensions from d. */
static void mix_seen(const struct wr_tile *t, const struct queries *s, uint32_t i, uint32_t n, uint32_t first, uint32_t last, const void *v, uint32_t key0,
    size_t stride, bool half, uint32_t d, uint32_t n_vectors)
{
    if (first >= last) return;
    struct mix_args a = {
        t->work + (size_t)i * WR_TILE + first, (const char *)v + (first - key0) * stride * (half ? 2 : 4), stride, last - first, n_vectors, {0}};
    for (uint32_t r = 0; r < n; r++) a.o[r] = t->o + (size_t)s->index[i + r] * t->head_dim + d;
    mix_table[n - 1][half](&a);
}

/* A group of queries with the keys [key0, key1): together where all see, one by one where only some do; ascending for each. A masked key is left out, not
 * multiplied by zero: O = -0 plus a product of +0 would become +0. */
static void mix_group(const struct wr_tile *t, const struct queries *s, uint32_t i, uint32_t n, uint32_t key0, uint32_t key1, const void *v, size_t stride,
    bool half, uint32_t d, uint32_t n_vectors)
{
    uint32_t first = key0, last = key1;
    for (uint32_t r = i; r < i + n; r++) {
        first = most(first, t->first[s->index[r]]);
        last = least(last, t->last[s->index[r]]);
    }
    if (first >= last) first = last = key1; /* each by itself */
    for (uint32_t r = i; r < i + n; r++) {
        uint32_t row = s->index[r];
        mix_seen(t, s, r, 1, most(key0, t->first[row]), least(first, t->last[row]), v, key0, stride, half, d, n_vectors);
    }
    mix_seen(t, s, i, n, first, last, v, key0, stride, half, d, n_vectors);
    for (uint32_t r = i; r < i + n; r++) mix_seen(t, s, r, 1, last, least(key1, t->last[s->index[r]]), v, key0, stride, half, d, n_vectors);
}

static void outputs(const struct wr_tile *t, const struct queries *s, float *part)
{
    const bool half = t->type == WR_KV_F16, share = half && s->n_groups > 1;
    const uint32_t n_vectors = t->head_dim / 16, v_step = share ? PART_VECTORS : n_vectors, key_step = share ? PART_KEYS : WR_TILE;
    for (uint32_t key = s->first; key < s->last; key += key_step) {
        const uint32_t end = least(key + key_step, s->last);
        for (uint32_t j = 0; j < n_vectors; j += v_step) {
            const uint32_t n = least(v_step, n_vectors - j);
            const void *v = kv_at(t, t->v, (size_t)key * t->head_dim + j * 16);
            if (share) widen(v, t->head_dim, end - key, n * 16, part);
            for (uint32_t i = 0; i < s->n; i += s->per_group) {
                mix_group(t, s, i, least(s->per_group, s->n - i), key, end, share ? part : v, share ? n * 16 : t->head_dim, half && !share, j * 16, n);
            }
        }
    }
    /* Head sizes that are no multiple of 16. */
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t row = s->index[i];
        float *o = t->o + (size_t)row * t->head_dim;
        for (uint32_t d = n_vectors * 16; d < t->head_dim; d++) {
            for (uint32_t key = t->first[row]; key < t->last[row]; key++) {
                size_t at = (size_t)key * t->head_dim + d;
                o[d] = fmaf(t->work[(size_t)i * WR_TILE + key], half ? wr_f32_from_f16(((const uint16_t *)t->v)[at]) : ((const float *)t->v)[at], o[d]);
            }
        }
    }
}

void LEVEL(attend_tile)(const struct wr_tile *t)
{
    _Alignas(64) float part[PART_FLOATS];
    const struct queries s = find_queries(t);
    if (s.n == 0) return;
    scores(t, &s, part);
    for (uint32_t i = 0; i < s.n; i++) softmax(t, s.index[i], t->work + (size_t)i * WR_TILE);
    outputs(t, &s, part);
}
