/* SPDX-License-Identifier: Apache-2.0 */
/* weir_engine: executes a plan. */
#include <string.h>
#include "base/crc32c.h"
#include "base/os.h"
#include "engine/engine.h"

void (*wr_engine_device)(struct wr_device *);

/* What a vocabulary is made of, part by part; a part is told from the next by its length. */
static void add_crc(weir_engine *e, const void *bytes, size_t n)
{
    uint64_t length = n;
    e->tokenizer_crc = wr_crc32c(wr_crc32c(e->tokenizer_crc, &length, sizeof length), bytes, n);
}

static void add_rules(weir_engine *e, const struct wr_vocab_config *v)
{
    int32_t numbers[] = {v->bos, v->eos, v->eot, v->eom, v->unknown, v->pad, v->n_ends > 0 ? v->ends[0] : -1, v->n_ends > 1 ? v->ends[1] : -1,
        v->n_ends > 2 ? v->ends[2] : -1, v->add_bos, v->add_eos, v->add_bos_set, v->space_prefix, v->space_prefix_set};
    e->tokenizer_crc = 0;
    add_crc(e, v->model, strlen(v->model));
    add_crc(e, v->pre != NULL ? v->pre : "", v->pre != NULL ? strlen(v->pre) : 0);
    add_crc(e, numbers, sizeof numbers);
}

int wr_engine_load_vocab(weir_engine *e, weir_err *err)
{
    weir_plan *p = e->plan;
    const struct wr_catalog *c = &p->catalog;
    const struct wr_meta *types = wr_catalog_meta(c, "tokenizer.ggml.token_type");
    struct wr_meta_reader tokens = {0}, type = {0}, merges = {0}, scores = {0};
    int rc = wr_vocab_open(&e->vocab, &p->vocab, &p->ledger, &p->log, err);
    if (rc < 0) return wr_err_prefix(err, rc, "%s", wr_file_label(p->path));
    add_rules(e, &p->vocab);
    rc = wr_meta_reader_open(&tokens, c, wr_catalog_meta(c, "tokenizer.ggml.tokens"), err);
    if (rc == 0 && types != NULL) rc = wr_meta_reader_open(&type, c, types, err);
    for (uint32_t i = 0; rc == 0 && i < p->vocab.n_tokens; i++) {
        const char *bytes;
        size_t n;
        int64_t t = WR_TOKEN_NORMAL;
        rc = wr_meta_reader_string(&tokens, &bytes, &n, err);
        if (rc == 0 && types != NULL) rc = wr_meta_reader_number(&type, &t, NULL, err);
        if (rc == 0 && n > e->longest_token) e->longest_token = n;
        int32_t kind = (int32_t)t;
        if (rc == 0) add_crc(e, bytes, n);
        if (rc == 0) add_crc(e, &kind, sizeof kind);
        if (rc == 0) rc = wr_vocab_add_token(e->vocab, bytes, n, kind, err);
    }
    wr_meta_reader_close(&tokens);
    wr_meta_reader_close(&type);
    if (rc == 0 && p->vocab.n_merges > 0) rc = wr_meta_reader_open(&merges, c, wr_catalog_meta(c, "tokenizer.ggml.merges"), err);
    for (uint32_t i = 0; rc == 0 && i < p->vocab.n_merges; i++) {
        const char *bytes;
        size_t n;
        rc = wr_meta_reader_string(&merges, &bytes, &n, err);
        if (rc == 0) add_crc(e, bytes, n);
        if (rc == 0) rc = wr_vocab_add_merge(e->vocab, bytes, n, err);
    }
    wr_meta_reader_close(&merges);
    bool has_scores = wr_vocab_has_scores(&p->vocab);
    if (rc == 0 && has_scores) rc = wr_meta_reader_open(&scores, c, wr_catalog_meta(c, "tokenizer.ggml.scores"), err);
    for (uint32_t i = 0; rc == 0 && has_scores && i < p->vocab.n_tokens; i++) {
        double score;
        rc = wr_meta_reader_number(&scores, NULL, &score, err);
        float single = (float)score;
        if (rc == 0) add_crc(e, &single, sizeof single);
        if (rc == 0) rc = wr_vocab_add_score(e->vocab, single, err);
    }
    wr_meta_reader_close(&scores);
    if (rc == 0) rc = wr_vocab_finish(e->vocab, err);
    if (rc == 0 && e->longest_token == 0) rc = wr_err(err, WEIR_E_FORMAT, "every token is empty (tokenizer.ggml.tokens)");
    if (rc < 0) wr_err_prefix(err, rc, "%s: tokenizer", wr_file_label(p->path));
    for (uint32_t i = 0; i < c->n_files; i++) /* where weights do not go through the page cache, nothing of the header need stay in it */
        if (c->files[i].fd_direct >= 0) wr_file_drop_cache(&c->files[i]);
    return rc;
}

/* The constant account of the process is a promise about code that weir did not write: it is checked once everything is open. */
static int verify_process(const weir_engine *e, weir_err *err)
{
    const weir_plan *p = e->plan;
    if (strcmp(p->options.io, "mmap") == 0) return 0; /* a baseline for measurements: mapped pages count twice, and it says so */
    struct wr_os_usage usage = wr_os_usage();
    if (usage.peak_rss_bytes <= p->options.memory_bytes) return 0;
    return wr_err(err, WEIR_E_BUDGET,
        "the process has used %.1f MiB, more than the budget of %.1f MiB: its own account of %.1f MiB is too small on this system; raise --memory",
        (double)usage.peak_rss_bytes / 1048576, (double)p->options.memory_bytes / 1048576, (double)p->options.process_bytes / 1048576);
}

int weir_engine_open(weir_engine **out, weir_plan *p, weir_err *err)
{
    const struct wr_plan *plan = &p->plan;
    int rc = WEIR_E_NOMEM;
    weir_engine *e = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *e, err);
    if (e == NULL) return WEIR_E_NOMEM;
    e->plan = p;
    for (uint32_t i = 0; i < p->catalog.n_files; i++)
        if ((rc = wr_file_check(&p->catalog.files[i], err)) < 0) goto fail;
    for (int a = 0; a < WR_N_ACCOUNTS; a++) wr_ledger_limit(&p->ledger, a, plan->account[a]);
    wr_ledger_limit(&p->ledger, WR_ACCOUNT_TEXT, plan->account[WR_ACCOUNT_TEXT] - p->info.text_left);
    /* Of the ring's account the slots lie in the arena, the I/O engine's tables on the heap. */
    uint64_t ring = (uint64_t)plan->n_slots * plan->slot_bytes + plan->row_slot_bytes * WR_ROW_SLOTS;
    uint64_t arena = plan->account[WR_ACCOUNT_KV] + plan->account[WR_ACCOUNT_SCRATCH] + plan->account[WR_ACCOUNT_WEIGHTS] + ring;
    rc = wr_arena_open(&e->arena, arena, err);
    if (p->is_draft)
        e->team = p->team;
    else if (rc == 0)
        rc = wr_team_open(&e->team, p->options.n_threads, &p->ledger, err);
    if (rc == 0 && !p->is_draft) rc = wr_engine_load_vocab(e, err);
    if (rc == 0) rc = wr_context_open(e, err);
    if (rc < 0) goto fail;

    (wr_engine_device != NULL ? wr_engine_device : wr_device_cpu)(&e->device);
    struct wr_pager_config pager = {.plan = plan,
        .catalog = &p->catalog,
        .device = &e->device,
        .io = p->options.io,
        .arena = &e->arena,
        .ledger = &p->ledger,
        .log = &p->log,
        .n_members = p->options.n_threads,
        .checksums = true,
        .cancel = p->options.cancel,
        .progress = p->options.progress,
        .progress_user = p->options.progress_user};
    rc = wr_pager_open(&e->pager, &pager, err);
    if (rc == 0) rc = wr_engine_open_kv(e, err);
    if (rc < 0) goto fail;

    uint64_t sample_bytes = wr_round_up(p->sample_bytes, 64);
    uint64_t scratch_bytes = plan->account[WR_ACCOUNT_SCRATCH] - wr_ledger_used(&p->ledger, WR_ACCOUNT_SCRATCH);
    uint8_t *scratch = wr_arena_take(&e->arena, &p->ledger, WR_ACCOUNT_SCRATCH, scratch_bytes, err);
    if (scratch == NULL) {
        rc = WEIR_E_BUDGET;
        goto fail;
    }
    e->sample_work = scratch;
    e->pass = (struct wr_pass){.model = &p->model,
        .kernels = p->kernels,
        .pager = e->pager,
        .device = &e->device,
        .team = e->team,
        .kv = &e->kv,
        .cancel = p->options.cancel,
        .max_rows = plan->max_rows};
    if (sample_bytes + wr_pass_init(&e->pass, scratch + sample_bytes, p->options.precise) > scratch_bytes) {
        rc = wr_err(err, WEIR_E_FAIL, "scratch is larger than planned");
        goto fail;
    }
    rc = wr_draft_open(e, err);
    if (rc == 0 && !p->is_draft) rc = verify_process(e, err);
    if (rc < 0) goto fail;
    *out = e;
    return 0;
fail:
    weir_engine_close(e->draft);
    wr_kv_close(&e->kv);
    wr_context_close(e);
    e->plan = NULL; /* still the caller's */
    wr_pager_close(e->pager);
    if (!p->is_draft) wr_team_close(e->team);
    wr_vocab_close(e->vocab);
    if (e->device.ops != NULL && e->device.ops->close != NULL) e->device.ops->close(&e->device);
    wr_arena_close(&e->arena);
    wr_mem_free(e);
    return rc;
}

int weir_engine_open_text(weir_engine **out, const char *path, const weir_options *options, weir_err *err)
{
    weir_engine *e = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *e, err);
    if (e == NULL) return WEIR_E_NOMEM;
    e->text_only = true;
    int rc = wr_plan_read(&e->plan, path, options, true, err);
    if (rc == 0) rc = wr_engine_load_vocab(e, err);
    if (rc == 0 && options->memory_bytes != 0) {
        /* Half of what the budget leaves is for templates and tokenizing here, the other half for the caller's text. */
        uint64_t fixed = options->process_bytes + wr_vocab_bytes(&e->plan->vocab) + wr_ledger_used(&e->plan->ledger, WR_ACCOUNT_META);
        wr_ledger_limit(&e->plan->ledger, WR_ACCOUNT_TEXT, options->memory_bytes > fixed ? (options->memory_bytes - fixed) / 2 : 0);
    }
    if (rc < 0) {
        weir_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void weir_engine_close(weir_engine *e)
{
    if (e == NULL) return;
    weir_engine_close(e->draft);
    wr_kv_close(&e->kv);
    wr_context_close(e);
    wr_pager_close(e->pager);
    if (e->plan == NULL || !e->plan->is_draft) wr_team_close(e->team);
    wr_template_close(e->chat);
    wr_vocab_close(e->vocab);
    if (e->device.ops != NULL && e->device.ops->close != NULL) e->device.ops->close(&e->device);
    wr_arena_close(&e->arena);
    weir_plan_close(e->plan);
    wr_mem_free(e);
    wr_mem_trim();
}

const weir_plan_info *weir_engine_plan(const weir_engine *e)
{
    uint64_t sum = 0, peak_rss = wr_os_usage().peak_rss_bytes;
    for (int a = 0; a < WR_N_ACCOUNTS; a++) {
        e->plan->accounts[a].peak = wr_ledger_peak(&e->plan->ledger, a);
        for (int b = 0; a == WR_ACCOUNT_DRAFT && e->draft != NULL && b < WR_N_ACCOUNTS; b++)
            e->plan->accounts[a].peak += wr_ledger_peak(&e->draft->plan->ledger, b);
        if (a != WR_ACCOUNT_PROCESS) sum += e->plan->accounts[a].peak;
    }
    /* What the process itself took cannot be counted, only what is left. */
    e->plan->accounts[WR_ACCOUNT_PROCESS].peak = peak_rss > sum ? peak_rss - sum : 0;
    return &e->plan->info;
}

weir_io_info weir_engine_io(const weir_engine *e)
{
    if (e->text_only) return (weir_io_info){.engine = "none"};
    struct wr_pager_stats s = wr_pager_stats(e->pager);
    struct wr_kv_stats kv = wr_kv_stats(&e->kv);
    double load = s.load_seconds > 0 ? (double)(s.bytes_pinned + s.bytes_filled) / s.load_seconds : 0;
    const weir_io_info draft = e->draft != NULL ? weir_engine_io(e->draft) : (weir_io_info){0};
    return (weir_io_info){.engine = s.engine,
        .direct = s.direct,
        .bytes_read = s.bytes_pinned + s.bytes_streamed + s.bytes_rows + kv.bytes_read + draft.bytes_read,
        .bytes_written = kv.bytes_written + e->context.to.store.bytes_written,
        .reads = s.n_reads + kv.n_reads + draft.reads,
        .bytes_read_weights = s.bytes_streamed,
        .bytes_read_pinned = s.bytes_pinned,
        .bytes_read_sample = s.bytes_filled,
        .bytes_read_rows = s.bytes_rows,
        .bytes_read_kv = kv.bytes_read,
        .bytes_seam = s.bytes_seam,
        .load_seconds = s.load_seconds,
        .load_rate = load,
        .stall_io_seconds = (double)(s.stall_io_ns + kv.stall_read_ns) * 1e-9,
        .stall_write_seconds = (double)kv.stall_write_ns * 1e-9,
        .stall_compute_seconds = (double)s.stall_compute_ns * 1e-9};
}
