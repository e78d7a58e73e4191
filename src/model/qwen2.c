/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2 and Qwen2.5: Llama's layer with RoPE on halves and biases of q, k and v. Windows are off in every published file and not computed. */
#include "model/pass.h"

static int describe(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    static const struct wr_parts parts = {.qkv_bias = WR_REQUIRED, .output_bias = WR_OPTIONAL};
    int rc = wr_model_shape(m, c, &parts, err);
    return rc == 0 ? wr_model_weights(m, c, &parts, err) : rc;
}

static bool layer(struct wr_pass *p, uint32_t il) { return wr_attention(p, il) && wr_ffn(p, il, p->kernels->silu_mul); }

const struct wr_arch wr_arch_qwen2 = {"qwen2", describe, layer};
