/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of src/io share: a scratch folder, files of known bytes, a log that counts, memory to read into. */
#ifndef TEST_IO_COMMON_H
#define TEST_IO_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "io/io.h"

static char folder[256]; /* of this run, on whatever file system the tests run */

static inline const char *in_folder(const char *name)
{
    static char path[4][600];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "io-test-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    DIR *d = opendir(folder);
    if (d == NULL) return -1;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (e->d_name[0] != '.') unlink(in_folder(e->d_name));
    closedir(d);
    return rmdir(folder);
}

static inline uint64_t next_random(uint64_t *x) /* xorshift64* */
{
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return *x * 0x2545F4914F6CDD1Du;
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    for (size_t at = 0; at < n;) {
        ssize_t w = write(fd, (const uint8_t *)bytes + at, n - at);
        assert_true(w > 0);
        at += (size_t)w;
    }
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static inline void write_random(const char *path, size_t n, uint64_t seed)
{
    uint8_t *bytes = malloc(n + 8);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = next_random(&seed);
        memcpy(bytes + i, &r, 8);
    }
    write_file(path, bytes, n);
    free(bytes);
}

/* The oracle: the whole file by plain read(), in memory that is the caller's to free. */
static inline uint8_t *read_plainly(const char *path, size_t n)
{
    uint8_t *bytes = malloc(n + 1);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    size_t got = 0;
    for (;;) {
        ssize_t r = read(fd, bytes + got, n + 1 - got);
        assert_true(r >= 0);
        if (r == 0) break;
        got += (size_t)r;
    }
    assert_int_equal(got, n);
    close(fd);
    return bytes;
}

static inline void *take_memory(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

struct notes {
    int n_warn, n_info;
    char last[1024], all[4096];
};
static inline void note(void *user, enum weir_log_level level, const char *line)
{
    struct notes *notes = user;
    if (level == WEIR_LOG_WARN) notes->n_warn++;
    if (level == WEIR_LOG_INFO) notes->n_info++;
    snprintf(notes->last, sizeof notes->last, "%s", line);
    size_t n = strlen(notes->all);
    snprintf(notes->all + n, sizeof notes->all - n, "%s\n", line);
}

static inline int count_entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n++;
    closedir(d);
    return n;
}

static inline int is_tmpfs(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && (uint32_t)fs.f_type == 0x01021994;
}

/* Pages of 4096 bytes of the file that are in the page cache. */
static inline int resident_pages(int fd, size_t n)
{
    unsigned char *pages = malloc(n / 4096);
    void *map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    int resident = 0;
    assert_true(map != MAP_FAILED);
    assert_int_equal(mincore(map, n, pages), 0);
    for (size_t i = 0; i < n / 4096; i++) resident += pages[i] & 1;
    munmap(map, n);
    free(pages);
    return resident;
}

/* Does this file system do direct I/O? Asked in the crudest way, with the strictest alignment. */
static inline int folder_is_direct(void)
{
    if (is_tmpfs(folder)) return 0;
    write_random(in_folder("direct-test"), 4096, 1);
    int fd = open(in_folder("direct-test"), O_RDONLY | O_DIRECT);
    if (fd < 0) return 0;
    void *page = take_memory(4096);
    ssize_t n = pread(fd, page, 4096, 0);
    munmap(page, 4096);
    close(fd);
    return n == 4096;
}

#endif
