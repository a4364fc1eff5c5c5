/* utf8.c - see utf8.h. Only the last three bytes can belong to an unfinished character. */
#include "text/utf8.h"

#include <stdbool.h>
#include <stdint.h>

/* Is [s, n) (n = 1..3) a proper prefix of some well-formed character? */
static bool is_open(const uint8_t *s, size_t n) {
    uint8_t a = s[0];
    size_t len = a >= 0xC2 && a <= 0xDF ? 2 : a >= 0xE0 && a <= 0xEF ? 3 : a >= 0xF0 && a <= 0xF4 ? 4 : 0;
    if (n >= len) return false;
    if (n >= 2) {
        uint8_t lo = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
        uint8_t hi = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
        if (s[1] < lo || s[1] > hi) return false;
    }
    return n < 3 || (s[2] & 0xC0) == 0x80;
}

size_t ida_utf8_whole(const char *s, size_t n) {
    const uint8_t *b = (const uint8_t *)s;
    for (size_t back = n < 3 ? n : 3; back > 0; back--)
        if (is_open(b + n - back, back)) return n - back;
    return n;
}
