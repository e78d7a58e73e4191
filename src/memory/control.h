/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controls: what the field does with the memory that weir pins weights in, kept so that the stripe can be measured beside it. A control changes a
 * finished plan, within the stripe's memory, and the pager executes it like any other: same logits, other reads. Nothing but `weir bench decode` asks
 * for one.
 */
#ifndef WR_MEMORY_CONTROL_H
#define WR_MEMORY_CONTROL_H

#include "memory/plan.h"

enum wr_control {
    WR_CONTROL_STRIPE, /* the plan as it is */
    /* Nothing is pinned: a layer is read, used and dropped, and the next one is read meanwhile, where memory holds both. Engines that go through a model
     * layer by layer do this at their best; some do not read ahead. */
    WR_CONTROL_STREAM_ALL,
    /* Pinned part and ring are one cache of extents, the one used longest ago makes room, and as much is read ahead as the stripe's ring would. */
    WR_CONTROL_LRU,
    /* Nothing is pinned, and what the ring leaves is for the system's page cache: read with the engine mmap. What is read the kernel decides, `streamed` is
     * what is touched. */
    WR_CONTROL_MMAP,
    WR_N_CONTROLS
};
/* WEIR_E_USAGE where the plan streams nothing: there is nothing to control. */
int wr_plan_control(struct wr_plan *, enum wr_control, uint32_t n_layer, weir_err *);

#endif
