/* SPDX-License-Identifier: Apache-2.0 */
/* What context.c, which knows of which model a saved context is, and context_blocks.c, which moves tokens and blocks, share; nobody else includes it. */
#ifndef WR_ENGINE_CONTEXT_H
#define WR_ENGINE_CONTEXT_H

#include "engine/engine.h"

#define TILE WR_KVFILE_TILE

/* Opens a file and refuses one that is not of this model; NULL tokenizer: that is not known yet. */
int wr_context_open_file(weir_plan *, struct wr_kvfile *, const char *path, bool writable, const uint32_t *tokenizer, weir_err *);
int wr_context_create_file(weir_engine *, struct wr_kvfile *, const char *path, weir_err *);
bool wr_context_same_file(const char *a, const char *b);
struct wr_kv_places wr_context_places(const struct wr_kvfile *); /* of the full groups' blocks */
/* The weights that this process has read by now, whichever file it is: against those that the file knows, WEIR_E_MISMATCH; and to it, where it does not. */
int wr_context_check_weights(weir_engine *, struct wr_kvfile *, weir_err *);
int wr_context_note_weights(weir_engine *, struct wr_kvfile *, weir_err *);
/* The error that tensor w has other values than when the file was saved. */
int wr_context_other_values(weir_engine *, const struct wr_kvfile *, uint32_t w, weir_err *);
/* What is copied from one saved context to another is still of the model that the first was saved with: the second says so where this one's weights are not
 * read yet, or else a difference that shows later would be forgotten. */
int wr_context_inherit_weights(const struct wr_kvfile *from, struct wr_kvfile *to, weir_err *);
/* Of the embedding rows of a group's tokens; 0 where they are not compared. Only the first WR_CONTEXT_ROWS groups are. */
#define WR_CONTEXT_ROWS 16
int wr_context_rows_crc(weir_engine *, uint32_t tile, const int32_t *ids, uint32_t n, uint32_t *crc, weir_err *);

#endif
