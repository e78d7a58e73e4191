/* SPDX-License-Identifier: Apache-2.0 */
#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static bool is_standard_output(const struct stat *there)
{
    struct stat about;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &about) == 0 && about.st_dev == there->st_dev && about.st_ino == there->st_ino) return true;
    return false;
}

int wr_outfile_open(struct wr_outfile *file, const char *path, struct wr_ledger *ledger, enum wr_account account, weir_err *err)
{
    *file = (struct wr_outfile){.fd = -1, .path = path};
    struct stat there;
    char target[PATH_MAX];
    if (!*path) return wr_err(err, WEIR_E_OPEN, "the name of the file to write is empty");
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return wr_err(err, WEIR_E_OPEN, "%s: exists and is not a regular file; choose another name", wr_file_label(path));
    if (stat(path, &there) == 0 && is_standard_output(&there))
        return wr_err(err, WEIR_E_OPEN, "%s: is where standard output or standard error goes; choose another name", wr_file_label(path));
    bool link = lstat(path, &there) == 0 && S_ISLNK(there.st_mode);
    if (link && realpath(path, target) == NULL)
        return wr_err_errno(err, WEIR_E_OPEN, errno, "%s: is a symbolic link that leads to no file; remove it or choose another name", wr_file_label(path));
    const char *place = link ? target : path;
    /* A short name of its own, since the path's last part may be as long as the system allows; that it is not longer is asked now. */
    const char *slash = strrchr(place, '/'), *name = slash ? slash + 1 : place;
    size_t folder = (size_t)(name - place), room = folder + 48;
    if (!*name) return wr_err(err, WEIR_E_OPEN, "%s: names a folder; name a file in it", wr_file_label(path));
    if (strlen(name) > NAME_MAX)
        return wr_err(err, WEIR_E_OPEN, "%s: the name has %zu bytes, %d are possible; choose a shorter one", wr_file_label(path), strlen(name), NAME_MAX);
    file->part = wr_mem_alloc(ledger, account, room + (link ? strlen(target) + 1 : 0), err);
    if (!file->part) return err != NULL ? err->code : WEIR_E_NOMEM;
    file->place = link ? memcpy(file->part + room, target, strlen(target) + 1) : path;
    memcpy(file->part, place, folder);
    for (unsigned i = 0; i < 100 && file->fd < 0; i++) {
        snprintf(file->part + folder, room - folder, ".weir-%ld-%u.part", (long)getpid(), i);
        file->fd = open(file->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->fd < 0 && errno != EEXIST) break;
    }
    if (file->fd >= 0) return 0;
    int code = wr_err_errno(err, WEIR_E_OPEN, errno, "%s: cannot create a file in its folder", wr_file_label(path));
    wr_mem_free(file->part);
    file->part = NULL;
    return code;
}

/* What a full disk says: the need, and where known what there is. */
static int failed(const struct wr_outfile *file, uint64_t need, int reason, weir_err *err)
{
    struct statvfs disk;
    if (reason == ENOSPC && fstatvfs(file->fd, &disk) == 0) {
        unsigned long long there = (unsigned long long)disk.f_bavail * disk.f_frsize;
        return wr_err_errno(err, WEIR_E_WRITE, reason, "%s: %llu bytes are needed, %llu are free; make room or choose another place", wr_file_label(file->path),
            (unsigned long long)need, there);
    }
    if (reason == EFBIG || reason == ENOSPC || reason == EDQUOT)
        return wr_err_errno(err, WEIR_E_WRITE, reason, "%s: %llu bytes are needed", wr_file_label(file->path), (unsigned long long)need);
    return wr_err_errno(err, WEIR_E_WRITE, reason, "%s: cannot write", wr_file_label(file->path));
}

int wr_outfile_reserve(struct wr_outfile *file, uint64_t bytes, weir_err *err)
{
    if (bytes > INT64_MAX) return failed(file, bytes, EFBIG, err);
#ifdef __linux__
    if (bytes > 0 && fallocate(file->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) {
        int reason = errno;
        (void)!ftruncate(file->fd, 0); /* so that what was taken does not count as used in the message */
        return failed(file, bytes, reason, err);
    }
#endif
    return 0;
}

int wr_outfile_write(struct wr_outfile *file, uint64_t offset, const void *bytes, size_t n, weir_err *err)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t done = pwrite(file->fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return failed(file, offset + n, done == 0 ? EIO : errno, err);
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return 0;
}

/* The rename itself must survive a power cut too; some file systems cannot sync a folder, which is no failure of the file. */
static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash == NULL || slash == path ? 1 : (size_t)(slash - path);
    if (n >= sizeof folder) return;
    memcpy(folder, slash == NULL ? "." : path, n);
    folder[n] = 0;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

int wr_outfile_commit(struct wr_outfile *file, weir_err *err)
{
    struct stat about;
    uint64_t size = fstat(file->fd, &about) == 0 ? (uint64_t)about.st_size : 0;
    if (fsync(file->fd) != 0 && errno != EINVAL) return failed(file, size, errno, err);
    int closed = close(file->fd);
    file->fd = -1;
    if (closed != 0) return wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot write", wr_file_label(file->path));
    if (rename(file->part, file->place) != 0)
        return wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot put the finished file there", wr_file_label(file->path));
    file->committed = true;
    sync_folder(file->place);
    return 0;
}

void wr_outfile_discard(struct wr_outfile *file)
{
    if (!file->part) return;
    if (file->fd >= 0) close(file->fd);
    if (!file->committed) unlink(file->part);
    wr_mem_free(file->part);
    file->part = NULL;
}
