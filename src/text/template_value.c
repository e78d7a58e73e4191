/* SPDX-License-Identifier: Apache-2.0 */
/* Values of chat templates: what Python says of their truth, equality, order, printing, membership and slices. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;

const char *wr_tpl_type(value v)
{
    static const char *const seqs[] = {"list", "tuple", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
    switch (v.kind) {
    case V_UNDEF:
        return "Undefined";
    case V_NONE:
        return "NoneType";
    case V_BOOL:
        return "bool";
    case V_INT:
        return "int";
    case V_FLOAT:
        return "float";
    case V_STR:
        return "str";
    case V_LIST:
        return seqs[v.sub];
    case V_DICT:
        return "dict";
    case V_ITER:
        return "generator";
    case V_NAMESPACE:
        return "Namespace";
    case V_LOOP:
        return "LoopContext";
    case V_MACRO:
        return "Macro";
    default:
        return "builtin_function_or_method";
    }
}

/* ---- from JSON ---- */

static bool from_json(run *r, const json_t *j, value *out)
{
    uint32_t k = 0;
    if (!wr_tpl_enter(r)) return false;
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = wr_tpl_none();
        break;
    case JSON_TRUE:
        *out = wr_tpl_bool(true);
        break;
    case JSON_FALSE:
        *out = wr_tpl_bool(false);
        break;
    case JSON_INTEGER:
        *out = wr_tpl_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = wr_tpl_float(json_real_value(j));
        break;
    case JSON_STRING: {
        size_t n = json_string_length(j);
        const char *s = json_string_value(j);
        if (n > WR_TPL_MAX_OUTPUT) return wr_tpl_fail(r, "a string of %zu bytes: at most %zu MiB are supported", n, WR_TPL_MAX_OUTPUT >> 20);
        if (!wr_tpl_steps(r, n / 64)) return false;
        if (wr_utf8_valid_prefix((const uint8_t *)s, n) != n) return wr_tpl_fail(r, "a string among the variables is not valid UTF-8");
        *out = wr_tpl_text(s, n);
        break;
    }
    case JSON_ARRAY: {
        value *items = wr_tpl_take(r, json_array_size(j), sizeof *items);
        if (!items) return false;
        for (; k < json_array_size(j); k++)
            if (!from_json(r, json_array_get(j, k), &items[k])) return false;
        *out = wr_tpl_seq(SEQ_LIST, items, k);
        break;
    }
    case JSON_OBJECT: {
        struct wr_tpl_pair *pairs = wr_tpl_take(r, json_object_size(j), sizeof *pairs);
        if (!pairs) return false;
        /* jansson iterates in the order of insertion */
        for (void *it = json_object_iter((json_t *)j); it; it = json_object_iter_next((json_t *)j, it), k++) {
            const char *key = json_object_iter_key(it);
            size_t n = strlen(key);
            if (n > WR_TPL_MAX_OUTPUT || wr_utf8_valid_prefix((const uint8_t *)key, n) != n)
                return wr_tpl_fail(r, "a key among the variables is not valid UTF-8");
            pairs[k].key = wr_tpl_text(key, n);
            if (!from_json(r, json_object_iter_value(it), &pairs[k].value)) return false;
        }
        *out = (value){.kind = V_DICT, .n = k, .u.pairs = pairs};
        break;
    }
    }
    r->depth--;
    return true;
}

bool wr_tpl_from_json(run *r, const json_t *j, value *out) { return from_json(r, j, out); }

/* ---- undefined ---- */

bool wr_tpl_undefined(run *r, value object, value name, value *out)
{
    struct wr_tpl_undef *u = wr_tpl_take(r, 1, sizeof *u);
    if (!u) return false;
    if (object.kind == V_NONE)
        u->type = "None";
    else if (object.kind == V_NAMESPACE)
        u->type = "jinja2.utils.Namespace object";
    else if (object.kind == V_LOOP)
        u->type = "jinja2.runtime.LoopContext object";
    else if (object.kind == V_STR && object.sub)
        u->type = "markupsafe.Markup object";
    else if (object.kind == V_MACRO)
        u->type = "jinja2.runtime.Macro object";
    else if (object.kind != V_ABSENT) {
        struct wr_tpl_buf b = {0};
        if (!wr_tpl_puts(r, &b, wr_tpl_type(object)) || !wr_tpl_put(r, &b, " object", sizeof " object")) return false;
        u->type = b.p;
    }
    u->name = name;
    *out = (value){.kind = V_UNDEF, .u.undef = u};
    return true;
}

bool wr_tpl_undefined_hint(run *r, const char *hint, value *out)
{
    struct wr_tpl_undef *u = wr_tpl_take(r, 1, sizeof *u);
    if (!u) return false;
    u->hint = hint;
    *out = (value){.kind = V_UNDEF, .u.undef = u};
    return true;
}

bool wr_tpl_fail_undefined(run *r, value v)
{
    const struct wr_tpl_undef *u = v.u.undef;
    struct wr_tpl_buf b = {0};
    if (u->hint) return wr_tpl_fail(r, "%s", u->hint);
    if (!wr_tpl_put_repr(r, &b, u->name)) return false;
    if (!u->type) return wr_tpl_fail(r, "%.*s is undefined", (int)b.n, b.p);
    if (u->name.kind != V_STR) return wr_tpl_fail(r, "%s has no element %.*s", u->type, (int)b.n, b.p);
    return wr_tpl_fail(r, "'%s' has no attribute %.*s", u->type, (int)b.n, b.p);
}

bool wr_tpl_truth(value v)
{
    switch (v.kind) {
    case V_UNDEF:
    case V_NONE:
        return false;
    case V_BOOL:
    case V_INT:
        return v.u.i != 0;
    case V_FLOAT:
        return v.u.f != 0;
    case V_STR:
    case V_LIST:
    case V_DICT:
        return v.n > 0;
    default:
        return true;
    }
}

/* ---- numbers as text, in any locale ---- */

bool wr_tpl_parse_float(struct wr_tpl_str s, double *out)
{
    /* Written for strtod as an integer with an exponent, so that the locale's decimal point does not matter. */
    char text[440];
    size_t k = 0;
    long exponent = 0;
    bool point = false;
    uint32_t i = 0;
    for (; i < s.n && s.s[i] != 'e' && s.s[i] != 'E'; i++) {
        if (s.s[i] == '.') point = true;
        if (s.s[i] == '.' || s.s[i] == '_') continue;
        if (k == 400) return false;
        text[k++] = s.s[i];
        exponent -= point;
    }
    if (i < s.n) {
        long e = 0;
        bool minus = i + 1 < s.n && s.s[i + 1] == '-';
        for (i++; i < s.n; i++)
            if (s.s[i] >= '0' && s.s[i] <= '9' && e < 1000000) e = e * 10 + (s.s[i] - '0');
        exponent += minus ? -e : e;
    }
    snprintf(text + k, sizeof text - k, "e%ld", exponent);
    *out = strtod(text, NULL);
    return true;
}

void wr_tpl_format_float(double f, char out[40])
{
    if (f != f) {
        memcpy(out, "nan", 4);
        return;
    }
    if (f > DBL_MAX || f < -DBL_MAX) {
        snprintf(out, 8, f > 0 ? "inf" : "-inf");
        return;
    }
    char digits[32];
    int n = 0, exponent = 0;
    for (int precision = 0; precision < 17; precision++) { /* the fewest digits that give the number back */
        char e[40];
        double back = 0;
        snprintf(e, sizeof e, "%.*e", precision, __builtin_fabs(f));
        char *mark = strchr(e, 'e');
        exponent = (int)strtol(mark + 1, NULL, 10);
        n = 0;
        for (char *c = e; c < mark; c++)
            if (*c >= '0' && *c <= '9') digits[n++] = *c;
        digits[n] = 0;
        snprintf(e, sizeof e, "%se%d", digits, exponent - precision);
        back = strtod(e, NULL);
        if (back == __builtin_fabs(f)) break;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    char *p = out;
    if (__builtin_signbit(f)) *p++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *p++ = digits[0];
        if (n > 1) *p++ = '.';
        for (int i = 1; i < n; i++) *p++ = digits[i];
        snprintf(p, 14, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        *p++ = '0';
        *p++ = '.';
        for (int i = -1; i > exponent; i--) *p++ = '0';
        for (int i = 0; i < n; i++) *p++ = digits[i];
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) *p++ = '.';
            *p++ = i < n ? digits[i] : '0';
        }
        if (n <= exponent + 1) {
            *p++ = '.';
            *p++ = '0';
        }
    }
    *p = 0;
}

/* ---- str and repr ---- */

static bool put_list(run *r, struct wr_tpl_buf *b, value v)
{
    static const char *const open[] = {"[", "(", "(", "range(", "dict_keys([", "dict_values([", "dict_items(["};
    static const char *const close[] = {"]", ")", ")", ")", "])", "])", "])"};
    const value *items = v.u.items;
    uint32_t n = v.n;
    if (v.sub == SEQ_RANGE) {
        items -= 3;
        n = items[2].u.i == 1 ? 2 : 3;
    }
    if (!wr_tpl_puts(r, b, open[v.sub])) return false;
    for (uint32_t i = 0; i < n; i++)
        if ((i && !wr_tpl_put(r, b, ", ", 2)) || !wr_tpl_put_repr(r, b, items[i])) return false;
    bool one = (v.sub == SEQ_TUPLE || v.sub == SEQ_GROUP) && n == 1;
    return (!one || wr_tpl_put(r, b, ",", 1)) && wr_tpl_puts(r, b, close[v.sub]);
}

static bool put_dict(run *r, struct wr_tpl_buf *b, value v)
{
    if (!wr_tpl_put(r, b, "{", 1)) return false;
    for (uint32_t i = 0; i < v.n; i++) {
        if (i && !wr_tpl_put(r, b, ", ", 2)) return false;
        if (!wr_tpl_put_repr(r, b, v.u.pairs[i].key) || !wr_tpl_put(r, b, ": ", 2) || !wr_tpl_put_repr(r, b, v.u.pairs[i].value)) return false;
    }
    return wr_tpl_put(r, b, "}", 1);
}

static bool put_namespace(run *r, struct wr_tpl_buf *b, value v)
{
    if (!wr_tpl_puts(r, b, "<Namespace {")) return false;
    for (const struct wr_tpl_binding *x = v.u.names->first; x; x = x->next) {
        if (x != v.u.names->first && !wr_tpl_put(r, b, ", ", 2)) return false;
        if (!wr_tpl_put_repr_str(r, b, x->name) || !wr_tpl_put(r, b, ": ", 2) || !wr_tpl_put_repr(r, b, x->value)) return false;
    }
    return wr_tpl_put(r, b, "}>", 2);
}

bool wr_tpl_put_repr(run *r, struct wr_tpl_buf *b, value v)
{
    char text[64];
    bool ok = true;
    if (!wr_tpl_enter(r)) return false;
    switch (v.kind) {
    case V_UNDEF:
        ok = wr_tpl_puts(r, b, "Undefined");
        break;
    case V_STR:
        ok = !v.sub || wr_tpl_puts(r, b, "Markup(");
        ok = ok && wr_tpl_put_repr_str(r, b, wr_tpl_str_of(v)) && (!v.sub || wr_tpl_put(r, b, ")", 1));
        break;
    case V_NONE:
        ok = wr_tpl_puts(r, b, "None");
        break;
    case V_BOOL:
        ok = wr_tpl_puts(r, b, v.u.i ? "True" : "False");
        break;
    case V_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        ok = wr_tpl_puts(r, b, text);
        break;
    case V_FLOAT:
        wr_tpl_format_float(v.u.f, text);
        ok = wr_tpl_puts(r, b, text);
        break;
    case V_LIST:
        ok = put_list(r, b, v);
        break;
    case V_DICT:
        ok = put_dict(r, b, v);
        break;
    case V_NAMESPACE:
        ok = put_namespace(r, b, v);
        break;
    default:
        ok = wr_tpl_fail(r, "a '%s' cannot be printed", wr_tpl_type(v)); /* the reference prints an address */
    }
    r->depth--;
    return ok;
}

bool wr_tpl_put_str(run *r, struct wr_tpl_buf *b, value v)
{
    if (v.kind == V_STR) return wr_tpl_put(r, b, v.u.s, v.n);
    return v.kind == V_UNDEF || wr_tpl_put_repr(r, b, v);
}

bool wr_tpl_to_str(run *r, value *v)
{
    struct wr_tpl_buf b = {0};
    if (v->kind == V_STR) return true;
    if (!wr_tpl_put_str(r, &b, *v)) return false;
    *v = wr_tpl_buf_value(&b);
    return true;
}

/* ---- equality, order ---- */

static bool eq_items(run *r, const value *a, const value *b, uint32_t n, bool *out)
{
    *out = true;
    for (uint32_t i = 0; i < n && *out; i++)
        if (!wr_tpl_eq(r, a[i], b[i], out)) return false;
    return true;
}

static bool eq_dicts(run *r, value a, value b, bool *out)
{
    *out = a.n == b.n;
    for (uint32_t i = 0; i < a.n && *out; i++) {
        const value *other;
        if (!wr_tpl_dict_find(r, b, a.u.pairs[i].key, &other)) return false;
        *out = other != NULL;
        if (other && !wr_tpl_eq(r, a.u.pairs[i].value, *other, out)) return false;
    }
    return true;
}

bool wr_tpl_eq(run *r, value a, value b, bool *out)
{
    bool ok = true;
    if (!wr_tpl_enter(r)) return false;
    if (wr_tpl_is_number(a) && wr_tpl_is_number(b)) {
        if (wr_tpl_is_int(a) && wr_tpl_is_int(b))
            *out = a.u.i == b.u.i;
        else
            *out = wr_tpl_double(a) == wr_tpl_double(b);
    } else if (a.kind != b.kind) {
        *out = false;
    } else {
        switch (a.kind) {
        case V_UNDEF:
        case V_NONE:
            *out = true;
            break;
        case V_STR:
            *out = a.n == b.n && memcmp(a.u.s, b.u.s, a.n) == 0;
            ok = !*out || wr_tpl_steps(r, a.n / 64);
            break;
        case V_LIST: {
            bool tuples = (a.sub == SEQ_TUPLE || a.sub == SEQ_GROUP) && (b.sub == SEQ_TUPLE || b.sub == SEQ_GROUP);
            *out = a.n == b.n && (a.sub == b.sub || tuples) && a.sub != SEQ_VALUES;
            if (a.u.items == b.u.items && a.n == b.n && a.sub == b.sub) break; /* the same object, NaN and all */
            if (*out && (a.sub == SEQ_KEYS || a.sub == SEQ_ITEMS)) {           /* sets */
                for (uint32_t i = 0; ok && *out && i < a.n; i++) ok = wr_tpl_in(r, a.u.items[i], b, out);
            } else if (*out) {
                ok = eq_items(r, a.u.items, b.u.items, a.n, out);
            }
            break;
        }
        case V_DICT:
            ok = eq_dicts(r, a, b, out);
            break;
        case V_FUNC:
            *out = a.sub == b.sub;
            break;
        default:
            *out = a.u.items == b.u.items; /* the same object */
        }
    }
    r->depth--;
    return ok;
}

bool wr_tpl_lt(run *r, value a, value b, bool *out)
{
    bool ok = true;
    if (!wr_tpl_enter(r)) return false;
    if (a.kind == V_UNDEF) return wr_tpl_fail_undefined(r, a);
    if (b.kind == V_UNDEF) return wr_tpl_fail_undefined(r, b);
    if (wr_tpl_is_number(a) && wr_tpl_is_number(b)) {
        if (wr_tpl_is_int(a) && wr_tpl_is_int(b))
            *out = a.u.i < b.u.i;
        else
            *out = wr_tpl_double(a) < wr_tpl_double(b);
    } else if (a.kind == V_STR && b.kind == V_STR) {
        /* UTF-8 orders as code points do */
        int c = memcmp(a.u.s, b.u.s, a.n < b.n ? a.n : b.n);
        *out = c < 0 || (c == 0 && a.n < b.n);
        ok = wr_tpl_steps(r, (a.n < b.n ? a.n : b.n) / 64);
    } else if (a.kind == V_LIST && b.kind == V_LIST && (a.sub <= SEQ_GROUP) && (b.sub <= SEQ_GROUP) && (a.sub == SEQ_LIST) == (b.sub == SEQ_LIST)) {
        uint32_t n = a.n < b.n ? a.n : b.n;
        bool same = true;
        *out = a.n < b.n;
        for (uint32_t i = 0; ok && same && i < n; i++) {
            ok = wr_tpl_eq(r, a.u.items[i], b.u.items[i], &same);
            if (ok && !same) ok = wr_tpl_lt(r, a.u.items[i], b.u.items[i], out);
        }
    } else {
        return wr_tpl_fail(r, "'%s' and '%s' have no order", wr_tpl_type(a), wr_tpl_type(b));
    }
    r->depth--;
    return ok;
}

bool wr_tpl_in(run *r, value needle, value v, bool *out)
{
    const value *items, *found;
    uint32_t n;
    *out = false;
    if (v.kind == V_STR) {
        if (needle.kind != V_STR) return wr_tpl_fail(r, "'in <string>' needs a string, not '%s'", wr_tpl_type(needle));
        *out = wr_tpl_find(r, wr_tpl_str_of(v), wr_tpl_str_of(needle), false) >= 0;
        return !r->code;
    }
    if (v.kind == V_DICT) {
        if (!wr_tpl_dict_find(r, v, needle, &found)) return false;
        *out = found != NULL;
        return true;
    }
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    for (uint32_t i = 0; i < n && !*out; i++)
        if (!wr_tpl_eq(r, items[i], needle, out)) return false;
    return true;
}

/* ---- containers ---- */

bool wr_tpl_iter_make(run *r, const value *items, uint32_t n, value *out)
{
    struct wr_tpl_iter *iter = wr_tpl_take(r, 1, sizeof *iter);
    if (!iter) return false;
    *iter = (struct wr_tpl_iter){items, n, 0};
    *out = (value){.kind = V_ITER, .u.iter = iter};
    return true;
}

bool wr_tpl_items(run *r, value v, const value **items, uint32_t *n)
{
    switch (v.kind) {
    case V_LIST:
        *items = v.u.items;
        *n = v.n;
        return wr_tpl_steps(r, v.n / 8);
    case V_STR:
        return wr_tpl_chars(r, wr_tpl_str_of(v), items, n);
    case V_UNDEF:
        *items = NULL;
        *n = 0;
        return true;
    case V_ITER:
        *items = v.u.iter->n ? v.u.iter->items + v.u.iter->pos : NULL;
        *n = v.u.iter->n - v.u.iter->pos;
        v.u.iter->pos = v.u.iter->n;
        return wr_tpl_steps(r, *n / 8);
    case V_DICT: {
        value *keys = wr_tpl_take(r, v.n, sizeof *keys);
        if (!keys) return false;
        for (uint32_t i = 0; i < v.n; i++) keys[i] = v.u.pairs[i].key;
        *items = keys;
        *n = v.n;
        return true;
    }
    default:
        return wr_tpl_fail(r, "a '%s' is not iterable", wr_tpl_type(v));
    }
}

static bool hashable(run *r, value v)
{
    bool ok = true;
    if (!wr_tpl_enter(r)) return false;
    if (v.kind == V_DICT || (v.kind == V_LIST && v.sub != SEQ_TUPLE && v.sub != SEQ_GROUP && v.sub != SEQ_RANGE))
        return wr_tpl_fail(r, "unhashable type: '%s'", wr_tpl_type(v));
    for (uint32_t i = 0; ok && v.kind == V_LIST && v.sub != SEQ_RANGE && i < v.n; i++) ok = hashable(r, v.u.items[i]);
    r->depth--;
    return ok;
}

bool wr_tpl_dict_find(run *r, value dict, value key, const value **out)
{
    *out = NULL;
    if (!wr_tpl_steps(r, dict.n / 8)) return false;
    if (key.kind == V_STR) { /* by far the most */
        for (uint32_t i = 0; i < dict.n && !*out; i++) {
            const value *k = &dict.u.pairs[i].key;
            if (k->kind == V_STR && k->n == key.n && memcmp(k->u.s, key.u.s, key.n) == 0) *out = &dict.u.pairs[i].value;
        }
        return true;
    }
    if (!hashable(r, key)) return false;
    for (uint32_t i = 0; i < dict.n && !*out; i++) {
        bool same;
        if (!wr_tpl_eq(r, dict.u.pairs[i].key, key, &same)) return false;
        if (same) *out = &dict.u.pairs[i].value;
    }
    return true;
}

bool wr_tpl_dict_put(run *r, struct wr_tpl_pair *pairs, uint32_t *n, value key, value v)
{
    const value *old;
    if (!hashable(r, key) || !wr_tpl_dict_find(r, (value){.kind = V_DICT, .n = *n, .u.pairs = pairs}, key, &old)) return false;
    if (old)
        *(value *)old = v; /* `pairs` is the caller's, still in the making */
    else
        pairs[(*n)++] = (struct wr_tpl_pair){key, v};
    return true;
}

/* ---- slices ---- */

/* Python's rule for one end of a slice. */
static int64_t clamp(int64_t i, int64_t n, int64_t step)
{
    if (i < 0) i = i < -n ? -1 : i + n;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    return i < low ? low : i > high ? high : i;
}

bool wr_tpl_slice(run *r, value v, const value bounds[3], value *out)
{
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (v.kind != V_STR && (v.kind != V_LIST || v.sub >= SEQ_KEYS)) return wr_tpl_fail(r, "a '%s' cannot be sliced", wr_tpl_type(v));
    for (int i = 0; i < 3; i++) {
        if (bounds[i].kind == V_UNDEF) return wr_tpl_fail_undefined(r, bounds[i]);
        if (bounds[i].kind != V_ABSENT && bounds[i].kind != V_NONE && !wr_tpl_is_int(bounds[i]))
            return wr_tpl_fail(r, "slice indices must be integers or none, not '%s'", wr_tpl_type(bounds[i]));
    }
    int64_t n = v.kind == V_STR ? wr_tpl_count_chars(wr_tpl_str_of(v)) : v.n, step = wr_tpl_is_int(bounds[2]) ? bounds[2].u.i : 1;
    if (step == 0) return wr_tpl_fail(r, "a slice step cannot be zero");
    if (step == INT64_MIN) step++;
    int64_t from = wr_tpl_is_int(bounds[0]) ? clamp(bounds[0].u.i, n, step) : step < 0 ? n - 1 : 0;
    int64_t to = wr_tpl_is_int(bounds[1]) ? clamp(bounds[1].u.i, n, step) : step < 0 ? -1 : n;
    int64_t count = step > 0 ? (to > from ? (to - from - 1) / step + 1 : 0) : (from > to ? (from - to - 1) / -step + 1 : 0);
    if (!wr_tpl_steps(r, (uint64_t)count / 8 + v.n / 64)) return false;
    if (v.kind == V_STR) {
        struct wr_tpl_str s = wr_tpl_str_of(v);
        if (step == 1) {
            uint32_t a = wr_tpl_skip_chars(s, (uint32_t)from), b = wr_tpl_skip_chars((struct wr_tpl_str){s.s + a, s.n - a}, (uint32_t)count);
            *out = wr_tpl_text(s.s + a, b);
            out->sub = v.sub;
            return true;
        }
        const value *chars;
        uint32_t n_chars;
        struct wr_tpl_buf b = {0};
        if (!wr_tpl_chars(r, s, &chars, &n_chars)) return false;
        for (int64_t i = 0; i < count; i++)
            if (!wr_tpl_put(r, &b, chars[from + i * step].u.s, chars[from + i * step].n)) return false;
        *out = wr_tpl_buf_value(&b);
        out->sub = v.sub;
        return true;
    }
    bool range = v.sub == SEQ_RANGE;
    value *items = wr_tpl_take(r, (size_t)count + 3, sizeof *items);
    if (!items) return false;
    if (range) {
        int64_t first = v.u.items[-3].u.i, by = v.u.items[-1].u.i, a, b;
        if (__builtin_mul_overflow(from, by, &a) || __builtin_add_overflow(first, a, &a) || __builtin_mul_overflow(to, by, &b) ||
            __builtin_add_overflow(first, b, &b) || __builtin_mul_overflow(by, step, &items[2].u.i))
            return wr_tpl_fail(r, "an integer beyond 64 bits is not supported");
        items[0] = wr_tpl_int(a);
        items[1] = wr_tpl_int(b);
        items[2].kind = V_INT;
    }
    items += 3;
    for (int64_t i = 0; i < count; i++) items[i] = v.u.items[from + i * step];
    *out = wr_tpl_seq(range ? SEQ_RANGE : v.sub == SEQ_LIST ? SEQ_LIST : SEQ_TUPLE, items, (uint32_t)count);
    return true;
}
