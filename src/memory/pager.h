/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager executes a plan: it reads the pinned extents once, and one I/O thread runs the tape ahead of compute, from
 * pass to pass without a pause. Compute threads lease the rows of a work item: a lease waits until its extents are there,
 * gives refs to runs of whole rows, and returns the slots with a fence. Rows that straddle two places are assembled in
 * the member's seam buffer. Every wait is counted by cause. Nothing is allocated after open.
 */
#ifndef WR_MEMORY_PAGER_H
#define WR_MEMORY_PAGER_H

#include "base/log.h"
#include "io/io.h"
#include "memory/device.h"
#include "memory/plan.h"

#define WR_PAGER_DEPTH 16 /* reads in flight at most */

struct wr_pager;

struct wr_pager_config {
    const struct wr_plan *plan;
    const struct wr_catalog *catalog;
    struct wr_device *device;
    const char *io; /* engine name, see wr_io_open */
    struct wr_arena *arena;
    struct wr_ledger *ledger;
    const struct wr_log *log;
    uint32_t n_members;         /* compute threads */
    bool checksums;             /* wr_pager_weight_crc will be asked */
    const volatile int *cancel; /* may be NULL */
    weir_progress_fn *progress;
    void *progress_user;
};
/* Takes the pinned and ring regions from the arena, reads what is pinned, starts the I/O thread. */
int wr_pager_open(struct wr_pager **, const struct wr_pager_config *, weir_err *);
void wr_pager_close(struct wr_pager *); /* NULL is fine */

/* A pass: begin, leases of every item of every DENSE weight in order (and of HEAD weights if `head`), end. An aborted pass (any item
 * left out) is ended with `aborted`: the tape starts again. */
void wr_pager_begin(struct wr_pager *, bool head);
void wr_pager_end(struct wr_pager *, bool aborted);

/* After a pass: waits until as much is read ahead as there is room for. What was read between two such moments belongs to whole passes. */
void wr_pager_settle(struct wr_pager *);

struct wr_rows {
    struct wr_ref ref; /* n_rows rows, row_bytes apart */
    uint32_t first_row, n_rows;
};
struct wr_lease {
    struct wr_pager *pager;
    const struct wr_weight *weight;
    uint32_t member, next_row, end_row;
};
/* Rows of n items of weight `w` (its index in the plan) from `item` on; n is 1 where anything streams. Waits; false when the pager failed (wr_pager_error says
 * why). */
bool wr_pager_acquire(struct wr_pager *, uint32_t w, uint32_t item, uint32_t n, uint32_t member, struct wr_lease *);
/* Whether that would not wait, of one item. */
bool wr_pager_ready(struct wr_pager *, uint32_t w, uint32_t item);
/* Whether any weight's rows come from the disk in a pass. */
bool wr_pager_streams(const struct wr_pager *);
/* The next run of rows: runs cover the items, each but the last of the weight a multiple of WR_PANEL_ROWS. False when there are no more. A run
 * in the seam buffer is valid until the next call by the same member. */
bool wr_lease_next(struct wr_lease *, struct wr_rows *);
void wr_pager_release(struct wr_lease *, uint64_t fence);

/* Work items of a weight, and rows of each (but the last). */
uint32_t wr_pager_items(const struct wr_pager *, uint32_t w);
uint32_t wr_pager_item_rows(const struct wr_pager *, uint32_t w);

/* The f32 values of a VECTOR weight. */
const float *wr_pager_vector(const struct wr_pager *, uint32_t w);

/* Rows of a ROWS weight, named by tokens: calls fn for each id, in order, with the row's bytes. One caller at a time. */
typedef void wr_row_fn(void *user, size_t i, const void *row);
int wr_pager_rows(struct wr_pager *, uint32_t w, const int32_t *ids, size_t n, wr_row_fn *, void *user, weir_err *);

/* The crc of the bytes of a VECTOR, DENSE or HEAD weight as they were first read: false while some were not, which for VECTOR and pinned weights is until
 * open is done, for the others until the first pass (of HEAD: that wants logits) ends. The same for every plan. */
bool wr_pager_weight_crc(const struct wr_pager *, uint32_t w, uint32_t *crc);

/* 0, or the code of the read that failed, with its text. */
int wr_pager_error(struct wr_pager *, weir_err *);

/* Bytes of one member's seam buffer. */
uint64_t wr_pager_seam_bytes(uint64_t max_row_bytes);

struct wr_pager_stats {
    uint64_t bytes_streamed, bytes_pinned, bytes_rows, bytes_seam, n_reads, n_reads_streamed;
    uint64_t bytes_last_pass;  /* streamed for the pass that ended last, whenever they were read */
    uint64_t bytes_filled;     /* of bytes_streamed: the ring's first filling, read at open */
    double load_seconds;       /* of pinning and of that filling */
    uint64_t stall_io_ns;      /* the caller's thread waited for an extent or for token rows */
    uint64_t stall_compute_ns; /* nothing was being read, for want of a free slot */
    bool direct;
    const char *engine;
};
struct wr_pager_stats wr_pager_stats(const struct wr_pager *);

#endif
