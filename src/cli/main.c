/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir: the command. Finds the sub-command, parses its options, runs it, and turns a WEIR_E_* into one line on stderr, an
 * object on stdout with --json, and the exit code of errors.def.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct wr_cli_command wr_cli_commands[WR_CLI_N_COMMANDS] = {
#define COMMAND(id, name, arguments, summary, text) {#name, arguments, summary, text, wr_cli_cmd_##name},
#include "cli/commands.def"
#undef COMMAND
};

/* A closed standard descriptor would be given to the next file that is opened, and then be written to. It becomes /dev/null,
 * opened so that using it fails. */
static void hold_standard_descriptors(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

/* Errors of the parser come before --json was seen by it. */
static bool wants_json(int argc, char **argv)
{
    const char *value = getenv("WEIR_JSON");
    if (value && (!strcmp(value, "1") || !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "on"))) return true;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strcmp(argv[i], "--json")) return true;
    return false;
}

static int execute(struct wr_cli *cli, int argc, char **argv, weir_err *err)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        wr_cli_help_overview(&cli->err);
        (void)wr_cli_flush(&cli->err, NULL);
        return wr_err(err, WEIR_E_USAGE, "no command; the list above has them");
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) name = "version";
    enum wr_cli_command_id id = wr_cli_command_find(name, err);
    if (id == WR_CLI_N_COMMANDS) return WEIR_E_USAGE;
    int code = wr_cli_parse(&cli->args, id, argc - 1, argv + 1, &cli->ledger, err);
    if (code) return code;
    const struct wr_cli_args *args = &cli->args;
    if (args->count[WR_CLI_QUIET] && args->count[WR_CLI_VERBOSE] && !args->from_environment[WR_CLI_QUIET] && !args->from_environment[WR_CLI_VERBOSE])
        return wr_err(err, WEIR_E_USAGE, "--quiet and --verbose: give one of them");
    cli->json = cli->args.count[WR_CLI_JSON] > 0;
    cli->quiet = cli->args.count[WR_CLI_QUIET] > 0;
    cli->verbose = cli->args.count[WR_CLI_VERBOSE];
    for (char **variable = environ; *variable; variable++) {
        char text[256];
        if (wr_cli_environment_unknown(*variable, text)) wr_cli_warn(cli, "%s", text);
    }
    if (cli->args.count[WR_CLI_HELP])
        wr_cli_help_command(&cli->out, id);
    else
        code = wr_cli_commands[id].run(cli, err);
    return code;
}

static void report(struct wr_cli *cli, int code, weir_err *err)
{
    if (!err->text[0]) {
        if (code == WEIR_E_CANCELLED) return; /* an answer that was interrupted, and says so itself */
        wr_err(err, code, "%s", weir_error_name(code));
    }
    if (cli->json && cli->out.written == 0) {
        json_t *error =
            json_pack("{s:{s:s, s:i, s:o}}", "error", "code", weir_error_name(code), "exit", wr_err_exit_code(code), "message", wr_cli_json_string(err->text));
        wr_cli_json_value(&cli->out, error);
        wr_cli_put(&cli->out, "\n", 1);
        json_decref(error);
    }
    (void)wr_cli_flush(&cli->out, NULL);
    wr_cli_printf(&cli->err, "weir: error: %s\n", err->text);
    (void)wr_cli_flush(&cli->err, NULL);
}

static struct wr_cli cli = {.out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};

static void *json_alloc(size_t n) { return wr_mem_alloc(&cli.ledger, WR_ACCOUNT_TEXT, n, NULL); }

int main(int argc, char **argv)
{
    weir_err err = {0};
    hold_standard_descriptors();
    wr_cli_signals_init();
    wr_ledger_init(&cli.ledger);
    /* JSON counts as the command's text, also what the library makes of messages. Here, since the setting is of the whole process: a library
     * that made it would change the program around it. */
    json_set_alloc_funcs(json_alloc, wr_mem_free);
    const char *terminal = getenv("TERM");
    wr_cli_progress_init(&cli, isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0);
    cli.out.terminal = isatty(STDOUT_FILENO);
    cli.json = wants_json(argc, argv);

    int code = execute(&cli, argc, argv, &err);
    wr_cli_progress_end(&cli);
    int flushed = wr_cli_flush(&cli.out, err.text[0] ? NULL : &err);
    if (code == 0) code = flushed;
    /* The reader of a pipe has what it wanted: no error, whatever the write made of it on the way. */
    if (cli.out.failed == EPIPE && code != WEIR_E_CANCELLED) code = 0;
    if (code) report(&cli, code, &err);
    wr_cli_args_free(&cli.args);
    return wr_err_exit_code(code);
}
