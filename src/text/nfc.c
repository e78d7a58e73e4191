/* SPDX-License-Identifier: Apache-2.0 */
#include "text/nfc.h"

#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"

/* utf8proc's own NFC call takes memory outside the ledger and orders long runs of combining marks in quadratic time. */

struct range {
    int32_t first, last;
};

/* Every code point here is normalized, a starter, and never composes with what stands before it: text is cut in front of
 * them, and only what lies between (with the one character before it) goes through the tables. */
static const struct range simple_ranges[] = {
    {0, 0x2ff},
    {0x400, 0x482},
    {0x48a, 0x58f},
    {0x5d0, 0x5ea},
    {0x620, 0x64a},
    {0xe01, 0xe37},
    {0x2010, 0x2027},
    {0x3000, 0x3029},
    {0x3041, 0x3096},
    {0x30a1, 0x30fa},
    {0x3400, 0x9fff},
    {0xac00, 0xd7a3},
    {0xff00, 0xffef},
    {0x1f000, 0x1faff},
};
/* Hugging Face tokenizers normalize by Unicode 9: a mark that came later (Unicode 10 to 15) is an ordinary character to the models
 * trained with them, which neither moves nor composes. The ranges hold those marks and what stays as it is anyway;
 * and U+11A7, which utf8proc takes for an empty trailing consonant and composes away. */
static const struct range young_ranges[] = {
    {0x7fd, 0x7fd},
    {0x898, 0x8d3},
    {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},
    {0xeba, 0xeba},
    {0x11a7, 0x11a7},
    {0x1715, 0x1715},
    {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},
    {0x10d24, 0x10f85},
    {0x11070, 0x11070},
    {0x1133b, 0x1133b},
    {0x1145e, 0x1145e},
    {0x11839, 0x11a99},
    {0x11d42, 0x11f42},
    {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e4ef},
};

static bool in_ranges(const struct range *ranges, size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n; i++)
        if ((int32_t)cp <= ranges[i].last) return (int32_t)cp >= ranges[i].first;
    return false;
}

static bool is_young(uint32_t cp) { return in_ranges(young_ranges, sizeof young_ranges / sizeof *young_ranges, cp); }
static bool is_simple(uint32_t cp) { return in_ranges(simple_ranges, sizeof simple_ranges / sizeof *simple_ranges, cp) || is_young(cp); }

static int grow(void **p, size_t *capacity, size_t need, size_t size, struct wr_ledger *ledger, weir_err *err)
{
    if (need <= *capacity) return 0;
    size_t bigger = need + need / 2 + 256;
    void *q = *p ? wr_mem_resize(*p, bigger * size, err) : wr_mem_array(ledger, WR_ACCOUNT_TEXT, bigger, size, err);
    if (!q) return err->code;
    *p = q;
    *capacity = bigger;
    return 0;
}

static int put_bytes(struct wr_nfc *f, const char *bytes, size_t n, weir_err *err)
{
    void *p = f->out;
    int rc = grow(&p, &f->out_capacity, f->n_out + n, 1, f->ledger, err);
    f->out = p;
    if (rc < 0) return rc;
    if (n) memcpy(f->out + f->n_out, bytes, n);
    f->n_out += n;
    return 0;
}

static unsigned combining_class(int32_t cp) { return (unsigned)utf8proc_get_property(cp)->combining_class & 0xff; }

/* Canonical ordering: each run of non-starters, stably by combining class. `spare` has room for n. */
static void order_marks(int32_t *points, size_t n, int32_t *spare)
{
    for (size_t begin = 0; begin < n;) {
        unsigned class = combining_class(points[begin]);
        size_t end = begin + 1;
        bool ordered = true;
        if (class == 0) {
            begin = end;
            continue;
        }
        size_t count[257] = {0};
        count[class + 1]++;
        for (; end < n; end++) {
            unsigned next = combining_class(points[end]);
            if (next == 0) break;
            ordered = ordered && next >= class;
            class = next;
            count[class + 1]++;
        }
        if (!ordered) {
            for (unsigned i = 1; i < 257; i++) count[i] += count[i - 1];
            for (size_t i = begin; i < end; i++) spare[count[combining_class(points[i])]++] = points[i];
            memcpy(points + begin, spare, (end - begin) * sizeof *points);
        }
        begin = end;
    }
}

static int normalize_run(struct wr_nfc *f, const char *text, size_t n, weir_err *err)
{
    enum { DECOMPOSED_MAX = 8 }; /* canonical decompositions have at most 4 code points */
    f->n_points = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int length = wr_utf8_decode((const uint8_t *)text + i, n - i, &cp);
        if (length <= 0) return wr_err(err, WEIR_E_FAIL, "normalization was given invalid UTF-8");
        i += (size_t)length;
        void *p = f->points;
        int rc = grow(&p, &f->points_capacity, 2 * (f->n_points + DECOMPOSED_MAX), sizeof *f->points, f->ledger, err);
        f->points = p;
        if (rc < 0) return rc;
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, f->points + f->n_points, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE, NULL);
        if (k < 0 || k > DECOMPOSED_MAX) return wr_err(err, WEIR_E_FAIL, "normalization of U+%04X failed", (unsigned)cp);
        f->n_points += (size_t)k;
    }
    order_marks(f->points, f->n_points, f->points + f->n_points);
    utf8proc_ssize_t k = utf8proc_normalize_utf32(f->points, (utf8proc_ssize_t)f->n_points, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (k < 0) return wr_err(err, WEIR_E_FAIL, "normalization failed: %s", utf8proc_errmsg(k));
    for (utf8proc_ssize_t i = 0; i < k; i++) {
        uint8_t bytes[4];
        int rc = put_bytes(f, (const char *)bytes, (size_t)wr_utf8_encode((uint32_t)f->points[i], bytes), err);
        if (rc < 0) return rc;
    }
    return 0;
}

int wr_nfc_apply(struct wr_nfc *f, const char *text, size_t n, const char **result, size_t *n_result, weir_err *err)
{
    *result = text;
    *n_result = n;
    f->n_out = 0;
    size_t done = 0, last = 0; /* last: where a run that follows would begin, with the simple character before it */
    bool changed = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp = (uint8_t)text[i];
        int length = cp < 0x80 ? 1 : wr_utf8_decode((const uint8_t *)text + i, n - i, &cp);
        if (length <= 0) return wr_err(err, WEIR_E_FAIL, "normalization was given invalid UTF-8");
        if (is_simple(cp)) {
            /* The tables must not see a young mark, so the run does not begin with it. */
            last = is_young(cp) ? i + (size_t)length : i;
            i += (size_t)length;
            continue;
        }
        size_t end = i;
        do {
            end += (size_t)length;
            if (end >= n) break;
            length = wr_utf8_decode((const uint8_t *)text + end, n - end, &cp);
            if (length <= 0) return wr_err(err, WEIR_E_FAIL, "normalization was given invalid UTF-8");
        } while (!is_simple(cp));
        int rc = put_bytes(f, text + done, last - done, err);
        if (rc == 0) rc = normalize_run(f, text + last, end - last, err);
        if (rc < 0) return rc;
        changed = true;
        done = last = i = end;
    }
    if (!changed) return 0;
    int rc = put_bytes(f, text + done, n - done, err);
    if (rc < 0) return rc;
    *result = f->out;
    *n_result = f->n_out;
    return 0;
}

void wr_nfc_close(struct wr_nfc *f)
{
    wr_mem_free(f->out);
    wr_mem_free(f->points);
    *f = (struct wr_nfc){.ledger = f->ledger};
}
