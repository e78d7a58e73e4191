/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pass will take, from what was measured of the machine.
 *
 * R, reading alone: the pass's extents at the disk's rate for their size and the ring's depth.
 * C, computing alone: every weight at its format's rate, keys and values, the stages' meetings, and the embedding rows, which compute waits for.
 * Both are somewhat slower in a pass than on their own, see IN_A_PASS.
 * Together: the tape is spread evenly over the pass and runs on into the next one, so both work until one of them is done. While they do, the disk keeps the
 * share d of its rate and compute the share c of its; the other one ends alone, at its full rate. The larger of R / d and C / c is the bound.
 */
#include "memory/pager.h"
#include "memory/profile.h"

#define GIB 1073741824.0
/* Of the rates that the profile has. Reads come back out of order, and a slot is free only when those before it were used: 0.82 to 0.89 of the disk's rate on
 * a Xeon's ext4. Products begin a stage with nothing fetched ahead and end it waiting for the last item: 0.88 to 1.08 for weights of 500 to 90 MB. */
#define READ_IN_A_PASS 0.86
#define COMPUTE_IN_A_PASS 0.95
#define MANY_ROWS 256 /* of the profile's prefill and attend_many */

struct machine { /* the profile, for one number of threads */
    const struct wr_predict_input *in;
    double read, attend, attend_many, stage_seconds, disk_beside, compute_beside;
    bool missing; /* something that was asked for was not measured */
};

/* Between the numbers of threads that were measured; beyond them, as at the border. */
static double at_threads(const struct wr_profile *p, const double *value, uint32_t n_threads)
{
    uint32_t below = WR_PROFILE_THREADS, above = WR_PROFILE_THREADS;
    for (uint32_t i = 0; i < p->n_threads; i++) {
        if (value[i] <= 0) continue;
        if (p->threads[i] <= n_threads) below = i;
        if (p->threads[i] >= n_threads && above == WR_PROFILE_THREADS) above = i;
    }
    if (below == WR_PROFILE_THREADS) below = above;
    if (above == WR_PROFILE_THREADS) above = below;
    if (below == WR_PROFILE_THREADS) return 0;
    if (above == below) return value[below];
    double share = (double)(n_threads - p->threads[below]) / (double)(p->threads[above] - p->threads[below]);
    return value[below] + share * (value[above] - value[below]);
}

static double per(struct machine *m, double amount, double rate)
{
    if (amount > 0 && rate <= 0) m->missing = true;
    return amount > 0 && rate > 0 ? amount / rate : 0;
}

/* A share that is kept of a rate; what was not measured costs nothing. */
static double share(double beside) { return beside > 0 && beside < 1 ? beside : 1; }

static double disk_rate(const struct machine *m, uint64_t bytes, uint32_t depth)
{
    return wr_profile_disk_rate(m->in->profile, m->in->engine, m->in->direct, bytes, depth);
}

static double extents_seconds(struct machine *m)
{
    const struct wr_plan *plan = m->in->plan;
    uint32_t n = plan->n_tape - (m->in->n_logits > 0 ? 0 : plan->n_tape_head), bytes = 0,
             depth = plan->n_slots < WR_PAGER_DEPTH ? plan->n_slots : WR_PAGER_DEPTH;
    double seconds = 0, rate = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct wr_extent *e = &plan->extents[plan->tape[i]];
        if (e->bytes != bytes) rate = READ_IN_A_PASS * disk_rate(m, bytes = e->bytes, depth);
        seconds += per(m, e->bytes, rate);
    }
    return seconds;
}

/* Embedding rows that are not in memory: compute begins with them. */
static double rows_seconds(struct machine *m)
{
    const struct wr_plan *plan = m->in->plan;
    if (plan->row_slot_bytes == 0) return 0;
    uint64_t bytes = plan->row_slot_bytes - WR_IO_ALIGN;
    uint32_t n = m->in->n_rows, depth = n < WR_ROW_SLOTS ? n : WR_ROW_SLOTS;
    return per(m, (double)n * (double)bytes, disk_rate(m, bytes, depth));
}

struct parts { /* of computing: in all, and what memory and arithmetic alone would take */
    double seconds, memory, arithmetic;
};

static void add_weight(struct machine *m, const struct wr_weight *w, struct parts *to)
{
    const struct wr_profile *p = m->in->profile;
    const struct wr_profile_format *f = NULL;
    uint32_t rows = w->use == WR_USE_HEAD ? m->in->n_logits : w->use == WR_USE_DENSE ? m->in->n_rows : 0;
    if (rows == 0) return;
    for (uint32_t i = 0; i < p->n_formats; i++) /* floats have one width of activations */
        if (p->format[i].type == w->tensor->quant->id && (p->format[i].precise == m->in->precise || w->tensor->quant->is_float)) f = &p->format[i];
    if (f == NULL) {
        m->missing = true;
        return;
    }
    double bytes = (double)w->tensor->bytes, flops = 2 * (double)w->tensor->ne[0] * (double)w->tensor->n_rows;
    double one = per(m, bytes, COMPUTE_IN_A_PASS * at_threads(p, f->decode, m->in->n_threads));
    to->seconds += one;
    if (rows > 1) {
        double many = per(m, MANY_ROWS * flops, COMPUTE_IN_A_PASS * at_threads(p, f->prefill, m->in->n_threads));
        if (many > one) to->seconds += (rows - 1) * (many - one) / (MANY_ROWS - 1);
    }
    to->memory += per(m, bytes, m->read);
    double mix = at_threads(p, f->mix, m->in->n_threads);
    if (mix > 0) to->arithmetic += rows * flops / mix;
}

/* Keys that the pass's rows see in a layer, summed up; and that any of them sees. */
static double keys_of_rows(const struct wr_predict_input *in, uint32_t window, double *seen)
{
    double sum = 0, last = (double)in->position + in->n_rows;
    for (uint32_t i = 0; i < in->n_rows; i++) {
        double keys = (double)in->position + i + 1;
        sum += keys < window ? keys : window;
    }
    *seen = last < (double)window + in->n_rows - 1 ? last : (double)window + in->n_rows - 1;
    return sum;
}

/* Every key and value is read once, for the first query of its head; further ones only compute. */
static void add_attention(struct machine *m, uint32_t n_layer, uint32_t window, struct parts *to)
{
    const struct wr_predict_input *in = m->in;
    if (n_layer == 0) return;
    double seen, keys = keys_of_rows(in, window, &seen);
    double bytes = seen * (double)in->kv_bytes_per_position * n_layer / in->n_layer, flops = 4.0 * in->head_dim * in->n_head * keys * n_layer;
    double queries = (double)in->n_rows * in->n_head / in->n_head_kv;
    to->seconds += per(m, bytes, m->attend) + per(m, flops * (queries - 1) / queries, m->attend_many);
    to->memory += per(m, bytes, m->read);
}

static double together(const struct machine *m, double read, double compute)
{
    double d = m->disk_beside, c = m->compute_beside;
    return read / d > compute / c ? read + compute / c * (1 - d) : compute + read / d * (1 - c);
}

void wr_predict(struct wr_prediction *out, const struct wr_predict_input *in)
{
    const struct wr_profile *p = in->profile;
    struct machine m = {.in = in,
        .read = at_threads(p, p->read, in->n_threads),
        .attend = at_threads(p, p->attend, in->n_threads),
        .attend_many = at_threads(p, p->attend_many, in->n_threads),
        .stage_seconds = at_threads(p, p->stage_seconds, in->n_threads),
        .disk_beside = share(p->disk_beside),
        .compute_beside = share(p->compute_beside)};
    struct parts compute = {0};
    *out = (struct wr_prediction){0};
    for (uint32_t i = 0; i < in->plan->n_weights; i++) add_weight(&m, &in->plan->weights[i], &compute);
    add_attention(&m, in->n_layer - in->n_local, UINT32_MAX, &compute);
    add_attention(&m, in->n_local, in->window, &compute);
    compute.seconds += in->n_stages * m.stage_seconds + rows_seconds(&m);
    double read = extents_seconds(&m);
    if (m.missing) return;
    out->read_seconds = read;
    out->compute_seconds = compute.seconds;
    out->seconds = together(&m, read, compute.seconds);
    bool disk = read / m.disk_beside > compute.seconds / m.compute_beside;
    out->bound = disk ? WR_BOUND_DISK : compute.memory > compute.arithmetic ? WR_BOUND_MEMORY : WR_BOUND_COMPUTE;
    if (in->plan->streamed == 0) return;
    double more = (double)in->plan->streamed < GIB ? (double)in->plan->streamed : GIB;
    double left = read * (1 - more / (double)in->plan->streamed);
    out->seconds_per_gib = (out->seconds - together(&m, left, compute.seconds)) * GIB / more;
}
