/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vocabulary and the tokenizer: text to ids and back. Built token by token by the engine (this layer knows no file
 * format), immutable afterwards.
 */
#ifndef WR_TEXT_VOCAB_H
#define WR_TEXT_VOCAB_H

#include "base/log.h"
#include "base/mem.h"

enum wr_token_type { WR_TOKEN_UNDEFINED, WR_TOKEN_NORMAL, WR_TOKEN_UNKNOWN, WR_TOKEN_CONTROL, WR_TOKEN_USER, WR_TOKEN_UNUSED, WR_TOKEN_BYTE };

struct wr_vocab_config {
    const char *model;                        /* tokenizer.ggml.model: "gpt2" (byte-pair merges by rank) or "llama" (merges by score) */
    const char *pre;                          /* tokenizer.ggml.pre; NULL if absent; "gpt2" alone has one */
    uint32_t n_tokens, n_merges;              /* merges: 0 where tokens have scores */
    uint64_t token_bytes;                     /* sum of the tokens' lengths, an upper bound */
    int32_t bos, eos, eot, eom, unknown, pad; /* -1: the file names none */
    int32_t ends[3];                          /* [n_ends] more ids that end a generation (fim_pad, fim_rep, fim_sep) */
    uint32_t n_ends;
    bool add_bos, add_eos;
    int8_t add_bos_set; /* the file says add_bos; else the model's default, or the pre-tokenizer's */
    bool space_prefix;  /* "llama": a space is put before the text and after every special token */
    int8_t space_prefix_set;
};

bool wr_vocab_has_scores(const struct wr_vocab_config *); /* model "llama" */

struct wr_vocab;
/* Memory that a vocabulary of this size takes at most, all in account TOKENIZER: a pure function of the config (pattern code included). */
uint64_t wr_vocab_bytes(const struct wr_vocab_config *);
/* WEIR_E_UNSUPPORTED names an unknown model; an unknown or missing pre warns (the default split is used). */
int wr_vocab_open(struct wr_vocab **, const struct wr_vocab_config *, struct wr_ledger *, const struct wr_log *, weir_err *);
/* n_tokens calls in order of id, then n_merges calls in order of rank ("a b", split at the first space found at index >= 1; a merge whose
 * pieces or result are unknown is WEIR_E_FORMAT), then finish. A text that occurs twice means its first token everywhere, a pair its first
 * rank; an empty text is a token that no text gives. Where tokens have scores, n_tokens scores come instead of the merges. */
int wr_vocab_add_token(struct wr_vocab *, const char *bytes, size_t n, int32_t type, weir_err *);
int wr_vocab_add_merge(struct wr_vocab *, const char *bytes, size_t n, weir_err *);
int wr_vocab_add_score(struct wr_vocab *, float score, weir_err *);
int wr_vocab_finish(struct wr_vocab *, weir_err *);
void wr_vocab_close(struct wr_vocab *);

uint32_t wr_vocab_size(const struct wr_vocab *);
bool wr_vocab_ends(const struct wr_vocab *, int32_t id);                     /* in the end-of-generation set (docs/FORMATS.md) */
int32_t wr_vocab_find(const struct wr_vocab *, const char *bytes, size_t n); /* exact text of a token, see wr_vocab_text_of; -1 */
/* What the token prints: bytes are the vocabulary's own; control and unknown tokens print nothing unless `special`. False if id is out of range. */
bool wr_vocab_bytes_of(const struct wr_vocab *, int32_t id, bool special, const char **bytes, size_t *n);
/* The same, without the space that tokenizing puts before a text that begins after token `previous` (-1: at the very beginning). */
bool wr_vocab_bytes_after(const struct wr_vocab *, int32_t previous, int32_t id, bool special, const char **bytes, size_t *n);
/* Text as in the file; "llama" keeps what ordinary tokens print instead (a space for U+2581, the byte of a byte token). */
const char *wr_vocab_text_of(const struct wr_vocab *, int32_t id, size_t *n);
int32_t wr_vocab_bos(const struct wr_vocab *);
int32_t wr_vocab_eos(const struct wr_vocab *);

struct wr_tokenize {
    bool special;               /* recognize control and unknown tokens in the text (user-defined ones always are) */
    bool add_bos;               /* put BOS first if the model asks for it and the text does not begin with it, EOS last likewise */
    size_t max_ids;             /* ids past this are counted, not kept */
    const volatile int *cancel; /* non-zero: WEIR_E_CANCELLED; may be NULL */
};
/*
 * ids: [min(*n_ids, max_ids)], charged to TEXT, freed with wr_mem_free. Several threads may use one vocabulary.
 * - Special tokens are cut out first: longest first, each length over all that the longer ones left, leftmost first within a
 *   length. The text of one that is not recognized is spelled like any other text.
 * - Any bytes are accepted. A run of bytes that are not UTF-8 is a piece of its own, spelled by byte tokens ("gpt2": and merges).
 *   The round trip through wr_vocab_bytes_after is exact for every input, but for dropped bytes and models that normalize (NFC;
 *   "llama" takes U+2581 for a space).
 * - *n_dropped: bytes without a token (P5: the caller warns). "gpt2" leaves them out before merging; "llama" puts the unknown token
 *   for a run of characters that have no token and lack one for a byte, or nothing where the model has no unknown token.
 * Time O(n log n) at worst, whatever the text, times the number of different lengths of special tokens where text holds bytes
 * that one begins with, and for "llama" times the length of the longest token; no recursion. Work memory (TEXT, freed): none for pieces
 * up to 128 bytes, about 12 bytes for each byte of the longest piece above; "llama" copies a text that gets a space or holds U+2581. WEIR_E_INPUT: more than 682 MiB of text.
 */
int wr_vocab_tokenize(const struct wr_vocab *, const char *text, size_t n, const struct wr_tokenize *, struct wr_ledger *, int32_t **ids, size_t *n_ids,
    size_t *n_dropped, weir_err *);

/* Text that arrives in pieces, given on only at character borders: holds back an incomplete tail of at most 3 bytes. */
struct wr_utf8_stream {
    uint8_t held[4];
    uint32_t n_held;
};
/* Appends bytes and gives whole characters through emit; invalid bytes become U+FFFD. flush: an incomplete tail becomes one U+FFFD. */
typedef void wr_emit_fn(void *user, const char *text, size_t n);
void wr_utf8_stream_put(struct wr_utf8_stream *, const char *bytes, size_t n, wr_emit_fn *, void *user);
void wr_utf8_stream_flush(struct wr_utf8_stream *, wr_emit_fn *, void *user);

#endif
