/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench stream MODEL: passes of K rows of a model, as the user's options make it, behind `depth` positions of keys and values that were generated, not
 * computed by the model (bench_stream_data.c): all of them are written to the file from which the KV store reads what is not resident. What a pass reads and
 * does is what it would read and do of real ones; its logits mean nothing. Its ceiling is the slower of reading what it read from the disk, in requests of
 * the same size, and of reading what is in memory once.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "io/probe.h"

#define PROBE_SECONDS 0.5
#define BATCH_BYTES (8u << 20) /* written at once, or a 16th of the budget: the peak of the process is that of the passes */

struct rates { /* bytes/s */
    double kv, weights, memory;
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

/* While no engine is open: together they would need more than the budget. */
static int disk_rates(struct stream_model *s, uint32_t block_bytes, uint32_t n_ring, struct rates *r, weir_err *err)
{
    struct wr_io_probe probe = s->weights;
    char path[32];
    int rc = 0;
    if (s->weights.bytes > 0) rc = wr_io_probe(s->path, &s->weights, &s->b->ledger, &r->weights, err);
    probe.bytes = block_bytes;
    probe.depth = n_ring;
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
    if (rc == 0) rc = wr_io_probe(path, &probe, &s->b->ledger, &r->kv, err);
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

static double least_seconds(const struct stream_model *s, const struct rates *r, const char **bound)
{
    const weir_engine *e = s->engine;
    const double disk = s->kv_bytes / r->kv + (s->weight_bytes > 0 ? s->weight_bytes / r->weights : 0);
    const double memory = (double)(wr_plan_used_bytes(&e->plan->plan) + e->plan->info.kv_bytes_per_position * s->depth) / r->memory;
    *bound = disk > memory ? "disk" : "memory";
    return disk > memory ? disk : memory;
}

static int one(struct stream_model *s, uint32_t m, const struct rates *disk, const wr_bench_row *like, weir_err *err)
{
    struct wr_bench *b = s->b;
    const struct wr_hparams *hp = &s->engine->plan->model.hp;
    const weir_plan_info *info = weir_engine_plan(s->engine);
    wr_bench_row row = *like;
    row.m = s->m = m;
    s->n_runs = 0;
    struct rates before = *disk, after = *disk;
    before.memory = memory_rate(s);
    int rc = wr_bench_measure(b, run, s, NULL, m, &row, err);
    if (rc < 0) return rc;
    after.memory = memory_rate(s);
    const char *bound;
    const double floor = s->kv_bytes / disk->kv + (s->weight_bytes > 0 ? s->weight_bytes / disk->weights : 0), bytes = s->kv_bytes + s->weight_bytes;
    wr_bench_ceiling(&row, m / least_seconds(s, &before, &bound), m / least_seconds(s, &after, &row.bound));
    row.outputs = info->n_vocab;
    row.more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "layers",
        (json_int_t)hp->n_layer, "heads", (json_int_t)hp->n_head, "heads_kv", (json_int_t)hp->n_head_kv, "head_dim", (json_int_t)hp->head_dim, "positions",
        (json_int_t)s->depth, "k", (json_int_t)m, "kv", info->kv, "seconds", row.median, "bytes", (json_int_t)bytes, "bytes_kv", (json_int_t)s->kv_bytes,
        "bytes_weights", (json_int_t)s->weight_bytes, "floor_seconds", floor, "ratio_to_disk", floor / row.median, "disk_rate", bytes / floor, "stall_io",
        s->stall_seconds, "fill_rate", (double)(s->depth / WR_TILE) * (double)(hp->n_layer * s->engine->plan->plan.kv.block_bytes) / s->fill_seconds, "block",
        (json_int_t)s->engine->plan->plan.kv.block_bytes, "budget", (json_int_t)info->budget, "kv_resident", (json_int_t)info->kv_resident, "kv_on_disk",
        (json_int_t)info->kv_on_disk, "weights_pinned", (json_int_t)info->pinned, "peak_rss", (json_int_t)wr_os_usage().peak_rss_bytes, "filled", "generated");
    if (row.more == NULL) return wr_err(err, WEIR_E_NOMEM, "no memory for a row");
    wr_bench_crossover(&s->passes, m, row.median, row.more);
    rc = wr_bench_emit(b, &row, err);
    json_decref(row.more);
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
        .seconds = PROBE_SECONDS,
        .bytes_total = UINT64_MAX,
        .cancel = options.cancel};
    row->threads = s->plan->info.n_threads;
    snprintf(row->format, sizeof row->format, "%s", about.quantization);
    wr_bench_file_name(s->path, row->shape);
    const size_t n = strlen(row->shape);
    snprintf(row->shape + n, sizeof row->shape - n, "@%u", s->depth);
    return 0;
}

static int depth_of(struct wr_bench *b, uint32_t depth, const uint32_t *rows, uint32_t n_rows, weir_err *err)
{
    struct stream_model s = {.b = b, .depth = depth, .fd = -1};
    wr_bench_row row = {.unit = "tokens/s"};
    struct rates disk = {0, 0, 0};
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i] > most) most = rows[i];
    wr_bench_progress(b, "prepare", 0, 0, "");
    int rc = open_plan(&s, most, &row, err);
    if (rc == 0) rc = fill(&s, err);
    if (rc == 0) rc = disk_rates(&s, (uint32_t)s.plan->plan.kv.block_bytes, s.plan->plan.kv.n_ring, &disk, err);
    for (uint32_t i = 0; rc == 0 && i < s.plan->catalog.n_files; i++) wr_file_drop_cache(&s.plan->catalog.files[i]);
    if (rc == 0) rc = weir_engine_open(&s.engine, s.plan, err);
    if (rc == 0) {
        s.plan = NULL;
        s.engine->plan->options.progress = NULL; /* how many runs are done says more than the layers of each */
        rc = weir_session_open(&s.session, s.engine, err);
    }
    for (uint32_t i = 0; rc == 0 && i < depth; i++) s.session->ids[i] = 1;
    for (uint32_t i = 0; rc == 0 && i < n_rows; i++) rc = one(&s, rows[i], &disk, &row, err);
    weir_session_close(s.session);
    weir_engine_close(s.engine);
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
