/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/device.h"

static int attach(struct wr_device *d, enum wr_region region, void *host, uint64_t bytes, weir_err *err)
{
    d->base[region] = host;
    d->bytes[region] = bytes;
    return 0;
}

static void *address(const struct wr_device *d, const struct wr_ref *ref) { return d->base[ref->handle] + ref->offset; }

static uint64_t fence(struct wr_device *d) { return 0; }

static bool done(struct wr_device *d, uint64_t f) { return true; }

void wr_device_cpu(struct wr_device *d)
{
    static const struct wr_device_ops ops = {"cpu", attach, NULL, address, fence, done, NULL};
    *d = (struct wr_device){.ops = &ops};
}
