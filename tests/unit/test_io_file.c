/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, refusing, exact reads, changes of a file while it is open. */
#include "test_io_common.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

static void opens_a_file(void **state)
{
    (void)state;
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    struct wr_file file;
    struct stat st;
    weir_err err = {0};
    int direct = folder_is_direct();
    write_random(in_folder("plain"), 10007, 3);
    assert_int_equal(stat(in_folder("plain"), &st), 0);

    assert_int_equal(wr_file_open(&file, in_folder("plain"), WEIR_DIRECT_AUTO, &log, &err), 0);
    assert_int_equal(file.bytes, 10007);
    assert_int_equal(file.fingerprint[0], st.st_dev);
    assert_int_equal(file.fingerprint[1], st.st_ino);
    assert_int_equal(file.fingerprint[2], 10007);
    assert_int_equal(file.fingerprint[3], (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    assert_string_equal(file.path, in_folder("plain"));
    assert_int_equal(fcntl(file.fd_buffered, F_GETFL) & (O_NONBLOCK | O_DIRECT), 0);
    if (direct) {
        assert_true(file.fd_direct >= 0);
        assert_int_equal(fcntl(file.fd_direct, F_GETFL) & (O_NONBLOCK | O_DIRECT), O_DIRECT);
        assert_true(file.align >= 1 && file.align <= WR_IO_ALIGN && (file.align & (file.align - 1)) == 0);
        assert_int_equal(notes.n_warn, 0);
    } else {
        assert_int_equal(file.fd_direct, -1);
        assert_int_equal(notes.n_warn, 1);
    }
    wr_file_close(&file);
    wr_file_close(&file);

    assert_int_equal(wr_file_open(&file, in_folder("plain"), WEIR_DIRECT_OFF, &log, &err), 0);
    assert_int_equal(file.fd_direct, -1);
    assert_int_equal(notes.n_warn, !direct);
    wr_file_close(&file);

    write_file(in_folder("empty"), "", 0);
    assert_int_equal(wr_file_open(&file, in_folder("empty"), WEIR_DIRECT_AUTO, NULL, NULL), 0);
    assert_int_equal(file.bytes, 0);
    wr_file_close(&file);
}

/* Opens what must be refused, in at most a second (SIGALRM would end the program), untouched result, no descriptor lost. */
static void refuse(const char *path, const char *reason)
{
    struct wr_file file;
    memset(&file, 0x5A, sizeof file);
    uint8_t *before = malloc(sizeof file);
    memcpy(before, &file, sizeof file);
    weir_err err = {0};
    int fds = count_entries("/proc/self/fd");
    alarm(2);
    assert_int_equal(wr_file_open(&file, path, WEIR_DIRECT_AUTO, NULL, &err), WEIR_E_OPEN);
    assert_int_equal(wr_file_open(&file, path, WEIR_DIRECT_AUTO, NULL, NULL), WEIR_E_OPEN);
    alarm(0);
    assert_int_equal(err.code, WEIR_E_OPEN);
    if (strstr(err.text, reason) == NULL) fail_msg("'%s' lacks '%s'", err.text, reason);
    assert_memory_equal(&file, before, sizeof file);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    free(before);
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    refuse(folder, "folder");
    assert_int_equal(mkfifo(in_folder("fifo"), 0644), 0);
    refuse(in_folder("fifo"), "FIFO");
    refuse("/dev/null", "character device");
    refuse("/dev/zero", "character device");
    refuse(in_folder("missing"), "No such file");
    refuse("", "No such file");
    assert_int_equal(symlink("missing", in_folder("dangling")), 0);
    refuse(in_folder("dangling"), "No such file");
    assert_int_equal(symlink("loop", in_folder("loop")), 0);
    refuse(in_folder("loop"), "symbolic links");
    char endless[5000];
    memset(endless, 'a', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    refuse(endless, "too long");
    assert_int_equal(symlink("fifo", in_folder("to-fifo")), 0);
    refuse(in_folder("to-fifo"), "FIFO");

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in_folder("socket"));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&address, sizeof address), 0);
    refuse(in_folder("socket"), "socket");
    close(s);
}

static void refuses_without_permission(void **state)
{
    (void)state;
    write_random(in_folder("secret"), 100, 4);
    assert_int_equal(chmod(in_folder("secret"), 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    char here[4096], path[4400];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s", in_folder("secret"));
    bool root = geteuid() == 0;
    if (root) assert_int_equal(seteuid(65534), 0);
    refuse(path, "Permission denied");
    if (root) assert_int_equal(seteuid(0), 0);
}

/* The reason must survive a path that is longer than the whole message. */
static void long_paths_keep_the_reason(void **state)
{
    (void)state;
    char name[252], path[600];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    refuse(name, "No such file");
    for (size_t i = 0; i + 2 < sizeof name; i += 2) memcpy(name + i, "\xC3\xBC", 2);
    name[250] = '\0';
    snprintf(path, sizeof path, "%s/%s", folder, name);
    refuse(path, "No such file");
    snprintf(path, sizeof path, "%s/%s/model.gguf", folder, name);
    refuse(path, "model.gguf: No such file");
}

static void tmpfs_is_buffered(void **state)
{
    (void)state;
    if (!is_tmpfs("/dev/shm")) skip();
    char path[64] = "/dev/shm/weir-io-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 8192), 0);
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    struct wr_file file;
    weir_err err = {0};
    assert_int_equal(wr_file_open(&file, path, WEIR_DIRECT_AUTO, &log, &err), 0);
    assert_int_equal(file.fd_direct, -1);
    assert_int_equal(notes.n_warn, 1);
    assert_non_null(strstr(notes.last, "page cache"));
    assert_non_null(strstr(notes.last, path + strlen(path) - 6));
    wr_file_close(&file);
    int fds = count_entries("/proc/self/fd");
    assert_int_equal(wr_file_open(&file, path, WEIR_DIRECT_ON, &log, &err), WEIR_E_OPEN);
    assert_int_equal(notes.n_warn, 1);
    assert_non_null(strstr(err.text, "in memory"));
    assert_non_null(strstr(err.text, "--direct auto"));
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    close(fd);
    unlink(path);
}

static void reads_exactly(void **state)
{
    (void)state;
    enum { N = 100003 };
    struct wr_file file;
    weir_err err = {0};
    write_random(in_folder("exact"), N, 5);
    uint8_t *oracle = read_plainly(in_folder("exact"), N), *bytes = malloc(N + 2);
    assert_int_equal(wr_file_open(&file, in_folder("exact"), WEIR_DIRECT_AUTO, NULL, &err), 0);
    uint64_t x = 6;
    for (int i = 0; i < 300; i++) {
        uint64_t at = next_random(&x) % (N + 1), n = next_random(&x) % (N - at + 1);
        memset(bytes, 0xEE, N + 2);
        assert_int_equal(wr_file_read(&file, at, bytes + 1, n, &err), 0);
        assert_memory_equal(bytes + 1, oracle + at, n);
        assert_int_equal(bytes[0], 0xEE);
        assert_int_equal(bytes[n + 1], 0xEE);
    }
    assert_int_equal(wr_file_read(&file, N, bytes, 0, &err), 0);
    static const struct {
        uint64_t at, n;
    } beyond[] = {{N, 1}, {N - 1, 2}, {0, N + 1}, {UINT64_MAX, 1}, {UINT64_MAX - 3, 8}, {(uint64_t)1 << 63, 4}};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        assert_int_equal(wr_file_read(&file, beyond[i].at, bytes, beyond[i].n, &err), WEIR_E_READ);
        assert_non_null(strstr(err.text, "truncated"));
        assert_non_null(strstr(err.text, "100003"));
    }
    wr_fault_set(WR_FAULT_READ, 2, false);
    assert_int_equal(wr_file_read(&file, 0, bytes, 10, &err), 0);
    assert_int_equal(wr_file_read(&file, 50, bytes, 10, &err), WEIR_E_READ);
    assert_non_null(strstr(err.text, "offset 50"));
    assert_non_null(strstr(err.text, "exact"));
    assert_int_equal(wr_file_read(&file, 0, bytes, 10, &err), 0);
    wr_fault_set(WR_FAULT_READ, 0, false);

    assert_int_equal(truncate(in_folder("exact"), 70000), 0);
    assert_int_equal(wr_file_read(&file, 69999, bytes, 1, &err), 0);
    assert_int_equal(wr_file_read(&file, 60000, bytes, 20000, &err), WEIR_E_READ);
    assert_non_null(strstr(err.text, "truncated"));
    assert_non_null(strstr(err.text, "70000"));
    wr_file_close(&file);
    free(oracle);
    free(bytes);
}

static void notices_changes(void **state)
{
    (void)state;
    struct wr_file file;
    weir_err err = {0};
    write_random(in_folder("change"), 5000, 7);
    assert_int_equal(wr_file_open(&file, in_folder("change"), WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(wr_file_check(&file, &err), 0);
    /* Another file under the same name is not this file's change. */
    write_random(in_folder("other"), 5000, 8);
    assert_int_equal(rename(in_folder("other"), in_folder("change")), 0);
    assert_int_equal(wr_file_check(&file, &err), 0);
    wr_file_close(&file);

    assert_int_equal(wr_file_open(&file, in_folder("change"), WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(truncate(in_folder("change"), 4999), 0);
    assert_int_equal(wr_file_check(&file, &err), WEIR_E_CHANGED);
    assert_non_null(strstr(err.text, "5000"));
    assert_non_null(strstr(err.text, "4999"));
    wr_file_close(&file);

    assert_int_equal(wr_file_open(&file, in_folder("change"), WEIR_DIRECT_AUTO, NULL, &err), 0);
    usleep(20000); /* the clock of mtime ticks every 1 to 10 ms */
    int fd = open(in_folder("change"), O_WRONLY);
    assert_int_equal(pwrite(fd, "z", 1, 17), 1);
    close(fd);
    assert_int_equal(wr_file_check(&file, &err), WEIR_E_CHANGED);
    wr_file_close(&file);
}

static void drops_the_page_cache(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    if (is_tmpfs(folder) || sysconf(_SC_PAGESIZE) != 4096) skip();
    struct wr_file file;
    weir_err err = {0};
    write_random(in_folder("cached"), N, 9);
    uint8_t *bytes = malloc(N);
    assert_int_equal(wr_file_open(&file, in_folder("cached"), WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(wr_file_read(&file, 0, bytes, N, &err), 0);
    assert_true(resident_pages(file.fd_buffered, N) > 0);
    wr_file_drop_cache(&file);
    assert_int_equal(resident_pages(file.fd_buffered, N), 0);
    wr_file_close(&file);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_a_file),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_without_permission),
        cmocka_unit_test(long_paths_keep_the_reason),
        cmocka_unit_test(tmpfs_is_buffered),
        cmocka_unit_test(reads_exactly),
        cmocka_unit_test(notices_changes),
        cmocka_unit_test(drops_the_page_cache),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
