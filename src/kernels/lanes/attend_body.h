/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend_tile in 16 lanes (see ref/attend.c for what it computes). Scores have keys in lanes, outputs have dimensions in lanes, so both are plain chains of
 * FMAs in the order of rule g, and a register tile of several queries loads each K and V vector once. Where queries take several register tiles, a part of
 * K or V that fits L1 is widened to f32 once and shared by all; those of one read K and V as they are stored. Included after rows_body.h.
 */
#define PART_FLOATS 4096 /* 16 KiB of widened K or V on the stack: half of the smallest L1 */

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

/* Memory that is wanted later, fetched evenly beside the multiply-adds: V during the scores, the next tile's K during the outputs. Without it they wait for
 * every line; fetched all at once, the lines wait for each other. */
struct ahead {
    const char *at;
    size_t step; /* bytes beside each dimension of a register tile of scores and each key of one of outputs; of widened parts: beside a part */
};

/* What keeps up with a register tile that reads n_vectors of K or V as they are stored; widened parts are fetched by fetch_part. */
LANES void fetch(struct ahead *a, const uint32_t n_vectors, const enum wr_kv_type type)
{
    if (type == WR_KV_F32) return;
    const uint32_t n_lines = (n_vectors * (type == WR_KV_F16 ? 2 : 1) + 3) / 4;
    for (uint32_t i = 0; i < n_lines; i++) v_prefetch(a->at + i * 64);
    a->at += a->step;
}

static void fetch_part(struct ahead *a)
{
    for (size_t i = 0; i < a->step; i += 64) v_prefetch(a->at + i);
    a->at += a->step;
}

/* ---- scores ---- */

struct score_args {
    const float *const *q; /* [nq] -> at dimension 0 */
    uint32_t d0, n_d;      /* dimensions [d0, d0 + n_d); d0 > 0: out holds the sums so far */
    const uint8_t *k;      /* first block, at dimension d0 */
    size_t stride;         /* bytes from block to block */
    size_t scales;         /* q8_0: bytes from a block to its scales */
    uint32_t n_blocks;
    float *out; /* [nq][WR_TILE], at the first block */
    struct ahead ahead;
};

/* Values [at, at + 16) behind p as f32. */
LANES v16 widen(const enum wr_kv_type type, const void *p, size_t at, v16 scale)
{
    if (type == WR_KV_F32) return v_load((const float *)p + at);
    if (type == WR_KV_F16) return v_load_f16((const uint16_t *)p + at);
    return v_mul(v_load_i8((const int8_t *)p + at), scale);
}

/* Vector i of a position's V of 4 bits. */
LANES v16 widen_i4(const uint8_t *p, uint32_t i, v16 scale) { return v_mul(i % 2 ? v_load_i4_high(p + i / 2 * 16) : v_load_i4_low(p + i / 2 * 16), scale); }

LANES void score_blocks(struct score_args *a, uint32_t block, const uint32_t nq, const uint32_t nb, const enum wr_kv_type type)
{
    v16 acc[LANES_MAX_Q][4], scale[4];
    const float *q[LANES_MAX_Q];
    float *out = a->out + (size_t)block * WR_KV_BLOCK;
    const uint8_t *from = a->k + block * a->stride;
    UNROLL
    for (uint32_t b = 0; b < nb; b++) scale[b] = v_zero();
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        q[i] = a->q[i] + a->d0;
        UNROLL
        for (uint32_t b = 0; b < nb; b++) acc[i][b] = a->d0 ? v_load(out + i * WR_TILE + b * WR_KV_BLOCK) : v_zero();
    }
    const uint32_t n_d = a->n_d;
    struct ahead ahead = a->ahead;
    for (uint32_t d = 0; d < n_d;) {
        UNROLL
        for (uint32_t b = 0; b < nb && type == WR_KV_Q8_0; b++)
            scale[b] = v_load_f16((const uint16_t *)(const void *)(from + b * a->stride + a->scales) + d / WR_GROUP * WR_KV_BLOCK);
        for (const uint32_t end = type == WR_KV_Q8_0 ? d + WR_GROUP : n_d; d < end; d++) {
            v16 k[4];
            fetch(&ahead, nb, type);
            UNROLL
            for (uint32_t b = 0; b < nb; b++) k[b] = widen(type, from + b * a->stride, (size_t)d * WR_KV_BLOCK, scale[b]);
            UNROLL
            for (uint32_t i = 0; i < nq; i++) {
                v16 x = v_set(q[i][d]);
                UNROLL
                for (uint32_t b = 0; b < nb; b++) acc[i][b] = v_fma(x, k[b], acc[i][b]);
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        UNROLL
        for (uint32_t b = 0; b < nb; b++) v_store(out + i * WR_TILE + b * WR_KV_BLOCK, acc[i][b]);
    }
    a->ahead = ahead;
}

/* ---- outputs ---- */

struct mix_args {
    const float *p;             /* [nq][WR_TILE], at the first key */
    const uint8_t *v;           /* first key, first of the dimensions */
    size_t stride;              /* bytes from key to key */
    size_t scales;              /* q8_0, k8v4: bytes from the first of the dimensions to its scale */
    uint32_t n_keys, n_vectors; /* n_vectors * 16 dimensions */
    float *o[LANES_MAX_Q];      /* -> first of the dimensions */
    struct ahead *ahead;
};

LANES void mix_vectors(const struct mix_args *a, uint32_t vector, const uint32_t nq, const uint32_t nv, const enum wr_kv_type type)
{
    v16 acc[LANES_MAX_Q][4];
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        UNROLL
        for (uint32_t j = 0; j < nv; j++) acc[i][j] = v_load(a->o[i] + (vector + j) * 16);
    }
    const float *p = a->p, *const end = p + a->n_keys;
    const uint8_t *from = a->v;
    struct ahead ahead = *a->ahead;
    for (; p < end; p++, from += a->stride) {
        const uint16_t *scales = (const uint16_t *)(const void *)(from + a->scales) + vector / 2;
        v16 scale = v_zero();
        fetch(&ahead, nv, type);
        UNROLL
        for (uint32_t j = 0; j < nv; j++) {
            if ((type == WR_KV_Q8_0 || type == WR_KV_K8V4) && j % 2 == 0) scale = v_set_f16(scales[j / 2]);
            const v16 v = type == WR_KV_K8V4 ? widen_i4(from, vector + j, scale) : widen(type, from, (vector + j) * 16, scale);
            UNROLL
            for (uint32_t i = 0; i < nq; i++) acc[i][j] = v_fma(v_set(p[i * WR_TILE]), v, acc[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < nq; i++) {
        UNROLL
        for (uint32_t j = 0; j < nv; j++) v_store(a->o[i] + (vector + j) * 16, acc[i][j]);
    }
    *a->ahead = ahead;
}

#define SCORE(nq, nb, type)                                                                                                                                    \
    static void score_##nq##_##type(struct score_args *a)                                                                                                      \
    {                                                                                                                                                          \
        uint32_t block = 0;                                                                                                                                    \
        for (; block + nb <= a->n_blocks; block += nb) score_blocks(a, block, nq, nb, WR_KV_##type);                                                           \
        for (; block < a->n_blocks; block++) score_blocks(a, block, nq, 1, WR_KV_##type);                                                                      \
    }
#define MIX(nq, nv, type)                                                                                                                                      \
    static void mix_##nq##_##type(const struct mix_args *a)                                                                                                    \
    {                                                                                                                                                          \
        uint32_t vector = 0;                                                                                                                                   \
        for (; vector + nv <= a->n_vectors; vector += nv) mix_vectors(a, vector, nq, nv, WR_KV_##type);                                                        \
        for (; vector < a->n_vectors; vector++) mix_vectors(a, vector, nq, 1, WR_KV_##type);                                                                   \
    }
#define SHAPE(nq, nb, nv) SCORE(nq, nb, F16) SCORE(nq, nb, F32) SCORE(nq, nb, Q8_0) MIX(nq, nv, F16) MIX(nq, nv, F32) MIX(nq, nv, Q8_0) MIX(nq, nv, K8V4)
LANES_SHAPES(SHAPE)
#undef SHAPE
#undef MIX
#undef SCORE

#define SHAPE(nq, nb, nv)                                                                                                                                      \
    {{[WR_KV_F16] = score_##nq##_F16, [WR_KV_F32] = score_##nq##_F32, [WR_KV_Q8_0] = score_##nq##_Q8_0, [WR_KV_K8V4] = score_##nq##_Q8_0},                     \
        {[WR_KV_F16] = mix_##nq##_F16, [WR_KV_F32] = mix_##nq##_F32, [WR_KV_Q8_0] = mix_##nq##_Q8_0, [WR_KV_K8V4] = mix_##nq##_K8V4}, nb, nv},
static const struct {
    void (*score[WR_N_KV_TYPES])(struct score_args *);
    void (*mix[WR_N_KV_TYPES])(const struct mix_args *);
    uint32_t n_blocks, n_vectors; /* that a register tile of so many queries takes at a time */
} shapes[LANES_MAX_Q] = {LANES_SHAPES(SHAPE)};
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

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t rounds(uint32_t n, uint32_t step) { return (n + step - 1) / step; }

/* Blocks [block, block + n_blocks) of K at dimensions [d, d + n_d) as f32, [n_blocks][n_d][16]. q8_0, k8v4: d and n_d are multiples of 32. */
static void widen_keys(const struct wr_tile *t, uint32_t block, uint32_t n_blocks, uint32_t d, uint32_t n_d, float *to)
{
    const size_t bytes = (size_t)WR_KV_BLOCK * wr_kv_key_bytes(t->type, t->head_dim);
    for (uint32_t b = 0; b < n_blocks; b++, to += (size_t)n_d * WR_KV_BLOCK) {
        const uint8_t *from = (const uint8_t *)t->k + (block + b) * bytes;
        if (t->type == WR_KV_F16) {
            const uint16_t *half = (const uint16_t *)(const void *)from + d * WR_KV_BLOCK;
            for (uint32_t i = 0; i < n_d * WR_KV_BLOCK; i += 16) v_store(to + i, v_load_f16(half + i));
            continue;
        }
        const int8_t *q = (const int8_t *)from + d * WR_KV_BLOCK;
        const uint16_t *scales = (const uint16_t *)(const void *)(from + t->head_dim * WR_KV_BLOCK) + d / WR_GROUP * WR_KV_BLOCK;
        for (uint32_t g = 0; g < n_d; g += WR_GROUP, scales += WR_KV_BLOCK) {
            const v16 scale = v_load_f16(scales);
            for (uint32_t i = g * WR_KV_BLOCK; i < (g + WR_GROUP) * WR_KV_BLOCK; i += 16) v_store(to + i, v_mul(v_load_i8(q + i), scale));
        }
    }
}

/* The same as widen_values of k8v4, whose bytes hold two vectors: vector and n are even. */
static void widen_values_i4(const struct wr_tile *t, uint32_t key, uint32_t end, uint32_t vector, uint32_t n, float *to)
{
    const size_t bytes = wr_kv_value_bytes(t->type, t->head_dim);
    const uint8_t *from = (const uint8_t *)t->v + key * bytes;
    for (; key < end; key++, from += bytes) {
        const uint16_t *scales = (const uint16_t *)(const void *)(from + t->head_dim / 2);
        for (uint32_t g = vector / 2; g < (vector + n) / 2; g++, to += WR_GROUP) {
            const v16 scale = v_set_f16(scales[g]);
            v_store(to, v_mul(v_load_i4_low(from + g * (WR_GROUP / 2)), scale));
            v_store(to + 16, v_mul(v_load_i4_high(from + g * (WR_GROUP / 2)), scale));
        }
    }
}

/* V of the keys [key, end) at vectors [vector, vector + n) as f32, [end - key][n][16]. */
static void widen_values(const struct wr_tile *t, uint32_t key, uint32_t end, uint32_t vector, uint32_t n, float *to)
{
    if (t->type == WR_KV_K8V4) {
        widen_values_i4(t, key, end, vector, n, to);
        return;
    }
    const size_t bytes = wr_kv_value_bytes(t->type, t->head_dim);
    const uint8_t *from = (const uint8_t *)t->v + key * bytes;
    for (; key < end; key++, from += bytes) {
        for (uint32_t j = vector; j < vector + n; j++, to += 16) {
            if (t->type == WR_KV_F16)
                v_store(to, v_load_f16((const uint16_t *)(const void *)from + j * 16));
            else
                v_store(
                    to, v_mul(v_load_i8((const int8_t *)from + j * 16), v_set_f16(((const uint16_t *)(const void *)(from + t->head_dim))[j * 16 / WR_GROUP])));
        }
    }
}

/* Whether the register tiles read K and V as they are stored: one group of queries has nothing to share a widened part with. */
static bool as_stored(const struct wr_tile *t, const struct queries *s) { return t->type == WR_KV_F32 || s->n_groups == 1; }

/* Raw scores of every query with the blocks that any of them sees: work[s][key], s counted among the seeing queries. */
static void scores(const struct wr_tile *t, const struct queries *s, float *part)
{
    const bool stored = as_stored(t, s);
    const uint32_t n_d = t->head_dim, begin = s->first / WR_KV_BLOCK, end = (s->last + WR_KV_BLOCK - 1) / WR_KV_BLOCK;
    const uint32_t d_step = stored ? n_d : least(n_d, PART_FLOATS / (WR_KV_BLOCK * shapes[s->per_group - 1].n_blocks));
    const uint32_t block_step = stored ? WR_TILE / WR_KV_BLOCK : PART_FLOATS / (d_step * WR_KV_BLOCK);
    const size_t value_bytes = wr_kv_value_bytes(t->type, n_d), block_bytes = (size_t)WR_KV_BLOCK * wr_kv_key_bytes(t->type, n_d);
    const uint32_t n_steps =
        stored ? rounds(end - begin, shapes[s->per_group - 1].n_blocks) * n_d : rounds(end - begin, block_step) * rounds(n_d, d_step) * s->n_groups;
    struct ahead ahead = {(const char *)t->v + s->first * value_bytes, rounds((uint32_t)((s->last - s->first) * value_bytes), n_steps)};
    for (uint32_t block = begin; block < end; block += block_step) {
        const uint32_t n_blocks = least(block_step, end - block);
        for (uint32_t d = 0; d < n_d; d += d_step) {
            const uint32_t n = least(d_step, n_d - d);
            struct score_args a = {NULL, d, n, (const uint8_t *)t->k + block * block_bytes, block_bytes, (size_t)n_d * WR_KV_BLOCK, n_blocks, NULL, ahead};
            if (!stored) {
                widen_keys(t, block, n_blocks, d, n, part);
                a.k = (const uint8_t *)part;
                a.stride = (size_t)n * WR_KV_BLOCK * sizeof *part;
            }
            for (uint32_t i = 0; i < s->n; i += s->per_group) {
                if (!stored) fetch_part(&ahead);
                a.q = s->q + i;
                a.out = t->work + (size_t)i * WR_TILE + block * WR_KV_BLOCK;
                shapes[least(s->per_group, s->n - i) - 1].score[stored ? t->type : WR_KV_F32](&a);
            }
            if (stored) ahead = a.ahead;
        }
    }
}

/* Scales and caps the scores of query i in place. */
static void cap_scores(const struct wr_tile *t, uint32_t i, float *p)
{
    const v16 scale = v_set(t->scale), cap = v_set(t->softcap);
    for (uint32_t j = t->first[i] & ~15u; j < t->last[i]; j += 16) v_store(p + j, v_mul(cap, v_tanh(v_div(v_mul(v_load(p + j), scale), cap))));
}

/* The largest score of query i, scaled: rounding keeps the order, so that of the products is the product of the largest. */
static float largest(const struct wr_tile *t, uint32_t i, const float *p, float scale)
{
    const uint32_t first = t->first[i], last = t->last[i];
    const v16 none = v_set(-INFINITY);
    v16 max = none;
    for (uint32_t j = first & ~15u; j < last; j += 16) {
        v16 s = v_load(p + j);
        if (j < first || j + 16 > last) s = v_keep(s, none, most(first, j) - j, least(last - j, 16));
        max = v_max(s, max);
    }
    return v_fold_max(max) * scale + 0.0f; /* -0 becomes +0 */
}

/* The state (m, l, O) of query i to the new maximum. */
static void raise_max(const struct wr_tile *t, uint32_t i, float top)
{
    if (!(top > t->m[i])) return;
    float a = wr_exp(t->m[i] - top), *o = t->o + (size_t)i * t->head_dim;
    t->m[i] = top;
    t->l[i] *= a;
    uint32_t d = 0;
    for (; d + 16 <= t->head_dim; d += 16) v_store(o + d, v_mul(v_load(o + d), v_set(a)));
    for (; d < t->head_dim; d++) o[d] *= a;
}

/* Scores to probabilities in place, and their sum to l. */
static void probabilities(const struct wr_tile *t, uint32_t i, float *p, float scale)
{
    const uint32_t first = t->first[i], last = t->last[i];
    const v16 by = v_set(scale), m = v_set(t->m[i]);
    v16 sum = v_zero();
    for (uint32_t j = first & ~15u; j < last; j += 16) {
        v16 e = v_exp_down(v_sub(v_mul(v_load(p + j), by), m));
        if (j < first || j + 16 > last) e = v_keep(e, v_zero(), most(first, j) - j, least(last - j, 16)); /* sum + 0 = sum: it is never -0 */
        v_store(p + j, e);
        sum = v_add(sum, e);
    }
    t->l[i] += v_fold_sum(sum);
}

/* V of the keys from key0 on, at the dimensions from d. */
struct values {
    enum wr_kv_type type;
    const uint8_t *v;
    size_t stride, scales; /* as in mix_args */
    uint32_t key0, d, n_vectors;
    struct ahead *ahead;
};

/* O of queries [i, i + n) of `s` with the keys [first, last), which all of them see. */
static void mix_seen(const struct wr_tile *t, const struct queries *s, uint32_t i, uint32_t n, uint32_t first, uint32_t last, const struct values *v)
{
    if (first >= last) return;
    struct mix_args a = {
        t->work + (size_t)i * WR_TILE + first, v->v + (first - v->key0) * v->stride, v->stride, v->scales, last - first, v->n_vectors, {0}, v->ahead};
    for (uint32_t r = 0; r < n; r++) a.o[r] = t->o + (size_t)s->index[i + r] * t->head_dim + v->d;
    shapes[n - 1].mix[v->type](&a);
}

/* A group of queries with the keys [v->key0, end): together where all see, one by one where only some do; ascending for each. A masked key is left out, not
 * multiplied by zero: O = -0 plus a product of +0 would become +0. */
static void mix_group(const struct wr_tile *t, const struct queries *s, uint32_t i, uint32_t n, uint32_t end, const struct values *v)
{
    uint32_t first = v->key0, last = end;
    for (uint32_t r = i; r < i + n; r++) {
        first = most(first, t->first[s->index[r]]);
        last = least(last, t->last[s->index[r]]);
    }
    if (first >= last) first = last = end; /* each by itself */
    for (uint32_t r = i; r < i + n; r++) {
        uint32_t row = s->index[r];
        mix_seen(t, s, r, 1, most(v->key0, t->first[row]), least(first, t->last[row]), v);
    }
    mix_seen(t, s, i, n, first, last, v);
    for (uint32_t r = i; r < i + n; r++) mix_seen(t, s, r, 1, last, least(end, t->last[s->index[r]]), v);
}

static void outputs(const struct wr_tile *t, const struct queries *s, float *part)
{
    const bool stored = as_stored(t, s);
    const size_t bytes = wr_kv_value_bytes(t->type, t->head_dim), scales = t->type == WR_KV_K8V4 ? t->head_dim / 2 : t->head_dim;
    const uint32_t n_vectors = t->head_dim / 16, v_step = stored ? most(n_vectors, 1) : most(shapes[s->per_group - 1].n_vectors, 2);
    const uint32_t key_step = stored ? most((uint32_t)(PART_FLOATS * sizeof *part / bytes), 1) : PART_FLOATS / (v_step * 16);
    const uint32_t n_steps = stored ? rounds(n_vectors, shapes[s->per_group - 1].n_vectors) * (s->last - s->first)
                                    : rounds(s->last - s->first, key_step) * rounds(n_vectors, v_step) * s->n_groups;
    const uint32_t tile_bytes = WR_TILE * wr_kv_key_bytes(t->type, t->head_dim);
    struct ahead ahead = {t->k, 0};
    if (t->next_k != NULL && n_steps > 0) ahead = (struct ahead){t->next_k, rounds(tile_bytes, n_steps)};
    for (uint32_t key = s->first; key < s->last; key += key_step) {
        const uint32_t end = least(key + key_step, s->last);
        for (uint32_t j = 0; j < n_vectors; j += v_step) {
            const uint32_t n = least(v_step, n_vectors - j);
            struct values v = {t->type, (const uint8_t *)t->v + key * bytes, bytes, scales, key, j * 16, n, &ahead};
            if (!stored) {
                widen_values(t, key, end, j, n, part);
                v = (struct values){WR_KV_F32, (const uint8_t *)part, n * 16 * sizeof *part, 0, key, j * 16, n, &ahead};
            }
            for (uint32_t i = 0; i < s->n; i += s->per_group) {
                if (!stored) fetch_part(&ahead);
                mix_group(t, s, i, least(s->per_group, s->n - i), end, &v);
            }
        }
    }
    /* Head sizes that are no multiple of 16: f16 and f32. */
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t row = s->index[i];
        float *o = t->o + (size_t)row * t->head_dim;
        for (uint32_t d = n_vectors * 16; d < t->head_dim; d++) {
            for (uint32_t key = t->first[row]; key < t->last[row]; key++) {
                size_t at = (size_t)key * t->head_dim + d;
                o[d] = fmaf(
                    t->work[(size_t)i * WR_TILE + key], t->type == WR_KV_F32 ? ((const float *)t->v)[at] : wr_f32_from_f16(((const uint16_t *)t->v)[at]), o[d]);
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
    /* One step of all queries after the other: what a query's maximum decides does not hold up the exponentials of the next ones. */
    float top[WR_TILE_MAX_Q], scale = t->softcap != 0.0f ? 1.0f : t->scale;
    for (uint32_t i = 0; i < s.n && t->softcap != 0.0f; i++) cap_scores(t, s.index[i], t->work + (size_t)i * WR_TILE);
    for (uint32_t i = 0; i < s.n; i++) top[i] = largest(t, s.index[i], t->work + (size_t)i * WR_TILE, scale);
    for (uint32_t i = 0; i < s.n; i++) raise_max(t, s.index[i], top[i]);
    for (uint32_t i = 0; i < s.n; i++) probabilities(t, s.index[i], t->work + (size_t)i * WR_TILE, scale);
    outputs(t, &s, part);
}
