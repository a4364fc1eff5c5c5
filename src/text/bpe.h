/* bpe.h - one piece of text to ids, and the scratch it takes: the inside of an encoder. */
#ifndef IDA_TEXT_BPE_H
#define IDA_TEXT_BPE_H

#include <assert.h>

#include "text/ids.h"
#include "text/tables.h"

enum { IDA_CACHE_KEY = 21, IDA_CACHE_IDS = 10, IDA_CACHE_SLOTS = 1 << 15 };

typedef struct ida_cache_slot { uint8_t len, n; char key[IDA_CACHE_KEY + 1]; int32_t ids[IDA_CACHE_IDS]; } ida_cache_slot;
static_assert(sizeof(ida_cache_slot) == 64, "one cache line");

/* One symbol of a long piece: a doubly linked list over an array; id -1 = merged away. */
typedef struct ida_symbol { int32_t id, prev, next; } ida_symbol;

struct ida_encoder {
    const ida_tokenizer *t;
    ida_cache_slot *cache;
    ida_symbol *symbols;
    int64_t symbols_cap;
    uint64_t *heap;            /* rank << 32 | position */
    int64_t heap_n, heap_cap;
    int32_t *chars;            /* symbols of a piece before merging */
    int64_t chars_n, chars_cap;
    ida_match_room *room;
    ida_buf normal[2];         /* of the normalizer */
    ida_buf bytes;             /* a piece that was spelt */
    ida_buf *step;             /* [n_pre]: text changed by a pre-tokenizer */
    const uint8_t *origin;     /* start of the piece in hand when it begins the text, else NULL */
};

/* The ids of one piece, which no merge crosses. */
ida_status ida_encode_piece(ida_encoder *e, const uint8_t *s, size_t n, ida_ids *ids);

#endif
