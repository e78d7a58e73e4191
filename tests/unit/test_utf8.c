/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8. The expected replacements come from CPython's bytes.decode("utf-8", errors="replace"): 20000 strings of the bytes that
 * matter (borders of the ranges of the Unicode standard's Table 3-7), as a digest, and a table of cases that can be read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/utf8.h"

#define R "\xef\xbf\xbd"

static void sanitize_table(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"", 0, ""},
        {"plain", 5, "plain"},
        {"\xc3\xa9", 2, "\xc3\xa9"},
        {"\xff", 1, R},
        {"\xc0\x80", 2, R R},
        {"\x80", 1, R},
        {"\xe4\xb8", 2, R},
        {"\xe4\xb8"
         "a",
            3, R "a"},
        {"\xe4"
         "a",
            2, R "a"},
        {"\xf0\x9f\x98", 3, R},
        {"\xf0\x9f\x98"
         "x",
            4, R "x"},
        {"\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80"},
        {"\xed\xa0\x80", 3, R R R} /* a surrogate */,
        {"\xe0\x80\x80", 3, R R R} /* overlong */,
        {"\xf4\x90\x80\x80", 4, R R R R} /* above 10FFFF */,
        {"\xf4\x8f\xbf\xbf", 4, "\xf4\x8f\xbf\xbf"},
        {"\xf5\x80", 2, R R},
        {"\xc3\xc3\xa9", 3, R "\xc3\xa9"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
         "A",
            9, R R R R "A"},
        {"\xf0\x8f\xbf\xbf", 4, R R R R},
        {"\xe4\xb8\xe4\xb8\xad", 5, R "\xe4\xb8\xad"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[64] = {0};
        size_t n = wr_utf8_sanitize((const uint8_t *)cases[i].in, cases[i].n, out);
        if (n != strlen(cases[i].out) || memcmp(out, cases[i].out, n) != 0) fail_msg("case %zu: got '%s' (%zu bytes)", i, out, n);
        assert_int_equal(wr_utf8_sanitize((const uint8_t *)cases[i].in, cases[i].n, NULL), n);
    }
    char nul[2];
    assert_int_equal(wr_utf8_sanitize((const uint8_t *)"\0", 1, nul), 1);
    assert_int_equal(nul[0], 0);
}

/* Made in Python in the same way: x = x * 6364136223846793005 + 1442695040888963407, byte = alphabet[(x >> 33) % 24]. */
static void sanitize_like_python(void **state)
{
    (void)state;
    static const uint8_t alphabet[24] = {
        0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5};
    uint64_t x = 1, digest = 0xcbf29ce484222325, total = 0;
    for (size_t i = 0; i < 20000; i++) {
        uint8_t in[24];
        char out[72];
        size_t n = i % 25;
        for (size_t j = 0; j < n; j++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            in[j] = alphabet[(x >> 33) % 24];
        }
        size_t length = wr_utf8_sanitize(in, n, out);
        total += length;
        for (size_t j = 0; j < length; j++) /* FNV-1a over all outputs, each ended by a newline */
            digest = (digest ^ (uint8_t)out[j]) * 0x100000001b3;
        digest = (digest ^ '\n') * 0x100000001b3;
    }
    assert_true(total == 574129);
    assert_true(digest == 0xb08e53f6f7547a93);
}

/* Every code point there and back; every other number is refused. */
static void round_trip(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        uint8_t s[4] = {0};
        uint32_t back = 0;
        int n = wr_utf8_encode(cp, s);
        bool surrogate = cp >= 0xd800 && cp <= 0xdfff;
        int expected = surrogate ? 3 : cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        if (n != expected || wr_utf8_decode(s, (size_t)n, &back) != n || back != (surrogate ? 0xfffd : cp))
            fail_msg("U+%X became %d bytes, then U+%X", cp, n, back);
        for (int cut = 1; cut < n; cut++)
            if (wr_utf8_decode(s, (size_t)cut, &back) != -1) fail_msg("U+%X cut to %d bytes is not seen as a beginning", cp, cut);
    }
    uint8_t s[4];
    assert_int_equal(wr_utf8_encode(0x110000, s), 3);
    assert_memory_equal(s, R, 3);
}

/* All sequences of up to 2 bytes, and 3 and 4 bytes with interesting ends, against the encoder: a sequence is valid exactly if the encoder can make it. */
static void decode_is_strict(void **state)
{
    (void)state;
    static const uint8_t tails[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    for (uint32_t a = 0; a < 256; a++)
        for (uint32_t b = 0; b < 256; b++)
            for (size_t i = 0; i < sizeof tails; i++)
                for (size_t j = 0; j < sizeof tails; j++) {
                    uint8_t s[4] = {(uint8_t)a, (uint8_t)b, tails[i], tails[j]}, again[4];
                    uint32_t cp = 0;
                    int n = wr_utf8_decode(s, 4, &cp);
                    assert_true(n >= 0);
                    if (n > 0) {
                        assert_int_equal(wr_utf8_encode(cp, again), n);
                        assert_memory_equal(again, s, (size_t)n);
                        assert_int_equal(wr_utf8_valid_prefix(s, (size_t)n), n);
                    } else {
                        assert_int_equal(wr_utf8_valid_prefix(s, 4), 0);
                    }
                }
}

static void valid_prefix(void **state)
{
    (void)state;
    assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)"", 0), 0);
    assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)"ab\xe4\xb8\xad", 5), 5);
    assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)"ab\xe4\xb8\xad", 4), 2);
    assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)"ab\xff"
                                                           "cd",
                         5),
        2);
    assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)"\xed\xa0\x80", 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sanitize_table),
        cmocka_unit_test(sanitize_like_python),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(decode_is_strict),
        cmocka_unit_test(valid_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
