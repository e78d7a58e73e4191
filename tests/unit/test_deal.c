/* SPDX-License-Identifier: Apache-2.0 */
/* Items of products are dealt once each, to whoever asks, neighbours first. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "memory/deal.h"

enum { MOST = 300, THREADS_MOST = 40 };

/* Members ask in an order that a counter makes uneven: some often, some seldom, some never. */
static void every_item_once(void **state)
{
    for (uint32_t n_threads = 1; n_threads <= THREADS_MOST; n_threads += 3)
        for (uint32_t n_items = 0; n_items < MOST; n_items += 7)
            for (uint32_t busy = 1; busy <= n_threads; busy += 2) {
                struct wr_deal d;
                uint8_t seen[MOST] = {0};
                uint32_t first, n, turn = 0;
                wr_deal_begin(&d, n_items, n_threads, NULL, NULL);
                while ((n = wr_deal_take(&d, turn * turn % busy, &first)) != 0) {
                    assert_true(first + n <= n_items);
                    for (uint32_t i = first; i < first + n; i++) assert_int_equal(seen[i]++, 0);
                    turn++;
                }
                for (uint32_t i = 0; i < n_items; i++) assert_int_equal(seen[i], 1);
            }
}

/* What a member takes next of its own region lies behind what it took; alone it ends with the others', from the back. */
static void own_first(void **state)
{
    struct wr_deal d;
    uint32_t first, n, next = 50;
    wr_deal_begin(&d, 100, 2, NULL, NULL);
    while (next < 100) {
        n = wr_deal_take(&d, 1, &first);
        assert_int_equal(first, next);
        next += n;
    }
    n = wr_deal_take(&d, 1, &first);
    assert_int_equal(first + n, 50);
}

static bool has_arrived(void *arg, uint32_t item) { return item < *(const uint32_t *)arg; }

/* What has not arrived is taken alone, by whoever comes first, in order. */
static void as_they_arrive(void **state)
{
    struct wr_deal d;
    uint32_t arrived = 10, first, n, next = 0;
    wr_deal_begin(&d, 100, 4, has_arrived, &arrived);
    for (uint32_t member = 0; (n = wr_deal_take(&d, member, &first)) != 0; member = (member + 1) % 4) {
        assert_int_equal(first, next);
        assert_true(first + n <= arrived || n == 1);
        next = first + n;
    }
    assert_int_equal(next, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_item_once), cmocka_unit_test(own_first), cmocka_unit_test(as_they_arrive)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
