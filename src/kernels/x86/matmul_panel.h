/* SPDX-License-Identifier: Apache-2.0 */
/* Part of matmul_body.h. Panels: weight rows are unpacked, a chunk of k at a time, and meet the activation rows in tiles. */

/* [4 dwords of 4 rows] to [4 rows of 4 dwords] within each 128-bit part. */
ALWAYS_INLINE void transpose4(vi v[4])
{
    const vi a = vi_low32(v[0], v[1]), b = vi_high32(v[0], v[1]), c = vi_low32(v[2], v[3]), d = vi_high32(v[2], v[3]);
    v[0] = vi_low64(a, c);
    v[1] = vi_high64(a, c);
    v[2] = vi_low64(b, d);
    v[3] = vi_high64(b, d);
}

/* ---- Unpacking: a chunk of up to LANES rows into a panel. ---- */

/* A block of each row as u8 [8][LANES][4], weight + offset. */
ALWAYS_INLINE void block_in_lanes(const enum layout layout, const struct rows *w, vi v[8])
{
    const size_t head = layout_head_bytes(layout);
    UNROLL for (int j = 0; j < 4; j++) v[j] = vi_row_pieces(w, head, j);
    transpose4(v);
    if (layout == FORMAT_Q8_0) {
        UNROLL for (int j = 0; j < 4; j++) v[4 + j] = vi_row_pieces(w, head + 16, j);
        transpose4(v + 4);
        UNROLL for (int j = 0; j < 8; j++) v[j] = vi_xor(v[j], vi_set8(-128));
    } else {
        UNROLL for (int j = 0; j < 4; j++)
        {
            v[4 + j] = vi_and(vi_right4(v[j]), vi_set8(15));
            v[j] = vi_and(v[j], vi_set8(15));
        }
    }
}

/* What block_in_lanes gives, to the panel. */
ALWAYS_INLINE void store_block(const struct product *p, uint8_t *panel, unsigned b, const vi v[8])
{
    if (p->panel == PANEL_U8) {
        UNROLL for (int j = 0; j < 8; j++) vi_store(panel + (b * 8 + j) * sizeof(vi), v[j]);
        return;
    }
    /* Bytes 0, 1 and 2, 3 of each dword as two u16. */
    const vi low = vi_copies16((const int8_t[16]){0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1});
    const vi high = vi_copies16((const int8_t[16]){2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1});
    const vi offset = vi_set16((int16_t)p->offset);
    UNROLL for (int j = 0; j < 8; j++)
    {
        vi_store(panel + (b * 16 + 2 * j) * sizeof(vi), vi_sub16(vi_shuffle8(v[j], low), offset));
        vi_store(panel + (b * 16 + 2 * j + 1) * sizeof(vi), vi_sub16(vi_shuffle8(v[j], high), offset));
    }
}

/* n blocks of LANES rows. */
ALWAYS_INLINE void unpack(const enum layout layout, const struct product *p, const struct panel_rows *rows, unsigned n, unsigned panel)
{
    struct work *work = p->work;
    struct rows w = rows_at(rows->first, rows->stride);
    for (unsigned b = 0; b < n; b++, rows_move(&w, (ptrdiff_t)layout_block_bytes(layout))) {
        if (layout == FORMAT_Q8_0 || b % 2 == 0) prefetch_rows(w, rows, b * layout_block_bytes(layout));
        copy_halves(work->halves[0][b], &w, 0);
        if (layout == FORMAT_Q4_1) copy_halves(work->halves[1][b], &w, 2);
        vi v[8];
        block_in_lanes(layout, &w, v);
        store_block(p, work->panels[panel], b, v);
    }
    for (unsigned b = 0; b < n; b++) {
        vf_store(work->scale[panel][b], vf_from_f16(work->halves[0][b]));
        if (layout == FORMAT_Q4_1) vf_store(work->min[panel][b], vf_from_f16(work->halves[1][b]));
    }
}

NEVER_INLINE void unpack_blocks(const struct product *p, const struct panel_rows *rows, unsigned n, unsigned panel)
{
    if (p->layout == FORMAT_Q4_0)
        unpack(FORMAT_Q4_0, p, rows, n, panel);
    else if (p->layout == FORMAT_Q4_1)
        unpack(FORMAT_Q4_1, p, rows, n, panel);
    else
        unpack(FORMAT_Q8_0, p, rows, n, panel);
}

/* 32 elements at a time, [b0, b0 + n) of them, of rows of any format. */
NEVER_INLINE void unpack_decoded(const struct product *p, const struct panel_rows *rows, size_t b0, unsigned n, unsigned panel)
{
    _Alignas(64) uint8_t block[8][LANES][4] = {{{0}}};
    const unsigned parts = WR_GROUP / p->group;
    for (unsigned b = 0; b < n; b++) {
        for (unsigned r = 0; r < rows->lanes; r++) {
            int8_t q[2 * WR_GROUP];
            for (unsigned h = 0; h < parts; h++) {
                const unsigned at = b * parts + h;
                p->quant->decode_group(
                    rows->first + r * rows->stride, b0 * parts + at, q + h * p->group, &p->work->scale[panel][at][r], &p->work->min[panel][at][r]);
            }
            for (int i = 0; i < WR_GROUP; i++) block[i / 4][r][i % 4] = (uint8_t)(q[i] + 128);
        }
        vi v[8];
        for (int j = 0; j < 8; j++) v[j] = vi_load(block[j]);
        store_block(p, p->work->panels[panel], b, v);
    }
}

/* Elements [k0, k0 + n) of float rows; the panel is filled up to a multiple of 4 of k with what the work space held. */
NEVER_INLINE void unpack_floats(const struct product *p, const struct panel_rows *rows, size_t k0, unsigned n, unsigned panel)
{
    const struct wr_quant *quant = p->quant;
    const uint8_t *first = rows->first + k0 / quant->block_elems * quant->block_bytes;
    struct rows w = rows_at(first, rows->stride);
    if (quant->id != WR_TYPE_F32 || rows->lanes < LANES || n % 4 != 0) {
        for (unsigned r = 0; r < rows->lanes; r++) {
            const uint8_t *in = first + r * rows->stride;
            float *out = p->work->rows[r];
            unsigned i = 0;
            if (quant->id == WR_TYPE_F16) {
                for (; i + LANES <= n; i += LANES) vf_store(out + i, vf_from_f16(in + i * 2));
            } else if (quant->id == WR_TYPE_BF16) {
                for (; i + LANES <= n; i += LANES) vf_store(out + i, vf_from_bf16(in + i * 2));
            }
            quant->decode_f32(in + i / quant->block_elems * quant->block_bytes, out + i, n - i);
        }
        w = rows_at((const uint8_t *)p->work->rows, sizeof p->work->rows[0]);
    }
    for (unsigned k = 0; k < n; k += 4, rows_move(&w, 4 * sizeof(float))) {
        vi v[4];
        UNROLL for (int j = 0; j < 4; j++) v[j] = vi_row_pieces(&w, 0, j);
        transpose4(v);
        UNROLL for (unsigned j = 0; j < 4; j++) vi_store(p->work->panels[panel] + (k + j) * sizeof(vi), v[j]);
    }
}

/* Elements [k0, k0 + n) of the rows into a panel. rows->near, left and far hold for position k0. */
static void unpack_panel(const struct product *p, const struct panel_rows *rows, size_t k0, unsigned n, unsigned panel)
{
    if (p->panel == PANEL_F32) {
        unpack_floats(p, rows, k0, n, panel);
        return;
    }
    const unsigned n_blocks = n / WR_GROUP;
    if (p->layout == FORMAT_OTHER) {
        unpack_decoded(p, rows, k0 / WR_GROUP, n_blocks, panel);
        return;
    }
    struct panel_rows from = *rows;
    from.first += k0 / WR_GROUP * p->quant->block_bytes;
    if (rows->lanes < LANES) {
        for (unsigned i = 0; i < rows->lanes; i++) memcpy(p->work->last_rows[i], from.first + i * rows->stride, (size_t)n_blocks * p->quant->block_bytes);
        from = (struct panel_rows){.first = p->work->last_rows[0], .stride = sizeof p->work->last_rows[0], .lanes = LANES};
    }
    unpack_blocks(p, &from, n_blocks, panel);
}

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

ALWAYS_INLINE void tile_integers(const struct tile *t, const enum panel panel, const unsigned group, const unsigned m)
{
    const unsigned steps = panel == PANEL_U8 ? group / 4 : group / 2;
    const struct act_chunk *a = t->acts;
    vf acc[TILE_M];
    load_accumulators(t, m, acc);
    const uint8_t *x[TILE_M], *w = t->w;
    UNROLL for (unsigned i = 0; i < m; i++) x[i] = t->x + i * t->ldx;
    for (unsigned b = 0; b < t->n; b++, w += steps * sizeof(vi)) {
        vi sum[TILE_M];
        UNROLL for (unsigned i = 0; i < m; i++) sum[i] = panel == PANEL_U8 ? dot_u8_begin(&a[i].start[b]) : vi_zero();
        UNROLL for (unsigned s = 0; s < steps; s++)
        {
            const vi ws = vi_load(w + s * sizeof(vi));
            UNROLL for (unsigned i = 0; i < m; i++) sum[i] = panel == PANEL_U8 ? dot_u8(sum[i], ws, x[i] + s * 4) : dot_s16(sum[i], ws, x[i] + s * 4);
        }
        UNROLL for (unsigned i = 0; i < m; i++) x[i] += steps * 4;
        const vf scale = vf_load(t->scale + b * LANES);
        UNROLL for (unsigned i = 0; i < m; i++)
        {
            const vi exact = panel == PANEL_U8 ? dot_u8_end(sum[i], &a[i].start[b]) : sum[i];
            acc[i] = vf_fma(vi_to_f32(exact), vf_mul(scale, vf_set(a[i].d[b])), acc[i]);
        }
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
    NEVER_INLINE void tile_u8_##m(const struct tile *t) { tile_integers(t, PANEL_U8, WR_GROUP, m); }                                                           \
    NEVER_INLINE void tile_s16_##m(const struct tile *t) { tile_integers(t, PANEL_S16, WR_GROUP, m); }                                                         \
    NEVER_INLINE void tile_u8_halves_##m(const struct tile *t) { tile_integers(t, PANEL_U8, WR_GROUP / 2, m); }                                                \
    NEVER_INLINE void tile_s16_halves_##m(const struct tile *t) { tile_integers(t, PANEL_S16, WR_GROUP / 2, m); }                                              \
    NEVER_INLINE void tile_f32_##m(const struct tile *t) { tile_floats(t, m); }
#define TILE_ROW(m)                                                                                                                                            \
    {                                                                                                                                                          \
        m,                                                                                                                                                     \
        {                                                                                                                                                      \
            {tile_u8_##m, tile_s16_##m, tile_f32_##m}, { tile_u8_halves_##m, tile_s16_halves_##m }                                                             \
        }                                                                                                                                                      \
    }

TILE(1)
TILE(2)
TILE(4)
#if TILE_M > 4
TILE(8)
#endif

static const struct {
    unsigned m;
    void (*run[2][3])(const struct tile *); /* groups of 32, of 16; by enum panel */
} tiles[] = {
#if TILE_M > 4
    TILE_ROW(8),
#endif
    TILE_ROW(4),
    TILE_ROW(2),
    TILE_ROW(1),
};

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
        vi_store(out->start + b, vi_from_f32(vf_mul(vf_set(-(float)p->offset), s))); /* integers below 2^24: exact */
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
            tiles[kind].run[p->group == WR_GROUP / 2][p->panel](&t);
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
