/* test_utf8.c - the streaming helper (L31) and UTF-8 stepping, against a slow rule: a prefix is open iff some continuation is
 * valid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "text/unicode.h"
#include "text/utf8.h"

/* A character's bytes arrive one by one: nothing is shown before the last. */
static void L31_character_split_over_tokens_is_shown_whole(void **state) {
    (void)state;
    static const char *const text[] = {"\xF0\x9F\x99\x82", "\xE4\xB8\xAD", "\xC3\xA9", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF",
                                       "\xEE\x80\x80", "\xE0\xA0\x80"};
    for (size_t k = 0; k < sizeof text / sizeof *text; k++) {
        size_t n = strlen(text[k]);
        char s[16] = "ab";
        memcpy(s + 2, text[k], n);
        for (size_t have = 0; have < n; have++) assert_int_equal(ida_utf8_whole(s, 2 + have), 2);
        assert_int_equal(ida_utf8_whole(s, 2 + n), 2 + n);
    }
    assert_int_equal(ida_utf8_whole("", 0), 0);
}

/* Bytes that can never become valid are not held back: the stream would hang on them. */
static void L31_surely_invalid_bytes_are_released(void **state) {
    (void)state;
    static const char *const text[] = {"\x80", "\xFF", "\xC0", "\xC1", "\xF5", "\xED\xA0", "\xE0\x80", "\xF0\x80", "\xF4\x90",
                                       "\xE4\x41", "\xF0\x9F\x41", "\xBF\xBF\xBF"};
    for (size_t k = 0; k < sizeof text / sizeof *text; k++) assert_int_equal(ida_utf8_whole(text[k], strlen(text[k])),
        strlen(text[k]));
    assert_int_equal(ida_utf8_whole("\xE4\xB8\xE4", 3), 2); /* a new lead byte ends the old character */
}

static void every_short_byte_string_agrees_with_the_rule(void **state) {
    (void)state;
    static const uint8_t lead[] = {0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5,
                                   0xFF};
    static const uint8_t next[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    for (size_t a = 0; a < sizeof lead; a++)
        for (size_t b = 0; b < sizeof next; b++)
            for (size_t c = 0; c < sizeof next; c++)
                for (size_t n = 1; n <= 3; n++) {
                    uint8_t s[4] = {lead[a], next[b], next[c], 0};
                    uint32_t cp;
                    int open = 0; /* at the front: some bytes complete it (only the second has a narrower range) */
                    for (int x = 0x80; x < 0xC0 && !open; x++)
                        for (size_t len = n + 1; len <= 4 && !open; len++) {
                            uint8_t t[4] = {s[0], n > 1 ? s[1] : (uint8_t)x, n > 2 ? s[2] : 0x80, 0x80};
                            open = ida_utf8_decode(t, len, &cp) == len;
                        }
                    size_t whole = ida_utf8_whole((const char *)s, n);
                    if (open) assert_int_equal(whole, 0);
                    else assert_true(whole > 0);
                }
}

static void decode_refuses_overlong_surrogates_and_values_past_the_end(void **state) {
    (void)state;
    uint32_t cp;
    assert_int_equal(ida_utf8_decode((const uint8_t *)"\xED\xA0\x80", 3, &cp), 1);
    assert_int_equal(cp, UINT32_MAX);
    assert_int_equal(ida_utf8_decode((const uint8_t *)"\xC0\x80", 2, &cp), 1);
    assert_int_equal(ida_utf8_decode((const uint8_t *)"\xF4\x90\x80\x80", 4, &cp), 1);
    assert_int_equal(ida_utf8_decode((const uint8_t *)"\xF4\x8F\xBF\xBF", 4, &cp), 4);
    assert_int_equal(cp, 0x10FFFF);
    assert_int_equal(ida_utf8_decode((const uint8_t *)"\xF0\x9F\x99", 3, &cp), 1);
}

static void classes_are_unicode_16(void **state) {
    (void)state;
    assert_int_equal(ida_uc_class('a') & 7, IDA_UC_LETTER);
    assert_int_equal(ida_uc_class('_') & 15, IDA_UC_WORD);
    assert_int_equal(ida_uc_class(0x1C89) & 7, IDA_UC_LETTER); /* new in 16.0 */
    assert_int_equal(ida_uc_class(0x180E), 0);                 /* no longer a blank */
    assert_int_equal(ida_uc_class(0x3000), IDA_UC_SPACE);
    assert_int_equal(ida_uc_class(0x85), IDA_UC_SPACE);
    assert_int_equal(ida_uc_class(0x1C), 0);
    assert_int_equal(ida_uc_class(0xBD) & 7, IDA_UC_NUMBER);
    assert_int_equal(ida_uc_class(0x24B6), IDA_UC_WORD);
    assert_int_equal(ida_uc_class(0x10FFFF), 0);
    int64_t letters = 0, numbers = 0, blanks = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        unsigned k = ida_uc_class(c);
        letters += (k & IDA_UC_LETTER) != 0;
        numbers += (k & IDA_UC_NUMBER) != 0;
        blanks += (k & IDA_UC_SPACE) != 0;
    }
    assert_int_equal(blanks, 25); /* White_Space has 25 members */
    assert_int_equal(letters, 141028);
    assert_int_equal(numbers, 1911);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L31_character_split_over_tokens_is_shown_whole),
        cmocka_unit_test(L31_surely_invalid_bytes_are_released),
        cmocka_unit_test(every_short_byte_string_agrees_with_the_rule),
        cmocka_unit_test(decode_refuses_overlong_surrogates_and_values_past_the_end),
        cmocka_unit_test(classes_are_unicode_16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
