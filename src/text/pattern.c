/* pattern.c - see pattern.h. */
#include "text/pattern.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/mem.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

enum { MATCH_STEPS = 2000000, MATCH_DEPTH = 200000, JIT_STACK_START = 32 << 10, JIT_STACK_MOST = 4 << 20, MAX_PATTERN = 1 << 16 };

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct { const char *text; ida_pattern_kind kind; } stock[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", IDA_PATTERN_GPT2},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", IDA_PATTERN_GPT2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST, IDA_PATTERN_LLAMA3},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST, IDA_PATTERN_QWEN2}};

struct ida_match_room { pcre2_match_data *data; pcre2_match_context *context; pcre2_jit_stack *stack; };

ida_status ida_match_room_new(ida_match_room **out) {
    ida_match_room *r = NULL;
    IDA_TRY(IDA_CALLOC(r, 1, "pattern matching"));
    r->data = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    r->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL);
    if (!r->data || !r->context) {
        ida_match_room_free(r);
        IDA_FAIL(IDA_E_NOMEM, "out of memory for pattern matching");
    }
    pcre2_set_match_limit(r->context, MATCH_STEPS);
    pcre2_set_depth_limit(r->context, MATCH_DEPTH);
    if (r->stack) pcre2_jit_stack_assign(r->context, NULL, r->stack);
    *out = r;
    return IDA_OK;
}

void ida_match_room_free(ida_match_room *r) {
    if (!r) return;
    pcre2_match_data_free(r->data);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    ida_free(r);
}

void ida_pattern_free(ida_pattern *p) {
    ida_free(p->text);
    pcre2_code_free(p->code);
    *p = (ida_pattern){0};
}

static ida_status copy_text(ida_pattern *p, ida_pattern_kind kind, const char *text, size_t n) {
    *p = (ida_pattern){.kind = kind, .n = n};
    IDA_TRY(IDA_ALLOC(p->text, (int64_t)n + 1, "pattern"));
    memcpy(p->text, text, n);
    p->text[n] = 0;
    return IDA_OK;
}

ida_status ida_pattern_string(ida_pattern *p, const char *text, size_t n) {
    IDA_FAIL_IF(n == 0, IDA_E_UNSUPPORTED, "an empty pattern is not supported");
    return copy_text(p, IDA_PATTERN_STRING, text, n);
}

static ida_status differs(const char *what, const char *text) {
    IDA_FAIL(IDA_E_UNSUPPORTED, "%s in the expression \"%.80s\" is not supported: write it without", what, text);
}

/* "L" names all of Lu, Ll ...; "Lu" itself; "Han" the script. */
static bool is_in(const ida_uc_range *r, const char *name, size_t n) {
    return n == 1 ? r->category[0] == name[0] && r->category[2] == 0
                  : n < sizeof r->category && strncmp(r->category, name, n) == 0 && r->category[n] == 0;
}

/* \p{name} or \P{name}, with the characters that PCRE2's Unicode lacks. A negated one inside a class cannot be written so: it
 * stays. */
static ida_status put_property(ida_buf *out, const char *name, size_t n, bool negated, bool in_class) {
    bool more = false;
    for (int i = 0; i < IDA_UCD_NEWER; i++) more |= is_in(&ida_ucd_newer[i], name, n);
    if (!more || (negated && in_class)) return ida_buf_addf(out, "\\%c{%.*s}", negated ? 'P' : 'p', (int)n, name);
    if (!in_class) IDA_TRY(ida_buf_addf(out, "[%s", negated ? "^" : ""));
    IDA_TRY(ida_buf_addf(out, "\\p{%.*s}", (int)n, name));
    for (int i = 0; i < IDA_UCD_NEWER; i++)
        if (is_in(&ida_ucd_newer[i], name, n))
            IDA_TRY(ida_buf_addf(out, "\\x{%X}-\\x{%X}", ida_ucd_newer[i].first, ida_ucd_newer[i].last));
    return in_class ? IDA_OK : ida_buf_addf(out, "]");
}

/* Oniguruma's \w: as UTS 18, without the joiners, with the numbers of Latin-1. */
static ida_status put_word(ida_buf *out, bool negated, bool in_class) {
    static const char *const kinds[] = {"L", "M", "Nd", "Nl", "Pc"};
    if (!in_class) IDA_TRY(ida_buf_addf(out, "[%s", negated ? "^" : ""));
    for (int i = 0; i < 5; i++) IDA_TRY(put_property(out, kinds[i], strlen(kinds[i]), false, true));
    IDA_TRY(ida_buf_addf(out, "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"
                              "\\x{1F170}-\\x{1F189}"));
    return in_class ? IDA_OK : ida_buf_addf(out, "]");
}

/* \b and \B by that \w. */
static ida_status put_border(ida_buf *out, bool negated) {
    IDA_TRY(ida_buf_addf(out, "(?:(?<="));
    IDA_TRY(put_word(out, false, false));
    IDA_TRY(ida_buf_addf(out, ")(?%c", negated ? '=' : '!'));
    IDA_TRY(put_word(out, false, false));
    IDA_TRY(ida_buf_addf(out, ")|(?<!"));
    IDA_TRY(put_word(out, false, false));
    IDA_TRY(ida_buf_addf(out, ")(?%c", negated ? '!' : '='));
    IDA_TRY(put_word(out, false, false));
    return ida_buf_addf(out, "))");
}

/* The escape at s, n > 0 bytes left; *used of them. What PCRE2 would read differently from Oniguruma is rewritten or refused. */
static ida_status put_escape(ida_buf *out, const char *s, size_t n, bool in_class, const char *text, size_t *used) {
    char c = n > 1 ? s[1] : 0;
    *used = n > 1 ? 2 : 1;
    if (c == 'p' || c == 'P') {
        const char *name = s + 2, *end = n > 3 && s[2] == '{' ? memchr(s, '}', n) : NULL;
        size_t len = n > 2;
        if (end) {
            name = s + 3;
            len = (size_t)(end - name);
            *used = (size_t)(end + 1 - s);
        } else if (n > 2) {
            *used = 3;
        }
        if (len > 0 && name[0] != '^' && name[0] != '{') return put_property(out, name, len, c == 'P', in_class);
        return ida_buf_add(out, s, *used);
    }
    if (c == 'd') return put_property(out, "Nd", 2, false, in_class);
    if (c == 'D' && !in_class) return put_property(out, "Nd", 2, true, false);
    if (c == 's' || c == 'S') return ida_buf_addf(out, "\\%c{White_Space}", c == 's' ? 'p' : 'P');
    if (c == 'w' || (c == 'W' && !in_class)) return put_word(out, c == 'W', in_class);
    if ((c == 'b' || c == 'B') && !in_class) return put_border(out, c == 'B');
    if (c == 'u' && n >= 6 && strspn(s + 2, "0123456789abcdefABCDEF") >= 4) {
        *used = 6;
        return ida_buf_addf(out, "\\x{%.4s}", s + 2);
    }
    if (c == 'v') return ida_buf_addf(out, "\\x{0B}");
    if (c == 'h') return ida_buf_addf(out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
    if (c && strchr("WHVRXKGkgCQE", c)) return differs("an escape that engines read differently", text);
    return ida_buf_add(out, s, *used);
}

/* The options of "(?im-x:", s at the first; Ruby's m is PCRE2's s. Behind the start of an alternative, "(?i)" would take the
 * later ones into a group of its own: a(?i)b|c is a(?i:b|c). */
static ida_status put_options(ida_buf *out, const char *s, size_t n, bool at_start, const char *text, size_t *used) {
    size_t k = strspn(s, "imx-");
    if (k >= n || (s[k] != ':' && s[k] != ')')) return differs("an option of a group", text);
    if (s[k] == ')' && !at_start) return differs("an option behind the start of a group", text);
    IDA_TRY(ida_buf_addf(out, "(?"));
    for (size_t i = 0; i < k; i++) IDA_TRY(ida_buf_add(out, s[i] == 'm' ? "s" : s + i, 1));
    *used = k + 2;
    return IDA_OK;
}

/* A count, s at its brace; one without numbers is plain text. */
static ida_status put_count(ida_buf *out, const char *s, const char *text, size_t *used) {
    static const char digits[] = "0123456789";
    size_t low = strspn(s + 1, digits), comma = s[1 + low] == ',', high = comma ? strspn(s + 2 + low, digits) : 0;
    size_t end = 1 + low + comma + high;
    if ((!low && !high) || s[end] != '}') return ida_buf_add(out, s, 1);
    if (s[end + 1] == '+') return differs("\"}+\"", text);                    /* once or more, not possessive */
    if (s[end + 1] == '?' && !comma) return differs("\"?\" after a count", text); /* all or none, not lazy */
    *used = end + 1;
    return ida_buf_addf(out, "{%s%.*s", low ? "" : "0", (int)end, s + 1);
}

/* Oniguruma (Ruby syntax) to PCRE2. */
static ida_status translate(const char *text, size_t n, ida_buf *out) {
    bool in_class = false;
    size_t class_start = 0, start = 0; /* start: where an alternative begins */
    for (size_t i = 0, used = 1; i < n; i += used, used = 1) {
        char c = text[i], next = i + 1 < n ? text[i + 1] : 0;
        if (c == '\\') {
            IDA_TRY(put_escape(out, text + i, n - i, in_class, text, &used));
            continue;
        }
        if (in_class) {
            if ((c == '[' && next != ':') || (c == '&' && next == '&')) return differs("a class within a class", text);
            if (c == '[') { /* a POSIX name, taken whole */
                const char *end = memmem(text + i, n - i, ":]", 2);
                if (!end) return differs("an unclosed class name", text);
                used = (size_t)(end + 2 - (text + i));
            }
            if (c == ']' && i > class_start) in_class = false;
        } else if (c == '[') {
            in_class = true;
            class_start = next == '^' ? i + 2 : i + 1;
        } else if (c == '{') {
            IDA_TRY(put_count(out, text + i, text, &used));
            continue;
        } else if (c == '(' && next == '?' && i + 2 < n && strchr("imsx-", text[i + 2])) {
            IDA_TRY(put_options(out, text + i + 2, n - i - 2, i == start, text, &used));
            start = i + used + 1;
            continue;
        } else if (c == '(' && next == '?' && i + 2 < n && strchr("R&P|C+0123456789'", text[i + 2])) {
            return differs("a group that engines read differently", text);
        } else if (c == '(' && next == '*') {
            return differs("\"(*\"", text);
        } else if (c == '|' || c == '(') {
            start = c == '(' && next == '?' && i + 2 < n && text[i + 2] == ':' ? i + 3 : i + 1;
        }
        IDA_TRY(ida_buf_add(out, text + i, used));
    }
    return IDA_OK;
}

ida_status ida_pattern_regex(ida_pattern *p, const char *text, size_t n) {
    for (size_t i = 0; i < sizeof stock / sizeof *stock; i++)
        if (strlen(stock[i].text) == n && memcmp(stock[i].text, text, n) == 0) return copy_text(p, stock[i].kind, text, n);
    IDA_FAIL_IF(n == 0 || n > MAX_PATTERN, IDA_E_UNSUPPORTED, "an expression of %zu bytes is not supported (1..%d)", n,
                MAX_PATTERN);
    ida_buf translated = {0};
    ida_status st = copy_text(p, IDA_PATTERN_REGEX, text, n);
    if (!st) st = translate(p->text, n, &translated);
    if (!st) {
        int error;
        PCRE2_SIZE at;
        p->code = pcre2_compile((PCRE2_SPTR)translated.data, (PCRE2_SIZE)translated.len,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
        if (p->code) {
            pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
        } else {
            PCRE2_UCHAR why[160];
            pcre2_get_error_message(error, why, sizeof why);
            st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "the expression \"%.80s\" cannot be compiled: %s", text, (char *)why);
        }
    }
    ida_buf_free(&translated);
    if (st) ida_pattern_free(p);
    return st;
}

ida_search ida_search_start(const ida_pattern *p, ida_match_room *room, const uint8_t *s, size_t n) {
    return (ida_search){.p = p, .room = room, .s = s, .n = n, .last = SIZE_MAX};
}

/* End of the well-formed stretch that starts at i (i itself when the byte there is ill-formed). */
static size_t stretch_end(const uint8_t *s, size_t n, size_t i) {
    while (i < n) {
        uint32_t cp;
        size_t len = s[i] < 0x80 ? 1 : ida_utf8_decode(s + i, n - i, &cp);
        if (s[i] >= 0x80 && cp == UINT32_MAX) break;
        i += len;
    }
    return i;
}

static ida_status next_regex(ida_search *q, size_t *from, size_t *to, bool *found) {
    for (;;) {
        if (q->at > q->close || q->open == q->close) { /* the stretch is used up: the next one */
            size_t i = q->close;
            while (i < q->n && stretch_end(q->s, q->n < i + 4 ? q->n : i + 4, i) == i) i++;
            if (i >= q->n) return IDA_OK;
            q->open = q->at = i;
            q->close = stretch_end(q->s, q->n, i);
        }
        int rc = pcre2_match(q->p->code, q->s + q->open, q->close - q->open, q->at - q->open, PCRE2_NO_UTF_CHECK, q->room->data,
                             q->room->context);
        if (rc == PCRE2_ERROR_NOMATCH) {
            q->at = q->close + 1;
            continue;
        }
        IDA_FAIL_IF(rc < 0, IDA_E_UNSUPPORTED,
                    "the expression \"%.60s\" needs too many steps on this text (PCRE2 error %d): split the text", q->p->text,
                    rc);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(q->room->data);
        *from = q->open + v[0];
        *to = q->open + v[1];
        if (*to < *from) *to = *from; /* \K in a look-ahead */
        bool refused = *from == *to && *to == q->last;
        q->at = *to;
        if (refused || *from == *to) { /* an empty match is taken once, and never right after another match */
            uint32_t cp;
            q->at = *to < q->close ? *to + ida_utf8_decode(q->s + *to, q->close - *to, &cp) : q->close + 1;
        }
        if (refused) continue;
        q->last = *to;
        *found = true;
        return IDA_OK;
    }
}

static bool is_one(ida_pattern_kind kind, uint32_t cp) {
    if (cp == UINT32_MAX) return false;
    if (kind == IDA_PATTERN_PUNCTUATION) return ida_uc_is_punctuation(cp);
    if (kind == IDA_PATTERN_BLANK) return ida_uc_class(cp) & IDA_UC_SPACE;
    bool later = (cp >= 0x11DE0 && cp <= 0x11DE9) || (cp >= 0x16FF4 && cp <= 0x16FF6); /* Rust's Unicode is 17 */
    return later || (ida_uc_class(cp) & IDA_UC_NUMBER);
}

/* The next character of a kind at q->at or later; its length, or 0. */
static size_t next_one(const ida_search *q, size_t *from) {
    for (size_t len; *from < q->n; *from += len) {
        uint32_t cp;
        len = ida_utf8_decode(q->s + *from, q->n - *from, &cp);
        if (is_one(q->p->kind, cp)) return len;
    }
    return 0;
}

/* The next run of word characters, or of what is neither that nor blank; its length, or 0. */
static size_t next_word(const ida_search *q, size_t *from) {
    size_t len, n = 0;
    unsigned kind = IDA_UC_SPACE;
    for (; *from < q->n; *from += len) {
        kind = ida_utf8_class(q->s + *from, q->n - *from, &len) & (IDA_UC_SPACE | IDA_UC_WORD);
        if (kind != IDA_UC_SPACE) break;
    }
    for (; *from + n < q->n; n += len)
        if ((ida_utf8_class(q->s + *from + n, q->n - *from - n, &len) & (IDA_UC_SPACE | IDA_UC_WORD)) != kind) break;
    return n;
}

ida_status ida_search_next(ida_search *q, size_t *from, size_t *to, bool *found) {
    *found = false;
    if (q->p->kind == IDA_PATTERN_REGEX) return next_regex(q, from, to, found);
    if (q->at >= q->n) return IDA_OK;
    const uint8_t *s = q->s + q->at;
    size_t n = q->n - q->at, len = 0;
    *from = q->at;
    switch (q->p->kind) {
    case IDA_PATTERN_GPT2: len = ida_pretokenize_next(s, n); break;
    case IDA_PATTERN_LLAMA3: len = ida_pretokenize_llama3(s, n, 3); break;
    case IDA_PATTERN_QWEN2: len = ida_pretokenize_llama3(s, n, 1); break;
    case IDA_PATTERN_DIGIT: case IDA_PATTERN_BLANK: case IDA_PATTERN_PUNCTUATION: len = next_one(q, from); break;
    case IDA_PATTERN_WORD: len = next_word(q, from); break;
    case IDA_PATTERN_STRING: {
        const uint8_t *hit = memmem(s, n, q->p->text, q->p->n);
        if (hit) {
            *from = (size_t)(hit - q->s);
            len = q->p->n;
        }
        break;
    }
    case IDA_PATTERN_REGEX: break;
    }
    *found = len > 0;
    q->at = *to = *found ? *from + len : q->n;
    return IDA_OK;
}
