/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of matmul_body.h. Direct: up to DIRECT_M activation rows against panels of LANES weight rows, straight from the
 * file's blocks to integer sums.
 *
 * The rows of a panel are neighbours, and while it is computed the next one is fetched as what it is in memory: one long
 * stream in ascending order, whatever the order in which the lanes then read it. Fetching ahead in each row by itself
 * gives 0.7 of the rate of a plain read (Zen 4, Q4_0, k = 4096, m = 1); so 0.9 and more.
 */

enum {
    FETCH_AHEAD = 8192, /* bytes beyond the next panel's place: so much is under way at least */
    HEADS_AHEAD = 8,    /* a power of two */
};

struct direct {
    enum layout layout;
    unsigned m;
    bool precise;
    const char *x; /* q8, or q16 in pairs, of the block's first element */
    size_t ldx;    /* bytes */
    const int32_t *start;
    size_t n_groups;
    const char *ahead;
    unsigned pieces;      /* of the block that were met */
    vi sum[16][DIRECT_M]; /* of each group of a block */
};

ALWAYS_INLINE unsigned layout_bits(const enum layout layout)
{
    return layout == FORMAT_Q8_0 ? 8 : layout == FORMAT_Q6_K ? 6 : layout_has_fives(layout) || layout == FORMAT_Q5_K ? 5 : 4;
}
/* Blocks that begin with half a dword, and those that are met two at a time, which are whole dwords. */
ALWAYS_INLINE bool layout_halves(const enum layout layout) { return layout == FORMAT_Q4_0 || layout == FORMAT_Q8_0; }
ALWAYS_INLINE bool layout_in_pairs(const enum layout layout) { return layout_halves(layout) || layout == FORMAT_Q4_1; }
ALWAYS_INLINE unsigned direct_elems(const enum layout layout) { return layout >= FORMAT_Q2_K ? 256 : layout_in_pairs(layout) ? 64 : 32; }
ALWAYS_INLINE size_t direct_bytes(const enum layout layout) { return layout_block_bytes(layout) * (layout_in_pairs(layout) ? 2 : 1); }
ALWAYS_INLINE unsigned layout_group(const enum layout layout) { return layout == FORMAT_Q2_K || layout == FORMAT_Q3_K || layout == FORMAT_Q6_K ? 16 : 32; }

/* Part `part` of `parts` of a block's share of the stream. Volatile assembly stays between the computations; gcc 12 moves all prefetches of a block to its
 * start, and of so many at once most are lost. */
ALWAYS_INLINE void fetch_ahead(const struct direct *d, unsigned part, unsigned parts)
{
    const size_t bytes = LANES * direct_bytes(d->layout), line = (part * bytes / parts + 63) / 64, next = ((part + 1) * bytes / parts + 63) / 64;
    UNROLL for (size_t i = 0; i < next - line; i++) __asm__ volatile("prefetcht1 %0" : : "m"(d->ahead[(line + i) * 64]));
}

/* 16 elements of each weight row: their products are added to the sum of their group. */
ALWAYS_INLINE void meet_piece(struct direct *d, unsigned at, const vi v[4])
{
    const unsigned per_group = layout_group(d->layout) / 16, group = at / per_group, bits = layout_bits(d->layout), pieces = direct_elems(d->layout) / 16;
    UNROLL for (unsigned i = 0; i < d->m; i++)
    {
        const int32_t *start = d->start + i * d->n_groups + group;
        vi sum = at % per_group != 0 ? d->sum[group][i] : layout_has_min(d->layout) ? vi_zero() : vi_set32(*start);
        const char *x = d->x + i * d->ldx + at * 16 * (d->precise ? sizeof(int16_t) : 1);
        if (d->precise) {
            UNROLL for (int j = 0; j < 4; j++)
            {
                sum = dot_s16(sum, vi_and(v[j], vi_set16(255)), x + j * 8);
                sum = dot_s16(sum, vi_right16(v[j], 8), x + j * 8 + 4);
                fetch_ahead(d, 4 * d->pieces + j, 4 * pieces);
            }
        } else if (bits == 8 && BYTES_BY_PAIRS) {
            UNROLL for (int j = 0; j < 4; j++)
            {
                sum = dot_s8(sum, vi_xor(v[j], vi_set8(-128)), x + j * 4);
                if (i == 0) fetch_ahead(d, 4 * d->pieces + j, 4 * pieces);
            }
        } else if (U8_STEPS(bits) >= 4 * (int)per_group) {
            const vi begin = sum;
            sum = at % per_group == 0 ? dot_u8_from(begin) : begin;
            UNROLL for (int j = 0; j < 4; j++)
            {
                sum = dot_u8(sum, v[j], x + j * 4);
                if (i == 0) fetch_ahead(d, 4 * d->pieces + j, 4 * pieces);
            }
            if (at % per_group == per_group - 1) sum = dot_u8_end(sum, layout_has_min(d->layout) ? vi_zero() : vi_set32(*start));
        } else {
            const int part = U8_STEPS(bits) < 4 ? U8_STEPS(bits) : 4;
            UNROLL for (int first = 0; first < 4; first += part)
            {
                vi some = dot_u8_from(sum);
                UNROLL for (int j = first; j < first + part; j++)
                {
                    some = dot_u8(some, v[j], x + j * 4);
                    if (i == 0) fetch_ahead(d, 4 * d->pieces + j, 4 * pieces);
                }
                sum = dot_u8_end(some, sum);
            }
        }
        d->sum[group][i] = sum;
    }
    d->pieces++;
}

/* Heads of the blocks, 8 bytes a row or 6, are gathered by scalar moves, which leave the vector ports alone. That is done some blocks ahead, since a vector
 * load cannot be forwarded from these stores. */
ALWAYS_INLINE void gather_heads(const struct rows *w, uint8_t *to)
{
    UNROLL for (int r = 0; r < LANES; r++)
    {
        const uint8_t *row = row_at(w, r);
        uint64_t head;
        /* Assembly: gcc 12 would join plain stores by vpinsrq. */
        __asm__("movq %2, %0\n\tmovq %0, %1" : "=&r"(head), "=m"(*(uint8_t(*)[8])(to + 8 * r)) : "m"(*(const uint8_t(*)[8])row));
    }
}

/* The two pointers in registers of their own: gcc 12 would keep them as one vector, in memory. */
ALWAYS_INLINE void rows_step(struct rows *w, ptrdiff_t bytes)
{
    rows_move(w, bytes);
    __asm__("" : "+r"(w->p[0]), "+r"(w->p[1]));
}

/* Four dwords of LANES rows: 16 codes of 8 bits, or 16 of 4 and 16 more. */
ALWAYS_INLINE void put_codes(const struct sink *to, unsigned at, const unsigned n_bits, vi v0, vi v1, vi v2, vi v3)
{
    const vi v[4] = {v0, v1, v2, v3};
    vi q[4];
    UNROLL for (int j = 0; j < 4; j++) q[j] = n_bits == 8 ? vi_xor(v[j], vi_set8(-128)) : bits(v[j], 0, 4, 0);
    put_piece(to, at, q);
    if (n_bits == 8) return;
    UNROLL for (int j = 0; j < 4; j++) q[j] = bits(v[j], 4, 4, 0);
    put_piece(to, at + 1, q);
}

/* Two blocks and their scales, as dwords of LANES rows. Where a scale is half of dword 0, a dword in the middle has the end of the first block and the scale
 * of the second: the former and what is left of dword 0 are met last, see order_pairs(). */
ALWAYS_INLINE void codes_pair(const enum layout layout, const struct sink *to, const struct rows *w, vf scale[2], vf min[2])
{
    const size_t bytes = direct_bytes(layout);
    vi first[4], middle[4], more[4], last[4];
    load_piece(w, 0, first);
    load_piece(w, layout == FORMAT_Q8_0 ? 32 : 16, middle);
    if (layout_halves(layout)) {
        vf_from_both_f16(vi_halves(first[0], middle[0]), &scale[0], &scale[1]);
        first[0] = vi_halves(middle[0], first[0]);
    } else {
        vf_from_both_f16(first[0], &scale[0], &min[0]);
        vf_from_both_f16(middle[1], &scale[1], &min[1]);
    }
    switch (layout) {
    case FORMAT_Q4_0:
        put_codes(to, 0, 4, first[1], first[2], first[3], first[0]);
        load_piece(w, bytes - 16, last);
        put_codes(to, 2, 4, middle[1], middle[2], middle[3], last[3]);
        break;
    case FORMAT_Q4_1:
        put_codes(to, 0, 4, first[1], first[2], first[3], middle[0]);
        load_piece(w, bytes - 16, last);
        put_codes(to, 2, 4, middle[2], middle[3], last[2], last[3]);
        break;
    default: /* Q8_0 */
        load_piece(w, 16, more);
        put_codes(to, 0, 8, first[1], first[2], first[3], more[0]);
        put_codes(to, 1, 8, more[1], more[2], more[3], first[0]);
        load_piece(w, 48, more);
        load_piece(w, bytes - 16, last);
        put_codes(to, 2, 8, middle[1], middle[2], middle[3], more[0]);
        put_codes(to, 3, 8, more[1], more[2], more[3], last[3]);
    }
}

struct direct_call {
    const struct wr_act *act;
    const uint8_t *rows;
    size_t stride;
    uint32_t n_panels;
    float *y;
    size_t ldy;
    const int32_t *start; /* [m][groups] -offset * s */
    const void *x;        /* [m][k] int8, or precise, int16 with the middle ones of four exchanged; see codes_pair() */
};

ALWAYS_INLINE void direct(const enum layout layout, const unsigned m, const bool precise, const struct direct_call *call)
{
    const struct wr_act *act = call->act;
    const unsigned block = direct_elems(layout), group = layout_group(layout), groups = block / group;
    const size_t k = act->k, n_blocks = k / block, n_groups = k / group, n_d = k / WR_GROUP, block_bytes = direct_bytes(layout);
    const size_t panel_bytes = LANES * call->stride, this_panel = n_blocks - HEADS_AHEAD; /* its first blocks, whose heads gathered ahead are its own */
    const ptrdiff_t next_panel = (ptrdiff_t)(panel_bytes + HEADS_AHEAD * block_bytes - n_blocks * block_bytes);
    const float *sums = group == 16 ? act->s16 : act->s;
    _Alignas(64) uint8_t heads[HEADS_AHEAD][LANES * 8];
    if (block == 32) {
        struct rows w = rows_at(call->rows, call->stride);
        for (size_t b = 0; b < HEADS_AHEAD; b++, rows_move(&w, (ptrdiff_t)block_bytes)) gather_heads(&w, heads[b]);
    }
    size_t head = 0;
    for (uint32_t panel = 0; panel < call->n_panels; panel++) {
        struct rows w = rows_at(call->rows + panel * panel_bytes, call->stride);
        struct direct d = {.layout = layout, .m = m, .precise = precise, .start = call->start, .n_groups = n_groups};
        d.x = call->x;
        d.ldx = k * (precise ? sizeof(int16_t) : 1);
        d.ahead = (const char *)call->rows + (panel + 1) * panel_bytes + FETCH_AHEAD;
        const struct sink to = {.direct = &d};
        vf acc[DIRECT_M];
        UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_zero();
        for (size_t b = 0; b < n_blocks; b++) {
            vf scale[16], min[16];
            d.pieces = 0;
            if (block == 32) {
                uint8_t *at = heads[head++ % HEADS_AHEAD];
                const vi first = vi_even32(at);
                vi fives = vi_odd32(at);
                if (layout == FORMAT_Q5_0) fives = vi_or(vi_right32(first, 16), vi_left32(fives, 16));
                scale[0] = vf_from_low_f16(first);
                if (layout_has_min(layout)) min[0] = vf_from_low_f16(vi_right32(first, 16));
                if (b < this_panel || panel + 1 < call->n_panels) {
                    struct rows ahead = w;
                    rows_step(&ahead, b < this_panel ? (ptrdiff_t)(HEADS_AHEAD * block_bytes) : next_panel);
                    gather_heads(&ahead, at);
                }
                codes_block(layout, &to, &w, 0, fives);
            } else if (layout_in_pairs(layout)) {
                codes_pair(layout, &to, &w, scale, min);
            } else {
                scales_k(layout, &w, scale, min);
                codes_k(layout, &to, &w);
            }
            rows_step(&w, (ptrdiff_t)block_bytes);
            UNROLL for (unsigned g = 0; g < groups; g++)
            {
                UNROLL for (unsigned i = 0; i < m; i++)
                {
                    const size_t at = b * groups + g;
                    const vf dx = vf_set(act->d[i * n_d + (group == 16 ? at / 2 : at)]);
                    acc[i] = vf_fma(vi_to_f32(d.sum[g][i]), vf_mul(scale[g], dx), acc[i]);
                    if (layout_has_min(layout)) acc[i] = vf_fma(vf_set(sums[i * n_groups + at]), vf_mul(min[g], dx), acc[i]);
                }
            }
            d.x += block * (precise ? sizeof(int16_t) : 1);
            d.start += groups;
            d.ahead += LANES * block_bytes;
        }
        UNROLL for (unsigned i = 0; i < m; i++) vf_store(call->y + i * call->ldy + panel * LANES, acc[i]);
    }
}

/* Rule f. */
ALWAYS_INLINE void direct_floats(const enum wr_type type, const unsigned m, const struct direct_call *call)
{
    const struct wr_act *act = call->act;
    const size_t panel_bytes = LANES * call->stride;
    for (uint32_t panel = 0; panel < call->n_panels; panel++) {
        struct rows w = rows_at(call->rows + panel * panel_bytes, call->stride);
        const char *ahead = (const char *)call->rows + (panel + 1) * panel_bytes + FETCH_AHEAD;
        const float *x = act->x, *end = x + act->k;
        vf acc[DIRECT_M];
        UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_zero();
        while (x < end) {
            /* A whole line of one row after the other: where rows lie a power of two apart, the lines of all of them do not fit the first-level cache. */
            vi v[4][4];
            UNROLL for (int j = 0; j < 4; j++) { UNROLL for (size_t q = 0; q < 4; q++) v[q][j] = vi_row_pieces(&w, 16 * q, j); }
            rows_step(&w, 64);
            UNROLL for (int q = 0; q < 4; q++)
            {
                transpose4(v[q]);
                UNROLL for (int j = 0; j < 4; j++)
                {
                    const vi d = v[q][j];
                    vf first = vf_from_bits(d), second;
                    if (type == WR_TYPE_F16) {
                        vf_from_both_f16(d, &first, &second);
                    } else if (type == WR_TYPE_BF16) {
                        first = vf_from_bits(vi_left32(d, 16));
                        second = vf_from_bits(vi_and(d, vi_set32((int32_t)0xffff0000)));
                    }
                    UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_fma(first, vf_set(x[i * act->ldx]), acc[i]);
                    x++;
                    if (j < LANES / 4) __asm__ volatile("prefetcht1 %0" : : "m"(ahead[(q * LANES / 4 + j) * 64]));
                    if (type == WR_TYPE_F32) continue;
                    UNROLL for (unsigned i = 0; i < m; i++) acc[i] = vf_fma(second, vf_set(x[i * act->ldx]), acc[i]);
                    x++;
                }
            }
            ahead += 64 * LANES;
        }
        UNROLL for (unsigned i = 0; i < m; i++) vf_store(call->y + i * call->ldy + panel * LANES, acc[i]);
    }
}

/* A format's direct products: of 1, 2, 4 activation rows, and of 1 with --precise. */
#define DIRECT_(name, m, ...)                                                                                                                                  \
    NEVER_INLINE void name##_##m(const struct direct_call *call) { __VA_ARGS__; }
#define DIRECT(name, layout)                                                                                                                                   \
    DIRECT_(name, 1, direct(layout, 1, false, call))                                                                                                           \
    DIRECT_(name, 2, direct(layout, 2, false, call))                                                                                                           \
    DIRECT_(name, 4, direct(layout, 4, false, call))                                                                                                           \
    DIRECT_(name, precise, direct(layout, 1, true, call))
#define DIRECT_FLOATS(name, type)                                                                                                                              \
    DIRECT_(name, 1, direct_floats(type, 1, call))                                                                                                             \
    DIRECT_(name, 2, direct_floats(type, 2, call))                                                                                                             \
    DIRECT_(name, 4, direct_floats(type, 4, call))
DIRECT(direct_q4_0, FORMAT_Q4_0)
DIRECT(direct_q4_1, FORMAT_Q4_1)
DIRECT(direct_q5_0, FORMAT_Q5_0)
DIRECT(direct_q5_1, FORMAT_Q5_1)
DIRECT(direct_q8_0, FORMAT_Q8_0)
DIRECT(direct_q2_k, FORMAT_Q2_K)
DIRECT(direct_q3_k, FORMAT_Q3_K)
DIRECT(direct_q4_k, FORMAT_Q4_K)
DIRECT(direct_q5_k, FORMAT_Q5_K)
DIRECT(direct_q6_k, FORMAT_Q6_K)
DIRECT_FLOATS(direct_f32, WR_TYPE_F32)
DIRECT_FLOATS(direct_f16, WR_TYPE_F16)
DIRECT_FLOATS(direct_bf16, WR_TYPE_BF16)

static const struct direct_way {
    uint32_t id;
    void (*run[3])(const struct direct_call *); /* of 1, 2, 4 rows */
    void (*precise)(const struct direct_call *);
} direct_ways[] = {
#define DIRECT_WAY(id, name)                                                                                                                                   \
    {                                                                                                                                                          \
        id, {name##_1, name##_2, name##_4}, name##_precise                                                                                                     \
    }
#define DIRECT_FLOATS_WAY(id, name)                                                                                                                            \
    {                                                                                                                                                          \
        id, {name##_1, name##_2, name##_4}, NULL                                                                                                               \
    }
    DIRECT_WAY(WR_TYPE_Q4_0, direct_q4_0),
    DIRECT_WAY(WR_TYPE_Q4_1, direct_q4_1),
    DIRECT_WAY(WR_TYPE_Q5_0, direct_q5_0),
    DIRECT_WAY(WR_TYPE_Q5_1, direct_q5_1),
    DIRECT_WAY(WR_TYPE_Q8_0, direct_q8_0),
    DIRECT_WAY(WR_TYPE_Q2_K, direct_q2_k),
    DIRECT_WAY(WR_TYPE_Q3_K, direct_q3_k),
    DIRECT_WAY(WR_TYPE_Q4_K, direct_q4_k),
    DIRECT_WAY(WR_TYPE_Q5_K, direct_q5_k),
    DIRECT_WAY(WR_TYPE_Q6_K, direct_q6_k),
    DIRECT_FLOATS_WAY(WR_TYPE_F32, direct_f32),
    DIRECT_FLOATS_WAY(WR_TYPE_F16, direct_f16),
    DIRECT_FLOATS_WAY(WR_TYPE_BF16, direct_bf16),
};

/* Activations of `bytes` each as codes_pair() wants them: the two that dword 0 holds come last in the first of two blocks, of each half of it where a byte
 * has two codes. */
ALWAYS_INLINE void order_pairs(__m128i *to, const __m128i *x, size_t n, const int bytes, const int part)
{
    const int n_part = part * bytes / 16;
    for (const __m128i *end = x + n * bytes / 16; x < end; x += 4 * bytes, to += 4 * bytes) {
        UNROLL for (int i = 0; i < 2 * bytes; i++)
        {
            const int next = i % n_part + 1 < n_part ? i + 1 : i / n_part * n_part;
            const __m128i low = _mm_loadu_si128(x + i), high = _mm_loadu_si128(x + next);
            to[i] = bytes == 2 ? _mm_alignr_epi8(high, low, 4) : _mm_alignr_epi8(high, low, 2); /* a literal: clang takes nothing else */
            to[2 * bytes + i] = _mm_loadu_si128(x + 2 * bytes + i);
        }
    }
}

/* What does not depend on the weights, into the work space. False if it does not fit. */
static bool prepare_direct(const struct product *p, struct direct_call *call)
{
    const struct wr_act *act = p->act;
    const enum layout layout = p->format->layout;
    int32_t *start = (int32_t *)(void *)p->work;
    const size_t n_x = act->m * (size_t)act->k, n = n_x / p->group, n_start = (n + LANES - 1) / LANES * LANES;
    void *order = start + n_start;
    int16_t *q16 = order;
    const float *sums = p->group == 16 ? act->s16 : act->s;
    if (layout_in_pairs(layout) && act->k % 64 != 0) return false;
    if (n_start * sizeof *start + n_x * (act->precise ? sizeof *q16 : layout_halves(layout)) > sizeof *p->work) return false;
    const bool is_signed = BYTES_BY_PAIRS && p->format->bits == 8 && !act->precise;
    const vf offset = vf_set(is_signed ? 0 : -(float)p->format->offset);
    for (size_t g = 0; g < n; g += LANES) vi_store(start + g, vi_from_f32(vf_mul(offset, load_lanes(sums + g, (unsigned)(n - g))))); /* exact */
    call->x = act->precise ? (const void *)act->q16 : act->q8;
    if (layout_halves(layout)) {
        if (act->precise)
            layout == FORMAT_Q8_0 ? order_pairs(order, call->x, n_x, 2, 32) : order_pairs(order, call->x, n_x, 2, 16);
        else
            layout == FORMAT_Q8_0 ? order_pairs(order, call->x, n_x, 1, 32) : order_pairs(order, call->x, n_x, 1, 16);
        call->x = order;
    }
    for (size_t i = 0; i < n_x && act->precise; i += 4) {
        const int16_t *from = (const int16_t *)call->x + i, second = from[1];
        q16[i] = from[0];
        q16[i + 1] = from[2];
        q16[i + 2] = second;
        q16[i + 3] = from[3];
    }
    if (act->precise) call->x = q16;
    call->start = start;
    return true;
}

/* The full panels of n_rows, if there is a direct way. Returns the rows done. */
static uint32_t run_direct(const struct product *p, const uint8_t *rows, size_t stride, uint32_t n_rows, float *y, size_t ldy)
{
    const struct direct_way *way = NULL;
    for (size_t i = 0; i < sizeof direct_ways / sizeof direct_ways[0]; i++) {
        if (direct_ways[i].id == p->quant->id) way = &direct_ways[i];
    }
    const bool is_float = p->quant->is_float;
    struct wr_act act = *p->act;
    struct direct_call call = {.act = &act, .rows = rows, .stride = stride, .n_panels = n_rows / LANES, .y = y, .ldy = ldy};
    if (way == NULL || call.n_panels == 0 || act.m > (act.precise && !is_float ? 1 : DIRECT_M)) return 0;
    if (is_float ? p->row_bytes % 64 != 0 : act.k < HEADS_AHEAD * WR_GROUP || !prepare_direct(p, &call)) return 0;
    for (uint32_t done = 0, n; done < p->act->m; done += n) {
        const uint32_t left = p->act->m - done, kind = left >= 4 ? 2 : left / 2;
        n = 1u << kind;
        (act.precise && !is_float ? way->precise : way->run[kind])(&call);
        if (is_float) {
            act.x += n * act.ldx;
        } else if (!act.precise) {
            call.x = (const int8_t *)call.x + n * (size_t)act.k;
            act.d += n * (size_t)(act.k / WR_GROUP);
            act.s += n * (size_t)(act.k / WR_GROUP);
            act.s16 += n * (size_t)(act.k / 16);
            call.start += n * (size_t)(act.k / p->group);
        }
        call.y += n * ldy;
    }
    return call.n_panels * LANES;
}
