/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include "model/arch.h"

#define ARCH(name) extern const struct wr_arch wr_arch_##name;
#include "model/arches.def"
#undef ARCH

static const struct wr_arch *const arches[] = {
#define ARCH(name) &wr_arch_##name,
#include "model/arches.def"
#undef ARCH
};

static int key_name(const struct wr_model *m, const char *key, char *out, size_t bytes) { return snprintf(out, bytes, "%s.%s", m->arch->name, key); }

int wr_model_key(struct wr_model *m, const struct wr_catalog *c, const char *key, bool has_default, uint32_t min, uint32_t max, uint32_t *out, weir_err *err)
{
    char name[128];
    uint64_t value = 0;
    key_name(m, key, name, sizeof name);
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
    key_name(m, key, name, sizeof name);
    int rc = wr_catalog_f64(c, name, &value, err);
    if (rc < 0) return rc;
    if (rc == 0 && has_default) return 0;
    if (rc == 0) return wr_err(err, WEIR_E_FORMAT, "%s: key %s is missing", wr_file_label(c->files[0].path), name);
    if (!(value > 0 && value < 1e30))
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s is %g, which is not a positive number", wr_file_label(c->files[0].path), name, value);
    *out = (float)value;
    return 0;
}

int wr_model_use(struct wr_model *m, const struct wr_catalog *c, enum wr_use_class use, bool optional, uint32_t *index, uint64_t ne0, uint64_t ne1,
    weir_err *err, const char *format, ...)
{
    char name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    *index = WR_NO_WEIGHT;
    const struct wr_tensor *t = wr_catalog_tensor(c, name);
    if (t == NULL && optional) return 0;
    if (t == NULL) return wr_err(err, WEIR_E_FORMAT, "%s: tensor %s is missing", wr_file_label(c->files[0].path), name);
    if (t->ne[0] != ne0 || t->n_rows != ne1)
        return wr_err(err, WEIR_E_FORMAT, "%s: tensor %s has shape {%llu, %llu}, expected {%llu, %llu}", wr_file_label(c->files[0].path), name,
            (unsigned long long)t->ne[0], (unsigned long long)t->n_rows, (unsigned long long)ne0, (unsigned long long)ne1);
    if (use == WR_USE_VECTOR && !t->quant->is_float)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: tensor %s has type %s, expected a float type", wr_file_label(c->files[0].path), name, t->quant->name);
    if (m->n_uses == m->max_uses) return wr_err(err, WEIR_E_FAIL, "%s: too many weights", wr_file_label(c->files[0].path));
    m->used[t - c->tensors] = 1;
    *index = m->n_uses;
    m->uses[m->n_uses++] = (struct wr_use){t, use};
    return 0;
}

int wr_model_begin(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    const struct wr_tensor *embd = wr_catalog_tensor(c, "token_embd.weight");
    if (embd == NULL) return wr_err(err, WEIR_E_FORMAT, "%s: tensor token_embd.weight is missing", wr_file_label(c->files[0].path));
    const struct wr_meta *tokens = wr_catalog_meta(c, "tokenizer.ggml.tokens");
    if (tokens != NULL && tokens->type == WR_META_ARRAY && tokens->count != embd->n_rows)
        return wr_err(err, WEIR_E_FORMAT, "%s: tensor token_embd.weight has %llu rows, but tokenizer.ggml.tokens has %llu", wr_file_label(c->files[0].path),
            (unsigned long long)embd->n_rows, (unsigned long long)tokens->count);
    if (embd->n_rows == 0 || embd->n_rows > (1u << 24))
        return wr_err(err, WEIR_E_FORMAT, "%s: vocabulary of %llu words", wr_file_label(c->files[0].path), (unsigned long long)embd->n_rows);
    m->hp.n_vocab = (uint32_t)embd->n_rows;
    return wr_model_use(m, c, WR_USE_ROWS, false, &m->token_embd, m->hp.n_embd, m->hp.n_vocab, err, "token_embd.weight");
}

int wr_model_end(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    int rc = wr_model_use(m, c, WR_USE_VECTOR, false, &m->output_norm, m->hp.n_embd, 1, err, "output_norm.weight");
    if (rc == 0) rc = wr_model_use(m, c, WR_USE_VECTOR, true, &m->rope_factors, m->hp.n_rot / 2, 1, err, "rope_freqs.weight");
    if (rc == 0) rc = wr_model_use(m, c, WR_USE_HEAD, true, &m->output, m->hp.n_embd, m->hp.n_vocab, err, "output.weight");
    if (rc == 0 && m->output == WR_NO_WEIGHT) rc = wr_model_use(m, c, WR_USE_HEAD, false, &m->output, m->hp.n_embd, m->hp.n_vocab, err, "token_embd.weight");
    return rc;
}

int wr_model_open(struct wr_model *m, const struct wr_catalog *c, struct wr_ledger *ledger, weir_err *err)
{
    const char *name = NULL;
    *m = (struct wr_model){.ledger = ledger, .rope_factors = WR_NO_WEIGHT, .output = WR_NO_WEIGHT};
    int rc = wr_catalog_str(c, "general.architecture", &name, err);
    if (rc < 0) return rc;
    for (size_t i = 0; name != NULL && i < sizeof arches / sizeof *arches; i++)
        if (strcmp(arches[i]->name, name) == 0) m->arch = arches[i];
    if (m->arch == NULL)
        return wr_err(
            err, WEIR_E_UNSUPPORTED, "%s: architecture '%s' is not supported (supported: llama)", wr_file_label(c->files[0].path), name != NULL ? name : "");

    m->max_uses = (uint32_t)c->n_tensors + 1;
    m->uses = wr_mem_array(ledger, WR_ACCOUNT_META, m->max_uses, sizeof *m->uses, err);
    m->used = wr_mem_array(ledger, WR_ACCOUNT_META, c->n_tensors, 1, err);
    rc = m->uses != NULL && m->used != NULL ? 0 : WEIR_E_NOMEM;
    if (rc == 0) rc = m->arch->describe(m, c, err);
    /* A tensor that the family does not know means another graph than the one that would be computed. */
    for (uint64_t i = 0; rc == 0 && i < c->n_tensors; i++)
        if (!m->used[i])
            rc = wr_err(err, WEIR_E_UNSUPPORTED, "%s: tensor %s is not part of the '%s' graph as weir knows it", wr_file_label(c->files[0].path),
                c->tensors[i].name, m->arch->name);
    if (rc < 0) wr_model_close(m);
    return rc;
}

void wr_model_close(struct wr_model *m)
{
    wr_mem_free(m->layers);
    wr_mem_free(m->uses);
    wr_mem_free(m->used);
    *m = (struct wr_model){0};
}
