/* SPDX-License-Identifier: Apache-2.0 */
/* 176 bytes, 256 elements: Q4_K with 32 bytes of upper bits before the nibbles: that of element 32 g + l is bit g of byte l. */
#include "quant/blocks.h"

#define BYTES 176
#define GROUP 32

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index / 8 * BYTES, *high = b + 16;
    const size_t g = index % 8;
    const uint8_t *nibbles = b + 48 + 32 * (g / 2);
    int sc, mn;
    k_pair(b + 4, g, &sc, &mn);
    *scale = half_at(b) * (float)sc;
    *min = -(half_at(b + 2) * (float)mn);
    for (int i = 0; i < GROUP; i++) q[i] = (int8_t)((nibbles[i] >> 4 * (g % 2) & 15) | (high[i] >> g & 1) << 4);
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, GROUP, true, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t at = 0; at < n / K_ELEMS; at++) {
        uint8_t *b = (uint8_t *)blocks + at * BYTES, q[K_ELEMS];
        int scales[8], mins[8];
        k_fit_ranges(in + at * K_ELEMS, GROUP, 31, 63, b, b + 2, scales, mins, q);
        memset(b + 4, 0, BYTES - 4);
        for (size_t g = 0; g < 8; g++) k_set_pair(b + 4, g, scales[g], mins[g]);
        for (int i = 0; i < K_ELEMS; i++) {
            b[16 + i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
            b[48 + i / 64 * 32 + i % 32] |= (uint8_t)((q[i] & 15) << 4 * (i / 32 % 2));
        }
    }
}

const struct wr_quant wr_quant_q5_k = {.id = WR_TYPE_Q5_K,
    .name = "Q5_K",
    .block_elems = K_ELEMS,
    .block_bytes = BYTES,
    .group = GROUP,
    .has_min = true,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
