/* bpe.c - text to ids: added tokens are cut out, the rest is cut into pieces and every piece is merged.
 * Merging takes the pair of lowest rank, leftmost first, until no pair has a rank. Short pieces scan for it; long ones keep a
 * heap of (rank, left position). A heap entry is stale iff the pair now at its position has another product: as products are
 * their parts joined and cuts inside a piece only ever vanish, an equal product means the same pair, so both ways give the same
 * ids. */
#include "text/tokenizer.h"

#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

enum { SHORT_PIECE = 48, CACHE_KEY = 21, CACHE_IDS = 10, CACHE_SLOTS = 1 << 15 };

typedef struct cache_slot { uint8_t len, n; char key[CACHE_KEY + 1]; int32_t ids[CACHE_IDS]; } cache_slot;
static_assert(sizeof(cache_slot) == 64, "one cache line");

/* One symbol of a long piece: a doubly linked list over an array; id -1 = merged away. */
typedef struct symbol { int32_t id, prev, next; } symbol;

struct ida_encoder {
    const ida_tokenizer *t;
    cache_slot *cache;
    symbol *symbols;
    int64_t symbols_cap;
    uint64_t *heap; /* rank << 32 | position */
    int64_t heap_n, heap_cap;
    char *prefixed; /* text with a blank before it (add_prefix_space) */
    int64_t prefixed_cap;
};

ida_status ida_encoder_new(const ida_tokenizer *t, ida_encoder **out) {
    ida_encoder *e = NULL;
    IDA_TRY(IDA_CALLOC(e, 1, "tokenizer encoder"));
    e->t = t;
    ida_status st = IDA_CALLOC(e->cache, CACHE_SLOTS, "tokenizer cache");
    if (st) {
        ida_encoder_free(e);
        return st;
    }
    *out = e;
    return IDA_OK;
}

void ida_encoder_free(ida_encoder *e) {
    if (!e) return;
    ida_free(e->cache);
    ida_free(e->symbols);
    ida_free(e->heap);
    ida_free(e->prefixed);
    ida_free(e);
}

static ida_status push_id(ida_ids *ids, int32_t id) {
    if (ids->n == ids->cap) IDA_TRY(IDA_GROW(ids->id, &ids->cap, ids->n + 1, "token ids"));
    ids->id[ids->n++] = id;
    return IDA_OK;
}

static ida_status merge_short(const ida_tokenizer *t, const uint8_t *s, size_t n, ida_ids *ids) {
    int32_t id[SHORT_PIECE];
    const ida_pair_slot *pair[SHORT_PIECE]; /* of (id[i], id[i+1]) */
    for (size_t i = 0; i < n; i++) id[i] = t->byte_id[s[i]];
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
    const symbol *s = &e->symbols[left];
    if (s->next < 0) return IDA_OK;
    const ida_pair_slot *p = ida_pair_find(e->t, s->id, e->symbols[s->next].id);
    return p ? heap_push(e, (uint64_t)p->rank << 32 | (uint64_t)left) : IDA_OK;
}

static ida_status merge_long(ida_encoder *e, const uint8_t *bytes, size_t n, ida_ids *ids) {
    const ida_tokenizer *t = e->t;
    IDA_FAIL_IF(n > INT32_MAX, IDA_E_UNSUPPORTED,
                "a single word of %zu bytes cannot be encoded (limit 2147483647): split the text", n);
    IDA_TRY(IDA_GROW(e->symbols, &e->symbols_cap, (int64_t)n, "symbols of a long word"));
    symbol *sym = e->symbols;
    for (int64_t i = 0; i < (int64_t)n; i++)
        sym[i] = (symbol){t->byte_id[bytes[i]], (int32_t)(i - 1), i + 1 < (int64_t)n ? (int32_t)(i + 1) : -1};
    e->heap_n = 0;
    for (int64_t i = 0; i + 1 < (int64_t)n; i++) IDA_TRY(push_pair(e, i));
    while (e->heap_n > 0) {
        uint64_t top = heap_pop(e);
        int64_t at = (int64_t)(top & UINT32_MAX);
        symbol *s = &sym[at];
        if (s->id < 0 || s->next < 0) continue;
        symbol *r = &sym[s->next];
        const ida_pair_slot *p = ida_pair_find(t, s->id, r->id);
        if (!p || p->product != t->merges[top >> 32].product) continue;
        s->id = p->product;
        s->next = r->next;
        r->id = -1;
        if (s->next >= 0) sym[s->next].prev = (int32_t)at;
        if (s->prev >= 0) IDA_TRY(push_pair(e, s->prev));
        IDA_TRY(push_pair(e, at));
    }
    for (int64_t i = 0; i >= 0; i = sym[i].next) IDA_TRY(push_id(ids, sym[i].id));
    return IDA_OK;
}

static ida_status add_piece(ida_encoder *e, const uint8_t *s, size_t n, ida_ids *ids) {
    const ida_tokenizer *t = e->t;
    if (n == 1) return push_id(ids, t->byte_id[s[0]]);
    cache_slot *slot = NULL;
    if (n <= CACHE_KEY) {
        slot = &e->cache[XXH3_64bits(s, n) & (CACHE_SLOTS - 1)];
        if (slot->len == n && memcmp(slot->key, s, n) == 0) {
            if (ids->cap - ids->n < CACHE_IDS) IDA_TRY(IDA_GROW(ids->id, &ids->cap, ids->n + CACHE_IDS, "token ids"));
            memcpy(ids->id + ids->n, slot->ids, sizeof slot->ids);
            ids->n += slot->n;
            return IDA_OK;
        }
    }
    int64_t first = ids->n;
    int32_t whole = t->ignore_merges ? ida_tokenizer_find(t, (const char *)s, n) : -1;
    if (whole >= 0)
        IDA_TRY(push_id(ids, whole));
    else if (n <= SHORT_PIECE)
        IDA_TRY(merge_short(t, s, n, ids));
    else
        IDA_TRY(merge_long(e, s, n, ids));
    int64_t made = ids->n - first;
    if (slot && made <= CACHE_IDS) {
        slot->len = (uint8_t)n;
        slot->n = (uint8_t)made;
        memcpy(slot->key, s, n);
        memcpy(slot->ids, ids->id + first, (size_t)made * sizeof *slot->ids);
    }
    return IDA_OK;
}

static ida_status add_plain(ida_encoder *e, const uint8_t *s, size_t n, ida_ids *ids) {
    if (n && e->t->add_prefix_space && s[0] != ' ') {
        IDA_TRY(IDA_GROW(e->prefixed, &e->prefixed_cap, (int64_t)n + 1, "text"));
        e->prefixed[0] = ' ';
        memcpy(e->prefixed + 1, s, n);
        s = (const uint8_t *)e->prefixed;
        n++;
    }
    while (n > 0) {
        size_t len = ida_pretokenize_next(s, n);
        IDA_TRY(add_piece(e, s, len, ids));
        s += len;
        n -= len;
    }
    return IDA_OK;
}

/* The longest added token of the pass at s, as an index into t->added, or -1: the sorted list is narrowed byte by byte. */
static int32_t longest_match(const ida_tokenizer *t, const ida_matcher *m, const uint8_t *s, size_t n) {
    int64_t lo = 0, hi = m->n;
    int32_t found = -1;
    for (size_t depth = 0; depth < n && lo < hi; depth++) {
        int64_t a = lo, b = hi;
        while (a < b) { /* first entry whose byte at `depth` is >= s[depth]; shorter entries sort first */
            int64_t mid = (a + b) / 2;
            int32_t id = t->added[m->index[mid]].id;
            bool less = t->start[id + 1] - t->start[id] <= (int64_t)depth
                || (uint8_t)t->bytes[t->start[id] + (int64_t)depth] < s[depth];
            if (less) a = mid + 1; else b = mid;
        }
        lo = a;
        b = hi;
        while (a < b) {
            int64_t mid = (a + b) / 2;
            int32_t id = t->added[m->index[mid]].id;
            if ((uint8_t)t->bytes[t->start[id] + (int64_t)depth] <= s[depth]) a = mid + 1; else b = mid;
        }
        hi = a;
        if (lo < hi) {
            int32_t id = t->added[m->index[lo]].id;
            if (t->start[id + 1] - t->start[id] == (int64_t)depth + 1) found = m->index[lo];
        }
    }
    return found;
}

static bool is_word_at(const uint8_t *s, size_t n, size_t at, bool before) {
    size_t len;
    if (before) return at > 0 && (ida_utf8_class_before(s, at, &len) & IDA_UC_WORD);
    return at < n && (ida_utf8_class(s + at, n - at, &len) & IDA_UC_WORD);
}

/* Leftmost-longest matches of one pass; what lies between goes to the next pass. The flags are applied as HF does: a match that
 * is refused still uses up its bytes for the search, and a stripped blank may be given to two neighbours. */
static ida_status add_pass(ida_encoder *e, int pass, const uint8_t *s, size_t n, bool special, ida_ids *ids) {
    if (pass == 2) return add_plain(e, s, n, ids);
    const ida_tokenizer *t = e->t;
    const ida_matcher *m = &t->pass[pass];
    size_t done = 0, i = special || m->plain ? 0 : n; /* nothing can match: no search */
    while (m->n > 0 && i < n) {
        int32_t k = m->first[s[i]] ? longest_match(t, m, s + i, n - i) : -1;
        if (k < 0) {
            i++;
            continue;
        }
        const ida_added *a = &t->added[k];
        size_t from = i, to = i + (size_t)(t->start[a->id + 1] - t->start[a->id]), len;
        i = to;
        if (a->special && !special) continue;
        if (a->single_word && (is_word_at(s, n, from, true) || is_word_at(s, n, to, false))) continue;
        while (a->lstrip && from > done && (ida_utf8_class_before(s, from, &len) & IDA_UC_SPACE)) from -= len;
        while (a->rstrip && to < n && (ida_utf8_class(s + to, n - to, &len) & IDA_UC_SPACE)) to += len;
        if (done < from) IDA_TRY(add_pass(e, pass + 1, s + done, from - done, special, ids));
        IDA_TRY(push_id(ids, a->id));
        done = to;
    }
    return done < n ? add_pass(e, pass + 1, s + done, n - done, special, ids) : IDA_OK;
}

ida_status ida_encoder_add(ida_encoder *e, const char *text, size_t n, bool special, ida_ids *ids) {
    return add_pass(e, 0, (const uint8_t *)text, n, special, ids);
}
