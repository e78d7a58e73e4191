/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the command writes: whole or not at all, also when a second signal ends it. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy files are written as little-endian f32, straight from memory"
#endif

/* What the command writes through here is never a model, and a mistyped command line must not cost one. */
static bool is_model(const char *path)
{
    char magic[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool model = fd >= 0 && pread(fd, magic, 4, 0) == 4 && !memcmp(magic, "GGUF", 4);
    if (fd >= 0) close(fd);
    return model;
}

int wr_cli_file_open(struct wr_outfile *file, const char *path, struct wr_ledger *ledger, weir_err *err)
{
    *file = (struct wr_outfile){.fd = -1};
    if (is_model(path)) return wr_err(err, WEIR_E_OPEN, "%s: is a model, which this file would replace; choose another name", wr_file_label(path));
    int code = wr_outfile_open(file, path, ledger, WR_ACCOUNT_TEXT, err);
    if (code == 0) wr_cli_doomed_file(file->part);
    return code;
}

void wr_cli_file_discard(struct wr_outfile *file)
{
    /* Removed while a second signal still would; its name is freed when no signal looks at it any more. */
    if (file->part && !file->committed) unlink(file->part);
    wr_cli_doomed_file(NULL);
    wr_outfile_discard(file);
}

/* ---- npy ------------------------------------------------------------------------------- */

int wr_cli_npy_open(struct wr_cli_npy *npy, const char *path, uint64_t n_rows, uint64_t n_columns, struct wr_ledger *ledger, weir_err *err)
{
    /* "\x93NUMPY", version 1.0, a two-byte length, and a dictionary padded with spaces so that the values begin at a multiple of 64. */
    char header[192];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    int n = snprintf(header + 10, sizeof header - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }", (unsigned long long)n_rows,
        (unsigned long long)n_columns);
    size_t length = (size_t)wr_round_up(10 + (uint64_t)n + 1, 64);
    header[10 + n] = ' ';
    header[length - 1] = '\n';
    header[8] = (char)((length - 10) & 0xFF);
    header[9] = (char)((length - 10) >> 8);

    uint64_t bytes;
    if (!wr_mul_u64(n_rows, n_columns, &bytes) || !wr_mul_u64(bytes, 4, &bytes) || bytes > INT64_MAX - sizeof header)
        return wr_err(err, WEIR_E_INPUT, "%s: %llu rows of %llu logits are more than a file can hold", wr_file_label(path), (unsigned long long)n_rows,
            (unsigned long long)n_columns);
    *npy = (struct wr_cli_npy){.header_bytes = length, .n_rows = n_rows, .n_columns = n_columns};
    int code = wr_cli_file_open(&npy->file, path, ledger, err);
    if (code) return code;
    code = wr_outfile_reserve(&npy->file, length + bytes, err);
    if (code == 0) code = wr_outfile_write(&npy->file, 0, header, length, err);
    if (code) wr_cli_file_discard(&npy->file);
    return code;
}

int wr_cli_npy_tile(struct wr_cli_npy *npy, uint64_t row, uint64_t n_rows, uint64_t column, uint64_t n_columns, const float *tile, weir_err *err)
{
    if (n_columns == npy->n_columns) /* rows follow each other without a gap */
        return wr_outfile_write(&npy->file, npy->header_bytes + row * npy->n_columns * 4, tile, (size_t)(n_rows * n_columns * 4), err);
    int code = 0;
    for (uint64_t i = 0; code == 0 && i < n_rows; i++)
        code = wr_outfile_write(&npy->file, npy->header_bytes + ((row + i) * npy->n_columns + column) * 4, tile + i * n_columns, (size_t)(n_columns * 4), err);
    return code;
}

int wr_cli_npy_hash(struct wr_cli_npy *npy, uint64_t *fnv64, weir_err *err)
{
    uint8_t buffer[16384];
    uint64_t hash = 0xcbf29ce484222325u, left = npy->n_rows * npy->n_columns * 4, offset = npy->header_bytes;
    while (left > 0) {
        ssize_t n = pread(npy->file.fd, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return wr_err_errno(err, WEIR_E_READ, n == 0 ? EIO : errno, "%s: cannot read it back", wr_file_label(npy->file.path));
        for (ssize_t i = 0; i < n; i++) hash = (hash ^ buffer[i]) * 0x100000001b3u;
        left -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    *fnv64 = hash;
    return 0;
}
