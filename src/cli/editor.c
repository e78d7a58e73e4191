/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for weir chat: libedit on a terminal, where weir was built with it, and plain reading elsewhere. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#ifdef WR_HAVE_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <wchar.h>
#include "base/utf8.h"
#endif

struct wr_cli_editor {
    struct wr_cli *cli;
    bool plain;
    struct wr_cli_lines lines;
#ifdef WR_HAVE_LIBEDIT
    EditLine *edit;
    History *history;
    const char *prompt;
    char path[PATH_MAX]; /* of the history; "": none is kept */
#endif
};

#ifdef WR_HAVE_LIBEDIT

#define HISTORY_LINES 1000

/* $XDG_STATE_HOME/weir/history, made if need be; nothing is kept where that fails. */
static void find_history(struct wr_cli_editor *editor)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = editor->path;
    size_t room = sizeof editor->path;
    int n = state && *state == '/' ? snprintf(path, room, "%s/weir/history", state)
                                   : snprintf(path, room, "%s/.local/state/weir/history", home && *home == '/' ? home : "");
    bool known = (state && *state == '/') || (home && *home == '/');
    if (!known || n < 0 || (size_t)n >= room) {
        path[0] = 0;
        return;
    }
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool there = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!there) {
            path[0] = 0;
            return;
        }
    }
}

static char *prompt_of(EditLine *edit)
{
    struct wr_cli_editor *editor;
    el_get(edit, EL_CLIENTDATA, &editor);
    return (char *)editor->prompt;
}

/* One character, or -1 when a signal came: libedit's own reader goes on after one. */
static int read_character(EditLine *edit, wchar_t *out)
{
    (void)edit;
    uint8_t bytes[4];
    for (size_t n = 0; n < sizeof bytes;) {
        if (*wr_cli_cancel()) return -1;
        struct pollfd wait = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&wait, 1, -1) < 0) continue; /* EINTR: the flag tells */
        ssize_t got = read(STDIN_FILENO, bytes + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return (int)got;
        /* Ctrl-D typed while an answer was running: the kernel keeps it as a NUL when the terminal changes to single keys. */
        if (n == 0 && bytes[0] == 0) bytes[0] = 4;
        uint32_t cp;
        int length = wr_utf8_decode(bytes, ++n, &cp);
        if (length < 0) continue;
        *out = (wchar_t)(length == 0 ? 0xFFFD : cp);
        return 1;
    }
    *out = (wchar_t)0xFFFD;
    return 1;
}

static int open_terminal(struct wr_cli_editor *editor, weir_err *err)
{
    HistEvent event;
    /* libedit turns characters into bytes by the locale; without one it would lose what is not ASCII. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    editor->edit = el_init("weir", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    if (!editor->edit) return wr_err(err, WEIR_E_FAIL, "the terminal cannot be edited; use --stdin");
    editor->history = history_init();
    el_set(editor->edit, EL_CLIENTDATA, editor);
    el_set(editor->edit, EL_PROMPT, prompt_of);
    el_set(editor->edit, EL_EDITOR, "emacs");
    el_set(editor->edit, EL_SIGNAL, 0);
    el_set(editor->edit, EL_GETCFN, read_character);
    el_set(editor->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    if (editor->history) {
        history(editor->history, &event, H_SETSIZE, HISTORY_LINES);
        history(editor->history, &event, H_SETUNIQUE, 1);
        el_set(editor->edit, EL_HIST, history, editor->history);
        find_history(editor);
        if (editor->path[0]) history(editor->history, &event, H_LOAD, editor->path);
    }
    return 0;
}

static int next_terminal(struct wr_cli_editor *editor, const char *prompt, const char **line, size_t *n)
{
    HistEvent event;
    int count = 0;
    editor->prompt = prompt;
    el_resize(editor->edit);
    const char *text = el_gets(editor->edit, &count);
    if (!text || count <= 0) {
        bool interrupted = *wr_cli_cancel() != 0;
        wr_cli_put(&editor->cli->err, "\n", 1);
        (void)wr_cli_flush(&editor->cli->err, NULL);
        if (interrupted) el_reset(editor->edit);
        return interrupted ? WR_CLI_EDITOR_INTERRUPTED : WR_CLI_EDITOR_END;
    }
    if (editor->history && count > 1) history(editor->history, &event, H_ENTER, text);
    *line = text;
    *n = (size_t)count - (text[count - 1] == '\n');
    return WR_CLI_EDITOR_LINE;
}

static void close_terminal(struct wr_cli_editor *editor)
{
    HistEvent event;
    if (editor->history && editor->path[0]) {
        mode_t mask = umask(077);
        if (history(editor->history, &event, H_SAVE, editor->path) < 0) wr_cli_warn(editor->cli, "%s: the history could not be written", editor->path);
        umask(mask);
    }
    if (editor->edit) el_end(editor->edit);
    if (editor->history) history_end(editor->history);
}

#endif

int wr_cli_editor_open(struct wr_cli_editor **out, struct wr_cli *cli, bool plain, weir_err *err)
{
    struct wr_cli_editor *editor = wr_mem_alloc(&cli->ledger, WR_ACCOUNT_TEXT, sizeof *editor, err);
    if (!editor) return WEIR_E_NOMEM;
    editor->cli = cli;
    editor->plain = plain;
    int code = 0;
#ifdef WR_HAVE_LIBEDIT
    code = plain ? wr_cli_lines_open(&editor->lines, cli, "-", err) : open_terminal(editor, err);
#else
    code = wr_cli_lines_open(&editor->lines, cli, "-", err);
#endif
    if (code) {
        wr_mem_free(editor);
        return code;
    }
    *out = editor;
    return 0;
}

int wr_cli_editor_next(struct wr_cli_editor *editor, const char *prompt, const char **line, size_t *n, weir_err *err)
{
#ifdef WR_HAVE_LIBEDIT
    if (!editor->plain) return next_terminal(editor, prompt, line, n);
#endif
    if (!editor->plain) {
        wr_cli_printf(&editor->cli->err, "%s", prompt);
        (void)wr_cli_flush(&editor->cli->err, NULL);
    }
    char *text;
    int got = wr_cli_lines_next(&editor->lines, &text, n, err);
    if (got == WEIR_E_CANCELLED) return WR_CLI_EDITOR_INTERRUPTED;
    if (got == 1) *line = text;
    return got < 0 ? got : got == 1 ? WR_CLI_EDITOR_LINE : WR_CLI_EDITOR_END;
}

void wr_cli_editor_close(struct wr_cli_editor *editor)
{
    if (!editor) return;
#ifdef WR_HAVE_LIBEDIT
    if (!editor->plain) close_terminal(editor);
#endif
    wr_cli_lines_close(&editor->lines);
    wr_mem_free(editor);
}
