/* SPDX-License-Identifier: Apache-2.0 */
/* What the bodies of weir.h share; nobody else includes it. */
#ifndef WR_ENGINE_H
#define WR_ENGINE_H

#include <weir/weir.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"
#include "format/catalog.h"
#include "generate/draft_tree.h"
#include "generate/gate.h"
#include "generate/ngram.h"
#include "memory/kv.h"
#include "memory/kvfile.h"
#include "memory/pager.h"
#include "memory/profile.h"
#include "model/pass.h"
#include "text/template.h"
#include "text/vocab.h"

struct weir_plan {
    struct wr_ledger ledger;
    struct wr_log log;
    weir_options options;
    struct wr_catalog catalog;
    struct wr_model model;
    struct wr_plan plan;
    struct wr_vocab_config vocab;
    const struct wr_kernels *kernels;
    uint64_t sample_bytes;    /* of scratch: the sampler's work space */
    struct wr_kvfile context; /* options.context, until the engine takes it over */
    bool has_context, context_in_place;
    uint64_t save_bytes; /* of options.save_context, where keys and values that do not fit in memory lie in it; 0: they do not */
    char path[4096], budget_origin[96], kv_folder[4096];
    weir_plan *draft;     /* of options.draft, until its engine is open */
    bool is_draft;        /* of another plan */
    struct wr_team *team; /* is_draft: that of the engine which it drafts for */
    weir_account_info accounts[WR_N_ACCOUNTS];
    weir_plan_info info;
    struct wr_profile profile; /* where info.profile_taken >= 0 */
    /* Keys and values that are not computed: the engine takes the file over, which has the blocks of all layers from tile 0 on, and holds so many positions
     * from the beginning; a multiple of WR_TILE. 0: none. For measuring. */
    struct wr_store kv_given;
    uint32_t n_kv_given;
};

/* The saved contexts of an engine (context.c). */
struct wr_context {
    struct wr_kvfile from, to; /* options.context, options.save_context; where both are one file, it is `to` */
    bool has_from, has_to, in_place;
    uint32_t n_compared; /* weights of the file that were */
    /* Of a context that does not fit in memory: crcs of its blocks on disk [tiles][n_layer], and which of them were read or written by this process. */
    uint32_t *crcs;
    uint8_t *seen;
    uint32_t n_adopted_tiles; /* set before the first pass, so that the reader's thread may look */
    uint32_t n_loaded_tiles;  /* of them, those that the session still has */
    bool mismatch;            /* the session's tokens are of another model */
    bool refused;             /* they were, and are gone: `from` is compared no more */
    bool started;             /* there was a session */
    bool unchecked;           /* in_place: not every weight was compared yet, and until then the file stays what it is */
};

struct weir_engine {
    weir_plan *plan; /* owned */
    uint32_t tokenizer_crc;
    struct wr_context context;
    struct wr_vocab *vocab;
    size_t longest_token;     /* bytes in the file, at least as many as it prints */
    struct wr_template *chat; /* opened at the first use */
    bool text_only;
    struct wr_arena arena;
    struct wr_device device;
    struct wr_team *team; /* of a draft: not its own */
    weir_engine *draft;   /* NULL: none */
    struct wr_pager *pager;
    struct wr_kv kv;
    void *sample_work;
    struct wr_pass pass;
    bool has_session;
};

#define WR_SPEC_MOST 64 /* tokens proposed at a time */

/* How far the draft model's probabilities are right (tree.c): how many tokens were, and what it said of all, moving sums. */
struct wr_tree_belief {
    struct wr_tree_ratio {
        double right, said;
    } first, other; /* the token that it draws itself; those beside it */
    double sure;    /* chance of the first: moving mean */
    double gain;    /* tokens per second of trees beside those of lines: moving mean */
    uint32_t wait;  /* bursts until the next attempt, where lines are better */
};

/* Speculation of a session (speculate.c). A burst is one pass over the token drawn last and those proposed behind it, with the logits of every row. */
struct wr_spec {
    uint32_t most;          /* tokens proposed at a time; 0: off */
    struct wr_ngram *ngram; /* NULL: the draft proposes */
    weir_session *draft;
    double draft_seconds;     /* of the last proposal */
    size_t seen_from, n_seen; /* of the session's tokens, those that it has */
    struct wr_gate gate;
    bool expects;         /* the gate was told what to expect of passes */
    uint32_t prompt_rows; /* of the last pass over the prompt, and what it took */
    double prompt_seconds;
    void *tree_rows; /* keys and values of a tree's rows */
    float *own;      /* logits [most + 1 - n_idle_logits][n_vocab]; the first rows lie in idle scratch */
    /* The last pass: the token drawn before it and the proposed ones, a burst's or those that were known and not evaluated. */
    struct wr_tree_rows rows;
    uint32_t match;
    size_t first;        /* position of its first row */
    uint32_t n_rows, at; /* evaluated, 0: there is none; the last of them that counts */
    double seconds;      /* it took */
    struct wr_tree tree; /* what its rows are, where is_tree */
    bool is_tree;
    uint32_t n_asked; /* times that the draft model was, for it */
    struct wr_tree_belief belief;
};

struct wr_tick { /* what the progress of a pass is shown of */
    uint64_t last_ns;
    size_t begin, end, done;
    uint32_t m;
};

struct weir_session {
    weir_engine *engine;
    int32_t *ids;             /* [n_ctx] */
    struct wr_pass_row *rows; /* [max_rows] */
    struct wr_spec spec;
    struct wr_tick tick;
    size_t n;      /* positions whose keys and values are stored */
    float *logits; /* [n_vocab] after position n - 1; NULL: none */
    weir_session_info info;
    uint64_t decode_disk_begin;
    uint64_t decode_positions;              /* of the decoded tokens, summed up */
    uint64_t n_plain;                       /* decode passes of one token, but the session's first pass */
    uint64_t n_passes_of[WR_SPEC_MOST + 2]; /* decode passes by their rows */
    uint64_t n_asked;                       /* times that the draft model was, for what may follow */
    bool had_trees;                         /* a place had several tokens proposed */
    double plain_seconds;                   /* all of them */
    double pass_seconds;                    /* the last decode pass of one token */
    uint64_t bytes_rows;                    /* the pager's count when the last pass ended */
};

/* Opens the catalog within the budget; `text_only`: weights will not be read. */
int wr_plan_read_header(weir_plan **out, const char *path, const weir_options *, bool text_only, weir_err *);
/* What the plan needs of model and vocabulary; `text_only`: no model. On failure the plan is still to be closed. */
int wr_plan_read_graph(weir_plan *, bool text_only, weir_err *);
/* Both. */
int wr_plan_read(weir_plan **out, const char *path, const weir_options *, bool text_only, weir_err *);
/* Fills what weir_plan_get says from the plan. */
void wr_plan_fill_info(weir_plan *);
/* The ledger of handles, which exist before and outlive the ledger of an engine. Charged to PROCESS. */
struct wr_ledger *wr_engine_host_ledger(void);
int wr_engine_load_vocab(weir_engine *, weir_err *);
int wr_engine_open_chat(weir_engine *, weir_err *); /* compiles the chat template, once */
/* Profiles (profile.c) are stored in $XDG_CACHE_HOME/weir/profiles or ~/.cache/weir/profiles, under a name made of the CPU, its level, the number of CPUs
 * and the file system. _name fills in these four, for the file system that holds `path`. */
int wr_engine_profile_name(struct wr_profile *, const char *path, const char *level, weir_err *);
/* The stored profile of this machine at this level and of the file system that holds `path`. 1: *profile is it; 0: none is stored; an error: it cannot be
 * read or is damaged, and the text says so. */
int wr_engine_profile_load(struct wr_profile *, const char *path, const char *level, weir_err *);
#define WR_ENGINE_PATH 4096
/* A folder of weir's in the user's cache folder, which need not be there yet, and the length of its path; false without a home. */
bool wr_engine_cache_folder(const char *name, char path[WR_ENGINE_PATH], size_t *length);
/* Creates the folder path[0, n) and those above it; path is changed and restored. */
int wr_engine_make_folders(char *path, size_t n, weir_err *);
/* Keys and values (kv.c): the folder of what does not fit in memory; opens the engine's, as the plan says. */
int wr_engine_kv_folder(const weir_options *, char path[WR_ENGINE_PATH], weir_err *);
int wr_engine_open_kv(weir_engine *, weir_err *);
/* A file without a name in that folder, of so many bytes. */
int wr_engine_open_kv_file(const weir_options *, const struct wr_log *, uint64_t bytes, struct wr_store *, weir_err *);
/* The file of a profile; *folder gets the length of its folder. False without a home. */
bool wr_engine_profile_path(const struct wr_profile *, char path[WR_ENGINE_PATH], size_t *folder);
/* Stores a profile under its name, whole or not at all; where[WR_ENGINE_PATH] gets the path. */
int wr_engine_profile_store(const struct wr_profile *, char *where, weir_err *);
/* Saved contexts (context.c, context_blocks.c). _plan: opens the file of options.context, which is of this model; _plan_disk: what is spilled to
 * options.save_context is within --kv-disk; _open: the files of the options, once the vocabulary is loaded, with sound records; _start: the session begins
 * with their tokens. _compare: weights that are read by now are those of the file. _back: tokens from n on will be others; _keep: full groups up to the
 * session's length are committed. */
int wr_context_plan(weir_plan *, weir_err *);
int wr_context_plan_disk(weir_plan *, weir_err *);
uint64_t wr_context_file_bytes(const weir_plan *, uint32_t n_tiles); /* of one that is saved */
int wr_context_open(weir_engine *, weir_err *);
int wr_context_kv(weir_engine *, struct wr_kv_config *, weir_err *); /* what of a spilled context lies in these files, and room for it there */
void wr_context_close(weir_engine *);
int wr_context_start(weir_session *, weir_err *);
int wr_context_compare(weir_engine *, weir_err *);
/* The tokens were another model's: the session is empty, and what is evaluated from now on is this one's. */
void wr_context_refuse(weir_session *);
int wr_context_back(weir_session *, size_t n, weir_err *);
int wr_context_keep(weir_session *, weir_err *);
/* Passes of a session (session.c). _pass: one over m ids from position s->n on, or (depth not NULL) depth[i] behind it, which do not count yet; logits of `all`
 * rows or of the last, none without fn. _advance: evaluates s->ids[s->n .. n), with the logits of the last. _book: of the decode pass of n_rows that began at
 * start_ns and ended now; _book_token: one of its rows counts, s->n is behind it. */
int wr_session_pass(weir_session *, const int32_t *ids, const uint32_t *depth, uint32_t m, bool all, wr_head_fn *, void *user, weir_err *);
int wr_session_advance(weir_session *, size_t n, weir_err *);
double wr_session_book(weir_session *, uint32_t n_rows, uint64_t start_ns);
void wr_session_book_token(weir_session *);
/* Speculation (speculate.c). _plan: what it needs; _forget: tokens from n on will be others; _next: the logits behind s->ids[s->n], the token drawn last, at
 * most n_left of which are still to be drawn; _end: no more will be. */
const char *wr_spec_name(enum weir_spec);
int wr_spec_plan(const weir_plan *, struct wr_plan_input *, weir_err *);
int wr_spec_open(weir_session *, weir_err *);
void wr_spec_close(weir_session *);
void wr_spec_forget(weir_session *, size_t n);
int wr_spec_next(weir_session *, const weir_sampling *, uint64_t n_left, weir_err *);
void wr_spec_end(weir_session *);
void wr_spec_saw(weir_session *, uint32_t n_rows, double seconds); /* of a pass over the prompt */
/* The draft model (draft.c). _plan: what it needs, and per position of the context; _fit: p->draft, within so many bytes; _open: its engine; _follow: it
 * evaluates what it lacks of ids[n]; _propose: k tokens behind ids[n], to ids[n] and behind. */
int wr_draft_plan(const weir_plan *, uint64_t *bytes, uint64_t *bytes_per_position, weir_err *);
int wr_draft_fit(weir_plan *, uint64_t bytes, weir_err *);
int wr_draft_open(weir_engine *, weir_err *);
int wr_draft_follow(weir_session *draft, const int32_t *ids, size_t n, weir_err *);
int wr_draft_propose(weir_session *draft, const weir_sampling *, int32_t *ids, size_t n, uint32_t k, weir_err *);
/* What may come behind ids[n]: tokens[0] is what the draft draws, the others are the likeliest beside it, the likeliest first; n_most at most, and what the
 * draft's probabilities of them are. */
int wr_draft_ask(weir_session *draft, const weir_sampling *, const int32_t *ids, size_t n, uint32_t n_most, int32_t *tokens, float *probabilities, weir_err *);
/* Trees (tree.c). _pays: whether the next burst should be one. _propose: spec->tree and its rows, of at most n_most tokens, none more than most_depth behind
 * the one drawn last, which the session's ids have: where `line` tokens in a row would be proposed, as many as pay; 0: n_most if there are so many. _learn:
 * from what came of the last one; how many rows from the root down, each the first laid out below the one before it, were right. */
void wr_tree_believe(struct wr_tree_belief *);
bool wr_tree_pays(struct wr_tree_belief *);
int wr_tree_propose(weir_session *, const weir_sampling *, uint32_t n_most, uint32_t most_depth, uint32_t line, weir_err *);
uint32_t wr_tree_learn(struct wr_spec *);
/* weir_plan_open; `is_draft`: of a model whose text is another's. */
int wr_plan_open(weir_plan **out, const char *path, const weir_options *, bool is_draft, weir_err *);
/* Rates (rates.c): loads the profile and fills in what info says of them; and the seconds that are expected for n tokens, the first of them at
 * `position`, 0: unknown. */
void wr_plan_predict(weir_plan *);
enum wr_work {
    WR_WORK_PREFILL /* in chunks, logits of the last row */,
    WR_WORK_EVAL /* in chunks, logits of all */,
    WR_WORK_DECODE /* one pass, logits of all */
};
double wr_plan_seconds(const weir_plan *, enum wr_work, uint32_t position, uint32_t n);
/* Tells a gate what bursts behind `position` are expected to take, `draft` (NULL: an automaton) included; false: unknown. */
bool wr_plan_expect(const weir_plan *, const weir_plan *draft, uint32_t position, struct wr_gate *);
/* b->k and b->predicted, for b->acceptance. */
void wr_plan_burst(const weir_plan *, const weir_plan *draft, uint32_t position, weir_burst_info *b);
/* n random values of standard deviation 1 / divisor: row r of matrix `number`, which depends on these numbers and the seed alone. */
void wr_synth_row(float *row, uint64_t n, uint64_t seed, uint32_t number, uint64_t r, float divisor);
/* Tests replace the device that engines are opened with; NULL: the CPU. */
extern void (*wr_engine_device)(struct wr_device *);

#endif
