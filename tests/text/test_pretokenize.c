/* test_pretokenize.c - the scanners of the GPT-2 and Llama-3 patterns against pieces that HF gave, and on bytes HF never sees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/rng.h"
#include "data/text.h"
#include "text/pretokenize.h"
#include "text/recorded.h"

static void pieces_equal_the_recorded_ones(void **state) {
    (void)state;
    static record r;
    int64_t lines = 0;
    FILE *f = fopen(IDA_TEST_DATA "/tokenizer/pieces.txt", "r");
    assert_non_null(f);
    while (next_record(f, 0, &r)) {
        size_t at = 0;
        for (int64_t i = 0; i < r.n_numbers; i++) {
            assert_true(at < r.n);
            size_t n = ida_pretokenize_next((const uint8_t *)r.text + at, r.n - at);
            assert_int_equal(n, r.number[i]);
            at += n;
        }
        assert_int_equal(at, r.n);
        lines++;
    }
    fclose(f);
    assert_true(lines > 150);
}

static void expect(const char *text, size_t n, const size_t *want, size_t count) {
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t len = ida_pretokenize_next((const uint8_t *)text + at, n - at);
        assert_int_equal(len, want[i]);
        at += len;
    }
    assert_int_equal(at, n);
}
#define LENGTHS(...) (const size_t[]){__VA_ARGS__}, sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t)
#define EXPECT(text, ...) expect(text, sizeof text - 1, LENGTHS(__VA_ARGS__))

static void expect_llama3(const char *text, size_t n, int digits, const size_t *want, size_t count) {
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t len = ida_pretokenize_llama3((const uint8_t *)text + at, n - at, digits);
        if (len != want[i]) fail_msg("\"%s\": piece %zu has %zu bytes, not %zu", text, i, len, want[i]);
        at += len;
    }
    assert_int_equal(at, n);
}
#define LLAMA3(text, ...) expect_llama3(text, sizeof text - 1, 3, LENGTHS(__VA_ARGS__))
#define QWEN2(text, ...) expect_llama3(text, sizeof text - 1, 1, LENGTHS(__VA_ARGS__))

static void llama3_and_qwen2_pieces_equal_those_of_the_reference(void **state) {
    (void)state;
    LLAMA3("'\xC5\xBF" "abc", 3, 3); /* U+017F is an s of any case */
    LLAMA3("'Sabc", 2, 3);
    LLAMA3("I'LLbe", 1, 3, 2);
    LLAMA3("'s's", 2, 2);
    LLAMA3("1234567 89", 3, 3, 1, 1, 2);
    QWEN2("1234567 89", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
    LLAMA3("12\xC2\xBD" "3", 4, 1);
    QWEN2("12\xC2\xBD" "3", 1, 1, 2, 1);
    LLAMA3("  \n\n  x", 4, 1, 2);
    LLAMA3("!?\r\n\r\ny", 6, 1);
    LLAMA3(" !!\n", 4);
    LLAMA3("\n!\n", 1, 2);
    LLAMA3("\tword  two", 5, 1, 4);
    LLAMA3("\xC2\xA0w", 3);
    LLAMA3("a\xCC\x81" "b", 1, 3);
    LLAMA3("x   ", 1, 3);
    LLAMA3("\r\nfoo", 2, 3);
    LLAMA3(" \t\n z", 3, 2);
    LLAMA3("\xFF" "ab\xC3", 3, 1); /* ill-formed bytes are characters of no kind */
}

static void contractions_blanks_and_runs_follow_the_pattern(void **state) {
    (void)state;
    EXPECT("it's", 2, 2);
    EXPECT("it'S", 2, 1, 1);
    EXPECT("''s", 2, 1);
    EXPECT(" 's", 2, 1);
    EXPECT("they'rent", 4, 3, 2);
    EXPECT("a  b", 1, 1, 2);
    EXPECT("a \n b", 1, 2, 2);
    EXPECT("a \n", 1, 2);
    EXPECT("\n\n\nb", 2, 1, 1);
    EXPECT("12a!?", 2, 1, 2);
    EXPECT(" 12", 3);
    EXPECT("\xC2\xA0x", 2, 1);
    EXPECT("  \xC2\xA0x", 2, 2, 1);
}

static void ill_formed_bytes_are_neither_letters_nor_blanks(void **state) {
    (void)state;
    EXPECT("a\xFF\xFE" "b", 1, 2, 1);
    EXPECT(" \xC3!", 3);
    EXPECT("\xE4\xB8", 2);
    EXPECT("\xED\xA0\x80z", 3, 1);
}

static void every_byte_is_in_one_piece_for_random_bytes(void **state) {
    (void)state;
    uint8_t s[64];
    for (uint64_t round = 0; round < 20000; round++) {
        size_t n = 1 + round % sizeof s, at = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t w[4];
            ida_philox(5, 4, round * 64 + i, w);
            s[i] = w[0] % 3 ? (uint8_t)w[1] : (uint8_t)" '\ns\xC3\xA9\xE3\x80"[w[1] % 8];
        }
        while (at < n) {
            size_t len = ida_pretokenize_next(s + at, n - at);
            assert_true(len >= 1 && len <= n - at);
            at += len;
        }
    }
}

/* The invariant that lets files be cut: pieces of the parts are the pieces of the whole. */
static void a_cut_between_text_and_blank_changes_no_piece(void **state) {
    (void)state;
    static record r;
    FILE *f = fopen(IDA_TEST_DATA "/tokenizer/pieces.txt", "r");
    int64_t cuts = 0;
    assert_non_null(f);
    while (next_record(f, 0, &r)) {
        int64_t cut = ida_text_last_cut(r.text, 0, (int64_t)r.n);
        size_t at = 0;
        if (cut <= 0) continue;
        for (int64_t i = 0; i < r.n_numbers; i++) {
            size_t end = at < (size_t)cut ? (size_t)cut : r.n;
            size_t n = ida_pretokenize_next((const uint8_t *)r.text + at, end - at);
            assert_int_equal(n, r.number[i]);
            at += n;
        }
        cuts++;
    }
    fclose(f);
    assert_true(cuts > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_equal_the_recorded_ones),
        cmocka_unit_test(contractions_blanks_and_runs_follow_the_pattern),
        cmocka_unit_test(llama3_and_qwen2_pieces_equal_those_of_the_reference),
        cmocka_unit_test(ill_formed_bytes_are_neither_letters_nor_blanks),
        cmocka_unit_test(every_byte_is_in_one_piece_for_random_bytes),
        cmocka_unit_test(a_cut_between_text_and_blank_changes_no_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
