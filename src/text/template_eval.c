/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The evaluator of chat templates: walks the tree. Scopes are chained by where they stand in the template: a loop's body, a
 * block that captures, and a macro's body have one of their own, an `if` has none. The two functions that call themselves,
 * expr and body, keep small frames: what needs room sits in functions that are not inlined, so that 200 levels take less
 * than 256 KiB of stack.
 */
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;
typedef struct wr_tpl_str str;
typedef struct wr_tpl_node node;
typedef struct wr_tpl_scope scope;

#define OWN_FRAME __attribute__((noinline))

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };

static bool expr(run *r, const node *n, scope *s, value *out);
static enum flow body(run *r, const node *n, scope *s);

/* ---- names ---- */

bool wr_tpl_bind_name(run *r, scope *s, str name, value v)
{
    uint32_t seen = 0;
    for (struct wr_tpl_binding *b = s->first; b; b = b->next, seen++) {
        if (!wr_tpl_same(b->name, name)) continue;
        b->value = v;
        return wr_tpl_steps(r, seen / 8);
    }
    struct wr_tpl_binding *b = wr_tpl_take(r, 1, sizeof *b);
    if (!b) return false;
    *b = (struct wr_tpl_binding){NULL, name, v};
    if (s->last)
        s->last->next = b;
    else
        s->first = b;
    s->last = b;
    return wr_tpl_steps(r, seen / 8);
}

static scope *new_scope(run *r, scope *parent)
{
    scope *s = wr_tpl_take(r, 1, sizeof *s);
    if (s) s->parent = parent;
    return s;
}

/* Names that the scope of `body` sets and that hide the caller's until then. */
static OWN_FRAME bool hide_names(run *r, const node *n, scope *s)
{
    for (uint32_t i = 0; i < n->n_kw; i++)
        if (!wr_tpl_bind_name(r, s, n->names[i], (value){0})) return false;
    return true;
}

static OWN_FRAME bool lookup(run *r, str name, scope *s, value *out)
{
    uint32_t seen = 0;
    for (; s; s = s->parent)
        for (const struct wr_tpl_binding *b = s->first; b; b = b->next, seen++)
            if (wr_tpl_same(b->name, name)) {
                *out = b->value;
                if (out->kind == V_ABSENT && !wr_tpl_undefined(r, *out, wr_tpl_text(name.s, name.n), out)) return false;
                return wr_tpl_steps(r, seen / 8);
            }
    if (!wr_tpl_steps(r, seen / 8)) return false;
    /* First use of a variable of the caller's: converted once, then found among the globals. */
    const json_t *j = json_object_getn(r->vars, name.s, name.n);
    value function;
    bool is_function = wr_tpl_function(name, &function);
    if (j && !(is_function && json_is_number(j))) return wr_tpl_from_json(r, j, out) && wr_tpl_bind_name(r, r->globals, name, *out);
    if (is_function) {
        *out = function;
        return true;
    }
    return wr_tpl_undefined(r, (value){0}, wr_tpl_text(name.s, name.n), out);
}

/* ---- expressions ---- */

static OWN_FRAME bool list_expr(run *r, const node *n, scope *s, value *out)
{
    value *items = wr_tpl_take(r, n->n, sizeof *items);
    if (!items) return false;
    for (uint32_t i = 0; i < n->n; i++)
        if (!expr(r, n->kids[i], s, &items[i])) return false;
    *out = wr_tpl_seq(n->op == N_LIST ? SEQ_LIST : SEQ_TUPLE, items, n->n);
    return true;
}

static OWN_FRAME bool dict_expr(run *r, const node *n, scope *s, value *out)
{
    uint32_t k = 0;
    struct wr_tpl_pair *pairs = wr_tpl_take(r, n->n / 2, sizeof *pairs);
    if (!pairs) return false;
    for (uint32_t i = 0; i < n->n; i += 2) {
        value key, v;
        if (!expr(r, n->kids[i], s, &key) || !expr(r, n->kids[i + 1], s, &v) || !wr_tpl_dict_put(r, pairs, &k, key, v)) return false;
    }
    *out = (value){.kind = V_DICT, .n = k, .u.pairs = pairs};
    return true;
}

static OWN_FRAME bool slice_expr(run *r, const node *n, scope *s, value *out)
{
    value parts[4] = {{0}};
    for (uint32_t i = 0; i < 4; i++)
        if (n->kids[i] && !expr(r, n->kids[i], s, &parts[i])) return false;
    r->line = n->line;
    return wr_tpl_slice(r, parts[0], parts + 1, out);
}

/* Callee or subject, then the arguments. */
static bool arguments(run *r, const node *n, scope *s, struct wr_tpl_call *call)
{
    uint32_t count = n->n - 1;
    *call = (struct wr_tpl_call){0};
    if (!count) return true;
    value *args = wr_tpl_take(r, count, sizeof *args);
    if (!args) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!expr(r, n->kids[i + 1], s, &args[i])) return false;
    *call = (struct wr_tpl_call){args, args + (count - n->n_kw), n->names, count - n->n_kw, n->n_kw};
    return true;
}

static OWN_FRAME bool call_expr(run *r, const node *n, scope *s, value *out)
{
    value callee;
    struct wr_tpl_call call;
    if (!expr(r, n->kids[0], s, &callee) || !arguments(r, n, s, &call)) return false;
    r->line = n->line;
    if (n->op == N_FILTER) return wr_tpl_filter_apply(r, n->sub, callee, &call, out);
    if (n->op == N_CALL) return wr_tpl_invoke(r, callee, &call, out);
    bool yes = false;
    if (!wr_tpl_test_apply(r, n->sub, callee, &call, &yes)) return false;
    *out = wr_tpl_bool(yes);
    return true;
}

static bool compare(run *r, uint8_t op, value a, value b, bool *out)
{
    bool same = false;
    switch (op) {
    case C_EQ:
        return wr_tpl_eq(r, a, b, out);
    case C_NE:
        if (!wr_tpl_eq(r, a, b, &same)) return false;
        *out = !same;
        return true;
    case C_IN:
        return wr_tpl_in(r, a, b, out);
    case C_NOT_IN:
        if (!wr_tpl_in(r, a, b, &same)) return false;
        *out = !same;
        return true;
    default:
        if (!wr_tpl_lt(r, op == C_LT || op == C_LE ? a : b, op == C_LT || op == C_LE ? b : a, out)) return false;
        if ((op == C_LT || op == C_GT) || *out) return true;
        return wr_tpl_eq(r, a, b, out);
    }
}

static OWN_FRAME bool compare_expr(run *r, const node *n, scope *s, value *out)
{
    value left, right;
    bool yes = true;
    if (!expr(r, n->kids[0], s, &left)) return false;
    for (uint32_t i = 1; i < n->n && yes; i++) {
        if (!expr(r, n->kids[i], s, &right)) return false;
        r->line = n->line;
        if (!compare(r, (uint8_t)n->value.u.s[i - 1], left, right, &yes)) return false;
        left = right;
    }
    *out = wr_tpl_bool(yes);
    return true;
}

static OWN_FRAME bool concat_expr(run *r, const node *n, scope *s, value *out)
{
    struct wr_tpl_buf b = {0};
    for (uint32_t i = 0; i < n->n; i++) {
        value v;
        if (!expr(r, n->kids[i], s, &v) || !wr_tpl_put_str(r, &b, v)) return false;
    }
    *out = wr_tpl_buf_value(&b);
    return true;
}

static OWN_FRAME bool sign_expr(run *r, const node *n, value v, value *out)
{
    r->line = n->line;
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (!wr_tpl_is_number(v)) return wr_tpl_fail(r, "a '%s' has no sign", wr_tpl_type(v));
    if (v.kind == V_FLOAT) {
        *out = wr_tpl_float(n->op == N_NEG ? -v.u.f : v.u.f);
        return true;
    }
    *out = wr_tpl_int(v.u.i);
    return n->op == N_POS || !__builtin_sub_overflow(0, v.u.i, &out->u.i) || wr_tpl_fail(r, "an integer beyond 64 bits is not supported");
}

static OWN_FRAME bool binary_expr(run *r, const node *n, scope *s, value *out)
{
    value a, b;
    if (!expr(r, n->kids[0], s, &a) || !expr(r, n->kids[1], s, &b)) return false;
    r->line = n->line;
    return n->op == N_ITEM ? wr_tpl_getitem(r, a, b, out) : wr_tpl_binary(r, (enum wr_tpl_binary)n->sub, a, b, out);
}

static OWN_FRAME bool cond_undefined(run *r, value *out)
{
    return wr_tpl_undefined_hint(r, "the inline if-expression evaluated to false and no else section was defined.", out);
}

static bool expr(run *r, const node *n, scope *s, value *out)
{
    bool ok = true;
    value v;
    if (!wr_tpl_enter(r)) return false;
    r->line = n->line;
    switch ((enum wr_tpl_op)n->op) {
    case N_CONST:
        *out = n->value;
        break;
    case N_NAME:
        ok = lookup(r, wr_tpl_str_of(n->value), s, out);
        break;
    case N_HOLE:
        *out = r->hole;
        break;
    case N_TUPLE:
    case N_LIST:
        ok = list_expr(r, n, s, out);
        break;
    case N_DICT:
        ok = dict_expr(r, n, s, out);
        break;
    case N_ATTR:
        ok = expr(r, n->kids[0], s, &v);
        r->line = n->line;
        ok = ok && wr_tpl_getattr(r, v, wr_tpl_str_of(n->value), out);
        break;
    case N_ITEM:
    case N_BINARY:
        ok = binary_expr(r, n, s, out);
        break;
    case N_SLICE:
        ok = slice_expr(r, n, s, out);
        break;
    case N_CALL:
    case N_FILTER:
    case N_TEST:
        ok = call_expr(r, n, s, out);
        break;
    case N_NOT:
        ok = expr(r, n->kids[0], s, &v);
        if (ok) *out = wr_tpl_bool(!wr_tpl_truth(v));
        break;
    case N_NEG:
    case N_POS:
        ok = expr(r, n->kids[0], s, &v) && sign_expr(r, n, v, out);
        break;
    case N_AND:
    case N_OR:
        ok = expr(r, n->kids[0], s, out);
        if (ok && wr_tpl_truth(*out) == (n->op == N_AND)) ok = expr(r, n->kids[1], s, out);
        break;
    case N_COMPARE:
        ok = compare_expr(r, n, s, out);
        break;
    case N_CONCAT:
        ok = concat_expr(r, n, s, out);
        break;
    case N_COND:
        ok = expr(r, n->kids[0], s, &v);
        if (ok && wr_tpl_truth(v))
            ok = expr(r, n->kids[1], s, out);
        else if (ok)
            ok = n->kids[2] ? expr(r, n->kids[2], s, out) : cond_undefined(r, out);
        break;
    default:
        ok = wr_tpl_fail(r, "not an expression");
    }
    r->depth--;
    return ok;
}

/* ---- assignment ---- */

static OWN_FRAME bool assign(run *r, const node *target, scope *s, value v)
{
    bool ok = true;
    if (!wr_tpl_enter(r)) return false;
    r->line = target->line;
    if (target->op == N_NAME) {
        ok = wr_tpl_bind_name(r, s, wr_tpl_str_of(target->value), v);
    } else if (target->op == N_NS_REF) {
        value ns;
        if (!lookup(r, wr_tpl_str_of(target->value), s, &ns)) return false;
        if (ns.kind != V_NAMESPACE) return wr_tpl_fail(r, "cannot assign attribute on non-namespace object");
        ok = wr_tpl_bind_name(r, ns.u.names, target->names[0], v);
    } else {
        const value *items;
        uint32_t n;
        if (v.kind == V_UNDEF && target->n) return wr_tpl_fail(r, "not enough values to unpack (expected %u, got 0)", target->n);
        if (!wr_tpl_items(r, v, &items, &n)) return false;
        if (n < target->n) return wr_tpl_fail(r, "not enough values to unpack (expected %u, got %u)", target->n, n);
        if (n > target->n) return wr_tpl_fail(r, "too many values to unpack (expected %u)", target->n);
        for (uint32_t i = 0; ok && i < n; i++) ok = assign(r, target->kids[i], s, items[i]);
    }
    r->depth--;
    return ok;
}

/* ---- statements that capture what they print ---- */

static OWN_FRAME enum flow capture(run *r, const node *n, scope *s, value *out)
{
    struct wr_tpl_buf buf = {0}, *outer = r->out;
    scope *inner = new_scope(r, s);
    if (!inner || !hide_names(r, n, inner)) return FLOW_FAIL;
    r->out = &buf;
    enum flow flow = body(r, n, inner);
    r->out = outer;
    *out = wr_tpl_buf_value(&buf);
    return flow;
}

/* What a block gives must be text: unlike an expression, the reference does not convert it. */
static bool put_block(run *r, value v)
{
    return v.kind == V_STR ? wr_tpl_put_str(r, r->out, v) : wr_tpl_fail(r, "the block gives a '%s', not a 'str'", wr_tpl_type(v));
}

static OWN_FRAME enum flow filter_block(run *r, const node *n, scope *s)
{
    bool set = n->op == N_SET_BLOCK;
    const node *filters = n->kids[set ? 1 : 0];
    value v, outer = r->hole;
    enum flow flow = capture(r, n->kids[set ? 2 : 1], s, &v);
    if (flow != FLOW_ON) return flow;
    r->hole = v;
    if (filters && !expr(r, filters, s, &v)) return FLOW_FAIL;
    r->hole = outer;
    r->line = n->line;
    return (set ? assign(r, n->kids[0], s, v) : put_block(r, v)) ? FLOW_ON : FLOW_FAIL;
}

/* ---- macros ---- */

/* Positions first, then keywords by name; what is left over is an error unless the macro asks for varargs or kwargs. */
static OWN_FRAME bool macro_bind(run *r, const struct wr_tpl_macro *m, const struct wr_tpl_call *call, scope *s)
{
    const node *n = m->node;
    uint32_t n_params = n->n_kw, n_left = 0;
    str name = wr_tpl_str_of(n->value);
    uint8_t *used = wr_tpl_take(r, call->n_kw + 1, 1);
    struct wr_tpl_pair *left = wr_tpl_take(r, call->n_kw, sizeof *left);
    value caller = {0};
    if (!used || !left) return false;
    if (call->n_pos > n_params && !(n->sub & WR_TPL_USES_VARARGS))
        return wr_tpl_fail(r, "macro '%.*s' takes not more than %u argument(s)", (int)name.n, name.s, n_params);
    for (uint32_t i = 0; i < n_params; i++) {
        value v = {0};
        if (i < call->n_pos) v = call->pos[i];
        for (uint32_t k = 0; i >= call->n_pos && k < call->n_kw; k++)
            if (wr_tpl_same(n->names[i], call->kw_names[k])) {
                v = call->kw[k];
                used[k] = 1;
            }
        if (v.kind == V_ABSENT && n->kids[i + 1]) {
            if (!expr(r, n->kids[i + 1], s, &v)) return false;
        } else if (v.kind == V_ABSENT) {
            struct wr_tpl_buf hint = {0};
            if (!wr_tpl_puts(r, &hint, "parameter '") || !wr_tpl_put(r, &hint, n->names[i].s, n->names[i].n) ||
                !wr_tpl_put(r, &hint, "' was not provided", sizeof "' was not provided") || !wr_tpl_undefined_hint(r, hint.p, &v))
                return false;
        }
        if (!wr_tpl_bind_name(r, s, n->names[i], v) || !wr_tpl_steps(r, call->n_kw / 8)) return false;
    }
    for (uint32_t k = 0; k < call->n_kw; k++) {
        str kw = call->kw_names[k];
        if (used[k]) continue;
        if (wr_tpl_same(kw, WR_TPL_STR("caller")) && (n->sub & WR_TPL_USES_CALLER))
            caller = call->kw[k];
        else if (n->sub & WR_TPL_USES_KWARGS)
            left[n_left++] = (struct wr_tpl_pair){wr_tpl_text(kw.s, kw.n), call->kw[k]};
        else
            return wr_tpl_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", (int)name.n, name.s, (int)kw.n, kw.s);
    }
    if (n->sub & WR_TPL_USES_VARARGS) {
        uint32_t k = call->n_pos > n_params ? call->n_pos - n_params : 0;
        if (!wr_tpl_bind_name(r, s, WR_TPL_STR("varargs"), wr_tpl_seq(SEQ_TUPLE, k > 0 ? call->pos + n_params : NULL, k))) return false;
    }
    if ((n->sub & WR_TPL_USES_KWARGS) && !wr_tpl_bind_name(r, s, WR_TPL_STR("kwargs"), (value){.kind = V_DICT, .n = n_left, .u.pairs = left})) return false;
    if (!(n->sub & WR_TPL_USES_CALLER)) return true;
    if (caller.kind == V_ABSENT && !wr_tpl_undefined_hint(r, "No caller defined", &caller)) return false;
    return wr_tpl_bind_name(r, s, WR_TPL_STR("caller"), caller);
}

bool wr_tpl_macro_call(run *r, const struct wr_tpl_macro *m, const struct wr_tpl_call *call, value *out)
{
    scope *s = new_scope(r, m->scope);
    return s && macro_bind(r, m, call, s) && capture(r, m->node->kids[0], s, out) == FLOW_ON;
}

static OWN_FRAME bool macro_make(run *r, const node *n, scope *s, value *out)
{
    struct wr_tpl_macro *m = wr_tpl_take(r, 1, sizeof *m);
    if (!m) return false;
    *m = (struct wr_tpl_macro){n, s};
    *out = (value){.kind = V_MACRO, .u.macro = m};
    return true;
}

/* call: the block becomes the keyword argument `caller`. */
static OWN_FRAME bool call_block(run *r, const node *n, scope *s)
{
    const node *c = n->kids[0];
    value callee, result;
    struct wr_tpl_call call;
    if (!expr(r, c->kids[0], s, &callee) || !arguments(r, c, s, &call)) return false;
    value *kw = wr_tpl_take(r, call.n_kw + 1, sizeof *kw);
    str *names = wr_tpl_take(r, call.n_kw + 1, sizeof *names);
    if (!kw || !names || !macro_make(r, n->kids[1], s, &kw[call.n_kw])) return false;
    if (call.n_kw) {
        memcpy(kw, call.kw, call.n_kw * sizeof *kw);
        memcpy(names, call.kw_names, call.n_kw * sizeof *names);
    }
    names[call.n_kw++] = WR_TPL_STR("caller");
    call.kw = kw;
    call.kw_names = names;
    r->line = n->line;
    return wr_tpl_invoke(r, callee, &call, &result) && put_block(r, result);
}

/* ---- loops ---- */

/* Looks one item ahead, past those that the loop's `if` refuses: asked as late as possible, since it may read a namespace. */
static OWN_FRAME bool loop_peek(run *r, struct wr_tpl_loop *loop)
{
    const node *test = loop->node->kids[2];
    while (!loop->has_after && loop->pos < loop->n) {
        value v = loop->items[loop->pos++], yes;
        if (test && loop->length < 0) {
            scope *s = new_scope(r, loop->outer);
            if (!s || !assign(r, loop->node->kids[0], s, v) || !expr(r, test, s, &yes)) return false;
            if (!wr_tpl_truth(yes)) continue;
        }
        loop->after = v;
        loop->has_after = true;
    }
    return true;
}

/* The loop's length: with an `if`, all the rest must be asked now. */
static bool loop_length(run *r, struct wr_tpl_loop *loop)
{
    if (loop->length >= 0) return true;
    value *rest = wr_tpl_take(r, (size_t)loop->n - loop->pos + 1, sizeof *rest);
    uint32_t n = 0;
    if (!rest) return false;
    for (;;) {
        if (!loop_peek(r, loop)) return false;
        if (!loop->has_after) break;
        rest[n++] = loop->after;
        loop->has_after = false;
    }
    loop->items = rest;
    loop->n = n;
    loop->pos = 0;
    loop->length = loop->index0 + 1 + n;
    return true;
}

bool wr_tpl_loop_attr(run *r, struct wr_tpl_loop *loop, str name, value *out)
{
    static const char *const names[] = {"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem", "depth", "depth0"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && !(name.n == strlen(names[i]) && memcmp(name.s, names[i], name.n) == 0)) i++;
    uint32_t line = r->line;
    if ((i == 2 || i == 3 || i == 6) && !loop_length(r, loop)) return false;
    if ((i == 5 || i == 8) && !loop_peek(r, loop)) return false;
    r->line = line;
    switch (i) {
    case 0:
        *out = wr_tpl_int(loop->index0 + 1);
        break;
    case 1:
        *out = wr_tpl_int(loop->index0);
        break;
    case 2:
        *out = wr_tpl_int(loop->length - loop->index0);
        break;
    case 3:
        *out = wr_tpl_int(loop->length - loop->index0 - 1);
        break;
    case 4:
        *out = wr_tpl_bool(loop->index0 == 0);
        break;
    case 5:
        *out = wr_tpl_bool(!loop->has_after);
        break;
    case 6:
        *out = wr_tpl_int(loop->length);
        break;
    case 7:
        if (loop->index0 == 0) return wr_tpl_undefined_hint(r, "there is no previous item", out);
        *out = loop->before;
        break;
    case 8:
        if (!loop->has_after) return wr_tpl_undefined_hint(r, "there is no next item", out);
        *out = loop->after;
        break;
    case 9:
        *out = wr_tpl_int(1);
        break;
    case 10:
        *out = wr_tpl_int(0);
        break;
    default:
        break;
    }
    return true;
}

static struct wr_tpl_loop *loop_make(run *r, const node *n, scope *s)
{
    struct wr_tpl_loop *loop = wr_tpl_take(r, 1, sizeof *loop);
    value v;
    if (!loop || !expr(r, n->kids[1], s, &v)) return NULL;
    r->line = n->line;
    if (!wr_tpl_items(r, v, &loop->items, &loop->n)) return NULL;
    loop->length = n->kids[2] ? -1 : (int64_t)loop->n;
    loop->index0 = -1;
    loop->node = n;
    loop->outer = s;
    return loop;
}

static OWN_FRAME enum flow for_loop(run *r, const node *n, scope *s)
{
    struct wr_tpl_loop *loop = loop_make(r, n, s);
    scope *inner = new_scope(r, s);
    bool completed = false; /* the else of the reference asks whether a body ran to its end, not whether there were items */
    if (!loop || !inner) return FLOW_FAIL;
    for (;;) {
        if (!loop_peek(r, loop)) return FLOW_FAIL;
        if (!loop->has_after) break;
        loop->has_after = false;
        loop->before = loop->current;
        loop->current = loop->after;
        loop->index0++;
        inner->first = inner->last = NULL;
        value special = {.kind = V_LOOP, .u.loop = loop};
        if (!hide_names(r, n->kids[3], inner) || !wr_tpl_bind_name(r, inner, WR_TPL_STR("loop"), special)) return FLOW_FAIL;
        if (!assign(r, n->kids[0], inner, loop->current)) return FLOW_FAIL;
        enum flow flow = body(r, n->kids[3], inner);
        if (flow == FLOW_FAIL) return FLOW_FAIL;
        if (flow == FLOW_BREAK) break;
        completed |= flow == FLOW_ON;
    }
    if (completed || !n->kids[4]) return FLOW_ON;
    inner = new_scope(r, s);
    return inner && hide_names(r, n->kids[4], inner) ? body(r, n->kids[4], inner) : FLOW_FAIL;
}

/* ---- the other statements ---- */

static OWN_FRAME enum flow with_block(run *r, const node *n, scope *s)
{
    scope *inner = new_scope(r, s);
    uint32_t count = n->n / 2;
    if (!inner || !hide_names(r, n->kids[n->n - 1], inner)) return FLOW_FAIL;
    for (uint32_t i = 0; i < count; i++) {
        value v;
        if (!expr(r, n->kids[count + i], s, &v) || !assign(r, n->kids[i], inner, v)) return FLOW_FAIL;
    }
    return body(r, n->kids[n->n - 1], inner);
}

/* The branch to take; NULL if none. */
static OWN_FRAME bool branch(run *r, const node *n, scope *s, const node **out)
{
    *out = NULL;
    for (uint32_t i = 0; i + 1 < n->n; i += 2) {
        value v;
        if (!expr(r, n->kids[i], s, &v)) return false;
        if (!wr_tpl_truth(v)) continue;
        *out = n->kids[i + 1];
        return true;
    }
    if (n->n % 2) *out = n->kids[n->n - 1];
    return true;
}

static OWN_FRAME bool simple(run *r, const node *n, scope *s)
{
    value v;
    switch (n->op) {
    case N_TEXT:
        return wr_tpl_put(r, r->out, n->value.u.s, n->value.n);
    case N_OUTPUT:
        return expr(r, n->kids[0], s, &v) && wr_tpl_put_str(r, r->out, v);
    case N_SET:
        return expr(r, n->kids[1], s, &v) && assign(r, n->kids[0], s, v);
    case N_MACRO:
        return macro_make(r, n, s, &v) && wr_tpl_bind_name(r, s, wr_tpl_str_of(n->value), v);
    default:
        return call_block(r, n, s);
    }
}

static enum flow statement(run *r, const node *n, scope *s)
{
    const node *taken;
    r->line = n->line;
    switch (n->op) {
    case N_IF:
        if (!branch(r, n, s, &taken)) return FLOW_FAIL;
        return taken ? body(r, taken, s) : FLOW_ON;
    case N_FOR:
        return for_loop(r, n, s);
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
        return filter_block(r, n, s);
    case N_WITH:
        return with_block(r, n, s);
    case N_SCOPE:
        s = new_scope(r, s);
        return s && hide_names(r, n->kids[0], s) ? body(r, n->kids[0], s) : FLOW_FAIL;
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        return simple(r, n, s) ? FLOW_ON : FLOW_FAIL;
    }
}

static enum flow body(run *r, const node *n, scope *s)
{
    enum flow flow = FLOW_ON;
    if (!wr_tpl_enter(r)) return FLOW_FAIL;
    for (uint32_t i = 0; i < n->n && flow == FLOW_ON; i++) flow = wr_tpl_steps(r, 1) ? statement(r, n->kids[i], s) : FLOW_FAIL;
    r->depth--;
    return flow;
}

bool wr_tpl_run_root(run *r, const node *root, struct wr_tpl_buf *out)
{
    r->out = out;
    r->globals = new_scope(r, NULL);
    scope *top = r->globals ? new_scope(r, r->globals) : NULL;
    return top && hide_names(r, root, top) && body(r, root, top) == FLOW_ON && !r->code;
}
