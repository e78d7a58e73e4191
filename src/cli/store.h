/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where models lie on this machine, and the names that MODEL may be instead of a path:
 *
 *   weir's folder   $XDG_CACHE_HOME/weir/models or ~/.cache/weir/models            NAME
 *   ollama's store  $OLLAMA_MODELS, or ~/.ollama/models and the service's folder   ollama:[HOST/][NAMESPACE/]NAME[:TAG]
 *   the hub's cache $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME or ~/.cache, huggingface/hub    hf:ORG/REPO[:FILE or quantization]
 *
 * What is found there was written by other programs: sizes, names and digests are checked, folders are walked to a fixed depth.
 */
#ifndef WR_CLI_STORE_H
#define WR_CLI_STORE_H

#include "cli/cli.h"

struct wr_cli_found {  /* valid during the call */
    const char *store; /* "weir", "ollama", "hub" */
    const char *name;  /* as MODEL takes it */
    const char *path;  /* of the model, or of what is broken */
    const char *error; /* why it cannot be a model; NULL: nothing is known against it */
};
typedef int wr_cli_found_fn(void *user, const struct wr_cli_found *, weir_err *);
/* Everything that is found, store by store, in no order. An error is one of `fn` or of memory; what is broken is an entry. */
int wr_cli_store_each(struct wr_cli *, wr_cli_found_fn *fn, void *user, weir_err *);
/* The folders that are looked into: i-th, its store's name and path[WR_CLI_PATH]; false past the last. */
#define WR_CLI_PATH 4096
bool wr_cli_store_folder(size_t i, const char **store, char *path);

/* The path that `name` stands for: itself, when it is a path. path[WR_CLI_PATH]. */
int wr_cli_store_resolve(struct wr_cli *, const char *name, char *path, weir_err *);

#endif
