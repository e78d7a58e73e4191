/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a plan and to sampling. */
#include "base/os.h"
#include "base/team.h"
#include "cli/store.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Beside WEIR_MODEL: whether there are so many arguments that the first must be a model, which then wins. One text alone, or ids, are no model. */
static bool names_model(const struct wr_cli_args *args)
{
    enum wr_cli_command_id id = args->command;
    if (id == WR_CLI_CMD_DETOKENIZE) return false;
    bool text = (id == WR_CLI_CMD_RUN || id == WR_CLI_CMD_TOKENIZE) && !args->count[WR_CLI_PROMPT] && !args->count[WR_CLI_FILE] && !args->count[WR_CLI_JSONL];
    return args->n_positional > (text ? 1 : 0);
}

int wr_cli_model_path(struct wr_cli *cli, const char **path, size_t *next, weir_err *err)
{
    const struct wr_cli_args *args = &cli->args;
    bool option = args->count[WR_CLI_MODEL] && !(args->from_environment[WR_CLI_MODEL] && names_model(args));
    *next = option ? 0 : 1;
    if (!option && args->n_positional == 0) {
        const struct wr_cli_command *command = &wr_cli_commands[args->command];
        return wr_err(err, WEIR_E_USAGE, "no model: weir %s %s ('weir list' shows those on this machine)", command->name, command->arguments);
    }
    const char *name = option ? args->value[WR_CLI_MODEL] : args->positional[0];
    if (!*name) return wr_err(err, WEIR_E_USAGE, "the model's name is empty");
    *path = cli->model;
    return wr_cli_store_resolve(cli, name, cli->model, err);
}

static bool is_number(const char *text) { return *text && !text[strspn(text, "0123456789.")]; }

/* The argument that was the unit of --memory: of "2 GB" only the 2 is its value. NULL: there is none. */
static const char *unit_apart(const struct wr_cli_args *args, char size[32])
{
    const char *number = args->count[WR_CLI_MEMORY] ? args->value[WR_CLI_MEMORY] : "";
    uint64_t bytes;
    for (size_t i = 0; is_number(number) && i < args->n_positional; i++) {
        const char *unit = args->positional[i];
        if (snprintf(size, 32, "%s%s", number, unit) < 32 && *unit && !is_number(unit) && weir_parse_size(size, &bytes, NULL) == 0) return unit;
    }
    return NULL;
}

int wr_cli_no_more_arguments(struct wr_cli *cli, size_t next, weir_err *err)
{
    if (next >= cli->args.n_positional) return 0;
    const struct wr_cli_command *command = &wr_cli_commands[cli->args.command];
    if (!*command->arguments) return wr_err(err, WEIR_E_USAGE, "weir %s takes no argument, and '%.80s' is one", command->name, cli->args.positional[next]);
    enum wr_cli_command_id id = cli->args.command;
    bool text = id == WR_CLI_CMD_RUN || id == WR_CLI_CMD_TOKENIZE;
    char size[32];
    const char *unit = unit_apart(&cli->args, size);
    if (unit) return wr_err(err, WEIR_E_USAGE, "'%.80s' is one argument too many: write --memory %s", unit, size);
    return wr_err(err, WEIR_E_USAGE, "'%.80s' is one argument too many: weir %s %s%s", cli->args.positional[next], command->name, command->arguments,
        text                    ? " (quote a text of several words)"
        : id == WR_CLI_CMD_EVAL ? " (the text comes from -f FILE or standard input)"
        : id == WR_CLI_CMD_CHAT ? " (messages are typed when it is ready; 'weir run' takes a prompt)"
                                : "");
}

int wr_cli_engine_options(struct wr_cli *cli, weir_err *err)
{
    weir_options_init(&cli->options);
    cli->options.log = wr_cli_log;
    cli->options.log_user = cli;
    cli->options.progress = wr_cli_progress;
    cli->options.progress_user = cli;
    cli->options.cancel = wr_cli_cancel();
    wr_cli_progress_begin(cli, "open", 0);
    for (size_t i = 0; i < WR_CLI_N_OPTIONS; i++) {
        const struct wr_cli_option *option = &wr_cli_options[i];
        if (option->kind != WR_CLI_ENGINE || !cli->args.count[i]) continue;
        int code = weir_options_set(&cli->options, option->name, option->argument ? cli->args.value[i] : "on", err);
        if (code && cli->args.from_environment[i]) { /* the library names the option */
            char origin[64];
            wr_err_prefix(err, code, "%s", wr_cli_option_origin(&cli->args, (enum wr_cli_option_id)i, origin));
        }
        if (code) return code;
    }
    if (cli->options.draft[0]) {
        char path[WR_CLI_PATH];
        int code = wr_cli_store_resolve(cli, cli->options.draft, path, err);
        if (code == 0) code = weir_options_set(&cli->options, "draft", path, err);
        if (code) return code;
    }
    char given[32], size[32], origin[64];
    uint64_t memory = cli->options.memory_bytes;
    if (memory > 0 && memory < 1u << 20 && is_number(cli->args.value[WR_CLI_MEMORY])) /* 512 is rather 512M, 5 rather 5G */
        return wr_err(err, WEIR_E_BUDGET, "%s %llu: is a number of bytes; was %llu%c meant?", wr_cli_option_origin(&cli->args, WR_CLI_MEMORY, origin),
            (unsigned long long)memory, (unsigned long long)memory, memory < 128 ? 'G' : 'M');
    if (cli->options.n_threads > wr_cpu_count())
        wr_cli_warn(cli, "%s %u: this process has %u CPUs, and more threads than that are no faster", wr_cli_option_origin(&cli->args, WR_CLI_THREADS, origin),
            cli->options.n_threads, wr_cpu_count());
    uint64_t available = memory ? wr_os_memory("").available_bytes : UINT64_MAX;
    if (memory > available)
        wr_cli_warn(cli, "%s %s is more than the %s that are available; the system may swap or end the process",
            wr_cli_option_origin(&cli->args, WR_CLI_MEMORY, origin), wr_cli_size(memory, given), wr_cli_size(available, size));
    return 0;
}

const char *wr_cli_budget_origin(const struct wr_cli *cli, const weir_plan_info *info)
{
    return cli->args.from_environment[WR_CLI_MEMORY] ? "WEIR_MEMORY" : info->budget_origin;
}

void wr_cli_plan_say(struct wr_cli *cli, const weir_plan *plan)
{
    const weir_plan_info *info = weir_plan_get(plan);
    wr_cli_progress_clear(cli);
    if (cli->verbose && !cli->quiet) {
        wr_cli_report_plan(cli, &cli->err, info);
        (void)wr_cli_flush(&cli->err, NULL);
    } else if (!cli->options.memory_bytes || !cli->options.n_ctx) {
        /* What was chosen for the user is said, not guessed. */
        char size[32];
        wr_cli_notice(cli, "memory %s (%s), context %u", wr_cli_size(info->budget, size), wr_cli_budget_origin(cli, info), info->n_ctx);
    }
}

#define TEXT_OF_PROCESS (2ull << 20)

void wr_cli_limit_text(struct wr_cli *cli, const weir_plan_info *info, bool early)
{
    uint64_t left = info->budget;
    for (uint32_t i = 0; i < info->n_accounts; i++) {
        const char *name = info->accounts[i].name;
        if (!strcmp(name, "process") || !strcmp(name, "tokenizer") || !strcmp(name, "meta"))
            left -= info->accounts[i].reserved < left ? info->accounts[i].reserved : left;
    }
    wr_ledger_limit(&cli->ledger, WR_ACCOUNT_TEXT, TEXT_OF_PROCESS + (early ? left / 2 : info->text_left));
}

weir_options wr_cli_text_options(const struct wr_cli *cli, const weir_plan_info *info)
{
    weir_options options = cli->options;
    options.memory_bytes = info->budget;
    return options;
}

void wr_cli_check_peak(struct wr_cli *cli, const weir_plan_info *info)
{
    uint64_t peak = wr_os_usage().peak_rss_bytes;
    if (peak > info->budget && strcmp(cli->options.io, "mmap") != 0)
        wr_cli_warn(cli, "the process took %llu bytes at its peak, more than its budget of %llu; please report this", (unsigned long long)peak,
            (unsigned long long)info->budget);
}

/* The model's first token, -1 where it asks for none. */
static int first_token(weir_engine *engine, int32_t *id, weir_err *err)
{
    int32_t *ids;
    size_t n;
    int code = weir_tokenize(engine, "", 0, false, true, &ids, &n, err);
    if (code) return code;
    *id = n > 0 ? ids[0] : -1;
    weir_free(ids);
    return 0;
}

int wr_cli_ids_of_text(
    struct wr_cli *cli, weir_engine *engine, const char *text, size_t n, bool special, bool first, int32_t **ids, size_t *n_ids, weir_err *err)
{
    int32_t *theirs, begin = -1;
    int code = first ? 0 : first_token(engine, &begin, err);
    if (code == 0) code = weir_tokenize(engine, text, n, special || cli->args.count[WR_CLI_PARSE_SPECIAL], first, &theirs, n_ids, err);
    if (code) return code;
    size_t skip = *n_ids > 0 && theirs[0] == begin; /* a template writes it out */
    *n_ids -= skip;
    *ids = wr_mem_array(&cli->ledger, WR_ACCOUNT_TEXT, *n_ids, sizeof **ids, err);
    if (*ids) memcpy(*ids, theirs + skip, *n_ids * sizeof **ids);
    weir_free(theirs);
    return *ids ? 0 : WEIR_E_NOMEM;
}

int wr_cli_ids_behind(struct wr_cli *cli, weir_session *session, int32_t **ids, size_t *n, weir_err *err)
{
    size_t n_held;
    const int32_t *held = weir_session_ids(session, &n_held);
    if (n_held == 0) return 0;
    int32_t *all = wr_mem_array(&cli->ledger, WR_ACCOUNT_TEXT, n_held + *n, sizeof *all, err);
    if (!all) return WEIR_E_NOMEM;
    memcpy(all, held, n_held * sizeof *all);
    memcpy(all + n_held, *ids, *n * sizeof *all);
    wr_mem_free(*ids);
    *ids = all;
    *n += n_held;
    return 0;
}

static int parse_bias(struct wr_cli_sampling *s, const char *item, weir_err *err)
{
    const char *equals = strchr(item, '=');
    char number[24];
    uint64_t id;
    double bias;
    size_t n = equals ? (size_t)(equals - item) : 0;
    bool good = n > 0 && n < sizeof number;
    if (good) {
        memcpy(number, item, n);
        number[n] = 0;
        good = wr_cli_parse_u64(number, &id) && id <= INT32_MAX && wr_cli_parse_f64(equals + 1, &bias) && bias >= -1e9 && bias <= 1e9;
    }
    if (!good) return wr_err(err, WEIR_E_USAGE, "--logit-bias: '%.80s' is not ID=X, such as 42=-1.5", item);
    s->bias_ids[s->sampling.n_bias] = (int32_t)id;
    s->bias[s->sampling.n_bias++] = (float)bias;
    return 0;
}

static int parse_seed(struct wr_cli_sampling *s, const struct wr_cli_args *args, weir_err *err)
{
    if (!args->count[WR_CLI_SEED] || strcmp(args->value[WR_CLI_SEED], "random") != 0) {
        weir_err plain;
        int code = wr_cli_u64(args, WR_CLI_SEED, 0, UINT64_MAX, &s->sampling.seed, &plain);
        return code ? wr_err(err, code, "%s, nor is it random", plain.text) : 0;
    }
    if (getrandom(&s->sampling.seed, sizeof s->sampling.seed, 0) != (ssize_t)sizeof s->sampling.seed)
        return wr_err(err, WEIR_E_FAIL, "--seed random: the system gave no random number; give a number");
    return 0;
}

void wr_cli_sampling_say(struct wr_cli *cli, const struct wr_cli_sampling *s)
{
    if (cli->args.count[WR_CLI_SEED] && !strcmp(cli->args.value[WR_CLI_SEED], "random")) wr_cli_notice(cli, "seed %llu", (unsigned long long)s->sampling.seed);
}

void wr_cli_say_cut(struct wr_cli *cli, const struct wr_cli_sampling *s, uint64_t n, uint32_t n_ctx)
{
    if (!s->n_given || n < s->n_max) wr_cli_notice(cli, "the answer was cut at the end of the context of %u positions; a larger -c has room for more", n_ctx);
}

int wr_cli_sampling_init(struct wr_cli_sampling *s, const struct wr_cli_args *args, struct wr_ledger *ledger, weir_err *err)
{
    memset(s, 0, sizeof *s);
    weir_sampling_init(&s->sampling);
    s->sampling.seed = 0;
    weir_sampling *to = &s->sampling;
    uint64_t top_k = (uint64_t)to->top_k, last = to->penalty_last;
    s->n_given = args->count[WR_CLI_N] > 0;
    int code = parse_seed(s, args, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_N, 0, UINT64_MAX - 1, &s->n_max, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_TOP_K, 0, INT32_MAX, &top_k, err);
    if (code == 0) code = wr_cli_u64(args, WR_CLI_REPEAT_LAST, 0, 4096, &last, err);
    if (code == 0) code = wr_cli_f32(args, WR_CLI_TEMP, 0, 1000, &to->temp, err);
    if (code == 0) code = wr_cli_f32(args, WR_CLI_TOP_P, 0, 1, &to->top_p, err);
    if (code == 0) code = wr_cli_f32(args, WR_CLI_MIN_P, 0, 1, &to->min_p, err);
    if (code == 0) code = wr_cli_f32(args, WR_CLI_REPEAT_PENALTY, 0.01, 100, &to->repeat_penalty, err);
    if (code == 0) code = wr_cli_f32(args, WR_CLI_PRESENCE_PENALTY, -100, 100, &to->presence_penalty, err);
    if (code == 0) code = wr_cli_f32(args, WR_CLI_FREQUENCY_PENALTY, -100, 100, &to->frequency_penalty, err);
    if (code) return code;
    to->top_k = (int32_t)top_k;
    to->penalty_last = (uint32_t)last;

    s->bias_ids = wr_mem_array(ledger, WR_ACCOUNT_TEXT, args->count[WR_CLI_LOGIT_BIAS], sizeof *s->bias_ids, err);
    s->bias = wr_mem_array(ledger, WR_ACCOUNT_TEXT, args->count[WR_CLI_LOGIT_BIAS], sizeof *s->bias, err);
    s->stops = wr_mem_array(ledger, WR_ACCOUNT_TEXT, args->count[WR_CLI_STOP], sizeof *s->stops, err);
    if (!s->bias_ids || !s->bias || !s->stops) code = WEIR_E_NOMEM;
    for (size_t i = 0; code == 0 && i < args->n_items; i++) {
        const struct wr_cli_item *item = &args->items[i];
        if (item->option == WR_CLI_LOGIT_BIAS) code = parse_bias(s, item->value, err);
        if (item->option == WR_CLI_STOP && !*item->value) code = wr_err(err, WEIR_E_USAGE, "--stop: an empty text would end before the first token");
        if (item->option == WR_CLI_STOP) s->stops[s->n_stops++] = item->value;
    }
    to->bias_ids = s->bias_ids;
    to->bias = s->bias;
    if (code) wr_cli_sampling_free(s);
    return code;
}

void wr_cli_sampling_free(struct wr_cli_sampling *s)
{
    wr_mem_free(s->bias_ids);
    wr_mem_free(s->bias);
    wr_mem_free(s->stops);
    s->bias_ids = NULL;
    s->bias = NULL;
    s->stops = NULL;
}
