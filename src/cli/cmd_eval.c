/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Mean negative log likelihood of ids[i + 1] after ids[i], natural log: log(sum_v exp(x_v)) - x_target in double. The sum runs
 * over the words in order, as m + log(s) with m the largest logit so far and s = sum_v exp(x_v - m). Word by word, since the width
 * of the tiles that they come in is a matter of the budget, and the figure is not.
 */
struct row_sum {
    double m, s;
    float target;
};

struct eval {
    struct wr_cli *cli;
    const char *model;
    weir_plan *plan;
    weir_engine *engine;
    weir_session *session;
    int32_t *ids;
    size_t n, n_saved; /* all, and of them those of --context, which have no logits */
    struct wr_cli_npy npy;
    bool dump;
    weir_err *err;
    /* The block of rows whose tiles are coming; tiles of a block come with ascending words. */
    struct row_sum *rows;
    size_t capacity, block, next_word, n_vocab;
    double nll;
    uint64_t n_scored;
};

/* More than the text of a token, or its id with comma and white space, takes. */
#define BYTES_PER_TOKEN 64

static void add_words(struct row_sum *row, const float *x, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        double more = (double)x[j] - row->m;
        if (more <= 0) {
            row->s += exp(more);
        } else {
            row->s = row->s * exp(-more) + 1;
            row->m = (double)x[j];
        }
    }
}

static int on_tile(void *user, size_t row, size_t n_rows, size_t word, size_t n_words, const float *tile)
{
    struct eval *eval = user;
    if (word == 0) {
        if (n_rows > eval->capacity) {
            wr_mem_free(eval->rows);
            eval->rows = wr_mem_array(&eval->cli->ledger, WR_ACCOUNT_TEXT, n_rows, sizeof *eval->rows, eval->err);
            eval->capacity = eval->rows ? n_rows : 0;
            if (!eval->rows) return WEIR_E_NOMEM;
        }
        eval->block = row;
        eval->next_word = 0;
        for (size_t i = 0; i < n_rows; i++) eval->rows[i] = (struct row_sum){.m = -INFINITY};
    }
    if (row != eval->block || word != eval->next_word || n_rows > eval->capacity)
        return wr_err(eval->err, WEIR_E_FAIL, "logits of row %zu, word %zu came out of order", row, word);
    eval->next_word += n_words;
    for (size_t i = 0; i < n_rows; i++) {
        const float *x = tile + i * n_words;
        add_words(&eval->rows[i], x, n_words);
        if (row + i + 1 >= eval->n) continue;
        size_t target = (size_t)eval->ids[row + i + 1];
        if (target >= word && target < word + n_words) eval->rows[i].target = x[target - word];
    }
    if (eval->next_word == eval->n_vocab) {
        for (size_t i = 0; i < n_rows && row + i + 1 < eval->n; i++) {
            eval->nll += eval->rows[i].m + log(eval->rows[i].s) - (double)eval->rows[i].target;
            eval->n_scored++;
        }
    }
    return eval->dump ? wr_cli_npy_tile(&eval->npy, row - eval->n_saved, n_rows, word, n_words, tile, eval->err) : 0;
}

/* The ids, from --ids or of the text, before a weight is read. */
static int read_ids(struct eval *eval, size_t next, weir_err *err)
{
    struct wr_cli *cli = eval->cli;
    const weir_plan_info *info = weir_plan_get(eval->plan);
    uint64_t positions = cli->options.n_ctx != 0 || info->n_ctx > info->n_ctx_trained ? info->n_ctx : info->n_ctx_trained;
    wr_cli_limit_text(cli, info, true);
    uint64_t most = positions * BYTES_PER_TOKEN < info->budget / 4 ? positions * BYTES_PER_TOKEN : info->budget / 4;
    struct wr_cli_text text;
    const char *ids = cli->args.count[WR_CLI_IDS] ? cli->args.value[WR_CLI_IDS] : NULL,
               *file = cli->args.count[WR_CLI_FILE] ? cli->args.value[WR_CLI_FILE] : "-";
    const char *from = ids ? ids : strcmp(file, "-") != 0 ? file : "standard input";
    int code;
    if (ids) {
        if (cli->args.count[WR_CLI_FILE] && !cli->args.from_environment[WR_CLI_FILE]) return wr_err(err, WEIR_E_USAGE, "--ids and -f: give one of them");
        code = wr_cli_text_read_file(cli, ids, most, &text, err);
        if (code) return code;
        code = wr_cli_parse_ids(text.bytes, text.n, false, &cli->ledger, &eval->ids, &eval->n, err);
        if (code) wr_err_prefix(err, code, "%s", ids);
    } else {
        weir_engine *engine;
        code = wr_cli_text_read(cli, next, most, &text, err);
        if (code) return code;
        if (text.n == 0) {
            wr_mem_free(text.bytes);
            return wr_err(err, WEIR_E_INPUT, "%s is empty; give a text with -f FILE or on standard input, or ids with --ids FILE", wr_file_label(from));
        }
        weir_options options = wr_cli_text_options(cli, info);
        wr_cli_progress_begin(cli, "tokenize", 0);
        code = weir_engine_open_text(&engine, eval->model, &options, err);
        if (code == 0) {
            code = wr_cli_ids_of_text(cli, engine, text.bytes, text.n, false, info->n_saved == 0, &eval->ids, &eval->n, err);
            weir_engine_close(engine);
        }
    }
    wr_mem_free(text.bytes);
    wr_mem_trim();
    if (code) return code;
    if (eval->n < 2)
        return wr_err(err, WEIR_E_INPUT, "%s: has %zu tokens and perplexity needs 2; give a longer text with -f FILE, or ids with --ids FILE",
            wr_file_label(from), eval->n);
    for (size_t i = 0; i < eval->n; i++)
        if ((uint32_t)eval->ids[i] >= info->n_vocab)
            return wr_err(err, WEIR_E_INPUT, "token id %d at index %zu is outside the vocabulary of %u", eval->ids[i], i, info->n_vocab);
    eval->n_vocab = info->n_vocab;
    return 0;
}

/* Without -c the context grows with the text, up to what the model was trained for. */
static int fit_context(struct eval *eval, weir_err *err)
{
    const weir_plan_info *info = weir_plan_get(eval->plan);
    weir_options options = eval->cli->options;
    size_t n = eval->n + info->n_saved;
    if (n <= info->n_ctx) return 0;
    if (options.n_ctx || n > info->n_ctx_trained)
        return wr_err(err, WEIR_E_CONTEXT, "the text has %zu tokens and the context %u positions (trained %u); give -c %zu or more, or a shorter text", n,
            info->n_ctx, info->n_ctx_trained, n);
    options.n_ctx = (uint32_t)n;
    weir_plan_close(eval->plan); /* which holds the file of --save-context */
    eval->plan = NULL;
    return weir_plan_open(&eval->plan, eval->model, &options, err);
}

static void report(struct eval *eval, uint64_t hash)
{
    struct wr_cli *cli = eval->cli;
    struct wr_cli_out *out = &cli->out;
    double nll = eval->nll / (double)eval->n_scored;
    char digits[17];
    for (int i = 0; i < 16; i++) digits[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    digits[16] = 0;
    if (!cli->json) {
        wr_cli_printf(out, "tokens      %zu\nnll         %.9g\nperplexity  %.9g\n", eval->n - eval->n_saved, nll, exp(nll));
        if (cli->args.count[WR_CLI_HASH]) wr_cli_printf(out, "logits      %s\n", digits);
        return;
    }
    const struct wr_cli_result result = {.engine = eval->engine, .session = eval->session, .prompt_ids = eval->ids, .n_prompt = eval->n};
    wr_cli_json_begin(out);
    wr_cli_report_json(cli, &result);
    wr_cli_json_add(out, "n_tokens", json_integer((json_int_t)(eval->n - eval->n_saved)));
    wr_cli_json_add(out, "nll", json_real(nll));
    wr_cli_json_add(out, "perplexity", isfinite(exp(nll)) ? json_real(exp(nll)) : json_null());
    if (eval->dump) wr_cli_json_add(out, "logits_fnv64", json_string(digits));
    wr_cli_json_end(out);
}

/* A mistyped command line must not cost the text. */
static int check_output(const struct wr_cli_args *args, weir_err *err)
{
    const char *out = args->value[WR_CLI_LOGITS], *in = args->value[args->count[WR_CLI_IDS] ? WR_CLI_IDS : WR_CLI_FILE];
    bool file = (args->count[WR_CLI_IDS] || args->count[WR_CLI_FILE]) && strcmp(in, "-") != 0;
    struct stat from, to;
    if (stat(out, &to) != 0 || (file ? stat(in, &from) : fstat(STDIN_FILENO, &from)) != 0) return 0;
    if (from.st_dev != to.st_dev || from.st_ino != to.st_ino) return 0;
    return wr_err(err, WEIR_E_OPEN, "%s: is the input, which --logits would replace; choose another name", wr_file_label(out));
}

static int evaluate(struct eval *eval, weir_err *err)
{
    struct wr_cli *cli = eval->cli;
    uint64_t hash = 0;
    wr_cli_progress_begin(cli, "load", 0);
    int code = weir_engine_open(&eval->engine, eval->plan, err);
    if (code) return code;
    eval->plan = NULL;
    code = weir_session_open(&eval->session, eval->engine, err);
    if (code) return code;
    wr_cli_progress_begin(cli, "prefill", 0);
    eval->n_saved = weir_session_length(eval->session);
    code = wr_cli_ids_behind(cli, eval->session, &eval->ids, &eval->n, err);
    if (code == 0) code = weir_session_eval(eval->session, eval->ids, eval->n, on_tile, eval, err);
    if (code == 0 && cli->args.count[WR_CLI_SAVE_CONTEXT]) code = weir_session_save(eval->session, NULL, err);
    wr_cli_progress_clear(cli);
    if (code == 0 && eval->n_scored != eval->n - eval->n_saved - 1)
        code = wr_err(err, WEIR_E_FAIL, "%llu of %zu rows were scored", (unsigned long long)eval->n_scored, eval->n - eval->n_saved - 1);
    if (code == 0 && eval->dump && (cli->json || cli->args.count[WR_CLI_HASH])) code = wr_cli_npy_hash(&eval->npy, &hash, err);
    if (code == 0 && eval->dump) code = wr_outfile_commit(&eval->npy.file, err);
    if (code) return code;
    report(eval, hash);
    code = wr_cli_flush(&cli->out, err);
    if (cli->args.count[WR_CLI_STATS]) wr_cli_report_stats(cli, eval->engine, eval->session);
    return code;
}

int wr_cli_cmd_eval(struct wr_cli *cli, weir_err *err)
{
    struct eval eval = {.cli = cli, .err = err, .dump = cli->args.count[WR_CLI_LOGITS] > 0};
    size_t next;
    int code = wr_cli_model_path(cli, &eval.model, &next, err);
    if (code == 0) code = wr_cli_no_more_arguments(cli, next, err);
    if (code == 0 && cli->args.count[WR_CLI_HASH] && !eval.dump) code = wr_err(err, WEIR_E_USAGE, "--hash is of the file of --logits: give both");
    if (code == 0 && eval.dump) code = check_output(&cli->args, err);
    if (code == 0) code = wr_cli_engine_options(cli, err);
    if (code == 0) code = weir_plan_open(&eval.plan, eval.model, &cli->options, err);
    if (code == 0) code = read_ids(&eval, next, err);
    if (code == 0) code = fit_context(&eval, err);
    if (code == 0 && eval.dump) code = wr_cli_npy_open(&eval.npy, cli->args.value[WR_CLI_LOGITS], eval.n, eval.n_vocab, &cli->ledger, err);
    if (code == 0) wr_cli_plan_say(cli, eval.plan);
    if (code == 0) code = evaluate(&eval, err);
    wr_cli_file_discard(&eval.npy.file);
    weir_session_close(eval.session);
    weir_engine_close(eval.engine);
    weir_plan_close(eval.plan);
    wr_mem_free(eval.ids);
    wr_mem_free(eval.rows);
    return code;
}
