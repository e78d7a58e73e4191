/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "memory/pager_state.h"

static struct wr_ref extent_ref(const struct wr_pager *p, uint32_t index, uint64_t offset, uint64_t bytes)
{
    const struct wr_extent *e = &p->plan->extents[index];
    uint64_t in = offset - e->offset;
    if (e->pinned) return (struct wr_ref){WR_TIER_RAM, WR_REGION_PINNED, e->place + in, bytes, 0};
    return (struct wr_ref){WR_TIER_RAM, WR_REGION_RING, (uint64_t)p->extent[index].slot * p->plan->slot_bytes + in, bytes, 0};
}

static void item_extents(const struct wr_lease *l, uint32_t first_row, uint32_t *a, uint32_t *b)
{
    const struct wr_tensor *t = l->weight->tensor;
    *a = wr_plan_extent_at(l->pager->plan, l->weight, t->offset + first_row * t->row_bytes);
    *b = wr_plan_extent_at(l->pager->plan, l->weight, t->offset + l->end_row * t->row_bytes - 1);
}

static bool is_there(const struct wr_pager *p, uint32_t e)
{
    return p->plan->extents[e].pinned || atomic_load_explicit(&p->extent[e].ready, memory_order_acquire) == p->pass;
}

static struct wr_lease lease_of(struct wr_pager *p, uint32_t w, uint32_t item, uint32_t n, uint32_t member)
{
    const struct wr_weight *weight = &p->plan->weights[w];
    uint64_t begin = (uint64_t)item * weight->item_rows, end = begin + (uint64_t)n * weight->item_rows;
    if (end > weight->tensor->n_rows) end = weight->tensor->n_rows;
    return (struct wr_lease){p, weight, member, (uint32_t)begin, (uint32_t)end};
}

bool wr_pager_streams(const struct wr_pager *p) { return p->plan->n_tape > 0; }

bool wr_pager_ready(struct wr_pager *p, uint32_t w, uint32_t item)
{
    uint32_t a, b;
    struct wr_lease l = lease_of(p, w, item, 1, 0);
    item_extents(&l, l.next_row, &a, &b);
    while (a < b && is_there(p, a)) a++;
    return is_there(p, a);
}

bool wr_pager_acquire(struct wr_pager *p, uint32_t w, uint32_t item, uint32_t n, uint32_t member, struct wr_lease *l)
{
    uint32_t a, b;
    *l = lease_of(p, w, item, n, member);
    item_extents(l, l->next_row, &a, &b);
    for (uint32_t e = a; e <= b; e++) {
        if (is_there(p, e)) continue;
        uint64_t start = wr_clock_ns();
        if (!wr_tape_await(p, &p->extent[e].ready, p->pass)) return false;
        if (member == 0) atomic_fetch_add_explicit(&p->stall_io_ns, wr_clock_ns() - start, memory_order_relaxed);
    }
    return true;
}

/* Copies rows that lie in several places into the member's seam buffer. */
static void assemble(struct wr_lease *l, struct wr_rows *rows)
{
    struct wr_pager *p = l->pager;
    const struct wr_tensor *t = l->weight->tensor;
    struct wr_ref seam = {WR_TIER_RAM, WR_REGION_SEAM, l->member * p->seam_bytes, rows->n_rows * t->row_bytes, 0};
    uint8_t *to = wr_ref_address(p->device, &seam);
    uint64_t at = t->offset + rows->first_row * t->row_bytes, end = at + seam.bytes;
    while (at < end) {
        uint32_t e = wr_plan_extent_at(p->plan, l->weight, at);
        uint64_t stop = p->plan->extents[e].offset + p->plan->extents[e].bytes;
        uint64_t n = (stop < end ? stop : end) - at;
        struct wr_ref from = extent_ref(p, e, at, n);
        memcpy(to, wr_ref_address(p->device, &from), n);
        to += n;
        at += n;
    }
    atomic_fetch_add_explicit(&p->bytes_seam, seam.bytes, memory_order_relaxed);
    rows->ref = seam;
}

bool wr_lease_next(struct wr_lease *l, struct wr_rows *rows)
{
    if (l->next_row >= l->end_row) return false;
    const struct wr_plan *plan = l->pager->plan;
    const struct wr_tensor *t = l->weight->tensor;
    uint64_t begin = t->offset + l->next_row * t->row_bytes, end = t->offset + l->end_row * t->row_bytes;
    uint32_t e = wr_plan_extent_at(plan, l->weight, begin);
    uint64_t together = plan->extents[e].offset + plan->extents[e].bytes; /* as far as memory follows the file */
    for (uint32_t x = e; together < end && plan->extents[x].pinned && plan->extents[x + 1].pinned; x++) together += plan->extents[x + 1].bytes;

    uint64_t n = (together - begin) / t->row_bytes, most = l->end_row - l->next_row;
    if (n >= most)
        n = most;
    else
        n -= n % WR_PANEL_ROWS; /* next_row is a whole number of panels */
    *rows = (struct wr_rows){.first_row = l->next_row, .n_rows = (uint32_t)n};
    if (n > 0)
        rows->ref = extent_ref(l->pager, e, begin, n * t->row_bytes);
    else {
        rows->n_rows = most < WR_PANEL_ROWS ? (uint32_t)most : WR_PANEL_ROWS;
        assemble(l, rows);
    }
    l->next_row += rows->n_rows;
    return true;
}

void wr_pager_release(struct wr_lease *l, uint64_t fence)
{
    struct wr_pager *p = l->pager;
    uint32_t a, b, n_rows = l->weight->item_rows;
    uint32_t first = (l->end_row - 1) / n_rows * n_rows;
    bool freed = false;
    item_extents(l, first, &a, &b);
    for (uint32_t e = a; e <= b; e++) {
        if (p->plan->extents[e].pinned) continue;
        struct slot_state *slot = &p->slot[p->extent[e].slot];
        uint64_t seen = atomic_load(&slot->fence);
        while (seen < fence && !atomic_compare_exchange_weak(&slot->fence, &seen, fence)) {}
        if (atomic_fetch_sub(&p->extent[e].left, 1) > 1) continue;
        atomic_store_explicit(&slot->busy, 0, memory_order_release);
        freed = true;
    }
    if (freed) wr_tape_wake(p);
}
