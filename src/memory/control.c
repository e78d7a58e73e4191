/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/control.h"

#include "memory/pager_state.h"

/* Every extent that a pass reads goes on the tape, in the order of first use; the head's come last. */
static void stream_all(struct wr_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_tape; i++) plan->extents[plan->tape[i]].pinned = true; /* for now: not on the new tape yet */
    plan->n_tape = plan->n_tape_head = 0;
    plan->streamed += plan->pinned;
    plan->pinned = 0;
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const struct wr_weight *w = &plan->weights[i];
        if (w->use != WR_USE_DENSE && w->use != WR_USE_HEAD) continue;
        for (uint32_t e = w->first_extent; e < w->first_extent + w->n_extents; e++) {
            if (!plan->extents[e].pinned) continue;
            plan->extents[e].pinned = false;
            plan->tape[plan->n_tape++] = e;
            plan->n_tape_head += plan->extents[e].head;
        }
    }
}

int wr_plan_control(struct wr_plan *plan, enum wr_control control, uint32_t n_layer, weir_err *err)
{
    if (control == WR_CONTROL_STRIPE) return 0;
    if (plan->streamed == 0)
        return wr_err(err, WEIR_E_USAGE, "--control: the whole model fits into this budget, so that nothing is streamed; give a smaller --memory");
    uint64_t room = plan->n_slots + plan->pinned / plan->slot_bytes; /* slots, in the memory of ring and pinned extents */
    if (room < plan->n_live)
        return wr_err(err, WEIR_E_BUDGET, "--control: a pass needs %u slots of %u bytes and this budget has room for %llu; give a smaller --extent",
            plan->n_live, plan->slot_bytes, (unsigned long long)room);
    uint32_t ring = plan->n_slots > plan->n_live ? plan->n_slots : plan->n_live;
    plan->account[WR_ACCOUNT_RING] -= (uint64_t)plan->n_slots * plan->slot_bytes;
    stream_all(plan);
    uint32_t most = plan->n_tape, two_layers = 2 * ((plan->n_tape - plan->n_tape_head + n_layer - 1) / n_layer);
    if (control == WR_CONTROL_STREAM_ALL) most = two_layers > ring ? two_layers : ring;
    if (control == WR_CONTROL_MMAP) most = ring;
    plan->n_slots = room < most ? (uint32_t)room : most;
    plan->lru = control == WR_CONTROL_LRU;
    plan->n_ahead = plan->lru && ring < plan->n_slots ? ring : plan->n_slots;
    plan->account[WR_ACCOUNT_RING] += (uint64_t)plan->n_slots * plan->slot_bytes;
    plan->account[WR_ACCOUNT_WEIGHTS] = wr_round_up(plan->vector_bytes, WR_ARENA_ALIGN);
    /* In a round that comes again and again, what was used longest ago is what is needed next: all of it stays in memory, or nothing. */
    if (plan->lru && plan->n_slots == plan->n_tape) plan->streamed = 0;
    plan->tier[WR_TIER_DISK].placed_bytes = plan->streamed;
    plan->tier[WR_TIER_RAM].placed_bytes = 0;
    return 0;
}

/* How long ago the slot's extent was asked for, on the tape; an empty slot was never used. */
static uint32_t age(const struct wr_pager *p, uint32_t slot)
{
    uint32_t holds = p->slot[slot].holds;
    return holds == 0 ? UINT32_MAX : p->n_used - p->extent[holds - 1].used;
}

uint32_t wr_lru_find(const struct wr_pager *p, uint32_t extent, bool *hit, bool *fenced)
{
    uint32_t n_slots = p->plan->n_slots, own = p->extent[extent].slot, oldest = n_slots, n_held = 0;
    for (uint32_t s = 0; s < n_slots; s++) { /* 2000 slots of 1 MiB: some 5 us beside a read of 400 */
        if (atomic_load_explicit(&p->slot[s].busy, memory_order_acquire))
            n_held++;
        else if (!p->device->ops->done(p->device, atomic_load_explicit(&p->slot[s].fence, memory_order_relaxed)))
            *fenced = true;
        else if (oldest == n_slots || age(p, s) > age(p, oldest))
            oldest = s;
    }
    if (n_held >= p->plan->n_ahead) return n_slots;
    if (p->slot[own].holds != extent + 1) return oldest;
    *hit = !atomic_load_explicit(&p->slot[own].busy, memory_order_acquire); /* whoever used it last may still have to say so */
    return *hit ? own : n_slots;
}

void wr_lru_use(struct wr_pager *p, uint32_t extent, uint32_t slot)
{
    p->slot[slot].holds = extent + 1;
    p->extent[extent].used = ++p->n_used;
}
