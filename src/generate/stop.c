/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings. Each one is followed by its Knuth-Morris-Pratt automaton: after every byte, `matched` is the longest of its beginnings
 * that the text ends with, so the text can be given on up to the longest of all. A complete stop string decides only when none that began
 * before it can still be completed: the result is what a search in the whole text would find, however the text was cut into pieces.
 */
#include "generate/stop.h"

#include <string.h>

#define MAX_STOPS 16
#define MAX_BYTES 1024
#define NOWHERE SIZE_MAX

struct needle {
    uint32_t bytes, matched;
    const uint8_t *text;
    uint16_t *border; /* [bytes]: border[i]: the longest proper beginning of text[0..i] that is its end too */
};

struct wr_stop {
    uint32_t n_stops, n_held;
    bool found;
    size_t at, match; /* positions from the start of `held`: of the next byte, and where the earliest complete stop string begins or NOWHERE */
    uint8_t *held;    /* text that is not given on yet: less than the longest stop string. What follows a match is not held: at may be above n_held */
    struct needle needles[MAX_STOPS];
};

static int check(const char *const *stops, size_t n, weir_err *err)
{
    if (n > MAX_STOPS) return wr_err(err, WEIR_E_USAGE, "%zu stop strings: at most %d are possible", n, MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        size_t length = stops[i] == NULL ? 0 : strlen(stops[i]);
        if (length == 0) return wr_err(err, WEIR_E_USAGE, "stop string %zu is empty", i + 1);
        if (length > MAX_BYTES) return wr_err(err, WEIR_E_USAGE, "stop string %zu has %zu bytes: at most %d are possible", i + 1, length, MAX_BYTES);
    }
    return 0;
}

/* One more byte: the new length of the longest beginning that the text ends with. After a complete match it starts again: what
 * begins inside or after the first match of a stop string comes too late to count. */
static uint32_t advance(const struct needle *s, uint32_t matched, uint8_t byte)
{
    if (matched == s->bytes) matched = 0;
    while (matched > 0 && s->text[matched] != byte) matched = s->border[matched - 1];
    return matched + (s->text[matched] == byte);
}

int wr_stop_open(struct wr_stop **out, const char *const *stops, size_t n, struct wr_ledger *ledger, weir_err *err)
{
    weir_err own;
    if (err == NULL) err = &own;
    int code = check(stops, n, err);
    if (code != 0) return code;
    size_t total = 0, longest = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(stops[i]);
        total += length;
        if (length > longest) longest = length;
    }
    struct wr_stop *stop = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, sizeof *stop + total * (sizeof(uint16_t) + 1) + longest, err);
    if (stop == NULL) return err->code;
    uint16_t *border = (uint16_t *)(stop + 1);
    uint8_t *text = (uint8_t *)(border + total);
    stop->held = text + total;
    stop->match = NOWHERE;
    stop->n_stops = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct needle *s = &stop->needles[i];
        s->bytes = (uint32_t)strlen(stops[i]);
        memcpy(text, stops[i], s->bytes);
        s->text = text;
        s->border = border;
        for (uint32_t at = 1; at < s->bytes; at++) border[at] = (uint16_t)advance(s, border[at - 1], text[at]);
        text += s->bytes;
        border += s->bytes;
    }
    *out = stop;
    return 0;
}

void wr_stop_close(struct wr_stop *stop) { wr_mem_free(stop); }

/* Gives on the first `n` bytes of held + text. */
static void emit_first(const struct wr_stop *stop, const char *text, size_t n, wr_stop_emit_fn *emit, void *user)
{
    size_t from_held = n < stop->n_held ? n : stop->n_held;
    if (from_held > 0) emit(user, (const char *)stop->held, from_held);
    if (n > from_held) emit(user, text, n - from_held);
}

/* Drops the first `n` bytes of held + text and holds what follows, up to `end`. */
static void hold(struct wr_stop *stop, const char *text, size_t n, size_t end)
{
    size_t held = stop->n_held, from_held = n < held ? n : held, kept = (end < held ? end : held) - from_held;
    memmove(stop->held, stop->held + from_held, kept);
    if (end > held) {
        size_t first = n > held ? n - held : 0, more = end - held - first;
        memcpy(stop->held + kept, text + first, more);
        kept += more;
    }
    stop->n_held = (uint32_t)kept;
}

bool wr_stop_put(struct wr_stop *stop, const char *text, size_t n, wr_stop_emit_fn *emit, void *user)
{
    if (stop->found || n == 0) return stop->found;
    size_t at = stop->at, begun = at; /* begun: where the longest beginning that is still alive begins */
    for (size_t i = 0; i < n && !stop->found; i++) {
        begun = ++at;
        for (uint32_t j = 0; j < stop->n_stops; j++) {
            struct needle *s = &stop->needles[j];
            s->matched = advance(s, s->matched, (uint8_t)text[i]);
            if (s->matched == s->bytes && at - s->bytes < stop->match) stop->match = at - s->bytes;
            if (at - s->matched < begun) begun = at - s->matched;
        }
        stop->found = stop->match != NOWHERE && begun >= stop->match;
    }
    size_t safe = begun < stop->match ? begun : stop->match, end = at < stop->match ? at : stop->match;
    emit_first(stop, text, safe, emit, user);
    hold(stop, text, safe, end);
    stop->at = at - safe;
    if (stop->match != NOWHERE) stop->match -= safe;
    return stop->found;
}

bool wr_stop_flush(struct wr_stop *stop, wr_stop_emit_fn *emit, void *user)
{
    if (stop->found) return true;
    if (stop->n_held > 0) emit(user, (const char *)stop->held, stop->n_held);
    stop->found = stop->match != NOWHERE;
    stop->n_held = 0;
    stop->at = 0;
    for (uint32_t i = 0; i < stop->n_stops; i++) stop->needles[i].matched = 0;
    return stop->found;
}
