/* tables.h - what a finished tokenizer is: tokens, merges and added tokens in tables, and the look-ups in them. BPE over bytes
 * (GPT-2, Llama-3, Qwen) or over characters with byte fallback (Llama-2, Mistral). Not here: how the tables are made (build.h),
 * what happens around the model (pipeline.h), text to ids (encode.h) and back (decoder.h).
 * Invariants: both parts and the product of every merge are tokens; no two tokens of the model share an id; ids are 0..n_ids-1,
 * holes are legal; a special id of the template is a token. */
#ifndef IDA_TEXT_TABLES_H
#define IDA_TEXT_TABLES_H

#include "idattn/text.h"
#include "core/status.h"
#include "text/pipeline.h"

enum {
    IDA_TOKEN_USED = 1,    /* the id is taken */
    IDA_TOKEN_MODEL = 2,   /* in the model's vocabulary (else only an added token) */
    IDA_TOKEN_RAW = 4,     /* its string in the file holds a character outside the byte alphabet: the bytes are its UTF-8 */
    IDA_TOKEN_ADDED = 8,
    IDA_TOKEN_SPECIAL = 16,
    IDA_TOKEN_SKIPPED = 32, /* left out when special tokens are skipped */
    IDA_TOKEN_BYTE = 64,    /* <0xHH> of a pipeline with byte fallback: its text is the byte */
};

/* content: as written in the file. pattern: what is searched for (normalized tokens: their own normal form). */
typedef struct ida_added {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    int32_t n, n_pattern;
    const char *content, *pattern;
} ida_added;
typedef struct ida_merge { int32_t left, right, product; } ida_merge;
/* Open-addressing map of (left, right) to (rank, product); key UINT64_MAX = free. */
typedef struct ida_pair_slot { uint64_t key; uint32_t rank; int32_t product; } ida_pair_slot;

/* Added tokens of one matching pass, sorted by their patterns. */
typedef struct ida_matcher { int64_t n; int32_t *index; bool plain, first[256]; } ida_matcher; /* plain: some are not special */

/* Characters as seen by `joins`: ASCII each its own, U+2581, all others. */
enum { IDA_CLASS_MARK = 128, IDA_CLASS_OTHER = 129, IDA_CLASSES = 130 };

typedef struct ida_encoder ida_encoder;

struct ida_tokenizer {
    int64_t n_ids;
    uint8_t *flags;                     /* [n_ids] */
    int64_t *start;                     /* [n_ids+1]: token id is bytes[start[id] .. start[id+1]): what the model matches */
    char *bytes;
    int64_t *text_start; /* [n_ids+1]: the same for the text it stands for; the two are one array where they agree */
    char *text;
    int32_t byte_id[256];               /* byte level: token of a byte. Else: token <0xHH>. -1 = none */
    int32_t ascii_id[128];              /* not byte level: token of a character, -1 = none */
    int32_t mark_id;                    /* not byte level: token of U+2581, -1 = none */
    int64_t n_merges;                   /* in rank order, no pair twice */
    ida_merge *merges;
    ida_pair_slot *pairs;
    uint64_t pair_mask;
    int32_t *words;                     /* hash of bytes -> id of model tokens (not raw), -1 = free */
    uint64_t word_mask;
    int64_t n_added;
    ida_added *added;                   /* by id */
    char *added_bytes;
    ida_matcher pass[2];                /* 0: normalized false, on the text; 1: normalized true, on what is left */
    ida_pipeline *pipe;
    int64_t eos;
    uint64_t hash;
    uint8_t *joins; /* [left class][right class]: some merge crosses such a border; NULL = pieces are never cut */
    int32_t unk;                        /* -1 = none: unknown characters vanish */
    bool ignore_merges, byte_fallback, fuse_unk, all_bytes;
    bool same_rank;                     /* merges with one product share its rank (SentencePiece) */
    bool in_parts;                      /* a text may be cut (ida_text_last_cut) and its parts encoded alone */
    int lock;                           /* 1 = `shared` is in use */
    ida_encoder *shared;
};

/* The printable character (code point) that stands for a byte in tokenizer.json, and back (-1: none). */
extern const uint16_t ida_byte_char[256];
int ida_char_byte(uint32_t cp);

static inline uint64_t ida_pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }
static inline uint64_t ida_mix64(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}
/* The slot of a pair, or NULL. */
static inline const ida_pair_slot *ida_pair_find(const ida_tokenizer *t, int32_t left, int32_t right) {
    uint64_t key = ida_pair_key(left, right);
    for (uint64_t i = ida_mix64(key) & t->pair_mask;; i = (i + 1) & t->pair_mask) {
        const ida_pair_slot *s = &t->pairs[i];
        if (s->key == key) return s;
        if (s->key == UINT64_MAX) return NULL;
    }
}
/* Where the search for a token with these bytes begins in `words`, before masking. */
uint64_t ida_word_hash(const char *bytes, size_t n);
/* Id of the model token with these bytes, or -1. */
int32_t ida_tokenizer_find(const ida_tokenizer *t, const char *bytes, size_t n);

#endif
