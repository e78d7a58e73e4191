/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that a scope sets. The reference decides when it compiles: a name that a scope sets before anything in it reads it
 * (outside of an `if`), and that no scope around it mentions, is undefined there until it is set, even if the caller gave a
 * variable of that name. This pass finds these names and leaves them in the scope's N_BODY (names, n_kw).
 */
#include "text/template_priv.h"

typedef struct wr_tpl_node node;
typedef struct wr_tpl_str str;

struct mark { /* a scope mentions a symbol */
    struct mark *outer, *next;
    struct scope *scope;
    struct symbol *symbol;
};
struct symbol {
    struct symbol *next;
    str name;
    struct mark *mark; /* of the innermost scope that mentions it, among those that are open */
};
struct scope {
    struct mark *marks;
    str *unset;
    uint32_t n, cap;
};
struct resolver {
    struct wr_tpl_pool *keep, scratch;
    struct symbol *buckets[1024];
    struct scope *scope;
    int code;
    weir_err *err;
};

static void *take(struct resolver *v, struct wr_tpl_pool *pool, size_t bytes) { return v->code ? NULL : wr_tpl_pool_take(pool, bytes, &v->code, v->err); }

static struct symbol *symbol_of(struct resolver *v, str name)
{
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < name.n; i++) h = (h ^ (uint8_t)name.s[i]) * 16777619u;
    struct symbol **bucket = &v->buckets[(h ^ h >> 16) % 1024], *s = *bucket;
    while (s && !wr_tpl_same(s->name, name)) s = s->next;
    if (s) return s;
    s = take(v, &v->scratch, sizeof *s);
    if (s) {
        *s = (struct symbol){*bucket, name, NULL};
        *bucket = s;
    }
    return s;
}

static void mention(struct resolver *v, struct symbol *s)
{
    struct mark *m = take(v, &v->scratch, sizeof *m);
    if (!m) return;
    *m = (struct mark){s->mark, v->scope->marks, v->scope, s};
    s->mark = v->scope->marks = m;
}

static void load(struct resolver *v, str name)
{
    struct symbol *s = symbol_of(v, name);
    if (s && !s->mark) mention(v, s);
}

/* parameter: of a macro, or target of a loop, so always set. */
static void store(struct resolver *v, str name, bool in_branch, bool parameter)
{
    struct symbol *s = symbol_of(v, name);
    struct scope *c = v->scope;
    if (!s || (s->mark && s->mark->scope == c)) return;
    bool unset = !s->mark && !in_branch && !parameter;
    mention(v, s);
    if (!unset) return;
    if (c->n == c->cap) {
        uint32_t cap = c->cap * 2 + 4;
        str *grown = take(v, v->keep, cap * sizeof *grown);
        if (!grown) return;
        if (c->n) memcpy(grown, c->unset, c->n * sizeof *grown);
        c->unset = grown;
        c->cap = cap;
    }
    c->unset[c->n++] = name;
}

static void loads(struct resolver *v, const node *n)
{
    if (!n) return;
    if (n->op == N_NAME || n->op == N_NS_REF) load(v, wr_tpl_str_of(n->value));
    for (uint32_t i = 0; i < n->n; i++) loads(v, n->kids[i]);
}

static void stores(struct resolver *v, const node *target, bool in_branch, bool parameter)
{
    if (target->op == N_NAME)
        store(v, wr_tpl_str_of(target->value), in_branch, parameter);
    else if (target->op == N_NS_REF)
        load(v, wr_tpl_str_of(target->value));
    else
        for (uint32_t i = 0; i < target->n; i++) stores(v, target->kids[i], in_branch, parameter);
}

/* What the statements of one scope mention, in the order in which the reference looks at them; inner scopes are left out. */
static void mentions(struct resolver *v, const node *body, bool in_branch)
{
    for (uint32_t i = 0; i < body->n; i++) {
        const node *n = body->kids[i];
        switch ((enum wr_tpl_op)n->op) {
        case N_OUTPUT:
        case N_CALL_BLOCK:
        case N_FILTER_BLOCK:
            loads(v, n->kids[0]);
            break;
        case N_FOR:
            loads(v, n->kids[1]);
            break;
        case N_SET:
            loads(v, n->kids[1]);
            stores(v, n->kids[0], in_branch, false);
            break;
        case N_SET_BLOCK:
            loads(v, n->kids[1]);
            stores(v, n->kids[0], in_branch, false);
            break;
        case N_MACRO:
            store(v, wr_tpl_str_of(n->value), in_branch, false);
            break;
        case N_WITH:
            for (uint32_t k = n->n / 2; k + 1 < n->n; k++) loads(v, n->kids[k]);
            break;
        case N_IF:
            for (uint32_t k = 0; k < n->n; k++)
                if (k % 2 || k + 1 == n->n)
                    mentions(v, n->kids[k], true);
                else
                    loads(v, n->kids[k]);
            break;
        default:
            break;
        }
    }
}

static void inner_scopes(struct resolver *v, const node *body);

/* A scope of `body`, whose parameters are the targets, the names, or both; defaults are read inside of a macro. */
static void resolve_scope(struct resolver *v, node *body, const node *const targets[], uint32_t n_targets, const node *macro)
{
    struct scope scope = {0}, *outer = v->scope;
    v->scope = &scope;
    for (uint32_t i = 0; i < n_targets; i++) stores(v, targets[i], false, true);
    for (uint32_t i = 0; macro && i < macro->n_kw; i++) store(v, macro->names[i], false, true);
    for (uint32_t i = 0; macro && i < macro->n_kw; i++) loads(v, macro->kids[i + 1]);
    mentions(v, body, false);
    if (!v->code) inner_scopes(v, body);
    body->names = scope.unset;
    body->n_kw = scope.n;
    for (struct mark *m = scope.marks; m; m = m->next) m->symbol->mark = m->outer;
    v->scope = outer;
}

static void inner_scopes(struct resolver *v, const node *body)
{
    for (uint32_t i = 0; i < body->n && !v->code; i++) {
        const node *n = body->kids[i];
        node *const *k = n->kids;
        switch ((enum wr_tpl_op)n->op) {
        case N_FOR:
            resolve_scope(v, k[3], (const node *const *)k, 1, NULL);
            if (k[4]) resolve_scope(v, k[4], NULL, 0, NULL);
            break;
        case N_SET_BLOCK:
            resolve_scope(v, k[2], NULL, 0, NULL);
            break;
        case N_FILTER_BLOCK:
            resolve_scope(v, k[1], NULL, 0, NULL);
            break;
        case N_MACRO:
            resolve_scope(v, k[0], NULL, 0, n);
            break;
        case N_CALL_BLOCK:
            resolve_scope(v, k[1]->kids[0], NULL, 0, k[1]);
            break;
        case N_WITH:
            resolve_scope(v, k[n->n - 1], (const node *const *)k, n->n / 2, NULL);
            break;
        case N_SCOPE:
            resolve_scope(v, k[0], NULL, 0, NULL);
            break;
        case N_IF:
            for (uint32_t j = 0; j < n->n; j++)
                if (j % 2 || j + 1 == n->n) inner_scopes(v, k[j]);
            break;
        default:
            break;
        }
    }
}

int wr_tpl_resolve(struct wr_template *t, weir_err *err)
{
    struct resolver *v;
    struct wr_tpl_pool own;
    int code = 0;
    wr_tpl_pool_init(&own, t->pool.ledger, WR_TPL_MAX_MEMORY);
    v = wr_tpl_pool_take(&own, sizeof *v, &code, err); /* its table is too much for a small stack */
    if (v) {
        v->keep = &t->pool;
        v->err = err;
        wr_tpl_pool_init(&v->scratch, t->pool.ledger, WR_TPL_MAX_MEMORY);
        resolve_scope(v, t->root, NULL, 0, NULL);
        wr_tpl_pool_fini(&v->scratch);
        code = v->code;
    }
    wr_tpl_pool_fini(&own);
    return code;
}
