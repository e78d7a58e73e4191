/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate on a simulated clock: never below 0.98 of the plain rate, at no moment, whatever is accepted and whatever a pass costs; and how near it comes to
 * the best fixed K, which is computed here from the true chances and times.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "generate/gate.h"

#define FLOOR 0.98 /* of the plain rate */
#define AFTER 0.9  /* the same, of the 1000 tokens after a change alone */
#define NEAR 0.88  /* of the best fixed K's rate */

static uint64_t state;

static double draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

/* A machine: seconds of a pass of n rows. */
struct machine {
    const char *name;
    double disk, fixed, row; /* max(disk, fixed + n row) */
    double draft;            /* seconds of drafting one token; 0: an n-gram, which costs nothing */
    uint32_t tile;           /* rows are computed in so many at once */
};
static const struct machine machines[] = {
    {"disk", 1, 0, 0.001, 0, 1},
    {"disk, tiles", 1, 0, 0.01, 0, 8},
    {"compute", 0, 0, 1, 0, 1},
    {"compute, shared", 0, 0.5, 0.5, 0, 1},
    {"compute, gemm", 0, 0.8, 0.2, 0, 1},
    {"mixed", 1, 0, 0.1, 0, 1},
    {"mixed, late", 1, 0, 0.03, 0, 4},
    {"mixed, early", 1, 0, 0.4, 0, 1},
    {"disk, draft", 1, 0, 0.001, 0.05, 1},
    {"mixed, draft", 1, 0, 0.1, 0.2, 1},
    {"compute, draft", 0, 0, 1, 0.1, 1},
    {"dear draft", 1, 0, 0.01, 1.2, 1},
};
#define N_MACHINES (sizeof machines / sizeof *machines)

static double pass(const struct machine *m, uint32_t rows)
{
    uint32_t tiles = rows == 1 ? 1 : (rows + m->tile - 1) / m->tile * m->tile;
    double compute = m->fixed + tiles * m->row;
    return compute > m->disk ? compute : m->disk;
}

static double best_rate(const struct machine *m, double a)
{
    double best = 0, tokens = 0;
    for (uint32_t k = 0; k <= WR_GATE_MAX; k++) {
        tokens += pow(a, k);
        double rate = tokens / (pass(m, k + 1) + k * m->draft);
        if (rate > best) best = rate;
    }
    return best;
}

enum told {
    NOTHING,
    RIGHT,
    PROMPT,
    LOW,
    HIGH,
    N_TOLD
}; /* what the gate is told beforehand; PROMPT: the time of one pass of 512 rows; LOW, HIGH: half or twice */

struct run {
    struct wr_gate gate;
    const struct machine *machine;
    double seconds, tokens, noise, least; /* least: of tokens / seconds beside plain, at any moment */
    bool shadow;                          /* a plain pass tells what the proposal would have been worth */
};

static void start(struct run *r, const struct machine *m, enum told told, double noise)
{
    memset(r, 0, sizeof *r);
    r->machine = m;
    r->noise = noise;
    r->least = 9;
    r->shadow = m->draft == 0;
    wr_gate_init(&r->gate);
    if (told == NOTHING) return;
    wr_gate_expect_draft(&r->gate, m->draft);
    if (told == PROMPT) {
        wr_gate_expect(&r->gate, 512, pass(m, 512));
        return;
    }
    for (uint32_t rows = 1; rows <= 65; rows = rows == 1 ? 2 : rows * 2 - 1) { /* 1, 2, 3, 5, 9 ... 65 */
        double factor = rows == 1 ? 1 : told == LOW ? 0.5 : told == HIGH ? 2 : 1;
        wr_gate_expect(&r->gate, rows, 3 * factor * pass(m, rows)); /* 3: all of them wrong alike is no harm */
    }
}

/* Passes until `tokens` more are there. */
static void go(struct run *r, double a, double tokens)
{
    const double end = r->tokens + tokens, plain = pass(r->machine, 1);
    while (r->tokens < end) {
        uint32_t k = wr_gate_choose(&r->gate, WR_GATE_MAX, 0), accepted = 0;
        assert_true(k <= WR_GATE_MAX);
        while (accepted < k && draw() < a) accepted++;
        double seconds = pass(r->machine, k + 1) * (1 + r->noise * (2 * draw() - 1));
        if (k == 0 && r->shadow)
            wr_gate_report(&r->gate, 0, 1, draw() < a, 1, seconds, 0);
        else
            wr_gate_report(&r->gate, 0, k, accepted, k + 1, seconds, k * r->machine->draft);
        r->seconds += seconds + k * r->machine->draft;
        r->tokens += accepted + 1;
        double ratio = r->tokens * plain / r->seconds;
        if (ratio < r->least) r->least = ratio;
    }
}

/* At no moment from the first pass on, if times repeat and what is told is right. Where times scatter by 10 %, or it is told half or twice the times, from
 * the 300th token on. */
static void test_never_slower(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < N_MACHINES; m++)
        for (int told = 0; told < N_TOLD; told++)
            for (int step = 0; step <= 20; step += told <= PROMPT ? 1 : 4)
                for (int noisy = 0; noisy <= (told == RIGHT); noisy++) {
                    struct run r;
                    state = m * 1000 + step;
                    start(&r, &machines[m], told, noisy ? 0.1 : 0);
                    if (noisy || told >= LOW) {
                        go(&r, step / 20.0, 300);
                        r.least = 9;
                    }
                    go(&r, step / 20.0, 1500);
                    if (r.least < FLOOR) fail_msg("%s, told %d, a = %.2f: %.4f of the plain rate", machines[m].name, told, step / 20.0, r.least);
                }
}

/* Trees of as many rows as may be tried, whenever any may, the chance of each place a: the first token of a place is right as often as the one beside it. */
static void test_reach(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < N_MACHINES; m++)
        for (int told = NOTHING; told <= PROMPT; told++)
            for (int step = 0; step <= 20; step += 5) {
                struct run r;
                double seconds[WR_GATE_MAX + 1];
                state = m * 1000 + (uint64_t)step;
                start(&r, &machines[m], (enum told)told, 0);
                wr_gate_report(&r.gate, 0, 0, 0, 1, r.seconds = pass(r.machine, 1), 0);
                r.tokens = 1;
                for (uint32_t i = 0, most = 1; i < 2000; i++) {
                    const uint32_t rows = wr_gate_reach(&r.gate, WR_GATE_MAX + 1, seconds);
                    uint32_t chain = 0, beside = 0;
                    while (chain + beside < (rows - 1) / 2 && draw() < step / 20.0) *(beside == 0 && draw() < 0.5 ? &chain : &beside) += 1;
                    for (uint32_t k = 2; k <= WR_GATE_MAX + 1; k++) assert_true(seconds[k - 1] >= seconds[k - 2]);
                    const double took = pass(r.machine, rows), drafting = (rows - 1) * r.machine->draft;
                    wr_gate_report_tree(&r.gate, (rows - 1) / 2, chain, beside, rows - 1, rows, took, drafting);
                    r.seconds += took + drafting;
                    r.tokens += 1 + chain + beside;
                    if (rows > most) most = rows;
                    const double ratio = r.tokens * pass(r.machine, 1) / r.seconds;
                    if (ratio < FLOOR) fail_msg("%s, told %d, a = %.2f: %.4f of the plain rate", r.machine->name, told, step / 20.0, ratio);
                    if (i == 1999 && step == 15 && m == 0 && told == RIGHT) assert_int_equal(most, WR_GATE_MAX + 1);
                }
            }
}

/* Acceptance changes midway, to anything from anything: the whole at no moment below the floor; and what follows the change alone, in which the gate must
 * first see that it has changed, not far below. */
static void test_change(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < N_MACHINES; m++)
        for (int told = NOTHING; told <= PROMPT; told++)
            for (int from = 0; from <= 10; from += 2)
                for (int to = 0; to <= 10; to += 2) {
                    struct run r;
                    state = m * 1000 + from * 100 + to * 2;
                    start(&r, &machines[m], told, 0);
                    go(&r, from / 10.0, 1000);
                    double seconds = r.seconds, tokens = r.tokens, plain = pass(&machines[m], 1);
                    go(&r, to / 10.0, 1000);
                    double after = (r.tokens - tokens) * plain / (r.seconds - seconds);
                    if (r.least < FLOOR || after < AFTER)
                        fail_msg("%s, told %d, a = %.1f, then %.1f: %.4f of the plain rate, after the change %.4f", machines[m].name, told, from / 10.0,
                            to / 10.0, r.least, after);
                }
}

/* Warmed up (1000 tokens), against the best fixed K, which knows everything. */
static void test_best(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < N_MACHINES; m++)
        for (int told = 0; told < N_TOLD; told++)
            for (int step = 0; step <= 20; step += told <= PROMPT ? 1 : 3) {
                struct run r;
                state = m * 100 + step;
                start(&r, &machines[m], told, step & 1 ? 0.1 : 0);
                go(&r, step / 20.0, 1000);
                double seconds = r.seconds, tokens = r.tokens;
                go(&r, step / 20.0, 5000);
                double part = (r.tokens - tokens) / (r.seconds - seconds) / best_rate(&machines[m], step / 20.0);
                if (part < NEAR) fail_msg("%s, told %d, a = %.2f: %.4f of the best rate, last K %u", machines[m].name, told, step / 20.0, part, r.gate.last);
            }
}

/* An n-gram whose proposals are right where the match is long: short ones are left, long ones taken, each as far as it pays. */
static void test_match_length(void **unused)
{
    (void)unused;
    struct wr_gate gate;
    wr_gate_init(&gate);
    for (uint32_t rows = 1; rows <= 65; rows += 8) wr_gate_expect(&gate, rows, 1 + 0.2 * rows);
    assert_int_equal(wr_gate_choose(&gate, 64, 30), 0); /* no plain pass yet */
    for (int i = 0; i < 200; i++) {                     /* plain passes, which tell what proposals were worth */
        wr_gate_report(&gate, 1, 1, i % 20 == 0, 1, 1.2, 0);
        wr_gate_report(&gate, 20, 1, i % 50 != 0, 1, 1.2, 0);
    }
    assert_int_equal(wr_gate_choose(&gate, 64, 1), 0);
    uint32_t k = wr_gate_choose(&gate, 64, 20);
    assert_true(k >= 8);
    assert_int_equal(wr_gate_choose(&gate, 5, 20), 5);
    assert_int_equal(wr_gate_choose(&gate, 0, 20), 0);
    assert_true(wr_gate_tokens(&gate, 4, 20) > 4 && wr_gate_tokens(&gate, 4, 1) < 1.2);
}

/* A long prompt covers a first attempt, of a tree too, that the first passes alone do not, and no more than half a plain pass. */
static void test_prompt(void **unused)
{
    (void)unused;
    for (int prompt = 0; prompt < 3; prompt++) {
        struct wr_gate gate;
        wr_gate_init(&gate);
        wr_gate_expect(&gate, 1, 1);
        wr_gate_expect(&gate, 2, prompt < 2 ? 1.4 : 1.6);
        if (prompt > 0) wr_gate_prompt(&gate, 1000);
        for (int i = 0; i < 3; i++) wr_gate_report(&gate, 20, 1, 1, 1, 1, 0);
        double seconds[2];
        assert_int_equal(wr_gate_reach(&gate, 2, seconds), prompt == 1 ? 2 : 1);
        assert_int_equal(wr_gate_choose(&gate, 1, 20), prompt == 1);
    }
}

/* The same reports, the same choices. */
static void test_deterministic(void **unused)
{
    (void)unused;
    struct run a, b;
    for (int step = 0; step <= 20; step += 5) {
        state = step;
        start(&a, &machines[5], RIGHT, 0.1);
        go(&a, step / 20.0, 500);
        state = step;
        start(&b, &machines[5], RIGHT, 0.1);
        go(&b, step / 20.0, 500);
        assert_true(a.tokens == b.tokens && a.seconds == b.seconds);
    }
}

/* What it would choose if it knew all, and the rate that this gives. */
static void test_known(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < N_MACHINES; m++)
        for (int step = 0; step <= 20; step++) {
            struct run r;
            const double a = step / 20.0;
            start(&r, &machines[m], RIGHT, 0);
            wr_gate_expect_draft(&r.gate, 3 * machines[m].draft); /* as all times that it is told */
            double rate;
            assert_true(wr_gate_best(&r.gate, a, 3, &rate) <= 3);
            const uint32_t k = wr_gate_best(&r.gate, a, WR_GATE_MAX, &rate);
            const double given = 3 * rate, gives = wr_gate_expected(a, k) / (pass(&machines[m], k + 1) + k * machines[m].draft);
            if (gives < NEAR * best_rate(&machines[m], a)) fail_msg("%s, a = %.2f: K %u", machines[m].name, a, k);
            if (machines[m].tile == 1 && machines[m].disk == 0 && fabs(given - gives) > 1e-9 * gives)
                fail_msg("%s, a = %.2f: K %u, rate %.12g, not %.12g", machines[m].name, a, k, given, gives);
        }
}

static void test_expected(void **unused)
{
    (void)unused;
    for (uint32_t k = 0; k <= WR_GATE_MAX; k++) {
        for (int i = 0; i < 100; i++) {
            double a = i / 100.0, formula = (1 - pow(a, k + 1)) / (1 - a);
            assert_true(fabs(wr_gate_expected(a, k) - formula) <= 1e-12 * formula);
        }
        assert_true(wr_gate_expected(1, k) == k + 1);
    }
    struct wr_gate gate; /* times: those told, between them on a line, never falling */
    wr_gate_init(&gate);
    assert_true(wr_gate_seconds(&gate, 5) == 0);
    wr_gate_expect(&gate, 1, 2);
    wr_gate_expect(&gate, 5, 4);
    wr_gate_expect(&gate, 65, 34);
    assert_true(wr_gate_seconds(&gate, 1) == 2 && wr_gate_seconds(&gate, 3) == 3 && wr_gate_seconds(&gate, 45) == 24);
    for (int i = 0; i < 100; i++) wr_gate_report(&gate, 0, 0, 0, 1, 4, 0); /* twice what was told, so everything else probably too */
    assert_true(wr_gate_seconds(&gate, 5) == 8);
    for (int i = 0; i < 100; i++) wr_gate_report(&gate, 0, 4, 4, 5, 3.9, 0); /* less than a plain pass: noise */
    double last = 0;
    for (uint32_t rows = 1; rows <= 65; rows++) {
        assert_true(wr_gate_seconds(&gate, rows) >= last);
        last = wr_gate_seconds(&gate, rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_slower),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_change),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_match_length),
        cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
