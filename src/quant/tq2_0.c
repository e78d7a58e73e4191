/* SPDX-License-Identifier: Apache-2.0 */
/* 66 bytes, 256 elements: 64 bytes of 2 bits in the order of Q2_K; f16 d. w = (q - 1) * d: -d, 0 or d; the code 3, which no encoder writes, is 2 d. */
#include "quant/blocks.h"

#define BYTES 66

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index / 8 * BYTES;
    const size_t g = index % 8;
    *scale = half_at(b + 64);
    *min = 0;
    for (int i = 0; i < WR_GROUP; i++) q[i] = (int8_t)((b[g / 4 * 32 + i] >> 2 * (g % 4) & 3) - 1);
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, WR_GROUP, false, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t at = 0; at < n / K_ELEMS; at++) {
        const float *x = in + at * K_ELEMS;
        uint8_t *b = (uint8_t *)blocks + at * BYTES;
        const float scale = store_half(b + 64, fabsf(largest_of(x, K_ELEMS)));
        memset(b, 0, 64);
        for (int i = 0; i < K_ELEMS; i++) b[i / 128 * 32 + i % 32] |= (uint8_t)((nearest_step(x[i], scale, -1, 1) + 1) << 2 * (i / 32 % 4));
    }
}

const struct wr_quant wr_quant_tq2_0 = {.id = WR_TYPE_TQ2_0,
    .name = "TQ2_0",
    .block_elems = K_ELEMS,
    .block_bytes = BYTES,
    .group = WR_GROUP,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
