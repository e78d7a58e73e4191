/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product in lanes of NEON: a lane is a weight row and holds that row's f32 accumulator, so rules e and f give the
 * same bits as ref/matmul.c for any tile. Included once by each level, after these two of its own:
 * - put_codes: 16 weights of ROWS rows into a panel, in the order that suits
 * - dots: sums of the products of n weights (16 or 32) of each row of a panel with those at x[0 .. m)
 *
 * Weight rows are unpacked, ROWS to a panel and a chunk of k at a time, into panels that stay in a cache; each tile of up
 * to TILE_M activation rows then meets all panels of a group. Up to TILE_M activation rows there is one tile, and a group
 * is small enough for the first-level cache.
 */
#include "kernels/matmul.h"

#include <stdbool.h>

enum {
    CHUNK_BYTES = 1024, /* of a row in a panel */
    PANEL_BYTES = CHUNK_BYTES * ROWS,
    CHUNK_GROUPS = CHUNK_BYTES / 16, /* scales of a row in a panel, at most */
    MANY_PANELS = 16,                /* of a group: 64 KiB */
    FEW_PANELS = 4,
    FLOAT_VECTORS = 4, /* panels that meet a tile of float weights at once, at most */
};

enum layout { /* blocks that are read in lanes; others go through decode_group */
    LAYOUT_OTHER,
    LAYOUT_Q4_0,
    LAYOUT_Q4_1,
    LAYOUT_Q5_0,
    LAYOUT_Q5_1,
    LAYOUT_Q8_0,
    LAYOUT_Q2_K,
    LAYOUT_Q3_K,
    LAYOUT_Q4_K,
    LAYOUT_Q5_K,
    LAYOUT_Q6_K,
};

/* Bytes: see put_codes. int16 (--precise) and f32: [k][ROWS]. */
struct work {
    union {
        int8_t bytes[PANEL_BYTES];
        int16_t pairs[PANEL_BYTES / 2];
        float floats[PANEL_BYTES / 4];
    } panels[MANY_PANELS];
    float scale[MANY_PANELS][CHUNK_GROUPS][ROWS], min[MANY_PANELS][CHUNK_GROUPS][ROWS];
    float rows[ROWS][CHUNK_BYTES / 4]; /* float weights on their way into a panel */
};
_Static_assert(sizeof(struct work) <= WR_MATMUL_WORK_BYTES, "panels of a group fit the work space");

struct product {
    const struct wr_quant *quant;
    const struct wr_act *act;
    struct work *work;
    /* n_blocks of each of ROWS rows into a panel, with their scales */
    void (*unpack)(const struct product *, const uint8_t *const rows[ROWS], unsigned n_blocks, unsigned panel);
    unsigned chunk; /* elements */
    size_t ldy;
};

/* ---- Unpacking ---- */

ALWAYS_INLINE float32x4_t halves_to_f32(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }

ALWAYS_INLINE float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return vgetq_lane_f32(halves_to_f32(vdup_n_u16(h)), 0);
}

ALWAYS_INLINE uint32_t word_at(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

ALWAYS_INLINE uint8x16_t words(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return vreinterpretq_u8_u32((uint32x4_t){a, b, c, d}); }

/* Bits [from, from + n) of each byte. */
ALWAYS_INLINE uint8x16_t bits(uint8x16_t v, const unsigned from, const unsigned n) { return (v >> (uint8_t)from) & (uint8_t)((1u << n) - 1); }

/* 16 where a bit of the two bytes is set, else 0. */
ALWAYS_INLINE uint8x16_t fifth_bits(const uint8_t *p)
{
    const uint8x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
    return vandq_u8(vtstq_u8(vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), vcombine_u8(bit, bit)), vdupq_n_u8(16));
}

ALWAYS_INLINE int8x16_t less(uint8x16_t v, const int offset) { return vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8((int8_t)offset)); }

/* Weights 16 i to 16 i + 15 of block b, the format's offset removed; src/quant/<format>.c says where their bits lie. */
ALWAYS_INLINE int8x16_t codes(const enum layout layout, const uint8_t *b, const unsigned i)
{
    const unsigned half = i / 8, t = i / 2 % 4, l = 16 * (i % 2); /* of 256: halves, 32s of a half, place in the 32 */
    uint8x16_t v, high;
    switch (layout) {
    case LAYOUT_Q4_0:
        return less(bits(vld1q_u8(b + 2), 4 * i, 4), 8);
    case LAYOUT_Q4_1:
        return less(bits(vld1q_u8(b + 4), 4 * i, 4), 0);
    case LAYOUT_Q5_0:
        return less(vorrq_u8(bits(vld1q_u8(b + 6), 4 * i, 4), fifth_bits(b + 2 + 2 * i)), 16);
    case LAYOUT_Q5_1:
        return less(vorrq_u8(bits(vld1q_u8(b + 8), 4 * i, 4), fifth_bits(b + 4 + 2 * i)), 0);
    case LAYOUT_Q2_K:
        return less(bits(vld1q_u8(b + 16 + 32 * half + l), 2 * t, 2), 0);
    case LAYOUT_Q3_K:
        v = bits(vld1q_u8(b + 32 + 32 * half + l), 2 * t, 2), high = bits(vld1q_u8(b + l), 4 * half + t, 1);
        return less(vorrq_u8(v, vshlq_n_u8(high, 2)), 4);
    case LAYOUT_Q4_K:
        return less(bits(vld1q_u8(b + 16 + 32 * (i / 4) + l), 4 * (t % 2), 4), 0);
    case LAYOUT_Q5_K:
        v = bits(vld1q_u8(b + 48 + 32 * (i / 4) + l), 4 * (t % 2), 4), high = bits(vld1q_u8(b + 16 + l), i / 2, 1);
        return less(vorrq_u8(v, vshlq_n_u8(high, 4)), 0);
    case LAYOUT_Q6_K:
        v = bits(vld1q_u8(b + 64 * half + 32 * (t % 2) + l), 4 * (t / 2), 4), high = bits(vld1q_u8(b + 128 + 32 * half + l), 2 * t, 2);
        return less(vorrq_u8(v, vshlq_n_u8(high, 4)), 32);
    default: /* Q8_0 */
        return vld1q_s8((const int8_t *)b + 2 + 16 * i);
    }
}

/* Codes of the up to 16 scales and minimums of a block of 256; the first n of each count. */
ALWAYS_INLINE void scale_codes(const enum layout layout, const uint8_t *b, int8x16_t *scale, int8x16_t *min)
{
    const uint32_t nibble = 0x0f0f0f0f, pair = 0x03030303;
    switch (layout) {
    case LAYOUT_Q2_K:
        *scale = less(bits(vld1q_u8(b), 0, 4), 0);
        *min = less(bits(vld1q_u8(b), 4, 4), 0);
        break;
    case LAYOUT_Q3_K: {
        const uint32_t s0 = word_at(b + 96), s1 = word_at(b + 100), up = word_at(b + 104);
        *scale = less(words((s0 & nibble) | (up & pair) << 4, (s1 & nibble) | (up >> 2 & pair) << 4, (s0 >> 4 & nibble) | (up >> 4 & pair) << 4,
                          (s1 >> 4 & nibble) | (up >> 6 & pair) << 4),
            32);
        break;
    }
    case LAYOUT_Q6_K:
        *scale = vld1q_s8((const int8_t *)b + 192);
        break;
    default: { /* Q4_K, Q5_K: k_pair of quant/blocks.h */
        const uint32_t s0 = word_at(b + 4), s1 = word_at(b + 8), s2 = word_at(b + 12);
        *scale = less(words(s0 & 0x3f3f3f3f, (s2 & nibble) | (s0 >> 6 & pair) << 4, 0, 0), 0);
        *min = less(words(s1 & 0x3f3f3f3f, (s2 >> 4 & nibble) | (s1 >> 6 & pair) << 4, 0, 0), 0);
    }
    }
}

/* d times the codes of a row. */
ALWAYS_INLINE void scaled(int8x16_t code, float d, float32x4_t out[4])
{
    const int16x8_t low = vmovl_s8(vget_low_s8(code)), high = vmovl_high_s8(code);
    out[0] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), d);
    out[1] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(low)), d);
    out[2] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), d);
    out[3] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(high)), d);
}

ALWAYS_INLINE bool layout_has_min(const enum layout layout)
{
    return layout == LAYOUT_Q4_1 || layout == LAYOUT_Q5_1 || layout == LAYOUT_Q2_K || layout == LAYOUT_Q4_K || layout == LAYOUT_Q5_K;
}

/* Scales and minimums of a block of 256, to [group][ROWS]. */
ALWAYS_INLINE void scales_k(const enum layout layout, const uint8_t *const b[ROWS], float (*scale)[ROWS], float (*min)[ROWS])
{
    const unsigned d_at = layout == LAYOUT_Q2_K ? 80 : layout == LAYOUT_Q3_K ? 108 : layout == LAYOUT_Q6_K ? 208 : 0;
    const unsigned quads = layout == LAYOUT_Q4_K || layout == LAYOUT_Q5_K ? 2 : 4;
    float32x4_t s[ROWS][4], m[ROWS][4];
    UNROLL for (unsigned r = 0; r < ROWS; r++)
    {
        int8x16_t scale_code, min_code;
        scale_codes(layout, b[r], &scale_code, &min_code);
        scaled(scale_code, half_at(b[r] + d_at), s[r]);
        if (layout_has_min(layout)) scaled(min_code, -half_at(b[r] + d_at + 2), m[r]);
    }
    UNROLL for (unsigned q = 0; q < quads; q++)
    {
        vst4q_f32(scale[4 * q], ((float32x4x4_t){{s[0][q], s[1][q], s[2][q], s[3][q]}}));
        if (layout_has_min(layout)) vst4q_f32(min[4 * q], ((float32x4x4_t){{m[0][q], m[1][q], m[2][q], m[3][q]}}));
    }
}

ALWAYS_INLINE float32x4_t halves_of(const uint8_t *const b[ROWS], const unsigned at)
{
    uint16_t h[ROWS];
    UNROLL for (unsigned r = 0; r < ROWS; r++) memcpy(&h[r], b[r] + at, 2);
    return halves_to_f32((uint16x4_t){h[0], h[1], h[2], h[3]});
}

/* Weights 16 at to 16 at + 15 of the chunk. */
ALWAYS_INLINE void put(const struct product *p, unsigned panel, unsigned at, const int8x16_t v[ROWS])
{
    if (!p->act->precise) {
        put_codes(p->work->panels[panel].bytes + at * 16 * ROWS, v);
        return;
    }
    int16_t *to = p->work->panels[panel].pairs + at * 16 * ROWS;
    const int16x8x4_t low = {{vmovl_s8(vget_low_s8(v[0])), vmovl_s8(vget_low_s8(v[1])), vmovl_s8(vget_low_s8(v[2])), vmovl_s8(vget_low_s8(v[3]))}};
    const int16x8x4_t high = {{vmovl_high_s8(v[0]), vmovl_high_s8(v[1]), vmovl_high_s8(v[2]), vmovl_high_s8(v[3])}};
    vst4q_s16(to, low);
    vst4q_s16(to + 8 * ROWS, high);
}

ALWAYS_INLINE void unpack(const enum layout layout, const unsigned elems, const unsigned bytes, const struct product *p, const uint8_t *const rows[ROWS],
    unsigned n_blocks, unsigned panel)
{
    float(*const scale)[ROWS] = p->work->scale[panel], (*const min)[ROWS] = p->work->min[panel];
    const uint8_t *b[ROWS];
    UNROLL for (unsigned r = 0; r < ROWS; r++) b[r] = rows[r];
    for (unsigned n = 0; n < n_blocks; n++) {
        UNROLL for (unsigned i = 0; i < elems / 16; i++)
        {
            int8x16_t v[ROWS];
            UNROLL for (unsigned r = 0; r < ROWS; r++) v[r] = codes(layout, b[r], i);
            put(p, panel, n * (elems / 16) + i, v);
        }
        if (elems == WR_GROUP) {
            vst1q_f32(scale[n], halves_of(b, 0));
            if (layout_has_min(layout)) vst1q_f32(min[n], halves_of(b, 2));
        } else {
            const unsigned groups = layout == LAYOUT_Q4_K || layout == LAYOUT_Q5_K ? 8 : 16;
            scales_k(layout, b, scale + n * groups, min + n * groups);
        }
        UNROLL for (unsigned r = 0; r < ROWS; r++) b[r] += bytes;
    }
}

#define UNPACK(name, layout, elems, bytes)                                                                                                                     \
    NEVER_INLINE void name(const struct product *p, const uint8_t *const rows[ROWS], unsigned n, unsigned panel)                                               \
    {                                                                                                                                                          \
        unpack(layout, elems, bytes, p, rows, n, panel);                                                                                                       \
    }
UNPACK(unpack_q4_0, LAYOUT_Q4_0, 32, 18)
UNPACK(unpack_q4_1, LAYOUT_Q4_1, 32, 20)
UNPACK(unpack_q5_0, LAYOUT_Q5_0, 32, 22)
UNPACK(unpack_q5_1, LAYOUT_Q5_1, 32, 24)
UNPACK(unpack_q8_0, LAYOUT_Q8_0, 32, 34)
UNPACK(unpack_q2_k, LAYOUT_Q2_K, 256, 84)
UNPACK(unpack_q3_k, LAYOUT_Q3_K, 256, 110)
UNPACK(unpack_q4_k, LAYOUT_Q4_K, 256, 144)
UNPACK(unpack_q5_k, LAYOUT_Q5_K, 256, 176)
UNPACK(unpack_q6_k, LAYOUT_Q6_K, 256, 210)

/* Any format. */
NEVER_INLINE void unpack_decoded(const struct product *p, const uint8_t *const rows[ROWS], unsigned n_blocks, unsigned panel)
{
    const unsigned group = p->quant->group, n = n_blocks * p->quant->block_elems / group;
    for (unsigned g = 0; g < n; g++) {
        int8_t q[ROWS][WR_GROUP];
        for (unsigned r = 0; r < ROWS; r++) p->quant->decode_group(rows[r], g, q[r], &p->work->scale[panel][g][r], &p->work->min[panel][g][r]);
        for (unsigned i = 0; i < group / 16; i++) {
            int8x16_t v[ROWS];
            UNROLL for (unsigned r = 0; r < ROWS; r++) v[r] = vld1q_s8(q[r] + 16 * i);
            put(p, panel, g * (group / 16) + i, v);
        }
    }
}

static const struct {
    uint32_t id;
    void (*unpack)(const struct product *, const uint8_t *const rows[ROWS], unsigned n_blocks, unsigned panel);
} unpackers[] = {
    {WR_TYPE_Q4_0, unpack_q4_0},
    {WR_TYPE_Q4_1, unpack_q4_1},
    {WR_TYPE_Q5_0, unpack_q5_0},
    {WR_TYPE_Q5_1, unpack_q5_1},
    {WR_TYPE_Q8_0, unpack_q8_0},
    {WR_TYPE_Q2_K, unpack_q2_k},
    {WR_TYPE_Q3_K, unpack_q3_k},
    {WR_TYPE_Q4_K, unpack_q4_k},
    {WR_TYPE_Q5_K, unpack_q5_k},
    {WR_TYPE_Q6_K, unpack_q6_k},
};

ALWAYS_INLINE float32x4_t four_floats(uint32_t type, const uint8_t *p)
{
    if (type == WR_TYPE_F16) return halves_to_f32(vld1_u16((const uint16_t *)(const void *)p));
    if (type == WR_TYPE_BF16) return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)(const void *)p), 16));
    return vld1q_f32((const float *)(const void *)p);
}

/* Float weights; a panel is filled up to a multiple of 4 of k with what the work space held. */
NEVER_INLINE void unpack_floats(const struct product *p, const uint8_t *const rows[ROWS], unsigned n, unsigned panel)
{
    const struct wr_quant *quant = p->quant;
    const bool known = quant->id == WR_TYPE_F32 || quant->id == WR_TYPE_F16 || quant->id == WR_TYPE_BF16;
    const unsigned elems = n * quant->block_elems, whole = known ? elems & ~3u : 0;
    for (unsigned r = 0; r < ROWS; r++) quant->decode_f32(rows[r] + whole / quant->block_elems * quant->block_bytes, p->work->rows[r] + whole, elems - whole);
    for (unsigned k = 0; k < elems; k += 4) {
        float32x4x4_t v;
        UNROLL for (unsigned r = 0; r < ROWS; r++) v.val[r] =
            k < whole ? four_floats(quant->id, rows[r] + k * quant->block_bytes) : vld1q_f32(p->work->rows[r] + k);
        vst4q_f32(p->work->panels[panel].floats + k * ROWS, v);
    }
}

/* ---- Tiles: m activation rows by the panels of a group, over one chunk of k ---- */

struct tile {
    const struct product *p;
    uint32_t i;      /* first activation row */
    size_t k0;       /* first element of the chunk */
    unsigned n;      /* elements */
    unsigned n_rows; /* of weights in the group */
    float *y;        /* [m][ldy] of them */
};

ALWAYS_INLINE float32x4_t load_lanes(const float *y, unsigned n)
{
    if (n >= ROWS) return vld1q_f32(y);
    float lanes[ROWS] = {0};
    memcpy(lanes, y, n * sizeof *y);
    return vld1q_f32(lanes);
}
ALWAYS_INLINE void store_lanes(float *y, float32x4_t v, unsigned n)
{
    if (n >= ROWS) {
        vst1q_f32(y, v);
        return;
    }
    float lanes[ROWS];
    vst1q_f32(lanes, v);
    memcpy(y, lanes, n * sizeof *y);
}

/* Sums of n products of int16: w [n][ROWS]. */
ALWAYS_INLINE int32x4_t dot_pairs(const int16_t *w, const int16_t *x, const unsigned n)
{
    int32x4_t even = vdupq_n_s32(0), odd = vdupq_n_s32(0);
    UNROLL for (unsigned k = 0; k < n; k += 8)
    {
        const int16x8_t xs = vld1q_s16(x + k);
        const int16_t *ws = w + ROWS * k;
        const int16x8_t w0 = vld1q_s16(ws), w1 = vld1q_s16(ws + 8), w2 = vld1q_s16(ws + 16), w3 = vld1q_s16(ws + 24);
        even = vmlal_laneq_s16(even, vget_low_s16(w0), xs, 0);
        odd = vmlal_high_laneq_s16(odd, w0, xs, 1);
        even = vmlal_laneq_s16(even, vget_low_s16(w1), xs, 2);
        odd = vmlal_high_laneq_s16(odd, w1, xs, 3);
        even = vmlal_laneq_s16(even, vget_low_s16(w2), xs, 4);
        odd = vmlal_high_laneq_s16(odd, w2, xs, 5);
        even = vmlal_laneq_s16(even, vget_low_s16(w3), xs, 6);
        odd = vmlal_high_laneq_s16(odd, w3, xs, 7);
    }
    return vaddq_s32(even, odd);
}

ALWAYS_INLINE void tile_integers(const struct tile *t, const bool precise, const unsigned group, const unsigned m)
{
    const struct wr_act *act = t->p->act;
    const struct work *work = t->p->work;
    const bool has_min = t->p->quant->has_min;
    const unsigned n_groups = t->n / group, per_d = WR_GROUP / group;
    const float *d[TILE_M], *s[TILE_M];
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        const size_t at = (t->i + i) * (size_t)act->k + t->k0;
        d[i] = act->d + at / WR_GROUP;
        s[i] = group == WR_GROUP ? act->s + at / WR_GROUP : act->s16 + at / 16;
    }
    for (unsigned r = 0; r < t->n_rows; r += ROWS) {
        const unsigned panel = r / ROWS;
        const int8_t *w = work->panels[panel].bytes;
        const int8_t *x[TILE_M];
        const int16_t *x16[TILE_M];
        float32x4_t acc[TILE_M];
        UNROLL for (unsigned i = 0; i < m; i++)
        {
            const size_t at = (t->i + i) * (size_t)act->k + t->k0;
            if (precise)
                x16[i] = act->q16 + at;
            else
                x[i] = act->q8 + at;
            acc[i] = t->k0 == 0 ? vdupq_n_f32(0) : load_lanes(t->y + i * t->p->ldy + r, t->n_rows - r);
        }
        for (unsigned g = 0; g < n_groups; g++) {
            int32x4_t sum[TILE_M];
            if (precise) {
                UNROLL for (unsigned i = 0; i < m; i++)
                {
                    sum[i] = dot_pairs(work->panels[panel].pairs + g * group * ROWS, x16[i], group);
                    x16[i] += group;
                }
            } else {
                dots(w, x, group, m, sum);
                w += group * ROWS;
                UNROLL for (unsigned i = 0; i < m; i++) x[i] += group;
            }
            const float32x4_t scale = vld1q_f32(work->scale[panel][g]);
            UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vfmaq_f32(acc[i], vcvtq_f32_s32(sum[i]), vmulq_n_f32(scale, d[i][g / per_d]));
            if (!has_min) continue;
            const float32x4_t min = vld1q_f32(work->min[panel][g]);
            UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vfmaq_f32(acc[i], vdupq_n_f32(s[i][g]), vmulq_n_f32(min, d[i][g / per_d]));
        }
        UNROLL for (unsigned i = 0; i < m; i++) store_lanes(t->y + i * t->p->ldy + r, acc[i], t->n_rows - r);
    }
}

/* `vectors` panels from `panel` on. */
ALWAYS_INLINE void meet_floats(const struct tile *t, unsigned panel, const unsigned vectors, const unsigned m)
{
    const struct wr_act *act = t->p->act;
    float32x4_t acc[TILE_M][FLOAT_VECTORS];
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        UNROLL for (unsigned v = 0; v < vectors; v++)
        {
            const unsigned r = (panel + v) * ROWS;
            acc[i][v] = t->k0 == 0 ? vdupq_n_f32(0) : load_lanes(t->y + i * t->p->ldy + r, t->n_rows - r);
        }
    }
    const float *x = act->x + t->i * act->ldx + t->k0, *w = t->p->work->panels[panel].floats;
    for (unsigned k = 0; k < t->n; k++) {
        float32x4_t ws[FLOAT_VECTORS];
        UNROLL for (unsigned v = 0; v < vectors; v++) ws[v] = vld1q_f32(w + v * (PANEL_BYTES / 4) + k * ROWS);
        UNROLL for (unsigned i = 0; i < m; i++)
        {
            UNROLL for (unsigned v = 0; v < vectors; v++) acc[i][v] = vfmaq_n_f32(acc[i][v], ws[v], x[i * act->ldx + k]);
        }
    }
    UNROLL for (unsigned i = 0; i < m; i++)
    {
        UNROLL for (unsigned v = 0; v < vectors; v++)
        {
            const unsigned r = (panel + v) * ROWS;
            store_lanes(t->y + i * t->p->ldy + r, acc[i][v], t->n_rows - r);
        }
    }
}

/* Eight sums or more are under way at once. */
ALWAYS_INLINE void tile_floats(const struct tile *t, const unsigned m)
{
    const unsigned n = (t->n_rows + ROWS - 1) / ROWS, vectors = m > 4 ? 1 : m > 2 ? 2 : FLOAT_VECTORS;
    unsigned panel = 0;
    for (; panel + vectors <= n; panel += vectors) meet_floats(t, panel, vectors, m);
    for (; panel < n; panel++) meet_floats(t, panel, 1, m);
}

#define TILE(m)                                                                                                                                                \
    NEVER_INLINE void tile_bytes_##m(const struct tile *t) { tile_integers(t, false, 32, m); }                                                                 \
    NEVER_INLINE void tile_pairs_##m(const struct tile *t) { tile_integers(t, true, 32, m); }                                                                  \
    NEVER_INLINE void tile_bytes_of_16_##m(const struct tile *t) { tile_integers(t, false, 16, m); }                                                           \
    NEVER_INLINE void tile_pairs_of_16_##m(const struct tile *t) { tile_integers(t, true, 16, m); }                                                            \
    NEVER_INLINE void tile_floats_##m(const struct tile *t) { tile_floats(t, m); }
#define TILE_ROW(m)                                                                                                                                            \
    {                                                                                                                                                          \
        m, { tile_bytes_##m, tile_pairs_##m, tile_bytes_of_16_##m, tile_pairs_of_16_##m, tile_floats_##m }                                                     \
    }
enum { TILE_BYTES, TILE_PAIRS, TILE_BYTES_OF_16, TILE_PAIRS_OF_16, TILE_FLOATS, N_TILES };

TILE(1)
TILE(2)
TILE(4)
TILE(8)

static const struct {
    unsigned m;
    void (*run[N_TILES])(const struct tile *);
} tiles[] = {TILE_ROW(8), TILE_ROW(4), TILE_ROW(2), TILE_ROW(1)};

static unsigned tile_of(const struct product *p)
{
    if (p->quant->is_float) return TILE_FLOATS;
    if (p->quant->group == WR_GROUP) return p->act->precise ? TILE_PAIRS : TILE_BYTES;
    return p->act->precise ? TILE_PAIRS_OF_16 : TILE_BYTES_OF_16;
}

/* ---- The product ---- */

/* A group of weight rows over the chunk of elements [k0, k0 + n). */
static void run_group(const struct product *p, const uint8_t *first, size_t stride, unsigned n_rows, size_t k0, unsigned n, float *y)
{
    const struct wr_quant *quant = p->quant;
    for (unsigned r = 0; r < n_rows; r += ROWS) {
        const uint8_t *rows[ROWS];
        /* Lanes of rows that are not there hold the last one, and are not stored. */
        for (unsigned j = 0; j < ROWS; j++) rows[j] = first + (r + j < n_rows ? r + j : n_rows - 1) * stride + k0 / quant->block_elems * quant->block_bytes;
        p->unpack(p, rows, n / quant->block_elems, r / ROWS);
    }
    const unsigned tile = tile_of(p);
    unsigned kind = 0;
    for (uint32_t i = 0; i < p->act->m; i += tiles[kind].m) {
        while (tiles[kind].m > p->act->m - i) kind++;
        const struct tile t = {.p = p, .i = i, .k0 = k0, .n = n, .n_rows = n_rows, .y = y + i * p->ldy};
        tiles[kind].run[tile](&t);
    }
}

static void matmul(const struct wr_quant *quant, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *act, float *y, size_t ldy, void *work)
{
    struct product p = {.quant = quant, .act = act, .work = work, .unpack = quant->is_float ? unpack_floats : unpack_decoded, .ldy = ldy};
    for (size_t i = 0; i < sizeof unpackers / sizeof unpackers[0]; i++) {
        if (unpackers[i].id == quant->id) p.unpack = unpackers[i].unpack;
    }
    p.chunk = CHUNK_BYTES / (quant->is_float ? 4 : act->precise ? 2 : 1);
    const unsigned group = ROWS * (act->m <= TILE_M ? FEW_PANELS : MANY_PANELS);
    for (uint32_t r = 0; r < n_rows; r += group) {
        const unsigned n_group = n_rows - r < group ? n_rows - r : group;
        for (size_t k = 0; k < act->k; k += p.chunk) {
            const unsigned n = act->k - k < p.chunk ? (unsigned)(act->k - k) : p.chunk;
            run_group(&p, (const uint8_t *)rows + r * stride, stride, n_group, k, n, y + r);
        }
    }
}
