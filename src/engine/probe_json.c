/* SPDX-License-Identifier: Apache-2.0 */
/* A probe's answer: every rate beside its ceiling, and their ratio. */
#include "engine/probe.h"

static json_t *positive(double value) { return value > 0 ? json_real(value) : json_null(); }
static json_t *ratio(double value, double ceiling) { return value > 0 && ceiling > 0 ? json_real(value / ceiling) : json_null(); }

static json_t *disk_json(const struct wr_probe *p)
{
    const struct wr_profile *from = p->profile;
    json_t *surface = json_array();
    double best = 0, typical = 0;
    const bool direct = from->disk[0].direct;
    for (uint32_t i = 0; i < from->n_disk; i++)
        if (from->disk[i].rate > best) best = from->disk[i].rate;
    for (uint32_t i = 0; i < from->n_disk; i++) {
        const struct wr_profile_disk *d = &from->disk[i];
        json_array_append_new(surface, json_pack("{s:s, s:b, s:I, s:I, s:f, s:o}", "engine", d->engine, "direct", d->direct, "bytes", (json_int_t)d->bytes,
                                           "depth", (json_int_t)d->depth, "rate", d->rate, "ratio", ratio(d->rate, best)));
    }
    typical = wr_profile_disk_rate(from, "auto", direct, WR_PROBE_TYPICAL_BYTES, WR_PROBE_TYPICAL_DEPTH);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "direct", json_boolean(direct), "rate", positive(typical), "first",
        positive(from->disk_first * typical), "ceiling", positive(best), "ratio", ratio(typical, best), "surface", surface, "file_bytes",
        (json_int_t)p->data_bytes, "bytes_read", (json_int_t)p->bytes_read, "bytes_written", (json_int_t)p->bytes_written);
}

static json_t *memory_json(const struct wr_profile *from)
{
    json_t *rates = json_array();
    for (uint32_t t = 0; t < from->n_threads; t++)
        json_array_append_new(rates, json_pack("{s:I, s:f}", "threads", (json_int_t)from->threads[t], "rate", from->read[t]));
    json_t *sets = json_array();
    for (uint32_t i = 0; i < from->n_sets; i++)
        for (uint32_t t = 0; t < from->n_threads; t++)
            json_array_append_new(sets,
                json_pack("{s:I, s:I, s:f}", "bytes", (json_int_t)from->set[i].bytes, "threads", (json_int_t)from->threads[t], "rate", from->set[i].rate[t]));
    return json_pack("{s:o, s:o}", "rate", rates, "sets", sets);
}

static json_t *formats_json(const struct wr_profile *from)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < from->n_formats; i++) {
        const struct wr_profile_format *f = &from->format[i];
        const struct wr_quant *quant = wr_quant_find(f->type);
        const char *activations = quant->is_float ? "f32" : f->precise ? "int16" : "int8";
        for (uint32_t t = 0; t < from->n_threads; t++) {
            /* One row reads every weight once, and is a multiply-add for each. */
            double mix = f->mix[t] / 2 * quant->block_bytes / quant->block_elems, decode = mix > 0 && mix < from->read[t] ? mix : from->read[t];
            json_array_append_new(all,
                json_pack("{s:s, s:s, s:I, s:f, s:f, s:o, s:f, s:f, s:o, s:o}", "format", quant->name, "activations", activations, "threads",
                    (json_int_t)from->threads[t], "decode", f->decode[t], "decode_ceiling", decode, "decode_ratio", ratio(f->decode[t], decode), "decode_short",
                    f->decode_short[t], "prefill", f->prefill[t], "prefill_ceiling", positive(f->mix[t]), "prefill_ratio", ratio(f->prefill[t], f->mix[t])));
        }
    }
    return all;
}

static json_t *compute_json(const struct wr_profile *from)
{
    json_t *threads = json_array();
    for (uint32_t t = 0; t < from->n_threads; t++)
        json_array_append_new(threads, json_pack("{s:I, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:o, s:f, s:o}", "threads", (json_int_t)from->threads[t], "f32",
                                           positive(from->fma[t]), "int8", positive(from->int8[t]), "int16", positive(from->int16[t]), "stage_seconds",
                                           from->stage_seconds[t], "stage_cached_seconds", from->stage_cached_seconds[t], "in_pass", from->in_pass[t],
                                           "attention", from->attend[t], "attention_ratio", ratio(from->attend[t], from->read[t]), "attention_many",
                                           from->attend_many[t], "attention_many_ratio", ratio(from->attend_many[t], from->fma[t])));
    return json_pack("{s:o, s:o, s:f}", "threads", threads, "formats", formats_json(from), "activate", from->activate);
}

static json_t *passes_json(const struct wr_profile *from)
{
    json_t *together = json_array();
    for (uint32_t i = 0; i < from->n_together; i++)
        json_array_append_new(together, json_pack("{s:f, s:f}", "reading_over_computing", from->together[i].ratio, "longer", from->together[i].more));
    return json_pack("{s:o}", "together", together);
}

json_t *wr_probe_json(const struct wr_probe *p, const char *stored)
{
    const struct wr_profile *from = p->profile;
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:f, s:f, s:o, s:o, s:o, s:o, s:o}", "cpu", from->cpu, "isa", from->level, "cpus", (json_int_t)from->n_cpus,
        "file_system", from->file_system, "taken", (json_int_t)from->taken, "seconds", p->seconds, "steady", wr_profile_steadiness(from), "profile",
        stored[0] != '\0' ? json_string(stored) : json_null(), "disk", disk_json(p), "memory", memory_json(from), "compute", compute_json(from), "passes",
        passes_json(from));
}
