/* SPDX-License-Identifier: Apache-2.0 */
/* Checked output and notices. */
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void write_all(struct wr_cli_out *out, const char *bytes, size_t n)
{
    if (n > 0) out->unfinished = bytes[n - 1] != '\n';
    while (n > 0 && !out->failed) {
        ssize_t done = write(out->fd, bytes, n);
        if (done > 0) {
            bytes += done;
            n -= (size_t)done;
        } else if (done < 0 && errno == EAGAIN) {
            /* Somebody else's non-blocking pipe. */
            struct pollfd wait = {.fd = out->fd, .events = POLLOUT};
            (void)poll(&wait, 1, -1);
        } else if (done == 0 || errno != EINTR) {
            out->failed = done == 0 ? EIO : errno;
        }
    }
}

static void drain(struct wr_cli_out *out)
{
    size_t n = out->n;
    out->n = 0;
    write_all(out, out->buffer, n);
}

void wr_cli_put(struct wr_cli_out *out, const char *bytes, size_t n)
{
    out->written += n;
    if (n > sizeof out->buffer - out->n) drain(out);
    if (n >= sizeof out->buffer) {
        write_all(out, bytes, n);
        return;
    }
    memcpy(out->buffer + out->n, bytes, n);
    out->n += n;
}

void wr_cli_printf(struct wr_cli_out *out, const char *format, ...)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        size_t room = sizeof out->buffer - out->n;
        va_list list;
        va_start(list, format);
        int n = vsnprintf(out->buffer + out->n, room, format, list);
        va_end(list);
        if (n < 0) return;
        /* A text longer than the whole buffer is cut: callers print names and numbers this way, never texts. */
        size_t length = (size_t)n < room ? (size_t)n : room - 1;
        if ((size_t)n < room || attempt == 1) {
            out->n += length;
            out->written += length;
            return;
        }
        drain(out);
    }
}

int wr_cli_flush(struct wr_cli_out *out, weir_err *err)
{
    drain(out);
    if (!out->failed) return 0;
    return wr_err_errno(err, WEIR_E_WRITE, out->failed, "cannot write to standard %s", out->fd == STDOUT_FILENO ? "output" : "error");
}

void wr_cli_put_escaped(struct wr_cli_out *out, const char *text, size_t most)
{
    for (size_t i = 0; text[i]; i++) {
        /* Not in the middle of a character. */
        if (i >= most && ((unsigned char)text[i] & 0xC0) != 0x80) {
            wr_cli_put(out, "...", 3);
            return;
        }
        unsigned char c = (unsigned char)text[i];
        if (c == '\n')
            wr_cli_put(out, "\\n", 2);
        else if (c < 0x20 || c == 0x7F)
            wr_cli_printf(out, "\\x%02x", c);
        else
            wr_cli_put(out, text + i, 1);
    }
}

const char *wr_cli_size(uint64_t bytes, char buffer[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t i = 0;
    while (x >= 1024 && i + 1 < sizeof unit / sizeof unit[0]) {
        x /= 1024;
        i++;
    }
    snprintf(buffer, 32, i == 0 ? "%.0f %s" : "%.1f %s", x, unit[i]);
    return buffer;
}

/* ---- notices --------------------------------------------------------------------------- */

void wr_cli_direct(const char *text)
{
    struct wr_cli_out direct = {.fd = STDERR_FILENO};
    write_all(&direct, text, strlen(text));
}

static void line_to_stderr(struct wr_cli *cli, const char *prefix, const char *text)
{
    char line[400];
    if (cli->quiet) return;
    int n = snprintf(line, sizeof line - 1, "weir: %s%s", prefix, text);
    size_t length = n < 0 ? 0 : (size_t)n < sizeof line - 1 ? (size_t)n : sizeof line - 2;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = '?';
    line[length++] = '\n';
    line[length] = 0;
    wr_cli_line(cli, line);
}

void wr_cli_notice(struct wr_cli *cli, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    line_to_stderr(cli, "", text);
}

void wr_cli_warn(struct wr_cli *cli, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    wr_cli_log(cli, WEIR_LOG_WARN, text);
}

void wr_cli_log(void *user, enum weir_log_level level, const char *line)
{
    struct wr_cli *cli = user;
    if (level == WEIR_LOG_WARN) {
        /* Once is enough, for a session may meet the same thing at every turn. */
        for (uint32_t i = 0; i < cli->n_warnings && i < WR_CLI_WARNINGS; i++)
            if (!strncmp(cli->warning[i], line, sizeof cli->warning[i] - 1)) return;
        uint32_t i = cli->n_warnings++;
        if (i < WR_CLI_WARNINGS) snprintf(cli->warning[i], sizeof cli->warning[i], "%s", line);
        line_to_stderr(cli, "warning: ", line);
    } else if (cli->verbose >= (level == WEIR_LOG_INFO ? 1u : 2u)) {
        line_to_stderr(cli, "", line);
    }
}
