/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading files: one ops table, several engines (engines.def). An engine takes read requests and
 * gives completions; it belongs to one thread (the I/O thread of the pager). Files are opened for
 * direct I/O where the file system allows it; where it refuses, at open or at a later read, the
 * read goes through the page cache instead and the caller is told once.
 */
#ifndef WR_IO_H
#define WR_IO_H

#include <stdbool.h>
#include <stdint.h>
#include "base/log.h"
#include "base/mem.h"

#define WR_IO_ALIGN 4096 /* every extent's offset, length and address are multiples of this */
#define WR_IO_MAX_DEPTH 64

struct wr_file {
    int fd_direct; /* -1: no direct I/O */
    int fd_buffered;
    uint32_t align;       /* what direct reads must be aligned to; <= WR_IO_ALIGN, else direct is off */
    bool direct_required; /* opened with WEIR_DIRECT_ON: a direct read that is refused later is an error, not a fallback */
    uint64_t bytes;
    uint64_t fingerprint[4]; /* device, inode, size, mtime in ns */
    char path[4096];
};
/* Regular files only: a folder, FIFO, socket or device is WEIR_E_OPEN with the reason, at once (never blocks). `direct`: AUTO falls back to
 * buffered with a warning; ON fails instead. tmpfs and the like count as buffered, although they accept O_DIRECT. *file is untouched on failure. */
int wr_file_open(struct wr_file *, const char *path, enum weir_direct, const struct wr_log *, weir_err *);
void wr_file_close(struct wr_file *); /* an open file; closing it again does nothing */
/* Reads exactly n bytes through the page cache, retrying short reads and EINTR; end of file is WEIR_E_READ "truncated". For headers. */
int wr_file_read(const struct wr_file *, uint64_t offset, void *dst, size_t n, weir_err *);
/* WEIR_E_CHANGED if the open file no longer has the size and mtime it had. */
int wr_file_check(const struct wr_file *, weir_err *);
/* After header parsing: drop what wr_file_read left in the page cache. */
void wr_file_drop_cache(const struct wr_file *);

struct wr_io_request {
    const struct wr_file *file; /* one of wr_io_config.files */
    uint64_t offset;            /* multiple of WR_IO_ALIGN */
    uint32_t bytes;             /* multiple of WR_IO_ALIGN; may reach past the end of file by less than WR_IO_ALIGN: the tail is then zeroed */
    void *dst;                  /* aligned; in wr_io_config.memory or, where the engine then reads it plainly, elsewhere */
    uint64_t tag;               /* comes back in the completion */
};
struct wr_io_done {
    uint64_t tag;
    int code;     /* 0 or WEIR_E_READ */
    weir_err err; /* file, offset and the system's words */
};

struct wr_io_config {
    uint32_t depth; /* requests in flight, 1..WR_IO_MAX_DEPTH */
    void *memory;   /* in which most dst lie (registered as fixed buffers where possible) */
    uint64_t memory_bytes;
    const struct wr_file *files; /* these, the log and the ledger outlive the engine */
    uint32_t n_files;
    struct wr_ledger *ledger;
    const struct wr_log *log; /* called on the engine's own thread, in open, submit or wait; may be NULL */
    const char *inner;        /* fault: the engine it wraps */
};

struct wr_io; /* one open engine */
struct wr_io_ops {
    const char *name;
    const char *description;
    bool diagnostic; /* not offered by --io (sim, fault) */
    int (*open)(struct wr_io **, const struct wr_io_config *, weir_err *);
    void (*close)(struct wr_io *);                                /* waits for what is in flight */
    bool (*submit)(struct wr_io *, const struct wr_io_request *); /* false: full, wait first */
    /* Completions, in any order: returns how many (0 if none is in flight or timeout_ns passed; 0: do not block; UINT64_MAX: no limit). */
    uint32_t (*wait)(struct wr_io *, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns);
    /* Bytes (as requested) and requests that completed well, and whether every read so far was direct. Any thread may ask. */
    void (*stats)(const struct wr_io *, uint64_t *bytes, uint64_t *reads, bool *direct);
};
const struct wr_io_ops *wr_io_find(const char *name); /* NULL if there is no such engine; "auto": uring where the kernel has it, else pread */
/* Finds and opens: *ops is what reads. "auto" takes pread, with one line, where uring is not to be had. An unknown name is WEIR_E_USAGE. */
int wr_io_open(struct wr_io **, const struct wr_io_ops **ops, const char *name, const struct wr_io_config *, weir_err *);
/* What an engine charges to the ring account at most, whichever it is and at any depth (sim and fault excepted). */
static inline uint64_t wr_io_memory_bytes(uint32_t n_files) { return 32768 + 32 * (uint64_t)n_files; }
/* Every engine: retries EINTR, EAGAIN and short reads itself; counts wr_fault_hit(WR_FAULT_READ) once a request; on EINVAL, EOPNOTSUPP or EFAULT
 * of a direct read falls back to the buffered descriptors for good (one warning). A file that has become shorter is WEIR_E_READ "truncated".
 * Nothing is allocated after open. */

/* fault: what the wrapped engine's completions turn into; the test sets it before open. Requests are numbered from 1. */
struct wr_io_fault_script {
    uint64_t fail_at, fail_count; /* requests fail_at .. fail_at + fail_count - 1 fail */
    int fail_errno;               /* with this errno, each once (EINVAL, EOPNOTSUPP: only where the read is direct, so that the fallback is taken) */
    bool short_reads;             /* a random part is delivered first, then the rest (exercises the retry path) */
    uint64_t delay_ns;            /* each completion is held back so long */
    uint32_t seed;
};
extern struct wr_io_fault_script wr_io_fault_script;
/* sim: no data is read (dst untouched); completions come by a virtual clock. */
struct wr_io_sim {
    double bytes_per_s, latency_s;
    double now_s; /* virtual time, advanced by wait and by the test */
};
extern struct wr_io_sim wr_io_sim;

#endif
