/* test_foreign.c - shards that others made: llm.c without a manifest, nanoGPT, Megatron; which files are which split, where
 * documents start, what is scored, and files that lie (L34: no id is believed). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/file.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "lib/scratch.h"

enum { SEP = 50256 };

/* The folder's name, kept longer than in_dir does. */
static char *folder(void **state, const char *name) {
    char *dir = ida_strdup(in_dir(*state, name));
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    return dir;
}

static void put_ids(ida_buf *b, const int64_t *ids, int64_t n, int width) {
    for (int64_t i = 0; i < n; i++) ida_buf_add(b, &ids[i], (size_t)width); /* little-endian */
}

static void put_llmc(const char *dir, const char *name, const int64_t *ids, int64_t n, int width) {
    int32_t header[256];
    ida_buf b = {0};
    ida_shard_header(header, width, n);
    ida_buf_add(&b, header, sizeof header);
    put_ids(&b, ids, n, width);
    put_file(in_dir(dir, name), b.data, b.len);
    ida_buf_free(&b);
}

static ida_dataset *open_set(const char *path, const char *split, const ida_data_source *source, int64_t vocab) {
    ida_dataset *d = NULL;
    const ida_dataset_options o = {.path = path, .source = source, .vocab = vocab};
    if (ida_dataset_open_as(&o, split, &d)) fail_msg("%s", ida_last_error());
    return d;
}

static void refused(const char *path, const char *split, const ida_data_source *source, int64_t vocab, ida_status want,
                    const char *word) {
    ida_dataset *d = NULL;
    const ida_dataset_options o = {.path = path, .source = source, .vocab = vocab};
    ida_status st = ida_dataset_open_as(&o, split, &d);
    int32_t ids[64];
    if (!st) st = ida_dataset_read(d, 0, ida_dataset_tokens(d), ids);
    ida_dataset_close(d);
    if (st != want || !strstr(ida_last_error(), word)) fail_msg("wanted \"%s\": status %d, \"%s\"", word, st, ida_last_error());
}

static void expect_ids(const ida_dataset *d, const int64_t *want, int64_t n) {
    int32_t got[64];
    assert_int_equal(ida_dataset_tokens(d), n);
    assert_int_equal(ida_dataset_read(d, 0, n, got), IDA_OK);
    for (int64_t i = 0; i < n; i++) assert_int_equal(got[i], want[i]);
}

static void expect_docs(const ida_dataset *d, const int64_t *want, int64_t n) {
    int64_t *starts, docs;
    assert_int_equal(ida_dataset_docs(d, &starts, &docs), IDA_OK);
    assert_int_equal(docs, n);
    for (int64_t i = 0; i <= n; i++) assert_int_equal(starts[i], want[i]);
    ida_free(starts);
}

/* As llm.c's fineweb.py leaves them: the first shard is validation, documents run on into the next. */
static void llmc_shards_split_by_name(void **state) {
    static const int64_t val[] = {SEP, 1, 2}, train[] = {3, SEP, 4, 5}, more[] = {SEP, 6}, both[] = {3, SEP, 4, 5, SEP, 6};
    static const int64_t docs[] = {0, 1, 4, 6}, one[] = {0, 3};
    char *dir = folder(state, "llmc");
    put_llmc(dir, "fineweb_val_000000.bin", val, 3, 2);
    put_llmc(dir, "fineweb_train_000001.bin", train, 4, 2);
    put_llmc(dir, "fineweb_train_000002.bin", more, 2, 2);
    put_llmc(dir, "fineweb_test_000003.bin", more, 2, 2);
    put_file(in_dir(dir, "README.md"), "x", 1);
    ida_dataset *d = open_set(dir, "train", NULL, 50257);
    expect_ids(d, both, 6);
    expect_docs(d, docs, 3);
    assert_int_equal(ida_dataset_separator(d), SEP);
    assert_int_equal(ida_dataset_vocab(d), 50257);
    assert_int_equal(ida_dataset_bytes(d), 0);
    assert_true(ida_dataset_tokenizer_hash(d) == 0);
    assert_string_equal(ida_dataset_format(d), "llmc");
    uint64_t hash = ida_dataset_hash(d);
    ida_dataset_close(d);
    d = open_set(dir, "val", NULL, 0);
    expect_ids(d, val, 3);
    expect_docs(d, one, 1);
    assert_int_equal(ida_dataset_vocab(d), 65536);
    ida_dataset_close(d);
    /* by a pattern, and one file */
    d = open_set(in_dir(dir, "fineweb_train_*.bin"), "train", NULL, 0);
    expect_ids(d, both, 6);
    assert_true(ida_dataset_hash(d) == hash);
    ida_dataset_close(d);
    d = open_set(in_dir(dir, "fineweb_train_000001.bin"), "train", NULL, 0);
    expect_ids(d, train, 4);
    assert_true(ida_dataset_hash(d) != hash);
    ida_dataset_close(d);
    d = open_set(in_dir(dir, "fineweb_train_000001.bin"), "val", NULL, 0);
    assert_int_equal(ida_dataset_tokens(d), 0); /* no validation data is no error */
    ida_dataset_close(d);
    /* validation from elsewhere: all files there, unless some are named val */
    const ida_data_source from_file = {.val = in_dir(dir, "fineweb_train_000002.bin")}, from_dir = {.val = dir};
    d = open_set(in_dir(dir, "fineweb_train_000001.bin"), "val", &from_file, 0);
    expect_ids(d, more, 2);
    ida_dataset_close(d);
    d = open_set(in_dir(dir, "fineweb_train_000001.bin"), "val", &from_dir, 0);
    expect_ids(d, val, 3);
    ida_dataset_close(d);
    refused(in_dir(dir, "absent_*.bin"), "train", NULL, 0, IDA_E_IO, "absent");
    refused(in_dir(dir, "fineweb_val_*.bin"), "train", NULL, 0, IDA_E_IO, "no token shards");
    ida_free(dir);
}

static void llmc_shards_of_32_bits(void **state) {
    static const int64_t ids[] = {128000, 70000, 5, 128000, 9};
    static const int64_t docs[] = {0, 3, 5};
    char *dir = folder(state, "llama");
    put_llmc(dir, "a_train_000001.bin", ids, 5, 4);
    ida_dataset *d = open_set(dir, "train", NULL, 128256);
    expect_ids(d, ids, 5);
    expect_docs(d, docs, 2);
    assert_int_equal(ida_dataset_separator(d), 128000);
    ida_dataset_close(d);
    refused(dir, "train", NULL, 128000, IDA_E_FORMAT, "token 0 is 128000");
    ida_free(dir);
}

/* The usual separator is believed only where it is found; another one must be told. */
static void separators_are_found_or_told(void **state) {
    static const int64_t ids[] = {7, 1, 2, 7, 3};
    static const int64_t whole[] = {0, 5}, docs[] = {0, 3, 5};
    char *dir = folder(state, "seps");
    put_llmc(dir, "train.bin", ids, 5, 2);
    ida_dataset *d = open_set(dir, "train", NULL, 0);
    assert_int_equal(ida_dataset_separator(d), -1);
    expect_docs(d, whole, 1);
    uint64_t hash = ida_dataset_hash(d);
    ida_dataset_close(d);
    ida_data_source told = {.has_separator = true, .separator = 7};
    d = open_set(dir, "train", &told, 0);
    expect_docs(d, docs, 2);
    assert_true(ida_dataset_hash(d) != hash); /* another set to a resumed run */
    ida_dataset_close(d);
    told.separator = 100;
    refused(dir, "train", &told, 100, IDA_E_ARG, "separator 100");
    ida_free(dir);
}

static void nanogpt_files_must_be_named(void **state) {
    static const int64_t train[] = {1, 2, SEP, 3, SEP}, val[] = {9, 65535};
    static const int64_t docs[] = {0, 2, 4, 5};
    const ida_data_source nano = {.format = "nanogpt"}, wrong = {.format = "nano"};
    char *dir = folder(state, "nano");
    ida_buf b = {0};
    put_ids(&b, train, 5, 2);
    put_file(in_dir(dir, "train.bin"), b.data, b.len);
    b.len = 0;
    put_ids(&b, val, 2, 2);
    put_file(in_dir(dir, "val.bin"), b.data, b.len);
    refused(dir, "train", NULL, 0, IDA_E_FORMAT, "nanogpt");
    refused(dir, "train", &wrong, 0, IDA_E_ARG, "nanogpt");
    ida_dataset *d = open_set(dir, "train", &nano, 50257);
    expect_ids(d, train, 5);
    expect_docs(d, docs, 3); /* a separator behind a document is before the next; the last stands alone */
    ida_dataset_close(d);
    d = open_set(dir, "val", &nano, 0);
    expect_ids(d, val, 2);
    ida_dataset_close(d);
    refused(dir, "val", &nano, 50257, IDA_E_FORMAT, "token 1 is 65535");
    put_file(in_dir(dir, "val.bin"), b.data, 3);
    refused(dir, "val", &nano, 0, IDA_E_FORMAT, "16-bit");
    put_file(in_dir(dir, "val.bin"), "", 0);
    d = open_set(dir, "val", &nano, 0);
    assert_int_equal(ida_dataset_tokens(d), 0);
    ida_dataset_close(d);
    ida_buf_free(&b);
    ida_free(dir);
}

/* ---- Megatron */

typedef struct megatron { int64_t ids[32]; int64_t n, dtype, seqs, docs; int32_t lengths[8]; int64_t first[8]; } megatron;

/* Documents of 3, 0, 1 + 2 (two sequences) and 4 tokens; the last two end with an id 50 that stands for end of document. */
static const megatron good = {{1, 2, 3, 4, 5, 50, 6, 7, 8, 50}, 10, 8, 5, 5, {3, 0, 1, 2, 4}, {0, 1, 2, 4, 5}};

static const char *put_megatron(void **state, const megatron *m, int64_t cut) {
    static const int width[9] = {0, 1, 1, 2, 4, 8, 4, 4, 2};
    ida_buf b = {0}, idx = {0};
    const uint64_t version = 1;
    uint8_t dtype = (uint8_t)m->dtype;
    put_ids(&b, m->ids, m->n, width[dtype]);
    ida_buf_add(&idx, "MMIDIDX\0\0", 9);
    ida_buf_add(&idx, &version, 8);
    ida_buf_add(&idx, &dtype, 1);
    ida_buf_add(&idx, &m->seqs, 8);
    ida_buf_add(&idx, &m->docs, 8);
    ida_buf_add(&idx, m->lengths, 4 * 5);
    for (int64_t i = 0, at = 0; i < 5; at += (int64_t)m->lengths[i++] * width[dtype]) ida_buf_add(&idx, &at, 8);
    ida_buf_add(&idx, m->first, 8 * 5);
    put_file(in_dir(*state, "mega_text_document.bin"), b.data, b.len);
    put_file(in_dir(*state, "mega_text_document.idx"), idx.data, idx.len - cut);
    ida_buf_free(&b);
    ida_buf_free(&idx);
    return in_dir(*state, "mega_text_document");
}

static void megatron_documents_come_from_the_index(void **state) {
    static const int64_t dtypes[] = {8, 4, 5, 3, 1, 2}, docs[] = {0, 3, 6, 10};
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        megatron m = good;
        m.dtype = dtypes[k];
        const char *prefix = put_megatron(state, &m, 0);
        ida_dataset *d = open_set(prefix, "train", NULL, 51);
        expect_ids(d, good.ids, 10);
        expect_docs(d, docs, 3); /* the empty one has nothing to show */
        assert_int_equal(ida_dataset_documents(d), 4);
        assert_true(ida_dataset_indexed(d));
        assert_int_equal(ida_dataset_separator(d), -1);
        assert_string_equal(ida_dataset_format(d), "megatron");
        static const int64_t next[] = {0, 3, 3, 3, 6, 6, 6, 10, 10, 10, 10, 10};
        for (int64_t i = 0; i < 12; i++) assert_int_equal(ida_dataset_next_start(d, i), next[i]);
        ida_dataset_close(d);
        refused(prefix, "train", NULL, 50, IDA_E_FORMAT, "token 5 is 50");
    }
    ida_dataset *d = open_set(in_dir(*state, "mega_text_document.idx"), "train", NULL, 0);
    expect_ids(d, good.ids, 10);
    ida_dataset_close(d);
}

/* L13, data part: a document's last token has no target, every other has the next token; sequences start at documents. */
static void L13_targets_stay_inside_the_index_s_documents(void **state) {
    ida_dataset *d = open_set(put_megatron(state, &good, 0), "train", NULL, 0);
    ida_rows *r = NULL;
    for (int64_t T = 1; T <= 10; T++) {
        assert_int_equal(ida_rows_new(10, T, &r), IDA_OK);
        assert_int_equal(ida_rows_fill_in_order(r, d, 0, 10), IDA_OK);
        assert_int_equal(r->n_tokens, 9);
        int64_t scored = 0, seq = 0;
        for (int64_t i = 0; i < 9; i++) {
            bool last = i == 2 || i == 5;
            assert_int_equal(r->ids[i], good.ids[i]);
            assert_int_equal(r->targets[i], last ? -1 : good.ids[i + 1]);
            scored += !last;
            if (i % T == 0 || i == 3 || i == 6) assert_int_equal(r->cu[seq++], i);
        }
        assert_int_equal(r->n_scored, scored);
        assert_int_equal(r->n_seq, seq);
        ida_rows_free(r);
    }
    ida_dataset_close(d);
}

static void lying_megatron_indices_are_refused(void **state) {
    const ida_status bad = IDA_E_FORMAT;
    megatron m;
#define LIE(change, want, word) m = good, change, refused(put_megatron(state, &m, 0), "train", NULL, 0, want, word)
    LIE(m.seqs = 4, bad, "");
    LIE(m.seqs = -1, bad, "counts");
    LIE(m.seqs = INT64_MAX, bad, "counts");
    LIE(m.docs = 0, bad, "counts");
    LIE(m.docs = INT64_MAX, bad, "counts");
    LIE(m.docs = 6, bad, "cut off");
    LIE(m.docs = 4, bad, "behind the last");
    LIE(m.n = 9, bad, "beyond the tokens");
    LIE(m.n = 11, bad, "more tokens");
    LIE(m.lengths[0] = -1, bad, "one after the other");
    LIE(m.lengths[4] = INT32_MAX, bad, "beyond the tokens");
    LIE(m.first[0] = 1, bad, "runs");
    LIE(m.first[2] = 0, bad, "runs");
    LIE(m.first[3] = 6, bad, "runs");
    LIE(m.first[1] = -1, bad, "runs");
    LIE(m.first[4] = 4, bad, "behind the last");
    LIE(m.dtype = 7, IDA_E_UNSUPPORTED, "dtype 7");
    LIE(m.dtype = 0, IDA_E_UNSUPPORTED, "dtype 0");
    LIE((m.dtype = 4, m.ids[3] = -2), bad, "token 3");
    LIE((m.dtype = 5, m.ids[3] = (int64_t)1 << 40), bad, "token 3");
    LIE((m.dtype = 3, m.ids[3] = -1), bad, "token 3");
#undef LIE
    for (int64_t cut = 1; cut < 34 + 12 * 5 + 8 * 5; cut++) refused(put_megatron(state, &good, cut), "train", NULL, 0, bad,
                                                                    "idx");
    char *dir = folder(state, "mixed");
    static const int64_t ids[] = {1, 2};
    put_llmc(dir, "a.bin", ids, 2, 2);
    put_llmc(dir, "b.bin", ids, 2, 2);
    put_file(in_dir(dir, "b.bin"), "\1\0\2\0", 4);
    refused(dir, "train", NULL, 0, bad, "b.bin"); /* all are what the first is */
    const ida_data_source mega = {.format = "megatron"};
    refused(in_dir(dir, "a.bin"), "train", &mega, 0, IDA_E_IO, "a.idx");
    ida_free(dir);
}

static void inspect_counts_what_it_finds(void **state) {
    static const int64_t ids[] = {SEP, 1, 2, 3, SEP, SEP, 4, 5};
    char *dir = folder(state, "look"), *text = NULL;
    put_llmc(dir, "train.bin", ids, 8, 2);
    const ida_inspect_options o = {.path = dir, .samples = 2, .sample_tokens = 2};
    if (ida_data_describe(&o, &text)) fail_msg("%s", ida_last_error());
    json_t *j = json_loads(text, 0, NULL), *train = json_object_get(json_object_get(j, "splits"), "train");
    json_t *len = json_object_get(train, "document_tokens"), *bars = json_object_get(train, "histogram");
    assert_int_equal(json_integer_value(json_object_get(train, "documents")), 3);
    assert_int_equal(json_integer_value(json_object_get(len, "min")), 0);
    assert_int_equal(json_integer_value(json_object_get(len, "p50")), 2);
    assert_int_equal(json_integer_value(json_object_get(len, "max")), 3);
    assert_int_equal(json_array_size(bars), 3); /* 0, [1, 2), [2, 4) */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(bars, 2), "documents")), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(bars, 2), "tokens")), 5);
    assert_int_equal(json_array_size(json_object_get(train, "samples")), 2);
    assert_true(json_is_true(json_object_get(json_array_get(json_object_get(train, "samples"), 0), "cut")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(j, "splits"), "val"), "tokens")), 0);
    json_decref(j);
    ida_string_free(text);
    ida_free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llmc_shards_split_by_name),
        cmocka_unit_test(llmc_shards_of_32_bits),
        cmocka_unit_test(separators_are_found_or_told),
        cmocka_unit_test(nanogpt_files_must_be_named),
        cmocka_unit_test(megatron_documents_come_from_the_index),
        cmocka_unit_test(L13_targets_stay_inside_the_index_s_documents),
        cmocka_unit_test(lying_megatron_indices_are_refused),
        cmocka_unit_test(inspect_counts_what_it_finds),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
