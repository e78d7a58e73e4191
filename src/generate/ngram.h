/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafts from the text itself: an online suffix tree (Ukkonen, "On-line construction of suffix trees", Algorithmica 1995) over every token so far. Its
 * active point is the longest suffix that occurred before, so a proposal costs one look-up. The tree is a suffix automaton's equal in what it finds and
 * needs less: leaves are numbers, and a table of child numbers replaces edges with copies of their tokens.
 * Amortised constant steps a token, whatever the vocabulary. Nothing is allocated after open.
 */
#ifndef WR_GENERATE_NGRAM_H
#define WR_GENERATE_NGRAM_H

#include "base/mem.h"

struct wr_ngram;
/* What open charges for a text of at most n_max tokens (at most 2^30): 36 bytes a token and some fixed. */
uint64_t wr_ngram_bytes(uint32_t n_max);
int wr_ngram_open(struct wr_ngram **, uint32_t n_max, struct wr_ledger *, enum wr_account, weir_err *);
void wr_ngram_close(struct wr_ngram *); /* NULL is fine */
/* Back to the empty text: for a text that was cut or exchanged, whose tokens are then put again. */
void wr_ngram_reset(struct wr_ngram *);
/* The next token of the text. Full (n_max tokens): ignored, and from then on nothing is proposed, since the end of the text is no longer known. */
void wr_ngram_put(struct wr_ngram *, int32_t id);
/* Writes up to k ids that followed the longest suffix of the text that occurred before, and the suffix's length to *match_length; returns how many: k, or 0
 * where no suffix occurred before. Of several earlier occurrences the one that begins last counts: what was just changed is likelier to be repeated than
 * its original. (Each put tells at most 64 suffixes, the longest first, of a new occurrence. A suffix with more than 64 longer ones between it and every
 * later occurrence gives an older one: as long, and as real.) Where the occurrence overlaps the end, what it gives goes on with the proposal
 * itself, that is, with the period. */
uint32_t wr_ngram_propose(const struct wr_ngram *, int32_t *ids, uint32_t k, uint32_t *match_length);
/* Table places, nodes and tokens looked at since open, for tests of the bound. */
uint64_t wr_ngram_steps(const struct wr_ngram *);

#endif
