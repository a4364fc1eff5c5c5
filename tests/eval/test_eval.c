/* test_eval.c - perplexity and length curves against a plain second computation: every context fed anew, one token scored at a time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "idattn.h"
#include "core/file.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "lib/scratch.h"

static ida_tokenizer *tok;
static char data_dir[1024];

static ida_model *model_of(ida_mixer_kind kind) {
    ida_config c;
    ida_model *m = NULL;
    assert_int_equal(ida_config_preset("tiny", kind, &c), IDA_OK);
    c.vocab_size = ida_tokenizer_vocab_size(tok);
    c.init_std = 0.2;
    if (ida_model_create(&c, 3, &m)) fail_msg("%s", ida_last_error());
    return m;
}

/* Documents of 1 to about 60 tokens, some empty, all in validation or training by hash. */
static int setup(void **state) {
    if (scratch_setup(state) || ida_tokenizer_load(IDA_TEST_DATA "/tokenizer/trained.json", &tok)) return -1;
    ida_buf b = {0};
    for (int i = 0; i < 24; i++) {
        ida_buf_addf(&b, "{\"text\":\"");
        for (int k = 0; k < i * i % 11; k++) ida_buf_addf(&b, "%sword %d of \xc3\xa9t\xc3\xa9", k ? ", " : "", k * i);
        ida_buf_addf(&b, "\"}\n");
    }
    const char *in = in_dir(*state, "rows.jsonl");
    put_file(in, b.data, b.len);
    ida_buf_free(&b);
    snprintf(data_dir, sizeof data_dir, "%s/data", (const char *)*state);
    ida_pack_options o = {.inputs = &in, .n_inputs = 1, .out_dir = data_dir, .val_fraction = 0.5};
    ida_pack_stats s;
    return ida_data_pack(tok, &o, NULL, NULL, &s) != IDA_OK;
}

static int teardown(void **state) {
    ida_tokenizer_free(tok);
    return scratch_teardown(state);
}

static double number(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("no number \"%s\"", key);
    return json_number_value(v);
}

static json_t *ppl(const ida_model *m, const ida_tokenizer *t, const ida_ppl_options *o) {
    char *text = NULL;
    if (ida_eval_ppl(m, t, o, NULL, NULL, &text)) fail_msg("%s", ida_last_error());
    json_t *j = json_loads(text, 0, NULL);
    ida_string_free(text);
    assert_non_null(j);
    return j;
}

/* -log p(ids[n] | ids[0..n)) from a fresh session. */
static double one_loss(ida_session *s, const int32_t *ids, int64_t n, float *logits, int64_t vocab) {
    double top = -INFINITY, sum = 0;
    ida_session_reset(s);
    assert_int_equal(ida_session_feed(s, ids, n, logits), IDA_OK);
    for (int64_t i = 0; i < vocab; i++) top = fmax(top, (double)logits[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[ids[n]];
}

typedef struct plain { double nats; int64_t tokens, documents, bytes; } plain;

/* Token p >= 1 of a document sees [start(p), p): the whole document with carried state, else its window's context. */
static plain plain_ppl(const ida_model *m, int64_t window, int64_t stride) {
    plain r = {0};
    ida_dataset *d = NULL;
    ida_session *s = NULL;
    int64_t *starts = NULL, n = 0, vocab = ida_model_config(m)->vocab_size;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    assert_int_equal(ida_dataset_open(data_dir, "val", true, &d), IDA_OK);
    assert_int_equal(ida_dataset_docs(d, &starts, &n), IDA_OK);
    assert_int_equal(ida_session_create(m, &s), IDA_OK);
    r.documents = n;
    r.bytes = ida_dataset_bytes(d);
    for (int64_t i = 0; i < n; i++) {
        int64_t len = starts[i + 1] - starts[i];
        int32_t *ids = malloc((size_t)len * sizeof *ids);
        assert_int_equal(ida_dataset_read(d, starts[i], len, ids), IDA_OK);
        for (int64_t p = 1; p < len; p++) {
            int64_t start = 0;
            if (window > 0 && p > window) { /* the window that scores input p - 1: the first covers `window`, then `stride` new each */
                int64_t k = (p - 1 - window) / stride, end = window + (k + 1) * stride;
                if (end > len - 1) end = len - 1;
                start = end - window;
            }
            r.nats += one_loss(s, ids + start, p - start, logits, vocab);
            r.tokens++;
        }
        free(ids);
    }
    ida_session_free(s);
    ida_dataset_close(d);
    ida_free(starts);
    free(logits);
    return r;
}

/* fp32 logits by two routes (chunked pieces, one feed): 1e-4 nats a token is ten times what either differs from double. */
static void expect(const json_t *j, const plain *r) {
    assert_int_equal((int64_t)number(j, "tokens"), r->tokens);
    assert_int_equal((int64_t)number(j, "documents"), r->documents);
    assert_int_equal((int64_t)number(j, "bytes"), r->bytes);
    if (!(fabs(number(j, "nats") - r->nats) < 1e-4 * (double)r->tokens)) fail_msg("%.9g, plainly %.9g", number(j, "nats"), r->nats);
    assert_true(fabs(number(j, "loss") * (double)r->tokens - r->nats) < 1e-4 * (double)r->tokens);
}

static void ppl_with_carried_state_scores_each_token_in_its_whole_document(void **state) {
    (void)state;
    for (int kind = IDA_MIXER_INTERDOMAIN; kind <= IDA_MIXER_S4D; kind++) {
        ida_model *m = model_of((ida_mixer_kind)kind);
        plain r = plain_ppl(m, 0, 0);
        assert_true(r.tokens > 100);
        json_t *j = ppl(m, tok, &(ida_ppl_options){.data_dir = data_dir, .carry_state = true});
        expect(j, &r);
        json_decref(j);
        j = ppl(m, NULL, &(ida_ppl_options){.data_dir = data_dir, .carry_state = true}); /* bytes from the manifest */
        expect(j, &r);
        json_decref(j);
        ida_model_free(m);
    }
}

static void ppl_in_windows_scores_each_token_once_in_its_window(void **state) {
    static const int64_t cases[][2] = {{1000, 1000}, {16, 16}, {16, 5}, {1, 1}};
    (void)state;
    ida_model *m = model_of(IDA_MIXER_SOFTMAX);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plain r = plain_ppl(m, cases[i][0], cases[i][1]);
        json_t *j = ppl(m, tok, &(ida_ppl_options){.data_dir = data_dir, .window = cases[i][0], .stride = cases[i][1]});
        expect(j, &r);
        json_decref(j);
    }
    ida_model_free(m);
}

static int keep_total(void *user, const char *what, int64_t done, int64_t total) {
    (void)what;
    assert_true(done <= total);
    *(int64_t *)user = total;
    return 0;
}

static void ppl_of_a_text_counts_its_bytes_and_words(void **state) {
    static const char text[] = "  two words,\n\nand \xc3\xa9t\xc3\xa9\tthree ";
    const char *path = in_dir(*state, "t.txt");
    put_file(path, text, (int64_t)sizeof text - 1);
    ida_model *m = model_of(IDA_MIXER_INTERDOMAIN);
    json_t *j = ppl(m, tok, &(ida_ppl_options){.text_path = path, .carry_state = true});
    assert_int_equal((int64_t)number(j, "bytes"), sizeof text - 1);
    assert_int_equal((int64_t)number(j, "words"), 5);
    assert_true(fabs(number(j, "bits_per_byte") - number(j, "nats") / log(2) / (double)(sizeof text - 1)) < 1e-9);
    assert_true(fabs(log(number(j, "word_perplexity")) - number(j, "nats") / 5) < 1e-9);
    json_decref(j);
    ida_model_free(m);
}

static void refused(const ida_model *m, const ida_ppl_options *o, ida_status want, const char *part) {
    char *text = (char *)1;
    assert_int_equal(ida_eval_ppl(m, tok, o, NULL, NULL, &text), want);
    assert_null(text);
    if (!strstr(ida_last_error(), part)) fail_msg("\"%s\" is not in: %s", part, ida_last_error());
}

static int stop_at_once(void *user, const char *what, int64_t done, int64_t total) {
    (void)what;
    assert_true(done <= total);
    return ++*(int *)user;
}

static void ppl_of_a_text_plans_no_more_than_the_limit(void **state) {
    const char *path = in_dir(*state, "long.txt");
    int64_t total = 0;
    char *text = NULL;
    put_file(path, "one two three four five six seven eight", 39);
    ida_model *m = model_of(IDA_MIXER_INTERDOMAIN);
    assert_int_equal(ida_eval_ppl(m, tok, &(ida_ppl_options){.text_path = path, .carry_state = true, .max_tokens = 3}, keep_total,
                                  &total, &text),
                     IDA_OK);
    assert_int_equal(total, 3);
    ida_string_free(text);
    ida_model_free(m);
}

static void missing_arguments_are_named(void **state) {
    (void)state;
    char *text = NULL;
    ida_model *m = model_of(IDA_MIXER_INTERDOMAIN);
    const char *none[] = {NULL};
    const ida_ppl_options o = {.data_dir = data_dir, .carry_state = true};
    const ida_length_options len = {.data_dir = data_dir, .multiple = 1};
    assert_int_equal(ida_eval_ppl(NULL, tok, &o, NULL, NULL, &text), IDA_E_ARG);
    assert_int_equal(ida_eval_ppl(m, tok, NULL, NULL, NULL, &text), IDA_E_ARG);
    assert_int_equal(ida_eval_ppl(m, tok, &o, NULL, NULL, NULL), IDA_E_ARG);
    assert_int_equal(ida_eval_length(NULL, &len, NULL, NULL, &text), IDA_E_ARG);
    assert_int_equal(ida_eval_length(m, NULL, NULL, NULL, &text), IDA_E_ARG);
    assert_int_equal(ida_eval_length(m, &len, NULL, NULL, NULL), IDA_E_ARG);
    assert_int_equal(ida_bench(NULL, NULL, 0, NULL, NULL, &text), IDA_E_ARG);
    assert_int_equal(ida_bench("gemm", NULL, 1, NULL, NULL, &text), IDA_E_ARG);
    assert_int_equal(ida_bench("gemm", NULL, 0, NULL, NULL, NULL), IDA_E_ARG);
    assert_int_equal(ida_report(NULL, 1, "x", &text), IDA_E_ARG);
    assert_int_equal(ida_report(none, 1, "x", &text), IDA_E_ARG);
    assert_int_equal(ida_report((const char *[]){"x"}, 1, NULL, &text), IDA_E_ARG);
    assert_null(text);
    ida_model_free(m);
}

/* Answers 1 in the phase `stop_in`; keeps the count that the phase `watch` gave first, and the largest total. */
typedef struct bench_watch { const char *stop_in, *watch; int64_t first, total; } bench_watch;
static int watch_bench(void *user, const char *what, int64_t done, int64_t total) {
    bench_watch *w = user;
    if (strcmp(what, w->watch) == 0) {
        if (w->total == 0) w->first = done;
        if (total > w->total) w->total = total;
    }
    return w->stop_in && strcmp(what, w->stop_in) == 0;
}

static void a_bench_of_prefill_stops_within_a_call(void **state) {
    (void)state;
    const char *args[] = {"preset=tiny", "T=600", "reps=1"};
    char *text = NULL;
    for (int i = 0; i < 2; i++) {
        const char *phase = i ? "prefill" : "checking";
        bench_watch w = {.stop_in = phase, .watch = phase, .first = -1};
        assert_int_equal(ida_bench("prefill", args, 3, watch_bench, &w, &text), IDA_E_CANCELLED);
        assert_null(text);
        assert_int_equal(w.first, 0); /* asked before the first call, or step, was done */
    }
}

static void reps_of_a_bench_are_not_those_of_its_floor(void **state) {
    (void)state;
    const struct { const char *bench, *floor, *what, *size; } row[] = {
        {"prefill", "BLAS rate", "prefill", "T=4"}, {"decode", "copy rate", "timing steps", "tokens=4"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char *text = NULL;
        const char *args[] = {"preset=tiny", "reps=30", row[i].size};
        bench_watch w = {.stop_in = row[i].what, .watch = row[i].floor};
        assert_int_equal(ida_bench(row[i].bench, args, 3, watch_bench, &w, &text), IDA_E_CANCELLED);
        assert_in_range(w.total, 1, 12);
    }
}

static void a_key_of_a_bench_is_given_once(void **state) {
    (void)state;
    char *text = NULL;
    const char *args[] = {"preset=tiny", "T=4", "reps=1", "T=5"};
    assert_int_equal(ida_bench("prefill", args, 4, NULL, NULL, &text), IDA_E_ARG);
    assert_null(text);
    assert_non_null(strstr(ida_last_error(), "T is given twice"));
}

static void ppl_refuses_what_it_cannot_mean(void **state) {
    ida_model *soft = model_of(IDA_MIXER_SOFTMAX), *inter = model_of(IDA_MIXER_INTERDOMAIN);
    const char *empty = in_dir(*state, "empty.txt");
    put_file(empty, "", 0);
    refused(soft, &(ida_ppl_options){.data_dir = data_dir, .carry_state = true}, IDA_E_ARG, "softmax");
    refused(soft, &(ida_ppl_options){.data_dir = data_dir}, IDA_E_ARG, "window is 0");
    refused(soft, &(ida_ppl_options){.data_dir = data_dir, .window = 4, .stride = 5}, IDA_E_ARG, "stride is 5, must be 0..4");
    refused(inter, &(ida_ppl_options){.carry_state = true}, IDA_E_ARG, "one of the two");
    refused(inter, &(ida_ppl_options){.data_dir = data_dir, .text_path = empty, .carry_state = true}, IDA_E_ARG, "one of the two");
    refused(inter, &(ida_ppl_options){.text_path = empty, .carry_state = true}, IDA_E_FORMAT, "nothing to score");
    refused(inter, &(ida_ppl_options){.text_path = "/dev/null/text", .carry_state = true}, IDA_E_IO, "/dev/null/text");
    int calls = 0;
    char *text = NULL;
    assert_int_equal(ida_eval_ppl(inter, tok, &(ida_ppl_options){.data_dir = data_dir, .carry_state = true}, stop_at_once, &calls, &text),
                     IDA_E_CANCELLED);
    assert_int_equal(calls, 1);
    ida_model_free(soft);
    ida_model_free(inter);
}

static void length_buckets_are_means_over_positions_of_uninterrupted_blocks(void **state) {
    (void)state;
    enum { T = 21, MULTIPLE = 3, N = T * MULTIPLE, PER = 4 };
    ida_model *m = model_of(IDA_MIXER_S4D);
    int64_t vocab = ida_model_config(m)->vocab_size;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    double by_position[N] = {0};
    int32_t ids[N + 1];
    ida_dataset *d = NULL;
    ida_session *s = NULL;
    char *text = NULL;
    assert_int_equal(ida_dataset_open(data_dir, "val", false, &d), IDA_OK);
    assert_int_equal(ida_session_create(m, &s), IDA_OK);
    for (int64_t b = 0; b < 2; b++) {
        assert_int_equal(ida_dataset_read(d, b * N, N + 1, ids), IDA_OK);
        for (int64_t p = 0; p < N; p++) by_position[p] += one_loss(s, ids, p + 1, logits, vocab) / 2;
    }
    ida_length_options o = {.data_dir = data_dir, .train_len = T, .multiple = MULTIPLE, .buckets_per_len = PER, .blocks = 2};
    if (ida_eval_length(m, &o, NULL, NULL, &text)) fail_msg("%s", ida_last_error());
    json_t *j = json_loads(text, 0, NULL), *row;
    size_t i;
    int64_t next = 0;
    assert_int_equal(json_array_size(json_object_get(j, "buckets")), PER * MULTIPLE);
    json_array_foreach(json_object_get(j, "buckets"), i, row) {
        int64_t lo = (int64_t)number(row, "begin"), hi = (int64_t)number(row, "end");
        double sum = 0;
        assert_int_equal(lo, next); /* no position is left out or counted twice */
        for (int64_t p = lo; p < hi; p++) sum += by_position[p];
        assert_true(fabs(number(row, "loss") - sum / (double)(hi - lo)) < 1e-4);
        next = hi;
    }
    assert_int_equal(next, N);
    static const int64_t marks[] = {1, 2, 3};
    assert_int_equal(json_array_size(json_object_get(j, "at")), 3);
    json_array_foreach(json_object_get(j, "at"), i, row) {
        double sum = 0;
        assert_int_equal((int64_t)number(row, "multiple"), marks[i]);
        for (int64_t p = (marks[i] - 1) * T; p < marks[i] * T; p++) sum += by_position[p];
        assert_true(fabs(number(row, "loss") - sum / T) < 1e-4);
    }
    json_decref(j);
    ida_string_free(text);
    o.multiple = 1000000;
    assert_int_equal(ida_eval_length(m, &o, NULL, NULL, &text), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "multiple of at most"));
    o.multiple = INT64_MAX;
    assert_int_equal(ida_eval_length(m, &o, NULL, NULL, &text), IDA_E_ARG);
    o.multiple = 1, o.buckets_per_len = T + 1;
    assert_int_equal(ida_eval_length(m, &o, NULL, NULL, &text), IDA_E_ARG);
    ida_session_free(s);
    ida_dataset_close(d);
    ida_model_free(m);
    free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ppl_with_carried_state_scores_each_token_in_its_whole_document),
        cmocka_unit_test(ppl_in_windows_scores_each_token_once_in_its_window),
        cmocka_unit_test(ppl_of_a_text_counts_its_bytes_and_words),
        cmocka_unit_test(ppl_of_a_text_plans_no_more_than_the_limit),
        cmocka_unit_test(missing_arguments_are_named),
        cmocka_unit_test(ppl_refuses_what_it_cannot_mean),
        cmocka_unit_test(a_bench_of_prefill_stops_within_a_call),
        cmocka_unit_test(reps_of_a_bench_are_not_those_of_its_floor),
        cmocka_unit_test(a_key_of_a_bench_is_given_once),
        cmocka_unit_test(length_buckets_are_means_over_positions_of_uninterrupted_blocks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
