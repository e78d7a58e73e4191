/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pass will take, from what was measured of the machine.
 *
 * R, reading: the pass's extents, and blocks of keys and values, at the disk's rate for their size and the ring's depth.
 * C, computing: every weight at its format's rate, keys and values, the stages' beginnings and ends, what one thread does between them, and the embedding
 * rows, which compute waits for. How fast weights come depends on how many a pass uses: of few the caches hold a part from pass to pass.
 * The tape is spread evenly over the pass and runs on into the next one, so both work at the same time, as far as the machine lets them: the pass is the longer
 * of the two and, on top, what passes with the same ratio of both took longer when they were measured.
 */
#include "base/num.h"
#include "memory/pager.h"
#include "memory/profile.h"

#define GIB 1073741824.0
#define MANY_ROWS 256 /* of the profile's prefill and attend_many */

struct machine { /* the profile, for one number of threads */
    const struct wr_predict_input *in;
    double read, attend, attend_many, in_pass;
    double memory; /* of the weights that a pass uses, the share that comes from memory: 0, as of the smallest set, to 1, as of the largest */
    double cached; /* the time that they take, over that of weights from memory */
    bool missing;  /* something that was asked for was not measured */
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
        if (e->bytes != bytes) rate = disk_rate(m, bytes = e->bytes, depth);
        seconds += per(m, e->bytes, rate);
    }
    return seconds;
}

/* Keys and values that come from the disk, of the tiles that are full when the pass begins. */
static double kv_seconds(struct machine *m)
{
    const struct wr_plan *plan = m->in->plan;
    const double n = plan->spilled ? (double)wr_kv_layout_streamed(&plan->kv, m->in->position) : 0;
    if (n == 0) return 0;
    return per(m, n * (double)plan->kv.block_bytes, disk_rate(m, plan->kv.block_bytes, plan->kv.n_ring));
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

static uint32_t rows_of(const struct wr_predict_input *in, const struct wr_weight *w)
{
    return w->use == WR_USE_HEAD ? in->n_logits : w->use == WR_USE_DENSE ? in->n_rows : 0;
}

/* Between the sets that were measured by the logarithm of their bytes, in the time that a byte takes. */
static void know_caches(struct machine *m)
{
    const struct wr_predict_input *in = m->in;
    const struct wr_profile *p = in->profile;
    double bytes = 0, before_bytes = 0, before = 0, least = 0, at = 0;
    for (uint32_t i = 0; i < in->plan->n_weights; i++)
        if (rows_of(in, &in->plan->weights[i]) > 0) bytes += (double)in->plan->weights[i].tensor->bytes;
    for (uint32_t i = 0; i < p->n_sets; i++) {
        const double set = (double)p->set[i].bytes, rate = at_threads(p, p->set[i].rate, in->n_threads), t = rate > 0 ? 1 / rate : before;
        if (i == 0) least = at = t;
        if (i > 0 && bytes > before_bytes) at = bytes < set ? before + (t - before) * wr_ln(bytes / before_bytes) / wr_ln(set / before_bytes) : t;
        before_bytes = set;
        before = t;
    }
    m->memory = m->cached = 1;
    if (before <= least) return; /* no cache is seen */
    m->memory = at <= least ? 0 : at >= before ? 1 : (at - least) / (before - least);
    m->cached = (least + m->memory * (before - least)) / before;
}

/* Seconds of one row with a weight that comes from memory. A short row takes more for its bytes, by the same time a row, which both measured lengths tell. */
static double one_row(struct machine *m, const struct wr_profile_format *f, const struct wr_weight *w)
{
    const struct wr_profile *p = m->in->profile;
    const double least = per(m, 1, at_threads(p, f->decode, m->in->n_threads)), rate = at_threads(p, f->decode_short, m->in->n_threads);
    const double more = rate > 0 ? 1 / rate - least : 0, k = (double)w->tensor->ne[0];
    const double share = k < WR_PROFILE_LONG ? (WR_PROFILE_LONG / k - 1) / ((double)WR_PROFILE_LONG / WR_PROFILE_SHORT - 1) : 0;
    return (double)w->tensor->bytes * (least + (more > 0 ? more * share : 0)) / m->in_pass;
}

struct parts { /* of computing: in all, and what memory and arithmetic alone would take */
    double seconds, memory, arithmetic;
};

static void add_weight(struct machine *m, const struct wr_weight *w, struct parts *to)
{
    const struct wr_profile *p = m->in->profile;
    const struct wr_profile_format *f = NULL;
    uint32_t rows = rows_of(m->in, w);
    if (rows == 0) return;
    for (uint32_t i = 0; i < p->n_formats; i++) /* floats have one width of activations */
        if (p->format[i].type == w->tensor->quant->id && (p->format[i].precise == m->in->precise || w->tensor->quant->is_float)) f = &p->format[i];
    if (f == NULL) {
        m->missing = true;
        return;
    }
    double bytes = (double)w->tensor->bytes, flops = 2 * (double)w->tensor->ne[0] * (double)w->tensor->n_rows;
    const double mix = at_threads(p, f->mix, m->in->n_threads), arithmetic = mix > 0 ? flops / mix : 0, uncached = one_row(m, f, w);
    const double least = arithmetic < uncached ? arithmetic : uncached, one = uncached * m->cached > least ? uncached * m->cached : least;
    to->seconds += one;
    if (rows > 1) {
        double many = per(m, MANY_ROWS * flops, at_threads(p, f->prefill, m->in->n_threads));
        if (many > one) to->seconds += (rows - 1) * (many - one) / (MANY_ROWS - 1);
    }
    to->memory += per(m, bytes, m->read);
    to->arithmetic += rows * arithmetic;
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

/* The threads' starts and ends, and what lies between them: of a few rows one thread's work, of more all threads'. */
static double stages_seconds(const struct machine *m)
{
    const struct wr_predict_input *in = m->in;
    const struct wr_profile *p = in->profile;
    double cached = at_threads(p, p->stage_cached_seconds, in->n_threads), uncached = at_threads(p, p->stage_seconds, in->n_threads);
    double stage = cached > 0 ? (1 - m->memory) * cached + m->memory * uncached : uncached;
    const uint32_t cpus = p->n_threads > 0 ? p->threads[p->n_threads - 1] : 1, n_threads = in->n_threads < cpus ? in->n_threads : cpus;
    double elements = (double)in->n_elements * in->n_rows / (in->n_rows > 2 ? n_threads : 1);
    return in->n_stages * stage + (p->activate > 0 ? elements / p->activate : 0);
}

/* Between the ratios that were measured by their logarithm. Beyond them: of little reading proportionally less is lost, of much the same share. */
static double together(const struct wr_profile *p, double read, double compute)
{
    const double longer = read > compute ? read : compute, ratio = compute > 0 ? read / compute : 0;
    const struct wr_profile_together *below = NULL, *above = NULL;
    for (uint32_t i = 0; i < p->n_together && above == NULL; i++) {
        if (p->together[i].ratio <= ratio) below = &p->together[i];
        if (p->together[i].ratio > ratio) above = &p->together[i];
    }
    double more = 0;
    if (below != NULL && above != NULL)
        more = below->more + (above->more - below->more) * wr_ln(ratio / below->ratio) / wr_ln(above->ratio / below->ratio);
    else if (below != NULL)
        more = below->more;
    else if (above != NULL)
        more = above->more * ratio / above->ratio;
    return longer * (1 + more);
}

void wr_predict(struct wr_prediction *out, const struct wr_predict_input *in)
{
    const struct wr_profile *p = in->profile;
    struct machine m = {.in = in,
        .read = at_threads(p, p->read, in->n_threads),
        .attend = at_threads(p, p->attend, in->n_threads),
        .attend_many = at_threads(p, p->attend_many, in->n_threads),
        .in_pass = at_threads(p, p->in_pass, in->n_threads)};
    struct parts compute = {0};
    *out = (struct wr_prediction){0};
    if (m.in_pass <= 0) m.in_pass = 1;
    know_caches(&m);
    for (uint32_t i = 0; i < in->plan->n_weights; i++) add_weight(&m, &in->plan->weights[i], &compute);
    add_attention(&m, in->n_layer - in->n_local, UINT32_MAX, &compute);
    add_attention(&m, in->n_local, in->window, &compute);
    compute.seconds += stages_seconds(&m) + rows_seconds(&m);
    double read = extents_seconds(&m) + kv_seconds(&m);
    if (m.missing) return;
    out->read_seconds = read;
    out->compute_seconds = compute.seconds;
    out->seconds = out->first_seconds = together(p, read, compute.seconds);
    if (p->disk_first > 1) out->first_seconds = together(p, read / p->disk_first, compute.seconds);
    out->bound = read > compute.seconds ? WR_BOUND_DISK : compute.memory > compute.arithmetic ? WR_BOUND_MEMORY : WR_BOUND_COMPUTE;
    if (in->plan->streamed == 0) return;
    double more = (double)in->plan->streamed < GIB ? (double)in->plan->streamed : GIB;
    double left = read * (1 - more / (double)in->plan->streamed);
    const double saved = out->seconds - together(p, left, compute.seconds);
    out->seconds_per_gib = saved > 0 ? saved * GIB / more : 0;
}
