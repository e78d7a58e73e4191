/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread team. A job is published by one counter (`generation`), its end by another (`pending`); both are futex words. Its members are dealt to slots,
 * one a thread. Each thread takes its own slot and then those that nobody has begun: a thread that sleeps or whose CPU was taken away is not waited for.
 * `taken` of all slots is the job's generation when it ends, so whoever comes too late takes nothing of it.
 *
 * Nobody misses a wake: a sleeper announces itself (`sleepers`, `caller_sleeps`) before the kernel compares the word, the
 * waker changes the word before it looks at the announcement, and both sides are sequentially consistent.
 */
#include "base/team.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/num.h"
#include "base/os.h"

/* A decode pass has about 200 jobs a few us apart; waking a sleeper costs 5 to 50 us, and in a virtual machine whose CPU has gone idle more than 100. No
 * yielding: on a busy machine that gives a whole slice away at every job, and decode falls to a seventh. */
#define SPIN_NS 60000
#define STACK_BYTES (256 * 1024)

struct slot { /* members i, i + n_threads, ... of slot i, run one after another */
    struct wr_team *team;
    pthread_t thread; /* of slots 1 and up: its own */
    uint32_t index;
    _Atomic uint32_t taken; /* the generation that was begun last */
    char pad[40];
};
_Static_assert(sizeof(struct slot) == 64, "as large as a cache line");

struct wr_team {
    _Atomic uint32_t generation, sleepers; /* written by the caller for each job, read by all */
    wr_team_fn *fn;
    void *arg;
    _Atomic bool leave;
    char pad0[64];
    _Atomic uint32_t pending, caller_sleeps; /* slots that are not finished; written by the threads as they finish */
    char pad1[64];
    uint32_t n_members, n_threads, n_started;
    uint64_t spin_ns; /* 0 where threads share CPUs: spinning would keep the others from their work */
    struct slot slots[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

void wr_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec t = {(time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

void wr_futex_wake(_Atomic uint32_t *word, uint32_t n_waiters)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n_waiters > INT_MAX ? INT_MAX : (int)n_waiters, NULL, NULL, 0);
}

/* Spins until *word is (or, if `differ`, is not) `value`; false when the time is over. */
static bool spin(_Atomic uint32_t *word, uint32_t value, bool differ, uint64_t spin_ns)
{
    if ((atomic_load_explicit(word, memory_order_acquire) == value) != differ) return true;
    if (spin_ns == 0) return false;
    uint64_t end = wr_clock_ns() + spin_ns;
    do {
        for (int i = 0; i < 16; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) != differ) return true;
            relax();
        }
    } while (wr_clock_ns() < end);
    return false;
}

static void work(struct wr_team *team, uint32_t generation, uint32_t own)
{
    for (uint32_t i = 0; i < team->n_threads; i++) {
        uint32_t slot = (own + i) % team->n_threads, before = generation - 1;
        /* The load first: a compare-and-swap that fails would take the line from whoever wants its own slot. */
        if (atomic_load_explicit(&team->slots[slot].taken, memory_order_relaxed) != before) continue;
        if (!atomic_compare_exchange_strong(&team->slots[slot].taken, &before, generation)) continue;
        for (uint32_t member = slot; member < team->n_members; member += team->n_threads) team->fn(team->arg, member, team->n_members);
        if (atomic_fetch_sub(&team->pending, 1) == 1 && atomic_load(&team->caller_sleeps) != 0) wr_futex_wake(&team->pending, 1);
    }
}

static void *thread_main(void *arg)
{
    struct slot *own = arg;
    struct wr_team *team = own->team;
    char name[16];
    snprintf(name, sizeof name, "weir-cpu-%u", own->index % 1000000);
    pthread_setname_np(pthread_self(), name);
    wr_num_thread_init();
    for (uint32_t seen = 0;;) {
        if (!spin(&team->generation, seen, true, team->spin_ns)) {
            atomic_fetch_add(&team->sleepers, 1);
            while (atomic_load(&team->generation) == seen) wr_futex_wait(&team->generation, seen, UINT64_MAX);
            atomic_fetch_sub(&team->sleepers, 1);
        }
        seen = atomic_load(&team->generation);
        if (atomic_load(&team->leave)) return NULL;
        work(team, seen, own->index);
    }
}

static uint32_t publish(struct wr_team *team)
{
    uint32_t generation = atomic_fetch_add(&team->generation, 1) + 1;
    if (atomic_load(&team->sleepers) != 0) wr_futex_wake(&team->generation, UINT32_MAX);
    return generation;
}

/* Threads are born with every signal blocked: signals belong to the application's threads. */
int wr_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, before;
    if (wr_fault_hit(WR_FAULT_THREAD)) return EAGAIN;
    int failure = pthread_attr_init(&attr);
    if (failure != 0) return failure;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failure = pthread_create(thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failure;
}

static int start(struct wr_team *team)
{
    int failure = 0;
    for (uint32_t i = 1; i < team->n_threads && failure == 0; i++) {
        struct slot *s = &team->slots[i];
        s->team = team;
        s->index = i;
        failure = wr_thread_start(&s->thread, thread_main, s);
        if (failure == 0) team->n_started++;
    }
    return failure;
}

int wr_team_open_on(struct wr_team **out, uint32_t n_members, uint32_t n_threads, struct wr_ledger *ledger, weir_err *err)
{
    weir_err own;
    if (err == NULL) err = &own;
    if (n_members == 0 || n_members > WR_TEAM_MAX) return wr_err(err, WEIR_E_USAGE, "%u threads: 1 to %d are possible", n_members, WR_TEAM_MAX);
    if (n_threads > n_members) n_threads = n_members;
    if (n_threads == 0) n_threads = 1;
    struct wr_team *team = wr_mem_alloc(ledger, WR_ACCOUNT_PROCESS, sizeof *team + n_threads * sizeof team->slots[0], err);
    if (team == NULL) return err->code;
    team->n_members = n_members;
    team->n_threads = n_threads;
    team->spin_ns = n_threads <= wr_cpu_count() ? SPIN_NS : 0;
    int failure = start(team);
    if (failure != 0) {
        uint32_t started = team->n_started;
        wr_team_close(team);
        return wr_err_errno(err, WEIR_E_THREAD, failure, "thread %u of %u could not be started; use fewer --threads", started + 2, n_threads);
    }
    *out = team;
    return 0;
}

int wr_team_open(struct wr_team **out, uint32_t n_members, struct wr_ledger *ledger, weir_err *err)
{
    return wr_team_open_on(out, n_members, wr_cpu_count(), ledger, err);
}

void wr_team_close(struct wr_team *team)
{
    if (team == NULL) return;
    atomic_store(&team->leave, true);
    publish(team);
    for (uint32_t i = 1; i <= team->n_started; i++) pthread_join(team->slots[i].thread, NULL);
    wr_mem_free(team);
}

uint32_t wr_team_size(const struct wr_team *team) { return team->n_members; }

uint32_t wr_team_threads(const struct wr_team *team) { return team->n_threads; }

void wr_team_run(struct wr_team *team, wr_team_fn *fn, void *arg)
{
    wr_num_thread_init();
    if (team->n_threads == 1) {
        for (uint32_t member = 0; member < team->n_members; member++) fn(arg, member, team->n_members);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->pending, team->n_threads, memory_order_relaxed);
    work(team, publish(team), 0);
    if (spin(&team->pending, 0, false, team->spin_ns)) return;
    atomic_store(&team->caller_sleeps, 1);
    for (uint32_t left = atomic_load(&team->pending); left != 0; left = atomic_load(&team->pending)) wr_futex_wait(&team->pending, left, UINT64_MAX);
    atomic_store(&team->caller_sleeps, 0);
}
