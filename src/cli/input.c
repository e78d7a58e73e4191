/* SPDX-License-Identifier: Apache-2.0 */
/* Texts from arguments, files and standard input, each with a bound. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Waits for input, so that a signal is seen: poll is never restarted. Then like read. -1 with EINTR: a signal came. */
static ssize_t read_some(int fd, char *bytes, size_t n)
{
    if (*wr_cli_cancel()) {
        errno = EINTR;
        return -1;
    }
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (poll(&wait, 1, -1) < 0) return -1;
    return read(fd, bytes, n);
}

static const char *shown(const char *path) { return strcmp(path, "-") ? wr_file_label(path) : "standard input"; }

static int open_input(const char *path, int *fd, weir_err *err)
{
    *fd = STDIN_FILENO;
    if (!strcmp(path, "-")) return 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "%s: cannot open", shown(path));
    struct stat about;
    if (fstat(*fd, &about) == 0 && S_ISDIR(about.st_mode)) {
        close(*fd);
        return wr_err(err, WEIR_E_OPEN, "%s: is a folder; name a file in it", shown(path));
    }
    /* Non-blocking only for the open, which would wait for a writer of a pipe. */
    (void)fcntl(*fd, F_SETFL, 0);
    return 0;
}

static void close_input(int fd)
{
    if (fd != STDIN_FILENO) close(fd);
}

int wr_cli_text_read_file(struct wr_cli *cli, const char *path, uint64_t max_bytes, struct wr_cli_text *text, weir_err *err)
{
    int fd;
    wr_cli_progress_clear(cli); /* the wait is for whoever writes the text */
    int code = open_input(path, &fd, err);
    if (code) return code;
    struct stat about;
    size_t capacity = 4096, n = 0;
    char *bytes = NULL;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
        if ((uint64_t)about.st_size > max_bytes) goto too_long;
        capacity = (size_t)about.st_size + 2; /* one more than needed: the read that sees the end */
    }
    bytes = wr_mem_alloc(&cli->ledger, WR_ACCOUNT_TEXT, capacity, err);
    if (!bytes) {
        code = WEIR_E_NOMEM;
        goto done;
    }
    for (;;) {
        if (n + 1 >= capacity) {
            capacity += capacity / 2;
            char *more = wr_mem_resize(bytes, capacity, err);
            if (!more) {
                code = WEIR_E_NOMEM;
                goto done;
            }
            bytes = more;
        }
        ssize_t got = read_some(fd, bytes + n, capacity - 1 - n);
        if (got == 0) break;
        if (got < 0) {
            if (errno == EINTR && !*wr_cli_cancel()) continue;
            code = errno == EINTR ? wr_err(err, WEIR_E_CANCELLED, "interrupted while reading %s", shown(path))
                                  : wr_err_errno(err, WEIR_E_READ, errno, "%s: cannot read", shown(path));
            goto done;
        }
        n += (size_t)got;
        if (n > max_bytes) goto too_long;
    }
    bytes[n] = 0;
    *text = (struct wr_cli_text){.bytes = bytes, .n = n};
    bytes = NULL;
    goto done;

too_long:
    code = wr_err(err, WEIR_E_INPUT,
        "%s: is longer than the %llu bytes that this context and budget are read up to; give a larger -c or --memory, or a shorter text", shown(path),
        (unsigned long long)max_bytes);
done:
    close_input(fd);
    wr_mem_free(bytes);
    return code;
}

int wr_cli_text_read(struct wr_cli *cli, size_t index, uint64_t max_bytes, struct wr_cli_text *text, weir_err *err)
{
    const struct wr_cli_args *args = &cli->args;
    const char *argument = index < args->n_positional ? args->positional[index] : NULL;
    const char *file = args->count[WR_CLI_FILE] ? args->value[WR_CLI_FILE] : NULL;
    const char *prompt = args->count[WR_CLI_PROMPT] ? args->value[WR_CLI_PROMPT] : NULL;
    if (argument) {
        /* The command line is nearer than the environment. */
        if (args->from_environment[WR_CLI_FILE]) file = NULL;
        if (args->from_environment[WR_CLI_PROMPT]) prompt = NULL;
    }
    if (!!argument + !!file + !!prompt > 1) return wr_err(err, WEIR_E_USAGE, "the text is given twice: choose one of the argument, -p and -f");
    if (prompt) argument = prompt;
    if (argument) {
        char *copy = wr_mem_strdup(&cli->ledger, WR_ACCOUNT_TEXT, argument, err);
        if (!copy) return WEIR_E_NOMEM;
        *text = (struct wr_cli_text){.bytes = copy, .n = strlen(copy), .argument = true};
        return 0;
    }
    if (!file && isatty(STDIN_FILENO))
        return wr_err(err, WEIR_E_USAGE, "no text: give it as an argument, with -f FILE, or on standard input ('weir chat' is the interactive command)");
    return wr_cli_text_read_file(cli, file ? file : "-", max_bytes, text, err);
}

int wr_cli_grow(struct wr_ledger *ledger, void **memory, size_t *capacity, size_t used, size_t more, size_t size, weir_err *err)
{
    if (used + more <= *capacity) return 0;
    size_t wanted = used + more + used / 2 + 64;
    void *grown = *memory ? wr_mem_resize(*memory, wanted * size, err) : wr_mem_array(ledger, WR_ACCOUNT_TEXT, wanted, size, err);
    if (!grown) return WEIR_E_NOMEM;
    *memory = grown;
    *capacity = wanted;
    return 0;
}

/* ---- lines ----------------------------------------------------------------------------- */

#define LINE_MAX_BYTES (16u << 20)

int wr_cli_lines_open(struct wr_cli_lines *lines, struct wr_cli *cli, const char *path, weir_err *err)
{
    *lines = (struct wr_cli_lines){.cli = cli, .capacity = 4096};
    int code = open_input(path, &lines->fd, err);
    if (code) return code;
    lines->line = wr_mem_alloc(&cli->ledger, WR_ACCOUNT_TEXT, lines->capacity, err);
    if (lines->line) return 0;
    close_input(lines->fd);
    return WEIR_E_NOMEM;
}

int wr_cli_lines_next(struct wr_cli_lines *lines, char **line, size_t *n, weir_err *err)
{
    size_t seen = 0; /* of the unread bytes, without a line end */
    for (;;) {
        char *unread = lines->line + lines->begin;
        char *end = memchr(unread + seen, '\n', lines->end - lines->begin - seen);
        if (end || (lines->finished && lines->end > lines->begin)) {
            *line = unread;
            *n = end ? (size_t)(end - unread) : lines->end - lines->begin;
            lines->begin += *n + (end != NULL);
            unread[*n] = 0;
            return 1;
        }
        if (lines->finished) return 0;
        seen = lines->end - lines->begin;
        memmove(lines->line, unread, seen);
        lines->begin = 0;
        lines->end = seen;
        if (lines->end + 1 >= lines->capacity) {
            size_t most = lines->cli->line_max != 0 ? lines->cli->line_max : LINE_MAX_BYTES;
            if (lines->capacity >= most) return wr_err(err, WEIR_E_INPUT, "a line is longer than %zu bytes", most);
            char *more = wr_mem_resize(lines->line, lines->capacity * 2, err);
            if (!more) return WEIR_E_NOMEM;
            lines->line = more;
            lines->capacity *= 2;
        }
        ssize_t got = read_some(lines->fd, lines->line + lines->end, lines->capacity - 1 - lines->end);
        if (got < 0 && errno == EINTR) {
            if (*wr_cli_cancel()) return wr_err(err, WEIR_E_CANCELLED, "interrupted while reading");
            continue;
        }
        if (got < 0) return wr_err_errno(err, WEIR_E_READ, errno, "cannot read");
        lines->finished = got == 0;
        lines->end += (size_t)got;
    }
}

void wr_cli_lines_close(struct wr_cli_lines *lines)
{
    if (!lines->line) return;
    close_input(lines->fd);
    wr_mem_free(lines->line);
    lines->line = NULL;
}
