/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profile: what was measured of a machine and one of its file systems, and what a plan will do there. A prediction decides
 * nothing: what is pinned, and every logit, is the same with and without a profile.
 *
 * It is stored as lines of text, "key value...", one measurement a line. Numbers are whole: bytes/s, operations/s, ns, thousandths.
 */
#ifndef WR_MEMORY_PROFILE_H
#define WR_MEMORY_PROFILE_H

#include "kernels/kernels.h"
#include "memory/plan.h"

#define WR_PROFILE_DISK 96
#define WR_PROFILE_THREADS 8 /* thread counts measured: 1, 2, 4, ... and all */
#define WR_PROFILE_FORMATS 16
#define WR_PROFILE_SETS 8
#define WR_PROFILE_TOGETHER 8
#define WR_PROFILE_LONG 4096u   /* elements of a row of weights, ... */
#define WR_PROFILE_SHORT 768u   /* ... and of a short one, as small models have */
#define WR_PROFILE_BYTES 49152u /* of the stored text at most */

struct wr_profile_disk { /* random places, direct unless said otherwise, cold */
    char engine[16];     /* "uring", "pread" */
    bool direct;
    uint32_t bytes, depth; /* of a request; requests in flight */
    double rate;           /* bytes/s */
};

struct wr_profile_set { /* Q4_0 weights that are used in turn, again and again: the fewer, the more of them the caches hold */
    uint64_t bytes;
    double rate[WR_PROFILE_THREADS]; /* one row: bytes of weights/s */
};

struct wr_profile_format {                   /* one weight format, both activation widths */
    uint32_t type;                           /* enum wr_type */
    bool precise;                            /* int16 activations */
    double decode[WR_PROFILE_THREADS];       /* one row, weights of the largest set, in long rows: bytes of weights/s */
    double decode_short[WR_PROFILE_THREADS]; /* ... of short rows */
    double prefill[WR_PROFILE_THREADS];      /* 256 rows: multiply-adds x 2 /s */
    double mix[WR_PROFILE_THREADS];          /* the ceiling of both: the format's instruction mix alone, multiply-adds x 2 /s; 0: the level has none */
};

struct wr_profile_together { /* passes that read and compute */
    double ratio, more;      /* reading alone over computing alone; the pass over the longer of the two, - 1 */
};

struct wr_profile {
    char cpu[64], level[16], file_system[64];
    uint32_t n_cpus;
    int64_t taken;    /* seconds since the epoch */
    uint32_t seconds; /* that were to be measured in */
    double steady;    /* the middle run over the undisturbed ones; in the middle of all measurements with all threads; 0: unknown */
    struct wr_profile_disk disk[WR_PROFILE_DISK];
    uint32_t n_disk;
    uint32_t threads[WR_PROFILE_THREADS], n_threads;
    struct wr_profile_set set[WR_PROFILE_SETS]; /* ascending */
    uint32_t n_sets;
    double read[WR_PROFILE_THREADS];        /* plain reads of memory, bytes/s */
    double fma[WR_PROFILE_THREADS];         /* ceilings: f32 multiply-adds x 2 /s, ... */
    double int8[WR_PROFILE_THREADS];        /* ... dot products of bytes alone, ... */
    double int16[WR_PROFILE_THREADS];       /* ... and of 16-bit integers; 0: the level has none */
    double attend[WR_PROFILE_THREADS];      /* one query over f16 keys and values in memory: bytes of keys and values/s */
    double attend_many[WR_PROFILE_THREADS]; /* 256 queries: multiply-adds x 2 /s */
    /* Of passes that lease their weights from the pager. */
    double in_pass[WR_PROFILE_THREADS]; /* rate of products of one row over that of the same products without leases */
    /* One stage, beyond its weights: starting all threads with nothing fetched ahead, and meeting again; weights from memory, and from the caches. */
    double stage_seconds[WR_PROFILE_THREADS], stage_cached_seconds[WR_PROFILE_THREADS];
    double activate; /* of activations that one thread norms and rounds: elements/s; 0: not measured */
    struct wr_profile_format format[WR_PROFILE_FORMATS * 2];
    uint32_t n_formats;
    struct wr_profile_together together[WR_PROFILE_TOGETHER]; /* `ratio` ascends */
    uint32_t n_together;
    double disk_first; /* the disk's rate after a pause over the one that it keeps, which is what disk[] has; 0: they do not differ */
};

/* Text from a file. WEIR_E_FORMAT names the line. Unknown keys and formats are skipped. */
int wr_profile_parse(struct wr_profile *, const char *text, size_t n, weir_err *);
/* Writes at most `capacity` bytes; gives the length, 0 if it does not fit. */
size_t wr_profile_print(const struct wr_profile *, char *text, size_t capacity);
/* How quiet the machine was, up to 1: p->steady, or less where a rate is above its ceiling. Below WR_PROFILE_STEADY something else was running. */
#define WR_PROFILE_STEADY 0.8
double wr_profile_steadiness(const struct wr_profile *);
/* The disk's rate for requests of `bytes` with `depth` in flight: between what was measured, by the logarithm of both; beyond it, as at its border.
 * engine "auto": uring where that was measured, else pread. 0: not measured. */
double wr_profile_disk_rate(const struct wr_profile *, const char *engine, bool direct, uint64_t bytes, uint32_t depth);

enum wr_bound { WR_BOUND_UNKNOWN, WR_BOUND_DISK, WR_BOUND_MEMORY, WR_BOUND_COMPUTE };
/* A pass: what decides beyond plan and profile. */
struct wr_predict_input {
    const struct wr_plan *plan;
    const struct wr_profile *profile;
    const char *engine; /* as wr_profile_disk_rate takes it */
    bool direct, precise;
    uint32_t n_threads, n_stages;                                   /* stages: of a decode pass, see profile.stage_seconds */
    uint64_t n_elements;                                            /* activations that a row is normed, rounded, rotated or added in, see profile.activate */
    uint32_t n_layer, n_local, window, n_head, n_head_kv, head_dim; /* n_local layers see `window` keys at most */
    uint64_t kv_bytes_per_position;
    uint32_t n_rows, position, n_logits; /* position: of the first row; logits of so many rows */
};
struct wr_prediction {
    double seconds;                       /* 0: unknown, for something that the pass needs was not measured */
    double read_seconds, compute_seconds; /* each alone */
    double first_seconds;                 /* while the disk gives what it gives at first; `seconds` where it does not differ */
    double seconds_per_gib;               /* saved by one more GiB of pinned weights; 0 when nothing is streamed */
    enum wr_bound bound;
};
/* A pure function; the arithmetic is in predict.c. */
void wr_predict(struct wr_prediction *, const struct wr_predict_input *);

#endif
