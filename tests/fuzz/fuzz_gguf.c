/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a model file: refused, or a catalog whose every number holds; from there to a plan and a tokenizer, or a clean refusal. Where "GGUF"
 * comes a second time in the bytes, they are a split model of two parts.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <weir/weir.h>
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
    require(m->offset <= c->files[0].bytes && m->bytes <= c->files[0].bytes - m->offset, "array inside the file");
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
        require(t->file < c->n_files, "tensor in a file of the model");
        uint64_t end = c->files[t->file].bytes;
        require(t->bytes > 0 && t->offset % 8 == 0 && t->offset <= end && t->bytes <= end - t->offset, "tensor inside the file");
        sum += t->bytes;
    }
    require(sum == c->weight_bytes && sum <= c->bytes, "tensors do not overlap");
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

static void require_refusal(int code, const weir_err *err)
{
    require(code == WEIR_E_FORMAT || code == WEIR_E_UNSUPPORTED || code == WEIR_E_BUDGET, "a refusal of the file");
    require(code == err->code && err->text[0] != '\0' && strchr(err->text, '\n') == NULL, "one line that says why");
}

/* The hyper-parameters, the graph and its plan; the vocabulary, and a few words through it. */
static void use_model(const char *path)
{
    static const char text[] = "It's 3 words\xff, <b> 12";
    weir_options options;
    weir_plan *plan = NULL;
    weir_engine *engine = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    weir_err err;
    weir_options_init(&options);
    options.memory_bytes = options.process_bytes + (1 << 26);
    options.n_threads = 1;
    options.direct = WEIR_DIRECT_OFF;
    int code = weir_plan_open(&plan, path, &options, &err);
    if (code == 0)
        require(weir_plan_get(plan)->min_budget <= options.memory_bytes, "a plan inside its budget");
    else
        require_refusal(code, &err);
    weir_plan_close(plan);

    code = weir_engine_open_text(&engine, path, &options, &err);
    if (code != 0) {
        require_refusal(code, &err);
        return;
    }
    code = weir_tokenize(engine, text, sizeof text - 1, true, true, &ids, &n_ids, &err);
    require(code == 0, "any bytes are tokenized");
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes;
        size_t n;
        require(weir_token_bytes(engine, i ? ids[i - 1] : -1, ids[i], true, &bytes, &n, &err) == 0, "an id of the vocabulary");
    }
    weir_free(ids);
    weir_engine_close(engine);
}

static char folder[] = "/tmp/fuzz-gguf-XXXXXX", paths[3][64];

static void remove_files(void)
{
    for (int i = 0; i < 3; i++) unlink(paths[i]);
    rmdir(folder);
}

static void save(int fd, const uint8_t *data, size_t size)
{
    require(ftruncate(fd, 0) == 0 && (size == 0 || pwrite(fd, data, size, 0) == (ssize_t)size), "the file is written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd[3];
    if (fd[0] == 0) {
        require(mkdtemp(folder) != NULL, "a folder");
        for (int i = 0; i < 3; i++) {
            snprintf(paths[i], sizeof paths[i], i == 0 ? "%s/one.gguf" : "%s/f-%05d-of-00002.gguf", folder, i);
            fd[i] = open(paths[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        }
        atexit(remove_files);
    }
    const uint8_t *second = size > 4 ? memmem(data + 4, size - 4, "GGUF", 4) : NULL;
    const char *path = paths[second != NULL];
    if (second != NULL) {
        save(fd[1], data, (size_t)(second - data));
        save(fd[2], second, (size_t)(data + size - second));
    } else {
        save(fd[0], data, size);
    }
    struct wr_ledger ledger;
    struct wr_catalog c;
    weir_err err;
    wr_ledger_init(&ledger);
    int code = wr_catalog_open(&c, path, WEIR_DIRECT_OFF, &ledger, NULL, &err);
    if (code == 0) {
        use(&c);
        wr_catalog_close(&c);
        use_model(path);
    } else {
        require_refusal(code, &err);
    }
    require(wr_ledger_used(&ledger, WR_ACCOUNT_META) == 0, "nothing is leaked");
    require(wr_ledger_peak(&ledger, WR_ACCOUNT_META) < (512u << 10) + 16 * size, "memory follows the file's size");
    return 0;
}
