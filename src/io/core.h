/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all engines share: the slots of the requests in flight, and one request's way from the first system call to its
 * completion (short reads, EINTR, the fallback from direct to buffered, the end of file). An engine only decides who
 * issues the system call and who waits:
 *
 *   submit:  wr_io_begin -> slot;  then, until wr_io_result says true:  wr_io_next -> system call -> wr_io_result
 *            then wr_io_finish
 *   wait:    wr_io_deliver, and wr_io_notice outside of every lock
 *
 * begin, finish and deliver change the lists and want one thread or one lock; next and result touch their slot and atomics.
 */
#ifndef WR_IO_CORE_H
#define WR_IO_CORE_H

#include <stdatomic.h>
#include "io/io.h"

#define IO_ENGINE(name) extern const struct wr_io_ops wr_io_ops_##name;
#include "io/engines.def"
#undef IO_ENGINE

enum wr_io_failure { WR_IO_OK, WR_IO_ERRNO, WR_IO_TRUNCATED, WR_IO_MALFORMED, WR_IO_BEYOND_END, WR_IO_DIRECT_REFUSED };

struct wr_io_slot {
    struct wr_io_request request;
    uint64_t number;    /* of the request, from 1 */
    uint32_t wanted;    /* bytes of the request that lie inside the file */
    uint32_t got;       /* of them, read so far */
    uint32_t n_retries; /* system calls in a row that brought nothing */
    int errno_value;
    enum wr_io_failure failure;
    bool direct;   /* the last system call was */
    bool buffered; /* the rest of this request goes through the page cache */
    bool finished;
    bool failed_once, shortened; /* fault script */
    double done_s;               /* sim */
};

struct wr_io_fault; /* fault.c */

/* The beginning of every engine's own struct. */
struct wr_io {
    const struct wr_io_ops *ops; /* of the engine that reads, also where fault wraps it */
    struct wr_io_config config;
    struct wr_io_fault *fault;      /* NULL: none */
    uint64_t all_slots, free_slots; /* bit i: slot i */
    uint64_t n_requests;
    uint32_t ready[WR_IO_MAX_DEPTH], ready_head, n_ready; /* finished slots, a ring */
    bool noticed;
    _Atomic bool refused; /* a direct read was: everything is buffered from now on */
    _Atomic int refused_errno;
    _Atomic bool read_buffered; /* some read was */
    _Atomic uint64_t bytes, reads;
    struct wr_io_slot slot[WR_IO_MAX_DEPTH];
};

struct wr_io_step {
    int fd;
    uint32_t file; /* index in config.files */
    bool direct;
    uint64_t offset;
    uint32_t bytes;
    uint8_t *dst;
};

/* Allocates an engine's struct (`bytes` >= sizeof(struct wr_io)) in the ring account and sets up the part above. */
int wr_io_core_open(struct wr_io **, const struct wr_io_ops *, const struct wr_io_config *, size_t bytes, weir_err *);
/* False: all slots are taken. *slot is NULL where the request is over already (malformed, injected failure). */
bool wr_io_begin(struct wr_io *, const struct wr_io_request *, struct wr_io_slot **slot);
struct wr_io_step wr_io_next(struct wr_io *, struct wr_io_slot *);
/* `result`: bytes read or a negative errno. True: the request is over. */
bool wr_io_result(struct wr_io *, struct wr_io_slot *, int64_t result);
/* Ends a request as failed whose system call could not be issued. */
void wr_io_fail(struct wr_io_slot *, int errno_value);
void wr_io_finish(struct wr_io *, struct wr_io_slot *);
uint32_t wr_io_deliver(struct wr_io *, struct wr_io_done *, uint32_t max);
void wr_io_notice(struct wr_io *);
static inline bool wr_io_idle(const struct wr_io *io) { return io->free_slots == io->all_slots; }
/* The ops entry that all engines have in common. */
void wr_io_core_stats(const struct wr_io *, uint64_t *bytes, uint64_t *reads, bool *direct);
/* The moment `timeout_ns` from now; UINT64_MAX for no limit. */
uint64_t wr_io_deadline(uint64_t timeout_ns);

/* Sets fd_direct and align of a file whose fd_buffered and fingerprint are set, by opening `path` once more. NULL: it worked; else the reason, and
 * errno_value (0: none). */
const char *wr_file_open_direct(struct wr_file *, const char *path, int flags, int *errno_value);
bool wr_file_in_memory(int fd); /* tmpfs and the like */

bool wr_io_uring_available(void); /* asks the kernel for a ring */

/* What the script makes of the result of a system call (in fault.c). */
int64_t wr_io_fault_result(const struct wr_io_fault *, struct wr_io_slot *, int64_t result);

#endif
