/* SPDX-License-Identifier: Apache-2.0 */
/* 34 bytes, 32 elements: f16 d, then 32 signed bytes. w = q * d. */
#include <string.h>
#include "base/num.h"
#include "quant/quant.h"

#define ELEMS 32
#define BYTES 34

static void decode_group(const void *row, size_t group, int8_t q[WR_GROUP], float *scale, float *min)
{
    const uint8_t *b = (const uint8_t *)row + group * BYTES;
    uint16_t d;
    memcpy(&d, b, 2);
    *scale = wr_f32_from_f16(d);
    *min = 0;
    memcpy(q, b + 2, ELEMS);
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

static void encode(const float *in, void *blocks, size_t n)
{
    for (size_t g = 0; g < n / ELEMS; g++) {
        const float *x = in + g * ELEMS;
        uint8_t *b = (uint8_t *)blocks + g * BYTES;
        float amax = 0;
        for (int i = 0; i < ELEMS; i++) amax = fmaxf(amax, fabsf(x[i]));
        uint16_t d = wr_f16_from_f32(fminf(amax / 127.0f, WR_F16_MAX));
        float scale = wr_f32_from_f16(d);
        int8_t q[ELEMS];
        for (int i = 0; i < ELEMS; i++) q[i] = scale == 0 ? 0 : (int8_t)fminf(fmaxf(rintf(x[i] / scale), -127), 127);
        memcpy(b, &d, 2);
        memcpy(b + 2, q, ELEMS);
    }
}

const struct wr_quant wr_quant_q8_0 = {
    .id = WR_TYPE_Q8_0, .name = "Q8_0", .block_elems = ELEMS, .block_bytes = BYTES, .decode_f32 = decode_f32, .decode_group = decode_group, .encode = encode};
