/* SPDX-License-Identifier: Apache-2.0 */
/* Saved contexts: tokens, keys and values between the session and a file. */
#include "engine/context.h"

#include <fcntl.h>
#include <string.h>
#include "base/crc32c.h"

_Static_assert(TILE == WR_TILE, "a group is a tile of attention");

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
    wr_kv_truncate(&e->kv, 0); /* of an earlier session nothing is read or written any more that looks at these */
    memcpy(c->crcs, crcs, (size_t)n_full * n_layer * sizeof *crcs);
    memset(c->seen, 0, (size_t)n_full * n_layer);
    c->n_adopted_tiles = c->n_loaded_tiles = n_full;
    int rc = wr_kv_adopt(&e->kv, n_full * TILE, err);
    return rc == 0 ? wr_kv_adopt_tail(&e->kv, f->saved.n_tail, fill_tail, &tail, err) : rc;
}

static int check_room(const weir_session *s, const struct wr_kvfile *f, weir_err *err)
{
    const uint32_t n_ctx = s->engine->plan->plan.n_ctx;
    const unsigned long long n = wr_kvfile_tokens(&f->saved);
    if (n <= n_ctx) return 0;
    return wr_err(err, WEIR_E_CONTEXT, "%s: has %llu tokens, which do not fit the context of %u positions; give -c %llu or more",
        wr_file_label(f->store.file.path), n, n_ctx, n + 1);
}

static int load(weir_session *s, struct wr_kvfile *f, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_ledger *ledger = &e->plan->ledger;
    const uint64_t n = wr_kvfile_tokens(&f->saved), n_groups = wr_kvfile_groups(&f->saved);
    int rc = check_room(s, f, err);
    if (rc < 0) return rc;
    s->n = 0;
    s->logits = NULL;
    rc = WEIR_E_NOMEM;
    uint32_t *rows = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n_groups, sizeof *rows, err);
    uint32_t *crcs = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n_groups, f->about.n_layer * sizeof *crcs, err);
    if (rows == NULL || crcs == NULL) goto done;
    rc = wr_kvfile_records(f, s->ids, rows, crcs, err);
    if (rc == 0) rc = wr_context_compare(e, err);
    for (uint32_t t = 0; rc == 0 && t < n_groups && t < WR_CONTEXT_ROWS; t++) {
        uint32_t crc, here = t == f->saved.n_full ? f->saved.n_tail : TILE;
        rc = wr_context_rows_crc(e, t, s->ids + (size_t)t * TILE, here, &crc, err);
        if (rc == 0 && crc != rows[t]) {
            rc = wr_context_other_values(e, f, e->plan->model.token_embd, err);
            e->context.mismatch = true;
        }
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

/* The tokens of the file that is written are those of an earlier session, or of this one before it got others. */
static int empty_saved(struct wr_context *c, weir_err *err)
{
    int rc = wr_kvfile_truncate(&c->to, 0, err);
    return rc == 0 && !c->unchecked ? wr_kvfile_commit(&c->to, err) : rc;
}

/* Before blocks are written: what the file still has by its last commit is not overwritten. */
static int let_write(weir_engine *e, weir_err *err)
{
    struct wr_context *c = &e->context;
    int rc = !c->unchecked && c->to.next.n_full < c->to.saved.n_full ? wr_kvfile_commit(&c->to, err) : 0;
    if (rc == 0) wr_kv_hold(&e->kv, c->unchecked);
    return rc;
}

/* What is spilled is read from the full groups of `f` from now on, which lie there already. */
static int rebase(weir_engine *e, const struct wr_kvfile *f, weir_err *err)
{
    const struct wr_kv_places places = wr_context_places(f);
    return e->kv.store != NULL ? wr_kv_rebase(&e->kv, &f->store.file, &places, f->saved.n_full, err) : 0;
}

int wr_context_start(weir_session *s, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_context *c = &e->context;
    int rc = 0;
    if (c->in_place) c->to.next = c->to.saved; /* what an earlier session dropped and did not commit is in the file still */
    if (c->has_to && !c->in_place && wr_kvfile_tokens(&c->to.next) > 0) rc = empty_saved(c, err);
    if (rc == 0 && c->has_from && c->started) rc = rebase(e, &c->from, err);
    c->started = true;
    if (rc == 0) rc = let_write(e, err);
    if (rc < 0 || (!c->has_from && !c->in_place)) return rc;
    rc = load(s, c->in_place ? &c->to : &c->from, err);
    if (rc == 0 && c->has_from && c->has_to && !c->unchecked) rc = wr_context_inherit_weights(&c->from, &c->to, err);
    return rc == 0 ? wr_context_keep(s, err) : rc;
}

/* A context that does not fit in memory is read from the file from now on, as one that was named at the start is. */
int weir_session_load(weir_session *s, const char *path, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_context *c = &e->context;
    struct wr_kvfile f;
    if (c->has_to && wr_context_same_file(path, e->plan->options.save_context))
        return wr_err(err, WEIR_E_USAGE, "%s: is the file that this session is saved in", wr_file_label(path));
    int rc = wr_context_open_file(e->plan, &f, path, false, &e->tokenizer_crc, err);
    if (rc < 0) return rc;
    rc = check_room(s, &f, err);
    if (rc == 0) rc = wr_context_check_weights(e, &f, err);
    if (rc == 0) rc = wr_kvfile_records(&f, NULL, NULL, NULL, err);
    if (rc < 0) { /* and the session is what it was */
        wr_kvfile_close(&f);
        return rc;
    }
    s->n = 0;
    s->logits = NULL;
    wr_spec_forget(s, 0);
    rc = rebase(e, &f, err);
    if (c->has_from) wr_kvfile_close(&c->from);
    c->from = f;
    c->has_from = true;
    c->in_place = c->mismatch = c->refused = false;
    c->n_compared = c->n_adopted_tiles = c->n_loaded_tiles = 0;
    if (rc == 0) rc = load(s, &c->from, err);
    if (rc == 0) {
        if (c->has_to) {
            rc = empty_saved(c, err);
            if (rc == 0 && !c->unchecked) rc = wr_context_inherit_weights(&c->from, &c->to, err);
        }
        return rc == 0 ? wr_context_keep(s, err) : rc;
    }
    wr_kv_truncate(&e->kv, 0);
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
    int rc = wr_context_rows_crc(e, tile, ids, n, &rows, err);
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
    weir_engine *e = s->engine;
    int rc = let_write(e, err);
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
    return c->has_to && !c->unchecked ? extend(s, &c->to, false, err) : 0;
}

int wr_context_back(weir_session *s, size_t n, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_kvfile *f = &e->context.to;
    int rc = 0;
    if (e->context.n_loaded_tiles > n / TILE) e->context.n_loaded_tiles = (uint32_t)(n / TILE);
    if (!e->context.has_to) return 0;
    if (e->context.mismatch)
        return wr_err(err, WEIR_E_MISMATCH, "%s: is not extended: the tokens were saved with another model", wr_file_label(f->store.file.path));
    if (e->context.unchecked) /* `extend` commits it, before anything is written */
        return wr_kvfile_tokens(&f->next) > n ? wr_kvfile_truncate(f, (uint32_t)(n / TILE), err) : 0;
    if (wr_kvfile_tokens(&f->next) <= n) return let_write(e, err); /* a shorter one that could not be committed is tried again */
    if (e->kv.store != NULL) {
        wr_kv_truncate(&e->kv, (uint32_t)n);
        rc = wr_kv_load_tail(&e->kv, err);
    }
    if (rc == 0) rc = wr_kvfile_truncate(f, (uint32_t)(n / TILE), err);
    if (rc == 0 && n % TILE > 0) rc = write_group(s, f, (uint32_t)(n % TILE), err);
    if (rc == 0) rc = wr_kvfile_commit(f, err);
    return rc == 0 ? let_write(e, err) : rc;
}

int weir_session_save(weir_session *s, const char *path, weir_err *err)
{
    weir_engine *e = s->engine;
    struct wr_context *c = &e->context;
    struct wr_kvfile f;
    if (c->mismatch) return wr_err(err, WEIR_E_MISMATCH, "the session's tokens are of a saved context of another model; nothing was saved");
    if (path == NULL && !c->has_to) return wr_err(err, WEIR_E_USAGE, "there is no file to save to: set options.save_context or name one");
    if (s->n == 0) return wr_err(err, WEIR_E_INPUT, "there are no tokens to save");
    wr_spec_end(s);                                  /* rows of a burst that did not come to their turn are cut off */
    const char *own = e->plan->options.save_context; /* which may not be in its place yet */
    if (path == NULL || (c->has_to && (strcmp(path, own) == 0 || wr_context_same_file(path, own)))) {
        if (c->unchecked) { /* nothing was evaluated */
            const uint64_t n = wr_kvfile_tokens(&c->to.saved);
            if (c->in_place && s->n == n && wr_kvfile_tokens(&c->to.next) == n) return 0; /* the file has these tokens */
            return wr_err(err, WEIR_E_USAGE, "%s: is saved when the model was compared with what is in it: set the session's tokens first", wr_file_label(own));
        }
        int rc = wr_context_back(s, s->n, err);
        if (rc == 0 && s->n < wr_kv_length(&e->kv)) wr_kv_truncate(&e->kv, (uint32_t)s->n);
        if (rc == 0) rc = wr_kv_load_tail(&e->kv, err); /* the end of the file, where an interrupted pass may have written it, is cut off */
        if (rc == 0) rc = extend(s, &c->to, true, err);
        return rc == 0 ? wr_kvfile_finish(&c->to, err) : rc;
    }
    int rc = wr_context_create_file(e, &f, path, err);
    if (rc < 0) return rc;
    /* Before the first commit, which gives the file its name: a file without them would pass for one of any weights. */
    if (c->has_from && !c->refused) rc = wr_context_inherit_weights(&c->from, &f, err);
    if (rc == 0 && c->has_to && (c->in_place || !c->unchecked)) rc = wr_context_inherit_weights(&c->to, &f, err);
    if (rc == 0) rc = wr_context_note_weights(e, &f, err);
    if (rc == 0) rc = extend(s, &f, true, err);
    if (rc == 0) rc = wr_kvfile_finish(&f, err);
    wr_kvfile_close(&f);
    return rc;
}
