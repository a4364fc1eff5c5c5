/* shard_out.h - writes the token shards of one split, and can take up the work of a process that died.
 * The shard in work is NAME.bin.part; NAME.bin is whole and on disk. Not here: what the tokens are (pack.c). */
#ifndef IDA_DATA_SHARD_OUT_H
#define IDA_DATA_SHARD_OUT_H

#include <jansson.h>

#include "core/status.h"

typedef struct ida_shard_out {
    const char *dir, *split;     /* borrowed */
    int width;                   /* bytes of a token */
    int64_t shard_tokens;
    int fd;                      /* of the shard in work, -1 = none */
    int64_t in_shard, n_shards, tokens, documents, bytes; /* documents and bytes are counted by the caller */
    json_t *shards;              /* the manifest's list */
    uint8_t *buffer;
    int64_t used;
} ida_shard_out;

ida_status ida_shard_out_init(ida_shard_out *s, const char *dir, const char *split, int width, int64_t shard_tokens);
void ida_shard_out_free(ida_shard_out *s);
ida_status ida_shard_out_put(ida_shard_out *s, const int32_t *ids, int64_t n);
/* Ends the shard in work, if there is one. */
ida_status ida_shard_out_end(ida_shard_out *s);
/* Everything put so far is on disk; *state describes it, as much as ida_shard_out_restore needs. */
ida_status ida_shard_out_sync(ida_shard_out *s, json_t **state);
/* On a fresh *s: goes back to a state that was synced earlier. What was written after it is removed. */
ida_status ida_shard_out_restore(ida_shard_out *s, const json_t *state, const char *where);

#endif
