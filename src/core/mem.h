/* mem.h - checked allocation. Sizes are computed first, then one allocation per kind; buffers are 64-byte aligned.
 * In debug builds (IDA_DEBUG) fresh memory is filled with 0xFF, which reads as NaN in every float type. */
#ifndef IDA_CORE_MEM_H
#define IDA_CORE_MEM_H

#include "core/status.h"

/* *out = n * size bytes, 64-byte aligned, not cleared (debug: NaN). n or size 0 gives a valid pointer. IDA_E_NOMEM says
 * how much and for `what`; also on n * size overflow. Free with ida_free. */
ida_status ida_alloc(void **out, int64_t n, size_t size, const char *what);
ida_status ida_calloc(void **out, int64_t n, size_t size, const char *what);
/* Grows a malloc-style array to hold `need` elements (amortised doubling); *cap is in elements. */
ida_status ida_grow(void **ptr, int64_t *cap, int64_t need, size_t size, const char *what);
void ida_free(void *p);
#define IDA_ALLOC(ptr, n, what) ida_alloc((void **)&(ptr), (n), sizeof *(ptr), (what))
#define IDA_CALLOC(ptr, n, what) ida_calloc((void **)&(ptr), (n), sizeof *(ptr), (what))
#define IDA_GROW(ptr, cap, need, what) ida_grow((void **)&(ptr), (cap), (need), sizeof *(ptr), (what))

/* A block that another made with malloc (NULL is legal), which ida_free takes back from here on. Returns it. */
void *ida_adopt(void *p);

/* Bytes of this process in blocks that the functions here gave out, as large as malloc made them: now, and the most since the
 * last reset. Blocks under 4 KiB are not counted. */
void ida_mem_used(int64_t *now, int64_t *peak);
void ida_mem_reset_peak(void);

/* Overflow-checked size arithmetic: false on overflow or negative input, *r untouched. */
bool ida_mul64(int64_t a, int64_t b, int64_t *r);
bool ida_add64(int64_t a, int64_t b, int64_t *r);

/* Copies, for ida_free; NULL on failure without a message. */
char *ida_strdup(const char *s);
char *ida_asprintf(const char *fmt, ...) IDA_PRINTF(1, 2);

/* Growing byte buffer for text building. Zero-initialise; free with ida_buf_free. data is NUL-terminated once touched. */
typedef struct ida_buf { char *data; int64_t len, cap; } ida_buf;
ida_status ida_buf_add(ida_buf *b, const void *p, size_t n);
ida_status ida_buf_addf(ida_buf *b, const char *fmt, ...) IDA_PRINTF(2, 3);
void ida_buf_free(ida_buf *b);

#endif
