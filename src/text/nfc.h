/* SPDX-License-Identifier: Apache-2.0 */
/* Unicode normalization form C (UAX #15), as of Unicode 9 like the reference tokenizers, in linear time and charged memory. */
#ifndef WR_TEXT_NFC_H
#define WR_TEXT_NFC_H

#include "base/mem.h"

struct wr_nfc {
    struct wr_ledger *ledger; /* the rest zeroed; TEXT */
    char *out;
    size_t n_out, out_capacity;
    int32_t *points; /* code points of the run at work, then as many to sort with */
    size_t n_points, points_capacity;
};
/* text: valid UTF-8; err may not be NULL. *result is text itself where nothing can change, else a buffer that lives until the next call or close. */
int wr_nfc_apply(struct wr_nfc *, const char *text, size_t n, const char **result, size_t *n_result, weir_err *);
void wr_nfc_close(struct wr_nfc *);

#endif
