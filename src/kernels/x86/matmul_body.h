/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product in lanes: a vector lane is a weight row and holds that row's f32 accumulator, so rules e and f give the
 * same bits as ref/matmul.c for any tile. Included once by each level, after its vectors (matmul_v256.h, matmul_v512.h).
 *
 * Three ways, by the number of activation rows m:
 * - up to DIRECT_M, known formats: integer sums straight from the file's blocks;
 * - few: LANES weight rows at a time are unpacked, a chunk of k at a time, into a panel that stays in the first-level
 *   cache and meets all activation rows there; what these bring to each block is prepared once a call;
 * - many: a chunk of GROUP_ROWS weight rows is unpacked, and each tile of TILE_M activation rows meets all its panels.
 */
#include "kernels/matmul.h"

enum {
    GROUP_ROWS = 128,
    GROUP_PANELS = GROUP_ROWS / LANES,
    CHUNK_BYTES = 1024,                    /* of a row in a panel: a panel is 16 KiB (AVX2: 8), a group 128 KiB, for the second-level cache */
    CHUNK_BLOCKS = CHUNK_BYTES / WR_GROUP, /* of bytes; half as many of int16 */
    CHUNK_FLOATS = CHUNK_BYTES / 4,
    PANEL_BYTES = CHUNK_BYTES * LANES,
    DIRECT_M = 4,
    FEW_M = 64,
    HALVES_AHEAD = 8,     /* a power of two */
    MAX_BLOCK_BYTES = 34, /* of the formats that are read in lanes */
};

enum layout { FORMAT_OTHER, FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q8_0 }; /* blocks that are read in lanes; others go through decode_group */
enum panel { PANEL_U8, PANEL_S16, PANEL_F32 };

struct act_chunk {                            /* what an activation row brings to each block of a chunk */
    _Alignas(64) int32_t start[CHUNK_BLOCKS]; /* -offset * s */
    float d[CHUNK_BLOCKS], s[CHUNK_BLOCKS];
};

/* Panels: u8 [block][8][LANES][4] (weight + offset), s16 [block][16][LANES][2], f32 [k][LANES]. */
struct work {
    union {
        _Alignas(64) uint8_t panels[GROUP_PANELS][PANEL_BYTES];
        struct {
            uint8_t first_panel[PANEL_BYTES];
            _Alignas(64) uint8_t kept[(GROUP_PANELS - 1) * PANEL_BYTES]; /* few: see keep() */
        };
    };
    union {
        struct {
            float scale[GROUP_PANELS][CHUNK_BLOCKS][LANES], min[GROUP_PANELS][CHUNK_BLOCKS][LANES];
        };
        float rows[LANES][CHUNK_FLOATS]; /* float weights on their way into a panel */
    };
    int16_t x16[TILE_M][CHUNK_BYTES / 2]; /* q8 widened */
    struct act_chunk acts[TILE_M];
    uint16_t halves[2][CHUNK_BLOCKS][LANES];                  /* scales and mins of a panel */
    uint8_t last_rows[LANES][CHUNK_BLOCKS * MAX_BLOCK_BYTES]; /* a panel of fewer rows than LANES */
};
_Static_assert(sizeof(struct work) <= WR_MATMUL_WORK_BYTES, "panels of a group fit the work space");

struct product {
    const struct wr_quant *quant;
    const struct wr_act *act;
    struct work *work;
    size_t row_bytes;
    enum layout layout;
    enum panel panel;
    int offset;             /* weight + offset is what a u8 panel holds */
    unsigned chunk;         /* elements */
    struct act_chunk *kept; /* few: [chunk][m], else NULL */
    int16_t *x16;           /* few: [m][k], q8 widened, where that is needed */
    float *acc;             /* few: [m][LANES] */
};

/* The weight rows of a panel: LANES, or fewer at the end of a matrix; the lanes of the missing ones hold anything and are not stored. */
struct panel_rows {
    const uint8_t *first;
    size_t stride; /* from lane to lane, bytes */
    unsigned lanes;
    size_t near, left; /* fetch ahead what lies `near` bytes on, as long as that is less than `left` from the start; ... */
    ptrdiff_t far;     /* ... from there on what lies `far` bytes on */
};

ALWAYS_INLINE vf load_lanes(const float *y, unsigned n) { return n >= LANES ? vf_load(y) : vf_load_first(y, n); }
ALWAYS_INLINE void store_lanes(float *y, vf v, unsigned n)
{
    if (n >= LANES)
        vf_store(y, v);
    else
        vf_store_first(y, v, n);
}

/* w: the rows, `at` bytes from their start. */
ALWAYS_INLINE void prefetch_rows(struct rows w, const struct panel_rows *rows, size_t at)
{
    rows_move(&w, at + rows->near < rows->left ? (ptrdiff_t)rows->near : rows->far);
    UNROLL for (int r = 0; r < LANES; r++) _mm_prefetch((const char *)row_at(&w, r), _MM_HINT_T1);
}

/* A half of each row, by scalar moves, which leave the vector ports alone: 16 vpinsrw take as long as all dot products of a block. The vector load of
 * `out` must come a while later, since it cannot be forwarded from these stores. */
ALWAYS_INLINE void copy_halves(uint16_t out[LANES], const struct rows *w, size_t offset)
{
    UNROLL for (int r = 0; r < LANES; r++)
    {
        uint16_t h;
        memcpy(&h, row_at(w, r) + offset, 2);
        __asm__("movw %1, %0" : "=m"(out[r]) : "r"(h)); /* a plain store becomes vpinsrw after all: gcc 12 joins them */
    }
}

/* [4 dwords of 4 rows] to [4 rows of 4 dwords] within each 128-bit part. */
ALWAYS_INLINE void transpose4(vi v[4])
{
    const vi a = vi_low32(v[0], v[1]), b = vi_high32(v[0], v[1]), c = vi_low32(v[2], v[3]), d = vi_high32(v[2], v[3]);
    v[0] = vi_low64(a, c);
    v[1] = vi_high64(a, c);
    v[2] = vi_low64(b, d);
    v[3] = vi_high64(b, d);
}

/* Adds the four dwords of each row in p[0..3] (rows as in vi_row_pieces): the sums come out in row order. */
ALWAYS_INLINE vi fold4(const vi p[4])
{
    const vi ab = vi_add32(vi_low32(p[0], p[1]), vi_high32(p[0], p[1])), cd = vi_add32(vi_low32(p[2], p[3]), vi_high32(p[2], p[3]));
    return vi_add32(vi_low64(ab, cd), vi_high64(ab, cd));
}

ALWAYS_INLINE size_t layout_block_bytes(const enum layout layout) { return layout == FORMAT_Q8_0 ? 34 : layout == FORMAT_Q4_1 ? 20 : 18; }
ALWAYS_INLINE size_t layout_head_bytes(const enum layout layout) { return layout == FORMAT_Q4_1 ? 4 : 2; }

/* ---- Direct: m activation rows, LANES weight rows, no panel. ---- */

/* Bytes that are fetched ahead in each row: 16 rows give 12 KiB, above what latency times bandwidth asks for. */
#define AHEAD 768

ALWAYS_INLINE void direct(
    const enum layout layout, const unsigned m, const struct wr_act *act, const struct panel_rows *rows, float *y, size_t ldy, size_t y_step)
{
    const size_t n_blocks = act->k / WR_GROUP, block_bytes = layout_block_bytes(layout), head = layout_head_bytes(layout);
    const int offset = layout == FORMAT_Q8_0 ? DIRECT_OFFSET : layout == FORMAT_Q4_0 ? 8 : 0;
    _Alignas(64) uint16_t scales[HALVES_AHEAD][LANES], mins[HALVES_AHEAD][LANES];
    struct rows w = rows_at(rows->first, rows->stride);
    for (size_t b = 0; b < HALVES_AHEAD && b < n_blocks; b++) {
        copy_halves(scales[b], &w, b * block_bytes);
        if (layout == FORMAT_Q4_1) copy_halves(mins[b], &w, b * block_bytes + 2);
    }
    vf acc[DIRECT_M];
    UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_zero();
    for (size_t b = 0; b < n_blocks; b++, rows_move(&w, (ptrdiff_t)block_bytes)) {
        if (layout == FORMAT_Q8_0 || b % 2 == 0) prefetch_rows(w, rows, b * block_bytes);
        const vf scale = vf_from_f16(scales[b % HALVES_AHEAD]), min = layout == FORMAT_Q4_1 ? vf_from_f16(mins[b % HALVES_AHEAD]) : vf_zero();
        if (b + HALVES_AHEAD < n_blocks) {
            copy_halves(scales[b % HALVES_AHEAD], &w, HALVES_AHEAD * block_bytes);
            if (layout == FORMAT_Q4_1) copy_halves(mins[b % HALVES_AHEAD], &w, HALVES_AHEAD * block_bytes + 2);
        }
        vi w0[4], w1[4]; /* elements 0..15 and 16..31 of the block */
        UNROLL for (int j = 0; j < 4; j++)
        {
            w0[j] = vi_row_pieces(&w, head, j);
            if (layout == FORMAT_Q8_0) {
                w1[j] = vi_row_pieces(&w, head + 16, j);
            } else {
                w1[j] = vi_and(vi_right4(w0[j]), vi_set8(15));
                w0[j] = vi_and(w0[j], vi_set8(15));
            }
        }
        UNROLL for (unsigned i = 0; i < m; i++)
        {
            const size_t group = i * n_blocks + b;
            const vi x0 = vi_copies16(act->q8 + group * WR_GROUP), x1 = vi_copies16(act->q8 + group * WR_GROUP + 16);
            vi p[4];
            UNROLL for (int j = 0; j < 4; j++) p[j] = layout == FORMAT_Q8_0 ? dot_bytes(w0[j], w1[j], x0, x1) : dot_nibbles(w0[j], w1[j], x0, x1);
            vf sum = vi_to_f32(fold4(p));
            if (offset != 0) sum = vf_fma(vf_set(-(float)offset), vf_set(act->s[group]), sum); /* integers below 2^24: exact */
            acc[i] = vf_fma(sum, vf_mul(scale, vf_set(act->d[group])), acc[i]);
            if (layout == FORMAT_Q4_1) acc[i] = vf_fma(vf_set(act->s[group]), vf_mul(min, vf_set(act->d[group])), acc[i]);
        }
    }
    for (unsigned i = 0; i < m; i++) {
        _Alignas(64) float lanes[LANES];
        vf_store(lanes, acc[i]);
        for (unsigned r = 0; r < LANES; r++) y[i * ldy + r * y_step] = lanes[r];
    }
}

#define DIRECT(name, layout)                                                                                                                                   \
    NEVER_INLINE void name(const struct wr_act *act, const struct panel_rows *rows, float *y, size_t ldy, size_t y_step)                                       \
    {                                                                                                                                                          \
        if (act->m == 1)                                                                                                                                       \
            direct(layout, 1, act, rows, y, ldy, y_step);                                                                                                      \
        else if (act->m == 2)                                                                                                                                  \
            direct(layout, 2, act, rows, y, ldy, y_step);                                                                                                      \
        else if (act->m == 3)                                                                                                                                  \
            direct(layout, 3, act, rows, y, ldy, y_step);                                                                                                      \
        else                                                                                                                                                   \
            direct(layout, 4, act, rows, y, ldy, y_step);                                                                                                      \
    }
DIRECT(direct_q4_0, FORMAT_Q4_0)
DIRECT(direct_q4_1, FORMAT_Q4_1)
DIRECT(direct_q8_0, FORMAT_Q8_0)

static void run_direct(const struct product *p, const struct panel_rows *rows, float *y, size_t ldy, size_t y_step)
{
    if (p->layout == FORMAT_Q4_0)
        direct_q4_0(p->act, rows, y, ldy, y_step);
    else if (p->layout == FORMAT_Q4_1)
        direct_q4_1(p->act, rows, y, ldy, y_step);
    else
        direct_q8_0(p->act, rows, y, ldy, y_step);
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

/* Blocks [b0, b0 + n) of rows of any format. */
NEVER_INLINE void unpack_decoded(const struct product *p, const struct panel_rows *rows, size_t b0, unsigned n, unsigned panel)
{
    _Alignas(64) uint8_t block[8][LANES][4] = {{{0}}};
    for (unsigned b = 0; b < n; b++) {
        for (unsigned r = 0; r < rows->lanes; r++) {
            int8_t q[WR_GROUP];
            p->quant->decode_group(rows->first + r * rows->stride, b0 + b, q, &p->work->scale[panel][b][r], &p->work->min[panel][b][r]);
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
    unsigned n;          /* blocks, or elements of float weights */
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

ALWAYS_INLINE void tile_integers(const struct tile *t, const enum panel panel, const unsigned m)
{
    const unsigned steps = panel == PANEL_U8 ? 8 : 16;
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
    NEVER_INLINE void tile_u8_##m(const struct tile *t) { tile_integers(t, PANEL_U8, m); }                                                                     \
    NEVER_INLINE void tile_s16_##m(const struct tile *t) { tile_integers(t, PANEL_S16, m); }                                                                   \
    NEVER_INLINE void tile_f32_##m(const struct tile *t) { tile_floats(t, m); }
#define TILE_ROW(m)                                                                                                                                            \
    {                                                                                                                                                          \
        m, { tile_u8_##m, tile_s16_##m, tile_f32_##m }                                                                                                         \
    }

TILE(1)
TILE(2)
TILE(4)
#if TILE_M > 4
TILE(8)
#endif

static const struct {
    unsigned m;
    void (*run[3])(const struct tile *); /* by enum panel */
} tiles[] = {
#if TILE_M > 4
    TILE_ROW(8),
#endif
    TILE_ROW(4),
    TILE_ROW(2),
    TILE_ROW(1),
};

/* What activation row i brings to blocks [b0, b0 + n). x16: their widened q8, where that is needed. */
static void prepare(const struct product *p, uint32_t i, size_t b0, unsigned n, struct act_chunk *out, int16_t *x16)
{
    const size_t at = i * (size_t)(p->act->k / WR_GROUP) + b0;
    for (unsigned b = 0; b < n; b += LANES) {
        const vf s = load_lanes(p->act->s + at + b, n - b);
        vi_store(out->start + b, vi_from_f32(vf_mul(vf_set(-(float)p->offset), s))); /* integers below 2^24: exact */
        vf_store(out->s + b, s);
        vf_store(out->d + b, load_lanes(p->act->d + at + b, n - b));
    }
    if (p->panel != PANEL_S16 || p->act->precise) return;
    const int8_t *q = p->act->q8 + at * WR_GROUP;
    for (unsigned j = 0; j < n * WR_GROUP; j++) x16[j] = q[j];
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
            t.n = n / WR_GROUP;
            if (p->kept) {
                t.acts = p->kept + k0 / p->chunk * act->m + i;
            } else {
                for (unsigned j = 0; j < tiles[kind].m; j++) prepare(p, i + j, k0 / WR_GROUP, t.n, &work->acts[j], work->x16[j]);
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
            tiles[kind].run[p->panel](&t);
        }
    }
}

/* ---- The three ways. ---- */

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
        const size_t b0 = c * p->chunk / WR_GROUP, left = k / WR_GROUP - b0, n = left < p->chunk / WR_GROUP ? left : p->chunk / WR_GROUP;
        for (uint32_t i = 0; i < m; i++) prepare(p, i, b0, (unsigned)n, &p->kept[c * m + i], p->x16 + i * k + b0 * WR_GROUP);
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

/* Direct and few: a panel at a time. Returns the rows done: direct leaves those that fill no panel.
 * The rows of a panel are not neighbours but a step apart, so that each lane reads one long stream: neighbouring rows share pages, and the fetching of
 * the second-level cache loses track (Xeon, Q4_0, k = 4096, m = 1: 69 % of the rate of a plain read; so 95 %). An odd step keeps the streams out of each
 * other's cache sets. */
static uint32_t by_panels(const struct product *p, bool direct, const uint8_t *rows, size_t stride, uint32_t n_rows, float *y, size_t ldy)
{
    uint32_t r = 0;
    while (r < n_rows) {
        const uint32_t full = (n_rows - r) / LANES, step = full < 2 ? 1 : full - (full % 2 == 0);
        struct panel_rows panel = {.stride = step * stride, .lanes = full > 0 ? LANES : n_rows - r, .near = AHEAD, .left = p->row_bytes};
        if (direct && full == 0) break;
        for (uint32_t i = 0; i < step; i++) {
            panel.first = rows + (r + i) * stride;
            panel.far = i + 1 < step ? (ptrdiff_t)(stride - p->row_bytes + AHEAD) : 0;
            if (direct)
                run_direct(p, &panel, y + r + i, ldy, step);
            else
                run_few(p, &panel, y + r + i, ldy, step);
        }
        r += panel.lanes * step;
    }
    return r;
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

static void matmul(const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    struct product p = {.quant = quant, .act = act, .work = work, .layout = FORMAT_OTHER, .panel = PANEL_F32, .offset = 128};
    p.row_bytes = act->k / quant->block_elems * quant->block_bytes;
    if (!quant->is_float) {
        switch (quant->id) {
        case WR_TYPE_Q4_0:
            p.layout = FORMAT_Q4_0;
            break;
        case WR_TYPE_Q4_1:
            p.layout = FORMAT_Q4_1;
            break;
        case WR_TYPE_Q8_0:
            p.layout = FORMAT_Q8_0;
            break;
        default:
            break;
        }
        const bool nibbles = p.layout == FORMAT_Q4_0 || p.layout == FORMAT_Q4_1;
        if (nibbles) p.offset = p.layout == FORMAT_Q4_0 ? 8 : 0;
        p.panel = act->precise || (BYTES_BY_PAIRS && !nibbles) ? PANEL_S16 : PANEL_U8;
    }
    p.chunk = p.panel == PANEL_U8 ? CHUNK_BYTES : p.panel == PANEL_S16 ? CHUNK_BYTES / 2 : CHUNK_BYTES / 4;
    uint32_t done = 0;
    if (p.layout != FORMAT_OTHER && !act->precise && act->m <= DIRECT_M) done = by_panels(&p, true, rows, stride, n_rows, y, ldy);
    rows = (const uint8_t *)rows + done * stride;
    if (done == n_rows) return;
    if (keep(&p))
        by_panels(&p, false, rows, stride, n_rows - done, y + done, ldy);
    else
        many(&p, rows, stride, n_rows - done, y + done, ldy);
}
