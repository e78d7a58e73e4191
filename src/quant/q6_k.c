/* SPDX-License-Identifier: Apache-2.0 */
/* 210 bytes, 256 elements: 128 bytes of low nibbles, 64 bytes of upper 2 bits, 16 signed bytes of scales, f16 d. Each half of 128 elements has 64 and 32
 * bytes of them: of its element 32 t + l, the nibble is the low (t < 2) or high half of byte 32 (t % 2) + l, the upper bits are bits 2t of byte l.
 * w = d * scale * (q - 32). */
#include "quant/blocks.h"

#define BYTES 210
#define GROUP 16

static void decode_group(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + index / 16 * BYTES;
    const size_t g = index % 16, t = g / 2 % 4;
    const uint8_t *low = b + 64 * (g / 8) + 32 * (t % 2) + 16 * (g % 2), *high = b + 128 + 32 * (g / 8) + 16 * (g % 2);
    *scale = half_at(b + 208) * (float)(int8_t)b[192 + g];
    *min = 0;
    for (int i = 0; i < GROUP; i++) q[i] = (int8_t)(((low[i] >> 4 * (t / 2) & 15) | (high[i] >> 2 * t & 3) << 4) - 32);
}

static void decode_f32(const void *blocks, float *out, size_t n) { decode_by_groups(decode_group, GROUP, false, blocks, out, n); }

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t at = 0; at < n / K_ELEMS; at++) {
        uint8_t *b = (uint8_t *)blocks + at * BYTES, q[K_ELEMS];
        int scales[16];
        k_fit_signed(in + at * K_ELEMS, -32, -128, b + 208, scales, q);
        memset(b, 0, 192);
        for (int g = 0; g < 16; g++) b[192 + g] = (uint8_t)scales[g];
        for (int i = 0; i < K_ELEMS; i++) {
            const int half = i / 128, t = i / 32 % 4, l = i % 32;
            b[64 * half + 32 * (t % 2) + l] |= (uint8_t)((q[i] & 15) << 4 * (t / 2));
            b[128 + 32 * half + l] |= (uint8_t)(q[i] >> 4 << 2 * t);
        }
    }
}

const struct wr_quant wr_quant_q6_k = {.id = WR_TYPE_Q6_K,
    .name = "Q6_K",
    .block_elems = K_ELEMS,
    .block_bytes = BYTES,
    .group = GROUP,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
