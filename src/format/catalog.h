/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: what the file or the files of a model hold, whatever the container. Tensors with name, type, shape and place; metadata by key.
 * Made after full validation: every count, length, offset and product was checked against the file's size before
 * anything was allocated by it, so that users of the catalog need not check again.
 */
#ifndef WR_FORMAT_CATALOG_H
#define WR_FORMAT_CATALOG_H

#include "base/mem.h"
#include "io/io.h"
#include "quant/quant.h"

#define WR_MAX_FILES 256 /* parts of a split model; two descriptors each, and 1024 is what a process may usually have */

struct wr_tensor {
    const char *name;
    const struct wr_quant *quant;
    uint32_t n_dims, file;     /* file: index of files */
    uint64_t ne[4];            /* ne[0] contiguous; missing dimensions are 1 */
    uint64_t n_rows;           /* ne[1] * ne[2] * ne[3] */
    uint64_t row_bytes, bytes; /* bytes = row_bytes * n_rows */
    uint64_t offset;           /* from the start of its file; a multiple of 8 at least */
};

enum wr_meta_type {
    WR_META_U8,
    WR_META_I8,
    WR_META_U16,
    WR_META_I16,
    WR_META_U32,
    WR_META_I32,
    WR_META_F32,
    WR_META_BOOL,
    WR_META_STRING,
    WR_META_ARRAY,
    WR_META_U64,
    WR_META_I64,
    WR_META_F64,
    WR_N_META_TYPES
};
extern const char *const wr_meta_type_name[WR_N_META_TYPES]; /* "u8", ... */
struct wr_meta {
    const char *key;                 /* NUL-terminated; bytes as in the file */
    enum wr_meta_type type, element; /* element: of an array */
    union {
        uint64_t u;
        int64_t i;
        double f;
    } value;                /* integers and bools widened; f32 widened */
    uint64_t offset, bytes; /* strings and arrays: where their bytes are in files[0] */
    uint64_t count;         /* elements of an array */
    const char *string;     /* strings up to 64 KiB are kept (NUL-terminated, may hold NULs); longer ones: NULL, read with wr_catalog_string */
};

struct wr_catalog {
    struct wr_file *files; /* [n_files], in the order of a split; the keys are those of the first */
    uint32_t n_files;
    uint32_t version;
    uint64_t bytes;            /* of all files */
    struct wr_tensor *tensors; /* in the order of the files and of their headers */
    uint64_t n_tensors;
    struct wr_meta *metas;
    uint64_t n_metas;
    uint64_t weight_bytes; /* sum of tensors' bytes */
    struct wr_ledger *ledger;
    void *private_index;
};

/* Opens and validates. `path` is a file, any part of a split model (PREFIX-00001-of-00003.gguf; the other parts lie beside it), or a folder that holds
 * one of these and no other. Memory is charged to WR_ACCOUNT_META. Messages name file, key or tensor, value and next step. WEIR_E_FORMAT: malformed
 * or truncated; WEIR_E_UNSUPPORTED: well-formed, but with tensor types, a purpose or a size that weir does not read. */
int wr_catalog_open(struct wr_catalog *, const char *path, enum weir_direct, struct wr_ledger *, const struct wr_log *, weir_err *);
void wr_catalog_close(struct wr_catalog *);

const struct wr_tensor *wr_catalog_tensor(const struct wr_catalog *, const char *name); /* NULL if absent; O(1) */
const struct wr_meta *wr_catalog_meta(const struct wr_catalog *, const char *key);

/* Typed access: 1 found, 0 absent (*out untouched), negative WEIR_E_FORMAT when the value's type does not fit (an integer of any width
 * that fits the range is fine). %s in key formats is expanded by the caller. */
int wr_catalog_u64(const struct wr_catalog *, const char *key, uint64_t max, uint64_t *out, weir_err *);
int wr_catalog_f64(const struct wr_catalog *, const char *key, double *out, weir_err *); /* f32, f64 or integer; must be finite */
int wr_catalog_bool(const struct wr_catalog *, const char *key, bool *out, weir_err *);
int wr_catalog_str(const struct wr_catalog *, const char *key, const char **out, weir_err *); /* kept strings without NULs only */
/* The meta->bytes bytes of any string value, kept or not, into dst. */
int wr_catalog_string(const struct wr_catalog *, const struct wr_meta *, char *dst, weir_err *);

/* Streams the elements of an array through a small buffer. */
struct wr_meta_reader {
    const struct wr_catalog *catalog;
    const struct wr_meta *meta;
    uint64_t index, offset;
    uint8_t *buffer; /* 64 KiB, charged to META while open */
    uint32_t begin, end;
};
int wr_meta_reader_open(struct wr_meta_reader *, const struct wr_catalog *, const struct wr_meta *, weir_err *);
void wr_meta_reader_close(struct wr_meta_reader *);
/* Next string of a string array: *bytes is valid until the next call. 0 for each of the meta->count elements, WEIR_E_FORMAT past them.
 * Strings longer than 32 KiB are WEIR_E_FORMAT. */
int wr_meta_reader_string(struct wr_meta_reader *, const char **bytes, size_t *n, weir_err *);
/* Next number of a number array, widened; floats through *f, integers and bools through *i (ask for one, the other NULL; integers may be
 * asked as *f). Same ends as above. */
int wr_meta_reader_number(struct wr_meta_reader *, int64_t *i, double *f, weir_err *);

/* Writing, for synth and tests: a GGUF v3 file, straight to a temporary file beside `path`. Keys first, then tensors; a mistake or a failed
 * write is remembered and reported by the next call that returns a code. "general.alignment" (u32) sets the padding, otherwise 32. */
struct wr_gguf_writer;
int wr_gguf_writer_open(struct wr_gguf_writer **, const char *path, struct wr_ledger *, weir_err *);
void wr_gguf_writer_u32(struct wr_gguf_writer *, const char *key, uint32_t);
void wr_gguf_writer_f32(struct wr_gguf_writer *, const char *key, float);
void wr_gguf_writer_bool(struct wr_gguf_writer *, const char *key, bool);
void wr_gguf_writer_str(struct wr_gguf_writer *, const char *key, const char *value);
void wr_gguf_writer_strs(struct wr_gguf_writer *, const char *key, uint64_t n, const char *(*get)(void *user, uint64_t i, size_t *bytes), void *user);
void wr_gguf_writer_i32s(struct wr_gguf_writer *, const char *key, uint64_t n, const int32_t *);
void wr_gguf_writer_tensor(struct wr_gguf_writer *, const char *name, const struct wr_quant *, uint32_t n_dims, const uint64_t *ne);
/* Writes header and padding; then the data of each tensor in the order of the calls above: */
int wr_gguf_writer_header(struct wr_gguf_writer *, weir_err *);
int wr_gguf_writer_data(struct wr_gguf_writer *, const void *, size_t bytes, weir_err *); /* any split; padding between tensors is written by itself */
/* fsync and rename onto `path`; on failure, or when never finished, no file is left. Frees. */
int wr_gguf_writer_finish(struct wr_gguf_writer *, weir_err *);
void wr_gguf_writer_abort(struct wr_gguf_writer *);
const char *wr_gguf_writer_temporary(const struct wr_gguf_writer *); /* the file being written until then */

#endif
