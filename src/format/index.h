/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader of a container fills and catalog.c looks up: the pool that names and strings live in, the hash tables over
 * names, and the form of this layer's messages. Private to src/format.
 */
#ifndef WR_FORMAT_INDEX_H
#define WR_FORMAT_INDEX_H

#include "format/catalog.h"

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

/* `items` is an array of structs of `stride` bytes whose first member is the name; item i of n < 2^31. */
int wr_catalog_table_open(struct wr_catalog_table *, struct wr_ledger *, uint64_t n_items, weir_err *);
enum wr_catalog_insert { WR_CATALOG_INSERTED, WR_CATALOG_DUPLICATE, WR_CATALOG_CROWDED };
enum wr_catalog_insert wr_catalog_table_insert(struct wr_catalog_table *, const void *items, size_t stride, uint32_t i);
bool wr_catalog_table_find(const struct wr_catalog_table *, const void *items, size_t stride, const char *name, uint32_t *i);

/* Room for `bytes` that lives as long as the index; no alignment. NULL on failure. */
char *wr_catalog_pool_take(struct wr_catalog_index *, size_t bytes, weir_err *);
void wr_catalog_index_free(struct wr_catalog_index *);

/* "FILE: KIND 'NAME': text" with file and name cut so that the text has room. `name` NULL: "FILE: KIND: text"; `kind` NULL: "FILE: text".
 * Returns `code`. */
int wr_catalog_fail(const struct wr_file *, weir_err *, int code, const char *kind, const char *name, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
int wr_catalog_failv(const struct wr_file *, weir_err *, int code, const char *kind, const char *name, const char *format, va_list);

extern const uint8_t wr_meta_width[WR_N_META_TYPES]; /* bytes of a number; 0: string, array */

#endif
