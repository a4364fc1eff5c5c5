/* bpe_train.h - BPE training from word counts. Not here: reading and counting the text (data/word_count.h). */
#ifndef IDA_TEXT_BPE_TRAIN_H
#define IDA_TEXT_BPE_TRAIN_H

#include "idattn/text.h"
#include "core/status.h"

typedef struct ida_word { int64_t start, count; int32_t len; uint32_t hash; } ida_word;

/* Words of 2 bytes and more (one byte has no pair). bytes holds them end to end. */
typedef struct ida_words {
    int64_t n, n_cap, bytes_n, bytes_cap, n_slots; /* n_slots: power of two */
    ida_word *word;
    char *bytes;
    int32_t *slot;                                 /* index + 1, 0 = free */
    int64_t text_bytes;                            /* of everything read */
} ida_words;
void ida_words_free(ida_words *w);

/* Of *o only vocab_size and min_frequency (at least 1) are used, and taken as checked. *words is freed as soon as it was read,
 * whatever the result. */
ida_status ida_bpe_train(ida_words *words, const ida_bpe_options *o, ida_progress_fn *progress, void *user, ida_tokenizer **out);

#endif
