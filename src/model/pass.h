/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass: m rows (sequence, position, token) through all layers. Prefill, decode, verification and batches are the same
 * thing; so are branches of a tree of rows. Work is split over output rows, heads and pass rows, never over a reduction, so nothing here depends on the
 * number of threads.
 */
#ifndef WR_MODEL_PASS_H
#define WR_MODEL_PASS_H

#include "base/team.h"
#include "memory/kv.h"
#include "memory/pager.h"
#include "model/arch.h"

#define WR_MAX_HEAD_DIM 512
#define WR_MAX_CHUNK 4096
#define WR_PASS_STAGES_OF_LAYER 5 /* calls of the team for one row: q k v, attention, o, gate and up, down */

struct wr_pass_row {
    uint32_t position;
    int32_t token;
    uint16_t sequence;
    bool logits;
};

struct wr_pass {
    const struct wr_model *model;
    const struct wr_kernels *kernels;
    struct wr_pager *pager;
    struct wr_device *device;
    struct wr_team *team;
    struct wr_kv *kv;   /* [sequences] */
    struct wr_kv tree;  /* room for the keys and values of a tree's rows; n_positions 0: there is none */
    bool heads_rotated; /* benchmarks: q, k and v are what wr_hadamard makes of others, and so is the result: runs on the same rows can follow one another */
    const volatile int *cancel;
    uint32_t max_rows;
    void (*tick)(void *user, uint32_t layers_done, uint32_t n_layer); /* after every layer; may be NULL */
    void *tick_user;

    const struct wr_pass_row *rows;
    uint32_t m;
    bool branches; /* the rows are a tree */
    bool gathered; /* the rows at work are those that want logits, in order */
    /* Scratch, [max_rows][width] each. */
    float *x, *h, *g, *u; /* n_embd; max(n_embd, heads); max(q + k + v, n_ff); max(n_ff, n_embd, heads) */
    size_t h_width, g_width, u_width;
    struct wr_rope {
        float *cos, *sin; /* [max_rows][n_rot / 2] */
        float *inv_freq;  /* [n_rot / 2], once */
    } rope[2];            /* global layers; local ones, where the model has them */
    float *attend_state;  /* [4][max_rows][n_head], of attention over tiles from disk, and over spans apart */
    struct wr_act act;
    float *logits;        /* a tile of the head's output, or one row of it */
    uint8_t *member_work; /* [members][member_bytes] */
    uint64_t member_bytes;

    _Atomic int failed;
    weir_err err;
};

/* Lays the scratch region out, fills the rope table, returns the bytes taken (at most what wr_model_scratch said). */
uint64_t wr_pass_init(struct wr_pass *, void *scratch, bool precise);
/* max_rows * wr_model_idle_bytes of scratch that a wr_head_fn may fill; the next pass takes it back. */
void *wr_pass_idle(const struct wr_pass *);

/* A tile of logits: words [word, word + n_words) of the rows that want logits, tile[i * n_words + j]. Non-zero stops the pass. */
typedef int wr_head_fn(void *user, uint32_t word, uint32_t n_words, uint32_t n_rows, const float *tile);
/* Runs rows [m] through the model: those of a sequence at consecutive positions, for one sequence with gaps is refused; where keys and values are spilled, of
 * one sequence. Or a tree, of one sequence: its first row is the root, and each other one comes behind the last row before it that has the position before
 * its own, so that a branch is followed by the next one, which begins at a position that was there. No row of a tree may be the last of a tile, and all are
 * of one. Keys and values of a tree's rows are in `tree` afterwards, row i at position i, and what the sequence has at their positions is nothing:
 * wr_pass_keep_row. With `fn`, the head runs for rows that want logits, tile by tile; without, no row may want any. 0, WEIR_E_CANCELLED, WEIR_E_NONFINITE, an
 * error of reading (or of writing keys and values), or what fn returned. The keys and values of the rows are stored; after an error those that were stored
 * before. */
int wr_pass_run(struct wr_pass *, const struct wr_pass_row *rows, uint32_t m, wr_head_fn *fn, void *user, weir_err *);
/* Row `row` of the tree that was run last becomes what the sequence has at its position, before the next pass; where the rows were no tree it is that
 * already. */
void wr_pass_keep_row(struct wr_pass *, uint32_t row, uint32_t position);

/* ---- for families ---- */

/* The pass stops with this error; the first one stays. Returns false. */
bool wr_pass_fail(struct wr_pass *, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
typedef void wr_pass_row_fn(struct wr_pass *, uint32_t row, void *arg);
/* Every row once, split over the team; in this thread when there is one row. */
void wr_pass_each_row(struct wr_pass *, wr_pass_row_fn *, void *arg);

/* y = act times each weight, rows of y `ld` floats apart. */
struct wr_product {
    uint32_t weight;
    float *y;
    size_t ld;
};
bool wr_pass_products(struct wr_pass *, const struct wr_product *, uint32_t n);
/* What lies between products is done row by row, in one stage of the team: a row is in the cache, and each stage ends with everybody waiting. */
void wr_pass_add_vector(struct wr_pass *, float *y, uint32_t vector, size_t n); /* y += the VECTOR weight; WR_NO_WEIGHT: stays */
/* act is of x [m][k] from now on; a row is there once it is rounded by rule d. x stays: float weights read it. */
void wr_pass_begin_act(struct wr_pass *, const float *x, size_t ld, uint32_t k);
void wr_pass_round_row(struct wr_pass *, uint32_t row, void *none); /* a wr_pass_row_fn. A value that is not finite fails the pass */
/* y, if not NULL, is a product's result: x += y + bias, by way of rmsnorm with post_norm. Then act = rmsnorm(x) with norm, in h. WR_NO_WEIGHT: without. */
bool wr_pass_join(struct wr_pass *, float *y, size_t ld, uint32_t bias, uint32_t post_norm, uint32_t norm);

typedef void wr_gate_fn(float *gate, const float *up, size_t n); /* gate = act(gate) * up */
/* A layer: attention, then ffn, with its biases and post-norms where it has them. Each leaves the act that the next block begins with. */
bool wr_attention(struct wr_pass *, uint32_t il);         /* x += attention(norm(x)), with norms of q and k, RoPE and the window */
bool wr_ffn(struct wr_pass *, uint32_t il, wr_gate_fn *); /* x += down(act(gate(norm(x))) * up(norm(x))) */

/* The two halves of attention between its products, for measuring: q, k and v of the rows lie in g, the result is in h. */
bool wr_attention_store(struct wr_pass *, uint32_t il); /* adds biases, norms and rotates q and k, stores k and v */
bool wr_attention_attend(struct wr_pass *, uint32_t il);
/* Work space of one member inside attention. */
uint64_t wr_attention_work_bytes(uint32_t head_dim);

#endif
