/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax against double precision, top-k against a selection that looks at everything k times. */
#include "check.h"

#define MAX_N 300
#define U 0x1p-24

static void softmax(struct check *c, uint32_t n, enum check_data kind)
{
    float *x = check_alloc(n * sizeof *x, 4), in[MAX_N];
    check_fill(c, kind, x, n);
    memcpy(in, x, n * sizeof *x);
    double max = -INFINITY, sum = 0, worst = 0;
    for (uint32_t i = 0; i < n; i++) max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++) sum += exp(x[i] - max);
    wr_softmax(x, n);
    for (uint32_t i = 0; i < n; i++) {
        /* The difference is rounded, which its exponential feels in proportion; then the exponential, n / 16 + 4 additions and the division. Below exp(-87) is 0. */
        double want = exp(in[i] - max) / sum, allowed = (fabs(in[i] - max) + n / 16.0 + 8) * U * want + (in[i] - max < -86.9 ? exp(-86.9) : 0);
        worst = fmax(worst, fabs(x[i] - want) - allowed);
    }
    check_that(c, worst <= 0 && check_intact(x), "softmax %s n %u: off by %g more than rounding explains", check_data_name(kind), n, worst);
    check_free(x);
}

static void top_k(struct check *c, uint32_t n, uint32_t k, uint32_t n_values)
{
    float *x = check_alloc(n * sizeof *x, 4);
    uint32_t *index = check_alloc(k * sizeof *index, 4), wrong = k;
    bool taken[MAX_N] = {false};
    for (uint32_t i = 0; i < n; i++) x[i] = n_values ? (float)check_below(c, n_values) - 1 : check_normal(c); /* few values: many ties */
    wr_top_k(x, n, k, index);
    for (uint32_t j = 0; j < k && wrong == k; j++) {
        uint32_t best = n;
        for (uint32_t i = n; i-- > 0;) /* from behind: of equal ones the first is seen last */
            if (!taken[i] && (best == n || x[i] >= x[best])) best = i;
        taken[best] = true;
        if (index[j] != best) wrong = j;
    }
    check_that(c, wrong == k && check_intact(index), "top %u of %u, %u values: place %u", k, n, n_values, wrong);
    check_free(x);
    check_free(index);
}

void check_router(struct check *c)
{
    static const uint32_t sizes[] = {1, 2, 7, 8, 16, 17, 32, 33, 64, 128, 256, 300};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int kind = 0; kind < CHECK_N_DATA; kind++)
            for (int round = 0; round < 4; round++) softmax(c, sizes[s], (enum check_data)kind);
        for (uint32_t k = 1; k <= sizes[s]; k = k < 8 ? k + 1 : k * 2)
            for (uint32_t n_values = 0; n_values < 5; n_values++) top_k(c, sizes[s], k, n_values);
        top_k(c, sizes[s], sizes[s], 3);
    }
    float zeros[4] = {-0.0f, 0.0f, -0.0f, 0.0f}; /* equal, whatever their sign */
    uint32_t index[2];
    wr_top_k(zeros, 4, 2, index);
    check_that(c, index[0] == 0 && index[1] == 1, "top 2 of zeros of both signs: %u, %u", index[0], index[1]);
}

void bench_router(struct check *c) { (void)c; } /* weir bench router */
