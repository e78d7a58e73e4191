/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"

_Static_assert((int)WEIR_KV_F16 == WR_KV_F16 && (int)WEIR_KV_F32 == WR_KV_F32 && (int)WEIR_KV_Q8_0 == WR_KV_Q8_0 && (int)WEIR_KV_K8V4 == WR_KV_K8V4,
    "the types of both headers are the same");

#ifndef WR_PROCESS_MIB
#define WR_PROCESS_MIB 12
#endif

void weir_options_init(weir_options *o)
{
    *o = (weir_options){.size = sizeof *o,
        .io = "auto",
        .kv_disk_bytes = WEIR_AUTO,
        .pin_bytes = WEIR_AUTO,
        .ring_bytes = WEIR_AUTO,
        .extent_bytes = WEIR_AUTO,
        .process_bytes = (uint64_t)WR_PROCESS_MIB << 20};
}

#define MAX_THREADS 256 /* scratch each, and those that have a CPU some 11 KiB of stack, which is the process account's */

static int number(const char *name, const char *value, uint64_t min, uint64_t max, uint32_t *out, weir_err *err)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || n < min || n > max)
        return wr_err(err, WEIR_E_USAGE, "--%s: '%s' is not a whole number from %llu to %llu", name, value, (unsigned long long)min, (unsigned long long)max);
    *out = (uint32_t)n;
    return 0;
}

static int size(const char *name, const char *value, uint64_t *out, weir_err *err)
{
    int rc = weir_parse_size(value, out, err);
    return rc < 0 ? wr_err_prefix(err, rc, "--%s", name) : 0;
}

static int choice(const char *name, const char *value, const char *const *names, int *out, weir_err *err)
{
    char all[128] = "";
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], value) == 0) {
            *out = i;
            return 0;
        }
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return wr_err(err, WEIR_E_USAGE, "--%s: '%s' is not one of %s", name, value, all);
}

static int word(const char *name, const char *value, char *out, size_t bytes, weir_err *err)
{
    size_t n = strlen(value);
    if (n >= bytes) return wr_err(err, WEIR_E_USAGE, "--%s: '%s' is not known", name, value);
    memcpy(out, value, n + 1);
    return 0;
}

static int path_of(const char *name, const char *value, char *out, size_t bytes, weir_err *err)
{
    if (value[0] == '\0' || strlen(value) >= bytes) return wr_err(err, WEIR_E_USAGE, "--%s: the name is %s", name, value[0] == '\0' ? "empty" : "too long");
    return word(name, value, out, bytes, err);
}

static int no_such_level(const char *value, weir_err *err)
{
    char known[128] = "";
    const char *name;
    for (uint32_t i = 0; wr_kernels_level(i, &name, NULL) != NULL; i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", name);
    }
    return wr_err(err, WEIR_E_USAGE, "--cpu: '%s' is not a CPU level (%s)", value, known);
}

static const char *const spec_names[] = {[WEIR_SPEC_AUTO] = "auto", [WEIR_SPEC_OFF] = "off", [WEIR_SPEC_NGRAM] = "ngram", [WEIR_SPEC_DRAFT] = "draft", NULL};

const char *wr_spec_name(enum weir_spec spec) { return spec_names[spec]; }

int weir_options_set(weir_options *o, const char *name, const char *value, weir_err *err)
{
    static const char *const direct_names[] = {"auto", "on", "off", NULL}, *const bool_names[] = {"off", "on", NULL};
    int i = 0, rc;
    if (strcmp(name, "memory") == 0) {
        rc = size(name, value, &o->memory_bytes, err);
        if (rc == 0 && o->memory_bytes == 0) return wr_err(err, WEIR_E_USAGE, "--memory: 0 bytes are no budget; without the option it is what is available");
        return rc;
    }
    if (strcmp(name, "ctx") == 0) return number(name, value, 0, 1u << 31, &o->n_ctx, err);
    if (strcmp(name, "threads") == 0) return number(name, value, 0, MAX_THREADS, &o->n_threads, err);
    if (strcmp(name, "chunk") == 0) return number(name, value, 0, WR_MAX_CHUNK, &o->n_chunk, err);
    if (strcmp(name, "pin") == 0) return size(name, value, &o->pin_bytes, err);
    if (strcmp(name, "ring") == 0) return size(name, value, &o->ring_bytes, err);
    if (strcmp(name, "extent") == 0) return size(name, value, &o->extent_bytes, err);
    if (strcmp(name, "kv-disk") == 0) return size(name, value, &o->kv_disk_bytes, err);
    if (strcmp(name, "kv-dir") == 0) return path_of(name, value, o->kv_dir, sizeof o->kv_dir, err);
    if (strcmp(name, "context") == 0 && value[0] != '\0' && value[strspn(value, "0123456789")] == '\0') /* elsewhere the option is a number of positions */
        return wr_err(err, WEIR_E_USAGE, "--context is a file (the one in this folder is ./%s); the size of the context is -c %s", value, value);
    if (strcmp(name, "context") == 0) return path_of(name, value, o->context, sizeof o->context, err);
    if (strcmp(name, "save-context") == 0) return path_of(name, value, o->save_context, sizeof o->save_context, err);
    if (strcmp(name, "kv") == 0) {
        const char *names[WR_N_KV_TYPES + 1] = {NULL};
        for (int type = 0; type < WR_N_KV_TYPES; type++) names[type] = wr_kv_name((enum wr_kv_type)type);
        rc = choice(name, value, names, &i, err);
        if (rc == 0) o->kv = (enum weir_kv)i;
        return rc;
    }
    if (strcmp(name, "direct") == 0) {
        rc = choice(name, value, direct_names, &i, err);
        if (rc == 0) o->direct = i == 0 ? WEIR_DIRECT_AUTO : i == 1 ? WEIR_DIRECT_ON : WEIR_DIRECT_OFF;
        return rc;
    }
    if (strcmp(name, "precise") == 0) {
        rc = choice(name, value, bool_names, &i, err);
        if (rc == 0) o->precise = i == 1;
        return rc;
    }
    if (strcmp(name, "spec") == 0) {
        rc = choice(name, value, spec_names, &i, err);
        if (rc == 0) o->spec = (enum weir_spec)i;
        return rc;
    }
    if (strcmp(name, "draft") == 0) return path_of(name, value, o->draft, sizeof o->draft, err);
    if (strcmp(name, "spec-k") == 0) return number(name, value, 1, WR_SPEC_MOST, &o->spec_k, err);
    if (strcmp(name, "spec-tree") == 0) return number(name, value, 1, WR_SPEC_MOST, &o->spec_tree, err);
    if (strcmp(name, "io") == 0) {
        const struct wr_io_ops *io = wr_io_find(value);
        if (io == NULL || (io->diagnostic && strcmp(value, "auto") != 0))
            return wr_err(err, WEIR_E_USAGE, "--io: '%s' is not one of auto, uring, pread, mmap", value);
        return word(name, value, o->io, sizeof o->io, err);
    }
    if (strcmp(name, "cpu") == 0) {
        if (wr_kernels_best(value) == NULL) return no_such_level(value, err);
        return word(name, value, o->isa, sizeof o->isa, err);
    }
    return wr_err(err, WEIR_E_USAGE, "there is no option --%s", name);
}

void weir_sampling_init(weir_sampling *s)
{
    *s = (weir_sampling){.size = sizeof *s, .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f, .penalty_last = 64};
}
