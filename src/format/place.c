/* SPDX-License-Identifier: Apache-2.0 */
/* Which file a MODEL means: itself, or the one model in a folder. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "format/index.h"

#define ENDING ".gguf"

static bool ends_in(const char *name, const char *ending)
{
    size_t n = strlen(name), n_ending = strlen(ending);
    return n >= n_ending && strcmp(name + n - n_ending, ending) == 0;
}

#define NAMES_KEPT 4
#define NAMES_SHOWN 90 /* bytes */

/* The first few of the names, in their order. */
struct names {
    uint32_t n;
    char name[NAMES_KEPT][256];
};

static void add_name(struct names *names, const char *name)
{
    uint32_t at = 0;
    while (at < names->n && strcmp(names->name[at], name) < 0) at++;
    if (at == NAMES_KEPT || (at < names->n && strcmp(names->name[at], name) == 0)) return;
    if (names->n < NAMES_KEPT) names->n++;
    memmove(names->name[at + 1], names->name[at], (names->n - 1 - at) * sizeof names->name[0]);
    memcpy(names->name[at], name, strlen(name) + 1);
}

static const char *list_names(const struct names *names, char text[NAMES_SHOWN + sizeof ", ..."])
{
    size_t n = 0;
    for (uint32_t i = 0; i < names->n; i++) {
        const char *name = names->name[i];
        size_t length = strlen(name);
        if (i == NAMES_KEPT - 1 || (i > 0 && n + 2 + length > NAMES_SHOWN)) { /* there may be more */
            snprintf(text + n, sizeof ", ...", ", ...");
            break;
        }
        if (length > NAMES_SHOWN) name += length - NAMES_SHOWN; /* the ends of long names are what tells them apart */
        n += (size_t)snprintf(text + n, NAMES_SHOWN + 1 - n, "%s%s", i > 0 ? ", " : "", name);
    }
    return text;
}

/* A d_name is a whole string of up to 255 bytes. */
static void look_at(const char *name, struct names *models, struct names *tensors, struct names *others)
{
    char first[256];
    if (name[0] == '.') return;
    memcpy(first, name, strlen(name) + 1);
    if (ends_in(name, ENDING)) {
        struct wr_part_name part = wr_part_name_of(name);
        if (part.named) wr_part_name_set(first, &part, 0); /* a split model counts once */
        add_name(models, first);
    } else {
        add_name(ends_in(name, ".safetensors") || ends_in(name, ".safetensors.index.json") ? tensors : others, first);
    }
}

int wr_model_locate(char *out, const char *model, weir_err *err)
{
    struct names models = {0}, tensors = {0}, others = {0};
    struct stat st;
    char text[NAMES_SHOWN + sizeof ", ..."];
    size_t n = strlen(model);
    if (n >= WR_PATH_BYTES) return wr_err_errno(err, WEIR_E_OPEN, ENAMETOOLONG, "cannot open %s", wr_file_label(model));
    memcpy(out, model, n + 1);
    if (stat(model, &st) != 0 || !S_ISDIR(st.st_mode)) return 0; /* opening it says what is wrong */

    DIR *folder = opendir(model);
    if (folder == NULL) return wr_err_errno(err, WEIR_E_OPEN, errno, "cannot open the folder %s", wr_file_label(model));
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) look_at(entry->d_name, &models, &tensors, &others);
    closedir(folder);
    if (models.n > 1) return wr_catalog_fail(model, err, WEIR_E_OPEN, NULL, NULL, "the folder holds several models, name one: %s", list_names(&models, text));
    if (models.n == 0 && tensors.n > 0)
        return wr_catalog_fail(model, err, WEIR_E_UNSUPPORTED, NULL, NULL,
            "the folder holds a safetensors model (%s), which weir does not read; give a GGUF file of it", list_names(&tensors, text));
    if (models.n == 0 && others.n == 0) return wr_catalog_fail(model, err, WEIR_E_OPEN, NULL, NULL, "the folder is empty; name a .gguf file");
    if (models.n == 0)
        return wr_catalog_fail(model, err, WEIR_E_OPEN, NULL, NULL, "the folder holds no .gguf file, but %s; name a .gguf file", list_names(&others, text));
    if (n + 1 + strlen(models.name[0]) >= WR_PATH_BYTES) return wr_err_errno(err, WEIR_E_OPEN, ENAMETOOLONG, "cannot open %s", models.name[0]);
    snprintf(out + n, WR_PATH_BYTES - n, "%s%s", n > 0 && model[n - 1] == '/' ? "" : "/", models.name[0]);
    return 0;
}
