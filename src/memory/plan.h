/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: what is pinned and what is streamed, in which pieces and in which order, and what every account gets. Pure data,
 * computed from the catalog's numbers without reading a weight; the pager executes it as it is.
 *
 * Weights are listed in the order in which a pass uses them. Their bytes are cut into extents on WR_IO_ALIGN file boundaries;
 * an extent may span tensors that are neighbours in the file and near each other in the pass. The tape is the streamed
 * extents in the order of first use; an extent stays in its slot until its last use.
 */
#ifndef WR_MEMORY_PLAN_H
#define WR_MEMORY_PLAN_H

#include "base/mem.h"
#include "format/catalog.h"
#include "memory/device.h"
#include "memory/kv.h"

enum wr_use_class {
    WR_USE_VECTOR, /* norms, biases: pinned as f32 */
    WR_USE_DENSE,  /* every row, every pass */
    WR_USE_HEAD,   /* every row, in passes that want logits; last in the pass */
    WR_USE_ROWS,   /* rows named by tokens */
};
struct wr_use {
    const struct wr_tensor *tensor;
    enum wr_use_class use;
};

struct wr_tier_info {      /* the plan's tiers, slowest first: disk, RAM */
    uint64_t budget_bytes; /* 0: no limit */
    uint64_t placed_bytes; /* weights that live there: streamed from disk, pinned in RAM */
    double rate;           /* bytes/s; 0: not measured */
};

struct wr_plan_input {
    const struct wr_use *uses; /* [n_uses], in the order of a pass; a tied head names the same tensor as ROWS and as HEAD */
    uint32_t n_uses;
    uint64_t kv_bytes_per_position;
    /* Keys and values that do not fit may go to disk, kv_disk_bytes of them at most; kv_block_bytes 0: the plan is of a
     * model without any. A context that is not given (n_ctx 0) does
     * so only where kv_disk_asked. */
    uint64_t kv_block_bytes, kv_disk_bytes;
    bool kv_disk_asked;
    uint64_t kv_file_bytes, kv_file_tile_bytes; /* of the file that is kept and has them, without and for each tile; 0: it has no name */
    uint32_t n_layer, n_local, window;          /* of them, local ones, which see `window` positions */
    uint32_t n_ctx, n_ctx_trained;              /* n_ctx 0: choose min(trained, 4096, what fits) */
    uint32_t n_chunk;                           /* 0: choose */
    uint32_t n_threads;
    /* Scratch is base + chunk * per_row + thread * threads. */
    uint64_t scratch_base, scratch_per_row, scratch_per_thread;
    /* Speculation: a burst of spec_rows fits in a pass, with the logits of each, which lie in what scratch has idle of each row of a pass, or else in the
     * account DRAFT; more rows, up to spec_most, where idle scratch has room for theirs. The automaton has draft_bytes and draft_bytes_per_position of the
     * context, which are needed where spec_rows are; else a small part of what there is beyond the least. */
    uint32_t spec_rows, spec_most;
    uint64_t logits_bytes, idle_per_row; /* of a row */
    uint64_t draft_bytes, draft_bytes_per_position;
    uint64_t tree_bytes; /* of keys and values of a tree's rows, in the account DRAFT, where spec_rows are */
    uint64_t tokenizer_bytes, process_bytes;
    bool no_text; /* the text account holds ids alone */
    uint64_t budget;
    uint64_t pin_bytes, ring_bytes, extent_bytes; /* WEIR_AUTO: choose */
    struct wr_ledger *ledger;
};

struct wr_extent {
    uint64_t offset; /* in the file; multiple of WR_IO_ALIGN */
    uint32_t bytes;  /* multiple of WR_IO_ALIGN */
    uint32_t file;
    uint32_t n_touches; /* work items of a pass that read from it */
    bool pinned, head;
    uint64_t place; /* pinned: offset in the pinned region */
};

struct wr_weight { /* one per use, same index */
    const struct wr_tensor *tensor;
    enum wr_use_class use;
    uint32_t first_extent, n_extents; /* DENSE, HEAD, ROWS: consecutive, contiguous in the file */
    uint32_t item_rows, n_items;      /* DENSE, HEAD: rows of a work item, a multiple of WR_PANEL_ROWS */
    uint64_t place;                   /* VECTOR: offset of its f32 values in the pinned region */
};
#define WR_PANEL_ROWS 16

struct wr_plan {
    struct wr_tier_info tier[WR_N_TIERS];
    uint64_t account[WR_N_ACCOUNTS];
    uint64_t min_budget;
    uint32_t min_budget_n_ctx; /* the context that it has room for */
    uint32_t n_ctx, n_chunk, max_context;
    uint32_t max_rows;            /* of a pass: n_chunk, or those of a verification */
    uint32_t n_spec_rows;         /* of a burst at most; below 2: there is none */
    uint32_t n_idle_logits;       /* of them, those whose logits lie in idle scratch; the others have memory of their own */
    uint32_t n_draft_positions;   /* that the automaton has room for */
    bool spilled;                 /* keys and values do not fit: kv says what is where */
    struct wr_kv_layout kv;       /* if spilled */
    uint32_t n_slots, slot_bytes; /* the ring */
    uint32_t n_ahead;             /* extents that are read ahead of compute: n_slots, but for the LRU control */
    uint32_t n_live;              /* slots that a pass needs at least, were nothing pinned */
    bool lru;                     /* the slots are a cache, see control.h */
    uint64_t row_slot_bytes;      /* a slot for one embedding row, aligned; WR_ROW_SLOTS of them lie behind the ring's slots */
    uint64_t vector_bytes;        /* of the pinned region, first part */
    uint64_t pinned, streamed;    /* aligned extent bytes; streamed: of one decode pass */
    uint64_t max_row_bytes;
    struct wr_weight *weights;
    uint32_t n_weights, n_files;
    struct wr_extent *extents; /* of file after file; in file order within a run */
    uint32_t n_extents;
    uint32_t *tape;               /* indices of streamed extents in order; those of the head last */
    uint32_t n_tape, n_tape_head; /* n_tape counts all; the last n_tape_head are the head's */
};
#define WR_ROW_SLOTS 16
/* The text account: ids, a rendered template with its values, the tokenizer's work; and what is left to the caller (the command) for the text itself. A short
 * context may be filled by a text of long tokens; of a long one each position past WR_TEXT_DENSE has room for a text as texts are, of 4 to 6 bytes a token. */
#define WR_TEXT_DENSE 16384u
static inline uint64_t wr_plan_text_bytes(uint32_t n_ctx)
{
    return (512ull << 10) + (n_ctx < WR_TEXT_DENSE ? 512ull * n_ctx : 512ull * WR_TEXT_DENSE + 160ull * (n_ctx - WR_TEXT_DENSE));
}
static inline uint64_t wr_plan_text_of_caller(uint32_t n_ctx)
{
    return n_ctx < WR_TEXT_DENSE ? 64ull * n_ctx : 64ull * WR_TEXT_DENSE + 32ull * (n_ctx - WR_TEXT_DENSE);
}

/* WEIR_E_BUDGET when the budget is below plan->min_budget (which is set in any case), with the sum in the text. Memory: META. */
int wr_plan_make(struct wr_plan *, const struct wr_plan_input *, weir_err *);
void wr_plan_free(struct wr_plan *);
/* Bytes of the longest row that passes through a seam buffer: of the weights that are used row by row in every pass. */
uint64_t wr_plan_longest_row(const struct wr_use *, uint32_t n_uses);
/* Bytes of the weights that every decode pass uses, without what extents have besides. */
uint64_t wr_plan_used_bytes(const struct wr_plan *);
/* The extent of the weight that holds the byte at `offset` of the file. */
uint32_t wr_plan_extent_at(const struct wr_plan *, const struct wr_weight *, uint64_t offset);

#endif
