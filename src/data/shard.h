/* shard.h - the two files of a packed set: a token shard (llm.c layout) and manifest.json (docs/formats.md). Both untrusted. */
#ifndef IDA_DATA_SHARD_H
#define IDA_DATA_SHARD_H

#include <jansson.h>

#include "core/status.h"

/* 256 little-endian int32: magic, version, token count, zeros; then the tokens. The file ends with the last token. */
enum { IDA_SHARD_HEADER_BYTES = 1024, IDA_SHARD_MAGIC_16 = 20240520, IDA_SHARD_VERSION_16 = 1, IDA_SHARD_MAGIC_32 = 20240801,
      IDA_SHARD_VERSION_32 = 7 };
#define IDA_SHARD_MAX_TOKENS INT32_MAX
#define IDA_MANIFEST_FORMAT "idattn-shards"
enum { IDA_MANIFEST_VERSION = 1 };

/* Bytes per token of a set with this vocabulary: 2 up to 65,536 ids, else 4. */
static inline int ida_shard_width(int64_t vocab) { return vocab <= 65536 ? 2 : 4; }
void ida_shard_header(int32_t header[256], int width, int64_t tokens);
/* Checks a whole file in memory against `width` and the size; *tokens from its header. */
ida_status ida_shard_check(const uint8_t *data, int64_t size, const char *where, int width, int64_t *tokens);

typedef struct ida_shard_entry { char *name; int64_t tokens; uint64_t xxh3; } ida_shard_entry;
/* One split of a manifest, checked: names are plain file names, counts add up. */
typedef struct ida_manifest {
    int64_t vocab, separator, tokens, documents, bytes;
    uint64_t tokenizer_hash;
    int64_t n_shards;
    ida_shard_entry *shards;
} ida_manifest;
ida_status ida_manifest_read(const json_t *root, const char *where, const char *split, ida_manifest **out);
void ida_manifest_free(ida_manifest *m);
#define IDA_MANIFEST_MAX_BYTES ((int64_t)64 << 20)

#endif
