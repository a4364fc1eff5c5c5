/* tokenizer_train.c - ida_tokenizer_train: counts the words of the files (word_count.h), then learns merges from the counts
 * (text/bpe_train.h). */
#include "data/text.h"
#include "data/word_count.h"

#define T ida_bpe_options
static const ida_field rows[] = {
    IDA_ROW_LIST(T, "inputs", inputs, n_inputs, "INPUT...", .flags = IDA_FIELD_REQUIRED | IDA_FIELD_ARGUMENT,
                 .help = "text files; - = standard input"),
    IDA_ROW_INT(T, "vocab_size", vocab_size, 8192, 257, 1048576, .help = "tokens: 256 bytes, merges and end-of-text"),
    IDA_ROW_INT(T, "min_frequency", min_frequency, 2, 1, IDA_ANY_INT, .flags = IDA_FIELD_OR_DEFAULT,
                .help = "a pair seen less often is not merged"),
    IDA_ROW_JSONL_KEY(T),
};
#undef T
const ida_fields ida_bpe_fields = IDA_FIELDS("bpe", "", ida_bpe_options, rows);

ida_status ida_tokenizer_train(const ida_bpe_options *options, ida_progress_fn *progress, void *user, ida_tokenizer **out) {
    IDA_NEED(options);
    IDA_NEED(out);
    ida_bpe_options o = *options;
    ida_words words = {0};
    IDA_TRY(ida_fields_check(&ida_bpe_fields, &o));
    ida_fields_resolve(&ida_bpe_fields, &o);
    ida_status st = ida_words_count(&o, progress, user, &words);
    if (!st) st = ida_bpe_train(&words, &o, progress, user, out);
    ida_words_free(&words);
    return st;
}
