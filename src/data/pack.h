/* pack.h - the inside of ida_data_pack, shared by pack.c (documents to shards) and pack_resume.c (what survives a kill).
 * Invariant between batches: every document read so far is in the shards, in the spool, or counted as a duplicate. */
#ifndef IDA_DATA_PACK_H
#define IDA_DATA_PACK_H

#include "data/dedup.h"
#include "core/file.h"
#include "core/mem.h"
#include "data/inputs.h"
#include "data/shard_out.h"
#include "text/tokenizer.h"

enum { IDA_PACK_MIN_DOCUMENTS = 20, IDA_PACK_BATCH_DOCUMENTS = 4096 };

typedef struct ida_pack_document { int64_t bytes, n_ids, n_tasks; uint64_t hash; } ida_pack_document;
typedef struct ida_pack_task { int64_t start, n; ida_ids ids; } ida_pack_task;

typedef struct ida_packer {
    const ida_tokenizer *t;
    const ida_pack_options *o;
    ida_inputs *in;
    char *dir, *staging, *spool_path;
    int lock;                            /* descriptor of the staging folder, -1 = none */
    int width;
    int64_t shard_tokens, documents, bytes, duplicates;
    int32_t separator;
    ida_shard_out out[2];                /* train, val */
    int64_t bad_rows;
    json_t *bad_list;                    /* the first of them: file, row, why */
    ida_dedup *seen;                     /* NULL: duplicates are kept */
    uint64_t last_hash;                  /* of the document read last */
    bool resumable, saved;               /* inputs can be read again; there is a state to resume from */
    int64_t saved_shards;                /* finished when the state was saved */
    /* batch */
    ida_buf text;
    ida_pack_document docs[IDA_PACK_BATCH_DOCUMENTS];
    int64_t n_read, n_docs, n_tasks, tasks_cap; /* n_read: duplicates too */
    ida_pack_task *tasks;
    bool may_cut;                        /* encoding in parts gives the same ids */
    int n_workers;
    ida_encoder **encoder;
    ida_status *failed;
    /* documents that wait for the kind of split */
    ida_writer *spool;
    ida_pack_document waiting[IDA_PACK_MIN_DOCUMENTS];
    int64_t n_waiting;
    const char *how;
} ida_packer;

/* Between batches and without a spool: all that was read is on disk, and so is where the work stands. */
ida_status ida_pack_save_state(ida_packer *p);
/* In a prepared packer, before the first document. *found: there was a state, and the packer and its inputs stand there now.
 * Other inputs or options than then are IDA_E_ARG. */
ida_status ida_pack_load_state(ida_packer *p, ida_progress_fn *progress, void *user, bool *found);
bool ida_pack_has_state(const char *staging);
ida_status ida_pack_drop_state(const ida_packer *p);   /* before publishing */
ida_status ida_pack_open_seen(ida_packer *p, int64_t n); /* with --dedup: n hashes are on disk */

#endif
