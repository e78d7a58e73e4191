/* SPDX-License-Identifier: Apache-2.0 */
/* The stored profile: what is printed comes back, damaged and hostile text is an error, and the disk's rate between measurements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memory/profile.h"

#define KIB 1024u
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct wr_profile p, q;
static char text[WR_PROFILE_BYTES + 1];

/* As much of everything as there is room for. */
static void fill(struct wr_profile *full)
{
    memset(full, 0, sizeof *full);
    strcpy(full->cpu, "Some(R) CPU @ 2.60GHz");
    strcpy(full->level, "avx512vnni");
    strcpy(full->file_system, "ext4 8:1");
    full->n_cpus = 128;
    full->taken = 1790000000;
    full->seconds = 36;
    for (uint32_t i = 0; i < WR_PROFILE_DISK; i++) {
        struct wr_profile_disk *d = &full->disk[full->n_disk++];
        strcpy(d->engine, i % 2 ? "uring" : "pread");
        d->direct = i % 3 != 0;
        d->bytes = 64 * KIB << i % 9;
        d->depth = 1 + i % 64;
        d->rate = 123456789000.0 + i;
    }
    full->n_threads = WR_PROFILE_THREADS;
    for (uint32_t t = 0; t < WR_PROFILE_THREADS; t++) {
        full->threads[t] = 1u << t;
        double *all[] = {full->read, full->fma, full->int8, full->int16, full->attend, full->attend_many};
        for (uint32_t i = 0; i < LENGTH(all); i++) all[i][t] = 1e12 * (i + 1) + t;
        full->in_pass[t] = 0.875;
        full->stage_seconds[t] = 450e-9 * (t + 1);
        full->stage_cached_seconds[t] = 250e-9 * (t + 1);
        for (uint32_t i = 0; i < WR_PROFILE_SETS; i++) full->set[i].rate[t] = 1e12 - 1e10 * i - t;
    }
    full->int16[1] = 0; /* not measured */
    for (uint32_t i = 0; i < WR_PROFILE_SETS; i++) full->set[full->n_sets++].bytes = (uint64_t)1 << (26 + i);
    for (uint32_t i = 0; wr_quant_at(i) != NULL; i++) {
        for (int precise = 0; precise < 2; precise++) {
            struct wr_profile_format *f = &full->format[full->n_formats++];
            f->type = wr_quant_at(i)->id;
            f->precise = precise;
            for (uint32_t t = 0; t < WR_PROFILE_THREADS; t++) {
                f->decode[t] = 987654321098.0 + i;
                f->decode_short[t] = 887654321098.0 + i;
                f->prefill[t] = 123456789012345.0 + t;
                f->mix[t] = 223456789012345.0 + t;
            }
        }
    }
    for (uint32_t i = 0; i < WR_PROFILE_TOGETHER; i++)
        full->together[full->n_together++] = (struct wr_profile_together){0.125 * (1 << i), i == 1 ? 0 : 0.625 * i};
    full->disk_first = 1.75;
    full->activate = 2.5e9;
    full->steady = 0.97;
}

static bool near(double a, double b) { return a > b * (1 - 1e-9) && a < b * (1 + 1e-9); }

static void test_round_trip(void **state)
{
    fill(&p);
    size_t n = wr_profile_print(&p, text, sizeof text);
    assert_true(n > 0 && n <= WR_PROFILE_BYTES); /* the largest there is can be stored and read */
    weir_err err;
    assert_int_equal(wr_profile_parse(&q, text, n, &err), 0);
    for (uint32_t t = 0; t < WR_PROFILE_THREADS; t++) { /* the one thing that is not whole in the file's unit */
        assert_true(near(q.stage_seconds[t], p.stage_seconds[t]) && near(q.stage_cached_seconds[t], p.stage_cached_seconds[t]));
        q.stage_seconds[t] = p.stage_seconds[t];
        q.stage_cached_seconds[t] = p.stage_cached_seconds[t];
    }
    assert_true(near(q.steady, 0.97));
    q.steady = p.steady;
    assert_memory_equal(&p, &q, sizeof p);
    assert_int_equal(wr_profile_print(&p, text, n), 0); /* no room for the NUL */
}

static void test_empty(void **state)
{
    memset(&p, 0, sizeof p);
    size_t n = wr_profile_print(&p, text, sizeof text);
    assert_string_equal(text, "weir-profile 3\ntaken 0\n");
    assert_int_equal(wr_profile_parse(&q, text, n, NULL), 0);
    assert_memory_equal(&p, &q, sizeof p);
}

static void expect_error(const char *bad, const char *named)
{
    weir_err err = {0};
    assert_int_equal(wr_profile_parse(&q, bad, strlen(bad), &err), WEIR_E_FORMAT);
    if (strstr(err.text, named) == NULL) fail_msg("'%s' does not say '%s'", err.text, named);
    assert_non_null(strstr(err.text, "weir probe"));
}

#define HEAD "weir-profile 3\nthreads 1 2\n"

static void test_damaged(void **state)
{
    expect_error("", "profile: its last line is cut");
    expect_error("weir-profile 3", "cut");
    expect_error("weir-profile 2\n", "line 1");
    expect_error("weir-profile 3 \n", "line 1");
    expect_error("weir-profile 3\n\n", "line 2");
    expect_error(HEAD "read 1 100\nread 2 20", "cut"); /* 200 before the cut */
    expect_error(HEAD "read 1\n", "line 3");
    expect_error(HEAD "read 1 100 7\n", "more follows");
    expect_error(HEAD "read 1 100\nread 1 100\n", "line 4");
    expect_error(HEAD "read 4 100\n", "line 3");
    expect_error(HEAD "read 1 0\n", "line 3");
    expect_error(HEAD "read 1 -5\n", "line 3");
    expect_error(HEAD "read 1 nan\n", "line 3");
    expect_error(HEAD "read 1 1e9\n", "line 3");
    expect_error(HEAD "read 1  100\n", "line 3");
    expect_error(HEAD "read 1 99999999999999999999999999999\n", "line 3");
    expect_error("weir-profile 3\nthreads 2 1\n", "line 2");
    expect_error("weir-profile 3\nthreads 1 1\n", "line 2");
    expect_error("weir-profile 3\nthreads 0\n", "line 2");
    expect_error("weir-profile 3\nthreads 1 2 3 4 5 6 7 8 9\n", "line 2");
    expect_error(HEAD "disk uring direct 65536 8\n", "line 3");
    expect_error(HEAD "disk uring maybe 65536 8 100\n", "line 3");
    expect_error(HEAD "disk a-name-of-an-engine direct 65536 8 100\n", "line 3");
    expect_error(HEAD "disk uring direct 65536 65 100\n", "line 3");
    expect_error(HEAD "disk uring direct 4294967296 1 100\n", "line 3");
    expect_error(HEAD "decode Q4_0 int4 1 100\n", "line 3");
    expect_error(HEAD "decode Q4_0 int8 3 100\n", "line 3");
    expect_error(HEAD "cpu a\tb\n", "line 3");
    expect_error(HEAD "cpu a\ncpu b\n", "line 4");
    expect_error(HEAD "level a-name-of-a-level-too-long\n", "line 3");
    expect_error(HEAD "disk_first_thousandths 0\n", "line 3");
    expect_error(HEAD "disk_first_thousandths 5\ndisk_first_thousandths 5\n", "line 4");
    expect_error(HEAD "together 500\n", "line 3");
    expect_error(HEAD "together 0 5\n", "line 3");
    expect_error(HEAD "together 500 5\ntogether 500 6\n", "line 4");
    expect_error(HEAD "together 500 5\ntogether 400 6\n", "line 4");
    expect_error(HEAD "steady_thousandths 1001\n", "line 3");
    expect_error(HEAD "cpus 2\ncpus 2\n", "line 4");
    expect_error(HEAD "seconds 2\nseconds 2\n", "line 4");
    expect_error(HEAD "taken 2\ntaken 2\n", "line 4");
    expect_error(HEAD "set 200 1 5\nset 100 1 5\n", "line 4");
    expect_error(HEAD "set 0 1 5\n", "line 3");
    expect_error(HEAD "set 100 1 5\nset 100 1 5\n", "line 4");
    expect_error(HEAD "seconds 0\n", "line 3");
    for (uint32_t i = 0; i < sizeof text - 1; i++) text[i] = "weir-profile 3\n"[i % 15];
    text[sizeof text - 1] = '\n';
    weir_err err;
    assert_int_equal(wr_profile_parse(&q, text, sizeof text, &err), WEIR_E_FORMAT);
    assert_non_null(strstr(err.text, "too large"));
}

static void test_too_many(void **state)
{
    size_t n = (size_t)snprintf(text, sizeof text, HEAD);
    for (uint32_t i = 0; i <= WR_PROFILE_DISK; i++) n += (size_t)snprintf(text + n, sizeof text - n, "disk uring direct 4096 1 5\n");
    expect_error(text, "line 99"); /* two lines before the first one, 96 measurements */
    n = (size_t)snprintf(text, sizeof text, HEAD);
    for (uint32_t i = 0; i <= WR_PROFILE_TOGETHER; i++) n += (size_t)snprintf(text + n, sizeof text - n, "together %u 5\n", i + 1);
    expect_error(text, "line 11");
    n = (size_t)snprintf(text, sizeof text, HEAD);
    for (uint32_t i = 0; i <= WR_PROFILE_SETS; i++) n += (size_t)snprintf(text + n, sizeof text - n, "set %u 1 5\n", i + 1);
    expect_error(text, "line 11");
}

static void test_newer(void **state)
{
    const char *newer = HEAD "something new\ndecode Q9_X int8 1 100\nread 2 7\n";
    assert_int_equal(wr_profile_parse(&q, newer, strlen(newer), NULL), 0);
    assert_int_equal(q.n_formats, 0);
    assert_true(q.read[0] == 0 && q.read[1] == 7);
}

/* Every cut and every changed byte of a whole profile: an error or a profile, and nothing else (sanitizers and valgrind watch). */
static void test_mutated(void **state)
{
    fill(&p);
    size_t n = wr_profile_print(&p, text, sizeof text);
    for (size_t i = 0; i < n; i += 7) wr_profile_parse(&q, text, i, NULL);
    for (size_t i = 0; i < n; i += 11) {
        char was = text[i];
        text[i] = (char)(was ^ (1 << i % 8));
        wr_profile_parse(&q, text, n, NULL);
        assert_true(q.n_disk <= WR_PROFILE_DISK && q.n_threads <= WR_PROFILE_THREADS && q.n_sets <= WR_PROFILE_SETS && q.n_together <= WR_PROFILE_TOGETHER &&
                    q.n_formats <= LENGTH(q.format));
        text[i] = was;
    }
}

static void test_disk_rate(void **state)
{
    static const struct wr_profile_disk points[] = {{"uring", true, 64 * KIB, 1, 100}, {"uring", true, 256 * KIB, 1, 200}, {"uring", true, 64 * KIB, 16, 500},
        {"uring", true, 256 * KIB, 16, 900}, {"pread", true, 64 * KIB, 4, 50}, {"uring", false, 64 * KIB, 4, 10}};
    memset(&p, 0, sizeof p);
    memcpy(p.disk, points, sizeof points);
    p.n_disk = LENGTH(points);
    for (size_t i = 0; i < LENGTH(points); i++)
        assert_true(wr_profile_disk_rate(&p, points[i].engine, points[i].direct, points[i].bytes, points[i].depth) == points[i].rate);
    assert_true(near(wr_profile_disk_rate(&p, "uring", true, 128 * KIB, 1), 150)); /* half-way by the logarithm of the size, ... */
    assert_true(near(wr_profile_disk_rate(&p, "uring", true, 64 * KIB, 4), 300));  /* ... of the depth, ... */
    assert_true(near(wr_profile_disk_rate(&p, "uring", true, 128 * KIB, 4), 425)); /* ... of both */
    assert_true(wr_profile_disk_rate(&p, "uring", true, 4 * KIB, 1) == 100);
    assert_true(wr_profile_disk_rate(&p, "uring", true, 1ull << 40, 64) == 900);
    assert_true(wr_profile_disk_rate(&p, "pread", true, 1 << 20, 1) == 50);
    assert_true(wr_profile_disk_rate(&p, "auto", true, 64 * KIB, 1) == 100);
    assert_true(wr_profile_disk_rate(&p, "mmap", true, 64 * KIB, 1) == 0);
    assert_true(wr_profile_disk_rate(&p, "pread", false, 64 * KIB, 1) == 0);
    p.n_disk = 0;
    assert_true(wr_profile_disk_rate(&p, "auto", true, 64 * KIB, 1) == 0);
}

/* What a busy machine leaves behind: middle runs far below the undisturbed ones, and rates above a ceiling that was measured in a worse moment. */
static void test_steadiness(void **state)
{
    memset(&p, 0, sizeof p);
    assert_true(wr_profile_steadiness(&p) == 1); /* nothing is known */
    p.steady = 0.9;
    p.n_threads = 2;
    for (int t = 0; t < 2; t++) {
        p.read[t] = 100;
        p.attend[t] = 100;
    }
    p.n_formats = 2;
    p.format[1].decode[0] = p.format[1].prefill[1] = p.format[1].mix[1] = 100;
    assert_true(near(wr_profile_steadiness(&p), 0.9));
    p.attend[1] = 150;
    assert_true(near(wr_profile_steadiness(&p), 0.6));
    p.format[1].decode[0] = 180;
    assert_true(near(wr_profile_steadiness(&p), 0.5));
    p.format[1].prefill[1] = 360;
    assert_true(near(wr_profile_steadiness(&p), 0.25));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_empty), cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_too_many), cmocka_unit_test(test_newer), cmocka_unit_test(test_mutated), cmocka_unit_test(test_disk_rate),
        cmocka_unit_test(test_steadiness)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
