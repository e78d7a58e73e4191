/* SPDX-License-Identifier: Apache-2.0 */
/* The table and the picture of a probe; the measuring is the engine's. */
#include "cli/cli.h"
#include "cli/plot.h"
#include "cli/store.h"
#include "engine/tools.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ENGINES 2
static const char *const engines[ENGINES] = {"uring", "pread"};

static double real(const json_t *object, const char *name) { return json_number_value(json_object_get(object, name)); }
static uint64_t whole(const json_t *object, const char *name) { return (uint64_t)json_integer_value(json_object_get(object, name)); }
static const char *string(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* "12.3" of value / unit, or "-" of what was not measured. */
static const char *amount(double value, double unit, char text[16])
{
    snprintf(text, 16, value > 0 ? "%.*f" : "-", value / unit < 10 ? 2 : value / unit < 1000 ? 1 : 0, value / unit);
    return text;
}

/* A series of the disk's surface: one engine, one number of requests in flight, sizes ascending. */
struct series {
    char name[32];
    double bytes[16], rate[16];
    size_t n;
};

static void take_series(struct series *s, const json_t *surface, const char *engine, uint64_t depth, bool direct)
{
    snprintf(s->name, sizeof s->name, "%s, %llu in flight", engine, (unsigned long long)depth);
    s->n = 0;
    for (size_t i = 0; i < json_array_size(surface) && s->n < sizeof s->bytes / sizeof *s->bytes; i++) {
        const json_t *point = json_array_get(surface, i);
        if (strcmp(string(point, "engine"), engine) != 0 || whole(point, "depth") != depth || json_is_true(json_object_get(point, "direct")) != direct)
            continue;
        s->bytes[s->n] = (double)whole(point, "bytes");
        s->rate[s->n++] = real(point, "rate");
    }
}

static const unsigned depths[] = {1, 4, 8, 16};
#define DEPTHS (sizeof depths / sizeof depths[0])

static double rate_of(const struct series *s, double bytes)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->bytes[i] == bytes) return s->rate[i];
    return 0;
}

/* Rows are sizes, columns numbers of requests in flight. */
static void put_surface(struct wr_cli_out *out, const json_t *disk)
{
    const json_t *surface = json_object_get(disk, "surface");
    const bool direct = json_is_true(json_object_get(disk, "direct"));
    char a[32], text[16];
    for (size_t e = 0; e < ENGINES; e++) {
        struct series s[DEPTHS];
        size_t n = 0;
        for (size_t d = 0; d < DEPTHS; d++) {
            take_series(&s[d], surface, engines[e], depths[d], direct);
            n += s[d].n;
        }
        if (n == 0) continue;
        wr_cli_printf(out, "  %-14s", engines[e]);
        for (size_t d = 0; d < DEPTHS; d++) wr_cli_printf(out, " %6u in flight", depths[d]);
        wr_cli_printf(out, "  MB/s\n");
        uint64_t before = 0;
        for (size_t i = 0; i < json_array_size(surface); i++) {
            const uint64_t bytes = whole(json_array_get(surface, i), "bytes");
            if (bytes <= before) continue; /* sizes ascend; then come those of the other way through the page cache */
            before = bytes;
            wr_cli_printf(out, "  %14s", wr_cli_size(bytes, a));
            for (size_t d = 0; d < DEPTHS; d++) wr_cli_printf(out, " %16s", amount(rate_of(&s[d], (double)bytes), 1e6, text));
            wr_cli_printf(out, "\n");
        }
    }
}

static void put_disk(struct wr_cli_out *out, const json_t *about)
{
    const json_t *disk = json_object_get(about, "disk");
    char a[32], b[32];
    wr_cli_printf(out, "disk             %s", string(about, "file_system"));
    wr_cli_printf(out, ": random reads, %s, of a file of %s; %s read\n", json_is_true(json_object_get(disk, "direct")) ? "direct" : "through the page cache",
        wr_cli_size(whole(disk, "file_bytes"), a), wr_cli_size(whole(disk, "bytes_read"), b));
    put_surface(out, disk);
    wr_cli_printf(
        out, "  1 MiB, 8 in flight: %.0f MB/s; best %.0f MB/s, ratio %.2f\n", real(disk, "rate") * 1e-6, real(disk, "ceiling") * 1e-6, real(disk, "ratio"));
    if (real(disk, "first") > 0) wr_cli_printf(out, "  at first, after a pause: %.0f MB/s\n", real(disk, "first") * 1e-6);
    const json_t *together = json_object_get(json_object_get(about, "passes"), "together");
    wr_cli_printf(out, "  passes, over the longer of reading and computing:");
    for (size_t i = 0; i < json_array_size(together); i++)
        wr_cli_printf(out, "%s %.2f where reading takes %.2f of computing", i > 0 ? "," : "", 1 + real(json_array_get(together, i), "longer"),
            real(json_array_get(together, i), "reading_over_computing"));
    wr_cli_printf(out, "\n");
}

static void put_threads(struct wr_cli_out *out, const json_t *about)
{
    const json_t *rates = json_object_get(json_object_get(about, "memory"), "rate"), *threads = json_object_get(json_object_get(about, "compute"), "threads");
    char a[16], b[16], c[16], d[16], e[16];
    wr_cli_printf(out, "threads          memory GB/s   f32 GFLOPS   int8 GOPS  int16 GOPS   attention GB/s ratio  of 256 rows GFLOPS ratio   stage us\n");
    for (size_t i = 0; i < json_array_size(threads); i++) {
        const json_t *t = json_array_get(threads, i);
        wr_cli_printf(out, "  %5llu        %11s %12s %11s %11s %14s %7.2f %19s %7.2f %10.2f\n", (unsigned long long)whole(t, "threads"),
            amount(real(json_array_get(rates, i), "rate"), 1e9, a), amount(real(t, "f32"), 1e9, b), amount(real(t, "int8"), 1e9, c),
            amount(real(t, "int16"), 1e9, d), amount(real(t, "attention"), 1e9, e), real(t, "attention_ratio"),
            amount(real(t, "attention_many"), 1e9, (char[16]){0}), real(t, "attention_many_ratio"), real(t, "stage_seconds") * 1e6);
    }
}

static void put_formats(struct wr_cli_out *out, const json_t *about, bool all)
{
    const json_t *compute = json_object_get(about, "compute"), *formats = json_object_get(compute, "formats"), *threads = json_object_get(compute, "threads");
    const uint64_t most = whole(json_array_get(threads, json_array_size(threads) - 1), "threads");
    char a[16], b[16], c[16], d[16];
    wr_cli_printf(out, "products         threads   one row GB/s   ceiling  ratio   256 rows GOPS   ceiling  ratio\n");
    for (size_t i = 0; i < json_array_size(formats); i++) {
        const json_t *f = json_array_get(formats, i);
        if (!all && whole(f, "threads") != most) continue;
        wr_cli_printf(out, "  %-6s %-6s %9llu %14s %9s %6.2f %15s %9s %6.2f\n", string(f, "format"), string(f, "activations"),
            (unsigned long long)whole(f, "threads"), amount(real(f, "decode"), 1e9, a), amount(real(f, "decode_ceiling"), 1e9, b), real(f, "decode_ratio"),
            amount(real(f, "prefill"), 1e9, c), amount(real(f, "prefill_ceiling"), 1e9, d), real(f, "prefill_ratio"));
    }
}

static void put_table(struct wr_cli_out *out, const json_t *about, bool all)
{
    wr_cli_printf(out, "machine          %s, %llu CPUs, %s; measured in %.0f s, steady to %.2f\n", string(about, "cpu"),
        (unsigned long long)whole(about, "cpus"), string(about, "isa"), real(about, "seconds"), real(about, "steady"));
    put_disk(out, about);
    put_threads(out, about);
    put_formats(out, about, all);
    const char *stored = string(about, "profile");
    wr_cli_printf(out, "profile          ");
    wr_cli_put_escaped(out, *stored ? stored : "not stored", WR_CLI_PATH);
    wr_cli_printf(out, "\n");
}

static int draw(struct wr_cli *cli, const json_t *about, const char *path, weir_err *err)
{
    const json_t *disk = json_object_get(about, "disk");
    const bool direct = json_is_true(json_object_get(disk, "direct"));
    char subtitle[200];
    struct series s[ENGINES * DEPTHS];
    snprintf(subtitle, sizeof subtitle, "%s, %s, %s", string(about, "cpu"), string(about, "file_system"), direct ? "direct" : "through the page cache");
    struct wr_plot plot = {.title = "Random reads of the disk",
        .subtitle = subtitle,
        .x_label = "bytes of a request",
        .y_label = "MB/s",
        .x_scale = WR_PLOT_LOG,
        .x_bytes = true,
        .y_zero = true};
    for (size_t e = 0; e < ENGINES; e++)
        for (size_t d = 0; d < DEPTHS; d++) {
            struct series *to = &s[plot.n_series];
            take_series(to, json_object_get(disk, "surface"), engines[e], depths[d], direct);
            for (size_t i = 0; i < to->n; i++) to->rate[i] *= 1e-6;
            if (to->n > 0) plot.series[plot.n_series++] = (struct wr_plot_series){to->name, to->bytes, to->rate, to->n};
        }
    return wr_plot_svg(cli, &plot, path, err);
}

/* The folder of models where there is one, else the current one. */
static const char *default_folder(char path[WR_CLI_PATH])
{
    const char *store;
    struct stat about;
    return wr_cli_store_folder(0, &store, path) && stat(path, &about) == 0 && S_ISDIR(about.st_mode) ? path : ".";
}

/* What would be refused when all is measured is refused before. */
static int check_place(struct wr_cli *cli, const char *path, weir_err *err)
{
    struct wr_outfile file;
    int code = wr_cli_file_open(&file, path, &cli->ledger, err);
    wr_cli_file_discard(&file);
    return code;
}

int wr_cli_cmd_probe(struct wr_cli *cli, weir_err *err)
{
    const struct wr_cli_args *args = &cli->args;
    char path[WR_CLI_PATH];
    uint64_t seconds = 45;
    json_t *about = NULL;
    const char *picture = args->count[WR_CLI_OUT] ? args->value[WR_CLI_OUT] : NULL;
    int code = wr_cli_no_more_arguments(cli, 1, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_SECONDS, 1, 3600, &seconds, err);
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0 && picture) code = check_place(cli, picture, err);
    if (code) return code;
    const wr_probe_options how = {
        .folder = args->n_positional > 0 ? args->positional[0] : default_folder(path),
        .seconds = (double)seconds,
        .options = &cli->options,
    };
    code = wr_tool_probe(&how, &about, err);
    wr_cli_progress_clear(cli);
    if (code == 0 && !cli->json) put_table(&cli->out, about, cli->verbose > 0);
    if (code == 0 && picture) code = draw(cli, about, picture, err);
    if (code == 0 && cli->json) { /* or the error alone */
        json_object_set_new(about, "folder", wr_cli_json_string(how.folder));
        json_object_set_new(about, "warnings", wr_cli_json_warnings(cli));
        wr_cli_json_value(&cli->out, about);
        wr_cli_put(&cli->out, "\n", 1);
    }
    json_decref(about);
    return code;
}
