/* fuzz_thrift.c - any bytes as Parquet's two Thrift structures, without the file around them: the footer's metadata and a page
 * header. */
#include <stdint.h>
#include <stdlib.h>

#include "data/parquet_meta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const int64_t n = (int64_t)size, data_end = 1 << 20;
    ida_parquet_meta m;
    if (!ida_parquet_meta_read(data, n, data_end, "fuzz", "text", &m)) {
        int64_t rows = 0;
        for (int64_t i = 0; i < m.n_chunks; i++) { /* the promise: chunks lie in the file, their rows are the file's */
            const ida_parquet_chunk *c = &m.chunks[i];
            if (c->start < 4 || c->end < c->start || c->end > data_end || c->rows <= 0) abort();
            rows += c->rows;
        }
        if (rows != m.rows) abort();
        ida_parquet_meta_free(&m);
    }
    ida_parquet_page page;
    if (ida_parquet_page_read(data, n, &page) && (page.header_bytes > n || page.packed < 0 || page.unpacked < 0)) abort();
    return 0;
}
