/* SPDX-License-Identifier: Apache-2.0 */
/* Part of matmul_body.h. Direct: up to DIRECT_M activation rows against LANES weight rows, straight from the file's blocks. */

/* Adds the four dwords of each row in p[0..3] (rows as in vi_row_pieces): the sums come out in row order. */
ALWAYS_INLINE vi fold4(const vi p[4])
{
    const vi ab = vi_add32(vi_low32(p[0], p[1]), vi_high32(p[0], p[1])), cd = vi_add32(vi_low32(p[2], p[3]), vi_high32(p[2], p[3]));
    return vi_add32(vi_low64(ab, cd), vi_high64(ab, cd));
}

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

static bool has_direct(const struct product *p)
{
    return p->format->layout == FORMAT_Q4_0 || p->format->layout == FORMAT_Q4_1 || p->format->layout == FORMAT_Q8_0;
}

static void run_direct(const struct product *p, const struct panel_rows *rows, float *y, size_t ldy, size_t y_step)
{
    if (p->format->layout == FORMAT_Q4_0)
        direct_q4_0(p->act, rows, y, ldy, y_step);
    else if (p->format->layout == FORMAT_Q4_1)
        direct_q4_1(p->act, rows, y, ldy, y_step);
    else
        direct_q8_0(p->act, rows, y, ldy, y_step);
}
