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

/* I/O engines, CPU levels and weight formats, for help texts: name i and one line; NULL past the end. */
const char *wr_tool_io_engine(uint32_t i, const char **description);
const char *wr_tool_level(uint32_t i, bool *available);
const char *wr_tool_format(uint32_t i);

#endif
