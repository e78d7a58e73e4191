/* SPDX-License-Identifier: Apache-2.0 */
/* Where blocks lie in memory. */
#include <assert.h>
#include <string.h>
#include "memory/kv_store.h"

uint64_t wr_kv_position_bytes(enum wr_kv_type type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim)
{
    return (uint64_t)n_layer * n_head_kv * (wr_kv_key_bytes(type, head_dim) + wr_kv_value_bytes(type, head_dim));
}

uint64_t wr_kv_block_bytes(enum wr_kv_type type, uint32_t n_head_kv, uint32_t head_dim)
{
    return wr_round_up(WR_TILE * wr_kv_position_bytes(type, 1, n_head_kv, head_dim), WR_IO_ALIGN);
}

int wr_kv_open(struct wr_kv *kv, struct wr_device *device, enum wr_kv_type type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim, uint32_t n_ctx,
    struct wr_arena *arena, struct wr_ledger *ledger, weir_err *err)
{
    *kv = (struct wr_kv){.device = device,
        .region = WR_REGION_KV,
        .type = type,
        .n_layer = n_layer,
        .n_head_kv = n_head_kv,
        .head_dim = head_dim,
        .n_positions = (uint32_t)wr_round_up(n_ctx, WR_KV_BLOCK),
        .key_bytes = wr_kv_key_bytes(type, head_dim),
        .value_bytes = wr_kv_value_bytes(type, head_dim),
        .block_bytes = WR_TILE * wr_kv_position_bytes(type, 1, n_head_kv, head_dim)};
    uint64_t bytes = wr_kv_position_bytes(type, n_layer, n_head_kv, head_dim) * kv->n_positions;
    void *memory = wr_arena_take(arena, ledger, WR_ACCOUNT_KV, bytes, err);
    if (memory == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    return device->ops->attach(device, WR_REGION_KV, memory, bytes, err);
}

int wr_kv_open_beside(struct wr_kv *kv, const struct wr_kv *of, uint32_t n, void *memory, weir_err *err)
{
    *kv = *of;
    kv->region = WR_REGION_TREE;
    kv->n_positions = (uint32_t)wr_round_up(n, WR_KV_BLOCK);
    kv->block_bytes = WR_TILE * wr_kv_position_bytes(kv->type, 1, kv->n_head_kv, kv->head_dim);
    kv->store = NULL;
    const uint64_t bytes = wr_kv_position_bytes(kv->type, kv->n_layer, kv->n_head_kv, kv->head_dim) * kv->n_positions;
    return kv->device->ops->attach(kv->device, WR_REGION_TREE, memory, bytes, err);
}

/* ---- places --------------------------------------------------------------------------- */

/* Of a spilled one, in the region. */
static uint64_t stored_place(const struct wr_kv_store *s, uint32_t layer, uint32_t tile)
{
    const struct wr_kv_layer *l = &s->layer[layer];
    if (l->local) return l->place + tile % s->layout.n_local_tiles * s->block_bytes;
    if (tile < l->resident) return l->place + tile * s->block_bytes;
    if (layer == s->hot_layer && tile >= s->hot_tile) return s->pool + s->hot[tile - s->hot_tile] * s->block_bytes;
    if (l->tail != WR_KV_NONE && l->tail_tile == tile) return s->pool + l->tail * s->block_bytes;
    assert(tile >= s->ring_tile && tile - s->ring_tile < s->taken - s->given);
    return s->ring + (s->given + tile - s->ring_tile) % s->layout.n_ring * s->block_bytes;
}

struct place {
    uint64_t offset;
    uint32_t capacity; /* positions that the block has room for */
};

static struct place place_of(const struct wr_kv *kv, uint32_t layer, uint32_t tile)
{
    if (kv->store != NULL) return (struct place){stored_place(kv->store, layer, tile), WR_TILE};
    const uint64_t position_bytes = kv->n_head_kv * (kv->key_bytes + kv->value_bytes);
    const uint32_t left = kv->n_positions - tile * WR_TILE;
    return (struct place){layer * kv->n_positions * position_bytes + tile * kv->block_bytes, left < WR_TILE ? left : WR_TILE};
}

struct wr_ref wr_kv_keys(const struct wr_kv *kv, uint32_t layer, uint32_t head, uint32_t position, uint32_t n)
{
    const struct place p = place_of(kv, layer, position / WR_TILE);
    const uint32_t in = position % WR_TILE / WR_KV_BLOCK * WR_KV_BLOCK;
    return (struct wr_ref){WR_TIER_RAM, kv->region, p.offset + ((uint64_t)head * p.capacity + in) * kv->key_bytes,
        wr_round_up(position % WR_TILE + n - in, WR_KV_BLOCK) * kv->key_bytes, 0};
}

struct wr_ref wr_kv_values(const struct wr_kv *kv, uint32_t layer, uint32_t head, uint32_t position, uint32_t n)
{
    const struct place p = place_of(kv, layer, position / WR_TILE);
    const uint64_t keys = (uint64_t)kv->n_head_kv * p.capacity * kv->key_bytes;
    return (struct wr_ref){
        WR_TIER_RAM, kv->region, p.offset + keys + ((uint64_t)head * p.capacity + position % WR_TILE) * kv->value_bytes, n * kv->value_bytes, 0};
}

/* n values of `size` bytes, one in each of n rows of WR_KV_BLOCK: of a K block's position. */
static inline void copy_each(uint8_t *to, const uint8_t *from, uint32_t n, size_t size)
{
    for (uint32_t i = 0; i < n; i++) memcpy(to + i * WR_KV_BLOCK * size, from + i * WR_KV_BLOCK * size, size);
}

/* Sizes that the compiler knows, so that no value is a call. */
static void copy_column(uint8_t *to, const uint8_t *from, uint32_t n, size_t size)
{
    if (size == 1)
        copy_each(to, from, n, 1);
    else if (size == 2)
        copy_each(to, from, n, 2);
    else
        copy_each(to, from, n, 4);
}

void wr_kv_copy(struct wr_kv *to, uint32_t to_position, const struct wr_kv *from, uint32_t from_position, uint32_t layer, uint32_t head)
{
    const uint32_t dim = to->head_dim, size = (uint32_t)(to->key_bytes / dim), n_scales = (uint32_t)(to->key_bytes - dim * size) / (uint32_t)sizeof(uint16_t);
    const uint64_t scales = (uint64_t)dim * WR_KV_BLOCK * size; /* where they begin */
    const struct wr_ref k_to = wr_kv_keys(to, layer, head, to_position, 1), k_from = wr_kv_keys(from, layer, head, from_position, 1);
    const struct wr_ref v_to = wr_kv_values(to, layer, head, to_position, 1), v_from = wr_kv_values(from, layer, head, from_position, 1);
    uint8_t *a = wr_ref_address(to->device, &k_to);
    const uint8_t *b = wr_ref_address(from->device, &k_from);
    const uint32_t i = to_position % WR_KV_BLOCK, j = from_position % WR_KV_BLOCK;
    copy_column(a + i * size, b + j * size, dim, size);
    copy_column(a + scales + i * sizeof(uint16_t), b + scales + j * sizeof(uint16_t), n_scales, sizeof(uint16_t));
    memcpy(wr_ref_address(to->device, &v_to), wr_ref_address(from->device, &v_from), to->value_bytes);
}

const void *wr_kv_block(const struct wr_kv *kv, uint32_t layer, uint32_t tile)
{
    const struct wr_kv_store *s = kv->store;
    uint64_t offset;
    if (s == NULL) {
        offset = place_of(kv, layer, tile).offset;
    } else {
        const struct wr_kv_layer *l = &s->layer[layer];
        if (l->local ? l->holds[tile % s->layout.n_local_tiles] != tile : tile >= l->resident && (l->tail == WR_KV_NONE || l->tail_tile != tile)) return NULL;
        offset = stored_place(s, layer, tile);
    }
    struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, offset, kv->block_bytes, 0};
    return wr_ref_address(kv->device, &ref);
}
