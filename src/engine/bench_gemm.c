/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench gemm: rows of activations times a matrix of weights. End to end a run also rounds the activations (rule d); the ceiling is the format's own mix of
 * instructions, or reading the weights.
 */
#include <stdio.h>
#include "base/os.h"
#include "engine/bench.h"

#define MAX_ROWS 65536u
#define MAX_SIDE (1u << 20)

struct gemm {
    struct wr_bench *b;
    struct wr_bench_product product;
};

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct gemm *g = arg;
    wr_bench_product_round(g->b, &g->product);
    uint64_t start = wr_clock_ns();
    wr_bench_product_run(g->b, &g->product);
    *compute_seconds = (double)(wr_clock_ns() - start) * 1e-9;
    return wr_bench_product_finite(g->b, &g->product, err);
}

static int one(struct wr_bench *b, const struct wr_quant *quant, uint32_t m, uint32_t n, uint32_t k, weir_err *err)
{
    struct gemm g = {.b = b, .product = {.quant = quant, .n = n, .act = {.m = m, .k = k, .precise = b->o->engine.precise}}};
    wr_bench_row row = {.m = m, .unit = "ops/s"};
    char what[64];
    snprintf(row.shape, sizeof row.shape, "%ux%u", n, k);
    snprintf(row.format, sizeof row.format, "%s", quant->name);
    snprintf(what, sizeof what, "%u x %u x %u as %s", m, n, k, quant->name);
    int rc = wr_bench_product_open(b, &g.product, 0, what, err);
    if (rc < 0) return rc;
    struct wr_bench_roof roof = wr_bench_product_roof(&g.product);
    rc = wr_bench_measure(b, run, &g, &roof, roof.ops, &row, err);
    if (rc == 0) rc = wr_bench_product_check(b, &g.product, &row, err);
    return rc == 0 ? wr_bench_emit(b, &row, err) : rc;
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
    for (uint32_t i = 0; i < n_shapes * n_types; i++) { /* all of them, before anything is measured */
        const struct wr_quant *quant = types[i % n_types];
        const uint32_t k = shapes[i / n_types][1];
        if (k % quant->block_elems != 0)
            return wr_err(err, WEIR_E_USAGE, "--shape: rows of %u are not whole blocks of %u, as %s has them", k, quant->block_elems, quant->name);
    }
    for (uint32_t s = 0; s < n_shapes; s++)
        for (uint32_t t = 0; t < n_types; t++)
            for (uint32_t i = 0; i < n_rows; i++)
                if ((rc = one(b, types[t], rows[i], shapes[s][0], shapes[s][1], err)) < 0) return rc;
    return 0;
}
