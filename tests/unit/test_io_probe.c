/* SPDX-License-Identifier: Apache-2.0 */
/* The disk's measurement: it reads what it says it reads, each place once, gives everything back, and ends when it should. */
#include "test_io_common.h"

#include "io/probe.h"

#define KIB 1024u
#define N_PLACES 100u

static struct wr_ledger ledger;
static volatile int cancel;

static struct wr_io_probe probe_of(const char *engine, uint32_t depth)
{
    return (struct wr_io_probe){.engine = engine, .bytes = 64 * KIB, .depth = depth, .seconds = 60, .bytes_total = N_PLACES * 64 * KIB, .cancel = &cancel};
}

static int run(const struct wr_io_probe *probe, const char *path, double *rate, weir_err *err)
{
    wr_ledger_init(&ledger);
    cancel = 0;
    *rate = 0;
    int code = wr_io_probe(path, probe, &ledger, rate, err);
    for (int a = 0; a < WR_N_ACCOUNTS; a++) assert_int_equal(wr_ledger_used(&ledger, a), 0);
    return code;
}

/* Buffered reads of a file that is in no cache: as many bytes as it has come from the disk, if no place is read twice. */
static void test_reads(void **state)
{
    const char *path = in_folder("data");
    static const char *const engines[] = {"uring", "pread"};
    double rate;
    weir_err err;
    write_random(path, N_PLACES * 64 * KIB, 1);
    for (int e = 0; e < 2; e++) {
        for (uint32_t depth = 1; depth <= 16; depth *= 4) {
            struct wr_io_probe probe = probe_of(engines[e], depth);
            wr_fault_set(WR_FAULT_READ, 0, false);
            int code = run(&probe, path, &rate, &err);
            if (code == WEIR_E_OPEN && e == 0) break; /* no io_uring here */
            assert_int_equal(code, 0);
            assert_true(rate > 0);
            assert_int_equal(wr_fault_count(WR_FAULT_READ), N_PLACES);
        }
    }
}

static void test_limits(void **state)
{
    const char *path = in_folder("data");
    double rate;
    weir_err err;
    write_random(path, N_PLACES * 64 * KIB + 4096, 1); /* its end is no whole place */
    struct wr_io_probe probe = probe_of("pread", 4);
    probe.bytes_total = 10 * 64 * KIB;
    wr_fault_set(WR_FAULT_READ, 0, false);
    assert_int_equal(run(&probe, path, &rate, &err), 0);
    assert_int_equal(wr_fault_count(WR_FAULT_READ), 10);
    probe.bytes_total = UINT64_MAX;
    probe.seconds = 0.05; /* time ends it, and places come again */
    assert_int_equal(run(&probe, path, &rate, &err), 0);
    assert_true(rate > 0);
    probe.bytes_total = 0; /* one request at least: there is a rate */
    wr_fault_set(WR_FAULT_READ, 0, false);
    assert_int_equal(run(&probe, path, &rate, &err), 0);
    assert_int_equal(wr_fault_count(WR_FAULT_READ), 1);
}

static void test_each_place_once(void **state)
{
    const char *path = in_folder("cold");
    double rate;
    weir_err err;
    const size_t bytes = N_PLACES * 64 * KIB;
    unsigned char in_memory[N_PLACES * 16];
    write_random(path, bytes, 2);
    struct wr_io_probe probe = probe_of("pread", 1);
    assert_int_equal(run(&probe, path, &rate, &err), 0);
    int fd = open(path, O_RDONLY);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_int_equal(mincore(map, bytes, in_memory), 0);
    for (size_t i = 0; i < sizeof in_memory; i++) assert_true(in_memory[i] & 1); /* as many requests as places, and every page was read */
    munmap(map, bytes);
    close(fd);
}

static void test_errors(void **state)
{
    const char *path = in_folder("data");
    double rate;
    weir_err err;
    write_random(path, N_PLACES * 64 * KIB, 1);
    struct wr_io_probe probe = probe_of("pread", 8);
    assert_int_equal(run(&probe, in_folder("missing"), &rate, &err), WEIR_E_OPEN);
    probe.engine = "none";
    assert_int_equal(run(&probe, path, &rate, &err), WEIR_E_USAGE);
    probe.engine = "pread";
    wr_fault_set(WR_FAULT_READ, 20, false);
    assert_int_equal(run(&probe, path, &rate, &err), WEIR_E_READ);
    assert_non_null(strstr(err.text, "data"));
    wr_fault_set(WR_FAULT_ALLOC, 1, true);
    assert_int_equal(run(&probe, path, &rate, &err), WEIR_E_NOMEM);
    wr_fault_set(WR_FAULT_ALLOC, 0, false);
    write_random(path, 60 * KIB, 1);
    assert_int_equal(run(&probe, path, &rate, &err), WEIR_E_USAGE);
}

static void test_cancel(void **state)
{
    const char *path = in_folder("data");
    double rate = 0;
    weir_err err;
    write_random(path, N_PLACES * 64 * KIB, 1);
    struct wr_io_probe probe = probe_of("pread", 8);
    wr_ledger_init(&ledger);
    cancel = 1;
    wr_fault_set(WR_FAULT_READ, 0, false);
    assert_int_equal(wr_io_probe(path, &probe, &ledger, &rate, &err), WEIR_E_CANCELLED);
    assert_int_equal(wr_fault_count(WR_FAULT_READ), 8); /* those that were in flight */
    assert_true(rate == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reads), cmocka_unit_test(test_limits), cmocka_unit_test(test_each_place_once),
        cmocka_unit_test(test_errors), cmocka_unit_test(test_cancel)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
