/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate. Pass times and chances are moving means by class (of rows, of depth). Between classes a time is interpolated; means that fall where rows grow
 * are pooled first, since a pass does not become shorter by more rows: what looks so is noise. Beyond the largest class known, a time goes on with the last
 * slope, up to twice the rows: so a gate that knows few times finds its way to long drafts by doubling. What a burst may lose is bounded by
 * other means: n rows cost at most n / m passes of m.
 */
#include "generate/gate.h"

#include <math.h>
#include <string.h>

#define TIME_RATE 0.0625 /* of the moving means, once there are that many values */
#define CHANCE_RATE 0.015625
#define FAST_RATE 0.25   /* of a second mean, which tells of another kind of text */
#define FIRST_CHANCE 0.5 /* where nothing was seen */
#define INHERITED 3
#define MARGIN 1.005      /* what a longer draft must be better by */
#define PROMPT_RISK 0.5   /* of a plain pass, what the prompt's time may cover */
#define FIRST_INTERVAL 16 /* between attempts one deeper; each that changes nothing doubles it */
#define LAST_INTERVAL 64

/* 0..8 have classes of their own; 9-12, 13-16, 17-24, 25-32, 33-48, 49-64, and all above. */
static uint32_t class_of(uint32_t n)
{
    if (n <= 8) return n;
    if (n > 64) return WR_GATE_CLASSES - 1;
    uint32_t high = 31 - (uint32_t)__builtin_clz(n - 1);
    return 9 + 2 * (high - 3) + ((n - 1) >> (high - 1) & 1);
}

static double moved(double mean, double value, uint32_t n, double rate)
{
    double first = 1.0 / (n + 1.0);
    return mean + (value - mean) * (first > rate ? first : rate);
}

void wr_gate_init(struct wr_gate *g)
{
    memset(g, 0, sizeof *g);
    g->wait = g->interval = FIRST_INTERVAL;
}

void wr_gate_expect(struct wr_gate *g, uint32_t rows, double seconds)
{
    if (!(seconds > 0)) return;
    struct wr_gate_time *t = &g->time[class_of(rows)];
    t->expected_rows = rows;
    t->expected_seconds = seconds;
}

void wr_gate_prompt(struct wr_gate *g, double seconds) { g->prompt += seconds; }

void wr_gate_expect_draft(struct wr_gate *g, double seconds)
{
    if (g->n_drafts == 0) g->draft_seconds = seconds;
}

/* Pass times of the classes of which something is known, ascending in rows and in seconds. */
struct curve {
    uint32_t n;
    double rows[WR_GATE_CLASSES], seconds[WR_GATE_CLASSES], weight[WR_GATE_CLASSES];
};

static struct curve curve_of(const struct wr_gate *g)
{
    struct curve c = {0};
    double factor = 0; /* measured / expected, of the last class that has both */
    for (uint32_t i = 0; i < WR_GATE_CLASSES; i++) {
        const struct wr_gate_time *t = &g->time[i];
        if (t->n > 0 && t->expected_seconds > 0) factor = t->seconds / t->expected_seconds;
        if (t->n == 0 && t->expected_seconds == 0) continue;
        c.rows[c.n] = t->n > 0 ? t->rows : t->expected_rows;
        c.seconds[c.n] = t->n > 0 ? t->seconds : t->expected_seconds * (factor > 0 ? factor : 1);
        c.weight[c.n++] = t->n == 0 ? 0.01 : t->n * TIME_RATE < 1 ? t->n : 1 / TIME_RATE;
    }
    for (uint32_t i = 1; i < c.n; i++) { /* pools: those from `first` to i become their mean, until it is not below what comes before */
        double sum = c.seconds[i] * c.weight[i], weight = c.weight[i];
        uint32_t first = i;
        while (first > 0 && c.seconds[first - 1] > sum / weight) {
            first--;
            sum += c.seconds[first] * c.weight[first];
            weight += c.weight[first];
        }
        if (first == i) continue;
        for (uint32_t k = first; k <= i; k++) c.seconds[k] = sum / weight;
    }
    return c;
}

/* Likely seconds of a pass of `rows` rows; *most: what it hardly exceeds. Something is known. */
static double seconds_of(const struct curve *c, double rows, double *most)
{
    uint32_t above = 0;
    while (above < c->n && c->rows[above] < rows) above++;
    if (above == 0) return *most = c->seconds[0];
    const double from = c->rows[above - 1], base = c->seconds[above - 1];
    double likely = base;
    *most = base * rows / from;
    if (above < c->n) {
        const double more = (c->seconds[above] - base) * (rows - from) / (c->rows[above] - from);
        likely += more;
        if (base + 2 * more < *most) *most = base + 2 * more; /* times are about convex in the rows: below the line */
        if (c->seconds[above] < *most) *most = c->seconds[above];
    } else if (above > 1)
        likely += (base - c->seconds[above - 2]) * (rows - from) / (from - c->rows[above - 2]);
    return likely < *most ? likely : *most;
}

double wr_gate_seconds(const struct wr_gate *g, uint32_t rows)
{
    struct curve c = curve_of(g);
    double most;
    return c.n == 0 ? 0 : seconds_of(&c, rows, &most);
}

/* The chance at a depth: of its class, or of the nearest one less deep that was seen. */
static double chance_at(const struct wr_gate *g, uint32_t depth)
{
    uint32_t i = class_of(depth);
    while (i > 0 && g->chance[i].n == 0) i--;
    return g->chance[i].n == 0 ? FIRST_CHANCE : g->chance[i].accepted;
}

double wr_gate_tokens(const struct wr_gate *g, uint32_t k, uint32_t match_length)
{
    double tokens = 1, path = 1;
    for (uint32_t i = 0; i < k; i++) tokens += path *= chance_at(g, match_length + i);
    return tokens;
}

double wr_gate_expected(double a, uint32_t k)
{
    double tokens = 1;
    for (uint32_t i = 0; i < k; i++) tokens = 1 + a * tokens;
    return tokens;
}

/* What an attempt may lose: gains so far and shares of the time, that of the prompt no more than a part of a plain pass. */
static double reserve_of(const struct wr_gate *g, double plain)
{
    return g->saved + WR_GATE_RISK * g->elapsed + fmin(WR_GATE_RISK * g->prompt, PROMPT_RISK * plain);
}

/* The shortest draft whose rate is within MARGIN of the best; *deepest: the longest that may be tried. */
static uint32_t best_of(const struct wr_gate *g, uint32_t available, uint32_t match_length, uint32_t *deepest)
{
    struct curve c = curve_of(g);
    double rate[WR_GATE_MAX + 1] = {0}, best = 0, tokens = 1, path = 1, most;
    const double plain = seconds_of(&c, 1, &most), reserve = reserve_of(g, plain), reach = 2 * c.rows[c.n - 1];
    *deepest = 0;
    for (uint32_t k = 0; k <= available && k + 1 <= reach; k++) {
        double seconds = seconds_of(&c, k + 1, &most) + k * g->draft_seconds;
        if (k > 0) tokens += path *= chance_at(g, match_length + k - 1);
        if (k > 0 && most + k * g->draft_seconds - plain > reserve) continue;
        *deepest = k;
        rate[k] = tokens / seconds;
        if (rate[k] > best) best = rate[k];
    }
    uint32_t k = 0;
    while (rate[k] * MARGIN < best) k++;
    return k;
}

uint32_t wr_gate_best(const struct wr_gate *gate, double a, uint32_t most, double *rate)
{
    struct wr_gate g = *gate;
    memset(g.chance, 0, sizeof g.chance);
    g.chance[0] = (struct wr_gate_chance){a, a, 1}; /* of every depth, since none is seen */
    g.elapsed = INFINITY;                           /* any attempt is covered */
    uint32_t deepest;
    const uint32_t k = best_of(&g, most < WR_GATE_MAX ? most : WR_GATE_MAX, 0, &deepest);
    *rate = wr_gate_expected(a, k) / (wr_gate_seconds(&g, k + 1) + k * g.draft_seconds);
    return k;
}

uint32_t wr_gate_choose(struct wr_gate *g, uint32_t available, uint32_t match_length)
{
    if (available == 0 || g->time[1].n == 0) return 0; /* what a plain pass takes is measured first */
    uint32_t deepest, best = best_of(g, available < WR_GATE_MAX ? available : WR_GATE_MAX, match_length, &deepest);
    bool same = best == g->last;
    g->last = best;
    if (g->wait > 0) g->wait--;
    if (g->wait > 0) return best;
    g->interval = !same ? FIRST_INTERVAL : g->interval < LAST_INTERVAL ? g->interval * 2 : LAST_INTERVAL;
    g->wait = g->interval;
    g->shorter = !g->shorter && best > 0;
    uint32_t k = best, class = class_of(best + 1);
    if (g->shorter) /* the class below */
        while (k > 0 && class_of(k + 1) == class) k--;
    else /* all of the class above */
        while (k < deepest && class_of(k + 2) <= class + 1) k++;
    return k;
}

static void tell_chance(struct wr_gate *g, uint32_t depth, bool accepted)
{
    const uint32_t class = class_of(depth);
    struct wr_gate_chance *c = &g->chance[class];
    if (c->n == 0) { /* what was taken for its chance until now counts as some values */
        c->accepted = c->fast = chance_at(g, depth);
        c->n = INHERITED;
    }
    c->accepted = moved(c->accepted, accepted, c->n, CHANCE_RATE);
    c->n += 2;
    c->fast += (accepted - c->fast) * FAST_RATE;
    /* The fast mean's standard deviation is sqrt(p (1 - p) rate / (2 - rate)). Four of them, and some, by chance are rare: begin anew, here and deeper. */
    if (fabs(c->fast - c->accepted) < 0.1 + 3 * sqrt(c->accepted * (1 - c->accepted) * FAST_RATE / (2 - FAST_RATE))) return;
    c->accepted = c->fast;
    c->n = INHERITED;
    for (uint32_t i = class + 1; i < WR_GATE_CLASSES; i++) g->chance[i].n = 0;
}

uint32_t wr_gate_reach(const struct wr_gate *g, uint32_t most_rows, double *seconds)
{
    const struct curve c = curve_of(g);
    double most;
    const double plain = seconds_of(&c, 1, &most), reserve = reserve_of(g, plain), reach = 2 * c.rows[c.n - 1];
    uint32_t rows = 1;
    for (uint32_t i = 1; i <= most_rows; i++) {
        seconds[i - 1] = seconds_of(&c, i, &most);
        if (i == rows + 1 && i <= reach && most + (i - 1) * g->draft_seconds - plain <= reserve) rows = i;
    }
    return rows;
}

void wr_gate_report_tree(
    struct wr_gate *g, uint32_t proposed, uint32_t accepted, uint32_t more, uint32_t asked, uint32_t rows, double seconds, double draft_seconds)
{
    wr_gate_report(g, 0, proposed, accepted, rows, seconds, 0);
    if (asked > 0) g->draft_seconds = moved(g->draft_seconds, draft_seconds / asked, g->n_drafts++, TIME_RATE);
    g->elapsed += draft_seconds;
    g->saved += more * g->time[1].seconds - draft_seconds;
}

void wr_gate_report(struct wr_gate *g, uint32_t match_length, uint32_t proposed, uint32_t accepted, uint32_t rows, double seconds, double draft_seconds)
{
    struct wr_gate_time *t = &g->time[class_of(rows)];
    t->rows = moved(t->rows, rows, t->n, TIME_RATE);
    t->seconds = moved(t->seconds, seconds, t->n, TIME_RATE);
    t->n++;
    for (uint32_t i = 0; i < proposed && i <= accepted; i++) tell_chance(g, match_length + i, i < accepted);
    if (draft_seconds > 0 && proposed > 0) g->draft_seconds = moved(g->draft_seconds, draft_seconds / proposed, g->n_drafts++, TIME_RATE);
    g->elapsed += seconds + draft_seconds;
    g->saved -= draft_seconds;
    if (rows > 1) g->saved += accepted * g->time[1].seconds + g->time[1].seconds - seconds;
}
