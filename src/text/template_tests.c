/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of chat templates: what stands after `is`. */
#include <math.h>
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;

enum test {
    IS_BOOLEAN,
    IS_CALLABLE,
    IS_DEFINED,
    IS_DIVISIBLEBY,
    IS_EQ,
    IS_EVEN,
    IS_FALSE,
    IS_FLOAT,
    IS_GE,
    IS_GT,
    IS_IN,
    IS_INTEGER,
    IS_ITERABLE,
    IS_LE,
    IS_LOWER,
    IS_LT,
    IS_MAPPING,
    IS_NE,
    IS_NONE,
    IS_NUMBER,
    IS_ODD,
    IS_SEQUENCE,
    IS_STRING,
    IS_TRUE,
    IS_UNDEFINED,
    IS_UPPER
};
static const struct {
    const char *name;
    uint8_t id, n_args;
} tests[] = {
    {"boolean", IS_BOOLEAN, 0},
    {"callable", IS_CALLABLE, 0},
    {"defined", IS_DEFINED, 0},
    {"divisibleby", IS_DIVISIBLEBY, 1},
    {"eq", IS_EQ, 1},
    {"equalto", IS_EQ, 1},
    {"==", IS_EQ, 1},
    {"even", IS_EVEN, 0},
    {"false", IS_FALSE, 0},
    {"float", IS_FLOAT, 0},
    {"ge", IS_GE, 1},
    {">=", IS_GE, 1},
    {"gt", IS_GT, 1},
    {"greaterthan", IS_GT, 1},
    {">", IS_GT, 1},
    {"in", IS_IN, 1},
    {"integer", IS_INTEGER, 0},
    {"iterable", IS_ITERABLE, 0},
    {"le", IS_LE, 1},
    {"<=", IS_LE, 1},
    {"lower", IS_LOWER, 0},
    {"lt", IS_LT, 1},
    {"lessthan", IS_LT, 1},
    {"<", IS_LT, 1},
    {"mapping", IS_MAPPING, 0},
    {"ne", IS_NE, 1},
    {"!=", IS_NE, 1},
    {"none", IS_NONE, 0},
    {"number", IS_NUMBER, 0},
    {"odd", IS_ODD, 0},
    {"sequence", IS_SEQUENCE, 0},
    {"string", IS_STRING, 0},
    {"true", IS_TRUE, 0},
    {"undefined", IS_UNDEFINED, 0},
    {"upper", IS_UPPER, 0},
};

int wr_tpl_test_find(struct wr_tpl_str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (name.n == strlen(tests[i].name) && memcmp(name.s, tests[i].name, name.n) == 0) return (int)i;
    return -1;
}

/* v % by == rest */
static bool remainder_is(run *r, value v, value by, double rest, bool *out)
{
    value m;
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (!wr_tpl_is_number(v)) return wr_tpl_fail(r, "a '%s' is neither odd nor even", wr_tpl_type(v));
    if (!wr_tpl_binary(r, B_MOD, v, by, &m)) return false;
    *out = wr_tpl_double(m) == rest;
    return true;
}

static bool ordered(run *r, value a, value b, bool or_equal, bool *out)
{
    bool same = false;
    if (or_equal && !wr_tpl_eq(r, a, b, &same)) return false;
    if (!wr_tpl_lt(r, a, b, out)) return false;
    *out |= same && a.kind != V_UNDEF;
    return true;
}

static bool is_iterable(value v)
{
    return v.kind == V_STR || v.kind == V_LIST || v.kind == V_DICT || v.kind == V_ITER || v.kind == V_UNDEF || v.kind == V_LOOP;
}

bool wr_tpl_test_apply(run *r, int test, value v, const struct wr_tpl_call *call, bool *out)
{
    value b = {0};
    if (call->n_kw || call->n_pos != tests[test].n_args) return wr_tpl_fail(r, "test '%s' takes %u arguments", tests[test].name, tests[test].n_args);
    if (call->n_pos) b = call->pos[0];
    switch ((enum test)tests[test].id) {
    case IS_BOOLEAN:
        *out = v.kind == V_BOOL;
        break;
    case IS_CALLABLE:
        *out = v.kind == V_FUNC || v.kind == V_METHOD || v.kind == V_MACRO || v.kind == V_LOOP || v.kind == V_UNDEF;
        break;
    case IS_DEFINED:
        *out = v.kind != V_UNDEF;
        break;
    case IS_DIVISIBLEBY:
        return remainder_is(r, v, b, 0, out);
    case IS_EQ:
        return wr_tpl_eq(r, v, b, out);
    case IS_EVEN:
        return remainder_is(r, v, wr_tpl_int(2), 0, out);
    case IS_FALSE:
        *out = v.kind == V_BOOL && !v.u.i;
        break;
    case IS_FLOAT:
        *out = v.kind == V_FLOAT;
        break;
    case IS_GE:
        return ordered(r, b, v, true, out);
    case IS_GT:
        return ordered(r, b, v, false, out);
    case IS_IN:
        return wr_tpl_in(r, v, b, out);
    case IS_INTEGER:
        *out = v.kind == V_INT;
        break;
    case IS_ITERABLE:
        *out = is_iterable(v);
        break;
    case IS_LE:
        return ordered(r, v, b, true, out);
    case IS_LOWER:
    case IS_UPPER:
        if (!wr_tpl_to_str(r, &v)) return false;
        *out = wr_tpl_is_class(wr_tpl_str_of(v), tests[test].id == IS_LOWER ? CLASS_LOWER : CLASS_UPPER);
        return wr_tpl_steps(r, v.n / 16);
    case IS_LT:
        return ordered(r, v, b, false, out);
    case IS_MAPPING:
        *out = v.kind == V_DICT;
        break;
    case IS_NE:
        if (!wr_tpl_eq(r, v, b, out)) return false;
        *out = !*out;
        break;
    case IS_NONE:
        *out = v.kind == V_NONE;
        break;
    case IS_NUMBER:
        *out = wr_tpl_is_number(v);
        break;
    case IS_ODD:
        return remainder_is(r, v, wr_tpl_int(2), 1, out);
    case IS_SEQUENCE:
        *out = v.kind == V_STR || v.kind == V_DICT || v.kind == V_UNDEF || (v.kind == V_LIST && v.sub < SEQ_KEYS);
        break;
    case IS_STRING:
        *out = v.kind == V_STR;
        break;
    case IS_TRUE:
        *out = v.kind == V_BOOL && v.u.i;
        break;
    case IS_UNDEFINED:
        *out = v.kind == V_UNDEF;
        break;
    }
    return true;
}
