/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diskrate FILE uring|pread BYTES DEPTH SECONDS: one point of the surface that weir probe measures, by the same code on a file that is there. Prints
 * bytes/s. bench/probe-fio holds it against fio.
 */
#include <stdio.h>
#include <stdlib.h>
#include "io/probe.h"

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: diskrate FILE uring|pread BYTES DEPTH SECONDS\n");
        return 2;
    }
    struct wr_ledger ledger;
    weir_err err;
    double rate;
    const struct wr_io_probe what = {.engine = argv[2],
        .direct = true,
        .bytes = (uint32_t)strtoul(argv[3], NULL, 10),
        .depth = (uint32_t)strtoul(argv[4], NULL, 10),
        .seconds = strtod(argv[5], NULL),
        .bytes_total = UINT64_MAX};
    wr_ledger_init(&ledger);
    if (what.bytes == 0 || what.bytes % WR_IO_ALIGN != 0 || wr_io_probe(argv[1], &what, &ledger, &rate, &err) != 0) {
        fprintf(stderr, "diskrate: %s\n", what.bytes % WR_IO_ALIGN != 0 || what.bytes == 0 ? "BYTES is no multiple of 4096" : err.text);
        return 1;
    }
    printf("%.0f\n", rate);
    return 0;
}
