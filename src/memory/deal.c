/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/deal.h"

#include <stdatomic.h>
#include <stddef.h>

void wr_deal_begin(struct wr_deal *d, uint32_t n_items, uint32_t n_threads, wr_deal_ready_fn *ready, void *arg)
{
    d->ready = ready;
    d->arg = arg;
    d->n_regions = ready != NULL ? 1 : n_threads < WR_DEAL_REGIONS ? n_threads : WR_DEAL_REGIONS;
    d->n_owners = (n_threads + d->n_regions - 1) / d->n_regions;
    for (uint32_t i = 0; i < d->n_regions; i++) {
        const uint64_t begin = (uint64_t)n_items * i / d->n_regions, end = (uint64_t)n_items * (i + 1) / d->n_regions;
        atomic_init(&d->region[i].items, end << 32 | begin);
    }
}

/* Several that follow one another, half of what is each thread's part: single items in turn make each thread fetch the other's (2 threads: half the rate of one
 * on Zen 4, 0.7 of the rate of two on a Xeon). What has not arrived from the disk yet is taken item by item, so that nobody waits for what comes later than
 * another's. */
static uint32_t take_of_region(struct wr_deal *d, struct wr_deal_region *r, bool own, uint32_t *first)
{
    uint64_t was = atomic_load(&r->items), then;
    uint32_t n;
    do {
        const uint32_t begin = (uint32_t)was, end = (uint32_t)(was >> 32);
        if (begin >= end) return 0;
        const uint32_t most = (end - begin + 2 * d->n_owners - 1) / (2 * d->n_owners);
        for (n = 1; n < most && (d->ready == NULL || d->ready(d->arg, begin + n));) n++;
        *first = own ? begin : end - n;
        then = own ? (uint64_t)end << 32 | (begin + n) : (uint64_t)*first << 32 | begin;
    } while (!atomic_compare_exchange_weak(&r->items, &was, then));
    return n;
}

uint32_t wr_deal_take(struct wr_deal *d, uint32_t member, uint32_t *first)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_regions && n == 0; i++) n = take_of_region(d, &d->region[(member + i) % d->n_regions], i == 0, first);
    return n;
}
