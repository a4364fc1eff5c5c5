/* unicode.h - character classes (Unicode 16.0) and UTF-8 stepping for the tokenizer. Not a general Unicode library.
 * Invariant: any bytes are legal input; a byte that is not part of well-formed UTF-8 is one unit of class 0. */
#ifndef IDA_TEXT_UNICODE_H
#define IDA_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IDA_UC_LETTER = 1, IDA_UC_NUMBER = 2, IDA_UC_SPACE = 4, IDA_UC_WORD = 8 };

extern const uint8_t ida_ucd_index[4352];
extern const uint8_t ida_ucd_blocks[];

/* Characters that PCRE2 10.42 (Unicode 14) does not know, by general category; "Han" is the script. */
enum { IDA_UCD_NEWER = 129 };
typedef struct ida_uc_range { char category[4]; uint32_t first, last; } ida_uc_range;
extern const ida_uc_range ida_ucd_newer[IDA_UCD_NEWER];

/* Marks that HF's StripAccents takes away, characters that its Punctuation splits at, and those that it leaves alone in normal
 * forms because they are later than its tables (9.0): all three go by versions before 16. */
typedef struct ida_uc_span { uint32_t first, last; } ida_uc_span;
enum { IDA_UCD_ACCENTS = 250, IDA_UCD_PUNCTUATION = 156, IDA_UCD_UNNORMALIZED = 69 };
extern const ida_uc_span ida_ucd_accents[IDA_UCD_ACCENTS], ida_ucd_punctuation[IDA_UCD_PUNCTUATION],
    ida_ucd_unnormalized[IDA_UCD_UNNORMALIZED];
bool ida_uc_is_accent(uint32_t cp);
bool ida_uc_is_punctuation(uint32_t cp);
bool ida_uc_is_unnormalized(uint32_t cp);

/* Class bits of a code point; cp <= 0x10FFFF. */
static inline unsigned ida_uc_class(uint32_t cp) {
    uint8_t pair = ida_ucd_blocks[(size_t)ida_ucd_index[cp >> 8] * 128 + ((cp & 255u) >> 1)];
    return (cp & 1u) ? pair >> 4 : pair & 15u;
}

/* One character at s (n >= 1 bytes left): its length 1..4 and *cp. A byte that starts no well-formed character gives length 1
 * and *cp = UINT32_MAX. Overlong forms, surrogates and values past U+10FFFF are ill-formed. */
static inline size_t ida_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp) {
    uint32_t a = s[0];
    *cp = a;
    if (a < 0x80) return 1;
    *cp = UINT32_MAX;
    if (a < 0xC2 || n < 2 || (s[1] & 0xC0) != 0x80) return 1;
    uint32_t b = s[1] & 0x3Fu;
    if (a < 0xE0) { *cp = (a & 0x1Fu) << 6 | b; return 2; }
    if (n < 3 || (s[2] & 0xC0) != 0x80) return 1;
    uint32_t c = s[2] & 0x3Fu;
    if (a < 0xF0) {
        uint32_t v = (a & 0x0Fu) << 12 | b << 6 | c;
        if (v < 0x800 || (v >= 0xD800 && v <= 0xDFFF)) return 1;
        *cp = v;
        return 3;
    }
    if (a > 0xF4 || n < 4 || (s[3] & 0xC0) != 0x80) return 1;
    uint32_t v = (a & 0x07u) << 18 | b << 12 | c << 6 | (s[3] & 0x3Fu);
    if (v < 0x10000 || v > 0x10FFFF) return 1;
    *cp = v;
    return 4;
}

/* The class of the character at s, and its length; 0 for an ill-formed byte. */
static inline unsigned ida_utf8_class(const uint8_t *s, size_t n, size_t *len) {
    uint32_t cp;
    *len = ida_utf8_decode(s, n, &cp);
    return cp == UINT32_MAX ? 0 : ida_uc_class(cp);
}

/* The class of the character that ends at s + end (end >= 1), and its length. */
unsigned ida_utf8_class_before(const uint8_t *s, size_t end, size_t *len);

#endif
