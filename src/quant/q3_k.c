/* SPDX-License-Identifier: Apache-2.0 */
/* 110 bytes, 256 elements: 32 bytes of upper bits; 64 bytes of 2 bits in the order of Q2_K; 12 bytes of scales; f16 d. The upper bit of element 32 p + l
 * is bit p of byte l. Of scale g the low nibbles are those of bytes 0..7, first all low ones, and the upper two bits are in byte 8 + g % 4, bits
 * 2 (g / 4). w = d * (scale - 32) * (2 bits + 4 * upper bit - 4). */
#include "quant/blocks.h"

#define BYTES 110
#define GROUP 16

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index / 16 * BYTES, *s = b + 96;
    const size_t g = index % 16;
    const uint8_t *high = b + 16 * (g % 2), *bits = b + 32 + 32 * (g / 8) + 16 * (g % 2);
    const int low4 = g < 8 ? s[g] & 15 : s[g - 8] >> 4, high2 = s[8 + g % 4] >> 2 * (g / 4) & 3;
    *scale = half_at(b + 108) * (float)((low4 | high2 << 4) - 32);
    *min = 0;
    for (int i = 0; i < GROUP; i++) q[i] = (int8_t)(((bits[i] >> 2 * (g / 2 % 4) & 3) | (high[i] >> g / 2 & 1) << 2) - 4);
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, GROUP, false, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t at = 0; at < n / K_ELEMS; at++) {
        uint8_t *b = (uint8_t *)blocks + at * BYTES, *s = b + 96, q[K_ELEMS];
        int scales[16];
        k_fit_signed(in + at * K_ELEMS, -4, -32, b + 108, scales, q);
        memset(b, 0, 108);
        for (int g = 0; g < 16; g++) {
            const int code = scales[g] + 32;
            s[g % 8] |= (uint8_t)((code & 15) << 4 * (g / 8));
            s[8 + g % 4] |= (uint8_t)(code >> 4 << 2 * (g / 4));
        }
        for (int i = 0; i < K_ELEMS; i++) {
            b[i % 32] |= (uint8_t)(q[i] >> 2 << i / 32);
            b[32 + i / 128 * 32 + i % 32] |= (uint8_t)((q[i] & 3) << 2 * (i / 32 % 4));
        }
    }
}

const struct wr_quant wr_quant_q3_k = {.id = WR_TYPE_Q3_K,
    .name = "Q3_K",
    .block_elems = K_ELEMS,
    .block_bytes = BYTES,
    .group = GROUP,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
