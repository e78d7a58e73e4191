/* SPDX-License-Identifier: Apache-2.0 */
/* Other plans of the same model, beside the one that was asked for. */
#ifndef WR_CLI_SWEEP_H
#define WR_CLI_SWEEP_H

#include "cli/cli.h"

struct wr_sweep_point { /* what is compared of a plan */
    uint64_t budget, min_budget, reserved, pinned, streamed, bytes_per_token;
    uint32_t n_ctx, max_context, n_chunk;
    double decode, decode_full, prefill; /* tokens/s predicted */
    const char *bound;
};
/* The plan with another budget (0: as given) and context (0: the default). */
int wr_sweep_point(const struct wr_cli *, const char *path, uint64_t budget, uint32_t n_ctx, struct wr_sweep_point *, weir_err *);

#define WR_SWEEP_POINTS 24
struct wr_sweep {
    bool memory; /* over budgets; otherwise over contexts */
    uint32_t n;
    struct wr_sweep_point point[WR_SWEEP_POINTS];
};
/* As --sweep says. Over budgets: from the smallest to one that holds everything, with the plan's context; over contexts: up to the largest that the
 * plan's budget could hold. */
int wr_sweep_make(struct wr_cli *, const char *path, const weir_plan_info *, struct wr_sweep *, weir_err *);
/* The chart, as SVG and as text. */
int wr_sweep_svg(struct wr_cli *, const weir_plan_info *, const struct wr_sweep *, const char *path, weir_err *);
void wr_sweep_text(struct wr_cli_out *, const weir_plan_info *, const struct wr_sweep *);
void wr_sweep_json(struct wr_cli_out *, const struct wr_sweep *);

#endif
