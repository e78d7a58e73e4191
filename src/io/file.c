/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files for reading: what may be opened, whether direct I/O works on it, and exact reads of headers. Two descriptors of the
 * same file: one for direct reads, one for the page cache (headers, and whatever direct I/O turns out to refuse).
 */
#include "io/core.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- what may be opened --------------------------------------------------------------- */

static int refuse_irregular(const struct stat *st, const char *label, weir_err *err)
{
    if (S_ISREG(st->st_mode)) return 0;
    const char *what = S_ISDIR(st->st_mode)    ? "a folder; name a file in it"
                       : S_ISFIFO(st->st_mode) ? "a FIFO; only regular files can be read at any offset"
                       : S_ISSOCK(st->st_mode) ? "a socket; only regular files can be read at any offset"
                       : S_ISCHR(st->st_mode)  ? "a character device; only regular files can be read at any offset"
                       : S_ISBLK(st->st_mode)  ? "a block device; only regular files can be read at any offset"
                                               : "not a regular file";
    return wr_err(err, WEIR_E_OPEN, "cannot open %s: it is %s", label, what);
}

static int open_retry(const char *path, int flags)
{
    int fd;
    do fd = open(path, O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return -1;
    /* O_NONBLOCK was for the case that a FIFO took the file's place; io_uring would answer EAGAIN because of it. */
    int set = fcntl(fd, F_GETFL);
    if (set >= 0) (void)fcntl(fd, F_SETFL, set & ~O_NONBLOCK);
    return fd;
}

/* ---- direct I/O ----------------------------------------------------------------------- */

/* statx as the kernel lays it out: C libraries before 2.37 lack the two alignments, which Linux reports since 6.1. */
struct statx_alignment {
    uint32_t mask;
    uint8_t before[148];
    uint32_t memory, offset;
    uint8_t after[96];
};
_Static_assert(sizeof(struct statx_alignment) == 256, "struct statx of the kernel");
#define MASK_DIOALIGN 0x2000u

#define MAGIC_TMPFS 0x01021994
#define MAGIC_RAMFS 0x858458f6
#define MAGIC_HUGETLBFS 0x958458f6

bool wr_file_in_memory(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0) return false;
    uint32_t magic = (uint32_t)fs.f_type;
    return magic == MAGIC_TMPFS || magic == MAGIC_RAMFS || magic == MAGIC_HUGETLBFS;
}

/* 0, or what is in the way. `align` is what direct reads need. */
static const char *direct_alignment(int fd, uint32_t *align)
{
    struct statx_alignment sx;
    memset(&sx, 0, sizeof sx);
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, MASK_DIOALIGN, &sx) == 0 && (sx.mask & MASK_DIOALIGN) != 0) {
        if (sx.memory == 0 || sx.offset == 0) return "the file system has none for this file";
        *align = sx.memory > sx.offset ? sx.memory : sx.offset;
        if (*align > WR_IO_ALIGN || (*align & (*align - 1)) != 0) return "it would need an alignment other than up to 4096 bytes";
        return NULL;
    }
    /* No answer: an older kernel, or a file system that does not say (FUSE, NFS). Those in memory accept O_DIRECT and do nothing by it. */
    if (wr_file_in_memory(fd)) return "the file system is in memory";
    *align = WR_IO_ALIGN;
    return NULL;
}

__attribute__((noinline)) const char *wr_file_open_direct(struct wr_file *file, const char *path, int flags, int *errno_value)
{
    _Alignas(WR_IO_ALIGN) uint8_t first[WR_IO_ALIGN];
    struct stat st;
    ssize_t n;
    *errno_value = 0;
    const char *why = direct_alignment(file->fd_buffered, &file->align);
    if (why != NULL) return why;
    int fd = open_retry(path, flags | O_DIRECT);
    if (fd < 0) {
        *errno_value = errno;
        return "opening for it failed";
    }
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_dev != file->fingerprint[0] || (uint64_t)st.st_ino != file->fingerprint[1]) {
        why = "the file was replaced meanwhile";
        goto refuse;
    }
    /* Some file systems accept the open and refuse the read. */
    do n = pread(fd, first, sizeof first, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EINVAL || errno == EOPNOTSUPP || errno == EFAULT)) {
        *errno_value = errno;
        why = "reading with it failed";
        goto refuse;
    }
    file->fd_direct = fd;
    return NULL;
refuse:
    close(fd);
    return why;
}

/* ---- the file ------------------------------------------------------------------------- */

static uint64_t mtime_ns(const struct stat *st) { return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec; }

int wr_file_open(struct wr_file *out, const char *path, enum weir_direct direct, const struct wr_log *log, weir_err *err)
{
    struct wr_file file = {.fd_direct = -1, .fd_buffered = -1, .align = WR_IO_ALIGN, .direct_required = direct == WEIR_DIRECT_ON};
    const char *label = wr_file_label(path);
    struct stat st;
    size_t n = strlen(path);
    if (n >= sizeof file.path) return wr_err_errno(err, WEIR_E_OPEN, ENAMETOOLONG, "cannot open %s", label);
    memcpy(file.path, path, n + 1);
    /* Asked before opening, because opening a device can do things; asked again after, because the path may name another file by then. */
    if (stat(path, &st) != 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot open %s", label);
    int code = refuse_irregular(&st, label, err);
    if (code != 0) return code;
    file.fd_buffered = open_retry(path, O_RDONLY);
    if (file.fd_buffered < 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot open %s", label);
    /* Headers are read in order, but what follows them are weights: read-ahead (8 MiB on some disks) would bring those in. */
    posix_fadvise(file.fd_buffered, 0, 0, POSIX_FADV_RANDOM);
    if (fstat(file.fd_buffered, &st) != 0) {
        code = wr_err_errno(err, WEIR_E_OPEN, errno, "cannot open %s", label);
        goto fail;
    }
    code = refuse_irregular(&st, label, err);
    if (code != 0) goto fail;
    file.bytes = (uint64_t)st.st_size;
    file.fingerprint[0] = (uint64_t)st.st_dev;
    file.fingerprint[1] = (uint64_t)st.st_ino;
    file.fingerprint[2] = file.bytes;
    file.fingerprint[3] = mtime_ns(&st);
    if (direct != WEIR_DIRECT_OFF) {
        int errno_value;
        const char *why = wr_file_open_direct(&file, path, O_RDONLY, &errno_value);
        if (why != NULL) {
            weir_err words;
            wr_err(&words, WEIR_E_OPEN, "no direct I/O on %s: %s", label, why);
            if (errno_value != 0) wr_err_errno(&words, WEIR_E_OPEN, errno_value, "no direct I/O on %s: %s", label, why);
            if (direct == WEIR_DIRECT_ON) {
                code = wr_err(err, WEIR_E_OPEN, "%s; use --direct auto", words.text);
                goto fail;
            }
            wr_log(log, WEIR_LOG_WARN, "%s; reading through the page cache", words.text);
        }
    }
    *out = file;
    return 0;
fail:
    close(file.fd_buffered);
    return code;
}

void wr_file_close(struct wr_file *file)
{
    if (file->fd_direct >= 0) close(file->fd_direct);
    if (file->fd_buffered >= 0) close(file->fd_buffered);
    file->fd_direct = file->fd_buffered = -1;
}

int wr_file_read(const struct wr_file *file, uint64_t offset, void *dst, size_t n, weir_err *err)
{
    const char *label = wr_file_label(file->path);
    unsigned long long at = offset, size = file->bytes;
    uint64_t end;
    if (!wr_add_u64(offset, n, &end) || end > file->bytes)
        return wr_err(err, WEIR_E_READ, "%s is truncated: %zu bytes at offset %llu are needed, it has %llu bytes", label, n, at, size);
    if (wr_fault_hit(WR_FAULT_READ)) return wr_err_errno(err, WEIR_E_READ, EIO, "cannot read %zu bytes of %s at offset %llu", n, label, at);
    size_t got = 0;
    while (got < n) {
        ssize_t r = pread(file->fd_buffered, (uint8_t *)dst + got, n - got, (off_t)(offset + got));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return wr_err_errno(err, WEIR_E_READ, errno, "cannot read %zu bytes of %s at offset %llu", n - got, label, at + got);
        if (r == 0) return wr_err(err, WEIR_E_READ, "%s was truncated while in use: it had %llu bytes, now it ends at %llu", label, size, at + got);
        got += (size_t)r;
    }
    return 0;
}

int wr_file_check(const struct wr_file *file, weir_err *err)
{
    const char *label = wr_file_label(file->path);
    struct stat st;
    if (fstat(file->fd_buffered, &st) != 0) return wr_err_errno(err, WEIR_E_CHANGED, errno, "cannot check %s", label);
    if ((uint64_t)st.st_size != file->fingerprint[2])
        return wr_err(err, WEIR_E_CHANGED, "%s changed after it was opened: %llu bytes then, %llu now; start again", label,
            (unsigned long long)file->fingerprint[2], (unsigned long long)st.st_size);
    if (mtime_ns(&st) != file->fingerprint[3]) return wr_err(err, WEIR_E_CHANGED, "%s was written to after it was opened; start again", label);
    return 0;
}

void wr_file_drop_cache(const struct wr_file *file) { (void)posix_fadvise(file->fd_buffered, 0, 0, POSIX_FADV_DONTNEED); }
