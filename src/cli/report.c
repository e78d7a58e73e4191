/* SPDX-License-Identifier: Apache-2.0 */
/* Planned beside measured: the JSON members that run and eval share, --stats, and the plan itself. docs/JSON.md lists every field. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include "base/os.h"

/* Decode passes per second that the reads alone allow; 0: unknown, since nothing is read or no rate was seen. */
static double rate_of_reads(uint64_t bytes_per_token, double bytes_per_second)
{
    return bytes_per_token > 0 && bytes_per_second > 0 ? bytes_per_second / (double)bytes_per_token : 0;
}

static double per_second(uint64_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

static json_t *accounts_json(const weir_plan_info *info)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < info->n_accounts; i++) {
        const weir_account_info *account = &info->accounts[i];
        json_object_set_new(all, account->name, json_pack("{s:I, s:I}", "reserved", (json_int_t)account->reserved, "peak", (json_int_t)account->peak));
    }
    return all;
}

static json_t *memory_json(const struct wr_cli *cli, const weir_plan_info *info, json_t *peak_rss)
{
    return json_pack("{s:I, s:o, s:o, s:I, s:o}", "budget", (json_int_t)info->budget, "budget_origin", wr_cli_json_string(wr_cli_budget_origin(cli, info)),
        "peak_rss", peak_rss, "peak_predicted", (json_int_t)info->peak_predicted, "accounts", accounts_json(info));
}

static json_t *residency_json(const weir_plan_info *info)
{
    return json_pack("{s:I, s:I, s:I}", "pinned", (json_int_t)info->pinned, "streamed", (json_int_t)info->streamed, "cached", (json_int_t)0);
}

static json_t *kv_json(const weir_plan_info *info)
{
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I}", "type", wr_cli_json_string(info->kv), "context", (json_int_t)info->n_ctx, "resident",
        (json_int_t)info->kv_resident, "on_disk", (json_int_t)info->kv_on_disk, "read_from", (json_int_t)info->kv_read_from, "bytes_per_position",
        (json_int_t)info->kv_bytes_per_position);
}

json_t *wr_cli_json_warnings(const struct wr_cli *cli)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < cli->n_warnings && i < WR_CLI_WARNINGS; i++) json_array_append_new(all, wr_cli_json_string(cli->warning[i]));
    if (cli->n_warnings > WR_CLI_WARNINGS) json_array_append_new(all, json_sprintf("and %u more", cli->n_warnings - WR_CLI_WARNINGS));
    return all;
}

const char *wr_cli_finish_name(enum weir_finish finish)
{
    return finish == WEIR_FINISH_STOP ? "stop" : finish == WEIR_FINISH_LENGTH ? "length" : "interrupted";
}

/* Bytes that decode passes read, per token; 0 when there was none. */
static double measured_bytes_per_token(const weir_session_info *s)
{
    return s->n_decode ? (double)(s->decode_bytes + s->decode_kv_bytes + s->decode_row_bytes) / (double)s->n_decode : 0;
}

/* What was to be expected: from the stored profile, or else from the rate that was seen while loading. 0: unknown. */
struct predicted {
    double prefill, decode;
    const char *from; /* "profile", "load"; NULL: unknown */
};

static struct predicted predict(const weir_plan_info *info, const weir_io_info *io, const weir_session_info *s)
{
    struct predicted p = {per_second(s->n_prefill, s->prefill_predicted_seconds), per_second(s->n_decode, s->decode_predicted_seconds), NULL};
    if (p.prefill > 0 || p.decode > 0) {
        p.from = "profile";
    } else if ((p.decode = rate_of_reads(info->bytes_per_token, io->load_rate)) > 0) {
        p.from = "load";
    }
    return p;
}

/* Against the mean of this run's own plain passes; 0 without one. Negative: bursts cost more than they brought. */
static double seconds_saved(const weir_session_info *s) { return s->plain_seconds > 0 ? s->plain_seconds * (double)s->n_decode - s->decode_seconds : 0; }

static json_t *spec_json(const weir_plan_info *info, const weir_session_info *s)
{
    const bool known = s->n_accepted + s->n_refused > 0;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "mode", info->spec, "most", (json_int_t)info->spec_k, "drafted",
        (json_int_t)s->n_drafted, "accepted", (json_int_t)s->n_accepted, "passes", (json_int_t)s->n_passes, "tokens_per_pass",
        s->n_passes > 0 ? json_real((double)s->n_decode / (double)s->n_passes) : json_null(), "seconds_saved",
        s->plain_seconds > 0 ? json_real(seconds_saved(s)) : json_null(), "acceptance", known ? json_real(s->burst.acceptance) : json_null(), "predicted",
        wr_cli_json_rate(s->burst.predicted), "predicted_k", s->burst.predicted > 0 ? json_integer(s->burst.k) : json_null());
}

void wr_cli_report_json(struct wr_cli *cli, const struct wr_cli_result *result)
{
    struct wr_cli_out *out = &cli->out;
    const weir_plan_info *info = weir_engine_plan(result->engine);
    weir_io_info io = weir_engine_io(result->engine);
    weir_session_info s = weir_session_stats(result->session);
    struct predicted predicted = predict(info, &io, &s);

    wr_cli_json_add(out, "model", wr_cli_json_string(info->model));
    wr_cli_json_add(out, "arch", wr_cli_json_string(info->arch));
    wr_cli_json_add(out, "isa", wr_cli_json_string(info->isa));
    wr_cli_json_add(out, "numerics", json_integer(WEIR_NUMERICS));
    wr_cli_json_add(out, "threads", json_integer(info->n_threads));
    wr_cli_json_u64(out, "seed", result->seed);
    wr_cli_json_ids(out, "prompt_ids", result->prompt_ids, result->n_prompt);
    wr_cli_json_ids(out, "ids", result->ids, result->n_ids);
    json_t *text = wr_cli_json_text(result->text ? result->text : "", result->n_text);
    if (!text) out->failed = ENOMEM; /* null would pass for an answer */
    wr_cli_json_add(out, "text", text);
    wr_cli_json_add(out, "finish", json_string(wr_cli_finish_name(result->finish)));
    wr_cli_json_add(out, "n_prompt", json_integer((json_int_t)result->n_prompt));
    wr_cli_json_add(out, "n_generated", json_integer((json_int_t)result->n_ids));
    wr_cli_json_u64(out, "n_cached", s.n_loaded);
    wr_cli_json_u64(out, "n_evaluated", s.n_prefill + s.n_decode);
    wr_cli_json_u64(out, "n_saved", s.n_saved);
    wr_cli_json_add(out, "memory", memory_json(cli, info, json_integer((json_int_t)wr_os_usage().peak_rss_bytes)));
    wr_cli_json_add(out, "io",
        json_pack("{s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:f}", "engine", wr_cli_json_string(io.engine),
            "direct", io.direct, "bytes_read", (json_int_t)io.bytes_read, "bytes_written", (json_int_t)io.bytes_written, "reads", (json_int_t)io.reads,
            "bytes_read_weights", (json_int_t)io.bytes_read_weights, "bytes_read_kv", (json_int_t)io.bytes_read_kv, "bytes_read_experts", (json_int_t)0,
            "bytes_read_pinned", (json_int_t)io.bytes_read_pinned, "bytes_read_sample", (json_int_t)io.bytes_read_sample, "bytes_read_rows",
            (json_int_t)io.bytes_read_rows, "bytes_seam", (json_int_t)io.bytes_seam, "bytes_per_token_kv",
            s.n_decode ? json_real((double)s.decode_kv_bytes / (double)s.n_decode) : json_null(), "bytes_per_token",
            s.n_decode ? json_real(measured_bytes_per_token(&s)) : json_null(), "bytes_per_token_disk",
            s.n_decode ? json_real((double)s.decode_disk_bytes / (double)s.n_decode) : json_null(), "bytes_per_token_planned",
            (json_int_t)info->bytes_per_token, "floor_bytes_per_token", (json_int_t)info->floor_bytes_per_token, "load_rate", wr_cli_json_rate(io.load_rate),
            "load_seconds", io.load_seconds));
    wr_cli_json_add(out, "residency", residency_json(info));
    wr_cli_json_add(out, "rates",
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "prefill", wr_cli_json_rate(per_second(s.n_prefill, s.prefill_seconds)), "decode",
            wr_cli_json_rate(per_second(s.n_decode, s.decode_seconds)), "prefill_predicted", wr_cli_json_rate(predicted.prefill), "decode_predicted",
            wr_cli_json_rate(predicted.decode), "predicted_from", wr_cli_json_string(predicted.from)));
    wr_cli_json_add(
        out, "stalls", json_pack("{s:f, s:f, s:f}", "io", io.stall_io_seconds, "compute", io.stall_compute_seconds, "write", io.stall_write_seconds));
    wr_cli_json_add(out, "kv", kv_json(info));
    wr_cli_json_add(out, "spec", spec_json(info, &s));
    wr_cli_json_add(out, "experts", json_null());
    wr_cli_json_add(out, "warnings", wr_cli_json_warnings(cli));
}

static void accounts_table(struct wr_cli_out *out, const weir_plan_info *info, bool peaks)
{
    char reserved[32], peak[32];
    uint64_t sum = 0;
    wr_cli_printf(out, "%-16s %12s%s\n", "account", "reserved", peaks ? "         peak" : "");
    for (uint32_t i = 0; i < info->n_accounts; i++) {
        const weir_account_info *account = &info->accounts[i];
        sum += account->reserved;
        wr_cli_printf(out, "  %-14s %12s", account->name, wr_cli_size(account->reserved, reserved));
        if (peaks) wr_cli_printf(out, " %12s", wr_cli_size(account->peak, peak));
        wr_cli_printf(out, "\n");
    }
    wr_cli_printf(out, "  %-14s %12s", "sum", wr_cli_size(sum, reserved));
    if (peaks) wr_cli_printf(out, " %12s  (largest resident size of the process)", wr_cli_size(wr_os_usage().peak_rss_bytes, peak));
    wr_cli_printf(out, "\npeak             %s predicted\n", wr_cli_size(info->peak_predicted, reserved));
}

void wr_cli_report_stats(struct wr_cli *cli, weir_engine *engine, weir_session *session)
{
    struct wr_cli_out *out = &cli->err;
    const weir_plan_info *info = weir_engine_plan(engine);
    weir_io_info io = weir_engine_io(engine);
    weir_session_info s = weir_session_stats(session);
    char a[32], b[32], c[32], d[32];

    wr_cli_progress_clear(cli);
    wr_cli_printf(out, "model            %s, %s, %u threads, %s\n", info->arch, info->isa, info->n_threads, info->model);
    wr_cli_printf(out, "budget           %s (%s)\n", wr_cli_size(info->budget, a), wr_cli_budget_origin(cli, info));
    accounts_table(out, info, true);
    wr_cli_printf(out, "weights          pinned %s, streamed %s a pass\n", wr_cli_size(info->pinned, a), wr_cli_size(info->streamed, b));
    wr_cli_printf(out, "load             %s pinned and %s for the first pass, %.2f s", wr_cli_size(io.bytes_read_pinned, a),
        wr_cli_size(io.bytes_read_sample, b), io.load_seconds);
    wr_cli_printf(out, io.load_rate > 0 ? ", %.0f MB/s\n" : "\n", io.load_rate * 1e-6);
    if (s.n_loaded > 0 || s.n_saved > 0)
        wr_cli_printf(out, "context          %llu tokens were loaded, %llu are saved\n", (unsigned long long)s.n_loaded, (unsigned long long)s.n_saved);
    struct predicted predicted = predict(info, &io, &s);
    double prefill = per_second(s.n_prefill, s.prefill_seconds), decode = per_second(s.n_decode, s.decode_seconds);
    double ceiling = rate_of_reads(info->floor_bytes_per_token, io.load_rate);
    const char *one = s.n_passes < s.n_decode ? " for one token a pass" : ""; /* a burst's are fewer bytes each */
    const bool load = predicted.from != NULL && strcmp(predicted.from, "load") == 0;
    wr_cli_printf(out, "prefill          %llu tokens in %.2f s, %.2f tokens/s", (unsigned long long)s.n_prefill, s.prefill_seconds, prefill);
    if (predicted.prefill > 0) wr_cli_printf(out, "; predicted %.2f, ratio %.2f", predicted.prefill, prefill / predicted.prefill);
    wr_cli_put(out, "\n", 1);
    if (s.n_decode) {
        wr_cli_printf(out, "decode           %llu tokens in %.2f s, %.2f tokens/s", (unsigned long long)s.n_decode, s.decode_seconds, decode);
        if (predicted.decode > 0)
            wr_cli_printf(out, "; predicted%s %.2f (%s), ratio %.2f", load ? one : "", predicted.decode, predicted.from, decode / predicted.decode);
        else
            wr_cli_printf(
                out, "; predicted: unknown, %s", info->profile_taken >= 0 ? "the profile lacks what this needs" : "this machine has no profile (weir probe)");
        if (ceiling > 0) wr_cli_printf(out, "; ceiling of the floor%s %.2f, ratio %.2f", one, ceiling, decode / ceiling);
        wr_cli_printf(out, "\nread per token   %s measured, %s planned, %s floor%s\n", wr_cli_size((uint64_t)measured_bytes_per_token(&s), a),
            wr_cli_size(info->bytes_per_token, b), wr_cli_size(info->floor_bytes_per_token, c), one);
    }
    if (s.n_decode && strcmp(info->spec, "off") != 0) {
        wr_cli_printf(out, "speculation      %s: %llu tokens proposed, %llu accepted; %.2f tokens a pass", info->spec, (unsigned long long)s.n_drafted,
            (unsigned long long)s.n_accepted, (double)s.n_decode / (double)s.n_passes);
        if (s.plain_seconds > 0) wr_cli_printf(out, "; %.2f s saved, at %.4f s for a pass of one", seconds_saved(&s), s.plain_seconds);
        wr_cli_put(out, "\n", 1);
        if (s.burst.predicted > 0)
            wr_cli_printf(out, "                 of those that were looked at %.0f %% were right: predicted %.2f tokens/s with %u proposed at a time\n",
                100 * s.burst.acceptance, s.burst.predicted, s.burst.k);
    }
    if (info->kv_on_disk > 0)
        wr_cli_printf(out, "keys and values  %s in memory; %s written, %s read, %s of it per token; waited %.2f s for the disk to write\n",
            wr_cli_size(info->kv_resident, a), wr_cli_size(io.bytes_written, b), wr_cli_size(io.bytes_read_kv, c),
            wr_cli_size(s.n_decode > 0 ? s.decode_kv_bytes / s.n_decode : 0, d), io.stall_write_seconds);
    wr_cli_printf(out, "read in all      %s in %llu reads by %s%s; copied at seams %s\n", wr_cli_size(io.bytes_read, a), (unsigned long long)io.reads,
        io.engine, io.direct ? ", direct" : ", buffered", wr_cli_size(io.bytes_seam, b));
    wr_cli_printf(out, "stalls           compute waited %.3f s for reads, reads waited %.3f s for a slot\n", io.stall_io_seconds, io.stall_compute_seconds);
    (void)wr_cli_flush(out, NULL);
}

/* Without a profile the plan knows what must be moved, not how fast. */
const char *wr_cli_bound_name(const weir_plan_info *info)
{
    static const char *const names[] = {[WEIR_BOUND_DISK] = "disk", [WEIR_BOUND_MEMORY] = "memory", [WEIR_BOUND_COMPUTE] = "compute"};
    return info->bound != WEIR_BOUND_UNKNOWN ? names[info->bound] : info->streamed > 0 ? "disk" : "memory";
}

/* Digits after the point of a rate: a model of hundreds of GB takes minutes for a token. */
int wr_cli_rate_places(double rate) { return rate >= 0.1 || rate <= 0 ? 2 : rate >= 0.001 ? 4 : 6; }

static void rates_of_plan(const struct wr_cli *cli, struct wr_cli_out *out, const weir_plan_info *info)
{
    if (info->decode_predicted <= 0 && info->streamed > 0 && !strcmp(cli->options.io, "mmap")) {
        wr_cli_printf(out, "rates            unknown: what --io mmap reads is the system's choice\nbound            by %s\n", wr_cli_bound_name(info));
        return;
    }
    if (info->decode_predicted <= 0) {
        const char *slash = strrchr(info->model, '/'), *level = cli->options.isa;
        wr_cli_printf(out, "rates            unknown: %s; measure it with: weir probe %s%s%s",
            info->profile_taken < 0 ? "this machine and file system have no profile" : "the profile lacks what this plan needs", *level ? "--cpu " : "", level,
            *level ? " " : "");
        wr_cli_printf(out, slash == info->model ? "/" : slash ? "%.*s" : ".", slash ? (int)(slash - info->model) : 0, info->model);
        wr_cli_printf(out, "\nbound            by %s\n", wr_cli_bound_name(info));
        return;
    }
    double read = info->decode_read_seconds > 0 ? 1 / info->decode_read_seconds : 0, compute = 1 / info->decode_compute_seconds;
    double ceiling = read > 0 && read < compute ? read : compute;
    wr_cli_printf(out, "decode           %.*f tokens/s predicted, %.*f with the context full\n", wr_cli_rate_places(info->decode_predicted),
        info->decode_predicted, wr_cli_rate_places(info->decode_predicted_full), info->decode_predicted_full);
    if (info->decode_predicted_first > info->decode_predicted)
        wr_cli_printf(out, "at first         %.*f tokens/s predicted, for some seconds: after a pause the disk is faster than it stays\n",
            wr_cli_rate_places(info->decode_predicted_first), info->decode_predicted_first);
    for (int i = 0; i < WEIR_N_BURSTS && info->bursts[i].predicted > 0; i++)
        wr_cli_printf(out, "%-17s%.*f tokens/s predicted where %.0f %% of the proposed tokens are right, %u proposed at a time\n", i == 0 ? "bursts" : "",
            wr_cli_rate_places(info->bursts[i].predicted), info->bursts[i].predicted, 100 * info->bursts[i].acceptance, info->bursts[i].k);
    wr_cli_printf(out, "bound            by %s: ", wr_cli_bound_name(info));
    if (read > 0) wr_cli_printf(out, "reading alone allows %.*f, ", wr_cli_rate_places(read), read);
    wr_cli_printf(out, "computing alone %.*f; ratio %.2f\n", wr_cli_rate_places(compute), compute, info->decode_predicted / ceiling);
    wr_cli_printf(out, "prefill          %.1f tokens/s predicted\n", info->prefill_predicted);
    if (info->seconds_per_gib > 0) wr_cli_printf(out, "more memory      saves %.3f s of a token per GiB\n", info->seconds_per_gib);
}

void wr_cli_report_plan(const struct wr_cli *cli, struct wr_cli_out *out, const weir_plan_info *info)
{
    char a[32], b[32], c[32];
    wr_cli_printf(out, "model            ");
    wr_cli_put_escaped(out, info->model, 1000);
    wr_cli_printf(out, "\n                 %s, %u layers, n_embd %u, n_vocab %u, file %s, weights %s\n", info->arch, info->n_layer, info->n_embd, info->n_vocab,
        wr_cli_size(info->file_bytes, a), wr_cli_size(info->weight_bytes, b));
    wr_cli_printf(out, "machine          %s, %u threads\n", info->isa, info->n_threads);
    wr_cli_printf(out, "budget           %s (%s); the smallest that works is %s (%llu bytes), with a context of %u\n", wr_cli_size(info->budget, a),
        wr_cli_budget_origin(cli, info), wr_cli_size(info->min_budget, b), (unsigned long long)info->min_budget, info->min_budget_n_ctx);
    wr_cli_printf(out, "context          %u positions; trained %u; this budget could hold %u\n", info->n_ctx, info->n_ctx_trained, info->max_context);
    wr_cli_printf(
        out, "keys and values  %s, %s a position, %s resident\n", info->kv, wr_cli_size(info->kv_bytes_per_position, a), wr_cli_size(info->kv_resident, b));
    const bool saved = cli->args.count[WR_CLI_SAVE_CONTEXT] > 0;
    if (info->kv_on_disk > 0)
        wr_cli_printf(out, "                 the rest in a file of %s%s%s, read from position %u on: %s per token with the context full\n",
            wr_cli_size(info->kv_on_disk, a), saved ? ", --save-context " : " in --kv-dir ", info->kv_dir != NULL ? info->kv_dir : "(no folder)",
            info->kv_read_from, wr_cli_size(info->kv_bytes_per_token, b));
    double whole = (double)(info->pinned + info->streamed);
    wr_cli_printf(out, "weights          pinned %s (%.0f %%), streamed %s in %llu extents, in whole pages of the file\n", wr_cli_size(info->pinned, a),
        whole > 0 ? 100 * (double)info->pinned / whole : 0, wr_cli_size(info->streamed, b), (unsigned long long)info->n_extents_streamed);
    wr_cli_printf(out, "passes           prefill in chunks of %u rows; ring %s, largest extent %s\n", info->n_chunk, wr_cli_size(info->ring, a),
        wr_cli_size(info->extent, b));
    char d[32], e[32];
    wr_cli_printf(out, "read per token   %s: weights %s, embedding rows %s, keys and values 0 B%s%s%s; floor %s\n", wr_cli_size(info->bytes_per_token, a),
        wr_cli_size(info->streamed, b), wr_cli_size(info->bytes_per_token - info->streamed, c), info->kv_bytes_per_token > 0 ? " at the beginning and " : "",
        info->kv_bytes_per_token > 0 ? wr_cli_size(info->kv_bytes_per_token, e) : "", info->kv_bytes_per_token > 0 ? " with the context full" : "",
        wr_cli_size(info->floor_bytes_per_token, d));
    rates_of_plan(cli, out, info);
    accounts_table(out, info, false);
}

void wr_cli_report_plan_json(struct wr_cli *cli, const weir_plan_info *info)
{
    struct wr_cli_out *out = &cli->out;
    wr_cli_json_add(out, "model", wr_cli_json_string(info->model));
    wr_cli_json_add(out, "arch", wr_cli_json_string(info->arch));
    wr_cli_json_add(out, "isa", wr_cli_json_string(info->isa));
    wr_cli_json_add(out, "numerics", json_integer(WEIR_NUMERICS));
    wr_cli_json_add(out, "threads", json_integer(info->n_threads));
    wr_cli_json_add(out, "layers", json_integer(info->n_layer));
    wr_cli_json_add(out, "file_bytes", json_integer((json_int_t)info->file_bytes));
    wr_cli_json_add(out, "weight_bytes", json_integer((json_int_t)info->weight_bytes));
    wr_cli_json_add(out, "memory", memory_json(cli, info, json_null()));
    wr_cli_json_add(out, "residency", residency_json(info));
    wr_cli_json_add(out, "kv", kv_json(info));
    wr_cli_json_add(out, "io",
        json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "engine", cli->options.io, "direct",
            cli->options.direct == WEIR_DIRECT_AUTO ? json_null() : json_boolean(cli->options.direct == WEIR_DIRECT_ON), "bytes_per_token",
            (json_int_t)info->bytes_per_token, "bytes_per_token_weights", (json_int_t)info->streamed, "bytes_per_token_rows",
            (json_int_t)(info->bytes_per_token - info->streamed), "bytes_per_token_kv", (json_int_t)info->kv_bytes_per_token, "floor_bytes_per_token",
            (json_int_t)info->floor_bytes_per_token, "extents", (json_int_t)info->n_extents_streamed, "extent", (json_int_t)info->extent, "ring",
            (json_int_t)info->ring));
    wr_cli_json_add(out, "rates",
        json_pack("{s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "prefill", "decode", "prefill_predicted", wr_cli_json_rate(info->prefill_predicted),
            "decode_predicted", wr_cli_json_rate(info->decode_predicted), "decode_predicted_full", wr_cli_json_rate(info->decode_predicted_full),
            "decode_predicted_first", wr_cli_json_rate(info->decode_predicted_first > info->decode_predicted ? info->decode_predicted_first : 0),
            "decode_reading_alone", wr_cli_json_rate(per_second(1, info->decode_read_seconds)), "decode_computing_alone",
            wr_cli_json_rate(per_second(1, info->decode_compute_seconds))));
    json_t *bursts = json_array();
    for (int i = 0; i < WEIR_N_BURSTS; i++) {
        const weir_burst_info *b = &info->bursts[i];
        json_array_append_new(bursts, json_pack("{s:f, s:o, s:o}", "acceptance", b->acceptance, "k", b->predicted > 0 ? json_integer(b->k) : json_null(),
                                          "decode_predicted", wr_cli_json_rate(b->predicted)));
    }
    wr_cli_json_add(out, "spec", json_pack("{s:s, s:I, s:o}", "mode", info->spec, "most", (json_int_t)info->spec_k, "bursts", bursts));
    wr_cli_json_add(out, "profile_taken", info->profile_taken >= 0 ? json_integer(info->profile_taken) : json_null());
    wr_cli_json_add(out, "seconds_per_gib", info->decode_predicted > 0 ? json_real(info->seconds_per_gib) : json_null());
    wr_cli_json_add(out, "bound", json_string(wr_cli_bound_name(info)));
    wr_cli_json_add(out, "chunk", json_integer(info->n_chunk));
    wr_cli_json_add(out, "min_budget", json_integer((json_int_t)info->min_budget));
    wr_cli_json_add(out, "max_context", json_integer(info->max_context));
    wr_cli_json_add(out, "trained_context", json_integer(info->n_ctx_trained));
    wr_cli_json_add(out, "warnings", wr_cli_json_warnings(cli));
}
