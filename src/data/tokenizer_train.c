/* tokenizer_train.c - ida_tokenizer_train: counts the words of the files (word_count.h), then learns merges from the counts
 * (text/bpe_train.h). */
#include "data/word_count.h"

ida_status ida_tokenizer_train(const ida_bpe_options *options, ida_progress_fn *progress, void *user, ida_tokenizer **out) {
    IDA_NEED(options);
    IDA_NEED(out);
    ida_bpe_options o = *options;
    ida_words words = {0};
    IDA_FAIL_IF(o.vocab_size < 257 || o.vocab_size > 1048576, IDA_E_ARG, "vocab_size %lld is out of range (257..1048576)",
                (long long)o.vocab_size);
    IDA_FAIL_IF(o.min_frequency < 0, IDA_E_ARG, "min_frequency %lld is negative", (long long)o.min_frequency);
    if (o.min_frequency == 0) o.min_frequency = 2;
    ida_status st = ida_words_count(&o, progress, user, &words);
    if (!st) st = ida_bpe_train(&words, &o, progress, user, out);
    ida_words_free(&words);
    return st;
}
