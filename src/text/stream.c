/* SPDX-License-Identifier: Apache-2.0 */
#include "text/vocab.h"

#include "base/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

void wr_utf8_stream_put(struct wr_utf8_stream *s, const char *bytes, size_t n, wr_emit_fn *emit, void *user)
{
    while (n > 0) {
        if (s->n_held == 0) {
            size_t whole = wr_utf8_valid_prefix((const uint8_t *)bytes, n);
            if (whole > 0) emit(user, bytes, whole);
            bytes += whole;
            n -= whole;
            if (n == 0) return;
        }
        s->held[s->n_held++] = (uint8_t)*bytes++;
        n--;
        uint32_t cp;
        int length = wr_utf8_decode(s->held, s->n_held, &cp);
        if (length < 0) continue;
        if (length > 0) {
            emit(user, (const char *)s->held, s->n_held);
        } else {
            /* What was held before is a maximal bad part; the byte that spoiled it may begin something and is looked at again. */
            emit(user, replacement, sizeof replacement - 1);
            if (s->n_held > 1) {
                bytes--;
                n++;
            }
        }
        s->n_held = 0;
    }
}

void wr_utf8_stream_flush(struct wr_utf8_stream *s, wr_emit_fn *emit, void *user)
{
    if (s->n_held > 0) emit(user, replacement, sizeof replacement - 1);
    s->n_held = 0;
}
