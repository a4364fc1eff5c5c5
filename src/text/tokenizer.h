/* tokenizer.h - the inside of ida_tokenizer and the encoder behind it: BPE over bytes (GPT-2, Llama-3, Qwen) or over characters
 * with byte fallback (Llama-2, Mistral). What happens around the model is pipeline.h. Invariants of a finished tokenizer: both
 * parts and the product of every merge are tokens; no two tokens of the model share an id; ids are 0..n_ids-1, holes are legal; a
 * special id of the template is a token. */
#ifndef IDA_TEXT_TOKENIZER_H
#define IDA_TEXT_TOKENIZER_H

#include "idattn/text.h"
#include "core/status.h"
#include "text/pipeline.h"

#define IDA_TOKENIZER_MAX_IDS ((int64_t)1 << 21)
/* A key of our own in the decoder object of tokenizer.json: HF skips it there and refuses it elsewhere. */
#define IDA_SAME_RANK_KEY "idattn_same_rank"
#define IDA_SP_MODEL_TAG 0x0A                       /* first byte of a SentencePiece model */
#define IDA_TOKENIZER_MAX_BYTES ((int64_t)256 << 20) /* of tokenizer.json */

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

/* What a loader or the trainer hands over. Arrays are copied. strings: token bytes by id (NULL = hole). */
typedef struct ida_tokenizer_parts {
    int64_t n_ids;
    const char *const *strings;
    const int32_t *lengths;
    const uint8_t *flags;               /* USED, MODEL, RAW; the rest is set from `added` and the pipeline */
    int64_t n_merges;
    const ida_merge *merges;            /* by rank; a pair given twice takes its last rank */
    int64_t n_added;
    const ida_added *added;             /* any order, ids distinct; content NULL = strings[id]; pattern is ignored */
    ida_pipeline *pipe;                 /* taken over, also on failure; NULL = ByteLevel of GPT-2, no prefix */
    bool ignore_merges, byte_fallback, fuse_unk, same_rank, has_unk;
    int32_t unk;
} ida_tokenizer_parts;
/* Builds tables and checks the invariants (IDA_E_FORMAT). */
ida_status ida_tokenizer_build(const ida_tokenizer_parts *p, ida_tokenizer **out);

/* Fills in what each token stands for (text, text_start, flags) from the pipeline's decoder. */
ida_status ida_build_texts(ida_tokenizer *t);

/* The printable character (code point) that stands for a byte in tokenizer.json, and back (-1: none). */
extern const uint16_t ida_byte_char[256];
int ida_char_byte(uint32_t cp);

/* tokenizer.json or SentencePiece model in memory: for loading and fuzzing. */
ida_status ida_tokenizer_parse(const char *text, size_t n, const char *where, ida_tokenizer **out);
ida_status ida_sp_model_parse(const uint8_t *data, size_t n, const char *where, ida_tokenizer **out);

/* Compiled form of a tokenizer.json: for the cache. key: hash of the file. A file that is absent, damaged or not ours is
 * IDA_E_FORMAT. */
ida_status ida_compiled_save(const ida_tokenizer *t, const uint64_t key[2], const char *path);
ida_status ida_compiled_load(const char *path, const uint64_t key[2], ida_tokenizer **out);
/* As ida_tokenizer_parse for JSON, through the folder of compiled tokenizers. */
ida_status ida_tokenizer_parse_cached(const char *text, int64_t n, const char *where, ida_tokenizer **out);

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
/* Id of the model token with these bytes, or -1. */
int32_t ida_tokenizer_find(const ida_tokenizer *t, const char *bytes, size_t n);

/* A decoder that gives every byte at once and as it is, as ida_tokenizer_decode does. begun: the text goes on from an earlier
 * one. */
ida_status ida_decoder_create_bytes(const ida_tokenizer *t, bool skip_special, bool begun, ida_decoder **out);

/* An encoder holds scratch and a bounded cache of short pieces; it borrows the tokenizer. One thread at a time; several encoders
 * of one tokenizer may run at once. Results do not depend on what was encoded before. */
typedef struct ida_ids { int32_t *id; int64_t n, cap; } ida_ids;
ida_status ida_encoder_new(const ida_tokenizer *t, ida_encoder **out);
void ida_encoder_free(ida_encoder *e);
/* Appends the ids of one text to *ids (freed by the caller with ida_free). */
ida_status ida_encoder_add(ida_encoder *e, const char *text, size_t n, bool special, ida_ids *ids);

#endif
