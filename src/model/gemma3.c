/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3, text: scaled embeddings, a norm before and after each block, norms of q and k per head, GeGLU, and local layers (a
 * window, a RoPE base of their own) with a global one after every five. Norm weights in the file have the 1 added.
 */
#include <math.h>
#include <string.h>
#include "model/pass.h"

#define LAYERS_27B 62 /* the model whose scores are scaled by n_embd / n_head, not by the head's size */
#define PERIOD 6
#define ROPE_BASE_LOCAL 10000.0f

/* Key attention.sliding_window_pattern: for every layer whether it is local, or a period: the last layer of each is global; 0: all are local. */
static int read_pattern(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    const char *key = "gemma3.attention.sliding_window_pattern", *file = wr_file_label(c->files[0].path);
    const struct wr_meta *meta = wr_catalog_meta(c, key);
    const uint32_t n_layer = m->hp.n_layer;
    if (meta == NULL || meta->type != WR_META_ARRAY) {
        uint32_t period = PERIOD;
        int rc = wr_model_key(m, c, strchr(key, '.') + 1, true, 0, UINT32_MAX, &period, err);
        for (uint32_t il = 0; rc == 0 && il < n_layer; il++) m->layers[il].local = period == 0 || il % period < period - 1;
        return rc;
    }
    if (meta->count != n_layer || meta->element == WR_META_STRING)
        return wr_err(err, WEIR_E_FORMAT, "%s: key %s is not an array of %u values, one for every layer", file, key, n_layer);
    struct wr_meta_reader reader;
    int rc = wr_meta_reader_open(&reader, c, meta, err);
    for (uint32_t il = 0; rc == 0 && il < n_layer; il++) {
        int64_t local;
        rc = wr_meta_reader_number(&reader, &local, NULL, err);
        if (rc == 0) m->layers[il].local = local != 0;
    }
    wr_meta_reader_close(&reader);
    return rc;
}

/* Without a window, or with one of 0, all layers are global, as llama.cpp has it (Rnj-1 is such a model): the pattern and the keys of local layers say
 * nothing. */
static int read_window(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    struct wr_hparams *hp = &m->hp;
    const struct {
        const char *key;
        uint32_t global;
    } sizes[] = {{"attention.key_length_swa", hp->head_dim}, {"attention.value_length_swa", hp->head_dim}, {"rope.dimension_count_swa", hp->n_rot}};
    int rc = wr_model_key(m, c, "attention.sliding_window", true, 0, 1u << 31, &hp->window, err);
    if (rc < 0 || hp->window == 0) return rc;
    for (size_t i = 0; rc == 0 && i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t local = sizes[i].global;
        rc = wr_model_key(m, c, sizes[i].key, true, 0, UINT32_MAX, &local, err);
        if (rc == 0 && local != sizes[i].global)
            rc = wr_err(err, WEIR_E_UNSUPPORTED, "%s: key gemma3.%s is %u, but %u in global layers: not supported", wr_file_label(c->files[0].path),
                sizes[i].key, local, sizes[i].global);
    }
    hp->rope_base_local = ROPE_BASE_LOCAL;
    if (rc == 0) rc = wr_model_key_f32(m, c, "rope.freq_base_swa", true, &hp->rope_base_local, err);
    return rc == 0 ? read_pattern(m, c, err) : rc;
}

static int describe(struct wr_model *m, const struct wr_catalog *c, weir_err *err)
{
    static const struct wr_parts parts = {.qk_norm = WR_REQUIRED, .post_norm = WR_REQUIRED, .final_softcap = true};
    struct wr_hparams *hp = &m->hp;
    int rc = wr_model_shape(m, c, &parts, err);
    if (rc < 0) return rc;
    hp->embedding_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layer == LAYERS_27B) {
        hp->attention_scale = 1.0f / sqrtf((float)hp->n_embd / (float)hp->n_head);
        rc = wr_model_key_f32_or_none(m, c, "attention.scale", &hp->attention_scale, err);
    }
    if (rc == 0) rc = wr_model_key_f32_or_none(m, c, "final_logit_softcapping", &hp->final_softcap, err);
    if (rc == 0) rc = read_window(m, c, err);
    return rc == 0 ? wr_model_weights(m, c, &parts, err) : rc;
}

static bool layer(struct wr_pass *p, uint32_t il) { return wr_attention(p, il) && wr_ffn(p, il, p->kernels->gelu_mul); }

const struct wr_arch wr_arch_gemma3 = {"gemma3", describe, layer};
