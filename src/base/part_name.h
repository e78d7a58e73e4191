/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the parts of a split model. */
#ifndef WR_BASE_PART_NAME_H
#define WR_BASE_PART_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* PREFIX-00002-of-00003.gguf is part 1 of 3. Other names: part 0 of 1, and `named` is false. */
struct wr_part_name {
    bool named;
    uint32_t no, count;
    size_t n_prefix;
};
struct wr_part_name wr_part_name_of(const char *path);
/* Makes `path`, whose name is of that form, that of part `no`. */
void wr_part_name_set(char *path, const struct wr_part_name *, uint32_t no);

#endif
