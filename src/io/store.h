/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are written in blocks and read back by the engines of io.h: keys and values that do not fit in memory, saved contexts. Writing blocks the
 * caller; one thread writes at a time, while others may read what is written. Direct where the file system has it, else through the page cache.
 */
#ifndef WR_IO_STORE_H
#define WR_IO_STORE_H

#include "io/io.h"

struct wr_store {
    struct wr_file file; /* open for reading and writing; file.bytes: the length that readers may count on */
    const struct wr_log *log;
    bool temporary; /* it has no name: errors say which folder it is in */
    bool linkable;  /* it can get a name: wr_store_link */
    uint64_t bytes_written;
    bool write_refused; /* a direct write was: everything is written through the page cache from now on */
};

/* Each refuses a file system in memory (WEIR_E_OPEN): what is put there to save memory would take it. `direct` as wr_file_open has it. *store is untouched
 * on failure; the log outlives it.
 * _temporary: a file without a name in `folder` (O_TMPFILE; where the file system has none, one that is removed at once). Nothing is left of it whatever
 * ends the process. Closed with wr_store_close. */
int wr_store_open_temporary(struct wr_store *, const char *folder, enum weir_direct, const struct wr_log *, weir_err *);
/* `create`: the file must not exist yet; else it must. */
int wr_store_open_named(struct wr_store *, const char *path, bool create, enum weir_direct, const struct wr_log *, weir_err *);
/* Gives a temporary file a name that does not exist yet (WEIR_E_OPEN where it does, and where the file is not linkable). */
int wr_store_link(struct wr_store *, const char *path, weir_err *);
void wr_store_close(struct wr_store *); /* an open one; again does nothing */

/* Makes the file `bytes` long, and takes the room on the disk for it where the file system can (WEIR_E_WRITE when there is none: need and free bytes are
 * in the text). What was not written yet reads as zeros. */
int wr_store_reserve(struct wr_store *, uint64_t bytes, weir_err *);
/* Makes it exactly so long. */
int wr_store_cut(struct wr_store *, uint64_t bytes, weir_err *);
/* Writes all n bytes: direct where offset, n and src are multiples of the file's alignment. Retries EINTR and short writes; a direct write that is refused
 * (EINVAL, EOPNOTSUPP, EFAULT) goes on through the page cache, with one warning. WEIR_E_WRITE with file, offset and the system's words; a full disk
 * (ENOSPC, EDQUOT, EFBIG) says what is free. Nothing is undone: the bytes in question are undefined then. file.bytes stays, or grows to the end of what
 * was written. Counts wr_fault_hit(WR_FAULT_WRITE) once a call. */
int wr_store_write(struct wr_store *, uint64_t offset, const void *src, size_t n, weir_err *);
/* What was written is on the disk when it returns (fdatasync). */
int wr_store_sync(struct wr_store *, weir_err *);

/* Tests: what write calls are made to do. */
struct wr_store_fault_script {
    int fail_errno;     /* of the write that WR_FAULT_WRITE hits; 0: EIO */
    bool short_writes;  /* each write's first system call takes only a part */
    bool refuse_direct; /* direct writes give EINVAL */
    uint64_t delay_ns;  /* before each write */
};
extern struct wr_store_fault_script wr_store_fault_script;

#endif
