/* length.c - loss by position, far past the training length, with carried state.
 * Invariant: a block is one uninterrupted session; what is printed for position p saw all p tokens before it. */
#include <math.h>
#include <string.h>

#include "idattn/engine.h"
#include "idattn/eval.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "eval/eval.h"

enum { PIECE = 2048 };
#define MAX_BLOCKS 16

#define T ida_length_options
static const ida_field rows[] = {
    IDA_ROW_TEXT(T, "data", data_dir, NULL, "DIR", .flags = IDA_FIELD_REQUIRED, .letter = 'd',
                 .help = "packed set; its validation shards are read"),
    IDA_ROWS_SOURCE(T),
    IDA_ROW_INT(T, "multiple", multiple, 4, 1, IDA_ANY_INT, .help = "evaluate up to N training lengths"),
    IDA_ROW_INT(T, "train_len", train_len, 0, 0, IDA_ANY_INT, .arg = "T", .help = "training length",
                .note = "0 = the model's"),
    IDA_ROW_INT(T, "buckets", buckets_per_len, 4, 0, IDA_ANY_INT, .flags = IDA_FIELD_OR_DEFAULT,
                .help = "buckets in a training length"),
    IDA_ROW_INT(T, "blocks", blocks, 0, 0, IDA_ANY_INT, .help = "blocks averaged",
                .note = "0 = what the data gives, at most " IDA_STR(MAX_BLOCKS)),
};
#undef T
const ida_fields ida_length_fields = IDA_FIELDS("length", "", ida_length_options, rows);

typedef struct curve {
    int64_t T, multiple, per_len, blocks, n; /* n = multiple * T inputs in a block */
    double *bucket, *whole;                  /* sums of nats: [multiple * per_len], [multiple] */
    int32_t ids[PIECE + 1];
    float losses[PIECE];
} curve;

static int64_t bucket_begin(const curve *c, int64_t b) { return b / c->per_len * c->T + b % c->per_len * c->T / c->per_len; }

static ida_status plan(curve *c, const ida_config *cfg, const ida_length_options *o, const ida_dataset *d) {
    int64_t tokens = ida_dataset_tokens(d), vocab = ida_dataset_vocab(d);
    c->T = o->train_len ? o->train_len : cfg->max_position;
    c->multiple = o->multiple;
    c->per_len = o->buckets_per_len;
    IDA_FAIL_IF(c->per_len > c->T, IDA_E_ARG,
                "buckets in a training length: %lld, must be 1..%lld (its tokens)", (long long)c->per_len, (long long)c->T);
    IDA_FAIL_IF(vocab > cfg->vocab_size, IDA_E_ARG,
                "%s has ids up to %lld, the model's vocabulary is %lld: they do not belong together", o->data_dir,
                (long long)vocab - 1, (long long)cfg->vocab_size);
    bool fits = ida_mul64(c->T, c->multiple, &c->n) && c->n <= tokens - 1;
    IDA_FAIL_IF(!fits, IDA_E_ARG,
                "%s has %lld validation tokens; %lld x %lld tokens and one more are needed: give a multiple of at most %lld",
                o->data_dir, (long long)tokens, (long long)c->multiple, (long long)c->T, (long long)((tokens - 1) / c->T));
    int64_t have = (tokens - 1) / c->n;
    IDA_FAIL_IF(o->blocks > have, IDA_E_ARG, "%s has validation tokens for %lld blocks of %lld, not for %lld", o->data_dir,
                (long long)have, (long long)c->n, (long long)o->blocks);
    c->blocks = o->blocks ? o->blocks : have < MAX_BLOCKS ? have : MAX_BLOCKS;
    return IDA_OK;
}

static ida_status run_block(curve *c, ida_session *s, const ida_dataset *d, int64_t block, ida_progress_fn *p, void *user) {
    int64_t b = 0, stop = bucket_begin(c, 1);
    ida_session_reset(s);
    for (int64_t at = 0; at < c->n;) {
        int64_t n = c->n - at < PIECE ? c->n - at : PIECE;
        IDA_TRY(ida_dataset_read(d, block * c->n + at, n + 1, c->ids));
        IDA_TRY(ida_session_score(s, c->ids, c->ids + 1, n, c->losses));
        for (int64_t i = 0; i < n; i++) {
            double x = (double)c->losses[i];
            IDA_FAIL_IF(!isfinite(x), IDA_E_NUMERIC, "the loss at position %lld is not finite: the model is damaged or diverged",
                        (long long)(at + i));
            while (at + i >= stop) stop = bucket_begin(c, ++b + 1);
            c->bucket[b] += x;
            c->whole[(at + i) / c->T] += x;
        }
        at += n;
        if (p && p(user, "reading", block * c->n + at, c->blocks * c->n)) IDA_FAIL(IDA_E_CANCELLED, "stopped");
    }
    return IDA_OK;
}

static ida_status result(const curve *c, char **json) {
    json_t *buckets = json_array(), *at = json_array();
    double blocks = (double)c->blocks;
    for (int64_t b = 0; b < c->multiple * c->per_len; b++) {
        int64_t lo = bucket_begin(c, b), hi = bucket_begin(c, b + 1);
        double loss = c->bucket[b] / (blocks * (double)(hi - lo));
        json_int_t tokens = c->blocks * (hi - lo);
        json_array_append_new(buckets, json_pack("{s:I, s:I, s:f, s:I}", "begin", (json_int_t)lo, "end", (json_int_t)hi, "loss",
                                                 loss, "tokens", tokens));
    }
    for (int64_t k = 1;; k = 2 * k < c->multiple ? 2 * k : c->multiple) {
        json_array_append_new(at, json_pack("{s:I, s:I, s:f}", "multiple", (json_int_t)k, "position", (json_int_t)(k * c->T),
                                            "loss", c->whole[k - 1] / (blocks * (double)c->T)));
        if (k == c->multiple) break;
    }
    json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "protocol",
                          "The validation stream is cut into blocks of multiple x train_len tokens; each is read once from a "
                          "zero state that is carried to its end. The loss at kx is the mean over the last train_len tokens "
                          "before that mark.",
                          "train_len", (json_int_t)c->T, "multiple", (json_int_t)c->multiple, "blocks", (json_int_t)c->blocks,
                          "tokens", (json_int_t)(c->blocks * c->n), "at", at, "buckets", buckets);
    *json = ida_json_dump(j, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    json_decref(j);
    IDA_FAIL_IF(!*json, IDA_E_NOMEM, "no memory for the result");
    return IDA_OK;
}

ida_status ida_eval_length(const ida_model *m, const ida_length_options *o, ida_progress_fn *p, void *user, char **json) {
    ida_dataset *d = NULL;
    ida_session *s = NULL;
    curve *c = NULL;
    ida_status st;
    IDA_NEED(json);
    *json = NULL;
    IDA_NEED(m);
    IDA_NEED(o);
    IDA_TRY(ida_fields_check(&ida_length_fields, o));
    ida_length_options filled = *o;
    ida_fields_resolve(&ida_length_fields, &filled);
    IDA_FAIL_IF(!o->data_dir, IDA_E_ARG, "evaluation by length needs a packed set");
    IDA_TRY(IDA_CALLOC(c, 1, "length evaluation"));
    const ida_dataset_options from = {.path = o->data_dir, .source = &o->source, .vocab = ida_model_config(m)->vocab_size};
    IDA_TRY_GOTO(ida_dataset_open_as(&from, "val", &d));
    IDA_TRY_GOTO(plan(c, ida_model_config(m), &filled, d));
    /* at most multiple * T, which is at most the tokens */
    IDA_TRY_GOTO(IDA_CALLOC(c->bucket, c->multiple * c->per_len, "buckets"));
    IDA_TRY_GOTO(IDA_CALLOC(c->whole, c->multiple, "buckets"));
    IDA_TRY_GOTO(ida_session_create(m, &s));
    for (int64_t b = 0; b < c->blocks; b++) IDA_TRY_GOTO(run_block(c, s, d, b, p, user));
    st = result(c, json);
out:
    ida_session_free(s);
    ida_dataset_close(d);
    ida_free(c->bucket);
    ida_free(c->whole);
    ida_free(c);
    return st;
}
