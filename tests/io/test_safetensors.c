/* test_safetensors.c - the reader against malformed files one by one, the writer byte for byte against the reference's.
 * tests/data/safetensors/reference.safetensors was written by safetensors 0.8.0 (Python) from the values below. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/safetensors.h"
#include "lib/scratch.h"

/* A file from header text and a number of data bytes, in malloc'd memory of exactly that size. */
static uint8_t *build(const char *header, int64_t data_bytes, int64_t *size) {
    uint64_t n = strlen(header);
    *size = 8 + (int64_t)n + data_bytes;
    uint8_t *p = malloc((size_t)*size);
    assert_non_null(p);
    memcpy(p, &n, 8);
    memcpy(p + 8, header, n);
    for (int64_t i = 0; i < data_bytes; i++) p[8 + (int64_t)n + i] = (uint8_t)(i + 1);
    return p;
}

static ida_status parse_text(const char *header, int64_t data_bytes, ida_st_file **f) {
    int64_t size;
    uint8_t *p = build(header, data_bytes, &size);
    ida_status st = ida_st_parse(p, size, "mem", f);
    free(p);
    return st;
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void malformed_headers_are_refused_one_by_one(void **state) {
    (void)state;
    static const struct { const char *header; int64_t data; const char *says; } rows[] = {
        {"", 0, "'{'"},
        {"x", 0, "'{'"},
        {" {}", 0, "'{'"},
        {"\n{}", 0, "'{'"},
        {"[]", 0, "'{'"},
        {"{", 0, "'{'"},
        {"{]", 0, "JSON"},
        {"{}x", 0, "JSON"},
        {"{\"a\":1}", 0, "not an object"},
        {"{\"\xff\":1}", 0, "JSON"},
        {"{\"a\\u0000b\":1}", 0, "JSON"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "duplicate"},
        {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "unknown dtype"},
        {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, "unknown dtype"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "dimension 0"},
        {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "dimension 0"},
        {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "dimension 0"},
        {"{" T("a", "F32", "{}", "[0,4]") "}", 4, "shape"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "dimension 1"},
        {"{" T("a", "F32", "[4294967296,2147483648]", "[0,4]") "}", 4, "dimension 1"},
        {"{" T("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, "fits"},
        {"{" T("a", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "JSON"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "dimensions"},
        {"{" T("a", "F32", "[1]", "[0]") "}", 4, "data_offsets"},
        {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "data_offsets"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "impossible"},
        {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "impossible"},
        {"{" T("a", "F32", "[1]", "[0,4.0]") "}", 4, "impossible"},
        {"{" T("a", "F32", "[1]", "[0,8]") "}", 8, "by its data_offsets"},
        {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "by its data_offsets"},
        {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "must follow"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, "must follow"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8, "must follow"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, "must follow"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 3, "truncated"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, "longer"},
        {"{}", 1, "longer"},
        {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "whole number of bytes"},
        {"{\"__metadata__\":3}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "not a string"},
        {"{\"__metadata__\":{\"a\":\"x\",\"a\":\"y\"}}", 0, "duplicate"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ida_st_file *f = NULL;
        ida_status st = parse_text(rows[i].header, rows[i].data, &f);
        if (!(st == IDA_E_FORMAT || st == IDA_E_UNSUPPORTED) || !strstr(ida_last_error(), rows[i].says))
            fail_msg("row %zu: status %d, \"%s\" should mention \"%s\"", i, st, ida_last_error(), rows[i].says);
        assert_null(f);
    }
}

static void lying_and_short_lengths_are_refused(void **state) {
    (void)state;
    static const uint64_t lengths[] = {3, 100, 100000001, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t *p = malloc(10);
        assert_non_null(p);
        memcpy(p, &lengths[i], 8);
        memcpy(p + 8, "{}", 2);
        ida_st_file *f = NULL;
        assert_int_equal(ida_st_parse(p, 10, "mem", &f), IDA_E_FORMAT);
        free(p);
    }
    for (int64_t n = 0; n < 8; n++) {
        uint8_t *p = calloc(1, 8);
        assert_non_null(p);
        ida_st_file *f = NULL;
        assert_int_equal(ida_st_parse(p, n, "mem", &f), IDA_E_FORMAT);
        free(p);
    }
}

static void every_truncation_of_a_good_file_is_refused(void **state) {
    const char *path = in_dir(*state, "cut.safetensors");
    int64_t n;
    char *good = get_file(IDA_TEST_DATA "/safetensors/reference.safetensors", &n);
    for (int64_t k = 0; k < n; k += k > 16 && k < n - 16 ? 7 : 1) {
        put_file(path, good, k);
        ida_st_file *f = NULL;
        assert_int_equal(ida_st_open(path, &f), IDA_E_FORMAT);
        assert_non_null(strstr(ida_last_error(), "cut.safetensors"));
    }
    free(good);
    ida_st_file *f = NULL;
    assert_int_equal(ida_st_open(in_dir(*state, "absent"), &f), IDA_E_IO);
}

static void legal_oddities_are_read(void **state) {
    (void)state;
    ida_st_file *f = NULL;
    assert_int_equal(parse_text("{}", 0, &f), IDA_OK);
    assert_int_equal(f->n, 0);
    ida_st_close(f);
    /* 0-d, zero-size dimensions beside huge ones, any header order, unaligned data, unknown extra key, padding */
    assert_int_equal(parse_text("{" T("c", "F32", "[]", "[1,5]") "," T("b", "F32", "[0,4611686018427387904]", "[5,5]") ","
                                T("a", "U8", "[1]", "[0,1]") "," T("d", "F4", "[2]", "[5,6]") "}   ", 6, &f), IDA_OK);
    assert_int_equal(f->n, 4);
    assert_string_equal(f->tensors[0].name, "a");
    assert_string_equal(f->tensors[1].name, "c");
    assert_string_equal(f->tensors[2].name, "b");
    assert_int_equal(ida_st_find(f, "c")->ndim, 0);
    assert_true(ida_st_find(f, "c")->numel == 1);
    assert_true(ida_st_find(f, "b")->numel == 0);
    assert_null(ida_st_find(f, "e"));
    assert_null(ida_st_find(f, ""));
    assert_null(ida_st_meta(f, "format"));
    ida_st_close(f);
}

static void unaligned_data_is_read_right(void **state) {
    (void)state;
    int64_t size;
    uint8_t *p = build("{" T("a", "U8", "[1]", "[0,1]") "," T("x", "F32", "[2]", "[1,9]") "," T("y", "F64", "[1]",
            "[9,17]") "," T("h", "F16", "[1]", "[17,19]") "}", 19, &size);
    float x[2] = {1.25f, -3e-20f}, gx[2], gh;
    double y = 1.0 / 3.0, gy;
    uint16_t half = 0x3555;
    uint8_t *data = p + size - 19;
    memcpy(data + 1, x, 8);
    memcpy(data + 9, &y, 8);
    memcpy(data + 17, &half, 2);
    ida_st_file *f = NULL;
    assert_int_equal(ida_st_parse(p, size, "mem", &f), IDA_OK);
    static const int64_t two[] = {2}, one[] = {1};
    assert_int_equal(ida_st_read_f32(f, "x", 1, two, gx), IDA_OK);
    assert_memory_equal(gx, x, 8);
    assert_int_equal(ida_st_read_f64(f, "y", 1, one, &gy), IDA_OK);
    assert_true(gy == y);
    assert_int_equal(ida_st_read_f32(f, "h", 1, one, &gh), IDA_OK);
    assert_true(gh == 0x1.554p-2f);
    ida_st_close(f);
    free(p);
}

static void shape_and_type_mismatches_name_tensor_and_both_shapes(void **state) {
    (void)state;
    ida_st_file *f = NULL;
    assert_int_equal(ida_st_open(IDA_TEST_DATA "/safetensors/reference.safetensors", &f), IDA_OK);
    float x[6];
    double d[6];
    static const int64_t wrong[] = {3, 2}, right[] = {2, 3}, flat[] = {6}, pair[] = {2};
    assert_int_equal(ida_st_read_f32(f, "a.f32", 2, wrong, x), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "\"a.f32\" has shape [2,3], must be [3,2]"));
    assert_non_null(strstr(ida_last_error(), "reference.safetensors"));
    assert_int_equal(ida_st_read_f32(f, "a.f32", 1, flat, x), IDA_E_FORMAT);
    assert_int_equal(ida_st_read_f64(f, "c.f32", 1, flat, d), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "has shape [], must be [6]"));
    assert_int_equal(ida_st_read_f32(f, "nothing", 1, flat, x), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "\"nothing\" is missing"));
    assert_int_equal(ida_st_read_f32(f, "i32", 1, pair, x), IDA_E_UNSUPPORTED);
    assert_int_equal(ida_st_read_f32(f, "a.f32", 2, right, x), IDA_OK);
    for (int i = 0; i < 6; i++) assert_true(x[i] == (float)i / 3.0f);
    ida_st_close(f);
}

static void half_and_bfloat_values_are_exact(void **state) {
    (void)state;
    ida_st_file *f = NULL;
    assert_int_equal(ida_st_open(IDA_TEST_DATA "/safetensors/reference.safetensors", &f), IDA_OK);
    static const int64_t five[] = {5}, three[] = {3};
    float h[5], g[3];
    double hd[5];
    assert_int_equal(ida_st_read_f32(f, "h.f16", 1, five, h), IDA_OK);
    assert_int_equal(ida_st_read_f64(f, "h.f16", 1, five, hd), IDA_OK);
    assert_true(h[0] == 1.0f && h[1] == -0.5f && h[2] == 0x1p-24f && h[3] == 65504.0f && isinf(h[4]));
    for (int i = 0; i < 5; i++) assert_true((double)h[i] == hd[i]);
    assert_int_equal(ida_st_read_f32(f, "g.bf16", 1, three, g), IDA_OK);
    assert_true(g[0] == 1.0f && g[1] == -0x1.56p-2f && g[2] > 0.99e-38f && g[2] < 1.01e-38f);
    ida_st_close(f);
    /* every half against the definition */
    int64_t size;
    uint8_t *p = build("{" T("h", "F16", "[65536]", "[0,131072]") "}", 131072, &size);
    for (uint32_t i = 0; i < 65536; i++) memcpy(p + size - 131072 + 2 * i, &(uint16_t){(uint16_t)i}, 2);
    float *all = malloc(65536 * sizeof *all);
    assert_non_null(all);
    static const int64_t n[] = {65536};
    assert_int_equal(ida_st_parse(p, size, "mem", &f), IDA_OK);
    assert_int_equal(ida_st_read_f32(f, "h", 1, n, all), IDA_OK);
    for (int i = 0; i < 65536; i++) {
        int e = (i >> 10) & 31, m = i & 1023;
        double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        if (e == 31) v = m ? (double)NAN : (double)INFINITY;
        if (i & 0x8000) v = -v;
        if (isnan(v)) assert_true(isnan(all[i]));
        else assert_true((double)all[i] == v && !signbit(all[i]) == !(i & 0x8000));
    }
    ida_st_close(f);
    free(all);
    free(p);
}

static void assert_same_file(const char *a, const char *b) {
    int64_t na, nb;
    char *pa = get_file(a, &na), *pb = get_file(b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(pa, pb, (size_t)na);
    free(pa);
    free(pb);
}

static void written_bytes_equal_the_reference_writers(void **state) {
    static const double z[] = {0.0 / 7, 1.0 / 7, 2.0 / 7};
    static const int64_t b[] = {1, -2, INT64_C(1) << 40, -1};
    static const float a[] = {0.0f, 1.0f / 3, 2.0f / 3, 1.0f, 4.0f / 3, 5.0f / 3}, c[] = {1.5f};
    static const int32_t i32[] = {7, -8};
    static const uint16_t h[] = {0x3c00, 0xb800, 0x0001, 0x7bff, 0x7c00}, g[] = {0x3f80, 0xbeab, 0x006d};
    static const uint8_t u8[] = {0, 1, 255};
    const ida_st_out t[] = {
        {"u8", IDA_ST_U8, 1, {3}, u8, NULL},       {"a.f32", IDA_ST_F32, 2, {2, 3}, a, NULL},
        {"z.f64", IDA_ST_F64, 1, {3}, z, NULL},    {"h.f16", IDA_ST_F16, 1, {5}, h, NULL},
        {"c.f32", IDA_ST_F32, 0, {0}, c, NULL},    {"b.i64", IDA_ST_I64, 2, {2, 2}, b, NULL},
        {"g.bf16", IDA_ST_BF16, 1, {3}, g, NULL},  {"i32", IDA_ST_I32, 1, {2}, i32, NULL},
        {"empty.f32", IDA_ST_F32, 2, {0, 4}, NULL, NULL},
    };
    const char *path = in_dir(*state, "written.safetensors");
    assert_int_equal(ida_st_write(path, t, 9, NULL, NULL, 0), IDA_OK);
    assert_same_file(path, IDA_TEST_DATA "/safetensors/reference.safetensors");
}

static void round_trip_keeps_values_names_and_metadata(void **state) {
    const char *path = in_dir(*state, "trip.safetensors"), *again = in_dir(*state, "trip2.safetensors");
    const char *const keys[] = {"step", "quote\"\n\xc3\xa9"}, *const values[] = {"12", "a\\b\tc"};
    float x[12];
    for (int i = 0; i < 12; i++) x[i] = (float)i * 0.1f;
    const ida_st_out t[] = {{"w \"q\" \xe2\x82\xac", IDA_ST_F32, 3, {2, 1, 6}, x, NULL}};
    assert_int_equal(ida_st_write(path, t, 1, keys, values, 2), IDA_OK);
    assert_int_equal(ida_st_write(again, t, 1, keys, values, 2), IDA_OK);
    assert_same_file(path, again);
    ida_st_file *f = NULL;
    assert_int_equal(ida_st_open(path, &f), IDA_OK);
    assert_int_equal(f->n, 1);
    assert_int_equal((uintptr_t)f->tensors[0].data % 8, 0);
    assert_string_equal(ida_st_meta(f, "format"), "pt");
    assert_string_equal(ida_st_meta(f, keys[1]), values[1]);
    float got[12];
    double got64[12];
    assert_int_equal(ida_st_read_f32(f, t[0].name, 3, t[0].shape, got), IDA_OK);
    assert_int_equal(ida_st_read_f64(f, t[0].name, 3, t[0].shape, got64), IDA_OK);
    assert_memory_equal(got, x, sizeof x);
    for (int i = 0; i < 12; i++) assert_true(got64[i] == (double)x[i]);
    ida_st_close(f);
}

static void the_writer_refuses_what_it_could_not_read_back(void **state) {
    const char *path = in_dir(*state, "refused.safetensors");
    static const float x[2];
    const ida_st_out twice[] = {
        {"a", IDA_ST_F32, 1, {1}, x, NULL}, {"b", IDA_ST_F32, 1, {1}, x, NULL}, {"a", IDA_ST_F64, 0, {0}, x, NULL}};
    const ida_st_out meta = {"__metadata__", IDA_ST_F32, 1, {1}, x, NULL}, utf8 = {"\xff", IDA_ST_F32, 1, {1}, x, NULL};
    const ida_st_out huge = {"a", IDA_ST_F32, 2, {INT64_MAX, 2}, x, NULL}, negative = {"a", IDA_ST_F32, 1, {-1}, x, NULL};
    const ida_st_out other = {"a", IDA_ST_OTHER, 1, {1}, x, NULL};
    const ida_st_out *const rows[] = {&meta, &utf8, &huge, &negative, &other};
    assert_int_equal(ida_st_write(path, twice, 3, NULL, NULL, 0), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "\"a\" is given twice"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) assert_int_equal(ida_st_write(path, rows[i], 1, NULL, NULL, 0),
                                                                               IDA_E_ARG);
    const char *const key = "format", *const value = "np";
    assert_int_equal(ida_st_write(path, twice, 1, &key, &value, 1), IDA_E_ARG);
    assert_false(ida_exists(path));
}

static void golden_files_are_read(void **state) {
    (void)state;
    static const char *const names[] = {"bilinear", "heads", "packed", "plain", "unit"};
    for (size_t i = 0; i < 5; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/golden/%s.safetensors", IDA_TEST_DATA, names[i]);
        ida_st_file *f = NULL;
        assert_int_equal(ida_st_open(path, &f), IDA_OK);
        assert_non_null(ida_st_meta(f, "discretization"));
        const ida_st_tensor *q = ida_st_find(f, "q");
        assert_non_null(q);
        double *x = malloc((size_t)q->numel * sizeof *x + 1);
        assert_non_null(x);
        assert_int_equal(ida_st_read_f64(f, "q", q->ndim, q->shape, x), IDA_OK);
        for (int64_t k = 0; k < q->numel; k++) assert_true(isfinite(x[k]) && fabs(x[k]) < 100);
        free(x);
        ida_st_close(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_headers_are_refused_one_by_one),
        cmocka_unit_test(lying_and_short_lengths_are_refused),
        cmocka_unit_test(every_truncation_of_a_good_file_is_refused),
        cmocka_unit_test(legal_oddities_are_read),
        cmocka_unit_test(unaligned_data_is_read_right),
        cmocka_unit_test(shape_and_type_mismatches_name_tensor_and_both_shapes),
        cmocka_unit_test(half_and_bfloat_values_are_exact),
        cmocka_unit_test(written_bytes_equal_the_reference_writers),
        cmocka_unit_test(round_trip_keeps_values_names_and_metadata),
        cmocka_unit_test(the_writer_refuses_what_it_could_not_read_back),
        cmocka_unit_test(golden_files_are_read),
    };
    return cmocka_run_group_tests_name("io/safetensors", tests, scratch_setup, scratch_teardown);
}
