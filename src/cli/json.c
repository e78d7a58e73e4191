/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <math.h>
#include <string.h>
#include "base/utf8.h"

static int dump(const char *bytes, size_t n, void *out)
{
    wr_cli_put(out, bytes, n);
    return 0;
}

void wr_cli_json_value(struct wr_cli_out *out, const json_t *value)
{
    if (value)
        json_dump_callback(value, dump, out, JSON_ENCODE_ANY);
    else
        wr_cli_put(out, "null", 4);
}

/* The member's separator follows from what was written last: '{' opens the object. */
static void member(struct wr_cli_out *out, const char *name)
{
    /* A member never ends in '{', so the last byte tells whether one came before; the buffer holds it unless it was just drained. */
    bool first = out->n > 0 && out->buffer[out->n - 1] == '{';
    wr_cli_printf(out, "%s\"%s\": ", first ? "" : ", ", name);
}

void wr_cli_json_begin(struct wr_cli_out *out)
{
    (void)wr_cli_flush(out, NULL);
    wr_cli_put(out, "{", 1);
}

void wr_cli_json_add(struct wr_cli_out *out, const char *name, json_t *value)
{
    member(out, name);
    wr_cli_json_value(out, value);
    json_decref(value);
}

void wr_cli_json_u64(struct wr_cli_out *out, const char *name, uint64_t value)
{
    member(out, name);
    wr_cli_printf(out, "%llu", (unsigned long long)value);
}

void wr_cli_json_ids(struct wr_cli_out *out, const char *name, const int32_t *ids, size_t n)
{
    member(out, name);
    wr_cli_put(out, "[", 1);
    for (size_t i = 0; i < n; i++) wr_cli_printf(out, i ? ", %d" : "%d", ids[i]);
    wr_cli_put(out, "]", 1);
}

void wr_cli_json_end(struct wr_cli_out *out) { wr_cli_put(out, "}\n", 2); }

json_t *wr_cli_json_text(const char *bytes, size_t n)
{
    json_t *value = json_stringn(bytes, n);
    if (value) return value;
    size_t needed = wr_utf8_sanitize((const uint8_t *)bytes, n, NULL);
    struct wr_ledger ledger;
    wr_ledger_init(&ledger);
    char *copy = wr_mem_alloc(&ledger, WR_ACCOUNT_TEXT, needed, NULL);
    if (!copy) return NULL;
    wr_utf8_sanitize((const uint8_t *)bytes, n, copy);
    value = json_stringn(copy, needed);
    wr_mem_free(copy);
    return value;
}

json_t *wr_cli_json_string(const char *text) { return text ? wr_cli_json_text(text, strlen(text)) : json_null(); }
json_t *wr_cli_json_rate(double rate) { return isfinite(rate) && rate > 0 ? json_real(rate) : json_null(); }
