/* parquet_meta.h - the inside of parquet.h: the two Thrift structures of a Parquet file that are needed to read one column. */
#ifndef IDA_DATA_PARQUET_META_H
#define IDA_DATA_PARQUET_META_H

#include "core/status.h"

enum { IDA_PARQUET_NONE = 0, IDA_PARQUET_SNAPPY = 1, IDA_PARQUET_GZIP = 2, IDA_PARQUET_ZSTD = 6 };
enum { IDA_PARQUET_DATA = 0, IDA_PARQUET_INDEX = 1, IDA_PARQUET_DICTIONARY = 2, IDA_PARQUET_DATA_V2 = 3 };
enum { IDA_PARQUET_PLAIN = 0, IDA_PARQUET_PLAIN_DICTIONARY = 2, IDA_PARQUET_RLE = 3, IDA_PARQUET_RLE_DICTIONARY = 8 };

/* The column's part of one row group: pages in [start, end) of the file. */
typedef struct ida_parquet_chunk { int64_t rows, start, end; int codec; } ida_parquet_chunk;
typedef struct ida_parquet_meta {
    int64_t rows;
    bool optional;               /* pages carry definition levels 0 (null) and 1 */
    int64_t n_chunks;            /* row groups that have rows */
    ida_parquet_chunk *chunks;
} ida_parquet_meta;
/* `data_end` is where the footer starts: no page reaches beyond it. On failure *m is empty. */
ida_status ida_parquet_meta_read(const uint8_t *p, int64_t n, int64_t data_end, const char *where, const char *column,
                                 ida_parquet_meta *m);
void ida_parquet_meta_free(ida_parquet_meta *m);

typedef struct ida_parquet_page {
    int64_t header_bytes;
    int64_t type;
    int64_t packed, unpacked;            /* bytes after the header, as stored and unpacked; not negative */
    bool has_crc;
    uint32_t crc;
    int64_t values, encoding;            /* values: nulls included */
    int64_t level_encoding;              /* v1 */
    int64_t level_bytes, repeat_bytes;   /* v2: definition and repetition levels, never packed */
    bool compressed;                     /* v2 */
} ida_parquet_page;
/* false: p[0..n) is no whole page header (yet). */
bool ida_parquet_page_read(const uint8_t *p, int64_t n, ida_parquet_page *page);

#endif
