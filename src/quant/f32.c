/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "quant/quant.h"

static void decode_f32(const void *blocks, float *out, size_t n) { memcpy(out, blocks, n * sizeof *out); }

static void encode(const float *in, void *blocks, size_t n) { memcpy(blocks, in, n * sizeof *in); }

const struct wr_quant wr_quant_f32 = {
    .id = WR_TYPE_F32, .name = "F32", .block_elems = 1, .block_bytes = 4, .is_float = true, .decode_f32 = decode_f32, .encode = encode};
