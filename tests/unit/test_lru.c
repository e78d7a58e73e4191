/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy of the LRU control on traces of its own: random, skewed and cyclic ones, with slots that are held, against a list that is kept in the order
 * of use. WEIR_TEST_SEED=N runs one case.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "memory/pager_state.h"

#define MOST 64

struct rig {
    struct wr_plan plan;
    struct wr_device device;
    struct wr_pager pager;
    struct extent_state extent[MOST];
    struct slot_state slot[MOST];
};

static void open_rig(struct rig *r, uint32_t n_slots, uint32_t first_used)
{
    memset(r, 0, sizeof *r);
    wr_device_cpu(&r->device);
    r->plan = (struct wr_plan){.n_slots = n_slots, .n_ahead = n_slots, .lru = true};
    r->pager = (struct wr_pager){.plan = &r->plan, .device = &r->device, .extent = r->extent, .slot = r->slot, .n_used = first_used};
}

/* The tape's next extent: true if it was there. *slot: n_slots if there is no place. */
static bool ask(struct rig *r, uint32_t extent, uint32_t *slot)
{
    bool hit = false, fenced = false;
    *slot = wr_lru_find(&r->pager, extent, &hit, &fenced);
    assert_false(fenced);
    if (*slot == r->plan.n_slots) return false;
    r->extent[extent].slot = *slot;
    wr_lru_use(&r->pager, extent, *slot);
    return hit;
}

/* The model: extents in the order of use, the newest first, and which of them are held. */
struct model {
    uint32_t extent[MOST + 1], n, n_slots;
    bool held[MOST];
};

/* -1: there is no place; 1: it was there. */
static int model_ask(struct model *m, uint32_t extent)
{
    uint32_t i = 0;
    while (i < m->n && m->extent[i] != extent) i++;
    int hit = i < m->n;
    if (hit && m->held[extent]) return -1;
    if (!hit && m->n == m->n_slots) { /* the last that is not held goes */
        while (i > 0 && m->held[m->extent[i - 1]]) i--;
        if (i == 0) return -1;
        i--;
    } else if (!hit) {
        m->n++;
    }
    memmove(m->extent + 1, m->extent, i * sizeof *m->extent);
    m->extent[0] = extent;
    return hit;
}

static uint32_t below(uint64_t *x, uint32_t n) /* splitmix64 */
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % n);
}

static void run_case(uint64_t seed)
{
    static struct rig r;
    uint64_t x = seed;
    uint32_t n_extents = 1 + below(&x, MOST), n_slots = 1 + below(&x, n_extents), kind = below(&x, 3), n_hits = 0, n_none = 0;
    struct model m = {.n_slots = n_slots};
    open_rig(&r, n_slots, below(&x, 2) ? UINT32_MAX - 300 : 0); /* the clock may turn over */
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t extent = kind == 0 ? i % n_extents : kind == 1 ? below(&x, n_extents) : below(&x, 1 + below(&x, n_extents)), slot;
        bool hit = ask(&r, extent, &slot);
        int expected = model_ask(&m, extent), got = slot == n_slots ? -1 : hit;
        if (got != expected) fail_msg("seed %llu, step %u: %d, expected %d", (unsigned long long)seed, i, got, expected);
        n_hits += expected == 1;
        n_none += expected == -1;
        if (kind != 0 && expected >= 0) m.held[extent] = r.slot[slot].busy = below(&x, 8) == 0;
        uint32_t other = below(&x, n_extents); /* somebody is done with another */
        if (m.held[other]) m.held[other] = r.slot[r.extent[other].slot].busy = false;
    }
    if (kind == 0) assert_int_equal(n_hits, n_slots == n_extents ? 2000 - n_extents : 0); /* a round that comes again: all or nothing */
    if (kind == 0) assert_int_equal(n_none, 0);
}

static void test_traces(void **state)
{
    for (uint64_t seed = 1; seed <= 600; seed++) run_case(seed);
}

/* No more slots are held than are read ahead, however many are free; a fence that is not done keeps a slot from being taken. */
static bool never_done(struct wr_device *d, uint64_t fence) { return fence == 0; }

static void test_held(void **state)
{
    static struct rig r;
    bool hit = false, fenced = false;
    uint32_t slot;
    open_rig(&r, 6, 0);
    r.plan.n_ahead = 2;
    for (uint32_t e = 0; e < 2; e++) {
        assert_false(ask(&r, e, &slot));
        r.slot[slot].busy = 1;
    }
    assert_int_equal(wr_lru_find(&r.pager, 2, &hit, &fenced), 6);
    r.slot[r.extent[0].slot].busy = 0;
    assert_true(ask(&r, 0, &slot));
    for (uint32_t e = 2; e < 6; e++) assert_false(ask(&r, e, &slot));

    struct wr_device_ops ops = *r.device.ops;
    ops.done = never_done;
    r.device.ops = &ops;
    for (uint32_t s = 0; s < 6; s++) r.slot[s].fence = 1;
    assert_int_equal(wr_lru_find(&r.pager, 9, &hit, &fenced), 6);
    assert_true(fenced && !hit);
    assert_int_equal(wr_lru_find(&r.pager, 3, &hit, &fenced), r.extent[3].slot);
    assert_true(hit);
}

int main(void)
{
    const char *only = getenv("WEIR_TEST_SEED");
    if (only != NULL) {
        run_case(strtoull(only, NULL, 0));
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_traces), cmocka_unit_test(test_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
