/* test_bpe_train.c - the BPE trainer: equal to HF's on the fixture, independent of threads and file layout, and its limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zstd.h>

#include "core/mem.h"
#include "core/rng.h"
#include "data/word_count.h"
#include "lib/scratch.h"
#include "text/pretokenize.h"
#include "text/tables.h"

#define CORPUS IDA_TEST_DATA "/tokenizer/corpus.txt"

static ida_status train(const char *path, int64_t vocab, int64_t min_frequency, ida_tokenizer **t) {
    ida_bpe_options o = {.vocab_size = vocab, .min_frequency = min_frequency, .inputs = &path, .n_inputs = 1};
    return ida_tokenizer_train(&o, NULL, NULL, t);
}

static void merges_and_ids_equal_the_reference_trainer(void **state) {
    (void)state;
    ida_tokenizer *ours = NULL, *theirs = NULL;
    assert_int_equal(ida_tokenizer_load(IDA_TEST_DATA "/tokenizer/trained.json", &theirs), IDA_OK);
    assert_int_equal(train(CORPUS, ida_tokenizer_vocab_size(theirs), 2, &ours), IDA_OK);
    assert_int_equal(ours->n_merges, theirs->n_merges);
    for (int64_t i = 0; i < ours->n_merges; i++) {
        assert_int_equal(ours->merges[i].left, theirs->merges[i].left);
        assert_int_equal(ours->merges[i].right, theirs->merges[i].right);
        assert_int_equal(ours->merges[i].product, theirs->merges[i].product);
    }
    assert_true(ida_tokenizer_hash(ours) == ida_tokenizer_hash(theirs));
    ida_tokenizer_free(ours);
    ida_tokenizer_free(theirs);
}

/* A text large enough for many tasks: random words of a Zipf-like law. */
static void write_text(const char *path, int64_t bytes) {
    char *s = malloc((size_t)bytes);
    int64_t n = 0;
    assert_non_null(s);
    for (uint64_t i = 0; n + 16 < bytes; i++) {
        uint32_t w[4];
        ida_philox(17, 4, i, w);
        uint32_t word = w[0] % (1u + w[1] % 5000u);
        for (uint32_t k = word + 7; k; k /= 11) s[n++] = (char)('a' + k % 11);
        s[n++] = w[2] % 10 ? ' ' : '\n';
    }
    put_file(path, s, n);
    free(s);
}

static void result_does_not_depend_on_the_thread_count(void **state) {
    const char *path = in_dir(*state, "words.txt");
    write_text(path, 5 << 20);
    uint64_t hash = 0;
    int before = ida_get_threads();
    for (int threads = 1; threads <= 5; threads += 2) {
        ida_tokenizer *t = NULL;
        assert_int_equal(ida_set_threads(threads), IDA_OK);
        assert_int_equal(train(path, 1200, 2, &t), IDA_OK);
        assert_true(!hash || hash == ida_tokenizer_hash(t));
        hash = ida_tokenizer_hash(t);
        ida_tokenizer_free(t);
    }
    ida_set_threads(before);
}

/* Files are read in pieces and pieces in tasks; no word may be cut in two. */
static void words_are_counted_as_if_read_whole(void **state) {
    const char *path = in_dir(*state, "words.txt");
    int64_t n, words = 0, bytes = 0, counted = 0, counted_bytes = 0;
    write_text(path, 3 << 20);
    char *text = get_file(path, &n);
    for (int64_t at = 0; at < n;) {
        int64_t len = (int64_t)ida_pretokenize_next((const uint8_t *)text + at, (size_t)(n - at));
        words += len > 1;
        bytes += len > 1 ? len : 0;
        at += len;
    }
    ida_words w = {0};
    ida_bpe_options o = {.inputs = &path, .n_inputs = 1};
    assert_int_equal(ida_words_count(&o, NULL, NULL, &w), IDA_OK);
    for (int64_t i = 0; i < w.n; i++) {
        counted += w.word[i].count;
        counted_bytes += w.word[i].count * w.word[i].len;
    }
    assert_int_equal(w.text_bytes, n);
    assert_int_equal(counted, words);
    assert_int_equal(counted_bytes, bytes);
    ida_words_free(&w);
    free(text);
}

static void compressed_input_gives_the_same_result(void **state) {
    int64_t n;
    char *text = get_file(CORPUS, &n);
    char *packed = malloc(ZSTD_compressBound((size_t)n));
    size_t m = ZSTD_compress(packed, ZSTD_compressBound((size_t)n), text, (size_t)n, 3);
    put_file(in_dir(*state, "c.txt.zst"), packed, (int64_t)m);
    ida_tokenizer *a = NULL, *b = NULL;
    assert_int_equal(train(CORPUS, 500, 2, &a), IDA_OK);
    assert_int_equal(train(in_dir(*state, "c.txt.zst"), 500, 2, &b), IDA_OK);
    assert_true(ida_tokenizer_hash(a) == ida_tokenizer_hash(b));
    ida_tokenizer_free(a);
    ida_tokenizer_free(b);
    free(text);
    free(packed);
}

static void small_vocabularies_and_rare_pairs(void **state) {
    ida_tokenizer *t = NULL;
    assert_int_equal(train(CORPUS, 257, 2, &t), IDA_OK);
    assert_int_equal(t->n_merges, 0);
    assert_int_equal(ida_tokenizer_vocab_size(t), 257);
    assert_int_equal(ida_tokenizer_eos(t), 256);
    assert_int_equal(t->byte_id['!'], 0); /* the order of the printable characters */
    assert_int_equal(t->byte_id[0], 188);
    ida_tokenizer_free(t);
    t = NULL;
    put_file(in_dir(*state, "few.txt"), "ab ab ab cd", 11);
    assert_int_equal(train(in_dir(*state, "few.txt"), 1000, 2, &t), IDA_OK);
    assert_int_equal(t->n_merges, 2); /* "ab" 3x, " ab" 2x; "cd" once */
    assert_int_equal(ida_tokenizer_vocab_size(t), 259);
    ida_tokenizer_free(t);
    t = NULL;
    assert_int_equal(train(in_dir(*state, "few.txt"), 1000, 3, &t), IDA_OK);
    assert_int_equal(t->n_merges, 1);
    ida_tokenizer_free(t);
}

/* (a,b) and (c,d) both occur 4 times: the smaller ids win. */
static void ties_go_to_the_smaller_ids(void **state) {
    ida_tokenizer *t = NULL;
    put_file(in_dir(*state, "tie.txt"), "cd\nab\ncd\nab\ncd\nab\ncd\nab\n", 24);
    assert_int_equal(train(in_dir(*state, "tie.txt"), 258, 2, &t), IDA_OK);
    assert_int_equal(t->n_merges, 1);
    assert_int_equal(t->merges[0].left, t->byte_id['a']);
    ida_tokenizer_free(t);
}

static int stop(void *user, const char *what, int64_t done, int64_t total) {
    (void)what; (void)done; (void)total;
    return --*(int *)user <= 0;
}

static void bad_requests_are_refused(void **state) {
    ida_tokenizer *t = NULL;
    assert_int_equal(train(CORPUS, 256, 2, &t), IDA_E_ARG);
    assert_int_equal(train(CORPUS, 1048577, 2, &t), IDA_E_ARG);
    assert_int_equal(train(CORPUS, 300, -1, &t), IDA_E_ARG);
    assert_int_equal(train(in_dir(*state, "absent.txt"), 300, 2, &t), IDA_E_IO);
    assert_int_equal(train(*state, 300, 2, &t), IDA_E_ARG);
    put_file(in_dir(*state, "empty.txt"), "", 0);
    assert_int_equal(train(in_dir(*state, "empty.txt"), 300, 2, &t), IDA_E_FORMAT);
    ida_bpe_options none = {.vocab_size = 300};
    assert_int_equal(ida_tokenizer_train(&none, NULL, NULL, &t), IDA_E_ARG);
    const char *path = CORPUS;
    ida_bpe_options o = {.vocab_size = 800, .inputs = &path, .n_inputs = 1};
    for (int calls = 1; calls <= 3; calls++) {
        int left = calls;
        assert_int_equal(ida_tokenizer_train(&o, stop, &left, &t), IDA_E_CANCELLED);
    }
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_and_ids_equal_the_reference_trainer),
        cmocka_unit_test(result_does_not_depend_on_the_thread_count),
        cmocka_unit_test(words_are_counted_as_if_read_whole),
        cmocka_unit_test(compressed_input_gives_the_same_result),
        cmocka_unit_test(small_vocabularies_and_rare_pairs),
        cmocka_unit_test(ties_go_to_the_smaller_ids),
        cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
