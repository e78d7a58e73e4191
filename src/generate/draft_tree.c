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
        struct wr_tree_node c = {parent, tokens[i], above == NULL ? 1 : above->depth + 1, probabilities[i] * (above == NULL ? 1 : above->path)};
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

int32_t wr_tree_child(const struct wr_tree *t, int32_t parent, int32_t token)
{
    for (uint32_t i = (uint32_t)(parent + 1); i < t->n_nodes; i++)
        if (t->nodes[i].parent == parent && t->nodes[i].token == token) return (int32_t)i;
    return -1;
}
