/* tokenizer.c - how fast a tokenizer loads, encodes and decodes on this machine. tools/bench_tokenizer.py puts HF beside
 * it. A speed stands only where the ids decode to the text again and the packed ids are those of the documents one by one. */
#include <string.h>

#include "core/file.h"
#include "core/threads.h"
#include "bench/bench.h"
#include "text/encode.h"

#define MAX_TEXT ((int64_t)1 << 30)
#define TASK_BYTES ((int64_t)64 << 10)

typedef struct options { const char *tokenizer, *text; int64_t reps; } options;
static const ida_field tokenizer_rows[] = {
    IDA_ROW_TEXT(options, "tokenizer", tokenizer, NULL, "FILE", .flags = IDA_FIELD_REQUIRED,
                 .help = "tokenizer.json, a SentencePiece .model or a folder"),
    IDA_ROW_TEXT(options, "text", text, NULL, "FILE", .flags = IDA_FIELD_REQUIRED,
                 .help = "a text file; documents for the packed row are its lines"),
    IDA_ROW_REPS(options, 5, "timed calls"),
};

typedef struct document { int64_t start, n; } document;
typedef struct work {
    const char *path;
    ida_tokenizer *t;
    ida_encoder **encoder;     /* per worker */
    ida_status *failed;
    ida_ids *ids;              /* per task */
    int n_workers;
    char *text;
    int64_t n;
    document *tasks;
    int64_t n_tasks, cap;
    ida_ids whole;
} work;

static ida_status load_body(void *arg) {
    const work *w = arg;
    ida_tokenizer *t = NULL;
    IDA_TRY(ida_tokenizer_load(w->path, &t));
    ida_tokenizer_free(t);
    return IDA_OK;
}

static ida_status encode_body(void *arg) {
    work *w = arg;
    w->whole.n = 0;
    return ida_encoder_add(w->encoder[0], w->text, (size_t)w->n, false, &w->whole);
}

/* Every line is a document of its own; a task is a run of lines. */
static ida_status encode_lines(const work *w, ida_encoder *e, document d, ida_ids *ids) {
    for (const char *s = w->text + d.start, *end = s + d.n; s < end;) {
        const char *newline = memchr(s, '\n', (size_t)(end - s));
        const char *stop = newline ? newline + 1 : end;
        IDA_TRY(ida_encoder_add(e, s, (size_t)(stop - s), false, ids));
        s = stop;
    }
    return IDA_OK;
}

static void pack_task(void *arg, int64_t task, int worker) {
    work *w = arg;
    w->ids[task].n = 0;
    ida_status st = encode_lines(w, w->encoder[worker], w->tasks[task], &w->ids[task]);
    if (st) w->failed[worker] = st;
}

static ida_status pack_body(void *arg) {
    work *w = arg;
    ida_parallel(w->n_tasks, pack_task, w);
    for (int i = 0; i < w->n_workers; i++)
        IDA_FAIL_IF(w->failed[i], w->failed[i], "encoding the documents failed");
    return IDA_OK;
}

static ida_status decode_body(void *arg) {
    const work *w = arg;
    char *text;
    size_t n;
    IDA_TRY(ida_tokenizer_decode(w->t, w->whole.id, w->whole.n, false, &text, &n));
    ida_string_free(text);
    return IDA_OK;
}

static ida_status make_tasks(work *w) {
    for (int64_t at = 0; at < w->n;) {
        int64_t end = at + TASK_BYTES < w->n ? at + TASK_BYTES : w->n;
        const char *newline = end < w->n ? memchr(w->text + end, '\n', (size_t)(w->n - end)) : NULL;
        end = newline ? newline + 1 - w->text : w->n;
        IDA_TRY(IDA_GROW(w->tasks, &w->cap, w->n_tasks + 1, "tasks"));
        w->tasks[w->n_tasks++] = (document){at, end - at};
        at = end;
    }
    return IDA_CALLOC(w->ids, w->n_tasks, "token ids");
}

static ida_status check(const work *w, bool *same_text, bool *same_ids, int64_t *packed) {
    char *text = NULL;
    size_t n;
    ida_ids one = {0};
    ida_status st = ida_tokenizer_decode(w->t, w->whole.id, w->whole.n, false, &text, &n);
    *same_text = !st && n == (size_t)w->n && memcmp(text, w->text, n) == 0;
    *same_ids = true;
    *packed = 0;
    for (int64_t i = 0; i < w->n_tasks && !st; i++) {
        one.n = 0;
        st = encode_lines(w, w->encoder[0], w->tasks[i], &one);
        *same_ids &= one.n == w->ids[i].n && memcmp(one.id, w->ids[i].id, (size_t)one.n * sizeof *one.id) == 0;
        *packed += one.n;
    }
    ida_string_free(text);
    ida_free(one.id);
    return st;
}

static void row(ida_bench_run *b, const work *w, const char *what, bool ok, double seconds, int threads, int64_t ids) {
    json_t *r = ida_bench_row(b, what, ok, 0, seconds, 0);
    ida_row_int(r, "threads", threads);
    if (ids) ida_row_int(r, "ids", ids);
    if (ids && ok) ida_row_real(r, "MB_per_s", (double)w->n / 1e6 / seconds);
}

static ida_status measure(ida_bench_run *b, work *w) {
    double load, encode, pack, decode;
    bool same_text, same_ids;
    int64_t packed;
    IDA_TRY(ida_tokenizer_load(w->path, &w->t));
    IDA_TRY(ida_read_file(((const options *)b->options)->text, MAX_TEXT, &w->text, &w->n));
    IDA_FAIL_IF(w->n == 0, IDA_E_ARG, "bench tokenizer: the text is empty");
    IDA_TRY(IDA_CALLOC(w->encoder, w->n_workers, "encoders"));
    IDA_TRY(IDA_CALLOC(w->failed, w->n_workers, "encoders"));
    for (int i = 0; i < w->n_workers; i++) IDA_TRY(ida_encoder_new(w->t, &w->encoder[i]));
    IDA_TRY(make_tasks(w));
    IDA_TRY(ida_bench_time(b, "loading", load_body, w, &load));
    IDA_TRY(ida_bench_time(b, "encoding", encode_body, w, &encode));
    IDA_TRY(ida_bench_time(b, "packing", pack_body, w, &pack));
    IDA_TRY(ida_bench_time(b, "decoding", decode_body, w, &decode));
    IDA_TRY(check(w, &same_text, &same_ids, &packed));
    row(b, w, "load", true, load, 1, 0);
    row(b, w, "encode one string", same_text, encode, 1, w->whole.n);
    row(b, w, "encode documents", same_text && same_ids, pack, w->n_workers, packed);
    row(b, w, "decode", same_text, decode, 1, w->whole.n);
    json_object_set_new(b->top, "text_bytes", json_integer(w->n));
    json_object_set_new(b->top, "vocab_size", json_integer(ida_tokenizer_vocab_size(w->t)));
    return IDA_OK;
}

static ida_status run(ida_bench_run *b) {
    const options *o = b->options;
    work w = {.path = o->tokenizer, .n_workers = ida_workers()};
    IDA_FAIL_IF(!o->tokenizer || !o->text, IDA_E_ARG, "bench tokenizer needs tokenizer=FILE and text=FILE");
    ida_status st = measure(b, &w);
    for (int i = 0; w.encoder && i < w.n_workers; i++) ida_encoder_free(w.encoder[i]);
    for (int64_t i = 0; w.ids && i < w.n_tasks; i++) ida_free(w.ids[i].id);
    ida_free(w.encoder);
    ida_free(w.failed);
    ida_free(w.ids);
    ida_free(w.tasks);
    ida_free(w.text);
    ida_free(w.whole.id);
    ida_tokenizer_free(w.t);
    return st;
}

IDA_BENCH(tokenizer, "tokenizer", options, tokenizer_rows, run);
