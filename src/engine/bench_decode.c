/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench decode: an engine as the user's options make it, or as a control, one token a run. Its ceiling is the slower of reading from the disk what a pass
 * read, in requests of the same size, and of reading the weights and the keys and values from memory once; both are measured in the same minute. Of a
 * model that is not too large the last run's logits are compared with the reference kernels' for the same position.
 */
#include <stdio.h>
#include <string.h>
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "io/probe.h"

#define PROBE_SECONDS 0.5

struct rates { /* what the ceiling is made of: bytes/s */
    double disk, memory;
};

struct decode {
    struct wr_bench *b;
    const char *control;
    weir_engine *engine;
    weir_session *session;
    int32_t *ids;
    size_t n; /* ids that the session holds */
    uint32_t n_runs, n_warm;
    uint64_t disk_begin; /* before the measured runs */
    struct rates before, after;
    double disk_bytes, memory_bytes; /* that a pass reads of either */
    double stall_seconds;            /* of all runs */
    wr_bench_row row;
};

/* What reached the disk, by the system's count, up to the same place of the tape after every pass. */
static uint64_t disk_bytes(const struct decode *d)
{
    wr_pager_settle(d->engine->pager);
    return wr_os_usage().read_bytes;
}

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct decode *d = arg;
    double stalled = weir_engine_io(d->engine).stall_io_seconds;
    uint64_t start = wr_clock_ns();
    int rc = weir_session_set(d->session, d->ids, ++d->n, err);
    stalled = weir_engine_io(d->engine).stall_io_seconds - stalled;
    *compute_seconds = (double)(wr_clock_ns() - start) * 1e-9 - stalled;
    d->stall_seconds += stalled;
    if (++d->n_runs == d->n_warm) d->disk_begin = disk_bytes(d);
    if (d->n_runs == d->n_warm) d->stall_seconds = 0;
    return rc;
}

static double memory_rate(const struct decode *d)
{
    const weir_engine *e = d->engine;
    return wr_ceiling_read(d->b->kernels, e->arena.base, e->arena.bytes, e->team, WR_BENCH_CEILING_SECONDS);
}

static double tokens_per_second(const struct decode *d, const struct rates *r, const char **bound)
{
    double disk = d->disk_bytes > 0 ? d->disk_bytes / r->disk : 0, memory = d->memory_bytes / r->memory;
    *bound = disk > memory ? "disk" : "memory";
    return 1 / (disk > memory ? disk : memory);
}

uint64_t wr_bench_hash(const float *x, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    const uint8_t *bytes = (const uint8_t *)x;
    for (size_t i = 0; i < n * sizeof *x; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

static json_t *members(const struct decode *d)
{
    const weir_plan_info *info = weir_engine_plan(d->engine);
    weir_io_info io = weir_engine_io(d->engine);
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)wr_bench_hash(weir_session_logits(d->session), info->n_vocab));
    return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:s, s:b}", "residency", d->control, "bytes_per_token", (json_int_t)d->disk_bytes,
        "bytes_per_token_planned", (json_int_t)info->bytes_per_token, "stall_io", d->stall_seconds / d->b->o->n_runs, "budget", (json_int_t)info->budget,
        "peak_rss", (json_int_t)wr_os_usage().peak_rss_bytes, "pinned", (json_int_t)info->pinned, "streamed", (json_int_t)info->streamed, "ring",
        (json_int_t)info->ring, "io", io.engine, "direct", (int)io.direct, "logits_fnv64", digits, "as_reference", 0);
}

/* The last pass once more, by the reference kernels: its logits are the same bits. */
static int check(struct decode *d, weir_err *err)
{
    const weir_plan_info *info = weir_engine_plan(d->engine);
    const uint64_t was = wr_bench_hash(weir_session_logits(d->session), info->n_vocab);
    d->row.outputs = info->n_vocab;
    if (info->weight_bytes > WR_BENCH_CHECKED_BYTES) return 0;
    wr_bench_progress(d->b, "verify", 0, 0, "");
    d->engine->pass.kernels = d->b->reference;
    d->session->logits = NULL; /* so that they are computed again */
    int rc = weir_session_set(d->session, d->ids, d->n, err);
    d->engine->pass.kernels = d->b->kernels;
    if (rc == 0 && wr_bench_hash(weir_session_logits(d->session), info->n_vocab) != was)
        rc = wr_err(err, WEIR_E_FAIL, "bench decode %s: the logits of the last run at level %s are not those of the reference kernels", d->row.shape,
            d->b->kernels->level);
    json_object_set_new(d->row.more, "as_reference", json_true());
    return rc;
}

/* Passes over a model that is open, and memory's rate before and after them. */
static int passes(struct decode *d, weir_err *err)
{
    weir_plan *p = d->engine->plan;
    struct wr_bench *b = d->b;
    p->options.progress = NULL; /* how many runs are done says more than the layers of each */
    int rc = weir_session_set(d->session, d->ids, d->n = 1, err);
    if (rc < 0) return rc;
    d->before.memory = memory_rate(d);
    rc = wr_bench_measure(b, run, d, NULL, 1, &d->row, err);
    if (rc < 0) return rc;
    d->disk_bytes = (double)(disk_bytes(d) - d->disk_begin) / b->o->n_runs;
    d->memory_bytes = (double)(wr_plan_used_bytes(&p->plan) + p->info.kv_bytes_per_position * d->n);
    d->after.memory = memory_rate(d);
    d->row.more = members(d);
    return d->row.more != NULL ? check(d, err) : wr_err(err, WEIR_E_NOMEM, "no memory for a row");
}

/* The plan, and with it what is left to say. */
static int open_plan(struct decode *d, weir_plan **plan, weir_err *err)
{
    const wr_bench_options *o = d->b->o;
    wr_about about;
    int rc = wr_tool_about(o->model, &about, err);
    if (rc == 0) rc = weir_plan_open(plan, o->model, &o->engine, err);
    if (rc == 0) rc = wr_tool_plan_control(*plan, d->control, err);
    if (rc < 0) return rc;
    const weir_plan_info *info = weir_plan_get(*plan);
    wr_bench_file_name((*plan)->catalog.files[0].path, d->row.shape);
    snprintf(d->row.format, sizeof d->row.format, "%s", about.quantization);
    d->row.threads = info->n_threads;
    uint64_t needed = 1 + d->n_warm + o->n_runs;
    if (needed > info->n_ctx)
        return wr_err(err, WEIR_E_USAGE, "--runs: %u runs and %u before them need a context of %llu, it has %u; give -c %llu, or fewer", o->n_runs, d->n_warm,
            (unsigned long long)needed, info->n_ctx, (unsigned long long)needed);
    d->ids = wr_mem_array(&d->b->ledger, WR_ACCOUNT_TEXT, needed, sizeof *d->ids, err);
    for (uint64_t i = 0; d->ids != NULL && i < needed; i++) d->ids[i] = (int32_t)((i * 7919 + 1) % info->n_vocab);
    return d->ids != NULL ? 0 : WEIR_E_NOMEM;
}

int wr_bench_decode(struct wr_bench *b, weir_err *err)
{
    struct decode d = {
        .b = b, .control = b->o->control != NULL ? b->o->control : "stripe", .n_warm = WR_BENCH_WARM(b->o->n_runs), .row = {.m = 1, .unit = "tokens/s"}};
    weir_plan *plan = NULL;
    wr_bench_progress(b, "prepare", 0, 0, "");
    int rc = open_plan(&d, &plan, err);
    if (rc < 0) goto done;
    /* The disk is read while no engine is open: together they would need more than the budget. Through the page cache, what is in it would be no reading:
     * the file's pages are dropped. */
    bool streams = plan->plan.n_tape > 0;
    char engine[sizeof plan->options.io]; /* the plan is gone before the second measurement */
    snprintf(engine, sizeof engine, "%s", strcmp(plan->options.io, "mmap") == 0 ? "auto" : plan->options.io);
    const struct wr_file *largest = plan->catalog.files; /* of the model, which may be a folder or in parts */
    char path[sizeof largest->path];
    for (uint32_t i = 1; i < plan->catalog.n_files; i++)
        if (plan->catalog.files[i].bytes > largest->bytes) largest = &plan->catalog.files[i];
    memcpy(path, largest->path, sizeof path);
    struct wr_io_probe probe = {.engine = engine,
        .direct = plan->catalog.files[0].fd_direct >= 0,
        .bytes = plan->plan.slot_bytes,
        .depth = plan->plan.n_ahead < WR_PAGER_DEPTH ? plan->plan.n_ahead : WR_PAGER_DEPTH,
        .seconds = PROBE_SECONDS,
        .bytes_total = UINT64_MAX,
        .cancel = b->o->engine.cancel};
    if (streams) rc = wr_io_probe(path, &probe, &b->ledger, &d.before.disk, err);
    for (uint32_t i = 0; rc == 0 && i < plan->catalog.n_files; i++) wr_file_drop_cache(&plan->catalog.files[i]);
    if (rc == 0) rc = weir_engine_open(&d.engine, plan, err);
    if (rc < 0) goto done;
    plan = NULL;
    rc = weir_session_open(&d.session, d.engine, err);
    if (rc == 0) rc = passes(&d, err);
    weir_session_close(d.session);
    weir_engine_close(d.engine);
    if (rc == 0 && streams) rc = wr_io_probe(path, &probe, &b->ledger, &d.after.disk, err);
    if (rc < 0) goto done;
    const char *bound[2];
    const double before = tokens_per_second(&d, &d.before, &bound[0]), after = tokens_per_second(&d, &d.after, &bound[1]);
    wr_bench_ceiling(&d.row, before, after);
    d.row.bound = bound[after > before];
    json_object_set_new(d.row.more, "disk_rate", streams ? json_real(d.before.disk > d.after.disk ? d.before.disk : d.after.disk) : json_null());
    json_object_set_new(d.row.more, "memory_rate", json_real(d.before.memory > d.after.memory ? d.before.memory : d.after.memory));
    rc = wr_bench_emit(b, &d.row, err);
done:
    json_decref(d.row.more);
    wr_mem_free(d.ids);
    weir_plan_close(plan);
    return rc;
}
