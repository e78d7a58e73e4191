/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of the whole engine on a tiny model share, with one thing going wrong at a time: the Nth allocation, read, write or thread fails, once and for
 * good, and a run gives what an undisturbed one gives, or the right error; no leak (sanitizers and the ledger watch), no hang (a timer watches).
 */
#ifndef WR_TEST_FAULTY_H
#define WR_TEST_FAULTY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "device_fake.h"
#include "engine/engine.h"

extern char folder[32], model[64]; /* the model's, and it is alone there */
extern uint32_t n_vocab;
extern _Atomic uint32_t n_warnings; /* the I/O thread warns too */

/* Ends the process in some minutes unless it is called again: whoever opens an engine does, however slow the machine or the sanitizer is. */
void wind_timer(void);
/* Makes folder and model. */
int make_model(void);
int remove_model(void **state);

/* Weights streamed, keys and values in memory. */
weir_options options(void);
/* Keys and values on disk: the least memory that `o`, whose context is set here, needs. */
weir_options spilled(weir_options o);

uint32_t n_entries(const char *directory);
void skip_under_valgrind(void);

struct work {
    int (*run)(const weir_options *, float *out, weir_err *);
    weir_options options;
    const float *reference;
    size_t n;     /* numbers that `run` gives */
    bool thinned; /* of many calls not each: the later, the farther they lie apart */
};
#define MAX_OUT 4096
/* `code`, `other_code`: what a run may end with. */
void nth_failure(const struct work *, enum wr_fault_kind, int code, int other_code);

#endif
