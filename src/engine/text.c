/* SPDX-License-Identifier: Apache-2.0 */
/* Text at the border of the library: ids, bytes, chat templates. */
#include <string.h>
#include "engine/engine.h"

void weir_free(void *p) { wr_mem_free(p); }

/* The text account grows with the context alone. */
static int too_dense(const weir_engine *e, weir_err *err)
{
    if (e->text_only)
        return wr_err(err, WEIR_E_BUDGET, "the text or its chat template needs more memory than the budget leaves; use a shorter text or a larger --memory");
    return wr_err(err, WEIR_E_CONTEXT, "the text or its chat template needs more memory than goes with a context of %u; use a shorter text or a larger --ctx",
        e->plan->plan.n_ctx);
}

int weir_tokenize(weir_engine *e, const char *text, size_t n, bool special, bool bos, int32_t **ids, size_t *n_ids, weir_err *err)
{
    struct wr_tokenize how = {special, bos, SIZE_MAX, e->plan->options.cancel};
    size_t n_dropped = 0, n_found = 0;
    int32_t *found = NULL;
    if (!e->text_only) {
        how.max_ids = (size_t)e->plan->plan.n_ctx + 1;
        /* What cannot fit is refused before memory is spent on it: no token is longer than the longest one. */
        uint32_t n_ctx = e->plan->plan.n_ctx;
        uint64_t most = (uint64_t)n_ctx * e->longest_token;
        if (n > most)
            return wr_err(err, WEIR_E_CONTEXT, "the text of %zu bytes has %llu tokens at least and the context %u positions", n,
                (unsigned long long)(n / e->longest_token), n_ctx);
    }
    int rc = wr_vocab_tokenize(e->vocab, text, n, &how, &e->plan->ledger, &found, &n_found, &n_dropped, err);
    if (rc == WEIR_E_BUDGET) return too_dense(e, err);
    if (rc < 0) return rc;
    if (!e->text_only && n_found > e->plan->plan.n_ctx) {
        wr_mem_free(found);
        return wr_err(err, WEIR_E_CONTEXT, "the text has %zu tokens and the context %u positions", n_found, e->plan->plan.n_ctx);
    }
    *ids = found;
    *n_ids = n_found;
    if (n_dropped > 0) wr_log(&e->plan->log, WEIR_LOG_WARN, "%zu bytes of the text have no token in this vocabulary and were dropped", n_dropped);
    return 0;
}

int weir_token_bytes(weir_engine *e, int32_t previous, int32_t id, bool special, const char **bytes, size_t *n, weir_err *err)
{
    if (wr_vocab_bytes_after(e->vocab, previous, id, special, bytes, n)) return 0;
    return wr_err(err, WEIR_E_INPUT, "token id %d is outside the vocabulary of %u", id, wr_vocab_size(e->vocab));
}

bool weir_token_ends(weir_engine *e, int32_t id) { return wr_vocab_ends(e->vocab, id); }

int wr_engine_open_chat(weir_engine *e, weir_err *err)
{
    if (e->chat != NULL) return 0;
    weir_plan *p = e->plan;
    const struct wr_meta *meta = wr_catalog_meta(&p->catalog, "tokenizer.chat_template");
    if (meta == NULL || meta->type != WR_META_STRING)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: has no chat template; 'weir run --raw' takes a text as it is", wr_file_label(p->path));
    char *source = wr_mem_alloc(&p->ledger, WR_ACCOUNT_TEXT, meta->bytes + 1, err);
    int rc = source == NULL ? err != NULL ? err->code : WEIR_E_NOMEM : wr_catalog_string(&p->catalog, meta, source, err);
    if (rc == 0) rc = wr_template_open(&e->chat, source, meta->bytes, &p->ledger, err);
    wr_mem_free(source);
    if (rc == WEIR_E_BUDGET || rc == WEIR_E_NOMEM) wr_err_prefix(err, rc, "key tokenizer.chat_template of %llu bytes", (unsigned long long)meta->bytes);
    return rc < 0 ? wr_err_prefix(err, rc, "%s", wr_file_label(p->path)) : 0;
}

bool weir_chat_available(weir_engine *e)
{
    const struct wr_meta *meta = wr_catalog_meta(&e->plan->catalog, "tokenizer.chat_template");
    return meta != NULL && meta->type == WR_META_STRING;
}

static json_t *token_text(const weir_engine *e, int32_t id)
{
    size_t n;
    const char *text = id >= 0 ? wr_vocab_text_of(e->vocab, id, &n) : NULL;
    json_t *json = text != NULL ? json_stringn(text, n) : NULL; /* NULL too where the token is not UTF-8 */
    return json != NULL ? json : json_string("");
}

int weir_chat_render(weir_engine *e, const weir_message *messages, size_t n, bool add_generation_prompt, char **text, weir_err *err)
{
    int rc = wr_engine_open_chat(e, err);
    if (rc < 0) return rc;
    json_t *vars = json_object(), *list = json_array();
    bool good = vars != NULL && list != NULL;
    for (size_t i = 0; good && i < n; i++) {
        json_t *role = json_string(messages[i].role), *content = json_string(messages[i].content);
        if (role == NULL || content == NULL) {
            json_decref(role);
            json_decref(content);
            rc = wr_err(err, WEIR_E_INPUT, "message %zu is not valid UTF-8", i + 1);
        }
        good = role != NULL && content != NULL && json_array_append_new(list, json_pack("{s:o,s:o}", "role", role, "content", content)) == 0;
    }
    if (good)
        good = json_object_set(vars, "messages", list) == 0 && json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0 &&
               json_object_set_new(vars, "bos_token", token_text(e, wr_vocab_bos(e->vocab))) == 0 &&
               json_object_set_new(vars, "eos_token", token_text(e, wr_vocab_eos(e->vocab))) == 0;
    if (!good && rc == 0) rc = too_dense(e, err);
    size_t length;
    char *rendered = NULL;
    if (rc == 0) rc = wr_template_render(e->chat, vars, &e->plan->ledger, &rendered, &length, err);
    if (rc == 0 && strlen(rendered) != length) {
        wr_mem_free(rendered);
        rc = wr_err(err, WEIR_E_TEMPLATE, "the chat template's text holds a NUL byte");
    }
    if (rc == 0) *text = rendered;
    if (rc == WEIR_E_BUDGET) rc = too_dense(e, err);
    json_decref(list);
    json_decref(vars);
    return rc;
}
