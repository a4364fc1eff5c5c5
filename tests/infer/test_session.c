/* test_session.c - one timeline: any cut gives the same answer, forks are independent, files are exact and checked, memory is
 * constant. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "core/file.h"
#include "infer/session.h"
#include "lib/heap.h"
#include "tiny_model.h"

#define OK(call) do { if ((call) != IDA_OK) fail_msg("%s: %s", #call, ida_last_error()); } while (0)

enum { VOCAB = 61, KINDS = 7 };

/* The five mixers, grouped heads with gate and output norm, and a hybrid. */
static ida_config kind(int i) {
    ida_config c = tiny_config(i < 5 ? (ida_mixer_kind)i : IDA_MIXER_INTERDOMAIN);
    if (i == 5) {
        c.n_kv_heads = 1;
        c.gate = c.output_norm = true;
        c.rope = false;
    }
    if (i == 6) c.layer_mixer[1] = IDA_MIXER_SOFTMAX;
    return c;
}

static ida_session *fresh(const ida_model *m) {
    ida_session *s = NULL;
    OK(ida_session_create(m, &s));
    return s;
}

static double difference(const float *a, const float *b, int64_t n) {
    double worst = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)a[i]));
    }
    return worst / size;
}

static const char *scratch(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "/tmp/ida_test_session_%ld_%s", (long)getpid(), name);
    return path;
}

/* fp32, 2 layers, 700 tokens: cuts change the order of summation, which moves the logits by up to 6.5e-6 of the largest one (the
 * same for each instruction set). Twice that. */
static const double FP32_SPREAD = 1.3e-5;

static void L01_L26_pieces_of_any_size_equal_one_call(void **state) {
    (void)state;
    enum { T = 700 };
    static const int64_t cuts[][16] = { { 100, 37, 1, 562 }, { 1, 2, 3, 64, 65, 63, 129, 373 }, { 699, 1 }, { 1, 699 },
                                        { 512, 188 }, { 513, 187 } };
    int32_t ids[T];
    float want[VOCAB], got[VOCAB];
    random_ids(ids, T, VOCAB, 5);
    for (int k = 0; k < KINDS; k++) {
        ida_config c = kind(k);
        ida_model *m = random_model(&c, 3);
        ida_session *s = fresh(m);
        OK(ida_session_feed(s, ids, T, want));
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            ida_session_reset(s);
            int64_t at = 0;
            for (int j = 0; at < T; at += cuts[i][j++]) OK(ida_session_feed(s, ids + at, cuts[i][j], got));
            assert_int_equal(ida_session_position(s), T);
            assert_true(difference(want, got, VOCAB) < FP32_SPREAD);
        }
        ida_session_reset(s);
        for (int i = 0; i < T; i++) OK(ida_session_feed(s, ids + i, 1, got));
        assert_true(difference(want, got, VOCAB) < FP32_SPREAD);
        ida_session_free(s);
        ida_model_free(m);
    }
}

static void score_is_minus_log_softmax_of_the_logits(void **state) {
    (void)state;
    enum { T = 600 };
    int32_t ids[T], targets[T];
    float losses[T], logits[VOCAB];
    random_ids(ids, T, VOCAB, 6);
    random_ids(targets, T, VOCAB, 7);
    for (int i = 0; i < T; i += 5) targets[i] = -1;
    for (int k = 0; k < KINDS; k++) {
        ida_config c = kind(k);
        ida_model *m = random_model(&c, 4);
        ida_session *a = fresh(m), *b = fresh(m);
        OK(ida_session_score(a, ids, targets, 1, losses));
        OK(ida_session_score(a, ids + 1, targets + 1, T - 1, losses + 1));
        assert_int_equal(ida_session_position(a), T);
        for (int i = 0; i < T; i++) {
            OK(ida_session_feed(b, ids + i, 1, logits));
            if (targets[i] < 0) {
                assert_true(losses[i] == 0);
                continue;
            }
            double sum = 0;
            for (int j = 0; j < VOCAB; j++) sum += exp((double)logits[j] - (double)logits[targets[i]]);
            assert_true(fabs(log(sum) - (double)losses[i]) < 10 * FP32_SPREAD); /* logits are below 10 */
        }
        ida_session_free(a);
        ida_session_free(b);
        ida_model_free(m);
    }
}

static void a_clone_and_its_source_do_not_touch_each_other(void **state) {
    (void)state;
    int32_t ids[120], other[50];
    float want[VOCAB], got[VOCAB], branch[VOCAB];
    random_ids(ids, 120, VOCAB, 8);
    random_ids(other, 50, VOCAB, 9);
    for (int k = 0; k < KINDS; k++) {
        ida_config c = kind(k);
        ida_model *m = random_model(&c, 5);
        ida_session *straight = fresh(m), *s = fresh(m), *fork = NULL;
        OK(ida_session_feed(straight, ids, 70, NULL));
        OK(ida_session_feed(straight, ids + 70, 50, want));
        OK(ida_session_feed(s, ids, 70, NULL));
        OK(ida_session_clone(s, &fork));
        assert_int_equal(ida_session_position(fork), 70);
        assert_memory_equal(fork->logits, s->logits, sizeof want);
        assert_memory_equal(fork->tail, s->tail, sizeof s->tail);
        OK(ida_session_feed(fork, other, 50, branch));
        OK(ida_session_feed(s, ids + 70, 50, got));
        assert_memory_equal(want, got, sizeof want);
        ida_session_free(s);
        ida_session_reset(straight);
        OK(ida_session_feed(straight, ids, 70, NULL));
        OK(ida_session_feed(straight, other, 50, got));
        assert_memory_equal(branch, got, sizeof got);
        OK(ida_session_feed(fork, ids, 3, branch)); /* outlives its source */
        OK(ida_session_feed(straight, ids, 3, got));
        assert_memory_equal(branch, got, sizeof got);
        ida_session_free(fork);
        ida_session_free(straight);
        ida_model_free(m);
    }
}

static void reset_is_as_good_as_new(void **state) {
    (void)state;
    int32_t ids[90];
    float want[VOCAB], got[VOCAB];
    random_ids(ids, 90, VOCAB, 10);
    for (int k = 0; k < KINDS; k++) {
        ida_config c = kind(k);
        ida_model *m = random_model(&c, 6);
        ida_session *a = fresh(m), *b = fresh(m);
        OK(ida_session_feed(a, ids + 40, 50, want));
        OK(ida_session_feed(b, ids, 90, NULL));
        ida_session_reset(b);
        assert_int_equal(ida_session_position(b), 0);
        OK(ida_session_feed(b, ids + 40, 50, got));
        assert_memory_equal(want, got, sizeof want);
        ida_session_free(a);
        ida_session_free(b);
        ida_model_free(m);
    }
}

static void L21_a_saved_session_continues_bit_for_bit(void **state) {
    (void)state;
    int32_t ids[130];
    float want[VOCAB], got[VOCAB];
    const char *path = scratch("a.state");
    random_ids(ids, 130, VOCAB, 11);
    for (int k = 0; k < KINDS; k++) {
        ida_config c = kind(k);
        ida_model *m = random_model(&c, 7), *again = random_model(&c, 7);
        ida_session *a = fresh(m), *b = fresh(again);
        for (int64_t at = 0; at <= 80; at += 80) { /* also at position 0 */
            ida_session_reset(a);
            if (at) OK(ida_session_feed(a, ids, at, NULL));
            OK(ida_session_save(a, path));
            OK(ida_session_feed(b, ids + 20, 33, NULL)); /* what was there before is replaced */
            OK(ida_session_load(b, path));
            assert_int_equal(ida_session_position(b), at);
            if (at) assert_memory_equal(a->logits, b->logits, sizeof want);
            assert_memory_equal(a->tail, b->tail, sizeof a->tail);
            OK(ida_session_feed(a, ids + at, 1, NULL));
            OK(ida_session_feed(b, ids + at, 1, NULL));
            OK(ida_session_feed(a, ids + at + 1, 130 - at - 1, want));
            OK(ida_session_feed(b, ids + at + 1, 130 - at - 1, got));
            assert_memory_equal(want, got, sizeof want);
        }
        ida_session_free(a);
        ida_session_free(b);
        ida_model_free(m);
        ida_model_free(again);
    }
    unlink(path);
}

typedef struct loaded { ida_model *m; ida_session *s; float *logits; char *bytes; int64_t size; } loaded;

static loaded load_fixture(int k, const char *path) {
    loaded f = {0};
    ida_config c = kind(k);
    int32_t ids[40];
    random_ids(ids, 40, VOCAB, 12);
    f.m = random_model(&c, 8);
    f.s = fresh(f.m);
    OK(ida_session_feed(f.s, ids, 40, NULL));
    OK(ida_session_save(f.s, path));
    OK(ida_read_file(path, 1 << 24, &f.bytes, &f.size));
    return f;
}

static void unload(loaded *f) {
    ida_session_free(f->s);
    ida_model_free(f->m);
    ida_free(f->bytes);
}

static void refused(loaded *f, const char *path, const char *bytes, int64_t size, ida_status want) {
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    if (size) assert_int_equal(fwrite(bytes, 1, (size_t)size, out), (size_t)size);
    fclose(out);
    ida_status st = ida_session_load(f->s, path);
    if (st == IDA_OK || (want != IDA_OK && st != want))
        fail_msg("damaged state file: status %d, wanted %d: %s", st, want, ida_last_error());
    assert_non_null(strstr(ida_last_error(), path));
    assert_int_equal(ida_session_position(f->s), 40);
}

static void L22_damaged_state_files_are_refused_and_change_nothing(void **state) {
    (void)state;
    const char *path = scratch("b.state");
    int32_t next = 3;
    float want[VOCAB], got[VOCAB];
    for (int k = 1; k < KINDS; k += 5) { /* a fixed state, and a hybrid with a cache */
        loaded f = load_fixture(k, path);
        ida_session *twin = NULL;
        OK(ida_session_clone(f.s, &twin));
        OK(ida_session_feed(twin, &next, 1, want));
        for (int64_t i = 0; i < f.size; i += i < 192 || i > f.size - 16 ? 1 : 997) { /* every byte of header and checksum */
            f.bytes[i] ^= (char)(1 << (i % 8));
            refused(&f, path, f.bytes, f.size, IDA_OK);
            f.bytes[i] ^= (char)(1 << (i % 8));
        }
        for (int64_t n = 0; n < f.size; n += n < 230 ? 1 : 1009) refused(&f, path, f.bytes, n, IDA_E_FORMAT);
        refused(&f, path, f.bytes, f.size - 1, IDA_E_FORMAT);
        char *more = calloc(1, (size_t)f.size + 8);
        assert_non_null(more);
        memcpy(more, f.bytes, (size_t)f.size);
        refused(&f, path, more, f.size + 8, IDA_E_FORMAT);
        free(more);
        OK(ida_session_feed(f.s, &next, 1, got));
        assert_memory_equal(want, got, sizeof want);
        ida_session_free(twin);
        unload(&f);
    }
    unlink(path);
}

/* Lies with a good checksum: sizes that overflow or do not fit, ids outside the vocabulary. */
static void lying_headers_with_a_good_checksum_are_refused(void **state) {
    (void)state;
    static const int64_t lies[] = { -1, INT64_MIN, INT64_MAX, 0, 39, 41, INT64_C(1) << 61, INT64_C(1) << 32 };
    const char *path = scratch("c.state");
    loaded f = load_fixture(6, path);
    for (int64_t field = 24; field <= 56; field += 8) {
        int64_t was;
        memcpy(&was, f.bytes + field, 8);
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            if (lies[i] == was) continue;
            memcpy(f.bytes + field, &lies[i], 8);
            uint64_t sum = XXH3_64bits(f.bytes, (size_t)f.size - 8);
            memcpy(f.bytes + f.size - 8, &sum, 8);
            refused(&f, path, f.bytes, f.size, IDA_E_FORMAT);
        }
        memcpy(f.bytes + field, &was, 8);
    }
    int32_t bad = VOCAB;
    memcpy(f.bytes + 64, &bad, 4);
    uint64_t sum = XXH3_64bits(f.bytes, (size_t)f.size - 8);
    memcpy(f.bytes + f.size - 8, &sum, 8);
    refused(&f, path, f.bytes, f.size, IDA_E_FORMAT);
    unload(&f);
    unlink(path);
}

static void a_state_of_another_model_is_refused(void **state) {
    (void)state;
    const char *path = scratch("d.state");
    loaded f = load_fixture(1, path);
    ida_config same = kind(1), other = kind(4);
    ida_model *seed = random_model(&same, 9), *mixer = random_model(&other, 8);
    ida_session *a = fresh(seed), *b = fresh(mixer);
    assert_int_equal(ida_session_load(a, path), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "load the model it was saved with"));
    assert_int_equal(ida_session_load(b, path), IDA_E_ARG);
    assert_int_equal(ida_session_load(f.s, scratch("none")), IDA_E_IO);
    assert_int_equal(ida_session_save(f.s, "/dev/null/x.state"), IDA_E_IO);
    ida_session_free(a);
    ida_session_free(b);
    ida_model_free(seed);
    ida_model_free(mixer);
    unload(&f);
    unlink(scratch("d.state"));
}

static void L34_ids_outside_the_vocabulary_leave_the_session_as_it_was(void **state) {
    (void)state;
    const int32_t bad[][2] = { { 1, -1 }, { 1, VOCAB }, { INT32_MAX, 1 }, { INT32_MIN, 1 } };
    ida_config c = kind(1);
    ida_model *m = random_model(&c, 10);
    ida_session *s = fresh(m), *t = fresh(m);
    int32_t ids[4] = { 1, 2, 3, 4 };
    float want[VOCAB], got[VOCAB], losses[4];
    OK(ida_session_feed(s, ids, 4, NULL));
    OK(ida_session_feed(t, ids, 4, NULL));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ida_session_feed(s, bad[i], 2, got), IDA_E_ARG);
        assert_non_null(strstr(ida_last_error(), "vocabulary of 61"));
        assert_int_equal(ida_session_score(s, bad[i], ids, 2, losses), IDA_E_ARG);
    }
    int32_t beyond[2] = { -1, VOCAB };
    assert_int_equal(ida_session_score(s, ids, beyond, 2, losses), IDA_E_ARG);
    assert_int_equal(ida_session_feed(s, ids, 0, got), IDA_E_ARG);
    assert_int_equal(ida_session_feed(s, ids, -5, got), IDA_E_ARG);
    assert_int_equal(ida_session_position(s), 4);
    OK(ida_session_feed(s, ids, 1, got));
    OK(ida_session_feed(t, ids, 1, want));
    assert_memory_equal(want, got, sizeof want);
    ida_session_free(s);
    ida_session_free(t);
    ida_model_free(m);
}

static void memory_is_constant_over_20000_tokens(void **state) {
    (void)state;
    for (int k = 1; k < 6; k += 3) {
        ida_config c = kind(k);
        c.d_model = 16;
        c.ffn_hidden = 16;
        c.state_size = 4;
        ida_model *m = random_model(&c, 11);
        ida_session *s = fresh(m);
        int32_t ids[32];
        random_ids(ids, 32, VOCAB, 13);
        for (int i = 0; i < 64; i++) OK(ida_session_feed(s, ids + i % 32, 1, NULL));
        int64_t before = heap_in_use(), bytes = ida_session_bytes(s);
        for (int i = 0; i < 20000; i++) OK(ida_session_feed(s, ids + i % 32, 1, NULL));
        assert_int_equal(heap_in_use(), before);
        assert_int_equal(ida_session_bytes(s), bytes);
        ida_session_free(s);
        ida_model_free(m);
    }
}

static void only_softmax_sessions_grow(void **state) {
    (void)state;
    int32_t ids[300];
    random_ids(ids, 300, VOCAB, 14);
    for (int k = 0; k < KINDS; k++) {
        ida_config c = kind(k);
        ida_model *m = random_model(&c, 12);
        ida_model_info info;
        OK(ida_config_info(&c, &info));
        ida_session *s = fresh(m);
        int64_t empty = ida_session_bytes(s);
        assert_true(empty >= info.state_bytes);
        OK(ida_session_feed(s, ids, 300, NULL));
        int64_t grown = ida_session_bytes(s) - empty;
        if (info.state_bytes_per_token == 0) assert_int_equal(grown, 0);
        else assert_true(grown >= 300 * info.state_bytes_per_token && grown <= 600 * info.state_bytes_per_token);
        ida_session_free(s);
        ida_model_free(m);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    heap_without_caches(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L01_L26_pieces_of_any_size_equal_one_call),
        cmocka_unit_test(score_is_minus_log_softmax_of_the_logits),
        cmocka_unit_test(a_clone_and_its_source_do_not_touch_each_other),
        cmocka_unit_test(reset_is_as_good_as_new),
        cmocka_unit_test(L21_a_saved_session_continues_bit_for_bit),
        cmocka_unit_test(L22_damaged_state_files_are_refused_and_change_nothing),
        cmocka_unit_test(lying_headers_with_a_good_checksum_are_refused),
        cmocka_unit_test(a_state_of_another_model_is_refused),
        cmocka_unit_test(L34_ids_outside_the_vocabulary_leave_the_session_as_it_was),
        cmocka_unit_test(memory_is_constant_over_20000_tokens),
        cmocka_unit_test(only_softmax_sessions_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
