/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat templates: the part of Jinja2 that published templates use (docs/TEMPLATES.md), rendered as
 * transformers does (sandboxed, trim_blocks, lstrip_blocks, no autoescape, loop controls). A construct that is not
 * known is an error that names it and its line, at open, never a silent difference. Values are jansson's.
 */
#ifndef WR_TEXT_TEMPLATE_H
#define WR_TEXT_TEMPLATE_H

#include <jansson.h>
#include "base/mem.h"

struct wr_template;
/* Parses the whole template: WEIR_E_UNSUPPORTED "chat template line 3: filter 'frobnicate' is not supported", WEIR_E_FORMAT for a syntax error.
 * Text is copied. Memory: TEXT. */
int wr_template_open(struct wr_template **, const char *source, size_t n, struct wr_ledger *, weir_err *);
void wr_template_close(struct wr_template *);
/* vars: an object of the template's variables (messages, add_generation_prompt, bos_token, eos_token, ...). *out: NUL-terminated, TEXT, freed with
 * wr_mem_free. WEIR_E_TEMPLATE: raise_exception's own words, or a run-time error (line named). Output, steps, nesting and memory are bounded
 * (hostile templates end). strftime_now tells the local time, or that of a number (seconds since 1970) among vars under this name. */
int wr_template_render(const struct wr_template *, const json_t *vars, struct wr_ledger *, char **out, size_t *n, weir_err *);

#endif
