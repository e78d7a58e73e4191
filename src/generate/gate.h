/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: how many tokens to draft for the next pass. A pass that verifies k drafted tokens gives, with a chance a_i that the i-th is accepted if those
 * before it are, E = 1 + a_1 + a_1 a_2 + ... tokens; with one a for all, E(k, a) = (1 - a^(k+1)) / (1 - a) (Leviathan, Kalman, Matias: "Fast inference from
 * transformers via speculative decoding", 2023, equation 1). The gate chooses the k with the largest E / (T(k + 1) + time of drafting k), T from measured
 * passes and a_i from what was accepted, 0 where plain is faster; the smaller of two within 1 %.
 * It keeps account of what bursts cost and gained beside plain passes. A burst may be tried only if what it can lose, should nothing be accepted, is covered
 * by the gains so far and WR_GATE_RISK of the time: so it never falls below 1 - WR_GATE_RISK of the plain rate, as far as pass times repeat. The time has that
 * of the prompt in it, but for no more than a part of one plain pass: so a long text need not wait for its first burst.
 * A pure function of what it was told: no clock, no draw. Speed depends on it, tokens never do.
 */
#ifndef WR_GENERATE_GATE_H
#define WR_GENERATE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define WR_GATE_MAX 64     /* the most tokens of a draft */
#define WR_GATE_RISK 0.01  /* share of the time that may be lost to attempts */
#define WR_GATE_CLASSES 16 /* of rows and of depths: 0 to 8 each its own, then two for each doubling up to 64, and what is above */
#define WR_GATE_NEXT(rows) ((rows) + ((rows) < 8 ? 1 : (rows) / 8 * 4)) /* each of another class than the one before */

struct wr_gate {
    struct wr_gate_time {
        double rows, seconds;                   /* moving means of the passes of the class */
        double expected_rows, expected_seconds; /* told beforehand; 0: nothing was */
        uint32_t n;                             /* passes */
    } time[WR_GATE_CLASSES];
    struct wr_gate_chance {
        double accepted, fast; /* moving means of 0 and 1 */
        uint32_t n;            /* values in the first, about */
    } chance[WR_GATE_CLASSES];
    double draft_seconds; /* of one drafted token: moving mean */
    uint32_t n_drafts;
    double prompt;                 /* seconds: of the passes over it */
    double elapsed, saved;         /* seconds: of all passes reported, and what bursts gained (lost if negative) beside plain ones */
    uint32_t wait, interval, last; /* chooses until the next attempt, the wait after that, the last choice that was no attempt */
    bool shorter;                  /* the last attempt was one class shorter, not longer */
};

void wr_gate_init(struct wr_gate *);
/* Times known beforehand, predicted by the plan or those of a pass over the prompt: of a pass of `rows` rows; of drafting one token. Best told for 1 row and
 * for WR_GATE_NEXT of it and so on. What is measured replaces them, and corrects those of classes that were not measured by the same factor. */
void wr_gate_expect(struct wr_gate *, uint32_t rows, double seconds);
void wr_gate_expect_draft(struct wr_gate *, double seconds);
/* Passes over the prompt took so long. */
void wr_gate_prompt(struct wr_gate *, double seconds);
/* How many of `available` drafted tokens (or, for a draft model, of that many possible ones) the next pass is to verify: 0..min(available, WR_GATE_MAX).
 * match_length: of an n-gram's proposal; 0 for a draft model. After i accepted tokens an n-gram's match is i longer, so match_length + i is what a
 * chance is kept by: for a draft model the position in the draft. */
uint32_t wr_gate_choose(struct wr_gate *, uint32_t available, uint32_t match_length);
/* A pass of `rows` rows took `seconds`, its draft of `proposed` tokens draft_seconds (0 for an n-gram), and the first `accepted` of them were right.
 * A pass of one row may report a proposal that was known but not verified: proposed 1, accepted 1 if the proposal's first token was the one that came.
 * That tells what it would have been worth, at no cost. */
void wr_gate_report(struct wr_gate *, uint32_t match_length, uint32_t proposed, uint32_t accepted, uint32_t rows, double seconds, double draft_seconds);

/* The same of a tree: `proposed` tokens from the root down are each what the draft model proposed first, and `accepted` were right of the rows that follow one
 * another from the root, which may be more; `more` were right beside them; the draft model was asked `asked` times. */
void wr_gate_report_tree(
    struct wr_gate *, uint32_t proposed, uint32_t accepted, uint32_t more, uint32_t asked, uint32_t rows, double seconds, double draft_seconds);
/* The most rows, up to `most`, of a pass that may be tried if the draft model is asked as many times, no fewer than those of the line that wr_gate_choose
 * has just allowed; seconds[rows - 1] is set to what they are likely to take without it. 1: none. Something is known. */
uint32_t wr_gate_reach(const struct wr_gate *, uint32_t most, double *seconds);

/* What the gate believes: tokens of a pass that verifies k, seconds of a pass of `rows` rows (0: nothing is known yet). */
double wr_gate_tokens(const struct wr_gate *, uint32_t k, uint32_t match_length);
double wr_gate_seconds(const struct wr_gate *, uint32_t rows);
/* E(k, a) for one a in 0..1. */
double wr_gate_expected(double a, uint32_t k);
/* What it would choose of at most `most`, were the chance `a` at every position and its times right; *rate: tokens/s. Something is known of times. */
uint32_t wr_gate_best(const struct wr_gate *, double a, uint32_t most, double *rate);

#endif
