/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A draft model: a second engine inside the budget of the first, in the account DRAFT, with all of its weights, keys and values in memory, since a draft that
 * has to be read pays nothing. It has no text: its tokens are the ids of the first model, whose vocabulary it shares. It draws with the same parameters and
 * the same random number of each position, so that it proposes what the model would draw if both thought the same; a draft that is the model is always right.
 */
#include <math.h>
#include <string.h>
#include "base/num.h"
#include "engine/engine.h"

#define DRAFT_CHUNK 128u   /* rows of its passes over the prompt */
#define FIRST_CONTEXT 256u /* two contexts tell what a position takes */
#define SECOND_CONTEXT (FIRST_CONTEXT + 65536u)

/* What may be kept of the draft's header, of which two are open at once: half of what the model leaves of the budget. */
static uint64_t header_bytes(const weir_plan *p)
{
    const uint64_t own = p->options.process_bytes + wr_ledger_used(&p->ledger, WR_ACCOUNT_META);
    return p->options.memory_bytes > own ? (p->options.memory_bytes - own) / 2 : 1;
}

static weir_options options_of_draft(const weir_plan *p, uint64_t budget, uint32_t n_ctx)
{
    weir_options o = p->options, init;
    weir_options_init(&init);
    o.memory_bytes = budget;
    o.n_ctx = n_ctx;
    o.n_chunk = DRAFT_CHUNK;
    o.kv_disk_bytes = 0;
    o.pin_bytes = o.ring_bytes = o.extent_bytes = WEIR_AUTO;
    o.process_bytes = 0;
    o.header_bytes = header_bytes(p);
    o.context[0] = o.save_context[0] = o.draft[0] = '\0';
    o.spec = WEIR_SPEC_OFF;
    o.spec_tree = 0;
    o.progress = init.progress;
    return o;
}

static int open_plan(const weir_plan *p, uint64_t budget, uint32_t n_ctx, weir_plan **out, weir_err *err)
{
    weir_options o = options_of_draft(p, budget, n_ctx);
    o.log = NULL; /* what there is to say of the machine was said of the model */
    int rc = wr_plan_open(out, p->options.draft, &o, true, err);
    return rc < 0 ? wr_err_prefix(err, rc, "--draft") : 0;
}

static uint64_t sum_of(const weir_plan *d)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->info.n_accounts; i++) sum += d->info.accounts[i].reserved;
    return sum;
}

static int compare_tokens(const weir_plan *p, const weir_plan *d, weir_err *err)
{
    const char *key = "tokenizer.ggml.tokens", *ours = wr_file_label(p->path), *theirs = wr_file_label(d->path);
    const struct {
        const char *name;
        int32_t a, b;
    } ids[] = {
        {"bos", p->vocab.bos, d->vocab.bos}, {"eos", p->vocab.eos, d->vocab.eos}, {"eot", p->vocab.eot, d->vocab.eot}, {"eom", p->vocab.eom, d->vocab.eom}};
    struct wr_meta_reader a = {0}, b = {0};
    if (p->vocab.n_tokens != d->vocab.n_tokens || p->model.hp.n_vocab != d->model.hp.n_vocab)
        return wr_err(err, WEIR_E_MISMATCH, "--draft: %s: has another vocabulary than %s: %u tokens, not %u; a draft needs the same", theirs, ours,
            d->vocab.n_tokens, p->vocab.n_tokens);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i].a != ids[i].b)
            return wr_err(err, WEIR_E_MISMATCH, "--draft: %s: has another vocabulary than %s: %s is token %d, not %d; a draft needs the same", theirs, ours,
                ids[i].name, ids[i].b, ids[i].a);
    int rc = wr_meta_reader_open(&a, &p->catalog, wr_catalog_meta(&p->catalog, key), err);
    if (rc == 0) rc = wr_meta_reader_open(&b, &d->catalog, wr_catalog_meta(&d->catalog, key), err);
    for (uint32_t i = 0; rc == 0 && i < p->vocab.n_tokens; i++) {
        const char *x, *y;
        size_t n, m;
        rc = wr_meta_reader_string(&a, &x, &n, err);
        if (rc == 0) rc = wr_meta_reader_string(&b, &y, &m, err);
        if (rc == 0 && (n != m || memcmp(x, y, n) != 0))
            rc = wr_err(err, WEIR_E_MISMATCH, "--draft: %s: has another vocabulary than %s: token %u is another; a draft needs the same", theirs, ours, i);
    }
    wr_meta_reader_close(&a);
    wr_meta_reader_close(&b);
    return rc;
}

int wr_draft_plan(const weir_plan *p, uint64_t *bytes, uint64_t *bytes_per_position, weir_err *err)
{
    weir_plan *first, *second;
    int rc = open_plan(p, UINT64_MAX / 4, FIRST_CONTEXT, &first, err);
    if (rc < 0) return rc;
    rc = compare_tokens(p, first, err);
    if (rc == 0) rc = open_plan(p, UINT64_MAX / 4, SECOND_CONTEXT, &second, err);
    if (rc == 0) {
        const uint64_t n = SECOND_CONTEXT - FIRST_CONTEXT, least = sum_of(first), rounding = 16 * first->info.kv_bytes_per_position + 4 * WR_ARENA_ALIGN;
        *bytes_per_position = (sum_of(second) - least + n - 1) / n;
        *bytes = least + rounding - FIRST_CONTEXT * *bytes_per_position;
        weir_plan_close(second);
    }
    weir_plan_close(first);
    return rc;
}

int wr_draft_fit(weir_plan *p, uint64_t bytes, weir_err *err)
{
    int rc = open_plan(p, bytes, p->plan.n_ctx, &p->draft, err);
    if (rc == 0 && p->draft->plan.streamed > 0) rc = wr_err(err, WEIR_E_FAIL, "--draft: the draft does not fit its part of the budget");
    return rc;
}

int wr_draft_open(weir_engine *e, weir_err *err)
{
    if (e->plan->draft == NULL) return 0;
    e->plan->draft->team = e->team;
    int rc = weir_engine_open(&e->draft, e->plan->draft, err);
    if (rc < 0) return wr_err_prefix(err, rc, "--draft");
    e->plan->draft = NULL; /* the engine's */
    return 0;
}

/* After a burst that was accepted whole the draft lacks one token, which it takes with the next. */
#define LAG 1

int wr_draft_follow(weir_session *draft, const int32_t *ids, size_t n, weir_err *err)
{
    size_t common = 0;
    while (common < draft->n && common < n && draft->ids[common] == ids[common]) common++;
    return common + LAG < n ? weir_session_set(draft, ids, n, err) : 0;
}

int wr_draft_propose(weir_session *draft, const weir_sampling *sampling, int32_t *ids, size_t n, uint32_t k, weir_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < k; i++) {
        rc = weir_session_set(draft, ids, n + i, err);
        if (rc == 0) rc = weir_session_sample(draft, sampling, &ids[n + i], err);
    }
    return rc;
}

int wr_draft_ask(weir_session *draft, const weir_sampling *sampling, const int32_t *ids, size_t n, uint32_t n_most, int32_t *tokens, float *p, weir_err *err)
{
    const uint32_t n_vocab = draft->engine->plan->model.hp.n_vocab;
    int rc = weir_session_set(draft, ids, n, err);
    const float *logits = draft->logits; /* which are still there after a draw, biases and penalties in them */
    if (rc == 0) rc = weir_session_sample(draft, sampling, &tokens[0], err);
    if (rc != 0) return rc;
    uint32_t k = 1, best = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (logits[i] > logits[best]) best = i;
        if ((int32_t)i == tokens[0] || (k == n_most && logits[i] <= logits[tokens[k - 1]])) continue;
        uint32_t at = k < n_most ? k++ : k - 1;
        for (; at > 1 && logits[i] > logits[tokens[at - 1]]; at--) tokens[at] = tokens[at - 1];
        tokens[at] = (int32_t)i;
    }
    const float temp = sampling->temp > 0 ? sampling->temp : 1; /* whose inverse may be beyond a float */
    float sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) sum += wr_exp((logits[i] - logits[best]) / temp);
    for (uint32_t i = 0; i < k; i++) p[i] = wr_exp((logits[tokens[i]] - logits[best]) / temp) / sum;
    return (int)k;
}
