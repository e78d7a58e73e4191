/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler against a plain one in double precision (qsort, a window scanned for each id, long sums), against probabilities it must
 * follow, and at its edges. Where the plain one sits on an edge of f32 rounding, either neighbour is right; those are counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "generate/sampler.h"

static uint64_t seed = 88172645463325252u;
static uint64_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}
static double uniform(void) { return (double)(next() >> 11) * 0x1p-53; }

static weir_sampling plain(void)
{
    weir_sampling s;
    memset(&s, 0, sizeof s);
    s.size = sizeof s;
    s.temp = 1;
    s.top_p = 1;
    s.repeat_penalty = 1;
    s.penalty_last = 64;
    return s;
}

/* Runs on a copy, in a work space of exactly the promised size with a fence behind it; 0 or the code in *code. */
static int32_t sample(const weir_sampling *s, const float *logits, uint32_t n, const int32_t *ids, size_t n_ids, uint32_t position, int *code, weir_err *err)
{
    size_t bytes = (size_t)wr_sample_work_bytes(n);
    float *copy = malloc(n * sizeof *copy);
    uint8_t *work = malloc(bytes + 64);
    int32_t id = -7;
    memcpy(copy, logits, n * sizeof *copy);
    memset(work, 0xa5, bytes + 64); /* work space needs no preparation */
    *code = wr_sample(s, copy, n, ids, n_ids, position, work, &id, err);
    for (int i = 0; i < 64; i++) assert_int_equal(work[bytes + (size_t)i], 0xa5);
    free(copy);
    free(work);
    return id;
}

static int32_t sampled(const weir_sampling *s, const float *logits, uint32_t n, const int32_t *ids, size_t n_ids, uint32_t position)
{
    weir_err err = {0};
    int code;
    int32_t id = sample(s, logits, n, ids, n_ids, position, &code, &err);
    if (code != 0) fail_msg("%s", err.text);
    return id;
}

/* ---- the plain sampler ---- */

struct candidate {
    double logit, weight;
    int32_t id;
};

static int by_logit(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* `nudge` moves top-p, min-p and u by a few f32 roundings. */
static int32_t expected(
    const weir_sampling *s, const float *logits, uint32_t n, const int32_t *ids, size_t n_ids, uint32_t position, double nudge_p, double nudge_u)
{
    struct candidate *c = malloc(n * sizeof *c);
    for (uint32_t i = 0; i < n; i++) {
        double l = logits[i];
        for (size_t b = 0; b < s->n_bias; b++)
            if (s->bias_ids[b] == (int32_t)i) l += s->bias[b];
        int count = 0;
        for (size_t j = 0; j < n_ids; j++) count += n_ids - j <= s->penalty_last && ids[j] == (int32_t)i;
        if (count > 0) {
            l = l > 0 ? l / s->repeat_penalty : l * s->repeat_penalty;
            l -= s->presence_penalty + (double)s->frequency_penalty * count;
        }
        c[i] = (struct candidate){(float)l, 0, (int32_t)i}; /* ranked in f32: ties are those of f32 */
    }
    qsort(c, n, sizeof *c, by_logit);
    int32_t result = c[0].id;
    if (s->temp > 0) {
        uint32_t k = s->top_k > 0 && (uint32_t)s->top_k < n ? (uint32_t)s->top_k : n, kept = 0, last = 0;
        double total = 0, sum = 0;
        for (uint32_t i = 0; i < k; i++) {
            c[i].weight = exp((c[i].logit - c[0].logit) / s->temp);
            total += c[i].weight;
        }
        for (kept = 0; kept < k && (kept == 0 || (s->top_p < 1 && sum / total < s->top_p + nudge_p) || s->top_p == 1); kept++) sum += c[kept].weight;
        for (sum = 0, last = 0; last < kept && (last == 0 || c[last].weight >= s->min_p - nudge_p); last++) sum += c[last].weight;
        uint32_t counter[4] = {position, 0, 0, 0}, key[2] = {(uint32_t)(s->seed & 0xffffffff), (uint32_t)(s->seed >> 32)}, x[4];
        wr_philox(counter, key, x);
        double u = floor(x[0] / 256.0) / 16777216.0 + nudge_u, running = 0;
        result = c[last - 1].id;
        for (uint32_t i = 0; i < last; i++) {
            running += c[i].weight / sum;
            if (running > u) {
                result = c[i].id;
                break;
            }
        }
    }
    free(c);
    return result;
}

static int check_against_plain(const weir_sampling *s, const float *logits, uint32_t n, const int32_t *ids, size_t n_ids, uint32_t position)
{
    static const double nudges[] = {0, 1e-6, -1e-6};
    int32_t id = sampled(s, logits, n, ids, n_ids, position);
    for (int p = 0; p < 3; p++)
        for (int u = 0; u < 3; u++)
            if (expected(s, logits, n, ids, n_ids, position, nudges[p], nudges[u]) == id) return p + u > 0;
    fail_msg("n %u temp %g top_k %d top_p %g min_p %g position %u: %d, expected %d", n, (double)s->temp, s->top_k, (double)s->top_p, (double)s->min_p, position,
        id, expected(s, logits, n, ids, n_ids, position, 0, 0));
    return 0;
}

static void random_parameters(void **state)
{
    (void)state;
    static const float temps[] = {0, 0.1f, 0.8f, 1, 1.7f}, top_ps[] = {1, 0.95f, 0.5f, 1e-6f}, min_ps[] = {0, 0.05f, 0.3f, 0.99f},
                       repeats[] = {1, 1.1f, 0.8f, 2};
    int on_edge = 0, rounds = 20000;
    for (int i_draw = 0; i_draw < rounds; i_draw++) {
        float logits[300], bias[3];
        int32_t ids[100], bias_ids[3];
        uint32_t n = 1 + (uint32_t)(next() % 300), position = (uint32_t)(next() % 100000);
        size_t n_ids = next() % 100;
        bool coarse = next() % 3 == 0; /* whole numbers: many ties */
        for (uint32_t i = 0; i < n; i++) {
            double l = (uniform() - 0.5) * 20;
            logits[i] = coarse ? (float)round(l / 2) : (float)l;
        }
        for (size_t i = 0; i < n_ids; i++) ids[i] = (int32_t)(next() % n);
        weir_sampling s = plain();
        s.temp = temps[next() % 5];
        s.top_k = (int32_t)(next() % 3 == 0 ? 0 : next() % 60);
        s.top_p = top_ps[next() % 4];
        s.min_p = min_ps[next() % 4];
        s.repeat_penalty = repeats[next() % 4];
        if (next() % 2) s.presence_penalty = 0.5f;
        if (next() % 2) s.frequency_penalty = 0.25f;
        s.penalty_last = (uint32_t)(next() % 120);
        s.seed = next();
        s.n_bias = next() % 4;
        for (size_t i = 0; i < s.n_bias; i++) {
            bias_ids[i] = (int32_t)(next() % n);
            bias[i] = (float)((int)(next() % 9) - 4);
        }
        s.bias_ids = bias_ids;
        s.bias = bias;
        on_edge += check_against_plain(&s, logits, n, ids, n_ids, position);
    }
    print_message("%d of %d draws sat on an edge of rounding\n", on_edge, rounds);
    assert_true(on_edge < rounds / 200);
}

/* ---- a vocabulary of 262144 words ---- */

static void large_vocabulary(void **state)
{
    (void)state;
    uint32_t n = 262144;
    float *logits = malloc(n * sizeof *logits);
    struct candidate *c = malloc(n * sizeof *c);
    static const int32_t top_ks[] = {0, 1, 40, 5000, 262143, 262144, INT32_MAX};
    double worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = (float)(-2 * log(1 / (uniform() + 1e-12) - 1 + 1e-9)); /* logistic: a long tail */
        c[i] = (struct candidate){(double)logits[i], exp((double)logits[i]), (int32_t)i};
    }
    qsort(c, n, sizeof *c, by_logit);
    for (uint32_t t = 0; t < 28; t++) {
        weir_sampling s = plain();
        s.top_k = top_ks[t % 7];
        s.top_p = t % 2 ? 1 : 0.9f;
        s.seed = t;
        uint32_t k = s.top_k > 0 && (uint32_t)s.top_k < n ? (uint32_t)s.top_k : n, kept, counter[4] = {t, 0, 0, 0}, key[2] = {t, 0}, x[4];
        double total = 0, sum = 0, below = 0;
        for (uint32_t i = 0; i < k; i++) total += c[i].weight;
        for (kept = 0; kept < k && (s.top_p == 1 || sum < (double)s.top_p * total); kept++) sum += c[kept].weight;
        int32_t id = sampled(&s, logits, n, NULL, 0, t);
        uint32_t place = 0;
        for (; place < k && c[place].id != id; place++) below += c[place].weight;
        assert_true(place < k && place <= kept + kept / 100);
        /* How far u is from the id's interval: what the f32 sums of up to 262144 weights may err. */
        wr_philox(counter, key, x);
        double u = floor(x[0] / 256.0) / 16777216.0, low = below / sum, high = (below + c[place].weight) / sum,
               off = u < low    ? low - u
                     : u > high ? u - high
                                : 0;
        if (off > worst) worst = off;
    }
    print_message("262144 words: u was at most %.2g off its interval\n", worst);
    assert_true(worst < 1e-4);
    free(c);
    /* All the same: rank is id. */
    for (uint32_t i = 0; i < n; i++) logits[i] = -3.25f;
    for (uint32_t position = 0; position < 4; position++) {
        weir_sampling s = plain();
        uint32_t counter[4] = {position, 0, 0, 0}, key[2] = {5, 0}, x[4];
        s.seed = 5;
        wr_philox(counter, key, x);
        assert_int_equal(sampled(&s, logits, n, NULL, 0, position), (x[0] >> 8) / 64); /* every sum is a whole number below 2^24: exact */
        s.top_k = 4096;
        assert_int_equal(sampled(&s, logits, n, NULL, 0, position), (x[0] >> 8) / 4096);
    }
    free(logits);
}

/* ---- what it must follow ---- */

static void probabilities(void **state)
{
    (void)state;
    static const float logits[8] = {1, 3, 2, -1, 0.5f, 2, -40, 2.5f};
    uint32_t draws = 40000;
    for (int variant = 0; variant < 4; variant++) {
        weir_sampling s = plain();
        double p[8], total = 0, chi = 0;
        uint32_t seen[8] = {0};
        s.temp = variant == 1 ? 0.5f : 1;
        s.top_k = variant == 2 ? 3 : 0;    /* ids 1, 7 and, of the tie 2 and 5, the lower */
        s.min_p = variant == 3 ? 0.2f : 0; /* e^-1 = 0.37 stays, e^-2 = 0.135 goes */
        s.seed = 0x123456789abcdefu;
        for (int i = 0; i < 8; i++) {
            p[i] = exp((double)logits[i] / (double)s.temp);
            if (variant == 2 && i != 1 && i != 7 && i != 2) p[i] = 0;
            if (variant == 3 && i != 1 && i != 7 && i != 2 && i != 5) p[i] = 0;
            total += p[i];
        }
        for (uint32_t position = 0; position < draws; position++) seen[sampled(&s, logits, 8, NULL, 0, position)]++;
        for (int i = 0; i < 8; i++) {
            double e = draws * p[i] / total;
            if (p[i] == 0 || e < 1e-3)
                assert_int_equal(seen[i], 0);
            else
                chi += (seen[i] - e) * (seen[i] - e) / e;
        }
        assert_true(chi < 29.9); /* 7 degrees of freedom: 1 in 10000 */
    }
}

/* The same everything gives the same token; seed and position each change the draw. */
static void draw_depends_on_seed_and_position(void **state)
{
    (void)state;
    float logits[1000] = {0};
    weir_sampling s = plain();
    int same_position = 0, same_seed = 0, same_high = 0;
    for (uint32_t i = 0; i < 500; i++) {
        s.seed = 7;
        int32_t a = sampled(&s, logits, 1000, NULL, 0, i);
        assert_int_equal(a, sampled(&s, logits, 1000, NULL, 0, i));
        same_position += a == sampled(&s, logits, 1000, NULL, 0, i + 1);
        s.seed = 8;
        same_seed += a == sampled(&s, logits, 1000, NULL, 0, i);
        s.seed = 7 | (uint64_t)1 << 32;
        same_high += a == sampled(&s, logits, 1000, NULL, 0, i);
    }
    assert_true(same_position < 10 && same_seed < 10 && same_high < 10);
}

/* ---- edges ---- */

static void ties_and_zeros(void **state)
{
    (void)state;
    static const float logits[6] = {-1, 2, 2, 0, 2, -1}, zeros[4] = {-0.0f, 0.0f, -0.0f, 0.0f};
    weir_sampling s = plain();
    s.temp = 0;
    assert_int_equal(sampled(&s, logits, 6, NULL, 0, 0), 1);
    s.temp = 1;
    s.top_k = 1;
    assert_int_equal(sampled(&s, logits, 6, NULL, 0, 0), 1);
    s.top_k = 2; /* of three equals, the two lower ids */
    bool seen[6] = {0};
    for (uint32_t position = 0; position < 100; position++) seen[sampled(&s, logits, 6, NULL, 0, position)] = true;
    assert_true(seen[1] && seen[2] && !seen[4] && !seen[0] && !seen[3] && !seen[5]);
    s.top_k = 0;
    s.top_p = 0.4f; /* the first two of the three reach 0.4 of 0.9 */
    memset(seen, 0, sizeof seen);
    for (uint32_t position = 0; position < 100; position++) seen[sampled(&s, logits, 6, NULL, 0, position)] = true;
    assert_true(seen[1] && seen[2] && !seen[4]);
    s.top_p = 1;
    s.top_k = 1; /* -0 and +0 are equal: the lower id */
    assert_int_equal(sampled(&s, zeros, 4, NULL, 0, 0), 0);
    s.top_k = 3;
    for (uint32_t position = 0; position < 50; position++) assert_int_not_equal(sampled(&s, zeros, 4, NULL, 0, position), 3);
}

/* "The first cumulative sum > u * total": where u * total is exactly a cumulative sum, the next word is drawn. */
static void draw_at_a_border(void **state)
{
    (void)state;
    float logits[4096] = {0};
    weir_sampling s = plain();
    int n = 0;
    s.seed = 3;
    for (uint32_t position = 0; position < 40000; position++) {
        uint32_t counter[4] = {position, 0, 0, 0}, key[2] = {3, 0}, x[4];
        wr_philox(counter, key, x);
        if ((x[0] >> 8) % 4096 != 0) continue;
        assert_int_equal(sampled(&s, logits, 4096, NULL, 0, position), (x[0] >> 8) / 4096);
        n++;
    }
    assert_true(n > 2);
}

static void biases(void **state)
{
    (void)state;
    static const float logits[4] = {1, 9, 3, 2};
    static const int32_t ids[5] = {1, 2, 2, 3, 0};
    static const float bias[5] = {-INFINITY, 1, -INFINITY, -INFINITY, -INFINITY};
    weir_sampling s = plain();
    weir_err err = {0};
    int code;
    s.bias_ids = ids;
    s.bias = bias;
    s.n_bias = 1;
    for (uint32_t position = 0; position < 200; position++) /* the sure one never comes */
        assert_int_not_equal(sampled(&s, logits, 4, NULL, 0, position), 1);
    s.n_bias = 4;
    for (int temp = 0; temp < 2; temp++) { /* only id 0 is left */
        s.temp = (float)temp;
        for (uint32_t position = 0; position < 50; position++) assert_int_equal(sampled(&s, logits, 4, NULL, 0, position), 0);
    }
    s.n_bias = 5;
    assert_int_equal(sample(&s, logits, 4, NULL, 0, 0, &code, &err), -7);
    assert_int_equal(code, WEIR_E_NONFINITE);
    assert_non_null(strstr(err.text, "no token is possible"));
    static const int32_t forced = 3;
    static const float plenty = 100;
    s = plain();
    s.bias_ids = &forced;
    s.bias = &plenty;
    s.n_bias = 1;
    for (uint32_t position = 0; position < 50; position++) assert_int_equal(sampled(&s, logits, 4, NULL, 0, position), 3);
}

static void penalties(void **state)
{
    (void)state;
    /* By hand, at temp 0. */
    static const float logits[4] = {4, 3.5f, -1, -1.5f};
    static const int32_t ids[] = {1, 0, 0, 2};
    weir_sampling s = plain();
    s.temp = 0;
    s.repeat_penalty = 1.2f; /* 4 / 1.2 = 3.33, 3.5 / 1.2 = 2.92 */
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 0);
    s.penalty_last = 3; /* id 1 is out of the window */
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 1);
    s.penalty_last = 0;
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 0);
    s = plain();
    s.temp = 0;
    s.frequency_penalty = 0.4f; /* 4 - 0.8 = 3.2, 3.5 - 0.4 = 3.1 */
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 0);
    s.frequency_penalty = 0.6f; /* 2.8, 2.9 */
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 1);
    s.frequency_penalty = 0;
    s.presence_penalty = 5.3f; /* -1.3, -1.8, -6.3; id 3 has -1.5 */
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 0);
    s.presence_penalty = 5.6f; /* -1.6, -2.1 */
    assert_int_equal(sampled(&s, logits, 4, ids, 4, 4), 3);
    static const float negative[2] = {-1, -1.5f};
    s = plain();
    s.temp = 0;
    s.repeat_penalty = 2; /* -1 * 2: a negative logit falls too */
    assert_int_equal(sampled(&s, negative, 2, ids + 1, 1, 1), 1);
    static const int32_t foreign[] = {-1, 99, 0};
    assert_int_equal(sampled(&s, negative, 2, foreign, 3, 3), 1);
}

static void extreme_values(void **state)
{
    (void)state;
    static const float far[3] = {-3e38f, 3e38f, 3e38f}, down[3] = {-INFINITY, -5, -INFINITY};
    weir_sampling s = plain();
    weir_err err = {0};
    int code;
    for (uint32_t position = 0; position < 50; position++) {
        s.temp = 1;
        assert_int_not_equal(sampled(&s, far, 3, NULL, 0, position), 0);
        assert_int_equal(sampled(&s, down, 3, NULL, 0, position), 1);
        s.temp = 1e-45f; /* the least there is: the largest logit, and no overflow */
        assert_int_not_equal(sampled(&s, far, 3, NULL, 0, position), 0);
        assert_int_equal(sampled(&s, down, 3, NULL, 0, position), 1);
        s.temp = 3e38f;
        assert_true(sampled(&s, far, 3, NULL, 0, position) >= 0);
    }
    static const float bad[3] = {1, 2, 3};
    for (int i = 0; i < 3; i++)
        for (int temp = 0; temp < 2; temp++) {
            float logits[3];
            memcpy(logits, bad, sizeof logits);
            s.temp = (float)temp;
            logits[i] = NAN;
            assert_int_equal(sample(&s, logits, 3, NULL, 0, 0, &code, &err), -7);
            assert_int_equal(code, WEIR_E_NONFINITE);
            logits[i] = INFINITY;
            assert_int_equal(sample(&s, logits, 3, NULL, 0, 12, &code, &err), -7);
            assert_int_equal(code, WEIR_E_NONFINITE);
            assert_non_null(strstr(err.text, "position 12"));
        }
    assert_int_equal(sample(&s, down, 1, NULL, 0, 0, &code, &err), -7); /* all -inf */
    assert_int_equal(code, WEIR_E_NONFINITE);
}

static void refused(const weir_sampling *s, const char *word)
{
    static const float logits[4] = {1, 2, 3, 4};
    weir_err err = {0};
    int code;
    assert_int_equal(wr_sample_check(s, 4, &err), WEIR_E_USAGE);
    if (strstr(err.text, word) == NULL) fail_msg("'%s' does not name %s", err.text, word);
    assert_int_equal(sample(s, logits, 4, NULL, 0, 0, &code, NULL), -7);
    assert_int_equal(code, WEIR_E_USAGE);
}

static void bad_parameters(void **state)
{
    (void)state;
    weir_sampling good = plain(), s;
    assert_int_equal(wr_sample_check(&good, 4, NULL), 0);
#define REFUSED(field, value, word)                                                                                                                            \
    s = good;                                                                                                                                                  \
    s.field = value;                                                                                                                                           \
    refused(&s, word)
    REFUSED(temp, -0.1f, "temp");
    REFUSED(temp, NAN, "temp");
    REFUSED(temp, INFINITY, "temp");
    REFUSED(top_k, -1, "top-k");
    REFUSED(top_p, 0, "top-p");
    REFUSED(top_p, 1.01f, "top-p");
    REFUSED(top_p, NAN, "top-p");
    REFUSED(min_p, 1, "min-p");
    REFUSED(min_p, -0.1f, "min-p");
    REFUSED(min_p, NAN, "min-p");
    REFUSED(repeat_penalty, 0, "repeat-penalty");
    REFUSED(repeat_penalty, INFINITY, "repeat-penalty");
    REFUSED(repeat_penalty, NAN, "repeat-penalty");
    REFUSED(presence_penalty, NAN, "presence-penalty");
    REFUSED(frequency_penalty, -INFINITY, "frequency-penalty");
    REFUSED(n_bias, 1, "logit-bias");
#undef REFUSED
    static const int32_t ids[3] = {3, 4, -1};
    static const float bias[3] = {NAN, 1, INFINITY};
    for (int i = 0; i < 3; i++) {
        s = good;
        s.bias_ids = ids + i;
        s.bias = bias + i;
        s.n_bias = 1;
        refused(&s, "logit-bias");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_parameters),
        cmocka_unit_test(large_vocabulary),
        cmocka_unit_test(probabilities),
        cmocka_unit_test(draw_depends_on_seed_and_position),
        cmocka_unit_test(ties_and_zeros),
        cmocka_unit_test(draw_at_a_border),
        cmocka_unit_test(biases),
        cmocka_unit_test(penalties),
        cmocka_unit_test(extreme_values),
        cmocka_unit_test(bad_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
