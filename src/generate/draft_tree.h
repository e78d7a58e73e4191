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
    uint32_t rank;  /* among those offered with it; 0: the first */
    float path;     /* probability of the path from the root */
};

struct wr_tree {
    uint32_t n_nodes, n_candidates, n_max;
    double expected; /* tokens of the pass: 1 + sum of paths */
    struct wr_tree_node nodes[WR_TREE_MAX];
    struct wr_tree_node candidates[WR_TREE_MAX]; /* not taken yet; descending by path, those offered first ahead of their equals */
};

void wr_tree_init(struct wr_tree *, uint32_t n_max); /* n_max: 0..WR_TREE_MAX nodes at most */
/* Candidates below `parent` (a node's index or WR_TREE_ROOT): n tokens, each once, and the draft model's probabilities of them, 0..1. In any order; they are
 * all that there are of the parent. Those that cannot become nodes any more are dropped. */
void wr_tree_offer(struct wr_tree *, int32_t parent, const int32_t *tokens, const float *probabilities, uint32_t n);
/* Takes the best candidate if expected tokens per second grow: seconds[rows - 1] of a pass of 1..n_max + 1 rows, drafting included. The index of the new
 * node, whose children the caller may then offer, or -1: the tree is complete. */
int32_t wr_tree_grow(struct wr_tree *, const double *seconds);

/* The rows of the pass, row 0 the root's: a branch in order, then the next one, which begins below a row that was there. */
struct wr_tree_rows {
    uint32_t n;
    int32_t node[1 + WR_TREE_MAX], token[1 + WR_TREE_MAX]; /* node[0] is WR_TREE_ROOT */
    uint32_t depth[1 + WR_TREE_MAX];
};
/* A node's children by their rank, so that rows 1, 2, ... are a chain from the root, of those offered first as far as they are nodes. */
void wr_tree_lay_out(const struct wr_tree *, int32_t root_token, struct wr_tree_rows *);
/* k tokens behind token[0], each below the one before it: rows 1 to k. */
void wr_tree_line(struct wr_tree_rows *, uint32_t k);
/* The row above `row`, which is not the root. */
uint32_t wr_tree_above(const struct wr_tree_rows *, uint32_t row);
/* The row below `row` that holds the token, or 0: how a verified pass is walked. */
uint32_t wr_tree_next(const struct wr_tree_rows *, uint32_t row, int32_t token);

#endif
