/* SPDX-License-Identifier: Apache-2.0 */
/* Part of matmul_body.h. Panels: weight rows are unpacked (matmul_unpack.h), a chunk of k at a time, and meet the activation rows in tiles. */

/* ---- Tiles: m activation rows by one panel, over one chunk of k. ---- */

struct tile {
    const uint8_t *w;         /* the panel */
    const float *scale, *min; /* [block][LANES] */
    const struct act_chunk *acts;
    const uint8_t *x; /* q8, q16 or x of the tile's first row at the chunk's start */
    size_t ldx;       /* bytes */
    float *y;         /* the accumulators */
    size_t ldy;
    unsigned lanes;      /* of y; more than LANES counts as LANES */
    unsigned n;          /* groups, or elements of float weights */
    bool first, has_min; /* first: the accumulators start at +0 */
};

ALWAYS_INLINE void load_accumulators(const struct tile *t, const unsigned m, vf acc[TILE_M])
{
    UNROLL for (unsigned i = 0; i < m; i++) acc[i] = t->first ? vf_zero() : load_lanes(t->y + i * t->ldy, t->lanes);
}

ALWAYS_INLINE void store_accumulators(const struct tile *t, const unsigned m, const vf acc[TILE_M])
{
    UNROLL for (unsigned i = 0; i < m; i++) store_lanes(t->y + i * t->ldy, acc[i], t->lanes);
}

/* fold: as many steps as the int16 sums of a level without VNNI can hold, which depends on the bits of the weights. */
ALWAYS_INLINE void tile_integers(const struct tile *t, const enum panel panel, const unsigned group, const unsigned fold, const unsigned m)
{
    const unsigned steps = panel == PANEL_U8 ? group / 4 : group / 2, part = fold < steps ? fold : steps;
    const struct act_chunk *a = t->acts;
    vf acc[TILE_M];
    load_accumulators(t, m, acc);
    const uint8_t *x[TILE_M], *w = t->w;
    UNROLL for (unsigned i = 0; i < m; i++) x[i] = t->x + i * t->ldx;
    for (unsigned b = 0; b < t->n; b++, w += steps * sizeof(vi)) {
        vi sum[TILE_M], total[TILE_M];
        UNROLL for (unsigned first = 0; first < steps; first += part)
        {
            UNROLL for (unsigned i = 0; i < m; i++) sum[i] = panel == PANEL_U8 ? dot_u8_begin(&a[i].start[b]) : vi_zero();
            UNROLL for (unsigned s = first; s < first + part; s++)
            {
                const vi ws = vi_load(w + s * sizeof(vi));
                UNROLL for (unsigned i = 0; i < m; i++) sum[i] = panel == PANEL_U8 ? dot_u8(sum[i], ws, x[i] + s * 4) : dot_s16(sum[i], ws, x[i] + s * 4);
            }
            UNROLL for (unsigned i = 0; i < m; i++) total[i] = panel != PANEL_U8 ? sum[i] : dot_u8_end(sum[i], first == 0 ? vi_set32(a[i].start[b]) : total[i]);
        }
        UNROLL for (unsigned i = 0; i < m; i++) x[i] += steps * 4;
        const vf scale = vf_load(t->scale + b * LANES);
        UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_fma(vi_to_f32(total[i]), vf_mul(scale, vf_set(a[i].d[b])), acc[i]);
        if (!t->has_min) continue;
        const vf min = vf_load(t->min + b * LANES);
        UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_fma(vf_set(a[i].s[b]), vf_mul(min, vf_set(a[i].d[b])), acc[i]);
    }
    store_accumulators(t, m, acc);
}

ALWAYS_INLINE void tile_floats(const struct tile *t, const unsigned m)
{
    vf acc[TILE_M];
    load_accumulators(t, m, acc);
    const float *x[TILE_M], *w = (const float *)(const void *)t->w;
    UNROLL for (unsigned i = 0; i < m; i++) x[i] = (const float *)(const void *)(t->x + i * t->ldx);
    for (unsigned k = 0; k < t->n; k++, w += LANES) {
        const vf wk = vf_load(w);
        UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_fma(wk, vf_set(x[i][k]), acc[i]);
    }
    store_accumulators(t, m, acc);
}

#define TILE(m)                                                                                                                                                \
    NEVER_INLINE void tile_u8_##m(const struct tile *t) { tile_integers(t, PANEL_U8, 32, U8_STEPS(4), m); }                                                    \
    NEVER_INLINE void tile_u8_5bits_##m(const struct tile *t) { tile_integers(t, PANEL_U8, 32, U8_STEPS(5), m); }                                              \
    NEVER_INLINE void tile_s16_##m(const struct tile *t) { tile_integers(t, PANEL_S16, 32, 16, m); }                                                           \
    NEVER_INLINE void tile_u8_of_16_##m(const struct tile *t) { tile_integers(t, PANEL_U8, 16, U8_STEPS(4), m); }                                              \
    NEVER_INLINE void tile_u8_6bits_of_16_##m(const struct tile *t) { tile_integers(t, PANEL_U8, 16, U8_STEPS(6), m); }                                        \
    NEVER_INLINE void tile_s16_of_16_##m(const struct tile *t) { tile_integers(t, PANEL_S16, 16, 8, m); }                                                      \
    NEVER_INLINE void tile_f32_##m(const struct tile *t) { tile_floats(t, m); }
#define TILE_ROW(m)                                                                                                                                            \
    {                                                                                                                                                          \
        m, { tile_u8_##m, tile_u8_5bits_##m, tile_s16_##m, tile_u8_of_16_##m, tile_u8_6bits_of_16_##m, tile_s16_of_16_##m, tile_f32_##m }                      \
    }

enum { TILE_U8, TILE_U8_5BITS, TILE_S16, TILE_U8_OF_16, TILE_U8_6BITS_OF_16, TILE_S16_OF_16, TILE_F32, N_TILES };

TILE(1)
TILE(2)
TILE(4)
#if TILE_M > 4
TILE(8)
#endif

static const struct {
    unsigned m;
    void (*run[N_TILES])(const struct tile *);
} tiles[] = {
#if TILE_M > 4
    TILE_ROW(8),
#endif
    TILE_ROW(4),
    TILE_ROW(2),
    TILE_ROW(1),
};

/* Weights + offset of the widest format fit the first tile of a kind that has the bits for them. */
static unsigned tile_of(const struct product *p)
{
    if (p->panel == PANEL_F32) return TILE_F32;
    if (p->group == 16) return p->panel == PANEL_S16 ? TILE_S16_OF_16 : p->format->bits <= 4 ? TILE_U8_OF_16 : TILE_U8_6BITS_OF_16;
    return p->panel == PANEL_S16 ? TILE_S16 : p->format->bits <= 4 ? TILE_U8 : TILE_U8_5BITS;
}

/* What activation row i brings to the groups in elements [k0, k0 + n). x16: their widened q8, where that is needed. */
static void prepare(const struct product *p, uint32_t i, size_t k0, unsigned n, struct act_chunk *out, int16_t *x16)
{
    const struct wr_act *act = p->act;
    const size_t at = i * (size_t)act->k + k0;
    const bool halves = p->group < WR_GROUP;
    const float *sums = halves ? act->s16 + at / 16 : act->s + at / WR_GROUP, *d = act->d + at / WR_GROUP;
    const unsigned n_groups = n / p->group;
    for (unsigned b = 0; b < n_groups; b += LANES) {
        const vf s = load_lanes(sums + b, n_groups - b);
        vi_store(out->start + b, vi_from_f32(vf_mul(vf_set(-(float)p->format->offset), s))); /* integers below 2^24: exact */
        vf_store(out->s + b, s);
        if (!halves) vf_store(out->d + b, load_lanes(d + b, n_groups - b));
    }
    for (unsigned b = 0; b < n_groups && halves; b++) out->d[b] = d[b / 2];
    if (p->panel != PANEL_S16 || act->precise) return;
    for (unsigned j = 0; j < n; j++) x16[j] = act->q8[at + j];
}

/* All activation rows against the panels of n_rows weight rows, over the chunk of elements [k0, k0 + n). */
static void run_tiles(const struct product *p, size_t k0, unsigned n, unsigned n_rows, float *y, size_t ldy)
{
    const struct wr_act *act = p->act;
    struct work *work = p->work;
    const unsigned tile = tile_of(p);
    unsigned kind = 0;
    for (uint32_t i = 0; i < act->m; i += tiles[kind].m) {
        while (tiles[kind].m > act->m - i) kind++;
        struct tile t = {.n = n, .ldy = ldy, .first = k0 == 0, .has_min = p->quant->has_min};
        if (p->panel == PANEL_F32) {
            t.x = (const uint8_t *)(act->x + i * act->ldx + k0);
            t.ldx = act->ldx * sizeof(float);
        } else {
            t.n = n / p->group;
            if (p->kept) {
                t.acts = p->kept + k0 / p->chunk * act->m + i;
            } else {
                for (unsigned j = 0; j < tiles[kind].m; j++) prepare(p, i + j, k0, n, &work->acts[j], work->x16[j]);
                t.acts = work->acts;
            }
            const size_t at = (size_t)i * act->k + k0;
            if (p->panel == PANEL_U8) {
                t.x = (const uint8_t *)(act->q8 + at);
                t.ldx = act->k;
            } else if (act->precise || p->kept) {
                t.x = (const uint8_t *)((act->precise ? act->q16 : p->x16) + at);
                t.ldx = act->k * sizeof(int16_t);
            } else {
                t.x = (const uint8_t *)work->x16;
                t.ldx = sizeof work->x16[0];
            }
        }
        for (unsigned r = 0; r < n_rows; r += LANES) {
            const unsigned panel = r / LANES;
            t.w = work->panels[panel];
            t.scale = work->scale[panel][0];
            t.min = work->min[panel][0];
            t.lanes = n_rows - r;
            t.y = y + i * ldy + r;
            tiles[kind].run[tile](&t);
        }
    }
}

/* ---- Few and many activation rows. ---- */

/* Prepares for "few" what does not depend on the weights. False if it does not fit. */
static bool keep(struct product *p)
{
    const size_t m = p->act->m, k = p->act->k, n_chunks = (k + p->chunk - 1) / p->chunk, size = sizeof p->work->kept;
    const size_t acts = p->panel == PANEL_F32 ? 0 : n_chunks * sizeof(struct act_chunk); /* of one activation row */
    const size_t x16 = p->panel == PANEL_S16 && !p->act->precise ? k * sizeof(int16_t) : 0;
    if (m > FEW_M || m > size / (acts + x16 + LANES * sizeof(float))) return false;
    p->kept = (struct act_chunk *)(void *)p->work->kept;
    p->acc = (float *)(void *)(p->work->kept + m * acts);
    p->x16 = (int16_t *)(void *)(p->acc + m * LANES);
    if (acts == 0) return true;
    for (size_t c = 0; c < n_chunks; c++) {
        const size_t k0 = c * p->chunk, n = k - k0 < p->chunk ? k - k0 : p->chunk;
        for (uint32_t i = 0; i < m; i++) prepare(p, i, k0, (unsigned)n, &p->kept[c * m + i], p->x16 + i * k + k0);
    }
    return true;
}

static void run_few(const struct product *p, const struct panel_rows *rows, float *y, size_t ldy, size_t y_step)
{
    const size_t chunk_bytes = p->chunk / p->quant->block_elems * p->quant->block_bytes;
    struct panel_rows at = *rows;
    for (size_t k = 0; k < p->act->k; k += p->chunk, at.left -= chunk_bytes) {
        const unsigned n = p->act->k - k < p->chunk ? (unsigned)(p->act->k - k) : p->chunk;
        unpack_panel(p, &at, k, n, 0);
        run_tiles(p, k, n, LANES, p->acc, LANES);
    }
    for (uint32_t i = 0; i < p->act->m; i++) {
        for (unsigned r = 0; r < rows->lanes; r++) y[i * ldy + r * y_step] = p->acc[i * LANES + r];
    }
}

static void many(const struct product *p, const uint8_t *rows, size_t stride, uint32_t n_rows, float *y, size_t ldy)
{
    const ptrdiff_t chunk_bytes = (ptrdiff_t)(p->chunk / p->quant->block_elems * p->quant->block_bytes);
    for (uint32_t r = 0; r < n_rows; r += GROUP_ROWS) {
        const unsigned n_group = n_rows - r < GROUP_ROWS ? n_rows - r : GROUP_ROWS;
        for (size_t k = 0; k < p->act->k; k += p->chunk) {
            const unsigned n = p->act->k - k < p->chunk ? (unsigned)(p->act->k - k) : p->chunk;
            for (unsigned i = 0; i < n_group; i += LANES) {
                struct panel_rows panel = {.first = rows + (r + i) * stride, .stride = stride, .lanes = n_group - i < LANES ? n_group - i : LANES};
                /* Next come the rows of the next panel, or those of the first one in the next chunk. */
                panel.far = i + LANES < n_group ? (ptrdiff_t)(LANES * stride) : chunk_bytes - (ptrdiff_t)(i * stride);
                unpack_panel(p, &panel, k, n, i / LANES);
            }
            run_tiles(p, k, n, n_group, y + r, ldy);
        }
    }
}
