/* SPDX-License-Identifier: Apache-2.0 */
/* Gives every file of the folders named to a fuzz target, without libFuzzer: `make check` replays each corpus with any compiler. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    size_t n = 0, capacity = 1 << 16;
    uint8_t *bytes = malloc(capacity);
    for (;;) {
        size_t got = fread(bytes + n, 1, capacity - n, file);
        n += got;
        if (got == 0) break;
        if (n == capacity) bytes = realloc(bytes, capacity *= 2);
    }
    fclose(file);
    uint8_t *exact = malloc(n > 0 ? n : 1); /* so that sanitizers see the end */
    memcpy(exact, bytes, n);
    free(bytes);
    fprintf(stderr, "%s\n", path); /* the last one named is the one that broke */
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 1;
}

int main(int argc, char **argv)
{
    int n = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        int here = 0;
        for (struct dirent *entry; folder != NULL;) {
            char path[4096];
            entry = readdir(folder);
            if (entry == NULL) break;
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            here += replay(path);
        }
        if (folder != NULL) closedir(folder);
        if (here == 0) {
            fprintf(stderr, "%s: no files\n", argv[i]);
            failed++;
        }
        n += here;
    }
    printf("%d passed, %d failed\n", n, failed);
    return failed > 0 || n == 0;
}
