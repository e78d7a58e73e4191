/* SPDX-License-Identifier: Apache-2.0 */
/* What the command writes and reads: output with its errors, JSON members, npy files, texts and lines with their bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/cli.h"

const struct wr_cli_command wr_cli_commands[WR_CLI_N_COMMANDS] = {
#define COMMAND(id, name, arguments, summary, text) {#name, arguments, summary, text, NULL},
#include "cli/commands.def"
#undef COMMAND
};

static struct wr_cli cli;
static weir_err err;
static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static size_t read_back(const char *path, char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, room, file);
    fclose(file);
    return n;
}

static struct wr_cli_out open_out(const char *name) { return (struct wr_cli_out){.fd = open(in_folder(name), O_RDWR | O_CREAT | O_TRUNC, 0600)}; }

static void output(void **state)
{
    (void)state;
    static char big[10000], got[40000];
    memset(big, 'x', sizeof big);
    struct wr_cli_out out = open_out("out");
    wr_cli_put(&out, "begin\n", 6);
    wr_cli_put(&out, big, sizeof big);
    for (int i = 0; i < 2000; i++) wr_cli_printf(&out, "%04d\n", i);
    wr_cli_put_escaped(&out, "a\nb\x1b[1m\x7f\xc3\xa9\xe4\xb8\xad", 100);
    wr_cli_put_escaped(&out, "\xc3\xa9\xc3\xa9", 1); /* cut between characters */
    assert_int_equal(wr_cli_flush(&out, &err), 0);
    const char *tail = "a\\nb\\x1b[1m\\x7f\xc3\xa9\xe4\xb8\xad\xc3\xa9...";
    size_t n = read_back(in_folder("out"), got, sizeof got);
    assert_int_equal(n, 6 + sizeof big + 2000 * 5 + strlen(tail));
    assert_int_equal(out.written, n);
    assert_memory_equal(got, "begin\n", 6);
    assert_memory_equal(got + 6, big, sizeof big);
    for (int i = 0; i < 2000; i++) {
        const char line[5] = {(char)('0' + i / 1000), (char)('0' + i / 100 % 10), (char)('0' + i / 10 % 10), (char)('0' + i % 10), '\n'};
        assert_memory_equal(got + 6 + sizeof big + (size_t)i * 5, line, sizeof line);
    }
    assert_memory_equal(got + n - strlen(tail), tail, strlen(tail));
    close(out.fd);

    /* A full disk is an error that stays, whichever write met it. */
    out = (struct wr_cli_out){.fd = open("/dev/full", O_WRONLY)};
    wr_cli_put(&out, big, sizeof big);
    wr_cli_put(&out, "x", 1);
    assert_int_equal(wr_cli_flush(&out, &err), WEIR_E_WRITE);
    assert_int_equal(wr_cli_flush(&out, &err), WEIR_E_WRITE);
    close(out.fd);

    char text[32];
    assert_string_equal(wr_cli_size(0, text), "0 B");
    assert_string_equal(wr_cli_size(1023, text), "1023 B");
    assert_string_equal(wr_cli_size(59034829, text), "56.3 MiB");
    assert_string_equal(wr_cli_size(UINT64_MAX, text), "16777216.0 TiB");
}

static void json(void **state)
{
    (void)state;
    static char got[200000];
    static int32_t ids[20000];
    for (int i = 0; i < 20000; i++) ids[i] = i;
    struct wr_cli_out out = open_out("json");
    wr_cli_json_begin(&out);
    wr_cli_json_ids(&out, "none", ids, 0);
    wr_cli_json_ids(&out, "ids", ids, 20000);
    wr_cli_json_add(&out, "text", wr_cli_json_text("a\0b\"{", 5));
    wr_cli_json_add(&out, "bad", wr_cli_json_text("x\xff\xe4\xb8y", 5));
    wr_cli_json_add(&out, "nothing", NULL);
    wr_cli_json_add(&out, "rate", wr_cli_json_rate(0.0));
    wr_cli_json_u64(&out, "seed", UINT64_MAX);
    wr_cli_json_end(&out);
    assert_int_equal(wr_cli_flush(&out, &err), 0);
    close(out.fd);
    size_t n = read_back(in_folder("json"), got, sizeof got - 1);
    const char *tail =
        "19999], \"text\": \"a\\u0000b\\\"{\", \"bad\": \"x\xef\xbf\xbd\xef\xbf\xbdy\", \"nothing\": null, \"rate\": null, \"seed\": 18446744073709551615}\n";
    assert_memory_equal(got, "{\"none\": [], \"ids\": [0, 1, 2, ", 30);
    assert_memory_equal(got + n - strlen(tail), tail, strlen(tail));
    /* The whole is one object for a parser of JSON (less the seed, which jansson's integers do not hold). */
    char *seed = strstr(got, ", \"seed\"");
    seed[0] = '}';
    json_t *value = json_loadb(got, (size_t)(seed - got) + 1, JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    assert_int_equal(json_array_size(json_object_get(value, "ids")), 20000);
    json_decref(value);
}

/* The bytes that numpy writes for np.save of np.zeros((3, 5), '<f4'), header part. */
static const char npy_header[] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }"
                                 "                                                          \n";

static void npy(void **state)
{
    (void)state;
    float all[3][5], tile[15];
    char got[512];
    struct wr_cli_npy file;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 5; j++) all[i][j] = (float)(i * 10 + j) + 0.5f;
    const char *path = in_folder("logits.npy");
    assert_int_equal(wr_cli_npy_open(&file, path, 3, 5, &cli.ledger, &err), 0);
    /* Rows 1..2 words 2..4, rows 1..2 words 0..1, then the whole of row 0. */
    for (int i = 0; i < 2; i++) memcpy(tile + i * 3, &all[1 + i][2], 12);
    assert_int_equal(wr_cli_npy_tile(&file, 1, 2, 2, 3, tile, &err), 0);
    for (int i = 0; i < 2; i++) memcpy(tile + i * 2, &all[1 + i][0], 8);
    assert_int_equal(wr_cli_npy_tile(&file, 1, 2, 0, 2, tile, &err), 0);
    assert_int_equal(wr_cli_npy_tile(&file, 0, 1, 0, 5, all[0], &err), 0);
    uint64_t hash = 0;
    assert_int_equal(wr_cli_npy_hash(&file, &hash, &err), 0);
    assert_true(hash == 0xb30a9af255848bc1u); /* by Python, from the bytes of the numpy array */
    assert_int_equal(access(path, F_OK), -1); /* not before commit */
    assert_int_equal(wr_outfile_commit(&file.file, &err), 0);
    wr_cli_file_discard(&file.file);
    assert_int_equal(sizeof npy_header - 1, 128);
    assert_int_equal(read_back(path, got, sizeof got), 128 + sizeof all);
    assert_memory_equal(got, npy_header, 128);
    assert_memory_equal(got + 128, all, sizeof all);
    unlink(path);

    /* Thrown away: nothing stays. */
    assert_int_equal(wr_cli_npy_open(&file, path, 3, 5, &cli.ledger, &err), 0);
    wr_cli_file_discard(&file.file);
    wr_cli_file_discard(&file.file);
    assert_int_equal(access(path, F_OK), -1);

    assert_int_equal(wr_cli_npy_open(&file, path, UINT64_MAX / 4, 5, &cli.ledger, &err), WEIR_E_INPUT);
    assert_int_equal(wr_cli_npy_open(&file, "/dev/null", 1, 1, &cli.ledger, &err), WEIR_E_OPEN); /* would be replaced by the rename */
    assert_int_equal(wr_cli_npy_open(&file, in_folder("no/such/folder"), 1, 1, &cli.ledger, &err), WEIR_E_OPEN);
    /* A name as long as file systems allow. */
    char name[256];
    memset(name, 'n', 255);
    name[255] = 0;
    assert_int_equal(wr_cli_npy_open(&file, in_folder(name), 1, 1, &cli.ledger, &err), 0);
    assert_int_equal(wr_outfile_commit(&file.file, &err), 0);
    wr_cli_file_discard(&file.file);
    assert_int_equal(unlink(in_folder(name)), 0);

    /* No room: the limit of the process stands for a full disk. Refused at open, and nothing stays in the folder. */
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1 << 16;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(wr_cli_npy_open(&file, path, 1000, 1000, &cli.ledger, &err), WEIR_E_WRITE);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(unlink(in_folder("out")), 0);
    assert_int_equal(unlink(in_folder("json")), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void texts(void **state)
{
    (void)state;
    struct wr_cli_text text;
    static char big[9000];
    memset(big, 'y', sizeof big);
    big[17] = 0;
    write_file("t", big, sizeof big);
    assert_int_equal(wr_cli_text_read_file(&cli, in_folder("t"), 9000, &text, &err), 0);
    assert_int_equal(text.n, 9000);
    assert_memory_equal(text.bytes, big, 9001 - 1);
    assert_int_equal(text.bytes[9000], 0);
    wr_mem_free(text.bytes);
    assert_int_equal(wr_cli_text_read_file(&cli, in_folder("t"), 8999, &text, &err), WEIR_E_INPUT);
    assert_int_equal(wr_cli_text_read_file(&cli, in_folder("missing"), 10, &text, &err), WEIR_E_OPEN);
    assert_int_equal(wr_cli_text_read_file(&cli, folder, 10, &text, &err), WEIR_E_OPEN);
    assert_int_equal(wr_cli_text_read_file(&cli, "/dev/zero", 100000, &text, &err), WEIR_E_INPUT); /* no size known: stops at the bound */
    write_file("t", "", 0);
    assert_int_equal(wr_cli_text_read_file(&cli, in_folder("t"), 10, &text, &err), 0);
    assert_int_equal(text.n, 0);
    wr_mem_free(text.bytes);
    assert_int_equal(unlink(in_folder("t")), 0);
}

static void lines(void **state)
{
    (void)state;
    static char big[20000];
    struct wr_cli_lines in;
    char *line;
    size_t n;
    memset(big, 'z', sizeof big);
    big[4095] = big[4096] = '\n'; /* an empty line across the first read */
    big[9000] = '\n';
    write_file("l", big, sizeof big);
    assert_int_equal(wr_cli_lines_open(&in, &cli, in_folder("l"), &err), 0);
    size_t want[] = {4095, 0, 9000 - 4097, sizeof big - 9001};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(wr_cli_lines_next(&in, &line, &n, &err), 1);
        assert_int_equal(n, want[i]);
        assert_int_equal(strlen(line), n);
        assert_int_equal(strspn(line, "z"), n);
    }
    assert_int_equal(wr_cli_lines_next(&in, &line, &n, &err), 0);
    assert_int_equal(wr_cli_lines_next(&in, &line, &n, &err), 0);
    wr_cli_lines_close(&in);
    assert_int_equal(unlink(in_folder("l")), 0);
    assert_int_equal(wr_cli_lines_open(&in, &cli, in_folder("l"), &err), WEIR_E_OPEN);
}

static void warnings(void **state)
{
    (void)state;
    cli.quiet = true;
    for (int i = 0; i < 40; i++) wr_cli_warn(&cli, "number %d", i);
    assert_int_equal(cli.n_warnings, 40);
    assert_string_equal(cli.warning[31], "number 31");
    /* Last test: nothing of all the texts is left. */
    assert_int_equal(wr_ledger_used(&cli.ledger, WR_ACCOUNT_TEXT), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Work of a x + b x^2 seconds, told in chunks of 512 as it gets done: what is left is known from a 16th on, and never negative. */
static void forecast(void **state)
{
    (void)state;
    const double a = 2e-3, b = 3e-8, total = 1 << 20, whole = a * total + b * total * total;
    struct wr_cli_forecast f = {{0}, {0}};
    double linear = 0;
    for (double x = 512; x < total; x += 512) {
        const double seconds = a * x + b * x * x;
        wr_cli_forecast(&f, x, seconds);
        const double left = wr_cli_forecast_left(&f, x, seconds, total);
        if (x == 512) linear = left;
        if (x >= total / 16) assert_true(fabs(left - (whole - seconds)) < 1e-6 * whole);
        assert_true(left > 0);
    }
    assert_true(fabs(linear - (a + b * 512) * (total - 512)) < 1e-6 * whole);
    /* What gets faster as it goes on is taken to go on as it did. */
    f = (struct wr_cli_forecast){{0}, {0}};
    wr_cli_forecast(&f, 100, 10);
    wr_cli_forecast(&f, 200, 15);
    assert_true(wr_cli_forecast_left(&f, 200, 15, 400) == 15);
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/weir-cli-XXXXXX", base && strlen(base) < 30 ? base : P_tmpdir);
    if (!mkdtemp(folder)) return 1;
    wr_ledger_init(&cli.ledger);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output),
        cmocka_unit_test(json),
        cmocka_unit_test(npy),
        cmocka_unit_test(texts),
        cmocka_unit_test(lines),
        cmocka_unit_test(warnings),
        cmocka_unit_test(forecast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
