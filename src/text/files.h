/* files.h - from the bytes of a file to a tokenizer: HF's tokenizer.json, SentencePiece models, and the compiled form of the cache.
 * Everything read here is untrusted. */
#ifndef IDA_TEXT_FILES_H
#define IDA_TEXT_FILES_H

#include "text/tables.h"

/* A key of our own in the decoder object of tokenizer.json: HF skips it there and refuses it elsewhere. */
#define IDA_SAME_RANK_KEY "idattn_same_rank"
#define IDA_SP_MODEL_TAG 0x0A                       /* first byte of a SentencePiece model */
#define IDA_TOKENIZER_MAX_BYTES ((int64_t)256 << 20) /* of tokenizer.json */

/* tokenizer.json or SentencePiece model in memory: for loading and fuzzing. */
ida_status ida_tokenizer_parse(const char *text, size_t n, const char *where, ida_tokenizer **out);
ida_status ida_sp_model_parse(const uint8_t *data, size_t n, const char *where, ida_tokenizer **out);

/* Compiled form of a tokenizer.json: for the cache. key: hash of the file. A file that is absent, damaged or not ours is
 * IDA_E_FORMAT. */
ida_status ida_compiled_save(const ida_tokenizer *t, const uint64_t key[2], const char *path);
ida_status ida_compiled_load(const char *path, const uint64_t key[2], ida_tokenizer **out);
/* As ida_tokenizer_parse for JSON, through the folder of compiled tokenizers. */
ida_status ida_tokenizer_parse_cached(const char *text, int64_t n, const char *where, ida_tokenizer **out);

#endif
