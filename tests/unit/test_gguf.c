/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog of valid files: what is read, typed access, arrays, the writer, failing memory and disks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "format/catalog.h"
#include "gguf_build.h"

static struct wr_ledger ledger;
static struct build_file file;

static int open_built(struct wr_catalog *catalog, const struct build *b, weir_err *err)
{
    build_save(&file, b->bytes, b->n);
    return wr_catalog_open(catalog, file.path, WEIR_DIRECT_OFF, &ledger, NULL, err);
}

/* Every value type once, then two tensors. `long_bytes`: of the string that is too long to be kept. */
static const char *const number_keys[] = {"t.u8", "t.i8", "t.u16", "t.i16", "t.u32", "t.i32", "t.f32", "t.bool", "", "", "t.u64", "t.i64", "t.f64"};
static const uint8_t number_width[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static void build_example(struct build *b, uint32_t version, uint32_t alignment, size_t long_bytes)
{
    uint64_t ne[3] = {64, 3, 2};
    float f32 = 1.5f;
    double f64 = -2.25;
    build_head(b, version, 2, 20);
    build_key_str(b, "general.architecture", "llama");
    build_key_u32(b, "general.alignment", alignment);
    for (uint32_t type = 0; type < 13; type++) {
        if (number_width[type] == 0) continue;
        build_key(b, number_keys[type], type);
        uint64_t value = type == 7 ? 1 : UINT64_C(0xfffffffffffffffe); /* -2 where signed */
        if (type == 6)
            build_raw(b, &f32, 4);
        else if (type == 12)
            build_raw(b, &f64, 8);
        else
            build_raw(b, &value, number_width[type]);
    }
    char *text = malloc(long_bytes);
    memset(text, 'x', long_bytes);
    build_key(b, "t.long", 8);
    build_text(b, text, long_bytes);
    free(text);
    build_key(b, "t.nul", 8);
    build_text(b, "a\0b", 3);
    build_key_str(b, "t.empty", "");
    build_array(b, "t.strings", 8, 3);
    build_text(b, "one", 3);
    build_text(b, "", 0);
    build_text(b, "thr\0e", 5);
    build_array(b, "t.shorts", 3, 4); /* i16 */
    build_raw(b, "\1\0\377\377\0\200\377\177", 8);
    build_array(b, "t.none", 6, 0);
    build_array(b, "t.bools", 7, 3);
    build_raw(b, "\0\1\7", 3);
    build_tensor(b, "a.weight", 3, ne, 2, 0); /* Q4_0: 36 bytes a row, 6 rows */
    build_tensor(b, "scalar", 0, ne, 0, wr_round_up(216, alignment));
    build_align(b, alignment);
    build_zeros(b, wr_round_up(216, alignment) + 4);
}

static void test_example(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct build b = {0};
        struct wr_catalog c;
        weir_err err;
        build_example(&b, version, 64, 70000);
        assert_int_equal(open_built(&c, &b, &err), 0);
        assert_int_equal(c.version, version);
        assert_int_equal(c.n_tensors, 2);
        assert_int_equal(c.n_metas, 20);
        assert_int_equal(c.weight_bytes, 220);
        const struct wr_tensor *t = wr_catalog_tensor(&c, "a.weight");
        assert_ptr_equal(t, &c.tensors[0]);
        assert_ptr_equal(t->quant, &wr_quant_q4_0);
        assert_int_equal(t->n_dims, 3);
        assert_int_equal(t->ne[0], 64);
        assert_int_equal(t->ne[3], 1);
        assert_int_equal(t->n_rows, 6);
        assert_int_equal(t->row_bytes, 36);
        assert_int_equal(t->bytes, 216);
        assert_int_equal(t->offset, wr_round_up(b.n - 256 - 4, 64));
        assert_int_equal(c.tensors[1].offset, t->offset + 256);
        assert_int_equal(c.tensors[1].bytes, 4);
        assert_null(wr_catalog_tensor(&c, "a.weigh"));
        assert_null(wr_catalog_meta(&c, "t.u9"));
        assert_int_equal(wr_catalog_meta(&c, "t.i16")->value.i, -2);
        assert_int_equal(wr_catalog_meta(&c, "t.strings")->count, 3);
        wr_catalog_close(&c);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
        build_free(&b);
    }
}

static void test_typed_access(void **state)
{
    (void)state;
    struct build b = {0};
    struct wr_catalog c;
    weir_err err;
    uint64_t u = 77;
    double f = 77;
    bool yes = false;
    const char *text = NULL;
    build_example(&b, 3, 32, 100);
    assert_int_equal(open_built(&c, &b, &err), 0);

    /* Whole numbers of any width; ranges; wrong types name the key. */
    assert_int_equal(wr_catalog_u64(&c, "absent", 10, &u, &err), 0);
    assert_int_equal(u, 77);
    static const struct {
        const char *key;
        int unsigned_result;
        uint64_t value;
    } rows[] = {{"t.u8", 1, 254}, {"t.u16", 1, 65534}, {"t.u32", 1, 0xfffffffe}, {"t.u64", 1, UINT64_MAX - 1}, {"t.i8", WEIR_E_FORMAT, 0},
        {"t.i64", WEIR_E_FORMAT, 0}, {"t.f32", WEIR_E_FORMAT, 0}, {"t.f64", WEIR_E_FORMAT, 0}, {"t.bool", WEIR_E_FORMAT, 0}, {"t.long", WEIR_E_FORMAT, 0},
        {"t.strings", WEIR_E_FORMAT, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        u = 77;
        assert_int_equal(wr_catalog_u64(&c, rows[i].key, UINT64_MAX, &u, &err), rows[i].unsigned_result);
        assert_true(u == (rows[i].unsigned_result == 1 ? rows[i].value : 77));
        if (rows[i].unsigned_result < 0) assert_non_null(strstr(err.text, rows[i].key));
    }
    assert_int_equal(wr_catalog_u64(&c, "t.u32", UINT32_MAX, &u, &err), 1);
    assert_int_equal(wr_catalog_u64(&c, "t.u64", UINT32_MAX, &u, &err), WEIR_E_FORMAT);
    assert_non_null(strstr(err.text, "18446744073709551614"));

    assert_int_equal(wr_catalog_f64(&c, "t.f32", &f, &err), 1);
    assert_true(f == 1.5);
    assert_int_equal(wr_catalog_f64(&c, "t.f64", &f, &err), 1);
    assert_true(f == -2.25);
    assert_int_equal(wr_catalog_f64(&c, "t.i8", &f, &err), 1);
    assert_true(f == -2);
    assert_int_equal(wr_catalog_f64(&c, "t.bool", &f, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_catalog_bool(&c, "t.bool", &yes, &err), 1);
    assert_true(yes);
    assert_int_equal(wr_catalog_bool(&c, "t.u8", &yes, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_catalog_bool(&c, "absent", &yes, &err), 0);
    assert_int_equal(wr_catalog_str(&c, "general.architecture", &text, &err), 1);
    assert_string_equal(text, "llama");
    assert_int_equal(wr_catalog_str(&c, "t.empty", &text, &err), 1);
    assert_string_equal(text, "");
    assert_int_equal(wr_catalog_str(&c, "t.nul", &text, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_catalog_str(&c, "t.u8", &text, &err), WEIR_E_FORMAT);
    assert_int_equal(wr_catalog_str(&c, "t.u8", &text, NULL), WEIR_E_FORMAT);
    wr_catalog_close(&c);
    build_free(&b);
}

static void test_long_strings(void **state)
{
    (void)state;
    static const size_t lengths[] = {65536, 65537, 200000};
    for (size_t i = 0; i < 3; i++) {
        struct build b = {0};
        struct wr_catalog c;
        weir_err err;
        const char *text;
        build_example(&b, 3, 32, lengths[i]);
        assert_int_equal(open_built(&c, &b, &err), 0);
        const struct wr_meta *meta = wr_catalog_meta(&c, "t.long");
        bool kept = lengths[i] <= 65536;
        assert_true((meta->string != NULL) == kept);
        assert_int_equal(wr_catalog_str(&c, "t.long", &text, &err), kept ? 1 : WEIR_E_FORMAT);
        char *copy = malloc(lengths[i]);
        assert_int_equal(wr_catalog_string(&c, meta, copy, &err), 0);
        for (size_t k = 0; k < lengths[i]; k++) assert_int_equal(copy[k], 'x');
        free(copy);
        wr_catalog_close(&c);
        build_free(&b);
    }
}

static void test_arrays(void **state)
{
    (void)state;
    struct build b = {0};
    struct wr_catalog c;
    struct wr_meta_reader r;
    weir_err err;
    const char *bytes;
    size_t n;
    int64_t i;
    double f;
    build_example(&b, 3, 32, 100);
    assert_int_equal(open_built(&c, &b, &err), 0);
    uint64_t used = wr_ledger_used(&ledger, WR_ACCOUNT_META);

    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.strings"), &err), 0);
    static const char *const strings[] = {"one", "", "thr\0e"};
    static const size_t lengths[] = {3, 0, 5};
    for (int k = 0; k < 3; k++) {
        assert_int_equal(wr_meta_reader_string(&r, &bytes, &n, &err), 0);
        assert_int_equal(n, lengths[k]);
        assert_memory_equal(bytes, strings[k], n);
    }
    assert_int_equal(wr_meta_reader_string(&r, &bytes, &n, &err), WEIR_E_FORMAT);
    wr_meta_reader_close(&r);

    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.shorts"), &err), 0);
    assert_int_equal(wr_meta_reader_string(&r, &bytes, &n, &err), WEIR_E_FORMAT);
    static const int64_t shorts[] = {1, -1, -32768, 32767};
    for (int k = 0; k < 4; k++) {
        if (k % 2) {
            assert_int_equal(wr_meta_reader_number(&r, NULL, &f, &err), 0);
            assert_true(f == (double)shorts[k]);
        } else {
            assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), 0);
            assert_int_equal(i, shorts[k]);
        }
    }
    assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), WEIR_E_FORMAT);
    wr_meta_reader_close(&r);

    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.none"), &err), 0);
    assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), WEIR_E_FORMAT); /* floats are not whole numbers */
    assert_int_equal(wr_meta_reader_number(&r, NULL, &f, &err), WEIR_E_FORMAT); /* none is left */
    wr_meta_reader_close(&r);

    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.bools"), &err), 0);
    assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), 0);
    assert_int_equal(i, 0);
    assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), 0);
    assert_int_equal(i, 1);
    assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), WEIR_E_FORMAT); /* a bool of 7 */
    wr_meta_reader_close(&r);
    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.u8"), &err), WEIR_E_FORMAT);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), used);
    wr_catalog_close(&c);
    build_free(&b);
}

/* Elements that fall on every position of the 64 KiB buffer's border; all number types. */
static void test_long_arrays(void **state)
{
    (void)state;
    enum { N = 60000 };
    struct build b = {0};
    struct wr_catalog c;
    struct wr_meta_reader r;
    weir_err err;
    build_head(&b, 3, 0, 14);
    build_key_str(&b, "general.architecture", "x");
    build_array(&b, "t.strings", 8, N);
    char text[48];
    for (int k = 0; k < N; k++) build_text(&b, text, (size_t)snprintf(text, sizeof text, "%.*s%d", k % 29, "abcdefghijklmnopqrstuvwxyzabcdef", k));
    for (uint32_t type = 0; type < 13; type++) {
        if (number_width[type] == 0) continue;
        build_array(&b, number_keys[type], type, N);
        for (uint64_t k = 0; k < N; k++) {
            float f32 = (float)k / 8;
            double f64 = (double)k / 8;
            uint64_t value = type == 7 ? k & 1 : k * 0x9e3779b97f4a7c15u >> 1;
            if (type == 6)
                build_raw(&b, &f32, 4);
            else if (type == 12)
                build_raw(&b, &f64, 8);
            else
                build_raw(&b, &value, number_width[type]);
        }
    }
    static char big[40000];
    memset(big, 'y', sizeof big);
    build_array(&b, "t.big", 8, 3);
    build_text(&b, big, 32768);
    build_text(&b, big, 32768);
    build_text(&b, big, 32769);
    assert_int_equal(open_built(&c, &b, &err), 0);

    const char *bytes;
    size_t n;
    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.strings"), &err), 0);
    for (int k = 0; k < N; k++) {
        assert_int_equal(wr_meta_reader_string(&r, &bytes, &n, &err), 0);
        size_t wanted = (size_t)snprintf(text, sizeof text, "%.*s%d", k % 29, "abcdefghijklmnopqrstuvwxyzabcdef", k);
        assert_int_equal(n, wanted);
        assert_memory_equal(bytes, text, n);
    }
    wr_meta_reader_close(&r);
    for (uint32_t type = 0; type < 13; type++) {
        if (number_width[type] == 0) continue;
        assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, number_keys[type]), &err), 0);
        for (uint64_t k = 0; k < N; k++) {
            int64_t i = 0, wanted = 0;
            double f = 0;
            uint64_t value = type == 7 ? k & 1 : k * 0x9e3779b97f4a7c15u >> 1;
            switch (type) {
            case 0:
                wanted = (uint8_t)value;
                break;
            case 1:
                wanted = (int8_t)value;
                break;
            case 2:
                wanted = (uint16_t)value;
                break;
            case 3:
                wanted = (int16_t)value;
                break;
            case 4:
                wanted = (uint32_t)value;
                break;
            case 5:
                wanted = (int32_t)value;
                break;
            default:
                wanted = (int64_t)value;
            }
            if (type == 6 || type == 12) {
                assert_int_equal(wr_meta_reader_number(&r, NULL, &f, &err), 0);
                assert_true(f == (double)k / 8);
            } else {
                assert_int_equal(wr_meta_reader_number(&r, &i, NULL, &err), 0);
                assert_int_equal(i, wanted);
            }
        }
        wr_meta_reader_close(&r);
    }
    assert_int_equal(wr_meta_reader_open(&r, &c, wr_catalog_meta(&c, "t.big"), &err), 0);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(wr_meta_reader_string(&r, &bytes, &n, &err), 0);
        assert_int_equal(n, 32768);
        assert_memory_equal(bytes, big, n);
    }
    assert_int_equal(wr_meta_reader_string(&r, &bytes, &n, &err), WEIR_E_FORMAT);
    wr_meta_reader_close(&r);
    wr_catalog_close(&c);
    build_free(&b);
}

/* ---- the writer ---- */

static char folder[64];
static const char *target(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int n_files_left(void)
{
    char command[160];
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *pipe = popen(command, "r");
    int n = -1;
    if (pipe == NULL || fscanf(pipe, "%d", &n) != 1) abort();
    pclose(pipe);
    return n;
}

static const char *get_word(void *user, uint64_t i, size_t *bytes)
{
    static char word[32];
    *bytes = (size_t)snprintf(word, sizeof word, "%s%llu", (const char *)user, (unsigned long long)i);
    return word;
}

static const uint64_t shape_a[2] = {64, 5}, shape_b[1] = {3}, shape_c[3] = {32, 2, 2};

static struct wr_gguf_writer *write_keys(const char *path, uint32_t alignment)
{
    struct wr_gguf_writer *w;
    weir_err err;
    static const int32_t types[] = {1, -3, 6, 2147483647};
    assert_int_equal(wr_gguf_writer_open(&w, path, &ledger, &err), 0);
    wr_gguf_writer_str(w, "general.architecture", "llama");
    if (alignment != 0) wr_gguf_writer_u32(w, "general.alignment", alignment);
    wr_gguf_writer_u32(w, "llama.block_count", 7);
    wr_gguf_writer_f32(w, "llama.eps", 1e-5f);
    wr_gguf_writer_bool(w, "flag", true);
    wr_gguf_writer_strs(w, "words", 100000, get_word, "word-");
    wr_gguf_writer_i32s(w, "types", 4, types);
    wr_gguf_writer_tensor(w, "a", &wr_quant_q8_0, 2, shape_a);
    wr_gguf_writer_tensor(w, "b", &wr_quant_f32, 1, shape_b);
    wr_gguf_writer_tensor(w, "c", &wr_quant_bf16, 3, shape_c);
    return w;
}
enum { N_DATA = 5 * 68 + 12 + 256 };
static uint8_t data_byte(size_t i) { return (uint8_t)(i * 131 + (i >> 8) * 7); }

static void test_writer(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {0, 8, 16, 64, 4096};
    static const size_t pieces[] = {1, 7, 68, 340, 341, N_DATA};
    uint8_t data[N_DATA];
    for (size_t i = 0; i < N_DATA; i++) data[i] = data_byte(i);
    for (size_t a = 0; a < sizeof alignments / sizeof alignments[0]; a++) {
        for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++) {
            const char *path = target("written.gguf");
            uint64_t alignment = alignments[a] == 0 ? 32 : alignments[a], u;
            double f;
            bool flag;
            weir_err err;
            struct wr_gguf_writer *w = write_keys(path, alignments[a]);
            assert_int_equal(wr_gguf_writer_header(w, &err), 0);
            for (size_t i = 0; i < N_DATA; i += pieces[k]) {
                assert_int_equal(wr_gguf_writer_data(w, data + i, N_DATA - i < pieces[k] ? N_DATA - i : pieces[k], &err), 0);
            }
            assert_int_equal(wr_gguf_writer_finish(w, &err), 0);
            assert_int_equal(n_files_left(), 1);

            struct wr_catalog c;
            assert_int_equal(wr_catalog_open(&c, path, WEIR_DIRECT_OFF, &ledger, NULL, &err), 0);
            assert_int_equal(c.version, 3);
            assert_int_equal(wr_catalog_u64(&c, "llama.block_count", 100, &u, &err), 1);
            assert_int_equal(u, 7);
            assert_int_equal(wr_catalog_f64(&c, "llama.eps", &f, &err), 1);
            assert_true(f == (double)1e-5f);
            assert_int_equal(wr_catalog_bool(&c, "flag", &flag, &err), 1);
            assert_int_equal(wr_catalog_meta(&c, "words")->count, 100000);
            assert_int_equal(c.n_tensors, 3);
            size_t at = 0;
            for (uint64_t t = 0; t < 3; t++) { /* strict on writing: no gaps but the padding */
                uint8_t back[512];
                if (t > 0) assert_int_equal(c.tensors[t].offset, wr_round_up(c.tensors[t - 1].offset + c.tensors[t - 1].bytes, alignment));
                assert_int_equal(c.tensors[t].offset % alignment, 0);
                assert_int_equal(wr_file_read(c.files, c.tensors[t].offset, back, c.tensors[t].bytes, &err), 0);
                for (uint64_t i = 0; i < c.tensors[t].bytes; i++) assert_int_equal(back[i], data_byte(at++));
            }
            assert_int_equal(at, N_DATA);
            wr_catalog_close(&c);
            unlink(path);
        }
    }
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
}

static void test_writer_misuse(void **state)
{
    (void)state;
    weir_err err;
    uint8_t data[N_DATA + 1] = {0};
    const char *path = target("bad.gguf");
    struct wr_gguf_writer *w;

    w = write_keys(path, 0); /* unfinished */
    wr_gguf_writer_abort(w);
    w = write_keys(path, 0);
    assert_int_equal(wr_gguf_writer_header(w, &err), 0);
    assert_int_equal(wr_gguf_writer_data(w, data, N_DATA - 1, &err), 0);
    assert_int_equal(wr_gguf_writer_finish(w, &err), WEIR_E_INPUT);
    w = write_keys(path, 0); /* one byte too many */
    assert_int_equal(wr_gguf_writer_header(w, &err), 0);
    assert_int_equal(wr_gguf_writer_data(w, data, N_DATA + 1, &err), WEIR_E_INPUT);
    assert_int_equal(wr_gguf_writer_finish(w, &err), WEIR_E_INPUT);
    w = write_keys(path, 24); /* not a power of two */
    assert_int_equal(wr_gguf_writer_header(w, &err), WEIR_E_INPUT);
    wr_gguf_writer_abort(w);
    w = write_keys(path, 0); /* a key after tensors */
    wr_gguf_writer_u32(w, "late", 1);
    assert_int_equal(wr_gguf_writer_header(w, &err), WEIR_E_INPUT);
    assert_non_null(strstr(err.text, "late"));
    assert_int_equal(wr_gguf_writer_finish(w, &err), WEIR_E_INPUT);
    w = write_keys(path, 0); /* rows that are no whole blocks; sizes beyond 2^62 */
    wr_gguf_writer_tensor(w, "odd", &wr_quant_q4_0, 1, &(uint64_t){33});
    assert_int_equal(wr_gguf_writer_finish(w, &err), WEIR_E_INPUT);
    w = write_keys(path, 0);
    wr_gguf_writer_tensor(w, "huge", &wr_quant_f32, 2, (uint64_t[]){UINT64_C(1) << 40, UINT64_C(1) << 21});
    assert_int_equal(wr_gguf_writer_finish(w, &err), WEIR_E_INPUT);
    wr_gguf_writer_abort(NULL);

    assert_int_equal(wr_gguf_writer_open(&w, "/dev/null", &ledger, &err), WEIR_E_OPEN);
    assert_int_equal(wr_gguf_writer_open(&w, folder, &ledger, &err), WEIR_E_OPEN);
    assert_int_equal(wr_gguf_writer_open(&w, target("no/such/folder.gguf"), &ledger, &err), WEIR_E_OPEN);
    assert_int_equal(n_files_left(), 0);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
}

/* A disk that is full at any point: the write error is reported, the old file of that name stays, nothing else is left. */
static void test_writer_disk_full(void **state)
{
    (void)state;
    weir_err err;
    struct rlimit before;
    uint8_t block[4096] = {0};
    const uint64_t shape[2] = {1024, 1024}; /* 4 MiB */
    const char *path = target("full.gguf");
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_int_equal(write(fd, "old", 3), 3);
    close(fd);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    static const uint64_t limits[] = {0, 10, 100000, 1 << 20, 3 << 20, 4 << 20};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct wr_gguf_writer *w;
        struct rlimit small = {limits[i], before.rlim_max};
        assert_int_equal(wr_gguf_writer_open(&w, path, &ledger, &err), 0);
        wr_gguf_writer_str(w, "general.architecture", "llama");
        wr_gguf_writer_tensor(w, "t", &wr_quant_f32, 2, shape);
        setrlimit(RLIMIT_FSIZE, &small);
        int code = wr_gguf_writer_header(w, &err);
        for (int k = 0; k < 1024 && code == 0; k++) code = wr_gguf_writer_data(w, block, sizeof block, &err);
        int finished = wr_gguf_writer_finish(w, &err);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(finished, WEIR_E_WRITE);
        assert_non_null(strstr(err.text, "full.gguf"));
        assert_int_equal(n_files_left(), 1);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, 3);
    }
    unlink(path);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
}

/* The Nth allocation or read fails, for every N: an error of that kind, nothing leaked, nothing left; then it works. */
static void test_faults(void **state)
{
    (void)state;
    struct build b = {0};
    build_example(&b, 3, 32, 70000);
    build_save(&file, b.bytes, b.n);
    static const struct {
        enum wr_fault_kind kind;
        int code;
    } kinds[] = {{WR_FAULT_ALLOC, WEIR_E_NOMEM}, {WR_FAULT_READ, WEIR_E_READ}};
    for (int k = 0; k < 4; k++) {
        bool opened = false;
        uint64_t n = 1;
        for (; !opened; n++) {
            struct wr_catalog c;
            weir_err err;
            wr_fault_set(kinds[k / 2].kind, n, k % 2 == 1);
            int code = wr_catalog_open(&c, file.path, WEIR_DIRECT_OFF, &ledger, NULL, n % 2 ? &err : NULL);
            wr_fault_set(kinds[k / 2].kind, 0, false);
            opened = code == 0;
            if (opened)
                wr_catalog_close(&c);
            else
                assert_int_equal(code, kinds[k / 2].code);
            assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
        }
        assert_true(n > 3);
    }
    bool worked = false;
    for (uint64_t n = 1; !worked; n++) {
        weir_err err;
        struct wr_gguf_writer *w;
        uint8_t data[N_DATA] = {0};
        wr_fault_set(WR_FAULT_ALLOC, n, false);
        int code = wr_gguf_writer_open(&w, target("fault.gguf"), &ledger, &err);
        if (code == 0) {
            wr_gguf_writer_str(w, "general.architecture", "llama");
            wr_gguf_writer_tensor(w, "a", &wr_quant_q8_0, 2, shape_a);
            code = wr_gguf_writer_header(w, &err);
            if (code == 0) code = wr_gguf_writer_data(w, data, 340, &err);
            int finished = wr_gguf_writer_finish(w, &err);
            if (code != 0) assert_int_equal(finished, code);
            code = finished;
        }
        wr_fault_set(WR_FAULT_ALLOC, 0, false);
        worked = code == 0;
        if (!worked) assert_int_equal(code, WEIR_E_NOMEM);
        assert_int_equal(n_files_left(), worked ? 1 : 0);
        assert_false(worked && n < 3);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    }
    unlink(target("fault.gguf"));

    /* A limit of the account is a budget error. */
    struct wr_catalog c;
    weir_err err;
    wr_ledger_limit(&ledger, WR_ACCOUNT_META, 80000);
    assert_int_equal(wr_catalog_open(&c, file.path, WEIR_DIRECT_OFF, &ledger, NULL, &err), WEIR_E_BUDGET);
    wr_ledger_limit(&ledger, WR_ACCOUNT_META, UINT64_MAX);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    build_free(&b);
}

static int setup(void **state)
{
    (void)state;
    wr_ledger_init(&ledger);
    build_file_open(&file);
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/weir-gguf-XXXXXX", tmp != NULL ? tmp : "/tmp");
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    build_file_close(&file);
    return rmdir(folder);
}

/* ---- the other half of tests/oracle/gguf_check.py: test_gguf write FILE, test_gguf dump FILE ---- */

static int write_for_oracle(const char *path)
{
    weir_err err;
    uint8_t data[N_DATA];
    for (size_t i = 0; i < N_DATA; i++) data[i] = data_byte(i);
    struct wr_gguf_writer *w = write_keys(path, 64);
    int code = wr_gguf_writer_header(w, &err);
    if (code == 0) code = wr_gguf_writer_data(w, data, N_DATA, &err);
    int finished = wr_gguf_writer_finish(w, &err);
    return code != 0 || finished != 0;
}

static void dump_array(const struct wr_catalog *c, const struct wr_meta *m)
{
    struct wr_meta_reader r;
    weir_err err;
    bool whole = m->element != WR_META_F32 && m->element != WR_META_F64;
    if (wr_meta_reader_open(&r, c, m, &err) != 0) abort();
    for (uint64_t k = 0; k < m->count; k++) {
        const char *text;
        size_t n;
        int64_t i;
        double f;
        if (m->element == WR_META_STRING) {
            if (wr_meta_reader_string(&r, &text, &n, &err) != 0) abort();
            printf(" ");
            for (size_t x = 0; x < n; x++) printf("%02x", (uint8_t)text[x]);
            printf(".");
        } else if (wr_meta_reader_number(&r, whole ? &i : NULL, whole ? NULL : &f, &err) != 0) {
            abort();
        } else if (whole) {
            printf(" %lld", (long long)i);
        } else {
            printf(" %a", f);
        }
    }
    wr_meta_reader_close(&r);
}

static int dump_for_oracle(const char *path)
{
    struct wr_catalog c;
    weir_err err;
    if (wr_catalog_open(&c, path, WEIR_DIRECT_AUTO, &ledger, NULL, &err) != 0) {
        printf("%s\n", err.text);
        return 1;
    }
    for (uint64_t i = 0; i < c.n_metas; i++) {
        const struct wr_meta *m = &c.metas[i];
        printf("%s", m->key);
        if (m->type == WR_META_ARRAY) {
            printf(" array %d %llu", m->element, (unsigned long long)m->count);
            dump_array(&c, m);
        } else if (m->type == WR_META_STRING) {
            char *bytes = malloc(m->bytes + 1);
            if (wr_catalog_string(&c, m, bytes, &err) != 0) abort();
            printf(" string ");
            for (uint64_t x = 0; x < m->bytes; x++) printf("%02x", (uint8_t)bytes[x]);
            printf(".");
            free(bytes);
        } else if (m->type == WR_META_F32 || m->type == WR_META_F64) {
            printf(" %d %a", m->type, m->value.f);
        } else {
            printf(" %d %lld", m->type, (long long)m->value.i);
        }
        printf("\n");
    }
    for (uint64_t i = 0; i < c.n_tensors; i++) {
        const struct wr_tensor *t = &c.tensors[i];
        printf("%s %s", t->name, t->quant->name);
        for (uint32_t d = 0; d < t->n_dims; d++) printf(" %llu", (unsigned long long)t->ne[d]);
        printf(" at %llu %llu\n", (unsigned long long)t->offset, (unsigned long long)t->bytes);
    }
    wr_catalog_close(&c);
    return 0;
}

int main(int argc, char **argv)
{
    wr_ledger_init(&ledger);
    if (argc == 3 && strcmp(argv[1], "write") == 0) return write_for_oracle(argv[2]);
    if (argc == 3 && strcmp(argv[1], "dump") == 0) return dump_for_oracle(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_example), cmocka_unit_test(test_typed_access), cmocka_unit_test(test_long_strings),
        cmocka_unit_test(test_arrays), cmocka_unit_test(test_long_arrays), cmocka_unit_test(test_writer), cmocka_unit_test(test_writer_misuse),
        cmocka_unit_test(test_writer_disk_full), cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
