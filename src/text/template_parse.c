/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of chat templates: tokens to tree. Binary operators climb by precedence in one function, so that a level of
 * brackets costs three small stack frames. This file is long because it is one grammar: every rule calls the others. Whatever the reference knows and weir does not is refused here, by name and line.
 */
#include <stdio.h>
#include "text/template_priv.h"

struct parser {
    struct wr_template *t;
    struct wr_tpl_lexer lexer;
    struct wr_tpl_token now, ahead;
    uint32_t depth, n_loops;
    struct wr_tpl_node *macro; /* the innermost that is open */
    int code;
    weir_err *err;
};
struct list {
    struct wr_tpl_node **kids;
    struct wr_tpl_str *names;
    uint32_t n, cap, n_names, cap_names;
};
typedef struct wr_tpl_node node;

/* The first failure stays; NULL, so that it can be returned as the node that is not made. */
static __attribute__((format(printf, 4, 5))) void *fail(struct parser *p, int code, uint32_t line, const char *format, ...)
{
    char text[256];
    va_list args;
    if (p->code) return NULL;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->code = wr_err(p->err, code, "chat template line %u: %s", line, text);
    return NULL;
}

/* ---- tokens ---- */

static bool next(struct parser *p)
{
    if (p->code) return false;
    p->now = p->ahead;
    if (p->ahead.type != T_EOF && !wr_tpl_lex(&p->lexer, &p->ahead)) p->code = p->lexer.code;
    return !p->code;
}

static bool is_word(const struct wr_tpl_token *t, const char *word)
{
    return t->type == T_NAME && t->text.n == strlen(word) && memcmp(t->text.s, word, t->text.n) == 0;
}

static bool accept(struct parser *p, enum wr_tpl_token_type type) { return p->now.type == type && next(p); }
static bool accept_word(struct parser *p, const char *word) { return is_word(&p->now, word) && next(p); }

static const char *token_name(enum wr_tpl_token_type type)
{
    static const char *const names[] = {"end of template", "text", "{%", "%}", "{{", "}}", "name", "string", "integer", "float", "+", "-", "*", "**", "/", "//",
        "%", "~", "(", ")", "[", "]", "{", "}", "==", "!=", "<", "<=", ">", ">=", "=", ".", ":", "|", ",", ";"};
    return names[type];
}

static void *unexpected(struct parser *p, const char *wanted)
{
    if (p->now.type == T_NAME) return fail(p, WEIR_E_FORMAT, p->now.line, "expected %s, found '%.*s'", wanted, (int)p->now.text.n, p->now.text.s);
    return fail(p, WEIR_E_FORMAT, p->now.line, "expected %s, found '%s'", wanted, token_name(p->now.type));
}

static bool expect(struct parser *p, enum wr_tpl_token_type type)
{
    if (p->code) return false;
    if (p->now.type != type) {
        unexpected(p, type == T_NAME ? "a name" : token_name(type));
        return false;
    }
    return next(p);
}

static bool expect_name(struct parser *p, struct wr_tpl_str *name)
{
    *name = p->now.text;
    return expect(p, T_NAME);
}

static bool enter(struct parser *p)
{
    if (++p->depth > WR_TPL_MAX_DEPTH) fail(p, WEIR_E_UNSUPPORTED, p->now.line, "nested deeper than %u levels", WR_TPL_MAX_DEPTH);
    return !p->code;
}

/* ---- nodes ---- */

static void *take(struct parser *p, size_t bytes)
{
    int code = 0;
    if (p->code) return NULL;
    void *m = wr_tpl_pool_take(&p->t->pool, bytes, &code, p->err);
    if (!m) p->code = code;
    return m;
}

static bool push(struct parser *p, struct list *l, node *kid)
{
    if (p->code) return false;
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        node **kids = take(p, cap * sizeof *kids);
        if (!kids) return false;
        if (l->n) memcpy(kids, l->kids, l->n * sizeof *kids);
        l->kids = kids;
        l->cap = cap;
    }
    l->kids[l->n++] = kid;
    return true;
}

static bool push_name(struct parser *p, struct list *l, struct wr_tpl_str name)
{
    if (l->n_names == l->cap_names) {
        uint32_t cap = l->cap_names ? l->cap_names * 2 : 4;
        struct wr_tpl_str *names = take(p, cap * sizeof *names);
        if (!names) return false;
        if (l->n_names) memcpy(names, l->names, l->n_names * sizeof *names);
        l->names = names;
        l->cap_names = cap;
    }
    l->names[l->n_names++] = name;
    return true;
}

/* Takes the list over. The tree's depth bounds the evaluator's recursion. */
static node *make(struct parser *p, enum wr_tpl_op op, uint32_t line, const struct list *l)
{
    node *n = take(p, sizeof *n);
    if (!n) return NULL;
    n->op = (uint8_t)op;
    n->line = line;
    n->depth = 1;
    if (!l) return n;
    n->kids = l->kids;
    n->n = l->n;
    n->names = l->names;
    n->n_kw = l->n_names;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->kids[i] && l->kids[i]->depth >= n->depth) n->depth = (uint16_t)(l->kids[i]->depth + 1);
    if (n->depth > WR_TPL_MAX_DEPTH) return fail(p, WEIR_E_UNSUPPORTED, line, "nested deeper than %u levels", WR_TPL_MAX_DEPTH);
    return n;
}

static node *make1(struct parser *p, enum wr_tpl_op op, uint32_t line, node *a)
{
    struct list l = {0};
    return push(p, &l, a) ? make(p, op, line, &l) : NULL;
}

static node *make2(struct parser *p, enum wr_tpl_op op, uint32_t line, node *a, node *b)
{
    struct list l = {0};
    return push(p, &l, a) && push(p, &l, b) ? make(p, op, line, &l) : NULL;
}

static node *make_value(struct parser *p, enum wr_tpl_op op, uint32_t line, struct wr_tpl_value value)
{
    node *n = make(p, op, line, NULL);
    if (n) n->value = value;
    return n;
}

static struct wr_tpl_value text_value(struct wr_tpl_str s) { return wr_tpl_text(s.s, s.n); }

/* ---- expressions ---- */

enum { P_COND, P_OR, P_AND, P_NOT, P_COMPARE, P_ADD, P_CONCAT, P_MUL, P_POW, P_UNARY };
static node *parse_expr(struct parser *p, int min);
static node *parse_tuple(struct parser *p, bool with_cond, const char *end_word, bool in_brackets);
static node *parse_unary(struct parser *p, bool with_filters);

static node *parse_string(struct parser *p)
{
    uint32_t line = p->now.line, n = 0, cap = 0;
    char *out = NULL;
    struct wr_tpl_str first = p->now.text;
    bool plain = !memchr(first.s, '\\', first.n) && p->ahead.type != T_STRING;
    if (plain) return next(p) ? make_value(p, N_CONST, line, text_value(first)) : NULL;
    while (p->now.type == T_STRING) { /* neighbours are one string */
        uint32_t need = n + 2 * p->now.text.n + 1, k;
        bool unsupported;
        if (need > cap) {
            char *grown = take(p, need * 2);
            if (!grown) return NULL;
            if (n) memcpy(grown, out, n);
            out = grown;
            cap = need * 2;
        }
        const char *wrong = wr_tpl_unescape(p->now.text, out + n, &k, &unsupported);
        if (wrong) return fail(p, unsupported ? WEIR_E_UNSUPPORTED : WEIR_E_FORMAT, p->now.line, "%s", wrong);
        n += k;
        if (!next(p)) return NULL;
    }
    return make_value(p, N_CONST, line, wr_tpl_text(out, n));
}

static node *parse_list(struct parser *p)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    if (!expect(p, T_LBRACKET)) return NULL;
    while (p->now.type != T_RBRACKET) {
        if (l.n && !expect(p, T_COMMA)) return NULL;
        if (p->now.type == T_RBRACKET) break;
        if (!push(p, &l, parse_expr(p, P_COND))) return NULL;
    }
    return expect(p, T_RBRACKET) ? make(p, N_LIST, line, &l) : NULL;
}

static node *parse_dict(struct parser *p)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    if (!expect(p, T_LBRACE)) return NULL;
    while (p->now.type != T_RBRACE) {
        if (l.n && !expect(p, T_COMMA)) return NULL;
        if (p->now.type == T_RBRACE) break;
        if (!push(p, &l, parse_expr(p, P_COND)) || !expect(p, T_COLON) || !push(p, &l, parse_expr(p, P_COND))) return NULL;
    }
    return expect(p, T_RBRACE) ? make(p, N_DICT, line, &l) : NULL;
}

/* A name: a constant, or a variable; inside a macro some names change how it is called. */
static node *parse_name(struct parser *p)
{
    struct wr_tpl_token t = p->now;
    if (!next(p)) return NULL;
    if (is_word(&t, "true") || is_word(&t, "True")) return make_value(p, N_CONST, t.line, wr_tpl_bool(true));
    if (is_word(&t, "false") || is_word(&t, "False")) return make_value(p, N_CONST, t.line, wr_tpl_bool(false));
    if (is_word(&t, "none") || is_word(&t, "None")) return make_value(p, N_CONST, t.line, wr_tpl_none());
    if (p->macro) {
        if (is_word(&t, "caller")) p->macro->sub |= WR_TPL_USES_CALLER;
        if (is_word(&t, "varargs")) p->macro->sub |= WR_TPL_USES_VARARGS;
        if (is_word(&t, "kwargs")) p->macro->sub |= WR_TPL_USES_KWARGS;
    }
    return make_value(p, N_NAME, t.line, text_value(t.text));
}

static node *parse_primary(struct parser *p)
{
    struct wr_tpl_token t = p->now;
    node *n;
    switch (t.type) {
    case T_NAME:
        return parse_name(p);
    case T_STRING:
        return parse_string(p);
    case T_INT:
        return next(p) ? make_value(p, N_CONST, t.line, wr_tpl_int(t.number.i)) : NULL;
    case T_FLOAT:
        return next(p) ? make_value(p, N_CONST, t.line, wr_tpl_float(t.number.f)) : NULL;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    case T_LPAREN:
        if (!next(p)) return NULL;
        n = parse_tuple(p, true, NULL, true);
        return n && expect(p, T_RPAREN) ? n : NULL;
    default:
        return unexpected(p, "an expression");
    }
}

/* "(a, b, key=c)" onto l, whose first entry is the callee or subject. */
static bool parse_arguments(struct parser *p, struct list *l)
{
    bool first = true;
    if (!expect(p, T_LPAREN)) return false;
    for (; p->now.type != T_RPAREN; first = false) {
        if (!first && !expect(p, T_COMMA)) return false;
        if (p->now.type == T_RPAREN) break;
        if (p->now.type == T_MUL || p->now.type == T_POW) {
            fail(p, WEIR_E_UNSUPPORTED, p->now.line, "unpacking of arguments with '%s' is not supported", token_name(p->now.type));
            return false;
        }
        if (p->now.type == T_NAME && p->ahead.type == T_ASSIGN) {
            if (!push_name(p, l, p->now.text) || !next(p) || !next(p)) return false;
        } else if (l->n_names) {
            unexpected(p, "a keyword argument");
            return false;
        }
        if (!push(p, l, parse_expr(p, P_COND))) return false;
    }
    return expect(p, T_RPAREN);
}

static node *parse_call(struct parser *p, node *callee)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    struct wr_tpl_str name = wr_tpl_str_of(callee->value);
    if (callee->op == N_ATTR && wr_tpl_method_unsupported(name))
        return fail(p, WEIR_E_UNSUPPORTED, line, "method '%.*s' is not supported", (int)name.n, name.s);
    if (callee->op == N_NAME && wr_tpl_function_unsupported(name))
        return fail(p, WEIR_E_UNSUPPORTED, line, "function '%.*s' is not supported", (int)name.n, name.s);
    return push(p, &l, callee) && parse_arguments(p, &l) ? make(p, N_CALL, line, &l) : NULL;
}

static node *parse_subscript(struct parser *p, node *object)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    if (accept(p, T_DOT)) {
        struct wr_tpl_token t = p->now;
        if (t.type != T_NAME && t.type != T_INT) return unexpected(p, "a name after '.'");
        if (!next(p)) return NULL;
        if (t.type == T_INT) return make2(p, N_ITEM, line, object, make_value(p, N_CONST, line, wr_tpl_int(t.number.i)));
        node *n = make1(p, N_ATTR, line, object);
        if (n) n->value = text_value(t.text);
        return n;
    }
    if (!expect(p, T_LBRACKET) || !push(p, &l, object)) return NULL;
    node *bound = p->now.type == T_COLON ? NULL : parse_expr(p, P_COND);
    if (!push(p, &l, bound)) return NULL;
    bool slice = false;
    while (l.n < 4 && accept(p, T_COLON)) {
        slice = true;
        bound = p->now.type == T_COLON || p->now.type == T_RBRACKET ? NULL : parse_expr(p, P_COND);
        if (!push(p, &l, bound)) return NULL;
    }
    if (p->now.type == T_COMMA) return fail(p, WEIR_E_UNSUPPORTED, p->now.line, "a subscript with ',' is not supported");
    while (slice && l.n < 4)
        if (!push(p, &l, NULL)) return NULL;
    return expect(p, T_RBRACKET) ? make(p, slice ? N_SLICE : N_ITEM, line, &l) : NULL;
}

/* "filter" or "filter(arguments)" over `subject`. */
static node *parse_filter(struct parser *p, node *subject)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    struct wr_tpl_str name;
    if (!push(p, &l, subject) || !expect_name(p, &name)) return NULL;
    int filter = wr_tpl_filter_find(name);
    if (filter < 0) return fail(p, WEIR_E_UNSUPPORTED, line, "filter '%.*s' is not supported", (int)name.n, name.s);
    if (p->now.type == T_LPAREN && !parse_arguments(p, &l)) return NULL;
    bool test;
    uint32_t arg;
    if (wr_tpl_filter_names(filter, &test, &arg) && arg + 1 < l.n - l.n_names) { /* select("string"): the name is known now */
        const node *k = l.kids[arg + 1];
        struct wr_tpl_str inner = wr_tpl_str_of(k->value);
        if (k->op == N_CONST && k->value.kind == V_STR && (test ? wr_tpl_test_find(inner) : wr_tpl_filter_find(inner)) < 0)
            return fail(p, WEIR_E_UNSUPPORTED, line, "%s '%.*s' is not supported", test ? "test" : "filter", (int)inner.n, inner.s);
    }
    node *n = make(p, N_FILTER, line, &l);
    if (n) n->sub = (uint8_t)filter;
    return n;
}

/* "is [not] test", with an argument in brackets or bare. */
static node *parse_test(struct parser *p, node *subject)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    struct wr_tpl_str name;
    if (!next(p) || !push(p, &l, subject)) return NULL;
    bool negated = accept_word(p, "not");
    if (!expect_name(p, &name)) return NULL;
    int test = wr_tpl_test_find(name);
    if (test < 0) return fail(p, WEIR_E_UNSUPPORTED, line, "test '%.*s' is not supported", (int)name.n, name.s);
    enum wr_tpl_token_type t = p->now.type;
    if (t == T_LPAREN) {
        if (!parse_arguments(p, &l)) return NULL;
    } else if ((t == T_NAME || t == T_STRING || t == T_INT || t == T_FLOAT || t == T_LBRACKET || t == T_LBRACE) && !is_word(&p->now, "else") &&
               !is_word(&p->now, "or") && !is_word(&p->now, "and")) {
        if (is_word(&p->now, "is")) return unexpected(p, "no second test after the first");
        node *arg = parse_primary(p);
        while (arg && (p->now.type == T_DOT || p->now.type == T_LBRACKET || p->now.type == T_LPAREN))
            arg = p->now.type == T_LPAREN ? parse_call(p, arg) : parse_subscript(p, arg);
        if (!push(p, &l, arg)) return NULL;
    }
    node *n = make(p, N_TEST, line, &l);
    if (n) n->sub = (uint8_t)test;
    return n && negated ? make1(p, N_NOT, line, n) : n;
}

static node *parse_unary(struct parser *p, bool with_filters)
{
    node *n;
    uint32_t line = p->now.line;
    if (p->now.type == T_SUB || p->now.type == T_ADD) {
        enum wr_tpl_op op = p->now.type == T_SUB ? N_NEG : N_POS;
        if (!enter(p) || !next(p)) return NULL;
        n = parse_unary(p, false);
        n = n ? make1(p, op, line, n) : NULL;
        p->depth--;
    } else {
        n = parse_primary(p);
    }
    for (bool filtered = false; n && !p->code;) {
        enum wr_tpl_token_type t = p->now.type;
        if (t == T_LPAREN)
            n = parse_call(p, n);
        else if (!filtered && (t == T_DOT || t == T_LBRACKET))
            n = parse_subscript(p, n);
        else if (with_filters && t == T_PIPE) {
            filtered = true;
            n = next(p) ? parse_filter(p, n) : NULL;
        } else if (with_filters && is_word(&p->now, "is")) {
            filtered = true;
            n = parse_test(p, n);
        } else
            break;
    }
    return p->code ? NULL : n;
}

/* Precedence of the operator at hand, P_COND - 1 if there is none; *sub: which one of its level. */
static int operator_at(const struct parser *p, uint8_t *sub)
{
    switch (p->now.type) {
    case T_ADD:
        *sub = B_ADD;
        return P_ADD;
    case T_SUB:
        *sub = B_SUB;
        return P_ADD;
    case T_MUL:
        *sub = B_MUL;
        return P_MUL;
    case T_DIV:
        *sub = B_DIV;
        return P_MUL;
    case T_FLOORDIV:
        *sub = B_FLOORDIV;
        return P_MUL;
    case T_MOD:
        *sub = B_MOD;
        return P_MUL;
    case T_POW:
        *sub = B_POW;
        return P_POW;
    case T_TILDE:
        return P_CONCAT;
    case T_EQ:
        *sub = C_EQ;
        return P_COMPARE;
    case T_NE:
        *sub = C_NE;
        return P_COMPARE;
    case T_LT:
        *sub = C_LT;
        return P_COMPARE;
    case T_LE:
        *sub = C_LE;
        return P_COMPARE;
    case T_GT:
        *sub = C_GT;
        return P_COMPARE;
    case T_GE:
        *sub = C_GE;
        return P_COMPARE;
    default:
        break;
    }
    bool not_in = is_word(&p->now, "not") && is_word(&p->ahead, "in");
    if (not_in || is_word(&p->now, "in")) {
        *sub = not_in ? C_NOT_IN : C_IN;
        return P_COMPARE;
    }
    if (is_word(&p->now, "and")) return P_AND;
    if (is_word(&p->now, "or")) return P_OR;
    if (is_word(&p->now, "if")) return P_COND;
    return P_COND - 1;
}

/* a < b <= c ..., all at once: each operand is evaluated once. */
static node *parse_compare(struct parser *p, node *left)
{
    struct list l = {0};
    uint32_t line = p->now.line, cap = 0;
    char *ops = NULL;
    uint8_t op;
    if (!push(p, &l, left)) return NULL;
    while (operator_at(p, &op) == P_COMPARE) {
        if (l.n - 1 == cap) {
            char *grown = take(p, cap * 2 + 4);
            if (!grown) return NULL;
            if (cap) memcpy(grown, ops, cap);
            ops = grown;
            cap = cap * 2 + 4;
        }
        ops[l.n - 1] = (char)op;
        if ((op == C_NOT_IN && !next(p)) || !next(p) || !push(p, &l, parse_expr(p, P_ADD))) return NULL;
    }
    node *n = make(p, N_COMPARE, line, &l);
    if (n) n->value = wr_tpl_text(ops, l.n - 1);
    return n;
}

static node *parse_concat(struct parser *p, node *left)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    if (!push(p, &l, left)) return NULL;
    while (p->now.type == T_TILDE)
        if (!next(p) || !push(p, &l, parse_expr(p, P_MUL))) return NULL;
    return make(p, N_CONCAT, line, &l);
}

/* then if test [else other] */
static node *parse_cond(struct parser *p, node *then)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    if (!next(p)) return NULL;
    node *test = parse_expr(p, P_OR);
    if (!push(p, &l, test) || !push(p, &l, then)) return NULL;
    return push(p, &l, accept_word(p, "else") ? parse_expr(p, P_COND) : NULL) ? make(p, N_COND, line, &l) : NULL;
}

static node *parse_expr(struct parser *p, int min)
{
    node *left = NULL;
    uint32_t line = p->now.line;
    if (!enter(p)) goto done;
    if (min <= P_NOT && is_word(&p->now, "not")) {
        left = next(p) ? parse_expr(p, P_NOT) : NULL;
        left = left ? make1(p, N_NOT, line, left) : NULL;
    } else {
        left = parse_unary(p, true);
    }
    while (left && !p->code) {
        uint8_t sub = 0;
        int level = operator_at(p, &sub);
        if (level < min || level < P_COND) break;
        if (level == P_COND)
            left = parse_cond(p, left);
        else if (level == P_COMPARE)
            left = parse_compare(p, left);
        else if (level == P_CONCAT)
            left = parse_concat(p, left);
        else {
            enum wr_tpl_op op = level == P_OR ? N_OR : level == P_AND ? N_AND : N_BINARY;
            line = p->now.line;
            node *right = next(p) ? parse_expr(p, level + 1) : NULL;
            left = right ? make2(p, op, line, left, right) : NULL;
            if (left) left->sub = sub;
        }
    }
done:
    p->depth--;
    return p->code ? NULL : left;
}

/* a, b, ... or one expression. end_word ends it (for x in); only brackets may hold nothing. */
static node *parse_tuple(struct parser *p, bool with_cond, const char *end_word, bool in_brackets)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    bool tuple = false;
    for (;;) {
        if (l.n && !expect(p, T_COMMA)) return NULL;
        enum wr_tpl_token_type t = p->now.type;
        if (t == T_VARIABLE_END || t == T_BLOCK_END || t == T_RPAREN || (end_word && is_word(&p->now, end_word))) break;
        if (!push(p, &l, parse_expr(p, with_cond ? P_COND : P_OR))) return NULL;
        if (p->now.type != T_COMMA) break;
        tuple = true;
    }
    if (!tuple && l.n) return l.kids[0];
    if (!tuple && !in_brackets) return unexpected(p, "an expression");
    return make(p, N_TUPLE, line, &l);
}

/* ---- statements ---- */

static node *parse_body(struct parser *p, const char *const ends[]);

/* Target of an assignment: names (ns.attribute too, if `ns`), in tuples as deep as they like. */
static node *parse_target(struct parser *p, bool ns, bool in_brackets)
{
    struct list l = {0};
    uint32_t line = p->now.line;
    bool tuple = false;
    node *n = NULL;
    if (!enter(p)) goto done;
    for (;;) {
        if (l.n && !expect(p, T_COMMA)) goto done;
        if (p->now.type == T_RPAREN || p->now.type == T_BLOCK_END || is_word(&p->now, "in") || p->now.type == T_ASSIGN) break;
        node *one;
        if (accept(p, T_LPAREN)) {
            one = parse_target(p, ns, true);
            if (!one || !expect(p, T_RPAREN)) goto done;
        } else {
            struct wr_tpl_str name = p->now.text;
            static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
            for (size_t i = 0; i < 6; i++)
                if (is_word(&p->now, constants[i])) unexpected(p, "a name to assign to");
            if (!expect(p, T_NAME)) goto done;
            bool ref = ns && accept(p, T_DOT);
            if (name.n == 4 && memcmp(name.s, "loop", 4) == 0 && !ns) fail(p, WEIR_E_FORMAT, line, "the special variable 'loop' cannot be a loop's own");
            one = make_value(p, ref ? N_NS_REF : N_NAME, line, text_value(name));
            if (one && ref) {
                struct wr_tpl_str *attr = take(p, sizeof *attr);
                if (!attr || !expect_name(p, attr)) goto done;
                one->names = attr;
            }
        }
        if (!push(p, &l, one)) goto done;
        if (p->now.type != T_COMMA) break;
        tuple = true;
    }
    if (!tuple && !l.n && !in_brackets) unexpected(p, "a name to assign to");
    n = !tuple && l.n ? l.kids[0] : make(p, N_TUPLE, line, &l);
done:
    p->depth--;
    return p->code ? NULL : n;
}

static const char *const end_if[] = {"elif", "else", "endif", NULL}, *const end_if_last[] = {"endif", NULL}, *const end_for[] = {"endfor", "else", NULL},
                         *const end_for_last[] = {"endfor", NULL}, *const end_set[] = {"endset", NULL}, *const end_macro[] = {"endmacro", NULL},
                         *const end_call[] = {"endcall", NULL}, *const end_filter[] = {"endfilter", NULL}, *const end_with[] = {"endwith", NULL},
                         *const end_generation[] = {"endgeneration", NULL};

/* The body after a statement's head: ends at, and steps over, one of `ends`; `which` tells the word (may be NULL). */
static node *parse_block(struct parser *p, const char *const ends[], struct wr_tpl_token *which)
{
    accept(p, T_COLON);
    if (!expect(p, T_BLOCK_END)) return NULL;
    node *body = parse_body(p, ends);
    if (which) *which = p->now;
    return body && next(p) ? body : NULL;
}

static node *parse_if(struct parser *p)
{
    struct list l = {0};
    struct wr_tpl_token word = p->now;
    do {
        if (!push(p, &l, parse_tuple(p, false, NULL, false)) || !push(p, &l, parse_block(p, end_if, &word))) return NULL;
    } while (is_word(&word, "elif"));
    if (is_word(&word, "else") && !push(p, &l, parse_block(p, end_if_last, NULL))) return NULL;
    return make(p, N_IF, p->now.line, &l);
}

static node *parse_for(struct parser *p, uint32_t line)
{
    struct list l = {0};
    struct wr_tpl_token word = {0};
    if (!push(p, &l, parse_target(p, false, false))) return NULL;
    if (!accept_word(p, "in")) return p->code ? NULL : unexpected(p, "'in'");
    if (!push(p, &l, parse_tuple(p, false, "recursive", false)) || !push(p, &l, accept_word(p, "if") ? parse_expr(p, P_COND) : NULL)) return NULL;
    if (is_word(&p->now, "recursive")) return fail(p, WEIR_E_UNSUPPORTED, p->now.line, "a 'recursive' loop is not supported");
    p->n_loops++;
    node *body = parse_block(p, end_for, &word);
    p->n_loops--;
    if (!push(p, &l, body)) return NULL;
    return push(p, &l, is_word(&word, "else") ? parse_block(p, end_for_last, NULL) : NULL) ? make(p, N_FOR, line, &l) : NULL;
}

static node *parse_set(struct parser *p, uint32_t line)
{
    struct list l = {0};
    node *filters = NULL;
    if (!push(p, &l, parse_target(p, true, false))) return NULL;
    if (accept(p, T_ASSIGN)) return push(p, &l, parse_tuple(p, true, NULL, false)) ? make(p, N_SET, line, &l) : NULL;
    while (accept(p, T_PIPE)) {
        if (!filters) filters = make(p, N_HOLE, line, NULL);
        if (filters) filters = parse_filter(p, filters);
    }
    return push(p, &l, filters) && push(p, &l, parse_block(p, end_set, NULL)) ? make(p, N_SET_BLOCK, line, &l) : NULL;
}

/* "(a, b=1)", if there is one, then the body of a macro or of a call block. */
static node *parse_macro(struct parser *p, uint32_t line, struct wr_tpl_str name, const char *const ends[], bool params_needed, node **call)
{
    struct list l = {0};
    struct wr_tpl_str param;
    struct wr_tpl_node *outer = p->macro, *made = make_value(p, N_MACRO, line, text_value(name));
    uint32_t loops = p->n_loops;
    bool defaults = false;
    if (!made || !push(p, &l, NULL)) return NULL;
    if (params_needed || p->now.type == T_LPAREN) {
        p->macro = made;
        if (!expect(p, T_LPAREN)) return NULL;
        while (p->now.type != T_RPAREN) {
            if (l.n > 1 && !expect(p, T_COMMA)) return NULL;
            if (!expect_name(p, &param) || !push_name(p, &l, param)) return NULL;
            bool given = accept(p, T_ASSIGN);
            if (defaults && !given) return unexpected(p, "a default, as the parameter before has one");
            defaults = given;
            if (!push(p, &l, given ? parse_expr(p, P_COND) : NULL)) return NULL;
        }
        if (!expect(p, T_RPAREN)) return NULL;
        p->macro = outer;
    }
    if (call) {
        *call = parse_expr(p, P_COND);
        if (*call && (*call)->op != N_CALL) return fail(p, WEIR_E_FORMAT, line, "'call' needs a call");
    }
    p->macro = made;
    p->n_loops = 0;
    l.kids[0] = parse_block(p, ends, NULL);
    p->n_loops = loops;
    p->macro = outer;
    node *n = p->code ? NULL : make(p, N_MACRO, line, &l);
    if (!n) return NULL;
    n->sub = made->sub;
    n->value = made->value;
    return n;
}

static node *parse_call_block(struct parser *p, uint32_t line)
{
    node *call = NULL, *macro = parse_macro(p, line, WR_TPL_STR("caller"), end_call, false, &call);
    return macro ? make2(p, N_CALL_BLOCK, line, call, macro) : NULL;
}

static node *parse_filter_block(struct parser *p, uint32_t line)
{
    node *n = make(p, N_HOLE, line, NULL);
    do {
        n = n ? parse_filter(p, n) : NULL;
    } while (n && accept(p, T_PIPE));
    node *body = n ? parse_block(p, end_filter, NULL) : NULL;
    return body ? make2(p, N_FILTER_BLOCK, line, n, body) : NULL;
}

static node *parse_with(struct parser *p, uint32_t line)
{
    struct list targets = {0}, values = {0};
    while (p->now.type != T_BLOCK_END) {
        struct wr_tpl_str name;
        if (targets.n && !expect(p, T_COMMA)) return NULL;
        uint32_t at = p->now.line;
        if (!expect_name(p, &name) || !expect(p, T_ASSIGN)) return NULL;
        if (!push(p, &targets, make_value(p, N_NAME, at, text_value(name))) || !push(p, &values, parse_expr(p, P_COND))) return NULL;
    }
    for (uint32_t i = 0; i < values.n; i++)
        if (!push(p, &targets, values.kids[i])) return NULL;
    return push(p, &targets, parse_block(p, end_with, NULL)) ? make(p, N_WITH, line, &targets) : NULL;
}

static node *parse_statement(struct parser *p)
{
    struct wr_tpl_token t = p->now;
    struct wr_tpl_str name;
    if (!expect(p, T_NAME)) return NULL;
    if (is_word(&t, "if")) return parse_if(p);
    if (is_word(&t, "for")) return parse_for(p, t.line);
    if (is_word(&t, "set")) return parse_set(p, t.line);
    if (is_word(&t, "macro")) return expect_name(p, &name) ? parse_macro(p, t.line, name, end_macro, true, NULL) : NULL;
    if (is_word(&t, "call")) return parse_call_block(p, t.line);
    if (is_word(&t, "filter")) return parse_filter_block(p, t.line);
    if (is_word(&t, "with")) return parse_with(p, t.line);
    if (is_word(&t, "generation")) {
        uint32_t loops = p->n_loops;
        p->n_loops = 0;
        node *body = parse_block(p, end_generation, NULL);
        p->n_loops = loops;
        return body ? make1(p, N_SCOPE, t.line, body) : NULL;
    }
    if (is_word(&t, "break") || is_word(&t, "continue")) {
        if (!p->n_loops) return fail(p, WEIR_E_FORMAT, t.line, "'%.*s' outside of a loop", (int)t.text.n, t.text.s);
        return make(p, is_word(&t, "break") ? N_BREAK : N_CONTINUE, t.line, NULL);
    }
    if ((t.text.n > 3 && memcmp(t.text.s, "end", 3) == 0) || is_word(&t, "else") || is_word(&t, "elif"))
        return fail(p, WEIR_E_FORMAT, t.line, "'%.*s' without its beginning", (int)t.text.n, t.text.s);
    return fail(p, WEIR_E_UNSUPPORTED, t.line, "statement '%.*s' is not supported", (int)t.text.n, t.text.s);
}

/* Statements up to one of `ends` (left as the token at hand) or, without ends, to the end of the template. */
static node *parse_body(struct parser *p, const char *const ends[])
{
    struct list l = {0};
    uint32_t line = p->now.line;
    node *body = NULL;
    if (!enter(p)) goto done;
    while (!p->code) {
        struct wr_tpl_token t = p->now;
        if (t.type == T_EOF) {
            if (ends)
                fail(p, WEIR_E_FORMAT, t.line, "the template ends where '%s' is missing", ends[0]);
            else
                body = make(p, N_BODY, line, &l);
            break;
        }
        if (!next(p)) break;
        if (t.type == T_TEXT) {
            push(p, &l, make_value(p, N_TEXT, t.line, text_value(t.text)));
        } else if (t.type == T_VARIABLE_BEGIN) {
            node *e = parse_tuple(p, true, NULL, false);
            if (e && expect(p, T_VARIABLE_END)) push(p, &l, make1(p, N_OUTPUT, t.line, e));
        } else { /* T_BLOCK_BEGIN */
            bool end = false;
            for (size_t i = 0; ends && ends[i]; i++) end |= is_word(&p->now, ends[i]);
            if (end) {
                body = make(p, N_BODY, line, &l);
                break;
            }
            node *s = parse_statement(p);
            if (s && expect(p, T_BLOCK_END)) push(p, &l, s);
        }
    }
done:
    p->depth--;
    return p->code ? NULL : body;
}

int wr_tpl_parse(struct wr_template *t, weir_err *err)
{
    struct parser p = {.t = t, .err = err};
    wr_tpl_lexer_init(&p.lexer, t->source, err);
    if (wr_tpl_lex(&p.lexer, &p.ahead) && next(&p)) t->root = parse_body(&p, NULL);
    return p.code ? p.code : p.lexer.code;
}
