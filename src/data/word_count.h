/* word_count.h - how often each pre-token occurs in a set of files: the input of the BPE trainer. Counts are sums, so they do not
 * depend on the thread count; their order does and means nothing. */
#ifndef IDA_DATA_WORD_COUNT_H
#define IDA_DATA_WORD_COUNT_H

#include "core/fields.h"
#include "text/bpe_train.h"

extern const ida_fields ida_bpe_fields; /* tokenizer_train.c */

/* Zero-initialise *w; free with ida_words_free whatever the result. */
ida_status ida_words_count(const ida_bpe_options *o, ida_progress_fn *progress, void *user, ida_words *w);

#endif
