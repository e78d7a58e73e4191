/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: how many tokens to draft for the next pass. A pass that verifies k drafted tokens gives, with a chance a_i that the i-th is accepted if those
 * before it are, E = 1 + a_1 + a_1 a_2 + ... tokens; with one a for all, E(k, a) = (1 - a^(k+1)) / (1 - a) (Leviathan, Kalman, Matias: "Fast inference from
 * transformers via speculative decoding", 2023, equation 1). The gate chooses the k with the largest E / (T(k + 1) + time of drafting k), T from measured
 * passes and a_i from what was accepted, 0 where plain is faster; the smaller of two within 1 %.
 * It keeps account of what bursts cost and gained beside plain passes. A burst may be tried only if what it can lose, should nothing be accepted, is covered
 * by the gains so far and WR_GATE_RISK of the time: so it never falls below 1 - WR_GATE_RISK of the plain rate, as far as pass times repeat.
 * A pure function of what it was told: no clock, no draw. Speed depends on it, tokens never do.
 */
#ifndef WR_GENERATE_GATE_H
#define WR_GENERATE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define WR_GATE_MAX 64    /* the most tokens of a draft */
#define WR_GATE_RISK 0.01 /* share of the time that may be lost to attempts */
#define WR_GATE_ROWS 15   /* classes of rows: 1 to 8 each its own, then two for each doubling up to 64, and what is above */
#define WR_GATE_DEPTHS 16 /* classes of depth: 0 to 8, then likewise */

struct wr_gate {
    struct wr_gate_time {
        double rows, seconds; /* moving means of the passes of the class */
        uint32_t n;           /* how many; 0 with seconds > 0: told beforehand */
    } time[WR_GATE_ROWS];
    struct wr_gate_chance {
        double accepted; /* moving mean of 0 and 1 */
        uint32_t n;
    } chance[WR_GATE_DEPTHS];
    double draft_seconds;    /* of one drafted token: moving mean */
    double elapsed, saved;   /* seconds: of all passes reported, and what bursts gained (lost if negative) beside plain ones */
    uint32_t n_drafts;       /* reports with a time of drafting */
    uint32_t wait, interval; /* chooses until the next attempt one deeper; the wait after that one */
    uint32_t last;           /* the last choice that was not an attempt */
};

void wr_gate_init(struct wr_gate *);
/* A pass time known beforehand: predicted by the plan, or that of a pass over the prompt. Passes reported for the same class of rows replace it. */
void wr_gate_expect(struct wr_gate *, uint32_t rows, double seconds);
/* How many of `available` drafted tokens (or, for a draft model, of that many possible ones) the next pass is to verify: 0..min(available, WR_GATE_MAX).
 * match_length: of an n-gram's proposal; 0 for a draft model. After i accepted tokens an n-gram's match is i longer, so match_length + i is what a
 * chance is kept by: for a draft model the position in the draft. */
uint32_t wr_gate_choose(struct wr_gate *, uint32_t available, uint32_t match_length);
/* A pass of `rows` rows took `seconds`, its draft of `proposed` tokens draft_seconds (0 for an n-gram), and the first `accepted` of them were right.
 * A pass of one row may report a proposal that was known but not verified: proposed 1, accepted 1 if the proposal's first token was the one that came.
 * That tells what it would have been worth, at no cost. */
void wr_gate_report(
    struct wr_gate *, uint32_t match_length, uint32_t proposed, uint32_t accepted, uint32_t rows, double seconds, double draft_seconds);

/* What the gate believes: tokens of a pass that verifies k, seconds of a pass of `rows` rows (0: nothing is known yet). */
double wr_gate_tokens(const struct wr_gate *, uint32_t k, uint32_t match_length);
double wr_gate_seconds(const struct wr_gate *, uint32_t rows);
/* E(k, a) for one a in 0..1. */
double wr_gate_expected(double a, uint32_t k);

#endif
