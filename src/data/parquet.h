/* parquet.h - streams one text column of a Parquet file, in file order: what data sets on the web are shipped as.
 * Read: flat BYTE_ARRAY columns, required or optional; data pages v1 and v2; PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY; no
 * codec, Snappy, gzip, zstd; page checksums are verified. Not read, refused by name: nested and repeated columns, other types,
 * encodings and codecs, encryption, columns in other files.
 * The file is untrusted: every length and offset is checked. Memory: the footer while it is read, then one dictionary page and
 * one data page, packed and unpacked, each at most max_page_bytes. */
#ifndef IDA_DATA_PARQUET_H
#define IDA_DATA_PARQUET_H

#include <stdio.h>

#include "core/status.h"

typedef struct ida_parquet ida_parquet;
typedef struct ida_parquet_options {
    const char *column;          /* a column of the top level */
    int64_t max_page_bytes;      /* 0 = 256 MiB; a larger page is IDA_E_UNSUPPORTED */
    int64_t max_footer_bytes;    /* 0 = 64 MiB */
} ida_parquet_options;

/* `file` must be seekable; the reader closes it, also on failure. */
ida_status ida_parquet_open(FILE *file, const char *name, const ida_parquet_options *o, ida_parquet **out);
/* Next row: *text is valid until the next call, NULL for a null. *end at the end. */
ida_status ida_parquet_next(ida_parquet *p, const char **text, int64_t *n, bool *end);
int64_t ida_parquet_rows(const ida_parquet *p);      /* of the whole file */
int64_t ida_parquet_row(const ida_parquet *p);       /* rows given so far: the number, from 1, of the last one */
int64_t ida_parquet_consumed(const ida_parquet *p);  /* place in the file, for progress */
void ida_parquet_close(ida_parquet *p);

#endif
