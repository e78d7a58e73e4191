/* SPDX-License-Identifier: Apache-2.0 */
/* The prediction against sums that were worked out by hand, for a made-up machine whose rates are round numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "memory/profile.h"

#define MB 1000000u

static struct wr_profile profile;
static struct wr_tensor tensor[3];
static struct wr_weight weight[3];
static struct wr_extent extent[6];
static uint32_t tape[6];
static struct wr_plan plan;
static struct wr_predict_input in;
static struct wr_prediction out;

static void near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * fabs(b) + 1e-15) fail_msg("%.12g is not %.12g", a, b);
}

/* One dense Q4_0 weight of 1000 x 32 elements that takes 18 000 bytes, a Q8_0 head of 34 000, and embedding rows. Four of five extents are streamed, the last
 * of them the head's. */
static int begin(void **state)
{
    (void)state;
    memset(&profile, 0, sizeof profile);
    profile.n_threads = 2;
    profile.threads[0] = 1;
    profile.threads[1] = 4;
    const struct wr_profile_format q4 = {.type = WR_TYPE_Q4_0, .decode = {1e6, 4e6}, .prefill = {8e9, 32e9}, .mix = {64e9, 256e9}},
                                   q8 = {.type = WR_TYPE_Q8_0, .decode = {2e6, 2e6}, .prefill = {8e9, 32e9}, .mix = {64e9, 256e9}};
    profile.format[0] = q4;
    profile.format[1] = q8;
    profile.n_formats = 2;
    for (int i = 0; i < 2; i++) {
        profile.read[i] = 4e6;
        profile.attend[i] = 1e6;
        profile.attend_many[i] = 1e9;
        profile.stage_seconds[i] = 1e-5;
    }
    profile.disk[0] = (struct wr_profile_disk){"uring", true, MB, 4, 1e8};
    profile.disk[1] = (struct wr_profile_disk){"uring", true, 4096, 1, 4.096e6}; /* a row takes a millisecond */
    profile.n_disk = 2;

    tensor[0] = (struct wr_tensor){.quant = wr_quant_find(WR_TYPE_Q4_0), .ne = {32, 1000, 1, 1}, .n_rows = 1000, .bytes = 18000};
    tensor[1] = (struct wr_tensor){.quant = wr_quant_find(WR_TYPE_Q8_0), .ne = {32, 1000, 1, 1}, .n_rows = 1000, .bytes = 34000};
    for (int i = 0; i < 3; i++) weight[i] = (struct wr_weight){.tensor = &tensor[i == 1], .use = i == 0 ? WR_USE_DENSE : i == 1 ? WR_USE_HEAD : WR_USE_ROWS};
    for (uint32_t i = 0; i < 4; i++) {
        extent[i] = (struct wr_extent){.bytes = MB, .head = i == 3};
        tape[i] = i;
    }
    plan = (struct wr_plan){
        .weights = weight, .n_weights = 3, .extents = extent, .n_extents = 4, .tape = tape, .n_tape = 4, .n_tape_head = 1, .n_slots = 4, .streamed = 4 * MB};
    in = (struct wr_predict_input){.plan = &plan,
        .profile = &profile,
        .engine = "uring",
        .direct = true,
        .n_threads = 1,
        .n_layer = 2,
        .n_head = 4,
        .n_head_kv = 4,
        .head_dim = 16,
        .kv_bytes_per_position = 256,
        .n_rows = 1,
        .n_logits = 1};
    return 0;
}

/* 18 ms + 17 ms of weights, 256 bytes of keys and values, against 40 ms of reading. */
static void decode(void **state)
{
    (void)state;
    wr_predict(&out, &in);
    near(out.read_seconds, 0.040);
    near(out.compute_seconds, 0.018 + 0.017 + 256e-6);
    near(out.seconds, 0.040);
    assert_int_equal(out.bound, WR_BOUND_DISK);
    near(out.seconds_per_gib, (0.040 - 0.035256) / 4e6 * 1073741824);
    in.n_threads = 4; /* Q4_0 four times as fast */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.0045 + 0.017 + 256e-6);
    in.n_threads = 2; /* between 1 and 4 */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.009 + 0.017 + 256e-6);
    in.n_threads = 9; /* beyond: as 4 */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.0045 + 0.017 + 256e-6);
}

static void stages_and_rows(void **state)
{
    (void)state;
    in.n_stages = 11;
    plan.row_slot_bytes = 2 * WR_IO_ALIGN;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.018 + 0.017 + 256e-6 + 11e-5 + 1e-3);
}

/* The tenth key: ten times the bytes; a window of 4 cuts one of the two layers short. With two queries to a key half of the products are more. */
static void attention(void **state)
{
    (void)state;
    in.position = 9;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 + 2560e-6);
    in.n_local = 1;
    in.window = 4;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 + 1280e-6 + 512e-6);
    in.n_local = 0;
    in.n_head = 8;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 + 2560e-6 + 0.5 * 4 * 16 * 8 * 10 * 2 / 1e9);
}

/* The longer of the two is the pass, where nothing is known of both together. */
static void the_longer(void **state)
{
    (void)state;
    profile.disk[0].rate = 4e8; /* 10 ms */
    wr_predict(&out, &in);
    near(out.read_seconds, 0.010);
    near(out.seconds, 0.035256);
    assert_int_equal(out.bound, WR_BOUND_MEMORY); /* 52 256 bytes at 4 MB/s against 128 000 products at 64 GHz */
    plan.n_tape = plan.n_tape_head = 0;
    plan.streamed = 0;
    wr_predict(&out, &in);
    near(out.seconds, 0.035256);
    near(out.seconds_per_gib, 0);
}

/* Compute takes 20 ms. Reading takes 10, 20, 40, then 80 and 5: what is lost comes from the measured ratios 1/2, 1 and 4, half-way between two of them by the
 * logarithm, as the last one beyond, and of half as much reading as was measured least half of that. */
static void together(void **state)
{
    (void)state;
    static const struct {
        double rate, pass;
    } cases[] = {{4e8, 0.020 * 1.4}, {2e8, 0.020 * 2}, {1e8, 0.040 * 1.6}, {0.5e8, 0.080 * 1.2}, {0.25e8, 0.160 * 1.2}, {8e8, 0.020 * 1.2}};
    profile.n_together = 3;
    profile.together[0] = (struct wr_profile_together){0.5, 0.4};
    profile.together[1] = (struct wr_profile_together){1, 1};
    profile.together[2] = (struct wr_profile_together){4, 0.2};
    in.n_stages = 1;
    profile.stage_seconds[0] = 0.020 - 0.000256 - 0.0175;
    profile.format[0].decode[0] = 2e6; /* 9 ms */
    profile.format[1].decode[0] = 4e6; /* 8.5 ms */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        profile.disk[0].rate = cases[i].rate;
        wr_predict(&out, &in);
        near(out.compute_seconds, 0.020);
        near(out.seconds, cases[i].pass);
        near(out.first_seconds, cases[i].pass);
    }
    profile.disk[0].rate = 1e8;
    wr_predict(&out, &in);
    near(out.seconds_per_gib, (0.064 - 0.020) / 4e6 * 1073741824);
    profile.disk_first = 2; /* twice the rate for a while: 20 ms */
    wr_predict(&out, &in);
    near(out.seconds, 0.064);
    near(out.first_seconds, 0.040);
    profile.disk[0].rate = 4e8;
    plan.n_tape = plan.n_tape_head = 0;
    plan.streamed = 0;
    wr_predict(&out, &in);
    near(out.seconds, 0.020); /* nothing is read, nothing is lost */
}

/* Leases: products of one row at 0.8 of their rate; stages and attention were measured as they are. */
static void in_pass(void **state)
{
    (void)state;
    profile.in_pass[0] = profile.in_pass[1] = 0.8;
    in.n_stages = 10;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 / 0.8 + 256e-6 + 10e-5);
}

/* Caches: a set of 26 000 bytes is used four times as fast as one of 104 000. The pass's 52 000 lie half-way between by the logarithm, so a byte takes the
 * mean of both times: the format's own two, 18 + 17 ms and a quarter of it. */
static void caches(void **state)
{
    (void)state;
    in.n_stages = 10;
    profile.n_sets = 2;
    profile.set[0].bytes = 26000;
    profile.set[1].bytes = 104000;
    for (int i = 0; i < 2; i++) {
        profile.set[0].rate[i] = 16e6;
        profile.set[1].rate[i] = 4e6;
        profile.stage_cached_seconds[i] = 2e-6;
    }
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 * (1 + 0.25) / 2 + 256e-6 + 10 * (1e-5 + 2e-6) / 2);
    profile.set[1].bytes = 40000; /* larger than the largest: as that */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 + 256e-6 + 10e-5);
    profile.set[0].bytes = 60000;
    profile.set[1].bytes = 80000; /* smaller than the smallest */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 / 4 + 256e-6 + 10 * 2e-6);
    in.n_logits = 0; /* without the head 18 000 bytes, of 18 ms */
    profile.set[0].bytes = 9000;
    profile.set[1].bytes = 36000;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.018 * (1 + 0.25) / 2 + 256e-6 + 10 * (1e-5 + 2e-6) / 2);
    profile.format[0].mix[0] = 4e6; /* 64 000 products take 16 ms, from caches as well */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.016 + 256e-6 + 10 * (1e-5 + 2e-6) / 2);
    profile.set[1].rate[0] = 16e6; /* as fast: no cache is seen */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.018 + 256e-6 + 10e-5);
}

/* Rows of 768 elements at half the rate of rows of 4096. What a row takes beside its elements is then as much as 768 / (1 - 768 / 4096) elements at the rate of
 * rows of 4096 take, less what these have of it already. */
static void short_rows(void **state)
{
    (void)state;
    const double more = 768 / (1 - 768.0 / 4096);
    profile.format[0].decode_short[0] = 0.5e6;
    tensor[0].ne[0] = 768;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.036 + 0.017 + 256e-6);
    tensor[0].ne[0] = 384;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.018 * (1 + more * (1 / 384.0 - 1 / 4096.0)) + 0.017 + 256e-6);
    tensor[0].ne[0] = 8192; /* longer than long: as that */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 + 256e-6);
    tensor[0].ne[0] = 768;
    profile.format[0].decode_short[0] = 2e6; /* a worse moment when long rows were measured */
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035 + 256e-6);
}

/* 1000 elements a row at 1 MHz: one thread's work, but of more than two rows all threads'. */
static void activations(void **state)
{
    (void)state;
    in.n_elements = 1000;
    profile.activate = 1e6;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.035256 + 0.001);
    in.n_threads = 4;
    in.n_rows = 2;
    wr_predict(&out, &in);
    const double two = out.compute_seconds;
    in.n_elements = 0;
    wr_predict(&out, &in);
    near(two - out.compute_seconds, 0.002);
    in.n_rows = 8;
    wr_predict(&out, &in);
    const double without = out.compute_seconds;
    in.n_elements = 1000;
    wr_predict(&out, &in);
    near(out.compute_seconds - without, 0.002);
    in.n_threads = 64; /* no more run than were measured */
    wr_predict(&out, &in);
    near(out.compute_seconds - without, 0.002);
}

/* 256 rows without logits: the head is neither read nor computed. 256 x 64 000 products at 8 GHz take 2.048 ms, one row alone 18: rows after the first are
 * free then. With 0.8 GHz they take 20.48, so that 2.48 come on top. */
static void prefill(void **state)
{
    (void)state;
    in.n_rows = 256;
    in.n_logits = 0;
    wr_predict(&out, &in);
    near(out.read_seconds, 0.030);
    double attention = 256 * 256 / 1e6 + 4.0 * 16 * 4 * (256 * 257 / 2) * 2 * 255 / 256 / 1e9;
    near(out.compute_seconds, 0.018 + attention);
    profile.format[0].prefill[0] = 0.8e9;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.02048 + attention);
    profile.format[0].mix[0] = 0.81e9; /* of the 18 ms memory takes 4.5 + 16.4 for the keys, products 20.2 */
    profile.read[0] = 6e6;
    plan.n_tape = plan.n_tape_head = 0;
    wr_predict(&out, &in);
    assert_int_equal(out.bound, WR_BOUND_COMPUTE);
    in.n_rows = 128;
    wr_predict(&out, &in);
    near(out.compute_seconds, 0.018 + 127 * 0.00248 / 255 + 128 * 256 / 1e6 + 4.0 * 16 * 4 * (128 * 129 / 2) * 2 * 127 / 128 / 1e9);
}

/* What was not measured makes the whole unknown, but only if it is needed. */
static void missing(void **state)
{
    (void)state;
    in.precise = true;
    wr_predict(&out, &in);
    assert_true(out.seconds == 0 && out.bound == WR_BOUND_UNKNOWN);
    in.precise = false;
    in.direct = false;
    wr_predict(&out, &in);
    assert_true(out.seconds == 0 && out.bound == WR_BOUND_UNKNOWN);
    plan.n_tape = plan.n_tape_head = 0;
    wr_predict(&out, &in);
    near(out.seconds, 0.035256);
    profile.n_formats = 1;
    wr_predict(&out, &in);
    assert_true(out.seconds == 0);
    in.n_logits = 0;
    wr_predict(&out, &in);
    near(out.seconds, 0.018256);
    profile.attend[0] = profile.attend[1] = 0;
    wr_predict(&out, &in);
    assert_true(out.seconds == 0);
    memset(&profile, 0, sizeof profile);
    wr_predict(&out, &in);
    assert_true(out.seconds == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(decode, begin),
        cmocka_unit_test_setup(stages_and_rows, begin),
        cmocka_unit_test_setup(attention, begin),
        cmocka_unit_test_setup(the_longer, begin),
        cmocka_unit_test_setup(together, begin),
        cmocka_unit_test_setup(in_pass, begin),
        cmocka_unit_test_setup(caches, begin),
        cmocka_unit_test_setup(short_rows, begin),
        cmocka_unit_test_setup(activations, begin),
        cmocka_unit_test_setup(prefill, begin),
        cmocka_unit_test_setup(missing, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
