/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bursts while one thing goes wrong at a time: an allocation, a read, a write, a thread, the user's patience. The tokens are those of plain decoding, or the
 * error is the right one, and the session goes on with the same tokens; what is saved in the midst of a burst are the tokens that were given.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/tools.h"
#include "faulty.h"

#define N_MOST 48 /* tokens generated */
#define K 6

static char draft_model[64];

/* What is decoded: behind a prompt that fits in a tile, or behind one that ends shortly before the third. */
struct text {
    uint32_t n_prompt, n_generated;
    int32_t ids[600]; /* prompt and answer of plain decoding, everything in memory */
    float answer[N_MOST];
};
static struct text brief = {.n_prompt = 12, .n_generated = 24}, lengthy = {.n_prompt = 490, .n_generated = N_MOST};

static struct text *text_of(const weir_options *o) { return o->n_ctx < 1024 ? &brief : &lengthy; }

static weir_options with_ngram(weir_options o)
{
    o.spec = WEIR_SPEC_NGRAM;
    o.spec_k = K;
    return o;
}

static weir_options with_draft(weir_options o)
{
    o.spec = WEIR_SPEC_DRAFT;
    o.spec_k = K;
    snprintf(o.draft, sizeof o.draft, "%s", draft_model);
    return o;
}

static weir_options with_tree(weir_options o)
{
    o = with_draft(o);
    o.spec_k = 0;
    o.spec_tree = 2 * K;
    return o;
}

/* Every way to propose, with weights streamed, and with keys and values on disk besides. */
#define N_WAYS 6
static weir_options way(size_t i)
{
    weir_options o = i % 3 == 0 ? with_ngram(options()) : i % 3 == 1 ? with_draft(options()) : with_tree(options());
    return i < N_WAYS / 2 ? o : spilled(o);
}

struct run {
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
};

static void close_run(struct run *r)
{
    weir_session_close(r->session);
    weir_engine_close(r->engine);
}

static int open_run(struct run *r, const weir_options *o, weir_err *err)
{
    wind_timer();
    *r = (struct run){0};
    *err = (weir_err){0};
    int rc = weir_plan_open(&r->plan, model, o, err);
    if (rc == 0) {
        rc = weir_engine_open(&r->engine, r->plan, err);
        if (rc < 0) weir_plan_close(r->plan);
    }
    if (rc == 0) rc = weir_session_open(&r->session, r->engine, err);
    return rc;
}

struct tokens {
    int32_t *ids;
    uint32_t n, most; /* it ends after so many: in the midst of a burst, where that is so */
};

static int take_token(void *user, int32_t id)
{
    struct tokens *t = user;
    t->ids[t->n++] = id;
    return t->n == t->most ? 1 : 0;
}

/* ids[0..n) are set and gone on with, up to `most` of them in all. Generating itself knows of no end before that of the whole text. */
static int go_on(const struct run *r, const struct text *text, int32_t *ids, uint32_t *n, uint32_t most, enum weir_finish *finish, weir_err *err)
{
    struct tokens t = {ids, *n, most};
    weir_sampling sampling;
    weir_sampling_init(&sampling);
    sampling.temp = 0;
    const weir_generate g = {
        .size = sizeof g, .sampling = &sampling, .n_max = text->n_prompt + text->n_generated - *n, .ignore_eos = true, .token = take_token, .user = &t};
    int rc = weir_session_set(r->session, ids, *n, err);
    if (rc == 0 && g.n_max > 0) rc = weir_session_generate(r->session, &g, finish, err);
    *n = t.n;
    return rc == 1 ? 0 : rc;
}

static weir_session_info last;

/* All tokens of the text, as numbers. */
static int run(const weir_options *o, float *out, weir_err *err)
{
    const struct text *text = text_of(o);
    struct run r;
    enum weir_finish finish;
    int32_t ids[600];
    uint32_t n = text->n_prompt;
    memcpy(ids, text->ids, n * sizeof *ids);
    int rc = open_run(&r, o, err);
    if (rc == 0) rc = go_on(&r, text, ids, &n, UINT32_MAX, &finish, err);
    for (uint32_t i = text->n_prompt; rc == 0 && i < n; i++) out[i - text->n_prompt] = (float)ids[i];
    if (rc == 0) last = weir_session_stats(r.session);
    close_run(&r);
    return rc;
}

static void assert_answer(const struct text *text, const int32_t *ids, uint32_t n)
{
    assert_int_equal(n, text->n_prompt + text->n_generated);
    assert_memory_equal(ids, text->ids, n * sizeof *ids);
}

static int setup(void **state)
{
    struct text *const texts[] = {&brief, &lengthy};
    weir_err err = {0};
    if (make_model() < 0) return -1;
    snprintf(draft_model, sizeof draft_model, "%s/draft.gguf", folder);
    wr_synth_options s = {
        .shape = "tiny", .out = draft_model, .type = "q8_0", .n_vocab = 400, .seed = 7}; /* the same numbers, rounded otherwise: often right */
    if (wr_tool_synth(&s, &err) < 0) return -1;
    for (size_t i = 0; i < 2; i++) {
        struct text *t = texts[i];
        weir_options o = options();
        o.spec = WEIR_SPEC_OFF;
        o.n_ctx = i == 0 ? o.n_ctx : 2048;
        for (uint32_t j = 0; j < t->n_prompt; j++) t->ids[j] = (int32_t)(j * j % 7) + 40;
        if (run(&o, t->answer, &err) < 0) {
            print_error("%s\n", err.text);
            return -1;
        }
        for (uint32_t j = 0; j < t->n_generated; j++) t->ids[t->n_prompt + j] = (int32_t)t->answer[j];
    }
    return 0;
}

static int teardown(void **state)
{
    unlink(draft_model);
    return remove_model(state);
}

/* Undisturbed: some of what is proposed is right, some is not. */
static void test_undisturbed(void **state)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        const weir_options o = way(i);
        const struct text *text = text_of(&o);
        float out[N_MOST];
        weir_err err;
        if (run(&o, out, &err) < 0) fail_msg("%s", err.text);
        assert_memory_equal(out, text->answer, text->n_generated * sizeof *out);
        printf("way %zu: %llu proposed, %llu accepted in %llu passes\n", i, (unsigned long long)last.n_drafted, (unsigned long long)last.n_accepted,
            (unsigned long long)last.n_passes);
        assert_true(last.n_accepted > 0 && last.n_accepted < last.n_drafted);
        assert_true((last.decode_kv_bytes > 0) == (i >= N_WAYS / 2) && last.decode_bytes > 0);
    }
}

static void nth(enum wr_fault_kind kind, int code, int other_code)
{
    skip_under_valgrind();
    for (size_t i = 0; i < N_WAYS; i++) {
        const weir_options o = way(i);
        if (kind == WR_FAULT_WRITE && i < N_WAYS / 2) continue; /* nothing is written */
        nth_failure(&(struct work){run, o, text_of(&o)->answer, text_of(&o)->n_generated, kind == WR_FAULT_READ}, kind, code, other_code);
    }
}

static void test_a12_nth_allocation(void **state) { nth(WR_FAULT_ALLOC, WEIR_E_NOMEM, WEIR_E_NOMEM); }
static void test_nth_read(void **state) { nth(WR_FAULT_READ, WEIR_E_READ, WEIR_E_OPEN); }
static void test_nth_write(void **state) { nth(WR_FAULT_WRITE, WEIR_E_WRITE, WEIR_E_WRITE); }
static void test_nth_thread(void **state) { nth(WR_FAULT_THREAD, WEIR_E_THREAD, WEIR_E_THREAD); }

/* The same session after a failure: the tokens that there were, and on to the same end. */
static void test_goes_on_after_failures(void **state)
{
    skip_under_valgrind();
    for (size_t i = 0; i < N_WAYS; i++) {
        const weir_options o = way(i);
        const struct text *text = text_of(&o);
        struct run r;
        weir_err err;
        enum weir_finish finish;
        int failures = 0;
        assert_int_equal(open_run(&r, &o, &err), 0);
        for (uint64_t j = 1; j <= 60; j++) {
            const enum wr_fault_kind kind = i >= N_WAYS / 2 && j % 3 == 0 ? WR_FAULT_WRITE : WR_FAULT_READ;
            int32_t ids[600];
            uint32_t n = text->n_prompt;
            memcpy(ids, text->ids, n * sizeof *ids);
            wind_timer();
            wr_fault_set(kind, kind == WR_FAULT_WRITE ? 1 + j % 2 : 1 + j * 7 % 150, j % 4 < 3);
            int rc = go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err);
            wr_fault_set(kind, 0, false);
            if (rc < 0) {
                if (rc != (kind == WR_FAULT_WRITE ? WEIR_E_WRITE : WEIR_E_READ)) fail_msg("%llu: %d: %s", (unsigned long long)j, rc, err.text);
                failures++;
                rc = go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err); /* what was under way may still fail */
                if (rc < 0) rc = go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err);
            }
            if (rc < 0) fail_msg("%s", err.text);
            assert_answer(text, ids, n);
        }
        printf("way %zu: %d failures\n", i, failures);
        assert_true(failures > 10);
        close_run(&r);
    }
}

static void test_short_and_late_reads(void **state)
{
    static const struct wr_io_fault_script scripts[] = {
        {.short_reads = true, .seed = 3}, {.delay_ns = 50000}, {.fail_at = 1, .fail_count = 200, .fail_errno = EINTR}};
    skip_under_valgrind();
    for (size_t i = 0; i < N_WAYS * (sizeof scripts / sizeof *scripts); i++) {
        weir_options o = way(i % N_WAYS);
        float out[N_MOST];
        weir_err err;
        snprintf(o.io, sizeof o.io, "fault");
        wr_io_fault_script = scripts[i / N_WAYS];
        int rc = run(&o, out, &err);
        wr_io_fault_script = (struct wr_io_fault_script){0};
        if (rc < 0) fail_msg("%s", err.text);
        assert_memory_equal(out, text_of(&o)->answer, text_of(&o)->n_generated * sizeof *out);
    }
}

/* What the next pass must read is read while the draft model computes: after a pass, whose reads come late, the ring is full without another one. */
static void test_reads_while_drafting(void **state)
{
    skip_under_valgrind();
    weir_options o = with_draft(options());
    struct run r;
    weir_err err;
    snprintf(o.io, sizeof o.io, "fault");
    wr_io_fault_script = (struct wr_io_fault_script){.delay_ns = 20000000};
    int rc = open_run(&r, &o, &err);
    wr_io_fault_script = (struct wr_io_fault_script){0};
    if (rc < 0) fail_msg("%s", err.text);
    if (weir_session_set(r.session, brief.ids, brief.n_prompt, &err) < 0) fail_msg("%s", err.text);
    const struct wr_plan *plan = &r.engine->plan->plan;
    weir_session *draft = r.session->spec.draft;
    uint64_t full = plan->streamed;
    for (uint32_t i = 0; i < plan->n_ahead; i++) full += plan->extents[plan->tape[i]].bytes;
    const uint64_t before = wr_pager_stats(r.engine->pager).bytes_streamed;
    uint32_t n = 0;
    for (const uint64_t end = wr_clock_ns() + UINT64_C(10000000000); wr_pager_stats(r.engine->pager).bytes_streamed < full && wr_clock_ns() < end; n++)
        if (weir_session_set(draft, brief.ids, 1 + n % brief.n_prompt, &err) < 0) fail_msg("%s", err.text);
    printf("%llu bytes of the next pass were read in %u passes of the draft, of %llu\n",
        (unsigned long long)(wr_pager_stats(r.engine->pager).bytes_streamed - before), n, (unsigned long long)(full - plan->streamed));
    assert_int_equal(wr_pager_stats(r.engine->pager).bytes_streamed, full);
    assert_true(before < full && n > 0);
    close_run(&r);
}

static void test_fake_devices(void **state)
{
    static void (*const devices[])(struct wr_device *) = {fake_device, fake_device_shared};
    skip_under_valgrind();
    for (size_t i = 0; i < N_WAYS * 2; i++) {
        const weir_options o = way(i % N_WAYS);
        float out[N_MOST];
        weir_err err;
        wr_engine_device = devices[i / N_WAYS];
        int rc = run(&o, out, &err);
        wr_engine_device = NULL;
        if (rc < 0) fail_msg("%s", err.text);
        assert_memory_equal(out, text_of(&o)->answer, text_of(&o)->n_generated * sizeof *out);
    }
}

static volatile int cancel;
static _Atomic uint64_t fences_left;

static void count_fence(void) /* of any member of the team */
{
    uint64_t left = atomic_load(&fences_left);
    while (left > 0 && !atomic_compare_exchange_weak(&fences_left, &left, left - 1)) {}
    if (left == 1) cancel = 1;
}

/* The user interrupts at every step of every pass in turn; the tokens that came, set again, go on to the same end. */
static void test_cancel(void **state)
{
    skip_under_valgrind();
    for (size_t i = 0; i < N_WAYS; i++) {
        weir_options o = way(i);
        const struct text *text = text_of(&o);
        struct run r;
        weir_err err;
        uint32_t n_interrupted = 0;
        bool ended = false;
        o.cancel = &cancel;
        wr_engine_device = fake_device_shared;
        fake_at_fence = count_fence;
        assert_int_equal(open_run(&r, &o, &err), 0);
        for (uint64_t at = 1; !ended; at += 1 + at / 40) {
            enum weir_finish finish = WEIR_FINISH_STOP;
            int32_t ids[600];
            uint32_t n = text->n_prompt;
            memcpy(ids, text->ids, n * sizeof *ids);
            if (weir_session_set(r.session, ids, n, &err) < 0) fail_msg("%s", err.text);
            wind_timer();
            fences_left = at;
            int rc = go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err);
            ended = fences_left > 0;
            fences_left = 0;
            if (rc < 0) fail_msg("%s", err.text);
            n_interrupted += finish == WEIR_FINISH_INTERRUPTED;
            assert_true(ended ? finish == WEIR_FINISH_LENGTH : cancel == 1);
            cancel = 0;
            if (finish == WEIR_FINISH_INTERRUPTED && go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err) < 0) fail_msg("%s", err.text);
            assert_answer(text, ids, n);
        }
        printf("way %zu: interrupted in %u places\n", i, n_interrupted);
        assert_true(n_interrupted > 20);
        close_run(&r);
        wr_engine_device = NULL;
        fake_at_fence = NULL;
    }
}

/* Saved after each token in turn, most of them with rows of a burst behind it that were evaluated and not given: the file has the tokens that were, and who
 * goes on from it gets the rest. To the session's own file, which it goes on with, and to another. */
static void test_saved_in_a_burst(void **state)
{
    skip_under_valgrind();
    for (size_t i = 0; i < 2 * N_WAYS; i++) {
        const bool own = i >= N_WAYS;
        weir_options o = way(i % N_WAYS), then = o;
        const struct text *text = text_of(&o);
        struct run r, from;
        weir_err err;
        enum weir_finish finish;
        char path[64];
        uint32_t n_pending = 0;
        snprintf(path, sizeof path, "%s/saved.kv", folder);
        snprintf(then.context, sizeof then.context, "%s", path);
        if (own) snprintf(o.save_context, sizeof o.save_context, "%s", path);
        assert_int_equal(open_run(&r, &o, &err), 0);
        for (uint32_t k = 1; k <= text->n_generated; k++) {
            int32_t ids[600];
            uint32_t n = text->n_prompt;
            const int32_t *held;
            size_t n_held;
            memcpy(ids, text->ids, n * sizeof *ids);
            if (go_on(&r, text, ids, &n, text->n_prompt + k, &finish, &err) < 0) fail_msg("%s", err.text);
            assert_int_equal(n, text->n_prompt + k);
            n_pending += r.session->spec.at + 1 < r.session->spec.n_rows;
            if (weir_session_save(r.session, own ? NULL : path, &err) < 0) fail_msg("%s", err.text);
            struct stat st;
            assert_int_equal(stat(path, &st), 0);
            assert_true(!own || i % N_WAYS < N_WAYS / 2 || (uint64_t)st.st_size >= weir_engine_plan(r.engine)->kv_on_disk); /* it keeps the room that it took */
            held = weir_session_ids(r.session, &n_held);
            assert_int_equal(n_held, n - 1); /* the last one is not evaluated */
            assert_memory_equal(held, text->ids, n_held * sizeof *ids);
            if (own && k % 8 != 0) continue; /* it is locked as long as the session's engine is open */
            if (own) close_run(&r);
            if (open_run(&from, &then, &err) < 0) fail_msg("%s", err.text);
            held = weir_session_ids(from.session, &n_held);
            assert_int_equal(n_held, n - 1);
            assert_memory_equal(held, text->ids, n_held * sizeof *ids);
            if (go_on(&from, text, ids, &n, UINT32_MAX, &finish, &err) < 0) fail_msg("%s", err.text);
            assert_answer(text, ids, n);
            close_run(&from);
            if (own && open_run(&r, &o, &err) < 0) fail_msg("%s", err.text);
        }
        printf("way %zu, %s file: rows were pending in %u of %u places\n", i % N_WAYS, own ? "its own" : "another", n_pending, text->n_generated);
        assert_true(n_pending > 0);
        close_run(&r);
        unlink(path);
    }
}

/* An engine has one session at a time: a second one is refused and disturbs nothing; the next has nothing of the last, nor has the file that both are saved
 * in, and where both begin with a saved context, each has that alone. */
static void test_sessions_do_not_mix(void **state)
{
    skip_under_valgrind();
    char path[64], base[64];
    snprintf(path, sizeof path, "%s/saved.kv", folder);
    snprintf(base, sizeof base, "%s/base.kv", folder);
    for (size_t i = 0; i < 2 * N_WAYS; i++) {
        const bool based = i >= N_WAYS;
        weir_options o = way(i % N_WAYS), then;
        const struct text *text = text_of(&o);
        const uint32_t n_base = based ? text->n_prompt - 4 : 0;
        struct run r;
        weir_session *other = NULL;
        weir_err err;
        enum weir_finish finish;
        int32_t ids[600], answer[2][600];
        size_t n_held;
        if (based) {
            assert_int_equal(open_run(&r, &o, &err), 0);
            assert_int_equal(weir_session_set(r.session, text->ids, n_base, &err), 0);
            assert_int_equal(weir_session_save(r.session, base, &err), 0);
            close_run(&r);
            snprintf(o.context, sizeof o.context, "%s", base);
        }
        snprintf(o.save_context, sizeof o.save_context, "%s", path);
        assert_int_equal(open_run(&r, &o, &err), 0);
        for (uint32_t j = 0; j < 4; j++) { /* two texts in turn, which differ behind the base */
            uint32_t n = text->n_prompt;
            memcpy(ids, text->ids, n * sizeof *ids);
            for (uint32_t k = n_base; j % 2 == 1 && k < n; k++) ids[k] = 50 + (int32_t)(k % 11);
            assert_int_equal(weir_session_length(r.session), n_base);
            assert_int_equal(weir_session_open(&other, r.engine, &err), WEIR_E_USAGE);
            if (go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err) < 0) fail_msg("%s", err.text);
            assert_int_equal(weir_session_open(&other, r.engine, &err), WEIR_E_USAGE);
            if (j % 2 == 0) assert_answer(text, ids, n);
            if (j < 2) memcpy(answer[j], ids, n * sizeof *ids);
            assert_memory_equal(ids, answer[j % 2], n * sizeof *ids);
            if (j == 3 && weir_session_save(r.session, NULL, &err) < 0) fail_msg("%s", err.text);
            if (j == 3) break;
            weir_session_close(r.session);
            assert_int_equal(weir_session_open(&r.session, r.engine, &err), 0);
        }
        close_run(&r);
        then = way(i % N_WAYS);
        assert_int_equal(open_run(&r, &then, &err), 0); /* the second text by an engine that never saw the first, and what was saved of it */
        uint32_t n = text->n_prompt;
        memcpy(ids, answer[1], n * sizeof *ids);
        if (go_on(&r, text, ids, &n, UINT32_MAX, &finish, &err) < 0) fail_msg("%s", err.text);
        assert_memory_equal(ids, answer[1], n * sizeof *ids);
        close_run(&r);
        snprintf(then.context, sizeof then.context, "%s", path);
        if (open_run(&r, &then, &err) < 0) fail_msg("%s", err.text);
        const int32_t *held = weir_session_ids(r.session, &n_held);
        assert_int_equal(n_held, n - 1);
        assert_memory_equal(held, answer[1], n_held * sizeof *ids);
        close_run(&r);
        unlink(path);
        unlink(base);
    }
}

/* Where the file of a saved context cannot be cut to what other ids leave of it, there are no logits, rather than those of the ids that were. */
static void test_no_logits_of_other_ids(void **state)
{
    weir_options o = way(0);
    struct run r;
    weir_err err;
    char path[64];
    snprintf(path, sizeof path, "%s/saved.kv", folder);
    snprintf(o.save_context, sizeof o.save_context, "%s", path);
    o.n_ctx = 2048;
    const struct text *text = text_of(&o);
    assert_int_equal(open_run(&r, &o, &err), 0);
    assert_int_equal(weir_session_set(r.session, text->ids, text->n_prompt, &err), 0);
    assert_non_null(weir_session_logits(r.session));
    wr_fault_set(WR_FAULT_WRITE, 1, true);
    assert_int_equal(weir_session_set(r.session, text->ids, 100, &err), WEIR_E_WRITE);
    wr_fault_set(WR_FAULT_WRITE, 0, false);
    assert_null(weir_session_logits(r.session));
    assert_int_equal(weir_session_set(r.session, text->ids, text->n_prompt, &err), 0);
    assert_non_null(weir_session_logits(r.session));
    close_run(&r);
    unlink(path);
}

/* What no command line can say. */
static void test_options_of_the_api(void **state)
{
    static const struct {
        int spec;
        uint32_t k;
        bool draft;
        const char *word;
        uint32_t tree;
    } bad[] = {{-1, 0, false, "number -1"}, {4, 0, false, "number 4"}, {INT32_MAX, 3, true, "number"}, {WEIR_SPEC_NGRAM, 65, false, "65"},
        {WEIR_SPEC_AUTO, UINT32_MAX, false, "4294967295"}, {WEIR_SPEC_OFF, 65, false, "65"}, {WEIR_SPEC_DRAFT, 3, false, "--draft"},
        {WEIR_SPEC_NGRAM, 3, true, "--draft"}, {WEIR_SPEC_OFF, 0, true, "--draft"}, {WEIR_SPEC_DRAFT, 0, true, "--spec-tree 65", 65},
        {WEIR_SPEC_AUTO, 0, true, "--spec-tree 4294967295", UINT32_MAX}, {WEIR_SPEC_AUTO, 3, true, "--spec-k", 8}, {WEIR_SPEC_AUTO, 0, false, "--draft", 8},
        {WEIR_SPEC_OFF, 0, false, "--draft", 8}, {WEIR_SPEC_NGRAM, 0, false, "--draft", 8}, {WEIR_SPEC_NGRAM, 0, true, "--draft", 8}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weir_options o = bad[i].draft ? with_draft(options()) : options();
        weir_plan *plan = NULL;
        weir_err err = {0};
        o.spec = (enum weir_spec)bad[i].spec;
        o.spec_k = bad[i].k;
        o.spec_tree = bad[i].tree;
        assert_int_equal(weir_plan_open(&plan, model, &o, &err), WEIR_E_USAGE);
        if (strstr(err.text, bad[i].word) == NULL) fail_msg("%s", err.text);
    }
    for (uint32_t k = 0; k <= 64; k += 16) { /* what it may say, to the border */
        weir_options o = with_ngram(options());
        weir_plan *plan;
        weir_err err;
        o.spec_k = k;
        assert_int_equal(weir_plan_open(&plan, model, &o, &err), 0);
        assert_int_equal(weir_plan_get(plan)->spec_k, k > 0 ? k : weir_plan_get(plan)->spec_k);
        weir_plan_close(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_undisturbed), cmocka_unit_test(test_a12_nth_allocation), cmocka_unit_test(test_nth_read),
        cmocka_unit_test(test_nth_write), cmocka_unit_test(test_nth_thread), cmocka_unit_test(test_goes_on_after_failures),
        cmocka_unit_test(test_short_and_late_reads), cmocka_unit_test(test_reads_while_drafting), cmocka_unit_test(test_fake_devices),
        cmocka_unit_test(test_cancel), cmocka_unit_test(test_saved_in_a_burst), cmocka_unit_test(test_sessions_do_not_mix),
        cmocka_unit_test(test_no_logits_of_other_ids), cmocka_unit_test(test_options_of_the_api)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
