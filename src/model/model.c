/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "model/arch.h"

#define ARCH(name) extern const struct wr_arch wr_arch_##name;
#include "model/arches.def"
#undef ARCH

static const char arch_names[] =
#define ARCH(name) " " #name
#include "model/arches.def"
#undef ARCH
    ;

static const struct wr_arch *const arches[] = {
#define ARCH(name) &wr_arch_##name,
#include "model/arches.def"
#undef ARCH
};

int wr_model_open(struct wr_model *m, const struct wr_catalog *c, struct wr_ledger *ledger, weir_err *err)
{
    const char *name = NULL;
    *m = (struct wr_model){.ledger = ledger, .rope_factors = WR_NO_WEIGHT, .output = WR_NO_WEIGHT, .output_bias = WR_NO_WEIGHT};
    int rc = wr_catalog_str(c, "general.architecture", &name, err);
    if (rc < 0) return rc;
    for (size_t i = 0; name != NULL && i < sizeof arches / sizeof *arches; i++)
        if (strcmp(arches[i]->name, name) == 0) m->arch = arches[i];
    if (m->arch == NULL)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: key general.architecture is '%s', which is not supported (supported:%s)", wr_file_label(c->files[0].path),
            name != NULL ? name : "", arch_names);

    m->max_uses = (uint32_t)c->n_tensors + 1;
    m->uses = wr_mem_array(ledger, WR_ACCOUNT_META, m->max_uses, sizeof *m->uses, err);
    m->used = wr_mem_array(ledger, WR_ACCOUNT_META, c->n_tensors, 1, err);
    rc = m->uses != NULL && m->used != NULL ? 0 : err != NULL ? err->code : WEIR_E_NOMEM;
    if (rc == 0) rc = m->arch->describe(m, c, err);
    /* A tensor that the family does not know means another graph than the one that would be computed. */
    for (uint64_t i = 0; rc == 0 && i < c->n_tensors; i++)
        if (!m->used[i])
            rc = wr_err(err, WEIR_E_UNSUPPORTED, "%s: tensor %s is not part of the '%s' graph as weir knows it",
                wr_file_label(c->files[c->tensors[i].file].path), c->tensors[i].name, m->arch->name);
    if (rc < 0) wr_model_close(m);
    return rc;
}

void wr_model_close(struct wr_model *m)
{
    wr_mem_free(m->layers);
    wr_mem_free(m->uses);
    wr_mem_free(m->used);
    *m = (struct wr_model){0};
}
