/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench layer: whole layers as a prefill pass runs them, of a synthetic model of three layers in memory, by an engine like any other. The rate is that of
 * a pass through all; the ceiling is what its products need by the format's mix of instructions and its attention by f32 multiply-adds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/bench.h"
#include "engine/engine.h"

#define N_LAYERS 3
#define N_WORDS 321 /* the smallest vocabulary of a synthetic model: the head is no part of this */

struct layer {
    struct wr_bench *b;
    weir_engine *engine;
    struct wr_pass_row *rows;
    uint32_t m;
    uint64_t end_ns[N_LAYERS];
};

static void tick(void *user, uint32_t layers_done, uint32_t n_layer) { ((struct layer *)user)->end_ns[layers_done - 1] = wr_clock_ns(); }

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct layer *l = arg;
    struct wr_pass *p = &l->engine->pass;
    p->tick = tick;
    p->tick_user = l;
    int rc = wr_pass_run(p, l->rows, l->m, NULL, NULL, err);
    /* A layer begins with what the one before it leaves normed and rounded and leaves the same: the first does it twice, the last not at all. */
    *compute_seconds = (double)(l->end_ns[1] - l->end_ns[0]) * 1e-9 * N_LAYERS;
    if (rc == 0 && !p->kernels->all_finite(p->x, (size_t)l->m * p->model->hp.n_embd))
        rc = wr_err(err, WEIR_E_NONFINITE, "the result of a layer is not finite at level %s", p->kernels->level);
    return rc;
}

static int one(struct wr_bench *b, weir_engine *e, const char *shape, const struct wr_quant *quant, uint32_t m, weir_err *err)
{
    const struct wr_model *model = &e->plan->model;
    const struct wr_hparams *hp = &model->hp;
    struct layer l = {.b = b, .engine = e, .m = m};
    wr_bench_row row = {.m = m, .unit = "ops/s"};
    struct wr_bench_roof roof = {.mix = quant->is_float ? WR_MIX_FMA : WR_MIX_FORMAT, .quant = quant, .precise = b->o->engine.precise};
    snprintf(row.shape, sizeof row.shape, "%.40s/%d", shape, N_LAYERS);
    snprintf(row.format, sizeof row.format, "%s", quant->name);
    for (uint32_t il = 0; il < N_LAYERS; il++) {
        const struct wr_layer *layer = &model->layers[il];
        const uint32_t weights[] = {layer->q, layer->k, layer->v, layer->o, layer->gate, layer->up, layer->down};
        for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
            const struct wr_tensor *t = model->uses[weights[i]].tensor;
            roof.ops += 2.0 * m * (double)t->n_rows * (double)t->ne[0];
            roof.bytes += (double)t->n_rows * (double)t->row_bytes;
        }
        roof.fma_ops += 2.0 * m * (m + 1.0) * hp->n_head * hp->head_dim; /* m (m + 1) / 2 pairs, two multiply-adds each */
    }
    uint64_t rows_bytes = WR_BENCH_PAGES(m * sizeof *l.rows), check_bytes = WR_BENCH_PAGES(wr_check_layers_bytes(&e->pass));
    int rc = wr_bench_room(b, rows_bytes + check_bytes, row.shape, err);
    if (rc < 0) return rc;
    l.rows = wr_bench_take(b, rows_bytes);
    for (uint32_t i = 0; i < m; i++) l.rows[i] = (struct wr_pass_row){.position = i, .token = (int32_t)(i * 7u % N_WORDS)};
    rc = wr_bench_measure(b, run, &l, &roof, roof.ops + roof.fma_ops, &row, err);
    if (rc == 0) wr_bench_progress(b, "verify", 0, 0, "");
    e->pass.tick = NULL;
    if (rc == 0) rc = wr_bench_check_layers(b, &e->pass, l.rows, m, wr_bench_take(b, check_bytes), &row, err);
    if (rc == WEIR_E_FAIL) wr_err_prefix(err, rc, "bench layer %s %s at level %s", row.shape, row.format, b->kernels->level);
    if (rc < 0) return rc;
    row.more = json_pack("{s:i, s:I, s:I}", "layers", N_LAYERS, "n_embd", (json_int_t)hp->n_embd, "n_ff", (json_int_t)hp->n_ff);
    rc = wr_bench_emit(b, &row, err);
    json_decref(row.more);
    return rc;
}

/* A name that is not there, in a folder where others may write too: a link that somebody put there would be followed. */
static int free_name(char *path, size_t size, const char *folder, weir_err *err)
{
    struct stat there;
    for (unsigned i = 0; i < 100; i++) {
        if (snprintf(path, size, "%s/weir-bench-%ld-%u.gguf", folder, (long)getpid(), i) >= (int)size)
            return wr_err(err, WEIR_E_OPEN, "TMPDIR is longer than %zu bytes; name another folder", size);
        if (lstat(path, &there) != 0) return 0;
    }
    return wr_err(err, WEIR_E_OPEN, "%s: is there, and 99 like it; remove them or set TMPDIR", wr_file_label(path));
}

/* An engine that holds the model and room for passes of max_m rows. */
static int open_model(struct wr_bench *b, const char *shape, const struct wr_quant *quant, uint32_t max_m, weir_engine **engine, weir_err *err)
{
    const wr_bench_options *o = b->o;
    const char *folder = getenv("TMPDIR");
    char path[512];
    weir_options options = o->engine;
    weir_plan *plan = NULL;
    if (folder == NULL || folder[0] == '\0') folder = "/tmp";
    int rc = free_name(path, sizeof path, folder, err);
    if (rc < 0) return rc;
    const wr_synth_options synth = {.shape = shape,
        .out = path,
        .type = quant->name,
        .n_layer = N_LAYERS,
        .n_vocab = N_WORDS,
        .progress = options.progress,
        .progress_user = options.progress_user,
        .cancel = options.cancel,
        .began = o->began};
    rc = wr_tool_synth(&synth, err);
    if (rc < 0) return rc;
    if (o->began != NULL) o->began(path);
    options.memory_bytes = b->budget_bytes;
    options.process_bytes += b->cold.bytes + (16u << 20) + ((uint64_t)b->n_threads << 17); /* what the harness has beside the engine */
    options.n_ctx = options.n_chunk = max_m;
    options.n_threads = wr_team_size(b->team);
    rc = weir_plan_open(&plan, path, &options, err);
    unlink(path); /* the plan holds it open; under its name it would stay behind a command that is killed */
    if (o->began != NULL) o->began(NULL);
    if (rc == 0 && plan->plan.streamed > 0)
        rc = wr_err(err, WEIR_E_BUDGET, "bench layer %s as %s does not fit in the budget of %.1f MiB; give a larger --memory", shape, quant->name,
            (double)b->budget_bytes / 1048576);
    if (rc == 0) rc = weir_engine_open(engine, plan, err);
    if (rc < 0) weir_plan_close(plan);
    return rc;
}

static bool known(const char *shape)
{
    const char *name, *description;
    for (uint32_t i = 0; (name = wr_tool_synth_shape(i, &description)) != NULL; i++)
        if (strcmp(name, shape) == 0) return true;
    return false;
}

int wr_bench_layer(struct wr_bench *b, weir_err *err)
{
    const wr_bench_options *o = b->o;
    const struct wr_quant *types[WR_BENCH_LIST];
    const char *list = o->shapes != NULL ? o->shapes : "1b,8b";
    char shapes[WR_BENCH_LIST][48];
    uint32_t rows[WR_BENCH_LIST], n_types, n_rows, n_shapes = 0, max_m = 0;
    int rc = wr_bench_types(o->types != NULL ? o->types : "q4_0", types, &n_types, err);
    if (rc == 0) rc = wr_bench_numbers(o->rows != NULL ? o->rows : "128,512,2048", "rows", "a list such as 128,512", 1, WR_MAX_CHUNK, rows, &n_rows, err);
    if (rc == 0) rc = wr_bench_words(list, "shape", shapes, &n_shapes, err);
    for (uint32_t s = 0; rc == 0 && s < n_shapes; s++)
        if (!known(shapes[s])) rc = wr_err(err, WEIR_E_USAGE, "--shape: there is no shape '%s'; 'weir synth list' prints them", shapes[s]);
    for (uint32_t i = 0; rc == 0 && i < n_rows; i++)
        if (rows[i] > max_m) max_m = rows[i];
    for (uint32_t s = 0; s < n_shapes; s++) {
        for (uint32_t t = 0; rc == 0 && t < n_types; t++) {
            weir_engine *engine = NULL;
            wr_arena_close(&b->memory); /* before the engine is opened inside the same budget */
            rc = open_model(b, shapes[s], types[t], max_m, &engine, err);
            for (uint32_t i = 0; rc == 0 && i < n_rows; i++) rc = one(b, engine, shapes[s], types[t], rows[i], err);
            weir_engine_close(engine);
        }
    }
    return rc;
}
