/* SPDX-License-Identifier: Apache-2.0 */
/* Large vocabularies and many tensors: opening takes far less memory than the header has bytes. That the work is linear is counted in
 * tests/e2e/test_hostile_files.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "format/catalog.h"
#include "gguf_build.h"

static void build_large(struct build *b, uint32_t n_tokens, uint32_t n_merges, uint32_t n_tensors)
{
    char text[64];
    build_head(b, 3, n_tensors, 4);
    build_key_str(b, "general.architecture", "llama");
    build_array(b, "tokenizer.ggml.tokens", 8, n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++) build_text(b, text, (size_t)snprintf(text, sizeof text, "t%x", i * 2654435761u >> (i % 20)));
    build_array(b, "tokenizer.ggml.token_type", 5, n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++) build_u32(b, 1);
    build_array(b, "tokenizer.ggml.merges", 8, n_merges);
    for (uint32_t i = 0; i < n_merges; i++) build_text(b, text, (size_t)snprintf(text, sizeof text, "t%x u%x", i, i / 3));
    for (uint32_t i = 0; i < n_tensors; i++) { /* places in an order of their own */
        snprintf(text, sizeof text, "blk.%u.ffn_gate.weight", i);
        build_tensor(b, text, 1, (uint64_t[]){32}, 8, (uint64_t)(i * 7919u % n_tensors) * 64);
    }
    build_align(b, 32);
    build_zeros(b, (size_t)n_tensors * 64);
}

/* Opens the file, reads all arrays, finds all tensors; gives the peak of memory. */
static uint64_t open_and_read(struct build_file *file, const struct build *b)
{
    struct wr_ledger ledger;
    struct wr_catalog c;
    weir_err err;
    build_save(file, b->bytes, b->n);
    wr_ledger_init(&ledger);
    assert_int_equal(wr_catalog_open(&c, file->path, WEIR_DIRECT_OFF, &ledger, NULL, &err), 0);
    for (uint64_t m = 1; m < c.n_metas; m++) {
        struct wr_meta_reader r;
        assert_int_equal(wr_meta_reader_open(&r, &c, &c.metas[m], &err), 0);
        for (uint64_t k = 0; k < c.metas[m].count; k++) {
            const char *text;
            size_t n;
            int64_t number;
            int code = c.metas[m].element == WR_META_STRING ? wr_meta_reader_string(&r, &text, &n, &err) : wr_meta_reader_number(&r, &number, NULL, &err);
            if (code != 0) fail_msg("%s", err.text);
        }
        wr_meta_reader_close(&r);
    }
    for (uint64_t t = 0; t < c.n_tensors; t++) assert_ptr_equal(wr_catalog_tensor(&c, c.tensors[t].name), &c.tensors[t]);
    uint64_t peak = wr_ledger_peak(&ledger, WR_ACCOUNT_META);
    wr_catalog_close(&c);
    return peak;
}

static void test_b12_scale(void **state)
{
    (void)state;
    struct build_file file;
    struct build once = {0}, twice = {0};
    build_file_open(&file);
    build_large(&once, 500000, 300000, 5000);
    build_large(&twice, 1000000, 600000, 10000);
    uint64_t peak = open_and_read(&file, &once), peak_twice = open_and_read(&file, &twice);
    print_message("header %zu bytes, peak %llu\n", once.n - 5000 * 64, (unsigned long long)peak);
    assert_true(peak < 3u << 20); /* of 20 MB */
    assert_true(peak_twice < 2 * peak + (1u << 20));
    build_free(&once);
    build_free(&twice);
    build_file_close(&file);
}

/* The most tensors that are read, in falling order of their places. */
static void test_b12_most_tensors(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    struct build b = {0};
    struct build_file file;
    struct wr_ledger ledger;
    struct wr_catalog c;
    weir_err err;
    char name[32];
    build_head(&b, 3, N, 1);
    build_key_str(&b, "general.architecture", "llama");
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%u", i);
        build_tensor(&b, name, 1, (uint64_t[]){8}, 0, (uint64_t)(N - 1 - i) * 32);
    }
    build_align(&b, 32);
    build_zeros(&b, (size_t)N * 32);
    build_file_open(&file);
    build_save(&file, b.bytes, b.n);
    wr_ledger_init(&ledger);
    assert_int_equal(wr_catalog_open(&c, file.path, WEIR_DIRECT_OFF, &ledger, NULL, &err), 0);
    print_message("%d tensors: peak %llu\n", N, (unsigned long long)wr_ledger_peak(&ledger, WR_ACCOUNT_META));
    assert_true(wr_ledger_peak(&ledger, WR_ACCOUNT_META) < 48u << 20);
    wr_catalog_close(&c);
    build_file_close(&file);
    build_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_b12_scale), cmocka_unit_test(test_b12_most_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
