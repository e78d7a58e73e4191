/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness of weir bench. A sub-command is a row in bench.def and wr_bench_<name>: for each of its cases it takes memory, makes real (random) data, measures
 * it beside what the machine could do (wr_bench_measure), checks the result (bench_check.c) and emits the row.
 */
#ifndef WR_ENGINE_BENCH_H
#define WR_ENGINE_BENCH_H

#include "base/log.h"
#include "base/team.h"
#include "engine/tools.h"
#include "kernels/ceiling.h"
#include "kernels/kernels.h"

#define WR_BENCH_MAX_RUNS 1000
/* A row is noisy when the middle four fifths of its runs spread over more than this share of the median, or its rate is above its ceiling, which was disturbed
 * then: it is good for an order of magnitude. */
#define WR_BENCH_NOISY 0.10
/* No spread is printed smaller than this: by so much do two processes differ that are both steady, for their memory lies elsewhere (Xeon, 2 threads: F16
 * products of 64 rows, runs within 2.2 %, the next process 3.8 % faster). */
#define WR_BENCH_LEAST_SPREAD 0.04
/* Seconds that a measurement of a ceiling takes, for each run that is measured, and at most; there are two of each, before and after the runs. */
#define WR_BENCH_CEILING_PER_RUN 0.0075
#define WR_BENCH_CEILING_SECONDS 0.15

struct wr_bench {
    const wr_bench_options *o;
    const struct wr_kernels *kernels, *reference; /* the level that is measured; the scalar one */
    struct wr_team *team;
    uint32_t n_threads; /* that compute, in the team or in an engine */
    struct wr_ledger ledger;
    struct wr_log log;
    uint64_t budget_bytes;  /* of the process */
    struct wr_arena cold;   /* what is streamed through before each run, so that no operand is in a cache */
    struct wr_arena memory; /* of the case at work */
    wr_bench_row_fn *row_fn;
    void *row_user;
};

#define BENCH(name, summary, options) int wr_bench_##name(struct wr_bench *, weir_err *);
#include "engine/bench.def"
#undef BENCH

/* ---- cases ---- */

/* Lists of the command line, at most WR_BENCH_LIST words with commas between them. WEIR_E_USAGE names option and word. */
#define WR_BENCH_LIST 32
/* The next word: 1; 0 at the end of the list, or an error. */
int wr_bench_word(const char **list, char word[48], const char *option, weir_err *err);
int wr_bench_words(const char *list, const char *option, char out[][48], uint32_t *n, weir_err *err); /* all of them; at least one */
/* "4096x4096,2048x5632" as out[*n][n_dims], numbers from 1 to `max`. `form` says in words what is expected. */
int wr_bench_numbers(const char *list, const char *option, const char *form, uint32_t n_dims, uint64_t max, uint32_t *out, uint32_t *n, weir_err *err);
/* "32x8x128": heads, KV heads, dimensions, which a pass and, unless it is NULL, the KV type can have. */
int wr_bench_heads(const char *list, const enum wr_kv_type *, uint32_t shapes[][3], uint32_t *n, weir_err *err);
int wr_bench_types(const char *list, const struct wr_quant **out, uint32_t *n, weir_err *err); /* NULL: all formats */
/* What is a file's name as a row's shape: a cell of tables, also on terminals. */
void wr_bench_file_name(const char *path, char shape[48]);
/* Room for a case, from which wr_bench_take takes; the last case's is given back. WEIR_E_BUDGET says how much `what` needs. */
int wr_bench_room(struct wr_bench *, uint64_t bytes, const char *what, weir_err *);
void *wr_bench_take(struct wr_bench *, uint64_t bytes); /* in whole pages; never more than the room */
#define WR_BENCH_PAGES(bytes) wr_round_up((bytes), WR_ARENA_ALIGN)
/* x[n_rows][n], standard deviation 1 / divisor, the same at every call with this number. Over the team. */
void wr_bench_fill(struct wr_bench *, float *x, uint64_t n_rows, uint64_t n, uint32_t number, float divisor);

/* ---- measuring ---- */

struct wr_bench_stats {
    double median, best, spread; /* spread: (90th - 10th percentile) / median */
};
struct wr_bench_stats wr_bench_statistics(double *samples, uint32_t n); /* sorts them */

/* What a run needs at least: `ops` at the rate of a mix, `bytes` at the rate of plain reads of memory; the slower one binds. */
struct wr_bench_roof {
    enum wr_mix mix;
    const struct wr_quant *quant;
    bool precise;
    double ops, bytes;
    double fma_ops; /* beside the mix: f32 multiply-adds x 2 */
};
/* One run; *compute_seconds is the part of it that the ceiling is about. */
typedef int wr_bench_run_fn(void *arg, double *compute_seconds, weir_err *);
/* Warms up, then measures o->n_runs runs, with the caches flushed before each. `work`, in the row's unit, is what a run does. Fills rate, ceiling, bound, median,
 * best, spread, waited, noisy and both seconds. The ceiling is measured before and after: the better one counts, and their difference is drift of the machine,
 * which no spread within the runs shows, so the spread is at least that. roof NULL: the caller knows the ceiling. WEIR_E_CANCELLED between runs, and for one that
 * ends early because of it. */
int wr_bench_measure(struct wr_bench *, wr_bench_run_fn *, void *arg, const struct wr_bench_roof *, double work, wr_bench_row *row, weir_err *);
void wr_bench_flush(struct wr_bench *);
bool wr_bench_cancelled(const struct wr_bench *);
#define WR_BENCH_WARM(n_runs) (((n_runs) + 1) / 2) /* runs before the measured ones */
/* Of a row that wr_bench_measure made without a roof: the ceiling as it was measured before and after the runs. */
void wr_bench_ceiling(wr_bench_row *row, double before, double after);

/* The share of a time that the threads were ready and others had their CPUs. */
struct wr_bench_time {
    uint64_t ns, waited_ns;
};
struct wr_bench_time wr_bench_time(void);
double wr_bench_waited(const struct wr_bench *, struct wr_bench_time since);
/* waited, spread, ceiling and noisy of a row, whose rate is there. */
void wr_bench_uncertainty(wr_bench_row *row, double spread, double waited, double ceiling_before, double ceiling_after);

int wr_bench_emit(struct wr_bench *, wr_bench_row *, weir_err *); /* fills isa and the harness's threads, checks that everything is finite */
void wr_bench_progress(struct wr_bench *, const char *phase, uint64_t done, uint64_t total, const char *unit);

/* ---- checking against double precision (bench_check.c) ---- */

/* y[act->m][ldy] = products of `act` and n_rows weight rows. Of every output, or of a random part of the weight rows where all would be more than
 * `limit` multiply-adds: the bits are those of the reference kernel, and the error against the products in double precision of the decoded weights and
 * the f32 activations is at most what rules d to f explain:
 *   quantized   8 standard deviations of the rounded activations, each uniform in a step of its group, and the f32 accumulation of the groups
 *   float       the f32 accumulation, k * 2^-24 * |w| |x|
 * act is rounded by the reference. WEIR_E_FAIL names the first output that is wrong. *row gets outputs, outputs_verified and max_rel_error. */
struct wr_check_products {
    const struct wr_kernels *reference;
    const struct wr_quant *quant;
    const uint8_t *rows;
    uint64_t row_bytes;
    uint32_t n_rows;
    const struct wr_act *act;
    const float *y;
    size_t ldy;
    uint64_t limit;
    void *work; /* wr_check_products_bytes */
    const volatile int *cancel;
};
uint64_t wr_check_products_bytes(uint32_t k, uint32_t m, uint32_t n_members);
int wr_bench_check_products(const struct wr_check_products *, struct wr_team *, wr_bench_row *row, weir_err *);

/* The first rows of a pass of m rows whose result is in p->x: the same bits by the reference, and near to double precision (bench_check_layer.c). */
struct wr_pass;
struct wr_pass_row;
uint64_t wr_check_layers_bytes(const struct wr_pass *);
int wr_bench_check_layers(struct wr_bench *, struct wr_pass *p, const struct wr_pass_row *rows, uint32_t m, void *work, wr_bench_row *row, weir_err *err);

/* ---- keys and values that no model computed (bench_stream_data.c) ---- */

struct wr_bench_windows {
    float *table, *stored[2]; /* as generated; what the KV type stores of a key, of a value */
    uint32_t n;               /* windows, one at each multiple of WR_GROUP */
    enum wr_kv_type type;
    uint32_t n_head_kv, head_dim;
};
/* exact: with what wr_bench_windows_attend needs. */
uint64_t wr_bench_windows_bytes(bool exact);
void wr_bench_windows_open(struct wr_bench_windows *, struct wr_bench *, void *memory, bool exact, enum wr_kv_type, uint32_t n_head_kv, uint32_t head_dim);
const float *wr_bench_window_key(const struct wr_bench_windows *, uint32_t layer, uint32_t head, uint32_t position);
const float *wr_bench_window_value(const struct wr_bench_windows *, uint32_t layer, uint32_t head, uint32_t position);
/* The block (kv.h) of a tile of a layer, without the padding behind it. */
void wr_bench_windows_block(const struct wr_bench_windows *, const struct wr_kernels *, uint32_t layer, uint32_t tile, uint8_t *block);
/* out[head_dim] = softmax(scale * q K) V over what is stored of positions [0, n) of a KV head, in double precision. */
void wr_bench_windows_attend(const struct wr_bench_windows *, uint32_t layer, uint32_t head, uint32_t n, const float *q, float scale, void *work, double *out);
uint64_t wr_bench_windows_work_bytes(void);
/* What is stored of a key, or of a value, of n numbers in groups of WR_GROUP (bench_attention.c). */
void wr_bench_round_kv(enum wr_kv_type, bool is_value, float *x, uint32_t n);

/* Passes of several K over the same positions, in ascending order: what more rows cost. `one`: seconds of the pass of one row, 0 until there is one. */
struct wr_bench_rows {
    double one, seconds; /* seconds and k: of the last pass within WR_BENCH_CROSSOVER of it */
    uint32_t k;
    bool crossed;
};
#define WR_BENCH_CROSSOVER 1.25
/* Adds to a row's members: ratio_to_one, seconds / one; crossover, of the first pass beyond, the largest K whose pass takes at most WR_BENCH_CROSSOVER of one, on
 * a line between the two measured ones around it. Both null where not known. */
void wr_bench_crossover(struct wr_bench_rows *, uint32_t k, double seconds, json_t *more);

/* A raw reader and computing, alone and at the same time: bytes/s, runs/s (bench_stream_bound.c). */
struct wr_bench_overlap {
    double disk, disk_beside, runs, runs_beside;
};
/* Seconds for a measurement of reading, of a file of so many bytes. */
#define wr_bench_overlap_probe(bytes) fmin(1.0, fmax(0.1, (bytes)*0.5e-9))
/* Measures all four, in 2 to 3 times the seconds of the probe. `run` computes without reading, over the team. */
struct wr_io_probe;
int wr_bench_overlap(struct wr_bench *, const char *path, const struct wr_io_probe *, wr_bench_run_fn *run, void *arg, struct wr_bench_overlap *, weir_err *);
/* Seconds in which this machine can read `bytes` and do `runs`: both at once until one of them is done, then the rest of the other alone. */
double wr_bench_overlap_seconds(const struct wr_bench_overlap *, double bytes, double runs);

/* FNV-1a, 64 bits, of n numbers, as weir eval --hash (bench_decode.c). */
uint64_t wr_bench_hash(const float *x, size_t n);
/* Of weights, or keys and values, that a pass by the reference kernels goes through to be compared: they take some seconds for it. */
#define WR_BENCH_CHECKED_BYTES (1ull << 30)

/* weir bench stream with a model (bench_stream_model.c). */
int wr_bench_stream_model(struct wr_bench *, const uint32_t *rows, uint32_t n_rows, const uint32_t *depths, uint32_t n_depths, weir_err *);
/* The bound of m rows that attend as one layer of a model does, over some positions in memory: *runs of these are `depth` positions. Opens the harness's room,
 * which is given back with the next (bench_stream.c). */
struct wr_hparams;
int wr_bench_stream_overlap(struct wr_bench *, const struct wr_hparams *, enum wr_kv_type, uint32_t depth, uint32_t m, const char *path,
    const struct wr_io_probe *, struct wr_bench_overlap *, double *runs, weir_err *);

/* ---- products (bench_product.c) ---- */

struct wr_bench_product {
    const struct wr_quant *quant; /* the caller sets quant, n, act.m, act.k and act.precise */
    uint32_t n;                   /* rows of weights */
    struct wr_act act;
    const struct wr_bench *bench; /* whose flag ends a run, or the making of the data, early */
    uint64_t row_bytes;
    uint8_t *weights;
    float *y;                         /* [m][n] */
    uint8_t *work;                    /* [members] */
    float *row;                       /* [members][k] */
    void *check;                      /* work space of the check */
    const struct wr_kernels *kernels; /* of what is done at the moment */
    _Atomic uint32_t next;
};
/* Takes memory for it, with more_bytes for the caller, and fills it. */
int wr_bench_product_open(struct wr_bench *, struct wr_bench_product *, uint64_t more_bytes, const char *what, weir_err *);
void wr_bench_product_round(struct wr_bench *, struct wr_bench_product *); /* the activations, by rule d */
void wr_bench_product_run(struct wr_bench *, struct wr_bench_product *);
int wr_bench_product_finite(const struct wr_bench *, const struct wr_bench_product *, weir_err *);
struct wr_bench_roof wr_bench_product_roof(const struct wr_bench_product *);
int wr_bench_product_check(struct wr_bench *, struct wr_bench_product *, wr_bench_row *row, weir_err *);

#endif
