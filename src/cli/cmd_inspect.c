/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "engine/tools.h"

#include <stdio.h>
#include <string.h>

static uint64_t number(const json_t *object, const char *name) { return (uint64_t)json_integer_value(json_object_get(object, name)); }

static const char *string(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "?";
}

static void put_metadata(struct wr_cli_out *out, const json_t *value)
{
    if (json_is_string(value)) {
        wr_cli_put_escaped(out, json_string_value(value), 160);
    } else if (json_is_object(value)) { /* a long array */
        wr_cli_printf(out, "%llu x %s", (unsigned long long)number(value, "count"), string(value, "type"));
    } else if (json_is_array(value)) {
        wr_cli_put(out, "[", 1);
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i) wr_cli_put(out, ", ", 2);
            put_metadata(out, json_array_get(value, i));
        }
        wr_cli_put(out, "]", 1);
    } else {
        wr_cli_json_value(out, value);
    }
}

static void put_tensors(struct wr_cli_out *out, const json_t *tensors, bool several_files)
{
    wr_cli_printf(out, "\n%s%14s %14s  %-8s %-24s %s\n", several_files ? "part " : "", "offset", "bytes", "type", "shape", "tensor");
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i), *shape = json_object_get(tensor, "shape");
        char text[96];
        size_t n = 0;
        for (size_t j = 0; j < json_array_size(shape) && n < sizeof text - 24; j++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%llu", j ? " x " : "", (unsigned long long)json_integer_value(json_array_get(shape, j)));
        text[n] = 0;
        if (several_files) wr_cli_printf(out, "%4llu ", (unsigned long long)number(tensor, "file") + 1);
        wr_cli_printf(out, "%14llu %14llu  %-8s %-24s ", (unsigned long long)number(tensor, "offset"), (unsigned long long)number(tensor, "bytes"),
            string(tensor, "type"), text);
        wr_cli_put_escaped(out, string(tensor, "name"), 200);
        wr_cli_put(out, "\n", 1);
    }
}

static void put_table(struct wr_cli_out *out, json_t *about)
{
    char a[32], b[32];
    json_t *metadata = json_object_get(about, "metadata"), *tensors = json_object_get(about, "tensors"), *value;
    const char *key;
    size_t n_files = json_array_size(json_object_get(about, "files"));
    wr_cli_printf(out, "architecture  ");
    wr_cli_put_escaped(out, string(about, "arch"), 100);
    wr_cli_printf(out, "\nfile          %s, version %llu", wr_cli_size(number(about, "file_bytes"), a), (unsigned long long)number(about, "version"));
    if (n_files > 1) wr_cli_printf(out, ", in %zu parts", n_files);
    wr_cli_printf(out, "\nweights       %s in %zu tensors\n\n", wr_cli_size(number(about, "weight_bytes"), b), json_array_size(tensors));
    json_object_foreach(metadata, key, value)
    {
        wr_cli_put_escaped(out, key, 200);
        wr_cli_put(out, " = ", 3);
        put_metadata(out, value);
        wr_cli_put(out, "\n", 1);
    }
    put_tensors(out, tensors, n_files > 1);
}

static void put_context(struct wr_cli_out *out, const json_t *about)
{
    char a[32];
    wr_cli_printf(out, "saved context of %llu tokens, %s, %llu commits\nmodel         ", (unsigned long long)number(about, "tokens"),
        wr_cli_size(number(about, "file_bytes"), a), (unsigned long long)number(about, "commits"));
    wr_cli_put_escaped(out, string(about, "arch"), 32);
    wr_cli_put(out, ", ", 2);
    wr_cli_put_escaped(out, string(about, "model"), 200);
    wr_cli_printf(out,
        "\nkeys, values  %s, %llu layers x %llu heads x %llu dimensions\narithmetic    %llu%s\nweights       %llu of %llu compared when it is used\n",
        string(about, "kv"), (unsigned long long)number(about, "layers"), (unsigned long long)number(about, "heads_kv"),
        (unsigned long long)number(about, "head_dim"), (unsigned long long)number(about, "numerics"),
        json_is_true(json_object_get(about, "precise")) ? ", --precise" : "", (unsigned long long)number(about, "weights_known"),
        (unsigned long long)number(about, "weights"));
}

int wr_cli_cmd_inspect(struct wr_cli *cli, weir_err *err)
{
    const char *path;
    size_t next;
    json_t *about = NULL;
    bool check = cli->args.count[WR_CLI_CHECK] > 0;
    int code = wr_cli_model_path(cli, &path, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next, err);
    if (code == 0) code = wr_cli_engine_options(cli, err);
    bool context = code == 0 && wr_tool_is_context(path);
    if (code == 0) code = (context ? wr_tool_inspect_context : wr_tool_inspect)(path, check, &cli->options, &about, err);
    if (code) return code;
    wr_cli_progress_clear(cli);
    if (cli->json) {
        wr_cli_json_value(&cli->out, about);
        wr_cli_put(&cli->out, "\n", 1);
    } else if (context) {
        put_context(&cli->out, about);
        if (check) wr_cli_printf(&cli->out, "\nevery block is as it was saved\n");
    } else {
        put_table(&cli->out, about);
        if (check) wr_cli_printf(&cli->out, "\nevery value is finite\n");
    }
    json_decref(about);
    return 0;
}
