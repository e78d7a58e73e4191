/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number functions against the C library's long double functions and the CPU's own conversions. Largest errors are asserted,
 * not only printed: they are part of the arithmetic's description.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/num.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint64_t seed = 88172645463325252u;
static uint64_t next(void) /* xorshift64 */
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}
static double uniform(double low, double high) { return low + (high - low) * ((double)(next() >> 11) * 0x1p-53); }

/* ---- f16 ---- */

static double value_of_half(uint16_t h) /* finite ones, from the definition */
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void half_to_float(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = wr_f32_from_f16((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            uint32_t expected = (h & 0x8000) << 16 | 0x7f800000 | (h & 0x3ff) << 13 | (h & 0x3ff ? 0x400000 : 0);
            assert_int_equal(wr_bits_from_f32(f), expected);
            if (h & 0x3ff)
                assert_int_equal(wr_f16_from_f32(f), h | 0x200); /* the payload comes back, quiet */
            else
                assert_int_equal(wr_f16_from_f32(f), h);
        } else {
            assert_true((double)f == value_of_half((uint16_t)h) && (signbit(f) != 0) == (h >> 15 != 0));
            assert_int_equal(wr_f16_from_f32(f), h);
        }
    }
    assert_true(wr_f32_from_bf16(0x3f80) == 1.0f && wr_f32_from_bf16(0xc2c8) == -100.0f);
}

/* Nearest by definition: among the candidates around it, the smallest distance, the even one of two. */
static uint16_t nearest_half(float x)
{
    uint16_t low = 0, high = 0x7c00, sign = signbit(x) ? 0x8000 : 0;
    double m = fabs((double)x);
    if (m >= 65520.0) return sign | 0x7c00; /* half way to 2^16, even */
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (value_of_half(middle) <= m)
            low = middle;
        else
            high = middle;
    }
    if (high == 0x7c00) return sign | low;
    double below = m - value_of_half(low), above = value_of_half(high) - m;
    return sign | (below < above || (below == above && (low & 1) == 0) ? low : high);
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static uint16_t cpu_half(float x) { return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
__attribute__((target("f16c"))) static float cpu_float(uint16_t h) { return _cvtsh_ss(h); }
static bool cpu_has_f16c(void) { return __builtin_cpu_supports("avx2"); } /* clang 14 has no name for f16c; who has AVX2 has it */
#else
static uint16_t cpu_half(float x) { return nearest_half(x); }
static float cpu_float(uint16_t h) { return (float)value_of_half(h); }
static bool cpu_has_f16c(void) { return false; }
#endif

static void check_half(uint32_t bits, bool f16c)
{
    float x = wr_f32_from_bits(bits);
    uint16_t got = wr_f16_from_f32(x);
    if (x == x && got != nearest_half(x)) fail_msg("%a became %04x, not %04x", (double)x, got, nearest_half(x));
    if (f16c && got != cpu_half(x)) fail_msg("%08x became %04x, on the CPU %04x", bits, got, cpu_half(x));
}

static void float_to_half(void **state)
{
    (void)state;
    bool f16c = cpu_has_f16c();
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4099) check_half((uint32_t)bits, f16c);
    for (uint32_t h = 0; h < 0x7c00; h++) { /* the middle between each two neighbours, and the floats beside it */
        float middle = (float)((value_of_half((uint16_t)h) + value_of_half((uint16_t)(h + 1 < 0x7c00 ? h + 1 : h))) / 2);
        for (int d = -1; d <= 1; d++) {
            check_half(wr_bits_from_f32(middle) + (uint32_t)d, f16c);
            check_half((wr_bits_from_f32(middle) + (uint32_t)d) ^ 0x80000000, f16c);
        }
    }
    for (uint32_t bits = wr_bits_from_f32(65503.0f); bits < wr_bits_from_f32(65537.0f); bits++) check_half(bits, f16c);
    for (uint32_t h = 0; f16c && h < 65536; h++) assert_int_equal(wr_bits_from_f32(wr_f32_from_f16((uint16_t)h)), wr_bits_from_f32(cpu_float((uint16_t)h)));
}

/* ---- f32 functions ---- */

static long double ulp_f32(long double exact)
{
    int e;
    frexpl(exact, &e);
    return ldexpl(1, e - 24 < -149 ? -149 : e - 24);
}

static void exponential(void **state)
{
    (void)state;
    long double worst = 0;
    for (uint32_t sign = 0; sign < 2; sign++) {
        uint32_t last = wr_bits_from_f32(sign ? 87.0f : 88.7f);
        /* Below 2^-24 the result is 1 or its neighbour: every 9973rd will do. */
        for (uint32_t bits = 0; bits <= last; bits += bits < 0x33800000 ? 9973 : 61) {
            float x = wr_f32_from_bits(bits | sign << 31);
            long double exact = expl((long double)x), error = fabsl((long double)wr_exp(x) - exact) / ulp_f32(exact);
            if (error > worst) worst = error;
        }
    }
    assert_true(worst > 0.5L && worst < 0.885L);
    /* The worst of all floats, found by trying every one. */
    float x = 0x1.4cec68p+2f;
    long double exact = expl((long double)x), error = fabsl((long double)wr_exp(x) - exact) / ulp_f32(exact);
    print_message("exp: largest error %.4Lf ulp over the sample, %.4Lf ulp at the worst float\n", worst, error);
    assert_true(error > 0.894L && error < 0.8945L);
    assert_true(wr_exp(0.0f) == 1.0f && wr_exp(-0.0f) == 1.0f);
    assert_true(wr_exp(-87.0f) > 0 && wr_exp(nextafterf(-87.0f, -100)) == 0 && !signbit(wr_exp(-INFINITY)) && wr_exp(-INFINITY) == 0);
    assert_true(isfinite(wr_exp(88.7f)) && isinf(wr_exp(nextafterf(88.7f, 100))) && isinf(wr_exp(INFINITY)));
    assert_true(isnan(wr_exp(NAN)));
}

static void activations(void **state)
{
    (void)state;
    long double worst_tanh = 0, worst_silu = 0, worst_gelu = 0;
    for (int i = 0; i < 1000000; i++) {
        float x = (float)uniform(-20, 20);
        long double t = fabsl((long double)wr_tanh(x) - tanhl((long double)x)); /* absolute: 1 - (1 - small) cancels */
        long double exact = (long double)x / (1 + expl(-(long double)x)), s = fabsl((long double)wr_silu(x) - exact) / ulp_f32(exact);
        if (t > worst_tanh) worst_tanh = t;
        if (s > worst_silu) worst_silu = s;
        long double u = 0.79788456080286535588L * (x + 0.044715L * x * x * x), g = fabsl(wr_gelu(x) - 0.5L * x * (1 + tanhl(u))) / fabsl(x);
        if (g > worst_gelu) worst_gelu = g;
    }
    print_message("tanh: largest error %.3Lg; silu: %.3Lf ulp; gelu: %.3Lg of its argument\n", worst_tanh, worst_silu, worst_gelu);
    assert_true(worst_tanh < 2.5e-7L && worst_silu < 3 && worst_gelu < 2.5e-7L);
    assert_true(
        wr_tanh(100) == 1 && wr_tanh(-100) == -1 && wr_tanh(0) == 0 && wr_silu(0) == 0 && wr_silu(-1000) == 0 && isnan(wr_tanh(NAN)) && isnan(wr_silu(NAN)));
    assert_true(wr_gelu(0) == 0 && wr_gelu(-1000) == 0 && wr_gelu(1000) == 1000 && wr_gelu(3e38f) == 3e38f && isnan(wr_gelu(NAN)));
}

/* The code is the definition: lanes must give these bits. A chain in double precision, rounded to f32 after each step, is an fma. */
static float fma_by_double(float a, float b, float c)
{
    long double exact = (long double)a * b + c; /* 64 bits hold the product; the sum may round, so ties are skipped by the caller */
    return (float)exact;
}

static void exponential_is_the_stated_chain(void **state)
{
    (void)state;
    static const double c[] = {0x1.6a243p-10, 0x1.1239e4p-7, 0x1.5558f2p-5, 0x1.555492p-3, 0x1.fffffcp-2, 1, 1};
    int differ = 0;
    for (int i = 0; i < 300000; i++) {
        float x = (float)uniform(-87, 88.7), n = rintf(x * 0x1.715476p+0f);
        float r = fma_by_double(-n, 0x1.62e430p-1f, x);
        r = fma_by_double(-n, -0x1.05c610p-29f, r);
        float p = (float)c[0];
        for (int k = 1; k < 7; k++) p = fma_by_double(p, r, (float)c[k]);
        differ += ldexpf(p, (int)n) != wr_exp(x);
    }
    assert_true(differ < 3); /* double rounding through 64 bits: once in some 2^40 */
}

/* ---- f64 functions ---- */

static long double relative(double got, long double exact) { return exact == 0 ? fabsl((long double)got) : fabsl(((long double)got - exact) / exact); }

static void sine_and_cosine(void **state)
{
    (void)state;
    static const double spans[] = {0.8, 7, 1e3, 1e6, 2147483647.0};
    long double worst = 0;
    int differ = 0;
    for (size_t s = 0; s < sizeof spans / sizeof spans[0]; s++)
        for (int i = 0; i < 100000; i++) {
            double x = uniform(-spans[s], spans[s]);
            if (i % 4 == 0) x = (double)(int64_t)x;         /* positions times 1 */
            if (i % 4 == 1) x = round(x * M_2_PI) * M_PI_2; /* next to the zeros */
            long double es = sinl((long double)x), ec = cosl((long double)x), a = relative(wr_sin(x), es), b = relative(wr_cos(x), ec);
            if (a > worst) worst = a;
            if (b > worst) worst = b;
            differ += (float)wr_sin(x) != (float)es || (float)wr_cos(x) != (float)ec;
        }
    print_message("sin, cos: largest relative error %.3Lg\n", worst);
    assert_true(worst < 1.3e-16L);
    assert_int_equal(differ, 0);
    assert_true(wr_sin(0) == 0 && wr_cos(0) == 1 && wr_cos(-1.5) == wr_cos(1.5) && wr_sin(-1.5) == -wr_sin(1.5));
}

static void power_and_logarithm(void **state)
{
    (void)state;
    long double worst_pow = 0, worst_log = 0;
    int differ = 0;
    for (int i = 0; i < 400000; i++) {
        double x = exp(uniform(-16.2, 16.2)), y = uniform(-2, 2); /* bases 1e-7 .. 1e7 */
        if (i % 4 == 0) x = 1 + uniform(-1e-3, 1e-3);
        long double p = powl((long double)x, (long double)y), l = logl((long double)x), a = relative(wr_pow(x, y), p), b = relative(wr_ln(x), l);
        if (a > worst_pow) worst_pow = a;
        if (b > worst_log) worst_log = b;
        differ += (float)wr_pow(x, y) != (float)p;
    }
    print_message("pow: largest relative error %.3Lg; log: %.3Lg\n", worst_pow, worst_log);
    assert_true(worst_pow < 1.3e-16L && worst_log < 1.2e-16L);
    assert_int_equal(differ, 0);
    assert_true(wr_pow(10000, 0) == 1 && wr_pow(1, 1.7) == 1 && wr_ln(1) == 0);
    assert_true(relative(wr_pow(10, 300), 1e300L) < 1e-13L && relative(wr_pow(10, -310), 1e-310L) < 1e-13L); /* the ends of the range */
    assert_true(relative(wr_ln(0x1p-1074), -1074 * logl(2)) < 3e-16L && relative(wr_ln(0x1.fffffffffffffp1023), logl(0x1.fffffffffffffp1023L)) < 3e-16L);
}

/* What RoPE asks for, with the bases and sizes of real models: every table entry equals the correctly rounded one. */
static void rope_tables(void **state)
{
    (void)state;
    static const float bases[] = {1e4f, 5e5f, 1e6f, 1e7f, 150000.0f};
    static const int sizes[] = {32, 64, 80, 128, 256};
    for (size_t b = 0; b < 5; b++)
        for (size_t s = 0; s < 5; s++)
            for (int i = 0; i < sizes[s] / 2; i++) {
                double exponent = 2.0 * i / sizes[s];
                float f = (float)(1.0 / wr_pow((double)bases[b], exponent)), exact = (float)(1.0L / powl((long double)bases[b], (long double)exponent));
                if (f != exact) fail_msg("base %g, %d of %d: %a, not %a", (double)bases[b], i, sizes[s], (double)f, (double)exact);
                for (uint32_t position = 1; position < 1000000; position = position * 3 + 1) {
                    double angle = (double)position * f;
                    assert_true((float)wr_sin(angle) == (float)sinl((long double)angle) && (float)wr_cos(angle) == (float)cosl((long double)angle));
                }
            }
}

/* ---- philox, modes ---- */

static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        /* Random123, kat_vectors, philox4x32 10 */
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        wr_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void thread_mode(void **state)
{
    (void)state;
    volatile float one = 1.0f, tiny = 0x1p-25f, least = 0x1p-126f;
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
    assert_true(least * 0.5f == 0);
#elif defined(__aarch64__)
    __builtin_aarch64_set_fpcr(__builtin_aarch64_get_fpcr() | 1u << 24); /* flush to zero */
    assert_true(least * 0.5f == 0);
#endif
    assert_true(one + tiny > 1.0f);
    wr_num_thread_init();
    assert_true(one + tiny == 1.0f);
    assert_true(least * 0.5f == 0x1p-127f);
    fesetround(FE_TONEAREST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_to_float),
        cmocka_unit_test(float_to_half),
        cmocka_unit_test(exponential),
        cmocka_unit_test(exponential_is_the_stated_chain),
        cmocka_unit_test(activations),
        cmocka_unit_test(sine_and_cosine),
        cmocka_unit_test(power_and_logarithm),
        cmocka_unit_test(rope_tables),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(thread_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
