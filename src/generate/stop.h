/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings over a stream of text: text is given on as soon as it can no longer be the beginning of a stop string; a match
 * cuts exactly before the stop string that begins earliest (of two that begin there, either: nothing of them is shown), as a
 * search in the whole text would, whatever the pieces. So a complete stop string waits while one that began before it may still be completed.
 */
#ifndef WR_GENERATE_STOP_H
#define WR_GENERATE_STOP_H

#include "base/mem.h"

struct wr_stop;
/* stops: NUL-terminated, each 1..1024 bytes, at most 16 (WEIR_E_USAGE otherwise, an empty one too). Copied; TEXT. */
int wr_stop_open(struct wr_stop **, const char *const *stops, size_t n, struct wr_ledger *, weir_err *);
void wr_stop_close(struct wr_stop *);
typedef void wr_stop_emit_fn(void *user, const char *text, size_t n);
/* Feeds text; emits what is safe. True once a stop string was found (nothing more is emitted). No allocation. */
bool wr_stop_put(struct wr_stop *, const char *text, size_t n, wr_stop_emit_fn *, void *user);
/* The stream ended: emits what was held back. True if a stop string was found, which may turn out only now. */
bool wr_stop_flush(struct wr_stop *, wr_stop_emit_fn *, void *user);

#endif
