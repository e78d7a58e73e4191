/* SPDX-License-Identifier: Apache-2.0 */
/* The levels, their op tables, and which of them this CPU and its operating system can run. */
#include "kernels/kernels.h"

#include <string.h>
#include "base/os.h"
#include "kernels/matmul.h"
#include "kernels/ops.h"

#ifdef WR_X86
#include <cpuid.h>

/* Bits of the features that a level is compiled with (kernels/meson.build), and of the register state that the system must save for them: a CPU may
 * have AVX-512 and the system not keep its registers over a task switch. */
enum {
    LEAF1_ECX_AVX2 = 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29, /* FMA, OSXSAVE, AVX, F16C */
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_ECX_VNNI = 1 << 11,
    LEAF7_1_EAX_AVX_VNNI = 1 << 4,
    LEAF7_EDX_AMX = 1 << 24 | 1 << 25, /* TILE, INT8 */
    XCR0_AVX = 0x06,                   /* xmm, ymm */
    XCR0_AVX512 = 0xe6,                /* and mask registers, upper halves of zmm 0-15, zmm 16-31 */
    XCR0_AMX = XCR0_AVX512 | 3 << 17,  /* and the tiles with their shapes */
};
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */

static bool cpu_has(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint32_t leaf7_ecx, uint32_t leaf7_edx, uint32_t xcr0)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1_ecx) != leaf1_ecx) return false;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* OSXSAVE is in every leaf1_ecx */
    if ((low & xcr0) != xcr0) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & leaf7_ebx) == leaf7_ebx && (c & leaf7_ecx) == leaf7_ecx && (d & leaf7_edx) == leaf7_edx;
}

static bool cpu_has_avx2(void) { return cpu_has(LEAF1_ECX_AVX2, LEAF7_EBX_AVX2, 0, 0, XCR0_AVX); }
static bool cpu_has_avxvnni(void)
{
    uint32_t a, b, c, d;
    return cpu_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & LEAF7_1_EAX_AVX_VNNI) != 0;
}
static bool cpu_has_avx512(void) { return cpu_has(LEAF1_ECX_AVX2, LEAF7_EBX_AVX2 | LEAF7_EBX_AVX512, 0, 0, XCR0_AVX512); }
static bool cpu_has_avx512vnni(void) { return cpu_has(LEAF1_ECX_AVX2, LEAF7_EBX_AVX2 | LEAF7_EBX_AVX512, LEAF7_ECX_VNNI, 0, XCR0_AVX512); }
static bool cpu_has_tiles(void) { return cpu_has(LEAF1_ECX_AVX2, LEAF7_EBX_AVX2 | LEAF7_EBX_AVX512, LEAF7_ECX_VNNI, LEAF7_EDX_AMX, XCR0_AMX); }
static bool cpu_has_amx(void) { return cpu_has_tiles() && wr_os_allow_tiles(); }
#endif

#ifdef WR_ARM64
#include <sys/auxv.h>

/* NEON itself is part of AArch64. */
static bool cpu_has_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
static bool cpu_has_i8mm(void) { return getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#endif

static const struct wr_kernels levels[] = {
#define KERNEL_LEVEL(suffix, name, test, ops)                                                                                                                  \
    {name, wr_rmsnorm_##ops, wr_quantize_##ops, wr_matmul_##suffix, wr_add_##ops, wr_silu_mul_##ops, wr_gelu_mul_##ops, wr_rope_##ops, wr_kv_store_##ops,      \
        wr_attend_tile_##ops, wr_all_finite_##ops},
#include "kernels/levels.def"
#undef KERNEL_LEVEL
};

enum {
#define KERNEL_LEVEL(suffix, name, test, ops) LEVEL_##suffix,
#include "kernels/levels.def"
#undef KERNEL_LEVEL
    N_LEVELS
};

static bool level_available(uint32_t i)
{
    switch (i) {
#define KERNEL_LEVEL(suffix, name, test, ops)                                                                                                                  \
    case LEVEL_##suffix:                                                                                                                                       \
        return test;
#include "kernels/levels.def"
#undef KERNEL_LEVEL
    }
    return false;
}

const struct wr_kernels *wr_kernels_level(uint32_t i, const char **name, bool *available)
{
    if (i >= N_LEVELS) return NULL;
    if (name) *name = levels[i].level;
    if (available) *available = level_available(i);
    return &levels[i];
}

const struct wr_kernels *wr_kernels_best(const char *cap)
{
    uint32_t top = N_LEVELS - 1;
    if (cap && cap[0]) {
        for (top = 0; top < N_LEVELS && strcmp(cap, levels[top].level) != 0; top++) {}
        if (top == N_LEVELS) return NULL;
    }
    while (!level_available(top)) top--; /* level 0 runs everywhere */
    return &levels[top];
}

const char *wr_kernels_refused(const char *cap)
{
#ifdef WR_X86
    const char *top = levels[LEVEL_amx].level;
    if ((cap == NULL || cap[0] == '\0' || strcmp(cap, top) == 0) && cpu_has_tiles() && !wr_os_allow_tiles()) return top;
#else
    (void)cap;
#endif
    return NULL;
}
