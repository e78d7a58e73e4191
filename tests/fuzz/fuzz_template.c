/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a chat template, with the variables that follow a NUL as JSON (a conversation if there are none): an error or a
 * rendering, and no memory kept. Small limits, so that a run is quick: the account ends before the interpreter's own bounds.
 */
#include <stdlib.h>
#include <string.h>
#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char conversation[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"\\u00e4 b\\n<c>\"}, "
        "{\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [2.5, true]}}}]}], \"add_generation_prompt\": true, "
        "\"n\": 3, \"e\": [], "
        "\"strftime_now\": 0}";
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size;
    struct wr_ledger ledger;
    struct wr_template *t = NULL;
    weir_err err = {0};
    char *out = NULL;
    size_t n_out = 0;
    wr_ledger_init(&ledger);
    wr_ledger_limit(&ledger, WR_ACCOUNT_TEXT, (uint64_t)8 << 20);
    json_t *vars = nul ? json_loadb((const char *)nul + 1, size - n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!vars) vars = json_loads(conversation, 0, NULL);
    int code = wr_template_open(&t, (const char *)data, n, &ledger, &err);
    if (code) {
        if (code != err.code || t) abort();
    } else {
        code = wr_template_render(t, vars, &ledger, &out, &n_out, &err);
        if (code ? code != err.code || out : strlen(out) > n_out || out[n_out] != 0) abort();
    }
    wr_mem_free(out);
    wr_template_close(t);
    json_decref(vars);
    if (wr_ledger_used(&ledger, WR_ACCOUNT_TEXT)) abort();
    return 0;
}
