/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafts from the text against a search that compares every pair of places: the length of the longest suffix that occurred before, what followed its
 * last occurrence, over texts that repeat themselves in many ways; steps and bytes against their bounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "generate/ngram.h"

#define ACCOUNT WR_ACCOUNT_TEXT
#define MOST 160

static struct wr_ledger ledger;
static uint64_t state;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

static struct wr_ngram *open_for(uint32_t n_max)
{
    struct wr_ngram *g = NULL;
    assert_int_equal(wr_ngram_open(&g, n_max, &ledger, ACCOUNT, NULL), 0);
    return g;
}

/* Length of what text[0..n) and text[0..end) end with in common. */
static uint32_t common(const int32_t *text, uint32_t n, uint32_t end)
{
    uint32_t length = 0;
    while (length < end && text[n - 1 - length] == text[end - 1 - length]) length++;
    return length;
}

/* exact: the last occurrence; otherwise any. */
static void check(const struct wr_ngram *g, const int32_t *text, uint32_t n, uint32_t k, bool exact)
{
    int32_t ids[MOST + 1];
    uint32_t longest = 0, length = 77, n_ids = wr_ngram_propose(g, ids, k, &length);
    for (uint32_t end = 1; end < n; end++) {
        uint32_t here = common(text, n, end);
        if (here > longest) longest = here;
    }
    if (length != longest) fail_msg("%u tokens: the suffix has %u, expected %u", n, length, longest);
    assert_int_equal(n_ids, longest > 0 ? k : 0);
    if (n_ids == 0) return;
    for (uint32_t end = n - 1; end > 0; end--) {
        if (common(text, n, end) < longest) continue;
        uint32_t same = 0; /* beyond the end of the text, text[i] is text[i - (n - end)]: the period */
        while (same < k && ids[same] == (end + same < n ? text[end + same] : ids[end + same - n])) same++;
        if (same == k) return;
        if (exact) fail_msg("%u tokens, suffix of %u: what is proposed does not follow its last occurrence, which ends at %u", n, longest, end);
    }
    fail_msg("%u tokens, suffix of %u: what is proposed follows no occurrence", n, longest);
}

/* Random tokens, runs, and copies of what is there, with now and then a changed token. */
static uint32_t make_text(int32_t *text, uint32_t n, uint32_t alphabet, uint32_t copies)
{
    uint32_t at = 0;
    while (at < n) {
        if (at > 0 && below(100) < copies) {
            for (uint32_t from = below(at), length = 1 + below(40); length > 0 && at < n; length--) text[at++] = text[from++];
        } else
            text[at++] = (int32_t)below(alphabet);
    }
    return n;
}

static void test_search(void **unused)
{
    (void)unused;
    static const uint32_t alphabets[] = {1, 2, 3, 5, 20, 1000, 262144};
    int32_t text[MOST];
    for (uint32_t i = 0; i < 10000; i++) {
        state = i;
        uint32_t n = make_text(text, 1 + below(i % 10 == 0 ? MOST : 60), alphabets[i % 7], below(4) * 10);
        struct wr_ngram *g = open_for(n + below(2) * below(100));
        for (uint32_t k = 0; k < n; k++) {
            wr_ngram_put(g, text[k]);
            if (i % 10 != 0 || k % 8 == 0 || k + 1 == n) check(g, text, k + 1, below(5) == 0 ? below(MOST) : 3, true);
        }
        wr_ngram_close(g);
    }
    assert_int_equal(wr_ledger_used(&ledger, ACCOUNT), 0);
}

/* More nested suffixes than are told of a new occurrence: the length stays exact, the place is that of some occurrence. */
static void test_nested(void **unused)
{
    (void)unused;
    int32_t *text = calloc(1200, sizeof *text);
    struct wr_ngram *g = open_for(1200);
    for (uint32_t n = 0; n < 1200; n++) {
        text[n] = n % 300 == 299 || n % 170 == 169 ? (int32_t)(n / 100) : -1; /* long runs: a node for every length */
        wr_ngram_put(g, text[n]);
        check(g, text, n + 1, 5, false);
    }
    wr_ngram_close(g);
    free(text);
}

static void test_reset_and_full(void **unused)
{
    (void)unused;
    int32_t text[MOST], ids[4];
    uint32_t length;
    struct wr_ngram *g = open_for(50);
    for (uint32_t round = 0; round < 20; round++) {
        state = round;
        make_text(text, 50, 3, 20);
        for (uint32_t n = 0; n < 50; n++) {
            wr_ngram_put(g, text[n]);
            check(g, text, n + 1, 4, true);
        }
        wr_ngram_put(g, 1);
        assert_int_equal(wr_ngram_propose(g, ids, 4, &length), 0);
        assert_int_equal(length, 0);
        wr_ngram_reset(g);
        assert_int_equal(wr_ngram_propose(g, ids, 4, &length), 0);
    }
    wr_ngram_close(g);
    g = open_for(0);
    wr_ngram_put(g, 1);
    assert_int_equal(wr_ngram_propose(g, ids, 4, &length), 0);
    wr_ngram_close(g);
}

static void test_bytes(void **unused)
{
    (void)unused;
    for (uint32_t n = 0; n < 5000; n = n * 3 + 1) {
        struct wr_ngram *g = open_for(n);
        assert_int_equal(wr_ledger_used(&ledger, ACCOUNT), wr_ngram_bytes(n));
        wr_ngram_close(g);
        assert_int_equal(wr_ngram_bytes(n + 1) - wr_ngram_bytes(n), 36);
    }
    weir_err err;
    struct wr_ngram *g = NULL;
    assert_int_equal(wr_ngram_open(&g, UINT32_MAX, &ledger, ACCOUNT, &err), WEIR_E_USAGE);
    struct wr_ledger small;
    wr_ledger_init(&small);
    wr_ledger_limit(&small, ACCOUNT, wr_ngram_bytes(1000) - 1);
    assert_int_equal(wr_ngram_open(&g, 1000, &small, ACCOUNT, &err), WEIR_E_BUDGET);
    wr_fault_set(WR_FAULT_ALLOC, 1, false);
    assert_int_equal(wr_ngram_open(&g, 1000, &ledger, ACCOUNT, &err), WEIR_E_NOMEM);
    wr_fault_set(WR_FAULT_ALLOC, 0, false);
    assert_null(g);
    assert_int_equal(wr_ledger_used(&ledger, ACCOUNT), 0);
}

enum { RANDOM_2, RANDOM_262144, COPIES, RUN, RUNS, FIBONACCI, THUE_MORSE, SAME_BLOCKS, N_KINDS };

static void fill(int32_t *text, uint32_t n, int kind)
{
    state = 5;
    if (kind == RANDOM_2) make_text(text, n, 2, 0);
    if (kind == RANDOM_262144) make_text(text, n, 262144, 0);
    if (kind == COPIES) make_text(text, n, 30, 20);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == RUN) text[i] = i + i / 8 + 1 >= n; /* a break at the end: as many leaves at once as tokens */
        if (kind == RUNS) text[i] = i % 1000 == 0 ? (int32_t)i : 0;
        if (kind == THUE_MORSE) text[i] = __builtin_popcount(i) & 1;
        if (kind == SAME_BLOCKS) text[i] = (int32_t)(i % 500 == 0 ? i : i % 500);
    }
    for (uint32_t a = 1, b = 1; kind == FIBONACCI; b += a, a = b - a) { /* each is the one before followed by the one before that */
        text[0] = 0;
        if (b < n) text[1] = 1;
        for (uint32_t i = 0; i < a && b + i < n; i++) text[b + i] = text[i];
        if (b + a >= n) break;
    }
}

static void test_linear(void **unused)
{
    (void)unused;
    const uint32_t most = 1 << 17;
    int32_t *text = malloc(most * sizeof *text);
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (uint32_t n = most / 64; n <= most; n *= 2) {
            struct wr_ngram *g = open_for(n);
            fill(text, n, kind);
            for (uint32_t i = 0; i < n; i++) wr_ngram_put(g, text[i]);
            uint64_t steps = wr_ngram_steps(g); /* 64 that are told, and at most 26 on the way */
            if (steps < n || steps > 90 * (uint64_t)n) fail_msg("text %d of %u tokens: %.1f steps a token", kind, n, (double)steps / n);
            wr_ngram_close(g);
        }
    }
    free(text);
}

int main(void)
{
    wr_ledger_init(&ledger);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_reset_and_full),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
