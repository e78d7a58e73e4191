/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume MODEL IDS QUERIES [NAME=VALUE]...: one session, in which each query of QUERIES in turn follows the tokens of IDS (both files of int32). A prefix that
 * the session holds already is not evaluated again: a query goes back to the end of IDS. A line for each query: the likeliest token, the FNV-1a hash of the
 * logits, the tokens that were evaluated for it; then a line of JSON. NAME=VALUE are options of the library.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weir/weir.h>

static void die(const char *what, const weir_err *err)
{
    fprintf(stderr, "resume: %s: %s\n", what, err->text);
    exit(1);
}

static int32_t *read_ids(const char *path, size_t *n)
{
    weir_err none = {.text = "cannot be read"};
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) die(path, &none);
    const long bytes = ftell(file);
    int32_t *ids = malloc((size_t)bytes + sizeof *ids); /* and one for the query behind them */
    rewind(file);
    *n = (size_t)bytes / sizeof *ids;
    if (bytes <= 0 || ids == NULL || fread(ids, sizeof *ids, *n, file) != *n) die(path, &none);
    fclose(file);
    return ids;
}

static void print_line(void *user, enum weir_log_level level, const char *line)
{
    (void)user;
    if (level == WEIR_LOG_WARN) fprintf(stderr, "resume: %s\n", line);
}

static uint64_t hash(const float *x, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n * sizeof *x; i++) h = (h ^ ((const uint8_t *)x)[i]) * 0x100000001b3u;
    return h;
}

int main(int argc, char **argv)
{
    weir_err err = {0};
    weir_options options;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    size_t n, n_queries;
    if (argc < 4) return fprintf(stderr, "resume MODEL IDS QUERIES [NAME=VALUE]...\n"), 2;
    int32_t *ids = read_ids(argv[2], &n), *queries = read_ids(argv[3], &n_queries);
    weir_options_init(&options);
    options.log = print_line;
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value == NULL) return fprintf(stderr, "resume: '%s' is not NAME=VALUE\n", argv[i]), 2;
        *value++ = '\0';
        if (weir_options_set(&options, argv[i], value, &err) != 0) die(argv[i], &err);
    }
    if (weir_plan_open(&plan, argv[1], &options, &err) != 0) die("plan", &err);
    if (weir_engine_open(&engine, plan, &err) != 0) die("open", &err);
    if (weir_session_open(&session, engine, &err) != 0) die("session", &err);
    const weir_plan_info *info = weir_engine_plan(engine);
    uint64_t evaluated = 0;
    for (size_t i = 0; i < n_queries; i++) {
        ids[n] = queries[i];
        if (weir_session_set(session, ids, n + 1, &err) != 0) die("evaluate", &err);
        const float *logits = weir_session_logits(session);
        const weir_session_info stats = weir_session_stats(session);
        uint32_t top = 0;
        for (uint32_t t = 1; t < info->n_vocab; t++)
            if (logits[t] > logits[top]) top = t;
        const uint64_t now = stats.n_prefill + stats.n_decode;
        printf("%u %016" PRIx64 " %" PRIu64 "\n", top, hash(logits, info->n_vocab), now - evaluated);
        evaluated = now;
    }
    const weir_io_info io = weir_engine_io(engine);
    printf("{\"budget\": %" PRIu64 ", \"context\": %u, \"bytes_read\": %" PRIu64 ", \"bytes_written\": %" PRIu64 "}\n", info->budget, info->n_ctx, io.bytes_read,
        io.bytes_written);
    weir_session_close(session);
    weir_engine_close(engine);
    free(ids);
    free(queries);
    return 0;
}
