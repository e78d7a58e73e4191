/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench gemm: rows of activations times a matrix of weights, split over the threads as a pass in memory splits it. End to end a run also rounds the
 * activations (rule d); its ceiling is the format's own mix of instructions, or reading the weights.
 */
#include <math.h>
#include <stdio.h>
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"

#define LIMIT (1ull << 33) /* multiply-adds that are checked: all of 512 x 4096 x 4096, some seconds */
#define MAX_ROWS 65536u
#define MAX_SIDE (1u << 20)
#define PANEL 16 /* weight rows that kernels take at a time */

struct gemm {
    struct wr_bench *b;
    const struct wr_quant *quant;
    uint32_t n, k;
    uint64_t row_bytes;
    uint8_t *weights;
    struct wr_act act;
    float *y;
    uint8_t *work; /* [members] of the products */
    float *row;    /* [members][k] */
    void *check;
    const struct wr_kernels *kernels; /* that round the activations */
    _Atomic uint32_t next;
    _Atomic bool nonfinite;
};

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct gemm *g = arg;
    float *row = g->row + (size_t)member * g->k;
    for (uint32_t r; (r = atomic_fetch_add(&g->next, 1)) < g->n;) {
        wr_synth_row(row, g->k, 0, 1, r, sqrtf((float)g->k));
        g->quant->encode(row, g->weights + r * g->row_bytes, g->k);
    }
}

static void round_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct gemm *g = arg;
    for (uint32_t i; (i = atomic_fetch_add(&g->next, 1)) < g->act.m;)
        if (!g->kernels->quantize(&g->act, i)) atomic_store(&g->nonfinite, true);
}

static void each(struct gemm *g, wr_team_fn *fn)
{
    atomic_store(&g->next, 0);
    wr_team_run(g->b->team, fn, g);
}

static void round_activations(struct gemm *g, const struct wr_kernels *kernels)
{
    g->kernels = kernels;
    if (!g->quant->is_float) each(g, round_member);
}

static void products_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct gemm *g = arg;
    for (uint32_t first = atomic_load(&g->next); first < g->n;) {
        uint32_t n = (uint32_t)wr_round_up((g->n - first + 2 * n_members - 1) / (2 * n_members), PANEL);
        if (n > g->n - first) n = g->n - first;
        if (!atomic_compare_exchange_weak(&g->next, &first, first + n)) continue;
        g->b->kernels->matmul(
            g->quant, g->weights + first * g->row_bytes, g->row_bytes, n, &g->act, g->y + first, g->n, g->work + (size_t)member * WR_MATMUL_WORK_BYTES);
        first = atomic_load(&g->next);
    }
}

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct gemm *g = arg;
    round_activations(g, g->b->kernels);
    uint64_t start = wr_clock_ns();
    each(g, products_member);
    *compute_seconds = (double)(wr_clock_ns() - start) * 1e-9;
    if (!atomic_load(&g->nonfinite) && g->b->kernels->all_finite(g->y, (size_t)g->act.m * g->n)) return 0;
    return wr_err(err, WEIR_E_NONFINITE, "a product of %s weights is not finite at level %s", g->quant->name, g->b->kernels->level);
}

/* Memory for one case; the parts are in the order of `bytes`. */
static int take(struct gemm *g, const char *what, weir_err *err)
{
    uint32_t n_members = wr_team_size(g->b->team);
    uint64_t m = g->act.m, k = g->k, groups = m * (k / WR_GROUP + 1) * sizeof(float);
    bool rounds = !g->quant->is_float;
    struct {
        void **to;
        uint64_t bytes;
    } parts[] = {{(void **)&g->weights, g->n * g->row_bytes}, {(void **)&g->act.x, m * k * sizeof(float)}, {(void **)&g->y, m * g->n * sizeof(float)},
        {(void **)&g->act.q8, rounds && !g->act.precise ? m * k : 0}, {(void **)&g->act.q16, rounds && g->act.precise ? 2 * m * k : 0},
        {(void **)&g->act.d, rounds ? groups : 0}, {(void **)&g->act.s, rounds ? groups : 0}, {(void **)&g->act.s16, rounds ? 2 * groups : 0},
        {(void **)&g->work, (uint64_t)n_members * WR_MATMUL_WORK_BYTES}, {(void **)&g->row, n_members * k * sizeof(float)},
        {&g->check, wr_check_products_bytes(g->k, g->act.m, n_members)}};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) sum += WR_BENCH_PAGES(parts[i].bytes);
    int rc = wr_bench_room(g->b, sum, what, err);
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++) *parts[i].to = wr_bench_take(g->b, parts[i].bytes);
    return rc;
}

static int one(struct wr_bench *b, const struct wr_quant *quant, uint32_t m, uint32_t n, uint32_t k, weir_err *err)
{
    struct gemm g = {.b = b, .quant = quant, .n = n, .k = k, .act = {.m = m, .k = k, .ldx = k, .precise = b->o->engine.precise}};
    wr_bench_row row = {.m = m, .unit = "ops/s"};
    char what[64];
    snprintf(row.shape, sizeof row.shape, "%ux%u", n, k);
    snprintf(row.format, sizeof row.format, "%s", quant->name);
    snprintf(what, sizeof what, "%u x %u x %u as %s", m, n, k, quant->name);
    wr_quant_row_bytes(quant, k, &g.row_bytes); /* whole blocks, as the caller checked */
    int rc = take(&g, what, err);
    if (rc < 0) return rc;
    wr_bench_progress(b, "prepare", 0, 0, "");
    wr_bench_fill(b, (float *)g.act.x, m, k, 2, 1.0f);
    each(&g, fill_member);

    double ops = 2.0 * m * n * k;
    struct wr_bench_roof roof = {quant->is_float ? WR_MIX_FMA : WR_MIX_FORMAT, quant, g.act.precise && !quant->is_float, ops,
        (double)n * (double)g.row_bytes + 4.0 * m * ((double)n + k)};
    rc = wr_bench_measure(b, run, &g, &roof, ops, &row, err);
    if (rc < 0) return rc;
    wr_bench_progress(b, "verify", 0, 0, "");
    round_activations(&g, b->reference);
    struct wr_check_products check = {b->reference, quant, g.weights, g.row_bytes, n, &g.act, g.y, n, LIMIT, g.check, b->o->engine.cancel};
    rc = wr_bench_check_products(&check, b->team, &row, err);
    if (rc == WEIR_E_FAIL) wr_err_prefix(err, rc, "bench gemm %s at level %s", what, b->kernels->level);
    if (rc < 0) return rc;
    return wr_bench_emit(b, &row, err);
}

int wr_bench_gemm(struct wr_bench *b, weir_err *err)
{
    const struct wr_quant *types[WR_BENCH_LIST];
    uint32_t shapes[WR_BENCH_LIST][2], rows[WR_BENCH_LIST], n_types, n_shapes, n_rows;
    const char *shape = b->o->shapes != NULL ? b->o->shapes : "4096x4096", *m = b->o->rows != NULL ? b->o->rows : "1,512";
    int rc = wr_bench_types(b->o->types, types, &n_types, err);
    if (rc == 0) rc = wr_bench_numbers(shape, "shape", "NxK (outputs x inputs, such as 4096x4096)", 2, MAX_SIDE, shapes[0], &n_shapes, err);
    if (rc == 0) rc = wr_bench_numbers(m, "rows", "a list such as 1,32,512", 1, MAX_ROWS, rows, &n_rows, err);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < n_shapes * n_types; i++) {
        const struct wr_quant *quant = types[i % n_types];
        const uint32_t k = shapes[i / n_types][1], whole = quant->is_float ? 1 : quant->block_elems;
        if (k % whole != 0) return wr_err(err, WEIR_E_USAGE, "--shape: rows of %u are not whole blocks of %u, as %s has them", k, whole, quant->name);
    }
    for (uint32_t s = 0; s < n_shapes; s++)
        for (uint32_t t = 0; t < n_types; t++)
            for (uint32_t i = 0; i < n_rows; i++)
                if ((rc = one(b, types[t], rows[i], shapes[s][0], shapes[s][1], err)) < 0) return rc;
    return 0;
}
