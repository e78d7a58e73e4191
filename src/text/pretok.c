/* SPDX-License-Identifier: Apache-2.0 */
#include "text/pretok.h"

#include <string.h>

#define PRETOK(names, ignore_merges, add_bos, normalizer, ...) {names, ignore_merges, add_bos, normalizer, {__VA_ARGS__}},
static const struct wr_pretok_row rows[] = {
#include "text/pretok.def"
};
#undef PRETOK

/* PCRE2 maps machine code in chunks of 64 KiB; the largest row needs 6 KiB on x86-64 (PCRE2 10.42). */
#define JIT_BYTES (64u << 10)

const struct wr_pretok_row *wr_pretok_default(void) { return &rows[0]; }

const struct wr_pretok_row *wr_pretok_find(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || strchr(name, ' ')) return NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (const char *p = rows[i].names; *p;) {
            size_t length = strcspn(p, " ");
            if (length == n && memcmp(p, name, n) == 0) return &rows[i];
            p += length;
            p += *p == ' ';
        }
    }
    return NULL;
}

static void *pcre_alloc(size_t bytes, void *user)
{
    struct wr_pretok_memory *memory = user;
    weir_err err = {0};
    void *p = wr_mem_alloc(memory->ledger, memory->account, bytes, &err);
    if (!p && memory->err.code == 0) memory->err = err;
    return p;
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    wr_mem_free(p);
}

/* PCRE2 says only that it got no memory: pass on what the ledger said. */
static int memory_error(const struct wr_pretok_memory *memory, weir_err *err)
{
    if (memory->err.code == 0) return wr_err(err, WEIR_E_NOMEM, "the pre-tokenizer's patterns got no memory");
    if (err) *err = memory->err;
    return memory->err.code;
}

int wr_pretok_open(struct wr_pretok *p, const struct wr_pretok_row *row, struct wr_ledger *ledger, const struct wr_log *log, weir_err *err)
{
    memset(p, 0, sizeof *p);
    p->memory.ledger = ledger;
    p->memory.account = WR_ACCOUNT_TOKENIZER;
    int rc = wr_ledger_reserve(ledger, WR_ACCOUNT_TOKENIZER, JIT_BYTES, err);
    if (rc < 0) return rc;
    p->jit_bytes = JIT_BYTES;
    pcre2_compile_context *compile = NULL;
    p->general = pcre2_general_context_create(pcre_alloc, pcre_free, &p->memory);
    if (p->general) compile = pcre2_compile_context_create(p->general);
    if (compile) p->match = pcre2_match_context_create(p->general);
    if (!p->match) {
        rc = memory_error(&p->memory, err);
        goto out;
    }
    /* The limits count backtracking steps and guard against exponential patterns; the table's are linear, the text may be long. */
    pcre2_set_match_limit(p->match, UINT32_MAX);
    size_t jit_used = 0;
    for (uint32_t i = 0; row->patterns[i]; i++) {
        int code;
        size_t where, size = 0;
        p->code[i] = pcre2_compile((PCRE2_SPTR)row->patterns[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_NO_UTF_CHECK, &code, &where, compile);
        if (!p->code[i]) {
            rc = p->memory.err.code ? memory_error(&p->memory, err)
                                    : wr_err(err, WEIR_E_FAIL, "pre-tokenizer pattern %u: PCRE2 error %d at %zu", i, code, where);
            goto out;
        }
        p->n_codes = i + 1;
        p->jit[i] = pcre2_jit_compile(p->code[i], PCRE2_JIT_COMPLETE) == 0;
        if (p->memory.err.code != 0) {
            rc = memory_error(&p->memory, err);
            goto out;
        }
        if (p->jit[i] && pcre2_pattern_info(p->code[i], PCRE2_INFO_JITSIZE, &size) == 0) jit_used += size;
    }
    if (jit_used > p->jit_bytes) {
        rc = wr_ledger_reserve(ledger, WR_ACCOUNT_TOKENIZER, jit_used - p->jit_bytes, err);
        if (rc < 0) goto out;
        p->jit_bytes = jit_used;
    }
    for (uint32_t i = 0; i < p->n_codes; i++) {
        if (p->jit[i]) continue;
        wr_log(log, WEIR_LOG_WARN, "PCRE2 cannot make machine code here: text is tokenized by its interpreter, which is slower");
        break;
    }
out:
    pcre2_compile_context_free(compile);
    if (rc < 0) wr_pretok_close(p);
    return rc;
}

void wr_pretok_close(struct wr_pretok *p)
{
    for (uint32_t i = 0; i < p->n_codes; i++) pcre2_code_free(p->code[i]);
    pcre2_match_context_free(p->match);
    pcre2_general_context_free(p->general);
    if (p->jit_bytes) wr_ledger_release(p->memory.ledger, WR_ACCOUNT_TOKENIZER, p->jit_bytes);
    memset(p, 0, sizeof *p);
}

int wr_split_open(struct wr_split *s, const struct wr_pretok *pretok, struct wr_ledger *ledger, weir_err *err)
{
    memset(s, 0, sizeof *s);
    s->pretok = pretok;
    s->memory.ledger = ledger;
    s->memory.account = WR_ACCOUNT_TEXT;
    s->general = pcre2_general_context_create(pcre_alloc, pcre_free, &s->memory);
    if (s->general) s->data = pcre2_match_data_create(1, s->general);
    if (s->data) return 0;
    int rc = memory_error(&s->memory, err);
    wr_split_close(s);
    return rc;
}

void wr_split_close(struct wr_split *s)
{
    pcre2_match_data_free(s->data);
    pcre2_general_context_free(s->general);
    s->data = NULL;
    s->general = NULL;
}

static void push_level(struct wr_split *s, size_t begin, size_t end)
{
    s->level[s->depth].begin = s->level[s->depth].pos = begin;
    s->level[s->depth].end = end;
    s->level[s->depth].waiting = false;
    s->depth++;
}

void wr_split_begin(struct wr_split *s, const char *text, size_t n)
{
    s->text = text;
    s->depth = 0;
    push_level(s, 0, n);
}

/* Finds the first match of pattern `k` at or after its level's position: 1 found, 0 none. */
static int match_next(struct wr_split *s, uint32_t k, weir_err *err)
{
    const struct wr_pretok *p = s->pretok;
    size_t begin = s->level[k].begin;
    PCRE2_SPTR subject = (PCRE2_SPTR)s->text + begin;
    size_t length = s->level[k].end - begin, offset = s->level[k].pos - begin;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (p->jit[k]) rc = pcre2_jit_match(p->code[k], subject, length, offset, 0, s->data, p->match);
    /* The interpreter keeps its backtracking in the heap, so it also takes what the JIT's 32 KiB stack does not. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = pcre2_match(p->code[k], subject, length, offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->data, p->match);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc == PCRE2_ERROR_NOMEMORY) return memory_error(&s->memory, err);
    if (rc < 0) return wr_err(err, WEIR_E_FAIL, "pre-tokenizer pattern %u: PCRE2 error %d at byte %zu of a piece", k, rc, offset);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->data);
    if (at[1] <= at[0]) return 0; /* no pattern of the table matches nothing; the loop must end whatever the table says */
    s->level[k].match_begin = begin + at[0];
    s->level[k].match_end = begin + at[1];
    return 1;
}

int wr_split_next(struct wr_split *s, size_t *begin, size_t *end, weir_err *err)
{
    while (s->depth > 0) {
        uint32_t k = s->depth - 1;
        size_t pos = s->level[k].pos;
        if (pos >= s->level[k].end) {
            s->depth--;
            continue;
        }
        if (!s->level[k].waiting) {
            int rc = match_next(s, k, err);
            if (rc < 0) return rc;
            if (rc == 0) s->level[k].match_begin = s->level[k].match_end = s->level[k].end;
            s->level[k].waiting = true;
        }
        /* The gap before the match, then the match. */
        size_t piece_end = s->level[k].match_begin;
        if (pos == piece_end) {
            piece_end = s->level[k].match_end;
            s->level[k].waiting = false;
        }
        s->level[k].pos = piece_end;
        if (k + 1 < s->pretok->n_codes) {
            push_level(s, pos, piece_end);
            continue;
        }
        *begin = pos;
        *end = piece_end;
        return 1;
    }
    return 0;
}
