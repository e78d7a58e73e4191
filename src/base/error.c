/* SPDX-License-Identifier: Apache-2.0 */
/* Errors and the names of them. The text is built on the stack and is always one clean line of UTF-8. */
#include "base/error.h"

#include <stdio.h>
#include <string.h>
#include "base/utf8.h"

/* Longer than the record: a long path in the middle must not hide a character cut in half at the end. */
#define LINE_BYTES 1024

static const struct {
    int code;
    const char *name;
    int exit_code, http_status;
} table[] = {
#define ERROR(name, value, exit_code, http, text) {name, #name, exit_code, http},
#include <weir/errors.def>
#undef ERROR
};
#define N_ERRORS (sizeof table / sizeof table[0])

/* Unknown codes read as the first row, WEIR_E_FAIL. */
static size_t find(int code)
{
    for (size_t i = 0; i < N_ERRORS; i++)
        if (table[i].code == code) return i;
    return 0;
}

const char *weir_error_name(int code) { return table[find(code)].name; }
int wr_err_exit_code(int code) { return code == 0 ? 0 : table[find(code)].exit_code; }
int wr_err_http_status(int code) { return code == 0 ? 200 : table[find(code)].http_status; }

size_t wr_text_line(char *out, size_t capacity, const char *text)
{
    const uint8_t *s = (const uint8_t *)text;
    size_t left = strlen(text), n = 0;
    while (left > 0) {
        uint32_t cp;
        int length = wr_utf8_decode(s, left, &cp);
        size_t taken = length > 0 ? (size_t)length : 1;
        bool printable = length > 0 && cp >= 0x20 && (cp < 0x7f || cp > 0x9f);
        size_t given = printable ? taken : 1;
        if (n + given >= capacity) break;
        if (printable)
            memcpy(out + n, s, taken);
        else
            out[n] = '?';
        n += given;
        s += taken;
        left -= taken;
    }
    out[n] = '\0';
    return n;
}

static int store(weir_err *err, int code, const char *line)
{
    err->code = code;
    wr_text_line(err->text, sizeof err->text, line);
    return code;
}

int wr_err(weir_err *err, int code, const char *format, ...)
{
    if (err == NULL) return code;
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return store(err, code, line);
}

int wr_err_errno(weir_err *err, int code, int errno_value, const char *format, ...)
{
    if (err == NULL) return code;
    char line[LINE_BYTES], words[128];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* The GNU form returns the text, which need not be in the buffer. */
    const char *system = strerror_r(errno_value, words, sizeof words);
    size_t n = strlen(line), room = sizeof err->text - strlen(system) - 3;
    if (n > room) n = room; /* the system's words are worth more than the end of a long path */
    char joined[LINE_BYTES + 160];
    snprintf(joined, sizeof joined, "%.*s: %s", (int)n, line, system);
    return store(err, code, joined);
}

int wr_err_prefix(weir_err *err, int code, const char *format, ...)
{
    if (err == NULL) return code;
    char line[LINE_BYTES], joined[LINE_BYTES + sizeof err->text + 2];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(joined, sizeof joined, "%s: %s", line, err->text);
    return store(err, err->code == 0 ? code : err->code, joined);
}

const char *wr_file_label(const char *path) { return wr_path_end(path, 110); }

const char *wr_path_end(const char *path, size_t longest)
{
    size_t n = strlen(path);
    if (n <= longest) return path;
    const char *tail = path + n - longest, *slash = strchr(tail, '/');
    if (slash != NULL && slash[1] != '\0') return slash + 1;
    while ((*tail & 0xC0) == 0x80) tail++; /* not inside a character */
    return tail;
}
