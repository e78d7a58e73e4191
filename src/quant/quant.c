/* SPDX-License-Identifier: Apache-2.0 */
/* The tables: formats by id and name, and the names of all ggml types that files in the wild carry, so that a refusal can name what it refuses. */
#include <strings.h>
#include "quant/quant.h"

static const struct wr_quant *const quants[] = {
#define QUANT(id, NAME, name) &wr_quant_##name,
#include "quant/quants.def"
#undef QUANT
};
#define N_QUANTS (sizeof quants / sizeof quants[0])

/* Ids of ggml in rising order; "retired": dropped before the format settled; "ik": ik_llama.cpp's own. 36 to 39 were given twice: as
 * retired repacked forms (39: MXFP4 today) and as ternary types of the BitNet fork. */
#define TYPE_NEWEST 42 /* the last id that ggml itself had given when this table was made */
/* clang-format off */
static const struct {
    uint32_t id;
    const char *name;
} names[] = {
    {0, "F32"}, {1, "F16"}, {2, "Q4_0"}, {3, "Q4_1"}, {4, "Q4_2, retired"}, {5, "Q4_3, retired"}, {6, "Q5_0"}, {7, "Q5_1"}, {8, "Q8_0"}, {9, "Q8_1"},
    {10, "Q2_K"}, {11, "Q3_K"}, {12, "Q4_K"}, {13, "Q5_K"}, {14, "Q6_K"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"}, {24, "I8"}, {25, "I16"}, {26, "I32"}, {27, "I64"}, {28, "F64"}, {29, "IQ1_M"},
    {30, "BF16"}, {31, "Q4_0_4_4, retired"}, {32, "Q4_0_4_8, retired"}, {33, "Q4_0_8_8, retired"}, {34, "TQ1_0"}, {35, "TQ2_0"},
    {36, "IQ4_NL_4_4, retired, or I2_S of BitNet"}, {37, "IQ4_NL_4_8, retired, or I8_S of BitNet"}, {38, "IQ4_NL_8_8, retired, or TL1 of BitNet"},
    {39, "MXFP4, or TL2 of BitNet"}, {40, "NVFP4"}, {41, "Q1_0"}, {42, "Q2_0"},
    {97, "Q8_0_X4 of ik"}, {98, "Q8_1_X4 of ik"}, {99, "Q8_2_X4 of ik"},
    {133, "Q6_0 of ik"}, {134, "IQ1_BN of ik"}, {135, "IQ2_BN of ik"}, {136, "Q8_K64 of ik"}, {137, "IQ2_K of ik"}, {138, "IQ3_K of ik"}, {139, "IQ4_K of ik"},
    {140, "IQ5_K of ik"}, {141, "IQ6_K of ik"}, {144, "IQ4_KS of ik"}, {145, "IQ2_KS of ik"}, {146, "IQ4_KSS of ik"}, {147, "Q8_K16 of ik"},
    {148, "Q8_K32 of ik"}, {149, "Q8_KR8 of ik"}, {150, "Q8_K128 of ik"}, {151, "Q8_KV of ik"}, {152, "IQ5_KS of ik"}, {153, "IQ2_KT of ik"},
    {154, "IQ3_KT of ik"}, {155, "IQ4_KT of ik"}, {156, "IQ3_KS of ik"}, {157, "IQ2_KL of ik"}, {158, "IQ1_KT of ik"},
    {202, "Q4_0_R8 of ik"}, {206, "Q5_0_R4 of ik"}, {208, "Q8_0_R8 of ik"}, {210, "Q2_K_R4 of ik"}, {211, "Q3_K_R4 of ik"}, {212, "Q4_K_R4 of ik"},
    {213, "Q5_K_R4 of ik"}, {214, "Q6_K_R4 of ik"}, {216, "IQ2_XXS_R4 of ik"}, {217, "IQ2_XS_R4 of ik"}, {218, "IQ3_XXS_R4 of ik"}, {219, "IQ1_S_R4 of ik"},
    {220, "IQ4_NL_R4 of ik"}, {221, "IQ3_S_R4 of ik"}, {222, "IQ2_S_R4 of ik"}, {223, "IQ4_XS_R8 of ik"}, {229, "IQ1_M_R4 of ik"}, {230, "BF16_R16 of ik"},
    {233, "Q6_0_R4 of ik"}, {335, "IQ2_BN_R4 of ik"}, {337, "IQ2_K_R4 of ik"}, {338, "IQ3_K_R4 of ik"}, {339, "IQ4_K_R4 of ik"}, {340, "IQ5_K_R4 of ik"},
    {344, "IQ4_KS_R4 of ik"}, {352, "IQ5_KS_R4 of ik"}, {397, "Q8_K_R16 of ik"}, {398, "Q8_KV_R8 of ik"}, {399, "Q8_K_R8 of ik"},
};
/* clang-format on */

const struct wr_quant *wr_quant_at(uint32_t i) { return i < N_QUANTS ? quants[i] : NULL; }

const struct wr_quant *wr_quant_find(uint32_t ggml_type)
{
    for (size_t i = 0; i < N_QUANTS; i++) {
        if (quants[i]->id == ggml_type) return quants[i];
    }
    return NULL;
}

const struct wr_quant *wr_quant_find_name(const char *name)
{
    for (size_t i = 0; i < N_QUANTS; i++) {
        if (strcasecmp(quants[i]->name, name) == 0) return quants[i];
    }
    return NULL;
}

const char *wr_quant_type_name(uint32_t ggml_type)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].id == ggml_type) return names[i].name;
    }
    return "unknown";
}

uint32_t wr_quant_type_known(void) { return TYPE_NEWEST; }

bool wr_quant_row_bytes(const struct wr_quant *quant, uint64_t n, uint64_t *bytes)
{
    uint64_t row;
    if (n % quant->block_elems != 0 || __builtin_mul_overflow(n / quant->block_elems, quant->block_bytes, &row)) return false;
    *bytes = row;
    return true;
}
