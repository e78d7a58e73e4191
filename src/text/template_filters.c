/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filters of chat templates. Where the reference gives a generator, an iterator is given: true, unsized, read once.
 * This file is long because there are forty of them, each a few lines that share the helpers above them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;
typedef struct wr_tpl_str str;

enum filter {
    F_ABS,
    F_BATCH,
    F_CAPITALIZE,
    F_DEFAULT,
    F_DICTSORT,
    F_ESCAPE,
    F_FIRST,
    F_FLOAT,
    F_FORMAT,
    F_GROUPBY,
    F_INDENT,
    F_INT,
    F_ITEMS,
    F_JOIN,
    F_LAST,
    F_LENGTH,
    F_LIST,
    F_LOWER,
    F_MAP,
    F_MAX,
    F_MIN,
    F_REJECT,
    F_REJECTATTR,
    F_REPLACE,
    F_REVERSE,
    F_ROUND,
    F_SAFE,
    F_SELECT,
    F_SELECTATTR,
    F_SORT,
    F_STRING,
    F_SUM,
    F_TITLE,
    F_TOJSON,
    F_TRIM,
    F_UNIQUE,
    F_UPPER
};
static const struct {
    const char *name;
    uint8_t id, required;
    const char *args; /* NULL: as many as there are */
} filters[] = {
    {"abs", F_ABS, 0, ""},
    {"batch", F_BATCH, 1, "linecount,fill_with"},
    {"capitalize", F_CAPITALIZE, 0, ""},
    {"count", F_LENGTH, 0, ""},
    {"d", F_DEFAULT, 0, "default_value,boolean"},
    {"default", F_DEFAULT, 0, "default_value,boolean"},
    {"dictsort", F_DICTSORT, 0, "case_sensitive,by,reverse"},
    {"e", F_ESCAPE, 0, ""},
    {"escape", F_ESCAPE, 0, ""},
    {"first", F_FIRST, 0, ""},
    {"float", F_FLOAT, 0, "default"},
    {"format", F_FORMAT, 0, NULL},
    {"groupby", F_GROUPBY, 1, "attribute,default,case_sensitive"},
    {"indent", F_INDENT, 0, "width,first,blank"},
    {"int", F_INT, 0, "default,base"},
    {"items", F_ITEMS, 0, ""},
    {"join", F_JOIN, 0, "d,attribute"},
    {"last", F_LAST, 0, ""},
    {"length", F_LENGTH, 0, ""},
    {"list", F_LIST, 0, ""},
    {"lower", F_LOWER, 0, ""},
    {"map", F_MAP, 0, NULL},
    {"max", F_MAX, 0, "case_sensitive,attribute"},
    {"min", F_MIN, 0, "case_sensitive,attribute"},
    {"reject", F_REJECT, 0, NULL},
    {"rejectattr", F_REJECTATTR, 0, NULL},
    {"replace", F_REPLACE, 2, "old,new,count"},
    {"reverse", F_REVERSE, 0, ""},
    {"round", F_ROUND, 0, "precision,method"},
    {"safe", F_SAFE, 0, ""},
    {"select", F_SELECT, 0, NULL},
    {"selectattr", F_SELECTATTR, 0, NULL},
    {"sort", F_SORT, 0, "reverse,case_sensitive,attribute"},
    {"string", F_STRING, 0, ""},
    {"sum", F_SUM, 0, "attribute,start"},
    {"title", F_TITLE, 0, ""},
    {"tojson", F_TOJSON, 0, "ensure_ascii,indent,separators,sort_keys"},
    {"trim", F_TRIM, 0, "chars"},
    {"unique", F_UNIQUE, 0, "case_sensitive,attribute"},
    {"upper", F_UPPER, 0, ""},
};

int wr_tpl_filter_find(str name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (name.n == strlen(filters[i].name) && memcmp(name.s, filters[i].name, name.n) == 0) return (int)i;
    return -1;
}

bool wr_tpl_filter_names(int filter, bool *test, uint32_t *arg)
{
    uint8_t id = filters[filter].id;
    *test = id != F_MAP;
    *arg = id == F_SELECTATTR || id == F_REJECTATTR;
    return id == F_MAP || id == F_SELECT || id == F_REJECT || *arg;
}

static bool given(value v) { return v.kind != V_ABSENT && v.kind != V_NONE; }
static bool is_true(value v) { return v.kind != V_ABSENT && wr_tpl_truth(v); }

/* ---- attributes of items ---- */

/* item.a.b.0 for "a.b.0"; a number or nothing works too. `otherwise`, if given, replaces what is undefined on the way. */
static bool dig(run *r, value item, value path, value otherwise, value *out)
{
    *out = item;
    if (!given(path)) return true;
    if (path.kind != V_STR) {
        if (!wr_tpl_getitem(r, item, path, out)) return false;
        if (given(otherwise) && out->kind == V_UNDEF) *out = otherwise;
        return true;
    }
    for (const char *p = path.u.s, *end = path.u.s + path.n; p <= end;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        str part = {p, (uint32_t)((dot ? dot : end) - p)};
        value key = wr_tpl_text(part.s, part.n);
        if (part.n && part.n < 10 && wr_tpl_is_class(part, CLASS_DIGIT)) {
            key = wr_tpl_int(0);
            for (uint32_t i = 0; i < part.n; i++) key.u.i = key.u.i * 10 + (part.s[i] - '0');
        }
        if (!wr_tpl_getitem(r, *out, key, out)) return false;
        if (given(otherwise) && out->kind == V_UNDEF) *out = otherwise;
        p += part.n + 1;
    }
    return true;
}

static bool fold(run *r, value *v, bool case_sensitive)
{
    struct wr_tpl_buf b = {0};
    if (case_sensitive || v->kind != V_STR) return true;
    if (!wr_tpl_put_case(r, &b, wr_tpl_str_of(*v), CASE_LOWER)) return false;
    *v = wr_tpl_buf_value(&b);
    return true;
}

/* ---- sorting ---- */

struct sortable {
    value key, item;
};

/* Stable, from small pieces to large ones; `reverse` keeps the order of equals, as Python's sorted does. */
static bool merge_sort(run *r, struct sortable *a, uint32_t n, bool reverse)
{
    struct sortable *from = a, *to = wr_tpl_take(r, n, sizeof *to);
    if (!to) return false;
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t start = 0; start < n; start += 2 * width) {
            uint64_t middle = start + width < n ? start + width : n, end = start + 2 * width < n ? start + 2 * width : n, i = start, j = middle;
            for (uint64_t k = start; k < end; k++) {
                bool right = i == middle;
                if (i < middle && j < end && !wr_tpl_lt(r, reverse ? from[i].key : from[j].key, reverse ? from[j].key : from[i].key, &right)) return false;
                to[k] = right ? from[j++] : from[i++];
            }
        }
        struct sortable *swap = from;
        from = to;
        to = swap;
    }
    if (from != a) memcpy(a, from, n * sizeof *a);
    return true;
}

/* Items by a key: `path`, in lower case unless case_sensitive. several: the path may name more attributes, "a,b". */
static bool sort_items(run *r, value v, value path, value otherwise, bool several, bool case_sensitive, bool reverse, struct sortable **out, uint32_t *n)
{
    const value *items;
    if (!wr_tpl_items(r, v, &items, n)) return false;
    struct sortable *s = wr_tpl_take(r, *n, sizeof *s);
    if (!s) return false;
    uint32_t n_paths = 1;
    for (uint32_t i = 0; several && path.kind == V_STR && i < path.n; i++) n_paths += path.u.s[i] == ',';
    for (uint32_t i = 0; i < *n; i++) {
        value *keys = wr_tpl_take(r, n_paths, sizeof *keys);
        if (!keys) return false;
        const char *p = path.kind == V_STR ? path.u.s : NULL;
        for (uint32_t k = 0; k < n_paths; k++) {
            value one = path;
            if (n_paths > 1) {
                const char *comma = k + 1 < n_paths ? memchr(p, ',', path.n) : path.u.s + path.n;
                one = wr_tpl_text(p, (size_t)(comma - p));
                p = comma + 1;
            }
            if (!dig(r, items[i], one, otherwise, &keys[k]) || !fold(r, &keys[k], case_sensitive)) return false;
        }
        s[i] = (struct sortable){several ? wr_tpl_seq(SEQ_LIST, keys, n_paths) : keys[0], items[i]};
    }
    *out = s;
    return merge_sort(r, s, *n, reverse);
}

static bool do_sort(run *r, value v, const value *a, value *out)
{
    struct sortable *s;
    uint32_t n;
    if (!sort_items(r, v, a[2], (value){0}, true, is_true(a[1]), is_true(a[0]), &s, &n)) return false;
    value *items = wr_tpl_take(r, n, sizeof *items);
    if (!items) return false;
    for (uint32_t i = 0; i < n; i++) items[i] = s[i].item;
    *out = wr_tpl_seq(SEQ_LIST, items, n);
    return true;
}

static bool do_groupby(run *r, value v, const value *a, value *out)
{
    struct sortable *s;
    uint32_t n, n_groups = 0;
    bool case_sensitive = is_true(a[2]);
    if (!sort_items(r, v, a[0], a[1], false, case_sensitive, false, &s, &n)) return false;
    value *groups = wr_tpl_take(r, n, sizeof *groups), *items = wr_tpl_take(r, n, sizeof *items);
    if (!groups || !items) return false;
    for (uint32_t i = 0, end; i < n; i = end) {
        bool same = true;
        value *pair = wr_tpl_take(r, 2, sizeof *pair);
        if (!pair) return false;
        for (end = i; end < n && same;) {
            if (!wr_tpl_eq(r, s[i].key, s[end].key, &same)) return false;
            if (!same && end > i) break;
            items[end] = s[end].item; /* the first belongs to itself, even NaN, which equals nothing */
            end++;
        }
        pair[0] = s[i].key;
        if (!case_sensitive && !dig(r, items[i], a[0], a[1], &pair[0])) return false;
        pair[1] = wr_tpl_seq(SEQ_LIST, items + i, end - i);
        groups[n_groups++] = wr_tpl_seq(SEQ_GROUP, pair, 2);
    }
    *out = wr_tpl_seq(SEQ_LIST, groups, n_groups);
    return true;
}

static bool do_dictsort(run *r, value v, const value *a, value *out)
{
    uint32_t by = 0;
    if (given(a[1])) {
        str s = a[1].kind == V_STR ? wr_tpl_str_of(a[1]) : WR_TPL_STR("");
        by = wr_tpl_same(s, WR_TPL_STR("value"));
        if (!by && !wr_tpl_same(s, WR_TPL_STR("key"))) return wr_tpl_fail(r, "dictsort: sorts by \"key\" or \"value\"");
    }
    if (v.kind != V_DICT) return wr_tpl_fail(r, "dictsort needs a dict, not '%s'", wr_tpl_type(v));
    struct sortable *s = wr_tpl_take(r, v.n, sizeof *s);
    value *pairs = wr_tpl_take(r, (size_t)v.n * 2, sizeof *pairs), *items = wr_tpl_take(r, v.n, sizeof *items);
    if (!s || !pairs || !items) return false;
    for (uint32_t i = 0; i < v.n; i++) {
        pairs[2 * i] = v.u.pairs[i].key;
        pairs[2 * i + 1] = v.u.pairs[i].value;
        s[i] = (struct sortable){pairs[2 * i + by], wr_tpl_seq(SEQ_TUPLE, pairs + 2 * i, 2)};
        if (!fold(r, &s[i].key, is_true(a[0]))) return false;
    }
    if (!merge_sort(r, s, v.n, is_true(a[2]))) return false;
    for (uint32_t i = 0; i < v.n; i++) items[i] = s[i].item;
    *out = wr_tpl_seq(SEQ_LIST, items, v.n);
    return true;
}

static bool do_min_max(run *r, value v, bool max, const value *a, value *out)
{
    const value *items;
    uint32_t n;
    value best_key = {0}, key;
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    if (!n) return wr_tpl_undefined_hint(r, "No aggregated item, sequence was empty.", out);
    for (uint32_t i = 0; i < n; i++) {
        bool better = i == 0;
        if (!dig(r, items[i], a[1], (value){0}, &key) || !fold(r, &key, is_true(a[0]))) return false;
        if (i && !wr_tpl_lt(r, max ? best_key : key, max ? key : best_key, &better)) return false;
        if (!better) continue;
        best_key = key;
        *out = items[i];
    }
    return true;
}

static bool do_unique(run *r, value v, const value *a, value *out)
{
    const value *items;
    uint32_t n, k = 0;
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    struct wr_tpl_pair *seen = wr_tpl_take(r, n, sizeof *seen); /* as the keys of a dict */
    value *kept = wr_tpl_take(r, n, sizeof *kept);
    if (!seen || !kept) return false;
    for (uint32_t i = 0; i < n; i++) {
        value key;
        uint32_t before = k;
        if (!dig(r, items[i], a[1], (value){0}, &key) || !fold(r, &key, is_true(a[0])) || !wr_tpl_dict_put(r, seen, &k, key, wr_tpl_none())) return false;
        if (k > before) kept[before] = items[i];
    }
    return wr_tpl_iter_make(r, kept, k, out);
}

/* ---- filters over filters and tests ---- */

static bool do_map(run *r, value v, const struct wr_tpl_call *call, value *out)
{
    const value *items;
    uint32_t n;
    value a[WR_TPL_MAX_ARGS] = {0};
    int filter = -1;
    struct wr_tpl_call rest = *call;
    if (!wr_tpl_truth(v)) return wr_tpl_iter_make(r, NULL, 0, out);
    if (!call->n_pos) {
        if (!wr_tpl_bind(r, "map", "attribute,default", 1, call, a)) return false;
    } else {
        if (call->pos[0].kind == V_STR) filter = wr_tpl_filter_find(wr_tpl_str_of(call->pos[0]));
        if (filter < 0) return wr_tpl_fail(r, "map: no filter of that name is supported");
        rest.pos++;
        rest.n_pos--;
    }
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    value *mapped = wr_tpl_take(r, n, sizeof *mapped);
    if (!mapped) return false;
    for (uint32_t i = 0; i < n; i++)
        if (filter >= 0 ? !wr_tpl_filter_apply(r, filter, items[i], &rest, &mapped[i]) : !dig(r, items[i], a[0], a[1], &mapped[i])) return false;
    return wr_tpl_iter_make(r, mapped, n, out);
}

static bool do_select(run *r, value v, bool by_attribute, bool keep, const struct wr_tpl_call *call, value *out)
{
    const value *items;
    uint32_t n, k = 0, off = by_attribute;
    struct wr_tpl_call rest = *call;
    int test = -1;
    if (!wr_tpl_truth(v)) return wr_tpl_iter_make(r, NULL, 0, out);
    if (call->n_pos < off) return wr_tpl_fail(r, "the name of the attribute is missing");
    if (call->n_pos > off) {
        value name = call->pos[off];
        if (name.kind == V_STR) test = wr_tpl_test_find(wr_tpl_str_of(name));
        if (test < 0) return wr_tpl_fail(r, "select: no test of that name is supported");
        rest.pos += off + 1;
        rest.n_pos -= off + 1;
    }
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    value *kept = wr_tpl_take(r, n, sizeof *kept);
    if (!kept) return false;
    for (uint32_t i = 0; i < n; i++) {
        value tested = items[i];
        bool yes;
        if (off && !dig(r, items[i], call->pos[0], (value){0}, &tested)) return false;
        if (test < 0)
            yes = wr_tpl_truth(tested);
        else if (!wr_tpl_test_apply(r, test, tested, &rest, &yes))
            return false;
        if (yes == keep) kept[k++] = items[i];
    }
    return wr_tpl_iter_make(r, kept, k, out);
}

/* ---- sequences ---- */

static bool do_length(run *r, value v, value *out)
{
    if (v.kind == V_STR)
        *out = wr_tpl_int(wr_tpl_count_chars(wr_tpl_str_of(v)));
    else if (v.kind == V_LIST || v.kind == V_DICT)
        *out = wr_tpl_int(v.n);
    else if (v.kind == V_UNDEF)
        *out = wr_tpl_int(0);
    else
        return wr_tpl_fail(r, "a '%s' has no length", wr_tpl_type(v));
    return wr_tpl_steps(r, v.kind == V_STR ? v.n / 64 : 0);
}

static bool do_first_last(run *r, value v, bool last, value *out)
{
    const value *items;
    uint32_t n;
    if (v.kind == V_ITER) {
        struct wr_tpl_iter *i = v.u.iter;
        if (last) return wr_tpl_fail(r, "a 'generator' is not reversible");
        if (i->pos < i->n) *out = i->items[i->pos++];
        return i->pos <= i->n && out->kind != V_ABSENT ? true : wr_tpl_undefined_hint(r, "No first item, sequence was empty.", out);
    }
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    if (!n) return wr_tpl_undefined_hint(r, last ? "No last item, sequence was empty." : "No first item, sequence was empty.", out);
    *out = items[last ? n - 1 : 0];
    return true;
}

static bool do_reverse(run *r, value v, value *out)
{
    const value *items;
    uint32_t n;
    if (v.kind == V_STR) {
        value bounds[3] = {{0}, {0}, wr_tpl_int(-1)};
        return wr_tpl_slice(r, v, bounds, out);
    }
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    value *back = wr_tpl_take(r, n, sizeof *back);
    if (!back) return false;
    for (uint32_t i = 0; i < n; i++) back[i] = items[n - 1 - i];
    if (v.kind != V_ITER) return wr_tpl_iter_make(r, back, n, out);
    *out = wr_tpl_seq(SEQ_LIST, back, n);
    return true;
}

static bool do_batch(run *r, value v, const value *a, value *out)
{
    const value *items;
    uint32_t n, k = 0;
    if (!wr_tpl_is_int(a[0]) || a[0].u.i < 1) return wr_tpl_fail(r, "batch needs a number of items");
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    uint32_t size = a[0].u.i < n ? (uint32_t)a[0].u.i : n ? n : 1;
    bool fill = given(a[1]) && n;
    if (fill && a[0].u.i > 100000) return wr_tpl_fail(r, "batch: more than 100000 items to fill");
    if (fill) size = (uint32_t)a[0].u.i;
    value *rows = wr_tpl_take(r, (size_t)n / size + 1, sizeof *rows), *padded = wr_tpl_take(r, (size_t)n + size, sizeof *padded);
    if (!rows || !padded) return false;
    for (uint32_t i = 0; i < n; i++) padded[i] = items[i];
    for (uint32_t i = n; fill && i < n + size; i++) padded[i] = a[1];
    for (uint32_t i = 0; i < n; i += size) rows[k++] = wr_tpl_seq(SEQ_LIST, padded + i, fill || n - i > size ? size : n - i);
    return wr_tpl_iter_make(r, rows, k, out);
}

static bool do_items(run *r, value v, value *out)
{
    if (v.kind == V_UNDEF) return wr_tpl_iter_make(r, NULL, 0, out);
    if (v.kind != V_DICT) return wr_tpl_fail(r, "items needs a dict, not '%s'", wr_tpl_type(v));
    value method;
    const value *items;
    uint32_t n;
    if (!wr_tpl_getattr(r, v, WR_TPL_STR("items"), &method) || !wr_tpl_invoke(r, method, &(struct wr_tpl_call){0}, &method)) return false;
    return wr_tpl_items(r, method, &items, &n) && wr_tpl_iter_make(r, items, n, out);
}

static bool do_join(run *r, value v, const value *a, value *out)
{
    const value *items;
    uint32_t n;
    struct wr_tpl_buf b = {0};
    value sep = a[0].kind == V_ABSENT ? wr_tpl_text("", 0) : a[0], item;
    if (!wr_tpl_to_str(r, &sep) || !wr_tpl_items(r, v, &items, &n)) return false;
    for (uint32_t i = 0; i < n; i++)
        if ((i && !wr_tpl_put(r, &b, sep.u.s, sep.n)) || !dig(r, items[i], a[1], (value){0}, &item) || !wr_tpl_put_str(r, &b, item)) return false;
    *out = wr_tpl_buf_value(&b);
    return true;
}

static bool do_sum(run *r, value v, const value *a, value *out)
{
    const value *items;
    uint32_t n;
    value sum = a[1].kind == V_ABSENT ? wr_tpl_int(0) : a[1], item;
    if (sum.kind == V_STR) return wr_tpl_fail(r, "sum cannot add strings, use join");
    if (!wr_tpl_items(r, v, &items, &n)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!dig(r, items[i], a[0], (value){0}, &item) || !wr_tpl_binary(r, B_ADD, sum, item, &sum)) return false;
    *out = sum;
    return true;
}

/* ---- numbers ---- */

/* Digits of a base, single underscores between them, a prefix 0x where the base is 16 (0o, 0b likewise). */
static bool parse_int(run *r, str s, int64_t base, bool *ok, int64_t *out)
{
    s = wr_tpl_strip(s, NULL, true, true);
    bool minus = s.n && *s.s == '-', after_digit = false;
    int64_t v = 0;
    uint32_t i = s.n && (*s.s == '-' || *s.s == '+');
    char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : 0;
    if (prefix && i + 2 < s.n && s.s[i] == '0' && (s.s[i + 1] | 32) == prefix) i += 2 + (s.s[i + 2] == '_');
    *ok = false;
    for (; i < s.n; i++) {
        char c = s.s[i], low = (char)(c | 32);
        int d = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
        if (c == '_' && after_digit) {
            after_digit = false;
            continue;
        }
        if ((uint8_t)c >= 0x80) return wr_tpl_fail(r, "int: digits outside ASCII are not supported");
        if (d >= base) return true;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v)) return wr_tpl_fail(r, "an integer beyond 64 bits is not supported");
        after_digit = true;
    }
    if (!after_digit) return true;
    if (!minus && __builtin_sub_overflow(0, v, &v)) return wr_tpl_fail(r, "an integer beyond 64 bits is not supported");
    *out = v;
    *ok = true;
    return true;
}

/* What float() takes: digits, a point, an exponent, inf, nan. */
static bool parse_float(run *r, str s, bool *ok, double *out)
{
    s = wr_tpl_strip(s, NULL, true, true);
    bool minus = s.n && *s.s == '-', digit = false, any = false, point = false, mark = false;
    uint32_t sign = s.n && (*s.s == '-' || *s.s == '+');
    str body = {s.s + sign, s.n - sign};
    *ok = false;
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t w = 0; w < 3; w++) {
        bool same = body.n == strlen(words[w]);
        for (uint32_t i = 0; same && i < body.n; i++) same = (body.s[i] | 32) == words[w][i];
        if (!same) continue;
        *ok = true;
        *out = w == 2 ? (double)NAN : minus ? -(double)INFINITY : (double)INFINITY;
        return true;
    }
    for (uint32_t i = 0; i < body.n; i++) {
        char c = body.s[i];
        bool next_digit = i + 1 < body.n && body.s[i + 1] >= '0' && body.s[i + 1] <= '9';
        if ((uint8_t)c >= 0x80) return wr_tpl_fail(r, "float: characters outside ASCII are not supported");
        if (c >= '0' && c <= '9') {
            digit = any = true;
            continue;
        }
        if (c == '_' && digit && next_digit) {
            digit = false;
            continue;
        }
        if (c == '.' && !point && !mark)
            point = true;
        else if ((c == 'e' || c == 'E') && any && !mark) {
            mark = true;
            any = false;
            if (i + 1 < body.n && (body.s[i + 1] == '+' || body.s[i + 1] == '-')) i++;
        } else
            return true;
        digit = false;
    }
    if (!any) return true;
    if (!wr_tpl_parse_float(body, out)) return wr_tpl_fail(r, "a number of more than 400 digits is not supported");
    if (minus) *out = -*out;
    *ok = true;
    return true;
}

static bool float_to_int(run *r, double f, value *out)
{
    if (!(fabs(f) < 9.2e18)) return wr_tpl_fail(r, "an integer beyond 64 bits is not supported");
    *out = wr_tpl_int((int64_t)f);
    return true;
}

static bool do_int(run *r, value v, const value *a, value *out)
{
    value otherwise = a[0].kind == V_ABSENT ? wr_tpl_int(0) : a[0];
    int64_t base = wr_tpl_is_int(a[1]) ? a[1].u.i : 10;
    bool ok;
    double f;
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (a[1].kind != V_ABSENT && !wr_tpl_is_int(a[1])) return wr_tpl_fail(r, "int: the base is '%s', not 'int'", wr_tpl_type(a[1]));
    if (base < 2 || base > 36) return wr_tpl_fail(r, "int: base %lld is not supported", (long long)base);
    if (wr_tpl_is_int(v)) {
        *out = wr_tpl_int(v.u.i);
        return true;
    }
    if (v.kind == V_STR) {
        int64_t i = 0;
        if (!parse_int(r, wr_tpl_str_of(v), base, &ok, &i)) return false;
        *out = wr_tpl_int(i);
        if (ok) return true;
        if (!parse_float(r, wr_tpl_str_of(v), &ok, &f)) return false;
    } else {
        ok = v.kind == V_FLOAT;
        f = ok ? v.u.f : 0;
        if (ok && isinf(f)) return wr_tpl_fail(r, "int: infinity is no integer");
    }
    *out = otherwise;
    return !ok || !isfinite(f) || float_to_int(r, f, out);
}

static bool do_float(run *r, value v, const value *a, value *out)
{
    bool ok = wr_tpl_is_number(v);
    double f = ok ? wr_tpl_double(v) : 0;
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (v.kind == V_STR && !parse_float(r, wr_tpl_str_of(v), &ok, &f)) return false;
    *out = ok ? wr_tpl_float(f) : a[0].kind == V_ABSENT ? wr_tpl_float(0) : a[0];
    return true;
}

static bool do_round(run *r, value v, const value *a, value *out)
{
    str method = a[1].kind == V_STR ? wr_tpl_str_of(a[1]) : WR_TPL_STR("common");
    bool up = wr_tpl_same(method, WR_TPL_STR("ceil")), down = wr_tpl_same(method, WR_TPL_STR("floor"));
    int64_t precision = wr_tpl_is_int(a[0]) ? a[0].u.i : 0;
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (a[0].kind != V_ABSENT && !wr_tpl_is_int(a[0])) return wr_tpl_fail(r, "round: the precision is '%s', not 'int'", wr_tpl_type(a[0]));
    if (!up && !down && !wr_tpl_same(method, WR_TPL_STR("common"))) return wr_tpl_fail(r, "round: the method is common, ceil or floor");
    if (!wr_tpl_is_number(v) || precision < 0 || precision > 300)
        return wr_tpl_fail(r, "round of a '%s' to %lld digits is not supported", wr_tpl_type(v), (long long)precision);
    if (!up && !down && wr_tpl_is_int(v)) {
        *out = wr_tpl_int(v.u.i);
        return true;
    }
    double f = wr_tpl_double(v);
    if (up || down) {
        double scale = pow(10, (double)precision), scaled = wr_tpl_is_int(v) && precision == 0 ? f : f * scale;
        if (!isfinite(scaled)) return wr_tpl_fail(r, "round: not a finite number");
        *out = wr_tpl_float((up ? ceil(scaled) : floor(scaled)) / scale);
        return true;
    }
    *out = wr_tpl_float(f);
    if (!isfinite(f) || precision > 22 || fabs(f) > 1e22) return true; /* no digit to lose */
    /* Written out to the digits wanted, rounded to even from the exact binary value, and read back. */
    char text[80];
    str s = {text, (uint32_t)snprintf(text, sizeof text, "%.*f", (int)precision, fabs(f))};
    for (uint32_t i = 0; i < s.n; i++)
        if (text[i] < '0' || text[i] > '9') text[i] = '.';
    wr_tpl_parse_float(s, &out->u.f);
    out->u.f = copysign(out->u.f, f);
    return true;
}

/* ---- text ---- */

/* Words begin after any of these and white space. */
static bool put_title(run *r, struct wr_tpl_buf *b, str s)
{
    bool begin = true;
    for (uint32_t i = 0, cp; i < s.n;) {
        uint32_t at = i;
        i += wr_tpl_char(s.s + i, s.n - i, &cp);
        bool border = wr_tpl_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp));
        uint32_t end = i;
        if (!border && !begin) { /* the rest of the word in one go, since a letter's lower case can depend on its neighbours */
            while (end < s.n) {
                uint32_t k = wr_tpl_char(s.s + end, s.n - end, &cp);
                if (wr_tpl_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp))) break;
                end += k;
            }
        }
        if (border ? !wr_tpl_put(r, b, s.s + at, end - at) : !wr_tpl_put_case(r, b, (str){s.s + at, end - at}, begin ? CASE_UPPER : CASE_LOWER)) return false;
        begin = border;
        i = end;
    }
    return true;
}

static bool do_case(run *r, uint8_t id, value v, value *out)
{
    struct wr_tpl_buf b = {0};
    if (!wr_tpl_to_str(r, &v)) return false;
    str s = wr_tpl_str_of(v);
    enum wr_tpl_case mode = id == F_UPPER ? CASE_UPPER : id == F_LOWER ? CASE_LOWER : CASE_CAPITALIZE;
    if (id == F_TITLE ? !put_title(r, &b, s) : !wr_tpl_put_case(r, &b, s, mode)) return false;
    *out = wr_tpl_buf_value(&b);
    out->sub = id == F_TITLE ? 0 : v.sub;
    return true;
}

static bool do_trim(run *r, value v, value chars, value *out)
{
    if (!wr_tpl_to_str(r, &v)) return false;
    if (given(chars) && chars.kind != V_STR) return wr_tpl_fail(r, "trim: the characters are '%s', not 'str'", wr_tpl_type(chars));
    str set = given(chars) ? wr_tpl_str_of(chars) : (str){0};
    if (!wr_tpl_steps(r, ((uint64_t)set.n + 1) * v.n / 64)) return false;
    str s = wr_tpl_strip(wr_tpl_str_of(v), given(chars) ? &set : NULL, true, true);
    *out = wr_tpl_text(s.s, s.n);
    out->sub = v.sub;
    return true;
}

static bool do_replace(run *r, value v, value *a, value *out)
{
    if (!wr_tpl_to_str(r, &v) || !wr_tpl_to_str(r, &a[0]) || !wr_tpl_to_str(r, &a[1])) return false;
    if (given(a[2]) && !wr_tpl_is_int(a[2])) return wr_tpl_fail(r, "replace: the count is '%s', not 'int'", wr_tpl_type(a[2]));
    return wr_tpl_replace(r, wr_tpl_str_of(v), wr_tpl_str_of(a[0]), wr_tpl_str_of(a[1]), given(a[2]) ? a[2].u.i : -1, out);
}

static bool do_indent(run *r, value v, const value *a, value *out)
{
    value width = a[0].kind == V_ABSENT ? wr_tpl_int(4) : a[0], lines;
    struct wr_tpl_buf b = {0}, text = {0};
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (v.kind != V_STR) return wr_tpl_fail(r, "indent needs 'str', not '%s'", wr_tpl_type(v));
    if (v.sub) return wr_tpl_fail(r, "indent of escaped text is not supported");
    if (width.kind != V_STR && !wr_tpl_binary(r, B_MUL, wr_tpl_text(" ", 1), width, &width)) return false;
    /* The line end added makes a last empty line count, as the reference does. */
    if (!wr_tpl_put(r, &text, v.u.s, v.n) || !wr_tpl_put(r, &text, "\n", 1)) return false;
    if (!wr_tpl_split_lines(r, (str){text.p, (uint32_t)text.n}, false, &lines)) return false;
    for (uint32_t i = 0; i < lines.n; i++) {
        value line = lines.u.items[i];
        bool first = i == 0;
        if (!first && !wr_tpl_put(r, &b, "\n", 1)) return false;
        if ((first ? is_true(a[1]) : line.n || is_true(a[2])) && !wr_tpl_put(r, &b, width.u.s, width.n)) return false;
        if (!wr_tpl_put(r, &b, line.u.s, line.n)) return false;
    }
    *out = wr_tpl_buf_value(&b);
    return true;
}

static bool do_escape(run *r, value v, bool safe, value *out)
{
    struct wr_tpl_buf b = {0};
    if (!wr_tpl_to_str(r, &v)) return false;
    *out = v;
    if (!safe && !v.sub) {
        if (!wr_tpl_put_escaped(r, &b, wr_tpl_str_of(v))) return false;
        *out = wr_tpl_buf_value(&b);
    }
    out->sub = WR_TPL_MARKUP;
    return true;
}

static bool do_abs(run *r, value v, value *out)
{
    if (v.kind == V_FLOAT)
        *out = wr_tpl_float(fabs(v.u.f));
    else if (wr_tpl_is_int(v) && v.u.i != INT64_MIN)
        *out = wr_tpl_int(v.u.i < 0 ? -v.u.i : v.u.i);
    else
        return wr_tpl_fail(r, "abs of a '%s' is not possible", wr_tpl_type(v));
    return true;
}

static bool apply(run *r, int filter, value v, const struct wr_tpl_call *call, value *out)
{
    value a[WR_TPL_MAX_ARGS];
    const value *items;
    uint32_t n;
    uint8_t id = filters[filter].id;
    if (filters[filter].args && !wr_tpl_bind(r, filters[filter].name, filters[filter].args, filters[filter].required, call, a)) return false;
    switch (id) {
    case F_ABS:
        return do_abs(r, v, out);
    case F_BATCH:
        return do_batch(r, v, a, out);
    case F_CAPITALIZE:
    case F_LOWER:
    case F_TITLE:
    case F_UPPER:
        return do_case(r, id, v, out);
    case F_DEFAULT:
        *out = v;
        if (v.kind == V_UNDEF || (is_true(a[1]) && !wr_tpl_truth(v))) *out = a[0].kind == V_ABSENT ? wr_tpl_text("", 0) : a[0];
        return true;
    case F_DICTSORT:
        return do_dictsort(r, v, a, out);
    case F_ESCAPE:
    case F_SAFE:
        return do_escape(r, v, id == F_SAFE, out);
    case F_FIRST:
    case F_LAST:
        return do_first_last(r, v, id == F_LAST, out);
    case F_FLOAT:
        return do_float(r, v, a, out);
    case F_FORMAT:
        if (call->n_kw || v.sub) return wr_tpl_fail(r, "format: %s not supported", call->n_kw ? "keyword arguments are" : "escaped text is");
        return wr_tpl_to_str(r, &v) && wr_tpl_printf(r, wr_tpl_str_of(v), call->pos, call->n_pos, false, out);
    case F_GROUPBY:
        return do_groupby(r, v, a, out);
    case F_INDENT:
        return do_indent(r, v, a, out);
    case F_INT:
        return do_int(r, v, a, out);
    case F_ITEMS:
        return do_items(r, v, out);
    case F_JOIN:
        return do_join(r, v, a, out);
    case F_LENGTH:
        return do_length(r, v, out);
    case F_LIST:
        if (!wr_tpl_items(r, v, &items, &n)) return false;
        *out = wr_tpl_seq(SEQ_LIST, items, n);
        return true;
    case F_MAP:
        return do_map(r, v, call, out);
    case F_MAX:
    case F_MIN:
        return do_min_max(r, v, id == F_MAX, a, out);
    case F_SELECT:
    case F_REJECT:
    case F_SELECTATTR:
    case F_REJECTATTR:
        return do_select(r, v, id == F_SELECTATTR || id == F_REJECTATTR, id == F_SELECT || id == F_SELECTATTR, call, out);
    case F_REPLACE:
        return do_replace(r, v, a, out);
    case F_REVERSE:
        return do_reverse(r, v, out);
    case F_ROUND:
        return do_round(r, v, a, out);
    case F_SORT:
        return do_sort(r, v, a, out);
    case F_STRING:
        *out = v;
        return wr_tpl_to_str(r, out);
    case F_SUM:
        return do_sum(r, v, a, out);
    case F_TOJSON:
        return wr_tpl_tojson(r, v, a, out);
    case F_TRIM:
        return do_trim(r, v, a[0], out);
    default:
        return do_unique(r, v, a, out);
    }
}

bool wr_tpl_filter_apply(run *r, int filter, value v, const struct wr_tpl_call *call, value *out)
{
    value result = {0};
    if (!wr_tpl_enter(r) || !apply(r, filter, v, call, &result)) return false;
    r->depth--;
    *out = result;
    return true;
}
