/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a saved context: refused in one line, or one whose every record and block can be asked for, in memory that follows the file's size. The first
 * byte says which crcs are made right again behind a change (docs/CONTEXT_FILE.md has the places), or no change would come past them. Opened for
 * writing too, it is refused or accepted as before, and stays as it is.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/crc32c.h"
#include "io/core.h"
#include "memory/kvfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER = 1, TABLE = 2, RECORDS = 4, BLOCKS = 8, STATE = 16 };

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static uint32_t get(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }
static void put(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}
static void seal(uint8_t *p, size_t n) { put(p + n - 4, wr_crc32c(0, p, n - 4)); }

/* The group at `at`, if the file has it: its blocks and its record behind one of crc `previous`. Returns the record's crc. */
static uint32_t mend_group(uint8_t *file, size_t size, uint64_t at, uint32_t previous, int which)
{
    const uint64_t layers = get(file + 28), block = get(file + 44), bytes = get(file + 48);
    if (bytes < 1060 || (bytes - 1060) / 4 < layers || at > size || size - at < layers * block + bytes) return previous;
    uint8_t *record = file + at + layers * block;
    for (uint64_t il = 0; (which & BLOCKS) && il < layers; il++) put(record + 1056 + 4 * il, wr_crc32c(0, file + at + il * block, block));
    if (which & RECORDS) {
        put(record + 12, previous);
        seal(record, bytes);
    }
    return get(record + bytes - 4);
}

static void mend(uint8_t *file, size_t size, int which)
{
    if (size < 8192) return;
    if (which & HEADER) seal(file, 4096);
    uint8_t *state = file + 4096;
    for (uint32_t i = 0; (which & TABLE) && i < get(file + 60) && 8192 + 16 * ((uint64_t)i + 1) <= size; i++)
        put(file + 8192 + 16 * i + 12, wr_crc32c(i, file + 8192 + 16 * i, 12));
    const uint64_t start = 8192 + (uint64_t)get(file + 64), group = (uint64_t)get(file + 28) * get(file + 44) + get(file + 48);
    uint32_t previous = get(file + 4092);
    if (group == 0 || group > size) return; /* as weir refuses it */
    for (uint64_t t = 0; t < get(state + 16) && start + (2 + t) * group < size; t++)
        previous = mend_group(file, size, start + (2 + t) * group, previous, which);
    uint32_t tail = get(state + 20) > 0 ? mend_group(file, size, start + (get(state + 24) & 1) * group, previous, which) : 0;
    if (!(which & STATE)) return;
    put(state + 28, previous);
    put(state + 32, tail);
    seal(state, 64);
}

static void require_refusal(int code, const weir_err *err)
{
    require(code == WEIR_E_FORMAT || code == WEIR_E_UNSUPPORTED, "a refusal of the file");
    require(code == err->code && err->text[0] != '\0' && strchr(err->text, '\n') == NULL, "one line that says why");
}

static int count(void *user, uint64_t done, uint64_t all, weir_err *err)
{
    uint64_t *n = user;
    require(done < all, "progress within the whole");
    ++*n;
    return 0;
}

static void use(struct wr_kvfile *f, size_t size, struct wr_ledger *ledger)
{
    const uint64_t n = wr_kvfile_tokens(&f->saved), n_groups = wr_kvfile_groups(&f->saved), n_blocks = n_groups * f->about.n_layer;
    uint64_t n_checked = 0;
    weir_err err;
    require(n == 0 || (2 + (uint64_t)f->saved.n_full) * f->group_bytes <= size, "groups inside the file");
    for (const char *c = f->about.arch; *c != 0; c++) require(*c > ' ' && *c <= '~', "a name that can be printed");
    for (const char *c = f->about.model; *c != 0; c++) require((unsigned char)*c >= ' ' && *c != 0x7f, "another one");
    for (uint32_t i = 0; i < f->about.n_weights; i++) require(f->weights[i].known <= 1, "known or not");
    int code = wr_kvfile_check(f, count, &n_checked, &err);
    if (code == 0)
        require(n_checked == n_blocks, "every block is looked at");
    else
        require_refusal(code, &err);
    int32_t *ids = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n, sizeof *ids, &err);
    uint32_t *rows = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n_groups, sizeof *rows, &err),
             *crcs = wr_mem_array(ledger, WR_ACCOUNT_TEXT, n_blocks, sizeof *crcs, &err);
    require(ids != NULL && rows != NULL && crcs != NULL, "memory for what the file holds");
    int records = wr_kvfile_records(f, ids, rows, crcs, &err);
    require(code < 0 || records == 0, "records are read as they were checked");
    if (records < 0) require_refusal(records, &err);
    for (uint64_t i = 0; records == 0 && i < n; i++) require(ids[i] >= 0 && (uint32_t)ids[i] < f->about.n_vocab, "an id of the vocabulary");
    wr_mem_free(ids);
    wr_mem_free(rows);
    wr_mem_free(crcs);
}

static char path[] = "/tmp/fuzz-context-XXXXXX";

static void remove_file(void) { unlink(path); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0) {
        fd = mkstemp(path);
        require(fd >= 0, "a file");
        atexit(remove_file);
    }
    if (size == 0) return 0;
    const size_t n = size - 1;
    uint8_t *file = malloc(n + 1);
    require(file != NULL, "memory");
    memcpy(file, data + 1, n);
    mend(file, n, data[0]);
    require(ftruncate(fd, 0) == 0 && (n == 0 || pwrite(fd, file, n, 0) == (ssize_t)n), "the file is written");
    struct wr_ledger ledger;
    struct wr_kvfile f;
    weir_err err;
    wr_ledger_init(&ledger);
    int code = wr_kvfile_open(&f, path, false, WEIR_DIRECT_OFF, &ledger, NULL, &err);
    if (code == 0) {
        use(&f, n, &ledger);
        wr_kvfile_close(&f);
    } else {
        require_refusal(code, &err);
    }
    if (!wr_file_in_memory(fd)) { /* where writing is refused */
        int again = wr_kvfile_open(&f, path, true, WEIR_DIRECT_OFF, &ledger, NULL, &err);
        require(again == code, "the same for writing");
        if (again == 0) wr_kvfile_close(&f);
        uint8_t *then = malloc(n + 1);
        require(then != NULL, "memory");
        require(pread(fd, then, n + 1, 0) == (ssize_t)n && memcmp(then, file, n) == 0, "the file is as it was");
        free(then);
    }
    free(file);
    require(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT) == 0, "nothing is leaked");
    require(wr_ledger_peak(&ledger, WR_ACCOUNT_TEXT) < (320u << 10) + 2 * size, "memory follows the file's size");
    return 0;
}
