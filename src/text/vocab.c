/* SPDX-License-Identifier: Apache-2.0 */
#include "text/vocab_private.h"

#include <string.h>
#include "base/utf8.h"

/* Longest probe that adding a token accepts; honest vocabularies stay below 200 with the table three quarters full. */
#define MAX_PROBES 4096
#define SHOWN 48 /* bytes of a token that an error shows */
#define MAX_TOKENS (1u << 24)
#define NO_TOKENS 4 /* lengths of a character without a token */

/* Texts that end a generation wherever they are control, unknown or user-defined tokens (docs/FORMATS.md). */
static const char *const end_texts[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~["};

uint32_t wr_vocab_byte_to_cp(uint8_t byte)
{
    if (byte <= 0x20) return 0x100u + byte;
    if (byte >= 0x7f && byte <= 0xa0) return 0x121u + byte - 0x7f;
    return byte == 0xad ? 0x143u : byte;
}

int wr_vocab_cp_to_byte(uint32_t cp)
{
    if (cp >= 0x100 && cp <= 0x120) return (int)(cp - 0x100);
    if (cp >= 0x121 && cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    if (cp == 0x143) return 0xad;
    return cp <= 0xff && wr_vocab_byte_to_cp((uint8_t)cp) == cp ? (int)cp : -1;
}

bool wr_vocab_has_scores(const struct wr_vocab_config *c) { return c->model && strcmp(c->model, "llama") == 0; }

/* Sizes of the arrays, for opening and for the plan alike. */
struct sizes {
    uint64_t n_slots, n_merge_slots, n_raw_at, n_out_at, token_bytes, out_bytes, n_ranks, n_classes, pretok_bytes;
};

static struct sizes sizes_of(const struct wr_vocab_config *c)
{
    struct sizes s = {.n_slots = (uint64_t)c->n_tokens + c->n_tokens / 3 + 1, .n_raw_at = (uint64_t)c->n_tokens + 1};
    s.token_bytes = c->token_bytes < UINT32_MAX ? c->token_bytes : UINT32_MAX;
    if (wr_vocab_has_scores(c)) {
        s.n_raw_at += NO_TOKENS;
        s.n_ranks = c->n_tokens;
    } else {
        s.n_merge_slots = wr_bpe_n_slots(c->n_merges);
        s.n_out_at = s.n_raw_at;
        s.out_bytes = s.token_bytes;
        s.pretok_bytes = WR_PRETOK_BYTES;
    }
    /* k different lengths need 1 + 2 + ... + k bytes. */
    while (s.n_classes < c->n_tokens && (s.n_classes + 1) * (s.n_classes + 2) / 2 <= s.token_bytes) s.n_classes++;
    return s;
}

uint64_t wr_vocab_bytes(const struct wr_vocab_config *c)
{
    struct sizes s = sizes_of(c);
    uint64_t arrays[] = {sizeof(struct wr_vocab), c->n_tokens * sizeof(uint8_t), s.n_raw_at * sizeof(uint32_t), s.n_out_at * sizeof(uint32_t), s.token_bytes,
        s.out_bytes, s.n_slots * sizeof(uint32_t), s.n_merge_slots * sizeof(struct wr_bpe_merge), s.n_ranks * sizeof(uint32_t),
        s.n_classes * sizeof(struct wr_special_class)};
    uint64_t total = s.pretok_bytes;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) total += arrays[i] + WR_MEM_OVERHEAD;
    return total;
}

static int check_config(const struct wr_vocab_config *c, weir_err *err)
{
    if (!c->model) return wr_err(err, WEIR_E_FORMAT, "the file names no tokenizer (tokenizer.ggml.model)");
    if (strcmp(c->model, "gpt2") != 0 && !wr_vocab_has_scores(c))
        return wr_err(err, WEIR_E_UNSUPPORTED, "tokenizer model '%.*s' is not supported (tokenizer.ggml.model; weir knows: gpt2, llama)", SHOWN, c->model);
    if (c->n_tokens == 0 || c->n_tokens > MAX_TOKENS)
        return wr_err(err, WEIR_E_FORMAT, "the vocabulary has %u tokens, 1 to %u are possible (tokenizer.ggml.tokens)", c->n_tokens, MAX_TOKENS);
    if (c->token_bytes > UINT32_MAX - 16)
        return wr_err(err, WEIR_E_FORMAT, "the vocabulary's tokens take %llu bytes, more than 4 GiB", (unsigned long long)c->token_bytes);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos", c->bos}, {"eos", c->eos}, {"eot", c->eot}, {"eom", c->eom}, {"unknown", c->unknown}, {"padding", c->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i].id < -1 || (ids[i].id >= 0 && (uint32_t)ids[i].id >= c->n_tokens))
            return wr_err(err, WEIR_E_FORMAT, "tokenizer.ggml.%s_token_id is %d, the vocabulary has %u tokens", ids[i].name, ids[i].id, c->n_tokens);
    for (uint32_t i = 0; i < c->n_ends; i++)
        if (c->ends[i] < 0 || (uint32_t)c->ends[i] >= c->n_tokens)
            return wr_err(err, WEIR_E_FORMAT, "end token %d is outside the vocabulary of %u tokens", c->ends[i], c->n_tokens);
    return 0;
}

/* Model "llama": what a file that is silent means. */
static void set_defaults(struct wr_vocab_config *c)
{
    int32_t *const ids[] = {&c->unknown, &c->bos, &c->eos};
    for (int32_t i = 0; i < 3; i++)
        if (*ids[i] < 0 && (uint32_t)i < c->n_tokens) *ids[i] = i;
    if (!c->add_bos_set) c->add_bos = true;
    if (!c->space_prefix_set) c->space_prefix = true;
}

static int open_pretok(struct wr_vocab *v, const char *pre, struct wr_ledger *ledger, const struct wr_log *log, weir_err *err)
{
    v->row = pre ? wr_pretok_find(pre) : NULL;
    if (!v->row) {
        v->row = wr_pretok_default();
        if (pre)
            wr_log(
                log, WEIR_LOG_WARN, "pre-tokenizer '%.*s' is not known (tokenizer.ggml.pre): the default split is used, so token ids may be wrong", SHOWN, pre);
        else
            wr_log(log, WEIR_LOG_WARN, "the file names no pre-tokenizer (tokenizer.ggml.pre): the default split is used, so token ids may be wrong");
    }
    if (!v->config.add_bos_set) v->config.add_bos = v->row->add_bos;
    v->config.space_prefix = false;
    return wr_pretok_open(&v->pretok, v->row, ledger, log, err);
}

int wr_vocab_open(struct wr_vocab **out, const struct wr_vocab_config *config, struct wr_ledger *ledger, const struct wr_log *log, weir_err *err)
{
    weir_err local;
    if (!err) err = &local;
    *out = NULL;
    int rc = check_config(config, err);
    if (rc < 0) return rc;
    struct wr_vocab *v = wr_mem_alloc(ledger, WR_ACCOUNT_TOKENIZER, sizeof *v, err);
    if (!v) return err->code;
    v->config = *config;
    v->config.model = v->config.pre = NULL;
    v->by_score = wr_vocab_has_scores(config);
    if (v->by_score)
        set_defaults(&v->config);
    else
        rc = open_pretok(v, config->pre, ledger, log, err);
    if (rc < 0) goto fail;
    struct sizes s = sizes_of(config);
    v->n_slots = s.n_slots;
    v->bpe.n_slots = s.n_merge_slots;
    v->classes_capacity = (uint32_t)s.n_classes;
    const struct {
        void *at;
        uint64_t count;
        size_t size;
    } arrays[] = {{&v->type, config->n_tokens, sizeof *v->type}, {&v->raw_at, s.n_raw_at, sizeof *v->raw_at}, {&v->out_at, s.n_out_at, sizeof *v->out_at},
        {&v->raw, s.token_bytes, 1}, {&v->out, s.out_bytes, 1}, {&v->slots, v->n_slots, sizeof *v->slots},
        {&v->bpe.slots, v->bpe.n_slots, sizeof *v->bpe.slots}, {&v->rank, s.n_ranks, sizeof *v->rank}, {&v->classes, s.n_classes, sizeof *v->classes}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *p = wr_mem_array(ledger, WR_ACCOUNT_TOKENIZER, arrays[i].count, arrays[i].size, err);
        if (!p) {
            rc = err->code;
            goto fail;
        }
        memcpy(arrays[i].at, &p, sizeof p);
    }
    memset(v->bpe.slots, 0xff, v->bpe.n_slots * sizeof *v->bpe.slots);
    for (size_t b = 0; b < 256; b++) v->bpe.byte_id[b] = -1;
    v->bpe.length_at = v->by_score ? v->raw_at : v->out_at;
    v->bpe.words = v->by_score ? v : NULL;
    v->bpe.n_tokens = config->n_tokens;
    v->bpe.unknown = v->config.unknown;
    *out = v;
    return 0;
fail:
    wr_vocab_close(v);
    return rc;
}

void wr_vocab_close(struct wr_vocab *v)
{
    if (!v) return;
    wr_pretok_close(&v->pretok);
    void *arrays[] = {v->type, v->raw_at, v->out_at, v->raw, v->out, v->slots, v->bpe.slots, v->rank, v->classes, v};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) wr_mem_free(arrays[i]);
}

static inline uint64_t slot_of(const struct wr_vocab *v, uint64_t hash) { return (uint64_t)((unsigned __int128)wr_hash_mix(hash) * v->n_slots >> 64); }

/* The next id at or behind slot *i whose text may be the one that was hashed, with *i behind it; -1, with *i at a free slot: there is none. Texts lie
 * all over memory: bits of the hash beside the id say of nearly all others that they need not be looked at. */
static int32_t next_candidate(const struct wr_vocab *v, uint64_t hash, uint64_t *i)
{
    uint32_t tag = (uint32_t)wr_hash_mix(hash) << WR_SLOT_ID_BITS;
    for (uint32_t slot; (slot = v->slots[*i]) != 0;) {
        *i = *i + 1 == v->n_slots ? 0 : *i + 1;
        if ((slot ^ tag) >> WR_SLOT_ID_BITS == 0) return (int32_t)((slot ^ tag) - 1);
    }
    return -1;
}

static uint64_t hash_bytes(const char *bytes, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) h = wr_hash_step(h, (uint8_t)bytes[i]);
    return h;
}

static bool text_is(const struct wr_vocab *v, uint32_t id, const char *bytes, size_t n)
{
    return v->raw_at[id + 1] - v->raw_at[id] == n && memcmp(v->raw + v->raw_at[id], bytes, n) == 0;
}

int32_t wr_vocab_find_hashed(const struct wr_vocab *v, uint64_t hash, const char *bytes, size_t n)
{
    int32_t id;
    uint64_t i = slot_of(v, hash);
    do id = next_candidate(v, hash, &i);
    while (id >= 0 && !text_is(v, (uint32_t)id, bytes, n));
    return id;
}

int32_t wr_vocab_find(const struct wr_vocab *v, const char *bytes, size_t n) { return n ? wr_vocab_find_hashed(v, hash_bytes(bytes, n), bytes, n) : -1; }

/* Byte-level: whether text may become this token through its bytes. Control tokens are no text, and a token of the user's prints its spelling, which is
 * other bytes wherever a byte is spelled as another character. */
static bool is_made_of_bytes(const struct wr_vocab *v, int32_t id)
{
    uint32_t n = v->raw_at[id + 1] - v->raw_at[id];
    if (!wr_vocab_is_special(v, id)) return true;
    return !wr_vocab_is_control(v, id) && v->out_at[id + 1] - v->out_at[id] == n && memcmp(v->out + v->out_at[id], v->raw + v->raw_at[id], n) == 0;
}

int32_t wr_vocab_find_piece(const struct wr_vocab *v, const uint8_t *bytes, size_t n)
{
    if (n > v->max_out) return -1;
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t text[4];
        int length = wr_utf8_encode(wr_vocab_byte_to_cp(bytes[i]), text);
        for (int k = 0; k < length; k++) h = wr_hash_step(h, text[k]);
    }
    /* A token whose bytes are the piece and whose text hashes like the piece's spelling is spelled so. */
    uint64_t slot = slot_of(v, h);
    for (int32_t id; (id = next_candidate(v, h, &slot)) >= 0;) {
        uint32_t length = v->out_at[id + 1] - v->out_at[id];
        if (length == n && memcmp(v->out + v->out_at[id], bytes, n) == 0 && hash_bytes(v->raw + v->raw_at[id], v->raw_at[id + 1] - v->raw_at[id]) == h)
            return is_made_of_bytes(v, id) ? id : -1;
    }
    return -1;
}

int32_t wr_vocab_find_word(const struct wr_vocab *v, const uint8_t *bytes, size_t n)
{
    if (n > v->max_out) return -1;
    int32_t id = wr_vocab_find(v, (const char *)bytes, n);
    return id >= 0 && wr_vocab_is_special(v, id) ? -1 : id;
}

/* Bytes that a token stands for: its characters through the byte alphabet, or, where one is not of the alphabet, its text as it is
 * (as Hugging Face's decoder has it). Returns their number, at most n. */
static uint32_t decode_text(const char *text, uint32_t n, char *out)
{
    uint32_t length = 0;
    for (uint32_t i = 0; i < n;) {
        uint32_t cp;
        int bytes = wr_utf8_decode((const uint8_t *)text + i, n - i, &cp);
        int byte = bytes > 0 ? wr_vocab_cp_to_byte(cp) : -1;
        if (byte < 0) {
            memcpy(out, text, n);
            return n;
        }
        out[length++] = (char)byte;
        i += (uint32_t)bytes;
    }
    return length;
}

static void add_special(struct wr_vocab *v, const char *bytes, size_t n, uint64_t hash, bool user)
{
    uint32_t low = 0, high = v->n_classes;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (v->classes[middle].length > n)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == v->n_classes || v->classes[low].length != n) {
        memmove(&v->classes[low + 1], &v->classes[low], (v->n_classes - low) * sizeof *v->classes);
        v->n_classes++;
        v->classes[low] = (struct wr_special_class){.length = (uint32_t)n, .power = 1};
        for (size_t i = 0; i < n; i++) v->classes[low].power *= WR_HASH_BASE;
    }
    v->classes[low].any |= wr_hash_bit(hash);
    if (user) v->classes[low].user |= wr_hash_bit(hash);
    for (unsigned second = 0; second < 256; second++) {
        if (n > 1 && second != (uint8_t)bytes[1]) continue;
        v->classes[low].begins |= wr_pair_bit((uint8_t)bytes[0], (uint8_t)second);
        wr_pair_set(v->begins_any, (uint8_t)bytes[0], (uint8_t)second);
        if (user) wr_pair_set(v->begins_user, (uint8_t)bytes[0], (uint8_t)second);
    }
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* By score, only what a token prints is kept: special tokens as they are, a byte token's byte, a space for U+2581. Returns the length, or -1. */
static int32_t printed_text(const char *text, uint32_t n, int32_t type, char *out)
{
    if (type == WR_TOKEN_BYTE) {
        int high = n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' ? hex_digit(text[3]) : -1, low = high >= 0 ? hex_digit(text[4]) : -1;
        if (low < 0) return -1;
        out[0] = (char)(high << 4 | low);
        return 1;
    }
    if (type != WR_TOKEN_CONTROL && type != WR_TOKEN_UNKNOWN && type != WR_TOKEN_USER) return (int32_t)wr_vocab_write_spaces(text, n, out);
    if (n) memcpy(out, text, n);
    return (int32_t)n;
}

size_t wr_vocab_write_spaces(const char *text, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        bool space = n - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        out[length++] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    return length;
}

static int index_text(struct wr_vocab *v, uint32_t id, uint64_t hash, weir_err *err)
{
    const char *bytes = v->raw + v->raw_at[id];
    size_t n = v->raw_at[id + 1] - v->raw_at[id];
    uint64_t home = slot_of(v, hash), slot = home;
    if (n == 0 || (v->by_score && v->type[id] == WR_TOKEN_BYTE)) return 0; /* never looked up by their text */
    for (int32_t other; (other = next_candidate(v, hash, &slot)) >= 0;)
        if (text_is(v, (uint32_t)other, bytes, n)) return 0;
    if ((slot >= home ? slot - home : slot + v->n_slots - home) > MAX_PROBES)
        return wr_err(err, WEIR_E_FORMAT, "token %u: too many texts of the vocabulary hash alike; is the file damaged?", id);
    v->slots[slot] = (id + 1) ^ (uint32_t)wr_hash_mix(hash) << WR_SLOT_ID_BITS;
    if (wr_vocab_is_special(v, (int32_t)id)) add_special(v, bytes, n, hash, v->type[id] == WR_TOKEN_USER);
    return 0;
}

/* All texts at once, so that the slots of the next few, which lie all over memory, are on their way while one is put into its own. */
static int index_texts(struct wr_vocab *v, weir_err *err)
{
    enum { AHEAD = 16 };
    uint64_t hash[AHEAD];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < v->n_tokens + AHEAD; i++) {
        if (i >= AHEAD) rc = index_text(v, i - AHEAD, hash[i % AHEAD], err);
        if (i >= v->n_tokens) continue;
        hash[i % AHEAD] = hash_bytes(v->raw + v->raw_at[i], v->raw_at[i + 1] - v->raw_at[i]);
        __builtin_prefetch(&v->slots[slot_of(v, hash[i % AHEAD])], 1);
    }
    return rc;
}

int wr_vocab_add_token(struct wr_vocab *v, const char *bytes, size_t n, int32_t type, weir_err *err)
{
    uint32_t id = v->n_tokens;
    if (v->finished || id == v->config.n_tokens)
        return wr_err(err, WEIR_E_FORMAT, "the vocabulary has more tokens than the %u it announced", v->config.n_tokens);
    if (type < WR_TOKEN_UNDEFINED || type > WR_TOKEN_BYTE)
        return wr_err(err, WEIR_E_FORMAT, "token %u has type %d (tokenizer.ggml.token_type), known are 0 to 6", id, type);
    if (n > v->config.token_bytes - v->raw_at[id])
        return wr_err(
            err, WEIR_E_FORMAT, "token %u makes the vocabulary larger than the %llu bytes it announced", id, (unsigned long long)v->config.token_bytes);
    if (v->by_score) {
        char *text = v->raw + v->raw_at[id];
        int32_t n_text = printed_text(bytes, (uint32_t)n, type, text);
        if (n_text < 0)
            return wr_err(err, WEIR_E_FORMAT, "token %u is of type byte, but its text '%.*s' is not <0x00> to <0xFF> (tokenizer.ggml.tokens)", id,
                (int)(n < SHOWN ? n : SHOWN), bytes);
        bytes = text;
        n = (size_t)n_text;
    }
    v->raw_at[id + 1] = v->raw_at[id] + (uint32_t)n;
    uint32_t n_out = (uint32_t)n;
    if (!v->by_score) {
        if (n) memcpy(v->raw + v->raw_at[id], bytes, n);
        n_out = decode_text(bytes, (uint32_t)n, v->out + v->out_at[id]);
        v->out_at[id + 1] = v->out_at[id] + n_out;
    }
    if (n_out > v->max_out) v->max_out = n_out;
    v->type[id] = (uint8_t)type;
    v->n_tokens++;
    if (v->by_score && type == WR_TOKEN_BYTE && v->bpe.byte_id[(uint8_t)bytes[0]] < 0) v->bpe.byte_id[(uint8_t)bytes[0]] = (int32_t)id;
    if (v->by_score && type != WR_TOKEN_BYTE && !wr_vocab_is_special(v, (int32_t)id))
        for (size_t i = 1; i < n; i++) wr_pair_set(v->joins, (uint8_t)bytes[i - 1], (uint8_t)bytes[i]);
    return v->n_tokens == v->config.n_tokens ? index_texts(v, err) : 0;
}

int wr_vocab_add_merge(struct wr_vocab *v, const char *bytes, size_t n, weir_err *err)
{
    uint32_t rank = v->n_merges;
    int shown = (int)(n < SHOWN ? n : SHOWN);
    if (v->finished || v->n_tokens < v->config.n_tokens)
        return wr_err(err, WEIR_E_FORMAT, "merges before all tokens: %u of %u tokens were given", v->n_tokens, v->config.n_tokens);
    if (rank == v->config.n_merges) return wr_err(err, WEIR_E_FORMAT, "the vocabulary has more merges than the %u it announced", v->config.n_merges);
    const char *space = n > 1 ? memchr(bytes + 1, ' ', n - 1) : NULL;
    if (!space) return wr_err(err, WEIR_E_FORMAT, "merge %u '%.*s' has no space (tokenizer.ggml.merges)", rank, shown, bytes);
    size_t n_left = (size_t)(space - bytes), n_right = n - n_left - 1;
    /* The result's text is both pieces without the space: hashed in two parts, compared in two parts. */
    uint64_t h_left = hash_bytes(bytes, n_left), h = h_left;
    for (size_t i = 0; i < n_right; i++) h = wr_hash_step(h, (uint8_t)space[1 + i]);
    __builtin_prefetch(&v->slots[slot_of(v, h)]);
    int32_t left = wr_vocab_find_hashed(v, h_left, bytes, n_left), right = wr_vocab_find(v, space + 1, n_right);
    if (left < 0 || right < 0)
        return wr_err(err, WEIR_E_FORMAT, "merge %u '%.*s': its %s piece is no token (tokenizer.ggml.merges)", rank, shown, bytes, left < 0 ? "left" : "right");
    int32_t result = -1;
    uint64_t slot = slot_of(v, h);
    for (int32_t id; result < 0 && (id = next_candidate(v, h, &slot)) >= 0;) {
        const char *text = v->raw + v->raw_at[id];
        if (v->raw_at[id + 1] - v->raw_at[id] == n - 1 && memcmp(text, bytes, n_left) == 0 && memcmp(text + n_left, space + 1, n_right) == 0) result = id;
    }
    if (result < 0) return wr_err(err, WEIR_E_FORMAT, "merge %u '%.*s': its result is no token (tokenizer.ggml.merges)", rank, shown, bytes);
    if (is_made_of_bytes(v, result) && !wr_bpe_add(&v->bpe, (uint32_t)left, (uint32_t)right, rank, (uint32_t)result))
        return wr_err(err, WEIR_E_FORMAT, "merge %u: too many merges hash alike; is the file damaged?", rank);
    v->n_merges++;
    return 0;
}

int wr_vocab_add_score(struct wr_vocab *v, float score, weir_err *err)
{
    uint32_t id = v->n_scores, bits;
    if (!v->by_score || v->finished || id == v->n_tokens) return wr_err(err, WEIR_E_FORMAT, "score %u: the vocabulary has no such token", id);
    if (score != score) return wr_err(err, WEIR_E_FORMAT, "token %u has a score that is not a number (tokenizer.ggml.scores)", id);
    /* Falling floats as rising numbers, all below UINT32_MAX; 0 and -0 are one. */
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    v->rank[id] = bits >> 31 ? bits : ~bits & 0x7fffffff;
    v->n_scores++;
    return 0;
}

static void mark_ends(struct wr_vocab *v)
{
    const int32_t ids[] = {v->config.eos, v->config.eot, v->config.eom};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i] >= 0) v->type[ids[i]] |= WR_ENDS;
    for (uint32_t i = 0; i < v->config.n_ends; i++) v->type[v->config.ends[i]] |= WR_ENDS;
    for (size_t i = 0; i < sizeof end_texts / sizeof *end_texts; i++) {
        int32_t id = wr_vocab_find(v, end_texts[i], strlen(end_texts[i]));
        if (id >= 0 && wr_vocab_is_special(v, id)) v->type[id] |= WR_ENDS;
    }
    /* In the harmony format a message ends with <|end|> and the turn goes on; <|return|> and <|call|> end the turn. */
    int32_t end = wr_vocab_find(v, "<|end|>", 7);
    if (end >= 0 && wr_vocab_find(v, "<|return|>", 10) >= 0 && wr_vocab_find(v, "<|call|>", 8) >= 0) v->type[end] &= WR_TYPE_MASK;
}

int wr_vocab_finish(struct wr_vocab *v, weir_err *err)
{
    if (v->by_score && v->n_scores < v->n_tokens)
        return wr_err(err, WEIR_E_FORMAT, "%u of %u tokens have a score (tokenizer.ggml.scores)", v->n_scores, v->n_tokens);
    if (v->n_tokens < v->config.n_tokens || v->n_merges < v->config.n_merges)
        return wr_err(err, WEIR_E_FORMAT, "the vocabulary announced %u tokens and %u merges, %u and %u were given", v->config.n_tokens, v->config.n_merges,
            v->n_tokens, v->n_merges);
    for (unsigned b = 0; b < 256; b++) {
        uint8_t text[4] = {(uint8_t)b};
        int32_t word =
            v->by_score ? wr_vocab_find_word(v, text, 1) : wr_vocab_find(v, (const char *)text, (size_t)wr_utf8_encode(wr_vocab_byte_to_cp((uint8_t)b), text));
        if (!v->by_score && word >= 0 && !is_made_of_bytes(v, word)) word = -1;
        if (b < 128) v->bpe.char_id[b] = word;
        if (v->bpe.byte_id[b] < 0) v->bpe.byte_id[b] = word;
    }
    for (uint32_t k = 1; v->by_score && k <= NO_TOKENS; k++) v->raw_at[v->n_tokens + k] = v->raw_at[v->n_tokens + k - 1] + k;
    mark_ends(v);
    v->finished = true;
    return 0;
}

uint32_t wr_vocab_size(const struct wr_vocab *v) { return v->n_tokens; }

static bool in_range(const struct wr_vocab *v, int32_t id) { return id >= 0 && (uint32_t)id < v->n_tokens; }

bool wr_vocab_ends(const struct wr_vocab *v, int32_t id) { return in_range(v, id) && v->type[id] & WR_ENDS; }

bool wr_vocab_bytes_of(const struct wr_vocab *v, int32_t id, bool special, const char **bytes, size_t *n)
{
    if (!in_range(v, id)) return false;
    bool control = wr_vocab_is_control(v, id);
    if (v->by_score || wr_vocab_is_special(v, id)) {
        *bytes = v->raw + v->raw_at[id];
        *n = control && !special ? 0 : v->raw_at[id + 1] - v->raw_at[id];
    } else {
        *bytes = v->out + v->out_at[id];
        *n = v->out_at[id + 1] - v->out_at[id];
    }
    return true;
}

bool wr_vocab_bytes_after(const struct wr_vocab *v, int32_t previous, int32_t id, bool special, const char **bytes, size_t *n)
{
    if (!wr_vocab_bytes_of(v, id, special, bytes, n)) return false;
    bool first = !in_range(v, previous) || wr_vocab_is_special(v, previous);
    if (!v->config.space_prefix || !first || wr_vocab_is_special(v, id) || *n == 0 || **bytes != ' ') return true;
    ++*bytes;
    --*n;
    return true;
}

const char *wr_vocab_text_of(const struct wr_vocab *v, int32_t id, size_t *n)
{
    if (!in_range(v, id)) {
        *n = 0;
        return NULL;
    }
    *n = v->raw_at[id + 1] - v->raw_at[id];
    return v->raw + v->raw_at[id];
}

int32_t wr_vocab_bos(const struct wr_vocab *v) { return v->config.bos; }
int32_t wr_vocab_eos(const struct wr_vocab *v) { return v->config.eos; }
