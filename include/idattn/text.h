/* idattn/text.h - tokenizers: text to ids and back, and training one. */
#ifndef IDATTN_TEXT_H
#define IDATTN_TEXT_H

#include "idattn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ida_tokenizer ida_tokenizer;

/* HF tokenizer.json of byte-level BPE (GPT-2, Llama-3, Qwen) or metaspace BPE with byte fallback (Llama-2, Mistral), a
 * SentencePiece .model of BPE type, or a folder that holds tokenizer.json or tokenizer.model. What is not supported is refused by
 * name. A large tokenizer.json is compiled once into $XDG_CACHE_HOME/idattn (or ~/.cache/idattn), by content, where that can be
 * written. */
IDA_API ida_status ida_tokenizer_load(const char *path, ida_tokenizer **out);
/* Writes tokenizer.json at path, or in the folder path. HF tokenizers reads it and gives the same ids. */
IDA_API ida_status ida_tokenizer_save(const ida_tokenizer *t, const char *path);
IDA_API void ida_tokenizer_free(ida_tokenizer *t);
IDA_API int64_t ida_tokenizer_vocab_size(const ida_tokenizer *t);
/* Id of the end-of-text token (also the document separator), or -1. */
IDA_API int64_t ida_tokenizer_eos(const ida_tokenizer *t);
/* Id that the template puts before a text, or -1. */
IDA_API int64_t ida_tokenizer_bos(const ida_tokenizer *t);
/* XXH3-64 of the tokenizer's content (vocabulary, merges, added tokens), independent of file layout. */
IDA_API uint64_t ida_tokenizer_hash(const ida_tokenizer *t);
/* UTF-8 (invalid bytes are legal and round-trip) to ids. special: special added tokens in the text become their ids;
 * else they stay text (untrusted or training text). Other added tokens always match, as in HF.
 * *ids is malloc'd: free with ida_ids_free. */
IDA_API ida_status ida_tokenizer_encode(const ida_tokenizer *t, const char *text, size_t n_bytes, bool special, int32_t **ids,
                                        int64_t *n_ids);
enum {
    IDA_ENCODE_SPECIAL = 1,      /* special added tokens in the text become their ids */
    IDA_ENCODE_TEMPLATE = 2,     /* add what the tokenizer's template puts around a text (BOS, EOS); a text that begins with these
                                    tokens keeps its own, so there is exactly one BOS */
};
/* The same with flags. */
IDA_API ida_status ida_tokenizer_encode_as(const ida_tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                                           int32_t **ids, int64_t *n_ids);
IDA_API void ida_ids_free(int32_t *ids);
/* Ids to bytes: those that were encoded, where the tokenizer can tell. skip_special drops special added tokens. Caller frees
 * *text (ida_string_free); it is NUL-terminated, *n_bytes excludes that. IDA_E_ARG on an id outside the vocabulary. */
IDA_API ida_status ida_tokenizer_decode(const ida_tokenizer *t, const int32_t *ids, int64_t n_ids, bool skip_special,
                                        char **text, size_t *n_bytes);
/* Ids to text as they come: whole characters only. All pieces joined are HF's text for all ids: UTF-8, with U+FFFD for bytes that
 * make no character. Text that later ids can change is held back: an unfinished character, a run of byte tokens. */
typedef struct ida_decoder ida_decoder;
IDA_API ida_status ida_decoder_create(const ida_tokenizer *t, bool skip_special, ida_decoder **out);
/* *text is borrowed until the next call on d. IDA_E_ARG on an id outside the vocabulary; nothing is taken then. */
IDA_API ida_status ida_decoder_push(ida_decoder *d, const int32_t *ids, int64_t n_ids, const char **text, size_t *n_bytes);
/* What was held back; then d is ready for another text. */
IDA_API ida_status ida_decoder_end(ida_decoder *d, const char **text, size_t *n_bytes);
IDA_API void ida_decoder_free(ida_decoder *d);
/* Bytes that one token stands for (not at the start of a text, where a blank may be dropped), borrowed from the tokenizer; NULL
 * when id is outside the vocabulary. */
IDA_API const char *ida_tokenizer_piece(const ida_tokenizer *t, int64_t id, size_t *n_bytes, bool *is_special);

typedef struct ida_bpe_options {
    int64_t vocab_size;          /* 256 bytes, merges, and the end-of-text token (last id) */
    int64_t min_frequency;       /* a pair seen less often is not merged; 0 = the default */
    const char *const *inputs;   /* text files (.txt .jsonl, also .gz .zst; .parquet); "-" = standard input as text */
    int64_t n_inputs;
    const char *jsonl_key;       /* NULL = the default; also the column of Parquet files */
} ida_bpe_options;               /* ranges and defaults: ida_options_json("bpe") */
/* Byte-level BPE; the merges are the same for any thread count. progress: bytes while reading, then merges. */
IDA_API ida_status ida_tokenizer_train(const ida_bpe_options *o, ida_progress_fn *progress, void *user, ida_tokenizer **out);

#ifdef __cplusplus
}
#endif
#endif
