/* SPDX-License-Identifier: Apache-2.0 */
/* What is available, from fake proc and sys trees: limits in containers, a page cache that is full, odd files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/os.h"
#include "base/team.h"

#define MIB(n) ((uint64_t)(n) << 20)
#define V1_NONE "9223372036854771712\n"

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    if (f == NULL) fail_msg("cannot write %s", full);
    fputs(text, f);
    fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int begin(void **state)
{
    (void)state;
    strcpy(root, "fake-root-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    put("/proc/meminfo", "MemTotal:       24684084 kB\nMemFree:        1000000 kB\nMemAvailable:   20971520 kB\nBuffers:          216672 kB\n");
    return 0;
}

static int end(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void expect(uint64_t bytes, const char *origin)
{
    struct wr_os_memory m = wr_os_memory(root);
    if (m.available_bytes != bytes || strcmp(m.origin, origin) != 0)
        fail_msg("%llu from '%s', expected %llu from '%s'", (unsigned long long)m.available_bytes, m.origin, (unsigned long long)bytes, origin);
}

static void v2(const char *group)
{
    char line[300];
    snprintf(line, sizeof line, "0::%s\n", group);
    put("/proc/self/cgroup", line);
    put("/proc/self/mountinfo",
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate\n");
}

static void v1(const char *group)
{
    char lines[400];
    snprintf(lines, sizeof lines, "9:name=systemd:/x\n4:cpuset,memory:%s\n2:cpu,cpuacct:%s\n0::/\n", group, group);
    put("/proc/self/cgroup", lines);
    put("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
}

static void host_only(void **state)
{
    (void)state;
    expect(MIB(20480), "MemAvailable");
    put("/proc/self/cgroup", "");
    put("/proc/self/mountinfo", "nonsense\n\n1 2 3\n- - -\n35 31 0:32 / /a - cgroup2\n");
    expect(MIB(20480), "MemAvailable");
    put("/proc/meminfo", "MemTotal: 5 kB\nMemFree: 1024 kB\n");
    expect(MIB(1), "MemFree");
    put("/proc/meminfo", "MemAvailable: lots\n");
    expect(0, "MemFree");
}

static void v2_limits(void **state)
{
    (void)state;
    v2("/a/b");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1048576\n");
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    expect(MIB(20480), "MemAvailable");
    /* A limit on the parent alone. */
    put("/sys/fs/cgroup/a/memory.max", "536870912\n");
    put("/sys/fs/cgroup/a/memory.current", "104857600\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 104857600\n");
    expect(MIB(412), "cgroup limit 512 MiB");
    /* The smallest of the tree. */
    put("/sys/fs/cgroup/a/b/memory.max", "314572800\n");
    expect(MIB(299), "cgroup limit 300 MiB");
    put("/sys/fs/cgroup/a/b/memory.high", "max\n");
    expect(MIB(299), "cgroup limit 300 MiB");
    put("/sys/fs/cgroup/a/b/memory.high", "209715200\n");
    expect(MIB(199), "cgroup limit 200 MiB");
    put("/sys/fs/cgroup/a/b/memory.max", "1000\n");
    expect(0, "cgroup limit 0 KiB");
    put("/sys/fs/cgroup/a/b/memory.high", "");
    put("/sys/fs/cgroup/a/b/memory.max", "junk\n");
    expect(MIB(412), "cgroup limit 512 MiB");
}

/* The same limit and the same programs, with an empty and with a full page cache: the same number. */
static void cache_is_not_use(void **state)
{
    (void)state;
    v2("/box");
    put("/sys/fs/cgroup/box/memory.max", "314572800\n");
    put("/sys/fs/cgroup/box/memory.current", "20971520\n");
    put("/sys/fs/cgroup/box/memory.stat", "anon 20971520\nfile 0\ninactive_file 0\nactive_file 0\nslab_reclaimable 0\n");
    expect(MIB(280), "cgroup limit 300 MiB");
    put("/sys/fs/cgroup/box/memory.current", "314572800\n");
    put("/sys/fs/cgroup/box/memory.stat",
        "anon 20971520\nfile 293601280\nkernel 1048576\nshmem 0\ninactive_file 209715200\nactive_file 82837504\nslab_reclaimable 1048576\nslab 1048576\n");
    expect(MIB(280), "cgroup limit 300 MiB");

    v1("/box");
    put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "314572800\n");
    put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "20971520\n");
    put("/sys/fs/cgroup/memory/box/memory.stat", "cache 0\ninactive_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n");
    expect(MIB(280), "cgroup limit 300 MiB");
    put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "314572800\n");
    put("/sys/fs/cgroup/memory/box/memory.stat", "cache 5\ninactive_file 7\nactive_file 7\ntotal_inactive_file 209715200\ntotal_active_file 83886080\n");
    expect(MIB(280), "cgroup limit 300 MiB");
}

static void v1_limits(void **state)
{
    (void)state;
    v1("/p/c");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NONE);
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "999999999999\n");
    put("/sys/fs/cgroup/memory/p/memory.limit_in_bytes", V1_NONE);
    put("/sys/fs/cgroup/memory/p/c/memory.limit_in_bytes", V1_NONE);
    expect(MIB(20480), "MemAvailable");
    put("/sys/fs/cgroup/memory/p/memory.limit_in_bytes", "67108864\n");
    put("/sys/fs/cgroup/memory/p/memory.usage_in_bytes", "4194304\n");
    expect(MIB(60), "cgroup limit 64 MiB");
    put("/sys/fs/cgroup/memory/p/c/memory.limit_in_bytes", "50331648\n");
    put("/sys/fs/cgroup/memory/p/c/memory.usage_in_bytes", "0\n");
    expect(MIB(48), "cgroup limit 48 MiB");
}

/* In a container the mount's root is the group itself, and the path of /proc/self/cgroup is the host's or "/". */
static void containers(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
    put("/proc/self/mountinfo",
        "34 31 0:32 /docker/other /elsewhere rw - cgroup cgroup rw,memory\n35 31 0:32 /docker/abc /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/mem ory/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/mem ory/memory.usage_in_bytes", "0\n");
    expect(MIB(100), "cgroup limit 100 MiB");
    put("/sys/fs/cgroup/mem ory/inner/memory.limit_in_bytes", "52428800\n");
    expect(MIB(50), "cgroup limit 50 MiB");
    /* A group that the mount does not show, and one outside of the namespace. */
    put("/proc/self/cgroup", "4:memory:/docker/abcd\n");
    put("/proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n");
    expect(MIB(100), "cgroup limit 100 MiB");
    put("/proc/self/cgroup", "4:memory:/../../x\n");
    put("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n");
    expect(MIB(100), "cgroup limit 100 MiB");
    put("/proc/self/cgroup", "4:memory:/\n");
    expect(MIB(100), "cgroup limit 100 MiB");
}

static void quotas(void **state)
{
    (void)state;
    assert_int_equal(wr_os_cpu_quota(root), UINT32_MAX);
    v2("/a/b");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(wr_os_cpu_quota(root), UINT32_MAX);
    put("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    assert_int_equal(wr_os_cpu_quota(root), 2);
    put("/sys/fs/cgroup/a/b/cpu.max", "10000 100000\n");
    assert_int_equal(wr_os_cpu_quota(root), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "10000 0\n");
    assert_int_equal(wr_os_cpu_quota(root), 2);
    v1("/a");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(wr_os_cpu_quota(root), UINT32_MAX);
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
    assert_int_equal(wr_os_cpu_quota(root), 3);
}

static void this_process(void **state)
{
    (void)state;
    struct wr_os_usage before = wr_os_usage();
    assert_true(before.rss_bytes > 100000 && before.peak_rss_bytes >= before.rss_bytes);
    size_t n = 16 << 20;
    volatile char *block = malloc(n);
    for (size_t i = 0; i < n; i += 4096) block[i] = 1;
    struct wr_os_usage during = wr_os_usage();
    free((void *)block);
    assert_true(during.rss_bytes >= before.rss_bytes + n - (1 << 20));
    assert_true(wr_os_usage().peak_rss_bytes >= during.rss_bytes - (1 << 20));

    struct wr_os_memory m = wr_os_memory("");
    assert_true(m.available_bytes > 0 && m.origin[0] != '\0');
    uint32_t cpus = wr_cpu_count();
    assert_true(cpus >= 1 && cpus <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    uint64_t a = wr_clock_ns();
    usleep(2000);
    assert_true(wr_clock_ns() - a >= 2000000);
}

static void expect_cpu(const char *cpuinfo, const char *expected)
{
    char name[16];
    put("/proc/cpuinfo", cpuinfo);
    wr_os_cpu_name(root, name, sizeof name);
    assert_string_equal(name, expected);
}

static void test_cpu_name(void **state)
{
    char name[64], machine[64] = "";
    FILE *uname = popen("uname -m", "r");
    assert_non_null(fgets(machine, sizeof machine, uname));
    pclose(uname);
    machine[strcspn(machine, "\n")] = '\0';
    wr_os_cpu_name(root, name, sizeof name); /* no such file */
    assert_string_equal(name, machine);
    expect_cpu("processor\t: 0\nmodel\t\t: 85\nmodel name\t: A(R) CPU\nmodel name\t: B\n", "A(R) CPU");
    expect_cpu("model name\t: A name that is longer than its room\n", "A name that is ");
    expect_cpu("model name\t: a\tb\xc3\xa4\n", "a?b??");
    expect_cpu("model name\t: \n", machine);
}

static void caches(void **state)
{
    assert_int_equal(wr_os_cache_bytes(root), 0); /* it does not say */
    put("/sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/size", "2048K\n");
    assert_int_equal(wr_os_cache_bytes(root), 2048 << 10);
    put("/sys/devices/system/cpu/cpu0/cache/index2/size", "491520K\n");
    assert_int_equal(wr_os_cache_bytes(root), 480ull << 20);
    put("/sys/devices/system/cpu/cpu0/cache/index2/size", "99999999999999999999999K\n"); /* no size of a cache */
    assert_int_equal(wr_os_cache_bytes(root), 2048 << 10);
}

static void *busy(void *until)
{
    while (wr_clock_ns() < *(uint64_t *)until) {}
    return NULL;
}

/* Three threads that share one CPU are kept waiting two thirds of their time; a thread alone that sleeps waits for nothing. */
static void waiting(void **state)
{
    cpu_set_t before, one;
    pthread_t thread[2];
    if (access("/proc/self/schedstat", R_OK) != 0) skip();
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &before) && CPU_COUNT(&one) == 0) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    uint64_t waited = wr_os_waited_ns(), until = wr_clock_ns() + 300000000;
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, busy, &until), 0);
    while (wr_clock_ns() < until - 50000000) {} /* the others are still there: a thread that ended is not counted */
    assert_true(wr_os_waited_ns() - waited > 200000000);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    sched_setaffinity(0, sizeof before, &before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(host_only, begin, end),
        cmocka_unit_test_setup_teardown(v2_limits, begin, end),
        cmocka_unit_test_setup_teardown(cache_is_not_use, begin, end),
        cmocka_unit_test_setup_teardown(v1_limits, begin, end),
        cmocka_unit_test_setup_teardown(containers, begin, end),
        cmocka_unit_test_setup_teardown(quotas, begin, end),
        cmocka_unit_test_setup_teardown(test_cpu_name, begin, end),
        cmocka_unit_test_setup_teardown(caches, begin, end),
        cmocka_unit_test(this_process),
        cmocka_unit_test(waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
