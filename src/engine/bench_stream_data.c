/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values that no model computed: what weir bench stream fills a KV file with, in seconds instead of the days that a prefill of a million tokens
 * takes. The key of a head's position, and its value, are windows of a table of random numbers, each at a place of its own that a hash of position, head,
 * layer and kind chooses, rounded by the kernels' kv_store. Windows begin at whole groups of 32, so that what is stored of a window does not depend on who
 * stores it, and attention in double precision is a sum over windows: of all keys with the same window the scores are equal.
 */
#include <math.h>
#include <string.h>
#include "engine/bench.h"
#include "engine/engine.h"

#define TABLE (1u << 20) /* numbers */
#define N_WINDOWS ((TABLE - WR_MAX_HEAD_DIM) / WR_GROUP)

enum { KEY, VALUE };

uint64_t wr_bench_windows_bytes(bool exact) { return (exact ? 3ull : 1ull) * TABLE * sizeof(float); }

void wr_bench_windows_open(
    struct wr_bench_windows *w, struct wr_bench *b, void *memory, bool exact, enum wr_kv_type type, uint32_t n_head_kv, uint32_t head_dim)
{
    float *table = memory;
    *w = (struct wr_bench_windows){.table = table, .n = N_WINDOWS, .type = type, .n_head_kv = n_head_kv, .head_dim = head_dim};
    wr_bench_fill(b, table, TABLE / 1024, 1024, 0, 1.0f);
    for (int kind = KEY; exact && kind <= VALUE; kind++) {
        w->stored[kind] = memcpy(table + (kind + 1) * TABLE, table, TABLE * sizeof *table);
        wr_bench_round_kv(type, kind == VALUE, w->stored[kind], TABLE);
    }
}

/* Which window: the finalizer of splitmix64 (Steele, Lea, Flood 2014), whose every output bit depends on every input bit. */
static uint32_t window(const struct wr_bench_windows *w, int kind, uint32_t layer, uint32_t head, uint32_t position)
{
    uint64_t x = ((uint64_t)layer << 48 | (uint64_t)head << 33 | (uint64_t)kind << 32 | position) + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(((x ^ x >> 31) >> 32) * w->n >> 32);
}

const float *wr_bench_window_key(const struct wr_bench_windows *w, uint32_t layer, uint32_t head, uint32_t position)
{
    return w->table + (size_t)window(w, KEY, layer, head, position) * WR_GROUP;
}

const float *wr_bench_window_value(const struct wr_bench_windows *w, uint32_t layer, uint32_t head, uint32_t position)
{
    return w->table + (size_t)window(w, VALUE, layer, head, position) * WR_GROUP;
}

void wr_bench_windows_block(const struct wr_bench_windows *w, const struct wr_kernels *kernels, uint32_t layer, uint32_t tile, uint8_t *block)
{
    const uint64_t key_bytes = wr_kv_key_bytes(w->type, w->head_dim), value_bytes = wr_kv_value_bytes(w->type, w->head_dim);
    for (uint32_t h = 0; h < w->n_head_kv; h++) {
        uint8_t *keys = block + h * WR_TILE * key_bytes, *values = block + WR_TILE * (w->n_head_kv * key_bytes + h * value_bytes);
        for (uint32_t i = 0; i < WR_TILE; i++)
            (void)kernels->kv_store(w->type, w->head_dim, wr_bench_window_key(w, layer, h, tile * WR_TILE + i),
                wr_bench_window_value(w, layer, h, tile * WR_TILE + i), keys + i / WR_KV_BLOCK * WR_KV_BLOCK * key_bytes, i % WR_KV_BLOCK,
                values + i * value_bytes);
    }
}

uint64_t wr_bench_windows_work_bytes(void) { return 2ull * N_WINDOWS * sizeof(double); }

void wr_bench_windows_attend(const struct wr_bench_windows *w, uint32_t layer, uint32_t head, uint32_t n, const float *q, float scale, void *work, double *out)
{
    double *weight = work, *mass = weight + w->n, sum = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const float *key = w->stored[KEY] + (size_t)i * WR_GROUP;
        double score = 0;
        for (uint32_t d = 0; d < w->head_dim; d++) score += (double)q[d] * (double)key[d];
        weight[i] = exp(score * (double)scale); /* far from what a double holds: a score of 700 */
        mass[i] = 0;
    }
    for (uint32_t position = 0; position < n; position++) {
        const double p = weight[window(w, KEY, layer, head, position)];
        mass[window(w, VALUE, layer, head, position)] += p;
        sum += p;
    }
    memset(out, 0, w->head_dim * sizeof *out);
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t d = 0; d < w->head_dim; d++) out[d] += mass[i] / sum * (double)w->stored[VALUE][(size_t)i * WR_GROUP + d];
}
