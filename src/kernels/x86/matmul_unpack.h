/* SPDX-License-Identifier: Apache-2.0 */
/* Part of matmul_body.h. Unpacking: a chunk of up to LANES weight rows into a panel, with its scales and minimums. */

/* [4 dwords of 4 rows] to [4 rows of 4 dwords] within each 128-bit part. */
ALWAYS_INLINE void transpose4(vi v[4])
{
    const vi a = vi_low32(v[0], v[1]), b = vi_high32(v[0], v[1]), c = vi_low32(v[2], v[3]), d = vi_high32(v[2], v[3]);
    v[0] = vi_low64(a, c);
    v[1] = vi_high64(a, c);
    v[2] = vi_low64(b, d);
    v[3] = vi_high64(b, d);
}

/* 16 bytes of each row: four dwords of LANES rows. */
ALWAYS_INLINE void load_piece(const struct rows *w, size_t offset, vi v[4])
{
    UNROLL for (int j = 0; j < 4; j++) v[j] = vi_row_pieces(w, offset, j);
    transpose4(v);
}

/* Where 16 elements of each row go, weight + offset as bytes: into a panel (here), or into sums (matmul_direct.h). */
struct sink {
    const struct product *p;
    uint8_t *panel; /* from its place 0; NULL: `direct` has the sums */
    struct direct *direct;
};
ALWAYS_INLINE void meet_piece(struct direct *, unsigned at, const vi v[4]);

/* To place `at`, in elements of 16. */
ALWAYS_INLINE void put_piece(const struct sink *to, unsigned at, const vi v[4])
{
    if (to->panel == NULL) {
        meet_piece(to->direct, at, v);
        return;
    }
    if (to->p->panel == PANEL_U8) {
        UNROLL for (int j = 0; j < 4; j++) vi_store(to->panel + (at * 4 + j) * sizeof(vi), v[j]);
        return;
    }
    /* Bytes 0, 1 and 2, 3 of each dword as two u16. */
    const vi low = vi_copies16((const int8_t[16]){0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1});
    const vi high = vi_copies16((const int8_t[16]){2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1});
    const vi offset = vi_set16((int16_t)to->p->format->offset);
    UNROLL for (int j = 0; j < 4; j++)
    {
        vi_store(to->panel + (at * 8 + 2 * j) * sizeof(vi), vi_sub16(vi_shuffle8(v[j], low), offset));
        vi_store(to->panel + (at * 8 + 2 * j + 1) * sizeof(vi), vi_sub16(vi_shuffle8(v[j], high), offset));
    }
}

/* Bits [from, from + n) of each byte as bits [to, to + n), the others 0. */
ALWAYS_INLINE vi bits(vi v, const int from, const int n, const int to)
{
    return vi_and(from > to ? vi_right16(v, from - to) : from < to ? vi_left16(v, to - from) : v, vi_set8((int8_t)(((1 << n) - 1) << to)));
}

/* ---- Blocks of 32 elements. ---- */

/* The upper bits of Q5_0 and Q5_1, 4j to 4j + 3 of each row's dword: 16 where a bit is set, else 0, in the bytes of the dword. */
ALWAYS_INLINE vi fifth_bits(vi dword, const int j)
{
    const vi same = vi_copies16((const int8_t[16]){0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12});
    const vi bit = vi_set32(j % 2 == 0 ? 0x08040201 : (int32_t)0x80402010);
    return vi_where_set(vi_shuffle8(vi_right32(dword, j / 2 * 8), same), bit, vi_set8(16));
}

/* Bytes of a block before its codes: d; min where there is one; upper bits where there are some. */
ALWAYS_INLINE bool layout_has_fives(const enum layout layout) { return layout == FORMAT_Q5_0 || layout == FORMAT_Q5_1; }
ALWAYS_INLINE bool layout_has_min(const enum layout layout)
{
    return layout == FORMAT_Q4_1 || layout == FORMAT_Q5_1 || layout == FORMAT_Q2_K || layout == FORMAT_Q4_K || layout == FORMAT_Q5_K;
}
ALWAYS_INLINE size_t layout_head_bytes(const enum layout layout) { return (layout_has_min(layout) ? 4 : 2) + (layout_has_fives(layout) ? 4 : 0); }
ALWAYS_INLINE size_t layout_block_bytes(const enum layout layout)
{
    switch (layout) {
    case FORMAT_Q2_K:
        return 84;
    case FORMAT_Q3_K:
        return 110;
    case FORMAT_Q4_K:
        return 144;
    case FORMAT_Q5_K:
        return 176;
    case FORMAT_Q6_K:
        return 210;
    case FORMAT_TQ2_0:
        return 66;
    default:
        return layout_head_bytes(layout) + (layout == FORMAT_Q8_0 ? 32 : 16);
    }
}

/* A block; fives: the dwords of the upper bits. */
ALWAYS_INLINE void codes_block(const enum layout layout, const struct sink *to, const struct rows *w, unsigned b, vi fives)
{
    const size_t head = layout_head_bytes(layout);
    vi v0[4], v1[4];
    load_piece(w, head, v0);
    if (layout == FORMAT_Q8_0) {
        load_piece(w, head + 16, v1);
        UNROLL for (int j = 0; j < 4; j++)
        {
            v0[j] = vi_xor(v0[j], vi_set8(-128));
            v1[j] = vi_xor(v1[j], vi_set8(-128));
        }
    } else {
        UNROLL for (int j = 0; j < 4; j++)
        {
            v1[j] = bits(v0[j], 4, 4, 0);
            v0[j] = bits(v0[j], 0, 4, 0);
        }
    }
    if (layout_has_fives(layout)) {
        UNROLL for (int j = 0; j < 4; j++)
        {
            v0[j] = vi_or(v0[j], fifth_bits(fives, j));
            v1[j] = vi_or(v1[j], fifth_bits(fives, 4 + j));
        }
    }
    put_piece(to, 2 * b, v0);
    put_piece(to, 2 * b + 1, v1);
}

/* n blocks of LANES rows. */
ALWAYS_INLINE void unpack_blocks(const enum layout layout, const struct product *p, const struct panel_rows *rows, unsigned n, unsigned panel)
{
    const bool has_min = layout_has_min(layout);
    const size_t block_bytes = layout_block_bytes(layout);
    struct work *work = p->work;
    const struct sink to = {.p = p, .panel = work->panels[panel]};
    struct rows w = rows_at(rows->first, rows->stride);
    for (unsigned b = 0; b < n; b++, rows_move(&w, (ptrdiff_t)block_bytes)) {
        if (layout == FORMAT_Q8_0 || b % 2 == 0) prefetch_rows(w, rows, b * block_bytes);
        copy_halves(work->halves[0][b], &w, 0);
        if (has_min) copy_halves(work->halves[1][b], &w, 2);
        vi fives[4] = {vi_zero()};
        if (layout_has_fives(layout)) load_piece(&w, has_min ? 4 : 2, fives);
        codes_block(layout, &to, &w, b, fives[0]);
    }
    for (unsigned b = 0; b < n; b++) {
        vf_store(work->scale[panel][b], vf_from_f16(work->halves[0][b]));
        if (has_min) vf_store(work->min[panel][b], vf_from_f16(work->halves[1][b]));
    }
}

/* ---- Blocks of 256 elements: where their bits lie is said in src/quant/<format>.c. ---- */

/* Scales of four groups: d times what is in the four bytes of each dword, less bias; bias 128: in signed bytes as they are. */
ALWAYS_INLINE void four_scales(vf to[4], vi codes, const int bias, vf d)
{
    UNROLL for (int i = 0; i < 4; i++)
    {
        const bool is_signed = bias == 128;
        vi code = is_signed ? vi_right32_signed(vi_left32(codes, 24 - 8 * i), 24) : vi_right32(codes, 8 * i);
        if (!is_signed && i < 3) code = vi_and(code, vi_set32(255));
        to[i] = vf_mul(vi_to_f32(is_signed || bias == 0 ? code : vi_sub32(code, vi_set32(bias))), d);
    }
}

/* Q2_K, TQ2_0. */
ALWAYS_INLINE void codes_q2_k(const enum layout layout, const struct sink *to, const struct rows *w)
{
    UNROLL for (unsigned i = 0; i < 4; i++) /* halves of the block, halves of 32 */
    {
        vi v[4], q[4];
        load_piece(w, (layout == FORMAT_Q2_K ? 16 : 0) + 16 * i, v);
        UNROLL for (int t = 0; t < 4; t++)
        {
            UNROLL for (int j = 0; j < 4; j++) q[j] = bits(v[j], 2 * t, 2, 0);
            put_piece(to, 8 * (i / 2) + 2 * (unsigned)t + i % 2, q);
        }
    }
}

ALWAYS_INLINE void codes_q3_k(const struct sink *to, const struct rows *w)
{
    UNROLL for (unsigned l = 0; l < 2; l++)
    {
        vi high[4], v[4], q[4];
        load_piece(w, 16 * l, high);
        UNROLL for (int half = 0; half < 2; half++)
        {
            load_piece(w, 32 + 32 * (unsigned)half + 16 * l, v);
            UNROLL for (int t = 0; t < 4; t++)
            {
                UNROLL for (int j = 0; j < 4; j++) q[j] = vi_or(bits(v[j], 2 * t, 2, 0), bits(high[j], 4 * half + t, 1, 2));
                put_piece(to, 8 * (unsigned)half + 2 * (unsigned)t + l, q);
            }
        }
    }
}

ALWAYS_INLINE void codes_q4_k(const enum layout layout, const struct sink *to, const struct rows *w)
{
    const size_t nibbles = layout == FORMAT_Q5_K ? 48 : 16;
    UNROLL for (unsigned l = 0; l < 2; l++)
    {
        vi high[4], v[4], q[4];
        if (layout == FORMAT_Q5_K) load_piece(w, 16 + 16 * l, high);
        UNROLL for (int c = 0; c < 4; c++)
        {
            load_piece(w, nibbles + 32 * (unsigned)c + 16 * l, v);
            UNROLL for (int t = 0; t < 2; t++)
            {
                UNROLL for (int j = 0; j < 4; j++)
                {
                    q[j] = bits(v[j], 4 * t, 4, 0);
                    if (layout == FORMAT_Q5_K) q[j] = vi_or(q[j], bits(high[j], 2 * c + t, 1, 4));
                }
                put_piece(to, 4 * (unsigned)c + 2 * (unsigned)t + l, q);
            }
        }
    }
}

ALWAYS_INLINE void codes_q6_k(const struct sink *to, const struct rows *w)
{
    UNROLL for (unsigned i = 0; i < 4; i++) /* halves of the block, halves of 32 */
    {
        const unsigned half = i / 2, l = i % 2;
        vi high[4], v[4], q[4];
        load_piece(w, 128 + 16 * i, high);
        UNROLL for (int t = 0; t < 4; t++)
        {
            if (t < 2) load_piece(w, 64 * half + 32 * (unsigned)t + 16 * l, v);
            if (t == 2) load_piece(w, 64 * half + 16 * l, v);
            if (t == 3) load_piece(w, 64 * half + 32 + 16 * l, v);
            UNROLL for (int j = 0; j < 4; j++) q[j] = vi_or(bits(v[j], t / 2 * 4, 4, 0), bits(high[j], 2 * t, 2, 4));
            put_piece(to, 8 * half + 2 * (unsigned)t + l, q);
        }
    }
}

/* Scales and minimums of a block. */
ALWAYS_INLINE void scales_k(const enum layout layout, const struct rows *w, vf *scale, vf *min)
{
    /* The halves d and dmin are at the start of a block, or at the end of the 16 bytes that its last piece has. */
    const bool first = layout == FORMAT_Q4_K || layout == FORMAT_Q5_K;
    vi s[4];
    load_piece(w, first ? 0 : layout_block_bytes(layout) - 16, s);
    const vi halves = first ? s[0] : s[3];
    const vf d = vf_from_low_f16(layout_has_min(layout) ? halves : vi_right32(halves, 16));
    const vf down = layout_has_min(layout) ? vf_mul(vf_from_low_f16(vi_right32(halves, 16)), vf_set(-1.0f)) : d;
    switch (layout) {
    case FORMAT_Q2_K:
        load_piece(w, 0, s);
        UNROLL for (int i = 0; i < 4; i++)
        {
            four_scales(scale + 4 * i, bits(s[i], 0, 4, 0), 0, d);
            four_scales(min + 4 * i, bits(s[i], 4, 4, 0), 0, down);
        }
        break;
    case FORMAT_Q3_K:
        load_piece(w, 92, s); /* 4 bytes before the scales, since less than 16 follow */
        UNROLL for (int i = 0; i < 4; i++) four_scales(scale + 4 * i, vi_or(bits(s[1 + i % 2], i / 2 * 4, 4, 0), bits(s[3], 2 * i, 2, 4)), 32, d);
        break;
    case FORMAT_Q6_K:
        load_piece(w, 192, s);
        UNROLL for (int i = 0; i < 4; i++) four_scales(scale + 4 * i, s[i], 128, d);
        break;
    case FORMAT_TQ2_0:
        UNROLL for (int g = 0; g < 8; g++) scale[g] = d;
        break;
    default: /* Q4_K, Q5_K: k_pair of quant/blocks.h */
        four_scales(scale, bits(s[1], 0, 6, 0), 0, d);
        four_scales(min, bits(s[2], 0, 6, 0), 0, down);
        four_scales(scale + 4, vi_or(bits(s[3], 0, 4, 0), bits(s[1], 6, 2, 4)), 0, d);
        four_scales(min + 4, vi_or(bits(s[3], 4, 4, 0), bits(s[2], 6, 2, 4)), 0, down);
    }
}

ALWAYS_INLINE void codes_k(const enum layout layout, const struct sink *to, const struct rows *w)
{
    if (layout == FORMAT_Q2_K || layout == FORMAT_TQ2_0)
        codes_q2_k(layout, to, w);
    else if (layout == FORMAT_Q3_K)
        codes_q3_k(to, w);
    else if (layout == FORMAT_Q6_K)
        codes_q6_k(to, w);
    else
        codes_q4_k(layout, to, w);
}

/* n groups of 32 of LANES rows. */
ALWAYS_INLINE void unpack_k(const enum layout layout, const struct product *p, const struct panel_rows *rows, unsigned n, unsigned panel)
{
    const size_t block_bytes = layout_block_bytes(layout);
    const unsigned groups = layout == FORMAT_Q2_K || layout == FORMAT_Q3_K || layout == FORMAT_Q6_K ? 16 : 8;
    struct work *work = p->work;
    struct rows w = rows_at(rows->first, rows->stride);
    for (unsigned b = 0; b < n / 8; b++, rows_move(&w, (ptrdiff_t)block_bytes)) {
        const struct sink to = {.p = p, .panel = work->panels[panel] + b * 16 * (p->panel == PANEL_U8 ? 4 : 8) * sizeof(vi)};
        for (size_t line = 0; line < block_bytes; line += 64) {
            struct rows ahead = w;
            rows_move(&ahead, (ptrdiff_t)line);
            prefetch_rows(ahead, rows, b * block_bytes + line);
        }
        codes_k(layout, &to, &w);
        scales_k(layout, &w, (vf *)(void *)work->scale[panel][b * groups], (vf *)(void *)work->min[panel][b * groups]);
    }
}

#define UNPACK(name, how, layout)                                                                                                                              \
    NEVER_INLINE void name(const struct product *p, const struct panel_rows *rows, unsigned n, unsigned panel) { how(layout, p, rows, n, panel); }
UNPACK(unpack_q4_0, unpack_blocks, FORMAT_Q4_0)
UNPACK(unpack_q4_1, unpack_blocks, FORMAT_Q4_1)
UNPACK(unpack_q5_0, unpack_blocks, FORMAT_Q5_0)
UNPACK(unpack_q5_1, unpack_blocks, FORMAT_Q5_1)
UNPACK(unpack_q8_0, unpack_blocks, FORMAT_Q8_0)
UNPACK(unpack_q2_k, unpack_k, FORMAT_Q2_K)
UNPACK(unpack_q3_k, unpack_k, FORMAT_Q3_K)
UNPACK(unpack_q4_k, unpack_k, FORMAT_Q4_K)
UNPACK(unpack_q5_k, unpack_k, FORMAT_Q5_K)
UNPACK(unpack_q6_k, unpack_k, FORMAT_Q6_K)
UNPACK(unpack_tq2_0, unpack_k, FORMAT_TQ2_0)

/* ---- Any format. ---- */

/* 32 elements at a time, [b0, b0 + n) of them, of rows of any format. */
NEVER_INLINE void unpack_decoded(const struct product *p, const struct panel_rows *rows, size_t b0, unsigned n, unsigned panel)
{
    _Alignas(64) uint8_t block[8][LANES][4] = {{{0}}};
    const unsigned parts = WR_GROUP / p->group;
    const struct sink to = {.p = p, .panel = p->work->panels[panel]};
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
        for (unsigned half = 0; half < 2; half++) {
            vi v[4];
            for (unsigned j = 0; j < 4; j++) v[j] = vi_load(block[4 * half + j]);
            put_piece(&to, 2 * b + half, v);
        }
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
    if (p->format->unpack == NULL) {
        unpack_decoded(p, rows, k0 / WR_GROUP, n_blocks, panel);
        return;
    }
    struct panel_rows from = *rows;
    from.first += k0 / p->quant->block_elems * p->quant->block_bytes;
    if (rows->lanes < LANES) {
        const size_t bytes = n / p->quant->block_elems * p->quant->block_bytes;
        for (unsigned i = 0; i < rows->lanes; i++) memcpy(p->work->last_rows[i], from.first + i * rows->stride, bytes);
        from = (struct panel_rows){.first = p->work->last_rows[0], .stride = sizeof p->work->last_rows[0], .lanes = LANES};
    }
    p->format->unpack(p, &from, n_blocks, panel);
}
