/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of a plan, from the stored profile. They decide nothing: the plan is complete before they are known. */
#include "engine/engine.h"

static struct wr_predict_input input_of(const weir_plan *p)
{
    const struct wr_hparams *hp = &p->model.hp;
    struct wr_predict_input in = {.plan = &p->plan,
        .profile = &p->profile,
        .engine = p->options.io,
        .direct = p->catalog.files[0].fd_direct >= 0,
        .precise = p->options.precise,
        .n_threads = p->options.n_threads,
        .n_stages = hp->n_layer * WR_PASS_STAGES_OF_LAYER + 1,
        .n_layer = hp->n_layer,
        .window = hp->window,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .kv_bytes_per_position = p->info.kv_bytes_per_position};
    const uint64_t n_q = (uint64_t)hp->n_head * hp->head_dim, n_kv = (uint64_t)hp->n_head_kv * hp->head_dim;
    /* Of a layer: two norms, the activations of four products, rotation, the gate, two sums. */
    in.n_elements = hp->n_layer * (4ull * hp->n_embd + 2 * n_q + n_kv + 2ull * hp->n_ff);
    for (uint32_t il = 0; il < hp->n_layer; il++) in.n_local += p->model.layers[il].local;
    return in;
}

static double pass_seconds(const weir_plan *p, uint32_t position, uint32_t n_rows, uint32_t n_logits)
{
    struct wr_predict_input in = input_of(p);
    struct wr_prediction out;
    in.position = position;
    in.n_rows = n_rows;
    in.n_logits = n_logits;
    wr_predict(&out, &in);
    return out.seconds;
}

/* Passes of one kind grow evenly with their position: the one in the middle stands for all whole chunks. */
double wr_plan_seconds(const weir_plan *p, enum wr_work work, uint32_t position, uint32_t n)
{
    if (p->info.profile_taken < 0) return 0;
    if (work == WR_WORK_DECODE) return pass_seconds(p, position, n, n);
    uint32_t chunk = p->plan.n_chunk, last = (n - 1) % chunk + 1, whole = n - last;
    double end = pass_seconds(p, position + whole, last, work == WR_WORK_EVAL ? last : 1);
    if (whole == 0) return end;
    return end + whole / chunk * pass_seconds(p, position + (whole - chunk) / 2, chunk, work == WR_WORK_EVAL ? chunk : 0);
}

bool wr_plan_expect(const weir_plan *p, const weir_plan *draft, uint32_t position, struct wr_gate *gate)
{
    for (uint32_t rows = 1; rows <= p->plan.n_spec_rows; rows = WR_GATE_NEXT(rows)) {
        const double seconds = wr_plan_seconds(p, WR_WORK_DECODE, position, rows);
        if (seconds <= 0) return false;
        wr_gate_expect(gate, rows, seconds);
    }
    if (draft == NULL) return true;
    const double seconds = wr_plan_seconds(draft, WR_WORK_DECODE, position, 1);
    wr_gate_expect_draft(gate, seconds);
    return seconds > 0;
}

void wr_plan_burst(const weir_plan *p, const weir_plan *draft, uint32_t position, weir_burst_info *b)
{
    const uint32_t most = p->plan.n_spec_rows - 1, fixed = p->options.spec_k < most ? p->options.spec_k : most;
    struct wr_gate gate;
    wr_gate_init(&gate);
    b->predicted = b->k = 0;
    if (p->plan.n_spec_rows < 2 || p->options.spec_tree > 0 || !wr_plan_expect(p, draft, position, &gate)) return;
    b->k = wr_gate_best(&gate, b->acceptance, most, &b->predicted);
    if (fixed == 0) return;
    b->k = fixed;
    b->predicted = wr_gate_expected(b->acceptance, fixed) / (wr_plan_seconds(p, WR_WORK_DECODE, position, fixed + 1) + fixed * gate.draft_seconds);
}

static double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

void wr_plan_predict(weir_plan *p)
{
    weir_plan_info *info = &p->info;
    static const double acceptance[WEIR_N_BURSTS] = {0.5, 0.7, 0.9};
    weir_err err;
    for (uint32_t i = 0; i < WEIR_N_BURSTS; i++) info->bursts[i].acceptance = acceptance[i];
    int rc = wr_engine_profile_load(&p->profile, p->path, p->kernels->level, &err);
    if (rc < 0) wr_log(&p->log, WEIR_LOG_WARN, "rates are not predicted: %s", err.text);
    info->profile_taken = rc > 0 ? p->profile.taken : -1;
    if (rc <= 0) return;
    struct wr_predict_input in = input_of(p);
    struct wr_prediction out;
    in.n_rows = in.n_logits = 1;
    wr_predict(&out, &in);
    info->decode_predicted = per_second(1, out.seconds);
    info->decode_predicted_first = per_second(1, out.first_seconds);
    info->decode_predicted_full = per_second(1, pass_seconds(p, info->n_ctx - 1, 1, 1));
    info->prefill_predicted = per_second(info->n_chunk, pass_seconds(p, 0, info->n_chunk, 1));
    info->decode_read_seconds = out.read_seconds;
    info->decode_compute_seconds = out.compute_seconds;
    info->seconds_per_gib = out.seconds_per_gib;
    info->bound = (enum weir_bound)out.bound;
    for (uint32_t i = 0; i < WEIR_N_BURSTS; i++) wr_plan_burst(p, p->draft, 0, &info->bursts[i]);
}
