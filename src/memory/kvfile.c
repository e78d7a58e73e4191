/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/kvfile_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "base/crc32c.h"
#include "base/error.h"

#define VERSION 1
#define PAGE WR_IO_ALIGN
#define STATE_AT PAGE
#define STATE_BYTES 64 /* within one sector of any disk, so that a power cut leaves the old one or the new one */
#define TABLE_AT (2 * PAGE)
#define ENTRY_BYTES 16
#define N_TAIL_PLACES 2
#define IDS_AT 32
#define BLOCKS_AT (IDS_AT + 4 * WR_KVFILE_TILE)
#define GROUP_MAGIC 0x50524757u /* "WGRP" */
#define STATE_MAGIC 0x54534b57u /* "WKST" */
#define MAX_LAYERS 65536u
#define MAX_WEIGHTS (1u << 20)

/* No text file begins so, and a transfer that changes line ends shows. */
static const uint8_t magic[8] = {0x89, 'W', 'K', 'V', '\r', '\n', 0x1a, '\n'};

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}
static uint32_t get32(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }
static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}
static uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }

/* The last four of n bytes are the crc of those before. */
static uint32_t seal(uint8_t *p, size_t n)
{
    uint32_t crc = wr_crc32c(0, p, n - 4);
    put32(p + n - 4, crc);
    return crc;
}
static bool is_sealed(const uint8_t *p, size_t n) { return get32(p + n - 4) == wr_crc32c(0, p, n - 4); }

const char *wr_kvfile_label(const struct wr_kvfile *f) { return wr_file_label(f->place != NULL ? f->place : f->store.file.path); }

static int damaged(const struct wr_kvfile *f, const char *what, weir_err *err)
{
    return wr_err(err, WEIR_E_FORMAT, "%s: %s; save the context again", wr_kvfile_label(f), what);
}

/* ---- header and table ------------------------------------------------------------------ */

/* The numbers of the header, in order from byte 16 on. */
#define N_NUMBERS 15
static void numbers_of(struct wr_kvfile_about *a, uint32_t *record_bytes, uint32_t *table_bytes, uint32_t *tile, uint32_t *number[N_NUMBERS])
{
    uint32_t *const all[N_NUMBERS] = {&a->numerics, &a->kv_type, &a->precise, &a->n_layer, &a->n_head_kv, &a->head_dim, tile, &a->block_bytes, record_bytes,
        &a->n_ctx_trained, &a->n_vocab, &a->n_weights, table_bytes, &a->tokenizer, &a->graph};
    memcpy(number, all, sizeof all);
}

#define TEXT_AT 96 /* arch[32], model[128] */

static uint32_t table_bytes_of(uint32_t n_weights) { return (uint32_t)wr_round_up((uint64_t)n_weights * ENTRY_BYTES, PAGE); }

static uint32_t write_header(struct wr_kvfile *f, uint8_t page[PAGE])
{
    uint32_t *number[N_NUMBERS], table = table_bytes_of(f->about.n_weights), tile = WR_KVFILE_TILE;
    memset(page, 0, PAGE);
    memcpy(page, magic, sizeof magic);
    put32(page + 8, VERSION);
    put32(page + 12, PAGE);
    numbers_of(&f->about, &f->record_bytes, &table, &tile, number);
    for (int i = 0; i < N_NUMBERS; i++) put32(page + 16 + 4 * i, *number[i]);
    memcpy(page + TEXT_AT, f->about.arch, sizeof f->about.arch);
    memcpy(page + TEXT_AT + sizeof f->about.arch, f->about.model, sizeof f->about.model);
    return seal(page, PAGE);
}

static int read_header(struct wr_kvfile *f, uint8_t page[PAGE], weir_err *err)
{
    struct wr_kvfile_about *a = &f->about;
    uint32_t *number[N_NUMBERS], table, tile;
    const struct wr_file *file = &f->store.file;
    if (file->bytes < sizeof magic) return damaged(f, file->bytes == 0 ? "is empty, and no saved context" : "is no saved context", err);
    size_t n = file->bytes < PAGE ? (size_t)file->bytes : PAGE;
    int rc = wr_file_read(file, 0, page, n, err);
    if (rc < 0) return rc;
    if (memcmp(page, magic, sizeof magic) != 0) return wr_err(err, WEIR_E_FORMAT, "%s: is no saved context", wr_kvfile_label(f));
    if (n < PAGE) return damaged(f, "is truncated in its header", err);
    if (!is_sealed(page, PAGE)) return damaged(f, "the header is damaged", err);
    if (get32(page + 8) != VERSION || get32(page + 12) != PAGE)
        return wr_err(err, WEIR_E_UNSUPPORTED, "%s: is a saved context of version %u, this weir reads version %d; save the context again", wr_kvfile_label(f),
            get32(page + 8), VERSION);
    numbers_of(a, &f->record_bytes, &table, &tile, number);
    for (int i = 0; i < N_NUMBERS; i++) *number[i] = get32(page + 16 + 4 * i);
    memcpy(a->arch, page + TEXT_AT, sizeof a->arch);
    const char *name = (const char *)page + TEXT_AT + sizeof a->arch;
    bool ended = a->arch[sizeof a->arch - 1] == 0 && name[sizeof a->model - 1] == 0;
    if (ended) wr_text_line(a->model, sizeof a->model, name); /* it is printed */
    /* The seal says that weir wrote this; what follows from the numbers is checked all the same, before it is used. */
    bool good = a->n_layer > 0 && a->n_layer <= MAX_LAYERS && a->block_bytes > 0 && a->block_bytes % PAGE == 0 && a->n_weights <= MAX_WEIGHTS &&
                tile == WR_KVFILE_TILE && f->record_bytes == wr_kvfile_record_bytes(a->n_layer) && table == table_bytes_of(a->n_weights) && ended;
    if (!good) return damaged(f, "the header's numbers do not fit each other", err);
    for (const char *c = a->arch; *c != 0; c++)
        if (*c <= ' ' || *c > '~') return damaged(f, "the architecture's name in the header is no name", err);
    wr_kvfile_lay_out(f);
    return file->bytes >= f->data_start ? 0 : damaged(f, "is truncated before its first token", err); /* before memory is taken by its numbers */
}

static void entry_of(const struct wr_kvfile *f, uint32_t i, uint8_t entry[ENTRY_BYTES])
{
    put32(entry, f->weights[i].id);
    put32(entry + 4, f->weights[i].known);
    put32(entry + 8, f->weights[i].crc);
    put32(entry + 12, wr_crc32c(i, entry, 12)); /* and not at another's place */
}

void wr_kvfile_lay_out(struct wr_kvfile *f)
{
    f->record_bytes = (uint32_t)wr_kvfile_record_bytes(f->about.n_layer);
    f->data_start = TABLE_AT + table_bytes_of(f->about.n_weights);
    f->group_bytes = (uint64_t)f->about.n_layer * f->about.block_bytes + f->record_bytes;
}

int wr_kvfile_take_memory(struct wr_kvfile *f, struct wr_ledger *ledger, weir_err *err)
{
    f->record = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, f->record_bytes, err);
    f->weights = wr_mem_array(ledger, WR_ACCOUNT_TEXT, f->about.n_weights, sizeof *f->weights, err);
    return f->record != NULL && f->weights != NULL ? 0 : err != NULL ? err->code : WEIR_E_NOMEM;
}

static int read_table(struct wr_kvfile *f, uint8_t page[PAGE], weir_err *err)
{
    for (uint32_t i = 0; i < f->about.n_weights; i++) {
        uint64_t at = (uint64_t)i * ENTRY_BYTES;
        uint8_t *entry = page + at % PAGE;
        int rc = at % PAGE == 0 ? wr_file_read(&f->store.file, TABLE_AT + at, page, PAGE, err) : 0;
        if (rc < 0) return rc;
        f->weights[i] = (struct wr_kvfile_weight){get32(entry), get32(entry + 4), get32(entry + 8)};
        if (get32(entry + 12) != wr_crc32c(i, entry, 12) || f->weights[i].known > 1) return damaged(f, "the table of weights is damaged", err);
    }
    return 0;
}

/* ---- state ----------------------------------------------------------------------------- */

uint64_t wr_kvfile_end(const struct wr_kvfile *f, uint32_t n_full) { return f->data_start + (N_TAIL_PLACES + (uint64_t)n_full) * f->group_bytes; }

uint64_t wr_kvfile_bytes(const struct wr_kvfile_about *about, uint32_t n_full)
{
    struct wr_kvfile f = {.about = *about};
    wr_kvfile_lay_out(&f);
    return wr_kvfile_end(&f, n_full);
}

static int write_state(struct wr_kvfile *f, const struct wr_kvfile_state *s, weir_err *err)
{
    uint8_t bytes[STATE_BYTES] = {0};
    put32(bytes, STATE_MAGIC);
    put64(bytes + 8, s->generation);
    put32(bytes + 16, s->n_full);
    put32(bytes + 20, s->n_tail);
    put32(bytes + 24, s->tail_place);
    put32(bytes + 28, s->last);
    put32(bytes + 32, s->tail);
    seal(bytes, sizeof bytes);
    return wr_store_write(&f->store, STATE_AT, bytes, sizeof bytes, err);
}

int wr_kvfile_write_first(struct wr_kvfile *f, weir_err *err)
{
    uint8_t page[PAGE];
    f->next = (struct wr_kvfile_state){.last = write_header(f, page)};
    int rc = wr_store_write(&f->store, 0, page, PAGE, err);
    if (rc == 0) rc = write_state(f, &f->next, err);
    for (uint64_t at = 0; rc == 0 && at < table_bytes_of(f->about.n_weights); at += PAGE) {
        memset(page, 0, PAGE);
        for (uint64_t k = 0; k < PAGE / ENTRY_BYTES && at / ENTRY_BYTES + k < f->about.n_weights; k++)
            entry_of(f, (uint32_t)(at / ENTRY_BYTES + k), page + k * ENTRY_BYTES);
        rc = wr_store_write(&f->store, TABLE_AT + at, page, PAGE, err);
    }
    if (rc == 0) rc = wr_store_reserve(&f->store, wr_kvfile_end(f, 0), err); /* the room for the end of a text, which is written last */
    if (rc == 0) rc = wr_store_sync(&f->store, err);
    f->saved = f->next;
    return rc;
}

static int read_state(struct wr_kvfile *f, weir_err *err)
{
    uint8_t bytes[STATE_BYTES];
    const uint64_t n_places = (f->store.file.bytes - f->data_start) / f->group_bytes;
    int rc = wr_file_read(&f->store.file, STATE_AT, bytes, sizeof bytes, err);
    if (rc < 0) return rc;
    if (!is_sealed(bytes, sizeof bytes) || get32(bytes) != STATE_MAGIC) return damaged(f, "the state is damaged", err);
    const struct wr_kvfile_state s = {get64(bytes + 8), get32(bytes + 16), get32(bytes + 20), get32(bytes + 24), get32(bytes + 28), get32(bytes + 32)};
    if (s.n_tail >= WR_KVFILE_TILE || s.tail_place >= N_TAIL_PLACES || s.n_full > INT32_MAX / WR_KVFILE_TILE - 1)
        return damaged(f, "the state's numbers do not fit each other", err);
    if (wr_kvfile_tokens(&s) > 0 && N_TAIL_PLACES + (uint64_t)s.n_full > n_places)
        return wr_err(err, WEIR_E_FORMAT, "%s: is truncated: its %llu tokens need %llu places of %llu bytes, and %llu are there; save the context again",
            wr_kvfile_label(f), (unsigned long long)wr_kvfile_tokens(&s), N_TAIL_PLACES + (unsigned long long)s.n_full, (unsigned long long)f->group_bytes,
            (unsigned long long)n_places);
    f->saved = f->next = s;
    return 0;
}

/* ---- opening --------------------------------------------------------------------------- */

#define LOCK_WAIT_MS 2000

/* What a process that was killed had given to io_uring keeps its lock for some milliseconds after its end, so that one refusal is not taken at its word. */
int wr_kvfile_lock(const struct wr_kvfile *f, int fd, bool alone, weir_err *err)
{
    for (int ms = 0; flock(fd, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0 && errno == EWOULDBLOCK; ms += 10) { /* some file systems have no locks */
        if (ms >= LOCK_WAIT_MS)
            return wr_err(err, WEIR_E_OPEN, "%s: another process %s; wait for its end or use a copy", wr_kvfile_label(f), alone ? "uses it" : "writes to it");
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return 0;
}

int wr_kvfile_open(
    struct wr_kvfile *out, const char *path, bool writable, enum weir_direct direct, struct wr_ledger *ledger, const struct wr_log *log, weir_err *err)
{
    struct wr_kvfile f = {0};
    uint8_t page[PAGE];
    int rc = writable ? wr_store_open_named(&f.store, path, false, direct, log, err) : wr_file_open(&f.store.file, path, direct, log, err);
    if (rc < 0) return rc;
    rc = wr_kvfile_lock(&f, f.store.file.fd_buffered, writable, err);
    if (rc == 0) rc = read_header(&f, page, err);
    if (rc == 0) rc = wr_kvfile_take_memory(&f, ledger, err);
    if (rc == 0) rc = read_state(&f, err);
    if (rc == 0) rc = read_table(&f, page, err);
    if (rc < 0)
        wr_kvfile_close(&f);
    else
        *out = f;
    return rc;
}

bool wr_kvfile_is(const char *path)
{
    uint8_t begin[sizeof magic];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is = fd >= 0 && pread(fd, begin, sizeof begin, 0) == sizeof begin && memcmp(begin, magic, sizeof magic) == 0;
    if (fd >= 0) close(fd);
    return is;
}

void wr_kvfile_close(struct wr_kvfile *f)
{
    if (f->record == NULL && f->place == NULL && f->part == NULL && f->store.file.fd_buffered <= 0) return;
    if (f->part != NULL && f->part[0] != '\0') unlink(f->part);
    if (f->changed && !f->pending && !f->broken) (void)wr_store_cut(&f->store, wr_kvfile_end(f, f->saved.n_full), NULL); /* what was reserved and not used */
    if (f->store.file.fd_buffered >= 0) (void)flock(f->store.file.fd_buffered, LOCK_UN); /* io_uring may hold the file a little longer */
    wr_store_close(&f->store);
    if (f->replaces && f->old_fd >= 0) close(f->old_fd);
    wr_mem_free(f->record);
    wr_mem_free(f->weights);
    wr_mem_free(f->place);
    wr_mem_free(f->part);
    *f = (struct wr_kvfile){.store.file = {.fd_direct = -1, .fd_buffered = -1}};
}

/* ---- groups ---------------------------------------------------------------------------- */

static uint64_t place_at(const struct wr_kvfile *f, uint64_t place, uint32_t layer)
{
    return f->data_start + place * f->group_bytes + (uint64_t)layer * f->about.block_bytes;
}

uint64_t wr_kvfile_block(const struct wr_kvfile *f, uint32_t tile, uint32_t layer) { return place_at(f, N_TAIL_PLACES + (uint64_t)tile, layer); }
uint64_t wr_kvfile_tail_block(const struct wr_kvfile *f, uint32_t layer) { return place_at(f, f->saved.tail_place, layer); }
uint64_t wr_kvfile_next_tail_block(const struct wr_kvfile *f, uint32_t layer) { return place_at(f, 1 - f->saved.tail_place, layer); }

/* Reads the record at `offset` into f->record: of group `tile` with n tokens, behind a record of crc `previous`. */
static int read_record(struct wr_kvfile *f, uint64_t offset, uint32_t tile, uint32_t n, uint32_t previous, weir_err *err)
{
    const uint8_t *r = f->record;
    int rc = wr_file_read(&f->store.file, offset, f->record, f->record_bytes, err);
    if (rc < 0) return rc;
    if (is_sealed(r, f->record_bytes) && get32(r) == GROUP_MAGIC && get32(r + 4) == tile && get32(r + 8) == n && get32(r + 12) == previous) return 0;
    return wr_err(err, WEIR_E_FORMAT, "%s: the record of tokens %u to %u is damaged; save the context again", wr_kvfile_label(f), tile * WR_KVFILE_TILE,
        tile * WR_KVFILE_TILE + n - 1);
}

static uint32_t record_crc(const struct wr_kvfile *f) { return get32(f->record + f->record_bytes - 4); }

/* Group t: its record lies in f->record when `fn` is called. */
typedef int group_fn(void *user, struct wr_kvfile *f, uint32_t t, uint32_t n, weir_err *err);

static int each_group(struct wr_kvfile *f, group_fn *fn, void *user, weir_err *err)
{
    const struct wr_kvfile_state *s = &f->saved;
    uint32_t n_layer = f->about.n_layer, n_groups = wr_kvfile_groups(s), previous;
    uint8_t crc[4];
    int rc = wr_file_read(&f->store.file, PAGE - 4, crc, 4, err);
    if (rc < 0) return rc;
    previous = get32(crc);
    for (uint32_t t = 0; t < n_groups; t++) {
        bool tail = t == s->n_full;
        uint32_t n = tail ? s->n_tail : WR_KVFILE_TILE;
        uint64_t at = tail ? wr_kvfile_tail_block(f, n_layer) : wr_kvfile_block(f, t, n_layer);
        enum { AHEAD = 64 }; /* records lie a group apart: the system reads several at a time when it is told */
        for (uint32_t k = t % AHEAD == 0 ? t : n_groups; k < n_groups && k < t + AHEAD && k < s->n_full; k++)
            (void)posix_fadvise(f->store.file.fd_buffered, (off_t)wr_kvfile_block(f, k, n_layer), f->record_bytes, POSIX_FADV_WILLNEED);
        rc = read_record(f, at, t, n, previous, err);
        if (rc < 0) return rc;
        if (tail && record_crc(f) != s->tail) return damaged(f, "the last record is not the one that the state names", err);
        if (!tail) previous = record_crc(f);
        for (uint32_t i = 0; i < n; i++)
            if (get32(f->record + IDS_AT + 4 * i) >= f->about.n_vocab) return damaged(f, "a token is outside the vocabulary", err);
        rc = fn(user, f, t, n, err);
        if (rc < 0) return rc;
    }
    return previous == s->last ? 0 : damaged(f, "the last full record is not the one that the state names", err);
}

struct records {
    int32_t *ids;
    uint32_t *rows, *blocks;
};

static int take_record(void *user, struct wr_kvfile *f, uint32_t t, uint32_t n, weir_err *err)
{
    const struct records *to = user;
    const uint32_t n_layer = f->about.n_layer;
    for (uint32_t i = 0; to->ids != NULL && i < n; i++) to->ids[(uint64_t)t * WR_KVFILE_TILE + i] = (int32_t)get32(f->record + IDS_AT + 4 * i);
    if (to->rows != NULL) to->rows[t] = get32(f->record + 16);
    for (uint32_t il = 0; to->blocks != NULL && il < n_layer; il++) to->blocks[(uint64_t)t * n_layer + il] = get32(f->record + BLOCKS_AT + 4 * il);
    return 0;
}

int wr_kvfile_records(struct wr_kvfile *f, int32_t *ids, uint32_t *rows, uint32_t *blocks, weir_err *err)
{
    return each_group(f, take_record, &(struct records){ids, rows, blocks}, err);
}

struct check {
    int (*before)(void *user, uint64_t done, uint64_t all, weir_err *);
    void *user;
};

/* In pieces: how long a block is, the file says. */
static int check_group(void *user, struct wr_kvfile *f, uint32_t t, uint32_t n, weir_err *err)
{
    const struct check *check = user;
    const bool tail = t == f->saved.n_full;
    uint8_t piece[4 * PAGE];
    for (uint32_t il = 0; il < f->about.n_layer; il++) {
        const uint64_t at = tail ? wr_kvfile_tail_block(f, il) : wr_kvfile_block(f, t, il);
        uint32_t crc = 0;
        int rc = check->before(check->user, t * f->group_bytes + (uint64_t)il * f->about.block_bytes, wr_kvfile_groups(&f->saved) * f->group_bytes, err);
        for (uint64_t done = 0, step; rc == 0 && done < f->about.block_bytes; done += step) {
            step = f->about.block_bytes - done < sizeof piece ? f->about.block_bytes - done : sizeof piece;
            rc = wr_file_read(&f->store.file, at + done, piece, step, err);
            if (rc == 0) crc = wr_crc32c(crc, piece, step);
        }
        if (rc < 0) return rc;
        if (crc != get32(f->record + BLOCKS_AT + 4 * il)) return wr_kvfile_damaged(f, t, il, err);
    }
    return 0;
}

int wr_kvfile_check(struct wr_kvfile *f, int (*before)(void *user, uint64_t done, uint64_t all, weir_err *), void *user, weir_err *err)
{
    return each_group(f, check_group, &(struct check){before, user}, err);
}

int wr_kvfile_damaged(const struct wr_kvfile *f, uint32_t tile, uint32_t layer, weir_err *err)
{
    const uint64_t first = (uint64_t)tile * WR_KVFILE_TILE, n = wr_kvfile_tokens(&f->saved), end = first + WR_KVFILE_TILE;
    return wr_err(err, WEIR_E_FORMAT, "%s: keys and values of tokens %llu to %llu in layer %u are damaged; save the context again", wr_kvfile_label(f),
        (unsigned long long)first, (unsigned long long)(n > first && n < end ? n : end) - 1, layer);
}

int wr_kvfile_read_block(const struct wr_kvfile *f, uint32_t tile, uint32_t layer, uint64_t offset, void *block, uint32_t crc, weir_err *err)
{
    int rc = wr_file_read(&f->store.file, offset, block, f->about.block_bytes, err);
    if (rc < 0) return rc;
    return wr_crc32c(0, block, f->about.block_bytes) == crc ? 0 : wr_kvfile_damaged(f, tile, layer, err);
}

int wr_kvfile_reserve(struct wr_kvfile *f, uint32_t n_groups, weir_err *err)
{
    f->changed = true;
    return wr_store_reserve(&f->store, wr_kvfile_end(f, n_groups), err);
}

int wr_kvfile_put(struct wr_kvfile *f, const int32_t *ids, uint32_t n, uint32_t rows, const uint32_t *blocks, weir_err *err)
{
    bool full = n == WR_KVFILE_TILE;
    struct wr_kvfile_state *s = &f->next;
    uint8_t *r = f->record;
    uint32_t n_layer = f->about.n_layer;
    memset(r, 0, f->record_bytes);
    put32(r, GROUP_MAGIC);
    put32(r + 4, s->n_full);
    put32(r + 8, n);
    put32(r + 12, s->last);
    put32(r + 16, rows);
    for (uint32_t i = 0; i < n; i++) put32(r + IDS_AT + 4 * i, (uint32_t)ids[i]);
    for (uint32_t il = 0; il < n_layer; il++) put32(r + BLOCKS_AT + 4 * il, blocks[il]);
    uint32_t crc = seal(r, f->record_bytes);
    int rc = wr_store_write(&f->store, full ? wr_kvfile_block(f, s->n_full, n_layer) : wr_kvfile_next_tail_block(f, n_layer), r, f->record_bytes, err);
    if (rc < 0) return rc;
    if (full) {
        s->n_full++;
        s->n_tail = 0;
        s->last = crc;
        s->tail = 0;
    } else {
        s->n_tail = n;
        s->tail_place = 1 - f->saved.tail_place;
        s->tail = crc;
    }
    return 0;
}

int wr_kvfile_truncate(struct wr_kvfile *f, uint32_t n_full, weir_err *err)
{
    uint8_t crc[4];
    uint64_t at = n_full == 0 ? PAGE : wr_kvfile_block(f, n_full - 1, f->about.n_layer) + f->record_bytes; /* behind the header's, or the record's */
    int rc = wr_file_read(&f->store.file, at - 4, crc, 4, err);
    if (rc < 0) return rc;
    f->next.n_full = n_full;
    f->next.n_tail = f->next.tail = 0;
    f->next.last = get32(crc);
    return 0;
}

int wr_kvfile_commit(struct wr_kvfile *f, weir_err *err)
{
    struct wr_kvfile_state *s = &f->next;
    if (f->broken) return wr_err(err, WEIR_E_WRITE, "%s: the disk lost what was written; save the context under another name", wr_kvfile_label(f));
    int rc = wr_store_sync(&f->store, err);
    if (rc == 0) {
        s->generation = f->saved.generation + 1;
        rc = write_state(f, s, err);
        if (rc < 0) return rc; /* the old state is there still: a write of one sector takes place or not */
        f->saved = *s;
        f->changed = true;
        rc = wr_store_sync(&f->store, err);
        if (rc == 0 && f->pending && !f->replaces && wr_kvfile_tokens(s) > 0) return wr_kvfile_put_in_place(f, err);
    }
    if (rc < 0) f->broken = true; /* the system drops what it could not write and does not say what */
    return rc;
}

int wr_kvfile_set_weight(struct wr_kvfile *f, uint32_t i, uint32_t crc, weir_err *err)
{
    uint8_t entry[ENTRY_BYTES];
    const struct wr_kvfile_weight before = f->weights[i];
    f->weights[i].known = 1;
    f->weights[i].crc = crc;
    entry_of(f, i, entry);
    int rc = wr_store_write(&f->store, TABLE_AT + (uint64_t)i * ENTRY_BYTES, entry, sizeof entry, err);
    if (rc < 0) f->weights[i] = before; /* so that it is written when it comes again */
    return rc;
}
