/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a model: finds its files, reads the header of each, and makes one catalog of them.
 *
 * The parts of a split model carry their numbers twice, in the name (from 1) and in the keys (from 0), and both have to agree: a part that was
 * renamed, swapped with another or taken from another model is found here. The first part holds the keys of the model; the others hold the
 * keys split.* and tensors.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include "format/index.h"

#define OTHER_DESCRIPTORS 16 /* streams, the ring of io_uring, what the command writes */
#define N_SPLIT 3
static const char *const split_key[N_SPLIT] = {"split.no", "split.count", "split.tensors.count"};

/* The keys of a part against its name. */
static int check_split(const struct wr_catalog *part, const struct wr_part_name *name, uint32_t no, weir_err *err)
{
    uint64_t value[N_SPLIT] = {no, name->count, 0};
    for (int i = 0; i < N_SPLIT; i++) {
        int found = wr_catalog_u64(part, split_key[i], UINT64_MAX, &value[i], err);
        if (found < 0) return found;
        if (found == 0 && name->count > 1)
            return wr_catalog_key_error(part, err, WEIR_E_FORMAT, split_key[i],
                "is missing, but the name says part %" PRIu32 " of %" PRIu32 "; download the file again, or rename it if it is a whole model", no + 1,
                name->count);
    }
    if (value[1] > 1 && !name->named)
        return wr_catalog_key_error(part, err, WEIR_E_FORMAT, split_key[1],
            "one of %" PRIu64 " parts, which must be named ...-%05" PRIu64 "-of-%05" PRIu64 ".gguf and lie together; give the file its name back", value[1],
            value[0] + 1, value[1]);
    if (value[1] != name->count && !(value[1] == 0 && name->count == 1)) /* 0 parts: not split */
        return wr_catalog_key_error(part, err, WEIR_E_FORMAT, split_key[1],
            "is %" PRIu64 ", but the name says part %" PRIu32 " of %" PRIu32 "; download the file again", value[1], no + 1, name->count);
    if (value[0] != no)
        return wr_catalog_key_error(part, err, WEIR_E_FORMAT, split_key[0],
            "is %" PRIu64 ", but %" PRIu32 " belongs in part %" PRIu32 " of %" PRIu32 ": the files were swapped or renamed; download this one again", value[0],
            no, no + 1, name->count);
    return 0;
}

/* A part that says which model it belongs to must say the same as the first. */
static int check_same_model(const struct wr_catalog *whole, const struct wr_catalog *part, weir_err *err)
{
    static const char *const keys[] = {"general.architecture", "general.name", "split.tensors.count"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const struct wr_meta *a = wr_catalog_meta(whole, keys[i]), *b = wr_catalog_meta(part, keys[i]);
        if (a == NULL || b == NULL) continue;
        bool same = a->type == b->type && a->value.u == b->value.u && a->bytes == b->bytes;
        if (same && a->string != NULL) same = memcmp(a->string, b->string, a->bytes) == 0;
        if (!same)
            return wr_catalog_key_error(
                part, err, WEIR_E_FORMAT, keys[i], "differs from that of the first part: the file belongs to another model; download this one again");
    }
    return 0;
}

/* What the model says it is. */
static int check_purpose(const struct wr_catalog *c, weir_err *err)
{
    const char *type = "model", *arch = NULL;
    int code = wr_catalog_str(c, "general.type", &type, err);
    if (code < 0) return code;
    if (strcmp(type, "model") != 0)
        return wr_catalog_key_error(c, err, WEIR_E_UNSUPPORTED, "general.type", "is '%.32s', not 'model'; give the file of the language model itself", type);
    code = wr_catalog_str(c, "general.architecture", &arch, err);
    if (code < 0) return code;
    if (code == 0 || arch[0] == '\0') return wr_catalog_key_error(c, err, WEIR_E_FORMAT, "general.architecture", "is missing or empty" WR_CONVERT);
    return 0;
}

/* Version 1 of the quantized formats had other layouts under the same ids; files without the key are of version 2 in practice. */
static int check_quantization(const struct wr_catalog *c, weir_err *err)
{
    const char *key = "general.quantization_version";
    uint64_t version = 2;
    int code = wr_catalog_u64(c, key, UINT64_MAX, &version, err);
    if (code < 0) return code;
    for (uint64_t i = 0; version != 2 && i < c->n_tensors; i++)
        if (!c->tensors[i].quant->is_float)
            return wr_catalog_key_error(c, err, WEIR_E_UNSUPPORTED, key, "is %" PRIu64 ", only 2 is supported" WR_CONVERT, version);
    return 0;
}

/* The tensors of the next part behind those of the parts before it. */
static int join(struct wr_catalog *whole, struct wr_catalog *part, weir_err *err)
{
    uint32_t file = (uint32_t)(part->files - whole->files);
    uint64_t n = whole->n_tensors + part->n_tensors;
    if (n > WR_CATALOG_TENSORS_MAX)
        return wr_catalog_fail(part->files->path, err, WEIR_E_UNSUPPORTED, NULL, NULL,
            "with this part the model has %" PRIu64 " tensors, at most %u are read" WR_CONVERT, n, WR_CATALOG_TENSORS_MAX);
    for (uint64_t i = 0; i < part->n_tensors; i++) part->tensors[i].file = file;
    if (whole->tensors == NULL) {
        whole->tensors = part->tensors;
        part->tensors = NULL;
    } else if (part->n_tensors > 0) {
        struct wr_tensor *tensors = wr_mem_resize(whole->tensors, n * sizeof *tensors, err);
        if (tensors == NULL) return err->code;
        whole->tensors = tensors;
        memcpy(tensors + whole->n_tensors, part->tensors, part->n_tensors * sizeof *tensors);
    }
    whole->n_tensors = n;
    whole->weight_bytes += part->weight_bytes;
    if (file > 0) {
        wr_catalog_pool_join(whole->private_index, part->private_index); /* the tensors' names */
        return 0;
    }
    whole->version = part->version;
    whole->metas = part->metas;
    whole->n_metas = part->n_metas;
    whole->private_index = part->private_index;
    part->metas = NULL;
    part->private_index = NULL;
    return 0;
}

static int read_file(struct wr_catalog *whole, uint32_t i, const struct wr_part_name *name, uint8_t *window, uint64_t *headers_left, weir_err *err)
{
    struct wr_catalog part = {.files = &whole->files[i], .ledger = whole->ledger}; /* n_files 0: the file stays whole's */
    part.private_index = wr_catalog_index_new(whole->ledger, err);
    int code = part.private_index != NULL ? wr_gguf_read(&part, window, headers_left, err) : err->code;
    if (code == 0) code = check_split(&part, name, i, err);
    if (code == 0) code = i == 0 ? check_purpose(&part, err) : check_same_model(whole, &part, err);
    if (code == 0) code = join(whole, &part, err);
    part.files = NULL;
    wr_catalog_close(&part);
    return code;
}

/* `first`: the first file, open. The lowest free descriptor was taken for it, so its number says how many there are already. */
static int check_descriptors(const struct wr_file *first, uint32_t n_files, weir_err *err)
{
    struct rlimit limit;
    uint64_t n = (uint64_t)first->fd_buffered + (uint64_t)n_files * (first->fd_direct >= 0 ? 2 : 1) + OTHER_DESCRIPTORS;
    if (n_files == 1 || getrlimit(RLIMIT_NOFILE, &limit) != 0 || n <= limit.rlim_cur) return 0;
    return wr_catalog_fail(first->path, err, WEIR_E_OPEN, NULL, NULL,
        "the model's %" PRIu32 " files need %" PRIu64 " descriptors, a process may have %" PRIu64 " here; raise the limit (ulimit -n)", n_files, n,
        (uint64_t)limit.rlim_cur);
}

/* All before the first is read, so that a missing one is known at once. */
static int open_files(struct wr_catalog *c, char *path, const struct wr_part_name *name, enum weir_direct direct, const struct wr_log *log, weir_err *err)
{
    if (name->count > WR_MAX_FILES)
        return wr_catalog_fail(
            path, err, WEIR_E_UNSUPPORTED, NULL, NULL, "one of %" PRIu32 " files, at most %d are read; merge them", name->count, WR_MAX_FILES);
    c->files = wr_mem_array(c->ledger, WR_ACCOUNT_META, name->count, sizeof *c->files, err);
    if (c->files == NULL) return err->code;
    for (uint32_t i = 0; i < name->count; i++) {
        if (name->named) wr_part_name_set(path, name, i);
        int code = wr_file_open(&c->files[i], path, direct, log, err);
        if (code != 0) {
            weir_err why = *err;
            if (name->count == 1) return code;
            return wr_err(err, code, "%s; it is part %" PRIu32 " of %" PRIu32 ", and the model needs all of them in one folder", why.text, i + 1, name->count);
        }
        c->n_files = i + 1;
        if (i == 0) code = check_descriptors(c->files, name->count, err);
        if (code != 0) return code;
        if (c->files[i].fd_direct < 0) log = NULL; /* once is enough */
        if (!wr_add_u64(c->bytes, c->files[i].bytes, &c->bytes))
            return wr_catalog_fail(path, err, WEIR_E_UNSUPPORTED, NULL, NULL, "the files of the model are larger than 2^64 bytes" WR_CONVERT);
    }
    return 0;
}

int wr_catalog_open(struct wr_catalog *out, const char *model, enum weir_direct direct, struct wr_ledger *ledger, const struct wr_log *log, weir_err *err)
{
    weir_err own;
    char path[WR_PATH_BYTES];
    struct wr_catalog c = {.ledger = ledger};
    uint8_t *window = NULL;
    uint64_t n_tensors, headers_left = WR_GGUF_HEADERS_MAX;
    if (err == NULL) err = &own;
    int code = wr_model_locate(path, model, err);
    if (code != 0) return code;
    struct wr_part_name name = wr_part_name_of(path);
    code = open_files(&c, path, &name, direct, log, err);
    if (code != 0) goto done;
    window = wr_mem_alloc(ledger, WR_ACCOUNT_META, WR_GGUF_WINDOW, err);
    if (window == NULL) code = err->code;
    for (uint32_t i = 0; code == 0 && i < c.n_files; i++) {
        code = read_file(&c, i, &name, window, &headers_left, err);
        /* Without direct I/O the page cache may hold weights that help. */
        if (c.files[i].fd_direct >= 0) wr_file_drop_cache(&c.files[i]);
    }
    if (code == 0) code = wr_catalog_hash_tensors(&c, err);
    if (code == 0) code = check_quantization(&c, err);
    if (code != 0) goto done;
    n_tensors = c.n_tensors;
    code = wr_catalog_u64(&c, split_key[2], UINT64_MAX, &n_tensors, err);
    if (code >= 0 && n_tensors != c.n_tensors)
        code = wr_catalog_key_error(
            &c, err, WEIR_E_FORMAT, split_key[2], "is %" PRIu64 ", but the files hold %" PRIu64 " tensors; download them again", n_tensors, c.n_tensors);
    if (code > 0) code = 0;
done:
    wr_mem_free(window);
    if (code == 0)
        *out = c;
    else
        wr_catalog_close(&c);
    return code;
}
