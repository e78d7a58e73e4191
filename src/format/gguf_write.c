/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a GGUF v3 file through one buffer, in one sequential pass; the two counts of the header are filled in at the end.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/outfile.h"
#include "format/catalog.h"

#define BUFFER_BYTES (1u << 20)
#define ALIGNMENT_DEFAULT 32
#define PATH_BYTES 4096
#define DATA_MAX ((uint64_t)1 << 62) /* two such numbers and a padding do not wrap */
#define COUNTS_OFFSET 8              /* of n_tensors, then n_metas */

enum stage { KEYS, TENSORS, DATA };

struct wr_gguf_writer {
    struct wr_ledger *ledger;
    struct wr_outfile file;
    enum stage stage;
    weir_err failed; /* the first failure; code 0: none */
    uint8_t *buffer;
    size_t used;
    uint64_t at; /* bytes written, buffer included */
    uint64_t n_metas, n_tensors, alignment;
    uint64_t *bytes; /* [n_tensors] of each tensor */
    uint64_t n_bytes_capacity;
    uint64_t data_offset;  /* of the next tensor in the data section */
    uint64_t current, end; /* while DATA: the tensor being written, where it ends in the file */
    char path[PATH_BYTES];
};

/* The caller's mistake; only the first is kept. */
static void misuse(struct wr_gguf_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void misuse(struct wr_gguf_writer *w, const char *format, ...)
{
    char text[sizeof w->failed.text];
    if (w->failed.code != 0) return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    wr_err(&w->failed, WEIR_E_INPUT, "%s: %s", wr_file_label(w->path), text);
}

/* ---- bytes ---- */

static void flush(struct wr_gguf_writer *w)
{
    if (w->failed.code == 0) (void)wr_outfile_write(&w->file, w->at - w->used, w->buffer, w->used, &w->failed);
    w->used = 0;
}

static void put(struct wr_gguf_writer *w, const void *bytes, size_t n)
{
    const uint8_t *from = bytes;
    while (n > 0 && w->failed.code == 0) {
        size_t part = BUFFER_BYTES - w->used < n ? BUFFER_BYTES - w->used : n;
        memcpy(w->buffer + w->used, from, part);
        w->used += part;
        w->at += part;
        from += part;
        n -= part;
        if (w->used == BUFFER_BYTES) flush(w);
    }
}

static void put_u32(struct wr_gguf_writer *w, uint32_t value) { put(w, &value, 4); }
static void put_u64(struct wr_gguf_writer *w, uint64_t value) { put(w, &value, 8); }

static void put_string(struct wr_gguf_writer *w, const char *bytes, size_t n)
{
    put_u64(w, n);
    put(w, bytes, n);
}

static void pad(struct wr_gguf_writer *w)
{
    static const uint8_t zeros[64];
    uint64_t n = wr_round_up(w->at, w->alignment) - w->at;
    while (n > 0 && w->failed.code == 0) {
        size_t part = n < sizeof zeros ? (size_t)n : sizeof zeros;
        put(w, zeros, part);
        n -= part;
    }
}

/* ---- open and close ---- */

static void release(struct wr_gguf_writer *w)
{
    wr_outfile_discard(&w->file);
    wr_mem_free(w->buffer);
    wr_mem_free(w->bytes);
    wr_mem_free(w);
}

int wr_gguf_writer_open(struct wr_gguf_writer **out, const char *path, struct wr_ledger *ledger, weir_err *err)
{
    weir_err own;
    if (err == NULL) err = &own;
    if (strlen(path) >= PATH_BYTES)
        return wr_err(err, WEIR_E_OPEN, "the path has %zu bytes, at most %d are possible; choose a shorter one", strlen(path), PATH_BYTES - 1);
    struct wr_gguf_writer *w = wr_mem_alloc(ledger, WR_ACCOUNT_META, sizeof *w, err);
    if (w == NULL) return err->code;
    w->ledger = ledger;
    w->alignment = ALIGNMENT_DEFAULT;
    memcpy(w->path, path, strlen(path) + 1);
    w->buffer = wr_mem_alloc(ledger, WR_ACCOUNT_META, BUFFER_BYTES, err);
    int code = w->buffer != NULL ? wr_outfile_open(&w->file, w->path, ledger, WR_ACCOUNT_META, err) : err->code;
    if (code != 0) {
        release(w);
        return code;
    }
    put(w, "GGUF\3\0\0\0", COUNTS_OFFSET);
    put_u64(w, 0);
    put_u64(w, 0);
    *out = w;
    return 0;
}

void wr_gguf_writer_abort(struct wr_gguf_writer *w)
{
    if (w != NULL) release(w);
}

/* ---- keys ---- */

static void put_key(struct wr_gguf_writer *w, const char *key, enum wr_meta_type type)
{
    if (w->stage != KEYS) misuse(w, "key '%s' comes after a tensor; write keys first", key);
    if (key[0] == '\0') misuse(w, "an empty key; name it");
    w->n_metas++;
    put_string(w, key, strlen(key));
    put_u32(w, type);
}

void wr_gguf_writer_u32(struct wr_gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, WR_META_U32);
    put_u32(w, value);
    if (strcmp(key, "general.alignment") != 0) return;
    if (value < 8 || (value & (value - 1)) != 0)
        misuse(w, "general.alignment %" PRIu32 " is not a power of two from 8 on; choose another", value);
    else
        w->alignment = value;
}

void wr_gguf_writer_f32(struct wr_gguf_writer *w, const char *key, float value)
{
    put_key(w, key, WR_META_F32);
    put(w, &value, 4);
}

void wr_gguf_writer_bool(struct wr_gguf_writer *w, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(w, key, WR_META_BOOL);
    put(w, &byte, 1);
}

void wr_gguf_writer_str(struct wr_gguf_writer *w, const char *key, const char *value)
{
    put_key(w, key, WR_META_STRING);
    put_string(w, value, strlen(value));
}

void wr_gguf_writer_strs(struct wr_gguf_writer *w, const char *key, uint64_t n, const char *(*get)(void *user, uint64_t i, size_t *bytes), void *user)
{
    put_key(w, key, WR_META_ARRAY);
    put_u32(w, WR_META_STRING);
    put_u64(w, n);
    for (uint64_t i = 0; i < n && w->failed.code == 0; i++) {
        size_t bytes;
        const char *text = get(user, i, &bytes);
        put_string(w, text, bytes);
    }
}

void wr_gguf_writer_i32s(struct wr_gguf_writer *w, const char *key, uint64_t n, const int32_t *values)
{
    put_key(w, key, WR_META_ARRAY);
    put_u32(w, WR_META_I32);
    put_u64(w, n);
    put(w, values, n * sizeof *values);
}

/* ---- tensors ---- */

static void remember(struct wr_gguf_writer *w, uint64_t bytes)
{
    if (w->n_tensors == w->n_bytes_capacity) {
        uint64_t capacity = w->n_bytes_capacity == 0 ? 64 : 2 * w->n_bytes_capacity;
        uint64_t *grown = w->bytes == NULL ? wr_mem_array(w->ledger, WR_ACCOUNT_META, capacity, sizeof *grown, &w->failed)
                                           : wr_mem_resize(w->bytes, capacity * sizeof *grown, &w->failed);
        if (grown == NULL) return;
        w->bytes = grown;
        w->n_bytes_capacity = capacity;
    }
    w->bytes[w->n_tensors++] = bytes;
}

void wr_gguf_writer_tensor(struct wr_gguf_writer *w, const char *name, const struct wr_quant *quant, uint32_t n_dims, const uint64_t *ne)
{
    uint64_t bytes = 0;
    bool fits = n_dims >= 1 && n_dims <= 4 && name[0] != '\0' && wr_quant_row_bytes(quant, ne[0], &bytes);
    for (uint32_t i = 0; fits && i < n_dims; i++) fits = ne[i] > 0 && (i == 0 || wr_mul_u64(bytes, ne[i], &bytes));
    if (!fits || w->data_offset > DATA_MAX || bytes > DATA_MAX) misuse(w, "tensor '%s' has an impossible shape for %s; correct it", name, quant->name);
    if (w->stage == DATA) misuse(w, "tensor '%s' comes after the header; name it earlier", name);
    if (w->failed.code != 0) return;
    w->stage = TENSORS;
    remember(w, bytes);
    put_string(w, name, strlen(name));
    put_u32(w, n_dims);
    put(w, ne, n_dims * sizeof *ne);
    put_u32(w, quant->id);
    put_u64(w, w->data_offset);
    w->data_offset = wr_round_up(w->data_offset + bytes, w->alignment);
}

static int result(const struct wr_gguf_writer *w, weir_err *err)
{
    if (w->failed.code != 0 && err != NULL) *err = w->failed;
    return w->failed.code;
}

int wr_gguf_writer_header(struct wr_gguf_writer *w, weir_err *err)
{
    if (w->stage == DATA) misuse(w, "the header was already written; write it once");
    if (w->n_tensors > 0) pad(w);
    w->stage = DATA;
    if (w->failed.code == 0) (void)wr_outfile_reserve(&w->file, w->at + w->data_offset, &w->failed);
    if (w->failed.code == 0 && w->n_tensors > 0) w->end = w->at + w->bytes[0];
    return result(w, err);
}

int wr_gguf_writer_data(struct wr_gguf_writer *w, const void *data, size_t n, weir_err *err)
{
    const uint8_t *from = data;
    if (w->stage != DATA) misuse(w, "data comes before the header; write the header first");
    while (n > 0 && w->failed.code == 0) {
        if (w->current == w->n_tensors) {
            misuse(w, "%zu bytes more than the tensors hold; correct the shapes", n);
            break;
        }
        uint64_t room = w->end - w->at;
        size_t part = n < room ? n : (size_t)room;
        put(w, from, part);
        from += part;
        n -= part;
        if (part < room || w->failed.code != 0) continue;
        pad(w);
        if (++w->current < w->n_tensors) w->end = w->at + w->bytes[w->current];
    }
    return result(w, err);
}

int wr_gguf_writer_finish(struct wr_gguf_writer *w, weir_err *err)
{
    if (w->stage != DATA || w->current < w->n_tensors)
        misuse(w, "%" PRIu64 " of %" PRIu64 " tensors are complete; write all their data", w->stage == DATA ? w->current : 0, w->n_tensors);
    flush(w);
    const uint64_t counts[2] = {w->n_tensors, w->n_metas};
    if (w->failed.code == 0) (void)wr_outfile_write(&w->file, COUNTS_OFFSET, counts, sizeof counts, &w->failed);
    if (w->failed.code == 0) (void)wr_outfile_commit(&w->file, &w->failed);
    int code = result(w, err);
    release(w);
    return code;
}

const char *wr_gguf_writer_temporary(const struct wr_gguf_writer *w) { return w->file.part; }
