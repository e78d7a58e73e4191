/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocking reads by a pool of threads: for kernels, containers and file systems without io_uring. One lock guards the lists;
 * the reads themselves run outside it. Measured within 3 % of io_uring at 256 KiB and above.
 */
#include "base/team.h"
#include "io/core.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 8     /* 32 requests in flight were no faster than 8 */
#define STACK_BYTES 65536 /* a reader only calls pread; the C library's own minimum is added */

struct pool {
    struct wr_io io;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    uint32_t todo[WR_IO_MAX_DEPTH], todo_head, n_todo; /* slots, a ring */
    bool stop;
    uint32_t n_threads;
    pthread_t thread[MAX_THREADS];
};

static void *read_requests(void *arg)
{
    struct pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->n_todo == 0 && !pool->stop) pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->n_todo == 0) break;
        struct wr_io_slot *slot = &pool->io.slot[pool->todo[pool->todo_head]];
        pool->todo_head = (pool->todo_head + 1) % WR_IO_MAX_DEPTH;
        pool->n_todo--;
        pthread_mutex_unlock(&pool->lock);
        ssize_t n;
        do {
            struct wr_io_step step = wr_io_next(&pool->io, slot);
            n = pread(step.fd, step.dst, step.bytes, (off_t)step.offset);
            if (n < 0) n = -errno;
        } while (!wr_io_result(&pool->io, slot, n));
        pthread_mutex_lock(&pool->lock);
        wr_io_finish(&pool->io, slot);
        pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Also what ends a half-opened pool; the queue is worked off first. */
static void pool_close(struct wr_io *io)
{
    struct pool *pool = (struct pool *)io;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_threads; i++) pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    wr_mem_free(pool);
}

static int start_threads(struct pool *pool, uint32_t n)
{
    while (pool->n_threads < n) {
        int e = wr_thread_start(&pool->thread[pool->n_threads], read_requests, pool);
        if (e != 0) return e;
        char name[16];
        snprintf(name, sizeof name, "weir-read-%u", pool->n_threads);
        pthread_setname_np(pool->thread[pool->n_threads], name);
        pool->n_threads++;
    }
    return 0;
}

static int pool_open(struct wr_io **out, const struct wr_io_config *config, weir_err *err)
{
    struct wr_io *io;
    int code = wr_io_core_open(&io, &wr_io_ops_pread, config, sizeof(struct pool), err);
    if (code != 0) return code;
    struct pool *pool = (struct pool *)io;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    uint32_t n = config->depth < MAX_THREADS ? config->depth : MAX_THREADS;
    int e = start_threads(pool, n);
    if (e != 0) {
        code = wr_err_errno(err, WEIR_E_THREAD, e, "cannot start reader thread %u of %u", pool->n_threads + 1, n);
        pool_close(io);
        return code;
    }
    *out = io;
    return 0;
}

static bool pool_submit(struct wr_io *io, const struct wr_io_request *request)
{
    struct pool *pool = (struct pool *)io;
    struct wr_io_slot *slot = NULL;
    pthread_mutex_lock(&pool->lock);
    bool taken = wr_io_begin(io, request, &slot);
    if (slot != NULL) {
        pool->todo[(pool->todo_head + pool->n_todo) % WR_IO_MAX_DEPTH] = (uint32_t)(slot - io->slot);
        pool->n_todo++;
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

static uint32_t pool_wait(struct wr_io *io, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns)
{
    struct pool *pool = (struct pool *)io;
    uint64_t deadline = wr_io_deadline(timeout_ns);
    uint32_t n;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        n = wr_io_deliver(io, done, max);
        if (n > 0 || wr_io_idle(io) || deadline == 0) break;
        if (deadline == UINT64_MAX) {
            pthread_cond_wait(&pool->done, &pool->lock);
        } else {
            struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000u), .tv_nsec = (long)(deadline % 1000000000u)};
            if (pthread_cond_timedwait(&pool->done, &pool->lock, &until) == ETIMEDOUT) deadline = 0;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    wr_io_notice(io);
    return n;
}

const struct wr_io_ops wr_io_ops_pread = {
    .name = "pread",
    .description = "blocking reads by a pool of threads",
    .open = pool_open,
    .close = pool_close,
    .submit = pool_submit,
    .wait = pool_wait,
    .stats = wr_io_core_stats,
};
