/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "engine/tools.h"

int wr_cli_cmd_version(struct wr_cli *cli, weir_err *err)
{
    struct wr_cli_out *out = &cli->out;
    const char *name, *description;
    bool available;
    int code = wr_cli_no_more_arguments(cli, 0, err);
    if (code) return code;
    if (cli->json) {
        json_t *levels = json_array(), *engines = json_array(), *formats = json_array();
        name = wr_tool_level(0, &available);
        for (uint32_t i = 0; name; name = wr_tool_level(++i, &available))
            json_array_append_new(levels, json_pack("{s:s, s:b}", "name", name, "available", available));
        name = wr_tool_io_engine(0, &description);
        for (uint32_t i = 0; name; name = wr_tool_io_engine(++i, &description)) json_array_append_new(engines, json_string(name));
        name = wr_tool_format(0);
        for (uint32_t i = 0; name; name = wr_tool_format(++i)) json_array_append_new(formats, json_string(name));
        wr_cli_json_begin(out);
        wr_cli_json_add(out, "version", json_string(weir_version()));
        wr_cli_json_add(out, "numerics", json_integer(WEIR_NUMERICS));
        wr_cli_json_add(out, "levels", levels);
        wr_cli_json_add(out, "io_engines", engines);
        wr_cli_json_add(out, "formats", formats);
        wr_cli_json_end(out);
        return 0;
    }
    wr_cli_printf(out, "weir %s, numerics %d\n", weir_version(), WEIR_NUMERICS);
    wr_cli_printf(out, "CPU levels      ");
    name = wr_tool_level(0, &available);
    for (uint32_t i = 0; name; name = wr_tool_level(++i, &available)) wr_cli_printf(out, available ? " %s" : " (%s)", name);
    wr_cli_printf(out, "\nI/O engines     ");
    name = wr_tool_io_engine(0, &description);
    for (uint32_t i = 0; name; name = wr_tool_io_engine(++i, &description)) wr_cli_printf(out, " %s", name);
    wr_cli_printf(out, "\nweight formats  ");
    name = wr_tool_format(0);
    for (uint32_t i = 0; name; name = wr_tool_format(++i)) wr_cli_printf(out, " %s", name);
    wr_cli_printf(out, "\n");
    return 0;
}
