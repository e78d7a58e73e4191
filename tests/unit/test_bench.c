/* SPDX-License-Identifier: Apache-2.0 */
/* The harness of weir bench: statistics of known numbers, lists, and a checker that finds what it is given wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/num.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "io/probe.h"

static weir_err err;

static void statistics(void **state)
{
    (void)state;
    double x[11] = {7, 1, 3, 2, 11, 5, 4, 6, 10, 9, 8}; /* 1..11: the 10th, 50th and 90th percentiles are 2, 6 and 10 */
    struct wr_bench_stats s = wr_bench_statistics(x, 11);
    assert_true(s.median == 6 && s.best == 1 && s.spread == 8.0 / 6);
    double two[2] = {4, 2};
    s = wr_bench_statistics(two, 2);
    assert_true(s.median == 3 && s.best == 2 && fabs(s.spread - 1.6 / 3) < 1e-12);
    double one[1] = {5};
    s = wr_bench_statistics(one, 1);
    assert_true(s.median == 5 && s.spread == 0);
}

static void lists(void **state)
{
    (void)state;
    uint32_t out[WR_BENCH_LIST][2], n;
    assert_int_equal(wr_bench_numbers("4096x32,1x7", "shape", "NxK", 2, 4096, out[0], &n, &err), 0);
    assert_int_equal(n, 2);
    assert_true(out[0][0] == 4096 && out[0][1] == 32 && out[1][0] == 1 && out[1][1] == 7);
    const char *bad[] = {"", ",", "1x2,", ",1x2", "1", "1x", "x1", "1x2x3", "0x1", "4097x1", "18446744073709551617x1", "1x-2", "1x2 ", "axb"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(wr_bench_numbers(bad[i], "shape", "NxK", 2, 4096, out[0], &n, &err), WEIR_E_USAGE);
        assert_non_null(strstr(err.text, "--shape"));
    }
    const struct wr_quant *types[WR_BENCH_LIST];
    assert_int_equal(wr_bench_types("q4_0,F16", types, &n, &err), 0);
    assert_true(n == 2 && !strcmp(types[0]->name, "Q4_0") && !strcmp(types[1]->name, "F16"));
    assert_int_equal(wr_bench_types("q4_0,q9", types, &n, &err), WEIR_E_USAGE);
    assert_non_null(strstr(err.text, "'q9'"));
}

/* 3 bytes/s and 10 runs/s alone, 2 and 5 beside each other. */
static void overlap(void **state)
{
    (void)state;
    const struct wr_bench_overlap o = {.disk = 3, .disk_beside = 2, .runs = 10, .runs_beside = 5};
    assert_true(wr_bench_overlap_seconds(&o, 20, 50) == 10);  /* both end together */
    assert_true(wr_bench_overlap_seconds(&o, 35, 50) == 15);  /* 15 bytes are left, at 3 */
    assert_true(wr_bench_overlap_seconds(&o, 20, 150) == 20); /* 100 runs are left, at 10 */
    assert_true(wr_bench_overlap_seconds(&o, 30, 0) == 10);   /* nothing to compute, ... */
    assert_true(wr_bench_overlap_seconds(&o, 0, 50) == 5);    /* ... or to read */
    const struct wr_bench_overlap better = {.disk = 3, .disk_beside = 4, .runs = 10, .runs_beside = 10};
    assert_true(wr_bench_overlap_seconds(&better, 30, 1) == 10); /* no faster than alone, whatever the noise */
}

enum { M = 3, N = 21, K = 256 };

struct products {
    struct wr_team *team;
    struct wr_ledger ledger;
    struct wr_act act;
    struct wr_check_products check;
    wr_bench_row row;
    float x[M * K], y[M * N];
    uint8_t rows[N * K * 4];
    int8_t q8[M * K];
    int16_t q16[M * K];
    float d[M * K / 32], s[M * K / 32], s16[M * K / 16];
};

static void set_up(struct products *p, const char *type, bool precise)
{
    float row[K];
    uint64_t row_bytes;
    memset(p, 0, sizeof *p);
    wr_ledger_init(&p->ledger);
    assert_int_equal(wr_team_open(&p->team, 2, &p->ledger, &err), 0);
    const struct wr_quant *quant = wr_quant_find_name(type);
    const struct wr_kernels *reference = wr_kernels_best("scalar");
    assert_true(wr_quant_row_bytes(quant, K, &row_bytes));
    for (uint32_t r = 0; r < N; r++) {
        wr_synth_row(row, K, 1, 1, r, 16);
        quant->encode(row, p->rows + r * row_bytes, K);
    }
    p->act = (struct wr_act){M, K, p->x, K, precise, p->q8, p->q16, p->d, p->s, p->s16};
    for (uint32_t i = 0; i < M; i++) {
        wr_synth_row(p->x + i * K, K, 1, 2, i, 1);
        assert_true(reference->quantize(&p->act, i));
    }
    reference->matmul(quant, p->rows, row_bytes, N, &p->act, p->y, N, NULL);
    void *work = aligned_alloc(64, wr_check_products_bytes(K, M, 2));
    p->check = (struct wr_check_products){reference, quant, p->rows, row_bytes, N, &p->act, p->y, N, UINT64_MAX, work, NULL};
}

static void tear_down(struct products *p)
{
    free(p->check.work);
    wr_team_close(p->team);
}

static void right_products_pass(void **state)
{
    (void)state;
    static struct products p;
    const struct wr_quant *quant;
    for (uint32_t i = 0; (quant = wr_quant_at(i)) != NULL; i++) {
        for (int precise = 0; precise < 2; precise++) {
            set_up(&p, quant->name, precise);
            assert_int_equal(wr_bench_check_products(&p.check, p.team, &p.row, &err), 0);
            assert_int_equal(p.row.outputs, M * N);
            assert_int_equal(p.row.outputs_verified, M * N);
            /* Rounding to 255 steps of a group costs about 1/255 of an output, to 65535 steps and to floats next to nothing. */
            assert_true(p.row.max_rel_error > 0);
            assert_true(p.row.max_rel_error < (quant->is_float || precise ? 1e-4 : 2e-2));
            if (!quant->is_float && !precise) assert_true(p.row.max_rel_error > 1e-4);
            tear_down(&p);
        }
    }
}

static void wrong_products_are_found(void **state)
{
    (void)state;
    static struct products p;
    const char *types[] = {"F32", "Q4_0", "Q4_K", "Q6_K"};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (uint32_t at = 0; at < M * N; at += 5) { /* one bit, the last one, of one output */
            set_up(&p, types[t], false);
            uint32_t bits;
            memcpy(&bits, &p.y[at], 4);
            bits ^= 1;
            memcpy(&p.y[at], &bits, 4);
            assert_int_equal(wr_bench_check_products(&p.check, p.team, &p.row, &err), WEIR_E_FAIL);
            char where[64];
            snprintf(where, sizeof where, "output %u of row %u", at % N, at / N);
            assert_non_null(strstr(err.text, where));
            tear_down(&p);
        }
        /* The reference agrees and double precision does not: what was multiplied is not what should have been. */
        set_up(&p, types[t], false);
        p.x[K + 17] += 4;
        assert_int_equal(wr_bench_check_products(&p.check, p.team, &p.row, &err), WEIR_E_FAIL);
        assert_non_null(strstr(err.text, "of row 1"));
        tear_down(&p);
    }
}

static void part_of_the_outputs(void **state)
{
    (void)state;
    static struct products p;
    set_up(&p, "Q4_0", false);
    p.check.limit = 8ull * M * K; /* one block of 8 rows of the three, the last of which has 5 */
    assert_int_equal(wr_bench_check_products(&p.check, p.team, &p.row, &err), 0);
    assert_int_equal(p.row.outputs, M * N);
    assert_true(p.row.outputs_verified == 8 * M || p.row.outputs_verified == 5 * M);
    static const volatile int cancel = 1;
    p.check.cancel = &cancel;
    assert_int_equal(wr_bench_check_products(&p.check, p.team, &p.row, &err), WEIR_E_CANCELLED);
    tear_down(&p);
}

enum { HEADS = 2, DIM = 64, TILES = 3 };

/* Dimension d of a head's key or value at a position of a tile, by what kv.h says of a block's bytes. */
static double stored(enum wr_kv_type type, const uint8_t *block, bool is_value, uint32_t head, uint32_t position, uint32_t d)
{
    const uint64_t key = wr_kv_key_bytes(type, DIM), value = wr_kv_value_bytes(type, DIM);
    const uint8_t *k = block + head * WR_TILE * key + position / 16 * 16 * key, *v = block + WR_TILE * (HEADS * key + head * value) + position * value;
    const uint32_t i = is_value ? d : d * 16 + position % 16;
    const uint8_t *at = is_value ? v : k;
    float f;
    uint16_t h;
    if (type == WR_KV_F32) return memcpy(&f, at + i * 4, 4), (double)f;
    if (type == WR_KV_F16) return memcpy(&h, at + i * 2, 2), (double)wr_f32_from_f16(h);
    if (type == WR_KV_K8V4 && is_value) { /* the low halves of 16 bytes, then the high ones; 8 to 15 stand for -8 to -1 */
        const int both = at[d / 32 * 16 + d % 16], half = d % 32 < 16 ? both % 16 : both / 16;
        memcpy(&h, at + DIM / 2 + d / 32 * 2, 2);
        return (half < 8 ? half : half - 16) * (double)wr_f32_from_f16(h);
    }
    memcpy(&h, is_value ? at + DIM + d / 32 * 2 : at + DIM * 16 + (d / 32 * 16 + position % 16) * 2, 2);
    return (double)(int8_t)at[i] * (double)wr_f32_from_f16(h);
}

/* The softmax of the definition over what lies in the blocks. */
static void windows_are_what_blocks_hold(void **state)
{
    (void)state;
    const enum wr_kv_type types[] = {WR_KV_F32, WR_KV_F16, WR_KV_Q8_0, WR_KV_K8V4};
    wr_bench_options options = {.what = "stream"};
    struct wr_bench b = {.o = &options};
    wr_ledger_init(&b.ledger);
    assert_int_equal(wr_team_open(&b.team, 2, &b.ledger, &err), 0);
    void *memory = malloc(wr_bench_windows_bytes(true));
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct wr_bench_windows w;
        wr_bench_windows_open(&w, &b, memory, true, types[t], HEADS, DIM);
        const uint64_t bytes = (uint64_t)HEADS * WR_TILE * (wr_kv_key_bytes(types[t], DIM) + wr_kv_value_bytes(types[t], DIM));
        uint8_t *blocks = calloc(TILES, bytes);
        void *work = malloc(wr_bench_windows_work_bytes());
        for (uint32_t tile = 0; tile < TILES; tile++) wr_bench_windows_block(&w, wr_kernels_best("scalar"), 5, tile, blocks + tile * bytes);
        for (uint32_t head = 0; head < HEADS; head++) {
            float q[DIM];
            double got[DIM], want[DIM] = {0}, sum = 0;
            const uint32_t n = TILES * WR_TILE - 100 * head;
            wr_synth_row(q, DIM, 9, 1, head, 0.5f);
            for (uint32_t i = 0; i < n; i++) {
                const uint8_t *block = blocks + i / WR_TILE * bytes;
                double score = 0;
                for (uint32_t d = 0; d < DIM; d++) score += (double)q[d] * stored(types[t], block, false, head, i % WR_TILE, d);
                for (uint32_t d = 0; d < DIM; d++) want[d] += exp(score / 8) * stored(types[t], block, true, head, i % WR_TILE, d);
                sum += exp(score / 8);
            }
            wr_bench_windows_attend(&w, 5, head, n, q, 0.125f, work, got);
            for (uint32_t d = 0; d < DIM; d++) assert_true(fabs(got[d] - want[d] / sum) < 1e-12);
            wr_bench_windows_attend(&w, 4, head, n, q, 0.125f, work, got); /* another layer's are others */
            assert_true(fabs(got[0] - want[0] / sum) > 1e-6);
        }
        free(work);
        free(blocks);
    }
    free(memory);
    wr_team_close(b.team);
}

/* The first 6 runs, those of computing alone, are quick, and the next one is longer than the reading beside it: that counts for nothing, and is repeated. */
static int late(void *arg, double *compute_seconds, weir_err *e)
{
    uint32_t *n = arg;
    (void)compute_seconds;
    (void)e;
    nanosleep(&(struct timespec){.tv_nsec = ++*n == 7 ? 300000000 : 1000000}, NULL);
    return 0;
}

static void reading_that_ends_too_early_is_repeated(void **state)
{
    (void)state;
    wr_bench_options options = {.what = "stream"};
    struct wr_bench b = {.o = &options};
    struct wr_bench_overlap o;
    uint32_t n = 0;
    char path[32];
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), 1 << 20), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    wr_ledger_init(&b.ledger);
    const struct wr_io_probe probe = {.engine = "pread", .bytes = 65536, .depth = 2, .seconds = 0.01, .bytes_total = UINT64_MAX};
    assert_int_equal(wr_bench_overlap(&b, path, &probe, late, &n, &o, &err), 0);
    assert_true(n > 7 && o.runs_beside > 0 && o.disk > 0 && o.disk_beside > 0);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(statistics), cmocka_unit_test(lists), cmocka_unit_test(overlap),
        cmocka_unit_test(reading_that_ends_too_early_is_repeated), cmocka_unit_test(right_products_pass), cmocka_unit_test(wrong_products_are_found),
        cmocka_unit_test(part_of_the_outputs), cmocka_unit_test(windows_are_what_blocks_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
