/* test_types.c - the table of stored types: sizes, names, and each type's way to fp32 and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/bf16.h"
#include "core/types.h"

enum { N = 96 }; /* whole blocks of every type */

static void sizes_are_those_of_the_numbers(void **state) {
    (void)state;
    assert_int_equal(ida_type_bytes(IDA_TYPE_F64, N), N * 8);
    assert_int_equal(ida_type_bytes(IDA_TYPE_F32, N), N * 4);
    assert_int_equal(ida_type_bytes(IDA_TYPE_BF16, N), N * 2);
    assert_string_equal(ida_type_name(IDA_TYPE_BF16), "bf16");
    for (int t = 0; t < IDA_N_TYPES; t++) {
        assert_int_equal(N % ida_type_block((ida_type)t), 0);
        assert_int_equal(ida_type_bytes((ida_type)t, N), N / ida_type_block((ida_type)t) * ida_type_block_bytes((ida_type)t));
    }
}

/* What a type can hold comes back as it was, and nothing is written past the end. */
static void what_a_type_holds_comes_back(void **state) {
    (void)state;
    for (int t = 0; t < IDA_N_TYPES; t++) {
        unsigned char stored[N * 8 + 1];
        float x[N], once[N + 1], twice[N];
        const size_t bytes = (size_t)ida_type_bytes((ida_type)t, N);
        for (int i = 0; i < N; i++) x[i] = (float)(i % 2 ? -1 : 1) * ldexpf(1.0f + (float)i / 77.0f, i % 40 - 20);
        memset(stored, 0xA5, sizeof stored);
        once[N] = -7;
        ida_type_from_f32((ida_type)t, stored, x, N);
        assert_int_equal(stored[bytes], 0xA5);
        ida_type_to_f32((ida_type)t, once, stored, N);
        assert_true(once[N] == -7);
        ida_type_from_f32((ida_type)t, stored, once, N);
        ida_type_to_f32((ida_type)t, twice, stored, N);
        assert_memory_equal(once, twice, sizeof twice);
        for (int i = 0; i < N; i++) assert_true(fabsf(once[i] - x[i]) <= 0x1p-8f * fabsf(x[i]));
    }
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    const float x[] = {1.00390625f, 1.01171875f, -0.0f, INFINITY};
    uint16_t h[4];
    ida_type_from_f32(IDA_TYPE_BF16, h, x, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(h[i], ida_f32_to_bf16(x[i]));
    assert_int_equal(h[0], 0x3f80);
    assert_int_equal(h[2], 0x8000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_those_of_the_numbers),
        cmocka_unit_test(what_a_type_holds_comes_back),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests_name("types", tests, NULL, NULL);
}
