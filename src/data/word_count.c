/* word_count.c - files are read in batches by the caller's thread; the batch is cut into tasks where words end, and every worker
 * counts into a table of its own. The tables are added up at the end. */
#include "data/word_count.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"
#include "core/threads.h"
#include "data/inputs.h"
#include "text/pretokenize.h"

#define BATCH_BYTES ((int64_t)32 << 20)
#define TASK_BYTES ((int64_t)1 << 20)

typedef struct task { int64_t start, n; } task;

typedef struct counter {
    ida_buf batch;
    task *tasks;
    int64_t n_tasks, tasks_cap;
    ida_words *table; /* one per worker */
    ida_status *failed;
    int n_workers;
} counter;

static ida_status grow_slots(ida_words *w) {
    int64_t n = w->n_slots ? 2 * w->n_slots : 1 << 12;
    int32_t *slot = NULL;
    IDA_TRY(IDA_CALLOC(slot, n, "word table"));
    for (int64_t i = 0; i < w->n; i++) {
        int64_t at = w->word[i].hash & (n - 1);
        while (slot[at]) at = (at + 1) & (n - 1);
        slot[at] = (int32_t)(i + 1);
    }
    ida_free(w->slot);
    w->slot = slot;
    w->n_slots = n;
    return IDA_OK;
}

static ida_status add_word(ida_words *w, const char *s, size_t n, uint32_t hash, int64_t count) {
    if (2 * w->n >= w->n_slots) IDA_TRY(grow_slots(w));
    int64_t mask = w->n_slots - 1, at = hash & mask;
    for (; w->slot[at]; at = (at + 1) & mask) {
        ida_word *x = &w->word[w->slot[at] - 1];
        if (x->hash == hash && (size_t)x->len == n && memcmp(w->bytes + x->start, s, n) == 0) {
            x->count += count;
            return IDA_OK;
        }
    }
    IDA_FAIL_IF(w->n == (1 << 30), IDA_E_UNSUPPORTED, "more than %d different words: train on less text", 1 << 30);
    IDA_TRY(IDA_GROW(w->word, &w->n_cap, w->n + 1, "words"));
    IDA_TRY(IDA_GROW(w->bytes, &w->bytes_cap, w->bytes_n + (int64_t)n, "words"));
    memcpy(w->bytes + w->bytes_n, s, n);
    w->word[w->n++] = (ida_word){w->bytes_n, count, (int32_t)n, hash};
    w->bytes_n += (int64_t)n;
    w->slot[at] = (int32_t)w->n;
    return IDA_OK;
}

static void count_task(void *arg, int64_t index, int worker) {
    counter *c = arg;
    ida_words *w = &c->table[worker];
    const uint8_t *s = (const uint8_t *)c->batch.data + c->tasks[index].start;
    size_t n = (size_t)c->tasks[index].n;
    while (n > 0 && !c->failed[worker]) {
        size_t len = ida_pretokenize_next(s, n);
        if (len > 1) c->failed[worker] = add_word(w, (const char *)s, len, (uint32_t)XXH3_64bits(s, len), 1);
        s += len;
        n -= len;
    }
}

static ida_status add_tasks(counter *c, int64_t start, int64_t n) {
    while (n > 0) {
        int64_t take = n;
        if (n > TASK_BYTES) {
            int64_t cut = ida_text_last_cut(c->batch.data + start, 0, TASK_BYTES);
            if (cut > 0) take = cut;
        }
        IDA_TRY(IDA_GROW(c->tasks, &c->tasks_cap, c->n_tasks + 1, "tasks"));
        c->tasks[c->n_tasks++] = (task){start, take};
        start += take;
        n -= take;
    }
    return IDA_OK;
}

static ida_status run_batch(counter *c) {
    ida_parallel(c->n_tasks, count_task, c);
    c->n_tasks = 0;
    c->batch.len = 0;
    for (int i = 0; i < c->n_workers; i++)
        IDA_FAIL_IF(c->failed[i], c->failed[i], "counting words failed (out of memory, or more than %d different words)",
                    1 << 30);
    return IDA_OK;
}

static ida_status read_all(counter *c, ida_inputs *in, ida_progress_fn *progress, void *user, int64_t *bytes) {
    bool end = false;
    while (!end) {
        const char *text;
        int64_t n;
        IDA_TRY(ida_inputs_next(in, &text, &n, &end));
        if (!end && n > 0) {
            int64_t start = c->batch.len;
            IDA_TRY(ida_buf_add(&c->batch, text, (size_t)n));
            IDA_TRY(add_tasks(c, start, n));
            *bytes += n;
        }
        if (!end && c->batch.len < BATCH_BYTES) continue;
        IDA_TRY(run_batch(c));
        IDA_FAIL_IF(progress && progress(user, "reading", ida_inputs_done(in), ida_inputs_total(in)), IDA_E_CANCELLED,
                    "training the tokenizer was cancelled");
    }
    return IDA_OK;
}

ida_status ida_words_count(const ida_bpe_options *o, ida_progress_fn *progress, void *user, ida_words *w) {
    counter c = {.n_workers = ida_workers()};
    ida_inputs *in = NULL;
    int64_t bytes = 0;
    ida_status st;
    ida_text_options to = {.jsonl_key = o->jsonl_key, .cut_bytes = TASK_BYTES};
    IDA_TRY_GOTO(IDA_CALLOC(c.table, c.n_workers, "word tables"));
    IDA_TRY_GOTO(IDA_CALLOC(c.failed, c.n_workers, "word tables"));
    IDA_TRY_GOTO(ida_inputs_open(o->inputs, o->n_inputs, &to, &in));
    IDA_TRY_GOTO(read_all(&c, in, progress, user, &bytes));
    if (!bytes) IDA_FAIL_GOTO(IDA_E_FORMAT, "the inputs hold no text (%lld bad jsonl rows)", (long long)ida_inputs_bad(in));
    *w = c.table[0];
    c.table[0] = (ida_words){0};
    for (int k = 1; k < c.n_workers; k++) {
        const ida_words *x = &c.table[k];
        for (int64_t i = 0; i < x->n; i++)
            IDA_TRY_GOTO(add_word(w, x->bytes + x->word[i].start, (size_t)x->word[i].len, x->word[i].hash, x->word[i].count));
    }
    w->text_bytes = bytes;
out:
    for (int k = 0; c.table && k < c.n_workers; k++) ida_words_free(&c.table[k]);
    ida_free(c.table);
    ida_free(c.failed);
    ida_free(c.tasks);
    ida_buf_free(&c.batch);
    ida_inputs_close(in);
    return st;
}
