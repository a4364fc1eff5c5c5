/* families.h - the recorded tokenizers of tests/data/tokenizer and the comparison with what HF and sentencepiece gave. Included
 * behind cmocka.h. */
#ifndef TESTS_TEXT_FAMILIES_H
#define TESTS_TEXT_FAMILIES_H

#include "core/file.h"
#include "core/mem.h"
#include "core/rng.h"
#include "lib/scratch.h"
#include "text/recorded.h"
#include "text/encode.h"
#include "text/files.h"

#define FOLDER IDA_TEST_DATA "/tokenizer/"
#define OK(call) do { if ((call) != IDA_OK) fail_msg("%s: %s", #call, ida_last_error()); } while (0)
static const char *const families[] = {"llama3", "split", "metaspace", "qwen", "smollm", "falcon", "mistral", "gemma", "words"};
enum { FAMILIES = sizeof families / sizeof *families };

static inline ida_tokenizer *load(const char *file) {
    char path[512];
    ida_tokenizer *t = NULL;
    snprintf(path, sizeof path, FOLDER "%s", file);
    OK(ida_tokenizer_load(path, &t));
    return t;
}

static inline ida_tokenizer *family(int i) {
    char name[64];
    snprintf(name, sizeof name, "%s.json", families[i]);
    return load(name);
}

static inline FILE *open_record(const char *name, const char *kind) {
    char path[512];
    snprintf(path, sizeof path, FOLDER "%s.%s", name, kind);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    return f;
}

static inline void check_ids(const ida_tokenizer *t, const char *name) {
    static record r;
    FILE *f = open_record(name, "enc");
    int lines = 0;
    for (; next_record(f, 1, &r); lines++) {
        int32_t *ids;
        int64_t n;
        OK(ida_tokenizer_encode_as(t, r.text, r.n, (unsigned)r.special, &ids, &n));
        if (n != r.n_numbers || memcmp(ids, r.number, (size_t)n * sizeof *ids) != 0)
            fail_msg("%s, line %d: other ids", name, lines + 1);
        ida_ids_free(ids);
    }
    fclose(f);
    assert_true(lines >= 90);
}

/* Joins what the decoder gives for ids pushed `step` at a time; step 0: 1, 2, 3 ... */
static inline char *stream(ida_decoder *d, const int32_t *ids, int64_t n, int64_t step, size_t *len) {
    char *text = calloc(1, 65536);
    const char *part;
    size_t k;
    *len = 0;
    for (int64_t at = 0, round = 1; at < n; round++) {
        int64_t take = step ? step : round;
        if (take > n - at) take = n - at;
        OK(ida_decoder_push(d, ids + at, take, &part, &k));
        assert_true(*len + k < 65536);
        memcpy(text + *len, part, k);
        *len += k;
        at += take;
    }
    OK(ida_decoder_end(d, &part, &k));
    memcpy(text + *len, part, k);
    *len += k;
    return text;
}

static inline void check_texts(const ida_tokenizer *t, const char *name) {
    static record r;
    FILE *f = open_record(name, "dec");
    int lines = 0;
    ida_decoder *d[2];
    for (int skip = 0; skip < 2; skip++) OK(ida_decoder_create(t, skip, &d[skip]));
    for (; next_record(f, 1, &r); lines++)
        for (int64_t step = 0; step < 4; step++) {
            size_t n;
            char *text = stream(d[r.special], r.number, r.n_numbers, step == 3 ? 4096 : step, &n);
            if (n != r.n || memcmp(text, r.text, n) != 0)
                fail_msg("%s, line %d, step %d: other text", name, lines + 1, (int)step);
            free(text);
        }
    fclose(f);
    for (int skip = 0; skip < 2; skip++) ida_decoder_free(d[skip]);
    assert_true(lines >= 60);
}

#endif
