/* SPDX-License-Identifier: Apache-2.0 */
/* Small windows for the command: the tape, the controls, and what the tables hold. */
#include <stdio.h>
#include <string.h>
#include "engine/engine.h"
#include "engine/tools.h"
#include "generate/sampler.h"
#include "generate/stop.h"
#include "memory/control.h"

int wr_tool_check_generate(const weir_sampling *sampling, const char *const *stops, size_t n_stops, uint32_t n_vocab, weir_err *err)
{
    struct wr_stop *stop = NULL;
    int rc = wr_sample_check(sampling, n_vocab, err);
    if (rc == 0 && n_stops > 0) rc = wr_stop_open(&stop, stops, n_stops, wr_engine_host_ledger(), err);
    wr_stop_close(stop);
    return rc;
}

int wr_tool_check_chat(const char *path, const weir_options *options, bool *there, weir_err *err)
{
    weir_engine *engine = NULL;
    int rc = weir_engine_open_text(&engine, path, options, err);
    *there = rc == 0 && weir_chat_available(engine);
    if (*there) rc = wr_engine_open_chat(engine, err);
    weir_engine_close(engine);
    return rc;
}

bool wr_tool_tape(const weir_plan *p, uint64_t i, uint32_t *file, uint64_t *offset, uint64_t *bytes, bool *streamed)
{
    if (i >= p->plan.n_tape) return false;
    const struct wr_extent *e = &p->plan.extents[p->plan.tape[i]];
    *file = e->file;
    *offset = e->offset;
    *bytes = e->bytes;
    *streamed = !e->pinned;
    return true;
}

static const struct {
    const char *name, *description;
} controls[WR_N_CONTROLS] = {
    [WR_CONTROL_STRIPE] = {"stripe", "a fixed part pinned, spread evenly over the pass, the rest streamed: what weir does"},
    [WR_CONTROL_STREAM_ALL] = {"stream-all", "nothing pinned: a layer is read, used and dropped while the next one is read"},
    [WR_CONTROL_LRU] = {"lru", "the same memory as a cache, where the part used longest ago makes room"},
    [WR_CONTROL_MMAP] = {"mmap", "nothing pinned, --io mmap: the system's page cache, outside the budget"},
};

const char *wr_tool_control(uint32_t i, const char **description)
{
    if (i >= WR_N_CONTROLS) return NULL;
    *description = controls[i].description;
    return controls[i].name;
}

int wr_tool_plan_control(weir_plan *p, const char *name, weir_err *err)
{
    uint32_t i = 0;
    while (i < WR_N_CONTROLS && strcmp(controls[i].name, name) != 0) i++;
    if (i == WR_N_CONTROLS) return wr_err(err, WEIR_E_USAGE, "--control: '%.60s' is not one of stripe, stream-all, lru, mmap", name);
    weir_options *o = &p->options;
    if (i == WR_CONTROL_MMAP && (o->direct == WEIR_DIRECT_ON || (strcmp(o->io, "auto") != 0 && strcmp(o->io, "mmap") != 0)))
        return wr_err(err, WEIR_E_USAGE, "--control mmap reads with --io mmap through the page cache; leave --io and --direct out");
    int rc = wr_plan_control(&p->plan, (enum wr_control)i, p->model.hp.n_layer, err);
    if (rc < 0) return wr_err_prefix(err, rc, "%s", wr_file_label(p->path));
    if (i == WR_CONTROL_MMAP) snprintf(o->io, sizeof o->io, "mmap");
    wr_plan_fill_info(p);
    wr_plan_predict(p);
    return 0;
}

const char *wr_tool_io_engine(uint32_t i, const char **description)
{
    static const char *const names[] = {
#define IO_ENGINE(name) #name,
#include "io/engines.def"
#undef IO_ENGINE
    };
    uint32_t n = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const struct wr_io_ops *io = wr_io_find(names[k]);
        if (io == NULL || io->diagnostic || n++ != i) continue;
        *description = io->description;
        return io->name;
    }
    return NULL;
}

const char *wr_tool_level(uint32_t i, bool *available)
{
    const char *name = NULL;
    return wr_kernels_level(i, &name, available) != NULL || name != NULL ? name : NULL;
}

const char *wr_tool_format(uint32_t i)
{
    static const uint32_t ids[] = {
#define QUANT(id, NAME, name) id,
#include "quant/quants.def"
#undef QUANT
    };
    return i < sizeof ids / sizeof *ids ? wr_quant_find(ids[i])->name : NULL;
}
