/* SPDX-License-Identifier: Apache-2.0 */
/* Strings of chat templates, as Python sees them: characters are code points, case and classes are Unicode's (utf8proc). */
#include <stdio.h>
#include <utf8proc.h>
#include "text/template_priv.h"

typedef struct wr_tpl_value value;
typedef struct wr_tpl_run run;
typedef struct wr_tpl_str str;

uint32_t wr_tpl_char(const char *s, size_t n, uint32_t *cp)
{
    if ((uint8_t)*s < 0x80) {
        *cp = (uint8_t)*s;
        return 1;
    }
    int k = wr_utf8_decode((const uint8_t *)s, n, cp);
    if (k > 0) return (uint32_t)k;
    *cp = 0xFFFD; /* cannot be: all text was checked when it came in */
    return 1;
}

uint32_t wr_tpl_count_chars(str s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s.n; i++) n += ((uint8_t)s.s[i] & 0xC0) != 0x80;
    return n;
}

uint32_t wr_tpl_skip_chars(str s, uint32_t chars)
{
    uint32_t i = 0, cp;
    for (; chars && i < s.n; chars--) i += wr_tpl_char(s.s + i, s.n - i, &cp);
    return i;
}

/* ---- classes ---- */

struct range {
    uint32_t first, last;
};

static bool in_ranges(uint32_t cp, const struct range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cp >= ranges[i].first && cp <= ranges[i].last) return true;
    return false;
}
#define IN_RANGES(cp, ranges) in_ranges((cp), (ranges), sizeof(ranges) / sizeof *(ranges))

static int category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

bool wr_tpl_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

static bool is_lower(uint32_t cp)
{
    static const struct range other_lowercase[] = {{0xAA, 0xAA}, {0xBA, 0xBA}, {0x2B0, 0x2B8}, {0x2C0, 0x2C1}, {0x2E0, 0x2E4}, {0x345, 0x345}, {0x37A, 0x37A},
        {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78}, {0x1D9B, 0x1DBF}, {0x2071, 0x2071}, {0x207F, 0x207F}, {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},
        {0x2C7C, 0x2C7D}, {0xA69C, 0xA69D}, {0xA770, 0xA770}, {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}, {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0},
        {0x107B2, 0x107BA}};
    return category(cp) == UTF8PROC_CATEGORY_LL || (cp > 0x7F && IN_RANGES(cp, other_lowercase));
}

static bool is_upper(uint32_t cp)
{
    static const struct range other_uppercase[] = {{0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp > 0x7F && IN_RANGES(cp, other_uppercase));
}

static bool is_cased(uint32_t cp) { return is_lower(cp) || is_upper(cp) || category(cp) == UTF8PROC_CATEGORY_LT; }

static bool is_case_ignorable(uint32_t cp)
{
    static const struct range in_words[] = {{0x27, 0x27}, {0x2E, 0x2E}, {0x3A, 0x3A}, {0xB7, 0xB7}, {0x387, 0x387}, {0x55F, 0x55F}, {0x5F4, 0x5F4},
        {0x2018, 0x2019}, {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52}, {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E},
        {0xFF1A, 0xFF1A}};
    int c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK ||
           IN_RANGES(cp, in_words);
}

static bool is_digit(uint32_t cp)
{
    static const struct range digits[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0x1369, 0x1371}, {0x19DA, 0x19DA}, {0x2070, 0x2070}, {0x2074, 0x2079}, {0x2080, 0x2089},
        {0x2460, 0x2468}, {0x2474, 0x247C}, {0x2488, 0x2490}, {0x24EA, 0x24EA}, {0x24F5, 0x24FD}, {0x24FF, 0x24FF}, {0x2776, 0x277E}, {0x2780, 0x2788},
        {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
    return category(cp) == UTF8PROC_CATEGORY_ND || (cp > 0x7F && IN_RANGES(cp, digits));
}

bool wr_tpl_is_class(str s, enum wr_tpl_class class)
{
    bool cased = false;
    for (uint32_t i = 0, cp; i < s.n;) {
        i += wr_tpl_char(s.s + i, s.n - i, &cp);
        int c = category(cp);
        bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
        switch (class) {
        case CLASS_ALPHA:
            if (!alpha) return false;
            break;
        case CLASS_DIGIT:
            if (!is_digit(cp)) return false;
            break;
        case CLASS_ALNUM:
            if (!alpha && !(c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO)) return false;
            break;
        case CLASS_SPACE:
            if (!wr_tpl_is_space(cp)) return false;
            break;
        case CLASS_UPPER:
        case CLASS_LOWER:
            if (!is_cased(cp)) break;
            if (class == CLASS_UPPER ? !is_upper(cp) : !is_lower(cp)) return false;
            cased = true;
        }
    }
    return class == CLASS_UPPER || class == CLASS_LOWER ? cased : s.n > 0;
}

/* ---- case ---- */

/* What a character becomes where one is not enough; NULL: one is. */
static const char *special_case(uint32_t cp, bool title)
{
    switch (cp) {
#define SPECIAL_CASE(cp_, upper_, title_)                                                                                                                      \
    case cp_:                                                                                                                                                  \
        return title ? title_ : upper_;
#include "text/special_casing.def"
#undef SPECIAL_CASE
    default:
        return NULL;
    }
}

/* Is the capital sigma at byte i the last letter of its word (Unicode's Final_Sigma)? */
static bool final_sigma(run *r, str s, uint32_t i)
{
    uint32_t cp = 0, k = i, scanned = 0;
    bool cased = false;
    while (k) {
        do k--;
        while (k && ((uint8_t)s.s[k] & 0xC0) == 0x80);
        wr_tpl_char(s.s + k, s.n - k, &cp);
        scanned++;
        if (is_case_ignorable(cp)) continue;
        cased = is_cased(cp);
        break;
    }
    for (k = i + 2; cased && k < s.n;) { /* a capital sigma takes two bytes */
        k += wr_tpl_char(s.s + k, s.n - k, &cp);
        scanned++;
        if (is_case_ignorable(cp)) continue;
        cased = !is_cased(cp);
        break;
    }
    wr_tpl_steps(r, scanned); /* many sigmas in one long run cost the square of it */
    return cased;
}

bool wr_tpl_put_case(run *r, struct wr_tpl_buf *b, str s, enum wr_tpl_case mode)
{
    bool in_word = false;
    for (uint32_t i = 0, cp; i < s.n;) {
        uint32_t at = i;
        i += wr_tpl_char(s.s + i, s.n - i, &cp);
        enum wr_tpl_case how = mode == CASE_CAPITALIZE ? (at ? CASE_LOWER : CASE_TITLE) : mode == CASE_TITLE ? (in_word ? CASE_LOWER : CASE_TITLE) : mode;
        const char *special = cp >= 0xDF && how != CASE_LOWER ? special_case(cp, how == CASE_TITLE) : NULL;
        char out[4];
        size_t n;
        if (mode == CASE_TITLE) in_word = is_cased(cp);
        if (cp == 0x130 && how == CASE_LOWER) special = "i\xCC\x87";
        if (!special) {
            int32_t c = (int32_t)cp;
            if (cp == 0x3A3 && how == CASE_LOWER)
                c = final_sigma(r, s, at) ? 0x3C2 : 0x3C3;
            else
                c = how == CASE_UPPER ? utf8proc_toupper(c) : how == CASE_LOWER ? utf8proc_tolower(c) : utf8proc_totitle(c);
            n = (size_t)wr_utf8_encode((uint32_t)c, (uint8_t *)out);
        } else {
            n = strlen(special);
        }
        if (!wr_tpl_put(r, b, special ? special : out, n)) return false;
    }
    return !r->code && wr_tpl_steps(r, s.n / 16);
}

/* ---- printing ---- */

bool wr_tpl_put_repr_str(run *r, struct wr_tpl_buf *b, str s)
{
    char quote = memchr(s.s, '\'', s.n) && !memchr(s.s, '"', s.n) ? '"' : '\'';
    if (!wr_tpl_put(r, b, &quote, 1)) return false;
    for (uint32_t i = 0, cp; i < s.n;) {
        uint32_t k = wr_tpl_char(s.s + i, s.n - i, &cp);
        char out[12];
        int c = category(cp);
        bool hidden = cp != ' ' && (c == UTF8PROC_CATEGORY_CN || c >= UTF8PROC_CATEGORY_ZS);
        if (cp == (uint8_t)quote || cp == '\\')
            snprintf(out, sizeof out, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(out, sizeof out, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (hidden)
            snprintf(out, sizeof out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        else {
            memcpy(out, s.s + i, k);
            out[k] = 0;
        }
        if (!wr_tpl_put(r, b, out, cp ? strlen(out) : 4)) return false;
        i += k;
    }
    return wr_tpl_put(r, b, &quote, 1);
}

bool wr_tpl_put_escaped(run *r, struct wr_tpl_buf *b, str s)
{
    for (uint32_t i = 0; i < s.n; i++) {
        const char *e;
        switch (s.s[i]) {
        case '&':
            e = "&amp;";
            break;
        case '<':
            e = "&lt;";
            break;
        case '>':
            e = "&gt;";
            break;
        case '\'':
            e = "&#39;";
            break;
        case '"':
            e = "&#34;";
            break;
        default:
            e = NULL;
        }
        if (e ? !wr_tpl_puts(r, b, e) : !wr_tpl_put(r, b, s.s + i, 1)) return false;
    }
    return wr_tpl_steps(r, s.n / 16);
}

/* ---- searching and cutting ---- */

static bool has_char(const str *chars, const char *c, uint32_t n)
{
    uint32_t cp;
    if (!chars) {
        wr_tpl_char(c, n, &cp);
        return wr_tpl_is_space(cp);
    }
    for (uint32_t i = 0, k; i < chars->n; i += k) {
        k = wr_tpl_char(chars->s + i, chars->n - i, &cp);
        if (k == n && memcmp(chars->s + i, c, n) == 0) return true;
    }
    return false;
}

str wr_tpl_strip(str s, const str *chars, bool left, bool right)
{
    uint32_t cp;
    while (left && s.n) {
        uint32_t k = wr_tpl_char(s.s, s.n, &cp);
        if (!has_char(chars, s.s, k)) break;
        s.s += k;
        s.n -= k;
    }
    while (right && s.n) {
        uint32_t k = s.n - 1;
        while (k && ((uint8_t)s.s[k] & 0xC0) == 0x80) k--;
        if (!has_char(chars, s.s + k, s.n - k)) break;
        s.n = k;
    }
    return s;
}

int64_t wr_tpl_find(run *r, str s, str what, bool last)
{
    if (what.n > s.n) return -1;
    if (what.n == 0) return last ? s.n : 0;
    if (!last) {
        const char *p = memmem(s.s, s.n, what.s, what.n);
        wr_tpl_steps(r, (p ? (size_t)(p - s.s) : s.n) / 64);
        return p ? p - s.s : -1;
    }
    int64_t first = (int64_t)s.n - what.n, i = first;
    while (i >= 0 && (s.s[i] != *what.s || memcmp(s.s + i, what.s, what.n) != 0) && ((i & 4095) || wr_tpl_steps(r, what.n * 64))) i--;
    return r->code ? -1 : i;
}

bool wr_tpl_replace(run *r, str s, str old, str with, int64_t count, value *out)
{
    struct wr_tpl_buf b = {0};
    uint32_t cp;
    if (count < 0) count = INT64_MAX;
    while (count) {
        if (old.n == 0) { /* between all characters, and at both ends */
            if (!wr_tpl_put(r, &b, with.s, with.n)) return false;
            count--;
            if (!s.n) break;
            uint32_t k = wr_tpl_char(s.s, s.n, &cp);
            if (!wr_tpl_put(r, &b, s.s, k) || !wr_tpl_steps(r, 1)) return false;
            s.s += k;
            s.n -= k;
            continue;
        }
        int64_t at = wr_tpl_find(r, s, old, false);
        if (at < 0) break;
        if (!wr_tpl_put(r, &b, s.s, (size_t)at) || !wr_tpl_put(r, &b, with.s, with.n) || !wr_tpl_steps(r, 1)) return false;
        s.s += at + old.n;
        s.n -= (uint32_t)at + old.n;
        count--;
    }
    if (!wr_tpl_put(r, &b, s.s, s.n)) return false;
    *out = wr_tpl_buf_value(&b);
    return true;
}

/* A list in the making. */
struct growing {
    value *items;
    uint32_t n, cap;
};

static bool grow(run *r, struct growing *g, str piece)
{
    if (g->n == g->cap) {
        uint32_t cap = g->cap ? g->cap * 2 : 8;
        value *items = wr_tpl_take(r, cap, sizeof *items);
        if (!items) return false;
        if (g->n) memcpy(items, g->items, g->n * sizeof *items);
        g->items = items;
        g->cap = cap;
    }
    g->items[g->n++] = wr_tpl_text(piece.s, piece.n);
    return wr_tpl_steps(r, 1);
}

static void reverse(struct growing *g)
{
    for (uint32_t i = 0; i < g->n / 2; i++) {
        value v = g->items[i];
        g->items[i] = g->items[g->n - 1 - i];
        g->items[g->n - 1 - i] = v;
    }
}

/* Without a separator: words between white space, none of them empty; after `max` cuts the rest is one piece. */
static bool split_space(run *r, str s, int64_t max, bool right, struct growing *g)
{
    for (;;) {
        s = wr_tpl_strip(s, NULL, !right, right);
        if (!s.n) return true;
        if (max-- == 0) return grow(r, g, s);
        uint32_t cp, cut = right ? s.n : 0;
        while (right ? cut > 0 : cut < s.n) {
            uint32_t at = cut;
            if (right) do
                    at--;
                while (at && ((uint8_t)s.s[at] & 0xC0) == 0x80);
            uint32_t k = wr_tpl_char(s.s + at, s.n - at, &cp);
            if (wr_tpl_is_space(cp)) break;
            cut = right ? at : at + k;
        }
        str word = right ? (str){s.s + cut, s.n - cut} : (str){s.s, cut};
        if (!grow(r, g, word)) return false;
        s = right ? (str){s.s, cut} : (str){s.s + cut, s.n - cut};
    }
}

bool wr_tpl_split(run *r, str s, const str *sep, int64_t max, bool right, value *out)
{
    struct growing g = {0};
    if (max < 0) max = INT64_MAX;
    if (!wr_tpl_steps(r, s.n / 64)) return false;
    if (!sep) {
        if (!split_space(r, s, max, right, &g)) return false;
    } else {
        if (!sep->n) return wr_tpl_fail(r, "split: the separator is empty");
        for (; max > 0; max--) {
            int64_t at = wr_tpl_find(r, s, *sep, right);
            if (at < 0) break;
            uint32_t after = (uint32_t)at + sep->n;
            str piece = right ? (str){s.s + after, s.n - after} : (str){s.s, (uint32_t)at};
            if (!grow(r, &g, piece)) return false;
            s = right ? (str){s.s, (uint32_t)at} : (str){s.s + after, s.n - after};
        }
        if (!grow(r, &g, s)) return false;
    }
    if (right) reverse(&g);
    *out = wr_tpl_seq(SEQ_LIST, g.items, g.n);
    return true;
}

bool wr_tpl_split_lines(run *r, str s, bool keep_ends, value *out)
{
    struct growing g = {0};
    uint32_t start = 0, cp;
    for (uint32_t i = 0; i < s.n;) {
        uint32_t at = i;
        i += wr_tpl_char(s.s + i, s.n - i, &cp);
        bool end = (cp >= '\n' && cp <= '\r') || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
        if (!end) continue;
        if (cp == '\r' && i < s.n && s.s[i] == '\n') i++;
        if (!grow(r, &g, (str){s.s + start, (keep_ends ? i : at) - start})) return false;
        start = i;
    }
    if (start < s.n && !grow(r, &g, (str){s.s + start, s.n - start})) return false;
    *out = wr_tpl_seq(SEQ_LIST, g.items, g.n);
    return wr_tpl_steps(r, s.n / 64);
}

bool wr_tpl_chars(run *r, str s, const value **items, uint32_t *n)
{
    uint32_t count = wr_tpl_count_chars(s), cp;
    value *chars = wr_tpl_take(r, count, sizeof *chars);
    if (!chars || !wr_tpl_steps(r, count / 8)) return false;
    for (uint32_t i = 0, k = 0; i < s.n; k++) {
        uint32_t bytes = wr_tpl_char(s.s + i, s.n - i, &cp);
        chars[k] = wr_tpl_text(s.s + i, bytes);
        i += bytes;
    }
    *items = chars;
    *n = count;
    return true;
}
