/* token_file.h - one mapped file of tokens: our own shard or one that others made (llm.c, nanoGPT, Megatron). All untrusted:
 * sizes, counts and the document index are checked when it is opened, ids when they are read. */
#ifndef IDA_DATA_TOKEN_FILE_H
#define IDA_DATA_TOKEN_FILE_H

#include "core/fields.h"
#include "core/file.h"

typedef enum ida_token_format { IDA_TOKENS_UNKNOWN = 0, IDA_TOKENS_LLMC, IDA_TOKENS_NANOGPT,
                               IDA_TOKENS_MEGATRON } ida_token_format;

typedef struct ida_token_file {
    char *path;
    ida_map map, index;          /* index: Megatron's .idx */
    const uint8_t *tokens;
    int64_t n;
    int width;                   /* bytes of a token: 1, 2, 4, 8 */
    bool is_signed;
    int64_t n_docs;              /* documents that the index tells */
    const uint8_t *doc_first;    /* [n_docs+1] int64, unaligned: a document's first sequence */
    const uint8_t *seq_at;       /* [n_seqs] int64, unaligned: a sequence's first byte */
    int64_t n_seqs;
} ida_token_file;

extern const char *const ida_token_format_names[]; /* by ida_token_format, then NULL */
/* NULL = unknown. IDA_E_ARG lists the others. */
ida_status ida_token_format_parse(const char *name, ida_token_format *f);
const char *ida_token_format_name(ida_token_format f);
/* UNKNOWN: looks. A headerless file cannot be known: IDA_E_FORMAT says how to tell. *f is what it is. On failure *t is empty. */
ida_status ida_token_file_open(const char *path, ida_token_format *f, ida_token_file *t);
void ida_token_file_close(ida_token_file *t);
/* Ids [at, at+n); every one is checked against vocab. */
ida_status ida_token_file_read(const ida_token_file *t, int64_t at, int64_t n, int64_t vocab, int32_t *ids);
/* First token of document k <= n_docs (k = n_docs: t->n). */
int64_t ida_token_file_doc(const ida_token_file *t, int64_t k);
/* Of the contents' ends, sizes and index: cheap, to notice that a set is another one. */
uint64_t ida_token_file_hash(const ida_token_file *t);

/* Files of a split in `path`: a file, a Megatron prefix, a pattern (fineweb_train_*.bin), or a folder's *.bin, sorted. In a
 * folder or pattern the words of a file's name tell its split: val, valid, validation; test is left out; others are training.
 * `all`: every file, unless some are named so. A file given by itself is training data, and validation data when its name says
 * so or with `all`. May find none. Free with ida_names_free. */
ida_status ida_token_files_find(const char *path, bool val, bool all, char ***paths, int64_t *n);

#endif
