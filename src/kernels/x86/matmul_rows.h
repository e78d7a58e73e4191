/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of weight rows for the vectors of matmul_v256.h and matmul_v512.h. */
#ifndef WR_MATMUL_ROWS_H
#define WR_MATMUL_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "kernels/inline.h"

/* Up to 16 rows, one distance apart. Base, index and scale of x86 reach eight of them from one pointer and four registers; an array of 16 pointers
 * makes gcc 12 park them in vector registers, whose ports the kernels need. */
struct rows {
    const uint8_t *p[2]; /* rows 0 and 8 */
    size_t s, s3, s5, s7;
};

ALWAYS_INLINE struct rows rows_at(const uint8_t *p, size_t stride) { return (struct rows){{p, p + 8 * stride}, stride, 3 * stride, 5 * stride, 7 * stride}; }

ALWAYS_INLINE void rows_move(struct rows *w, ptrdiff_t bytes)
{
    w->p[0] += bytes;
    w->p[1] += bytes;
}

ALWAYS_INLINE const uint8_t *row_at(const struct rows *w, int r)
{
    const uint8_t *p = w->p[r / 8];
    switch (r % 8) {
    case 1:
        return p + w->s;
    case 2:
        return p + 2 * w->s;
    case 3:
        return p + w->s3;
    case 4:
        return p + 4 * w->s;
    case 5:
        return p + w->s5;
    case 6:
        return p + 2 * w->s3;
    case 7:
        return p + w->s7;
    default:
        return p;
    }
}

ALWAYS_INLINE int32_t load32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

#endif
