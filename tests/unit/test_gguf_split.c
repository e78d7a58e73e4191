/* SPDX-License-Identifier: Apache-2.0 */
/* C6: a split model in a folder: one catalog of all parts, names of parts, one thing going wrong at a time. The command's side is tests/e2e/test_split.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "format/index.h"
#include "gguf_build.h"

enum { N_PARTS = 3, N_EACH = 40, N_TENSORS = N_PARTS * N_EACH };

static char folder[] = "/tmp/weir-split-XXXXXX", path[N_PARTS][64];
static struct build content[N_PARTS];

static void build_key_u16(struct build *b, const char *key, uint16_t value)
{
    build_key(b, key, 2);
    build_raw(b, &value, 2);
}

/* Tensor t of part i is "i.t", 8 floats of the value 100 i + t; every part has an alignment of its own. */
static void build_part(struct build *b, uint16_t i)
{
    const uint32_t alignment = 32u << (2 * i);
    char name[16];
    build_head(b, 3, N_EACH, i == 0 ? 5 : 4);
    if (i == 0) build_key_str(b, "general.architecture", "llama");
    build_key_u32(b, "general.alignment", alignment);
    build_key_u16(b, "split.no", i);
    build_key_u16(b, "split.count", N_PARTS);
    build_key_u32(b, "split.tensors.count", N_TENSORS);
    for (uint32_t t = 0; t < N_EACH; t++) {
        snprintf(name, sizeof name, "%u.%u", i, t);
        build_tensor(b, name, 1, (uint64_t[]){8}, 0, (uint64_t)t * alignment);
    }
    build_align(b, alignment);
    for (uint32_t t = 0; t < N_EACH; t++) {
        for (int k = 0; k < 8; k++) build_raw(b, &(float){(float)(100 * i + t)}, 4);
        build_align(b, alignment);
    }
}

static void write_parts(void)
{
    for (int i = 0; i < N_PARTS; i++) {
        int fd = open(path[i], O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_true(fd >= 0 && write(fd, content[i].bytes, content[i].n) == (ssize_t)content[i].n);
        close(fd);
    }
}

static int n_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

static void check_whole(const struct wr_catalog *c)
{
    assert_int_equal(c->n_files, N_PARTS);
    assert_int_equal(c->n_tensors, N_TENSORS);
    assert_int_equal(c->weight_bytes, N_TENSORS * 32);
    assert_int_equal(c->bytes, content[0].n + content[1].n + content[2].n);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const struct wr_tensor *t = &c->tensors[i];
        float values[8];
        char name[16];
        snprintf(name, sizeof name, "%u.%u", i / N_EACH, i % N_EACH);
        assert_string_equal(t->name, name);
        assert_ptr_equal(wr_catalog_tensor(c, name), t);
        assert_int_equal(t->file, i / N_EACH);
        assert_int_equal(wr_file_read(&c->files[t->file], t->offset, values, sizeof values, NULL), 0);
        assert_true(values[0] == (float)(100 * t->file + i % N_EACH) && values[7] == values[0]);
    }
    assert_non_null(wr_catalog_meta(c, "general.architecture"));
}

static void test_c6_whole(void **state)
{
    (void)state;
    const char *const models[] = {path[0], path[1], path[2], folder};
    for (int i = 0; i < 4; i++) {
        struct wr_ledger ledger;
        struct wr_catalog c;
        weir_err err;
        wr_ledger_init(&ledger);
        if (wr_catalog_open(&c, models[i], WEIR_DIRECT_AUTO, &ledger, NULL, &err) != 0) fail_msg("%s", err.text);
        check_whole(&c);
        wr_catalog_close(&c);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    }
}

/* The Nth allocation, then the Nth read fails: an error, and nothing is left. */
static void test_c6_failures(void **state)
{
    (void)state;
    static const enum wr_fault_kind kinds[] = {WR_FAULT_ALLOC, WR_FAULT_READ};
    int before = n_descriptors();
    for (int k = 0; k < 2; k++) {
        uint64_t n = 1;
        for (int code = -1; code != 0; n++) {
            struct wr_ledger ledger;
            struct wr_catalog c;
            weir_err err;
            wr_ledger_init(&ledger);
            wr_fault_set(kinds[k], n, false);
            code = wr_catalog_open(&c, path[1], WEIR_DIRECT_OFF, &ledger, NULL, &err);
            wr_fault_set(kinds[k], 0, false);
            if (code == 0) {
                check_whole(&c);
                wr_catalog_close(&c);
            } else {
                assert_int_equal(code, kinds[k] == WR_FAULT_ALLOC ? WEIR_E_NOMEM : WEIR_E_READ);
                assert_int_equal(err.code, code);
            }
            assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
            assert_int_equal(n_descriptors(), before);
        }
        assert_true(n > N_PARTS + 2);
    }
}

/* A part that is written to after the open is told from the one that was opened. */
static void test_c6_changed_part(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_catalog c;
    weir_err err;
    wr_ledger_init(&ledger);
    assert_int_equal(wr_catalog_open(&c, folder, WEIR_DIRECT_OFF, &ledger, NULL, &err), 0);
    assert_int_equal(truncate(path[2], (off_t)content[2].n + 1), 0);
    for (uint32_t i = 0; i < N_PARTS; i++) assert_int_equal(wr_file_check(&c.files[i], &err), i == 2 ? WEIR_E_CHANGED : 0);
    assert_non_null(strstr(err.text, "-00003-of-00003.gguf"));
    wr_catalog_close(&c);
    write_parts();
}

static void test_c6_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool named;
        uint32_t no, count;
    } rows[] = {{"a-00001-of-00003.gguf", true, 0, 3}, {"-00003-of-00003.gguf", true, 2, 3}, {"/x/y-65535-of-65535.gguf", true, 65534, 65535},
        {"b-99999-of-99999.gguf", true, 99998, 99999}, {"a-00004-of-00003.gguf", false, 0, 1}, {"a-00000-of-00003.gguf", false, 0, 1},
        {"a-00000-of-00000.gguf", false, 0, 1}, {"a-0001-of-00003.gguf", false, 0, 1}, {"a-00001-of-00003.ggu", false, 0, 1},
        {"a-00001-of-00003.gguf.part", false, 0, 1}, {"00001-of-00003.gguf", false, 0, 1}, {"", false, 0, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char again[64];
        struct wr_part_name part = wr_part_name_of(rows[i].name);
        assert_true(part.named == rows[i].named && part.no == rows[i].no && part.count == rows[i].count);
        if (!part.named) continue;
        snprintf(again, sizeof again, "%s", rows[i].name);
        wr_part_name_set(again, &part, 0);
        assert_int_equal(wr_part_name_of(again).no, 0);
        wr_part_name_set(again, &part, part.no);
        assert_string_equal(again, rows[i].name);
    }
}

/* A folder of several models: the message shows as many names as fit, whatever their lengths. */
static void test_folder_names(void **state)
{
    (void)state;
    for (size_t first = 8; first <= 255; first += first < 30 || first > 60 ? 25 : 1) {
        for (size_t second = 8; second <= 255; second += second < 30 || second > 60 ? 25 : 1) {
            const size_t lengths[4] = {first, second, 255, 255};
            char at[64], file[4][512], found[WR_PATH_BYTES];
            weir_err err;
            snprintf(at, sizeof at, "%s/names", folder);
            assert_int_equal(mkdir(at, 0700), 0);
            for (int i = 0; i < 4; i++) {
                char stem[256];
                memset(stem, 'a' + i, sizeof stem);
                snprintf(file[i], sizeof file[i], "%s/%.*s.gguf", at, (int)lengths[i] - 5, stem);
                close(open(file[i], O_WRONLY | O_CREAT, 0600));
            }
            assert_int_equal(wr_model_locate(found, at, &err), WEIR_E_OPEN);
            size_t n = strlen(err.text);
            assert_string_equal(err.text + n - 5, ", ...");
            for (int i = 0; i < 4; i++) unlink(file[i]);
            rmdir(at);
        }
    }
}

/* What a header may be long, the headers of all parts may be together: many small sparse files cost no more time than one. */
static void test_headers_together(void **state)
{
    (void)state;
    enum { N_BYTES = 100 << 20 };
    char at[64], file[N_PARTS][128];
    snprintf(at, sizeof at, "%s/long", folder);
    assert_int_equal(mkdir(at, 0700), 0);
    for (uint16_t i = 0; i < N_PARTS; i++) {
        struct build b = {0}, end = {0};
        build_head(&b, 3, 0, 6);
        build_key_str(&b, "general.architecture", "llama");
        build_key_u16(&b, "split.no", i);
        build_key_u16(&b, "split.count", N_PARTS);
        build_key_u32(&b, "split.tensors.count", 0);
        build_key(&b, "hole", 8);
        build_u64(&b, N_BYTES);
        build_key_u32(&end, "behind it", 0);
        snprintf(file[i], sizeof file[i], "%s/m-%05d-of-%05d.gguf", at, i + 1, N_PARTS);
        int fd = open(file[i], O_WRONLY | O_CREAT, 0600);
        assert_true(fd >= 0 && pwrite(fd, b.bytes, b.n, 0) == (ssize_t)b.n && pwrite(fd, end.bytes, end.n, (off_t)b.n + N_BYTES) == (ssize_t)end.n);
        close(fd);
        build_free(&b);
        build_free(&end);
    }
    struct wr_ledger ledger;
    struct wr_catalog c;
    weir_err err;
    wr_ledger_init(&ledger);
    assert_int_equal(wr_catalog_open(&c, at, WEIR_DIRECT_OFF, &ledger, NULL, &err), WEIR_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "-00003-of-00003.gguf"));
    assert_non_null(strstr(err.text, "headers"));
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    for (int i = 0; i < N_PARTS; i++) unlink(file[i]);
    rmdir(at);
}

int main(void)
{
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < N_PARTS; i++) {
        snprintf(path[i], sizeof path[i], "%s/m-%05d-of-%05d.gguf", folder, i + 1, N_PARTS);
        build_part(&content[i], (uint16_t)i);
    }
    write_parts();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_c6_whole), cmocka_unit_test(test_c6_failures), cmocka_unit_test(test_c6_changed_part),
        cmocka_unit_test(test_c6_names), cmocka_unit_test(test_folder_names), cmocka_unit_test(test_headers_together)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < N_PARTS; i++) {
        unlink(path[i]);
        build_free(&content[i]);
    }
    rmdir(folder);
    return n_failed;
}
