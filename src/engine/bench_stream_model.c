/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench stream MODEL: passes of K rows of a model, as the user's options make it, behind `depth` positions of keys and values that were generated, not
 * computed by the model (bench_stream_data.c): all of them are written to the file from which the KV store reads what is not resident. What a pass reads and
 * does is what it would read and do of real ones; its logits mean nothing. Its ceiling is of reading what it read, in requests of the same size, and of the
 * same rows' attention over positions in memory, alone and at the same time (bench_stream_bound.c), with one read of the weights from memory; measured before
 * the engine is opened and after it is closed: together they would need more than the budget.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "io/probe.h"

#define BATCH_BYTES (8u << 20) /* written at once, or a 16th of the budget: the peak of the process is that of the passes */

struct rates { /* bytes/s */
    double weights, memory;
    struct wr_bench_overlap overlap;
    double runs; /* of its computing, that are one layer of a pass */
};

struct result { /* of one K */
    wr_bench_row row;
    double kv_bytes, weight_bytes, memory_rate;
    struct rates rates[2]; /* before, after */
};

struct stream_model {
    struct wr_bench *b;
    weir_plan *plan; /* the engine's, once that is open */
    weir_engine *engine;
    weir_session *session;
    uint32_t depth, m, n_runs;
    int fd; /* the file of keys and values once more, after the engine is closed; -1: there is none */
    char path[WR_ENGINE_PATH];
    struct wr_io_probe weights; /* how the model is read */
    double fill_seconds;
    double kv_bytes, weight_bytes, stall_seconds; /* of the measured runs */
    struct wr_hparams hp;                         /* and what else is asked for when the plan is gone */
    uint32_t n_global, block_bytes, n_ring;
    enum wr_kv_type type;
    uint64_t used_bytes;
    struct result result[WR_BENCH_LIST];
    struct wr_bench_rows passes;
    struct wr_bench_windows windows;
    uint8_t *batch;
    uint32_t first, n_batch;
    _Atomic uint32_t next;
};

/* ---- the file ---- */

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct stream_model *s = arg;
    const uint32_t n_layer = s->plan->model.hp.n_layer;
    const uint64_t block_bytes = s->plan->plan.kv.block_bytes;
    for (uint32_t i; (i = atomic_fetch_add(&s->next, 1)) < s->n_batch * n_layer && !wr_bench_cancelled(s->b);)
        wr_bench_windows_block(&s->windows, s->plan->kernels, i % n_layer, s->first + i / n_layer, s->batch + i * block_bytes);
}

static int fill(struct stream_model *s, weir_err *err)
{
    struct wr_bench *b = s->b;
    weir_plan *p = s->plan;
    const struct wr_hparams *hp = &p->model.hp;
    const uint64_t group_bytes = hp->n_layer * p->plan.kv.block_bytes, begin = wr_clock_ns();
    const uint32_t n_tiles = s->depth / WR_TILE,
                   n_batch = (uint32_t)((BATCH_BYTES < p->info.budget / 16 ? BATCH_BYTES : p->info.budget / 16) / group_bytes) + 1;
    struct wr_arena arena = {0};
    int rc = wr_arena_open(&arena, WR_BENCH_PAGES(wr_bench_windows_bytes(false)) + WR_BENCH_PAGES(n_batch * group_bytes), err);
    if (rc == 0) rc = wr_team_open(&b->team, b->n_threads, &b->ledger, err);
    if (rc == 0) rc = wr_engine_open_kv_file(&p->options, &p->log, p->plan.kv.n_tiles * group_bytes, &p->kv_given, err);
    if (rc < 0) goto done;
    p->n_kv_given = s->depth;
    s->batch = arena.base + WR_BENCH_PAGES(wr_bench_windows_bytes(false));
    wr_bench_windows_open(&s->windows, b, arena.base, false, (enum wr_kv_type)p->options.kv, hp->n_head_kv, hp->head_dim);
    for (s->first = 0; rc == 0 && s->first < n_tiles; s->first += n_batch) {
        wr_bench_progress(b, "fill", s->first * group_bytes, n_tiles * group_bytes, "bytes");
        s->n_batch = n_tiles - s->first < n_batch ? n_tiles - s->first : n_batch;
        atomic_store(&s->next, 0);
        wr_team_run(b->team, fill_member, s);
        rc = wr_bench_cancelled(b) ? wr_err(err, WEIR_E_CANCELLED, "interrupted")
                                   : wr_store_write(&p->kv_given, s->first * group_bytes, s->batch, s->n_batch * group_bytes, err);
    }
    if (rc == 0) rc = wr_store_sync(&p->kv_given, err);
    s->fd = fcntl(p->kv_given.file.fd_buffered, F_DUPFD_CLOEXEC, 3);
    s->fill_seconds = (double)(wr_clock_ns() - begin) * 1e-9;
done:
    wr_arena_close(&arena);
    wr_team_close(b->team);
    b->team = NULL;
    return rc;
}

/* While no engine is open. */
static int measure_rates(struct stream_model *s, const uint32_t *rows, uint32_t n_rows, bool after, weir_err *err)
{
    struct wr_bench *b = s->b;
    struct wr_io_probe probe = s->weights;
    char path[32];
    double weights = 0;
    int rc = s->weights.bytes > 0 ? wr_io_probe(s->path, &s->weights, &b->ledger, &weights, err) : 0;
    probe.bytes = s->block_bytes;
    probe.depth = s->n_ring;
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
    if (rc == 0) rc = wr_team_open(&b->team, b->n_threads, &b->ledger, err);
    for (uint32_t i = 0; rc == 0 && i < n_rows; i++) {
        struct rates *r = &s->result[i].rates[after];
        r->weights = weights;
        rc = wr_bench_stream_overlap(b, &s->hp, s->type, s->depth, rows[i], path, &probe, &r->overlap, &r->runs, err);
    }
    wr_arena_close(&b->memory);
    b->memory = (struct wr_arena){0};
    wr_team_close(b->team);
    b->team = NULL;
    return rc;
}

/* ---- a run ---- */

/* The same positions as the last one, and other tokens. */
static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct stream_model *s = arg;
    weir_session *session = s->session;
    const uint32_t n_vocab = s->engine->plan->model.hp.n_vocab;
    const double stalled = weir_engine_io(s->engine).stall_io_seconds;
    const uint64_t begin = wr_clock_ns();
    session->n = s->depth;
    session->logits = NULL;
    for (uint32_t i = 0; i < s->m; i++) session->ids[s->depth + i] = (int32_t)((7919ull * (s->n_runs * s->m + i) + 1) % n_vocab);
    int rc = weir_session_set(session, session->ids, s->depth + s->m, err);
    const double stall = weir_engine_io(s->engine).stall_io_seconds - stalled;
    *compute_seconds = (double)(wr_clock_ns() - begin) * 1e-9 - stall;
    if (s->n_runs++ == WR_BENCH_WARM(s->b->o->n_runs)) s->kv_bytes = s->weight_bytes = s->stall_seconds = 0;
    s->kv_bytes += (double)wr_kv_stats(&s->engine->kv).bytes_last_pass / s->b->o->n_runs;
    s->weight_bytes += (double)wr_pager_stats(s->engine->pager).bytes_last_pass / s->b->o->n_runs;
    s->stall_seconds += stall / s->b->o->n_runs;
    return rc;
}

static double memory_rate(const struct stream_model *s)
{
    const weir_engine *e = s->engine;
    return wr_ceiling_read(s->b->kernels, e->arena.base, e->arena.bytes, e->team, WR_BENCH_CEILING_SECONDS);
}

static double reading_seconds(const struct result *result, const struct rates *r)
{
    return result->kv_bytes / r->overlap.disk + (result->weight_bytes > 0 ? result->weight_bytes / r->weights : 0);
}

static double least_seconds(const struct stream_model *s, const struct result *result, const struct rates *r, const char **bound)
{
    const struct wr_bench_overlap *o = &r->overlap;
    const double computing = s->n_global * r->runs / o->runs + (double)s->used_bytes / result->memory_rate;
    const double bytes = reading_seconds(result, r) * o->disk, runs = computing * o->runs;
    *bound = bytes / o->disk_beside > runs / o->runs_beside ? "disk" : "compute";
    return wr_bench_overlap_seconds(o, bytes, runs);
}

/* The last run once more, by the reference kernels: its logits are the same bits. Of more than a GiB this would take minutes; *done says whether it was. */
static int check(struct stream_model *s, const wr_bench_row *row, bool *done, weir_err *err)
{
    const uint32_t n_vocab = s->hp.n_vocab;
    const uint64_t was = wr_bench_hash(weir_session_logits(s->session), n_vocab);
    *done = s->m * (double)s->n_global * s->depth / WR_TILE * s->block_bytes + (double)s->used_bytes <= WR_BENCH_CHECKED_BYTES;
    if (!*done) return 0;
    wr_bench_progress(s->b, "verify", 0, 0, "");
    s->engine->pass.kernels = s->b->reference;
    s->session->n = s->depth;
    s->session->logits = NULL; /* so that they are computed again */
    int rc = weir_session_set(s->session, s->session->ids, s->depth + s->m, err);
    s->engine->pass.kernels = s->b->kernels;
    if (rc == 0 && wr_bench_hash(weir_session_logits(s->session), n_vocab) != was)
        rc = wr_err(err, WEIR_E_FAIL, "bench stream %s: the logits of the last run at level %s are not those of the reference kernels", row->shape,
            s->b->kernels->level);
    return rc;
}

static int one(struct stream_model *s, uint32_t m, struct result *result, weir_err *err)
{
    struct wr_bench *b = s->b;
    const struct wr_hparams *hp = &s->hp;
    const weir_plan_info *info = weir_engine_plan(s->engine);
    wr_bench_row *row = &result->row;
    row->m = s->m = m;
    s->n_runs = 0;
    result->memory_rate = memory_rate(s);
    int rc = wr_bench_measure(b, run, s, NULL, m, row, err);
    if (rc < 0) return rc;
    result->memory_rate = fmax(result->memory_rate, memory_rate(s));
    result->kv_bytes = s->kv_bytes;
    result->weight_bytes = s->weight_bytes;
    bool as_reference = false;
    rc = check(s, row, &as_reference, err);
    if (rc < 0) return rc;
    row->outputs = info->n_vocab;
    row->more = json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "as_reference",
        (int)as_reference, "layers", (json_int_t)hp->n_layer, "heads", (json_int_t)hp->n_head, "heads_kv", (json_int_t)hp->n_head_kv, "head_dim",
        (json_int_t)hp->head_dim, "positions", (json_int_t)s->depth, "k", (json_int_t)m, "kv", info->kv, "seconds", row->median, "bytes",
        (json_int_t)(s->kv_bytes + s->weight_bytes), "bytes_kv", (json_int_t)s->kv_bytes, "bytes_weights", (json_int_t)s->weight_bytes, "stall_io",
        s->stall_seconds, "fill_rate", (double)(s->depth / WR_TILE) * (double)hp->n_layer * s->block_bytes / s->fill_seconds, "block",
        (json_int_t)s->block_bytes, "budget", (json_int_t)info->budget, "kv_resident", (json_int_t)info->kv_resident, "kv_on_disk",
        (json_int_t)info->kv_on_disk, "weights_pinned", (json_int_t)info->pinned, "peak_rss", (json_int_t)wr_os_usage().peak_rss_bytes, "filled", "generated");
    if (row->more == NULL) return wr_err(err, WEIR_E_NOMEM, "no memory for a row");
    wr_bench_crossover(&s->passes, m, row->median, row->more);
    return 0;
}

static int emit(struct stream_model *s, struct result *result, weir_err *err)
{
    wr_bench_row *row = &result->row;
    const char *bound[2];
    const double before = least_seconds(s, result, &result->rates[0], &bound[0]), after = least_seconds(s, result, &result->rates[1], &bound[1]);
    const struct wr_bench_overlap *best = &result->rates[after < before].overlap;
    const double floor = fmin(reading_seconds(result, &result->rates[0]), reading_seconds(result, &result->rates[1]));
    const double bytes = result->kv_bytes + result->weight_bytes, all = (double)s->depth / WR_TILE * s->block_bytes / result->rates[0].runs; /* of a run */
    wr_bench_ceiling(row, row->m / before, row->m / after);
    row->bound = bound[after < before];
    json_t *more = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "floor_seconds", floor, "ratio_to_disk", floor / row->median, "disk_rate", bytes / floor,
        "disk_rate_beside", best->disk_beside, "memory_rate", best->runs * all, "memory_rate_beside", best->runs_beside * all);
    int rc = more == NULL || json_object_update(row->more, more) < 0 ? wr_err(err, WEIR_E_NOMEM, "no memory for a row") : wr_bench_emit(s->b, row, err);
    json_decref(more);
    return rc;
}

/* ---- cases ---- */

static int open_plan(struct stream_model *s, uint32_t most, wr_bench_row *row, weir_err *err)
{
    weir_options options = s->b->o->engine;
    wr_about about;
    if (s->b->o->kv == NULL) options.kv = WEIR_KV_Q8_0;
    if (options.n_ctx == 0) options.n_ctx = s->depth + (uint32_t)wr_round_up(most, WR_TILE);
    if (options.n_chunk == 0) options.n_chunk = most;
    if (options.n_chunk < most) return wr_err(err, WEIR_E_USAGE, "--chunk %u: %u rows would be several passes; give at least %u", options.n_chunk, most, most);
    int rc = wr_tool_about(s->b->o->model, &about, err);
    if (rc == 0) rc = weir_plan_open(&s->plan, s->b->o->model, &options, err);
    if (rc < 0) return rc;
    const struct wr_plan *plan = &s->plan->plan;
    if (plan->n_ctx < s->depth + most || !plan->spilled)
        return wr_err(err, WEIR_E_USAGE, "%u positions and %u rows %s; give %s", s->depth, most,
            plan->spilled ? "do not fit into the context" : "fit into this budget, and nothing would be read from the disk",
            plan->spilled ? "a larger -c" : "a smaller --memory or a larger --depth");
    const struct wr_file *largest = s->plan->catalog.files;
    for (uint32_t i = 1; i < s->plan->catalog.n_files; i++)
        if (s->plan->catalog.files[i].bytes > largest->bytes) largest = &s->plan->catalog.files[i];
    snprintf(s->path, sizeof s->path, "%s", largest->path);
    s->weights = (struct wr_io_probe){.engine = s->b->o->engine.io,
        .direct = s->plan->catalog.files[0].fd_direct >= 0,
        .bytes = plan->n_tape > 0 ? plan->slot_bytes : 0,
        .depth = plan->n_ahead < WR_PAGER_DEPTH ? plan->n_ahead : WR_PAGER_DEPTH,
        .seconds = wr_bench_overlap_probe((double)plan->kv.n_tiles * (double)plan->kv.block_bytes),
        .bytes_total = UINT64_MAX,
        .cancel = options.cancel};
    row->threads = s->plan->info.n_threads;
    snprintf(row->format, sizeof row->format, "%s", about.quantization);
    wr_bench_file_name(s->path, row->shape);
    const size_t n = strlen(row->shape);
    snprintf(row->shape + n, sizeof row->shape - n, "@%u", s->depth);
    return 0;
}

static void note_plan(struct stream_model *s)
{
    const struct weir_plan *p = s->plan;
    s->hp = p->model.hp;
    s->type = (enum wr_kv_type)p->options.kv;
    s->block_bytes = (uint32_t)p->plan.kv.block_bytes;
    s->n_ring = p->plan.kv.n_ring;
    s->used_bytes = wr_plan_used_bytes(&p->plan);
    s->b->budget_bytes = p->info.budget;
    for (uint32_t il = 0; il < s->hp.n_layer; il++) s->n_global += !p->model.layers[il].local;
}

static int depth_of(struct wr_bench *b, uint32_t depth, const uint32_t *rows, uint32_t n_rows, weir_err *err)
{
    struct stream_model s = {.b = b, .depth = depth, .fd = -1};
    wr_bench_row row = {.unit = "tokens/s"};
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i] > most) most = rows[i];
    wr_bench_progress(b, "prepare", 0, 0, "");
    int rc = open_plan(&s, most, &row, err);
    if (rc == 0) note_plan(&s);
    if (rc == 0) rc = fill(&s, err);
    if (rc == 0) rc = measure_rates(&s, rows, n_rows, false, err);
    for (uint32_t i = 0; rc == 0 && i < s.plan->catalog.n_files; i++) wr_file_drop_cache(&s.plan->catalog.files[i]);
    if (rc == 0) rc = weir_engine_open(&s.engine, s.plan, err);
    if (rc == 0) {
        s.plan = NULL;
        s.engine->plan->options.progress = NULL; /* how many runs are done says more than the layers of each */
        rc = weir_session_open(&s.session, s.engine, err);
    }
    for (uint32_t i = 0; rc == 0 && i < depth; i++) s.session->ids[i] = 1;
    for (uint32_t i = 0; rc == 0 && i < n_rows; i++) {
        s.result[i].row = row;
        rc = one(&s, rows[i], &s.result[i], err);
    }
    weir_session_close(s.session);
    weir_engine_close(s.engine);
    if (rc == 0) rc = measure_rates(&s, rows, n_rows, true, err);
    for (uint32_t i = 0; rc == 0 && i < n_rows; i++) rc = emit(&s, &s.result[i], err);
    for (uint32_t i = 0; i < n_rows; i++) json_decref(s.result[i].row.more);
    weir_plan_close(s.plan);
    if (s.fd >= 0) close(s.fd);
    return rc;
}

int wr_bench_stream_model(struct wr_bench *b, const uint32_t *rows, uint32_t n_rows, const uint32_t *depths, uint32_t n_depths, weir_err *err)
{
    int rc = 0;
    for (uint32_t d = 0; rc == 0 && d < n_depths; d++) rc = depth_of(b, depths[d], rows, n_rows, err);
    return rc;
}
