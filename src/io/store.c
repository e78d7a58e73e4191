/* SPDX-License-Identifier: Apache-2.0 */
#include "io/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "io/core.h"

struct wr_store_fault_script wr_store_fault_script;

static const char *label_of(const struct wr_store *s) { return wr_file_label(s->file.path); }

/* ---- opening -------------------------------------------------------------------------- */

/* By this name the file is opened a second time, and gets a name at its end. */
static void own_path(char path[64], int fd) { snprintf(path, 64, "/proc/self/fd/%d", fd); }

static int make_unnamed(const char *folder, bool *linkable, weir_err *err)
{
    int fd;
#ifdef O_TMPFILE
    do fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* it holds what people wrote: for them alone */
    while (fd < 0 && errno == EINTR);
    char own[64];
    own_path(own, fd);
    *linkable = fd >= 0 && access(own, F_OK) == 0; /* it is not where /proc is not mounted: known now, and not when all is written */
    if (fd >= 0) return fd;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)
        return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot make a file in %s", wr_file_label(folder));
#endif
    char path[4096 + 64];
    for (unsigned i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "%s/.weir-%ld-%u.tmp", folder, (long)getpid(), i);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST) break;
    }
    if (fd < 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot make a file in %s", wr_file_label(folder));
    if (unlink(path) != 0) {
        int reason = errno;
        close(fd);
        return wr_err_errno(err, WEIR_E_OPEN, reason, "cannot remove the name of %s", wr_file_label(path));
    }
    return fd;
}

/* The rest of opening, for a store whose fd_buffered and path are set; closes the descriptor on failure. `again`: the path by which it is opened once more. */
static int open_rest(struct wr_store *out, struct wr_store *s, const char *again, enum weir_direct direct, weir_err *err)
{
    struct wr_file *f = &s->file;
    struct stat st;
    int code, reason = 0;
    if (fstat(f->fd_buffered, &st) != 0) {
        code = wr_err_errno(err, WEIR_E_OPEN, errno, "cannot open %s", label_of(s));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        code = wr_err(err, WEIR_E_OPEN, "cannot open %s: it is not a regular file", label_of(s));
        goto fail;
    }
    if (wr_file_in_memory(f->fd_buffered)) {
        code = wr_err(err, WEIR_E_OPEN, "%s: the file system is in memory, which is what it would save; choose a folder on a disk", label_of(s));
        goto fail;
    }
    f->align = WR_IO_ALIGN;
    f->direct_required = direct == WEIR_DIRECT_ON;
    f->bytes = (uint64_t)st.st_size;
    f->fingerprint[0] = (uint64_t)st.st_dev;
    f->fingerprint[1] = (uint64_t)st.st_ino;
    const char *why = direct == WEIR_DIRECT_OFF ? NULL : wr_file_open_direct(f, again, O_RDWR, &reason);
    if (why != NULL) {
        weir_err words;
        wr_err(&words, WEIR_E_OPEN, "no direct I/O on %s: %s", label_of(s), why);
        if (reason != 0) wr_err_errno(&words, WEIR_E_OPEN, reason, "no direct I/O on %s: %s", label_of(s), why);
        if (direct == WEIR_DIRECT_ON) {
            code = wr_err(err, WEIR_E_OPEN, "%s; use --direct auto", words.text);
            goto fail;
        }
        wr_log(s->log, WEIR_LOG_WARN, "%s; writing and reading through the page cache", words.text);
    }
    *out = *s;
    return 0;
fail:
    close(f->fd_buffered);
    return code;
}

int wr_store_open_temporary(struct wr_store *out, const char *folder, enum weir_direct direct, const struct wr_log *log, weir_err *err)
{
    struct wr_store s = {.file = {.fd_direct = -1}, .log = log, .temporary = true};
    size_t n = strlen(folder);
    if (n == 0 || n + sizeof "/(a file without a name)" > sizeof s.file.path)
        return wr_err(err, WEIR_E_OPEN, "the name of the folder is %s", n == 0 ? "empty" : "too long");
    snprintf(s.file.path, sizeof s.file.path, "%s/(a file without a name)", folder);
    s.file.fd_buffered = make_unnamed(folder, &s.linkable, err);
    if (s.file.fd_buffered < 0) return s.file.fd_buffered;
    char again[64];
    own_path(again, s.file.fd_buffered);
    return open_rest(out, &s, again, direct, err);
}

int wr_store_open_named(struct wr_store *out, const char *path, bool create, enum weir_direct direct, const struct wr_log *log, weir_err *err)
{
    struct wr_store s = {.file = {.fd_direct = -1}, .log = log};
    size_t n = strlen(path);
    if (n >= sizeof s.file.path) return wr_err_errno(err, WEIR_E_OPEN, ENAMETOOLONG, "cannot open %s", wr_file_label(path));
    memcpy(s.file.path, path, n + 1);
    /* O_NONBLOCK: a FIFO is refused and not waited for. */
    do s.file.fd_buffered = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (create ? O_CREAT | O_EXCL : 0), 0600);
    while (s.file.fd_buffered < 0 && errno == EINTR);
    if (s.file.fd_buffered < 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot %s %s", create ? "create" : "open", label_of(&s));
    int set = fcntl(s.file.fd_buffered, F_GETFL);
    if (set >= 0) (void)fcntl(s.file.fd_buffered, F_SETFL, set & ~O_NONBLOCK);
    int code = open_rest(out, &s, path, direct, err);
    if (code != 0 && create) unlink(path);
    return code;
}

int wr_store_link(struct wr_store *s, const char *path, weir_err *err)
{
    char own[64];
    size_t n = strlen(path);
    own_path(own, s->file.fd_buffered);
    int reason = !s->linkable ? EOPNOTSUPP : n >= sizeof s->file.path ? ENAMETOOLONG : 0;
    if (reason == 0 && linkat(AT_FDCWD, own, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0) reason = errno;
    if (reason != 0) return wr_err_errno(err, WEIR_E_OPEN, reason, "cannot create %s", wr_file_label(path));
    memcpy(s->file.path, path, n + 1);
    s->temporary = s->linkable = false;
    return 0;
}

void wr_store_close(struct wr_store *s) { wr_file_close(&s->file); }

/* ---- writing -------------------------------------------------------------------------- */

static bool is_full(int reason) { return reason == ENOSPC || reason == EDQUOT || reason == EFBIG; }

static int failed(const struct wr_store *s, int reason, uint64_t offset, uint64_t n, weir_err *err)
{
    struct statvfs disk;
    unsigned long long at = offset, bytes = n;
    if (is_full(reason) && fstatvfs(s->file.fd_buffered, &disk) == 0)
        return wr_err_errno(err, WEIR_E_WRITE, reason, "%s: %llu bytes at offset %llu are to be written, %llu are free; make room or choose another folder",
            label_of(s), bytes, at, (unsigned long long)disk.f_bavail * disk.f_frsize);
    return wr_err_errno(err, WEIR_E_WRITE, reason, "%s: cannot write %llu bytes at offset %llu", label_of(s), bytes, at);
}

int wr_store_reserve(struct wr_store *s, uint64_t bytes, weir_err *err)
{
    uint64_t before = s->file.bytes;
    if (bytes > INT64_MAX) return failed(s, EFBIG, 0, bytes, err);
    if (bytes > before) {
        int reason = 0;
#ifdef __linux__
        /* File systems without fallocate get their blocks as they are written. */
        if (fallocate(s->file.fd_buffered, 0, (off_t)before, (off_t)(bytes - before)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
            reason = errno;
#endif
        if (reason == 0 && ftruncate(s->file.fd_buffered, (off_t)bytes) != 0) reason = errno;
        if (reason != 0) {
            (void)!ftruncate(s->file.fd_buffered, (off_t)before); /* so that what was taken does not count as used in the message */
            return failed(s, reason, before, bytes - before, err);
        }
        s->file.bytes = bytes;
    }
    return 0;
}

int wr_store_cut(struct wr_store *s, uint64_t bytes, weir_err *err)
{
    if (bytes > INT64_MAX) return failed(s, EFBIG, 0, bytes, err);
    int rc;
    do rc = ftruncate(s->file.fd_buffered, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    if (rc != 0) return wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot be made %llu bytes long", label_of(s), (unsigned long long)bytes);
    s->file.bytes = bytes;
    return 0;
}

static ssize_t write_once(struct wr_store *s, bool direct, const uint8_t *p, size_t n, uint64_t offset, bool first)
{
    const struct wr_store_fault_script *script = &wr_store_fault_script;
    if (direct && script->refuse_direct) {
        errno = EINVAL;
        return -1;
    }
    if (script->short_writes && first && n > 1) n = direct && n > s->file.align ? s->file.align : n / 2 + 1;
    return pwrite(direct ? s->file.fd_direct : s->file.fd_buffered, p, n, (off_t)offset);
}

int wr_store_write(struct wr_store *s, uint64_t offset, const void *src, size_t n, weir_err *err)
{
    const struct wr_store_fault_script *script = &wr_store_fault_script;
    const uint64_t mask = s->file.align - 1;
    const uint8_t *p = src;
    size_t done = 0;
    if (script->delay_ns > 0) {
        struct timespec pause = {.tv_sec = (time_t)(script->delay_ns / 1000000000u), .tv_nsec = (long)(script->delay_ns % 1000000000u)};
        nanosleep(&pause, NULL);
    }
    if (wr_fault_hit(WR_FAULT_WRITE)) return failed(s, script->fail_errno != 0 ? script->fail_errno : EIO, offset, n, err);
    while (done < n) {
        bool direct =
            s->file.fd_direct >= 0 && !s->write_refused && ((offset + done) & mask) == 0 && ((n - done) & mask) == 0 && ((uintptr_t)(p + done) & mask) == 0;
        ssize_t w = write_once(s, direct, p + done, n - done, offset + done, done == 0);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0 && direct && (errno == EINVAL || errno == EOPNOTSUPP || errno == EFAULT)) {
            if (s->file.direct_required)
                return wr_err_errno(
                    err, WEIR_E_WRITE, errno, "%s refuses direct writes at offset %llu (use --direct auto)", label_of(s), (unsigned long long)offset + done);
            weir_err words;
            s->write_refused = true;
            wr_err_errno(&words, WEIR_E_WRITE, errno, "%s: a direct write was refused, writing through the page cache from now on", label_of(s));
            wr_log(s->log, WEIR_LOG_WARN, "%s", words.text);
            continue;
        }
        if (w <= 0) return failed(s, w == 0 ? ENOSPC : errno, offset + done, n - done, err);
        done += (size_t)w;
    }
    if (offset + n > s->file.bytes) s->file.bytes = offset + n;
    s->bytes_written += n;
    return 0;
}

int wr_store_sync(struct wr_store *s, weir_err *err)
{
    int rc;
    do rc = fdatasync(s->file.fd_buffered);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : wr_err_errno(err, WEIR_E_WRITE, errno, "%s: what was written cannot be brought to the disk", label_of(s));
}
