/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product in lanes: a vector lane is a weight row and holds that row's f32 accumulator, so rules e and f give the
 * same bits as ref/matmul.c for any tile. Included once by each level, after its vectors (matmul_v256.h, matmul_v512.h).
 *
 * Three ways, by the number of activation rows m:
 * - up to DIRECT_M, known formats: integer sums straight from the file's blocks;
 * - up to FEW_M: LANES weight rows at a time are unpacked, a chunk of k at a time, into a panel that stays in the first-level
 *   cache and meets all activation rows there; what these bring to each block is prepared once a call;
 * - many: a chunk of GROUP_ROWS weight rows is unpacked, and each block of BLOCK_M activation rows meets all its panels, in tiles of up to TILE_M rows.
 */
#include "kernels/matmul.h"

enum {
    GROUP_ROWS = 128,
    GROUP_PANELS = GROUP_ROWS / LANES,
    CHUNK_BYTES = 1024,                    /* of a row in a panel: a panel is 16 KiB (AVX2: 8), a group 128 KiB, for the second-level cache */
    CHUNK_BLOCKS = CHUNK_BYTES / WR_GROUP, /* scales of a row in a panel, at most */
    CHUNK_FLOATS = CHUNK_BYTES / 4,
    PANEL_BYTES = CHUNK_BYTES * LANES,
    DIRECT_M = 4,
    MAX_BLOCK_BYTES = 34, /* of 32 elements, of the formats that are read in lanes */
};

enum layout { /* blocks that are read in lanes; others go through decode_group */
    FORMAT_OTHER,
    FORMAT_Q4_0,
    FORMAT_Q4_1,
    FORMAT_Q5_0,
    FORMAT_Q5_1,
    FORMAT_Q8_0,
    FORMAT_Q2_K,
    FORMAT_Q3_K,
    FORMAT_Q4_K,
    FORMAT_Q5_K,
    FORMAT_Q6_K,
    FORMAT_TQ2_0,
};
enum panel { PANEL_U8, PANEL_S16, PANEL_F32 };

struct act_chunk {                            /* what an activation row brings to each group of a chunk */
    _Alignas(64) int32_t start[CHUNK_BLOCKS]; /* -offset * s */
    float d[CHUNK_BLOCKS], s[CHUNK_BLOCKS];
};

/* Panels, by blocks of 32 elements: u8 [block][8][LANES][4] (weight + offset), s16 [block][16][LANES][2], f32 [k][LANES]. */
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
    int16_t x16[BLOCK_M][CHUNK_BYTES / 2]; /* q8 widened */
    struct act_chunk acts[BLOCK_M];
    uint16_t halves[2][CHUNK_BLOCKS][LANES];                  /* scales and mins of a panel */
    uint8_t last_rows[LANES][CHUNK_BLOCKS * MAX_BLOCK_BYTES]; /* a panel of fewer rows than LANES */
};
_Static_assert(sizeof(struct work) <= WR_MATMUL_WORK_BYTES, "panels of a group fit the work space");

struct product;
struct panel_rows;

struct format {
    uint32_t id;
    enum layout layout;
    int offset;                                                                                           /* weight + offset is what a u8 panel holds, ... */
    unsigned bits;                                                                                        /* ... in so many bits */
    void (*unpack)(const struct product *, const struct panel_rows *, unsigned n_groups, unsigned panel); /* NULL: unpack_decoded */
};

struct product {
    const struct wr_quant *quant;
    const struct format *format;
    const struct wr_act *act;
    struct work *work;
    size_t row_bytes;
    enum panel panel;
    unsigned group;         /* elements that share a scale; none for float weights */
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

/* Bytes that are fetched ahead in each row: 16 rows give 12 KiB, above what latency times bandwidth asks for. */
#define AHEAD 768

#include "kernels/x86/matmul_unpack.h"
#include "kernels/x86/matmul_direct.h"
#include "kernels/x86/matmul_panel.h"

static const struct format formats[] = {
    {WR_TYPE_Q4_0, FORMAT_Q4_0, 8, 4, unpack_q4_0},
    {WR_TYPE_Q4_1, FORMAT_Q4_1, 0, 4, unpack_q4_1},
    {WR_TYPE_Q5_0, FORMAT_Q5_0, 16, 5, unpack_q5_0},
    {WR_TYPE_Q5_1, FORMAT_Q5_1, 0, 5, unpack_q5_1},
    {WR_TYPE_Q8_0, FORMAT_Q8_0, 128, 8, unpack_q8_0},
    {WR_TYPE_Q2_K, FORMAT_Q2_K, 0, 2, unpack_q2_k},
    {WR_TYPE_Q3_K, FORMAT_Q3_K, 4, 3, unpack_q3_k},
    {WR_TYPE_Q4_K, FORMAT_Q4_K, 0, 4, unpack_q4_k},
    {WR_TYPE_Q5_K, FORMAT_Q5_K, 0, 5, unpack_q5_k},
    {WR_TYPE_Q6_K, FORMAT_Q6_K, 32, 6, unpack_q6_k},
    {WR_TYPE_TQ2_0, FORMAT_TQ2_0, 1, 2, unpack_tq2_0},
};
static const struct format other_format = {.layout = FORMAT_OTHER, .offset = 128, .bits = 8};

/* Few: a panel at a time. The rows of a panel are not neighbours but a step apart, so that each lane reads one long stream: neighbouring rows share pages,
 * and the fetching of the second-level cache loses track. An odd step keeps the streams out of each other's cache sets. */
static void few(const struct product *p, const uint8_t *rows, size_t stride, uint32_t n_rows, float *y, size_t ldy)
{
    uint32_t r = 0;
    while (r < n_rows) {
        const uint32_t full = (n_rows - r) / LANES, step = full < 2 ? 1 : full - (full % 2 == 0);
        struct panel_rows panel = {.stride = step * stride, .lanes = full > 0 ? LANES : n_rows - r, .near = AHEAD, .left = p->row_bytes};
        for (uint32_t i = 0; i < step; i++) {
            panel.first = rows + (r + i) * stride;
            panel.far = i + 1 < step ? (ptrdiff_t)(stride - p->row_bytes + AHEAD) : 0;
            run_few(p, &panel, y + r + i, ldy, step);
        }
        r += panel.lanes * step;
    }
}

static void matmul(const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    struct product p = {.quant = quant, .format = &other_format, .act = act, .work = work, .panel = PANEL_F32, .group = quant->group};
    p.row_bytes = act->k / quant->block_elems * quant->block_bytes;
    if (!quant->is_float) {
        for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
            if (formats[i].id == quant->id) p.format = &formats[i];
        }
        p.panel = act->precise || (BYTES_BY_PAIRS && p.format->bits > 6) ? PANEL_S16 : PANEL_U8;
    }
    p.chunk = p.panel == PANEL_U8 ? CHUNK_BLOCKS * p.group : p.panel == PANEL_S16 ? CHUNK_BYTES / 2 : CHUNK_BYTES / 4;
    const uint32_t done = run_direct(&p, rows, stride, n_rows, y, ldy);
    if (done == n_rows) return;
    rows = (const uint8_t *)rows + done * stride;
    if (keep(&p))
        few(&p, rows, stride, n_rows - done, y + done, ldy);
    else
        many(&p, rows, stride, n_rows - done, y + done, ldy);
}
