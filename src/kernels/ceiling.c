/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ceiling.h"

#include <string.h>
#include "base/os.h"
#include "kernels/ceiling_level.h"

static uint64_t wr_ceiling_mix_scalar(enum wr_mix what, const struct wr_quant *quant, bool precise, uint64_t n) { return 0; }

static void wr_ceiling_read_scalar(const void *memory, size_t bytes)
{
    const uint64_t *p = memory;
    uint64_t seen = 0;
    for (size_t i = 0; i < bytes / sizeof *p; i++) seen ^= p[i];
    __asm__ volatile("" : "+r"(seen));
}

static const struct level {
    const char *name;
    uint64_t (*mix)(enum wr_mix, const struct wr_quant *, bool precise, uint64_t n);
    void (*read)(const void *, size_t);
} levels[] = {
#define KERNEL_LEVEL(suffix, name, test, ops) {name, wr_ceiling_mix_##suffix, wr_ceiling_read_##suffix},
#include "kernels/levels.def"
#undef KERNEL_LEVEL
};

static const struct level *level_of(const struct wr_kernels *kernels)
{
    const struct level *l = levels;
    while (strcmp(l->name, kernels->level) != 0) l++; /* the same table */
    return l;
}

struct run {
    const struct level *level;
    enum wr_mix what;
    const struct wr_quant *quant;
    bool precise;
    uint64_t n, ops; /* ops: of one thread */
    const uint8_t *memory;
    size_t bytes;
};

static void mix_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct run *r = arg;
    const uint64_t ops = r->level->mix(r->what, r->quant, r->precise, r->n);
    if (member == 0) r->ops = ops;
}

static void read_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct run *r = arg;
    const size_t each = r->bytes / n_members / 4096 * 4096;
    r->level->read(r->memory + member * each, each);
}

static double seconds_of(struct wr_team *team, wr_team_fn *fn, struct run *r)
{
    const uint64_t begin = wr_clock_ns();
    if (team != NULL)
        wr_team_run(team, fn, r);
    else
        fn(r, 0, 1);
    return (double)(wr_clock_ns() - begin) * 1e-9;
}

#define RUN_SECONDS 0.002 /* long against waking a team, short against what else the machine does: the best of many is the undisturbed one */
#define LEAST_RUNS 5

double wr_ceiling_mix(const struct wr_kernels *kernels, enum wr_mix what, const struct wr_quant *quant, bool precise, struct wr_team *team, double seconds)
{
    struct run r = {.level = level_of(kernels), .what = what, .quant = quant, .precise = precise, .n = 256};
    const double n_threads = team != NULL ? wr_team_size(team) : 1;
    double best = 0, spent = 0;
    uint32_t runs = 0;
    do {
        const double t = seconds_of(team, mix_member, &r);
        if (r.ops == 0) return 0;
        spent += t;
        if (t < RUN_SECONDS)
            r.n *= 2;
        else
            runs++;
        if ((double)r.ops * n_threads > best * t) best = (double)r.ops * n_threads / t;
    } while (spent < seconds || runs < LEAST_RUNS);
    return best;
}

/* A run reads all of it: parts of what was just written may still be in a cache, and would be the best. */
double wr_ceiling_read(const struct wr_kernels *kernels, const void *memory, size_t bytes, struct wr_team *team, double seconds)
{
    struct run r = {.level = level_of(kernels), .memory = memory, .bytes = bytes};
    const uint32_t n_threads = team != NULL ? wr_team_size(team) : 1;
    const double read = (double)(bytes / n_threads / 4096 * 4096 * n_threads);
    double best = 0, spent = 0;
    for (uint32_t run = 0; spent < seconds || run < LEAST_RUNS; run++) {
        const double t = seconds_of(team, read_member, &r);
        spent += t;
        if (read > best * t) best = read / t;
    }
    return best;
}
