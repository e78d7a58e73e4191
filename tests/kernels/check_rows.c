/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on rows of activations. */
#include "check.h"

#define U 0x1p-24 /* unit roundoff of f32 */

/* 1 .. 70 and the row lengths of real models, with neighbours that leave tails. */
static const uint32_t long_rows[] = {576, 640, 896, 1536, 2047, 4096, 5633};
#define N_LONG (sizeof long_rows / sizeof long_rows[0])
#define N_LENGTHS (70 + N_LONG)

static uint32_t row_length(uint32_t i) { return i < 70 ? i + 1 : long_rows[i - 70]; }

static float *floats(size_t n) { return check_alloc(n * sizeof(float), 4); }

static float *copy(const float *x, size_t n)
{
    float *p = floats(n);
    memcpy(p, x, n * sizeof *p);
    return p;
}

static float *filled(struct check *c, enum check_data kind, size_t n)
{
    float *p = floats(n);
    check_fill(c, kind, p, n);
    return p;
}

/* Every level's result `got` against the reference's `want`; frees got. */
static void same_f32(struct check *c, const char *op, const char *level, const char *what, const float *want, float *got, size_t n)
{
    size_t at = check_diff_f32(want, got, n);
    bool ok = at == n && check_intact(got);
    check_that(c, ok, "%s %s %s n %zu: element %zu is %a, the reference has %a%s", op, level, what, n, at, at < n ? (double)got[at] : 0.0,
        at < n ? (double)want[at] : 0.0, check_intact(got) ? "" : ", and wrote outside");
    check_free(got);
}

static void rmsnorm(struct check *c, uint32_t n, enum check_data kind)
{
    static const float eps_list[] = {1e-5f, 1e-6f, 0.1f};
    const float eps = eps_list[check_below(c, 3)];
    float *x = filled(c, kind, n), *w = filled(c, CHECK_NORMAL, n), *want = floats(n);
    c->ref->rmsnorm(x, w, want, n, eps);
    double sum = 0, worst = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    double r = 1.0 / sqrt(sum / n + (double)eps), allowed = (n / 32.0 + 8.0) * U; /* half of: n / 16 and 4 roundings of the sum; 5 more */
    for (uint32_t i = 0; i < n; i++) {
        double y = x[i] * r * w[i], error = fabs(want[i] - y) - 0x1p-150 * (1 + fabs((double)w[i])); /* roundings of x r and of its product to denormals */
        if (error > worst * fabs(y)) worst = error / fabs(y);
    }
    check_that(c, worst <= allowed && check_intact(want), "rmsnorm scalar %s n %u: relative error %g, allowed %g", check_data_name(kind), n, worst, allowed);
    for (uint32_t l = 0; l < c->n_levels; l++) {
        float *y = floats(n), *in_place = copy(x, n);
        c->level[l]->rmsnorm(x, w, y, n, eps);
        c->level[l]->rmsnorm(in_place, w, in_place, n, eps);
        same_f32(c, "rmsnorm", c->level[l]->level, check_data_name(kind), want, y, n);
        same_f32(c, "rmsnorm in place", c->level[l]->level, check_data_name(kind), want, in_place, n);
    }
    check_free(x);
    check_free(w);
    check_free(want);
}

static void add_and_activations(struct check *c, uint32_t n, enum check_data kind)
{
    float *x = filled(c, kind, n), *y = filled(c, check_below(c, CHECK_N_DATA), n);
    if (kind == CHECK_NORMAL) {
        for (uint32_t i = 0; i < n; i++) x[i] *= 30.0f; /* past both ends of exp */
    }
    float *sum = copy(x, n), *gate = copy(x, n), *gelu = copy(x, n);
    c->ref->add(sum, y, n);
    c->ref->silu_mul(gate, y, n);
    c->ref->gelu_mul(gelu, y, n);
    bool sum_right = true, gate_right = true, gelu_right = true;
    for (uint32_t i = 0; i < n; i++) {
        double s = (double)x[i] + y[i], g = x[i] / (1.0 + exp(-(double)x[i])) * y[i];
        sum_right = sum_right && fabs(sum[i] - s) <= U * fabs(s);
        /* exp is within 0.88 ulp; below -88.7 silu is -0, where -88.7 exp(-88.7) is 2.7e-37; denormal results round to 2^-149 */
        gate_right = gate_right && fabs(gate[i] - g) <= 5 * U * fabs(g) + 2.8e-37 * fabs(y[i]) + 0x1p-149;
        /* tanh is within 2.5e-7 (test_num); the rounding of its argument moves it by 2 units at most, then come four roundings; a denormal x loses a bit when halved */
        double t = 0.5 * x[i] * (1.0 + tanh(sqrt(2.0 / M_PI) * (x[i] + 0.044715 * pow((double)x[i], 3)))) * y[i];
        gelu_right = gelu_right && fabs(gelu[i] - t) <= fabs((double)x[i] * y[i]) * (1.25e-7 + 2 * U) + 4 * U * fabs(t) + 0x1p-149 * (1 + fabs(y[i]));
    }
    check_that(c, sum_right && check_intact(sum), "add scalar %s n %u: not the rounded sum", check_data_name(kind), n);
    check_that(c, gate_right && check_intact(gate), "silu_mul scalar %s n %u: away from double precision", check_data_name(kind), n);
    check_that(c, gelu_right && check_intact(gelu), "gelu_mul scalar %s n %u: away from double precision", check_data_name(kind), n);
    for (uint32_t l = 0; l < c->n_levels; l++) {
        const struct wr_kernels *k = c->level[l];
        float *a = copy(x, n), *g = copy(x, n), *e = copy(x, n);
        k->add(a, y, n);
        k->silu_mul(g, y, n);
        k->gelu_mul(e, y, n);
        same_f32(c, "add", k->level, check_data_name(kind), sum, a, n);
        same_f32(c, "silu_mul", k->level, check_data_name(kind), gate, g, n);
        same_f32(c, "gelu_mul", k->level, check_data_name(kind), gelu, e, n);
    }
    check_free(x);
    check_free(y);
    check_free(sum);
    check_free(gate);
    check_free(gelu);
}

/* silu and gelu over a sample of all floats with the ends of exp, infinities and NaN: an exp that differs anywhere shows. */
static void activations_everywhere(struct check *c)
{
    enum { N = 4096 };
    const uint32_t step = c->quick ? 1000003 : 4099;
    static const float special[] = {0.0f, -0.0f, 87.0f, -87.0f, 88.7f, -88.7f, INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-149f, 3.4e38f, -3.4e38f};
    float *x = floats(N), *one = floats(N), *silu = floats(N), *gelu = floats(N);
    for (uint32_t i = 0; i < N; i++) one[i] = 1.0f;
    for (uint64_t bits = 0; bits < 0x100000000u;) {
        uint32_t i = 0;
        if (bits == 0) {
            for (; i < 3 * sizeof special / sizeof special[0]; i++) {
                float s = special[i / 3];
                x[i] = i % 3 == 0 ? s : nextafterf(s, i % 3 == 1 ? -INFINITY : INFINITY);
            }
        }
        for (; i < N; i++, bits += step) x[i] = wr_f32_from_bits((uint32_t)bits);
        memcpy(silu, x, N * sizeof *x);
        memcpy(gelu, x, N * sizeof *x);
        c->ref->silu_mul(silu, one, N);
        c->ref->gelu_mul(gelu, one, N);
        for (uint32_t l = 0; l < c->n_levels; l++) {
            float *g = copy(x, N), *e = copy(x, N);
            c->level[l]->silu_mul(g, one, N);
            c->level[l]->gelu_mul(e, one, N);
            same_f32(c, "silu_mul", c->level[l]->level, "all floats", silu, g, N);
            same_f32(c, "gelu_mul", c->level[l]->level, "all floats", gelu, e, N);
        }
    }
    check_free(x);
    check_free(one);
    check_free(silu);
    check_free(gelu);
}

/* ---- quantize ---- */

struct prepared {
    struct wr_act act;
    bool ok;
};

static struct prepared prepare(const struct wr_kernels *k, const float *x, uint32_t m, uint32_t n, size_t ldx, bool precise)
{
    struct prepared p = {{.m = m, .k = n, .x = x, .ldx = ldx, .precise = precise}, true};
    size_t all = (size_t)m * n;
    if (precise)
        p.act.q16 = check_alloc(all * 2, 2);
    else
        p.act.q8 = check_alloc(all, 1);
    p.act.d = floats(all / WR_GROUP);
    p.act.s = floats(all / WR_GROUP);
    p.act.s16 = floats(all / 16);
    for (uint32_t row = 0; row < m; row++) p.ok = k->quantize(&p.act, row) && p.ok;
    return p;
}

static void *codes(const struct wr_act *a) { return a->precise ? (void *)a->q16 : (void *)a->q8; }

static bool prepared_intact(const struct wr_act *a) { return check_intact(codes(a)) && check_intact(a->d) && check_intact(a->s) && check_intact(a->s16); }

static void unprepare(struct wr_act *a)
{
    check_free(codes(a));
    check_free(a->d);
    check_free(a->s);
    check_free(a->s16);
}

/* Rule d from its text, in double precision. */
static bool quantized_right(const struct wr_act *a, uint32_t row)
{
    const double max = a->precise ? 32767 : 127;
    for (uint32_t g = 0; g < a->k / WR_GROUP; g++) {
        const float *x = a->x + row * a->ldx + g * WR_GROUP;
        size_t at = (size_t)row * (a->k / WR_GROUP) + g;
        double amax = 0, sum[2] = {0, 0};
        for (int i = 0; i < WR_GROUP; i++) amax = fmax(amax, fabs((double)x[i]));
        bool zero = amax < 0x1p-100;
        for (int i = 0; i < WR_GROUP; i++) {
            double q = a->precise ? a->q16[at * WR_GROUP + (size_t)i] : a->q8[at * WR_GROUP + (size_t)i], exact = zero ? 0 : x[i] * max / amax;
            sum[i / 16] += q;
            if (fabs(q) > max || fabs(q - exact) > 0.5 + 2 * max * U) return false; /* two roundings before rint */
            if (!zero && fabs((double)x[i]) == amax && fabs(q) != max) return false;
        }
        if (a->s16[2 * at] != (float)sum[0] || a->s16[2 * at + 1] != (float)sum[1]) return false;
        if (a->s[at] != (float)(sum[0] + sum[1]) || a->d[at] != (zero ? 0.0f : (float)(amax / max))) return false;
    }
    return true;
}

static void quantize(struct check *c, uint32_t n, enum check_data kind, bool precise)
{
    const uint32_t m = 3;
    const size_t ldx = n + check_below(c, 3);
    float *x = filled(c, kind, 2 * ldx + n);
    for (uint32_t g = 0; g < n && kind == CHECK_TINY; g += WR_GROUP) { /* the border of zero: amax 2^-100, the float below, and neither */
        for (uint32_t i = g; i < g + WR_GROUP && g % (3 * WR_GROUP) != 0; i++) x[i] *= 0x1p-4f;
        if (g % (3 * WR_GROUP) != 0) x[g + 5] = g % (3 * WR_GROUP) == WR_GROUP ? -0x1p-100f : nextafterf(0x1p-100f, 0.0f);
    }
    struct prepared want = prepare(c->ref, x, m, n, ldx, precise);
    bool right = want.ok && prepared_intact(&want.act);
    for (uint32_t row = 0; row < m; row++) right = right && quantized_right(&want.act, row);
    check_that(c, right, "quantize scalar %s k %u precise %d: not rule d", check_data_name(kind), n, precise);
    for (uint32_t l = 0; l < c->n_levels; l++) {
        struct prepared got = prepare(c->level[l], x, m, n, ldx, precise);
        size_t groups = (size_t)m * n / WR_GROUP;
        bool same = got.ok && prepared_intact(&got.act) && !memcmp(codes(&want.act), codes(&got.act), (size_t)m * n * (precise ? 2 : 1)) &&
                    !memcmp(want.act.d, got.act.d, groups * 4) && !memcmp(want.act.s, got.act.s, groups * 4) && !memcmp(want.act.s16, got.act.s16, groups * 8);
        check_that(c, same, "quantize %s %s k %u precise %d: not the reference's bits", c->level[l]->level, check_data_name(kind), n, precise);
        unprepare(&got.act);
    }
    unprepare(&want.act);
    check_free(x);
}

/* ---- not finite ---- */

static const struct wr_kernels *any_level(struct check *c, uint32_t i) { return i == 0 ? c->ref : c->level[i - 1]; }

static void non_finite(struct check *c)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i <= c->n_levels; i++) {
        const struct wr_kernels *k = any_level(c, i);
        for (uint32_t n = 1; n <= 70; n++) {
            float *x = filled(c, CHECK_NORMAL, n);
            bool right = k->all_finite(x, n);
            for (uint32_t at = 0; at < n; at++) {
                float kept = x[at];
                x[at] = bad[check_below(c, 4)];
                right = right && !k->all_finite(x, n);
                x[at] = check_below(c, 2) ? 3.4028235e38f : -3.4028235e38f;
                right = right && k->all_finite(x, n);
                x[at] = kept;
            }
            check_that(c, right, "all_finite %s n %u", k->level, n);
            check_free(x);
        }
        check_that(c, k->all_finite(NULL, 0), "all_finite %s of nothing", k->level);
        for (int precise = 0; precise < 2; precise++) {
            for (uint32_t at = 0; at < 96; at++) {
                float *x = filled(c, CHECK_NORMAL, 96);
                x[at] = bad[at % 4];
                struct prepared p = prepare(k, x, 1, 96, 96, precise);
                check_that(c, !p.ok && prepared_intact(&p.act), "quantize %s accepts %f at %u", k->level, (double)x[at], at);
                unprepare(&p.act);
                check_free(x);
            }
        }
    }
}

/* ---- rope ---- */

static void rope(struct check *c, uint32_t head_dim, uint32_t n_rot, bool interleaved)
{
    const uint32_t n_heads = 1 + check_below(c, 5), n = n_heads * head_dim, n_half = n_rot / 2;
    float *x = filled(c, check_below(c, CHECK_N_DATA), n), *cs = filled(c, CHECK_NORMAL, n_half), *sn = filled(c, CHECK_NORMAL, n_half);
    float *inv_freq = floats(n_half), *want = copy(x, n);
    const float base = check_below(c, 2) ? 1e4f : 5e5f;
    const uint32_t position = check_below(c, 1u << (1 + check_below(c, 24)));
    wr_rope_inv_freq(inv_freq, n_rot, base, NULL);
    wr_rope_angles(position, inv_freq, n_half, cs, sn);
    bool right = check_intact(inv_freq) && check_intact(cs) && check_intact(sn);
    for (uint32_t i = 0; i < n_half; i++) {
        double f = pow((double)base, -2.0 * i / n_rot), angle = (double)position * inv_freq[i];
        right = right && fabs(inv_freq[i] - f) <= 1.0001 * U * f && fabs(cs[i] - cos(angle)) <= 0.50001 * U && fabs(sn[i] - sin(angle)) <= 0.50001 * U;
    }
    check_that(c, right, "rope tables: n_rot %u base %g position %u", n_rot, (double)base, position);
    c->ref->rope(want, n_heads, head_dim, n_rot, cs, sn, interleaved);
    right = check_intact(want);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = i % head_dim, pair = interleaved ? d / 2 : d % n_half, head = i - d;
        if (d >= n_rot) {
            right = right && !memcmp(want + i, x + i, 4);
            continue;
        }
        double x0 = x[head + (interleaved ? 2 * pair : pair)], x1 = x[head + (interleaved ? 2 * pair + 1 : pair + n_half)];
        bool first = interleaved ? d % 2 == 0 : d < n_half;
        double y = first ? x0 * cs[pair] - x1 * sn[pair] : x0 * sn[pair] + x1 * cs[pair];
        right = right && fabs(want[i] - y) <= 2 * U * (fabs(x0) + fabs(x1)) + 0x1p-149;
    }
    check_that(c, right, "rope scalar head_dim %u n_rot %u interleaved %d: away from double precision", head_dim, n_rot, interleaved);
    for (uint32_t l = 0; l < c->n_levels; l++) {
        float *y = copy(x, n);
        c->level[l]->rope(y, n_heads, head_dim, n_rot, cs, sn, interleaved);
        same_f32(c, interleaved ? "rope interleaved" : "rope halves", c->level[l]->level, "", want, y, n);
    }
    check_free(x);
    check_free(cs);
    check_free(sn);
    check_free(inv_freq);
    check_free(want);
}

/* ---- kv_store ---- */

/* Place of value i (of scale i, q8_0) of a key among 16 in `slot`, or of a value (n_slots 1). */
static size_t place(uint32_t i, uint32_t n_slots, uint32_t slot) { return (size_t)i * n_slots + slot; }

/* One key or value as it should be stored, places that belong to others as they were; rule g written out. */
static void expect_stored(enum wr_kv_type type, const float *x, uint32_t n, uint8_t *to, uint32_t n_slots, uint32_t slot)
{
    const bool blocks = type == WR_KV_Q8_0 || type == WR_KV_K8V4, nibbles = type == WR_KV_K8V4 && n_slots == 1;
    const float max = nibbles ? 7 : 127;
    uint16_t half;
    for (uint32_t i = 0; i < n && !blocks; i++) {
        half = wr_f16_from_f32(x[i]);
        if (type == WR_KV_F32)
            memcpy(to + place(i, n_slots, slot) * 4, x + i, 4);
        else
            memcpy(to + place(i, n_slots, slot) * 2, &half, 2);
    }
    for (uint32_t i = 0; i < n && blocks; i += 32) {
        float amax = 0;
        for (uint32_t j = i; j < i + 32; j++) amax = fmaxf(amax, fabsf(x[j]));
        for (uint32_t j = i; j < i + 32; j++) {
            float q = amax < 0x1p-100f ? 0 : rintf(x[j] * (max / amax));
            int whole = (int)fminf(fmaxf(q, -max), max);
            if (!nibbles)
                to[place(j, n_slots, slot)] = (uint8_t)whole;
            else if (j % 32 < 16)
                to[i / 2 + j % 16] = (uint8_t)(whole + 16) % 16;
            else
                to[i / 2 + j % 16] |= (uint8_t)((whole + 16) % 16 * 16);
        }
        half = wr_f16_from_f32(amax < 0x1p-100f ? 0 : amax / max);
        memcpy(to + (nibbles ? n / 2 : n * n_slots) + place(i / 32, n_slots, slot) * 2, &half, 2);
    }
}

static void kv_store(struct check *c, enum wr_kv_type type, uint32_t head_dim, enum check_data kind, float limit)
{
    const size_t key = wr_kv_key_bytes(type, head_dim), row = wr_kv_value_bytes(type, head_dim), alignment = type == WR_KV_F32 ? 4 : 2;
    const uint32_t slot = check_below(c, 16);
    float *k = filled(c, kind, head_dim), *v = filled(c, kind, head_dim);
    uint32_t at = check_below(c, 2 * head_dim);
    if (limit != 0.0f) (at < head_dim ? k : v)[at % head_dim] = limit; /* else no element of these data is above 6e4 */
    const float per_step = type == WR_KV_F16 ? 1.0f : type == WR_KV_K8V4 && at >= head_dim ? 7.0f : 127.0f;
    uint8_t *k_want = check_alloc(key * 16, alignment), *v_want = check_alloc(row, alignment), *k_same = malloc(key * 16), *v_same = malloc(row);
    memcpy(k_same, k_want, key * 16);
    memcpy(v_same, v_want, row);
    bool finite = c->ref->kv_store(type, head_dim, k, v, k_want, slot, v_want);
    /* The largest that rounds to a finite half, in the value or in the scale of its block. */
    bool expected = type == WR_KV_F32 ? isfinite(limit) : fabsf(limit) / per_step < 65520.0f;
    bool right = finite == expected && check_intact(k_want) && check_intact(v_want);
    if (expected) {
        expect_stored(type, k, head_dim, k_same, 16, slot);
        expect_stored(type, v, head_dim, v_same, 1, 0);
        right = right && !memcmp(k_want, k_same, key * 16) && !memcmp(v_want, v_same, row);
    }
    check_that(c, right, "kv_store scalar %s head_dim %u %s limit %g", wr_kv_name(type), head_dim, check_data_name(kind), (double)limit);
    for (uint32_t l = 0; l < c->n_levels; l++) {
        uint8_t *k_got = check_alloc(key * 16, alignment), *v_got = check_alloc(row, alignment);
        bool same = c->level[l]->kv_store(type, head_dim, k, v, k_got, slot, v_got) == finite && check_intact(k_got) && check_intact(v_got);
        if (finite) same = same && !memcmp(k_want, k_got, key * 16) && !memcmp(v_want, v_got, row);
        check_that(c, same, "kv_store %s %s head_dim %u %s limit %g", c->level[l]->level, wr_kv_name(type), head_dim, check_data_name(kind), (double)limit);
        check_free(k_got);
        check_free(v_got);
    }
    check_free(k);
    check_free(v);
    check_free(k_want);
    check_free(v_want);
    free(k_same);
    free(v_same);
}

/* Against the sum that it is, in double precision: log2(n) additions and a product, each off by half a unit of the sum of magnitudes. */
static void hadamard(struct check *c, uint32_t head_dim, enum check_data kind)
{
    uint32_t n = 1;
    while (head_dim % (2 * n) == 0) n *= 2;
    float *x = filled(c, kind, head_dim), *y = check_alloc(head_dim * sizeof *y, 4);
    memcpy(y, x, head_dim * sizeof *y);
    wr_hadamard(y, head_dim);
    bool right = check_intact(y);
    for (uint32_t i = 0; i < head_dim; i++) {
        double want = 0, size = 0;
        for (uint32_t j = i / n * n; j < i / n * n + n; j++) {
            uint32_t common = i % n & j % n, odd = 0;
            for (; common != 0; common /= 2) odd ^= common % 2;
            want += odd ? -(double)x[j] : (double)x[j];
            size += fabs((double)x[j]);
        }
        right = right && fabs((double)y[i] - want / sqrt(n)) <= (log2(n) + 3) * 0x1p-24 * size / sqrt(n) + 0x1p-148;
    }
    check_that(c, right, "hadamard head_dim %u %s: away from double precision", head_dim, check_data_name(kind));
    check_free(x);
    check_free(y);
}

void check_rows(struct check *c)
{
    static const uint32_t head_dims[] = {8, 24, 32, 40, 64, 80, 96, 100, 128, 256};
    static const float limits[] = {
        0.0f, 65519.996f, 65520.0f, -65520.0f, 65504.0f, 8321039.5f, 8321040.0f, 458639.97f, -458640.0f, -1e7f, 1e38f, INFINITY, -INFINITY, NAN};
    for (uint32_t kind = 0; kind < CHECK_N_DATA; kind++) {
        for (uint32_t i = 0; i < N_LENGTHS; i += c->quick ? 7 : 1) {
            rmsnorm(c, row_length(i), kind);
            add_and_activations(c, row_length(i), kind);
        }
        for (uint32_t n = 32; n <= 1536; n += n < 256 ? 32 : 320) {
            quantize(c, n, kind, false);
            quantize(c, n, kind, true);
        }
        for (uint32_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; i++) {
            hadamard(c, head_dims[i], kind);
            for (uint32_t j = 0; j < sizeof limits / sizeof limits[0]; j++) {
                for (int type = 0; type < WR_N_KV_TYPES; type++)
                    if (wr_kv_fits(type, head_dims[i])) kv_store(c, type, head_dims[i], kind, limits[j]);
            }
        }
    }
    for (uint32_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; i++) {
        for (uint32_t n_rot = 2; n_rot <= head_dims[i]; n_rot += head_dims[i] > 40 ? 14 : 2) {
            rope(c, head_dims[i], n_rot, false);
            rope(c, head_dims[i], n_rot, true);
        }
        rope(c, head_dims[i], head_dims[i], false);
        rope(c, head_dims[i], head_dims[i], true);
    }
    activations_everywhere(c);
    non_finite(c);
}

/* ---- bench ---- */

struct rows_bench {
    const struct wr_kernels *k;
    float *x, *y, *w;
    struct wr_act act;
    uint16_t *kv;
    uint32_t n;
};

static void run_rmsnorm(void *p)
{
    struct rows_bench *b = p;
    b->k->rmsnorm(b->x, b->w, b->y, b->n, 1e-5f);
}
static void run_quantize(void *p)
{
    struct rows_bench *b = p;
    b->k->quantize(&b->act, 0);
}
static void run_add(void *p)
{
    struct rows_bench *b = p;
    b->k->add(b->y, b->w, b->n);
}
static void run_silu_mul(void *p)
{
    struct rows_bench *b = p;
    b->k->silu_mul(b->y, b->x, b->n);
}
static void run_gelu_mul(void *p)
{
    struct rows_bench *b = p;
    b->k->gelu_mul(b->y, b->x, b->n);
}
static void run_all_finite(void *p)
{
    struct rows_bench *b = p;
    b->k->all_finite(b->x, b->n);
}
static void run_rope(void *p)
{
    struct rows_bench *b = p;
    b->k->rope(b->y, b->n / 128, 128, 128, b->w, b->w + 64, true);
}
static void run_rope_halves(void *p)
{
    struct rows_bench *b = p;
    b->k->rope(b->y, b->n / 128, 128, 128, b->w, b->w + 64, false);
}
static void run_kv_store(void *p)
{
    struct rows_bench *b = p;
    b->k->kv_store(WR_KV_F16, 128, b->x, b->x + 128, b->kv, 3, b->kv + 2048);
}

void bench_rows(struct check *c)
{
    enum { N = 4096 };
    static const struct {
        const char *op;
        void (*run)(void *);
        double bytes; /* read and written a call */
    } ops[] = {
        {"rmsnorm", run_rmsnorm, N * 12.0},
        {"quantize", run_quantize, N * 5.25},
        {"quantize16", run_quantize, N * 6.25},
        {"add", run_add, N * 12.0},
        {"silu_mul", run_silu_mul, N * 12.0},
        {"gelu_mul", run_gelu_mul, N * 12.0},
        {"all_finite", run_all_finite, N * 4.0},
        {"rope", run_rope, N * 8.0},
        {"rope halves", run_rope_halves, N * 8.0},
        {"kv_store", run_kv_store, 256 * 6.0},
    };
    struct rows_bench b = {.n = N, .x = check_alloc(N * 4, 64), .y = check_alloc(N * 4, 64), .w = check_alloc(N * 4, 64), .kv = check_alloc(8192, 64)};
    b.act = (struct wr_act){.m = 1,
        .k = N,
        .x = b.x,
        .ldx = N,
        .q8 = check_alloc(N, 64),
        .q16 = check_alloc(N * 2, 64),
        .d = floats(N / 32),
        .s = floats(N / 32),
        .s16 = floats(N / 16)};
    check_fill(c, CHECK_NORMAL, b.x, N);
    for (uint32_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        for (uint32_t i = 0; i <= c->n_levels; i++) {
            b.k = any_level(c, i);
            b.act.precise = !strcmp(ops[o].op, "quantize16");
            memset(b.y, 0, N * 4);
            for (uint32_t j = 0; j < N; j++) b.w[j] = 0.7f;
            check_rate(ops[o].op, "row of 4096, in L1", b.k->level, ops[o].bytes, check_seconds(ops[o].run, &b), "GB/s");
        }
    }
    check_free(b.x);
    check_free(b.y);
    check_free(b.w);
    check_free(b.kv);
    check_free(b.act.q8);
    check_free(b.act.q16);
    check_free(b.act.d);
    check_free(b.act.s);
    check_free(b.act.s16);
}
