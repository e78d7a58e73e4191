/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people give as a model that is none: other formats, archives, and what a download left that went wrong. Told by the first bytes alone, so
 * that the message can say what to do; nothing of such a file is parsed.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/utf8.h"
#include "format/index.h"

#define HEAD_BYTES 512

#define UNPACK "; unpack it and give the .gguf file in it"
#define PYTORCH "a PyTorch checkpoint, which can run code when it is read; give a GGUF file of the model"

static const struct {
    uint16_t at;
    uint8_t n;
    const char *bytes;
    int code;
    const char *what;
} kinds[] = {
    {0, 4, "PK\3\4", WEIR_E_FORMAT, "a zip archive" UNPACK},
    {0, 2, "\x80\2", WEIR_E_UNSUPPORTED, PYTORCH},
    {0, 2, "\x80\3", WEIR_E_UNSUPPORTED, PYTORCH},
    {0, 2, "\x80\4", WEIR_E_UNSUPPORTED, PYTORCH},
    {0, 2, "\x80\5", WEIR_E_UNSUPPORTED, PYTORCH},
    {0, 2, "\x1f\x8b", WEIR_E_FORMAT, "a gzip file" UNPACK},
    {0, 4, "\x28\xb5\x2f\xfd", WEIR_E_FORMAT, "a zstd file" UNPACK},
    {0, 6, "\xfd\x37zXZ\0", WEIR_E_FORMAT, "an xz file" UNPACK},
    {0, 3, "BZh", WEIR_E_FORMAT, "a bzip2 file" UNPACK},
    {0, 6, "7z\xbc\xaf\x27\x1c", WEIR_E_FORMAT, "a 7z archive" UNPACK},
    {0, 4, "Rar!", WEIR_E_FORMAT, "a rar archive" UNPACK},
    {257, 5, "ustar", WEIR_E_FORMAT, "a tar archive" UNPACK},
    {0, 4, "lmgg", WEIR_E_UNSUPPORTED, "a GGML file of 2023, from before GGUF; give a GGUF file of the model"},
    {0, 4, "fmgg", WEIR_E_UNSUPPORTED, "a GGMF file of 2023, from before GGUF; give a GGUF file of the model"},
    {0, 4, "tjgg", WEIR_E_UNSUPPORTED, "a GGJT file of 2023, from before GGUF; give a GGUF file of the model"},
    {0, 4, "algg", WEIR_E_UNSUPPORTED, "a GGLA adapter of 2023, from before GGUF; give a GGUF file of a model"},
};

static bool is_text(const char *head, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)head[i] < 0x20 && !isspace((unsigned char)head[i])) return false;
    return n > 0 && n - wr_utf8_valid_prefix((const uint8_t *)head, n) < 4; /* the last character may be cut */
}

static int refuse(const struct wr_file *file, weir_err *err, int code, const char *what)
{
    return wr_catalog_fail(file->path, err, code, NULL, NULL, "not a GGUF file, but %s", what);
}

/* u64 length of a JSON object, the object, the data. */
static int refuse_safetensors(const struct wr_file *file, const char *head, size_t n, weir_err *err)
{
    uint64_t header = 0;
    memcpy(&header, head, n < 8 ? n : 8);
    if (n < 8 || header < 2 || header > file->bytes - 8)
        return wr_catalog_fail(file->path, err, WEIR_E_FORMAT, NULL, NULL,
            "a damaged safetensors file: the header's length is %" PRIu64 ", the file has %" PRIu64 " bytes; give a GGUF file of the model", header,
            file->bytes);
    return wr_catalog_fail(file->path, err, WEIR_E_UNSUPPORTED, NULL, NULL, "a safetensors file, which weir does not read; give a GGUF file of the model");
}

/* What servers and version control put in the place of a file. */
static int refuse_text(const struct wr_file *file, const char *head, weir_err *err)
{
    const char *size = strstr(head, "\nsize "), *text = head;
    char line[41];
    if (strncmp(head, "version https://git-lfs", 23) == 0)
        return wr_catalog_fail(file->path, err, WEIR_E_FORMAT, NULL, NULL, "a Git LFS pointer to the model (%llu bytes), not the model; run git lfs pull",
            size != NULL ? strtoull(size + 6, NULL, 10) : 0);
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
    while (isspace((unsigned char)*text)) text++;
    if (strncasecmp(text, "<!doctype", 9) == 0 || strncasecmp(text, "<html", 5) == 0 || strncmp(text, "<?xml", 5) == 0)
        return refuse(file, err, WEIR_E_FORMAT, "a web page, which the server sent in place of the model; check the address and download it again");
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\r\n"), text);
    return wr_catalog_fail(file->path, err, WEIR_E_FORMAT, NULL, NULL,
        "not a GGUF file, but text that begins '%s'; check the address and download it again if it is what a server said", line);
}

int wr_catalog_foreign(const struct wr_file *file, weir_err *err)
{
    char head[HEAD_BYTES + 1] = "";
    size_t n = file->bytes < HEAD_BYTES ? file->bytes : HEAD_BYTES, n_path = strlen(file->path), n_zeros = 0;
    int code = wr_file_read(file, 0, head, n, err);
    if (code != 0) return code;
    bool text = is_text(head, n);
    if ((n > 8 && head[8] == '{' && !is_text(head, 8)) || (n_path > 12 && strcmp(file->path + n_path - 12, ".safetensors") == 0 && !text))
        return refuse_safetensors(file, head, n, err);
    if (memcmp(head, "PK\3\4", 4) == 0 && memmem(head, n, "data.pkl", 8) != NULL) return refuse(file, err, WEIR_E_UNSUPPORTED, PYTORCH);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (n >= kinds[i].at + kinds[i].n && memcmp(head + kinds[i].at, kinds[i].bytes, kinds[i].n) == 0)
            return refuse(file, err, kinds[i].code, kinds[i].what);
    if (text) return refuse_text(file, head, err);
    while (n_zeros < n && head[n_zeros] == 0) n_zeros++;
    if (n_zeros == n) return refuse(file, err, WEIR_E_FORMAT, "zeros: perhaps a download that did not finish; download it again");
    const uint8_t *b = (const uint8_t *)head;
    return wr_catalog_fail(
        file->path, err, WEIR_E_FORMAT, NULL, NULL, "not a GGUF file: it begins with bytes %02x %02x %02x %02x; give a .gguf model", b[0], b[1], b[2], b[3]);
}
