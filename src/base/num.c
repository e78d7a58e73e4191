/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers. The f32 functions use fmaf where the rules say fma and nothing else that a CPU may round in its own way; the f64 functions
 * use no fma at all, only +, -, *, / and exact splits (Dekker 1971, Knuth TAOCP 4.2.2), so that every CPU and compiler gives the same bits.
 */
#include "base/num.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- f16 ---- */

float wr_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return wr_f32_from_bits(sign | 0x7f800000 | fraction << 13 | (fraction != 0 ? 0x00400000 : 0));
    if (exponent != 0) return wr_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* subnormal or zero: exact */
    return wr_f32_from_bits(sign | wr_bits_from_f32(magnitude));
}

uint16_t wr_f16_from_f32(float x)
{
    uint32_t u = wr_bits_from_f32(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
    /* Below 2^-14: the last bit of the sum with 0.5 is 2^-24, so the addition rounds to it, half to even. */
    if (magnitude < 0x38800000) {
        float shifted = wr_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (wr_bits_from_f32(shifted) - 0x3f000000));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

/* ---- f32 functions ---- */

float wr_exp(float x)
{
    if (x != x) return x + x;
    if (x < WR_EXP_MIN) return 0.0f;
    if (x > WR_EXP_MAX) return wr_f32_from_bits(0x7f800000);
    /* Adding 1.5 * 2^23 rounds to a whole number, half to even; |x * log2e| is below 129. */
    float n = x * WR_EXP_LOG2E + 0x1.8p23f - 0x1.8p23f;
    float r = fmaf(-n, WR_EXP_LN2HI, x);
    r = fmaf(-n, WR_EXP_LN2LO, r);
    float p = fmaf(WR_EXP_C6, r, WR_EXP_C5);
    p = fmaf(p, r, WR_EXP_C4);
    p = fmaf(p, r, WR_EXP_C3);
    p = fmaf(p, r, WR_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return wr_f32_from_bits(wr_bits_from_f32(p) + ((uint32_t)(int32_t)n << 23));
}

float wr_tanh(float y) { return 1.0f - 2.0f / (1.0f + wr_exp(2.0f * y)); }

/* ---- f64: pairs hi + lo with |lo| <= ulp(hi) / 2 ---- */

struct pair {
    double hi, lo;
};

static struct pair two_sum(double a, double b)
{
    double s = a + b, t = s - a;
    return (struct pair){s, (a - (s - t)) + (b - t)};
}

static struct pair fast_two_sum(double a, double b) /* |a| >= |b| or a = 0 */
{
    double s = a + b;
    return (struct pair){s, b - (s - a)};
}

static struct pair split(double a)
{
    double c = 134217729.0 * a, hi = c - (c - a); /* 2^27 + 1 */
    return (struct pair){hi, a - hi};
}

static struct pair two_product(double a, double b)
{
    double p = a * b;
    struct pair x = split(a), y = split(b);
    return (struct pair){p, ((x.hi * y.hi - p) + x.hi * y.lo + x.lo * y.hi) + x.lo * y.lo};
}

static double round_even(double x) { return x + 0x1.8p52 - 0x1.8p52; } /* |x| < 2^51 */

static uint64_t bits_from_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

static double f64_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* ---- sine and cosine ---- */

/* pi/2 in four parts of 22 bits and a rest: n * part is exact for |n| < 2^31 (Cody and Waite 1980, with the error carried). */
#define PIO2_1 0x1.921fb0p+0
#define PIO2_2 0x1.5110b0p-22
#define PIO2_3 0x1.184698p-44
#define PIO2_4 0x1.3198a0p-69
#define PIO2_5 0x1.701b839a25205p-92
#define TWO_OVER_PI 0x1.45f306dc9c883p-1

/* x = n * pi/2 + (hi + lo), |hi| <= pi/4 and a little; returns n mod 4. Absolute error below 2^-95. */
static int reduce(double x, struct pair *r)
{
    double n = round_even(x * TWO_OVER_PI);
    struct pair a = {x - n * PIO2_1, 0}; /* exact: the leading bits cancel */
    double lo = 0;
    a = two_sum(a.hi, -(n * PIO2_2));
    lo += a.lo;
    a = two_sum(a.hi, -(n * PIO2_3));
    lo += a.lo;
    a = two_sum(a.hi, -(n * PIO2_4));
    lo += a.lo;
    lo -= n * PIO2_5;
    *r = fast_two_sum(a.hi, lo);
    return (int)((int64_t)n & 3);
}

/* Taylor series on |r| <= pi/4: the first term left out is 1.1e-19 (sine, relative) and 3e-18 (cosine). */
static double sin_kernel(struct pair r)
{
    double z = r.hi * r.hi;
    double p = 1.0 / 355687428096000.0; /* 17! */
    p = p * z - 1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return r.hi + (r.hi * z * p + r.lo * (1.0 - 0.5 * z));
}

static double cos_kernel(struct pair r)
{
    double z = r.hi * r.hi, half = 0.5 * z, w = 1.0 - half;
    double p = 1.0 / 20922789888000.0; /* 16! */
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    return w + (((1.0 - w) - half) + (z * z * p - r.hi * r.lo));
}

double wr_sin(double x)
{
    struct pair r;
    switch (reduce(x, &r)) {
    case 0:
        return sin_kernel(r);
    case 1:
        return cos_kernel(r);
    case 2:
        return -sin_kernel(r);
    default:
        return -cos_kernel(r);
    }
}

double wr_cos(double x)
{
    struct pair r;
    switch (reduce(x, &r)) {
    case 0:
        return cos_kernel(r);
    case 1:
        return -sin_kernel(r);
    case 2:
        return -cos_kernel(r);
    default:
        return sin_kernel(r);
    }
}

/* ---- logarithm and power ---- */

#define LN2_HI 0x1.62e42fefa38p-1 /* 42 bits: k * LN2_HI is exact */
#define LN2_LO 0x1.ef35793c76730p-45
#define LOG2E 0x1.71547652b82fep+0

/* ln x = k ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), m in [sqrt(1/2), sqrt(2)]; s as a pair, so that the error is below 2^-61 of the result. */
static struct pair log_pair(double x)
{
    int k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u = bits_from_f64(x);
    k += (int)(u >> 52) - 1023;
    double m = f64_from_bits((u & 0x000fffffffffffff) | 0x3ff0000000000000);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    double f = m - 1.0; /* exact */
    struct pair g = two_sum(m, 1.0);
    double s = f / g.hi;
    struct pair back = two_product(s, g.hi);
    double s_lo = ((f - back.hi) - back.lo - s * g.lo) / g.hi;
    double z = s * s, p = 0; /* s^2 < 0.0295: the first term left out is below 2^-68 of s */
    for (int i = 25; i >= 3; i -= 2) p = p * z + 1.0 / i;
    struct pair sum = two_sum(k * LN2_HI, 2.0 * s);
    return fast_two_sum(sum.hi, sum.lo + (k * LN2_LO + (2.0 * s_lo + 2.0 * (s * z * p))));
}

double wr_ln(double x) { return log_pair(x).hi; }

static double power_of_two(int n) { return f64_from_bits((uint64_t)(n + 1023) << 52); } /* normal results */

/* e^(hi + lo), |hi| < 745. */
static double exp_pair(struct pair a)
{
    double n = round_even(a.hi * LOG2E);
    struct pair r = two_sum(a.hi - n * LN2_HI, a.lo - n * LN2_LO);
    double x = r.hi, p = 1.0 / 1307674368000.0; /* 15!; |x| < 0.35: the first term left out is 2e-21 */
    static const double factorials[] = {
        87178291200.0, 6227020800.0, 479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0};
    for (size_t i = 0; i < sizeof factorials / sizeof factorials[0]; i++) p = p * x + 1.0 / factorials[i];
    double e = 1.0 + (x + (x * x * p + r.lo * (1.0 + x)));
    int k = (int)n, half = k / 2; /* two steps: 2^k itself may be out of range where the result is not */
    return e * power_of_two(half) * power_of_two(k - half);
}

double wr_pow(double x, double y)
{
    struct pair l = log_pair(x), t = two_product(l.hi, y);
    return exp_pair(fast_two_sum(t.hi, t.lo + l.lo * y));
}

/* ---- random bits ---- */

void wr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* ---- the thread's floating-point mode ---- */

void wr_num_thread_init(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0x1f80); /* nearest, all exceptions masked, FTZ and DAZ off */
#elif defined(__aarch64__)
    uint64_t fpcr = 0; /* nearest, no flush to zero, no traps, IEEE half precision */
    __asm__ volatile("msr fpcr, %0" ::"r"(fpcr));
#endif
}
