/* SPDX-License-Identifier: Apache-2.0 */
/* What kvfile.c, which knows the bytes, and kvfile_new.c, which knows names and places, share; nobody else includes it. */
#ifndef WR_MEMORY_KVFILE_PRIVATE_H
#define WR_MEMORY_KVFILE_PRIVATE_H

#include "memory/kvfile.h"

const char *wr_kvfile_label(const struct wr_kvfile *);
int wr_kvfile_lock(const struct wr_kvfile *, int fd, bool alone, weir_err *);
/* `about` is filled in: where everything lies, and the memory for table and record. */
void wr_kvfile_lay_out(struct wr_kvfile *);
int wr_kvfile_take_memory(struct wr_kvfile *, struct wr_ledger *, weir_err *);
/* Header, state and table of a file of no tokens; they are on the disk when it returns 0. */
int wr_kvfile_write_first(struct wr_kvfile *, weir_err *);
int wr_kvfile_put_in_place(struct wr_kvfile *, weir_err *);
uint64_t wr_kvfile_end(const struct wr_kvfile *, uint32_t n_full); /* bytes of a file of so many full groups */

#endif
