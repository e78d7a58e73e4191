/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products: every level against the reference, bit for bit; the reference against double precision.
 *
 * An element of y depends on its weight row and its activation row alone. So the reference is computed once for the largest shape, and each level must
 * return the same bits for every smaller one; inputs end at a page that may not be read.
 */
#include "check.h"

#include <sys/mman.h>
#include <time.h>

#define MAX_M 70
#define MAX_ROWS 40
#define PRECISE_MAX 32767

/* ---- Data ---- */

enum weights { WEIGHTS_ENCODED, WEIGHTS_RANDOM, WEIGHTS_EXTREME, WEIGHTS_N };
enum acts { ACTS_RANDOM, ACTS_EXTREME, ACTS_N };

static uint16_t any_half(struct check *c) /* finite; a quarter zero, a quarter subnormal */
{
    const uint16_t sign = (uint16_t)(check_below(c, 2) << 15);
    switch (check_below(c, 4)) {
    case 0:
        return sign;
    case 1:
        return (uint16_t)(sign | (1 + check_below(c, 0x3ff)));
    default:
        return (uint16_t)(sign | (0x0400 + check_below(c, 0x7800)));
    }
}

/* Where a block has halves: its scale, and min where there is one. */
static uint32_t half_offset(const struct wr_quant *quant)
{
    if (quant->block_bytes == wr_quant_q2_k.block_bytes) return 80;
    if (quant->block_bytes == wr_quant_q3_k.block_bytes) return 108;
    if (quant->block_bytes == wr_quant_tq2_0.block_bytes) return 64;
    return quant->block_bytes == wr_quant_q6_k.block_bytes ? 208 : 0;
}

static void random_blocks(struct check *c, const struct wr_quant *quant, enum weights kind, uint8_t *row, size_t n_blocks)
{
    static const uint8_t extremes[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x88, 0x81};
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = row + b * quant->block_bytes;
        const uint8_t fill = extremes[check_below(c, sizeof extremes)];
        for (uint32_t i = 0; i < quant->block_bytes; i++) block[i] = kind == WEIGHTS_EXTREME ? fill : (uint8_t)check_u32(c);
        for (uint32_t i = 0; i < (quant->has_min ? 4 : 2); i += 2) {
            const uint16_t h = any_half(c);
            memcpy(block + half_offset(quant) + i, &h, 2);
        }
    }
}

static void make_row(struct check *c, const struct wr_quant *quant, enum weights kind, uint8_t *row, uint32_t k)
{
    if (kind != WEIGHTS_ENCODED && !quant->is_float) {
        random_blocks(c, quant, kind, row, k / quant->block_elems);
        return;
    }
    float *w = malloc((size_t)k * sizeof *w);
    check_fill(c, quant->is_float ? (enum check_data)check_below(c, CHECK_N_DATA) : CHECK_NORMAL, w, k);
    quant->encode(w, row, k);
    free(w);
}

/* Activations of m rows as rule d could have made them, extremes included; s and s16 are exact. */
static void make_acts(struct check *c, enum acts kind, struct wr_act *act)
{
    const int max = act->precise ? PRECISE_MAX : 127;
    for (size_t row = 0; row < act->m; row++) {
        check_fill(c, (enum check_data)check_below(c, CHECK_N_DATA), (float *)(uintptr_t)act->x + row * act->ldx, act->k);
    }
    for (size_t g = 0; g < (size_t)act->m * (act->k / WR_GROUP); g++) {
        const uint32_t pattern = check_below(c, 4);
        int32_t sum[2] = {0, 0};
        for (size_t j = g * WR_GROUP; j < (g + 1) * WR_GROUP; j++) {
            int q = (int)check_below(c, (uint32_t)(2 * max + 1)) - max;
            if (kind == ACTS_EXTREME) q = pattern == 0 ? max : pattern == 1 ? -max : pattern == 2 ? (j % 2 ? max : -max) : 0;
            if (act->precise)
                act->q16[j] = (int16_t)q;
            else
                act->q8[j] = (int8_t)q;
            sum[j % WR_GROUP / 16] += q;
        }
        act->s[g] = (float)(sum[0] + sum[1]);
        for (size_t h = 0; h < 2; h++) act->s16[2 * g + h] = (float)sum[h];
        act->d[g] = ldexpf(1.0f + 0.5f * check_uniform(c), (int)check_below(c, 40) - (kind == ACTS_EXTREME && pattern == 0 ? 130 : 30));
        if (kind == ACTS_EXTREME && pattern == 3) act->d[g] = 0.0f;
    }
}

static void *copied(const void *from, size_t bytes, size_t align)
{
    void *p = check_alloc(bytes, align);
    memcpy(p, from, bytes);
    return p;
}

/* The first m rows, in buffers that end where they end. */
static struct wr_act first_rows(const struct wr_act *all, uint32_t m, bool floats)
{
    struct wr_act act = *all;
    const size_t n = (size_t)m * all->k, groups = (size_t)m * (all->k / WR_GROUP);
    act.m = m;
    act.x = NULL, act.q8 = NULL, act.q16 = NULL, act.d = NULL, act.s = NULL, act.s16 = NULL;
    if (floats) {
        act.x = copied(all->x, ((m - 1) * all->ldx + all->k) * sizeof(float), sizeof(float));
    } else {
        if (all->precise)
            act.q16 = copied(all->q16, n * sizeof(int16_t), sizeof(int16_t));
        else
            act.q8 = copied(all->q8, n, 1);
        act.d = copied(all->d, groups * sizeof(float), sizeof(float));
        act.s = copied(all->s, groups * sizeof(float), sizeof(float));
        act.s16 = copied(all->s16, 2 * groups * sizeof(float), sizeof(float));
    }
    return act;
}

static void free_rows(struct wr_act *act)
{
    void *const parts[] = {(void *)(uintptr_t)act->x, act->q8, act->q16, act->d, act->s, act->s16};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i]) check_free(parts[i]);
    }
}

/* ---- Equal bits ---- */

struct problem {
    const struct wr_quant *quant;
    const char *what;
    bool precise;
    uint32_t k, max_m, max_rows;
    size_t row_bytes, stride;
    uint8_t *rows;     /* [max_rows], stride apart */
    struct wr_act act; /* max_m rows */
    float *expected;   /* [max_m][max_rows] */
};

static void problem_init(struct check *c, struct problem *p, enum weights weights, enum acts acts)
{
    const uint32_t k = p->k, m = p->max_m;
    const size_t groups = (size_t)m * (k / WR_GROUP);
    p->row_bytes = (size_t)k / p->quant->block_elems * p->quant->block_bytes;
    p->stride = p->row_bytes + check_below(c, 3) * check_below(c, 70);
    p->rows = malloc(p->stride * p->max_rows);
    for (uint32_t r = 0; r < p->max_rows; r++) make_row(c, p->quant, weights, p->rows + r * p->stride, k);
    p->act = (struct wr_act){.m = m, .k = k, .ldx = k + check_below(c, 5), .precise = p->precise};
    p->act.x = malloc(m * p->act.ldx * sizeof(float));
    p->act.q8 = malloc((size_t)m * k);
    p->act.q16 = malloc((size_t)m * k * sizeof(int16_t));
    p->act.d = malloc(groups * sizeof(float) + 1);
    p->act.s = malloc(groups * sizeof(float) + 1);
    p->act.s16 = malloc(groups * 2 * sizeof(float) + 1);
    make_acts(c, acts, &p->act);
    p->expected = malloc((size_t)m * p->max_rows * sizeof(float));
    c->ref->matmul(p->quant, p->rows, p->stride, p->max_rows, &p->act, p->expected, p->max_rows, NULL);
}

static void problem_fini(struct problem *p)
{
    free(p->rows);
    free((void *)(uintptr_t)p->act.x);
    free(p->act.q8);
    free(p->act.q16);
    free(p->act.d);
    free(p->act.s);
    free(p->act.s16);
    free(p->expected);
}

static void check_shape(
    struct check *c, const struct problem *p, const struct wr_kernels *level, const struct wr_act *act, const uint8_t *rows, uint32_t n_rows, void *work)
{
    const size_t ldy = n_rows + (n_rows + act->m) % 3;
    float *y = check_alloc(((act->m - 1) * ldy + n_rows) * sizeof(float), sizeof(float));
    const uint32_t canary = 0x7fc0beef; /* a NaN */
    for (size_t i = 0; i + 1 < act->m; i++) {
        for (size_t r = n_rows; r < ldy; r++) memcpy(y + i * ldy + r, &canary, 4);
    }
    level->matmul(p->quant, rows, p->stride, n_rows, act, y, ldy, work);
    bool ok = check_intact(y) && check_intact(work);
    uint32_t bad_i = 0;
    size_t bad_r = n_rows;
    for (uint32_t i = 0; i < act->m && ok; i++) {
        bad_i = i;
        bad_r = check_diff_f32(y + i * ldy, p->expected + (size_t)i * p->max_rows, n_rows);
        ok = bad_r == n_rows;
        for (size_t r = n_rows; r < ldy && i + 1 < act->m; r++) ok = ok && memcmp(y + i * ldy + r, &canary, 4) == 0;
    }
    check_that(c, ok, "matmul %s %s %s m %u rows %u k %u stride +%zu: at [%u][%zu]", level->level, p->what, p->precise ? "precise" : "", act->m, n_rows, p->k,
        p->stride - p->row_bytes, bad_i, bad_r);
    check_free(y);
}

/* Every level at the shapes in ms x ns; the last of each is the largest. */
static void check_shapes(
    struct check *c, struct problem *p, enum weights weights, enum acts acts, const uint32_t *ms, size_t n_ms, const uint32_t *ns, size_t n_ns)
{
    p->max_m = ms[n_ms - 1];
    p->max_rows = ns[n_ns - 1];
    problem_init(c, p, weights, acts);
    void *work = check_alloc(WR_MATMUL_WORK_BYTES, 64);
    for (size_t j = 0; j < n_ns; j++) {
        uint8_t *rows = copied(p->rows, (ns[j] - 1) * p->stride + p->row_bytes, 1);
        for (size_t i = 0; i < n_ms; i++) {
            struct wr_act act = first_rows(&p->act, ms[i], p->quant->is_float);
            for (uint32_t l = 0; l < c->n_levels; l++) check_shape(c, p, c->level[l], &act, rows, ns[j], work);
            free_rows(&act);
        }
        check_free(rows);
    }
    check_free(work);
    problem_fini(p);
}

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static void check_format(struct check *c, const struct wr_quant *quant, const char *what, bool precise)
{
    static const uint32_t block_ks[] = {32, 64, 96, 576, 1536, 4128}, super_ks[] = {256, 768, 512, 1280, 1536, 4352}, float_ks[] = {1, 3, 31, 258, 577, 1537};
    static const uint32_t some_m[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 33, MAX_M}, some_rows[] = {1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, MAX_ROWS};
    static const uint32_t many_m[] = {1, 6, 19, 67}, many_rows[] = {129, 300}; /* more weight rows than are unpacked at once, more activation rows than are few */
    uint32_t all_m[MAX_M], all_rows[MAX_ROWS];
    for (uint32_t i = 0; i < MAX_M; i++) all_m[i] = i + 1;
    for (uint32_t i = 0; i < MAX_ROWS; i++) all_rows[i] = i + 1;
    struct problem p = {.quant = quant, .what = what, .precise = precise};
    for (size_t i = 0; i < COUNT(block_ks); i++) {
        p.k = quant->is_float ? float_ks[i] : quant->block_elems > WR_GROUP ? super_ks[i] : block_ks[i];
        for (int weights = 0; weights < (quant->is_float ? 1 : WEIGHTS_N); weights++) {
            for (int acts = 0; acts < ACTS_N; acts++) {
                const bool all = i == 2 && weights == WEIGHTS_RANDOM && acts == ACTS_RANDOM && !c->quick;
                if (all || (quant->is_float && i == 2 && !c->quick)) {
                    check_shapes(c, &p, weights, acts, all_m, MAX_M, some_rows, COUNT(some_rows));
                    check_shapes(c, &p, weights, acts, some_m, COUNT(some_m), all_rows, MAX_ROWS);
                } else {
                    check_shapes(c, &p, weights, acts, some_m, c->quick ? 7 : COUNT(some_m), some_rows, COUNT(some_rows));
                }
            }
        }
    }
    p.k = quant->is_float ? 513 : quant->block_elems > WR_GROUP ? 2304 : 2080;
    check_shapes(c, &p, quant->is_float ? WEIGHTS_ENCODED : WEIGHTS_RANDOM, ACTS_RANDOM, many_m, COUNT(many_m), many_rows, COUNT(many_rows));
}

/* ---- The reference against double precision ---- */

/* A sum of n fused steps in f32, each term rounded at most twice before: |error| <= (n + 3) * 2^-24 * sum |term|, and a rounding below the normal
 * range at each step. */
static void check_accuracy(struct check *c, const struct wr_quant *quant, bool precise)
{
    struct problem p = {.quant = quant, .precise = precise, .k = quant->is_float ? 1001 : 1536, .max_m = 9, .max_rows = 13};
    float *w = malloc(p.k * sizeof *w);
    double worst = 0;
    for (int weights = 0; weights < (quant->is_float ? 1 : WEIGHTS_N); weights++) {
        for (int acts = 0; acts < ACTS_N; acts++) {
            problem_init(c, &p, weights, acts);
            for (uint32_t r = 0; r < p.max_rows; r++) {
                quant->decode_f32(p.rows + r * p.stride, w, p.k);
                for (uint32_t i = 0; i < p.max_m; i++) {
                    double sum = 0, size = 0;
                    for (uint32_t j = 0; j < p.k; j++) {
                        const size_t at = (size_t)i * p.k + j;
                        const double q = precise ? p.act.q16[at] : p.act.q8[at];
                        const double x = quant->is_float ? p.act.x[i * p.act.ldx + j] : q * p.act.d[i * (p.k / WR_GROUP) + j / WR_GROUP];
                        sum += w[j] * x;
                        size += fabs(w[j] * x);
                        if (quant->has_min) { /* w = q * scale + min may cancel, and was rounded to f32 */
                            int8_t qw[WR_GROUP];
                            float scale, min;
                            quant->decode_group(p.rows + r * p.stride, j / quant->group, qw, &scale, &min);
                            size += fabs((double)min * x) + fabs((double)qw[j % quant->group] * scale * x);
                        }
                    }
                    const double steps = quant->is_float ? p.k : p.k / quant->group * (quant->has_min ? 2 : 1);
                    const double error = fabs(p.expected[i * p.max_rows + r] - sum), bound = (steps + 3) * (0x1p-24 * size + 0x1p-149);
                    if (bound > 0 && error / bound > worst) worst = error / bound;
                    check_that(c, error <= bound, "matmul scalar %s %s k %u at [%u][%u]: error %.3g, bound %.3g", quant->name, precise ? "precise" : "", p.k, i,
                        r, error, bound);
                }
            }
            problem_fini(&p);
        }
    }
    check_that(c, worst > 1e-6, "matmul scalar %s: no error at all (%g of the bound): nothing was measured", quant->name, worst);
    free(w);
}

void check_matmul(struct check *c)
{
    const struct wr_quant *quant;
    for (uint32_t f = 0; (quant = wr_quant_at(f)) != NULL; f++) {
        check_accuracy(c, quant, false);
        check_format(c, quant, quant->name, false);
        if (quant->is_float) continue;
        check_accuracy(c, quant, true);
        check_format(c, quant, quant->name, true);
    }
    /* Formats without code of their own, stood for by known ones under a foreign id. */
    struct wr_quant foreign[] = {wr_quant_q4_1, wr_quant_q8_0, wr_quant_q2_k, wr_quant_q6_k, wr_quant_f16};
    const char *const names[] = {"decoded Q4_1", "decoded Q8_0", "decoded Q2_K", "decoded Q6_K", "decoded F16"};
    for (size_t i = 0; i < COUNT(foreign); i++) {
        foreign[i].id = UINT32_MAX;
        check_format(c, &foreign[i], names[i], false);
        if (!foreign[i].is_float) check_format(c, &foreign[i], names[i], true);
    }
}

/* ---- Rates, beside what this machine can do: reading memory, and the arithmetic of rule e from registers alone ---- */

#define BENCH_ROWS 4096u
#define POOL_BYTES (512u << 20) /* copies of a matrix: no cache holds them */

/* Processor time of the thread: on a busy machine the turns of others do not count. */
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double best_seconds(void (*fn)(void *), void *arg)
{
    double best = INFINITY, total = 0;
    for (int i = 0; i < 3 || total < 0.15; i++) {
        const double start = thread_seconds();
        fn(arg);
        const double s = thread_seconds() - start;
        total += s;
        if (s < best && i > 0) best = s;
    }
    return best;
}

#ifdef WR_X86
#include <immintrin.h>

#define MIX_ROUNDS 20000
#define OPAQUE(v) __asm__ volatile("" : "+v"(v)) /* the compiler may not know that it is the same value */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* As many accumulators as there are registers for: of each, `steps` dot products, and what rule e does with a block's sum; not what it does
 * with a minimum, nor the sums of 5 and 6 bits that AVX2 adds up in parts. */
#define MIX(name, features, vi, vf, n_acc, zero_i, zero_f, steps, dot, finish, cvt, mul, fma)                                                                  \
    __attribute__((target(features))) static void name(void *arg)                                                                                              \
    {                                                                                                                                                          \
        vi w = zero_i, x = zero_i, sum[n_acc];                                                                                                                 \
        vf scale = zero_f, d = zero_f, acc[n_acc];                                                                                                             \
        OPAQUE(x);                                                                                                                                             \
        OPAQUE(scale);                                                                                                                                         \
        UNROLL for (int i = 0; i < n_acc; i++) acc[i] = zero_f;                                                                                                \
        for (int round = 0; round < MIX_ROUNDS * 8 / n_acc; round++) {                                                                                         \
            UNROLL for (int i = 0; i < n_acc; i++) sum[i] = zero_i;                                                                                            \
            UNROLL for (int s = 0; s < steps; s++)                                                                                                             \
            {                                                                                                                                                  \
                UNROLL for (int i = 0; i < n_acc; i++)                                                                                                         \
                {                                                                                                                                              \
                    OPAQUE(w);                                                                                                                                 \
                    sum[i] = dot(sum[i], w, x);                                                                                                                \
                }                                                                                                                                              \
            }                                                                                                                                                  \
            UNROLL for (int i = 0; i < n_acc; i++)                                                                                                             \
            {                                                                                                                                                  \
                OPAQUE(d);                                                                                                                                     \
                acc[i] = fma(cvt(finish(sum[i])), mul(scale, d), acc[i]);                                                                                      \
            }                                                                                                                                                  \
        }                                                                                                                                                      \
        UNROLL for (int i = 0; i < n_acc; i++) OPAQUE(acc[i]);                                                                                                 \
        (void)arg;                                                                                                                                             \
    }
#define SAME(v) (v)
#define AVX2_U8(s, w, x) _mm256_add_epi16(s, _mm256_maddubs_epi16(w, x))
#define AVX2_U8_END(s) _mm256_add_epi32(_mm256_madd_epi16(s, w), x)
#define AVX2_S16(s, w, x) _mm256_add_epi32(s, _mm256_madd_epi16(w, x))
#define AVX512_U8(s, w, x) _mm512_add_epi16(s, _mm512_maddubs_epi16(w, x))
#define AVX512_U8_END(s) _mm512_add_epi32(_mm512_madd_epi16(s, w), x)
#define AVX512_S16(s, w, x) _mm512_add_epi32(s, _mm512_madd_epi16(w, x))
#define AVX2_ARGS(steps, dot, finish)                                                                                                                          \
    "avx2,fma", __m256i, __m256, 4, _mm256_setzero_si256(), _mm256_setzero_ps(), steps, dot, finish, _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_fmadd_ps
#define AVX512_ARGS(features, steps, dot, finish)                                                                                                              \
    features, __m512i, __m512, 8, _mm512_setzero_si512(), _mm512_setzero_ps(), steps, dot, finish, _mm512_cvtepi32_ps, _mm512_mul_ps, _mm512_fmadd_ps
#define MIX_(...) MIX(__VA_ARGS__)
MIX_(mix_avx2_nibbles, AVX2_ARGS(8, AVX2_U8, AVX2_U8_END))
MIX_(mix_avx2_halves, AVX2_ARGS(4, AVX2_U8, AVX2_U8_END))
MIX_(mix_avx2_bytes, AVX2_ARGS(16, AVX2_S16, SAME))
MIX_(mix_avx512_nibbles, AVX512_ARGS("avx512f,avx512bw", 8, AVX512_U8, AVX512_U8_END))
MIX_(mix_avx512_halves, AVX512_ARGS("avx512f,avx512bw", 4, AVX512_U8, AVX512_U8_END))
MIX_(mix_avx512_bytes, AVX512_ARGS("avx512f,avx512bw", 16, AVX512_S16, SAME))
__attribute__((target("avx512f,avx512bw"), always_inline)) static inline __m512i vnni(__m512i sum, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}
MIX_(mix_avx512vnni, AVX512_ARGS("avx512f,avx512bw", 8, vnni, SAME))
MIX_(mix_avx512vnni_halves, AVX512_ARGS("avx512f,avx512bw", 4, vnni, SAME))

static void read_pool(void *arg)
{
    const __m128i *v = arg;
    __m128i sum[4] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
    for (size_t i = 0; i < POOL_BYTES / sizeof *v; i += 8) {
        _mm_prefetch((const char *)(v + i) + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)(v + i) + 4096 + 64, _MM_HINT_T0);
        UNROLL for (size_t j = 0; j < 8; j++) sum[j % 4] = _mm_or_si128(sum[j % 4], v[i + j]);
    }
    UNROLL for (size_t j = 0; j < 4; j++) __asm__ volatile("" : : "x"(sum[j]));
}

static const struct {
    const char *level;
    double lanes;
    void (*nibbles)(void *), (*halves)(void *), (*bytes)(void *); /* groups of 32 and of 16; 8 bits */
} mixes[] = {
    {"avx2", 8, mix_avx2_nibbles, mix_avx2_halves, mix_avx2_bytes},
    {"avx512", 16, mix_avx512_nibbles, mix_avx512_halves, mix_avx512_bytes},
    {"avx512vnni", 16, mix_avx512vnni, mix_avx512vnni_halves, mix_avx512vnni},
};

/* GOPS, 0 if unknown. */
static double mix_rate(const char *level, const struct wr_quant *quant)
{
    for (size_t i = 0; i < COUNT(mixes); i++) {
        if (strcmp(mixes[i].level, level) != 0) continue;
        void (*const mix)(void *) = quant->group < WR_GROUP ? mixes[i].halves : quant->id == WR_TYPE_Q8_0 ? mixes[i].bytes : mixes[i].nibbles;
        return MIX_ROUNDS * 8 * 2 * quant->group * mixes[i].lanes / best_seconds(mix, NULL) * 1e-9;
    }
    return 0;
}
#else
static void read_pool(void *arg)
{
    const uint64_t *v = arg;
    uint64_t sum[4] = {0};
    for (size_t i = 0; i < POOL_BYTES / sizeof *v; i += 4) {
        for (size_t j = 0; j < 4; j++) sum[j] |= v[i + j];
    }
    __asm__ volatile("" : : "r"(sum[0] | sum[1] | sum[2] | sum[3]));
}
static double mix_rate(const char *level, const struct wr_quant *quant) { return 0; }
#endif

struct run {
    const struct wr_kernels *kernels;
    const struct wr_quant *quant;
    const uint8_t *pool;
    size_t row_bytes, matrix_bytes;
    uint32_t n_rows, n_copies; /* copies of the matrix that a run goes through */
    struct wr_act act;
    float *y;
    void *work;
};

static void run_copies(void *arg)
{
    struct run *r = arg;
    for (uint32_t i = 0; i < r->n_copies; i++) {
        r->kernels->matmul(r->quant, r->pool + i * r->matrix_bytes, r->row_bytes, r->n_rows, &r->act, r->y, r->n_rows, r->work);
    }
}

static void bench_shape(struct check *c, struct run *r)
{
    static const uint32_t ms[] = {1, 2, 4, 16, 64, 512};
    const uint32_t k = r->act.k;
    for (uint32_t l = 0; l < c->n_levels; l++) {
        r->kernels = c->level[l];
        /* Ceilings beside each row of figures: on a shared machine both move. */
        const double mix = r->quant->is_float ? 0 : mix_rate(r->kernels->level, r->quant);
        if (mix > 0) printf("%s: arithmetic of rule e from registers %.0f GOPS\n", r->kernels->level, mix);
        for (size_t i = 0; i < (c->quick ? 3 : COUNT(ms)); i++) {
            const double read_rate = POOL_BYTES / best_seconds(read_pool, (void *)(uintptr_t)r->pool) * 1e-9;
            r->act.m = ms[i];
            r->n_rows = BENCH_ROWS;
            r->n_copies = ms[i] <= 4 ? (uint32_t)(POOL_BYTES / r->matrix_bytes) : 1; /* where memory counts, all that is in none of the caches */
            while (2.0 * ms[i] * r->n_rows * k > 6e9) r->n_rows /= 2;                /* enough rows for the rate, fewer seconds */
            const double s = best_seconds(run_copies, r) / r->n_copies;
            const double gops = 2.0 * ms[i] * r->n_rows * k / s * 1e-9, rate = (double)r->row_bytes * r->n_rows / s * 1e-9;
            printf("matmul %-5s %5u x %-5u m %-4u %-11s %8.1f GOPS, %3.0f %% of its arithmetic; %6.2f GB/s, %3.0f %% of a read at %.2f\n", r->quant->name,
                BENCH_ROWS, k, ms[i], r->kernels->level, gops, mix > 0 ? 100 * gops / mix : 0, rate, 100 * rate / read_rate, read_rate);
            fflush(stdout);
        }
    }
}

void bench_matmul(struct check *c)
{
    static const uint32_t ks[] = {4096, 14336};
    enum { MAX_K = 14336, BENCH_M = 512 };
    uint8_t *pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED) return;
    madvise(pool, POOL_BYTES, MADV_HUGEPAGE);
    memset(pool, 1, POOL_BYTES);
    struct run r = {.pool = pool, .work = check_alloc(WR_MATMUL_WORK_BYTES, 64), .y = malloc(sizeof(float) * BENCH_M * BENCH_ROWS)};
    r.act = (struct wr_act){.m = BENCH_M, .k = MAX_K, .ldx = MAX_K, .x = calloc(BENCH_M * MAX_K, sizeof(float)), .q8 = malloc(BENCH_M * MAX_K)};
    r.act.d = malloc(BENCH_M * MAX_K / WR_GROUP * sizeof(float));
    r.act.s = malloc(BENCH_M * MAX_K / WR_GROUP * sizeof(float));
    r.act.s16 = malloc(BENCH_M * MAX_K / 16 * sizeof(float));
    make_acts(c, ACTS_RANDOM, &r.act);
    for (uint32_t i = 0; (r.quant = wr_quant_at(i)) != NULL; i++) {
        for (size_t j = 0; j < (c->quick ? 1 : COUNT(ks)); j++) {
            r.act.k = ks[j];
            r.row_bytes = ks[j] / r.quant->block_elems * r.quant->block_bytes;
            r.matrix_bytes = r.row_bytes * BENCH_ROWS;
            bench_shape(c, &r);
        }
    }
    check_free(r.work);
    free(r.y);
    free((void *)(uintptr_t)r.act.x);
    free(r.act.q8);
    free(r.act.d);
    free(r.act.s);
    free(r.act.s16);
    munmap(pool, POOL_BYTES);
}
