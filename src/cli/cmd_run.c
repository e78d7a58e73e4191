/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "engine/tools.h"

#include <string.h>
#include "base/utf8.h"

struct run {
    struct wr_cli *cli;
    const char *model;
    struct wr_cli_text prompt;
    struct wr_cli_sampling sampling;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    int32_t *prompt_ids;
    size_t n_prompt;
    /* Kept for --json and a saved context alone. */
    char *text;
    size_t n_text, text_capacity;
    int32_t *ids;
    size_t n_ids, ids_capacity;
    uint64_t n_tokens;
    weir_err *err;
};

/* A token's text is a few bytes; runs of spaces are the longest, and 64 a token is beyond any text. */
#define BYTES_PER_TOKEN 64

static int on_text(void *user, const char *text, size_t n)
{
    struct run *run = user;
    if (n == 0) return 0;
    if (run->cli->json) {
        int code = wr_cli_grow(&run->cli->ledger, (void **)&run->text, &run->text_capacity, run->n_text, n, 1, run->err);
        if (code) return code;
        memcpy(run->text + run->n_text, text, n);
        run->n_text += n;
        return 0;
    }
    return wr_cli_answer(run->cli, text, n, run->err);
}

static int on_token(void *user, int32_t id)
{
    struct run *run = user;
    wr_cli_progress_begin(run->cli, "decode", ++run->n_tokens + 1);
    if (!run->cli->json && !run->cli->args.count[WR_CLI_SAVE_CONTEXT]) return 0;
    int code = wr_cli_grow(&run->cli->ledger, (void **)&run->ids, &run->ids_capacity, run->n_ids, 1, sizeof *run->ids, run->err);
    if (code == 0) run->ids[run->n_ids++] = id;
    return code;
}

/* The prompt as the model's template wants it: *text is the template's (weir_free), or NULL for the prompt itself. */
static int render(struct run *run, weir_engine *engine, char **text, weir_err *err)
{
    const struct wr_cli_args *args = &run->cli->args;
    *text = NULL;
    if (args->count[WR_CLI_RAW]) return 0;
    if (!weir_chat_available(engine)) {
        if (args->count[WR_CLI_SYSTEM])
            return wr_err(err, WEIR_E_UNSUPPORTED, "%s: has no chat template for --system; put the text into the prompt", wr_file_label(run->model));
        wr_cli_warn(run->cli, "the model has no chat template; the prompt is used as with --raw");
        return 0;
    }
    if (!run->prompt.argument && run->prompt.bytes[run->prompt.n - 1] == '\n') run->prompt.bytes[--run->prompt.n] = 0;
    size_t good = wr_utf8_valid_prefix((const uint8_t *)run->prompt.bytes, run->prompt.n);
    if (good < run->prompt.n) return wr_err(err, WEIR_E_INPUT, "the prompt is not UTF-8 at byte %zu, which a chat template cannot hold; use --raw", good);
    good = strlen(run->prompt.bytes);
    if (good < run->prompt.n) return wr_err(err, WEIR_E_INPUT, "the prompt has a NUL at byte %zu, which a chat template cannot hold; use --raw", good);
    weir_message messages[2];
    size_t n = 0;
    if (args->count[WR_CLI_SYSTEM]) messages[n++] = (weir_message){.role = "system", .content = args->value[WR_CLI_SYSTEM]};
    messages[n++] = (weir_message){.role = "user", .content = run->prompt.bytes};
    return weir_chat_render(engine, messages, n, true, text, err);
}

#define ROOM_FOR_ANSWER 256 /* that an advice about the context counts on, without -n */

/* The prompt's ids, before a weight is read: what is wrong with a prompt is said at once. */
static int tokenize(struct run *run, uint32_t n_ctx, uint32_t n_saved, weir_err *err)
{
    weir_engine *engine;
    char *text = NULL;
    weir_options options = wr_cli_text_options(run->cli, weir_plan_get(run->plan));
    wr_cli_progress_begin(run->cli, "tokenize", 0);
    int code = weir_engine_open_text(&engine, run->model, &options, err);
    if (code) return code;
    code = render(run, engine, &text, err);
    if (code == 0)
        code = wr_cli_ids_of_text(run->cli, engine, text ? text : run->prompt.bytes, text ? strlen(text) : run->prompt.n, text != NULL, n_saved == 0,
            &run->prompt_ids, &run->n_prompt, err);
    weir_free(text);
    weir_engine_close(engine);
    if (code) return code;
    if (run->n_prompt == 0) return wr_err(err, WEIR_E_INPUT, "the prompt has no tokens; give a text that is not empty");
    uint64_t n = run->n_prompt + (uint64_t)n_saved;
    if (n <= n_ctx) return 0;
    uint64_t room = run->sampling.n_given && run->sampling.n_max <= INT32_MAX ? run->sampling.n_max : ROOM_FOR_ANSWER;
    return wr_err(err, WEIR_E_CONTEXT,
        "the prompt has %llu tokens%s and the context %u positions; give -c %llu (%llu of them for the answer), or a shorter prompt", (unsigned long long)n,
        n_saved > 0 ? " with those of --context" : "", n_ctx, (unsigned long long)(n + room), (unsigned long long)room);
}

static int generate(struct run *run, struct wr_cli_result *result, weir_err *err)
{
    const struct wr_cli_args *args = &run->cli->args;
    wr_cli_progress_begin(run->cli, "prefill", 0);
    int code = wr_cli_ids_behind(run->cli, run->session, &run->prompt_ids, &run->n_prompt, err);
    if (code == 0) code = weir_session_set(run->session, run->prompt_ids, run->n_prompt, err);
    if (code == WEIR_E_CANCELLED) {
        result->finish = WEIR_FINISH_INTERRUPTED;
        return 0;
    }
    if (code) return code;
    result->finish = WEIR_FINISH_LENGTH;
    if (run->sampling.n_given && run->sampling.n_max == 0) return 0;
    const weir_generate how = {
        .size = sizeof how,
        .sampling = &run->sampling.sampling,
        .n_max = run->sampling.n_max,
        .stops = run->sampling.stops,
        .n_stops = run->sampling.n_stops,
        .special = args->count[WR_CLI_SPECIAL] > 0,
        .ignore_eos = args->count[WR_CLI_IGNORE_EOS] > 0,
        .text = on_text,
        .token = on_token,
        .user = run,
    };
    return weir_session_generate(run->session, &how, &result->finish, err);
}

/* The prompt and the whole answer; what was interrupted as far as it came. */
static int save(struct run *run, const struct wr_cli_result *result, weir_err *err)
{
    size_t n = 0, n_all = run->n_prompt + run->n_ids;
    int code = 0;
    if (!run->cli->args.count[WR_CLI_SAVE_CONTEXT]) return 0;
    (void)weir_session_ids(run->session, &n);
    if (result->finish == WEIR_FINISH_INTERRUPTED && n == 0) return 0;
    if (result->finish != WEIR_FINISH_INTERRUPTED && n_all > n && n_all <= weir_engine_plan(run->engine)->n_ctx) { /* the last token is drawn, not evaluated */
        int32_t *all = wr_mem_array(&run->cli->ledger, WR_ACCOUNT_TEXT, n_all, sizeof *all, err);
        if (!all) return WEIR_E_NOMEM;
        memcpy(all, run->prompt_ids, run->n_prompt * sizeof *all);
        if (run->n_ids > 0) memcpy(all + run->n_prompt, run->ids, run->n_ids * sizeof *all);
        code = weir_session_set(run->session, all, n_all, err);
        wr_mem_free(all);
        if (code == WEIR_E_CANCELLED) code = 0;
    }
    return code ? code : weir_session_save(run->session, NULL, err);
}

static int open_and_run(struct run *run, weir_err *err)
{
    struct wr_cli *cli = run->cli;
    struct wr_cli_result result = {.seed = run->sampling.sampling.seed};
    wr_cli_progress_begin(cli, "load", 0);
    int code = weir_engine_open(&run->engine, run->plan, err);
    if (code) return code;
    run->plan = NULL;
    code = weir_session_open(&run->session, run->engine, err);
    if (code == 0) code = generate(run, &result, err);
    if (code == 0) code = save(run, &result, err);
    if (code) return code;

    wr_cli_progress_clear(cli);
    wr_cli_check_peak(cli, weir_engine_plan(run->engine));
    if (!cli->json && cli->out.terminal && cli->out.unfinished) wr_cli_put(&cli->out, "\n", 1);
    if (cli->json) {
        result.engine = run->engine;
        result.session = run->session;
        result.prompt_ids = run->prompt_ids;
        result.n_prompt = run->n_prompt;
        result.ids = run->ids;
        result.n_ids = run->n_ids;
        result.text = run->text;
        result.n_text = run->n_text;
        wr_cli_json_begin(&cli->out);
        wr_cli_report_json(cli, &result);
        wr_cli_json_end(&cli->out);
    }
    code = wr_cli_flush(&cli->out, err);
    if (cli->args.count[WR_CLI_STATS]) {
        if (!cli->json) wr_cli_put(&cli->err, "\n", 1); /* the answer may end without a newline and share the screen */
        wr_cli_report_stats(cli, run->engine, run->session);
    }
    if (code == 0 && result.finish == WEIR_FINISH_LENGTH) wr_cli_say_cut(cli, &run->sampling, run->n_tokens, weir_engine_plan(run->engine)->n_ctx);
    if (code || result.finish != WEIR_FINISH_INTERRUPTED) return code;
    err->text[0] = 0;
    return WEIR_E_CANCELLED;
}

int wr_cli_cmd_run(struct wr_cli *cli, weir_err *err)
{
    struct run run = {.cli = cli, .err = err};
    size_t next;
    int code = wr_cli_model_path(cli, &run.model, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next + 1, err);
    const struct wr_cli_args *args = &cli->args;
    if (code == 0 && args->count[WR_CLI_RAW] && args->count[WR_CLI_SYSTEM] && !args->from_environment[WR_CLI_RAW] && !args->from_environment[WR_CLI_SYSTEM])
        code = wr_err(err, WEIR_E_USAGE, "--raw and --system: a text as it is has no system message; give one of them");
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0) code = wr_cli_sampling_init(&run.sampling, &cli->args, &cli->ledger, err);
    if (code) return code;
    code = weir_plan_open(&run.plan, run.model, &cli->options, err);
    if (code) goto done;
    const weir_plan_info *info = weir_plan_get(run.plan);
    code = wr_tool_check_generate(&run.sampling.sampling, run.sampling.stops, run.sampling.n_stops, info->n_vocab, err);
    if (code) goto done;
    wr_cli_limit_text(cli, info, true);
    code = wr_cli_text_read(cli, next, (uint64_t)info->n_ctx * BYTES_PER_TOKEN, &run.prompt, err);
    if (code) goto done;
    if (run.prompt.n == 0) {
        code = wr_err(err, WEIR_E_USAGE, "%s is empty; give a prompt as an argument, with -f FILE or on standard input",
            run.prompt.argument                                                              ? "the prompt"
            : cli->args.count[WR_CLI_FILE] && strcmp(cli->args.value[WR_CLI_FILE], "-") != 0 ? wr_file_label(cli->args.value[WR_CLI_FILE])
                                                                                             : "standard input");
        goto done;
    }
    code = tokenize(&run, info->n_ctx, info->n_saved, err);
    if (code) goto done;
    wr_mem_free(run.prompt.bytes);
    run.prompt.bytes = NULL;
    wr_mem_trim();
    wr_cli_limit_text(cli, info, false);
    wr_cli_plan_say(cli, run.plan);
    wr_cli_sampling_say(cli, &run.sampling);
    code = open_and_run(&run, err);

done:
    weir_session_close(run.session);
    weir_engine_close(run.engine);
    weir_plan_close(run.plan);
    wr_mem_free(run.prompt.bytes);
    wr_mem_free(run.prompt_ids);
    wr_mem_free(run.text);
    wr_mem_free(run.ids);
    wr_cli_sampling_free(&run.sampling);
    return code;
}
