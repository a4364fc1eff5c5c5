/* test_text_reader.c - documents out of txt, jsonl, gz and zst: every kind, every cut, every bad row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>
#include <zstd.h>

#include "core/mem.h"
#include "data/inputs.h"
#include "lib/scratch.h"

static const char *file(void **state, const char *name, const void *p, size_t n) {
    const char *path = in_dir(*state, name);
    put_file(path, p, (int64_t)n);
    return path;
}

#define FILE_OF(name, text) file(state, name, text, sizeof text - 1)

/* All documents of a file, each followed by '|'. */
static ida_status read_all(const char *path, const ida_text_options *o, ida_buf *b, int64_t *bad) {
    ida_text_reader *r = NULL;
    ida_status st = ida_text_open(path, o, &r);
    bool end = false;
    b->len = 0;
    ida_buf_add(b, "", 0);
    while (!st && !end) {
        const char *s;
        int64_t n;
        st = ida_text_next(r, &s, &n, &end);
        if (st || end) break;
        ida_buf_add(b, s, (size_t)n);
        ida_buf_add(b, "|", 1);
    }
    if (!st) { /* the end stays the end */
        const char *s;
        int64_t n;
        assert_int_equal(ida_text_next(r, &s, &n, &end), IDA_OK);
        assert_true(end);
    }
    if (bad) *bad = r ? ida_text_bad(r) : 0;
    ida_text_close(r);
    return st;
}

static void expect(const char *path, const ida_text_options *o, const char *want) {
    ida_buf b = {0};
    if (read_all(path, o, &b, NULL)) fail_msg("%s", ida_last_error());
    assert_string_equal(b.data, want);
    ida_buf_free(&b);
}

static size_t gzip(const char *s, size_t n, uint8_t *out, size_t cap) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)s;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = cap - z.avail_out;
    deflateEnd(&z);
    return made;
}

static const ida_text_options plain = {0}, split = {.split_blank_lines = true};

static void a_text_file_is_one_document_byte_for_byte(void **state) {
    expect(FILE_OF("a.txt", "one\r\n\n\n\ntwo\f\xFF"), &plain, "one\r\n\n\n\ntwo\f\xFF|");
    expect(FILE_OF("no-extension", "x"), &plain, "x|");
    expect(FILE_OF("empty.txt", ""), &plain, "");
}

static void documents_end_at_form_feeds_and_three_newlines(void **state) {
    expect(FILE_OF("a.txt", "one\n\ntwo\n\n\nthree"), &split, "one\n\ntwo\n|three|");
    expect(FILE_OF("b.txt", "\n\n\n\none\n\f\ntwo\n\n\n\n\n\n"), &split, "one\n|two\n|");
    expect(FILE_OF("c.txt", "one\r\n\r\n\r\ntwo\r\n"), &split, "one\r\n|two\r\n|");
    expect(FILE_OF("d.txt", "one\f\f \n\n\n  \ftwo"), &split, "one|two|");
    expect(FILE_OF("e.txt", " \n\f\n\n\n"), &split, "");
}

/* A document edge may fall anywhere in the reader's blocks. */
static void splitting_does_not_depend_on_block_edges(void **state) {
    size_t n = 900000, i = 0;
    char *s = malloc(n + 64);
    ida_buf want = {0}, got = {0};
    for (int k = 0; i + 40 < n; k++) {
        size_t len = (size_t)(k % 23 + 1), from = i;
        for (size_t j = 0; j < len; j++) s[i++] = "ab c"[(j + (size_t)k) % 4];
        s[i++] = 'x';
        ida_buf_add(&want, s + from, i - from);
        ida_buf_add(&want, "\n|", 2);
        for (int j = 0; j < 3 + k % 4; j++) s[i++] = '\n';
    }
    assert_int_equal(read_all(file(state, "big.txt", s, i), &split, &got, NULL), IDA_OK);
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.data, want.data, (size_t)want.len);
    ida_buf_free(&got);
    ida_buf_free(&want);
    free(s);
}

static void cut_pieces_join_to_the_file(void **state) {
    size_t n = 2000000;
    char *s = malloc(n);
    for (size_t i = 0; i < n; i++) s[i] = i % 7 == 3 ? ' ' : i % 101 == 5 ? '\n' : (char)('a' + i % 26);
    ida_text_reader *r = NULL;
    ida_text_options o = {.cut_bytes = 1000};
    assert_int_equal(ida_text_open(file(state, "a.txt", s, n), &o, &r), IDA_OK);
    size_t at = 0, pieces = 0;
    for (bool end = false;; pieces++) {
        const char *p;
        int64_t m;
        assert_int_equal(ida_text_next(r, &p, &m, &end), IDA_OK);
        if (end) break;
        assert_memory_equal(p, s + at, (size_t)m);
        at += (size_t)m;
        if (at < n) assert_true(s[at] == ' ' || s[at] == '\n');
    }
    assert_int_equal(at, n);
    assert_true(pieces > 3);
    ida_text_close(r);
    free(s);
}

static int logged;
static char last_log[512];
static void keep_log(void *user, const char *line) {
    (void)user;
    logged++;
    snprintf(last_log, sizeof last_log, "%s", line);
}

static void jsonl_rows_are_documents(void **state) {
    static const char rows[] =
        "\xEF\xBB\xBF{\"text\":\"a\\n\\u00e9\"}\r\n\n  \n{\"id\":1,\"text\":\"\"}\n{\"text\":\"last\",\"n\":[1,{\"x\":null}]}";
    expect(file(state, "a.jsonl", rows, sizeof rows - 1), &plain, "a\n\xC3\xA9||last|");
    static const char wide[] = "{\"id\":18446744073709551615,\"text\":\"wide\"}\n"; /* a number that is not looked at */
    expect(file(state, "d.jsonl", wide, sizeof wide - 1), &plain, "wide|");
    static const char other[] = "{\"body\":\"x\",\"text\":\"y\"}\n";
    ida_text_options o = {.jsonl_key = "body"};
    expect(file(state, "b.jsonl", other, sizeof other - 1), &o, "x|");
    ida_buf b = {0};
    static const char nul[] = "{\"text\":\"a\\u0000b\"}\n";
    assert_int_equal(read_all(file(state, "c.jsonl", nul, sizeof nul - 1), &plain, &b, NULL), IDA_OK);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "a\0b|", 4);
    ida_buf_free(&b);
}

static void bad_rows_are_counted_and_named(void **state) {
    static const char rows[] =
        "{\"text\":\"good\"}\nnot json\n{\"text\":5}\n[1]\n{\"other\":\"x\"}\n"
        "{\"text\":\"\xFF\"}\n{\"text\":\"fine\"}\n{\"text\":\"cut";
    ida_buf b = {0};
    int64_t bad;
    logged = 0;
    ida_set_log(keep_log, NULL);
    const char *path = file(state, "a.jsonl", rows, sizeof rows - 1);
    assert_int_equal(read_all(path, &plain, &b, &bad), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_string_equal(b.data, "good|fine|");
    assert_int_equal(bad, 6);
    assert_int_equal(logged, 6);
    assert_non_null(strstr(last_log, path));
    assert_non_null(strstr(last_log, "a.jsonl:8:"));
    ida_buf_free(&b);
}

static void logging_of_bad_rows_is_bounded(void **state) {
    ida_buf text = {0}, b = {0};
    int64_t bad;
    for (int i = 0; i < 5000; i++) ida_buf_add(&text, "x\n", 2);
    logged = 0;
    ida_set_log(keep_log, NULL);
    assert_int_equal(read_all(file(state, "a.jsonl", text.data, (size_t)text.len), &plain, &b, &bad), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_int_equal(bad, 5000);
    assert_true(logged < 50);
    ida_buf_free(&text);
    ida_buf_free(&b);
}

static void huge_documents_are_refused_and_huge_rows_passed_over(void **state) {
    ida_text_options o = {.max_document_bytes = 1000};
    char *s = malloc(600000);
    ida_buf b = {0};
    int64_t bad;
    memset(s, 'a', 600000);
    assert_int_equal(read_all(file(state, "a.txt", s, 600000), &o, &b, NULL), IDA_E_UNSUPPORTED);
    o.split_blank_lines = true;
    assert_int_equal(read_all(file(state, "a.txt", s, 600000), &o, &b, NULL), IDA_E_UNSUPPORTED);
    memcpy(s, "{\"text\":\"", 9);
    memcpy(s + 599960, "\"}\n{\"text\":\"ok\"}\n", 18);
    assert_int_equal(read_all(file(state, "a.jsonl", s, 599977), &o, &b, &bad), IDA_OK);
    assert_int_equal(bad, 1);
    assert_string_equal(b.data, "ok|");
    ida_buf_free(&b);
    free(s);
}

static void compressed_files_and_several_members(void **state) {
    uint8_t z[4096];
    size_t n = gzip("{\"text\":\"one\"}\n{\"te", 19, z, sizeof z);
    n += gzip("xt\":\"two\"}\n", 11, z + n, sizeof z - n);
    expect(file(state, "a.jsonl.gz", z, n), &plain, "one|two|");
    memset(z + n, 0, 100);
    expect(file(state, "b.jsonl.gz", z, n + 100), &plain, "one|two|"); /* zero padding, as tape and some tools leave it */
    ida_buf b = {0};
    z[n + 50] = 'x';
    assert_int_equal(read_all(file(state, "c.jsonl.gz", z, n + 100), &plain, &b, NULL), IDA_E_FORMAT);
    n = ZSTD_compress(z, sizeof z, "one", 3, 3);
    n += ZSTD_compress(z + n, sizeof z - n, "two", 3, 3);
    memcpy(z + n, "\x50\x2A\x4D\x18\x04\0\0\0skip", 12);
    expect(file(state, "a.txt.zst", z, n + 12), &plain, "onetwo|");
    expect(file(state, "by-content.txt", z, n), &plain, "onetwo|");
    assert_int_equal(read_all(FILE_OF("lie.gz", "plain text"), &plain, &b, NULL), IDA_E_FORMAT);
    assert_int_equal(read_all(FILE_OF("lie.zst", "plain text"), &plain, &b, NULL), IDA_E_FORMAT);
    ida_buf_free(&b);
}

/* Far more output than input: a full output block must not be taken for the end. */
static void much_output_from_little_input_is_complete(void **state) {
    size_t n = 3000000, cap = 100000;
    char *s = malloc(n);
    uint8_t *z = malloc(cap);
    for (size_t i = 0; i < n; i++) s[i] = (char)('a' + i / 50000 % 7);
    ida_buf b = {0};
    for (int kind = 0; kind < 2; kind++) {
        size_t m = kind ? ZSTD_compress(z, cap, s, n, 3) : gzip(s, n, z, cap);
        assert_int_equal(read_all(file(state, kind ? "a.zst" : "a.gz", z, m), &plain, &b, NULL), IDA_OK);
        assert_int_equal(b.len, n + 1);
        assert_memory_equal(b.data, s, n);
    }
    ida_buf_free(&b);
    free(s);
    free(z);
}

static void truncation_at_every_byte_is_an_error(void **state) {
    static const char rows[] = "{\"text\":\"some words of a document that is not very long\"}\n{\"text\":\"and another\"}\n";
    uint8_t z[1024];
    ida_buf b = {0};
    for (int kind = 0; kind < 2; kind++) {
        size_t n = kind ? ZSTD_compress(z, sizeof z, rows, sizeof rows - 1, 3) : gzip(rows, sizeof rows - 1, z, sizeof z);
        const char *name = kind ? "a.jsonl.zst" : "a.jsonl.gz";
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(read_all(file(state, name, z, cut), &plain, &b, NULL), IDA_E_FORMAT);
        assert_int_equal(read_all(file(state, name, z, n), &plain, &b, NULL), IDA_OK);
        for (size_t at = 0; at < n;
             at++) { /* one flipped bit: an error, or (in a checksum-free field) the same text; never a crash */
            z[at] ^= 0x10;
            (void)read_all(file(state, name, z, n), &plain, &b, NULL);
            z[at] ^= 0x10;
        }
    }
    ida_buf_free(&b);
}

static void inputs_are_checked_first_and_read_in_order(void **state) {
    const char *paths[3] = {FILE_OF("1.txt", "one"), FILE_OF("2.jsonl", "{\"text\":\"two\"}\nbad\n"), FILE_OF("3.txt", "three")};
    ida_inputs *in = NULL;
    assert_int_equal(ida_inputs_open(paths, 3, &plain, &in), IDA_OK);
    static const char *const want[] = {"one", "two", "three"};
    const char *s;
    int64_t n;
    bool end;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ida_inputs_next(in, &s, &n, &end), IDA_OK);
        assert_false(end);
        assert_int_equal(n, strlen(want[i]));
        assert_memory_equal(s, want[i], (size_t)n);
    }
    assert_int_equal(ida_inputs_next(in, &s, &n, &end), IDA_OK);
    assert_true(end);
    assert_int_equal(ida_inputs_total(in), 27);
    assert_int_equal(ida_inputs_done(in), 27);
    assert_int_equal(ida_inputs_bad(in), 1);
    ida_inputs_close(in);
    in = NULL;
    paths[2] = in_dir(*state, "absent");
    assert_int_equal(ida_inputs_open(paths, 3, &plain, &in), IDA_E_IO);
    paths[2] = *state;
    assert_int_equal(ida_inputs_open(paths, 3, &plain, &in), IDA_E_ARG);
    const char *twice[2] = {"-", "-"};
    assert_int_equal(ida_inputs_open(twice, 2, &plain, &in), IDA_E_ARG);
    assert_int_equal(ida_inputs_open(NULL, 0, &plain, &in), IDA_E_ARG);
    assert_null(in);
}

static void standard_input_is_plain_text(void **state) {
    const char *path = FILE_OF("in", "from a pipe");
    assert_non_null(freopen(path, "rb", stdin));
    expect("-", &plain, "from a pipe|");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_file_is_one_document_byte_for_byte),
        cmocka_unit_test(documents_end_at_form_feeds_and_three_newlines),
        cmocka_unit_test(splitting_does_not_depend_on_block_edges),
        cmocka_unit_test(cut_pieces_join_to_the_file),
        cmocka_unit_test(jsonl_rows_are_documents),
        cmocka_unit_test(bad_rows_are_counted_and_named),
        cmocka_unit_test(logging_of_bad_rows_is_bounded),
        cmocka_unit_test(huge_documents_are_refused_and_huge_rows_passed_over),
        cmocka_unit_test(compressed_files_and_several_members),
        cmocka_unit_test(much_output_from_little_input_is_complete),
        cmocka_unit_test(truncation_at_every_byte_is_an_error),
        cmocka_unit_test(inputs_are_checked_first_and_read_in_order),
        cmocka_unit_test(standard_input_is_plain_text),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
