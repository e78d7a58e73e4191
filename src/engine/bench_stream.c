/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench stream: attention of one layer over a million positions of keys and values that lie on the disk, by the code that a pass runs: K rows attend over
 * `depth` stored positions and themselves, of which none is in memory before a run but what the ring has read ahead. Without a model the file is filled with
 * generated keys and values (bench_stream_data.c); the scores are spread so wide that a few of a million keys carry a query's output, as in real contexts:
 * an output has the size of a value, and not of the mean of many. With a model: bench_stream_model.c.
 *
 * The ceiling is what reading the blocks from the same file, in the same requests, as many at once, and the arithmetic of the same rows over positions in memory
 * can do at the same time (bench_stream_bound.c), measured before and after the runs.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/num.h"
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "io/probe.h"

#define SPREAD 3.5f            /* standard deviation of the scores */
#define CHECKED 64             /* pairs of head and query that are checked, where there are so many */
#define TOLERANCE 1e-4         /* error / the head's largest output */
#define BATCH_BYTES (8u << 20) /* written at once */
#define RING_BYTES (32u << 20)
#define MAX_DEPTH (1u << 24)
#define MAX_ROWS 1024
#define HERE_BYTES (48u << 20) /* of positions in memory: more than the caches of most CPUs */

struct stream {
    struct wr_bench *b;
    struct wr_bench_windows windows;
    struct wr_device device;
    struct wr_store file; /* until the KV store takes it over */
    struct wr_kv kv;
    bool open;
    struct wr_device device_here; /* of positions in memory, the first n_here */
    struct wr_kv here;
    uint32_t n_here;
    struct wr_model model;
    struct wr_layer layer;
    struct wr_pass pass;
    struct wr_pass_row *rows;
    uint32_t depth, n_ring;
    uint64_t block_bytes;
    uint8_t *batch; /* [n_batch] blocks */
    uint32_t n_batch, first;
    _Atomic uint32_t next;
    double fill_seconds;
    double stall_seconds; /* of the runs */
    struct wr_bench_rows passes;
    char path[32]; /* by which the file is opened again, to be read raw */
    uint8_t *work; /* [members] of the check */
    double *error; /* [pairs] relative */
};

static uint32_t n_q(const struct wr_hparams *hp) { return hp->n_head * hp->head_dim; }
static uint32_t n_kv(const struct wr_hparams *hp) { return hp->n_head_kv * hp->head_dim; }

/* ---- the file ---- */

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct stream *s = arg;
    for (uint32_t i; (i = atomic_fetch_add(&s->next, 1)) < s->n_batch && !wr_bench_cancelled(s->b);)
        wr_bench_windows_block(&s->windows, s->b->kernels, 0, s->first + i, s->batch + i * s->block_bytes);
}

static int fill(struct stream *s, weir_err *err)
{
    const uint32_t n_tiles = s->depth / WR_TILE, n_batch = s->n_batch;
    const uint64_t begin = wr_clock_ns();
    int rc = 0;
    for (s->first = 0; rc == 0 && s->first < n_tiles; s->first += n_batch) {
        wr_bench_progress(s->b, "fill", s->first * s->block_bytes, n_tiles * s->block_bytes, "bytes");
        s->n_batch = n_tiles - s->first < n_batch ? n_tiles - s->first : n_batch;
        atomic_store(&s->next, 0);
        wr_team_run(s->b->team, fill_member, s);
        rc = wr_bench_cancelled(s->b) ? wr_err(err, WEIR_E_CANCELLED, "interrupted")
                                      : wr_store_write(&s->file, s->first * s->block_bytes, s->batch, s->n_batch * s->block_bytes, err);
    }
    s->n_batch = n_batch;
    if (rc == 0) rc = wr_store_sync(&s->file, err);
    s->fill_seconds = (double)(wr_clock_ns() - begin) * 1e-9;
    return rc;
}

static bool local(const void *user, uint32_t layer) { return false; }

/* ---- a run ---- */

/* Row i of the pass: q, k, v. */
static void fill_row(struct wr_pass *p, uint32_t i, void *arg)
{
    const struct stream *s = arg;
    const struct wr_hparams *hp = &p->model->hp;
    float *q = p->g + i * p->g_width, *k = q + n_q(hp), *v = k + n_kv(hp);
    const uint32_t position = p->rows[i].position;
    wr_synth_row(q, n_q(hp), 0, 1, position, 1 / SPREAD);
    for (uint32_t h = 0; h < hp->n_head_kv; h++) {
        memcpy(k + h * hp->head_dim, wr_bench_window_key(&s->windows, 0, h, position), hp->head_dim * sizeof *k);
        memcpy(v + h * hp->head_dim, wr_bench_window_value(&s->windows, 0, h, position), hp->head_dim * sizeof *v);
    }
}

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct stream *s = arg;
    struct wr_pass *p = &s->pass;
    const uint64_t begin = wr_clock_ns(), stalled = wr_kv_stats(&s->kv).stall_read_ns;
    int rc = wr_kv_begin(&s->kv, s->depth, p->m, err);
    if (rc < 0) return rc;
    if (!wr_attention_store(p, 0) || !wr_attention_attend(p, 0)) rc = wr_err(err, p->err.code, "%s", p->err.text);
    wr_kv_end(&s->kv, true); /* its rows are forgotten: the next run is the same */
    const double stall = (double)(wr_kv_stats(&s->kv).stall_read_ns - stalled) * 1e-9;
    s->stall_seconds += stall;
    *compute_seconds = (double)(wr_clock_ns() - begin) * 1e-9 - stall;
    for (uint32_t i = 0; rc == 0 && i < p->m; i++)
        if (!p->kernels->all_finite(p->h + i * p->h_width, n_q(&s->model.hp)))
            rc = wr_err(err, WEIR_E_NONFINITE, "the attention of a row is not finite at level %s", p->kernels->level);
    return rc;
}

/* The rows over the first positions, which are in memory too, or over all of them. */
static void aim(struct stream *s, bool here)
{
    struct wr_pass *p = &s->pass;
    p->device = here ? &s->device_here : &s->device;
    p->kv = here ? &s->here : &s->kv;
    for (uint32_t i = 0; i < p->m; i++) s->rows[i] = (struct wr_pass_row){.position = (here ? s->n_here : s->depth) + i};
    wr_pass_each_row(p, fill_row, s);
}

static int run_here(void *arg, double *compute_seconds, weir_err *err)
{
    struct stream *s = arg;
    struct wr_pass *p = &s->pass;
    if (wr_bench_cancelled(s->b)) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    return wr_attention_store(p, 0) && wr_attention_attend(p, 0) ? 0 : wr_err(err, p->err.code, "%s", p->err.text);
}

static int measure_overlap(struct stream *s, const char *path, const struct wr_io_probe *probe, struct wr_bench_overlap *o, weir_err *err)
{
    aim(s, true);
    int rc = wr_bench_overlap(s->b, path, probe, run_here, s, o, err);
    aim(s, false);
    return rc;
}

static struct wr_io_probe probe_of(const struct stream *s)
{
    return (struct wr_io_probe){.engine = s->b->o->engine.io,
        .direct = wr_kv_stats(&s->kv).direct,
        .bytes = (uint32_t)s->block_bytes,
        .depth = s->n_ring,
        .seconds = wr_bench_overlap_probe((double)s->depth / WR_TILE * (double)s->block_bytes),
        .bytes_total = UINT64_MAX,
        .cancel = s->b->o->engine.cancel};
}

/* ---- the check ---- */

static uint32_t n_pairs(const struct stream *s) { return s->pass.m * s->model.hp.n_head; }
static uint32_t n_checked(const struct stream *s) { return n_pairs(s) < CHECKED ? n_pairs(s) : CHECKED; }
/* Every head, and with it rows from everywhere. All pairs, where all are checked. */
static uint32_t head_of(const struct stream *s, uint32_t i) { return i % s->model.hp.n_head; }
static uint32_t row_of(const struct stream *s, uint32_t i) { return s->pass.m - 1 - (i / s->model.hp.n_head + i % s->model.hp.n_head) % s->pass.m; }

static void check_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct stream *s = arg;
    const struct wr_hparams *hp = &s->model.hp;
    double want[WR_MAX_HEAD_DIM];
    for (uint32_t i; (i = atomic_fetch_add(&s->next, 1)) < n_checked(s) && !wr_bench_cancelled(s->b);) {
        const uint32_t row = row_of(s, i), head = head_of(s, i);
        const float *got = s->pass.h + row * s->pass.h_width + head * hp->head_dim, *q = s->pass.g + row * s->pass.g_width + head * hp->head_dim;
        double error = 0, largest = 0;
        wr_bench_windows_attend(&s->windows, 0, head / (hp->n_head / hp->n_head_kv), s->depth + row + 1, q, hp->attention_scale,
            s->work + member * wr_bench_windows_work_bytes(), want);
        for (uint32_t d = 0; d < hp->head_dim; d++) {
            error = fmax(error, fabs((double)got[d] - want[d]));
            largest = fmax(largest, fabs(want[d]));
        }
        s->error[i] = error / largest;
    }
}

static int check(struct stream *s, wr_bench_row *row, weir_err *err)
{
    const struct wr_hparams *hp = &s->model.hp;
    atomic_store(&s->next, 0);
    wr_team_run(s->b->team, check_member, s);
    if (wr_bench_cancelled(s->b)) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    row->outputs = (uint64_t)n_pairs(s) * hp->head_dim;
    row->outputs_verified = (uint64_t)n_checked(s) * hp->head_dim;
    for (uint32_t i = 0; i < n_checked(s); i++) {
        row->max_rel_error = fmax(row->max_rel_error, s->error[i]);
        if (s->error[i] <= TOLERANCE) continue; /* NaN is not */
        return wr_err(err, WEIR_E_FAIL, "bench stream %s %s: head %u of row %u is wrong: off by %.2g of its largest output, more than %g", row->shape,
            row->format, head_of(s, i), row_of(s, i), s->error[i], TOLERANCE);
    }
    return 0;
}

/* ---- cases ---- */

void wr_bench_crossover(struct wr_bench_rows *rows, uint32_t k, double seconds, json_t *more)
{
    if (k == 1) *rows = (struct wr_bench_rows){.one = seconds};
    const double most = WR_BENCH_CROSSOVER * rows->one;
    json_t *crossover = NULL;
    if (rows->one > 0 && seconds <= most && !rows->crossed) {
        rows->k = k;
        rows->seconds = seconds;
    } else if (rows->one > 0 && k > rows->k && !rows->crossed) {
        rows->crossed = true;
        crossover = json_integer((json_int_t)(rows->k + (k - rows->k) * (most - rows->seconds) / (seconds - rows->seconds)));
    }
    json_object_set_new(more, "ratio_to_one", rows->one > 0 ? json_real(seconds / rows->one) : json_null());
    json_object_set_new(more, "crossover", crossover != NULL ? crossover : json_null());
}

static int one(struct stream *s, uint32_t m, const wr_bench_row *like, weir_err *err)
{
    struct wr_bench *b = s->b;
    const struct wr_hparams *hp = &s->model.hp;
    wr_bench_row row = *like;
    const struct wr_io_probe probe = probe_of(s);
    struct wr_bench_overlap o[2];
    row.m = m;
    s->pass.m = m;
    s->stall_seconds = 0;

    const double bytes = (double)s->depth / WR_TILE * (double)s->block_bytes, runs = (double)s->depth / s->n_here;
    int rc = measure_overlap(s, s->path, &probe, &o[0], err);
    if (rc == 0) rc = wr_bench_measure(b, run, s, NULL, bytes, &row, err);
    if (rc == 0) wr_bench_progress(b, "verify", 0, 0, "");
    if (rc == 0) rc = check(s, &row, err);
    if (rc == 0) rc = measure_overlap(s, s->path, &probe, &o[1], err);
    if (rc < 0) return rc;
    const double before = wr_bench_overlap_seconds(&o[0], bytes, runs), after = wr_bench_overlap_seconds(&o[1], bytes, runs);
    const struct wr_bench_overlap *best = &o[after < before];
    wr_bench_ceiling(&row, bytes / before, bytes / after);
    row.bound = bytes / best->disk_beside > runs / best->runs_beside ? "disk" : "compute";
    const uint64_t read = wr_kv_stats(&s->kv).bytes_last_pass;
    const double fastest = fmax(o[0].disk, o[1].disk), memory = bytes / runs;
    const uint32_t n_run = b->o->n_runs + WR_BENCH_WARM(b->o->n_runs);
    row.more = json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:s}", "layers", 1, "heads",
        (json_int_t)hp->n_head, "heads_kv", (json_int_t)hp->n_head_kv, "head_dim", (json_int_t)hp->head_dim, "positions", (json_int_t)s->depth, "k",
        (json_int_t)m, "kv", row.format, "seconds", row.median, "bytes", (json_int_t)read, "floor_seconds", (double)read / fastest, "ratio_to_disk",
        (double)read / fastest / row.median, "disk_rate", fastest, "disk_rate_beside", best->disk_beside, "memory_rate", best->runs * memory,
        "memory_rate_beside", best->runs_beside * memory, "stall_io", s->stall_seconds / n_run, "fill_rate", bytes / s->fill_seconds, "block",
        (json_int_t)s->block_bytes, "peak_rss", (json_int_t)wr_os_usage().peak_rss_bytes, "filled", "generated");
    if (row.more == NULL) return wr_err(err, WEIR_E_NOMEM, "no memory for a row");
    wr_bench_crossover(&s->passes, m, row.median, row.more);
    rc = wr_bench_emit(b, &row, err);
    json_decref(row.more);
    return rc;
}

/* Memory for the rows and for the positions that are in memory, with what `check` needs, and more_bytes for the caller. */
static int open_memory(struct stream *s, enum wr_kv_type type, uint32_t m, bool checked, uint64_t more_bytes, const char *what, weir_err *err)
{
    struct wr_bench *b = s->b;
    struct wr_pass *p = &s->pass;
    const struct wr_hparams *hp = &s->model.hp;
    const uint32_t n_members = wr_team_size(b->team), n_tiles = s->depth / WR_TILE;
    s->block_bytes = wr_kv_block_bytes(type, hp->n_head_kv, hp->head_dim);
    const uint32_t n_here = s->block_bytes < HERE_BYTES ? (uint32_t)(HERE_BYTES / s->block_bytes) : 1;
    s->n_here = (n_here < n_tiles ? n_here : n_tiles) * WR_TILE;
    p->g_width = n_q(hp) + 2 * n_kv(hp);
    p->h_width = p->u_width = n_q(hp);
    p->member_bytes = wr_round_up(wr_attention_work_bytes(hp->head_dim), 64);
    void *windows;
    struct {
        void **to;
        uint64_t bytes;
    } parts[] = {{(void **)&p->g, m * p->g_width * sizeof(float)}, {(void **)&p->h, m * p->h_width * sizeof(float)},
        {(void **)&p->u, m * p->u_width * sizeof(float)}, {(void **)&p->attend_state, 4ull * m * hp->n_head * sizeof(float)},
        {(void **)&p->member_work, n_members * p->member_bytes}, {(void **)&s->rows, m * sizeof *s->rows}, {&windows, wr_bench_windows_bytes(checked)},
        {(void **)&s->error, CHECKED * sizeof(double)}, {(void **)&s->work, n_members * wr_bench_windows_work_bytes()}};
    const size_t n_parts = sizeof parts / sizeof *parts - (checked ? 0 : 2);
    uint64_t sum = more_bytes + WR_BENCH_PAGES(wr_kv_position_bytes(type, 1, hp->n_head_kv, hp->head_dim) * wr_round_up(s->n_here + m, WR_KV_BLOCK));
    for (size_t i = 0; i < n_parts; i++) sum += WR_BENCH_PAGES(parts[i].bytes);
    int rc = wr_bench_room(b, sum, what, err);
    for (size_t i = 0; rc == 0 && i < n_parts; i++) *parts[i].to = wr_bench_take(b, parts[i].bytes);
    if (rc < 0) return rc;
    wr_device_cpu(&s->device);
    wr_device_cpu(&s->device_here);
    p->model = &s->model;
    p->kernels = b->kernels;
    p->device = &s->device;
    p->team = b->team;
    p->kv = &s->kv;
    p->heads_rotated = true;
    p->cancel = b->o->engine.cancel;
    p->rows = s->rows;
    p->max_rows = m;
    wr_bench_progress(b, "prepare", 0, 0, "");
    wr_bench_windows_open(&s->windows, b, windows, checked, type, hp->n_head_kv, hp->head_dim);
    rc = wr_kv_open(&s->here, &s->device_here, type, 1, hp->n_head_kv, hp->head_dim, s->n_here + m, &b->memory, &b->ledger, err);
    for (uint32_t tile = 0; rc == 0 && tile < s->n_here / WR_TILE; tile++) {
        const struct wr_ref block = wr_kv_keys(&s->here, 0, 0, tile * WR_TILE, 1); /* its first bytes */
        wr_bench_windows_block(&s->windows, b->kernels, 0, tile, wr_ref_address(&s->device_here, &block));
    }
    return rc;
}

/* Memory for the case, its file filled, and the store over it. */
static int open_case(struct stream *s, enum wr_kv_type type, uint32_t m, const char *what, weir_err *err)
{
    struct wr_bench *b = s->b;
    const struct wr_hparams *hp = &s->model.hp;
    const uint32_t n_tiles = s->depth / WR_TILE;
    const uint64_t block_bytes = wr_kv_block_bytes(type, hp->n_head_kv, hp->head_dim);
    s->n_batch = (uint32_t)(BATCH_BYTES / block_bytes) + 1;
    if (s->n_batch > n_tiles) s->n_batch = n_tiles;
    struct wr_kv_layout layout = wr_kv_layout_least(block_bytes, 1, 0, 0, s->depth + m, m);
    layout.n_ring = (uint32_t)(RING_BYTES / block_bytes);
    if (layout.n_ring > WR_KV_MOST_RING) layout.n_ring = WR_KV_MOST_RING;
    if (layout.n_ring < WR_KV_LEAST_RING) layout.n_ring = WR_KV_LEAST_RING;
    s->n_ring = layout.n_ring;
    int rc = open_memory(s, type, m, true, WR_BENCH_PAGES(wr_kv_layout_bytes(&layout)) + WR_BENCH_PAGES(s->n_batch * block_bytes), what, err);
    if (rc < 0) return rc;
    s->batch = wr_bench_take(b, s->n_batch * block_bytes);
    rc = wr_engine_open_kv_file(&b->o->engine, &b->log, (n_tiles + m / WR_TILE + 1) * s->block_bytes, &s->file, err);
    if (rc < 0) return rc;
    rc = fill(s, err);
    if (rc < 0) {
        wr_store_close(&s->file);
        return rc;
    }
    snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", s->file.file.fd_buffered);
    const struct wr_kv_config config = {.device = &s->device,
        .type = type,
        .n_layer = 1,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .layout = layout,
        .is_local = local,
        .io = b->o->engine.io,
        .arena = &b->memory,
        .ledger = &b->ledger,
        .log = &b->log,
        .file = s->file,
        .places = {.group_bytes = s->block_bytes}};
    rc = wr_kv_open_spilled(&s->kv, &config, err);
    if (rc < 0) {
        wr_store_close(&s->file);
        return rc;
    }
    s->open = true;
    return wr_kv_adopt(&s->kv, s->depth, err);
}

/* What attends, and nothing before it. */
static struct stream stream_of(struct wr_bench *b, const uint32_t shape[3], float scale, uint32_t depth)
{
    return (struct stream){.b = b,
        .depth = depth,
        .model.hp = {.n_layer = 1, .n_head = shape[0], .n_head_kv = shape[1], .head_dim = shape[2], .attention_scale = scale},
        .layer = {.q_bias = WR_NO_WEIGHT, .k_bias = WR_NO_WEIGHT, .v_bias = WR_NO_WEIGHT, .q_norm = WR_NO_WEIGHT, .k_norm = WR_NO_WEIGHT}};
}

static int shape_of(struct wr_bench *b, const uint32_t shape[3], enum wr_kv_type type, uint32_t depth, const uint32_t *m, uint32_t n_m, weir_err *err)
{
    struct stream s = stream_of(b, shape, 1.0f / sqrtf((float)shape[2]), depth);
    wr_bench_row row = {.unit = "bytes/s"};
    char what[96];
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_m; i++)
        if (m[i] > most) most = m[i];
    s.model.layers = &s.layer;
    snprintf(row.shape, sizeof row.shape, "%ux%ux%u@%u", shape[0], shape[1], shape[2], depth);
    snprintf(row.format, sizeof row.format, "%s", wr_kv_name(type));
    snprintf(what, sizeof what, "%.40s, %u rows, %s", row.shape, most, row.format);
    int rc = open_case(&s, type, most, what, err);
    for (uint32_t i = 0; rc == 0 && i < n_m; i++) rc = one(&s, m[i], &row, err);
    if (s.open) wr_kv_close(&s.kv);
    return rc;
}

int wr_bench_stream_overlap(struct wr_bench *b, const struct wr_hparams *hp, enum wr_kv_type type, uint32_t depth, uint32_t m, const char *path,
    const struct wr_io_probe *probe, struct wr_bench_overlap *o, double *runs, weir_err *err)
{
    struct stream s = stream_of(b, (uint32_t[]){hp->n_head, hp->n_head_kv, hp->head_dim}, hp->attention_scale, depth);
    s.model.layers = &s.layer;
    int rc = open_memory(&s, type, m, false, 0, "of the model's heads", err);
    s.pass.m = m;
    if (rc == 0) rc = measure_overlap(&s, path, probe, o, err);
    *runs = (double)depth / s.n_here;
    return rc;
}

int wr_bench_stream(struct wr_bench *b, weir_err *err)
{
    uint32_t shapes[WR_BENCH_LIST][3], rows[WR_BENCH_LIST], depths[WR_BENCH_LIST], n_shapes, n_rows, n_depths;
    const wr_bench_options *o = b->o;
    const enum wr_kv_type type = o->kv != NULL ? (enum wr_kv_type)o->engine.kv : WR_KV_Q8_0;
    int rc = wr_bench_numbers(o->rows != NULL ? o->rows : "1,8,64", "rows", "a list such as 1,8,64", 1, MAX_ROWS, rows, &n_rows, err);
    if (rc == 0)
        rc = wr_bench_numbers(o->depths != NULL ? o->depths : "1048576", "depth", "a list such as 65536,1048576", 1, MAX_DEPTH, depths, &n_depths, err);
    for (uint32_t d = 0; rc == 0 && d < n_depths; d++)
        if (depths[d] % WR_TILE != 0) rc = wr_err(err, WEIR_E_USAGE, "--depth: %u is not a multiple of %d, which blocks of the file hold", depths[d], WR_TILE);
    if (rc == 0 && o->model != NULL) return wr_bench_stream_model(b, rows, n_rows, depths, n_depths, err);
    if (rc == 0) rc = wr_bench_heads(o->shapes != NULL ? o->shapes : "32x32x64,32x8x128", &type, shapes, &n_shapes, err);
    for (uint32_t s = 0; rc == 0 && s < n_shapes; s++)
        for (uint32_t d = 0; rc == 0 && d < n_depths; d++) rc = shape_of(b, shapes[s], type, depths[d], rows, n_rows, err);
    return rc;
}
