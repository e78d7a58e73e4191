/* SPDX-License-Identifier: Apache-2.0 */
/* Operators and printers of chat templates: arithmetic, %-formatting, str.format, JSON, dates. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;
typedef struct wr_tpl_str str;

/* ---- arithmetic ---- */

static bool overflow(run *r) { return wr_tpl_fail(r, "an integer beyond 64 bits is not supported"); }

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static bool int_pow(run *r, int64_t base, int64_t exponent, value *out)
{
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return wr_tpl_fail(r, "zero cannot be raised to a negative power");
        *out = wr_tpl_float(pow((double)base, (double)exponent));
        return true;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = wr_tpl_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
        return true;
    }
    for (; exponent > 0; exponent--) /* at most 63 rounds before it overflows */
        if (__builtin_mul_overflow(result, base, &result)) return overflow(r);
    *out = wr_tpl_int(result);
    return true;
}

static bool int_binary(run *r, enum wr_tpl_binary op, int64_t a, int64_t b, value *out)
{
    bool bad = false;
    *out = wr_tpl_int(0);
    switch (op) {
    case B_ADD:
        bad = __builtin_add_overflow(a, b, &out->u.i);
        break;
    case B_SUB:
        bad = __builtin_sub_overflow(a, b, &out->u.i);
        break;
    case B_MUL:
        bad = __builtin_mul_overflow(a, b, &out->u.i);
        break;
    case B_POW:
        return int_pow(r, a, b, out);
    default:
        if (b == 0) return wr_tpl_fail(r, "division by zero");
        if (op == B_DIV) {
            /* Beyond 2^53 the operands are rounded first, which the reference does not do. */
            if (llabs(a / 2) >= (int64_t)1 << 52 || llabs(b / 2) >= (int64_t)1 << 52)
                return wr_tpl_fail(r, "a division of integers beyond 53 bits is not supported");
            *out = wr_tpl_float((double)a / (double)b);
        } else if (b == -1) {
            if (op == B_FLOORDIV) bad = __builtin_sub_overflow(0, a, &out->u.i);
        } else {
            out->u.i = op == B_FLOORDIV ? floor_div(a, b) : a - floor_div(a, b) * b;
        }
    }
    return !bad || overflow(r);
}

static bool float_binary(run *r, enum wr_tpl_binary op, double a, double b, value *out)
{
    double m;
    switch (op) {
    case B_ADD:
        *out = wr_tpl_float(a + b);
        return true;
    case B_SUB:
        *out = wr_tpl_float(a - b);
        return true;
    case B_MUL:
        *out = wr_tpl_float(a * b);
        return true;
    case B_POW:
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b))) return wr_tpl_fail(r, "a power without a real result");
        m = pow(a, b);
        if (isinf(m) && !isinf(a) && !isinf(b)) return wr_tpl_fail(r, "a power too large for a float");
        *out = wr_tpl_float(m);
        return true;
    default:
        break;
    }
    if (b == 0) return wr_tpl_fail(r, "division by zero");
    if (op == B_DIV) {
        *out = wr_tpl_float(a / b);
        return true;
    }
    m = fmod(a, b);
    double q = (a - m) / b;
    if (m != 0) {
        if ((b < 0) != (m < 0)) {
            m += b;
            q -= 1;
        }
    } else {
        m = copysign(0.0, b);
    }
    double whole = q != 0 ? floor(q) : copysign(0.0, a / b);
    if (q != 0 && q - whole > 0.5) whole += 1;
    *out = wr_tpl_float(op == B_MOD ? m : whole);
    return true;
}

/* Plain text that meets markup is escaped. */
static bool concat(run *r, value a, value b, value *out)
{
    struct wr_tpl_buf buf = {0};
    bool markup = a.sub || b.sub;
    for (int i = 0; i < 2; i++) {
        value v = i ? b : a;
        if (markup && !v.sub ? !wr_tpl_put_escaped(r, &buf, wr_tpl_str_of(v)) : !wr_tpl_put(r, &buf, v.u.s, v.n)) return false;
    }
    *out = wr_tpl_buf_value(&buf);
    out->sub = markup;
    return true;
}

static bool repeat(run *r, value v, int64_t times, value *out)
{
    if (times < 0 || v.n == 0) times = 0;
    if (v.kind == V_STR) {
        struct wr_tpl_buf b = {0};
        for (int64_t i = 0; i < times; i++)
            if (!wr_tpl_put(r, &b, v.u.s, v.n) || !wr_tpl_steps(r, 1)) return false;
        *out = wr_tpl_buf_value(&b);
        out->sub = v.sub;
        return true;
    }
    uint64_t n;
    if (!wr_mul_u64((uint64_t)times, v.n, &n) || n > UINT32_MAX) return wr_tpl_fail(r, "a list of too many items");
    value *items = wr_tpl_take(r, (size_t)n, sizeof *items);
    if (!items) return false;
    for (uint64_t i = 0; i < n; i++) items[i] = v.u.items[i % v.n];
    *out = wr_tpl_seq(v.sub == SEQ_LIST ? SEQ_LIST : SEQ_TUPLE, items, (uint32_t)n);
    return true;
}

static bool concat_lists(run *r, value a, value b, value *out)
{
    value *items = wr_tpl_take(r, (size_t)a.n + b.n, sizeof *items);
    if (!items || (uint64_t)a.n + b.n > UINT32_MAX) return false;
    if (a.n) memcpy(items, a.u.items, a.n * sizeof *items);
    if (b.n) memcpy(items + a.n, b.u.items, b.n * sizeof *items);
    *out = wr_tpl_seq(a.sub == SEQ_LIST ? SEQ_LIST : SEQ_TUPLE, items, a.n + b.n);
    return true;
}

bool wr_tpl_binary(run *r, enum wr_tpl_binary op, value a, value b, value *out)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (wr_tpl_is_int(a) && wr_tpl_is_int(b)) return int_binary(r, op, a.u.i, b.u.i, out);
    if (wr_tpl_is_number(a) && wr_tpl_is_number(b)) return float_binary(r, op, wr_tpl_double(a), wr_tpl_double(b), out);
    bool seq_a = a.kind == V_LIST && a.sub <= SEQ_GROUP, seq_b = b.kind == V_LIST && b.sub <= SEQ_GROUP;
    if (op == B_MOD && a.kind == V_STR && !a.sub) {
        if (seq_b && b.sub != SEQ_LIST) return wr_tpl_printf(r, wr_tpl_str_of(a), b.u.items, b.n, false, out);
        /* What could name its values, %(name)s, need not be used up. */
        bool spare = b.kind == V_DICT || b.kind == V_UNDEF || (b.kind == V_LIST && b.sub < SEQ_KEYS);
        return wr_tpl_printf(r, wr_tpl_str_of(a), &b, 1, spare, out);
    }
    if (a.kind == V_UNDEF) return wr_tpl_fail_undefined(r, a);
    if (b.kind == V_UNDEF) return wr_tpl_fail_undefined(r, b);
    if (op == B_ADD && a.kind == V_STR && b.kind == V_STR) return concat(r, a, b, out);
    if (op == B_ADD && seq_a && seq_b && (a.sub == SEQ_LIST) == (b.sub == SEQ_LIST)) return concat_lists(r, a, b, out);
    if (op == B_MUL && (a.kind == V_STR || seq_a) && wr_tpl_is_int(b)) return repeat(r, a, b.u.i, out);
    if (op == B_MUL && (b.kind == V_STR || seq_b) && wr_tpl_is_int(a)) return repeat(r, b, a.u.i, out);
    return wr_tpl_fail(r, "'%s' %s '%s' is not possible", wr_tpl_type(a), names[op], wr_tpl_type(b));
}

/* ---- formatting ---- */

static bool put_padded(run *r, struct wr_tpl_buf *b, str s, const char *flags, int width)
{
    int64_t pad = width - (int64_t)wr_tpl_count_chars(s);
    bool left = strchr(flags, '-'), zero = !left && strchr(flags, '0');
    if (zero && s.n && (*s.s == '-' || *s.s == '+' || *s.s == ' ')) {
        if (!wr_tpl_put(r, b, s.s, 1)) return false;
        s.s++;
        s.n--;
    }
    for (int64_t i = 0; !left && i < pad; i++)
        if (!wr_tpl_put(r, b, zero ? "0" : " ", 1)) return false;
    if (!wr_tpl_put(r, b, s.s, s.n)) return false;
    for (int64_t i = 0; left && i < pad; i++)
        if (!wr_tpl_put(r, b, " ", 1)) return false;
    return true;
}

/* One conversion: text into `piece`. */
static bool convert(run *r, char type, const char *flags, int precision, value v, struct wr_tpl_buf *piece)
{
    char text[400];
    const char *sign = strchr(flags, '+') ? "+" : strchr(flags, ' ') ? " " : "";
    if (type == 's' || type == 'r') {
        if (type == 's' ? !wr_tpl_put_str(r, piece, v) : !wr_tpl_put_repr(r, piece, v)) return false;
        if (precision >= 0 && piece->n) piece->n = wr_tpl_skip_chars((str){piece->p, (uint32_t)piece->n}, (uint32_t)precision);
        return true;
    }
    if (v.kind == V_UNDEF) return wr_tpl_fail_undefined(r, v);
    if (!wr_tpl_is_number(v)) return wr_tpl_fail(r, "format %%%c needs a number, not '%s'", type, wr_tpl_type(v));
    if (type == 'f' || type == 'F') {
        double f = wr_tpl_double(v);
        if (!isfinite(f)) return wr_tpl_fail(r, "format %%%c of a number that is not finite is not supported", type);
        if (precision > 60) return wr_tpl_fail(r, "a precision of more than 60 digits is not supported");
        int n = snprintf(text, sizeof text, "%.*f", precision < 0 ? 6 : precision, fabs(f));
        for (int i = 0; i < n; i++)
            if (text[i] < '0' || text[i] > '9') text[i] = '.'; /* whatever the locale's point is: one byte in all that the C library knows */
        return wr_tpl_puts(r, piece, signbit(f) ? "-" : sign) && wr_tpl_puts(r, piece, text);
    }
    if (precision >= 0) return wr_tpl_fail(r, "a precision in format %%%c is not supported", type);
    int64_t i = v.u.i;
    if (v.kind == V_FLOAT) {
        if (type == 'x' || type == 'X') return wr_tpl_fail(r, "format %%%c needs an integer, not 'float'", type);
        if (!(fabs(v.u.f) < 9.2e18)) return overflow(r);
        i = (int64_t)v.u.f;
    }
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    snprintf(text, sizeof text, type == 'x' ? "%s%" PRIx64 : type == 'X' ? "%s%" PRIX64 : "%s%" PRIu64, i < 0 ? "-" : sign, u);
    return wr_tpl_puts(r, piece, text);
}

static int number_at(str s, uint32_t *i)
{
    int n = 0;
    while (*i < s.n && s.s[*i] >= '0' && s.s[*i] <= '9' && n < 100000) n = n * 10 + (s.s[(*i)++] - '0');
    return n;
}

bool wr_tpl_printf(run *r, str f, const value *args, uint32_t n, bool spare, value *out)
{
    struct wr_tpl_buf b = {0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < f.n;) {
        if (f.s[i] != '%') {
            const char *stop = memchr(f.s + i, '%', f.n - i);
            uint32_t k = stop ? (uint32_t)(stop - f.s) - i : f.n - i;
            if (!wr_tpl_put(r, &b, f.s + i, k)) return false;
            i += k;
            continue;
        }
        char flags[8] = "";
        for (i++; i < f.n && f.s[i] && strchr("-+ 0", f.s[i]); i++)
            if (strlen(flags) < sizeof flags - 1) flags[strlen(flags)] = f.s[i];
        int width = number_at(f, &i), precision = -1;
        if (i < f.n && f.s[i] == '.') {
            i++;
            precision = number_at(f, &i);
        }
        if (i == f.n) return wr_tpl_fail(r, "a format string ends in the middle of a conversion");
        char type = f.s[i++];
        if (type == '%') {
            if (!wr_tpl_put(r, &b, "%", 1)) return false;
            continue;
        }
        if (!type || !strchr("srdiufFxX", type)) return wr_tpl_fail(r, "format '%%%c' is not supported", type);
        if (next == n) return wr_tpl_fail(r, "not enough arguments for the format string");
        if (type == 's' || type == 'r')
            for (char *c = flags; *c; c++)
                if (*c == '0') *c = ' ';
        struct wr_tpl_buf piece = {0};
        if (!convert(r, type, flags, precision, args[next++], &piece)) return false;
        if (!put_padded(r, &b, (str){piece.n ? piece.p : "", (uint32_t)piece.n}, flags, width)) return false;
    }
    if (next < n && !spare) return wr_tpl_fail(r, "not all arguments are used by the format string");
    *out = wr_tpl_buf_value(&b);
    return true;
}

/* str.format with {}, {0} and {name}. */
bool wr_tpl_format(run *r, str f, const struct wr_tpl_call *call, value *out)
{
    struct wr_tpl_buf b = {0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < f.n; i++) {
        char c = f.s[i];
        if ((c == '{' || c == '}') && i + 1 < f.n && f.s[i + 1] == c)
            i++;
        else if (c == '}')
            return wr_tpl_fail(r, "a single '}' in a format string");
        else if (c == '{') {
            uint32_t end = i + 1;
            while (end < f.n && f.s[end] != '}') end++;
            if (end == f.n) return wr_tpl_fail(r, "a single '{' in a format string");
            str name = {f.s + i + 1, end - i - 1};
            const value *v = NULL;
            uint32_t digits = 0, index = (uint32_t)number_at(name, &digits);
            for (uint32_t k = 0; k < name.n; k++)
                if (strchr(".[]:!{", name.s[k])) return wr_tpl_fail(r, "the field '{%.*s}' in a format string is not supported", (int)name.n, name.s);
            if (!name.n) index = next++;
            if (digits == name.n && index < call->n_pos) v = &call->pos[index];
            for (uint32_t k = 0; !v && digits < name.n && k < call->n_kw; k++)
                if (wr_tpl_same(call->kw_names[k], name)) v = &call->kw[k];
            if (!v) return wr_tpl_fail(r, "no argument for the field '{%.*s}' of a format string", (int)name.n, name.s);
            if (!wr_tpl_put_str(r, &b, *v)) return false;
            i = end;
            continue;
        }
        if (!wr_tpl_put(r, &b, &c, 1)) return false;
    }
    *out = wr_tpl_buf_value(&b);
    return wr_tpl_steps(r, f.n / 16);
}

/* ---- JSON ---- */

struct json {
    run *r;
    struct wr_tpl_buf b;
    bool ascii, sort, pretty;
    str indent, item, key;
};

static bool json_text(struct json *j, str s)
{
    run *r = j->r;
    if (!wr_tpl_put(r, &j->b, "\"", 1)) return false;
    for (uint32_t i = 0, cp; i < s.n;) {
        uint32_t k = wr_tpl_char(s.s + i, s.n - i, &cp);
        const char *simple = cp && cp < 0x80 ? strchr("\"\\\n\r\t\b\f", (int)cp) : NULL;
        char out[16];
        if (simple)
            snprintf(out, sizeof out, "\\%c", "\"\\nrtbf"[simple - "\"\\\n\r\t\b\f"]);
        else if (cp < 0x20 || (j->ascii && cp > 0x7E && cp < 0x10000 && cp != 0x7F))
            snprintf(out, sizeof out, "\\u%04x", cp);
        else if (j->ascii && cp >= 0x10000)
            snprintf(out, sizeof out, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
        else {
            if (!wr_tpl_put(r, &j->b, s.s + i, k)) return false;
            i += k;
            continue;
        }
        if (!wr_tpl_puts(r, &j->b, out)) return false;
        i += k;
    }
    return wr_tpl_put(r, &j->b, "\"", 1) && wr_tpl_steps(r, s.n / 16);
}

static bool json_break(struct json *j, uint32_t level)
{
    if (!j->pretty) return true;
    if (!wr_tpl_put(j->r, &j->b, "\n", 1)) return false;
    for (uint32_t i = 0; i < level; i++)
        if (!wr_tpl_put(j->r, &j->b, j->indent.s, j->indent.n)) return false;
    return true;
}

static bool json_scalar(struct json *j, value v, bool key)
{
    char text[64];
    if (v.kind == V_STR) return json_text(j, wr_tpl_str_of(v));
    if (v.kind == V_NONE)
        snprintf(text, sizeof text, "null");
    else if (v.kind == V_BOOL)
        snprintf(text, sizeof text, v.u.i ? "true" : "false");
    else if (v.kind == V_INT)
        snprintf(text, sizeof text, "%" PRId64, v.u.i);
    else if (v.kind == V_FLOAT && isfinite(v.u.f))
        wr_tpl_format_float(v.u.f, text);
    else if (v.kind == V_FLOAT)
        snprintf(text, sizeof text, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
    else
        return wr_tpl_fail(j->r, "tojson: a '%s' cannot be %s of JSON", wr_tpl_type(v), key ? "a key" : "a value");
    return key ? json_text(j, (str){text, (uint32_t)strlen(text)}) : wr_tpl_puts(j->r, &j->b, text);
}

/* Sorted keys are found by selection of the next larger one, so that nothing is copied; steps bound the square. */
static bool next_key(struct json *j, value dict, const struct wr_tpl_pair *last, const struct wr_tpl_pair **out)
{
    const struct wr_tpl_pair *best = NULL;
    for (uint32_t i = 0; i < dict.n; i++) {
        const struct wr_tpl_pair *p = &dict.u.pairs[i];
        bool lower, after = true;
        if (last && !wr_tpl_lt(j->r, last->key, p->key, &after)) return false;
        if (!after) continue;
        if (best) {
            if (!wr_tpl_lt(j->r, p->key, best->key, &lower)) return false;
            if (!lower) continue;
        }
        best = p;
    }
    *out = best;
    return true;
}

static bool json_value(struct json *j, value v, uint32_t level)
{
    run *r = j->r;
    bool dict = v.kind == V_DICT;
    if (!wr_tpl_enter(r)) return false;
    if (!dict && (v.kind != V_LIST || v.sub > SEQ_GROUP)) {
        r->depth--;
        return json_scalar(j, v, false);
    }
    if (!wr_tpl_put(r, &j->b, dict ? "{" : "[", 1)) return false;
    const struct wr_tpl_pair *pair = NULL;
    for (uint32_t i = 0; i < v.n; i++) {
        if ((i && !wr_tpl_put(r, &j->b, j->item.s, j->item.n)) || !json_break(j, level + 1)) return false;
        if (dict) {
            if (!j->sort)
                pair = &v.u.pairs[i];
            else if (!next_key(j, v, pair, &pair))
                return false;
            if (!json_scalar(j, pair->key, true) || !wr_tpl_put(r, &j->b, j->key.s, j->key.n)) return false;
        }
        if (!json_value(j, dict ? pair->value : v.u.items[i], level + 1)) return false;
    }
    if (v.n && !json_break(j, level)) return false;
    if (!wr_tpl_put(r, &j->b, dict ? "}" : "]", 1)) return false;
    r->depth--;
    return true;
}

/* options: ensure_ascii, indent, separators, sort_keys, as json.dumps has them. */
bool wr_tpl_tojson(run *r, value v, const value options[4], value *out)
{
    struct json j = {.r = r,
        .ascii = options[0].kind != V_ABSENT && wr_tpl_truth(options[0]),
        .sort = options[3].kind != V_ABSENT && wr_tpl_truth(options[3]),
        .item = WR_TPL_STR(", "),
        .key = WR_TPL_STR(": ")};
    value indent = options[1], separators = options[2];
    if (indent.kind == V_STR) {
        j.pretty = true;
        j.indent = wr_tpl_str_of(indent);
    } else if (wr_tpl_is_int(indent)) {
        j.pretty = true;
        if (!repeat(r, wr_tpl_text(" ", 1), indent.u.i, &indent)) return false;
        j.indent = wr_tpl_str_of(indent);
    } else if (indent.kind != V_ABSENT && indent.kind != V_NONE) {
        return wr_tpl_fail(r, "tojson: indent is a '%s'", wr_tpl_type(indent));
    }
    if (j.pretty) j.item = WR_TPL_STR(",");
    if (separators.kind == V_LIST && separators.n == 2 && separators.u.items[0].kind == V_STR && separators.u.items[1].kind == V_STR) {
        j.item = wr_tpl_str_of(separators.u.items[0]);
        j.key = wr_tpl_str_of(separators.u.items[1]);
    } else if (separators.kind != V_ABSENT && separators.kind != V_NONE) {
        return wr_tpl_fail(r, "tojson: separators are not two strings");
    }
    if (!json_value(&j, v, 0)) return false;
    *out = wr_tpl_buf_value(&j.b);
    return true;
}

/* ---- dates ---- */

bool wr_tpl_strftime(run *r, str format, value *out)
{
    /* The one place where a rendering asks for the time of day: published templates print the date. A number among the
     * variables under the function's own name (seconds since 1970) fixes the clock. */
    struct timespec now = {0};
    struct tm tm;
    const json_t *fixed = json_object_get(r->vars, "strftime_now");
    if (json_is_number(fixed)) {
        double seconds = json_number_value(fixed);
        if (!(fabs(seconds) < 1e12)) return wr_tpl_fail(r, "strftime_now: the time given is out of range");
        now.tv_sec = (time_t)floor(seconds);
        now.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    } else if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return wr_tpl_fail(r, "strftime_now: the system has no clock");
    }
    if (!localtime_r(&now.tv_sec, &tm)) return wr_tpl_fail(r, "strftime_now: the time given is out of range");
    /* Python's own conversions, and a byte more so that an empty result is not taken for a failure. */
    struct wr_tpl_buf f = {0};
    for (uint32_t i = 0; i < format.n; i++) {
        char c = format.s[i], micro[8] = "", d = c == '%' && i + 1 < format.n ? format.s[i + 1] : 0;
        if (!c) return wr_tpl_fail(r, "strftime_now: a NUL in the format");
        snprintf(micro, sizeof micro, "%06u", (unsigned)(now.tv_nsec / 1000) % 1000000);
        bool own = d == 'f' || d == 'z' || d == 'Z'; /* the reference's time knows no zone */
        i += own || d == '%';
        if (own ? (d == 'f' && !wr_tpl_puts(r, &f, micro)) : d == '%' ? !wr_tpl_put(r, &f, "%%", 2) : !wr_tpl_put(r, &f, &c, 1)) return false;
    }
    if (!wr_tpl_put(r, &f, ".", 2)) return false;
    char text[2048];
    size_t n = strftime(text, sizeof text, f.p, &tm);
    if (!n) return wr_tpl_fail(r, "strftime_now: a date of more than %zu bytes is not supported", sizeof text);
    struct wr_tpl_buf b = {0};
    if (wr_utf8_valid_prefix((const uint8_t *)text, n) != n) return wr_tpl_fail(r, "strftime_now: the date is not valid UTF-8 in this locale");
    if (!wr_tpl_put(r, &b, text, n - 1)) return false;
    *out = wr_tpl_buf_value(&b);
    return true;
}
