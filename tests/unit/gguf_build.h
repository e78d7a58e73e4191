/* SPDX-License-Identifier: Apache-2.0 */
/* Builds GGUF files byte by byte, right and wrong ones, in memory; saves them as an anonymous file that has a path. */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BUILD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BUILD_SANITIZED 1
#endif
#endif

#ifdef BUILD_SANITIZED
#define BUILD_SLOWER 20 /* factor on time limits */
#else
#define BUILD_SLOWER 1
#endif

/* Time of the processor, not of the clock: other work on the machine is not counted. */
static inline uint64_t build_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct build {
    uint8_t *bytes;
    size_t n, capacity;
};

static inline void build_raw(struct build *b, const void *bytes, size_t n)
{
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n);
        b->bytes = realloc(b->bytes, b->capacity);
        if (b->bytes == NULL) abort();
    }
    if (n > 0) memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

static inline void build_u8(struct build *b, uint8_t v) { build_raw(b, &v, 1); }
static inline void build_u32(struct build *b, uint32_t v) { build_raw(b, &v, 4); }
static inline void build_u64(struct build *b, uint64_t v) { build_raw(b, &v, 8); }
static inline void build_text(struct build *b, const char *text, size_t n)
{
    build_u64(b, n);
    build_raw(b, text, n);
}
static inline void build_head(struct build *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    build_raw(b, "GGUF", 4);
    build_u32(b, version);
    build_u64(b, n_tensors);
    build_u64(b, n_keys);
}
static inline void build_key(struct build *b, const char *key, uint32_t type)
{
    build_text(b, key, strlen(key));
    build_u32(b, type);
}
static inline void build_key_str(struct build *b, const char *key, const char *value)
{
    build_key(b, key, 8);
    build_text(b, value, strlen(value));
}
static inline void build_key_u32(struct build *b, const char *key, uint32_t value)
{
    build_key(b, key, 4);
    build_u32(b, value);
}
static inline void build_array(struct build *b, const char *key, uint32_t element, uint64_t count)
{
    build_key(b, key, 9);
    build_u32(b, element);
    build_u64(b, count);
}
static inline void build_tensor(struct build *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    build_text(b, name, strlen(name));
    build_u32(b, n_dims);
    build_raw(b, ne, n_dims * 8);
    build_u32(b, type);
    build_u64(b, offset);
}
static inline void build_zeros(struct build *b, size_t n)
{
    for (; n > 0; n--) build_u8(b, 0);
}
static inline void build_align(struct build *b, size_t align)
{
    while (b->n % align != 0) build_u8(b, 0);
}
static inline void build_free(struct build *b)
{
    free(b->bytes);
    memset(b, 0, sizeof *b);
}

/* One anonymous file, rewritten by each build_save; its path is good while it is open. */
struct build_file {
    int fd;
    char path[64];
};
static inline void build_file_open(struct build_file *f)
{
    f->fd = memfd_create("model.gguf", MFD_CLOEXEC);
    if (f->fd < 0) abort();
    snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
}
static inline void build_save(const struct build_file *f, const void *bytes, size_t n)
{
    if (ftruncate(f->fd, 0) != 0 || (n > 0 && pwrite(f->fd, bytes, n, 0) != (ssize_t)n)) abort();
}
static inline void build_file_close(struct build_file *f) { close(f->fd); }

#endif
