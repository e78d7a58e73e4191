/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rawread FILE TAPE: what the disk gives for exactly these reads and nothing else, the yardstick for the pager. TAPE is a text
 * file of lines "offset bytes"; they are read in order with direct I/O, `depth` at a time, into memory of huge pages, and one
 * JSON line says how long it took. Extents off the 4096-byte grid are widened to it; "bytes" counts what was really read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/os.h"
#include "io/io.h"

struct extent {
    uint64_t offset;
    uint32_t bytes;
};
struct tape {
    struct extent *extent;
    size_t n;
    uint32_t largest;
};
struct totals {
    uint64_t bytes, reads;
    double seconds;
};

static int complain(const char *text)
{
    fprintf(stderr, "rawread: %s\n", text);
    return 1;
}

static void print_line(void *user, enum weir_log_level level, const char *line)
{
    (void)user;
    if (level != WEIR_LOG_DEBUG) fprintf(stderr, "rawread: %s\n", line);
}

/* A whole decimal number of [least, most]. */
static bool parse(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long x = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || x < least || x > most) return false;
    *out = x;
    return true;
}

static int tape_read(struct tape *tape, const char *path, const struct wr_file *file)
{
    FILE *f = fopen(path, "r");
    size_t room = 0, line = 0;
    char text[256];
    if (f == NULL) {
        fprintf(stderr, "rawread: cannot open %s: %s\n", path, strerror(errno));
        return 1;
    }
    while (fgets(text, sizeof text, f) != NULL) {
        uint64_t offset, bytes, end;
        char extra;
        line++;
        if (text[strspn(text, " \t\r\n")] == '\0') continue;
        bool good = sscanf(text, "%" SCNu64 " %" SCNu64 " %c", &offset, &bytes, &extra) == 2 && bytes > 0 && wr_add_u64(offset, bytes, &end) &&
                    offset < file->bytes && wr_round_up(file->bytes, WR_IO_ALIGN) >= end && bytes <= UINT32_MAX - 2 * WR_IO_ALIGN;
        if (!good) {
            fprintf(stderr, "rawread: %s:%zu is not 'offset bytes' inside a file of %" PRIu64 " bytes\n", path, line, file->bytes);
            goto fail;
        }
        if (tape->n == room) {
            room = room == 0 ? 1024 : 2 * room;
            struct extent *more = realloc(tape->extent, room * sizeof *more);
            if (more == NULL) {
                complain("out of memory");
                goto fail;
            }
            tape->extent = more;
        }
        struct extent *extent = &tape->extent[tape->n++];
        extent->offset = wr_round_down(offset, WR_IO_ALIGN);
        extent->bytes = (uint32_t)(wr_round_up(end, WR_IO_ALIGN) - extent->offset);
        if (extent->bytes > tape->largest) tape->largest = extent->bytes;
    }
    fclose(f);
    return tape->n > 0 ? 0 : complain("the tape is empty");
fail:
    fclose(f);
    return 1;
}

/* The tape, `passes` times or until `seconds` (0: no limit) have gone by; then what is in flight is waited for. */
static int read_tape(const struct wr_io_ops *ops, struct wr_io *io, const struct wr_file *file, const struct tape *tape, uint8_t *memory, uint32_t depth,
    uint64_t passes, double seconds, struct totals *totals)
{
    uint64_t start = wr_clock_ns(), pass = 0;
    uint32_t free_slot[WR_IO_MAX_DEPTH], n_free = depth;
    size_t next = 0;
    struct wr_io_done done[WR_IO_MAX_DEPTH];
    for (uint32_t i = 0; i < depth; i++) free_slot[i] = i;
    for (;;) {
        bool more = pass < passes && (seconds <= 0 || (double)(wr_clock_ns() - start) * 1e-9 < seconds);
        if (!more && n_free == depth) break;
        while (more && n_free > 0) {
            uint32_t slot = free_slot[--n_free];
            struct wr_io_request request = {.file = file, .offset = tape->extent[next].offset, .bytes = tape->extent[next].bytes, .tag = slot};
            request.dst = memory + (uint64_t)slot * tape->largest;
            if (!ops->submit(io, &request)) return complain("the engine took fewer requests than its depth");
            if (++next < tape->n) continue;
            next = 0;
            more = ++pass < passes;
        }
        uint32_t n = ops->wait(io, done, WR_IO_MAX_DEPTH, UINT64_MAX);
        for (uint32_t i = 0; i < n; i++) {
            if (done[i].code != 0) return complain(done[i].err.text);
            free_slot[n_free++] = (uint32_t)done[i].tag;
        }
    }
    bool direct;
    totals->seconds = (double)(wr_clock_ns() - start) * 1e-9;
    ops->stats(io, &totals->bytes, &totals->reads, &direct);
    return direct ? 0 : complain("the reads were not direct");
}

static int usage(void) { return complain("usage: rawread FILE TAPE [--depth 1..64] [--passes N] [--io auto|uring|pread] [--seconds S]") + 1; }

int main(int argc, char **argv)
{
    const char *engine = "auto";
    uint64_t depth = 8, passes = 1, seconds = 0;
    bool passes_given = false;
    if (argc < 3) return usage();
    for (int i = 3; i < argc; i += 2) {
        if (i + 1 == argc) return usage();
        if (strcmp(argv[i], "--io") == 0) {
            engine = argv[i + 1];
        } else if (strcmp(argv[i], "--depth") == 0) {
            if (!parse(argv[i + 1], 1, WR_IO_MAX_DEPTH, &depth)) return usage();
        } else if (strcmp(argv[i], "--passes") == 0) {
            if (!parse(argv[i + 1], 1, UINT32_MAX, &passes)) return usage();
            passes_given = true;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            if (!parse(argv[i + 1], 1, 86400, &seconds)) return usage();
        } else {
            return usage();
        }
    }
    if (seconds > 0 && !passes_given) passes = UINT64_MAX;

    static struct wr_file file;
    struct wr_log log = {print_line, NULL};
    struct wr_ledger ledger;
    struct wr_arena arena = {0};
    struct tape tape = {0};
    struct totals totals = {0};
    const struct wr_io_ops *ops = NULL;
    struct wr_io *io = NULL;
    weir_err err = {0};
    int failed = 1;
    wr_ledger_init(&ledger);
    if (wr_file_open(&file, argv[1], WEIR_DIRECT_ON, &log, &err) != 0) return complain(err.text);
    if (tape_read(&tape, argv[2], &file) != 0) goto done;
    uint64_t memory_bytes = wr_round_up((uint64_t)tape.largest * depth, 2 << 20); /* whole huge pages: 4 KiB ones cost two thirds of the rate */
    if (wr_arena_open(&arena, memory_bytes, &err) != 0) {
        complain(err.text);
        goto done;
    }
    void *memory = wr_arena_take(&arena, &ledger, WR_ACCOUNT_RING, memory_bytes, &err);
    struct wr_io_config config = {
        .depth = (uint32_t)depth, .memory = memory, .memory_bytes = memory_bytes, .files = &file, .n_files = 1, .ledger = &ledger, .log = &log};
    if (memory == NULL || wr_io_open(&io, &ops, engine, &config, &err) != 0) {
        complain(err.text);
        goto done;
    }
    failed = read_tape(ops, io, &file, &tape, memory, (uint32_t)depth, passes, (double)seconds, &totals);
    if (failed == 0)
        printf("{\"bytes\": %" PRIu64 ", \"seconds\": %.6f, \"rate\": %.0f, \"reads\": %" PRIu64 ", \"engine\": \"%s\"}\n", totals.bytes, totals.seconds,
            (double)totals.bytes / totals.seconds, totals.reads, ops->name);
done:
    if (io != NULL) ops->close(io);
    if (arena.base != NULL) wr_arena_close(&arena);
    free(tape.extent);
    wr_file_close(&file);
    return failed;
}
