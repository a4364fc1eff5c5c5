/* build.c - makes the tables of a tokenizer and checks their invariants. The parts are untrusted: they come from files. */
#include "text/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/json.h"
#include "core/mem.h"
#include "text/decoder.h"
#include "text/encode.h"
#include "text/unicode.h"

static int64_t table_size(int64_t n) {
    int64_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

static void index_token(ida_tokenizer *t, int32_t id, const char *s, size_t n) {
    uint64_t slot = ida_word_hash(s, n) & t->word_mask;
    while (t->words[slot] >= 0) slot = (slot + 1) & t->word_mask;
    t->words[slot] = id;
    if (t->pipe->byte_level) {
        if (n == 1) t->byte_id[(uint8_t)s[0]] = id;
    } else if (n == 1 && (uint8_t)s[0] < 0x80) {
        t->ascii_id[(uint8_t)s[0]] = id;
    } else if (n == sizeof IDA_METASPACE - 1 && memcmp(s, IDA_METASPACE, n) == 0) {
        t->mark_id = id;
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
    t->n_ids = p->n_ids;
    for (int64_t i = 0; i < p->n_ids; i++) {
        t->start[i] = at;
        t->flags[i] = p->strings[i] ? p->flags[i] & (IDA_TOKEN_USED | IDA_TOKEN_MODEL | IDA_TOKEN_RAW) : 0;
        if (!p->strings[i]) continue;
        size_t n = (size_t)p->lengths[i];
        memcpy(t->bytes + at, p->strings[i], n);
        at += (int64_t)n;
        if ((t->flags[i] & IDA_TOKEN_MODEL) && !(t->flags[i] & IDA_TOKEN_RAW)) index_token(t, (int32_t)i, p->strings[i], n);
    }
    t->start[p->n_ids] = at;
    t->bytes[at] = 0;
    return IDA_OK;
}

/* Which bytes the model has tokens for. HF drops the others without a word; so do we, with one. */
static ida_status check_bytes(ida_tokenizer *t) {
    int missing = 0, first = 0;
    if (!t->pipe->byte_level && t->byte_fallback)
        for (int b = 0; b < 256; b++) {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
            t->byte_id[b] = ida_tokenizer_find(t, name, 6);
        }
    for (int b = 255; b >= 0; b--)
        if (t->byte_id[b] < 0) {
            missing++;
            first = b;
        }
    t->all_bytes = missing == 0;
    if (!missing || !t->pipe->byte_level) return IDA_OK;
    IDA_FAIL_IF(missing == 256, IDA_E_FORMAT, "the vocabulary has no token for any byte, so it is not of the byte-level kind");
    IDA_FAIL_IF(t->byte_fallback, IDA_E_UNSUPPORTED,
                "byte_fallback with ByteLevel and a vocabulary that lacks bytes is not supported");
    ida_log("the tokenizer has no token for %d of the 256 bytes (first: 0x%02X): text with them is %s", missing, (unsigned)first,
            t->unk < 0 ? "lost" : "encoded as unknown");
    return IDA_OK;
}

/* The last rank of a pair counts; earlier ones are dropped and the ranks closed up, which keeps their order. */
static ida_status build_merges(ida_tokenizer *t, const ida_tokenizer_parts *p) {
    for (int64_t r = 0; r < p->n_merges; r++) {
        const int32_t id[3] = {p->merges[r].left, p->merges[r].right, p->merges[r].product};
        for (int k = 0; k < 3; k++)
            IDA_FAIL_IF(id[k] < 0 || id[k] >= t->n_ids || !(t->flags[id[k]] & IDA_TOKEN_MODEL), IDA_E_FORMAT,
                        "merge %lld has a bad id %d", (long long)r, id[k]);
    }
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
    if (!t->same_rank) return IDA_OK;
    for (int64_t r = 1; r < t->n_merges; r++) { /* merges of one product lie together */
        if (t->merges[r].product != t->merges[r - 1].product) continue;
        ida_pair_slot *s = (ida_pair_slot *)(uintptr_t)ida_pair_find(t, t->merges[r].left, t->merges[r].right);
        s->rank = ida_pair_find(t, t->merges[r - 1].left, t->merges[r - 1].right)->rank;
    }
    return IDA_OK;
}

static int edge_class(const ida_tokenizer *t, int32_t id, bool last) {
    const size_t m = sizeof IDA_METASPACE - 1;
    const char *s = t->bytes + t->start[id];
    size_t n = (size_t)(t->start[id + 1] - t->start[id]);
    if (n == 0) return IDA_CLASS_OTHER;
    uint8_t c = (uint8_t)(last ? s[n - 1] : s[0]);
    if (c < 0x80) return c;
    return n >= m && memcmp(last ? s + n - m : s, IDA_METASPACE, m) == 0 ? IDA_CLASS_MARK : IDA_CLASS_OTHER;
}

/* Which borders between characters some merge crosses: at the others a piece can be cut, and the parts are cached. A waiting
 * unknown token crosses every border but one before a known character. Merges of the unknown or of byte tokens go by no text:
 * then nothing is cut. */
static ida_status build_joins(ida_tokenizer *t) {
    if (t->pipe->byte_level || t->ignore_merges) return IDA_OK;
    for (int64_t i = 0; i < t->n_merges; i++) {
        const int32_t id[2] = {t->merges[i].left, t->merges[i].right};
        for (int k = 0; k < 2; k++) {
            int64_t n = t->start[id[k] + 1] - t->start[id[k]];
            if (id[k] == t->unk || n == 0 || (n == 6 && memcmp(t->bytes + t->start[id[k]], "<0x", 3) == 0)) return IDA_OK;
        }
    }
    IDA_TRY(IDA_CALLOC(t->joins, IDA_CLASSES * IDA_CLASSES, "tokenizer borders"));
    for (int64_t i = 0; i < t->n_merges; i++)
        t->joins[edge_class(t, t->merges[i].left, true) * IDA_CLASSES + edge_class(t, t->merges[i].right, false)] = 1;
    if (t->all_bytes || t->unk < 0) return IDA_OK;
    for (int c = 0; c < IDA_CLASSES; c++) {
        bool known = c < 128 ? t->ascii_id[c] >= 0 : c == IDA_CLASS_MARK && t->mark_id >= 0;
        for (int a = 0; a < IDA_CLASSES && !known; a++) t->joins[a * IDA_CLASSES + c] = 1;
    }
    return IDA_OK;
}

static int compare_ids(const void *a, const void *b) {
    int32_t x = ((const ida_added *)a)->id, y = ((const ida_added *)b)->id;
    return (x > y) - (x < y);
}

static int compare_patterns(const void *a, const void *b, void *user) {
    const ida_tokenizer *t = user;
    const ida_added *x = &t->added[*(const int32_t *)a], *y = &t->added[*(const int32_t *)b];
    int c = memcmp(x->pattern, y->pattern, (size_t)(x->n_pattern < y->n_pattern ? x->n_pattern : y->n_pattern));
    return c ? c : (x->n_pattern > y->n_pattern) - (x->n_pattern < y->n_pattern);
}

/* Contents and patterns into one block: offsets first (the block moves as it grows), pointers last. */
static ida_status copy_added(ida_tokenizer *t, const ida_tokenizer_parts *p) {
    ida_buf all = {0}, work[2] = {{0}, {0}};
    ida_match_room *room = NULL;
    ida_status st;
    IDA_TRY_GOTO(ida_match_room_new(&room));
    IDA_TRY_GOTO(ida_buf_add(&all, "", 0));
    for (int64_t i = 0; i < t->n_added; i++) {
        ida_added *a = &t->added[i];
        if (a->id < 0 || a->id >= p->n_ids || !p->strings[a->id])
            IDA_FAIL_GOTO(IDA_E_FORMAT, "added token %lld has a bad id", (long long)i);
        const uint8_t *s = (const uint8_t *)(a->content ? a->content : p->strings[a->id]), *normal = s;
        size_t n = (size_t)(a->content ? a->n : p->lengths[a->id]), n_normal = n;
        if (a->normalized) IDA_TRY_GOTO(ida_normalize(t->pipe, room, s, n, work, &normal, &n_normal));
        if (n_normal == 0 || n_normal > INT32_MAX)
            IDA_FAIL_GOTO(IDA_E_FORMAT, "added token %lld is empty once normalized", (long long)i);
        IDA_TRY_GOTO(ida_buf_add(&all, s, n));
        IDA_TRY_GOTO(ida_buf_add(&all, normal, n_normal));
        a->n = (int32_t)n;
        a->n_pattern = (int32_t)n_normal;
    }
    t->added_bytes = all.data;
    all.data = NULL;
    for (int64_t i = 0, at = 0; i < t->n_added; i++) {
        ida_added *a = &t->added[i];
        a->content = t->added_bytes + at;
        a->pattern = a->content + a->n;
        at += (int64_t)a->n + a->n_pattern;
    }
out:
    ida_match_room_free(room);
    for (int i = 0; i < 2; i++) ida_buf_free(&work[i]);
    ida_buf_free(&all);
    return st;
}

static bool is_content(const ida_added *a, const char *s, size_t n) { return (size_t)a->n == n && memcmp(a->content, s, n) == 0; }

static ida_status build_added(ida_tokenizer *t, const ida_tokenizer_parts *p) {
    static const char *const ends[] = {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]"};
    IDA_TRY(IDA_ALLOC(t->added, p->n_added, "added tokens"));
    for (int pass = 0; pass < 2; pass++) IDA_TRY(IDA_ALLOC(t->pass[pass].index, p->n_added, "added tokens"));
    t->n_added = p->n_added;
    if (p->n_added) memcpy(t->added, p->added, (size_t)p->n_added * sizeof *t->added);
    qsort(t->added, (size_t)t->n_added, sizeof *t->added, compare_ids);
    IDA_TRY(copy_added(t, p));
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        t->flags[a->id] |= (uint8_t)(IDA_TOKEN_ADDED | (a->special ? IDA_TOKEN_SPECIAL : 0));
        ida_matcher *m = &t->pass[a->normalized];
        m->index[m->n++] = (int32_t)i;
        m->plain |= !a->special;
        m->first[(uint8_t)a->pattern[0]] = true;
    }
    for (int pass = 0; pass < 2; pass++)
        qsort_r(t->pass[pass].index, (size_t)t->pass[pass].n, sizeof(int32_t), compare_patterns, t);
    t->eos = -1;
    for (size_t e = 0; e < sizeof ends / sizeof *ends && t->eos < 0; e++)
        for (int64_t i = 0; i < t->n_added; i++)
            if (t->added[i].special && is_content(&t->added[i], ends[e], strlen(ends[e]))) t->eos = t->added[i].id;
    for (int after = 0; after < 2; after++)
        for (int64_t i = 0; i < (after ? t->pipe->n_after : t->pipe->n_before); i++) {
            int32_t id = (after ? t->pipe->after : t->pipe->before)[i];
            IDA_FAIL_IF(id >= t->n_ids || !(t->flags[id] & IDA_TOKEN_USED), IDA_E_FORMAT,
                        "the template names the id %d, which is no token", id);
        }
    return IDA_OK;
}

/* Of content in a fixed order, so that layout, key order and the way merges are written do not matter. */
static uint64_t content_hash(const ida_tokenizer *t) {
    XXH3_state_t s;
    XXH3_64bits_reset(&s);
    uint64_t head[4] = {(uint64_t)t->n_ids, (uint64_t)t->n_merges, (uint64_t)t->n_added,
                        (uint64_t)(t->pipe->plain_gpt2 && t->pipe->add_prefix_space) | (uint64_t)t->ignore_merges << 1};
    XXH3_64bits_update(&s, head, sizeof head);
    if (!t->pipe->plain_gpt2) { /* the pre-tokenizer of GPT-2 says no more than its prefix */
        const int32_t more[5] = {t->unk, t->byte_fallback, t->fuse_unk, t->same_rank, 0};
        XXH3_64bits_update(&s, more, sizeof more);
        for (int i = 0; i < 4; i++) XXH3_64bits_update(&s, t->pipe->source[i], strlen(t->pipe->source[i]) + 1);
    }
    for (int64_t i = 0; i < t->n_ids; i++) { /* what the file says, not what follows from it */
        uint8_t flags = t->flags[i] & (IDA_TOKEN_USED | IDA_TOKEN_MODEL | IDA_TOKEN_RAW | IDA_TOKEN_ADDED | IDA_TOKEN_SPECIAL);
        XXH3_64bits_update(&s, &flags, 1);
    }
    XXH3_64bits_update(&s, t->start, (size_t)(t->n_ids + 1) * sizeof *t->start);
    XXH3_64bits_update(&s, t->bytes, (size_t)t->start[t->n_ids]);
    XXH3_64bits_update(&s, t->merges, (size_t)t->n_merges * sizeof *t->merges);
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        uint8_t flags[5] = {a->single_word, a->lstrip, a->rstrip, a->normalized, a->special};
        XXH3_64bits_update(&s, flags, sizeof flags);
        if (!t->pipe->plain_gpt2) XXH3_64bits_update(&s, a->content, (size_t)a->n);
    }
    return XXH3_64bits_digest(&s);
}

static ida_status default_pipeline(ida_pipeline **out) {
    static const char text[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},"
        "\"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},"
        "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}}";
    json_t *root;
    IDA_TRY(ida_json_parse(text, sizeof text - 1, "tokenizer", &root));
    ida_status st = ida_pipeline_parse(root, "tokenizer", out);
    json_decref(root);
    return st;
}

/* Is a text cut at a place of ida_text_last_cut the same in two parts? Every step before a covering pattern must look at no
 * more than a character and its marks, that pattern cuts there itself, and no added token may reach across. */
static bool may_cut(const ida_tokenizer *t) {
    const ida_pipeline *p = t->pipe;
    bool covered = false;
    for (int64_t i = 0; i < p->n_norm; i++)
        if (p->norm[i].kind >= IDA_NORM_STRIP) return false;
    for (int64_t i = 0; i < p->n_pre && !covered; i++) {
        const ida_pre_step *s = &p->pre[i];
        covered = s->kind == IDA_PRE_SPLIT && s->behaviour == IDA_ISOLATED && ida_pattern_covers(&s->find);
        if (!covered && (s->kind != IDA_PRE_SPLIT || s->find.kind != IDA_PATTERN_DIGIT)) return false;
    }
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        if (a->special) continue; /* not looked for in the text of documents */
        if (a->rstrip) return false;
        for (int32_t k = 0, len; k < a->n_pattern; k += len) {
            size_t m;
            if (ida_utf8_class((const uint8_t *)a->pattern + k, (size_t)(a->n_pattern - k), &m) & IDA_UC_SPACE) return false;
            len = (int32_t)m;
        }
    }
    return covered;
}

ida_status ida_tokenizer_build(const ida_tokenizer_parts *p, ida_tokenizer **out) {
    ida_tokenizer *t = NULL;
    ida_status st = IDA_CALLOC(t, 1, "tokenizer");
    if (st) {
        ida_pipeline_free(p->pipe);
        return st;
    }
    t->pipe = p->pipe;
    t->ignore_merges = p->ignore_merges;
    t->byte_fallback = p->byte_fallback;
    t->fuse_unk = p->fuse_unk;
    t->same_rank = p->same_rank;
    t->unk = p->has_unk ? p->unk : -1;
    t->mark_id = -1;
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    memset(t->ascii_id, 0xFF, sizeof t->ascii_id);
    if (!t->pipe) IDA_TRY_GOTO(default_pipeline(&t->pipe));
    IDA_TRY_GOTO(build_tokens(t, p));
    if (t->unk < -1 || t->unk >= t->n_ids || (t->unk >= 0 && !(t->flags[t->unk] & IDA_TOKEN_MODEL)))
        IDA_FAIL_GOTO(IDA_E_FORMAT, "the unknown token's id %d is not in the vocabulary", t->unk);
    IDA_TRY_GOTO(check_bytes(t));
    IDA_TRY_GOTO(build_merges(t, p));
    IDA_TRY_GOTO(build_joins(t));
    IDA_TRY_GOTO(build_added(t, p));
    t->in_parts = may_cut(t);
    IDA_TRY_GOTO(ida_build_texts(t));
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
    ida_pipeline_free(t->pipe);
    if (t->text != t->bytes) ida_free(t->text);
    if (t->text_start != t->start) ida_free(t->text_start);
    ida_free(t->flags);
    ida_free(t->start);
    ida_free(t->bytes);
    ida_free(t->merges);
    ida_free(t->pairs);
    ida_free(t->words);
    ida_free(t->joins);
    ida_free(t->added);
    ida_free(t->added_bytes);
    for (int pass = 0; pass < 2; pass++) ida_free(t->pass[pass].index);
    ida_free(t);
}
