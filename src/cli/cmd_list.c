/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store.h"
#include "engine/tools.h"

#include <string.h>
#include <sys/stat.h>

struct row {
    const char *store;
    char *name, *path, *error; /* error NULL: weir runs it */
    wr_about about;
};

struct list {
    struct wr_cli *cli;
    struct row *rows; /* in order */
    size_t n, capacity;
};

static int order(const struct row *row, const char *store, const char *name)
{
    /* Backwards: weir's own come first. */
    int c = strcmp(store, row->store);
    return c ? c : strcmp(row->name, name);
}

static int add(void *user, const struct wr_cli_found *found, weir_err *err)
{
    struct list *list = user;
    struct wr_cli *cli = list->cli;
    if (*wr_cli_cancel()) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    int code = wr_cli_grow(&cli->ledger, (void **)&list->rows, &list->capacity, list->n, 1, sizeof *list->rows, err);
    if (code) return code;
    struct row row = {.store = found->store};
    row.name = wr_mem_strdup(&cli->ledger, WR_ACCOUNT_TEXT, found->name, err);
    row.path = wr_mem_strdup(&cli->ledger, WR_ACCOUNT_TEXT, found->path, err);
    if (found->error) row.error = wr_mem_strdup(&cli->ledger, WR_ACCOUNT_TEXT, found->error, err);
    size_t at = list->n;
    while (at > 0 && order(&list->rows[at - 1], row.store, row.name ? row.name : "") > 0) at--;
    memmove(list->rows + at + 1, list->rows + at, (list->n - at) * sizeof *list->rows);
    list->rows[at] = row;
    list->n++;
    return row.name && row.path && (row.error || !found->error) ? 0 : WEIR_E_NOMEM;
}

/* Reads the headers, after the walk: both together would need much stack. */
static int look_into(const struct list *list, weir_err *err)
{
    for (size_t i = 0; i < list->n; i++) {
        struct row *row = &list->rows[i];
        weir_err why = {0};
        struct stat file;
        if (*wr_cli_cancel()) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
        if (!row->error && wr_tool_about(row->path, &row->about, &why) < 0) {
            row->error = wr_mem_strdup(&list->cli->ledger, WR_ACCOUNT_TEXT, why.text, err);
            if (!row->error) return WEIR_E_NOMEM;
        }
        if (row->about.file_bytes == 0 && stat(row->path, &file) == 0 && S_ISREG(file.st_mode)) row->about.file_bytes = (uint64_t)file.st_size;
    }
    return 0;
}

static void put_json(const struct list *list)
{
    struct wr_cli_out *out = &list->cli->out;
    json_t *models = json_array(), *folders = json_array();
    for (size_t i = 0; i < list->n; i++) {
        const struct row *row = &list->rows[i];
        const wr_about *about = &row->about;
        json_array_append_new(
            models, json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "name", wr_cli_json_string(row->name), "store", row->store, "path",
                        wr_cli_json_string(row->path), "arch", wr_cli_json_string(about->arch[0] ? about->arch : NULL), "quantization",
                        wr_cli_json_string(about->quantization[0] ? about->quantization : NULL), "bytes",
                        about->file_bytes ? json_integer((json_int_t)about->file_bytes) : json_null(), "weights",
                        about->n_weights ? json_integer((json_int_t)about->n_weights) : json_null(), "error", wr_cli_json_string(row->error)));
    }
    char path[WR_CLI_PATH];
    const char *store;
    for (size_t i = 0; wr_cli_store_folder(i, &store, path); i++)
        json_array_append_new(folders, json_pack("{s:s, s:o}", "store", store, "path", wr_cli_json_string(path)));
    wr_cli_json_begin(out);
    wr_cli_json_add(out, "models", models);
    wr_cli_json_add(out, "folders", folders);
    wr_cli_json_end(out);
}

static void put_padded(struct wr_cli_out *out, const char *text, size_t width)
{
    uint64_t before = out->written;
    wr_cli_put_escaped(out, text, WR_CLI_PATH);
    for (uint64_t n = out->written - before; n < width; n++) wr_cli_put(out, " ", 1);
}

#define WIDEST 48

static void put_table(const struct list *list)
{
    struct wr_cli_out *out = &list->cli->out;
    size_t width = 4;
    char size[32];
    for (size_t i = 0; i < list->n; i++) {
        size_t n = strlen(list->rows[i].name);
        if (n > width) width = n < WIDEST ? n : WIDEST;
    }
    put_padded(out, "name", width);
    wr_cli_printf(out, "  %-10s %10s  %-6s %s\n", "arch", "size", "type", "path");
    for (size_t i = 0; i < list->n; i++) {
        const struct row *row = &list->rows[i];
        put_padded(out, row->name, width);
        wr_cli_put(out, "  ", 2);
        put_padded(out, row->about.arch[0] ? row->about.arch : "-", 10);
        wr_cli_printf(out, " %10s  %-6s ", row->about.file_bytes ? wr_cli_size(row->about.file_bytes, size) : "-",
            row->about.quantization[0] ? row->about.quantization : "-");
        wr_cli_put_escaped(out, row->path, WR_CLI_PATH);
        wr_cli_put(out, "\n", 1);
        if (!row->error) continue;
        const char *label = wr_file_label(row->path), *reason = row->error;
        size_t n = strlen(label);
        if (!strncmp(reason, label, n) && !strncmp(reason + n, ": ", 2)) reason += n + 2; /* the line above has it */
        wr_cli_printf(out, "    does not run: ");
        wr_cli_put_escaped(out, reason, 400);
        wr_cli_put(out, "\n", 1);
    }
}

int wr_cli_cmd_list(struct wr_cli *cli, weir_err *err)
{
    struct list list = {.cli = cli};
    char path[WR_CLI_PATH];
    const char *store;
    int code = wr_cli_no_more_arguments(cli, 0, err);
    if (code == 0) code = wr_cli_store_each(cli, add, &list, err);
    if (code == 0) code = look_into(&list, err);
    if (code == 0 && cli->json) {
        put_json(&list);
    } else if (code == 0 && list.n > 0) {
        put_table(&list);
    } else if (code == 0) {
        wr_cli_notice(cli, "no models; these folders were looked into:");
        for (size_t i = 0; wr_cli_store_folder(i, &store, path); i++) wr_cli_notice(cli, "  %-6s %s", store, path);
    }
    for (size_t i = 0; i < list.n; i++) {
        wr_mem_free(list.rows[i].name);
        wr_mem_free(list.rows[i].path);
        wr_mem_free(list.rows[i].error);
    }
    wr_mem_free(list.rows);
    return code;
}
