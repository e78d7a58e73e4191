/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench attention: the rows of a pass attend over `depth` stored positions and themselves, by the code that a pass runs. End to end a run also rotates and
 * stores the rows' own keys and values. The ceiling is two f32 multiply-adds for each pair of a query and a visible key and each of its dimensions, or
 * reading keys and values once.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/num.h"
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"

#define LIMIT (1ull << 30) /* multiply-adds that are checked */
#define MAX_DEPTH (1u << 24)

enum { MATRIX_Q = 1, MATRIX_K, MATRIX_V }; /* of the random data */

struct attention {
    struct wr_bench *b;
    struct wr_device device;
    struct wr_kv kv;
    struct wr_model model;
    struct wr_layer layer;
    struct wr_pass pass;
    struct wr_pass_row *rows;
    uint32_t depth;
    _Atomic uint32_t next;
    /* Of the check: the rows at work are `checked` of those measured. */
    uint32_t n_checked;
    uint32_t *checked;
    float *got;                     /* [n_checked][heads] of the level that was measured */
    double *work;                   /* [members][positions] */
    double *max_error, *max_output; /* [members] */
    _Atomic int wrong;
    weir_err err;
};

static uint32_t n_q(const struct wr_hparams *hp) { return hp->n_head * hp->head_dim; }
static uint32_t n_kv(const struct wr_hparams *hp) { return hp->n_head_kv * hp->head_dim; }

/* Keys and values of a head at a position, as f32 before they are rounded to the KV type. */
static void random_kv(float *x, const struct wr_hparams *hp, uint32_t matrix, uint32_t position, uint32_t head)
{
    wr_synth_row(x, hp->head_dim, 0, matrix, (uint64_t)position * hp->n_head_kv + head, 1.0f);
}

/* Row i of the pass: q, k, v. */
static void fill_row(struct wr_pass *p, uint32_t i, void *arg)
{
    const struct wr_hparams *hp = &p->model->hp;
    float *q = p->g + i * p->g_width;
    uint32_t position = p->rows[i].position;
    wr_synth_row(q, n_q(hp), 0, MATRIX_Q, position, 1.0f);
    for (uint32_t h = 0; h < hp->n_head_kv; h++) {
        random_kv(q + n_q(hp) + h * hp->head_dim, hp, MATRIX_K, position, h);
        random_kv(q + n_q(hp) + n_kv(hp) + h * hp->head_dim, hp, MATRIX_V, position, h);
    }
    for (uint32_t j = 0; j < hp->n_rot / 2; j++) { /* no rotation, so that runs can follow one another; the work is the same */
        p->rope[0].cos[i * (hp->n_rot / 2) + j] = 1;
        p->rope[0].sin[i * (hp->n_rot / 2) + j] = 0;
    }
}

/* The stored positions before the rows. A K block goes to one member. */
static void fill_kv_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    const struct wr_hparams *hp = &a->model.hp;
    float k[WR_MAX_HEAD_DIM], v[WR_MAX_HEAD_DIM];
    const volatile int *cancel = a->b->o->engine.cancel;
    for (uint32_t block; (block = atomic_fetch_add(&a->next, WR_KV_BLOCK)) < a->depth && (cancel == NULL || *cancel == 0);) {
        for (uint32_t position = block; position < block + WR_KV_BLOCK && position < a->depth; position++) {
            for (uint32_t h = 0; h < hp->n_head_kv; h++) {
                struct wr_ref key = wr_kv_keys(&a->kv, 0, h, position, 1), value = wr_kv_values(&a->kv, 0, h, position, 1);
                random_kv(k, hp, MATRIX_K, position, h);
                random_kv(v, hp, MATRIX_V, position, h);
                a->b->kernels->kv_store(
                    a->kv.type, hp->head_dim, k, v, wr_ref_address(&a->device, &key), position % WR_KV_BLOCK, wr_ref_address(&a->device, &value));
            }
        }
    }
}

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct attention *a = arg;
    struct wr_pass *p = &a->pass;
    bool stored = wr_attention_store(p, 0);
    uint64_t start = wr_clock_ns();
    bool attended = wr_attention_attend(p, 0);
    *compute_seconds = (double)(wr_clock_ns() - start) * 1e-9;
    if (stored && !attended) return wr_err(err, p->err.code, "%s", p->err.text);
    for (uint32_t i = 0; i < p->m; i++)
        if (!stored || !p->kernels->all_finite(p->h + i * p->h_width, n_q(&a->model.hp)))
            return wr_err(err, WEIR_E_NONFINITE, "the attention of a row is not finite at level %s", p->kernels->level);
    return 0;
}

/* ---- the check ---- */

void wr_bench_round_kv(enum wr_kv_type type, bool is_value, float *x, uint32_t dim)
{
    const float max = type == WR_KV_K8V4 && is_value ? 7 : 127;
    for (uint32_t i = 0; type == WR_KV_F16 && i < dim; i++) x[i] = wr_f32_from_f16(wr_f16_from_f32(x[i]));
    for (uint32_t i = 0; (type == WR_KV_Q8_0 || type == WR_KV_K8V4) && i < dim; i += WR_GROUP) {
        float amax = 0;
        for (uint32_t j = i; j < i + WR_GROUP; j++) amax = fmaxf(amax, fabsf(x[j]));
        float inverse = amax < 0x1p-100f ? 0 : max / amax, d = wr_f32_from_f16(wr_f16_from_f32(amax / max));
        for (uint32_t j = i; j < i + WR_GROUP; j++) x[j] = fminf(fmaxf(rintf(x[j] * inverse), -max), max) * d;
    }
}

/* One head of one checked row in double precision. What f32 explains: a score is off by at most (D + 4) u sum |q k|, its exponential by as much
 * and 32 u, and each of two sums over n keys by 8 standard deviations, 8 sqrt(n) u; relative to sum p |v|. */
static void check_head(struct attention *a, uint32_t i, uint32_t head, uint32_t member)
{
    const struct wr_hparams *hp = &a->model.hp;
    const uint32_t dim = hp->head_dim, kv_head = head / (hp->n_head / hp->n_head_kv), n = a->pass.rows[i].position + 1;
    const float *q = a->pass.g + i * a->pass.g_width + head * dim, *reference = a->pass.h + i * a->pass.h_width + head * dim;
    const float *got = a->got + (size_t)i * n_q(hp) + head * dim;
    double *score = a->work + (size_t)member * a->kv.n_positions, max = -INFINITY, magnitude = 0, sum = 0;
    double want[WR_MAX_HEAD_DIM] = {0}, spread[WR_MAX_HEAD_DIM] = {0};
    float x[WR_MAX_HEAD_DIM];
    for (uint32_t j = 0; j < n; j++) {
        double s = 0, all = 0;
        random_kv(x, hp, MATRIX_K, j, kv_head);
        wr_bench_round_kv(a->kv.type, false, x, dim);
        for (uint32_t d = 0; d < dim; d++) {
            double product = (double)q[d] * (double)x[d];
            s += product;
            all += fabs(product);
        }
        score[j] = s * (double)hp->attention_scale;
        max = fmax(max, score[j]);
        magnitude = fmax(magnitude, all * (double)hp->attention_scale);
    }
    for (uint32_t j = 0; j < n; j++) {
        double p = exp(score[j] - max);
        sum += p;
        random_kv(x, hp, MATRIX_V, j, kv_head);
        wr_bench_round_kv(a->kv.type, true, x, dim);
        for (uint32_t d = 0; d < dim; d++) {
            double v = (double)x[d];
            want[d] += p * v;
            spread[d] += p * fabs(v);
        }
    }
    double relative = 0x1p-24 * (2 * (magnitude * (dim + 4.0) + 32) + 16 * sqrt(n) + 64);
    for (uint32_t d = 0; d < dim; d++) {
        double y = want[d] / sum, error = fabs((double)got[d] - y), allowed = relative * spread[d] / sum;
        a->max_error[member] = fmax(a->max_error[member], error);
        a->max_output[member] = fmax(a->max_output[member], fabs(y));
        int none = 0;
        bool right = error <= allowed && memcmp(&got[d], &reference[d], sizeof(float)) == 0;
        if (right || !atomic_compare_exchange_strong(&a->wrong, &none, 1)) continue;
        wr_err(&a->err, WEIR_E_FAIL,
            "dimension %u of head %u at position %u is wrong: %.9g; the reference kernel gives %.9g, double precision %.9g within %.2g", d, head, n - 1,
            (double)got[d], (double)reference[d], y, allowed);
    }
}

static void check_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct attention *a = arg;
    const uint32_t n_head = a->model.hp.n_head;
    const volatile int *cancel = a->b->o->engine.cancel;
    a->max_error[member] = a->max_output[member] = 0;
    for (uint32_t item; (item = atomic_fetch_add(&a->next, 1)) < a->n_checked * n_head && (cancel == NULL || *cancel == 0);)
        check_head(a, item / n_head, item % n_head, member);
}

/* Some rows again, by the reference and in double precision: those of the pass, evenly spread, the last one always. */
static int check(struct attention *a, wr_bench_row *row, weir_err *err)
{
    struct wr_pass *p = &a->pass;
    const struct wr_hparams *hp = &a->model.hp;
    const uint32_t m = p->m, width = n_q(hp);
    for (uint32_t i = 0; i < a->n_checked; i++) {
        a->checked[i] = (uint32_t)((uint64_t)(i + 1) * m / a->n_checked) - 1;
        memcpy(a->got + (size_t)i * width, p->h + a->checked[i] * p->h_width, width * sizeof(float));
        a->rows[i].position = a->depth + a->checked[i]; /* checked[i] >= i: what is overwritten was read before */
    }
    p->m = a->n_checked;
    p->kernels = a->b->reference;
    for (uint32_t i = 0; i < p->m; i++) fill_row(p, i, NULL);
    if (!wr_attention_store(p, 0)) return wr_err(err, WEIR_E_NONFINITE, "%s", p->err.text);
    if (!wr_attention_attend(p, 0)) return wr_err(err, p->err.code, "%s", p->err.text);
    atomic_store(&a->next, 0);
    wr_team_run(p->team, check_member, a);
    if (a->b->o->engine.cancel != NULL && *a->b->o->engine.cancel != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    if (atomic_load(&a->wrong))
        return wr_err(err, WEIR_E_FAIL, "bench attention %s %s at level %s: %s", row->shape, row->format, a->b->kernels->level, a->err.text);
    double max_error = 0, max_output = 0;
    for (uint32_t i = 0; i < wr_team_size(p->team); i++) {
        max_error = fmax(max_error, a->max_error[i]);
        max_output = fmax(max_output, a->max_output[i]);
    }
    row->outputs = (uint64_t)m * width;
    row->outputs_verified = (uint64_t)a->n_checked * width;
    row->max_rel_error = max_error / max_output;
    return 0;
}

/* ---- cases ---- */

static int take(struct attention *a, enum wr_kv_type type, uint32_t m, const char *what, weir_err *err)
{
    struct wr_bench *b = a->b;
    struct wr_pass *p = &a->pass;
    const struct wr_hparams *hp = &a->model.hp;
    const uint32_t n_members = wr_team_size(b->team), n_positions = a->depth + m;
    const uint64_t half = hp->n_rot / 2 * sizeof(float), n_check = a->n_checked;
    p->g_width = n_q(hp) + 2 * n_kv(hp);
    p->h_width = p->u_width = n_q(hp);
    p->m = m;
    p->max_rows = m > 512 ? m : 512; /* a chunk, as it is by default */
    p->member_bytes = wr_round_up(wr_attention_work_bytes(hp->head_dim), 64);
    struct {
        void **to;
        uint64_t bytes;
    } parts[] = {{(void **)&p->g, m * p->g_width * sizeof(float)}, {(void **)&p->h, m * p->h_width * sizeof(float)}, {(void **)&p->rope[0].cos, m * half},
        {(void **)&p->u, p->max_rows * p->u_width * sizeof(float)}, {(void **)&p->attend_state, 4ull * p->max_rows * hp->n_head * sizeof(float)},
        {(void **)&p->rope[0].sin, m * half}, {(void **)&p->member_work, n_members * p->member_bytes}, {(void **)&a->rows, m * sizeof *a->rows},
        {(void **)&a->checked, n_check * sizeof *a->checked}, {(void **)&a->got, n_check * n_q(hp) * sizeof(float)},
        {(void **)&a->work, n_members * wr_round_up(n_positions, WR_KV_BLOCK) * sizeof(double)}, {(void **)&a->max_error, n_members * sizeof(double)},
        {(void **)&a->max_output, n_members * sizeof(double)}};
    uint64_t sum = WR_BENCH_PAGES(wr_kv_position_bytes(type, 1, hp->n_head_kv, hp->head_dim) * wr_round_up(n_positions, WR_KV_BLOCK));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) sum += WR_BENCH_PAGES(parts[i].bytes);
    int rc = wr_bench_room(b, sum, what, err);
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++) *parts[i].to = wr_bench_take(b, parts[i].bytes);
    wr_device_cpu(&a->device);
    if (rc == 0) rc = wr_kv_open(&a->kv, &a->device, type, 1, hp->n_head_kv, hp->head_dim, n_positions, &b->memory, &b->ledger, err);
    return rc;
}

static int one(struct wr_bench *b, const uint32_t shape[3], enum wr_kv_type type, uint32_t m, uint32_t depth, weir_err *err)
{
    struct attention a = {.b = b,
        .depth = depth,
        .layer = {.q_bias = WR_NO_WEIGHT, .k_bias = WR_NO_WEIGHT, .v_bias = WR_NO_WEIGHT, .q_norm = WR_NO_WEIGHT, .k_norm = WR_NO_WEIGHT}};
    struct wr_hparams *hp = &a.model.hp;
    wr_bench_row row = {.m = m, .unit = "ops/s"};
    char what[96];
    *hp = (struct wr_hparams){.n_layer = 1,
        .n_head = shape[0],
        .n_head_kv = shape[1],
        .head_dim = shape[2],
        .n_rot = shape[2] / 2 * 2,
        .attention_scale = 1.0f / sqrtf((float)shape[2])};
    a.model.layers = &a.layer;
    snprintf(row.shape, sizeof row.shape, "%ux%ux%u@%u", shape[0], shape[1], shape[2], depth);
    snprintf(row.format, sizeof row.format, "%s", wr_kv_name(type));
    snprintf(what, sizeof what, "%.40s, %u rows, %s", row.shape, m, row.format);

    double keys = (double)m * depth + (double)m * (m + 1) / 2, ops = 4.0 * keys * n_q(hp); /* two multiply-adds */
    uint64_t per_row = 2ull * (depth + m) * n_q(hp);
    a.n_checked = LIMIT / per_row < 1 ? 1 : LIMIT / per_row < m ? (uint32_t)(LIMIT / per_row) : m;
    int rc = take(&a, type, m, what, err);
    if (rc < 0) return rc;
    a.pass.model = &a.model;
    a.pass.kernels = b->kernels;
    a.pass.device = &a.device;
    a.pass.team = b->team;
    a.pass.kv = &a.kv;
    a.pass.heads_rotated = true;
    a.pass.cancel = b->o->engine.cancel;
    a.pass.rows = a.rows;
    for (uint32_t i = 0; i < m; i++) a.rows[i].position = depth + i;
    wr_bench_progress(b, "prepare", 0, 0, "");
    wr_team_run(b->team, fill_kv_member, &a);
    wr_pass_each_row(&a.pass, fill_row, NULL);

    double bytes = (double)(depth + m) * (double)wr_kv_position_bytes(type, 1, hp->n_head_kv, hp->head_dim);
    struct wr_bench_roof roof = {.mix = WR_MIX_FMA, .ops = ops, .bytes = bytes};
    rc = wr_bench_measure(b, run, &a, &roof, ops, &row, err);
    if (rc == 0) wr_bench_progress(b, "verify", 0, 0, "");
    if (rc == 0) rc = check(&a, &row, err);
    if (rc < 0) return rc;
    row.more = json_pack("{s:I}", "depth", (json_int_t)depth);
    rc = wr_bench_emit(b, &row, err);
    json_decref(row.more);
    return rc;
}

int wr_bench_heads(const char *list, const enum wr_kv_type *type, uint32_t shapes[][3], uint32_t *n, weir_err *err)
{
    int rc = wr_bench_numbers(list, "shape", "HEADSxKV_HEADSxDIM (such as 32x8x128)", 3, 4096, shapes[0], n, err);
    for (uint32_t s = 0; rc == 0 && s < *n; s++) {
        if (shapes[s][0] % shapes[s][1] != 0 || shapes[s][2] < 2 || shapes[s][2] > WR_MAX_HEAD_DIM)
            return wr_err(err, WEIR_E_USAGE, "--shape: %ux%ux%u: heads are a multiple of the KV heads, and dimensions 2 to %d", shapes[s][0], shapes[s][1],
                shapes[s][2], WR_MAX_HEAD_DIM);
        if (type != NULL && !wr_kv_fits(*type, shapes[s][2]))
            return wr_err(err, WEIR_E_USAGE, "--kv %s has blocks of 32 dimensions, and the heads of --shape %ux%ux%u have %u", wr_kv_name(*type), shapes[s][0],
                shapes[s][1], shapes[s][2], shapes[s][2]);
    }
    return rc;
}

int wr_bench_attention(struct wr_bench *b, weir_err *err)
{
    uint32_t shapes[WR_BENCH_LIST][3], rows[WR_BENCH_LIST], depths[WR_BENCH_LIST], n_shapes, n_rows, n_depths;
    const wr_bench_options *o = b->o;
    const enum wr_kv_type given = (enum wr_kv_type)o->engine.kv;
    int rc = wr_bench_heads(o->shapes != NULL ? o->shapes : "32x32x64,32x8x128", o->kv != NULL ? &given : NULL, shapes, &n_shapes, err);
    if (rc == 0) rc = wr_bench_numbers(o->rows != NULL ? o->rows : "1,512", "rows", "a list such as 1,512", 1, WR_MAX_CHUNK, rows, &n_rows, err);
    if (rc == 0) rc = wr_bench_numbers(o->depths != NULL ? o->depths : "4096", "depth", "a list such as 1024,4096", 1, MAX_DEPTH, depths, &n_depths, err);
    if (rc < 0) return rc;
    for (uint32_t s = 0; s < n_shapes; s++)
        for (int type = 0; type < WR_N_KV_TYPES; type++)
            for (uint32_t d = 0; d < n_depths; d++)
                for (uint32_t i = 0; i < n_rows && rc == 0; i++)
                    if (o->kv != NULL ? strcmp(o->kv, wr_kv_name((enum wr_kv_type)type)) == 0 : wr_kv_fits((enum wr_kv_type)type, shapes[s][2]))
                        rc = one(b, shapes[s], (enum wr_kv_type)type, rows[i], depths[d], err);
    return rc;
}
