/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model families. A family is one file and one row in arches.def: `describe` reads the hyper-parameters and lists the
 * weights in the order in which a pass uses them, `layer` computes one layer. What families share is in describe.c and
 * pass.h.
 */
#ifndef WR_MODEL_ARCH_H
#define WR_MODEL_ARCH_H

#include "format/catalog.h"
#include "kernels/kernels.h"
#include "memory/plan.h"

struct wr_pass;
struct wr_model;

struct wr_hparams {
    uint32_t n_layer, n_embd, n_ff, n_vocab, n_ctx_trained;
    uint32_t n_head, n_head_kv, head_dim, n_rot;
    float eps, attention_scale;
    float embedding_scale, final_softcap; /* 0: none */
    uint32_t window;                      /* of local layers: a query sees keys less than this far back; 0: there are none */
    float rope_base, rope_factor;         /* positions of global layers are divided by the factor */
    float rope_base_local;
    bool rope_interleaved;
};

#define WR_NO_WEIGHT UINT32_MAX
/* Indices into wr_model.uses; WR_NO_WEIGHT where the family or the file has none. */
struct wr_layer {
    uint32_t attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, o, o_bias, attn_post_norm;
    uint32_t ffn_norm, gate, up, down, gate_bias, up_bias, down_bias, ffn_post_norm;
    bool local; /* attends within the window, with the local RoPE */
};

struct wr_arch {
    const char *name; /* general.architecture */
    int (*describe)(struct wr_model *, const struct wr_catalog *, weir_err *);
    /* pass->x [m][n_embd] in and out. False: stop, the pass holds the error. */
    bool (*layer)(struct wr_pass *, uint32_t il);
};

struct wr_model {
    const struct wr_arch *arch;
    struct wr_hparams hp;
    struct wr_layer *layers; /* [n_layer] */
    uint32_t token_embd, output_norm, output, output_bias, rope_factors;
    struct wr_use *uses; /* in the order of a pass */
    uint32_t n_uses, max_uses;
    uint8_t *used; /* [n_tensors] the model knows this tensor */
    struct wr_ledger *ledger;
};

/* Reads the architecture and checks every tensor the family needs: name, shape, a type that can be computed with. WEIR_E_UNSUPPORTED for another
 * architecture or for a tensor that the family does not know; WEIR_E_FORMAT for values that cannot be. Memory: META. */
int wr_model_open(struct wr_model *, const struct wr_catalog *, struct wr_ledger *, weir_err *);
void wr_model_close(struct wr_model *);

/* ---- for families ---- */

/* A hyper-parameter "ARCH.key" within [min, max]; absent: `*out` stays if has_default, else an error. */
int wr_model_key(struct wr_model *, const struct wr_catalog *, const char *key, bool has_default, uint32_t min, uint32_t max, uint32_t *out, weir_err *);
int wr_model_key_f32(struct wr_model *, const struct wr_catalog *, const char *key, bool has_default, float *out, weir_err *); /* above 0 */
int wr_model_key_f32_or_none(struct wr_model *, const struct wr_catalog *, const char *key, float *out, weir_err *); /* 0: as if absent, `*out` stays */

/* Which of the tensors that not every family has are part of the graph. One that is there although it is not is refused. */
enum wr_presence { WR_ABSENT, WR_OPTIONAL, WR_REQUIRED };
struct wr_parts {
    enum wr_presence qkv_bias, linear_bias /* of attn_output and ffn_* */, output_bias, qk_norm, post_norm, rope_factors;
    bool final_softcap;
};
/* Hyper-parameters that all families have, and their defaults; refuses keys that ask for another graph. m->layers is allocated. */
int wr_model_shape(struct wr_model *, const struct wr_catalog *, const struct wr_parts *, weir_err *);
/* All weights, each with its name, shape and a type that can be computed with. Without output.weight the head is token_embd.weight. */
int wr_model_weights(struct wr_model *, const struct wr_catalog *, const struct wr_parts *, weir_err *);

/* Scratch of a pass: base + per_row * rows + per_thread * threads (see pass.c for what they hold). */
void wr_model_scratch(const struct wr_model *, bool precise, uint64_t *base, uint64_t *per_row, uint64_t *per_thread);
/* Of it, what is idle for each row while logits are computed, and until the next pass: see wr_pass_idle. */
uint64_t wr_model_idle_bytes(const struct wr_model *);

#endif
