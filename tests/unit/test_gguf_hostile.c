/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged and hostile files: each is refused with the right code and a clean line that names the place, in time, with little memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "base/os.h"
#include "base/utf8.h"
#include "format/catalog.h"
#include "gguf_build.h"

static struct wr_ledger ledger;
static struct build_file file;

/* Everything that a user of the catalog may do with it; every number was promised to be inside the file. */
static void exercise(const struct wr_catalog *c)
{
    uint64_t sum = 0;
    assert_int_equal(c->n_files, 1);
    for (uint64_t i = 0; i < c->n_tensors; i++) {
        const struct wr_tensor *t = &c->tensors[i];
        assert_ptr_equal(wr_catalog_tensor(c, t->name), t);
        assert_true(t->ne[0] > 0 && t->n_rows > 0 && t->row_bytes > 0);
        assert_true(t->bytes == t->row_bytes * t->n_rows);
        assert_true(t->offset % 8 == 0 && t->offset < c->files->bytes && t->bytes <= c->files->bytes - t->offset);
        sum += t->bytes;
    }
    assert_true(sum == c->weight_bytes);
    for (uint64_t i = 0; i < c->n_metas; i++) {
        const struct wr_meta *m = &c->metas[i];
        uint64_t u = 0;
        double f;
        bool flag;
        const char *text;
        assert_ptr_equal(wr_catalog_meta(c, m->key), m);
        if (wr_catalog_u64(c, m->key, 1000, &u, NULL) == 1) assert_true(u <= 1000);
        wr_catalog_f64(c, m->key, &f, NULL);
        wr_catalog_bool(c, m->key, &flag, NULL);
        wr_catalog_str(c, m->key, &text, NULL);
        if (m->type != WR_META_ARRAY) continue;
        struct wr_meta_reader r;
        weir_err err;
        assert_int_equal(wr_meta_reader_open(&r, c, m, &err), 0);
        int code = 0;
        for (uint64_t k = 0; k < m->count && code == 0; k++) {
            size_t n;
            code = m->element == WR_META_STRING ? wr_meta_reader_string(&r, &text, &n, &err) : wr_meta_reader_number(&r, NULL, &f, &err);
        }
        assert_true(code == 0 || code == WEIR_E_FORMAT);
        wr_meta_reader_close(&r);
    }
}

/* Opens what `file` holds: 0, or the code of a clean refusal. The ledger's peak stays below `peak_max`. */
static int judge(weir_err *err, uint64_t peak_max)
{
    struct wr_catalog c;
    struct wr_ledger own;
    uint64_t begun = build_cpu_ns();
    wr_ledger_init(&own);
    memset(err, 0, sizeof *err);
    int code = wr_catalog_open(&c, file.path, WEIR_DIRECT_OFF, &own, NULL, err);
    assert_true(build_cpu_ns() - begun < UINT64_C(2000000000) * BUILD_SLOWER);
    assert_true(wr_ledger_peak(&own, WR_ACCOUNT_META) <= peak_max);
    if (code == 0) {
        exercise(&c);
        wr_catalog_close(&c);
    } else {
        size_t n = strlen(err->text);
        assert_true(code == WEIR_E_FORMAT || code == WEIR_E_UNSUPPORTED);
        assert_int_equal(err->code, code);
        assert_int_equal(wr_utf8_valid_prefix((const uint8_t *)err->text, n), n);
        for (size_t i = 0; i < n; i++) assert_true((unsigned char)err->text[i] >= 0x20 && err->text[i] != 0x7f);
        assert_non_null(strstr(err->text, "/proc/self/fd/"));
        assert_true(n < sizeof err->text - 1); /* nothing was cut: the next step is there */
    }
    assert_int_equal(wr_ledger_used(&own, WR_ACCOUNT_META), 0);
    return code;
}

#define SMALL (1u << 20)

static void refused(const struct build *b, int code, const char *part, const char *other)
{
    weir_err err;
    build_save(&file, b->bytes, b->n);
    int got = judge(&err, SMALL);
    if (got != code || strstr(err.text, part) == NULL || strstr(err.text, other) == NULL) {
        print_message("%s\n", err.text);
        assert_int_equal(got, code);
        fail_msg("'%s' or '%s' is not in the message", part, other);
    }
}

/* ---- a small valid model ---- */

enum { TINY_TENSORS = 9 };
static const uint64_t tiny_ne[TINY_TENSORS][2] = {{64, 320}, {64, 0}, {64, 64}, {64, 32}, {64, 32}, {64, 64}, {64, 192}, {192, 64}, {64, 0}};
static const uint32_t tiny_type[TINY_TENSORS] = {8, 0, 2, 3, 8, 2, 30, 1, 0};

static void build_tiny(struct build *b, uint32_t alignment)
{
    build_head(b, 3, TINY_TENSORS, 9);
    build_key_str(b, "general.architecture", "llama");
    build_key_u32(b, "general.alignment", alignment);
    build_key_u32(b, "llama.block_count", 2);
    build_key(b, "llama.attention.layer_norm_rms_epsilon", 6);
    build_raw(b, &(float){1e-5f}, 4);
    build_key_str(b, "tokenizer.ggml.model", "gpt2");
    build_key(b, "tokenizer.ggml.add_bos_token", 7);
    build_u8(b, 1);
    build_array(b, "tokenizer.ggml.tokens", 8, 160);
    for (int i = 0; i < 160; i++) build_text(b, &"tokens!"[i % 7], 1 + (size_t)(i % 7 == 6 ? 0 : i % 2));
    build_array(b, "tokenizer.ggml.token_type", 5, 160);
    for (uint32_t i = 0; i < 160; i++) build_u32(b, 1);
    build_key(b, "general.size", 10);
    build_u64(b, 12345678901234u);
    uint64_t offset = 0;
    for (int i = 0; i < TINY_TENSORS; i++) {
        char name[64];
        uint64_t bytes;
        snprintf(name, sizeof name, "blk.%d.weight", i);
        assert_true(wr_quant_row_bytes(wr_quant_find(tiny_type[i]), tiny_ne[i][0], &bytes));
        if (tiny_ne[i][1] != 0) bytes *= tiny_ne[i][1];
        build_tensor(b, name, tiny_ne[i][1] == 0 ? 1 : 2, tiny_ne[i], tiny_type[i], offset);
        offset = wr_round_up(offset + bytes, alignment);
    }
    build_align(b, alignment);
    build_zeros(b, offset - (wr_round_up(256, alignment) - 256)); /* the last tensor ends the file, unpadded */
}

static void test_c4_valid(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {8, 16, 32, 64, 4096};
    for (size_t i = 0; i < 5; i++) {
        struct build b = {0};
        weir_err err;
        build_tiny(&b, alignments[i]);
        build_save(&file, b.bytes, b.n);
        assert_int_equal(judge(&err, SMALL), 0);
        build_zeros(&b, 5000); /* trailing bytes are fine */
        build_save(&file, b.bytes, b.n);
        assert_int_equal(judge(&err, SMALL), 0);
        build_free(&b);
    }
}

/* C1, C12: every prefix of the header and each tensor's begin, middle and last byte. */
static void test_c1_c12_truncated(void **state)
{
    (void)state;
    struct build b = {0};
    struct wr_catalog c;
    weir_err err;
    build_tiny(&b, 32);
    build_save(&file, b.bytes, b.n);
    assert_int_equal(wr_catalog_open(&c, file.path, WEIR_DIRECT_OFF, &ledger, NULL, &err), 0);
    assert_true(c.tensors[0].offset > 3000);
    for (size_t n = 0; n < 4096 || n <= c.tensors[0].offset; n++) {
        build_save(&file, b.bytes, n);
        assert_int_equal(judge(&err, SMALL), WEIR_E_FORMAT);
    }
    for (int i = 0; i < TINY_TENSORS; i++) {
        uint64_t begin = c.tensors[i].offset, bytes = c.tensors[i].bytes;
        uint64_t cuts[3] = {begin, begin + bytes / 2, begin + bytes - 1};
        for (int k = 0; k < 3; k++) {
            char needed[32], present[32];
            build_save(&file, b.bytes, cuts[k]);
            assert_int_equal(judge(&err, SMALL), WEIR_E_FORMAT);
            snprintf(needed, sizeof needed, "%" PRIu64, begin + bytes);
            snprintf(present, sizeof present, "%" PRIu64, cuts[k]);
            assert_non_null(strstr(err.text, c.tensors[i].name)); /* the first that is not whole */
            assert_non_null(strstr(err.text, needed));
            assert_non_null(strstr(err.text, present));
        }
    }
    wr_catalog_close(&c);
    build_free(&b);
}

/* C12: single bytes of the header, each with seven other values; and random pairs. */
static void test_c12_changed_bytes(void **state)
{
    (void)state;
    struct build b = {0};
    weir_err err;
    int n_refused = 0, n_read = 0;
    uint32_t random = 1;
    build_tiny(&b, 32);
    static const uint8_t others[] = {0x00, 0x01, 0x07, 0x20, 0x7f, 0x80, 0xff};
    size_t n_header = 4096;
    for (size_t i = 0; i < n_header; i++) {
        uint8_t kept = b.bytes[i];
        for (size_t k = 0; k < sizeof others; k++) {
            b.bytes[i] = others[k];
            build_save(&file, b.bytes, b.n);
            if (judge(&err, SMALL) == 0)
                n_read++;
            else
                n_refused++;
        }
        b.bytes[i] = kept;
    }
    for (int i = 0; i < 5000; i++) {
        size_t at[2];
        uint8_t kept[2];
        for (int k = 0; k < 2; k++) {
            random = random * 1664525u + 1013904223u;
            at[k] = (random >> 12) % n_header;
            kept[k] = b.bytes[at[k]];
            b.bytes[at[k]] ^= (uint8_t)(1u << (random >> 8 & 7));
        }
        build_save(&file, b.bytes, b.n);
        judge(&err, SMALL);
        for (int k = 1; k >= 0; k--) b.bytes[at[k]] = kept[k];
    }
    assert_true(n_refused > 1000 && n_read > 1000);
    build_free(&b);
}

/* C3: numbers that promise more than the file holds. */
static void test_c3_count_bombs(void **state)
{
    (void)state;
    static const uint64_t counts[] = {
        3, 1000, UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(1) << 40, UINT64_C(1) << 60, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
    struct build b = {0};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int which = 0; which < 3; which++) { /* keys, tensors, both */
            b.n = 0;
            build_head(&b, 3, which != 0 ? counts[i] : 0, which != 1 ? counts[i] : 0);
            refused(&b, WEIR_E_FORMAT, "do not fit", "damaged");
        }
        b.n = 0; /* a key's length */
        build_head(&b, 3, 0, 1);
        build_u64(&b, counts[i] == 3 ? 100 : counts[i]);
        build_zeros(&b, 30);
        refused(&b, WEIR_E_FORMAT, "key 1 of 1", "damaged");
        b.n = 0; /* a string's length */
        build_head(&b, 3, 0, 1);
        build_key(&b, "k.ey", 8);
        build_u64(&b, counts[i] == 3 ? 100 : counts[i]);
        build_zeros(&b, 30);
        refused(&b, WEIR_E_FORMAT, "'k.ey'", "damaged");
        for (uint32_t element = 0; element < 13; element++) { /* arrays of every type */
            char number[32];
            b.n = 0;
            build_head(&b, 3, 0, 1);
            build_array(&b, "k.ey", element, counts[i] == 3 ? 50 : counts[i]);
            build_zeros(&b, 30);
            snprintf(number, sizeof number, "%" PRIu64, counts[i] == 3 ? 50 : counts[i]);
            refused(&b, element == 9 ? WEIR_E_UNSUPPORTED : WEIR_E_FORMAT, "'k.ey'", number);
        }
        b.n = 0; /* a length inside a string array */
        build_head(&b, 3, 0, 1);
        build_array(&b, "k.ey", 8, 3);
        build_text(&b, "fine", 4);
        build_u64(&b, counts[i] == 3 ? 100 : counts[i]);
        build_zeros(&b, 30);
        refused(&b, WEIR_E_FORMAT, "'k.ey'", "damaged");
        b.n = 0; /* a tensor's name */
        build_head(&b, 3, 1, 1);
        build_key_str(&b, "general.architecture", "llama");
        build_u64(&b, counts[i] == 3 ? 100 : counts[i]);
        build_zeros(&b, 30);
        refused(&b, WEIR_E_FORMAT, "tensor 1 of 1", "damaged");
    }
    b.n = 0; /* arrays in arrays, 10000 deep */
    build_head(&b, 3, 0, 1);
    build_array(&b, "deep", 9, 1);
    for (int i = 0; i < 10000; i++) {
        build_u32(&b, 9);
        build_u64(&b, 1);
    }
    refused(&b, WEIR_E_UNSUPPORTED, "'deep'", "nested");
    build_free(&b);
}

/* Files that really are large, but hold nothing (holes): the limits on counts and on the header hold time and memory. */
static void test_c3_b11_sparse(void **state)
{
    (void)state;
    struct build b = {0};
    weir_err err;
    build_head(&b, 3, UINT64_C(1) << 30, 0);
    build_save(&file, b.bytes, b.n);
    assert_int_equal(ftruncate(file.fd, INT64_C(1) << 40), 0);
    assert_int_equal(judge(&err, SMALL), WEIR_E_UNSUPPORTED);
    b.n = 0;
    build_head(&b, 3, 0, UINT64_C(1) << 30);
    build_save(&file, b.bytes, b.n);
    assert_int_equal(ftruncate(file.fd, INT64_C(1) << 40), 0);
    assert_int_equal(judge(&err, SMALL), WEIR_E_UNSUPPORTED);
    b.n = 0;
    build_head(&b, 3, 0, 1);
    build_array(&b, "endless", 8, UINT64_C(1) << 36); /* empty strings for 512 GiB */
    build_save(&file, b.bytes, b.n);
    assert_int_equal(ftruncate(file.fd, INT64_C(1) << 40), 0);
    assert_int_equal(judge(&err, SMALL), WEIR_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "endless"));
    b.n = 0; /* an array of numbers that long is stepped over, then there is nothing but zeros */
    build_head(&b, 3, 0, 2);
    build_array(&b, "endless", 10, UINT64_C(1) << 36);
    build_save(&file, b.bytes, b.n);
    assert_int_equal(ftruncate(file.fd, INT64_C(1) << 40), 0);
    assert_int_equal(judge(&err, SMALL), WEIR_E_UNSUPPORTED);

    /* B11: a valid file whose last tensor lies beyond 5 GiB. */
    struct wr_catalog c;
    b.n = 0;
    build_head(&b, 3, 2, 1);
    build_key_str(&b, "general.architecture", "llama");
    build_tensor(&b, "first", 2, (uint64_t[]){1 << 16, 5 << 12}, 0, 0);
    build_tensor(&b, "last", 1, (uint64_t[]){8}, 0, UINT64_C(5) << 30);
    build_align(&b, 32);
    uint64_t data = b.n;
    build_save(&file, b.bytes, b.n);
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8];
    assert_int_equal(pwrite(file.fd, values, sizeof values, (off_t)(data + (UINT64_C(5) << 30))), sizeof values);
    wr_ledger_init(&ledger);
    assert_int_equal(wr_catalog_open(&c, file.path, WEIR_DIRECT_OFF, &ledger, NULL, &err), 0);
    exercise(&c);
    assert_true(c.tensors[0].bytes == UINT64_C(5) << 30);
    assert_int_equal(wr_file_read(c.files, c.tensors[1].offset, back, sizeof back, &err), 0);
    assert_memory_equal(back, values, sizeof back);
    wr_catalog_close(&c);
    build_free(&b);
    assert_int_equal(ftruncate(file.fd, 0), 0);
}

/* ---- single tensors ---- */

static void build_one(struct build *b, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset, size_t n_data)
{
    b->n = 0;
    build_head(b, 3, 1, 1);
    build_key_str(b, "general.architecture", "llama");
    build_tensor(b, "one.weight", n_dims, ne, type, offset);
    build_align(b, 32);
    build_zeros(b, n_data);
}

/* C1, C2: products, sums and offsets that wrap. */
static void test_c1_c2_overflow(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_dims, type;
        uint64_t ne[4], offset;
        const char *part;
    } rows[] = {
        {2, 0, {(UINT64_C(1) << 42) + 1, UINT64_C(1) << 22}, 0, "large"},
        {2, 0, {UINT64_C(1) << 32, UINT64_C(1) << 32}, 0, "large"},
        {2, 0, {UINT64_C(1) << 63, 2}, 0, "dimension 0"},
        {2, 0, {2, UINT64_C(1) << 63}, 0, "dimension 1"},
        {1, 0, {UINT64_MAX}, 0, "-1"},
        {2, 0, {4, UINT64_MAX}, 0, "-1"},
        {1, 0, {INT64_MAX}, 0, "large"},
        {4, 0, {1 << 16, 1 << 16, 1 << 16, 1 << 16}, 0, "large"},
        {4, 0, {1, UINT64_C(1) << 62, 4, 1}, 0, "large"},
        {4, 2, {32, UINT64_C(1) << 30, UINT64_C(1) << 30, 1}, 0, "large"},
        {1, 2, {33}, 0, "whole blocks"},
        {1, 8, {1}, 0, "whole blocks"},
        {1, 3, {16}, 0, "whole blocks"},
        {1, 2, {32}, UINT64_MAX - 31, "wrap"},
        {1, 2, {32}, UINT64_MAX - 63, "wrap"},
        {2, 8, {32, UINT64_C(1) << 58}, 0, "incomplete"}, /* 2^63 + 2^59 bytes: no signed number */
        {2, 0, {8, (UINT64_C(1) << 59) - 1}, 0, "wrap"},  /* 2^64 - 32: wraps with where the data begin */
        {1, 0, {8}, UINT64_C(1) << 62, "incomplete"},
        {1, 0, {8}, 4, "multiple"},
        {1, 0, {8}, 33, "multiple"},
        {1, 0, {9}, 0, "incomplete"},
        {1, 0, {8}, 32, "incomplete"},
        {1, 0, {0}, 0, "dimension 0 is 0"},
        {4, 0, {1, 1, 0, 1}, 0, "dimension 2 is 0"},
        {4, 2, {32, 0, UINT64_MAX, 0}, 0, "dimension 1 is 0"},
    };
    struct build b = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        build_one(&b, rows[i].n_dims, rows[i].ne, rows[i].type, rows[i].offset, 32);
        refused(&b, WEIR_E_FORMAT, rows[i].part, "'one.weight'");
    }
    static const uint32_t dims[] = {5, 10, 1000000, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        b.n = 0;
        build_head(&b, 3, 1, 1);
        build_key_str(&b, "general.architecture", "llama");
        build_text(&b, "one.weight", 10);
        build_u32(&b, dims[i]);
        build_zeros(&b, 200);
        refused(&b, WEIR_E_FORMAT, "dimensions", "'one.weight'");
    }
    weir_err err;
    build_one(&b, 0, rows[0].ne, 0, 0, 4); /* a scalar is legal */
    build_save(&file, b.bytes, b.n);
    assert_int_equal(judge(&err, SMALL), 0);
    build_free(&b);
}

static void test_overlap(void **state)
{
    (void)state;
    static const uint64_t bad[][3] = {{0, 0, 64}, {0, 32, 96}, {64, 0, 32}, {128, 64, 96}, {0, 128, 96}};
    static const uint64_t good[][3] = {{0, 64, 128}, {128, 0, 64}, {64, 128, 0}, {0, 128, 256}};
    struct build b = {0};
    weir_err err;
    for (size_t i = 0; i < 9; i++) {
        const uint64_t *offsets = i < 5 ? bad[i] : good[i - 5];
        b.n = 0;
        build_head(&b, 3, 3, 1);
        build_key_str(&b, "general.architecture", "llama");
        for (int k = 0; k < 3; k++) build_tensor(&b, k == 0 ? "t.0" : k == 1 ? "t.1" : "t.2", 1, (uint64_t[]){16}, 0, offsets[k]); /* 64 bytes each */
        build_align(&b, 32);
        build_zeros(&b, 512);
        if (i < 5) {
            refused(&b, WEIR_E_FORMAT, "inside tensor 't.", "tensor 't.");
        } else {
            build_save(&file, b.bytes, b.n);
            assert_int_equal(judge(&err, SMALL), 0);
        }
    }
    build_free(&b);
}

/* C7: known, retired, foreign and new types are well-formed but unsupported, and named. */
static void test_c7_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
        bool newer;
    } rows[] = {{4, "Q4_2", false}, {5, "Q4_3", false}, {31, "Q4_0_4_4", false}, {32, "Q4_0_4_8", false}, {33, "Q4_0_8_8", false}, {36, "I2_S", false},
        {37, "IQ4_NL_4_8", false}, {38, "TL1", false}, {39, "MXFP4", false}, {133, "Q6_0 of ik", false}, {255, "unknown", true}, {43, "unknown", true},
        {0x80000000u, "unknown", true}, {UINT32_MAX, "unknown", true}};
    struct build b = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char number[24];
        build_one(&b, 1, (uint64_t[]){256}, rows[i].type, 0, 1024);
        snprintf(number, sizeof number, "type %" PRIu32 " (", rows[i].type);
        refused(&b, WEIR_E_UNSUPPORTED, number, rows[i].name);
        refused(&b, WEIR_E_UNSUPPORTED, "'one.weight'", rows[i].newer ? "newer weir" : "");
        weir_err err;
        judge(&err, SMALL);
        assert_true((strstr(err.text, "newer") != NULL) == rows[i].newer);
    }
    build_free(&b);
}

/* ---- keys ---- */

static const uint8_t widths[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* One tensor, and `key` with the given type and a value of 1 (numbers), "model" (string) or an array of one u8. */
static void build_typed(struct build *b, const char *key, uint32_t type)
{
    bool arch = strcmp(key, "general.architecture") == 0;
    float f32 = 1;
    double f64 = 1;
    uint64_t one = 1;
    b->n = 0;
    build_head(b, 3, 1, arch ? 1 : 2);
    if (!arch) build_key_str(b, "general.architecture", "llama");
    build_key(b, key, type);
    if (type == 6)
        build_raw(b, &f32, 4);
    else if (type == 12)
        build_raw(b, &f64, 8);
    else if (type == 8)
        build_text(b, "model", 5);
    else if (type == 9) {
        build_u32(b, 0);
        build_u64(b, 1);
        build_u8(b, 1);
    } else
        build_raw(b, &one, widths[type]);
    build_tensor(b, "t", 1, (uint64_t[]){32}, 2, 0);
    build_align(b, 32);
    build_zeros(b, 64);
}

/* C9: each key that opening reads, as each of the 13 types. */
static void test_c9_key_types(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        const char *verdict; /* a letter a type: '.' fine, 'F' malformed, 'U' unsupported; a value of 1 or "model" */
    } rows[] = {
        {"general.architecture", "FFFFFFFF.FFFF"},
        {"general.type", "FFFFFFFF.FFFF"},
        {"general.alignment", "FFFFFFFFFFFFF"}, /* 1 is no alignment even as u32 */
        {"split.count", "......FFFF..F"},
        {"general.quantization_version", "UUUUUUFFFFUUF"},
        {"unknown.key", "............."},
    };
    struct build b = {0};
    weir_err err;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (uint32_t type = 0; type < 13; type++) {
            build_typed(&b, rows[i].key, type);
            char wanted = rows[i].verdict[type];
            if (wanted == '.') {
                build_save(&file, b.bytes, b.n);
                assert_int_equal(judge(&err, SMALL), 0);
            } else {
                refused(&b, wanted == 'F' ? WEIR_E_FORMAT : WEIR_E_UNSUPPORTED, rows[i].key, "");
            }
        }
        for (int k = 0; k < 3; k++) {
            static const uint32_t types[] = {13, 255, 0x80000000u};
            build_typed(&b, rows[i].key, 4);
            size_t at = 24 + (i == 0 ? 0 : 8 + 20 + 4 + 8 + 5) + 8 + strlen(rows[i].key);
            memcpy(b.bytes + at, &types[k], 4);
            refused(&b, WEIR_E_FORMAT, rows[i].key, "value type");
            if (k < 2) continue;
            b.n = 0;
            build_head(&b, 3, 0, 1);
            build_array(&b, rows[i].key, 13, 1);
            build_zeros(&b, 16);
            refused(&b, WEIR_E_FORMAT, rows[i].key, "element type 13");
        }
    }
    build_free(&b);
}

/* C4 */
static void test_c4_alignment(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 1, 2, 3, 4, 5, 7, 9, 12, 24, 33, 0x7fffffff, UINT32_MAX};
    struct build b = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        b.n = 0;
        build_tiny(&b, 32);
        memcpy(b.bytes + 24 + 8 + 20 + 4 + 8 + 5 + 8 + 17 + 4, &bad[i], 4);
        char number[16];
        snprintf(number, sizeof number, "is %" PRIu32 ",", bad[i]);
        refused(&b, WEIR_E_FORMAT, "general.alignment", number);
    }
    for (uint32_t alignment = 8192; alignment != 0; alignment *= 2) { /* legal, but then the data begin past the end */
        b.n = 0;
        build_tiny(&b, 32);
        memcpy(b.bytes + 24 + 8 + 20 + 4 + 8 + 5 + 8 + 17 + 4, &alignment, 4);
        refused(&b, WEIR_E_FORMAT, "tensor 'blk.", "");
    }
    build_free(&b);
}

static void test_c9_names(void **state)
{
    (void)state;
    struct build b = {0};
    weir_err err;
    build_head(&b, 3, 0, 2); /* an empty key */
    build_key_str(&b, "general.architecture", "llama");
    build_key_u32(&b, "", 1);
    refused(&b, WEIR_E_FORMAT, "key 2 of 2", "0 bytes");
    b.n = 0; /* NUL in a key */
    build_head(&b, 3, 0, 1);
    build_text(&b, "general.\0architecture", 21);
    build_u32(&b, 8);
    build_text(&b, "llama", 5);
    refused(&b, WEIR_E_FORMAT, "NUL", "general.");
    b.n = 0; /* control characters and bytes that are not UTF-8: legal, and clean in messages (judge checks) */
    build_head(&b, 3, 0, 2);
    build_key_str(&b, "general.architecture", "llama");
    build_key_u32(&b, "a\nb\x1b[31m\xff\xc3(\xe2\x82", 1);
    build_save(&file, b.bytes, b.n);
    assert_int_equal(judge(&err, SMALL), 0);
    build_head(&b, 3, 0, 2);
    b.n = 0;
    build_head(&b, 3, 0, 2);
    build_key_u32(&b, "a\nb\x1b[31m\xff\xc3(\xe2\x82", 1);
    build_key_u32(&b, "a\nb\x1b[31m\xff\xc3(\xe2\x82", 1);
    refused(&b, WEIR_E_FORMAT, "a?b?[31m", "twice");
    b.n = 0; /* long names are cut, the message stays whole */
    static char name[65536];
    memset(name, 'n', 65535);
    build_head(&b, 3, 1, 1);
    build_key_str(&b, "general.architecture", "llama");
    build_tensor(&b, name, 1, (uint64_t[]){8}, 4, 0);
    refused(&b, WEIR_E_UNSUPPORTED, "nnn'...", "Q4_2");
    b.n = 0;
    memset(name, 'n', 65536);
    build_head(&b, 3, 1, 1);
    build_key_str(&b, "general.architecture", "llama");
    build_text(&b, name, 65536);
    build_zeros(&b, 64);
    refused(&b, WEIR_E_FORMAT, "tensor 1 of 1", "65536");
    name[65535] = 0;
    b.n = 0; /* the same tensor twice */
    build_head(&b, 3, 2, 1);
    build_key_str(&b, "general.architecture", "llama");
    build_tensor(&b, "same", 1, (uint64_t[]){8}, 0, 0);
    build_tensor(&b, "same", 1, (uint64_t[]){8}, 0, 32);
    build_align(&b, 32);
    build_zeros(&b, 64);
    refused(&b, WEIR_E_FORMAT, "'same'", "twice");
    b.n = 0; /* a bool of 7 */
    build_head(&b, 3, 0, 1);
    build_key(&b, "flag", 7);
    build_u8(&b, 7);
    refused(&b, WEIR_E_FORMAT, "'flag'", "7");
    build_free(&b);
}

/* Names whose hashes all begin at one slot: refused, instead of quadratic time. The attacker knows the hash. */
static void test_colliding_names(void **state)
{
    (void)state;
    enum { N = 1100 };
    struct build b = {0};
    char name[32];
    build_head(&b, 3, 0, N);
    for (uint32_t i = 0, n = 0; n < N; i++) {
        snprintf(name, sizeof name, "%08x", i);
        uint64_t h = 0xcbf29ce484222325u;
        for (const char *c = name; *c != '\0'; c++) h = (h ^ (uint8_t)*c) * 0x100000001b3u;
        h ^= h >> 32;
        h *= 0x9e3779b97f4a7c15u;
        if ((h >> 32 & 4095) != 77) continue; /* 4096 slots for 1100 names */
        build_key_u32(&b, name, 1);
        n++;
    }
    refused(&b, WEIR_E_FORMAT, "too many names", "key '");
    build_free(&b);
}

/* ---- the file itself ---- */

static void test_c12_head(void **state)
{
    (void)state;
    static const struct {
        uint32_t version;
        int code;
        const char *part;
    } rows[] = {{0, WEIR_E_FORMAT, "version 0"}, {1, WEIR_E_UNSUPPORTED, "version 1"}, {4, WEIR_E_UNSUPPORTED, "version 4"},
        {0x80000000u, WEIR_E_FORMAT, "version 2147483648"}, {0x03000000u, WEIR_E_UNSUPPORTED, "big-endian"}, {0x02000000u, WEIR_E_UNSUPPORTED, "big-endian"},
        {UINT32_MAX, WEIR_E_FORMAT, "version 4294967295"}};
    struct build b = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        b.n = 0;
        build_tiny(&b, 32);
        memcpy(b.bytes + 4, &rows[i].version, 4);
        refused(&b, rows[i].code, rows[i].part, "");
    }
    b.n = 0;
    refused(&b, WEIR_E_FORMAT, "empty", "");
    build_raw(&b, "GGUF", 4);
    refused(&b, WEIR_E_FORMAT, "4 bytes", "24");
    b.n = 0;
    build_raw(&b, "PK\3\4", 4);
    build_zeros(&b, 200);
    refused(&b, WEIR_E_FORMAT, "not a GGUF file", "a zip archive");
    b.bytes[0] = 'Q';
    refused(&b, WEIR_E_FORMAT, "not a GGUF file", "51 4b 03 04");
    build_free(&b);
}

/* Well-formed files of another purpose. */
static void test_purpose(void **state)
{
    (void)state;
    struct build b = {0};
    weir_err err;
    static const char *const purposes[] = {"adapter", "mmproj", "imatrix", ""};
    for (int i = 0; i < 4; i++) {
        b.n = 0;
        build_head(&b, 3, 0, 1);
        build_key_str(&b, "general.type", purposes[i]);
        refused(&b, WEIR_E_UNSUPPORTED, "general.type", purposes[i]);
    }
    b.n = 0;
    build_head(&b, 3, 0, 1);
    build_key_str(&b, "general.type", "model");
    refused(&b, WEIR_E_FORMAT, "general.architecture", "missing");
    b.n = 0;
    build_head(&b, 3, 0, 1);
    build_key_str(&b, "general.architecture", "");
    refused(&b, WEIR_E_FORMAT, "general.architecture", "empty");
    b.n = 0; /* a part of a split model under another name: no architecture either */
    build_head(&b, 3, 0, 2);
    build_key(&b, "split.no", 2);
    build_raw(&b, "\1", 2);
    build_key(&b, "split.count", 2);
    build_raw(&b, "\3", 2);
    refused(&b, WEIR_E_FORMAT, "split.count", "one of 3 parts");
    b.n = 0; /* a split of one is a whole file */
    build_head(&b, 3, 0, 2);
    build_key_str(&b, "general.architecture", "llama");
    build_key(&b, "split.count", 2);
    build_raw(&b, "\1", 2);
    build_save(&file, b.bytes, b.n);
    assert_int_equal(judge(&err, SMALL), 0);
    build_free(&b);
}

/* C14: odd things given as a model are refused at once. */
static void test_c14_odd_paths(void **state)
{
    (void)state;
    char folder[] = "/tmp/weir-odd-XXXXXX", fifo[64], absent[64], link[64];
    assert_non_null(mkdtemp(folder));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    snprintf(absent, sizeof absent, "%s/absent", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("link", link), 0); /* points at itself */
    const char *const paths[] = {folder, fifo, absent, link, "/dev/zero", "/dev/null", ""};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct wr_catalog c;
        weir_err err;
        uint64_t begun = build_cpu_ns();
        wr_ledger_init(&ledger);
        assert_int_equal(wr_catalog_open(&c, paths[i], WEIR_DIRECT_AUTO, &ledger, NULL, &err), WEIR_E_OPEN);
        assert_true(build_cpu_ns() - begun < UINT64_C(2000000000) * BUILD_SLOWER);
        assert_non_null(strstr(err.text, paths[i]));
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    }
    unlink(fifo);
    unlink(link);
    rmdir(folder);
}

/* All of the above, in one process, stayed small. */
static void test_peak(void **state)
{
    (void)state;
#ifndef BUILD_SANITIZED
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    assert_true(usage.ru_maxrss < 64 << 10); /* KiB */
#endif
}

int main(void)
{
    wr_ledger_init(&ledger);
    build_file_open(&file);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_c4_valid), cmocka_unit_test(test_c1_c12_truncated), cmocka_unit_test(test_c12_changed_bytes),
        cmocka_unit_test(test_c3_count_bombs), cmocka_unit_test(test_c3_b11_sparse), cmocka_unit_test(test_c1_c2_overflow), cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_c7_types), cmocka_unit_test(test_c9_key_types), cmocka_unit_test(test_c4_alignment), cmocka_unit_test(test_c9_names),
        cmocka_unit_test(test_colliding_names), cmocka_unit_test(test_c12_head), cmocka_unit_test(test_purpose), cmocka_unit_test(test_c14_odd_paths),
        cmocka_unit_test(test_peak)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
