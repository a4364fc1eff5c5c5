/* normalize.c - runs the normalizer of a pipeline over one piece of text. Ill-formed bytes pass through unchanged. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/pipeline.h"
#include "text/unicode.h"

ida_status ida_text_grows(size_t n) {
    IDA_FAIL(IDA_E_FORMAT,
             "the tokenizer's steps make more than %lld bytes of a text of %zu (the limit is 32 times and 256): its Replace and "
             "Prepend steps are not sound",
             (long long)ida_text_limit(n), n);
}

ida_status ida_replace(const ida_norm_step *step, ida_match_room *room, const uint8_t *s, size_t n, int64_t most,
                       ida_buf *out) {
    ida_search q = ida_search_start(&step->find, room, s, n);
    size_t done = 0, from, to;
    out->len = 0;
    IDA_TRY(ida_buf_add(out, "", 0));
    for (bool found;;) {
        if (out->len > most) return IDA_OK; /* the caller refuses it */
        IDA_TRY(ida_search_next(&q, &from, &to, &found));
        if (!found) return ida_buf_add(out, s + done, n - done);
        IDA_TRY(ida_buf_add(out, s + done, from - done));
        IDA_TRY(ida_buf_add(out, step->with, step->n));
        done = to;
    }
}

/* [s, n) is well-formed and not ASCII alone. */
static ida_status normal_form(const uint8_t *s, size_t n, ida_norm_kind kind, ida_buf *out) {
    int options = UTF8PROC_STABLE | (kind == IDA_NORM_NFC || kind == IDA_NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                  (kind == IDA_NORM_NFKC || kind == IDA_NORM_NFKD ? UTF8PROC_COMPAT : 0);
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t len = utf8proc_map(s, (utf8proc_ssize_t)n, &made, (utf8proc_option_t)options);
    IDA_FAIL_IF(len < 0, IDA_E_NOMEM, "normalizing %zu bytes of text failed: %s", n, utf8proc_errmsg(len));
    ida_status st = ida_buf_add(out, made, (size_t)len);
    free(made);
    return st;
}

/* Text between ASCII characters that are followed by ASCII is normalized on its own: neither can compose or reorder. */
static ida_status normalize_form(const uint8_t *s, size_t n, ida_norm_kind kind, ida_buf *out) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && s[end] < 0x80) end++;
        size_t alone = 0; /* bytes of what is ill-formed or too new: nothing composes or reorders across it */
        size_t plain = end < n && end > i ? end - 1 : end; /* the last ASCII character may take a mark */
        IDA_TRY(ida_buf_add(out, s + i, plain - i));
        i = end = plain;
        while (end < n && !(s[end] < 0x80 && end > i && (end + 1 == n || s[end + 1] < 0x80))) {
            uint32_t cp;
            size_t len = ida_utf8_decode(s + end, n - end, &cp);
            if (cp == UINT32_MAX || ida_uc_is_unnormalized(cp)) {
                alone = len;
                break;
            }
            end += len;
        }
        if (end > i) IDA_TRY(normal_form(s + i, end - i, kind, out));
        IDA_TRY(ida_buf_add(out, s + end, alone));
        i = end + alone;
    }
    return IDA_OK;
}

/* As Rust's to_lowercase of each character (Unicode 17): utf8proc's simple mapping but for what is later than it, and for the one
 * capital that becomes two characters. */
static ida_status lowercase(const uint8_t *s, size_t n, ida_buf *out) {
    static const struct { uint32_t first, last, to; } later[] = {
        {0x1C89, 0x1C89, 0x1C8A}, {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD}, {0xA7CE, 0xA7CE, 0xA7CF},
        {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5}, {0xA7DA, 0xA7DA, 0xA7DB}, {0xA7DC, 0xA7DC, 0x19B},
        {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        utf8proc_uint8_t made[4];
        len = ida_utf8_decode(s + i, n - i, &cp);
        uint32_t low = cp == UINT32_MAX ? cp : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        for (size_t k = 0; k < sizeof later / sizeof *later; k++)
            if (cp >= later[k].first && cp <= later[k].last) low = later[k].to + (cp - later[k].first);
        if (cp == 0x130) IDA_TRY(ida_buf_add(out, "i\xCC\x87", 3));
        else if (low == cp) IDA_TRY(ida_buf_add(out, s + i, len));
        else IDA_TRY(ida_buf_add(out, made, (size_t)utf8proc_encode_char((utf8proc_int32_t)low, made)));
    }
    return IDA_OK;
}

static ida_status strip_accents(const uint8_t *s, size_t n, ida_buf *out) {
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = ida_utf8_decode(s + i, n - i, &cp);
        if (cp == UINT32_MAX || !ida_uc_is_accent(cp)) IDA_TRY(ida_buf_add(out, s + i, len));
    }
    return IDA_OK;
}

static ida_status strip(const ida_norm_step *step, const uint8_t *s, size_t n, ida_buf *out) {
    size_t from = 0, len;
    while (step->left && from < n && (ida_utf8_class(s + from, n - from, &len) & IDA_UC_SPACE)) from += len;
    while (step->right && n > from && (ida_utf8_class_before(s, n, &len) & IDA_UC_SPACE)) n -= len;
    return ida_buf_add(out, s + from, n - from);
}

static ida_status run(const ida_norm_step *step, ida_match_room *room, const uint8_t *s, size_t n, int64_t most,
                      ida_buf *out) {
    switch (step->kind) {
    case IDA_NORM_NFC: case IDA_NORM_NFD: case IDA_NORM_NFKC: case IDA_NORM_NFKD: break;
    case IDA_NORM_LOWERCASE: return lowercase(s, n, out);
    case IDA_NORM_STRIP_ACCENTS: return strip_accents(s, n, out);
    case IDA_NORM_STRIP: return strip(step, s, n, out);
    case IDA_NORM_REPLACE: return ida_replace(step, room, s, n, most, out);
    case IDA_NORM_PREPEND:
        if (n > 0) IDA_TRY(ida_buf_add(out, step->with, step->n));
        return ida_buf_add(out, s, n);
    }
    return normalize_form(s, n, step->kind, out);
}

ida_status ida_normalize(const ida_pipeline *p, ida_match_room *room, const uint8_t *s, size_t n, ida_buf buffers[2],
                         const uint8_t **out, size_t *n_out) {
    const size_t given = n;
    for (int64_t i = 0; i < p->n_norm; i++) {
        const ida_norm_step *step = &p->norm[i];
        ida_buf *to = &buffers[i & 1];
        to->len = 0;
        IDA_TRY(ida_buf_add(to, "", 0));
        IDA_TRY(run(step, room, s, n, ida_text_limit(given), to));
        if (to->len > ida_text_limit(given)) return ida_text_grows(given);
        s = (const uint8_t *)to->data;
        n = (size_t)to->len;
    }
    *out = s;
    *n_out = n;
    return IDA_OK;
}
