/* SPDX-License-Identifier: Apache-2.0 */
/* Charts: ticks, what is left out, what is escaped, and that a picture is one whole SVG element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/plot.h"

const struct wr_cli_command wr_cli_commands[WR_CLI_N_COMMANDS] = {
#define COMMAND(id, name, arguments, summary, text) {#name, arguments, summary, text, NULL},
#include "cli/commands.def"
#undef COMMAND
};

static struct wr_cli cli;
static char folder[64], text[16384], svg[65536];

static void read_back(const char *path, char *to, size_t room)
{
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, to, room - 1);
    assert_true(n >= 0);
    to[n] = 0;
    close(fd);
}

static void draw(const struct wr_plot *plot)
{
    char path[96];
    weir_err err;
    snprintf(path, sizeof path, "%s/text", folder);
    struct wr_cli_out out = {.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)};
    wr_plot_text(&out, plot, 80, 12);
    assert_int_equal(wr_cli_flush(&out, NULL), 0);
    close(out.fd);
    read_back(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/picture.svg", folder);
    assert_int_equal(wr_plot_svg(&cli, plot, path, &err), 0);
    read_back(path, svg, sizeof svg);
    assert_int_equal(wr_ledger_used(&cli.ledger, WR_ACCOUNT_TEXT), 0);
}

static uint32_t count(const char *in, const char *what)
{
    uint32_t n = 0;
    for (; (in = strstr(in, what)); in += strlen(what)) n++;
    return n;
}

static bool labelled(const char *tick)
{
    char node[64];
    snprintf(node, sizeof node, ">%s</text>", tick);
    return strstr(svg, node) && strstr(text, tick);
}

static void bytes_of_a_log_axis(void **state)
{
    (void)state;
    const double x[] = {4096, 65536, 16777216}, y[] = {0.25, 1, 2};
    const struct wr_plot plot = {"t", "s", "bytes", "GB/s", WR_PLOT_LOG, WR_PLOT_LINEAR, true, true, {{"one", x, y, 3}}, 1, {{0}}, 0};
    draw(&plot);
    assert_true(labelled("4 KiB") && labelled("16 KiB") && labelled("1 MiB") && labelled("16 MiB") && labelled("0.5") && labelled("0.0"));
    assert_int_equal(count(text, "KiB"), 4); /* 4, 16, 64, 256: every second power */
    assert_true(labelled("one"));
}

static void bytes_of_a_linear_axis(void **state)
{
    (void)state;
    const double x[] = {100e6, 1100e6}, y[] = {1, 2};
    const struct wr_plot plot = {"t", "s", "budget", "tokens/s", WR_PLOT_LINEAR, WR_PLOT_LINEAR, true, true, {{"one", x, y, 2}}, 1, {{0}}, 0};
    draw(&plot);
    assert_true(labelled("256 MiB") && labelled("512 MiB") && labelled("1 GiB") && labelled("2.0"));
}

static void logarithms(void **state)
{
    (void)state;
    const double x[] = {1, 1e5}, y[] = {3, 40}, narrow[] = {3.1, 3.9};
    struct wr_plot plot = {"t", "s", "x", "y", WR_PLOT_LOG, WR_PLOT_LOG, false, false, {{"one", x, y, 2}}, 1, {{0}}, 0};
    draw(&plot);
    assert_true(labelled("1") && labelled("10") && labelled("100") && labelled("1000") && labelled("100000")); /* x by decades */
    assert_true(labelled("2") && labelled("5") && labelled("20") && labelled("50"));                           /* y by 1, 2, 5 */
    plot.series[0].y = narrow;
    draw(&plot);
    assert_true(labelled("2.0") && labelled("3.5") && labelled("5.0")); /* it ends at 1, 2 or 5, with the ticks of a linear one between */
}

static void left_out(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3, 4, 5, 6}, y[] = {1, NAN, 2, INFINITY, -1, 4};
    struct wr_plot plot = {"t", "s", "x", "y", WR_PLOT_LINEAR, WR_PLOT_LOG, false, false, {{"one", x, y, 6}, {"none", x, y + 1, 1}, {"empty", x, y, 0}}, 3,
        {{7, "mark"}, {NAN, "nowhere"}}, 2};
    draw(&plot);
    assert_int_equal(count(svg, "<path transform"), 3 + 1); /* three points, and the name's sample; series without a point have none */
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    assert_null(strstr(svg, ">none<"));
    assert_non_null(strstr(text, ": 7: mark"));
    assert_null(strstr(text, "nowhere"));
    const struct wr_plot nothing = {.title = "", .subtitle = "", .x_label = "", .y_label = ""};
    draw(&nothing);
    assert_true(labelled("0.0") && labelled("1.0"));
    const struct wr_plot one = {"t", "s", "x", "y", WR_PLOT_LINEAR, WR_PLOT_LINEAR, false, false, {{"one", x, y, 1}}, 1, {{0}}, 0};
    draw(&one);
    assert_true(labelled("1.0")); /* in the middle of both axes */
}

static void escapes(void **state)
{
    (void)state;
    const double x[] = {1, 2}, y[] = {1, 2};
    const struct wr_plot plot = {"<a & \"b\">\xff\x01", "s\xc3\xa9", "x", "y", WR_PLOT_LINEAR, WR_PLOT_LINEAR, false, false,
        {{"a name that is far too long to stand beside the picture", x, y, 2}}, 1, {{0}}, 0};
    draw(&plot);
    assert_int_equal(count(svg, "&#60;a &#38; &#34;b&#34;&#62;&#xFFFD;&#xFFFD;"), 2); /* as title and as text */
    assert_non_null(strstr(svg, ">s\xc3\xa9</text>"));
    assert_non_null(strstr(svg, ">a name that is far too long to s...</text>"));
    assert_int_equal(count(svg, "<text"), count(svg, "</text>"));
    assert_int_equal(count(svg, "<svg"), 1);
    assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
}

static int begin(void **state)
{
    (void)state;
    wr_ledger_init(&cli.ledger);
    snprintf(folder, sizeof folder, "/tmp/weir-plot-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    char path[96];
    (void)state;
    snprintf(path, sizeof path, "%s/text", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/picture.svg", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_a_log_axis),
        cmocka_unit_test(bytes_of_a_linear_axis),
        cmocka_unit_test(logarithms),
        cmocka_unit_test(left_out),
        cmocka_unit_test(escapes),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
