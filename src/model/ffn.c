/* SPDX-License-Identifier: Apache-2.0 */
#include "model/pass.h"

struct gate {
    const struct wr_layer *layer;
    wr_gate_fn *mul;
};

static void gate_row(struct wr_pass *p, uint32_t row, void *arg)
{
    const struct gate *a = arg;
    const uint32_t n_ff = p->model->hp.n_ff;
    float *gate = p->g + row * p->g_width, *up = p->u + row * p->u_width;
    wr_pass_add_vector(p, gate, a->layer->gate_bias, n_ff);
    wr_pass_add_vector(p, up, a->layer->up_bias, n_ff);
    a->mul(gate, up, n_ff);
    wr_pass_round_row(p, row, NULL);
}

bool wr_ffn(struct wr_pass *p, uint32_t il, wr_gate_fn *mul)
{
    const struct wr_layer *l = &p->model->layers[il];
    const struct wr_hparams *hp = &p->model->hp;
    struct wr_product in[] = {{l->gate, p->g, p->g_width}, {l->up, p->u, p->u_width}};
    if (!wr_pass_products(p, in, 2)) return false;
    wr_pass_begin_act(p, p->g, p->g_width, hp->n_ff);
    wr_pass_each_row(p, gate_row, &(struct gate){l, mul});
    struct wr_product out = {l->down, p->h, p->h_width};
    if (atomic_load(&p->failed) || !wr_pass_products(p, &out, 1)) return false;
    uint32_t next_norm = il + 1 < hp->n_layer ? p->model->layers[il + 1].attn_norm : WR_NO_WEIGHT;
    return wr_pass_join(p, p->h, p->h_width, l->down_bias, l->ffn_post_norm, next_norm);
}
