/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabulary and byte-level BPE. Ids: Hugging Face tokenizers' (tests/golden/vocab_cases.inc) and the rules spelled out naively. */
#include "text/vocab.h"
#include "vocab_attempt.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))

struct token {
    const char *text;
    size_t n;
    int32_t type;
};
struct merge {
    const char *text;
    size_t n;
};

static const struct token golden_tokens[] = {
#define TOKEN(text, type) {text, sizeof text - 1, type},
#include "../golden/vocab_cases.inc"
#undef TOKEN
};
static const struct merge golden_merges[] = {
#define MERGE(text) {text, sizeof text - 1},
#include "../golden/vocab_cases.inc"
#undef MERGE
};
/* ids end with -1 where there are none. */
static const struct golden {
    const char *pre;
    bool special;
    const char *text;
    size_t n, n_dropped;
    const int32_t *ids;
    size_t n_ids;
} golden_cases[] = {
#define CASE(pre, special, text, dropped, ...)                                                                                                                 \
    {pre, special, text, sizeof text - 1, dropped, (const int32_t[]){__VA_ARGS__}, LENGTH(((const int32_t[]){__VA_ARGS__}))},
#include "../golden/vocab_cases.inc"
#undef CASE
};

struct notes {
    int n_warnings;
    char last[256];
};
static void note(void *user, enum weir_log_level level, const char *line)
{
    struct notes *notes = user;
    notes->n_warnings += level == WEIR_LOG_WARN;
    snprintf(notes->last, sizeof notes->last, "%s", line);
}

static struct wr_vocab_config config_of(const struct token *tokens, uint32_t n_tokens, uint32_t n_merges, const char *pre)
{
    struct wr_vocab_config c = {
        .model = "gpt2", .pre = pre, .n_tokens = n_tokens, .n_merges = n_merges, .bos = -1, .eos = -1, .eot = -1, .eom = -1, .unknown = -1, .pad = -1};
    for (uint32_t i = 0; i < n_tokens; i++) c.token_bytes += tokens[i].n;
    return c;
}

static int build(
    struct wr_vocab **v, const struct wr_vocab_config *c, const struct token *tokens, const struct merge *merges, struct wr_ledger *ledger, weir_err *err)
{
    struct notes notes = {0};
    struct wr_log log = {note, &notes};
    int rc = wr_vocab_open(v, c, ledger, &log, err);
    for (uint32_t i = 0; rc == 0 && i < c->n_tokens; i++) rc = wr_vocab_add_token(*v, tokens[i].text, tokens[i].n, tokens[i].type, err);
    for (uint32_t i = 0; rc == 0 && i < c->n_merges; i++) rc = wr_vocab_add_merge(*v, merges[i].text, merges[i].n, err);
    if (rc == 0) rc = wr_vocab_finish(*v, err);
    if (rc < 0) {
        wr_vocab_close(*v);
        *v = NULL;
    }
    return rc;
}

static struct wr_vocab *golden_vocab(const char *pre, struct wr_ledger *ledger)
{
    struct wr_vocab_config c = config_of(golden_tokens, LENGTH(golden_tokens), LENGTH(golden_merges), pre);
    struct wr_vocab *v;
    weir_err err;
    assert_int_equal(build(&v, &c, golden_tokens, golden_merges, ledger, &err), 0);
    return v;
}

/* All 256 bytes, spelled in the byte alphabet as formats of this kind define it, then `extra`. */
static struct token *byte_tokens(const struct token *extra, uint32_t n_extra, uint32_t *n)
{
    static char spelled[256][3];
    struct token *tokens = test_malloc((256 + n_extra) * sizeof *tokens);
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned cp = printable ? b : next++;
        size_t length = 1;
        spelled[b][0] = (char)cp;
        if (cp >= 0x80) {
            spelled[b][0] = (char)(0xc0 | cp >> 6);
            spelled[b][1] = (char)(0x80 | (cp & 0x3f));
            length = 2;
        }
        tokens[b] = (struct token){spelled[b], length, WR_TOKEN_NORMAL};
    }
    if (n_extra) memcpy(tokens + 256, extra, n_extra * sizeof *tokens);
    *n = 256 + n_extra;
    return tokens;
}

static struct wr_vocab *byte_vocab(const struct token *extra, uint32_t n_extra, const struct merge *merges, uint32_t n_merges, struct wr_ledger *ledger)
{
    uint32_t n;
    struct token *tokens = byte_tokens(extra, n_extra, &n);
    struct wr_vocab_config c = config_of(tokens, n, n_merges, "gpt-2");
    struct wr_vocab *v;
    weir_err err;
    assert_int_equal(build(&v, &c, tokens, merges, ledger, &err), 0);
    test_free(tokens);
    return v;
}

static int32_t *tokenize(const struct wr_vocab *v, const char *text, size_t n, bool special, struct wr_ledger *ledger, size_t *n_ids, size_t *n_dropped)
{
    struct wr_tokenize options = {.special = special, .max_ids = SIZE_MAX};
    int32_t *ids;
    weir_err err;
    assert_int_equal(wr_vocab_tokenize(v, text, n, &options, ledger, &ids, n_ids, n_dropped, &err), 0);
    return ids;
}

static void assert_round_trip(const struct wr_vocab *v, const int32_t *ids, size_t n_ids, const char *text, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes;
        size_t length;
        assert_true(wr_vocab_bytes_of(v, ids[i], true, &bytes, &length));
        assert_true(at + length <= n);
        assert_memory_equal(text + at, bytes, length);
        at += length;
    }
    assert_int_equal(at, n);
}

static uint64_t random_state = 1;
static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static void test_golden(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    struct wr_vocab *v = NULL;
    const char *pre = "";
    for (size_t c = 0; c < LENGTH(golden_cases); c++) {
        const struct golden *g = &golden_cases[c];
        if (strcmp(pre, g->pre) != 0) {
            wr_vocab_close(v);
            v = golden_vocab(g->pre, &ledger);
            pre = g->pre;
        }
        size_t n_ids, n_dropped, want = g->ids[0] < 0 ? 0 : g->n_ids;
        int32_t *ids = tokenize(v, g->text, g->n, g->special, &ledger, &n_ids, &n_dropped);
        if (n_ids != want || memcmp(ids, g->ids, want * sizeof *ids) != 0) print_error("case %zu (%s): %s\n", c, g->pre, g->text);
        assert_int_equal(n_ids, want);
        assert_memory_equal(ids, g->ids, want * sizeof *ids);
        assert_int_equal(n_dropped, g->n_dropped);
        if (n_dropped == 0 && strncmp(pre, "qwen", 4) != 0) assert_round_trip(v, ids, n_ids, g->text, g->n);
        wr_mem_free(ids);
    }
    wr_vocab_close(v);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), 0);
}

static void test_any_bytes(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    /* Bytes that are not UTF-8 merge with one another, never with the letter before them. */
    const struct token extra[] = {{"\xc3\xbf\xc3\xbe", 4, WR_TOKEN_NORMAL}, {"a\xc3\xbf", 3, WR_TOKEN_NORMAL}};
    const struct merge merges[] = {{"a \xc3\xbf", 4}, {"\xc3\xbf \xc3\xbe", 5}};
    struct wr_vocab *v = byte_vocab(extra, 2, merges, 2, &ledger);
    size_t n_ids, n_dropped;
    int32_t *ids = tokenize(v, "a\xff\xfe", 3, false, &ledger, &n_ids, &n_dropped);
    assert_int_equal(n_ids, 2);
    assert_int_equal(ids[0], 'a');
    assert_int_equal(ids[1], 256);
    wr_mem_free(ids);
    static const char *const hard[] = {"\xc0\x80", "\xed\xa0\x80", "\xf0\x9f\x98", "\xff", "\xe4\xb8\xad", "a", " ", "\x80", "\n"};
    for (int round = 0; round < 20000; round++) {
        char text[96];
        size_t n = 0, parts = random_below(24);
        for (size_t i = 0; i < parts; i++) {
            const char *part = hard[random_below(LENGTH(hard))];
            if (random_below(2))
                text[n++] = (char)random_below(256);
            else
                n += (size_t)snprintf(text + n, 5, "%s", part);
        }
        ids = tokenize(v, text, n, true, &ledger, &n_ids, &n_dropped);
        assert_int_equal(n_dropped, 0);
        assert_round_trip(v, ids, n_ids, text, n);
        wr_mem_free(ids);
    }
    wr_vocab_close(v);
}

/* The rule of special tokens, spelled out: lengths falling, each over what is still free. */
static size_t naive_partition(const struct token *special, uint32_t n_special, bool control, const char *text, size_t n, int32_t *ids)
{
    int32_t owner[64];
    for (size_t i = 0; i < n; i++) owner[i] = -1;
    for (size_t length = n; length > 0; length--)
        for (size_t at = 0; at + length <= n; at++)
            for (uint32_t k = 0; k < n_special; k++) {
                bool free_here = special[k].n == length && (control || special[k].type == WR_TOKEN_USER) && memcmp(text + at, special[k].text, length) == 0;
                for (size_t i = 0; free_here && i < length; i++) free_here = owner[at + i] < 0;
                for (size_t i = 0; free_here && i < length; i++) owner[at + i] = i ? INT32_MAX : (int32_t)(256 + k);
            }
    size_t n_ids = 0;
    for (size_t i = 0; i < n; i++)
        if (owner[i] != INT32_MAX) ids[n_ids++] = owner[i] < 0 ? (uint8_t)text[i] : owner[i];
    return n_ids;
}

static void test_special_tokens(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    for (int round = 0; round < 60; round++) {
        static char texts[12][8];
        struct token special[12];
        uint32_t n_special = 0;
        for (int i = 0; i < 12; i++) {
            size_t n = 2 + random_below(5);
            for (size_t k = 0; k < n; k++) texts[n_special][k] = "ab<"[random_below(3)];
            bool known = false;
            for (uint32_t k = 0; k < n_special; k++) known = known || (special[k].n == n && memcmp(special[k].text, texts[n_special], n) == 0);
            if (known) continue;
            static const int32_t types[] = {WR_TOKEN_CONTROL, WR_TOKEN_UNKNOWN, WR_TOKEN_USER};
            special[n_special] = (struct token){texts[n_special], n, types[random_below(3)]};
            n_special++;
        }
        struct wr_vocab *v = byte_vocab(special, n_special, NULL, 0, &ledger);
        for (int i = 0; i < 200; i++) {
            char text[64];
            size_t n = random_below(64), n_ids, n_dropped;
            int32_t want[64];
            for (size_t k = 0; k < n; k++) text[k] = "ab<"[random_below(3)];
            size_t n_want = naive_partition(special, n_special, i & 1, text, n, want);
            int32_t *ids = tokenize(v, text, n, i & 1, &ledger, &n_ids, &n_dropped);
            assert_int_equal(n_ids, n_want);
            assert_memory_equal(ids, want, n_want * sizeof *ids);
            wr_mem_free(ids);
        }
        wr_vocab_close(v);
    }
}

static void test_what_tokens_print(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    const struct token extra[] = {{"<c>", 3, WR_TOKEN_CONTROL}, {"<u>", 3, WR_TOKEN_UNKNOWN}, {"<x>\xc4\xa0", 5, WR_TOKEN_USER},
        {"\xc4\xa0the", 5, WR_TOKEN_NORMAL}, {"\xe4\xb8\xad", 3, WR_TOKEN_NORMAL}, {"", 0, WR_TOKEN_NORMAL}, {"<c>", 3, WR_TOKEN_NORMAL},
        {"bad\xff", 4, WR_TOKEN_NORMAL}, {"\xc4\xa0t", 3, WR_TOKEN_NORMAL}, {"he", 2, WR_TOKEN_NORMAL}};
    const struct merge merges[] = {{"\xc4\xa0 t", 4}, {"h e", 3}, {"\xc4\xa0t he", 6}, {"h e", 3}};
    struct wr_vocab *v = byte_vocab(extra, LENGTH(extra), merges, LENGTH(merges), &ledger);
    const struct {
        int32_t id;
        bool special;
        const char *text;
    } prints[] = {{256, false, ""}, {256, true, "<c>"}, {257, false, ""}, {257, true, "<u>"}, {258, false, "<x>\xc4\xa0"}, {259, false, " the"},
        {260, false, "\xe4\xb8\xad"}, {261, true, ""}, {263, false, "bad\xff"}, {0x20, false, " "}, {0xff, false, "\xff"}};
    for (size_t i = 0; i < LENGTH(prints); i++) {
        const char *bytes;
        size_t n;
        assert_true(wr_vocab_bytes_of(v, prints[i].id, prints[i].special, &bytes, &n));
        assert_int_equal(n, strlen(prints[i].text));
        assert_memory_equal(bytes, prints[i].text, n);
    }
    const char *bytes;
    size_t n, n_ids, n_dropped;
    assert_false(wr_vocab_bytes_of(v, -1, true, &bytes, &n));
    assert_false(wr_vocab_bytes_of(v, 266, true, &bytes, &n));
    assert_null(wr_vocab_text_of(v, 266, &n));
    assert_memory_equal(wr_vocab_text_of(v, 259, &n), "\xc4\xa0the", 5);
    assert_int_equal(n, 5);
    assert_int_equal(wr_vocab_size(v), 266);
    assert_int_equal(wr_vocab_find(v, "<c>", 3), 256);
    assert_int_equal(wr_vocab_find(v, "<c", 2), -1);
    assert_int_equal(wr_vocab_find(v, "", 0), -1);
    int32_t *ids = tokenize(v, "a the<c>", 8, false, &ledger, &n_ids, &n_dropped);
    const int32_t want[] = {'a', 259, '<', 'c', '>'};
    assert_int_equal(n_ids, LENGTH(want));
    assert_memory_equal(ids, want, sizeof want);
    wr_mem_free(ids);
    wr_vocab_close(v);
}

static void test_ends(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    const struct token tokens[] = {{"a", 1, 1}, {"b", 1, 1}, {"c", 1, 1}, {"<|im_end|>", 10, WR_TOKEN_CONTROL}, {"</s>", 4, WR_TOKEN_NORMAL},
        {"<end_of_turn>", 13, WR_TOKEN_USER}, {"<|im_start|>", 12, WR_TOKEN_CONTROL}, {"<|end|>", 7, WR_TOKEN_CONTROL}, {"<|return|>", 10, WR_TOKEN_CONTROL},
        {"<|call|>", 8, WR_TOKEN_CONTROL}};
    for (uint32_t n = 9; n <= 10; n++) {
        struct wr_vocab_config c = config_of(tokens, n, 0, "gpt-2");
        c.eos = 0;
        c.eom = 2;
        struct wr_vocab *v;
        weir_err err;
        assert_int_equal(build(&v, &c, tokens, NULL, &ledger, &err), 0);
        /* Ids named by the file, and texts of special tokens; </s> is an ordinary word here. <|end|> only ends a message once <|call|> is there. */
        const bool want[] = {true, false, true, true, false, true, false, n == 9, true, true};
        for (uint32_t i = 0; i < n; i++) assert_int_equal(wr_vocab_ends(v, (int32_t)i), want[i]);
        assert_false(wr_vocab_ends(v, -1));
        assert_false(wr_vocab_ends(v, (int32_t)n));
        assert_int_equal(wr_vocab_eos(v), 0);
        assert_int_equal(wr_vocab_bos(v), -1);
        wr_vocab_close(v);
    }
}

static void test_bos_eos_and_limit(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    uint32_t n;
    struct token *tokens = byte_tokens(NULL, 0, &n);
    const struct {
        const char *pre;
        int8_t set;
        bool add_bos, add_eos, asked, bos, eos;
    } rows[] = {{"gpt-2", 0, false, false, true, false, false}, {"llama-bpe", 0, false, false, true, true, false},
        {"llama-bpe", 1, false, true, true, false, true}, {"gpt-2", 1, true, true, true, true, true}, {"gpt-2", 1, true, true, false, false, false}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct wr_vocab_config c = config_of(tokens, n, 0, rows[i].pre);
        c.bos = 1;
        c.eos = 2;
        c.add_bos_set = rows[i].set;
        c.add_bos = rows[i].add_bos;
        c.add_eos = rows[i].add_eos;
        struct wr_vocab *v;
        weir_err err;
        assert_int_equal(build(&v, &c, tokens, NULL, &ledger, &err), 0);
        for (size_t max = 0; max < 5; max++) {
            struct wr_tokenize options = {.add_bos = rows[i].asked, .max_ids = max};
            int32_t *ids, want[4];
            size_t n_ids, n_dropped, n_want = 0;
            if (rows[i].bos) want[n_want++] = 1;
            want[n_want++] = 'x';
            want[n_want++] = '.';
            if (rows[i].eos) want[n_want++] = 2;
            assert_int_equal(wr_vocab_tokenize(v, "x.", 2, &options, &ledger, &ids, &n_ids, &n_dropped, &err), 0);
            assert_int_equal(n_ids, n_want);
            assert_memory_equal(ids, want, (n_want < max ? n_want : max) * sizeof *ids);
            wr_mem_free(ids);
        }
        wr_vocab_close(v);
    }
    test_free(tokens);
}

static void test_memory(void **state)
{
    (void)state;
    const char *const pre[] = {"default", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "hunyuan", "tekken", "gpt-4o", "llama4", "qwen35", "deepseek-coder",
        "deepseek-v3", "falcon", "bailingmoe", "seed-coder", "minicpm5", NULL};
    for (size_t i = 0; i < LENGTH(pre); i++) {
        struct wr_vocab_config c = config_of(golden_tokens, LENGTH(golden_tokens), LENGTH(golden_merges), pre[i]);
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        wr_ledger_limit(&ledger, WR_ACCOUNT_TOKENIZER, wr_vocab_bytes(&c));
        struct wr_vocab *v;
        weir_err err;
        assert_int_equal(build(&v, &c, golden_tokens, golden_merges, &ledger, &err), 0);
        uint64_t used = wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER);
        assert_true(wr_vocab_bytes(&c) - used < 64 << 10); /* tight: what compiling patterns needs for a moment */
        size_t n_ids, n_dropped;
        for (int k = 0; k < 3; k++) wr_mem_free(tokenize(v, "some text 123 \xff", 15, true, &ledger, &n_ids, &n_dropped));
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), used);
        assert_true(wr_ledger_peak(&ledger, WR_ACCOUNT_TOKENIZER) <= wr_vocab_bytes(&c));
        wr_vocab_close(v);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), 0);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
    }
    /* SmolLM2's numbers; then the largest vocabularies published, which may take no more a token. */
    struct wr_vocab_config small = {.n_tokens = 49152, .n_merges = 48900, .token_bytes = 369170};
    struct wr_vocab_config large = {.n_tokens = 262144, .n_merges = 514906, .token_bytes = 262144 * 8};
    struct wr_vocab_config huge = {.n_tokens = UINT32_MAX, .n_merges = UINT32_MAX, .token_bytes = UINT64_MAX};
    assert_true(wr_vocab_bytes(&small) < 4 << 20);
    assert_true(wr_vocab_bytes(&large) < 262144 * 80);
    assert_true(wr_vocab_bytes(&huge) > UINT64_C(100) << 30 && wr_vocab_bytes(&huge) < UINT64_C(1) << 38);
    /* A vocabulary of that size, filled: texts of 8 bytes, every kind of length among the special ones. */
    uint32_t n_tokens = 262144;
    struct wr_vocab_config c = {.model = "gpt2",
        .pre = "gpt-2",
        .n_tokens = n_tokens,
        .token_bytes = 8 * (uint64_t)n_tokens,
        .bos = -1,
        .eos = -1,
        .eot = -1,
        .eom = -1,
        .unknown = -1,
        .pad = -1};
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    wr_ledger_limit(&ledger, WR_ACCOUNT_TOKENIZER, wr_vocab_bytes(&c));
    struct wr_vocab *v;
    weir_err err;
    assert_int_equal(wr_vocab_open(&v, &c, &ledger, NULL, &err), 0);
    for (uint32_t i = 0; i < n_tokens; i++) {
        char text[16];
        int n = snprintf(text, sizeof text, "t%u", i);
        assert_int_equal(wr_vocab_add_token(v, text, (size_t)n, WR_TOKEN_CONTROL, &err), 0);
    }
    assert_int_equal(wr_vocab_finish(v, &err), 0);
    for (uint32_t i = 0; i < n_tokens; i += 97) {
        char text[16];
        int n = snprintf(text, sizeof text, "t%u", i);
        assert_int_equal(wr_vocab_find(v, text, (size_t)n), i);
    }
    wr_vocab_close(v);
}

static void test_warnings(void **state)
{
    (void)state;
    const struct {
        const char *pre;
        int n;
        const char *says;
    } rows[] = {
        {NULL, 1, "names no pre-tokenizer"}, {"xyz", 1, "'xyz'"}, {"", 1, "''"}, {"default", 0, ""}, {"smollm", 0, ""}, {"smollm command-r", 1, "not known"}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct notes notes = {0};
        struct wr_log log = {note, &notes};
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        struct wr_vocab_config c = config_of(golden_tokens, 1, 0, rows[i].pre);
        struct wr_vocab *v;
        weir_err err;
        assert_int_equal(wr_vocab_open(&v, &c, &ledger, &log, &err), 0);
        assert_int_equal(notes.n_warnings, rows[i].n);
        assert_non_null(strstr(notes.last, rows[i].says));
        wr_vocab_close(v);
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct token good[] = {{"a", 1, 1}, {"b", 1, 1}, {"ab", 2, 1}};
    static const struct token bad_type[] = {{"a", 1, 1}, {"b", 1, 7}, {"ab", 2, 1}};
    static const struct token below[] = {{"a", 1, 1}, {"b", 1, -1}, {"ab", 2, 1}};
    static const struct merge fine = {"a b", 3}, no_space = {"ab", 2}, only_space = {" ", 1}, no_right = {"a ", 2}, left = {"x b", 3}, right = {"a x", 3},
                              result = {"b a", 3}, empty = {"", 0}, first_space = {" a", 2};
    const struct {
        const char *model;
        const struct token *tokens;
        uint32_t n_tokens;
        const struct merge *merge;
        int32_t bos;
        int code;
        const char *says;
    } rows[] = {
        {"gpt2", good, 3, &fine, 2, 0, ""},
        {"gpt2", good, 3, NULL, -1, 0, ""},
        {"gpt3", good, 3, &fine, -1, WEIR_E_UNSUPPORTED, "'gpt3'"},
        {"bert", good, 3, &fine, -1, WEIR_E_UNSUPPORTED, "'bert'"},
        {NULL, good, 3, &fine, -1, WEIR_E_FORMAT, "tokenizer.ggml.model"},
        {"gpt2", good, 0, NULL, -1, WEIR_E_FORMAT, "0 tokens"},
        {"gpt2", good, 3, &fine, 3, WEIR_E_FORMAT, "bos_token_id is 3"},
        {"gpt2", good, 3, &fine, -2, WEIR_E_FORMAT, "bos_token_id is -2"},
        {"gpt2", bad_type, 3, &fine, -1, WEIR_E_FORMAT, "token 1 has type 7"},
        {"gpt2", below, 3, &fine, -1, WEIR_E_FORMAT, "token 1 has type -1"},
        {"gpt2", good, 3, &no_space, -1, WEIR_E_FORMAT, "no space"},
        {"gpt2", good, 3, &only_space, -1, WEIR_E_FORMAT, "no space"},
        {"gpt2", good, 3, &empty, -1, WEIR_E_FORMAT, "no space"},
        {"gpt2", good, 3, &first_space, -1, WEIR_E_FORMAT, "no space"},
        {"gpt2", good, 3, &no_right, -1, WEIR_E_FORMAT, "right piece"},
        {"gpt2", good, 3, &left, -1, WEIR_E_FORMAT, "left piece"},
        {"gpt2", good, 3, &right, -1, WEIR_E_FORMAT, "right piece"},
        {"gpt2", good, 3, &result, -1, WEIR_E_FORMAT, "result"},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        struct wr_vocab_config c = config_of(rows[i].tokens, rows[i].n_tokens, rows[i].merge ? 1 : 0, "gpt-2");
        c.model = rows[i].model;
        c.bos = rows[i].bos;
        struct wr_vocab *v = NULL;
        weir_err err = {0};
        assert_int_equal(build(&v, &c, rows[i].tokens, rows[i].merge, &ledger, &err), rows[i].code);
        if (rows[i].code) assert_non_null(strstr(err.text, rows[i].says));
        wr_vocab_close(v);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), 0);
    }
    /* Counts and bytes beyond what was announced, merges too early, too few of either. */
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    struct wr_vocab_config c = config_of(good, 3, 1, "gpt-2");
    struct wr_vocab *v;
    weir_err err;
    assert_int_equal(wr_vocab_open(&v, &c, &ledger, NULL, &err), 0);
    assert_int_equal(wr_vocab_add_merge(v, "a b", 3, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_vocab_add_token(v, "abcde", 5, 1, &err), WEIR_E_FORMAT);
    for (int i = 0; i < 3; i++) assert_int_equal(wr_vocab_add_token(v, good[i].text, good[i].n, 1, &err), 0);
    assert_int_equal(wr_vocab_add_token(v, "", 0, 1, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_vocab_finish(v, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_vocab_add_merge(v, "a b", 3, &err), 0);
    assert_int_equal(wr_vocab_add_merge(v, "a b", 3, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_vocab_finish(v, &err), 0);
    wr_vocab_close(v);
    c.token_bytes = UINT64_MAX;
    assert_int_equal(wr_vocab_open(&v, &c, &ledger, NULL, &err), WEIR_E_FORMAT);
    assert_null(v);
}

static int try_build(void *arg)
{
    struct attempt *a = arg;
    weir_err err;
    return build(&a->v, a->config, golden_tokens, golden_merges, a->ledger, &err);
}

static void test_refused_memory(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    struct wr_vocab_config c = config_of(golden_tokens, LENGTH(golden_tokens), LENGTH(golden_merges), "qwen2");
    char text[3000];
    memset(text, 'a', sizeof text);
    memcpy(text, "<|im_start|>e\xcc\x81\xcc\xa3<think>", 23);
    struct attempt a = {.config = &c, .ledger = &ledger, .text = text, .n = sizeof text};
    assert_true(each_allocation_fails(try_build, &a, true, &ledger, WR_ACCOUNT_TOKENIZER) > 4);
    assert_true(each_allocation_fails(try_tokenize, &a, true, &ledger, WR_ACCOUNT_TEXT) > 1);
    wr_mem_free(a.ids);
    /* A budget that is too small is an error as well. */
    wr_ledger_limit(&ledger, WR_ACCOUNT_TEXT, 4096);
    assert_int_equal(try_tokenize(&a), WEIR_E_BUDGET);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
    wr_vocab_close(a.v);
}

#define RUN_BYTES (1 << 18)
struct runs {
    const struct wr_vocab *v;
    struct wr_ledger *ledger;
    char *text;
    bool normalizes;
    const char *failed;
};

/* Asserts nothing, because it runs on another thread. */
static void check_run(struct runs *r, size_t n)
{
    struct wr_tokenize options = {.special = true, .max_ids = SIZE_MAX};
    int32_t *ids;
    size_t n_ids, n_dropped, at = 0;
    weir_err err;
    if (wr_vocab_tokenize(r->v, r->text, n, &options, r->ledger, &ids, &n_ids, &n_dropped, &err) < 0) {
        r->failed = "an error";
        return;
    }
    for (size_t k = 0; k < n_ids && !r->failed; k++) {
        const char *bytes;
        size_t length;
        bool same = wr_vocab_bytes_of(r->v, ids[k], true, &bytes, &length) && at + length <= n && memcmp(r->text + at, bytes, length) == 0;
        if (!same && n_dropped == 0 && !r->normalizes) r->failed = "another text";
        at += length;
    }
    if (at != n - n_dropped && !r->normalizes) r->failed = "another length";
    wr_mem_free(ids);
}

static void check_units(struct runs *r, const char *const *units, size_t n_units)
{
    for (size_t u = 0; u < n_units && !r->failed; u++) {
        size_t length = strlen(units[u]), n = RUN_BYTES / length;
        for (size_t i = 0; i < n; i++) memcpy(r->text + i * length, units[u], length);
        check_run(r, n * length);
        if (r->failed) print_error("run of '%s': %s\n", units[u], r->failed);
    }
}

/* On a small stack; that the work is linear is counted in tests/e2e/test_tokens.py. */
static void *check_all_runs(void *arg)
{
    static const char *const units[] = {"Z", "a", " ", "\n", "\r\n", "1", "us", "=", "<", "ab", "\xf0\x9f\x98\x80", "\xcc\x81", "\xcc\x81\xcc\xa3", "e\xcc\x81",
        "\xff", "<|im_", "<|im_start|>", "\xf0\x90\x8c\xb2", "  x", "'"};
    check_units(arg, units, LENGTH(units));
    return NULL;
}

static void test_long_runs(void **state)
{
    (void)state;
    const char *const pre[] = {"smollm", "qwen2", "llama-bpe", "default", "gpt-4o", "deepseek-coder", "deepseek-v3", "bailingmoe", "minicpm5"};
    for (size_t i = 0; i < LENGTH(pre); i++) {
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        struct wr_vocab *v = golden_vocab(pre[i], &ledger);
        struct runs r = {v, &ledger, test_malloc(RUN_BYTES), strcmp(pre[i], "qwen2") == 0, NULL};
        run_on_stack(SMALL_STACK, check_all_runs, &r);
        assert_null(r.failed);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
        test_free(r.text);
        wr_vocab_close(v);
    }
}

/* Hundreds of special tokens that begin alike, and runs of every length. */
static void test_many_special_tokens(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    static char texts[400][40];
    struct token special[400];
    for (int i = 0; i < 340; i++) {
        int n = snprintf(texts[i], sizeof texts[i], "<|reserved_special_token_%d|>", i);
        special[i] = (struct token){texts[i], (size_t)n, WR_TOKEN_CONTROL};
    }
    for (int i = 340; i < 400; i++) {
        size_t n = (size_t)(i - 340) / 2 + 2;
        memset(texts[i], i & 1 ? '\n' : ' ', n);
        special[i] = (struct token){texts[i], n, WR_TOKEN_USER};
    }
    struct runs r = {byte_vocab(special, 400, NULL, 0, &ledger), &ledger, test_malloc(RUN_BYTES), false, NULL};
    static const char *const units[] = {"<", "\n", " ", "<|reserved_special_token_", "<|reserved_special_token_7|>", "\n \n  \n", "text < \n"};
    check_units(&r, units, LENGTH(units));
    assert_null(r.failed);
    test_free(r.text);
    wr_vocab_close((struct wr_vocab *)r.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_what_tokens_print), cmocka_unit_test(test_ends), cmocka_unit_test(test_bos_eos_and_limit), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_warnings), cmocka_unit_test(test_bad_files), cmocka_unit_test(test_refused_memory), cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_many_special_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
