/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the command writes: whole or not at all. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy files are written as little-endian f32, straight from memory"
#endif

int wr_cli_file_open(struct wr_cli_file *file, const char *path, struct wr_ledger *ledger, weir_err *err)
{
    *file = (struct wr_cli_file){.fd = -1, .path = path};
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) return wr_err(err, WEIR_E_OPEN, "%s: is not a regular file; name a file to write", path);
    /* A short name of its own, since the path's last part may be as long as the system allows. */
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0, room = folder + 48;
    file->part = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, room, err);
    if (!file->part) return WEIR_E_NOMEM;
    memcpy(file->part, path, folder);
    for (unsigned i = 0; i < 100 && file->fd < 0; i++) {
        snprintf(file->part + folder, room - folder, ".weir-%ld-%u.part", (long)getpid(), i);
        file->fd = open(file->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->fd < 0 && errno != EEXIST) break;
    }
    if (file->fd < 0) {
        int code = wr_err_errno(err, WEIR_E_OPEN, errno, "%s: cannot write beside it", path);
        wr_mem_free(file->part);
        file->part = NULL;
        return code;
    }
    wr_cli_doomed_file(file->part);
    return 0;
}

int wr_cli_file_write(struct wr_cli_file *file, uint64_t offset, const void *bytes, size_t n, weir_err *err)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t done = pwrite(file->fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return wr_err_errno(err, WEIR_E_WRITE, done == 0 ? EIO : errno, "%s: cannot write", file->path);
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return 0;
}

int wr_cli_file_commit(struct wr_cli_file *file, weir_err *err)
{
    int code = 0;
    if (fsync(file->fd) != 0 && errno != EINVAL) code = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot write", file->path);
    int closed = close(file->fd);
    file->fd = -1;
    if (code == 0 && closed != 0) code = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot write", file->path);
    if (code == 0 && rename(file->part, file->path) != 0) code = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot put the finished file there", file->path);
    if (code == 0) {
        wr_cli_doomed_file(NULL);
        wr_mem_free(file->part);
        file->part = NULL;
    }
    return code;
}

void wr_cli_file_discard(struct wr_cli_file *file)
{
    if (!file->part) return;
    if (file->fd >= 0) close(file->fd);
    unlink(file->part);
    wr_cli_doomed_file(NULL);
    wr_mem_free(file->part);
    file->part = NULL;
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
        return wr_err(
            err, WEIR_E_INPUT, "%s: %llu rows of %llu logits are more than a file can hold", path, (unsigned long long)n_rows, (unsigned long long)n_columns);
    *npy = (struct wr_cli_npy){.header_bytes = length, .n_rows = n_rows, .n_columns = n_columns};
    int code = wr_cli_file_open(&npy->file, path, ledger, err);
    if (code) return code;
#ifdef __linux__
    /* Takes the space now, so that a full disk is an error before the work and not after it; file systems without it are asked at the writes. */
    if (fallocate(npy->file.fd, 0, 0, (off_t)(length + bytes)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
        code = wr_err_errno(err, WEIR_E_WRITE, errno, "%s: cannot take %llu bytes", path, (unsigned long long)(length + bytes));
#endif
    if (code == 0) code = wr_cli_file_write(&npy->file, 0, header, length, err);
    if (code) wr_cli_file_discard(&npy->file);
    return code;
}

int wr_cli_npy_tile(struct wr_cli_npy *npy, uint64_t row, uint64_t n_rows, uint64_t column, uint64_t n_columns, const float *tile, weir_err *err)
{
    if (n_columns == npy->n_columns) /* rows follow each other without a gap */
        return wr_cli_file_write(&npy->file, npy->header_bytes + row * npy->n_columns * 4, tile, (size_t)(n_rows * n_columns * 4), err);
    int code = 0;
    for (uint64_t i = 0; code == 0 && i < n_rows; i++)
        code = wr_cli_file_write(&npy->file, npy->header_bytes + ((row + i) * npy->n_columns + column) * 4, tile + i * n_columns, (size_t)(n_columns * 4), err);
    return code;
}

int wr_cli_npy_hash(struct wr_cli_npy *npy, uint64_t *fnv64, weir_err *err)
{
    uint8_t buffer[16384];
    uint64_t hash = 0xcbf29ce484222325u, left = npy->n_rows * npy->n_columns * 4, offset = npy->header_bytes;
    while (left > 0) {
        ssize_t n = pread(npy->file.fd, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return wr_err_errno(err, WEIR_E_READ, n == 0 ? EIO : errno, "%s: cannot read it back", npy->file.path);
        for (ssize_t i = 0; i < n; i++) hash = (hash ^ buffer[i]) * 0x100000001b3u;
        left -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    *fnv64 = hash;
    return 0;
}
