/* text.c - see text.h. Three layers: a byte source (plain, gzip, zstd; one fixed buffer each way), a splitter for plain text and
 * a line reader for jsonl. Memory is the two buffers plus one document. Parquet files go to parquet.h. */
#include "data/text.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "core/file.h"
#include "core/mem.h"
#include "data/parquet.h"

enum { IN_BYTES = 1 << 18, OUT_BYTES = 1 << 18, MAX_LOGGED = 20 };
#define DEFAULT_MAX ((int64_t)1 << 30)

typedef enum packing { PACK_NONE, PACK_GZIP, PACK_ZSTD } packing;

struct ida_text_reader {
    char *path, *key;
    FILE *file;
    ida_text_options o;
    bool jsonl;
    packing packing;
    uint8_t *in, *out;              /* raw bytes of the file; unpacked bytes (unused for plain files) */
    size_t in_at, in_n;
    const uint8_t *data;            /* unread unpacked bytes */
    size_t data_n;
    int64_t consumed;
    bool in_end, at_end, member_open; /* file read; nothing more to unpack; inside a compressed member */
    z_stream gz;
    bool gz_ready;
    ZSTD_DStream *zs;
    ida_buf doc;
    int64_t given;                  /* bytes at the front of doc handed out by the last call (cut_bytes) */
    int newlines;                   /* at the end of doc */
    bool skipping;                  /* the rest of a run of newlines between documents */
    bool first_line;
    int64_t line, bad;
    json_t *row;
    ida_parquet *parquet;           /* then `file` is NULL and nothing above is in use but line and bad */
};

static ida_status fill_in(ida_text_reader *r) {
    if (r->in_at < r->in_n || r->in_end) return IDA_OK;
    r->in_at = 0;
    r->in_n = fread(r->in, 1, IN_BYTES, r->file);
    IDA_FAIL_IF(ferror(r->file), IDA_E_IO, "%s: cannot read: %s", r->path, strerror(errno));
    r->consumed += (int64_t)r->in_n;
    r->in_end = r->in_n < IN_BYTES; /* fread stops short only at the end */
    return IDA_OK;
}

static ida_status truncated(const ida_text_reader *r) {
    IDA_FAIL(IDA_E_FORMAT, "%s: the compressed file ends too early (after %lld bytes): it is cut off, fetch it again", r->path,
             (long long)r->consumed);
}

/* Unpacks into out until some bytes came or the file ended. Members may follow each other; gzip allows zero padding after the
 * last. A full out buffer may leave bytes inside the unpacker, so it is asked again even when no input is left. */
static ida_status unpack_gzip(ida_text_reader *r, size_t *made) {
    *made = 0;
    while (!*made) {
        IDA_TRY(fill_in(r));
        bool starved = r->in_at == r->in_n;
        if (!r->member_open) {
            if (starved) {
                r->at_end = true;
                return IDA_OK;
            }
            if (r->in[r->in_at] == 0) {
                r->in_at++;
                continue;
            }
            inflateReset(&r->gz);
            r->member_open = true;
        }
        r->gz.next_in = r->in + r->in_at;
        r->gz.avail_in = (uInt)(r->in_n - r->in_at);
        r->gz.next_out = r->out;
        r->gz.avail_out = OUT_BYTES;
        int code = inflate(&r->gz, Z_NO_FLUSH);
        r->in_at = r->in_n - r->gz.avail_in;
        *made = OUT_BYTES - r->gz.avail_out;
        if (code == Z_STREAM_END) r->member_open = false;
        else if (code == Z_MEM_ERROR) IDA_FAIL(IDA_E_NOMEM, "%s: out of memory while unpacking gzip", r->path);
        else if (code != Z_OK && code != Z_BUF_ERROR)
            IDA_FAIL(IDA_E_FORMAT, "%s: damaged gzip data near byte %lld: %s", r->path,
                     (long long)(r->consumed - (int64_t)(r->in_n - r->in_at)),
                     r->gz.msg ? r->gz.msg : "unknown");
        if (starved && !*made && r->member_open) return truncated(r);
    }
    return IDA_OK;
}

static ida_status unpack_zstd(ida_text_reader *r, size_t *made) {
    *made = 0;
    while (!*made) {
        IDA_TRY(fill_in(r));
        if (r->in_at == r->in_n && !r->member_open) {
            r->at_end = true;
            return IDA_OK;
        }
        ZSTD_inBuffer in = {r->in + r->in_at, r->in_n - r->in_at, 0};
        ZSTD_outBuffer out = {r->out, OUT_BYTES, 0};
        bool starved = in.size == 0;
        size_t code = ZSTD_decompressStream(r->zs, &out, &in);
        IDA_FAIL_IF(ZSTD_isError(code), IDA_E_FORMAT, "%s: damaged zstd data near byte %lld: %s", r->path,
                    (long long)(r->consumed - (int64_t)(r->in_n - r->in_at)), ZSTD_getErrorName(code));
        r->in_at += in.pos;
        r->member_open = code != 0;
        *made = out.pos;
        if (starved && !out.pos && r->member_open) return truncated(r);
    }
    return IDA_OK;
}

/* Makes data_n > 0 or at_end. */
static ida_status fill(ida_text_reader *r) {
    if (r->data_n || r->at_end) return IDA_OK;
    if (r->packing == PACK_NONE) {
        IDA_TRY(fill_in(r));
        r->data = r->in + r->in_at;
        r->data_n = r->in_n - r->in_at;
        r->in_at = r->in_n;
        r->at_end = r->data_n == 0;
        return IDA_OK;
    }
    r->data = r->out;
    return r->packing == PACK_GZIP ? unpack_gzip(r, &r->data_n) : unpack_zstd(r, &r->data_n);
}

static bool is_parquet(const ida_text_reader *r, size_t n) {
    if (ida_ends_with(r->path, n, ".parquet")) return true;
    return r->in_n >= 4 && memcmp(r->in, "PAR1", 4) == 0 && !ida_ends_with(r->path, n, ".txt") &&
           !ida_ends_with(r->path, n, ".jsonl");
}

static ida_status open_parquet(ida_text_reader *r) {
    const ida_parquet_options o = {.column = r->o.column ? r->o.column : r->key};
    IDA_FAIL_IF(r->file == stdin, IDA_E_UNSUPPORTED, "a Parquet file cannot be read from standard input: give the file's name");
    FILE *f = r->file;
    r->file = NULL;
    return ida_parquet_open(f, r->path, &o, &r->parquet);
}

/* Looks at the name and the first bytes. */
static ida_status detect(ida_text_reader *r) {
    IDA_TRY(fill_in(r));
    size_t n = strlen(r->path);
    if (is_parquet(r, n)) return open_parquet(r);
    bool gz_name = ida_ends_with(r->path, n, ".gz"), zst_name = ida_ends_with(r->path, n, ".zst");
    n -= gz_name ? 3 : zst_name ? 4 : 0;
    r->jsonl = ida_ends_with(r->path, n, ".jsonl") || ida_ends_with(r->path, n, ".ndjson");
    const uint8_t *b = r->in;
    bool gz = r->in_n >= 2 && b[0] == 0x1F && b[1] == 0x8B;
    bool zst = r->in_n >= 4 && ((b[0] == 0x28 && b[1] == 0xB5 && b[2] == 0x2F && b[3] == 0xFD)
                                || ((b[0] & 0xF0) == 0x50 && b[1] == 0x2A && b[2] == 0x4D && b[3] == 0x18));
    bool known = gz_name ? gz : zst_name ? zst : true;
    if (!known && r->in_end && r->in_n < 4) return truncated(r);
    IDA_FAIL_IF(!known, IDA_E_FORMAT, "%s: the name says %s, the content does not: rename the file", r->path,
                gz_name ? "gzip" : "zstd");
    r->packing = gz ? PACK_GZIP : zst ? PACK_ZSTD : PACK_NONE;
    if (gz) {
        IDA_FAIL_IF(inflateInit2(&r->gz, 15 + 16) != Z_OK, IDA_E_NOMEM, "%s: out of memory for gzip", r->path);
        r->gz_ready = true;
    }
    if (zst) {
        r->zs = ZSTD_createDStream();
        IDA_FAIL_IF(!r->zs, IDA_E_NOMEM, "%s: out of memory for zstd", r->path);
    }
    return IDA_OK;
}

ida_status ida_text_open_stream(FILE *file, const char *name, const ida_text_options *o, ida_text_reader **out) {
    ida_text_reader *r = NULL;
    ida_status st = IDA_CALLOC(r, 1, "text reader");
    if (st) {
        if (file != stdin) fclose(file);
        return st;
    }
    r->file = file;
    r->o = *o;
    if (!r->o.max_document_bytes) r->o.max_document_bytes = DEFAULT_MAX;
    r->first_line = true;
    r->path = ida_strdup(name);
    r->key = ida_strdup(o->jsonl_key ? o->jsonl_key : IDA_TEXT_KEY);
    if (!r->path || !r->key) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", name);
    if (o->max_document_bytes < 0 || o->cut_bytes < 0) IDA_FAIL_GOTO(IDA_E_ARG, "%s: negative size limit for documents", name);
    IDA_TRY_GOTO(IDA_ALLOC(r->in, IN_BYTES, "read buffer"));
    IDA_TRY_GOTO(IDA_ALLOC(r->out, OUT_BYTES, "read buffer"));
    IDA_TRY_GOTO(ida_buf_add(&r->doc, "", 0));
    IDA_TRY_GOTO(detect(r));
    *out = r;
    return IDA_OK;
out:
    ida_text_close(r);
    return st;
}

ida_status ida_text_open(const char *path, const ida_text_options *o, ida_text_reader **out) {
    if (strcmp(path, "-") == 0) return ida_text_open_stream(stdin, "standard input", o, out);
    FILE *f = fopen(path, "rb");
    IDA_FAIL_IF(!f, IDA_E_IO, "%s: cannot open: %s", path, strerror(errno));
    return ida_text_open_stream(f, path, o, out);
}

void ida_text_close(ida_text_reader *r) {
    if (!r) return;
    if (r->file && r->file != stdin) fclose(r->file);
    if (r->gz_ready) inflateEnd(&r->gz);
    ZSTD_freeDStream(r->zs);
    ida_parquet_close(r->parquet);
    json_decref(r->row);
    ida_free(r->path);
    ida_free(r->key);
    ida_free(r->in);
    ida_free(r->out);
    ida_buf_free(&r->doc);
    ida_free(r);
}

static ida_status too_long(const ida_text_reader *r) {
    IDA_FAIL(IDA_E_UNSUPPORTED,
             "%s: a document is longer than %lld bytes: split the file (documents may be parted by form feeds)", r->path,
             (long long)r->o.max_document_bytes);
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

int64_t ida_text_last_cut(const char *s, int64_t from, int64_t n) {
    for (int64_t i = n - 1; i > from; i--) {
        unsigned char before = (unsigned char)s[i - 1];
        bool newline = s[i] == '\n' || s[i] == '\r';
        if (is_blank(s[i]) && before > ' ' && before < 0x7F && (!newline || isalnum(before))) return i;
    }
    return 0;
}

static ida_status next_whole(ida_text_reader *r, bool *have) {
    for (;;) {
        IDA_TRY(fill(r));
        if (!r->data_n) {
            *have = r->doc.len > 0;
            r->given = r->doc.len;
            return IDA_OK;
        }
        int64_t before = r->doc.len;
        IDA_TRY(ida_buf_add(&r->doc, r->data, r->data_n));
        r->data_n = 0;
        if (r->o.cut_bytes && r->doc.len >= r->o.cut_bytes) {
            r->given = ida_text_last_cut(r->doc.data, before, r->doc.len);
            *have = r->given > 0;
            if (*have) return IDA_OK;
        }
        if (r->doc.len > r->o.max_document_bytes) return too_long(r);
    }
}

/* Ends a document: one newline stays at its end. false when it holds nothing but blanks. */
static bool close_document(ida_text_reader *r) {
    ida_buf *b = &r->doc;
    int64_t n = b->len, text = 0;
    while (n > 0 && (b->data[n - 1] == '\n' || b->data[n - 1] == '\r')) n--;
    while (text < n && is_blank(b->data[text])) text++;
    if (n < b->len && b->data[n] == '\r' && n + 1 < b->len && b->data[n + 1] == '\n') b->len = n + 2;
    else if (n < b->len) b->len = n + 1;
    r->newlines = 0;
    r->skipping = true;
    r->given = b->len;
    if (text < n) return true;
    b->len = r->given = 0;
    return false;
}

static ida_status next_split(ida_text_reader *r, bool *have) {
    for (;;) {
        IDA_TRY(fill(r));
        if (!r->data_n) {
            *have = r->doc.len > 0 && close_document(r);
            return IDA_OK;
        }
        size_t i = 0, from = 0;
        bool done = false;
        for (; i < r->data_n && !done; i++) {
            uint8_t c = r->data[i];
            if (r->skipping && (c == '\n' || c == '\r')) {
                from = i + 1;
                continue;
            }
            r->skipping = false;
            if (c == '\n') r->newlines++;
            else if (c != '\r') r->newlines = 0;
            done = c == '\f' || r->newlines >= 3;
        }
        size_t take = i - from - (done && r->data[i - 1] == '\f');
        IDA_TRY(ida_buf_add(&r->doc, r->data + from, take));
        r->data += i;
        r->data_n -= i;
        if (r->doc.len > r->o.max_document_bytes) return too_long(r);
        if (done && close_document(r)) {
            *have = true;
            return IDA_OK;
        }
    }
}

static void bad_row(ida_text_reader *r, const char *why) {
    r->bad++;
    if (r->o.on_bad) {
        r->o.on_bad(r->o.user, r->path, r->line, why);
        return;
    }
    if (r->bad <= MAX_LOGGED) ida_log("%s:%lld: row passed over: %s", r->path, (long long)r->line, why);
    if (r->bad == MAX_LOGGED) ida_log("%s: further bad rows are counted, not shown", r->path);
}

/* One line without its newline into doc. *whole is false when it was too long (then doc holds its front only). */
static ida_status next_line(ida_text_reader *r, bool *have, bool *whole) {
    r->doc.len = 0;
    *have = false;
    *whole = true;
    for (;;) {
        IDA_TRY(fill(r));
        if (!r->data_n) break;
        *have = true;
        const uint8_t *nl = memchr(r->data, '\n', r->data_n);
        size_t n = nl ? (size_t)(nl - r->data) : r->data_n;
        if (r->doc.len + (int64_t)n > r->o.max_document_bytes) *whole = false;
        else if (*whole) IDA_TRY(ida_buf_add(&r->doc, r->data, n));
        n += nl ? 1 : 0;
        r->data += n;
        r->data_n -= n;
        if (nl) break;
    }
    if (*have) r->line++;
    return IDA_OK;
}

static ida_status next_row(ida_text_reader *r, const char **text, int64_t *n, bool *have) {
    json_decref(r->row);
    r->row = NULL;
    for (;;) {
        bool whole;
        IDA_TRY(next_line(r, have, &whole));
        if (!*have) return IDA_OK;
        const char *s = r->doc.data;
        int64_t len = r->doc.len, blank = 0;
        if (r->first_line && len >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0) {
            s += 3;
            len -= 3;
        }
        r->first_line = false;
        if (!whole) {
            bad_row(r, "the row is longer than the limit for a document");
            continue;
        }
        while (blank < len && is_blank(s[blank])) blank++;
        if (blank == len) continue;
        json_error_t error; /* numbers are not looked at: an id of 64 bits without sign is no bad row */
        r->row = json_loadb(s, (size_t)len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
        if (!r->row) {
            IDA_FAIL_IF(json_error_code(&error) == json_error_out_of_memory, IDA_E_NOMEM, "%s:%lld: out of memory", r->path,
                        (long long)r->line);
            bad_row(r, error.text);
            continue;
        }
        const json_t *value = json_object_get(r->row, r->key);
        if (json_is_string(value)) {
            *text = json_string_value(value);
            *n = (int64_t)json_string_length(value);
            return IDA_OK;
        }
        char why[160] = "not a JSON object";
        if (json_is_object(r->row)) snprintf(why, sizeof why, "no string under the key \"%.100s\"", r->key);
        bad_row(r, why);
        json_decref(r->row);
        r->row = NULL;
    }
}

static ida_status next_parquet(ida_text_reader *r, const char **text, int64_t *n, bool *have) {
    for (;;) {
        bool end;
        IDA_TRY(ida_parquet_next(r->parquet, text, n, &end));
        *have = !end;
        if (end || (*text && *n <= r->o.max_document_bytes)) return IDA_OK;
        r->line = ida_parquet_row(r->parquet);
        bad_row(r, *text ? "the row is longer than the limit for a document" : "the text is null");
    }
}

ida_status ida_text_next(ida_text_reader *r, const char **text, int64_t *n, bool *end) {
    bool have = false;
    if (r->parquet) {
        IDA_TRY(next_parquet(r, text, n, &have));
    } else if (r->jsonl) {
        IDA_TRY(next_row(r, text, n, &have));
    } else {
        memmove(r->doc.data, r->doc.data + r->given, (size_t)(r->doc.len - r->given));
        r->doc.len -= r->given;
        r->given = 0;
        IDA_TRY(r->o.split_blank_lines ? next_split(r, &have) : next_whole(r, &have));
        *text = r->doc.data;
        *n = r->given;
    }
    *end = !have;
    return IDA_OK;
}

int64_t ida_text_bad(const ida_text_reader *r) { return r->bad; }
int64_t ida_text_consumed(const ida_text_reader *r) { return r->parquet ? ida_parquet_consumed(r->parquet) : r->consumed; }
