/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine can do at most, measured: the instruction mixes that products are made of, in registers alone, and plain reads of
 * memory. Kernels are judged by their share of it.
 */
#ifndef WR_KERNELS_CEILING_H
#define WR_KERNELS_CEILING_H

#include "base/team.h"
#include "kernels/kernels.h"

enum wr_mix {
    WR_MIX_FMA,  /* f32 multiply-adds */
    WR_MIX_INT8, /* integer dot products of bytes alone */
    WR_MIX_INT16,
    WR_MIX_FORMAT, /* what rule e needs for one format: dot products of a group, and for each group the conversion, the scale and the multiply-add (twice with a minimum) */
};
/* Multiply-adds x 2 per second over all threads of the team (NULL: the caller alone), the best of runs that take about `seconds` in all. `quant`: of
 * WR_MIX_FORMAT. 0: the level has no such mix. */
double wr_ceiling_mix(const struct wr_kernels *, enum wr_mix, const struct wr_quant *, bool precise, struct wr_team *, double seconds);
/* Bytes/s of plain vector loads from `memory` (page-aligned) by all threads, each in its own part, in some streams, fetched ahead; the best of runs that take about `seconds` in all. */
double wr_ceiling_read(const struct wr_kernels *, const void *memory, size_t bytes, struct wr_team *, double seconds);

#endif
