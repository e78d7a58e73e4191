/* SPDX-License-Identifier: Apache-2.0 */
/* 18 bytes, 32 elements: f16 d, then 16 bytes; element i < 16 is the low nibble of byte i, element i >= 16 the high nibble of byte i - 16. w = (q - 8) * d. */
#include <string.h>
#include "base/num.h"
#include "quant/quant.h"

#define ELEMS 32
#define BYTES 18

static void decode_group(const void *row, size_t group, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + group * BYTES;
    uint16_t d;
    memcpy(&d, b, 2);
    *scale = wr_f32_from_f16(d);
    *min = 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((b[2 + i] & 15) - 8);
        q[i + 16] = (int8_t)((b[2 + i] >> 4) - 8);
    }
}

static void decode_f32(const void *blocks, float *out, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        int8_t q[WR_GROUP];
        float scale, min;
        decode_group(blocks, g, q, &scale, &min);
        for (int i = 0; i < ELEMS; i++) out[g * ELEMS + i] = (float)q[i] * scale;
    }
}

/* The value of largest magnitude becomes -8, so that all 16 codes are used; at worst its mirror image is off by one step (it would be +8). */
static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        const float *x = in + g * ELEMS;
        uint8_t *b = (uint8_t *)blocks + g * BYTES;
        float largest = 0;
        for (int i = 0; i < ELEMS; i++) {
            if (fabsf(x[i]) > fabsf(largest)) largest = x[i];
        }
        uint16_t d = wr_f16_from_f32(fminf(fmaxf(largest / -8.0f, -WR_F16_MAX), WR_F16_MAX));
        float scale = wr_f32_from_f16(d);
        uint8_t q[ELEMS];
        for (int i = 0; i < ELEMS; i++) q[i] = scale == 0 ? 8 : (uint8_t)fminf(fmaxf(rintf(x[i] / scale) + 8.0f, 0), 15);
        memcpy(b, &d, 2);
        for (int i = 0; i < 16; i++) b[2 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
    }
}

const struct wr_quant wr_quant_q4_0 = {
    .id = WR_TYPE_Q4_0, .name = "Q4_0", .block_elems = ELEMS, .block_bytes = BYTES, .decode_f32 = decode_f32, .decode_group = decode_group, .encode = encode};
