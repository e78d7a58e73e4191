/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Crcs of weights, taken as their bytes are first read, whatever pieces they come in and whichever first: a piece's crc is moved behind by the bytes of the
 * tensor that follow it, and all are added up.
 */
#include "base/crc32c.h"
#include "memory/pager_state.h"

static void add_piece(struct wr_pager *p, uint32_t w, uint64_t offset, const uint8_t *bytes, uint64_t n)
{
    struct weight_crc *c = &p->crc[w];
    uint64_t behind = p->plan->weights[w].tensor->bytes - offset - n;
    atomic_fetch_xor_explicit(&c->crc, wr_crc32c_combine(wr_crc32c(0, bytes, n), 0, behind), memory_order_relaxed);
    atomic_fetch_sub_explicit(&c->left, n, memory_order_release);
}

int wr_weight_crc_init(struct wr_pager *p, weir_err *err)
{
    if (!p->config.checksums) return 0;
    p->crc = wr_mem_array(p->config.ledger, WR_ACCOUNT_META, p->plan->n_weights, sizeof *p->crc, err);
    if (p->crc == NULL) return err != NULL ? err->code : WEIR_E_NOMEM;
    for (uint32_t w = 0; w < p->plan->n_weights; w++) p->crc[w].left = p->plan->weights[w].tensor->bytes;
    return 0;
}

void wr_weight_crc_vector(struct wr_pager *p, uint32_t w, const void *bytes)
{
    if (p->crc != NULL) add_piece(p, w, 0, bytes, p->plan->weights[w].tensor->bytes);
}

void wr_weight_crc_extent(struct wr_pager *p, uint32_t extent, const uint8_t *bytes)
{
    const struct wr_extent *e = &p->plan->extents[extent];
    if (p->crc == NULL || p->extent[extent].seen) return;
    p->extent[extent].seen = true;
    for (uint32_t w = 0; w < p->plan->n_weights; w++) {
        const struct wr_weight *weight = &p->plan->weights[w];
        const struct wr_tensor *t = weight->tensor;
        if ((weight->use != WR_USE_DENSE && weight->use != WR_USE_HEAD) || extent < weight->first_extent || extent >= weight->first_extent + weight->n_extents)
            continue;
        uint64_t begin = t->offset > e->offset ? t->offset : e->offset, end = t->offset + t->bytes;
        if (end > e->offset + e->bytes) end = e->offset + e->bytes;
        if (begin < end) add_piece(p, w, begin - t->offset, bytes + (begin - e->offset), end - begin);
    }
}

bool wr_pager_weight_crc(const struct wr_pager *p, uint32_t w, uint32_t *crc)
{
    if (p->crc == NULL || atomic_load_explicit(&p->crc[w].left, memory_order_acquire) != 0) return false;
    *crc = atomic_load_explicit(&p->crc[w].crc, memory_order_relaxed);
    return true;
}
