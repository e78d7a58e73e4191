/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of proposed tokens: a place may have several, for one pass verifies all of them. The tree grows as generate/draft_tree.h has it, by what the draft
 * model says of the tokens behind each node. To ask it is a pass of its own, so a node is asked only when its first child is expected to be worth more
 * than what is at hand, the pass and the asking paid for; many nodes stay leaves. How often the draft is right is measured, apart for the token that it
 * draws itself (with the random number of the position, so that it is more often right than its probability is large) and for those beside it.
 */
#include <math.h>
#include "engine/engine.h"

#define WIDTH 8          /* tokens that a place may have */
#define MEMORY 64.0      /* places by which a belief is kept */
#define FIRST_VALUES 4.0 /* that the first belief counts for */
#define MOST_SURE 0.99f  /* that any token is */
#define GAIN_RATE 0.125  /* of the moving mean */
#define LEAST_RIGHT 1e-3
#define LEAST_GAIN 1.01 /* of trees that are grown */
#define WAIT 32         /* bursts of lines between attempts where trees gain less */

void wr_tree_believe(struct wr_tree_belief *b)
{
    *b = (struct wr_tree_belief){.first = {FIRST_VALUES, FIRST_VALUES}, .other = {FIRST_VALUES, FIRST_VALUES}, .sure = 0.5, .gain = 2 * LEAST_GAIN};
}

bool wr_tree_pays(struct wr_tree_belief *b)
{
    if (b->gain >= LEAST_GAIN) return true;
    if (b->wait > 0 && --b->wait > 0) return false;
    b->wait = WAIT;
    return true;
}

/* Candidates below the node, as likely as they are believed to be. */
static int ask(weir_session *s, const weir_sampling *sampling, int32_t node, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    struct wr_tree *t = &spec->tree;
    const struct wr_tree_belief *b = &spec->belief;
    const uint32_t depth = node == WR_TREE_ROOT ? 0 : t->nodes[node].depth;
    int32_t tokens[WIDTH];
    float p[WIDTH], others = 0;
    for (int32_t i = node; i != WR_TREE_ROOT; i = t->nodes[i].parent) s->ids[s->n + t->nodes[i].depth] = t->nodes[i].token;
    int n = wr_draft_ask(spec->draft, sampling, s->ids, s->n + 1 + depth, WIDTH, tokens, p, err);
    if (n < 0) return n;
    spec->n_asked++;
    const float rest = 1 - p[0], said = sampling->temp == 0 ? p[0] : 1;
    const float first = fminf(MOST_SURE, (float)(b->first.right / b->first.said) * said), other = (float)(b->other.right / b->other.said);
    for (int i = 1; i < n; i++) others += p[i];
    const float share = others > 0 ? (1 - first) * fminf(1 / others, other / fmaxf(rest, others)) : 0; /* of what the first leaves */
    p[0] = first;
    for (int i = 1; i < n; i++) p[i] *= share;
    wr_tree_offer(t, node, tokens, p, (uint32_t)n);
    return 0;
}

/* The most likely node that was not asked and may be: its index, or WR_TREE_ROOT, which is before all; n_nodes: there is none. */
static int32_t unasked(const struct wr_tree *t, const bool *asked, uint32_t most_depth)
{
    if (!asked[0]) return WR_TREE_ROOT;
    uint32_t best = t->n_nodes;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (!asked[i + 1] && t->nodes[i].depth < most_depth && (best == t->n_nodes || t->nodes[i].path > t->nodes[best].path)) best = i;
    return (int32_t)best;
}

int wr_tree_propose(weir_session *s, const weir_sampling *sampling, uint32_t n_most, uint32_t most_depth, uint32_t line, weir_err *err)
{
    struct wr_spec *spec = &s->spec;
    struct wr_tree *t = &spec->tree;
    double seconds[WR_TREE_MAX + 1];
    bool asked[WR_TREE_MAX + 1] = {false};
    const bool fixed = line == 0;
    const double price = fixed ? 0 : spec->gate.draft_seconds;
    for (uint32_t i = 0; i <= WR_TREE_MAX; i++) seconds[i] = 1;
    wr_tree_init(t, fixed ? n_most : wr_gate_reach(&spec->gate, n_most + 1, seconds) - 1);
    spec->n_asked = 0;
    for (;;) {
        const int32_t node = unasked(t, asked, most_depth);
        const double likely = spec->belief.sure * (node == WR_TREE_ROOT ? 1 : (double)t->nodes[node].path);
        const bool may = node < (int32_t)t->n_nodes && t->n_nodes < t->n_max && (fixed || spec->n_asked < t->n_max);
        if (may && (t->n_candidates == 0 || likely >= (double)t->candidates[0].path) &&
            (fixed || (t->expected + likely) * seconds[t->n_nodes] > t->expected * (seconds[t->n_nodes + 1] + price))) {
            int rc = ask(s, sampling, node, err);
            if (rc < 0) return rc;
            asked[node + 1] = true;
            for (uint32_t i = 0; i <= WR_TREE_MAX; i++) seconds[i] += price;
        } else if (wr_tree_grow(t, seconds) < 0)
            break;
    }
    if (!fixed) {
        const double rate = wr_gate_tokens(&spec->gate, line, 0) / (wr_gate_seconds(&spec->gate, line + 1) + line * price);
        spec->belief.gain += (t->expected / seconds[t->n_nodes] / rate - spec->belief.gain) * GAIN_RATE;
    }
    wr_tree_lay_out(t, s->ids[s->n], &spec->rows);
    return 0;
}

/* One place: whether a token of a kind was right, and what was believed of it. */
static void learn(struct wr_tree_ratio *r, bool right, double believed)
{
    const double said = believed * r->said / r->right;
    r->right += right - r->right / MEMORY;
    r->said += said - r->said / MEMORY;
    if (r->right < LEAST_RIGHT) r->right = LEAST_RIGHT;
}

uint32_t wr_tree_learn(struct wr_spec *spec)
{
    const struct wr_tree_rows *r = &spec->rows;
    const struct wr_tree *t = &spec->tree;
    struct wr_tree_belief *b = &spec->belief;
    uint32_t chain = 0;
    for (uint32_t row = spec->at, below = 0;; below = row, row = wr_tree_above(r, row)) { /* `below` is the row that was right there */
        double first = 0, others = 0;
        for (uint32_t i = row + 1; i < r->n && r->depth[i] > r->depth[row]; i++) {
            if (r->depth[i] != r->depth[row] + 1) continue;
            const struct wr_tree_node *n = &t->nodes[r->node[i]];
            *(n->rank == 0 ? &first : &others) += (double)n->path / (n->parent == WR_TREE_ROOT ? 1 : (double)t->nodes[n->parent].path);
        }
        const bool right = below > 0 && t->nodes[r->node[below]].rank == 0;
        if (first > 0) learn(&b->first, right, first);
        if (first > 0) b->sure += (right - b->sure) / MEMORY;
        if (others > 0) learn(&b->other, below > 0 && !right, others);
        if (row == r->depth[row] && chain == 0) chain = row;
        if (row == 0) return chain;
    }
}
