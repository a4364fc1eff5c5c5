/* test_parquet.c - the Parquet reader against files written by pyarrow (tools/make_parquet_fixture.py has the same two rules for
 * row i), against files it must refuse, and against every truncation and every flipped bit of some. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "data/parquet.h"
#include "data/snappy.h"
#include "data/text.h"
#include "lib/scratch.h"

enum { ROWS = 100 };
static const ida_parquet_options plain = {.column = "text"};

static const char *text_of(int64_t i) {
    static char s[512];
    size_t n = 0;
    *s = 0;
    if (i % 11 == 5) return s;
    for (int64_t k = 0; k < i % 5 + 1; k++) n += (size_t)snprintf(s + n, sizeof s - n, "row %lld says é\n", (long long)(i % 40));
    return s;
}

static const char *fixture(const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, IDA_TEST_DATA "/parquet/%s.parquet", name);
    return path;
}

static ida_status open_bytes(char *bytes, int64_t n, const ida_parquet_options *o, ida_parquet **p) {
    FILE *f = fmemopen(bytes, (size_t)n, "rb");
    assert_non_null(f);
    return ida_parquet_open(f, "bytes", o, p);
}

static ida_status open_fixture(const char *name, const ida_parquet_options *o, ida_parquet **p) {
    FILE *f = fopen(fixture(name), "rb");
    assert_non_null(f);
    return ida_parquet_open(f, name, o, p);
}

/* All rows as one text, "length:bytes" or "null" each; NULL when the reader refuses. */
static char *all_rows(ida_parquet *p) {
    ida_buf b = {0};
    const char *s;
    int64_t n, rows = 0;
    bool end;
    ida_buf_add(&b, "", 0);
    for (;; rows++) {
        if (ida_parquet_next(p, &s, &n, &end)) {
            ida_buf_free(&b);
            return NULL;
        }
        if (end) break;
        assert_int_equal(ida_parquet_row(p), rows + 1);
        if (!s) ida_buf_addf(&b, "null;");
        else ida_buf_addf(&b, "%lld:", (long long)n), ida_buf_add(&b, s, (size_t)n);
    }
    assert_int_equal(rows, ida_parquet_rows(p));
    return b.data;
}

static void every_combination_gives_the_rows_that_were_written(void **state) {
    (void)state;
    static const char *const codecs[] = {"none", "snappy", "gzip", "zstd"};
    for (int k = 0; k < 32; k++) {
        char name[64];
        bool nulls = k & 1;
        snprintf(name, sizeof name, "%s-v%d-%c%c", codecs[k >> 3], (k & 4 ? 2 : 1), k & 2 ? 'p' : 'd', nulls ? 'n' : 'r');
        ida_parquet *p = NULL;
        if (open_fixture(name, &plain, &p)) fail_msg("%s", ida_last_error());
        assert_int_equal(ida_parquet_rows(p), ROWS);
        for (int64_t i = 0; i <= ROWS; i++) {
            const char *s;
            int64_t n;
            bool end;
            if (ida_parquet_next(p, &s, &n, &end)) fail_msg("%s", ida_last_error());
            assert_int_equal(end, i == ROWS);
            if (end) break;
            if (nulls && i % 7 == 3) {
                assert_null(s);
                continue;
            }
            assert_non_null(s);
            assert_int_equal(n, strlen(text_of(i)));
            assert_memory_equal(s, text_of(i), (size_t)n);
        }
        ida_parquet_close(p);
    }
}

static void expect_rows(const char *name, const char *want) {
    ida_parquet *p = NULL;
    if (open_fixture(name, &plain, &p)) fail_msg("%s", ida_last_error());
    char *got = all_rows(p);
    if (!got) fail_msg("%s", ida_last_error());
    assert_string_equal(got, want);
    free(got);
    ida_parquet_close(p);
}

static void files_without_rows_with_one_and_with_nulls_only(void **state) {
    (void)state;
    expect_rows("empty", "");
    expect_rows("one", "14:row 0 says é\n");
    expect_rows("all-null",
                "null;null;null;null;null;null;null;null;null;null;null;null;null;null;null;null;null;null;null;null;");
    expect_rows("beside-nested", "3:yes4:also");
}

/* A dictionary that grew too large is followed by plain pages. */
static void pages_of_one_chunk_may_differ_in_encoding(void **state) {
    (void)state;
    ida_buf b = {0};
    ida_buf_add(&b, "", 0);
    for (int64_t i = 0; i < ROWS; i++) ida_buf_addf(&b, "%d:%s", (int)strlen(text_of(i)), text_of(i));
    expect_rows("fallback", b.data);
    ida_buf_free(&b);
}

static void refused(const char *name, const ida_parquet_options *o, ida_status want, const char *word) {
    ida_parquet *p = NULL;
    const char *s;
    int64_t n;
    bool end = false;
    ida_status st = open_fixture(name, o, &p);
    while (!st && !end) st = ida_parquet_next(p, &s, &n, &end);
    ida_parquet_close(p);
    if (st != want || !strstr(ida_last_error(), word) || strchr(ida_last_error(), '\n'))
        fail_msg("wanted \"%s\": status %d, \"%s\"", word, st, ida_last_error());
}

static void what_is_not_read_is_named(void **state) {
    (void)state;
    const ida_parquet_options absent = {.column = "txt"}, inner = {.column = "a"}, small =
        {.column = "text", .max_page_bytes = 100},
                              footer = {.column = "text", .max_footer_bytes = 100}, number = {.column = "id"};
    refused("nested", &plain, IDA_E_UNSUPPORTED, "nested");
    refused("nested", &inner, IDA_E_ARG, "no column \"a\"");
    refused("list", &plain, IDA_E_UNSUPPORTED, "nested");
    refused("number", &plain, IDA_E_UNSUPPORTED, "does not hold text");
    refused("brotli", &plain, IDA_E_UNSUPPORTED, "codec brotli");
    refused("delta", &plain, IDA_E_UNSUPPORTED, "encoding DELTA_BYTE_ARRAY");
    refused("one", &absent, IDA_E_ARG, "no column \"txt\"");
    refused("one", &number, IDA_E_UNSUPPORTED, "does not hold text");
    refused("none-v1-pr", &small, IDA_E_UNSUPPORTED, "larger than 100");
    refused("one", &footer, IDA_E_UNSUPPORTED, "footer");
}

static void other_files_are_refused(void **state) {
    (void)state;
    static const struct { const char *bytes; size_t n; ida_status st; const char *word; } no[] = {
        {"PAR1", 4, IDA_E_FORMAT, "too few"},
        {"PAR1\0\0\0\0PAR1", 12, IDA_E_FORMAT, "ends too early"},
        {"PAR1\xFF\xFF\xFF\xFFPAR1", 12, IDA_E_FORMAT, "footer of 4294967295 bytes"},
        {"PAR1\0\0\0\0PAR1x", 13, IDA_E_FORMAT, "cut off"},
        {"PAR2\0\0\0\0PAR1", 12, IDA_E_FORMAT, "not a Parquet"},
        {"PAR1\0\0\0\0PARE", 12, IDA_E_UNSUPPORTED, "encrypted"}};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        ida_parquet *p = NULL;
        char bytes[16];
        memcpy(bytes, no[i].bytes, no[i].n);
        assert_int_equal(open_bytes(bytes, (int64_t)no[i].n, &plain, &p), no[i].st);
        if (!strstr(ida_last_error(), no[i].word)) fail_msg("wanted \"%s\": \"%s\"", no[i].word, ida_last_error());
        assert_null(p);
    }
}

static const char *const attacked[] = {"one", "snappy-v2-dn", "zstd-v2-pn", "gzip-v2-dr"}; /* these have checksums */

static void truncation_at_every_byte_is_an_error(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof attacked / sizeof *attacked; k++) {
        int64_t n;
        char *whole = get_file(fixture(attacked[k]), &n);
        for (int64_t m = 1; m < n; m++) {
            ida_parquet *p = NULL;
            char *part = malloc((size_t)m);
            memcpy(part, whole, (size_t)m);
            assert_int_equal(open_bytes(part, m, &plain, &p), IDA_E_FORMAT);
            assert_null(p);
            free(part);
        }
        free(whole);
    }
}

/* With checksums nothing that a flipped bit does may go unseen: an error, or the same rows. */
static void a_flipped_bit_is_an_error_or_changes_nothing(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        int64_t n, refusals = 0;
        ida_parquet *p = NULL;
        char *bytes = get_file(fixture(attacked[k]), &n), *want, *got;
        assert_int_equal(open_bytes(bytes, n, &plain, &p), IDA_OK);
        want = all_rows(p);
        assert_non_null(want);
        ida_parquet_close(p);
        for (int64_t i = 0; i < 8 * n; i++) {
            bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
            p = NULL;
            got = NULL;
            if (!open_bytes(bytes, n, &plain, &p)) got = all_rows(p);
            if (got && strcmp(got, want)) fail_msg("%s: bit %lld changes the rows unseen", attacked[k], (long long)i);
            refusals += !got;
            free(got);
            ida_parquet_close(p);
            bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
        }
        assert_true(refusals > n / 4);
        free(want);
        free(bytes);
    }
}

/* Without checksums a flipped bit may change the text, but never leads outside the page: the sanitizers watch. */
static void without_checksums_every_length_and_index_is_checked(void **state) {
    (void)state;
    static const char *const names[] = {"none-v1-dr", "none-v1-pn", "snappy-v1-dn"};
    static const char *const words[] = {"dictionary index", "dictionary value", "length of a value", "definition levels",
                                        "snappy data",
                                        "page header", "reaches beyond"};
    int told[7] = {0};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int64_t n;
        char *bytes = get_file(fixture(names[k]), &n);
        for (int64_t i = 0; i < n; i++)
            for (int flip = 0; flip < 2; flip++) {
                uint8_t mask = (uint8_t)(flip ? 0x80 : 1 << i % 7);
                ida_parquet *p = NULL;
                char *rows = NULL;
                bytes[i] = (char)(bytes[i] ^ mask);
                ida_status st = open_bytes(bytes, n, &plain, &p);
                if (!st) rows = all_rows(p);
                for (int w = 0; w < 7 && !rows; w++) told[w] += strstr(ida_last_error(), words[w]) != NULL;
                free(rows);
                ida_parquet_close(p);
                bytes[i] = (char)(bytes[i] ^ mask);
            }
        free(bytes);
    }
    for (int w = 0; w < 7; w++)
        if (!told[w]) fail_msg("no flip led to \"%s\"", words[w]);
}

static int n_told;
static int64_t told_rows[ROWS];
static void tell(void *user, const char *path, int64_t row, const char *why) {
    assert_non_null(user);
    assert_non_null(strstr(path, "snappy-v1-dn"));
    assert_string_equal(why, "the text is null");
    told_rows[n_told++] = row;
}

/* The text reader knows the file by its name, and by its first bytes under any other name but .txt and .jsonl. */
static void as_documents_nulls_are_bad_rows_with_their_number(void **state) {
    ida_text_options o = {.on_bad = tell, .user = state};
    ida_text_reader *r = NULL;
    const char *s;
    int64_t n, docs = 0, size;
    bool end;
    n_told = 0;
    assert_int_equal(ida_text_open(fixture("snappy-v1-dn"), &o, &r), IDA_OK);
    for (;; docs++) {
        assert_int_equal(ida_text_next(r, &s, &n, &end), IDA_OK);
        if (end) break;
    }
    assert_int_equal(n_told, 14);
    assert_int_equal(docs, ROWS - 14);
    for (int i = 0; i < n_told; i++) assert_int_equal(told_rows[i], 7 * i + 4);
    assert_int_equal(ida_text_bad(r), 14);
    char *bytes = get_file(fixture("snappy-v1-dn"), &size);
    assert_int_equal(ida_text_consumed(r), size);
    ida_text_close(r);
    put_file(in_dir(*state, "blob"), bytes, size);
    o = (ida_text_options){.jsonl_key = "text"};
    assert_int_equal(ida_text_open(in_dir(*state, "blob"), &o, &r), IDA_OK);
    assert_int_equal(ida_text_next(r, &s, &n, &end), IDA_OK);
    assert_int_equal(n, 14);
    ida_text_close(r);
    o.column = "nothing";
    r = NULL;
    assert_int_equal(ida_text_open(in_dir(*state, "blob"), &o, &r), IDA_E_ARG);
    put_file(in_dir(*state, "liar.parquet"), "hello", 5);
    assert_int_equal(ida_text_open(in_dir(*state, "liar.parquet"), &o, &r), IDA_E_FORMAT);
    assert_null(r);
    free(bytes);
}

static void snappy_blocks(void **state) {
    (void)state;
    uint8_t out[300], in[300];
    /* literal "abcd", copy 8 from 4 back, copy 5 from 1 back (tag 2), copy 4 from 17 back (tag 3) */
    static const uint8_t block[] = {21, 0x0C, 'a', 'b', 'c', 'd', 0x11, 4, 0x12, 1, 0, 0x0F, 17, 0, 0, 0};
    assert_true(ida_snappy_unpack(block, sizeof block, out, 21));
    assert_memory_equal(out, "abcdabcdabcdddddd" "abcd", 21);
    for (int64_t n = 0; n < (int64_t)sizeof block; n++) assert_false(ida_snappy_unpack(block, n, out, 21));
    assert_false(ida_snappy_unpack(block, sizeof block, out, 20));
    assert_false(ida_snappy_unpack(block, sizeof block, out, 22));
    static const uint8_t none[] = {0}, far[] = {8, 0, 'a', 0x0D, 2}, zero[] = {8, 0, 'a', 0x0D, 0}, first[] = {4, 0x01, 1},
                         huge[] = {5, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 'a'}, wide[] = {0x80, 0x80, 0x80, 0x80, 0x80, 1},
                         over[] = {2, 0, 'a', 0x01, 1};
    assert_true(ida_snappy_unpack(none, 1, out, 0));
    assert_false(ida_snappy_unpack(none, 0, out, 0));
    assert_false(ida_snappy_unpack(far, sizeof far, out, 8));
    assert_false(ida_snappy_unpack(zero, sizeof zero, out, 8));
    assert_false(ida_snappy_unpack(first, sizeof first, out, 4));
    assert_false(ida_snappy_unpack(huge, sizeof huge, out, 5));
    assert_false(ida_snappy_unpack(wide, sizeof wide, out, 0));
    assert_false(ida_snappy_unpack(over, sizeof over, out, 2));
    /* literals whose length takes 1 and 2 bytes of its own */
    in[0] = 200, in[1] = 1, in[2] = 60 << 2, in[3] = 199;
    memset(in + 4, 'x', 200);
    assert_true(ida_snappy_unpack(in, 204, out, 200));
    in[2] = 61 << 2, in[3] = 199, in[4] = 0;
    memset(in + 5, 'y', 200);
    assert_true(ida_snappy_unpack(in, 205, out, 200));
    assert_int_equal(out[199], 'y');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_gives_the_rows_that_were_written),
        cmocka_unit_test(files_without_rows_with_one_and_with_nulls_only),
        cmocka_unit_test(pages_of_one_chunk_may_differ_in_encoding),
        cmocka_unit_test(what_is_not_read_is_named),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(truncation_at_every_byte_is_an_error),
        cmocka_unit_test(a_flipped_bit_is_an_error_or_changes_nothing),
        cmocka_unit_test(without_checksums_every_length_and_index_is_checked),
        cmocka_unit_test(as_documents_nulls_are_bad_rows_with_their_number),
        cmocka_unit_test(snappy_blocks),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
