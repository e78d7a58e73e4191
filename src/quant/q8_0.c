/* SPDX-License-Identifier: Apache-2.0 */
/* 34 bytes, 32 elements: f16 d, then 32 signed bytes. w = q * d. */
#include "quant/blocks.h"

#define ELEMS 32
#define BYTES 34

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index * BYTES;
    *scale = half_at(b);
    *min = 0;
    memcpy(q, b + 2, ELEMS);
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, ELEMS, false, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        const float *x = in + g * ELEMS;
        uint8_t *b = (uint8_t *)blocks + g * BYTES;
        const float scale = store_half(b, fabsf(largest_of(x, ELEMS)) / 127.0f);
        for (int i = 0; i < ELEMS; i++) b[2 + i] = (uint8_t)nearest_step(x[i], scale, -127, 127);
    }
}

const struct wr_quant wr_quant_q8_0 = {.id = WR_TYPE_Q8_0,
    .name = "Q8_0",
    .block_elems = ELEMS,
    .block_bytes = BYTES,
    .group = ELEMS,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
