/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a model file: refused, or a catalog whose every number holds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "format/catalog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void read_array(const struct wr_catalog *c, const struct wr_meta *m)
{
    struct wr_meta_reader r;
    weir_err err;
    require(m->offset <= c->files->bytes && m->bytes <= c->files->bytes - m->offset, "array inside the file");
    require(wr_meta_reader_open(&r, c, m, &err) == 0, "array opens");
    int code = 0;
    uint64_t n_read = 0;
    for (; n_read < m->count && code == 0; n_read++) {
        const char *text;
        size_t n;
        int64_t i;
        double f;
        if (m->element == WR_META_STRING) {
            code = wr_meta_reader_string(&r, &text, &n, &err);
            if (code == 0 && n > 0) require(text[0] + text[n - 1] < 1000, "readable");
        } else {
            code = n_read % 2 ? wr_meta_reader_number(&r, &i, NULL, &err) : wr_meta_reader_number(&r, NULL, &f, &err);
        }
    }
    require(code == 0 || code == WEIR_E_FORMAT, "array reads");
    wr_meta_reader_close(&r);
}

static void use(const struct wr_catalog *c)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < c->n_tensors; i++) {
        const struct wr_tensor *t = &c->tensors[i];
        require(wr_catalog_tensor(c, t->name) == t, "tensor is found");
        require(t->bytes > 0 && t->offset % 8 == 0 && t->offset <= c->files->bytes && t->bytes <= c->files->bytes - t->offset, "tensor inside the file");
        sum += t->bytes;
    }
    require(sum == c->weight_bytes && sum <= c->files->bytes, "tensors do not overlap");
    for (uint64_t i = 0; i < c->n_metas; i++) {
        const struct wr_meta *m = &c->metas[i];
        uint64_t u;
        double f;
        bool flag;
        const char *text;
        weir_err err;
        require(wr_catalog_meta(c, m->key) == m, "key is found");
        require(wr_catalog_u64(c, m->key, 100, &u, &err) != 1 || u <= 100, "whole number in range");
        wr_catalog_f64(c, m->key, &f, &err);
        require(wr_catalog_bool(c, m->key, &flag, &err) != 0, "bool or an error");
        if (wr_catalog_str(c, m->key, &text, &err) == 1) require(strlen(text) == m->bytes, "string length");
        if (m->type == WR_META_ARRAY) read_array(c, m);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    require(ftruncate(fd, 0) == 0 && (size == 0 || pwrite(fd, data, size, 0) == (ssize_t)size), "the file is written");
    struct wr_ledger ledger;
    struct wr_catalog c;
    weir_err err;
    wr_ledger_init(&ledger);
    if (wr_catalog_open(&c, path, WEIR_DIRECT_OFF, &ledger, NULL, &err) == 0) {
        use(&c);
        wr_catalog_close(&c);
    } else {
        require((err.code == WEIR_E_FORMAT || err.code == WEIR_E_UNSUPPORTED) && err.text[0] != '\0', "a clean refusal");
    }
    require(wr_ledger_used(&ledger, WR_ACCOUNT_META) == 0, "nothing is leaked");
    require(wr_ledger_peak(&ledger, WR_ACCOUNT_META) < (512u << 10) + 16 * size, "memory follows the file's size");
    return 0;
}
