/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C: the Castagnoli polynomial 0x1EDC6F41, bits reflected, register and result inverted (RFC 3720, section 12.1). */
#ifndef WR_BASE_CRC32C_H
#define WR_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of the bytes that gave `crc` and these behind them; the crc of no bytes is 0. */
uint32_t wr_crc32c(uint32_t crc, const void *bytes, size_t n);
/* Of A and behind it B, from the crc of each and the length of B. Parts may come in any order: a crc moved behind by the bytes that follow it,
 * wr_crc32c_combine(crc, 0, n), is added to the others by exclusive or. */
uint32_t wr_crc32c_combine(uint32_t a, uint32_t b, uint64_t n_b);
/* wr_crc32c on every CPU, for tests: the same value. */
uint32_t wr_crc32c_scalar(uint32_t crc, const void *bytes, size_t n);

#endif
