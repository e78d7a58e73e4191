/* SPDX-License-Identifier: Apache-2.0 */
#include "base/part_name.h"

#include <stdio.h>
#include <string.h>

#define N_PART (sizeof "-00001-of-00003.gguf" - 1)

/* `pattern` with a digit for every 0. */
static bool matches(const char *text, const char *pattern)
{
    for (; *pattern != '\0'; text++, pattern++)
        if (*pattern == '0' ? *text < '0' || *text > '9' : *text != *pattern) return false;
    return *text == '\0';
}

static uint32_t digits(const char *text)
{
    uint32_t value = 0;
    for (int i = 0; i < 5; i++) value = 10 * value + (uint32_t)(text[i] - '0');
    return value;
}

struct wr_part_name wr_part_name_of(const char *path)
{
    struct wr_part_name whole = {.count = 1}, part = {.named = true};
    size_t n = strlen(path);
    if (n < N_PART || !matches(path + n - N_PART, "-00000-of-00000.gguf")) return whole;
    part.n_prefix = n - N_PART;
    part.no = digits(path + part.n_prefix + 1) - 1;
    part.count = digits(path + part.n_prefix + 10);
    return part.no < part.count ? part : whole; /* 00000 has become the largest number */
}

void wr_part_name_set(char *path, const struct wr_part_name *part, uint32_t no)
{
    snprintf(path + part->n_prefix, N_PART + 1, "-%05u-of-%05u.gguf", (no + 1) % 100000, part->count % 100000);
}
