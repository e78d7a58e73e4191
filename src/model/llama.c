/* SPDX-License-Identifier: Apache-2.0 */
/* Llama and its relatives (Mistral, SmolLM2, TinyLlama): pre-norm, grouped-query attention, interleaved RoPE, SwiGLU. */
#include "model/pass.h"

static int describe(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    static const struct wr_parts parts = {.qkv_bias = WR_OPTIONAL, .linear_bias = WR_OPTIONAL, .rope_factors = WR_OPTIONAL};
    m->hp.rope_interleaved = true;
    int rc = wr_model_shape(m, c, &parts, err);
    return rc == 0 ? wr_model_weights(m, c, &parts, err) : rc;
}

static bool layer(struct wr_pass *p, uint32_t il) { return wr_attention(p, il) && wr_ffn(p, il, p->kernels->silu_mul); }

const struct wr_arch wr_arch_llama = {"llama", describe, layer};
