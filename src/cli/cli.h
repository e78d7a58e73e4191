/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sub-commands share. One struct wr_cli lives for the whole process. Standard output carries the answer alone and
 * every write to it is checked; notices, progress and statistics go to standard error.
 *
 * The buffers of the command live in the process account of the budget, so each is bounded: by the context, or by a constant.
 */
#ifndef WR_CLI_CLI_H
#define WR_CLI_CLI_H

#include <jansson.h>
#include <pthread.h>
#include "base/mem.h"
#include "base/outfile.h"
#include "cli/args.h"

/* The body of each command, in cmd_<name>.c. Returns an error for main to report; WEIR_E_CANCELLED without a text when the
 * interrupted answer was reported already. */
#define COMMAND(id, name, arguments, summary, text) int wr_cli_cmd_##name(struct wr_cli *, weir_err *);
#include "cli/commands.def"
#undef COMMAND

/* ---- output (out.c) -------------------------------------------------------------------- */

struct wr_cli_out {
    int fd;
    char buffer[4096];
    size_t n;
    uint64_t written; /* bytes put so far */
    int failed;       /* errno of the first write that failed; later output is dropped */
    bool terminal;
    bool unfinished; /* what was written last is no whole line */
};
void wr_cli_put(struct wr_cli_out *, const char *bytes, size_t n);
void wr_cli_printf(struct wr_cli_out *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes what is buffered. WEIR_E_WRITE when a write failed, now or before. */
int wr_cli_flush(struct wr_cli_out *, weir_err *);
/* Text from a file, for a terminal: control characters as \xNN, at most `most` bytes of it. */
void wr_cli_put_escaped(struct wr_cli_out *, const char *text, size_t most);
const char *wr_cli_size(uint64_t bytes, char buffer[32]); /* "56.3 MiB" */

/* ---- the process ----------------------------------------------------------------------- */

#define WR_CLI_WARNINGS 32

struct wr_cli {
    struct wr_cli_args args;
    struct wr_ledger ledger; /* of the command's own buffers; the engine has another */
    weir_options options;
    bool json, quiet;
    size_t line_max; /* of a line of input; 0: 16 MiB */
    uint32_t verbose;
    struct wr_cli_out out, err;
    char model[4096]; /* path of the model */
    /* No allocation: warnings come from inside the engine, from any thread. */
    _Atomic uint32_t n_warnings;
    char warning[WR_CLI_WARNINGS][256];
    struct { /* progress.c; under the lock */
        pthread_mutex_t lock;
        pthread_t thread;
        _Atomic uint32_t bell; /* futex of the thread */
        bool terminal, shared, started, stop, armed, shown, behind;
        char phase[64], unit[16];
        uint64_t number, done, total;
        uint64_t first_ns, armed_ns, began_ns, began_done, printed_ns; /* of the process, the phase, its rate, the line */
        uint64_t window_ns[2], window_bytes[2];
        struct wr_cli_forecast { /* what was done after how many seconds, at two times: the later one when twice as much was done as at the earlier */
            double done[2], seconds[2];
        } forecast;
    } progress;
};

void wr_cli_notice(struct wr_cli *, const char *format, ...) __attribute__((format(printf, 2, 3))); /* "weir: ..." on stderr */
void wr_cli_warn(struct wr_cli *, const char *format, ...) __attribute__((format(printf, 2, 3)));   /* and kept for "warnings" */
void wr_cli_log(void *cli, enum weir_log_level, const char *line);                                  /* a weir_log_fn */

/* ---- progress (progress.c) ------------------------------------------------------------- */

/* On a terminal one line, rewritten ten times a second from 0.3 s on; elsewhere nothing, with -v a line every 10 s, which ends with the first of the
 * answer where both streams go to one place. */
void wr_cli_progress_init(struct wr_cli *, bool terminal);
void wr_cli_progress_end(struct wr_cli *);
/* The seconds that are left of work that takes a x + b x^2 for x of it, as reading a text does: every token attends over all before it. b is known from when
 * a 16th is done. _forecast notes how far it is. */
void wr_cli_forecast(struct wr_cli_forecast *, double done, double seconds);
double wr_cli_forecast_left(const struct wr_cli_forecast *, double done, double seconds, double total);
/* Something begins that may take long: says so until _clear. number: of the token, 0 for none. */
void wr_cli_progress_begin(struct wr_cli *, const char *phase, uint64_t number);
void wr_cli_progress(void *cli, const char *phase, uint64_t done, uint64_t total, const char *unit); /* a weir_progress_fn */
void wr_cli_progress_clear(struct wr_cli *);
/* Text of the answer, to standard output; progress goes on behind it. */
int wr_cli_answer(struct wr_cli *, const char *text, size_t n, weir_err *);
/* A whole line to standard error, between what the others write there. Any thread. */
void wr_cli_line(struct wr_cli *, const char *line);
void wr_cli_direct(const char *text); /* to standard error, at once */

/* ---- limits ---------------------------------------------------------------------------- */

/* The command's own buffers are bounded too: while only text is open (`early`), by half of what the budget leaves; later by what the plan's text
 * account sets apart for the caller, and 2 MiB of the process account. */
void wr_cli_limit_text(struct wr_cli *, const weir_plan_info *, bool early);
/* options with the plan's budget, for weir_engine_open_text. */
weir_options wr_cli_text_options(const struct wr_cli *, const weir_plan_info *);
/* A line if the process took more memory than its budget: that is a defect, and never silent. */
void wr_cli_check_peak(struct wr_cli *, const weir_plan_info *);

/* ---- signals (signals.c) --------------------------------------------------------------- */

/* SIGINT and SIGTERM set the flag; a second one ends the process at once with 130. SIGPIPE and SIGXFSZ become errors of write. */
void wr_cli_signals_init(void);
const volatile int *wr_cli_cancel(void); /* the signal's number; 0: none */
void wr_cli_cancel_reset(void);
/* A file that the second signal removes on its way out; NULL: none. */
void wr_cli_doomed_file(const char *path);
void wr_cli_doomed_model(const char *path); /* one more, of a command that makes a model beside the file that it writes */

/* ---- JSON (json.c) --------------------------------------------------------------------- */

/* One object, written member by member, so that long arrays of ids are never held as JSON values. */
void wr_cli_json_begin(struct wr_cli_out *);
void wr_cli_json_add(struct wr_cli_out *, const char *name, json_t *value);  /* takes the value over; NULL is null */
void wr_cli_json_u64(struct wr_cli_out *, const char *name, uint64_t value); /* jansson's integers end at 2^63 */
void wr_cli_json_ids(struct wr_cli_out *, const char *name, const int32_t *ids, size_t n);
void wr_cli_json_end(struct wr_cli_out *);
json_t *wr_cli_json_text(const char *bytes, size_t n); /* bad UTF-8 replaced */
json_t *wr_cli_json_string(const char *);              /* NULL is null */
const char *wr_cli_finish_name(enum weir_finish);      /* "stop", "length", "interrupted" */
json_t *wr_cli_json_rate(double);                      /* null unless positive and finite */
void wr_cli_json_value(struct wr_cli_out *, const json_t *);
json_t *wr_cli_json_warnings(const struct wr_cli *); /* report.c */

/* ---- files (file.c) -------------------------------------------------------------------- */

/* wr_outfile_open; a second signal removes what was written on its way out. Always discard, after commit too. */
int wr_cli_file_open(struct wr_outfile *, const char *path, struct wr_ledger *, weir_err *);
void wr_cli_file_discard(struct wr_outfile *);

/* npy v1.0, <f4, C order, [n_rows][n_columns], in pieces of any order. */
struct wr_cli_npy {
    struct wr_outfile file;
    uint64_t header_bytes, n_rows, n_columns;
};
int wr_cli_npy_open(struct wr_cli_npy *, const char *path, uint64_t n_rows, uint64_t n_columns, struct wr_ledger *, weir_err *);
/* tile[n_rows][n_columns] goes to rows from `row`, columns from `column`. */
int wr_cli_npy_tile(struct wr_cli_npy *, uint64_t row, uint64_t n_rows, uint64_t column, uint64_t n_columns, const float *tile, weir_err *);
int wr_cli_npy_hash(struct wr_cli_npy *, uint64_t *fnv64, weir_err *); /* FNV-1a of the values; before commit */

/* ---- input (input.c) ------------------------------------------------------------------- */

struct wr_cli_text {
    char *bytes; /* NUL-terminated beyond n; from the TEXT account */
    size_t n;
    bool argument; /* not from a file or standard input */
};
/* The text: the argument at positional[index], -p, -f or standard input; giving two of them, or none with a terminal, is
 * WEIR_E_USAGE. WEIR_E_INPUT beyond max_bytes. */
int wr_cli_text_read(struct wr_cli *, size_t index, uint64_t max_bytes, struct wr_cli_text *, weir_err *);
/* "-" is standard input. */
int wr_cli_text_read_file(struct wr_cli *, const char *path, uint64_t max_bytes, struct wr_cli_text *, weir_err *);

/* Makes room for `more` elements of `size` bytes behind `used`; *memory may be NULL. */
int wr_cli_grow(struct wr_ledger *, void **memory, size_t *capacity, size_t used, size_t more, size_t size, weir_err *);

/* Line by line; a line is valid until the next call. _next gives 1 and a line without its end, 0 at the end, or an
 * error; WEIR_E_CANCELLED when a signal came. */
struct wr_cli_lines {
    struct wr_cli *cli;
    int fd;
    char *line;
    size_t capacity, begin, end; /* unread bytes are line[begin..end) */
    bool finished;
};
int wr_cli_lines_open(struct wr_cli_lines *, struct wr_cli *, const char *path, weir_err *);
int wr_cli_lines_next(struct wr_cli_lines *, char **line, size_t *n, weir_err *);
void wr_cli_lines_close(struct wr_cli_lines *);

/* ---- the line editor of chat (editor.c) ------------------------------------------------- */

struct wr_cli_editor;
enum wr_cli_editor_event { WR_CLI_EDITOR_END, WR_CLI_EDITOR_LINE, WR_CLI_EDITOR_INTERRUPTED };
/* plain: lines of standard input, without editing and prompt. */
int wr_cli_editor_open(struct wr_cli_editor **, struct wr_cli *, bool plain, weir_err *);
/* A wr_cli_editor_event or an error; the line, without its end, is valid until the next call. */
int wr_cli_editor_next(struct wr_cli_editor *, const char *prompt, const char **line, size_t *n, weir_err *);
void wr_cli_editor_close(struct wr_cli_editor *); /* NULL is fine */

/* ---- the model (model.c) --------------------------------------------------------------- */

/* Index of the first argument after the model's, whose path *path gets: MODEL may be a name (store.h). */
int wr_cli_model_path(struct wr_cli *, const char **path, size_t *next, weir_err *);
int wr_cli_no_more_arguments(struct wr_cli *, size_t next, weir_err *);
/* The engine options of command line and environment, into cli->options. */
int wr_cli_engine_options(struct wr_cli *, weir_err *);
/* The plan's, by the name of the variable where the environment gave the budget. */
const char *wr_cli_budget_origin(const struct wr_cli *, const weir_plan_info *);
/* Says on stderr what the plan chose for the user (-v: all of it). */
void wr_cli_plan_say(struct wr_cli *, const weir_plan *);

/* Ids of a text, kept beyond the engine; `first`: with a first token where the model asks for one, else without. `special` or --parse-special: special
 * tokens are recognized. */
int wr_cli_ids_of_text(struct wr_cli *, weir_engine *, const char *text, size_t n, bool special, bool first, int32_t **ids, size_t *n_ids, weir_err *);
/* What the session holds already, and behind it the n ids, which are freed: *ids becomes all of them. */
int wr_cli_ids_behind(struct wr_cli *, weir_session *, int32_t **ids, size_t *n, weir_err *);

/* The sampling options; `bias_ids` and `bias` point into memory of the ledger, freed by _free. */
struct wr_cli_sampling {
    weir_sampling sampling;
    uint64_t n_max;
    bool n_given;
    int32_t *bias_ids;
    float *bias;
    const char **stops; /* borrowed texts */
    size_t n_stops;
};
int wr_cli_sampling_init(struct wr_cli_sampling *, const struct wr_cli_args *, struct wr_ledger *, weir_err *);
void wr_cli_sampling_say(struct wr_cli *, const struct wr_cli_sampling *); /* the seed, where it was drawn: with it the text comes again */
/* A line where the context, and not -n, ended an answer of n tokens whose finish is "length". */
void wr_cli_say_cut(struct wr_cli *, const struct wr_cli_sampling *, uint64_t n, uint32_t n_ctx);
void wr_cli_sampling_free(struct wr_cli_sampling *);

/* ---- reports (report.c) ---------------------------------------------------------------- */

struct wr_cli_result {
    weir_engine *engine;
    weir_session *session;
    uint64_t seed;
    const int32_t *prompt_ids, *ids;
    size_t n_prompt, n_ids;
    const char *text;
    size_t n_text;
    enum weir_finish finish;
};
/* The members that run and eval share; between wr_cli_json_begin and _end. */
void wr_cli_report_json(struct wr_cli *, const struct wr_cli_result *);
void wr_cli_report_stats(struct wr_cli *, weir_engine *, weir_session *); /* --stats, on stderr */
void wr_cli_report_plan(const struct wr_cli *, struct wr_cli_out *, const weir_plan_info *);
void wr_cli_report_plan_json(struct wr_cli *, const weir_plan_info *); /* the members of plan; between wr_cli_json_begin and _end */
const char *wr_cli_bound_name(const weir_plan_info *);                 /* "disk", "memory", "compute" */
int wr_cli_rate_places(double tokens_per_second);

void wr_cli_help_command(struct wr_cli_out *, enum wr_cli_command_id);
void wr_cli_help_overview(struct wr_cli_out *);

#endif
