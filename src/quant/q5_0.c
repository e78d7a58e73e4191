/* SPDX-License-Identifier: Apache-2.0 */
/* 22 bytes, 32 elements: f16 d, u32 of upper bits, then 16 bytes of nibbles in the order of Q4_0. w = (nibble + 16 * bit - 16) * d. */
#include "quant/blocks.h"

#define ELEMS 32
#define BYTES 22

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index * BYTES;
    uint32_t high;
    memcpy(&high, b + 2, 4);
    *scale = half_at(b);
    *min = 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(((b[6 + i] & 15) | (high >> i & 1) << 4) - 16);
        q[i + 16] = (int8_t)((b[6 + i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
    }
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, ELEMS, false, blocks, out, n); }

/* As Q4_0, with 32 codes. */
static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        const float *x = in + g * ELEMS;
        uint8_t *b = (uint8_t *)blocks + g * BYTES;
        const float scale = store_half(b, largest_of(x, ELEMS) / -16.0f);
        uint32_t high = 0;
        for (int i = 0; i < 16; i++) {
            const int q0 = nearest_step(x[i], scale, -16, 15) + 16, q1 = nearest_step(x[i + 16], scale, -16, 15) + 16;
            b[6 + i] = (uint8_t)((q0 & 15) | (q1 & 15) << 4);
            high |= (uint32_t)(q0 >> 4) << i | (uint32_t)(q1 >> 4) << (i + 16);
        }
        memcpy(b + 2, &high, 4);
    }
}

const struct wr_quant wr_quant_q5_0 = {.id = WR_TYPE_Q5_0,
    .name = "Q5_0",
    .block_elems = ELEMS,
    .block_bytes = BYTES,
    .group = ELEMS,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
