/* decoder.c - ids to text, all at once or as they come. What a token stands for is worked out once, when the tokenizer is built;
 * what depends on neighbours is here: characters cut over tokens, runs of byte tokens, a blank at the start of the text.
 * Invariant: the pieces given out, joined, are what decoding all ids at once gives, wherever the pushes are cut. */
#include <string.h>

#include "core/mem.h"
#include "text/decoder.h"
#include "text/unicode.h"
#include "text/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

/* ---- what each token stands for */

/* "<0xHH>" as HF reads it (a sign before one digit is legal there); -1: no byte token. */
static int byte_token(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        if (i == 3 && c == '+') continue;
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Characters that stand for bytes, as bytes; a string with any other is left as it is. */
static ida_status put_byte_level(const char *s, size_t n, ida_buf *out) {
    int64_t begin = out->len;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += ida_utf8_decode((const uint8_t *)s + i, n - i, &cp);
        int b = cp == UINT32_MAX ? -1 : ida_char_byte(cp);
        if (b < 0) {
            out->len = begin;
            return ida_buf_add(out, s, n);
        }
        char c = (char)b;
        IDA_TRY(ida_buf_add(out, &c, 1));
    }
    return IDA_OK;
}

static ida_status put_marks_as_blanks(const char *s, size_t n, const char *mark, ida_buf *out) {
    size_t m = strlen(mark);
    for (size_t i = 0; i < n;) {
        bool hit = n - i >= m && memcmp(s + i, mark, m) == 0;
        IDA_TRY(ida_buf_add(out, hit ? " " : s + i, 1));
        i += hit ? m : 1;
    }
    return IDA_OK;
}

/* The string HF decodes for a token: of added tokens that are matched in normal form, that form. */
static const char *decoded_string(const ida_tokenizer *t, const ida_added *a, int64_t id, size_t *n) {
    if (a) {
        *n = (size_t)a->n_pattern;
        return a->pattern;
    }
    *n = (size_t)(t->start[id + 1] - t->start[id]);
    return t->bytes + t->start[id];
}

static ida_status put_text(ida_tokenizer *t, const ida_added *a, int64_t id, ida_match_room *room, ida_buf work[2],
                           ida_buf *out) {
    const ida_pipeline *p = t->pipe;
    size_t n;
    const char *s = decoded_string(t, a, id, &n);
    if (p->decode == IDA_DECODE_BYTE_LEVEL) return a ? put_byte_level(s, n, out) : ida_buf_add(out, s, n);
    if (p->decode == IDA_DECODE_METASPACE) return put_marks_as_blanks(s, n, p->mark, out);
    const size_t given = n;
    for (int64_t i = 0; i < p->n_replace; i++) {
        ida_buf *to = &work[i & 1];
        IDA_TRY(ida_replace(&p->replace[i], room, (const uint8_t *)s, n, ida_text_limit(given), to));
        if (to->len > ida_text_limit(given)) return ida_text_grows(given);
        s = to->data;
        n = (size_t)to->len;
    }
    int byte = p->byte_fallback ? byte_token(s, n) : -1;
    if (byte < 0) return ida_buf_add(out, s, n);
    t->flags[id] |= IDA_TOKEN_BYTE;
    char c = (char)byte;
    return ida_buf_add(out, &c, 1);
}

ida_status ida_build_texts(ida_tokenizer *t) {
    ida_buf out = {0}, work[2] = {{0}, {0}};
    ida_match_room *room = NULL;
    ida_status st;
    int64_t k = 0;
    IDA_TRY_GOTO(IDA_ALLOC(t->text_start, t->n_ids + 1, "token offsets"));
    IDA_TRY_GOTO(ida_match_room_new(&room));
    IDA_TRY_GOTO(ida_buf_add(&out, "", 0));
    for (int64_t id = 0; id < t->n_ids; id++) {
        t->text_start[id] = out.len;
        if (!(t->flags[id] & IDA_TOKEN_USED)) continue;
        while (k < t->n_added && t->added[k].id < id) k++;
        const ida_added *a = k < t->n_added && t->added[k].id == id ? &t->added[k] : NULL;
        IDA_TRY_GOTO(put_text(t, a, id, room, work, &out));
        bool own_form = a && a->special && a->n == a->n_pattern && memcmp(a->content, a->pattern, (size_t)a->n) == 0;
        if (own_form) t->flags[id] |= IDA_TOKEN_SKIPPED;
    }
    t->text_start[t->n_ids] = out.len;
    if (out.len == t->start[t->n_ids] && memcmp(out.data, t->bytes, (size_t)out.len) == 0 &&
        memcmp(t->text_start, t->start, (size_t)(t->n_ids + 1) * sizeof *t->start) == 0) {
        ida_free(t->text_start);
        t->text_start = t->start;
        t->text = t->bytes;
    } else {
        t->text = out.data;
        out.data = NULL;
    }
out:
    ida_match_room_free(room);
    for (int i = 0; i < 2; i++) ida_buf_free(&work[i]);
    ida_buf_free(&out);
    return st;
}

/* ---- decoding */

struct ida_decoder {
    const ida_tokenizer *t;
    bool skip_special, exact_bytes; /* exact_bytes: every byte at once, as it is */
    ida_buf out;                    /* given to the caller */
    ida_buf held;                   /* an unfinished character, or a run of byte tokens */
    int64_t to_strip;               /* blanks still taken from the front of the text; 0 once it has begun */
    bool begun;
};

static void restart(ida_decoder *d) {
    d->held.len = 0;
    d->begun = false;
    d->to_strip = d->t->pipe->decode == IDA_DECODE_CHAIN ? d->t->pipe->strip_n : 0;
}

ida_status ida_decoder_create(const ida_tokenizer *t, bool skip_special, ida_decoder **out) {
    IDA_NEED(t);
    IDA_NEED(out);
    IDA_TRY(IDA_CALLOC(*out, 1, "decoder"));
    (*out)->t = t;
    (*out)->skip_special = skip_special;
    restart(*out);
    return IDA_OK;
}

ida_status ida_decoder_create_bytes(const ida_tokenizer *t, bool skip_special, bool begun, ida_decoder **out) {
    IDA_TRY(ida_decoder_create(t, skip_special, out));
    (*out)->exact_bytes = true;
    (*out)->begun = begun;
    if (begun) (*out)->to_strip = 0;
    return IDA_OK;
}

void ida_decoder_free(ida_decoder *d) {
    if (!d) return;
    ida_buf_free(&d->out);
    ida_buf_free(&d->held);
    ida_free(d);
}

static ida_status put(ida_decoder *d, const char *s, size_t n) {
    const char *c = d->t->pipe->strip;
    size_t m = strlen(c);
    while (d->to_strip > 0 && n > 0) {
        if (n < m || memcmp(s, c, m) != 0) d->to_strip = 0;
        else {
            d->to_strip--;
            s += m;
            n -= m;
        }
    }
    return ida_buf_add(&d->out, s, n);
}

/* Well-formed text as it is; one U+FFFD for every maximal ill-formed part, as Rust and the Unicode standard do. */
static ida_status put_lossy(ida_decoder *d, const char *s, size_t n) {
    if (n == 0) return IDA_OK; /* s may be NULL */
    for (size_t i = 0, done = 0; i <= n;) {
        uint32_t cp = UINT32_MAX;
        size_t len = i < n ? ida_utf8_decode((const uint8_t *)s + i, n - i, &cp) : 1;
        if (cp != UINT32_MAX) {
            i += len;
            continue;
        }
        IDA_TRY(ida_buf_add(&d->out, s + done, i - done));
        if (i < n) IDA_TRY(ida_buf_add(&d->out, replacement, sizeof replacement - 1));
        for (size_t k = 2; i < n && k < 4 && i + k <= n && ida_utf8_whole(s + i, k) == 0; k++) len = k;
        i += len;
        done = i < n ? i : n;
    }
    return IDA_OK;
}

/* Bytes of a byte-level tokenizer: a last unfinished character waits for the next token. */
static ida_status put_bytes(ida_decoder *d, const char *s, size_t n) {
    if (d->exact_bytes) return ida_buf_add(&d->out, s, n);
    IDA_TRY(ida_buf_add(&d->held, s, n));
    if (d->held.len == 0) return IDA_OK;
    size_t whole = ida_utf8_whole(d->held.data, (size_t)d->held.len);
    IDA_TRY(put_lossy(d, d->held.data, whole));
    d->held.len -= (int64_t)whole;
    memmove(d->held.data, d->held.data + whole, (size_t)d->held.len);
    return IDA_OK;
}

static bool is_well_formed(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += ida_utf8_decode((const uint8_t *)s + i, n - i, &cp);
        if (cp == UINT32_MAX) return false;
    }
    return true;
}

/* The end of a run of byte tokens: text when the whole run is well-formed, else U+FFFD for every byte of it. */
static ida_status end_run(ida_decoder *d) {
    int64_t n = d->held.len;
    d->held.len = 0;
    if (n == 0) return IDA_OK;
    if (is_well_formed(d->held.data, (size_t)n)) return put(d, d->held.data, (size_t)n);
    for (int64_t i = 0; i < n; i++) IDA_TRY(put(d, replacement, sizeof replacement - 1));
    return IDA_OK;
}

/* The first token of a Metaspace decoder loses its marks. */
static ida_status put_without_marks(ida_decoder *d, int64_t id) {
    const ida_tokenizer *t = d->t;
    const ida_added *a = NULL;
    size_t n, m = strlen(t->pipe->mark);
    for (int64_t i = 0; i < t->n_added && !a; i++)
        if (t->added[i].id == id) a = &t->added[i];
    const char *s = decoded_string(t, a, id, &n);
    for (size_t i = 0; i < n;) {
        bool hit = n - i >= m && memcmp(s + i, t->pipe->mark, m) == 0;
        if (!hit) IDA_TRY(ida_buf_add(&d->out, s + i, 1));
        i += hit ? m : 1;
    }
    return IDA_OK;
}

static ida_status put_token(ida_decoder *d, int64_t id) {
    const ida_tokenizer *t = d->t;
    const char *s = t->text + t->text_start[id];
    size_t n = (size_t)(t->text_start[id + 1] - t->text_start[id]);
    if (d->skip_special && (t->flags[id] & IDA_TOKEN_SKIPPED)) return IDA_OK;
    bool first = !d->begun;
    d->begun = true;
    if (t->pipe->decode == IDA_DECODE_BYTE_LEVEL) return put_bytes(d, s, n);
    if (t->pipe->decode == IDA_DECODE_METASPACE && first && t->pipe->first_mark_dropped) return put_without_marks(d, id);
    if ((t->flags[id] & IDA_TOKEN_BYTE) && !d->exact_bytes) return ida_buf_add(&d->held, s, n);
    IDA_TRY(end_run(d));
    return put(d, s, n);
}

ida_status ida_decoder_push(ida_decoder *d, const int32_t *ids, int64_t n_ids, const char **text, size_t *n_bytes) {
    IDA_NEED(d);
    IDA_NEED(text);
    IDA_NEED(n_bytes);
    IDA_FAIL_IF(n_ids < 0, IDA_E_ARG, "decode: negative number of ids %lld", (long long)n_ids);
    IDA_FAIL_IF(!ids && n_ids > 0, IDA_E_ARG, "ids is NULL, n_ids %lld", (long long)n_ids);
    for (int64_t i = 0; i < n_ids; i++)
        IDA_FAIL_IF(!ida_tokenizer_piece(d->t, ids[i], NULL, NULL), IDA_E_ARG,
                    "decode: id %lld at position %lld is not in the vocabulary (ids 0..%lld)", (long long)ids[i], (long long)i,
                    (long long)d->t->n_ids - 1);
    d->out.len = 0;
    IDA_TRY(ida_buf_add(&d->out, "", 0));
    for (int64_t i = 0; i < n_ids; i++) IDA_TRY(put_token(d, ids[i]));
    *text = d->out.data;
    *n_bytes = (size_t)d->out.len;
    return IDA_OK;
}

ida_status ida_decoder_end(ida_decoder *d, const char **text, size_t *n_bytes) {
    IDA_NEED(d);
    IDA_NEED(text);
    IDA_NEED(n_bytes);
    d->out.len = 0;
    IDA_TRY(ida_buf_add(&d->out, "", 0));
    if (d->t->pipe->decode == IDA_DECODE_BYTE_LEVEL) IDA_TRY(put_lossy(d, d->held.data, (size_t)d->held.len));
    else IDA_TRY(end_run(d));
    restart(d);
    *text = d->out.data;
    *n_bytes = (size_t)d->out.len;
    return IDA_OK;
}

ida_status ida_tokenizer_decode(const ida_tokenizer *t, const int32_t *ids, int64_t n_ids, bool skip_special, char **text,
                                size_t *n_bytes) {
    IDA_NEED(t);
    IDA_NEED(text);
    IDA_NEED(n_bytes);
    ida_decoder d = {.t = t, .skip_special = skip_special, .exact_bytes = true};
    const char *part;
    size_t n;
    restart(&d);
    ida_status st = ida_decoder_push(&d, ids, n_ids, &part, &n);
    if (!st) {
        *text = d.out.data;
        *n_bytes = (size_t)d.out.len;
        d.out.data = NULL;
    }
    ida_buf_free(&d.out);
    ida_buf_free(&d.held);
    return st;
}
