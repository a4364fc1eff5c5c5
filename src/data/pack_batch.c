/* pack_batch.c - the three stages of packing, side by side: while one batch is encoded by all workers, the one before it is
 * written and the one behind it is read, each by whichever worker takes that task. Not here: what becomes of the ids (pack.c).
 * Invariant: a batch is cut by its documents alone, so nothing depends on the thread count. Memory: three batches, of which the
 * text of at most one is much larger than IDA_PACK_BATCH_BYTES (nothing is read while that one is encoded). */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/json.h"
#include "core/threads.h"
#include "data/pack.h"

enum { MAX_LOGGED_ROWS = 20 };
#define TASK_BYTES ((int64_t)256 << 10)
#define KEEP_IDS ((int64_t)1 << 20)               /* larger id buffers are given back after a batch */
#define LARGE_BYTES (2 * IDA_PACK_BATCH_BYTES)    /* as are larger texts */

ida_status ida_pack_batches_new(ida_packer *p) {
    p->n_workers = ida_workers();
    IDA_TRY(IDA_CALLOC(p->worker, p->n_workers, "encoders"));
    for (int i = 0; i < p->n_workers; i++) IDA_TRY(ida_encoder_new(p->t, &p->worker[i].encoder));
    for (int i = 0; i < 3; i++) IDA_TRY(IDA_CALLOC(p->batch[i], 1, "packing"));
    return IDA_OK;
}

static void free_rows(ida_pack_batch *b) {
    for (int64_t i = 0; i < b->n_bad && i < IDA_PACK_LISTED_ROWS; i++) {
        ida_free(b->bad[i].path);
        ida_free(b->bad[i].why);
    }
    b->n_bad = 0;
}

void ida_pack_batches_free(ida_packer *p) {
    for (int i = 0; p->worker && i < p->n_workers; i++) ida_encoder_free(p->worker[i].encoder);
    ida_free(p->worker);
    for (int i = 0; i < 3; i++) {
        ida_pack_batch *b = p->batch[i];
        if (!b) continue;
        for (int64_t k = 0; k < b->tasks_cap; k++) ida_free(b->tasks[k].ids.id);
        ida_free(b->tasks);
        free_rows(b);
        ida_buf_free(&b->text);
        ida_free(b);
    }
}

/* ---------------------------------------------------------------- reading */

void ida_pack_on_bad(void *packer, const char *path, int64_t row, const char *why) {
    ida_pack_batch *b = ((ida_packer *)packer)->reading;
    int64_t i = b->n_bad++;
    if (i < IDA_PACK_LISTED_ROWS) b->bad[i] = (ida_pack_row){ida_strdup(path), ida_strdup(why), row};
}

static ida_status cut_into_tasks(const ida_packer *p, ida_pack_batch *b, int64_t start) {
    for (int64_t at = start, end = b->text.len; at < end;) {
        int64_t take = end - at;
        if (p->may_cut && take > TASK_BYTES) {
            int64_t cut = ida_text_last_cut(b->text.data + at, 0, TASK_BYTES);
            if (cut > 0) take = cut;
        }
        if (b->n_tasks == b->tasks_cap) {
            int64_t old = b->tasks_cap;
            IDA_TRY(IDA_GROW(b->tasks, &b->tasks_cap, b->n_tasks + 1, "encoding tasks"));
            memset(b->tasks + old, 0, (size_t)(b->tasks_cap - old) * sizeof *b->tasks);
        }
        b->tasks[b->n_tasks].start = at;
        b->tasks[b->n_tasks++].n = take;
        at += take;
    }
    return IDA_OK;
}

static ida_status add_document(ida_packer *p, ida_pack_batch *b, const char *text, int64_t n) {
    int64_t start = b->text.len, first = b->n_tasks;
    bool seen = false;
    b->n_read++;
    p->read.last_hash = XXH3_64bits(text, (size_t)n);
    if (p->seen) IDA_TRY(ida_dedup_add(p->seen, text, n, &seen));
    p->read.duplicates += seen;
    if (seen) return IDA_OK;
    IDA_TRY(ida_buf_add(&b->text, text, (size_t)n));
    IDA_TRY(cut_into_tasks(p, b, start));
    b->docs[b->n_docs++] = (ida_pack_document){.bytes = n, .n_tasks = b->n_tasks - first, .hash = p->read.last_hash};
    return IDA_OK;
}

ida_status ida_pack_read(ida_packer *p, ida_pack_batch *b) {
    p->reading = b;
    while (!b->end && b->text.len < IDA_PACK_BATCH_BYTES && b->n_read < IDA_PACK_BATCH_DOCUMENTS) {
        const char *text;
        int64_t n;
        IDA_TRY(ida_inputs_next(p->in, &text, &n, &b->end));
        if (!b->end) IDA_TRY(add_document(p, b, text, n));
    }
    ida_inputs_place(p->in, &p->read.file, &p->read.documents);
    p->read.read_bytes = ida_inputs_done(p->in);
    p->read.seen = p->seen ? ida_dedup_count(p->seen) : 0;
    b->place = p->read;
    return IDA_OK;
}

/* ---------------------------------------------------------------- all stages */

typedef struct step {
    ida_packer *p;
    const ida_pack_batch *done;
    ida_pack_put_fn *put;
    ida_pack_batch *full, *empty;
    ida_failure put_failed, read_failed;
} step;

static void encode_task(ida_packer *p, ida_pack_batch *b, int64_t index, int worker) {
    ida_pack_task *k = &b->tasks[index];
    ida_pack_worker *w = &p->worker[worker];
    k->ids.n = 0;
    if (w->failed.st) return;
    ida_status st = ida_encoder_add(w->encoder, b->text.data + k->start, (size_t)k->n, false, &k->ids);
    if (!st) return;
    ida_failure_keep(&w->failed, st);
    w->failed_task = index;
}

/* The long serial tasks come first, so that no worker is left waiting for one of them at the end. */
static void stage_task(void *arg, int64_t index, int worker) {
    step *s = arg;
    ida_status st;
    if (index == 0 && s->empty) {
        st = ida_pack_read(s->p, s->empty);
        if (st) ida_failure_keep(&s->read_failed, st);
    } else if (index == 1 && s->done) {
        st = s->put(s->p, s->done);
        if (st) ida_failure_keep(&s->put_failed, st);
    } else if (index > 1) {
        encode_task(s->p, s->full, index - 2, worker);
    }
}

/* Tasks are taken in order and a worker skips only what lies behind its own failure, so the first failing task was run. */
static ida_status encoding_failure(const ida_packer *p, const ida_pack_batch *b) {
    const ida_pack_worker *first = NULL;
    for (int i = 0; i < p->n_workers; i++)
        if (p->worker[i].failed.st && (!first || p->worker[i].failed_task < first->failed_task)) first = &p->worker[i];
    if (!first) return IDA_OK;
    int64_t document = 0;
    for (int64_t tasks = 0; document < b->n_docs; document++) {
        tasks += b->docs[document].n_tasks;
        if (tasks > first->failed_task) break;
    }
    return ida_fail_prefix(ida_failure_raise(&first->failed), "document %lld of those to be packed",
                           (long long)(p->documents + document + 1));
}

ida_status ida_pack_step(ida_packer *p, const ida_pack_batch *done, ida_pack_put_fn *put, ida_pack_batch *full,
                         ida_pack_batch *empty) {
    step s = {.p = p, .done = done, .put = put, .full = full, .empty = empty};
    if (full && full->text.len > LARGE_BYTES) s.empty = NULL;
    ida_parallel(2 + (full ? full->n_tasks : 0), stage_task, &s);
    if (s.put_failed.st) return ida_failure_raise(&s.put_failed);
    IDA_TRY(encoding_failure(p, full));
    if (full && full->text.len > LARGE_BYTES) ida_buf_free(&full->text); /* nothing looks at it again */
    if (empty && !s.empty) return ida_pack_read(p, empty);
    return s.read_failed.st ? ida_failure_raise(&s.read_failed) : IDA_OK;
}

static void tell_bad_rows(ida_packer *p, const ida_pack_batch *b) {
    for (int64_t i = 0; i < b->n_bad; i++) {
        p->bad_rows++;
        if (i >= IDA_PACK_LISTED_ROWS) continue;
        const ida_pack_row *r = &b->bad[i];
        if (!r->path || !r->why) continue;
        if (p->bad_rows <= MAX_LOGGED_ROWS) ida_log("%s:%lld: row passed over: %s", r->path, (long long)r->row, r->why);
        if (p->bad_rows == MAX_LOGGED_ROWS)
            ida_log("further bad rows are counted, not shown; manifest.json lists the first %d", IDA_PACK_LISTED_ROWS);
        if (p->bad_rows > IDA_PACK_LISTED_ROWS) continue;
        json_t *row = json_pack("{s:o, s:I, s:o}", "file", ida_json_string(r->path), "row", (json_int_t)r->row,
                                "why", ida_json_string(r->why));
        json_array_append_new(p->bad_list, row);
    }
}

void ida_pack_clear(ida_packer *p, ida_pack_batch *b) {
    tell_bad_rows(p, b);
    free_rows(b);
    for (int64_t i = 0; i < b->n_tasks; i++)
        if (b->tasks[i].ids.cap > KEEP_IDS) {
            ida_free(b->tasks[i].ids.id);
            b->tasks[i].ids = (ida_ids){0};
        }
    if (b->text.cap > LARGE_BYTES) ida_buf_free(&b->text);
    b->n_read = b->n_docs = b->n_tasks = b->text.len = 0;
    b->end = false;
}
