/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and validates the header of one GGUF file (versions 2 and 3, little-endian).
 *
 * The header passes once, in order, through one small buffer; kept are the tensors, the keys, and strings of up to 64 KiB.
 * Nothing in the file is believed: a count is compared with the bytes that are left before it is used, arrays of items grow
 * with what was really parsed, no function recurses, and time is linear in the header (tensors are sorted once). The limits
 * below bound memory and time for any file; real headers are far inside them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/sort.h"
#include "format/index.h"

#define STRING_KEPT (64u << 10)
#define NAME_MAX_BYTES 65535u
#define N_METAS_MAX (1u << 16)
#define HEADER_MIN_BYTES 24 /* magic, version, two counts */
#define META_MIN_BYTES 13   /* length of an (empty) key, type, one byte */
#define TENSOR_MIN_BYTES 24 /* length of an (empty) name, number of dimensions, type, offset */
#define ALIGNMENT_MIN 8     /* so that every element of every format is naturally aligned in the file */
#define ALIGNMENT_DEFAULT 32

#define INCOMPLETE "; the file is incomplete or damaged, download it again"

struct parser {
    struct wr_catalog *catalog; /* of this file alone */
    struct wr_catalog_index *index;
    weir_err *err;
    uint8_t *buffer; /* WR_GGUF_WINDOW bytes; [at, at + end - begin) of the file lie at buffer + begin */
    uint32_t begin, end;
    uint64_t at, size, header_max;
    const char *kind, *name; /* what is being read, for messages: "key" 'name'; name NULL while it is not known */
    char counted[64];        /* then "key 3 of 20" */
};

static int fail(struct parser *p, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct parser *p, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wr_catalog_failv(p->catalog->files->path, p->err, code, p->name == NULL ? p->counted : p->kind, p->name, format, args);
    va_end(args);
    return code;
}

static void subject(struct parser *p, const char *kind, uint64_t i, uint64_t n)
{
    p->kind = kind;
    p->name = NULL;
    snprintf(p->counted, sizeof p->counted, "%s %" PRIu64 " of %" PRIu64, kind, i + 1, n);
}

/* ---- bytes ---- */

static uint64_t left(const struct parser *p) { return p->size - p->at; }

static int ended(struct parser *p, uint64_t wanted)
{
    return fail(p, WEIR_E_FORMAT, "needs %" PRIu64 " bytes at %" PRIu64 ", the file has %" PRIu64 INCOMPLETE, wanted, p->at, p->size);
}

static int take(struct parser *p, void *dst, size_t n)
{
    if (n > left(p)) return ended(p, n);
    uint8_t *out = dst;
    while (n > 0) {
        if (p->begin == p->end) {
            if (p->at > p->header_max)
                return fail(p, WEIR_E_UNSUPPORTED, "the model has more than %" PRIu64 " bytes of headers" WR_CONVERT, WR_GGUF_HEADERS_MAX);
            uint32_t n_window = left(p) < WR_GGUF_WINDOW ? (uint32_t)left(p) : WR_GGUF_WINDOW;
            int code = wr_file_read(p->catalog->files, p->at, p->buffer, n_window, p->err);
            if (code != 0) return code;
            p->begin = 0;
            p->end = n_window;
        }
        uint32_t part = p->end - p->begin < n ? p->end - p->begin : (uint32_t)n;
        memcpy(out, p->buffer + p->begin, part);
        out += part;
        n -= part;
        p->begin += part;
        p->at += part;
    }
    return 0;
}

static int skip(struct parser *p, uint64_t n)
{
    if (n > left(p)) return ended(p, n);
    p->at += n;
    if (n < p->end - p->begin)
        p->begin += (uint32_t)n;
    else
        p->begin = p->end = 0;
    return 0;
}

static int take_u32(struct parser *p, uint32_t *out) { return take(p, out, 4); }
static int take_u64(struct parser *p, uint64_t *out) { return take(p, out, 8); }

/* n bytes into the pool, NUL-terminated. */
static int keep(struct parser *p, uint64_t n, const char **out)
{
    if (n > left(p)) return ended(p, n);
    char *text = wr_catalog_pool_take(p->index, n + 1, p->err);
    if (text == NULL) return p->err->code;
    int code = take(p, text, n);
    if (code != 0) return code;
    text[n] = '\0';
    *out = text;
    return 0;
}

static int take_name(struct parser *p, const char **out)
{
    uint64_t n;
    const char *name = NULL;
    int code = take_u64(p, &n);
    if (code != 0) return code;
    if (n == 0 || n > NAME_MAX_BYTES) return fail(p, WEIR_E_FORMAT, "a name of %" PRIu64 " bytes, allowed is 1 to %u" WR_DAMAGED, n, NAME_MAX_BYTES);
    code = keep(p, n, &name);
    if (code != 0) return code;
    if (strlen(name) != n) return fail(p, WEIR_E_FORMAT, "a NUL byte in the name that begins '%.40s'" WR_DAMAGED, name);
    *out = p->name = name;
    return 0;
}

/* ---- items ---- */

/* Room for item i of n; grows with what was parsed, not with what the file claims. */
static int grow(struct parser *p, void **items, size_t stride, uint64_t i, uint64_t n)
{
    if (i != 0 && (i < 64 || (i & (i - 1)) != 0)) return 0;
    uint64_t capacity = i == 0 ? 64 : 2 * i;
    if (capacity > n) capacity = n;
    void *grown =
        *items == NULL ? wr_mem_array(p->catalog->ledger, WR_ACCOUNT_META, capacity, stride, p->err) : wr_mem_resize(*items, capacity * stride, p->err);
    if (grown == NULL) return p->err->code;
    *items = grown;
    return 0;
}

/* ---- metadata ---- */

static int take_number(struct parser *p, struct wr_meta *meta)
{
    uint64_t u = 0;
    float f;
    int code = take(p, &u, wr_meta_width[meta->type]);
    if (code != 0) return code;
    switch (meta->type) {
    case WR_META_I8:
        meta->value.i = (int8_t)u;
        break;
    case WR_META_I16:
        meta->value.i = (int16_t)u;
        break;
    case WR_META_I32:
        meta->value.i = (int32_t)u;
        break;
    case WR_META_F32:
        memcpy(&f, &u, 4);
        meta->value.f = (double)f;
        break;
    case WR_META_BOOL:
        if (u > 1) return fail(p, WEIR_E_FORMAT, "the bool has value %" PRIu64 WR_DAMAGED, u);
        meta->value.u = u;
        break;
    default:
        meta->value.u = u; /* u8 .. u64; i64 and f64 share the 64 bits */
    }
    return 0;
}

static int take_string(struct parser *p, struct wr_meta *meta)
{
    int code = take_u64(p, &meta->bytes);
    if (code != 0) return code;
    meta->offset = p->at;
    return meta->bytes <= STRING_KEPT ? keep(p, meta->bytes, &meta->string) : skip(p, meta->bytes);
}

static int take_array(struct parser *p, struct wr_meta *meta)
{
    uint32_t element;
    int code = take_u32(p, &element);
    if (code == 0) code = take_u64(p, &meta->count);
    if (code != 0) return code;
    if (element >= WR_N_META_TYPES) return fail(p, WEIR_E_FORMAT, "element type %" PRIu32 " does not exist" WR_DAMAGED, element);
    meta->element = (enum wr_meta_type)element;
    meta->offset = p->at;
    if (meta->element == WR_META_ARRAY)
        return fail(p, WEIR_E_UNSUPPORTED, "an array of %" PRIu64 " arrays: nested arrays are not read" WR_CONVERT, meta->count);

    uint64_t least = meta->element == WR_META_STRING ? 8 : wr_meta_width[meta->element], bytes;
    if (!wr_mul_u64(meta->count, least, &bytes) || bytes > left(p))
        return fail(p, WEIR_E_FORMAT, "an array of %" PRIu64 " elements does not fit the %" PRIu64 " bytes left" INCOMPLETE, meta->count, left(p));
    if (meta->element != WR_META_STRING) {
        meta->bytes = bytes;
        return skip(p, bytes);
    }
    for (uint64_t i = 0; i < meta->count; i++) {
        uint64_t n;
        code = take_u64(p, &n);
        if (code == 0) code = skip(p, n);
        if (code != 0) return code;
    }
    meta->bytes = p->at - meta->offset;
    return 0;
}

static int take_metas(struct parser *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        subject(p, "key", i, n);
        int code = grow(p, (void **)&p->catalog->metas, sizeof *p->catalog->metas, i, n);
        if (code != 0) return code;
        struct wr_meta *meta = &p->catalog->metas[i];
        uint32_t type;
        code = take_name(p, &meta->key);
        if (code == 0) code = take_u32(p, &type);
        if (code != 0) return code;
        if (type >= WR_N_META_TYPES) return fail(p, WEIR_E_FORMAT, "value type %" PRIu32 " does not exist" WR_DAMAGED, type);
        meta->type = (enum wr_meta_type)type;
        if (meta->type == WR_META_STRING)
            code = take_string(p, meta);
        else if (meta->type == WR_META_ARRAY)
            code = take_array(p, meta);
        else
            code = take_number(p, meta);
        if (code != 0) return code;
        p->catalog->n_metas = i + 1;
    }
    return wr_catalog_hash_metas(p->catalog, p->err);
}

static int read_alignment(struct parser *p, uint64_t *alignment)
{
    const struct wr_meta *meta = wr_catalog_meta(p->catalog, "general.alignment");
    if (meta == NULL) return 0;
    p->kind = "key";
    p->name = meta->key;
    if (meta->type != WR_META_U32) return fail(p, WEIR_E_FORMAT, "is of type %s, needed is u32" WR_CONVERT, wr_meta_type_name[meta->type]);
    *alignment = meta->value.u;
    if (*alignment < ALIGNMENT_MIN || (*alignment & (*alignment - 1)) != 0)
        return fail(p, WEIR_E_FORMAT, "is %" PRIu64 ", needed is a power of two from %d on" WR_CONVERT, *alignment, ALIGNMENT_MIN);
    return 0;
}

/* ---- tensors ---- */

static int refuse_type(struct parser *p, uint32_t type)
{
    return fail(p, WEIR_E_UNSUPPORTED, "type %" PRIu32 " (%s) is not supported; use a file of Q4_0 to Q8_0, Q2_K to Q6_K, TQ2_0, F16, BF16 or F32%s", type,
        wr_quant_type_name(type), type > wr_quant_type_known() && strcmp(wr_quant_type_name(type), "unknown") == 0 ? ", or a newer weir" : "");
}

static int shape_error(struct parser *p, const struct wr_tensor *t, const char *what)
{
    return fail(p, WEIR_E_FORMAT, "%s of type %s, %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 WR_DAMAGED, what, t->quant->name, t->ne[0], t->ne[1],
        t->ne[2], t->ne[3]);
}

static int take_tensor(struct parser *p, struct wr_tensor *t)
{
    uint32_t type;
    int code = take_name(p, &t->name);
    if (code == 0) code = take_u32(p, &t->n_dims);
    if (code != 0) return code;
    if (t->n_dims > 4) return fail(p, WEIR_E_FORMAT, "%" PRIu32 " dimensions, at most 4 exist" WR_DAMAGED, t->n_dims);
    for (uint32_t i = 0; i < 4; i++) t->ne[i] = 1;
    code = take(p, t->ne, t->n_dims * sizeof t->ne[0]);
    if (code == 0) code = take_u32(p, &type);
    if (code == 0) code = take_u64(p, &t->offset); /* of the data section, until place_tensors */
    if (code != 0) return code;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->ne[i] == 0 || t->ne[i] > INT64_MAX) return fail(p, WEIR_E_FORMAT, "dimension %" PRIu32 " is %" PRId64 WR_DAMAGED, i, (int64_t)t->ne[i]);
    }
    t->quant = wr_quant_find(type);
    if (t->quant == NULL) return refuse_type(p, type);
    if (t->ne[0] % t->quant->block_elems != 0) return shape_error(p, t, "rows are not whole blocks:");
    if (!wr_quant_row_bytes(t->quant, t->ne[0], &t->row_bytes) || !wr_mul_u64(t->ne[1], t->ne[2], &t->n_rows) || !wr_mul_u64(t->n_rows, t->ne[3], &t->n_rows) ||
        !wr_mul_u64(t->row_bytes, t->n_rows, &t->bytes))
        return shape_error(p, t, "impossibly large:");
    return 0;
}

static int take_tensors(struct parser *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        subject(p, "tensor", i, n);
        int code = grow(p, (void **)&p->catalog->tensors, sizeof *p->catalog->tensors, i, n);
        if (code == 0) code = take_tensor(p, &p->catalog->tensors[i]);
        if (code != 0) return code;
        p->catalog->n_tensors = i + 1;
    }
    return 0;
}

static int check_overlap(struct parser *p)
{
    uint32_t n = (uint32_t)p->catalog->n_tensors;
    const struct wr_tensor *tensors = p->catalog->tensors;
    int code = 0;
    uint32_t *order = wr_mem_array(p->catalog->ledger, WR_ACCOUNT_META, n, sizeof *order, p->err);
    uint64_t *offset = wr_mem_array(p->catalog->ledger, WR_ACCOUNT_META, n, sizeof *offset, p->err);
    if (order == NULL || offset == NULL) {
        code = p->err->code;
        goto done;
    }
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
        offset[i] = tensors[i].offset;
    }
    wr_sort_by_key(order, n, offset);
    for (uint32_t i = 1; i < n && code == 0; i++) {
        const struct wr_tensor *a = &tensors[order[i - 1]], *b = &tensors[order[i]];
        if (a->offset + a->bytes <= b->offset) continue;
        p->name = b->name;
        char other[41];
        wr_text_line(other, sizeof other, a->name);
        code = fail(p, WEIR_E_FORMAT, "begins at byte %" PRIu64 ", inside tensor '%s'" WR_DAMAGED, b->offset, other);
    }
done:
    wr_mem_free(order);
    wr_mem_free(offset);
    return code;
}

/* Offsets become those of the file; every tensor is aligned, inside it, and alone there. */
static int place_tensors(struct parser *p, uint64_t alignment)
{
    uint64_t start = wr_round_up(p->at, alignment);
    p->kind = "tensor";
    for (uint64_t i = 0; i < p->catalog->n_tensors; i++) {
        struct wr_tensor *t = &p->catalog->tensors[i];
        uint64_t end;
        p->name = t->name;
        if (t->offset % alignment != 0) return fail(p, WEIR_E_FORMAT, "offset %" PRIu64 " is not a multiple of %" PRIu64 WR_DAMAGED, t->offset, alignment);
        if (!wr_add_u64(t->offset, start, &t->offset) || !wr_add_u64(t->offset, t->bytes, &end))
            return fail(p, WEIR_E_FORMAT, "offset and size wrap around 2^64; the file has %" PRIu64 " bytes" WR_DAMAGED, p->size);
        if (end > p->size)
            return fail(p, WEIR_E_FORMAT,
                "ends at byte %" PRIu64 ", the file has %" PRIu64 ": it is incomplete; go on with the download (curl -C -) or repeat it", end, p->size);
        p->catalog->weight_bytes += t->bytes; /* cannot wrap: if it would, tensors overlap, which is refused below */
    }
    return p->catalog->n_tensors > 0 ? check_overlap(p) : 0;
}

/* ---- the file ---- */

static int take_counts(struct parser *p, uint64_t *n_tensors, uint64_t *n_metas)
{
    uint8_t magic[4];
    uint32_t version;
    snprintf(p->counted, sizeof p->counted, "header");
    if (p->size == 0) return fail(p, WEIR_E_FORMAT, "the file is empty; download it again");
    int code = wr_file_read(p->catalog->files, 0, magic, p->size < 4 ? p->size : 4, p->err);
    if (code != 0) return code;
    if (memcmp(magic, "GGUF", p->size < 4 ? p->size : 4) != 0) return wr_catalog_foreign(p->catalog->files, p->err);
    if (p->size < HEADER_MIN_BYTES)
        return fail(p, WEIR_E_FORMAT, "%" PRIu64 " bytes, a GGUF header has at least %d; download the file again", p->size, HEADER_MIN_BYTES);
    code = skip(p, 4);
    if (code == 0) code = take_u32(p, &version);
    if (code == 0) code = take_u64(p, n_tensors);
    if (code == 0) code = take_u64(p, n_metas);
    if (code != 0) return code;

    uint32_t swapped = __builtin_bswap32(version);
    p->catalog->version = version;
    if (swapped >= 1 && swapped < 16)
        return fail(p, WEIR_E_UNSUPPORTED, "a byte-swapped (big-endian) file of version %" PRIu32 "; get the little-endian file of the model", swapped);
    if (version == 0 || version >= 1u << 16) return fail(p, WEIR_E_FORMAT, "version %" PRIu32 " does not exist" WR_DAMAGED, version);
    if (version != 2 && version != 3)
        return fail(p, WEIR_E_UNSUPPORTED, "version %" PRIu32 ", supported are 2 and 3; %s", version,
            version == 1 ? "the file is from 2023, get a newer one of the model" : "it needs a newer weir");

    if (*n_metas > left(p) / META_MIN_BYTES || *n_tensors > (left(p) - *n_metas * META_MIN_BYTES) / TENSOR_MIN_BYTES)
        return fail(
            p, WEIR_E_FORMAT, "%" PRIu64 " keys and %" PRIu64 " tensors do not fit the %" PRIu64 " bytes left" INCOMPLETE, *n_metas, *n_tensors, left(p));
    if (*n_metas > N_METAS_MAX || *n_tensors > WR_CATALOG_TENSORS_MAX)
        return fail(p, WEIR_E_UNSUPPORTED, "%" PRIu64 " keys and %" PRIu64 " tensors, at most %u and %u are read" WR_CONVERT, *n_metas, *n_tensors, N_METAS_MAX,
            WR_CATALOG_TENSORS_MAX);
    return 0;
}

int wr_gguf_read(struct wr_catalog *catalog, uint8_t *window, uint64_t *headers_left, weir_err *err)
{
    struct parser p = {
        .catalog = catalog, .index = catalog->private_index, .err = err, .buffer = window, .size = catalog->files->bytes, .header_max = *headers_left};
    uint64_t n_tensors, n_metas, alignment = ALIGNMENT_DEFAULT;
    int code = take_counts(&p, &n_tensors, &n_metas);
    if (code == 0) code = take_metas(&p, n_metas);
    if (code == 0) code = read_alignment(&p, &alignment);
    if (code == 0) code = take_tensors(&p, n_tensors);
    if (code == 0) code = place_tensors(&p, alignment);
    *headers_left -= p.at < *headers_left ? p.at : *headers_left;
    return code;
}
