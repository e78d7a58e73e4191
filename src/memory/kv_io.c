/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two threads of a spilled context. The reader follows the stream of blocks, (layer, tile) in the order of a pass, on into the next pass, and waits for
 * what the writer has not written yet; the writer writes full blocks in the order in which they come. Neither waits for compute but for work.
 */
#include <string.h>
#include <time.h>
#include "base/os.h"
#include "base/team.h"
#include "memory/kv_store.h"

#define POLL_NS 100000  /* a fence is under way: look again */
#define LOOK_NS 1000000 /* reads are in flight, of which the next to arrive says more: look whether there is room for others all the same */

static void nap(void)
{
    struct timespec pause = {.tv_nsec = POLL_NS};
    nanosleep(&pause, NULL);
}

/* ---- the writer ----------------------------------------------------------------------- */

static void *write_blocks(void *arg)
{
    struct wr_kv_store *s = arg;
    const struct wr_kv_config *c = &s->config;
    wr_thread_serves("weir-kv-write");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && (s->n_jobs == 0 || s->write_failed || s->paused || s->held)) pthread_cond_wait(&s->for_writer, &s->lock);
        if (s->stop) break;
        const struct wr_kv_job job = s->job[s->job_head];
        s->writing = true;
        pthread_mutex_unlock(&s->lock);
        while (!c->device->ops->done(c->device, job.fence)) nap();
        struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, job.place, s->block_bytes, 0};
        const void *block = wr_ref_address(c->device, &ref);
        weir_err err;
        int rc = wr_store_write(&s->config.file, wr_kv_place(&c->places, s->block_bytes, job.layer, job.tile), block, s->write_bytes, &err);
        if (rc == 0 && c->written != NULL) c->written(c->disk_user, job.layer, job.tile, block);
        pthread_mutex_lock(&s->lock);
        s->writing = false;
        if (rc == 0) {
            s->job_head = (s->job_head + 1) % s->max_jobs;
            s->n_jobs--;
            s->layer[job.layer].on_disk = job.tile + 1;
            s->bytes_written += s->write_bytes;
            s->n_writes++;
            if (job.slot != WR_KV_NONE) s->free_slot[s->n_free++] = job.slot;
            pthread_cond_signal(&s->for_reader);
        } else { /* the block stays where it is, and is tried again when the next pass begins */
            s->write_failed = true;
            s->write_err = err;
        }
        pthread_cond_signal(&s->for_leader);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the reader ----------------------------------------------------------------------- */

struct reading {
    struct wr_kv_store *s;
    struct wr_kv_cursor at;
    uint32_t in_flight;
};

/* The next block of the stream in at->layer and at->tile; false: not known yet. */
static bool find_next(const struct wr_kv_store *s, struct wr_kv_cursor *at)
{
    for (;;) {
        if (at->layer == s->config.n_layer) {
            if (at->pass >= s->known) return false;
            at->pass = at->pass + 1 < s->pass ? s->pass : at->pass + 1; /* those before it are over, and had no block for this thread */
            at->full = s->full[at->pass % 2];
            at->layer = at->tile = 0;
        }
        const struct wr_kv_layer *l = &s->layer[at->layer];
        if (at->tile < l->resident) at->tile = l->resident;
        if (!l->local && at->tile < at->full) return true;
        at->layer++;
        at->tile = 0;
    }
}

enum next { SUBMITTED, WAIT, POLL };

static enum next submit_next(struct reading *r)
{
    struct wr_kv_store *s = r->s;
    if (s->read_failed || s->submitted - s->given == s->layout.n_ring || !find_next(s, &r->at)) return WAIT;
    const bool base = r->at.tile < s->base_tiles;
    if (!base && r->at.tile >= s->layer[r->at.layer].on_disk) return WAIT;
    const uint32_t i = (uint32_t)(s->submitted % s->layout.n_ring);
    struct wr_kv_ring_slot *slot = &s->slot[i];
    if (!s->config.device->ops->done(s->config.device, slot->fence)) return POLL;
    const struct wr_kv_places *places = base ? &s->config.base_places : &s->config.places;
    struct wr_io_request request = {
        &s->files[base], wr_kv_place(places, s->block_bytes, r->at.layer, r->at.tile), (uint32_t)s->block_bytes, s->memory + s->ring + i * s->block_bytes, i};
    if (!s->ops->submit(s->io, &request)) return POLL;
    *slot = (struct wr_kv_ring_slot){.layer = r->at.layer, .tile = r->at.tile};
    s->submitted++;
    r->at.tile++;
    r->in_flight++;
    return SUBMITTED;
}

/* The lock is held, but while the engine waits. */
static void await(struct reading *r, uint64_t timeout_ns)
{
    struct wr_kv_store *s = r->s;
    struct wr_io_done done[8];
    pthread_mutex_unlock(&s->lock);
    uint32_t n = s->ops->wait(s->io, done, 8, timeout_ns);
    for (uint32_t i = 0; i < n; i++) {
        struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, s->ring + done[i].tag * s->block_bytes, s->block_bytes, 0};
        const struct wr_kv_ring_slot *slot = &s->slot[done[i].tag];
        if (done[i].code == 0 && s->config.read != NULL)
            done[i].code = s->config.read(s->config.disk_user, slot->layer, slot->tile, s->memory + ref.offset, &done[i].err);
        if (done[i].code == 0 && s->config.device->ops->upload != NULL) s->config.device->ops->upload(s->config.device, &ref);
    }
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n; i++) {
        r->in_flight--;
        if (done[i].code == 0) {
            s->slot[done[i].tag].ready = true;
            s->bytes_read += s->block_bytes;
            s->n_reads++;
        } else {
            s->slot[done[i].tag].failed = true;
            if (!s->read_failed) s->read_err = done[i].err;
            s->read_failed = true;
        }
    }
    if (n > 0 && (s->read_failed || wr_kv_ready(s) >= s->wanted)) pthread_cond_signal(&s->for_leader);
}

static void start_again(struct reading *r)
{
    struct wr_kv_store *s = r->s;
    while (r->in_flight > 0) await(r, UINT64_MAX);
    for (uint32_t i = 0; i < s->layout.n_ring; i++) s->slot[i].ready = s->slot[i].failed = false;
    s->submitted = s->taken = s->given = 0;
    r->at = (struct wr_kv_cursor){.pass = s->pass, .layer = s->config.n_layer};
    s->read_failed = s->reset = false;
    pthread_cond_signal(&s->for_leader);
}

static void *read_blocks(void *arg)
{
    struct wr_kv_store *s = arg;
    struct reading r = {.s = s, .at = {.layer = s->config.n_layer}};
    wr_thread_serves("weir-kv-read");
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->reset) start_again(&r);
        enum next next;
        while ((next = submit_next(&r)) == SUBMITTED) {}
        if (r.in_flight > 0) {
            await(&r, next == POLL ? POLL_NS : LOOK_NS);
        } else if (next == POLL) {
            pthread_mutex_unlock(&s->lock);
            nap();
            pthread_mutex_lock(&s->lock);
        } else if (!s->stop && !s->reset) {
            pthread_cond_wait(&s->for_reader, &s->lock);
        }
    }
    while (r.in_flight > 0) await(&r, UINT64_MAX);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void wr_kv_restart_reader(struct wr_kv_store *s)
{
    if (!s->has_reader) return;
    pthread_mutex_lock(&s->lock);
    s->reset = true;
    pthread_cond_signal(&s->for_reader);
    while (s->reset) pthread_cond_wait(&s->for_leader, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

int wr_kv_read_block(struct wr_kv *kv, uint32_t layer, uint32_t tile, uint64_t place, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    pthread_mutex_lock(&s->lock);
    const bool base = tile < s->base_tiles;
    pthread_mutex_unlock(&s->lock);
    const struct wr_kv_places *places = base ? &s->config.base_places : &s->config.places;
    int rc = wr_file_read(&s->files[base], wr_kv_place(places, s->block_bytes, layer, tile), s->memory + place, s->block_bytes, err);
    if (s->files[base].fd_direct >= 0) wr_file_drop_cache(&s->files[base]);
    if (rc == 0 && s->config.read != NULL) rc = s->config.read(s->config.disk_user, layer, tile, s->memory + place, err);
    if (rc < 0) return rc;
    struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, place, s->block_bytes, 0};
    if (kv->device->ops->upload != NULL) kv->device->ops->upload(kv->device, &ref);
    pthread_mutex_lock(&s->lock);
    s->bytes_read += s->block_bytes;
    s->n_reads++;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* The next block that has a place of its own, below tile n_tiles; false: there is none. */
static bool next_resident(const struct wr_kv_store *s, uint32_t n_tiles, struct wr_kv_cursor *at)
{
    for (; at->layer < s->config.n_layer; at->layer++, at->tile = 0)
        if (at->tile < n_tiles && at->tile < s->layer[at->layer].resident) return true;
    return false;
}

static int resident_arrived(struct wr_kv_store *s, const struct wr_io_done *done, weir_err *err)
{
    const struct wr_kv_ring_slot *slot = &s->slot[done->tag];
    const struct wr_ref ref = {WR_TIER_RAM, WR_REGION_KV, s->layer[slot->layer].place + slot->tile * s->block_bytes, s->block_bytes, 0};
    if (done->code != 0) {
        if (err != NULL) *err = done->err;
        return done->code;
    }
    int rc = s->config.read != NULL ? s->config.read(s->config.disk_user, slot->layer, slot->tile, s->memory + ref.offset, err) : 0;
    if (rc < 0) return rc;
    if (s->config.device->ops->upload != NULL) s->config.device->ops->upload(s->config.device, &ref);
    s->bytes_read += s->block_bytes;
    s->n_reads++;
    return 0;
}

int wr_kv_read_resident(struct wr_kv_store *s, uint32_t n_tiles, weir_err *err)
{
    struct wr_kv_cursor at = {0};
    uint64_t is_free = s->layout.n_ring < 64 ? (UINT64_C(1) << s->layout.n_ring) - 1 : UINT64_MAX;
    uint32_t in_flight = 0;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (rc == 0 && is_free != 0 && next_resident(s, n_tiles, &at)) {
            const uint32_t i = (uint32_t)__builtin_ctzll(is_free);
            const bool base = at.tile < s->base_tiles;
            const struct wr_io_request request = {&s->files[base],
                wr_kv_place(base ? &s->config.base_places : &s->config.places, s->block_bytes, at.layer, at.tile), (uint32_t)s->block_bytes,
                s->memory + s->layer[at.layer].place + at.tile * s->block_bytes, i};
            if (!s->ops->submit(s->io, &request)) break;
            s->slot[i] = (struct wr_kv_ring_slot){.layer = at.layer, .tile = at.tile++};
            is_free &= is_free - 1;
            in_flight++;
        }
        if (in_flight == 0) {
            if (rc == 0 && next_resident(s, n_tiles, &at)) rc = wr_err(err, WEIR_E_READ, "the engine that reads keys and values takes no request");
            break;
        }
        struct wr_io_done done[8];
        const uint32_t n = s->ops->wait(s->io, done, 8, UINT64_MAX);
        for (uint32_t i = 0; i < n; i++) {
            in_flight--;
            is_free |= UINT64_C(1) << done[i].tag;
            const int failed = resident_arrived(s, &done[i], rc == 0 ? err : NULL);
            if (rc == 0) rc = failed;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int wr_kv_read_part(const struct wr_kv *kv, uint32_t layer, uint32_t tile, uint64_t at, void *dst, size_t n, weir_err *err)
{
    const struct wr_kv_store *s = kv->store;
    const bool base = tile < s->base_tiles; /* only a pass changes it */
    const struct wr_kv_places *places = base ? &s->config.base_places : &s->config.places;
    return wr_file_read(&s->files[base], wr_kv_place(places, s->block_bytes, layer, tile) + at, dst, n, err);
}

uint32_t wr_kv_on_disk(const struct wr_kv *kv)
{
    struct wr_kv_store *s = kv->store;
    uint32_t n = UINT32_MAX;
    pthread_mutex_lock(&s->lock);
    for (uint32_t il = 0; il < kv->n_layer; il++)
        if (s->layer[il].on_disk < n) n = s->layer[il].on_disk;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ---- starting and stopping ------------------------------------------------------------ */

int wr_kv_start_threads(struct wr_kv_store *s, weir_err *err)
{
    const struct wr_kv_config *c = &s->config;
    int failure = 0;
    if (s->layout.n_ring > 0) {
        struct wr_io_config io = {.depth = s->layout.n_ring,
            .memory = s->memory + s->ring,
            .memory_bytes = s->layout.n_ring * s->block_bytes,
            .files = s->files,
            .n_files = c->base != NULL ? 2 : 1,
            .ledger = c->ledger,
            .log = c->log};
        /* mmap is a baseline for weights: mapped, a file that is being written would be in memory twice. */
        int rc = wr_io_open(&s->io, &s->ops, strcmp(c->io, "mmap") == 0 ? "auto" : c->io, &io, err);
        if (rc < 0) return rc;
        failure = wr_thread_start(&s->reader, read_blocks, s);
        s->has_reader = failure == 0;
    }
    if (failure == 0) {
        failure = wr_thread_start(&s->writer, write_blocks, s);
        s->has_writer = failure == 0;
    }
    return failure == 0 ? 0 : wr_err_errno(err, WEIR_E_THREAD, failure, "cannot start a thread that reads or writes keys and values");
}

void wr_kv_stop_threads(struct wr_kv_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->for_reader);
    pthread_cond_broadcast(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
    if (s->has_reader) pthread_join(s->reader, NULL);
    if (s->has_writer) pthread_join(s->writer, NULL);
    if (s->io != NULL) s->ops->close(s->io);
    s->io = NULL;
    s->has_reader = s->has_writer = s->stop = false;
}

int wr_kv_rebase(struct wr_kv *kv, const struct wr_file *base, const struct wr_kv_places *places, uint32_t n_tiles, weir_err *err)
{
    struct wr_kv_store *s = kv->store;
    wr_kv_truncate(kv, 0);
    wr_kv_stop_threads(s); /* the engine knows the files that it was opened with */
    s->files[1] = *base;
    s->config.base = &s->files[1];
    s->config.base_places = *places;
    s->base_tiles = n_tiles;
    s->write_failed = false;
    s->known = s->pass;
    s->reset = true; /* the reader begins behind the passes that there were, and not with the one that comes next */
    int rc = wr_kv_start_threads(s, err);
    if (rc == 0)
        wr_kv_restart_reader(s);
    else
        wr_kv_stop_threads(s);
    return rc;
}
