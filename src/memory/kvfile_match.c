/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a saved context is of this model: what differs is named, with what to do about it. */
#include <string.h>
#include "memory/kvfile_private.h"

static int differs(const struct wr_kvfile *f, const char *what, uint32_t has, uint32_t wants, const char *next, weir_err *err)
{
    return wr_err(err, WEIR_E_MISMATCH, "%s: was saved with %s %u, and this is %u; %s", wr_kvfile_label(f), what, has, wants, next);
}

int wr_kvfile_match_tokenizer(const struct wr_kvfile *f, uint32_t crc, weir_err *err)
{
    if (f->about.tokenizer == crc) return 0;
    return wr_err(err, WEIR_E_MISMATCH, "%s: was saved with another tokenizer (model %s); use that model", wr_kvfile_label(f), f->about.model);
}

int wr_kvfile_match(const struct wr_kvfile *f, const struct wr_kvfile_about *mine, const struct wr_kvfile_weight *weights, weir_err *err)
{
    const struct wr_kvfile_about *a = &f->about;
    const char *again = "evaluate the text again", *model = "it belongs to another model";
    if (strcmp(a->arch, mine->arch) != 0)
        return wr_err(
            err, WEIR_E_MISMATCH, "%s: is of a model of architecture %s (%s), and this is one of %s", wr_kvfile_label(f), a->arch, a->model, mine->arch);
    if (a->numerics != mine->numerics) return differs(f, "numerics", a->numerics, mine->numerics, again, err);
    const struct {
        const char *what;
        uint32_t has, wants;
    } shape[] = {{"layers:", a->n_layer, mine->n_layer}, {"heads of keys and values:", a->n_head_kv, mine->n_head_kv},
        {"dimensions of a head:", a->head_dim, mine->head_dim}, {"a trained context of", a->n_ctx_trained, mine->n_ctx_trained},
        {"a vocabulary of", a->n_vocab, mine->n_vocab}, {"tensors:", a->n_weights, mine->n_weights}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        if (shape[i].has != shape[i].wants) return differs(f, shape[i].what, shape[i].has, shape[i].wants, model, err);
    if (a->kv_type != mine->kv_type || a->block_bytes != mine->block_bytes)
        return differs(f, "KV type number", a->kv_type, mine->kv_type, "give the same --kv", err);
    if (a->precise != mine->precise)
        return wr_err(err, WEIR_E_MISMATCH, "%s: was saved %s --precise; run %s it", wr_kvfile_label(f), a->precise ? "with" : "without",
            a->precise ? "with" : "without");
    int rc = wr_kvfile_match_tokenizer(f, mine->tokenizer, err);
    if (rc < 0) return rc;
    if (a->graph != mine->graph)
        return wr_err(
            err, WEIR_E_MISMATCH, "%s: was saved with other settings of RoPE, window or norms (model %s); use that model", wr_kvfile_label(f), a->model);
    for (uint32_t i = 0; i < a->n_weights; i++)
        if (f->weights[i].id != weights[i].id)
            return wr_err(err, WEIR_E_MISMATCH, "%s: tensor %u has another name, type or shape in the model that it was saved with (%s); use that model",
                wr_kvfile_label(f), i, a->model);
    return 0;
}
