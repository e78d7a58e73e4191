/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/num.h"
#include "base/os.h"
#include "engine/engine.h"

static const struct {
    const char *name, *summary, *options;
    int (*run)(struct wr_bench *, weir_err *);
} benches[] = {
#define BENCH(name, summary, options) {#name, summary, options, wr_bench_##name},
#include "engine/bench.def"
#undef BENCH
};
#define N_BENCHES (sizeof benches / sizeof *benches)

const char *wr_tool_bench_name(uint32_t i, const char **summary, const char **options)
{
    if (i >= N_BENCHES) return NULL;
    *summary = benches[i].summary;
    *options = benches[i].options;
    return benches[i].name;
}

/* ---- cases ---- */

int wr_bench_word(const char **list, char word[48], const char *option, weir_err *err)
{
    if (**list == '\0') return 0;
    size_t n = strcspn(*list, ",");
    bool more = (*list)[n] == ',';
    if (n == 0 || n >= 48 || (more && (*list)[n + 1] == '\0'))
        return wr_err(err, WEIR_E_USAGE, "--%s: '%.60s' is not a list of words with commas between them", option, *list);
    memcpy(word, *list, n);
    word[n] = '\0';
    *list += n + more;
    return 1;
}

static int too_many(const char *option, weir_err *err) { return wr_err(err, WEIR_E_USAGE, "--%s: more than %d words", option, WR_BENCH_LIST); }

int wr_bench_words(const char *list, const char *option, char out[][48], uint32_t *n, weir_err *err)
{
    char word[48];
    int rc;
    for (*n = 0; (rc = wr_bench_word(&list, word, option, err)) > 0; ++*n) {
        if (*n == WR_BENCH_LIST) return too_many(option, err);
        memcpy(out[*n], word, sizeof word);
    }
    return rc == 0 && *n == 0 ? wr_err(err, WEIR_E_USAGE, "--%s: the list is empty", option) : rc;
}

static bool numbers(const char *s, uint32_t n, uint64_t max, uint32_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t x = 0;
        while (*s >= '0' && *s <= '9' && x <= max) x = x * 10 + (uint64_t)(*s++ - '0');
        if (x == 0 || x > max || *s != (i + 1 < n ? 'x' : '\0')) return false;
        out[i] = (uint32_t)x;
        s += i + 1 < n;
    }
    return true;
}

int wr_bench_numbers(const char *list, const char *option, const char *form, uint32_t n_dims, uint64_t max, uint32_t *out, uint32_t *n, weir_err *err)
{
    char word[48];
    int rc;
    for (*n = 0; (rc = wr_bench_word(&list, word, option, err)) > 0; ++*n) {
        if (*n == WR_BENCH_LIST) return too_many(option, err);
        if (!numbers(word, n_dims, max, out + *n * n_dims))
            return wr_err(err, WEIR_E_USAGE, "--%s: '%s' is not %s, with numbers from 1 to %llu", option, word, form, (unsigned long long)max);
    }
    return rc == 0 && *n == 0 ? wr_err(err, WEIR_E_USAGE, "--%s: the list is empty", option) : rc;
}

int wr_bench_types(const char *list, const struct wr_quant **out, uint32_t *n, weir_err *err)
{
    char word[48];
    int rc = 0;
    for (*n = 0; list == NULL && (out[*n] = wr_quant_at(*n)) != NULL;) ++*n;
    for (; list != NULL && (rc = wr_bench_word(&list, word, "type", err)) > 0; ++*n) {
        if (*n == WR_BENCH_LIST) return too_many("type", err);
        out[*n] = wr_quant_find_name(word);
        if (out[*n] == NULL) return wr_err(err, WEIR_E_USAGE, "--type: '%s' is not a weight format; 'weir version' lists them", word);
    }
    return rc == 0 && *n == 0 ? wr_err(err, WEIR_E_USAGE, "--type: the list is empty") : rc;
}

void wr_bench_file_name(const char *path, char shape[48])
{
    const char *slash = strrchr(path, '/');
    snprintf(shape, 48, "%.47s", slash != NULL ? slash + 1 : path);
    for (char *c = shape; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}

int wr_bench_room(struct wr_bench *b, uint64_t bytes, const char *what, weir_err *err)
{
    wr_arena_close(&b->memory);
    b->memory = (struct wr_arena){0};
    uint64_t fixed = b->o->engine.process_bytes + b->cold.bytes;
    if (bytes > b->budget_bytes - fixed)
        return wr_err(err, WEIR_E_BUDGET, "bench %s %s needs %.1f MiB of memory, and the budget is %.1f MiB; give a larger --memory or a smaller --shape",
            b->o->what, what, (double)(bytes + fixed) / 1048576, (double)b->budget_bytes / 1048576);
    return wr_arena_open(&b->memory, bytes, err);
}

void *wr_bench_take(struct wr_bench *b, uint64_t bytes) { return wr_arena_take(&b->memory, &b->ledger, WR_ACCOUNT_SCRATCH, bytes, NULL); }

struct fill {
    float *x;
    uint64_t n_rows, n;
    uint32_t number;
    float divisor;
    const struct wr_bench *bench;
    _Atomic uint64_t next;
};

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct fill *f = arg;
    for (uint64_t r; (r = atomic_fetch_add(&f->next, 1)) < f->n_rows && !wr_bench_cancelled(f->bench);)
        wr_synth_row(f->x + r * f->n, f->n, 0, f->number, r, f->divisor);
}

void wr_bench_fill(struct wr_bench *b, float *x, uint64_t n_rows, uint64_t n, uint32_t number, float divisor)
{
    struct fill f = {x, n_rows, n, number, divisor, b, 0};
    wr_team_run(b->team, fill_member, &f);
}

/* ---- measuring ---- */

static double percentile(const double *sorted, uint32_t n, double p)
{
    double at = p * (n - 1);
    uint32_t i = (uint32_t)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

struct wr_bench_stats wr_bench_statistics(double *x, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) { /* by insertion: at most WR_BENCH_MAX_RUNS */
        double v = x[i];
        uint32_t j = i;
        for (; j > 0 && x[j - 1] > v; j--) x[j] = x[j - 1];
        x[j] = v;
    }
    double median = percentile(x, n, 0.5);
    return (struct wr_bench_stats){median, x[0], (percentile(x, n, 0.9) - percentile(x, n, 0.1)) / median};
}

void wr_bench_progress(struct wr_bench *b, const char *phase, uint64_t done, uint64_t total, const char *unit)
{
    if (b->o->engine.progress != NULL) b->o->engine.progress(b->o->engine.progress_user, phase, done, total, unit);
}

#define LINE 64             /* bytes of a cache line */
#define OWN_CACHES 4194304u /* each thread streams at least this much: the caches that it shares with nobody */

static void flush_member(void *arg, uint32_t member, uint32_t n_members)
{
    const struct wr_arena *cold = arg;
    uint64_t part = wr_round_down(cold->bytes / n_members, LINE), sum = 0;
    if (part < OWN_CACHES) part = OWN_CACHES;
    const uint8_t *begin = cold->base + part * member % (cold->bytes - part + 1) / LINE * LINE;
    for (uint64_t i = 0; i < part; i += LINE) sum += *(const volatile uint8_t *)(begin + i);
    (void)sum;
}

void wr_bench_flush(struct wr_bench *b)
{
    if (b->cold.base != NULL) wr_team_run(b->team, flush_member, &b->cold);
}

bool wr_bench_cancelled(const struct wr_bench *b) { return b->o->engine.cancel != NULL && *b->o->engine.cancel != 0; }

struct ceilings {
    double mix, fma, read;
};

static struct ceilings measure_ceilings(struct wr_bench *b, const struct wr_bench_roof *roof)
{
    struct ceilings c = {0, 0, 0};
    double seconds = fmin(WR_BENCH_CEILING_SECONDS, WR_BENCH_CEILING_PER_RUN * b->o->n_runs);
    if (roof->ops > 0) c.mix = wr_ceiling_mix(b->kernels, roof->mix, roof->quant, roof->precise, b->team, seconds);
    if (roof->fma_ops > 0) c.fma = wr_ceiling_mix(b->kernels, WR_MIX_FMA, NULL, false, b->team, seconds);
    if (roof->bytes > 0) c.read = wr_ceiling_read(b->kernels, b->cold.base, b->cold.bytes, b->team, seconds);
    return c;
}

static double seconds_of(double amount, double rate) { return amount > 0 ? amount / rate : 0; } /* infinite where the rate is not known */

/* The rate that the slower of both allows; 0 where one of them is not known. */
static double allowed(const struct ceilings *c, const struct wr_bench_roof *roof, double work, const char **bound)
{
    double compute = seconds_of(roof->ops, c->mix) + seconds_of(roof->fma_ops, c->fma), memory = seconds_of(roof->bytes, c->read);
    double least = fmax(compute, memory);
    if (!isfinite(least) || least == 0) return 0;
    *bound = compute >= memory ? "compute" : "memory";
    return work / least;
}

struct wr_bench_time wr_bench_time(void) { return (struct wr_bench_time){wr_clock_ns(), wr_os_waited_ns()}; }

double wr_bench_waited(const struct wr_bench *b, struct wr_bench_time since)
{
    struct wr_bench_time now = wr_bench_time();
    return (double)(now.waited_ns - since.waited_ns) / ((double)(now.ns - since.ns) * b->n_threads);
}

void wr_bench_uncertainty(wr_bench_row *row, double spread, double waited, double before, double after)
{
    row->waited = waited;
    row->spread = fmax(WR_BENCH_LEAST_SPREAD, fmax(spread, waited));
    wr_bench_ceiling(row, before, after);
}

void wr_bench_ceiling(wr_bench_row *row, double before, double after)
{
    row->ceiling = fmax(before, after);
    if (row->ceiling > 0) row->spread = fmax(row->spread, fabs(before - after) / row->ceiling);
    row->noisy = row->spread > WR_BENCH_NOISY || (row->ceiling > 0 && row->rate > row->ceiling);
}

int wr_bench_measure(struct wr_bench *b, wr_bench_run_fn *run, void *arg, const struct wr_bench_roof *roof, double work, wr_bench_row *row, weir_err *err)
{
    static const struct wr_bench_roof none;
    double whole[WR_BENCH_MAX_RUNS], part[WR_BENCH_MAX_RUNS];
    uint32_t n = b->o->n_runs, n_warm = WR_BENCH_WARM(n);
    char phase[64];
    if (roof == NULL) roof = &none;
    snprintf(phase, sizeof phase, "measure %s,", row->shape);
    wr_bench_progress(b, phase, 0, n_warm + n, "runs");
    struct ceilings before = measure_ceilings(b, roof);
    struct wr_bench_time since = wr_bench_time();
    for (uint32_t i = 0; i < n_warm + n; i++) {
        wr_bench_progress(b, phase, i, n_warm + n, "runs");
        wr_bench_flush(b);
        double compute = 0;
        uint64_t start = wr_clock_ns();
        int rc = wr_bench_cancelled(b) ? WEIR_E_CANCELLED : run(arg, &compute, err);
        double seconds = (double)(wr_clock_ns() - start) * 1e-9;
        if (wr_bench_cancelled(b)) return wr_err(err, WEIR_E_CANCELLED, "interrupted"); /* whatever the run made of it */
        if (rc < 0) return rc;
        if (i < n_warm) continue;
        whole[i - n_warm] = seconds;
        part[i - n_warm] = compute;
    }
    const double waited = wr_bench_waited(b, since);
    struct ceilings after = measure_ceilings(b, roof);
    struct wr_bench_stats stats = wr_bench_statistics(whole, n);
    row->median = row->seconds_end_to_end = stats.median;
    row->best = stats.best;
    row->seconds_compute = wr_bench_statistics(part, n).median;
    row->rate = work / stats.median;
    const char *bound = NULL;
    const double first = allowed(&before, roof, work, &row->bound), second = allowed(&after, roof, work, &bound);
    if (second > first) row->bound = bound;
    wr_bench_uncertainty(row, stats.spread, waited, first, second);
    return 0;
}

int wr_bench_emit(struct wr_bench *b, wr_bench_row *row, weir_err *err)
{
    if (b->team != NULL) row->threads = wr_team_size(b->team);
    row->isa = b->kernels->level;
    const double all[] = {row->rate, row->ceiling, row->median, row->spread, row->seconds_compute, row->max_rel_error};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!isfinite(all[i])) return wr_err(err, WEIR_E_NONFINITE, "bench %s %s %s: a figure is not finite", b->o->what, row->shape, row->format);
    return b->row_fn(b->row_user, row, err);
}

/* ---- the whole ---- */

#define COLD_LEAST (32ull << 20)
#define COLD_MOST (128ull << 20)

static int open_cold(struct wr_bench *b, weir_err *err)
{
    uint64_t cache = wr_os_cache_bytes(""), room = b->budget_bytes - b->o->engine.process_bytes, bytes = cache < COLD_LEAST ? COLD_LEAST : cache;
    if (bytes > COLD_MOST) {
        wr_log(&b->log, WEIR_LOG_INFO,
            "the last cache is said to have %.0f MiB, as in a virtual machine on a large host: %.0f MiB are streamed through to flush it",
            (double)cache / 1048576, (double)COLD_MOST / 1048576);
        bytes = COLD_MOST;
    }
    if (bytes > room / 2) {
        bytes = room / 2 < COLD_LEAST ? COLD_LEAST : room / 2;
        wr_log(&b->log, WEIR_LOG_WARN, "the budget leaves %.0f MiB to flush the caches with: operands may be in them still", (double)bytes / 1048576);
    }
    return wr_arena_open(&b->cold, wr_round_up(bytes, 2 << 20), err);
}

static int choose_budget(struct wr_bench *b, weir_err *err)
{
    b->budget_bytes = b->o->engine.memory_bytes;
    if (b->budget_bytes == 0) b->budget_bytes = wr_os_memory("").available_bytes / 4 * 3;
    if (b->budget_bytes >= b->o->engine.process_bytes + 2 * COLD_LEAST) return 0;
    return wr_err(err, WEIR_E_BUDGET,
        "bench needs at least %.0f MiB of memory: its process, %.0f MiB to flush the caches, and operands; give a larger --memory",
        (double)(b->o->engine.process_bytes + 2 * COLD_LEAST) / 1048576, (double)COLD_LEAST / 1048576);
}

int wr_tool_bench(const wr_bench_options *o, wr_bench_row_fn *row_fn, void *user, weir_err *err)
{
    const weir_options *e = &o->engine;
    struct wr_bench b = {.o = o, .log = {e->log, e->log_user}, .row_fn = row_fn, .row_user = user};
    if (o->n_runs < 1 || o->n_runs > WR_BENCH_MAX_RUNS) return wr_err(err, WEIR_E_USAGE, "--runs: %u is not from 1 to %d", o->n_runs, WR_BENCH_MAX_RUNS);
    size_t i = 0;
    while (i < N_BENCHES && strcmp(benches[i].name, o->what) != 0) i++;
    if (i == N_BENCHES) return wr_err(err, WEIR_E_USAGE, "weir bench does not measure '%.40s'", o->what);
    b.kernels = wr_kernels_best(e->isa);
    b.reference = wr_kernels_best("scalar");
    b.n_threads = e->n_threads != 0 ? e->n_threads : wr_cpu_count();
    wr_ledger_init(&b.ledger);
    /* What takes a model opens an engine, which has the threads and the memory; and no cache holds what a pass goes through. */
    if (o->model != NULL) return benches[i].run(&b, err);
    int rc = choose_budget(&b, err);
    if (rc == 0) rc = wr_team_open(&b.team, b.n_threads, &b.ledger, err);
    /* What comes from the disk is in no cache. */
    const bool cold = strncmp(benches[i].options, "[MODEL]", 7) != 0;
    if (rc == 0 && cold) rc = open_cold(&b, err);
    if (rc == 0 && cold) wr_bench_fill(&b, (float *)b.cold.base, b.cold.bytes / 4096, 1024, 0, 1.0f);
    if (rc == 0) rc = benches[i].run(&b, err);
    wr_arena_close(&b.memory);
    wr_arena_close(&b.cold);
    wr_team_close(b.team);
    return rc;
}
