/* fuzz_parquet.c - any bytes as a Parquet file with a column "text". Small limits keep one input short. */
#include <stdint.h>
#include <stdio.h>

#include "data/parquet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const ida_parquet_options o = {.column = "text", .max_page_bytes = 1 << 20, .max_footer_bytes = 1 << 20};
    if (size == 0) return 0;
    FILE *f = fmemopen((void *)(uintptr_t)data, size, "rb");
    ida_parquet *p = NULL;
    if (!f || ida_parquet_open(f, "fuzz", &o, &p)) return 0;
    bool end = false;
    for (int rows = 0; rows < 20000 && !end; rows++) {
        const char *s;
        int64_t n;
        if (ida_parquet_next(p, &s, &n, &end)) break;
        if (end || !s || !n) continue;
        volatile char first = s[0], last = s[n - 1]; /* the promise: all of them are there */
        (void)first;
        (void)last;
    }
    ida_parquet_close(p);
    return 0;
}
