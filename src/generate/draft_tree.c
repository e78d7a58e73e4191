/* SPDX-License-Identifier: Apache-2.0 */
/* Draft trees. The candidates are kept sorted, at most as many as there is room for nodes: those that fall off could only have come after all of them. */
#include "generate/draft_tree.h"

#include <string.h>

void wr_tree_init(struct wr_tree *t, uint32_t n_max)
{
    t->n_nodes = t->n_candidates = 0;
    t->n_max = n_max < WR_TREE_MAX ? n_max : WR_TREE_MAX;
    t->expected = 1;
}

void wr_tree_offer(struct wr_tree *t, int32_t parent, const int32_t *tokens, const float *probabilities, uint32_t n)
{
    const struct wr_tree_node *above = parent == WR_TREE_ROOT ? NULL : &t->nodes[parent];
    const uint32_t room = t->n_max - t->n_nodes;
    for (uint32_t i = 0; i < n; i++) {
        struct wr_tree_node c = {parent, tokens[i], above == NULL ? 1 : above->depth + 1, i, probabilities[i] * (above == NULL ? 1 : above->path)};
        uint32_t at = t->n_candidates;
        while (at > 0 && t->candidates[at - 1].path < c.path) at--;
        if (at >= room) continue;
        uint32_t kept = t->n_candidates < room ? t->n_candidates : room - 1;
        memmove(&t->candidates[at + 1], &t->candidates[at], (kept - at) * sizeof c);
        t->candidates[at] = c;
        t->n_candidates = kept + 1;
    }
}

int32_t wr_tree_grow(struct wr_tree *t, const double *seconds)
{
    if (t->n_candidates == 0 || t->n_nodes == t->n_max) return -1;
    double grown = t->expected + t->candidates[0].path;
    if (grown * seconds[t->n_nodes] <= t->expected * seconds[t->n_nodes + 1]) return -1;
    t->expected = grown;
    t->nodes[t->n_nodes] = t->candidates[0];
    t->n_candidates--;
    memmove(&t->candidates[0], &t->candidates[1], t->n_candidates * sizeof t->candidates[0]);
    return (int32_t)t->n_nodes++;
}

/* The children of `parent`, whose index is below `from`, and all below them. */
static void lay_out(const struct wr_tree *t, int32_t parent, uint32_t from, struct wr_tree_rows *r)
{
    for (uint32_t least = 0;;) {
        int32_t child = -1;
        for (uint32_t i = from; i < t->n_nodes; i++) {
            const struct wr_tree_node *n = &t->nodes[i];
            if (n->parent == parent && n->rank >= least && (child < 0 || n->rank < t->nodes[child].rank)) child = (int32_t)i;
        }
        if (child < 0) return;
        least = t->nodes[child].rank + 1;
        r->node[r->n] = child;
        r->token[r->n] = t->nodes[child].token;
        r->depth[r->n++] = t->nodes[child].depth;
        lay_out(t, child, (uint32_t)child + 1, r);
    }
}

void wr_tree_lay_out(const struct wr_tree *t, int32_t root_token, struct wr_tree_rows *r)
{
    r->n = 1;
    r->node[0] = WR_TREE_ROOT;
    r->token[0] = root_token;
    r->depth[0] = 0;
    lay_out(t, WR_TREE_ROOT, 0, r);
}

void wr_tree_line(struct wr_tree_rows *r, uint32_t k)
{
    r->n = k + 1;
    for (uint32_t i = 0; i <= k; i++) {
        r->node[i] = (int32_t)i - 1;
        r->depth[i] = i;
    }
}

uint32_t wr_tree_above(const struct wr_tree_rows *r, uint32_t row)
{
    uint32_t i = row;
    while (r->depth[i] >= r->depth[row]) i--;
    return i;
}

uint32_t wr_tree_next(const struct wr_tree_rows *r, uint32_t row, int32_t token)
{
    for (uint32_t i = row + 1; i < r->n && r->depth[i] > r->depth[row]; i++)
        if (r->depth[i] == r->depth[row] + 1 && r->token[i] == token) return i;
    return 0;
}
