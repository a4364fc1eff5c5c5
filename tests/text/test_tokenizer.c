/* test_tokenizer.c - encode, decode, load and save against ids that HF tokenizers gave (tests/data/tokenizer). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/rng.h"
#include "core/threads.h"
#include "lib/scratch.h"
#include "text/recorded.h"
#include "text/files.h"

#define FOLDER IDA_TEST_DATA "/tokenizer/"

static ida_tokenizer *load(const char *name) {
    char path[512];
    ida_tokenizer *t = NULL;
    snprintf(path, sizeof path, FOLDER "%s.json", name);
    if (ida_tokenizer_load(path, &t)) fail_msg("%s", ida_last_error());
    return t;
}

static void check_recorded(const ida_tokenizer *t, const char *name) {
    static record r;
    char path[512];
    int64_t lines = 0;
    snprintf(path, sizeof path, FOLDER "%s.ids", name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (; next_record(f, 1, &r); lines++) {
        int32_t *ids;
        int64_t n;
        assert_int_equal(ida_tokenizer_encode(t, r.text, r.n, r.special, &ids, &n), IDA_OK);
        assert_int_equal(n, r.n_numbers);
        if (n) assert_memory_equal(ids, r.number, (size_t)n * sizeof *ids);
        ida_ids_free(ids);
    }
    fclose(f);
    assert_true(lines > 300);
}

static void ids_equal_the_reference(void **state) {
    (void)state;
    ida_tokenizer *t = load("trained");
    check_recorded(t, "trained");
    ida_tokenizer_free(t);
}

static void added_token_flags_prefix_space_and_ignore_merges_equal_the_reference(void **state) {
    (void)state;
    ida_tokenizer *t = load("flags");
    check_recorded(t, "flags");
    ida_tokenizer_free(t);
}

static void saved_file_loads_to_the_same_tokenizer(void **state) {
    static const char *const names[] = {"trained", "flags"};
    for (int i = 0; i < 2; i++) {
        ida_tokenizer *t = load(names[i]), *again = NULL;
        assert_int_equal(ida_tokenizer_save(t, *state), IDA_OK); /* a folder: tokenizer.json in it */
        assert_int_equal(ida_tokenizer_load(in_dir(*state, "tokenizer.json"), &again), IDA_OK);
        assert_true(ida_tokenizer_hash(t) == ida_tokenizer_hash(again));
        assert_int_equal(ida_tokenizer_vocab_size(t), ida_tokenizer_vocab_size(again));
        check_recorded(again, names[i]);
        ida_tokenizer_free(t);
        ida_tokenizer_free(again);
    }
}

static void round_trip(const ida_tokenizer *t, const char *s, size_t n, bool special) {
    int32_t *ids;
    int64_t k;
    char *back;
    size_t m;
    assert_int_equal(ida_tokenizer_encode(t, s, n, special, &ids, &k), IDA_OK);
    assert_int_equal(ida_tokenizer_decode(t, ids, k, false, &back, &m), IDA_OK);
    assert_int_equal(m, n);
    assert_memory_equal(back, s, n);
    assert_int_equal(back[m], 0);
    ida_string_free(back);
    ida_ids_free(ids);
}

static void any_bytes_round_trip(void **state) {
    (void)state;
    ida_tokenizer *t = load("trained");
    static char s[5000];
    for (uint64_t round = 0; round < 3000; round++) {
        size_t n = round % 100 == 0 ? sizeof s : round % 97;
        for (size_t i = 0; i < n; i++) {
            uint32_t w[4];
            ida_philox(9, 4, round * 8192 + i, w);
            s[i] = round % 3 == 0 ? (char)w[1] : round % 3 == 1 ? "abc"[w[1] % 3] : " the\xC3\xA9\xF0\x9F\x99\x82\n-"[w[1] % 12];
        }
        round_trip(t, s, n, round & 1);
    }
    round_trip(t, "", 0, true);
    ida_tokenizer_free(t);
}

/* The heap (long pieces) and the scan (short ones) both give what the definition gives. */
static void long_and_short_pieces_merge_alike(void **state) {
    (void)state;
    ida_tokenizer *t = load("trained");
    for (size_t n = 40; n < 60; n++) /* either side of the switch */
        for (int kind = 0; kind < 40; kind++) {
            char s[64];
            for (size_t i = 0; i < n; i++) {
                uint32_t w[4];
                ida_philox(3, 4, (uint64_t)kind * 64 + i, w);
                s[i] = "aeinrstlthe"[w[0] % 11];
            }
            int32_t *ids, slow[64];
            int64_t k, m = (int64_t)n;
            for (size_t i = 0; i < n; i++) slow[i] = t->byte_id[(uint8_t)s[i]];
            for (;;) { /* the definition: lowest rank, leftmost */
                int64_t best = -1;
                const ida_pair_slot *pair = NULL;
                for (int64_t i = 0; i + 1 < m; i++) {
                    const ida_pair_slot *p = ida_pair_find(t, slow[i], slow[i + 1]);
                    if (p && (!pair || p->rank < pair->rank)) {
                        pair = p;
                        best = i;
                    }
                }
                if (best < 0) break;
                slow[best] = pair->product;
                for (int64_t i = best + 1; i + 1 < m; i++) slow[i] = slow[i + 1];
                m--;
            }
            assert_int_equal(ida_tokenizer_encode(t, s, n, false, &ids, &k), IDA_OK);
            assert_int_equal(k, m);
            assert_memory_equal(ids, slow, (size_t)m * sizeof *ids);
            ida_ids_free(ids);
        }
    ida_tokenizer_free(t);
}

typedef struct shared { const ida_tokenizer *t; const char *text; size_t n; int32_t *want; int64_t n_want; int wrong; } shared;
static void encode_again(void *arg, int64_t task, int worker) {
    shared *s = arg;
    int32_t *ids = NULL;
    int64_t n;
    (void)task; (void)worker;
    ida_status st = ida_tokenizer_encode(s->t, s->text, s->n, false, &ids, &n);
    if (st || n != s->n_want || memcmp(ids, s->want, (size_t)n * sizeof *ids) != 0)
        __atomic_fetch_add(&s->wrong, 1, __ATOMIC_RELAXED);
    ida_ids_free(ids);
}

static void one_tokenizer_may_encode_in_several_threads(void **state) {
    (void)state;
    int64_t n;
    ida_tokenizer *t = load("trained");
    char *text = get_file(FOLDER "corpus.txt", &n);
    shared s = {.t = t, .text = text, .n = (size_t)n};
    int before = ida_get_threads();
    assert_int_equal(ida_tokenizer_encode(t, text, (size_t)n, false, &s.want, &s.n_want), IDA_OK);
    ida_set_threads(4);
    ida_parallel(200, encode_again, &s);
    ida_set_threads(before);
    assert_int_equal(s.wrong, 0);
    ida_ids_free(s.want);
    free(text);
    ida_tokenizer_free(t);
}

static void special_tokens_are_ids_only_when_asked(void **state) {
    (void)state;
    ida_tokenizer *t = load("trained");
    static const char text[] = "one<|endoftext|>two";
    int32_t *ids;
    int64_t n, eos = ida_tokenizer_eos(t), seen = 0;
    char *s;
    size_t bytes;
    assert_int_equal(eos, ida_tokenizer_vocab_size(t) - 1);
    assert_int_equal(ida_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n), IDA_OK);
    for (int64_t i = 0; i < n; i++) seen += ids[i] == eos;
    assert_int_equal(seen, 1);
    assert_int_equal(ida_tokenizer_decode(t, ids, n, true, &s, &bytes), IDA_OK);
    assert_string_equal(s, "onetwo");
    ida_string_free(s);
    ida_ids_free(ids);
    assert_int_equal(ida_tokenizer_encode(t, text, sizeof text - 1, false, &ids, &n), IDA_OK);
    for (int64_t i = 0; i < n; i++) assert_int_not_equal(ids[i], eos);
    ida_ids_free(ids);
    round_trip(t, text, sizeof text - 1, false);
    ida_tokenizer_free(t);
}

static void L34_id_outside_the_vocabulary_is_an_error(void **state) {
    (void)state;
    ida_tokenizer *t = load("trained");
    const int32_t bad[] = {-1, (int32_t)ida_tokenizer_vocab_size(t), INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        int32_t ids[2] = {0, bad[i]};
        char *s = NULL;
        size_t n;
        assert_int_equal(ida_tokenizer_decode(t, ids, 2, false, &s, &n), IDA_E_ARG);
        assert_non_null(strstr(ida_last_error(), "position 1"));
        assert_null(s);
        assert_null(ida_tokenizer_piece(t, bad[i], &n, NULL));
    }
    assert_null(ida_tokenizer_piece(t, INT64_MAX, NULL, NULL));
    char *s;
    size_t n;
    assert_int_equal(ida_tokenizer_decode(t, NULL, 0, false, &s, &n), IDA_OK);
    assert_int_equal(n, 0);
    ida_string_free(s);
    ida_tokenizer_free(t);
}

/* ---- refused files: every edit of a good file must give its status and name its cause */

static char *edited(const char *from, const char *to) {
    int64_t n;
    char *good = get_file(FOLDER "trained.json", &n), *at = strstr(good, from);
    assert_non_null(at);
    char *s = ida_asprintf("%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    free(good);
    assert_non_null(s);
    return s;
}

static void expect_refusal(const char *from, const char *to, ida_status want, const char *word) {
    char *text = edited(from, to);
    ida_tokenizer *t = NULL;
    ida_status st = ida_tokenizer_parse(text, strlen(text), "file", &t);
    if (st != want || !strstr(ida_last_error(), word)) fail_msg("%s -> %s: status %d, \"%s\"", from, to, st, ida_last_error());
    assert_null(t);
    free(text);
}

static void unsupported_files_are_refused_by_name(void **state) {
    (void)state;
    const ida_status no = IDA_E_UNSUPPORTED;
    expect_refusal("\"truncation\":null", "\"truncation\":{\"max_length\":5}", no, "truncation");
    expect_refusal("\"padding\":null", "\"padding\":{}", no, "padding");
    expect_refusal("\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}", no, "Precompiled");
    expect_refusal("\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"", no, "UnicodeScripts");
    expect_refusal("\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Digits\"", no, "do not fit");
    expect_refusal("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", no, "WordPiece");
    expect_refusal("\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}", no, "TemplateProcessing");
    expect_refusal("\"type\":\"BPE\"", "\"type\":\"Unigram\"", no, "Unigram");
    expect_refusal("\"dropout\":null", "\"dropout\":0.1", no, "dropout");
    expect_refusal("\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"", no, "continuing_subword_prefix");
    expect_refusal("\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", no, "end_of_word_suffix");
    expect_refusal("\"version\":\"1.0\"", "\"version\":\"2.0\"", no, "version");
}

static void keep_line(void *user, const char *line) { snprintf(user, 256, "%s", line); }

/* As in HF the byte vanishes; unlike there a line says so when the file is loaded. */
static void a_byte_without_a_token_is_warned_of(void **state) {
    (void)state;
    char *text = edited("\"!\":0", "\"!!unused\":0"), line[256] = "";
    ida_tokenizer *t = NULL;
    int32_t *ids;
    int64_t n, m;
    ida_set_log(keep_line, line);
    assert_int_equal(ida_tokenizer_parse(text, strlen(text), "file", &t), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_non_null(strstr(line, "1 of the 256 bytes (first: 0x21)"));
    assert_int_equal(ida_tokenizer_encode(t, "!a!", 3, false, &ids, &n), IDA_OK);
    ida_ids_free(ids);
    assert_int_equal(ida_tokenizer_encode(t, "a", 1, false, &ids, &m), IDA_OK);
    ida_ids_free(ids);
    assert_int_equal(n, m);
    ida_tokenizer_free(t);
    free(text);
}

static void damaged_files_are_refused(void **state) {
    (void)state;
    const ida_status bad = IDA_E_FORMAT;
    expect_refusal("\"!\":0", "\"!\":-1", bad, "out of range");
    expect_refusal("\"!\":0", "\"!\":99999999999", bad, "out of range");
    expect_refusal("\"!\":0", "\"!\":\"0\"", bad, "not an integer");
    expect_refusal("\"!\":0", "\"!\":1", bad, "two tokens");
    expect_refusal("\"!\":0", "\"!\":0,\"!\":0", bad, "JSON");
    expect_refusal("\"merges\":[", "\"merges\":[\"zzzz q\",", bad, "not in the vocabulary");
    expect_refusal("\"merges\":[", "\"merges\":[\"! z\",", bad, "merged token");
    expect_refusal("\"merges\":[", "\"merges\":[\"a b c\",", bad, "one blank");
    expect_refusal("\"merges\":[", "\"merges\":[\"ab\",", bad, "one blank");
    expect_refusal("\"merges\":[", "\"merges\":[[\"a\"],", bad, "neither");
    expect_refusal("\"merges\":[", "\"merges\":[3,", bad, "neither");
    expect_refusal("\"merges\":[", "\"mergez\":[", bad, "merges");
    expect_refusal("\"vocab\":{", "\"vocob\":{", bad, "vocab");
    expect_refusal("\"model\":{", "\"modul\":{", bad, "model");
    expect_refusal("\"content\":\"<|endoftext|>\"", "\"content\":\"\"", bad, "content");
    expect_refusal("\"content\":\"<|endoftext|>\"", "\"content\":\"new\"", bad, "another token");
    expect_refusal("\"content\":\"<|endoftext|>\"", "\"content\":\"!\"", bad, "vocabulary gives it");
    expect_refusal("\"special\":true", "\"special\":1", bad, "special");
    int64_t n;
    char *good = get_file(FOLDER "trained.json", &n);
    for (int64_t cut = 0; cut < n; cut += 1 + n / 300) {
        ida_tokenizer *t = NULL;
        assert_int_equal(ida_tokenizer_parse(good, (size_t)cut, "file", &t), IDA_E_FORMAT);
    }
    free(good);
    ida_tokenizer *t = NULL;
    assert_int_equal(ida_tokenizer_load("/dev/null/tokenizer.json", &t), IDA_E_IO);
}

/* A pair given twice takes its last rank, in either way of writing merges. */
static void duplicate_pair_takes_the_last_rank(void **state) {
    (void)state;
    ida_tokenizer *good = load("trained"), *t = NULL;
    const ida_merge first = good->merges[0];
    int64_t n;
    char *text = get_file(FOLDER "trained.json", &n);
    const char *one = strstr(text, "\"merges\":[") + 10, *end = strchr(one, ']') + 1; /* ["a","b"] */
    assert_string_equal(text + n - 4, "]]}}");
    char *more = ida_asprintf("%.*s,%.*s]}}", (int)(n - 3), text, (int)(end - one), one);
    assert_int_equal(ida_tokenizer_parse(more, strlen(more), "file", &t), IDA_OK);
    assert_int_equal(t->n_merges, good->n_merges);
    assert_int_equal(ida_pair_find(t, first.left, first.right)->rank, good->n_merges - 1);
    assert_int_equal(t->merges[t->n_merges - 1].product, first.product);
    assert_true(ida_tokenizer_hash(t) != ida_tokenizer_hash(good));
    free(text);
    free(more);
    ida_tokenizer_free(t);
    ida_tokenizer_free(good);
}

static void hash_is_of_content_not_of_layout(void **state) {
    (void)state;
    ida_tokenizer *t = load("trained"), *u = NULL;
    char *text = edited("\"version\":\"1.0\",", "\n  ");
    assert_int_equal(ida_tokenizer_parse(text, strlen(text), "file", &u), IDA_OK);
    assert_true(ida_tokenizer_hash(t) == ida_tokenizer_hash(u));
    ida_tokenizer_free(u);
    free(text);
    text = edited("\"special\":true", "\"special\":false");
    assert_int_equal(ida_tokenizer_parse(text, strlen(text), "file", &u), IDA_OK);
    assert_true(ida_tokenizer_hash(t) != ida_tokenizer_hash(u));
    assert_int_equal(ida_tokenizer_eos(u), -1);
    ida_tokenizer_free(u);
    free(text);
    ida_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_reference),
        cmocka_unit_test(added_token_flags_prefix_space_and_ignore_merges_equal_the_reference),
        cmocka_unit_test(saved_file_loads_to_the_same_tokenizer),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(long_and_short_pieces_merge_alike),
        cmocka_unit_test(one_tokenizer_may_encode_in_several_threads),
        cmocka_unit_test(special_tokens_are_ids_only_when_asked),
        cmocka_unit_test(L34_id_outside_the_vocabulary_is_an_error),
        cmocka_unit_test(unsupported_files_are_refused_by_name),
        cmocka_unit_test(a_byte_without_a_token_is_warned_of),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(duplicate_pair_takes_the_last_rank),
        cmocka_unit_test(hash_is_of_content_not_of_layout),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
