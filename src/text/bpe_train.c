/* bpe_train.c - learns byte-level BPE merges from word counts, as HF's BpeTrainer does with the byte alphabet as
 * initial_alphabet. The next merge is the pair with the highest count, ties to the smaller (left id, right id). A heap holds
 * (count, pair, words that got the pair); counts in it may be out of date, so a popped entry whose count differs is put back with
 * the right one. Ids: 256 bytes by their printable character, then merges in order, then <|endoftext|> (HF puts special tokens
 * first: its ids are ours plus one, the merges are the same).
 * Invariant: count[pair] is exact except for the pair just merged, which keeps its count; as no word can get it again (unless two
 * merges make the same string), that is never read. HF does the same, so even that case agrees. */
#include "text/bpe_train.h"

#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"
#include "text/build.h"

static const char eos_text[] = "<|endoftext|>";

typedef struct pair_slot { uint64_t key; int64_t count; int32_t touched; } pair_slot; /* touched: index this step, -1 = not */
typedef struct touched { uint64_t key; int64_t n, start; int32_t last_word; } touched;
typedef struct hit { int32_t touched, word; } hit;
typedef struct candidate { int64_t count; uint64_t key; int64_t start, n; } candidate; /* words: places[start .. start+n) */

typedef struct trainer {
    int64_t n_words;
    int64_t *word_start, *word_count;
    int32_t *word_len, *symbols;
    pair_slot *pair;
    int64_t n_pairs, n_slots;
    touched *step;
    int64_t n_step, step_cap;
    hit *hits;
    int64_t n_hits, hits_cap;
    int32_t *places;
    int64_t n_places, places_cap;
    candidate *heap;
    int64_t n_heap, heap_cap;
    /* Tokens made so far: bytes[start[id] .. start[id+1]), a hash table of their ids + 1. */
    ida_buf bytes;
    int64_t *start;
    int32_t *token_slot;
    int64_t n_tokens, token_slots;
    ida_merge *merges;
    int64_t n_merges, merges_cap;
} trainer;

static ida_status grow_pairs(trainer *t) {
    int64_t n = t->n_slots ? 2 * t->n_slots : 1 << 16;
    pair_slot *fresh = NULL;
    IDA_TRY(IDA_ALLOC(fresh, n, "pair counts"));
    memset(fresh, 0xFF, (size_t)n * sizeof *fresh);
    for (int64_t i = 0; i < t->n_slots; i++) {
        if (t->pair[i].key == UINT64_MAX) continue;
        int64_t at = (int64_t)(ida_mix64(t->pair[i].key) & (uint64_t)(n - 1));
        while (fresh[at].key != UINT64_MAX) at = (at + 1) & (n - 1);
        fresh[at] = t->pair[i];
    }
    ida_free(t->pair);
    t->pair = fresh;
    t->n_slots = n;
    return IDA_OK;
}

static pair_slot *find_pair(const trainer *t, uint64_t key) {
    int64_t mask = t->n_slots - 1, at = (int64_t)(ida_mix64(key) & (uint64_t)mask);
    while (t->pair[at].key != key && t->pair[at].key != UINT64_MAX) at = (at + 1) & mask;
    return &t->pair[at];
}

/* count[pair] += change; a gain also notes that `word` now holds the pair. */
static ida_status note(trainer *t, int32_t left, int32_t right, int64_t change, int32_t word) {
    if (5 * t->n_pairs >= 3 * t->n_slots) IDA_TRY(grow_pairs(t));
    uint64_t key = ida_pair_key(left, right);
    pair_slot *s = find_pair(t, key);
    if (s->key == UINT64_MAX) {
        *s = (pair_slot){key, 0, -1};
        t->n_pairs++;
    }
    s->count += change;
    if (change <= 0) return IDA_OK;
    if (s->touched < 0) {
        IDA_TRY(IDA_GROW(t->step, &t->step_cap, t->n_step + 1, "pairs of a step"));
        t->step[t->n_step] = (touched){key, 0, 0, -1};
        s->touched = (int32_t)t->n_step++;
    }
    touched *p = &t->step[s->touched];
    if (p->last_word == word) return IDA_OK;
    p->last_word = word;
    p->n++;
    IDA_TRY(IDA_GROW(t->hits, &t->hits_cap, t->n_hits + 1, "pairs of a step"));
    t->hits[t->n_hits++] = (hit){s->touched, word};
    return IDA_OK;
}

static bool before(const candidate *a, const candidate *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static ida_status heap_push(trainer *t, candidate c) {
    IDA_TRY(IDA_GROW(t->heap, &t->heap_cap, t->n_heap + 1, "merge candidates"));
    int64_t i = t->n_heap++;
    for (; i > 0 && before(&c, &t->heap[(i - 1) / 4]); i = (i - 1) / 4) t->heap[i] = t->heap[(i - 1) / 4];
    t->heap[i] = c;
    return IDA_OK;
}

static candidate heap_pop(trainer *t) {
    candidate top = t->heap[0], last = t->heap[--t->n_heap];
    int64_t n = t->n_heap, i = 0;
    for (int64_t c = 1; c < n; c = 4 * i + 1) {
        int64_t best = c, stop = c + 4 < n ? c + 4 : n;
        for (int64_t k = c + 1; k < stop; k++)
            if (before(&t->heap[k], &t->heap[best])) best = k;
        if (!before(&t->heap[best], &last)) break;
        t->heap[i] = t->heap[best];
        i = best;
    }
    t->heap[i] = last;
    return top;
}

/* Ends a step: the words noted for each pair become one run of `places` and one heap entry. */
static ida_status flush_step(trainer *t) {
    int64_t at = t->n_places;
    for (int64_t i = 0; i < t->n_step; i++) {
        t->step[i].start = at;
        at += t->step[i].n;
        t->step[i].n = 0;
    }
    IDA_TRY(IDA_GROW(t->places, &t->places_cap, at, "places of pairs"));
    for (int64_t i = 0; i < t->n_hits; i++) {
        touched *p = &t->step[t->hits[i].touched];
        t->places[p->start + p->n++] = t->hits[i].word;
    }
    t->n_places = at;
    for (int64_t i = 0; i < t->n_step; i++) {
        const touched *p = &t->step[i];
        pair_slot *s = find_pair(t, p->key);
        s->touched = -1;
        if (s->count > 0) IDA_TRY(heap_push(t, (candidate){s->count, p->key, p->start, p->n}));
    }
    t->n_step = t->n_hits = 0;
    return IDA_OK;
}

static ida_status merge_word(trainer *t, int32_t word, ida_merge m) {
    int32_t *s = t->symbols + t->word_start[word], n = t->word_len[word], k = 0;
    int64_t count = t->word_count[word];
    for (int32_t i = 0; i < n; k++) {
        if (i + 1 == n || s[i] != m.left || s[i + 1] != m.right) {
            s[k] = s[i++];
            continue;
        }
        if (k > 0) {
            IDA_TRY(note(t, s[k - 1], m.left, -count, word));
            IDA_TRY(note(t, s[k - 1], m.product, count, word));
        }
        if (i + 2 < n) {
            IDA_TRY(note(t, m.right, s[i + 2], -count, word));
            IDA_TRY(note(t, m.product, s[i + 2], count, word));
        }
        s[k] = m.product;
        i += 2;
    }
    t->word_len[word] = k;
    return IDA_OK;
}

/* The id of left + right: a new one unless some token has the same bytes. Room for one more token is there. */
static ida_status make_token(trainer *t, int32_t left, int32_t right, int32_t *id) {
    int64_t from = t->bytes.len, nl = t->start[left + 1] - t->start[left], nr = t->start[right + 1] - t->start[right];
    IDA_TRY(IDA_GROW(t->bytes.data, &t->bytes.cap, from + nl + nr, "token bytes"));
    char *s = t->bytes.data + from;
    memcpy(s, t->bytes.data + t->start[left], (size_t)nl);
    memcpy(s + nl, t->bytes.data + t->start[right], (size_t)nr);
    int64_t at = (int64_t)(XXH3_64bits(s, (size_t)(nl + nr)) & (uint64_t)(t->token_slots - 1));
    for (; t->token_slot[at]; at = (at + 1) & (t->token_slots - 1)) {
        int32_t k = t->token_slot[at] - 1;
        if (t->start[k + 1] - t->start[k] == nl + nr && memcmp(t->bytes.data + t->start[k], s, (size_t)(nl + nr)) == 0) {
            *id = k;
            return IDA_OK;
        }
    }
    *id = (int32_t)t->n_tokens++;
    t->token_slot[at] = *id + 1;
    t->bytes.len = from + nl + nr;
    t->start[t->n_tokens] = t->bytes.len;
    return IDA_OK;
}

static ida_status start_tokens(trainer *t, int64_t vocab_size, int32_t id_of_byte[256]) {
    t->token_slots = 1024;
    while (t->token_slots < 2 * vocab_size) t->token_slots *= 2;
    IDA_TRY(IDA_CALLOC(t->token_slot, t->token_slots, "token table"));
    IDA_TRY(IDA_ALLOC(t->start, vocab_size + 1, "token offsets"));
    t->start[0] = 0;
    for (uint32_t cp = 0x21; t->n_tokens < 256; cp++) { /* in the order of the printable characters */
        int b = ida_char_byte(cp);
        if (b < 0) continue;
        char c = (char)b;
        id_of_byte[b] = (int32_t)t->n_tokens++;
        IDA_TRY(ida_buf_add(&t->bytes, &c, 1));
        t->start[t->n_tokens] = t->bytes.len;
    }
    return IDA_OK;
}

static ida_status start_words(trainer *t, const ida_words *w, const int32_t id_of_byte[256]) {
    IDA_TRY(IDA_ALLOC(t->word_start, w->n, "words"));
    IDA_TRY(IDA_ALLOC(t->word_count, w->n, "words"));
    IDA_TRY(IDA_ALLOC(t->word_len, w->n, "words"));
    IDA_TRY(IDA_ALLOC(t->symbols, w->bytes_n, "words"));
    t->n_words = w->n;
    for (int64_t i = 0; i < w->n; i++) {
        const ida_word *x = &w->word[i];
        t->word_start[i] = x->start;
        t->word_count[i] = x->count;
        t->word_len[i] = x->len;
        int32_t *s = t->symbols + x->start;
        for (int32_t k = 0; k < x->len; k++) s[k] = id_of_byte[(uint8_t)w->bytes[x->start + k]];
        for (int32_t k = 0; k + 1 < x->len; k++) IDA_TRY(note(t, s[k], s[k + 1], x->count, (int32_t)i));
    }
    return flush_step(t);
}

static ida_status learn(trainer *t, const ida_bpe_options *o, ida_progress_fn *progress, void *user) {
    int64_t goal = o->vocab_size - 1, steps = 0; /* the last id is end-of-text */
    while (t->n_tokens < goal && t->n_heap > 0) {
        candidate top = heap_pop(t);
        int64_t now = find_pair(t, top.key)->count;
        if (now != top.count) {
            top.count = now;
            IDA_TRY(heap_push(t, top));
            continue;
        }
        if (top.count < 1 || top.count < o->min_frequency) break;
        ida_merge m = {(int32_t)(top.key >> 32), (int32_t)(top.key & UINT32_MAX), 0};
        IDA_TRY(make_token(t, m.left, m.right, &m.product));
        IDA_TRY(IDA_GROW(t->merges, &t->merges_cap, t->n_merges + 1, "merges"));
        t->merges[t->n_merges++] = m;
        for (int64_t i = 0; i < top.n; i++) IDA_TRY(merge_word(t, t->places[top.start + i], m));
        IDA_TRY(flush_step(t));
        IDA_FAIL_IF(progress && ++steps % 256 == 0 && progress(user, "merging", t->n_tokens - 256, goal - 256), IDA_E_CANCELLED,
                    "training the tokenizer was cancelled");
    }
    if (t->n_tokens < goal)
        ida_log("the text gives only %lld merges seen at least %lld times: the vocabulary has %lld ids, not %lld",
                (long long)t->n_merges, (long long)o->min_frequency, (long long)t->n_tokens + 1, (long long)o->vocab_size);
    IDA_FAIL_IF(progress && progress(user, "merging", t->n_tokens - 256, t->n_tokens - 256), IDA_E_CANCELLED,
                "training the tokenizer was cancelled");
    return IDA_OK;
}

static ida_status finish(const trainer *t, ida_tokenizer **out) {
    const char **strings = NULL;
    int32_t *lengths = NULL;
    uint8_t *flags = NULL;
    ida_status st;
    int64_t n = t->n_tokens;
    IDA_TRY_GOTO(IDA_ALLOC(strings, n + 1, "vocabulary"));
    IDA_TRY_GOTO(IDA_ALLOC(lengths, n + 1, "vocabulary"));
    IDA_TRY_GOTO(IDA_ALLOC(flags, n + 1, "vocabulary"));
    for (int64_t i = 0; i < n; i++) {
        strings[i] = t->bytes.data + t->start[i];
        lengths[i] = (int32_t)(t->start[i + 1] - t->start[i]);
    }
    strings[n] = eos_text;
    lengths[n] = sizeof eos_text - 1;
    memset(flags, IDA_TOKEN_USED | IDA_TOKEN_MODEL, (size_t)n + 1);
    ida_added eos = {.id = (int32_t)n, .special = true};
    ida_tokenizer_parts p = {.n_ids = n + 1, .strings = strings, .lengths = lengths, .flags = flags, .n_merges = t->n_merges,
                             .merges = t->merges, .n_added = 1, .added = &eos};
    st = ida_tokenizer_build(&p, out);
out:
    ida_free(strings);
    ida_free(lengths);
    ida_free(flags);
    return st;
}

static void trainer_free(trainer *t) {
    void *all[] = {t->word_start, t->word_count, t->word_len, t->symbols, t->pair, t->step, t->hits, t->places, t->heap, t->start,
                   t->token_slot, t->merges};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ida_free(all[i]);
    ida_buf_free(&t->bytes);
}

void ida_words_free(ida_words *w) {
    ida_free(w->word);
    ida_free(w->bytes);
    ida_free(w->slot);
    *w = (ida_words){0};
}

ida_status ida_bpe_train(ida_words *words, const ida_bpe_options *o, ida_progress_fn *progress, void *user, ida_tokenizer **out) {
    trainer t = {0};
    int32_t id_of_byte[256];
    ida_status st;
    IDA_TRY_GOTO(grow_pairs(&t));
    IDA_TRY_GOTO(start_tokens(&t, o->vocab_size, id_of_byte));
    IDA_TRY_GOTO(start_words(&t, words, id_of_byte));
    ida_words_free(words);
    IDA_TRY_GOTO(learn(&t, o, progress, user));
    st = finish(&t, out);
out:
    ida_words_free(words);
    trainer_free(&t);
    return st;
}
