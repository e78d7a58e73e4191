/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synthetic models: the tensors of a real shape, filled with random weights of standard deviation 1 / sqrt(k) from philox, so that
 * a pass does the work and the reads of the real model and activations stay in range. Row r of tensor i depends on (seed, i, r)
 * alone, so the file does not depend on threads.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/num.h"
#include "base/os.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "engine/tools.h"

static const struct shape {
    const char *name, *description;
    uint32_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim;
    float rope_base;
} shapes[] = {
    {"tiny", "2 layers, 64 / 192, 4 heads, 2 of keys x 32: for tests", 2, 64, 192, 4, 2, 32, 1e4f},
    {"tiny-256", "2 layers, 256 / 768, 8 heads, 2 of keys x 32: for tests of formats with blocks of 256", 2, 256, 768, 8, 2, 32, 1e4f},
    {"1b", "16 layers, 2048 / 5632, 32 heads x 64", 16, 2048, 5632, 32, 32, 64, 1e4f},
    {"1b-gqa", "16 layers, 2048 / 5632, 32 heads, 8 of keys x 64", 16, 2048, 5632, 32, 8, 64, 1e4f},
    {"8b", "32 layers, 4096 / 14336, 32 heads, 8 of keys x 128", 32, 4096, 14336, 32, 8, 128, 5e5f},
    {"70b", "80 layers, 8192 / 28672, 64 heads, 8 of keys x 128", 80, 8192, 28672, 64, 8, 128, 5e5f},
};

const char *wr_tool_synth_shape(uint32_t i, const char **description)
{
    if (i >= sizeof shapes / sizeof *shapes) return NULL;
    *description = shapes[i].description;
    return shapes[i].name;
}

/* The byte alphabet of GPT-2: printable bytes stand for themselves, the others for U+0100 and up. */
static uint32_t byte_symbol(uint32_t byte)
{
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae) return byte;
    uint32_t n = 0;
    for (uint32_t b = 0; b < byte; b++) n += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
    return 256 + n;
}

#define FIRST_BYTE 1                     /* token 0 is the end of text */
static const char merged[] = "etaoinsh"; /* 64 merges: every pair of these letters */

struct token_text {
    char bytes[32];
};

static const char *token(void *user, uint64_t i, size_t *n)
{
    struct token_text *t = user;
    if (i == 0)
        *n = (size_t)snprintf(t->bytes, sizeof t->bytes, "<|endoftext|>");
    else if (i < FIRST_BYTE + 256)
        *n = (size_t)wr_utf8_encode(byte_symbol((uint32_t)i - FIRST_BYTE), (uint8_t *)t->bytes);
    else if (i < FIRST_BYTE + 256 + 64) {
        uint32_t pair = (uint32_t)i - FIRST_BYTE - 256;
        t->bytes[0] = merged[pair / 8];
        t->bytes[1] = merged[pair % 8];
        *n = 2;
    } else
        *n = (size_t)snprintf(t->bytes, sizeof t->bytes, "%cw%llu", 'a' + (int)(i % 26), (unsigned long long)i);
    return t->bytes;
}

static const char *merge(void *user, uint64_t i, size_t *n)
{
    struct token_text *t = user;
    *n = (size_t)snprintf(t->bytes, sizeof t->bytes, "%c %c", merged[i / 8], merged[i % 8]);
    return t->bytes;
}

struct fill { /* one batch of rows, split over the team */
    const struct wr_quant *quant;
    uint64_t seed, tensor, first_row, n_rows, k, row_bytes;
    uint8_t *out;
    float *row; /* [members][k] */
    _Atomic uint64_t next;
};

void wr_synth_row(float *row, uint64_t n, uint64_t seed, uint32_t number, uint64_t r, float divisor)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    /* The sum of four uniform bytes: mean 510, variance 4 (256^2 - 1) / 12. */
    const float scale = 1.0f / (divisor * sqrtf(65535.0f / 3.0f));
    for (uint64_t i = 0; i < n; i += 4) {
        uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)r, number, 0}, x[4];
        wr_philox(counter, key, x);
        for (uint64_t j = 0; j < 4 && i + j < n; j++)
            row[i + j] = ((float)((x[j] & 255) + (x[j] >> 8 & 255) + (x[j] >> 16 & 255) + (x[j] >> 24)) - 510.0f) * scale;
    }
}

static void fill_member(void *arg, uint32_t member, uint32_t n_members)
{
    struct fill *f = arg;
    float *row = f->row + member * f->k;
    for (;;) {
        uint64_t r = atomic_fetch_add(&f->next, 1);
        if (r >= f->n_rows) return;
        wr_synth_row(row, f->k, f->seed, (uint32_t)f->tensor, f->first_row + r, sqrtf((float)f->k));
        f->quant->encode(row, f->out + r * f->row_bytes, f->k);
    }
}

struct synth {
    const wr_synth_options *o;
    struct wr_gguf_writer *writer;
    struct wr_team *team;
    struct wr_ledger ledger;
    const struct wr_quant *type;
    uint64_t n_tensors, done, total;
    weir_err *err;
};

/* In the first walk a tensor is declared, in the second its data is written. */
static int tensor(struct synth *s, bool write, const char *name, uint64_t ne0, uint64_t ne1)
{
    bool vector = ne1 == 0;
    const struct wr_quant *q = vector ? wr_quant_find(WR_TYPE_F32) : s->type;
    uint64_t ne[2] = {ne0, vector ? 1 : ne1}, row_bytes;
    if (!wr_quant_row_bytes(q, ne0, &row_bytes))
        return wr_err(s->err, WEIR_E_USAGE, "--type %s: rows of %llu are not whole blocks of %u; choose another format or shape", q->name,
            (unsigned long long)ne0, q->block_elems);
    s->n_tensors++;
    if (!write) {
        wr_gguf_writer_tensor(s->writer, name, q, vector ? 1 : 2, ne);
        s->total += row_bytes * ne[1];
        return 0;
    }
    uint64_t batch = (1 << 20) / row_bytes + 1;
    int rc = 0;
    uint8_t *out = wr_mem_array(&s->ledger, WR_ACCOUNT_SCRATCH, batch, row_bytes, s->err);
    float *row = wr_mem_array(&s->ledger, WR_ACCOUNT_SCRATCH, (size_t)wr_team_size(s->team) * ne0, sizeof *row, s->err);
    if (out == NULL || row == NULL) rc = WEIR_E_NOMEM;
    for (uint64_t r = 0; rc == 0 && r < ne[1]; r += batch) {
        uint64_t n = ne[1] - r < batch ? ne[1] - r : batch;
        struct fill f = {q, s->o->seed, s->n_tensors, r, n, ne0, row_bytes, out, row, 0};
        if (vector)
            for (uint64_t i = 0; i < ne0; i++) ((float *)out)[i] = 1.0f;
        else
            wr_team_run(s->team, fill_member, &f);
        rc = wr_gguf_writer_data(s->writer, out, n * row_bytes, s->err);
        s->done += n * row_bytes;
        if (s->o->progress != NULL) s->o->progress(s->o->progress_user, "write", s->done, s->total, "bytes");
        if (rc == 0 && s->o->cancel != NULL && *s->o->cancel != 0) rc = wr_err(s->err, WEIR_E_CANCELLED, "interrupted; %s was not written", s->o->out);
    }
    wr_mem_free(out);
    wr_mem_free(row);
    return rc;
}

static int tensors(struct synth *s, const struct shape *shape, uint32_t n_layer, uint32_t n_vocab, bool write)
{
    uint64_t n = shape->n_embd, n_q = (uint64_t)shape->n_head * shape->head_dim, n_kv = (uint64_t)shape->n_head_kv * shape->head_dim, ff = shape->n_ff;
    const struct {
        const char *name;
        uint64_t ne0, ne1;
    } parts[] = {{"attn_norm", n, 0}, {"attn_q", n, n_q}, {"attn_k", n, n_kv}, {"attn_v", n, n_kv}, {"attn_output", n_q, n}, {"ffn_norm", n, 0},
        {"ffn_gate", n, ff}, {"ffn_up", n, ff}, {"ffn_down", ff, n}};
    s->n_tensors = 0;
    int rc = tensor(s, write, "token_embd.weight", n, n_vocab);
    for (uint32_t il = 0; rc == 0 && il < n_layer; il++)
        for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", il, parts[i].name);
            rc = tensor(s, write, name, parts[i].ne0, parts[i].ne1);
        }
    if (rc == 0) rc = tensor(s, write, "output_norm.weight", n, 0);
    if (rc == 0) rc = tensor(s, write, "output.weight", n, n_vocab);
    return rc;
}

int wr_tool_synth(const wr_synth_options *o, weir_err *err)
{
    const struct shape *shape = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, o->shape) == 0) shape = &shapes[i];
    if (shape == NULL) return wr_err(err, WEIR_E_USAGE, "there is no shape '%s' (weir synth list shows them)", o->shape);
    struct synth s = {.o = o, .type = wr_quant_find_name(o->type), .err = err};
    if (s.type == NULL) return wr_err(err, WEIR_E_USAGE, "--type: '%s' is not a weight format; 'weir version' lists them", o->type);
    uint32_t n_layer = o->n_layer != 0 ? o->n_layer : shape->n_layer;
    if (o->n_vocab < FIRST_BYTE + 256 + 64 || o->n_vocab > 1 << 20) return wr_err(err, WEIR_E_USAGE, "--vocab: %u is not from 321 to 1048576", o->n_vocab);
    wr_ledger_init(&s.ledger);
    int rc = wr_team_open(&s.team, wr_cpu_count(), &s.ledger, err);
    if (rc == 0) rc = wr_gguf_writer_open(&s.writer, o->out, &s.ledger, err);
    if (rc < 0) goto done;
    struct token_text text;
    struct wr_gguf_writer *w = s.writer;
    char name[64], temporary[4096 + 64]; /* a copy: the writer is gone before the last call of `began` */
    snprintf(temporary, sizeof temporary, "%s", wr_gguf_writer_temporary(w));
    if (o->began != NULL) o->began(temporary);
    snprintf(name, sizeof name, "synthetic %s, seed %llu", shape->name, (unsigned long long)o->seed);
    wr_gguf_writer_str(w, "general.architecture", "llama");
    wr_gguf_writer_str(w, "general.name", name);
    wr_gguf_writer_u32(w, "general.quantization_version", 2);
    wr_gguf_writer_u32(w, "llama.block_count", n_layer);
    wr_gguf_writer_u32(w, "llama.context_length", 131072);
    wr_gguf_writer_u32(w, "llama.embedding_length", shape->n_embd);
    wr_gguf_writer_u32(w, "llama.feed_forward_length", shape->n_ff);
    wr_gguf_writer_u32(w, "llama.attention.head_count", shape->n_head);
    wr_gguf_writer_u32(w, "llama.attention.head_count_kv", shape->n_head_kv);
    wr_gguf_writer_u32(w, "llama.attention.key_length", shape->head_dim);
    wr_gguf_writer_u32(w, "llama.attention.value_length", shape->head_dim);
    wr_gguf_writer_u32(w, "llama.rope.dimension_count", shape->head_dim);
    wr_gguf_writer_f32(w, "llama.rope.freq_base", shape->rope_base);
    wr_gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    wr_gguf_writer_u32(w, "llama.vocab_size", o->n_vocab);
    wr_gguf_writer_str(w, "tokenizer.ggml.model", "gpt2");
    wr_gguf_writer_str(w, "tokenizer.ggml.pre", "gpt-2");
    wr_gguf_writer_strs(w, "tokenizer.ggml.tokens", o->n_vocab, token, &text);
    wr_gguf_writer_strs(w, "tokenizer.ggml.merges", 64, merge, &text);
    int32_t *types = wr_mem_array(&s.ledger, WR_ACCOUNT_META, o->n_vocab, sizeof *types, err);
    rc = types != NULL ? 0 : WEIR_E_NOMEM;
    for (uint32_t i = 0; rc == 0 && i < o->n_vocab; i++) types[i] = i == 0 ? WR_TOKEN_CONTROL : WR_TOKEN_NORMAL;
    if (rc == 0) wr_gguf_writer_i32s(w, "tokenizer.ggml.token_type", o->n_vocab, types);
    wr_mem_free(types);
    wr_gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 0);
    wr_gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 0);
    wr_gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    if (rc == 0) rc = tensors(&s, shape, n_layer, o->n_vocab, false);
    if (rc == 0) rc = wr_gguf_writer_header(w, err);
    if (rc == 0) rc = tensors(&s, shape, n_layer, o->n_vocab, true);
    if (rc < 0)
        wr_gguf_writer_abort(w);
    else
        rc = wr_gguf_writer_finish(w, err);
done:
    if (o->began != NULL) o->began(NULL);
    wr_team_close(s.team);
    return rc;
}
