/* SPDX-License-Identifier: Apache-2.0 */
/* What the command needs beyond weir.h: inspecting files, synthetic models, the tape of a plan. Not installed. */
#ifndef WR_ENGINE_TOOLS_H
#define WR_ENGINE_TOOLS_H

#include <jansson.h>
#include <weir/weir.h>

/* {"arch", "version", "file_bytes", "weight_bytes", "tensors": [{"name","type","shape":[ne0,...],"offset","bytes"}], "metadata": {key: value}}; arrays
 * longer than 64 elements appear as {"type": "...", "count": n}. check: also decodes every tensor and refuses (WEIR_E_NONFINITE) one with a
 * value that is not finite. The caller decrefs. */
int wr_tool_inspect(const char *path, bool check, const weir_options *, json_t **out, weir_err *);

/* A saved context (docs/CONTEXT_FILE.md): {"context_version", "model", "arch", "kv", "tokens", ...}, see JSON.md; its records are read and compared; check: its
 * blocks too. The caller decrefs. */
int wr_tool_inspect_context(const char *path, bool check, const weir_options *, json_t **out, weir_err *);
bool wr_tool_is_context(const char *path);

/* What a list of models says of one; what is not known is empty or 0. */
typedef struct wr_about {
    char arch[64];
    char quantization[16]; /* the weight format with the most bytes */
    uint64_t file_bytes;   /* of all its files */
    uint64_t n_weights;
} wr_about;
/* Reads headers. 0: weir runs this model; otherwise *err says why not, and *about holds what could be read before. */
int wr_tool_about(const char *path, wr_about *about, weir_err *err);

typedef struct wr_synth_options {
    const char *shape; /* "1b", "8b", ...: see wr_tool_synth_shape */
    const char *out;
    const char *type; /* "q4_0" */
    uint32_t n_layer; /* 0: the shape's */
    uint32_t n_vocab; /* 32000 */
    uint64_t seed;
    weir_progress_fn *progress;
    void *progress_user;
    const volatile int *cancel;
    void (*began)(const char *temporary_path); /* may be NULL: the file that must go if the process is killed; NULL path: it is gone */
} wr_synth_options;
int wr_tool_synth(const wr_synth_options *, weir_err *);
/* Shape i: its name and one line about it; NULL past the end. */
const char *wr_tool_synth_shape(uint32_t i, const char **description);

typedef struct wr_probe_options {
    const char *folder;          /* the disk that is measured is the one that holds it */
    double seconds;              /* in all, about; a slow disk takes longer */
    const weir_options *options; /* isa, log, progress, cancel */
} wr_probe_options;
/* Measures disk, memory and compute, and stores the profile. The object is docs/JSON.md's, without warnings; the caller decrefs. Nothing of the file
 * that is read is left, however the process ends: it has no name. */
int wr_tool_probe(const wr_probe_options *, json_t **out, weir_err *);

/* What weir_session_generate will refuse, refused before anything is loaded: sampling parameters and stop strings. */
int wr_tool_check_generate(const weir_sampling *, const char *const *stops, size_t n_stops, uint32_t n_vocab, weir_err *);
/* Compiles the model's chat template: what weir_chat_render would refuse of it. *there: whether there is one. */
int wr_tool_check_chat(const char *model_path, const weir_options *, bool *there, weir_err *);

/* Entry i of the tape of a decode pass, in order: false past the end. `file`: part of a split model, from 0. */
bool wr_tool_tape(const weir_plan *, uint64_t i, uint32_t *file, uint64_t *offset, uint64_t *bytes, bool *streamed);

/* What the field does instead of the stripe (memory/control.h): name i and one line; NULL past the end. */
const char *wr_tool_control(uint32_t i, const char **description);
/* Makes an open plan that of a control, in the memory that the stripe would have; an engine opened with it gives the same logits. For measuring.
 * WEIR_E_USAGE for another name, and where everything fits. */
int wr_tool_plan_control(weir_plan *, const char *name, weir_err *);

/* ---- weir bench ---- */

typedef struct wr_bench_options {
    const char *what;    /* a name of bench.def */
    const char *model;   /* its path, where `what` takes one; NULL: none is given */
    weir_options engine; /* memory_bytes bounds the whole process here too */
    /* Lists, separated by commas; NULL: the defaults of `what`. */
    const char *types, *shapes, *rows, *depths, *kv;
    const char *control;                       /* of decode: see wr_tool_control; NULL: the first */
    uint32_t n_runs;                           /* measured; half as many before them warm up */
    double seconds;                            /* of soak */
    void (*began)(const char *temporary_path); /* as in wr_synth_options */
} wr_bench_options;

typedef struct wr_bench_row {
    char shape[48], format[16];
    uint64_t m;             /* rows of activations */
    const char *unit;       /* of rate and ceiling: "ops/s" (multiply-adds x 2), "bytes/s", "tokens/s" */
    double rate, ceiling;   /* of the median run, end to end; what the machine could do at most, 0: not known */
    const char *bound;      /* what the ceiling is of: "compute", "memory", "disk"; NULL: not known */
    double median, best;    /* seconds of a run, end to end */
    double waited;          /* the share of the runs' time that threads were ready to run and other processes had their CPUs */
    double spread;          /* (90th - 10th percentile) / median of the runs; where one is more: the drift of the ceiling, `waited`, or WR_BENCH_LEAST_SPREAD */
    bool noisy;             /* the spread is so large that the rate says little */
    double seconds_compute; /* of the median run: what the ceiling is about */
    double seconds_end_to_end;
    uint64_t outputs, outputs_verified; /* how many there are, and how many were checked against double precision (and were right) */
    double max_rel_error;               /* the largest error / the largest output, of those verified */
    uint32_t threads;
    const char *isa;
    json_t *more; /* an object of further members, whole numbers of which are bytes; NULL: none. The row's owner decrefs it */
} wr_bench_row;
typedef int wr_bench_row_fn(void *user, const wr_bench_row *, weir_err *);
/* Measures, and calls `row` with each result. Notices go to engine.log. A wrong result is WEIR_E_FAIL, one that is not finite WEIR_E_NONFINITE. */
int wr_tool_bench(const wr_bench_options *, wr_bench_row_fn *row, void *user, weir_err *);
/* Entry i of bench.def: name, a line about it, and the options that it takes beside those of all, separated by blanks; NULL past the end. */
const char *wr_tool_bench_name(uint32_t i, const char **summary, const char **options);

/* I/O engines, CPU levels and weight formats, for help texts: name i and one line; NULL past the end. */
const char *wr_tool_io_engine(uint32_t i, const char **description);
const char *wr_tool_level(uint32_t i, bool *available);
const char *wr_tool_format(uint32_t i);

#endif
