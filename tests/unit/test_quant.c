/* SPDX-License-Identifier: Apache-2.0 */
/* Weight formats: decoders against hashes of two other programs, groups against rows, encoders against error bounds in double precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/num.h"
#include "quant/quant.h"

static void generate(uint32_t seed, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (uint8_t)(seed >> 24);
    }
}

static uint64_t fnv(const void *data, size_t n)
{
    const uint8_t *b = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* 64 blocks of ggml's own library: docs/FORMATS.md, golden vectors. The scales are kept finite by clearing two bits of their high byte. */
static void test_golden_ggml(void **state)
{
    static const struct {
        uint32_t type;
        int scale_at, n_scales;
        uint64_t hash;
        float first[3];
    } rows[] = {
        {WR_TYPE_Q4_0, 0, 1, 0x289d3ac2dd230e0b, {0, 0, -1.60839844f}},
        {WR_TYPE_Q4_1, 0, 2, 0x1c060982e1894982, {0.0334472656f, 2.04394531f, 2.24499512f}},
        {WR_TYPE_Q5_0, 0, 1, 0x344425e3be32ab92, {-1.00524902f, -2.41259766f, -2.61364746f}},
        {WR_TYPE_Q5_1, 0, 2, 0xd9fd14c1aeae294e, {0.63659668f, 2.84814453f, 2.44604492f}},
        {WR_TYPE_Q8_0, 0, 1, 0xb0f0eb4a8b9689ad, {14.4755859f, 8.04199219f, 16.0839844f}},
        {WR_TYPE_Q2_K, 80, 2, 0xf4937234e5dec236, {16.8457603f, 16.8457603f, 16.8457603f}},
        {WR_TYPE_Q3_K, 108, 1, 0x2ee00823caf4004a, {-0.00194120407f, 0.00258827209f, 0.00194120407f}},
        {WR_TYPE_Q4_K, 0, 2, 0x431b9a4b5b608124, {31.5324707f, 44.3996582f, 31.5324707f}},
        {WR_TYPE_Q5_K, 0, 2, 0x438190d60b5b08fa, {28.3156738f, 31.5324707f, 15.4484863f}},
        {WR_TYPE_Q6_K, 208, 1, 0xbcd40cdb4a7b0b03, {-1.31404877f, -18.3966827f, -31.5371704f}},
        {WR_TYPE_TQ2_0, 64, 1, 0xc4c6686a0d46b0b4, {1.27929688f, 0.639648438f, -0.639648438f}},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const struct wr_quant *quant = wr_quant_find(rows[r].type);
        static uint8_t blocks[64 * 210];
        static float out[64 * 256];
        const size_t n = 64 * quant->block_elems;
        assert_true(64 * quant->block_bytes <= sizeof blocks && n <= sizeof out / sizeof out[0]);
        generate(0x57454952, blocks, 64 * quant->block_bytes);
        for (int i = 0; i < 64; i++) {
            for (int s = 0; s < rows[r].n_scales; s++) blocks[i * (int)quant->block_bytes + rows[r].scale_at + 2 * s + 1] &= 0xbb;
        }
        quant->decode_f32(blocks, out, n);
        for (int i = 0; i < 3; i++) assert_true(out[i] == rows[r].first[i]);
        assert_true(fnv(out, n * sizeof *out) == rows[r].hash);
    }
}

/* Random blocks, infinite scales and NaNs included; made by tests/oracle/quant_golden.py. */
static void test_golden_gguf(void **state)
{
    static const struct {
        uint32_t type;
        size_t n_blocks;
        uint64_t hash;
    } rows[] = {
        {WR_TYPE_F16, 65536, 0x1f87f165810ea7c5},
        {WR_TYPE_BF16, 65536, 0xcf8e09175d8f5ba5},
        {WR_TYPE_Q4_0, 3000, 0x2c343d3a2a7f6107},
        {WR_TYPE_Q4_1, 3000, 0x6eb04ed6c18d313f},
        {WR_TYPE_Q5_0, 3000, 0x047222bb82792658},
        {WR_TYPE_Q5_1, 3000, 0x723f7910a3e3e37a},
        {WR_TYPE_Q8_0, 3000, 0x54685f2ab403558d},
        {WR_TYPE_Q2_K, 400, 0xb9ac5f601aa76911},
        {WR_TYPE_Q3_K, 400, 0xa9cf2b0764878681},
        {WR_TYPE_Q4_K, 400, 0x9eda664c0cbafc1f},
        {WR_TYPE_Q5_K, 400, 0x7a991eeddcf5ed54},
        {WR_TYPE_Q6_K, 400, 0x318e149e4d3442b9},
        {WR_TYPE_TQ2_0, 400, 0x0f7ecd1baeb2596f},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const struct wr_quant *quant = wr_quant_find(rows[r].type);
        size_t n_bytes = rows[r].n_blocks * quant->block_bytes, n = rows[r].n_blocks * quant->block_elems;
        uint8_t *blocks = malloc(n_bytes + 1), *odd = blocks + 1; /* an odd address: rows need no alignment */
        float *out = malloc(n * sizeof *out);
        if (quant->is_float) {
            for (uint32_t i = 0; i < 65536; i++) {
                odd[2 * i] = (uint8_t)i;
                odd[2 * i + 1] = (uint8_t)(i >> 8);
            }
        } else {
            generate(0x51554e54 + rows[r].type, odd, n_bytes);
        }
        quant->decode_f32(odd, out, n);
        for (size_t i = 0; i < n; i++) {
            if (isnan(out[i])) out[i] = wr_f32_from_bits(0x7fc00000);
        }
        assert_true(fnv(out, n * sizeof *out) == rows[r].hash);
        free(blocks);
        free(out);
    }
}

static void test_f32(void **state)
{
    (void)state;
    uint8_t raw[41];
    float out[10], back[10];
    generate(7, raw, sizeof raw);
    wr_quant_f32.decode_f32(raw + 1, out, 10);
    assert_memory_equal(raw + 1, out, 40);
    wr_quant_f32.encode(out, back, 10);
    assert_memory_equal(back, out, 40);
}

/* decode_group is what kernels multiply with, decode_f32 what the format means: the same numbers, bit for bit. */
static void test_groups(void **state)
{
    (void)state;
    for (uint32_t k = 0; wr_quant_at(k) != NULL; k++) {
        const struct wr_quant *quant = wr_quant_at(k);
        if (quant->is_float) {
            assert_null(quant->decode_group);
            continue;
        }
        enum { N = 256 };
        uint8_t blocks[N / 32 * 64];
        float out[N];
        assert_true(N / quant->block_elems * quant->block_bytes <= sizeof blocks);
        for (uint32_t round = 0; round < 50; round++) {
            generate(round * 977 + quant->id, blocks, sizeof blocks);
            quant->decode_f32(blocks, out, N);
            assert_true(quant->group == 32 || quant->group == 16);
            for (size_t g = 0; g < N / quant->group; g++) {
                int8_t q[WR_GROUP];
                float scale, min;
                quant->decode_group(blocks, g, q, &scale, &min);
                if (!quant->has_min) assert_true(wr_bits_from_f32(min) == 0);
                for (size_t i = 0; i < quant->group; i++) {
                    float w = (float)q[i] * scale, seen = out[g * quant->group + i];
                    if (quant->has_min) w += min;
                    assert_true(wr_bits_from_f32(w) == wr_bits_from_f32(seen) || (isnan(w) && isnan(seen)));
                }
            }
        }
    }
}

/* ---- encoders ---- */

static uint64_t random_state = 88172645463325252u;
static double uniform(void) /* [-1, 1) */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(int64_t)random_state / 9223372036854775808.0;
}

#define F16_ULP_NORMAL (1.0 / 2048) /* relative error of rounding to a normal half */
#define F16_ULP_TINY 0x1p-25        /* absolute error of rounding to a subnormal half */

static double rounding(double x) { return fabs(x) * F16_ULP_NORMAL + F16_ULP_TINY; }

/* Of the encoders: codes of an element and steps of the sub-scales. Formats without a minimum code 0 and are one step short above it. */
static const struct encoder {
    uint32_t type;
    double codes, sub_steps; /* sub_steps 0: the scale of a group is a half */
} encoders[] = {{WR_TYPE_Q4_0, 16, 0}, {WR_TYPE_Q4_1, 16, 0}, {WR_TYPE_Q5_0, 32, 0}, {WR_TYPE_Q5_1, 32, 0}, {WR_TYPE_Q8_0, 255, 0}, {WR_TYPE_Q2_K, 4, 15},
    {WR_TYPE_Q3_K, 8, 32}, {WR_TYPE_Q4_K, 16, 63}, {WR_TYPE_Q5_K, 32, 63}, {WR_TYPE_Q6_K, 64, 128}, {WR_TYPE_TQ2_0, 3, 0}};

static void range_of(const float *x, size_t n, double *lo, double *hi)
{
    *lo = *hi = x[0];
    for (size_t i = 1; i < n; i++) {
        *lo = fmin(*lo, x[i]);
        *hi = fmax(*hi, x[i]);
    }
}

/* The largest error that a nearest encoder may make on element i of a block: half a step, or one where the range has one code fewer above than below;
 * and what the rounding of its scale (and minimum) adds at the end of the range. */
static double bound(const struct wr_quant *quant, const struct encoder *e, const float *x, size_t i)
{
    double lo, hi;
    const size_t scaled = quant->id == WR_TYPE_TQ2_0 ? quant->block_elems : quant->group; /* elements that share a scale */
    range_of(x + i / scaled * scaled, scaled, &lo, &hi);
    const bool k = e->sub_steps > 0;
    if (k && quant->has_min) lo = fmin(lo, 0), hi = fmax(hi, 0); /* the minimum is not positive, and a range holds 0 */
    const double amax = fmax(fabs(lo), fabs(hi)), step = quant->has_min ? (hi - lo) / (e->codes - 1) : amax / floor(e->codes / 2);
    double scale_error = rounding(step), min_error = quant->has_min ? rounding(lo) : 0;
    if (k) { /* the steps are those of the group with the largest scale, of the one with the largest minimum */
        double largest = 0, lowest = 0;
        for (size_t g = 0; g < quant->block_elems; g += quant->group) {
            range_of(x + g, quant->group, &lo, &hi);
            if (quant->has_min) lo = fmin(lo, 0), hi = fmax(hi, 0);
            largest = fmax(largest, quant->has_min ? (hi - lo) / (e->codes - 1) : fmax(fabs(lo), fabs(hi)) / (e->codes / 2));
            lowest = fmax(lowest, -lo);
        }
        const double unit = largest / e->sub_steps;
        scale_error = unit * (quant->has_min ? 0.5 : 1) + e->sub_steps * rounding(unit); /* signed sub-scales are one short above, too */
        min_error = quant->has_min ? lowest / e->sub_steps / 2 + e->sub_steps * rounding(lowest / e->sub_steps) : 0;
    }
    const bool symmetric = quant->has_min || quant->id == WR_TYPE_Q8_0 || quant->id == WR_TYPE_TQ2_0;
    return step * (symmetric ? 0.5 : 1) + e->codes * scale_error + 2 * min_error + 1e-6 * amax;
}

static void test_encode_blocks(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof encoders / sizeof encoders[0]; k++) {
        const struct wr_quant *quant = wr_quant_find(encoders[k].type);
        const size_t n = quant->block_elems;
        double sum_error = 0, sum_size = 0;
        for (int round = 0; round < 4000; round++) {
            float x[256], y[256], z[256];
            uint8_t block[256], again[256];
            double magnitude = exp2(floor(uniform() * 14)), shift = round % 3 == 0 ? uniform() * magnitude : 0;
            for (size_t i = 0; i < n; i++) x[i] = (float)(uniform() * magnitude + shift);
            if (round % 5 == 0) {
                for (size_t i = 0; i < n; i++) x[i] *= (float)(1 + i / 16) / 16; /* groups of different ranges */
            }
            if (round % 7 == 0) {
                for (size_t i = 0; i < n; i++) x[i] = i % 5 == 0 ? 0 : x[i];
            }
            if (round % 101 == 0) memset(x, 0, sizeof x);
            quant->encode(x, block, n);
            quant->decode_f32(block, y, n);
            for (size_t i = 0; i < n; i++) {
                const double error = fabs((double)x[i] - (double)y[i]);
                assert_true(error <= bound(quant, &encoders[k], x, i));
                if (magnitude > 1e-2) sum_error += error / magnitude; /* below, the rounding of halves counts */
                if (magnitude > 1e-2) sum_size += 2 / encoders[k].codes;
            }
            /* What was decoded once is a fixed point of a nearest encoder, where its scale is found again. */
            quant->encode(y, again, n);
            quant->decode_f32(again, z, n);
            for (size_t i = 0; i < n; i++) assert_true(fabs((double)z[i] - (double)y[i]) <= bound(quant, &encoders[k], y, i));
        }
        /* The mean error of values spread evenly over a range of n steps is a quarter of a step. */
        assert_true(sum_error < 0.5 * sum_size && sum_error > 0.1 * sum_size);
    }
}

static void test_encode_floats(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        float x = (float)(uniform() * exp2(floor(uniform() * 15))), y;
        uint16_t h;
        wr_quant_f16.encode(&x, &h, 1);
        wr_quant_f16.decode_f32(&h, &y, 1);
        assert_true(fabs((double)x - (double)y) <= fmax(fabs((double)x) / 2048, 0x1p-25));
        wr_quant_bf16.encode(&x, &h, 1);
        wr_quant_bf16.decode_f32(&h, &y, 1);
        assert_true(fabs((double)x - (double)y) <= fabs((double)x) / 256);
    }
    /* Every finite value of a format is its own nearest neighbour. */
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, back;
        float y;
        wr_quant_bf16.decode_f32(&h, &y, 1);
        if (isfinite(y)) {
            wr_quant_bf16.encode(&y, &back, 1);
            assert_int_equal(back, h);
        }
        wr_quant_f16.decode_f32(&h, &y, 1);
        if (isfinite(y)) {
            wr_quant_f16.encode(&y, &back, 1);
            assert_int_equal(back, h);
        }
    }
    /* Ties go to even: halfway between bf16 neighbours 0x3f80, 0x3f81 and 0x3f82. */
    float ties[2] = {wr_f32_from_bits(0x3f808000), wr_f32_from_bits(0x3f818000)};
    uint16_t h[2];
    wr_quant_bf16.encode(ties, h, 2);
    assert_int_equal(h[0], 0x3f80);
    assert_int_equal(h[1], 0x3f82);
}

static void test_encode_extremes(void **state)
{
    (void)state;
    static const float extremes[] = {3.4028235e38f, -3.4028235e38f, 1e30f, -70000.0f, 65519.0f, 1e-45f, -1e-45f, 1e-30f, 6e-8f, -6e-8f, 0.0f, -0.0f};
    enum { N = sizeof extremes / sizeof extremes[0] };
    for (uint32_t k = 0; wr_quant_at(k) != NULL; k++) {
        const struct wr_quant *quant = wr_quant_at(k);
        for (uint32_t a = 0; a < N; a++) {
            for (uint32_t b = 0; b < N; b++) {
                float x[256], y[256];
                uint8_t block[1024];
                size_t n = quant->block_elems < 32 ? 32 : quant->block_elems;
                for (size_t i = 0; i < n; i++) x[i] = i % 2 ? extremes[a] : extremes[b];
                quant->encode(x, block, n);
                quant->decode_f32(block, y, n);
                for (size_t i = 0; i < n; i++) {
                    assert_true(isfinite(y[i]));
                    assert_true(fabsf(y[i]) <= 1.004f * fmaxf(fabsf(extremes[a]), fabsf(extremes[b])) + 1e-6f);
                }
            }
        }
    }
}

/* ---- tables ---- */

static void test_find(void **state)
{
    (void)state;
    assert_ptr_equal(wr_quant_find(2), &wr_quant_q4_0);
    assert_ptr_equal(wr_quant_find(30), &wr_quant_bf16);
    assert_null(wr_quant_find(4)); /* retired */
    assert_null(wr_quant_find(UINT32_MAX));
    assert_ptr_equal(wr_quant_find_name("q8_0"), &wr_quant_q8_0);
    assert_ptr_equal(wr_quant_find_name("F16"), &wr_quant_f16);
    assert_null(wr_quant_find_name("q8"));
    assert_null(wr_quant_find_name(""));
    uint32_t n = 0;
    for (; wr_quant_at(n) != NULL; n++) {
        const struct wr_quant *quant = wr_quant_at(n);
        assert_ptr_equal(wr_quant_find(quant->id), quant);
        assert_ptr_equal(wr_quant_find_name(quant->name), quant);
        assert_string_equal(wr_quant_type_name(quant->id), quant->name);
    }
    assert_true(n >= 13);
}

static void test_type_names(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        const char *part;
    } rows[] = {{4, "Q4_2"}, {5, "Q4_3"}, {12, "Q4_K"}, {14, "Q6_K"}, {20, "IQ4_NL"}, {31, "Q4_0_4_4"}, {33, "Q4_0_8_8"}, {36, "I2_S"}, {36, "IQ4_NL_4_4"},
        {39, "MXFP4"}, {40, "NVFP4"}, {42, "Q2_0"}, {133, "Q6_0"}, {158, "IQ1_KT"}, {202, "Q4_0_R8"}, {399, "Q8_K_R8"}, {255, "unknown"}, {43, "unknown"},
        {0x80000000u, "unknown"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) assert_non_null(strstr(wr_quant_type_name(rows[i].id), rows[i].part));
    for (uint32_t id = 0; id <= wr_quant_type_known(); id++) assert_string_not_equal(wr_quant_type_name(id), "unknown");
}

static void test_row_bytes(void **state)
{
    (void)state;
    uint64_t bytes = 99;
    assert_true(wr_quant_row_bytes(&wr_quant_q4_0, 4096, &bytes));
    assert_int_equal(bytes, 2304);
    assert_true(wr_quant_row_bytes(&wr_quant_q4_1, 64, &bytes));
    assert_int_equal(bytes, 40);
    assert_true(wr_quant_row_bytes(&wr_quant_q8_0, 32, &bytes));
    assert_int_equal(bytes, 34);
    assert_true(wr_quant_row_bytes(&wr_quant_q6_k, 512, &bytes));
    assert_int_equal(bytes, 420);
    assert_false(wr_quant_row_bytes(&wr_quant_q4_k, 224, &bytes)); /* whole groups, but no whole block */
    assert_true(wr_quant_row_bytes(&wr_quant_f32, 3, &bytes));
    assert_int_equal(bytes, 12);
    assert_false(wr_quant_row_bytes(&wr_quant_q4_0, 33, &bytes));
    assert_false(wr_quant_row_bytes(&wr_quant_f32, UINT64_MAX / 2, &bytes));
    assert_false(wr_quant_row_bytes(&wr_quant_q8_0, UINT64_MAX - 31, &bytes));
    assert_int_equal(bytes, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_ggml), cmocka_unit_test(test_golden_gguf), cmocka_unit_test(test_f32),
        cmocka_unit_test(test_groups), cmocka_unit_test(test_encode_blocks), cmocka_unit_test(test_encode_floats), cmocka_unit_test(test_encode_extremes),
        cmocka_unit_test(test_find), cmocka_unit_test(test_type_names), cmocka_unit_test(test_row_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
