/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode passes as the engine runs them: a plan, the pager's leases, ring and thread, and the team's products of one row, of Q4_0 weights. In memory they tell
 * what a pass takes beyond the products alone; with a part of the weights read they tell how much of reading and computing is done at the same time, which
 * depends on which of the two takes longer, and on what the machine lets both have: memory, the bus, and processor time where a host counts its own.
 */
#include <string.h>
#include "base/os.h"
#include "engine/probe.h"
#include "memory/deal.h"
#include "memory/pager.h"

#define LEAST_PASSES 3
#define LOAD_SECONDS 0.3 /* of the disk's rate: so much is pinned, as far as there is room */
#define WARM_SECONDS 0.2 /* longer than what hosts give at once of a processor that they ration */
#define LEAST_SECONDS 0.3
#define PARTS 16     /* of the memory; one for each shape in memory, ... */
#define READ_PARTS 3 /* ... and for what is read */
#define SAME 1.1     /* ratios that are no further apart are one */
#define LEAST_BYTES ((uint64_t)16 << 20)
#define WHOLE_THREADS(p) ((p)->profile->n_threads - 1)

/* Matrices that a pass has again and again. */
struct matrix {
    uint32_t k, rows;
};
enum { LARGE, SMALL, N_SHAPES };
static const struct matrix matrices[N_SHAPES][4] = {
    [LARGE] = {{WR_PROBE_K, WR_PROBE_ROWS}},
    /* As many bytes as the matrices of a layer of a model of 135 M weights. */
    [SMALL] = {{WR_PROBE_K, 128}, {WR_PROBE_K, 80}, {WR_PROBE_K, 432}, {WR_PROBE_K, 208}},
};

struct pass {
    struct wr_probe *p;
    struct wr_file file;
    struct wr_catalog catalog;
    struct wr_tensor *tensors;
    struct wr_use *uses;
    struct wr_plan plan;
    struct wr_ledger ledger;
    struct wr_arena arena;
    struct wr_device device;
    struct wr_pager *pager;
    struct wr_act act;
    uint64_t bytes;
    uint32_t weight; /* of the run */
    struct wr_deal deal;
};

uint64_t wr_probe_pass_memory(uint64_t memory_bytes) { return memory_bytes / PARTS * (N_SHAPES + READ_PARTS); }

static uint64_t row_bytes_of(uint32_t k) { return k / wr_quant_q4_0.block_elems * wr_quant_q4_0.block_bytes; }

/* Whatever bytes the file has are weights: no product looks at what it computes. */
static int open_plan(struct pass *s, const struct matrix *shape, uint64_t bytes, double pinned, weir_err *err)
{
    uint32_t of_shape = 0, n = 0;
    uint64_t once = 0;
    for (; of_shape < 4 && shape[of_shape].k > 0; of_shape++) once += row_bytes_of(shape[of_shape].k) * shape[of_shape].rows;
    n = of_shape * (uint32_t)(bytes > once ? bytes / once : 1);
    s->tensors = wr_mem_array(&s->ledger, WR_ACCOUNT_META, n, sizeof *s->tensors, err);
    s->uses = wr_mem_array(&s->ledger, WR_ACCOUNT_META, n, sizeof *s->uses, err);
    if (s->tensors == NULL || s->uses == NULL) return WEIR_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const struct matrix *m = &shape[i % of_shape];
        const uint64_t row_bytes = row_bytes_of(m->k);
        s->tensors[i] = (struct wr_tensor){.name = "",
            .quant = &wr_quant_q4_0,
            .n_dims = 2,
            .ne = {m->k, m->rows, 1, 1},
            .n_rows = m->rows,
            .row_bytes = row_bytes,
            .bytes = row_bytes * m->rows,
            .offset = s->bytes};
        s->uses[i] = (struct wr_use){&s->tensors[i], WR_USE_DENSE};
        s->bytes += row_bytes * m->rows;
    }
    const struct wr_plan_input in = {.uses = s->uses,
        .n_uses = n,
        .n_ctx = 1,
        .n_ctx_trained = 1,
        .n_chunk = 1,
        .n_threads = s->p->profile->n_cpus,
        .scratch_per_thread = wr_pager_seam_bytes(row_bytes_of(WR_PROBE_K)),
        .budget = UINT64_MAX,
        .pin_bytes = pinned >= 1 ? 2 * s->bytes : (uint64_t)(pinned * (double)s->bytes),
        .ring_bytes = WR_PROBE_PASS_DEPTH * WR_PROBE_PASS_BYTES,
        .extent_bytes = WR_PROBE_PASS_BYTES,
        .ledger = &s->ledger};
    return wr_plan_make(&s->plan, &in, err);
}

/* `pinned`: of the weights, the share that is in memory. */
static int open_pass(struct pass **out, struct wr_probe *p, bool direct, int shape, uint64_t bytes, double pinned, weir_err *err)
{
    struct pass *s = wr_mem_alloc(&p->ledger, WR_ACCOUNT_SCRATCH, sizeof *s, err);
    if (s == NULL) return WEIR_E_NOMEM;
    *out = s;
    s->p = p;
    s->file.fd_direct = s->file.fd_buffered = -1;
    wr_ledger_init(&s->ledger);
    int rc = wr_file_open(&s->file, p->data, direct ? WEIR_DIRECT_ON : WEIR_DIRECT_OFF, NULL, err);
    if (rc < 0) return rc;
    s->catalog = (struct wr_catalog){.files = &s->file, .n_files = 1};
    s->act = p->compute.act[0];
    s->act.m = 1;
    rc = open_plan(s, matrices[shape], bytes, pinned, err);
    if (rc < 0) return rc;
    wr_file_drop_cache(&s->file);
    const uint64_t *account = s->plan.account;
    rc = wr_arena_open(&s->arena, account[WR_ACCOUNT_WEIGHTS] + account[WR_ACCOUNT_SCRATCH] + account[WR_ACCOUNT_RING] + 4 * WR_ARENA_ALIGN, err);
    if (rc < 0) return rc;
    wr_device_cpu(&s->device);
    const struct wr_pager_config config = {.plan = &s->plan,
        .catalog = &s->catalog,
        .device = &s->device,
        .io = p->uring ? "uring" : "pread",
        .arena = &s->arena,
        .ledger = &s->ledger,
        .n_members = p->profile->threads[WHOLE_THREADS(p)],
        .cancel = p->o->options->cancel};
    return wr_pager_open(&s->pager, &config, err);
}

static void close_pass(struct pass *s)
{
    if (s == NULL) return;
    if (s->pager != NULL) s->p->bytes_read += wr_pager_stats(s->pager).bytes_streamed + s->plan.pinned;
    wr_pager_close(s->pager);
    wr_arena_close(&s->arena);
    wr_plan_free(&s->plan);
    wr_mem_free(s->uses);
    wr_mem_free(s->tensors);
    wr_file_close(&s->file);
    wr_mem_free(s);
}

static bool is_ready(void *pass, uint32_t item)
{
    const struct pass *s = pass;
    return wr_pager_ready(s->pager, s->weight, item);
}

static void items_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct pass *s = arg;
    struct wr_probe_compute *c = &s->p->compute;
    const struct wr_tensor *t = &s->tensors[s->weight];
    uint32_t first, n;
    while (!wr_probe_cancelled(s->p) && (n = wr_deal_take(&s->deal, member, &first)) != 0) {
        const uint32_t step = wr_pager_streams(s->pager) ? 1 : n;
        for (uint32_t item = first; item < first + n; item += step) {
            struct wr_lease lease;
            struct wr_rows rows;
            if (!wr_pager_acquire(s->pager, s->weight, item, step, member, &lease)) return;
            while (wr_lease_next(&lease, &rows))
                s->p->kernels->matmul(t->quant, wr_ref_address(&s->device, &rows.ref), t->row_bytes, rows.n_rows, &s->act, c->y + rows.first_row, t->n_rows,
                    c->member_work + member * c->member_bytes);
            wr_pager_release(&lease, s->device.ops->fence(&s->device));
        }
    }
}

static int run_pass(struct pass *s, uint32_t team, double *seconds, weir_err *err)
{
    const uint64_t begin = wr_clock_ns();
    wr_pager_begin(s->pager, false);
    for (s->weight = 0; s->weight < s->plan.n_weights; s->weight++) {
        if (s->plan.n_tape > 0 && s->file.fd_direct < 0) wr_file_drop_cache(&s->file);
        s->act.k = (uint32_t)s->tensors[s->weight].ne[0];
        wr_deal_begin(
            &s->deal, wr_pager_items(s->pager, s->weight), wr_team_threads(s->p->compute.team[team]), wr_pager_streams(s->pager) ? is_ready : NULL, s);
        wr_team_run(s->p->compute.team[team], items_member, s);
    }
    *seconds = (double)(wr_clock_ns() - begin) * 1e-9;
    int rc = wr_pager_error(s->pager, err);
    if (rc == 0) rc = wr_probe_step(s->p, err);
    wr_pager_end(s->pager, rc < 0);
    return rc;
}

/* ---- in memory ------------------------------------------------------------------------- */

/* Seconds of passes over each shape, and of the products of the large one without leases: medians of rounds that run all of them in turn, so that a worse moment
 * is one for all, and never the same weights twice, of which caches hold a part; but for `cached`: each twice, and the second counts. */
static int rounds(struct wr_probe *p, struct pass *const *shape, uint32_t team, bool cached, double seconds, double took[N_SHAPES + 1], weir_err *err)
{
    static const int turn[] = {LARGE, SMALL, N_SHAPES, SMALL};
    struct wr_probe_samples s[N_SHAPES + 1] = {{.n = 0}};
    double spent = 0, t = 0;
    int rc = 0;
    while (rc == 0 && (spent < seconds || s[LARGE].n < (wr_probe_late(p) ? 1 : LEAST_PASSES))) {
        for (size_t i = 0; i < sizeof turn / sizeof *turn && rc == 0; i++)
            for (int again = 0; again <= cached && rc == 0; again++) {
                if (turn[i] < N_SHAPES)
                    rc = run_pass(shape[turn[i]], team, &t, err);
                else
                    t = wr_probe_products(p, team, shape[LARGE]->arena.base, shape[LARGE]->bytes); /* what is pinned comes first in the arena */
                spent += t;
                if (again == cached && rc == 0) wr_probe_sample(&s[turn[i]], t);
            }
    }
    for (int i = 0; i <= N_SHAPES; i++) took[i] = wr_probe_decile(&s[i], 5);
    return rc;
}

static double at_least(double value, double least) { return value > least ? value : least; }

/* Two shapes tell two things: what a byte takes, and what a stage does. */
static int measure_team(struct wr_probe *p, struct pass *const *shape, uint32_t team, double seconds, weir_err *err)
{
    struct wr_profile *to = p->profile;
    double *stage[] = {&to->stage_seconds[team], &to->stage_cached_seconds[team]};
    const double least = wr_probe_meeting(p, team);
    for (int cached = 0; cached < 2; cached++) {
        double t[N_SHAPES + 1], stages[N_SHAPES];
        const int rc = rounds(p, shape, team, cached, seconds / 2, t, err);
        if (rc < 0) return rc;
        const double a = t[LARGE] / (double)shape[LARGE]->bytes;
        for (int i = 0; i < N_SHAPES; i++) stages[i] = shape[i]->plan.n_weights;
        const double more = t[SMALL] - a * (double)shape[SMALL]->bytes;
        *stage[cached] = at_least(more / (stages[SMALL] - stages[LARGE] * (double)shape[SMALL]->bytes / (double)shape[LARGE]->bytes), least);
        if (cached) continue;
        to->in_pass[team] = t[N_SHAPES] / at_least(t[LARGE] - stages[LARGE] * *stage[cached], 1e-9);
    }
    return 0;
}

/* ---- read ------------------------------------------------------------------------------ */

struct alone { /* bytes/s */
    double disk, memory;
};

static int measure_alone(struct wr_probe *p, struct pass *const *shape, bool direct, double seconds, struct alone *to, weir_err *err)
{
    double t, spent = 0, bytes = 0, took = 0;
    int rc = wr_probe_disk(p, p->uring ? "uring" : "pread", direct, WR_PROBE_PASS_BYTES, WR_PROBE_PASS_DEPTH, seconds / 2, &to->disk, err);
    while (rc == 0 && (spent < seconds / 2 || bytes == 0))
        for (int i = 0; i < N_SHAPES && rc == 0; i++) { /* in turn, so that no cache holds the large one; it alone counts */
            rc = run_pass(shape[i], WHOLE_THREADS(p), &t, err);
            spent += t;
            if (i == LARGE) took += t;
            if (i == LARGE) bytes += (double)shape[i]->bytes;
        }
    to->memory = bytes / at_least(took, 1e-9);
    return rc;
}

/* Passes of which a part is read that takes `wanted` times as long as computing: the mean, for where something is rationed some passes take much longer. */
static int measure_together(struct wr_probe *p, bool direct, double wanted, const struct alone *before, uint64_t bytes, double seconds, double *streamed,
    double *all, double *took, weir_err *err)
{
    struct pass *s = NULL;
    double spent = 0, t;
    uint32_t n = 0;
    int rc = open_pass(&s, p, direct, LARGE, bytes, 1 - wanted * before->disk / before->memory, err);
    for (double warm = 0; rc == 0 && warm < WARM_SECONDS; warm += t) rc = run_pass(s, WHOLE_THREADS(p), &t, err);
    for (; rc == 0 && (spent < seconds || n < LEAST_PASSES) && !(n > 0 && wr_probe_late(p)); n++) {
        rc = run_pass(s, WHOLE_THREADS(p), &t, err);
        spent += t;
    }
    if (rc == 0) {
        *took = spent / n;
        *streamed = (double)s->plan.streamed;
        *all = (double)s->bytes;
    }
    close_pass(s);
    return rc;
}

static void put_together(struct wr_profile *to, double ratio, double more)
{
    for (uint32_t i = 0; i < to->n_together; i++)
        if (ratio < to->together[i].ratio * SAME && to->together[i].ratio < ratio * SAME) return; /* the disk is too fast or too slow for two of them */
    uint32_t i = to->n_together++;
    for (; i > 0 && to->together[i - 1].ratio > ratio; i--) to->together[i] = to->together[i - 1];
    to->together[i] = (struct wr_profile_together){ratio, at_least(more, 0)};
}

static int measure_read(struct wr_probe *p, struct pass *const *shape, bool direct, uint64_t bytes, double share, weir_err *err)
{
    static const double wanted[] = {1, 2, 4, 0.4}; /* what matters most first */
    struct wr_profile *to = p->profile;
    const uint32_t n = sizeof wanted / sizeof *wanted;
    struct alone before = {0}, after = {0};
    bool whole = false; /* all is read: there is no larger ratio */
    int rc = measure_alone(p, shape, direct, wr_probe_seconds(p, share / n * 0.3), &before, err);
    for (uint32_t i = 0; i < n && rc == 0 && (i == 0 || !wr_probe_late(p)); i++) {
        const double most = before.memory / before.disk, seconds = wr_probe_seconds(p, share / n * 0.65), alone_seconds = wr_probe_seconds(p, share / n * 0.3);
        double streamed = 0, all = 0, took = 0;
        if (wanted[i] >= most && whole) continue;
        whole = whole || wanted[i] >= most;
        rc = measure_together(
            p, direct, wanted[i] < most ? wanted[i] : most, &before, bytes, at_least(seconds - WARM_SECONDS, LEAST_SECONDS), &streamed, &all, &took, err);
        if (rc == 0) rc = measure_alone(p, shape, direct, alone_seconds, &after, err);
        if (rc < 0) break;
        const double read = streamed * (1 / before.disk + 1 / after.disk) / 2, compute = all * (1 / before.memory + 1 / after.memory) / 2;
        if (read > 0) put_together(to, read / compute, took / (read > compute ? read : compute) - 1);
        before = after;
    }
    return rc;
}

int wr_probe_passes(struct wr_probe *p, bool direct, double share, weir_err *err)
{
    struct pass *shape[N_SHAPES] = {NULL};
    const struct wr_profile *to = p->profile;
    double rate = 0;
    int rc = wr_probe_disk(p, p->uring ? "uring" : "pread", direct, WR_PROBE_PASS_BYTES, WR_PROBE_PASS_DEPTH, wr_probe_seconds(p, share / 20), &rate, err);
    const double in_time = rate * LOAD_SECONDS, room = (double)p->memory_bytes / PARTS;
    const uint64_t fit = in_time < room ? (uint64_t)in_time : (uint64_t)room, bytes = fit > LEAST_BYTES || LEAST_BYTES > room ? fit : LEAST_BYTES;
    for (int i = 0; i < N_SHAPES && rc == 0; i++) rc = open_pass(&shape[i], p, direct, i, bytes, 1, err);
    for (uint32_t t = 0; t < to->n_threads && rc == 0; t++) rc = measure_team(p, shape, t, wr_probe_seconds(p, share * 0.3 / to->n_threads), err);
    if (rc == 0) rc = measure_read(p, shape, direct, READ_PARTS * bytes, share * 0.65, err);
    for (int i = 0; i < N_SHAPES; i++) close_pass(shape[i]);
    return rc;
}
