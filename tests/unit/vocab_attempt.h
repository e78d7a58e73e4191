/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of both kinds of vocabulary try while allocations fail. */
#ifndef VOCAB_ATTEMPT_H
#define VOCAB_ATTEMPT_H

#include "text_common.h"
#include "text/vocab.h"

struct attempt {
    const struct wr_vocab_config *config;
    const json_t *words; /* of a vocabulary by score */
    struct wr_ledger *ledger;
    struct wr_vocab *v;
    const char *text;
    size_t n, n_ids;
    int32_t *ids;
};

static inline int try_tokenize(void *arg)
{
    struct attempt *a = arg;
    struct wr_tokenize options = {.special = true, .max_ids = SIZE_MAX};
    size_t n_dropped;
    weir_err err;
    int code = wr_vocab_tokenize(a->v, a->text, a->n, &options, a->ledger, &a->ids, &a->n_ids, &n_dropped, &err);
    return code < 0 && a->ids ? WEIR_E_FAIL : code;
}

#endif
