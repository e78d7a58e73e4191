/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vocabularies whose tokens have scores (model "llama"): ids of SentencePiece and llama.cpp (tests/golden/spm_cases.json, made by
 * tests/oracle/make_spm_cases.py), the way back, long runs, memory, and files that are wrong.
 */
#include <math.h>
#include "text/vocab.h"
#include "vocab_attempt.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static json_t *golden;

static int64_t int_at(const json_t *list, size_t i) { return json_integer_value(json_array_get(list, i)); }

/* prefix: true, false, or null where the file does not say. */
static struct wr_vocab_config config_of(const json_t *words, const json_t *prefix)
{
    const json_t *tokens = json_object_get(words, "tokens");
    struct wr_vocab_config c = {.model = "llama",
        .n_tokens = (uint32_t)json_array_size(tokens),
        .bos = -1,
        .eos = -1,
        .eot = -1,
        .eom = -1,
        .unknown = -1,
        .pad = -1,
        .space_prefix = json_is_true(prefix),
        .space_prefix_set = json_is_boolean(prefix)};
    for (size_t i = 0; i < c.n_tokens; i++) c.token_bytes += json_string_length(json_array_get(tokens, i));
    return c;
}

static int build(struct wr_vocab **v, const struct wr_vocab_config *c, const json_t *words, struct wr_ledger *ledger, weir_err *err)
{
    const json_t *tokens = json_object_get(words, "tokens"), *types = json_object_get(words, "types"), *scores = json_object_get(words, "scores");
    int rc = wr_vocab_open(v, c, ledger, NULL, err);
    for (size_t i = 0; rc == 0 && i < c->n_tokens; i++) {
        const json_t *token = json_array_get(tokens, i);
        rc = wr_vocab_add_token(*v, json_string_value(token), json_string_length(token), (int32_t)int_at(types, i), err);
    }
    for (size_t i = 0; rc == 0 && i < c->n_tokens; i++) rc = wr_vocab_add_score(*v, (float)json_number_value(json_array_get(scores, i)), err);
    if (rc == 0) rc = wr_vocab_finish(*v, err);
    if (rc < 0) {
        wr_vocab_close(*v);
        *v = NULL;
    }
    return rc;
}

static struct wr_vocab *golden_vocab(size_t which, const json_t *prefix, struct wr_ledger *ledger)
{
    const json_t *words = json_array_get(golden, which);
    struct wr_vocab_config c = config_of(words, prefix);
    struct wr_vocab *v;
    weir_err err;
    assert_int_equal(build(&v, &c, words, ledger, &err), 0);
    return v;
}

/* Without a stack of its own: what the ids print, with U+2581 in the text taken for a space. */
static bool prints(const struct wr_vocab *v, const int32_t *ids, size_t n_ids, const char *text, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes;
        size_t length;
        if (!wr_vocab_bytes_after(v, i ? ids[i - 1] : -1, ids[i], true, &bytes, &length)) return false;
        for (size_t k = 0; k < length; k++) {
            bool space = n - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0 && bytes[k] == ' ';
            if (at == n || !(space || text[at] == bytes[k])) return false;
            at += space ? 3 : 1;
        }
    }
    return at == n;
}

static void test_golden(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"true", "false", "null"};
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    size_t n_cases = 0;
    for (size_t which = 0; which < json_array_size(golden); which++) {
        for (size_t p = 0; p < LENGTH(prefixes); p++) {
            json_t *prefix = json_loads(prefixes[p], JSON_DECODE_ANY, NULL), *c;
            struct wr_vocab *v = golden_vocab(which, prefix, &ledger);
            size_t i;
            json_array_foreach(json_object_get(json_array_get(golden, which), "cases"), i, c)
            {
                if (!json_equal(json_object_get(c, "prefix"), prefix)) continue;
                const char *text = json_string_value(json_object_get(c, "s"));
                const json_t *want = json_object_get(c, "ids");
                size_t n = json_string_length(json_object_get(c, "s")), n_ids, n_dropped;
                struct wr_tokenize options = {.special = json_is_true(json_object_get(c, "special")), .max_ids = SIZE_MAX};
                int32_t *ids;
                weir_err err;
                assert_int_equal(wr_vocab_tokenize(v, text, n, &options, &ledger, &ids, &n_ids, &n_dropped, &err), 0);
                bool same = n_ids == json_array_size(want);
                for (size_t k = 0; same && k < n_ids; k++) same = ids[k] == int_at(want, k);
                if (!same) print_error("vocabulary %zu, prefix %s, case %zu: %s\n", which, prefixes[p], i, text);
                assert_true(same);
                if (n_dropped == 0) assert_true(prints(v, ids, n_ids, text, n));
                wr_mem_free(ids);
                n_cases++;
            }
            wr_vocab_close(v);
            json_decref(prefix);
        }
    }
    assert_true(n_cases > 700);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), 0);
}

/* Any bytes go in and come back, whatever the prefix and whatever is recognized; U+2581 alone comes back as a space. */
static void test_any_bytes(void **state)
{
    (void)state;
    static const char *const parts[] = {"\xc0\x80", "\xed\xa0\x80", "\xf0\x9f\x98", "\xff", "\xe4\xb8\xad", "a", " ", "\x80", "\n", "the ", "<|user|>",
        "<|end|>", "<s>", "<0x41>", "\xe2\x96", "\xe2\x96\x81"};
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    uint64_t random = 1;
    for (int prefix = 0; prefix < 2; prefix++) {
        struct wr_vocab *v = golden_vocab(0, prefix ? json_true() : json_false(), &ledger);
        for (int round = 0; round < 20000; round++) {
            char text[256];
            size_t n = 0, n_ids, n_dropped;
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            for (uint64_t r = random >> 8; r > 15; r /= 17) {
                if (r % 17 == 16)
                    text[n++] = (char)(r >> 5);
                else
                    n += (size_t)snprintf(text + n, 16, "%s", parts[r % 17]);
            }
            struct wr_tokenize options = {.special = round & 1, .max_ids = SIZE_MAX};
            int32_t *ids;
            weir_err err;
            assert_int_equal(wr_vocab_tokenize(v, text, n, &options, &ledger, &ids, &n_ids, &n_dropped, &err), 0);
            assert_int_equal(n_dropped, 0);
            assert_true(prints(v, ids, n_ids, text, n));
            wr_mem_free(ids);
        }
        wr_vocab_close(v);
    }
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
}

/* BOS where the file is silent, where it says no, and where the text begins with it. */
static void test_bos(void **state)
{
    (void)state;
    const json_t *words = json_array_get(golden, 0);
    const struct {
        int8_t set;
        bool add, special;
        const char *text;
        size_t n_bos;
    } rows[] = {{0, false, false, "a", 1}, {1, false, false, "a", 0}, {1, true, false, "a", 1}, {0, false, true, "<s>a", 1}, {0, false, false, "<s>a", 1},
        {0, false, true, "a<s>", 2}, {0, false, true, "<s><s>a", 2}, {1, false, true, "<s>a", 1}, {0, false, false, "", 1}, {0, false, true, "<|user|><s>", 2}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        struct wr_vocab_config c = config_of(words, NULL);
        c.add_bos_set = rows[i].set;
        c.add_bos = rows[i].add;
        struct wr_vocab *v;
        weir_err err;
        assert_int_equal(build(&v, &c, words, &ledger, &err), 0);
        assert_int_equal(wr_vocab_bos(v), 1); /* the defaults of this kind */
        assert_int_equal(wr_vocab_eos(v), 2);
        struct wr_tokenize options = {.special = rows[i].special, .add_bos = true, .max_ids = SIZE_MAX};
        int32_t *ids;
        size_t n_ids, n_dropped, n_bos = 0;
        assert_int_equal(wr_vocab_tokenize(v, rows[i].text, strlen(rows[i].text), &options, &ledger, &ids, &n_ids, &n_dropped, &err), 0);
        for (size_t k = 0; k < n_ids; k++) n_bos += ids[k] == 1;
        assert_int_equal(n_bos, rows[i].n_bos);
        wr_mem_free(ids);
        wr_vocab_close(v);
    }
}

static void test_memory(void **state)
{
    (void)state;
    for (size_t which = 0; which < json_array_size(golden); which++) {
        const json_t *words = json_array_get(golden, which);
        struct wr_vocab_config c = config_of(words, NULL);
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        wr_ledger_limit(&ledger, WR_ACCOUNT_TOKENIZER, wr_vocab_bytes(&c));
        struct wr_vocab *v;
        weir_err err;
        assert_int_equal(build(&v, &c, words, &ledger, &err), 0);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), wr_vocab_bytes(&c));
        wr_vocab_close(v);
    }
    /* Gemma 3's numbers. */
    struct wr_vocab_config large = {.model = "llama", .n_tokens = 262144, .token_bytes = 2315366};
    assert_true(wr_vocab_bytes(&large) < 6400000);
}

static int try_build(void *arg)
{
    struct attempt *a = arg;
    weir_err err;
    return build(&a->v, a->config, a->words, a->ledger, &err);
}

static void test_refused_memory(void **state)
{
    (void)state;
    const json_t *words = json_array_get(golden, 0);
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    struct wr_vocab_config c = config_of(words, NULL);
    char text[3000];
    memset(text, 'a', sizeof text);
    memcpy(text, "<|user|> x", 10);
    struct attempt a = {.config = &c, .words = words, .ledger = &ledger, .text = text, .n = sizeof text};
    assert_true(each_allocation_fails(try_build, &a, true, &ledger, WR_ACCOUNT_TOKENIZER) > 4);
    assert_true(each_allocation_fails(try_tokenize, &a, true, &ledger, WR_ACCOUNT_TEXT) > 1);
    wr_mem_free(a.ids);
    const int cancel = 1;
    struct wr_tokenize options = {.special = true, .max_ids = SIZE_MAX, .cancel = &cancel};
    size_t n_dropped;
    weir_err err;
    assert_int_equal(wr_vocab_tokenize(a.v, text, sizeof text, &options, &ledger, &a.ids, &a.n_ids, &n_dropped, &err), WEIR_E_CANCELLED);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
    options.cancel = NULL;
    wr_ledger_limit(&ledger, WR_ACCOUNT_TEXT, 4096);
    assert_int_equal(wr_vocab_tokenize(a.v, text, sizeof text, &options, &ledger, &a.ids, &a.n_ids, &n_dropped, &err), WEIR_E_BUDGET);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
    wr_vocab_close(a.v);
}

static void test_bad_files(void **state)
{
    (void)state;
    const struct {
        const char *token;
        int32_t type;
        float score;
        uint32_t n_scores;
        int code;
        const char *says;
    } rows[] = {{"a", 1, 0, 2, 0, ""}, {"<0x4f>", 6, 0, 2, 0, ""}, {"<0x4g>", 6, 0, 2, WEIR_E_FORMAT, "token 1 is of type byte"},
        {"", 6, 0, 2, WEIR_E_FORMAT, "token 1 is of type byte"}, {"<0xABC>", 6, 0, 2, WEIR_E_FORMAT, "<0xABC>"},
        {"a", 1, (float)NAN, 2, WEIR_E_FORMAT, "not a number"}, {"a", 1, 0, 1, WEIR_E_FORMAT, "1 of 2 tokens"}, {"a", 1, 0, 3, WEIR_E_FORMAT, "score 2"},
        {"a", 1, -INFINITY, 2, 0, ""}, {"\xff\xfe", 1, INFINITY, 2, 0, ""}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        struct wr_vocab_config c = {.model = "llama", .n_tokens = 2, .token_bytes = 16, .bos = -1, .eos = -1, .eot = -1, .eom = -1, .unknown = -1, .pad = -1};
        struct wr_vocab *v;
        weir_err err = {0};
        assert_int_equal(wr_vocab_open(&v, &c, &ledger, NULL, &err), 0);
        int rc = wr_vocab_add_token(v, "b", 1, 1, &err);
        if (rc == 0) rc = wr_vocab_add_token(v, rows[i].token, strlen(rows[i].token), rows[i].type, &err);
        for (uint32_t k = 0; rc == 0 && k < rows[i].n_scores; k++) rc = wr_vocab_add_score(v, rows[i].score, &err);
        if (rc == 0) rc = wr_vocab_finish(v, &err);
        assert_int_equal(rc, rows[i].code);
        assert_non_null(strstr(err.text, rows[i].says));
        wr_vocab_close(v);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TOKENIZER), 0);
    }
}

#define RUN_BYTES (1 << 18)
struct runs {
    const struct wr_vocab *v;
    struct wr_ledger *ledger;
    char *text;
    const char *failed;
};

/* Asserts nothing, because it runs on another thread. */
static void check_run(struct runs *r, size_t n)
{
    struct wr_tokenize options = {.special = true, .max_ids = SIZE_MAX};
    int32_t *ids;
    size_t n_ids, n_dropped;
    weir_err err;
    if (wr_vocab_tokenize(r->v, r->text, n, &options, r->ledger, &ids, &n_ids, &n_dropped, &err) < 0) {
        r->failed = "an error";
        return;
    }
    if (n_dropped == 0 && !prints(r->v, ids, n_ids, r->text, n)) r->failed = "another text";
    wr_mem_free(ids);
}

/* On a small stack; that the work is linear is counted in tests/e2e/test_tokens.py. */
static void *check_all_runs(void *arg)
{
    struct runs *r = arg;
    static const char *const units[] = {"Z", "a", " ", "\n", "\r\n", "1", "us", "=", "<", "ab", "\xf0\x9f\x98\x80", "\xcc\x81", "\xe2\x96\x81", "\xff", "<|us",
        "<|user|>", "\xf0\x90\x8c\xb2", "  x", "'", "the river "};
    for (size_t u = 0; u < LENGTH(units) && !r->failed; u++) {
        size_t length = strlen(units[u]), n = RUN_BYTES / length;
        for (size_t i = 0; i < n; i++) memcpy(r->text + i * length, units[u], length);
        check_run(r, n * length);
        if (r->failed) print_error("run of '%s': %s\n", units[u], r->failed);
    }
    return NULL;
}

static void test_long_runs(void **state)
{
    (void)state;
    for (size_t which = 0; which < json_array_size(golden); which++) {
        struct wr_ledger ledger;
        wr_ledger_init(&ledger);
        struct runs r = {golden_vocab(which, json_true(), &ledger), &ledger, test_malloc(RUN_BYTES), NULL};
        run_on_stack(SMALL_STACK, check_all_runs, &r);
        assert_null(r.failed);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0);
        test_free(r.text);
        wr_vocab_close((struct wr_vocab *)r.v);
    }
}

int main(void)
{
    golden = golden_load("spm_cases.json");
    if (!golden) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_bos),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_refused_memory), cmocka_unit_test(test_bad_files), cmocka_unit_test(test_long_runs)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(golden);
    return failed;
}
