/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory: a ledger of accounts, small allocations charged to an account, and one arena.
 *
 * Every byte that weir asks the system for is first reserved in an account. While accounts
 * are being sized (before the plan) an account has no limit; wr_ledger_limit fixes it, and
 * from then on an allocation beyond the limit fails with WEIR_E_BUDGET before the system is
 * asked. Inside a pass nothing may be allocated: the guard makes that abort in debug builds.
 */
#ifndef WR_BASE_MEM_H
#define WR_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

/* ACCOUNT(enum suffix, JSON name, what it holds) */
#define WR_ACCOUNTS(ACCOUNT)                                                                                                                                   \
    ACCOUNT(PROCESS, "process", "code, libraries, stacks, C library")                                                                                          \
    ACCOUNT(WEIGHTS, "weights_pinned", "weights that are read once")                                                                                           \
    ACCOUNT(RING, "ring", "slots that streamed weights pass through")                                                                                          \
    ACCOUNT(KV, "kv", "keys and values of the context")                                                                                                        \
    ACCOUNT(SCRATCH, "scratch", "activations and per-thread work space")                                                                                       \
    ACCOUNT(TOKENIZER, "tokenizer", "vocabulary and merges")                                                                                                   \
    ACCOUNT(META, "meta", "tensor catalog, metadata, plan")                                                                                                    \
    ACCOUNT(TEXT, "text", "prompts, ids, templates, output")                                                                                                   \
    ACCOUNT(DRAFT, "draft", "speculation: what proposes tokens, logits of a burst")

enum wr_account {
#define ACCOUNT(id, name, what) WR_ACCOUNT_##id,
    WR_ACCOUNTS(ACCOUNT)
#undef ACCOUNT
        WR_N_ACCOUNTS
};

const char *wr_account_name(enum wr_account);
const char *wr_account_description(enum wr_account);

/* Thread-safe: counters are atomic. `limit` is UINT64_MAX until fixed. */
struct wr_ledger {
    struct {
        _Atomic uint64_t used, peak;
        uint64_t limit;
    } account[WR_N_ACCOUNTS];
};

void wr_ledger_init(struct wr_ledger *);
void wr_ledger_limit(struct wr_ledger *, enum wr_account, uint64_t limit_bytes);
/* Charges `bytes`: 0, or WEIR_E_BUDGET naming the account, its limit and what was asked. */
int wr_ledger_reserve(struct wr_ledger *, enum wr_account, uint64_t bytes, weir_err *);
void wr_ledger_release(struct wr_ledger *, enum wr_account, uint64_t bytes);
uint64_t wr_ledger_used(const struct wr_ledger *, enum wr_account);
uint64_t wr_ledger_peak(const struct wr_ledger *, enum wr_account);

/* Small allocations. A header keeps size, account and ledger, so that free needs only the pointer; the charge is
 * size + WR_MEM_OVERHEAD, which covers the header and the C library's own. Zeroed. NULL on failure, with *err set
 * (WEIR_E_BUDGET or WEIR_E_NOMEM). Size 0 gives a valid pointer. Aligned to 16. */
#define WR_MEM_OVERHEAD 32
void *wr_mem_alloc(struct wr_ledger *, enum wr_account, size_t bytes, weir_err *);
/* count * size with overflow check. */
void *wr_mem_array(struct wr_ledger *, enum wr_account, size_t count, size_t size, weir_err *);
/* Grows or shrinks; new bytes are zeroed; `p` may not be NULL; on failure `p` stays valid. */
void *wr_mem_resize(void *p, size_t bytes, weir_err *);
void wr_mem_free(void *p); /* NULL is fine */
/* Gives memory that was freed back to the system, as far as the C library can. */
void wr_mem_trim(void);
char *wr_mem_strdup(struct wr_ledger *, enum wr_account, const char *, weir_err *);

/* The arena: one anonymous mapping, 2 MiB aligned, huge pages asked for, every page touched once at open (that is the
 * only moment it can fail), never grown. Regions are handed out in order and live as long as the arena. */
struct wr_arena {
    uint8_t *base;
    uint64_t bytes, used;
    void *mapping;
    uint64_t mapping_bytes;
    struct wr_ledger *ledger; /* of what was taken, given back by close */
    uint64_t taken[WR_N_ACCOUNTS];
};
#define WR_ARENA_ALIGN 4096
int wr_arena_open(struct wr_arena *, uint64_t bytes, weir_err *);
void wr_arena_close(struct wr_arena *);
/* A region of `bytes` rounded up to WR_ARENA_ALIGN, charged (rounded) to `account`; zeroed. NULL and WEIR_E_BUDGET when it does not fit. */
void *wr_arena_take(struct wr_arena *, struct wr_ledger *, enum wr_account, uint64_t bytes, weir_err *);

/* The no-allocation guard: between enter and leave, on any thread, wr_mem_* and wr_arena_* abort with `what` when
 * weir is built with WR_GUARD (debug and test builds); nested calls are fine. */
void wr_guard_enter(const char *what);
void wr_guard_leave(void);

/* Failure injection, for tests: the Nth call (1-based) from now of the given kind fails; if `persistent`, all later ones too.
 * n = 0 switches off. wr_fault_hit is what base/mem, base/team and io ask before they do the real thing. */
enum wr_fault_kind { WR_FAULT_ALLOC, WR_FAULT_READ, WR_FAULT_WRITE, WR_FAULT_THREAD, WR_N_FAULTS };
void wr_fault_set(enum wr_fault_kind, uint64_t n, bool persistent);
bool wr_fault_hit(enum wr_fault_kind);
uint64_t wr_fault_count(enum wr_fault_kind); /* calls since the last wr_fault_set */

/* Checked arithmetic for sizes that come from a file: false on overflow, *out untouched. */
static inline bool wr_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool wr_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
/* `align` is a power of two. The caller knows that x + align does not wrap. */
static inline uint64_t wr_round_up(uint64_t x, uint64_t align) { return (x + align - 1) & ~(align - 1); }
static inline uint64_t wr_round_down(uint64_t x, uint64_t align) { return x & ~(align - 1); }

#endif
