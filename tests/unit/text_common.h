/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of src/text share: golden files, allocations that fail, a thread with a small stack. */
#ifndef TEXT_COMMON_H
#define TEXT_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "base/mem.h"

/* tests/golden/NAME; NULL, and a message, where it cannot be read. */
static inline json_t *golden_load(const char *name)
{
    char path[1024];
    const char *given = getenv("WEIR_GOLDEN"), *slash = strrchr(__FILE__, '/');
    if (given)
        snprintf(path, sizeof path, "%s/%s", given, name);
    else
        snprintf(path, sizeof path, "%.*s/../golden/%s", slash ? (int)(slash - __FILE__) : 1, slash ? __FILE__ : ".", name);
    json_error_t e;
    json_t *all = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!all) print_error("%s: %s\n", path, e.text);
    return all;
}

/* Allocation k fails (`persistent`: and all that follow), for every k until fn succeeds: the right code, nothing kept on the account. Gives the last k. */
static inline uint64_t each_allocation_fails(int (*fn)(void *arg), void *arg, bool persistent, const struct wr_ledger *ledger, enum wr_account account)
{
    for (uint64_t k = 1;; k++) {
        assert_true(k < 1000);
        wr_fault_set(WR_FAULT_ALLOC, k, persistent);
        int code = fn(arg);
        wr_fault_set(WR_FAULT_ALLOC, 0, false);
        if (code == 0) return k;
        assert_int_equal(code, WEIR_E_NOMEM);
        assert_int_equal(wr_ledger_used(ledger, account), 0);
    }
}

/* cmocka's checks are not for other threads: fn notes what is wrong. */
static inline void run_on_stack(size_t bytes, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, bytes), 0);
    assert_int_equal(pthread_create(&thread, &attributes, fn, arg), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

#define SMALL_STACK ((size_t)256 << 10)

#endif
