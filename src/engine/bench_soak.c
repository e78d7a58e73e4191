/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench soak: the same product without a pause, to see whether the machine keeps its rate: throughput and clock of each second. The row's rate is that of the
 * median second, its ceiling the best before the first and after the last one.
 */
#include <math.h>
#include <stdio.h>
#include "base/os.h"
#include "engine/bench.h"

#define MAX_SECONDS 3600
#define CLOCK_NS 200000 /* of one measurement of the clock; the best of several, for others may take the CPU away */
#define CLOCK_ADDS 4096
#define CEILING_SECONDS 0.5

/* Additions that wait for one another take a cycle each, on every CPU that weir runs on. (Of a register: newer ones fold constants away.) */
static double clock_hz(void)
{
    double best = 0;
    uint64_t x = 0, one = 1;
    for (int i = 0; i < 8; i++) {
        uint64_t start = wr_clock_ns(), now, n = 0;
        do {
            for (int j = 0; j < CLOCK_ADDS; j += 8) {
#define ADD                                                                                                                                                    \
    x += one;                                                                                                                                                  \
    __asm__ volatile("" : "+r"(x), "+r"(one));
                ADD ADD ADD ADD ADD ADD ADD ADD
#undef ADD
            }
            n += CLOCK_ADDS;
        } while ((now = wr_clock_ns()) - start < CLOCK_NS);
        best = fmax(best, (double)n * 1e9 / (double)(now - start));
    }
    return best;
}

struct second {
    double rate, clock_hz;
};

static double ceiling(struct wr_bench *b, const struct wr_bench_roof *roof)
{
    return wr_ceiling_mix(b->kernels, roof->mix, roof->quant, roof->precise, b->team, CEILING_SECONDS);
}

static json_t *share(double rate, double ceiling) { return ceiling > 0 ? json_real(rate / ceiling) : json_null(); }

static int soak(struct wr_bench *b, struct wr_bench_product *p, uint32_t n_seconds, double ops, struct second *second, weir_err *err)
{
    for (uint32_t i = 0; i < n_seconds; i++) {
        wr_bench_progress(b, "soak", i, n_seconds, "seconds");
        uint64_t start = wr_clock_ns(), now, n = 0;
        do {
            if (b->o->engine.cancel != NULL && *b->o->engine.cancel != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
            wr_bench_product_run(b, p);
            n++;
        } while ((now = wr_clock_ns()) - start < 990000000);
        second[i] = (struct second){(double)n * ops * 1e9 / (double)(now - start), clock_hz()};
    }
    return wr_bench_product_finite(b, p, err);
}

int wr_bench_soak(struct wr_bench *b, weir_err *err)
{
    const wr_bench_options *o = b->o;
    const struct wr_quant *types[WR_BENCH_LIST];
    uint32_t side[WR_BENCH_LIST][2], m[WR_BENCH_LIST], n_types, n_shapes, n_m, n = (uint32_t)o->seconds;
    int rc = wr_bench_types(o->types != NULL ? o->types : "q4_0", types, &n_types, err);
    if (rc == 0) rc = wr_bench_numbers(o->shapes != NULL ? o->shapes : "4096x4096", "shape", "NxK (such as 4096x4096)", 2, 65536, side[0], &n_shapes, err);
    if (rc == 0) rc = wr_bench_numbers(o->rows != NULL ? o->rows : "512", "rows", "a number such as 512", 1, 65536, m, &n_m, err);
    if (rc == 0 && (n_types > 1 || n_shapes > 1 || n_m > 1))
        rc = wr_err(err, WEIR_E_USAGE, "bench soak takes one --type, one --shape and one number of --rows");
    if (rc == 0 && (n < 1 || n > MAX_SECONDS)) rc = wr_err(err, WEIR_E_USAGE, "--seconds: %g is not from 1 to %d", o->seconds, MAX_SECONDS);
    if (rc < 0) return rc;

    struct wr_bench_product p = {.quant = types[0], .n = side[0][0], .act = {.m = m[0], .k = side[0][1], .precise = o->engine.precise}};
    wr_bench_row row = {.m = m[0], .unit = "ops/s", .bound = "compute"};
    snprintf(row.shape, sizeof row.shape, "%ux%u", side[0][0], side[0][1]);
    snprintf(row.format, sizeof row.format, "%s", types[0]->name);
    rc = wr_bench_product_open(b, &p, n * (sizeof(struct second) + sizeof(double)), row.shape, err);
    if (rc < 0) return rc;
    struct second *second = wr_bench_take(b, n * (sizeof *second + sizeof(double)));
    double *rates = (double *)(second + n);
    wr_bench_product_round(b, &p);
    struct wr_bench_roof roof = wr_bench_product_roof(&p);
    const double before = ceiling(b, &roof);
    struct wr_bench_time since = wr_bench_time();
    rc = soak(b, &p, n, roof.ops, second, err);
    const double waited = wr_bench_waited(b, since);
    const double after = ceiling(b, &roof);
    if (rc == 0) rc = wr_bench_product_check(b, &p, &row, err);
    if (rc < 0) return rc;

    json_t *rate = json_array(), *hz = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_array_append_new(rate, json_real(second[i].rate));
        json_array_append_new(hz, json_real(second[i].clock_hz));
        rates[i] = second[i].rate;
    }
    struct wr_bench_stats stats = wr_bench_statistics(rates, n); /* of rates: its best is the lowest */
    row.rate = stats.median;
    row.median = row.seconds_end_to_end = row.seconds_compute = roof.ops / stats.median;
    row.best = roof.ops / rates[n - 1];
    wr_bench_uncertainty(&row, stats.spread, waited, before, after);
    row.more = json_pack("{s:o, s:o, s:o, s:o, s:o}", "first", share(second[0].rate, row.ceiling), "last", share(second[n - 1].rate, row.ceiling), "lowest",
        share(stats.best, row.ceiling), "rates", rate, "clock_hz", hz);
    rc = wr_bench_emit(b, &row, err);
    json_decref(row.more);
    return rc;
}
