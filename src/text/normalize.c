/* normalize.c - runs the normalizer of a pipeline over one piece of text. Ill-formed bytes pass through unchanged. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/pipeline.h"
#include "text/unicode.h"

ida_status ida_replace(const ida_norm_step *step, ida_match_room *room, const uint8_t *s, size_t n, ida_buf *out) {
    ida_search q = ida_search_start(&step->find, room, s, n);
    size_t done = 0, from, to;
    for (bool found;;) {
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
        size_t plain = end < n && end > i ? end - 1 : end; /* the last ASCII character may take a mark */
        IDA_TRY(ida_buf_add(out, s + i, plain - i));
        i = end = plain;
        while (end < n && !(s[end] < 0x80 && end > i && (end + 1 == n || s[end + 1] < 0x80))) {
            uint32_t cp;
            size_t len = ida_utf8_decode(s + end, n - end, &cp);
            if (cp == UINT32_MAX) break;
            end += len;
        }
        if (end > i) IDA_TRY(normal_form(s + i, end - i, kind, out));
        if (end < n && s[end] >= 0x80) IDA_TRY(ida_buf_add(out, s + end++, 1)); /* ill-formed */
        i = end;
    }
    return IDA_OK;
}

ida_status ida_normalize(const ida_pipeline *p, ida_match_room *room, const uint8_t *s, size_t n, ida_buf buffers[2],
                         const uint8_t **out, size_t *n_out) {
    for (int64_t i = 0; i < p->n_norm; i++) {
        const ida_norm_step *step = &p->norm[i];
        ida_buf *to = &buffers[i & 1];
        to->len = 0;
        IDA_TRY(ida_buf_add(to, "", 0));
        if (step->kind == IDA_NORM_PREPEND) {
            if (n > 0) IDA_TRY(ida_buf_add(to, step->with, step->n));
            IDA_TRY(ida_buf_add(to, s, n));
        } else {
            IDA_TRY(step->kind == IDA_NORM_REPLACE ? ida_replace(step, room, s, n, to) : normalize_form(s, n, step->kind, to));
        }
        s = (const uint8_t *)to->data;
        n = (size_t)to->len;
    }
    *out = s;
    *n_out = n;
    return IDA_OK;
}
