/* SPDX-License-Identifier: Apache-2.0 */
/* Saved contexts: what their header says of a model, opening them, weights compared as they are read. memory/kvfile.h is the file. */
#include "engine/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/crc32c.h"

/* ---- which model ----------------------------------------------------------------------- */

static uint32_t crc_f32(uint32_t crc, float x) { return wr_crc32c(crc, &x, sizeof x); }
static uint32_t crc_u32(uint32_t crc, uint32_t x) { return wr_crc32c(crc, &x, sizeof x); }

/* Every number of the graph that keys and values depend on, and that the header does not have anyway. */
static uint32_t graph_crc(const struct wr_model *m)
{
    const struct wr_hparams *hp = &m->hp;
    const uint32_t numbers[] = {hp->n_embd, hp->n_ff, hp->n_head, hp->n_rot, hp->window, hp->rope_interleaved};
    const float floats[] = {hp->eps, hp->attention_scale, hp->embedding_scale, hp->final_softcap, hp->rope_base, hp->rope_factor, hp->rope_base_local};
    uint32_t crc = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) crc = crc_u32(crc, numbers[i]);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) crc = crc_f32(crc, floats[i]);
    for (uint32_t il = 0; il < hp->n_layer; il++) crc = crc_u32(crc, m->layers[il].local);
    return crc;
}

static uint64_t block_bytes(const weir_plan *p)
{
    const struct wr_hparams *hp = &p->model.hp;
    return wr_round_up(wr_kv_position_bytes((enum wr_kv_type)p->options.kv, 1, hp->n_head_kv, hp->head_dim) * TILE, WR_IO_ALIGN);
}

static bool is_whole(const struct wr_use *use) { return use->use != WR_USE_ROWS; }

static struct wr_kvfile_about about_of(const weir_plan *p, uint32_t tokenizer_crc)
{
    const struct wr_hparams *hp = &p->model.hp;
    const char *slash = strrchr(p->path, '/');
    struct wr_kvfile_about a = {.numerics = WEIR_NUMERICS,
        .kv_type = (uint32_t)p->options.kv,
        .precise = p->options.precise,
        .n_layer = hp->n_layer,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .block_bytes = (uint32_t)block_bytes(p),
        .n_ctx_trained = hp->n_ctx_trained,
        .n_vocab = hp->n_vocab,
        .tokenizer = tokenizer_crc,
        .graph = graph_crc(&p->model)};
    for (uint32_t w = 0; w < p->model.n_uses; w++) a.n_weights += is_whole(&p->model.uses[w]);
    snprintf(a.arch, sizeof a.arch, "%s", p->model.arch->name);
    wr_text_line(a.model, sizeof a.model, slash != NULL ? slash + 1 : p->path);
    return a;
}

static struct wr_kvfile_weight *weights_of(weir_plan *p, uint32_t n, weir_err *err)
{
    struct wr_kvfile_weight *list = wr_mem_array(&p->ledger, WR_ACCOUNT_TEXT, n, sizeof *list, err);
    for (uint32_t w = 0, i = 0; list != NULL && w < p->model.n_uses; w++) {
        if (!is_whole(&p->model.uses[w])) continue;
        const struct wr_tensor *t = p->model.uses[w].tensor;
        list[i++].id = wr_crc32c(crc_u32(wr_crc32c(0, t->name, strlen(t->name) + 1), (uint32_t)t->quant->id), t->ne, sizeof t->ne);
    }
    return list;
}

int wr_context_open_file(weir_plan *p, struct wr_kvfile *f, const char *path, bool writable, const uint32_t *tokenizer, weir_err *err)
{
    int rc = wr_kvfile_open(f, path, writable, p->options.direct, &p->ledger, &p->log, err);
    if (rc < 0) return rc;
    struct wr_kvfile_about mine = about_of(p, tokenizer != NULL ? *tokenizer : f->about.tokenizer);
    struct wr_kvfile_weight *weights = weights_of(p, mine.n_weights, err);
    rc = weights != NULL ? wr_kvfile_match(f, &mine, weights, err) : WEIR_E_NOMEM;
    wr_mem_free(weights);
    if (rc < 0) wr_kvfile_close(f);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------- */

bool wr_context_same_file(const char *a, const char *b)
{
    struct stat sa, sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* Where context and save_context are one file, it is opened for writing. */
int wr_context_plan(weir_plan *p, weir_err *err)
{
    const weir_options *o = &p->options;
    if (o->context[0] == '\0' || p->has_context) return 0;
    p->context_in_place = wr_context_same_file(o->context, o->save_context);
    int rc = wr_context_open_file(p, &p->context, o->context, p->context_in_place, NULL, err);
    p->has_context = rc == 0;
    return rc;
}

uint64_t wr_context_file_bytes(const weir_plan *p, uint32_t n_tiles)
{
    const struct wr_kvfile_about about = about_of(p, 0);
    return wr_kvfile_bytes(&about, n_tiles);
}

int wr_context_plan_disk(weir_plan *p, weir_err *err)
{
    const weir_options *o = &p->options;
    if (!p->plan.spilled || o->save_context[0] == '\0') return 0;
    p->save_bytes = wr_context_file_bytes(p, p->plan.n_ctx / TILE);
    if (p->save_bytes <= o->kv_disk_bytes) return 0;
    return wr_err(err, WEIR_E_BUDGET,
        "%s: keys and values do not fit in memory and are kept there: a context of %u positions needs --kv-disk %lluM, not %lluM (or a smaller -c)",
        wr_file_label(o->save_context), p->plan.n_ctx, (unsigned long long)(wr_round_up(p->save_bytes, 1048576) / 1048576),
        (unsigned long long)(o->kv_disk_bytes / 1048576));
}

int wr_context_create_file(weir_engine *e, struct wr_kvfile *f, const char *path, weir_err *err)
{
    weir_plan *p = e->plan;
    struct wr_kvfile_about mine = about_of(p, e->tokenizer_crc);
    struct wr_kvfile_weight *weights = weights_of(p, mine.n_weights, err);
    int rc = weights != NULL ? wr_kvfile_create(f, path, &mine, weights, p->options.direct, &p->ledger, &p->log, err) : WEIR_E_NOMEM;
    wr_mem_free(weights);
    return rc;
}

/* What was opened for the plan becomes the engine's. Records are read before the weights are: what is damaged is known at once, whatever the model's size. */
static int take_over(weir_engine *e, weir_err *err)
{
    struct wr_context *c = &e->context;
    weir_plan *p = e->plan;
    int rc = wr_context_plan(p, err);
    if (rc < 0 || !p->has_context) return rc;
    c->in_place = c->unchecked = p->context_in_place;
    struct wr_kvfile *f = c->in_place ? &c->to : &c->from;
    *f = p->context;
    *(c->in_place ? &c->has_to : &c->has_from) = true;
    p->has_context = false;
    rc = wr_kvfile_match_tokenizer(f, e->tokenizer_crc, err);
    return rc == 0 ? wr_kvfile_records(f, NULL, NULL, NULL, err) : rc;
}

int wr_context_open(weir_engine *e, weir_err *err)
{
    struct wr_context *c = &e->context;
    const weir_options *o = &e->plan->options;
    int rc = take_over(e, err);
    if (rc == 0 && o->save_context[0] != '\0' && !c->has_to) {
        rc = wr_context_create_file(e, &c->to, o->save_context, err);
        c->has_to = rc == 0;
    }
    const struct wr_plan *plan = &e->plan->plan;
    if (rc == 0 && plan->spilled) {
        const size_t n_blocks = (size_t)plan->kv.n_tiles * e->plan->model.hp.n_layer;
        c->crcs = wr_mem_array(&e->plan->ledger, WR_ACCOUNT_TEXT, n_blocks, sizeof *c->crcs, err);
        c->seen = wr_mem_array(&e->plan->ledger, WR_ACCOUNT_TEXT, n_blocks, 1, err);
        if (c->crcs == NULL || c->seen == NULL) rc = err != NULL ? err->code : WEIR_E_NOMEM;
    }
    return rc;
}

/* ---- a context that does not fit in memory ---------------------------------------------- */

static void block_written(void *user, uint32_t layer, uint32_t tile, const void *block)
{
    weir_engine *e = user;
    const size_t i = (size_t)tile * e->kv.n_layer + layer;
    e->context.crcs[i] = wr_crc32c(0, block, e->kv.block_bytes);
    e->context.seen[i] = 1;
}

/* A block of the saved context is compared when it is first read. */
static int block_read(void *user, uint32_t layer, uint32_t tile, const void *block, weir_err *err)
{
    weir_engine *e = user;
    struct wr_context *c = &e->context;
    const size_t i = (size_t)tile * e->kv.n_layer + layer;
    if (tile >= c->n_adopted_tiles || c->seen[i]) return 0;
    if (wr_crc32c(0, block, e->kv.block_bytes) != c->crcs[i]) return wr_kvfile_damaged(c->in_place ? &c->to : &c->from, tile, layer, err);
    c->seen[i] = 1;
    return 0;
}

struct wr_kv_places wr_context_places(const struct wr_kvfile *f) { return (struct wr_kv_places){wr_kvfile_block(f, 0, 0), f->group_bytes, 0}; }

/* Descriptors of their own, which wr_kv_close closes. */
static struct wr_store second_of(const struct wr_kvfile *f, uint32_t n_tiles)
{
    struct wr_store store = f->store;
    store.file.fd_buffered = fcntl(f->store.file.fd_buffered, F_DUPFD_CLOEXEC, 3);
    store.file.fd_direct = f->store.file.fd_direct >= 0 ? fcntl(f->store.file.fd_direct, F_DUPFD_CLOEXEC, 3) : -1;
    store.file.bytes = wr_kvfile_block(f, n_tiles, 0);
    store.bytes_written = 0;
    return store;
}

int wr_context_kv(weir_engine *e, struct wr_kv_config *kv, weir_err *err)
{
    struct wr_context *c = &e->context;
    kv->written = block_written;
    kv->read = block_read;
    kv->disk_user = e;
    if (c->has_to) {
        int rc = wr_kvfile_reserve(&c->to, e->plan->plan.n_ctx / TILE, err);
        if (rc < 0) return rc;
        c->to.keeps_room = true;
        kv->file = second_of(&c->to, kv->layout.n_tiles);
        if (kv->file.file.fd_buffered < 0 || (c->to.store.file.fd_direct >= 0 && kv->file.file.fd_direct < 0)) {
            rc = wr_err_errno(err, WEIR_E_OPEN, errno, "%s: cannot be opened once more", wr_file_label(c->to.store.file.path));
            wr_store_close(&kv->file);
            return rc;
        }
        kv->places = wr_context_places(&c->to);
        kv->write_all = true;
    }
    if (c->has_from) {
        kv->base = &c->from.store.file;
        kv->base_places = wr_context_places(&c->from);
        kv->base_tiles = c->from.saved.n_full;
    }
    return 0;
}

void wr_context_close(weir_engine *e)
{
    struct wr_context *c = &e->context;
    if (c->has_from) wr_kvfile_close(&c->from);
    if (c->has_to) wr_kvfile_close(&c->to);
    c->has_from = c->has_to = false;
    wr_mem_free(c->crcs);
    wr_mem_free(c->seen);
    c->crcs = NULL;
    c->seen = NULL;
}

/* ---- weights --------------------------------------------------------------------------- */

int wr_context_other_values(weir_engine *e, const struct wr_kvfile *f, uint32_t w, weir_err *err)
{
    return wr_err(err, WEIR_E_MISMATCH, "%s: tensor %s has other values in the model that it was saved with (%s); use that model, or evaluate the text again",
        wr_file_label(f->store.file.path), e->plan->model.uses[w].tensor->name, f->about.model);
}

/* Each weight that this process has read, number i of a file's table, w of the model. */
typedef int weight_fn(weir_engine *, struct wr_kvfile *, uint32_t i, uint32_t w, uint32_t crc, weir_err *);

static int each_weight(weir_engine *e, struct wr_kvfile *f, weight_fn *fn, weir_err *err)
{
    const struct wr_model *m = &e->plan->model;
    int rc = 0;
    for (uint32_t w = 0, i = 0, crc; rc == 0 && w < m->n_uses; w++) {
        if (!is_whole(&m->uses[w])) continue;
        if (wr_pager_weight_crc(e->pager, w, &crc)) rc = fn(e, f, i, w, crc, err);
        i++;
    }
    return rc;
}

static int check_weight(weir_engine *e, struct wr_kvfile *f, uint32_t i, uint32_t w, uint32_t crc, weir_err *err)
{
    return !f->weights[i].known || f->weights[i].crc == crc ? 0 : wr_context_other_values(e, f, w, err);
}

static int note_weight(weir_engine *e, struct wr_kvfile *f, uint32_t i, uint32_t w, uint32_t crc, weir_err *err)
{
    return f->weights[i].known ? 0 : wr_kvfile_set_weight(f, i, crc, err);
}

int wr_context_check_weights(weir_engine *e, struct wr_kvfile *f, weir_err *err) { return each_weight(e, f, check_weight, err); }
int wr_context_note_weights(weir_engine *e, struct wr_kvfile *f, weir_err *err) { return each_weight(e, f, note_weight, err); }

static uint32_t n_known(const weir_engine *e)
{
    const struct wr_model *m = &e->plan->model;
    uint32_t n = 0, crc;
    for (uint32_t w = 0; w < m->n_uses; w++) n += !is_whole(&m->uses[w]) || wr_pager_weight_crc(e->pager, w, &crc);
    return n;
}

int wr_context_compare(weir_engine *e, weir_err *err)
{
    struct wr_context *c = &e->context;
    if ((!c->has_from && !c->has_to) || c->n_compared == e->plan->model.n_uses) return 0;
    const uint32_t n = n_known(e);
    int rc = c->has_from && !c->refused ? wr_context_check_weights(e, &c->from, err) : 0;
    if (rc == 0 && c->has_to) rc = wr_context_check_weights(e, &c->to, err);
    if (rc == WEIR_E_MISMATCH) c->mismatch = true;
    const bool all = n == e->plan->model.n_uses;
    if (rc == 0 && c->has_to && (all || !c->unchecked)) rc = wr_context_note_weights(e, &c->to, err);
    if (rc < 0) return rc;
    if (all) c->unchecked = false;
    c->n_compared = n;
    return 0;
}

void wr_context_refuse(weir_session *s)
{
    struct wr_context *c = &s->engine->context;
    s->n = 0;
    s->logits = NULL;
    if (!c->has_from || c->has_to) return; /* a file that would be extended stays what it is */
    c->refused = true;
    c->mismatch = false;
}

int wr_context_inherit_weights(const struct wr_kvfile *from, struct wr_kvfile *to, weir_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < to->about.n_weights; i++)
        if (from->weights[i].known && !to->weights[i].known) rc = wr_kvfile_set_weight(to, i, from->weights[i].crc, err);
    return rc;
}

struct rows_crc {
    uint64_t row_bytes;
    uint32_t crc;
};

static void add_row(void *user, size_t i, const void *row)
{
    struct rows_crc *r = user;
    r->crc = wr_crc32c(r->crc, row, r->row_bytes);
}

int wr_context_rows_crc(weir_engine *e, uint32_t tile, const int32_t *ids, uint32_t n, uint32_t *crc, weir_err *err)
{
    const uint32_t w = e->plan->model.token_embd;
    struct rows_crc r = {.row_bytes = e->plan->model.uses[w].tensor->row_bytes};
    int rc = tile < WR_CONTEXT_ROWS ? wr_pager_rows(e->pager, w, ids, n, add_row, &r, err) : 0;
    *crc = r.crc;
    return rc;
}
