/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The suffix tree. Leaves are the numbers of the suffixes that are explicit, those that begin before `start`; the others, text[start..n) and shorter, all
 * occurred before. Node ids: inner nodes from 0 (the root), leaves from n_max on. An inner node knows one place where its string begins, so the first token
 * of the edge into it, or any other, is read from the text: a child is found in the table by its parent's id and that token, and a place of the table is
 * only ever filled or redirected, so linear probing without removal does.
 */
#include "generate/ngram.h"

#include <string.h>

#define NONE UINT32_MAX
#define MAX_TOLD 64 /* how many ancestors hear of a new leaf */

struct inner {
    uint32_t parent, depth; /* depth: length of its string */
    uint32_t link;          /* the node of its string without the first token */
    uint32_t begin;         /* where its string begins last, of what it was told */
};

struct wr_ngram {
    uint32_t n, n_max, n_inner, n_places;
    uint32_t start, node; /* the active point: text[start..n), and a node above it or at it */
    bool full;
    uint64_t steps;
    struct inner *inner;   /* [n_max], and the root of an empty text */
    uint32_t *leaf_parent; /* [n_max] */
    uint32_t *table;       /* [n_places] child id or NONE */
    int32_t *text;         /* [n_max] */
};

/* Each leaf and each inner node but the root has one place: at most 2 n_max of these are taken. */
static uint64_t places(uint32_t n_max) { return 3 * (uint64_t)n_max + 1; }

static uint64_t own_bytes(uint32_t n_max)
{
    return sizeof(struct wr_ngram) + ((uint64_t)n_max + 1) * sizeof(struct inner) + (2 * (uint64_t)n_max + places(n_max)) * sizeof(uint32_t);
}

uint64_t wr_ngram_bytes(uint32_t n_max) { return own_bytes(n_max) + WR_MEM_OVERHEAD; }

int wr_ngram_open(struct wr_ngram **out, uint32_t n_max, struct wr_ledger *ledger, enum wr_account account, weir_err *err)
{
    weir_err own;
    if (err == NULL) err = &own;
    if (n_max > (uint32_t)1 << 30) return wr_err(err, WEIR_E_USAGE, "%u tokens: drafts from the text are possible up to 2^30; switch speculation off", n_max);
    struct wr_ngram *g = wr_mem_alloc(ledger, account, own_bytes(n_max), err);
    if (g == NULL) return err->code;
    g->n_max = n_max;
    g->n_places = (uint32_t)places(n_max);
    g->inner = (struct inner *)(g + 1);
    g->leaf_parent = (uint32_t *)(g->inner + n_max + 1);
    g->table = g->leaf_parent + n_max;
    g->text = (int32_t *)(g->table + g->n_places);
    wr_ngram_reset(g);
    *out = g;
    return 0;
}

void wr_ngram_close(struct wr_ngram *g) { wr_mem_free(g); }

void wr_ngram_reset(struct wr_ngram *g)
{
    g->n = g->start = g->node = 0;
    g->n_inner = 1;
    g->full = false;
    g->inner[0] = (struct inner){0};
    memset(g->table, 0xff, g->n_places * sizeof *g->table);
}

uint64_t wr_ngram_steps(const struct wr_ngram *g) { return g->steps; }

static uint32_t parent_of(const struct wr_ngram *g, uint32_t id) { return id < g->n_max ? g->inner[id].parent : g->leaf_parent[id - g->n_max]; }
static uint32_t begin_of(const struct wr_ngram *g, uint32_t id) { return id < g->n_max ? g->inner[id].begin : id - g->n_max; }

/* Where the child of `node` whose edge begins with `token` is in the table, or the free place where it belongs. */
static uint32_t place_of(const struct wr_ngram *g, uint32_t node, int32_t token, uint64_t *steps)
{
    uint64_t hash = ((uint64_t)node << 32 | (uint32_t)token) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    uint32_t place = (uint32_t)((uint32_t)(hash * 0xd6e8feb86659fd93u >> 32) * (uint64_t)g->n_places >> 32);
    for (;; place = place + 1 == g->n_places ? 0 : place + 1) {
        uint32_t child = g->table[place];
        ++*steps;
        if (child == NONE || (parent_of(g, child) == node && g->text[begin_of(g, child) + g->inner[node].depth] == token)) return place;
    }
}

/* Goes down from *node along text[start..end) as far as nodes go. Returns the place of the child whose edge the rest of it, *over tokens, ends in; with no
 * rest, NONE. */
static uint32_t descend(const struct wr_ngram *g, uint32_t end, uint32_t *node, uint32_t *over, uint64_t *steps)
{
    for (;;) {
        uint32_t depth = g->inner[*node].depth;
        *over = end - g->start - depth;
        if (*over == 0) return NONE;
        uint32_t place = place_of(g, *node, g->text[g->start + depth], steps), child = g->table[place];
        if (child >= g->n_max || g->inner[child].depth - depth > *over) return place;
        *node = child;
    }
}

/* The suffix that begins at `start` becomes a leaf below `node`, by the free `place`. */
static void add_leaf(struct wr_ngram *g, uint32_t node, uint32_t place)
{
    g->table[place] = g->n_max + g->start;
    g->leaf_parent[g->start] = node;
    for (int told = 0; told < MAX_TOLD && node != 0; told++, node = g->inner[node].parent) {
        g->inner[node].begin = g->start;
        g->steps++;
    }
}

void wr_ngram_put(struct wr_ngram *g, int32_t id)
{
    if (g->n == g->n_max) g->full = true;
    if (g->full) return;
    uint32_t end = g->n++, unlinked = NONE; /* an inner node that was made for the suffix before */
    g->text[end] = id;
    while (g->start <= end) {
        uint32_t over, place = descend(g, end, &g->node, &over, &g->steps), leaf_of = g->node;
        if (place == NONE) {
            place = place_of(g, g->node, id, &g->steps);
            if (unlinked != NONE) g->inner[unlinked].link = g->node;
            unlinked = NONE;
            if (g->table[place] != NONE) return;
        } else {
            uint32_t child = g->table[place], begin = begin_of(g, child), depth = g->inner[g->node].depth + over;
            int32_t next = g->text[begin + depth];
            if (next == id) return; /* nothing is unlinked here: two tokens follow the string of what was made before, so they follow this one, in a node */
            leaf_of = g->n_inner++;
            g->inner[leaf_of] = (struct inner){.parent = g->node, .depth = depth, .begin = begin};
            g->table[place] = leaf_of;
            if (unlinked != NONE) g->inner[unlinked].link = leaf_of;
            unlinked = leaf_of;
            if (child < g->n_max)
                g->inner[child].parent = leaf_of;
            else
                g->leaf_parent[child - g->n_max] = leaf_of;
            g->table[place_of(g, leaf_of, next, &g->steps)] = child;
            place = place_of(g, leaf_of, id, &g->steps);
        }
        add_leaf(g, leaf_of, place);
        g->start++;
        g->node = g->inner[g->node].link; /* the root's is the root */
    }
}

uint32_t wr_ngram_propose(const struct wr_ngram *g, int32_t *ids, uint32_t k, uint32_t *match_length)
{
    uint32_t node = g->node, over;
    uint64_t steps = 0;
    *match_length = g->full ? 0 : g->n - g->start;
    if (*match_length == 0) return 0;
    uint32_t place = descend(g, g->n, &node, &over, &steps), next = begin_of(g, place == NONE ? node : g->table[place]) + *match_length;
    for (uint32_t i = 0; i < k; i++) ids[i] = next + i < g->n ? g->text[next + i] : ids[next + i - g->n];
    return k;
}
