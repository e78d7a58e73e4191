/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: one table (weir/errors.def), one record (weir_err). A function that can fail
 * returns 0 or a negative WEIR_E_* and, when the caller passed a weir_err, says what
 * happened, where, and what to do next. Nothing here allocates.
 */
#ifndef WR_BASE_ERROR_H
#define WR_BASE_ERROR_H

#include <stdarg.h>
#include <weir/weir.h>

/* Sets *err (may be NULL) and returns `code`, so that `return wr_err(err, WEIR_E_READ, ...)` works.
 * Text past 255 bytes is cut at a UTF-8 boundary; control characters are written as '?'. */
int wr_err(weir_err *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Like wr_err, with ": " and the system's text for `errno_value` appended (thread-safe). */
int wr_err_errno(weir_err *err, int code, int errno_value, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Puts "prefix: " in front of the text already in *err; keeps the code. Returns err->code (or `code` when err is NULL). */
int wr_err_prefix(weir_err *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Copies text as one clean line: control characters and bytes that are not UTF-8 become '?', cut at a character's
 * boundary to fit `capacity` bytes with the NUL. Returns the length. */
size_t wr_text_line(char *out, size_t capacity, const char *text);

/* The path as messages show it: whole if short, else its end, so that the reason still fits in the 255 bytes of a weir_err. */
const char *wr_file_label(const char *path);
/* At most the last `longest` bytes of the path, from behind a slash where there is one. */
const char *wr_path_end(const char *path, size_t longest);

int wr_err_exit_code(int code);   /* process exit status of a WEIR_E_*, 0 for 0 */
int wr_err_http_status(int code); /* HTTP status of a WEIR_E_*, 200 for 0 */

#endif
