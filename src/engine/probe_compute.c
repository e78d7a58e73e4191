/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory, products and attention, as passes use them: all members of a team, one team run a matrix, weights that are in no cache and, beside them,
 * few enough to stay there. Ceilings are the best of many short runs; what passes will see is the mean over the whole time, in many short turns: what a machine
 * shares with others, memory above all, has better and worse seconds, and each rate gets the same part of them.
 */
#include <math.h>
#include <string.h>
#include "base/num.h"
#include "base/os.h"
#include "base/sort.h"
#include "engine/probe.h"
#include "kernels/ceiling.h"
#include "memory/deal.h"

enum {
    LEAST_RUNS = 3,
    LEAST_ITEM_BYTES = 32 << 10, /* as in a plan: a 64th of a matrix, from ... */
    MOST_ITEM_BYTES = 256 << 10, /* ... to */
    CACHED_BYTES = 64 << 20,     /* of weights that the largest caches hold */
    ELEMENTS_RUNS = 16,
    LEAST_WEIGHTS = 16 << 20,
    UNCACHED_BYTES = 512 << 20, /* more than any cache holds */
    FILL_ROWS = 32,             /* rows of a format that differ; they come again and again */
    SPAN_TILES = WR_SPAN / WR_TILE,
    ROUNDS = 5, /* of everything, some seconds apart */
};
#define STEADY_SECONDS 0.01 /* in less, the first runs, which wake sleeping threads, are too many of all */
#define RUN_SECONDS 0.002   /* at least, where a whole matrix allows it */

/* ---- opening --------------------------------------------------------------------------- */

static void *take(struct wr_probe *p, uint64_t bytes, weir_err *err) { return wr_arena_take(&p->compute.arena, &p->ledger, WR_ACCOUNT_SCRATCH, bytes, err); }

static uint64_t member_bytes(void)
{
    const uint64_t attention = wr_round_up(wr_attention_work_bytes(WR_PROBE_HEAD_DIM), 64);
    return attention > WR_MATMUL_WORK_BYTES ? attention : WR_MATMUL_WORK_BYTES;
}

static uint64_t act_bytes(bool precise) /* each part is taken whole pages */
{
    return (uint64_t)WR_PROBE_M * WR_PROBE_K * (precise ? 2 : 1) + (uint64_t)WR_PROBE_M * (WR_PROBE_K / WR_GROUP) * 4 * sizeof(float);
}

static int open_act(struct wr_probe *p, bool precise, weir_err *err)
{
    struct wr_act *act = &p->compute.act[precise];
    const uint64_t n = (uint64_t)WR_PROBE_M * WR_PROBE_K, groups = n / WR_GROUP;
    *act = (struct wr_act){.m = WR_PROBE_M, .k = WR_PROBE_K, .x = p->compute.x, .ldx = WR_PROBE_K, .precise = precise};
    void *q = take(p, n * (precise ? 2 : 1), err);
    act->d = take(p, groups * sizeof(float), err);
    act->s = take(p, groups * sizeof(float), err);
    act->s16 = take(p, groups * 2 * sizeof(float), err);
    if (q == NULL || act->d == NULL || act->s == NULL || act->s16 == NULL) return WEIR_E_BUDGET;
    act->q8 = precise ? NULL : q;
    act->q16 = precise ? q : NULL;
    for (uint32_t row = 0; row < WR_PROBE_M; row++) (void)p->kernels->quantize(act, row); /* what is random is finite */
    return 0;
}

/* Uniform in [-1, 1). */
static void fill_random(float *x, size_t n, uint32_t stream)
{
    const uint32_t key[2] = {stream, 0};
    for (size_t i = 0; i < n; i += 4) {
        uint32_t counter[4] = {(uint32_t)(i / 4), 0, 0, 0}, r[4];
        wr_philox(counter, key, r);
        for (size_t j = 0; j < 4 && i + j < n; j++) x[i + j] = (float)(int32_t)r[j] * 0x1p-31f;
    }
}

int wr_probe_compute_open(struct wr_probe *p, weir_err *err)
{
    struct wr_probe_compute *c = &p->compute;
    const uint32_t n_threads = p->profile->threads[p->profile->n_threads - 1];
    const uint64_t x_bytes = (uint64_t)WR_PROBE_M * WR_PROBE_K * sizeof(float), y_bytes = (uint64_t)WR_PROBE_M * WR_PROBE_ROWS * sizeof(float);
    c->member_bytes = member_bytes();
    const uint64_t own = x_bytes + y_bytes + act_bytes(false) + act_bytes(true) + c->member_bytes * n_threads + 16 * WR_ARENA_ALIGN,
                   beside = own + wr_probe_pass_memory(p->memory_bytes);
    if (p->memory_bytes < beside + LEAST_WEIGHTS)
        return wr_err(err, WEIR_E_BUDGET, "%llu bytes of memory may be taken, %u threads need %llu; free memory or raise the limit",
            (unsigned long long)p->memory_bytes, n_threads, (unsigned long long)(beside + LEAST_WEIGHTS));
    c->weights_bytes = wr_round_down(p->memory_bytes - beside, WR_ARENA_ALIGN);
    if (c->weights_bytes < UNCACHED_BYTES)
        wr_log(&p->log, WEIR_LOG_WARN,
            "half of the available memory holds %llu MiB of weights; caches may hold a part of less than %u, so that rates of memory are "
            "too high; free memory or raise the limit",
            (unsigned long long)(c->weights_bytes >> 20), UNCACHED_BYTES >> 20);
    int rc = wr_arena_open(&c->arena, own + c->weights_bytes, err);
    if (rc < 0)
        return wr_err(err, rc, "the system refused %llu bytes to compute with; free memory or raise its limit", (unsigned long long)(own + c->weights_bytes));
    c->weights = take(p, c->weights_bytes, err);
    c->x = take(p, x_bytes, err);
    c->y = take(p, y_bytes, err);
    c->member_work = take(p, c->member_bytes * n_threads, err);
    if (c->weights == NULL || c->x == NULL || c->y == NULL || c->member_work == NULL) return WEIR_E_BUDGET;
    fill_random(c->x, (size_t)WR_PROBE_M * WR_PROBE_K, 1);
    for (int precise = 0; precise < 2 && rc == 0; precise++) rc = open_act(p, precise, err);
    for (uint32_t t = 0; t < p->profile->n_threads && rc == 0; t++) rc = wr_team_open(&c->team[t], p->profile->threads[t], &p->ledger, err);
    return rc;
}

void wr_probe_compute_close(struct wr_probe *p)
{
    for (uint32_t t = 0; t < WR_PROFILE_THREADS; t++) wr_team_close(p->compute.team[t]);
    wr_arena_close(&p->compute.arena);
}

/* ---- weights --------------------------------------------------------------------------- */

static size_t row_bytes_of(const struct wr_quant *quant, uint32_t k) { return k / quant->block_elems * quant->block_bytes; }

struct filling {
    uint8_t *to;
    size_t first, bytes; /* what comes again, all */
};

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    const struct filling *f = arg;
    const size_t n = f->bytes / f->first;
    for (size_t i = 1 + member; i < n; i += n_members) memcpy(f->to + i * f->first, f->to, f->first);
}

/* Makes the weights of one format. */
static void fill(struct wr_probe *p, const struct wr_quant *quant)
{
    struct wr_probe_compute *c = &p->compute;
    const struct filling f = {c->weights, FILL_ROWS * row_bytes_of(quant, WR_PROBE_K), c->weights_bytes};
    float *row = c->y;
    for (uint32_t r = 0; r < FILL_ROWS; r++) {
        fill_random(row, WR_PROBE_K, 2 + r);
        quant->encode(row, c->weights + r * row_bytes_of(quant, WR_PROBE_K), WR_PROBE_K);
    }
    wr_team_run(c->team[p->profile->n_threads - 1], fill_member, (void *)&f);
    c->at = 0;
}

/* ---- runs ------------------------------------------------------------------------------ */

struct job {
    struct wr_probe *p;
    const struct wr_quant *quant;
    const struct wr_act *act;
    const uint8_t *memory; /* where this run begins */
    size_t row_bytes;
    uint32_t n_rows, item_rows; /* products */
    uint32_t n_q;               /* attention: of an item */
    uint32_t n_items;
    struct wr_deal deal;   /* products */
    _Atomic uint32_t next; /* attention */
};

static double seconds_of(struct wr_team *team, wr_team_fn *fn, struct job *job)
{
    const uint64_t begin = wr_clock_ns();
    atomic_store(&job->next, 0);
    wr_deal_begin(&job->deal, job->n_items, wr_team_threads(team), NULL, NULL);
    wr_team_run(team, fn, job);
    return (double)(wr_clock_ns() - begin) * 1e-9;
}

/* Neighbouring items at once, as in a pass whose weights are in memory. */
static void product_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct job *j = arg;
    struct wr_probe_compute *c = &j->p->compute;
    uint32_t first, n;
    while ((n = wr_deal_take(&j->deal, member, &first)) != 0) {
        const uint32_t row = first * j->item_rows, end = (first + n) * j->item_rows < j->n_rows ? (first + n) * j->item_rows : j->n_rows;
        j->p->kernels->matmul(
            j->quant, j->memory + row * j->row_bytes, j->row_bytes, end - row, j->act, c->y + row, WR_PROBE_ROWS, c->member_work + member * c->member_bytes);
    }
}

/* An item is a span of keys and values of one head with j->n_q queries; those of a chunk's queries lie on the same span. */
static void attend_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct job *j = arg;
    struct wr_probe_compute *c = &j->p->compute;
    enum { DIM = WR_PROBE_HEAD_DIM, TILE_BYTES = WR_TILE * DIM * 2 };
    float *m = (float *)(void *)(c->member_work + member * c->member_bytes), *l = m + WR_TILE_MAX_Q, *o = l + WR_TILE_MAX_Q, *work = o + WR_TILE_MAX_Q * DIM;
    const float *q[WR_TILE_MAX_Q];
    uint32_t first[WR_TILE_MAX_Q], last[WR_TILE_MAX_Q], item;
    for (uint32_t i = 0; i < WR_TILE_MAX_Q; i++) {
        q[i] = c->x + i * WR_PROBE_K;
        first[i] = 0;
        last[i] = WR_TILE;
    }
    struct wr_tile tile = {
        .type = WR_KV_F16, .head_dim = DIM, .n_q = j->n_q, .q = q, .first = first, .last = last, .scale = 0.0884f, .m = m, .l = l, .o = o, .work = work};
    const uint32_t per_span = j->n_q < WR_TILE_MAX_Q ? 1 : WR_PROBE_M / WR_TILE_MAX_Q;
    while ((item = atomic_fetch_add(&j->next, 1)) < j->n_items) {
        const uint8_t *span = j->memory + (size_t)(item / per_span) * SPAN_TILES * 2 * TILE_BYTES;
        for (uint32_t i = 0; i < j->n_q; i++) {
            m[i] = -INFINITY;
            l[i] = 0;
        }
        memset(o, 0, j->n_q * DIM * sizeof *o);
        for (uint32_t t = 0; t < SPAN_TILES; t++) {
            tile.k = span + t * TILE_BYTES;
            tile.v = span + (SPAN_TILES + t) * TILE_BYTES;
            tile.next_k = t + 1 < SPAN_TILES ? span + (t + 1) * TILE_BYTES : NULL; /* as in a pass */
            j->p->kernels->attend_tile(&tile);
        }
    }
}

/* So long that every thread has begun before the first one ends: one that has not would be left out. */
#define STAGE_NS 20000

static void stage_member(void *arg, uint32_t member, uint32_t n_members)
{
    const uint64_t end = wr_clock_ns() + STAGE_NS;
    while (wr_clock_ns() < end) {}
}

void wr_probe_sample(struct wr_probe_samples *s, double value) { s->value[s->n++ % WR_PROBE_SAMPLES] = value; }

double wr_probe_decile(const struct wr_probe_samples *s, uint32_t tenths)
{
    uint64_t key[WR_PROBE_SAMPLES];
    uint32_t order[WR_PROBE_SAMPLES], n = s->n < WR_PROBE_SAMPLES ? s->n : WR_PROBE_SAMPLES;
    memcpy(key, s->value, n * sizeof key[0]); /* what is positive has the order of its bits */
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    wr_sort_by_key(order, n, key);
    return n == 0 ? 0 : s->value[order[n * tenths / 10]];
}

struct runs { /* of one measurement */
    struct wr_probe_samples rate;
    double done, seconds;
};

static void add_run(struct runs *r, double done, double seconds)
{
    wr_probe_sample(&r->rate, done / seconds);
    r->done += done;
    r->seconds += seconds;
}

/* The mean is what passes will see, for they too wait for whatever disturbs. How far the middle run is from the upper decile, which nothing disturbed, tells how
 * busy the machine was: of the largest team, all of which must run at the same time. */
static double mean_of(struct wr_probe *p, uint32_t team, const struct runs *r)
{
    if (team == p->profile->n_threads - 1 && r->rate.n >= LEAST_RUNS && r->seconds >= STEADY_SECONDS)
        wr_probe_sample(&p->steady, wr_probe_decile(&r->rate, 5) / wr_probe_decile(&r->rate, 9));
    return r->seconds > 0 ? r->done / r->seconds : 0;
}

/* A run over the next `bytes` of the weights, from where the last measurement ended, which is what caches dropped first, and without those at the front, which
 * they hold. */
static void move(struct job *j, size_t bytes)
{
    struct wr_probe_compute *c = &j->p->compute;
    const size_t front = c->weights_bytes >= CACHED_BYTES + bytes ? CACHED_BYTES : 0;
    if (c->at < front || c->at + bytes > c->weights_bytes) c->at = front;
    j->memory = c->weights + c->at;
    c->at += bytes;
}

/* Where a run takes long, as at the level scalar, one is enough once the time is over. */
static uint32_t least_runs(const struct wr_probe *p) { return wr_probe_late(p) ? 1 : LEAST_RUNS; }

/* Into work items, as a plan does. */
static void cut(struct job *j)
{
    const size_t bytes = j->n_rows * j->row_bytes, item = bytes / 64 < LEAST_ITEM_BYTES ? LEAST_ITEM_BYTES : bytes / 64;
    const size_t panels = (item < MOST_ITEM_BYTES ? item : MOST_ITEM_BYTES) / (j->row_bytes * WR_PANEL_ROWS);
    j->item_rows = panels > 0 ? (uint32_t)panels * WR_PANEL_ROWS : WR_PANEL_ROWS;
    j->n_items = (j->n_rows + j->item_rows - 1) / j->item_rows;
}

struct what { /* products of up to as many elements as WR_PROBE_ROWS rows of WR_PROBE_K have */
    const struct wr_quant *quant;
    const struct wr_act *act;
};

/* Weights, or multiply-adds of a row, a second. Matrices grow until a run takes RUN_SECONDS. */
static double products(struct wr_probe *p, uint32_t team, const struct what *what, double seconds)
{
    struct wr_probe_compute *c = &p->compute;
    struct job j = {.p = p, .quant = what->quant, .act = what->act, .row_bytes = row_bytes_of(what->quant, what->act->k)};
    const uint32_t n_threads = p->profile->threads[team], fit = (uint32_t)(c->weights_bytes / j.row_bytes);
    const uint32_t rows = (uint32_t)((uint64_t)WR_PROBE_ROWS * WR_PROBE_K / what->act->k), most = fit < rows ? fit : rows;
    struct runs r = {.done = 0};
    double spent = 0;
    j.n_rows = 64 * n_threads < most ? 64 * n_threads : most;
    while ((spent < seconds || r.rate.n < least_runs(p)) && !wr_probe_cancelled(p)) {
        cut(&j);
        move(&j, j.n_rows * j.row_bytes);
        const double t = seconds_of(c->team[team], product_member, &j);
        spent += t;
        if (t < RUN_SECONDS && j.n_rows < most) {
            j.n_rows = 4 * j.n_rows < most ? 4 * j.n_rows : most;
            r = (struct runs){.done = 0};
        } else {
            add_run(&r, (double)j.n_rows * what->act->k, t);
        }
    }
    return mean_of(p, team, &r);
}

/* One row of activations, k elements: bytes of weights a second. */
static double decode_rate(struct wr_probe *p, uint32_t team, const struct wr_quant *quant, bool precise, uint32_t k, double seconds)
{
    struct wr_act one = p->compute.act[precise];
    one.m = 1;
    one.k = k;
    const struct what what = {quant, &one};
    return products(p, team, &what, seconds) * quant->block_bytes / quant->block_elems;
}

/* Bytes of keys and values a second with n_q queries; the weights are f16. */
static double attention(struct wr_probe *p, uint32_t team, uint32_t n_q, double seconds)
{
    struct wr_probe_compute *c = &p->compute;
    struct job j = {.p = p, .n_q = n_q};
    const size_t span = (size_t)WR_SPAN * WR_PROBE_HEAD_DIM * 2 * 2;
    const uint32_t fit = (uint32_t)(c->weights_bytes / span), wanted = 2 * p->profile->threads[team], n_spans = wanted < fit ? wanted : fit;
    struct runs r = {.done = 0};
    j.n_items = n_q < WR_TILE_MAX_Q ? n_spans : n_spans * (WR_PROBE_M / WR_TILE_MAX_Q);
    while ((r.seconds < seconds || r.rate.n < least_runs(p)) && !wr_probe_cancelled(p)) {
        move(&j, n_spans * span);
        add_run(&r, (double)n_spans * (double)span, seconds_of(c->team[team], attend_member, &j));
    }
    return mean_of(p, team, &r);
}

double wr_probe_meeting(struct wr_probe *p, uint32_t team)
{
    struct job j = {.p = p};
    struct wr_probe_samples s = {.n = 0};
    for (uint32_t i = 0; i < 2 * WR_PROBE_SAMPLES; i++) wr_probe_sample(&s, 1 / seconds_of(p->compute.team[team], stage_member, &j));
    const double more = 1 / wr_probe_decile(&s, 9) - STAGE_NS * 1e-9;
    return more > 1e-9 ? more : 1e-9; /* of one thread there is none to see */
}

/* Elements a second that one thread norms and rounds. */
static double activate_rate(struct wr_probe *p, double seconds)
{
    struct wr_probe_compute *c = &p->compute;
    struct wr_probe_samples s = {.n = 0};
    struct wr_act act = c->act[0];
    double spent = 0;
    act.m = 1;
    act.x = c->y;
    while ((spent < seconds || s.n < least_runs(p)) && !wr_probe_cancelled(p)) {
        const uint64_t begin = wr_clock_ns();
        for (int i = 0; i < ELEMENTS_RUNS; i++) {
            p->kernels->rmsnorm(c->x, c->x + WR_PROBE_K, c->y, WR_PROBE_K, 1e-5f);
            (void)p->kernels->quantize(&act, 0); /* what is random is finite */
        }
        const double t = (double)(wr_clock_ns() - begin) * 1e-9;
        spent += t;
        wr_probe_sample(&s, ELEMENTS_RUNS * WR_PROBE_K / t);
    }
    return wr_probe_decile(&s, 5);
}

/* ---- the measurements ------------------------------------------------------------------ */

static uint32_t n_formats(void) /* with the number of activation widths of each */
{
    uint32_t n = 0;
    for (uint32_t i = 0; wr_quant_at(i) != NULL; i++) n += wr_quant_at(i)->is_float ? 1 : 2;
    return n;
}

enum { SHARES_OF_TEAM = 14, SHARES_OF_FORMAT = 4 };

/* Of a ceiling what less disturbed. */
static void better(double *best, double rate)
{
    if (rate > *best) *best = rate;
}

/* Of what passes will see the mean of all rounds, which are as long. */
static void mean(const struct wr_probe *p, double *of, double rate) { *of += (rate - *of) / (p->compute.round + 1); }

static int measure_team(struct wr_probe *p, uint32_t t, double share, weir_err *err)
{
    struct wr_profile *to = p->profile;
    struct wr_team *team = p->compute.team[t];
    better(&to->read[t], wr_ceiling_read(p->kernels, p->compute.weights, p->compute.weights_bytes, team, wr_probe_seconds(p, 2 * share)));
    int rc = wr_probe_step(p, err);
    if (rc == 0 && t == 0) mean(p, &to->activate, activate_rate(p, wr_probe_seconds(p, share)));
    if (rc == 0) better(&to->fma[t], wr_ceiling_mix(p->kernels, WR_MIX_FMA, NULL, false, team, wr_probe_seconds(p, share)));
    if (rc == 0) rc = wr_probe_step(p, err);
    if (rc == 0) better(&to->int8[t], wr_ceiling_mix(p->kernels, WR_MIX_INT8, NULL, false, team, wr_probe_seconds(p, share)));
    if (rc == 0) rc = wr_probe_step(p, err);
    if (rc == 0) better(&to->int16[t], wr_ceiling_mix(p->kernels, WR_MIX_INT16, NULL, true, team, wr_probe_seconds(p, share)));
    if (rc == 0) rc = wr_probe_step(p, err);
    if (rc == 0) mean(p, &to->attend[t], attention(p, t, WR_PROBE_GROUP, wr_probe_seconds(p, share)));
    if (rc == 0) rc = wr_probe_step(p, err);
    /* With every query an element, of two bytes, is multiplied and added once, which counts as two. */
    if (rc == 0) mean(p, &to->attend_many[t], attention(p, t, WR_TILE_MAX_Q, wr_probe_seconds(p, share)) * WR_PROBE_M);
    return rc == 0 ? wr_probe_step(p, err) : rc;
}

double wr_probe_products(struct wr_probe *p, uint32_t team, const uint8_t *weights, uint64_t bytes)
{
    const size_t row_bytes = row_bytes_of(&wr_quant_q4_0, WR_PROBE_K), matrix = row_bytes * WR_PROBE_ROWS < bytes ? row_bytes * WR_PROBE_ROWS : bytes;
    struct wr_act one = p->compute.act[0];
    struct job j = {.p = p, .quant = &wr_quant_q4_0, .act = &one, .row_bytes = row_bytes, .n_rows = (uint32_t)(matrix / row_bytes)};
    double took = 0;
    one.m = 1;
    cut(&j);
    for (uint64_t at = 0; at + matrix <= bytes && !wr_probe_cancelled(p); at += matrix) {
        j.memory = weights + at;
        took += seconds_of(p->compute.team[team], product_member, &j);
    }
    return took;
}

/* The mean rate of a set of weights that is used in turn, of Q4_0, after it was used once: caches hold a part of it, which is fast, and the rest is not. */
static double set_rate(struct wr_probe *p, uint32_t t, size_t set_bytes, double seconds)
{
    const size_t row_bytes = row_bytes_of(&wr_quant_q4_0, WR_PROBE_K), matrix = row_bytes * WR_PROBE_ROWS, whole = set_bytes < matrix ? row_bytes : matrix;
    double used = 0, took = 0, spent = 0;
    for (uint32_t cycle = 0; (cycle < 2 || spent < seconds) && !wr_probe_cancelled(p); cycle++) {
        const double now = wr_probe_products(p, t, p->compute.weights, set_bytes);
        spent += now;
        if (cycle == 0) continue;
        took += now;
        used += (double)(set_bytes / whole * whole);
    }
    return took > 0 ? used / took : 0;
}

static int measure_sets(struct wr_probe *p, uint32_t t, double share, weir_err *err)
{
    struct wr_profile *to = p->profile;
    const uint64_t all = p->compute.weights_bytes;
    int rc = 0;
    to->n_sets = 0;
    for (uint64_t bytes = CACHED_BYTES < all ? CACHED_BYTES : all; rc == 0; bytes = 2 * bytes < all / 4 * 3 ? 2 * bytes : all) {
        struct wr_profile_set *set = &to->set[to->n_sets++];
        set->bytes = bytes;
        mean(p, &set->rate[t], set_rate(p, t, bytes, wr_probe_seconds(p, share)));
        rc = wr_probe_step(p, err);
        if (bytes == all || to->n_sets == WR_PROFILE_SETS) break;
    }
    return rc;
}

static int measure_format(struct wr_probe *p, struct wr_profile_format *f, const struct wr_quant *quant, double share, weir_err *err)
{
    const struct what many = {quant, &p->compute.act[f->precise]};
    int rc = 0;
    for (uint32_t t = 0; t < p->profile->n_threads && rc == 0; t++) {
        better(&f->mix[t], wr_ceiling_mix(p->kernels, WR_MIX_FORMAT, quant, f->precise, p->compute.team[t], wr_probe_seconds(p, share)));
        rc = wr_probe_step(p, err);
        if (rc == 0) mean(p, &f->decode[t], decode_rate(p, t, quant, f->precise, WR_PROBE_K, wr_probe_seconds(p, share)));
        if (rc == 0) mean(p, &f->decode_short[t], decode_rate(p, t, quant, f->precise, WR_PROFILE_SHORT, wr_probe_seconds(p, share)));
        if (rc == 0) rc = wr_probe_step(p, err);
        if (rc == 0) mean(p, &f->prefill[t], products(p, t, &many, wr_probe_seconds(p, share)) * 2 * WR_PROBE_M);
        if (rc == 0) rc = wr_probe_step(p, err);
        if (rc == 0 && quant->id == WR_TYPE_Q4_0 && !f->precise) rc = measure_sets(p, t, share, err);
    }
    return rc;
}

int wr_probe_compute_run(struct wr_probe *p, double share, weir_err *err)
{
    struct wr_profile *to = p->profile;
    const double each = share / (ROUNDS * to->n_threads * (SHARES_OF_TEAM + SHARES_OF_FORMAT * n_formats()));
    int rc = 0;
    for (p->compute.round = 0; p->compute.round < ROUNDS && rc == 0; p->compute.round++) {
        const struct wr_quant *quant;
        uint32_t n = 0;
        bool filled = false; /* for all formats that are no floats: no product looks at what it computes */
        if (p->compute.round > 0 && wr_probe_late(p)) break;
        fill(p, &wr_quant_f16); /* keys and values too */
        for (uint32_t t = 0; t < to->n_threads && rc == 0; t++) rc = measure_team(p, t, each, err);
        for (uint32_t i = 0; (quant = wr_quant_at(i)) != NULL && rc == 0; i++) {
            if (!filled) fill(p, quant);
            filled = !quant->is_float;
            for (int precise = 0; precise < (quant->is_float ? 1 : 2) && rc == 0; precise++, n++) {
                if (n == to->n_formats) to->n_formats++;
                to->format[n].type = quant->id;
                to->format[n].precise = precise;
                rc = measure_format(p, &to->format[n], quant, each, err);
            }
        }
    }
    to->steady = wr_probe_decile(&p->steady, 5);
    return rc;
}
