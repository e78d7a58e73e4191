/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of commands and options, and the parser that iterates them. Pure: reads argv and the environment, prints nothing. */
#ifndef WR_CLI_ARGS_H
#define WR_CLI_ARGS_H

#include "base/mem.h"

enum wr_cli_command_id {
#define COMMAND(id, name, arguments, summary, text) WR_CLI_CMD_##id,
#include "cli/commands.def"
#undef COMMAND
    WR_CLI_N_COMMANDS
};

struct wr_cli; /* cli.h */
struct wr_cli_command {
    const char *name, *arguments, *summary, *text;
    int (*run)(struct wr_cli *, weir_err *);
};
/* Defined in main.c, so that the parser can be tested without the bodies. */
extern const struct wr_cli_command wr_cli_commands[WR_CLI_N_COMMANDS];

enum wr_cli_kind { WR_CLI_FLAG, WR_CLI_VALUE, WR_CLI_LIST, WR_CLI_ENGINE };

enum wr_cli_option_id {
#define GROUP(title)
#define OPTION(id, name, letter, argument, kind, standard, help, commands) WR_CLI_##id,
#include "cli/options.def"
#undef OPTION
#undef GROUP
    WR_CLI_N_OPTIONS
};

struct wr_cli_option {
    const char *name;     /* without dashes */
    char letter;          /* 0: none */
    const char *argument; /* NULL: takes none */
    enum wr_cli_kind kind;
    const char *standard; /* the default, in words; NULL: off */
    const char *help;
    uint32_t commands; /* bit i: command i has it */
};
extern const struct wr_cli_option wr_cli_options[WR_CLI_N_OPTIONS];

struct wr_cli_item {
    enum wr_cli_option_id option;
    const char *value; /* NULL for flags; borrowed from argv or the environment */
};

struct wr_cli_args {
    enum wr_cli_command_id command;
    const char *value[WR_CLI_N_OPTIONS]; /* the last one given */
    uint32_t count[WR_CLI_N_OPTIONS];    /* how often; 0: not given */
    bool from_environment[WR_CLI_N_OPTIONS];
    struct wr_cli_item *items; /* everything given, in order */
    size_t n_items;
    const char **positional;
    size_t n_positional;
};

/* argv[0] is the command's name. WEIR_E_USAGE names the bad word and, where one is near, what was probably meant. */
int wr_cli_parse(struct wr_cli_args *, enum wr_cli_command_id, int argc, char **argv, struct wr_ledger *, weir_err *);
/* What a variable of the environment ("WEIR_NAME=...") that looks like an option's and is none may be told with. */
bool wr_cli_environment_unknown(const char *variable, char text[256]);
void wr_cli_args_free(struct wr_cli_args *);
/* Replaces every mention of an option by one; value NULL, for an option with an argument: by none. `value` is borrowed, and
 * `items` has room for one more. */
void wr_cli_args_set(struct wr_cli_args *, enum wr_cli_option_id, const char *value);

/* What the user typed to give this option: "--ctx" or "WEIR_CTX". */
const char *wr_cli_option_origin(const struct wr_cli_args *, enum wr_cli_option_id, char buffer[64]);
void wr_cli_environment_name(enum wr_cli_option_id, char buffer[64]);

/* Numbers: *out is untouched when the option was not given. WEIR_E_USAGE names option, value and range. */
int wr_cli_u64(const struct wr_cli_args *, enum wr_cli_option_id, uint64_t min, uint64_t max, uint64_t *out, weir_err *);
int wr_cli_f32(const struct wr_cli_args *, enum wr_cli_option_id, double min, double max, float *out, weir_err *);
bool wr_cli_parse_u64(const char *text, uint64_t *out);
bool wr_cli_parse_f64(const char *text, double *out); /* finite */

/* Of n names (name(i)) the one that begins with the word, or else the nearest; NULL when none is near enough to be meant. */
const char *wr_cli_nearest(const char *word, const char *(*name)(size_t i), size_t n);
/* The id of a command, or WR_CLI_N_COMMANDS and *err with the nearest name. */
enum wr_cli_command_id wr_cli_command_find(const char *name, weir_err *);

/* Token ids as a JSON array of integers or, if `list` allows it, separated by spaces. *ids from the ledger's TEXT account. */
int wr_cli_parse_ids(const char *text, size_t n, bool list, struct wr_ledger *, int32_t **ids, size_t *n_ids, weir_err *);

#endif
