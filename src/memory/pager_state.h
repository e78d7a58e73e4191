/* SPDX-License-Identifier: Apache-2.0 */
/* What pager.c, tape.c, lease.c and control.c share; nobody else includes it. */
#ifndef WR_MEMORY_PAGER_STATE_H
#define WR_MEMORY_PAGER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/os.h"
#include "base/team.h"
#include "memory/pager.h"

/* A streamed extent. `ready` is the number of the pass whose data the slot holds; `left` counts the items of that pass that still read it. The I/O
 * thread writes slot and left before ready (release); the last item's release frees the slot. */
struct extent_state {
    _Atomic uint32_t ready, left;
    uint32_t slot;
    uint32_t used; /* LRU control: when it was asked for last, in extents of the tape */
    bool seen;     /* its crcs are taken */
};
struct weight_crc {
    _Atomic uint32_t crc;
    _Atomic uint64_t left; /* bytes that are not in it yet */
};
struct slot_state {
    _Atomic uint32_t busy;
    uint32_t holds; /* LRU control: the extent, from 1; 0: none */
    _Atomic uint64_t fence;
};

struct wr_pager {
    struct wr_pager_config config;
    const struct wr_plan *plan;
    struct wr_device *device;
    struct wr_io *io;
    const struct wr_io_ops *ops;
    uint8_t *pinned, *ring, *row_slots;
    uint64_t seam_bytes;
    struct extent_state *extent; /* [n_extents] */
    struct slot_state *slot;     /* [n_slots] */
    struct weight_crc *crc;      /* [n_weights]; NULL: not asked for */

    pthread_t thread;
    bool has_thread, in_pass;
    uint32_t pass;              /* compute's pass number */
    _Atomic uint32_t begun;     /* the same, for the I/O thread */
    _Atomic uint32_t head_pass; /* the last pass that wants its head */
    _Atomic uint32_t stop, reset, failed, active;
    weir_err error;                       /* written once before `failed` */
    _Atomic uint32_t progress, n_waiting; /* futex of those who wait for data */
    _Atomic uint32_t wake, asleep;        /* futex of the I/O thread */
    _Atomic uint32_t rested;              /* the wake that it did everything for and sleeps on */

    struct {
        uint32_t weight;
        uint64_t offset[WR_ROW_SLOTS]; /* aligned */
        uint32_t bytes[WR_ROW_SLOTS];
        _Atomic uint32_t posted, done; /* running counts; row i of them lies in slot i mod WR_ROW_SLOTS */
    } rows;

    _Atomic uint64_t pass_bytes[2]; /* streamed for a pass of even, of odd number: reads for the next one may be under way */
    uint64_t last_pass_bytes;
    _Atomic uint64_t bytes_streamed, bytes_pinned, bytes_rows, bytes_seam, n_reads, n_reads_streamed, stall_io_ns, stall_compute_ns;
    uint64_t bytes_filled;
    uint32_t n_filled; /* extents of the first pass that were read at open */
    uint32_t n_used;   /* LRU control: its clock */
    double load_seconds;
};

/* weight_crc.c */
int wr_weight_crc_init(struct wr_pager *, weir_err *);
void wr_weight_crc_vector(struct wr_pager *, uint32_t w, const void *bytes);         /* all of its bytes, as in the file */
void wr_weight_crc_extent(struct wr_pager *, uint32_t extent, const uint8_t *bytes); /* what was read: counts the first time */

int wr_tape_start(struct wr_pager *, weir_err *);
/* The extent is in the slot, for the pass: counts it and shows it to compute. */
void wr_tape_loaded(struct wr_pager *, uint32_t extent, uint32_t slot, uint32_t pass);
void wr_tape_wake(struct wr_pager *);
void wr_tape_progress(struct wr_pager *);
/* LRU control: the slot for the tape's next extent, which holds it already (*hit), or else, of those that nobody holds, the one whose extent was asked for
 * longest ago; n_slots: none (*fenced: one will be free without anybody saying so). Then, when the extent is there or under way: it was used. */
uint32_t wr_lru_find(const struct wr_pager *, uint32_t extent, bool *hit, bool *fenced);
void wr_lru_use(struct wr_pager *, uint32_t extent, uint32_t slot);
/* Waits until *word == value or the pager failed; false then. */
bool wr_tape_await(struct wr_pager *, _Atomic uint32_t *word, uint32_t value);

#endif
