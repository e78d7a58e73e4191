/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups, typed access to metadata, and the reader that streams arrays. Everything was validated at open; what is checked here again is
 * only what a file that changes under us could break. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "format/index.h"

#define READER_BYTES (64u << 10)
#define ELEMENT_MAX (32u << 10) /* of a string array */

void wr_catalog_close(struct wr_catalog *catalog)
{
    wr_catalog_index_free(catalog->private_index);
    wr_mem_free(catalog->tensors);
    wr_mem_free(catalog->metas);
    for (uint32_t i = 0; i < catalog->n_files; i++) wr_file_close(&catalog->files[i]);
    wr_mem_free(catalog->files);
    memset(catalog, 0, sizeof *catalog);
}

const struct wr_tensor *wr_catalog_tensor(const struct wr_catalog *catalog, const char *name)
{
    const struct wr_catalog_index *index = catalog->private_index;
    uint32_t i;
    return wr_catalog_table_find(&index->tensors, catalog->tensors, sizeof *catalog->tensors, name, &i) ? &catalog->tensors[i] : NULL;
}

const struct wr_meta *wr_catalog_meta(const struct wr_catalog *catalog, const char *key)
{
    const struct wr_catalog_index *index = catalog->private_index;
    uint32_t i;
    return wr_catalog_table_find(&index->metas, catalog->metas, sizeof *catalog->metas, key, &i) ? &catalog->metas[i] : NULL;
}

/* ---- typed access ---- */

enum number_kind { NOT_A_NUMBER, UNSIGNED, SIGNED, FLOAT };
static enum number_kind kind_of(enum wr_meta_type type)
{
    switch (type) {
    case WR_META_U8:
    case WR_META_U16:
    case WR_META_U32:
    case WR_META_U64:
        return UNSIGNED;
    case WR_META_I8:
    case WR_META_I16:
    case WR_META_I32:
    case WR_META_I64:
        return SIGNED;
    case WR_META_F32:
    case WR_META_F64:
        return FLOAT;
    default:
        return NOT_A_NUMBER;
    }
}

static int type_error(const struct wr_catalog *catalog, const struct wr_meta *meta, const char *wanted, weir_err *err)
{
    return wr_catalog_key_error(catalog, err, WEIR_E_FORMAT, meta->key, "is of type %s, needed is %s" WR_CONVERT, wr_meta_type_name[meta->type], wanted);
}

int wr_catalog_u64(const struct wr_catalog *catalog, const char *key, uint64_t max, uint64_t *out, weir_err *err)
{
    const struct wr_meta *meta = wr_catalog_meta(catalog, key);
    if (meta == NULL) return 0;
    enum number_kind kind = kind_of(meta->type);
    if (kind != UNSIGNED && kind != SIGNED) return type_error(catalog, meta, "a whole number", err);
    if (kind == SIGNED && meta->value.i < 0)
        return wr_catalog_key_error(catalog, err, WEIR_E_FORMAT, key, "is %" PRId64 ", allowed is 0 to %" PRIu64 WR_CONVERT, meta->value.i, max);
    if (meta->value.u > max)
        return wr_catalog_key_error(catalog, err, WEIR_E_FORMAT, key, "is %" PRIu64 ", allowed is 0 to %" PRIu64 WR_CONVERT, meta->value.u, max);
    *out = meta->value.u;
    return 1;
}

int wr_catalog_f64(const struct wr_catalog *catalog, const char *key, double *out, weir_err *err)
{
    const struct wr_meta *meta = wr_catalog_meta(catalog, key);
    if (meta == NULL) return 0;
    double value;
    switch (kind_of(meta->type)) {
    case UNSIGNED:
        value = (double)meta->value.u;
        break;
    case SIGNED:
        value = (double)meta->value.i;
        break;
    case FLOAT:
        value = meta->value.f;
        break;
    default:
        return type_error(catalog, meta, "a number", err);
    }
    if (!isfinite(value)) return wr_catalog_key_error(catalog, err, WEIR_E_FORMAT, key, "is not finite (%g)" WR_CONVERT, value);
    *out = value;
    return 1;
}

int wr_catalog_bool(const struct wr_catalog *catalog, const char *key, bool *out, weir_err *err)
{
    const struct wr_meta *meta = wr_catalog_meta(catalog, key);
    if (meta == NULL) return 0;
    if (meta->type != WR_META_BOOL) return type_error(catalog, meta, "bool", err);
    *out = meta->value.u != 0;
    return 1;
}

int wr_catalog_str(const struct wr_catalog *catalog, const char *key, const char **out, weir_err *err)
{
    const struct wr_meta *meta = wr_catalog_meta(catalog, key);
    if (meta == NULL) return 0;
    if (meta->type != WR_META_STRING) return type_error(catalog, meta, "string", err);
    if (meta->string == NULL)
        return wr_catalog_key_error(catalog, err, WEIR_E_FORMAT, key, "is a string of %" PRIu64 " bytes, at most 65536 are read" WR_CONVERT, meta->bytes);
    if (memchr(meta->string, '\0', meta->bytes) != NULL) return wr_catalog_key_error(catalog, err, WEIR_E_FORMAT, key, "holds a NUL byte" WR_CONVERT);
    *out = meta->string;
    return 1;
}

int wr_catalog_string(const struct wr_catalog *catalog, const struct wr_meta *meta, char *dst, weir_err *err)
{
    if (meta->type != WR_META_STRING) return type_error(catalog, meta, "string", err);
    if (meta->string != NULL) {
        memcpy(dst, meta->string, meta->bytes);
        return 0;
    }
    return wr_file_read(catalog->files, meta->offset, dst, meta->bytes, err);
}

/* ---- arrays ---- */

int wr_meta_reader_open(struct wr_meta_reader *reader, const struct wr_catalog *catalog, const struct wr_meta *meta, weir_err *err)
{
    if (meta->type != WR_META_ARRAY) return type_error(catalog, meta, "array", err);
    weir_err own;
    weir_err *failed = err != NULL ? err : &own;
    uint8_t *buffer = wr_mem_alloc(catalog->ledger, WR_ACCOUNT_META, READER_BYTES, failed);
    if (buffer == NULL) return failed->code;
    *reader = (struct wr_meta_reader){.catalog = catalog, .meta = meta, .offset = meta->offset, .buffer = buffer};
    return 0;
}

void wr_meta_reader_close(struct wr_meta_reader *reader)
{
    wr_mem_free(reader->buffer);
    memset(reader, 0, sizeof *reader);
}

/* Makes the next n <= READER_BYTES bytes of the array lie at buffer + begin. */
static int need(struct wr_meta_reader *reader, uint32_t n, weir_err *err)
{
    uint32_t have = reader->end - reader->begin;
    if (have >= n) return 0;
    uint64_t left = reader->meta->offset + reader->meta->bytes - reader->offset;
    if (n - have > left)
        return wr_catalog_key_error(reader->catalog, err, WEIR_E_CHANGED, reader->meta->key, "the array changed while it was read; leave the file alone");
    memmove(reader->buffer, reader->buffer + reader->begin, have);
    reader->begin = 0;
    reader->end = have;
    uint32_t more = left < READER_BYTES - have ? (uint32_t)left : READER_BYTES - have;
    int code = wr_file_read(reader->catalog->files, reader->offset, reader->buffer + have, more, err);
    if (code != 0) return code;
    reader->offset += more;
    reader->end += more;
    return 0;
}

static int next(struct wr_meta_reader *reader, weir_err *err)
{
    if (reader->index < reader->meta->count) return 0;
    return wr_catalog_key_error(reader->catalog, err, WEIR_E_FORMAT, reader->meta->key, "has only %" PRIu64 " elements" WR_CONVERT, reader->meta->count);
}

static int element_error(const struct wr_meta_reader *reader, const char *wanted, weir_err *err)
{
    return wr_catalog_key_error(reader->catalog, err, WEIR_E_FORMAT, reader->meta->key, "is an array of %s, needed is one of %s" WR_CONVERT,
        wr_meta_type_name[reader->meta->element], wanted);
}

int wr_meta_reader_string(struct wr_meta_reader *reader, const char **bytes, size_t *n, weir_err *err)
{
    if (reader->meta->element != WR_META_STRING) return element_error(reader, "strings", err);
    int code = next(reader, err);
    if (code == 0) code = need(reader, 8, err);
    if (code != 0) return code;
    uint64_t length;
    memcpy(&length, reader->buffer + reader->begin, 8);
    if (length > ELEMENT_MAX)
        return wr_catalog_key_error(reader->catalog, err, WEIR_E_FORMAT, reader->meta->key,
            "element %" PRIu64 " has %" PRIu64 " bytes, at most %u are read" WR_CONVERT, reader->index, length, ELEMENT_MAX);
    code = need(reader, 8 + (uint32_t)length, err);
    if (code != 0) return code;
    *bytes = (const char *)reader->buffer + reader->begin + 8;
    *n = length;
    reader->begin += 8 + (uint32_t)length;
    reader->index++;
    return 0;
}

int wr_meta_reader_number(struct wr_meta_reader *reader, int64_t *i, double *f, weir_err *err)
{
    enum wr_meta_type type = reader->meta->element;
    enum number_kind kind = kind_of(type);
    if (type == WR_META_BOOL) kind = UNSIGNED;
    if (kind == NOT_A_NUMBER) return element_error(reader, "numbers", err);
    if (kind == FLOAT && f == NULL) return element_error(reader, "whole numbers", err);
    uint32_t width = wr_meta_width[type];
    int code = next(reader, err);
    if (code == 0) code = need(reader, width, err);
    if (code != 0) return code;
    uint64_t u = 0;
    memcpy(&u, reader->buffer + reader->begin, width);
    if (kind == FLOAT) {
        float narrow;
        memcpy(&narrow, &u, 4);
        memcpy(f, &u, 8);
        if (type == WR_META_F32) *f = (double)narrow;
    } else {
        if (type == WR_META_BOOL && u > 1)
            return wr_catalog_key_error(
                reader->catalog, err, WEIR_E_FORMAT, reader->meta->key, "element %" PRIu64 " is the bool %" PRIu64 WR_CONVERT, reader->index, u);
        if (kind == UNSIGNED && u > INT64_MAX && i != NULL)
            return wr_catalog_key_error(
                reader->catalog, err, WEIR_E_FORMAT, reader->meta->key, "element %" PRIu64 " is %" PRIu64 ", too large" WR_CONVERT, reader->index, u);
        int64_t s = (int64_t)(u << (64 - 8 * width)) >> (64 - 8 * width);
        if (i != NULL) *i = kind == SIGNED ? s : (int64_t)u;
        if (f != NULL) *f = kind == SIGNED ? (double)s : (double)u;
    }
    reader->begin += width;
    reader->index++;
    return 0;
}
