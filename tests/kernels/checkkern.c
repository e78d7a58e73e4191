/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/os.h"

#define PATTERN 0xa5
#define MAX_PRINTED 40

struct header { /* lies before the buffer, in its first page */
    size_t bytes, mapping_bytes;
    uint8_t *mapping, *end;
};

bool check_that(struct check *c, bool ok, const char *format, ...)
{
    if (ok) {
        c->passed++;
        return true;
    }
    c->failed++;
    if (c->failed > MAX_PRINTED) return false;
    va_list args;
    va_start(args, format);
    printf("FAILED: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    if (c->failed == MAX_PRINTED) printf("(further failures are counted, not printed)\n");
    return false;
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next(struct check *c)
{
    uint64_t z = c->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t check_u32(struct check *c) { return (uint32_t)(next(c) >> 32); }
uint32_t check_below(struct check *c, uint32_t n) { return (uint32_t)((uint64_t)check_u32(c) * n >> 32); }
float check_uniform(struct check *c) { return (float)(int32_t)(check_u32(c) & ~0xffu) * 0x1p-31f; }

float check_normal(struct check *c) /* Box and Muller 1958 */
{
    float u = ((float)(check_u32(c) >> 8) + 1.0f) * 0x1p-24f, v = check_uniform(c);
    return sqrtf(-2.0f * logf(u)) * cosf(3.14159265f * v);
}

const char *check_data_name(enum check_data kind)
{
    static const char *const names[] = {"normal", "max", "alternate", "zero", "tiny", "denormal", "outlier", "wide"};
    _Static_assert(sizeof names / sizeof names[0] == CHECK_N_DATA, "a name for each kind");
    return names[kind];
}

void check_fill(struct check *c, enum check_data kind, float *x, size_t n)
{
    static const float levels[] = {1.0f, 127.0f, 0.37f, 3e4f};
    const float level = levels[check_below(c, 4)];
    for (size_t i = 0; i < n; i++) {
        float sign = check_below(c, 2) ? 1.0f : -1.0f;
        switch (kind) {
        case CHECK_MAX:
            x[i] = level;
            break;
        case CHECK_ALTERNATE:
            x[i] = i % 2 ? -level : level;
            break;
        case CHECK_ZERO:
            x[i] = 0.0f * sign;
            break;
        case CHECK_TINY:
            x[i] = check_normal(c) * 0x1p-100f;
            break;
        case CHECK_DENORMAL:
            x[i] = sign * wr_f32_from_bits(check_u32(c) >> (9 + check_below(c, 20)));
            break;
        case CHECK_OUTLIER:
            x[i] = check_normal(c) * (check_below(c, 40) == 0 ? 1e4f : 1.0f);
            break;
        case CHECK_WIDE:
            x[i] = sign * ldexpf(1.0f + fabsf(check_uniform(c)), (int)check_below(c, 52) - 40);
            break;
        default:
            x[i] = check_normal(c);
        }
    }
}

void *check_alloc(size_t bytes, size_t align)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (bytes + align + sizeof(struct header) + 2 * page - 1) / page * page, total = body + page;
    uint8_t *mapping = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED || mprotect(mapping + body, page, PROT_NONE)) {
        fprintf(stderr, "checkkern: no memory for a buffer of %zu bytes\n", bytes);
        exit(2);
    }
    memset(mapping, PATTERN, body);
    uint8_t *p = (uint8_t *)((uintptr_t)(mapping + body - bytes) & ~(uintptr_t)(align - 1));
    struct header h = {bytes, total, mapping, mapping + body};
    uint8_t *at = (uint8_t *)((uintptr_t)p & ~(uintptr_t)(page - 1)); /* the header starts the page before the one of p */
    memcpy(at - page, &h, sizeof h);
    return p;
}

static struct header header_of(const void *p)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct header h;
    memcpy(&h, (const uint8_t *)((uintptr_t)p & ~(page - 1)) - page, sizeof h);
    return h;
}

bool check_intact(const void *p)
{
    struct header h = header_of(p);
    const uint8_t *start = p;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (const uint8_t *b = (const uint8_t *)((uintptr_t)p & ~(page - 1)) - page + sizeof h; b < start; b++) { /* behind the header */
        if (*b != PATTERN) return false;
    }
    for (const uint8_t *b = start + h.bytes; b < h.end; b++) {
        if (*b != PATTERN) return false;
    }
    return true;
}

void check_free(void *p)
{
    if (!p) return;
    struct header h = header_of(p);
    munmap(h.mapping, h.mapping_bytes);
}

size_t check_diff_f32(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (wr_bits_from_f32(a[i]) != wr_bits_from_f32(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return i;
    }
    return n;
}

double check_seconds(void (*fn)(void *), void *arg)
{
    double best = INFINITY;
    uint64_t calls = 1;
    fn(arg);
    for (int round = 0; round < 6;) {
        uint64_t start = wr_clock_ns();
        for (uint64_t i = 0; i < calls; i++) fn(arg);
        double ns = (double)(wr_clock_ns() - start);
        if (ns < 10e6) {
            calls = ns < 1e5 ? calls * 10 : (uint64_t)((double)calls * 12e6 / ns) + 1;
            continue;
        }
        if (ns * 1e-9 / (double)calls < best) best = ns * 1e-9 / (double)calls;
        round++;
    }
    return best;
}

void check_rate(const char *op, const char *shape, const char *level, double amount, double seconds, const char *unit)
{
    printf("%-12s %-28s %-11s %9.2f %s\n", op, shape, level, amount / seconds * 1e-9, unit);
    fflush(stdout);
}

static const struct {
    const char *name;
    void (*check)(struct check *), (*bench)(struct check *);
} groups[] = {
#define CHECK_GROUP(name) {#name, check_##name, bench_##name},
#include "groups.def"
#undef CHECK_GROUP
};
#define N_GROUPS (sizeof groups / sizeof groups[0])

static int usage(void)
{
    fprintf(stderr, "usage: checkkern [--seed N] [--only GROUP] [--level NAME] [--quick] [--bench]\ngroups:");
    for (size_t i = 0; i < N_GROUPS; i++) fprintf(stderr, " %s", groups[i].name);
    fprintf(stderr, "\n");
    return 2;
}

/* The available levels go into c->level; returns false if --level names none. */
static bool find_levels(struct check *c, const char *only)
{
    const char *name;
    bool available, known = false;
    const struct wr_kernels *k;
    for (uint32_t i = 0; (k = wr_kernels_level(i, &name, &available)) != NULL; i++) {
        if (i == 0) c->ref = k;
        if (only && strcmp(only, name) != 0) continue;
        known = true;
        printf("level %s: %s\n", name, i == 0 ? "the reference" : available ? "checked" : "SKIPPED, this machine does not have it");
        if (i > 0 && available && c->n_levels < CHECK_MAX_LEVELS) c->level[c->n_levels++] = k;
    }
    return known;
}

int main(int argc, char **argv)
{
    struct check c = {.seed = 1};
    const char *only = NULL, *level = NULL;
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--bench"))
            bench = true;
        else if (!strcmp(argv[i], "--quick"))
            c.quick = true;
        else if (value && !strcmp(argv[i], "--seed"))
            c.seed = strtoull(value, NULL, 0), i++;
        else if (value && !strcmp(argv[i], "--only"))
            only = value, i++;
        else if (value && !strcmp(argv[i], "--level"))
            level = value, i++;
        else
            return usage();
    }
    wr_num_thread_init();
    printf("seed %llu\n", (unsigned long long)c.seed);
    if (!find_levels(&c, level)) return usage();
    bool found = false;
    for (size_t g = 0; g < N_GROUPS; g++) {
        if (only && strcmp(only, groups[g].name) != 0) continue;
        found = true;
        c.state = c.seed;
        for (const char *s = groups[g].name; *s; s++) c.state = c.state * 1099511628211u + (uint8_t)*s;
        if (bench) {
            groups[g].bench(&c);
            continue;
        }
        printf("checking %s\n", groups[g].name); /* a crash says at least where */
        fflush(stdout);
        uint64_t start = wr_clock_ns();
        uint32_t passed = c.passed, failed = c.failed;
        groups[g].check(&c);
        printf("%s: %u passed, %u failed, %.1f s\n", groups[g].name, c.passed - passed, c.failed - failed, (double)(wr_clock_ns() - start) * 1e-9);
        fflush(stdout);
    }
    if (!found) return usage();
    if (bench) return 0;
    printf("%u passed, %u failed\n", c.passed, c.failed);
    return c.failed ? 1 : 0;
}
