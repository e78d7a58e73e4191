/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are written in blocks: nothing left behind, exact bytes under short and refused writes, room taken and named where there is none. */
#include "test_io_common.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include "io/store.h"

#define BLOCK 65536u
#define N_BLOCKS 16u

static uint8_t *random_block(uint64_t seed)
{
    uint64_t *p = take_memory(BLOCK);
    for (size_t i = 0; i < BLOCK / 8; i++) p[i] = next_random(&seed);
    return (uint8_t *)p;
}

static void read_fd(const struct wr_store *s, uint64_t offset, uint8_t *to, size_t n)
{
    for (size_t got = 0; got < n;) { /* not through weir */
        ssize_t r = pread(s->file.fd_buffered, to + got, n - got, (off_t)(offset + got));
        assert_true(r > 0);
        got += (size_t)r;
    }
}

static void leaves_nothing(void **state)
{
    (void)state;
    struct wr_store s;
    weir_err err = {0};
    int before = count_entries(folder), fds = count_entries("/proc/self/fd");
    assert_int_equal(wr_store_open_temporary(&s, folder, WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(count_entries(folder), before);
    assert_int_equal(wr_store_reserve(&s, N_BLOCKS * BLOCK, &err), 0);
    assert_int_equal(s.file.bytes, N_BLOCKS * BLOCK);
    struct stat st;
    assert_int_equal(fstat(s.file.fd_buffered, &st), 0);
    assert_int_equal(st.st_size, N_BLOCKS * BLOCK);
    assert_int_equal(st.st_nlink, 0);
    assert_true((uint64_t)st.st_blocks * 512 >= N_BLOCKS * BLOCK); /* the room is taken */
    uint8_t *page = take_memory(4096);
    memset(page, 1, 4096);
    read_fd(&s, (N_BLOCKS - 1) * BLOCK, page, 4096);
    for (int i = 0; i < 4096; i++) assert_int_equal(page[i], 0);
    munmap(page, 4096);
    assert_int_equal(wr_store_cut(&s, BLOCK, &err), 0);
    assert_int_equal(fstat(s.file.fd_buffered, &st), 0);
    assert_int_equal(st.st_size, BLOCK);
    wr_store_close(&s);
    wr_store_close(&s);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
}

/* Every block at its place, in an order that is not the file's, with the script's faults; read back by pread and by weir's engines. */
static void write_and_compare(enum weir_direct direct, int n_warnings)
{
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    struct wr_store s;
    weir_err err = {0};
    uint8_t *block[N_BLOCKS], *back = take_memory(BLOCK);
    assert_int_equal(wr_store_open_temporary(&s, folder, direct, &log, &err), 0);
    notes.n_warn = 0;
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        uint32_t at = i * 7 % N_BLOCKS;
        block[at] = random_block(at + 1);
        assert_int_equal(wr_store_write(&s, (uint64_t)at * BLOCK, block[at], BLOCK, &err), 0);
    }
    assert_int_equal(s.file.bytes, N_BLOCKS * BLOCK);
    assert_int_equal(wr_store_write(&s, 2 * BLOCK + 5, block[0] + 5, 100, &err), 0); /* not aligned: through the page cache */
    memcpy(block[2] + 5, block[0] + 5, 100);
    assert_int_equal(wr_store_sync(&s, &err), 0);
    assert_int_equal(notes.n_warn, n_warnings);
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    struct wr_io *io;
    const struct wr_io_ops *ops;
    struct wr_io_config config = {.depth = 2, .memory = back, .memory_bytes = BLOCK, .files = &s.file, .n_files = 1, .ledger = &ledger};
    assert_int_equal(wr_io_open(&io, &ops, "auto", &config, &err), 0);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        read_fd(&s, (uint64_t)i * BLOCK, back, BLOCK);
        assert_memory_equal(back, block[i], BLOCK);
        memset(back, 0, BLOCK);
        struct wr_io_request r = {&s.file, (uint64_t)i * BLOCK, BLOCK, back, i};
        struct wr_io_done done;
        assert_true(ops->submit(io, &r));
        assert_int_equal(ops->wait(io, &done, 1, UINT64_MAX), 1);
        assert_int_equal(done.code, 0);
        assert_memory_equal(back, block[i], BLOCK);
        munmap(block[i], BLOCK);
    }
    ops->close(io);
    wr_store_close(&s);
    munmap(back, BLOCK);
}

static void writes_all_bytes(void **state)
{
    (void)state;
    int direct = folder_is_direct();
    write_and_compare(WEIR_DIRECT_AUTO, 0);
    write_and_compare(WEIR_DIRECT_OFF, 0);
    wr_store_fault_script.short_writes = true;
    write_and_compare(WEIR_DIRECT_AUTO, 0);
    write_and_compare(WEIR_DIRECT_OFF, 0);
    wr_store_fault_script.short_writes = false;
    wr_store_fault_script.refuse_direct = true;
    write_and_compare(WEIR_DIRECT_AUTO, direct ? 1 : 0);
    if (direct) {
        struct wr_store s;
        weir_err err = {0};
        uint8_t *block = random_block(1);
        assert_int_equal(wr_store_open_temporary(&s, folder, WEIR_DIRECT_ON, NULL, &err), 0);
        assert_int_equal(wr_store_write(&s, 0, block, BLOCK, &err), WEIR_E_WRITE);
        assert_non_null(strstr(err.text, "--direct auto"));
        wr_store_close(&s);
        munmap(block, BLOCK);
    }
    wr_store_fault_script.refuse_direct = false;
}

static void names_what_failed(void **state)
{
    (void)state;
    struct wr_store s;
    weir_err err = {0};
    uint8_t *block = random_block(1), *back = take_memory(BLOCK);
    assert_int_equal(wr_store_open_temporary(&s, folder, WEIR_DIRECT_AUTO, NULL, &err), 0);
    const struct {
        int reason;
        const char *words;
    } faults[] = {{EIO, "Input/output error"}, {ENOSPC, "make room"}, {EFBIG, "make room"}};
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        wr_store_fault_script.fail_errno = faults[f].reason;
        wr_fault_set(WR_FAULT_WRITE, 2, false);
        assert_int_equal(wr_store_write(&s, 0, block, BLOCK, &err), 0);
        assert_int_equal(wr_store_write(&s, BLOCK, block, BLOCK, &err), WEIR_E_WRITE);
        assert_int_equal(err.code, WEIR_E_WRITE);
        assert_non_null(strstr(err.text, faults[f].words));
        assert_non_null(strstr(err.text, folder));
        assert_int_equal(wr_fault_count(WR_FAULT_WRITE), 2);
        assert_int_equal(wr_store_write(&s, BLOCK, block, BLOCK, &err), 0); /* and again */
        read_fd(&s, BLOCK, back, BLOCK);
        assert_memory_equal(back, block, BLOCK);
    }
    wr_fault_set(WR_FAULT_WRITE, 0, false);
    wr_store_fault_script.fail_errno = 0;
    wr_store_close(&s);

    /* A limit of the system's own, in a process of its own: no signal, the bytes before stay. */
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {3 * BLOCK, 3 * BLOCK};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || wr_store_open_temporary(&s, folder, WEIR_DIRECT_AUTO, NULL, &err) != 0) _exit(10);
        if (wr_store_reserve(&s, 4 * BLOCK, &err) != WEIR_E_WRITE || s.file.bytes != 0 || strstr(err.text, "make room") == NULL) _exit(11);
        for (int i = 0; i < 3; i++)
            if (wr_store_write(&s, (uint64_t)i * BLOCK, block, BLOCK, &err) != 0) _exit(12);
        if (wr_store_write(&s, 3 * BLOCK, block, BLOCK, &err) != WEIR_E_WRITE || strstr(err.text, "make room") == NULL) _exit(13);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    munmap(block, BLOCK);
    munmap(back, BLOCK);
}

static void refuses(const char *what, bool temporary, bool create, int code, const char *words)
{
    struct wr_store s;
    weir_err err = {0};
    int fds = count_entries("/proc/self/fd");
    int rc = temporary ? wr_store_open_temporary(&s, what, WEIR_DIRECT_AUTO, NULL, &err) : wr_store_open_named(&s, what, create, WEIR_DIRECT_AUTO, NULL, &err);
    assert_int_equal(rc, code);
    assert_int_equal(err.code, code);
    if (strstr(err.text, words) == NULL) fail_msg("'%s' lacks '%s'", err.text, words);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
}

static void opens_and_refuses(void **state)
{
    (void)state;
    struct wr_store s;
    weir_err err = {0};
    uint8_t *block = random_block(3), *back;
    refuses("", true, false, WEIR_E_OPEN, "empty");
    refuses(in_folder("missing"), true, false, WEIR_E_OPEN, "No such file");
    refuses(in_folder("missing"), false, false, WEIR_E_OPEN, "No such file");
    refuses(folder, false, false, WEIR_E_OPEN, "directory");
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    refuses(in_folder("fifo"), false, false, WEIR_E_OPEN, "not a regular file");
    if (is_tmpfs("/dev/shm") && access("/dev/shm", W_OK) == 0) {
        int before = count_entries("/dev/shm");
        refuses("/dev/shm", true, false, WEIR_E_OPEN, "in memory");
        refuses("/dev/shm/weir-test-store", false, true, WEIR_E_OPEN, "in memory");
        assert_int_equal(count_entries("/dev/shm"), before);
    }
    assert_int_equal(wr_store_open_named(&s, in_folder("named"), true, WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(wr_store_write(&s, 0, block, BLOCK, &err), 0);
    wr_store_close(&s);
    refuses(in_folder("named"), false, true, WEIR_E_OPEN, "File exists");
    assert_int_equal(wr_store_open_named(&s, in_folder("named"), false, WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(s.file.bytes, BLOCK);
    assert_int_equal(wr_store_write(&s, BLOCK, block, BLOCK, &err), 0);
    wr_store_close(&s);
    back = read_plainly(in_folder("named"), 2 * BLOCK);
    assert_memory_equal(back, block, BLOCK);
    assert_memory_equal(back + BLOCK, block, BLOCK);
    free(back);
    munmap(block, BLOCK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_nothing),
        cmocka_unit_test(writes_all_bytes),
        cmocka_unit_test(names_what_failed),
        cmocka_unit_test(opens_and_refuses),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
