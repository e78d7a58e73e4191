/* SPDX-License-Identifier: Apache-2.0 */
/* A saved context that is being made: without a name, or under one of its own, until it may take its place. */
#include "memory/kvfile_private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether something is there, and whether it may be replaced. */
static int look(const char *path, bool *there, weir_err *err)
{
    struct stat st;
    *there = false;
    if (stat(path, &st) != 0) {
        if (errno == ENOENT && lstat(path, &st) != 0) return 0;
        return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot write %s", wr_file_label(path));
    }
    *there = true;
    return S_ISREG(st.st_mode) && wr_kvfile_is(path)
               ? 0
               : wr_err(err, WEIR_E_OPEN, "%s: is there and is no saved context; choose another name", wr_file_label(path));
}

static size_t folder_bytes(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
}

static void part_name(char *part, size_t room, const char *folder, unsigned i)
{
    snprintf(part, room, "%s%s.weir-%ld-%u.part", folder, *folder == '\0' || strcmp(folder, "/") == 0 ? "" : "/", (long)getpid(), i);
}

/* A name of its own for the file, where it has none. */
static int take_part_name(struct wr_kvfile *f, const char *folder, bool create, enum weir_direct direct, const struct wr_log *log, weir_err *err)
{
    int rc = WEIR_E_OPEN;
    for (unsigned i = 0; rc < 0 && i < 100; i++) {
        part_name(f->part, PATH_MAX, folder, i);
        rc = create ? wr_store_open_named(&f->store, f->part, true, direct, log, err) : wr_store_link(&f->store, f->part, err);
        if (rc < 0 && access(f->part, F_OK) != 0) break;
    }
    if (rc < 0) f->part[0] = '\0';
    return rc;
}

/* The folder, so that a name in it survives a power cut too; some file systems cannot, which is no failure of the file. */
static void sync_folder(const char *folder)
{
    int fd = open(*folder != '\0' ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

/* What is there is replaced and never written: others may go on reading it, but who writes it, or replaces it too, would lose what they have or take
 * this one's. flock keeps the first away, a lock of the other kind the second, as flock has none that lets readers be. */
static int hold_old(struct wr_kvfile *f, weir_err *err)
{
    f->old_fd = open(f->place, O_RDWR | O_CLOEXEC);
    if (f->old_fd < 0) f->old_fd = open(f->place, O_RDONLY | O_CLOEXEC);
    if (f->old_fd < 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot open %s", wr_kvfile_label(f));
    int rc = wr_kvfile_lock(f, f->old_fd, false, err);
#ifdef F_OFD_SETLK
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (rc == 0 && fcntl(f->old_fd, F_OFD_SETLK, &all) != 0 && (errno == EAGAIN || errno == EACCES))
        rc = wr_err(err, WEIR_E_OPEN, "%s: another process replaces it; wait for its end or choose another name", wr_kvfile_label(f));
#endif
    return rc;
}

/* Right before it is replaced: whether it is still what was there at first. */
static int look_again(const struct wr_kvfile *f, weir_err *err)
{
    bool there;
    struct stat now, old;
    int rc = look(f->place, &there, err);
    if (rc < 0 || !there) return rc;
    if (stat(f->place, &now) == 0 && fstat(f->old_fd, &old) == 0 && now.st_dev == old.st_dev && now.st_ino == old.st_ino) return 0;
    return wr_err(err, WEIR_E_OPEN, "%s: another process put a saved context there meanwhile; choose another name", wr_kvfile_label(f));
}

int wr_kvfile_create(struct wr_kvfile *out, const char *path, const struct wr_kvfile_about *about, const struct wr_kvfile_weight *weights,
    enum weir_direct direct, struct wr_ledger *ledger, const struct wr_log *log, weir_err *err)
{
    struct wr_kvfile f = {.store.file = {.fd_direct = -1, .fd_buffered = -1}, .about = *about, .old_fd = -1};
    char target[PATH_MAX];
    bool there;
    struct stat st;
    int rc = look(path, &there, err);
    if (rc < 0) return rc;
    if (there && lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, target) != NULL) path = target; /* the link stays */
    const bool has_mode = there && stat(path, &st) == 0;
    if (strlen(path) + 64 > PATH_MAX) return wr_err_errno(err, WEIR_E_OPEN, ENAMETOOLONG, "cannot create %s", wr_file_label(path));
    f.pending = true;
    f.replaces = there;
    wr_kvfile_lay_out(&f);
    char folder[PATH_MAX];
    size_t n = folder_bytes(path);
    memcpy(folder, path, n);
    folder[n] = '\0';
    f.place = wr_mem_strdup(ledger, WR_ACCOUNT_TEXT, path, err);
    f.part = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, PATH_MAX, err);
    rc = f.place != NULL && f.part != NULL ? wr_kvfile_take_memory(&f, ledger, err) : WEIR_E_NOMEM;
    if (rc == 0 && there) rc = hold_old(&f, err);
    if (rc < 0) goto fail;
    for (uint32_t i = 0; i < about->n_weights; i++) f.weights[i].id = weights[i].id;
    const bool by_number = access("/proc/self/fd", F_OK) == 0; /* or it could neither be opened for direct I/O nor get a name */
    if (by_number) rc = wr_store_open_temporary(&f.store, *folder != '\0' ? folder : ".", direct, log, err);
    if (rc == 0 && !f.store.linkable) {
        if (by_number) wr_store_close(&f.store);
        rc = take_part_name(&f, folder, true, direct, log, err);
    }
    if (rc < 0) wr_err_prefix(err, rc, "%s", wr_file_label(path));
    if (rc == 0 && has_mode) (void)!fchmod(f.store.file.fd_buffered, st.st_mode & 0777); /* who may read the one that it replaces */
    if (rc == 0) snprintf(f.store.file.path, sizeof f.store.file.path, "%s", path);      /* for messages: where it will be */
    if (rc == 0) rc = wr_kvfile_write_first(&f, err);
    if (rc == 0) (void)wr_kvfile_lock(&f, f.store.file.fd_buffered, true, NULL);
    if (rc < 0) goto fail;
    *out = f;
    return 0;
fail:
    wr_kvfile_close(&f);
    return rc;
}

/* Never over a file that came meanwhile. FAT and some others have no links: there a rename right after a look is the most that can be had. */
static int link_or_rename(const char *part, const char *place)
{
    struct stat st;
    if (link(part, place) == 0) return 0;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK) return -1;
    if (lstat(place, &st) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(part, place);
}

int wr_kvfile_put_in_place(struct wr_kvfile *f, weir_err *err)
{
    char folder[PATH_MAX];
    size_t n = folder_bytes(f->place);
    int rc = 0;
    memcpy(folder, f->place, n);
    folder[n] = '\0';
    if (f->store.linkable && !f->replaces) {
        rc = wr_store_link(&f->store, f->place, err);
    } else {
        if (f->part[0] == '\0') { /* else it has one since the last time, when it could not get its place */
            rc = take_part_name(f, folder, false, WEIR_DIRECT_AUTO, NULL, err);
            snprintf(f->store.file.path, sizeof f->store.file.path, "%s", f->place);
        }
        if (rc == 0 && f->replaces) rc = look_again(f, err);
        if (rc == 0 && (f->replaces ? rename(f->part, f->place) : link_or_rename(f->part, f->place)) != 0)
            rc = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot put the file there", wr_kvfile_label(f));
    }
    if (rc < 0) return rc;
    if (f->part[0] != '\0' && !f->replaces) unlink(f->part); /* its second name, where it was linked */
    f->part[0] = '\0';
    if (f->replaces) close(f->old_fd);
    f->pending = f->replaces = false;
    sync_folder(folder);
    return 0;
}

int wr_kvfile_finish(struct wr_kvfile *f, weir_err *err)
{
    int rc = f->broken ? wr_err(err, WEIR_E_WRITE, "%s: the disk lost what was written", wr_kvfile_label(f)) : 0;
    if (rc == 0 && !f->keeps_room) rc = wr_store_cut(&f->store, wr_kvfile_end(f, f->saved.n_full), err);
    if (rc == 0) rc = wr_store_sync(&f->store, err);
    if (rc == 0 && f->pending) rc = wr_kvfile_put_in_place(f, err);
    return rc;
}
