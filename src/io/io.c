/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine table and what all engines share (core.h). Invariant: a request completes with code 0 only if every byte of
 * it that was inside the file at open has been read, and the bytes past the end of the file are zero.
 */
#include "io/core.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/os.h"

/* An engine that gets EINTR or EAGAIN for ever must not hang: with 1 ms after each EAGAIN this gives up after about a second. */
#define MAX_RETRIES 1000

static const struct wr_io_ops *const engines[] = {
#define IO_ENGINE(name) &wr_io_ops_##name,
#include "io/engines.def"
#undef IO_ENGINE
};
#define N_ENGINES (sizeof engines / sizeof engines[0])

const struct wr_io_ops *wr_io_find(const char *name)
{
    if (strcmp(name, "auto") == 0) {
#ifdef WR_HAVE_URING
        if (wr_io_uring_available()) return &wr_io_ops_uring;
#endif
        return &wr_io_ops_pread;
    }
    for (size_t i = 0; i < N_ENGINES; i++)
        if (strcmp(engines[i]->name, name) == 0) return engines[i];
    return NULL;
}

static int no_such_engine(const char *name, weir_err *err)
{
    char names[96] = "auto";
    size_t n = strlen(names);
    for (size_t i = 0; i < N_ENGINES; i++)
        if (!engines[i]->diagnostic && n < sizeof names) n += (size_t)snprintf(names + n, sizeof names - n, ", %s", engines[i]->name);
    return wr_err(err, WEIR_E_USAGE, "there is no I/O engine '%s'; those of this build are %s", name, names);
}

int wr_io_open(struct wr_io **out, const struct wr_io_ops **ops, const char *name, const struct wr_io_config *config, weir_err *err)
{
    bool automatic = strcmp(name, "auto") == 0;
    const struct wr_io_ops *found = automatic ? &wr_io_ops_pread : wr_io_find(name);
    if (found == NULL) return no_such_engine(name, err);
#ifdef WR_HAVE_URING
    if (automatic) {
        weir_err why = {0};
        int refused = wr_io_ops_uring.open(out, config, &why);
        if (refused == WEIR_E_OPEN) {
            wr_log(config->log, WEIR_LOG_WARN, "%s; reading with pread", why.text);
        } else if (refused != 0) {
            if (err != NULL) *err = why;
            return refused;
        } else {
            *ops = &wr_io_ops_uring;
            return 0;
        }
    }
#endif
    int code = found->open(out, config, err);
    if (code == 0) *ops = found;
    return code;
}

/* ---- opening -------------------------------------------------------------------------- */

int wr_io_core_open(struct wr_io **out, const struct wr_io_ops *ops, const struct wr_io_config *config, size_t bytes, weir_err *err)
{
    weir_err why = {0};
    if (config->depth < 1 || config->depth > WR_IO_MAX_DEPTH) return wr_err(err, WEIR_E_USAGE, "I/O depth %u is outside 1..%d", config->depth, WR_IO_MAX_DEPTH);
    struct wr_io *io = wr_mem_alloc(config->ledger, WR_ACCOUNT_RING, bytes, &why);
    if (io == NULL) {
        if (err != NULL) *err = why;
        return why.code;
    }
    io->ops = ops;
    io->config = *config;
    io->all_slots = config->depth == 64 ? UINT64_MAX : (UINT64_C(1) << config->depth) - 1;
    io->free_slots = io->all_slots;
    *out = io;
    return 0;
}

void wr_io_core_stats(const struct wr_io *io, uint64_t *bytes, uint64_t *reads, bool *direct)
{
    *bytes = atomic_load_explicit(&io->bytes, memory_order_relaxed);
    *reads = atomic_load_explicit(&io->reads, memory_order_relaxed);
    *direct = !atomic_load_explicit(&io->read_buffered, memory_order_relaxed) && !atomic_load_explicit(&io->refused, memory_order_relaxed);
    for (uint32_t i = 0; i < io->config.n_files; i++)
        if (io->config.files[i].fd_direct < 0) *direct = false;
}

uint64_t wr_io_deadline(uint64_t timeout_ns)
{
    uint64_t deadline = UINT64_MAX;
    if (timeout_ns == 0) return 0;
    wr_add_u64(wr_clock_ns(), timeout_ns, &deadline);
    return deadline;
}

/* ---- one request ---------------------------------------------------------------------- */

static enum wr_io_failure check_request(const struct wr_io_config *config, const struct wr_io_request *request)
{
    uint64_t end;
    if (request->file < config->files || request->file >= config->files + config->n_files) return WR_IO_MALFORMED;
    if (request->bytes == 0 || (request->offset | request->bytes | (uintptr_t)request->dst) % WR_IO_ALIGN != 0) return WR_IO_MALFORMED;
    if (!wr_add_u64(request->offset, request->bytes, &end)) return WR_IO_MALFORMED;
    if (end > request->file->bytes && end - request->file->bytes >= WR_IO_ALIGN) return WR_IO_BEYOND_END;
    return WR_IO_OK;
}

bool wr_io_begin(struct wr_io *io, const struct wr_io_request *request, struct wr_io_slot **out)
{
    if (io->free_slots == 0) return false;
    int i = __builtin_ctzll(io->free_slots);
    io->free_slots &= ~(UINT64_C(1) << i);
    struct wr_io_slot *slot = &io->slot[i];
    *slot = (struct wr_io_slot){.request = *request, .number = ++io->n_requests};
    *out = slot;
    slot->failure = check_request(&io->config, request);
    if (slot->failure == WR_IO_OK) {
        uint64_t left = request->file->bytes - request->offset;
        slot->wanted = left < request->bytes ? (uint32_t)left : request->bytes;
        if (wr_fault_hit(WR_FAULT_READ)) wr_io_fail(slot, EIO);
    }
    if (slot->failure != WR_IO_OK) {
        wr_io_finish(io, slot);
        *out = NULL;
    }
    return true;
}

struct wr_io_step wr_io_next(struct wr_io *io, struct wr_io_slot *slot)
{
    const struct wr_file *file = slot->request.file;
    uint32_t left = slot->wanted - slot->got;
    slot->direct = file->fd_direct >= 0 && !slot->buffered && !atomic_load(&io->refused);
    if (!slot->direct) atomic_store_explicit(&io->read_buffered, true, memory_order_relaxed);
    return (struct wr_io_step){
        .fd = slot->direct ? file->fd_direct : file->fd_buffered,
        .file = (uint32_t)(file - io->config.files),
        .direct = slot->direct,
        .offset = slot->request.offset + slot->got,
        .bytes = slot->direct ? (uint32_t)wr_round_up(left, file->align) : left,
        .dst = (uint8_t *)slot->request.dst + slot->got,
    };
}

static bool retry(struct wr_io_slot *slot, int errno_value)
{
    if (++slot->n_retries > MAX_RETRIES) return false;
    if (errno_value == EAGAIN) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    return true;
}

void wr_io_fail(struct wr_io_slot *slot, int errno_value)
{
    slot->failure = WR_IO_ERRNO;
    slot->errno_value = errno_value;
}

bool wr_io_result(struct wr_io *io, struct wr_io_slot *slot, int64_t result)
{
    const struct wr_file *file = slot->request.file;
    if (io->fault != NULL) result = wr_io_fault_result(io->fault, slot, result);
    if (result < 0) {
        int e = (int)-result;
        if (slot->direct && (e == EINVAL || e == EOPNOTSUPP || e == EFAULT)) {
            if (file->direct_required) {
                wr_io_fail(slot, e);
                slot->failure = WR_IO_DIRECT_REFUSED;
                return true;
            }
            atomic_store(&io->refused_errno, e);
            atomic_store(&io->refused, true);
            return false;
        }
        if ((e == EINTR || e == EAGAIN) && retry(slot, e)) return false;
        wr_io_fail(slot, e);
        return true;
    }
    if (result == 0) {
        slot->failure = WR_IO_TRUNCATED;
        return true;
    }
    uint64_t got = slot->got + (uint64_t)result;
    if (got >= slot->wanted) {
        slot->got = slot->wanted;
        memset((uint8_t *)slot->request.dst + slot->wanted, 0, slot->request.bytes - slot->wanted);
        return true;
    }
    slot->n_retries = 0;
    if (slot->direct && got % file->align != 0) {
        /* The next direct read has to start on a boundary again; where that would go over the same bytes for ever, buffered. */
        uint64_t aligned = wr_round_down(got, file->align);
        if (aligned == slot->got)
            slot->buffered = true;
        else
            got = aligned;
    }
    slot->got = (uint32_t)got;
    return false;
}

/* ---- completions ---------------------------------------------------------------------- */

void wr_io_finish(struct wr_io *io, struct wr_io_slot *slot)
{
    slot->finished = true;
    io->ready[(io->ready_head + io->n_ready) % WR_IO_MAX_DEPTH] = (uint32_t)(slot - io->slot);
    io->n_ready++;
}

static void describe(const struct wr_io_slot *slot, struct wr_io_done *done)
{
    const struct wr_io_request *r = &slot->request;
    unsigned long long offset = r->offset, got_to = r->offset + slot->got;
    done->code = WEIR_E_READ;
    if (slot->failure == WR_IO_MALFORMED || slot->failure == WR_IO_BEYOND_END) {
        const char *why = slot->failure == WR_IO_MALFORMED ? "not aligned to 4096 bytes, or of a file that is not open" : "beyond the end of the file";
        wr_err(&done->err, WEIR_E_READ, "read request %llu (%u bytes at offset %llu) is %s", (unsigned long long)slot->number, r->bytes, offset, why);
        return;
    }
    const char *label = wr_file_label(r->file->path);
    if (slot->failure == WR_IO_TRUNCATED)
        wr_err(&done->err, WEIR_E_READ, "%s was truncated while in use: it had %llu bytes, now it ends near offset %llu", label,
            (unsigned long long)r->file->bytes, got_to);
    else if (slot->failure == WR_IO_DIRECT_REFUSED)
        wr_err_errno(&done->err, WEIR_E_READ, slot->errno_value, "%s refuses direct I/O at offset %llu (use --direct auto)", label, got_to);
    else
        wr_err_errno(&done->err, WEIR_E_READ, slot->errno_value, "cannot read %u bytes of %s at offset %llu", r->bytes - slot->got, label, got_to);
}

uint32_t wr_io_deliver(struct wr_io *io, struct wr_io_done *done, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && io->n_ready > 0) {
        uint32_t i = io->ready[io->ready_head];
        const struct wr_io_slot *slot = &io->slot[i];
        io->ready_head = (io->ready_head + 1) % WR_IO_MAX_DEPTH;
        io->n_ready--;
        done[n].tag = slot->request.tag;
        done[n].code = done[n].err.code = 0;
        done[n].err.text[0] = '\0';
        if (slot->failure == WR_IO_OK) {
            atomic_fetch_add_explicit(&io->bytes, slot->request.bytes, memory_order_relaxed);
            atomic_fetch_add_explicit(&io->reads, 1, memory_order_relaxed);
        } else {
            describe(slot, &done[n]);
        }
        io->free_slots |= UINT64_C(1) << i;
        n++;
    }
    return n;
}

void wr_io_notice(struct wr_io *io)
{
    if (io->noticed || !atomic_load(&io->refused)) return;
    io->noticed = true;
    weir_err words;
    wr_err_errno(&words, WEIR_E_READ, atomic_load(&io->refused_errno), "a direct read was refused, reading through the page cache from now on");
    if (io->config.log != NULL) wr_log(io->config.log, WEIR_LOG_WARN, "%s", words.text);
}
