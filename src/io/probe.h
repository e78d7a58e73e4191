/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a disk as the pager will use it: requests of one size at random places of a file, so many in flight. */
#ifndef WR_IO_PROBE_H
#define WR_IO_PROBE_H

#include <stdatomic.h>
#include "base/mem.h"
#include "io/io.h"

struct wr_io_probe {
    const char *engine; /* "uring", "pread" */
    bool direct;        /* otherwise through the page cache, dropped before */
    uint32_t bytes, depth;
    double seconds;             /* stop after so long ... */
    uint64_t bytes_total;       /* ... or so much, whichever comes first */
    const volatile int *cancel; /* may be NULL */
    uint64_t *bytes_read;       /* gets added what was asked of the disk; may be NULL */
    atomic_bool *reading;       /* true while requests are in flight; may be NULL */
};
/* Bytes/s over the file at `path`, which is larger than what is read. Buffers are huge pages where the system has them. *rate is set on success. */
int wr_io_probe(const char *path, const struct wr_io_probe *, struct wr_ledger *, double *rate, weir_err *);

#endif
