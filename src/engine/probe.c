/* SPDX-License-Identifier: Apache-2.0 */
/* The probe: what is measured, in which order and how long; and the disk. */
#include "engine/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "base/os.h"
#include "base/outfile.h"
#include "io/probe.h"

#define KIB 1024u
#define MIB (1024 * KIB)
#define DATA_BYTES ((uint64_t)1 << 30)         /* of the file that is read; ... */
#define LEAST_DATA_BYTES ((uint64_t)256 * MIB) /* ... less, where the disk is slow or nearly full, but not less than this */
#define PIECE_BYTES (8 * MIB)                  /* of a write */
#define MEMORY_BYTES ((uint64_t)1 << 30)       /* weights, more than any cache holds, and activations */
#define LEAST_MEMORY_BYTES ((uint64_t)64 * MIB)
#define TYPICAL_BYTES WR_PROBE_TYPICAL_BYTES
#define TYPICAL_DEPTH WR_PROBE_TYPICAL_DEPTH
#define IN_FLIGHT_SECONDS 2.0                     /* more than the disk gives in that time is not asked of it at once */
#define DISK_LIMIT(seconds) (5 + 0.6 * (seconds)) /* since the beginning; DISK_SHARE of the seconds are planned */
/* Of all seconds, beyond those that writing the file takes; the rest is computing. */
#define DISK_SHARE 0.2 /* more would use up what some disks give at their best rate for a while */
#define PASSES_SHARE 0.34
#define SETTLE_SHARE 0.03 /* reading without a pause, until the disk gives no more than it keeps */
#define DIFFER 1.15       /* rates that far apart are two */

/* What matters most first: a slow disk has no time for all. */
static const uint32_t sizes[] = {MIB, 256 * KIB, 4 * MIB, 64 * KIB, 512 * KIB, 2 * MIB, 16 * MIB};
static const uint32_t depths[] = {8, 1, 4, 16};
static const uint32_t buffered_sizes[] = {256 * KIB, MIB, 4 * MIB}; /* for --direct off, at one depth */
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static void progress(const struct wr_probe *p, const char *phase, uint64_t done, uint64_t total, const char *unit)
{
    const weir_options *o = p->o->options;
    if (o->progress != NULL) o->progress(o->progress_user, phase, done, total, unit);
}

bool wr_probe_cancelled(const struct wr_probe *p) { return p->o->options->cancel != NULL && *p->o->options->cancel != 0; }

static double elapsed(const struct wr_probe *p) { return (double)(wr_clock_ns() - p->begin_ns) * 1e-9; }

bool wr_probe_late(const struct wr_probe *p) { return elapsed(p) > p->o->seconds; }

double wr_probe_seconds(struct wr_probe *p, double share)
{
    const double left = p->o->seconds - elapsed(p), part = share < p->share_left ? share / p->share_left : 1;
    p->share_left -= share;
    return left > 0 ? left * part : 0;
}

int wr_probe_step(struct wr_probe *p, weir_err *err)
{
    const double now = elapsed(p), end = p->o->seconds;
    progress(p, p->phase, (uint64_t)(now < end ? now : end), (uint64_t)end, "seconds");
    return wr_probe_cancelled(p) ? wr_err(err, WEIR_E_CANCELLED, "interrupted") : 0;
}

/* ---- the file that is read ------------------------------------------------------------- */

static int check_folder(const char *folder, weir_err *err)
{
    const char *label = wr_file_label(folder);
    struct stat about;
    if (stat(folder, &about) != 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "%s: cannot be measured, name a folder that is there", label);
    if (!S_ISDIR(about.st_mode)) return wr_err(err, WEIR_E_OPEN, "%s: is no folder; name the folder that holds it", label);
    if (access(folder, W_OK | X_OK) != 0)
        return wr_err_errno(err, WEIR_E_OPEN, errno, "%s: no file can be written there, name another folder of the same disk", label);
    return 0;
}

static int refuse_memory(const struct wr_probe *p, weir_err *err)
{
    const char *type = p->profile->file_system;
    if (strncmp(type, "tmpfs ", 6) != 0 && strncmp(type, "ramfs ", 6) != 0) return 0;
    return wr_err(
        err, WEIR_E_OPEN, "%s: is in memory (%.5s), which is no disk; name a folder of the disk that holds the models", wr_file_label(p->o->folder), type);
}

/* Half of what is free at most, so that nobody else runs out of room. */
static int choose_bytes(const char *folder, uint64_t *bytes, weir_err *err)
{
    struct statvfs disk;
    if (statvfs(folder, &disk) != 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "%s", wr_file_label(folder));
    const uint64_t there = (uint64_t)disk.f_bavail * disk.f_frsize;
    *bytes = there / 2 < DATA_BYTES ? wr_round_down(there / 2, PIECE_BYTES) : DATA_BYTES;
    if (*bytes < LEAST_DATA_BYTES)
        return wr_err(err, WEIR_E_WRITE, "%s: %llu bytes are free, a measurement takes half of %llu; make room or name another folder", wr_file_label(folder),
            (unsigned long long)there, (unsigned long long)(2 * LEAST_DATA_BYTES));
    return 0;
}

/* Nothing that a disk could compress or store once: one random piece, whose blocks are numbered. */
static int write_data(struct wr_probe *p, struct wr_outfile *file, uint64_t bytes, double seconds, weir_err *err)
{
    const uint64_t begin = wr_clock_ns();
    uint64_t *piece = wr_mem_alloc(&p->ledger, WR_ACCOUNT_SCRATCH, PIECE_BYTES, err), state = begin | 1;
    if (piece == NULL) return WEIR_E_NOMEM;
    for (size_t i = 0; i < PIECE_BYTES / sizeof *piece; i++) { /* xorshift64 */
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece[i] = state;
    }
    int rc = wr_outfile_reserve(file, bytes, err);
    for (uint64_t at = 0; at < bytes && rc == 0; at += PIECE_BYTES) {
        if (at >= LEAST_DATA_BYTES && (double)(wr_clock_ns() - begin) * 1e-9 > seconds) bytes = at;
        if (at == bytes) break;
        for (size_t i = 0; i < PIECE_BYTES / sizeof *piece; i += WR_IO_ALIGN / sizeof *piece) piece[i] = state + at + i;
        rc = wr_outfile_write(file, at, piece, PIECE_BYTES, err);
        /* Now and not at the end, so that the time is the disk's, and the page cache stays small. */
        if (rc == 0 && fdatasync(file->fd) != 0) rc = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot write", wr_file_label(file->path));
        (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
        if (rc == 0) p->bytes_written += PIECE_BYTES;
        if (rc == 0) rc = wr_probe_step(p, err);
    }
    if (rc == 0 && ftruncate(file->fd, (off_t)bytes) != 0) rc = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot write", wr_file_label(file->path));
    p->data_bytes = bytes;
    wr_mem_free(piece);
    return rc;
}

/* ---- the disk -------------------------------------------------------------------------- */

int wr_probe_disk(struct wr_probe *p, const char *engine, bool direct, uint32_t bytes, uint32_t depth, double seconds, double *rate, weir_err *err)
{
    const struct wr_io_probe what = {.engine = engine,
        .direct = direct,
        .bytes = bytes,
        .depth = depth,
        .seconds = seconds,
        .bytes_total = direct ? UINT64_MAX : p->data_bytes, /* what was read through the page cache is not cold again */
        .bytes_read = &p->bytes_read,
        .cancel = p->o->options->cancel};
    int rc = wr_io_probe(p->data, &what, &p->ledger, rate, err);
    return rc < 0 && rc != WEIR_E_CANCELLED ? wr_err_prefix(err, rc, "%s", wr_file_label(p->o->folder)) : rc;
}

/* Whether the disk's time is over, or the request would take too long at the rate of the last one. */
static bool too_slow(const struct wr_probe *p, uint32_t bytes, uint32_t depth)
{
    const struct wr_profile *to = p->profile;
    const double in_flight = (double)bytes * depth;
    if (to->n_disk == 0) return false;
    if (elapsed(p) > DISK_LIMIT(p->o->seconds)) return true;
    return in_flight > IN_FLIGHT_SECONDS * to->disk[to->n_disk - 1].rate;
}

static int measure_point(struct wr_probe *p, const char *engine, bool direct, uint32_t bytes, uint32_t depth, double share, weir_err *err)
{
    struct wr_profile *to = p->profile;
    struct wr_profile_disk d = {.direct = direct, .bytes = bytes, .depth = depth};
    const double seconds = wr_probe_seconds(p, share);
    if ((uint64_t)bytes * depth > p->memory_bytes || too_slow(p, bytes, depth)) {
        p->n_left_out++;
        return wr_probe_step(p, err);
    }
    snprintf(d.engine, sizeof d.engine, "%s", engine);
    int rc = wr_probe_disk(p, engine, direct, bytes, depth, seconds, &d.rate, err);
    if (rc < 0) return rc;
    to->disk[to->n_disk++] = d;
    return wr_probe_step(p, err);
}

static bool comes_before(const struct wr_profile_disk *a, const struct wr_profile_disk *b)
{
    if (a->direct != b->direct) return a->direct;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->depth < b->depth;
}

static void sort_surface(struct wr_profile *to)
{
    for (uint32_t i = 1; i < to->n_disk; i++)
        for (uint32_t j = i; j > 0 && comes_before(&to->disk[j], &to->disk[j - 1]); j--) {
            const struct wr_profile_disk d = to->disk[j];
            to->disk[j] = to->disk[j - 1];
            to->disk[j - 1] = d;
        }
}

static const char *const engines[] = {"uring", "pread"};

/* A point's share of all seconds is `share`. */
static int measure_surface(struct wr_probe *p, bool direct, double share, weir_err *err)
{
    const size_t first = p->uring ? 0 : 1;
    int rc = 0;
    p->phase = "disk";
    for (size_t s = 0; s < LENGTH(sizes); s++)
        for (size_t d = 0; d < LENGTH(depths); d++)
            for (size_t e = first; e < LENGTH(engines) && rc == 0; e++) rc = measure_point(p, engines[e], direct, sizes[s], depths[d], share, err);
    for (size_t s = 0; s < LENGTH(buffered_sizes) && direct; s++)
        for (size_t e = first; e < LENGTH(engines) && rc == 0; e++) rc = measure_point(p, engines[e], false, buffered_sizes[s], TYPICAL_DEPTH, share, err);
    if (rc == 0 && p->n_left_out > 0)
        wr_log(&p->log, WEIR_LOG_WARN, "%s: the disk is slow or busy: %u of its %u points were left out", wr_file_label(p->o->folder), p->n_left_out,
            p->n_left_out + p->profile->n_disk);
    sort_surface(p->profile);
    for (uint32_t i = 0; i < p->profile->n_disk; i++) p->surface[i][0] = p->profile->disk[i].rate;
    p->n_surfaces = 1;
    return rc;
}

/* Once more, when something else was measured: disks have better and worse times. What there is no time for stays as it was. */
static int measure_surface_again(struct wr_probe *p, double share, double limit, weir_err *err)
{
    int rc = 0;
    p->phase = "disk";
    for (uint32_t i = 0; i < p->profile->n_disk && rc == 0; i++) {
        const struct wr_profile_disk *d = &p->profile->disk[i];
        const double seconds = wr_probe_seconds(p, share);
        p->surface[i][p->n_surfaces] = d->rate;
        if (elapsed(p) > limit) continue;
        rc = wr_probe_disk(p, d->engine, d->direct, d->bytes, d->depth, seconds, &p->surface[i][p->n_surfaces], err);
        if (rc == 0) rc = wr_probe_step(p, err);
    }
    p->n_surfaces++;
    return rc;
}

/* Of each point what it gave in the middle turn; and as much less, or more, as all of them gave in the mean: a pause of the disk, or of the machine, which is
 * longer than a turn says nothing of the point that it met. */
static void finish_surface(struct wr_probe *p)
{
    struct wr_profile *to = p->profile;
    double mean = 0, middle = 0;
    for (uint32_t i = 0; i < to->n_disk; i++) {
        struct wr_probe_samples turns = {.n = 0};
        for (uint32_t j = 0; j < p->n_surfaces; j++) {
            wr_probe_sample(&turns, p->surface[i][j]);
            mean += p->surface[i][j] / p->n_surfaces;
        }
        to->disk[i].rate = wr_probe_decile(&turns, 5);
        middle += to->disk[i].rate;
    }
    for (uint32_t i = 0; i < to->n_disk; i++) to->disk[i].rate *= mean / middle;
}

static int typical_rate(struct wr_probe *p, bool direct, double share, double *rate, weir_err *err)
{
    return wr_probe_disk(p, p->uring ? "uring" : "pread", direct, TYPICAL_BYTES, TYPICAL_DEPTH, wr_probe_seconds(p, share), rate, err);
}

/* Some disks are faster for a while: what they give first and, at the end, what they keep. The surface lies between both. */
static int measure_first(struct wr_probe *p, bool direct, weir_err *err)
{
    int rc = typical_rate(p, direct, SETTLE_SHARE / 4, &p->first_rate, err);
    double rate;
    for (int i = 0; i < 3 && rc == 0; i++) {
        rc = wr_probe_step(p, err);
        if (rc == 0) rc = typical_rate(p, direct, SETTLE_SHARE / 4, &rate, err);
    }
    return rc;
}

static void compare_first(struct wr_probe *p, bool direct)
{
    const double kept = wr_profile_disk_rate(p->profile, "auto", direct, TYPICAL_BYTES, TYPICAL_DEPTH);
    if (direct && kept > 0 && p->first_rate > DIFFER * kept) p->profile->disk_first = p->first_rate / kept;
}

static uint32_t surface_steps(const struct wr_probe *p, bool direct)
{
    return (uint32_t)((LENGTH(sizes) * LENGTH(depths) + (direct ? LENGTH(buffered_sizes) : 0)) * (p->uring ? 2 : 1)) * WR_PROBE_SURFACES;
}

/* ---- all of it ------------------------------------------------------------------------- */

/* 1, 2, 4, ... and all; where these are too many, without the smallest after 1. */
static void choose_threads(struct wr_profile *to)
{
    uint32_t first = 1;
    while (to->n_cpus / first >= 1u << (WR_PROFILE_THREADS - 1)) first *= 2;
    to->threads[to->n_threads++] = 1;
    for (uint32_t n = 2 * first; n < to->n_cpus; n *= 2) to->threads[to->n_threads++] = n;
    if (to->n_cpus > 1) to->threads[to->n_threads++] = to->n_cpus;
}

static int choose_memory(struct wr_probe *p, weir_err *err)
{
    const struct wr_os_memory m = wr_os_memory("");
    p->memory_bytes = m.available_bytes / 2 < MEMORY_BYTES ? wr_round_down(m.available_bytes / 2, MIB) : MEMORY_BYTES;
    if (p->memory_bytes < LEAST_MEMORY_BYTES)
        return wr_err(err, WEIR_E_BUDGET, "%llu bytes of memory are available (%s), measuring takes half of %llu; free memory or raise the limit",
            (unsigned long long)m.available_bytes, m.origin, (unsigned long long)(2 * LEAST_MEMORY_BYTES));
    return 0;
}

/* Whether the file can be read directly; says so if not. */
static bool is_direct(const struct wr_probe *p)
{
    struct wr_file file;
    if (wr_file_open(&file, p->data, WEIR_DIRECT_AUTO, NULL, NULL) != 0) return true; /* the measurement will say why */
    const bool direct = file.fd_direct >= 0;
    wr_file_close(&file);
    if (!direct) wr_log(&p->log, WEIR_LOG_WARN, "%s: no direct I/O there; the disk is measured through the page cache", wr_file_label(p->o->folder));
    return direct;
}

static int run(struct wr_probe *p, weir_err *err)
{
    const bool direct = is_direct(p);
    const double share = DISK_SHARE / surface_steps(p, direct);
    p->share_left = 1;
    p->phase = "disk";
    int rc = direct ? measure_first(p, direct, err) : 0;
    if (rc == 0) rc = measure_surface(p, direct, share, err);
    if (rc == 0) rc = wr_probe_compute_open(p, err);
    p->phase = "passes";
    if (rc == 0) rc = wr_probe_passes(p, direct, PASSES_SHARE, err);
    if (rc == 0) rc = measure_surface_again(p, share, DISK_LIMIT(p->o->seconds), err);
    p->phase = "memory and compute";
    if (rc == 0) rc = wr_probe_compute_run(p, 1 - DISK_SHARE - PASSES_SHARE - (direct ? SETTLE_SHARE : 0), err);
    wr_probe_compute_close(p);
    if (rc == 0) rc = measure_surface_again(p, share, p->o->seconds, err);
    if (rc == 0) finish_surface(p);
    if (rc == 0) compare_first(p, direct);
    return rc;
}

static int measure(struct wr_probe *p, weir_err *err)
{
    char path[WR_ENGINE_PATH];
    struct wr_outfile file = {.fd = -1};
    uint64_t bytes = 0;
    int rc = check_folder(p->o->folder, err);
    if (rc == 0) rc = wr_engine_profile_name(p->profile, p->o->folder, p->kernels->level, err);
    if (rc == 0) rc = refuse_memory(p, err);
    if (rc == 0) rc = choose_memory(p, err);
    if (rc == 0) rc = choose_bytes(p->o->folder, &bytes, err);
    if (rc < 0) return rc;
    choose_threads(p->profile);
    if (snprintf(path, sizeof path, "%s/weir-probe", p->o->folder) >= (int)sizeof path) return wr_err(err, WEIR_E_OPEN, "the folder's path is too long");
    rc = wr_outfile_open(&file, path, &p->ledger, WR_ACCOUNT_PROCESS, err);
    if (rc < 0) return rc;
    unlink(file.part); /* the open file is all there is of it */
    snprintf(p->data, sizeof p->data, "/proc/self/fd/%d", file.fd);
    p->phase = "write";
    rc = write_data(p, &file, bytes, p->o->seconds / 8, err);
    if (rc == 0) rc = run(p, err);
    wr_outfile_discard(&file);
    return rc;
}

/* A profile gives way to one of a machine as quiet that was measured in as many seconds; one of a busy machine to any of a quiet one. */
static void store(struct wr_probe *p, char stored[WR_ENGINE_PATH])
{
    weir_err err;
    struct wr_profile *mine = p->profile, *there = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *there, &err);
    const double steady = wr_profile_steadiness(mine);
    if (steady < WR_PROFILE_STEADY)
        wr_log(&p->log, WEIR_LOG_WARN, "the machine was busy: the middle run reached %.0f %% of an undisturbed one; measure again when nothing else runs",
            100 * steady);
    const bool is_there = there != NULL && wr_engine_profile_load(there, p->o->folder, mine->level, NULL) > 0;
    const bool quiet = steady >= WR_PROFILE_STEADY, was_quiet = is_there && there->steady > 0 && wr_profile_steadiness(there) >= WR_PROFILE_STEADY;
    const bool longer = is_there && there->seconds > mine->seconds && (was_quiet || !quiet), quieter = was_quiet && !quiet;
    size_t folder;
    if (longer || quieter) {
        (void)wr_engine_profile_path(mine, stored, &folder);
        wr_log(&p->log, WEIR_LOG_WARN, "the profile that is there is kept, for it was measured %s; measure %s, or remove %s",
            longer ? "in more seconds" : "on a quiet machine", longer ? "in as many (--seconds)" : "again", stored);
        stored[0] = '\0';
    } else if (wr_engine_profile_store(mine, stored, &err) < 0) {
        wr_log(&p->log, WEIR_LOG_WARN, "the profile is not stored: %s", err.text);
        stored[0] = '\0';
    }
    wr_mem_free(there);
}

int wr_tool_probe(const wr_probe_options *o, json_t **out, weir_err *err)
{
    char stored[WR_ENGINE_PATH] = "";
    struct timespec now;
    struct wr_probe *p = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *p, err);
    struct wr_profile *profile = wr_mem_alloc(wr_engine_host_ledger(), WR_ACCOUNT_PROCESS, sizeof *profile, err);
    int rc = p == NULL || profile == NULL ? WEIR_E_NOMEM : 0;
    if (rc < 0) goto out;
    p->begin_ns = wr_clock_ns();
    wr_ledger_init(&p->ledger);
    p->o = o;
    p->profile = profile;
    p->log = (struct wr_log){o->options->log, o->options->log_user};
    p->kernels = wr_kernels_best(o->options->isa);
    p->uring = strcmp(wr_io_find("auto")->name, "uring") == 0;
    rc = measure(p, err);
    clock_gettime(CLOCK_REALTIME, &now);
    profile->taken = now.tv_sec;
    profile->seconds = (uint32_t)(o->seconds + 0.5);
    p->seconds = (double)(wr_clock_ns() - p->begin_ns) * 1e-9;
    if (rc == 0) {
        store(p, stored);
        *out = wr_probe_json(p, stored);
        if (*out == NULL) rc = wr_err(err, WEIR_E_NOMEM, "the system refused memory for the answer");
    }
out:
    wr_mem_free(profile);
    wr_mem_free(p);
    return rc;
}
