/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts: one picture as SVG (800 px wide, readable in black and white: each series has its own dash and marker, its name at its
 * end or in a legend) and the same as text for a terminal.
 */
#ifndef WR_CLI_PLOT_H
#define WR_CLI_PLOT_H

#include "cli/cli.h"

#define WR_PLOT_SERIES 8

struct wr_plot_series {
    const char *name;
    const double *x, *y; /* [n]; a y that is not finite or, on a logarithmic axis, not positive is left out */
    size_t n;
};
struct wr_plot_mark { /* a vertical line */
    double x;
    const char *name;
};
enum wr_plot_scale { WR_PLOT_LINEAR, WR_PLOT_LOG };
struct wr_plot {
    const char *title, *subtitle;  /* what, and on which machine */
    const char *x_label, *y_label; /* with units */
    enum wr_plot_scale x_scale, y_scale;
    bool x_bytes; /* x is a size: ticks at powers of two, "256 KiB" */
    bool y_zero;  /* the linear y axis begins at 0 */
    struct wr_plot_series series[WR_PLOT_SERIES];
    size_t n_series;
    struct wr_plot_mark mark[4];
    size_t n_marks;
};
/* Writes the picture to `path` (as wr_cli_file_open does: whole or not at all). */
int wr_plot_svg(struct wr_cli *, const struct wr_plot *, const char *path, weir_err *);
/* Plain ASCII. The drawing alone is `rows` high; with title, axes and names it is at most `columns` wide. */
void wr_plot_text(struct wr_cli_out *, const struct wr_plot *, uint32_t columns, uint32_t rows);

#endif
