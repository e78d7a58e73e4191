/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes, subscripts, methods and functions of chat templates. As in the reference, a dot asks for a method first and for
 * a key second (so schema.items is the method even where the dict has such a key), a subscript the other way round; methods
 * that change lists or dicts are barred by its sandbox.
 */
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;
typedef struct wr_tpl_str str;

enum method {
    M_SPLIT,
    M_RSPLIT,
    M_STRIP,
    M_LSTRIP,
    M_RSTRIP,
    M_STARTSWITH,
    M_ENDSWITH,
    M_REPLACE,
    M_UPPER,
    M_LOWER,
    M_TITLE,
    M_CAPITALIZE,
    M_JOIN,
    M_FIND,
    M_RFIND,
    M_STR_INDEX,
    M_STR_COUNT,
    M_FORMAT,
    M_SPLITLINES,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_ISALPHA,
    M_ISDIGIT,
    M_ISALNUM,
    M_ISSPACE,
    M_ISUPPER,
    M_ISLOWER,
    M_GET,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_DICT_COPY,
    M_LIST_COUNT,
    M_LIST_INDEX,
    M_LIST_COPY,
    M_CYCLE,
    M_CHANGED,
    M_BARRED = 100,
    M_UNSUPPORTED
};

enum { FOR_STR = 1, FOR_DICT = 2, FOR_LIST = 4, FOR_TUPLE = 8, FOR_RANGE = 16, FOR_VIEW = 32, FOR_NUMBER = 64, FOR_ITER = 128 };
static const struct {
    const char *name;
    uint8_t types, id;
    const char *args; /* keyword names; a method of Python that takes positions only has names that are no identifiers */
    uint8_t required;
} methods[] = {
    {"split", FOR_STR, M_SPLIT, "sep,maxsplit", 0}, {"rsplit", FOR_STR, M_RSPLIT, "sep,maxsplit", 0}, {"strip", FOR_STR, M_STRIP, "0", 0},
    {"lstrip", FOR_STR, M_LSTRIP, "0", 0}, {"rstrip", FOR_STR, M_RSTRIP, "0", 0}, {"startswith", FOR_STR, M_STARTSWITH, "0", 1},
    {"endswith", FOR_STR, M_ENDSWITH, "0", 1}, {"replace", FOR_STR, M_REPLACE, "0,1,2", 2}, {"upper", FOR_STR, M_UPPER, "", 0},
    {"lower", FOR_STR, M_LOWER, "", 0}, {"title", FOR_STR, M_TITLE, "", 0}, {"capitalize", FOR_STR, M_CAPITALIZE, "", 0}, {"join", FOR_STR, M_JOIN, "0", 1},
    {"find", FOR_STR, M_FIND, "0", 1}, {"rfind", FOR_STR, M_RFIND, "0", 1}, {"index", FOR_STR, M_STR_INDEX, "0", 1}, {"count", FOR_STR, M_STR_COUNT, "0", 1},
    {"format", FOR_STR, M_FORMAT, NULL, 0}, {"splitlines", FOR_STR, M_SPLITLINES, "keepends", 0}, {"removeprefix", FOR_STR, M_REMOVEPREFIX, "0", 1},
    {"removesuffix", FOR_STR, M_REMOVESUFFIX, "0", 1}, {"isalpha", FOR_STR, M_ISALPHA, "", 0}, {"isdigit", FOR_STR, M_ISDIGIT, "", 0},
    {"isalnum", FOR_STR, M_ISALNUM, "", 0}, {"isspace", FOR_STR, M_ISSPACE, "", 0}, {"isupper", FOR_STR, M_ISUPPER, "", 0},
    {"islower", FOR_STR, M_ISLOWER, "", 0}, {"get", FOR_DICT, M_GET, "0,1", 1}, {"items", FOR_DICT, M_ITEMS, "", 0}, {"keys", FOR_DICT, M_KEYS, "", 0},
    {"values", FOR_DICT, M_VALUES, "", 0}, {"copy", FOR_DICT, M_DICT_COPY, "", 0}, {"count", FOR_LIST | FOR_TUPLE | FOR_RANGE, M_LIST_COUNT, "0", 1},
    {"index", FOR_LIST | FOR_TUPLE | FOR_RANGE, M_LIST_INDEX, "0", 1}, {"copy", FOR_LIST, M_LIST_COPY, "", 0},
#define BARRED(name, types)                                                                                                                                    \
    {                                                                                                                                                          \
        name, types, M_BARRED, NULL, 0                                                                                                                         \
    }
    BARRED("append", FOR_LIST), BARRED("clear", FOR_LIST | FOR_DICT), BARRED("extend", FOR_LIST), BARRED("insert", FOR_LIST),
    BARRED("pop", FOR_LIST | FOR_DICT), BARRED("remove", FOR_LIST), BARRED("reverse", FOR_LIST), BARRED("sort", FOR_LIST), BARRED("popitem", FOR_DICT),
    BARRED("setdefault", FOR_DICT), BARRED("update", FOR_DICT),
#undef BARRED
#define LACKS(name, types)                                                                                                                                     \
    {                                                                                                                                                          \
        name, types, M_UNSUPPORTED, NULL, 0                                                                                                                    \
    }
    LACKS("casefold", FOR_STR), LACKS("center", FOR_STR), LACKS("encode", FOR_STR), LACKS("expandtabs", FOR_STR), LACKS("format_map", FOR_STR),
    LACKS("isascii", FOR_STR), LACKS("isdecimal", FOR_STR), LACKS("isidentifier", FOR_STR), LACKS("isnumeric", FOR_STR), LACKS("isprintable", FOR_STR),
    LACKS("istitle", FOR_STR), LACKS("ljust", FOR_STR), LACKS("maketrans", FOR_STR), LACKS("partition", FOR_STR), LACKS("rindex", FOR_STR),
    LACKS("rjust", FOR_STR), LACKS("rpartition", FOR_STR), LACKS("swapcase", FOR_STR), LACKS("translate", FOR_STR), LACKS("zfill", FOR_STR),
    LACKS("close", FOR_ITER), LACKS("send", FOR_ITER), LACKS("throw", FOR_ITER), LACKS("gi_running", FOR_ITER), LACKS("gi_suspended", FOR_ITER),
    LACKS("fromkeys", FOR_DICT), LACKS("isdisjoint", FOR_VIEW), LACKS("mapping", FOR_VIEW), LACKS("start", FOR_RANGE), LACKS("stop", FOR_RANGE),
    LACKS("step", FOR_RANGE), LACKS("as_integer_ratio", FOR_NUMBER), LACKS("bit_count", FOR_NUMBER), LACKS("bit_length", FOR_NUMBER),
    LACKS("conjugate", FOR_NUMBER), LACKS("denominator", FOR_NUMBER), LACKS("from_bytes", FOR_NUMBER), LACKS("fromhex", FOR_NUMBER), LACKS("hex", FOR_NUMBER),
    LACKS("imag", FOR_NUMBER), LACKS("is_integer", FOR_NUMBER), LACKS("numerator", FOR_NUMBER), LACKS("real", FOR_NUMBER), LACKS("to_bytes", FOR_NUMBER),
#undef LACKS
    {"cycle", 0, M_CYCLE, NULL, 0}, {"changed", 0, M_CHANGED, NULL, 0}, /* of loops */
};
#define N_METHODS (int)(sizeof methods / sizeof *methods)

static bool named(str s, const char *name) { return s.n == strlen(name) && memcmp(s.s, name, s.n) == 0; }

static int method_find(str name, uint8_t type)
{
    for (int i = 0; i < N_METHODS; i++)
        if ((methods[i].types & type) && named(name, methods[i].name)) return i;
    return -1;
}

bool wr_tpl_method_unsupported(str name)
{
    bool lacks = false;
    for (int i = 0; i < N_METHODS; i++) {
        if (!named(name, methods[i].name)) continue;
        if (methods[i].id != M_UNSUPPORTED) return false;
        lacks = true;
    }
    return lacks;
}

static uint8_t type_of(value v)
{
    switch (v.kind) {
    case V_STR:
        return FOR_STR;
    case V_DICT:
        return FOR_DICT;
    case V_ITER:
        return FOR_ITER;
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
        return FOR_NUMBER;
    case V_LIST:
        return v.sub == SEQ_LIST ? FOR_LIST : v.sub <= SEQ_GROUP ? FOR_TUPLE : v.sub == SEQ_RANGE ? FOR_RANGE : FOR_VIEW;
    default:
        return 0;
    }
}

static bool make_method(run *r, value self, int i, value *out)
{
    struct wr_tpl_method *m = wr_tpl_take(r, 1, sizeof *m);
    if (!m) return false;
    *m = (struct wr_tpl_method){self, i, methods[i].name};
    *out = (value){.kind = V_METHOD, .u.method = m};
    return true;
}

/* The attribute that Python would find, or V_ABSENT. */
static bool attribute(run *r, value v, str name, value *out)
{
    *out = (value){0};
    if (v.kind == V_NAMESPACE) {
        for (const struct wr_tpl_binding *b = v.u.names->first; b; b = b->next) {
            if (wr_tpl_same(b->name, name)) *out = b->value;
            if (!wr_tpl_steps(r, 1)) return false;
        }
        return true;
    }
    if (v.kind == V_LOOP) {
        int i = named(name, "cycle") ? N_METHODS - 2 : named(name, "changed") ? N_METHODS - 1 : -1;
        return i >= 0 ? make_method(r, v, i, out) : wr_tpl_loop_attr(r, v.u.loop, name, out);
    }
    if (v.kind == V_LIST && v.sub == SEQ_GROUP && (named(name, "grouper") || named(name, "list"))) {
        *out = v.u.items[named(name, "list")];
        return true;
    }
    if (v.kind == V_MACRO || v.kind == V_FUNC || v.kind == V_METHOD)
        return wr_tpl_fail(r, "attribute '%.*s' of a '%s' is not supported", (int)name.n, name.s, wr_tpl_type(v));
    if (name.n > 2 && name.s[0] == '_' && name.s[1] == '_') {
        if (v.kind == V_DICT) return true; /* a key may be called so */
        return wr_tpl_fail(r, "attribute '%.*s' of a '%s' is barred", (int)name.n, name.s, wr_tpl_type(v));
    }
    int i = method_find(name, type_of(v));
    if (i < 0) return true;
    if (methods[i].id == M_UNSUPPORTED) return wr_tpl_fail(r, "'%s' of a '%s' is not supported", methods[i].name, wr_tpl_type(v));
    if (methods[i].id == M_BARRED) {
        struct wr_tpl_buf b = {0};
        if (!wr_tpl_puts(r, &b, "access to attribute '") || !wr_tpl_puts(r, &b, methods[i].name) || !wr_tpl_puts(r, &b, "' of '") ||
            !wr_tpl_puts(r, &b, wr_tpl_type(v)) || !wr_tpl_put(r, &b, "' object is unsafe.", sizeof "' object is unsafe."))
            return false;
        return wr_tpl_undefined_hint(r, b.p, out);
    }
    return make_method(r, v, i, out);
}

bool wr_tpl_getattr(run *r, value v, str name, value *out)
{
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (!attribute(r, v, name, out)) return false;
    if (out->kind == V_ABSENT && v.kind == V_DICT) {
        const value *found;
        if (!wr_tpl_dict_find(r, v, wr_tpl_text(name.s, name.n), &found)) return false;
        if (found) *out = *found;
    }
    return out->kind != V_ABSENT || wr_tpl_undefined(r, v, wr_tpl_text(name.s, name.n), out);
}

bool wr_tpl_getitem(run *r, value v, value key, value *out)
{
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    *out = (value){0};
    if (v.kind == V_DICT) {
        const value *found = NULL;
        bool list = key.kind == V_DICT || (key.kind == V_LIST && key.sub == SEQ_LIST); /* unhashable: the reference says undefined */
        if (!list && !wr_tpl_dict_find(r, v, key, &found)) return false;
        if (found) *out = *found;
    } else if (wr_tpl_is_int(key) && (v.kind == V_STR || (v.kind == V_LIST && v.sub < SEQ_KEYS))) {
        int64_t n = v.kind == V_STR ? wr_tpl_count_chars(wr_tpl_str_of(v)) : v.n, i = key.u.i < 0 ? key.u.i + n : key.u.i;
        if (!wr_tpl_steps(r, v.kind == V_STR ? v.n / 64 : 0)) return false;
        if (i >= 0 && i < n && v.kind == V_LIST)
            *out = v.u.items[i];
        else if (i >= 0 && i < n) {
            uint32_t cp, at = wr_tpl_skip_chars(wr_tpl_str_of(v), (uint32_t)i);
            *out = wr_tpl_text(v.u.s + at, wr_tpl_char(v.u.s + at, v.n - at, &cp));
            out->sub = v.sub;
        }
    }
    if (out->kind == V_ABSENT && key.kind == V_STR && !attribute(r, v, wr_tpl_str_of(key), out)) return false;
    return out->kind != V_ABSENT || wr_tpl_undefined(r, v, key, out);
}

/* ---- arguments ---- */

bool wr_tpl_bind(run *r, const char *what, const char *names, uint32_t required, const struct wr_tpl_call *call, value args[WR_TPL_MAX_ARGS])
{
    str list[WR_TPL_MAX_ARGS];
    uint32_t n = 0;
    for (const char *p = names; *p;) {
        const char *end = strchr(p, ',');
        size_t k = end ? (size_t)(end - p) : strlen(p);
        list[n++] = (str){p, (uint32_t)k};
        p += k + (end != NULL);
    }
    memset(args, 0, WR_TPL_MAX_ARGS * sizeof *args);
    if (call->n_pos > n) return wr_tpl_fail(r, "%s takes %u arguments at most, %u given", what, n, call->n_pos);
    for (uint32_t i = 0; i < call->n_pos; i++) args[i] = call->pos[i];
    for (uint32_t k = 0; k < call->n_kw; k++) {
        uint32_t i = 0;
        while (i < n && !wr_tpl_same(list[i], call->kw_names[k])) i++;
        if (i == n) return wr_tpl_fail(r, "%s has no argument '%.*s'", what, (int)call->kw_names[k].n, call->kw_names[k].s);
        if (args[i].kind != V_ABSENT) return wr_tpl_fail(r, "%s: argument '%.*s' is given twice", what, (int)list[i].n, list[i].s);
        args[i] = call->kw[k];
    }
    for (uint32_t i = 0; i < required; i++)
        if (args[i].kind == V_ABSENT) return wr_tpl_fail(r, "%s needs %u arguments", what, required);
    return true;
}

static bool want(run *r, const char *what, value v, uint8_t kind)
{
    static const char *const names[] = {[V_STR] = "str", [V_INT] = "int"};
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (v.kind == kind || (kind == V_INT && v.kind == V_BOOL)) return true;
    return wr_tpl_fail(r, "%s needs '%s', not '%s'", what, names[kind], wr_tpl_type(v));
}

/* ---- methods ---- */

static bool call_join(run *r, value sep, value list, value *out)
{
    const value *items;
    uint32_t n;
    struct wr_tpl_buf b = {0};
    if (!wr_tpl_items(r, list, &items, &n)) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].kind != V_STR) return wr_tpl_fail(r, "join: item %u is '%s', not 'str'", i, wr_tpl_type(items[i]));
        if ((i && !wr_tpl_put(r, &b, sep.u.s, sep.n)) || !wr_tpl_put(r, &b, items[i].u.s, items[i].n)) return false;
    }
    *out = wr_tpl_buf_value(&b);
    return true;
}

static bool has_affix(str s, str affix, bool end) { return affix.n <= s.n && memcmp(end ? s.s + s.n - affix.n : s.s, affix.s, affix.n) == 0; }

static bool call_affix(run *r, str s, value affix, bool end, value *out)
{
    const value *options = &affix;
    uint32_t n = 1;
    if (affix.kind == V_LIST && (affix.sub == SEQ_TUPLE || affix.sub == SEQ_GROUP)) {
        options = affix.u.items;
        n = affix.n;
    }
    *out = wr_tpl_bool(false);
    for (uint32_t i = 0; i < n; i++) {
        if (!want(r, end ? "endswith" : "startswith", options[i], V_STR)) return false;
        if (has_affix(s, wr_tpl_str_of(options[i]), end)) out->u.i = 1;
    }
    return wr_tpl_steps(r, n);
}

static bool call_find(run *r, int id, str s, value what, value *out)
{
    if (!want(r, "find", what, V_STR)) return false;
    str w = wr_tpl_str_of(what);
    if (id == M_STR_COUNT) {
        int64_t count = w.n ? 0 : (int64_t)wr_tpl_count_chars(s) + 1;
        while (w.n) {
            int64_t at = wr_tpl_find(r, s, w, false);
            if (at < 0) break;
            s.s += at + w.n;
            s.n -= (uint32_t)at + w.n;
            count++;
            if (!wr_tpl_steps(r, 1)) return false;
        }
        *out = wr_tpl_int(count);
        return !r->code;
    }
    int64_t at = wr_tpl_find(r, s, w, id == M_RFIND);
    if (at < 0 && id == M_STR_INDEX) return wr_tpl_fail(r, "index: substring not found");
    *out = wr_tpl_int(at < 0 ? -1 : (int64_t)wr_tpl_count_chars((str){s.s, (uint32_t)at}));
    return !r->code;
}

static bool call_split(run *r, bool right, str s, const value *args, value *out)
{
    str sep = {0};
    int64_t max = -1;
    bool by = args[0].kind != V_ABSENT && args[0].kind != V_NONE;
    if (by && !want(r, "split", args[0], V_STR)) return false;
    if (by) sep = wr_tpl_str_of(args[0]);
    if (args[1].kind != V_ABSENT) {
        if (!want(r, "split", args[1], V_INT)) return false;
        max = args[1].u.i;
    }
    return wr_tpl_split(r, s, by ? &sep : NULL, max, right, out);
}

static bool call_strip(run *r, int id, value self, value chars, value *out)
{
    str set = {0};
    bool by = chars.kind != V_ABSENT && chars.kind != V_NONE;
    if (by && !want(r, "strip", chars, V_STR)) return false;
    if (by) set = wr_tpl_str_of(chars);
    if (!wr_tpl_steps(r, ((uint64_t)set.n + 1) * self.n / 64)) return false;
    str s = wr_tpl_strip(wr_tpl_str_of(self), by ? &set : NULL, id != M_RSTRIP, id != M_LSTRIP);
    *out = wr_tpl_text(s.s, s.n);
    out->sub = self.sub;
    return true;
}

static bool call_str(run *r, int id, value self, const value *a, value *out)
{
    static const enum wr_tpl_case cases[] = {CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE};
    struct wr_tpl_buf b = {0};
    str s = wr_tpl_str_of(self), affix;
    switch (id) {
    case M_SPLIT:
    case M_RSPLIT:
        return call_split(r, id == M_RSPLIT, s, a, out);
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP:
        return call_strip(r, id, self, a[0], out);
    case M_STARTSWITH:
    case M_ENDSWITH:
        return call_affix(r, s, a[0], id == M_ENDSWITH, out);
    case M_REPLACE:
        if (!want(r, "replace", a[0], V_STR) || !want(r, "replace", a[1], V_STR) || (a[2].kind != V_ABSENT && !want(r, "replace", a[2], V_INT))) return false;
        return wr_tpl_replace(r, s, wr_tpl_str_of(a[0]), wr_tpl_str_of(a[1]), a[2].kind == V_ABSENT ? -1 : a[2].u.i, out);
    case M_UPPER:
    case M_LOWER:
    case M_TITLE:
    case M_CAPITALIZE:
        if (!wr_tpl_put_case(r, &b, s, cases[id - M_UPPER])) return false;
        *out = wr_tpl_buf_value(&b);
        out->sub = self.sub;
        return true;
    case M_JOIN:
        return call_join(r, self, a[0], out);
    case M_FIND:
    case M_RFIND:
    case M_STR_INDEX:
    case M_STR_COUNT:
        return call_find(r, id, s, a[0], out);
    case M_SPLITLINES:
        return wr_tpl_split_lines(r, s, a[0].kind != V_ABSENT && wr_tpl_truth(a[0]), out);
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX:
        if (!want(r, "removeprefix", a[0], V_STR)) return false;
        affix = wr_tpl_str_of(a[0]);
        if (has_affix(s, affix, id == M_REMOVESUFFIX)) {
            s.n -= affix.n;
            s.s += id == M_REMOVEPREFIX ? affix.n : 0;
        }
        *out = wr_tpl_text(s.s, s.n);
        return true;
    default:
        *out = wr_tpl_bool(wr_tpl_is_class(s, (enum wr_tpl_class)(CLASS_ALPHA + id - M_ISALPHA)));
        return wr_tpl_steps(r, s.n / 16);
    }
}

static bool call_dict(run *r, int id, value self, const value *a, value *out)
{
    if (id == M_DICT_COPY) {
        *out = self;
        return true;
    }
    if (id == M_GET) {
        const value *found;
        if (!wr_tpl_dict_find(r, self, a[0], &found)) return false;
        *out = found ? *found : a[1].kind == V_ABSENT ? wr_tpl_none() : a[1];
        return true;
    }
    value *items = wr_tpl_take(r, self.n, sizeof *items);
    value *pairs = id == M_ITEMS ? wr_tpl_take(r, (size_t)self.n * 2, sizeof *pairs) : NULL;
    if (!items || (id == M_ITEMS && !pairs)) return false;
    for (uint32_t i = 0; i < self.n; i++) {
        const struct wr_tpl_pair *p = &self.u.pairs[i];
        if (pairs) {
            pairs[2 * i] = p->key;
            pairs[2 * i + 1] = p->value;
            items[i] = wr_tpl_seq(SEQ_TUPLE, pairs + 2 * i, 2);
        } else {
            items[i] = id == M_KEYS ? p->key : p->value;
        }
    }
    *out = wr_tpl_seq(id == M_ITEMS ? SEQ_ITEMS : id == M_KEYS ? SEQ_KEYS : SEQ_VALUES, items, self.n);
    return true;
}

static bool call_list(run *r, int id, value self, const value *a, value *out)
{
    int64_t count = 0;
    *out = self;
    if (id == M_LIST_COPY) return true;
    for (uint32_t i = 0; i < self.n; i++) {
        bool same;
        if (!wr_tpl_eq(r, self.u.items[i], a[0], &same)) return false;
        if (same && id == M_LIST_INDEX) {
            *out = wr_tpl_int(i);
            return true;
        }
        count += same;
    }
    *out = wr_tpl_int(count);
    return id == M_LIST_COUNT || wr_tpl_fail(r, "index: the value is not in the list");
}

static bool call_loop(run *r, int id, struct wr_tpl_loop *loop, const struct wr_tpl_call *call, value *out)
{
    if (call->n_kw) return wr_tpl_fail(r, "loop.%s takes no keyword arguments", id == M_CYCLE ? "cycle" : "changed");
    if (id == M_CYCLE) {
        if (!call->n_pos) return wr_tpl_fail(r, "loop.cycle needs arguments");
        *out = call->pos[loop->index0 % call->n_pos];
        return true;
    }
    value now = wr_tpl_seq(SEQ_TUPLE, call->pos, call->n_pos);
    bool same = false;
    if (loop->has_changed && !wr_tpl_eq(r, loop->changed, now, &same)) return false;
    loop->has_changed = true;
    loop->changed = now;
    *out = wr_tpl_bool(!same);
    return true;
}

static bool call_method(run *r, const struct wr_tpl_method *m, const struct wr_tpl_call *call, value *out)
{
    value args[WR_TPL_MAX_ARGS];
    int id = methods[m->id].id;
    if (id == M_CYCLE || id == M_CHANGED) return call_loop(r, id, m->self.u.loop, call, out);
    /* Of escaped text these would give escaped pieces, or escape what they put in. */
    bool cuts = id <= M_RSPLIT || id == M_REPLACE || id == M_JOIN || (id >= M_FORMAT && id <= M_REMOVESUFFIX);
    if (m->self.kind == V_STR && m->self.sub && cuts) return wr_tpl_fail(r, "'%s' of escaped text is not supported", m->name);
    if (id == M_FORMAT) return wr_tpl_format(r, wr_tpl_str_of(m->self), call, out);
    if (!wr_tpl_bind(r, m->name, methods[m->id].args, methods[m->id].required, call, args)) return false;
    if (id < M_GET) return call_str(r, id, m->self, args, out);
    return id <= M_DICT_COPY ? call_dict(r, id, m->self, args, out) : call_list(r, id, m->self, args, out);
}

/* ---- functions ---- */

enum function { F_RAISE, F_STRFTIME, F_NAMESPACE, F_RANGE, F_DICT };
static const char *const functions[] = {"raise_exception", "strftime_now", "namespace", "range", "dict"};

bool wr_tpl_function(str name, value *out)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (!named(name, functions[i])) continue;
        *out = (value){.kind = V_FUNC, .sub = (uint8_t)i};
        return true;
    }
    return false;
}

bool wr_tpl_function_unsupported(str name) { return named(name, "cycler") || named(name, "joiner") || named(name, "lipsum"); }

static bool call_range(run *r, const struct wr_tpl_call *call, value *out)
{
    value a[WR_TPL_MAX_ARGS];
    if (!wr_tpl_bind(r, "range", "0,1,2", 1, call, a)) return false;
    for (int i = 0; i < 3; i++)
        if (a[i].kind != V_ABSENT && !want(r, "range", a[i], V_INT)) return false;
    bool two = a[1].kind != V_ABSENT;
    int64_t from = two ? a[0].u.i : 0, to = two ? a[1].u.i : a[0].u.i, step = a[2].kind == V_ABSENT ? 1 : a[2].u.i;
    if (step == 0) return wr_tpl_fail(r, "range: the step is zero");
    uint64_t span = step > 0 ? (from < to ? (uint64_t)to - (uint64_t)from : 0) : (from > to ? (uint64_t)from - (uint64_t)to : 0);
    uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span ? (span - 1) / by + 1 : 0;
    if (n > WR_TPL_MAX_RANGE) return wr_tpl_fail(r, "range: more than %d items", WR_TPL_MAX_RANGE);
    value *items = wr_tpl_take(r, (size_t)n + 3, sizeof *items);
    if (!items) return false;
    items[0] = wr_tpl_int(from);
    items[1] = wr_tpl_int(to);
    items[2] = wr_tpl_int(step);
    for (uint64_t i = 0; i < n; i++) items[3 + i] = wr_tpl_int((int64_t)((uint64_t)from + i * (uint64_t)step));
    *out = wr_tpl_seq(SEQ_RANGE, items + 3, (uint32_t)n);
    return true;
}

/* dict(mapping or pairs, key=value ...), also the attributes of namespace(). */
static bool call_dict_function(run *r, const struct wr_tpl_call *call, value *out)
{
    const value *items = NULL;
    uint32_t n = 0, k = 0;
    if (call->n_pos > 1) return wr_tpl_fail(r, "dict takes one argument at most, %u given", call->n_pos);
    value from = call->n_pos ? call->pos[0] : (value){0};
    if (from.kind == V_DICT)
        n = from.n;
    else if (call->n_pos && !wr_tpl_items(r, from, &items, &n))
        return false;
    struct wr_tpl_pair *pairs = wr_tpl_take(r, (size_t)n + call->n_kw, sizeof *pairs);
    if (!pairs) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (from.kind == V_DICT) {
            pairs[k++] = from.u.pairs[i];
            continue;
        }
        const value *pair;
        uint32_t two;
        if (!wr_tpl_items(r, items[i], &pair, &two)) return false;
        if (two != 2) return wr_tpl_fail(r, "dict: item %u is not a pair", i);
        if (!wr_tpl_dict_put(r, pairs, &k, pair[0], pair[1])) return false;
    }
    for (uint32_t i = 0; i < call->n_kw; i++)
        if (!wr_tpl_dict_put(r, pairs, &k, wr_tpl_text(call->kw_names[i].s, call->kw_names[i].n), call->kw[i])) return false;
    *out = (value){.kind = V_DICT, .n = k, .u.pairs = pairs};
    return true;
}

static bool call_namespace(run *r, const struct wr_tpl_call *call, value *out)
{
    value dict;
    struct wr_tpl_scope *names = wr_tpl_take(r, 1, sizeof *names);
    if (!names || !call_dict_function(r, call, &dict)) return false;
    for (uint32_t i = 0; i < dict.n; i++) {
        if (dict.u.pairs[i].key.kind != V_STR) return wr_tpl_fail(r, "namespace: a name is '%s'", wr_tpl_type(dict.u.pairs[i].key));
        if (!wr_tpl_bind_name(r, names, wr_tpl_str_of(dict.u.pairs[i].key), dict.u.pairs[i].value)) return false;
    }
    *out = (value){.kind = V_NAMESPACE, .u.names = names};
    return true;
}

static bool call_function(run *r, int id, const struct wr_tpl_call *call, value *out)
{
    value a[WR_TPL_MAX_ARGS];
    switch (id) {
    case F_RANGE:
        return call_range(r, call, out);
    case F_DICT:
        return call_dict_function(r, call, out);
    case F_NAMESPACE:
        return call_namespace(r, call, out);
    case F_STRFTIME:
        if (!wr_tpl_bind(r, "strftime_now", "format", 1, call, a) || !want(r, "strftime_now", a[0], V_STR)) return false;
        return wr_tpl_strftime(r, wr_tpl_str_of(a[0]), out);
    default:
        if (!wr_tpl_bind(r, "raise_exception", "message", 1, call, a) || !wr_tpl_to_str(r, &a[0])) return false;
        r->code = wr_err(r->err, WEIR_E_TEMPLATE, "%.*s", (int)a[0].n, a[0].u.s);
        return false;
    }
}

bool wr_tpl_invoke(run *r, value callee, const struct wr_tpl_call *call, value *out)
{
    switch (callee.kind) {
    case V_UNDEF:
        return wr_tpl_fail_undefined(r, callee);
    case V_FUNC:
        return call_function(r, callee.sub, call, out);
    case V_METHOD:
        return call_method(r, callee.u.method, call, out);
    case V_MACRO:
        return wr_tpl_macro_call(r, callee.u.macro, call, out);
    case V_LOOP:
        return wr_tpl_fail(r, "a loop without 'recursive' cannot be called");
    default:
        return wr_tpl_fail(r, "a '%s' cannot be called", wr_tpl_type(callee));
    }
}
