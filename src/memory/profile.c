/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/num.h"
#include "base/team.h"
#include "io/io.h"

#define FIRST_LINE "weir-profile 3"
#define LARGEST UINT64_C(1000000000000000000) /* of any number: far beyond what there is, and its sums fit */

/* "key threads value": a measurement for a number of threads. */
static const struct {
    const char *key;
    size_t member;
    double unit;
} by_threads[] = {
    {"read", offsetof(struct wr_profile, read), 1},
    {"fma", offsetof(struct wr_profile, fma), 1},
    {"int8", offsetof(struct wr_profile, int8), 1},
    {"int16", offsetof(struct wr_profile, int16), 1},
    {"attend", offsetof(struct wr_profile, attend), 1},
    {"attend_many", offsetof(struct wr_profile, attend_many), 1},
    {"stage_ns", offsetof(struct wr_profile, stage_seconds), 1e-9},
    {"stage_cached_ns", offsetof(struct wr_profile, stage_cached_seconds), 1e-9},
    {"in_pass_thousandths", offsetof(struct wr_profile, in_pass), 1e-3},
};
/* "key format int8|int16 threads value" */
static const struct {
    const char *key;
    size_t member;
} by_format[] = {
    {"decode", offsetof(struct wr_profile_format, decode)},
    {"decode_short", offsetof(struct wr_profile_format, decode_short)},
    {"prefill", offsetof(struct wr_profile_format, prefill)},
    {"mix", offsetof(struct wr_profile_format, mix)},
};
/* "key text": the rest of the line. */
static const struct {
    const char *key;
    size_t member, size;
} texts[] = {
    {"cpu", offsetof(struct wr_profile, cpu), sizeof((struct wr_profile *)0)->cpu},
    {"level", offsetof(struct wr_profile, level), sizeof((struct wr_profile *)0)->level},
    {"file_system", offsetof(struct wr_profile, file_system), sizeof((struct wr_profile *)0)->file_system},
};
/* "key value" */
static const struct {
    const char *key;
    size_t member;
    double unit;
    uint64_t most;
} numbers_alone[] = {
    {"steady_thousandths", offsetof(struct wr_profile, steady), 1e-3, 1000},
    {"activate", offsetof(struct wr_profile, activate), 1, LARGEST},
    {"disk_first_thousandths", offsetof(struct wr_profile, disk_first), 1e-3, LARGEST},
};
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static double *numbers(void *of, size_t member) { return (double *)(void *)((uint8_t *)of + member); }
static const double *const_numbers(const void *of, size_t member) { return (const double *)(const void *)((const uint8_t *)of + member); }

/* ---- parsing --------------------------------------------------------------------------- */

struct line {
    const char *at, *end; /* what is left of it */
};

static bool is_word(const char *text, size_t n, const char *word) { return n == strlen(word) && memcmp(text, word, n) == 0; }

static bool take_word(struct line *l, const char **word, size_t *n)
{
    const char *blank = memchr(l->at, ' ', (size_t)(l->end - l->at));
    *word = l->at;
    *n = (size_t)((blank != NULL ? blank : l->end) - l->at);
    l->at = blank != NULL ? blank + 1 : l->end;
    return *n > 0;
}

static bool take_one_of(struct line *l, const char *no, const char *yes, bool *is_yes)
{
    const char *word;
    size_t n;
    if (!take_word(l, &word, &n)) return false;
    *is_yes = is_word(word, n, yes);
    return *is_yes || is_word(word, n, no);
}

static bool take_number(struct line *l, uint64_t lo, uint64_t hi, uint64_t *out)
{
    const char *word;
    size_t n;
    if (!take_word(l, &word, &n) || n > 19) return false;
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        if (word[i] < '0' || word[i] > '9') return false;
        value = value * 10 + (uint64_t)(word[i] - '0');
    }
    *out = value;
    return value >= lo && value <= hi;
}

/* "threads value" at the end of a line, into [WR_PROFILE_THREADS]; each once. */
static const char *take_measurement(struct wr_profile *p, struct line *l, double unit, double *to)
{
    uint64_t threads, value;
    if (!take_number(l, 1, WR_TEAM_MAX, &threads)) return "a number of threads is missing or is none";
    if (!take_number(l, 1, LARGEST, &value)) return "the measured number is missing or is none";
    uint32_t i = 0;
    while (i < p->n_threads && p->threads[i] != threads) i++;
    if (i == p->n_threads) return "the number of threads is not one of the line 'threads'";
    if (to[i] != 0) return "the measurement is there twice";
    to[i] = (double)value * unit;
    return NULL;
}

/* "threads a b c": the numbers that were measured, ascending. */
static const char *take_threads(struct wr_profile *p, struct line *l)
{
    while (l->at < l->end) {
        uint64_t least = p->n_threads > 0 ? p->threads[p->n_threads - 1] + 1 : 1, threads;
        if (p->n_threads == WR_PROFILE_THREADS) return "there are too many numbers of threads";
        if (!take_number(l, least, WR_TEAM_MAX, &threads)) return "these are no ascending numbers of threads";
        p->threads[p->n_threads++] = (uint32_t)threads;
    }
    return NULL;
}

static const char *take_disk(struct wr_profile *p, struct line *l)
{
    const char *engine;
    size_t n;
    uint64_t bytes, depth, rate;
    if (p->n_disk == WR_PROFILE_DISK) return "there are too many measurements of the disk";
    struct wr_profile_disk *d = &p->disk[p->n_disk];
    if (!take_word(l, &engine, &n) || n >= sizeof d->engine) return "the I/O engine is missing or too long";
    if (!take_one_of(l, "buffered", "direct", &d->direct)) return "'direct' or 'buffered' is missing";
    if (!take_number(l, 1, UINT32_MAX, &bytes) || !take_number(l, 1, WR_IO_MAX_DEPTH, &depth) || !take_number(l, 1, LARGEST, &rate))
        return "bytes, depth or rate is missing or impossible";
    memcpy(d->engine, engine, n);
    d->engine[n] = '\0';
    d->bytes = (uint32_t)bytes;
    d->depth = (uint32_t)depth;
    d->rate = (double)rate;
    p->n_disk++;
    return NULL;
}

/* "set bytes threads value": sizes ascend. */
static const char *take_set(struct wr_profile *p, struct line *l)
{
    uint64_t bytes;
    const uint64_t last = p->n_sets > 0 ? p->set[p->n_sets - 1].bytes : 0;
    if (!take_number(l, last > 0 ? last : 1, LARGEST, &bytes)) return "the bytes of the set are missing, or less than before";
    if (bytes != last) {
        if (p->n_sets == WR_PROFILE_SETS) return "there are too many sets";
        p->set[p->n_sets++].bytes = bytes;
    }
    return take_measurement(p, l, 1, p->set[p->n_sets - 1].rate);
}

/* "together ratio more", both in thousandths; ratios ascend. */
static const char *take_together(struct wr_profile *p, struct line *l)
{
    uint64_t ratio, more;
    const double last = p->n_together > 0 ? p->together[p->n_together - 1].ratio : 0;
    if (p->n_together == WR_PROFILE_TOGETHER) return "there are too many";
    if (!take_number(l, 1, LARGEST, &ratio) || (double)ratio * 1e-3 <= last) return "the ratio is missing, or not more than before";
    if (!take_number(l, 0, LARGEST, &more)) return "the measured number is missing or is none";
    p->together[p->n_together++] = (struct wr_profile_together){(double)ratio * 1e-3, (double)more * 1e-3};
    return NULL;
}

static const char *take_format(struct wr_profile *p, struct line *l, size_t member)
{
    const char *word;
    char name[16];
    size_t n;
    bool precise;
    if (!take_word(l, &word, &n)) return "the format is missing";
    const bool fits = n < sizeof name;
    if (fits) memcpy(name, word, n);
    name[fits ? n : 0] = '\0';
    if (!take_one_of(l, "int8", "int16", &precise)) return "'int8' or 'int16' is missing";
    const struct wr_quant *quant = wr_quant_find_name(name);
    if (quant == NULL) { /* of a newer weir */
        l->at = l->end;
        return NULL;
    }
    struct wr_profile_format *f = p->format, *end = f + p->n_formats;
    while (f < end && (f->type != quant->id || f->precise != precise)) f++;
    if (f == p->format + LENGTH(p->format)) return "there are too many formats";
    if (f == end) {
        *f = (struct wr_profile_format){.type = quant->id, .precise = precise};
        p->n_formats++;
    }
    return take_measurement(p, l, 1, numbers(f, member));
}

static const char *take_text(struct line *l, char *to, size_t size)
{
    size_t n = (size_t)(l->end - l->at);
    if (to[0] != '\0') return "it is there twice";
    if (n == 0 || n >= size) return "the text is missing or too long";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)l->at[i] < ' ' || (unsigned char)l->at[i] > '~') return "the text has bytes that are none";
    memcpy(to, l->at, n);
    l->at = l->end;
    return NULL;
}

/* NULL, or what is wrong with the line. */
static const char *take_line(struct wr_profile *p, struct line *l)
{
    const char *key;
    size_t n;
    uint64_t value;
    if (!take_word(l, &key, &n)) return "it does not begin with a key";
    for (size_t i = 0; i < LENGTH(texts); i++)
        if (is_word(key, n, texts[i].key)) return take_text(l, (char *)p + texts[i].member, texts[i].size);
    for (size_t i = 0; i < LENGTH(by_threads); i++)
        if (is_word(key, n, by_threads[i].key)) return take_measurement(p, l, by_threads[i].unit, numbers(p, by_threads[i].member));
    for (size_t i = 0; i < LENGTH(by_format); i++)
        if (is_word(key, n, by_format[i].key)) return take_format(p, l, by_format[i].member);
    for (size_t i = 0; i < LENGTH(numbers_alone); i++)
        if (is_word(key, n, numbers_alone[i].key)) {
            if (*numbers(p, numbers_alone[i].member) != 0) return "the measurement is there twice";
            if (!take_number(l, 1, numbers_alone[i].most, &value)) return "the measured number is missing or is impossible";
            *numbers(p, numbers_alone[i].member) = (double)value * numbers_alone[i].unit;
            return NULL;
        }
    if (is_word(key, n, "disk")) return take_disk(p, l);
    if (is_word(key, n, "set")) return take_set(p, l);
    if (is_word(key, n, "together")) return take_together(p, l);
    if (is_word(key, n, "threads")) return take_threads(p, l);
    if (is_word(key, n, "cpus")) {
        if (p->n_cpus != 0 || !take_number(l, 1, UINT32_MAX, &value)) return "it is no number of CPUs, or there twice";
        p->n_cpus = (uint32_t)value;
    } else if (is_word(key, n, "taken")) {
        if (p->taken != 0 || !take_number(l, 0, LARGEST, &value)) return "it is no time, or there twice";
        p->taken = (int64_t)value;
    } else if (is_word(key, n, "seconds")) {
        if (p->seconds != 0 || !take_number(l, 1, UINT32_MAX, &value)) return "it is no number of seconds, or there twice";
        p->seconds = (uint32_t)value;
    } else {
        l->at = l->end; /* of a newer weir */
    }
    return NULL;
}

int wr_profile_parse(struct wr_profile *p, const char *text, size_t n, weir_err *err)
{
    const char *wrong = n > WR_PROFILE_BYTES ? "the file is too large" : n == 0 || text[n - 1] != '\n' ? "its last line is cut" : NULL;
    uint32_t number = 0;
    memset(p, 0, sizeof *p);
    for (const char *end = text + n; wrong == NULL && text < end;) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        struct line l = {text, line_end};
        if (number++ == 0)
            wrong = is_word(text, (size_t)(line_end - text), FIRST_LINE) ? NULL : "it is no profile of this version";
        else if ((wrong = take_line(p, &l)) == NULL && l.at != l.end)
            wrong = "more follows";
        text = line_end + 1;
    }
    if (wrong == NULL) return 0;
    if (number == 0) return wr_err(err, WEIR_E_FORMAT, "profile: %s; measure again with weir probe", wrong); /* of the whole */
    return wr_err(err, WEIR_E_FORMAT, "profile, line %u: %s; measure again with weir probe", number, wrong);
}

/* ---- printing -------------------------------------------------------------------------- */

struct print {
    char *text;
    size_t n, capacity;
    bool full;
};

static void put(struct print *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct print *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = out->full ? -1 : vsnprintf(out->text + out->n, out->capacity - out->n, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= out->capacity - out->n)
        out->full = true;
    else
        out->n += (size_t)n;
}

/* At least 1, so that what was measured stays so. */
static uint64_t whole(double value) { return value < 1 ? 1 : value > (double)LARGEST ? LARGEST : (uint64_t)(value + 0.5); }

size_t wr_profile_print(const struct wr_profile *p, char *text, size_t capacity)
{
    struct print out = {.text = text, .capacity = capacity};
    put(&out, "%s\n", FIRST_LINE);
    for (size_t i = 0; i < LENGTH(texts); i++)
        if (((const char *)p)[texts[i].member] != '\0') put(&out, "%s %s\n", texts[i].key, (const char *)p + texts[i].member);
    if (p->n_cpus > 0) put(&out, "cpus %u\n", p->n_cpus);
    put(&out, "taken %" PRIu64 "\n", p->taken > 0 ? (uint64_t)p->taken : 0);
    for (uint32_t i = 0; i < p->n_disk; i++) {
        const struct wr_profile_disk *d = &p->disk[i];
        put(&out, "disk %s %s %u %u %" PRIu64 "\n", d->engine, d->direct ? "direct" : "buffered", d->bytes, d->depth, whole(d->rate));
    }
    if (p->seconds > 0) put(&out, "seconds %u\n", p->seconds);
    for (size_t i = 0; i < LENGTH(numbers_alone); i++) {
        const double value = *const_numbers(p, numbers_alone[i].member);
        if (value > 0) put(&out, "%s %" PRIu64 "\n", numbers_alone[i].key, whole(value / numbers_alone[i].unit));
    }
    if (p->n_threads > 0) put(&out, "threads");
    for (uint32_t t = 0; t < p->n_threads; t++) put(&out, " %u%s", p->threads[t], t + 1 < p->n_threads ? "" : "\n");
    for (size_t i = 0; i < LENGTH(by_threads); i++) {
        const double *values = const_numbers(p, by_threads[i].member);
        for (uint32_t t = 0; t < p->n_threads; t++)
            if (values[t] > 0) put(&out, "%s %u %" PRIu64 "\n", by_threads[i].key, p->threads[t], whole(values[t] / by_threads[i].unit));
    }
    for (uint32_t i = 0; i < p->n_sets; i++)
        for (uint32_t t = 0; t < p->n_threads; t++)
            if (p->set[i].rate[t] > 0) put(&out, "set %" PRIu64 " %u %" PRIu64 "\n", p->set[i].bytes, p->threads[t], whole(p->set[i].rate[t]));
    for (uint32_t i = 0; i < p->n_together; i++)
        put(&out, "together %" PRIu64 " %" PRIu64 "\n", whole(p->together[i].ratio * 1e3), (uint64_t)(p->together[i].more * 1e3 + 0.5));
    for (uint32_t f = 0; f < p->n_formats; f++) {
        const struct wr_quant *quant = wr_quant_find(p->format[f].type);
        for (size_t i = 0; i < LENGTH(by_format); i++) {
            const double *values = const_numbers(&p->format[f], by_format[i].member);
            for (uint32_t t = 0; t < p->n_threads; t++)
                if (values[t] > 0)
                    put(&out, "%s %s %s %u %" PRIu64 "\n", by_format[i].key, quant->name, p->format[f].precise ? "int16" : "int8", p->threads[t],
                        whole(values[t]));
        }
    }
    return out.full ? 0 : out.n;
}

/* ---- how good it is -------------------------------------------------------------------- */

double wr_profile_steadiness(const struct wr_profile *p)
{
    double most = 1; /* of a rate over its ceiling */
    for (uint32_t t = 0; t < p->n_threads; t++) {
        if (p->read[t] > 0 && p->attend[t] > most * p->read[t]) most = p->attend[t] / p->read[t];
        for (uint32_t i = 0; i < p->n_formats; i++) {
            const struct wr_profile_format *f = &p->format[i];
            if (p->read[t] > 0 && f->decode[t] > most * p->read[t]) most = f->decode[t] / p->read[t];
            if (f->mix[t] > 0 && f->prefill[t] > most * f->mix[t]) most = f->prefill[t] / f->mix[t];
        }
    }
    return (p->steady > 0 ? p->steady : 1) / most;
}

/* ---- the disk's surface ---------------------------------------------------------------- */

/* Between (x0, y0) and (x1, y1), by the logarithm of x. */
static double between(double x0, double y0, double x1, double y1, double x) { return x1 > x0 ? y0 + (y1 - y0) * wr_ln(x / x0) / wr_ln(x1 / x0) : y0; }

struct surface {
    const struct wr_profile *p;
    const char *engine;
    bool direct;
};

static bool on_surface(const struct surface *s, const struct wr_profile_disk *d) { return d->direct == s->direct && strcmp(d->engine, s->engine) == 0; }

/* Along the sizes that were measured at this depth; there is one. */
static double rate_at_depth(const struct surface *s, uint32_t depth, double bytes)
{
    const struct wr_profile_disk *below = NULL, *above = NULL;
    for (uint32_t i = 0; i < s->p->n_disk; i++) {
        const struct wr_profile_disk *d = &s->p->disk[i];
        if (!on_surface(s, d) || d->depth != depth) continue;
        if (d->bytes <= bytes && (below == NULL || d->bytes > below->bytes)) below = d;
        if (d->bytes >= bytes && (above == NULL || d->bytes < above->bytes)) above = d;
    }
    if (below == NULL) return above->rate;
    if (above == NULL) return below->rate;
    return between(below->bytes, below->rate, above->bytes, above->rate, bytes);
}

double wr_profile_disk_rate(const struct wr_profile *p, const char *engine, bool direct, uint64_t bytes, uint32_t depth)
{
    if (strcmp(engine, "auto") == 0) {
        const double rate = wr_profile_disk_rate(p, "uring", direct, bytes, depth);
        return rate > 0 ? rate : wr_profile_disk_rate(p, "pread", direct, bytes, depth);
    }
    const struct surface s = {p, engine, direct};
    uint32_t below = 0, above = 0; /* depths; 0: none */
    for (uint32_t i = 0; i < p->n_disk; i++) {
        const struct wr_profile_disk *d = &p->disk[i];
        if (!on_surface(&s, d)) continue;
        if (d->depth <= depth && d->depth > below) below = d->depth;
        if (d->depth >= depth && (above == 0 || d->depth < above)) above = d->depth;
    }
    if (below == 0 && above == 0) return 0;
    if (below == 0 || above == 0) return rate_at_depth(&s, below + above, (double)bytes);
    return between(below, rate_at_depth(&s, below, (double)bytes), above, rate_at_depth(&s, above, (double)bytes), depth);
}
