/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters and weights as all families have them: what a family file need not say. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "model/pass.h"

static int find_f64(const struct wr_model *m, const struct wr_catalog *c, const char *key, char name[128], double *out, weir_err *err)
{
    snprintf(name, 128, "%s.%s", m->arch->name, key);
    return wr_catalog_f64(c, name, out, err);
}

int wr_model_key(struct wr_model *m, const struct wr_catalog *c, const char *key, bool has_default, uint32_t min, uint32_t max, uint32_t *out, weir_err *err)
{
    char name[128];
    uint64_t value = 0;
    snprintf(name, sizeof name, "%s.%s", m->arch->name, key);
    int rc = wr_catalog_u64(c, name, UINT64_MAX, &value, err);
    if (rc < 0) return rc;
    if (rc == 0 && has_default) return 0;
    if (rc == 0) return wr_err(err, WEIR_E_FORMAT, "%s: key %s is missing", wr_file_label(c->files[0].path), name);
    if (value < min || value > max)
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s is %llu, not in %u..%u", wr_file_label(c->files[0].path), name, (unsigned long long)value, min, max);
    *out = (uint32_t)value;
    return 0;
}

int wr_model_key_f32(struct wr_model *m, const struct wr_catalog *c, const char *key, bool has_default, float *out, weir_err *err)
{
    char name[128];
    double value;
    int rc = find_f64(m, c, key, name, &value, err);
    if (rc < 0) return rc;
    if (rc == 0 && has_default) return 0;
    if (rc == 0) return wr_err(err, WEIR_E_FORMAT, "%s: key %s is missing", wr_file_label(c->files[0].path), name);
    if (!((float)value > 0 && value < 1e30))
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s is %g, which is not a positive number", wr_file_label(c->files[0].path), name, value);
    *out = (float)value;
    return 0;
}

int wr_model_key_f32_or_none(struct wr_model *m, const struct wr_catalog *c, const char *key, float *out, weir_err *err)
{
    char name[128];
    double value = 0;
    int rc = find_f64(m, c, key, name, &value, err);
    if (rc < 0) return rc;
    return value == 0 ? 0 : wr_model_key_f32(m, c, key, true, out, err);
}

static int read_rope(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    struct wr_hparams *hp = &m->hp;
    const char *file = wr_file_label(c->files[0].path), *scaling = "linear";
    char name[128];
    double factor = 0;
    hp->rope_base = 10000.0f;
    hp->n_rot = hp->head_dim;
    int rc = wr_model_key_f32(m, c, "rope.freq_base", true, &hp->rope_base, err);
    if (rc == 0) rc = wr_model_key(m, c, "rope.dimension_count", true, 2, hp->head_dim, &hp->n_rot, err);
    if (rc < 0) return rc;
    if (hp->n_rot % 2 != 0) return wr_err(err, WEIR_E_FORMAT, "%s: key %s.rope.dimension_count is %u, which is odd", file, m->arch->name, hp->n_rot);
    snprintf(name, sizeof name, "%s.rope.scaling.type", m->arch->name);
    if ((rc = wr_catalog_str(c, name, &scaling, err)) < 0) return rc;
    bool linear = strcmp(scaling, "linear") == 0;
    if (!linear && strcmp(scaling, "none") != 0) return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key %s '%s' is not supported", file, name, scaling);
    rc = find_f64(m, c, "rope.scaling.factor", name, &factor, err);
    if (rc == 0) rc = find_f64(m, c, "rope.scale_linear", name, &factor, err);
    if (rc < 0) return rc;
    if (factor == 0) factor = 1;
    if (!((float)factor > 0 && factor < 1e30)) return wr_err(err, WEIR_E_FORMAT, "%s: key %s is %g, which is not a positive number", file, name, factor);
    hp->rope_factor = linear ? (float)factor : 1;
    return 0;
}

/* Keys that change the graph in a way that is not computed here: refused unless their value changes nothing. */
static int refuse_other_graphs(struct wr_model *m, const struct wr_catalog *c, const struct wr_parts *parts, weir_err *err)
{
    static const struct {
        const char *key;
        double neutral; /* 0 is neutral everywhere */
    } numbers[] = {{"rope.scaling.attn_factor", 1}, {"rope.scaling.yarn_attn_factor", 1}, {"rope.scaling.yarn_ext_factor", 0}, {"attention.clamp_kqv", 0},
        {"attention.max_alibi_bias", 0}, {"attn_logit_softcapping", 0}, {"logit_scale", 1}, {"residual_scale", 1}, {"embedding_scale", 1},
        {"attention.temperature_scale", 0}, {"expert_count", 0}, {"final_logit_softcapping", 0}};
    static const struct {
        const char *key;
        bool neutral;
    } flags[] = {{"attention.causal", true}, {"use_parallel_residual", false}};
    const char *file = wr_file_label(c->files[0].path);
    char name[128];
    int rc;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double value;
        if (parts->final_softcap && strcmp(numbers[i].key, "final_logit_softcapping") == 0) continue; /* part of the graph */
        if ((rc = find_f64(m, c, numbers[i].key, name, &value, err)) < 0) return rc;
        if (rc == 1 && value != 0 && value != numbers[i].neutral)
            return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key %s is %g, which is not supported", file, name, value);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool value;
        snprintf(name, sizeof name, "%s.%s", m->arch->name, flags[i].key);
        if ((rc = wr_catalog_bool(c, name, &value, err)) < 0) return rc;
        if (rc == 1 && value != flags[i].neutral)
            return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key %s is %s, which is not supported", file, name, value ? "true" : "false");
    }
    return 0;
}

static int read_heads(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    struct wr_hparams *hp = &m->hp;
    const char *file = wr_file_label(c->files[0].path), *arch = m->arch->name;
    uint32_t key_length = 0, value_length;
    int rc = wr_model_key(m, c, "attention.head_count", false, 1, 1024, &hp->n_head, err);
    hp->n_head_kv = hp->n_head;
    if (rc == 0) rc = wr_model_key(m, c, "attention.head_count_kv", true, 1, hp->n_head, &hp->n_head_kv, err);
    if (rc == 0) rc = wr_model_key(m, c, "attention.key_length", true, 2, WR_MAX_HEAD_DIM, &key_length, err);
    if (rc < 0) return rc;
    if (hp->n_head % hp->n_head_kv != 0)
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s.attention.head_count_kv %u does not divide head_count %u", file, arch, hp->n_head_kv, hp->n_head);
    hp->head_dim = key_length != 0 ? key_length : hp->n_embd / hp->n_head;
    if (key_length == 0 && (hp->n_embd % hp->n_head != 0 || hp->head_dim < 2 || hp->head_dim > WR_MAX_HEAD_DIM))
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s.attention.head_count %u does not divide embedding_length %u into heads of 2 to %u", file, arch,
            hp->n_head, hp->n_embd, WR_MAX_HEAD_DIM);
    value_length = hp->head_dim;
    if ((rc = wr_model_key(m, c, "attention.value_length", true, 1, 1 << 20, &value_length, err)) < 0) return rc;
    if (value_length != hp->head_dim)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key %s.attention.value_length %u differs from key_length %u", file, arch, value_length, hp->head_dim);
    hp->attention_scale = 1.0f / sqrtf((float)hp->head_dim);
    return wr_model_key_f32_or_none(m, c, "attention.scale", &hp->attention_scale, err);
}

int wr_model_shape(struct wr_model *m, const struct wr_catalog *c, const struct wr_parts *parts, weir_err *err)
{
    struct wr_hparams *hp = &m->hp;
    int rc = wr_model_key(m, c, "block_count", false, 1, 4096, &hp->n_layer, err);
    if (rc == 0) rc = wr_model_key(m, c, "embedding_length", false, 1, 1 << 20, &hp->n_embd, err);
    if (rc == 0) rc = wr_model_key(m, c, "feed_forward_length", false, 1, 1 << 22, &hp->n_ff, err);
    if (rc == 0) rc = wr_model_key(m, c, "context_length", false, 1, 1u << 31, &hp->n_ctx_trained, err);
    if (rc == 0) rc = read_heads(m, c, err);
    if (rc == 0) rc = wr_model_key_f32(m, c, "attention.layer_norm_rms_epsilon", false, &hp->eps, err);
    if (rc == 0) rc = read_rope(m, c, err);
    if (rc == 0) rc = refuse_other_graphs(m, c, parts, err);
    if (rc < 0) return rc;
    m->layers = wr_mem_array(m->ledger, WR_ACCOUNT_META, hp->n_layer, sizeof *m->layers, err);
    return m->layers != NULL ? 0 : err != NULL ? err->code : WEIR_E_NOMEM;
}

/* Adds a tensor of shape {ne0, ne1} to the uses; *index is its place, WR_NO_WEIGHT where there is none. */
static int use(struct wr_model *m, const struct wr_catalog *c, enum wr_use_class class, enum wr_presence presence, uint32_t *index, const char *name,
    uint64_t ne0, uint64_t ne1, weir_err *err)
{
    const struct wr_tensor *t = presence != WR_ABSENT ? wr_catalog_tensor(c, name) : NULL;
    const char *file = wr_file_label(c->files[t != NULL ? t->file : 0].path);
    *index = WR_NO_WEIGHT;
    if (t == NULL && presence != WR_REQUIRED) return 0;
    if (t == NULL) return wr_err(err, WEIR_E_FORMAT, "%s: tensor %s is missing", file, name);
    if (t->ne[0] != ne0 || t->n_rows != ne1)
        return wr_err(err, WEIR_E_FORMAT, "%s: tensor %s has shape {%llu, %llu}, expected {%llu, %llu}", file, name, (unsigned long long)t->ne[0],
            (unsigned long long)t->n_rows, (unsigned long long)ne0, (unsigned long long)ne1);
    if (class == WR_USE_VECTOR && !t->quant->is_float)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: tensor %s has type %s, expected a float type", file, name, t->quant->name);
    if (m->n_uses == m->max_uses) return wr_err(err, WEIR_E_FAIL, "%s: too many weights", file);
    m->used[t - c->tensors] = 1;
    *index = m->n_uses;
    m->uses[m->n_uses++] = (struct wr_use){t, class};
    return 0;
}

static int use_layer(struct wr_model *m, const struct wr_catalog *c, const struct wr_parts *parts, uint32_t il, weir_err *err)
{
    const struct wr_hparams *hp = &m->hp;
    struct wr_layer *l = &m->layers[il];
    const uint32_t n_embd = hp->n_embd, n_ff = hp->n_ff, dim = hp->head_dim, n_q = hp->n_head * dim, n_kv = hp->n_head_kv * dim;
    const enum wr_presence bias = parts->linear_bias;
    const struct {
        enum wr_use_class class;
        enum wr_presence presence;
        uint32_t *index;
        const char *name;
        uint32_t ne0, ne1;
    } weights[] = {
        {WR_USE_VECTOR, WR_REQUIRED, &l->attn_norm, "attn_norm.weight", n_embd, 1},
        {WR_USE_DENSE, WR_REQUIRED, &l->q, "attn_q.weight", n_embd, n_q},
        {WR_USE_DENSE, WR_REQUIRED, &l->k, "attn_k.weight", n_embd, n_kv},
        {WR_USE_DENSE, WR_REQUIRED, &l->v, "attn_v.weight", n_embd, n_kv},
        {WR_USE_VECTOR, parts->qkv_bias, &l->q_bias, "attn_q.bias", n_q, 1},
        {WR_USE_VECTOR, parts->qkv_bias, &l->k_bias, "attn_k.bias", n_kv, 1},
        {WR_USE_VECTOR, parts->qkv_bias, &l->v_bias, "attn_v.bias", n_kv, 1},
        {WR_USE_VECTOR, parts->qk_norm, &l->q_norm, "attn_q_norm.weight", dim, 1},
        {WR_USE_VECTOR, parts->qk_norm, &l->k_norm, "attn_k_norm.weight", dim, 1},
        {WR_USE_DENSE, WR_REQUIRED, &l->o, "attn_output.weight", n_q, n_embd},
        {WR_USE_VECTOR, bias, &l->o_bias, "attn_output.bias", n_embd, 1},
        {WR_USE_VECTOR, parts->post_norm, &l->attn_post_norm, "post_attention_norm.weight", n_embd, 1},
        {WR_USE_VECTOR, WR_REQUIRED, &l->ffn_norm, "ffn_norm.weight", n_embd, 1},
        {WR_USE_DENSE, WR_REQUIRED, &l->gate, "ffn_gate.weight", n_embd, n_ff},
        {WR_USE_DENSE, WR_REQUIRED, &l->up, "ffn_up.weight", n_embd, n_ff},
        {WR_USE_VECTOR, bias, &l->gate_bias, "ffn_gate.bias", n_ff, 1},
        {WR_USE_VECTOR, bias, &l->up_bias, "ffn_up.bias", n_ff, 1},
        {WR_USE_DENSE, WR_REQUIRED, &l->down, "ffn_down.weight", n_ff, n_embd},
        {WR_USE_VECTOR, bias, &l->down_bias, "ffn_down.bias", n_embd, 1},
        {WR_USE_VECTOR, parts->post_norm, &l->ffn_post_norm, "post_ffw_norm.weight", n_embd, 1},
    };
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%u.%s", il, weights[i].name);
        int rc = use(m, c, weights[i].class, weights[i].presence, weights[i].index, name, weights[i].ne0, weights[i].ne1, err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int use_embedding(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    const char *file = wr_file_label(c->files[0].path);
    const struct wr_tensor *embd = wr_catalog_tensor(c, "token_embd.weight");
    if (embd == NULL) return wr_err(err, WEIR_E_FORMAT, "%s: tensor token_embd.weight is missing", file);
    const struct wr_meta *tokens = wr_catalog_meta(c, "tokenizer.ggml.tokens");
    if (tokens != NULL && tokens->type == WR_META_ARRAY && tokens->count != embd->n_rows)
        return wr_err(err, WEIR_E_FORMAT, "%s: tensor token_embd.weight has %llu rows, but tokenizer.ggml.tokens has %llu", file,
            (unsigned long long)embd->n_rows, (unsigned long long)tokens->count);
    if (embd->n_rows == 0 || embd->n_rows > (1u << 24))
        return wr_err(err, WEIR_E_FORMAT, "%s: vocabulary of %llu words", file, (unsigned long long)embd->n_rows);
    uint32_t n_vocab = m->hp.n_vocab = (uint32_t)embd->n_rows;
    int rc = wr_model_key(m, c, "vocab_size", true, 0, UINT32_MAX, &n_vocab, err);
    if (rc < 0) return rc;
    if (n_vocab != m->hp.n_vocab)
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s.vocab_size is %u, but token_embd.weight has %u rows", file, m->arch->name, n_vocab, m->hp.n_vocab);
    return use(m, c, WR_USE_ROWS, WR_REQUIRED, &m->token_embd, "token_embd.weight", m->hp.n_embd, n_vocab, err);
}

int wr_model_weights(struct wr_model *m, const struct wr_catalog *c, const struct wr_parts *parts, weir_err *err)
{
    const struct wr_hparams *hp = &m->hp;
    int rc = use_embedding(m, c, err);
    for (uint32_t il = 0; rc == 0 && il < hp->n_layer; il++) rc = use_layer(m, c, parts, il, err);
    if (rc == 0) rc = use(m, c, WR_USE_VECTOR, WR_REQUIRED, &m->output_norm, "output_norm.weight", hp->n_embd, 1, err);
    if (rc == 0) rc = use(m, c, WR_USE_VECTOR, parts->rope_factors, &m->rope_factors, "rope_freqs.weight", hp->n_rot / 2, 1, err);
    if (rc == 0) rc = use(m, c, WR_USE_VECTOR, parts->output_bias, &m->output_bias, "output.bias", hp->n_vocab, 1, err);
    if (rc == 0) rc = use(m, c, WR_USE_HEAD, WR_OPTIONAL, &m->output, "output.weight", hp->n_embd, hp->n_vocab, err);
    if (rc == 0 && m->output == WR_NO_WEIGHT) rc = use(m, c, WR_USE_HEAD, WR_REQUIRED, &m->output, "token_embd.weight", hp->n_embd, hp->n_vocab, err);
    return rc;
}
