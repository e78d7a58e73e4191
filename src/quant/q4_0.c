/* SPDX-License-Identifier: Apache-2.0 */
/* 18 bytes, 32 elements: f16 d, then 16 bytes; element i < 16 is the low nibble of byte i, element i >= 16 the high nibble of byte i - 16. w = (q - 8) * d. */
#include "quant/blocks.h"

#define ELEMS 32
#define BYTES 18

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index * BYTES;
    *scale = half_at(b);
    *min = 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((b[2 + i] & 15) - 8);
        q[i + 16] = (int8_t)((b[2 + i] >> 4) - 8);
    }
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, ELEMS, false, blocks, out, n); }

/* The value of largest magnitude becomes -8, so that all 16 codes are used; at worst its mirror image is off by one step (it would be +8). */
static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        const float *x = in + g * ELEMS;
        uint8_t *b = (uint8_t *)blocks + g * BYTES;
        const float scale = store_half(b, largest_of(x, ELEMS) / -8.0f);
        for (int i = 0; i < 16; i++) b[2 + i] = (uint8_t)((nearest_step(x[i], scale, -8, 7) + 8) | (nearest_step(x[i + 16], scale, -8, 7) + 8) << 4);
    }
}

const struct wr_quant wr_quant_q4_0 = {.id = WR_TYPE_Q4_0,
    .name = "Q4_0",
    .block_elems = ELEMS,
    .block_bytes = BYTES,
    .group = ELEMS,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
