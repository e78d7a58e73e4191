/* SPDX-License-Identifier: Apache-2.0 */
/* Part of matmul_body.h. Panels: weight rows are unpacked (matmul_unpack.h), a chunk of k at a time, and meet the activation rows in tiles. */

/* ---- Tiles: m activation rows by v panels, over one chunk of k. ---- */

struct tile {
    const uint8_t *w;         /* the first panel */
    const float *scale, *min; /* [panel][CHUNK_BLOCKS][LANES] */
    const struct act_chunk *acts;
    const uint8_t *x; /* q8, q16 or x of the tile's first row at the chunk's start */
    size_t ldx;       /* bytes */
    float *y;         /* the accumulators */
    size_t ldy;
    unsigned lanes;      /* of y; more than there are in the panels count as so many */
    unsigned n;          /* blocks of 32, or elements of float weights */
    bool first, has_min; /* first: the accumulators start at +0 */
};

ALWAYS_INLINE void load_accumulators(const struct tile *t, const unsigned m, const unsigned v, vf acc[TILE_M][2])
{
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        UNROLL for (unsigned j = 0; j < v; j++) acc[i][j] = t->first ? vf_zero() : load_lanes(t->y + i * t->ldy + j * LANES, t->lanes - j * LANES);
    }
}

ALWAYS_INLINE void store_accumulators(const struct tile *t, const unsigned m, const unsigned v, vf acc[TILE_M][2])
{
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        UNROLL for (unsigned j = 0; j < v; j++) store_lanes(t->y + i * t->ldy + j * LANES, acc[i][j], t->lanes - j * LANES);
    }
}

/* sum[j] += 4 bytes or 2 int16 at x by w[j]. One panel: x is an operand in memory. Two: it is loaded once for both, since loads (two a cycle, as many as
 * dot products) would bind. */
ALWAYS_INLINE void dots(const bool bytes, const unsigned v, vi sum[2], const vi w[2], const void *x)
{
    if (v == 1) {
        sum[0] = bytes ? dot_u8(sum[0], w[0], x) : dot_s16(sum[0], w[0], x);
        return;
    }
    const vi all = vi_set32(load32(x));
    UNROLL for (unsigned j = 0; j < v; j++) sum[j] = bytes ? dot_u8_all(sum[j], w[j], all) : dot_s16_all(sum[j], w[j], all);
}

/* fold: as many steps as the int16 sums of a level without VNNI can hold, which depends on the bits of the weights. */
ALWAYS_INLINE void tile_integers(const struct tile *t, const enum panel panel, const unsigned group, const unsigned fold, const unsigned m, const unsigned v)
{
    const unsigned steps = panel == PANEL_U8 ? group / 4 : group / 2, part = fold < steps ? fold : steps, parts = WR_GROUP / group;
    const struct act_chunk *a = t->acts;
    vf acc[TILE_M][2];
    load_accumulators(t, m, v, acc);
    const uint8_t *x[TILE_M], *w = t->w;
    UNROLL for (unsigned i = 0; i < m; i++) x[i] = t->x + i * t->ldx;
    for (unsigned b = 0; b < t->n; b++) {
        UNROLL for (unsigned g = 0; g < parts; g++)
        {
            const unsigned at = b * parts + g;
            vi sum[TILE_M][2], total[TILE_M][2];
            UNROLL for (unsigned first = 0; first < steps; first += part)
            {
                UNROLL for (unsigned i = 0; i < m; i++)
                {
                    UNROLL for (unsigned j = 0; j < v; j++) sum[i][j] = panel == PANEL_U8 ? dot_u8_begin(&a[i].start[at]) : vi_zero();
                }
                UNROLL for (unsigned s = first; s < first + part; s++)
                {
                    vi ws[2];
                    UNROLL for (unsigned j = 0; j < v; j++) ws[j] = vi_load(w + j * PANEL_BYTES + s * sizeof(vi));
                    UNROLL for (unsigned i = 0; i < m; i++) dots(panel == PANEL_U8, v, sum[i], ws, x[i] + (g * steps + s) * 4);
                }
                UNROLL for (unsigned i = 0; i < m; i++)
                {
                    UNROLL for (unsigned j = 0; j < v; j++) total[i][j] =
                        panel != PANEL_U8 ? sum[i][j] : dot_u8_total(v, sum[i][j], first == 0 ? vi_set32(a[i].start[at]) : total[i][j]);
                }
            }
            w += steps * sizeof(vi);
            __asm__ volatile("" : : : "memory"); /* d is loaded again for each group: kept for the next one it would push accumulators to the stack */
            vf scale[2];
            UNROLL for (unsigned j = 0; j < v; j++) scale[j] = vf_load(t->scale + (j * CHUNK_BLOCKS + at) * LANES);
            UNROLL for (unsigned i = 0; i < m; i++)
            {
                const vf d = vf_set(a[i].d[b]);
                UNROLL for (unsigned j = 0; j < v; j++) acc[i][j] = vf_fma(vi_to_f32(total[i][j]), vf_mul(scale[j], d), acc[i][j]);
            }
            if (!t->has_min) continue;
            UNROLL for (unsigned j = 0; j < v; j++) scale[j] = vf_load(t->min + (j * CHUNK_BLOCKS + at) * LANES);
            UNROLL for (unsigned i = 0; i < m; i++)
            {
                const vf d = vf_set(a[i].d[b]), s = vf_set(a[i].s[at]);
                UNROLL for (unsigned j = 0; j < v; j++) acc[i][j] = vf_fma(s, vf_mul(scale[j], d), acc[i][j]);
            }
        }
        UNROLL for (unsigned i = 0; i < m; i++) x[i] += parts * steps * 4;
    }
    store_accumulators(t, m, v, acc);
}

ALWAYS_INLINE void tile_floats(const struct tile *t, const unsigned m, const unsigned v)
{
    vf acc[TILE_M][2];
    load_accumulators(t, m, v, acc);
    const float *x[TILE_M], *w = (const float *)(const void *)t->w;
    UNROLL for (unsigned i = 0; i < m; i++) x[i] = (const float *)(const void *)(t->x + i * t->ldx);
    for (unsigned k = 0; k < t->n; k++, w += LANES) {
        vf wk[2];
        UNROLL for (unsigned j = 0; j < v; j++) wk[j] = vf_load(w + j * PANEL_BYTES / sizeof *w);
        UNROLL for (unsigned i = 0; i < m; i++) { UNROLL for (unsigned j = 0; j < v; j++) acc[i][j] = vf_fma(wk[j], vf_set(x[i][k]), acc[i][j]); }
    }
    store_accumulators(t, m, v, acc);
}

/* What gcc 12 moves apart in a tile of AVX2 needs registers that are not there: without its scheduling, and with loads where the source has them, tiles take
 * up to 10 % less time (Zen 3). */
#ifdef KEEP_ORDER
#define TILE_ORDER(...) __attribute__((optimize(__VA_ARGS__)))
#else
#define TILE_ORDER(...)
#endif
#define TILE_5BITS(m, v)                                                                                                                                       \
    NEVER_INLINE void tile_u8_5bits_##m##x##v(const struct tile *t) { tile_integers(t, PANEL_U8, 32, U8_STEPS(5), m, v); }
#define TILE(m, v)                                                                                                                                             \
    NEVER_INLINE TILE_ORDER("no-schedule-insns2", "no-tree-ter") void tile_u8_##m##x##v(const struct tile *t)                                                  \
    {                                                                                                                                                          \
        tile_integers(t, PANEL_U8, 32, U8_STEPS(4), m, v);                                                                                                     \
    }                                                                                                                                                          \
    NEVER_INLINE TILE_ORDER("no-schedule-insns2", "no-tree-ter") void tile_u8_of_16_##m##x##v(const struct tile *t)                                            \
    {                                                                                                                                                          \
        tile_integers(t, PANEL_U8, 16, U8_STEPS(4), m, v);                                                                                                     \
    }                                                                                                                                                          \
    NEVER_INLINE TILE_ORDER("no-schedule-insns2") void tile_u8_6bits_of_16_##m##x##v(const struct tile *t)                                                     \
    {                                                                                                                                                          \
        tile_integers(t, PANEL_U8, 16, U8_STEPS(6), m, v);                                                                                                     \
    }                                                                                                                                                          \
    NEVER_INLINE void tile_s16_##m##x##v(const struct tile *t) { tile_integers(t, PANEL_S16, 32, 16, m, v); }                                                  \
    NEVER_INLINE void tile_s16_of_16_##m##x##v(const struct tile *t) { tile_integers(t, PANEL_S16, 16, 8, m, v); }                                             \
    NEVER_INLINE void tile_f32_##m##x##v(const struct tile *t) { tile_floats(t, m, v); }
#define TILES_(m, v, u8_5bits)                                                                                                                                 \
    {                                                                                                                                                          \
        tile_u8_##m##x##v, tile_u8_of_16_##m##x##v, tile_u8_6bits_of_16_##m##x##v, tile_s16_##m##x##v, tile_s16_of_16_##m##x##v, tile_f32_##m##x##v, u8_5bits  \
    }
#define TILES(m, v) TILES_(m, v, tile_u8_5bits_##m##x##v)

enum { TILE_U8, TILE_U8_OF_16, TILE_U8_6BITS_OF_16, TILE_S16, TILE_S16_OF_16, TILE_F32, TILE_U8_5BITS, N_TILES };

#if TILE_M == 8
TILE(8, 1)
TILE_5BITS(8, 1)
#endif
#if TILE_M >= 6
TILE(6, 1)
TILE_5BITS(6, 1)
#endif
TILE(4, 1)
TILE_5BITS(4, 1)
TILE(2, 1)
TILE_5BITS(2, 1)
TILE(1, 1)
TILE_5BITS(1, 1)
#if TILE_PANELS == 2 && LANES == 8
TILE(3, 1)
TILE(3, 2)
TILE(2, 2)
TILE(1, 2)
#define PAIR(m) TILES_(m, 2, NULL) /* sums in parts need more registers: Q5_K 0.9 of the rate of one panel, while Q6_K gains 1.05 even so */
#define BOTH(m) {m, {TILES(m, 1), PAIR(m)}},
#elif TILE_PANELS == 2
#if TILE_M >= 6
TILE(6, 2)
TILE_5BITS(6, 2)
#endif
TILE(4, 2)
TILE_5BITS(4, 2)
TILE(2, 2)
TILE_5BITS(2, 2)
TILE(1, 2)
TILE_5BITS(1, 2)
#define BOTH(m) {m, {TILES(m, 1), TILES(m, 2)}},
#else
#define BOTH(m) {m, {TILES(m, 1)}},
#endif

static const struct {
    unsigned m;
    void (*run[2][N_TILES])(const struct tile *); /* one panel; two, or NULL */
} tiles[] = {
#if TILE_M == 8
    {8, {TILES(8, 1)}}, /* two accumulators for each of 8 rows leave no register for their sums */
#endif
#if TILE_M >= 6
    BOTH(6)
#endif
#if TILE_M == 4 && LANES == 8
        {4, {TILES(4, 1)}}, /* as with 8 rows */
    {3, {TILES_(3, 1, NULL), PAIR(3)}},
#else
    BOTH(4)
#endif
    BOTH(2) BOTH(1)};

enum { N_SHAPES = sizeof tiles / sizeof tiles[0] };

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
    const float *sums = p->group < WR_GROUP ? act->s16 + at / 16 : act->s + at / WR_GROUP, *d = act->d + at / WR_GROUP;
    const unsigned n_groups = n / p->group, n_blocks = n / WR_GROUP;
    for (unsigned b = 0; b < n_groups; b += LANES) {
        const vf s = load_lanes(sums + b, n_groups - b);
        vi_store(out->start + b, vi_from_f32(vf_mul(vf_set(-(float)p->format->offset), s))); /* integers below 2^24: exact */
        vf_store(out->s + b, s);
    }
    for (unsigned b = 0; b < n_blocks; b += LANES) vf_store(out->d + b, load_lanes(d + b, n_blocks - b));
    if (p->panel != PANEL_S16 || act->precise) return;
    for (unsigned j = 0; j < n; j++) x16[j] = act->q8[at + j];
}

/* What activation row i, row j of its block, and those behind it bring to a tile. */
static void set_activations(const struct product *p, struct tile *t, uint32_t i, uint32_t j, size_t k0)
{
    const struct wr_act *act = p->act;
    const size_t at = (size_t)i * act->k + k0;
    t->acts = p->kept ? p->kept + k0 / p->chunk * act->m + i : &p->work->acts[j];
    if (p->panel == PANEL_F32) {
        t->x = (const uint8_t *)(act->x + i * act->ldx + k0);
        t->ldx = act->ldx * sizeof(float);
    } else if (p->panel == PANEL_U8) {
        t->x = (const uint8_t *)(act->q8 + at);
        t->ldx = act->k;
    } else if (act->precise || p->kept) {
        t->x = (const uint8_t *)((act->precise ? act->q16 : p->x16) + at);
        t->ldx = act->k * sizeof(int16_t);
    } else {
        t->x = (const uint8_t *)p->work->x16[j];
        t->ldx = sizeof p->work->x16[0];
    }
}

/* Activation rows [i, end) of the chunk: they lie far apart, often by a power of 2, and are in no near cache. */
static void fetch_activations(const struct product *p, uint32_t i, uint32_t end, size_t k0, unsigned n)
{
    const struct wr_act *act = p->act;
    const size_t size = p->panel == PANEL_F32 ? sizeof(float) : act->precise ? sizeof(int16_t) : 1;
    const char *x = p->panel == PANEL_F32 ? (const char *)act->x : act->precise ? (const char *)act->q16 : (const char *)act->q8;
    for (; i < end && i < act->m; i++) {
        const char *row = x + (i * (p->panel == PANEL_F32 ? act->ldx : act->k) + k0) * size;
        for (size_t at = 0; at < n * size; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
    }
}

/* Of the next tile. After the last one this points past the end, where nothing is read. */
ALWAYS_INLINE void fetch_accumulators(const float *y, size_t ldy)
{
    UNROLL for (size_t i = 0; i < TILE_M - 1; i++) _mm_prefetch((const char *)(y + i * ldy), _MM_HINT_T0);
}

/* All activation rows against the panels of n_rows weight rows, over the chunk of elements [k0, k0 + n). */
static void run_tiles(const struct product *p, size_t k0, unsigned n, unsigned n_rows, float *y, size_t ldy)
{
    const struct wr_act *act = p->act;
    struct work *work = p->work;
    const unsigned tile = tile_of(p);
    const bool pairs = tiles[N_SHAPES - 1].run[1][tile] != NULL && n_rows > LANES;
    unsigned widest = 0;
    while (tiles[widest].run[pairs][tile] == NULL) widest++;
    const uint32_t tile_m = tiles[widest].m, most = pairs ? BLOCK_M / tile_m * tile_m : tile_m, share = most * 2 / GROUP_PANELS;
    for (uint32_t first = 0; first < act->m; first += most) {
        const uint32_t end = act->m - first < most ? act->m : first + most;
        for (uint32_t i = first; i < end && p->panel != PANEL_F32 && !p->kept; i++) prepare(p, i, k0, n, &work->acts[i - first], work->x16[i - first]);
        uint32_t ahead = end; /* the next block is fetched in shares, one with each two panels */
        for (unsigned r = 0, wide; r < n_rows; r += wide * LANES) {
            const unsigned panel = r / LANES;
            wide = pairs && n_rows - r > LANES ? 2 : 1;
            if (FETCH_NEXT && pairs) {
                fetch_activations(p, ahead, ahead + share, k0, n);
                ahead += share;
            }
            struct tile t = {.w = work->panels[panel], .scale = work->scale[panel][0], .min = work->min[panel][0], .lanes = n_rows - r, .ldy = ldy};
            t.n = p->panel == PANEL_F32 ? n : n / WR_GROUP;
            t.first = k0 == 0;
            t.has_min = p->quant->has_min;
            unsigned kind = widest;
            for (uint32_t i = first; i < end; i += tiles[kind].m) {
                while (tiles[kind].m > end - i || tiles[kind].run[pairs][tile] == NULL) kind++;
                set_activations(p, &t, i, i - first, k0);
                t.y = y + i * ldy + r;
                if (FETCH_NEXT && pairs) fetch_accumulators(i + tiles[kind].m < end ? t.y + tiles[kind].m * ldy : y + first * ldy + r + wide * LANES, ldy);
                tiles[kind].run[wide - 1][tile](&t);
            }
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
