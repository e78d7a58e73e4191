/* SPDX-License-Identifier: Apache-2.0 */
/* Charts. The axes, with their ticks, are the same for both forms; a series is its dash and marker in the picture and a letter in the text. */
#include "cli/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/utf8.h"

#define MAX_TICKS 24
#define GOOD_TICKS 8

struct axis {
    double lo, hi;
    bool log;
    struct {
        double at;
        char text[24];
    } tick[MAX_TICKS];
    uint32_t n;
};

static double in_scale(const struct axis *a, double x) { return a->log ? log2(x) : x; }

/* 0 at the axis' beginning, 1 at its end. */
static double place(const struct axis *a, double x) { return (in_scale(a, x) - in_scale(a, a->lo)) / (in_scale(a, a->hi) - in_scale(a, a->lo)); }

static bool has(const struct axis *a, double x) { return isfinite(x) && (!a->log || x > 0); }

static void add_tick(struct axis *a, double at, const char *format, int digits, const char *unit)
{
    double slack = 1e-9 * (a->hi - a->lo);
    if (a->n == MAX_TICKS || at < a->lo - slack || at > a->hi + slack) return;
    a->tick[a->n].at = at;
    snprintf(a->tick[a->n++].text, sizeof a->tick[0].text, format, digits, at == 0 ? 0.0 : at, unit);
}

static void add_bytes(struct axis *a, double at)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;
    double shown = at;
    for (; shown >= 1024 && i + 1 < sizeof unit / sizeof *unit; i++) shown /= 1024;
    uint32_t n = a->n;
    add_tick(a, at, "%.*g", 4, "");
    if (a->n > n) snprintf(a->tick[n].text, sizeof a->tick[n].text, "%.4g %s", shown, unit[i]);
}

/* The largest of 1, 2 and 5 times a power of ten up to x, with a little slack for what rounding did to it. */
static double nice_below(double x)
{
    double power = pow(10, floor(log10(x) + 1e-9));
    return power * (x / power > 5 - 1e-9 ? 5 : x / power > 2 - 1e-9 ? 2 : 1);
}

static double nice_next(double nice) { return nice_below(nice * 2.6); }

static void linear_ticks(struct axis *a)
{
    double step = nice_below((a->hi - a->lo) / 4);
    int digits = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    for (double i = ceil(a->lo / step - 1e-9); i * step <= a->hi * (1 + 1e-12) + 1e-9 * step; i++) add_tick(a, i * step, "%.*f", digits < 17 ? digits : 17, "");
}

static void log_ticks(struct axis *a)
{
    double decades = log10(a->hi / a->lo), stride = ceil(decades / GOOD_TICKS);
    if (decades > 3)
        for (double power = ceil(log10(a->lo) - 1e-9); power <= log10(a->hi) + 1e-9; power += stride) add_tick(a, pow(10, power), "%.*g", 6, "");
    else
        for (double at = nice_below(a->lo); at <= a->hi * (1 + 1e-9); at = nice_next(at)) add_tick(a, at, "%.*g", 6, "");
    if (a->n >= 3) return;
    a->n = 0;
    linear_ticks(a);
}

static void byte_ticks(struct axis *a)
{
    if (a->log) {
        double from = ceil(log2(a->lo) - 1e-9), to = floor(log2(a->hi) + 1e-9), stride = ceil((to - from + 1) / GOOD_TICKS);
        for (double power = from; power <= to; power += stride) add_bytes(a, exp2(power));
        if (a->n >= 3) return;
        a->n = 0;
    }
    double step = exp2(ceil(log2((a->hi - a->lo) / (GOOD_TICKS - 1))));
    for (double at = ceil(a->lo / step) * step; at <= a->hi; at += step) add_bytes(a, at);
}

static void extend(struct axis *a, double x)
{
    if (!has(a, x)) return;
    if (!(a->lo <= x)) a->lo = x;
    if (!(a->hi >= x)) a->hi = x;
}

/* An axis of one value gets room on both sides. */
static void widen(struct axis *a)
{
    if (!(a->lo <= a->hi)) {
        a->lo = a->log ? 1 : 0;
        a->hi = a->log ? 10 : 1;
    } else if (!(a->hi - a->lo > 1e-12 * fabs(a->hi))) {
        double middle = a->lo, room = middle == 0 ? 1 : 0.5 * fabs(middle);
        a->lo = a->log ? middle / 2 : middle - room;
        a->hi = a->log ? middle * 2 : middle + room;
    }
}

static void make_axes(const struct wr_plot *plot, struct axis *x, struct axis *y)
{
    *x = (struct axis){.lo = NAN, .hi = NAN, .log = plot->x_scale == WR_PLOT_LOG};
    *y = (struct axis){.lo = NAN, .hi = NAN, .log = plot->y_scale == WR_PLOT_LOG};
    for (size_t s = 0; s < plot->n_series; s++) {
        for (size_t i = 0; i < plot->series[s].n; i++) {
            if (!has(x, plot->series[s].x[i]) || !has(y, plot->series[s].y[i])) continue;
            extend(x, plot->series[s].x[i]);
            extend(y, plot->series[s].y[i]);
        }
    }
    for (size_t m = 0; m < plot->n_marks; m++) extend(x, plot->mark[m].x);
    if (plot->y_zero && !y->log && y->lo > 0) y->lo = 0;
    widen(x);
    widen(y);
    if (plot->x_bytes)
        byte_ticks(x);
    else if (x->log)
        log_ticks(x);
    else
        linear_ticks(x);
    if (y->log) { /* y ends at ticks: lines do not touch the frame */
        y->lo = nice_below(y->lo);
        double hi = nice_below(y->hi);
        y->hi = hi < y->hi * (1 - 1e-9) ? nice_next(hi) : hi;
        log_ticks(y);
    } else {
        double step = nice_below((y->hi - y->lo) / 4);
        y->lo = floor(y->lo / step + 1e-9) * step;
        y->hi = ceil(y->hi / step - 1e-9) * step;
        linear_ticks(y);
    }
}

/* The last point of a series that is drawn; false: there is none. */
static bool last_point(const struct wr_plot_series *s, const struct axis *x, const struct axis *y, size_t *at)
{
    for (*at = s->n; *at > 0;) {
        --*at;
        if (has(x, s->x[*at]) && has(y, s->y[*at])) return true;
    }
    return false;
}

/* ---- the picture ----------------------------------------------------------------------- */

#define WIDTH 800
#define LEFT 72.0
#define TOP 62.0
#define HEIGHT 330.0 /* of the frame */
#define MARK_ROW 15.0
#define NAME_ROW 18.0
#define CHARACTER 6.7 /* a wide average of a sans-serif at 12 px */
#define LONGEST_NAME 32

/* Told apart in grey by dash and marker; the colours are Okabe's and Ito's, which the colour-blind can tell apart. */
static const struct {
    const char *color, *dash, *marker; /* of a marker around (0, 0) */
    bool open;
} style[WR_PLOT_SERIES] = {
    {"#000000", "none", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", false},
    {"#d55e00", "8 4", "M-3.6 -3.6h7.2v7.2h-7.2z", false},
    {"#0072b2", "2 3", "M0 -5L4.6 3.4H-4.6z", false},
    {"#009e73", "10 3 2 3", "M0 -5L5 0L0 5L-5 0z", true},
    {"#cc79a7", "5 3", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", true},
    {"#7a5c00", "14 4", "M-4 -4L4 4M-4 4L4 -4", true},
    {"#56b4e9", "10 3 2 3 2 3", "M0 5L4.6 -3.4H-4.6z", true},
    {"#666666", "1 2", "M-5 0H5M0 -5V5", true},
};

struct picture {
    struct wr_outfile file;
    weir_err *err;
    uint64_t written;
    int code;
    size_t n;
    char buffer[8192];
};

static void drain(struct picture *p)
{
    if (p->code == 0) p->code = wr_outfile_write(&p->file, p->written, p->buffer, p->n, p->err);
    p->written += p->n;
    p->n = 0;
}

__attribute__((format(printf, 2, 3))) static void put(struct picture *p, const char *format, ...)
{
    if (sizeof p->buffer - p->n < 1024) drain(p); /* longer than any piece */
    va_list list;
    va_start(list, format);
    int n = vsnprintf(p->buffer + p->n, sizeof p->buffer - p->n, format, list);
    va_end(list);
    if (n > 0) p->n += (size_t)n;
}

/* At most `most` characters of it; what XML has no place for becomes U+FFFD. */
static void put_text(struct picture *p, const char *text, size_t most)
{
    const uint8_t *s = (const uint8_t *)text;
    size_t left = strlen(text);
    for (size_t i = 0; left > 0; i++) {
        uint32_t c = 0;
        int n = wr_utf8_decode(s, left, &c);
        if (i == most) {
            put(p, "...");
            return;
        }
        if (n <= 0 || c < 0x20 || c == 0x7f || c == 0xfffe || c == 0xffff)
            put(p, "&#xFFFD;");
        else if (c == '&' || c == '<' || c == '>' || c == '"')
            put(p, "&#%u;", c);
        else
            put(p, "%.*s", n, (const char *)s);
        s += n > 0 ? n : 1;
        left -= n > 0 ? (size_t)n : 1;
    }
}

static void put_label(struct picture *p, double x, double y, const char *how, const char *text, size_t most)
{
    put(p, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, how);
    put_text(p, text, most);
    put(p, "</text>\n");
}

static void put_marker(struct picture *p, double x, double y, size_t s)
{
    put(p, "<path transform=\"translate(%.1f %.1f)\" d=\"%s\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.5\"/>\n", x, y, style[s].marker,
        style[s].open ? "#ffffff" : style[s].color, style[s].color);
}

struct frame {
    double left, top, width, height;
    struct axis x, y;
};

static double at_x(const struct frame *f, double x) { return f->left + f->width * place(&f->x, x); }
static double at_y(const struct frame *f, double y) { return f->top + f->height * (1 - place(&f->y, y)); }

static void put_series(struct picture *p, const struct frame *f, const struct wr_plot_series *s, size_t index)
{
    bool open = false;
    put(p, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" d=\"M0 0", style[index].color, style[index].dash);
    for (size_t i = 0; i < s->n; i++) {
        bool drawn = has(&f->x, s->x[i]) && has(&f->y, s->y[i]);
        if (drawn) put(p, "%c%.1f %.1f", open ? 'L' : 'M', at_x(f, s->x[i]), at_y(f, s->y[i]));
        open = drawn; /* no line over what is left out */
    }
    put(p, "\"/>\n");
    size_t stride = s->n > 32 ? s->n / 16 : 1;
    for (size_t i = 0; i < s->n; i += stride)
        if (has(&f->x, s->x[i]) && has(&f->y, s->y[i])) put_marker(p, at_x(f, s->x[i]), at_y(f, s->y[i]), index);
}

/* Names stand right of the frame in the order of the lines' ends, as near to them as they do not touch each other. */
static void put_names(struct picture *p, const struct frame *f, const struct wr_plot *plot)
{
    size_t order[WR_PLOT_SERIES], n = 0;
    double want[WR_PLOT_SERIES], y[WR_PLOT_SERIES];
    for (size_t s = 0; s < plot->n_series; s++) {
        size_t at, i;
        if (!last_point(&plot->series[s], &f->x, &f->y, &at)) continue;
        want[s] = at_y(f, plot->series[s].y[at]);
        for (i = n++; i > 0 && want[order[i - 1]] > want[s]; i--) order[i] = order[i - 1];
        order[i] = s;
    }
    for (size_t i = 0; i < n; i++) y[i] = i > 0 && want[order[i]] < y[i - 1] + NAME_ROW ? y[i - 1] + NAME_ROW : want[order[i]];
    double low = f->top + f->height;
    for (size_t i = n; i-- > 0; low = y[i] - NAME_ROW)
        if (y[i] > low) y[i] = low;
    double x = f->left + f->width + 12;
    for (size_t i = 0; i < n; i++) {
        size_t s = order[i];
        put(p, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" d=\"M%.1f %.1fh40\"/>\n", style[s].color, style[s].dash, x, y[i]);
        put_marker(p, x + 20, y[i], s);
        put_label(p, x + 46, y[i] + 4, "", plot->series[s].name, LONGEST_NAME);
    }
}

static void put_axes(struct picture *p, const struct frame *f, const struct wr_plot *plot)
{
    double bottom = f->top + f->height, right = f->left + f->width;
    for (uint32_t i = 0; i < f->y.n; i++) {
        double y = at_y(f, f->y.tick[i].at);
        put(p, "<path stroke=\"#d8d8d8\" d=\"M%.1f %.1fH%.1f\"/>\n", f->left, y, right);
        put_label(p, f->left - 8, y + 4, " text-anchor=\"end\"", f->y.tick[i].text, 24);
    }
    for (uint32_t i = 0; i < f->x.n; i++) {
        double x = at_x(f, f->x.tick[i].at);
        put(p, "<path stroke=\"#d8d8d8\" d=\"M%.1f %.1fV%.1f\"/>\n", x, f->top, bottom);
        put(p, "<path stroke=\"#000000\" d=\"M%.1f %.1fv5\"/>\n", x, bottom);
        put_label(p, x, bottom + 18, " text-anchor=\"middle\"", f->x.tick[i].text, 24);
    }
    for (size_t m = 0; m < plot->n_marks; m++) {
        if (!has(&f->x, plot->mark[m].x)) continue;
        double x = at_x(f, plot->mark[m].x), y = TOP + MARK_ROW * (double)m;
        put(p, "<path stroke=\"#000000\" stroke-dasharray=\"1 3\" d=\"M%.1f %.1fV%.1f\"/>\n", x, y, bottom);
        put_label(p, x > f->left + f->width / 2 ? x - 5 : x + 5, y + 6, x > f->left + f->width / 2 ? " text-anchor=\"end\"" : "", plot->mark[m].name, 60);
    }
    put(p, "<path fill=\"none\" stroke=\"#000000\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", f->left, f->top, bottom, right);
    put_label(p, f->left + f->width / 2, bottom + 40, " text-anchor=\"middle\"", plot->x_label, 100);
    char how[96];
    snprintf(how, sizeof how, " text-anchor=\"middle\" transform=\"rotate(-90 18 %.1f)\"", f->top + f->height / 2);
    put_label(p, 18, f->top + f->height / 2, how, plot->y_label, 50);
}

static void put_picture(struct picture *p, const struct wr_plot *plot)
{
    size_t longest = 0;
    for (size_t s = 0; s < plot->n_series; s++)
        if (strlen(plot->series[s].name) > longest) longest = strlen(plot->series[s].name);
    if (longest > LONGEST_NAME + 3) longest = LONGEST_NAME + 3;
    struct frame f = {.left = LEFT, .top = TOP + MARK_ROW * (double)plot->n_marks, .height = HEIGHT};
    f.width = WIDTH - LEFT - (longest > 0 ? 74 + CHARACTER * (double)longest : 30);
    make_axes(plot, &f.x, &f.y);
    put(p, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" role=\"img\" ", WIDTH, f.top + HEIGHT + 54, WIDTH,
        f.top + HEIGHT + 54);
    put(p, "font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"12\">\n<title>");
    put_text(p, plot->title, 200);
    put(p, "</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n");
    put_label(p, 16, 24, " font-size=\"16\" font-weight=\"bold\"", plot->title, 74);
    put_label(p, 16, 43, "", plot->subtitle, 118);
    put_axes(p, &f, plot);
    for (size_t s = 0; s < plot->n_series; s++) put_series(p, &f, &plot->series[s], s);
    put_names(p, &f, plot);
    put(p, "</svg>\n");
    drain(p);
}

int wr_plot_svg(struct wr_cli *cli, const struct wr_plot *plot, const char *path, weir_err *err)
{
    struct picture p = {.err = err};
    int code = wr_cli_file_open(&p.file, path, &cli->ledger, err);
    if (code) return code;
    put_picture(&p, plot);
    code = p.code;
    if (code == 0) code = wr_outfile_commit(&p.file, err);
    wr_cli_file_discard(&p.file);
    return code;
}

/* ---- the text -------------------------------------------------------------------------- */

#define MAX_COLUMNS 200
#define MAX_ROWS 60

static const char letter[WR_PLOT_SERIES] = {'o', 'x', '+', '*', '#', '@', '%', '='};

struct grid {
    uint32_t columns, rows;
    char cell[MAX_ROWS][MAX_COLUMNS];
};

static void draw_series(struct grid *g, const struct axis *x, const struct axis *y, const struct wr_plot_series *s, char mark)
{
    bool open = false;
    double from_c = 0, from_r = 0;
    for (size_t i = 0; i < s->n; i++) {
        bool drawn = has(x, s->x[i]) && has(y, s->y[i]);
        if (!drawn) {
            open = false;
            continue;
        }
        double c = place(x, s->x[i]) * (g->columns - 1), r = (1 - place(y, s->y[i])) * (g->rows - 1);
        double steps = open ? ceil(fmax(fabs(c - from_c), fabs(r - from_r))) : 0;
        for (double k = 1; k < steps; k++) {
            char *cell = &g->cell[lround(from_r + (r - from_r) * k / steps)][lround(from_c + (c - from_c) * k / steps)];
            if (*cell == ' ' || *cell == ':') *cell = '.';
        }
        g->cell[lround(r)][lround(c)] = mark;
        from_c = c;
        from_r = r;
        open = true;
    }
}

static void put_names_as_text(struct wr_cli_out *out, const struct wr_plot *plot, const struct axis *x, uint32_t columns)
{
    uint32_t used = columns;
    for (size_t s = 0; s < plot->n_series; s++) {
        uint32_t n = (uint32_t)strlen(plot->series[s].name) + 4;
        if (used + n > columns) {
            wr_cli_printf(out, s > 0 ? "\n  " : "  ");
            used = 2;
        }
        wr_cli_printf(out, "%c ", letter[s]);
        wr_cli_put_escaped(out, plot->series[s].name, 100);
        wr_cli_printf(out, "  ");
        used += n;
    }
    if (plot->n_series > 0) wr_cli_put(out, "\n", 1);
    for (size_t m = 0; m < plot->n_marks; m++) {
        if (!has(x, plot->mark[m].x)) continue;
        struct axis one = {.lo = plot->mark[m].x / 2, .hi = plot->mark[m].x * 2};
        if (plot->x_bytes)
            add_bytes(&one, plot->mark[m].x);
        else
            add_tick(&one, plot->mark[m].x, "%.*g", 6, "");
        wr_cli_printf(out, "  : %s: ", one.tick[0].text);
        wr_cli_put_escaped(out, plot->mark[m].name, 100);
        wr_cli_put(out, "\n", 1);
    }
}

void wr_plot_text(struct wr_cli_out *out, const struct wr_plot *plot, uint32_t columns, uint32_t rows)
{
    struct axis x, y;
    struct grid g;
    size_t label = 0;
    make_axes(plot, &x, &y);
    for (uint32_t i = 0; i < y.n; i++)
        if (strlen(y.tick[i].text) > label) label = strlen(y.tick[i].text);
    uint32_t most = columns < MAX_COLUMNS ? columns : MAX_COLUMNS;
    g.columns = most > label + 12 ? most - (uint32_t)label - 2 : 10;
    g.rows = rows < 4 ? 4 : rows < MAX_ROWS ? rows : MAX_ROWS;
    memset(g.cell, ' ', sizeof g.cell);
    for (size_t m = 0; m < plot->n_marks; m++)
        for (uint32_t r = 0; has(&x, plot->mark[m].x) && r < g.rows; r++) g.cell[r][lround(place(&x, plot->mark[m].x) * (g.columns - 1))] = ':';
    for (size_t s = 0; s < plot->n_series; s++) draw_series(&g, &x, &y, &plot->series[s], letter[s]);

    wr_cli_put_escaped(out, plot->title, 300);
    wr_cli_put(out, "\n", 1);
    wr_cli_put_escaped(out, plot->subtitle, 300);
    wr_cli_printf(out, "\n\n%s\n", plot->y_label);
    for (uint32_t r = 0; r < g.rows; r++) {
        const char *text = "";
        for (uint32_t i = 0; i < y.n; i++)
            if ((uint32_t)lround((1 - place(&y, y.tick[i].at)) * (g.rows - 1)) == r) text = y.tick[i].text;
        uint32_t n = g.columns;
        while (n > 0 && g.cell[r][n - 1] == ' ') n--;
        wr_cli_printf(out, "%*s %c%.*s\n", (int)label, text, *text ? '+' : '|', (int)n, g.cell[r]);
    }
    char axis[MAX_COLUMNS + 1] = "", labels[MAX_COLUMNS + 32];
    memset(axis, '-', g.columns);
    memset(labels, ' ', sizeof labels);
    size_t end = 0;
    for (uint32_t i = 0; i < x.n; i++) {
        size_t at = (size_t)lround(place(&x, x.tick[i].at) * (g.columns - 1)), n = strlen(x.tick[i].text);
        axis[at] = '+';
        size_t from = label + 2 + at > n / 2 ? label + 2 + at - n / 2 : 0;
        if (from < end || from + n > sizeof labels) continue; /* no room */
        memcpy(labels + from, x.tick[i].text, n);
        end = from + n + 1;
    }
    wr_cli_printf(out, "%*s +%s\n%.*s\n", (int)label, "", axis, (int)(end > 0 ? end - 1 : 0), labels);
    int room = (int)(label + 2 + (g.columns > strlen(plot->x_label) ? (g.columns - strlen(plot->x_label)) / 2 : 0));
    wr_cli_printf(out, "%*s%s\n", room, "", plot->x_label);
    put_names_as_text(out, plot, &x, most);
}
