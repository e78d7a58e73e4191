/* SPDX-License-Identifier: Apache-2.0 */
/* Ceilings: every mix that a level should have is there, finite, and positive. How large they are is no matter of a test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ceiling.h"

static void expect_rate(double rate, bool there) { assert_true(there ? isfinite(rate) && rate > 0 : rate == 0); }

static void test_every_level(void **state)
{
    struct wr_ledger ledger;
    struct wr_team *team;
    weir_err err;
    bool available;
    const size_t bytes = 12345 * 4096; /* no multiple of the parts that are read in a run */
    uint8_t *memory = aligned_alloc(4096, bytes);
    memset(memory, 1, bytes);
    wr_ledger_init(&ledger);
    assert_int_equal(wr_team_open(&team, 2, &ledger, &err), 0);
    const struct wr_kernels *kernels;
    for (uint32_t i = 0; (kernels = wr_kernels_level(i, NULL, &available)) != NULL; i++) {
        if (!available) continue;
        const bool there = strcmp(kernels->level, "scalar") != 0;
        for (int with_team = 0; with_team < 2; with_team++) {
            struct wr_team *t = with_team ? team : NULL;
            expect_rate(wr_ceiling_mix(kernels, WR_MIX_FMA, NULL, false, t, 0), there);
            expect_rate(wr_ceiling_mix(kernels, WR_MIX_INT8, NULL, false, t, 0), there);
            expect_rate(wr_ceiling_mix(kernels, WR_MIX_INT16, NULL, true, t, 0), there);
            expect_rate(wr_ceiling_read(kernels, memory, bytes, t, 0), true);
        }
        for (uint32_t q = 0; wr_quant_at(q) != NULL; q++)
            for (int precise = 0; precise < 2; precise++) expect_rate(wr_ceiling_mix(kernels, WR_MIX_FORMAT, wr_quant_at(q), precise, NULL, 0), there);
    }
    wr_team_close(team);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_level)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
