/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's keys and values: in memory, or spilled to a file without a name. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "engine/engine.h"

int wr_engine_kv_folder(const weir_options *o, char path[WR_ENGINE_PATH], weir_err *err)
{
    size_t n;
    if (o->kv_dir[0] != '\0') {
        snprintf(path, WR_ENGINE_PATH, "%s", o->kv_dir);
        return 0;
    }
    if (!wr_engine_cache_folder("kv", path, &n))
        return wr_err(err, WEIR_E_OPEN, "there is no place for keys and values; give --kv-dir DIR, a folder on a disk");
    return 0;
}

static bool is_local(const void *user, uint32_t layer)
{
    const struct wr_model *m = user;
    return m->layers[layer].local;
}

/* The folder of the user's cache is made; one that was named has to be there. */
int wr_engine_open_kv_file(const weir_options *o, const struct wr_log *log, uint64_t bytes, struct wr_store *store, weir_err *err)
{
    char folder[WR_ENGINE_PATH];
    int rc = wr_engine_kv_folder(o, folder, err);
    if (rc == 0 && o->kv_dir[0] == '\0') rc = wr_engine_make_folders(folder, strlen(folder), err);
    if (rc == 0) rc = wr_store_open_temporary(store, folder, o->direct, log, err);
    if (rc < 0) return wr_err_prefix(err, rc, "--kv-dir");
    rc = wr_store_reserve(store, bytes, err);
    if (rc == 0) return 0;
    wr_store_close(store);
    return wr_err_prefix(err, rc, "--kv-dir");
}

static int open_file(const weir_plan *p, struct wr_store *store, weir_err *err)
{
    const uint64_t bytes = wr_kv_layout_disk_bytes(&p->plan.kv, p->plan.n_ctx);
    int rc = wr_engine_open_kv_file(&p->options, &p->log, bytes, store, err);
    if (rc == 0)
        wr_log(&p->log, WEIR_LOG_WARN, "keys and values of %u positions do not fit in memory: %.1f MiB of them go to a file in %s (--kv-dir, --kv-disk)",
            p->plan.n_ctx, (double)bytes / 1048576, wr_file_label(p->kv_folder));
    return rc;
}

int wr_engine_open_kv(weir_engine *e, weir_err *err)
{
    weir_plan *p = e->plan;
    const struct wr_plan *plan = &p->plan;
    const struct wr_hparams *hp = &p->model.hp;
    const enum wr_kv_type type = (enum wr_kv_type)p->options.kv;
    if (!plan->spilled) return wr_kv_open(&e->kv, &e->device, type, hp->n_layer, hp->n_head_kv, hp->head_dim, plan->n_ctx, &e->arena, &p->ledger, err);
    struct wr_kv_config c = {.device = &e->device,
        .type = type,
        .n_layer = hp->n_layer,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .layout = plan->kv,
        .is_local = is_local,
        .user = &p->model,
        .window = hp->window,
        .io = p->options.io,
        .arena = &e->arena,
        .ledger = &p->ledger,
        .log = &p->log,
        .file = {.file = {.fd_direct = -1, .fd_buffered = -1}},
        .places = {0, hp->n_layer * plan->kv.block_bytes, wr_kv_layout_first_tile(&plan->kv)}};
    const uint32_t n_given = p->n_kv_given;
    int rc = 0;
    if (n_given > 0) {
        c.file = p->kv_given;
        c.places.first_tile = 0;
        p->n_kv_given = 0;
    } else if (wr_kv_layout_disk_bytes(&plan->kv, plan->n_ctx) > 0 && !e->context.has_to) { /* what fits but for the padding needs none */
        rc = open_file(p, &c.file, err);
    }
    if (rc == 0) rc = wr_context_kv(e, &c, err);
    if (rc < 0) {
        wr_store_close(&c.file);
        return rc;
    }
    if (e->context.has_to)
        wr_log(&p->log, WEIR_LOG_WARN, "keys and values of %u positions do not fit in memory: what does not is read from %s", plan->n_ctx,
            wr_file_label(p->options.save_context));
    rc = wr_kv_open_spilled(&e->kv, &c, err);
    if (rc < 0) wr_store_close(&c.file);
    if (rc == 0 && n_given > 0) rc = wr_kv_adopt(&e->kv, n_given, err);
    return rc;
}
