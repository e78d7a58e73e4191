/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, their names and texts, notices, and sizes as people write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/log.h"

static void names_and_codes(void **state)
{
    (void)state;
    assert_string_equal(weir_error_name(WEIR_E_BUDGET), "WEIR_E_BUDGET");
    assert_string_equal(weir_error_name(WEIR_E_NONFINITE), "WEIR_E_NONFINITE");
    assert_string_equal(weir_error_name(12345), "WEIR_E_FAIL");
    /* The contract's exit codes: 2 usage, 3 budget, 4 unsupported, 5 open or read, 130 interrupted, 1 the rest. */
    assert_int_equal(wr_err_exit_code(0), 0);
    assert_int_equal(wr_err_exit_code(WEIR_E_FAIL), 1);
    assert_int_equal(wr_err_exit_code(WEIR_E_FORMAT), 1);
    assert_int_equal(wr_err_exit_code(WEIR_E_USAGE), 2);
    assert_int_equal(wr_err_exit_code(WEIR_E_BUDGET), 3);
    assert_int_equal(wr_err_exit_code(WEIR_E_UNSUPPORTED), 4);
    assert_int_equal(wr_err_exit_code(WEIR_E_OPEN), 5);
    assert_int_equal(wr_err_exit_code(WEIR_E_READ), 5);
    assert_int_equal(wr_err_exit_code(WEIR_E_CANCELLED), 130);
    assert_int_equal(wr_err_exit_code(-9999), 1);
    assert_int_equal(wr_err_http_status(0), 200);
    assert_int_equal(wr_err_http_status(WEIR_E_USAGE), 400);
    assert_int_equal(wr_err_http_status(-9999), 500);
}

static void text_is_one_clean_line(void **state)
{
    (void)state;
    weir_err err = {0};
    assert_int_equal(wr_err(&err, WEIR_E_OPEN, "%s: %d", "a\nb\x7f\xff\xc2\x85\xc3\xa9", 7), WEIR_E_OPEN);
    assert_int_equal(err.code, WEIR_E_OPEN);
    assert_string_equal(err.text, "a?b???\xc3\xa9: 7");
    assert_int_equal(wr_err(NULL, WEIR_E_READ, "%d", 1), WEIR_E_READ);
}

static void text_is_cut_at_a_character(void **state)
{
    (void)state;
    /* 254 bytes, then a character of 3: it does not fit into 255 and must vanish whole. */
    char longer[1000];
    for (size_t fill = 252; fill <= 256; fill++) {
        weir_err err;
        memset(longer, 'x', fill);
        strcpy(longer + fill, "\xe4\xb8\xad and more");
        wr_err(&err, WEIR_E_FAIL, "%s", longer);
        size_t expected = fill == 252 ? 255 : fill > 255 ? 255 : fill;
        assert_int_equal(strlen(err.text), expected);
        assert_memory_equal(err.text, longer, expected);
    }
    memset(longer, 'y', 999);
    longer[999] = '\0';
    char small[4];
    assert_int_equal(wr_text_line(small, sizeof small, longer), 3);
    assert_string_equal(small, "yyy");
}

static void system_words(void **state)
{
    (void)state;
    weir_err err;
    assert_int_equal(wr_err_errno(&err, WEIR_E_OPEN, ENOENT, "model %s", "m.gguf"), WEIR_E_OPEN);
    assert_string_equal(err.text, "model m.gguf: No such file or directory");
    /* However long the path, the reason stays. */
    char path[900];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    wr_err_errno(&err, WEIR_E_OPEN, EACCES, "%s", path);
    assert_int_equal(strlen(err.text), 255);
    assert_string_equal(err.text + 255 - strlen(": Permission denied"), ": Permission denied");
    assert_int_equal(wr_err_errno(NULL, WEIR_E_OPEN, ENOENT, "x"), WEIR_E_OPEN);
}

static void prefix(void **state)
{
    (void)state;
    weir_err err;
    wr_err(&err, WEIR_E_FORMAT, "key %s: bad", "k");
    assert_int_equal(wr_err_prefix(&err, WEIR_E_FAIL, "file %s", "f"), WEIR_E_FORMAT);
    assert_string_equal(err.text, "file f: key k: bad");
    assert_int_equal(wr_err_prefix(NULL, WEIR_E_FAIL, "x"), WEIR_E_FAIL);
}

static void remember(void *user, enum weir_log_level level, const char *line) { snprintf(user, 64, "%d|%s", (int)level, line); }

static void notices(void **state)
{
    (void)state;
    char got[64] = "";
    struct wr_log log = {remember, got}, silent = {NULL, NULL};
    wr_log(&log, WEIR_LOG_WARN, "%s\n%d", "one", 2);
    assert_string_equal(got, "2|one?2");
    wr_log(&silent, WEIR_LOG_WARN, "nothing");
    wr_log(NULL, WEIR_LOG_WARN, "nothing");
    assert_string_equal(got, "2|one?2");
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"512", 512},
        {"512B", 512},
        {"1K", 1024},
        {"512M", 536870912},
        {"2G", 2147483648u},
        {"2g", 2147483648u},
        {"3T", 3298534883328u},
        {"1KiB", 1024},
        {"1.5GiB", 1610612736},
        {"1.5g", 1610612736},
        {"59MB", 59000000},
        {"1kb", 1000},
        {"2GB", 2000000000},
        {"1TB", 1000000000000},
        {"1TiB", 1099511627776},
        {"0.1G", 107374182},
        {"0.000001M", 1},
        {"0.5K", 512},
        {"1.25MB", 1250000},
        {"007", 7},
        {"18446744073709551615", UINT64_MAX},
        {"16777215T", 18446742974197923840u},
        {"16777215.999999T", 18446744073708452104u},
    };
    static const char *const bad[] = {"", " 1", "1 ", "1 G", "-1", "+1", "x", "G", ".5G", "1.G", "1.G5", "1.5", "1.5B", "1.1234567G", "1e3", "0x10", "1GG",
        "1Gi", "1GBs", "1.2.3G", "1,5G", "18446744073709551616", "16777216T", "99999999999999999999999999", "99999999999999999999999999G", "1P", "inf", "nan",
        "1\xc3\xa9"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bytes = 99;
        weir_err err = {0};
        if (weir_parse_size(good[i].text, &bytes, &err) != 0 || bytes != good[i].bytes)
            fail_msg("%s: %llu, %s", good[i].text, (unsigned long long)bytes, err.text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes = 99;
        weir_err err = {0};
        if (weir_parse_size(bad[i], &bytes, &err) != WEIR_E_USAGE || bytes != 99 || strstr(err.text, bad[i]) == NULL)
            fail_msg("'%s' was accepted or changed something: %s", bad[i], err.text);
    }
    uint64_t bytes = 99;
    assert_int_equal(weir_parse_size(NULL, &bytes, NULL), WEIR_E_USAGE);
    assert_int_equal(bytes, 99);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_codes),
        cmocka_unit_test(text_is_one_clean_line),
        cmocka_unit_test(text_is_cut_at_a_character),
        cmocka_unit_test(system_words),
        cmocka_unit_test(prefix),
        cmocka_unit_test(notices),
        cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
