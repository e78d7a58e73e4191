/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
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

int wr_cli_cmd_plan(struct wr_cli *cli, weir_err *err)
{
    const char *path;
    size_t next;
    weir_plan *plan = NULL;
    int code = wr_cli_model_path(cli, &path, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next, err);
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0) code = weir_plan_open(&plan, path, &cli->options, err);
    wr_cli_progress_clear(cli);
    if (code) return code;
    if (cli->args.count[WR_CLI_TAPE]) code = write_tape(cli, plan, cli->args.value[WR_CLI_TAPE], err);
    if (code == 0) {
        if (cli->json)
            wr_cli_report_plan_json(cli, weir_plan_get(plan));
        else
            wr_cli_report_plan(cli, &cli->out, weir_plan_get(plan));
    }
    weir_plan_close(plan);
    return code;
}
