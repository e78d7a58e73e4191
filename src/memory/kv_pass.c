/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A spilled context as the thread that leads passes sees it. Slots of the pool go in a circle: free, then hot (of the layer in progress), then the layer's
 * tail or, when the tile is full, the writer's, then free. The pool has a slot for each layer's tail and as many more as one layer can fill in a pass, so
 * whoever waits for a slot waits for the writer alone.
 */
#include <string.h>
#include "base/os.h"
#include "memory/kv_store.h"

static void *address(const struct wr_kv *kv, uint64_t place)
{
    struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, place, kv->block_bytes, 0};
    return wr_ref_address(kv->device, &ref);
}

/* ---- opening and closing -------------------------------------------------------------- */

static int allocate(struct wr_kv_store *s, weir_err *err)
{
    const struct wr_kv_layout *l = &s->layout;
    struct wr_ledger *ledger = s->config.ledger;
    const size_t n_slots = (size_t)l->n_local * l->n_local_tiles;
    s->max_jobs = l->n_pool + (uint32_t)n_slots + WR_KV_MORE_JOBS;
    s->layer = wr_mem_array(ledger, WR_ACCOUNT_META, s->config.n_layer, sizeof *s->layer, err);
    s->holds = wr_mem_array(ledger, WR_ACCOUNT_META, n_slots, sizeof *s->holds, err);
    s->hot = wr_mem_array(ledger, WR_ACCOUNT_META, l->n_pool, sizeof *s->hot, err);
    s->free_slot = wr_mem_array(ledger, WR_ACCOUNT_META, l->n_pool, sizeof *s->free_slot, err);
    s->job = wr_mem_array(ledger, WR_ACCOUNT_META, s->max_jobs, sizeof *s->job, err);
    s->slot = wr_mem_array(ledger, WR_ACCOUNT_META, l->n_ring, sizeof *s->slot, err);
    bool all = s->layer && s->holds && s->hot && s->free_slot && s->job && s->slot;
    return all ? 0 : err != NULL ? err->code : WEIR_E_NOMEM;
}

/* Region: residents layer by layer, local layers' slots, pool, ring. */
static void lay_out(struct wr_kv_store *s)
{
    const struct wr_kv_config *c = &s->config;
    uint64_t at = 0;
    uint32_t n_global = 0, n_local = 0;
    for (uint32_t il = 0; il < c->n_layer; il++) {
        struct wr_kv_layer *l = &s->layer[il];
        *l = (struct wr_kv_layer){.local = c->is_local != NULL && c->is_local(c->user, il), .place = at, .tail = WR_KV_NONE};
        if (l->local) {
            l->holds = s->holds + (size_t)n_local++ * s->layout.n_local_tiles;
            for (uint32_t i = 0; i < s->layout.n_local_tiles; i++) l->holds[i] = WR_KV_NONE;
            at += s->layout.n_local_tiles * s->block_bytes;
        } else {
            l->resident = wr_kv_layout_resident(&s->layout, n_global++);
            at += l->resident * s->block_bytes;
        }
    }
    s->pool = at;
    s->ring = at + s->layout.n_pool * s->block_bytes;
    for (uint32_t i = 0; i < s->layout.n_pool; i++) {
        s->hot[i] = WR_KV_NONE;
        s->free_slot[s->n_free++] = i;
    }
    s->hot_layer = WR_KV_NONE;
}

int wr_kv_open_spilled(struct wr_kv *kv, const struct wr_kv_config *c, weir_err *err)
{
    *kv = (struct wr_kv){.device = c->device,
        .region = WR_REGION_KV,
        .type = c->type,
        .n_layer = c->n_layer,
        .n_head_kv = c->n_head_kv,
        .head_dim = c->head_dim,
        .n_positions = c->layout.n_tiles * WR_TILE,
        .key_bytes = wr_kv_key_bytes(c->type, c->head_dim),
        .value_bytes = wr_kv_value_bytes(c->type, c->head_dim),
        .block_bytes = c->layout.block_bytes};
    struct wr_kv_store *s = wr_mem_alloc(c->ledger, WR_ACCOUNT_META, sizeof *s, err);
    if (s == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    kv->store = s;
    s->config = *c;
    s->layout = c->layout;
    s->block_bytes = c->layout.block_bytes;
    s->write_bytes = wr_round_up(WR_TILE * wr_kv_position_bytes(c->type, 1, c->n_head_kv, c->head_dim), c->file.file.fd_direct >= 0 ? c->file.file.align : 1);
    s->base_tiles = c->base_tiles;
    s->files[0] = c->file.file;
    if (c->base != NULL) s->files[1] = *c->base;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->for_leader, NULL);
    pthread_cond_init(&s->for_reader, NULL);
    pthread_cond_init(&s->for_writer, NULL);
    int rc = allocate(s, err);
    if (rc == 0) {
        lay_out(s);
        uint64_t bytes = wr_kv_layout_bytes(&s->layout);
        s->memory = wr_arena_take(c->arena, c->ledger, WR_ACCOUNT_KV, bytes, err);
        rc = s->memory == NULL ? (err != NULL ? err->code : WEIR_E_NOMEM) : c->device->ops->attach(c->device, WR_REGION_KV, s->memory, bytes, err);
    }
    if (rc == 0) rc = wr_kv_start_threads(s, err);
    if (rc == 0) return 0;
    s->config.file = (struct wr_store){.file = {.fd_direct = -1, .fd_buffered = -1}}; /* still the caller's */
    wr_kv_close(kv);
    return rc;
}

void wr_kv_close(struct wr_kv *kv)
{
    struct wr_kv_store *s = kv->store;
    if (s == NULL) return;
    wr_kv_stop_threads(s);
    wr_store_close(&s->config.file);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->for_leader);
    pthread_cond_destroy(&s->for_reader);
    pthread_cond_destroy(&s->for_writer);
    wr_mem_free(s->layer);
    wr_mem_free(s->holds);
    wr_mem_free(s->hot);
    wr_mem_free(s->free_slot);
    wr_mem_free(s->job);
    wr_mem_free(s->slot);
    wr_mem_free(s);
    kv->store = NULL;
}

/* ---- waiting for the writer; the lock is held ----------------------------------------- */

static int wait_writer(struct wr_kv_store *s, weir_err *err)
{
    if (s->write_failed) {
        if (err != NULL) *err = s->write_err;
        return s->write_err.code;
    }
    uint64_t start = wr_clock_ns();
    pthread_cond_wait(&s->for_leader, &s->lock);
    s->stall_write_ns += wr_clock_ns() - start;
    return 0;
}

static int take_slot(struct wr_kv_store *s, uint32_t *slot, weir_err *err)
{
    int rc = 0;
    while (rc == 0 && s->n_free == 0) rc = wait_writer(s, err);
    if (rc == 0) *slot = s->free_slot[--s->n_free];
    return rc;
}

static void free_slot(struct wr_kv_store *s, uint32_t slot)
{
    if (slot != WR_KV_NONE) s->free_slot[s->n_free++] = slot;
}

static int add_job(struct wr_kv_store *s, const struct wr_kv_job *job, weir_err *err)
{
    int rc = 0;
    while (rc == 0 && s->n_jobs == s->max_jobs) rc = wait_writer(s, err);
    if (rc < 0) return rc;
    s->job[(s->job_head + s->n_jobs++) % s->max_jobs] = *job;
    pthread_cond_signal(&s->for_writer);
    return 0;
}

/* ---- going back ----------------------------------------------------------------------- */

/* A slot with the block of a tile, when positions from n on are forgotten: the tile's beginning may stay. */
static void keep_or_free(struct wr_kv_store *s, uint32_t layer, uint32_t tile, uint32_t slot, uint32_t n)
{
    struct wr_kv_layer *l = &s->layer[layer];
    if (slot == WR_KV_NONE) return;
    if (tile == n / WR_TILE && n % WR_TILE != 0 && l->tail == WR_KV_NONE) {
        l->tail = slot;
        l->tail_tile = tile;
    } else {
        free_slot(s, slot);
    }
}

/* keep_ahead: what is being read for the next pass is still what that pass will read. */
static void forget(struct wr_kv *kv, uint32_t n, bool keep_ahead)
{
    struct wr_kv_store *s = kv->store;
    pthread_mutex_lock(&s->lock);
    s->paused = true;
    while (s->writing) pthread_cond_wait(&s->for_leader, &s->lock);
    for (uint32_t il = 0; il < kv->n_layer; il++) {
        struct wr_kv_layer *l = &s->layer[il];
        uint32_t slot = l->tail;
        l->tail = WR_KV_NONE;
        keep_or_free(s, il, l->tail_tile, slot, n);
        for (uint32_t i = 0; l->local && i < s->layout.n_local_tiles; i++)
            if (l->holds[i] != WR_KV_NONE && (uint64_t)l->holds[i] * WR_TILE >= n) l->holds[i] = WR_KV_NONE;
    }
    for (uint32_t i = 0; s->hot_layer != WR_KV_NONE && i < s->layout.n_pool; i++) {
        keep_or_free(s, s->hot_layer, s->hot_tile + i, s->hot[i], n);
        s->hot[i] = WR_KV_NONE;
    }
    s->hot_layer = WR_KV_NONE;
    const uint32_t n_jobs = s->n_jobs;
    s->n_jobs = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        const struct wr_kv_job job = s->job[(s->job_head + i) % s->max_jobs];
        if (((uint64_t)job.tile + 1) * WR_TILE <= n)
            s->job[(s->job_head + s->n_jobs++) % s->max_jobs] = job;
        else
            keep_or_free(s, job.layer, job.tile, job.slot, n);
    }
    s->paused = false;
    if (!keep_ahead) s->known = s->pass;
    pthread_cond_signal(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
    s->n = n;
    if (!keep_ahead) wr_kv_restart_reader(s);
}

/* The reader reads full tiles alone: a rollback within the tile that grows, as behind each burst with a token that was not drawn, changes none of them. */
void wr_kv_truncate(struct wr_kv *kv, uint32_t n)
{
    const struct wr_kv_store *s = kv->store;
    if (s != NULL) forget(kv, n, s->known > s->pass && s->full[s->known % 2] == n / WR_TILE);
}

/* ---- bringing back -------------------------------------------------------------------- */

static int not_written(const struct wr_kv *kv, uint32_t layer, uint32_t tile, weir_err *err)
{
    return wr_err(err, WEIR_E_FAIL, "keys and values of tile %u of layer %u are neither in memory nor on disk", tile, layer);
}

static bool is_on_disk(struct wr_kv_store *s, uint32_t layer, uint32_t tile)
{
    pthread_mutex_lock(&s->lock);
    bool is = tile < s->base_tiles || tile < s->layer[layer].on_disk;
    pthread_mutex_unlock(&s->lock);
    return is;
}

static int load_global(struct wr_kv *kv, uint32_t layer, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    struct wr_kv_layer *l = &s->layer[layer];
    const uint32_t tile = s->n / WR_TILE;
    uint32_t slot = WR_KV_NONE;
    if (s->n % WR_TILE == 0 || tile < l->resident || l->tail != WR_KV_NONE) return 0;
    if (!is_on_disk(s, layer, tile)) return not_written(kv, layer, tile, err);
    pthread_mutex_lock(&s->lock);
    int rc = take_slot(s, &slot, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0) rc = wr_kv_read_block(kv, layer, tile, s->pool + slot * s->block_bytes, err);
    if (rc == 0) {
        l->tail = slot;
        l->tail_tile = tile;
        return 0;
    }
    pthread_mutex_lock(&s->lock);
    free_slot(s, slot);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int load_local(struct wr_kv *kv, uint32_t layer, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    struct wr_kv_layer *l = &s->layer[layer];
    const uint32_t oldest = s->n < s->config.window ? 0 : s->n - s->config.window + 1;
    for (uint32_t tile = oldest / WR_TILE; (uint64_t)tile * WR_TILE < s->n; tile++) {
        const uint32_t i = tile % s->layout.n_local_tiles;
        if (l->holds[i] == tile) continue;
        if (!is_on_disk(s, layer, tile)) return not_written(kv, layer, tile, err);
        l->holds[i] = WR_KV_NONE;
        int rc = wr_kv_read_block(kv, layer, tile, l->place + i * s->block_bytes, err);
        if (rc < 0) return rc;
        l->holds[i] = tile;
    }
    return 0;
}

int wr_kv_load_tail(struct wr_kv *kv, weir_err *err)
{
    int rc = 0;
    for (uint32_t il = 0; kv->store != NULL && rc == 0 && il < kv->n_layer; il++)
        rc = kv->store->layer[il].local ? load_local(kv, il, err) : load_global(kv, il, err);
    return rc;
}

int wr_kv_adopt(struct wr_kv *kv, uint32_t n, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    const uint32_t n_tiles = n / WR_TILE;
    if (n % WR_TILE != 0 || n_tiles > s->layout.n_tiles) return wr_err(err, WEIR_E_FAIL, "%u positions cannot be taken over", n);
    forget(kv, 0, false); /* the reader has read ahead for the pass that would have come next, and its engine must be free */
    int rc = wr_kv_read_resident(s, n_tiles, err);
    if (rc < 0) return rc;
    pthread_mutex_lock(&s->lock);
    for (uint32_t il = 0; il < kv->n_layer; il++) s->layer[il].on_disk = n_tiles;
    pthread_mutex_unlock(&s->lock);
    s->n = n;
    return 0;
}

int wr_kv_adopt_tail(struct wr_kv *kv, uint32_t n, int (*fill)(void *user, uint32_t layer, void *block, weir_err *), void *user, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    const uint32_t tile = s->n / WR_TILE;
    if (s->n % WR_TILE != 0 || n >= WR_TILE || tile >= s->layout.n_tiles) return wr_err(err, WEIR_E_FAIL, "%u positions cannot be taken over", n);
    for (uint32_t il = 0; n > 0 && il < kv->n_layer; il++) {
        struct wr_kv_layer *l = &s->layer[il];
        uint64_t place = l->place + (l->local ? tile % s->layout.n_local_tiles : tile) * s->block_bytes;
        if (!l->local && tile >= l->resident) {
            pthread_mutex_lock(&s->lock);
            int rc = l->tail == WR_KV_NONE ? take_slot(s, &l->tail, err) : 0;
            pthread_mutex_unlock(&s->lock);
            if (rc < 0) return rc;
            l->tail_tile = tile;
            place = s->pool + l->tail * s->block_bytes;
        }
        int rc = fill(user, il, s->memory + place, err);
        if (rc < 0) return rc;
        struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, place, s->block_bytes, 0};
        if (kv->device->ops->upload != NULL) kv->device->ops->upload(kv->device, &ref);
        if (l->local) l->holds[tile % s->layout.n_local_tiles] = tile;
    }
    s->n += n;
    return 0;
}

void wr_kv_hold(struct wr_kv *kv, bool held)
{
    struct wr_kv_store *s = kv->store;
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->held = held;
    pthread_cond_signal(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
}

int wr_kv_flush(struct wr_kv *kv, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    int rc = 0;
    if (s == NULL) return 0;
    pthread_mutex_lock(&s->lock);
    s->write_failed = false;
    pthread_cond_signal(&s->for_writer);
    while (rc == 0 && s->n_jobs > 0) rc = wait_writer(s, err);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

uint32_t wr_kv_length(const struct wr_kv *kv) { return kv->store != NULL ? kv->store->n : 0; }

/* ---- a pass --------------------------------------------------------------------------- */

int wr_kv_begin(struct wr_kv *kv, uint32_t position, uint32_t n, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    if (s == NULL) return 0;
    if (!s->has_writer) return wr_err(err, WEIR_E_FAIL, "keys and values are neither read nor written any more: start again");
    if (position > s->n || (uint64_t)position + n > kv->n_positions)
        return wr_err(err, WEIR_E_FAIL, "a pass of %u rows at position %u, and %u are stored of %u", n, position, s->n, kv->n_positions);
    if (position < s->n) wr_kv_truncate(kv, position);
    pthread_mutex_lock(&s->lock);
    s->write_failed = false;
    bool restart = s->read_failed;
    pthread_cond_signal(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
    if (restart) wr_kv_restart_reader(s);
    int rc = wr_kv_load_tail(kv, err);
    if (rc < 0) return rc;
    pthread_mutex_lock(&s->lock);
    for (uint32_t il = 0; il < kv->n_layer; il++)
        if (s->layer[il].on_disk > position / WR_TILE) s->layer[il].on_disk = position / WR_TILE;
    if (s->base_tiles > position / WR_TILE) s->base_tiles = position / WR_TILE;
    s->pass++;
    s->known = s->pass + 1;
    s->full[s->pass % 2] = position / WR_TILE;
    s->full[s->known % 2] = (position + n) / WR_TILE;
    pthread_cond_signal(&s->for_reader);
    pthread_mutex_unlock(&s->lock);
    s->position = position;
    s->n_rows = n;
    s->pass_bytes = 0;
    return 0;
}

static int begin_local(struct wr_kv *kv, struct wr_kv_layer *l, uint32_t first, uint32_t last, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    int rc = 0;
    for (uint32_t tile = first; rc == 0 && tile <= last; tile++) {
        const uint32_t i = tile % s->layout.n_local_tiles, old = l->holds[i];
        if (old == tile) continue;
        pthread_mutex_lock(&s->lock);
        while (rc == 0 && old != WR_KV_NONE && l->on_disk <= old) rc = wait_writer(s, err);
        pthread_mutex_unlock(&s->lock);
        if (rc < 0) break;
        l->holds[i] = tile;
        memset(address(kv, l->place + i * s->block_bytes), 0, s->block_bytes);
    }
    return rc;
}

int wr_kv_layer_begin(struct wr_kv *kv, uint32_t layer, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    if (s == NULL) return 0;
    struct wr_kv_layer *l = &s->layer[layer];
    const uint32_t first = s->position / WR_TILE, last = (s->position + s->n_rows - 1) / WR_TILE;
    if (l->local) return begin_local(kv, l, first, last, err);
    s->hot_layer = layer;
    s->hot_tile = first;
    for (uint32_t tile = first; tile <= last; tile++) {
        uint32_t *slot = &s->hot[tile - first];
        if (tile < l->resident) continue;
        if (l->tail != WR_KV_NONE && l->tail_tile == tile) {
            *slot = l->tail;
            l->tail = WR_KV_NONE;
            continue;
        }
        pthread_mutex_lock(&s->lock);
        int rc = take_slot(s, slot, err);
        pthread_mutex_unlock(&s->lock);
        if (rc < 0) return rc;
        memset(address(kv, s->pool + *slot * s->block_bytes), 0, s->block_bytes);
    }
    return 0;
}

/* Whether a full tile that stays where it is goes to the file. Slots of a local layer are used again where there are fewer of them than tiles. */
static bool is_written(const struct wr_kv_store *s, const struct wr_kv_layer *l)
{
    return s->config.write_all || (l->local && s->layout.n_local_tiles < s->layout.n_tiles);
}

int wr_kv_layer_end(struct wr_kv *kv, uint32_t layer, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    if (s == NULL) return 0;
    struct wr_kv_layer *l = &s->layer[layer];
    const uint32_t first = s->position / WR_TILE, last = (s->position + s->n_rows - 1) / WR_TILE, end = s->position + s->n_rows;
    const uint64_t fence = kv->device->ops->fence(kv->device);
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t tile = first; rc == 0 && tile <= last; tile++) {
        const bool full = (uint64_t)(tile + 1) * WR_TILE <= end, fixed = l->local || tile < l->resident;
        uint32_t *slot = fixed ? NULL : &s->hot[tile - first];
        if (full && (!fixed || is_written(s, l))) {
            const uint64_t place = fixed ? l->place + (l->local ? tile % s->layout.n_local_tiles : tile) * s->block_bytes : s->pool + *slot * s->block_bytes;
            rc = add_job(s, &(struct wr_kv_job){layer, tile, fixed ? WR_KV_NONE : *slot, place, fence}, err);
        } else if (!fixed) {
            l->tail = *slot;
            l->tail_tile = tile;
        }
        if (rc == 0 && !fixed) *slot = WR_KV_NONE;
    }
    if (rc == 0) s->hot_layer = WR_KV_NONE;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void wr_kv_end(struct wr_kv *kv, bool aborted)
{
    struct wr_kv_store *s = kv->store;
    if (s == NULL) return;
    s->last_pass_bytes = s->pass_bytes;
    if (aborted)
        forget(kv, s->position, false); /* the reader is in its midst */
    else
        s->n = s->position + s->n_rows;
}

/* ---- the ring ------------------------------------------------------------------------- */

bool wr_kv_streams(const struct wr_kv *kv, uint32_t layer, uint32_t *from, uint32_t *to)
{
    const struct wr_kv_store *s = kv->store;
    if (s == NULL || s->layer[layer].local) return false;
    *from = s->layer[layer].resident;
    *to = s->position / WR_TILE;
    return *from < *to;
}

uint32_t wr_kv_ready(const struct wr_kv_store *s)
{
    uint32_t n = 0;
    while (n < s->wanted && s->slot[(s->taken + n) % s->layout.n_ring].ready) n++;
    return n;
}

int wr_kv_take(struct wr_kv *kv, uint32_t layer, uint32_t tile, uint32_t *n, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    /* An eighth of the ring, so that most of it is being read while that is computed with: a disk may end all that is in flight at once. */
    const uint32_t left = s->position / WR_TILE - tile, part = s->layout.n_ring < 16 ? 1 : s->layout.n_ring / 8, want = part < left ? part : left;
    uint32_t there = 0;
    uint64_t start = 0;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    for (s->wanted = want; (there = wr_kv_ready(s)) < want;) {
        /* A block that failed may be of the next pass, whose turn has not come. */
        const bool failed = s->taken + there < s->submitted ? s->slot[(s->taken + there) % s->layout.n_ring].failed : s->read_failed;
        const weir_err *why = failed ? &s->read_err : NULL;
        if (why == NULL && s->write_failed && tile + there >= s->layer[layer].on_disk && tile + there >= s->base_tiles) why = &s->write_err;
        if (why != NULL) {
            if (err != NULL) *err = *why;
            rc = why->code;
            break;
        }
        if (start == 0) start = wr_clock_ns();
        pthread_cond_wait(&s->for_leader, &s->lock);
    }
    s->wanted = 0;
    if (start != 0) s->stall_read_ns += wr_clock_ns() - start;
    for (uint32_t i = 0; rc == 0 && i < there; i++) {
        const struct wr_kv_ring_slot *slot = &s->slot[(s->taken + i) % s->layout.n_ring];
        if (slot->layer != layer || slot->tile != tile + i)
            rc = wr_err(err, WEIR_E_FAIL, "tile %u of layer %u was read, and tile %u of layer %u is its turn", slot->tile, slot->layer, tile + i, layer);
    }
    if (rc == 0) {
        s->ring_tile = tile;
        s->taken += there;
        s->pass_bytes += there * s->block_bytes;
        *n = there;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void wr_kv_give_back(struct wr_kv *kv, uint64_t fence)
{
    struct wr_kv_store *s = kv->store;
    pthread_mutex_lock(&s->lock);
    for (; s->given < s->taken; s->given++) {
        struct wr_kv_ring_slot *slot = &s->slot[s->given % s->layout.n_ring];
        slot->ready = false;
        slot->fence = fence;
    }
    pthread_cond_signal(&s->for_reader);
    pthread_mutex_unlock(&s->lock);
}

struct wr_kv_stats wr_kv_stats(const struct wr_kv *kv)
{
    struct wr_kv_store *s = kv->store;
    struct wr_kv_stats stats = {0};
    if (s == NULL) return stats;
    pthread_mutex_lock(&s->lock);
    stats = (struct wr_kv_stats){.bytes_read = s->bytes_read,
        .n_reads = s->n_reads,
        .bytes_written = s->bytes_written,
        .n_writes = s->n_writes,
        .bytes_last_pass = s->last_pass_bytes,
        .stall_read_ns = s->stall_read_ns,
        .stall_write_ns = s->stall_write_ns,
        .direct = s->files[0].fd_direct >= 0};
    pthread_mutex_unlock(&s->lock);
    return stats;
}
