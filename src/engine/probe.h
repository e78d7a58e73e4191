/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the probe share: probe.c (order, disk, time), probe_compute.c (memory, products, attention), probe_pass.c (passes
 * that read), probe_json.c. */
#ifndef WR_ENGINE_PROBE_H
#define WR_ENGINE_PROBE_H

#include "engine/engine.h"
#include "engine/tools.h"

#define WR_PROBE_K WR_PROFILE_LONG /* elements of a row, ... */
#define WR_PROBE_ROWS 4096u        /* ... rows of a matrix, as in a model of 8 B weights, ... */
#define WR_PROBE_M 256u            /* ... and rows of a prefill chunk */
#define WR_PROBE_HEAD_DIM 128u
#define WR_PROBE_GROUP 4u /* query heads that share a head of keys and values */
/* The pager's requests, and as many as it has in flight: the point of the disk's surface that one number stands for. */
#define WR_PROBE_TYPICAL_BYTES (1u << 20)
#define WR_PROBE_TYPICAL_DEPTH 8
/* The ring of passes that are measured, as of a small budget. */
#define WR_PROBE_PASS_BYTES (512u << 10)
#define WR_PROBE_PASS_DEPTH 16u

enum { WR_PROBE_SAMPLES = 128 };
struct wr_probe_samples { /* the last so many of n */
    double value[WR_PROBE_SAMPLES];
    uint32_t n;
};

struct wr_probe_compute { /* of probe_compute.c */
    struct wr_arena arena;
    uint8_t *weights;         /* of one format after another, more than caches hold */
    size_t weights_bytes, at; /* at: where the next run over all of them begins */
    uint32_t round;
    float *x, *y;         /* [M][K], [M][ROWS] */
    struct wr_act act[2]; /* of M rows, int8 and int16 */
    uint8_t *member_work; /* [members][member_bytes] */
    uint64_t member_bytes;
    struct wr_team *team[WR_PROFILE_THREADS];
};

enum { WR_PROBE_SURFACES = 3 };
struct wr_probe {
    const wr_probe_options *o;
    struct wr_ledger ledger;
    struct wr_log log;
    const struct wr_kernels *kernels;
    struct wr_profile *profile;
    struct wr_probe_compute compute;
    char data[64]; /* path of the file that is read */
    uint64_t data_bytes, bytes_read, bytes_written;
    uint64_t memory_bytes; /* that the probe may take */
    bool uring;
    double surface[WR_PROFILE_DISK][WR_PROBE_SURFACES]; /* of profile->disk: rates, ... */
    uint32_t n_surfaces;                                /* ... of so many turns */
    double first_rate;                                  /* of the disk, bytes/s, before much was read */
    uint64_t begin_ns;
    uint32_t n_left_out;            /* points of the disk's surface */
    const char *phase;              /* for the progress */
    double share_left;              /* of all seconds, see wr_probe_seconds */
    double seconds;                 /* it took */
    struct wr_probe_samples steady; /* see wr_profile.steady */
};

/* Seconds for the next measurement, which was to have this share of all: what those before it took too long, or left over, is spread over what is left. */
double wr_probe_seconds(struct wr_probe *, double share);
/* One more measurement is done. WEIR_E_CANCELLED when it is to end. */
int wr_probe_step(struct wr_probe *, weir_err *);
/* Whether more time went by than there was. */
bool wr_probe_late(const struct wr_probe *);
bool wr_probe_cancelled(const struct wr_probe *);
int wr_probe_compute_open(struct wr_probe *, weir_err *);
void wr_probe_compute_close(struct wr_probe *);
int wr_probe_compute_run(struct wr_probe *, double share, weir_err *);
/* Reads of the file, for so long: bytes/s. */
int wr_probe_disk(struct wr_probe *, const char *engine, bool direct, uint32_t bytes, uint32_t depth, double seconds, double *rate, weir_err *);
/* Of so much memory, what passes take. */
uint64_t wr_probe_pass_memory(uint64_t memory_bytes);
/* What passes tell of the profile; with an open compute part. */
int wr_probe_passes(struct wr_probe *, bool direct, double share, weir_err *);
/* Seconds of products of one row with all Q4_0 weights there, of WR_PROBE_K elements a row, matrix by matrix. */
double wr_probe_products(struct wr_probe *, uint32_t team, const uint8_t *weights, uint64_t bytes);
/* Seconds that the threads take to start and to meet again, at best. */
double wr_probe_meeting(struct wr_probe *, uint32_t team);
void wr_probe_sample(struct wr_probe_samples *, double value);
/* The value that so many tenths of the samples do not reach. 0: there are none. */
double wr_probe_decile(const struct wr_probe_samples *, uint32_t tenths);
json_t *wr_probe_json(const struct wr_probe *, const char *stored);

#endif
