/* SPDX-License-Identifier: Apache-2.0 */
#include "text/bpe.h"

#include <string.h>

/* Longest probe that adding accepts. With a table three quarters full, honest vocabularies of 10^6 merges stay below 200. */
#define MAX_PROBES 4096

uint64_t wr_bpe_n_slots(uint32_t n_merges) { return (uint64_t)n_merges + n_merges / 3 + 1; }

static inline uint64_t pair_slot(const struct wr_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return (uint64_t)((unsigned __int128)h * b->n_slots >> 64);
}

static const struct wr_bpe_merge *find_pair(const struct wr_bpe *b, uint32_t left, uint32_t right)
{
    for (uint64_t i = pair_slot(b, left, right);;) {
        const struct wr_bpe_merge *m = &b->slots[i];
        if (m->left == left && m->right == right) return m;
        if (m->left == WR_BPE_NONE) return NULL;
        i++;
        if (i == b->n_slots) i = 0;
    }
}

bool wr_bpe_add(struct wr_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t result)
{
    uint64_t i = pair_slot(b, left, right);
    for (uint32_t probes = 0; probes < MAX_PROBES; probes++) {
        struct wr_bpe_merge *m = &b->slots[i];
        if (m->left == left && m->right == right) return true;
        if (m->left == WR_BPE_NONE) {
            *m = (struct wr_bpe_merge){left, right, rank, result};
            return true;
        }
        i++;
        if (i == b->n_slots) i = 0;
    }
    return false;
}

int wr_ids_open(struct wr_ids *o, size_t max, struct wr_ledger *ledger, weir_err *err)
{
    o->n = 0;
    o->max = max;
    o->capacity = max < 64 ? max : 64;
    o->ids = wr_mem_array(ledger, WR_ACCOUNT_TEXT, o->capacity, sizeof *o->ids, err);
    return o->ids ? 0 : err->code;
}

int wr_ids_put(struct wr_ids *o, int32_t id, weir_err *err)
{
    if (o->n < o->max) {
        if (o->n == o->capacity) {
            size_t capacity = o->max / 2 < o->capacity ? o->max : o->capacity * 2;
            int32_t *p = wr_mem_resize(o->ids, capacity * sizeof *p, err);
            if (!p) return err->code;
            o->ids = p;
            o->capacity = capacity;
        }
        o->ids[o->n] = id;
    }
    o->n++;
    return 0;
}

/*
 * Symbols live in place, without links: cell[i] of the first byte of a symbol is its id; the last byte of a longer one
 * holds ~first, so that the symbol to the left is found; all other cells are negative. rank[i] is the rank of the pair
 * that begins at i. A binary heap of rank << 32 | first byte holds every pair whose key is below both its neighbours':
 * the lowest of all is one of those, and a long run of one character has few of them, which keeps the heap in the cache
 * (4 MB of spaces: 3 times the speed of a heap of all pairs). An entry whose pair has changed since is known by its rank.
 */
struct merging {
    const struct wr_bpe *b;
    struct wr_bpe_work *work; /* NULL: the heap may not grow and need not */
    int32_t *cell;            /* [m] */
    uint32_t *rank;           /* [m], with QUEUED while the heap has this very pair */
    uint64_t *heap;           /* [capacity] */
    size_t m, n_heap, capacity;
    weir_err *err;
};

#define QUEUED UINT32_C(0x80000000)
#define NO_RANK UINT32_C(0x7fffffff)
#define SMALL 128 /* symbols that fit the stack's buffers: all words of ordinary text */
#define HEAP_MIN (2 * SMALL)

static inline uint32_t symbol_length(const struct wr_bpe *b, int32_t id) { return b->length_at[id + 1] - b->length_at[id]; }
static inline size_t next_of(const struct merging *g, size_t at) { return at + symbol_length(g->b, g->cell[at]); }
static inline size_t previous_of(const struct merging *g, size_t at) { return g->cell[at - 1] >= 0 ? at - 1 : (size_t)~g->cell[at - 1]; }
static inline uint64_t key_of(const struct merging *g, size_t at) { return (uint64_t)(g->rank[at] & ~QUEUED) << 32 | at; }

static uint32_t pair_rank(const struct merging *g, size_t left, size_t right)
{
    const struct wr_bpe_merge *merge = right < g->m ? find_pair(g->b, (uint32_t)g->cell[left], (uint32_t)g->cell[right]) : NULL;
    return merge ? merge->rank : NO_RANK;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t x = heap[i];
    for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= x) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = x;
}

/* Makes room in a full heap: stale entries go; if that frees less than half, it grows. */
static int make_room(struct merging *g)
{
    size_t kept = 0;
    for (size_t i = 0; i < g->n_heap; i++)
        if (key_of(g, (uint32_t)g->heap[i]) == g->heap[i]) g->heap[kept++] = g->heap[i];
    g->n_heap = kept;
    for (size_t i = kept / 2; i-- > 0;) sift_down(g->heap, kept, i);
    if (!g->work || kept <= g->capacity / 2) return 0;
    uint64_t *p = wr_mem_resize(g->heap, g->capacity * 2 * sizeof *p, g->err);
    if (!p) return g->err->code;
    g->work->heap = g->heap = p;
    g->work->heap_capacity = g->capacity = g->capacity * 2;
    return 0;
}

/* Puts the pair that begins at `at` into the heap if it can be the lowest of all and is not there yet. */
static int consider(struct merging *g, size_t at)
{
    if (g->rank[at] >= NO_RANK) return 0; /* no merge, or queued */
    uint64_t x = key_of(g, at);
    size_t next = next_of(g, at);
    if ((at > 0 && key_of(g, previous_of(g, at)) < x) || (next < g->m && key_of(g, next) < x)) return 0;
    if (g->n_heap == g->capacity) {
        int rc = make_room(g);
        if (rc < 0) return rc;
    }
    g->rank[at] |= QUEUED;
    size_t i = g->n_heap++;
    for (; i > 0 && g->heap[(i - 1) / 2] > x; i = (i - 1) / 2) g->heap[i] = g->heap[(i - 1) / 2];
    g->heap[i] = x;
    return 0;
}

static int merge_all(struct merging *g)
{
    int rc = 0;
    for (size_t i = 0; i < g->m; i++) g->rank[i] = pair_rank(g, i, i + 1);
    for (size_t i = 0; i < g->m && rc == 0; i++) rc = consider(g, i);
    while (g->n_heap > 0 && rc == 0) {
        uint64_t entry = g->heap[0];
        g->heap[0] = g->heap[--g->n_heap];
        sift_down(g->heap, g->n_heap, 0);
        size_t left = (uint32_t)entry;
        if (key_of(g, left) != entry) continue;
        size_t right = next_of(g, left), next = next_of(g, right);
        g->cell[left] = (int32_t)find_pair(g->b, (uint32_t)g->cell[left], (uint32_t)g->cell[right])->result;
        g->cell[right] = -1;
        g->cell[next - 1] = ~(int32_t)left;
        g->rank[right] = NO_RANK;
        g->rank[left] = pair_rank(g, left, next);
        if (left > 0) {
            size_t before = previous_of(g, left);
            g->rank[before] = pair_rank(g, before, left);
            if (before > 0) rc = consider(g, previous_of(g, before));
            if (rc == 0) rc = consider(g, before);
        }
        if (rc == 0) rc = consider(g, left);
        if (rc == 0 && next < g->m) rc = consider(g, next);
    }
    return rc;
}

static int need_work(struct wr_bpe_work *w, size_t m, weir_err *err)
{
    if (!w->heap) {
        w->heap = wr_mem_array(w->ledger, WR_ACCOUNT_TEXT, HEAP_MIN, sizeof *w->heap, err);
        if (!w->heap) return err->code;
        w->heap_capacity = HEAP_MIN;
    }
    if (m <= w->n_symbols) return 0;
    wr_mem_free(w->symbols);
    w->n_symbols = 0;
    w->symbols = wr_mem_array(w->ledger, WR_ACCOUNT_TEXT, m, sizeof(int32_t) + sizeof(uint32_t), err);
    if (!w->symbols) return err->code;
    w->n_symbols = m;
    return 0;
}

void wr_bpe_work_close(struct wr_bpe_work *w)
{
    wr_mem_free(w->symbols);
    wr_mem_free(w->heap);
    *w = (struct wr_bpe_work){.ledger = w->ledger};
}

int wr_bpe_piece(const struct wr_bpe *b, const uint8_t *bytes, size_t n, struct wr_bpe_work *work, struct wr_ids *out, size_t *n_dropped, weir_err *err)
{
    int32_t small_cells[SMALL];
    uint32_t small_ranks[SMALL];
    uint64_t small_heap[HEAP_MIN];
    struct merging g = {.b = b, .cell = small_cells, .rank = small_ranks, .heap = small_heap, .capacity = HEAP_MIN, .err = err};
    if (n > SMALL) {
        int rc = need_work(work, n, err);
        if (rc < 0) return rc;
        g.work = work;
        g.heap = work->heap;
        g.capacity = work->heap_capacity;
        g.cell = work->symbols;
        g.rank = (uint32_t *)work->symbols + n;
    }
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[bytes[i]] >= 0) g.cell[g.m++] = b->byte_id[bytes[i]];
    *n_dropped += n - g.m;
    int rc = merge_all(&g);
    for (size_t i = 0; i < g.m && rc == 0; i = next_of(&g, i)) rc = wr_ids_put(out, g.cell[i], err);
    return rc;
}
