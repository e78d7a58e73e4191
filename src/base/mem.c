/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger, small allocations, the arena, the guard and failure injection: the only file that asks the system for memory.
 * The ledger is charged first, the system asked second, so a budget error never costs a byte.
 */
#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; the C library of Debian 12 knows it, older ones do not */
#endif

#define HUGE_BYTES ((uint64_t)2 << 20)

/* ---- ledger ---- */

static const struct {
    const char *name, *description;
} accounts[WR_N_ACCOUNTS] = {
#define ACCOUNT(id, name, what) {name, what},
    WR_ACCOUNTS(ACCOUNT)
#undef ACCOUNT
};

const char *wr_account_name(enum wr_account a) { return accounts[a].name; }
const char *wr_account_description(enum wr_account a) { return accounts[a].description; }

void wr_ledger_init(struct wr_ledger *ledger)
{
    for (int i = 0; i < WR_N_ACCOUNTS; i++) {
        atomic_init(&ledger->account[i].used, 0);
        atomic_init(&ledger->account[i].peak, 0);
        ledger->account[i].limit = UINT64_MAX;
    }
}

void wr_ledger_limit(struct wr_ledger *ledger, enum wr_account a, uint64_t limit_bytes) { ledger->account[a].limit = limit_bytes; }

int wr_ledger_reserve(struct wr_ledger *ledger, enum wr_account a, uint64_t bytes, weir_err *err)
{
    uint64_t limit = ledger->account[a].limit;
    uint64_t used = atomic_load_explicit(&ledger->account[a].used, memory_order_relaxed), sum;
    do {
        if (!wr_add_u64(used, bytes, &sum) || sum > limit)
            return wr_err(err, WEIR_E_BUDGET,
                "account %s: %" PRIu64 " bytes more than its limit of %" PRIu64 " (%" PRIu64 " in use, %" PRIu64 " asked); raise --memory", accounts[a].name,
                used >= limit ? bytes : bytes - (limit - used), limit, used, bytes);
    } while (!atomic_compare_exchange_weak_explicit(&ledger->account[a].used, &used, sum, memory_order_relaxed, memory_order_relaxed));
    uint64_t peak = atomic_load_explicit(&ledger->account[a].peak, memory_order_relaxed);
    while (peak < sum && !atomic_compare_exchange_weak_explicit(&ledger->account[a].peak, &peak, sum, memory_order_relaxed, memory_order_relaxed)) {}
    return 0;
}

void wr_ledger_release(struct wr_ledger *ledger, enum wr_account a, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&ledger->account[a].used, bytes, memory_order_relaxed);
    assert(before >= bytes);
    (void)before;
}

uint64_t wr_ledger_used(const struct wr_ledger *ledger, enum wr_account a) { return atomic_load_explicit(&ledger->account[a].used, memory_order_relaxed); }
uint64_t wr_ledger_peak(const struct wr_ledger *ledger, enum wr_account a) { return atomic_load_explicit(&ledger->account[a].peak, memory_order_relaxed); }

/* ---- failure injection ---- */

static struct {
    _Atomic uint64_t at, count;
    _Atomic bool persistent;
} faults[WR_N_FAULTS];

void wr_fault_set(enum wr_fault_kind kind, uint64_t n, bool persistent)
{
    atomic_store(&faults[kind].at, 0);
    atomic_store(&faults[kind].count, 0);
    atomic_store(&faults[kind].persistent, persistent);
    atomic_store(&faults[kind].at, n);
}

bool wr_fault_hit(enum wr_fault_kind kind)
{
    uint64_t n = atomic_fetch_add_explicit(&faults[kind].count, 1, memory_order_relaxed) + 1;
    uint64_t at = atomic_load_explicit(&faults[kind].at, memory_order_relaxed);
    return at != 0 && (n == at || (n > at && atomic_load_explicit(&faults[kind].persistent, memory_order_relaxed)));
}

uint64_t wr_fault_count(enum wr_fault_kind kind) { return atomic_load(&faults[kind].count); }

/* ---- guard ---- */

#ifdef WR_GUARD
static _Atomic int guard_depth;
static const char *_Atomic guard_what;

void wr_guard_enter(const char *what)
{
    atomic_store(&guard_what, what);
    atomic_fetch_add(&guard_depth, 1);
}

void wr_guard_leave(void)
{
    int before = atomic_fetch_sub(&guard_depth, 1);
    assert(before > 0);
    (void)before;
}

static void say(const char *text)
{
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written;
}

static void guard_check(const char *function)
{
    if (atomic_load(&guard_depth) == 0) return;
    const char *what = atomic_load(&guard_what);
    say("weir: ");
    say(function);
    say(" called inside ");
    say(what != NULL ? what : "a pass");
    say(", where nothing may be allocated\n");
    abort();
}
#else
void wr_guard_enter(const char *what) { (void)what; }
void wr_guard_leave(void) {}
static void guard_check(const char *function) { (void)function; }
#endif

/* ---- small allocations ---- */

/* 16 bytes, so that what follows keeps malloc's alignment; the C library adds 8 and rounds up to 16, on average 31.5 in all. */
struct header {
    uint64_t bytes_and_account; /* bytes << 8 | account */
    struct wr_ledger *ledger;
};
_Static_assert(sizeof(struct header) == 16 && WR_MEM_OVERHEAD >= sizeof(struct header) + 8, "header");
#define MAX_BYTES ((size_t)1 << 48)

static struct header *header_of(void *p) { return (struct header *)p - 1; }
static size_t bytes_of(const struct header *h) { return (size_t)(h->bytes_and_account >> 8); }
static enum wr_account account_of(const struct header *h) { return (enum wr_account)(h->bytes_and_account & 0xff); }

static int refuse(enum wr_account a, size_t bytes, weir_err *err)
{
    return wr_err(err, WEIR_E_NOMEM, "account %s: the system refused %zu bytes; free memory or lower --memory", accounts[a].name, bytes);
}

void *wr_mem_alloc(struct wr_ledger *ledger, enum wr_account a, size_t bytes, weir_err *err)
{
    guard_check("wr_mem_alloc");
    if (bytes > MAX_BYTES) {
        refuse(a, bytes, err);
        return NULL;
    }
    if (wr_ledger_reserve(ledger, a, bytes + WR_MEM_OVERHEAD, err) != 0) return NULL;
    struct header *h = wr_fault_hit(WR_FAULT_ALLOC) ? NULL : calloc(1, sizeof *h + bytes);
    if (h == NULL) {
        wr_ledger_release(ledger, a, bytes + WR_MEM_OVERHEAD);
        refuse(a, bytes, err);
        return NULL;
    }
    h->bytes_and_account = (uint64_t)bytes << 8 | a;
    h->ledger = ledger;
    return h + 1;
}

void *wr_mem_array(struct wr_ledger *ledger, enum wr_account a, size_t count, size_t size, weir_err *err)
{
    uint64_t bytes;
    if (!wr_mul_u64(count, size, &bytes)) {
        wr_err(err, WEIR_E_NOMEM, "account %s: %zu elements of %zu bytes exceed the address space", accounts[a].name, count, size);
        return NULL;
    }
    return wr_mem_alloc(ledger, a, bytes, err);
}

void *wr_mem_resize(void *p, size_t bytes, weir_err *err)
{
    guard_check("wr_mem_resize");
    struct header *h = header_of(p);
    struct wr_ledger *ledger = h->ledger;
    enum wr_account a = account_of(h);
    size_t old = bytes_of(h);
    if (bytes > MAX_BYTES) {
        refuse(a, bytes, err);
        return NULL;
    }
    if (bytes > old && wr_ledger_reserve(ledger, a, bytes - old, err) != 0) return NULL;
    struct header *grown = wr_fault_hit(WR_FAULT_ALLOC) ? NULL : realloc(h, sizeof *h + bytes);
    if (grown == NULL) {
        if (bytes > old) wr_ledger_release(ledger, a, bytes - old);
        refuse(a, bytes, err);
        return NULL;
    }
    if (bytes < old)
        wr_ledger_release(ledger, a, old - bytes);
    else
        memset((uint8_t *)(grown + 1) + old, 0, bytes - old);
    grown->bytes_and_account = (uint64_t)bytes << 8 | a;
    return grown + 1;
}

void wr_mem_free(void *p)
{
    if (p == NULL) return;
    guard_check("wr_mem_free");
    struct header *h = header_of(p);
    wr_ledger_release(h->ledger, account_of(h), bytes_of(h) + WR_MEM_OVERHEAD);
    free(h);
}

char *wr_mem_strdup(struct wr_ledger *ledger, enum wr_account a, const char *text, weir_err *err)
{
    size_t n = strlen(text) + 1;
    char *copy = wr_mem_alloc(ledger, a, n, err);
    if (copy != NULL) memcpy(copy, text, n);
    return copy;
}

void wr_mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* ---- arena ---- */

/* Every page is written once, so that memory that is not there fails here and not in the middle of a pass. */
static int populate(uint8_t *base, uint64_t bytes)
{
    for (;;) {
        if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return 0;
        if (errno == EINTR || errno == EAGAIN) continue;
        if (errno != EINVAL) return errno;
        for (uint64_t i = 0; i < bytes; i += 4096) /* EINVAL: a kernel before 5.14 */
            *(volatile uint8_t *)(base + i) = 0;
        return 0;
    }
}

int wr_arena_open(struct wr_arena *arena, uint64_t bytes, weir_err *err)
{
    guard_check("wr_arena_open");
    memset(arena, 0, sizeof *arena);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > (UINT64_MAX >> 1)) return wr_err(err, WEIR_E_NOMEM, "an arena of %" PRIu64 " bytes exceeds the address space; lower --memory", bytes);
    uint64_t usable = wr_round_up(bytes > 0 ? bytes : 1, page > WR_ARENA_ALIGN ? page : WR_ARENA_ALIGN), mapped = usable + HUGE_BYTES;
    uint8_t *map = MAP_FAILED;
    if (wr_fault_hit(WR_FAULT_ALLOC))
        errno = ENOMEM;
    else
        map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return wr_err_errno(err, WEIR_E_NOMEM, errno, "the system refused %" PRIu64 " bytes for the arena; lower --memory", bytes);

    /* What is beyond the arena is unmapped: a huge page that covers its end would otherwise count up to 2 MiB more than was asked. */
    uint8_t *base = (uint8_t *)(uintptr_t)wr_round_up((uintptr_t)map, HUGE_BYTES);
    if (base > map) munmap(map, (size_t)(base - map));
    if (base + usable < map + mapped) munmap(base + usable, (size_t)(map + mapped - (base + usable)));
    madvise(base, usable, MADV_HUGEPAGE); /* a kernel without huge pages only makes this slower */
    int failure = populate(base, usable);
    if (failure != 0) {
        munmap(base, usable);
        return wr_err_errno(err, WEIR_E_NOMEM, failure, "the system refused to back %" PRIu64 " bytes for the arena; lower --memory", bytes);
    }
    arena->base = base;
    arena->bytes = usable;
    arena->mapping = base;
    arena->mapping_bytes = usable;
    return 0;
}

void wr_arena_close(struct wr_arena *arena)
{
    for (int a = 0; a < WR_N_ACCOUNTS; a++)
        if (arena->taken[a] > 0) wr_ledger_release(arena->ledger, a, arena->taken[a]);
    if (arena->mapping != NULL) munmap(arena->mapping, arena->mapping_bytes);
    memset(arena, 0, sizeof *arena);
}

void *wr_arena_take(struct wr_arena *arena, struct wr_ledger *ledger, enum wr_account a, uint64_t bytes, weir_err *err)
{
    guard_check("wr_arena_take");
    uint64_t left = arena->bytes - arena->used;
    if (bytes > left || wr_round_up(bytes, WR_ARENA_ALIGN) > left) {
        wr_err(err, WEIR_E_BUDGET, "account %s: %" PRIu64 " bytes asked of an arena with %" PRIu64 " of %" PRIu64 " left; raise --memory", accounts[a].name,
            bytes, left, arena->bytes);
        return NULL;
    }
    uint64_t rounded = wr_round_up(bytes, WR_ARENA_ALIGN);
    if (wr_ledger_reserve(ledger, a, rounded, err) != 0) return NULL;
    arena->ledger = ledger;
    arena->taken[a] += rounded;
    void *region = arena->base + arena->used;
    arena->used += rounded;
    return region;
}
