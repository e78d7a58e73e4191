/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any vocabulary of either kind and any text: a refusal or ids that print the text; no memory kept, none beyond what was announced. Without
 * special tokens, merges by score are compared with the rule spelled out.
 *
 * Input: three bytes of choices, then tokens (length and type, score, bytes), then the text.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/utf8.h"
#include "text/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TOKENS (256 + 64)
#define MAX_MERGES 1024
#define NAIVE_BYTES 300

struct words {
    struct {
        uint8_t bytes[16];
        uint32_t n;
        int32_t type;
        float score;
    } token[MAX_TOKENS];
    uint32_t n;
    bool special;
};

static void require(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "fuzz_tokenizer: not so: %s\n", what);
    abort();
}

static void add_word(struct words *w, const void *bytes, size_t n, int32_t type, float score)
{
    memcpy(w->token[w->n].bytes, bytes, n);
    w->token[w->n].n = (uint32_t)n;
    w->token[w->n].type = type;
    w->token[w->n].score = score;
    w->n++;
    w->special = w->special || type == WR_TOKEN_UNKNOWN || type == WR_TOKEN_CONTROL || type == WR_TOKEN_USER;
}

static void add_byte_words(struct words *w, bool by_score)
{
    for (uint32_t b = 0, next = 256; b < 256; b++) {
        uint8_t text[8];
        if (by_score) {
            char name[8];
            add_word(w, name, (size_t)snprintf(name, sizeof name, "<0x%02X>", b), WR_TOKEN_BYTE, -1000);
            continue;
        }
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        add_word(w, text, (size_t)wr_utf8_encode(printable ? b : next++, text), WR_TOKEN_NORMAL, 0);
    }
}

static int find_word(const struct words *w, const uint8_t *bytes, size_t n)
{
    for (uint32_t i = 0; i < w->n && n > 0; i++)
        if (w->token[i].n == n && memcmp(w->token[i].bytes, bytes, n) == 0) return (int)i;
    return -1;
}

/* Every way to put a token together from two others is a merge; rank is the order of the tokens. */
static uint32_t list_merges(const struct words *w, char (*merge)[20], uint32_t *length)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t cut = 1; cut < w->token[i].n && n < MAX_MERGES; cut++) {
            const uint8_t *b = w->token[i].bytes;
            uint32_t rest = w->token[i].n - cut;
            if (memchr(b, ' ', w->token[i].n) || find_word(w, b, cut) < 0 || find_word(w, b + cut, rest) < 0) continue;
            memcpy(merge[n], b, cut);
            merge[n][cut] = ' ';
            memcpy(merge[n] + cut + 1, b + cut, rest);
            length[n++] = cut + 1 + rest;
        }
    return n;
}

/* Text with a space for each U+2581, in place. */
static size_t to_spaces(uint8_t *text, size_t n)
{
    size_t length = 0;
    for (size_t i = 0; i < n; length++) {
        bool space = n - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        text[length] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    return length;
}

/* The token that merging by score may make of the bytes: first of its text among those that are not byte tokens. */
static int by_score_word(const struct words *w, const uint8_t *bytes, size_t n)
{
    for (uint32_t i = 0; i < w->n; i++) {
        uint8_t text[16];
        memcpy(text, w->token[i].bytes, w->token[i].n);
        if (w->token[i].type != WR_TOKEN_BYTE && to_spaces(text, w->token[i].n) == n && n > 0 && memcmp(text, bytes, n) == 0) return (int)i;
    }
    return -1;
}

/* Merges by score, spelled out. All bytes have tokens. */
static size_t naive_by_score(const struct words *w, const uint8_t *text, size_t n, int32_t *ids)
{
    size_t at[NAIVE_BYTES + 2], n_symbols = 0, n_ids = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int length = wr_utf8_decode(text + i, n - i, &cp);
        at[n_symbols++] = i;
        i += length > 0 ? (size_t)length : 1;
    }
    at[n_symbols] = n;
    for (;;) {
        size_t best = n_symbols;
        float best_score = 0;
        for (size_t i = 0; i + 1 < n_symbols; i++) {
            int id = by_score_word(w, text + at[i], at[i + 2] - at[i]);
            if (id < 0 || (best < n_symbols && w->token[id].score <= best_score)) continue;
            best = i;
            best_score = w->token[id].score;
        }
        if (best == n_symbols) break;
        memmove(at + best + 1, at + best + 2, (n_symbols - best - 1) * sizeof *at);
        n_symbols--;
    }
    for (size_t i = 0; i < n_symbols; i++) {
        int id = by_score_word(w, text + at[i], at[i + 1] - at[i]);
        if (id >= 0) ids[n_ids++] = id;
        for (size_t k = at[i]; id < 0 && k < at[i + 1]; k++) {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", text[k]);
            ids[n_ids++] = find_word(w, (const uint8_t *)name, 6);
        }
    }
    return n_ids;
}

static int build(struct wr_vocab *v, const struct words *w, bool by_score, char (*merge)[20], const uint32_t *length, uint32_t n_merges, weir_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < w->n; i++) rc = wr_vocab_add_token(v, (const char *)w->token[i].bytes, w->token[i].n, w->token[i].type, err);
    for (uint32_t i = 0; rc == 0 && by_score && i < w->n; i++) rc = wr_vocab_add_score(v, w->token[i].score, err);
    for (uint32_t i = 0; rc == 0 && i < n_merges; i++) rc = wr_vocab_add_merge(v, merge[i], length[i], err);
    return rc == 0 ? wr_vocab_finish(v, err) : rc;
}

static void check_text(const struct wr_vocab *v, const int32_t *ids, size_t n_ids, const uint8_t *text, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes;
        size_t length;
        require(wr_vocab_bytes_after(v, i ? ids[i - 1] : -1, ids[i], true, &bytes, &length), "an id of the vocabulary");
        require(n - at >= length && memcmp(text + at, bytes, length) == 0, "the ids print the text");
        at += length;
    }
    require(at == n, "the ids print all of the text");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const pre[] = {"default", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "hunyuan", "nowhere"};
    static struct words w;
    static char merge[MAX_MERGES][20];
    static uint32_t length[MAX_MERGES];
    if (size < 3) return 0;
    bool by_score = data[0] & 1, all_bytes = data[0] & 2, prefix = data[0] & 4, special = data[0] & 8, twice = data[0] & 16;
    const char *row = pre[data[1] & 7];
    uint32_t n_words = data[2] & 63;
    data += 3;
    size -= 3;
    w.n = 0;
    w.special = false;
    if (all_bytes) add_byte_words(&w, by_score);
    for (uint32_t i = 0; i < n_words && size >= 2; i++) {
        size_t n = data[0] & 15;
        if (n > size - 2) n = size - 2;
        int8_t score = (int8_t)data[1];
        add_word(&w, data + 2, n, data[0] >> 4 < 8 ? data[0] >> 4 : WR_TOKEN_NORMAL, score == -128 ? NAN : (float)score);
        data += 2 + n;
        size -= 2 + n;
    }
    uint32_t n_merges = by_score ? 0 : list_merges(&w, merge, length);
    struct wr_vocab_config c = {.model = by_score ? "llama" : "gpt2",
        .pre = row,
        .n_tokens = w.n,
        .n_merges = n_merges,
        .bos = -1,
        .eos = -1,
        .eot = -1,
        .eom = -1,
        .unknown = -1,
        .pad = -1,
        .space_prefix = prefix,
        .space_prefix_set = 1};
    for (uint32_t i = 0; i < w.n; i++) c.token_bytes += w.token[i].n;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    wr_ledger_limit(&ledger, WR_ACCOUNT_TOKENIZER, wr_vocab_bytes(&c));
    struct wr_vocab *v = NULL;
    weir_err err = {0};
    int rc = wr_vocab_open(&v, &c, &ledger, NULL, &err);
    if (rc == 0) rc = build(v, &w, by_score, merge, length, n_merges, &err);
    if (rc < 0) {
        require(rc == WEIR_E_FORMAT && err.code == rc && err.text[0] && !strchr(err.text, '\n'), "a clean refusal");
        wr_vocab_close(v);
        require(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER) == 0, "nothing is kept");
        return 0;
    }
    /* The text, or the text many times: a piece beyond the buffers of the stack. */
    size_t times = twice && size > 0 ? 1 + 400 / size : 1, n = size * times;
    uint8_t *text = malloc(n + 1);
    for (size_t i = 0; i < times && size; i++) memcpy(text + i * size, data, size);
    struct wr_tokenize how = {.special = special, .max_ids = SIZE_MAX};
    int32_t *ids;
    size_t n_ids, n_dropped;
    require(wr_vocab_tokenize(v, (const char *)text, n, &how, &ledger, &ids, &n_ids, &n_dropped, &err) == 0, "any text has ids");
    if (by_score) n = to_spaces(text, n);
    /* A special token may print U+2581, and what normalizes prints another text. */
    bool normalizes = !by_score && strcmp(row, "qwen2") == 0;
    if (n_dropped == 0 && !normalizes && !(by_score && w.special)) check_text(v, ids, n_ids, text, n);
    if (by_score && all_bytes && !w.special && n > 0 && n < NAIVE_BYTES) {
        uint8_t spaced[NAIVE_BYTES + 1];
        int32_t want[NAIVE_BYTES + 1];
        spaced[0] = ' ';
        memcpy(spaced + prefix, text, n);
        size_t n_want = naive_by_score(&w, spaced, n + prefix, want);
        require(n_want == n_ids && memcmp(want, ids, n_ids * sizeof *ids) == 0, "the rule of merges by score");
    }
    wr_mem_free(ids);
    free(text);
    wr_vocab_close(v);
    require(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER) == 0 && wr_ledger_used(&ledger, WR_ACCOUNT_TEXT) == 0, "nothing is kept");
    return 0;
}
