/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_uring: one ring, used by the engine's own thread alone, so there is no lock. Buffers and files are registered where the
 * system allows it (a memlock limit may refuse); without that reads are plain, within 3 % of the same speed on huge pages.
 */
#include "io/core.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <time.h>
#include "base/os.h"

#define PIECE_BYTES (UINT64_C(1) << 30) /* the kernel takes registered buffers of up to 1 GiB */
#define MAX_PIECES 64                   /* memory beyond them is read plainly */
#define RING_BYTES 16384                /* two rings of up to 64 and 128 entries: 3 pages that the kernel maps here, rounded up */

struct uring {
    struct wr_io io;
    struct io_uring ring;
    uint32_t n_pieces; /* registered buffers; 0: none */
    bool fixed_files;
    int broken; /* errno of the ring itself, after which nothing is submitted any more */
    int fds[];  /* [n_files][2]: buffered, direct */
};

static int ring_open(struct io_uring *ring, unsigned depth)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int e = io_uring_queue_init_params(depth, ring, &params);
    if (e < 0) return -e;
    if ((params.features & IORING_FEAT_RW_CUR_POS) == 0) { /* Linux 5.6, which brought the plain read operation */
        io_uring_queue_exit(ring);
        return ENOSYS;
    }
    return 0;
}

bool wr_io_uring_available(void)
{
    struct io_uring ring;
    if (ring_open(&ring, 1) != 0) return false;
    io_uring_queue_exit(&ring);
    return true;
}

/* ---- open, close ---------------------------------------------------------------------- */

static void register_memory(struct uring *u)
{
    const struct wr_io_config *config = &u->io.config;
    struct iovec piece[MAX_PIECES];
    uint32_t n = 0;
    for (uint64_t at = 0; at < config->memory_bytes && n < MAX_PIECES; at += PIECE_BYTES, n++) {
        uint64_t left = config->memory_bytes - at;
        piece[n] = (struct iovec){.iov_base = (uint8_t *)config->memory + at, .iov_len = left < PIECE_BYTES ? left : PIECE_BYTES};
    }
    if (n == 0) return;
    int e = io_uring_register_buffers(&u->ring, piece, n);
    if (e == 0) {
        u->n_pieces = n;
    } else {
        weir_err words;
        wr_err_errno(&words, WEIR_E_NOMEM, -e, "io_uring cannot register %llu bytes of memory (see ulimit -l), reading into it plainly",
            (unsigned long long)config->memory_bytes);
        wr_log(config->log, WEIR_LOG_WARN, "%s", words.text);
    }
}

static void uring_close(struct wr_io *io)
{
    struct uring *u = (struct uring *)io;
    struct wr_io_done done[8];
    while (!wr_io_idle(io)) io->ops->wait(io, done, 8, UINT64_MAX);
    io_uring_queue_exit(&u->ring);
    wr_ledger_release(io->config.ledger, WR_ACCOUNT_RING, RING_BYTES);
    wr_mem_free(u);
}

static int uring_open(struct wr_io **out, const struct wr_io_config *config, weir_err *err)
{
    struct wr_io *io;
    uint64_t fds_bytes;
    if (!wr_mul_u64(config->n_files, 2 * sizeof(int), &fds_bytes)) return wr_err(err, WEIR_E_USAGE, "too many files: %u", config->n_files);
    int code = wr_io_core_open(&io, &wr_io_ops_uring, config, sizeof(struct uring) + fds_bytes, err);
    if (code != 0) return code;
    struct uring *u = (struct uring *)io;
    code = wr_ledger_reserve(config->ledger, WR_ACCOUNT_RING, RING_BYTES, err);
    if (code != 0) goto fail;
    int e = ring_open(&u->ring, config->depth);
    if (e != 0) {
        wr_ledger_release(config->ledger, WR_ACCOUNT_RING, RING_BYTES);
        code = e == EMFILE || e == ENFILE ? wr_err_errno(err, WEIR_E_OPEN, e, "io_uring needs a file descriptor; raise their limit (ulimit -n)")
                                          : wr_err_errno(err, WEIR_E_OPEN, e, "io_uring cannot be used here, --io pread can");
        goto fail;
    }
    register_memory(u);
    for (uint32_t i = 0; i < config->n_files; i++) {
        u->fds[2 * i] = config->files[i].fd_buffered;
        u->fds[2 * i + 1] = config->files[i].fd_direct;
    }
    /* Saves a table look-up a read; where it is refused nothing is lost that anybody could notice. */
    u->fixed_files = config->n_files > 0 && io_uring_register_files(&u->ring, u->fds, 2 * config->n_files) == 0;
    *out = io;
    return 0;
fail:
    wr_mem_free(io);
    return code;
}

/* ---- reading -------------------------------------------------------------------------- */

/* Everything in flight ends as failed with the ring's own error: no completion will come for it. */
static void give_up(struct uring *u, int errno_value)
{
    struct wr_io *io = &u->io;
    u->broken = errno_value;
    for (uint64_t busy = io->all_slots & ~io->free_slots; busy != 0; busy &= busy - 1) {
        struct wr_io_slot *slot = &io->slot[__builtin_ctzll(busy)];
        if (slot->finished) continue;
        wr_io_fail(slot, errno_value);
        wr_io_finish(io, slot);
    }
}

/* Hands prepared entries to the kernel. What it cannot take now (EAGAIN, EBUSY) stays prepared for the next call. */
static void flush(struct uring *u)
{
    while (u->broken == 0 && io_uring_sq_ready(&u->ring) > 0) {
        int n = io_uring_submit(&u->ring);
        if (n == -EINTR || n > 0) continue;
        if (n == 0 || n == -EAGAIN || n == -EBUSY) return;
        give_up(u, -n);
    }
}

static void issue(struct uring *u, struct wr_io_slot *slot)
{
    struct io_uring_sqe *sqe = u->broken == 0 ? io_uring_get_sqe(&u->ring) : NULL;
    if (sqe == NULL) { /* never for want of entries: there are as many as slots */
        wr_io_fail(slot, u->broken != 0 ? u->broken : EBUSY);
        wr_io_finish(&u->io, slot);
        return;
    }
    struct wr_io_step step = wr_io_next(&u->io, slot);
    const uint8_t *memory = u->io.config.memory;
    int fd = u->fixed_files ? (int)(2 * step.file + step.direct) : step.fd;
    bool inside = step.dst >= memory && step.dst < memory + u->io.config.memory_bytes;
    uint64_t at = inside ? (uint64_t)(step.dst - memory) : 0, piece = at / PIECE_BYTES;
    if (inside && piece < u->n_pieces && (at + step.bytes - 1) / PIECE_BYTES == piece && step.bytes <= u->io.config.memory_bytes - at)
        io_uring_prep_read_fixed(sqe, fd, step.dst, step.bytes, step.offset, (int)piece);
    else
        io_uring_prep_read(sqe, fd, step.dst, step.bytes, step.offset);
    if (u->fixed_files) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, (uint64_t)(slot - u->io.slot));
}

static bool uring_submit(struct wr_io *io, const struct wr_io_request *request)
{
    struct uring *u = (struct uring *)io;
    struct wr_io_slot *slot = NULL;
    if (!wr_io_begin(io, request, &slot)) return false;
    if (slot != NULL) {
        issue(u, slot);
        flush(u);
    }
    return true;
}

static void reap(struct uring *u)
{
    struct io_uring_cqe *cqe;
    while (u->broken == 0 && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        struct wr_io_slot *slot = &u->io.slot[io_uring_cqe_get_data64(cqe)];
        int result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (wr_io_result(&u->io, slot, result))
            wr_io_finish(&u->io, slot);
        else
            issue(u, slot);
    }
    flush(u);
}

/* Blocks until a completion is there or `ns` passed. */
static void sleep_in_kernel(struct uring *u, uint64_t ns)
{
    struct io_uring_cqe *cqe;
    struct __kernel_timespec limit = {.tv_sec = (long long)(ns / 1000000000u), .tv_nsec = (long long)(ns % 1000000000u)};
    int e = ns == UINT64_MAX ? io_uring_wait_cqe(&u->ring, &cqe) : io_uring_wait_cqe_timeout(&u->ring, &cqe, &limit);
    if (e < 0 && e != -ETIME && e != -EINTR && e != -EAGAIN && e != -EBUSY) give_up(u, -e);
}

static uint32_t uring_wait(struct wr_io *io, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns)
{
    struct uring *u = (struct uring *)io;
    uint64_t deadline = wr_io_deadline(timeout_ns);
    uint32_t n;
    for (;;) {
        reap(u);
        n = wr_io_deliver(io, done, max);
        if (n > 0 || wr_io_idle(io)) break;
        uint64_t now = deadline == UINT64_MAX ? 0 : wr_clock_ns();
        if (now >= deadline) break;
        uint64_t left = deadline == UINT64_MAX ? UINT64_MAX : deadline - now;
        /* Entries that the kernel could not take yet bring no completion: look again soon. */
        if (io_uring_sq_ready(&u->ring) > 0 && left > 1000000) left = 1000000;
        sleep_in_kernel(u, left);
    }
    wr_io_notice(io);
    return n;
}

const struct wr_io_ops wr_io_ops_uring = {
    .name = "uring",
    .description = "io_uring (Linux 5.6 and later)",
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .wait = uring_wait,
    .stats = wr_io_core_stats,
};
