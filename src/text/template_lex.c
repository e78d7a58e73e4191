/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lexer of chat templates: text, {{ }}, {% %}, {# #}, raw, and the control of white space. As in the reference with
 * trim_blocks and lstrip_blocks: a block or comment eats one line end after it, and the blanks before it on its line; `-`
 * eats all white space on its side, `+` switches the eating off.
 */
#include <stdlib.h>
#include "text/template_priv.h"

enum { IN_TEXT, IN_BLOCK, IN_VARIABLE, IN_RAW };
enum { PENDING_NONE, PENDING_BLOCK, PENDING_VARIABLE, PENDING_COMMENT, PENDING_RAW };

void wr_tpl_lexer_init(struct wr_tpl_lexer *l, struct wr_tpl_str source, weir_err *err)
{
    *l = (struct wr_tpl_lexer){.source = source, .line = 1, .line_starting = true, .err = err};
}

#define FAIL(l, code_, ...) ((l)->code = wr_err((l)->err, (code_), "chat template line " __VA_ARGS__), false)

static bool at(const struct wr_tpl_lexer *l, uint32_t pos, const char *what)
{
    size_t n = strlen(what);
    return n <= l->source.n - pos && memcmp(l->source.s + pos, what, n) == 0;
}

static uint32_t skip_space(const struct wr_tpl_lexer *l, uint32_t pos)
{
    while (pos < l->source.n) {
        uint32_t cp, k = wr_tpl_char(l->source.s + pos, l->source.n - pos, &cp);
        if (!wr_tpl_is_space(cp)) break;
        pos += k;
    }
    return pos;
}

/* Moves to `pos`, counting lines. */
static void advance(struct wr_tpl_lexer *l, uint32_t pos)
{
    for (uint32_t i = l->pos; i < pos; i++) l->line += l->source.s[i] == '\n';
    l->line_starting = pos > l->pos ? l->source.s[pos - 1] == '\n' : l->line_starting;
    l->pos = pos;
}

/* End of a tag at `pos`: "-close" and white space, or "close" and, for blocks, one line end; `plus` allows "+close". 0: no end here. */
static uint32_t tag_end(const struct wr_tpl_lexer *l, uint32_t pos, const char *close, bool plus, bool trim)
{
    if (plus && at(l, pos, "+") && at(l, pos + 1, close)) return pos + 3;
    if (at(l, pos, "-") && at(l, pos + 1, close)) return skip_space(l, pos + 3);
    if (!at(l, pos, close)) return 0;
    return pos + 2 + (trim && at(l, pos + 2, "\n"));
}

/* Position after "{%-? word %}" that begins at `pos`, 0 if it is another tag. */
static uint32_t raw_tag(const struct wr_tpl_lexer *l, uint32_t pos, const char *word, bool end)
{
    pos += 2;
    if (at(l, pos, "-") || at(l, pos, "+")) pos++;
    pos = skip_space(l, pos);
    if (!at(l, pos, word)) return 0;
    return tag_end(l, skip_space(l, pos + (uint32_t)strlen(word)), "%}", end, end);
}

/* The text before a tag whose sign is `sign`, without the blanks that the tag eats. */
static struct wr_tpl_str trimmed(const struct wr_tpl_lexer *l, struct wr_tpl_str text, char sign, bool variable)
{
    if (sign == '-') return wr_tpl_strip(text, NULL, false, true);
    if (sign == '+' || variable) return text;
    uint32_t line = text.n;
    while (line && text.s[line - 1] != '\n') line--;
    if (line == 0 && !l->line_starting) return text;
    struct wr_tpl_str last = {text.s + line, text.n - line};
    if (last.n && wr_tpl_strip(last, NULL, true, false).n == 0) text.n = line;
    return text;
}

static bool give_text(struct wr_tpl_lexer *l, struct wr_tpl_token *t, struct wr_tpl_str text, uint32_t line)
{
    *t = (struct wr_tpl_token){.type = T_TEXT, .line = line, .text = text};
    return true;
}

/* Text up to the next tag. Gives it as a token if there is any; *given says so. */
static bool lex_text(struct wr_tpl_lexer *l, struct wr_tpl_token *t, bool *given)
{
    uint32_t p = l->pos, line = l->line;
    while (p < l->source.n && !(at(l, p, "{%") || at(l, p, "{{") || at(l, p, "{#"))) {
        const char *next = memchr(l->source.s + p + 1, '{', l->source.n - p - 1);
        p = next ? (uint32_t)(next - l->source.s) : l->source.n;
    }
    struct wr_tpl_str text = {l->source.s + l->pos, p - l->pos};
    if (p < l->source.n) {
        char kind = l->source.s[p + 1], sign = p + 2 < l->source.n ? l->source.s[p + 2] : 0;
        text = trimmed(l, text, sign, kind == '{');
        uint32_t raw = kind == '%' ? raw_tag(l, p, "raw", false) : 0;
        l->pending = kind == '{' ? PENDING_VARIABLE : kind == '#' ? PENDING_COMMENT : raw ? PENDING_RAW : PENDING_BLOCK;
    }
    advance(l, p);
    *given = text.n > 0;
    return !*given || give_text(l, t, text, line);
}

/* Consumes the tag's opening; comments go as a whole. */
static bool lex_opening(struct wr_tpl_lexer *l, struct wr_tpl_token *t, bool *given)
{
    uint8_t pending = l->pending;
    uint32_t line = l->line, body = l->pos + 2;
    l->pending = PENDING_NONE;
    *given = false;
    if (pending == PENDING_RAW) {
        advance(l, raw_tag(l, l->pos, "raw", false));
        l->state = IN_RAW;
        return true;
    }
    if (at(l, body, "-") || at(l, body, "+")) body++;
    if (pending == PENDING_COMMENT) {
        for (uint32_t p = body; p < l->source.n; p++) {
            uint32_t end = tag_end(l, p, "#}", true, true);
            if (!end) continue;
            advance(l, end);
            return true;
        }
        return FAIL(l, WEIR_E_FORMAT, "%u: a comment is not closed", line);
    }
    *given = true;
    *t = (struct wr_tpl_token){.type = pending == PENDING_BLOCK ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN, .line = line};
    l->state = pending == PENDING_BLOCK ? IN_BLOCK : IN_VARIABLE;
    advance(l, body);
    return true;
}

static bool lex_raw(struct wr_tpl_lexer *l, struct wr_tpl_token *t, bool *given)
{
    uint32_t line = l->line;
    for (uint32_t p = l->pos; p + 1 < l->source.n; p++) {
        if (!at(l, p, "{%")) continue;
        uint32_t end = raw_tag(l, p, "endraw", true);
        if (!end) continue;
        struct wr_tpl_str text = trimmed(l, (struct wr_tpl_str){l->source.s + l->pos, p - l->pos}, l->source.s[p + 2], false);
        advance(l, end);
        l->state = IN_TEXT;
        *given = text.n > 0;
        return !*given || give_text(l, t, text, line);
    }
    return FAIL(l, WEIR_E_FORMAT, "%u: a raw block is not closed", line);
}

/* ---- inside a tag ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name(char c) { return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* digits with single underscores between them; returns the position after them */
static uint32_t digits(const struct wr_tpl_lexer *l, uint32_t p)
{
    const char *s = l->source.s;
    while (p < l->source.n && (is_digit(s[p]) || (s[p] == '_' && p + 1 < l->source.n && is_digit(s[p + 1]) && is_digit(s[p - 1])))) p++;
    return p;
}

static uint32_t float_end(const struct wr_tpl_lexer *l)
{
    const char *s = l->source.s;
    if (l->pos && s[l->pos - 1] == '.') return 0;
    uint32_t p = digits(l, l->pos), end = 0;
    if (p + 1 < l->source.n && s[p] == '.' && is_digit(s[p + 1])) {
        p = digits(l, p + 1);
        end = p;
    }
    if (p < l->source.n && (s[p] == 'e' || s[p] == 'E')) {
        uint32_t q = p + 1;
        if (q < l->source.n && (s[q] == '+' || s[q] == '-')) q++;
        if (q < l->source.n && is_digit(s[q])) end = digits(l, q);
    }
    return end;
}

static int digit_value(char c)
{
    if (is_digit(c)) return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

static bool lex_number(struct wr_tpl_lexer *l, struct wr_tpl_token *t)
{
    const char *s = l->source.s;
    uint32_t end = float_end(l), p = l->pos;
    int base = 10;
    if (end) {
        t->type = T_FLOAT;
        if (!wr_tpl_parse_float((struct wr_tpl_str){s + p, end - p}, &t->number.f))
            return FAIL(l, WEIR_E_UNSUPPORTED, "%u: a number of more than 400 digits is not supported", l->line);
        advance(l, end);
        return true;
    }
    if (s[p] == '0' && p + 2 < l->source.n) {
        char c = (char)(s[p + 1] | 32);
        int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        uint32_t first = p + 2 + (s[p + 2] == '_');
        if (b != 10 && first < l->source.n && digit_value(s[first]) < b) {
            base = b;
            p = first;
        }
    }
    int64_t value = 0;
    bool zero = base == 10 && s[p] == '0'; /* a decimal that begins with 0 ends at the first other digit */
    for (; p < l->source.n; p++) {
        if (s[p] == '_' && p + 1 < l->source.n && digit_value(s[p + 1]) < (zero ? 1 : base)) continue;
        int d = digit_value(s[p]);
        if (d >= (zero ? 1 : base)) break;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, d, &value))
            return FAIL(l, WEIR_E_UNSUPPORTED, "%u: an integer beyond 64 bits is not supported", l->line);
    }
    t->type = T_INT;
    t->number.i = value;
    advance(l, p);
    return true;
}

static bool lex_operator(struct wr_tpl_lexer *l, struct wr_tpl_token *t)
{
    static const struct {
        char text[3];
        uint8_t type;
    } operators[] = {{"**", T_POW}, {"//", T_FLOORDIV}, {"==", T_EQ}, {"!=", T_NE}, {">=", T_GE}, {"<=", T_LE}, {"+", T_ADD}, {"-", T_SUB}, {"/", T_DIV},
        {"*", T_MUL}, {"%", T_MOD}, {"~", T_TILDE}, {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
        {">", T_GT}, {"<", T_LT}, {"=", T_ASSIGN}, {".", T_DOT}, {":", T_COLON}, {"|", T_PIPE}, {",", T_COMMA}, {";", T_SEMICOLON}};
    const size_t n = sizeof operators / sizeof *operators;
    size_t i = 0;
    while (i < n && !at(l, l->pos, operators[i].text)) i++;
    if (i == n) {
        uint32_t cp;
        wr_tpl_char(l->source.s + l->pos, l->source.n - l->pos, &cp);
        if (cp >= 0x80) return FAIL(l, WEIR_E_UNSUPPORTED, "%u: the character U+%04X outside of a string is not supported", l->line, cp);
        return FAIL(l, WEIR_E_FORMAT, "%u: unexpected character '%c'", l->line, (char)cp);
    }
    t->type = (enum wr_tpl_token_type)operators[i].type;
    char c = operators[i].text[0];
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_open == WR_TPL_MAX_DEPTH) return FAIL(l, WEIR_E_UNSUPPORTED, "%u: nested deeper than %u levels", l->line, WR_TPL_MAX_DEPTH);
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!l->n_open || l->open[l->n_open - 1] != c) return FAIL(l, WEIR_E_FORMAT, "%u: unexpected '%c'", l->line, c);
        l->n_open--;
    }
    advance(l, l->pos + (uint32_t)strlen(operators[i].text));
    return true;
}

static bool lex_string(struct wr_tpl_lexer *l, struct wr_tpl_token *t)
{
    const char *s = l->source.s;
    uint32_t p = l->pos + 1;
    while (p < l->source.n && s[p] != s[l->pos]) p += s[p] == '\\' ? 2 : 1;
    if (p >= l->source.n) return FAIL(l, WEIR_E_FORMAT, "%u: a string is not closed", l->line);
    t->type = T_STRING;
    t->text = (struct wr_tpl_str){s + l->pos + 1, p - l->pos - 1};
    advance(l, p + 1);
    return true;
}

static bool lex_tag(struct wr_tpl_lexer *l, struct wr_tpl_token *t)
{
    const char *s = l->source.s;
    for (;;) {
        *t = (struct wr_tpl_token){.line = l->line};
        if (l->pos >= l->source.n) return FAIL(l, WEIR_E_FORMAT, "%u: the template ends inside a tag", l->line);
        if (!l->n_open) {
            bool block = l->state == IN_BLOCK;
            uint32_t end = tag_end(l, l->pos, block ? "%}" : "}}", block, block);
            if (end) {
                t->type = block ? T_BLOCK_END : T_VARIABLE_END;
                advance(l, end);
                l->state = IN_TEXT;
                return true;
            }
        }
        uint32_t p = skip_space(l, l->pos);
        if (p == l->pos) break;
        advance(l, p);
    }
    char c = s[l->pos];
    if (is_digit(c)) return lex_number(l, t);
    if (is_name(c)) {
        uint32_t p = l->pos;
        while (p < l->source.n && is_name(s[p])) p++;
        t->type = T_NAME;
        t->text = (struct wr_tpl_str){s + l->pos, p - l->pos};
        advance(l, p);
        return true;
    }
    if (c == '\'' || c == '"') return lex_string(l, t);
    return lex_operator(l, t);
}

bool wr_tpl_lex(struct wr_tpl_lexer *l, struct wr_tpl_token *t)
{
    if (l->code) return false;
    for (;;) {
        bool given = false;
        if (l->pending) {
            if (!lex_opening(l, t, &given)) return false;
        } else if (l->state == IN_RAW) {
            if (!lex_raw(l, t, &given)) return false;
        } else if (l->state != IN_TEXT) {
            return lex_tag(l, t);
        } else if (l->pos >= l->source.n) {
            *t = (struct wr_tpl_token){.type = T_EOF, .line = l->line};
            return true;
        } else if (!lex_text(l, t, &given)) {
            return false;
        }
        if (given) return true;
    }
}

/* ---- string literals ---- */

static bool hex(const char *s, uint32_t left, uint32_t n, uint32_t *value)
{
    if (left < n) return false;
    *value = 0;
    for (uint32_t i = 0; i < n; i++) {
        int d = digit_value(s[i]);
        if (d > 15) return false;
        *value = *value * 16 + (uint32_t)d;
    }
    return true;
}

const char *wr_tpl_unescape(struct wr_tpl_str in, char *out, uint32_t *n_out, bool *unsupported)
{
    static const char letters[] = "\\'\"abfnrtv", meaning[] = "\\'\"\a\b\f\n\r\t\v", hex_digits[] = "0123456789abcdef";
    uint32_t k = 0, i = 0;
    *unsupported = false;
    while (i < in.n) {
        if (in.s[i] != '\\') {
            out[k++] = in.s[i++];
            continue;
        }
        if (++i == in.n) return "a string ends in a backslash";
        char c = in.s[i];
        const char *simple = c ? strchr(letters, c) : NULL;
        uint32_t cp, n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (simple) {
            out[k++] = meaning[simple - letters];
            i++;
        } else if (c == '\n') {
            i++;
        } else if (c >= '0' && c <= '7') {
            cp = 0;
            for (int d = 0; d < 3 && i < in.n && in.s[i] >= '0' && in.s[i] <= '7'; d++) cp = cp * 8 + (uint32_t)(in.s[i++] - '0');
            k += (uint32_t)wr_utf8_encode(cp, (uint8_t *)out + k);
        } else if (n_hex) {
            if (!hex(in.s + i + 1, in.n - i - 1, n_hex, &cp) || cp > 0x10FFFF) return "a string has a malformed \\x, \\u or \\U escape";
            if (cp >= 0xD800 && cp < 0xE000) {
                *unsupported = true;
                return "a surrogate as \\u escape is not supported";
            }
            i += 1 + n_hex;
            k += (uint32_t)wr_utf8_encode(cp, (uint8_t *)out + k);
        } else if (c == 'N') {
            *unsupported = true;
            return "a \\N escape is not supported";
        } else {
            out[k++] = '\\';
            if ((uint8_t)c < 0x80) continue; /* an unknown escape stays as it is */
            /* The reference writes characters outside ASCII as escapes first, and the backslash then protects that escape's own. */
            i += wr_tpl_char(in.s + i, in.n - i, &cp);
            uint32_t n = cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8;
            out[k++] = n == 2 ? 'x' : n == 4 ? 'u' : 'U';
            for (uint32_t d = n; d-- > 0;) out[k++] = hex_digits[cp >> (4 * d) & 15];
        }
    }
    *n_out = k;
    return NULL;
}
