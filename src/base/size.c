/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them, in whole-number arithmetic: 0.1G must not depend on how a double rounds. */
#include <strings.h>
#include "base/mem.h"

#define MAX_DECIMALS 6 /* 10^6 * 2^40 still fits 64 bits */

static const struct {
    const char *suffix;
    uint64_t bytes;
} units[] = {
    {"", 1},
    {"B", 1},
    {"K", (uint64_t)1 << 10},
    {"M", (uint64_t)1 << 20},
    {"G", (uint64_t)1 << 30},
    {"T", (uint64_t)1 << 40},
    {"KiB", (uint64_t)1 << 10},
    {"MiB", (uint64_t)1 << 20},
    {"GiB", (uint64_t)1 << 30},
    {"TiB", (uint64_t)1 << 40},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
};

static bool digit(char c) { return c >= '0' && c <= '9'; }

int weir_parse_size(const char *text, uint64_t *bytes, weir_err *err)
{
    if (text == NULL || !digit(text[0])) return wr_err(err, WEIR_E_USAGE, "'%s' is not a size; write 512M, 2G or 1.5GiB", text == NULL ? "" : text);
    const char *s = text;
    uint64_t whole = 0, fraction = 0, scale = 1, unit = 0;
    bool fits = true;
    for (; digit(*s); s++) fits = fits && wr_mul_u64(whole, 10, &whole) && wr_add_u64(whole, (uint64_t)(*s - '0'), &whole);
    if (*s == '.') {
        const char *first = ++s;
        for (; digit(*s) && s - first < MAX_DECIMALS; s++) {
            fraction = fraction * 10 + (uint64_t)(*s - '0');
            scale *= 10;
        }
        if (s == first || digit(*s)) return wr_err(err, WEIR_E_USAGE, "'%s': 1 to %d digits must follow the point", text, MAX_DECIMALS);
    }
    if (*s == ' ') return wr_err(err, WEIR_E_USAGE, "'%s': write number and unit without a space, such as 2G", text);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(s, units[i].suffix) == 0) unit = units[i].bytes;
    if (unit == 0)
        return wr_err(err, WEIR_E_USAGE, "'%s': unknown unit '%s'; use K M G T, KiB MiB GiB TiB (powers of 1024) or KB MB GB TB (powers of 1000)", text, s);
    if (unit == 1 && scale > 1) return wr_err(err, WEIR_E_USAGE, "'%s': a number of bytes is whole; add a unit, such as %sG", text, text);
    uint64_t total;
    if (!fits || !wr_mul_u64(whole, unit, &total) || !wr_add_u64(total, fraction * unit / scale, &total))
        return wr_err(err, WEIR_E_USAGE, "'%s' does not fit 64 bits", text);
    *bytes = total;
    return 0;
}
