/* SPDX-License-Identifier: Apache-2.0 */
#include "format/index.h"

#include <stdio.h>
#include <string.h>

_Static_assert(offsetof(struct wr_tensor, name) == 0 && offsetof(struct wr_meta, key) == 0, "tables find the name as the first member");

const uint8_t wr_meta_width[WR_N_META_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
const char *const wr_meta_type_name[WR_N_META_TYPES] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

/* ---- table ---- */

struct wr_catalog_slot {
    uint32_t tag, item; /* item + 1; 0: free */
};

/* Half full at most, honest names probe a few dozen slots at worst; a file that makes names collide on purpose is refused here instead of
 * costing quadratic time. */
#define PROBE_MAX 1024

/* FNV-1a, then mixed so that the low bits depend on every byte. */
static uint32_t hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = name; *c != '\0'; c++) h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static const char *name_of(const void *items, size_t stride, uint32_t i)
{
    const char *name;
    memcpy(&name, (const uint8_t *)items + (size_t)i * stride, sizeof name);
    return name;
}

enum insert { INSERTED, DUPLICATE, CROWDED };

static enum insert insert(struct wr_catalog_table *table, const void *items, size_t stride, uint32_t i)
{
    const char *name = name_of(items, stride, i);
    uint32_t tag = hash(name), at = tag & table->mask;
    for (uint32_t n = 0; n < PROBE_MAX; n++, at = (at + 1) & table->mask) {
        struct wr_catalog_slot *slot = &table->slots[at];
        if (slot->item == 0) {
            *slot = (struct wr_catalog_slot){tag, i + 1};
            return INSERTED;
        }
        if (slot->tag == tag && strcmp(name_of(items, stride, slot->item - 1), name) == 0) return DUPLICATE;
    }
    return CROWDED;
}

static int hash_names(struct wr_catalog *catalog, struct wr_catalog_table *table, const char *kind, const void *items, size_t stride, uint64_t n, weir_err *err)
{
    uint32_t capacity = 16;
    while (capacity < 2 * n) capacity *= 2;
    table->slots = wr_mem_array(catalog->ledger, WR_ACCOUNT_META, capacity, sizeof *table->slots, err);
    if (table->slots == NULL) return err->code;
    table->mask = capacity - 1;
    for (uint32_t i = 0; i < n; i++) {
        enum insert result = insert(table, items, stride, i);
        if (result == INSERTED) continue;
        uint32_t file = items == catalog->tensors ? catalog->tensors[i].file : 0;
        return wr_catalog_fail(catalog->files[file].path, err, WEIR_E_FORMAT, kind, name_of(items, stride, i),
            result == DUPLICATE ? "the name is there twice" WR_DAMAGED : "too many names with one hash" WR_CONVERT);
    }
    return 0;
}

int wr_catalog_hash_metas(struct wr_catalog *c, weir_err *err)
{
    struct wr_catalog_index *index = c->private_index;
    return hash_names(c, &index->metas, "key", c->metas, sizeof *c->metas, c->n_metas, err);
}

int wr_catalog_hash_tensors(struct wr_catalog *c, weir_err *err)
{
    struct wr_catalog_index *index = c->private_index;
    return hash_names(c, &index->tensors, "tensor", c->tensors, sizeof *c->tensors, c->n_tensors, err);
}

bool wr_catalog_table_find(const struct wr_catalog_table *table, const void *items, size_t stride, const char *name, uint32_t *i)
{
    uint32_t tag = hash(name), at = tag & table->mask;
    for (uint32_t n = 0; n < PROBE_MAX; n++, at = (at + 1) & table->mask) {
        const struct wr_catalog_slot *slot = &table->slots[at];
        if (slot->item == 0) return false;
        if (slot->tag == tag && strcmp(name_of(items, stride, slot->item - 1), name) == 0) {
            *i = slot->item - 1;
            return true;
        }
    }
    return false;
}

/* ---- pool ---- */

/* Names are a few dozen bytes: chunks hold many. What is larger than CHUNK_SMALL has a chunk of its own, so that the end of a shared chunk
 * wastes less than a sixteenth. */
#define CHUNK_BYTES (32u << 10)
#define CHUNK_SMALL (2u << 10)

struct wr_catalog_chunk {
    struct wr_catalog_chunk *next;
    size_t used, bytes;
    char data[];
};

static struct wr_catalog_chunk *chunk_open(struct wr_catalog_index *index, size_t bytes, weir_err *err)
{
    struct wr_catalog_chunk *chunk = wr_mem_alloc(index->ledger, WR_ACCOUNT_META, sizeof *chunk + bytes, err);
    if (chunk != NULL) chunk->bytes = bytes;
    return chunk;
}

char *wr_catalog_pool_take(struct wr_catalog_index *index, size_t bytes, weir_err *err)
{
    struct wr_catalog_chunk *chunk = index->chunks; /* the one that small pieces come from, if there is any */
    if (bytes > CHUNK_SMALL) {
        struct wr_catalog_chunk *own = chunk_open(index, bytes, err);
        if (own == NULL) return NULL;
        own->used = bytes;
        if (chunk == NULL) {
            index->chunks = own;
        } else { /* behind the head, which may still have room */
            own->next = chunk->next;
            chunk->next = own;
        }
        return own->data;
    }
    if (chunk == NULL || chunk->bytes - chunk->used < bytes) {
        struct wr_catalog_chunk *shared = chunk_open(index, CHUNK_BYTES, err);
        if (shared == NULL) return NULL;
        shared->next = chunk;
        index->chunks = chunk = shared;
    }
    char *taken = chunk->data + chunk->used;
    chunk->used += bytes;
    return taken;
}

void wr_catalog_pool_join(struct wr_catalog_index *to, struct wr_catalog_index *from)
{
    struct wr_catalog_chunk **end = &to->chunks;
    while (*end != NULL) end = &(*end)->next;
    *end = from->chunks;
    from->chunks = NULL;
}

struct wr_catalog_index *wr_catalog_index_new(struct wr_ledger *ledger, weir_err *err)
{
    struct wr_catalog_index *index = wr_mem_alloc(ledger, WR_ACCOUNT_META, sizeof *index, err);
    if (index != NULL) index->ledger = ledger;
    return index;
}

void wr_catalog_index_free(struct wr_catalog_index *index)
{
    if (index == NULL) return;
    while (index->chunks != NULL) {
        struct wr_catalog_chunk *next = index->chunks->next;
        wr_mem_free(index->chunks);
        index->chunks = next;
    }
    wr_mem_free(index->tensors.slots);
    wr_mem_free(index->metas.slots);
    wr_mem_free(index);
}

/* ---- messages ---- */

#define PATH_SHOWN 52 /* bytes of the path's end: less than wr_file_label has, a name and a hint stand beside it */
#define NAME_SHOWN 48 /* bytes of the name's beginning */

int wr_catalog_failv(const char *path, weir_err *err, int code, const char *kind, const char *name, const char *format, va_list args)
{
    if (err == NULL) return code;
    char text[sizeof err->text], shown[NAME_SHOWN + 1];
    vsnprintf(text, sizeof text, format, args);
    const char *file = wr_path_end(path, PATH_SHOWN), *cut = file == path ? "" : "...";
    if (kind == NULL) return wr_err(err, code, "%s%s: %s", cut, file, text);
    if (name == NULL) return wr_err(err, code, "%s%s: %s: %s", cut, file, kind, text);
    wr_text_line(shown, sizeof shown, name);
    return wr_err(err, code, "%s%s: %s '%s'%s: %s", cut, file, kind, shown, strlen(name) > NAME_SHOWN ? "..." : "", text);
}

int wr_catalog_key_error(const struct wr_catalog *catalog, weir_err *err, int code, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wr_catalog_failv(catalog->files->path, err, code, "key", key, format, args);
    va_end(args);
    return code;
}

int wr_catalog_fail(const char *path, weir_err *err, int code, const char *kind, const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wr_catalog_failv(path, err, code, kind, name, format, args);
    va_end(args);
    return code;
}
