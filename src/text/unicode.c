/* unicode.c - the class tables and stepping backwards. */
#include "text/unicode.h"

#include <assert.h>

#include "text/unicode_tables.h"

unsigned ida_utf8_class_before(const uint8_t *s, size_t end, size_t *len) {
    for (size_t back = end < 4 ? end : 4; back > 0; back--) {
        size_t n;
        unsigned k = ida_utf8_class(s + end - back, back, &n);
        if (n == back) {
            *len = n;
            return k;
        }
    }
    *len = 1;
    return 0;
}
