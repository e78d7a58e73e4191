/* SPDX-License-Identifier: Apache-2.0 */
/* Where profiles are stored, and which one is a machine's and a file system's. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "base/os.h"
#include "base/outfile.h"
#include "engine/engine.h"

static const struct {
    uint32_t magic;
    const char *name;
} file_systems[] = {{0xef53, "ext4"}, {0x58465342, "xfs"}, {0x9123683e, "btrfs"}, {0x2fc12fc1, "zfs"}, {0xf2f52010, "f2fs"}, {0x794c7630, "overlay"},
    {0x01021994, "tmpfs"}, {0x858458f6, "ramfs"}, {0x6969, "nfs"}, {0xff534d42, "cifs"}, {0x65735546, "fuse"}, {0x4d44, "vfat"}, {0x2011bab0, "exfat"}};

int wr_engine_profile_name(struct wr_profile *p, const char *path, const char *level, weir_err *err)
{
    struct statfs fs;
    struct stat about;
    char type[24];
    uint32_t id[2];
    _Static_assert(sizeof fs.f_fsid == sizeof id, "a file system's id");
    if (statfs(path, &fs) != 0 || stat(path, &about) != 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "%s", wr_file_label(path));
    snprintf(type, sizeof type, "%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < sizeof file_systems / sizeof file_systems[0]; i++)
        if (file_systems[i].magic == (uint32_t)fs.f_type) snprintf(type, sizeof type, "%s", file_systems[i].name);
    memcpy(id, &fs.f_fsid, sizeof id);
    if (id[0] == 0 && id[1] == 0) memcpy(id, &about.st_dev, sizeof id); /* a file system without an id: the device, which may be another after a restart */
    snprintf(p->file_system, sizeof p->file_system, "%s %08x%08x", type, id[1], id[0]);
    snprintf(p->level, sizeof p->level, "%s", level);
    wr_os_cpu_name("", p->cpu, sizeof p->cpu);
    p->n_cpus = wr_cpu_count();
    return 0;
}

bool wr_engine_cache_folder(const char *name, char path[WR_ENGINE_PATH], size_t *length)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool given = cache != NULL && cache[0] == '/'; /* a relative one is as good as none */
    if (!given && (home == NULL || home[0] == '\0')) return false;
    int n = snprintf(path, WR_ENGINE_PATH, "%s%s/weir/%s", given ? cache : home, given ? "" : "/.cache", name);
    *length = (size_t)n;
    return n >= 0 && n < WR_ENGINE_PATH;
}

bool wr_engine_profile_path(const struct wr_profile *p, char path[WR_ENGINE_PATH], size_t *folder)
{
    if (!wr_engine_cache_folder("profiles", path, folder)) return false;
    const size_t left = WR_ENGINE_PATH - *folder;
    const int n = snprintf(path + *folder, left, "/%s %s %u %s", p->cpu, p->level, p->n_cpus, p->file_system);
    if (n < 0 || (size_t)n >= left) return false;
    for (char *c = path + *folder + 1; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && *c != '.' && *c != '_') *c = '-';
    return true;
}

/* The whole of a small file; *n 0: there is none. */
static int read_text(const char *path, char *text, size_t capacity, size_t *n, weir_err *err)
{
    struct stat about;
    *n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code = 0;
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : wr_err_errno(err, WEIR_E_OPEN, errno, "%s", wr_file_label(path));
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        code = wr_err(err, WEIR_E_OPEN, "%s: is no regular file", wr_file_label(path));
        goto out;
    }
    while (*n < capacity) {
        ssize_t got = read(fd, text + *n, capacity - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) code = wr_err_errno(err, WEIR_E_READ, errno, "%s", wr_file_label(path));
        if (got <= 0) break;
        *n += (size_t)got;
    }
out:
    close(fd);
    return code;
}

int wr_engine_profile_load(struct wr_profile *p, const char *path, const char *level, weir_err *err)
{
    char file[WR_ENGINE_PATH];
    size_t n;
    int rc = wr_engine_profile_name(p, path, level, err);
    if (rc < 0) return rc;
    if (!wr_engine_profile_path(p, file, &n)) return 0;
    const size_t capacity = WR_PROFILE_BYTES + 1; /* one more, so that too long a file is seen */
    char *text = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, capacity, err);
    if (text == NULL) return WEIR_E_NOMEM;
    rc = read_text(file, text, capacity, &n, err);
    if (rc == 0 && n > 0) {
        rc = wr_profile_parse(p, text, n, err);
        if (rc < 0) wr_err_prefix(err, rc, "%s", wr_file_label(file));
        if (rc == 0) rc = 1;
    }
    wr_mem_free(text);
    return rc;
}

/* mkdir -p */
int wr_engine_make_folders(char *path, size_t n, weir_err *err)
{
    for (size_t i = 1; i <= n; i++) {
        const char was = path[i];
        if (was != '/' && i < n) continue;
        path[i] = '\0';
        const int failure = mkdir(path, 0777) != 0 && errno != EEXIST ? errno : 0;
        if (failure != 0) wr_err_errno(err, WEIR_E_OPEN, failure, "%s: cannot create the folder", wr_file_label(path));
        path[i] = was;
        if (failure != 0) return WEIR_E_OPEN;
    }
    return 0;
}

int wr_engine_profile_store(const struct wr_profile *p, char *where, weir_err *err)
{
    struct wr_outfile file;
    size_t folder;
    if (!wr_engine_profile_path(p, where, &folder)) return wr_err(err, WEIR_E_OPEN, "there is no place for profiles; set HOME or XDG_CACHE_HOME");
    int rc = wr_engine_make_folders(where, folder, err);
    if (rc < 0) return rc;
    char *text = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, WR_PROFILE_BYTES, err);
    if (text == NULL) return WEIR_E_NOMEM;
    const size_t n = wr_profile_print(p, text, WR_PROFILE_BYTES); /* the largest there is fits */
    rc = wr_outfile_open(&file, where, wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, err);
    if (rc == 0) {
        rc = wr_outfile_write(&file, 0, text, n, err);
        if (rc == 0) rc = wr_outfile_commit(&file, err);
        wr_outfile_discard(&file);
    }
    wr_mem_free(text);
    return rc;
}
