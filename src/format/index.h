/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of src/format share: the pool that names and strings live in, the hash tables over names, the form of this layer's messages,
 * and the steps of wr_catalog_open. Private to src/format.
 */
#ifndef WR_FORMAT_INDEX_H
#define WR_FORMAT_INDEX_H

#include "base/part_name.h"
#include "format/catalog.h"

#define WR_DAMAGED "; the file is damaged, download it again"
#define WR_CONVERT "; convert the model again"

/* Open addressing, linear probing, at most half full. Keeps 32 bits of the hash beside the index: a name is read only where they agree. */
struct wr_catalog_table {
    struct wr_catalog_slot *slots;
    uint32_t mask;
};
struct wr_catalog_chunk;
struct wr_catalog_index {
    struct wr_ledger *ledger;
    struct wr_catalog_table tensors, metas;
    struct wr_catalog_chunk *chunks;
};

struct wr_catalog_index *wr_catalog_index_new(struct wr_ledger *, weir_err *);
void wr_catalog_index_free(struct wr_catalog_index *);
/* Hashes the names of all keys, of all tensors; a name that is there twice is an error. */
int wr_catalog_hash_metas(struct wr_catalog *, weir_err *);
int wr_catalog_hash_tensors(struct wr_catalog *, weir_err *);
/* `items` is an array of structs of `stride` bytes whose first member is the name. */
bool wr_catalog_table_find(const struct wr_catalog_table *, const void *items, size_t stride, const char *name, uint32_t *i);

/* Room for `bytes` that lives as long as the index; no alignment. NULL on failure. */
char *wr_catalog_pool_take(struct wr_catalog_index *, size_t bytes, weir_err *);
/* `to` takes over what lies in the pool of `from`. */
void wr_catalog_pool_join(struct wr_catalog_index *to, struct wr_catalog_index *from);

/* "PATH: KIND 'NAME': text" with path and name cut so that the text has room. `name` NULL: "PATH: KIND: text"; `kind` NULL: "PATH: text".
 * Returns `code`. */
int wr_catalog_fail(const char *path, weir_err *, int code, const char *kind, const char *name, const char *format, ...) __attribute__((format(printf, 6, 7)));
int wr_catalog_failv(const char *path, weir_err *, int code, const char *kind, const char *name, const char *format, va_list);

/* About a key of the first file. */
int wr_catalog_key_error(const struct wr_catalog *, weir_err *, int code, const char *key, const char *format, ...) __attribute__((format(printf, 5, 6)));

extern const uint8_t wr_meta_width[WR_N_META_TYPES]; /* bytes of a number; 0: string, array */

/* gguf.c: reads the header of catalog->files[0], whose private_index is there, into keys and tensors; the tensors' names are not hashed yet.
 * `window` is for WR_GGUF_WINDOW bytes of work space. Refuses a header longer than *headers_left, and takes its length off. `err` is not NULL. */
#define WR_GGUF_WINDOW (64u << 10)
#define WR_GGUF_HEADERS_MAX ((uint64_t)256 << 20) /* of all files: 33 million empty strings take half a second */
#define WR_CATALOG_TENSORS_MAX (1u << 18)
int wr_gguf_read(struct wr_catalog *, uint8_t *window, uint64_t *headers_left, weir_err *err);

/* foreign.c: the error that says what a file is that does not begin like a GGUF file, as far as its first bytes tell. */
int wr_catalog_foreign(const struct wr_file *, weir_err *);

/* place.c: the file of a model that MODEL names: itself, or the one model in a folder. */
#define WR_PATH_BYTES sizeof((struct wr_file *)NULL)->path
int wr_model_locate(char *out, const char *model, weir_err *); /* out: WR_PATH_BYTES */

#endif
