/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed team. wr_team_run runs a function once for each member and returns when all have finished. The caller and threads of the
 * team's own, as many in all as there are CPUs, share the members: a thread may run several, one after another, so a function never
 * waits for another member. What is a member's own (work space) is used by one thread at a time. A thread spins briefly for its next
 * job, then sleeps on a futex: no CPU is used while idle. Names: "weir-cpu-N".
 */
#ifndef WR_BASE_TEAM_H
#define WR_BASE_TEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include "base/mem.h"

/* A thread of weir's own: a 256 KiB stack, all signals blocked (they belong to the application's threads). 0 or an errno. */
int wr_thread_start(pthread_t *, void *(*fn)(void *), void *arg);
/* For a thread that reads or writes while a team computes on every CPU: names the calling thread, and asks the system to run it as soon as it is woken, for
 * short times (a short slice, Linux 6.12; elsewhere it waits its turn of some milliseconds, in which a fast disk idles). */
void wr_thread_serves(const char *name);

struct wr_team;
typedef void wr_team_fn(void *arg, uint32_t member, uint32_t n_members);

#define WR_TEAM_MAX 4096 /* a typing error must not start a million threads */
/* n_members 1..WR_TEAM_MAX (WEIR_E_USAGE otherwise), on at most wr_cpu_count() threads. WEIR_E_THREAD when the system refuses one (those already started are
 * stopped). Small stacks (256 KiB), all signals blocked. The team's own record, 64 bytes a thread, is charged to PROCESS. */
int wr_team_open(struct wr_team **out, uint32_t n_members, struct wr_ledger *, weir_err *);
/* On at most n_threads threads, however many CPUs there are. */
int wr_team_open_on(struct wr_team **out, uint32_t n_members, uint32_t n_threads, struct wr_ledger *, weir_err *);
void wr_team_close(struct wr_team *);             /* NULL is fine */
uint32_t wr_team_size(const struct wr_team *);    /* members */
uint32_t wr_team_threads(const struct wr_team *); /* that run them, the caller among them */
void wr_team_run(struct wr_team *, wr_team_fn *fn, void *arg);

/* CPUs that this process may use: affinity mask, lowered by the cgroup CPU quota (v1 and v2, rounded up), at least 1. */
uint32_t wr_cpu_count(void);

/* Sleep until *word != expected, or a wake, or timeout_ns passed (UINT64_MAX: none). Spurious returns are fine. */
void wr_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void wr_futex_wake(_Atomic uint32_t *word, uint32_t n_waiters);

#endif
