/* dataset.h - packed token shards (llm.c .bin layout plus manifest.json) as one long token stream, and the order of training
 * samples. Everything is a pure function of (files, seed, step): resume needs no saved cursor.
 * Stream: the shards of a split in name order, end to end; each document is preceded by the separator token. Sample i of an
 * epoch covers inputs [i*T, (i+1)*T) and targets one further on; the last sample of an epoch may be shorter (its missing
 * positions are not scored), so every token is used exactly once per epoch. */
#ifndef IDA_DATASET_H
#define IDA_DATASET_H

#include "core/status.h"

typedef struct ida_dataset ida_dataset;

/* split: "train" or "val". Opens and checks manifest and shards: magic, version, count against file size, names without path
 * parts; checksums only when verify. Shards may be empty. */
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

/* Samples of length T per epoch: ceil((tokens - 1) / T). */
int64_t ida_dataset_samples(const ida_dataset *d, int64_t T);

/* One training batch: rows of T packed into one token list with document boundaries. */
typedef struct ida_rows {
    int64_t rows, T;           /* capacity */
    int64_t n_tokens;          /* rows * T, less what short last samples lack */
    int32_t *ids, *targets;    /* [rows*T]; target -1 = not scored */
    int64_t *cu;               /* [n_seq+1]: a sequence starts at each row and at each separator token */
    int64_t *pos0;             /* [n_seq] zeros */
    int64_t n_seq, n_scored;
} ida_rows;
ida_status ida_rows_new(int64_t rows, int64_t T, ida_rows **out);
void ida_rows_free(ida_rows *r);
/* Rows for global sample numbers first .. first+rows-1 (epoch = number / samples; order within an epoch is
 * ida_permute(seed, ORDER ^ epoch)). Position before a separator: the target is the separator itself (the model must learn to
 * end); no target is ever inside another document than its input. */
ida_status ida_rows_fill(ida_rows *r, const ida_dataset *d, uint64_t seed, int64_t first, int64_t rows);
/* Rows in stream order (evaluation): samples first.. in order, no permutation; fewer rows at the end. */
ida_status ida_rows_fill_in_order(ida_rows *r, const ida_dataset *d, int64_t first, int64_t rows);

/* Where the documents of the split start in the stream, found by the separator: starts[n_docs+1], the last is the token count. A
 * document's first token is its separator. ida_free. */
ida_status ida_dataset_docs(const ida_dataset *d, int64_t **starts, int64_t *n_docs);

#endif
