/* SPDX-License-Identifier: Apache-2.0 */
/* Llama and its relatives (Mistral, SmolLM2, TinyLlama): pre-norm, grouped-query attention, interleaved RoPE, SwiGLU. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "model/pass.h"

static int read_rope(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    struct wr_hparams *hp = &m->hp;
    const char *scaling = NULL;
    float factor = 1;
    hp->rope_base = 10000.0f;
    hp->rope_interleaved = true;
    hp->n_rot = hp->head_dim;
    int rc = wr_model_key_f32(m, c, "rope.freq_base", true, &hp->rope_base, err);
    if (rc == 0) rc = wr_model_key(m, c, "rope.dimension_count", true, 2, hp->head_dim, &hp->n_rot, err);
    if (rc == 0 && hp->n_rot % 2 != 0)
        rc = wr_err(err, WEIR_E_FORMAT, "%s: key llama.rope.dimension_count is %u, which is odd", wr_file_label(c->files[0].path), hp->n_rot);
    if (rc == 0) rc = wr_catalog_str(c, "llama.rope.scaling.type", &scaling, err);
    if (rc < 0) return rc;
    rc = wr_model_key_f32(m, c, "rope.scaling.factor", true, &factor, err);
    if (rc < 0) return rc;
    if (scaling != NULL && strcmp(scaling, "none") != 0 && factor != 1)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key llama.rope.scaling.type '%s' with factor %g is not supported", wr_file_label(c->files[0].path), scaling,
            (double)factor);
    if (scaling == NULL && factor != 1)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key llama.rope.scaling.factor %g is not supported", wr_file_label(c->files[0].path), (double)factor);
    return 0;
}

/* Keys that change the graph in a way that is not computed here: refused unless their value changes nothing. */
static int refuse_other_graphs(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    static const struct {
        const char *key;
        double neutral; /* 0 is neutral everywhere */
    } numbers[] = {{"rope.scale_linear", 1}, {"rope.scaling.attn_factor", 1}, {"rope.scaling.yarn_attn_factor", 1}, {"rope.scaling.yarn_ext_factor", 0},
        {"attention.clamp_kqv", 0}, {"attention.max_alibi_bias", 0}, {"attn_logit_softcapping", 0}, {"final_logit_softcapping", 0}, {"logit_scale", 1},
        {"residual_scale", 1}, {"embedding_scale", 1}, {"attention.temperature_scale", 0}};
    static const struct {
        const char *key;
        bool neutral;
    } flags[] = {{"attention.causal", true}, {"use_parallel_residual", false}};
    char name[96];
    int rc;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double value;
        snprintf(name, sizeof name, "llama.%s", numbers[i].key);
        if ((rc = wr_catalog_f64(c, name, &value, err)) < 0) return rc;
        if (rc == 1 && value != 0 && value != numbers[i].neutral)
            return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key %s is %g, which is not supported", wr_file_label(c->files[0].path), name, value);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool value;
        snprintf(name, sizeof name, "llama.%s", flags[i].key);
        if ((rc = wr_catalog_bool(c, name, &value, err)) < 0) return rc;
        if (rc == 1 && value != flags[i].neutral)
            return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key %s is %s, which is not supported", wr_file_label(c->files[0].path), name, value ? "true" : "false");
    }
    uint32_t n_vocab = m->hp.n_vocab;
    rc = wr_model_key(m, c, "vocab_size", true, 0, UINT32_MAX, &n_vocab, err);
    if (rc == 0 && n_vocab != m->hp.n_vocab)
        return wr_err(
            err, WEIR_E_FORMAT, "%s: key llama.vocab_size is %u, but token_embd.weight has %u rows", wr_file_label(c->files[0].path), n_vocab, m->hp.n_vocab);
    return rc;
}

static int describe(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    struct wr_hparams *hp = &m->hp;
    uint32_t n_expert = 0, value_length = 0;
    int rc;
#define KEY(...)                                                                                                                                               \
    if ((rc = wr_model_key(m, c, __VA_ARGS__, err)) < 0) return rc
#define USE(use, optional, index, ne0, ne1, ...)                                                                                                               \
    if ((rc = wr_model_use(m, c, use, optional, index, ne0, ne1, err, __VA_ARGS__)) < 0) return rc
    KEY("block_count", false, 1, 4096, &hp->n_layer);
    KEY("embedding_length", false, 1, 1 << 20, &hp->n_embd);
    KEY("feed_forward_length", false, 1, 1 << 22, &hp->n_ff);
    KEY("context_length", false, 1, 1u << 31, &hp->n_ctx_trained);
    KEY("attention.head_count", false, 1, 1024, &hp->n_head);
    hp->n_head_kv = hp->n_head;
    KEY("attention.head_count_kv", true, 1, hp->n_head, &hp->n_head_kv);
    if (hp->n_head % hp->n_head_kv != 0)
        return wr_err(err, WEIR_E_FORMAT, "%s: key llama.attention.head_count_kv %u does not divide head_count %u", wr_file_label(c->files[0].path),
            hp->n_head_kv, hp->n_head);
    hp->head_dim = hp->n_embd / hp->n_head;
    KEY("attention.key_length", true, 2, WR_MAX_HEAD_DIM, &hp->head_dim);
    if (hp->head_dim < 2 || hp->head_dim > WR_MAX_HEAD_DIM)
        return wr_err(err, WEIR_E_FORMAT, "%s: head dimension %u (llama.embedding_length / head_count) is not in 2..%u", wr_file_label(c->files[0].path),
            hp->head_dim, WR_MAX_HEAD_DIM);
    value_length = hp->head_dim;
    KEY("attention.value_length", true, 1, 1 << 20, &value_length);
    if (value_length != hp->head_dim)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key llama.attention.value_length %u differs from key_length %u", wr_file_label(c->files[0].path),
            value_length, hp->head_dim);
    KEY("expert_count", true, 0, 1 << 16, &n_expert);
    if (n_expert > 0)
        return wr_err(
            err, WEIR_E_UNSUPPORTED, "%s: key llama.expert_count is %u: mixtures of experts are not supported", wr_file_label(c->files[0].path), n_expert);
    if ((rc = wr_model_key_f32(m, c, "attention.layer_norm_rms_epsilon", false, &hp->eps, err)) < 0) return rc;
    hp->attention_scale = 1.0f / sqrtf((float)hp->head_dim);
    if ((rc = wr_model_key_f32(m, c, "attention.scale", true, &hp->attention_scale, err)) < 0) return rc;
    if ((rc = read_rope(m, c, err)) < 0) return rc;
    if ((rc = wr_model_begin(m, c, err)) < 0) return rc;
    if ((rc = refuse_other_graphs(m, c, err)) < 0) return rc;

    m->layers = wr_mem_array(m->ledger, WR_ACCOUNT_META, hp->n_layer, sizeof *m->layers, err);
    if (m->layers == NULL) return WEIR_E_NOMEM;
    uint32_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    for (uint32_t il = 0; il < hp->n_layer; il++) {
        struct wr_layer *l = &m->layers[il];
        USE(WR_USE_VECTOR, false, &l->attn_norm, hp->n_embd, 1, "blk.%u.attn_norm.weight", il);
        USE(WR_USE_DENSE, false, &l->q, hp->n_embd, n_q, "blk.%u.attn_q.weight", il);
        USE(WR_USE_DENSE, false, &l->k, hp->n_embd, n_kv, "blk.%u.attn_k.weight", il);
        USE(WR_USE_DENSE, false, &l->v, hp->n_embd, n_kv, "blk.%u.attn_v.weight", il);
        USE(WR_USE_VECTOR, true, &l->q_bias, n_q, 1, "blk.%u.attn_q.bias", il);
        USE(WR_USE_VECTOR, true, &l->k_bias, n_kv, 1, "blk.%u.attn_k.bias", il);
        USE(WR_USE_VECTOR, true, &l->v_bias, n_kv, 1, "blk.%u.attn_v.bias", il);
        USE(WR_USE_DENSE, false, &l->o, n_q, hp->n_embd, "blk.%u.attn_output.weight", il);
        USE(WR_USE_VECTOR, true, &l->o_bias, hp->n_embd, 1, "blk.%u.attn_output.bias", il);
        USE(WR_USE_VECTOR, false, &l->ffn_norm, hp->n_embd, 1, "blk.%u.ffn_norm.weight", il);
        USE(WR_USE_DENSE, false, &l->gate, hp->n_embd, hp->n_ff, "blk.%u.ffn_gate.weight", il);
        USE(WR_USE_DENSE, false, &l->up, hp->n_embd, hp->n_ff, "blk.%u.ffn_up.weight", il);
        USE(WR_USE_VECTOR, true, &l->gate_bias, hp->n_ff, 1, "blk.%u.ffn_gate.bias", il);
        USE(WR_USE_VECTOR, true, &l->up_bias, hp->n_ff, 1, "blk.%u.ffn_up.bias", il);
        USE(WR_USE_DENSE, false, &l->down, hp->n_ff, hp->n_embd, "blk.%u.ffn_down.weight", il);
        USE(WR_USE_VECTOR, true, &l->down_bias, hp->n_embd, 1, "blk.%u.ffn_down.bias", il);
    }
#undef KEY
#undef USE
    return wr_model_end(m, c, err);
}

static bool layer(struct wr_pass *p, uint32_t il) { return wr_attention(p, il) && wr_ffn_silu(p, il); }

const struct wr_arch wr_arch_llama = {"llama", describe, layer};
