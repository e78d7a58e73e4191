/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices: every fallback or surprise is one line, sent to the sink of weir_options (the command prints it on
 * stderr and lists it under "warnings" in --json). Nothing is printed by the library itself.
 */
#ifndef WR_BASE_LOG_H
#define WR_BASE_LOG_H

#include <weir/weir.h>

struct wr_log {
    weir_log_fn *fn; /* may be NULL */
    void *user;
};
void wr_log(const struct wr_log *, enum weir_log_level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
