/* SPDX-License-Identifier: Apache-2.0 */
/* The thread team: every member runs every job once, on however many threads; it sleeps when idle, and a refused thread leaves nothing behind. cmocka's
 * checks are not thread-safe, so members only record. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/num.h"
#include "base/os.h"
#include "base/team.h"

#define MAX_MEMBERS 9

struct job {
    uint32_t input;                  /* plain memory: written by the caller before the run, read by the members */
    uint32_t count[MAX_MEMBERS][16]; /* plain memory: written by member m alone, read by the caller after the run */
    uint32_t members[MAX_MEMBERS];
};

static void add(void *arg, uint32_t member, uint32_t n_members)
{
    struct job *job = arg;
    job->count[member][0] += job->input;
    job->members[member] = n_members;
}

static int n_tasks(void)
{
    DIR *dir = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void every_member_once(void **state)
{
    (void)state;
    static const struct {
        uint32_t members, threads;
    } sizes[] = {{1, 1}, {2, 2}, {3, 3}, {MAX_MEMBERS, MAX_MEMBERS}, {MAX_MEMBERS, 1}, {MAX_MEMBERS, 2}, {MAX_MEMBERS, 4}, {2, 5}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct wr_ledger ledger;
        struct wr_team *team = NULL;
        struct job job = {0};
        uint32_t n = sizes[s].members, threads = n < sizes[s].threads ? n : sizes[s].threads, rounds = threads > 2 ? 3000 : 20000, sum = 0;
        wr_ledger_init(&ledger);
        assert_int_equal(wr_team_open_on(&team, n, sizes[s].threads, &ledger, NULL), 0);
        assert_int_equal(wr_team_size(team), n);
        assert_int_equal(wr_team_threads(team), threads);
        for (uint32_t i = 0; i < rounds; i++) {
            job.input = i;
            sum += i;
            wr_team_run(team, add, &job);
            for (uint32_t m = 0; m < n; m++)
                if (job.count[m][0] != sum || job.members[m] != n) fail_msg("run %u of %u members: member %u has %u, not %u", i, n, m, job.count[m][0], sum);
            if (i % 500 == 499) usleep(300); /* let them fall asleep: both ways of waking are taken */
        }
        wr_team_close(team);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_PROCESS), 0);
    }
    wr_team_close(NULL);
}

/* More members than CPUs do not bring more threads. */
static void as_many_threads_as_cpus(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_team *team = NULL;
    uint32_t n_cpus = wr_cpu_count();
    int before = n_tasks();
    wr_ledger_init(&ledger);
    assert_int_equal(wr_team_open(&team, n_cpus + 3, &ledger, NULL), 0);
    assert_true(n_tasks() < before + (int)n_cpus + 2);
    assert_int_equal(wr_team_size(team), n_cpus + 3);
    assert_int_equal(wr_team_threads(team), n_cpus);
    wr_team_close(team);
}

struct places {
    pthread_t thread[2];
};

static void note_thread(void *arg, uint32_t member, uint32_t n_members)
{
    (void)n_members;
    ((struct places *)arg)->thread[member] = pthread_self();
}

/* A thread that sleeps is woken, but what is short is done before it comes. */
static void nobody_waits_for_a_sleeper(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_team *team = NULL;
    struct places places;
    int alone = 0;
    wr_ledger_init(&ledger);
    assert_int_equal(wr_team_open_on(&team, 2, 2, &ledger, NULL), 0);
    for (int i = 0; i < 500; i++) {
        usleep(500);
        wr_team_run(team, note_thread, &places);
        alone += pthread_equal(places.thread[0], pthread_self()) != 0 && pthread_equal(places.thread[1], pthread_self()) != 0;
    }
    assert_true(alone > 0);
    wr_team_close(team);
}

/* Only where every member has a thread of its own may members wait for each other: then each runs on its own. */
static void meet(_Atomic uint32_t *met, uint32_t n)
{
    atomic_fetch_add(met, 1);
    while (atomic_load(met) % n != 0) usleep(10);
}

struct slow {
    struct job job;
    _Atomic uint32_t met;
};

static void slow_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct slow *slow = arg;
    meet(&slow->met, n_members);
    if (member != 0) usleep(2000); /* longer than the caller spins: it must sleep and be woken */
    slow->job.count[member][0]++;
}

static void caller_sleeps(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_team *team = NULL;
    struct slow slow = {.met = 0};
    wr_ledger_init(&ledger);
    assert_int_equal(wr_team_open_on(&team, 3, 3, &ledger, NULL), 0);
    for (uint32_t i = 0; i < 30; i++) wr_team_run(team, slow_member, &slow);
    for (int m = 0; m < 3; m++) assert_int_equal(slow.job.count[m][0], 30);
    wr_team_close(team);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void idle_uses_no_cpu(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_team *team = NULL;
    struct job job = {0};
    wr_ledger_init(&ledger);
    assert_int_equal(wr_team_open_on(&team, wr_cpu_count() + 1, wr_cpu_count() + 1, &ledger, NULL), 0);
    wr_team_close(team);
    assert_int_equal(wr_team_open_on(&team, 2, 2, &ledger, NULL), 0);
    wr_team_run(team, add, &job);
    usleep(20000);
    uint64_t before = cpu_ns();
    usleep(300000);
    assert_true(cpu_ns() - before < 10000000);
    wr_team_run(team, add, &job);
    wr_team_close(team);
}

struct facts {
    _Atomic uint32_t met;
    struct {
        char name[16];
        size_t stack;
        bool signals_blocked;
        float subnormal;
    } of[3];
};

static void observe(void *arg, uint32_t member, uint32_t n_members)
{
    struct facts *f = arg;
    pthread_attr_t attr;
    sigset_t set;
    meet(&f->met, n_members);
    pthread_getname_np(pthread_self(), f->of[member].name, sizeof f->of[member].name);
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstacksize(&attr, &f->of[member].stack);
        pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    f->of[member].signals_blocked = sigismember(&set, SIGINT) == 1;
    volatile float tiny = 0x1p-126f;
    f->of[member].subnormal = tiny * 0.5f;
}

static void threads_are_as_promised(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_team *team = NULL;
    struct facts facts = {.met = 0};
    wr_ledger_init(&ledger);
    assert_int_equal(wr_team_open_on(&team, 3, 3, &ledger, NULL), 0);
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040); /* the application flushes denormals */
#elif defined(__aarch64__)
    unsigned before = __builtin_aarch64_get_fpcr();
    __builtin_aarch64_set_fpcr(before | 1u << 24);
#endif
    wr_team_run(team, observe, &facts);
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(before);
#elif defined(__aarch64__)
    __builtin_aarch64_set_fpcr(before);
#endif
    wr_team_close(team);
    assert_string_equal(facts.of[1].name, "weir-cpu-1");
    assert_string_equal(facts.of[2].name, "weir-cpu-2");
    assert_true(facts.of[1].stack < 1024 * 1024); /* 256 KiB; sanitizers add their own */
    assert_false(facts.of[0].signals_blocked);
    assert_true(facts.of[1].signals_blocked && facts.of[2].signals_blocked);
    for (int i = 0; i < 3; i++) assert_true(facts.of[i].subnormal == 0x1p-127f);
}

static void refused_threads(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    int before = n_tasks();
    wr_ledger_init(&ledger);
    for (int persistent = 0; persistent < 2; persistent++) {
        for (uint64_t n = 1; n <= 4; n++) {
            struct wr_team *team = (struct wr_team *)&ledger;
            weir_err err = {0};
            wr_fault_set(WR_FAULT_THREAD, n, persistent != 0);
            int code = wr_team_open_on(&team, 6, 4, &ledger, &err);
            wr_fault_set(WR_FAULT_THREAD, 0, false);
            if (n == 4) { /* three threads are started */
                assert_int_equal(code, 0);
                wr_team_close(team);
            } else {
                assert_int_equal(code, WEIR_E_THREAD);
                assert_ptr_equal(team, &ledger);
                assert_non_null(strstr(err.text, "of 4"));
            }
            assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_PROCESS), 0);
        }
    }
    for (int i = 0; i < 10000 && n_tasks() != before; i++) /* a joined thread may stay in the list for a moment */
        usleep(1000);
    assert_int_equal(n_tasks(), before);

    struct wr_team *team = NULL;
    weir_err err = {0};
    wr_fault_set(WR_FAULT_ALLOC, 1, false);
    assert_int_equal(wr_team_open(&team, 2, &ledger, &err), WEIR_E_NOMEM);
    wr_fault_set(WR_FAULT_ALLOC, 0, false);
    assert_int_equal(wr_team_open(&team, 0, &ledger, &err), WEIR_E_USAGE);
    assert_int_equal(wr_team_open(&team, WR_TEAM_MAX + 1, &ledger, &err), WEIR_E_USAGE);
    wr_ledger_limit(&ledger, WR_ACCOUNT_PROCESS, 8);
    assert_int_equal(wr_team_open(&team, 2, &ledger, NULL), WEIR_E_BUDGET);
    assert_null(team);
}

static _Atomic uint32_t word;

static void *set_word(void *arg)
{
    (void)arg;
    usleep(5000);
    atomic_store(&word, 1);
    wr_futex_wake(&word, 1);
    return NULL;
}

static void futex(void **state)
{
    (void)state;
    uint64_t start = wr_clock_ns();
    atomic_store(&word, 0);
    wr_futex_wait(&word, 1, UINT64_MAX); /* differs already: returns at once */
    wr_futex_wait(&word, 0, 10000000);
    uint64_t waited = wr_clock_ns() - start;
    assert_true(waited >= 5000000 && waited < 60000000000);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, set_word, NULL), 0);
    while (atomic_load(&word) == 0) wr_futex_wait(&word, 0, UINT64_MAX);
    pthread_join(t, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_once),
        cmocka_unit_test(as_many_threads_as_cpus),
        cmocka_unit_test(nobody_waits_for_a_sleeper),
        cmocka_unit_test(caller_sleeps),
        cmocka_unit_test(idle_uses_no_cpu),
        cmocka_unit_test(threads_are_as_promised),
        cmocka_unit_test(refused_threads),
        cmocka_unit_test(futex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
