/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger, small allocations, the arena, the guard and failure injection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/os.h"

static void ledger_limits(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    weir_err err = {0};
    wr_ledger_init(&ledger);
    assert_int_equal(wr_ledger_reserve(&ledger, WR_ACCOUNT_KV, (uint64_t)1 << 50, &err), 0); /* no limit yet */
    wr_ledger_release(&ledger, WR_ACCOUNT_KV, (uint64_t)1 << 50);
    wr_ledger_limit(&ledger, WR_ACCOUNT_KV, 1000);
    assert_int_equal(wr_ledger_reserve(&ledger, WR_ACCOUNT_KV, 600, &err), 0);
    assert_int_equal(wr_ledger_reserve(&ledger, WR_ACCOUNT_KV, 401, &err), WEIR_E_BUDGET);
    assert_non_null(strstr(err.text, "account kv"));
    assert_non_null(strstr(err.text, "1 bytes more than its limit of 1000"));
    assert_int_equal(wr_ledger_reserve(&ledger, WR_ACCOUNT_KV, UINT64_MAX, &err), WEIR_E_BUDGET); /* the sum wraps */
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_KV), 600);
    assert_int_equal(wr_ledger_reserve(&ledger, WR_ACCOUNT_KV, 400, NULL), 0);
    wr_ledger_release(&ledger, WR_ACCOUNT_KV, 1000);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_KV), 0);
    assert_true(wr_ledger_peak(&ledger, WR_ACCOUNT_KV) == (uint64_t)1 << 50);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    assert_string_equal(wr_account_name(WR_ACCOUNT_WEIGHTS), "weights_pinned");
    assert_string_equal(wr_account_name(WR_ACCOUNT_TEXT), "text");
    assert_true(strlen(wr_account_description(WR_ACCOUNT_RING)) > 0);
}

#define N_THREADS 4
#define N_ROUNDS 20000
static _Atomic uint64_t refused;

static void *reserve_many(void *arg)
{
    struct wr_ledger *ledger = arg;
    for (int i = 0; i < N_ROUNDS; i++) {
        if (wr_ledger_reserve(ledger, WR_ACCOUNT_RING, 10, NULL) == 0)
            wr_ledger_release(ledger, WR_ACCOUNT_RING, 10);
        else
            refused++;
    }
    return NULL;
}

static void ledger_threads(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    pthread_t threads[N_THREADS];
    wr_ledger_init(&ledger);
    wr_ledger_limit(&ledger, WR_ACCOUNT_RING, 25); /* two at a time */
    for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, reserve_many, &ledger), 0);
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 0);
    assert_true(wr_ledger_peak(&ledger, WR_ACCOUNT_RING) <= 20 && wr_ledger_peak(&ledger, WR_ACCOUNT_RING) >= 10);
    assert_true(refused < (uint64_t)N_THREADS * N_ROUNDS);
}

static bool zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0) return false;
    return true;
}

static void allocations(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    weir_err err = {0};
    wr_ledger_init(&ledger);
    for (size_t n = 0; n < 300; n += 7) {
        uint8_t *p = wr_mem_alloc(&ledger, WR_ACCOUNT_META, n, &err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_true(zero(p, n));
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), n + WR_MEM_OVERHEAD);
        memset(p, 0xa5, n);
        p = wr_mem_resize(p, n * 3, &err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0xa5);
        assert_true(zero(p + n, 2 * n));
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 3 * n + WR_MEM_OVERHEAD);
        p = wr_mem_resize(p, n / 2, &err);
        assert_non_null(p);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), n / 2 + WR_MEM_OVERHEAD);
        wr_mem_free(p);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
    }
    char *copy = wr_mem_strdup(&ledger, WR_ACCOUNT_TEXT, "grüße", &err);
    assert_string_equal(copy, "grüße");
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), strlen("grüße") + 1 + WR_MEM_OVERHEAD);
    wr_mem_free(copy);
    wr_mem_free(NULL);

    assert_null(wr_mem_array(&ledger, WR_ACCOUNT_META, SIZE_MAX / 2, 3, &err));
    assert_int_equal(err.code, WEIR_E_NOMEM);
    assert_null(wr_mem_alloc(&ledger, WR_ACCOUNT_META, SIZE_MAX - 8, &err));
    assert_int_equal(err.code, WEIR_E_NOMEM);
    uint32_t *array = wr_mem_array(&ledger, WR_ACCOUNT_META, 10, sizeof *array, &err);
    assert_true(zero((uint8_t *)array, 40));
    wr_mem_free(array);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
}

static void allocation_limits(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    weir_err err = {0};
    wr_ledger_init(&ledger);
    wr_ledger_limit(&ledger, WR_ACCOUNT_TOKENIZER, 100 + WR_MEM_OVERHEAD);
    wr_fault_set(WR_FAULT_ALLOC, 0, false);
    assert_null(wr_mem_alloc(&ledger, WR_ACCOUNT_TOKENIZER, 101, &err));
    assert_int_equal(err.code, WEIR_E_BUDGET);
    assert_int_equal(wr_fault_count(WR_FAULT_ALLOC), 0); /* refused before the system was asked */
    uint8_t *p = wr_mem_alloc(&ledger, WR_ACCOUNT_TOKENIZER, 50, &err);
    p[49] = 7;
    assert_null(wr_mem_resize(p, 101, &err));
    assert_int_equal(err.code, WEIR_E_BUDGET);
    assert_int_equal(p[49], 7);
    p = wr_mem_resize(p, 100, &err);
    assert_int_equal(p[49], 7);
    wr_mem_free(p);
    assert_int_equal(wr_ledger_peak(&ledger, WR_ACCOUNT_TOKENIZER), 100 + WR_MEM_OVERHEAD);
}

static void faults(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    for (int persistent = 0; persistent < 2; persistent++) {
        for (uint64_t n = 1; n <= 5; n++) {
            void *p[4];
            wr_fault_set(WR_FAULT_ALLOC, n, persistent != 0);
            for (uint64_t i = 0; i < 4; i++) {
                weir_err err = {0};
                p[i] = wr_mem_alloc(&ledger, WR_ACCOUNT_META, 8, &err);
                bool fails = i + 1 == n || (persistent && i + 1 > n);
                assert_int_equal(p[i] == NULL, fails);
                assert_int_equal(err.code, fails ? WEIR_E_NOMEM : 0);
            }
            assert_int_equal(wr_fault_count(WR_FAULT_ALLOC), 4);
            wr_fault_set(WR_FAULT_ALLOC, 0, false);
            for (int i = 0; i < 4; i++) wr_mem_free(p[i]);
            assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 0);
        }
    }
    weir_err err = {0};
    uint8_t *p = wr_mem_alloc(&ledger, WR_ACCOUNT_META, 8, &err);
    p[0] = 9;
    wr_fault_set(WR_FAULT_ALLOC, 1, false);
    assert_null(wr_mem_resize(p, 4096, &err));
    assert_int_equal(err.code, WEIR_E_NOMEM);
    assert_int_equal(p[0], 9);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_META), 8 + WR_MEM_OVERHEAD);
    struct wr_arena arena;
    wr_fault_set(WR_FAULT_ALLOC, 1, false);
    assert_int_equal(wr_arena_open(&arena, 1 << 20, &err), WEIR_E_NOMEM);
    assert_int_equal(wr_fault_count(WR_FAULT_ALLOC), 1);
    wr_arena_close(&arena); /* a failed one may be closed */
    wr_fault_set(WR_FAULT_ALLOC, 0, false);
    wr_mem_free(p);
    assert_false(wr_fault_hit(WR_FAULT_READ));
}

static void arena_regions(void **state)
{
    (void)state;
    struct wr_ledger ledger;
    struct wr_arena arena;
    weir_err err = {0};
    wr_ledger_init(&ledger);
    assert_int_equal(wr_arena_open(&arena, 5 * 4096, &err), 0);
    assert_int_equal((uintptr_t)arena.base % (2u << 20), 0);
    assert_int_equal(arena.bytes, 5 * 4096);
    uint8_t *a = wr_arena_take(&arena, &ledger, WR_ACCOUNT_KV, 1, &err), *b = wr_arena_take(&arena, &ledger, WR_ACCOUNT_RING, 8192, &err);
    assert_ptr_equal(a, arena.base);
    assert_ptr_equal(b, a + 4096);
    assert_true(zero(a, 3 * 4096));
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_KV), 4096);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_RING), 8192);
    assert_null(wr_arena_take(&arena, &ledger, WR_ACCOUNT_KV, 8193, &err));
    assert_int_equal(err.code, WEIR_E_BUDGET);
    assert_null(wr_arena_take(&arena, &ledger, WR_ACCOUNT_KV, UINT64_MAX, &err));
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_KV), 4096);
    wr_ledger_limit(&ledger, WR_ACCOUNT_KV, 8191);
    assert_null(wr_arena_take(&arena, &ledger, WR_ACCOUNT_KV, 4096, &err)); /* fits the arena, not the account */
    assert_int_equal(err.code, WEIR_E_BUDGET);
    assert_non_null(wr_arena_take(&arena, &ledger, WR_ACCOUNT_SCRATCH, 8192, &err));
    assert_non_null(wr_arena_take(&arena, &ledger, WR_ACCOUNT_SCRATCH, 0, &err));
    assert_null(wr_arena_take(&arena, &ledger, WR_ACCOUNT_SCRATCH, 1, &err));
    memset(arena.base, 0xff, arena.bytes);
    wr_arena_close(&arena);
    assert_null(arena.base);
    assert_int_equal(wr_arena_open(&arena, UINT64_MAX - 5, &err), WEIR_E_NOMEM);
    assert_int_equal(wr_arena_open(&arena, (uint64_t)1 << 60, &err), WEIR_E_NOMEM);
    assert_int_equal(err.code, WEIR_E_NOMEM);
}

/* All of it is there after opening, and no huge page hangs over the end: the ceiling of the budget rests on both. */
static void arena_is_touched_and_no_larger(void **state)
{
    (void)state;
    struct wr_arena arena;
    uint64_t bytes = (33u << 20) + 4096 * 3, before = wr_os_usage().rss_bytes;
    assert_int_equal(wr_arena_open(&arena, bytes, NULL), 0);
    uint64_t grown = wr_os_usage().rss_bytes - before;
    assert_int_equal(msync(arena.base + arena.bytes, 4096, MS_ASYNC), -1); /* nothing is mapped behind it */
    wr_arena_close(&arena);
    uint64_t after = wr_os_usage().rss_bytes;
    if (grown < bytes - (1u << 20) || grown > bytes + (1u << 20))
        fail_msg("an arena of %llu bytes made the process grow by %llu", (unsigned long long)bytes, (unsigned long long)grown);
    assert_true(after < before + (1u << 20));
}

#ifdef WR_GUARD
static void guarded_allocation(void) { wr_mem_free(wr_mem_alloc(&(struct wr_ledger){0}, WR_ACCOUNT_META, 1, NULL)); }

static int status_of(void (*body)(void), char *text, size_t capacity)
{
    int ends[2], status = 0;
    if (pipe(ends) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], text, capacity - 1);
    size_t total = 0;
    for (; n > 0; n = read(ends[0], text + total, capacity - 1 - total)) total += (size_t)n;
    text[total] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static void nested(void)
{
    wr_guard_enter("decode");
    wr_guard_enter("inner");
    wr_guard_leave();
    guarded_allocation();
}

static void *other_thread(void *arg)
{
    (void)arg;
    guarded_allocation();
    return NULL;
}

static void from_another_thread(void)
{
    pthread_t t;
    wr_guard_enter("decode");
    if (pthread_create(&t, NULL, other_thread, NULL) == 0) pthread_join(t, NULL);
}

static void after_leave(void)
{
    wr_guard_enter("decode");
    wr_guard_leave();
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    wr_mem_free(wr_mem_alloc(&ledger, WR_ACCOUNT_META, 1, NULL));
}

static void guard(void **state)
{
    (void)state;
    char text[512];
    int status = status_of(nested, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "wr_mem_alloc called inside"));
    status = status_of(from_another_thread, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "decode"));
    assert_int_equal(status_of(after_leave, text, sizeof text), 0);
    assert_string_equal(text, "");
}
#endif

static void checked_arithmetic(void **state)
{
    (void)state;
    uint64_t out = 5;
    assert_false(wr_mul_u64(UINT64_MAX, 2, &out));
    assert_false(wr_add_u64(UINT64_MAX, 1, &out));
    assert_int_equal(out, 5);
    assert_true(wr_mul_u64(1u << 31, 1u << 31, &out) && out == (uint64_t)1 << 62);
    assert_int_equal(wr_round_up(1, 4096), 4096);
    assert_int_equal(wr_round_up(4096, 4096), 4096);
    assert_int_equal(wr_round_down(4097, 4096), 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ledger_limits),
        cmocka_unit_test(ledger_threads),
        cmocka_unit_test(allocations),
        cmocka_unit_test(allocation_limits),
        cmocka_unit_test(faults),
        cmocka_unit_test(arena_regions),
        cmocka_unit_test(arena_is_touched_and_no_larger),
        cmocka_unit_test(checked_arithmetic),
#ifdef WR_GUARD
        cmocka_unit_test(guard),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
