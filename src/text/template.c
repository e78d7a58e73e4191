/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: opening, rendering, and the pools and limits that both live in. */
#include <stdio.h>
#include "text/template_priv.h"

/* ---- pools ---- */

struct wr_tpl_chunk {
    struct wr_tpl_chunk *next;
    uint64_t pad; /* keeps what follows aligned to 16 */
};

#define FIRST_CHUNK ((size_t)8 << 10)
#define LAST_CHUNK ((size_t)1 << 20)

void wr_tpl_pool_init(struct wr_tpl_pool *p, struct wr_ledger *ledger, size_t limit)
{
    *p = (struct wr_tpl_pool){.ledger = ledger, .chunk_bytes = FIRST_CHUNK, .limit = limit};
}

void wr_tpl_pool_fini(struct wr_tpl_pool *p)
{
    for (struct wr_tpl_chunk *c = p->chunks; c;) {
        struct wr_tpl_chunk *next = c->next;
        wr_mem_free(c);
        c = next;
    }
    p->chunks = NULL;
}

void *wr_tpl_pool_take(struct wr_tpl_pool *p, size_t bytes, int *code, weir_err *err)
{
    if (bytes > p->limit) {
        *code = wr_err(err, WEIR_E_TEMPLATE, "the chat template needs more than %zu MiB of memory", p->limit >> 20);
        return NULL;
    }
    size_t need = (bytes + 15) & ~(size_t)15;
    if (need > p->left) {
        /* A large piece gets a chunk of its own, so that the rest of the current one stays in use. */
        bool own = need > p->chunk_bytes / 4;
        size_t size = sizeof(struct wr_tpl_chunk) + (own ? need : p->chunk_bytes);
        if (size > p->limit - p->total) {
            *code = wr_err(err, WEIR_E_TEMPLATE, "the chat template needs more than %zu MiB of memory", p->limit >> 20);
            return NULL;
        }
        weir_err local = {0};
        struct wr_tpl_chunk *c = wr_mem_alloc(p->ledger, WR_ACCOUNT_TEXT, size, &local);
        if (!c) {
            *code = local.code ? local.code : WEIR_E_NOMEM;
            if (err) *err = local;
            return NULL;
        }
        c->next = p->chunks;
        p->chunks = c;
        p->total += size;
        if (own) return c + 1;
        p->next = (uint8_t *)(c + 1);
        p->left = p->chunk_bytes;
        if (p->chunk_bytes < LAST_CHUNK) p->chunk_bytes *= 2;
    }
    void *at = p->next;
    p->next += need;
    p->left -= need;
    return at;
}

/* ---- what every part of a rendering uses ---- */

bool wr_tpl_fail(struct wr_tpl_run *r, const char *format, ...)
{
    if (r->code) return false;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->code = wr_err(r->err, WEIR_E_TEMPLATE, "chat template line %u: %s", r->line, text);
    return false;
}

bool wr_tpl_steps(struct wr_tpl_run *r, uint64_t n)
{
    r->steps += n;
    return r->steps <= WR_TPL_MAX_STEPS || wr_tpl_fail(r, "more than %u steps, the template does not come to an end", WR_TPL_MAX_STEPS);
}

bool wr_tpl_enter(struct wr_tpl_run *r)
{
    r->depth++;
    if (r->depth > WR_TPL_MAX_DEPTH) return wr_tpl_fail(r, "nested deeper than %u levels", WR_TPL_MAX_DEPTH);
    return wr_tpl_steps(r, 1);
}

void *wr_tpl_take(struct wr_tpl_run *r, size_t count, size_t size)
{
    uint64_t bytes = 0;
    int code = 0;
    if (!wr_mul_u64(count, size, &bytes) || bytes > WR_TPL_MAX_MEMORY) {
        wr_tpl_fail(r, "needs more than %zu MiB of memory", WR_TPL_MAX_MEMORY >> 20);
        return NULL;
    }
    if (!wr_tpl_steps(r, bytes / 64)) return NULL;
    void *p = wr_tpl_pool_take(&r->pool, (size_t)bytes, &code, r->code ? NULL : r->err);
    if (!p && !r->code) r->code = code;
    return p;
}

bool wr_tpl_put(struct wr_tpl_run *r, struct wr_tpl_buf *b, const char *s, size_t n)
{
    if (n > WR_TPL_MAX_OUTPUT - b->n) return wr_tpl_fail(r, "the text grows beyond %zu MiB", WR_TPL_MAX_OUTPUT >> 20);
    if (!wr_tpl_steps(r, n / 64)) return false;
    if (b->n + n > b->cap) {
        size_t cap = b->cap * 2 > b->n + n ? b->cap * 2 : b->n + n;
        if (cap < 48) cap = 48;
        char *p = wr_tpl_take(r, cap, 1);
        if (!p) return false;
        if (b->n) memcpy(p, b->p, b->n);
        b->p = p;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, s, n);
    b->n += n;
    return true;
}

/* ---- the public functions ---- */

/* Line ends become \n and one at the very end is dropped, as the reference's lexer does. */
static int copy_source(struct wr_template *t, const char *source, size_t n, weir_err *err)
{
    int code = 0;
    char *to = wr_tpl_pool_take(&t->pool, n + 1, &code, err);
    if (!to) return code;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            to[k++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n') i++;
        } else {
            to[k++] = source[i];
        }
    }
    if (k && to[k - 1] == '\n') k--;
    t->source = (struct wr_tpl_str){to, (uint32_t)k};
    return 0;
}

int wr_template_open(struct wr_template **out, const char *source, size_t n, struct wr_ledger *ledger, weir_err *err)
{
    if (n > WR_TPL_MAX_SOURCE) return wr_err(err, WEIR_E_UNSUPPORTED, "chat template of %zu bytes: more than %zu are not supported", n, WR_TPL_MAX_SOURCE);
    if (wr_utf8_valid_prefix((const uint8_t *)source, n) != n) return wr_err(err, WEIR_E_FORMAT, "chat template: the text is not valid UTF-8");
    weir_err local = {0};
    struct wr_template *t = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, sizeof *t, &local);
    if (!t) {
        if (err) *err = local;
        return local.code ? local.code : WEIR_E_NOMEM;
    }
    wr_tpl_pool_init(&t->pool, ledger, WR_TPL_MAX_MEMORY);
    int code = copy_source(t, source, n, err);
    if (!code) code = wr_tpl_parse(t, err);
    if (!code) code = wr_tpl_resolve(t, err);
    if (code) {
        wr_template_close(t);
        return code;
    }
    *out = t;
    return 0;
}

void wr_template_close(struct wr_template *t)
{
    if (!t) return;
    wr_tpl_pool_fini(&t->pool);
    wr_mem_free(t);
}

int wr_template_render(const struct wr_template *t, const json_t *vars, struct wr_ledger *ledger, char **out, size_t *n, weir_err *err)
{
    if (!json_is_object(vars)) return wr_err(err, WEIR_E_INPUT, "chat template: its variables are not an object");
    struct wr_tpl_run r = {.vars = vars, .err = err, .line = 1};
    struct wr_tpl_buf buf = {0};
    weir_err local = {0};
    wr_tpl_pool_init(&r.pool, ledger, WR_TPL_MAX_MEMORY);
    if (!wr_tpl_run_root(&r, t->root, &buf)) goto done;
    char *text = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, buf.n + 1, &local);
    if (!text) {
        r.code = local.code ? local.code : WEIR_E_NOMEM;
        if (err) *err = local;
        goto done;
    }
    if (buf.n) memcpy(text, buf.p, buf.n);
    *out = text;
    *n = buf.n;
done:
    wr_tpl_pool_fini(&r.pool);
    return r.code;
}
