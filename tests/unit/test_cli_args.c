/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser: every spelling, every mistake, the environment, the nearest name, numbers and lists of ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "cli/args.h"

const struct wr_cli_command wr_cli_commands[WR_CLI_N_COMMANDS] = {
#define COMMAND(id, name, arguments, summary, text) {#name, arguments, summary, text, NULL},
#include "cli/commands.def"
#undef COMMAND
};

static struct wr_ledger ledger;
static weir_err err;

static int parse(struct wr_cli_args *args, enum wr_cli_command_id command, const char **words)
{
    int argc = 0;
    err.text[0] = 0;
    while (words[argc]) argc++;
    return wr_cli_parse(args, command, argc, (char **)words, &ledger, &err);
}
#define PARSE(args, command, ...) parse(args, WR_CLI_CMD_##command, (const char *[]){#command, __VA_ARGS__, NULL})

static void assert_said(const char *part)
{
    if (!strstr(err.text, part)) fail_msg("'%s' is not in '%s'", part, err.text);
}

static void refused(const char **words, const char *part)
{
    struct wr_cli_args args;
    assert_int_equal(parse(&args, WR_CLI_CMD_RUN, words), WEIR_E_USAGE);
    assert_said(part);
    assert_null(args.items);
}
#define REFUSED(part, ...) refused((const char *[]){"run", __VA_ARGS__, NULL}, part)

static void spellings(void **state)
{
    (void)state;
    const char *forms[][4] = {{"-n64"}, {"-n", "64"}, {"--n=64"}, {"--n", "64"}, {"-n=64"}, {"-vn64"}, {"-vn", "64"}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct wr_cli_args args;
        uint64_t n = 0;
        assert_int_equal(PARSE(&args, RUN, "model", forms[i][0], forms[i][1]), 0);
        assert_int_equal(args.count[WR_CLI_N], 1);
        assert_int_equal(wr_cli_u64(&args, WR_CLI_N, 0, 100, &n, &err), 0);
        assert_int_equal(n, 64);
        assert_int_equal(args.n_positional, 1);
        wr_cli_args_free(&args);
    }
    struct wr_cli_args args;
    assert_int_equal(PARSE(&args, RUN, "--memory=2G", "-m", "a b", "-p", "", "--json", "-vv", "-qf-", "--stop", "x", "--stop=", "--stop=a=b"), 0);
    assert_string_equal(args.value[WR_CLI_MEMORY], "2G");
    assert_string_equal(args.value[WR_CLI_MODEL], "a b");
    assert_string_equal(args.value[WR_CLI_PROMPT], "");
    assert_string_equal(args.value[WR_CLI_FILE], "-");
    assert_int_equal(args.count[WR_CLI_VERBOSE], 2);
    assert_int_equal(args.count[WR_CLI_QUIET], 1);
    assert_int_equal(args.count[WR_CLI_STOP], 3);
    assert_int_equal(args.n_positional, 0);
    const char *stops[] = {"x", "", "a=b"};
    size_t seen = 0;
    for (size_t i = 0; i < args.n_items; i++)
        if (args.items[i].option == WR_CLI_STOP) assert_string_equal(args.items[i].value, stops[seen++]);
    assert_int_equal(seen, 3);
    wr_cli_args_free(&args);

    /* The last one counts; a lone dash and what follows -- are no options; a value may begin with a dash. */
    assert_int_equal(PARSE(&args, RUN, "-c", "1", "-c2", "-", "--stop", "--json", "--", "--json", "-x"), 0);
    assert_string_equal(args.value[WR_CLI_CTX], "2");
    assert_int_equal(args.count[WR_CLI_JSON], 0);
    assert_int_equal(args.n_positional, 3);
    assert_string_equal(args.positional[0], "-");
    assert_string_equal(args.positional[1], "--json");
    assert_string_equal(args.positional[2], "-x");
    wr_cli_args_free(&args);
}

static void mistakes(void **state)
{
    (void)state;
    REFUSED("unknown option --memroy; did you mean --memory?", "--memroy", "2G");
    REFUSED("unknown option --mem; did you mean --memory?", "--mem", "2G"); /* the one that begins so, and not --temp */
    REFUSED("did you mean --temp?", "--tem");                               /* --temperature is no option */
    REFUSED("unknown option --p; 'weir help run'", "--p");                  /* --prompt, --precise ...: none of them */
    REFUSED("did you mean -n?", "--tokens", "9");
    REFUSED("did you mean --temp?", "--tmep=1");
    REFUSED("did you mean --top-k?", "--topk=1");
    REFUSED("did you mean --repeat-penalty?", "--repeat_penalty", "1");
    REFUSED("unknown option --zzzzqqqq; 'weir help run'", "--zzzzqqqq");
    REFUSED("did you mean --memory?", "-memory", "2G");
    REFUSED("unknown option -Z;", "-Z");
    REFUSED("unknown option --", "--=3");
    REFUSED("--memory needs a value: --memory SIZE", "m", "--memory");
    REFUSED("-n needs a value: -n N", "m", "-n");
    REFUSED("--json takes no value", "--json=1");
    REFUSED("--logits is an option of 'weir eval', not of 'weir run'", "--logits", "x");
    REFUSED("--layers is an option of 'weir synth', not of 'weir run'", "--layers", "2");
    char long_name[4096];
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[0] = long_name[1] = '-';
    long_name[sizeof long_name - 1] = 0;
    REFUSED("unknown option --aaaa", long_name);

    assert_int_equal(wr_cli_command_find("run", &err), WR_CLI_CMD_RUN);
    assert_int_equal(wr_cli_command_find("rnu", &err), WR_CLI_N_COMMANDS);
    assert_said("did you mean 'run'?");
    assert_int_equal(wr_cli_command_find("detok", &err), WR_CLI_N_COMMANDS);
    assert_said("did you mean 'detokenize'?");
    assert_int_equal(wr_cli_command_find("tokenise", &err), WR_CLI_N_COMMANDS);
    assert_said("did you mean 'tokenize'?");
    assert_int_equal(wr_cli_command_find("xyzzyxyzzy", &err), WR_CLI_N_COMMANDS);
    assert_said("'weir help' lists the commands");
    assert_int_equal(wr_cli_command_find("", &err), WR_CLI_N_COMMANDS);
}

static void numbers(void **state)
{
    (void)state;
    struct {
        const char *text;
        bool good;
        uint64_t value;
    } whole[] = {{"0", true, 0}, {"007", true, 7}, {"18446744073709551615", true, UINT64_MAX}, {"18446744073709551616", false, 0},
        {"99999999999999999999999", false, 0}, {"-1", false, 0}, {"+1", false, 0}, {" 1", false, 0}, {"1 ", false, 0}, {"1e9", false, 0}, {"abc", false, 0},
        {"", false, 0}, {"0x10", false, 0}};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        uint64_t x = 0;
        assert_int_equal(wr_cli_parse_u64(whole[i].text, &x), whole[i].good);
        assert_int_equal(x, whole[i].value);
    }
    struct {
        const char *text;
        bool good;
        double value;
    } real[] = {{"0.5", true, 0.5}, {"-1.25e2", true, -125}, {".5", true, 0.5}, {"nan", false, 0}, {"inf", false, 0}, {"-inf", false, 0}, {"1e999", false, 0},
        {"", false, 0}, {"1x", false, 0}, {" 1", false, 0}, {"--1", false, 0}};
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        double x = 0;
        assert_int_equal(wr_cli_parse_f64(real[i].text, &x), real[i].good);
        assert_true(x == real[i].value);
    }
    struct wr_cli_args args;
    uint64_t n = 5;
    float x = 5;
    assert_int_equal(PARSE(&args, RUN, "-n", "-1", "--top-k", "4294967296", "--temp", "1001", "--min-p=x"), 0);
    assert_int_equal(wr_cli_u64(&args, WR_CLI_N, 0, 100, &n, &err), WEIR_E_USAGE);
    assert_said("-n: '-1'");
    assert_int_equal(wr_cli_u64(&args, WR_CLI_TOP_K, 0, INT32_MAX, &n, &err), WEIR_E_USAGE);
    assert_said("--top-k: '4294967296' is not a whole number from 0 to 2147483647");
    assert_int_equal(wr_cli_f32(&args, WR_CLI_TEMP, 0, 1000, &x, &err), WEIR_E_USAGE);
    assert_said("--temp: 1001 is not between 0 and 1000");
    assert_int_equal(wr_cli_f32(&args, WR_CLI_MIN_P, 0, 1, &x, &err), WEIR_E_USAGE);
    assert_said("--min-p: 'x' is not a number");
    assert_int_equal(wr_cli_u64(&args, WR_CLI_SEED, 0, 1, &n, &err), 0); /* not given: untouched */
    assert_int_equal(n, 5);
    assert_true(x == 5);
    wr_cli_args_free(&args);
}

static void environment(void **state)
{
    (void)state;
    struct wr_cli_args args;
    char origin[64];
    uint64_t n = 0;
    setenv("WEIR_TOP_K", "x", 1);
    setenv("WEIR_JSON", "yes", 1);
    setenv("WEIR_STATS", "off", 1);
    setenv("WEIR_STOP", "from outside", 1);
    setenv("WEIR_CPU", "scalar", 1);
    setenv("WEIR_LOGITS", "of another command", 1);
    setenv("WEIR_MEMORY", "", 1); /* empty: as if unset */
    assert_int_equal(PARSE(&args, RUN, "m"), 0);
    assert_int_equal(args.count[WR_CLI_JSON], 1);
    assert_int_equal(args.count[WR_CLI_STATS], 0);
    assert_int_equal(args.count[WR_CLI_LOGITS], 0);
    assert_int_equal(args.count[WR_CLI_MEMORY], 0);
    assert_string_equal(args.value[WR_CLI_CPU], "scalar");
    assert_int_equal(wr_cli_u64(&args, WR_CLI_TOP_K, 0, 100, &n, &err), WEIR_E_USAGE);
    assert_said("WEIR_TOP_K: 'x'");
    wr_cli_args_free(&args);

    /* The command line replaces it, lists too. */
    assert_int_equal(PARSE(&args, RUN, "m", "--top-k", "3", "--stop", "a", "--stop", "b"), 0);
    assert_int_equal(wr_cli_u64(&args, WR_CLI_TOP_K, 0, 100, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_string_equal(wr_cli_option_origin(&args, WR_CLI_TOP_K, origin), "--top-k");
    assert_int_equal(args.count[WR_CLI_STOP], 2);
    size_t stops = 0;
    for (size_t i = 0; i < args.n_items; i++) stops += args.items[i].option == WR_CLI_STOP;
    assert_int_equal(stops, 2);
    wr_cli_args_free(&args);

    setenv("WEIR_JSON", "maybe", 1);
    assert_int_equal(PARSE(&args, RUN, "m"), WEIR_E_USAGE);
    assert_said("WEIR_JSON is 'maybe'");
    const char *names[] = {"WEIR_TOP_K", "WEIR_JSON", "WEIR_STATS", "WEIR_STOP", "WEIR_CPU", "WEIR_LOGITS", "WEIR_MEMORY"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

static void replacing(void **state)
{
    (void)state;
    struct wr_cli_args args;
    assert_int_equal(PARSE(&args, CHAT, "m", "--stop", "a", "--temp", "1", "--stop", "b"), 0);
    wr_cli_args_set(&args, WR_CLI_STOP, "c");
    assert_int_equal(args.count[WR_CLI_STOP], 1);
    assert_string_equal(args.value[WR_CLI_STOP], "c");
    assert_int_equal(args.n_items, 2);
    wr_cli_args_set(&args, WR_CLI_TEMP, NULL);
    assert_int_equal(args.count[WR_CLI_TEMP], 0);
    assert_int_equal(args.n_items, 1);
    wr_cli_args_set(&args, WR_CLI_IGNORE_EOS, NULL);
    assert_int_equal(args.count[WR_CLI_IGNORE_EOS], 1);
    wr_cli_args_free(&args);
}

static void ids(void **state)
{
    (void)state;
    struct {
        const char *text;
        bool list, good;
        size_t n;
        int32_t first, last;
    } cases[] = {
        {"[1, 2,3]", false, true, 3, 1, 3},
        {" [ ] \n", false, true, 0, 0, 0},
        {"[0]", false, true, 1, 0, 0},
        {"[2147483647]", false, true, 1, INT32_MAX, INT32_MAX},
        {"1 2\n3 ", true, true, 3, 1, 3},
        {"", true, true, 0, 0, 0},
        {"[5,6]", true, true, 2, 5, 6},
        {"1 2", false, false, 0, 0, 0},
        {"", false, false, 0, 0, 0},
        {"[1 2]", false, false, 0, 0, 0},
        {"[1,]", false, false, 0, 0, 0},
        {"[,1]", false, false, 0, 0, 0},
        {"[1", false, false, 0, 0, 0},
        {"[1] 2", false, false, 0, 0, 0},
        {"[-1]", false, false, 0, 0, 0},
        {"[1.5]", false, false, 0, 0, 0},
        {"[2147483648]", false, false, 0, 0, 0},
        {"[99999999999999999999999999]", false, false, 0, 0, 0},
        {"[\"1\"]", false, false, 0, 0, 0},
        {"[[1]]", false, false, 0, 0, 0},
        {"1,2", true, false, 0, 0, 0},
        {"1]", true, false, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t *all = NULL;
        size_t n = 99;
        /* An exact copy on the heap, so that reading past the end shows under a sanitizer. */
        size_t length = strlen(cases[i].text);
        char *text = malloc(length ? length : 1);
        memcpy(text, cases[i].text, length);
        int code = wr_cli_parse_ids(text, length, cases[i].list, &ledger, &all, &n, &err);
        free(text);
        if (code != (cases[i].good ? 0 : WEIR_E_INPUT)) fail_msg("'%s': %d", cases[i].text, code);
        if (code) continue;
        assert_int_equal(n, cases[i].n);
        if (n) assert_int_equal(all[0], cases[i].first);
        if (n) assert_int_equal(all[n - 1], cases[i].last);
        wr_mem_free(all);
    }
}

/* What help, environment and parser rely on. */
static void tables(void **state)
{
    (void)state;
    for (size_t i = 0; i < WR_CLI_N_OPTIONS; i++) {
        const struct wr_cli_option *a = &wr_cli_options[i];
        assert_true(a->commands != 0);
        assert_true(a->kind == WR_CLI_FLAG ? !a->argument : a->kind == WR_CLI_ENGINE || a->argument);
        assert_true(strlen(a->name) <= 24);
        for (size_t j = 0; j < i; j++) {
            const struct wr_cli_option *b = &wr_cli_options[j];
            assert_string_not_equal(a->name, b->name);
            if (a->letter && a->letter == b->letter) assert_int_equal(a->commands & b->commands, 0);
        }
    }
    assert_int_equal(wr_ledger_used(&ledger, WR_ACCOUNT_TEXT), 0); /* last test: nothing is left */
}

int main(void)
{
    wr_ledger_init(&ledger);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spellings),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(environment),
        cmocka_unit_test(replacing),
        cmocka_unit_test(ids),
        cmocka_unit_test(tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
