/* pipeline.h - what a tokenizer.json does around its BPE model: normalizer, pre-tokenizer, post-processor, decoder, as lists of
 * steps. Not the model and not the added tokens. Invariant: what would change ids or text and is not here has been refused by
 * name. */
#ifndef IDA_TEXT_PIPELINE_H
#define IDA_TEXT_PIPELINE_H

#include <jansson.h>

#include "core/mem.h"
#include "text/pattern.h"

#define IDA_METASPACE "\xE2\x96\x81" /* U+2581 */
#define IDA_TOKENIZER_MAX_IDS ((int64_t)1 << 21)

typedef enum ida_norm_kind {
    IDA_NORM_NFC,
    IDA_NORM_NFD,
    IDA_NORM_NFKC,
    IDA_NORM_NFKD,
    IDA_NORM_LOWERCASE,
    IDA_NORM_STRIP_ACCENTS,
    IDA_NORM_STRIP,
    IDA_NORM_PREPEND,
    IDA_NORM_REPLACE
} ida_norm_kind;
/* left, right: where STRIP takes blanks away. */
typedef struct ida_norm_step { ida_norm_kind kind; ida_pattern find; char *with; size_t n; bool left, right; } ida_norm_step;

typedef enum ida_behaviour {
    IDA_REMOVED,
    IDA_ISOLATED,
    IDA_MERGED_WITH_PREVIOUS,
    IDA_MERGED_WITH_NEXT,
    IDA_CONTIGUOUS
} ida_behaviour;
/* BYTES: from here on the steps see what ByteLevel makes of the text, one printable character a byte. */
typedef enum ida_pre_kind { IDA_PRE_SPLIT, IDA_PRE_BLANK, IDA_PRE_METASPACE, IDA_PRE_BYTES } ida_pre_kind;
typedef enum ida_prepend { IDA_PREPEND_NEVER, IDA_PREPEND_FIRST, IDA_PREPEND_ALWAYS } ida_prepend;
typedef struct ida_pre_step {
    ida_pre_kind kind;
    ida_pattern find;          /* SPLIT; METASPACE: the mark */
    ida_behaviour behaviour;
    bool invert, split;        /* split: METASPACE cuts before every mark */
    ida_prepend prepend;
} ida_pre_step;

typedef enum ida_decode_kind { IDA_DECODE_BYTE_LEVEL, IDA_DECODE_CHAIN, IDA_DECODE_METASPACE } ida_decode_kind;
typedef struct ida_pipeline {
    int64_t n_norm, n_pre, n_replace, n_before, n_after;
    ida_norm_step *norm;
    ida_pre_step *pre;
    bool byte_level;           /* the model sees bytes, spelt as printable characters in the file */
    bool spelt;                /* the model's pieces come behind BYTES: they are spelt so */
    bool plain_gpt2;           /* nothing but ByteLevel with its own pattern */
    bool add_prefix_space;     /* of plain_gpt2 */
    ida_decode_kind decode;
    ida_norm_step *replace;    /* CHAIN, on each token */
    bool byte_fallback, first_mark_dropped;
    char strip[8], mark[8];    /* UTF-8; strip: taken from the front of the text up to strip_n times */
    int64_t strip_n;
    int32_t *before, *after;   /* ids the template puts around a text */
    char *source[4];           /* the four objects as compact JSON, keys sorted */
} ida_pipeline;

extern const char *const ida_pipeline_keys[4]; /* normalizer, pre_tokenizer, post_processor, decoder */
/* root: an object with these keys. */
ida_status ida_pipeline_parse(const json_t *root, const char *where, ida_pipeline **out);
void ida_pipeline_free(ida_pipeline *p);

/* What steps may make of n bytes: NFKC makes up to 11 of one, and steps behind each other multiply without end. */
static inline int64_t ida_text_limit(size_t n) { return 32 * (int64_t)n + 256; }
/* The failure of steps that would make more. */
ida_status ida_text_grows(size_t n);

/* Runs the normalizer; *out is the text itself when there is nothing to do, else one of the two buffers. */
ida_status ida_normalize(const ida_pipeline *p, ida_match_room *room, const uint8_t *s, size_t n, ida_buf buffers[2],
                         const uint8_t **out, size_t *n_out);
/* *out = s with every match replaced; stops once that is longer than `most`. */
ida_status ida_replace(const ida_norm_step *step, ida_match_room *room, const uint8_t *s, size_t n, int64_t most,
                       ida_buf *out);

#endif
