/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that go wrong by script: the same bytes, or an error that says where. And the simulated disk, against its formula. */
#include "test_io_common.h"

#include "base/os.h"
#include "io/core.h"

static const char *const inner_engines[] = {
#ifdef WR_HAVE_URING
    "uring",
#endif
    "pread",
};
#define N_INNER (sizeof inner_engines / sizeof inner_engines[0])

static struct wr_ledger ledger;

enum { EXTENT = 8192, N_EXTENTS = 1200, FILE_BYTES = EXTENT * N_EXTENTS - 777, DEPTH = 8 };
static struct wr_file file;
static uint8_t *oracle, *memory;

struct outcome {
    uint64_t n_failed, first_failed; /* requests, from 1 */
    weir_err err;                    /* of first_failed */
    struct notes notes;
    uint64_t bytes, reads;
    bool direct;
};

/* Reads the first n extents of the file, one request each, and compares what did not fail. */
static struct outcome run(const char *inner, struct wr_file *from, uint32_t n, struct wr_io_fault_script script)
{
    struct outcome out = {0};
    struct wr_log log = {note, &out.notes};
    struct wr_io_config config = {.depth = DEPTH,
        .memory = memory,
        .memory_bytes = (uint64_t)N_EXTENTS * EXTENT,
        .files = from,
        .n_files = 1,
        .ledger = &ledger,
        .log = &log,
        .inner = inner};
    const struct wr_io_ops *ops = wr_io_find("fault");
    struct wr_io *io;
    weir_err err = {0};
    wr_io_fault_script = script;
    if (ops->open(&io, &config, &err) != 0) fail_msg("%s", err.text);
    memset(memory, 0xEE, (size_t)n * EXTENT);
    uint32_t submitted = 0, completed = 0;
    wr_guard_enter("reading");
    while (completed < n) {
        struct wr_io_request request = {.file = from, .offset = (uint64_t)submitted * EXTENT, .bytes = EXTENT, .tag = submitted + 1};
        request.dst = memory + request.offset;
        if (submitted < n && ops->submit(io, &request)) {
            submitted++;
            continue;
        }
        struct wr_io_done done[3];
        uint32_t got = ops->wait(io, done, 3, UINT64_MAX);
        assert_true(got >= 1);
        for (uint32_t i = 0; i < got; i++) {
            uint64_t at = (done[i].tag - 1) * EXTENT, inside = FILE_BYTES - at < EXTENT ? FILE_BYTES - at : EXTENT;
            completed++;
            if (done[i].code == 0) {
                assert_memory_equal(memory + at, oracle + at, inside);
                for (uint64_t k = inside; k < EXTENT; k++) assert_int_equal(memory[at + k], 0);
                continue;
            }
            assert_int_equal(done[i].code, WEIR_E_READ);
            out.n_failed++;
            if (out.first_failed != 0 && out.first_failed < done[i].tag) continue;
            out.first_failed = done[i].tag;
            out.err = done[i].err;
        }
    }
    wr_guard_leave();
    ops->stats(io, &out.bytes, &out.reads, &out.direct);
    ops->close(io);
    assert_int_equal(out.reads, n - out.n_failed);
    assert_int_equal(out.bytes, (n - out.n_failed) * EXTENT);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
    return out;
}

static void no_fault(void **state)
{
    (void)state;
    for (size_t e = 0; e < N_INNER; e++) {
        struct outcome out = run(inner_engines[e], &file, N_EXTENTS, (struct wr_io_fault_script){0});
        assert_int_equal(out.n_failed, 0);
        assert_int_equal(out.notes.n_warn, 0);
        assert_int_equal(out.direct, file.fd_direct >= 0);
    }
}

/* Direct I/O that worked at open and is refused at the first, or at the 1000th read: one warning, the same bytes. */
static void direct_refused_late(void **state)
{
    (void)state;
    static const int refusals[] = {EINVAL, EOPNOTSUPP};
    static const uint64_t first[] = {1, 1000}, count[] = {1, UINT64_MAX};
    if (file.fd_direct < 0) skip();
    for (size_t e = 0; e < N_INNER; e++)
        for (int i = 0; i < 8; i++) {
            struct wr_io_fault_script script = {.fail_at = first[i & 1], .fail_count = count[i >> 1 & 1], .fail_errno = refusals[i >> 2]};
            struct outcome out = run(inner_engines[e], &file, N_EXTENTS, script);
            assert_int_equal(out.n_failed, 0);
            assert_int_equal(out.notes.n_warn, 1);
            assert_int_equal(out.notes.n_info, 0);
            assert_non_null(strstr(out.notes.last, "page cache"));
            assert_false(out.direct);
        }
}

static void direct_on_does_not_fall_back(void **state)
{
    (void)state;
    if (file.fd_direct < 0) skip();
    struct wr_file strict;
    weir_err err = {0};
    assert_int_equal(wr_file_open(&strict, file.path, WEIR_DIRECT_ON, NULL, &err), 0);
    for (size_t e = 0; e < N_INNER; e++) {
        struct wr_io_fault_script script = {.fail_at = 5, .fail_count = 2, .fail_errno = EINVAL};
        struct outcome out = run(inner_engines[e], &strict, 20, script);
        assert_int_equal(out.n_failed, 2);
        assert_int_equal(out.first_failed, 5);
        assert_non_null(strstr(out.err.text, "direct"));
        assert_non_null(strstr(out.err.text, "Invalid argument"));
        assert_int_equal(out.notes.n_warn, 0);
        assert_true(out.direct);
    }
    wr_file_close(&strict);
}

static void short_reads_and_interrupts(void **state)
{
    (void)state;
    static const int again[] = {0, EINTR, EAGAIN};
    struct wr_file buffered;
    weir_err err = {0};
    assert_int_equal(wr_file_open(&buffered, file.path, WEIR_DIRECT_OFF, NULL, &err), 0);
    for (size_t e = 0; e < N_INNER; e++)
        for (uint32_t i = 0; i < 12; i++) {
            int errno_value = again[i % 3];
            struct wr_io_fault_script script = {.short_reads = (i & 4) != 0 || errno_value == 0, .seed = 5 + i};
            uint32_t n = errno_value == EAGAIN ? 200 : N_EXTENTS; /* each costs a millisecond */
            if (errno_value != 0) script.fail_at = 1, script.fail_count = UINT64_MAX, script.fail_errno = errno_value;
            struct outcome out = run(inner_engines[e], i < 8 ? &file : &buffered, n, script);
            assert_int_equal(out.n_failed, 0);
            assert_int_equal(out.notes.n_warn + out.notes.n_info, 0);
        }
    wr_file_close(&buffered);
}

static void hard_errors(void **state)
{
    (void)state;
    static const struct {
        int errno_value;
        const char *words;
    } hard[] = {{EIO, "Input/output error"}, {ENODATA, "No data"}, {ENXIO, "No such device or address"}};
    for (size_t e = 0; e < N_INNER; e++)
        for (int i = 0; i < 3; i++) {
            struct wr_io_fault_script script = {.fail_at = 37, .fail_count = 3, .fail_errno = hard[i].errno_value, .short_reads = i == 1};
            struct outcome out = run(inner_engines[e], &file, 100, script);
            assert_int_equal(out.n_failed, 3);
            assert_int_equal(out.first_failed, 37);
            assert_int_equal(out.err.code, WEIR_E_READ);
            assert_non_null(strstr(out.err.text, hard[i].words));
            assert_non_null(strstr(out.err.text, "offset 294912")); /* 36 * 8192 */
            assert_non_null(strstr(out.err.text, "faulty"));
        }
}

/* The shared core by itself, fed with results that no kernel here would give. */
static void core_never_loops(void **state)
{
    (void)state;
    struct wr_file strange = {.fd_direct = 1000, .fd_buffered = 2000, .align = 512, .bytes = 40960};
    struct wr_io_config config = {.depth = 4, .files = &strange, .n_files = 1, .ledger = &ledger};
    struct wr_io_request request = {.file = &strange, .offset = 8192, .bytes = 16384, .dst = memory};
    struct wr_io *io;
    struct wr_io_slot *slot;
    struct wr_io_done done;
    assert_int_equal(wr_io_core_open(&io, wr_io_find("pread"), &config, sizeof *io, NULL), 0);

    assert_true(wr_io_begin(io, &request, &slot)); /* interrupted for ever */
    uint32_t n = 0;
    do {
        assert_int_equal(wr_io_next(io, slot).offset, 8192);
        n++;
    } while (!wr_io_result(io, slot, -EINTR));
    assert_true(n > 100 && n < 10000);
    wr_io_finish(io, slot);
    assert_int_equal(wr_io_deliver(io, &done, 1), 1);
    assert_int_equal(done.code, WEIR_E_READ);
    assert_non_null(strstr(done.err.text, "Interrupted"));
    assert_true(wr_io_idle(io));

    assert_true(wr_io_begin(io, &request, &slot)); /* a direct read that ends inside a sector starts the next at its beginning */
    struct wr_io_step step = wr_io_next(io, slot);
    assert_true(step.direct && step.fd == 1000 && step.bytes == 16384 && step.dst == memory);
    assert_false(wr_io_result(io, slot, 1300));
    step = wr_io_next(io, slot);
    assert_true(step.direct && step.offset == 8192 + 1024 && step.bytes == 16384 - 1024 && step.dst == memory + 1024);
    assert_false(wr_io_result(io, slot, 276)); /* and again nothing of a whole sector: buffered, from where it is */
    step = wr_io_next(io, slot);
    assert_true(!step.direct && step.fd == 2000 && step.offset == 8192 + 1300 && step.bytes == 16384 - 1300 && step.dst == memory + 1300);
    assert_false(wr_io_result(io, slot, 1));
    assert_int_equal(wr_io_next(io, slot).offset, 8192 + 1301);
    assert_true(wr_io_result(io, slot, 16384 - 1301));
    wr_io_finish(io, slot);
    assert_int_equal(wr_io_deliver(io, &done, 1), 1);
    assert_int_equal(done.code, 0);
    uint64_t bytes, reads;
    bool direct;
    wr_io_core_stats(io, &bytes, &reads, &direct);
    assert_true(bytes == 16384 && reads == 1 && !direct);
    wr_mem_free(io);
}

static void completions_are_delayed(void **state)
{
    (void)state;
    const uint64_t delay = 20000000;
    const struct wr_io_ops *ops = wr_io_find("fault");
    for (size_t e = 0; e < N_INNER; e++) {
        struct wr_io *io;
        weir_err err = {0};
        struct wr_io_config config = {.depth = DEPTH, .files = &file, .n_files = 1, .ledger = &ledger, .inner = inner_engines[e]};
        struct wr_io_done done[DEPTH];
        wr_io_fault_script = (struct wr_io_fault_script){.delay_ns = delay};
        assert_int_equal(ops->open(&io, &config, &err), 0);
        uint64_t start = wr_clock_ns();
        for (uint32_t i = 0; i < DEPTH; i++) {
            struct wr_io_request request = {.file = &file, .offset = i * EXTENT, .bytes = EXTENT, .dst = memory + i * EXTENT, .tag = i};
            assert_true(ops->submit(io, &request));
            if (i == DEPTH - 1) assert_false(ops->submit(io, &request));
        }
        assert_int_equal(ops->wait(io, done, DEPTH, 0), 0);
        assert_int_equal(ops->wait(io, done, DEPTH, delay / 20), 0);
        uint64_t waited = wr_clock_ns() - start;
        assert_true(waited >= delay / 20);
        struct wr_io_request request = {.file = &file, .bytes = EXTENT, .dst = memory};
        assert_false(ops->submit(io, &request)); /* held back is still in flight */
        uint32_t n = 0;
        while (n < DEPTH) {
            uint32_t got = ops->wait(io, done + n, DEPTH - n, UINT64_MAX);
            assert_true(got > 0);
            assert_true(wr_clock_ns() - start >= delay);
            n += got;
        }
        assert_int_equal(ops->wait(io, done, DEPTH, UINT64_MAX), 0);
        assert_memory_equal(memory, oracle, DEPTH * EXTENT);
        assert_true(ops->submit(io, &request));
        ops->close(io); /* one still in flight */
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
    }
}

static void wraps_others_only(void **state)
{
    (void)state;
    struct wr_io *io;
    weir_err err = {0};
    struct wr_io_config config = {.depth = 1, .ledger = &ledger, .inner = "fault"};
    assert_int_equal(wr_io_find("fault")->open(&io, &config, &err), WEIR_E_USAGE);
    config.inner = "none";
    assert_int_equal(wr_io_find("fault")->open(&io, &config, &err), WEIR_E_USAGE);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
    config.inner = NULL;
    wr_io_fault_script = (struct wr_io_fault_script){0};
    assert_int_equal(wr_io_find("fault")->open(&io, &config, &err), 0);
    wr_io_find("fault")->close(io);
}

/* ---- sim ------------------------------------------------------------------------------ */

static double near(double a, double b) { return a > b ? a - b : b - a; }

/* Seconds for n extents with `depth` in flight: the recurrence written out, not the engine's code. */
static double expected_seconds(uint32_t n, uint32_t depth, double transfer, double latency)
{
    static double done[N_EXTENTS];
    double channel = 0;
    for (uint32_t i = 0; i < n; i++) {
        double submitted = i < depth ? 0 : done[i - depth];
        channel = (channel > submitted ? channel : submitted) + transfer;
        done[i] = channel + latency;
    }
    return done[n - 1];
}

static void virtual_clock(void **state)
{
    (void)state;
    static const uint32_t depths[] = {1, 2, 5, 64};
    const struct wr_io_ops *ops = wr_io_find("sim");
    struct wr_file made_up = {.fd_direct = -1, .fd_buffered = -1, .bytes = FILE_BYTES}; /* there is no such file: nothing is read */
    for (int d = 0; d < 4; d++) {
        struct wr_io *io;
        weir_err err = {0};
        struct wr_io_config config = {.depth = depths[d], .files = &made_up, .n_files = 1, .ledger = &ledger};
        wr_io_sim = (struct wr_io_sim){.bytes_per_s = 1e8, .latency_s = 2e-4, .now_s = 10};
        assert_int_equal(ops->open(&io, &config, &err), 0);
        memset(memory, 0xEE, EXTENT);
        uint32_t submitted = 0, completed = 0;
        while (completed < 300) {
            struct wr_io_request request = {.file = &made_up, .offset = (uint64_t)submitted * EXTENT, .bytes = EXTENT, .dst = memory, .tag = submitted};
            if (submitted < 300 && ops->submit(io, &request)) {
                submitted++;
                assert_true(submitted - completed <= depths[d]);
                continue;
            }
            struct wr_io_done done;
            assert_int_equal(ops->wait(io, &done, 1, UINT64_MAX), 1);
            assert_int_equal(done.code, 0);
            assert_int_equal(done.tag, completed);
            completed++;
        }
        assert_true(near(wr_io_sim.now_s - 10, expected_seconds(300, depths[d], EXTENT / 1e8, 2e-4)) < 1e-9);
        for (int i = 0; i < EXTENT; i++) assert_int_equal(memory[i], 0xEE);
        ops->close(io);
    }
    /* The two ends by arithmetic: everything serial, and latency hidden but for the last. */
    assert_true(near(expected_seconds(300, 1, 8.192e-5, 2e-4), 300 * (8.192e-5 + 2e-4)) < 1e-9);
    assert_true(near(expected_seconds(300, 64, 8.192e-5, 2e-4), 300 * 8.192e-5 + 2e-4) < 1e-9);
}

static void virtual_timeouts(void **state)
{
    (void)state;
    const struct wr_io_ops *ops = wr_io_find("sim");
    struct wr_file made_up = {.fd_direct = -1, .fd_buffered = -1, .bytes = FILE_BYTES};
    struct wr_io *io;
    struct wr_io_done done;
    weir_err err = {0};
    struct wr_io_config config = {.depth = 2, .files = &made_up, .n_files = 1, .ledger = &ledger};
    wr_io_sim = (struct wr_io_sim){.bytes_per_s = 8192e3, .latency_s = 1e-3, .now_s = 0};
    assert_int_equal(ops->open(&io, &config, &err), 0);
    struct wr_io_request request = {.file = &made_up, .bytes = 8192, .dst = memory, .tag = 7};
    assert_true(ops->submit(io, &request)); /* 1 ms of transfer, 1 ms of latency */
    assert_int_equal(ops->wait(io, &done, 1, 0), 0);
    assert_true(wr_io_sim.now_s == 0);
    assert_int_equal(ops->wait(io, &done, 1, 1500000), 0);
    assert_true(near(wr_io_sim.now_s, 1.5e-3) < 1e-12);
    assert_int_equal(ops->wait(io, &done, 1, 5000000), 1);
    assert_true(near(wr_io_sim.now_s, 2e-3) < 1e-12);
    assert_int_equal(done.tag, 7);
    assert_int_equal(ops->wait(io, &done, 1, UINT64_MAX), 0);
    assert_true(ops->submit(io, &request));
    wr_io_sim.now_s = 1; /* compute that took long */
    assert_int_equal(ops->wait(io, &done, 1, 0), 1);
    assert_true(wr_io_sim.now_s == 1);
    request.offset = 1; /* the same checks as every engine */
    assert_true(ops->submit(io, &request));
    assert_int_equal(ops->wait(io, &done, 1, 0), 1);
    assert_int_equal(done.code, WEIR_E_READ);
    ops->close(io);
}

static int setup(void **state)
{
    weir_err err = {0};
    wr_ledger_init(&ledger);
    if (make_folder(state) != 0) return -1;
    write_random(in_folder("faulty"), FILE_BYTES, 77);
    oracle = read_plainly(in_folder("faulty"), FILE_BYTES);
    memory = take_memory((size_t)N_EXTENTS * EXTENT);
    return wr_file_open(&file, in_folder("faulty"), WEIR_DIRECT_AUTO, NULL, &err);
}

static int teardown(void **state)
{
    wr_file_close(&file);
    free(oracle);
    munmap(memory, (size_t)N_EXTENTS * EXTENT);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_fault),
        cmocka_unit_test(direct_refused_late),
        cmocka_unit_test(direct_on_does_not_fall_back),
        cmocka_unit_test(short_reads_and_interrupts),
        cmocka_unit_test(hard_errors),
        cmocka_unit_test(core_never_loops),
        cmocka_unit_test(completions_are_delayed),
        cmocka_unit_test(wraps_others_only),
        cmocka_unit_test(virtual_clock),
        cmocka_unit_test(virtual_timeouts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
