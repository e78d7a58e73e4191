/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/plan.h"

#include <stdio.h>
#include <string.h>
#include "base/sort.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define HEAD_ITEM_ROWS 64 /* a tile of logits holds several items for every row of a chunk */
#define MIN_CHUNK 16u
#define MAX_CHUNK 512u
#define CHUNK_STEP 16u
#define GOOD_CHUNK 256u
#define GOOD_CHUNK_FROM (64 * MIB)
#define MIN_DEFAULT_CTX 256u
#define MAX_DEFAULT_CTX 4096u
#define MAX_EXTENT_BYTES (1ull << 30)
#define MAX_SLOTS_GIVEN (1u << 20)
#define HUGE_BYTES (1ull << 60) /* stands for every size that a file's or a user's numbers make absurd; sums of a few do not wrap */
/* What the pager and the engine allocate from META after the plan is made, less what grows with the extents. */
#define META_LATER_BYTES (192 * KIB)
#define META_PER_EXTENT_BYTES 32
/* The I/O engine's own tables, whatever the engine: at least wr_io_memory_bytes. */
#define IO_ENGINE_BYTES (64 * KIB)
_Static_assert(IO_ENGINE_BYTES >= 32768 + 32 * WR_MAX_FILES, "wr_io_memory_bytes of the most files");

/* Rings to choose from, largest first. 256 KiB x 16 reaches 92 % of the disk's best rate, 1 MiB x 8 97 %; nothing gains past 16 MiB. The ring grows
 * smoothly, by a part of the memory for weights, so that a larger budget never pins less. */
static const struct {
    uint64_t extent_bytes;
    uint64_t from_bytes; /* used where there is this much for weights and ring */
    uint32_t part;       /* the ring takes one part in so many */
} rings[] = {{1 * MIB, 256 * MIB, 32}, {512 * KIB, 0, 2}};
#define N_RINGS (sizeof rings / sizeof *rings)
#define KV_RING_BYTES (32 * MIB)
#define KV_RING_PART 16
#define KV_FREED_PART 8 /* keys and values go to disk before weights do where what they still take is at most one part in so many */
#define MIN_SLOTS 8u
#define MAX_SLOTS 16u

struct tensor_order { /* a streamable tensor: where it is in the file and when a pass needs it */
    const struct wr_tensor *tensor;
    uint32_t weight;
    uint64_t time; /* bytes used before it in a pass */
};

struct layout {
    uint64_t extent_bytes;
    uint32_t n_slots, max_live;
    uint64_t dense_bytes; /* of all extents that a pass reads */
    uint64_t rows_bytes;  /* of extents that only ROWS uses have */
};

static bool streams(enum wr_use_class use) { return use == WR_USE_DENSE || use == WR_USE_HEAD; }

static uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

/* Rows of a work item: big enough that taking one costs nothing (32 KiB and up), small enough that threads finish together. */
static uint32_t item_rows(const struct wr_tensor *t, enum wr_use_class use)
{
    if (use == WR_USE_HEAD) return HEAD_ITEM_ROWS;
    uint64_t bytes = t->bytes / 64;
    if (bytes < 32 * KIB) bytes = 32 * KIB;
    if (bytes > 256 * KIB) bytes = 256 * KIB;
    uint64_t panels = bytes / (t->row_bytes * WR_PANEL_ROWS);
    if (panels == 0) panels = 1;
    return (uint32_t)(panels * WR_PANEL_ROWS);
}

uint32_t wr_plan_extent_at(const struct wr_plan *plan, const struct wr_weight *w, uint64_t offset)
{
    const struct wr_extent *first = &plan->extents[w->first_extent];
    uint64_t i = (offset - first->offset) / first->bytes; /* all extents of a run but its last have one size */
    return w->first_extent + (uint32_t)i;
}

/* Whether b, the next in the file, goes on in a's run: near enough in the pass for the ring to hold an extent that both use, and in the file for the
 * gap (norms, padding) to be cheaper to read over than to cut at. A gap is far smaller than an extent, so that each holds bytes that are used. */
static bool runs_on(const struct wr_plan *plan, const struct tensor_order *a, const struct tensor_order *b, uint64_t target, uint64_t hold)
{
    if (plan->weights[a->weight].use != WR_USE_DENSE || plan->weights[b->weight].use != WR_USE_DENSE || a->tensor->file != b->tensor->file) return false;
    uint64_t gap = b->tensor->offset - (a->tensor->offset + a->tensor->bytes), cut = 2 * WR_IO_ALIGN, part = (a->tensor->bytes + b->tensor->bytes) / 16;
    if (gap > 32 * KIB || gap > target / 16 || gap > (part > cut ? part : cut)) return false;
    return distance(a->time + a->tensor->bytes, b->time) <= hold;
}

/* Cuts the run of tensors [from, to) of the file order into extents. */
static void cut_run(struct wr_plan *plan, const struct tensor_order *order, uint32_t from, uint32_t to, uint64_t target)
{
    uint64_t begin = wr_round_down(order[from].tensor->offset, WR_IO_ALIGN);
    uint64_t end = wr_round_up(order[to - 1].tensor->offset + order[to - 1].tensor->bytes, WR_IO_ALIGN);
    uint64_t n = (end - begin + target - 1) / target;
    uint64_t piece = wr_round_up((end - begin + n - 1) / n, WR_IO_ALIGN);
    uint32_t first = plan->n_extents;
    bool head = plan->weights[order[from].weight].use == WR_USE_HEAD;
    for (uint64_t at = begin; at < end; at += piece) {
        uint64_t bytes = end - at < piece ? end - at : piece;
        plan->extents[plan->n_extents++] = (struct wr_extent){.offset = at, .bytes = (uint32_t)bytes, .file = order[from].tensor->file, .head = head};
    }
    for (uint32_t i = from; i < to; i++) {
        struct wr_weight *w = &plan->weights[order[i].weight];
        w->first_extent = first + (uint32_t)((w->tensor->offset - begin) / piece);
        w->n_extents = wr_plan_extent_at(plan, w, w->tensor->offset + w->tensor->bytes - 1) - w->first_extent + 1;
    }
}

/* A tied head names the tensor that its ROWS use names. */
static void share_tied(struct wr_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_weights; i++)
        for (uint32_t j = 0; plan->weights[i].use == WR_USE_ROWS && j < plan->n_weights; j++)
            if (plan->weights[j].use == WR_USE_HEAD && plan->weights[j].tensor == plan->weights[i].tensor) {
                plan->weights[i].first_extent = plan->weights[j].first_extent;
                plan->weights[i].n_extents = plan->weights[j].n_extents;
            }
}

static bool is_tied(const struct wr_plan *plan, uint32_t i)
{
    for (uint32_t j = 0; j < plan->n_weights; j++)
        if (plan->weights[j].use == WR_USE_HEAD && plan->weights[j].tensor == plan->weights[i].tensor) return true;
    return false;
}

struct work {                   /* temporaries of one layout */
    struct tensor_order *order; /* by place in the file */
    uint64_t *offset;           /* use -> file offset, to sort by */
    uint32_t *sorted;
    uint32_t *position;  /* extent -> place on the full tape */
    uint32_t *last_item; /* extent -> its last work item */
    uint64_t *key;       /* extent -> when it is first used, in bytes of the pass */
    uint32_t *full_tape; /* all extents that a pass reads, in order */
    uint32_t n_full;
};

/* Slots that the earliest unfinished work item can need at once, were nothing pinned: extents loaded up to its last one and not yet done with. */
static uint32_t count_live(struct wr_plan *plan, struct work *work)
{
    uint32_t item = 0, live = 0, max_live = 0, loaded = 0;
    for (int pass = 0; pass < 2; pass++) {
        item = 0;
        for (uint32_t i = 0; i < plan->n_weights; i++) {
            struct wr_weight *w = &plan->weights[i];
            if (!streams(w->use)) continue;
            const struct wr_tensor *t = w->tensor;
            for (uint64_t r = 0; r < t->n_rows; r += w->item_rows, item++) {
                uint64_t r1 = r + w->item_rows < t->n_rows ? r + w->item_rows : t->n_rows;
                uint32_t a = wr_plan_extent_at(plan, w, t->offset + r * t->row_bytes);
                uint32_t b = wr_plan_extent_at(plan, w, t->offset + r1 * t->row_bytes - 1);
                for (uint32_t e = a; e <= b; e++) {
                    if (pass == 0) {
                        plan->extents[e].n_touches++;
                        work->last_item[e] = item;
                    } else if (work->position[e] >= loaded) {
                        live += work->position[e] + 1 - loaded;
                        loaded = work->position[e] + 1;
                    }
                }
                if (live > max_live) max_live = live;
                for (uint32_t e = a; pass == 1 && e <= b; e++)
                    if (work->last_item[e] == item) live--;
            }
        }
    }
    return max_live;
}

/* Fills extents, weights' extents and the full tape for one extent size. */
static void lay_out(struct wr_plan *plan, struct work *work, uint64_t target, uint32_t n_slots, struct layout *out)
{
    uint32_t n_order = 0;
    uint64_t time = 0;
    plan->n_extents = 0;
    for (uint32_t file = 0; file < plan->n_files; file++) {
        uint32_t first = n_order;
        for (uint32_t i = 0; i < plan->n_weights; i++) {
            const struct wr_weight *w = &plan->weights[i];
            if (w->tensor->file != file || w->use == WR_USE_VECTOR || (w->use == WR_USE_ROWS && is_tied(plan, i))) continue;
            work->offset[i] = w->tensor->offset;
            work->sorted[n_order++] = i;
        }
        wr_sort_by_key(work->sorted + first, n_order - first, work->offset);
    }
    for (uint32_t i = 0; i < plan->n_weights; i++) { /* offset becomes time: bytes used before it in a pass */
        work->offset[i] = time;
        if (streams(plan->weights[i].use)) time += plan->weights[i].tensor->bytes;
    }
    for (uint32_t i = 0; i < n_order; i++) {
        uint32_t w = work->sorted[i];
        work->order[i] = (struct tensor_order){plan->weights[w].tensor, w, work->offset[w]};
    }
    /* An extent that spans two tensors is held from the first use to the last: only where the ring can afford to wait. */
    uint64_t hold = target * n_slots / 3;
    for (uint32_t from = 0, to; from < n_order; from = to) {
        for (to = from + 1; to < n_order && runs_on(plan, &work->order[to - 1], &work->order[to], target, hold);) to++;
        cut_run(plan, work->order, from, to, target);
    }
    share_tied(plan);

    work->n_full = 0;
    *out = (struct layout){.extent_bytes = target, .n_slots = n_slots};
    for (uint32_t e = 0; e < plan->n_extents; e++) {
        work->key[e] = UINT64_MAX;
        work->last_item[e] = 0;
    }
    for (uint32_t i = 0; i < n_order; i++) {
        const struct tensor_order *o = &work->order[i];
        const struct wr_weight *w = &plan->weights[o->weight];
        for (uint32_t e = w->first_extent; streams(w->use) && e < w->first_extent + w->n_extents; e++) {
            uint64_t in = plan->extents[e].offset > w->tensor->offset ? plan->extents[e].offset - w->tensor->offset : 0;
            if (o->time + in < work->key[e]) work->key[e] = o->time + in;
        }
    }
    for (uint32_t e = 0; e < plan->n_extents; e++) {
        if (work->key[e] == UINT64_MAX) {
            out->rows_bytes += plan->extents[e].bytes;
            continue;
        }
        work->full_tape[work->n_full++] = e;
        out->dense_bytes += plan->extents[e].bytes;
    }
    wr_sort_by_key(work->full_tape, work->n_full, work->key);
    for (uint32_t i = 0; i < work->n_full; i++) work->position[work->full_tape[i]] = i;
    out->max_live = count_live(plan, work);
    if (out->n_slots < out->max_live + 2) out->n_slots = out->max_live + 2;
    if (out->n_slots > work->n_full) out->n_slots = work->n_full;
}

static uint64_t page(uint64_t bytes) { return wr_round_up(bytes, WR_ARENA_ALIGN); }

/* K lies in blocks of 16 positions. */
static uint64_t kv_bytes(const struct wr_plan_input *in, uint32_t n_ctx)
{
    uint64_t bytes;
    return wr_mul_u64(in->kv_bytes_per_position, wr_round_up(n_ctx, 16), &bytes) && bytes < HUGE_BYTES ? page(bytes) : HUGE_BYTES;
}

/* Of a pass at most: a chunk's, or those of a verification. */
static uint32_t most_rows(const struct wr_plan_input *in, uint32_t chunk) { return chunk > in->spec_rows ? chunk : in->spec_rows; }

static struct wr_kv_layout least_kv(const struct wr_plan_input *in, uint32_t n_ctx, uint32_t chunk)
{
    return wr_kv_layout_least(in->kv_block_bytes, in->n_layer, in->n_local, in->window, n_ctx, most_rows(in, chunk));
}

/* What a spilled context takes beside the account of its keys and values: the store's tables, the engine that reads them. */
static uint64_t kv_meta_bytes(struct wr_kv_layout l)
{
    if (l.n_ring > 0) l.n_ring = WR_KV_MOST_RING;
    return page(wr_kv_layout_meta_bytes(&l));
}
static uint64_t kv_engine_bytes(const struct wr_kv_layout *l) { return l->n_ring > 0 ? IO_ENGINE_BYTES : 0; }

/* The least memory of a spilled context; HUGE_BYTES: it may not be one. */
static uint64_t spilled_bytes(const struct wr_plan_input *in, uint32_t n_ctx, uint32_t chunk)
{
    if (in->kv_block_bytes == 0 || in->kv_disk_bytes == 0) return HUGE_BYTES;
    const struct wr_kv_layout l = least_kv(in, n_ctx, chunk);
    if (wr_kv_layout_disk_bytes(&l, n_ctx) > in->kv_disk_bytes) return HUGE_BYTES;
    const uint64_t bytes = wr_kv_layout_bytes(&l);
    return bytes < HUGE_BYTES ? page(bytes) + kv_meta_bytes(l) + kv_engine_bytes(&l) : HUGE_BYTES;
}

static uint64_t text_bytes(const struct wr_plan_input *in, uint32_t n_ctx)
{
    return page(in->no_text ? 128 * KIB + sizeof(int32_t) * (uint64_t)n_ctx : wr_plan_text_bytes(n_ctx));
}

static uint64_t scratch_bytes(const struct wr_plan_input *in, uint32_t chunk)
{
    return page(in->scratch_base + in->scratch_per_row * most_rows(in, chunk) + in->scratch_per_thread * in->n_threads);
}

/* Rows of logits that fit in idle scratch. */
static uint32_t idle_logits(const struct wr_plan_input *in, uint32_t chunk)
{
    if (in->spec_most == 0) return 0;
    const uint64_t rows = most_rows(in, chunk), n = in->idle_per_row * rows / in->logits_bytes, most = rows < in->spec_most ? rows : in->spec_most;
    return (uint32_t)(n < most ? n : most);
}

/* What speculation needs. */
static uint64_t draft_bytes(const struct wr_plan_input *in, uint32_t n_ctx, uint32_t chunk)
{
    if (in->spec_rows == 0) return 0;
    const uint32_t idle = idle_logits(in, chunk), own = idle < in->spec_rows ? in->spec_rows - idle : 0;
    return page(in->draft_bytes + in->draft_bytes_per_position * n_ctx + own * in->logits_bytes + in->tree_bytes);
}

/* What an automaton gets that is not needed: of `spare` bytes a part that does not matter, so that more memory never pins less. */
#define DRAFT_PART 128
#define LEAST_DRAFT_POSITIONS 512u
static void take_draft(struct wr_plan *plan, const struct wr_plan_input *in, uint64_t spare)
{
    const uint64_t most = spare / DRAFT_PART, least = in->draft_bytes + in->draft_bytes_per_position * LEAST_DRAFT_POSITIONS;
    if (in->spec_most == 0 || plan->n_spec_rows < 2 || most < page(least)) {
        plan->n_spec_rows = plan->n_idle_logits = 0;
        plan->account[WR_ACCOUNT_DRAFT] = 0;
        return;
    }
    uint64_t n = (wr_round_down(most, WR_ARENA_ALIGN) - in->draft_bytes) / in->draft_bytes_per_position;
    plan->n_draft_positions = n < plan->n_ctx ? (uint32_t)n : plan->n_ctx;
    plan->account[WR_ACCOUNT_DRAFT] = page(in->draft_bytes + in->draft_bytes_per_position * plan->n_draft_positions);
}

/* Everything but weights, their ring, keys and values. */
static uint64_t fixed_bytes(const struct wr_plan *plan, const struct wr_plan_input *in, uint32_t n_ctx, uint32_t chunk)
{
    return in->process_bytes + plan->account[WR_ACCOUNT_META] + page(in->tokenizer_bytes) + text_bytes(in, n_ctx) +
           scratch_bytes(in, chunk < n_ctx ? chunk : n_ctx) + draft_bytes(in, n_ctx, chunk < n_ctx ? chunk : n_ctx) + page(plan->vector_bytes) +
           IO_ENGINE_BYTES;
}

enum where { IN_MEMORY, ON_DISK, EITHER }; /* keys and values */

static uint64_t kv_least(const struct wr_plan_input *in, uint32_t n_ctx, uint32_t chunk, enum where where)
{
    const uint64_t memory = where != ON_DISK ? kv_bytes(in, n_ctx) : HUGE_BYTES, disk = where != IN_MEMORY ? spilled_bytes(in, n_ctx, chunk) : HUGE_BYTES;
    return memory < disk ? memory : disk;
}

/* A longer chunk streams the weights less often in prefill, but its scratch is not pinned weights in decode: a 20th of the budget, and more for a chunk
 * of GOOD_CHUNK where that is a small part of it. It grows slower than the budget: a larger budget pins no less and has no shorter context. */
static uint64_t scratch_cap(const struct wr_plan_input *in)
{
    uint64_t cap = in->budget / 20, good = scratch_bytes(in, GOOD_CHUNK), spare = in->budget > GOOD_CHUNK_FROM ? (in->budget - GOOD_CHUNK_FROM) / 3 : 0;
    if (spare > good) spare = good;
    return cap > spare ? cap : spare;
}

static uint64_t ring_total(const struct wr_plan *plan, const struct layout *l) { return l->extent_bytes * l->n_slots + plan->row_slot_bytes * WR_ROW_SLOTS; }

struct least {        /* what the least memory depends on beside context and chunk */
    uint64_t weights; /* with their ring */
    enum where where;
};

static uint64_t least_bytes(const struct wr_plan *plan, const struct wr_plan_input *in, struct least least, uint32_t n_ctx, uint32_t chunk)
{
    return fixed_bytes(plan, in, n_ctx, chunk) + kv_least(in, n_ctx, chunk, least.where) + least.weights;
}

/* The largest context, a multiple of 16 up to `most`, whose least budget is within the budget; 0 if none. */
static uint32_t largest_context(const struct wr_plan *plan, const struct wr_plan_input *in, struct least least, uint32_t chunk, uint32_t most)
{
    if (most < 16) return least_bytes(plan, in, least, most, chunk) <= in->budget ? most : 0;
    uint32_t low = 0, high = most / 16;
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        if (least_bytes(plan, in, least, mid * 16, chunk) <= in->budget)
            low = mid;
        else
            high = mid - 1;
    }
    return low == most / 16 ? (most % 16 != 0 && least_bytes(plan, in, least, most, chunk) <= in->budget ? most : low * 16) : low * 16;
}

/* What a user who names no context gets: a good chunk has room beside it, since one without streams the weights for every few words of the prompt. */
static uint32_t default_context(const struct wr_plan *plan, const struct wr_plan_input *in, struct least least, uint32_t least_chunk, uint32_t most)
{
    struct wr_plan_input rest = *in;
    uint64_t chunk = scratch_bytes(in, least_chunk), good = scratch_bytes(in, GOOD_CHUNK), cap = scratch_cap(in);
    if (good > cap) good = cap;
    if (in->n_chunk == 0 && good > chunk) rest.budget -= good - chunk;
    return largest_context(plan, &rest, least, least_chunk, most);
}

/* Pins extents so that what remains is spread evenly over the pass: reads and compute then overlap all the time. */
static void stripe(struct wr_plan *plan, const struct work *work, uint64_t capacity, uint64_t dense_bytes)
{
    uint64_t streamed_goal = dense_bytes > capacity ? dense_bytes - capacity : 0;
    double share = dense_bytes > 0 ? (double)streamed_goal / (double)dense_bytes : 0, debt = 0;
    plan->pinned = 0;
    for (uint32_t i = 0; i < work->n_full; i++) {
        struct wr_extent *e = &plan->extents[work->full_tape[i]];
        debt += share * e->bytes;
        e->pinned = debt < 0.5 * e->bytes && plan->pinned + e->bytes <= capacity;
        if (e->pinned)
            plan->pinned += e->bytes;
        else
            debt -= e->bytes;
    }
    for (uint32_t i = 0; i < work->n_full; i++) { /* what rounding left over */
        struct wr_extent *e = &plan->extents[work->full_tape[i]];
        if (e->pinned || plan->pinned + e->bytes > capacity) continue;
        e->pinned = true;
        plan->pinned += e->bytes;
    }
    plan->streamed = dense_bytes - plan->pinned;
    for (uint32_t x = 0; x < plan->n_extents; x++) { /* token rows: last, only where every pass is served already */
        struct wr_extent *e = &plan->extents[x];
        if (work->key[x] != UINT64_MAX || plan->streamed > 0 || plan->pinned + e->bytes > capacity) continue;
        e->pinned = true;
        plan->pinned += e->bytes;
    }
    uint64_t place = page(plan->vector_bytes);
    for (uint32_t x = 0; x < plan->n_extents; x++) {
        struct wr_extent *e = &plan->extents[x];
        e->place = place;
        if (e->pinned) place += e->bytes;
    }
}

static double mib(uint64_t bytes) { return (double)bytes / (double)MIB; }

/* What would do instead of more memory. */
static void alternatives(const struct wr_plan *plan, const struct wr_plan_input *in, struct least least, uint32_t n_ctx, uint32_t chunk, char text[64])
{
    struct wr_plan_input more = *in;
    uint32_t fits = largest_context(plan, in, least, chunk, n_ctx);
    int n = fits > 0 ? snprintf(text, 64, " or -c %u", fits) : 0;
    more.kv_disk_bytes = UINT64_MAX;
    if (in->kv_block_bytes == 0 || in->kv_disk_bytes == UINT64_MAX || n_ctx <= fits) return;
    if (largest_context(plan, &more, (struct least){least.weights, EITHER}, chunk, n_ctx) != n_ctx) return;
    const struct wr_kv_layout l = least_kv(in, n_ctx, chunk);
    const uint64_t named = in->kv_file_bytes + n_ctx / WR_TILE * in->kv_file_tile_bytes;
    const unsigned long long need = wr_round_up(named > 0 ? named : wr_kv_layout_disk_bytes(&l, n_ctx), MIB) / MIB;
    snprintf(text + n, 64 - (size_t)n, " or --kv-disk %lluM, not %lluM", need, (unsigned long long)(in->kv_disk_bytes / MIB));
}

static int refuse(const struct wr_plan *plan, const struct wr_plan_input *in, struct least least, uint32_t n_ctx, uint32_t chunk, weir_err *err)
{
    char instead[64] = "";
    alternatives(plan, in, least, n_ctx, chunk, instead);
    /* What was asked for is part of the need, and the user may rather lower it. */
    bool pin = in->pin_bytes != WEIR_AUTO && in->pin_bytes > 0, ring = in->ring_bytes != WEIR_AUTO;
    const char *given = pin && ring ? " with this --pin and --ring" : pin ? " with this --pin" : ring ? " with this --ring" : "";
    char draft[32] = "";
    if (in->spec_rows > 0) snprintf(draft, sizeof draft, "draft %.1f, ", mib(draft_bytes(in, n_ctx, chunk)));
    return wr_err(err, WEIR_E_BUDGET,
        "needs --memory %lluM (%llu bytes)%s%s, have %.1f MiB, %llu bytes (MiB: process %.1f, kv(%u) %.1f, tokenizer %.1f, text %.1f, "
        "header %.1f, scratch %.1f, %sweights and ring %.1f)",
        (unsigned long long)(wr_round_up(plan->min_budget, MIB) / MIB), (unsigned long long)plan->min_budget, instead, given, mib(in->budget),
        (unsigned long long)in->budget, mib(in->process_bytes), n_ctx, mib(kv_least(in, n_ctx, chunk, least.where)), mib(page(in->tokenizer_bytes)),
        mib(text_bytes(in, n_ctx)), mib(plan->account[WR_ACCOUNT_META]), mib(scratch_bytes(in, chunk)), draft,
        mib(least.weights + page(plan->vector_bytes) + IO_ENGINE_BYTES));
}

uint64_t wr_plan_longest_row(const struct wr_use *uses, uint32_t n_uses)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < n_uses; i++)
        if (streams(uses[i].use) && uses[i].tensor->row_bytes > longest) longest = uses[i].tensor->row_bytes;
    return longest;
}

uint64_t wr_plan_used_bytes(const struct wr_plan *plan)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < plan->n_weights; i++)
        if (streams(plan->weights[i].use)) used += plan->weights[i].tensor->bytes;
    return used;
}

static int take_weights(struct wr_plan *plan, const struct wr_plan_input *in, uint64_t smallest_extent, struct work *work, weir_err *err)
{
    uint64_t n_extents = 1;
    plan->n_weights = in->n_uses;
    plan->max_row_bytes = wr_plan_longest_row(in->uses, in->n_uses);
    plan->weights = wr_mem_array(in->ledger, WR_ACCOUNT_META, in->n_uses, sizeof *plan->weights, err);
    if (plan->weights == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    for (uint32_t i = 0; i < in->n_uses; i++) {
        const struct wr_tensor *t = in->uses[i].tensor;
        struct wr_weight *w = &plan->weights[i];
        *w = (struct wr_weight){.tensor = t, .use = in->uses[i].use};
        if (t->file >= plan->n_files) plan->n_files = t->file + 1;
        if (w->use == WR_USE_VECTOR) {
            w->place = plan->vector_bytes;
            plan->vector_bytes += wr_round_up(t->ne[0] * t->n_rows * sizeof(float), 64);
            continue;
        }
        if (w->use == WR_USE_ROWS) {
            uint64_t slot = wr_round_up(t->row_bytes, WR_IO_ALIGN) + WR_IO_ALIGN;
            if (slot > plan->row_slot_bytes) plan->row_slot_bytes = slot;
        } else {
            w->item_rows = item_rows(t, w->use);
            w->n_items = (uint32_t)((t->n_rows + w->item_rows - 1) / w->item_rows);
        }
        n_extents += t->bytes / smallest_extent + 3;
    }
    if (n_extents > UINT32_MAX / 2) return wr_err(err, WEIR_E_UNSUPPORTED, "%llu extents: choose a larger --extent", (unsigned long long)n_extents);
    plan->extents = wr_mem_array(in->ledger, WR_ACCOUNT_META, n_extents, sizeof *plan->extents, err);
    plan->tape = wr_mem_array(in->ledger, WR_ACCOUNT_META, n_extents, sizeof *plan->tape, err);
    work->order = wr_mem_array(in->ledger, WR_ACCOUNT_META, in->n_uses, sizeof *work->order, err);
    work->offset = wr_mem_array(in->ledger, WR_ACCOUNT_META, in->n_uses, sizeof *work->offset, err);
    work->sorted = wr_mem_array(in->ledger, WR_ACCOUNT_META, in->n_uses, sizeof *work->sorted, err);
    work->position = wr_mem_array(in->ledger, WR_ACCOUNT_META, n_extents, sizeof *work->position, err);
    work->last_item = wr_mem_array(in->ledger, WR_ACCOUNT_META, n_extents, sizeof *work->last_item, err);
    work->key = wr_mem_array(in->ledger, WR_ACCOUNT_META, n_extents, sizeof *work->key, err);
    work->full_tape = wr_mem_array(in->ledger, WR_ACCOUNT_META, n_extents, sizeof *work->full_tape, err);
    if (!plan->extents || !plan->tape || !work->order || !work->offset || !work->sorted || !work->position || !work->last_item || !work->key ||
        !work->full_tape)
        return err != NULL ? err->code : WEIR_E_NOMEM;
    plan->account[WR_ACCOUNT_META] = page(wr_ledger_used(in->ledger, WR_ACCOUNT_META) + n_extents * META_PER_EXTENT_BYTES + META_LATER_BYTES);
    return 0;
}

static void free_work(struct work *work)
{
    wr_mem_free(work->order);
    wr_mem_free(work->offset);
    wr_mem_free(work->sorted);
    wr_mem_free(work->position);
    wr_mem_free(work->last_item);
    wr_mem_free(work->key);
    wr_mem_free(work->full_tape);
}

/* Lays out the largest ring that `room`, the memory for weights and ring, is enough for; on entry *layout has the least one, which fits. */
static void choose_ring(struct wr_plan *plan, struct work *work, uint64_t room, struct layout *layout)
{
    struct layout least = *layout;
    for (size_t i = 0; i < N_RINGS; i++) {
        uint64_t n_slots = room / rings[i].part / rings[i].extent_bytes;
        if (room < rings[i].from_bytes) continue;
        lay_out(plan, work, rings[i].extent_bytes, n_slots < MIN_SLOTS ? MIN_SLOTS : n_slots > MAX_SLOTS ? MAX_SLOTS : (uint32_t)n_slots, layout);
        if (ring_total(plan, layout) <= room) return;
    }
    lay_out(plan, work, least.extent_bytes, MIN_SLOTS, layout);
}

/* The ring of a spilled context, beyond the least one: a part of the memory for weights, since reads of few blocks at a time do not fill the disk's queue. */
static void choose_kv_ring(struct wr_kv_layout *kv, uint64_t room)
{
    uint64_t most = KV_RING_BYTES / kv->block_bytes, n = room / KV_RING_PART / kv->block_bytes;
    if (most > WR_KV_MOST_RING) most = WR_KV_MOST_RING;
    if (kv->n_ring > 0 && most > kv->n_ring) kv->n_ring += (uint32_t)(n < most - kv->n_ring ? n : most - kv->n_ring);
}

static uint32_t choose_chunk(const struct wr_plan *plan, const struct wr_plan_input *in, struct least need, uint32_t least_chunk)
{
    uint32_t chunk = in->n_chunk > 0 ? in->n_chunk : MAX_CHUNK;
    while (
        in->n_chunk == 0 && chunk > least_chunk && (scratch_bytes(in, chunk) > scratch_cap(in) || least_bytes(plan, in, need, plan->n_ctx, chunk) > in->budget))
        chunk -= CHUNK_STEP;
    if (in->n_chunk == 0 && chunk < in->spec_rows) chunk = in->spec_rows; /* which scratch has room for */
    return chunk < plan->n_ctx ? chunk : plan->n_ctx;
}

int wr_plan_make(struct wr_plan *plan, const struct wr_plan_input *input, weir_err *err)
{
    struct wr_plan_input copy = *input, *in = &copy;
    struct work work = {0};
    struct layout layout, least;
    *plan = (struct wr_plan){0};
    if (in->budget >= HUGE_BYTES) in->budget = HUGE_BYTES - 1; /* what is huge does not fit */
    bool given_extent = in->extent_bytes != WEIR_AUTO, given_ring = in->ring_bytes != WEIR_AUTO, given_pin = in->pin_bytes != WEIR_AUTO;
    if (given_extent && in->extent_bytes > MAX_EXTENT_BYTES)
        return wr_err(err, WEIR_E_USAGE, "--extent %llu is more than %llu", (unsigned long long)in->extent_bytes, MAX_EXTENT_BYTES);
    uint64_t extent = given_extent ? wr_round_up(in->extent_bytes, WR_IO_ALIGN) : rings[N_RINGS - 1].extent_bytes;
    if (extent < WR_IO_ALIGN) extent = WR_IO_ALIGN;
    int rc = take_weights(plan, in, extent, &work, err);
    if (rc < 0) goto done;

    /* The least: the smallest ring, or no ring and everything pinned, whichever is smaller. */
    uint64_t n_slots = given_ring ? in->ring_bytes / extent : MIN_SLOTS;
    lay_out(plan, &work, extent, n_slots < MAX_SLOTS_GIVEN ? (uint32_t)n_slots : MAX_SLOTS_GIVEN, &least);
    uint64_t pin_least = given_pin ? (in->pin_bytes < least.dense_bytes ? wr_round_down(in->pin_bytes, WR_IO_ALIGN) : least.dense_bytes) : 0;
    uint64_t row_slots = plan->row_slot_bytes * WR_ROW_SLOTS;
    bool may_pin_rows = !given_pin || least.rows_bytes == 0; /* --pin is for what every pass reads */
    uint64_t all_pinned = least.dense_bytes + (may_pin_rows && least.rows_bytes < row_slots ? least.rows_bytes : row_slots);
    bool may_pin_all = !given_pin || pin_least >= least.dense_bytes;
    uint64_t weights_min = ring_total(plan, &least) + pin_least;
    if (may_pin_all && all_pinned < weights_min) weights_min = all_pinned;

    uint32_t least_chunk = in->n_chunk > 0 ? in->n_chunk : MIN_CHUNK;
    uint32_t default_ctx = in->n_ctx_trained < MAX_DEFAULT_CTX ? in->n_ctx_trained : MAX_DEFAULT_CTX;
    uint32_t floor_ctx = in->n_ctx > 0 ? in->n_ctx : (default_ctx < MIN_DEFAULT_CTX ? default_ctx : MIN_DEFAULT_CTX);
    struct least need = {weights_min, in->n_ctx > 0 || in->kv_disk_asked ? EITHER : IN_MEMORY};
    plan->min_budget_n_ctx = floor_ctx;
    plan->min_budget = least_bytes(plan, in, need, floor_ctx, least_chunk);
    if (in->budget < plan->min_budget) {
        rc = refuse(plan, in, need, floor_ctx, least_chunk < floor_ctx ? least_chunk : floor_ctx, err);
        goto done;
    }
    plan->max_context = largest_context(plan, in, (struct least){weights_min, EITHER}, least_chunk, in->n_ctx_trained);
    plan->n_ctx = in->n_ctx > 0 ? in->n_ctx : default_context(plan, in, need, least_chunk, default_ctx);
    if (plan->n_ctx < floor_ctx) plan->n_ctx = floor_ctx;
    if (plan->max_context < plan->n_ctx) plan->max_context = plan->n_ctx;

    need.where = IN_MEMORY;
    plan->n_chunk = choose_chunk(plan, in, need, least_chunk);
    const uint64_t whole = least_bytes(plan, in, (struct least){may_pin_all ? all_pinned : weights_min, IN_MEMORY}, plan->n_ctx, plan->n_chunk);
    plan->spilled = least_bytes(plan, in, need, plan->n_ctx, least_chunk) > in->budget ||
                    (in->kv_disk_asked && whole > in->budget && spilled_bytes(in, plan->n_ctx, plan->n_chunk) <= kv_bytes(in, plan->n_ctx) / KV_FREED_PART);
    if (plan->spilled) {
        need.where = ON_DISK;
        plan->n_chunk = choose_chunk(plan, in, need, least_chunk);
    }

    uint64_t rest = in->budget - fixed_bytes(plan, in, plan->n_ctx, plan->n_chunk) - kv_least(in, plan->n_ctx, plan->n_chunk, need.where);
    if (plan->spilled) {
        plan->kv = least_kv(in, plan->n_ctx, plan->n_chunk);
        choose_kv_ring(&plan->kv, rest - weights_min);
        rest -= (plan->kv.n_ring - least_kv(in, plan->n_ctx, plan->n_chunk).n_ring) * plan->kv.block_bytes;
    }
    plan->max_rows = most_rows(in, plan->n_chunk);
    plan->n_idle_logits = idle_logits(in, plan->n_chunk);
    plan->n_spec_rows = plan->n_idle_logits > in->spec_rows ? plan->n_idle_logits : in->spec_rows;
    plan->account[WR_ACCOUNT_DRAFT] = draft_bytes(in, plan->n_ctx, plan->n_chunk);
    plan->n_draft_positions = plan->n_ctx;
    if (in->spec_rows == 0) {
        take_draft(plan, in, rest - weights_min);
        if (may_pin_all && rest >= all_pinned && rest - all_pinned < plan->account[WR_ACCOUNT_DRAFT])
            take_draft(plan, in, 0); /* no weight is to leave for it */
        rest -= plan->account[WR_ACCOUNT_DRAFT];
    }
    layout = least;
    if (may_pin_all && rest >= all_pinned) {
        layout.n_slots = 0;
        /* Row slots are needed only while the token rows are not pinned too; a resident tile saves more than those, unless they are fewer than slots. */
        if (may_pin_rows && rest >= layout.dense_bytes + layout.rows_bytes && (!plan->spilled || layout.rows_bytes < row_slots)) plan->row_slot_bytes = 0;
    } else if (!given_ring && !given_extent) {
        choose_ring(plan, &work, rest - pin_least, &layout);
    }
    uint64_t capacity = rest - ring_total(plan, &layout);
    if (given_pin && capacity > pin_least) capacity = pin_least;
    if (plan->spilled && plan->row_slot_bytes > 0 && capacity > layout.dense_bytes) capacity = layout.dense_bytes;
    capacity = wr_round_down(capacity, WR_IO_ALIGN);
    stripe(plan, &work, capacity, layout.dense_bytes);
    if (plan->spilled) { /* what pinned weights leave: resident tiles, but none that cannot be full */
        const uint64_t left = (rest - ring_total(plan, &layout) - plan->pinned) / plan->kv.block_bytes,
                       all = (uint64_t)plan->kv.n_global * (plan->n_ctx / WR_TILE);
        plan->kv.n_resident = (uint32_t)(left < all ? left : all);
        plan->account[WR_ACCOUNT_META] += kv_meta_bytes(plan->kv);
    }
    for (uint32_t i = 0; i < work.n_full; i++) {
        if (plan->extents[work.full_tape[i]].pinned) continue;
        plan->tape[plan->n_tape++] = work.full_tape[i];
        plan->n_tape_head += plan->extents[work.full_tape[i]].head;
    }
    plan->n_live = layout.max_live + 2 < work.n_full ? layout.max_live + 2 : work.n_full;
    if (layout.n_slots > plan->n_tape) layout.n_slots = plan->n_tape;
    plan->n_slots = plan->n_ahead = layout.n_slots;
    plan->slot_bytes = (uint32_t)layout.extent_bytes;

    plan->account[WR_ACCOUNT_PROCESS] = in->process_bytes;
    plan->account[WR_ACCOUNT_TOKENIZER] = page(in->tokenizer_bytes);
    plan->account[WR_ACCOUNT_TEXT] = text_bytes(in, plan->n_ctx);
    plan->account[WR_ACCOUNT_KV] = plan->spilled ? wr_kv_layout_bytes(&plan->kv) : kv_bytes(in, plan->n_ctx);
    plan->account[WR_ACCOUNT_SCRATCH] = scratch_bytes(in, plan->n_chunk);
    plan->account[WR_ACCOUNT_WEIGHTS] = page(plan->vector_bytes) + plan->pinned;
    plan->account[WR_ACCOUNT_RING] = ring_total(plan, &layout) + IO_ENGINE_BYTES + (plan->spilled ? kv_engine_bytes(&plan->kv) : 0);
    plan->tier[WR_TIER_DISK] = (struct wr_tier_info){0, plan->streamed, 0};
    plan->tier[WR_TIER_RAM] = (struct wr_tier_info){in->budget, plan->pinned, 0};
    rc = 0;
done:
    free_work(&work);
    if (rc < 0) {
        uint64_t min_budget = plan->min_budget;
        wr_plan_free(plan);
        plan->min_budget = min_budget;
    }
    return rc;
}

void wr_plan_free(struct wr_plan *plan)
{
    wr_mem_free(plan->weights);
    wr_mem_free(plan->extents);
    wr_mem_free(plan->tape);
    *plan = (struct wr_plan){0};
}
