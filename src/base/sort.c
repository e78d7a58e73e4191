/* SPDX-License-Identifier: Apache-2.0 */
/* Heap sort: what a hostile file can make of it costs no more than what an honest one does. */
#include "base/sort.h"

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t kept = *a;
    *a = *b;
    *b = kept;
}

void wr_sort_by_key(uint32_t *items, uint32_t n, const uint64_t *key)
{
    for (uint32_t end = n, start = n / 2; end > 1;) {
        if (start > 0)
            start--;
        else
            swap(&items[0], &items[--end]);
        uint32_t root = start;
        for (uint32_t child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && key[items[child]] < key[items[child + 1]]) child++;
            if (key[items[root]] >= key[items[child]]) break;
            swap(&items[root], &items[child]);
        }
    }
}
