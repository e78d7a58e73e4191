/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 (RFC 3629): no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef WR_BASE_UTF8_H
#define WR_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one character at s (n bytes left, n > 0). Returns its length 1..4 and sets *cp; 0 if the bytes are not valid
 * UTF-8; -1 if they are a valid beginning that is cut off by the end. */
int wr_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp);
int wr_utf8_encode(uint32_t cp, uint8_t out[4]); /* returns the length */
/* Length of the longest prefix that is whole and valid; stops at the first bad byte. */
size_t wr_utf8_valid_prefix(const uint8_t *s, size_t n);
/* Copies s to out, each maximal bad part replaced by U+FFFD (as Python's errors="replace" does); returns the bytes needed
 * (out may be NULL to ask). */
size_t wr_utf8_sanitize(const uint8_t *s, size_t n, char *out);

#endif
