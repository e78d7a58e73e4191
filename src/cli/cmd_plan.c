/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sweep.h"
#include "engine/tools.h"

#include <stdio.h>

static int write_tape(struct wr_cli *cli, const weir_plan *plan, const char *path, weir_err *err)
{
    struct wr_outfile file;
    char lines[4096];
    size_t n = 0;
    uint64_t written = 0, offset, bytes;
    uint32_t part;
    bool streamed;
    int code = wr_cli_file_open(&file, path, &cli->ledger, err);
    if (code) return code;
    for (uint64_t i = 0; code == 0 && wr_tool_tape(plan, i, &part, &offset, &bytes, &streamed); i++) {
        if (!streamed) continue;
        n += (size_t)snprintf(
            lines + n, sizeof lines - n, part > 0 ? "%llu %llu %u\n" : "%llu %llu\n", (unsigned long long)offset, (unsigned long long)bytes, part);
        if (sizeof lines - n > 64) continue;
        code = wr_outfile_write(&file, written, lines, n, err);
        written += n;
        n = 0;
    }
    if (code == 0) code = wr_outfile_write(&file, written, lines, n, err);
    if (code == 0) code = wr_outfile_commit(&file, err);
    wr_cli_file_discard(&file);
    return code;
}

/* What a smaller context would bring where its keys and values take the place of weights. */
#define LESS_CONTEXT 4
#define WORTH_SAYING 1.1

static void advise_context(struct wr_cli *cli, const char *path, const weir_plan_info *info, struct wr_sweep_point *better)
{
    uint32_t n_ctx = info->n_ctx / LESS_CONTEXT;
    *better = (struct wr_sweep_point){0};
    if (info->streamed == 0 || info->decode_predicted <= 0 || n_ctx < 16) return;
    if (wr_sweep_point(cli, path, info->budget, n_ctx, better, NULL) || better->decode < WORTH_SAYING * info->decode_predicted) better->decode = 0;
}

static double percent(double from, double to) { return 100 * (to > from ? to - from : from - to) / from; }

/* Which change of a budget that is too small, or of the context, is the smaller one, and what either gives. */
static void advise_refused(struct wr_cli *cli, const char *path)
{
    struct wr_sweep_point least, larger, shorter = {0};
    char size[32], rate[2][64] = {"", ""};
    uint64_t budget = cli->options.memory_bytes;
    uint32_t n_ctx = cli->options.n_ctx;
    if (budget == 0 || wr_sweep_point(cli, path, UINT64_MAX / 4, n_ctx, &least, NULL)) return;
    uint64_t needed = wr_round_up(least.min_budget, 1u << 20);
    if (wr_sweep_point(cli, path, needed, n_ctx, &larger, NULL)) return;
    if (n_ctx > 0 && wr_sweep_point(cli, path, budget, 0, &least, NULL) == 0 && least.max_context < n_ctx)
        (void)wr_sweep_point(cli, path, budget, least.max_context, &shorter, NULL);
    bool context_first = shorter.n_ctx > 0 && percent(n_ctx, shorter.n_ctx) < percent((double)budget, (double)needed);
    const struct wr_sweep_point *both[] = {&larger, &shorter};
    for (int i = 0; i < 2; i++) {
        if (both[i]->decode > 0)
            snprintf(rate[i], sizeof rate[i], "%.*f tokens/s predicted", wr_cli_rate_places(both[i]->decode), both[i]->decode);
        else
            snprintf(rate[i], sizeof rate[i], "%s read per token", wr_cli_size(both[i]->bytes_per_token, size));
    }
    for (int i = 0; i < 2; i++) {
        if ((i == 1) == context_first)
            wr_cli_notice(
                cli, "with --memory %lluM, %.2g %% more, it works: %s", (unsigned long long)(needed >> 20), percent((double)budget, (double)needed), rate[0]);
        else if (shorter.n_ctx > 0)
            wr_cli_notice(cli, "with -c %u, %.2g %% less, it works: %s", shorter.n_ctx, percent(n_ctx, shorter.n_ctx), rate[1]);
    }
}

int wr_cli_cmd_plan(struct wr_cli *cli, weir_err *err)
{
    const char *path;
    size_t next;
    weir_plan *plan = NULL;
    struct wr_sweep sweep;
    struct wr_sweep_point better;
    int code = wr_cli_model_path(cli, &path, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next, err);
    const bool sweeps = cli->args.count[WR_CLI_SWEEP];
    const bool asked = cli->args.count[WR_CLI_OUT] && !cli->args.from_environment[WR_CLI_OUT]; /* the environment says it to all commands */
    if (code == 0 && asked && !sweeps) code = wr_err(err, WEIR_E_USAGE, "-o is the picture of --sweep memory or --sweep ctx; give one");
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0) code = weir_plan_open(&plan, path, &cli->options, err);
    wr_cli_progress_clear(cli);
    if (code == WEIR_E_BUDGET) advise_refused(cli, path);
    if (code) return code;
    const weir_plan_info *info = weir_plan_get(plan);
    if (cli->args.count[WR_CLI_TAPE]) code = write_tape(cli, plan, cli->args.value[WR_CLI_TAPE], err);
    if (code == 0 && sweeps) code = wr_sweep_make(cli, path, info, &sweep, err);
    if (code == 0 && sweeps && cli->args.count[WR_CLI_OUT]) code = wr_sweep_svg(cli, info, &sweep, cli->args.value[WR_CLI_OUT], err);
    if (code) goto done;
    if (cli->args.count[WR_CLI_OUT]) wr_cli_notice(cli, "wrote %s", cli->args.value[WR_CLI_OUT]);
    advise_context(cli, path, info, &better);
    if (cli->json) {
        wr_cli_json_begin(&cli->out);
        wr_cli_report_plan_json(cli, info);
        wr_cli_json_add(&cli->out, "advice",
            better.decode > 0 ? json_pack("{s:I, s:f}", "context", (json_int_t)better.n_ctx, "decode_predicted", better.decode) : json_null());
        if (sweeps) wr_sweep_json(&cli->out, &sweep);
        wr_cli_json_end(&cli->out);
    } else {
        wr_cli_report_plan(cli, &cli->out, info);
        if (better.decode > 0)
            wr_cli_printf(&cli->out, "a smaller context pins more weights: -c %u gives %.*f tokens/s instead of %.*f\n", better.n_ctx,
                wr_cli_rate_places(better.decode), better.decode, wr_cli_rate_places(info->decode_predicted), info->decode_predicted);
        if (sweeps) wr_sweep_text(&cli->out, info, &sweep);
    }
done:
    weir_plan_close(plan);
    return code;
}
