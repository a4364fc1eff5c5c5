/* unicode.c - the tables, looking up in them, stepping backwards. */
#include "text/unicode.h"

#include <assert.h>

#include "text/unicode_tables.h"

static bool is_in(const ida_uc_span *spans, int n, uint32_t cp) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (spans[mid].last < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo < n && cp >= spans[lo].first;
}

bool ida_uc_is_accent(uint32_t cp) { return is_in(ida_ucd_accents, IDA_UCD_ACCENTS, cp); }
bool ida_uc_is_unnormalized(uint32_t cp) { return is_in(ida_ucd_unnormalized, IDA_UCD_UNNORMALIZED, cp); }
bool ida_uc_is_punctuation(uint32_t cp) { return is_in(ida_ucd_punctuation, IDA_UCD_PUNCTUATION, cp); }

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
