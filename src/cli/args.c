/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN(id) (1u << WR_CLI_CMD_##id)
#define PLANNED (IN(RUN) | IN(CHAT) | IN(PLAN) | IN(EVAL) | IN(BENCH)) /* bench: what bench.def says of each */
#define SAMPLED (IN(RUN) | IN(CHAT))
#define WITH_MODEL (PLANNED | IN(INSPECT) | IN(TOKENIZE) | IN(DETOKENIZE))
#define WITH_JSON                                                                                                                                              \
    (IN(RUN) | IN(CHAT) | IN(PLAN) | IN(LIST) | IN(EVAL) | IN(INSPECT) | IN(TOKENIZE) | IN(DETOKENIZE) | IN(SYNTH) | IN(PROBE) | IN(VERSION) | IN(BENCH))
#define EVERYWHERE ((1u << WR_CLI_N_COMMANDS) - 1)

#define FLAG WR_CLI_FLAG
#define VALUE WR_CLI_VALUE
#define LIST WR_CLI_LIST
#define ENGINE WR_CLI_ENGINE
const struct wr_cli_option wr_cli_options[WR_CLI_N_OPTIONS] = {
#define GROUP(title)
#define OPTION(id, name, letter, argument, kind, standard, help, commands) {name, letter, argument, kind, standard, help, commands},
#include "cli/options.def"
#undef OPTION
#undef GROUP
};

/* ---- the nearest name ------------------------------------------------------------------ */

#define WORD_MAX 32

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits between two words: insert, delete, replace, swap of neighbours. Words of at most WORD_MAX bytes. */
static size_t edits(const char *a, size_t n, const char *b, size_t m)
{
    size_t row[3][WORD_MAX + 1];
    for (size_t j = 0; j <= m; j++) row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = smallest(before[j] + 1, now[j - 1] + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && earlier[j - 2] + 1 < now[j]) now[j] = earlier[j - 2] + 1;
        }
    }
    return row[n % 3][m];
}

const char *wr_cli_nearest(const char *word, const char *(*name)(size_t i), size_t n)
{
    const char *best = NULL;
    size_t length = strlen(word), n_longer = 0;
    if (length == 0 || length > WORD_MAX) return NULL;
    /* A beginning says what was meant better than a name of few other letters does. */
    for (size_t i = 0; i < n; i++) {
        const char *candidate = name(i);
        if (!candidate || strncmp(candidate, word, length) != 0) continue;
        n_longer++;
        best = candidate;
    }
    if (n_longer == 1) return best;
    best = NULL;
    size_t limit = 1 + length / 3, least = limit + 1;
    for (size_t i = 0; i < n; i++) {
        const char *candidate = name(i);
        if (!candidate || strlen(candidate) > WORD_MAX) continue;
        size_t distance = edits(word, length, candidate, strlen(candidate));
        /* A word that shares nothing but its length with the candidate was not meant. */
        if (distance >= least || distance >= strlen(candidate)) continue;
        least = distance;
        best = candidate;
    }
    return best;
}

/* Names that people bring along from other programs, and those of things that are still to come. */
#define LATER " is planned and not in this version"
static const struct {
    const char *option, *say;
} known_elsewhere[] = {
    {"temperature", "; did you mean --temp?"},
    {"n-predict", "; did you mean -n?"},
    {"num-predict", "; did you mean -n?"},
    {"max-tokens", "; did you mean -n?"},
    {"tokens", "; did you mean -n?"},
    {"ctx-size", "; did you mean --ctx?"},
    {"num-ctx", "; did you mean --ctx?"},
    {"context-length", "; did you mean --ctx?"},
    {"n-gpu-layers", ": weir computes on the CPU"},
    {"gpu-layers", ": weir computes on the CPU"},
    {"ngl", ": weir computes on the CPU"},
    {"gpu", ": weir computes on the CPU"},
    {"device", ": weir computes on the CPU"},
    {"policy", LATER},
    {"memory-file", LATER},
};
static const char *const later_commands[] = {"serve", "pack", "trace", "sim"};

static int elsewhere(const char *word, size_t n, weir_err *err)
{
    for (size_t i = 0; i < sizeof known_elsewhere / sizeof known_elsewhere[0]; i++) {
        const char *option = known_elsewhere[i].option, *say = known_elsewhere[i].say;
        if (strlen(option) != n || memcmp(option, word, n) != 0) continue;
        if (say[0] == ' ') return wr_err(err, WEIR_E_USAGE, "--%s%s", option, say);
        return wr_err(err, WEIR_E_USAGE, "unknown option --%s%s", option, say);
    }
    return 0;
}

static const char *command_name(size_t i) { return wr_cli_commands[i].name; }

enum wr_cli_command_id wr_cli_command_find(const char *name, weir_err *err)
{
    for (size_t i = 0; i < WR_CLI_N_COMMANDS; i++)
        if (!strcmp(name, wr_cli_commands[i].name)) return (enum wr_cli_command_id)i;
    const char *near = wr_cli_nearest(name, command_name, WR_CLI_N_COMMANDS);
    for (size_t i = 0; i < sizeof later_commands / sizeof later_commands[0]; i++) {
        if (strcmp(name, later_commands[i]) != 0) continue;
        wr_err(err, WEIR_E_USAGE, "'weir %s'" LATER "; 'weir help' lists what there is", name);
        return WR_CLI_N_COMMANDS;
    }
    if (name[0] == '-' && !near)
        wr_err(err, WEIR_E_USAGE, "'%.80s' comes before the command: write weir COMMAND and then the options ('weir help' lists the commands)", name);
    else if (near)
        wr_err(err, WEIR_E_USAGE, "unknown command '%.80s'; did you mean '%s'?", name, near);
    else
        wr_err(err, WEIR_E_USAGE, "unknown command '%.80s'; 'weir help' lists the commands", name);
    return WR_CLI_N_COMMANDS;
}

/* ---- parsing --------------------------------------------------------------------------- */

void wr_cli_environment_name(enum wr_cli_option_id id, char buffer[64])
{
    size_t n = 0;
    for (const char *s = "WEIR_"; *s; s++) buffer[n++] = *s;
    for (const char *s = wr_cli_options[id].name; *s && n < 63; s++) buffer[n++] = *s == '-' ? '_' : (*s >= 'a' && *s <= 'z') ? (char)(*s - 'a' + 'A') : *s;
    buffer[n] = 0;
}

const char *wr_cli_option_origin(const struct wr_cli_args *args, enum wr_cli_option_id id, char buffer[64])
{
    const char *name = wr_cli_options[id].name;
    if (args->from_environment[id])
        wr_cli_environment_name(id, buffer);
    else
        snprintf(buffer, 64, "%s%s", name[1] ? "--" : "-", name);
    return buffer;
}

static void take(struct wr_cli_args *args, enum wr_cli_option_id id, const char *value)
{
    args->value[id] = value;
    args->count[id]++;
    args->items[args->n_items++] = (struct wr_cli_item){.option = id, .value = value};
}

static bool in_command(size_t id, enum wr_cli_command_id command) { return wr_cli_options[id].commands >> command & 1; }

/* The name function of wr_cli_nearest has no context; the parser runs once, before any thread. */
static enum wr_cli_command_id suggest_for;
static const char *option_name(size_t i) { return in_command(i, suggest_for) ? wr_cli_options[i].name : NULL; }

static int unknown(enum wr_cli_command_id command, const char *word, weir_err *err)
{
    suggest_for = command;
    const char *near = wr_cli_nearest(word, option_name, WR_CLI_N_OPTIONS);
    const char *name = wr_cli_commands[command].name;
    if (near) return wr_err(err, WEIR_E_USAGE, "unknown option --%.80s; did you mean --%s?", word, near);
    return wr_err(err, WEIR_E_USAGE, "unknown option --%.80s; 'weir help %s' lists the options", word, name);
}

/* An option of other commands only: names the first of them. */
static int misplaced(enum wr_cli_command_id command, size_t id, weir_err *err)
{
    size_t owner = 0;
    while (!in_command(id, (enum wr_cli_command_id)owner)) owner++;
    return wr_err(err, WEIR_E_USAGE, "--%s is an option of 'weir %s', not of 'weir %s'", wr_cli_options[id].name, wr_cli_commands[owner].name,
        wr_cli_commands[command].name);
}

static int parse_long(struct wr_cli_args *args, const char *word, const char *next, bool *used_next, weir_err *err)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    size_t id = 0;
    while (id < WR_CLI_N_OPTIONS && (strlen(wr_cli_options[id].name) != length || memcmp(word, wr_cli_options[id].name, length) != 0)) id++;
    if (id == WR_CLI_N_OPTIONS) {
        int code = elsewhere(word, length, err);
        if (code) return code;
        char name[WORD_MAX + 2];
        snprintf(name, sizeof name, "%.*s", (int)(length < WORD_MAX + 1 ? length : WORD_MAX + 1), word);
        return unknown(args->command, name, err);
    }
    if (!in_command(id, args->command)) return misplaced(args->command, id, err);
    const struct wr_cli_option *option = &wr_cli_options[id];
    const char *value = NULL;
    if (!option->argument) {
        if (equals) return wr_err(err, WEIR_E_USAGE, "--%s takes no value", option->name);
    } else if (equals) {
        value = equals + 1;
    } else if (next) {
        value = next;
        *used_next = true;
    } else {
        return wr_err(err, WEIR_E_USAGE, "--%s needs a value: --%s %s", option->name, option->name, option->argument);
    }
    take(args, (enum wr_cli_option_id)id, value);
    return 0;
}

/* "-v", "-vq", "-n64", "-n=64", "-n" "64". */
static int parse_short(struct wr_cli_args *args, const char *letters, const char *next, bool *used_next, weir_err *err)
{
    /* "-memory 2G" would be the model "emory". */
    for (size_t i = 0; letters[1] && i < WR_CLI_N_OPTIONS; i++) {
        size_t length = strlen(wr_cli_options[i].name);
        if (length > 1 && !strncmp(letters, wr_cli_options[i].name, length) && (!letters[length] || letters[length] == '=') && in_command(i, args->command))
            return wr_err(err, WEIR_E_USAGE, "unknown option -%s; did you mean --%s?", letters, wr_cli_options[i].name);
    }
    int code = elsewhere(letters, strcspn(letters, "="), err);
    if (code) return code;
    for (const char *s = letters; *s; s++) {
        size_t id = 0;
        while (id < WR_CLI_N_OPTIONS && !(wr_cli_options[id].letter == *s && in_command(id, args->command))) id++;
        if (id == WR_CLI_N_OPTIONS) {
            id = 0;
            while (id < WR_CLI_N_OPTIONS && wr_cli_options[id].letter != *s) id++;
            if (id < WR_CLI_N_OPTIONS) return misplaced(args->command, id, err);
            return wr_err(err, WEIR_E_USAGE, "unknown option -%c; 'weir help %s' lists the options", *s, wr_cli_commands[args->command].name);
        }
        const struct wr_cli_option *option = &wr_cli_options[id];
        if (!option->argument) {
            take(args, (enum wr_cli_option_id)id, NULL);
            continue;
        }
        const char *value = s[1] == '=' ? s + 2 : s + 1;
        if (!s[1]) {
            if (!next) return wr_err(err, WEIR_E_USAGE, "-%c needs a value: -%c %s", *s, *s, option->argument);
            value = next;
            *used_next = true;
        }
        take(args, (enum wr_cli_option_id)id, value);
        return 0;
    }
    return 0;
}

static int parse_environment(struct wr_cli_args *args, weir_err *err)
{
    for (size_t i = 0; i < WR_CLI_N_OPTIONS; i++) {
        enum wr_cli_option_id id = (enum wr_cli_option_id)i;
        if (!in_command(i, args->command) || id == WR_CLI_HELP) continue;
        char name[64];
        wr_cli_environment_name(id, name);
        const char *value = getenv(name);
        if (!value || !*value) continue;
        if (!wr_cli_options[i].argument) {
            bool off = !strcmp(value, "0") || !strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "off");
            bool on = !strcmp(value, "1") || !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "on");
            if (!on && !off) return wr_err(err, WEIR_E_USAGE, "%s is '%.80s': say 1 or 0", name, value);
            if (off) continue;
            value = NULL;
        }
        take(args, id, value);
        args->from_environment[i] = true;
    }
    return 0;
}

static const char *environment_option_name(size_t i) { return i == WR_CLI_HELP ? NULL : wr_cli_options[i].name; }

bool wr_cli_environment_unknown(const char *variable, char text[256])
{
    if (strncmp(variable, "WEIR_", 5) != 0) return false;
    char known[64], word[WORD_MAX + 2];
    size_t length = strcspn(variable, "="), n = 0;
    for (size_t i = 0; i < WR_CLI_N_OPTIONS; i++) {
        wr_cli_environment_name((enum wr_cli_option_id)i, known);
        if (strlen(known) == length && !strncmp(variable, known, length)) return false;
    }
    for (const char *s = variable + 5; s < variable + length && n < sizeof word - 1; s++)
        word[n++] = *s == '_' ? '-' : (*s >= 'A' && *s <= 'Z') ? (char)(*s - 'A' + 'a') : *s;
    word[n] = 0;
    const char *near = wr_cli_nearest(word, environment_option_name, WR_CLI_N_OPTIONS);
    for (size_t i = 0; near && i < WR_CLI_N_OPTIONS; i++)
        if (wr_cli_options[i].name == near) wr_cli_environment_name((enum wr_cli_option_id)i, known);
    int shown = (int)(length < 80 ? length : 80);
    snprintf(text, 256, near ? "%.*s in the environment names no option; did you mean %s?" : "%.*s in the environment names no option", shown, variable, known);
    return true;
}

/* What the command line says replaces what the environment says. */
static void forget_environment(struct wr_cli_args *args, size_t n_environment)
{
    size_t kept = 0;
    for (size_t i = 0; i < args->n_items; i++) {
        enum wr_cli_option_id id = args->items[i].option;
        bool again = false;
        for (size_t j = n_environment; i < n_environment && j < args->n_items; j++) again = again || args->items[j].option == id;
        if (again) {
            args->count[id]--;
            args->from_environment[id] = false;
        } else {
            args->items[kept++] = args->items[i];
        }
    }
    args->n_items = kept;
}

int wr_cli_parse(struct wr_cli_args *args, enum wr_cli_command_id command, int argc, char **argv, struct wr_ledger *ledger, weir_err *err)
{
    memset(args, 0, sizeof *args);
    args->command = command;
    /* A word of short flags gives an item a letter. */
    size_t most = WR_CLI_N_OPTIONS;
    for (int i = 1; i < argc; i++) most += argv[i][0] == '-' && argv[i][1] != '-' ? strlen(argv[i]) : 1;
    args->items = wr_mem_array(ledger, WR_ACCOUNT_TEXT, most, sizeof *args->items, err);
    args->positional = wr_mem_array(ledger, WR_ACCOUNT_TEXT, (size_t)argc + 1, sizeof *args->positional, err);
    int code = args->items && args->positional ? 0 : WEIR_E_NOMEM;
    if (code == 0) code = parse_environment(args, err);
    size_t n_environment = args->n_items;
    bool words_only = false;
    for (int i = 1; code == 0 && i < argc; i++) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        bool used_next = false;
        if (words_only || word[0] != '-' || !word[1])
            args->positional[args->n_positional++] = word;
        else if (!strcmp(word, "--"))
            words_only = true;
        else if (word[1] == '-')
            code = parse_long(args, word + 2, next, &used_next, err);
        else
            code = parse_short(args, word + 1, next, &used_next, err);
        i += used_next;
    }
    if (code == 0) forget_environment(args, n_environment);
    if (code) wr_cli_args_free(args);
    return code;
}

void wr_cli_args_set(struct wr_cli_args *args, enum wr_cli_option_id id, const char *value)
{
    size_t kept = 0;
    for (size_t i = 0; i < args->n_items; i++)
        if (args->items[i].option != id) args->items[kept++] = args->items[i];
    args->n_items = kept;
    args->count[id] = 0;
    args->value[id] = NULL;
    args->from_environment[id] = false;
    if (value || !wr_cli_options[id].argument) take(args, id, value);
}

void wr_cli_args_free(struct wr_cli_args *args)
{
    wr_mem_free(args->items);
    wr_mem_free(args->positional);
    args->items = NULL;
    args->positional = NULL;
    args->n_items = args->n_positional = 0;
}

/* ---- numbers --------------------------------------------------------------------------- */

bool wr_cli_parse_u64(const char *text, uint64_t *out)
{
    uint64_t x = 0;
    if (!*text) return false;
    for (const char *s = text; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        if (!wr_mul_u64(x, 10, &x) || !wr_add_u64(x, (uint64_t)(*s - '0'), &x)) return false;
    }
    *out = x;
    return true;
}

bool wr_cli_parse_f64(const char *text, double *out)
{
    char first = *text == '-' || *text == '+' ? text[1] : *text;
    if (!(first >= '0' && first <= '9') && first != '.') return false;
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x)) return false;
    *out = x;
    return true;
}

int wr_cli_u64(const struct wr_cli_args *args, enum wr_cli_option_id id, uint64_t min, uint64_t max, uint64_t *out, weir_err *err)
{
    if (!args->count[id]) return 0;
    uint64_t x;
    char origin[64];
    wr_cli_option_origin(args, id, origin);
    const char *value = args->value[id];
    if (!wr_cli_parse_u64(value, &x) || x < min || x > max)
        return wr_err(
            err, WEIR_E_USAGE, "%s: '%.60s' is not a whole number from %llu to %llu", origin, value, (unsigned long long)min, (unsigned long long)max);
    *out = x;
    return 0;
}

int wr_cli_f32(const struct wr_cli_args *args, enum wr_cli_option_id id, double min, double max, float *out, weir_err *err)
{
    if (!args->count[id]) return 0;
    double x;
    char origin[64];
    wr_cli_option_origin(args, id, origin);
    const char *value = args->value[id];
    if (!wr_cli_parse_f64(value, &x)) return wr_err(err, WEIR_E_USAGE, "%s: '%.60s' is not a number", origin, value);
    if (x < min || x > max) return wr_err(err, WEIR_E_USAGE, "%s: %.60s is not between %g and %g", origin, value, min, max);
    *out = (float)x;
    return 0;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* One pass to count, one to fill: `ids` may be NULL. Returns SIZE_MAX and sets *bad to the place of a mistake. */
static size_t read_ids(const char *text, size_t n, bool list, int32_t *ids, size_t *bad)
{
    size_t i = 0, count = 0;
    while (i < n && is_space(text[i])) i++;
    bool array = i < n && text[i] == '[';
    *bad = i;
    if (!array && !list) return SIZE_MAX;
    i += array;
    for (;;) {
        while (i < n && is_space(text[i])) i++;
        *bad = i;
        if (i == n) return array ? SIZE_MAX : count;
        if (array && text[i] == ']') break;
        if (array && count > 0) {
            if (text[i] != ',') return SIZE_MAX;
            i++;
            while (i < n && is_space(text[i])) i++;
            *bad = i;
        }
        uint64_t x = 0;
        size_t begin = i;
        while (i < n && text[i] >= '0' && text[i] <= '9' && x <= INT32_MAX) x = x * 10 + (uint64_t)(text[i++] - '0');
        if (i == begin || x > INT32_MAX) return SIZE_MAX;
        if (!array && i < n && !is_space(text[i])) return SIZE_MAX;
        if (ids) ids[count] = (int32_t)x;
        count++;
    }
    for (i++; i < n && is_space(text[i]);) i++;
    *bad = i;
    return i == n ? count : SIZE_MAX;
}

int wr_cli_parse_ids(const char *text, size_t n, bool list, struct wr_ledger *ledger, int32_t **ids, size_t *n_ids, weir_err *err)
{
    size_t bad = 0, count = read_ids(text, n, list, NULL, &bad);
    const char *form = list ? "a list or a JSON array" : "a JSON array";
    if (count == SIZE_MAX && bad >= n) return wr_err(err, WEIR_E_INPUT, "token ids: the text ends at byte %zu; write %s of whole numbers", n, form);
    if (count == SIZE_MAX)
        return wr_err(err, WEIR_E_INPUT, "token ids: '%.*s' at byte %zu is no id; write %s of whole numbers from 0 to %d", (int)(n - bad < 12 ? n - bad : 12),
            text + bad, bad, form, INT32_MAX);
    int32_t *all = wr_mem_array(ledger, WR_ACCOUNT_TEXT, count, sizeof *all, err);
    if (!all) return WEIR_E_NOMEM;
    read_ids(text, n, list, all, &bad);
    *ids = all;
    *n_ids = count;
    return 0;
}
