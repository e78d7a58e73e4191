/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree of drafted tokens. Expected tokens of the pass that verifies it are 1 + the sum over its nodes of their path probability, the product of the draft
 * model's probabilities from the root. A child's is at most its parent's, so taking candidates in descending order of path probability gives, for every
 * number of nodes, the tree with the largest sum (SpecExec, Svirschevski et al. 2024; OPT-Tree, Wang et al. 2024). It grows while expected
 * tokens per second do; where the time of a pass is convex in its rows, that is the best of all trees.
 * No allocation: the caller keeps it where it wants. Nodes are in the order in which they were taken, so a parent comes before its children.
 */
#ifndef WR_GENERATE_DRAFT_TREE_H
#define WR_GENERATE_DRAFT_TREE_H

#include <stdint.h>

#define WR_TREE_MAX 64  /* nodes */
#define WR_TREE_ROOT -1 /* as a parent: the token that is already decided */

struct wr_tree_node {
    int32_t parent; /* an index below its own, or WR_TREE_ROOT */
    int32_t token;
    uint32_t depth; /* 1 for a child of the root */
    float path;     /* probability of the path from the root */
};

struct wr_tree {
    uint32_t n_nodes, n_candidates, n_max;
    double expected; /* tokens of the pass: 1 + sum of paths */
    struct wr_tree_node nodes[WR_TREE_MAX];
    struct wr_tree_node candidates[WR_TREE_MAX]; /* not taken yet; descending by path, those offered first ahead of their equals */
};

void wr_tree_init(struct wr_tree *, uint32_t n_max); /* n_max: 0..WR_TREE_MAX nodes at most */
/* Candidates below `parent` (a node's index or WR_TREE_ROOT): n tokens, each once, and the draft model's probabilities of them, 0..1. In any order. Those
 * that cannot become nodes any more are dropped. */
void wr_tree_offer(struct wr_tree *, int32_t parent, const int32_t *tokens, const float *probabilities, uint32_t n);
/* Takes the best candidate if expected tokens per second grow: seconds[rows - 1] of a pass of 1..n_max + 1 rows, drafting included. The index of the new
 * node, whose children the caller may then offer, or -1: the tree is complete. */
int32_t wr_tree_grow(struct wr_tree *, const double *seconds);
/* The child of `parent` that holds the token, or -1: how a verified pass is walked. */
int32_t wr_tree_child(const struct wr_tree *, int32_t parent, int32_t token);

#endif
