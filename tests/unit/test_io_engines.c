/* SPDX-License-Identifier: Apache-2.0 */
/* Every engine that reads, on the same files, against plain read(); then what the engines promise about depth, tags, memory, failures. */
#include "test_io_common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const struct {
    const char *name, *inner;
} engines[] = {
#ifdef WR_HAVE_URING
    {"uring", NULL},
    {"fault", "uring"},
#endif
    {"pread", NULL},
    {"mmap", NULL},
    {"fault", "pread"},
    {"fault", "mmap"},
};
#define N_ENGINES (sizeof engines / sizeof engines[0])

static struct wr_ledger ledger;

static struct wr_io_config config_of(size_t engine, uint32_t depth, const struct wr_file *files, uint32_t n_files, void *memory, uint64_t memory_bytes)
{
    return (struct wr_io_config){
        .depth = depth, .memory = memory, .memory_bytes = memory_bytes, .files = files, .n_files = n_files, .ledger = &ledger, .inner = engines[engine].inner};
}

static void open_file(struct wr_file *file, const char *name, size_t n, uint64_t seed)
{
    weir_err err = {0};
    write_random(in_folder(name), n, seed);
    if (wr_file_open(file, in_folder(name), WEIR_DIRECT_AUTO, NULL, &err) != 0) fail_msg("%s", err.text);
}

static struct wr_io_done wait_one(const struct wr_io_ops *ops, struct wr_io *io)
{
    struct wr_io_done done;
    memset(&done, 0xEE, sizeof done);
    assert_int_equal(ops->wait(io, &done, 1, UINT64_MAX), 1);
    return done;
}

static struct wr_io_done read_one(const struct wr_io_ops *ops, struct wr_io *io, const struct wr_file *file, uint64_t offset, uint32_t bytes, void *dst)
{
    struct wr_io_request request = {.file = file, .offset = offset, .bytes = bytes, .dst = dst, .tag = offset ^ 0x5151};
    assert_true(ops->submit(io, &request));
    struct wr_io_done done = wait_one(ops, io);
    assert_int_equal(done.tag, request.tag);
    return done;
}

/* ---- the same bytes as read() --------------------------------------------------------- */

enum { SLOT_BYTES = 256 * 1024 };

/* Random extents of the file, all of it covered, `depth` in flight, in memory whose every byte is checked. */
static void read_all(size_t engine, uint32_t depth, const struct wr_file *file, const uint8_t *oracle, uint8_t *memory, uint64_t seed)
{
    const struct wr_io_ops *ops = wr_io_find(engines[engine].name);
    struct wr_io *io;
    weir_err err = {0};
    uint64_t at = 0, total = 0, n_done = 0, n_submitted = 0, memory_bytes = (uint64_t)depth * (SLOT_BYTES + 4096);
    struct wr_io_config config = config_of(engine, depth, file, 1, memory, memory_bytes);
    struct {
        uint64_t offset, bytes, tag;
    } slot[WR_IO_MAX_DEPTH] = {0};
    if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
    wr_guard_enter("reading");
    while (at < file->bytes || n_done < n_submitted) {
        for (uint32_t i = 0; i < depth && at < file->bytes; i++) {
            if (slot[i].bytes != 0) continue;
            uint64_t rest = wr_round_up(file->bytes - at, WR_IO_ALIGN), n = (1 + next_random(&seed) % (SLOT_BYTES / 4096)) * 4096;
            uint8_t *dst = memory + (uint64_t)i * (SLOT_BYTES + 4096);
            slot[i].offset = at;
            slot[i].bytes = n < rest ? n : rest;
            slot[i].tag = (next_random(&seed) & ~(uint64_t)63) | i;
            memset(dst, 0xEE, SLOT_BYTES + 4096);
            struct wr_io_request request = {.file = file, .offset = at, .bytes = (uint32_t)slot[i].bytes, .dst = dst, .tag = slot[i].tag};
            assert_true(ops->submit(io, &request));
            n_submitted++;
            at += slot[i].bytes;
        }
        struct wr_io_done done[4];
        uint64_t timeout_ns = next_random(&seed) % 2 == 0 ? UINT64_MAX : 2000; /* too short for most reads */
        uint32_t n = ops->wait(io, done, 4, timeout_ns);
        assert_true(n <= 4 && (n >= 1 || timeout_ns != UINT64_MAX));
        for (uint32_t j = 0; j < n; j++) {
            uint32_t i = done[j].tag & 63;
            if (done[j].code != 0) fail_msg("%s: %s", ops->name, done[j].err.text);
            assert_true(i < depth && slot[i].bytes != 0 && slot[i].tag == done[j].tag);
            const uint8_t *dst = memory + (uint64_t)i * (SLOT_BYTES + 4096);
            uint64_t inside = file->bytes - slot[i].offset;
            if (inside > slot[i].bytes) inside = slot[i].bytes;
            assert_memory_equal(dst, oracle + slot[i].offset, inside);
            for (uint64_t k = inside; k < slot[i].bytes; k++) assert_int_equal(dst[k], 0);
            for (uint64_t k = slot[i].bytes; k < SLOT_BYTES + 4096; k++) assert_int_equal(dst[k], 0xEE);
            total += slot[i].bytes;
            slot[i].bytes = 0;
        }
        n_done += n;
    }
    struct wr_io_done none;
    assert_int_equal(ops->wait(io, &none, 1, UINT64_MAX), 0);
    wr_guard_leave();
    uint64_t bytes, reads;
    bool direct;
    ops->stats(io, &bytes, &reads, &direct);
    assert_int_equal(bytes, total);
    assert_int_equal(reads, n_done);
    bool mapped = strcmp(engines[engine].name, "mmap") == 0 || (engines[engine].inner != NULL && strcmp(engines[engine].inner, "mmap") == 0);
    if (mapped || file->fd_direct < 0)
        assert_false(direct);
    else
        assert_true(direct);
    ops->close(io);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
}

static void every_engine_reads_the_same(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 511, 4095, 4096, 4097, 262144, 1048699, 8389384}, depths[] = {1, 3, 16, 64};
    uint64_t memory_bytes = (uint64_t)WR_IO_MAX_DEPTH * (SLOT_BYTES + 4096);
    uint8_t *memory = take_memory(memory_bytes);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct wr_file file, buffered;
        weir_err err;
        open_file(&file, "same", sizes[s], 11 + s);
        uint8_t *oracle = read_plainly(in_folder("same"), sizes[s]);
        assert_int_equal(wr_file_open(&buffered, in_folder("same"), WEIR_DIRECT_OFF, NULL, &err), 0);
        for (size_t e = 0; e < N_ENGINES; e++)
            for (size_t d = 0; d < 4; d++) {
                if (sizes[s] > 2000000 && d == 0) continue; /* one at a time is slow and shows nothing new */
                read_all(e, depths[d], &file, oracle, memory, 100 * s + d + 1);
                if (d == 2) read_all(e, depths[d], &buffered, oracle, memory, 100 * s + d + 2);
            }
        free(oracle);
        wr_file_close(&file);
        wr_file_close(&buffered);
    }
    munmap(memory, memory_bytes);
}

static void several_files(void **state)
{
    (void)state;
    struct wr_file files[3];
    uint8_t *oracle[3], *memory = take_memory(3 * 65536);
    for (int i = 0; i < 3; i++) {
        char name[8] = {'f', (char)('0' + i), 0};
        open_file(&files[i], name, 65536 - (size_t)i, 30 + (uint64_t)i);
        oracle[i] = read_plainly(in_folder(name), 65536 - (size_t)i);
    }
    for (size_t e = 0; e < N_ENGINES; e++) {
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_io *io;
        weir_err err = {0};
        /* The memory given at open is only half of where reads go: registered and plain buffers side by side. */
        struct wr_io_config config = config_of(e, 3, files, 3, memory, 3 * 65536 / 2);
        if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
        memset(memory, 0xEE, 3 * 65536);
        for (uint32_t i = 0; i < 3; i++) {
            struct wr_io_request request = {.file = &files[i], .bytes = 65536, .dst = memory + 65536 * i, .tag = i};
            assert_true(ops->submit(io, &request));
        }
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(wait_one(ops, io).code, 0);
        for (uint32_t i = 0; i < 3; i++) assert_memory_equal(memory + 65536 * i, oracle[i], 65536 - i);
        ops->close(io);
    }
    for (int i = 0; i < 3; i++) {
        free(oracle[i]);
        wr_file_close(&files[i]);
    }
    munmap(memory, 3 * 65536);
}

/* What stats say is what happens: direct reads leave nothing in the page cache, others do. */
static void direct_reads_pass_the_page_cache(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    struct wr_file file[2];
    uint8_t *memory = take_memory(N);
    weir_err err = {0};
    open_file(&file[0], "uncached", N, 35);
    if (file[0].fd_direct < 0 || sysconf(_SC_PAGESIZE) != 4096) skip();
    assert_int_equal(wr_file_open(&file[1], in_folder("uncached"), WEIR_DIRECT_OFF, NULL, &err), 0);
    for (size_t e = 0; e < N_ENGINES; e++)
        for (int b = 0; b < 2; b++)
            for (int registered = 0; registered < 2; registered++) {
                const struct wr_io_ops *ops = wr_io_find(engines[e].name);
                struct wr_io *io;
                struct wr_io_config config = config_of(e, 2, &file[b], 1, registered ? memory : NULL, registered ? N : 0);
                wr_file_drop_cache(&file[0]);
                assert_int_equal(resident_pages(file[0].fd_buffered, N), 0);
                if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
                for (uint32_t i = 0; i < 4; i++) assert_int_equal(read_one(ops, io, &file[b], i * (N / 4), N / 4, memory).code, 0);
                uint64_t bytes, reads;
                bool direct;
                ops->stats(io, &bytes, &reads, &direct);
                int resident = resident_pages(file[0].fd_buffered, N);
                ops->close(io);
                if (direct)
                    assert_int_equal(resident, 0);
                else
                    assert_int_equal(resident, N / 4096);
            }
    wr_file_close(&file[0]);
    wr_file_close(&file[1]);
    munmap(memory, N);
}

/* Offsets past 4 GiB: the file is a hole but for its end. */
static void offsets_past_32_bits(void **state)
{
    (void)state;
    const uint64_t end = UINT64_C(5) << 30;
    uint8_t *memory = take_memory(8192), mark[5000];
    memset(mark, 'm', sizeof mark);
    int fd = open(in_folder("sparse"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_int_equal(pwrite(fd, mark, sizeof mark, (off_t)end), sizeof mark);
    assert_int_equal(fsync(fd), 0);
    close(fd);
    struct wr_file file;
    weir_err err = {0};
    assert_int_equal(wr_file_open(&file, in_folder("sparse"), WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(file.bytes, end + sizeof mark);
    for (size_t e = 0; e < N_ENGINES; e++) {
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_io *io;
        struct wr_io_config config = config_of(e, 2, &file, 1, memory, 8192);
        if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
        memset(memory, 0xEE, 8192);
        assert_int_equal(read_one(ops, io, &file, end, 8192, memory).code, 0);
        assert_memory_equal(memory, mark, sizeof mark);
        for (size_t i = sizeof mark; i < 8192; i++) assert_int_equal(memory[i], 0);
        ops->close(io);
    }
    wr_file_close(&file);
    munmap(memory, 8192);
}

/* ---- depth, waiting, closing ---------------------------------------------------------- */

static void depth_is_a_limit(void **state)
{
    (void)state;
    enum { DEPTH = 5 };
    struct wr_file file;
    uint8_t *memory = take_memory(DEPTH * 4096);
    open_file(&file, "depth", 1 << 20, 40);
    for (size_t e = 0; e < N_ENGINES; e++) {
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_io *io;
        weir_err err = {0};
        struct wr_io_config config = config_of(e, DEPTH, &file, 1, memory, DEPTH * 4096);
        struct wr_io_request request = {.file = &file, .bytes = 4096, .dst = memory};
        struct wr_io_done done[DEPTH + 1];
        if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
        for (int round = 0; round < 100; round++) {
            uint32_t seen = 0;
            for (uint32_t i = 0; i < DEPTH; i++) {
                request.tag = i;
                request.dst = memory + 4096 * i;
                assert_true(ops->submit(io, &request));
            }
            assert_false(ops->submit(io, &request));
            assert_int_equal(ops->wait(io, done, 1, UINT64_MAX), 1);
            seen |= 1u << done[0].tag;
            request.tag = DEPTH;
            request.dst = memory + 4096 * done[0].tag;
            assert_true(ops->submit(io, &request));
            assert_false(ops->submit(io, &request));
            for (uint32_t n = 1; n < DEPTH + 1;) {
                uint32_t got = ops->wait(io, done, DEPTH + 1, round % 2 == 0 ? UINT64_MAX : 50000000);
                for (uint32_t j = 0; j < got; j++) {
                    assert_int_equal(done[j].code, 0);
                    assert_false(seen & 1u << done[j].tag);
                    seen |= 1u << done[j].tag;
                }
                n += got;
            }
            assert_int_equal(seen, (1u << (DEPTH + 1)) - 1);
            assert_int_equal(ops->wait(io, done, DEPTH, 0), 0);
            assert_int_equal(ops->wait(io, done, DEPTH, UINT64_MAX), 0);
        }
        ops->close(io);

        for (int d = 0; d < 2; d++) {
            config.depth = d == 0 ? 0 : WR_IO_MAX_DEPTH + 1;
            io = (struct wr_io *)&file;
            assert_int_equal(ops->open(&io, &config, &err), WEIR_E_USAGE);
            assert_ptr_equal(io, &file);
            assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
        }
    }
    wr_file_close(&file);
    munmap(memory, DEPTH * 4096);
}

/* close lets what is in flight arrive: after it the memory does not change any more and is all there. */
static void close_waits(void **state)
{
    (void)state;
    enum { DEPTH = 16, BYTES = 262144 };
    struct wr_file file;
    uint8_t *memory = take_memory(DEPTH * BYTES);
    open_file(&file, "close", DEPTH * BYTES, 50);
    uint8_t *oracle = read_plainly(in_folder("close"), DEPTH * BYTES);
    for (size_t e = 0; e < N_ENGINES; e++) {
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_io *io;
        weir_err err = {0};
        struct wr_io_config config = config_of(e, DEPTH, &file, 1, memory, DEPTH * BYTES);
        if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
        memset(memory, 0xEE, DEPTH * BYTES);
        for (uint32_t i = 0; i < DEPTH; i++) {
            struct wr_io_request request = {.file = &file, .offset = i * BYTES, .bytes = BYTES, .dst = memory + i * BYTES};
            assert_true(ops->submit(io, &request));
        }
        ops->close(io);
        assert_memory_equal(memory, oracle, DEPTH * BYTES);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
    }
    free(oracle);
    wr_file_close(&file);
    munmap(memory, DEPTH * BYTES);
}

/* ---- failures ------------------------------------------------------------------------- */

static void bad_requests_complete_as_errors(void **state)
{
    (void)state;
    struct wr_file files[3];
    uint8_t *memory = take_memory(65536);
    open_file(&files[0], "bad", 10000, 60);
    open_file(&files[1], "aligned", 8192, 61);
    files[2] = files[0];
    for (size_t e = 0; e < N_ENGINES; e++) {
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_io *io;
        weir_err err = {0};
        struct wr_io_config config = config_of(e, 2, files, 2, memory, 65536);
        if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
        const struct wr_io_request bad[] = {
            {.file = &files[0], .offset = 512, .bytes = 4096, .dst = memory},
            {.file = &files[0], .offset = 0, .bytes = 512, .dst = memory},
            {.file = &files[0], .offset = 0, .bytes = 0, .dst = memory},
            {.file = &files[0], .offset = 0, .bytes = 4096, .dst = memory + 64},
            {.file = &files[2], .offset = 0, .bytes = 4096, .dst = memory},
            {.file = &files[1], .offset = 4096, .bytes = 8192, .dst = memory},
            {.file = &files[1], .offset = 8192, .bytes = 4096, .dst = memory},
            {.file = &files[0], .offset = 12288, .bytes = 4096, .dst = memory},
            {.file = &files[0], .offset = 8192, .bytes = 8192, .dst = memory},
            {.file = &files[0], .offset = 0, .bytes = 16384, .dst = memory},
            {.file = &files[0], .offset = UINT64_MAX - 4095, .bytes = 4096, .dst = memory},
            {.file = &files[0], .offset = UINT64_MAX - 8191, .bytes = 16384, .dst = memory},
        };
        memset(memory, 0xEE, 65536);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            assert_true(ops->submit(io, &bad[i]));
            struct wr_io_done done = wait_one(ops, io);
            assert_int_equal(done.code, WEIR_E_READ);
            assert_int_equal(done.err.code, WEIR_E_READ);
            assert_true(strlen(done.err.text) > 20);
        }
        for (size_t i = 0; i < 65536; i++) assert_int_equal(memory[i], 0xEE);
        assert_int_equal(read_one(ops, io, &files[0], 0, 12288, memory).code, 0);
        ops->close(io);
    }
    wr_file_close(&files[0]);
    wr_file_close(&files[1]);
    munmap(memory, 65536);
}

static void truncated_while_running(void **state)
{
    (void)state;
    uint8_t *memory = take_memory(65536);
    for (size_t e = 0; e < N_ENGINES; e++)
        for (int way = 0; way < 4; way++) {
            /* Cut on a block, within a block, within the last block, to nothing. */
            static const off_t cut[] = {32768, 33001, 65000, 0};
            static const uint64_t offset[] = {32768, 32768, 61440, 0};
            const struct wr_io_ops *ops = wr_io_find(engines[e].name);
            struct wr_file file;
            struct wr_io *io;
            weir_err err = {0};
            open_file(&file, "cut", 65500, 70);
            uint8_t *oracle = read_plainly(in_folder("cut"), 65500);
            struct wr_io_config config = config_of(e, 4, &file, 1, memory, 65536);
            if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
            assert_int_equal(read_one(ops, io, &file, 0, 65536, memory).code, 0);
            assert_int_equal(truncate(in_folder("cut"), cut[way]), 0);
            struct wr_io_done done = read_one(ops, io, &file, offset[way], (uint32_t)(65536 - offset[way]), memory);
            assert_int_equal(done.code, WEIR_E_READ);
            if (strstr(done.err.text, "truncated") == NULL || strstr(done.err.text, "cut") == NULL) fail_msg("%s", done.err.text);
            if (way < 3) {
                assert_int_equal(read_one(ops, io, &file, 4096, 28672, memory).code, 0);
                assert_memory_equal(memory, oracle + 4096, 28672);
            }
            ops->close(io);
            wr_file_close(&file);
            free(oracle);
        }
    munmap(memory, 65536);
}

/* "Fail the Nth": once, or from then on. */
static void nth_read_fails(void **state)
{
    (void)state;
    enum { N = 12 };
    struct wr_file file;
    uint8_t *memory = take_memory(N * 4096);
    open_file(&file, "nth", N * 4096, 80);
    uint8_t *oracle = read_plainly(in_folder("nth"), N * 4096);
    for (size_t e = 0; e < N_ENGINES; e++)
        for (uint64_t nth = 1; nth <= N + 1; nth++)
            for (int persistent = 0; persistent < 2; persistent++) {
                const struct wr_io_ops *ops = wr_io_find(engines[e].name);
                struct wr_io *io;
                weir_err err = {0};
                struct wr_io_config config = config_of(e, 4, &file, 1, memory, N * 4096);
                if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
                wr_fault_set(WR_FAULT_READ, nth, persistent != 0);
                uint64_t submitted = 0, completed = 0;
                while (completed < N) {
                    struct wr_io_request request = {.file = &file, .offset = submitted * 4096, .bytes = 4096, .dst = memory + submitted * 4096};
                    request.tag = submitted + 1;
                    if (submitted < N && ops->submit(io, &request)) {
                        submitted++;
                        continue;
                    }
                    struct wr_io_done done = wait_one(ops, io);
                    bool bad = done.tag == nth || (persistent != 0 && done.tag > nth);
                    assert_int_equal(done.code, bad ? WEIR_E_READ : 0);
                    if (!bad) assert_memory_equal(memory + (done.tag - 1) * 4096, oracle + (done.tag - 1) * 4096, 4096);
                    completed++;
                }
                assert_int_equal(wr_fault_count(WR_FAULT_READ), N);
                wr_fault_set(WR_FAULT_READ, 0, false);
                ops->close(io);
            }
    free(oracle);
    wr_file_close(&file);
    munmap(memory, N * 4096);
}

/* ---- opening -------------------------------------------------------------------------- */

static void open_fails_cleanly(void **state)
{
    (void)state;
    struct wr_file file;
    uint8_t *memory = take_memory(65536);
    open_file(&file, "open", 65536, 90);
    for (size_t e = 0; e < N_ENGINES; e++) {
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_io *io;
        weir_err err = {0};
        struct wr_io_config config = config_of(e, 64, &file, 1, memory, 65536);
        int fds = count_entries("/proc/self/fd"), tasks = count_entries("/proc/self/task"), n_fails = 0;
        for (uint64_t nth = 1;; nth++) {
            wr_fault_set(WR_FAULT_ALLOC, nth, false);
            int code = ops->open(&io, &config, &err);
            uint64_t n = wr_fault_count(WR_FAULT_ALLOC);
            wr_fault_set(WR_FAULT_ALLOC, 0, false);
            if (code == 0) {
                assert_true(n < nth);
                ops->close(io);
                break;
            }
            assert_int_equal(code, WEIR_E_NOMEM);
            n_fails++;
            assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
        }
        assert_true(n_fails >= 1);
        /* Every limit below what it charges is refused; the charge itself is enough. */
        struct wr_ledger small;
        wr_ledger_init(&small);
        config.ledger = &small;
        assert_int_equal(ops->open(&io, &config, &err), 0);
        ops->close(io);
        uint64_t charge = wr_ledger_peak(&small, WR_ACCOUNT_RING);
        if (engines[e].inner == NULL) assert_true(charge <= wr_io_memory_bytes(1));
        wr_ledger_limit(&small, WR_ACCOUNT_RING, charge - 1);
        assert_int_equal(ops->open(&io, &config, &err), WEIR_E_BUDGET);
        assert_int_equal(wr_ledger_used(&small, WR_ACCOUNT_RING), 0);
        wr_ledger_limit(&small, WR_ACCOUNT_RING, charge);
        assert_int_equal(ops->open(&io, &config, &err), 0);
        ops->close(io);
        assert_int_equal(count_entries("/proc/self/fd"), fds);
        assert_int_equal(count_entries("/proc/self/task"), tasks);
    }
    wr_file_close(&file);
    munmap(memory, 65536);
}

static void charge_fits_with_many_files(void **state)
{
    (void)state;
    enum { N = 200 };
    static struct wr_file files[N];
    open_file(&files[0], "many", 4096, 95);
    for (int i = 1; i < N; i++) files[i] = files[0];
    for (size_t e = 0; e < N_ENGINES; e++) {
        if (engines[e].inner != NULL) continue;
        const struct wr_io_ops *ops = wr_io_find(engines[e].name);
        struct wr_ledger mine;
        struct wr_io *io;
        weir_err err = {0};
        wr_ledger_init(&mine);
        wr_ledger_limit(&mine, WR_ACCOUNT_RING, wr_io_memory_bytes(N));
        struct wr_io_config config = config_of(e, WR_IO_MAX_DEPTH, files, N, NULL, 0);
        config.ledger = &mine;
        if (ops->open(&io, &config, &err) != 0) fail_msg("%s: %s", ops->name, err.text);
        ops->close(io);
    }
    wr_file_close(&files[0]);
}

/* Signals must end up in the program's own threads. */
static int count_readers_without_signals(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[300], line[256], name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (f == NULL) continue;
        while (fgets(line, sizeof line, f) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        fclose(f);
        n += strncmp(name, "weir-read-", 10) == 0 && (blocked & 1u << (SIGINT - 1)) != 0 && (blocked & 1u << (SIGTERM - 1)) != 0;
    }
    closedir(d);
    return n;
}

static void thread_refused(void **state)
{
    (void)state;
    struct wr_file file;
    struct wr_io *io;
    weir_err err = {0};
    open_file(&file, "thread", 4096, 96);
    struct wr_io_config config = {.depth = 16, .files = &file, .n_files = 1, .ledger = &ledger};
    const struct wr_io_ops *ops = wr_io_find("pread");
    int tasks = count_entries("/proc/self/task"), n_fails = 0;
    for (uint64_t nth = 1;; nth++) {
        wr_fault_set(WR_FAULT_THREAD, nth, false);
        int code = ops->open(&io, &config, &err);
        wr_fault_set(WR_FAULT_THREAD, 0, false);
        if (code == 0) break;
        assert_int_equal(code, WEIR_E_THREAD);
        assert_non_null(strstr(err.text, "of 8"));
        n_fails++;
        assert_int_equal(count_entries("/proc/self/task"), tasks);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
    }
    assert_int_equal(n_fails, 8);
    assert_int_equal(count_entries("/proc/self/task"), tasks + 8);
    /* A thread that has not run yet has everything blocked by the C library. */
    for (int ms = 0; ms < 10000 && count_readers_without_signals() != 8; ms++) usleep(1000);
    assert_int_equal(count_readers_without_signals(), 8);
    ops->close(io);
    wr_file_close(&file);
}

static void finding(void **state)
{
    (void)state;
    struct wr_io *io;
    const struct wr_io_ops *ops = NULL;
    weir_err err = {0};
    struct wr_io_config config = {.depth = 1, .ledger = &ledger};
    assert_null(wr_io_find("none"));
    assert_null(wr_io_find(""));
    assert_string_equal(wr_io_find("sim")->name, "sim");
    assert_true(wr_io_find("sim")->diagnostic && wr_io_find("fault")->diagnostic);
    assert_false(wr_io_find("pread")->diagnostic || wr_io_find("mmap")->diagnostic);
    assert_int_equal(wr_io_open(&io, &ops, "none", &config, &err), WEIR_E_USAGE);
    assert_non_null(strstr(err.text, "'none'"));
    assert_non_null(strstr(err.text, "pread"));
    assert_null(strstr(err.text, "sim"));
    assert_int_equal(wr_io_open(&io, &ops, "auto", &config, &err), 0);
    assert_ptr_equal(ops, wr_io_find("auto"));
    ops->close(io);
    assert_int_equal(wr_io_open(&io, &ops, "mmap", &config, &err), 0);
    assert_string_equal(ops->name, "mmap");
    ops->close(io);
    struct wr_ledger tight;
    wr_ledger_init(&tight);
    wr_ledger_limit(&tight, WR_ACCOUNT_RING, 100);
    config.ledger = &tight;
    assert_int_equal(wr_io_open(&io, &ops, "auto", &config, &err), WEIR_E_BUDGET);
}

static void mmap_says_what_it_is(void **state)
{
    (void)state;
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    struct wr_io *io;
    weir_err err = {0};
    struct wr_io_config config = {.depth = 1, .ledger = &ledger, .log = &log};
    assert_int_equal(wr_io_find("mmap")->open(&io, &config, &err), 0);
    wr_io_find("mmap")->close(io);
    assert_int_equal(notes.n_warn, 1);
    assert_non_null(strstr(notes.last, "baseline"));
    assert_non_null(strstr(notes.last, "budget"));
}

#ifdef WR_HAVE_URING
/* More memory than a process may lock: one line, plain buffers, same bytes. */
static void memlock_refused(void **state)
{
    (void)state;
    enum { N = 16 << 20 };
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (limit.rlim_cur > N / 2 || geteuid() != 0) skip();
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    struct wr_file file;
    struct wr_io *io;
    weir_err err = {0};
    uint8_t *memory = take_memory(N);
    open_file(&file, "memlock", 100000, 97);
    uint8_t *oracle = read_plainly(in_folder("memlock"), 100000);
    const struct wr_io_ops *ops = wr_io_find("uring");
    struct wr_io_config config = {.depth = 4, .memory = memory, .memory_bytes = N, .files = &file, .n_files = 1, .ledger = &ledger, .log = &log};
    assert_int_equal(seteuid(65534), 0); /* drops the capability to lock */
    int code = ops->open(&io, &config, &err);
    assert_int_equal(seteuid(0), 0);
    if (code != 0) fail_msg("%s", err.text);
    assert_int_equal(notes.n_info, 0);
    assert_int_equal(notes.n_warn, 1);
    assert_non_null(strstr(notes.last, "register"));
    assert_int_equal(read_one(ops, io, &file, 0, 102400, memory + N / 2).code, 0);
    assert_memory_equal(memory + N / 2, oracle, 100000);
    ops->close(io);
    free(oracle);
    wr_file_close(&file);
    munmap(memory, N);
}

static int without_uring(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 77;
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    struct wr_io *io;
    const struct wr_io_ops *ops = NULL;
    weir_err err = {0};
    struct wr_io_config config = {.depth = 4, .ledger = &ledger, .log = &log};
    if (strcmp(wr_io_find("auto")->name, "pread") != 0) return 1;
    if (wr_io_find("uring")->open(&io, &config, &err) != WEIR_E_OPEN) return 2;
    if (strstr(err.text, "io_uring") == NULL || strstr(err.text, "--io pread") == NULL || strstr(err.text, "not permitted") == NULL) return 3;
    if (wr_ledger_used(&ledger, WR_ACCOUNT_RING) != 0 || notes.n_info != 0) return 4;
    if (wr_io_open(&io, &ops, "auto", &config, &err) != 0 || strcmp(ops->name, "pread") != 0) return 5;
    if (notes.n_warn != 1 || notes.n_info != 0 || strstr(notes.last, "pread") == NULL) return 6; /* a fallback is never silent */
    ops->close(io);
    return 0;
}

static void uring_refused(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(without_uring());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

static int setup(void **state)
{
    wr_ledger_init(&ledger);
    return make_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finding),
        cmocka_unit_test(every_engine_reads_the_same),
        cmocka_unit_test(several_files),
        cmocka_unit_test(direct_reads_pass_the_page_cache),
        cmocka_unit_test(offsets_past_32_bits),
        cmocka_unit_test(depth_is_a_limit),
        cmocka_unit_test(close_waits),
        cmocka_unit_test(bad_requests_complete_as_errors),
        cmocka_unit_test(truncated_while_running),
        cmocka_unit_test(nth_read_fails),
        cmocka_unit_test(open_fails_cleanly),
        cmocka_unit_test(charge_fits_with_many_files),
        cmocka_unit_test(thread_refused),
        cmocka_unit_test(mmap_says_what_it_is),
#ifdef WR_HAVE_URING
        cmocka_unit_test(memlock_refused),
        cmocka_unit_test(uring_refused),
#endif
    };
    return cmocka_run_group_tests(tests, setup, remove_folder);
}
