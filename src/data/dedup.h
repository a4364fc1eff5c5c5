/* dedup.h - which documents were seen before, by the XXH3-128 of their bytes: exact duplicates, no text is kept. With n documents
 * two different ones are taken for equal with a chance of n*n / 2^129.
 * Memory: 16 bytes a slot, at most 3/4 of a power of two of them in use: 21 to 43 bytes a document, half as much again while it
 * grows. */
#ifndef IDA_DATA_DEDUP_H
#define IDA_DATA_DEDUP_H

#include "core/status.h"

typedef struct ida_dedup ida_dedup;

/* `journal` (NULL = none): a file that keeps the hashes of the set's first `n` documents; more are cut off, new ones go
 * behind. */
ida_status ida_dedup_open(const char *journal, int64_t n, ida_dedup **out);
void ida_dedup_close(ida_dedup *d);
/* *seen: these bytes were added before. */
ida_status ida_dedup_add(ida_dedup *d, const char *text, int64_t n, bool *seen);
int64_t ida_dedup_count(const ida_dedup *d);
ida_status ida_dedup_sync(ida_dedup *d); /* the journal is on disk */

#endif
