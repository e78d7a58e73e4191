/* SPDX-License-Identifier: Apache-2.0 */
/* What a spilled context needs, as plain arithmetic for plan and store. */
#include "memory/kv_store.h"

struct wr_kv_layout wr_kv_layout_least(uint64_t block_bytes, uint32_t n_layer, uint32_t n_local, uint32_t window, uint32_t n_ctx, uint32_t n_chunk)
{
    struct wr_kv_layout l = {.block_bytes = block_bytes, .n_global = n_layer - n_local, .n_local = n_local};
    if (n_chunk > n_ctx) n_chunk = n_ctx;
    l.n_tiles = (uint32_t)(((uint64_t)n_ctx + WR_TILE - 1) / WR_TILE);
    if (n_local > 0) {
        uint64_t newest = ((uint64_t)window + n_chunk + WR_TILE - 1) / WR_TILE + 1;
        l.n_local_tiles = newest < l.n_tiles ? (uint32_t)newest : l.n_tiles;
    }
    if (l.n_global > 0) {
        l.n_pool = l.n_global + (n_chunk + WR_TILE - 1) / WR_TILE + 1;
        l.n_ring = WR_KV_LEAST_RING;
    }
    return l;
}

uint64_t wr_kv_layout_bytes(const struct wr_kv_layout *l)
{
    return ((uint64_t)l->n_local * l->n_local_tiles + l->n_pool + l->n_ring + l->n_resident) * l->block_bytes;
}

uint32_t wr_kv_layout_resident(const struct wr_kv_layout *l, uint32_t i) { return l->n_resident / l->n_global + (i < l->n_resident % l->n_global); }

uint64_t wr_kv_layout_streamed(const struct wr_kv_layout *l, uint32_t position)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_global; i++) {
        uint32_t resident = wr_kv_layout_resident(l, i);
        n += position / WR_TILE > resident ? position / WR_TILE - resident : 0;
    }
    return n;
}

uint32_t wr_kv_layout_read_from(const struct wr_kv_layout *l, uint32_t n_ctx)
{
    const uint64_t from = l->n_global > 0 ? ((uint64_t)l->n_resident / l->n_global + 1) * WR_TILE : UINT64_MAX;
    return from < n_ctx ? (uint32_t)from : 0;
}

uint32_t wr_kv_layout_first_tile(const struct wr_kv_layout *l)
{
    return l->n_local > 0 && l->n_local_tiles < l->n_tiles ? 0 : l->n_global > 0 ? l->n_resident / l->n_global : l->n_tiles;
}

uint64_t wr_kv_layout_disk_bytes(const struct wr_kv_layout *l, uint32_t n_ctx)
{
    const uint32_t first = wr_kv_layout_first_tile(l);
    return n_ctx / WR_TILE > first ? (uint64_t)(n_ctx / WR_TILE - first) * (l->n_global + l->n_local) * l->block_bytes : 0;
}

uint64_t wr_kv_layout_meta_bytes(const struct wr_kv_layout *l)
{
    const uint64_t n_layer = l->n_global + l->n_local, n_slots = (uint64_t)l->n_local * l->n_local_tiles;
    return sizeof(struct wr_kv_store) + n_layer * sizeof(struct wr_kv_layer) + n_slots * sizeof(uint32_t) + l->n_pool * 2 * sizeof(uint32_t) +
           (l->n_pool + n_slots + WR_KV_MORE_JOBS) * sizeof(struct wr_kv_job) + l->n_ring * sizeof(struct wr_kv_ring_slot) + 8 * WR_MEM_OVERHEAD;
}
