/* test_mem.c - checked sizes, allocation, text buffers, the error line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/bf16.h"
#include "core/cpu.h"
#include "core/json.h"
#include "core/mem.h"

static void size_arithmetic_refuses_overflow_and_negatives(void **state) {
    (void)state;
    int64_t r = 77;
    assert_false(ida_mul64(INT64_MAX, 2, &r));
    assert_false(ida_mul64(INT64_C(1) << 32, INT64_C(1) << 31, &r));
    assert_false(ida_mul64(-1, 3, &r));
    assert_false(ida_mul64(3, -1, &r));
    assert_false(ida_add64(INT64_MAX, 1, &r));
    assert_false(ida_add64(-1, 5, &r));
    assert_true(r == 77);
    assert_true(ida_mul64(INT64_C(1) << 31, INT64_C(1) << 31, &r) && r == INT64_C(1) << 62);
    assert_true(ida_mul64(0, INT64_MAX, &r) && r == 0);
    assert_true(ida_add64(INT64_MAX, 0, &r) && r == INT64_MAX);
}

static void allocation_is_aligned_and_zero_size_is_valid(void **state) {
    (void)state;
    for (int64_t n = 0; n < 200; n += 33) {
        float *p = NULL;
        assert_int_equal(IDA_ALLOC(p, n, "test"), IDA_OK);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (int64_t i = 0; i < n; i++) p[i] = 1;
        ida_free(p);
    }
    int32_t *z = NULL;
    assert_int_equal(IDA_CALLOC(z, 1000, "test"), IDA_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(z[i], 0);
    ida_free(z);
}

static void large_blocks_are_counted_and_the_peak_is_kept(void **state) {
    (void)state;
    enum { BIG = 1 << 20 };
    int64_t before, now, with_small, peak, cap = 0;
    char *a = NULL, *b = NULL, *grown = NULL, *small = NULL;
    ida_mem_used(&before, &peak);
    ida_mem_reset_peak();
    assert_int_equal(IDA_ALLOC(a, BIG, "test"), IDA_OK);
    assert_int_equal(IDA_CALLOC(b, 2 * BIG, "test"), IDA_OK);
    ida_free(a);
    ida_mem_used(&now, &peak);
    assert_in_range(now - before, 2 * BIG, 2 * BIG + 8192);
    assert_in_range(peak - before, 3 * BIG, 3 * BIG + 16384);
    ida_mem_reset_peak();
    assert_int_equal(IDA_GROW(grown, &cap, BIG, "test"), IDA_OK);
    assert_int_equal(IDA_GROW(grown, &cap, 4 * BIG, "test"), IDA_OK);
    ida_mem_used(&now, &peak);
    assert_in_range(now - before, 6 * BIG, 6 * BIG + 16384);
    assert_int_equal(peak, now);
    assert_int_equal(IDA_ALLOC(small, 100, "test"), IDA_OK);
    ida_mem_used(&with_small, &peak);
    assert_int_equal(with_small, now);
    ida_free(small);
    ida_free(grown);
    ida_free(b);
    ida_mem_used(&now, &peak);
    assert_int_equal(now, before);
}

/* Text that others made and this library frees, too: else a long-lived process would drift below zero. */
static void text_is_counted_both_ways(void **state) {
    (void)state;
    enum { LONG = 100000 };
    int64_t before, held, after, peak;
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'a', LONG);
    text[LONG] = '\0';
    ida_mem_used(&before, &peak);
    char *copy = ida_strdup(text), *made = ida_asprintf("%s", text);
    json_t *j = json_string(text);
    char *json = ida_json_dump(j, JSON_ENCODE_ANY);
    assert_true(copy && made && json);
    ida_mem_used(&held, &peak);
    assert_in_range(held - before, 3 * LONG, 3 * (LONG + 8192));
    ida_string_free(copy);
    ida_free(made);
    ida_string_free(json);
    json_decref(j);
    free(text);
    ida_mem_used(&after, &peak);
    assert_int_equal(after, before);
    assert_null(ida_json_dump(NULL, 0));
}

#ifdef IDA_DEBUG
static void fresh_memory_reads_as_nan_in_debug_builds(void **state) {
    (void)state;
    float *p = NULL;
    assert_int_equal(IDA_ALLOC(p, 100, "test"), IDA_OK);
    for (int i = 0; i < 100; i++) assert_true(p[i] != p[i]);
    ida_free(p);
}
#endif

static void impossible_sizes_fail_with_size_and_purpose(void **state) {
    (void)state;
    void *p = NULL;
    assert_int_equal(ida_alloc(&p, INT64_MAX / 4, 8, "the moon"), IDA_E_NOMEM);
    assert_non_null(strstr(ida_last_error(), "the moon"));
    assert_int_equal(ida_alloc(&p, INT64_C(1) << 50, 1, "the moon"), IDA_E_NOMEM);
    assert_non_null(strstr(ida_last_error(), "1125899906842624"));
    assert_int_equal(ida_alloc(&p, -1, 4, "the moon"), IDA_E_NOMEM);
    assert_int_equal(ida_calloc(&p, 3, SIZE_MAX / 2, "the moon"), IDA_E_NOMEM);
    int64_t cap = 0;
    assert_int_equal(ida_grow(&p, &cap, INT64_C(1) << 60, 16, "the moon"), IDA_E_NOMEM);
    assert_true(cap == 0);
    assert_null(p);
}

static void grow_keeps_content_and_amortises(void **state) {
    (void)state;
    void *p = NULL;
    int64_t cap = 0, moves = 0;
    for (int64_t i = 0; i < 100000; i++) {
        int64_t before = cap;
        assert_int_equal(ida_grow(&p, &cap, i + 1, sizeof(int64_t), "test"), IDA_OK);
        moves += cap != before;
        ((int64_t *)p)[i] = i;
    }
    for (int64_t i = 0; i < 100000; i++) assert_true(((int64_t *)p)[i] == i);
    assert_true(moves < 20);
    ida_free(p);
}

static void text_buffer_formats_any_length(void **state) {
    (void)state;
    ida_buf b = {0};
    assert_int_equal(ida_buf_add(&b, "", 0), IDA_OK);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 1000; i++) assert_int_equal(ida_buf_addf(&b, "%d,", i), IDA_OK);
    assert_int_equal(b.len, 3890);
    assert_int_equal(strlen(b.data), 3890);
    assert_memory_equal(b.data + 3886, "999,", 5);
    ida_buf_free(&b);
    assert_null(b.data);
}

static ida_status failing(const char *name) { IDA_FAIL(IDA_E_FORMAT, "bad \"%s\"", name); }

static void error_line_is_one_printable_line_and_takes_prefixes(void **state) {
    (void)state;
    assert_int_equal(failing("a\nb\033[31m"), IDA_E_FORMAT);
    assert_int_equal(strncmp(ida_last_error(), "bad \"a?b?[31m\"", 14), 0);
    assert_int_equal(ida_fail_prefix(IDA_E_FORMAT, "in %s", "x"), IDA_E_FORMAT);
    assert_int_equal(strncmp(ida_last_error(), "in x: bad \"a?b?[31m\"", 20), 0);
    char *longer = malloc(10000);
    assert_non_null(longer);
    memset(longer, 'y', 9999);
    longer[9999] = '\0';
    failing(longer);
    assert_int_equal(strncmp(ida_last_error(), "bad \"yyyy", 9), 0);
    ida_fail_prefix(IDA_E_FORMAT, "%s", longer);
    assert_int_equal(strncmp(ida_last_error(), "yyyy", 4), 0);
    free(longer);
    /* a message may quote the one before it */
    failing("first");
    ida_fail(IDA_E_IO, __FILE__, __LINE__, "then: %s", ida_last_error());
    assert_int_equal(strncmp(ida_last_error(), "then: bad \"first\"", 17), 0);
}

static void statuses_have_names(void **state) {
    (void)state;
    assert_string_equal(ida_status_name(IDA_OK), "ok");
    assert_string_equal(ida_status_name(IDA_E_FORMAT), "format");
    assert_string_equal(ida_status_name((ida_status)99), "unknown");
    assert_string_equal(ida_version(), IDA_VERSION_STRING);
}

static void keep_line(void *user, const char *line) { strncpy(user, line, 99); }

static void log_lines_reach_the_callers_function_only(void **state) {
    (void)state;
    char got[100] = "";
    ida_set_log(keep_line, got);
    ida_log("one %d\n", 1);
    assert_string_equal(got, "one 1?");
    ida_set_log(NULL, NULL);
    ida_log("two");
    assert_string_equal(got, "one 1?");
}

static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = ida_bf16_to_f32((uint16_t)h);
        uint16_t back = ida_f32_to_bf16(f);
        if (f != f) assert_true((back & 0x7f80u) == 0x7f80u && (back & 0x7fu) != 0);
        else assert_int_equal(back, h);
    }
    assert_int_equal(ida_f32_to_bf16(1.00390625f), 0x3f80);  /* tie between 1 and 1.0078125: even */
    assert_int_equal(ida_f32_to_bf16(1.01171875f), 0x3f82);  /* tie the other way */
    assert_int_equal(ida_f32_to_bf16(3.4e38f), 0x7f80);      /* rounds up to infinity */
}

static void the_instruction_set_has_a_name_and_is_one_of_the_machines(void **state) {
    (void)state;
    assert_true(ida_cpu_isa() <= ida_cpu_best());
    assert_string_equal(ida_isa_name(), ida_cpu_isa_name(ida_cpu_isa()));
    assert_string_equal(ida_cpu_isa_name(IDA_ISA_AVX512), "avx512");
}

static void doctor_describes_the_machine_as_json(void **state) {
    (void)state;
    char *text = NULL;
    json_t *j = NULL;
    int64_t n = 0;
    const char *s = NULL;
    assert_int_equal(ida_doctor_json(&text), IDA_OK);
    assert_int_equal(ida_json_parse(text, strlen(text), "doctor", &j), IDA_OK);
    assert_int_equal(ida_json_i64(j, "doctor", "threads", 1, 256, NULL, &n), IDA_OK);
    assert_int_equal(ida_json_i64(j, "doctor", "memory_bytes", 1 << 20, INT64_MAX, NULL, &n), IDA_OK);
    assert_int_equal(ida_json_str(json_object_get(j, "blas"), "doctor", "config", NULL, &s), IDA_OK);
    assert_non_null(strstr(s, "OpenBLAS"));
    assert_int_equal(json_array_size(json_object_get(j, "isas")), (int)ida_cpu_best() + 1);
    json_decref(j);
    ida_string_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_arithmetic_refuses_overflow_and_negatives),
        cmocka_unit_test(large_blocks_are_counted_and_the_peak_is_kept),
        cmocka_unit_test(text_is_counted_both_ways),
        cmocka_unit_test(allocation_is_aligned_and_zero_size_is_valid),
#ifdef IDA_DEBUG
        cmocka_unit_test(fresh_memory_reads_as_nan_in_debug_builds),
#endif
        cmocka_unit_test(impossible_sizes_fail_with_size_and_purpose),
        cmocka_unit_test(grow_keeps_content_and_amortises),
        cmocka_unit_test(text_buffer_formats_any_length),
        cmocka_unit_test(error_line_is_one_printable_line_and_takes_prefixes),
        cmocka_unit_test(statuses_have_names),
        cmocka_unit_test(log_lines_reach_the_callers_function_only),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(the_instruction_set_has_a_name_and_is_one_of_the_machines),
        cmocka_unit_test(doctor_describes_the_machine_as_json),
    };
    return cmocka_run_group_tests_name("core/mem", tests, NULL, NULL);
}
