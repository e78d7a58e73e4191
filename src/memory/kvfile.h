/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved contexts: tokens with their keys and values in a file (docs/CONTEXT_FILE.md has every byte). A file holds groups of 256 positions, each a block
 * a layer and a record; the last, partly filled group lies in one of two places in turn. What counts is what the state says, which is written after
 * everything that it speaks of is on the disk: whatever ends the process, the file has the tokens of the last commit.
 *
 * The caller moves the blocks: it writes them at wr_kvfile_block through file.store, and reads them with any engine. One thread.
 */
#ifndef WR_MEMORY_KVFILE_H
#define WR_MEMORY_KVFILE_H

#include "base/mem.h"
#include "io/store.h"

#define WR_KVFILE_TILE 256 /* positions of a group */

/* Which model, and which arithmetic, the keys and values are of. */
struct wr_kvfile_about {
    uint32_t numerics, kv_type, precise;
    uint32_t n_layer, n_head_kv, head_dim, block_bytes; /* of one layer's block: a multiple of WR_IO_ALIGN */
    uint32_t n_ctx_trained, n_vocab, n_weights;
    uint32_t tokenizer, graph; /* crcs of the vocabulary with its rules, and of the numbers that fix the graph */
    char arch[32], model[128]; /* NUL-terminated; model: the file's name, for people */
};
struct wr_kvfile_weight {
    uint32_t id;    /* crc of name, type and shape */
    uint32_t known; /* whether `crc` is: 1 */
    uint32_t crc;   /* of the tensor's bytes in the model's file */
};

struct wr_kvfile_state {
    uint64_t generation;
    uint32_t n_full;     /* full groups */
    uint32_t n_tail;     /* tokens of the group that is not full, 0..255 */
    uint32_t tail_place; /* 0 or 1 */
    uint32_t last, tail; /* crcs of the last full group's record (without one: of the header), and of the tail's (without one: 0) */
};

struct wr_kvfile {
    struct wr_store store;
    struct wr_kvfile_about about;
    struct wr_kvfile_weight *weights; /* [n_weights] */
    struct wr_kvfile_state saved;     /* what the file says */
    struct wr_kvfile_state next;      /* what commit will make it say */
    uint64_t data_start, group_bytes;
    uint32_t record_bytes;
    uint8_t *record; /* [record_bytes] */
    char *place;     /* a new file: where it is to be. NULL: it was there */
    char *part;      /* its name until then, where it needs one */
    bool changed;    /* by this process, whose room behind the tokens is given back at the end */
    bool keeps_room; /* until it is closed: the caller set it, who has taken it */
    bool pending;    /* a new file that is not in its place yet */
    bool replaces;   /* and that will take another's */
    int old_fd;      /* that one's, which is locked until then */
    bool broken;     /* the system lost what it said was written: nothing more is committed */
};

static inline uint64_t wr_kvfile_record_bytes(uint32_t n_layer) { return wr_round_up(1060 + 4 * (uint64_t)n_layer, WR_IO_ALIGN); }

/* Whether the file begins as a saved context does. */
bool wr_kvfile_is(const char *path);
/* Opens and checks header, state and the table of weights; reads no record and no block. WEIR_E_FORMAT: damaged, truncated, or no saved context;
 * WEIR_E_UNSUPPORTED: another version. A reader keeps writers of other processes away and a writer everybody (WEIR_E_OPEN). Memory: TEXT. */
int wr_kvfile_open(struct wr_kvfile *, const char *path, bool writable, enum weir_direct, struct wr_ledger *, const struct wr_log *, weir_err *);
/* A new file, of no tokens. Where `path` is free it appears there with the first commit that has tokens; a saved context that is there stays until
 * wr_kvfile_finish, which replaces it; any other file is refused. While it waits to be replaced it may be read, but neither written nor replaced by
 * another (WEIR_E_OPEN). weights: ids alone count. */
int wr_kvfile_create(struct wr_kvfile *, const char *path, const struct wr_kvfile_about *, const struct wr_kvfile_weight *, enum weir_direct,
    struct wr_ledger *, const struct wr_log *, weir_err *);
/* A new file is in its place when this returns 0, and no longer than its tokens need, unless it keeps its room. It may be asked again. */
int wr_kvfile_finish(struct wr_kvfile *, weir_err *);
/* An open one, again does nothing. A new file that is not in its place yet is gone; one in which nothing was reserved or committed stays as it is. */
void wr_kvfile_close(struct wr_kvfile *);

/* 0, or WEIR_E_MISMATCH: the first difference that would make the keys and values another model's. Weights are compared by their ids. */
int wr_kvfile_match(const struct wr_kvfile *, const struct wr_kvfile_about *, const struct wr_kvfile_weight *, weir_err *);
/* The same of the tokenizer alone, whose crc may be known later than the rest. */
int wr_kvfile_match_tokenizer(const struct wr_kvfile *, uint32_t crc, weir_err *);

static inline uint64_t wr_kvfile_tokens(const struct wr_kvfile_state *s) { return (uint64_t)s->n_full * WR_KVFILE_TILE + s->n_tail; }
/* Groups, the tail's included. */
static inline uint32_t wr_kvfile_groups(const struct wr_kvfile_state *s) { return s->n_full + (s->n_tail > 0); }

/* Reads all records: ids [tokens], and for each group rows (a crc, see put) and crcs of its blocks [groups][n_layer]; any may be NULL.
 * WEIR_E_FORMAT names the group that is damaged. */
int wr_kvfile_records(struct wr_kvfile *, int32_t *ids, uint32_t *rows, uint32_t *blocks, weir_err *);

/* The same and all blocks, in a few KiB of memory whatever the file's numbers are. `before` is called before each block, and ends it by another value than 0. */
int wr_kvfile_check(struct wr_kvfile *, int (*before)(void *user, uint64_t done, uint64_t all, weir_err *), void *user, weir_err *);

/* Where the block of a layer lies: of a full group; of the saved tail; of the tail that is written next. */
uint64_t wr_kvfile_block(const struct wr_kvfile *, uint32_t tile, uint32_t layer);
uint64_t wr_kvfile_tail_block(const struct wr_kvfile *, uint32_t layer);
uint64_t wr_kvfile_next_tail_block(const struct wr_kvfile *, uint32_t layer);
/* Reads a block and compares its crc: WEIR_E_FORMAT names file, tile and layer. */
int wr_kvfile_read_block(const struct wr_kvfile *, uint32_t tile, uint32_t layer, uint64_t offset, void *block, uint32_t crc, weir_err *);
int wr_kvfile_damaged(const struct wr_kvfile *, uint32_t tile, uint32_t layer, weir_err *);

/* Bytes of a file of so many full groups. */
uint64_t wr_kvfile_bytes(const struct wr_kvfile_about *, uint32_t n_full);
/* Takes the room for the full groups before `n_groups`. */
int wr_kvfile_reserve(struct wr_kvfile *, uint32_t n_groups, weir_err *);
/* Behind the blocks of group next.n_full, which were written: its record. n < 256: as the tail, whose blocks lie at _next_tail_block. `rows`: crc of
 * the embedding rows of the tokens, one after the other, 0 where they are not compared; blocks: [n_layer]. Counts from commit on. */
int wr_kvfile_put(struct wr_kvfile *, const int32_t *ids, uint32_t n, uint32_t rows, const uint32_t *blocks, weir_err *);
/* Drops the tail and all groups from n_full on; counts from commit on, before which none of their blocks may be overwritten. */
int wr_kvfile_truncate(struct wr_kvfile *, uint32_t n_full, weir_err *);
/* What was put or dropped is on the disk when this returns 0; otherwise the file still has what it had, and it may be asked again. */
int wr_kvfile_commit(struct wr_kvfile *, weir_err *);
/* A weight's crc became known. */
int wr_kvfile_set_weight(struct wr_kvfile *, uint32_t i, uint32_t crc, weir_err *);

#endif
