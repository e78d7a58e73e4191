/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing a token: pure functions of logits, the ids so far, the position and the seed. Order: bias, penalties, temperature,
 * top-k, softmax, top-p, min-p, draw. Ties go to the lower id. temp 0: the largest logit after bias and penalties.
 * Arithmetic is f32 with base/num's exp; sums in ascending order of rank, so every machine draws the same token.
 */
#ifndef WR_GENERATE_SAMPLER_H
#define WR_GENERATE_SAMPLER_H

#include "base/mem.h"

/* Work space for a vocabulary of n words: 8 bytes a word and 8 KiB, the same for every penalty_last; 4-byte aligned. wr_sample allocates nothing. */
uint64_t wr_sample_work_bytes(uint32_t n_vocab);
/* WEIR_E_USAGE names the parameter that is out of range (temp < 0 or not finite, top_k < 0, top_p outside (0, 1], min_p outside [0, 1), repeat <= 0, a
 * penalty that is not finite, a bias id outside the vocabulary or a bias that is NaN or +inf). */
int wr_sample_check(const weir_sampling *, uint32_t n_vocab, weir_err *);
/* logits [n_vocab] are changed in place. ids [n_ids]: every token so far, prompt included; position: that of the token to be drawn (= n_ids).
 * Draw: Philox4x32-10, key = (seed low, seed high), counter = (position, 0, 0, 0), u = (x0 >> 8) / 2^24; the first cumulative sum > u * total wins.
 * Repeat: logit > 0 ? / r : * r, once for each distinct id in the last penalty_last; presence - p, frequency - f * count. Weights are
 * exp((logit - largest) / temp), so that no temperature overflows. WEIR_E_NONFINITE if a logit is NaN or +inf (-inf through a bias is fine), or if all
 * are -inf. Parameters are checked first. */
int wr_sample(const weir_sampling *, float *logits, uint32_t n_vocab, const int32_t *ids, size_t n_ids, uint32_t position, void *work, int32_t *id, weir_err *);

#endif
