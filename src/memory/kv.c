/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/kv.h"

uint64_t wr_kv_position_bytes(enum wr_kv_type type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim)
{
    return (uint64_t)n_layer * n_head_kv * (wr_kv_key_bytes(type, head_dim) + wr_kv_value_bytes(type, head_dim));
}

int wr_kv_open(struct wr_kv *kv, struct wr_device *device, enum wr_kv_type type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim, uint32_t n_ctx,
    struct wr_arena *arena, struct wr_ledger *ledger, weir_err *err)
{
    uint32_t n_positions = (uint32_t)wr_round_up(n_ctx, WR_KV_BLOCK);
    *kv = (struct wr_kv){device, type, n_layer, n_head_kv, head_dim, n_positions, wr_kv_key_bytes(type, head_dim), wr_kv_value_bytes(type, head_dim)};
    uint64_t bytes = wr_kv_position_bytes(type, n_layer, n_head_kv, head_dim) * n_positions;
    void *memory = wr_arena_take(arena, ledger, WR_ACCOUNT_KV, bytes, err);
    if (memory == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    return device->ops->attach(device, WR_REGION_KV, memory, bytes, err);
}

static uint64_t head_offset(const struct wr_kv *kv, uint32_t layer, uint32_t head)
{
    return ((uint64_t)layer * kv->n_head_kv + head) * kv->n_positions * (kv->key_bytes + kv->value_bytes);
}

struct wr_ref wr_kv_keys(const struct wr_kv *kv, uint32_t layer, uint32_t head, uint32_t position, uint32_t n)
{
    uint32_t block = position / WR_KV_BLOCK * WR_KV_BLOCK;
    return (struct wr_ref){
        WR_TIER_RAM, WR_REGION_KV, head_offset(kv, layer, head) + block * kv->key_bytes, wr_round_up(position + n - block, WR_KV_BLOCK) * kv->key_bytes, 0};
}

struct wr_ref wr_kv_values(const struct wr_kv *kv, uint32_t layer, uint32_t head, uint32_t position, uint32_t n)
{
    uint64_t keys = kv->n_positions * kv->key_bytes;
    return (struct wr_ref){WR_TIER_RAM, WR_REGION_KV, head_offset(kv, layer, head) + keys + position * kv->value_bytes, n * kv->value_bytes, 0};
}
