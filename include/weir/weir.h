/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir: runs language models and contexts larger than memory, exactly, inside a memory budget.
 *
 * plan -> engine -> session. A plan says, without reading a weight, what will be pinned and
 * streamed, and refuses what cannot work; an engine executes that plan; a session is one
 * sequence of tokens. An engine and its session are used by one thread at a time; the session is
 * closed first. The library never exits, prints or aborts on input.
 *
 * Functions return 0 or a negative WEIR_E_* (errors.def) and, where `err` is not NULL, a text
 * that says what, where, and the next step. Results are untouched on failure.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_API __attribute__((visibility("default")))
#define WEIR_NUMERICS 2 /* the arithmetic that fixes every bit of a logit; a change of it changes this number */

enum weir_error {
#define ERROR(name, value, exit_code, http, text) name = value,
#include <weir/errors.def>
#undef ERROR
};

typedef struct weir_err {
    int code;       /* WEIR_E_* */
    char text[256]; /* NUL-terminated UTF-8 */
} weir_err;

WEIR_API const char *weir_version(void);
WEIR_API const char *weir_error_name(int code); /* "WEIR_E_BUDGET"; "WEIR_E_FAIL" for unknown codes */

/* ---- options -------------------------------------------------------------------------- */

enum weir_log_level { WEIR_LOG_DEBUG, WEIR_LOG_INFO, WEIR_LOG_WARN };
typedef void weir_log_fn(void *user, enum weir_log_level level, const char *line);

/* Called while loading and evaluating, from the calling thread, at most ten times a second.
 * `done` of `total` in `unit` ("bytes", "tokens", or "layers" of one token). */
typedef void weir_progress_fn(void *user, const char *phase, uint64_t done, uint64_t total, const char *unit);

enum weir_kv {
    WEIR_KV_F16,
    WEIR_KV_F32,
    WEIR_KV_Q8_0,
    WEIR_KV_K8V4
}; /* of keys and values; q8_0, k8v4 (values of 4 bits): heads of a multiple of 32 dimensions */
enum weir_direct { WEIR_DIRECT_AUTO, WEIR_DIRECT_ON, WEIR_DIRECT_OFF };
#define WEIR_AUTO UINT64_MAX /* in a size field: let the plan choose */
/* Bursts: proposed tokens are evaluated in one pass, and those that are drawn are kept. Every token is the one that would have been drawn without. */
enum weir_spec {
    WEIR_SPEC_AUTO, /* the draft model where there is one; else ngram, in memory that matters to nothing else, or off */
    WEIR_SPEC_OFF,
    WEIR_SPEC_NGRAM, /* what followed the longest end of the text where it was before */
    WEIR_SPEC_DRAFT, /* what a smaller model of the same vocabulary draws */
};

typedef struct weir_options {
    size_t size;           /* sizeof(weir_options), set by weir_options_init */
    uint64_t memory_bytes; /* the budget of the whole process; 0: derive it from what is available */
    uint32_t n_ctx;        /* positions; 0: min(trained, 4096, what fits) */
    uint32_t n_threads;    /* 0: the CPUs that this process may use */
    uint32_t n_chunk;      /* rows of a prefill pass; 0: up to 512, lowered by the plan */
    enum weir_kv kv;
    uint64_t kv_disk_bytes; /* keys and values that do not fit in memory: on disk at most; 0: none; WEIR_AUTO: as many as there are */
    char kv_dir[1024];      /* and in which folder; "": weir/kv in the user's cache folder */
    enum weir_direct direct;
    char io[16];  /* "auto", "uring", "pread", "mmap" */
    char isa[16]; /* cap of the CPU level: "" (none), "scalar"; x86: "avx2", "avxvnni", "avx512", "avx512vnni", "amx"; AArch64: "neon", "dotprod", "i8mm" */
    bool precise; /* int16 instead of int8 activations */
    enum weir_spec spec;
    uint32_t spec_k;         /* tokens proposed at a time, 1 to 64; 0: as many as pay, by measured passes and what was accepted */
    uint32_t spec_tree;      /* tokens of the tree that a draft model proposes in place of spec_k in a row, 1 to 64; 0: where that pays, as many as pay, but no
                              * trees where spec_k is given. Memory: keys and values of as many positions (0: 32) and one more, rounded up to 16 */
    char draft[1024];        /* path of the draft model, which is all in memory, in the same budget with its keys and values; "": none */
    uint64_t pin_bytes;      /* diagnostics: weights to pin; WEIR_AUTO: what fits */
    uint64_t ring_bytes;     /* diagnostics; WEIR_AUTO */
    uint64_t extent_bytes;   /* diagnostics; WEIR_AUTO */
    uint64_t process_bytes;  /* the constant account of the process: 12 MiB unless the host needs more */
    uint64_t header_bytes;   /* what may be kept of a header, for a plan of a budget that the process does not have; 0: what the budget leaves */
    char context[1024];      /* a saved context that the session begins with; "": none */
    char save_context[1024]; /* the session's tokens are kept in this file as they come, see weir_session_save; "": none */
    weir_log_fn *log;
    void *log_user;
    weir_progress_fn *progress;
    void *progress_user;
    const volatile int *cancel; /* non-zero: stop at the next layer with WEIR_E_CANCELLED; may be NULL */
} weir_options;

WEIR_API void weir_options_init(weir_options *);
/* Sets a field by its command-line name ("memory", "ctx", "kv", ...). WEIR_E_USAGE names a bad name or value. */
WEIR_API int weir_options_set(weir_options *, const char *name, const char *value, weir_err *);
/* "512M", "2G", "1.5GiB", "59MB": K/M/G/T and KiB.. are powers of 1024, KB/MB/GB/TB powers of 1000; a bare number is bytes. */
WEIR_API int weir_parse_size(const char *text, uint64_t *bytes, weir_err *);

/* ---- plan ----------------------------------------------------------------------------- */

typedef struct weir_plan weir_plan;

enum weir_bound { WEIR_BOUND_UNKNOWN, WEIR_BOUND_DISK, WEIR_BOUND_MEMORY, WEIR_BOUND_COMPUTE };

typedef struct weir_account_info {
    const char *name;
    uint64_t reserved, peak; /* bytes; peak is 0 before the engine is open */
} weir_account_info;

#define WEIR_N_BURSTS 3
typedef struct weir_burst_info { /* decoding by bursts, were a proposal there at every pass */
    double acceptance;           /* the chance of a proposed token to be drawn, if those before it were; after trees: of one of those of a place */
    uint32_t k;                  /* tokens proposed at a time: spec_k of the options, or the best; 0: plain is faster */
    double predicted;            /* tokens/s at the beginning of the context; 0: unknown, as that of trees is */
} weir_burst_info;

typedef struct weir_plan_info {
    const char *model, *arch, *isa, *kv;
    const char *spec; /* "auto", "off", "ngram", "draft": what is done, so that auto that finds no room is off */
    uint32_t spec_k;  /* tokens proposed at a time at most */
    uint32_t n_threads, n_ctx, n_ctx_trained, n_chunk, n_vocab, n_layer, n_embd;
    uint64_t file_bytes, weight_bytes;
    uint64_t budget, min_budget;
    uint32_t min_budget_n_ctx; /* the context that min_budget has room for */
    uint64_t peak_predicted;   /* of the process, with a prompt that is short for the context */
    const char *budget_origin; /* "--memory" or what it was derived from */
    uint64_t pinned, streamed; /* weight bytes, aligned extents; streamed = read by every decode pass */
    uint64_t ring, extent;     /* bytes of the ring, of its largest extent */
    uint64_t n_extents_streamed;
    uint64_t kv_bytes_per_position, kv_resident;     /* kv_resident: the account's bytes */
    uint64_t kv_on_disk;                             /* bytes of the file for what does not fit, which may be options.save_context; 0: there is none */
    uint64_t kv_bytes_per_token;                     /* read by a decode pass when the context is full; not in bytes_per_token */
    uint32_t kv_read_from;                           /* the first position whose pass reads of that file; 0: none does */
    const char *kv_dir;                              /* the folder of that file, or options.save_context */
    uint64_t bytes_per_token, floor_bytes_per_token; /* decode: planned, and the least that the pinned share allows */
    uint32_t max_context;                            /* the largest context that this budget could hold */
    uint32_t n_saved;                                /* tokens of options.context */
    uint64_t text_left;                              /* of the text account: set apart for the caller's own texts */
    const weir_account_info *accounts;
    uint32_t n_accounts;
    /* From the stored profile of the machine and the model's file system (weir probe), as src/memory/predict.c says. 0: unknown. */
    int64_t profile_taken;                              /* when it was measured, seconds since 1970; -1: there is none */
    double decode_predicted, decode_predicted_full;     /* tokens/s at the beginning of the context, and when it is full */
    double decode_predicted_first;                      /* ... while the disk is faster than it stays; decode_predicted where it is not */
    double prefill_predicted;                           /* tokens/s of a first chunk of n_chunk rows */
    double decode_read_seconds, decode_compute_seconds; /* of a token at the beginning: reading alone, computing alone */
    double seconds_per_gib;                             /* of a token, saved by one more GiB of budget */
    enum weir_bound bound;                              /* of decode */
    weir_burst_info bursts[WEIR_N_BURSTS];              /* for some acceptances, since it depends on the text; where `spec` is not off */
} weir_plan_info;

/* Reads headers, and the stored profile where there is one (a damaged one is a warning). On WEIR_E_BUDGET the text states the smallest budget
 * that works. The plan owns what it returns. */
WEIR_API int weir_plan_open(weir_plan **out, const char *model_path, const weir_options *, weir_err *);
WEIR_API const weir_plan_info *weir_plan_get(const weir_plan *);
WEIR_API void weir_plan_close(weir_plan *); /* NULL is fine */

/* ---- engine --------------------------------------------------------------------------- */

typedef struct weir_engine weir_engine;

/* Executes the plan: takes the memory, loads the tokenizer, reads the pinned weights. Takes the plan over on success; on
 * failure the caller still owns it. */
WEIR_API int weir_engine_open(weir_engine **out, weir_plan *, weir_err *);
/* An engine of the tokenizer and the chat template alone: no plan, no weights; sessions are refused. For counting tokens before an
 * engine is opened. options.memory_bytes bounds it too (0: not). */
WEIR_API int weir_engine_open_text(weir_engine **out, const char *model_path, const weir_options *, weir_err *);
WEIR_API void weir_engine_close(weir_engine *);                       /* NULL is fine */
WEIR_API const weir_plan_info *weir_engine_plan(const weir_engine *); /* accounts[].peak is current */

typedef struct weir_io_info {
    const char *engine;
    bool direct;
    uint64_t bytes_read, bytes_written, reads; /* since the engine was opened */
    uint64_t bytes_read_weights;               /* of them, extents of streamed weights */
    uint64_t bytes_read_pinned, bytes_read_rows, bytes_read_kv;
    uint64_t bytes_read_sample;     /* of bytes_read_weights: the ring's first filling, read at open for the first pass */
    uint64_t bytes_seam;            /* copied because a row straddled two slots */
    double load_seconds, load_rate; /* of what is read at open: seconds, bytes/s */
    double stall_io_seconds;        /* compute waited for the tape, or for keys and values */
    double stall_write_seconds;     /* compute waited until keys and values were written */
    double stall_compute_seconds;   /* the tape waited for a free slot */
} weir_io_info;
WEIR_API weir_io_info weir_engine_io(const weir_engine *);

/* ---- text ----------------------------------------------------------------------------- */

/* Ids of `n` bytes of text. `special`: recognize special tokens in the text. BOS is added only where the model asks for it,
 * `bos` is true and the text does not begin with it. *ids is yours (weir_free, before the engine is closed). Any bytes are accepted; those that the vocabulary lacks are dropped with a warning. */
WEIR_API int weir_tokenize(weir_engine *, const char *text, size_t n, bool special, bool bos, int32_t **ids, size_t *n_ids, weir_err *);
/* Bytes of one id that follows `previous` (-1: nothing), as printed in a completion (special tokens give "" unless `special`): without the
 * space that some tokenizers put before a text and after special tokens, so that all ids of a text give that text. Valid until the engine
 * closes; WEIR_E_INPUT if out of range. */
WEIR_API int weir_token_bytes(weir_engine *, int32_t previous, int32_t id, bool special, const char **bytes, size_t *n, weir_err *);
WEIR_API bool weir_token_ends(weir_engine *, int32_t id); /* end-of-generation token */
WEIR_API void weir_free(void *);

typedef struct weir_message {
    const char *role, *content; /* NUL-terminated UTF-8 */
} weir_message;
/* Renders the model's chat template. *text is yours. WEIR_E_UNSUPPORTED when the model has none or it uses a construct
 * that weir lacks (named); WEIR_E_TEMPLATE with the template's own words when it refuses the messages. */
WEIR_API int weir_chat_render(weir_engine *, const weir_message *, size_t n, bool add_generation_prompt, char **text, weir_err *);
WEIR_API bool weir_chat_available(weir_engine *);

/* ---- session -------------------------------------------------------------------------- */

typedef struct weir_session weir_session;

typedef struct weir_sampling {
    size_t size;
    float temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int32_t top_k;         /* 0: off */
    uint32_t penalty_last; /* tokens that the penalties look back on */
    uint64_t seed;
    const int32_t *bias_ids;
    const float *bias;
    size_t n_bias;
} weir_sampling;
WEIR_API void weir_sampling_init(weir_sampling *); /* temp 0.8, top_k 40, top_p 0.95, min_p 0.05, penalties off over 64 */

/* One session an engine holds at present. */
WEIR_API int weir_session_open(weir_session **out, weir_engine *, weir_err *);
WEIR_API void weir_session_close(weir_session *);

/* Makes ids[0..n) the session's tokens: what it already holds of this prefix is kept, the rest is evaluated. Afterwards the
 * logits of position n - 1 are there. WEIR_E_CONTEXT if n > n_ctx, naming both; WEIR_E_INPUT for an id outside the vocabulary. */
WEIR_API int weir_session_set(weir_session *, const int32_t *ids, size_t n, weir_err *);
/* Logits [n_vocab] after the last token; valid until the next call. */
WEIR_API const float *weir_session_logits(weir_session *);
/* Draws the next token from those logits, which are used up by it; a pure function of logits, tokens so far, position and seed. */
WEIR_API int weir_session_sample(weir_session *, const weir_sampling *, int32_t *id, weir_err *);
WEIR_API size_t weir_session_length(const weir_session *);
/* The tokens that keys and values are stored of, [*n]; valid until the next call. */
WEIR_API const int32_t *weir_session_ids(const weir_session *, size_t *n);

/*
 * Saved contexts (docs/CONTEXT_FILE.md): tokens with their keys and values. A resumed session gives the logits of one that evaluated the same tokens, to the
 * bit, at any budget. A file of another model, tokenizer, KV type, precision or numerics is WEIR_E_MISMATCH, a damaged or truncated one WEIR_E_FORMAT; both
 * name what differs. Weights are compared as they are first read: a difference there is WEIR_E_MISMATCH of the call that would give the first logits.
 *
 * With options.save_context full groups of 256 tokens are committed as they come: what ends the process costs at most the last ones. A file that is
 * there already is replaced by _save alone, unless it is options.context too: then it grows in place.
 */
/* The session's tokens become those of the file. Afterwards there are no logits: set more tokens. A file that is refused before its keys and values are read
 * leaves the session as it was; any other failure, an empty one. */
WEIR_API int weir_session_load(weir_session *, const char *path, weir_err *);
/* Every token so far is in the file, and the file in its place, when this returns 0. NULL: options.save_context, which then goes on growing. On failure
 * the file has what it had (WEIR_E_WRITE: the disk; WEIR_E_USAGE: options.save_context was there, and no pass has compared the model with it yet), the
 * session all its tokens. */
WEIR_API int weir_session_save(weir_session *, const char *path, weir_err *);

/* As weir_session_set, and calls `fn` with tiles of the logits of all tokens that are evaluated: rows [row, row + n_rows) x words [word, word + n_words),
 * tile[i * n_words + j]. Row i holds the logits after ids[i]; what the session had of the ids has no rows. Rows come in blocks, the tiles of a block with
 * ascending words. A non-zero return of fn stops and is returned. */
typedef int weir_logits_fn(void *user, size_t row, size_t n_rows, size_t word, size_t n_words, const float *tile);
WEIR_API int weir_session_eval(weir_session *, const int32_t *ids, size_t n, weir_logits_fn *fn, void *user, weir_err *);

typedef struct weir_generate {
    size_t size;
    const weir_sampling *sampling;
    uint64_t n_max;           /* tokens; 0: to the end of the context */
    const char *const *stops; /* stop strings: text is cut exactly before the one that begins first */
    size_t n_stops;
    bool special; /* print special tokens too */
    bool ignore_eos;
    /* Whole characters, as soon as no stop string can begin in them; a non-zero return ends the generation and is returned. */
    int (*text)(void *user, const char *text, size_t n);
    int (*token)(void *user, int32_t id); /* each drawn id that is not an end token; non-zero ends likewise; may be NULL */
    void *user;
} weir_generate;
enum weir_finish { WEIR_FINISH_STOP, WEIR_FINISH_LENGTH, WEIR_FINISH_INTERRUPTED };
/* Draws and evaluates tokens from the session's logits until an end token, a stop string, n_max or the end of the context. options.cancel
 * ends it as INTERRUPTED with code 0; everything generated was given to `text` before. */
WEIR_API int weir_session_generate(weir_session *, const weir_generate *, enum weir_finish *, weir_err *);

typedef struct weir_session_info {
    uint64_t n_prefill, n_decode;                               /* tokens evaluated in prefill passes, decode passes */
    uint64_t n_loaded, n_saved;                                 /* tokens that came from a saved context; that a file has by now */
    double prefill_seconds, decode_seconds;                     /* decode: with what proposes tokens */
    uint64_t n_passes;                                          /* that the n_decode tokens took */
    uint64_t n_drafted, n_accepted;                             /* tokens proposed, and those of them that were drawn */
    uint64_t n_refused;                                         /* bursts in which a token was drawn that was not the one proposed */
    double plain_seconds;                                       /* of a decode pass of one token, the mean without the first; 0: there was none */
    uint64_t decode_bytes, decode_row_bytes, decode_kv_bytes;   /* read for decode passes: weights, embedding rows, keys and values */
    uint64_t decode_disk_bytes;                                 /* what the system counts from the first to the last decode pass */
    double prefill_predicted_seconds, decode_predicted_seconds; /* what the profile let expect for the same passes; 0: unknown */
    weir_burst_info burst;                                      /* what it lets expect of bursts with this session's acceptance */
} weir_session_info;
WEIR_API weir_session_info weir_session_stats(const weir_session *);

#ifdef __cplusplus
}
#endif
#endif
