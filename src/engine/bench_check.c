/* SPDX-License-Identifier: Apache-2.0 */
/* Results of weir bench against double precision and against the reference kernels. */
#include "engine/bench.h"

#include <math.h>
#include <string.h>
#include "base/num.h"

#define BLOCK 8 /* weight rows that are checked together: their accumulators fill the registers of any CPU */
#define SIGMAS 8.0
#define U 0x1p-24

typedef double pair __attribute__((vector_size(16)));

struct member { /* one thread's results and work space */
    double max_error, max_output;
    uint64_t n;
    pair *w;                                      /* [k][BLOCK], the weights */
    double (*square)[BLOCK], (*magnitude)[BLOCK]; /* [k / 32]: sum of w^2 of a group; magnitude[0]: sum of a^2 over the row, a >= |w| what was added up to w */
    float *y;                                     /* [m][BLOCK], the reference's */
};

struct check {
    const struct wr_check_products *p;
    uint32_t n_blocks, n_checked;
    _Atomic uint32_t next;
    _Atomic int wrong;
    weir_err err;
};

static uint64_t groups_of(uint32_t k) { return k / WR_GROUP + 1; }

static uint64_t member_bytes(uint32_t k, uint32_t m)
{
    return wr_round_up(sizeof(struct member) + ((uint64_t)k + groups_of(k) + 1) * BLOCK * sizeof(double) + (uint64_t)m * BLOCK * sizeof(float) + 64, 64);
}

uint64_t wr_check_products_bytes(uint32_t k, uint32_t m, uint32_t n_members) { return n_members * member_bytes(k, m); }

static struct member *member_at(const struct wr_check_products *p, uint32_t i)
{
    struct member *self = (struct member *)((uint8_t *)p->work + i * member_bytes(p->act->k, p->act->m));
    self->w = (pair *)wr_round_up((uintptr_t)(self + 1), 64);
    self->square = (double(*)[BLOCK])((double *)self->w + (size_t)p->act->k * BLOCK);
    self->magnitude = self->square + groups_of(p->act->k);
    self->y = (float *)(self->magnitude + 1);
    return self;
}

/* Column j of the block: the exact weights of one row. */
static void load_row(const struct wr_check_products *p, struct member *self, uint32_t row, uint32_t j)
{
    const uint32_t k = p->act->k;
    const uint8_t *blocks = p->rows + row * p->row_bytes;
    double *w = (double *)self->w + j;
    for (size_t g = 0; p->quant->is_float && g < k; g += p->quant->block_elems) {
        float value;
        p->quant->decode_f32(blocks + g * p->quant->block_bytes, &value, 1);
        w[g * BLOCK] = (double)value;
        self->magnitude[0][j] += (double)value * (double)value;
    }
    for (size_t g = 0; !p->quant->is_float && g < k / p->quant->group; g++) {
        int8_t q[WR_GROUP];
        float scale, min;
        p->quant->decode_group(blocks, g, q, &scale, &min);
        for (size_t i = g * p->quant->group; i < (g + 1) * p->quant->group; i++) {
            double part = (double)q[i % p->quant->group] * (double)scale, a = fabs(part) + fabs((double)min), value = part + (double)min;
            w[i * BLOCK] = value;
            self->square[i / WR_GROUP][j] += value * value;
            self->magnitude[0][j] += a * a;
        }
    }
}

static void check_row(struct check *c, struct member *self, uint32_t i, uint32_t first, uint32_t n)
{
    const struct wr_check_products *p = c->p;
    const struct wr_act *act = p->act;
    const float *x = act->x + i * act->ldx;
    const pair *w = self->w;
    pair sum[BLOCK / 2] = {{0}};
    double norm = 0, variance[BLOCK] = {0};
    for (uint32_t k = 0; k < act->k; k++, w += BLOCK / 2) {
        pair xk = {(double)x[k], (double)x[k]};
        norm += xk[0] * xk[0];
        for (int j = 0; j < BLOCK / 2; j++) sum[j] += w[j] * xk;
    }
    double steps = act->k + 2.0;
    if (!p->quant->is_float) {
        steps = (double)act->k / p->quant->group * (p->quant->has_min ? 2 : 1) + 2;
        for (uint32_t g = 0; g < act->k / WR_GROUP; g++) {
            double d = (double)act->d[(size_t)i * (act->k / WR_GROUP) + g];
            for (int j = 0; j < BLOCK; j++) variance[j] += d * d / 12 * self->square[g][j];
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        double want = sum[j / 2][j % 2], got = (double)p->y[i * p->ldy + first + j], error = fabs(got - want);
        double allowed = SIGMAS * sqrt(variance[j]) + steps * U * sqrt(self->magnitude[0][j] * norm) + 0x1p-126;
        bool same = memcmp(&p->y[i * p->ldy + first + j], &self->y[i * BLOCK + j], sizeof(float)) == 0;
        if (error > self->max_error) self->max_error = error;
        if (fabs(want) > self->max_output) self->max_output = fabs(want);
        self->n++;
        int none = 0;
        if ((same && error <= allowed) || !atomic_compare_exchange_strong(&c->wrong, &none, 1)) continue;
        wr_err(&c->err, WEIR_E_FAIL, "output %u of row %u is wrong: %.9g; the reference kernel gives %.9g, double precision %.9g within %.2g", first + j, i,
            got, (double)self->y[i * BLOCK + j], want, allowed);
    }
}

static void check_member(void *arg, uint32_t index, uint32_t n_members)
{
    struct check *c = arg;
    const struct wr_check_products *p = c->p;
    struct member *self = member_at(p, index);
    self->n = 0;
    self->max_error = self->max_output = 0;
    for (uint32_t at; (at = atomic_fetch_add(&c->next, 1)) < c->n_checked && !atomic_load(&c->wrong);) {
        if (p->cancel != NULL && *p->cancel != 0) return;
        /* A random block of each of n_checked equal parts. */
        uint32_t from = (uint32_t)((uint64_t)at * c->n_blocks / c->n_checked), to = (uint32_t)((uint64_t)(at + 1) * c->n_blocks / c->n_checked);
        uint32_t counter[4] = {at, 0, 0, 0}, random[4];
        wr_philox(counter, (const uint32_t[2]){0, 0}, random);
        uint32_t first = (from + random[0] % (to - from)) * BLOCK, n = p->n_rows - first < BLOCK ? p->n_rows - first : BLOCK;
        memset(self->w, 0, (size_t)((uint8_t *)self->y - (uint8_t *)self->w));
        for (uint32_t j = 0; j < n; j++) load_row(p, self, first + j, j);
        p->reference->matmul(p->quant, p->rows + first * p->row_bytes, p->row_bytes, n, p->act, self->y, BLOCK, NULL);
        for (uint32_t i = 0; i < p->act->m; i++) check_row(c, self, i, first, n);
    }
}

int wr_bench_check_products(const struct wr_check_products *p, struct wr_team *team, wr_bench_row *row, weir_err *err)
{
    struct check c = {.p = p, .n_blocks = (p->n_rows + BLOCK - 1) / BLOCK};
    uint64_t most = p->limit / ((uint64_t)p->act->m * p->act->k * BLOCK);
    c.n_checked = most < 1 ? 1 : most < c.n_blocks ? (uint32_t)most : c.n_blocks;
    wr_team_run(team, check_member, &c);
    if (atomic_load(&c.wrong)) {
        if (err != NULL) *err = c.err;
        return c.err.code;
    }
    if (p->cancel != NULL && *p->cancel != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    double max_error = 0, max_output = 0;
    row->outputs = (uint64_t)p->act->m * p->n_rows;
    row->outputs_verified = 0;
    for (uint32_t i = 0; i < wr_team_size(team); i++) {
        const struct member *self = member_at(p, i);
        row->outputs_verified += self->n;
        if (self->max_error > max_error) max_error = self->max_error;
        if (self->max_output > max_output) max_output = self->max_output;
    }
    row->max_rel_error = max_output > 0 ? max_error / max_output : 0;
    return 0;
}
