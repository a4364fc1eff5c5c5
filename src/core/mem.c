/* mem.c - checked allocation and text buffers. Not an arena: large users compute their sizes and allocate once.
 * Invariant: everything given out here goes back through ida_free (ida_string_free and ida_ids_free are for callers), whichever function
 * made it, so that the count of bytes in use comes back to where it was. */
#include "core/mem.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No 64-bit machine maps more: a larger request is a lie in a file, not a need. */
#define MAX_BYTES ((int64_t)1 << 47)

/* Smaller blocks are not counted: nobody plans them. */
enum { COUNTED = 4096 };
static _Atomic int64_t in_use, most_in_use;

static int64_t counted_bytes(void *p) {
    const size_t bytes = p ? malloc_usable_size(p) : 0;
    return bytes < COUNTED ? 0 : (int64_t)bytes;
}

static void count(int64_t bytes) {
    if (bytes == 0) return;
    const int64_t now = atomic_fetch_add(&in_use, bytes) + bytes;
    int64_t most = atomic_load(&most_in_use);
    while (now > most && !atomic_compare_exchange_weak(&most_in_use, &most, now)) {}
}

void ida_mem_used(int64_t *now, int64_t *peak) {
    *now = atomic_load(&in_use);
    *peak = atomic_load(&most_in_use);
}
void ida_mem_reset_peak(void) { atomic_store(&most_in_use, atomic_load(&in_use)); }

bool ida_mul64(int64_t a, int64_t b, int64_t *r) {
    int64_t v;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &v)) return false;
    *r = v;
    return true;
}

bool ida_add64(int64_t a, int64_t b, int64_t *r) {
    int64_t v;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &v)) return false;
    *r = v;
    return true;
}

static ida_status total_bytes(int64_t n, size_t size, const char *what, int64_t *bytes) {
    IDA_FAIL_IF(size > (size_t)MAX_BYTES || !ida_mul64(n, (int64_t)size, bytes) || *bytes > MAX_BYTES, IDA_E_NOMEM,
                "cannot allocate %lld x %zu bytes for %s: the size is impossible", (long long)n, size, what);
    return IDA_OK;
}

static ida_status out_of_memory(int64_t bytes, const char *what) {
    IDA_FAIL(IDA_E_NOMEM, "out of memory: %lld bytes (%.1f MiB) for %s; use a smaller model or batch, or free memory",
             (long long)bytes, (double)bytes / 1048576.0, what);
}

ida_status ida_alloc(void **out, int64_t n, size_t size, const char *what) {
    int64_t bytes;
    IDA_TRY(total_bytes(n, size, what, &bytes));
    size_t rounded = ((size_t)bytes + 63u) & ~(size_t)63u;
    if (rounded == 0) rounded = 64;
    void *p = aligned_alloc(64, rounded);
    if (!p) return out_of_memory(bytes, what);
    count(counted_bytes(p));
#ifdef IDA_DEBUG
    memset(p, 0xFF, rounded);
#endif
    *out = p;
    return IDA_OK;
}

ida_status ida_calloc(void **out, int64_t n, size_t size, const char *what) {
    void *p = NULL;
    IDA_TRY(ida_alloc(&p, n, size, what));
    memset(p, 0, (size_t)n * size);
    *out = p;
    return IDA_OK;
}

ida_status ida_grow(void **ptr, int64_t *cap, int64_t need, size_t size, const char *what) {
    if (need <= *cap && *ptr) return IDA_OK;
    int64_t want = *cap > MAX_BYTES / 2 ? need : *cap * 2;
    if (want < need) want = need;
    if (want < 16) want = 16;
    int64_t bytes;
    IDA_TRY(total_bytes(want, size, what, &bytes));
    const int64_t counted = counted_bytes(*ptr);
    void *p = realloc(*ptr, bytes > 0 ? (size_t)bytes : 1);
    if (!p) return out_of_memory(bytes, what);
    count(counted_bytes(p) - counted);
#ifdef IDA_DEBUG
    size_t old = *ptr ? (size_t)*cap * size : 0;
    if ((size_t)bytes > old) memset((char *)p + old, 0xFF, (size_t)bytes - old);
#endif
    *ptr = p;
    *cap = want;
    return IDA_OK;
}

void ida_free(void *p) {
    count(-counted_bytes(p));
    free(p);
}
void ida_string_free(char *s) { ida_free(s); }

void *ida_adopt(void *p) {
    count(counted_bytes(p));
    return p;
}

char *ida_strdup(const char *s) { return ida_adopt(strdup(s)); }

char *ida_asprintf(const char *fmt, ...) {
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : ida_adopt(s);
}

static ida_status buf_room(ida_buf *b, size_t n) {
    int64_t need;
    IDA_FAIL_IF(n > (size_t)MAX_BYTES || !ida_add64(b->len, (int64_t)n + 1, &need), IDA_E_NOMEM,
                "cannot grow a text buffer by %zu bytes", n);
    void *p = b->data;
    IDA_TRY(ida_grow(&p, &b->cap, need, 1, "a text buffer"));
    b->data = p;
    return IDA_OK;
}

ida_status ida_buf_add(ida_buf *b, const void *p, size_t n) {
    IDA_TRY(buf_room(b, n));
    if (n > 0) memcpy(b->data + b->len, p, n);
    b->len += (int64_t)n;
    b->data[b->len] = '\0';
    return IDA_OK;
}

ida_status ida_buf_addf(ida_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    ida_status st = n < 0 ? ida_fail(IDA_E_ARG, __FILE__, __LINE__, "cannot format text by \"%s\"", fmt) : buf_room(b, (size_t)n);
    if (st == IDA_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += n;
    }
    va_end(again);
    return st;
}

void ida_buf_free(ida_buf *b) {
    ida_free(b->data);
    *b = (ida_buf){0};
}
