/* SPDX-License-Identifier: Apache-2.0 */
/* What a saved context says of itself, without a model. */
#include "engine/engine.h"
#include "engine/tools.h"

bool wr_tool_is_context(const char *path) { return wr_kvfile_is(path); }

static int check_blocks(struct wr_kvfile *f, struct wr_ledger *ledger, const weir_options *o, const uint32_t *crcs, weir_err *err)
{
    const uint32_t n_layer = f->about.n_layer, n_groups = wr_kvfile_groups(&f->saved);
    uint8_t *block = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, f->about.block_bytes, err);
    int rc = block != NULL ? 0 : err != NULL ? err->code : WEIR_E_NOMEM;
    for (uint32_t t = 0; rc == 0 && t < n_groups; t++) {
        const bool tail = t == f->saved.n_full;
        for (uint32_t il = 0; rc == 0 && il < n_layer; il++) {
            if (o->cancel != NULL && *o->cancel != 0) rc = wr_err(err, WEIR_E_CANCELLED, "interrupted");
            const uint64_t at = tail ? wr_kvfile_tail_block(f, il) : wr_kvfile_block(f, t, il);
            if (rc == 0) rc = wr_kvfile_read_block(f, t, il, at, block, crcs[(uint64_t)t * n_layer + il], err);
        }
        if (o->progress != NULL) o->progress(o->progress_user, "check", (uint64_t)(t + 1) * f->group_bytes, n_groups * f->group_bytes, "bytes");
    }
    wr_mem_free(block);
    return rc;
}

int wr_tool_inspect_context(const char *path, bool check, const weir_options *o, json_t **out, weir_err *err)
{
    struct wr_ledger ledger;
    struct wr_kvfile f;
    const struct wr_log log = {o->log, o->log_user};
    uint32_t *crcs = NULL, n_known = 0;
    wr_ledger_init(&ledger);
    int rc = wr_kvfile_open(&f, path, false, WEIR_DIRECT_OFF, &ledger, &log, err);
    if (rc < 0) return rc;
    const struct wr_kvfile_about *a = &f.about;
    if (check) {
        crcs = wr_mem_array(&ledger, WR_ACCOUNT_TEXT, wr_kvfile_groups(&f.saved), (size_t)a->n_layer * sizeof *crcs, err);
        if (crcs == NULL) rc = err != NULL ? err->code : WEIR_E_NOMEM;
    }
    if (rc == 0) rc = wr_kvfile_records(&f, NULL, NULL, crcs, err);
    if (rc == 0 && check) rc = check_blocks(&f, &ledger, o, crcs, err);
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
    wr_mem_free(crcs);
    wr_kvfile_close(&f);
    return rc;
}
