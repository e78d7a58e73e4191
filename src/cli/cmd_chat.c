/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conversation is a list of messages; every turn renders the model's template anew (without one, the messages are one text)
 * and hands all ids to the session, which keeps what it already holds of them.
 */
#include "cli/cli.h"
#include "engine/tools.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

struct chat {
    struct wr_cli *cli;
    const char *model;
    struct wr_cli_sampling sampling;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    struct wr_cli_editor *editor;
    bool interactive, has_template;
    weir_message *messages; /* contents are wr_mem; the system message is not among them */
    size_t n_messages, capacity;
    char *answer;
    size_t n_answer, answer_capacity;
    uint64_t n_tokens; /* of the answer */
    int32_t *base;     /* tokens of a saved context, which the messages are behind */
    size_t n_base;
    char *set[WR_CLI_N_OPTIONS]; /* values given by /set */
    weir_err *err;
};

static const char *const typed[][2] = {
    {"/help", "this list"},
    {"/set NAME VALUE", "a generation option or the system message; without NAME: what is set"},
    {"/stats", "planned beside measured"},
    {"/save FILE", "save the context: the conversation, evaluated"},
    {"/load FILE", "go on behind a saved context"},
    {"/undo", "forget the last question and its answer"},
    {"/clear", "forget the conversation"},
    {"/bye", "end, as Ctrl-D does"},
};

/* Without its arguments. */
static const char *typed_name(size_t i)
{
    static const char *const first[] = {"/help", "/set", "/stats", "/save", "/load", "/undo", "/clear", "/bye"};
    _Static_assert(sizeof first / sizeof *first == sizeof typed / sizeof *typed, "one name each");
    return i < sizeof first / sizeof *first ? first[i] : NULL;
}

/* ---- messages -------------------------------------------------------------------------- */

static int add_message(struct chat *chat, const char *role, const char *bytes, size_t n, weir_err *err)
{
    int code = wr_cli_grow(&chat->cli->ledger, (void **)&chat->messages, &chat->capacity, chat->n_messages, 1, sizeof *chat->messages, err);
    if (code) return code;
    char *content = wr_mem_alloc(&chat->cli->ledger, WR_ACCOUNT_TEXT, n + 1, err);
    if (!content) return WEIR_E_NOMEM;
    memcpy(content, bytes, n);
    chat->messages[chat->n_messages++] = (weir_message){.role = role, .content = content};
    return 0;
}

static void drop_message(struct chat *chat) { wr_mem_free((void *)chat->messages[--chat->n_messages].content); }

static void clear(struct chat *chat)
{
    wr_mem_free(chat->base);
    chat->base = NULL;
    chat->n_base = 0;
    while (chat->n_messages) drop_message(chat);
}

static void undo(struct chat *chat)
{
    bool user = false;
    wr_cli_notice(chat->cli, chat->n_messages ? "the last question and its answer are forgotten" : "there is nothing to undo");
    while (chat->n_messages && !user) {
        user = !strcmp(chat->messages[chat->n_messages - 1].role, "user");
        drop_message(chat);
    }
}

/* ---- one turn -------------------------------------------------------------------------- */

static int on_text(void *user, const char *text, size_t n)
{
    struct chat *chat = user;
    int code = wr_cli_grow(&chat->cli->ledger, (void **)&chat->answer, &chat->answer_capacity, chat->n_answer, n, 1, chat->err);
    if (code) return code;
    memcpy(chat->answer + chat->n_answer, text, n);
    chat->n_answer += n;
    if (chat->cli->json) return 0; /* the whole answer is one object, at its end */
    return wr_cli_answer(chat->cli, text, n, chat->err);
}

static int on_token(void *user, int32_t id)
{
    (void)id;
    struct chat *chat = user;
    wr_cli_progress_begin(chat->cli, "decode", ++chat->n_tokens + 1);
    return 0;
}

/* Without a template: what was typed and what the model went on with, every message on a new line. */
static int join(struct chat *chat, char **text, weir_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < chat->n_messages; i++) n += strlen(chat->messages[i].content) + 1;
    char *at = *text = wr_mem_alloc(&chat->cli->ledger, WR_ACCOUNT_TEXT, n + 1, err);
    if (!at) return WEIR_E_NOMEM;
    for (size_t i = 0; i < chat->n_messages; i++) {
        if (i > 0 && !strcmp(chat->messages[i].role, "user")) *at++ = '\n';
        size_t length = strlen(chat->messages[i].content);
        memcpy(at, chat->messages[i].content, length + 1);
        at += length;
    }
    return 0;
}

static int render(struct chat *chat, bool ask, char **text, weir_err *err)
{
    const struct wr_cli_args *args = &chat->cli->args;
    if (!chat->has_template && args->count[WR_CLI_SYSTEM])
        return wr_err(err, WEIR_E_USAGE, "%s: has no chat template for --system; put the text into a message", wr_file_label(chat->model));
    if (!chat->has_template) return join(chat, text, err);
    if (!args->count[WR_CLI_SYSTEM] || chat->n_base > 0) return weir_chat_render(chat->engine, chat->messages, chat->n_messages, ask, text, err);
    weir_message *all = wr_mem_array(&chat->cli->ledger, WR_ACCOUNT_TEXT, chat->n_messages + 1, sizeof *all, err);
    if (!all) return WEIR_E_NOMEM;
    all[0] = (weir_message){.role = "system", .content = args->value[WR_CLI_SYSTEM]};
    memcpy(all + 1, chat->messages, chat->n_messages * sizeof *all);
    int code = weir_chat_render(chat->engine, all, chat->n_messages + 1, ask, text, err);
    wr_mem_free(all);
    return code;
}

/* All tokens of the conversation; `ask`: with what makes the model answer. */
static int conversation(struct chat *chat, bool ask, int32_t **ids, size_t *n, weir_err *err)
{
    char *text = NULL;
    int code = chat->n_messages > 0 ? render(chat, ask, &text, err) : 0;
    *n = 0;
    if (code == 0 && text) code = wr_cli_ids_of_text(chat->cli, chat->engine, text, strlen(text), chat->has_template, chat->n_base == 0, ids, n, err);
    weir_free(text);
    if (code || chat->n_base == 0) return code;
    int32_t *all = wr_mem_array(&chat->cli->ledger, WR_ACCOUNT_TEXT, chat->n_base + *n, sizeof *all, err);
    if (!all) return WEIR_E_NOMEM;
    memcpy(all, chat->base, chat->n_base * sizeof *all);
    if (*n > 0) memcpy(all + chat->n_base, *ids, *n * sizeof *all);
    wr_mem_free(*ids);
    *ids = all;
    *n += chat->n_base;
    return 0;
}

/* The last message is the user's. Everything drawn before an interruption stays. */
static int answer(struct chat *chat, enum weir_finish *finish, weir_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    uint32_t n_ctx = weir_engine_plan(chat->engine)->n_ctx;
    chat->n_answer = 0;
    chat->n_tokens = 0;
    wr_cli_progress_begin(chat->cli, "prefill", 0);
    int code = conversation(chat, true, &ids, &n, err);
    if (code == 0 && n >= n_ctx) code = wr_err(err, WEIR_E_CONTEXT, "it has %zu tokens and the context %u positions", n, n_ctx);
    if (code == WEIR_E_CONTEXT) {
        weir_err plain = *err;
        wr_err(err, code, "the conversation is too long: %s; %sstart with a larger -c", plain.text, chat->interactive ? "say /clear or /undo, or " : "");
    }
    if (code == 0) code = weir_session_set(chat->session, ids, n, err);
    if (code == 0 && chat->sampling.n_given && chat->sampling.n_max == 0) {
        *finish = WEIR_FINISH_LENGTH;
    } else if (code == 0) {
        const weir_generate how = {
            .size = sizeof how,
            .sampling = &chat->sampling.sampling,
            .n_max = chat->sampling.n_max,
            .stops = chat->sampling.stops,
            .n_stops = chat->sampling.n_stops,
            .special = chat->cli->args.count[WR_CLI_SPECIAL] > 0,
            .ignore_eos = chat->cli->args.count[WR_CLI_IGNORE_EOS] > 0,
            .text = on_text,
            .token = on_token,
            .user = chat,
        };
        code = weir_session_generate(chat->session, &how, finish, err);
    }
    wr_mem_free(ids);
    return code;
}

static int turn(struct chat *chat, const char *line, size_t n, weir_err *err)
{
    struct wr_cli *cli = chat->cli;
    enum weir_finish finish = WEIR_FINISH_STOP;
    if (memchr(line, 0, n)) return wr_err(err, WEIR_E_INPUT, "the message has a NUL byte, which a chat template cannot hold");
    int code = add_message(chat, "user", line, n, err);
    if (code) return code;
    code = answer(chat, &finish, err);
    wr_cli_progress_clear(cli);
    bool interrupted = code == WEIR_E_CANCELLED || finish == WEIR_FINISH_INTERRUPTED;
    if (code) {
        drop_message(chat);
    } else {
        code = add_message(chat, "assistant", chat->answer ? chat->answer : "", chat->n_answer, err);
        if (cli->json) {
            wr_cli_json_begin(&cli->out);
            wr_cli_json_add(&cli->out, "text", wr_cli_json_text(chat->answer ? chat->answer : "", chat->n_answer));
            wr_cli_json_add(&cli->out, "finish", json_string(wr_cli_finish_name(finish)));
            wr_cli_json_end(&cli->out);
        } else if (chat->n_answer == 0 || chat->answer[chat->n_answer - 1] != '\n' || !chat->interactive)
            wr_cli_put(&cli->out, "\n", 1);
        if (code == 0) code = wr_cli_flush(&cli->out, err);
        if (code == 0 && finish == WEIR_FINISH_LENGTH) wr_cli_say_cut(cli, &chat->sampling, chat->n_tokens, weir_engine_plan(chat->engine)->n_ctx);
    }
    if (!interrupted || code == WEIR_E_WRITE) return code;
    if (!chat->interactive || *wr_cli_cancel() == SIGTERM) return WEIR_E_CANCELLED;
    wr_cli_cancel_reset();
    wr_cli_notice(cli, "interrupted");
    return 0;
}

/* ---- what begins with a slash ---------------------------------------------------------- */

/* The options of the Generation section, in table order, and the system message. */
static bool settable(size_t id) { return (id >= WR_CLI_N && id <= WR_CLI_SPECIAL) || id == WR_CLI_SYSTEM; }
static const char *settable_name(size_t id) { return settable(id) ? wr_cli_options[id].name : NULL; }

static void show_settings(struct chat *chat)
{
    for (size_t i = 0; i < WR_CLI_N_OPTIONS; i++) {
        if (!settable(i)) continue;
        const struct wr_cli_option *option = &wr_cli_options[i];
        const char *value = chat->cli->args.value[i];
        if (!chat->cli->args.count[i])
            value = option->standard ? option->standard : "";
        else if (!option->argument)
            value = "on";
        wr_cli_printf(&chat->cli->err, "  %-20s ", option->name);
        wr_cli_put_escaped(&chat->cli->err, value, 200);
        wr_cli_printf(&chat->cli->err, "\n");
    }
}

static int set(struct chat *chat, const char *name, const char *value, weir_err *err)
{
    struct wr_cli_args *args = &chat->cli->args;
    if (!*name) {
        show_settings(chat);
        return 0;
    }
    size_t id = 0;
    while (id < WR_CLI_N_OPTIONS && !(settable(id) && !strcmp(wr_cli_options[id].name, name))) id++;
    if (id == WR_CLI_N_OPTIONS) {
        const char *near = wr_cli_nearest(name, settable_name, WR_CLI_N_OPTIONS);
        if (near) return wr_err(err, WEIR_E_USAGE, "no setting '%.60s'; did you mean '%s'?", name, near);
        return wr_err(err, WEIR_E_USAGE, "no setting '%.60s'; /set lists them", name);
    }
    bool flag = !wr_cli_options[id].argument, off = flag && !strcmp(value, "off");
    if (flag && *value && !off && strcmp(value, "on") != 0) return wr_err(err, WEIR_E_USAGE, "%s is on or off", name);
    char *copy = wr_mem_strdup(&chat->cli->ledger, WR_ACCOUNT_TEXT, value, err);
    if (!copy) return WEIR_E_NOMEM;
    /* The change is made in a copy, so that a bad value leaves everything as it was. */
    struct wr_cli_args changed = *args;
    struct wr_cli_sampling sampling;
    changed.items = wr_mem_array(&chat->cli->ledger, WR_ACCOUNT_TEXT, args->n_items + 1, sizeof *changed.items, err);
    int code = changed.items ? 0 : WEIR_E_NOMEM;
    if (code == 0) {
        memcpy(changed.items, args->items, args->n_items * sizeof *changed.items);
        wr_cli_args_set(&changed, (enum wr_cli_option_id)id, *copy ? copy : NULL); /* empty: the default again */
        if (off) changed.count[id] = 0;
        code = wr_cli_sampling_init(&sampling, &changed, &chat->cli->ledger, err);
        if (code == 0) {
            code = wr_tool_check_generate(&sampling.sampling, sampling.stops, sampling.n_stops, weir_engine_plan(chat->engine)->n_vocab, err);
            if (code) wr_cli_sampling_free(&sampling);
        }
    }
    if (code) {
        wr_mem_free(changed.items);
        wr_mem_free(copy);
        return code;
    }
    wr_mem_free(args->items);
    *args = changed;
    wr_cli_sampling_free(&chat->sampling);
    chat->sampling = sampling;
    wr_mem_free(chat->set[id]);
    chat->set[id] = copy;
    wr_cli_notice(chat->cli, "%s is %s", name, flag ? off ? "off" : "on" : *copy ? copy : "the default again");
    return 0;
}

/* The tokens of the session become those that the messages are behind. */
static int take_base(struct chat *chat, const char *path, weir_err *err)
{
    size_t n;
    const int32_t *ids = weir_session_ids(chat->session, &n);
    clear(chat);
    chat->base = wr_mem_array(&chat->cli->ledger, WR_ACCOUNT_TEXT, n, sizeof *ids, err);
    if (!chat->base) return WEIR_E_NOMEM;
    memcpy(chat->base, ids, n * sizeof *ids);
    chat->n_base = n;
    wr_cli_notice(chat->cli, "%zu tokens from %s; what you say is behind them", n, wr_file_label(path));
    return 0;
}

static int save(struct chat *chat, const char *path, weir_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    if (!*path) return wr_err(err, WEIR_E_USAGE, "/save FILE: name the file");
    int code = conversation(chat, false, &ids, &n, err);
    if (code == 0 && n == 0) code = wr_err(err, WEIR_E_USAGE, "there is nothing to save yet");
    if (code == 0) code = weir_session_set(chat->session, ids, n, err); /* the end of the answer is not evaluated yet */
    wr_mem_free(ids);
    if (code == 0) code = weir_session_save(chat->session, path, err);
    if (code == 0) wr_cli_notice(chat->cli, "%zu tokens are saved in %s", n, wr_file_label(path));
    return code;
}

static int load(struct chat *chat, const char *path, weir_err *err)
{
    if (!*path) return wr_err(err, WEIR_E_USAGE, "/load FILE: name the file");
    int code = weir_session_load(chat->session, path, err);
    return code ? code : take_base(chat, path, err);
}

static int command(struct chat *chat, const char *line, bool *end, weir_err *err)
{
    struct wr_cli_out *out = &chat->cli->err;
    char name[32] = "", setting[32] = "";
    size_t n = strcspn(line, " ");
    if (n < sizeof name) memcpy(name, line, n);
    const char *rest = line + n + strspn(line + n, " ");
    if (!strcmp(name, "/help")) {
        for (size_t i = 0; i < sizeof typed / sizeof typed[0]; i++) wr_cli_printf(out, "  %-18s %s\n", typed[i][0], typed[i][1]);
    } else if (!strcmp(name, "/set")) {
        size_t m = strcspn(rest, " ");
        if (m >= sizeof setting) return wr_err(err, WEIR_E_USAGE, "no setting '%.60s'; /set lists them", rest);
        memcpy(setting, rest, m);
        int code = set(chat, setting, rest + m + strspn(rest + m, " "), err);
        if (code) return code;
    } else if (!strcmp(name, "/stats")) {
        wr_cli_report_stats(chat->cli, chat->engine, chat->session);
    } else if (!strcmp(name, "/save") || !strcmp(name, "/load")) {
        int code = (name[1] == 's' ? save : load)(chat, rest, err);
        wr_cli_progress_clear(chat->cli);
        if (code) return code;
    } else if (!strcmp(name, "/undo")) {
        undo(chat);
    } else if (!strcmp(name, "/clear")) {
        clear(chat);
        wr_cli_notice(chat->cli, "the conversation is forgotten");
    } else if (!strcmp(name, "/bye")) {
        *end = true;
    } else {
        bool leave = !strcmp(name, "/quit") || !strcmp(name, "/exit"); /* what other programs call it */
        const char *near = leave ? "/bye" : wr_cli_nearest(name, typed_name, sizeof typed / sizeof typed[0]);
        if (near) return wr_err(err, WEIR_E_USAGE, "no command '%.60s'; did you mean %s?", line, near);
        return wr_err(err, WEIR_E_USAGE, "no command '%.60s'; /help lists them", line);
    }
    (void)wr_cli_flush(out, NULL);
    return 0;
}

/* ---- the loop -------------------------------------------------------------------------- */

static bool mends(int code) { return code == WEIR_E_USAGE || code == WEIR_E_CONTEXT || code == WEIR_E_INPUT || code == WEIR_E_TEMPLATE; }
/* Of the file that /save and /load name; a mismatch may show with the first answer behind it. */
static bool is_of_file(int code)
{
    return code == WEIR_E_OPEN || code == WEIR_E_READ || code == WEIR_E_WRITE || code == WEIR_E_FORMAT || code == WEIR_E_UNSUPPORTED || code == WEIR_E_MISMATCH;
}

static int talk(struct chat *chat, weir_err *err)
{
    struct wr_cli *cli = chat->cli;
    bool end = false;
    int code = 0;
    while (!end && code == 0) {
        const char *line = NULL;
        size_t n = 0;
        int event = wr_cli_editor_next(chat->editor, "> ", &line, &n, err);
        if (event < 0) return event;
        if (event == WR_CLI_EDITOR_END) return 0;
        if (event == WR_CLI_EDITOR_INTERRUPTED) {
            if (!chat->interactive || *wr_cli_cancel() == SIGTERM) return WEIR_E_CANCELLED;
            wr_cli_cancel_reset();
            wr_cli_notice(cli, "/bye or Ctrl-D ends");
            continue;
        }
        if (n == 0) continue;
        char *copy = wr_mem_alloc(&cli->ledger, WR_ACCOUNT_TEXT, n + 1, err);
        if (!copy) return WEIR_E_NOMEM;
        memcpy(copy, line, n);
        bool typed_command = chat->interactive && copy[0] == '/';
        code = typed_command ? command(chat, copy, &end, err) : turn(chat, copy, n, err);
        const bool loads = typed_command && !strncmp(copy, "/load", 5); /* what is wrong with that file says nothing of the conversation */
        wr_mem_free(copy);
        if (code == WEIR_E_CANCELLED && typed_command && *wr_cli_cancel() != SIGTERM) { /* /save or /load */
            wr_cli_cancel_reset();
            wr_cli_notice(cli, "interrupted");
            err->text[0] = 0;
            code = 0;
        }
        const bool bad_base = !typed_command && chat->n_base > 0 && (code == WEIR_E_FORMAT || code == WEIR_E_READ); /* a block of the file may be damaged */
        if (bad_base || (code == WEIR_E_MISMATCH && !loads && weir_session_length(chat->session) == 0)) clear(chat);
        if (chat->interactive && (mends(code) || code == WEIR_E_MISMATCH || bad_base || (typed_command && is_of_file(code)))) {
            wr_cli_printf(&cli->err, "weir: error: %s\n", err->text);
            (void)wr_cli_flush(&cli->err, NULL);
            err->text[0] = 0;
            code = 0;
        }
    }
    return code;
}

static int open_and_talk(struct chat *chat, weir_err *err)
{
    struct wr_cli *cli = chat->cli;
    const struct wr_cli_sampling *s = &chat->sampling;
    int code = wr_tool_check_generate(&s->sampling, s->stops, s->n_stops, weir_plan_get(chat->plan)->n_vocab, err);
    weir_options options = wr_cli_text_options(cli, weir_plan_get(chat->plan));
    if (code == 0) code = wr_tool_check_chat(chat->model, &options, &chat->has_template, err);
    if (code == 0 && !chat->has_template && cli->args.count[WR_CLI_SYSTEM])
        code = wr_err(err, WEIR_E_UNSUPPORTED, "%s: has no chat template for --system; put the text into a message", wr_file_label(chat->model));
    if (code == 0 && !chat->has_template)
        wr_cli_warn(cli, "the model has no chat template; it goes on with the text of all messages, as 'weir run --raw' does");
    wr_cli_limit_text(cli, weir_plan_get(chat->plan), false);
    cli->line_max = (size_t)weir_plan_get(chat->plan)->n_ctx * 64 + 65536;
    wr_cli_progress_begin(cli, "load", 0);
    if (code == 0) code = weir_engine_open(&chat->engine, chat->plan, err);
    wr_cli_progress_clear(cli);
    if (code) return code;
    chat->plan = NULL;
    code = weir_session_open(&chat->session, chat->engine, err);
    if (code == 0 && cli->args.count[WR_CLI_CONTEXT]) code = take_base(chat, cli->args.value[WR_CLI_CONTEXT], err);
    if (code == 0) code = wr_cli_editor_open(&chat->editor, cli, !chat->interactive, err);
    if (code) return code;
    if (chat->interactive) wr_cli_notice(cli, "ready; /help lists commands, Ctrl-D ends");
    code = talk(chat, err);
    if (code == WEIR_E_CANCELLED) err->text[0] = 0;
    if (cli->args.count[WR_CLI_STATS]) wr_cli_report_stats(cli, chat->engine, chat->session);
    return code;
}

int wr_cli_cmd_chat(struct wr_cli *cli, weir_err *err)
{
    struct chat chat = {.cli = cli, .err = err, .interactive = !cli->args.count[WR_CLI_STDIN]};
    size_t next;
    int code = wr_cli_model_path(cli, &chat.model, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next, err);
    if (code == 0 && chat.interactive && !isatty(STDIN_FILENO))
        code = wr_err(err, WEIR_E_USAGE, "standard input is no terminal: use 'weir run', or --stdin for a message on every line");
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0) code = wr_cli_sampling_init(&chat.sampling, &cli->args, &cli->ledger, err);
    if (code) return code;
    code = weir_plan_open(&chat.plan, chat.model, &cli->options, err);
    if (code == 0) {
        wr_cli_plan_say(cli, chat.plan);
        wr_cli_sampling_say(cli, &chat.sampling);
    }
    if (code == 0) code = open_and_talk(&chat, err);
    wr_cli_editor_close(chat.editor);
    weir_session_close(chat.session);
    weir_engine_close(chat.engine);
    weir_plan_close(chat.plan);
    clear(&chat);
    wr_mem_free(chat.messages);
    wr_mem_free(chat.answer);
    for (size_t i = 0; i < WR_CLI_N_OPTIONS; i++) wr_mem_free(chat.set[i]);
    wr_cli_sampling_free(&chat.sampling);
    return code;
}
