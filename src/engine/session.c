/* SPDX-License-Identifier: Apache-2.0 */
/* weir_session: one sequence of tokens. The caller always hands over all of them; what is stored of that prefix is kept. */
#include <string.h>
#include "base/os.h"
#include "engine/engine.h"
#include "generate/sampler.h"
#include "generate/stop.h"

/* After every layer: a pass can take minutes. */
static void show_progress(void *user, uint32_t layers_done, uint32_t n_layer)
{
    weir_session *s = user;
    struct wr_tick *t = &s->tick;
    const weir_options *o = &s->engine->plan->options;
    uint64_t now = wr_clock_ns();
    if (o->progress == NULL || now - t->last_ns < 100000000) return;
    t->last_ns = now;
    const char *phase = t->end - t->begin == 1 && t->begin > 0 ? "decode" : "prefill";
    if (t->end - t->begin == 1)
        o->progress(o->progress_user, phase, layers_done, n_layer, "layers");
    else
        o->progress(o->progress_user, phase, t->done - t->begin + (uint64_t)t->m * layers_done / n_layer, t->end - t->begin, "tokens");
}

int weir_session_open(weir_session **out, weir_engine *e, weir_err *err)
{
    if (e->text_only) return wr_err(err, WEIR_E_USAGE, "this engine was opened for text alone");
    if (e->has_session) return wr_err(err, WEIR_E_USAGE, "the engine has a session already");
    struct wr_ledger *ledger = &e->plan->ledger;
    weir_session *s = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *s, err);
    if (s == NULL) return WEIR_E_NOMEM;
    s->engine = e;
    s->ids = wr_mem_array(ledger, WR_ACCOUNT_TEXT, e->plan->plan.n_ctx, sizeof *s->ids, err);
    s->rows = wr_mem_array(ledger, WR_ACCOUNT_TEXT, e->plan->plan.max_rows, sizeof *s->rows, err);
    if (s->ids == NULL || s->rows == NULL) {
        weir_session_close(s);
        return err != NULL ? err->code : WEIR_E_NOMEM;
    }
    e->has_session = true;
    e->pass.tick = e->plan->options.progress != NULL ? show_progress : NULL;
    e->pass.tick_user = s;
    int rc = wr_spec_open(s, err);
    if (rc == 0) rc = wr_context_start(s, err);
    if (rc < 0) {
        weir_session_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void weir_session_close(weir_session *s)
{
    if (s == NULL) return;
    s->engine->has_session = false;
    wr_spec_close(s);
    wr_mem_free(s->ids);
    wr_mem_free(s->rows);
    wr_mem_free(s);
}

static int check_ids(const weir_session *s, const int32_t *ids, size_t n, weir_err *err)
{
    const weir_plan *p = s->engine->plan;
    if (n == 0) return wr_err(err, WEIR_E_INPUT, "there are no tokens to evaluate");
    if (n > p->plan.n_ctx)
        return wr_err(err, WEIR_E_CONTEXT, "%zu tokens do not fit the context of %u positions; give -c %zu or more (this budget could hold %u)", n,
            p->plan.n_ctx, n, p->plan.max_context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= p->model.hp.n_vocab)
            return wr_err(err, WEIR_E_INPUT, "token id %d at position %zu is outside the vocabulary of %u", ids[i], i, p->model.hp.n_vocab);
    return 0;
}

static int keep_logits(void *user, uint32_t word, uint32_t n_words, uint32_t n_rows, const float *tile)
{
    weir_session *s = user;
    s->logits = (float *)tile; /* one row: the tile is all of it */
    return 0;
}

struct eval {
    weir_logits_fn *fn;
    void *user;
    size_t first_row;
};

static int give_logits(void *user, uint32_t word, uint32_t n_words, uint32_t n_rows, const float *tile)
{
    const struct eval *e = user;
    return e->fn(e->user, e->first_row, n_rows, word, n_words, tile);
}

int wr_session_pass(weir_session *s, const int32_t *ids, const uint32_t *depth, uint32_t m, bool all, wr_head_fn *fn, void *user, weir_err *err)
{
    weir_engine *e = s->engine;
    const weir_plan *p = e->plan;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < p->catalog.n_files; i++) rc = wr_file_check(&p->catalog.files[i], err);
    if (rc != 0) return rc;
    for (uint32_t i = 0; i < m; i++)
        s->rows[i] =
            (struct wr_pass_row){.position = (uint32_t)s->n + (depth != NULL ? depth[i] : i), .token = ids[i], .logits = all || (fn != NULL && i == m - 1)};
    rc = wr_pass_run(&e->pass, s->rows, m, fn, user, err);
    if (rc == 0) {
        rc = wr_context_compare(e, err);
        if (rc == WEIR_E_MISMATCH) wr_context_refuse(s); /* what was loaded is not this model's */
    }
    return rc == WEIR_E_NONFINITE ? wr_err_prefix(err, rc, "%s", wr_file_label(p->path)) : rc;
}

double wr_session_book(weir_session *s, uint32_t n_rows, uint64_t start_ns)
{
    const double seconds = (double)(wr_clock_ns() - start_ns) * 1e-9;
    struct wr_pager_stats now = wr_pager_stats(s->engine->pager);
    s->info.n_passes++;
    s->n_passes_of[n_rows]++;
    s->info.decode_seconds += seconds;
    s->info.decode_bytes += now.bytes_last_pass;
    s->info.decode_kv_bytes += wr_kv_stats(&s->engine->kv).bytes_last_pass;
    s->info.decode_row_bytes += now.bytes_rows - s->bytes_rows;
    s->info.decode_disk_bytes = wr_os_usage().read_bytes - s->decode_disk_begin;
    s->bytes_rows = now.bytes_rows;
    return seconds;
}

void wr_session_book_token(weir_session *s)
{
    s->info.n_decode++;
    s->decode_positions += s->n - 1;
}

/* Evaluates s->ids[s->n .. n) chunk by chunk; logits of the last row, or of every row for `eval`. */
static int advance(weir_session *s, size_t n, struct eval *eval, weir_err *err)
{
    weir_engine *e = s->engine;
    const weir_plan *p = e->plan;
    size_t begin = s->n;
    s->logits = NULL;
    int rc = wr_context_back(s, begin, err);
    if (rc < 0) return rc;
    bool decode = eval == NULL && n - begin == 1 && begin > 0;
    uint64_t start = wr_clock_ns();
    wr_spec_end(s);
    s->tick = (struct wr_tick){start, begin, n, 0, 0};
    if (decode && s->info.n_decode == 0) s->decode_disk_begin = wr_os_usage().read_bytes;
    while (rc == 0 && s->n < n) {
        uint32_t m = n - s->n < p->plan.n_chunk ? (uint32_t)(n - s->n) : p->plan.n_chunk;
        const bool unchecked = e->context.unchecked; /* a pass with all weights, and with no more rows than can wait to be written */
        if (unchecked && e->kv.store != NULL && m > WR_TILE - s->n % WR_TILE) m = (uint32_t)(WR_TILE - s->n % WR_TILE);
        if (eval != NULL) eval->first_row = s->n;
        wr_head_fn *fn = eval != NULL ? give_logits : s->n + m == n || unchecked ? keep_logits : NULL;
        s->tick.m = m;
        s->tick.done = s->n;
        const uint64_t pass_start = wr_clock_ns();
        rc = wr_session_pass(s, s->ids + s->n, NULL, m, eval != NULL, fn, eval != NULL ? (void *)eval : s, err);
        if (rc != 0) break;
        s->n += m;
        if (!decode) wr_spec_saw(s, m, (double)(wr_clock_ns() - pass_start) * 1e-9);
        rc = wr_context_keep(s, err);
    }
    if (rc != 0) s->logits = NULL; /* they may be of a row in the midst of the prompt, or of one that is not stored */
    if (decode && rc == 0) {
        const bool cold = s->info.n_passes == 0; /* the caches have what the prompt's passes used */
        s->pass_seconds = wr_session_book(s, 1, start);
        if (!cold) s->plain_seconds += s->pass_seconds;
        s->n_plain += !cold;
        wr_session_book_token(s);
        return 0;
    }
    s->bytes_rows = wr_pager_stats(e->pager).bytes_rows;
    s->info.n_prefill += s->n > begin ? s->n - begin : 0;
    s->info.prefill_seconds += (double)(wr_clock_ns() - start) * 1e-9;
    if (s->n > begin)
        s->info.prefill_predicted_seconds += wr_plan_seconds(p, eval != NULL ? WR_WORK_EVAL : WR_WORK_PREFILL, (uint32_t)begin, (uint32_t)(s->n - begin));
    return rc;
}

int wr_session_advance(weir_session *s, size_t n, weir_err *err) { return advance(s, n, NULL, err); }

/* What the session holds of the ids is kept, but for the last one, which is evaluated again for its logits: those that were there are of other ids. */
static void keep_common(weir_session *s, const int32_t *ids, size_t n)
{
    size_t common = 0;
    while (common < s->n && common < n && s->ids[common] == ids[common]) common++;
    if (common == n) common = n - 1;
    wr_spec_forget(s, common);
    memmove(s->ids + common, ids + common, (n - common) * sizeof *ids);
    s->n = common;
    s->logits = NULL;
    wr_spec_end(s);
}

int weir_session_set(weir_session *s, const int32_t *ids, size_t n, weir_err *err)
{
    int rc = check_ids(s, ids, n, err);
    if (rc < 0) return rc;
    if (n == s->n && s->logits != NULL && memcmp(s->ids, ids, n * sizeof *ids) == 0) return 0;
    keep_common(s, ids, n);
    return advance(s, n, NULL, err);
}

const float *weir_session_logits(weir_session *s) { return s->logits; }

size_t weir_session_length(const weir_session *s) { return s->n; }

const int32_t *weir_session_ids(const weir_session *s, size_t *n)
{
    *n = s->n;
    return s->ids;
}

int weir_session_sample(weir_session *s, const weir_sampling *sampling, int32_t *id, weir_err *err)
{
    const struct wr_hparams *hp = &s->engine->plan->model.hp;
    if (s->logits == NULL) return wr_err(err, WEIR_E_USAGE, "there are no logits to draw from: set the session's tokens first");
    if (sampling->size != sizeof *sampling)
        return wr_err(err, WEIR_E_USAGE, "weir_sampling.size is %zu, expected %zu: call weir_sampling_init", sampling->size, sizeof *sampling);
    int rc = wr_sample(sampling, s->logits, hp->n_vocab, s->ids, s->n, (uint32_t)s->n, s->engine->sample_work, id, err);
    if (rc != WEIR_E_USAGE) s->logits = NULL; /* biases and penalties changed them */
    return rc;
}

int weir_session_eval(weir_session *s, const int32_t *ids, size_t n, weir_logits_fn *fn, void *user, weir_err *err)
{
    struct eval eval = {fn, user, 0};
    int rc = check_ids(s, ids, n, err);
    if (rc < 0) return rc;
    keep_common(s, ids, n);
    return advance(s, n, &eval, err);
}

struct output {
    const weir_generate *g;
    struct wr_stop *stop;
    int rc; /* what `text` returned */
    bool stopped;
};

static void emit(void *user, const char *text, size_t n)
{
    struct output *o = user;
    if (o->rc == 0 && o->g->text != NULL && n > 0) o->rc = o->g->text(o->g->user, text, n);
}

static void through_stop(void *user, const char *text, size_t n)
{
    struct output *o = user;
    if (o->stop == NULL)
        emit(o, text, n);
    else if (!o->stopped)
        o->stopped = wr_stop_put(o->stop, text, n, emit, o);
}

int weir_session_generate(weir_session *s, const weir_generate *g, enum weir_finish *finish, weir_err *err)
{
    weir_engine *e = s->engine;
    const volatile int *cancel = e->plan->options.cancel;
    struct output o = {.g = g};
    struct wr_utf8_stream stream = {{0}, 0};
    if (g->size != sizeof *g) return wr_err(err, WEIR_E_USAGE, "weir_generate.size is %zu, expected %zu", g->size, sizeof *g);
    if (s->logits == NULL) return wr_err(err, WEIR_E_USAGE, "there are no logits to draw from: set the session's tokens first");
    int rc = g->n_stops > 0 ? wr_stop_open(&o.stop, g->stops, g->n_stops, &e->plan->ledger, err) : 0;
    if (rc < 0) return rc;
    enum weir_finish how = WEIR_FINISH_LENGTH;
    for (uint64_t i = 0; rc == 0 && (g->n_max == 0 || i < g->n_max); i++) {
        int32_t id;
        if (cancel != NULL && *cancel != 0) rc = WEIR_E_CANCELLED;
        if (rc == 0 && s->logits == NULL) { /* the token drawn last is not evaluated yet */
            if (s->n + 1 > e->plan->plan.n_ctx) break;
            rc = wr_spec_next(s, g->sampling, g->n_max == 0 ? UINT64_MAX : g->n_max - i, err);
        }
        if (rc == 0) rc = weir_session_sample(s, g->sampling, &id, err);
        if (rc < 0) break;
        if (wr_vocab_ends(e->vocab, id) && !g->ignore_eos) {
            how = WEIR_FINISH_STOP;
            break;
        }
        if (g->token != NULL) o.rc = g->token(g->user, id);
        const char *bytes;
        size_t n;
        if (wr_vocab_bytes_after(e->vocab, s->ids[s->n - 1], id, g->special, &bytes, &n)) wr_utf8_stream_put(&stream, bytes, n, through_stop, &o);
        if (o.stopped) how = WEIR_FINISH_STOP;
        if (o.stopped || o.rc != 0 || s->n >= e->plan->plan.n_ctx) break;
        s->ids[s->n] = id;
    }
    if (!o.stopped && o.rc == 0) {
        wr_utf8_stream_flush(&stream, through_stop, &o);
        if (o.stop != NULL && !o.stopped && wr_stop_flush(o.stop, emit, &o)) how = WEIR_FINISH_STOP;
    }
    wr_stop_close(o.stop);
    if (rc == WEIR_E_CANCELLED) {
        how = WEIR_FINISH_INTERRUPTED;
        rc = 0;
        if (err != NULL) *err = (weir_err){0};
    }
    if (rc != 0 || o.rc != 0) return rc != 0 ? rc : o.rc;
    *finish = how;
    return 0;
}

/* Decode passes grow evenly with their position: the one in the middle stands for all of as many rows. */
static void predict(const weir_session *s, weir_session_info *info)
{
    const weir_plan *p = s->engine->plan, *draft = s->spec.draft != NULL ? s->spec.draft->engine->plan : NULL;
    const uint32_t position = (uint32_t)(s->decode_positions / info->n_decode);
    double seconds = draft != NULL ? (double)s->n_asked * wr_plan_seconds(draft, WR_WORK_DECODE, position, 1) : 0;
    for (uint32_t rows = 1; rows < WR_SPEC_MOST + 2; rows++)
        if (s->n_passes_of[rows] > 0) seconds += (double)s->n_passes_of[rows] * wr_plan_seconds(p, WR_WORK_DECODE, position, rows);
    info->decode_predicted_seconds = seconds;
    if (info->n_accepted + info->n_refused == 0) return;
    info->burst.acceptance = (double)info->n_accepted / (double)(info->n_accepted + info->n_refused);
    if (!s->had_trees) wr_plan_burst(p, draft, position, &info->burst); /* which is of lines */
}

weir_session_info weir_session_stats(const weir_session *s)
{
    weir_session_info info = s->info;
    info.plain_seconds = s->n_plain > 0 ? s->plain_seconds / (double)s->n_plain : 0;
    info.n_saved = wr_kvfile_tokens(&s->engine->context.to.saved);
    if (info.n_decode > 0) predict(s, &info);
    return info;
}
