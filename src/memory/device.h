/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where weights, keys and values live while kernels use them. The pager hands out wr_refs, and only the device turns a
 * ref into an address; a device may keep memory of its own (upload copies what was read from disk) and may finish work
 * later than it was submitted (fences). The CPU is the device whose memory is the arena and whose fences are always done.
 */
#ifndef WR_MEMORY_DEVICE_H
#define WR_MEMORY_DEVICE_H

#include "base/mem.h"

enum wr_tier { WR_TIER_DISK, WR_TIER_RAM, WR_N_TIERS };
enum wr_region { WR_REGION_PINNED, WR_REGION_RING, WR_REGION_KV, WR_REGION_TREE, WR_REGION_SEAM, WR_N_REGIONS };

struct wr_ref {
    uint8_t tier;
    uint8_t handle; /* enum wr_region */
    uint64_t offset, bytes;
    uint64_t fence; /* the data is there once this fence is done; 0: already */
};

struct wr_device;
struct wr_device_ops {
    const char *name;
    /* Makes [host, host + bytes) known as region `handle`. */
    int (*attach)(struct wr_device *, enum wr_region, void *host, uint64_t bytes, weir_err *);
    /* What was read from disk into the host side of a region becomes visible to kernels. NULL: same memory. */
    void (*upload)(struct wr_device *, const struct wr_ref *);
    void *(*address)(const struct wr_device *, const struct wr_ref *);
    /* A fence for all work submitted so far; whether it is done. */
    uint64_t (*fence)(struct wr_device *);
    bool (*done)(struct wr_device *, uint64_t fence);
    void (*close)(struct wr_device *); /* NULL: nothing to do */
};
struct wr_device {
    const struct wr_device_ops *ops;
    uint8_t *base[WR_N_REGIONS]; /* kernels' side */
    uint64_t bytes[WR_N_REGIONS];
    void *private_state;
};

void wr_device_cpu(struct wr_device *);

static inline void *wr_ref_address(const struct wr_device *d, const struct wr_ref *ref) { return d->ops->address(d, ref); }

#endif
