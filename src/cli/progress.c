/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line of progress. The library says how far it is after every layer, which may take minutes where the disk is slow; so a
 * thread of the command's own prints what is known, and how fast bytes come, ten times a second.
 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/os.h"
#include "base/team.h"

#define FIRST_NS 300000000ull /* what ends sooner needs no line */
#define TERMINAL_NS 100000000ull
#define FIRST_ELSEWHERE_NS 1500000000ull
#define ELSEWHERE_NS 10000000000ull /* a log is read later: one line in so long */
#define WINDOW_NS 1000000000ull     /* the rate of reads is that of the last one to two of these */
#define LEFT_FROM_SECONDS 5.0       /* less is not worth a forecast */

void wr_cli_progress_init(struct wr_cli *cli, bool terminal)
{
    pthread_mutex_init(&cli->progress.lock, NULL);
    cli->progress.terminal = terminal;
    struct stat out, err;
    cli->progress.shared = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

static void erase(struct wr_cli *cli)
{
    if (!cli->progress.shown) return;
    cli->progress.shown = false;
    /* Behind an unfinished line of the answer the cursor never left its end. */
    wr_cli_direct(cli->progress.behind ? "\033[K" : "\r\033[K");
}

static size_t add(char *line, size_t room, size_t n, const char *format, ...) __attribute__((format(printf, 4, 5)));
static size_t add(char *line, size_t room, size_t n, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int more = vsnprintf(line + n, room - n, format, list);
    va_end(list);
    if (more < 0) return n;
    return n + (size_t)more < room ? n + (size_t)more : room - 1;
}

void wr_cli_forecast(struct wr_cli_forecast *f, double done, double seconds)
{
    if (done <= 0 || done < 2 * f->done[1]) return;
    f->done[0] = f->done[1];
    f->seconds[0] = f->seconds[1];
    f->done[1] = done;
    f->seconds[1] = seconds;
}

double wr_cli_forecast_left(const struct wr_cli_forecast *f, double done, double seconds, double total)
{
    double each = seconds / done, slower = 0;
    if (done >= total / 16 && f->done[0] > 0) slower = (each - f->seconds[0] / f->done[0]) / (done - f->done[0]);
    return (total - done) * (each + (slower > 0 ? slower * total : 0));
}

/* "prefill 128 of 4096 tokens, 12.3 tokens/s, 5 min left, reading 512 MB/s" */
static void describe(const struct wr_cli *cli, uint64_t now, double reading, char *line, size_t room)
{
    char a[32], b[32];
    unsigned long long done = cli->progress.done, total = cli->progress.total;
    const char *unit = cli->progress.unit;
    bool bytes = !strcmp(unit, "bytes"), layers = !strcmp(unit, "layers"), seconds = !strcmp(unit, "seconds");
    double elapsed = (double)(now - cli->progress.began_ns) * 1e-9, rate = elapsed > 0 ? (double)(done - cli->progress.began_done) / elapsed : 0;
    size_t n = add(line, room, 0, "%s", cli->progress.phase);
    if (cli->progress.number) n = add(line, room, n, " token %llu", (unsigned long long)cli->progress.number);
    if (total && bytes)
        n = add(line, room, n, " %s of %s, %.0f MB/s", wr_cli_size(done, a), wr_cli_size(total, b), rate * 1e-6);
    else if (total)
        n = add(line, room, n, "%s %llu of %llu %s", cli->progress.number ? "," : "", done, total, unit);
    if (total && !bytes && !layers && !seconds && rate > 0) n = add(line, room, n, ", %.3g %s/s", rate, unit);
    double left = !seconds && rate > 0 && total > done ? (double)(total - done) / rate : 0;
    if (left > 0 && !strcmp(unit, "tokens"))
        left = wr_cli_forecast_left(
            &cli->progress.forecast, (double)(done - cli->progress.began_done), elapsed, (double)(total - cli->progress.began_done));
    if (!layers && left >= LEFT_FROM_SECONDS) n = left < 120 ? add(line, room, n, ", %.0f s left", left) : add(line, room, n, ", %.0f min left", left / 60);
    if (!bytes && reading > 0) add(line, room, n, ", reading %.0f MB/s", reading * 1e-6);
}

/* With the lock. */
static void print(struct wr_cli *cli, uint64_t now)
{
    bool terminal = cli->progress.terminal;
    if (cli->progress.window_ns[1] == 0 || now - cli->progress.window_ns[1] >= WINDOW_NS) {
        cli->progress.window_ns[0] = cli->progress.window_ns[1];
        cli->progress.window_bytes[0] = cli->progress.window_bytes[1];
        cli->progress.window_ns[1] = now;
        cli->progress.window_bytes[1] = wr_os_usage().read_bytes;
    }
    if (!terminal && cli->progress.shared && cli->out.written > 0) return; /* it would land in the middle of the text */
    uint64_t printed = cli->progress.printed_ns;
    if (terminal ? now - cli->progress.armed_ns < FIRST_NS || now - printed < TERMINAL_NS
                 : (printed ? now - printed < ELSEWHERE_NS : now - cli->progress.first_ns < FIRST_ELSEWHERE_NS))
        return;
    cli->progress.printed_ns = now;
    uint64_t since_ns = cli->progress.window_ns[0] ? cli->progress.window_ns[0] : cli->progress.window_ns[1];
    uint64_t since_bytes = cli->progress.window_ns[0] ? cli->progress.window_bytes[0] : cli->progress.window_bytes[1];
    double seconds = (double)(now - since_ns) * 1e-9;
    double reading = seconds > 0.05 ? (double)(wr_os_usage().read_bytes - since_bytes) / seconds : 0;

    char text[200], line[240];
    describe(cli, now, reading, text, sizeof text);
    /* Behind an unfinished line of the answer: from its end to the edge of the screen, without moving the cursor. */
    cli->progress.behind = cli->out.terminal && cli->out.unfinished;
    snprintf(line, sizeof line, !terminal ? "weir: %s\n" : cli->progress.behind ? "\0337\033[?7l  [%s]\033[K\033[?7h\0338" : "\r%s\033[K", text);
    wr_cli_direct(line);
    cli->progress.shown = terminal;
}

static void *ticker(void *arg)
{
    struct wr_cli *cli = arg;
    for (;;) {
        uint32_t seen = atomic_load(&cli->progress.bell);
        pthread_mutex_lock(&cli->progress.lock);
        bool stop = cli->progress.stop, armed = cli->progress.armed;
        if (armed && !stop) print(cli, wr_clock_ns());
        pthread_mutex_unlock(&cli->progress.lock);
        if (stop) return NULL;
        wr_futex_wait(&cli->progress.bell, seen, armed ? TERMINAL_NS : UINT64_MAX);
    }
}

static void ring(struct wr_cli *cli)
{
    atomic_fetch_add(&cli->progress.bell, 1);
    wr_futex_wake(&cli->progress.bell, 1);
}

/* With the lock. Without a thread, where the system refuses one, there is no line. */
static void arm(struct wr_cli *cli)
{
    cli->progress.armed_ns = wr_clock_ns();
    if (cli->progress.first_ns == 0) cli->progress.first_ns = cli->progress.armed_ns;
    if (cli->progress.armed) return;
    cli->progress.armed = true;
    memset(cli->progress.window_ns, 0, sizeof cli->progress.window_ns); /* the wait before is no slow read */
    if (!cli->progress.started) cli->progress.started = wr_thread_start(&cli->progress.thread, ticker, cli) == 0;
    ring(cli);
}

static bool silent(const struct wr_cli *cli) { return cli->quiet || (!cli->progress.terminal && cli->verbose == 0); }

static void set_phase(struct wr_cli *cli, const char *phase, uint64_t number)
{
    snprintf(cli->progress.phase, sizeof cli->progress.phase, "%s", phase);
    cli->progress.number = number;
    cli->progress.total = cli->progress.done = cli->progress.began_done = 0;
    cli->progress.began_ns = wr_clock_ns();
    cli->progress.forecast = (struct wr_cli_forecast){{0}, {0}};
}

void wr_cli_progress_begin(struct wr_cli *cli, const char *phase, uint64_t number)
{
    if (silent(cli)) return;
    pthread_mutex_lock(&cli->progress.lock);
    set_phase(cli, phase, number);
    arm(cli);
    pthread_mutex_unlock(&cli->progress.lock);
}

void wr_cli_progress(void *user, const char *phase, uint64_t done, uint64_t total, const char *unit)
{
    struct wr_cli *cli = user;
    if (silent(cli)) return;
    pthread_mutex_lock(&cli->progress.lock);
    bool other = strncmp(cli->progress.phase, phase, sizeof cli->progress.phase - 1) != 0;
    if (other || done < cli->progress.done) {
        set_phase(cli, phase, other ? 0 : cli->progress.number);
        cli->progress.began_done = done;
    }
    cli->progress.done = done;
    cli->progress.total = total;
    wr_cli_forecast(&cli->progress.forecast, (double)(done - cli->progress.began_done), (double)(wr_clock_ns() - cli->progress.began_ns) * 1e-9);
    snprintf(cli->progress.unit, sizeof cli->progress.unit, "%s", unit);
    if (!cli->progress.armed) arm(cli);
    pthread_mutex_unlock(&cli->progress.lock);
}

void wr_cli_progress_clear(struct wr_cli *cli)
{
    pthread_mutex_lock(&cli->progress.lock);
    cli->progress.armed = false;
    erase(cli);
    pthread_mutex_unlock(&cli->progress.lock);
}

void wr_cli_progress_end(struct wr_cli *cli)
{
    wr_cli_progress_clear(cli);
    if (!cli->progress.started) return;
    pthread_mutex_lock(&cli->progress.lock);
    cli->progress.stop = true;
    pthread_mutex_unlock(&cli->progress.lock);
    ring(cli);
    pthread_join(cli->progress.thread, NULL);
    cli->progress.started = cli->progress.stop = false;
}

int wr_cli_answer(struct wr_cli *cli, const char *text, size_t n, weir_err *err)
{
    pthread_mutex_lock(&cli->progress.lock);
    erase(cli);
    wr_cli_put(&cli->out, text, n);
    int code = wr_cli_flush(&cli->out, err);
    pthread_mutex_unlock(&cli->progress.lock);
    return code;
}

void wr_cli_line(struct wr_cli *cli, const char *line)
{
    pthread_mutex_lock(&cli->progress.lock);
    erase(cli);
    if (cli->progress.terminal && cli->out.terminal && cli->out.unfinished) wr_cli_direct("\n");
    wr_cli_direct(line);
    pthread_mutex_unlock(&cli->progress.lock);
}
