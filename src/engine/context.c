/* SPDX-License-Identifier: Apache-2.0 */
/* Saved contexts: what their header says of a model, weights compared as they are read, blocks between memory and file. memory/kvfile.h is the file. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/crc32c.h"
#include "engine/engine.h"

#define TILE WR_KVFILE_TILE
#define ROWS_GROUPS 16 /* groups whose embedding rows are compared */

_Static_assert(TILE == WR_TILE, "a group is a tile of attention");

/* ---- which model ----------------------------------------------------------------------- */

static uint32_t crc_f32(uint32_t crc, float x) { return wr_crc32c(crc, &x, sizeof x); }
static uint32_t crc_u32(uint32_t crc, uint32_t x) { return wr_crc32c(crc, &x, sizeof x); }

/* Every number of the graph that keys and values depend on, and that the header does not have anyway. */
static uint32_t graph_crc(const struct wr_model *m)
{
    const struct wr_hparams *hp = &m->hp;
    const uint32_t numbers[] = {hp->n_embd, hp->n_ff, hp->n_head, hp->n_rot, hp->window, hp->rope_interleaved};
    const float floats[] = {hp->eps, hp->attention_scale, hp->embedding_scale, hp->final_softcap, hp->rope_base, hp->rope_factor, hp->rope_base_local};
    uint32_t crc = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) crc = crc_u32(crc, numbers[i]);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) crc = crc_f32(crc, floats[i]);
    for (uint32_t il = 0; il < hp->n_layer; il++) crc = crc_u32(crc, m->layers[il].local);
    return crc;
}

static uint64_t block_bytes(const weir_plan *p)
{
    const struct wr_hparams *hp = &p->model.hp;
    return wr_round_up(wr_kv_position_bytes((enum wr_kv_type)p->options.kv, 1, hp->n_head_kv, hp->head_dim) * TILE, WR_IO_ALIGN);
}

static bool is_whole(const struct wr_use *use) { return use->use != WR_USE_ROWS; }

static struct wr_kvfile_about about_of(const weir_plan *p, uint32_t tokenizer_crc)
{
    const struct wr_hparams *hp = &p->model.hp;
    const char *slash = strrchr(p->path, '/');
    struct wr_kvfile_about a = {.numerics = WEIR_NUMERICS,
        .kv_type = (uint32_t)p->options.kv,
        .precise = p->options.precise,
        .n_layer = hp->n_layer,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .block_bytes = (uint32_t)block_bytes(p),
        .n_ctx_trained = hp->n_ctx_trained,
        .n_vocab = hp->n_vocab,
        .tokenizer = tokenizer_crc,
        .graph = graph_crc(&p->model)};
    for (uint32_t w = 0; w < p->model.n_uses; w++) a.n_weights += is_whole(&p->model.uses[w]);
    snprintf(a.arch, sizeof a.arch, "%s", p->model.arch->name);
    wr_text_line(a.model, sizeof a.model, slash != NULL ? slash + 1 : p->path);
    return a;
}

static struct wr_kvfile_weight *weights_of(weir_plan *p, uint32_t n, weir_err *err)
{
    struct wr_kvfile_weight *list = wr_mem_array(&p->ledger, WR_ACCOUNT_TEXT, n, sizeof *list, err);
    for (uint32_t w = 0, i = 0; list != NULL && w < p->model.n_uses; w++) {
        if (!is_whole(&p->model.uses[w])) continue;
        const struct wr_tensor *t = p->model.uses[w].tensor;
        list[i++].id = wr_crc32c(crc_u32(wr_crc32c(0, t->name, strlen(t->name) + 1), (uint32_t)t->quant->id), t->ne, sizeof t->ne);
    }
    return list;
}

/* Opens a file and refuses one that is not of this model; NULL tokenizer: that is not known yet. */
static int open_of_model(weir_plan *p, struct wr_kvfile *f, const char *path, bool writable, const uint32_t *tokenizer, weir_err *err)
{
    int rc = wr_kvfile_open(f, path, writable, p->options.direct, &p->ledger, &p->log, err);
    if (rc < 0) return rc;
    struct wr_kvfile_about mine = about_of(p, tokenizer != NULL ? *tokenizer : f->about.tokenizer);
    struct wr_kvfile_weight *weights = weights_of(p, mine.n_weights, err);
    rc = weights != NULL ? wr_kvfile_match(f, &mine, weights, err) : WEIR_E_NOMEM;
    wr_mem_free(weights);
    if (rc < 0) wr_kvfile_close(f);
    return rc;
}

int wr_context_plan(weir_plan *p, uint32_t *n_tokens, weir_err *err)
{
    struct wr_kvfile f;
    *n_tokens = 0;
    if (p->options.context[0] == '\0') return 0;
    int rc = open_of_model(p, &f, p->options.context, false, NULL, err);
    if (rc < 0) return rc;
    *n_tokens = (uint32_t)wr_kvfile_tokens(&f.saved);
    wr_kvfile_close(&f);
    return 0;
}

/* ---- opening --------------------------------------------------------------------------- */

static bool same_file(const char *a, const char *b)
{
    struct stat sa, sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

static int create(weir_engine *e, struct wr_kvfile *f, const char *path, weir_err *err)
{
    weir_plan *p = e->plan;
    struct wr_kvfile_about mine = about_of(p, e->tokenizer_crc);
    struct wr_kvfile_weight *weights = weights_of(p, mine.n_weights, err);
    int rc = weights != NULL ? wr_kvfile_create(f, path, &mine, weights, p->options.direct, &p->ledger, &p->log, err) : WEIR_E_NOMEM;
    wr_mem_free(weights);
    return rc;
}

int wr_context_open(weir_engine *e, weir_err *err)
{
    struct wr_context *c = &e->context;
    const weir_options *o = &e->plan->options;
    bool from = o->context[0] != '\0', to = o->save_context[0] != '\0';
    int rc = 0;
    c->in_place = from && to && same_file(o->context, o->save_context);
    if (from && !c->in_place) {
        rc = open_of_model(e->plan, &c->from, o->context, false, &e->tokenizer_crc, err);
        c->has_from = rc == 0;
    }
    if (rc == 0 && to) {
        rc = c->in_place ? open_of_model(e->plan, &c->to, o->save_context, true, &e->tokenizer_crc, err) : create(e, &c->to, o->save_context, err);
        c->has_to = rc == 0;
    }
    const struct wr_plan *plan = &e->plan->plan;
    if (rc == 0 && plan->spilled) {
        const size_t n_blocks = (size_t)plan->kv.n_tiles * e->plan->model.hp.n_layer;
        c->crcs = wr_mem_array(&e->plan->ledger, WR_ACCOUNT_TEXT, n_blocks, sizeof *c->crcs, err);
        c->seen = wr_mem_array(&e->plan->ledger, WR_ACCOUNT_TEXT, n_blocks, 1, err);
        if (c->crcs == NULL || c->seen == NULL) rc = err != NULL ? err->code : WEIR_E_NOMEM;
    }
    return rc;
}

/* ---- a context that does not fit in memory ---------------------------------------------- */

static void block_written(void *user, uint32_t layer, uint32_t tile, const void *block)
{
    weir_engine *e = user;
    const size_t i = (size_t)tile * e->kv.n_layer + layer;
    e->context.crcs[i] = wr_crc32c(0, block, e->kv.block_bytes);
    e->context.seen[i] = 1;
}

/* A block of the saved context is compared when it is first read. */
static int block_read(void *user, uint32_t layer, uint32_t tile, const void *block, weir_err *err)
{
    weir_engine *e = user;
    struct wr_context *c = &e->context;
    const size_t i = (size_t)tile * e->kv.n_layer + layer;
    if (tile >= c->n_adopted_tiles || c->seen[i]) return 0;
    if (wr_crc32c(0, block, e->kv.block_bytes) != c->crcs[i]) return wr_kvfile_damaged(c->in_place ? &c->to : &c->from, tile, layer, err);
    c->seen[i] = 1;
    return 0;
}

static struct wr_kv_places places_of(const struct wr_kvfile *f) { return (struct wr_kv_places){wr_kvfile_block(f, 0, 0), f->group_bytes, 0}; }

/* Descriptors of their own, which wr_kv_close closes. */
static struct wr_store second_of(const struct wr_kvfile *f, uint32_t n_tiles)
{
    struct wr_store store = f->store;
    store.file.fd_buffered = fcntl(f->store.file.fd_buffered, F_DUPFD_CLOEXEC, 3);
    store.file.fd_direct = f->store.file.fd_direct >= 0 ? fcntl(f->store.file.fd_direct, F_DUPFD_CLOEXEC, 3) : -1;
    store.file.bytes = wr_kvfile_block(f, n_tiles, 0);
    store.bytes_written = 0;
    return store;
}

void wr_context_kv(weir_engine *e, struct wr_kv_config *kv)
{
    struct wr_context *c = &e->context;
    kv->written = block_written;
    kv->read = block_read;
    kv->disk_user = e;
    if (c->has_to) {
        kv->file = second_of(&c->to, kv->layout.n_tiles);
        kv->places = places_of(&c->to);
        kv->write_all = true;
    }
    if (c->has_from) {
        kv->base = &c->from.store.file;
        kv->base_places = places_of(&c->from);
        kv->base_tiles = c->from.saved.n_full;
    }
}

void wr_context_close(weir_engine *e)
{
    struct wr_context *c = &e->context;
    if (c->has_from) wr_kvfile_close(&c->from);
    if (c->has_to) wr_kvfile_close(&c->to);
    c->has_from = c->has_to = false;
    wr_mem_free(c->crcs);
    wr_mem_free(c->seen);
    c->crcs = NULL;
    c->seen = NULL;
}

/* ---- weights --------------------------------------------------------------------------- */

static int other_values(weir_engine *e, const struct wr_kvfile *f, uint32_t w, weir_err *err)
{
    e->context.mismatch = true;
    return wr_err(err, WEIR_E_MISMATCH, "%s: tensor %s has other values in the model that it was saved with (%s); use that model, or evaluate the text again",
        wr_file_label(f->store.file.path), e->plan->model.uses[w].tensor->name, f->about.model);
}

static int compare(weir_engine *e, const struct wr_kvfile *f, uint32_t i, uint32_t w, uint32_t crc, weir_err *err)
{
    if (!f->weights[i].known || f->weights[i].crc == crc) return 0;
    return other_values(e, f, w, err);
}

int wr_context_compare(weir_engine *e, weir_err *err)
{
    struct wr_context *c = &e->context;
    const struct wr_model *m = &e->plan->model;
    uint32_t i = 0, n_known = 0, crc;
    int rc = 0;
    if (!c->has_from && !c->has_to) return 0;
    if (c->n_compared == m->n_uses) return 0;
    for (uint32_t w = 0; rc == 0 && w < m->n_uses; w++) {
        if (!is_whole(&m->uses[w])) {
            n_known++;
            continue;
        }
        if (wr_pager_weight_crc(e->pager, w, &crc)) {
            n_known++;
            if (c->has_from && !c->refused) rc = compare(e, &c->from, i, w, crc, err);
            if (rc == 0 && c->has_to) rc = compare(e, &c->to, i, w, crc, err);
            if (rc == 0 && c->has_to && !c->to.weights[i].known) rc = wr_kvfile_set_weight(&c->to, i, crc, err);
        }
        i++;
    }
    if (rc == 0) c->n_compared = n_known;
    return rc;
}

void wr_context_refuse(weir_session *s)
{
    struct wr_context *c = &s->engine->context;
    s->n = 0;
    s->logits = NULL;
    if (!c->has_from || c->has_to) return; /* a file that would be extended stays what it is */
    c->refused = true;
    c->mismatch = false;
}

/* What is copied from one saved context to another is still of the model that the first was saved with: the second says so where this one's weights are not
 * read yet, or else a difference that shows later would be forgotten. */
static int inherit_weights(const struct wr_kvfile *from, struct wr_kvfile *to, weir_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < to->about.n_weights; i++)
        if (from->weights[i].known && !to->weights[i].known) rc = wr_kvfile_set_weight(to, i, from->weights[i].crc, err);
    return rc;
}

struct rows_crc {
    uint64_t row_bytes;
    uint32_t crc;
};

static void add_row(void *user, size_t i, const void *row)
{
    struct rows_crc *r = user;
    r->crc = wr_crc32c(r->crc, row, r->row_bytes);
}

/* Of the embedding rows of a group's tokens; 0 where they are not compared. */
static int rows_crc(weir_engine *e, uint32_t tile, const int32_t *ids, uint32_t n, uint32_t *crc, weir_err *err)
{
    const uint32_t w = e->plan->model.token_embd;
    struct rows_crc r = {.row_bytes = e->plan->model.uses[w].tensor->row_bytes};
    int rc = tile < ROWS_GROUPS ? wr_pager_rows(e->pager, w, ids, n, add_row, &r, err) : 0;
    *crc = r.crc;
    return rc;
}

/* ---- blocks in memory ------------------------------------------------------------------ */

/* A block's parts in the order of the file: what is in memory, and `memory` NULL for what is not, which is zeros. */
typedef int part_fn(void *user, uint64_t at, void *memory, uint64_t n, weir_err *err);

static int each_part(const struct wr_kv *kv, uint32_t layer, uint32_t tile, uint64_t bytes, part_fn *fn, void *user, weir_err *err)
{
    uint32_t first = tile * TILE, n = kv->n_positions - first < TILE ? kv->n_positions - first : TILE;
    uint64_t at = 0;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < 2 * kv->n_head_kv; i++) {
        bool keys = i < kv->n_head_kv;
        struct wr_ref ref = keys ? wr_kv_keys(kv, layer, i, first, n) : wr_kv_values(kv, layer, i - kv->n_head_kv, first, n);
        uint64_t whole = TILE * (keys ? kv->key_bytes : kv->value_bytes);
        rc = fn(user, at, wr_ref_address(kv->device, &ref), ref.bytes, err);
        if (rc == 0 && ref.bytes < whole) rc = fn(user, at + ref.bytes, NULL, whole - ref.bytes, err);
        at += whole;
    }
    if (rc == 0 && at < bytes) rc = fn(user, at, NULL, bytes - at, err);
    return rc;
}

struct transfer {
    struct wr_kvfile *f;
    uint64_t offset;
    uint32_t crc;
    const uint32_t *crcs; /* [n_layer] of the tail */
};

static _Alignas(WR_IO_ALIGN) const uint8_t zeros[WR_IO_ALIGN];

static int write_part(void *user, uint64_t at, void *memory, uint64_t n, weir_err *err)
{
    struct transfer *t = user;
    for (uint64_t done = 0, step; done < n; done += step) {
        step = memory != NULL || n - done < sizeof zeros ? n - done : sizeof zeros;
        const void *bytes = memory != NULL ? memory : zeros;
        int rc = wr_store_write(&t->f->store, t->offset + at + done, bytes, step, err);
        if (rc < 0) return rc;
        t->crc = wr_crc32c(t->crc, bytes, step);
    }
    return 0;
}

static int read_part(void *user, uint64_t at, void *memory, uint64_t n, weir_err *err)
{
    struct transfer *t = user;
    uint8_t rest[512];
    for (uint64_t done = 0, step; done < n; done += step) {
        step = memory != NULL || n - done < sizeof rest ? n - done : sizeof rest;
        int rc = wr_file_read(&t->f->store.file, t->offset + at + done, memory != NULL ? memory : rest, step, err);
        if (rc < 0) return rc;
        t->crc = wr_crc32c(t->crc, memory != NULL ? memory : rest, step);
    }
    return 0;
}

/* ---- loading --------------------------------------------------------------------------- */

static int load_blocks(weir_session *s, struct wr_kvfile *f, const uint32_t *crcs, weir_err *err)
{
    weir_engine *e = s->engine;
    const weir_options *o = &e->plan->options;
    const uint32_t n_layer = f->about.n_layer, n_groups = wr_kvfile_groups(&f->saved);
    for (uint32_t t = 0; t < n_groups; t++) {
        const bool tail = t == f->saved.n_full;
        for (uint32_t il = 0; il < n_layer; il++) {
            struct transfer read = {f, tail ? wr_kvfile_tail_block(f, il) : wr_kvfile_block(f, t, il), 0};
            if (il == 0 && t + 1 < n_groups) /* the next group, while this one is copied */
                (void)posix_fadvise(f->store.file.fd_buffered, (off_t)wr_kvfile_block(f, t + 1, 0), (off_t)f->group_bytes, POSIX_FADV_WILLNEED);
            if (o->cancel != NULL && *o->cancel != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted while loading");
            int rc = each_part(&e->kv, il, t, f->about.block_bytes, read_part, &read, err);
            if (rc < 0) return rc;
            if (read.crc != crcs[(uint64_t)t * n_layer + il]) return wr_kvfile_damaged(f, t, il, err);
        }
        if (o->progress != NULL) o->progress(o->progress_user, "load", (uint64_t)(t + 1) * f->group_bytes, n_groups * f->group_bytes, "bytes");
    }
    wr_file_drop_cache(&f->store.file);
    return 0;
}

static int fill_tail(void *user, uint32_t layer, void *block, weir_err *err)
{
    const struct transfer *t = user;
    const uint32_t tile = t->f->saved.n_full;
    return wr_kvfile_read_block(t->f, tile, layer, wr_kvfile_tail_block(t->f, layer), block, t->crcs[layer], err);
}

/* Only records and what is kept in memory are read; the rest comes in the first pass. */
static int adopt(weir_session *s, struct wr_kvfile *f, const uint32_t *crcs, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_context *c = &e->context;
    const uint32_t n_full = f->saved.n_full, n_layer = f->about.n_layer;
    struct transfer tail = {.f = f, .crcs = crcs + (size_t)n_full * n_layer};
    memcpy(c->crcs, crcs, (size_t)n_full * n_layer * sizeof *crcs);
    c->n_adopted_tiles = c->n_loaded_tiles = n_full;
    int rc = wr_kv_adopt(&e->kv, n_full * TILE, err);
    return rc == 0 ? wr_kv_adopt_tail(&e->kv, f->saved.n_tail, fill_tail, &tail, err) : rc;
}

static int load(weir_session *s, struct wr_kvfile *f, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_ledger *ledger = &e->plan->ledger;
    const uint64_t n = wr_kvfile_tokens(&f->saved), n_groups = wr_kvfile_groups(&f->saved);
    const uint32_t n_ctx = e->plan->plan.n_ctx;
    int rc = WEIR_E_NOMEM;
    s->n = 0;
    s->logits = NULL;
    if (n > n_ctx)
        return wr_err(err, WEIR_E_CONTEXT, "%s: has %llu tokens, which do not fit the context of %u positions; give -c %llu or more",
            wr_file_label(f->store.file.path), (unsigned long long)n, n_ctx, (unsigned long long)n + 1);
    uint32_t *rows = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n_groups, sizeof *rows, err);
    uint32_t *crcs = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n_groups, f->about.n_layer * sizeof *crcs, err);
    if (rows == NULL || crcs == NULL) goto done;
    rc = wr_kvfile_records(f, s->ids, rows, crcs, err);
    if (rc == 0) rc = wr_context_compare(e, err);
    for (uint32_t t = 0; rc == 0 && t < n_groups && t < ROWS_GROUPS; t++) {
        uint32_t crc, here = t == f->saved.n_full ? f->saved.n_tail : TILE;
        rc = rows_crc(e, t, s->ids + (size_t)t * TILE, here, &crc, err);
        if (rc == 0 && crc != rows[t]) rc = other_values(e, f, e->plan->model.token_embd, err);
    }
    if (rc == 0) rc = e->kv.store != NULL ? adopt(s, f, crcs, err) : load_blocks(s, f, crcs, err);
    if (rc == 0) {
        s->n = n;
        s->info.n_loaded = n;
    }
done:
    wr_mem_free(rows);
    wr_mem_free(crcs);
    return rc;
}

int wr_context_start(weir_session *s, weir_err *err)
{
    struct wr_context *c = &s->engine->context;
    if (!c->has_from && !c->in_place) return 0;
    int rc = load(s, c->in_place ? &c->to : &c->from, err);
    if (rc == 0 && c->has_from && c->has_to) rc = inherit_weights(&c->from, &c->to, err);
    return rc == 0 ? wr_context_keep(s, err) : rc;
}

int weir_session_load(weir_session *s, const char *path, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_context *c = &e->context;
    struct wr_kvfile f;
    if (e->kv.store != NULL)
        return wr_err(err, WEIR_E_UNSUPPORTED, "keys and values do not fit in memory, so that a saved context is to be named at the start: --context %s",
            wr_file_label(path));
    s->n = 0;
    s->logits = NULL;
    wr_spec_forget(s, 0);
    int rc = open_of_model(e->plan, &f, path, false, &e->tokenizer_crc, err);
    if (rc < 0) return rc;
    if (c->has_from) wr_kvfile_close(&c->from);
    c->from = f;
    c->has_from = true;
    c->n_compared = 0;
    c->mismatch = c->refused = false;
    rc = load(s, &c->from, err);
    if (rc == 0) {
        if (c->has_to) { /* its tokens are those that the session had before */
            rc = wr_context_back(s, 0, err);
            if (rc == 0) rc = inherit_weights(&c->from, &c->to, err);
        }
        return rc == 0 ? wr_context_keep(s, err) : rc;
    }
    wr_kvfile_close(&c->from);
    c->has_from = c->mismatch = false; /* there are no tokens */
    return rc;
}

/* ---- saving ---------------------------------------------------------------------------- */

/* A full block that is on disk alone, piece by piece. */
static int copy_block(weir_engine *e, uint32_t layer, uint32_t tile, struct transfer *t, weir_err *err)
{
    _Alignas(WR_IO_ALIGN) uint8_t piece[4 * WR_IO_ALIGN]; /* on the stack: storage of threads would be taken in each of them */
    int rc = 0;
    for (uint64_t at = 0, n; rc == 0 && at < e->kv.block_bytes; at += n) {
        n = e->kv.block_bytes - at < sizeof piece ? e->kv.block_bytes - at : sizeof piece;
        rc = wr_kv_read_part(&e->kv, layer, tile, at, piece, n, err);
        if (rc == 0) rc = write_part(t, at, piece, n, err);
    }
    if (rc == 0 && t->crc != e->context.crcs[(size_t)tile * e->kv.n_layer + layer])
        rc = wr_err(err, WEIR_E_READ, "keys and values of tokens %u to %u in layer %u are not what was written", tile * TILE, tile * TILE + TILE - 1, layer);
    return rc;
}

static int write_block(weir_engine *e, uint32_t layer, uint32_t tile, struct transfer *t, weir_err *err)
{
    if (e->kv.store == NULL) return each_part(&e->kv, layer, tile, t->f->about.block_bytes, write_part, t, err);
    const void *block = wr_kv_block(&e->kv, layer, tile);
    return block != NULL ? write_part(t, 0, (void *)block, e->kv.block_bytes, err) : copy_block(e, layer, tile, t, err);
}

/* Group next.n_full of the file, n of its tokens: blocks and record. What the writer of a spilled context wrote to this file lies there already. */
static int write_group(weir_session *s, struct wr_kvfile *f, uint32_t n, weir_err *err)
{
    weir_engine *e = s->engine;
    const uint32_t tile = f->next.n_full, n_layer = f->about.n_layer;
    const int32_t *ids = s->ids + (size_t)tile * TILE;
    uint32_t rows;
    uint32_t *crcs = wr_mem_array(&e->plan->ledger, WR_ACCOUNT_TEXT, n_layer, sizeof *crcs, err);
    if (crcs == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    int rc = rows_crc(e, tile, ids, n, &rows, err);
    const bool there = e->kv.store != NULL && f == &e->context.to && n == TILE && (e->context.in_place || tile >= e->context.n_loaded_tiles);
    if (rc == 0 && n == TILE && !there) rc = wr_kvfile_reserve(f, tile + 1, err);
    for (uint32_t il = 0; rc == 0 && il < n_layer; il++) {
        struct transfer write = {f, n == TILE ? wr_kvfile_block(f, tile, il) : wr_kvfile_next_tail_block(f, il), 0, NULL};
        if (!there) rc = write_block(e, il, tile, &write, err);
        crcs[il] = there ? e->context.crcs[(size_t)tile * n_layer + il] : write.crc;
    }
    if (rc == 0) rc = wr_kvfile_put(f, ids, n, rows, crcs, err);
    wr_mem_free(crcs);
    return rc;
}

/* What the session has beyond the file, full groups alone or with the tail, in one commit. */
static int extend(weir_session *s, struct wr_kvfile *f, bool tail, weir_err *err)
{
    /* What the file still has by its last commit is not overwritten. */
    weir_engine *e = s->engine;
    int rc = f->next.n_full < f->saved.n_full ? wr_kvfile_commit(f, err) : 0;
    bool any = false;
    if (rc == 0 && tail) rc = wr_kv_flush(&e->kv, err);
    size_t n_full = s->n / TILE;
    if (e->kv.store != NULL && !tail && n_full > wr_kv_on_disk(&e->kv)) n_full = wr_kv_on_disk(&e->kv);
    while (rc == 0 && f->next.n_full < n_full) {
        rc = write_group(s, f, TILE, err);
        any = true;
    }
    if (rc == 0 && tail && s->n % TILE > 0 && wr_kvfile_tokens(&f->next) != s->n) {
        rc = write_group(s, f, (uint32_t)(s->n % TILE), err);
        any = true;
    }
    return rc == 0 && any ? wr_kvfile_commit(f, err) : rc;
}

int wr_context_keep(weir_session *s, weir_err *err)
{
    struct wr_context *c = &s->engine->context;
    return c->has_to ? extend(s, &c->to, false, err) : 0;
}

int wr_context_back(weir_session *s, size_t n, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_kvfile *f = &e->context.to;
    int rc = 0;
    if (e->context.n_loaded_tiles > n / TILE) e->context.n_loaded_tiles = (uint32_t)(n / TILE);
    if (!e->context.has_to) return 0;
    if (wr_kvfile_tokens(&f->next) <= n) /* a shorter one that could not be committed is tried again, before the writer writes over what the file says it has */
        return f->next.n_full < f->saved.n_full ? wr_kvfile_commit(f, err) : 0;
    if (e->kv.store != NULL) {
        wr_kv_truncate(&e->kv, (uint32_t)n);
        rc = wr_kv_load_tail(&e->kv, err);
    }
    if (rc == 0) rc = wr_kvfile_truncate(f, (uint32_t)(n / TILE), err);
    if (rc == 0 && n % TILE > 0) rc = write_group(s, f, (uint32_t)(n % TILE), err);
    return rc == 0 ? wr_kvfile_commit(f, err) : rc;
}

int weir_session_save(weir_session *s, const char *path, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_context *c = &e->context;
    struct wr_kvfile f;
    if (c->mismatch) return wr_err(err, WEIR_E_MISMATCH, "the session's tokens are of a saved context of another model; nothing was saved");
    if (path == NULL && !c->has_to) return wr_err(err, WEIR_E_USAGE, "there is no file to save to: set options.save_context or name one");
    if (s->n == 0) return wr_err(err, WEIR_E_INPUT, "there are no tokens to save");
    const char *own = e->plan->options.save_context; /* which may not be in its place yet */
    if (path == NULL || (c->has_to && (strcmp(path, own) == 0 || same_file(path, own)))) {
        int rc = wr_context_back(s, s->n, err);
        if (rc == 0 && s->n < wr_kv_length(&e->kv)) wr_kv_truncate(&e->kv, (uint32_t)s->n);
        if (rc == 0) rc = wr_kv_load_tail(&e->kv, err); /* the end of the file, where an interrupted pass may have written it, is cut off */
        if (rc == 0) rc = extend(s, &c->to, true, err);
        return rc == 0 ? wr_kvfile_finish(&c->to, err) : rc;
    }
    int rc = create(e, &f, path, err);
    if (rc < 0) return rc;
    rc = extend(s, &f, true, err);
    if (rc == 0 && c->has_from && !c->refused) rc = inherit_weights(&c->from, &f, err);
    if (rc == 0 && c->has_to) rc = inherit_weights(&c->to, &f, err);
    for (uint32_t w = 0, i = 0, crc; rc == 0 && w < e->plan->model.n_uses; w++) {
        if (!is_whole(&e->plan->model.uses[w])) continue;
        if (wr_pager_weight_crc(e->pager, w, &crc)) rc = wr_kvfile_set_weight(&f, i, crc, err);
        i++;
    }
    if (rc == 0) rc = wr_kvfile_finish(&f, err);
    wr_kvfile_close(&f);
    return rc;
}
