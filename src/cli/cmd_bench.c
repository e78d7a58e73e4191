/* SPDX-License-Identifier: Apache-2.0 */
/* weir bench: options for the harness, its rows as a table, as JSON and as TSV. */
#include "base/os.h"
#include "cli/plot.h"
#include "engine/tools.h"

#include <stdio.h>
#include <string.h>

#define LEAST_WIDTH 20 /* no shape with its depth is longer and fits into a memory; of decode, names are */
#define COMMON "threads cpu memory runs tsv json quiet verbose help"

struct bench {
    struct wr_cli *cli;
    wr_bench_options how;
    json_t *rows;          /* with --json */
    struct wr_outfile tsv; /* with --tsv FILE */
    bool tsv_file, tsv_out;
    uint64_t tsv_bytes, n_rows;
    size_t width; /* of the table's first column */
};

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = words; (s = strstr(s, word)) != NULL; s += n)
        if ((s == words || s[-1] == ' ') && (s[n] == ' ' || !s[n])) return true;
    return false;
}

static const char *bench_name(size_t i)
{
    const char *summary, *options;
    return i <= UINT32_MAX ? wr_tool_bench_name((uint32_t)i, &summary, &options) : NULL;
}

/* "MODEL" or "[MODEL]". */
static bool is_model(const char *words) { return !strncmp(words, "MODEL", 5) || !strncmp(words, "[MODEL]", 7); }

static void list_json(struct wr_cli *cli)
{
    const char *name, *summary, *options;
    json_t *all = json_array();
    for (uint32_t i = 0; (name = wr_tool_bench_name(i, &summary, &options)); i++) {
        json_t *taken = json_array();
        for (const char *s = options; *s; s += strcspn(s, " "), s += strspn(s, " "))
            if (!is_model(s)) json_array_append_new(taken, json_stringn(s, strcspn(s, " ")));
        json_array_append_new(all, json_pack("{s:s, s:s, s:b, s:o}", "name", name, "description", summary, "model", is_model(options), "options", taken));
    }
    wr_cli_json_begin(&cli->out);
    wr_cli_json_add(&cli->out, "benchmarks", all);
    wr_cli_json_end(&cli->out);
}

static void list(struct wr_cli *cli)
{
    const char *name, *summary, *options;
    if (cli->json) {
        list_json(cli);
        return;
    }
    for (uint32_t i = 0; (name = wr_tool_bench_name(i, &summary, &options)); i++) {
        wr_cli_printf(&cli->out, "%-10s %s\n           ", name, summary);
        for (const char *s = options; *s; s += strcspn(s, " "), s += strspn(s, " ")) {
            wr_cli_printf(&cli->out, is_model(s) ? " " : " --");
            wr_cli_put(&cli->out, s, strcspn(s, " "));
        }
        wr_cli_put(&cli->out, "\n", 1);
    }
}

/* What this benchmark would not look at is refused, unless the environment says it to all commands. */
static int check_options(const struct wr_cli_args *args, const char *what, const char *options, weir_err *err)
{
    for (size_t i = 0; i < args->n_items; i++) {
        enum wr_cli_option_id id = args->items[i].option;
        const char *name = wr_cli_options[id].name;
        if (args->from_environment[id] || has_word(COMMON, name) || (id == WR_CLI_MODEL ? is_model(options) : has_word(options, name))) continue;
        return wr_err(err, WEIR_E_USAGE, "weir bench %s has no use for --%s; 'weir bench list' shows what each benchmark takes", what, name);
    }
    return 0;
}

static const char *verdict(const wr_bench_row *row, char text[64])
{
    if (row->outputs_verified == 0) return "NOT VERIFIED";
    if (row->outputs_verified == row->outputs) return "yes";
    snprintf(text, 64, "%.1f %% of the outputs", 100 * (double)row->outputs_verified / (double)row->outputs);
    return text;
}

static const char *rate_text(double rate, const char *unit, char text[32])
{
    if (!strcmp(unit, "ops/s"))
        snprintf(text, 32, "%.1f GOPS", rate * 1e-9);
    else if (!strcmp(unit, "bytes/s"))
        snprintf(text, 32, "%.2f GB/s", rate * 1e-9);
    else
        snprintf(text, 32, "%.2f %s", rate, unit);
    return text;
}

static const char *size_of(const json_t *more, const char *name, char text[32])
{
    return wr_cli_size((uint64_t)json_integer_value(json_object_get(more, name)), text);
}

static double number_of(const json_t *more, const char *name) { return json_real_value(json_object_get(more, name)); }
static const char *word_of(const json_t *more, const char *name) { return json_string_value(json_object_get(more, name)); }

/* What decode says beyond the columns of the table. */
static void print_decode(struct wr_cli_out *out, const json_t *more)
{
    char a[32], b[32], c[32];
    wr_cli_printf(out, "  %s: pinned %s, streamed %s, slots of the ring %s;", word_of(more, "residency"), size_of(more, "pinned", a),
        size_of(more, "streamed", b), size_of(more, "ring", c));
    wr_cli_printf(out, " budget %s, peak %s\n", size_of(more, "budget", a), size_of(more, "peak_rss", b));
    wr_cli_printf(out, "  a token reads %s (planned %s) by %s%s and waits %.3f ms for it; ", size_of(more, "bytes_per_token", a),
        size_of(more, "bytes_per_token_planned", b), word_of(more, "io"), json_is_true(json_object_get(more, "direct")) ? ", direct," : "",
        number_of(more, "stall_io") * 1e3);
    if (json_is_real(json_object_get(more, "disk_rate"))) wr_cli_printf(out, "the disk gives %s, ", rate_text(number_of(more, "disk_rate"), "bytes/s", a));
    wr_cli_printf(out, "memory gives %s\n  the last logits hash to %s (FNV-1a)%s\n", rate_text(number_of(more, "memory_rate"), "bytes/s", a),
        word_of(more, "logits_fnv64"), json_is_true(json_object_get(more, "as_reference")) ? ", as those of the reference kernels do" : "");
}

/* What stream says beyond them. What was generated is no text: it is said with every row. */
static void print_stream(struct wr_cli_out *out, const json_t *more)
{
    char a[32], b[32], c[32];
    wr_cli_printf(out, "  keys and values: generated, not computed by a model; %s read by a pass of %.3f s, %.2f of what the disk gives (%s, %.3f s)\n",
        size_of(more, "bytes", a), number_of(more, "seconds"), number_of(more, "ratio_to_disk"), rate_text(number_of(more, "disk_rate"), "bytes/s", b),
        number_of(more, "floor_seconds"));
    if (json_is_true(json_object_get(more, "as_reference")))
        wr_cli_printf(out, "  the last logits are those of the reference kernels over the same keys and values\n");
    const json_t *ratio = json_object_get(more, "ratio_to_one"), *crossover = json_object_get(more, "crossover");
    if (json_is_real(ratio) && json_integer_value(json_object_get(more, "k")) > 1) {
        wr_cli_printf(out, "  it takes %.2f times a pass of one row", json_real_value(ratio));
        if (json_is_integer(crossover))
            wr_cli_printf(out, ": rows have begun to cost time, 1.25 times is reached at K = %lld", (long long)json_integer_value(crossover));
        wr_cli_put(out, "\n", 1);
    }
    wr_cli_printf(out, "  a pass waits %.3f s for reads; ", number_of(more, "stall_io"));
    if (json_is_real(json_object_get(more, "memory_rate")))
        wr_cli_printf(out, "from memory the same rows take keys and values at %s, beside a reader at %s, and that reads at %s beside them;\n  ",
            rate_text(number_of(more, "memory_rate"), "bytes/s", b), rate_text(number_of(more, "memory_rate_beside"), "bytes/s", c),
            rate_text(number_of(more, "disk_rate_beside"), "bytes/s", a));
    wr_cli_printf(out, "filled at %s; peak of the process %s\n", rate_text(number_of(more, "fill_rate"), "bytes/s", b), size_of(more, "peak_rss", a));
}

/* Characters, of which UTF-8 begins each with a byte of its own. */
static size_t columns(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += (*text & 0xC0) != 0x80;
    return n;
}

static void put_padded(struct wr_cli_out *out, const char *text, size_t width)
{
    wr_cli_printf(out, "%s", text);
    for (size_t n = columns(text); n < width; n++) wr_cli_put(out, " ", 1);
}

static void print_row(struct bench *b, const wr_bench_row *row)
{
    struct wr_cli_out *out = &b->cli->out;
    char rate[32], ceiling[32] = "unknown", ratio[16] = "", text[64];
    if (b->n_rows == 0) {
        size_t n = columns(row->shape);
        b->width = n > LEAST_WIDTH ? n : LEAST_WIDTH;
        put_padded(out, "shape", b->width);
        wr_cli_printf(out, " %-7s %6s %16s %16s %-7s %6s %13s %13s %8s  %s\n", "format", "m", "rate", "ceiling", "", "ratio", "compute", "end to end", "spread",
            "verified");
    }
    if (row->ceiling > 0) {
        rate_text(row->ceiling, row->unit, ceiling);
        snprintf(ratio, sizeof ratio, "%.2f", row->rate / row->ceiling);
    }
    put_padded(out, row->shape, b->width);
    wr_cli_printf(out, " %-7s %6llu %16s %16s %-7s %6s %10.3f ms %10.3f ms %6.1f %%  %s%s\n", row->format, (unsigned long long)row->m,
        rate_text(row->rate, row->unit, rate), ceiling, row->bound ? row->bound : "", ratio, row->seconds_compute * 1e3, row->seconds_end_to_end * 1e3,
        row->spread * 100, verdict(row, text), row->noisy ? ", noisy" : "");
    if (!strcmp(b->how.what, "decode")) print_decode(out, row->more);
    if (!strcmp(b->how.what, "stream")) print_stream(out, row->more);
}

/* Every member, in the order of the columns of the TSV. */
static json_t *json_row(const wr_bench_row *row)
{
    bool checked = row->outputs_verified > 0;
    const struct {
        const char *name;
        json_t *value;
    } members[] = {{"shape", wr_cli_json_string(row->shape)}, {"format", wr_cli_json_string(row->format)}, {"m", json_integer((json_int_t)row->m)},
        {"unit", wr_cli_json_string(row->unit)}, {"rate", json_real(row->rate)}, {"ceiling", wr_cli_json_rate(row->ceiling)},
        {"bound", wr_cli_json_string(row->bound)}, {"ratio", wr_cli_json_rate(row->ceiling > 0 ? row->rate / row->ceiling : 0)},
        {"verified", json_boolean(checked && row->outputs_verified == row->outputs)}, {"median", json_real(row->median)}, {"best", json_real(row->best)},
        {"waited", json_real(row->waited)}, {"spread", json_real(row->spread)}, {"noisy", json_boolean(row->noisy)},
        {"seconds_compute", json_real(row->seconds_compute)}, {"seconds_end_to_end", json_real(row->seconds_end_to_end)},
        {"outputs", json_integer((json_int_t)row->outputs)}, {"outputs_verified", json_integer((json_int_t)row->outputs_verified)},
        {"max_rel_error", checked ? json_real(row->max_rel_error) : json_null()}, {"threads", json_integer((json_int_t)row->threads)},
        {"isa", wr_cli_json_string(row->isa)}};
    json_t *all = json_object();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) json_object_set_new(all, members[i].name, members[i].value);
    if (row->more) json_object_update(all, row->more);
    return all;
}

#define MAX_SECONDS 3600 /* of soak */

/* Rates and clock of each second, as shares of the ceiling and of the highest clock. */
static void chart(struct bench *b, const wr_bench_row *row)
{
    const json_t *rates = row->more ? json_object_get(row->more, "rates") : NULL, *clock = row->more ? json_object_get(row->more, "clock_hz") : NULL;
    static double x[MAX_SECONDS], y[MAX_SECONDS], hz[MAX_SECONDS];
    size_t n = json_array_size(rates);
    double highest = 0;
    if (n == 0 || n > MAX_SECONDS || !(row->ceiling > 0)) return;
    for (size_t i = 0; i < n; i++) {
        x[i] = (double)i + 1;
        y[i] = json_real_value(json_array_get(rates, i)) / row->ceiling;
        hz[i] = json_real_value(json_array_get(clock, i));
        if (hz[i] > highest) highest = hz[i];
    }
    for (size_t i = 0; i < n; i++) hz[i] /= highest;
    char clock_name[48];
    snprintf(clock_name, sizeof clock_name, "clock / %.2f GHz", highest * 1e-9);
    const struct wr_plot plot = {.title = "soak",
        .subtitle = row->isa,
        .x_label = "second",
        .y_label = "share",
        .y_zero = true,
        .series = {{"rate / ceiling", x, y, n}, {clock_name, x, hz, n}},
        .n_series = 2};
    wr_plot_text(&b->cli->out, &plot, 100, 20);
    wr_cli_printf(&b->cli->out, "of the ceiling: first second %.2f, last %.2f, lowest %.2f\n", json_real_value(json_object_get(row->more, "first")),
        json_real_value(json_object_get(row->more, "last")), json_real_value(json_object_get(row->more, "lowest")));
}

static int put_tsv(struct bench *b, const char *text, size_t n, weir_err *err)
{
    if (b->tsv_out) wr_cli_put(&b->cli->out, text, n);
    if (!b->tsv_file) return 0;
    b->tsv_bytes += n;
    return wr_outfile_write(&b->tsv, b->tsv_bytes - n, text, n, err);
}

/* The columns are the members of a row; the first one brings their names along. */
static int tsv_row(struct bench *b, const json_t *row, weir_err *err)
{
    const char *name;
    json_t *value;
    char head[2048], line[2048];
    size_t n = 0, n_head = 0;
    json_object_foreach((json_t *)row, name, value)
    {
        if (json_is_array(value)) continue;
        char text[256] = "";
        if (json_is_string(value)) snprintf(text, sizeof text, "%s", json_string_value(value));
        if (json_is_real(value)) snprintf(text, sizeof text, "%.9g", json_real_value(value));
        if (json_is_integer(value)) snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        if (json_is_boolean(value)) snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
        n += (size_t)snprintf(line + n, n < sizeof line ? sizeof line - n : 0, n ? "\t%s" : "%s", text);
        n_head += (size_t)snprintf(head + n_head, n_head < sizeof head ? sizeof head - n_head : 0, n_head ? "\t%s" : "%s", name);
        if (n >= sizeof line - 1 || n_head >= sizeof head - 1) return wr_err(err, WEIR_E_FAIL, "a row of the TSV has more than %zu bytes", sizeof line);
    }
    line[n++] = head[n_head++] = '\n';
    int code = b->n_rows == 0 ? put_tsv(b, head, n_head, err) : 0;
    return code ? code : put_tsv(b, line, n, err);
}

static int take_row(void *user, const wr_bench_row *row, weir_err *err)
{
    struct bench *b = user;
    json_t *members = json_row(row);
    int code = members ? 0 : wr_err(err, WEIR_E_NOMEM, "no memory for a row");
    wr_cli_progress_clear(b->cli);
    if (code == 0 && !b->rows && !b->tsv_out) {
        print_row(b, row);
        chart(b, row);
    }
    if (code == 0 && (b->tsv_out || b->tsv_file)) code = tsv_row(b, members, err);
    if (code == 0) code = wr_cli_flush(&b->cli->out, err);
    if (code == 0 && b->rows) json_array_append(b->rows, members);
    json_decref(members);
    b->n_rows++;
    return code;
}

static int measure(struct bench *b, weir_err *err)
{
    struct wr_cli *cli = b->cli;
    const struct wr_cli_args *args = &cli->args;
    uint64_t runs = strcmp(b->how.what, "stream") ? 20 : 3, seconds = 60;
    int code = wr_cli_u64(args, WR_CLI_RUNS, 1, 1000, &runs, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_SECONDS, 1, 3600, &seconds, err);
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code) return code;
    b->how.engine = cli->options;
    b->how.types = args->value[WR_CLI_TYPE];
    b->how.shapes = args->value[WR_CLI_SHAPE];
    b->how.rows = args->value[WR_CLI_ROWS];
    b->how.depths = args->value[WR_CLI_DEPTH];
    b->how.kv = args->value[WR_CLI_KV];
    b->how.seconds = (double)seconds;
    b->how.began = wr_cli_doomed_model;
    b->how.control = args->value[WR_CLI_CONTROL];
    b->how.n_runs = (uint32_t)runs;
    const char *tsv = args->value[WR_CLI_TSV];
    b->tsv_out = tsv && !strcmp(tsv, "-");
    b->tsv_file = tsv && !b->tsv_out;
    if (b->tsv_out && cli->json) return wr_err(err, WEIR_E_USAGE, "--json and --tsv - are both for standard output; give --tsv a file");
    if (b->tsv_file) code = wr_cli_file_open(&b->tsv, tsv, &cli->ledger, err);
    if (code) return code;
    if (cli->json) b->rows = json_array();
    code = wr_tool_bench(&b->how, take_row, b, err);
    wr_cli_progress_clear(cli);
    if (code == 0 && b->tsv_file) code = wr_outfile_commit(&b->tsv, err);
    if (b->tsv_file) wr_cli_file_discard(&b->tsv);
    return code;
}

int wr_cli_cmd_bench(struct wr_cli *cli, weir_err *err)
{
    struct wr_cli_args *args = &cli->args;
    struct bench b = {.cli = cli};
    const char *name, *summary, *options;
    if (args->n_positional == 0) return wr_err(err, WEIR_E_USAGE, "no benchmark; 'weir bench list' prints them");
    const char *what = args->positional[0];
    args->n_positional--;
    memmove(args->positional, args->positional + 1, args->n_positional * sizeof *args->positional);
    size_t n = 0, next = 0;
    while (bench_name(n)) n++;
    if (!strcmp(what, "list")) {
        int code = wr_cli_no_more_arguments(cli, 0, err);
        if (code == 0) list(cli);
        return code;
    }
    for (uint32_t i = 0; (name = wr_tool_bench_name(i, &summary, &options)) && strcmp(name, what);) i++;
    if (!name) {
        const char *near = wr_cli_nearest(what, bench_name, n);
        if (near) return wr_err(err, WEIR_E_USAGE, "weir bench does not measure '%.60s'; did you mean '%s'?", what, near);
        return wr_err(err, WEIR_E_USAGE, "weir bench does not measure '%.60s'; 'weir bench list' prints what it does", what);
    }
    b.how.what = name;
    int code = check_options(args, what, options, err);
    bool model = has_word(options, "MODEL") || (is_model(options) && (args->n_positional > 0 || args->count[WR_CLI_MODEL]));
    if (code == 0 && model) code = wr_cli_model_path(cli, &b.how.model, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next, err);
    if (code == 0) code = measure(&b, err);
    if (code == 0 && cli->json) {
        char cpu[64];
        wr_os_cpu_name("", cpu, sizeof cpu);
        json_t *warnings = json_array();
        for (uint32_t i = 0; i < cli->n_warnings && i < WR_CLI_WARNINGS; i++) json_array_append_new(warnings, wr_cli_json_string(cli->warning[i]));
        wr_cli_json_begin(&cli->out);
        wr_cli_json_add(&cli->out, "bench", json_string(name));
        wr_cli_json_add(&cli->out, "cpu", wr_cli_json_string(cpu));
        wr_cli_json_add(&cli->out, "runs", json_integer(b.how.n_runs));
        wr_cli_json_add(&cli->out, "rows", json_incref(b.rows));
        wr_cli_json_add(&cli->out, "warnings", warnings);
        wr_cli_json_end(&cli->out);
    }
    json_decref(b.rows);
    return code;
}
