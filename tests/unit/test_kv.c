/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A spilled context under passes of random lengths, rollbacks, aborts and faults. Each stored byte says which layer, head, position and version of that
 * position it belongs to, and every pass looks at every byte that attention would see: a block that was read before it was written, or a slot that was used
 * again too early, is seen. A failure prints the seed of its case; WEIR_TEST_SEED=N runs that case alone.
 */
#include "test_io_common.h"

#include "memory/kv.h"

#define N_CTX 5000u
#define HEADS 2u
#define DIM 32u
#define CHUNK 600u
#define PASSES 60u

struct fixture {
    uint64_t seed, random;
    struct wr_arena arena;
    struct wr_ledger ledger;
    struct wr_device device;
    struct wr_kv kv;
    struct wr_kv_config config;
    uint32_t n_layer, n; /* positions stored */
    uint8_t version[N_CTX + CHUNK];
    uint64_t taken; /* blocks from the ring, of passes that went through */
};

static uint64_t below(struct fixture *f, uint64_t n) { return next_random(&f->random) % n; }

static bool is_local(const void *user, uint32_t layer)
{
    const struct fixture *f = user;
    return f->config.layout.n_local > 0 && layer % 2 == 1;
}

static uint16_t element(const struct fixture *f, bool value, uint32_t layer, uint32_t head, uint32_t position, uint32_t d)
{
    uint64_t x = ((((uint64_t)layer * HEADS + head) * 65536 + position) * 256 + f->version[position]) * 64 + d * 2 + value;
    x *= 0x9e3779b97f4a7c15u;
    return (uint16_t)(x >> 48);
}

static void store(struct fixture *f, uint32_t layer, uint32_t position)
{
    for (uint32_t h = 0; h < HEADS; h++) {
        struct wr_ref key = wr_kv_keys(&f->kv, layer, h, position, 1), value = wr_kv_values(&f->kv, layer, h, position, 1);
        uint16_t *k = wr_ref_address(&f->device, &key), *v = wr_ref_address(&f->device, &value);
        for (uint32_t d = 0; d < DIM; d++) {
            k[d * WR_KV_BLOCK + position % WR_KV_BLOCK] = element(f, false, layer, h, position, d);
            v[d] = element(f, true, layer, h, position, d);
        }
    }
}

static void look(struct fixture *f, uint32_t layer, uint32_t from, uint32_t to)
{
    for (uint32_t position = from; position < to; position++) {
        for (uint32_t h = 0; h < HEADS; h++) {
            struct wr_ref key = wr_kv_keys(&f->kv, layer, h, position, 1), value = wr_kv_values(&f->kv, layer, h, position, 1);
            const uint16_t *k = wr_ref_address(&f->device, &key), *v = wr_ref_address(&f->device, &value);
            for (uint32_t d = 0; d < DIM; d += 31) /* the first and the last */
                if (k[d * WR_KV_BLOCK + position % WR_KV_BLOCK] != element(f, false, layer, h, position, d) || v[d] != element(f, true, layer, h, position, d))
                    fail_msg("seed %llu: position %u of layer %u is not what was stored (%u stored)", (unsigned long long)f->seed, position, layer, f->n);
        }
    }
}

/* What a layer does in a pass; the tiles from the disk one run after another. */
static int layer(struct fixture *f, uint32_t il, uint32_t position, uint32_t m, weir_err *err)
{
    int rc = wr_kv_layer_begin(&f->kv, il, err);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < m; i++) store(f, il, position + i);
    uint32_t from = 0, to = 0, end = position + m;
    if (is_local(f, il)) {
        look(f, il, position < f->config.window ? 0 : position - f->config.window + 1, end);
    } else if (!wr_kv_streams(&f->kv, il, &from, &to)) {
        look(f, il, 0, end);
    } else {
        look(f, il, 0, from * WR_TILE);
        for (uint32_t tile = from, n; tile < to; tile += n) {
            if ((rc = wr_kv_take(&f->kv, il, tile, &n, err)) < 0) return rc;
            look(f, il, tile * WR_TILE, (tile + n) * WR_TILE);
            wr_kv_give_back(&f->kv, 0);
        }
        look(f, il, to * WR_TILE, end);
    }
    return wr_kv_layer_end(&f->kv, il, err);
}

/* A pass at `position`; `abort_at`: the layer after which it is given up. */
static int pass(struct fixture *f, uint32_t position, uint32_t m, uint32_t abort_at, weir_err *err)
{
    uint8_t before[CHUNK];
    memcpy(before, f->version + position, m);
    if (position < f->n) f->n = position; /* what lies behind is forgotten, whatever becomes of the pass */
    int rc = wr_kv_begin(&f->kv, position, m, err);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < m; i++) f->version[position + i]++;
    for (uint32_t il = 0; rc == 0 && il < f->n_layer; il++) rc = il == abort_at ? WEIR_E_CANCELLED : layer(f, il, position, m, err);
    wr_kv_end(&f->kv, rc != 0);
    if (rc == 0) {
        f->n = position + m;
        f->taken += wr_kv_stats(&f->kv).bytes_last_pass / f->kv.block_bytes;
    }
    assert_int_equal(wr_kv_length(&f->kv), f->n);
    return rc;
}

static void open_case(struct fixture *f, uint64_t seed, const char *io, bool locals, bool write_all)
{
    weir_err err = {0};
    memset(f, 0, sizeof *f);
    f->seed = seed;
    f->random = seed * 2654435761u + 1;
    f->n_layer = 3;
    wr_ledger_init(&f->ledger);
    wr_device_cpu(&f->device);
    struct wr_kv_layout l = wr_kv_layout_least(wr_kv_block_bytes(WR_KV_F16, HEADS, DIM), f->n_layer, locals ? 1 : 0, locals ? 300 : 0, N_CTX, CHUNK);
    l.n_ring += (uint32_t)below(f, 5);
    l.n_resident = (uint32_t)below(f, 12);
    f->config = (struct wr_kv_config){.device = &f->device,
        .type = WR_KV_F16,
        .n_layer = f->n_layer,
        .n_head_kv = HEADS,
        .head_dim = DIM,
        .layout = l,
        .is_local = is_local,
        .user = f,
        .window = locals ? 300 : 0,
        .io = io,
        .arena = &f->arena,
        .ledger = &f->ledger,
        .write_all = write_all,
        .places = {8192, f->n_layer * l.block_bytes + 4096, write_all ? 0 : wr_kv_layout_first_tile(&l)}};
    assert_int_equal(wr_arena_open(&f->arena, wr_kv_layout_bytes(&l), &err), 0);
    assert_int_equal(wr_store_open_temporary(&f->config.file, folder, WEIR_DIRECT_AUTO, NULL, &err), 0);
    assert_int_equal(wr_store_reserve(&f->config.file, 8192 + (uint64_t)l.n_tiles * f->config.places.group_bytes, &err), 0);
    assert_int_equal(wr_kv_open_spilled(&f->kv, &f->config, &err), 0);
    assert_true(wr_ledger_used(&f->ledger, WR_ACCOUNT_META) <= wr_kv_layout_meta_bytes(&l));
}

static void close_case(struct fixture *f)
{
    wr_kv_close(&f->kv);
    wr_arena_close(&f->arena);
    for (int a = 0; a < WR_N_ACCOUNTS; a++) assert_int_equal(wr_ledger_used(&f->ledger, a), 0);
}

enum faults { NONE, WRITES, READS, BOTH };
static uint32_t n_failed; /* passes that a fault ended: a write that nobody waits for ends none, and is tried again */

/* Once the fault is off: a write that met it before may still report it, and only that one. */
static void flush(struct fixture *f, enum faults faults, weir_err *err)
{
    int rc = wr_kv_flush(&f->kv, err);
    if (rc == WEIR_E_WRITE && faults & WRITES) rc = wr_kv_flush(&f->kv, err);
    assert_int_equal(rc, 0);
}

static void run_case(uint64_t seed, const char *io, bool locals, bool write_all, enum faults faults)
{
    struct fixture *f = malloc(sizeof *f);
    weir_err err = {0};
    uint32_t n_rollbacks = 0, n_went = 0;
    open_case(f, seed, io, locals, write_all);
    for (uint32_t i = 0; i < PASSES; i++) {
        uint32_t position = f->n, m = below(f, 3) == 0 ? 1 : 1 + (uint32_t)below(f, CHUNK), abort_at = UINT32_MAX;
        if (below(f, 4) == 0 && f->n > 0) {
            position = (uint32_t)below(f, f->n);
            if (below(f, 3) == 0)
                position = position / WR_TILE * WR_TILE;
            else if (below(f, 2) == 0)
                position = f->n - 1 - (uint32_t)below(f, f->n < 8 ? f->n : 8);
            n_rollbacks++;
        }
        if (position + m > N_CTX) m = N_CTX - position;
        if (m == 0) position = 0, m = 1;
        if (below(f, 8) == 0) abort_at = (uint32_t)below(f, f->n_layer);
        wr_fault_set(WR_FAULT_WRITE, faults & WRITES && below(f, 3) == 0 ? 1 + below(f, 6) : 0, below(f, 2) == 0);
        wr_fault_set(WR_FAULT_READ, faults & READS && below(f, 3) == 0 ? 1 + below(f, 12) : 0, false);
        int rc = pass(f, position, m, abort_at, &err);
        wr_fault_set(WR_FAULT_WRITE, 0, false);
        wr_fault_set(WR_FAULT_READ, 0, false);
        if (rc == 0) n_went++;
        if (rc != 0 && rc != WEIR_E_CANCELLED) {
            if (rc != ((faults & WRITES) && rc == WEIR_E_WRITE ? WEIR_E_WRITE : (faults & READS) ? WEIR_E_READ : 0))
                fail_msg("seed %llu: error %d: %s", (unsigned long long)seed, rc, err.text);
            n_failed++;
        }
        if (below(f, 10) == 0) flush(f, faults, &err);
    }
    flush(f, faults, &err);
    assert_true(n_went > PASSES / 4 && n_rollbacks > 0);
    close_case(f);
    free(f);
}

static void all_cases(const char *io, bool locals, bool write_all, enum faults faults)
{
    const char *one = getenv("WEIR_TEST_SEED");
    n_failed = 0;
    for (uint64_t seed = 1; seed <= 12; seed++)
        if (one == NULL || strtoull(one, NULL, 10) == seed) run_case(seed, io, locals, write_all, faults);
    if (faults != NONE && one == NULL) assert_true(n_failed > 4);
}

static void global_layers(void **state)
{
    (void)state;
    all_cases("auto", false, false, NONE);
    all_cases("pread", false, true, NONE);
}

static void local_layers(void **state)
{
    (void)state;
    all_cases("auto", true, false, NONE);
    all_cases("pread", true, true, NONE);
}

static void failed_writes(void **state)
{
    (void)state;
    wr_store_fault_script.fail_errno = ENOSPC;
    all_cases("pread", true, false, WRITES);
    wr_store_fault_script.fail_errno = 0;
    all_cases("auto", false, true, WRITES);
}

static void failed_reads(void **state)
{
    (void)state;
    all_cases("pread", true, false, READS);
    all_cases("auto", false, false, BOTH);
}

/* A slow writer and a slow reader, each with system calls that do a part: whoever does not wait for them is seen. */
static void slow_and_short(void **state)
{
    (void)state;
    wr_store_fault_script.delay_ns = 2000000;
    wr_store_fault_script.short_writes = true;
    run_case(1, "auto", true, false, NONE);
    run_case(2, "pread", false, true, NONE);
    wr_store_fault_script.delay_ns = 0;
    wr_io_fault_script = (struct wr_io_fault_script){.short_reads = true, .delay_ns = 500000, .seed = 5};
    run_case(3, "fault", true, false, NONE);
    run_case(4, "fault", false, false, NONE);
    wr_io_fault_script = (struct wr_io_fault_script){0};
    wr_store_fault_script.short_writes = false;
}

/* Without rollback each full block is written once, and a pass reads the full tiles that are not resident. */
static void counts_bytes(void **state)
{
    (void)state;
    struct fixture *f = malloc(sizeof *f);
    weir_err err = {0};
    open_case(f, 7, "auto", true, false);
    const struct wr_kv_layout *l = &f->config.layout;
    uint64_t expected = 0;
    for (uint32_t position = 0; position < 3000; position += 100) {
        uint64_t streamed = 0;
        for (uint32_t i = 0; i < l->n_global; i++) {
            const uint32_t resident = l->n_resident / l->n_global + (i < l->n_resident % l->n_global);
            if (position / WR_TILE > resident) streamed += position / WR_TILE - resident;
        }
        assert_int_equal(pass(f, position, 100, UINT32_MAX, &err), 0);
        assert_int_equal(wr_kv_stats(&f->kv).bytes_last_pass, streamed * l->block_bytes);
        assert_int_equal(wr_kv_layout_streamed(l, position), streamed);
        expected += streamed;
    }
    assert_int_equal(wr_kv_flush(&f->kv, &err), 0);
    struct wr_kv_stats stats = wr_kv_stats(&f->kv);
    uint64_t written = (uint64_t)l->n_local * (3000 / WR_TILE) + (uint64_t)l->n_global * (3000 / WR_TILE) - l->n_resident;
    assert_int_equal(stats.bytes_written, written * l->block_bytes);
    assert_true(stats.bytes_read >= expected * l->block_bytes && stats.bytes_read <= (expected + l->n_ring) * l->block_bytes);
    close_case(f);
    free(f);
}

/* Passes of eight rows, of which one counts, as bursts that are not accepted: within a tile each reads what a pass of one row reads, and nothing twice. */
static void rollbacks_read_nothing_twice(void **state)
{
    (void)state;
    struct fixture *f = malloc(sizeof *f);
    weir_err err = {0};
    for (int locals = 0; locals < 2; locals++) {
        open_case(f, 7, "auto", locals, false);
        const struct wr_kv_layout *l = &f->config.layout;
        for (uint32_t at = 0; at < 2600; at += 520) assert_int_equal(pass(f, at, 520, UINT32_MAX, &err), 0);
        assert_int_equal(wr_kv_flush(&f->kv, &err), 0);
        const uint64_t before = wr_kv_stats(&f->kv).bytes_read, streamed = wr_kv_layout_streamed(l, 2600);
        uint64_t n_passes = 0;
        for (uint32_t at = 2600; at < 2680; at++, n_passes++) {
            assert_int_equal(pass(f, at, 8, UINT32_MAX, &err), 0);
            usleep(1000); /* the reader is ahead, as far as the ring is long */
        }
        const uint64_t blocks = (wr_kv_stats(&f->kv).bytes_read - before) / l->block_bytes;
        assert_true(streamed > l->n_ring);
        if (blocks > n_passes * streamed + l->n_ring)
            fail_msg("%llu blocks read in %llu passes of %llu", (unsigned long long)blocks, (unsigned long long)n_passes, (unsigned long long)streamed);
        assert_int_equal(pass(f, 2681, 300, UINT32_MAX, &err), 0); /* over the tile's end, and back before it */
        assert_int_equal(pass(f, 2800, 8, UINT32_MAX, &err), 0);
        close_case(f);
    }
    free(f);
}

/* Bytes that the system wrote for this process, when it wrote them. */
static uint64_t written_by_system(void)
{
    unsigned long long bytes = 0;
    char line[256];
    FILE *f = fopen("/proc/self/io", "r");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "write_bytes: %llu", &bytes) == 1) break;
    fclose(f);
    return bytes;
}

static uint8_t mark(uint32_t il, uint32_t position) { return (uint8_t)(il * 31 + position * 7 + 1); }

/* The value of each head at a position of a tile that is in memory: the first byte and the last of it. */
static void values(struct fixture *f, uint32_t il, uint32_t from, uint32_t to, bool stored)
{
    for (uint32_t i = from * f->kv.n_head_kv; i < to * f->kv.n_head_kv; i++) {
        const uint32_t position = i / f->kv.n_head_kv;
        struct wr_ref ref = wr_kv_values(&f->kv, il, i % f->kv.n_head_kv, position, 1);
        uint8_t *v = wr_ref_address(&f->device, &ref);
        if (stored)
            assert_true(v[0] == mark(il, position) && v[ref.bytes - 1] == mark(il, position));
        else
            memset(v, mark(il, position), ref.bytes);
    }
}

/* What is written is what is appended and 1 % at most, as the store and as the system counts it, also where a block is no multiple of a page. KV heads and
 * dimensions are those of SmolLM2 135M, Qwen2.5 0.5B and Gemma 3 270M; bytes are those of a key and a value of 32 dimensions. */
static void writes_what_is_appended(void **state)
{
    (void)state;
    static const uint32_t shape[][2] = {{3, 64}, {2, 64}, {1, 256}}, types[][2] = {{WR_KV_F16, 128}, {WR_KV_Q8_0, 68}, {WR_KV_K8V4, 52}};
    struct fixture *f = malloc(sizeof *f);
    weir_err err = {0};
    for (size_t i = 0; i < 9; i++) {
        const uint32_t heads = shape[i / 3][0], dim = shape[i / 3][1], n_layer = 3;
        const enum wr_kv_type type = (enum wr_kv_type)types[i % 3][0];
        const uint64_t appended = (uint64_t)n_layer * (N_CTX / WR_TILE * WR_TILE) * heads * (dim / 32) * types[i % 3][1];
        memset(f, 0, sizeof *f);
        wr_ledger_init(&f->ledger);
        wr_device_cpu(&f->device);
        const struct wr_kv_layout l = wr_kv_layout_least(wr_kv_block_bytes(type, heads, dim), n_layer, 0, 0, N_CTX, CHUNK);
        f->config = (struct wr_kv_config){.device = &f->device,
            .type = type,
            .n_layer = n_layer,
            .n_head_kv = heads,
            .head_dim = dim,
            .layout = l,
            .io = "auto",
            .arena = &f->arena,
            .ledger = &f->ledger,
            .places = {0, n_layer * l.block_bytes, 0}};
        assert_int_equal(wr_arena_open(&f->arena, wr_kv_layout_bytes(&l), &err), 0);
        assert_int_equal(wr_store_open_temporary(&f->config.file, folder, WEIR_DIRECT_AUTO, NULL, &err), 0);
        assert_int_equal(wr_store_reserve(&f->config.file, wr_kv_layout_disk_bytes(&l, N_CTX), &err), 0);
        const bool fine = f->config.file.file.fd_direct >= 0 && f->config.file.file.align <= 512; /* else whole pages are written */
        assert_int_equal(wr_kv_open_spilled(&f->kv, &f->config, &err), 0);
        const uint64_t before = written_by_system();
        for (uint32_t at = 0; at < N_CTX; at += 500) {
            assert_int_equal(wr_kv_begin(&f->kv, at, 500, &err), 0);
            for (uint32_t il = 0; il < n_layer; il++) {
                uint32_t from = 0, to = 0;
                assert_int_equal(wr_kv_layer_begin(&f->kv, il, &err), 0);
                values(f, il, at, at + 500, false);
                (void)wr_kv_streams(&f->kv, il, &from, &to);
                for (uint32_t tile = from, n; tile < to; tile += n) {
                    assert_int_equal(wr_kv_take(&f->kv, il, tile, &n, &err), 0);
                    values(f, il, tile * WR_TILE, (tile + n) * WR_TILE, true);
                    wr_kv_give_back(&f->kv, 0);
                }
                assert_int_equal(wr_kv_layer_end(&f->kv, il, &err), 0);
            }
            wr_kv_end(&f->kv, false);
        }
        assert_int_equal(wr_kv_flush(&f->kv, &err), 0);
        const uint64_t written = wr_kv_stats(&f->kv).bytes_written, by_system = written_by_system() - before;
        printf("%u x %u, %s: %llu bytes appended, %llu written, %llu as the system counts\n", heads, dim, wr_kv_name(type), (unsigned long long)appended,
            (unsigned long long)written, (unsigned long long)by_system);
        assert_true(written >= appended && (!fine || written <= appended + appended / 100));
        if (fine) assert_true(by_system >= appended && by_system <= appended + appended / 100);
        close_case(f);
    }
    free(f);
}

static uint32_t n_told;
static void told(void *user, uint32_t il, uint32_t tile, const void *block)
{
    struct fixture *f = user;
    const uint16_t *v = (const uint16_t *)((const uint8_t *)block + HEADS * WR_TILE * DIM * 2);
    for (uint32_t i = 0; i < WR_TILE; i++)
        if (v[i * DIM] != element(f, true, il, 0, tile * WR_TILE + i, 0)) fail_msg("tile %u of layer %u, written, is not what was stored", tile, il);
    n_told++;
}

/* A context that is kept: all tiles are told and written, and another store goes on from the file as a base, with a tail from elsewhere. */
static int fill_tail(void *user, uint32_t il, void *block, weir_err *err)
{
    struct fixture *from = user;
    const void *tail = wr_kv_block(&from->kv, il, from->n / WR_TILE);
    if (tail == NULL) return wr_err(err, WEIR_E_FAIL, "no tail");
    memcpy(block, tail, from->kv.block_bytes);
    return 0;
}

/* Another one, in the midst of its own text, takes over what lies in a's file, again and again; where its threads cannot be started, no pass goes on until
 * they can. */
static void rebases(struct fixture *a, struct fixture *b, bool locals)
{
    weir_err err = {0};
    open_case(b, 6, "auto", locals, false);
    for (uint64_t i = 0; i < 12; i++) {
        const uint32_t n_tiles = i % 3 == 0 ? 2600 / WR_TILE : 1 + (uint32_t)(i % 3), whole = n_tiles * WR_TILE;
        for (uint32_t j = 0; j < 1 + i % 2; j++)
            assert_int_equal(pass(b, b->n, 300 + (uint32_t)below(b, 300), j == 1 ? 1 : UINT32_MAX, &err), j == 1 ? WEIR_E_CANCELLED : 0);
        if (i % 4 == 3) {
            wr_fault_set(WR_FAULT_THREAD, 1 + i / 4 % 2, false);
            assert_int_equal(wr_kv_rebase(&b->kv, &a->config.file.file, &a->config.places, n_tiles, &err), WEIR_E_THREAD);
            wr_fault_set(WR_FAULT_THREAD, 0, false);
            b->n = wr_kv_length(&b->kv);
            assert_int_equal(wr_kv_begin(&b->kv, 0, 10, &err), WEIR_E_FAIL);
        }
        if (wr_kv_rebase(&b->kv, &a->config.file.file, &a->config.places, n_tiles, &err) < 0) fail_msg("%s", err.text);
        memcpy(b->version, a->version, sizeof a->version);
        wr_fault_set(WR_FAULT_READ, i % 4 == 1 ? 1 + i : 0, false);
        int rc = wr_kv_adopt(&b->kv, whole, &err);
        if (rc < 0) {
            assert_int_equal(rc, WEIR_E_READ);
            assert_int_equal(wr_kv_adopt(&b->kv, whole, &err), 0);
        }
        b->n = whole;
        rc = pass(b, b->n, 200, UINT32_MAX, &err);
        wr_fault_set(WR_FAULT_READ, 0, false);
        if (rc < 0) {
            assert_int_equal(rc, WEIR_E_READ);
            assert_int_equal(pass(b, b->n, 200, UINT32_MAX, &err), 0);
        }
        if (i % 2 == 1) assert_int_equal(pass(b, whole / 2, 400, UINT32_MAX, &err), 0); /* back below what was taken over */
    }
    close_case(b);
}

/* Again and again in the midst of a text whose next pass is being read already, what is on disk is taken over anew: it alone counts, and passes go on from it. */
static void adopts_again(void **state)
{
    (void)state;
    struct fixture *f = malloc(sizeof *f);
    weir_err err = {0};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        open_case(f, seed, seed % 3 == 0 ? "pread" : "auto", seed % 2 == 1, true);
        assert_int_equal(pass(f, 0, CHUNK, UINT32_MAX, &err), 0);
        for (uint32_t i = 0; i < 12; i++) {
            while (f->n < 1800) assert_int_equal(pass(f, f->n, 400 + (uint32_t)below(f, 200), UINT32_MAX, &err), 0);
            assert_int_equal(wr_kv_flush(&f->kv, &err), 0);
            const uint32_t whole = (1 + (uint32_t)below(f, f->n / WR_TILE)) * WR_TILE;
            assert_int_equal(wr_kv_adopt(&f->kv, whole, &err), 0);
            f->n = whole;
            assert_int_equal(wr_kv_length(&f->kv), whole);
            assert_int_equal(pass(f, whole, 200, UINT32_MAX, &err), 0);
        }
        close_case(f);
    }
    free(f);
}

static void goes_on_from_a_base(void **state)
{
    (void)state;
    struct fixture *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    weir_err err = {0};
    for (int locals = 0; locals < 2; locals++) {
        open_case(a, 3, "pread", locals, true);
        wr_kv_close(&a->kv);
        wr_arena_close(&a->arena);
        a->config.written = told;
        a->config.disk_user = a;
        assert_int_equal(wr_arena_open(&a->arena, wr_kv_layout_bytes(&a->config.layout), &err), 0);
        assert_int_equal(wr_store_open_temporary(&a->config.file, folder, WEIR_DIRECT_AUTO, NULL, &err), 0);
        assert_int_equal(wr_store_reserve(&a->config.file, 8192 + 20ull * a->config.places.group_bytes, &err), 0);
        assert_int_equal(wr_kv_open_spilled(&a->kv, &a->config, &err), 0);
        n_told = 0;
        for (uint32_t at = 0; at < 2600; at += 520) assert_int_equal(pass(a, at, 520, UINT32_MAX, &err), 0);
        assert_int_equal(wr_kv_flush(&a->kv, &err), 0);
        assert_int_equal(n_told, a->n_layer * (2600 / WR_TILE));
        open_case(b, 4, "auto", locals, false);
        wr_kv_close(&b->kv);
        wr_arena_close(&b->arena);
        b->config.base = &a->config.file.file;
        b->config.base_places = a->config.places;
        b->config.base_tiles = 2600 / WR_TILE;
        assert_int_equal(wr_arena_open(&b->arena, wr_kv_layout_bytes(&b->config.layout), &err), 0);
        assert_int_equal(wr_store_open_temporary(&b->config.file, folder, WEIR_DIRECT_AUTO, NULL, &err), 0);
        assert_int_equal(wr_store_reserve(&b->config.file, 8192 + 20ull * b->config.places.group_bytes, &err), 0);
        assert_int_equal(wr_kv_open_spilled(&b->kv, &b->config, &err), 0);
        memcpy(b->version, a->version, sizeof a->version);
        assert_int_equal(wr_kv_adopt(&b->kv, 2560, &err), 0);
        assert_int_equal(wr_kv_adopt_tail(&b->kv, 40, fill_tail, a, &err), 0);
        b->n = 2600;
        for (uint32_t at = 2600; at < 3600; at += 500) assert_int_equal(pass(b, at, 500, UINT32_MAX, &err), 0);
        assert_int_equal(pass(b, 1000, 300, UINT32_MAX, &err), 0); /* back below the base's end, and on */
        for (uint32_t at = 1300; at < 3800; at += 500) assert_int_equal(pass(b, at, 500, UINT32_MAX, &err), 0);
        close_case(b);
        rebases(a, b, locals);
        close_case(a);
    }
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(global_layers),
        cmocka_unit_test(local_layers),
        cmocka_unit_test(failed_writes),
        cmocka_unit_test(failed_reads),
        cmocka_unit_test(slow_and_short),
        cmocka_unit_test(counts_bytes),
        cmocka_unit_test(rollbacks_read_nothing_twice),
        cmocka_unit_test(writes_what_is_appended),
        cmocka_unit_test(adopts_again),
        cmocka_unit_test(goes_on_from_a_base),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
