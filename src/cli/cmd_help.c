/* SPDX-License-Identifier: Apache-2.0 */
/* Help and docs/CLI.md, from the tables. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

/* Options in table order, with a row for each section title. */
static const struct {
    const char *title;
    enum wr_cli_option_id option;
} rows[] = {
#define GROUP(title) {title, WR_CLI_N_OPTIONS},
#define OPTION(id, name, letter, argument, kind, standard, help, commands) {NULL, WR_CLI_##id},
#include "cli/options.def"
#undef OPTION
#undef GROUP
};
#define N_ROWS (sizeof rows / sizeof rows[0])

#define DOCUMENTS "CLI.md, JSON.md and the other documents are in docs of the source, and in share/doc/weir where weir is installed.\n"

/* "-c, --ctx N"; an option whose name is its letter is written once. */
static void spell(const struct wr_cli_option *option, char buffer[64])
{
    const char *argument = option->argument ? option->argument : "", *space = option->argument ? " " : "";
    if (option->letter && option->name[1])
        snprintf(buffer, 64, "-%c, --%s%s%s", option->letter, option->name, space, argument);
    else if (option->letter)
        snprintf(buffer, 64, "-%c%s%s", option->letter, space, argument);
    else
        snprintf(buffer, 64, "    --%s%s%s", option->name, space, argument);
}

static void put_option(struct wr_cli_out *out, const struct wr_cli_option *option)
{
    char name[64];
    spell(option, name);
    wr_cli_printf(out, "  %-27s %s", name, option->help);
    if (option->standard) wr_cli_printf(out, " [%s]", option->standard);
    wr_cli_put(out, "\n", 1);
}

void wr_cli_help_overview(struct wr_cli_out *out)
{
    wr_cli_printf(out, "weir %s: runs language models larger than memory, exactly, inside a memory budget\n\n", weir_version());
    for (size_t i = 0; i < WR_CLI_N_COMMANDS; i++) {
        char usage[64];
        snprintf(usage, sizeof usage, "%s %s", wr_cli_commands[i].name, wr_cli_commands[i].arguments);
        wr_cli_printf(out, "  weir %-24s %s\n", usage, wr_cli_commands[i].summary);
    }
    wr_cli_printf(out, "\nMODEL is a .gguf file, a folder that holds one model, or a name that 'weir list' shows. 'weir help COMMAND' lists the options of a "
                       "command.\n" DOCUMENTS);
}

void wr_cli_help_command(struct wr_cli_out *out, enum wr_cli_command_id id)
{
    const struct wr_cli_command *command = &wr_cli_commands[id];
    const char *title = NULL;
    wr_cli_printf(out, "weir %s %s\n\n%s.\n", command->name, command->arguments, command->summary);
    if (command->text) wr_cli_printf(out, "%s\n", command->text);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].title) {
            title = rows[i].title;
            continue;
        }
        const struct wr_cli_option *option = &wr_cli_options[rows[i].option];
        if (!(option->commands >> id & 1)) continue;
        if (title) wr_cli_printf(out, "\n%s\n", title);
        title = NULL;
        put_option(out, option);
    }
    wr_cli_printf(out, "\n[ ]: the default. Every option has an environment variable: --top-k is WEIR_TOP_K; the command line wins.\n" DOCUMENTS);
}

static void put_cell(struct wr_cli_out *out, const char *text)
{
    for (const char *s = text; *s; s++) {
        if (*s == '|') wr_cli_put(out, "\\", 1);
        wr_cli_put(out, s, 1);
    }
}

static void markdown_commands(struct wr_cli_out *out)
{
    for (size_t i = 0; i < WR_CLI_N_COMMANDS; i++) {
        const struct wr_cli_command *command = &wr_cli_commands[i];
        wr_cli_printf(
            out, "\n### weir %s\n\n`weir %s%s%s`: %s.\n", command->name, command->name, *command->arguments ? " " : "", command->arguments, command->summary);
        if (command->text) wr_cli_printf(out, "\n%s\n", command->text);
        wr_cli_printf(out, "\nOptions:");
        const char *separator = " ";
        for (size_t j = 0; j < WR_CLI_N_OPTIONS; j++) {
            const struct wr_cli_option *option = &wr_cli_options[j];
            if (!(option->commands >> i & 1)) continue;
            wr_cli_printf(out, "%s`%s%s`", separator, option->name[1] ? "--" : "-", option->name);
            separator = ", ";
        }
        wr_cli_printf(out, ".\n");
    }
}

static void markdown(struct wr_cli_out *out)
{
    wr_cli_printf(out, "# The command line\n\n"
                       "Written by `weir help --markdown` from the tables in `src/cli`; do not edit.\n\n## Commands\n");
    markdown_commands(out);
    wr_cli_printf(out,
        "\n## MODEL\n\nA file (of a split model any part), a folder that holds one model, or a name. What is there as a file or folder is meant as that; `weir "
        "list` prints the names.\n"
        "With `--model` it is left out of the arguments: `weir run --model FILE \"a prompt\"`. With `WEIR_MODEL` it may be left out: one argument alone is "
        "the text of `run` and `tokenize`, and all arguments are ids of `detokenize`; a model before the text, or `--model`, wins over the variable.\n\n"
        "| name | |\n|---|---|\n"
        "| `NAME` | `NAME.gguf` or the folder `NAME` in `$XDG_CACHE_HOME/weir/models` (`~/.cache/weir/models`) |\n"
        "| `ollama:NAME[:TAG]`, `ollama:HOST/SPACE/NAME:TAG` | in `$OLLAMA_MODELS`, else `~/.ollama/models` and the service's folder. Of the model "
        "the weights and their own template are used, none of ollama's templates, system messages and parameters |\n"
        "| `hf:ORG/REPO`, `hf:ORG/REPO:FILE`, `hf:ORG/REPO:Q4_K_M` | in `$HF_HUB_CACHE`, `$HF_HOME/hub` or `~/.cache/huggingface/hub`: the file that is "
        "named, or the only one with this word in its name |\n\nNothing is ever downloaded.\n");
    wr_cli_printf(out, "\n## Options\n\nSizes are 512M, 2G, 1.5GiB (K, M, G, T are powers of 1024), 59MB (powers of 1000), or bytes.\n"
                       "`--name VALUE`, `--name=VALUE`, `-n 64`, `-n64`; what follows `--` is no option.\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].title) {
            wr_cli_printf(out, "\n### %s\n\n| option | default | | environment |\n|---|---|---|---|\n", rows[i].title);
            continue;
        }
        const struct wr_cli_option *option = &wr_cli_options[rows[i].option];
        char name[64];
        spell(option, name);
        wr_cli_printf(out, "| `");
        put_cell(out, name + strspn(name, " "));
        wr_cli_printf(out, "` | %s | ", option->standard ? option->standard : "");
        put_cell(out, option->help);
        wr_cli_environment_name(rows[i].option, name);
        wr_cli_printf(out, " | %s |\n", rows[i].option == WR_CLI_HELP ? "" : name);
    }
    wr_cli_printf(out, "\n## Exit codes\n\n| error | exit code | |\n|---|---|---|\n| | 0 | success |\n");
#define ERROR(name, value, exit_code, http, text) wr_cli_printf(out, "| `%s` | %d | %s |\n", #name, exit_code, text);
#include <weir/errors.def>
#undef ERROR
}

int wr_cli_cmd_help(struct wr_cli *cli, weir_err *err)
{
    int code = wr_cli_no_more_arguments(cli, 1, err);
    if (code) return code;
    if (cli->args.count[WR_CLI_MARKDOWN]) {
        markdown(&cli->out);
        return 0;
    }
    if (cli->args.n_positional == 0) {
        wr_cli_help_overview(&cli->out);
        return 0;
    }
    enum wr_cli_command_id id = wr_cli_command_find(cli->args.positional[0], err);
    if (id == WR_CLI_N_COMMANDS) return WEIR_E_USAGE;
    wr_cli_help_command(&cli->out, id);
    return 0;
}
