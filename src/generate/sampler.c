/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler. Candidates are ids, ranked by (logit descending, id ascending) with a radix sort of ids that start in ascending order: it is
 * stable, so ties need no rule of their own, and it takes a fixed number of sweeps whatever the logits are. For top-k a histogram of the
 * logits' highest bits first leaves out all words that cannot be among the k. 262144 words: 18 ms for a full ranking, 1 ms for top-40.
 */
#include "generate/sampler.h"

#include <math.h>
#include <string.h>
#include "base/num.h"

/* A key of 32 bits in digits of 10, 11 and 11 bits, the lowest first. */
#define N_DIGITS 3
#define MAX_BUCKETS 2048
static const struct {
    unsigned shift;
    uint32_t mask;
} digits[N_DIGITS] = {{0, 0x3ff}, {10, 0x7ff}, {21, 0x7ff}};

struct work {
    uint32_t histogram[MAX_BUCKETS];
    uint32_t words[]; /* two arrays of n_vocab */
};

uint64_t wr_sample_work_bytes(uint32_t n_vocab) { return sizeof(struct work) + 2 * (uint64_t)n_vocab * sizeof(uint32_t); }

int wr_sample_check(const weir_sampling *s, uint32_t n_vocab, weir_err *err)
{
    if (!isfinite(s->temp) || s->temp < 0) return wr_err(err, WEIR_E_USAGE, "temp %g: must be 0 or more", (double)s->temp);
    if (s->top_k < 0) return wr_err(err, WEIR_E_USAGE, "top-k %d: must be 0 (off) or more", s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1)) return wr_err(err, WEIR_E_USAGE, "top-p %g: must be above 0 and at most 1 (off)", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p < 1)) return wr_err(err, WEIR_E_USAGE, "min-p %g: must be 0 (off) or more and below 1", (double)s->min_p);
    if (!isfinite(s->repeat_penalty) || s->repeat_penalty <= 0)
        return wr_err(err, WEIR_E_USAGE, "repeat-penalty %g: must be above 0 (1 is off)", (double)s->repeat_penalty);
    if (!isfinite(s->presence_penalty)) return wr_err(err, WEIR_E_USAGE, "presence-penalty %g: must be finite", (double)s->presence_penalty);
    if (!isfinite(s->frequency_penalty)) return wr_err(err, WEIR_E_USAGE, "frequency-penalty %g: must be finite", (double)s->frequency_penalty);
    if (s->n_bias > 0 && (s->bias == NULL || s->bias_ids == NULL)) return wr_err(err, WEIR_E_USAGE, "logit-bias: %zu entries without values", s->n_bias);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias_ids[i] < 0 || (uint32_t)s->bias_ids[i] >= n_vocab)
            return wr_err(err, WEIR_E_USAGE, "logit-bias: id %d is not in the vocabulary of %u", s->bias_ids[i], n_vocab);
        if (isnan(s->bias[i]) || s->bias[i] == INFINITY) return wr_err(err, WEIR_E_USAGE, "logit-bias: id %d: the bias must be finite or -inf", s->bias_ids[i]);
    }
    return 0;
}

/* Each distinct id of the window once. count [n_vocab] is work space. */
static void penalize(const weir_sampling *s, float *logits, uint32_t n_vocab, const int32_t *ids, size_t n_ids, uint32_t *count)
{
    if (s->repeat_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0) return;
    size_t first = n_ids > s->penalty_last ? n_ids - s->penalty_last : 0;
    if (first == n_ids) return;
    memset(count, 0, n_vocab * sizeof *count);
    for (size_t i = first; i < n_ids; i++)
        if (ids[i] >= 0 && (uint32_t)ids[i] < n_vocab) count[ids[i]]++;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if (count[id] == 0) continue;
        float l = logits[id];
        l = l > 0 ? l / s->repeat_penalty : l * s->repeat_penalty;
        l -= s->presence_penalty;
        l -= s->frequency_penalty * (float)count[id];
        logits[id] = l;
    }
}

/* Ascending keys are descending logits; -0 and +0 are the same. */
static uint32_t key_of(float logit)
{
    uint32_t u = wr_bits_from_f32(logit + 0.0f);
    return u & 0x80000000 ? u : u ^ 0x7fffffff;
}

/* Writes, ascending, ids that are sure to hold the k largest logits: all whose highest digit is at most that of the k-th. Returns how many; k <= n_vocab. */
static uint32_t select_top(const float *logits, uint32_t n_vocab, uint32_t k, uint32_t *histogram, uint32_t *out)
{
    const unsigned shift = digits[N_DIGITS - 1].shift;
    uint32_t n = 0, last = 0, sum;
    memset(histogram, 0, MAX_BUCKETS * sizeof *histogram);
    for (uint32_t id = 0; id < n_vocab; id++) histogram[key_of(logits[id]) >> shift]++;
    for (sum = histogram[0]; sum < k; sum += histogram[last]) last++;
    for (uint32_t id = 0; id < n_vocab; id++) {
        out[n] = id; /* n <= id: there is room, and no branch to guess wrong */
        n += key_of(logits[id]) >> shift <= last;
    }
    return n;
}

/* Sorts n ids by key; both arrays are used, the result is in b. */
static void rank(const float *logits, uint32_t n, uint32_t *histogram, uint32_t *a, uint32_t *b)
{
    for (int d = 0; d < N_DIGITS; d++) { /* an odd number of digits: the last one ends in b */
        memset(histogram, 0, MAX_BUCKETS * sizeof *histogram);
        for (uint32_t i = 0; i < n; i++) histogram[key_of(logits[a[i]]) >> digits[d].shift & digits[d].mask]++;
        for (uint32_t bucket = 0, sum = 0; bucket <= digits[d].mask; bucket++) {
            uint32_t size = histogram[bucket];
            histogram[bucket] = sum;
            sum += size;
        }
        for (uint32_t i = 0; i < n; i++) b[histogram[key_of(logits[a[i]]) >> digits[d].shift & digits[d].mask]++] = a[i];
        uint32_t *sorted = b;
        b = a;
        a = sorted;
    }
}

/* How many of the n ranked weights stay: the shortest beginning that reaches top_p of the sum, then those of at least min_p times the first. */
static uint32_t truncate_tail(const weir_sampling *s, const float *weight, uint32_t n)
{
    if (s->top_p < 1) {
        float total = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) total += weight[i];
        uint32_t kept = 0;
        while (kept < n && (kept == 0 || sum < s->top_p * total)) sum += weight[kept++];
        n = kept;
    }
    while (n > 1 && weight[n - 1] < s->min_p * weight[0]) n--;
    return n;
}

static uint32_t draw(uint64_t seed, uint32_t position, const float *weight, uint32_t n)
{
    const uint32_t counter[4] = {position, 0, 0, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t x[4];
    wr_philox(counter, key, x);
    float total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += weight[i];
    float target = (float)(x[0] >> 8) * 0x1p-24f * total; /* below total for every u < 1 */
    for (uint32_t i = 0; i < n; i++) {
        sum += weight[i];
        if (sum > target) return i;
    }
    return n - 1;
}

int wr_sample(
    const weir_sampling *s, float *logits, uint32_t n_vocab, const int32_t *ids, size_t n_ids, uint32_t position, void *work, int32_t *id, weir_err *err)
{
    struct work *w = work;
    uint32_t *a = w->words, *b = w->words + n_vocab, best = 0, n = n_vocab;
    int code = wr_sample_check(s, n_vocab, err);
    if (code != 0) return code;
    for (size_t i = 0; i < s->n_bias; i++) logits[s->bias_ids[i]] += s->bias[i];
    penalize(s, logits, n_vocab, ids, n_ids, a);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (!(logits[i] < INFINITY)) return wr_err(err, WEIR_E_NONFINITE, "position %u: the logit of id %u is not finite", position, i);
        if (logits[i] > logits[best]) best = i;
    }
    if (n_vocab == 0 || logits[best] == -INFINITY) return wr_err(err, WEIR_E_NONFINITE, "position %u: every logit is -inf; no token is possible", position);
    if (s->temp == 0) {
        *id = (int32_t)best;
        return 0;
    }
    if (s->top_k > 0 && (uint32_t)s->top_k < n_vocab) n = (uint32_t)s->top_k;
    rank(logits, select_top(logits, n_vocab, n, w->histogram, a), w->histogram, a, b);
    /* The largest is subtracted before the division: no temperature, however small, makes a value overflow. */
    float *weight = (float *)a, top = logits[best];
    for (uint32_t i = 0; i < n; i++) weight[i] = wr_exp((logits[b[i]] - top) / s->temp);
    n = truncate_tail(s, weight, n);
    *id = (int32_t)b[draw(s->seed, position, weight, n)];
    return 0;
}
