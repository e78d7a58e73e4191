/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair merging of one piece, by rank or by score: the merge table and the merging loop. */
#ifndef WR_TEXT_BPE_H
#define WR_TEXT_BPE_H

#include "base/mem.h"

struct wr_bpe_merge {
    uint32_t left, right; /* ids; left = WR_BPE_NONE: empty slot */
    uint32_t rank, result;
};
#define WR_BPE_NONE UINT32_MAX

/*
 * Two kinds. By rank: symbols begin as bytes, a table says which pairs merge. By score (`words`): symbols begin as characters, a pair merges
 * where its text is a token, and that token's rank counts; a character without a token is the symbol n_tokens - 1 + its length.
 */
struct wr_bpe {
    struct wr_bpe_merge *slots; /* by rank: [n_slots], linear probing from the hash of (left, right) */
    uint64_t n_slots;
    const struct wr_vocab *words; /* by score, else NULL */
    uint32_t n_tokens;
    int32_t unknown;      /* by score: token of what has no other, or -1 */
    int32_t byte_id[256]; /* token of each byte, -1 where the vocabulary lacks it */
    int32_t char_id[128]; /* by score: token of each ASCII character, or -1 */
    /* Token i covers length_at[i+1] - length_at[i] bytes. By rank, every id that merging can reach is made of byte tokens, and a merge's
     * result is the text of both pieces, so that this is also the number of symbols it covers. */
    const uint32_t *length_at;
};

uint64_t wr_bpe_n_slots(uint32_t n_merges);
/* slots: [wr_bpe_n_slots(n)], all 0xff. A pair that is there already keeps its first rank. False when far too many pairs hash alike. */
bool wr_bpe_add(struct wr_bpe *, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);

/* Ids as they come: those past `max` are counted, not kept. */
struct wr_ids {
    int32_t *ids; /* TEXT */
    size_t n, capacity, max;
    size_t n_unknown; /* n after the unknown token was put: the next one joins it */
};
/* err may not be NULL in both. */
int wr_ids_open(struct wr_ids *, size_t max, struct wr_ledger *, weir_err *);
int wr_ids_put(struct wr_ids *, int32_t id, weir_err *);

/* Work memory for long pieces, kept from one to the next; TEXT. */
struct wr_bpe_work {
    struct wr_ledger *ledger;   /* the rest but cancel zeroed */
    const volatile int *cancel; /* non-zero: a piece ends with WEIR_E_CANCELLED, a long one in its middle too; may be NULL */
    int32_t *symbols;           /* [2 * n_symbols] */
    size_t n_symbols;
    uint64_t *heap; /* [heap_capacity] */
    size_t heap_capacity;
};
void wr_bpe_work_close(struct wr_bpe_work *);
/* Appends the ids of one piece (n < 2^31): the adjacent pair of the lowest rank, leftmost among equals, is merged until none is left
 * (Sennrich et al. 2016). By rank, bytes without a token are dropped first; by score, what is left without a token is spelled by byte
 * tokens, or is the unknown token. *n_dropped counts the bytes that are lost. O(n log n) time, by score times the length of the longest
 * token at worst, since a pair is looked up by its text; work memory 8 bytes a byte and a heap that
 * takes about 4 more at random letters, 16 at worst. err may not be NULL. */
int wr_bpe_piece(const struct wr_bpe *, const uint8_t *bytes, size_t n, struct wr_bpe_work *, struct wr_ids *out, size_t *n_dropped, weir_err *);

#endif
