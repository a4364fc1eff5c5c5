/* pattern.h - the patterns of tokenizer.json: a string, a regular expression, or one of the stock ones, found by hand-written
 * scanners. Not a general regex layer: expressions are written in Oniguruma's syntax (HF's engine) and run by PCRE2; what the two
 * would read differently is rewritten or refused. Invariant: matches come in order, do not overlap and lie within well-formed
 * UTF-8. */
#ifndef IDA_TEXT_PATTERN_H
#define IDA_TEXT_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum ida_pattern_kind {
    IDA_PATTERN_STRING,
    IDA_PATTERN_REGEX,
    IDA_PATTERN_GPT2,   /* the scanners cover the text: every byte is in a match */
    IDA_PATTERN_LLAMA3, /* up to three digits in a piece */
    IDA_PATTERN_QWEN2,  /* the same with one digit */
    IDA_PATTERN_DIGIT,  /* one character: of Rust's is_numeric, of White_Space, of HF's Punctuation */
    IDA_PATTERN_BLANK,
    IDA_PATTERN_PUNCTUATION,
    IDA_PATTERN_WORD,   /* \w+|[^\w\s]+ */
} ida_pattern_kind;

typedef struct ida_pattern { ida_pattern_kind kind; char *text; size_t n; void *code; } ida_pattern;

/* Copies text. IDA_E_UNSUPPORTED or IDA_E_FORMAT say why an expression cannot be run. Stock expressions become scanners. */
ida_status ida_pattern_string(ida_pattern *p, const char *text, size_t n);
ida_status ida_pattern_regex(ida_pattern *p, const char *text, size_t n);
void ida_pattern_free(ida_pattern *p);

/* Every byte of a text is in a match. */
static inline bool ida_pattern_covers(const ida_pattern *p) {
    return p->kind == IDA_PATTERN_GPT2 || p->kind == IDA_PATTERN_LLAMA3 || p->kind == IDA_PATTERN_QWEN2;
}

/* Room for matching, one per thread; NULL is legal for everything but expressions. */
typedef struct ida_match_room ida_match_room;
ida_status ida_match_room_new(ida_match_room **out);
void ida_match_room_free(ida_match_room *r);

typedef struct ida_search {
    const ida_pattern *p;
    ida_match_room *room;
    const uint8_t *s;
    size_t n, at;
    size_t open, close; /* the well-formed stretch in hand */
    size_t last;        /* end of the last match, SIZE_MAX = none */
} ida_search;
ida_search ida_search_start(const ida_pattern *p, ida_match_room *room, const uint8_t *s, size_t n);
/* The next match [*from, *to), possibly empty; *found false at the end. IDA_E_UNSUPPORTED when the expression needs too many
 * steps. */
ida_status ida_search_next(ida_search *q, size_t *from, size_t *to, bool *found);

#endif
