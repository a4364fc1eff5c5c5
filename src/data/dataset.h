/* dataset.h - packed token shards (llm.c .bin layout plus manifest.json) as one long token stream, and the order of training
 * samples. Everything is a pure function of (files, seed, step): resume needs no saved cursor.
 * Stream: the shards of a split in name order, end to end; each document is preceded by the separator token. Sample i of an
 * epoch covers inputs [i*T, (i+1)*T) and targets one further on; the last sample of an epoch may be shorter (its missing
 * positions are not scored), so every token is used exactly once per epoch. */
#ifndef IDA_DATASET_H
#define IDA_DATASET_H

#include "idattn/data.h"
#include "data/token_file.h"

typedef struct ida_dataset ida_dataset;

/* The options of a struct's member `source`. */
#define IDA_ROWS_SOURCE(T) \
    IDA_ROW_TEXT(T, "data_format", source.format, NULL, NULL, .names = ida_token_format_names, .lo = IDA_TOKENS_LLMC, \
                 .help = "of shards that others made; nanogpt has no header and must be named [told from the files]"), \
    IDA_ROW_TEXT(T, "val_data", source.val, NULL, "PATH", \
                 .help = "where the validation shards are [the files of --data whose names say val]"), \
    IDA_ROW_INT(T, "separator", source.separator, 0, 0, INT32_MAX, .arg = "ID", .flags = IDA_FIELD_DERIVED, \
                .beside = IDA_MEMBER(T, source.has_separator, bool), \
                .help = "id that parts documents in shards that others made [50256 or 128000, if found]")

extern const ida_fields ida_inspect_fields; /* inspect.c */

/* split: "train" or "val". Opens and checks manifest and shards: magic, version, count against file size, names without path
 * parts; checksums only when verify. Shards may be empty. */
typedef struct ida_dataset_options {
    const char *path;               /* packed set; or shards of others: a folder, a file, a pattern (data/token_file.h) */
    const ida_data_source *source;  /* NULL = defaults */
    int64_t vocab;                  /* bound for the ids of shards without a manifest; 0 = what their width holds */
    bool verify;
} ida_dataset_options;
/* Shards without manifest.json have no byte and (unless Megatron's) no document counts, tokenizer hash 0, and may lack a
 * validation split: it is then empty. Their separator is the given one, or llm.c's and nanoGPT's usual one when it is found. */
ida_status ida_dataset_open_as(const ida_dataset_options *o, const char *split, ida_dataset **out);
ida_status ida_dataset_open(const char *dir, const char *split, bool verify, ida_dataset **out);
void ida_dataset_close(ida_dataset *d);
int64_t ida_dataset_tokens(const ida_dataset *d);
int64_t ida_dataset_bytes(const ida_dataset *d);       /* UTF-8 bytes of the split's documents; 0 = manifest does not say */
int64_t ida_dataset_documents(const ida_dataset *d);
int64_t ida_dataset_vocab(const ida_dataset *d);
int64_t ida_dataset_separator(const ida_dataset *d);   /* -1 = none */
uint64_t ida_dataset_tokenizer_hash(const ida_dataset *d);
uint64_t ida_dataset_hash(const ida_dataset *d);       /* of the manifest's shard list: checked on resume */
/* Copies tokens [pos, pos+n) of the stream; every id is checked against the vocabulary: IDA_E_FORMAT with shard and offset. */
ida_status ida_dataset_read(const ida_dataset *d, int64_t pos, int64_t n, int32_t *ids);

/* One of ida_token_format_names: llmc of our own sets too, unknown where there are no shards. */
const char *ida_dataset_format(const ida_dataset *d);
/* Documents are told by an index: no separator stands between them. Then: the first start of a document at or after pos, or the
 * token count. */
bool ida_dataset_indexed(const ida_dataset *d);
int64_t ida_dataset_next_start(const ida_dataset *d, int64_t pos);

/* Samples of length T per epoch: ceil((tokens - 1) / T). */
int64_t ida_dataset_samples(const ida_dataset *d, int64_t T);

/* One training batch: rows of T packed into one token list with document boundaries. */
typedef struct ida_rows {
    int64_t rows, T;           /* capacity */
    int64_t n_tokens;          /* rows * T, less what short last samples lack */
    int32_t *ids, *targets;    /* [rows*T]; target -1 = not scored */
    int64_t *cu;               /* [n_seq+1]: a sequence starts at each row and at each document */
    int64_t *pos0;             /* [n_seq] zeros */
    int64_t n_seq, n_scored;
} ida_rows;
ida_status ida_rows_new(int64_t rows, int64_t T, ida_rows **out);
void ida_rows_free(ida_rows *r);
/* Rows for global sample numbers first .. first+rows-1 (epoch = number / samples; order within an epoch is
 * ida_permute(seed, ORDER ^ epoch)). Position before a separator: the target is the separator itself (the model must learn to
 * end); no target is ever inside another document than its input: where an index parts documents, the last token's is -1. */
ida_status ida_rows_fill(ida_rows *r, const ida_dataset *d, uint64_t seed, int64_t first, int64_t rows);
/* The samples of optimiser step `step` (from 0) that rank `rank` of `world` takes: *rows from number *first. All ranks together
 * take step*batch .. step*batch+batch-1, each once, in rank order: the order of samples does not depend on world. Shares differ
 * by at most one row and are the same at every step. Sample numbers run on over epochs, so small or uneven shards never leave a
 * rank without work. IDA_E_ARG when there are more ranks than rows: before the first step, on every rank. */
ida_status ida_rank_share(int64_t batch, int64_t step, int64_t rank, int64_t world, int64_t *first, int64_t *rows);
/* Rows in stream order (evaluation): samples first.. in order, no permutation; fewer rows at the end. */
ida_status ida_rows_fill_in_order(ida_rows *r, const ida_dataset *d, int64_t first, int64_t rows);

/* Where the documents of the split start in the stream, found by the separator or the index: starts[n_docs+1], the last is the
 * token count. A document's first token is its separator. ida_free. */
ida_status ida_dataset_docs(const ida_dataset *d, int64_t **starts, int64_t *n_docs);

#endif
