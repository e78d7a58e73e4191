/* SPDX-License-Identifier: Apache-2.0 */
#include "device_fake.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/os.h"

#define FENCE_DELAY_NS 30000

uint64_t fake_uploads, fake_waits;
void (*fake_at_fence)(void);

struct fake {
    uint8_t *host[WR_N_REGIONS];
    _Atomic uint64_t late; /* the newest fence's clock value */
};

static int attach(struct wr_device *d, enum wr_region region, void *host, uint64_t bytes, weir_err *err)
{
    struct fake *f = d->private_state;
    void *p = mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return wr_err(err, WEIR_E_NOMEM, "fake device");
    f->host[region] = host;
    d->base[region] = p;
    d->bytes[region] = bytes;
    memcpy(p, host, bytes); /* vectors are there already; extents follow by upload */
    return 0;
}

static void upload(struct wr_device *d, const struct wr_ref *ref)
{
    struct fake *f = d->private_state;
    memcpy(d->base[ref->handle] + ref->offset, f->host[ref->handle] + ref->offset, ref->bytes);
    memset(f->host[ref->handle] + ref->offset, 0xa5, ref->bytes);
    __atomic_fetch_add(&fake_uploads, 1, __ATOMIC_RELAXED);
}

static void *address(const struct wr_device *d, const struct wr_ref *ref) { return d->base[ref->handle] + ref->offset; }

static uint64_t fence(struct wr_device *d)
{
    struct fake *f = d->private_state;
    uint64_t now = wr_clock_ns() + FENCE_DELAY_NS;
    if (fake_at_fence != NULL) fake_at_fence();
    atomic_store(&f->late, now);
    return now;
}

static bool done(struct wr_device *d, uint64_t fence_value)
{
    bool is = wr_clock_ns() >= fence_value;
    if (!is) __atomic_fetch_add(&fake_waits, 1, __ATOMIC_RELAXED);
    return is;
}

static void close_device(struct wr_device *d)
{
    for (int r = 0; r < WR_N_REGIONS; r++)
        if (d->base[r] != NULL) munmap(d->base[r], d->bytes[r] > 0 ? d->bytes[r] : 1);
    free(d->private_state);
    d->private_state = NULL;
}

static int attach_shared(struct wr_device *d, enum wr_region region, void *host, uint64_t bytes, weir_err *err)
{
    d->base[region] = host;
    d->bytes[region] = bytes;
    return 0;
}

static void close_shared(struct wr_device *d)
{
    free(d->private_state);
    d->private_state = NULL;
}

void fake_device_shared(struct wr_device *d)
{
    static const struct wr_device_ops ops = {"fake-shared", attach_shared, NULL, address, fence, done, close_shared};
    *d = (struct wr_device){.ops = &ops, .private_state = calloc(1, sizeof(struct fake))};
}

void fake_device(struct wr_device *d)
{
    static const struct wr_device_ops ops = {"fake", attach, upload, address, fence, done, close_device};
    *d = (struct wr_device){.ops = &ops, .private_state = calloc(1, sizeof(struct fake))};
}
