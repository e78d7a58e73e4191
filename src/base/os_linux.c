/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Linux tells about memory, CPUs and this process. Files of /proc and /sys are read through one small buffer on the stack:
 * nothing here allocates, so usage can be asked at any time, and a strange or missing file only means "no limit from here".
 */
#include "base/os.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/team.h"

#define NO_LIMIT UINT64_MAX
#define PATH_BYTES 1024 /* a group with a longer path sets no limit here: all of this fits a stack of 64 KiB, under its callers */

uint64_t wr_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* sched_setattr(2), which the C library of Debian 12 does not have. */
struct sched_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};
#define SLICE_NS 100000 /* the least that there is */

void wr_thread_serves(const char *name)
{
    struct sched_attributes a = {0};
    pthread_setname_np(pthread_self(), name);
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != SCHED_OTHER) return;
    a.runtime = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &a, 0); /* refused, it only is slower */
}

/* Where the groups of one controller are: the mount point, and this process's group below it ("" is the mount point itself). */
struct cgroup {
    bool found, v2;
    char mount[PATH_BYTES], group[PATH_BYTES];
};

/* ---- lines of a small file ---- */

struct reader {
    int fd;
    size_t at, filled;
    char buffer[1024];
    char line[PATH_BYTES * 4]; /* mountinfo holds two paths; a longer line is cut. Also the path that is opened */
};

/* Opens root + path, or root + the group's folder + path. */
static bool reader_open(struct reader *r, const char *root, const struct cgroup *c, const char *path)
{
    int n = snprintf(r->line, sizeof r->line, "%s%s%s%s", root, c != NULL ? c->mount : "", c != NULL ? c->group : "", path);
    r->at = r->filled = 0;
    r->fd = n > 0 && (size_t)n < sizeof r->line ? open(r->line, O_RDONLY | O_CLOEXEC) : -1;
    return r->fd >= 0;
}

static bool reader_line(struct reader *r)
{
    size_t n = 0;
    for (bool any = false;;) {
        if (r->at == r->filled) {
            ssize_t got = read(r->fd, r->buffer, sizeof r->buffer);
            r->at = 0;
            r->filled = got > 0 ? (size_t)got : 0;
            if (got <= 0) {
                r->line[n] = '\0';
                return any;
            }
        }
        char c = r->buffer[r->at++];
        any = true;
        if (c == '\n') break;
        if (n + 1 < sizeof r->line) r->line[n++] = c;
    }
    r->line[n] = '\0';
    return true;
}

static void reader_close(struct reader *r) { close(r->fd); }

/* The number at s after blanks; false if there is none. One that does not fit reads as UINT64_MAX. */
static bool number(const char *s, uint64_t *out)
{
    s += strspn(s, " \t");
    if (*s < '0' || *s > '9') return false;
    uint64_t value = 0;
    for (bool fits = true; *s >= '0' && *s <= '9'; s++) {
        fits = fits && wr_mul_u64(value, 10, &value) && wr_add_u64(value, (uint64_t)(*s - '0'), &value);
        if (!fits) value = UINT64_MAX;
    }
    *out = value;
    return true;
}

/* The value of "key value" or "key: value" lines, for each key that is there. */
static void read_values(const char *root, const struct cgroup *c, const char *path, size_t n, const char *const *keys, uint64_t *values)
{
    struct reader r;
    if (!reader_open(&r, root, c, path)) return;
    while (reader_line(&r)) {
        size_t length = strcspn(r.line, ": \t");
        for (size_t i = 0; i < n; i++)
            if (strlen(keys[i]) == length && memcmp(keys[i], r.line, length) == 0) number(r.line + length + (r.line[length] == ':'), &values[i]);
    }
    reader_close(&r);
}

/* ---- cgroups ---- */

/* Is `name` one of the comma-separated words of list? */
static bool has_word(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *s = list; *s != '\0';) {
        size_t word = strcspn(s, ",");
        if (word == length && memcmp(s, name, length) == 0) return true;
        s += word + (s[word] == ',');
    }
    return false;
}

/* mountinfo writes blanks and backslashes in paths as \ooo. */
static void unescape(char *s)
{
    char *to = s;
    while (*s != '\0') {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 4;
        } else {
            *to++ = *s++;
        }
    }
    *to = '\0';
}

/* The group of `controller` (v1), or of the unified tree (controller NULL), from /proc/self/cgroup: "id:controllers:path". */
static bool group_path(const char *root, const char *controller, char *path, size_t capacity)
{
    struct reader r;
    bool found = false;
    if (!reader_open(&r, root, NULL, "/proc/self/cgroup")) return false;
    while (!found && reader_line(&r)) {
        char *list = strchr(r.line, ':');
        if (list == NULL) continue;
        char *group = strchr(++list, ':');
        if (group == NULL) continue;
        *group++ = '\0';
        if (controller == NULL ? *list != '\0' : !has_word(list, controller)) continue;
        found = strlen(group) < capacity;
        if (found) memcpy(path, group, strlen(group) + 1);
    }
    reader_close(&r);
    return found;
}

/* Splits at single blanks: field i of a mountinfo line, or NULL. */
static char *field(char **cursor)
{
    if (*cursor == NULL) return NULL;
    char *start = *cursor, *end = strchr(start, ' ');
    if (end != NULL) *end++ = '\0';
    *cursor = end;
    return start;
}

/* mountinfo: "id parent major:minor root mount-point options optional... - type source super-options". */
static void cgroup_find(const char *root, const char *controller, struct cgroup *out)
{
    char path[PATH_BYTES];
    struct reader r;
    out->found = false;
    out->v2 = controller == NULL;
    if (!group_path(root, controller, path, sizeof path) || !reader_open(&r, root, NULL, "/proc/self/mountinfo")) return;
    for (bool inside = false; !inside && reader_line(&r);) {
        char *cursor = r.line, *mount_root = NULL, *mount_point = NULL, *f = field(&cursor);
        for (int i = 0; f != NULL && strcmp(f, "-") != 0; i++, f = field(&cursor)) {
            if (i == 3) mount_root = f;
            if (i == 4) mount_point = f;
        }
        char *type = field(&cursor), *source = field(&cursor), *options = field(&cursor);
        if (source == NULL || options == NULL || mount_point == NULL) continue;
        if (strcmp(type, controller == NULL ? "cgroup2" : "cgroup") != 0 || (controller != NULL && !has_word(options, controller))) continue;
        unescape(mount_root);
        unescape(mount_point);
        if (strlen(mount_point) >= sizeof out->mount) continue;

        /* A container's mount shows a part of the tree only; for a group outside of that part the mount point itself is the nearest. */
        size_t length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
        inside = strncmp(path, mount_root, length) == 0 && (path[length] == '/' || path[length] == '\0') && strstr(path, "/..") == NULL;
        if (!inside && out->found) continue;
        const char *below = inside && strcmp(path + length, "/") != 0 ? path + length : "";
        out->found = true;
        memcpy(out->mount, mount_point, strlen(mount_point) + 1);
        memcpy(out->group, below, strlen(below) + 1);
    }
    reader_close(&r);
}

/* Cuts the last part of the group's path; false when the mount point has been done. */
static bool cgroup_parent(struct cgroup *c)
{
    char *slash = strrchr(c->group, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return true;
}

/* The first line of a file of the group. */
static bool cgroup_line(const char *root, const struct cgroup *c, const char *file, struct reader *r)
{
    if (!reader_open(r, root, c, file)) return false;
    bool any = reader_line(r);
    reader_close(r);
    return any;
}

/* "max" and whatever else is no number read as no limit. */
static uint64_t cgroup_number(const char *root, const struct cgroup *c, const char *file)
{
    struct reader r;
    uint64_t value;
    return cgroup_line(root, c, file, &r) && number(r.line, &value) ? value : NO_LIMIT;
}

/* ---- memory ---- */

/* v1 writes "no limit" as the largest multiple of a page below 2^63. */
#define V1_UNLIMITED ((uint64_t)1 << 62)

/* File pages on the two lists (and, in v2, slab that holds their index) are given back before anything is killed: a full page cache is not use. */
static uint64_t reclaimable(const char *root, const struct cgroup *c)
{
    static const char *const v1[] = {"total_inactive_file", "total_active_file"};
    static const char *const v2[] = {"inactive_file", "active_file", "slab_reclaimable"};
    uint64_t values[3] = {0, 0, 0};
    read_values(root, c, "/memory.stat", c->v2 ? 3 : 2, c->v2 ? v2 : v1, values);
    return values[0] + values[1] + values[2];
}

static void size_text(char *out, size_t capacity, const char *prefix, uint64_t bytes)
{
    if (bytes >= (uint64_t)1 << 20)
        snprintf(out, capacity, "%s %" PRIu64 " MiB", prefix, bytes >> 20);
    else
        snprintf(out, capacity, "%s %" PRIu64 " KiB", prefix, bytes >> 10);
}

static void lower_by_cgroups(const char *root, const char *controller, struct wr_os_memory *m)
{
    struct cgroup c;
    cgroup_find(root, controller, &c);
    if (!c.found) return;
    do {
        uint64_t limit = cgroup_number(root, &c, c.v2 ? "/memory.max" : "/memory.limit_in_bytes");
        if (c.v2) { /* above memory.high a group is throttled until it stands still */
            uint64_t high = cgroup_number(root, &c, "/memory.high");
            if (high < limit) limit = high;
        }
        if (limit >= (c.v2 ? NO_LIMIT : V1_UNLIMITED)) continue;
        uint64_t used = cgroup_number(root, &c, c.v2 ? "/memory.current" : "/memory.usage_in_bytes"), free_again = reclaimable(root, &c);
        if (used == NO_LIMIT) used = 0;
        used = used > free_again ? used - free_again : 0;
        uint64_t available = limit > used ? limit - used : 0;
        if (available >= m->available_bytes) continue;
        m->available_bytes = available;
        m->limit_bytes = limit;
        size_text(m->origin, sizeof m->origin, "cgroup limit", limit);
    } while (cgroup_parent(&c));
}

struct wr_os_memory wr_os_memory(const char *root)
{
    static const char *const keys[] = {"MemAvailable", "MemFree"};
    uint64_t kib[2] = {NO_LIMIT, 0};
    struct wr_os_memory m = {0, 0, "MemAvailable"};
    read_values(root, NULL, "/proc/meminfo", 2, keys, kib);
    if (kib[0] == NO_LIMIT) { /* before Linux 3.14, or no /proc: what is certainly free */
        kib[0] = kib[1];
        memcpy(m.origin, "MemFree", sizeof "MemFree");
    }
    if (!wr_mul_u64(kib[0], 1024, &m.available_bytes)) m.available_bytes = UINT64_MAX;
    lower_by_cgroups(root, "memory", &m);
    lower_by_cgroups(root, NULL, &m);
    return m;
}

/* ---- CPUs ---- */

uint32_t wr_os_cpu_quota(const char *root)
{
    uint32_t best = UINT32_MAX;
    for (int v2 = 0; v2 < 2; v2++) {
        struct cgroup c;
        cgroup_find(root, v2 ? NULL : "cpu", &c);
        if (!c.found) continue;
        do {
            uint64_t quota = NO_LIMIT, period = 0;
            struct reader r;
            if (v2) { /* "max 100000" or "150000 100000" */
                if (!cgroup_line(root, &c, "/cpu.max", &r)) continue;
                char *blank = strchr(r.line, ' ');
                if (blank == NULL || !number(r.line, &quota) || !number(blank, &period)) continue;
            } else { /* -1 is no number here: no quota */
                quota = cgroup_number(root, &c, "/cpu.cfs_quota_us");
                period = cgroup_number(root, &c, "/cpu.cfs_period_us");
            }
            if (quota == NO_LIMIT || quota == 0 || period == 0 || period == NO_LIMIT) continue;
            uint64_t cpus = quota / period + (quota % period != 0);
            if (cpus < best) best = (uint32_t)cpus;
        } while (cgroup_parent(&c));
    }
    return best;
}

uint32_t wr_cpu_count(void)
{
    unsigned long mask[1024]; /* 65536 CPUs; the kernel refuses a mask smaller than its own */
    memset(mask, 0, sizeof mask);
    uint32_t n = 1, quota = wr_os_cpu_quota("");
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask) == 0) {
        n = 0;
        for (size_t i = 0; i < sizeof mask / sizeof mask[0]; i++) n += (uint32_t)__builtin_popcountl(mask[i]);
    }
    if (quota < n) n = quota;
    return n > 0 ? n : 1;
}

void wr_os_cpu_name(const char *root, char *name, size_t size)
{
    static const char key[] = "model name";
    struct utsname machine;
    struct reader r;
    snprintf(name, size, "%s", uname(&machine) == 0 ? machine.machine : "unknown");
    if (!reader_open(&r, root, NULL, "/proc/cpuinfo")) return;
    bool found = false;
    while (!found && reader_line(&r)) {
        const char *colon = strchr(r.line, ':');
        found = colon != NULL && strncmp(r.line, key, sizeof key - 1) == 0 && colon[1] == ' ' && colon[2] != '\0';
        if (found) snprintf(name, size, "%s", colon + 2);
    }
    reader_close(&r);
    for (char *c = name; *c != '\0'; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

bool wr_os_allow_tiles(void)
{
#ifdef __x86_64__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; /* Linux 5.16; older C libraries do not name them */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

uint64_t wr_os_cache_bytes(const char *root)
{
    uint64_t last = 0, kib;
    struct reader r;
    for (int i = 0; i < 8; i++) { /* index0, index1 ... are the caches of CPU 0, the last one the largest */
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!reader_open(&r, root, NULL, path)) break;
        if (reader_line(&r) && number(r.line, &kib) && kib < UINT64_MAX / 1024 && kib * 1024 > last) last = kib * 1024; /* "32768K" */
        reader_close(&r);
    }
    return last;
}

/* ---- this process ---- */

struct wr_os_usage wr_os_usage(void)
{
    static const char *const status[] = {"VmRSS", "VmHWM"}, *const io[] = {"read_bytes", "write_bytes"};
    uint64_t kib[2] = {0, 0}, bytes[2] = {0, 0};
    read_values("", NULL, "/proc/self/status", 2, status, kib);
    read_values("", NULL, "/proc/self/io", 2, io, bytes);
    return (struct wr_os_usage){kib[0] * 1024, kib[1] * 1024, bytes[0], bytes[1]};
}

uint64_t wr_os_waited_ns(void)
{
    uint64_t sum = 0, ns;
    char entries[4096]; /* opendir would allocate */
    int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tasks < 0) return 0;
    for (ssize_t n; (n = getdents64(tasks, entries, sizeof entries)) > 0;) {
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *task = (const struct dirent64 *)(entries + at);
            char path[64];
            struct reader r;
            at += task->d_reclen;
            snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task->d_name);
            if (task->d_name[0] == '.' || !reader_open(&r, "", NULL, path)) continue;
            if (reader_line(&r) && number(r.line + strcspn(r.line, " "), &ns)) sum += ns; /* ran, waited, times */
            reader_close(&r);
        }
    }
    close(tasks);
    return sum;
}
