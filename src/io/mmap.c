/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline that weir is measured against: files are mapped, a read is a copy from the mapping, done at once in submit. The
 * pages that it touches belong to the page cache, so the budget does not bound it. Not for files that others may cut: the
 * check before each copy is not a lock, and a page that vanishes during it kills the process.
 */
#include "io/core.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct mapped {
    struct wr_io io;
    const uint8_t *map[]; /* [n_files]; NULL: empty file */
};

static void mapped_close(struct wr_io *io)
{
    struct mapped *m = (struct mapped *)io;
    for (uint32_t i = 0; i < io->config.n_files; i++)
        if (m->map[i] != NULL) munmap((void *)(uintptr_t)m->map[i], io->config.files[i].bytes);
    wr_mem_free(m);
}

static int mapped_open(struct wr_io **out, const struct wr_io_config *config, weir_err *err)
{
    struct wr_io *io;
    uint64_t maps_bytes;
    if (!wr_mul_u64(config->n_files, sizeof(uint8_t *), &maps_bytes)) return wr_err(err, WEIR_E_USAGE, "too many files: %u", config->n_files);
    int code = wr_io_core_open(&io, &wr_io_ops_mmap, config, sizeof(struct mapped) + maps_bytes, err);
    if (code != 0) return code;
    struct mapped *m = (struct mapped *)io;
    for (uint32_t i = 0; i < config->n_files; i++) {
        const struct wr_file *file = &config->files[i];
        if (file->bytes == 0) continue;
        void *map = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd_buffered, 0);
        if (map == MAP_FAILED) {
            code = wr_err_errno(err, WEIR_E_OPEN, errno, "cannot map %s (use --io pread)", wr_file_label(file->path));
            mapped_close(io);
            return code;
        }
        m->map[i] = map;
    }
    wr_log(config->log, WEIR_LOG_WARN, "--io mmap is a baseline for measurements: the memory budget does not bound it");
    *out = io;
    return 0;
}

/* As pread would: fewer bytes where the file ends, 0 at its end. */
static int64_t copy(const struct mapped *m, const struct wr_io_step *step)
{
    struct stat st;
    if (fstat(step->fd, &st) != 0) return -errno;
    uint64_t size = (uint64_t)st.st_size, n = step->bytes;
    if (step->offset >= size) return 0;
    if (n > size - step->offset) n = size - step->offset;
    memcpy(step->dst, m->map[step->file] + step->offset, n);
    if (fstat(step->fd, &st) != 0) return -errno;
    return (uint64_t)st.st_size < size ? 0 : (int64_t)n; /* cut meanwhile: what was copied may be zeros */
}

static bool mapped_submit(struct wr_io *io, const struct wr_io_request *request)
{
    struct mapped *m = (struct mapped *)io;
    struct wr_io_slot *slot = NULL;
    struct wr_io_step step;
    if (!wr_io_begin(io, request, &slot)) return false;
    if (slot == NULL) return true;
    do {
        slot->buffered = true;
        step = wr_io_next(io, slot);
    } while (!wr_io_result(io, slot, copy(m, &step)));
    wr_io_finish(io, slot);
    return true;
}

static uint32_t mapped_wait(struct wr_io *io, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns)
{
    (void)timeout_ns; /* what was submitted is done */
    return wr_io_deliver(io, done, max);
}

static void mapped_stats(const struct wr_io *io, uint64_t *bytes, uint64_t *reads, bool *direct)
{
    wr_io_core_stats(io, bytes, reads, direct);
    *direct = false;
}

const struct wr_io_ops wr_io_ops_mmap = {
    .name = "mmap",
    .description = "copies from a mapping: a baseline, exempt from the memory budget",
    .open = mapped_open,
    .close = mapped_close,
    .submit = mapped_submit,
    .wait = mapped_wait,
    .stats = mapped_stats,
};
