/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk made of arithmetic: one channel of bytes_per_s that serves requests in order, and a latency after it that requests
 * in flight hide from each other. Nothing is read and dst is left alone; time is wr_io_sim.now_s, which only wait and the
 * test advance, so a run gives the same figures on every machine.
 */
#include "io/core.h"

struct wr_io_sim wr_io_sim = {.bytes_per_s = 1e9, .latency_s = 1e-4};

struct sim {
    struct wr_io io;
    double channel_free_s;
    uint32_t busy[WR_IO_MAX_DEPTH], busy_head, n_busy; /* slots in the order of completion, a ring */
};

static int sim_open(struct wr_io **out, const struct wr_io_config *config, weir_err *err)
{
    int code = wr_io_core_open(out, &wr_io_ops_sim, config, sizeof(struct sim), err);
    if (code == 0) ((struct sim *)*out)->channel_free_s = wr_io_sim.now_s;
    return code;
}

static void sim_close(struct wr_io *io) { wr_mem_free(io); }

static bool sim_submit(struct wr_io *io, const struct wr_io_request *request)
{
    struct sim *sim = (struct sim *)io;
    struct wr_io_slot *slot = NULL;
    if (!wr_io_begin(io, request, &slot)) return false;
    if (slot == NULL) return true;
    double start = sim->channel_free_s > wr_io_sim.now_s ? sim->channel_free_s : wr_io_sim.now_s;
    sim->channel_free_s = start + request->bytes / wr_io_sim.bytes_per_s;
    slot->done_s = sim->channel_free_s + wr_io_sim.latency_s;
    sim->busy[(sim->busy_head + sim->n_busy) % WR_IO_MAX_DEPTH] = (uint32_t)(slot - io->slot);
    sim->n_busy++;
    return true;
}

static void finish_until(struct sim *sim, double now_s)
{
    while (sim->n_busy > 0) {
        struct wr_io_slot *slot = &sim->io.slot[sim->busy[sim->busy_head]];
        if (slot->done_s > now_s) break;
        sim->busy_head = (sim->busy_head + 1) % WR_IO_MAX_DEPTH;
        sim->n_busy--;
        wr_io_finish(&sim->io, slot);
    }
}

static uint32_t sim_wait(struct wr_io *io, struct wr_io_done *done, uint32_t max, uint64_t timeout_ns)
{
    struct sim *sim = (struct sim *)io;
    finish_until(sim, wr_io_sim.now_s);
    if (io->n_ready == 0 && sim->n_busy > 0) {
        double first_s = io->slot[sim->busy[sim->busy_head]].done_s;
        double limit_s = timeout_ns == UINT64_MAX ? first_s : wr_io_sim.now_s + (double)timeout_ns * 1e-9;
        wr_io_sim.now_s = first_s < limit_s ? first_s : limit_s;
        finish_until(sim, wr_io_sim.now_s);
    }
    return wr_io_deliver(io, done, max);
}

const struct wr_io_ops wr_io_ops_sim = {
    .name = "sim",
    .description = "a disk made of arithmetic, on a virtual clock",
    .diagnostic = true,
    .open = sim_open,
    .close = sim_close,
    .submit = sim_submit,
    .wait = sim_wait,
    .stats = wr_io_core_stats,
};
