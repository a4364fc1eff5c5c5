/* encode.c - text to pieces: added tokens are cut out, the rest is normalized and cut by the pre-tokenizers, every piece goes to
 * bpe.c. Invariant: nothing is kept between texts but the piece cache, whose entries are what merging the piece gives. */
#include "text/encode.h"

#include <string.h>

#include "text/bpe.h"
#include "text/unicode.h"

ida_status ida_encoder_new(const ida_tokenizer *t, ida_encoder **out) {
    ida_encoder *e = NULL;
    ida_status st;
    IDA_TRY(IDA_CALLOC(e, 1, "tokenizer encoder"));
    e->t = t;
    IDA_TRY_GOTO(IDA_CALLOC(e->cache, IDA_CACHE_SLOTS, "tokenizer cache"));
    IDA_TRY_GOTO(IDA_CALLOC(e->step, t->pipe->n_pre, "tokenizer steps"));
    IDA_TRY_GOTO(ida_match_room_new(&e->room));
    *out = e;
    return IDA_OK;
out:
    ida_encoder_free(e);
    return st;
}

void ida_encoder_free(ida_encoder *e) {
    if (!e) return;
    for (int64_t i = 0; e->step && i < e->t->pipe->n_pre; i++) ida_buf_free(&e->step[i]);
    for (int i = 0; i < 2; i++) ida_buf_free(&e->normal[i]);
    ida_buf_free(&e->bytes);
    ida_match_room_free(e->room);
    ida_free(e->cache);
    ida_free(e->symbols);
    ida_free(e->heap);
    ida_free(e->chars);
    ida_free(e->step);
    ida_free(e);
}

/* The class of the character at s and its length. Bytes of other characters go with their first byte, ill-formed or not. */
static inline size_t class_at(const uint8_t *s, size_t n, unsigned *class) {
    static const uint8_t mark[4] = IDA_METASPACE;
    *class = s[0];
    if (s[0] < 0x80) return 1;
    *class = IDA_CLASS_MARK;
    if (n >= 3 && s[0] == mark[0] && s[1] == mark[1] && s[2] == mark[2]) return 3;
    *class = IDA_CLASS_OTHER;
    size_t len = 1;
    while (len < n && (s[len] & 0xC0) == 0x80) len++;
    return len;
}

static ida_status run_step(ida_encoder *e, int64_t step, const uint8_t *s, size_t n, ida_ids *ids);

/* ByteLevel's spelling of the bytes. */
static ida_status run_bytes(ida_encoder *e, int64_t step, const uint8_t *s, size_t n, ida_ids *ids) {
    ida_buf *b = &e->step[step];
    b->len = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned c = ida_byte_char[s[i]]; /* below U+0800 */
        const uint8_t two[2] = {(uint8_t)(0xC0 | c >> 6), (uint8_t)(0x80 | (c & 0x3F))}, one = (uint8_t)c;
        IDA_TRY(ida_buf_add(b, c < 0x80 ? &one : two, c < 0x80 ? 1 : 2));
    }
    return run_step(e, step + 1, (const uint8_t *)b->data, (size_t)b->len, ids);
}

/* The bytes again: every character of s is one. */
static ida_status add_spelt(ida_encoder *e, const uint8_t *s, size_t n, ida_ids *ids) {
    ida_buf *b = &e->bytes;
    b->len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += ida_utf8_decode(s + i, n - i, &cp);
        const uint8_t byte = (uint8_t)ida_char_byte(cp);
        IDA_TRY(ida_buf_add(b, &byte, 1));
    }
    return ida_encode_piece(e, (const uint8_t *)b->data, (size_t)b->len, ids);
}

/* After the last pre-tokenizer: cut where no merge crosses, so that the cache sees words and not texts. */
static ida_status add_piece(ida_encoder *e, const uint8_t *s, size_t n, ida_ids *ids) {
    const uint8_t *joins = e->t->joins;
    if (e->t->pipe->spelt && n > 0) return add_spelt(e, s, n, ids);
    if (!joins || n == 0) return n ? ida_encode_piece(e, s, n, ids) : IDA_OK;
    unsigned left, right;
    size_t from = 0, end = class_at(s, n, &left);
    while (end < n) {
        size_t len = class_at(s + end, n - end, &right);
        if (!joins[left * IDA_CLASSES + right]) {
            IDA_TRY(ida_encode_piece(e, s + from, end - from, ids));
            from = end;
        }
        left = right;
        end += len;
    }
    return ida_encode_piece(e, s + from, n - from, ids);
}

/* Ranges of a Split in order: each is joined to the one before or passed on, as the behaviour says. */
typedef struct splitter {
    ida_encoder *e;
    int64_t next_step;
    const uint8_t *s;
    ida_ids *ids;
    const ida_pre_step *rule;
    bool have, match;
    size_t from, to;
} splitter;

static ida_status flush(splitter *x) {
    if (!x->have || x->from == x->to || (x->rule->behaviour == IDA_REMOVED && x->match)) return IDA_OK;
    return run_step(x->e, x->next_step, x->s + x->from, x->to - x->from, x->ids);
}

static ida_status add_range(splitter *x, size_t from, size_t to, bool match) {
    bool joins = false;
    if (x->rule->invert) match = !match;
    switch (x->rule->behaviour) {
    case IDA_REMOVED: case IDA_ISOLATED: break;
    case IDA_CONTIGUOUS: joins = match == x->match; break;
    case IDA_MERGED_WITH_PREVIOUS: joins = match && !x->match; break;
    case IDA_MERGED_WITH_NEXT: joins = !match && x->match; break;
    }
    if (!x->have || !joins) {
        IDA_TRY(flush(x));
        x->from = from;
    }
    x->have = true;
    x->to = to;
    x->match = match;
    return IDA_OK;
}

static ida_status run_split(ida_encoder *e, int64_t step, const uint8_t *s, size_t n, ida_ids *ids) {
    const ida_pre_step *rule = &e->t->pipe->pre[step];
    ida_search q = ida_search_start(&rule->find, e->room, s, n);
    splitter x = {.e = e, .next_step = step + 1, .s = s, .ids = ids, .rule = rule};
    size_t done = 0, from, to;
    bool found, isolated = rule->behaviour == IDA_ISOLATED;
    for (;;) {
        IDA_TRY(ida_search_next(&q, &from, &to, &found));
        if (!found) from = n;
        if (isolated) {
            if (done < from) IDA_TRY(run_step(e, step + 1, s + done, from - done, ids));
            if (found && from < to) IDA_TRY(run_step(e, step + 1, s + from, to - from, ids));
        } else {
            if (done < from) IDA_TRY(add_range(&x, done, from, false));
            if (found) IDA_TRY(add_range(&x, from, to, true));
        }
        if (!found) return isolated ? IDA_OK : flush(&x);
        done = to;
    }
}

/* Blanks become marks, a mark may be put in front, and the text may be cut before every mark. */
static ida_status run_metaspace(ida_encoder *e, int64_t step, const uint8_t *s, size_t n, ida_ids *ids) {
    const ida_pre_step *rule = &e->t->pipe->pre[step];
    const uint8_t *mark = (const uint8_t *)rule->find.text;
    size_t m = rule->find.n;
    ida_buf *b = &e->step[step];
    bool first = s == e->origin, marked = s[0] == ' ' || (n >= m && memcmp(s, mark, m) == 0);
    b->len = 0;
    if (!marked && (rule->prepend == IDA_PREPEND_ALWAYS || (rule->prepend == IDA_PREPEND_FIRST && first)))
        IDA_TRY(ida_buf_add(b, mark, m));
    for (size_t i = 0; i < n;) {
        const uint8_t *blank = memchr(s + i, ' ', n - i);
        size_t end = blank ? (size_t)(blank - s) : n;
        IDA_TRY(ida_buf_add(b, s + i, end - i));
        if (blank) IDA_TRY(ida_buf_add(b, mark, m));
        i = end + (blank != NULL);
    }
    s = (const uint8_t *)b->data;
    n = (size_t)b->len;
    if (!rule->split) return run_step(e, step + 1, s, n, ids);
    for (size_t from = 0; from < n;) {
        const uint8_t *next = from + 1 < n ? memmem(s + from + 1, n - from - 1, mark, m) : NULL;
        size_t to = next ? (size_t)(next - s) : n;
        IDA_TRY(run_step(e, step + 1, s + from, to - from, ids));
        from = to;
    }
    return IDA_OK;
}

static ida_status run_step(ida_encoder *e, int64_t step, const uint8_t *s, size_t n, ida_ids *ids) {
    if (step == e->t->pipe->n_pre) return add_piece(e, s, n, ids);
    switch (e->t->pipe->pre[step].kind) {
    case IDA_PRE_SPLIT: return run_split(e, step, s, n, ids);
    case IDA_PRE_METASPACE: return run_metaspace(e, step, s, n, ids);
    case IDA_PRE_BYTES: return run_bytes(e, step, s, n, ids);
    case IDA_PRE_BLANK: break;
    }
    if (s[0] == ' ') return run_step(e, step + 1, s, n, ids);
    ida_buf *b = &e->step[step];
    b->len = 0;
    IDA_TRY(ida_buf_add(b, " ", 1));
    IDA_TRY(ida_buf_add(b, s, n));
    return run_step(e, step + 1, (const uint8_t *)b->data, (size_t)b->len, ids);
}

/* The longest added token of the pass at s, as an index into t->added, or -1: the sorted list is narrowed byte by byte. */
static int32_t longest_match(const ida_tokenizer *t, const ida_matcher *m, const uint8_t *s, size_t n) {
    int64_t lo = 0, hi = m->n;
    int32_t found = -1;
    for (size_t depth = 0; depth < n && lo < hi; depth++) {
        int64_t a = lo, b = hi;
        while (a < b) { /* first entry whose byte at `depth` is >= s[depth]; shorter entries sort first */
            int64_t mid = (a + b) / 2;
            const ida_added *x = &t->added[m->index[mid]];
            if (x->n_pattern <= (int64_t)depth || (uint8_t)x->pattern[depth] < s[depth]) a = mid + 1; else b = mid;
        }
        lo = a;
        b = hi;
        while (a < b) {
            int64_t mid = (a + b) / 2;
            if ((uint8_t)t->added[m->index[mid]].pattern[depth] <= s[depth]) a = mid + 1; else b = mid;
        }
        hi = a;
        if (lo < hi && t->added[m->index[lo]].n_pattern == (int64_t)depth + 1) found = m->index[lo];
    }
    return found;
}

static bool is_word_at(const uint8_t *s, size_t n, size_t at, bool before) {
    size_t len;
    if (before) return at > 0 && (ida_utf8_class_before(s, at, &len) & IDA_UC_WORD);
    return at < n && (ida_utf8_class(s + at, n - at, &len) & IDA_UC_WORD);
}

static ida_status add_pass(ida_encoder *e, int pass, const uint8_t *s, size_t n, bool special, ida_ids *ids);

/* What lies between the matches of a pass. */
static ida_status add_rest(ida_encoder *e, int pass, const uint8_t *s, size_t n, bool special, ida_ids *ids) {
    if (pass == 1) return run_step(e, 0, s, n, ids);
    const uint8_t *normal;
    bool first = s == e->origin;
    IDA_TRY(ida_normalize(e->t->pipe, e->room, s, n, e->normal, &normal, &n));
    e->origin = first ? normal : NULL;
    IDA_TRY(add_pass(e, 1, normal, n, special, ids));
    e->origin = NULL;
    return IDA_OK;
}

/* Leftmost-longest matches of one pass; what lies between goes to the next pass. The flags are applied as HF does: a match that
 * is refused still uses up its bytes for the search, and a stripped blank may be given to two neighbours. */
static ida_status add_pass(ida_encoder *e, int pass, const uint8_t *s, size_t n, bool special, ida_ids *ids) {
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
        size_t from = i, to = i + (size_t)a->n_pattern, len;
        i = to;
        if (a->special && !special) continue;
        if (a->single_word && (is_word_at(s, n, from, true) || is_word_at(s, n, to, false))) continue;
        while (a->lstrip && from > done && (ida_utf8_class_before(s, from, &len) & IDA_UC_SPACE)) from -= len;
        while (a->rstrip && to < n && (ida_utf8_class(s + to, n - to, &len) & IDA_UC_SPACE)) to += len;
        if (done < from) IDA_TRY(add_rest(e, pass, s + done, from - done, special, ids));
        IDA_TRY(ida_push_id(ids, a->id));
        done = to;
    }
    return done < n ? add_rest(e, pass, s + done, n - done, special, ids) : IDA_OK;
}

ida_status ida_encoder_add(ida_encoder *e, const char *text, size_t n, bool special, ida_ids *ids) {
    e->origin = (const uint8_t *)text;
    return add_pass(e, 0, (const uint8_t *)text, n, special, ids);
}
