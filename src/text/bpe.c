/* SPDX-License-Identifier: Apache-2.0 */
#include "text/vocab_private.h"

#include <string.h>
#include "base/utf8.h"

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
    o->n = o->n_unknown = 0;
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
 * Symbols live in place, without links: cell[i] of the first byte of a symbol is its id, with QUEUED while the heap has the pair that
 * begins there; the last byte of a longer one holds ~first, so that the symbol to the left is found; all other cells are negative. rank[i] is the rank of the pair
 * that begins at i. A binary heap of rank << 32 | first byte holds every pair whose key is below both its neighbours':
 * the lowest of all is one of those, and a long run of one character has few of them, which keeps the heap in the cache
 * (4 MB of spaces: 3 times the speed of a heap of all pairs). An entry whose pair has changed since is known by its rank.
 */
struct merging {
    const struct wr_bpe *b;
    const uint8_t *bytes;
    struct wr_bpe_work *work; /* NULL: the heap may not grow and need not */
    int32_t *cell;            /* [m] */
    uint32_t *rank;           /* [m] */
    uint64_t *heap;           /* [capacity] */
    size_t m, n_heap, capacity;
    weir_err *err;
};

#define QUEUED INT32_C(0x40000000)
#define NO_RANK UINT32_MAX
#define SMALL 128 /* symbols that fit the stack's buffers: all words of ordinary text */
#define HEAP_MIN (2 * SMALL)

static inline int32_t id_at(const struct merging *g, size_t at) { return g->cell[at] & ~QUEUED; }
static inline size_t next_of(const struct merging *g, size_t at)
{
    int32_t id = id_at(g, at);
    return at + (g->b->length_at[id + 1] - g->b->length_at[id]);
}
static inline size_t previous_of(const struct merging *g, size_t at) { return g->cell[at - 1] >= 0 ? at - 1 : (size_t)~g->cell[at - 1]; }
static inline uint64_t key_of(const struct merging *g, size_t at) { return (uint64_t)g->rank[at] << 32 | at; }

/* The token that two neighbours merge into and, in *rank, when; -1 and NO_RANK: they do not. */
static int32_t pair_of(const struct merging *g, size_t left, size_t right, uint32_t *rank)
{
    *rank = NO_RANK;
    if (right >= g->m) return -1;
    if (g->b->words) {
        int32_t id = wr_vocab_find_word(g->b->words, g->bytes + left, next_of(g, right) - left);
        if (id >= 0) *rank = g->b->words->rank[id];
        return id;
    }
    const struct wr_bpe_merge *merge = find_pair(g->b, (uint32_t)id_at(g, left), (uint32_t)id_at(g, right));
    if (!merge) return -1;
    *rank = merge->rank;
    return (int32_t)merge->result;
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
    if (g->rank[at] == NO_RANK || g->cell[at] & QUEUED) return 0;
    uint64_t x = key_of(g, at);
    size_t next = next_of(g, at);
    if ((at > 0 && key_of(g, previous_of(g, at)) < x) || (next < g->m && key_of(g, next) < x)) return 0;
    if (g->n_heap == g->capacity) {
        int rc = make_room(g);
        if (rc < 0) return rc;
    }
    g->cell[at] |= QUEUED;
    size_t i = g->n_heap++;
    for (; i > 0 && g->heap[(i - 1) / 2] > x; i = (i - 1) / 2) g->heap[i] = g->heap[(i - 1) / 2];
    g->heap[i] = x;
    return 0;
}

static int merge_all(struct merging *g)
{
    int rc = 0;
    for (size_t i = 0, next; i < g->m; i = next) {
        next = next_of(g, i);
        (void)pair_of(g, i, next, &g->rank[i]);
    }
    for (size_t i = 0; i < g->m && rc == 0; i = next_of(g, i)) rc = consider(g, i);
    const volatile int *cancel = g->work ? g->work->cancel : NULL;
    while (g->n_heap > 0 && rc == 0) {
        if (cancel && *cancel != 0) return wr_err(g->err, WEIR_E_CANCELLED, "interrupted");
        uint64_t entry = g->heap[0];
        g->heap[0] = g->heap[--g->n_heap];
        sift_down(g->heap, g->n_heap, 0);
        size_t left = (uint32_t)entry;
        if (key_of(g, left) != entry) continue;
        size_t right = next_of(g, left), next = next_of(g, right);
        uint32_t rank;
        g->cell[left] = pair_of(g, left, right, &rank);
        g->cell[right] = -1;
        g->cell[next - 1] = ~(int32_t)left;
        g->rank[right] = NO_RANK;
        (void)pair_of(g, left, next, &g->rank[left]);
        if (left > 0) {
            size_t before = previous_of(g, left);
            g->cell[before] &= ~QUEUED;
            (void)pair_of(g, before, left, &g->rank[before]);
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
    *w = (struct wr_bpe_work){.ledger = w->ledger, .cancel = w->cancel};
}

/* By score: a symbol for every character, and for every byte that is not UTF-8. */
static void put_characters(struct merging *g, size_t n)
{
    const struct wr_bpe *b = g->b;
    g->m = n;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int length = g->bytes[i] < 0x80 ? 1 : wr_utf8_decode(g->bytes + i, n - i, &cp);
        if (length <= 0) length = 1;
        int32_t id = g->bytes[i] < 0x80 ? b->char_id[g->bytes[i]] : wr_vocab_find_word(b->words, g->bytes + i, (size_t)length);
        g->cell[i] = id >= 0 ? id : (int32_t)b->n_tokens - 1 + length;
        for (int k = 1; k < length; k++) g->cell[i + (size_t)k] = ~(int32_t)i;
        i += (size_t)length;
    }
}

/* A character that has no token: its bytes' tokens, or if one is missing the unknown token, one for all such neighbours. */
static int put_unknown(const struct wr_bpe *b, const uint8_t *bytes, size_t n, struct wr_ids *out, size_t *n_dropped, weir_err *err)
{
    int rc = 0;
    bool spelled = true;
    for (size_t i = 0; i < n; i++) spelled = spelled && b->byte_id[bytes[i]] >= 0;
    if (spelled) {
        for (size_t i = 0; i < n && rc == 0; i++) rc = wr_ids_put(out, b->byte_id[bytes[i]], err);
        return rc;
    }
    *n_dropped += n;
    if (b->unknown < 0 || (out->n > 0 && out->n == out->n_unknown)) return 0;
    rc = wr_ids_put(out, b->unknown, err);
    out->n_unknown = out->n;
    return rc;
}

int wr_bpe_piece(const struct wr_bpe *b, const uint8_t *bytes, size_t n, struct wr_bpe_work *work, struct wr_ids *out, size_t *n_dropped, weir_err *err)
{
    int32_t small_cells[SMALL];
    uint32_t small_ranks[SMALL];
    uint64_t small_heap[HEAP_MIN];
    struct merging g = {.b = b, .bytes = bytes, .cell = small_cells, .rank = small_ranks, .heap = small_heap, .capacity = HEAP_MIN, .err = err};
    if (work->cancel && *work->cancel != 0) return wr_err(err, WEIR_E_CANCELLED, "interrupted");
    if (n > SMALL) {
        int rc = need_work(work, n, err);
        if (rc < 0) return rc;
        g.work = work;
        g.heap = work->heap;
        g.capacity = work->heap_capacity;
        g.cell = work->symbols;
        g.rank = (uint32_t *)work->symbols + n;
    }
    if (b->words) {
        put_characters(&g, n);
    } else {
        for (size_t i = 0; i < n; i++)
            if (b->byte_id[bytes[i]] >= 0) g.cell[g.m++] = b->byte_id[bytes[i]];
        *n_dropped += n - g.m;
    }
    int rc = merge_all(&g);
    for (size_t i = 0, next; i < g.m && rc == 0; i = next) {
        next = next_of(&g, i);
        int32_t id = id_at(&g, i);
        rc = (uint32_t)id < b->n_tokens ? wr_ids_put(out, id, err) : put_unknown(b, bytes + i, next - i, out, n_dropped, err);
    }
    return rc;
}
