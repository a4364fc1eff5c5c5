/* test_json.c - strict parsing and the checked getters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/file.h"
#include "core/json.h"
#include "lib/scratch.h"

static void malformed_text_is_refused_with_its_place(void **state) {
    (void)state;
    static const char *const bad[] = {
        "", "{", "{\"a\":1,\"a\":2}", "{\"a\":1}x", "[01]", "{\"a\":NaN}", "{\"a\":1e999}", "{\"a\":\"\xff\"}",
            "{\"a\":\"\\ud800\"}",
        "{\"\\u0000\":1}", "{\"a\":99999999999999999999}", "{'a':1}", "{\"a\":1,}", "nul",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *j = NULL;
        assert_int_equal(ida_json_parse(bad[i], strlen(bad[i]), "here.json", &j), IDA_E_FORMAT);
        assert_null(j);
        assert_non_null(strstr(ida_last_error(), "here.json"));
        assert_non_null(strstr(ida_last_error(), "line 1"));
    }
    json_t *nul = NULL;
    assert_int_equal(ida_json_parse("{\"a\":1\0}", 8, "here.json", &nul), IDA_E_FORMAT);
    assert_null(nul);
    char *deep = malloc(200000);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    json_t *j = NULL;
    assert_int_equal(ida_json_parse(deep, 200000, "deep", &j), IDA_E_FORMAT);
    free(deep);
}

static void getters_name_file_key_and_range(void **state) {
    (void)state;
    static const char text[] = "{\"i\":5,\"r\":2.5,\"b\":true,\"s\":\"x\",\"n\":null,\"big\":9223372036854775807,\"whole\":4.0}";
    json_t *j = NULL;
    assert_int_equal(ida_json_parse(text, strlen(text), "f", &j), IDA_OK);
    int64_t i = -9, di = 7;
    double d = -9, dd = 0.5;
    bool b = false, db = true;
    const char *s = NULL;
    assert_int_equal(ida_json_i64(j, "f", "i", 0, 5, NULL, &i), IDA_OK);
    assert_true(i == 5);
    assert_int_equal(ida_json_i64(j, "f", "i", 6, 10, NULL, &i), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "f: \"i\" is 5, must be in 6..10"));
    assert_true(i == 5);
    assert_int_equal(ida_json_i64(j, "f", "big", 0, INT64_MAX, NULL, &i), IDA_OK);
    assert_true(i == INT64_MAX);
    static const char *const not_int[] = {"r", "b", "s", "whole"};
    for (size_t k = 0; k < 4; k++) assert_int_equal(ida_json_i64(j, "f", not_int[k], 0, 9, &di, &i), IDA_E_FORMAT);
    assert_int_equal(ida_json_i64(j, "f", "absent", 0, 9, NULL, &i), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "\"absent\" is missing"));
    assert_int_equal(ida_json_i64(j, "f", "n", 0, 9, NULL, &i), IDA_E_FORMAT);
    assert_int_equal(ida_json_i64(j, "f", "n", 0, 9, &di, &i), IDA_OK);
    assert_true(i == 7);
    assert_int_equal(ida_json_f64(j, "f", "r", 0, 3, NULL, &d), IDA_OK);
    assert_true(d == 2.5);
    assert_int_equal(ida_json_f64(j, "f", "i", 0, 9, NULL, &d), IDA_OK);
    assert_true(d == 5);
    assert_int_equal(ida_json_f64(j, "f", "r", 3, 4, NULL, &d), IDA_E_FORMAT);
    assert_int_equal(ida_json_f64(j, "f", "absent", 3, 4, &dd, &d), IDA_OK);
    assert_true(d == 0.5);
    assert_int_equal(ida_json_bool(j, "f", "b", NULL, &b), IDA_OK);
    assert_true(b);
    assert_int_equal(ida_json_bool(j, "f", "i", NULL, &b), IDA_E_FORMAT);
    b = false;
    assert_int_equal(ida_json_bool(j, "f", "absent", &db, &b), IDA_OK);
    assert_true(b);
    assert_int_equal(ida_json_str(j, "f", "s", NULL, &s), IDA_OK);
    assert_string_equal(s, "x");
    assert_int_equal(ida_json_str(j, "f", "absent", "def", &s), IDA_OK);
    assert_string_equal(s, "def");
    assert_int_equal(ida_json_str(j, "f", "i", NULL, &s), IDA_E_FORMAT);
    assert_int_equal(ida_json_str(json_object_get(j, "i"), "f", "x", "def", &s), IDA_E_FORMAT);
    assert_int_equal(ida_json_str(NULL, "f", "x", "def", &s), IDA_E_FORMAT);
    json_decref(j);
}

static void saved_json_reads_back_equal_and_ends_with_a_newline(void **state) {
    const char *path = in_dir(*state, "j.json");
    json_t *j = json_pack("{s:I, s:f, s:[i,i], s:s}", "i", (json_int_t)1 << 60, "x", 0.1, "a", 1, 2, "s", "\xc3\xa9\n"),
        *k = NULL;
    assert_non_null(j);
    for (int indent = 0; indent <= 2; indent += 2) {
        assert_int_equal(ida_json_save(j, path, indent), IDA_OK);
        int64_t n;
        char *text = get_file(path, &n);
        assert_int_equal(text[n - 1], '\n');
        free(text);
        assert_int_equal(ida_json_load(path, 1000, &k), IDA_OK);
        assert_true(json_equal(j, k));
        json_decref(k);
        assert_int_equal(ida_json_load(path, 10, &k), IDA_E_FORMAT);
    }
    json_decref(j);
}

static void any_bytes_make_a_string(void **state) {
    (void)state;
    static const struct { const char *bytes; size_t n; const char *want; } rows[] = {
        {"", 0, ""},
        {"caf\xC3\xA9", 5, "caf\xC3\xA9"},
        {"caf\xE9.txt", 8, "caf\xEF\xBF\xBD.txt"},
        {"\xF0\x9F\x8E", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* cut inside a character */
        {"\xED\xA0\x80\xF0\x9F\x8E\x89", 7, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xF0\x9F\x8E\x89"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *j = ida_json_text(rows[i].bytes, rows[i].n);
        assert_string_equal(json_string_value(j), rows[i].want);
        json_decref(j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bytes_make_a_string),
        cmocka_unit_test(malformed_text_is_refused_with_its_place),
        cmocka_unit_test(getters_name_file_key_and_range),
        cmocka_unit_test(saved_json_reads_back_equal_and_ends_with_a_newline),
    };
    return cmocka_run_group_tests_name("core/json", tests, scratch_setup, scratch_teardown);
}
