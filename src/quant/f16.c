/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "base/num.h"
#include "quant/quant.h"

static void decode_f32(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, 2);
        out[i] = wr_f32_from_f16(h);
    }
}

static void encode(const float *in, void *blocks, size_t n)
{
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = wr_f16_from_f32(fminf(fmaxf(in[i], -WR_F16_MAX), WR_F16_MAX));
        memcpy(b + 2 * i, &h, 2);
    }
}

const struct wr_quant wr_quant_f16 = {
    .id = WR_TYPE_F16, .name = "F16", .block_elems = 1, .block_bytes = 2, .is_float = true, .decode_f32 = decode_f32, .encode = encode};
