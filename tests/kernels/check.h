/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkkern: every op of every level that this machine has, against the scalar reference (equal bits), and the
 * reference against double precision. A group of ops is one file, check_<group>.c, with one row in groups.def.
 */
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "kernels/kernels.h"

#define CHECK_MAX_LEVELS 16

struct check {
    uint64_t seed, state; /* the seed of the run; the generator's state */
    uint32_t passed, failed;
    bool quick;                                       /* fewer sizes: for sanitizers and valgrind */
    const struct wr_kernels *ref;                     /* the scalar level */
    const struct wr_kernels *level[CHECK_MAX_LEVELS]; /* the other levels that this machine has and --level lets through */
    uint32_t n_levels;
};

/* Counts one result; a failure prints its text, which must hold all that is needed to repeat it. Returns ok. */
bool check_that(struct check *, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Random numbers: one generator for the run, started from the seed and the group's name, so --only repeats a group exactly. */
uint32_t check_u32(struct check *);
uint32_t check_below(struct check *, uint32_t n); /* 0 .. n - 1 */
float check_uniform(struct check *);              /* [-1, 1) */
float check_normal(struct check *);               /* standard normal, |x| < 7 */

/* Finite data that break kernels. */
enum check_data {
    CHECK_NORMAL,    /* standard normal */
    CHECK_MAX,       /* all equal and large */
    CHECK_ALTERNATE, /* +c, -c, +c ... */
    CHECK_ZERO,      /* +0 and -0 */
    CHECK_TINY,      /* around 2^-100 */
    CHECK_DENORMAL,
    CHECK_OUTLIER, /* normal with a few of 1e4 */
    CHECK_WIDE,    /* magnitudes 2^-40 .. 2^12 */
    CHECK_N_DATA
};
const char *check_data_name(enum check_data);
void check_fill(struct check *, enum check_data, float *x, size_t n);

/* A buffer between two pages that may not be touched, its end as near to the second as `align` (a power of two, <= 4096) allows; the slack holds a
 * pattern, and so does the buffer itself at first. A read past the end faults (exactly at the end with align 1); a write is found by check_intact. */
void *check_alloc(size_t bytes, size_t align);
bool check_intact(const void *p); /* nothing was written outside [p, p + bytes) */
void check_free(void *p);

/* Index of the first element where a and b differ in bits (two NaNs are equal), or n. */
size_t check_diff_f32(const float *a, const float *b, size_t n);

/* Seconds of one call of fn(arg), the best of several rounds of at least 10 ms each. */
double check_seconds(void (*fn)(void *arg), void *arg);
/* One line of --bench. `unit` is "GB/s", "GFLOPS" or "GOPS". */
void check_rate(const char *op, const char *shape, const char *level, double amount_per_call, double seconds, const char *unit);

#define CHECK_GROUP(name)                                                                                                                                      \
    void check_##name(struct check *);                                                                                                                         \
    void bench_##name(struct check *);
#include "groups.def"
#undef CHECK_GROUP

#endif
