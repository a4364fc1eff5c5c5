/* pack.h - the inside of ida_data_pack, shared by pack.c (documents to shards), pack_batch.c (text to ids) and pack_resume.c
 * (what survives a kill). Batches pass three stages: read, encoded, written. Up to three are on their way at once, one in each
 * stage, and each stage takes them in order.
 * Invariant: after a batch was written, every document up to its place is in the shards, in the spool, or counted as a duplicate,
 * and nothing of a later one is. What only the reading stage may touch is marked so. */
#ifndef IDA_DATA_PACK_H
#define IDA_DATA_PACK_H

#include "idattn/data.h"
#include "data/dedup.h"
#include "core/file.h"
#include "core/mem.h"
#include "data/inputs.h"
#include "data/shard_out.h"
#include "text/encode.h"

enum { IDA_PACK_MIN_DOCUMENTS = 20, IDA_PACK_BATCH_DOCUMENTS = 4096, IDA_PACK_LISTED_ROWS = 100 };
#define IDA_PACK_BATCH_BYTES ((int64_t)16 << 20)

extern const ida_fields ida_pack_fields;

typedef struct ida_pack_document { int64_t bytes, n_ids, n_tasks; uint64_t hash; } ida_pack_document;
typedef struct ida_pack_task { int64_t start, n; ida_ids ids; } ida_pack_task;
typedef struct ida_pack_row { char *path, *why; int64_t row; } ida_pack_row;

/* Where reading stands, behind some document. */
typedef struct ida_pack_place {
    int64_t file, documents;             /* number of the file, documents it has given */
    int64_t read_bytes, duplicates, seen; /* seen: hashes in the journal of --dedup */
    uint64_t last_hash;                  /* of the document before */
} ida_pack_place;

typedef struct ida_pack_batch {
    ida_buf text;
    ida_pack_document docs[IDA_PACK_BATCH_DOCUMENTS];
    int64_t n_read, n_docs, n_tasks, tasks_cap; /* n_read: duplicates too */
    ida_pack_task *tasks;
    int64_t n_bad;                       /* rows passed over while it was read, the first of them in `bad` */
    ida_pack_row bad[IDA_PACK_LISTED_ROWS];
    ida_pack_place place;                /* behind it */
    bool end;                            /* no document follows */
} ida_pack_batch;

typedef struct ida_pack_worker { ida_encoder *encoder; ida_failure failed; int64_t failed_task; } ida_pack_worker;

typedef struct ida_packer {
    const ida_tokenizer *t;
    const ida_pack_options *o;
    char *dir, *staging, *spool_path;
    int lock;                            /* descriptor of the staging folder, -1 = none */
    int width;
    int64_t shard_tokens, documents, bytes;
    int32_t separator;
    ida_shard_out out[2];                /* train, val */
    int64_t bad_rows;
    json_t *bad_list;                    /* the first of them: file, row, why */
    ida_pack_place place;                /* behind the batch written last */
    bool resumable, saved;               /* inputs can be read again; there is a state to resume from */
    int64_t saved_shards;                /* finished when the state was saved */
    /* the reading stage's own */
    ida_inputs *in;
    ida_dedup *seen;                     /* NULL: duplicates are kept */
    ida_pack_place read;
    ida_pack_batch *reading;
    /* one batch for each stage */
    ida_pack_batch *batch[3];
    bool may_cut;                        /* encoding in parts gives the same ids */
    int n_workers;
    ida_pack_worker *worker;
    /* documents that wait for the kind of split */
    ida_writer *spool;
    ida_pack_document waiting[IDA_PACK_MIN_DOCUMENTS];
    int64_t n_waiting;
    const char *how;
} ida_packer;

/* pack_batch.c. on_bad of the inputs' options, with the packer as user. */
void ida_pack_on_bad(void *packer, const char *path, int64_t row, const char *why);
ida_status ida_pack_batches_new(ida_packer *p);
void ida_pack_batches_free(ida_packer *p);
ida_status ida_pack_read(ida_packer *p, ida_pack_batch *b);
/* At once and each in the pool: `done` is written by put, `full` is encoded, `empty` is read. Any may be NULL. What fails first
 * in the order of documents is reported, whichever thread met it. */
typedef ida_status ida_pack_put_fn(ida_packer *p, const ida_pack_batch *b);
ida_status ida_pack_step(ida_packer *p, const ida_pack_batch *done, ida_pack_put_fn *put, ida_pack_batch *full,
                         ida_pack_batch *empty);
/* The batch was written: its bad rows are told and listed, its large buffers given back. */
void ida_pack_clear(ida_packer *p, ida_pack_batch *b);

/* pack_resume.c. Between batches and without a spool: all up to p->place is on disk, and so is where the work stands. */
ida_status ida_pack_save_state(ida_packer *p);
/* In a prepared packer, before the first document. *found: there was a state, and the packer and its inputs stand there now.
 * Other inputs or options than then are IDA_E_ARG. */
ida_status ida_pack_load_state(ida_packer *p, ida_progress_fn *progress, void *user, bool *found);
bool ida_pack_has_state(const char *staging);
ida_status ida_pack_drop_state(const ida_packer *p);   /* before publishing */
ida_status ida_pack_open_seen(ida_packer *p, int64_t n); /* with --dedup: n hashes are on disk */

#endif
