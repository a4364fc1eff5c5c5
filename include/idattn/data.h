/* idattn/data.h - token shards: packing text, reading those of others, looking at them. */
#ifndef IDATTN_DATA_H
#define IDATTN_DATA_H

#include "idattn/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ida_pack_options {
    const char *const *inputs;   /* as in ida_bpe_options */
    int64_t n_inputs;
    const char *jsonl_key;       /* NULL = the default */
    const char *out_dir;         /* shards {train,val}_000000.bin and manifest.json; must be absent or empty */
    int64_t shard_tokens;        /* 0 = of the usual size */
    double val_fraction;         /* of documents, chosen by hash of their bytes. Fewer than 20 documents: the last part of the
                                    token stream, a document being cut if need be ("split" in the manifest tells which) */
    bool split_blank_lines;      /* .txt: a document ends at a form feed or at 3 or more newlines; else it is a file */
    const char *column;          /* of Parquet files; NULL = jsonl_key */
    bool dedup;                  /* exact duplicates of an earlier document are left out; takes about 32 bytes a document */
    bool resume;                 /* go on where an earlier call with the same options stopped; none: start */
} ida_pack_options;              /* ranges and defaults: ida_options_json("pack") */
typedef struct ida_pack_stats {
    int64_t documents, bytes, train_tokens, val_tokens, train_bytes, val_bytes, bad_rows, shards, duplicates;
} ida_pack_stats;
/* Tokenises into llm.c shards (docs/formats.md). Works in OUT_DIR.part, which becomes OUT_DIR when whole. A bad row (jsonl,
 * Parquet) is counted, logged with file and row, listed in the manifest (the first 100), and skipped. After a kill, a failure or
 * IDA_E_CANCELLED, OUT_DIR.part stays when shards were finished: `resume` goes on from there and gives the same bytes as an
 * unbroken run. */
IDA_API ida_status ida_data_pack(const ida_tokenizer *t, const ida_pack_options *o, ida_progress_fn *progress, void *user,
                                 ida_pack_stats *stats);
/* Token shards that others made are read wherever a packed set is: llm.c's (uint16 and uint32), nanoGPT's, Megatron's .bin with
 * .idx. The path is then a folder, a file, or a pattern of files, whose names tell train from val (docs/data.md). All zero:
 * defaults. */
typedef struct ida_data_source {
    const char *val;             /* path of the validation split; NULL = the files of the same path whose names say val */
    const char *format;          /* name of one; NULL = told from the files, but nanoGPT's, which have no header */
    bool has_separator;
    int64_t separator;           /* id that parts documents; else 50256 (uint32: 128000) when found. Megatron: the index does */
} ida_data_source;

/* Checks every shard against the manifest (sizes, checksums, id range) and describes the set as JSON: counts, document lengths
 * with a histogram, and documents decoded. */
typedef struct ida_inspect_options {
    const char *path;            /* packed set, or shards of others */
    ida_data_source source;
    const ida_tokenizer *tokenizer; /* for the samples; NULL = the set's own, if it has one */
    int64_t samples;             /* documents shown of each split, evenly spread */
    int64_t sample_tokens;       /* of each at most; 0 = the default */
} ida_inspect_options;           /* ranges and defaults: ida_options_json("inspect") */
IDA_API ida_status ida_data_describe(const ida_inspect_options *o, char **json);
/* The same with defaults and no samples. */
IDA_API ida_status ida_data_inspect(const char *dir, char **json);

#ifdef __cplusplus
}
#endif
#endif
