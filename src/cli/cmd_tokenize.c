/* SPDX-License-Identifier: Apache-2.0 */
/* weir tokenize and weir detokenize. */
#include "cli/cli.h"

#include <string.h>
#include <unistd.h>

/* No budget bounds these commands; this does. */
#define TEXT_MAX (1ull << 30)

static int open_text(struct wr_cli *cli, weir_engine **engine, size_t *next, weir_err *err)
{
    const char *path;
    int code = wr_cli_model_path(cli, &path, next, err);
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0) code = weir_engine_open_text(engine, path, &cli->options, err);
    wr_cli_progress_clear(cli);
    return code;
}

static void put_ids(struct wr_cli_out *out, const char *separator, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) wr_cli_printf(out, "%s%d", i ? separator : "", ids[i]);
}

static int each_line(struct wr_cli *cli, weir_engine *engine, const char *path, bool special, weir_err *err)
{
    struct wr_cli_lines lines;
    char *line;
    size_t length, number = 0;
    int code = wr_cli_lines_open(&lines, cli, path, err);
    if (code) return code;
    int more = wr_cli_lines_next(&lines, &line, &length, err);
    for (; more == 1 && code == 0; more = code == 0 ? wr_cli_lines_next(&lines, &line, &length, err) : 0) {
        json_error_t where;
        int32_t *ids = NULL;
        size_t n = 0;
        number++;
        json_t *text = json_loadb(line, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
        if (!json_is_string(text))
            code = wr_err(err, WEIR_E_INPUT, "%s: line %zu is not a JSON string", path, number);
        else
            code = weir_tokenize(engine, json_string_value(text), json_string_length(text), special, false, &ids, &n, err);
        if (code == 0) {
            wr_cli_put(&cli->out, "[", 1);
            put_ids(&cli->out, ", ", ids, n);
            wr_cli_put(&cli->out, "]\n", 2);
            if (cli->out.failed) code = wr_cli_flush(&cli->out, err);
        }
        weir_free(ids);
        json_decref(text);
    }
    wr_cli_lines_close(&lines);
    return code ? code : more;
}

static int one_text(struct wr_cli *cli, weir_engine *engine, size_t next, bool special, weir_err *err)
{
    struct wr_cli_text text;
    int32_t *ids;
    size_t n;
    int code = wr_cli_text_read(cli, next, TEXT_MAX, &text, err);
    if (code) return code;
    wr_cli_progress_begin(cli, "tokenize", 0);
    code = weir_tokenize(engine, text.bytes, text.n, special, cli->args.count[WR_CLI_BOS] > 0, &ids, &n, err);
    wr_cli_progress_clear(cli);
    wr_mem_free(text.bytes);
    if (code == 0 && *wr_cli_cancel()) {
        weir_free(ids);
        code = wr_err(err, WEIR_E_CANCELLED, "interrupted");
    }
    if (code) return code;
    if (cli->json) {
        wr_cli_json_begin(&cli->out);
        wr_cli_json_ids(&cli->out, "ids", ids, n);
        wr_cli_json_end(&cli->out);
    } else {
        put_ids(&cli->out, " ", ids, n);
        wr_cli_put(&cli->out, "\n", 1);
    }
    weir_free(ids);
    return 0;
}

int wr_cli_cmd_tokenize(struct wr_cli *cli, weir_err *err)
{
    weir_engine *engine = NULL;
    size_t next;
    int code = open_text(cli, &engine, &next, err);
    if (code) return code;
    bool special = cli->args.count[WR_CLI_PARSE_SPECIAL] > 0, lines = cli->args.count[WR_CLI_JSONL] > 0;
    code = wr_cli_no_more_arguments(cli, lines ? next : next + 1, err);
    if (code == 0 && lines && (cli->args.count[WR_CLI_FILE] || cli->args.count[WR_CLI_PROMPT]) && !cli->args.from_environment[WR_CLI_FILE] &&
        !cli->args.from_environment[WR_CLI_PROMPT])
        code = wr_err(err, WEIR_E_USAGE, "--jsonl and a text: give one of them");
    if (code == 0 && lines && cli->args.count[WR_CLI_BOS] && !cli->args.from_environment[WR_CLI_BOS])
        code = wr_err(err, WEIR_E_USAGE, "--bos: with --jsonl nothing is added to a line");
    if (code == 0) code = lines ? each_line(cli, engine, cli->args.value[WR_CLI_JSONL], special, err) : one_text(cli, engine, next, special, err);
    weir_engine_close(engine);
    return code;
}

/* The ids of all arguments, or of -f or standard input. */
static int read_ids(struct wr_cli *cli, size_t next, int32_t **ids, size_t *n, weir_err *err)
{
    struct wr_cli_text text = {0};
    size_t n_arguments = cli->args.n_positional - next, length = 0;
    int code;
    if (n_arguments > 1) {
        if (cli->args.count[WR_CLI_FILE] && !cli->args.from_environment[WR_CLI_FILE]) return wr_err(err, WEIR_E_USAGE, "ids and -f: give one of them");
        for (size_t i = next; i < cli->args.n_positional; i++) length += strlen(cli->args.positional[i]) + 1;
        text.bytes = wr_mem_alloc(&cli->ledger, WR_ACCOUNT_TEXT, length + 1, err);
        if (!text.bytes) return WEIR_E_NOMEM;
        for (size_t i = next; i < cli->args.n_positional; i++) {
            size_t m = strlen(cli->args.positional[i]);
            memcpy(text.bytes + text.n, cli->args.positional[i], m);
            text.bytes[text.n + m] = ' ';
            text.n += m + 1;
        }
    } else {
        code = wr_cli_text_read(cli, next, TEXT_MAX, &text, err);
        if (code) return code;
    }
    code = wr_cli_parse_ids(text.bytes, text.n, true, &cli->ledger, ids, n, err);
    wr_mem_free(text.bytes);
    return code;
}

int wr_cli_cmd_detokenize(struct wr_cli *cli, weir_err *err)
{
    weir_engine *engine = NULL;
    size_t next, n = 0, total = 0;
    int32_t *ids = NULL;
    char *all = NULL;
    const char *bytes = NULL;
    bool special = cli->args.count[WR_CLI_SPECIAL] > 0;
    int code = open_text(cli, &engine, &next, err);
    if (code) return code;
    code = read_ids(cli, next, &ids, &n, err);
    size_t length;
    for (size_t i = 0; code == 0 && i < n; i++) {
        code = weir_token_bytes(engine, i ? ids[i - 1] : -1, ids[i], special, &bytes, &length, err);
        if (code == 0) total += length;
    }
    if (code) goto done;
    /* A character may lie in several tokens, so JSON gets the whole text at once. */
    if (cli->json) {
        all = wr_mem_alloc(&cli->ledger, WR_ACCOUNT_TEXT, total, err);
        if (!all) {
            code = WEIR_E_NOMEM;
            goto done;
        }
    }
    size_t at = 0;
    for (size_t i = 0; code == 0 && i < n; i++) {
        code = weir_token_bytes(engine, i ? ids[i - 1] : -1, ids[i], special, &bytes, &length, err);
        if (code) break;
        if (all)
            memcpy(all + at, bytes, length);
        else
            wr_cli_put(&cli->out, bytes, length);
        at += length;
    }
    if (code == 0 && all) {
        wr_cli_json_begin(&cli->out);
        wr_cli_json_add(&cli->out, "text", wr_cli_json_text(all, total));
        wr_cli_json_end(&cli->out);
    } else if (code == 0 && isatty(STDOUT_FILENO)) {
        wr_cli_put(&cli->out, "\n", 1);
    }

done:
    wr_mem_free(all);
    wr_mem_free(ids);
    weir_engine_close(engine);
    return code;
}
