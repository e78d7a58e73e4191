/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears whole or not at all: written beside its place under another name, renamed by commit. */
#ifndef WR_BASE_OUTFILE_H
#define WR_BASE_OUTFILE_H

#include "base/mem.h"

struct wr_outfile {
    int fd;
    const char *path;  /* borrowed: outlives the file */
    char *part;        /* the file that is written until commit; kept until discard, for whoever may have to remove it. NULL: nothing is open */
    const char *place; /* what commit puts it at: path, or where a symbolic link leads */
    bool committed;
};

/* Refuses what is there and is no regular file: rename would put a file in the place of a device, pipe or folder. A symbolic link
 * stays, and the file that it leads to is replaced. Standard output and error under another name (/dev/stdout) are refused: rename
 * would leave them a file without a name. */
int wr_outfile_open(struct wr_outfile *, const char *path, struct wr_ledger *, enum wr_account, weir_err *);
/* Takes the space of the whole file now, so that a full disk is an error before the work and not after it. File systems that cannot do
 * this are asked at the writes. */
int wr_outfile_reserve(struct wr_outfile *, uint64_t bytes, weir_err *);
int wr_outfile_write(struct wr_outfile *, uint64_t offset, const void *bytes, size_t n, weir_err *);
/* The file is on the disk under its name when this returns 0; otherwise discard it. */
int wr_outfile_commit(struct wr_outfile *, weir_err *);
void wr_outfile_discard(struct wr_outfile *); /* after commit: only gives memory back */

#endif
