/* pretokenize.c - see pretokenize.h. */
#include "text/pretokenize.h"

#include <stdbool.h>

#include "text/unicode.h"

enum { KIND_OTHER = 0, KIND_LETTER = IDA_UC_LETTER, KIND_NUMBER = IDA_UC_NUMBER, KIND_SPACE = IDA_UC_SPACE };
#define KIND_MASK (IDA_UC_LETTER | IDA_UC_NUMBER | IDA_UC_SPACE)

static const uint8_t ascii_kind[128] = {
    ['\t'] = KIND_SPACE, ['\n'] = KIND_SPACE, ['\v'] = KIND_SPACE, ['\f'] = KIND_SPACE, ['\r'] = KIND_SPACE, [' '] = KIND_SPACE,
    ['0'] = 2, ['1'] = 2, ['2'] = 2, ['3'] = 2, ['4'] = 2, ['5'] = 2, ['6'] = 2, ['7'] = 2, ['8'] = 2, ['9'] = 2,
    ['A'] = 1, ['B'] = 1, ['C'] = 1, ['D'] = 1, ['E'] = 1, ['F'] = 1, ['G'] = 1, ['H'] = 1, ['I'] = 1, ['J'] = 1, ['K'] = 1,
    ['L'] = 1, ['M'] = 1, ['N'] = 1, ['O'] = 1, ['P'] = 1, ['Q'] = 1, ['R'] = 1, ['S'] = 1, ['T'] = 1, ['U'] = 1, ['V'] = 1,
    ['W'] = 1, ['X'] = 1, ['Y'] = 1, ['Z'] = 1, ['a'] = 1, ['b'] = 1, ['c'] = 1, ['d'] = 1, ['e'] = 1, ['f'] = 1, ['g'] = 1,
    ['h'] = 1, ['i'] = 1, ['j'] = 1, ['k'] = 1, ['l'] = 1, ['m'] = 1, ['n'] = 1, ['o'] = 1, ['p'] = 1, ['q'] = 1, ['r'] = 1,
    ['s'] = 1, ['t'] = 1, ['u'] = 1, ['v'] = 1, ['w'] = 1, ['x'] = 1, ['y'] = 1, ['z'] = 1,
};

static inline unsigned kind_at(const uint8_t *s, size_t n, size_t *len) {
    if (s[0] < 0x80) {
        *len = 1;
        return ascii_kind[s[0]];
    }
    return ida_utf8_class(s, n, len) & KIND_MASK;
}

/* End of the run of characters of `kind` from i on. */
static size_t run_end(const uint8_t *s, size_t n, size_t i, unsigned kind) {
    while (i < n) {
        size_t len;
        if (kind_at(s + i, n - i, &len) != kind) break;
        i += len;
    }
    return i;
}

static size_t contraction(const uint8_t *s, size_t n) {
    if (n < 2) return 0;
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
    if (n >= 3 && ((s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') || (s[1] == 'l' && s[2] == 'l'))) return 3;
    return 0;
}

size_t ida_pretokenize_next(const uint8_t *s, size_t n) {
    size_t len;
    if (s[0] == '\'') {
        len = contraction(s, n);
        if (len) return len;
    }
    unsigned kind = kind_at(s, n, &len);
    if (kind != KIND_SPACE) return run_end(s, n, len, kind);
    if (s[0] == ' ' && n > 1) {
        size_t next;
        unsigned after = kind_at(s + 1, n - 1, &next);
        if (after != KIND_SPACE) return run_end(s, n, 1 + next, after);
    }
    /* Blanks: all of them at the end of the text; else all but the last, which goes with what follows or stands alone. */
    size_t end = len, last = 0;
    while (end < n) {
        size_t step;
        if (kind_at(s + end, n - end, &step) != KIND_SPACE) return last ? last : end;
        last = end;
        end += step;
    }
    return end;
}

static bool is_newline(uint8_t c) { return c == '\r' || c == '\n'; }

/* 's 't 'm 'd 're 've 'll in any case; U+017F folds to s. */
static size_t any_case_contraction(const uint8_t *s, size_t n) {
    if (n < 2) return 0;
    uint8_t a = s[1] | 0x20, b = n > 2 ? s[2] | 0x20 : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return n > 2 && s[1] == 0xC5 && s[2] == 0xBF ? 3 : 0;
}

/* Blanks from s on: up to their last newline when there is one; else as in the GPT-2 pattern. */
static size_t blanks(const uint8_t *s, size_t n) {
    size_t end = 0, last = 0, after_newline = 0;
    while (end < n) {
        size_t step;
        if (kind_at(s + end, n - end, &step) != KIND_SPACE) break;
        if (is_newline(s[end])) after_newline = end + 1;
        last = end;
        end += step;
    }
    if (after_newline) return after_newline;
    return end == n || last == 0 ? end : last;
}

size_t ida_pretokenize_llama3(const uint8_t *s, size_t n, int max_digits) {
    size_t len, next;
    if (s[0] == '\'') {
        len = any_case_contraction(s, n);
        if (len) return len;
    }
    unsigned kind = kind_at(s, n, &len);
    if (kind == KIND_LETTER) return run_end(s, n, len, KIND_LETTER);
    if (kind == KIND_NUMBER) {
        for (int i = 1; i < max_digits && len < n && kind_at(s + len, n - len, &next) == KIND_NUMBER; i++) len += next;
        return len;
    }
    unsigned after = len < n ? kind_at(s + len, n - len, &next) : KIND_SPACE;
    if (!is_newline(s[0]) && after == KIND_LETTER) return run_end(s, n, len + next, KIND_LETTER);
    if (kind == KIND_OTHER || (s[0] == ' ' && after == KIND_OTHER && len < n)) {
        size_t end = run_end(s, n, len, KIND_OTHER);
        while (end < n && is_newline(s[end])) end++;
        return end;
    }
    return blanks(s, n);
}
