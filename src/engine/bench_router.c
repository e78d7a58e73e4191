/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir bench router: what a layer of experts does before it knows which of them it needs: logits of all experts (a float product), the k largest, and a softmax for
 * their weights. The ceiling is that of the product.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/os.h"
#include "engine/bench.h"

#define MAX_EXPERTS 1024u
#define MAX_ROWS 65536u

static const struct shape {
    const char *name;
    uint32_t n_expert, n_embd, k;
} shapes[] = {{"30b-a3b", 128, 2048, 8}, {"gpt-oss-20b", 32, 2880, 4}, {"mixtral", 8, 4096, 2}, {"olmoe", 64, 2048, 8}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

struct router {
    struct wr_bench *b;
    struct wr_bench_product product;
    uint32_t k;
    float *weight;    /* [m][n_expert], of all experts */
    uint32_t *expert; /* [m][k], the heaviest first */
    _Atomic uint32_t next;
};

static void select_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct router *r = arg;
    const uint32_t n = r->product.n;
    for (uint32_t i; (i = atomic_fetch_add(&r->next, 1)) < r->product.act.m && !wr_bench_cancelled(r->b);) {
        float *weight = r->weight + (size_t)i * n;
        memcpy(weight, r->product.y + (size_t)i * n, n * sizeof *weight);
        wr_top_k(weight, n, r->k, r->expert + (size_t)i * r->k);
        wr_softmax(weight, n);
    }
}

static int run(void *arg, double *compute_seconds, weir_err *err)
{
    struct router *r = arg;
    uint64_t start = wr_clock_ns();
    wr_bench_product_run(r->b, &r->product);
    *compute_seconds = (double)(wr_clock_ns() - start) * 1e-9;
    atomic_store(&r->next, 0);
    if (r->product.act.m == 1)
        select_member(r, 0, 1);
    else
        wr_team_run(r->b->team, select_member, r);
    return wr_bench_product_finite(r->b, &r->product, err);
}

/* The choice and the weights that follow from the logits, in double precision. */
static int check_choice(const struct router *r, const char *shape, weir_err *err)
{
    const uint32_t n = r->product.n;
    for (uint32_t i = 0; i < r->product.act.m; i++) {
        const float *logit = r->product.y + (size_t)i * n, *weight = r->weight + (size_t)i * n;
        double max = -INFINITY, sum = 0;
        bool taken[MAX_EXPERTS] = {false};
        for (uint32_t e = 0; e < n; e++) max = fmax(max, (double)logit[e]);
        for (uint32_t e = 0; e < n; e++) sum += exp((double)logit[e] - max);
        for (uint32_t j = 0; j < r->k; j++) {
            uint32_t best = n;
            for (uint32_t e = n; e-- > 0;)
                if (!taken[e] && (best == n || logit[e] >= logit[best])) best = e;
            taken[best] = true;
            double want = exp((double)logit[best] - max) / sum, allowed = (max - (double)logit[best] + n / 16.0 + 8) * 0x1p-24 * want;
            if (r->expert[(size_t)i * r->k + j] != best || fabs((double)weight[best] - want) > allowed)
                return wr_err(err, WEIR_E_FAIL, "bench router %s: choice %u of row %u is expert %u with %.9g; double precision gives %u with %.9g", shape, j, i,
                    r->expert[(size_t)i * r->k + j], (double)weight[best], best, want);
        }
    }
    return 0;
}

static int one(struct wr_bench *b, const struct shape *shape, uint32_t m, weir_err *err)
{
    const uint64_t n_weights = (uint64_t)m * shape->n_expert, n_choices = (uint64_t)m * shape->k;
    struct router r = {.b = b, .k = shape->k, .product = {.quant = &wr_quant_f32, .n = shape->n_expert, .act = {.m = m, .k = shape->n_embd}}};
    wr_bench_row row = {.m = m, .unit = "ops/s", .format = "F32"};
    char what[64];
    snprintf(row.shape, sizeof row.shape, "%s", shape->name);
    snprintf(what, sizeof what, "%.40s, %u rows", shape->name, m);
    int rc = wr_bench_product_open(b, &r.product, WR_BENCH_PAGES(n_weights * sizeof(float)) + WR_BENCH_PAGES(n_choices * sizeof(uint32_t)), what, err);
    if (rc < 0) return rc;
    r.weight = wr_bench_take(b, n_weights * sizeof(float));
    r.expert = wr_bench_take(b, n_choices * sizeof(uint32_t));
    struct wr_bench_roof roof = wr_bench_product_roof(&r.product);
    rc = wr_bench_measure(b, run, &r, &roof, roof.ops, &row, err);
    if (rc == 0) rc = wr_bench_product_check(b, &r.product, &row, err);
    if (rc == 0) rc = check_choice(&r, row.shape, err);
    if (rc < 0) return rc;
    row.more = json_pack("{s:I, s:I, s:I}", "experts", (json_int_t)shape->n_expert, "n_embd", (json_int_t)shape->n_embd, "top", (json_int_t)shape->k);
    rc = wr_bench_emit(b, &row, err);
    json_decref(row.more);
    return rc;
}

/* A name, or EXPERTSxN_EMBDxTOP. */
static int parse(const char *word, struct shape *out, weir_err *err)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        *out = shapes[i];
        if (strcmp(shapes[i].name, word) == 0) return 0;
    }
    uint32_t side[3], n;
    int rc = wr_bench_numbers(word, "shape", "30b-a3b, gpt-oss-20b, mixtral, olmoe or EXPERTSxN_EMBDxTOP", 3, 65536, side, &n, err);
    if (rc < 0) return rc;
    *out = (struct shape){word, side[0], side[1], side[2]};
    if (side[2] <= side[0] && side[0] <= MAX_EXPERTS) return 0;
    return wr_err(err, WEIR_E_USAGE, "--shape: '%s' has %u experts and takes %u of them; at most %u and all are possible", word, side[0], side[2], MAX_EXPERTS);
}

int wr_bench_router(struct wr_bench *b, weir_err *err)
{
    const char *list = b->o->shapes != NULL ? b->o->shapes : "30b-a3b,gpt-oss-20b,mixtral";
    char word[WR_BENCH_LIST][48];
    struct shape shape[WR_BENCH_LIST];
    uint32_t rows[WR_BENCH_LIST], n_rows, n = 0;
    int rc = wr_bench_numbers(b->o->rows != NULL ? b->o->rows : "1,512", "rows", "a list such as 1,512", 1, MAX_ROWS, rows, &n_rows, err);
    if (rc == 0) rc = wr_bench_words(list, "shape", word, &n, err);
    for (uint32_t s = 0; rc == 0 && s < n; s++) rc = parse(word[s], &shape[s], err);
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t i = 0; rc == 0 && i < n_rows; i++) rc = one(b, &shape[s], rows[i], err);
    return rc;
}
