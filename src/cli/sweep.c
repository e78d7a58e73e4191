/* SPDX-License-Identifier: Apache-2.0 */
/* Other plans of the same model: over budgets and contexts, and those that say what a change of an option would bring. */
#include "cli/plot.h"
#include "cli/sweep.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The plan with another budget (0: as given) and context. Silent: what is to be warned of was said of the plan that was asked for. */
int wr_sweep_point(const struct wr_cli *cli, const char *path, uint64_t budget, uint32_t n_ctx, struct wr_sweep_point *out, weir_err *err)
{
    weir_options options = cli->options;
    weir_plan *plan;
    options.log = NULL;
    options.progress = NULL;
    /* This process has the budget that was given, whatever it plans for; and it has read the header once. */
    uint64_t have = options.memory_bytes, process = options.process_bytes;
    if (have > 0) options.header_bytes = have > 2 * process ? have - process : process / 2;
    if (budget > 0) options.memory_bytes = budget;
    options.n_ctx = n_ctx;
    if (*wr_cli_cancel() != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    int code = weir_plan_open(&plan, path, &options, err);
    if (code) return code;
    const weir_plan_info *info = weir_plan_get(plan);
    *out = (struct wr_sweep_point){.budget = info->budget,
        .min_budget = info->min_budget,
        .pinned = info->pinned,
        .streamed = info->streamed,
        .bytes_per_token = info->bytes_per_token,
        .n_ctx = info->n_ctx,
        .max_context = info->max_context,
        .n_chunk = info->n_chunk,
        .decode = info->decode_predicted,
        .decode_full = info->decode_predicted_full,
        .prefill = info->prefill_predicted,
        .bound = wr_cli_bound_name(info)};
    for (uint32_t i = 0; i < info->n_accounts; i++) out->reserved += info->accounts[i].reserved;
    weir_plan_close(plan);
    return 0;
}

#define ALL_MEMORY (1ull << 50)

static int sweep_memory(struct wr_cli *cli, const char *path, const weir_plan_info *info, struct wr_sweep *sweep, weir_err *err)
{
    struct wr_sweep_point all;
    int code = wr_sweep_point(cli, path, ALL_MEMORY, info->n_ctx, &all, err);
    uint64_t from = all.min_budget, to = all.reserved > from ? all.reserved : from;
    for (uint32_t i = 0; code == 0 && i < WR_SWEEP_POINTS; i++) {
        wr_cli_progress(cli, "plan", i, WR_SWEEP_POINTS, "points");
        code = wr_sweep_point(cli, path, from + (to - from) / (WR_SWEEP_POINTS - 1) * i, info->n_ctx, &sweep->point[sweep->n++], err);
    }
    return code;
}

/* Two to an octave; the last is the largest. */
static int sweep_ctx(struct wr_cli *cli, const char *path, const weir_plan_info *info, struct wr_sweep *sweep, weir_err *err)
{
    uint64_t n = info->max_context < 256 ? 16 : 256;
    int code = 0;
    for (bool last = false; code == 0 && !last; n = sweep->n % 2 ? n / 2 * 3 : n / 3 * 4) {
        wr_cli_progress(cli, "plan", sweep->n, WR_SWEEP_POINTS, "points");
        last = n >= info->max_context || sweep->n == WR_SWEEP_POINTS - 1;
        code = wr_sweep_point(cli, path, info->budget, last ? info->max_context : (uint32_t)n, &sweep->point[sweep->n++], err);
    }
    return code;
}

int wr_sweep_make(struct wr_cli *cli, const char *path, const weir_plan_info *info, struct wr_sweep *sweep, weir_err *err)
{
    const char *over = cli->args.value[WR_CLI_SWEEP];
    sweep->n = 0;
    sweep->memory = strcmp(over, "memory") == 0;
    if (!sweep->memory && strcmp(over, "ctx") != 0) return wr_err(err, WEIR_E_USAGE, "--sweep: '%.40s' is not memory or ctx", over);
    if (info->decode_predicted <= 0 && !strcmp(cli->options.io, "mmap"))
        return wr_err(err, WEIR_E_USAGE, "--sweep: the rates of --io mmap are unknown, what it reads is the system's choice");
    if (info->decode_predicted <= 0) {
        const char *slash = strrchr(info->model, '/');
        return wr_err(err, WEIR_E_FAIL, "--sweep needs the rates of this machine and file system, which are unknown; measure them with: weir probe %.*s",
            slash ? (int)(slash - info->model) + (slash == info->model) : 1, slash ? info->model : ".");
    }
    wr_cli_progress_begin(cli, "plan", 0);
    int code = sweep->memory ? sweep_memory(cli, path, info, sweep, err) : sweep_ctx(cli, path, info, sweep, err);
    wr_cli_progress_clear(cli);
    return code;
}

/* A name of the model that is short: its file, or the folder that it lies in. */
static const char *short_name(const char *path)
{
    const char *name = path;
    for (const char *c = path; *c != '\0'; c++)
        if (*c == '/' && c[1] != '\0') name = c + 1;
    return name;
}

struct chart {
    double x[WR_SWEEP_POINTS], decode[WR_SWEEP_POINTS], full[WR_SWEEP_POINTS];
    char title[300], subtitle[300];
    struct wr_plot plot;
};

static void make_chart(struct chart *c, const weir_plan_info *info, const struct wr_sweep *sweep)
{
    char size[32];
    for (uint32_t i = 0; i < sweep->n; i++) {
        c->x[i] = sweep->memory ? (double)sweep->point[i].budget : (double)sweep->point[i].n_ctx;
        c->decode[i] = sweep->point[i].decode > 0 ? sweep->point[i].decode : NAN; /* unknown is not 0 */
        c->full[i] = sweep->point[i].decode_full > 0 ? sweep->point[i].decode_full : NAN;
    }
    snprintf(c->title, sizeof c->title, "%.200s: decode over %s", short_name(info->model), sweep->memory ? "budget" : "context");
    if (sweep->memory)
        snprintf(c->subtitle, sizeof c->subtitle, "predicted; context of %u positions, %s, %u threads", info->n_ctx, info->isa, info->n_threads);
    else
        snprintf(c->subtitle, sizeof c->subtitle, "predicted; budget %s, %s, %u threads", wr_cli_size(info->budget, size), info->isa, info->n_threads);
    struct wr_plot *plot = &c->plot;
    *plot = (struct wr_plot){.title = c->title,
        .subtitle = c->subtitle,
        .x_label = sweep->memory ? "budget" : "context, positions",
        .y_label = "tokens/s",
        .x_scale = sweep->memory ? WR_PLOT_LINEAR : WR_PLOT_LOG,
        .x_bytes = sweep->memory,
        .y_zero = true,
        .series = {{"at the beginning", c->x, c->decode, sweep->n}, {"with the context full", c->x, c->full, sweep->n}},
        .n_series = 2};
    double here = sweep->memory ? (double)info->budget : (double)info->n_ctx;
    if (sweep->memory) plot->mark[plot->n_marks++] = (struct wr_plot_mark){c->x[0], "the smallest budget with this context"};
    if (c->x[0] <= here && here <= c->x[sweep->n - 1]) plot->mark[plot->n_marks++] = (struct wr_plot_mark){here, "this plan"};
    /* Of budgets the first that holds all weights; of contexts the first that does not. */
    uint32_t i = 0;
    while (i < sweep->n && (sweep->point[i].streamed == 0) != sweep->memory) i++;
    if (i < sweep->n && (i > 0 || sweep->memory))
        plot->mark[plot->n_marks++] = (struct wr_plot_mark){c->x[i], sweep->memory ? "all weights in memory" : "weights are streamed"};
}

int wr_sweep_svg(struct wr_cli *cli, const weir_plan_info *info, const struct wr_sweep *sweep, const char *path, weir_err *err)
{
    struct chart chart;
    make_chart(&chart, info, sweep);
    return wr_plot_svg(cli, &chart.plot, path, err);
}

void wr_sweep_text(struct wr_cli_out *out, const weir_plan_info *info, const struct wr_sweep *sweep)
{
    struct chart chart;
    make_chart(&chart, info, sweep);
    wr_cli_put(out, "\n", 1);
    wr_plot_text(out, &chart.plot, 78, 16);
}

void wr_sweep_json(struct wr_cli_out *out, const struct wr_sweep *sweep)
{
    json_t *points = json_array();
    for (uint32_t i = 0; i < sweep->n; i++) {
        const struct wr_sweep_point *p = &sweep->point[i];
        json_array_append_new(
            points, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:s}", "budget", (json_int_t)p->budget, "context", (json_int_t)p->n_ctx, "chunk",
                        (json_int_t)p->n_chunk, "pinned", (json_int_t)p->pinned, "streamed", (json_int_t)p->streamed, "bytes_per_token",
                        (json_int_t)p->bytes_per_token, "decode_predicted", wr_cli_json_rate(p->decode), "decode_predicted_full",
                        wr_cli_json_rate(p->decode_full), "prefill_predicted", wr_cli_json_rate(p->prefill), "bound", p->bound));
    }
    wr_cli_json_add(out, "sweep", json_pack("{s:s, s:o}", "over", sweep->memory ? "memory" : "ctx", "points", points));
}
