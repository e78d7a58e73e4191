/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draft trees against exhaustive search: of all trees of a small draft model, by trying every set of nodes that holds its nodes' parents, the one with the
 * most expected tokens per second.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "generate/draft_tree.h"

#define WIDTH 3 /* children of a node */
#define ALL 13  /* the root, 3 children, 9 grandchildren */

static uint64_t state;

static double draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

/* A model: chances of the children of place p, which are the places 3 p + 1 .. 3 p + 3. */
static float chance[ALL];

static void make_model(void)
{
    for (uint32_t p = 0; p < ALL; p += WIDTH) {
        double sum = draw(), part[WIDTH]; /* the rest is for tokens that the model does not name */
        for (uint32_t i = 0; i < WIDTH; i++) sum += part[i] = pow(draw(), 3);
        for (uint32_t i = 0; i < WIDTH; i++) chance[(p + 1 + i) % ALL] = (float)(part[i] / sum);
    }
    for (uint32_t p = 1; p < ALL; p++)
        if (draw() < 0.1) chance[p] = 0;
}

static double path_of(uint32_t place) { return place == 0 ? 1 : (double)chance[place] * path_of((place - 1) / WIDTH); }

/* seconds[n]: of a pass with n nodes beside the root */
static double best_of_all(const double *seconds, uint32_t n_max)
{
    double best = 0;
    for (uint32_t set = 0; set < 1u << (ALL - 1); set++) {
        double expected = 1;
        bool whole = true;
        uint32_t n = 0;
        for (uint32_t place = 1; place < ALL; place++) {
            if (!(set >> (place - 1) & 1)) continue;
            uint32_t parent = (place - 1) / WIDTH;
            whole = whole && (parent == 0 || (set >> (parent - 1) & 1));
            expected += path_of(place);
            n++;
        }
        if (whole && n <= n_max && expected / seconds[n] > best) best = expected / seconds[n];
    }
    return best;
}

/* Every node is a row, below the row of its parent, with its token; branches come one after the other, of a place's children those offered first. */
static void check_rows(const struct wr_tree *tree, const uint32_t *place_of_node)
{
    struct wr_tree_rows rows;
    bool seen[WR_TREE_MAX] = {false};
    wr_tree_lay_out(tree, 77, &rows);
    assert_true(rows.n == tree->n_nodes + 1 && rows.node[0] == WR_TREE_ROOT && rows.token[0] == 77 && rows.depth[0] == 0);
    for (uint32_t row = 1; row < rows.n; row++) {
        const struct wr_tree_node *n = &tree->nodes[rows.node[row]];
        const uint32_t above = wr_tree_above(&rows, row);
        assert_true(!seen[rows.node[row]] && rows.token[row] == n->token && rows.depth[row] == n->depth);
        assert_true(rows.node[above] == n->parent && above < row && rows.depth[row] <= rows.depth[row - 1] + 1);
        assert_int_equal(wr_tree_next(&rows, above, n->token), row);
        for (uint32_t before = above + 1; before < row; before++)
            if (rows.depth[before] == rows.depth[row]) assert_true(tree->nodes[rows.node[before]].rank < n->rank);
        seen[rows.node[row]] = true;
    }
    for (uint32_t row = 0; row < rows.n; row++) /* a token that is not below it, but may be elsewhere */
        for (uint32_t place = 1; place < ALL + 1; place++) {
            bool is = false;
            for (uint32_t i = 0; i < tree->n_nodes; i++) is = is || (tree->nodes[i].parent == rows.node[row] && place_of_node[i] == place);
            assert_int_equal(wr_tree_next(&rows, row, (int32_t)place) > 0, is);
        }
}

/* Tokens in a row: each below the one before it. */
static void test_line(void **unused)
{
    (void)unused;
    struct wr_tree_rows rows = {.token = {5, 6, 7, 6}};
    wr_tree_line(&rows, 3);
    assert_true(rows.n == 4 && rows.depth[0] == 0 && rows.depth[3] == 3);
    assert_true(wr_tree_next(&rows, 0, 6) == 1 && wr_tree_next(&rows, 1, 7) == 2 && wr_tree_next(&rows, 2, 6) == 3);
    assert_true(wr_tree_next(&rows, 0, 7) == 0 && wr_tree_next(&rows, 1, 6) == 0 && wr_tree_next(&rows, 3, 6) == 0);
    wr_tree_line(&rows, 0);
    assert_true(rows.n == 1 && wr_tree_next(&rows, 0, 6) == 0);
}

static void test_exhaustive(void **unused)
{
    (void)unused;
    for (uint32_t round = 0; round < 300; round++) {
        double seconds[WR_TREE_MAX + 1], disk = 1 + 5 * draw(), row = draw(), steeper = draw() < 0.5 ? 0 : draw() * 0.2; /* convex in the rows */
        uint32_t n_max = round % 4 == 0 ? (uint32_t)(draw() * ALL) : ALL;
        for (uint32_t n = 0; n <= WR_TREE_MAX; n++) seconds[n] = fmax(disk, (n + 1) * row + steeper * n * n);
        make_model();
        struct wr_tree tree;
        uint32_t place_of_node[WR_TREE_MAX], place = 0;
        wr_tree_init(&tree, n_max);
        int32_t node = WR_TREE_ROOT;
        do { /* a token is its place, offered from the last to the first */
            int32_t tokens[WIDTH];
            float p[WIDTH];
            for (uint32_t i = 0; i < WIDTH; i++) {
                tokens[i] = (int32_t)(WIDTH * place + WIDTH - i);
                p[i] = tokens[i] < ALL ? chance[tokens[i]] : 0;
            }
            if (WIDTH * place + 1 < ALL) wr_tree_offer(&tree, node, tokens, p, WIDTH);
            node = wr_tree_grow(&tree, seconds);
            if (node >= 0) place_of_node[node] = place = (uint32_t)tree.nodes[node].token;
        } while (node >= 0);
        double expected = 1, last = 1;
        for (uint32_t i = 0; i < tree.n_nodes; i++) {
            const struct wr_tree_node *n = &tree.nodes[i];
            assert_true(n->parent < (int32_t)i && n->path <= last);
            assert_int_equal((place_of_node[i] - 1) / WIDTH, n->parent < 0 ? 0 : place_of_node[n->parent]);
            assert_int_equal(n->depth, n->parent < 0 ? 1 : tree.nodes[n->parent].depth + 1);
            assert_true(fabs(n->path - path_of(place_of_node[i])) < 1e-6);
            last = n->path;
            expected += path_of(place_of_node[i]);
        }
        assert_true(tree.n_nodes <= n_max && fabs(tree.expected - expected) < 1e-5);
        check_rows(&tree, place_of_node);
        double rate = expected / seconds[tree.n_nodes], best = best_of_all(seconds, n_max);
        if (rate < best * (1 - 1e-6)) fail_msg("round %u: %u nodes, %.6f tokens a second, possible are %.6f", round, tree.n_nodes, rate, best);
    }
}

/* Far more candidates than nodes: the best are kept, whatever the order in which they are offered; equals in the order of being offered. */
static void test_bounded(void **unused)
{
    (void)unused;
    static const double flat[WR_TREE_MAX + 1] = {[0 ... WR_TREE_MAX] = 1};
    struct wr_tree tree;
    wr_tree_init(&tree, 1000);
    assert_int_equal(tree.n_max, WR_TREE_MAX);
    for (int32_t i = 0; i < 5000; i++) {
        int32_t token = i * 1237 % 5000; /* a permutation */
        float p = (float)token / 5000;
        wr_tree_offer(&tree, WR_TREE_ROOT, &token, &p, 1);
    }
    for (int32_t i = 0; i < WR_TREE_MAX; i++) {
        assert_int_equal(wr_tree_grow(&tree, flat), i);
        assert_int_equal(tree.nodes[i].token, 4999 - i);
    }
    assert_int_equal(wr_tree_grow(&tree, flat), -1);
    wr_tree_init(&tree, 3);
    const int32_t tokens[] = {7, 8, 9, 10};
    const float same[] = {0.25f, 0.25f, 0.25f, 0.25f};
    wr_tree_offer(&tree, WR_TREE_ROOT, tokens, same, 4);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(wr_tree_grow(&tree, flat), i);
        assert_int_equal(tree.nodes[i].token, 7 + i);
    }
    wr_tree_offer(&tree, 0, tokens, same, 4);
    assert_int_equal(wr_tree_grow(&tree, flat), -1);
    wr_tree_init(&tree, 0);
    wr_tree_offer(&tree, WR_TREE_ROOT, tokens, same, 4);
    assert_int_equal(wr_tree_grow(&tree, flat), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exhaustive), cmocka_unit_test(test_line), cmocka_unit_test(test_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
