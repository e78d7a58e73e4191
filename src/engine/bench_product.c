/* SPDX-License-Identifier: Apache-2.0 */
/* A product with real data, split over the threads as a pass in memory splits it: what gemm, router and soak measure. */
#include <math.h>
#include "engine/bench.h"
#include "engine/engine.h"

#define LIMIT (1ull << 33) /* multiply-adds that are checked: all of 512 x 4096 x 4096, some seconds */
#define PANEL 16           /* weight rows that kernels take at a time */
#define PART (1ull << 30)  /* multiply-adds without a look at the flag of cancellation: a second or two of the reference kernels */

enum { MATRIX_WEIGHTS = 1, MATRIX_ACTIVATIONS }; /* of the random data */

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct wr_bench_product *p = arg;
    float *row = p->row + (size_t)member * p->act.k;
    for (uint32_t r; (r = atomic_fetch_add(&p->next, 1)) < p->n && !wr_bench_cancelled(p->bench);) {
        wr_synth_row(row, p->act.k, 0, MATRIX_WEIGHTS, r, sqrtf((float)p->act.k));
        p->quant->encode(row, p->weights + r * p->row_bytes, p->act.k);
    }
}

static void round_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct wr_bench_product *p = arg;
    for (uint32_t i; (i = atomic_fetch_add(&p->next, 1)) < p->act.m;) p->kernels->quantize(&p->act, i); /* of finite data */
}

static void product_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct wr_bench_product *p = arg;
    const uint64_t most = wr_round_up(PART / ((uint64_t)p->act.m * p->act.k) + 1, PANEL);
    for (uint32_t first = atomic_load(&p->next); first < p->n && !wr_bench_cancelled(p->bench);) {
        uint32_t n = (uint32_t)wr_round_up((p->n - first + 2 * n_members - 1) / (2 * n_members), PANEL);
        if (n > most) n = (uint32_t)most;
        if (n > p->n - first) n = p->n - first;
        if (!atomic_compare_exchange_weak(&p->next, &first, first + n)) continue;
        p->kernels->matmul(
            p->quant, p->weights + first * p->row_bytes, p->row_bytes, n, &p->act, p->y + first, p->n, p->work + (size_t)member * WR_MATMUL_WORK_BYTES);
        first = atomic_load(&p->next);
    }
}

static void each(struct wr_bench *b, struct wr_bench_product *p, const struct wr_kernels *kernels, wr_team_fn *fn)
{
    p->bench = b;
    p->kernels = kernels;
    atomic_store(&p->next, 0);
    wr_team_run(b->team, fn, p);
}

int wr_bench_product_open(struct wr_bench *b, struct wr_bench_product *p, uint64_t more_bytes, const char *what, weir_err *err)
{
    const uint32_t n_members = wr_team_size(b->team);
    const uint64_t m = p->act.m, k = p->act.k, groups = m * (k / WR_GROUP + 1) * sizeof(float);
    const bool rounds = !p->quant->is_float;
    if (!wr_quant_row_bytes(p->quant, k, &p->row_bytes))
        return wr_err(err, WEIR_E_USAGE, "--shape: rows of %llu are not whole blocks of %u, as %s has them", (unsigned long long)k, p->quant->block_elems,
            p->quant->name);
    struct {
        void **to;
        uint64_t bytes;
    } parts[] = {{(void **)&p->weights, p->n * p->row_bytes}, {(void **)&p->act.x, m * k * sizeof(float)}, {(void **)&p->y, m * p->n * sizeof(float)},
        {(void **)&p->act.q8, rounds && !p->act.precise ? m * k : 0}, {(void **)&p->act.q16, rounds && p->act.precise ? 2 * m * k : 0},
        {(void **)&p->act.d, rounds ? groups : 0}, {(void **)&p->act.s, rounds ? groups : 0}, {(void **)&p->act.s16, rounds ? 2 * groups : 0},
        {(void **)&p->work, (uint64_t)n_members * WR_MATMUL_WORK_BYTES}, {(void **)&p->row, n_members * k * sizeof(float)},
        {&p->check, wr_check_products_bytes(p->act.k, p->act.m, n_members)}};
    uint64_t sum = WR_BENCH_PAGES(more_bytes);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) sum += WR_BENCH_PAGES(parts[i].bytes);
    int rc = wr_bench_room(b, sum, what, err);
    if (rc < 0) return rc;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i].to = wr_bench_take(b, parts[i].bytes);
    p->act.ldx = k;
    wr_bench_progress(b, "prepare", 0, 0, "");
    wr_bench_fill(b, (float *)p->act.x, m, k, MATRIX_ACTIVATIONS, 1.0f);
    each(b, p, b->kernels, fill_member);
    return 0;
}

void wr_bench_product_round(struct wr_bench *b, struct wr_bench_product *p)
{
    if (!p->quant->is_float) each(b, p, b->kernels, round_member);
}

void wr_bench_product_run(struct wr_bench *b, struct wr_bench_product *p) { each(b, p, b->kernels, product_member); }

int wr_bench_product_finite(const struct wr_bench *b, const struct wr_bench_product *p, weir_err *err)
{
    if (b->kernels->all_finite(p->y, (size_t)p->act.m * p->n)) return 0;
    return wr_err(err, WEIR_E_NONFINITE, "a product of %s weights is not finite at level %s", p->quant->name, b->kernels->level);
}

struct wr_bench_roof wr_bench_product_roof(const struct wr_bench_product *p)
{
    const double m = p->act.m, n = p->n, k = p->act.k;
    return (struct wr_bench_roof){.mix = p->quant->is_float ? WR_MIX_FMA : WR_MIX_FORMAT,
        .quant = p->quant,
        .precise = p->act.precise,
        .ops = 2 * m * n * k,
        .bytes = n * (double)p->row_bytes + sizeof(float) * m * (n + k)};
}

int wr_bench_product_check(struct wr_bench *b, struct wr_bench_product *p, wr_bench_row *row, weir_err *err)
{
    struct wr_check_products check = {b->reference, p->quant, p->weights, p->row_bytes, p->n, &p->act, p->y, p->n, LIMIT, p->check, b->o->engine.cancel};
    wr_bench_progress(b, "verify", 0, 0, "");
    if (!p->quant->is_float) each(b, p, b->reference, round_member);
    int rc = wr_bench_check_products(&check, b->team, row, err);
    if (rc == WEIR_E_FAIL) wr_err_prefix(err, rc, "bench %s %s %s at level %s", b->o->what, row->shape, row->format, b->kernels->level);
    return rc;
}
