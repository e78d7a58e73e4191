/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A crc is the remainder of a polynomial over two elements; its register holds the highest power in bit 0. Bytes behind a text multiply the text's
 * remainder by a power of x, which is how parts are combined: multiplication modulo the polynomial, powers by repeated squaring.
 *
 * The instruction of the CPU takes 8 bytes and gives its result three cycles later, so three thirds of a piece run beside each other and are combined.
 */
#include "base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#ifdef WR_X86
#include <nmmintrin.h>
#endif
#ifdef WR_ARM64
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define POLYNOMIAL 0x82f63b78u /* reflected, without its highest power */
#define ONE 0x80000000u        /* x to the power of 0 */
#define THIRD 8192             /* bytes; combining two of them costs as much as some 400 */

static uint32_t table[8][256]; /* of a byte with 0 to 7 bytes behind it */
static uint32_t power[64];     /* x to the power of 8 * 2^i: one byte, two bytes, four ... */
static uint32_t power_third;
static bool has_instruction;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* a * b modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        if (a & ONE) product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

static uint32_t power_of_bytes(uint64_t n)
{
    uint32_t p = ONE;
    for (int i = 0; n != 0; n >>= 1, i++)
        if (n & 1) p = multiply(power[i], p);
    return p;
}

static void init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int bit = 0; bit < 8; bit++) r = r & 1 ? r >> 1 ^ POLYNOMIAL : r >> 1;
        table[0][i] = r;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
    power[0] = ONE >> 8;
    for (int i = 1; i < 64; i++) power[i] = multiply(power[i - 1], power[i - 1]);
    power_third = power_of_bytes(THIRD);
#ifdef WR_X86
    has_instruction = __builtin_cpu_supports("sse4.2");
#endif
#ifdef WR_ARM64
    has_instruction = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

static uint64_t load64(const uint8_t *p)
{
    uint64_t u;
    memcpy(&u, p, 8);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    u = __builtin_bswap64(u);
#endif
    return u;
}

/* Of the register, which is the crc inverted. */
static uint32_t update_scalar(uint32_t r, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t u = load64(p) ^ r;
        r = 0;
        for (int k = 0; k < 8; k++) r ^= table[7 - k][u >> 8 * k & 0xff];
    }
    for (; n > 0; p++, n--) r = r >> 8 ^ table[0][(r ^ *p) & 0xff];
    return r;
}

#if defined(WR_X86) || defined(WR_ARM64)
#ifdef WR_X86
#define TARGET __attribute__((target("sse4.2")))
#define STEP8(r, u) ((uint32_t)_mm_crc32_u64(r, u))
#define STEP1(r, byte) _mm_crc32_u8(r, byte)
#else
#define TARGET __attribute__((target("+crc")))
#define STEP8(r, u) __crc32cd(r, u)
#define STEP1(r, byte) __crc32cb(r, byte)
#endif
TARGET static uint32_t update(uint32_t r, const uint8_t *p, size_t n)
{
    for (; n >= 3 * THIRD; p += 3 * THIRD, n -= 3 * THIRD) {
        uint32_t b = 0, c = 0;
        for (size_t i = 0; i < THIRD; i += 8) {
            r = STEP8(r, load64(p + i));
            b = STEP8(b, load64(p + THIRD + i));
            c = STEP8(c, load64(p + 2 * THIRD + i));
        }
        r = multiply(power_third, multiply(power_third, r) ^ b) ^ c;
    }
    for (; n >= 8; p += 8, n -= 8) r = STEP8(r, load64(p));
    for (; n > 0; p++, n--) r = STEP1(r, *p);
    return r;
}
#else
static uint32_t update(uint32_t r, const uint8_t *p, size_t n) { return update_scalar(r, p, n); }
#endif

uint32_t wr_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    pthread_once(&once, init);
    return ~(has_instruction ? update(~crc, bytes, n) : update_scalar(~crc, bytes, n));
}

uint32_t wr_crc32c_scalar(uint32_t crc, const void *bytes, size_t n)
{
    pthread_once(&once, init);
    return ~update_scalar(~crc, bytes, n);
}

uint32_t wr_crc32c_combine(uint32_t a, uint32_t b, uint64_t n_b)
{
    pthread_once(&once, init);
    return multiply(power_of_bytes(n_b), a) ^ b;
}
