/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "engine/tools.h"

#include <string.h>
#include <sys/stat.h>

static const char *shape_name(size_t i)
{
    const char *description;
    return i <= UINT32_MAX ? wr_tool_synth_shape((uint32_t)i, &description) : NULL;
}

static size_t n_shapes(void)
{
    size_t n = 0;
    while (shape_name(n)) n++;
    return n;
}

static int list(struct wr_cli *cli)
{
    struct wr_cli_out *out = &cli->out;
    json_t *all = cli->json ? json_array() : NULL;
    for (size_t i = 0; i < n_shapes(); i++) {
        const char *description, *name = wr_tool_synth_shape((uint32_t)i, &description);
        if (all)
            json_array_append_new(all, json_pack("{s:s, s:s}", "name", name, "description", description));
        else
            wr_cli_printf(out, "%-14s %s\n", name, description);
    }
    if (all) {
        wr_cli_json_begin(out);
        wr_cli_json_add(out, "shapes", all);
        wr_cli_json_end(out);
    }
    return 0;
}

static int find_shape(const char *name, weir_err *err)
{
    size_t n = n_shapes();
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, shape_name(i))) return 0;
    const char *near = wr_cli_nearest(name, shape_name, n);
    if (near) return wr_err(err, WEIR_E_USAGE, "unknown shape '%.60s'; did you mean '%s'?", name, near);
    return wr_err(err, WEIR_E_USAGE, "unknown shape '%.60s'; 'weir synth list' prints the shapes", name);
}

int wr_cli_cmd_synth(struct wr_cli *cli, weir_err *err)
{
    const struct wr_cli_args *args = &cli->args;
    uint64_t layers = 0, vocab = 32000, seed = 0;
    if (args->n_positional == 0) return wr_err(err, WEIR_E_USAGE, "no shape; 'weir synth list' prints the shapes");
    const char *shape = args->positional[0];
    int code = wr_cli_no_more_arguments(cli, 1, err);
    if (code) return code;
    if (!strcmp(shape, "list")) return list(cli);
    code = find_shape(shape, err);
    if (code) return code;
    if (!args->count[WR_CLI_OUT]) return wr_err(err, WEIR_E_USAGE, "no file to write: weir synth %s -o FILE", shape);
    code = wr_cli_u64(args, WR_CLI_LAYERS, 1, 100000, &layers, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_VOCAB, 321, 1u << 20, &vocab, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_SEED, 0, UINT64_MAX, &seed, err);
    if (code) return code;
    const wr_synth_options how = {
        .shape = shape,
        .out = args->value[WR_CLI_OUT],
        .type = args->count[WR_CLI_TYPE] ? args->value[WR_CLI_TYPE] : "q4_0",
        .n_layer = (uint32_t)layers,
        .n_vocab = (uint32_t)vocab,
        .seed = seed,
        .progress = wr_cli_progress,
        .progress_user = cli,
        .cancel = wr_cli_cancel(),
        .began = wr_cli_doomed_file,
    };
    code = wr_tool_synth(&how, err);
    wr_cli_progress_clear(cli);
    struct stat file;
    if (code == 0 && stat(how.out, &file) != 0) code = wr_err(err, WEIR_E_WRITE, "%s: is not there after it was written", how.out);
    if (code) return code;
    if (cli->json) {
        wr_cli_json_begin(&cli->out);
        wr_cli_json_add(&cli->out, "shape", json_string(shape));
        wr_cli_json_add(&cli->out, "out", wr_cli_json_string(how.out));
        wr_cli_json_add(&cli->out, "bytes", json_integer((json_int_t)file.st_size));
        wr_cli_json_end(&cli->out);
    } else {
        char size[32];
        wr_cli_notice(cli, "wrote %s, %s", how.out, wr_cli_size((uint64_t)file.st_size, size));
    }
    return 0;
}
