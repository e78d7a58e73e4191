/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WR_BASE_SORT_H
#define WR_BASE_SORT_H

#include <stdint.h>

/* Brings n indices into the order of their keys: key[items[0]] <= key[items[1]] ... In place, O(n log n) for any keys, without recursion or memory. */
void wr_sort_by_key(uint32_t *items, uint32_t n, const uint64_t *key);

#endif
