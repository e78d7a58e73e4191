/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 by Table 3-7 of the Unicode standard: the second byte's range depends on the first, all later ones are 80..BF. */
#include "base/utf8.h"

#include <string.h>

/* Length that the first byte announces, 0 if it cannot begin a character, and the range of the second byte. */
static int lead(uint8_t b, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (b < 0x80) return 1;
    if (b < 0xc2) return 0;
    if (b < 0xe0) return 2;
    if (b < 0xf0) {
        if (b == 0xe0) *low = 0xa0;
        if (b == 0xed) *high = 0x9f;
        return 3;
    }
    if (b > 0xf4) return 0;
    if (b == 0xf0) *low = 0x90;
    if (b == 0xf4) *high = 0x8f;
    return 4;
}

/* How many bytes at s form one character (*whole) or else the maximal part that could have begun one (at least 1 byte). */
static size_t part(const uint8_t *s, size_t n, int *announced, int *whole)
{
    uint8_t low, high;
    int length = lead(s[0], &low, &high);
    size_t i = 1;
    *announced = length;
    *whole = length == 1;
    if (length < 2) return 1;
    while (i < (size_t)length && i < n && s[i] >= low && s[i] <= high) {
        i++;
        low = 0x80;
        high = 0xbf;
    }
    *whole = i == (size_t)length;
    return i;
}

int wr_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp)
{
    int announced, whole;
    size_t got = part(s, n, &announced, &whole);
    if (!whole) return announced > 1 && got == n ? -1 : 0;
    uint32_t value = announced == 1 ? s[0] : s[0] & (0x7fu >> announced);
    for (int i = 1; i < announced; i++) value = value << 6 | (s[i] & 0x3fu);
    *cp = value;
    return announced;
}

int wr_utf8_encode(uint32_t cp, uint8_t out[4])
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xc0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xe0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

size_t wr_utf8_valid_prefix(const uint8_t *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        int announced, whole;
        size_t got = part(s + i, n - i, &announced, &whole);
        if (!whole) break;
        i += got;
    }
    return i;
}

size_t wr_utf8_sanitize(const uint8_t *s, size_t n, char *out)
{
    size_t need = 0;
    for (size_t i = 0; i < n;) {
        int announced, whole;
        size_t got = part(s + i, n - i, &announced, &whole);
        const char *from = whole ? (const char *)s + i : "\xef\xbf\xbd";
        size_t length = whole ? got : 3;
        if (out != NULL) memcpy(out + need, from, length);
        need += length;
        i += got;
    }
    return need;
}
