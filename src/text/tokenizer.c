/* tokenizer.c - building the tables of a tokenizer and the public calls on it. Reading and writing files is tokenizer_json.c. */
#include "text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"

/* Printable Latin-1 stands for itself, the other 68 bytes in order for U+0100 onwards (GPT-2's table). */
#define SHIFTED(b) ((b) <= 0x20 ? 0x100 + (b) : (b) <= 0xA0 ? 0xA2 + (b) : 0x143)
#define P(b) (((b) >= 0x21 && (b) <= 0x7E) || ((b) >= 0xA1 && (b) != 0xAD) ? (b) : SHIFTED(b))
#define P4(b) P(b), P((b) + 1), P((b) + 2), P((b) + 3)
#define P16(b) P4(b), P4((b) + 4), P4((b) + 8), P4((b) + 12)
#define P64(b) P16(b), P16((b) + 16), P16((b) + 32), P16((b) + 48)
const uint16_t ida_byte_char[256] = {P64(0), P64(64), P64(128), P64(192)};

int ida_char_byte(uint32_t cp) {
    if (cp < 256) return ida_byte_char[cp] == cp ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0xA2);
    return cp == 0x143 ? 0xAD : -1;
}

static int64_t table_size(int64_t n) {
    int64_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

static uint64_t word_hash(const char *s, size_t n) { return XXH3_64bits(s, n); }

int32_t ida_tokenizer_find(const ida_tokenizer *t, const char *bytes, size_t n) {
    for (uint64_t i = word_hash(bytes, n) & t->word_mask;; i = (i + 1) & t->word_mask) {
        int32_t id = t->words[i];
        if (id < 0) return -1;
        if ((size_t)(t->start[id + 1] - t->start[id]) == n && memcmp(t->bytes + t->start[id], bytes, n) == 0) return id;
    }
}

static ida_status build_tokens(ida_tokenizer *t, const ida_tokenizer_parts *p) {
    int64_t total = 0, words = 0;
    for (int64_t i = 0; i < p->n_ids; i++)
        if (p->strings[i]) {
            total += p->lengths[i];
            words++;
        }
    IDA_TRY(IDA_ALLOC(t->flags, p->n_ids, "token flags"));
    IDA_TRY(IDA_ALLOC(t->start, p->n_ids + 1, "token offsets"));
    IDA_TRY(IDA_ALLOC(t->bytes, total + 1, "token bytes"));
    int64_t size = table_size(words), at = 0;
    IDA_TRY(IDA_ALLOC(t->words, size, "token table"));
    memset(t->words, 0xFF, (size_t)size * sizeof *t->words);
    t->word_mask = (uint64_t)size - 1;
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    t->n_ids = p->n_ids;
    for (int64_t i = 0; i < p->n_ids; i++) {
        t->start[i] = at;
        t->flags[i] = p->strings[i] ? p->flags[i] : 0;
        if (!p->strings[i]) continue;
        size_t n = (size_t)p->lengths[i];
        memcpy(t->bytes + at, p->strings[i], n);
        at += (int64_t)n;
        if (!(t->flags[i] & IDA_TOKEN_MODEL) || (t->flags[i] & IDA_TOKEN_RAW)) continue;
        uint64_t slot = word_hash(p->strings[i], n) & t->word_mask;
        while (t->words[slot] >= 0) slot = (slot + 1) & t->word_mask;
        t->words[slot] = (int32_t)i;
        if (n == 1) t->byte_id[(uint8_t)p->strings[i][0]] = (int32_t)i;
    }
    t->start[p->n_ids] = at;
    t->bytes[at] = 0;
    int missing = 0, first = 0;
    for (int b = 255; b >= 0; b--)
        if (t->byte_id[b] < 0) {
            missing++;
            first = b;
        }
    IDA_FAIL_IF(missing, IDA_E_UNSUPPORTED,
                "the vocabulary lacks a token for %d of the 256 bytes (first: 0x%02X), so text would be lost: train it with "
                "initial_alphabet=ByteLevel.alphabet()", missing, (unsigned)first);
    return IDA_OK;
}

/* The last rank of a pair counts; earlier ones are dropped and the ranks closed up, which keeps their order. */
static ida_status build_merges(ida_tokenizer *t, const ida_tokenizer_parts *p) {
    int64_t size = table_size(p->n_merges);
    IDA_TRY(IDA_ALLOC(t->pairs, size, "merge table"));
    memset(t->pairs, 0xFF, (size_t)size * sizeof *t->pairs);
    t->pair_mask = (uint64_t)size - 1;
    IDA_TRY(IDA_ALLOC(t->merges, p->n_merges, "merges"));
    for (int64_t r = p->n_merges - 1; r >= 0; r--) {
        ida_merge m = p->merges[r];
        uint64_t key = ida_pair_key(m.left, m.right), i = ida_mix64(key) & t->pair_mask;
        while (t->pairs[i].key != UINT64_MAX && t->pairs[i].key != key) i = (i + 1) & t->pair_mask;
        if (t->pairs[i].key == key) continue;
        t->pairs[i] = (ida_pair_slot){key, (uint32_t)r, m.product};
    }
    for (int64_t r = 0; r < p->n_merges; r++) {
        ida_merge m = p->merges[r];
        ida_pair_slot *s = (ida_pair_slot *)(uintptr_t)ida_pair_find(t, m.left, m.right);
        if (s->rank != (uint32_t)r) continue;
        s->rank = (uint32_t)t->n_merges;
        t->merges[t->n_merges++] = m;
    }
    return IDA_OK;
}

static int compare_ids(const void *a, const void *b) {
    int32_t x = ((const ida_added *)a)->id, y = ((const ida_added *)b)->id;
    return (x > y) - (x < y);
}

static int compare_bytes(const void *a, const void *b, void *user) {
    const ida_tokenizer *t = user;
    int32_t x = t->added[*(const int32_t *)a].id, y = t->added[*(const int32_t *)b].id;
    int64_t n = t->start[x + 1] - t->start[x], m = t->start[y + 1] - t->start[y];
    int c = memcmp(t->bytes + t->start[x], t->bytes + t->start[y], (size_t)(n < m ? n : m));
    return c ? c : (n > m) - (n < m);
}

static ida_status build_added(ida_tokenizer *t, const ida_tokenizer_parts *p) {
    static const char *const ends[] = {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]"};
    IDA_TRY(IDA_ALLOC(t->added, p->n_added, "added tokens"));
    for (int pass = 0; pass < 2; pass++) IDA_TRY(IDA_ALLOC(t->pass[pass].index, p->n_added, "added tokens"));
    t->n_added = p->n_added;
    if (p->n_added) memcpy(t->added, p->added, (size_t)p->n_added * sizeof *t->added);
    qsort(t->added, (size_t)t->n_added, sizeof *t->added, compare_ids);
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        t->flags[a->id] |= (uint8_t)(IDA_TOKEN_ADDED | (a->special ? IDA_TOKEN_SPECIAL : 0));
        ida_matcher *m = &t->pass[a->normalized];
        m->index[m->n++] = (int32_t)i;
        m->plain |= !a->special;
        m->first[(uint8_t)t->bytes[t->start[a->id]]] = true;
    }
    for (int pass = 0; pass < 2; pass++) qsort_r(t->pass[pass].index, (size_t)t->pass[pass].n, sizeof(int32_t), compare_bytes, t);
    t->eos = -1;
    for (size_t e = 0; e < sizeof ends / sizeof *ends && t->eos < 0; e++)
        for (int64_t i = 0; i < t->n_added; i++) {
            int32_t id = t->added[i].id;
            size_t n = (size_t)(t->start[id + 1] - t->start[id]);
            if (t->added[i].special && n == strlen(ends[e]) && memcmp(t->bytes + t->start[id], ends[e], n) == 0) t->eos = id;
        }
    return IDA_OK;
}

/* Of content in a fixed order, so that layout, key order and the way merges are written do not matter. */
static uint64_t content_hash(const ida_tokenizer *t) {
    XXH3_state_t s;
    XXH3_64bits_reset(&s);
    uint64_t head[4] = {(uint64_t)t->n_ids, (uint64_t)t->n_merges, (uint64_t)t->n_added,
                        (uint64_t)t->add_prefix_space | (uint64_t)t->ignore_merges << 1};
    XXH3_64bits_update(&s, head, sizeof head);
    XXH3_64bits_update(&s, t->flags, (size_t)t->n_ids);
    XXH3_64bits_update(&s, t->start, (size_t)(t->n_ids + 1) * sizeof *t->start);
    XXH3_64bits_update(&s, t->bytes, (size_t)t->start[t->n_ids]);
    XXH3_64bits_update(&s, t->merges, (size_t)t->n_merges * sizeof *t->merges);
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        uint8_t flags[5] = {a->single_word, a->lstrip, a->rstrip, a->normalized, a->special};
        XXH3_64bits_update(&s, flags, sizeof flags);
    }
    return XXH3_64bits_digest(&s);
}

ida_status ida_tokenizer_build(const ida_tokenizer_parts *p, ida_tokenizer **out) {
    ida_tokenizer *t = NULL;
    ida_status st;
    IDA_TRY(IDA_CALLOC(t, 1, "tokenizer"));
    t->add_prefix_space = p->add_prefix_space;
    t->ignore_merges = p->ignore_merges;
    t->byte_level_post = p->byte_level_post;
    IDA_TRY_GOTO(build_tokens(t, p));
    IDA_TRY_GOTO(build_merges(t, p));
    IDA_TRY_GOTO(build_added(t, p));
    t->hash = content_hash(t);
    *out = t;
    return IDA_OK;
out:
    ida_tokenizer_free(t);
    return st;
}

void ida_tokenizer_free(ida_tokenizer *t) {
    if (!t) return;
    ida_encoder_free(t->shared);
    ida_free(t->flags);
    ida_free(t->start);
    ida_free(t->bytes);
    ida_free(t->merges);
    ida_free(t->pairs);
    ida_free(t->words);
    ida_free(t->added);
    for (int pass = 0; pass < 2; pass++) ida_free(t->pass[pass].index);
    ida_free(t);
}

int64_t ida_tokenizer_vocab_size(const ida_tokenizer *t) { return t->n_ids; }
int64_t ida_tokenizer_eos(const ida_tokenizer *t) { return t->eos; }
uint64_t ida_tokenizer_hash(const ida_tokenizer *t) { return t->hash; }

const char *ida_tokenizer_piece(const ida_tokenizer *t, int64_t id, size_t *n_bytes, bool *is_special) {
    if (id < 0 || id >= t->n_ids || !(t->flags[id] & IDA_TOKEN_USED)) return NULL;
    if (n_bytes) *n_bytes = (size_t)(t->start[id + 1] - t->start[id]);
    if (is_special) *is_special = t->flags[id] & IDA_TOKEN_SPECIAL;
    return t->bytes + t->start[id];
}

/* The tokenizer keeps one encoder for its callers; a second caller at the same moment takes a fresh one. */
ida_status ida_tokenizer_encode(const ida_tokenizer *ct, const char *text, size_t n_bytes, bool special, int32_t **ids,
                                int64_t *n_ids) {
    IDA_FAIL_IF(!ct, IDA_E_ARG, "t is NULL");
    IDA_FAIL_IF(!text && n_bytes > 0, IDA_E_ARG, "text is NULL, n_bytes %zu", n_bytes);
    IDA_NEED(ids);
    IDA_NEED(n_ids);
    ida_tokenizer *t = (ida_tokenizer *)(uintptr_t)ct;
    ida_ids list = {0};
    ida_encoder *e = NULL;
    ida_status st = IDA_OK;
    bool owner = !__atomic_exchange_n(&t->lock, 1, __ATOMIC_ACQUIRE);
    if (owner && t->shared)
        e = t->shared;
    else {
        IDA_TRY_GOTO(ida_encoder_new(t, &e));
        if (owner) t->shared = e;
    }
    IDA_TRY_GOTO(IDA_GROW(list.id, &list.cap, (int64_t)(n_bytes / 4) + 16, "token ids"));
    IDA_TRY_GOTO(ida_encoder_add(e, text, n_bytes, special, &list));
    *ids = list.id;
    *n_ids = list.n;
    list.id = NULL;
out:
    ida_free(list.id);
    if (!owner) ida_encoder_free(e);
    if (owner) __atomic_store_n(&t->lock, 0, __ATOMIC_RELEASE);
    return st;
}

ida_status ida_tokenizer_decode(const ida_tokenizer *t, const int32_t *ids, int64_t n_ids, bool skip_special, char **text,
                                size_t *n_bytes) {
    IDA_NEED(t);
    IDA_NEED(text);
    IDA_NEED(n_bytes);
    ida_buf b = {0};
    IDA_FAIL_IF(n_ids < 0, IDA_E_ARG, "decode: negative number of ids %lld", (long long)n_ids);
    IDA_FAIL_IF(!ids && n_ids > 0, IDA_E_ARG, "ids is NULL, n_ids %lld", (long long)n_ids);
    ida_status st = ida_buf_add(&b, "", 0);
    for (int64_t i = 0; i < n_ids && !st; i++) {
        size_t n = 0;
        bool is_special = false;
        const char *piece = ida_tokenizer_piece(t, ids[i], &n, &is_special);
        if (!piece)
            st = ida_fail(IDA_E_ARG, __FILE__, __LINE__,
                          "decode: id %lld at position %lld is not in the vocabulary (ids 0..%lld)",
                          (long long)ids[i], (long long)i, (long long)t->n_ids - 1);
        else if (!skip_special || !is_special)
            st = ida_buf_add(&b, piece, n);
    }
    if (st) {
        ida_buf_free(&b);
        return st;
    }
    *text = b.data;
    *n_bytes = (size_t)b.len;
    return IDA_OK;
}
