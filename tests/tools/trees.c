/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trees MODEL SEED TREES [NAME=VALUE]...: passes over trees of random shapes and tokens beside plain passes over each row's path, by another engine, with all in
 * memory: logits of the same bits, or exit code 1. After a tree one of its paths is kept, and what follows goes on from there: the next tree, or,
 * where a tile ends, a plain pass into the next tile. NAME=VALUE are options of the library, for the engine with the trees. A line of JSON says how much was compared.
 * The first tree has one shape for every seed: behind its 32 rows that see the tile before with a window of 16, the last row sees none of it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"

#define MOST_ROWS (WR_SPEC_MOST + 1)

static uint64_t state;

static uint32_t draw(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) * n >> 31);
}

static void check(int rc, const char *what, const weir_err *err)
{
    if (rc == 0) return;
    fprintf(stderr, "trees: %s: %s\n", what, err->text);
    exit(1);
}

static weir_session *open_session(const char *model, const weir_options *options)
{
    weir_err err = {0};
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    check(weir_plan_open(&plan, model, options, &err), "plan", &err);
    check(weir_engine_open(&engine, plan, &err), "open", &err);
    check(weir_session_open(&session, engine, &err), "session", &err);
    return session;
}

static void close_session(weir_session *s)
{
    weir_engine *engine = s->engine;
    weir_session_close(s);
    weir_engine_close(engine);
}

static float *logits;
static uint32_t n_vocab, n_wanted;
static uint32_t wanted[MOST_ROWS];

static int keep(void *user, uint32_t word, uint32_t n_words, uint32_t n_rows, const float *tile)
{
    (void)user;
    for (uint32_t i = 0; i < n_rows; i++) memcpy(logits + (size_t)wanted[i] * n_vocab + word, tile + (size_t)i * n_words, n_words * sizeof *tile);
    return 0;
}

/* Evaluated without a tree, the same tokens give the same bits. */
static void compare(weir_session *plain, const int32_t *ids, size_t n, const float *found, const char *what)
{
    weir_err err = {0};
    check(weir_session_set(plain, ids, n, &err), "plain", &err);
    if (memcmp(weir_session_logits(plain), found, n_vocab * sizeof *found) == 0) return;
    fprintf(stderr, "trees: %s at position %zu: other bits than in a plain pass\n", what, n - 1);
    exit(1);
}

int main(int argc, char **argv)
{
    weir_err err = {0};
    weir_options options, simple;
    if (argc < 4) return fprintf(stderr, "trees MODEL SEED TREES [NAME=VALUE]...\n"), 2;
    const uint32_t n_trees = (uint32_t)atoi(argv[3]);
    state = strtoull(argv[2], NULL, 10);
    weir_options_init(&options);
    snprintf(options.draft, sizeof options.draft, "%s", argv[1]); /* so that there is room for a tree */
    options.spec_tree = WR_SPEC_MOST;
    options.n_ctx = 2048;
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value == NULL) return fprintf(stderr, "trees: '%s' is not NAME=VALUE\n", argv[i]), 2;
        *value++ = '\0';
        check(weir_options_set(&options, argv[i], value, &err), argv[i], &err);
    }
    simple = options;
    simple.memory_bytes = UINT64_C(4) << 30;
    simple.draft[0] = '\0';
    simple.spec_tree = 0;
    simple.spec = WEIR_SPEC_OFF;
    simple.n_threads = 1;
    simple.pin_bytes = simple.ring_bytes = simple.extent_bytes = WEIR_AUTO;
    weir_session *s = open_session(argv[1], &options), *plain = open_session(argv[1], &simple);
    struct wr_pass *pass = &s->engine->pass;
    n_vocab = s->engine->plan->model.hp.n_vocab;
    logits = malloc((size_t)MOST_ROWS * n_vocab * sizeof *logits);
    int32_t ids[2048];
    size_t n = WR_TILE + 13;
    uint64_t n_rows = 0, n_branches = 0, n_off_chain = 0;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)draw(n_vocab);
    check(weir_session_set(s, ids, n, &err), "prompt", &err);
    for (uint32_t t = 0; t < n_trees && n + 2 * MOST_ROWS < options.n_ctx; t++) {
        struct wr_pass_row rows[MOST_ROWS];
        if (t == 1) { /* anywhere */
            n = 1 + draw(700);
            for (size_t i = 0; i < n; i++) ids[i] = (int32_t)draw(n_vocab);
            check(weir_session_set(s, ids, n, &err), "another prompt", &err);
        }
        const uint32_t room = WR_TILE - 1 - n % WR_TILE;                                           /* positions: the last of a tile is not one */
        const uint32_t m = t == 0 ? 33 : 1 + draw(draw(2) ? 8 : MOST_ROWS), deepest = 1 + draw(m); /* flat ones and deep ones */
        if (room < 2) {                                                                            /* over the end of the tile */
            for (uint32_t i = 0; i < 3; i++) ids[n++] = (int32_t)draw(n_vocab);
            check(weir_session_set(s, ids, n, &err), "across", &err);
            compare(plain, ids, n, weir_session_logits(s), "a plain pass");
            continue;
        }
        n_wanted = 0;
        for (uint32_t i = 0; i < m; i++) {
            uint32_t most = i == 0 ? 0 : rows[i - 1].position - (uint32_t)n + 1;
            if (most > deepest) most = deepest;
            if (most > room - 1) most = room - 1;
            uint32_t depth = i == 0 ? 0 : draw(2) ? most : 1 + draw(most); /* half of them go on with a branch */
            if (t == 0) depth = i == 0 ? 0 : i < m - 1 ? 1 : 2;
            rows[i] = (struct wr_pass_row){.position = (uint32_t)n + depth, .token = (int32_t)draw(n_vocab), .logits = t == 0 || i == 0 || draw(4) > 0};
            if (rows[i].logits) wanted[n_wanted++] = i;
            n_branches += i > 0 && rows[i].position <= rows[i - 1].position;
        }
        check(wr_pass_run(pass, rows, m, keep, NULL, &err), "tree", &err);
        const uint32_t kept = draw(m);
        size_t n_kept = 0;
        uint32_t path[MOST_ROWS];
        int32_t kept_ids[MOST_ROWS];
        for (uint32_t i = 0; i < m; i++) {
            const size_t depth = rows[i].position - n;
            path[depth] = i;
            ids[rows[i].position] = rows[i].token;
            if (i == kept) {
                n_kept = depth + 1;
                memcpy(kept_ids, ids + n, n_kept * sizeof *ids);
                for (size_t d = 0; d <= depth; d++) wr_pass_keep_row(pass, path[d], (uint32_t)(n + d));
                n_off_chain += kept != depth;
            }
            if (!rows[i].logits) continue;
            compare(plain, ids, rows[i].position + 1, logits + (size_t)i * n_vocab, "a row of a tree");
            n_rows++;
        }
        memcpy(ids + n, kept_ids, n_kept * sizeof *ids);
        memcpy(s->ids + n, kept_ids, n_kept * sizeof *ids);
        n += n_kept;
        s->n = n;
        if (draw(4) == 0 && n % WR_TILE < WR_TILE - 1) { /* what was kept is what a plain pass would have stored */
            ids[n++] = (int32_t)draw(n_vocab);
            check(weir_session_set(s, ids, n, &err), "next", &err);
            compare(plain, ids, n, weir_session_logits(s), "what follows a tree");
        }
    }
    /* Rows that are no tree, or leave the tile, are refused, and nothing is lost. */
    while (n % WR_TILE != WR_TILE - 3) ids[n++] = (int32_t)draw(n_vocab);
    check(weir_session_set(s, ids, n, &err), "end", &err);
    static const uint32_t wrong[][4] = {{0, 1, 1, 2}, {0, 1, 3, 1}, {0, 1, 0, 1}, {0, 2, 3, 4}, {0, 1, 1, 0}}; /* the last one with another sequence */
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        struct wr_pass_row rows[4];
        for (uint32_t i = 0; i < 4; i++) rows[i] = (struct wr_pass_row){.position = (uint32_t)n + wrong[w][i], .token = 1, .sequence = w == 4 && i == 3};
        if (wr_pass_run(pass, rows, 4, NULL, NULL, &err) != WEIR_E_FAIL) return fprintf(stderr, "trees: wrong rows %zu were run\n", w), 1;
    }
    ids[n++] = (int32_t)draw(n_vocab);
    check(weir_session_set(s, ids, n, &err), "after what was refused", &err);
    compare(plain, ids, n, weir_session_logits(s), "what follows a refused tree");
    const weir_io_info io = weir_engine_io(s->engine);
    printf("{\"rows\": %" PRIu64 ", \"branches\": %" PRIu64 ", \"off_chain\": %" PRIu64 ", \"positions\": %zu, \"read_kv\": %" PRIu64
           ", \"read_weights\": %" PRIu64 ", \"peak\": %" PRIu64 ", \"reserved\": %" PRIu64 "}\n",
        n_rows, n_branches, n_off_chain, n, io.bytes_read_kv, io.bytes_read_weights, wr_ledger_peak(&s->engine->plan->ledger, WR_ACCOUNT_DRAFT),
        s->engine->plan->plan.account[WR_ACCOUNT_DRAFT]);
    close_session(s);
    close_session(plain);
    free(logits);
    return 0;
}
