/* SPDX-License-Identifier: Apache-2.0 */
/* 84 bytes, 256 elements: 16 bytes, one a group of 16 elements, scale in the low nibble and min in the high one; 64 bytes of 2 bits; f16 d, f16 dmin.
 * Each half of 128 elements has 32 bytes: its element 32 p + l is in bits 2p of byte l. w = d * scale * q - dmin * min. */
#include "quant/blocks.h"

#define BYTES 84
#define GROUP 16

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index / 16 * BYTES;
    const size_t g = index % 16;
    const uint8_t *bits = b + 16 + 32 * (g / 8) + 16 * (g % 2);
    *scale = half_at(b + 80) * (float)(b[g] & 15);
    *min = -(half_at(b + 82) * (float)(b[g] >> 4));
    for (int i = 0; i < GROUP; i++) q[i] = bits[i] >> 2 * (g / 2 % 4) & 3;
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, GROUP, true, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t at = 0; at < n / K_ELEMS; at++) {
        uint8_t *b = (uint8_t *)blocks + at * BYTES, q[K_ELEMS];
        int scales[16], mins[16];
        k_fit_ranges(in + at * K_ELEMS, GROUP, 3, 15, b + 80, b + 82, scales, mins, q);
        for (int g = 0; g < 16; g++) b[g] = (uint8_t)(scales[g] | mins[g] << 4);
        for (int i = 0; i < 64; i++) {
            const uint8_t *p = q + i / 32 * 128 + i % 32;
            b[16 + i] = (uint8_t)(p[0] | p[32] << 2 | p[64] << 4 | p[96] << 6);
        }
    }
}

const struct wr_quant wr_quant_q2_k = {.id = WR_TYPE_Q2_K,
    .name = "Q2_K",
    .block_elems = K_ELEMS,
    .block_bytes = BYTES,
    .group = GROUP,
    .has_min = true,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
