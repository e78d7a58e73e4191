/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speculation: tokens are proposed behind the one drawn last, and one pass, a burst, evaluates them all; row i then has the logits that plain decoding would
 * have had, were its tokens those proposed. They are drawn from as in plain decoding, one draw a position, by the same loop: wr_spec_next gives it the next
 * row of the burst as long as the token drawn is the one proposed there, and else a new pass. What a burst stored past the last row given is rolled back by
 * the next pass, which begins before its end. So nothing here decides which tokens come, only how many passes they take.
 */
#include <string.h>
#include "base/os.h"
#include "engine/engine.h"

#define DEFAULT_K 8     /* that memory is set apart for where none is given */
#define DEFAULT_TREE 32 /* tokens of a tree, likewise */

/* Tokens of a tree at most; 0: there are none. */
static uint32_t most_of_tree(const weir_options *o) { return o->draft[0] == '\0' || o->spec_k > 0 ? 0 : o->spec_tree > 0 ? o->spec_tree : DEFAULT_TREE; }

static uint64_t tree_bytes(const weir_plan *p)
{
    const uint32_t n = most_of_tree(&p->options);
    const struct wr_hparams *hp = &p->model.hp;
    return n == 0 ? 0
                  : WR_MEM_OVERHEAD +
                        wr_round_up(n + 1, WR_KV_BLOCK) * wr_kv_position_bytes((enum wr_kv_type)p->options.kv, hp->n_layer, hp->n_head_kv, hp->head_dim);
}

int wr_spec_plan(const weir_plan *p, struct wr_plan_input *in, weir_err *err)
{
    const weir_options *o = &p->options;
    const bool drafts = o->draft[0] != '\0';
    if ((unsigned)o->spec > WEIR_SPEC_DRAFT) return wr_err(err, WEIR_E_USAGE, "there is no way to speculate of number %d", (int)o->spec);
    if (o->spec_k > WR_SPEC_MOST) return wr_err(err, WEIR_E_USAGE, "--spec-k %u is more than %d", o->spec_k, WR_SPEC_MOST);
    if (drafts && (o->spec == WEIR_SPEC_OFF || o->spec == WEIR_SPEC_NGRAM))
        return wr_err(err, WEIR_E_USAGE, "--draft is not used with --spec %s; leave one out", wr_spec_name(o->spec));
    if (o->spec_tree > WR_SPEC_MOST) return wr_err(err, WEIR_E_USAGE, "--spec-tree %u is more than %d", o->spec_tree, WR_SPEC_MOST);
    if (o->spec_tree > 0 && !drafts) return wr_err(err, WEIR_E_USAGE, "--spec-tree is for a draft model: --draft MODEL");
    if (o->spec_tree > 0 && o->spec_k > 0) return wr_err(err, WEIR_E_USAGE, "--spec-tree is used in place of --spec-k; leave one out");
    if (!drafts && o->spec == WEIR_SPEC_DRAFT) return wr_err(err, WEIR_E_USAGE, "--spec draft needs a draft model: --draft MODEL");
    if (o->spec == WEIR_SPEC_OFF) return 0;
    const uint64_t one = wr_ngram_bytes(1), more = wr_ngram_bytes(1 + 4096);
    const uint32_t fixed = o->spec_k > 0 ? o->spec_k : o->spec_tree;
    in->spec_most = 1 + (fixed > 0 ? fixed : WR_SPEC_MOST);
    if (o->spec != WEIR_SPEC_AUTO || drafts) in->spec_rows = 1 + (fixed > 0 ? fixed : DEFAULT_K);
    in->tree_bytes = tree_bytes(p);
    in->logits_bytes = p->model.hp.n_vocab * sizeof(float);
    in->idle_per_row = wr_model_idle_bytes(&p->model);
    if (drafts) return wr_draft_plan(p, &in->draft_bytes, &in->draft_bytes_per_position, err);
    in->draft_bytes = one + WR_MEM_OVERHEAD;
    in->draft_bytes_per_position = (more - one + 4095) / 4096;
    return 0;
}

int wr_spec_open(weir_session *s, weir_err *err)
{
    weir_plan *p = s->engine->plan;
    struct wr_spec *spec = &s->spec;
    if (p->plan.n_spec_rows < 2) return 0;
    spec->most = p->plan.n_spec_rows - 1;
    const uint64_t n_own = p->plan.n_spec_rows - p->plan.n_idle_logits;
    spec->own = wr_mem_array(&p->ledger, WR_ACCOUNT_DRAFT, n_own * p->model.hp.n_vocab, sizeof *spec->own, err);
    if (spec->own == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    if (most_of_tree(&p->options) > 0) {
        spec->tree_rows = wr_mem_alloc(&p->ledger, WR_ACCOUNT_DRAFT, tree_bytes(p) - WR_MEM_OVERHEAD, err);
        if (spec->tree_rows == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
        int rc = wr_kv_open_beside(&s->engine->pass.tree, &s->engine->kv, most_of_tree(&p->options) + 1, spec->tree_rows, err);
        if (rc < 0) return rc;
    }
    wr_gate_init(&spec->gate);
    wr_tree_believe(&spec->belief);
    if (s->engine->draft != NULL) return weir_session_open(&spec->draft, s->engine->draft, err);
    return wr_ngram_open(&spec->ngram, p->plan.n_draft_positions, &p->ledger, WR_ACCOUNT_DRAFT, err);
}

void wr_spec_close(weir_session *s)
{
    weir_session_close(s->spec.draft);
    wr_ngram_close(s->spec.ngram);
    wr_mem_free(s->spec.own);
    wr_mem_free(s->spec.tree_rows);
    s->engine->pass.tree.n_positions = 0;
}

void wr_spec_forget(weir_session *s, size_t n)
{
    if (s->spec.ngram == NULL || n >= s->spec.n_seen) return;
    wr_ngram_reset(s->spec.ngram);
    s->spec.seen_from = s->spec.n_seen = 0;
}

/* The automaton gets the tokens up to the one drawn last. Where it is full it begins anew with the newest half. */
static void see(weir_session *s)
{
    struct wr_spec *spec = &s->spec;
    const size_t room = s->engine->plan->plan.n_draft_positions;
    if (s->n + 1 - spec->seen_from > room) {
        wr_ngram_reset(spec->ngram);
        spec->seen_from = spec->n_seen = s->n + 1 - room / 2;
    }
    for (; spec->n_seen <= s->n; spec->n_seen++) wr_ngram_put(spec->ngram, s->ids[spec->n_seen]);
}

static float *logits_of_row(const weir_session *s, uint32_t row)
{
    const weir_plan *p = s->engine->plan;
    const uint32_t n_idle = p->plan.n_idle_logits;
    float *rows = row < n_idle ? wr_pass_idle(&s->engine->pass) : s->spec.own;
    return rows + (size_t)(row < n_idle ? row : row - n_idle) * p->model.hp.n_vocab;
}

static int keep_rows(void *user, uint32_t word, uint32_t n_words, uint32_t n_rows, const float *tile)
{
    const weir_session *s = user;
    for (uint32_t i = 0; i < n_rows; i++) memcpy(logits_of_row(s, i) + word, tile + (size_t)i * n_words, n_words * sizeof *tile);
    return 0;
}

/* A row of the burst counts: its token is drawn, and the logits are those behind it. */
static int take_row(weir_session *s, uint32_t row, weir_err *err)
{
    s->logits = logits_of_row(s, row);
    s->spec.at = row;
    wr_pass_keep_row(&s->engine->pass, row, (uint32_t)s->n);
    s->n++;
    wr_session_book_token(s);
    return wr_context_keep(s, err);
}

static int plain(weir_session *s, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    const bool cold = s->info.n_passes == 0; /* it tells nothing of others */
    int rc = wr_session_advance(s, s->n + 1, err);
    if (rc != 0) return rc;
    spec->n_rows = !cold;
    spec->at = 0;
    spec->seconds = s->pass_seconds;
    s->info.decode_seconds += spec->draft_seconds; /* for nothing that is worth a row */
    return 0;
}

/* The token drawn last and k proposed behind it: a tree, or the beginning of a line. */
static int burst(weir_session *s, uint32_t k, uint64_t start, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    int rc = wr_context_back(s, s->n, err);
    if (rc < 0) return rc;
    if (s->info.n_decode == 0) s->decode_disk_begin = wr_os_usage().read_bytes;
    s->tick = (struct wr_tick){start, s->n, s->n + 1, s->n, 1};
    rc = wr_session_pass(s, spec->rows.token, spec->rows.depth, k + 1, true, keep_rows, s, err);
    if (rc == WEIR_E_NONFINITE || rc == WEIR_E_READ) { /* it may be the fault of a row that plain decoding would not have come to */
        if (err != NULL) *err = (weir_err){0};
        if (spec->draft != NULL) wr_tree_line(&spec->rows, 0); /* the price of all that was drafted is not that of the one token known */
        return plain(s, err);
    }
    if (rc != 0) return rc;
    spec->first = s->n;
    spec->n_rows = spec->rows.n = k + 1;
    spec->seconds = wr_session_book(s, k + 1, start) - spec->draft_seconds;
    s->info.n_drafted += k;
    s->had_trees = s->had_trees || spec->is_tree;
    return take_row(s, 0, err);
}

/* The gate hears of the last pass, now that the token behind it is drawn. */
static void report(weir_session *s)
{
    struct wr_spec *spec = &s->spec;
    const bool known = spec->n_rows == 1 && spec->rows.n > 1;
    if (known) {
        wr_gate_report(&spec->gate, spec->match, 1, s->ids[s->n] == spec->rows.token[1], 1, spec->seconds, spec->draft_seconds);
    } else if (spec->n_rows > 1 && spec->is_tree) {
        uint32_t chain = 0;
        while (chain + 1 < spec->n_rows && spec->rows.depth[chain + 1] == chain + 1 && spec->tree.nodes[spec->rows.node[chain + 1]].rank == 0) chain++;
        const uint32_t right = wr_tree_learn(spec), all = spec->rows.depth[spec->at];
        wr_gate_report_tree(&spec->gate, chain, right, all - right, spec->n_asked, spec->n_rows, spec->seconds, spec->draft_seconds);
    } else
        wr_gate_report(&spec->gate, spec->match, spec->n_rows - 1, spec->at, spec->n_rows, spec->seconds, spec->draft_seconds);
    spec->n_rows = 0;
}

void wr_spec_end(weir_session *s) { s->spec.n_rows = 0; }

void wr_spec_saw(weir_session *s, uint32_t n_rows, double seconds)
{
    s->spec.prompt_rows = n_rows;
    s->spec.prompt_seconds = seconds;
    wr_gate_prompt(&s->spec.gate, seconds);
}

#define FIRST_PLAIN 2     /* passes of one token whose mean is taken for one */
#define ROW_OF_PROMPT 2.0 /* a burst's row, with its logits and fewer beside it, costs at most so many of a long pass over the prompt */

/* What bursts take, before any was measured: from the profile, or from a pass over the prompt. */
static void expect(weir_session *s)
{
    struct wr_spec *spec = &s->spec;
    if (spec->expects) return;
    spec->expects = wr_plan_expect(s->engine->plan, spec->draft != NULL ? spec->draft->engine->plan : NULL, (uint32_t)s->n, &spec->gate);
    if (spec->expects || s->n_plain < FIRST_PLAIN || spec->prompt_rows < 2) return;
    const double one = s->plain_seconds / (double)s->n_plain, more = spec->prompt_seconds - one;
    const double row = more < 0 ? 0 : ROW_OF_PROMPT * more / (spec->prompt_rows - 1);
    for (uint32_t rows = 1; rows <= spec->most + 1; rows = WR_GATE_NEXT(rows)) wr_gate_expect(&spec->gate, rows, one + row * (rows - 1));
    spec->expects = true;
}

/* The draft model's proposal: n tokens in a row, or a tree where all of it fits in the tile that the next position lies in. *start is when it began with the
 * last of the session's tokens: what it lacked of those before is prefill the first time, decoding afterwards, and no price of a token. */
static int draft(weir_session *s, const weir_sampling *sampling, uint32_t n, uint32_t most_depth, uint64_t *start, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    const weir_options *o = &s->engine->plan->options;
    const uint32_t left = WR_TILE - 1 - s->n % WR_TILE, depth = left > 0 && left - 1 < most_depth ? left - 1 : most_depth; /* behind this token in the tile */
    const bool first = weir_session_length(spec->draft) == 0;
    int rc = wr_draft_follow(spec->draft, s->ids, s->n, err);
    const uint64_t followed = wr_clock_ns();
    *(first ? &s->info.prefill_seconds : &s->info.decode_seconds) += (double)(followed - *start) * 1e-9;
    *start = followed;
    if (rc != 0) return rc;
    spec->is_tree = s->engine->pass.tree.n_positions > 0 && (o->spec_tree > 0 ? left > 1 : left > n && wr_tree_pays(&spec->belief));
    if (spec->is_tree) {
        const uint32_t room = most_of_tree(o), most = spec->most < room ? spec->most : room;
        rc = wr_tree_propose(s, sampling, most, depth, o->spec_tree > 0 ? 0 : n, err);
    } else {
        rc = wr_draft_propose(spec->draft, sampling, s->ids, s->n + 1, n, err);
        if (rc == 0) memcpy(spec->rows.token + 1, s->ids + s->n + 1, n * sizeof *spec->rows.token);
        wr_tree_line(&spec->rows, n);
    }
    if (rc == 0) s->n_asked += spec->is_tree ? spec->n_asked : n;
    spec->draft_seconds = (double)(wr_clock_ns() - followed) * 1e-9;
    return rc;
}

/* At most k tokens behind the one drawn last, in spec->rows; *n of them are to be verified. Without the draft, should it fail, the answer is the same. */
static int propose(weir_session *s, const weir_sampling *sampling, uint32_t k, uint32_t *n, uint64_t *start, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    const weir_options *o = &s->engine->plan->options;
    const bool fixed = o->spec_k > 0 || o->spec_tree > 0;
    weir_err why = {0};
    spec->match = *n = 0;
    spec->draft_seconds = 0;
    spec->is_tree = false;
    wr_tree_line(&spec->rows, 0);
    spec->rows.token[0] = s->ids[s->n];
    if (spec->draft == NULL) {
        see(s);
        if (k > 0) wr_tree_line(&spec->rows, wr_ngram_propose(spec->ngram, spec->rows.token + 1, k, &spec->match));
        *n = fixed ? spec->rows.n - 1 : wr_gate_choose(&spec->gate, spec->rows.n - 1, spec->match);
        return 0;
    }
    *n = fixed ? k : wr_gate_choose(&spec->gate, k, 0);
    int rc = *n > 0 ? draft(s, sampling, *n, k, start, &why) : 0;
    if (rc == WEIR_E_CANCELLED && err != NULL) *err = why;
    if (rc == 0) *n = spec->rows.n - 1;
    if (rc == 0 || rc == WEIR_E_CANCELLED) return rc;
    wr_log(&s->engine->plan->log, WEIR_LOG_WARN, "--draft: %s; going on without it", why.text);
    wr_tree_line(&spec->rows, 0);
    spec->most = *n = 0;
    return 0;
}

int wr_spec_next(weir_session *s, const weir_sampling *sampling, uint64_t n_left, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    const uint64_t room = s->engine->plan->plan.n_ctx - s->n - 1;
    uint64_t start = wr_clock_ns();
    if (spec->most == 0) return wr_session_advance(s, s->n + 1, err);
    const uint32_t row = spec->n_rows > 1 && s->n == spec->first + spec->rows.depth[spec->at] + 1 ? wr_tree_next(&spec->rows, spec->at, s->ids[s->n]) : 0;
    if (row > 0) {
        s->info.n_accepted++;
        return take_row(s, row, err);
    }
    if (spec->at + 1 < spec->n_rows && spec->rows.depth[spec->at + 1] > spec->rows.depth[spec->at]) s->info.n_refused++;
    if (spec->n_rows > 0) report(s);
    expect(s);
    uint32_t n;
    const uint64_t most = spec->most < room ? spec->most : room;
    int rc = propose(s, sampling, (uint32_t)(most < n_left - 1 ? most : n_left - 1), &n, &start, err);
    if (rc < 0) return rc;
    return n > 0 ? burst(s, n, start, err) : plain(s, err);
}
