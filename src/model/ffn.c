/* SPDX-License-Identifier: Apache-2.0 */
#include "model/pass.h"

struct gate {
    wr_gate_fn *mul;
};

static void gate_row(struct wr_pass *p, uint32_t row, void *arg)
{
    ((struct gate *)arg)->mul(p->g + row * p->g_width, p->u + row * p->u_width, p->model->hp.n_ff);
}

bool wr_ffn(struct wr_pass *p, uint32_t il, wr_gate_fn *mul)
{
    const struct wr_layer *l = &p->model->layers[il];
    const struct wr_hparams *hp = &p->model->hp;
    if (!wr_pass_activate(p, p->x, hp->n_embd, l->ffn_norm, p->h, p->h_width, hp->n_embd)) return false;
    struct wr_product in[] = {{l->gate, l->gate_bias, p->g, p->g_width}, {l->up, l->up_bias, p->u, p->u_width}};
    if (!wr_pass_products(p, in, 2)) return false;
    wr_pass_each_row(p, gate_row, &(struct gate){mul});
    if (!wr_pass_activate(p, p->g, p->g_width, WR_NO_WEIGHT, p->g, p->g_width, hp->n_ff)) return false;
    struct wr_product out = {l->down, l->down_bias, p->h, p->h_width};
    if (!wr_pass_products(p, &out, 1)) return false;
    wr_pass_add(p, p->h, p->h_width, l->ffn_post_norm);
    return true;
}
