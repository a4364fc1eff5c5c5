/* test_dataset.c - reading packed sets: rows and order (L35, L38 on one rank), shard edges, and sets that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "core/file.h"
#include "core/mem.h"
#include "core/rng.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "lib/scratch.h"

enum { VOCAB = 300, SEP = 299 };

static void put_shard(ida_buf *list, const char *dir, const char *split, int64_t index, const int32_t *ids, int64_t n,
                      int width) {
    char name[64];
    int32_t header[256];
    ida_buf b = {0};
    ida_shard_header(header, width, n);
    ida_buf_add(&b, header, sizeof header);
    for (int64_t i = 0; i < n; i++) ida_buf_add(&b, &ids[i], (size_t)width); /* little-endian */
    snprintf(name, sizeof name, "%s_%06lld.bin", split, (long long)index);
    put_file(in_dir(dir, name), b.data, b.len);
    ida_buf_addf(list, "%s{\"name\":\"%s\",\"tokens\":%lld,\"xxh3\":\"%016llx\"}", index ? "," : "", name, (long long)n,
                 (unsigned long long)XXH3_64bits(b.data, (size_t)b.len));
    ida_buf_free(&b);
}

/* A set whose training stream is ids, cut into shards of the given sizes (0 is an empty shard). */
static const char *make_set(void **state, const char *name, const int32_t *ids, const int64_t *sizes, int64_t n_sizes,
                            int64_t vocab) {
    static char kept[4][1024]; /* in_dir keeps only a few */
    static int next;
    char *dir = kept[next++ % 4];
    snprintf(dir, sizeof kept[0], "%s/%s", (const char *)*state, name);
    ida_buf list = {0}, text = {0};
    int64_t n = 0, docs = 0;
    ida_buf_add(&list, "", 0);
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    for (int64_t i = 0; i < n_sizes; i++) {
        put_shard(&list, dir, "train", i, ids + n, sizes[i], ida_shard_width(vocab));
        n += sizes[i];
    }
    for (int64_t i = 0; i < n; i++) docs += ids[i] == SEP;
    ida_buf_addf(&text, "{\"format\":\"idattn-shards\",\"version\":1,\"tokenizer_hash\":\"00000000000000ff\",\"vocab_size\":%lld,"
                 "\"separator\":{\"id\":%d,\"side\":\"before\"},", (long long)vocab, SEP);
    ida_buf_addf(&text, "\"splits\":{\"train\":{\"tokens\":%lld,\"documents\":%lld,\"bytes\":%lld,\"shards\":[%s]},",
                 (long long)n,
                 (long long)docs, (long long)n * 3, list.data);
    ida_buf_addf(&text, "\"val\":{\"tokens\":0,\"documents\":0,\"bytes\":0,\"shards\":[]}}}");
    put_file(in_dir(dir, "manifest.json"), text.data, text.len);
    ida_buf_free(&list);
    ida_buf_free(&text);
    return dir;
}

static ida_dataset *open_train(const char *dir) {
    ida_dataset *d = NULL;
    if (ida_dataset_open(dir, "train", true, &d)) fail_msg("%s", ida_last_error());
    return d;
}

/* Separator first, then now and then; two in a row happen. */
static void fill_stream(int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        ida_philox(2, IDA_STREAM_TEST, (uint64_t)i, w);
        ids[i] = i == 0 || w[0] % 9 == 0 ? SEP : (int32_t)(w[1] % SEP);
    }
}

static void reads_cross_shard_edges_and_empty_shards(void **state) {
    static const int64_t sizes[] = {0, 1, 5, 0, 0, 64, 1, 30, 0};
    int32_t ids[101], got[101];
    fill_stream(ids, 101);
    ida_dataset *d = open_train(make_set(state, "edges", ids, sizes, 9, VOCAB));
    assert_int_equal(ida_dataset_tokens(d), 101);
    assert_int_equal(ida_dataset_bytes(d), 303);
    assert_int_equal(ida_dataset_vocab(d), VOCAB);
    assert_int_equal(ida_dataset_separator(d), SEP);
    assert_true(ida_dataset_tokenizer_hash(d) == 0xff);
    for (int64_t pos = 0; pos <= 101; pos++)
        for (int64_t n = 0; n <= 101 - pos; n++) {
            assert_int_equal(ida_dataset_read(d, pos, n, got), IDA_OK);
            assert_memory_equal(got, ids + pos, (size_t)n * sizeof *ids);
        }
    assert_int_equal(ida_dataset_read(d, 100, 2, got), IDA_E_ARG);
    assert_int_equal(ida_dataset_read(d, -1, 1, got), IDA_E_ARG);
    assert_int_equal(ida_dataset_read(d, 0, -1, got), IDA_E_ARG);
    assert_int_equal(ida_dataset_read(d, INT64_MAX, 2, got), IDA_E_ARG);
    ida_dataset_close(d);
}

static void wide_tokens_are_read(void **state) {
    static const int64_t sizes[] = {3, 4};
    static const int32_t ids[7] = {SEP, 70000, 99999, SEP, 65535, 65536, 1};
    int32_t got[7];
    ida_dataset *d = open_train(make_set(state, "wide", ids, sizes, 2, 100000));
    assert_int_equal(ida_dataset_read(d, 0, 7, got), IDA_OK);
    assert_memory_equal(got, ids, sizeof ids);
    ida_dataset_close(d);
}

static void documents_are_found_by_the_separator(void **state) {
    static const int64_t sizes[] = {4, 5};
    static const int32_t ids[9] = {SEP, 1, 2, SEP, SEP, 3, SEP, 4, 5};
    static const int64_t want[] = {0, 3, 4, 6, 9};
    ida_dataset *d = open_train(make_set(state, "docs", ids, sizes, 2, VOCAB));
    int64_t *starts, n;
    assert_int_equal(ida_dataset_docs(d, &starts, &n), IDA_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(starts, want, sizeof want);
    ida_free(starts);
    ida_dataset_close(d);
    ida_dataset *val = NULL;
    assert_int_equal(ida_dataset_open(in_dir(*state, "docs"), "val", true, &val), IDA_OK);
    assert_int_equal(ida_dataset_docs(val, &starts, &n), IDA_OK);
    assert_int_equal(n, 0);
    ida_free(starts);
    ida_dataset_close(val);
}

/* Checks one filled batch against the stream and marks the inputs that were used. */
static void check_rows(const ida_rows *r, const int32_t *ids, int64_t n, const int64_t *samples, int64_t rows, int *used) {
    int64_t at = 0, seq = 0;
    for (int64_t k = 0; k < rows; k++) {
        int64_t from = samples[k] * r->T, len = n - 1 - from < r->T ? n - 1 - from : r->T;
        for (int64_t i = 0; i < len; i++, at++) {
            assert_int_equal(r->ids[at], ids[from + i]);
            assert_int_equal(r->targets[at], ids[from + i + 1]);
            if (i == 0 || ids[from + i] == SEP) {
                assert_int_equal(r->cu[seq], at);
                assert_int_equal(r->pos0[seq], 0);
                seq++;
            }
            if (used) used[from + i]++;
        }
    }
    assert_int_equal(r->n_tokens, at);
    assert_int_equal(r->n_scored, at);
    assert_int_equal(r->n_seq, seq);
    assert_int_equal(r->cu[seq], at);
}

/* L38 on one rank: B*T tokens, B*T+1, one token, an empty shard among others; nothing hangs, nothing is lost. */
static void L38_every_token_of_every_epoch_is_used_once(void **state) {
    enum { B = 3 };
    static const int64_t lengths[] = {2, 3, 11, 12, 13, 12 * 5, 12 * 5 + 1, 12 * 5 + 2, 101};
    static const int64_t Ts[] = {1, 4, 12, 200};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t t = 0; t < sizeof Ts / sizeof *Ts; t++) {
            int64_t n = lengths[l], T = Ts[t], sizes[] = {1, 0, n / 2, n - 1 - n / 2};
            int32_t ids[101];
            char name[64];
            ida_rows *r = NULL;
            fill_stream(ids, n);
            snprintf(name, sizeof name, "once-%d", (int)l);
            ida_dataset *d = open_train(make_set(state, name, ids, sizes, 4, VOCAB));
            assert_int_equal(ida_rows_new(B, T, &r), IDA_OK);
            int64_t samples = ida_dataset_samples(d, T);
            assert_int_equal(samples, (n - 1 + T - 1) / T);
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                int used[101] = {0};
                for (int64_t i = 0; i < samples; i += B) {
                    int64_t rows = samples - i < B ? samples - i : B, want[B];
                    for (int64_t k = 0; k < rows; k++)
                        want[k] = (int64_t)ida_permute(7, IDA_STREAM_ORDER ^ (uint64_t)epoch, (uint64_t)samples,
                                                       (uint64_t)(i + k));
                    assert_int_equal(ida_rows_fill(r, d, 7, epoch * samples + i, rows), IDA_OK);
                    check_rows(r, ids, n, want, rows, used);
                }
                for (int64_t i = 0; i < n - 1; i++) assert_int_equal(used[i], 1);
                assert_int_equal(used[n - 1], 0); /* the last token is only a target */
            }
            ida_rows_free(r);
            ida_dataset_close(d);
        }
}

enum { MAX_EPOCHS = 40 };

/* Checks the rows of samples first .. against the stream and marks their inputs in the epoch they belong to. */
static void mark_inputs(const ida_rows *r, const int32_t *ids, int64_t n, int64_t first, int64_t rows, int64_t samples,
                        int (*used)[101]) {
    int64_t at = 0;
    for (int64_t k = first; k < first + rows; k++) {
        uint64_t epoch = (uint64_t)(k / samples);
        assert_true(epoch < MAX_EPOCHS);
        int64_t i = (int64_t)ida_permute(7, IDA_STREAM_ORDER ^ epoch, (uint64_t)samples, (uint64_t)(k % samples)) * r->T;
        for (int64_t stop = i + r->T < n - 1 ? i + r->T : n - 1; i < stop; i++, at++) {
            assert_int_equal(r->ids[at], ids[i]);
            assert_int_equal(r->targets[at], ids[i + 1]);
            used[epoch][i]++;
        }
    }
    assert_int_equal(r->n_tokens, at);
}

/* L38: any number of ranks takes the same samples in the same order; every token of every epoch once, whatever the data's length
 * is to the batch (1 token more than nothing, B*T, B*T+1), also with an empty shard and one of 1 token. */
static void L38_ranks_share_every_token_of_every_epoch_once(void **state) {
    enum { BATCH = 12, EPOCHS = 3 };
    const int64_t T = 4;
    static const int64_t lengths[] = {2, 5, 12 * 4, 12 * 4 + 1, 12 * 4 + 2, 101};
    static const int64_t worlds[] = {1, 2, 3, 4, 5, 7, 8, 12};
    ida_rows *r = NULL;
    assert_int_equal(ida_rows_new(BATCH, T, &r), IDA_OK);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        int64_t n = lengths[l], sizes[] = {1, 0, n - 1};
        int32_t ids[101];
        char name[64];
        fill_stream(ids, n);
        snprintf(name, sizeof name, "ranks-%d", (int)l);
        ida_dataset *d = open_train(make_set(state, name, ids, sizes, 3, VOCAB));
        int64_t samples = ida_dataset_samples(d, T), steps = (EPOCHS * samples + BATCH - 1) / BATCH;
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
            int used[MAX_EPOCHS][101] = {{0}};
            int64_t next = 0;
            for (int64_t step = 0; step < steps; step++)
                for (int64_t rank = 0; rank < worlds[w]; rank++) {
                    int64_t first, rows;
                    assert_int_equal(ida_rank_share(BATCH, step, rank, worlds[w], &first, &rows), IDA_OK);
                    assert_int_equal(first, next); /* the order of a single rank */
                    assert_true(rows >= BATCH / worlds[w] && rows <= BATCH / worlds[w] + 1);
                    next += rows;
                    assert_int_equal(ida_rows_fill(r, d, 7, first, rows), IDA_OK);
                    mark_inputs(r, ids, n, first, rows, samples, used);
                }
            assert_int_equal(next, steps * BATCH);
            for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
                for (int64_t i = 0; i < n - 1; i++) assert_int_equal(used[epoch][i], 1);
        }
        ida_dataset_close(d);
    }
    ida_rows_free(r);
}

static void L38_too_many_ranks_are_refused_before_step_1(void **state) {
    (void)state;
    int64_t first, rows;
    for (int64_t rank = 0; rank < 5; rank++) assert_int_equal(ida_rank_share(4, 0, rank, 5, &first, &rows), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "5 ranks"));
    assert_int_equal(ida_rank_share(4, 0, 2, 2, &first, &rows), IDA_E_ARG);
    assert_int_equal(ida_rank_share(4, 0, -1, 2, &first, &rows), IDA_E_ARG);
    assert_int_equal(ida_rank_share(4, 0, 0, 0, &first, &rows), IDA_E_ARG);
    assert_int_equal(ida_rank_share(4, -1, 0, 1, &first, &rows), IDA_E_ARG);
    assert_int_equal(ida_rank_share(4, INT64_MAX / 4, 0, 1, &first, &rows), IDA_E_ARG);
    assert_int_equal(ida_rank_share(4, INT64_MAX / 4 - 1, 3, 4, &first, &rows), IDA_OK);
}

/* L35: batch number k is the same whether or not earlier ones were drawn, whole or in parts, also across a shard and an epoch
 * edge. */
static void L35_a_batch_is_a_function_of_its_number(void **state) {
    static const int64_t sizes[] = {50, 1, 50};
    int32_t ids[101];
    fill_stream(ids, 101);
    const char *dir = make_set(state, "resume", ids, sizes, 3, VOCAB);
    ida_dataset *d = open_train(dir);
    ida_rows *all = NULL, *part = NULL;
    assert_int_equal(ida_rows_new(4, 8, &all), IDA_OK);
    assert_int_equal(ida_rows_new(4, 8, &part), IDA_OK);
    for (int64_t first = 0; first < 60; first++) {
        assert_int_equal(ida_rows_fill(all, d, 3, first, 4), IDA_OK);
        ida_dataset *again = open_train(dir);
        int64_t at = 0;
        for (int64_t k = 0; k < 4; k++) { /* micro-batches of one row, from a fresh start */
            assert_int_equal(ida_rows_fill(part, again, 3, first + k, 1), IDA_OK);
            assert_memory_equal(part->ids, all->ids + at, (size_t)part->n_tokens * sizeof *ids);
            assert_memory_equal(part->targets, all->targets + at, (size_t)part->n_tokens * sizeof *ids);
            at += part->n_tokens;
        }
        assert_int_equal(at, all->n_tokens);
        assert_true(ida_dataset_hash(d) == ida_dataset_hash(again));
        ida_dataset_close(again);
    }
    ida_rows_free(all);
    ida_rows_free(part);
    ida_dataset_close(d);
}

static void rows_in_order_end_with_a_short_batch(void **state) {
    static const int64_t sizes[] = {30};
    int32_t ids[30];
    fill_stream(ids, 30);
    ida_dataset *d = open_train(make_set(state, "order", ids, sizes, 1, VOCAB));
    ida_rows *r = NULL;
    assert_int_equal(ida_rows_new(3, 8, &r), IDA_OK);
    static const int64_t want[] = {0, 1, 2, 3};
    assert_int_equal(ida_rows_fill_in_order(r, d, 0, 3), IDA_OK);
    check_rows(r, ids, 30, want, 3, NULL);
    assert_int_equal(ida_rows_fill_in_order(r, d, 3, 3), IDA_OK); /* 29 - 24 = 5 inputs */
    check_rows(r, ids, 30, want + 3, 1, NULL);
    assert_int_equal(ida_rows_fill_in_order(r, d, 4, 3), IDA_OK);
    assert_int_equal(r->n_tokens, 0);
    assert_int_equal(r->n_seq, 0);
    assert_int_equal(ida_rows_fill(r, d, 0, 0, 4), IDA_E_ARG);
    assert_int_equal(ida_rows_fill(r, d, 0, -1, 1), IDA_E_ARG);
    assert_int_equal(ida_rows_fill(r, d, 0, INT64_MAX, 1), IDA_E_ARG);
    ida_rows_free(r);
    r = NULL;
    assert_int_equal(ida_rows_new(0, 8, &r), IDA_E_ARG);
    assert_int_equal(ida_rows_new(8, 0, &r), IDA_E_ARG);
    assert_int_equal(ida_rows_new(INT64_MAX / 2, 8, &r), IDA_E_ARG);
    assert_null(r);
    ida_dataset_close(d);
}

/* L13, data part: a target is the next token of the same document, or the separator that ends it. */
static void L13_no_target_lies_inside_another_document(void **state) {
    static const int64_t sizes[] = {101};
    int32_t ids[101];
    fill_stream(ids, 101);
    ida_dataset *d = open_train(make_set(state, "targets", ids, sizes, 1, VOCAB));
    ida_rows *r = NULL;
    assert_int_equal(ida_rows_new(2, 10, &r), IDA_OK);
    assert_int_equal(ida_rows_fill_in_order(r, d, 0, 2), IDA_OK);
    for (int64_t s = 0; s < r->n_seq; s++)
        for (int64_t i = r->cu[s]; i + 1 < r->cu[s + 1]; i++) {
            assert_int_equal(r->targets[i], r->ids[i + 1]);
            assert_int_not_equal(r->ids[i + 1], SEP); /* a separator always starts a sequence */
        }
    ida_rows_free(r);
    ida_dataset_close(d);
}

static void sets_without_two_tokens_are_refused_by_rows(void **state) {
    static const int32_t one[1] = {SEP};
    ida_rows *r = NULL;
    assert_int_equal(ida_rows_new(2, 8, &r), IDA_OK);
    for (int64_t n = 0; n < 2; n++) {
        ida_dataset *d = open_train(make_set(state, n ? "one" : "none", one, &n, 1, VOCAB));
        assert_int_equal(ida_dataset_samples(d, 8), 0);
        assert_int_equal(ida_rows_fill(r, d, 0, 0, 1), IDA_E_ARG);
        assert_int_equal(ida_rows_fill_in_order(r, d, 0, 1), IDA_E_ARG);
        ida_dataset_close(d);
    }
    ida_rows_free(r);
}

/* ---- lies: one change at a time to a good set */

static void expect_refusal(const char *dir, ida_status want, const char *word) {
    ida_dataset *d = NULL;
    ida_status st = ida_dataset_open(dir, "train", true, &d);
    int32_t ids[64];
    if (!st) st = ida_dataset_read(d, 0, ida_dataset_tokens(d), ids);
    ida_dataset_close(d);
    if (st != want || !strstr(ida_last_error(), word) || strchr(ida_last_error(),
        '\n')) fail_msg("wanted \"%s\": status %d, \"%s\"", word, st, ida_last_error());
}

static void lie_in_manifest(void **state, const char *from, const char *to, ida_status want, const char *word) {
    static const int64_t sizes[] = {20, 10};
    int32_t ids[30];
    int64_t n;
    fill_stream(ids, 30);
    const char *dir = make_set(state, "lie", ids, sizes, 2, VOCAB);
    char *text = get_file(in_dir(dir, "manifest.json"), &n), *at = strstr(text, from);
    assert_non_null(at);
    char *lie = ida_asprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    put_file(in_dir(dir, "manifest.json"), lie, (int64_t)strlen(lie));
    expect_refusal(dir, want, word);
    free(lie);
    free(text);
}

static void lying_manifests_are_refused(void **state) {
    const ida_status bad = IDA_E_FORMAT;
    lie_in_manifest(state, "\"tokens\":30", "\"tokens\":31", bad, "tells 31 tokens");
    lie_in_manifest(state, "\"tokens\":20", "\"tokens\":-1", bad, "tokens");
    lie_in_manifest(state, "\"tokens\":20", "\"tokens\":9223372036854775807", bad, "tokens");
    lie_in_manifest(state, "\"tokens\":20", "\"tokens\":2e1", bad, "tokens");
    lie_in_manifest(state, "\"tokens\":30", "\"tokens\":9223372036854775808", bad, "JSON");
    lie_in_manifest(state, "\"train_000000.bin\"", "\"../train_000000.bin\"", bad, "plain file name");
    lie_in_manifest(state, "\"train_000000.bin\"", "\"/etc/passwd\"", bad, "plain file name");
    lie_in_manifest(state, "\"train_000000.bin\"", "\"\"", bad, "plain file name");
    lie_in_manifest(state, "\"train_000000.bin\"", "\"absent.bin\"", IDA_E_IO, "absent.bin");
    lie_in_manifest(state, "\"train_000000.bin\"", "\"train_000001.bin\"", bad, "tokens");
    lie_in_manifest(state, "\"train_000000.bin\"", "\"manifest.json\"", bad, "manifest.json");
    lie_in_manifest(state, "\"vocab_size\":300", "\"vocab_size\":0", bad, "vocab_size");
    lie_in_manifest(state, "\"vocab_size\":300", "\"vocab_size\":100000", bad, "2-byte");
    lie_in_manifest(state, "\"id\":299", "\"id\":300", bad, "id");
    lie_in_manifest(state, "\"before\"", "\"after\"", IDA_E_UNSUPPORTED, "after");
    lie_in_manifest(state, "\"version\":1", "\"version\":2", IDA_E_UNSUPPORTED, "version 2");
    lie_in_manifest(state, "idattn-shards", "other", bad, "other");
    lie_in_manifest(state, "\"00000000000000ff\"", "\"xyz\"", bad, "hexadecimal");
    lie_in_manifest(state, "\"splits\"", "\"split\"", bad, "train");
    lie_in_manifest(state, "\"shards\":[", "\"shards\":[7,", bad, "name");
    lie_in_manifest(state, "{\"format\"", "[{\"format\"", bad, "JSON");
    lie_in_manifest(state, "\"documents\":", "\"documents\":-", bad, "documents");
}

static void lie_in_shard(void **state, int64_t at, int value, int64_t grow, const char *word) {
    static const int64_t sizes[] = {20, 10};
    int32_t ids[30];
    int64_t n;
    fill_stream(ids, 30);
    const char *dir = make_set(state, "lie", ids, sizes, 2, VOCAB);
    char *raw = get_file(in_dir(dir, "train_000001.bin"), &n), *bigger = calloc(1, (size_t)(n + 8));
    memcpy(bigger, raw, (size_t)n);
    if (at >= 0) bigger[at] = (char)value;
    put_file(in_dir(dir, "train_000001.bin"), bigger, n + grow);
    expect_refusal(dir, IDA_E_FORMAT, word);
    free(raw);
    free(bigger);
}

static void lying_shards_are_refused(void **state) {
    lie_in_shard(state, 0, 0, 0, "magic");
    lie_in_shard(state, 4, 2, 0, "version");
    lie_in_shard(state, 8, 11, 0, "header");
    lie_in_shard(state, 11, -1, 0, "header");
    lie_in_shard(state, -1, 0, 2, "header");
    lie_in_shard(state, -1, 0, 1, "header");
    lie_in_shard(state, -1, 0, -1, "header");
    lie_in_shard(state, -1, 0, -1044, "too short");
    lie_in_shard(state, -1, 0, -30, "too short");
    lie_in_shard(state, 1030, 77, 0, "checksum");
}

/* Without the checksum, an id past the vocabulary is found when it is read, with its shard and place. */
static void ids_beyond_the_vocabulary_are_found(void **state) {
    static const int64_t sizes[] = {4, 4};
    static const int32_t ids[8] = {SEP, 1, 2, 3, 4, 5, VOCAB, 6};
    int32_t got[8];
    ida_dataset *d = open_train(make_set(state, "beyond", ids, sizes, 2, VOCAB));
    assert_int_equal(ida_dataset_read(d, 0, 6, got), IDA_OK);
    assert_int_equal(ida_dataset_read(d, 0, 8, got), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "train_000001.bin"));
    assert_non_null(strstr(ida_last_error(), "token 2 is 300"));
    ida_dataset_close(d);
}

static void bad_requests_are_refused(void **state) {
    ida_dataset *d = NULL;
    assert_int_equal(ida_dataset_open(in_dir(*state, "nowhere"), "train", false, &d), IDA_E_IO);
    assert_int_equal(ida_dataset_open(*state, "train", false, &d), IDA_E_IO); /* no manifest */
    assert_int_equal(ida_dataset_open(*state, "test", false, &d), IDA_E_ARG);
    assert_int_equal(ida_dataset_open(NULL, "train", false, &d), IDA_E_ARG);
    assert_null(d);
    ida_dataset_close(NULL);
    ida_rows_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_cross_shard_edges_and_empty_shards),
        cmocka_unit_test(wide_tokens_are_read),
        cmocka_unit_test(documents_are_found_by_the_separator),
        cmocka_unit_test(L38_every_token_of_every_epoch_is_used_once),
        cmocka_unit_test(L38_ranks_share_every_token_of_every_epoch_once),
        cmocka_unit_test(L38_too_many_ranks_are_refused_before_step_1),
        cmocka_unit_test(L35_a_batch_is_a_function_of_its_number),
        cmocka_unit_test(rows_in_order_end_with_a_short_batch),
        cmocka_unit_test(L13_no_target_lies_inside_another_document),
        cmocka_unit_test(sets_without_two_tokens_are_refused_by_rows),
        cmocka_unit_test(lying_manifests_are_refused),
        cmocka_unit_test(lying_shards_are_refused),
        cmocka_unit_test(ids_beyond_the_vocabulary_are_found),
        cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
