/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager on a file of random bytes: teams of several sizes take every item of every pass, and every row is compared with the file as plain read()
 * gives it. With the sim engine nothing is read, and the bytes of a pass are counted against the plan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/crc32c.h"
#include "base/os.h"
#include "base/team.h"
#include "memory/control.h"
#include "memory/pager.h"

#define N_LAYERS 3
#define N_IN_LAYER 5
#define VOCAB 700
#define MAX_USES 32
#define KIB 1024ull
#define MIB (1024 * KIB)

static char path[] = "pager-test-XXXXXX";
static uint8_t *file_bytes;
static uint64_t n_file;

/* A model on the file, its plan and an open pager. */
struct rig {
    struct wr_tensor tensor[MAX_USES];
    struct wr_use uses[MAX_USES];
    uint32_t n_uses, embd, head, body[N_LAYERS][N_IN_LAYER], vector32, vector16;
    struct wr_ledger ledger;
    struct wr_file file;
    struct wr_catalog catalog;
    struct wr_plan_input in;
    struct wr_plan plan;
    struct wr_arena arena;
    struct wr_device device;
    struct wr_team *team;
    struct wr_pager *pager;
    bool data; /* the engine reads */
};
static struct rig *opened; /* what a test that fails leaves open */

static uint32_t add(struct rig *r, enum wr_use_class use, const struct wr_quant *quant, uint64_t row_bytes, uint64_t n_rows, uint64_t *at)
{
    struct wr_tensor *t = &r->tensor[r->n_uses];
    *t = (struct wr_tensor){.name = "t",
        .quant = quant,
        .n_dims = 2,
        .ne = {row_bytes, n_rows, 1, 1},
        .n_rows = n_rows,
        .row_bytes = row_bytes,
        .bytes = row_bytes * n_rows,
        .offset = *at};
    if (use == WR_USE_VECTOR) t->ne[0] = row_bytes / quant->block_bytes;
    *at = wr_round_up(*at + t->bytes, 32);
    r->uses[r->n_uses] = (struct wr_use){t, use};
    return r->n_uses++;
}

/* Rows shorter than an element of the page grid and longer than an extent, numbers of rows that are no whole panels, and a head at the end of the file. */
static uint64_t describe(struct rig *r, bool tied)
{
    static const struct {
        uint32_t row_bytes, n_rows;
    } shapes[N_IN_LAYER] = {{340, 576}, {340, 200}, {18, 1000}, {5000, 90}, {340, 1537}};
    uint64_t at = 4096 * 3 + 736;
    r->embd = add(r, WR_USE_ROWS, NULL, 612, VOCAB, &at);
    r->vector32 = add(r, WR_USE_VECTOR, &wr_quant_f32, 1000, 1, &at);
    for (int il = 0; il < N_LAYERS; il++)
        for (int i = 0; i < N_IN_LAYER; i++) r->body[il][i] = add(r, WR_USE_DENSE, NULL, shapes[i].row_bytes, shapes[i].n_rows, &at);
    r->vector16 = add(r, WR_USE_VECTOR, &wr_quant_f16, 502, 1, &at);
    if (tied) {
        r->uses[r->n_uses] = (struct wr_use){&r->tensor[r->embd], WR_USE_HEAD};
        r->head = r->n_uses++;
    } else {
        r->head = add(r, WR_USE_HEAD, NULL, 612, VOCAB, &at);
    }
    return at;
}

struct setting {
    const char *io;
    uint32_t n_threads;
    uint64_t extent, ring, pin;
    bool tied;
    enum wr_control control;
};

static void open_rig(struct rig *r, const struct setting *s)
{
    weir_err err = {0};
    memset(r, 0, sizeof *r);
    wr_ledger_init(&r->ledger);
    assert_true(describe(r, s->tied) <= n_file + 32);
    r->data = strcmp(s->io, "sim") != 0;
    assert_int_equal(wr_file_open(&r->file, path, WEIR_DIRECT_AUTO, NULL, &err), 0);
    r->catalog = (struct wr_catalog){.files = &r->file, .n_files = 1, .ledger = &r->ledger};
    r->in = (struct wr_plan_input){.uses = r->uses,
        .n_uses = r->n_uses,
        .kv_bytes_per_position = 64,
        .n_ctx = 16,
        .n_ctx_trained = 16,
        .n_threads = s->n_threads,
        .scratch_base = 16 * KIB,
        .scratch_per_thread = wr_pager_seam_bytes(5000) + KIB,
        .process_bytes = MIB,
        .budget = 256 * MIB,
        .pin_bytes = s->pin,
        .ring_bytes = s->ring,
        .extent_bytes = s->extent,
        .ledger = &r->ledger};
    if (wr_plan_make(&r->plan, &r->in, &err) != 0 || wr_plan_control(&r->plan, s->control, N_LAYERS, &err) != 0) fail_msg("%s", err.text);
    for (int a = 0; a < WR_N_ACCOUNTS; a++) wr_ledger_limit(&r->ledger, a, r->plan.account[a]);
    assert_int_equal(
        wr_arena_open(&r->arena, r->plan.account[WR_ACCOUNT_SCRATCH] + r->plan.account[WR_ACCOUNT_WEIGHTS] + r->plan.account[WR_ACCOUNT_RING], &err), 0);
    assert_int_equal(wr_team_open_on(&r->team, s->n_threads, s->n_threads, &r->ledger, &err), 0);
    wr_device_cpu(&r->device);
    struct wr_pager_config config = {.plan = &r->plan,
        .catalog = &r->catalog,
        .device = &r->device,
        .io = s->io,
        .arena = &r->arena,
        .ledger = &r->ledger,
        .n_members = s->n_threads,
        .checksums = r->data};
    if (wr_pager_open(&r->pager, &config, &err) != 0) fail_msg("%s", err.text);
    opened = r;
}

static void close_rig(struct rig *r)
{
    opened = NULL;
    wr_pager_close(r->pager);
    wr_team_close(r->team);
    wr_arena_close(&r->arena);
    wr_plan_free(&r->plan);
    wr_file_close(&r->file);
    assert_int_equal(wr_ledger_used(&r->ledger, WR_ACCOUNT_META), 0);
}

/* After each test: whatever it left, the next one begins without threads and faults of this one. */
static int tidy(void **state)
{
    wr_fault_set(WR_FAULT_READ, 0, false);
    wr_io_fault_script = (struct wr_io_fault_script){0};
    if (opened != NULL) close_rig(opened);
    return 0;
}

/* Items [0, limit) of a group of weights, as a pass takes them. */
struct group {
    struct rig *r;
    const uint32_t *weights;
    uint32_t n_weights, limit;
    uint32_t work_us; /* per item */
    _Atomic uint32_t next, failed, wrong;
    _Atomic uint64_t n_rows;
};

static void take_items(void *arg, uint32_t member, uint32_t n_members)
{
    struct group *g = arg;
    struct rig *r = g->r;
    for (;;) {
        uint32_t item = atomic_fetch_add(&g->next, 1), i = 0;
        if (item >= g->limit) return;
        while (i < g->n_weights && item >= wr_pager_items(r->pager, g->weights[i])) item -= wr_pager_items(r->pager, g->weights[i++]);
        if (i == g->n_weights) return;
        const struct wr_tensor *t = r->uses[g->weights[i]].tensor;
        struct wr_lease lease;
        struct wr_rows rows;
        if (!wr_pager_acquire(r->pager, g->weights[i], item, 1, member, &lease)) {
            atomic_store(&g->failed, 1);
            return;
        }
        uint32_t row = item * wr_pager_item_rows(r->pager, g->weights[i]);
        uint64_t end = row + wr_pager_item_rows(r->pager, g->weights[i]) < t->n_rows ? row + wr_pager_item_rows(r->pager, g->weights[i]) : t->n_rows;
        while (wr_lease_next(&lease, &rows)) {
            bool whole = rows.n_rows % WR_PANEL_ROWS == 0 || rows.first_row + rows.n_rows == t->n_rows;
            bool right = rows.first_row == row && rows.n_rows > 0 && row + rows.n_rows <= end && rows.ref.bytes == rows.n_rows * t->row_bytes && whole;
            if (right && r->data) right = memcmp(wr_ref_address(&r->device, &rows.ref), file_bytes + t->offset + row * t->row_bytes, rows.ref.bytes) == 0;
            if (!right) atomic_fetch_add(&g->wrong, 1);
            row += rows.n_rows;
        }
        if (row != end) atomic_fetch_add(&g->wrong, 1);
        atomic_fetch_add(&g->n_rows, end - (uint64_t)item * wr_pager_item_rows(r->pager, g->weights[i]));
        if (g->work_us > 0) usleep(g->work_us);
        wr_pager_release(&lease, r->device.ops->fence(&r->device));
    }
}

/* A pass that takes `limit` items in all; true if it was whole. */
static bool run_pass(struct rig *r, bool head, uint32_t limit, uint32_t work_us)
{
    static const uint32_t split[] = {3, 1, 1}; /* three weights side by side, then one by one */
    bool whole = true;
    wr_pager_begin(r->pager, head);
    for (int il = 0; whole && il <= N_LAYERS; il++) {
        if (il == N_LAYERS && !head) break;
        const uint32_t *weights = il < N_LAYERS ? r->body[il] : &r->head;
        for (uint32_t s = 0; whole && s < (il < N_LAYERS ? 3 : 1); s++) {
            struct group g = {.r = r, .weights = weights, .n_weights = il < N_LAYERS ? split[s] : 1, .work_us = work_us};
            uint32_t n_items = 0;
            uint64_t n_rows = 0;
            for (uint32_t i = 0; i < g.n_weights; i++) {
                n_items += wr_pager_items(r->pager, weights[i]);
                n_rows += r->uses[weights[i]].tensor->n_rows;
            }
            g.limit = n_items < limit ? n_items : limit;
            wr_team_run(r->team, take_items, &g);
            assert_int_equal(g.wrong, 0);
            whole = !g.failed && g.limit == n_items;
            if (whole) assert_true(g.n_rows == n_rows);
            limit -= g.limit;
            weights += g.n_weights;
        }
    }
    wr_pager_end(r->pager, !whole);
    return whole;
}

/* Every weight that is used whole was read by now: its crc is that of the file's bytes. */
static void assert_checksums(const struct rig *r)
{
    for (uint32_t w = 0; w < r->n_uses; w++) {
        const struct wr_tensor *t = r->uses[w].tensor;
        uint32_t crc = 0;
        assert_int_equal(wr_pager_weight_crc(r->pager, w, &crc), r->uses[w].use != WR_USE_ROWS);
        if (r->uses[w].use != WR_USE_ROWS) assert_int_equal(crc, wr_crc32c_scalar(0, file_bytes + t->offset, t->bytes));
    }
}

static void test_every_byte(void **state)
{
    const char *wanted = getenv("WEIR_TEST_IO");
    const char *engines[] = {"pread", "auto", "mmap"};
    const uint32_t threads[] = {1, 2, 5};
    const uint64_t extents[] = {4096, 20480, 512 * KIB}, pins[] = {0, 700 * KIB, WEIR_AUTO};
    int n = 0;
    for (size_t e = 0; e < 3; e++)
        for (size_t x = 0; x < 3; x++)
            for (size_t p = 0; p < 3; p++) {
                struct setting s = {wanted != NULL ? wanted : engines[e], threads[(e + x + p) % 3], extents[x], n % 4 < 2 ? 0 : 64 * MIB, pins[p], n % 2 == 0};
                static struct rig r;
                n++;
                open_rig(&r, &s);
                if (pins[p] != WEIR_AUTO) assert_true(r.plan.n_tape > 0);
                uint32_t crc;
                assert_true(wr_pager_weight_crc(r.pager, r.vector16, &crc));
                assert_true(run_pass(&r, false, UINT32_MAX, 0)); /* without the head */
                if (pins[p] == 0) assert_false(wr_pager_weight_crc(r.pager, r.head, &crc));
                assert_true(wr_pager_weight_crc(r.pager, r.body[N_LAYERS - 1][N_IN_LAYER - 1], &crc));
                for (int pass = 0; pass < 6; pass++) assert_true(run_pass(&r, pass % 3 == 0 || pass == 4, UINT32_MAX, 0));
                assert_checksums(&r);
                struct wr_pager_stats stats = wr_pager_stats(r.pager);
                assert_int_equal(stats.bytes_pinned, r.plan.pinned);
                if (pins[p] == WEIR_AUTO) assert_true(stats.bytes_streamed == 0 && stats.bytes_seam == 0);
                if (pins[p] == 0 && x < 2) assert_true(stats.bytes_seam > 0); /* rows on borders were among those compared */
                close_rig(&r);
            }
}

/* Waits until that much was read ahead, however busy the machine is, and then looks whether more comes than there should. */
static void assert_streamed(struct rig *r, uint64_t expected)
{
    uint64_t deadline = wr_clock_ns() + 20000000000u;
    while (wr_pager_stats(r->pager).bytes_streamed < expected && wr_clock_ns() < deadline) usleep(500);
    usleep(5000);
    assert_int_equal(wr_pager_stats(r->pager).bytes_streamed, expected);
}

/* Passes with the smallest ring, or with one for all that is streamed, read what the plan says, to the byte, and the read-ahead is what fits the ring; nothing waits for ever. */
static void test_exact_reads(void **state)
{
    const uint64_t extents[] = {4096, 12288, 65536, 512 * KIB};
    for (size_t x = 0; x < 4; x++)
        for (int tied = 0; tied < 2; tied++)
            for (uint64_t pin = 0; pin <= 900 * KIB; pin += 450 * KIB) {
                struct setting s = {"sim", 1 + (uint32_t)x, extents[x], pin == 450 * KIB ? 64 * MIB : 0, pin, tied};
                static struct rig r;
                open_rig(&r, &s);
                uint64_t ahead = 0, expected, body = 0, all = 0;
                uint32_t n_body = r.plan.n_tape - r.plan.n_tape_head, n_reads = 0;
                for (uint32_t i = 0; i < r.plan.n_tape; i++) {
                    uint64_t bytes = r.plan.extents[r.plan.tape[i]].bytes;
                    if (i < n_body && i < r.plan.n_slots) ahead += bytes;
                    if (i < n_body) body += bytes;
                    all += bytes;
                }
                assert_int_equal(all, r.plan.streamed);
                expected = ahead;
                assert_streamed(&r, expected);
                for (int pass = 0; pass < 7; pass++) {
                    bool head = pass % 2 == 1;
                    assert_true(run_pass(&r, head, UINT32_MAX, 0));
                    expected += head ? all : body;
                    n_reads += head ? r.plan.n_tape : n_body;
                    if (pass % 3 == 0) assert_streamed(&r, expected);
                }
                struct wr_pager_stats stats = wr_pager_stats(r.pager);
                assert_int_equal(stats.bytes_streamed, expected);
                assert_true(stats.n_reads_streamed >= n_reads);
                assert_string_equal(stats.engine, "sim");
                close_rig(&r);
            }
}

/* What a cache of so many extents reads if the one used longest ago makes room: extents in the order of their last use, the newest first. */
struct cache {
    uint32_t extent[2000], n, n_slots;
    uint64_t bytes;
};
static void use(struct cache *c, const struct wr_plan *plan, uint32_t extent)
{
    uint32_t i = 0;
    while (i < c->n && c->extent[i] != extent) i++;
    if (i == c->n) {
        c->bytes += plan->extents[extent].bytes;
        if (c->n < c->n_slots)
            c->n++;
        else
            i--;
    }
    memmove(c->extent + 1, c->extent, i * sizeof *c->extent);
    c->extent[0] = extent;
}

/* The controls give the same rows. Those that keep nothing read every extent in every pass; the cache reads what the model of one above says, which is
 * everything where the passes are alike and it is too small by one extent, and nothing where it is not. */
static void test_controls(void **state)
{
    static const struct {
        uint64_t extent, ring, pin;
    } cases[] = {{4096, 0, 1200 * KIB}, {4096, 300 * KIB, 400 * KIB}, {4096, 64 * MIB, 0}, {65536, 0, 1400 * KIB}, {16384, 2 * MIB, 0}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++)
        for (int control = WR_CONTROL_STREAM_ALL; control < WR_N_CONTROLS; control++)
            for (int heads = 0; heads < 3; heads++) { /* none, in every second pass, in all */
                bool sim = i % 2 == 0;
                if (!sim && heads != 1) continue; /* thousands of small reads */
                const char *io = control == WR_CONTROL_MMAP ? "mmap" : sim ? "sim" : "pread";
                struct setting s = {io, 1 + heads, cases[i / 2].extent, cases[i / 2].ring, cases[i / 2].pin, i % 3 == 0, control};
                static struct rig r;
                open_rig(&r, &s);
                const struct wr_plan *plan = &r.plan;
                uint32_t n_body = plan->n_tape - plan->n_tape_head, n_passes = 6;
                static struct cache cache;
                assert_true(plan->n_tape < 2000);
                cache = (struct cache){.n_slots = plan->lru ? plan->n_slots : 0};
                uint64_t all = 0;
                for (uint32_t pass = 0; pass < n_passes; pass++) {
                    bool head = heads == 2 || (heads == 1 && pass % 2 == 1);
                    for (uint32_t t = 0; t < (head ? plan->n_tape : n_body); t++) {
                        all += plan->extents[plan->tape[t]].bytes;
                        if (plan->lru) use(&cache, plan, plan->tape[t]);
                    }
                    assert_true(run_pass(&r, head, UINT32_MAX, 0));
                }
                uint64_t ahead = 0, whole_pass = 0;
                if (heads == 2 && plan->lru) assert_int_equal(cache.bytes, plan->n_slots < plan->n_tape ? all : all / n_passes);
                for (uint32_t t = 0; t < n_body && t < plan->n_ahead; t++) {
                    ahead += plan->extents[plan->tape[t]].bytes;
                    if (plan->lru) use(&cache, plan, plan->tape[t]);
                }
                assert_streamed(&r, plan->lru ? cache.bytes : all + ahead);
                for (uint32_t t = 0; t < plan->n_tape; t++) whole_pass += plan->extents[plan->tape[t]].bytes;
                assert_int_equal(plan->streamed, plan->lru && plan->n_slots == plan->n_tape ? 0 : whole_pass);
                assert_int_equal(wr_pager_stats(r.pager).bytes_pinned, 0);
                assert_int_equal(run_pass(&r, true, 20, 0), false); /* left half-way, and whole again */
                assert_true(run_pass(&r, true, UINT32_MAX, 0));
                close_rig(&r);
            }
}

/* A pass left at any item; the next one is whole and right. */
/* What was read at open is there, what the ring has no place for is not, and pinned weights always are. */
static void test_ready(void **state)
{
    static struct rig r;
    const uint64_t pins[] = {0, WEIR_AUTO};
    for (int i = 0; i < 2; i++) {
        struct setting s = {"pread", 2, 20480, 0, pins[i], true};
        open_rig(&r, &s);
        wr_pager_begin(r.pager, false);
        const uint32_t last = r.body[N_LAYERS - 1][4];
        assert_true(wr_pager_ready(r.pager, r.body[0][0], 0));
        assert_int_equal(wr_pager_ready(r.pager, last, wr_pager_items(r.pager, last) - 1), pins[i] == WEIR_AUTO);
        wr_pager_end(r.pager, true);
        close_rig(&r);
    }
}

static void test_abort(void **state)
{
    struct setting s = {"pread", 3, 8192, 0, 200 * KIB, true};
    static struct rig r;
    open_rig(&r, &s);
    uint32_t n_items = 0;
    for (int il = 0; il < N_LAYERS; il++)
        for (int i = 0; i < N_IN_LAYER; i++) n_items += wr_pager_items(r.pager, r.body[il][i]);
    for (uint32_t limit = 0; limit < n_items + 2; limit += 1 + limit / 4) {
        assert_false(run_pass(&r, true, limit, 0));
        if (limit % 3 == 0) assert_false(run_pass(&r, limit % 2, limit / 2, 0));
        assert_true(run_pass(&r, limit % 2 == 0, UINT32_MAX, 0));
    }
    assert_checksums(&r);
    close_rig(&r);
}

struct row_check {
    struct rig *r;
    const int32_t *ids;
    size_t next;
};

static void check_row(void *user, size_t i, const void *row)
{
    struct row_check *c = user;
    const struct wr_tensor *t = c->r->uses[c->r->embd].tensor;
    assert_int_equal(i, c->next);
    c->next++;
    if (c->r->data) assert_memory_equal(row, file_bytes + t->offset + (uint64_t)c->ids[i] * t->row_bytes, t->row_bytes);
}

static void test_token_rows(void **state)
{
    const uint64_t pins[] = {0, 600 * KIB, WEIR_AUTO};
    for (int tied = 0; tied < 2; tied++)
        for (size_t p = 0; p < 3; p++) {
            struct setting s = {"pread", 2, 4096, 0, pins[p], tied};
            static struct rig r;
            int32_t ids[100];
            weir_err err;
            open_rig(&r, &s);
            for (int pass = 0; pass < 8; pass++) {
                size_t n = pass == 0 ? 1 : pass == 1 ? 16 : pass == 2 ? 17 : 100;
                for (size_t i = 0; i < n; i++)
                    ids[i] = i == 0 ? VOCAB - 1 : i == 1 ? 0 : (int32_t)((i / 2 * 7919 + (size_t)pass * 31) % VOCAB); /* neighbours twice the same */
                struct row_check c = {&r, ids, 0};
                wr_pager_begin(r.pager, false);
                assert_int_equal(wr_pager_rows(r.pager, r.embd, ids, n, check_row, &c, &err), 0);
                assert_int_equal(c.next, n);
                wr_pager_end(r.pager, true);
                assert_true(run_pass(&r, pass % 2, UINT32_MAX, 0));
            }
            struct wr_pager_stats stats = wr_pager_stats(r.pager);
            if (p == 0) assert_true(stats.bytes_rows > 0 && stats.bytes_rows % 4096 == 0);
            if (p == 2) assert_int_equal(stats.bytes_rows, 0);
            close_rig(&r);
        }
}

static void test_vectors(void **state)
{
    struct setting s = {"pread", 1, 4096, 0, 0, false};
    static struct rig r;
    open_rig(&r, &s);
    assert_memory_equal(wr_pager_vector(r.pager, r.vector32), file_bytes + r.tensor[r.vector32].offset, 1000);
    const float *wide = wr_pager_vector(r.pager, r.vector16);
    for (int i = 0; i < 251; i++) {
        uint16_t half;
        memcpy(&half, file_bytes + r.tensor[r.vector16].offset + 2 * i, 2);
        int exponent = half >> 10 & 31, mantissa = half & 1023;
        double expected = exponent == 0 ? ldexp(mantissa, -24) : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN) : ldexp(1024 + mantissa, exponent - 25);
        if (half >> 15) expected = -expected;
        assert_true((double)wide[i] == expected || (isnan(wide[i]) && isnan(expected)));
    }
    close_rig(&r);
}

static void test_stalls(void **state)
{
    struct setting s = {"fault", 2, 65536, 0, 0, false};
    static struct rig r;
    wr_io_fault_script = (struct wr_io_fault_script){.delay_ns = 3000000};
    open_rig(&r, &s);
    assert_true(run_pass(&r, true, UINT32_MAX, 0)); /* a slow disk: compute waits */
    struct wr_pager_stats stats = wr_pager_stats(r.pager);
    assert_true(stats.stall_io_ns > 5000000);
    close_rig(&r);
    wr_io_fault_script = (struct wr_io_fault_script){0};

    s.io = "pread";
    open_rig(&r, &s);
    for (int pass = 0; pass < 2; pass++) assert_true(run_pass(&r, true, UINT32_MAX, 2000)); /* slow compute: the tape waits for slots */
    stats = wr_pager_stats(r.pager);
    assert_true(stats.stall_compute_ns > 5000000);
    close_rig(&r);

    s.pin = WEIR_AUTO; /* nothing is streamed: nobody waits */
    open_rig(&r, &s);
    assert_true(run_pass(&r, true, UINT32_MAX, 0));
    stats = wr_pager_stats(r.pager);
    assert_true(stats.stall_io_ns == 0 && stats.stall_compute_ns == 0 && stats.bytes_streamed == 0);
    close_rig(&r);
}

/* A read that fails ends the pass with its code and text; the next pass is right again. */
static void test_failed_read(void **state)
{
    struct setting s = {"pread", 3, 16384, 0, 0, true};
    static struct rig r;
    int failures = 0;
    open_rig(&r, &s);
    for (uint64_t n = 1; n < 60; n += 3) {
        wr_fault_set(WR_FAULT_READ, n, true);
        bool whole = run_pass(&r, true, UINT32_MAX, 0);
        failures += !whole;
        /* The read ahead is what may fail then: with the fault armed, time for it to do so before the next pass begins. */
        for (int ms = 0; whole && ms < 50 && wr_pager_error(r.pager, NULL) == 0; ms++) usleep(1000);
        wr_fault_set(WR_FAULT_READ, 0, false);
        for (int tries = 0; !run_pass(&r, true, UINT32_MAX, 0); tries++) assert_true(tries == 0);
        weir_err err;
        assert_int_equal(wr_pager_error(r.pager, &err), 0);
    }
    assert_true(failures > 10);
    close_rig(&r);

    failures = 0;
    open_rig(&r, &s);
    int32_t ids[WR_ROW_SLOTS];
    for (int i = 0; i < WR_ROW_SLOTS; i++) ids[i] = i * 40;
    for (uint64_t n = 1; n < 40; n++) {
        weir_err err;
        struct row_check c = {&r, ids, 0};
        for (int fails = 1; fails >= 0; fails--) {
            wr_fault_set(WR_FAULT_READ, fails ? n : 0, true);
            c.next = 0;
            wr_pager_begin(r.pager, false);
            int rc = wr_pager_rows(r.pager, r.embd, ids, WR_ROW_SLOTS, check_row, &c, &err);
            wr_fault_set(WR_FAULT_READ, 0, false);
            wr_pager_end(r.pager, true);
            if (!fails) assert_int_equal(rc, 0);
            if (rc != 0) assert_int_equal(rc, WEIR_E_READ);
            failures += rc != 0;
        }
    }
    assert_true(failures > 10);
    uint32_t filled = r.plan.n_slots; /* read at open */
    close_rig(&r);

    wr_io_fault_script = (struct wr_io_fault_script){.fail_at = filled + 9, .fail_count = 1, .fail_errno = EIO};
    s.io = "fault";
    open_rig(&r, &s);
    assert_false(run_pass(&r, true, UINT32_MAX, 0));
    assert_true(run_pass(&r, true, UINT32_MAX, 0));
    close_rig(&r);
    wr_io_fault_script = (struct wr_io_fault_script){0};
}

/* Many short passes with more threads than CPUs, rings of the least size, and passes that are left half-way. */
static void test_stress(void **state)
{
    struct setting s = {"pread", 7, 4096, 0, 300 * KIB, true};
    static struct rig r;
    uint32_t x = 1;
    open_rig(&r, &s);
    for (int pass = 0; pass < 40; pass++) {
        x = x * 1664525 + 1013904223;
        bool leave = x >> 29 == 0;
        assert_int_equal(run_pass(&r, x >> 16 & 1, leave ? x >> 20 & 63 : UINT32_MAX, 0), !leave);
    }
    close_rig(&r);
}

static int setup(void **state)
{
    struct rig r = {0};
    uint64_t x = 88172645463325252u;
    describe(&r, false);
    n_file = r.tensor[r.head].offset + r.tensor[r.head].bytes;
    file_bytes = malloc(n_file + 8);
    for (uint64_t i = 0; i < n_file; i += 8) { /* xorshift64 */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(file_bytes + i, &x, 8);
    }
    int fd = mkstemp(path);
    if (fd < 0) return -1;
    for (uint64_t at = 0; at < n_file;) {
        ssize_t n = write(fd, file_bytes + at, n_file - at);
        if (n <= 0) return -1;
        at += (uint64_t)n;
    }
    alarm(560); /* whoever waits for ever is found */
    return fsync(fd) | close(fd);
}

static int teardown(void **state)
{
    free(file_bytes);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_byte, tidy),
        cmocka_unit_test_teardown(test_exact_reads, tidy),
        cmocka_unit_test_teardown(test_controls, tidy),
        cmocka_unit_test_teardown(test_ready, tidy),
        cmocka_unit_test_teardown(test_abort, tidy),
        cmocka_unit_test_teardown(test_token_rows, tidy),
        cmocka_unit_test_teardown(test_vectors, tidy),
        cmocka_unit_test_teardown(test_stalls, tidy),
        cmocka_unit_test_teardown(test_failed_read, tidy),
        cmocka_unit_test_teardown(test_stress, tidy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
