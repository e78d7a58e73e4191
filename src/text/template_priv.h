/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the chat-template interpreter: lexer -> parser -> tree -> evaluator. One pool per template holds the tree, one
 * pool per rendering holds everything that the rendering makes; both are freed at once. Values are small and immutable, but
 * for namespaces, iterators and loops. Every recursion counts in `depth`, all work in `steps`, all memory in the pool, so a
 * hostile template ends with an error.
 */
#ifndef WR_TEXT_TEMPLATE_PRIV_H
#define WR_TEXT_TEMPLATE_PRIV_H

#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "text/template.h"

#define WR_TPL_MAX_SOURCE ((size_t)1 << 20)
#define WR_TPL_MAX_OUTPUT ((size_t)64 << 20)  /* of the rendering, and of every string in it */
#define WR_TPL_MAX_MEMORY ((size_t)256 << 20) /* of one rendering's pool */
#define WR_TPL_MAX_STEPS 10000000u            /* nodes evaluated, items visited, 64-byte pieces of text touched */
#define WR_TPL_MAX_DEPTH 200u                 /* of the tree, of the parser's, evaluator's and printer's recursion */
#define WR_TPL_MAX_RANGE 100000               /* what the sandbox of the reference allows */
#define WR_TPL_MAX_ARGS 8

/* ---- memory ---- */

struct wr_tpl_chunk;
struct wr_tpl_pool {
    struct wr_ledger *ledger;
    struct wr_tpl_chunk *chunks;
    uint8_t *next;
    size_t left, chunk_bytes, total, limit;
};
void wr_tpl_pool_init(struct wr_tpl_pool *, struct wr_ledger *, size_t limit);
void wr_tpl_pool_fini(struct wr_tpl_pool *);
/* Zeroed, aligned to 16; NULL with *code and *err set (WEIR_E_TEMPLATE past the limit). */
void *wr_tpl_pool_take(struct wr_tpl_pool *, size_t bytes, int *code, weir_err *);

struct wr_tpl_str {
    const char *s; /* UTF-8, not NUL-terminated */
    uint32_t n;
};
static inline bool wr_tpl_same(struct wr_tpl_str a, struct wr_tpl_str b) { return a.n == b.n && memcmp(a.s, b.s, a.n) == 0; }
#define WR_TPL_STR(literal) ((struct wr_tpl_str){literal, sizeof(literal) - 1})

/* ---- values ---- */

enum wr_tpl_kind {
    V_ABSENT, /* an argument that was not given; never seen by templates */
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_DICT,
    V_ITER,
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_METHOD,
    V_FUNC
};
/* `sub` of V_LIST. A view is what keys(), values() and items() give; a range keeps start, stop and step in items[-3 .. -1]. */
enum wr_tpl_seq { SEQ_LIST, SEQ_TUPLE, SEQ_GROUP, SEQ_RANGE, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS };
#define WR_TPL_MARKUP 1 /* `sub` of V_STR: what safe and escape give; adding plain text to it escapes the text */

struct wr_tpl_value {
    uint8_t kind, sub;
    uint32_t n; /* bytes of a string, items of a list, pairs of a dict */
    union {
        int64_t i; /* V_INT, V_BOOL */
        double f;
        const char *s;
        const struct wr_tpl_value *items;
        const struct wr_tpl_pair *pairs;
        const struct wr_tpl_undef *undef;
        struct wr_tpl_iter *iter;
        struct wr_tpl_scope *names; /* V_NAMESPACE */
        struct wr_tpl_loop *loop;
        const struct wr_tpl_macro *macro;
        const struct wr_tpl_method *method;
    } u;
};
struct wr_tpl_pair {
    struct wr_tpl_value key, value;
};
/* Why a value is undefined: a sentence, or the object's type (NULL: a variable) and the name that it lacks. */
struct wr_tpl_undef {
    const char *hint, *type;
    struct wr_tpl_value name;
};
struct wr_tpl_iter { /* a generator of the reference: true, without length, used up by the first reading */
    const struct wr_tpl_value *items;
    uint32_t n, pos;
};
struct wr_tpl_binding {
    struct wr_tpl_binding *next;
    struct wr_tpl_str name;
    struct wr_tpl_value value;
};
struct wr_tpl_scope {
    struct wr_tpl_scope *parent;
    struct wr_tpl_binding *first, *last;
};
struct wr_tpl_macro {
    const struct wr_tpl_node *node;
    struct wr_tpl_scope *scope; /* where it was defined */
};
struct wr_tpl_method {
    struct wr_tpl_value self;
    int id;
    const char *name;
};
struct wr_tpl_loop {
    const struct wr_tpl_value *items; /* [n]; pos: the next to look at */
    uint32_t n, pos;
    int64_t index0, length; /* length -1: the `if` of the loop must still be asked */
    bool has_after, has_changed;
    struct wr_tpl_value before, current, after, changed;
    const struct wr_tpl_node *node;
    struct wr_tpl_scope *outer;
};

/* ---- tree ---- */

/* Children are in `kids`; [x] may be NULL. */
enum wr_tpl_op {
    N_BODY,         /* statements; names: those that are undefined at first, though the caller may know them */
    N_TEXT,         /* value */
    N_OUTPUT,       /* expression */
    N_IF,           /* test, body, test, body ... and a last body if n is odd */
    N_FOR,          /* target, iterable, [test], body, [else] */
    N_SET,          /* target, expression */
    N_SET_BLOCK,    /* target, [filters over N_HOLE], body */
    N_MACRO,        /* body, then one [default] a parameter; value: name; names: parameters; sub: WR_TPL_USES_* */
    N_CALL_BLOCK,   /* call, N_MACRO */
    N_FILTER_BLOCK, /* filters over N_HOLE, body */
    N_WITH,         /* targets, as many expressions, body */
    N_SCOPE,        /* body (generation) */
    N_BREAK,
    N_CONTINUE,
    N_CONST,  /* value */
    N_NAME,   /* value */
    N_NS_REF, /* as a target: value: name, names[0]: attribute */
    N_TUPLE,
    N_LIST,
    N_DICT,   /* key, value, key, value ... */
    N_ATTR,   /* object; value: name */
    N_ITEM,   /* object, key */
    N_SLICE,  /* object, [start], [stop], [step] */
    N_CALL,   /* callee, positional arguments, keyword arguments (n_kw, names) */
    N_FILTER, /* subject, arguments as above; sub: filter */
    N_TEST,   /* subject, arguments as above; sub: test */
    N_NOT,
    N_NEG,
    N_POS,
    N_AND,
    N_OR,
    N_BINARY, /* left, right; sub: B_* */
    N_CONCAT,
    N_COMPARE, /* operands; value.u.s[i]: C_* between i and i + 1 */
    N_COND,    /* test, then, [else] */
    N_HOLE     /* what a filter block captured */
};
enum wr_tpl_binary { B_ADD, B_SUB, B_MUL, B_DIV, B_FLOORDIV, B_MOD, B_POW };
enum wr_tpl_compare { C_EQ, C_NE, C_LT, C_LE, C_GT, C_GE, C_IN, C_NOT_IN };
enum { WR_TPL_USES_CALLER = 1, WR_TPL_USES_VARARGS = 2, WR_TPL_USES_KWARGS = 4 };

struct wr_tpl_node {
    uint8_t op, sub;
    uint16_t depth; /* of the tree below and with this node */
    uint32_t line, n, n_kw;
    struct wr_tpl_node **kids;
    const struct wr_tpl_str *names;
    struct wr_tpl_value value;
};

struct wr_template {
    struct wr_tpl_pool pool;
    struct wr_tpl_str source; /* line ends are \n */
    struct wr_tpl_node *root;
};

/* ---- lexer ---- */

enum wr_tpl_token_type {
    T_EOF,
    T_TEXT,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_POW,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_TILDE,
    T_LPAREN,
    T_RPAREN,
    T_LBRACKET,
    T_RBRACKET,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON
};
struct wr_tpl_token {
    enum wr_tpl_token_type type;
    uint32_t line;
    struct wr_tpl_str text; /* of a string: between the quotes, escapes as written */
    union {
        int64_t i;
        double f;
    } number;
};
struct wr_tpl_lexer {
    struct wr_tpl_str source;
    uint32_t pos, line;
    uint8_t state, pending; /* what the lexer is inside of; what comes after the text just given */
    bool line_starting;
    uint32_t n_open;
    char open[WR_TPL_MAX_DEPTH]; /* brackets that are open */
    int code;
    weir_err *err;
};
void wr_tpl_lexer_init(struct wr_tpl_lexer *, struct wr_tpl_str source, weir_err *);
bool wr_tpl_lex(struct wr_tpl_lexer *, struct wr_tpl_token *);
/* Escapes of a string literal, as Python's unicode_escape after backslashreplace. out has room for 2 * n bytes (a backslash before a
 * character outside ASCII turns that into its escape's letters). NULL, or what is wrong; *unsupported tells a limit of weir from an error of the template. */
const char *wr_tpl_unescape(struct wr_tpl_str, char *out, uint32_t *n_out, bool *unsupported);

int wr_tpl_parse(struct wr_template *, weir_err *);
int wr_tpl_resolve(struct wr_template *, weir_err *); /* after parsing: the names that scopes set (template_scope.c) */

/* ---- a rendering ---- */

struct wr_tpl_buf {
    char *p;
    size_t n, cap;
};
struct wr_tpl_run {
    struct wr_tpl_pool pool;
    const json_t *vars;
    weir_err *err;
    int code;
    uint32_t line, depth;
    uint64_t steps;
    struct wr_tpl_scope *globals; /* the variables of `vars` that were asked for */
    struct wr_tpl_buf *out;
    struct wr_tpl_value hole;
};
struct wr_tpl_call {
    const struct wr_tpl_value *pos, *kw;
    const struct wr_tpl_str *kw_names;
    uint32_t n_pos, n_kw;
};

/* All return false after setting run->code; the first failure stays. */
bool wr_tpl_fail(struct wr_tpl_run *, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool wr_tpl_steps(struct wr_tpl_run *, uint64_t n);
bool wr_tpl_enter(struct wr_tpl_run *); /* one level deeper; the caller leaves with run->depth-- whatever came after */
void *wr_tpl_take(struct wr_tpl_run *, size_t count, size_t size);
bool wr_tpl_put(struct wr_tpl_run *, struct wr_tpl_buf *, const char *, size_t);
static inline bool wr_tpl_puts(struct wr_tpl_run *r, struct wr_tpl_buf *b, const char *s) { return wr_tpl_put(r, b, s, strlen(s)); }

/* Values (template_value.c). */
static inline struct wr_tpl_value wr_tpl_none(void) { return (struct wr_tpl_value){.kind = V_NONE}; }
static inline struct wr_tpl_value wr_tpl_bool(bool b) { return (struct wr_tpl_value){.kind = V_BOOL, .u.i = b}; }
static inline struct wr_tpl_value wr_tpl_int(int64_t i) { return (struct wr_tpl_value){.kind = V_INT, .u.i = i}; }
static inline struct wr_tpl_value wr_tpl_float(double f) { return (struct wr_tpl_value){.kind = V_FLOAT, .u.f = f}; }
static inline struct wr_tpl_value wr_tpl_text(const char *s, size_t n) { return (struct wr_tpl_value){.kind = V_STR, .n = (uint32_t)n, .u.s = s}; }
static inline struct wr_tpl_value wr_tpl_seq(enum wr_tpl_seq sub, const struct wr_tpl_value *items, uint32_t n)
{
    return (struct wr_tpl_value){.kind = V_LIST, .sub = (uint8_t)sub, .n = n, .u.items = items};
}
static inline struct wr_tpl_str wr_tpl_str_of(struct wr_tpl_value v) { return (struct wr_tpl_str){v.u.s, v.n}; }
static inline bool wr_tpl_is_int(struct wr_tpl_value v) { return v.kind == V_INT || v.kind == V_BOOL; }
static inline bool wr_tpl_is_number(struct wr_tpl_value v) { return wr_tpl_is_int(v) || v.kind == V_FLOAT; }
static inline double wr_tpl_double(struct wr_tpl_value v) { return v.kind == V_FLOAT ? v.u.f : (double)v.u.i; }
static inline struct wr_tpl_value wr_tpl_buf_value(const struct wr_tpl_buf *b) { return wr_tpl_text(b->n ? b->p : "", b->n); }

const char *wr_tpl_type(struct wr_tpl_value); /* "str", "dict", ... as Python says */
bool wr_tpl_from_json(struct wr_tpl_run *, const json_t *, struct wr_tpl_value *);
bool wr_tpl_undefined(struct wr_tpl_run *, struct wr_tpl_value object, struct wr_tpl_value name, struct wr_tpl_value *); /* object V_ABSENT: a variable */
bool wr_tpl_undefined_hint(struct wr_tpl_run *, const char *hint, struct wr_tpl_value *);
bool wr_tpl_fail_undefined(struct wr_tpl_run *, struct wr_tpl_value);
bool wr_tpl_truth(struct wr_tpl_value);
bool wr_tpl_put_str(struct wr_tpl_run *, struct wr_tpl_buf *, struct wr_tpl_value);  /* as str() */
bool wr_tpl_put_repr(struct wr_tpl_run *, struct wr_tpl_buf *, struct wr_tpl_value); /* as repr() */
bool wr_tpl_to_str(struct wr_tpl_run *, struct wr_tpl_value *);                      /* in place; a string stays what it is */
bool wr_tpl_eq(struct wr_tpl_run *, struct wr_tpl_value, struct wr_tpl_value, bool *);
bool wr_tpl_lt(struct wr_tpl_run *, struct wr_tpl_value, struct wr_tpl_value, bool *);
bool wr_tpl_in(struct wr_tpl_run *, struct wr_tpl_value needle, struct wr_tpl_value, bool *);
bool wr_tpl_items(struct wr_tpl_run *, struct wr_tpl_value, const struct wr_tpl_value **, uint32_t *n);                      /* iterates; uses an iterator up */
bool wr_tpl_dict_find(struct wr_tpl_run *, struct wr_tpl_value dict, struct wr_tpl_value key, const struct wr_tpl_value **); /* NULL: not there */
bool wr_tpl_dict_put(struct wr_tpl_run *, struct wr_tpl_pair *pairs, uint32_t *n, struct wr_tpl_value key, struct wr_tpl_value value);
bool wr_tpl_iter_make(struct wr_tpl_run *, const struct wr_tpl_value *items, uint32_t n, struct wr_tpl_value *);
bool wr_tpl_slice(struct wr_tpl_run *, struct wr_tpl_value, const struct wr_tpl_value bounds[3], struct wr_tpl_value *);
bool wr_tpl_parse_float(struct wr_tpl_str digits, double *); /* digits[.digits][e[+-]digits], '_' allowed between digits; no locale */
void wr_tpl_format_float(double, char out[40]);              /* as repr() */

/* Operators and printers (template_ops.c). */
bool wr_tpl_binary(struct wr_tpl_run *, enum wr_tpl_binary, struct wr_tpl_value, struct wr_tpl_value, struct wr_tpl_value *);
/* spare: arguments may be left over. */
bool wr_tpl_printf(struct wr_tpl_run *, struct wr_tpl_str format, const struct wr_tpl_value *args, uint32_t n, bool spare, struct wr_tpl_value *);
bool wr_tpl_format(struct wr_tpl_run *, struct wr_tpl_str format, const struct wr_tpl_call *, struct wr_tpl_value *);
bool wr_tpl_tojson(struct wr_tpl_run *, struct wr_tpl_value, const struct wr_tpl_value options[4], struct wr_tpl_value *);
bool wr_tpl_strftime(struct wr_tpl_run *, struct wr_tpl_str format, struct wr_tpl_value *);

/* Text (template_text.c): strings are valid UTF-8. */
enum wr_tpl_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE };
bool wr_tpl_is_space(uint32_t cp);                           /* str.isspace */
uint32_t wr_tpl_char(const char *s, size_t n, uint32_t *cp); /* length of the first character */
uint32_t wr_tpl_count_chars(struct wr_tpl_str);
uint32_t wr_tpl_skip_chars(struct wr_tpl_str, uint32_t chars); /* bytes that so many characters take */
struct wr_tpl_str wr_tpl_strip(struct wr_tpl_str, const struct wr_tpl_str *chars, bool left, bool right);
bool wr_tpl_put_case(struct wr_tpl_run *, struct wr_tpl_buf *, struct wr_tpl_str, enum wr_tpl_case);
bool wr_tpl_put_repr_str(struct wr_tpl_run *, struct wr_tpl_buf *, struct wr_tpl_str);
bool wr_tpl_put_escaped(struct wr_tpl_run *, struct wr_tpl_buf *, struct wr_tpl_str); /* HTML */
bool wr_tpl_replace(struct wr_tpl_run *, struct wr_tpl_str, struct wr_tpl_str old, struct wr_tpl_str with, int64_t count, struct wr_tpl_value *);
int64_t wr_tpl_find(struct wr_tpl_run *, struct wr_tpl_str, struct wr_tpl_str what, bool last); /* byte offset, -1 */
bool wr_tpl_split(struct wr_tpl_run *, struct wr_tpl_str, const struct wr_tpl_str *sep, int64_t max, bool right, struct wr_tpl_value *);
bool wr_tpl_split_lines(struct wr_tpl_run *, struct wr_tpl_str, bool keep_ends, struct wr_tpl_value *);
bool wr_tpl_chars(struct wr_tpl_run *, struct wr_tpl_str, const struct wr_tpl_value **, uint32_t *n);
enum wr_tpl_class { CLASS_ALPHA, CLASS_DIGIT, CLASS_ALNUM, CLASS_SPACE, CLASS_UPPER, CLASS_LOWER };
bool wr_tpl_is_class(struct wr_tpl_str, enum wr_tpl_class); /* str.isalpha and so on */

/* Attributes, methods, functions (template_call.c). */
bool wr_tpl_getattr(struct wr_tpl_run *, struct wr_tpl_value, struct wr_tpl_str name, struct wr_tpl_value *);
bool wr_tpl_getitem(struct wr_tpl_run *, struct wr_tpl_value, struct wr_tpl_value key, struct wr_tpl_value *);
bool wr_tpl_invoke(struct wr_tpl_run *, struct wr_tpl_value callee, const struct wr_tpl_call *, struct wr_tpl_value *);
bool wr_tpl_function(struct wr_tpl_str name, struct wr_tpl_value *); /* a function of that name */
bool wr_tpl_method_unsupported(struct wr_tpl_str name);              /* a method in Python that weir lacks */
bool wr_tpl_function_unsupported(struct wr_tpl_str name);
/* Puts arguments in the order of `names` ("a,b,c", at most WR_TPL_MAX_ARGS); what was not given is V_ABSENT. */
bool wr_tpl_bind(
    struct wr_tpl_run *, const char *what, const char *names, uint32_t required, const struct wr_tpl_call *, struct wr_tpl_value args[WR_TPL_MAX_ARGS]);

/* Filters and tests (template_filters.c, template_tests.c): -1 if there is none of that name. */
int wr_tpl_filter_find(struct wr_tpl_str name);
bool wr_tpl_filter_names(int filter, bool *test, uint32_t *arg); /* takes the name of a filter or test as positional argument `arg` */
bool wr_tpl_filter_apply(struct wr_tpl_run *, int filter, struct wr_tpl_value, const struct wr_tpl_call *, struct wr_tpl_value *);
int wr_tpl_test_find(struct wr_tpl_str name);
bool wr_tpl_test_apply(struct wr_tpl_run *, int test, struct wr_tpl_value, const struct wr_tpl_call *, bool *);

/* Evaluation (template_eval.c). */
bool wr_tpl_run_root(struct wr_tpl_run *, const struct wr_tpl_node *root, struct wr_tpl_buf *out);
bool wr_tpl_macro_call(struct wr_tpl_run *, const struct wr_tpl_macro *, const struct wr_tpl_call *, struct wr_tpl_value *);
bool wr_tpl_bind_name(struct wr_tpl_run *, struct wr_tpl_scope *, struct wr_tpl_str name, struct wr_tpl_value);
bool wr_tpl_loop_attr(struct wr_tpl_run *, struct wr_tpl_loop *, struct wr_tpl_str name, struct wr_tpl_value *); /* V_ABSENT: no such name */

#endif
