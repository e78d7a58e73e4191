/* SPDX-License-Identifier: Apache-2.0 */
/* What vocab.c (storage) and tokenize.c (use) share. */
#ifndef WR_TEXT_VOCAB_PRIVATE_H
#define WR_TEXT_VOCAB_PRIVATE_H

#include "text/bpe.h"
#include "text/pretok.h"
#include "text/vocab.h"

/* Special tokens of one length. A text that equals one has its bit in the filter; the id table decides. */
struct wr_special_class {
    uint32_t length;
    uint64_t power;     /* WR_HASH_BASE ^ length */
    uint64_t any, user; /* 64-bit filters over wr_hash_bit: all special tokens, user-defined ones */
    uint64_t begins;    /* over wr_pair_bit of the first two bytes */
};

/* Polynomial hash of a text, so that it can roll along. */
#define WR_HASH_BASE UINT64_C(0x9e3779b97f4a7c55)
static inline uint64_t wr_hash_step(uint64_t h, uint8_t byte) { return h * WR_HASH_BASE + byte + 1; }
static inline uint64_t wr_hash_mix(uint64_t h)
{
    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}
static inline uint64_t wr_hash_bit(uint64_t h) { return UINT64_C(1) << (wr_hash_mix(h) & 63); }

#define WR_SLOT_ID_BITS 25 /* ids are below 2^24 */

struct wr_vocab {
    struct wr_vocab_config config;   /* strings not kept */
    bool by_score;                   /* model "llama"; row and pretok are "gpt2"'s */
    const struct wr_pretok_row *row; /* NULL where there is none */
    struct wr_pretok pretok;
    uint32_t n_tokens, n_merges, n_scores; /* added so far */
    bool finished;
    uint8_t *type; /* [n] WR_TOKEN_*, with WR_ENDS when in the end-of-generation set */
    /* Offsets into the pools, [n + 1]; by_score: four more, so that ids n .. n + 3 have the lengths 1 .. 4 (symbols without a token). */
    uint32_t *raw_at, *out_at;
    char *raw, *out;  /* token texts as in the file, one after the other; and as the bytes they stand for. by_score: the same pool */
    uint32_t *rank;   /* by_score: [n] falling score as a rising number */
    uint32_t max_out; /* longest token in bytes */
    uint32_t *slots;  /* [n_slots] by text as in the file: id + 1 in WR_SLOT_ID_BITS, above it as many bits of the hash as there is room; 0: empty */
    uint64_t n_slots;
    struct wr_bpe bpe;
    struct wr_special_class *classes; /* [n_classes], longest first */
    uint32_t n_classes, classes_capacity;
    uint64_t begins_any[1024], begins_user[1024]; /* pairs of bytes that special tokens begin with; those of one byte have all pairs */
    uint64_t joins[1024];                         /* by_score: pairs of bytes that are neighbours within a token */
};
#define WR_TYPE_MASK 0x7f
#define WR_ENDS 0x80

static inline uint8_t wr_vocab_type(const struct wr_vocab *v, int32_t id) { return v->type[id] & WR_TYPE_MASK; }
/* Control and unknown tokens: not printed, and in text only where asked for. */
static inline bool wr_vocab_is_control(const struct wr_vocab *v, int32_t id)
{
    return wr_vocab_type(v, id) == WR_TOKEN_CONTROL || wr_vocab_type(v, id) == WR_TOKEN_UNKNOWN;
}
static inline uint64_t wr_pair_bit(uint8_t a, uint8_t b) { return UINT64_C(1) << ((a * 5u + b * 7u) & 63); }

/* Those that are cut out of the text before all else. */
static inline bool wr_vocab_is_special(const struct wr_vocab *v, int32_t id) { return wr_vocab_is_control(v, id) || wr_vocab_type(v, id) == WR_TOKEN_USER; }

/* Sets of pairs of bytes. */
static inline void wr_pair_set(uint64_t *set, uint8_t a, uint8_t b) { set[a << 2 | b >> 6] |= UINT64_C(1) << (b & 63); }
static inline bool wr_pair_has(const uint64_t *set, uint8_t a, uint8_t b) { return set[a << 2 | b >> 6] >> (b & 63) & 1; }

int32_t wr_vocab_find_hashed(const struct wr_vocab *, uint64_t hash, const char *bytes, size_t n);

/* The byte alphabet (GPT-2's bytes_to_unicode): printable bytes stand for themselves, the other 68 for U+0100 and on. */
uint32_t wr_vocab_byte_to_cp(uint8_t byte);
int wr_vocab_cp_to_byte(uint32_t cp); /* -1: not in the alphabet */
/* The token that a piece of text is as a whole, or -1. */
int32_t wr_vocab_find_piece(const struct wr_vocab *, const uint8_t *bytes, size_t n);
/* by_score: copies text with a space for each U+2581; returns the new length, at most n. */
size_t wr_vocab_write_spaces(const char *text, size_t n, char *out);
/* by_score: the token that merging may make of these bytes, or -1. Special tokens and byte tokens are not reached by their text. */
int32_t wr_vocab_find_word(const struct wr_vocab *, const uint8_t *bytes, size_t n);

#endif
