/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "base/num.h"
#include "quant/quant.h"

#define BF16_MAX 0x1.fep127f /* bits 0x7f7f */

static void decode_f32(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, 2);
        out[i] = wr_f32_from_bf16(h);
    }
}

/* To nearest, ties to even: add half of the last kept place, less one where that place is even. */
static void encode(const float *in, void *blocks, size_t n)
{
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = wr_bits_from_f32(fminf(fmaxf(in[i], -BF16_MAX), BF16_MAX));
        uint16_t h = (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
        memcpy(b + 2 * i, &h, 2);
    }
}

const struct wr_quant wr_quant_bf16 = {
    .id = WR_TYPE_BF16, .name = "BF16", .block_elems = 1, .block_bytes = 2, .is_float = true, .decode_f32 = decode_f32, .encode = encode};
