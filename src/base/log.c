/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include "base/error.h"

void wr_log(const struct wr_log *log, enum weir_log_level level, const char *format, ...)
{
    if (log == NULL || log->fn == NULL) return;
    char raw[1024], line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    wr_text_line(line, sizeof line, raw);
    log->fn(log->user, level, line);
}
