/* SPDX-License-Identifier: Apache-2.0 */
/* 24 bytes, 32 elements: f16 d, f16 m, u32 of upper bits, then 16 bytes of nibbles in the order of Q4_0. w = (nibble + 16 * bit) * d + m. */
#include "quant/blocks.h"

#define ELEMS 32
#define BYTES 24

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index * BYTES;
    uint32_t high;
    memcpy(&high, b + 4, 4);
    *scale = half_at(b);
    *min = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((b[8 + i] & 15) | (high >> i & 1) << 4);
        q[i + 16] = (int8_t)(b[8 + i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, ELEMS, true, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        uint8_t *b = (uint8_t *)blocks + g * BYTES, q[ELEMS];
        uint32_t high = 0;
        fit_range(in + g * ELEMS, 31, b, q);
        for (int i = 0; i < ELEMS; i++) high |= (uint32_t)(q[i] >> 4) << i;
        memcpy(b + 4, &high, 4);
        for (int i = 0; i < 16; i++) b[8 + i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
    }
}

const struct wr_quant wr_quant_q5_1 = {.id = WR_TYPE_Q5_1,
    .name = "Q5_1",
    .block_elems = ELEMS,
    .block_bytes = BYTES,
    .group = ELEMS,
    .has_min = true,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
