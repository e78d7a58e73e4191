/* SPDX-License-Identifier: Apache-2.0 */
#include "io/probe.h"

#include "base/os.h"

#define HUGE_BYTES (2u << 20) /* buffers are whole huge pages, as those of the pager lie in some: 4 KiB pages halve the rate of 1 MiB requests */
#define LOOK_NS 100000000     /* at *cancel, while nothing arrives */

/* Every place of the file once, in an order that looks random, before any comes again: a full cycle modulo a power of two, without what is beyond the end.
 * So a buffered read finds nothing in the page cache. */
struct places {
    uint64_t n, mask, at;
};

static uint64_t next_place(struct places *p)
{
    do p->at = (p->at * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407)) & p->mask;
    while (p->at >= p->n);
    return p->at;
}

struct probe {
    const struct wr_io_probe *what;
    const struct wr_io_ops *ops;
    struct wr_io *io;
    const struct wr_file *file;
    uint8_t *buffers; /* [depth] */
    struct places places;
};

static void submit(struct probe *p, uint64_t buffer)
{
    const struct wr_io_request request = {.file = p->file,
        .offset = next_place(&p->places) * p->what->bytes,
        .bytes = p->what->bytes,
        .dst = p->buffers + buffer * p->what->bytes,
        .tag = buffer};
    (void)p->ops->submit(p->io, &request); /* there are as many slots as buffers */
}

static int measure(struct probe *p, double *rate, weir_err *err)
{
    const struct wr_io_probe *what = p->what;
    const uint64_t begin = wr_clock_ns(), most = what->bytes_total / what->bytes;
    uint64_t end = begin, submitted = 0, got = 0;
    int code = 0;
    bool over = false;
    if (what->reading != NULL) atomic_store(what->reading, true);
    for (; submitted < what->depth && (submitted < most || submitted == 0); submitted++) submit(p, submitted);
    while (got < submitted) {
        struct wr_io_done done[4];
        const uint32_t n = p->ops->wait(p->io, done, 4, LOOK_NS);
        const bool cancelled = what->cancel != NULL && *what->cancel != 0;
        if (n > 0) end = wr_clock_ns();
        if (cancelled && code == 0) code = wr_err(err, WEIR_E_CANCELLED, "interrupted");
        over = over || cancelled || (double)(end - begin) >= what->seconds * 1e9;
        for (uint32_t i = 0; i < n; i++, got++) {
            if (done[i].code != 0 && code == 0) {
                code = done[i].code;
                if (err != NULL) *err = done[i].err;
            }
            if (code != 0 || over || submitted >= most) continue;
            submit(p, done[i].tag);
            submitted++;
        }
    }
    if (what->reading != NULL) atomic_store(what->reading, false);
    if (what->bytes_read != NULL) *what->bytes_read += got * what->bytes;
    if (code == 0) *rate = (double)(got * what->bytes) / ((double)(end - begin) * 1e-9);
    return code;
}

int wr_io_probe(const char *path, const struct wr_io_probe *what, struct wr_ledger *ledger, double *rate, weir_err *err)
{
    struct wr_file file;
    struct wr_arena arena = {0};
    struct probe p = {.what = what, .file = &file};
    int rc = wr_file_open(&file, path, what->direct ? WEIR_DIRECT_ON : WEIR_DIRECT_OFF, NULL, err);
    if (rc < 0) return rc;
    const uint64_t bytes = wr_round_up((uint64_t)what->bytes * what->depth, HUGE_BYTES);
    p.places.n = file.bytes / what->bytes;
    if (p.places.n == 0) {
        rc = wr_err(
            err, WEIR_E_USAGE, "%s: a file of %llu bytes is too small for requests of %u", wr_file_label(path), (unsigned long long)file.bytes, what->bytes);
        goto out;
    }
    while (p.places.mask < p.places.n - 1) p.places.mask = 2 * p.places.mask + 1;
    p.places.at = wr_clock_ns() & p.places.mask; /* the next measurement begins elsewhere */
    rc = wr_arena_open(&arena, bytes, err);
    if (rc < 0) {
        rc = wr_err(err, rc, "the system refused %llu bytes to read into; free memory or raise its limit", (unsigned long long)bytes);
        goto out;
    }
    p.buffers = wr_arena_take(&arena, ledger, WR_ACCOUNT_RING, bytes, err);
    if (p.buffers == NULL) {
        rc = WEIR_E_BUDGET;
        goto out;
    }
    const struct wr_io_config config = {.depth = what->depth, .memory = p.buffers, .memory_bytes = bytes, .files = &file, .n_files = 1, .ledger = ledger};
    wr_file_drop_cache(&file);
    rc = wr_io_open(&p.io, &p.ops, what->engine, &config, err);
    if (rc < 0) goto out;
    rc = measure(&p, rate, err);
    p.ops->close(p.io);
out:
    wr_arena_close(&arena);
    wr_file_close(&file);
    return rc;
}
