/* SPDX-License-Identifier: Apache-2.0 */
/* wr_utf8_stream: whatever the cuts, the pieces are whole characters and add up to the text with bad parts replaced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/utf8.h"
#include "text/vocab.h"

struct sink {
    char text[1024];
    size_t n, n_calls;
};

static void emit(void *user, const char *text, size_t n)
{
    struct sink *s = user;
    assert_true(n > 0 && s->n + n <= sizeof s->text);
    assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)text, n), n);
    memcpy(s->text + s->n, text, n);
    s->n += n;
    s->n_calls++;
}

#define FFFD "\xef\xbf\xbd"

/* Expected texts: Python's bytes.decode("utf-8", "replace"). */
static const struct {
    const char *bytes;
    size_t n;
    const char *text;
} cases[] = {
    {"", 0, ""},
    {"plain", 5, "plain"},
    {"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80!", 10, "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80!"},
    {"\xff"
     "a",
        2, FFFD "a"},
    {"\xc0\x80", 2, FFFD FFFD},
    {"\xed\xa0\x80", 3, FFFD FFFD FFFD},
    {"\xf4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD},
    {"\xe2\x82"
     "A",
        3, FFFD "A"},
    {"\xe2\x82\xe2\x82\xac", 5, FFFD "\xe2\x82\xac"},
    {"\xf0\x9f\x98"
     "\xc3\xa9",
        5, FFFD "\xc3\xa9"},
    {"\xf0\x9f\xf0\x9f\x98\x80", 6, FFFD "\xf0\x9f\x98\x80"},
    {"\x80\xbf", 2, FFFD FFFD},
    {"ab\xf0\x9f\x98", 5, "ab" FFFD},
    {"\xe2", 1, FFFD},
    {"\xe2\x28\xa1", 3, FFFD "(" FFFD},
};

static void test_every_cut(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n = cases[c].n;
        for (unsigned cuts = 0; cuts < 1u << (n ? n - 1 : 0); cuts++) {
            struct sink s = {.n = 0};
            struct wr_utf8_stream stream = {.n_held = 0};
            size_t begin = 0;
            for (size_t i = 0; i < n; i++) {
                if (i + 1 < n && !(cuts >> i & 1)) continue;
                wr_utf8_stream_put(&stream, cases[c].bytes + begin, i + 1 - begin, emit, &s);
                assert_true(stream.n_held <= 3);
                begin = i + 1;
            }
            wr_utf8_stream_flush(&stream, emit, &s);
            assert_int_equal(stream.n_held, 0);
            assert_int_equal(s.n, strlen(cases[c].text));
            assert_memory_equal(s.text, cases[c].text, s.n);
        }
    }
}

static void test_nothing_waits_without_need(void **state)
{
    (void)state;
    struct sink s = {.n = 0};
    struct wr_utf8_stream stream = {.n_held = 0};
    wr_utf8_stream_put(&stream, "abc\xc3", 4, emit, &s);
    assert_int_equal(s.n, 3);
    wr_utf8_stream_put(&stream,
        "\xa9"
        "d",
        2, emit, &s);
    assert_int_equal(s.n, 6);
    assert_memory_equal(s.text,
        "abc\xc3\xa9"
        "d",
        6);
    wr_utf8_stream_put(&stream, "whole words in one piece", 24, emit, &s);
    assert_int_equal(s.n_calls, 4);
    wr_utf8_stream_put(&stream, "", 0, emit, &s);
    wr_utf8_stream_flush(&stream, emit, &s);
    assert_int_equal(s.n_calls, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_cut), cmocka_unit_test(test_nothing_waits_without_need)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
