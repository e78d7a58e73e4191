/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of one sequence. One byte order on every CPU (rule g): per layer and KV head, K in blocks of 16 positions,
 * [head_dim][16], then V position-major, [n_positions][head_dim]; q8_0 has the scales of a block, and of a position's value, behind it.
 */
#ifndef WR_MEMORY_KV_H
#define WR_MEMORY_KV_H

#include "kernels/kernels.h"
#include "memory/device.h"

struct wr_kv {
    const struct wr_device *device;
    enum wr_kv_type type;
    uint32_t n_layer, n_head_kv, head_dim;
    uint32_t n_positions;            /* a multiple of 16 */
    uint64_t key_bytes, value_bytes; /* of one position of one head */
};

/* Bytes of one position over all layers and heads. */
uint64_t wr_kv_position_bytes(enum wr_kv_type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim);
/* Takes the region for n_ctx positions from the arena, all zero. */
int wr_kv_open(struct wr_kv *, struct wr_device *, enum wr_kv_type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim, uint32_t n_ctx, struct wr_arena *,
    struct wr_ledger *, weir_err *);

/* K from the block that holds `position` on, V from `position` on; `n` positions (K: rounded out to blocks). */
struct wr_ref wr_kv_keys(const struct wr_kv *, uint32_t layer, uint32_t head, uint32_t position, uint32_t n);
struct wr_ref wr_kv_values(const struct wr_kv *, uint32_t layer, uint32_t head, uint32_t position, uint32_t n);

#endif
