/* SPDX-License-Identifier: Apache-2.0 */
/* What a saved context says of itself, without a model. */
#include "engine/engine.h"
#include "engine/tools.h"

bool wr_tool_is_context(const char *path) { return wr_kvfile_is(path); }

static int before_block(void *user, uint64_t done, uint64_t all, weir_err *err)
{
    const weir_options *o = user;
    if (o->cancel != NULL && *o->cancel != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    if (o->progress != NULL) o->progress(o->progress_user, "check", done, all, "bytes");
    return 0;
}

int wr_tool_inspect_context(const char *path, bool check, const weir_options *o, json_t **out, weir_err *err)
{
    struct wr_ledger ledger;
    struct wr_kvfile f;
    const struct wr_log log = {o->log, o->log_user};
    uint32_t n_known = 0;
    wr_ledger_init(&ledger);
    int rc = wr_kvfile_open(&f, path, false, WEIR_DIRECT_OFF, &ledger, &log, err);
    if (rc < 0) return rc;
    const struct wr_kvfile_about *a = &f.about;
    rc = check ? wr_kvfile_check(&f, before_block, (void *)o, err) : wr_kvfile_records(&f, NULL, NULL, NULL, err);
    for (uint32_t i = 0; i < a->n_weights; i++) n_known += f.weights[i].known;
    if (rc == 0) {
        const char *kv = a->kv_type < WR_N_KV_TYPES ? wr_kv_name((enum wr_kv_type)a->kv_type) : "?";
        *out = json_pack("{s:I,s:s,s:s,s:I,s:I,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b}", "context_version", (json_int_t)1, "arch", a->arch, "kv", kv,
            "tokens", (json_int_t)wr_kvfile_tokens(&f.saved), "numerics", (json_int_t)a->numerics, "precise", (int)a->precise, "layers", (json_int_t)a->n_layer,
            "heads_kv", (json_int_t)a->n_head_kv, "head_dim", (json_int_t)a->head_dim, "n_vocab", (json_int_t)a->n_vocab, "n_ctx_trained",
            (json_int_t)a->n_ctx_trained, "weights", (json_int_t)a->n_weights, "weights_known", (json_int_t)n_known, "commits", (json_int_t)f.saved.generation,
            "group_bytes", (json_int_t)f.group_bytes, "file_bytes", (json_int_t)f.store.file.bytes, "checked", (int)check);
        json_t *model = json_string(a->model);
        if (*out != NULL) json_object_set_new(*out, "model", model != NULL ? model : json_string("?"));
        if (*out == NULL) rc = wr_err(err, WEIR_E_NOMEM, "no memory for the description of %s", path);
    }
    wr_kvfile_close(&f);
    return rc;
}
