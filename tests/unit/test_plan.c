/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan as data: properties that hold for every catalog, budget and flag, tried on catalogs from a seeded generator. What a property says is
 * worked out here from tensors and extents alone, with none of the plan's own arithmetic. A failure prints the seed of its case;
 * WEIR_TEST_SEED=N runs that case alone. One long file, since all properties share the generator and what is worked out of its cases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "memory/control.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define MAX_TENSORS 192
#define N_CASES 400

struct random {
    uint64_t x;
};
static uint64_t next_random(struct random *r) /* splitmix64 */
{
    uint64_t z = (r->x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static uint64_t between(struct random *r, uint64_t low, uint64_t high) { return low + next_random(r) % (high - low + 1); }
static bool chance(struct random *r, uint32_t percent) { return between(r, 1, 100) <= percent; }
/* Every order of magnitude is as likely. */
static uint64_t any_size(struct random *r, uint64_t low, uint64_t high)
{
    double octaves = 0;
    for (double x = (double)high / (double)low; x > 1; x /= 2) octaves++;
    uint64_t top = low << between(r, 0, (uint64_t)octaves);
    top = top > high ? high : top;
    return between(r, low, top < low ? low : top);
}

struct fixture {
    uint64_t seed;
    struct wr_tensor tensor[MAX_TENSORS];
    struct wr_use uses[MAX_TENSORS];
    uint32_t n_tensors;
    uint64_t dense_bytes; /* of DENSE and HEAD uses */
    struct wr_ledger ledger;
    struct wr_plan_input in;
};

static struct wr_tensor *add_tensor(struct fixture *f, enum wr_use_class use, uint64_t row_bytes, uint64_t n_rows)
{
    struct wr_tensor *t = &f->tensor[f->n_tensors++];
    *t = (struct wr_tensor){.name = "t", .n_dims = 2, .ne = {row_bytes, n_rows, 1, 1}, .n_rows = n_rows, .row_bytes = row_bytes, .bytes = row_bytes * n_rows};
    if (use == WR_USE_VECTOR) t->ne[0] = row_bytes / 4;
    f->uses[f->in.n_uses++] = (struct wr_use){t, use};
    if (use == WR_USE_DENSE || use == WR_USE_HEAD) f->dense_bytes += t->bytes;
    return t;
}

/* Places the tensors in the file: in the order of use, backwards, shuffled, or shuffled near their place. */
static void place_tensors(struct fixture *f, struct random *r)
{
    uint32_t order[MAX_TENSORS], n = f->n_tensors, how = (uint32_t)between(r, 0, 3);
    for (uint32_t i = 0; i < n; i++) order[i] = how == 1 ? n - 1 - i : i;
    for (uint32_t i = 0; i < n && how >= 2; i++) {
        uint32_t j = (uint32_t)(how == 2 ? between(r, 0, n - 1) : between(r, i, i + 4 < n ? i + 4 : n - 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    uint64_t at = any_size(r, 64, 4 * MIB), align = 8ull << between(r, 0, 9), max_gap = chance(r, 30) ? any_size(r, 1, 100 * KIB) : 0;
    if (chance(r, 15)) at += between(r, 1, 64) << between(r, 32, 41); /* past 2^32 or 2^40 */
    for (uint32_t i = 0; i < n; i++) {
        if (max_gap > 0 && chance(r, 50)) at += between(r, 0, max_gap);
        at = wr_round_up(at, align);
        f->tensor[order[i]].offset = at;
        at += f->tensor[order[i]].bytes;
    }
}

static void make_fixture(struct fixture *f, uint64_t seed)
{
    struct random r = {seed};
    memset(f, 0, sizeof *f);
    f->seed = seed;
    wr_ledger_init(&f->ledger);
    uint64_t n_layers = between(&r, 1, 8), embd_bytes = any_size(&r, 36, 16 * KIB), vocab = any_size(&r, 17, 20000), largest = any_size(&r, 8 * KIB, 4 * MIB);
    uint32_t n_norm_bytes = (uint32_t)any_size(&r, 64, 32 * KIB) / 4 * 4;
    bool tied = chance(&r, 50), real = chance(&r, 50);
    f->in = (struct wr_plan_input){.uses = f->uses, .ledger = &f->ledger};
    struct wr_tensor *embd = add_tensor(f, WR_USE_ROWS, embd_bytes, vocab);
    for (uint64_t il = 0; il < n_layers; il++) {
        uint64_t n = real ? 7 : between(&r, 1, 9);
        add_tensor(f, WR_USE_VECTOR, n_norm_bytes, 1);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t row_bytes = real ? embd_bytes : any_size(&r, 18, 40 * KIB), rows = any_size(&r, 1, 1 + largest / row_bytes);
            if (real) rows = wr_round_up(rows, 16);
            add_tensor(f, WR_USE_DENSE, row_bytes, rows);
            if (chance(&r, 20)) add_tensor(f, WR_USE_VECTOR, n_norm_bytes, 1);
        }
    }
    add_tensor(f, WR_USE_VECTOR, n_norm_bytes, 1);
    if (tied) {
        f->uses[f->in.n_uses++] = (struct wr_use){embd, WR_USE_HEAD};
        f->dense_bytes += embd->bytes;
    } else {
        add_tensor(f, WR_USE_HEAD, embd_bytes, vocab);
    }
    place_tensors(f, &r);

    f->in.kv_bytes_per_position = any_size(&r, 64, 512 * KIB);
    f->in.n_ctx = chance(&r, 50) ? 0 : (uint32_t)any_size(&r, 1, 2000);
    f->in.n_ctx_trained = (uint32_t)any_size(&r, 1, 200000);
    f->in.n_chunk = chance(&r, 60) ? 0 : (uint32_t)any_size(&r, 1, 600);
    f->in.n_threads = (uint32_t)any_size(&r, 1, 64);
    f->in.scratch_base = any_size(&r, 1, MIB);
    f->in.scratch_per_row = any_size(&r, 1, 512 * KIB);
    f->in.scratch_per_thread = any_size(&r, 1, 300 * KIB);
    f->in.tokenizer_bytes = any_size(&r, 1, 8 * MIB);
    f->in.process_bytes = 12 * MIB;
    f->in.pin_bytes = chance(&r, 75) ? WEIR_AUTO : between(&r, 0, f->dense_bytes + f->dense_bytes / 8);
    f->in.ring_bytes = chance(&r, 75) ? WEIR_AUTO : any_size(&r, 1, 16 * MIB);
    f->in.extent_bytes = chance(&r, 70) ? WEIR_AUTO : any_size(&r, 1, 2 * MIB);
    if (chance(&r, 50)) return;
    f->in.spec_most = (uint32_t)between(&r, 2, 65);
    f->in.spec_rows = chance(&r, 50) ? 0 : (uint32_t)between(&r, 2, f->in.spec_most);
    f->in.logits_bytes = any_size(&r, 4, MIB);
    f->in.idle_per_row = between(&r, 0, f->in.scratch_per_row);
    f->in.draft_bytes = any_size(&r, 1, 64 * KIB);
    f->in.draft_bytes_per_position = any_size(&r, 1, 100);
}

#define CHECK(condition, ...)                                                                                                                                  \
    do {                                                                                                                                                       \
        if (!(condition)) {                                                                                                                                    \
            print_error("seed %llu: %s\n", (unsigned long long)f->seed, #condition);                                                                           \
            fail_msg(__VA_ARGS__);                                                                                                                             \
        }                                                                                                                                                      \
    } while (0)
#define U(x) (unsigned long long)(x)

/* A work item and the extents that it reads, [first, last]. */
struct item {
    uint32_t weight, first, last;
};

static uint32_t find_extent(const struct wr_plan *p, const struct wr_weight *w, uint64_t byte)
{
    for (uint32_t e = w->first_extent; e < w->first_extent + w->n_extents; e++)
        if (byte >= p->extents[e].offset && byte < p->extents[e].offset + p->extents[e].bytes) return e;
    return UINT32_MAX;
}

static bool every_row(enum wr_use_class use) { return use == WR_USE_DENSE || use == WR_USE_HEAD; }

/* Every byte of a weight lies in its extents; *items are those of a pass in order. */
static uint32_t check_cover(const struct fixture *f, const struct wr_plan *p, struct item *items)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const struct wr_weight *w = &p->weights[i];
        const struct wr_tensor *t = f->uses[i].tensor;
        CHECK(w->tensor == t && w->use == f->uses[i].use, "weight %u", i);
        if (w->use == WR_USE_VECTOR) continue;
        CHECK(w->n_extents > 0 && w->first_extent + w->n_extents <= p->n_extents, "weight %u: extents %u + %u", i, w->first_extent, w->n_extents);
        const struct wr_extent *e = &p->extents[w->first_extent];
        CHECK(e->offset <= t->offset && e[w->n_extents - 1].offset + e[w->n_extents - 1].bytes >= t->offset + t->bytes, "weight %u is not covered", i);
        for (uint32_t x = 0; x < w->n_extents; x++) {
            CHECK(e[x].bytes > 0 && e[x].file == t->file && (x == 0 || e[x - 1].offset + e[x - 1].bytes == e[x].offset), "weight %u, extent %u", i, x);
            uint64_t first = e[x].offset > t->offset ? e[x].offset : t->offset, end = e[x].offset + e[x].bytes;
            if (end > t->offset + t->bytes) end = t->offset + t->bytes;
            CHECK(end > first, "weight %u: extent %u holds none of it", i, x);
            CHECK(
                wr_plan_extent_at(p, w, first) == w->first_extent + x && wr_plan_extent_at(p, w, end - 1) == w->first_extent + x, "weight %u, extent %u", i, x);
        }
        if (!every_row(w->use)) continue;
        CHECK(w->item_rows > 0 && w->item_rows % WR_PANEL_ROWS == 0, "weight %u: %u rows an item", i, w->item_rows);
        CHECK(w->n_items == (t->n_rows + w->item_rows - 1) / w->item_rows, "weight %u: %u items", i, w->n_items);
        for (uint64_t row = 0; row < t->n_rows; row += w->item_rows) {
            uint64_t end = row + w->item_rows < t->n_rows ? row + w->item_rows : t->n_rows;
            items[n++] = (struct item){i, find_extent(p, w, t->offset + row * t->row_bytes), find_extent(p, w, t->offset + end * t->row_bytes - 1)};
        }
    }
    return n;
}

static uint64_t count_items(const struct wr_plan *p)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < p->n_weights; i++) n += p->weights[i].n_items;
    return n;
}

static void check_accounts(const struct fixture *f, const struct wr_plan *p)
{
    uint64_t sum = 0, kv;
    CHECK(wr_mul_u64(f->in.kv_bytes_per_position, wr_round_up(p->n_ctx, 16), &kv), "context %u", p->n_ctx);
    for (int a = 0; a < WR_N_ACCOUNTS; a++) {
        CHECK(p->account[a] <= f->in.budget, "account %s is %llu", wr_account_name(a), U(p->account[a]));
        sum += p->account[a];
    }
    CHECK(sum <= f->in.budget, "accounts %llu, budget %llu", U(sum), U(f->in.budget));
    CHECK(p->min_budget <= f->in.budget, "least %llu", U(p->min_budget));
    CHECK(p->account[WR_ACCOUNT_KV] >= kv, "kv %llu of %llu", U(p->account[WR_ACCOUNT_KV]), U(kv));
    CHECK(p->account[WR_ACCOUNT_RING] >= (uint64_t)p->n_slots * p->slot_bytes + WR_ROW_SLOTS * p->row_slot_bytes + wr_io_memory_bytes(1), "ring %llu",
        U(p->account[WR_ACCOUNT_RING]));
    CHECK(p->account[WR_ACCOUNT_SCRATCH] >= f->in.scratch_base + f->in.scratch_per_row * p->max_rows + f->in.scratch_per_thread * f->in.n_threads, "scratch");
    CHECK(p->max_rows >= p->n_chunk && p->max_rows >= p->n_spec_rows && (f->in.n_chunk > 0 || p->max_rows == p->n_chunk || p->n_chunk == p->n_ctx),
        "%u rows, chunk %u", p->max_rows, p->n_chunk);
    CHECK(p->n_spec_rows >= f->in.spec_rows && p->n_spec_rows <= f->in.spec_most && p->n_idle_logits <= p->n_spec_rows, "a burst of %u", p->n_spec_rows);
    CHECK(p->n_idle_logits * f->in.logits_bytes <= p->max_rows * f->in.idle_per_row, "%u rows of idle scratch", p->n_idle_logits);
    CHECK(p->n_spec_rows == 0 || p->account[WR_ACCOUNT_DRAFT] >= (p->n_spec_rows - p->n_idle_logits) * f->in.logits_bytes + f->in.draft_bytes +
                                                                     p->n_draft_positions * f->in.draft_bytes_per_position,
        "draft %llu", U(p->account[WR_ACCOUNT_DRAFT]));
    CHECK(f->in.spec_rows == 0 || p->n_draft_positions == p->n_ctx, "room for %u tokens", p->n_draft_positions);
    CHECK(p->account[WR_ACCOUNT_TOKENIZER] >= f->in.tokenizer_bytes && p->account[WR_ACCOUNT_PROCESS] == f->in.process_bytes, "constant accounts");
    CHECK(p->account[WR_ACCOUNT_META] >= wr_ledger_used(&f->ledger, WR_ACCOUNT_META) + (uint64_t)p->n_extents * 16 + (uint64_t)p->n_slots * 16 + 64 * KIB,
        "meta %llu", U(p->account[WR_ACCOUNT_META]));
    CHECK(p->n_ctx > 0 && (f->in.n_ctx == 0 ? p->n_ctx <= f->in.n_ctx_trained : p->n_ctx == f->in.n_ctx), "context %u", p->n_ctx);
    CHECK(p->max_context >= p->n_ctx, "largest context %u of %u", p->max_context, p->n_ctx);
    CHECK(p->n_chunk > 0 && p->n_chunk <= p->n_ctx && (f->in.n_chunk == 0 || p->n_chunk == f->in.n_chunk || p->n_chunk == p->n_ctx), "chunk %u", p->n_chunk);
    CHECK(p->slot_bytes % WR_IO_ALIGN == 0 && p->row_slot_bytes % WR_IO_ALIGN == 0, "slots of %u", p->slot_bytes);
}

/* Places in the pinned region: vectors in front, pinned extents behind them, nothing on top of another. */
static void check_places(const struct fixture *f, const struct wr_plan *p)
{
    uint64_t end = 0, pinned = 0;
    for (uint32_t i = 0; i < p->n_weights; i++) {
        if (p->weights[i].use != WR_USE_VECTOR) continue;
        CHECK(p->weights[i].place >= end && p->weights[i].place % 64 == 0, "vector %u", i);
        end = p->weights[i].place + f->uses[i].tensor->ne[0] * 4;
    }
    CHECK(end <= p->vector_bytes, "vectors end at %llu", U(end));
    end = p->vector_bytes;
    for (uint32_t x = 0; x < p->n_extents; x++) {
        const struct wr_extent *e = &p->extents[x];
        CHECK(e->offset % WR_IO_ALIGN == 0 && e->bytes % WR_IO_ALIGN == 0 && e->bytes <= p->slot_bytes, "extent %u: %llu, %u bytes", x, U(e->offset), e->bytes);
        if (!e->pinned) continue;
        CHECK(e->place >= end && e->place % WR_IO_ALIGN == 0, "extent %u at %llu", x, U(e->place));
        /* In memory as in the file, so that rows across the border are whole. */
        if (x > 0 && e[-1].pinned && e[-1].offset + e[-1].bytes == e->offset) CHECK(e->place == e[-1].place + e[-1].bytes, "extent %u", x);
        end = e->place + e->bytes;
        pinned += e->bytes;
    }
    CHECK(end <= p->account[WR_ACCOUNT_WEIGHTS], "pinned up to %llu", U(end));
    CHECK(pinned == p->pinned, "pinned %llu, said %llu", U(pinned), U(p->pinned));
}

/* Extents that a pass reads, in the order of first use; touches are what the items say. */
static uint32_t first_use_order(const struct fixture *f, const struct wr_plan *p, const struct item *items, uint32_t n_items, uint32_t *order)
{
    uint32_t n = 0, *touches = calloc(p->n_extents + 1, sizeof *touches);
    for (uint32_t i = 0; i < n_items; i++)
        for (uint32_t e = items[i].first; e <= items[i].last; e++)
            if (touches[e]++ == 0) order[n++] = e;
    for (uint32_t e = 0; e < p->n_extents; e++)
        CHECK(touches[e] == p->extents[e].n_touches, "extent %u: %u touches, said %u", e, touches[e], p->extents[e].n_touches);
    free(touches);
    return n;
}

static void check_tape(const struct fixture *f, const struct wr_plan *p, const struct item *items, const uint32_t *order, uint32_t n_order)
{
    uint32_t at = 0, n_head = 0;
    uint64_t streamed = 0, dense = 0;
    for (uint32_t i = 0; i < n_order; i++) {
        const struct wr_extent *e = &p->extents[order[i]];
        dense += e->bytes;
        if (e->pinned) continue;
        CHECK(at < p->n_tape && p->tape[at] == order[i], "tape entry %u", at);
        at++;
        streamed += e->bytes;
        n_head += e->head;
        CHECK(e->head || n_head == 0, "entry %u comes after the head", at);
    }
    CHECK(at == p->n_tape && n_head == p->n_tape_head, "tape of %u (%u)", p->n_tape, p->n_tape_head);
    bool all_cached = p->lru && p->n_slots == p->n_tape; /* nothing is read twice */
    CHECK(p->streamed == (all_cached ? 0 : streamed), "streamed %llu, said %llu", U(streamed), U(p->streamed));
    for (uint32_t e = 0; e < p->n_extents; e++) { /* an extent of token rows alone is pinned only where nothing is streamed */
        const struct wr_extent *x = &p->extents[e];
        CHECK(x->n_touches > 0 || !x->pinned || streamed == 0, "extent %u", e);
        bool used = x->n_touches > 0;
        for (uint32_t i = 0; !used && i < p->n_weights; i++)
            used = p->weights[i].use == WR_USE_ROWS && e - p->weights[i].first_extent < p->weights[i].n_extents;
        CHECK(used, "nobody reads extent %u", e);
    }
    /* Of what is read beyond the tensors: the ends of runs and the gaps inside them. */
    CHECK(dense <= f->dense_bytes + f->dense_bytes / 8 + (uint64_t)p->n_weights * 4 * WR_IO_ALIGN, "extents of %llu bytes for tensors of %llu", U(dense),
        U(f->dense_bytes));

    /* Even spread: over any window of the pass, streamed bytes differ from the window's share by no more than two extents. */
    double share = dense > 0 ? (double)streamed / (double)dense : 0, debt = 0, least = 0, most = 0;
    for (uint32_t i = 0; i < n_order; i++) {
        const struct wr_extent *e = &p->extents[order[i]];
        debt += (e->pinned ? 0.0 : 1.0) * e->bytes - share * e->bytes;
        if (debt < least) least = debt;
        if (debt > most) most = debt;
    }
    CHECK(most - least <= 2.0 * p->slot_bytes, "a window is off by %.2f extents, share %.3f", (most - least) / p->slot_bytes, share);
}

/* Runs three passes (the second without its head) with n_workers that take items in order and finish in any order. False: everybody waits for ever. */
static bool simulate(const struct wr_plan *p, const struct item *items, uint32_t n_items, uint32_t n_workers, struct random *r)
{
    uint32_t *loaded = calloc(p->n_extents + 1, sizeof *loaded), *left = calloc(p->n_extents + 1, sizeof *left), *held = calloc(n_workers, sizeof *held);
    uint32_t n_free = p->n_ahead, tape_pass = 1, at = 0, body = p->n_tape - p->n_tape_head;
    bool good = true;
    for (uint32_t pass = 1; good && pass <= 3; pass++) {
        uint32_t next = 0, n_held = 0, n_pass = n_items;
        while (pass == 2 && n_pass > 0 && p->weights[items[n_pass - 1].weight].use == WR_USE_HEAD) n_pass--;
        while (good && (next < n_pass || n_held > 0)) {
            while (n_held < n_workers && next < n_pass) held[n_held++] = next++;
            while (p->n_tape > 0) { /* the tape, as far as slots go */
                if (at >= p->n_tape || (at >= body && tape_pass < pass) || (at >= body && tape_pass == pass && pass == 2)) {
                    tape_pass++;
                    at = 0;
                    continue;
                }
                if (n_free == 0 || (at >= body && tape_pass > pass) || left[p->tape[at]] > 0) break;
                loaded[p->tape[at]] = tape_pass;
                left[p->tape[at]] = p->extents[p->tape[at]].n_touches;
                n_free--;
                at++;
            }
            uint32_t n_ready = 0, done = 0;
            for (uint32_t h = 0; h < n_held; h++) {
                bool ready = true;
                for (uint32_t e = items[held[h]].first; e <= items[held[h]].last; e++) ready &= p->extents[e].pinned || (loaded[e] == pass && left[e] > 0);
                if (ready && between(r, 0, n_ready++) == 0) done = h; /* each is as likely */
            }
            good = n_ready > 0;
            if (!good) break;
            for (uint32_t e = items[held[done]].first; e <= items[held[done]].last; e++)
                if (!p->extents[e].pinned && --left[e] == 0) n_free++;
            held[done] = held[--n_held];
        }
    }
    free(loaded);
    free(left);
    free(held);
    return good;
}

static void check_plan(const struct fixture *f, const struct wr_plan *p)
{
    struct item *items = calloc(count_items(p), sizeof *items);
    uint32_t *order = calloc(p->n_extents + 1, sizeof *order);
    check_accounts(f, p);
    check_places(f, p);
    uint32_t n_items = check_cover(f, p, items), n_order = first_use_order(f, p, items, n_items, order);
    check_tape(f, p, items, order, n_order);
    CHECK(p->n_tape == 0 || (p->n_slots > 0 && p->n_ahead > 0 && p->n_ahead <= p->n_slots), "no ring");
    for (uint32_t i = 0; i < p->n_weights; i++) { /* token rows that are not all in memory go through slots of their own */
        uint64_t row_bytes = f->uses[i].tensor->row_bytes;
        if (p->weights[i].use != WR_USE_ROWS) continue;
        for (uint32_t e = 0; e < p->weights[i].n_extents; e++)
            CHECK(p->extents[p->weights[i].first_extent + e].pinned || p->row_slot_bytes >= row_bytes + WR_IO_ALIGN - 1, "slots of %llu for rows of %llu",
                U(p->row_slot_bytes), U(row_bytes));
    }
    struct random r = {f->seed ^ 0x5eed};
    const uint32_t workers[] = {1, 2, 3, 16, 64};
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++)
        CHECK(simulate(p, items, n_items, workers[i], &r), "%u slots, %u workers: stuck", p->n_slots, workers[i]);
    free(order);
    free(items);
}

static void make_or_fail(struct fixture *f, struct wr_plan *p)
{
    weir_err err = {0};
    int rc = wr_plan_make(p, &f->in, &err);
    CHECK(rc == 0, "budget %llu: %s", U(f->in.budget), err.text);
}

/* The least budget is stated by the refusal, works, and one byte less is refused. */
static uint64_t check_least(struct fixture *f)
{
    struct wr_plan p;
    weir_err err = {0};
    char number[32];
    f->in.budget = 1;
    CHECK(wr_plan_make(&p, &f->in, &err) == WEIR_E_BUDGET && err.code == WEIR_E_BUDGET, "a budget of one byte");
    uint64_t least = p.min_budget;
    snprintf(number, sizeof number, "%llu", U(least));
    CHECK(strstr(err.text, number) != NULL, "%s", err.text);
    CHECK(p.weights == NULL && p.extents == NULL && wr_ledger_used(&f->ledger, WR_ACCOUNT_META) == 0, "a refused plan holds memory");
    f->in.budget = least - 1;
    CHECK(wr_plan_make(&p, &f->in, &err) == WEIR_E_BUDGET && p.min_budget == least, "least %llu", U(least));
    f->in.budget = least;
    make_or_fail(f, &p);
    CHECK(p.min_budget == least, "least %llu, then %llu", U(least), U(p.min_budget));
    check_plan(f, &p);
    wr_plan_free(&p);
    CHECK(wr_ledger_used(&f->ledger, WR_ACCOUNT_META) == 0, "a freed plan holds memory");
    return least;
}

/* What holds for a plan holds for the controls made of it: they stream everything, in the same memory. True if they could be made. */
static bool check_controls(struct fixture *f)
{
    struct wr_plan p;
    bool made = true;
    for (int control = WR_CONTROL_STRIPE + 1; made && control < WR_N_CONTROLS; control++) {
        weir_err err = {0};
        make_or_fail(f, &p);
        uint64_t memory = p.account[WR_ACCOUNT_WEIGHTS] + p.account[WR_ACCOUNT_RING], rest = 0, streamed = p.streamed;
        int rc = wr_plan_control(&p, control, 3, &err);
        made = rc == 0;
        CHECK(made || rc == (streamed == 0 ? WEIR_E_USAGE : WEIR_E_BUDGET), "control %d: %s", control, err.text);
        for (uint32_t e = 0; made && e < p.n_extents; e++) CHECK(!p.extents[e].pinned, "control %d: extent %u is pinned", control, e);
        if (made) {
            check_plan(f, &p);
            rest = memory - p.account[WR_ACCOUNT_WEIGHTS] - p.account[WR_ACCOUNT_RING];
            CHECK(rest <= memory, "control %d takes more than the stripe", control);
            CHECK(control != WR_CONTROL_LRU || rest < p.slot_bytes || p.n_slots == p.n_tape, "%llu are left to no slot", U(rest));
            CHECK(control == WR_CONTROL_LRU ? p.lru : !p.lru && p.n_ahead == p.n_slots, "control %d", control);
        }
        wr_plan_free(&p);
    }
    return made;
}

static uint32_t n_controlled;

static void run_case(uint64_t seed)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct random r = {seed ^ 0xb0d6e7};
    struct wr_plan p;
    make_fixture(f, seed);
    uint64_t least = check_least(f);
    for (int i = 0; i < 4; i++) {
        f->in.budget = i == 3 ? least + 4 * f->dense_bytes + 64 * MIB : least + between(&r, 0, f->dense_bytes + 8 * MIB);
        make_or_fail(f, &p);
        CHECK(p.min_budget == least, "least %llu, then %llu", U(least), U(p.min_budget));
        check_plan(f, &p);
        wr_plan_free(&p);
        n_controlled += check_controls(f);
    }
}

static void test_properties(void **state)
{
    for (uint64_t seed = 1; seed <= N_CASES; seed++) run_case(seed);
    assert_true(n_controlled > N_CASES / 2); /* elsewhere everything fits */
}

/* More memory never means a smaller context, and never more bytes to read but for the grain: two extents, a step of the chunk or the context, and a row of logits
 * more or less in idle scratch. */
static void test_monotone(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        make_fixture(f, 1000 + seed);
        f->in.pin_bytes = WEIR_AUTO;
        f->in.budget = 1;
        assert_int_equal(wr_plan_make(&p, &f->in, NULL), WEIR_E_BUDGET);
        uint64_t least = p.min_budget, top = 2 * f->dense_bytes + 3 * least + 4096 * f->in.kv_bytes_per_position, most_pinned = 0, before = 0;
        uint32_t n_ctx = 0, max_context = 0;
        for (int step = 0; step <= 200; step++) {
            f->in.budget = least + (uint64_t)((double)(top - least) * step * step / 40000.0);
            make_or_fail(f, &p);
            CHECK(p.n_ctx >= n_ctx && p.max_context >= max_context && p.n_ctx > 0, "context %u after %u (%u, %u)", p.n_ctx, n_ctx, p.max_context, max_context);
            uint64_t grain = (uint64_t)p.slot_bytes * 2 + 16 * f->in.scratch_per_row + (f->in.n_ctx == 0 ? 16 * f->in.kv_bytes_per_position : 0) +
                             (f->in.spec_rows > 0 ? f->in.logits_bytes : 0);
            CHECK(p.pinned + grain >= most_pinned, "budget %llu pins %llu, less than %llu at %llu (ring %u x %u, chunk %u, context %u)", U(f->in.budget),
                U(p.pinned), U(most_pinned), U(before), p.n_slots, p.slot_bytes, p.n_chunk, p.n_ctx);
            if (p.pinned > most_pinned) most_pinned = p.pinned;
            before = f->in.budget;
            n_ctx = p.n_ctx;
            max_context = p.max_context;
            wr_plan_free(&p);
        }
        CHECK(most_pinned >= f->dense_bytes, "in the end all is pinned");
    }
}

/* Keys and values that may go to disk: what memory and disk get, worked out anew, for budgets from the least on; and which goes first. */
static void check_spilled(const struct fixture *f, const struct wr_plan *p)
{
    const struct wr_kv_layout *l = &p->kv;
    const uint64_t block = f->in.kv_block_bytes, n_global = f->in.n_layer - f->in.n_local, tiles = p->n_ctx / WR_TILE;
    const uint64_t whole = f->in.kv_bytes_per_position * wr_round_up(p->n_ctx, 16);
    const bool all_weights = p->streamed == 0;
    /* All but what an automaton for speculation took of what would have been just enough, and a ring then. */
    const bool nearly_all = p->streamed <= f->in.budget / 64 + (uint64_t)(p->n_slots + 1) * p->slot_bytes + WR_ROW_SLOTS * p->row_slot_bytes;
    if (!p->spilled) {
        CHECK(p->account[WR_ACCOUNT_KV] >= whole, "kv %llu of %llu", U(p->account[WR_ACCOUNT_KV]), U(whole));
        /* Weights give way only where no disk was named, or little would be won. */
        if (!nearly_all && f->in.kv_disk_asked && f->in.kv_disk_bytes == UINT64_MAX && f->in.pin_bytes == WEIR_AUTO) {
            const struct wr_kv_layout least = wr_kv_layout_least(block, f->in.n_layer, f->in.n_local, f->in.window, p->n_ctx, p->n_chunk);
            CHECK(wr_kv_layout_bytes(&least) + 256 * KIB + wr_kv_layout_meta_bytes(&least) > whole / 8, "%llu bytes would do instead of %llu",
                U(wr_kv_layout_bytes(&least)), U(whole));
        }
        return;
    }
    CHECK(l->block_bytes == block && l->n_global == n_global && l->n_tiles == (p->n_ctx + WR_TILE - 1) / WR_TILE, "layout");
    CHECK(l->n_resident <= n_global * tiles, "%u resident tiles of %llu", l->n_resident, U(n_global * tiles));
    CHECK(n_global == 0 || (l->n_ring >= WR_KV_LEAST_RING && l->n_ring <= WR_KV_MOST_RING), "a ring of %u", l->n_ring);
    CHECK(n_global == 0 || l->n_pool >= n_global + (p->n_chunk + WR_TILE - 1) / WR_TILE, "%u slots for %llu tails and a chunk of %u", l->n_pool, U(n_global),
        p->n_chunk);
    CHECK(f->in.n_local == 0 || l->n_local_tiles == l->n_tiles || l->n_local_tiles * WR_TILE >= f->in.window + p->n_chunk, "%u slots of a window of %u",
        l->n_local_tiles, f->in.window);
    CHECK(p->account[WR_ACCOUNT_KV] >= ((uint64_t)f->in.n_local * l->n_local_tiles + l->n_pool + l->n_ring + l->n_resident) * block, "kv %llu",
        U(p->account[WR_ACCOUNT_KV]));
    CHECK(wr_kv_layout_disk_bytes(l, p->n_ctx) <= f->in.kv_disk_bytes, "%llu bytes of disk", U(wr_kv_layout_disk_bytes(l, p->n_ctx)));
    CHECK(l->n_resident == 0 || all_weights || f->in.pin_bytes != WEIR_AUTO || l->n_resident * block < 2ull * p->slot_bytes + block,
        "%u resident tiles, and %llu of weights are streamed", l->n_resident, U(p->streamed));
    /* The last position's pass reads what is neither resident nor in a tail; none reads before the position that is said. */
    uint64_t read = 0;
    const uint64_t last = (p->n_ctx - 1) / WR_TILE;
    for (uint64_t i = 0; i < n_global; i++) {
        const uint64_t resident = l->n_resident / n_global + (i < l->n_resident % n_global);
        read += last > resident ? last - resident : 0;
    }
    const uint32_t from = wr_kv_layout_read_from(l, p->n_ctx);
    CHECK(wr_kv_layout_streamed(l, p->n_ctx - 1) == read && (from > 0) == (read > 0), "%llu blocks, from position %u", U(read), from);
    CHECK(from == 0 || (wr_kv_layout_streamed(l, from) > 0 && wr_kv_layout_streamed(l, from - 1) == 0), "from position %u", from);
}

static void test_keys_and_values_on_disk(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    uint32_t n_spilled = 0, n_first = 0, n_memory = 0, n_limited = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        struct random r = {seed ^ 0xd15c};
        make_fixture(f, 3000 + seed);
        const uint64_t position = any_size(&r, 4, 4 * KIB) / 4 * 4; /* of a layer */
        f->in.n_layer = (uint32_t)between(&r, 1, 40);
        f->in.n_local = chance(&r, 40) ? (uint32_t)between(&r, 1, f->in.n_layer) : 0;
        f->in.window = f->in.n_local > 0 ? (uint32_t)any_size(&r, 1, 4096) : 0;
        f->in.kv_bytes_per_position = position * f->in.n_layer;
        f->in.kv_block_bytes = wr_round_up(position * WR_TILE, WR_IO_ALIGN);
        f->in.kv_disk_bytes = chance(&r, 70) ? UINT64_MAX : any_size(&r, MIB, GIB);
        f->in.kv_disk_asked = chance(&r, 60);
        f->in.n_ctx = chance(&r, 20) ? 0 : (uint32_t)any_size(&r, 1, 100000);
        if (seed % 2 == 0) { /* where weights may go first */
            f->in.n_ctx = (uint32_t)between(&r, 5000, 100000);
            f->in.kv_disk_asked = true;
            f->in.kv_disk_bytes = UINT64_MAX;
            f->in.pin_bytes = WEIR_AUTO;
        }
        f->in.budget = 1;
        assert_int_equal(wr_plan_make(&p, &f->in, NULL), WEIR_E_BUDGET);
        const uint64_t least = p.min_budget, whole = f->in.kv_bytes_per_position * (f->in.n_ctx > 0 ? f->in.n_ctx : 4096),
                       most = least + f->dense_bytes + whole;
        f->in.budget = least - 1;
        CHECK(wr_plan_make(&p, &f->in, NULL) == WEIR_E_BUDGET && p.min_budget == least, "less than the least, %llu, is taken", U(least));
        for (int step = 0; step <= 12; step++) {
            f->in.budget = step % 3 == 2 ? least + whole + between(&r, 0, f->dense_bytes) : least + (uint64_t)((double)(most - least) * step * step / 100.0);
            make_or_fail(f, &p);
            uint64_t sum = 0;
            for (int a = 0; a < WR_N_ACCOUNTS; a++) sum += p.account[a];
            CHECK(sum <= f->in.budget && p.min_budget == least, "accounts %llu, budget %llu", U(sum), U(f->in.budget));
            check_spilled(f, &p);
            CHECK(!p.spilled || f->in.n_ctx > 0 || f->in.kv_disk_asked, "nobody asked for the disk");
            n_spilled += p.spilled;
            n_memory += !p.spilled;
            n_limited += !p.spilled && f->in.kv_disk_bytes != UINT64_MAX;
            const bool named = p.spilled && f->in.kv_disk_asked && f->in.n_ctx > 0;
            const uint64_t pinned = p.pinned;
            wr_plan_free(&p);
            if (!named) continue;
            f->in.kv_disk_asked = false; /* the same without a disk that was named */
            make_or_fail(f, &p);
            f->in.kv_disk_asked = true;
            CHECK(p.spilled || f->in.pin_bytes != WEIR_AUTO || p.pinned <= pinned + 2ull * p.slot_bytes + f->in.scratch_per_row * 512,
                "%llu pinned, %llu with all keys and values in memory", U(pinned), U(p.pinned));
            n_first += !p.spilled;
            wr_plan_free(&p);
        }
    }
    assert_true(n_spilled > 200 && n_memory > 200 && n_limited > 20);
    if (n_first < 20) fail_msg("weights went before keys and values %u times", n_first);
}

/* What "this budget could hold" promises: that context works with the same budget, sixteen positions more do not. */
static void test_max_context(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    int n_full = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        make_fixture(f, 2000 + seed);
        f->in.n_ctx = 0;
        f->in.budget = 1;
        assert_int_equal(wr_plan_make(&p, &f->in, NULL), WEIR_E_BUDGET);
        f->in.budget = p.min_budget + f->dense_bytes / 3;
        make_or_fail(f, &p);
        uint32_t most = p.max_context, auto_ctx = p.n_ctx;
        wr_plan_free(&p);
        CHECK(auto_ctx <= 4096 && most <= f->in.n_ctx_trained && most >= auto_ctx, "context %u, at most %u", auto_ctx, most);
        f->in.n_ctx = most;
        make_or_fail(f, &p);
        wr_plan_free(&p);
        if (most == f->in.n_ctx_trained) continue;
        n_full++;
        f->in.n_ctx = most + 16;
        CHECK(wr_plan_make(&p, &f->in, NULL) == WEIR_E_BUDGET, "%u positions do fit", most + 16);
    }
    assert_true(n_full > 20);
}

/* A model of ordinary shape: 8 layers of 7 weights in the order of use. */
static void ordinary(struct fixture *f, bool tied, uint64_t base)
{
    memset(f, 0, sizeof *f);
    wr_ledger_init(&f->ledger);
    f->in = (struct wr_plan_input){.uses = f->uses,
        .kv_bytes_per_position = 8 * KIB,
        .n_ctx = 512,
        .n_ctx_trained = 8192,
        .n_threads = 4,
        .scratch_base = 256 * KIB,
        .scratch_per_row = 24 * KIB,
        .scratch_per_thread = 256 * KIB,
        .tokenizer_bytes = 2 * MIB,
        .process_bytes = 12 * MIB,
        .pin_bytes = WEIR_AUTO,
        .ring_bytes = WEIR_AUTO,
        .extent_bytes = WEIR_AUTO,
        .ledger = &f->ledger};
    struct wr_tensor *embd = add_tensor(f, WR_USE_ROWS, 576, 8000);
    for (int il = 0; il < 8; il++) {
        add_tensor(f, WR_USE_VECTOR, 4096, 1);
        for (int i = 0; i < 7; i++) add_tensor(f, WR_USE_DENSE, i == 6 ? 1584 : 576, i == 1 || i == 2 ? 512 : i == 4 || i == 5 ? 2816 : 1024);
    }
    if (tied) {
        f->uses[f->in.n_uses++] = (struct wr_use){embd, WR_USE_HEAD};
        f->dense_bytes += embd->bytes;
    } else {
        add_tensor(f, WR_USE_HEAD, 576, 8000);
    }
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        f->tensor[i].offset = base;
        base += wr_round_up(f->tensor[i].bytes, 32);
    }
}

static void test_all_fits(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    for (int tied = 0; tied < 2; tied++) {
        ordinary(f, tied, 1000000);
        f->in.budget = 3 * f->dense_bytes / 2 + 64 * MIB;
        make_or_fail(f, &p);
        check_plan(f, &p);
        assert_int_equal(p.streamed, 0);
        assert_int_equal(p.n_tape, 0);
        assert_int_equal(p.n_slots, 0);
        assert_int_equal(p.row_slot_bytes, 0); /* token rows too */
        assert_true(p.pinned >= f->dense_bytes);
        wr_plan_free(&p);
    }
}

static void test_flags(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    ordinary(f, false, 777 * 32);
    f->in.budget = 256 * MIB;
    const uint64_t pins[] = {0, 1, 4096, 100000, MIB, 10 * MIB, f->dense_bytes - 1, f->dense_bytes + 64 * MIB};
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++) {
        f->in.pin_bytes = pins[i];
        make_or_fail(f, &p);
        check_plan(f, &p);
        if (pins[i] < f->dense_bytes)
            CHECK(p.pinned <= pins[i] && p.pinned + p.slot_bytes > pins[i], "--pin %llu pins %llu", U(pins[i]), U(p.pinned));
        else
            CHECK(p.streamed == 0, "--pin of all streams %llu", U(p.streamed));
        uint64_t least = p.min_budget, budget = f->in.budget;
        wr_plan_free(&p);
        f->in.budget = least;
        make_or_fail(f, &p);
        check_plan(f, &p);
        if (pins[i] < f->dense_bytes) CHECK(p.pinned + p.slot_bytes > pins[i], "--pin %llu pins %llu at the least", U(pins[i]), U(p.pinned));
        wr_plan_free(&p);
        f->in.budget = budget;
    }
    f->in.pin_bytes = 0;
    const uint64_t extents[] = {1, 4096, 5000, 65536, 300000, 2 * MIB}, rings[] = {0, 64 * KIB, MIB, 7 * MIB, 64 * MIB};
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++) {
        f->in.extent_bytes = extents[i];
        f->in.ring_bytes = WEIR_AUTO;
        make_or_fail(f, &p);
        check_plan(f, &p);
        assert_int_equal(p.slot_bytes, wr_round_up(extents[i], WR_IO_ALIGN));
        uint32_t least_slots = p.n_slots;
        wr_plan_free(&p);
        for (size_t j = 0; j < sizeof rings / sizeof *rings; j++) {
            f->in.ring_bytes = rings[j];
            make_or_fail(f, &p);
            check_plan(f, &p);
            uint64_t ring = (uint64_t)p.n_slots * p.slot_bytes;
            CHECK(ring <= rings[j] || p.n_slots <= least_slots + 8, "--ring %llu gives %llu", U(rings[j]), U(ring));
            CHECK(ring + p.slot_bytes > rings[j] || p.n_slots == p.n_tape, "--ring %llu gives %llu", U(rings[j]), U(ring));
            wr_plan_free(&p);
        }
    }
}

/* Offsets and sizes past 2^32 and 2^40; a hundred GiB of weights in a budget of half a GiB. */
static void test_big_files(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    const uint64_t bases[] = {(1ull << 32) - 64, (1ull << 40) - 4096 * 3 + 32, (1ull << 52) + 32};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        ordinary(f, i == 1, bases[i]);
        f->in.budget = 48 * MIB;
        make_or_fail(f, &p);
        check_plan(f, &p);
        assert_true(p.streamed > 0 && p.extents[p.n_extents - 1].offset > bases[i]);
        wr_plan_free(&p);
    }
    ordinary(f, false, 1ull << 40);
    uint64_t at = 1ull << 40;
    f->dense_bytes = 0;
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        struct wr_tensor *t = &f->tensor[i];
        if (f->uses[i].use != WR_USE_VECTOR) t->n_rows = i == 30 ? (6 * GIB) / t->row_bytes : (1536 * MIB) / t->row_bytes; /* one past 2^32 by itself */
        t->bytes = t->row_bytes * t->n_rows;
        if (every_row(f->uses[i].use)) f->dense_bytes += t->bytes;
        t->offset = at;
        at = wr_round_up(at + t->bytes, 32);
    }
    f->in.budget = 512 * MIB;
    make_or_fail(f, &p);
    check_plan(f, &p);
    assert_true(p.streamed > 80 * GIB && p.pinned > 300 * MIB);
    wr_plan_free(&p);
}

/* Small neighbours with gaps of every width between them, and extents smaller than the gaps. */
static void test_gaps(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    for (uint64_t gap = 0; gap <= 40 * KIB; gap += 1504) {
        for (uint64_t extent = 4096; extent <= MIB; extent *= 4) {
            ordinary(f, true, 4096);
            uint64_t at = 4096 + gap;
            f->dense_bytes = 0;
            for (uint32_t i = 0; i < f->n_tensors; i++) {
                struct wr_tensor *t = &f->tensor[i];
                t->n_rows = f->uses[i].use == WR_USE_VECTOR ? 1 : 8;
                t->bytes = t->row_bytes * t->n_rows;
                if (f->uses[i].use == WR_USE_DENSE || i == 0) f->dense_bytes += t->bytes;
                t->offset = at;
                at = wr_round_up(at + t->bytes + gap, 32);
            }
            f->in.extent_bytes = extent;
            f->in.pin_bytes = 0;
            f->in.budget = 64 * MIB;
            make_or_fail(f, &p);
            check_plan(f, &p);
            wr_plan_free(&p);
        }
    }
}

/* Numbers at the end of their range are refused, with an honest size, and never wrap. */
static void test_absurd_sizes(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    struct wr_plan p;
    weir_err err;
    ordinary(f, true, 4096);
    f->in.budget = 1ull << 40;
    f->in.kv_bytes_per_position = 1ull << 34;
    f->in.n_ctx = 1u << 31;
    assert_int_equal(wr_plan_make(&p, &f->in, &err), WEIR_E_BUDGET);
    assert_true(p.min_budget > 1ull << 55);
    f->in.n_ctx = 0;
    f->in.n_ctx_trained = 1u << 31;
    f->in.budget = UINT64_MAX / 2;
    make_or_fail(f, &p);
    check_plan(f, &p);
    wr_plan_free(&p);
    ordinary(f, true, 4096);
    f->in.budget = 1ull << 40;
    f->in.ring_bytes = 1ull << 62;
    f->in.extent_bytes = 4096;
    make_or_fail(f, &p);
    check_plan(f, &p);
    wr_plan_free(&p);
    f->in.extent_bytes = 1ull << 62;
    assert_int_equal(wr_plan_make(&p, &f->in, &err), WEIR_E_USAGE);
}

int main(void)
{
    const char *only = getenv("WEIR_TEST_SEED");
    if (only != NULL) {
        run_case(strtoull(only, NULL, 0));
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_properties), cmocka_unit_test(test_monotone), cmocka_unit_test(test_max_context),
        cmocka_unit_test(test_keys_and_values_on_disk), cmocka_unit_test(test_all_fits), cmocka_unit_test(test_flags), cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_big_files), cmocka_unit_test(test_absurd_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
