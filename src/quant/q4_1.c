/* SPDX-License-Identifier: Apache-2.0 */
/* 20 bytes, 32 elements: f16 d, f16 m, then 16 bytes of nibbles in the order of Q4_0. w = q * d + m. */
#include <string.h>
#include "base/num.h"
#include "quant/quant.h"

#define ELEMS 32
#define BYTES 20

static void decode_group(const void *row, size_t group, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + group * BYTES;
    uint16_t h[2];
    memcpy(h, b, 4);
    *scale = wr_f32_from_f16(h[0]);
    *min = wr_f32_from_f16(h[1]);
    for (int i = 0; i < 16; i++) {
        q[i] = b[4 + i] & 15;
        q[i + 16] = b[4 + i] >> 4;
    }
}

static void decode_f32(const void *blocks, float *out, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        int8_t q[WR_GROUP];
        float scale, min;
        decode_group(blocks, g, q, &scale, &min);
        for (int i = 0; i < ELEMS; i++) out[g * ELEMS + i] = (float)q[i] * scale + min; /* the product is exact: one rounding, with or without fma */
    }
}

/* The smallest value becomes 0, the largest 15. The divisions come first: max - min of two finite floats may overflow. */
static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        const float *x = in + g * ELEMS;
        uint8_t *b = (uint8_t *)blocks + g * BYTES;
        float lo = x[0], hi = x[0];
        for (int i = 1; i < ELEMS; i++) {
            lo = fminf(lo, x[i]);
            hi = fmaxf(hi, x[i]);
        }
        uint16_t h[2];
        h[1] = wr_f16_from_f32(fminf(fmaxf(lo, -WR_F16_MAX), WR_F16_MAX));
        float min = wr_f32_from_f16(h[1]);
        h[0] = wr_f16_from_f32(fminf(fmaxf(hi / 15.0f - min / 15.0f, 0), WR_F16_MAX));
        float scale = wr_f32_from_f16(h[0]);
        uint8_t q[ELEMS];
        for (int i = 0; i < ELEMS; i++) q[i] = scale == 0 ? 0 : (uint8_t)fminf(fmaxf(rintf((x[i] - min) / scale), 0), 15);
        memcpy(b, h, 4);
        for (int i = 0; i < 16; i++) b[4 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
    }
}

const struct wr_quant wr_quant_q4_1 = {.id = WR_TYPE_Q4_1,
    .name = "Q4_1",
    .block_elems = ELEMS,
    .block_bytes = BYTES,
    .has_min = true,
    .decode_f32 = decode_f32,
    .decode_group = decode_group,
    .encode = encode};
