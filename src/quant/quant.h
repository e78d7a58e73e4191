/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight formats: what the bytes of a row mean, in scalar C. One file per format, one row in quants.def.
 * Block layouts are those of GGUF (docs/FORMATS.md); kernels are proven against these decoders.
 */
#ifndef WR_QUANT_H
#define WR_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks and headers are read as they lie in the file, which is little-endian");

/* Values are GGUF type ids; only the types with a row in quants.def can be computed with. */
enum wr_type {
#define QUANT(id, NAME, name) WR_TYPE_##NAME = id,
#include "quant/quants.def"
#undef QUANT
};

#define WR_GROUP 32         /* activations that share one scale, and the most weights that do */
#define WR_F16_MAX 65504.0f /* the largest finite half: encoders saturate scales here */

struct wr_quant {
    uint32_t id;
    const char *name; /* "Q4_0" */
    uint32_t block_elems, block_bytes;
    uint32_t group; /* elements that share one scale in a product: 32 or 16; 0 for float types */
    bool is_float;  /* F32, F16, BF16: products by rule f */
    bool has_min;   /* w = q * scale + min */
    /* n elements (a multiple of block_elems) to f32. */
    void (*decode_f32)(const void *blocks, float *out, size_t n);
    /* Not for float types. Group `index` of a row, the elements [index * group, +group): integers with the format's offset removed, their scale, and min
     * (signed; 0 where the format has none), so that w_i = q_i * scale + min exactly as decode_f32 rounds it. NULL for float types. */
    void (*decode_group)(const void *row, size_t index, int8_t q[WR_GROUP], float *scale, float *min);
    /* Nearest encoding of n finite floats (a simple one; used by synth and by tests). What it writes always decodes to finite values: magnitudes
     * beyond the format's range saturate. */
    void (*encode)(const float *in, void *blocks, size_t n);
};

#define QUANT(id, NAME, name) extern const struct wr_quant wr_quant_##name;
#include "quant/quants.def"
#undef QUANT

const struct wr_quant *wr_quant_find(uint32_t ggml_type);    /* NULL if unknown */
const struct wr_quant *wr_quant_find_name(const char *name); /* case-insensitive */
const char *wr_quant_type_name(uint32_t ggml_type);          /* name of any ggml type id, also retired and foreign ones; "unknown" */
uint32_t wr_quant_type_known(void);                          /* ids above this one, where nameless, are newer than weir */
/* Name i of the formats that can be computed with, in the order of quants.def; NULL past the end. */
const struct wr_quant *wr_quant_at(uint32_t i);
/* Bytes of a row of n elements; false if n is not whole blocks or the product overflows. */
bool wr_quant_row_bytes(const struct wr_quant *, uint64_t n, uint64_t *bytes);

#endif
