/* SPDX-License-Identifier: Apache-2.0 */
/* Saved contexts as files: what is read is what was committed, whatever is cut, flipped or made up, and whenever the process or the disk ends. */
#include "test_io_common.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include "base/crc32c.h"
#include "memory/kvfile.h"

#define LAYERS 2u
#define BLOCK 8192u
#define WEIGHTS 300u
#define VOCAB 1000u

static struct wr_ledger ledger;
static weir_err err;

static struct wr_kvfile_about about_of(void)
{
    struct wr_kvfile_about a = {.numerics = 1,
        .kv_type = 2,
        .n_layer = LAYERS,
        .n_head_kv = 2,
        .head_dim = 32,
        .block_bytes = BLOCK,
        .n_ctx_trained = 8192,
        .n_vocab = VOCAB,
        .n_weights = WEIGHTS,
        .tokenizer = 77,
        .graph = 88,
        .arch = "llama",
        .model = "tiny.gguf"};
    return a;
}

static const struct wr_kvfile_weight *weights(void)
{
    static struct wr_kvfile_weight w[WEIGHTS];
    for (uint32_t i = 0; i < WEIGHTS; i++) w[i].id = i * 7919;
    return w;
}

/* What a branch of a conversation has at each place: known by formula, so that any file can be judged. */
static int32_t id_at(uint32_t branch, uint32_t i) { return (int32_t)((i * 31 + branch * 17 + i / 256) % VOCAB); }
static uint8_t *block_of(uint32_t branch, uint32_t tile, uint32_t layer, uint32_t n)
{
    static uint8_t *memory;
    if (memory == NULL) memory = take_memory(BLOCK);
    uint64_t x = (uint64_t)branch << 40 | tile << 20 | layer << 12 | n | 1;
    for (uint32_t i = 0; i < BLOCK; i += 8) {
        uint64_t r = next_random(&x);
        memcpy(memory + i, &r, 8);
    }
    return memory;
}

/* The group of `tile` with n of its tokens; 0 or the error. */
static int put_group(struct wr_kvfile *f, uint32_t branch, uint32_t n)
{
    int32_t ids[256];
    uint32_t crcs[LAYERS], tile = f->next.n_full;
    int rc = n == 256 ? wr_kvfile_reserve(f, tile + 1, &err) : 0;
    for (uint32_t i = 0; i < n; i++) ids[i] = id_at(branch, tile * 256 + i);
    for (uint32_t il = 0; rc == 0 && il < LAYERS; il++) {
        const uint8_t *block = block_of(branch, tile, il, n);
        crcs[il] = wr_crc32c_scalar(0, block, BLOCK);
        rc = wr_store_write(&f->store, n == 256 ? wr_kvfile_block(f, tile, il) : wr_kvfile_next_tail_block(f, il), block, BLOCK, &err);
    }
    return rc < 0 ? rc : wr_kvfile_put(f, ids, n, branch * 1000 + tile, crcs, &err);
}

/* Extends what `f` has to n tokens, in one commit. */
static int extend(struct wr_kvfile *f, uint32_t branch, uint32_t n)
{
    int rc = 0;
    while (rc == 0 && f->next.n_full < n / 256) rc = put_group(f, branch, 256);
    if (rc == 0 && n % 256 > 0) rc = put_group(f, branch, n % 256);
    return rc < 0 ? rc : wr_kvfile_commit(f, &err);
}

static int create(struct wr_kvfile *f, const char *name)
{
    struct wr_kvfile_about a = about_of();
    return wr_kvfile_create(f, name, &a, weights(), WEIR_DIRECT_AUTO, &ledger, NULL, &err);
}

static int open_read(struct wr_kvfile *f, const char *name) { return wr_kvfile_open(f, name, false, WEIR_DIRECT_AUTO, &ledger, NULL, &err); }

/* Everything that the file holds. WEIR_E_FORMAT where it is refused at opening, in its records or in a block; else 0 and *n, and it is right. */
static int judge(const char *name, uint32_t branch, uint32_t *n)
{
    struct wr_kvfile f;
    struct wr_kvfile_about a = about_of();
    static int32_t ids[65536];
    static uint32_t rows[256], crcs[256 * LAYERS];
    uint8_t *block = take_memory(BLOCK);
    int rc = open_read(&f, name);
    if (rc == 0 && (rc = wr_kvfile_match(&f, &a, weights(), &err)) < 0) wr_kvfile_close(&f);
    if (rc < 0) {
        munmap(block, BLOCK);
        return rc;
    }
    *n = (uint32_t)wr_kvfile_tokens(&f.saved);
    assert_true(*n <= 65536);
    rc = wr_kvfile_records(&f, ids, rows, crcs, &err);
    for (uint32_t t = 0; rc == 0 && t < wr_kvfile_groups(&f.saved); t++) {
        uint32_t n_here = t == f.saved.n_full ? f.saved.n_tail : 256;
        assert_int_equal(rows[t], branch * 1000 + t);
        for (uint32_t i = 0; i < n_here; i++) assert_int_equal(ids[t * 256 + i], id_at(branch, t * 256 + i));
        for (uint32_t il = 0; rc == 0 && il < LAYERS; il++) {
            rc = wr_kvfile_read_block(
                &f, t, il, t == f.saved.n_full ? wr_kvfile_tail_block(&f, il) : wr_kvfile_block(&f, t, il), block, crcs[t * LAYERS + il], &err);
            if (rc == 0) assert_memory_equal(block, block_of(branch, t, il, n_here), BLOCK);
        }
    }
    wr_kvfile_close(&f);
    munmap(block, BLOCK);
    return rc;
}

static void is_there(const char *name, uint32_t branch, uint32_t n)
{
    uint32_t has = 0;
    int rc = judge(name, branch, &has);
    if (rc != 0) fail_msg("%s: %s", name, err.text);
    assert_int_equal(has, n);
}

static uint8_t *whole(const char *name, size_t *n)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    *n = (size_t)st.st_size;
    return read_plainly(name, *n);
}

/* The same while another has the file open: of what it has at this moment. */
static void holds(const char *name, uint32_t branch, uint32_t n)
{
    size_t bytes;
    uint8_t *image = whole(name, &bytes);
    char copy[600];
    snprintf(copy, sizeof copy, "%s-copy", name);
    write_file(copy, image, bytes);
    free(image);
    is_there(copy, branch, n);
    unlink(copy);
}

static void make(const char *name, uint32_t branch, uint32_t n)
{
    struct wr_kvfile f;
    unlink(name);
    assert_int_equal(create(&f, name), 0);
    assert_int_equal(extend(&f, branch, n), 0);
    assert_int_equal(wr_kvfile_finish(&f, &err), 0);
    wr_kvfile_close(&f);
}

static void keeps_what_was_committed(void **state)
{
    (void)state;
    struct wr_kvfile f, second;
    const char *name = in_folder("kept");
    struct stat st;
    int entries = count_entries(folder), fds = count_entries("/proc/self/fd");
    uint64_t used = wr_ledger_used(&ledger, WR_ACCOUNT_TEXT);
    assert_int_equal(create(&f, name), 0);
    assert_int_equal(count_entries(folder), entries); /* nothing is there before there are tokens */
    assert_int_equal(extend(&f, 1, 700), 0);
    holds(name, 1, 700);
    wr_kvfile_close(&f);
    is_there(name, 1, 700);

    assert_int_equal(wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), 0);
    assert_int_equal(wr_kvfile_open(&second, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), WEIR_E_OPEN);
    assert_int_equal(open_read(&second, name), WEIR_E_OPEN);
    static const uint32_t lengths[] = {701, 760, 767, 768, 769, 1024, 1500, 2560};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) assert_int_equal(extend(&f, 1, lengths[i]), 0);
    assert_int_equal(put_group(&f, 1, 100), 0); /* not committed */
    wr_fault_set(WR_FAULT_WRITE, 1, false);
    assert_int_equal(wr_kvfile_set_weight(&f, 299, 0xdeadbeef, &err), WEIR_E_WRITE);
    wr_fault_set(WR_FAULT_WRITE, 0, false);
    assert_int_equal(f.weights[299].known, 0); /* or nobody would try again */
    assert_int_equal(wr_kvfile_set_weight(&f, 299, 0xdeadbeef, &err), 0);
    wr_kvfile_close(&f);
    is_there(name, 1, 2560);
    assert_int_equal(stat(name, &st), 0);
    assert_int_equal(st.st_size, 4096 * 2 + 8192 + 12 * (LAYERS * BLOCK + 4096)); /* header, state, table, two places for tails, ten groups */
    assert_int_equal(open_read(&f, name), 0);
    assert_int_equal(f.weights[299].known, 1);
    assert_int_equal(f.weights[299].crc, 0xdeadbeef);
    assert_int_equal(f.weights[298].known, 0);
    assert_int_equal(wr_kvfile_open(&second, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), WEIR_E_OPEN);
    wr_kvfile_close(&f);
    wr_kvfile_close(&f);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), used);
}

/* Back to 300 tokens and on with others: before and after the commit the file has one branch or the other, never a mixture. */
static void goes_back(void **state)
{
    (void)state;
    struct wr_kvfile f;
    const char *name = in_folder("back");
    make(name, 1, 1000);
    assert_int_equal(wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), 0);
    assert_int_equal(wr_kvfile_truncate(&f, 0, &err), 0);
    wr_kvfile_close(&f);
    is_there(name, 1, 1000);
    assert_int_equal(wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), 0);
    assert_int_equal(wr_kvfile_truncate(&f, 1, &err), 0);
    assert_int_equal(put_group(&f, 1, 44), 0);
    assert_int_equal(wr_kvfile_commit(&f, &err), 0);
    holds(name, 1, 300);
    assert_int_equal(wr_kvfile_truncate(&f, 0, &err), 0);
    assert_int_equal(wr_kvfile_commit(&f, &err), 0);
    assert_int_equal(extend(&f, 2, 900), 0);
    holds(name, 2, 900);
    wr_kvfile_close(&f);
    is_there(name, 2, 900);
}

static void replaces_at_the_end(void **state)
{
    (void)state;
    struct wr_kvfile f;
    const char *name = in_folder("old"), *link_name = in_folder("link");
    make(name, 1, 600);
    int entries = count_entries(folder);
    assert_int_equal(create(&f, name), 0);
    assert_int_equal(extend(&f, 2, 800), 0);
    is_there(name, 1, 600);
    assert_int_equal(count_entries(folder), entries);
    wr_kvfile_close(&f);
    is_there(name, 1, 600);
    assert_int_equal(symlink("old", link_name), 0);
    assert_int_equal(create(&f, link_name), 0);
    assert_int_equal(extend(&f, 2, 800), 0);
    assert_int_equal(wr_kvfile_finish(&f, &err), 0);
    wr_kvfile_close(&f);
    is_there(name, 2, 800);
    struct stat st;
    assert_int_equal(lstat(link_name, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(unlink(link_name), 0);
    assert_int_equal(count_entries(folder), entries);

    write_file(in_folder("text"), "once upon a time", 16);
    assert_int_equal(create(&f, in_folder("text")), WEIR_E_OPEN);
    assert_int_equal(create(&f, folder), WEIR_E_OPEN);
    assert_int_equal(create(&f, in_folder("nowhere/x")), WEIR_E_OPEN);
}

/* The image with other bytes at an offset, whose last four become their CRC. */
static void write_sealed(const char *name, const uint8_t *image, size_t bytes, off_t at, uint8_t *page, uint32_t n)
{
    uint32_t crc = wr_crc32c_scalar(0, page, n - 4);
    memcpy(page + n - 4, &crc, 4);
    write_file(name, image, bytes);
    int fd = open(name, O_WRONLY);
    assert_int_equal(pwrite(fd, page, n, at), n);
    close(fd);
}

/* F4: what is damaged is refused and named, at once and in bounded memory; where a file is accepted, it is right. */
static void refuses_damage(void **state)
{
    (void)state;
    const char *good = in_folder("good"), *bad = in_folder("bad");
    uint32_t n;
    size_t bytes;
    make(good, 3, 2 * 256 + 70);
    uint8_t *image = whole(good, &bytes);

    for (size_t i = 0; i < 20; i++) { /* cut at 20 places, the first of length zero */
        write_file(bad, image, bytes * i / 20);
        assert_int_equal(judge(bad, 3, &n), WEIR_E_FORMAT);
        assert_non_null(strstr(err.text, bad));
    }
    write_file(bad, image, bytes - 1);
    assert_int_equal(judge(bad, 3, &n), WEIR_E_FORMAT);
    assert_non_null(strstr(err.text, "truncated"));

    size_t n_refused = 0, n_flipped = 0;
    for (size_t at = 0; at < bytes; at += 97, n_flipped++) {
        write_file(bad, image, bytes);
        int fd = open(bad, O_WRONLY);
        uint8_t flipped = image[at] ^ (uint8_t)(1 << n_flipped % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)at), 1);
        close(fd);
        int rc = judge(bad, 3, &n);
        if (rc == 0)
            assert_int_equal(n, 582); /* a byte that has no meaning: padding, or the place of no tail */
        else if (rc != WEIR_E_FORMAT && rc != WEIR_E_MISMATCH)
            fail_msg("byte %zu: %s", at, err.text);
        n_refused += rc != 0;
    }
    /* All that has a meaning is found: header, state, entries, three groups with their records. */
    size_t meaning = 4096 + 64 + 16 * WEIGHTS + 3 * (LAYERS * BLOCK + 4096);
    assert_true(n_refused >= meaning / 97 - 8);
    assert_true(n_refused < n_flipped);

    for (int v = 0; v < 4; v++) { /* other versions, sealed as they should be */
        uint8_t page[4096];
        memcpy(page, image, 4096);
        page[8] = (uint8_t)(v == 0 ? 0 : 1 + v);
        write_sealed(bad, image, bytes, 0, page, 4096);
        assert_int_equal(judge(bad, 3, &n), WEIR_E_UNSUPPORTED);
    }
    /* Lengths of 2^31 and 2^32 - 1 wherever the header and the state have one, sealed: 2^60 bytes by their products. */
    uint64_t used = wr_ledger_peak(&ledger, WR_ACCOUNT_TEXT);
    for (size_t at = 16; at < 16 + 15 * 4; at += 4) {
        for (int k = 0; k < 2; k++) {
            uint8_t page[4096];
            memcpy(page, image, 4096);
            memset(page + at, k ? 0xff : 0, 4);
            page[at + 3] |= 0x80;
            write_sealed(bad, image, bytes, 0, page, 4096);
            int rc = judge(bad, 3, &n);
            assert_true(rc == WEIR_E_FORMAT || rc == WEIR_E_MISMATCH);
        }
    }
    for (size_t at = 16; at < 36; at += 4) {
        uint8_t s[64];
        memcpy(s, image + 4096, 64);
        memset(s + at, 0xff, 4);
        write_sealed(bad, image, bytes, 4096, s, 64);
        assert_int_equal(judge(bad, 3, &n), WEIR_E_FORMAT);
    }
    assert_true(wr_ledger_peak(&ledger, WR_ACCOUNT_TEXT) - used < 1 << 20);
    free(image);
}

/* What is refused for writing, or opened and found to be another model's, keeps its bytes and its length. */
static void refused_is_left_alone(void **state)
{
    (void)state;
    const char *name = in_folder("alone");
    const struct {
        const char *what;
        int cut, flip, state_at; /* bytes at its end; a byte that is another; a number of the state that becomes 2^32 - 1 */
        int code;
    } cases[] = {{"cut", -5000, 0, 0, WEIR_E_FORMAT}, {"cut in the table", -64000, 0, 0, WEIR_E_FORMAT}, {"header", 9000, 40, 0, WEIR_E_FORMAT},
        {"table", 9000, 8200, 0, WEIR_E_FORMAT}, {"state", 9000, 4110, 0, WEIR_E_FORMAT}, {"groups of the state", 0, 0, 16, WEIR_E_FORMAT},
        {"tail of the state", 0, 0, 20, WEIR_E_FORMAT}, {"longer", 9000, 0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wr_kvfile f;
        size_t bytes, bytes_then;
        make(name, 1, 600);
        int fd = open(name, O_RDWR);
        uint8_t flipped, s[64];
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(ftruncate(fd, st.st_size + cases[i].cut), 0);
        if (cases[i].flip > 0) {
            assert_int_equal(pread(fd, &flipped, 1, cases[i].flip), 1);
            flipped ^= 8;
            assert_int_equal(pwrite(fd, &flipped, 1, cases[i].flip), 1);
        }
        if (cases[i].state_at > 0) {
            assert_int_equal(pread(fd, s, 64, 4096), 64);
            memset(s + cases[i].state_at, 0xff, 4);
            uint32_t crc = wr_crc32c_scalar(0, s, 60);
            memcpy(s + 60, &crc, 4);
            assert_int_equal(pwrite(fd, s, 64, 4096), 64);
        }
        close(fd);
        uint8_t *before = whole(name, &bytes);
        int rc = wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err);
        if (rc == 0) wr_kvfile_close(&f);
        if (rc != cases[i].code) fail_msg("%s: %d", cases[i].what, rc);
        uint8_t *then = whole(name, &bytes_then);
        if (bytes != bytes_then) fail_msg("%s: %zu bytes were %zu", cases[i].what, bytes_then, bytes);
        assert_memory_equal(then, before, bytes);
        free(before);
        free(then);
    }
}

/* A damaged block is named by tokens that there are. */
static void damage_names_tokens(void **state)
{
    (void)state;
    struct wr_kvfile f;
    const char *name = in_folder("tokens");
    make(name, 1, 600);
    assert_int_equal(open_read(&f, name), 0);
    assert_int_equal(wr_kvfile_damaged(&f, 1, 0, &err), WEIR_E_FORMAT);
    assert_non_null(strstr(err.text, "tokens 256 to 511 in layer 0"));
    assert_int_equal(wr_kvfile_damaged(&f, 2, 1, &err), WEIR_E_FORMAT);
    assert_non_null(strstr(err.text, "tokens 512 to 599 in layer 1"));
    wr_kvfile_close(&f);
}

static void names_the_difference(void **state)
{
    (void)state;
    struct wr_kvfile f;
    const char *name = in_folder("model");
    make(name, 1, 10);
    assert_int_equal(open_read(&f, name), 0);
    struct {
        struct wr_kvfile_about about;
        const char *word;
    } cases[8];
    for (size_t i = 0; i < 8; i++) cases[i].about = about_of();
    cases[0].about.numerics = 2, cases[0].word = "numerics";
    cases[1].about.kv_type = 0, cases[1].word = "--kv";
    cases[2].about.precise = 1, cases[2].word = "--precise";
    cases[3].about.tokenizer = 1, cases[3].word = "tokenizer";
    cases[4].about.graph = 1, cases[4].word = "RoPE";
    cases[5].about.n_layer = 3, cases[5].word = "layers";
    memcpy(cases[6].about.arch, "gemma3", 7), cases[6].word = "gemma3";
    cases[7].about.n_vocab = 5, cases[7].word = "vocabulary";
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(wr_kvfile_match(&f, &cases[i].about, weights(), &err), WEIR_E_MISMATCH);
        if (strstr(err.text, cases[i].word) == NULL) fail_msg("'%s' lacks '%s'", err.text, cases[i].word);
    }
    struct wr_kvfile_about a = about_of();
    struct wr_kvfile_weight other[WEIGHTS];
    memcpy(other, weights(), sizeof other);
    other[123].id++;
    assert_int_equal(wr_kvfile_match(&f, &a, other, &err), WEIR_E_MISMATCH);
    assert_non_null(strstr(err.text, "tensor 123"));
    wr_kvfile_close(&f);
}

/* Nobody loses tokens without a word: what another process writes, replaces or has just replaced is not replaced. Who reads is not in the way. */
static void replaces_nobodys(void **state)
{
    (void)state;
    struct wr_kvfile f, second;
    const char *name = in_folder("shared"), *other = in_folder("other");
    make(name, 1, 600);
    int entries = count_entries(folder), fds = count_entries("/proc/self/fd");
    assert_int_equal(wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), 0);
    assert_int_equal(create(&second, name), WEIR_E_OPEN);
    assert_non_null(strstr(err.text, "another process writes to it"));
    assert_int_equal(extend(&f, 1, 700), 0);
    wr_kvfile_close(&f);
    is_there(name, 1, 700);

    assert_int_equal(open_read(&second, name), 0); /* and goes on with what it opened */
    assert_int_equal(create(&f, name), 0);
    is_there(name, 1, 700);
    struct wr_kvfile third;
    assert_int_equal(create(&third, name), WEIR_E_OPEN);
    assert_non_null(strstr(err.text, "another process replaces it"));
    wr_kvfile_close(&second);
    assert_int_equal(wr_kvfile_open(&third, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err), WEIR_E_OPEN);
    assert_int_equal(extend(&f, 2, 800), 0);
    assert_int_equal(wr_kvfile_finish(&f, &err), 0);
    assert_int_equal(create(&third, name), WEIR_E_OPEN); /* it is in its place, and open */
    wr_kvfile_close(&f);
    is_there(name, 2, 800);

    assert_int_equal(create(&f, name), 0);
    assert_int_equal(extend(&f, 3, 300), 0);
    make(other, 1, 500);
    assert_int_equal(rename(other, name), 0); /* as one does that knows of no locks */
    assert_int_equal(wr_kvfile_finish(&f, &err), WEIR_E_OPEN);
    assert_non_null(strstr(err.text, "meanwhile"));
    is_there(name, 1, 500);
    wr_kvfile_close(&f);
    assert_int_equal(count_entries(folder), entries);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
}

/* What could not get its place gets it the next time. */
static void asked_again(void **state)
{
    (void)state;
    struct wr_kvfile f;
    const char *name = in_folder("again"), *aside = in_folder("aside");
    make(name, 1, 600);
    int entries = count_entries(folder);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(create(&f, name), 0);
        assert_int_equal(extend(&f, 2, 800), 0);
        assert_int_equal(rename(name, aside), 0);
        assert_int_equal(mkdir(name, 0700), 0);
        assert_true(wr_kvfile_finish(&f, &err) < 0);
        assert_true(wr_kvfile_finish(&f, &err) < 0);
        assert_int_equal(rmdir(name), 0);
        assert_int_equal(rename(aside, name), 0);
        is_there(name, 1, 600);
        if (again) assert_int_equal(wr_kvfile_finish(&f, &err), 0);
        wr_kvfile_close(&f);
        is_there(name, again ? 2 : 1, again ? 800 : 600);
        assert_int_equal(count_entries(folder), entries);
    }
}

/* The k-th allocation fails: nothing is left of it. */
static void no_memory(void **state)
{
    (void)state;
    struct wr_kvfile f;
    const char *name = in_folder("memory");
    make(name, 1, 600);
    int entries = count_entries(folder), fds = count_entries("/proc/self/fd"), rc = WEIR_E_NOMEM;
    const uint64_t used = wr_ledger_used(&ledger, WR_ACCOUNT_TEXT);
    uint64_t k = 1;
    for (; rc < 0; k++) {
        wr_fault_set(WR_FAULT_ALLOC, k, false);
        rc = create(&f, name);
        wr_fault_set(WR_FAULT_ALLOC, 0, false);
        if (rc == 0) wr_kvfile_close(&f);
        assert_true(rc == 0 || rc == WEIR_E_NOMEM);
        assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), used);
        assert_int_equal(count_entries("/proc/self/fd"), fds);
        assert_int_equal(count_entries(folder), entries);
    }
    assert_true(k > 4);
}

static void count_warnings(void *user, enum weir_log_level level, const char *text) { *(int *)user += level == WEIR_LOG_WARN && text != NULL; }

/* What the child does where there is no /proc: the number of the step that fails. */
static int without_proc(void)
{
    struct wr_kvfile_about a = about_of();
    struct wr_kvfile f;
    int warnings = 0;
    const struct wr_log log = {count_warnings, &warnings};
    if (chroot(folder) != 0 || chdir("/") != 0) return 77;
    if (access("/proc/self/fd", F_OK) == 0) return 1;
    for (int direct = 0; direct < 2; direct++) {
        if (wr_kvfile_create(&f, "/bare", &a, weights(), direct ? WEIR_DIRECT_ON : WEIR_DIRECT_AUTO, &ledger, &log, &err) != 0) return 2;
        if (extend(&f, 1 + (uint32_t)direct, 300) != 0) return 3;
        if (direct == 0 && (wr_kvfile_finish(&f, &err) != 0 || access("/bare", F_OK) != 0)) return 4;
        if (direct == 1 && (rename("/bare", "/away") != 0 || mkdir("/bare", 0700) != 0 || wr_kvfile_finish(&f, &err) == 0)) return 5;
        if (direct == 1 && (rmdir("/bare") != 0 || rename("/away", "/bare") != 0 || wr_kvfile_finish(&f, &err) != 0)) return 6;
        wr_kvfile_close(&f);
        if (warnings != 0) return 7;
    }
    if (wr_kvfile_create(&f, "/fresh", &a, weights(), WEIR_DIRECT_AUTO, &ledger, &log, &err) != 0) return 8;
    if (mkdir("/fresh", 0700) != 0 || extend(&f, 1, 300) == 0) return 9;
    if (rmdir("/fresh") != 0 || extend(&f, 1, 400) != 0 || access("/fresh", F_OK) != 0) return 10;
    wr_kvfile_close(&f);
    return 0;
}

static void needs_no_proc(void **state)
{
    (void)state;
    struct wr_kvfile_about a = about_of();
    struct wr_kvfile f;
    int entries = count_entries(folder), status;
    if (wr_kvfile_create(&f, in_folder("bare"), &a, weights(), WEIR_DIRECT_ON, &ledger, NULL, &err) != 0) skip(); /* nor direct I/O */
    wr_kvfile_close(&f);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(without_proc());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip(); /* not root */
    assert_int_equal(WEXITSTATUS(status), 0);
    is_there(in_folder("bare"), 2, 300);
    is_there(in_folder("fresh"), 1, 400);
    unlink(in_folder("bare"));
    unlink(in_folder("fresh"));
    assert_int_equal(count_entries(folder), entries);
}

/* F2: at every write in turn the disk is full: the call fails, the old file is what it was, nothing else is there; and with room again it works. */
static void full_disk(void **state)
{
    (void)state;
    const char *old = in_folder("full-old"), *fresh = in_folder("full-new");
    make(old, 1, 600);
    int entries = count_entries(folder);
    uint64_t k = 1;
    wr_store_fault_script.fail_errno = ENOSPC;
    for (bool failed = true; failed; k++) {
        failed = false;
        for (int which = 0; which < 3; which++) { /* replaces, new, in place */
            struct wr_kvfile f;
            const char *name = which == 1 ? fresh : old;
            wr_fault_set(WR_FAULT_WRITE, k, false);
            int rc = which == 2 ? wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err) : create(&f, name);
            bool opened = rc == 0;
            uint32_t n = 600;
            for (uint32_t step = 0; rc == 0 && step < 3; step++) {
                rc = extend(&f, 1, n + 300);
                if (rc == 0) n += 300;
            }
            if (rc < 0) {
                failed = true;
                assert_int_equal(rc, WEIR_E_WRITE);
                assert_non_null(strstr(err.text, "free; make room"));
                if (which != 1) holds(old, 1, which == 0 ? 600 : n);
                if (opened && which == 2) { /* the same open file, now that there is room */
                    assert_int_equal(extend(&f, 1, n + 300), 0);
                    holds(old, 1, n + 300);
                }
            }
            wr_fault_set(WR_FAULT_WRITE, 0, false);
            if (opened) wr_kvfile_close(&f);
            if (which == 1 && access(fresh, F_OK) == 0) {
                is_there(fresh, 1, n); /* the commits before */
                unlink(fresh);
            }
            assert_int_equal(count_entries(folder), entries);
            if (which == 2) make(old, 1, 600);
        }
    }
    wr_store_fault_script.fail_errno = 0;
    assert_true(k > 20);
}

/* kill -9 at random moments of a child that saves and extends, in place and as a new file: the file opens with what some commit had. */
static void killed(void **state)
{
    (void)state;
    const char *name = in_folder("killed"), *rounds_text = getenv("WEIR_TEST_KILLS");
    int rounds = rounds_text != NULL ? (int)strtol(rounds_text, NULL, 10) : 25, entries = count_entries(folder);
    uint64_t seed = 99;
    uint32_t most = 0;
    unlink(name);
    for (int round = 0; round < rounds; round++) {
        uint32_t before = 0, after = 0;
        if (access(name, F_OK) == 0) assert_int_equal(judge(name, 5, &before), 0);
        if (before > 20000) {
            unlink(name);
            before = 0;
        }
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct wr_kvfile f;
            uint32_t n = before;
            int rc = n > 0 ? wr_kvfile_open(&f, name, true, WEIR_DIRECT_AUTO, &ledger, NULL, &err) : create(&f, name);
            for (uint64_t x = (uint64_t)round + 1; rc == 0; n += (uint32_t)(next_random(&x) % 400)) rc = extend(&f, 5, n + 1);
            _exit(7);
        }
        struct timespec pause = {0, (long)(next_random(&seed) % 60000000)};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        if (access(name, F_OK) == 0) {
            int rc = judge(name, 5, &after);
            if (rc != 0) fail_msg("round %d: %s", round, err.text);
        }
        assert_true(after >= before);
        if (after > most) most = after;
    }
    assert_true(most > 0);
    unlink(name);
    assert_int_equal(count_entries(folder), entries);
}

static int setup(void **state)
{
    wr_ledger_init(&ledger);
    return make_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_what_was_committed), cmocka_unit_test(goes_back), cmocka_unit_test(replaces_at_the_end),
        cmocka_unit_test(refuses_damage), cmocka_unit_test(refused_is_left_alone), cmocka_unit_test(damage_names_tokens),
        cmocka_unit_test(names_the_difference), cmocka_unit_test(replaces_nobodys), cmocka_unit_test(asked_again), cmocka_unit_test(no_memory),
        cmocka_unit_test(needs_no_proc), cmocka_unit_test(full_disk), cmocka_unit_test(killed)};
    return cmocka_run_group_tests(tests, setup, remove_folder);
}
