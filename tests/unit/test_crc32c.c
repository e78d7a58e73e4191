/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C against the published vectors and against long division, bit by bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/crc32c.h"

static void both(const void *bytes, size_t n, uint32_t crc)
{
    assert_int_equal(wr_crc32c(0, bytes, n), crc);
    assert_int_equal(wr_crc32c_scalar(0, bytes, n), crc);
}

/* RFC 3720, appendix B.4, whose bytes of the result are in the order of transmission; and the check value of the catalogue of CRC algorithms. */
static void published(void **state)
{
    (void)state;
    uint8_t bytes[32];
    memset(bytes, 0, 32);
    both(bytes, 32, 0x8a9136aa);
    memset(bytes, 0xff, 32);
    both(bytes, 32, 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    both(bytes, 32, 0x46dd794e);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)(31 - i);
    both(bytes, 32, 0x113fdb5c);
    static const uint8_t command[48] = {0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02};
    both(command, 48, 0xd9963a56);
    both("123456789", 9, 0xe3069283);
    both("", 0, 0);
}

/* The definition: the bits of each byte from the lowest on, a register of 32 bits, the polynomial not reflected. */
static uint32_t long_division(const uint8_t *bytes, size_t n)
{
    uint32_t r = 0xffffffff, reflected = 0;
    for (size_t i = 0; i < 8 * n; i++) {
        uint32_t bit = (bytes[i / 8] >> i % 8 & 1) ^ r >> 31;
        r = r << 1 ^ (bit ? 0x1edc6f41 : 0);
    }
    for (int i = 0; i < 32; i++) reflected |= (r >> i & 1) << (31 - i);
    return ~reflected;
}

static void any_length_and_place(void **state)
{
    (void)state;
    enum { N = 100000 };
    uint8_t *bytes = malloc(N + 16);
    uint32_t x = 1;
    for (int i = 0; i < N + 16; i++) bytes[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    for (size_t n = 0; n < 300; n++) both(bytes + n % 16, n, long_division(bytes + n % 16, n));
    static const size_t lengths[] = {4095, 4096, 24575, 24576, 24577, 49152, 49159, 73729, N};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) both(bytes + i, lengths[i], long_division(bytes + i, lengths[i]));
    free(bytes);
}

static void parts(void **state)
{
    (void)state;
    enum { N = 60000 };
    uint8_t *bytes = malloc(N);
    for (uint32_t i = 0; i < N; i++) bytes[i] = (uint8_t)(i * i >> 7);
    uint32_t whole = long_division(bytes, N), x = 7;
    for (int round = 0; round < 50; round++) {
        size_t a = (x = x * 1664525 + 1013904223) % (N + 1), b = (x = x * 1664525 + 1013904223) % (N + 1);
        if (a > b) {
            size_t t = a;
            a = b;
            b = t;
        }
        uint32_t first = wr_crc32c(0, bytes, a), middle = wr_crc32c(0, bytes + a, b - a), last = wr_crc32c(0, bytes + b, N - b);
        assert_int_equal(wr_crc32c(wr_crc32c(first, bytes + a, b - a), bytes + b, N - b), whole);
        assert_int_equal(wr_crc32c_combine(wr_crc32c_combine(first, middle, b - a), last, N - b), whole);
        assert_int_equal(last ^ wr_crc32c_combine(first, 0, N - a) ^ wr_crc32c_combine(middle, 0, N - b), whole);
    }
    /* 2^40 + 5 zeros behind a text: more than can be divided bit by bit, but x^(2^n) repeats by doubling. */
    uint32_t far = wr_crc32c_combine(whole, 0, UINT64_C(1) << 40), near = whole;
    for (int i = 0; i < 4; i++) near = wr_crc32c_combine(near, 0, UINT64_C(1) << 38);
    assert_int_equal(far, near);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(published), cmocka_unit_test(any_length_and_place), cmocka_unit_test(parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
