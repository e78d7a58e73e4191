/* SPDX-License-Identifier: Apache-2.0 */
#include "faulty.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>
#include "engine/tools.h"

#define MAPPED_SLACK_KIB 1024 /* measured: no growth at all; a stack more that glibc keeps is no leak */

char folder[32] = "weir-faults-XXXXXX", model[64];
uint32_t n_vocab;
_Atomic uint32_t n_warnings;

static void count_warning(void *user, enum weir_log_level level, const char *line)
{
    if (level == WEIR_LOG_WARN) n_warnings++;
}

weir_options options(void)
{
    const char *io = getenv("WEIR_TEST_IO");
    weir_options o;
    weir_options_init(&o);
    o.memory_bytes = 3ull << 30;
    o.n_ctx = 64;
    o.n_threads = 2;
    o.extent_bytes = 4096;
    o.ring_bytes = 4 * 4096;
    o.pin_bytes = 9 * 4096;
    o.log = count_warning;
    snprintf(o.io, sizeof o.io, "%s", io != NULL ? io : "auto");
    const char *cpu = getenv("WEIR_CPU");
    snprintf(o.isa, sizeof o.isa, "%s", cpu != NULL ? cpu : "");
    return o;
}

void wind_timer(void) { alarm(300); }

weir_options spilled(weir_options o)
{
    weir_plan *plan;
    weir_err err;
    o.n_ctx = 2048;
    o.n_chunk = 128;
    o.process_bytes = UINT64_C(1) << 30; /* also under valgrind */
    snprintf(o.kv_dir, sizeof o.kv_dir, "%s", folder);
    if (weir_plan_open(&plan, model, &o, &err) < 0) fail_msg("%s", err.text);
    o.memory_bytes = weir_plan_get(plan)->min_budget;
    weir_plan_close(plan);
    return o;
}

static bool under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload != NULL && strstr(preload, "vgpreload") != NULL;
}

/* Sanitizers and valgrind map memory of their own as they go. */
static bool own_memory_only(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
    return false;
#endif
#endif
    return !under_valgrind();
}

struct resources {
    uint32_t n_fds, n_threads;
    uint64_t mapped_kib;
};

uint32_t n_entries(const char *directory)
{
    uint32_t n = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

static struct resources resources(void)
{
    struct resources r = {n_entries("/proc/self/fd"), n_entries("/proc/self/task"), 0};
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmSize: %llu", &kib) == 1) break;
    fclose(f);
    assert_true(kib > 0);
    r.mapped_kib = kib;
    return r;
}

/* A thread that was joined, and the kernel's own threads for a ring that was closed, go from the list a little later. */
static void assert_no_growth(const struct resources *before)
{
    struct resources now = resources();
    for (int ms = 0; ms < 10000 && (now.n_threads > before->n_threads || now.n_fds > before->n_fds); ms += 5) {
        usleep(5000);
        now = resources();
    }
    if (now.n_fds > before->n_fds) fail_msg("%u files open, %u before", now.n_fds, before->n_fds);
    if (now.n_threads > before->n_threads) fail_msg("%u threads, %u before", now.n_threads, before->n_threads);
    if (own_memory_only() && now.mapped_kib > before->mapped_kib + MAPPED_SLACK_KIB)
        fail_msg("%llu KiB mapped, %llu before", (unsigned long long)now.mapped_kib, (unsigned long long)before->mapped_kib);
}

void nth_failure(const struct work *w, enum wr_fault_kind kind, int code, int other_code)
{
    static float out[MAX_OUT];
    const size_t bytes = w->n * sizeof *out;
    assert_true(w->n <= MAX_OUT);
    weir_err err;
    for (int persistent = 0; persistent < 2; persistent++) {
        uint64_t n = 1, calls = 0, injected = 0, failures = 0;
        struct resources before = resources();
        for (;; n += 1 + (w->thinned ? n / 32 : 0)) {
            memset(out, 0, sizeof out);
            wr_fault_set(kind, n, persistent);
            int rc = w->run(&w->options, out, &err);
            const uint64_t count = wr_fault_count(kind);
            const bool reached = count >= n;
            if (calls < count) calls = count;
            injected += reached;
            wr_fault_set(kind, 0, false);
            if (!reached) {
                assert_int_equal(rc, 0);
                assert_memory_equal(out, w->reference, bytes);
                break;
            }
            if (rc == 0) { /* an optional thing failed and was done without */
                assert_memory_equal(out, w->reference, bytes);
                continue;
            }
            if (rc != code && rc != other_code) fail_msg("call %llu: %s: %s", (unsigned long long)n, weir_error_name(rc), err.text);
            assert_int_equal(rc, err.code);
            assert_true(strlen(err.text) > 0);
            failures++;
        }
        /* One failed write is tried again before anybody waits for it, or not, as threads run. */
        assert_true(failures > 0 || (kind == WR_FAULT_WRITE && !persistent));
        assert_no_growth(&before);
        printf("%s failures: %llu of %llu injected, of %llu calls\n", persistent ? "lasting" : "single", (unsigned long long)failures,
            (unsigned long long)injected, (unsigned long long)calls);
    }
}

/* Hundreds of runs over 1000 positions: the sanitizers go through them. */
void skip_under_valgrind(void)
{
    if (!under_valgrind()) return;
    printf("skipped: takes many minutes under valgrind\n");
    skip();
}

int make_model(void)
{
    mallopt(M_ARENA_MAX, 1); /* each further arena reserves 64 MiB of addresses, which would hide a leak */
    weir_err err;
    weir_plan *plan;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(model, sizeof model, "%s/tiny.gguf", folder);
    wr_synth_options s = {.shape = "tiny", .out = model, .type = "q4_1", .n_vocab = 400, .seed = 7};
    if (wr_tool_synth(&s, &err) < 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    weir_options o = options();
    if (weir_plan_open(&plan, model, &o, &err) < 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    n_vocab = weir_plan_get(plan)->n_vocab;
    bool streams = weir_plan_get(plan)->streamed > 0 && weir_plan_get(plan)->pinned > 0;
    printf("levels: ran %s\n", weir_plan_get(plan)->isa);
    weir_plan_close(plan);
    wind_timer();
    return streams ? 0 : -1;
}

int remove_model(void **state)
{
    unlink(model);
    return rmdir(folder);
}
