/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode passes over weights that are all read from the disk: the pager's own plan, ring and thread, and the team's products of one row. Arrival, use and
 * the next request of a slot do not follow one another at once, which costs a pass more than the disk's rate says.
 */
#include <string.h>
#include "base/os.h"
#include "engine/probe.h"
#include "memory/pager.h"

#define PASS_BYTES ((uint64_t)128 << 20) /* of weights: some hundred extents, less where ... */
#define PASS_SECONDS 0.3                 /* ... the disk takes longer for them */
#define LEAST_PASSES 3
#define LEAST_WEIGHTS 2 /* what the page cache got during one is dropped at the next, before it is read again */

struct pass {
    struct wr_probe *p;
    struct wr_file file;
    struct wr_catalog catalog;
    struct wr_tensor *tensors;
    struct wr_use *uses;
    struct wr_plan plan;
    struct wr_ledger ledger;
    struct wr_arena arena;
    struct wr_device device;
    struct wr_pager *pager;
    struct wr_act act;
    uint32_t weight; /* of the run */
    _Atomic uint32_t next;
};

/* Whatever bytes the file has are weights: no product looks at what it computes. The disk's rate says how many. */
static int open_plan(struct pass *s, double rate, weir_err *err)
{
    const struct wr_quant *quant = &wr_quant_q4_0;
    const uint64_t row_bytes = WR_PROBE_K / quant->block_elems * quant->block_bytes, bytes = row_bytes * WR_PROBE_ROWS;
    const double in_time = rate * PASS_SECONDS / (double)bytes;
    const uint32_t most = (uint32_t)(PASS_BYTES / bytes), n = in_time >= most ? most : in_time > LEAST_WEIGHTS ? (uint32_t)in_time : LEAST_WEIGHTS;
    s->tensors = wr_mem_array(&s->ledger, WR_ACCOUNT_META, n, sizeof *s->tensors, err);
    s->uses = wr_mem_array(&s->ledger, WR_ACCOUNT_META, n, sizeof *s->uses, err);
    if (s->tensors == NULL || s->uses == NULL) return WEIR_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        s->tensors[i] = (struct wr_tensor){.name = "",
            .quant = quant,
            .n_dims = 2,
            .ne = {WR_PROBE_K, WR_PROBE_ROWS, 1, 1},
            .n_rows = WR_PROBE_ROWS,
            .row_bytes = row_bytes,
            .bytes = bytes,
            .offset = i * bytes};
        s->uses[i] = (struct wr_use){&s->tensors[i], WR_USE_DENSE};
    }
    const struct wr_plan_input in = {.uses = s->uses,
        .n_uses = n,
        .n_ctx = 1,
        .n_ctx_trained = 1,
        .n_chunk = 1,
        .n_threads = s->p->profile->n_cpus,
        .scratch_per_thread = wr_pager_seam_bytes(row_bytes),
        .budget = PASS_BYTES,
        .pin_bytes = 0,
        .ring_bytes = WR_PROBE_PASS_DEPTH * WR_PROBE_PASS_BYTES,
        .extent_bytes = WR_PROBE_PASS_BYTES,
        .ledger = &s->ledger};
    return wr_plan_make(&s->plan, &in, err);
}

static int open_pass(struct pass *s, bool direct, double rate, weir_err *err)
{
    struct wr_probe *p = s->p;
    wr_ledger_init(&s->ledger);
    int rc = wr_file_open(&s->file, p->data, direct ? WEIR_DIRECT_ON : WEIR_DIRECT_OFF, NULL, err);
    if (rc < 0) return rc;
    s->catalog = (struct wr_catalog){.files = &s->file, .n_files = 1};
    s->act = p->compute.act[0];
    s->act.m = 1;
    rc = open_plan(s, rate, err);
    if (rc < 0) return rc;
    wr_file_drop_cache(&s->file);
    rc = wr_arena_open(&s->arena, s->plan.account[WR_ACCOUNT_SCRATCH] + s->plan.account[WR_ACCOUNT_RING] + WR_ARENA_ALIGN, err);
    if (rc < 0) return rc;
    wr_device_cpu(&s->device);
    const struct wr_pager_config config = {.plan = &s->plan,
        .catalog = &s->catalog,
        .device = &s->device,
        .io = p->uring ? "uring" : "pread",
        .arena = &s->arena,
        .ledger = &s->ledger,
        .n_members = p->profile->threads[p->profile->n_threads - 1],
        .cancel = p->o->options->cancel};
    return wr_pager_open(&s->pager, &config, err);
}

static void close_pass(struct pass *s)
{
    wr_pager_close(s->pager);
    wr_arena_close(&s->arena);
    wr_plan_free(&s->plan);
    wr_mem_free(s->uses);
    wr_mem_free(s->tensors);
    wr_file_close(&s->file);
}

static void item_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct pass *s = arg;
    struct wr_probe_compute *c = &s->p->compute;
    uint32_t item;
    while (!wr_probe_cancelled(s->p) && (item = atomic_fetch_add(&s->next, 1)) < wr_pager_items(s->pager, s->weight)) {
        struct wr_lease lease;
        struct wr_rows rows;
        if (!wr_pager_acquire(s->pager, s->weight, item, 1, member, &lease)) return;
        while (wr_lease_next(&lease, &rows))
            s->p->kernels->matmul(&wr_quant_q4_0, wr_ref_address(&s->device, &rows.ref), s->tensors[0].row_bytes, rows.n_rows, &s->act, c->y + rows.first_row,
                WR_PROBE_ROWS, c->member_work + member * c->member_bytes);
        wr_pager_release(&lease, s->device.ops->fence(&s->device));
    }
}

static int run_pass(struct pass *s, weir_err *err)
{
    struct wr_team *team = s->p->compute.team[s->p->profile->n_threads - 1];
    wr_pager_begin(s->pager, false);
    for (s->weight = 0; s->weight < s->plan.n_weights; s->weight++) {
        if (s->file.fd_direct < 0) wr_file_drop_cache(&s->file);
        atomic_store(&s->next, 0);
        wr_team_run(team, item_member, s);
    }
    int rc = wr_pager_error(s->pager, err);
    if (rc == 0) rc = wr_probe_step(s->p, err);
    wr_pager_end(s->pager, rc < 0);
    return rc;
}

int wr_probe_passes(struct wr_probe *p, bool direct, double share, weir_err *err)
{
    const double seconds = wr_probe_seconds(p, share / 2);
    struct wr_profile *to = p->profile;
    double alone[2] = {0};
    struct pass *s = wr_mem_alloc(&p->ledger, WR_ACCOUNT_SCRATCH, sizeof *s, err);
    if (s == NULL) return WEIR_E_NOMEM;
    s->p = p;
    s->file.fd_direct = s->file.fd_buffered = -1;
    struct wr_probe_samples rates = {.n = 0};
    double spent = 0;
    const char *engine = p->uring ? "uring" : "pread";
    int rc = wr_probe_disk(p, engine, direct, WR_PROBE_PASS_BYTES, WR_PROBE_PASS_DEPTH, wr_probe_seconds(p, share / 4), &alone[0], err);
    if (rc == 0) rc = open_pass(s, direct, alone[0], err);
    if (rc == 0) rc = run_pass(s, err); /* finds the ring full, as no later one */
    while (rc == 0 && (spent < seconds || rates.n < (wr_probe_late(p) ? 1 : LEAST_PASSES))) {
        const uint64_t begin = wr_clock_ns();
        rc = run_pass(s, err);
        const double t = (double)(wr_clock_ns() - begin) * 1e-9;
        spent += t;
        if (rc == 0) wr_probe_sample(&rates, (double)s->plan.streamed / t);
    }
    if (rc == 0) rc = wr_probe_disk(p, engine, direct, WR_PROBE_PASS_BYTES, WR_PROBE_PASS_DEPTH, wr_probe_seconds(p, share / 4), &alone[1], err);
    if (rc == 0) {
        p->bytes_read += wr_pager_stats(s->pager).bytes_streamed;
        p->pass_rate = wr_probe_decile(&rates, 5);
        p->pass_alone = (alone[0] + alone[1]) / 2;
        const bool waits = to->set[to->n_sets - 1].rate[to->n_threads - 1] > p->pass_alone; /* or the time is that of computing */
        to->handover_seconds = waits && p->pass_rate < p->pass_alone ? WR_PROBE_PASS_BYTES / p->pass_rate - WR_PROBE_PASS_BYTES / p->pass_alone : 0;
    }
    close_pass(s);
    wr_mem_free(s);
    return rc;
}
