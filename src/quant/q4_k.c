/* SPDX-License-Identifier: Apache-2.0 */
/* 144 bytes, 256 elements in 8 groups of 32: f16 d, f16 dmin, 12 bytes of scales and minimums (k_pair), 128 bytes of nibbles: groups 2c and 2c + 1 are
 * the low and the high nibbles of bytes 32c to 32c + 31. w = d * scale * q - dmin * min. */
#include "quant/blocks.h"

#define BYTES 144
#define GROUP 32

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index / 8 * BYTES;
    const size_t g = index % 8;
    const uint8_t *nibbles = b + 16 + 32 * (g / 2);
    int sc, mn;
    k_pair(b + 4, g, &sc, &mn);
    *scale = half_at(b) * (float)sc;
    *min = -(half_at(b + 2) * (float)mn);
    for (int i = 0; i < GROUP; i++) q[i] = nibbles[i] >> 4 * (g % 2) & 15;
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, GROUP, true, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t at = 0; at < n / K_ELEMS; at++) {
        uint8_t *b = (uint8_t *)blocks + at * BYTES, q[K_ELEMS];
        int scales[8], mins[8];
        k_fit_ranges(in + at * K_ELEMS, GROUP, 15, 63, b, b + 2, scales, mins, q);
        memset(b + 4, 0, 12);
        for (size_t g = 0; g < 8; g++) k_set_pair(b + 4, g, scales[g], mins[g]);
        for (int i = 0; i < 128; i++) {
            const uint8_t *p = q + i / 32 * 64 + i % 32;
            b[16 + i] = (uint8_t)(p[0] | p[32] << 4);
        }
    }
}

const struct wr_quant wr_quant_q4_k = {.id = WR_TYPE_Q4_K,
    .name = "Q4_K",
    .block_elems = K_ELEMS,
    .block_bytes = BYTES,
    .group = GROUP,
    .has_min = true,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
