/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of one sequence. One byte order, in memory and on disk, on every CPU (rule g): a block is one tile (WR_TILE positions) of one layer,
 *
 *     [K of head 0 .. K of head H - 1][V of head 0 .. V of head H - 1]
 *
 * K of a head in blocks of 16 positions, [head_dim][16], V position-major, [256][head_dim]; q8_0 and k8v4 have the scales of a K block,
 * and of a position's value, behind it. Places that were not written are zero.
 *
 * Either all of it is in memory (wr_kv_open: the last tile has only the positions of the context, blocks lie close), or a part is on disk (wr_kv_open_spilled:
 * blocks are padded to multiples of WR_IO_ALIGN; the padding is zero, and written only as far as direct writes need it). Then, of a global layer, the first
 * tiles are resident for good, the tile that grows is in a slot of its own, the tail, and full tiles between them are written to the file once and read back,
 * in the order of the pass, through a ring. Of a local layer the newest tiles are in memory, as many as its window and a chunk need; full ones are written too,
 * so that a rollback finds them.
 */
#ifndef WR_MEMORY_KV_H
#define WR_MEMORY_KV_H

#include "base/log.h"
#include "io/store.h"
#include "kernels/kernels.h"
#include "memory/device.h"

struct wr_kv_store; /* kv_store.h: what a spilled one has besides */

struct wr_kv {
    struct wr_device *device;
    enum wr_region region;
    enum wr_kv_type type;
    uint32_t n_layer, n_head_kv, head_dim;
    uint32_t n_positions;            /* a multiple of 16; spilled: of WR_TILE */
    uint64_t key_bytes, value_bytes; /* of one position of one head */
    uint64_t block_bytes;            /* of a full tile of a layer, with padding where it is spilled */
    struct wr_kv_store *store;       /* NULL: all in memory */
};

/* Bytes of one position over all layers and heads. */
uint64_t wr_kv_position_bytes(enum wr_kv_type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim);
/* Takes the region for n_ctx positions from the arena, all zero. */
int wr_kv_open(struct wr_kv *, struct wr_device *, enum wr_kv_type, uint32_t n_layer, uint32_t n_head_kv, uint32_t head_dim, uint32_t n_ctx, struct wr_arena *,
    struct wr_ledger *, weir_err *);
/* One of n positions (rounded up to 16) in `memory`, n * wr_kv_position_bytes, for what belongs to `of` and has no place in it yet. Nothing is to be closed. */
int wr_kv_open_beside(struct wr_kv *, const struct wr_kv *of, uint32_t n, void *memory, weir_err *);
/* Stops threads and closes the file of a spilled one; nothing else is to be done. */
void wr_kv_close(struct wr_kv *);

/* K from the block that holds `position` on, V from `position` on; `n` positions (K: rounded out to blocks) of one tile, which is in memory: resident, hot
 * (of the pass's rows), the tail, in a local layer's slots, or taken from the ring. */
struct wr_ref wr_kv_keys(const struct wr_kv *, uint32_t layer, uint32_t head, uint32_t position, uint32_t n);
struct wr_ref wr_kv_values(const struct wr_kv *, uint32_t layer, uint32_t head, uint32_t position, uint32_t n);
/* The key and the value of one position become those of a position of another of the same shape; both are in memory. */
void wr_kv_copy(struct wr_kv *to, uint32_t to_position, const struct wr_kv *from, uint32_t from_position, uint32_t layer, uint32_t head);

/* ---- what is where, for plan and store alike ------------------------------------------- */

struct wr_kv_layout {
    uint64_t block_bytes;
    uint32_t n_tiles;           /* of the context */
    uint32_t n_global, n_local; /* layers */
    uint32_t n_local_tiles;     /* slots of each local layer */
    uint32_t n_pool;            /* tails, and what a chunk fills while the writer has not written it */
    uint32_t n_ring;            /* slots that tiles from the disk pass through */
    uint32_t n_resident;        /* tiles of global layers, over all of them; each has n_resident / n_global or one more */
};
#define WR_KV_LEAST_RING 2
#define WR_KV_MOST_RING 64
uint64_t wr_kv_block_bytes(enum wr_kv_type, uint32_t n_head_kv, uint32_t head_dim); /* padded */
/* The least memory that n_ctx positions in chunks need: no resident tile, a ring of WR_KV_LEAST_RING. */
struct wr_kv_layout wr_kv_layout_least(uint64_t block_bytes, uint32_t n_layer, uint32_t n_local, uint32_t window, uint32_t n_ctx, uint32_t n_chunk);
uint64_t wr_kv_layout_bytes(const struct wr_kv_layout *);      /* of the arena */
uint64_t wr_kv_layout_meta_bytes(const struct wr_kv_layout *); /* allocated besides */
/* Resident tiles of the i-th global layer. */
uint32_t wr_kv_layout_resident(const struct wr_kv_layout *, uint32_t i);
/* Blocks that a pass whose first row is at `position` reads. */
uint64_t wr_kv_layout_streamed(const struct wr_kv_layout *, uint32_t position);
/* The first position whose pass reads any; 0: none of n_ctx does. */
uint32_t wr_kv_layout_read_from(const struct wr_kv_layout *, uint32_t n_ctx);
/* Tiles that the file has room for, from which tile on, and its bytes. */
uint32_t wr_kv_layout_first_tile(const struct wr_kv_layout *);
uint64_t wr_kv_layout_disk_bytes(const struct wr_kv_layout *, uint32_t n_ctx);

/* ---- a part on disk -------------------------------------------------------------------- */

/* Where blocks lie in a file: the block of (tile, layer) at data_start + (tile - first_tile) * group_bytes + layer * block_bytes. */
struct wr_kv_places {
    uint64_t data_start, group_bytes;
    uint32_t first_tile;
};
static inline uint64_t wr_kv_place(const struct wr_kv_places *p, uint64_t block_bytes, uint32_t layer, uint32_t tile)
{
    return p->data_start + (uint64_t)(tile - p->first_tile) * p->group_bytes + layer * block_bytes;
}

struct wr_kv_config {
    struct wr_device *device;
    enum wr_kv_type type;
    uint32_t n_layer, n_head_kv, head_dim;
    struct wr_kv_layout layout; /* of the context and the largest pass */
    bool (*is_local)(const void *user, uint32_t layer);
    const void *user;
    uint32_t window; /* of local layers */
    const char *io;  /* engine that reads, see wr_io_open */
    struct wr_arena *arena;
    struct wr_ledger *ledger;
    const struct wr_log *log;
    /* The file that full tiles are written to and read from; wr_kv_close closes it. Readers count on file.bytes: reserve it, or set it to the most that it may
     * become. */
    struct wr_store file;
    struct wr_kv_places places;
    bool write_all; /* resident tiles are written too when they are full: the file is to be kept */
    /* Tiles below base_tiles are read from here, until a rollback goes below them. NULL: there are none. It stays the caller's. */
    const struct wr_file *base;
    struct wr_kv_places base_places;
    uint32_t base_tiles;
    /* A full tile of a layer was written, in ascending order within the layer: on the writer's thread, with the block's bytes. May be NULL. */
    void (*written)(void *disk_user, uint32_t layer, uint32_t tile, const void *block);
    /* A block was read, from the base or the file: not 0 when it is not what it should be. On the reader's thread or the leader's. May be NULL. */
    int (*read)(void *disk_user, uint32_t layer, uint32_t tile, const void *block, weir_err *);
    void *disk_user;
};
int wr_kv_open_spilled(struct wr_kv *, const struct wr_kv_config *, weir_err *);

/* Positions [0, n), whole tiles, are on disk already (in the base, or in the file): they count as stored, and nothing else does. Between passes. Reads what is
 * resident; local layers' tiles are read when a pass begins. */
int wr_kv_adopt(struct wr_kv *, uint32_t n, weir_err *);
/* Then, n < WR_TILE more, whose blocks lie elsewhere: `fill` brings each layer's, block_bytes long, to its place in memory. */
int wr_kv_adopt_tail(struct wr_kv *, uint32_t n, int (*fill)(void *user, uint32_t layer, void *block, weir_err *), void *user, weir_err *);
/* Forgets all positions; tiles below n_tiles are read from another base from now on, as wr_kv_config has it. Then wr_kv_adopt. Starts the threads and the
 * engine that reads anew: where that fails, every further pass does. */
int wr_kv_rebase(struct wr_kv *, const struct wr_file *base, const struct wr_kv_places *, uint32_t n_tiles, weir_err *);
/* Positions from n on are forgotten, between passes; a pass that begins before the end does it by itself. Blocks that were written stay on disk until they
 * are written anew. */
void wr_kv_truncate(struct wr_kv *, uint32_t n);
/* Nothing is written until it is let go; between passes. A pass that does not go beyond the end of the tile that grows has room for what it fills. */
void wr_kv_hold(struct wr_kv *, bool held);
/* Every full tile is written when it returns 0; between passes. */
int wr_kv_flush(struct wr_kv *, weir_err *);
/* After a rollback the tile that is partly filled may be on disk, and so may those in the window of a local layer: brings them back, 0 or WEIR_E_READ. Then
 * wr_kv_block gives each layer's block of it. */
int wr_kv_load_tail(struct wr_kv *, weir_err *);
/* The block of a tile that is in memory between passes (resident, the tail, in a local layer's slot), NULL if it is not. block_bytes long. */
const void *wr_kv_block(const struct wr_kv *, uint32_t layer, uint32_t tile);
uint32_t wr_kv_length(const struct wr_kv *); /* positions stored; spilled only */
/* Full tiles that are on disk in every layer. */
uint32_t wr_kv_on_disk(const struct wr_kv *);
/* n bytes of a block on disk, from byte `at` on; between passes. */
int wr_kv_read_part(const struct wr_kv *, uint32_t layer, uint32_t tile, uint64_t at, void *dst, size_t n, weir_err *);

/* A pass over rows [position, position + n) of a spilled one, on the thread that leads it; each returns at once where all is in memory.
 * begin: forgets what lies behind `position`, brings the tail back where it is not in memory, tries again what could not be written, starts reading.
 * layer_begin: slots for what the layer's rows store; waits for the writer. layer_end, when they are stored and attended to: full tiles go to the writer.
 * end: the rows count as stored, or (`aborted`) are forgotten.
 * Errors (WEIR_E_WRITE, WEIR_E_READ) leave what was stored before the pass. */
int wr_kv_begin(struct wr_kv *, uint32_t position, uint32_t n, weir_err *);
int wr_kv_layer_begin(struct wr_kv *, uint32_t layer, weir_err *);
int wr_kv_layer_end(struct wr_kv *, uint32_t layer, weir_err *);
void wr_kv_end(struct wr_kv *, bool aborted);

/* Tiles [*from, *to) of the layer come from the ring in this pass; false: none does. */
bool wr_kv_streams(const struct wr_kv *, uint32_t layer, uint32_t *from, uint32_t *to);
/* Waits for tiles from `tile` on, the next one of the ring: *n of them are there. */
int wr_kv_take(struct wr_kv *, uint32_t layer, uint32_t tile, uint32_t *n, weir_err *);
/* All that were taken; their slots are free when the fence is done. */
void wr_kv_give_back(struct wr_kv *, uint64_t fence);

struct wr_kv_stats {
    uint64_t bytes_read, n_reads, bytes_written, n_writes;
    uint64_t bytes_last_pass;               /* that the pass which ended last took from the ring, whenever they were read */
    uint64_t stall_read_ns, stall_write_ns; /* the pass waited for a block, for a slot */
    uint32_t resident_tiles;
    bool direct;
};
struct wr_kv_stats wr_kv_stats(const struct wr_kv *);

#endif
