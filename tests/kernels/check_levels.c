/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: names, caps, what the CPU has. */
#include "check.h"

#ifdef WR_ARM64
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf refused;
static void refuse(int signal) { siglongjmp(refused, 1); }

/* Whether the instruction that a level is named after is one of this CPU: executed, without the assembler's having to know it. */
static bool runs(const char *level)
{
    struct sigaction act = {.sa_handler = refuse}, old;
    sigaction(SIGILL, &act, &old);
    volatile bool known = false;
    if (sigsetjmp(refused, 1) == 0) {
        if (!strcmp(level, "dotprod"))
            __asm__ volatile(".inst 0x4e809400" ::: "v0"); /* sdot v0.4s, v0.16b, v0.16b */
        else
            __asm__ volatile(".inst 0x4e80a400" ::: "v0"); /* smmla v0.4s, v0.16b, v0.16b */
        known = true;
    }
    sigaction(SIGILL, &old, NULL);
    return known;
}
#endif

#ifdef WR_X86
#include <sys/syscall.h>
#include <unistd.h>

/* Whether the system lets this process use tiles, asked here. */
static bool tiles_allowed(void)
{
    enum { ARCH_GET_XCOMP_PERM = 0x1022, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    uint64_t allowed = 0;
    syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
    return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &allowed) == 0 && (allowed >> XFEATURE_XTILEDATA & 1) != 0;
}
#endif

/* What the compiler's run time or the CPU itself says: an oracle that is not ours. */
static bool expected(const char *name)
{
#ifdef WR_X86
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avxvnni")) return avx2 && __builtin_cpu_supports("avxvnni");
    if (!strcmp(name, "avx512")) return avx512;
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    if (!strcmp(name, "avx512vnni")) return vnni;
    if (!strcmp(name, "amx")) return vnni && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") && tiles_allowed();
#endif
#ifdef WR_ARM64
    if (!strcmp(name, "neon")) return true;
    if (!strcmp(name, "dotprod") || !strcmp(name, "i8mm")) return runs(name);
#endif
    return !strcmp(name, "scalar");
}

void check_levels(struct check *c)
{
    static const char *const unknown[] = {"nonsense", "AVX2", "avx", "avx2 ", "avx5120", " "};
    const struct wr_kernels *k, *best = NULL;
    const char *name;
    bool available;
    uint32_t n = 0;
    for (; (k = wr_kernels_level(n, &name, &available)) != NULL; n++) {
        if (available) best = k;
        check_that(c, k->level == name && available == expected(name), "level %u, %s: available %d", n, name, available);
        check_that(c,
            k->rmsnorm && k->quantize && k->matmul && k->add && k->silu_mul && k->gelu_mul && k->rope && k->kv_store && k->attend_tile && k->all_finite,
            "level %s lacks an op", name);
        check_that(c, wr_kernels_best(name) == best, "cap %s gives %s, the best up to it is %s", name, wr_kernels_best(name)->level, best->level);
    }
    check_that(c, n > 0 && wr_kernels_level(0, NULL, NULL) == c->ref && !strcmp(c->ref->level, "scalar"), "level 0 is not the reference");
    check_that(c, wr_kernels_level(n, &name, &available) == NULL && wr_kernels_level(UINT32_MAX, NULL, NULL) == NULL, "there is a level past the end");
    check_that(c, wr_kernels_best(NULL) == best && wr_kernels_best("") == best, "no cap does not give %s", best->level);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        check_that(c, wr_kernels_best(unknown[i]) == NULL, "\"%s\" is taken for a level", unknown[i]);
    static const uint32_t bytes[WR_N_KV_TYPES][2] = {{256, 256}, {512, 512}, {136, 136}, {136, 72}}; /* of a key, of a value */
    for (int type = 0; type < WR_N_KV_TYPES; type++)
        check_that(c, wr_kv_key_bytes(type, 128) == bytes[type][0] && wr_kv_value_bytes(type, 128) == bytes[type][1], "bytes of %s", wr_kv_name(type));
}

void bench_levels(struct check *c) { (void)c; }
