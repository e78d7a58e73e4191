/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The op table. ref/ is the executable specification of the arithmetic (docs/NUMERICS.md); every other level
 * (levels.def) takes what it does not do faster from a level below it, and returns the same bits for every number of
 * rows. Ops never allocate, lock or touch anything but their arguments.
 */
#ifndef WR_KERNELS_H
#define WR_KERNELS_H

#include "quant/quant.h"

enum wr_kv_type { WR_KV_F16, WR_KV_F32, WR_KV_Q8_0, WR_KV_K8V4, WR_N_KV_TYPES }; /* the last two: blocks of 32 dimensions */

/* Activations of m rows, prepared once and shared by every product that reads them. */
struct wr_act {
    uint32_t m, k;
    const float *x; /* [m][ldx], for float weights */
    size_t ldx;
    bool precise; /* q16 instead of q8 */
    int8_t *q8;   /* [m][k] rule d, 127; 64-byte aligned rows only if k is a multiple of 64 */
    int16_t *q16; /* [m][k] rule d, 32767 */
    float *d;     /* [m][k / 32] */
    float *s;     /* [m][k / 32] sum of the group's q: an exact integer */
    float *s16;   /* [m][k / 16] the same of its halves, for weights in groups of 16 */
};

#define WR_TILE 256    /* positions of a KV tile; rule g */
#define WR_SPAN 4096   /* positions of a span */
#define WR_KV_BLOCK 16 /* positions of a K block */

/* One KV tile of one KV head against n_q <= WR_TILE_MAX_Q queries; see rule g. State is carried from tile to tile of a span and starts as m = -inf,
 * l = 0, O = 0. A query's result does not depend on the others; those with the same visible keys (heads of a group) are fastest side by side. Nothing of a
 * K block or V row that no query sees is read into a result. A NaN or +inf score makes l and O NaN. */
struct wr_tile {
    enum wr_kv_type type;
    uint32_t head_dim, n_q;
    const void *k;         /* [WR_TILE / 16] blocks of the tile: [head_dim][16] values; q8_0, k8v4: int8, then [head_dim / 32][16] f16 scales */
    const void *v;         /* [WR_TILE] positions: [head_dim] values; q8_0: int8, k8v4: int4, then [head_dim / 32] f16 scales */
    const float *const *q; /* [n_q] -> [head_dim] */
    const uint32_t *first; /* [n_q] keys [first, last) of the tile are visible, last <= WR_TILE; first >= last: none, the state stays */
    const uint32_t *last;
    float scale, softcap; /* scale > 0; softcap 0: none; else cap * tanh(score / cap) */
    float *m, *l;         /* [n_q] */
    float *o;             /* [n_q][head_dim] */
    float *work;          /* [n_q][WR_TILE], 64-byte aligned */
    const void *next_k;   /* k of the tile that follows, to be fetched in time; NULL: none */
};
#define WR_TILE_MAX_Q 64

/* Work space of one thread for matmul: panels of 16 rows, a chunk of k at a time. 64-byte aligned. */
#define WR_MATMUL_WORK_BYTES (224u << 10)

struct wr_kernels {
    const char *level; /* "scalar", "avx2", ... */

    /* Rule b. y may be x. */
    void (*rmsnorm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    /* Rule d: fills q8 or q16, d, s and s16 of row `row` from x[row]. False if a value is not finite (the row is then undefined). k is a multiple of 32. */
    bool (*quantize)(const struct wr_act *, uint32_t row);
    /* y[i * ldy + r] = product of activation row i and weight row r (rules e and f), i < act->m, r < n_rows. Weight rows lie `stride`
     * bytes apart (any alignment). Reads no byte outside [rows, rows + (n_rows - 1) * stride + row_bytes). */
    void (*matmul)(const struct wr_quant *, const void *rows, size_t stride, uint32_t n_rows, const struct wr_act *, float *y, size_t ldy, void *work);
    void (*add)(float *x, const float *y, size_t n);          /* x += y */
    void (*silu_mul)(float *gate, const float *up, size_t n); /* gate = silu(gate) * up */
    void (*gelu_mul)(float *gate, const float *up, size_t n); /* gate = gelu(gate) * up */
    /* Rule c, in place. Pairs (2i, 2i + 1) if interleaved, else (i, i + n_rot / 2); c and s: [n_rot / 2]; elements past n_rot stay. */
    void (*rope)(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *c, const float *s, bool interleaved);
    /* Rounds one position's key and value of one head into their places: k_block is the position's block, slot = position mod 16; v_row the position's
     * value. False if a value (q8_0, k8v4: or a scale) is not finite or becomes infinite; what is stored is undefined then. */
    bool (*kv_store)(enum wr_kv_type, uint32_t head_dim, const float *k, const float *v, void *k_block, uint32_t slot, void *v_row);
    void (*attend_tile)(const struct wr_tile *);
    bool (*all_finite)(const float *x, size_t n);
};

/* The table of the best level that this CPU has, capped by `cap` ("" or NULL: no cap). NULL for an unknown name; a cap above what the CPU has
 * gives the best it has. */
const struct wr_kernels *wr_kernels_best(const char *cap);
/* The level up to `cap` that this CPU has and the system does not let this process use; NULL: none. */
const char *wr_kernels_refused(const char *cap);
/* Level i, from "scalar" up; NULL past the end. *available: this CPU has it. */
const struct wr_kernels *wr_kernels_level(uint32_t i, const char **name, bool *available);

/* "f16", "f32", "q8_0", "k8v4". */
const char *wr_kv_name(enum wr_kv_type);
/* Whether heads of this size can be stored: q8_0 and k8v4 have blocks of 32 dimensions. */
bool wr_kv_fits(enum wr_kv_type, uint32_t head_dim);
/* Bytes of the key of one position of one head (a K block has 16 times as many), and of its value. */
uint32_t wr_kv_key_bytes(enum wr_kv_type, uint32_t head_dim);
uint32_t wr_kv_value_bytes(enum wr_kv_type, uint32_t head_dim);

/* Whether keys (and the queries that meet them), and values (and what attention makes of them), are rotated by wr_hadamard before they are rounded. */
bool wr_kv_rotates_keys(enum wr_kv_type);
bool wr_kv_rotates_values(enum wr_kv_type);
/* The normalized Walsh-Hadamard transform of a head (rule g), its own inverse, in parts of the largest power of two that divides head_dim: a large dimension
 * is spread over all, so that it does not take the steps of 4 or 8 bits from the others of its block. */
void wr_hadamard(float *x, uint32_t head_dim);

/* Merges span b into a (rule g), both [head_dim] with their m and l; empty spans (m = -inf) leave the other as it is. */
void wr_attend_merge(float *m, float *l, float *o, float m2, float l2, const float *o2, uint32_t head_dim);
/* What a router does with the logits of n experts, or any row of finite values: softmax in place (rules b and c), and the indices of the k largest, the
 * largest first, of equal ones the lower index first (rule h); k <= n. */
void wr_softmax(float *x, uint32_t n);
void wr_top_k(const float *x, uint32_t n, uint32_t k, uint32_t *index);
/* cos and sin of one position: angle = (f64)position * inv_freq[i], rounded to f32 once. */
void wr_rope_angles(uint32_t position, const float *inv_freq, uint32_t n_half, float *c, float *s);
/* inv_freq[i] = (f32)(1 / base^(2i / n_rot)) / factor[i] (factors may be NULL). */
void wr_rope_inv_freq(float *inv_freq, uint32_t n_rot, float base, const float *factors);

#endif
