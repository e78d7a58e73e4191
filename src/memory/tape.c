/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O thread. It alone submits and completes reads once the engine is open. It follows the tape of one pass after the
 * other and begins the next pass's extents while compute is still in this one, since every pass begins the same way; only the
 * head's extents wait until it is known whether the pass wants logits.
 */
#include "memory/pager_state.h"

#define ROW_TAG (1ull << 63)
#define SLOT_POLL_NS 100000 /* with reads in flight and every slot taken: look again, a slot is freed without a signal */

struct tape {
    struct wr_pager *p;
    uint32_t pass, at; /* the entry to read next */
    uint32_t in_flight, rows_taken;
};

void wr_tape_wake(struct wr_pager *p)
{
    atomic_fetch_add(&p->wake, 1);
    if (atomic_load(&p->asleep)) wr_futex_wake(&p->wake, 1);
}

void wr_tape_progress(struct wr_pager *p)
{
    atomic_fetch_add(&p->progress, 1);
    if (atomic_load(&p->n_waiting) > 0) wr_futex_wake(&p->progress, INT32_MAX);
}

bool wr_tape_await(struct wr_pager *p, _Atomic uint32_t *word, uint32_t value)
{
    for (int spin = 0; spin < 64; spin++) {
        if (atomic_load_explicit(word, memory_order_acquire) == value) return true;
#ifdef WR_X86
        __builtin_ia32_pause();
#elif defined(WR_ARM64)
        __asm__ volatile("yield");
#endif
    }
    bool good;
    atomic_fetch_add(&p->n_waiting, 1);
    for (;;) {
        uint32_t seen = atomic_load(&p->progress);
        good = atomic_load_explicit(word, memory_order_acquire) == value;
        if (good || atomic_load(&p->failed)) break;
        wr_futex_wait(&p->progress, seen, UINT64_MAX);
    }
    atomic_fetch_sub(&p->n_waiting, 1);
    return good;
}

static void fail(struct wr_pager *p, const weir_err *err)
{
    if (!atomic_load(&p->failed)) {
        p->error = *err;
        atomic_store(&p->failed, 1);
    }
    wr_tape_progress(p);
}

void wr_tape_loaded(struct wr_pager *p, uint32_t extent, uint32_t slot, uint32_t pass)
{
    const struct wr_extent *e = &p->plan->extents[extent];
    struct extent_state *s = &p->extent[extent];
    struct wr_ref ref = {WR_TIER_RAM, WR_REGION_RING, (uint64_t)slot * p->plan->slot_bytes, e->bytes, 0};
    wr_weight_crc_extent(p, extent, p->ring + ref.offset);
    if (p->device->ops->upload != NULL) p->device->ops->upload(p->device, &ref);
    atomic_fetch_add_explicit(&p->bytes_streamed, e->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->n_reads_streamed, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->pass_bytes[pass % 2], e->bytes, memory_order_relaxed);
    atomic_store_explicit(&s->ready, pass, memory_order_release);
}

static void complete(struct tape *t, const struct wr_io_done *done)
{
    struct wr_pager *p = t->p;
    t->in_flight--;
    if (done->code < 0) {
        fail(p, &done->err);
        return;
    }
    atomic_fetch_add_explicit(&p->n_reads, 1, memory_order_relaxed);
    if (done->tag & ROW_TAG) {
        atomic_fetch_add_explicit(&p->bytes_rows, p->rows.bytes[done->tag & ~ROW_TAG], memory_order_relaxed);
        atomic_fetch_add(&p->rows.done, 1);
    } else {
        /* The pass number was left in `ready`, one bit apart, when the read was submitted. */
        struct extent_state *s = &p->extent[done->tag];
        wr_tape_loaded(p, (uint32_t)done->tag, s->slot, atomic_load_explicit(&s->ready, memory_order_relaxed) & ~(1u << 31));
    }
    wr_tape_progress(p);
}

static void drain(struct tape *t)
{
    struct wr_io_done done[8];
    while (t->in_flight > 0) {
        uint32_t n = t->p->ops->wait(t->p->io, done, 8, UINT64_MAX);
        for (uint32_t i = 0; i < n; i++) complete(t, &done[i]);
    }
}

static void reset(struct tape *t)
{
    struct wr_pager *p = t->p;
    drain(t);
    atomic_store(&p->pass_bytes[0], 0);
    atomic_store(&p->pass_bytes[1], 0);
    for (uint32_t e = 0; e < p->plan->n_extents; e++) {
        atomic_store(&p->extent[e].left, 0);
        atomic_store(&p->extent[e].ready, 0);
    }
    for (uint32_t s = 0; s < p->plan->n_slots; s++) {
        atomic_store(&p->slot[s].busy, 0);
        p->slot[s].holds = 0;
    }
    t->pass = atomic_load(&p->begun) + 1;
    t->at = 0;
    t->rows_taken = atomic_load(&p->rows.posted);
    atomic_store(&p->rows.done, t->rows_taken);
    atomic_store(&p->failed, 0);
    atomic_store(&p->reset, 0);
    wr_tape_progress(p);
}

static bool submit_row(struct tape *t)
{
    struct wr_pager *p = t->p;
    uint32_t i = t->rows_taken % WR_ROW_SLOTS;
    const struct wr_tensor *tensor = p->plan->weights[p->rows.weight].tensor;
    struct wr_io_request r = {
        &p->config.catalog->files[tensor->file], p->rows.offset[i], p->rows.bytes[i], p->row_slots + i * p->plan->row_slot_bytes, ROW_TAG | i};
    if (!p->ops->submit(p->io, &r)) return false;
    t->rows_taken++;
    t->in_flight++;
    return true;
}

enum next { SUBMITTED, FULL, NO_SLOT, FENCED, IDLE }; /* FENCED: a slot will be free without anybody saying so */

/* A slot that nobody holds; n_slots: none (*fenced: one will be). */
static uint32_t free_slot(const struct wr_pager *p, bool *fenced)
{
    uint32_t slot = 0;
    for (; slot < p->plan->n_slots; slot++) {
        if (atomic_load_explicit(&p->slot[slot].busy, memory_order_acquire)) continue;
        if (p->device->ops->done(p->device, atomic_load_explicit(&p->slot[slot].fence, memory_order_relaxed))) break;
        *fenced = true;
    }
    return slot;
}

static enum next submit_extent(struct tape *t)
{
    struct wr_pager *p = t->p;
    const struct wr_plan *plan = p->plan;
    if (plan->n_tape == 0) return IDLE;
    while (t->at >= plan->n_tape - plan->n_tape_head) { /* past the body: the head's extents, if this pass wants them, then the next pass */
        bool known = (int32_t)(atomic_load(&p->begun) - t->pass) >= 0;
        if (t->at < plan->n_tape && !known) return IDLE;
        if (t->at < plan->n_tape && atomic_load(&p->head_pass) == t->pass) break;
        t->pass++;
        t->at = 0;
    }
    uint32_t index = plan->tape[t->at];
    const struct wr_extent *e = &plan->extents[index];
    struct extent_state *s = &p->extent[index];
    if (atomic_load_explicit(&s->left, memory_order_acquire) != 0) return NO_SLOT; /* still in use by the pass before */
    bool fenced = false, hit = false;
    uint32_t slot = plan->lru ? wr_lru_find(p, index, &hit, &fenced) : free_slot(p, &fenced);
    if (slot == plan->n_slots) return fenced ? FENCED : NO_SLOT;
    if (hit) { /* as if it had been read at once */
        wr_lru_use(p, index, slot);
        atomic_store_explicit(&s->left, e->n_touches, memory_order_release);
        atomic_store_explicit(&p->slot[slot].busy, 1, memory_order_release);
        atomic_store_explicit(&s->ready, t->pass, memory_order_release);
        wr_tape_progress(p);
        t->at++;
        return SUBMITTED;
    }
    s->slot = slot;
    atomic_store_explicit(&s->ready, t->pass | 1u << 31, memory_order_relaxed);
    atomic_store_explicit(&s->left, e->n_touches, memory_order_release);
    struct wr_io_request r = {&p->config.catalog->files[e->file], e->offset, e->bytes, p->ring + (uint64_t)slot * plan->slot_bytes, index};
    if (!p->ops->submit(p->io, &r)) {
        atomic_store_explicit(&s->left, 0, memory_order_release);
        return FULL;
    }
    atomic_store_explicit(&p->slot[slot].fence, 0, memory_order_relaxed);
    atomic_store_explicit(&p->slot[slot].busy, 1, memory_order_release);
    if (plan->lru) wr_lru_use(p, index, slot);
    t->in_flight++;
    t->at++;
    return SUBMITTED;
}

static void *run(void *arg)
{
    struct wr_pager *p = arg;
    struct tape t = {.p = p, .pass = 1, .at = p->n_filled};
    struct wr_io_done done[8];
    pthread_setname_np(pthread_self(), "weir-io");
    for (;;) {
        uint32_t wake = atomic_load(&p->wake);
        if (atomic_load(&p->stop)) break;
        if (atomic_load(&p->reset)) reset(&t);
        bool failed = atomic_load(&p->failed);
        while (!failed && t.in_flight < WR_PAGER_DEPTH && t.rows_taken != atomic_load(&p->rows.posted))
            if (!submit_row(&t)) break;
        enum next next = FULL;
        while (!failed && t.in_flight < WR_PAGER_DEPTH) {
            next = submit_extent(&t);
            if (next != SUBMITTED) break;
        }
        if (t.in_flight > 0) {
            uint32_t n = p->ops->wait(p->io, done, 8, t.in_flight < WR_PAGER_DEPTH ? SLOT_POLL_NS : UINT64_MAX);
            for (uint32_t i = 0; i < n; i++) complete(&t, &done[i]);
            continue;
        }
        uint64_t begin = (next == NO_SLOT || next == FENCED) && atomic_load(&p->active) ? wr_clock_ns() : 0;
        atomic_store(&p->rested, wake);
        atomic_store(&p->asleep, 1);
        if (atomic_load(&p->wake) == wake) wr_futex_wait(&p->wake, wake, next == FENCED ? SLOT_POLL_NS : UINT64_MAX);
        atomic_store(&p->asleep, 0);
        if (begin != 0) atomic_fetch_add_explicit(&p->stall_compute_ns, wr_clock_ns() - begin, memory_order_relaxed);
    }
    drain(&t);
    return NULL;
}

int wr_tape_start(struct wr_pager *p, weir_err *err)
{
    int failure = wr_thread_start(&p->thread, run, p);
    if (failure != 0) return wr_err_errno(err, WEIR_E_THREAD, failure, "cannot start the I/O thread");
    p->has_thread = true;
    return 0;
}
