/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From text to ids: special tokens, then what the kind of model makes of the rest. "gpt2": runs of valid UTF-8, then the pre-tokenizer's
 * pieces, then merges. "llama": merges over all of it, cut where no token can reach across.
 */
#include "text/vocab_private.h"

#include <string.h>
#include "base/utf8.h"
#include "text/nfc.h"

struct run {
    const struct wr_vocab *v;
    bool special;
    int32_t bos; /* still to be put, or -1 */
    bool begins; /* nothing but a special token comes before */
    struct wr_split split;
    struct wr_nfc nfc;
    struct wr_bpe_work work;
    struct wr_ids ids;
    size_t n_dropped;
    weir_err *err;
};

static int put_piece(struct run *r, const char *text, size_t n)
{
    if (r->v->row->ignore_merges) {
        int32_t id = wr_vocab_find_piece(r->v, (const uint8_t *)text, n);
        if (id >= 0) return wr_ids_put(&r->ids, id, r->err);
    }
    return wr_bpe_piece(&r->v->bpe, (const uint8_t *)text, n, &r->work, &r->ids, &r->n_dropped, r->err);
}

static int put_valid(struct run *r, const char *text, size_t n)
{
    int rc = 0;
    if (r->v->row->normalizer == WR_NORM_NFC) rc = wr_nfc_apply(&r->nfc, text, n, &text, &n, r->err);
    if (rc < 0) return rc;
    wr_split_begin(&r->split, text, n);
    for (;;) {
        size_t begin, end;
        rc = wr_split_next(&r->split, &begin, &end, r->err);
        if (rc <= 0) return rc;
        rc = put_piece(r, text + begin, end - begin);
        if (rc < 0) return rc;
    }
}

/* A piece ends where no token holds its last byte beside the next one: merging cannot reach across, and short pieces are fast. */
static int put_by_score(struct run *r, const char *text, size_t n)
{
    const struct wr_vocab *v = r->v;
    int rc = 0;
    bool prefix = r->begins && v->config.space_prefix;
    char *copy = NULL;
    if (prefix || memmem(text, n, "\xe2\x96\x81", 3)) {
        copy = wr_mem_alloc(r->work.ledger, WR_ACCOUNT_TEXT, n + 1, r->err);
        if (!copy) return r->err->code;
        copy[0] = ' ';
        n = prefix + wr_vocab_write_spaces(text, n, copy + prefix);
        text = copy;
    }
    const uint8_t *bytes = (const uint8_t *)text;
    for (size_t begin = 0, end; begin < n && rc == 0; begin = end) {
        end = begin + 1;
        while (end < n && ((bytes[end] & 0xc0) == 0x80 || wr_pair_has(v->joins, bytes[end - 1], bytes[end]))) end++;
        rc = wr_bpe_piece(&v->bpe, bytes + begin, end - begin, &r->work, &r->ids, &r->n_dropped, r->err);
    }
    wr_mem_free(copy);
    return rc;
}

static int put_bos(struct run *r, int32_t first)
{
    int32_t bos = r->bos;
    r->bos = -1;
    return bos >= 0 && bos != first ? wr_ids_put(&r->ids, bos, r->err) : 0;
}

static int put_special(struct run *r, int32_t id)
{
    int rc = put_bos(r, id);
    r->begins = true;
    return rc < 0 ? rc : wr_ids_put(&r->ids, id, r->err);
}

/* Text without special tokens. "gpt2": a run of bytes that are not UTF-8 is a piece of its own. */
static int put_text(struct run *r, const char *text, size_t n)
{
    int rc = put_bos(r, -1);
    if (rc == 0 && r->v->by_score) {
        rc = put_by_score(r, text, n);
        r->begins = false;
        return rc;
    }
    while (n > 0 && rc == 0) {
        size_t valid = wr_utf8_valid_prefix((const uint8_t *)text, n);
        rc = valid ? put_valid(r, text, valid) : 0;
        if (rc < 0) return rc;
        text += valid;
        n -= valid;
        size_t bad = 0;
        uint32_t cp;
        while (bad < n && wr_utf8_decode((const uint8_t *)text + bad, n - bad, &cp) <= 0) bad++;
        rc = bad ? put_piece(r, text, bad) : 0;
        text += bad;
        n -= bad;
    }
    return rc;
}

/* First token of the class in text[pos, end): its id, with *at where it begins; -1: none. */
static int32_t find_special(const struct run *r, const struct wr_special_class *c, const char *text, size_t pos, size_t end, size_t *at)
{
    const struct wr_vocab *v = r->v;
    const uint64_t *begins = r->special ? v->begins_any : v->begins_user;
    uint64_t filter = r->special ? c->any : c->user, h = 0;
    size_t length = c->length, hashed = 0;
    if (filter == 0 || end - pos < length) return -1;
    bool rolling = false;
    for (size_t p = pos; p <= end - length; p++) {
        uint8_t first = (uint8_t)text[p], second = p + 1 < end ? (uint8_t)text[p + 1] : 0;
        if (!(c->begins & wr_pair_bit(first, second)) || !wr_pair_has(begins, first, second)) continue;
        if (rolling && p - hashed < length) {
            for (; hashed < p; hashed++) h = wr_hash_step(h, (uint8_t)text[hashed + length]) - c->power * ((uint8_t)text[hashed] + UINT64_C(1));
        } else {
            h = 0;
            for (size_t i = 0; i < length; i++) h = wr_hash_step(h, (uint8_t)text[p + i]);
            hashed = p;
            rolling = true;
        }
        if (!(filter & wr_hash_bit(h))) continue;
        int32_t id = wr_vocab_find_hashed(v, h, text + p, length);
        if (id < 0 || !(wr_vocab_type(v, id) == WR_TOKEN_USER || (r->special && wr_vocab_is_control(v, id)))) continue;
        *at = p;
        return id;
    }
    return -1;
}

static bool may_hold_special(const struct run *r, const char *text, size_t n)
{
    const uint64_t *begins = r->special ? r->v->begins_any : r->v->begins_user;
    for (size_t i = 0; i < n; i++)
        if (wr_pair_has(begins, (uint8_t)text[i], i + 1 < n ? (uint8_t)text[i + 1] : 0)) return true;
    return false;
}

/*
 * Longest special tokens first, each length over all that the longer ones left. A level's gaps between its matches are
 * the next level's texts; the levels are walked depth first, so that ids come out in order and nothing but the levels is
 * kept. Time: text length times number of different lengths.
 */
static int put_partitioned(struct run *r, const char *text, size_t n)
{
    const struct wr_vocab *v = r->v;
    if (!may_hold_special(r, text, n)) return put_text(r, text, n);
    struct level {
        size_t pos, end;
        int32_t id;
    } * levels; /* id: token that follows the gap at work, or -1 */
    levels = wr_mem_array(r->work.ledger, WR_ACCOUNT_TEXT, v->n_classes, sizeof *levels, r->err);
    if (!levels) return r->err->code;
    int rc = 0;
    uint32_t depth = 1;
    levels[0] = (struct level){0, n, -1};
    while (depth > 0 && rc >= 0) {
        struct level *l = &levels[depth - 1];
        if (l->id >= 0) {
            rc = put_special(r, l->id);
            l->id = -1;
            continue;
        }
        if (l->pos >= l->end) {
            depth--;
            continue;
        }
        size_t gap = l->pos, gap_end = l->end;
        const struct wr_special_class *c = &v->classes[depth - 1];
        l->id = find_special(r, c, text, l->pos, l->end, &gap_end);
        l->pos = l->id >= 0 ? gap_end + c->length : l->end;
        if (gap == gap_end) continue;
        if (depth < v->n_classes)
            levels[depth++] = (struct level){gap, gap_end, -1};
        else
            rc = put_text(r, text + gap, gap_end - gap);
    }
    wr_mem_free(levels);
    return rc;
}

int wr_vocab_tokenize(const struct wr_vocab *v, const char *text, size_t n, const struct wr_tokenize *options, struct wr_ledger *ledger, int32_t **ids,
    size_t *n_ids, size_t *n_dropped, weir_err *err)
{
    weir_err local;
    struct run r = {.v = v,
        .special = options->special,
        .begins = true,
        .nfc.ledger = ledger,
        .work.ledger = ledger,
        .work.cancel = options->cancel,
        .err = err ? err : &local};
    *ids = NULL;
    *n_ids = *n_dropped = 0;
    /* NFC at most triples a text, and positions within a piece are 31 bits. */
    if (n > INT32_MAX / 3) return wr_err(err, WEIR_E_INPUT, "the text has %zu bytes, at most %d are tokenized at once", n, INT32_MAX / 3);
    int rc = wr_ids_open(&r.ids, options->max_ids, ledger, r.err);
    if (rc == 0 && !v->by_score) rc = wr_split_open(&r.split, &v->pretok, ledger, r.err);
    r.bos = options->add_bos && v->config.add_bos ? v->config.bos : -1;
    if (rc == 0 && n > 0) rc = put_partitioned(&r, text, n);
    if (rc == 0) rc = put_bos(&r, -1);
    if (rc == 0 && options->add_bos && v->config.add_eos && v->config.eos >= 0) rc = wr_ids_put(&r.ids, v->config.eos, r.err);
    wr_split_close(&r.split);
    wr_nfc_close(&r.nfc);
    wr_bpe_work_close(&r.work);
    if (rc < 0) {
        wr_mem_free(r.ids.ids);
        return rc;
    }
    *ids = r.ids.ids;
    *n_ids = r.ids.n;
    *n_dropped = r.n_dropped;
    return 0;
}
