/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound of weir bench stream: what the same machine does when reading and computing hinder each other in nothing but the machine itself. A raw reader
 * (io/probe.h) and the rows' arithmetic over positions in memory run alone and at the same time, each as fast as it can: CPUs serve a disk too, and where the
 * disk is a service of the host of a virtual machine, they share more than memory.
 */
#include <math.h>
#include <stdatomic.h>
#include <time.h>
#include "base/os.h"
#include "engine/bench.h"
#include "io/probe.h"

#define ALONE_RUNS 5  /* of computing: the median counts */
#define BESIDE_RUNS 4 /* that reading goes on for at least */
#define MOST_TRIES 5  /* each twice as long as the last: CPUs may be busy with something else */

struct beside {
    struct wr_bench *b;
    const char *path;
    struct wr_io_probe probe;
    double rate;
    weir_err err;
    int rc;
    atomic_bool reading, over;
};

static void *read_beside(void *arg)
{
    struct beside *s = arg;
    wr_thread_serves("weir-probe");
    s->rc = wr_io_probe(s->path, &s->probe, &s->b->ledger, &s->rate, &s->err);
    atomic_store(&s->over, true);
    return NULL;
}

/* Runs a second, of those that began and ended while requests were in flight; 0: there were none. */
static int compute_beside(struct beside *s, wr_bench_run_fn *run, void *arg, double *runs, weir_err *err)
{
    pthread_t reader;
    uint32_t n = 0;
    double unused;
    atomic_store(&s->over, false);
    int rc = wr_thread_start(&reader, read_beside, s);
    if (rc != 0) return wr_err_errno(err, WEIR_E_THREAD, rc, "cannot start a thread that reads");
    while (!atomic_load(&s->reading) && !atomic_load(&s->over)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    const uint64_t begin = wr_clock_ns();
    uint64_t end = begin;
    while (rc == 0 && atomic_load(&s->reading)) {
        rc = run(arg, &unused, err);
        if (rc < 0 || !atomic_load(&s->reading)) break;
        end = wr_clock_ns();
        n++;
    }
    pthread_join(reader, NULL);
    if (rc == 0 && s->rc < 0) {
        rc = s->rc;
        if (err != NULL) *err = s->err;
    }
    if (rc == 0) *runs = n > 0 ? n / ((double)(end - begin) * 1e-9) : 0;
    return rc;
}

int wr_bench_overlap(
    struct wr_bench *b, const char *path, const struct wr_io_probe *probe, wr_bench_run_fn *run, void *arg, struct wr_bench_overlap *o, weir_err *err)
{
    struct beside s = {.b = b, .path = path, .probe = *probe};
    double seconds[ALONE_RUNS], unused;
    wr_bench_progress(b, "measure the bound", 0, 0, "");
    int rc = wr_io_probe(path, probe, &b->ledger, &o->disk, err);
    if (rc == 0) rc = run(arg, &unused, err); /* once to warm up */
    for (int i = 0; rc == 0 && i < ALONE_RUNS; i++) {
        const uint64_t begin = wr_clock_ns();
        rc = run(arg, &unused, err);
        seconds[i] = (double)(wr_clock_ns() - begin) * 1e-9;
    }
    if (rc < 0) return rc;
    const double one = wr_bench_statistics(seconds, ALONE_RUNS).median;
    o->runs = 1 / one;
    s.probe.seconds = fmax(probe->seconds, (BESIDE_RUNS + 1) * one);
    s.probe.reading = &s.reading;
    o->runs_beside = 0;
    for (int i = 0; rc == 0 && o->runs_beside == 0 && i < MOST_TRIES; i++, s.probe.seconds *= 2) rc = compute_beside(&s, run, arg, &o->runs_beside, err);
    if (rc == 0 && o->runs_beside == 0)
        rc = wr_err(err, WEIR_E_FAIL, "in %d tries nothing was computed while the disk was read: the CPUs are busy with something else; try again", MOST_TRIES);
    o->disk_beside = s.rate;
    return rc;
}

double wr_bench_overlap_seconds(const struct wr_bench_overlap *o, double bytes, double runs)
{
    const double reading = bytes / o->disk_beside, computing = runs / o->runs_beside, both = fmin(reading, computing);
    const double left = reading > computing ? (bytes - both * o->disk_beside) / o->disk : (runs - both * o->runs_beside) / o->runs;
    return fmax(both + left, fmax(bytes / o->disk, runs / o->runs));
}
