/* build.h - the tables of a tokenizer from what a loader or the trainer hands over, and their end. Not here: reading files
 * (files.h). */
#ifndef IDA_TEXT_BUILD_H
#define IDA_TEXT_BUILD_H

#include "text/tables.h"

/* What a loader or the trainer hands over. Arrays are copied. strings: token bytes by id (NULL = hole). */
typedef struct ida_tokenizer_parts {
    int64_t n_ids;
    const char *const *strings;
    const int32_t *lengths;
    const uint8_t *flags;               /* USED, MODEL, RAW; the rest is set from `added` and the pipeline */
    int64_t n_merges;
    const ida_merge *merges;            /* by rank; a pair given twice takes its last rank */
    int64_t n_added;
    const ida_added *added;             /* any order, ids distinct; content NULL = strings[id]; pattern is ignored */
    ida_pipeline *pipe;                 /* taken over, also on failure; NULL = ByteLevel of GPT-2, no prefix */
    bool ignore_merges, byte_fallback, fuse_unk, same_rank, has_unk;
    int32_t unk;
} ida_tokenizer_parts;
/* Builds tables and checks the invariants (IDA_E_FORMAT). */
ida_status ida_tokenizer_build(const ida_tokenizer_parts *p, ida_tokenizer **out);

#endif
