/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deals the items of products to the threads, in regions of neighbours. Each thread takes from the front of its own region: what it takes next lies behind what
 * it took, where its products have fetched ahead. Once that is empty it takes from the backs of the others'. What comes from the disk is one region for all, in
 * the order of its arrival.
 */
#ifndef WR_MEMORY_DEAL_H
#define WR_MEMORY_DEAL_H

#include <stdbool.h>
#include <stdint.h>

#define WR_DEAL_REGIONS 16

typedef bool wr_deal_ready_fn(void *arg, uint32_t item);
struct wr_deal {
    uint32_t n_regions, n_owners; /* owners: of each region */
    wr_deal_ready_fn *ready;      /* whether an item has arrived from the disk; NULL: all of them are in memory */
    void *arg;
    struct wr_deal_region {
        _Alignas(64) _Atomic uint64_t items; /* not taken yet: the first, and from bit 32 on the end */
    } region[WR_DEAL_REGIONS];
};
/* Items [0, n_items), for so many threads. */
void wr_deal_begin(struct wr_deal *, uint32_t n_items, uint32_t n_threads, wr_deal_ready_fn *, void *arg);
/* The next items for a member: so many, from *first on; 0 when all are taken. */
uint32_t wr_deal_take(struct wr_deal *, uint32_t member, uint32_t *first);

#endif
