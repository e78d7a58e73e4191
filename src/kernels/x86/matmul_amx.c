/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product on AMX: integer sums of 16 activation rows by 16 weight rows at a time in the matrix unit, a group of 32 of k each, and rule e's scales
 * and f32 sums in vectors, a lane a weight row. What the unit does not make faster is left to AVX-512 with VNNI: the bits are the same.
 *
 * A tile of sums goes through memory into vectors, so the vectors work on a group whose sums were begun LAG groups ago.
 */
#include "kernels/x86/matmul_v512.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* of matmul_body.h the unpacking alone is wanted */
#include "kernels/x86/matmul_body.h"

enum {
    TILE_ROWS = 16,
    X_STRIDE = CHUNK_BYTES + 64, /* rows a power of 2 apart would meet in a few sets of the first-level cache */
    N_SUMS = 4,
    LAG = 4,
    AMX_M = 48, /* activation rows from which on this is faster: 1.0 of the rate of VNNI with 32, 1.1 with 64, 1.2 with 512 (Q4_0, Xeon, 1 thread) */
};

struct amx_work {
    struct work work; /* panels: [block][8][LANES][4] is the order that the unit asks for */
    _Alignas(64) int8_t x[TILE_ROWS][X_STRIDE];
    float d[TILE_ROWS][CHUNK_BLOCKS], s[TILE_ROWS][CHUNK_BLOCKS];
    _Alignas(64) int32_t sums[N_SUMS][TILE_ROWS][LANES];
};
_Static_assert(sizeof(struct amx_work) <= WR_MATMUL_WORK_BYTES, "it fits the work space");

/* Shapes of the tile registers: 0 to 3 sums, 4 and 5 activations [16][32], 6 and 7 weights [8][16][4]. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes = {.palette = 1, .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 8}};

/* Assembly: gcc 12's intrinsics do not tell the compiler which memory they read. */
#define MULTIPLY(sum, x_tile, w_tile)                                                                                                                          \
    __asm__ volatile("tileloadd (%0,%1), %%tmm" x_tile "\n\ttileloadd (%2,%3), %%tmm" w_tile "\n\ttilezero %%tmm" sum "\n\ttdpbssd %%tmm" w_tile               \
                     ", %%tmm" x_tile ", %%tmm" sum                                                                                                            \
                     :                                                                                                                                         \
                     : "r"(x), "r"((ptrdiff_t)X_STRIDE), "r"(w), "r"((ptrdiff_t)sizeof(vi))                                                                    \
                     : "memory")
#define STORE(sum) __asm__ volatile("tilestored %%tmm" sum ", (%0,%1)" : : "r"(to), "r"((ptrdiff_t)sizeof(vi)) : "memory")

/* Sums `i` of a group: x is [TILE_ROWS] X_STRIDE apart, w is [8][LANES][4]. */
ALWAYS_INLINE void multiply(const unsigned i, const int8_t *x, const uint8_t *w)
{
    switch (i) {
    case 0:
        MULTIPLY("0", "4", "6");
        break;
    case 1:
        MULTIPLY("1", "5", "7");
        break;
    case 2:
        MULTIPLY("2", "4", "6");
        break;
    default:
        MULTIPLY("3", "5", "7");
    }
}

ALWAYS_INLINE void store_sums(const unsigned i, int32_t to[TILE_ROWS][LANES])
{
    switch (i) {
    case 0:
        STORE("0");
        break;
    case 1:
        STORE("1");
        break;
    case 2:
        STORE("2");
        break;
    default:
        STORE("3");
    }
}

/* What is fetched during a tile for those to come: rows of y and q8 lie far apart, often by a power of 2, and have left the nearer caches since they
 * were last used. After the last ones this points past the end, where nothing is read. */
struct ahead {
    const float *y;  /* of the next tile: a line in each of TILE_ROWS rows */
    const int8_t *x; /* of the next activation rows: CHUNK_BYTES in each of a panel's share of them */
};
enum { X_LINES = CHUNK_BYTES / 64 };

ALWAYS_INLINE void fetch_next(const struct ahead *ahead, unsigned b, size_t ldy, size_t k)
{
    if (b < TILE_ROWS) _mm_prefetch((const char *)(ahead->y + b * ldy), _MM_HINT_T0);
    _mm_prefetch((const char *)(ahead->x + b / X_LINES * k + b % X_LINES * 64), _MM_HINT_T1);
}

/* The first m <= TILE_ROWS rows of work->x, d and s against one panel; k: elements of a row of q8. */
ALWAYS_INLINE void tile_sums(struct amx_work *work, const struct tile *t, const struct ahead *ahead, size_t k, const unsigned m, const bool has_min)
{
    vf acc[TILE_ROWS];
    UNROLL for (unsigned r = 0; r < TILE_ROWS; r++) acc[r] = t->first || r >= m ? vf_zero() : load_lanes(t->y + r * t->ldy, t->lanes);
    for (unsigned i = 0; i < t->n + LAG; i += N_SUMS) {
        UNROLL for (unsigned j = 0; j < N_SUMS; j++)
        {
            const unsigned b = i + j;
            if (b >= N_SUMS - 1 && b < t->n + N_SUMS - 1) store_sums((j + 1) % N_SUMS, work->sums[(j + 1) % N_SUMS]);
            if (b < t->n) multiply(j, work->x[0] + b * WR_GROUP, t->w + b * 8 * sizeof(vi));
            if (b < t->n) fetch_next(ahead, b, t->ldy, k);
            if (b < LAG || b >= t->n + LAG) continue;
            const float *d = &work->d[0][b - LAG], *s = &work->s[0][b - LAG];
            const vf scale = vf_load(t->scale + (size_t)(b - LAG) * LANES);
            UNROLL for (unsigned r = 0; r < TILE_ROWS; r++)
            {
                acc[r] = vf_fma(vi_to_f32(vi_load(work->sums[j][r])), vf_mul(scale, vf_set(d[r * CHUNK_BLOCKS])), acc[r]);
            }
            if (!has_min) continue;
            const vf min = vf_load(t->min + (size_t)(b - LAG) * LANES);
            UNROLL for (unsigned r = 0; r < TILE_ROWS; r++) { acc[r] = vf_fma(vf_set(s[r * CHUNK_BLOCKS]), vf_mul(min, vf_set(d[r * CHUNK_BLOCKS])), acc[r]); }
        }
    }
    UNROLL for (unsigned r = 0; r < TILE_ROWS; r++)
    {
        if (r < m) store_lanes(t->y + r * t->ldy, acc[r], t->lanes);
    }
}

NEVER_INLINE void tile_amx(struct amx_work *work, const struct tile *t, const struct ahead *ahead, size_t k, unsigned m)
{
    tile_sums(work, t, ahead, k, m, false);
}
NEVER_INLINE void tile_amx_min(struct amx_work *work, const struct tile *t, const struct ahead *ahead, size_t k, unsigned m)
{
    tile_sums(work, t, ahead, k, m, true);
}

/* Weight + offset to the weight, in all blocks of a panel. */
static void sign_panel(const struct product *p, unsigned n, unsigned panel)
{
    const vi offset = vi_set8((int8_t)p->format->offset);
    uint8_t *w = p->work->panels[panel];
    for (size_t at = 0; at < (size_t)n * LANES; at += sizeof(vi)) vi_store(w + at, _mm512_sub_epi8(vi_load(w + at), offset));
}

/* All activation rows against the panels of n_rows weight rows, over the chunk of elements [k0, k0 + n). */
static void run_amx_tiles(const struct product *p, size_t k0, unsigned n, unsigned n_rows, float *y, size_t ldy)
{
    const struct wr_act *act = p->act;
    struct amx_work *work = (struct amx_work *)(void *)p->work;
    const size_t groups = n / WR_GROUP;
    for (uint32_t i = 0; i < act->m; i += TILE_ROWS) {
        const uint32_t m = act->m - i < TILE_ROWS ? act->m - i : TILE_ROWS;
        for (uint32_t r = 0; r < m; r++) {
            const size_t at = (size_t)(i + r) * act->k + k0;
            memcpy(work->x[r], act->q8 + at, n);
            memcpy(work->d[r], act->d + at / WR_GROUP, groups * sizeof(float));
            memcpy(work->s[r], act->s + at / WR_GROUP, groups * sizeof(float));
        }
        for (unsigned r = 0; r < n_rows; r += LANES) {
            const unsigned panel = r / LANES;
            const struct tile t = {.w = work->work.panels[panel],
                .scale = work->work.scale[panel][0],
                .min = work->work.min[panel][0],
                .y = y + i * ldy + r,
                .ldy = ldy,
                .lanes = n_rows - r,
                .n = (unsigned)groups,
                .first = k0 == 0};
            const struct ahead ahead = {.y = r + LANES < n_rows ? t.y + LANES : y + (i + TILE_ROWS) * ldy,
                .x = act->q8 + (size_t)(i + TILE_ROWS + panel * (TILE_ROWS / GROUP_PANELS)) * act->k + k0};
            if (p->quant->has_min)
                tile_amx_min(work, &t, &ahead, act->k, m);
            else
                tile_amx(work, &t, &ahead, act->k, m);
        }
    }
}

void wr_matmul_amx(const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    if (act->m < AMX_M || quant->is_float || quant->group < WR_GROUP || act->precise) {
        wr_matmul_avx512vnni(quant, rows, stride, n_rows, act, y, ldy, work);
        return;
    }
    struct product p = {.quant = quant, .format = &other_format, .act = act, .work = work, .panel = PANEL_U8, .group = WR_GROUP, .chunk = CHUNK_BYTES};
    p.row_bytes = act->k / quant->block_elems * quant->block_bytes;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].id == quant->id) p.format = &formats[i];
    }
    const ptrdiff_t chunk_bytes = (ptrdiff_t)(p.chunk / quant->block_elems * quant->block_bytes);
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    for (uint32_t r = 0; r < n_rows; r += GROUP_ROWS) {
        const unsigned n_group = n_rows - r < GROUP_ROWS ? n_rows - r : GROUP_ROWS;
        for (size_t k = 0; k < act->k; k += p.chunk) {
            const unsigned n = act->k - k < p.chunk ? (unsigned)(act->k - k) : p.chunk;
            for (unsigned i = 0; i < n_group; i += LANES) {
                struct panel_rows panel = {
                    .first = (const uint8_t *)rows + (r + i) * stride, .stride = stride, .lanes = n_group - i < LANES ? n_group - i : LANES};
                panel.far = i + LANES < n_group ? (ptrdiff_t)(LANES * stride) : chunk_bytes - (ptrdiff_t)(i * stride); /* as in many() */
                unpack_panel(&p, &panel, k, n, i / LANES);
                if (p.format->offset != 0) sign_panel(&p, n, i / LANES);
            }
            run_amx_tiles(&p, k, n, n_group, y + r, ldy);
        }
    }
    __asm__ volatile("tilerelease"); /* a thread that waits carries no tiles over its task switches */
}
