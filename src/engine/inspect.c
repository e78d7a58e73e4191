/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/utf8.h"
#include "engine/engine.h"
#include "engine/tools.h"

#define SHOWN_ELEMENTS 64

/* Bytes of a file are not always UTF-8; JSON is. */
static json_t *text(struct wr_ledger *ledger, const char *bytes, size_t n)
{
    weir_err err;
    size_t length = wr_utf8_sanitize((const uint8_t *)bytes, n, NULL);
    char *clean = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, length + 1, &err);
    if (clean == NULL) return json_null();
    wr_utf8_sanitize((const uint8_t *)bytes, n, clean);
    json_t *json = json_stringn(clean, length);
    wr_mem_free(clean);
    return json;
}

static json_t *scalar(enum wr_meta_type type, uint64_t u, int64_t i, double f)
{
    if (type == WR_META_BOOL) return json_boolean(u);
    if (type == WR_META_F32 || type == WR_META_F64) return json_real(f);
    if (type == WR_META_I8 || type == WR_META_I16 || type == WR_META_I32 || type == WR_META_I64) return json_integer(i);
    return json_integer((json_int_t)u);
}

static json_t *array(const struct wr_catalog *c, const struct wr_meta *meta, weir_err *err)
{
    if (meta->count > SHOWN_ELEMENTS || meta->element == WR_META_ARRAY)
        return json_pack("{s:s,s:I}", "type", wr_meta_type_name[meta->element], "count", (json_int_t)meta->count);
    struct wr_meta_reader reader;
    json_t *list = json_array();
    int rc = wr_meta_reader_open(&reader, c, meta, err);
    for (uint64_t k = 0; rc == 0 && k < meta->count; k++) {
        const char *bytes;
        size_t n;
        int64_t i = 0;
        double f = 0;
        if (meta->element == WR_META_STRING) {
            rc = wr_meta_reader_string(&reader, &bytes, &n, err);
            if (rc == 0) json_array_append_new(list, text(c->ledger, bytes, n));
        } else {
            bool is_float = meta->element == WR_META_F32 || meta->element == WR_META_F64;
            rc = wr_meta_reader_number(&reader, is_float ? NULL : &i, is_float ? &f : NULL, err);
            if (rc == 0) json_array_append_new(list, scalar(meta->element, (uint64_t)i, i, f));
        }
    }
    wr_meta_reader_close(&reader);
    if (rc == 0) return list;
    json_decref(list);
    return NULL;
}

static json_t *metadata(const struct wr_catalog *c, weir_err *err)
{
    json_t *all = json_object();
    for (uint64_t i = 0; i < c->n_metas; i++) {
        const struct wr_meta *m = &c->metas[i];
        json_t *value;
        if (m->type == WR_META_STRING)
            value = m->string != NULL ? text(c->ledger, m->string, m->bytes) : json_pack("{s:s,s:I}", "type", "string", "bytes", (json_int_t)m->bytes);
        else if (m->type == WR_META_ARRAY)
            value = array(c, m, err);
        else
            value = scalar(m->type, m->value.u, m->value.i, m->value.f);
        json_t *key = text(c->ledger, m->key, strlen(m->key));
        if (value == NULL || json_object_set_new(all, json_string_value(key), value) != 0) {
            json_decref(key);
            json_decref(all);
            return NULL;
        }
        json_decref(key);
    }
    return all;
}

static bool all_zero(const uint8_t *bytes, uint64_t n) { return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0); }

/* Decodes every row of every tensor; a value that is not finite is damage. Matrices of nothing but zero bytes, which are what a
 * download leaves that takes the space first and does not finish, decode to finite values and are warned of. */
static int check_tensors(const struct wr_catalog *c, const weir_options *o, const struct wr_log *log, weir_err *err)
{
    const struct wr_kernels *k = wr_kernels_best(o->isa);
    uint64_t done = 0, longest = 0, longest_bytes = 0, n_zeros = 0;
    const char *first = "";
    for (uint64_t i = 0; i < c->n_tensors; i++) {
        if (c->tensors[i].ne[0] > longest) longest = c->tensors[i].ne[0];
        if (c->tensors[i].row_bytes > longest_bytes) longest_bytes = c->tensors[i].row_bytes;
    }
    float *row = wr_mem_array(c->ledger, WR_ACCOUNT_SCRATCH, longest, sizeof *row, err);
    uint8_t *raw = wr_mem_alloc(c->ledger, WR_ACCOUNT_SCRATCH, longest_bytes, err);
    int rc = row != NULL && raw != NULL ? 0 : WEIR_E_NOMEM;
    for (uint64_t i = 0; rc == 0 && i < c->n_tensors; i++) {
        const struct wr_tensor *t = &c->tensors[i];
        bool zeros = t->n_rows > 1;
        for (uint64_t r = 0; rc == 0 && r < t->n_rows; r++) {
            if (o->cancel != NULL && *o->cancel != 0) rc = wr_err(err, WEIR_E_CANCELLED, "interrupted");
            if (rc == 0) rc = wr_file_read(&c->files[t->file], t->offset + r * t->row_bytes, raw, t->row_bytes, err);
            if (rc < 0) break;
            zeros = zeros && all_zero(raw, t->row_bytes);
            t->quant->decode_f32(raw, row, t->ne[0]);
            if (!k->all_finite(row, t->ne[0]))
                rc = wr_err(err, WEIR_E_NONFINITE, "%s: tensor %s, row %llu holds a value that is not finite", wr_file_label(c->files[t->file].path), t->name,
                    (unsigned long long)r);
            done += t->row_bytes;
            if (o->progress != NULL && r % 4096 == 0) o->progress(o->progress_user, "check", done, c->weight_bytes, "bytes");
        }
        if (rc == 0 && zeros && n_zeros++ == 0) first = t->name;
    }
    if (rc == 0 && n_zeros > 0)
        wr_log(log, WEIR_LOG_WARN, "%" PRIu64 " of %" PRIu64 " tensors hold zeros alone, the first is %s: perhaps a download that did not finish", n_zeros,
            c->n_tensors, first);
    wr_mem_free(row);
    wr_mem_free(raw);
    return rc;
}

int wr_tool_inspect(const char *path, bool check, const weir_options *o, json_t **out, weir_err *err)
{
    weir_plan *plan;
    json_t *root = NULL, *tensors = NULL, *meta = NULL, *files = NULL;
    const char *arch = "";
    int rc = wr_plan_read_header(&plan, path, o, true, err);
    if (rc < 0) return rc;
    const struct wr_catalog *c = &plan->catalog;
    struct wr_ledger *ledger = &plan->ledger;
    if ((rc = wr_catalog_str(c, "general.architecture", &arch, err)) < 0) goto done;
    tensors = json_array();
    for (uint64_t i = 0; i < c->n_tensors; i++) {
        const struct wr_tensor *t = &c->tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer((json_int_t)t->ne[d]));
        json_array_append_new(tensors, json_pack("{s:o,s:s,s:o,s:i,s:I,s:I}", "name", text(ledger, t->name, strlen(t->name)), "type", t->quant->name, "shape",
                                           shape, "file", (int)t->file, "offset", (json_int_t)t->offset, "bytes", (json_int_t)t->bytes));
    }
    files = json_array();
    for (uint32_t i = 0; i < c->n_files; i++)
        json_array_append_new(
            files, json_pack("{s:o,s:I}", "path", text(ledger, c->files[i].path, strlen(c->files[i].path)), "bytes", (json_int_t)c->files[i].bytes));
    meta = metadata(c, err);
    rc = meta != NULL ? 0 : WEIR_E_FORMAT;
    if (rc == 0 && check) rc = check_tensors(c, o, &plan->log, err);
    if (rc < 0) goto done;
    root = json_pack("{s:o,s:I,s:O,s:I,s:I,s:O,s:O}", "arch", text(ledger, arch, strlen(arch)), "version", (json_int_t)c->version, "files", files, "file_bytes",
        (json_int_t)c->bytes, "weight_bytes", (json_int_t)c->weight_bytes, "tensors", tensors, "metadata", meta);
    if (root == NULL)
        rc = wr_err(err, WEIR_E_NOMEM, "no memory for the description of %s", path);
    else
        *out = root;
done:
    json_decref(files);
    json_decref(tensors);
    json_decref(meta);
    weir_plan_close(plan);
    return rc;
}

/* The weight format that holds most of the bytes, and the number of weights. */
static void describe_weights(const struct wr_catalog *c, wr_about *about)
{
    const struct wr_quant *quant[32] = {NULL};
    uint64_t bytes[32] = {0}, most = 0;
    for (uint64_t i = 0; i < c->n_tensors; i++) {
        const struct wr_tensor *t = &c->tensors[i];
        size_t k = 0;
        while (k < 31 && quant[k] != NULL && quant[k] != t->quant) k++;
        quant[k] = t->quant;
        bytes[k] += t->bytes;
        about->n_weights += t->ne[0] * t->n_rows;
        if (bytes[k] <= most) continue;
        most = bytes[k];
        snprintf(about->quantization, sizeof about->quantization, "%s", t->quant->name);
    }
}

int wr_tool_about(const char *path, wr_about *about, weir_err *err)
{
    const char *arch = "";
    weir_plan *plan;
    weir_options options;
    *about = (wr_about){0};
    weir_options_init(&options);
    options.direct = WEIR_DIRECT_OFF;
    int rc = wr_plan_read_header(&plan, path, &options, false, err);
    if (rc < 0) return rc;
    about->file_bytes = plan->catalog.bytes;
    describe_weights(&plan->catalog, about);
    rc = wr_catalog_str(&plan->catalog, "general.architecture", &arch, err);
    if (rc == 1) snprintf(about->arch, sizeof about->arch, "%s", arch);
    if (rc >= 0) rc = wr_plan_read_graph(plan, false, err);
    struct wr_vocab *vocab = NULL; /* asks for the tokenizer's kind, reads none of its tokens */
    if (rc == 0) rc = wr_vocab_open(&vocab, &plan->vocab, &plan->ledger, NULL, err);
    wr_vocab_close(vocab);
    weir_plan_close(plan);
    return rc;
}
