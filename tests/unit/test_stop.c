/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings against a search in the whole text that knows nothing of automata, over every way of cutting the text into pieces:
 * what is shown, when it is shown, and when the stream ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "generate/stop.h"

#define MAX_TEXT 4096

struct sink {
    char text[MAX_TEXT + 1];
    size_t n;
};

static void collect(void *user, const char *text, size_t n)
{
    struct sink *sink = user;
    if (n == 0 || sink->n + n > MAX_TEXT) abort();
    memcpy(sink->text + sink->n, text, n);
    sink->n += n;
    sink->text[sink->n] = '\0';
}

/* Of the beginning text[0..n): the first place where a stop string is, or (if the text could go on) may still come to be. */
static size_t first_place(const char *text, size_t n, const char *const *stops, size_t n_stops, bool goes_on, bool *complete)
{
    for (size_t i = 0; i < n; i++) {
        bool partial = false;
        *complete = false;
        for (size_t s = 0; s < n_stops; s++) {
            size_t length = strlen(stops[s]), left = n - i, common = length < left ? length : left;
            if (memcmp(text + i, stops[s], common) != 0) continue;
            if (common == length)
                *complete = true;
            else
                partial = true;
        }
        if (*complete || (partial && goes_on)) return i;
    }
    *complete = false;
    return n;
}

static struct wr_ledger ledger;

/* Feeds text cut after every position whose bit is set in cuts. */
static void check_cuts(const char *text, uint64_t cuts, const char *const *stops, size_t n_stops)
{
    struct wr_stop *stop = NULL;
    struct sink sink = {{0}, 0};
    size_t n = strlen(text), fed = 0;
    bool found = false, complete = false;
    assert_int_equal(wr_stop_open(&stop, stops, n_stops, &ledger, NULL), 0);
    for (size_t i = 1; i <= n && !found; i++) {
        if (i < n && !(cuts >> (i - 1) & 1)) continue;
        found = wr_stop_put(stop, text + fed, i - fed, collect, &sink);
        fed = i;
        /* A search over what has been fed decides from the first byte on; a longer piece must not show more or less than its bytes one by one. */
        size_t place = n, k = 1;
        bool expected = false;
        for (; k <= i && !expected; k++) place = first_place(text, k, stops, n_stops, true, &expected);
        if (found != expected || sink.n != place || memcmp(sink.text, text, place) != 0)
            fail_msg("'%s' cut %llx, first stop '%s': after %zu bytes '%s' was shown (found %d), expected %zu bytes (found %d)", text, (unsigned long long)cuts,
                n_stops ? stops[0] : "", i, sink.text, found, place, expected);
    }
    bool ended = wr_stop_flush(stop, collect, &sink);
    size_t place = first_place(text, n, stops, n_stops, false, &complete);
    if (ended != complete || sink.n != place || memcmp(sink.text, text, place) != 0)
        fail_msg("'%s' cut %llx: '%s' was shown in all, expected %zu bytes", text, (unsigned long long)cuts, sink.text, place);
    if (ended) { /* nothing leaks after the match */
        assert_true(wr_stop_put(stop, "more", 4, collect, &sink));
        assert_true(wr_stop_flush(stop, collect, &sink));
        assert_int_equal(sink.n, place);
    }
    wr_stop_close(stop);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
}

static void check_all_cuts(const char *text, const char *const *stops, size_t n_stops)
{
    size_t n = strlen(text);
    for (uint64_t cuts = 0; cuts < (uint64_t)1 << (n > 0 ? n - 1 : 0); cuts++) check_cuts(text, cuts, stops, n_stops);
}

static void known_cases(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stops[4], *shown;
    } cases[] = {
        {"aaab", {"aab"}, "a"}, /* a self-repeat overlaps */
        {"ababac", {"abac"}, "ab"},
        {"hello END", {"END"}, "hello "},  /* at the very end */
        {"helloE N", {"END"}, "helloE N"}, /* only looked like one */
        {"hello EN", {"END"}, "hello EN"}, /* the stream ends inside */
        {"xabcd", {"ab", "abc"}, "x"},     /* one is the beginning of another */
        {"xabcy", {"abcd", "bc"}, "xa"},   /* the outer one fails, the inner one was complete */
        {"xabcd", {"abcd", "bc"}, "x"},    /* the outer one completes: it began first */
        {"xabc", {"abcd", "bc"}, "xa"},    /* the stream ends while the outer one might have come */
        {"abcabcabd", {"abcabd"}, "abc"},
        {"", {"a"}, ""},
        {"a", {"a"}, ""},
        {"stop", {"s", "t", "o", "p"}, ""},
        {"no stops", {NULL}, "no stops"},
        {"\xe4\xb8\xad\xe6\x96\x87", {"\xe6\x96\x87"}, "\xe4\xb8\xad"},
        {"\xe4\xb8\xad\xe6\x96\x88", {"\xe6\x96\x87"}, "\xe4\xb8\xad\xe6\x96\x88"},
        {"aaaaaaaa", {"aaaab", "aaac", "aad"}, "aaaaaaaa"},
        {"aaaaaac", {"aaaab", "aaac"}, "aaa"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = 0;
        bool complete;
        while (n < 4 && cases[i].stops[n] != NULL) n++;
        assert_int_equal(
            first_place(cases[i].text, strlen(cases[i].text), cases[i].stops, n, false, &complete), strlen(cases[i].shown)); /* the search itself */
        check_all_cuts(cases[i].text, cases[i].stops, n);
    }
}

static uint32_t seed = 2463534242u;
static uint32_t next(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed % below;
}

static void random_cases(void **state)
{
    (void)state;
    for (int round = 0; round < 6000; round++) {
        char text[24], stop_text[4][8];
        const char *stops[4];
        size_t n_stops = 1 + next(4), n = round % 10 == 0 ? 8 : 1 + next(23);
        uint32_t letters = 2 + next(2); /* few letters: overlaps everywhere */
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + next(letters));
        text[n] = '\0';
        for (size_t s = 0; s < n_stops; s++) {
            size_t length = 1 + next(7);
            for (size_t i = 0; i < length; i++) stop_text[s][i] = (char)('a' + next(letters));
            stop_text[s][length] = '\0';
            stops[s] = stop_text[s];
        }
        if (round % 10 == 0)
            check_all_cuts(text, stops, n_stops);
        else
            for (int i = 0; i < 20; i++) check_cuts(text, (uint64_t)next(1u << 31) << 1 | next(2), stops, n_stops);
    }
}

static void long_stops(void **state)
{
    (void)state;
    static char longest[1025], text[MAX_TEXT];
    memset(longest, 'a', 1023);
    longest[1023] = 'b';
    memset(text, 'a', 3000);
    strcpy(text + 3000, "bcd");
    const char *stops[2] = {longest, "aaaaaaaac"};
    for (size_t piece = 1; piece < 3100; piece = piece * 3 + 1) {
        struct wr_stop *stop = NULL;
        struct sink sink = {{0}, 0};
        bool found = false;
        assert_int_equal(wr_stop_open(&stop, stops, 2, &ledger, NULL), 0);
        for (size_t at = 0; at < 3003 && !found; at += piece) found = wr_stop_put(stop, text + at, 3003 - at < piece ? 3003 - at : piece, collect, &sink);
        assert_true(found);
        assert_int_equal(sink.n, 3000 - 1023);
        wr_stop_close(stop);
    }
}

static void limits(void **state)
{
    (void)state;
    static char too_long[1026];
    memset(too_long, 'x', 1025);
    const char *many[17], *empty[] = {"a", ""}, *null[] = {NULL}, *large[] = {too_long}, *fine[] = {too_long + 1};
    struct wr_stop *stop = NULL;
    weir_err err = {0};
    for (int i = 0; i < 17; i++) many[i] = "x";
    assert_int_equal(wr_stop_open(&stop, many, 17, &ledger, &err), WEIR_E_USAGE);
    assert_int_equal(wr_stop_open(&stop, empty, 2, &ledger, &err), WEIR_E_USAGE);
    assert_non_null(strstr(err.text, "stop string 2 is empty"));
    assert_int_equal(wr_stop_open(&stop, null, 1, &ledger, &err), WEIR_E_USAGE);
    assert_int_equal(wr_stop_open(&stop, large, 1, &ledger, &err), WEIR_E_USAGE);
    wr_fault_set(WR_FAULT_ALLOC, 1, false);
    assert_int_equal(wr_stop_open(&stop, fine, 1, &ledger, NULL), WEIR_E_NOMEM);
    wr_fault_set(WR_FAULT_ALLOC, 0, false);
    assert_null(stop);
    assert_int_equal(wr_stop_open(&stop, fine, 1, &ledger, &err), 0);
    wr_stop_close(stop);
    assert_int_equal(wr_stop_open(&stop, many, 16, &ledger, &err), 0);
    wr_guard_enter("a pass"); /* no allocation */
    struct sink sink = {{0}, 0};
    assert_false(wr_stop_put(stop, "", 0, collect, &sink));
    assert_true(wr_stop_put(stop, "ax", 2, collect, &sink));
    wr_guard_leave();
    assert_string_equal(sink.text, "a");
    wr_stop_close(stop);
    wr_stop_close(NULL);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_cases), cmocka_unit_test(random_cases), cmocka_unit_test(long_stops), cmocka_unit_test(limits)};
    wr_ledger_init(&ledger);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
