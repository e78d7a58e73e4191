/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of AVX2, FMA with AVX-VNNI. */
#include "kernels/x86/matmul_v256.h"
#include "kernels/x86/ceiling_body.h"

uint64_t wr_ceiling_mix_avxvnni(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n) { return ceiling_mix(what, quant, precise, n); }
void wr_ceiling_read_avxvnni(const void *memory, size_t bytes) { ceiling_read(memory, bytes); }
