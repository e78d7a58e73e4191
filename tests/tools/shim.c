/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preload library: the C library's calls fail as the environment says, in the command as it is installed.
 *
 *   SHIM_DIRECT_OPEN=ERRNO   open with O_DIRECT fails
 *   SHIM_DIRECT_READ=N       from the Nth read of a file opened with O_DIRECT on, EINVAL
 *   SHIM_SHORT=1             reads return a random part of what was asked
 *   SHIM_EINTR=K             every Kth read fails with EINTR
 *   SHIM_EIO=N               the Nth read of large size (4096 and up) fails with EIO, and all after it
 *   SHIM_ALLOC=N             the Nth allocation (malloc, calloc, realloc, mmap) fails; SHIM_ALLOC_ALL=1: and all after it
 *   SHIM_REPORT=FILE         at the end: "reads bytes opened_for_writing allocations", of reads those of large size
 *
 * It sees pread (--io pread), not what goes through a ring.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE 4096

static struct {
    int ready;
    long direct_open, direct_read, short_reads, eintr, eio, alloc, alloc_all;
    const char *report;
} how;
static _Atomic long n_direct, n_calls, n_large, n_bytes, n_written, n_alloc;
static _Atomic unsigned long chance = 88172645463325252u;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static long value(const char *name)
{
    const char *s = getenv(name);
    return s != NULL ? strtol(s, NULL, 10) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    how.direct_open = value("SHIM_DIRECT_OPEN");
    how.direct_read = value("SHIM_DIRECT_READ");
    how.short_reads = value("SHIM_SHORT");
    how.eintr = value("SHIM_EINTR");
    how.eio = value("SHIM_EIO");
    how.alloc = value("SHIM_ALLOC");
    how.alloc_all = value("SHIM_ALLOC_ALL");
    how.report = getenv("SHIM_REPORT");
    how.ready = 1;
}

__attribute__((destructor)) static void end(void)
{
    char line[128];
    how.ready = 0;
    if (how.report == NULL) return;
    int n = snprintf(line, sizeof line, "%ld %ld %ld %ld\n", n_large, n_bytes, n_written, n_alloc);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, how.report, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0) (void)!write(fd, line, (size_t)n);
}

/* ---- files ---- */

static int open_any(const char *path, int flags, mode_t mode)
{
    if (how.ready && (flags & O_ACCMODE) != O_RDONLY) n_written++;
    if (how.direct_open != 0 && (flags & O_DIRECT) != 0) {
        errno = (int)how.direct_open;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define OPEN(name)                                                                                                                                             \
    int name(const char *path, int flags, ...)                                                                                                                 \
    {                                                                                                                                                          \
        va_list args;                                                                                                                                          \
        va_start(args, flags);                                                                                                                                 \
        mode_t mode = va_arg(args, mode_t);                                                                                                                    \
        va_end(args);                                                                                                                                          \
        return open_any(path, flags, mode);                                                                                                                    \
    }
OPEN(open)
OPEN(open64)

static ssize_t read_at(int fd, void *dst, size_t n, off_t offset)
{
    long call = ++n_calls, large = n >= LARGE ? ++n_large : 0;
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT) != 0 && how.direct_read != 0 && ++n_direct >= how.direct_read) {
        errno = EINVAL;
        return -1;
    }
    if (how.eintr != 0 && call % how.eintr == 0) {
        errno = EINTR;
        return -1;
    }
    if (how.eio != 0 && large >= how.eio) {
        errno = EIO;
        return -1;
    }
    if (how.short_reads != 0 && n > 1) {
        unsigned long x = chance;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        chance = x;
        size_t part = 1 + x % (n - 1);
        n = flags >= 0 && (flags & O_DIRECT) != 0 ? (part + 511) / 512 * 512 : part; /* the system can do no other where reads are direct */
    }
    ssize_t got = syscall(SYS_pread64, fd, dst, n, offset);
    if (got > 0 && large != 0) n_bytes += got;
    return got;
}

ssize_t pread(int fd, void *dst, size_t n, off_t offset) { return read_at(fd, dst, n, offset); }
ssize_t pread64(int fd, void *dst, size_t n, off64_t offset) { return read_at(fd, dst, n, offset); }

/* ---- memory ---- */

static int refused(void)
{
    if (!how.ready) return 0;
    long n = ++n_alloc;
    if (how.alloc == 0 || (how.alloc_all ? n < how.alloc : n != how.alloc)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return refused() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return refused() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return refused() ? NULL : __libc_realloc(p, n); }

static void *map(void *address, size_t n, int protection, int flags, int fd, off_t offset)
{
    return refused() ? MAP_FAILED : (void *)syscall(SYS_mmap, address, n, protection, flags, fd, offset);
}
void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset) { return map(address, n, protection, flags, fd, offset); }
void *mmap64(void *address, size_t n, int protection, int flags, int fd, off64_t offset) { return map(address, n, protection, flags, fd, offset); }
