/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole engine on a tiny model, with one thing going wrong at a time: the Nth allocation, read or thread, once and for good; reads
 * that come short, late, refused or damaged; a file cut or changed under the engine; a device with memory of its own; all of it also where keys and values
 * are on disk. Each time: the same logits as an undisturbed run, or the right error; no leak (sanitizers and the ledger watch), no hang (a timer watches).
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/crc32c.h"
#include "faulty.h"

#define N_IDS 6
#define MAX_VOCAB 512
static const int32_t ids[N_IDS] = {72, 105, 33, 260, 7, 91};
#define N_ROWS (N_IDS - 1)
static float reference[MAX_VOCAB * N_ROWS];
static weir_io_info last_io; /* at the end of the last run that went through */

/* A prompt that ends in the third tile, and two tokens more, the second of which begins the fourth. */
#define N_LONG 769
static const uint32_t steps[] = {700, N_LONG - 1, N_LONG};
#define N_STEPS (sizeof steps / sizeof *steps)
static int32_t long_ids[1024];
static float long_reference[MAX_VOCAB * N_STEPS];

static weir_options spilled_options(void)
{
    weir_options o = options();
    o.extent_bytes = o.ring_bytes = o.pin_bytes = WEIR_AUTO;
    return spilled(o);
}

/* Opens all, evaluates the first lengths[i] of the tokens in turn, and closes: the logits behind each, [n][n_vocab]. */
static int run_lengths(const weir_options *o, const int32_t *tokens, const uint32_t *lengths, size_t n, float *out, weir_err *err)
{
    weir_plan *plan = NULL;
    weir_engine *engine = NULL;
    weir_session *session = NULL;
    wind_timer();
    memset(err, 0, sizeof *err);
    int rc = weir_plan_open(&plan, model, o, err);
    if (rc == 0) {
        rc = weir_engine_open(&engine, plan, err);
        if (rc < 0) weir_plan_close(plan);
    }
    if (rc == 0) rc = weir_session_open(&session, engine, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = weir_session_set(session, tokens, lengths[i], err);
        if (rc == 0) memcpy(out + i * n_vocab, weir_session_logits(session), n_vocab * sizeof *out);
    }
    if (rc == 0) last_io = weir_engine_io(engine);
    weir_session_close(session);
    weir_engine_close(engine);
    return rc;
}

static int run_long(const weir_options *o, float *out, weir_err *err) { return run_lengths(o, long_ids, steps, N_STEPS, out, err); }

/* Load, two tokens as a prompt and four more one by one: logits of each step from the second on. */
static int run(const weir_options *o, float *out, weir_err *err)
{
    uint32_t lengths[N_ROWS];
    for (uint32_t i = 0; i < N_ROWS; i++) lengths[i] = 2 + i;
    return run_lengths(o, ids, lengths, N_ROWS, out, err);
}

static void assert_same(const float *out) { assert_memory_equal(out, reference, N_ROWS * n_vocab * sizeof *out); }

static int setup(void **state)
{
    weir_options o = options();
    weir_err err;
    if (make_model() < 0 || n_vocab > MAX_VOCAB) return -1;
    int rc = run(&o, reference, &err);
    for (uint32_t i = 0; i < sizeof long_ids / sizeof *long_ids; i++) long_ids[i] = (int32_t)(i * i % 251) + 3;
    o.n_ctx = 2048;
    o.n_chunk = 128;
    if (rc == 0) rc = run_long(&o, long_reference, &err);
    if (rc < 0) print_error("%s\n", err.text);
    return rc == 0 && last_io.bytes_written == 0 ? 0 : -1;
}

static void test_a12_nth_allocation(void **state)
{
    nth_failure(&(struct work){run, options(), reference, N_ROWS * n_vocab}, WR_FAULT_ALLOC, WEIR_E_NOMEM, WEIR_E_NOMEM);
}
static void test_nth_read(void **state) { nth_failure(&(struct work){run, options(), reference, N_ROWS * n_vocab}, WR_FAULT_READ, WEIR_E_READ, WEIR_E_OPEN); }
static void test_nth_thread(void **state)
{
    nth_failure(&(struct work){run, options(), reference, N_ROWS * n_vocab}, WR_FAULT_THREAD, WEIR_E_THREAD, WEIR_E_THREAD);
}

static void test_spilled_nth(void **state)
{
    skip_under_valgrind();
    static float out[MAX_VOCAB * N_STEPS];
    const struct work w = {run_long, spilled_options(), long_reference, N_STEPS * n_vocab};
    weir_err err;
    if (run_long(&w.options, out, &err) < 0) fail_msg("%s", err.text);
    assert_memory_equal(out, long_reference, N_STEPS * n_vocab * sizeof *out);
    assert_true(last_io.bytes_written > 0 && last_io.bytes_read_kv > 0);
    nth_failure(&w, WR_FAULT_ALLOC, WEIR_E_NOMEM, WEIR_E_NOMEM);
    nth_failure(&w, WR_FAULT_READ, WEIR_E_READ, WEIR_E_OPEN);
    nth_failure(&w, WR_FAULT_WRITE, WEIR_E_WRITE, WEIR_E_WRITE);
    nth_failure(&w, WR_FAULT_THREAD, WEIR_E_THREAD, WEIR_E_THREAD);
    assert_int_equal(n_entries(folder), 3); /* the model */
}

/* With keys and values on disk: after a failed write or read the session goes on; back to any place and on with other tokens it is as a fresh one. */
static void test_spilled_goes_on(void **state)
{
    skip_under_valgrind();
    static const uint32_t back[] = {768, 767, 600, 513, 512, 511, 257, 256, 255, 1};
    static float fresh[MAX_VOCAB];
    weir_options o = spilled_options(), large = options();
    weir_err err;
    weir_plan *plan;
    weir_engine *engine, *other_engine;
    weir_session *session, *other;
    int failures = 0;
    large.n_ctx = o.n_ctx;
    assert_int_equal(weir_plan_open(&plan, model, &o, &err), 0);
    assert_int_equal(weir_engine_open(&engine, plan, &err), 0);
    assert_int_equal(weir_session_open(&session, engine, &err), 0);
    for (uint64_t n = 1; n <= 24; n++) {
        const enum wr_fault_kind kind = n % 2 ? WR_FAULT_WRITE : WR_FAULT_READ;
        wr_fault_set(kind, 1 + n * 5 % 12, n % 4 < 2);
        int rc = weir_session_set(session, long_ids, 1 + n * 97 % N_LONG, &err);
        if (rc == 0) rc = weir_session_set(session, long_ids, N_LONG, &err);
        wr_fault_set(kind, 0, false);
        if (rc < 0) {
            if (rc != (kind == WR_FAULT_WRITE ? WEIR_E_WRITE : WEIR_E_READ)) fail_msg("%llu: %d: %s", (unsigned long long)n, rc, err.text);
            failures++;
        }
        /* What was under way may still fail. */
        rc = weir_session_set(session, long_ids, N_LONG, &err);
        if (rc < 0) rc = weir_session_set(session, long_ids, N_LONG, &err);
        if (rc < 0) fail_msg("%s", err.text);
        assert_memory_equal(weir_session_logits(session), long_reference + (N_STEPS - 1) * n_vocab, n_vocab * sizeof(float));
    }
    assert_true(failures > 4);
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        int32_t changed[N_LONG];
        const uint32_t n = N_LONG - (uint32_t)i;
        for (uint32_t j = 0; j < N_LONG; j++) changed[j] = j < back[i] ? long_ids[j] : (int32_t)(j % 97) + 5;
        assert_int_equal(weir_plan_open(&plan, model, &large, &err), 0);
        assert_int_equal(weir_engine_open(&other_engine, plan, &err), 0);
        assert_int_equal(weir_session_open(&other, other_engine, &err), 0);
        assert_int_equal(weir_session_set(other, changed, n, &err), 0);
        memcpy(fresh, weir_session_logits(other), n_vocab * sizeof *fresh);
        weir_session_close(other);
        weir_engine_close(other_engine);
        if (weir_session_set(session, changed, n, &err) < 0) fail_msg("%s", err.text);
        assert_memory_equal(weir_session_logits(session), fresh, n_vocab * sizeof *fresh);
        if (weir_session_set(session, long_ids, N_LONG, &err) < 0) fail_msg("%s", err.text);
        assert_memory_equal(weir_session_logits(session), long_reference + (N_STEPS - 1) * n_vocab, n_vocab * sizeof(float));
    }
    weir_session_close(session);
    weir_engine_close(engine);
}

/* ---- a saved context that grows in place ------------------------------------------------ */

/* Weights are streamed, so that not all are known before the first pass; keys and values are in memory, or on disk with a tile or two resident. */
static weir_options in_place_options(size_t where, const char *path)
{
    weir_options o = options();
    if (where == 1) {
        o = spilled(o);
        o.memory_bytes += 160 << 10;
    }
    o.n_ctx = 2048;
    o.n_chunk = 128;
    snprintf(o.context, sizeof o.context, "%s", path);
    snprintf(o.save_context, sizeof o.save_context, "%s", path);
    return o;
}

struct run {
    weir_engine *engine;
    weir_session *session;
};

static void open_run(struct run *r, const weir_options *o)
{
    weir_err err = {0};
    weir_plan *plan;
    wind_timer();
    if (weir_plan_open(&plan, model, o, &err) < 0 || weir_engine_open(&r->engine, plan, &err) < 0 || weir_session_open(&r->session, r->engine, &err) < 0)
        fail_msg("%s", err.text);
}

static void close_run(struct run *r)
{
    weir_session_close(r->session);
    weir_engine_close(r->engine);
}

/* A file with n tokens, the first n_common of them of the long text. */
static void saved_text(const char *path, uint32_t n, uint32_t n_common)
{
    int32_t text[sizeof long_ids / sizeof *long_ids];
    for (uint32_t i = 0; i < n; i++) text[i] = i < n_common ? long_ids[i] : (int32_t)(i % 97) + 5;
    weir_options o = in_place_options(0, path);
    struct run r;
    weir_err err;
    unlink(path);
    o.context[0] = '\0';
    open_run(&r, &o);
    assert_int_equal(weir_session_set(r.session, text, n, &err), 0);
    assert_int_equal(weir_session_save(r.session, NULL, &err), 0);
    close_run(&r);
}

/* As a file is in which the crcs of weights are not known yet. */
static void forget_weights(const char *path)
{
    uint8_t entry[16];
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pread(fd, entry, sizeof entry, 8192 + 16 * i), sizeof entry);
        memset(entry + 4, 0, 8);
        const uint32_t crc = wr_crc32c(i, entry, 12);
        memcpy(entry + 12, &crc, 4);
        assert_int_equal(pwrite(fd, entry, sizeof entry, 8192 + 16 * i), sizeof entry);
    }
    close(fd);
}

static const struct wr_kvfile_state *saved_in(const struct run *r) { return &r->engine->context.to.saved; }

/* Sessions in turn begin with all that the file has by then, the first of them with a text that is shorter and was not evaluated. */
static void test_in_place_sessions(void **state)
{
    volatile int cancel = 0;
    char path[64];
    weir_err err;
    struct run r;
    skip_under_valgrind();
    snprintf(path, sizeof path, "%s/grows.kv", folder);
    for (size_t where = 0; where < 2; where++) {
        weir_options o = in_place_options(where, path);
        o.cancel = &cancel;
        saved_text(path, 700, 700);
        open_run(&r, &o);
        assert_true(r.engine->context.unchecked);
        cancel = 1;
        assert_int_equal(weir_session_set(r.session, long_ids, 300, &err), WEIR_E_CANCELLED);
        cancel = 0;
        assert_int_equal(weir_session_save(r.session, NULL, &err), WEIR_E_USAGE); /* it has 299 tokens, and the file 700 */
        assert_int_equal(wr_kvfile_tokens(saved_in(&r)), 700);
        for (uint32_t i = 0; i < 5; i++) {
            weir_session_close(r.session);
            if (weir_session_open(&r.session, r.engine, &err) < 0) fail_msg("%s", err.text);
            assert_int_equal(weir_session_length(r.session), wr_kvfile_tokens(saved_in(&r))); /* the third tile may not have been written in time */
            assert_true(weir_session_length(r.session) == 700 || (i > 0 && weir_session_length(r.session) == 768));
            assert_int_equal(wr_kvfile_tokens(&r.engine->context.to.next), weir_session_length(r.session));
            if (i == 0) assert_int_equal(weir_session_save(r.session, NULL, &err), 0); /* what the file has */
            if (weir_session_set(r.session, long_ids, N_LONG, &err) < 0) fail_msg("%s", err.text);
            assert_memory_equal(weir_session_logits(r.session), long_reference + (N_STEPS - 1) * n_vocab, n_vocab * sizeof(float));
        }
        if (where == 1) assert_true(r.engine->plan->plan.kv.n_resident > 0 && weir_engine_io(r.engine).bytes_read_kv > 0);
        close_run(&r);
    }
    unlink(path);
}

/* Another context, loaded where a file would have grown that no weight was compared with yet: nothing of it goes there before, and all of it then. */
static void test_in_place_loads_another(void **state)
{
    char path[64], other[64];
    weir_err err;
    struct run r;
    size_t n_held;
    skip_under_valgrind();
    snprintf(path, sizeof path, "%s/grows.kv", folder);
    snprintf(other, sizeof other, "%s/other.kv", folder);
    saved_text(other, 600, 600);
    for (size_t where = 0; where < 2; where++) {
        weir_options o = in_place_options(where, path);
        saved_text(path, 700, 700);
        forget_weights(path);
        open_run(&r, &o);
        if (weir_session_load(r.session, other, &err) < 0) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(r.engine->context.to.weights[i].known, 0);
        assert_int_equal(weir_session_save(r.session, NULL, &err), WEIR_E_USAGE);
        assert_int_equal(wr_kvfile_tokens(saved_in(&r)), 700);
        if (weir_session_set(r.session, long_ids, 600, &err) < 0) fail_msg("%s", err.text);
        if (weir_session_save(r.session, NULL, &err) < 0) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(r.engine->context.to.weights[i].known, 1);
        close_run(&r);
        open_run(&r, &o);
        const int32_t *held = weir_session_ids(r.session, &n_held);
        assert_int_equal(n_held, 600);
        assert_memory_equal(held, long_ids, 600 * sizeof *held);
        close_run(&r);
    }
    unlink(path);
    unlink(other);
}

/* Each write of a session that goes back and on fails in turn: the error is the disk's, the file has what it had or what came, and the same session ends with
 * the same logits as ever, saved. */
static void test_in_place_nth_write(void **state)
{
    char path[64];
    weir_err err;
    struct run r;
    size_t n_held;
    skip_under_valgrind();
    snprintf(path, sizeof path, "%s/grows.kv", folder);
    for (size_t where = 0; where < 2; where++) {
        uint32_t n_failures = 0;
        bool reached = true;
        for (uint64_t n = 1; reached; n++) {
            weir_options o = in_place_options(where, path);
            o.n_chunk = 272; /* a pass fills more tiles than can wait for the writer */
            if (where == 1) o.memory_bytes += 640 << 10;
            saved_text(path, 1000, 300);
            forget_weights(path);
            open_run(&r, &o);
            wr_fault_set(WR_FAULT_WRITE, n, true);
            int rc = weir_session_set(r.session, long_ids, N_LONG, &err); /* from 300 on another than the file has */
            reached = wr_fault_count(WR_FAULT_WRITE) >= n;
            wr_fault_set(WR_FAULT_WRITE, 0, false);
            if (rc < 0) {
                assert_int_equal(rc, WEIR_E_WRITE);
                n_failures++;
                const uint64_t n_kept = wr_kvfile_tokens(saved_in(&r));
                bool known = true;
                for (uint32_t i = 0; i < 3; i++) known = known && r.engine->context.to.weights[i].known;
                assert_true(weir_session_length(r.session) >= 299); /* the tokens are of this model */
                assert_true(n_kept == 1000 || (known && n_kept % 256 == 0 && n_kept < N_LONG));
                assert_null(weir_session_logits(r.session));
                rc = weir_session_set(r.session, long_ids, N_LONG, &err); /* what was under way may still fail */
                if (rc < 0) rc = weir_session_set(r.session, long_ids, N_LONG, &err);
            }
            if (rc < 0) fail_msg("%llu: %s", (unsigned long long)n, err.text);
            assert_memory_equal(weir_session_logits(r.session), long_reference + (N_STEPS - 1) * n_vocab, n_vocab * sizeof(float));
            if (weir_session_save(r.session, NULL, &err) < 0) fail_msg("%s", err.text);
            for (uint32_t i = 0; i < 3; i++) assert_int_equal(r.engine->context.to.weights[i].known, 1);
            close_run(&r);
            open_run(&r, &o);
            const int32_t *held = weir_session_ids(r.session, &n_held);
            assert_int_equal(n_held, N_LONG);
            assert_memory_equal(held, long_ids, N_LONG * sizeof *held);
            close_run(&r);
        }
        printf("%s: %u failures\n", where == 0 ? "in memory" : "on disk", n_failures);
        assert_true(n_failures > 3);
    }
    unlink(path);
}

/* After a read error the engine goes on: the next request gives the right answer. */
static void test_b10_read_error_is_not_the_end(void **state)
{
    weir_options o = options();
    weir_err err;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    int failures = 0;
    assert_int_equal(weir_plan_open(&plan, model, &o, &err), 0);
    assert_int_equal(weir_engine_open(&engine, plan, &err), 0);
    assert_int_equal(weir_session_open(&session, engine, &err), 0);
    for (uint64_t n = 1; n <= 40; n++) {
        wr_fault_set(WR_FAULT_READ, 1 + n % 20, true);
        int rc = weir_session_set(session, ids, 1 + n % (N_IDS - 1), &err);
        wr_fault_set(WR_FAULT_READ, 0, false);
        if (rc < 0) {
            assert_int_equal(rc, WEIR_E_READ);
            failures++;
        }
        /* A read ahead that was under way may still fail; after it the disk is well. */
        rc = weir_session_set(session, ids, N_IDS, &err);
        if (rc < 0) rc = weir_session_set(session, ids, N_IDS, &err);
        assert_int_equal(rc, 0);
        assert_memory_equal(weir_session_logits(session), reference + (N_ROWS - 1) * n_vocab, n_vocab * sizeof(float));
    }
    assert_true(failures > 10);
    weir_session_close(session);
    weir_engine_close(engine);
}

static void with_script(struct wr_io_fault_script script, int expected, uint32_t expected_warnings)
{
    static float out[MAX_VOCAB * N_ROWS];
    weir_options o = options();
    weir_err err;
    snprintf(o.io, sizeof o.io, "fault");
    wr_io_fault_script = script;
    n_warnings = 0;
    int rc = run(&o, out, &err);
    wr_io_fault_script = (struct wr_io_fault_script){0};
    if (rc != expected) fail_msg("%d: %s", rc, err.text);
    if (rc == 0) assert_same(out);
    if (expected_warnings != UINT32_MAX) assert_int_equal(n_warnings, expected_warnings);
    if (rc < 0) assert_non_null(strstr(err.text, "tiny.gguf"));
}

static void test_b10_short_reads(void **state) { with_script((struct wr_io_fault_script){.short_reads = true, .seed = 3}, 0, UINT32_MAX); }
static void test_b10_interrupted_reads(void **state)
{
    with_script((struct wr_io_fault_script){.fail_at = 1, .fail_count = 200, .fail_errno = EINTR}, 0, UINT32_MAX);
}
static void test_late_reads(void **state) { with_script((struct wr_io_fault_script){.delay_ns = 200000}, 0, UINT32_MAX); }

/* Where the file system reads directly, one warning says that it no longer does; elsewhere there is nothing to refuse. */
static void test_b2_direct_refused(void **state)
{
    static const uint64_t fail_at[] = {1, 60}; /* while pinning, while streaming */
    with_script((struct wr_io_fault_script){0}, 0, UINT32_MAX);
    bool direct = last_io.direct;
    uint32_t usual = n_warnings;
    for (size_t i = 0; i < sizeof fail_at / sizeof *fail_at; i++) {
        with_script((struct wr_io_fault_script){.fail_at = fail_at[i], .fail_count = 1000000, .fail_errno = EINVAL}, 0, usual + direct);
        assert_false(last_io.direct);
    }
    printf("direct reads refused: %s\n", direct ? "one warning" : "none were direct, no warning");
}

static void test_b10_read_fails(void **state)
{
    with_script((struct wr_io_fault_script){.fail_at = 3, .fail_count = 1, .fail_errno = EIO}, WEIR_E_READ, UINT32_MAX);        /* while pinning */
    with_script((struct wr_io_fault_script){.fail_at = 45, .fail_count = 1000000, .fail_errno = EIO}, WEIR_E_READ, UINT32_MAX); /* while streaming */
}

/* The file is cut, or written to, after the plan was made and after the engine was opened. */
static void test_file_changes(void **state)
{
    weir_options o = options();
    weir_err err;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    struct stat st;
    assert_int_equal(stat(model, &st), 0);
    int fd = open(model, O_RDWR);
    assert_true(fd >= 0);
    const struct timespec later[2] = {{0, UTIME_OMIT}, {st.st_mtim.tv_sec + 5, 0}}, before[2] = {{0, UTIME_OMIT}, st.st_mtim};

    assert_int_equal(weir_plan_open(&plan, model, &o, &err), 0);
    assert_int_equal(futimens(fd, later), 0);
    assert_int_equal(weir_engine_open(&engine, plan, &err), WEIR_E_CHANGED);
    assert_int_equal(futimens(fd, before), 0);
    assert_int_equal(weir_engine_open(&engine, plan, &err), 0);
    assert_int_equal(weir_session_open(&session, engine, &err), 0);
    assert_int_equal(weir_session_set(session, ids, 3, &err), 0);
    assert_int_equal(futimens(fd, later), 0);
    assert_int_equal(weir_session_set(session, ids, 4, &err), WEIR_E_CHANGED);
    assert_int_equal(futimens(fd, before), 0);
    assert_int_equal(weir_session_set(session, ids, N_IDS, &err), 0);
    assert_memory_equal(weir_session_logits(session), reference + (N_ROWS - 1) * n_vocab, n_vocab * sizeof(float));
    weir_session_close(session);
    weir_engine_close(engine);
    close(fd);
}

static void test_fake_device(void **state)
{
    static float out[MAX_VOCAB * N_ROWS];
    weir_options o = options();
    weir_err err;
    wr_engine_device = fake_device;
    int rc = run(&o, out, &err);
    wr_engine_device = NULL;
    if (rc < 0) fail_msg("%s", err.text);
    assert_same(out);
    assert_true(fake_uploads > 40);
    printf("fake device: %llu uploads, %llu looks at fences that were not done\n", (unsigned long long)fake_uploads, (unsigned long long)fake_waits);
}

/* Slots come free by time alone here: the I/O thread must look again by itself. */
static void test_shared_device(void **state)
{
    static float out[MAX_VOCAB * N_ROWS];
    weir_options o = options();
    weir_err err;
    wr_engine_device = fake_device_shared;
    int rc = run(&o, out, &err);
    wr_engine_device = NULL;
    if (rc < 0) fail_msg("%s", err.text);
    assert_same(out);
}

/* A plan is still good after an engine could not be opened with it. */
static void test_plan_is_kept(void **state)
{
    volatile int cancel = 1;
    weir_options o = options();
    weir_err err;
    weir_plan *plan;
    weir_engine *engine;
    o.cancel = &cancel;
    assert_int_equal(weir_plan_open(&plan, model, &o, &err), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(weir_engine_open(&engine, plan, &err), WEIR_E_CANCELLED);
    cancel = 0;
    assert_int_equal(weir_engine_open(&engine, plan, &err), 0);
    weir_engine_close(engine);
}

static void test_cancel(void **state)
{
    volatile int cancel = 0;
    weir_options o = options();
    weir_err err;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    o.cancel = &cancel;
    assert_int_equal(weir_plan_open(&plan, model, &o, &err), 0);
    assert_int_equal(weir_engine_open(&engine, plan, &err), 0);
    assert_int_equal(weir_session_open(&session, engine, &err), 0);
    for (int i = 0; i < 20; i++) {
        cancel = 1;
        assert_int_equal(weir_session_set(session, ids, 2 + i % 3, &err), WEIR_E_CANCELLED);
        cancel = 0;
        assert_int_equal(weir_session_set(session, ids, N_IDS, &err), 0);
        assert_memory_equal(weir_session_logits(session), reference + (N_ROWS - 1) * n_vocab, n_vocab * sizeof(float));
    }
    weir_session_close(session);
    weir_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a12_nth_allocation), cmocka_unit_test(test_nth_read), cmocka_unit_test(test_nth_thread),
        cmocka_unit_test(test_spilled_nth), cmocka_unit_test(test_spilled_goes_on), cmocka_unit_test(test_in_place_sessions),
        cmocka_unit_test(test_in_place_loads_another), cmocka_unit_test(test_in_place_nth_write), cmocka_unit_test(test_b10_read_error_is_not_the_end),
        cmocka_unit_test(test_b10_short_reads), cmocka_unit_test(test_b10_interrupted_reads), cmocka_unit_test(test_late_reads),
        cmocka_unit_test(test_b2_direct_refused), cmocka_unit_test(test_b10_read_fails), cmocka_unit_test(test_file_changes),
        cmocka_unit_test(test_fake_device), cmocka_unit_test(test_shared_device), cmocka_unit_test(test_plan_is_kept), cmocka_unit_test(test_cancel)};
    return cmocka_run_group_tests(tests, setup, remove_model);
}
