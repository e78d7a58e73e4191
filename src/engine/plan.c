/* SPDX-License-Identifier: Apache-2.0 */
/* weir_plan: reads headers, asks every layer what it needs, and lets memory/plan.c decide. */
#include <stdio.h>
#include <string.h>
#include "base/os.h"
#include "engine/engine.h"
#include "generate/sampler.h"

#define BUDGET_STEP (16ull << 20)

struct wr_ledger *wr_engine_host_ledger(void)
{
    static struct wr_ledger ledger;
    static _Atomic int state;
    int fresh = 0;
    if (atomic_compare_exchange_strong(&state, &fresh, 1)) {
        wr_ledger_init(&ledger);
        atomic_store(&state, 2);
    }
    while (atomic_load(&state) != 2) {}
    return &ledger;
}

static int token_id(const struct wr_catalog *c, const char *key, uint32_t n_tokens, int32_t *out, weir_err *err)
{
    uint64_t id;
    *out = -1;
    int rc = wr_catalog_u64(c, key, UINT32_MAX, &id, err);
    if (rc <= 0) return rc;
    if (id >= n_tokens)
        return wr_err(
            err, WEIR_E_FORMAT, "%s: key %s is %llu, but the vocabulary has %u tokens", wr_file_label(c->files[0].path), key, (unsigned long long)id, n_tokens);
    *out = (int32_t)id;
    return 0;
}

/* Byte-pair vocabularies need no scores, but those of another length or type are those of another vocabulary. */
static int check_scores(const struct wr_catalog *c, uint64_t n_tokens, bool needed, weir_err *err)
{
    const char *key = "tokenizer.ggml.scores";
    const struct wr_meta *m = wr_catalog_meta(c, key);
    if (m == NULL ? !needed : (m->type == WR_META_ARRAY && m->count == n_tokens && (m->element == WR_META_F32 || m->element == WR_META_I32))) return 0;
    return wr_err(err, WEIR_E_FORMAT, "%s: key %s is not an array of %llu numbers (f32)", wr_file_label(c->files[0].path), key, (unsigned long long)n_tokens);
}

static int read_vocab_config(weir_plan *p, weir_err *err)
{
    const struct wr_catalog *c = &p->catalog;
    struct wr_vocab_config *v = &p->vocab;
    const char *path = wr_file_label(c->files[0].path);
    int rc = wr_catalog_str(c, "tokenizer.ggml.model", &v->model, err);
    if (rc < 0) return rc;
    if (rc == 0) return wr_err(err, WEIR_E_UNSUPPORTED, "%s: there is no tokenizer in the file (key tokenizer.ggml.model)", path);
    if ((rc = wr_catalog_str(c, "tokenizer.ggml.pre", &v->pre, err)) < 0) return rc;
    const struct wr_meta *tokens = wr_catalog_meta(c, "tokenizer.ggml.tokens"), *merges = wr_catalog_meta(c, "tokenizer.ggml.merges"),
                         *types = wr_catalog_meta(c, "tokenizer.ggml.token_type");
    if (tokens == NULL || tokens->type != WR_META_ARRAY || tokens->element != WR_META_STRING || tokens->count == 0 || tokens->count > (1u << 24))
        return wr_err(err, WEIR_E_FORMAT, "%s: key tokenizer.ggml.tokens is not an array of 1 to 2^24 strings", path);
    if (merges != NULL && (merges->type != WR_META_ARRAY || merges->element != WR_META_STRING || merges->count > (1u << 24)))
        return wr_err(err, WEIR_E_FORMAT, "%s: key tokenizer.ggml.merges is not an array of up to 2^24 strings", path);
    if (types != NULL && (types->type != WR_META_ARRAY || types->count != tokens->count || (types->element != WR_META_I32 && types->element != WR_META_U32)))
        return wr_err(err, WEIR_E_FORMAT, "%s: key tokenizer.ggml.token_type is not an array of %llu integers", path, (unsigned long long)tokens->count);
    if (merges == NULL && strcmp(v->model, "gpt2") == 0)
        wr_log(
            &p->log, WEIR_LOG_WARN, "%s: key tokenizer.ggml.merges is missing: text falls into single bytes, which is not what the model was trained on", path);
    v->n_tokens = (uint32_t)tokens->count;
    v->n_merges = merges != NULL && !wr_vocab_has_scores(v) ? (uint32_t)merges->count : 0;
    v->token_bytes = tokens->bytes > 8 * tokens->count ? tokens->bytes - 8 * tokens->count : 0;
    if ((rc = check_scores(c, tokens->count, wr_vocab_has_scores(v), err)) < 0) return rc;
    struct {
        const char *key;
        int32_t *id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", &v->bos}, {"tokenizer.ggml.eos_token_id", &v->eos}, {"tokenizer.ggml.eot_token_id", &v->eot},
        {"tokenizer.ggml.eom_token_id", &v->eom}, {"tokenizer.ggml.unknown_token_id", &v->unknown}, {"tokenizer.ggml.padding_token_id", &v->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if ((rc = token_id(c, ids[i].key, v->n_tokens, ids[i].id, err)) < 0) return rc;
    static const char *const ends[] = {"tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if ((rc = token_id(c, ends[i], v->n_tokens, &v->ends[v->n_ends], err)) < 0) return rc;
        v->n_ends += v->ends[v->n_ends] >= 0;
    }
    rc = wr_catalog_bool(c, "tokenizer.ggml.add_bos_token", &v->add_bos, err);
    v->add_bos_set = rc == 1;
    if (rc < 0) return rc;
    if ((rc = wr_catalog_bool(c, "tokenizer.ggml.add_eos_token", &v->add_eos, err)) < 0) return rc;
    rc = wr_catalog_bool(c, "tokenizer.ggml.add_space_prefix", &v->space_prefix, err);
    v->space_prefix_set = rc == 1;
    return rc < 0 ? rc : 0;
}

static int choose_budget(weir_plan *p, weir_err *err)
{
    if (p->options.memory_bytes != 0) {
        snprintf(p->budget_origin, sizeof p->budget_origin, "--memory");
        return 0;
    }
    struct wr_os_memory m = wr_os_memory("");
    /* In whole steps: the system's counters drift by some MiB from run to run and with what is in the page cache, the choice should not. In a container
     * it is the use that is rounded, which is small; a step down from what is left would be at a border as often as not. */
    uint64_t step = m.limit_bytes / 16 < 4 * BUDGET_STEP ? m.limit_bytes / 16 : 4 * BUDGET_STEP;
    if (step > 0) {
        uint64_t used = (m.limit_bytes - m.available_bytes + step - 1) / step * step;
        if (m.limit_bytes - used > m.available_bytes / 2 && used < m.limit_bytes) m.available_bytes = m.limit_bytes - used;
    }
    uint64_t most = m.available_bytes / 4 * 3;
    p->options.memory_bytes = wr_round_down(most, most < 16 * BUDGET_STEP ? BUDGET_STEP / 8 : BUDGET_STEP);
    snprintf(p->budget_origin, sizeof p->budget_origin, "3/4 of %s", m.origin);
    if (p->options.memory_bytes == 0) return wr_err(err, WEIR_E_BUDGET, "no memory is available (%s); give --memory", m.origin);
    return 0;
}

void wr_plan_fill_info(weir_plan *p)
{
    const struct wr_plan *plan = &p->plan;
    const struct wr_hparams *hp = &p->model.hp;
    const uint64_t on_disk = plan->spilled && p->save_bytes == 0 ? wr_kv_layout_disk_bytes(&plan->kv, plan->n_ctx) : p->save_bytes;
    uint32_t n = 0;
    for (int a = 0; a < WR_N_ACCOUNTS; a++) p->accounts[n++] = (weir_account_info){wr_account_name(a), plan->account[a], 0};
    p->info = (weir_plan_info){.model = p->path,
        .arch = p->model.arch->name,
        .isa = p->kernels->level,
        .kv = wr_kv_name((enum wr_kv_type)p->options.kv),
        .spec = wr_spec_name(plan->n_spec_rows > 1 ? p->options.spec : WEIR_SPEC_OFF),
        .spec_k = plan->n_spec_rows > 1 ? plan->n_spec_rows - 1 : 0,
        .n_threads = p->options.n_threads,
        .n_ctx = plan->n_ctx,
        .n_ctx_trained = hp->n_ctx_trained,
        .n_chunk = plan->n_chunk,
        .n_vocab = hp->n_vocab,
        .n_layer = hp->n_layer,
        .n_embd = hp->n_embd,
        .file_bytes = p->catalog.bytes,
        .weight_bytes = p->catalog.weight_bytes,
        .budget = p->options.memory_bytes,
        .min_budget = plan->min_budget,
        .min_budget_n_ctx = plan->min_budget_n_ctx,
        .budget_origin = p->budget_origin,
        .pinned = plan->account[WR_ACCOUNT_WEIGHTS],
        .streamed = plan->streamed,
        .ring = (uint64_t)plan->n_slots * plan->slot_bytes,
        .extent = plan->slot_bytes,
        .n_extents_streamed = plan->n_tape,
        .kv_bytes_per_position = wr_kv_position_bytes((enum wr_kv_type)p->options.kv, hp->n_layer, hp->n_head_kv, hp->head_dim),
        .kv_resident = plan->account[WR_ACCOUNT_KV],
        .kv_on_disk = on_disk,
        .kv_bytes_per_token = plan->spilled ? wr_kv_layout_streamed(&plan->kv, plan->n_ctx - 1) * plan->kv.block_bytes : 0,
        .kv_read_from = plan->spilled ? wr_kv_layout_read_from(&plan->kv, plan->n_ctx) : 0,
        .bytes_per_token = plan->streamed,
        .max_context = plan->max_context,
        .n_saved = p->has_context ? (uint32_t)wr_kvfile_tokens(&p->context.saved) : 0,
        .text_left = p->is_draft ? 0 : wr_plan_text_of_caller(plan->n_ctx),
        .accounts = p->accounts,
        .n_accounts = n};
    if (p->save_bytes > 0)
        p->info.kv_dir = p->options.save_context;
    else if (p->info.kv_on_disk > 0 && wr_engine_kv_folder(&p->options, p->kv_folder, NULL) == 0)
        p->info.kv_dir = p->kv_folder;
    /* What a pass must read at least: the weights that it uses and that are not in memory, to the byte. */
    uint64_t used = wr_plan_used_bytes(plan);
    p->info.floor_bytes_per_token = plan->streamed > 0 && used > plan->pinned ? used - plan->pinned : 0;
    for (int a = 0; a < WR_N_ACCOUNTS; a++) p->info.peak_predicted += plan->account[a];
    if (!p->is_draft) /* of the text, ids alone have their full size */
        p->info.peak_predicted -= wr_plan_text_bytes(plan->n_ctx) - wr_plan_text_bytes(0) - sizeof(int32_t) * plan->n_ctx;
    if (plan->n_spec_rows > 1 && p->options.draft[0] == '\0') /* nor has the automaton more than the tokens that it saw */
        p->info.peak_predicted -= wr_ngram_bytes(plan->n_draft_positions) - wr_ngram_bytes(1);
    if (plan->row_slot_bytes > 0) p->info.bytes_per_token += plan->row_slot_bytes - WR_IO_ALIGN; /* one embedding row */
}

/* What the plan made of sizes, where it is not what was asked for. */
static void say_rounding(const weir_plan *p)
{
    const weir_options *o = &p->options;
    unsigned long long extent = p->info.extent, ring = p->info.ring;
    if (o->spec != WEIR_SPEC_OFF && p->info.spec_k < o->spec_k)
        wr_log(&p->log, WEIR_LOG_WARN, "--spec-k %u: %u is used, for which there is memory; --spec ngram sets apart what all need", o->spec_k, p->info.spec_k);
    if (ring == 0) {
        if (o->extent_bytes != WEIR_AUTO || o->ring_bytes != WEIR_AUTO)
            wr_log(&p->log, WEIR_LOG_WARN, "%s is not used: nothing is streamed, all weights are pinned", o->ring_bytes != WEIR_AUTO ? "--ring" : "--extent");
        return;
    }
    if (o->extent_bytes != WEIR_AUTO && o->extent_bytes != extent)
        wr_log(&p->log, WEIR_LOG_WARN, "--extent %llu: %llu is used, a multiple of %d", (unsigned long long)o->extent_bytes, extent, WR_IO_ALIGN);
    if (o->ring_bytes != WEIR_AUTO && o->ring_bytes != ring)
        wr_log(&p->log, WEIR_LOG_WARN, "--ring %llu: %llu is used, %u slots of %llu", (unsigned long long)o->ring_bytes, ring, p->plan.n_slots, extent);
}

/* Says of which budget there is too little for the header. */
static int header_code(const weir_plan *p, int rc, weir_err *err)
{
    if (rc != WEIR_E_BUDGET) return rc;
    if (strcmp(p->budget_origin, "--memory") != 0) wr_err_prefix(err, rc, "budget %s", p->budget_origin);
    return wr_err_prefix(err, rc, "%s: header", wr_file_label(p->path));
}

int wr_plan_read_header(weir_plan **out, const char *path, const weir_options *options, bool text_only, weir_err *err)
{
    weir_plan *p = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *p, err);
    if (p == NULL) return WEIR_E_NOMEM;
    int rc = WEIR_E_USAGE;
    wr_ledger_init(&p->ledger);
    if (options->size != sizeof *options) {
        wr_err(err, WEIR_E_USAGE, "weir_options.size is %zu, expected %zu: call weir_options_init", options->size, sizeof *options);
        goto fail;
    }
    p->options = *options;
    p->log = (struct wr_log){options->log, options->log_user};
    if (strlen(path) >= sizeof p->path) {
        rc = wr_err(err, WEIR_E_OPEN, "the path is longer than %zu bytes", sizeof p->path - 1);
        goto fail;
    }
    memcpy(p->path, path, strlen(path) + 1);
    /* What is kept of a header that would take the whole budget is refused while it is read. */
    rc = choose_budget(p, err);
    if (rc < 0) goto fail;
    uint64_t budget = p->options.memory_bytes, process = options->process_bytes;
    wr_ledger_limit(&p->ledger, WR_ACCOUNT_META, options->header_bytes ? options->header_bytes : budget > 2 * process ? budget - process : process);
    /* Text needs the header alone, which is never read directly. */
    rc = header_code(p, wr_catalog_open(&p->catalog, path, text_only ? WEIR_DIRECT_OFF : options->direct, &p->ledger, &p->log, err), err);
    if (rc < 0) goto fail;
    *out = p;
    return 0;
fail:
    weir_plan_close(p);
    return rc;
}

int wr_plan_read_graph(weir_plan *p, bool text_only, weir_err *err)
{
    int rc = text_only ? 0 : wr_model_open(&p->model, &p->catalog, &p->ledger, err);
    if (rc == 0) rc = read_vocab_config(p, err);
    wr_ledger_limit(&p->ledger, WR_ACCOUNT_META, UINT64_MAX);
    return header_code(p, rc, err);
}

int wr_plan_read(weir_plan **out, const char *path, const weir_options *options, bool text_only, weir_err *err)
{
    int rc = wr_plan_read_header(out, path, options, text_only, err);
    if (rc < 0 || (rc = wr_plan_read_graph(*out, text_only, err)) == 0) return rc;
    weir_plan_close(*out);
    *out = NULL;
    return rc;
}

#define ROOM_AFTER_CONTEXT 1024

/* The default context behind a saved one of n tokens: 0, the plan's own, where that has room enough. */
static uint32_t with_context(uint32_t n_ctx_trained, uint32_t n)
{
    const uint32_t most = n_ctx_trained > n ? n_ctx_trained : n + ROOM_AFTER_CONTEXT;
    if (n + ROOM_AFTER_CONTEXT <= 4096 && n_ctx_trained >= 4096) return 0;
    return n + ROOM_AFTER_CONTEXT < most ? n + ROOM_AFTER_CONTEXT : most;
}

int weir_plan_open(weir_plan **out, const char *path, const weir_options *options, weir_err *err) { return wr_plan_open(out, path, options, false, err); }

int wr_plan_open(weir_plan **out, const char *path, const weir_options *options, bool is_draft, weir_err *err)
{
    weir_plan *p;
    int rc = wr_plan_read(&p, path, options, false, err);
    if (rc < 0) return rc;
    p->is_draft = is_draft;
    const struct wr_hparams *hp = &p->model.hp;
    struct wr_plan_input in = {.uses = p->model.uses,
        .n_uses = p->model.n_uses,
        .n_ctx = options->n_ctx,
        .n_ctx_trained = hp->n_ctx_trained,
        .n_chunk = options->n_chunk,
        .tokenizer_bytes = is_draft ? 0 : wr_vocab_bytes(&p->vocab),
        .no_text = is_draft,
        .process_bytes = options->process_bytes,
        .pin_bytes = options->pin_bytes,
        .ring_bytes = options->ring_bytes,
        .extent_bytes = options->extent_bytes,
        .ledger = &p->ledger};
    p->kernels = wr_kernels_best(options->isa);
    if (strcmp(options->io, "mmap") == 0 && options->direct == WEIR_DIRECT_ON) {
        rc = wr_err(err, WEIR_E_USAGE, "--io mmap reads through the page cache and cannot honour --direct on; leave one out");
        goto fail;
    }
    if ((unsigned)options->kv >= WR_N_KV_TYPES) {
        rc = wr_err(err, WEIR_E_USAGE, "there is no KV type %d", (int)options->kv);
        goto fail;
    }
    if (!wr_kv_fits((enum wr_kv_type)options->kv, hp->head_dim)) {
        rc = wr_err(err, WEIR_E_USAGE, "--kv %s has blocks of 32 dimensions, and the heads of %s have %u; use f16", wr_kv_name((enum wr_kv_type)options->kv),
            wr_file_label(path), hp->head_dim);
        goto fail;
    }
    bool no_engine = wr_io_find(options->io) == NULL;
    if (p->kernels == NULL || no_engine) {
        rc = wr_err(err, WEIR_E_USAGE, "there is no %s '%s'", no_engine ? "I/O engine" : "CPU level", no_engine ? options->io : options->isa);
        goto fail;
    }
    rc = wr_context_plan(p, err);
    if (rc < 0) goto fail;
    const uint32_t n_saved = p->has_context ? (uint32_t)wr_kvfile_tokens(&p->context.saved) : 0;
    if (in.n_ctx > 0 && n_saved > in.n_ctx) { /* before the weights are read */
        rc = wr_err(err, WEIR_E_CONTEXT, "%s: has %u tokens, which do not fit the context of %u positions; give -c %u or more",
            wr_file_label(p->options.context), n_saved, in.n_ctx, n_saved + 1);
        goto fail;
    }
    if (n_saved > 0 && in.n_ctx == 0) in.n_ctx = with_context(hp->n_ctx_trained, n_saved);
    if (p->options.n_threads == 0) p->options.n_threads = wr_cpu_count();
    const char *refused = wr_kernels_refused(options->isa);
    if (refused != NULL)
        wr_log(
            &p->log, WEIR_LOG_WARN, "this CPU has level %s and the system does not let this process use it: computing at level %s", refused, p->kernels->level);
    if (options->n_ctx > hp->n_ctx_trained)
        wr_log(&p->log, WEIR_LOG_WARN, "context %u is longer than the %u positions the model was trained for", options->n_ctx, hp->n_ctx_trained);
    in.budget = p->options.memory_bytes;
    in.n_threads = p->options.n_threads;
    in.kv_block_bytes = wr_kv_block_bytes((enum wr_kv_type)options->kv, hp->n_head_kv, hp->head_dim);
    in.kv_disk_bytes = options->kv_disk_bytes == WEIR_AUTO ? UINT64_MAX : options->kv_disk_bytes;
    in.kv_disk_asked = options->kv_disk_bytes > 0 && (options->kv_dir[0] != '\0' || options->kv_disk_bytes != WEIR_AUTO);
    if (options->save_context[0] != '\0') {
        in.kv_file_bytes = wr_context_file_bytes(p, 0);
        in.kv_file_tile_bytes = wr_context_file_bytes(p, 1) - in.kv_file_bytes;
    }
    in.n_layer = hp->n_layer;
    in.window = hp->window;
    for (uint32_t il = 0; il < hp->n_layer; il++) in.n_local += p->model.layers[il].local;
    in.kv_bytes_per_position = wr_kv_position_bytes((enum wr_kv_type)options->kv, hp->n_layer, hp->n_head_kv, hp->head_dim);
    wr_model_scratch(&p->model, options->precise, &in.scratch_base, &in.scratch_per_row, &in.scratch_per_thread);
    p->sample_bytes = wr_sample_work_bytes(hp->n_vocab);
    in.scratch_base += wr_round_up(p->sample_bytes, 64);
    if ((rc = wr_spec_plan(p, &in, err)) < 0) goto fail;
    rc = wr_plan_make(&p->plan, &in, err);
    if (rc == 0) rc = wr_context_plan_disk(p, err);
    if (rc < 0) {
        if (options->memory_bytes == 0 && rc == WEIR_E_BUDGET) wr_err_prefix(err, rc, "budget %s", p->budget_origin);
        wr_err_prefix(err, rc, "%s", wr_file_label(path));
        goto fail;
    }
    if (options->draft[0] != '\0' && (rc = wr_draft_fit(p, in.draft_bytes + in.draft_bytes_per_position * p->plan.n_ctx, err)) < 0) goto fail;
    wr_plan_fill_info(p);
    say_rounding(p);
    wr_plan_predict(p);
    *out = p;
    return 0;
fail:
    weir_plan_close(p);
    return rc;
}

const weir_plan_info *weir_plan_get(const weir_plan *p) { return &p->info; }

void weir_plan_close(weir_plan *p)
{
    if (p == NULL) return;
    weir_plan_close(p->draft);
    if (p->n_kv_given > 0) wr_store_close(&p->kv_given);
    if (p->has_context) wr_kvfile_close(&p->context);
    wr_plan_free(&p->plan);
    wr_model_close(&p->model);
    wr_catalog_close(&p->catalog);
    wr_mem_free(p);
}
