/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pager.h"

#include <string.h>
#include "memory/pager_state.h"

uint64_t wr_pager_seam_bytes(uint64_t max_row_bytes) { return wr_round_up(WR_PANEL_ROWS * max_row_bytes, 64); }

static bool cancelled(const struct wr_pager *p) { return p->config.cancel != NULL && *p->config.cancel != 0; }

/* Norms and biases: small, scattered, read through the page cache and widened to f32. */
static int load_vectors(struct wr_pager *p, weir_err *err)
{
    const struct wr_catalog *c = p->config.catalog;
    for (uint32_t i = 0; i < p->plan->n_weights; i++) {
        const struct wr_weight *w = &p->plan->weights[i];
        const struct wr_tensor *t = w->tensor;
        if (w->use != WR_USE_VECTOR) continue;
        uint64_t n = t->ne[0] * t->n_rows;
        float *out = (float *)(p->pinned + w->place);
        /* Raw bytes are never longer than the f32 values: they are read into the end of their own place and widened from the front. */
        uint8_t *raw = (uint8_t *)out + n * sizeof(float) - t->bytes;
        int rc = wr_file_read(&c->files[t->file], t->offset, raw, t->bytes, err);
        if (rc < 0) return wr_err_prefix(err, rc, "tensor %s", t->name);
        wr_weight_crc_vector(p, i, raw);
        if (t->quant->id == WR_TYPE_F32) continue;
        for (uint64_t k = 0; k < n; k++) {
            uint8_t element[2];
            memcpy(element, raw + 2 * k, 2);
            t->quant->decode_f32(element, &out[k], 1);
        }
    }
    return 0;
}

static int load_pinned(struct wr_pager *p, weir_err *err)
{
    const struct wr_plan *plan = p->plan;
    const struct wr_io_ops *io = p->ops;
    uint64_t begin = wr_clock_ns(), done_bytes = 0, last = 0;
    uint32_t next = 0, in_flight = 0;
    int rc = 0;
    while (rc == 0 || in_flight > 0) {
        while (rc == 0 && next < plan->n_extents) {
            const struct wr_extent *e = &plan->extents[next];
            struct wr_io_request r = {&p->config.catalog->files[e->file], e->offset, e->bytes, p->pinned + e->place, next};
            if (e->pinned) {
                if (in_flight == WR_PAGER_DEPTH || !io->submit(p->io, &r)) break;
                in_flight++;
            }
            next++;
        }
        if (in_flight == 0) break;
        struct wr_io_done done[8];
        uint32_t n = io->wait(p->io, done, 8, UINT64_MAX);
        for (uint32_t i = 0; i < n; i++) {
            const struct wr_extent *e = &plan->extents[done[i].tag];
            in_flight--;
            if (done[i].code < 0 && rc == 0) {
                rc = done[i].code;
                if (err != NULL) *err = done[i].err;
            }
            struct wr_ref ref = {WR_TIER_RAM, WR_REGION_PINNED, e->place, e->bytes, 0};
            if (done[i].code == 0) wr_weight_crc_extent(p, (uint32_t)done[i].tag, p->pinned + e->place);
            if (done[i].code == 0 && p->device->ops->upload != NULL) p->device->ops->upload(p->device, &ref);
            done_bytes += e->bytes;
            p->n_reads++;
        }
        if (rc == 0 && cancelled(p)) rc = wr_err(err, WEIR_E_CANCELLED, "interrupted while loading");
        uint64_t now = wr_clock_ns();
        if (p->config.progress != NULL && now - last > 100000000) {
            last = now;
            p->config.progress(p->config.progress_user, "load", done_bytes, plan->pinned, "bytes");
        }
    }
    p->bytes_pinned = done_bytes;
    p->load_seconds = (double)(wr_clock_ns() - begin) * 1e-9;
    return rc;
}

/* The tape's first extents, as many as are read ahead, are read here and not by the I/O thread: every pass begins with them, the first one finds them in
 * the ring, and where little is pinned they tell the disk's rate without a byte read twice. */
static int fill_ring(struct wr_pager *p, weir_err *err)
{
    const struct wr_plan *plan = p->plan;
    uint64_t begin = wr_clock_ns();
    uint32_t body = plan->n_tape - plan->n_tape_head, n = plan->n_ahead < body ? plan->n_ahead : body, next = 0, in_flight = 0;
    int rc = 0;
    while (in_flight > 0 || (rc == 0 && next < n)) {
        while (rc == 0 && next < n && in_flight < WR_PAGER_DEPTH) {
            const struct wr_extent *e = &plan->extents[plan->tape[next]];
            struct extent_state *s = &p->extent[plan->tape[next]];
            struct wr_io_request r = {&p->config.catalog->files[e->file], e->offset, e->bytes, p->ring + (uint64_t)next * plan->slot_bytes, next};
            if (!p->ops->submit(p->io, &r)) break;
            s->slot = next;
            atomic_store(&s->left, e->n_touches);
            atomic_store(&p->slot[next].busy, 1);
            if (plan->lru) wr_lru_use(p, plan->tape[next], next);
            next++;
            in_flight++;
        }
        struct wr_io_done done[8];
        uint32_t n_done = p->ops->wait(p->io, done, 8, UINT64_MAX);
        for (uint32_t i = 0; i < n_done; i++) {
            in_flight--;
            p->n_reads++;
            if (done[i].code < 0 && rc == 0) {
                rc = done[i].code;
                if (err != NULL) *err = done[i].err;
            }
            if (done[i].code == 0) wr_tape_loaded(p, plan->tape[done[i].tag], (uint32_t)done[i].tag, 1);
        }
        if (rc == 0 && cancelled(p)) rc = wr_err(err, WEIR_E_CANCELLED, "interrupted while loading");
    }
    p->n_filled = n;
    p->bytes_filled = p->bytes_streamed;
    p->load_seconds += (double)(wr_clock_ns() - begin) * 1e-9;
    return rc;
}

int wr_pager_open(struct wr_pager **out, const struct wr_pager_config *config, weir_err *err)
{
    const struct wr_plan *plan = config->plan;
    struct wr_pager *p = wr_mem_alloc(config->ledger, WR_ACCOUNT_META, sizeof *p, err);
    if (p == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    int rc = WEIR_E_NOMEM;
    p->config = *config;
    p->plan = plan;
    p->device = config->device;
    p->seam_bytes = wr_pager_seam_bytes(plan->max_row_bytes);
    uint64_t slots_bytes = (uint64_t)plan->n_slots * plan->slot_bytes, rows_bytes = plan->row_slot_bytes * WR_ROW_SLOTS;
    p->extent = wr_mem_array(config->ledger, WR_ACCOUNT_META, plan->n_extents, sizeof *p->extent, err);
    p->slot = wr_mem_array(config->ledger, WR_ACCOUNT_META, plan->n_slots, sizeof *p->slot, err);
    if (p->extent == NULL || p->slot == NULL) goto fail;
    rc = wr_weight_crc_init(p, err);
    if (rc < 0) goto fail;
    rc = WEIR_E_NOMEM;
    uint64_t pinned_bytes = plan->account[WR_ACCOUNT_WEIGHTS];
    p->pinned = wr_arena_take(config->arena, config->ledger, WR_ACCOUNT_WEIGHTS, pinned_bytes, err);
    p->ring = wr_arena_take(config->arena, config->ledger, WR_ACCOUNT_RING, slots_bytes + rows_bytes, err);
    uint8_t *seam = wr_arena_take(config->arena, config->ledger, WR_ACCOUNT_SCRATCH, p->seam_bytes * config->n_members, err);
    if (p->pinned == NULL || p->ring == NULL || seam == NULL) goto fail;
    p->row_slots = p->ring + slots_bytes;
    /* Pinned and ring are neighbours in the arena: one registration serves both. */
    struct wr_io_config io = {.depth = WR_PAGER_DEPTH,
        .memory = p->pinned,
        .memory_bytes = (uint64_t)(p->ring - p->pinned) + slots_bytes + rows_bytes,
        .files = config->catalog->files,
        .n_files = config->catalog->n_files,
        .ledger = config->ledger,
        .log = config->log};
    rc = wr_io_open(&p->io, &p->ops, config->io, &io, err);
    if (rc < 0) goto fail;
    rc = load_vectors(p, err);
    if (rc == 0) rc = p->device->ops->attach(p->device, WR_REGION_PINNED, p->pinned, pinned_bytes, err);
    if (rc == 0) rc = p->device->ops->attach(p->device, WR_REGION_RING, p->ring, slots_bytes + rows_bytes, err);
    if (rc == 0) rc = p->device->ops->attach(p->device, WR_REGION_SEAM, seam, p->seam_bytes * config->n_members, err);
    if (rc == 0) rc = load_pinned(p, err);
    if (rc == 0) rc = fill_ring(p, err);
    if (rc == 0 && slots_bytes + rows_bytes > 0) rc = wr_tape_start(p, err);
    if (rc < 0) goto fail;
    *out = p;
    return 0;
fail:
    if (rc == WEIR_E_NOMEM && err != NULL && err->code != 0) rc = err->code;
    wr_pager_close(p);
    return rc;
}

void wr_pager_close(struct wr_pager *p)
{
    if (p == NULL) return;
    if (p->has_thread) {
        atomic_store(&p->stop, 1);
        wr_tape_wake(p);
        pthread_join(p->thread, NULL);
    }
    if (p->io != NULL) p->ops->close(p->io);
    wr_mem_free(p->extent);
    wr_mem_free(p->slot);
    wr_mem_free(p->crc);
    wr_mem_free(p);
}

/* The I/O thread lets go of everything and starts the tape again; an error is forgotten. */
static void restart_tape(struct wr_pager *p)
{
    atomic_store(&p->reset, 1);
    wr_tape_wake(p);
    atomic_fetch_add(&p->n_waiting, 1);
    for (;;) {
        uint32_t seen = atomic_load(&p->progress);
        if (!atomic_load(&p->reset)) break;
        wr_futex_wait(&p->progress, seen, UINT64_MAX);
    }
    atomic_fetch_sub(&p->n_waiting, 1);
}

void wr_pager_begin(struct wr_pager *p, bool head)
{
    /* A read ahead failed between passes: nobody asked for it yet, so it is tried again. */
    if (atomic_load(&p->failed)) restart_tape(p);
    p->pass++;
    if (head) atomic_store(&p->head_pass, p->pass);
    atomic_store(&p->begun, p->pass);
    atomic_store(&p->active, 1);
    if (p->has_thread) wr_tape_wake(p);
}

void wr_pager_end(struct wr_pager *p, bool aborted)
{
    atomic_store(&p->active, 0);
    p->last_pass_bytes = atomic_exchange(&p->pass_bytes[p->pass % 2], 0);
    if (aborted && p->has_thread) restart_tape(p);
}

void wr_pager_settle(struct wr_pager *p)
{
    while (p->has_thread && !atomic_load(&p->failed) && atomic_load(&p->rested) != atomic_load(&p->wake))
        wr_futex_wait(&p->progress, atomic_load(&p->progress), 1000000);
}

uint32_t wr_pager_items(const struct wr_pager *p, uint32_t w) { return p->plan->weights[w].n_items; }

uint32_t wr_pager_item_rows(const struct wr_pager *p, uint32_t w) { return p->plan->weights[w].item_rows; }

const float *wr_pager_vector(const struct wr_pager *p, uint32_t w)
{
    struct wr_ref ref = {WR_TIER_RAM, WR_REGION_PINNED, p->plan->weights[w].place, 0, 0};
    return wr_ref_address(p->device, &ref);
}

/* The row's bytes if they are pinned, in one piece. */
static const void *pinned_row(const struct wr_pager *p, const struct wr_weight *w, uint64_t offset)
{
    uint32_t a = wr_plan_extent_at(p->plan, w, offset), b = wr_plan_extent_at(p->plan, w, offset + w->tensor->row_bytes - 1);
    for (uint32_t e = a; e <= b; e++)
        if (!p->plan->extents[e].pinned) return NULL;
    const struct wr_extent *e = &p->plan->extents[a];
    struct wr_ref ref = {WR_TIER_RAM, WR_REGION_PINNED, e->place + (offset - e->offset), w->tensor->row_bytes, 0};
    return wr_ref_address(p->device, &ref);
}

int wr_pager_rows(struct wr_pager *p, uint32_t weight, const int32_t *ids, size_t n, wr_row_fn *fn, void *user, weir_err *err)
{
    const struct wr_weight *w = &p->plan->weights[weight];
    const struct wr_tensor *t = w->tensor;
    for (size_t i = 0; i < n;) {
        const void *pinned[WR_ROW_SLOTS];
        uint32_t slot[WR_ROW_SLOTS], n_posted = 0, before = atomic_load(&p->rows.posted);
        size_t n_batch = n - i < WR_ROW_SLOTS ? n - i : WR_ROW_SLOTS;
        for (size_t j = 0; j < n_batch; j++) {
            uint64_t offset = t->offset + (uint64_t)ids[i + j] * t->row_bytes;
            pinned[j] = pinned_row(p, w, offset);
            if (pinned[j] != NULL) continue;
            slot[j] = (before + n_posted++) % WR_ROW_SLOTS;
            p->rows.offset[slot[j]] = wr_round_down(offset, WR_IO_ALIGN);
            p->rows.bytes[slot[j]] = (uint32_t)(wr_round_up(offset + t->row_bytes, WR_IO_ALIGN) - p->rows.offset[slot[j]]);
        }
        if (n_posted > 0) {
            p->rows.weight = weight;
            atomic_store(&p->rows.posted, before + n_posted);
            wr_tape_wake(p);
            uint64_t start = wr_clock_ns();
            bool good = wr_tape_await(p, &p->rows.done, before + n_posted);
            atomic_fetch_add_explicit(&p->stall_io_ns, wr_clock_ns() - start, memory_order_relaxed);
            if (!good) return wr_pager_error(p, err);
        }
        for (size_t j = 0; j < n_batch; j++) {
            uint64_t in = (t->offset + (uint64_t)ids[i + j] * t->row_bytes) & (WR_IO_ALIGN - 1);
            fn(user, i + j, pinned[j] != NULL ? pinned[j] : p->row_slots + slot[j] * p->plan->row_slot_bytes + in);
        }
        i += n_batch;
    }
    return 0;
}

int wr_pager_error(struct wr_pager *p, weir_err *err)
{
    if (!atomic_load(&p->failed)) return 0;
    if (err != NULL) *err = p->error;
    return p->error.code;
}

struct wr_pager_stats wr_pager_stats(const struct wr_pager *p)
{
    struct wr_pager_stats s = {.bytes_streamed = p->bytes_streamed,
        .bytes_pinned = p->bytes_pinned,
        .bytes_filled = p->bytes_filled,
        .bytes_last_pass = p->last_pass_bytes,
        .bytes_rows = p->bytes_rows,
        .bytes_seam = p->bytes_seam,
        .n_reads = p->n_reads,
        .n_reads_streamed = p->n_reads_streamed,
        .load_seconds = p->load_seconds,
        .stall_io_ns = p->stall_io_ns,
        .stall_compute_ns = p->stall_compute_ns,
        .engine = p->ops->name};
    uint64_t bytes, reads;
    p->ops->stats(p->io, &bytes, &reads, &s.direct);
    return s;
}
