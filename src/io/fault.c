/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any other engine, with faults by script. What the system call gave is replaced where the core receives it (wr_io_result), so
 * the retry and fallback code that runs is the real one, in whichever thread. Bytes that a faulty call would not have
 * delivered are overwritten: a path that forgets to read them again shows.
 */
#include "io/core.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include "base/os.h"

struct wr_io_fault_script wr_io_fault_script;

struct wr_io_fault {
    struct wr_io_fault_script script; /* as it was at open */
    struct {
        struct wr_io_done done;
        uint64_t due_ns;
    } held[WR_IO_MAX_DEPTH]; /* a ring, in the order of due_ns */
    uint32_t held_head, n_held;
    uint32_t n_in_flight; /* submitted and not given to the caller */
};

/* splitmix64 of seed and request number: the same faults whichever thread comes first. */
static uint64_t random_of(uint32_t seed, uint64_t number)
{
    uint64_t x = (number + ((uint64_t)seed << 32)) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

int64_t wr_io_fault_result(const struct wr_io_fault *fault, struct wr_io_slot *slot, int64_t result)
{
    const struct wr_io_fault_script *script = &fault->script;
    uint8_t *dst = (uint8_t *)slot->request.dst + slot->got;
    bool only_direct = script->fail_errno == EINVAL || script->fail_errno == EOPNOTSUPP;
    if (slot->number >= script->fail_at && slot->number - script->fail_at < script->fail_count && !slot->failed_once && (slot->direct || !only_direct)) {
        slot->failed_once = true;
        if (result > 0) memset(dst, 0xA5, (size_t)result);
        return -script->fail_errno;
    }
    if (script->short_reads && !slot->shortened && result > 1) {
        slot->shortened = true;
        uint64_t r = random_of(script->seed, slot->number);
        int64_t cut = 1 + (int64_t)((r >> 1) % (uint64_t)(result - 1));
        if ((r & 1) != 0 && cut > 512) cut &= ~(int64_t)511; /* half of them where a direct read can go on */
        memset(dst + cut, 0xA5, (size_t)(result - cut));
        return cut;
    }
    return result;
}

static int fault_open(struct wr_io **out, const struct wr_io_config *config, weir_err *err)
{
    const char *name = config->inner != NULL ? config->inner : "auto";
    const struct wr_io_ops *ops;
    struct wr_io *io;
    weir_err why = {0};
    if (strcmp(name, "fault") == 0) return wr_err(err, WEIR_E_USAGE, "the fault engine cannot wrap itself; name another as inner");
    struct wr_io_fault *fault = wr_mem_alloc(config->ledger, WR_ACCOUNT_RING, sizeof *fault, &why);
    if (fault == NULL) {
        if (err != NULL) *err = why;
        return why.code;
    }
    int code = wr_io_open(&io, &ops, name, config, err);
    if (code != 0) {
        wr_mem_free(fault);
        return code;
    }
    fault->script = wr_io_fault_script;
    io->fault = fault;
    *out = io;
    return 0;
}

static void fault_close(struct wr_io *io)
{
    struct wr_io_fault *fault = io->fault;
    io->ops->close(io);
    wr_mem_free(fault);
}

static bool fault_submit(struct wr_io *io, const struct wr_io_request *request)
{
    struct wr_io_fault *fault = io->fault;
    if (fault->n_in_flight == io->config.depth || !io->ops->submit(io, request)) return false;
    fault->n_in_flight++;
    return true;
}

static uint32_t release(struct wr_io_fault *fault, struct wr_io_done *done, uint32_t max)
{
    uint32_t n = 0;
    uint64_t now = wr_clock_ns();
    while (n < max && fault->n_held > 0 && fault->held[fault->held_head].due_ns <= now) {
        done[n++] = fault->held[fault->held_head].done;
        fault->held_head = (fault->held_head + 1) % WR_IO_MAX_DEPTH;
        fault->n_held--;
    }
    return n;
}

/* Completions of the wrapped engine wait here until they are due. */
static uint32_t wait_delayed(struct wr_io *io, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns)
{
    struct wr_io_fault *fault = io->fault;
    uint64_t deadline = wr_io_deadline(timeout_ns);
    for (;;) {
        uint32_t n = release(fault, done, max);
        if (n > 0 || fault->n_in_flight == 0) return n;
        uint64_t now = wr_clock_ns(), until = deadline;
        if (fault->n_held > 0 && fault->held[fault->held_head].due_ns < until) until = fault->held[fault->held_head].due_ns;
        uint64_t left = until == UINT64_MAX ? UINT64_MAX : until > now ? until - now : 0;
        struct wr_io_done one;
        bool inner_busy = fault->n_in_flight > fault->n_held;
        if (inner_busy && io->ops->wait(io, &one, 1, left) == 1) {
            uint32_t at = (fault->held_head + fault->n_held++) % WR_IO_MAX_DEPTH;
            fault->held[at].done = one;
            fault->held[at].due_ns = wr_clock_ns() + fault->script.delay_ns;
            continue;
        }
        if (!inner_busy && left > 0) {
            struct timespec pause = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
            nanosleep(&pause, NULL);
        }
        if (deadline != UINT64_MAX && wr_clock_ns() >= deadline) return release(fault, done, max);
    }
}

static uint32_t fault_wait(struct wr_io *io, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns)
{
    struct wr_io_fault *fault = io->fault;
    uint32_t n = fault->script.delay_ns > 0 ? wait_delayed(io, done, max, timeout_ns) : io->ops->wait(io, done, max, timeout_ns);
    fault->n_in_flight -= n;
    return n;
}

const struct wr_io_ops wr_io_ops_fault = {
    .name = "fault",
    .description = "another engine, with faults by script",
    .diagnostic = true,
    .open = fault_open,
    .close = fault_close,
    .submit = fault_submit,
    .wait = fault_wait,
    .stats = wr_io_core_stats,
};
