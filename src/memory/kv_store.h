/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kv.c, kv_pass.c and kv_io.c share; nobody else includes it.
 *
 * Threads: the one that leads passes, the reader, the writer. One lock guards all that is marked so; it is taken once a block or so, never by the
 * threads that compute. What is not marked belongs to the leader.
 */
#ifndef WR_MEMORY_KV_STORE_H
#define WR_MEMORY_KV_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include "memory/kv.h"

#define WR_KV_NONE UINT32_MAX
#define WR_KV_MORE_JOBS 64 /* that the writer's list has room for beyond the slots: resident tiles, which take none */

struct wr_kv_layer {
    bool local;
    uint32_t resident;        /* tiles in fixed places, from `place` on */
    uint64_t place;           /* in the region; local: of slot 0 */
    uint32_t tail, tail_tile; /* a pool slot; WR_KV_NONE */
    uint32_t *holds;          /* local: [n_local_tiles] tile of each slot */
    uint32_t on_disk;         /* lock: tiles below it are on disk (resident ones only with write_all) */
};

struct wr_kv_job {              /* a full block to be written */
    uint32_t layer, tile, slot; /* slot: of the pool, free when it is written; WR_KV_NONE */
    uint64_t place, fence;
};

struct wr_kv_cursor { /* a place in the stream of blocks */
    uint32_t pass, full, layer, tile;
};

struct wr_kv_ring_slot {
    uint32_t layer, tile;
    bool ready, failed;
    uint64_t fence;
};

struct wr_kv_store {
    struct wr_kv_config config;
    struct wr_kv_layout layout;
    uint64_t block_bytes;
    uint64_t write_bytes;    /* of a block: without its padding, as far as direct writes of the file allow */
    uint64_t pool, ring;     /* places in the region */
    uint8_t *memory;         /* the region, the host's side */
    struct wr_file files[2]; /* as the reader sees them: the file, the base */
    struct wr_io *io;
    const struct wr_io_ops *ops;
    struct wr_kv_layer *layer; /* [n_layer] */
    uint32_t *holds;           /* of all local layers */
    uint32_t *hot;             /* [n_pool] the slots of the layer in progress, hot_layer, from tile hot_tile on; WR_KV_NONE */
    uint32_t hot_tile, hot_layer;
    uint32_t n, position, n_rows; /* stored; of the pass */
    uint32_t ring_tile;           /* of the first block taken */
    uint64_t pass_bytes, last_pass_bytes;

    pthread_mutex_t lock;
    pthread_cond_t for_leader, for_reader, for_writer;
    pthread_t reader, writer;
    bool has_reader, has_writer;
    /* ---- lock ---- */
    bool stop, reset, paused, held, read_failed, write_failed, writing;
    weir_err read_err, write_err;
    uint32_t *free_slot, n_free; /* of the pool */
    struct wr_kv_job *job;       /* a ring */
    uint32_t n_jobs, job_head, max_jobs;
    uint32_t pass, known, full[2]; /* of the pass in progress; the last one of which it is known how many tiles are full when it begins; of even, odd ones */
    uint32_t base_tiles;
    struct wr_kv_ring_slot *slot;     /* [n_ring] */
    uint64_t submitted, taken, given; /* running counts; block i passes through slot i mod n_ring */
    uint32_t wanted;                  /* blocks from `taken` on that somebody waits for; 0: nobody does */
    uint64_t bytes_read, n_reads, bytes_written, n_writes, stall_read_ns, stall_write_ns;
};

int wr_kv_start_threads(struct wr_kv_store *, weir_err *);
void wr_kv_stop_threads(struct wr_kv_store *);
/* So many of the blocks that are wanted have arrived, one after the other. The lock is held. */
uint32_t wr_kv_ready(const struct wr_kv_store *);
/* One block into the region, by the calling thread; what is there is the kernels' when it returns. */
int wr_kv_read_block(struct wr_kv *, uint32_t layer, uint32_t tile, uint64_t place, weir_err *);
/* Before a pass, while the reader has nothing to do and its engine is free: the blocks below tile n_tiles that are resident, as many at once as the ring has. */
int wr_kv_read_resident(struct wr_kv_store *, uint32_t n_tiles, weir_err *);
/* The reader forgets what it read and begins with the pass in progress, or the next one. */
void wr_kv_restart_reader(struct wr_kv_store *);

#endif
