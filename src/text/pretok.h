/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting text into the pieces that byte-pair merges do not cross: the table pretok.def, compiled with PCRE2. */
#ifndef WR_TEXT_PRETOK_H
#define WR_TEXT_PRETOK_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "base/log.h"
#include "base/mem.h"

#define WR_MAX_PATTERNS 5
enum wr_normalizer { WR_NORM_NONE, WR_NORM_NFC };

struct wr_pretok_row {
    const char *names;
    bool ignore_merges, add_bos;
    enum wr_normalizer normalizer;
    const char *patterns[WR_MAX_PATTERNS + 1]; /* NULL after the last */
};
/* The row of a name, or NULL. */
const struct wr_pretok_row *wr_pretok_find(const char *name);
const struct wr_pretok_row *wr_pretok_default(void);

/* PCRE2's allocations, charged to one account; the first failure is kept in err. */
struct wr_pretok_memory {
    struct wr_ledger *ledger;
    enum wr_account account;
    weir_err err;
};

struct wr_pretok {
    struct wr_pretok_memory memory;
    pcre2_general_context *general;
    pcre2_match_context *match;
    pcre2_code *code[WR_MAX_PATTERNS];
    uint32_t n_codes;
    bool jit[WR_MAX_PATTERNS];
    uint64_t jit_bytes; /* reserved for machine code, which PCRE2 maps by itself */
};
/* What any row takes at most in account TOKENIZER: 64 KiB for machine code, and 28 KiB at the peak of compiling (2 KiB are kept), with
 * room for other versions of PCRE2. test_vocab holds every row to it. */
#define WR_PRETOK_BYTES (112u << 10)
int wr_pretok_open(struct wr_pretok *, const struct wr_pretok_row *, struct wr_ledger *, const struct wr_log *, weir_err *);
void wr_pretok_close(struct wr_pretok *); /* zeroed is fine */

/* Iterates over the pieces of one text. Work memory: TEXT. */
struct wr_split {
    const struct wr_pretok *pretok;
    struct wr_pretok_memory memory;
    pcre2_general_context *general;
    pcre2_match_data *data;
    const char *text;
    struct {
        size_t begin, pos, end; /* subject of this pattern, given out up to pos */
        size_t match_begin, match_end;
        bool waiting; /* that match is not yet given out */
    } level[WR_MAX_PATTERNS];
    uint32_t depth; /* levels in use */
};
int wr_split_open(struct wr_split *, const struct wr_pretok *, struct wr_ledger *, weir_err *);
void wr_split_close(struct wr_split *); /* zeroed is fine */
/* text must be valid UTF-8. */
void wr_split_begin(struct wr_split *, const char *text, size_t n);
/* Pieces are never empty and lie end to end. 1: text[*begin, *end) is the next one; 0: no more; negative: WEIR_E_*. */
int wr_split_next(struct wr_split *, size_t *begin, size_t *end, weir_err *);

#endif
