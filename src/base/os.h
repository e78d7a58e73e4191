/* SPDX-License-Identifier: Apache-2.0 */
/* What the operating system tells: clock, memory that is really available, this process's use. Bodies in os_linux.c. */
#ifndef WR_BASE_OS_H
#define WR_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t wr_clock_ns(void); /* monotonic */

struct wr_os_memory {
    uint64_t available_bytes; /* the smallest of MemAvailable and limit - (usage less reclaimable cache) of every cgroup up the tree, v1 or v2 */
    uint64_t limit_bytes;     /* of that cgroup; 0: no limit is smaller than MemAvailable */
    char origin[64];          /* "MemAvailable" or "cgroup limit 512 MiB" ... */
};
/* root: "" or, in tests, a folder that holds a fake proc and sys tree. */
struct wr_os_memory wr_os_memory(const char *root);

/* CPUs that the cgroup quota allows (rounded up; the smallest up the tree), UINT32_MAX without one. Part of wr_cpu_count (team.h). */
uint32_t wr_os_cpu_quota(const char *root);

/* What the system calls the CPU, in printable ASCII; the machine's architecture where it does not say. */
void wr_os_cpu_name(const char *root, char *name, size_t size);

/* Asks the system to let the threads of this process, those to come included, use the CPU's matrix registers (AMX). False: it does not know them or
 * refuses. It may be asked again. */
bool wr_os_allow_tiles(void);

/* Bytes of the last cache before memory as the system reports it (in a virtual machine that may be the host's); 0: unknown. */
uint64_t wr_os_cache_bytes(const char *root);

struct wr_os_usage {
    uint64_t rss_bytes, peak_rss_bytes; /* VmRSS, VmHWM */
    uint64_t read_bytes, write_bytes;   /* /proc/self/io: what reached the disk */
};
struct wr_os_usage wr_os_usage(void);
/* Time that the threads of this process were ready to run and others had the CPU, summed up; 0 where the system does not say. */
uint64_t wr_os_waited_ns(void);

#endif
