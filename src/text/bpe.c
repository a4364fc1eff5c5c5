/* bpe.c - one piece of text to ids: the piece's bytes or characters are symbols, and the pair of lowest rank is merged, leftmost
 * first, until no pair has a rank. Short pieces scan for it; long ones keep a heap of (rank, left position). A heap entry is
 * stale iff the pair now at its position has another product: as products are their parts joined and cuts inside a piece only
 * ever vanish, an equal product means the same pair, so both ways give the same ids. */
#include "text/bpe.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/unicode.h"

enum { SHORT_PIECE = 48 };

static ida_status push_symbol(ida_encoder *e, int32_t id) {
    if (e->chars_n == e->chars_cap) IDA_TRY(IDA_GROW(e->chars, &e->chars_cap, e->chars_n + 1, "symbols of a piece"));
    e->chars[e->chars_n++] = id;
    return IDA_OK;
}

/* Id of the character s of n bytes, or -1. */
static int32_t char_id(const ida_tokenizer *t, const uint8_t *s, size_t n) {
    if (t->pipe->byte_level) return t->byte_id[s[0]];
    if (n == 1 && s[0] < 0x80) return t->ascii_id[s[0]];
    if (n == sizeof IDA_METASPACE - 1 && memcmp(s, IDA_METASPACE, n) == 0) return t->mark_id;
    return ida_tokenizer_find(t, (const char *)s, n);
}

static bool has_bytes(const ida_tokenizer *t, const uint8_t *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[s[i]] < 0) return false;
    return true;
}

/* Symbols of a piece. An unknown token waits and is put down only before the next known symbol or at the end: byte tokens
 * overtake it, as in HF. */
static ida_status start_symbols(ida_encoder *e, const uint8_t *s, size_t n) {
    const ida_tokenizer *t = e->t;
    bool waiting = false;
    e->chars_n = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = t->pipe->byte_level || s[i] < 0x80 ? 1 : ida_utf8_decode(s + i, n - i, &cp);
        int32_t id = char_id(t, s + i, len);
        if (id >= 0) {
            if (waiting) IDA_TRY(push_symbol(e, t->unk));
            waiting = false;
            IDA_TRY(push_symbol(e, id));
        } else if (!t->pipe->byte_level && t->byte_fallback && has_bytes(t, s + i, len)) {
            for (size_t k = 0; k < len; k++) IDA_TRY(push_symbol(e, t->byte_id[s[i + k]]));
        } else if (t->unk >= 0) {
            if (waiting && !t->fuse_unk) IDA_TRY(push_symbol(e, t->unk));
            waiting = true;
        }
    }
    return waiting ? push_symbol(e, t->unk) : IDA_OK;
}

/* Merges id[0..n) in place, n <= SHORT_PIECE. */
static ida_status merge_short(const ida_tokenizer *t, int32_t *id, size_t n, ida_ids *ids) {
    const ida_pair_slot *pair[SHORT_PIECE]; /* of (id[i], id[i+1]) */
    for (size_t i = 0; i + 1 < n; i++) pair[i] = ida_pair_find(t, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = n;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            if (pair[i] && pair[i]->rank < rank) {
                rank = pair[i]->rank;
                best = i;
            }
        if (best == n) break;
        id[best] = pair[best]->product;
        memmove(&id[best + 1], &id[best + 2], (n - best - 2) * sizeof *id);
        memmove(&pair[best], &pair[best + 1], (n - best - 2) * sizeof *pair);
        n--;
        if (best > 0) pair[best - 1] = ida_pair_find(t, id[best - 1], id[best]);
        if (best + 1 < n) pair[best] = ida_pair_find(t, id[best], id[best + 1]);
    }
    IDA_TRY(IDA_GROW(ids->id, &ids->cap, ids->n + (int64_t)n, "token ids"));
    memcpy(ids->id + ids->n, id, n * sizeof *id);
    ids->n += (int64_t)n;
    return IDA_OK;
}

static ida_status heap_push(ida_encoder *e, uint64_t key) {
    if (e->heap_n == e->heap_cap) IDA_TRY(IDA_GROW(e->heap, &e->heap_cap, e->heap_n + 1, "merge heap"));
    int64_t i = e->heap_n++;
    for (; i > 0 && e->heap[(i - 1) / 2] > key; i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = key;
    return IDA_OK;
}

static uint64_t heap_pop(ida_encoder *e) {
    uint64_t top = e->heap[0], last = e->heap[--e->heap_n];
    int64_t n = e->heap_n, i = 0;
    for (int64_t c = 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && e->heap[c + 1] < e->heap[c]) c++;
        if (e->heap[c] >= last) break;
        e->heap[i] = e->heap[c];
        i = c;
    }
    e->heap[i] = last;
    return top;
}

static ida_status push_pair(ida_encoder *e, int64_t left) {
    const ida_symbol *s = &e->symbols[left];
    if (s->next < 0) return IDA_OK;
    const ida_pair_slot *p = ida_pair_find(e->t, s->id, e->symbols[s->next].id);
    return p ? heap_push(e, (uint64_t)p->rank << 32 | (uint64_t)left) : IDA_OK;
}

static ida_status merge_long(ida_encoder *e, const int32_t *id, size_t n, ida_ids *ids) {
    const ida_tokenizer *t = e->t;
    IDA_FAIL_IF(n > INT32_MAX, IDA_E_UNSUPPORTED,
                "a single word of %zu symbols cannot be encoded (limit 2147483647): split the text", n);
    IDA_TRY(IDA_GROW(e->symbols, &e->symbols_cap, (int64_t)n, "symbols of a long word"));
    ida_symbol *sym = e->symbols;
    for (int64_t i = 0; i < (int64_t)n; i++)
        sym[i] = (ida_symbol){id[i], (int32_t)(i - 1), i + 1 < (int64_t)n ? (int32_t)(i + 1) : -1};
    e->heap_n = 0;
    for (int64_t i = 0; i + 1 < (int64_t)n; i++) IDA_TRY(push_pair(e, i));
    while (e->heap_n > 0) {
        uint64_t top = heap_pop(e);
        int64_t at = (int64_t)(top & UINT32_MAX);
        ida_symbol *s = &sym[at];
        if (s->id < 0 || s->next < 0) continue;
        ida_symbol *r = &sym[s->next];
        const ida_pair_slot *p = ida_pair_find(t, s->id, r->id);
        if (!p || p->product != t->merges[top >> 32].product) continue;
        s->id = p->product;
        s->next = r->next;
        r->id = -1;
        if (s->next >= 0) sym[s->next].prev = (int32_t)at;
        if (s->prev >= 0) IDA_TRY(push_pair(e, s->prev));
        IDA_TRY(push_pair(e, at));
    }
    for (int64_t i = 0; i >= 0; i = sym[i].next) IDA_TRY(ida_push_id(ids, sym[i].id));
    return IDA_OK;
}

ida_status ida_encode_piece(ida_encoder *e, const uint8_t *s, size_t n, ida_ids *ids) {
    const ida_tokenizer *t = e->t;
    if (n == 1 && t->pipe->byte_level && t->byte_id[s[0]] >= 0) return ida_push_id(ids, t->byte_id[s[0]]);
    ida_cache_slot *slot = NULL;
    if (n <= IDA_CACHE_KEY) {
        slot = &e->cache[XXH3_64bits(s, n) & (IDA_CACHE_SLOTS - 1)];
        if (slot->len == n && memcmp(slot->key, s, n) == 0) {
            if (ids->cap - ids->n < IDA_CACHE_IDS) IDA_TRY(IDA_GROW(ids->id, &ids->cap, ids->n + IDA_CACHE_IDS, "token ids"));
            memcpy(ids->id + ids->n, slot->ids, sizeof slot->ids);
            ids->n += slot->n;
            return IDA_OK;
        }
    }
    int64_t first = ids->n;
    int32_t whole = t->ignore_merges ? ida_tokenizer_find(t, (const char *)s, n) : -1;
    if (whole >= 0) {
        IDA_TRY(ida_push_id(ids, whole));
    } else if (n <= SHORT_PIECE && t->pipe->byte_level && t->all_bytes) {
        int32_t id[SHORT_PIECE];
        for (size_t i = 0; i < n; i++) id[i] = t->byte_id[s[i]];
        IDA_TRY(merge_short(t, id, n, ids));
    } else {
        IDA_TRY(start_symbols(e, s, n));
        size_t k = (size_t)e->chars_n; /* 0: the piece had only characters that vanish */
        if (k > 0) IDA_TRY(k <= SHORT_PIECE ? merge_short(t, e->chars, k, ids) : merge_long(e, e->chars, k, ids));
    }
    int64_t made = ids->n - first;
    if (slot && made <= IDA_CACHE_IDS) {
        slot->len = (uint8_t)n;
        slot->n = (uint8_t)made;
        memcpy(slot->key, s, n);
        memcpy(slot->ids, ids->id + first, (size_t)made * sizeof *slot->ids);
    }
    return IDA_OK;
}
