/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store.h"
#include "base/part_name.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST_MAX (256u << 10)             /* real ones have 1 to 200 KiB */
#define MANIFEST_MEMORY (4u << 20)            /* for what it is parsed into, which takes up to a hundred times its bytes */
#define ENTRIES_MAX 20000u                    /* looked at in all: a folder that holds itself ends too */
#define HUB_DEPTH 3                           /* folders below a snapshot */
#define SMALL_FRAME __attribute__((noinline)) /* inlined, the paths of all of them would lie on the stack at once */
#define OLLAMA_HOST "registry.ollama.ai"
#define OLLAMA_NAMESPACE "library"

/* ---- paths ----------------------------------------------------------------------------- */

static bool join(char *out, const char *folder, const char *rest)
{
    int n = snprintf(out, WR_CLI_PATH, "%s/%s", folder, rest);
    return n > 0 && n < WR_CLI_PATH;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool below(char *out, const char *variable, const char *rest)
{
    const char *folder = environment(variable);
    return folder && join(out, folder, rest);
}

static bool below_cache(char *out, const char *rest)
{
    char cache[WR_CLI_PATH];
    return below(out, "XDG_CACHE_HOME", rest) || (below(cache, "HOME", ".cache") && join(out, cache, rest));
}

static bool weir_folder(char *out) { return below_cache(out, "weir/models"); }

static bool hub_folder(char *out)
{
    const char *given = environment("HF_HUB_CACHE");
    if (given) return snprintf(out, WR_CLI_PATH, "%s", given) < WR_CLI_PATH;
    return below(out, "HF_HOME", "hub") || below_cache(out, "huggingface/hub");
}

/* The i-th of ollama's folders. */
static bool ollama_folder(char *out, size_t i)
{
    const char *given = environment("OLLAMA_MODELS");
    if (given) return i == 0 && snprintf(out, WR_CLI_PATH, "%s", given) < WR_CLI_PATH;
    bool home = below(out, "HOME", ".ollama/models");
    if (home && i == 0) return true;
    return i == (home ? 1 : 0) && snprintf(out, WR_CLI_PATH, "/usr/share/ollama/.ollama/models") > 0;
}

bool wr_cli_store_folder(size_t i, const char **store, char *path)
{
    *store = "weir";
    if (weir_folder(path) && i-- == 0) return true;
    *store = "hub";
    if (hub_folder(path) && i-- == 0) return true;
    *store = "ollama";
    return ollama_folder(path, i);
}

static bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static bool is_there(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

/* A part of a name that becomes a part of a path: letters, digits, ". _ -" and, in a host, ":"; never "." or "..". */
static bool plain(const char *part, size_t n, const char *more)
{
    if (n == 0 || n > 200 || part[0] == '.') return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)part[i]) && !strchr("._-", part[i]) && !strchr(more, part[i])) return false;
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && !strcasecmp(text + n - m, end);
}

/* Whether path, the name of a .gguf file, is a further part of a split whose first part lies beside it. */
static bool further_part(const char *path)
{
    char first[WR_CLI_PATH];
    struct wr_part_name part = wr_part_name_of(path);
    if (part.no == 0) return false;
    memcpy(first, path, strlen(path) + 1);
    wr_part_name_set(first, &part, 0);
    return is_there(first);
}

/* ---- walking --------------------------------------------------------------------------- */

struct walk {
    struct wr_cli *cli;
    const char *store;
    wr_cli_found_fn *fn;
    void *user;
    weir_err *err;
    unsigned n_entries;
};

static int found(struct walk *walk, const char *name, const char *path, const char *error)
{
    return walk->fn(walk->user, &(struct wr_cli_found){walk->store, name, path, error}, walk->err);
}

/* The next entry that is not hidden; NULL at the end, or where enough was looked at. */
static const char *next(struct walk *walk, DIR *folder)
{
    struct dirent *entry;
    do entry = walk->n_entries < ENTRIES_MAX ? readdir(folder) : NULL;
    while (entry && entry->d_name[0] == '.');
    if (entry && ++walk->n_entries == ENTRIES_MAX) wr_cli_warn(walk->cli, "more than %u files and folders in the stores: the rest is not listed", ENTRIES_MAX);
    return entry ? entry->d_name : NULL;
}

/* A folder that cannot be read is an entry; one that is not there is nothing. */
static int open_folder(struct walk *walk, const char *path, const char *name, DIR **folder)
{
    *folder = opendir(path);
    if (*folder || errno == ENOENT || errno == ENOTDIR) return 0;
    weir_err why;
    wr_err_errno(&why, WEIR_E_OPEN, errno, "cannot read the folder");
    return found(walk, name, path, why.text);
}

/* ---- weir's folder --------------------------------------------------------------------- */

SMALL_FRAME static int walk_weir(struct walk *walk, const char *root)
{
    char path[WR_CLI_PATH];
    DIR *folder;
    const char *name;
    int code = open_folder(walk, root, "-", &folder);
    if (!folder) return code;
    while (code == 0 && (name = next(walk, folder))) {
        if (!join(path, root, name)) continue;
        if (!ends_with(name, ".gguf")) {
            if (is_folder(path)) code = found(walk, name, path, NULL);
        } else if (!further_part(path)) {
            char stem[256];
            size_t n = strlen(name) - strlen(".gguf");
            snprintf(stem, sizeof stem, "%.*s", (int)(strcmp(name + n, ".gguf") == 0 ? n : strlen(name)), name); /* NAME.GGUF is found by that alone */
            code = found(walk, stem, path, NULL);
        }
    }
    closedir(folder);
    return code;
}

/* ---- ollama ---------------------------------------------------------------------------- */

static int read_small_file(const char *path, size_t most, struct wr_ledger *ledger, char **bytes, size_t *n, weir_err *err)
{
    struct stat about;
    const char *label = wr_file_label(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "%s: cannot open", label);
    int code = 0;
    *bytes = NULL;
    *n = 0;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        code = wr_err(err, WEIR_E_OPEN, "%s: is not a regular file", label);
    else if ((uint64_t)about.st_size > most)
        code = wr_err(err, WEIR_E_FORMAT, "%s: has %lld bytes, at most %zu are read", label, (long long)about.st_size, most);
    else if (!(*bytes = wr_mem_alloc(ledger, WR_ACCOUNT_TEXT, most + 1, err)))
        code = WEIR_E_NOMEM;
    while (code == 0 && *n < most) {
        ssize_t got = read(fd, *bytes + *n, most - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) code = wr_err_errno(err, WEIR_E_READ, errno, "%s: cannot read", label);
        if (got <= 0) break;
        *n += (size_t)got;
    }
    close(fd);
    if (code) {
        wr_mem_free(*bytes);
        *bytes = NULL;
    }
    return code;
}

/* The one layer that is a model; what makes the layers something else is said. */
static int model_layer(const json_t *manifest, const char *label, const char **digest, json_int_t *size, weir_err *err)
{
    const json_t *layers = json_object_get(manifest, "layers");
    size_t n_models = 0, n_tensors = 0, n_adapters = 0;
    if (!json_is_array(layers)) return wr_err(err, WEIR_E_FORMAT, "%s: the manifest is not an object with layers; pull the model again", label);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        if (!type) continue;
        n_tensors += !strncmp(type, "application/vnd.ollama.image.tensor", 35);
        n_adapters += !strcmp(type, "application/vnd.ollama.image.adapter");
        if (strcmp(type, "application/vnd.ollama.image.model") != 0) continue;
        n_models++;
        *digest = json_string_value(json_object_get(layer, "digest"));
        *size = json_integer_value(json_object_get(layer, "size"));
    }
    if (n_tensors > 0) return wr_err(err, WEIR_E_UNSUPPORTED, "%s: the model is stored tensor by tensor, which weir does not read; get it as GGUF", label);
    if (n_models == 0) return wr_err(err, WEIR_E_UNSUPPORTED, "%s: no layer of the manifest is a model (a cloud model has none)", label);
    if (n_models > 1) return wr_err(err, WEIR_E_UNSUPPORTED, "%s: %zu layers of the manifest are models; weir runs one", label, n_models);
    if (n_adapters > 0) return wr_err(err, WEIR_E_UNSUPPORTED, "%s: the model has an adapter, which weir does not apply; merge it first", label);
    return 0;
}

/* From the manifest of a model to its file. */
static int read_manifest(struct wr_cli *cli, const char *root, const char *manifest, char *path, weir_err *err)
{
    const char *label = wr_file_label(manifest), *digest = NULL;
    json_int_t size = 0;
    char *bytes, name[96];
    size_t n;
    struct stat about;
    int code = read_small_file(manifest, MANIFEST_MAX, &cli->ledger, &bytes, &n, err);
    if (code) return code;
    json_error_t where;
    wr_ledger_limit(&cli->ledger, WR_ACCOUNT_TEXT, wr_ledger_used(&cli->ledger, WR_ACCOUNT_TEXT) + MANIFEST_MEMORY);
    json_t *json = json_loadb(bytes, n, 0, &where);
    wr_ledger_limit(&cli->ledger, WR_ACCOUNT_TEXT, UINT64_MAX); /* the model's plan sets one, later */
    wr_mem_free(bytes);
    if (json)
        code = model_layer(json, label, &digest, &size, err);
    else if (where.line < 1 || json_error_code(&where) == json_error_out_of_memory)
        code = wr_err(err, WEIR_E_FORMAT, "%s: the manifest takes more than %u MiB of memory; pull the model again", label, MANIFEST_MEMORY >> 20);
    else
        code = wr_err(err, WEIR_E_FORMAT, "%s: the manifest is not JSON (line %d); pull the model again", label, where.line);
    if (code == 0) {
        static const char hexadecimal[] = "0123456789abcdef";
        bool good = digest && !strncmp(digest, "sha256:", 7) && strlen(digest) == 7 + 64 && strspn(digest + 7, hexadecimal) == 64;
        if (!good) {
            code = wr_err(
                err, WEIR_E_FORMAT, "%s: the digest '%.80s' is not sha256: and 64 hexadecimal digits; pull the model again", label, digest ? digest : "");
        } else {
            snprintf(name, sizeof name, "blobs/sha256-%s", digest + 7);
            if (!join(path, root, name)) code = wr_err(err, WEIR_E_OPEN, "%s: the path of its model is too long", label);
        }
    }
    json_decref(json);
    wr_mem_trim();
    if (code) return code;
    if (stat(path, &about) != 0) return wr_err_errno(err, WEIR_E_OPEN, errno, "%s: pull the model again, its file %.30s... is missing", label, name);
    if (S_ISREG(about.st_mode) && size > 0 && about.st_size != size)
        return wr_err(
            err, WEIR_E_FORMAT, "%s: the model's file has %lld bytes and not %lld; pull the model again", label, (long long)about.st_size, (long long)size);
    return 0;
}

SMALL_FRAME static int found_manifest(struct walk *walk, const char *root, const char *path, const char *name[4])
{
    char full[1200], model[WR_CLI_PATH];
    bool host = strcmp(name[0], OLLAMA_HOST) != 0, space = host || strcmp(name[1], OLLAMA_NAMESPACE) != 0;
    snprintf(full, sizeof full, "ollama:%s%s%s%s%s:%s", host ? name[0] : "", host ? "/" : "", space ? name[1] : "", space ? "/" : "", name[2], name[3]);
    weir_err why;
    int bad = read_manifest(walk->cli, root, path, model, &why);
    return bad ? found(walk, full, path, why.text) : found(walk, full, model, NULL);
}

/* manifests/HOST/NAMESPACE/NAME/TAG: `depth` names are known, name[0..depth). at[WR_CLI_PATH]: grown on the way down, as it was at the end. */
static int walk_manifests(struct walk *walk, const char *root, char *at, const char *name[4], size_t depth)
{
    DIR *folder;
    int code = open_folder(walk, at, "ollama:", &folder);
    if (!folder) return code;
    while (code == 0 && (name[depth] = next(walk, folder))) {
        size_t n = strlen(at), more = strlen(name[depth]) + 2;
        if (n + more > WR_CLI_PATH) continue;
        at[n] = '/';
        memcpy(at + n + 1, name[depth], more - 1);
        if (depth < 3)
            code = walk_manifests(walk, root, at, name, depth + 1);
        else if (!is_folder(at))
            code = found_manifest(walk, root, at, name);
        at[n] = 0;
    }
    closedir(folder);
    return code;
}

/* Candidates as they fit into a message, "a, b and 3 more". */
struct choices {
    char text[120];
    size_t used, n, n_left_out;
};

static void add_choice(struct choices *c, const char *name)
{
    size_t n = strlen(name);
    c->n++;
    if (c->used + n + 16 > sizeof c->text) {
        c->n_left_out++;
        return;
    }
    c->used += (size_t)snprintf(c->text + c->used, sizeof c->text - c->used, "%s%s", c->used ? ", " : "", name);
}

static const char *show_choices(struct choices *c)
{
    if (c->n_left_out) snprintf(c->text + c->used, sizeof c->text - c->used, "%s%zu more", c->used ? " and " : "", c->n_left_out);
    return c->text;
}

/* The names in a folder. */
static void choices_in(const char *path, struct choices *choices)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    for (unsigned i = 0; folder && i < 1000 && (entry = readdir(folder)); i++)
        if (entry->d_name[0] != '.') add_choice(choices, entry->d_name);
    if (folder) closedir(folder);
}

static bool ollama_manifest(const char *root, const char *given, char *manifest, char *of_name)
{
    char text[1024], rest[1100];
    const char *host = OLLAMA_HOST, *space = OLLAMA_NAMESPACE, *tag = "latest", *name = text;
    if ((size_t)snprintf(text, sizeof text, "%s", given) >= sizeof text) return false;
    char *colon = strrchr(text, ':'), *slash;
    if (colon && !strchr(colon, '/')) {
        *colon = 0;
        tag = colon + 1;
    }
    if ((slash = strrchr(text, '/'))) {
        *slash = 0;
        name = slash + 1;
        space = text;
        if ((slash = strrchr(text, '/'))) {
            *slash = 0;
            space = slash + 1;
            host = text;
        }
    }
    if (!plain(host, strlen(host), ":") || !plain(space, strlen(space), "") || !plain(name, strlen(name), "") || !plain(tag, strlen(tag), "")) return false;
    if ((size_t)snprintf(rest, sizeof rest, "manifests/%s/%s/%s", host, space, name) >= sizeof rest) return false;
    return join(of_name, root, rest) && join(manifest, of_name, tag);
}

/* [HOST/][NAMESPACE/]NAME[:TAG] */
static int resolve_ollama(struct wr_cli *cli, const char *given, char *path, weir_err *err)
{
    char root[WR_CLI_PATH], manifest[WR_CLI_PATH], of_name[WR_CLI_PATH];
    struct choices tags = {.used = 0};
    for (size_t i = 0; ollama_folder(root, i); i++) {
        if (!ollama_manifest(root, given, manifest, of_name))
            return wr_err(err, WEIR_E_USAGE, "'ollama:%.80s' is no name: write ollama:NAME[:TAG], such as ollama:llama3.2:1b", given);
        if (is_there(manifest)) return read_manifest(cli, root, manifest, path, err);
        choices_in(of_name, &tags);
    }
    if (tags.n > 0) return wr_err(err, WEIR_E_OPEN, "ollama:%.80s: there is no such tag; there are: %s", given, show_choices(&tags));
    ollama_folder(root, 0);
    return wr_err(err, WEIR_E_OPEN, "ollama:%.60s: not in %s; 'ollama pull' gets it, 'weir list' shows what is there", given, wr_file_label(root));
}

/* ---- the hub's cache ------------------------------------------------------------------- */

/* The snapshot of a repository: the one that refs/main names, or the only one. */
SMALL_FRAME static int find_snapshot(struct wr_cli *cli, const char *repository, char *snapshot, weir_err *err)
{
    char path[WR_CLI_PATH], *revision = NULL;
    const char *label = wr_file_label(repository);
    size_t n = 0;
    if (join(path, repository, "refs/main") && is_there(path)) {
        int code = read_small_file(path, 200, &cli->ledger, &revision, &n, err);
        if (code) return code;
        while (n > 0 && isspace((unsigned char)revision[n - 1])) n--;
        revision[n] = 0;
        char rest[256];
        snprintf(rest, sizeof rest, "snapshots/%s", revision);
        bool good = plain(revision, n, "") && join(snapshot, repository, rest);
        wr_mem_free(revision);
        if (!good) return wr_err(err, WEIR_E_FORMAT, "%s: refs/main names no revision; download the model again", label);
        if (is_folder(snapshot)) return 0;
        return wr_err(err, WEIR_E_OPEN, "%s: its revision is not downloaded (%.70s is not there)", label, rest);
    }
    struct choices all = {.used = 0};
    if (join(path, repository, "snapshots")) choices_in(path, &all);
    if (all.n == 1 && join(snapshot, path, all.text) && is_folder(snapshot)) return 0;
    if (all.n > 1)
        return wr_err(err, WEIR_E_OPEN, "%s: several revisions and no refs/main; give the path of a file in snapshots: %s", label, show_choices(&all));
    return wr_err(err, WEIR_E_OPEN, "%s: nothing of the model is downloaded", label);
}

struct files { /* the .gguf files of a snapshot: names below it, NUL after NUL */
    struct walk *walk;
    char *names;
    size_t used, capacity, n;
    bool safetensors;
    struct { /* the folders from the snapshot down to where we are */
        dev_t device;
        ino_t inode;
    } way[HUB_DEPTH + 1];
};

/* Notes the folder as the last of `depth` on the way; false: we are in it already, by a link that leads back. */
static bool enter(struct files *files, const char *path, int depth)
{
    struct stat about;
    if (stat(path, &about) != 0) return false;
    for (int i = 0; i < depth; i++)
        if (files->way[i].device == about.st_dev && files->way[i].inode == about.st_ino) return false;
    files->way[depth].device = about.st_dev;
    files->way[depth].inode = about.st_ino;
    return true;
}

/* at: a folder of the snapshot, `depth` below it; skip: bytes of the snapshot's own path with its slash. */
SMALL_FRAME static int collect(struct files *files, const char *at, size_t skip, int depth, weir_err *err)
{
    char path[WR_CLI_PATH];
    DIR *folder = enter(files, at, depth) ? opendir(at) : NULL;
    const char *name;
    int code = 0;
    while (folder && code == 0 && (name = next(files->walk, folder))) {
        if (!join(path, at, name)) continue;
        if (ends_with(name, ".safetensors")) files->safetensors = true;
        if (ends_with(name, ".gguf")) {
            size_t n = strlen(path + skip) + 1;
            if (further_part(path)) continue;
            code = wr_cli_grow(&files->walk->cli->ledger, (void **)&files->names, &files->capacity, files->used, n, 1, err);
            if (code) break;
            memcpy(files->names + files->used, path + skip, n);
            files->used += n;
            files->n++;
        } else if (depth < HUB_DEPTH && is_folder(path)) {
            code = collect(files, path, skip, depth + 1, err);
        }
    }
    if (folder) closedir(folder);
    return code;
}

static bool word_character(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Whether a file's name has `word` in it, as a whole word: Q4_K is not in a name with Q4_K_M. */
static bool has_word(const char *file, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = file; n > 0 && (s = strcasestr(s, word)); s++)
        if ((s == file || !word_character(s[-1])) && !word_character(s[n])) return true;
    return false;
}

/* Of image encoders and the like, which go with a model and are none; they are found by their whole name only. */
static bool is_helper(const char *file)
{
    const char *slash = strrchr(file, '/');
    return !strncasecmp(slash ? slash + 1 : file, "mmproj", 6);
}

static int choose_file(const struct files *files, const char *given, const char *want, const char **file, weir_err *err)
{
    struct choices choices = {.used = 0}, all = {.used = 0};
    const char *name = files->names;
    for (size_t i = 0; i < files->n; i++, name += strlen(name) + 1) {
        if (want && !strcmp(name, want)) {
            *file = name;
            return 0;
        }
        add_choice(&all, name);
        if (is_helper(name) || (want && !has_word(name, want))) continue;
        if (choices.n == 0) *file = name;
        add_choice(&choices, name);
    }
    if (choices.n == 1) return 0;
    int shown = (int)(want ? (size_t)(want - 1 - given) : strlen(given));
    if (shown > 70) shown = 70;
    if (choices.n > 1) return wr_err(err, WEIR_E_USAGE, "hf:%.*s has several files; add :FILE or :QUANTIZATION: %s", shown, given, show_choices(&choices));
    if (files->n > 0) return wr_err(err, WEIR_E_OPEN, "hf:%.*s has no '%.40s'; there are: %s", shown, given, want ? want : "model", show_choices(&all));
    if (files->safetensors)
        return wr_err(err, WEIR_E_UNSUPPORTED, "hf:%.*s holds safetensors, which weir does not read yet; get the model as .gguf", shown, given);
    return wr_err(err, WEIR_E_OPEN, "hf:%.*s has no .gguf file", shown, given);
}

/* ORG/REPO as the cache's folder has it. n: bytes of `name`. */
static bool hub_repository(const char *name, size_t n, char *path)
{
    char root[WR_CLI_PATH], folder[512];
    const char *slash = memchr(name, '/', n);
    size_t org = slash ? (size_t)(slash - name) : 0, skip = slash ? org + 1 : 0;
    if (slash && !plain(name, org, "")) return false;
    if (!plain(name + skip, n - skip, "")) return false;
    snprintf(folder, sizeof folder, "models--%.*s%s%.*s", (int)org, name, slash ? "--" : "", (int)(n - skip), name + skip);
    return hub_folder(root) && join(path, root, folder);
}

/* ORG/REPO[:FILE or quantization] */
static int resolve_hub(struct wr_cli *cli, const char *given, char *path, weir_err *err)
{
    char repository[WR_CLI_PATH], snapshot[WR_CLI_PATH];
    const char *colon = strchr(given, ':'), *file = NULL;
    struct walk walk = {.cli = cli};
    struct files files = {.walk = &walk};
    if (!hub_repository(given, colon ? (size_t)(colon - given) : strlen(given), repository) || (colon && !colon[1]))
        return wr_err(err, WEIR_E_USAGE, "'hf:%.80s' is no name: write hf:ORG/REPO, hf:ORG/REPO:FILE.gguf or hf:ORG/REPO:Q4_K_M", given);
    if (!is_folder(repository))
        return wr_err(err, WEIR_E_OPEN, "hf:%.80s: not in the hub's cache, %s is not there; download it first", given, wr_file_label(repository));
    int code = find_snapshot(cli, repository, snapshot, err);
    if (code == 0) code = collect(&files, snapshot, strlen(snapshot) + 1, 0, err);
    if (code == 0) code = choose_file(&files, given, colon ? colon + 1 : NULL, &file, err);
    if (code == 0 && !join(path, snapshot, file)) code = wr_err(err, WEIR_E_OPEN, "hf:%.80s: the path is too long", given);
    wr_mem_free(files.names);
    return code;
}

SMALL_FRAME static int found_files(struct walk *walk, const char *name, const char *snapshot, const struct files *files)
{
    char full[WR_CLI_PATH], path[WR_CLI_PATH];
    const char *file = files->names;
    int code = 0;
    for (size_t i = 0; i < files->n && code == 0; i++, file += strlen(file) + 1) {
        if (!join(path, snapshot, file) || snprintf(full, sizeof full, files->n == 1 ? "%s" : "%s:%s", name, file) >= (int)sizeof full) continue;
        code = found(walk, full, path, NULL);
    }
    if (files->n == 0 && files->safetensors) code = found(walk, name, snapshot, "safetensors are not read yet; get the model as .gguf");
    return code;
}

SMALL_FRAME static int walk_hub(struct walk *walk, const char *root)
{
    char repository[WR_CLI_PATH], snapshot[WR_CLI_PATH], name[300];
    const char *folder_name;
    DIR *folder;
    int code = open_folder(walk, root, "hf:", &folder);
    if (!folder) return code;
    while (code == 0 && (folder_name = next(walk, folder))) {
        if (strncmp(folder_name, "models--", 8) != 0 || !join(repository, root, folder_name)) continue;
        const char *org = folder_name + 8, *rest = strstr(org, "--");
        if (rest)
            snprintf(name, sizeof name, "hf:%.*s/%s", (int)(rest - org), org, rest + 2);
        else
            snprintf(name, sizeof name, "hf:%s", org);
        weir_err why;
        struct files files = {.walk = walk};
        if (find_snapshot(walk->cli, repository, snapshot, &why)) {
            code = found(walk, name, repository, why.text);
            continue;
        }
        code = collect(&files, snapshot, strlen(snapshot) + 1, 0, walk->err);
        if (code == 0) code = found_files(walk, name, snapshot, &files);
        wr_mem_free(files.names);
    }
    closedir(folder);
    return code;
}

/* ---- all ------------------------------------------------------------------------------- */

int wr_cli_store_each(struct wr_cli *cli, wr_cli_found_fn *fn, void *user, weir_err *err)
{
    struct walk walk = {.cli = cli, .fn = fn, .user = user, .err = err};
    char root[WR_CLI_PATH], manifests[WR_CLI_PATH];
    const char *names[4];
    int code = 0;
    for (size_t i = 0; code == 0 && wr_cli_store_folder(i, &walk.store, root); i++) {
        if (!strcmp(walk.store, "weir"))
            code = walk_weir(&walk, root);
        else if (!strcmp(walk.store, "hub"))
            code = walk_hub(&walk, root);
        else if (join(manifests, root, "manifests"))
            code = walk_manifests(&walk, root, manifests, names, 0);
    }
    return code;
}

/* What was probably meant by a path that leads nowhere: a name of some store. false: nothing like it is there. */
static bool suggest(const char *name, char suggestion[128])
{
    char path[WR_CLI_PATH], of_name[WR_CLI_PATH], root[WR_CLI_PATH];
    if (strlen(name) > 100) return false;
    if (strchr(name, '/') && hub_repository(name, strcspn(name, ":"), path) && is_folder(path)) {
        snprintf(suggestion, 128, "hf:%s", name);
        return true;
    }
    for (size_t i = 0; ollama_folder(root, i); i++) {
        if (!ollama_manifest(root, name, path, of_name) || !is_there(path)) continue;
        snprintf(suggestion, 128, "ollama:%s", name);
        return true;
    }
    return false;
}

/* NAME of weir's folder; 1: found. */
static int in_weir_folder(const char *name, char *path)
{
    char root[WR_CLI_PATH], file[300];
    if (strchr(name, '/') || strlen(name) > 250 || !weir_folder(root)) return 0;
    snprintf(file, sizeof file, "%s.gguf", name);
    return (join(path, root, file) && is_there(path)) || (name[0] != '.' && join(path, root, name) && is_there(path));
}

/* The name function of wr_cli_nearest has no context. */
static const char *pair[2];
static const char *pair_name(size_t i) { return pair[i]; }

struct nearest {
    const char *word;
    char best[64];
};

static int keep_nearest(void *user, const struct wr_cli_found *found, weir_err *err)
{
    (void)err;
    struct nearest *nearest = user;
    pair[0] = nearest->best;
    pair[1] = found->name;
    if (wr_cli_nearest(nearest->word, pair_name, 2) == found->name) snprintf(nearest->best, sizeof nearest->best, "%s", found->name);
    return 0;
}

int wr_cli_store_resolve(struct wr_cli *cli, const char *name, char *path, weir_err *err)
{
    char root[WR_CLI_PATH], suggestion[128];
    if (!strncmp(name, "ollama:", 7)) return resolve_ollama(cli, name + 7, path, err);
    if (!strncmp(name, "hf:", 3)) return resolve_hub(cli, name + 3, path, err);
    if (strlen(name) >= WR_CLI_PATH) return wr_err(err, WEIR_E_OPEN, "the model's path has %zu bytes, %d are possible", strlen(name), WR_CLI_PATH - 1);
    struct stat about;
    bool missing = stat(name, &about) != 0 && errno == ENOENT;
    if (missing && in_weir_folder(name, path)) return 0;
    memcpy(path, name, strlen(name) + 1);
    if (!missing) return 0;
    const char *label = wr_file_label(name);
    if (suggest(name, suggestion)) return wr_err(err, WEIR_E_OPEN, "%s: there is no such file; did you mean '%s'?", label, suggestion);
    if (strchr(name, '/') || ends_with(name, ".gguf") || !weir_folder(root))
        return wr_err(err, WEIR_E_OPEN, "%s: there is no such file; 'weir list' shows the models on this machine", label);
    struct nearest nearest = {.word = name};
    struct walk walk = {.cli = cli, .store = "weir", .fn = keep_nearest, .user = &nearest};
    (void)walk_weir(&walk, root);
    if (nearest.best[0]) return wr_err(err, WEIR_E_OPEN, "%s: there is no such file or model; did you mean '%s'?", label, nearest.best);
    return wr_err(err, WEIR_E_OPEN, "%s: there is no such file, nor a model of that name in %s; 'weir list' shows the models on this machine", label,
        wr_file_label(root));
}
