/* parquet.c - see parquet.h. Pages are read one at a time, checked, unpacked, and their values handed out in place.
 * Invariant: `left` rows of the current page are still to come, `chunk_left` of the row group, and no pointer leaves its
 * buffer. */
#include "data/parquet.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "core/mem.h"
#include "data/text.h"
#include "data/parquet_meta.h"
#include "data/snappy.h"

#define DEFAULT_MAX_PAGE ((int64_t)256 << 20)
#define DEFAULT_MAX_FOOTER ((int64_t)64 << 20)
enum { HEADER_BYTES = 1 << 14, MAX_HEADER_BYTES = 1 << 24, TAIL_BYTES = 8 };

/* Parquet's mix of run-length and bit-packed runs of small numbers. */
typedef struct runs {
    const uint8_t *p, *end;
    int width;                   /* bits of a number, 0..32 */
    uint64_t left;               /* of the current run */
    bool packed;
    uint32_t value;              /* of a run-length run */
    uint64_t bits;               /* of a bit-packed run: its bits not yet used, and how many they are */
    int n_bits;
} runs;

struct ida_parquet {
    FILE *file;
    char *path, *column;
    int64_t max_page, data_end, place;
    ida_parquet_meta meta;
    int64_t chunk;               /* index of the next row group */
    const ida_parquet_chunk *at;
    int64_t next_page;           /* where its next page starts */
    int64_t row, chunk_left, left;
    uint8_t *packed, *unpacked, *dictionary;
    int64_t packed_cap, unpacked_cap, dictionary_cap;
    uint32_t *word;              /* [n_words]: where the dictionary's values start (behind their lengths) */
    int64_t n_words, words_cap;
    bool has_dictionary;
    const uint8_t *value, *value_end; /* PLAIN values to come */
    bool indexed;                /* the page's values are indices into the dictionary */
    runs levels, indices;
    ZSTD_DCtx *zstd;
};

static ida_status damaged(const ida_parquet *p, const char *what) {
    IDA_FAIL(IDA_E_FORMAT, "%s: damaged Parquet page near byte %lld (row %lld): %s: fetch the file again", p->path,
             (long long)p->place, (long long)p->row + 1, what);
}

static ida_status read_at(ida_parquet *p, int64_t at, uint8_t *to, int64_t n) {
    IDA_FAIL_IF(fseeko(p->file, (off_t)at, SEEK_SET), IDA_E_IO, "%s: cannot seek: %s", p->path, strerror(errno));
    size_t got = fread(to, 1, (size_t)n, p->file);
    if (got == (size_t)n) return IDA_OK;
    IDA_FAIL_IF(ferror(p->file), IDA_E_IO, "%s: cannot read: %s", p->path, strerror(errno));
    IDA_FAIL(IDA_E_FORMAT, "%s: the file became shorter while it was read", p->path);
}

static uint32_t little32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---------------------------------------------------------------- runs */

static void runs_start(runs *r, const uint8_t *p, int64_t n, int width) { *r = (runs){.p = p, .end = p + n, .width = width}; }

static bool runs_header(runs *r) {
    uint64_t head = 0;
    int shift = 0, bytes = (r->width + 7) / 8;
    for (;; shift += 7) {
        if (r->p == r->end || shift > 28) return false;
        uint8_t b = *r->p++;
        head |= (uint64_t)(b & 127) << shift;
        if (b < 128) break;
    }
    r->packed = head & 1;
    r->left = head >> 1;
    if (r->packed) {
        r->left *= 8;
        r->n_bits = 0;
        r->bits = 0;
        return r->left > 0;
    }
    if (r->left == 0 || r->end - r->p < bytes) return false;
    r->value = 0;
    for (int i = 0; i < bytes; i++) r->value |= (uint32_t)*r->p++ << (8 * i);
    return r->width == 32 || r->value >> r->width == 0;
}

/* A last bit-packed run may be cut short by the end of the data: its bytes are asked for only as they are needed. */
static bool runs_next(runs *r, uint32_t *v) {
    if (r->left == 0 && !runs_header(r)) return false;
    r->left--;
    if (!r->packed) {
        *v = r->value;
        return true;
    }
    while (r->n_bits < r->width) {
        if (r->p == r->end) return false;
        r->bits |= (uint64_t)*r->p++ << r->n_bits;
        r->n_bits += 8;
    }
    *v = (uint32_t)(r->bits & (((uint64_t)1 << r->width) - 1));
    r->bits >>= r->width;
    r->n_bits -= r->width;
    return true;
}

/* ---------------------------------------------------------------- unpacking */

static ida_status unpack_gzip(const ida_parquet *p, const uint8_t *in, int64_t n, uint8_t *out, int64_t out_n) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)in, .avail_in = (uInt)n, .next_out = out, .avail_out = (uInt)out_n};
    IDA_FAIL_IF(inflateInit2(&z, 15 + 32) != Z_OK, IDA_E_NOMEM, "%s: out of memory for gzip", p->path);
    int code;
    while ((code = inflate(&z, Z_NO_FLUSH)) == Z_STREAM_END && z.avail_in && z.avail_out) inflateReset(&z); /* next member */
    bool whole = code == Z_STREAM_END && !z.avail_in && !z.avail_out;
    inflateEnd(&z);
    IDA_FAIL_IF(code == Z_MEM_ERROR, IDA_E_NOMEM, "%s: out of memory for gzip", p->path);
    return whole ? IDA_OK : damaged(p, "gzip data");
}

static ida_status unpack(ida_parquet *p, const uint8_t *in, int64_t n, uint8_t *out, int64_t out_n) {
    if (p->at->codec == IDA_PARQUET_NONE) {
        if (n != out_n) return damaged(p, "two sizes of an unpacked page");
        if (n) memcpy(out, in, (size_t)n);
        return IDA_OK;
    }
    if (out_n == 0) return IDA_OK;
    if (p->at->codec == IDA_PARQUET_SNAPPY) return ida_snappy_unpack(in, n, out, out_n) ? IDA_OK : damaged(p, "snappy data");
    if (p->at->codec == IDA_PARQUET_GZIP) return unpack_gzip(p, in, n, out, out_n);
    if (!p->zstd) p->zstd = ZSTD_createDCtx();
    IDA_FAIL_IF(!p->zstd, IDA_E_NOMEM, "%s: out of memory for zstd", p->path);
    size_t got = ZSTD_decompressDCtx(p->zstd, out, (size_t)out_n, in, (size_t)n);
    return !ZSTD_isError(got) && (int64_t)got == out_n ? IDA_OK : damaged(p, "zstd data");
}

/* ---------------------------------------------------------------- pages */

static const char *encoding_name(int64_t encoding) {
    static const char *const names[] = {"PLAIN", "GROUP_VAR_INT", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && encoding < (int64_t)(sizeof names / sizeof *names) ? names[encoding] : "unknown";
}

/* Header and body of the page at next_page; the body goes to `packed`. */
static ida_status read_page(ida_parquet *p, ida_parquet_page *page) {
    p->place = p->next_page;
    int64_t room = p->at->end - p->next_page, n = HEADER_BYTES;
    for (;; n *= 4) {
        if (n > room) n = room;
        IDA_TRY(IDA_GROW(p->packed, &p->packed_cap, n, "Parquet page"));
        IDA_TRY(read_at(p, p->next_page, p->packed, n));
        if (ida_parquet_page_read(p->packed, n, page)) break;
        if (n == room || n >= MAX_HEADER_BYTES) return damaged(p, "page header");
    }
    int64_t body = p->next_page + page->header_bytes;
    if (page->packed > p->at->end - body) return damaged(p, "the page reaches beyond its column");
    IDA_FAIL_IF(page->packed > p->max_page || page->unpacked > p->max_page, IDA_E_UNSUPPORTED,
                "%s: a page of %lld bytes (packed %lld) is larger than %lld: write the file with smaller pages", p->path,
                (long long)page->unpacked, (long long)page->packed, (long long)p->max_page);
    IDA_TRY(IDA_GROW(p->packed, &p->packed_cap, page->packed, "Parquet page"));
    IDA_TRY(read_at(p, body, p->packed, page->packed));
    if (page->has_crc && crc32_z(0, p->packed, (size_t)page->packed) != page->crc) return damaged(p, "checksum");
    p->next_page = body + page->packed;
    return IDA_OK;
}

static ida_status take_dictionary(ida_parquet *p, const ida_parquet_page *page) {
    if (p->has_dictionary) return damaged(p, "a second dictionary");
    IDA_FAIL_IF(page->encoding != IDA_PARQUET_PLAIN && page->encoding != IDA_PARQUET_PLAIN_DICTIONARY, IDA_E_UNSUPPORTED,
                "%s: encoding %s of a dictionary is not read", p->path, encoding_name(page->encoding));
    IDA_TRY(IDA_GROW(p->dictionary, &p->dictionary_cap, page->unpacked + 1, "Parquet dictionary"));
    IDA_TRY(unpack(p, p->packed, page->packed, p->dictionary, page->unpacked));
    int64_t at = 0, end = page->unpacked;
    if (page->values > end / 4) return damaged(p, "dictionary size");
    IDA_TRY(IDA_GROW(p->word, &p->words_cap, page->values + 1, "Parquet dictionary"));
    for (int64_t i = 0; i < page->values; i++) {
        if (end - at < 4 || little32(p->dictionary + at) > end - at - 4) return damaged(p, "dictionary value");
        p->word[i] = (uint32_t)at + 4;
        at += 4 + (int64_t)little32(p->dictionary + at);
    }
    if (at != end) return damaged(p, "bytes after the dictionary");
    p->n_words = page->values;
    p->has_dictionary = true;
    return IDA_OK;
}

/* The values of a data page: p[0..n), unpacked, without levels. */
static ida_status start_values(ida_parquet *p, const ida_parquet_page *page, const uint8_t *v, int64_t n) {
    p->left = page->values;
    p->indexed = page->encoding == IDA_PARQUET_RLE_DICTIONARY || page->encoding == IDA_PARQUET_PLAIN_DICTIONARY;
    IDA_FAIL_IF(!p->indexed && page->encoding != IDA_PARQUET_PLAIN, IDA_E_UNSUPPORTED,
                "%s: page encoding %s is not read: write the file with plain or dictionary encoding", p->path,
                encoding_name(page->encoding));
    p->value = v;
    p->value_end = v + n;
    if (!p->indexed) return IDA_OK;
    if (!p->has_dictionary) return damaged(p, "dictionary indices without a dictionary");
    if (n && v[0] > 32) return damaged(p, "width of dictionary indices");
    runs_start(&p->indices, v + (n > 0), n - (n > 0), n ? v[0] : 0);
    return IDA_OK;
}

static ida_status take_v1(ida_parquet *p, const ida_parquet_page *page) {
    IDA_TRY(unpack(p, p->packed, page->packed, p->unpacked, page->unpacked));
    const uint8_t *v = p->unpacked;
    int64_t n = page->unpacked;
    if (p->meta.optional) {
        IDA_FAIL_IF(page->level_encoding != IDA_PARQUET_RLE, IDA_E_UNSUPPORTED,
                    "%s: encoding %s of definition levels is not read", p->path, encoding_name(page->level_encoding));
        if (n < 4 || little32(v) > n - 4) return damaged(p, "definition levels");
        int64_t levels = little32(v);
        runs_start(&p->levels, v + 4, levels, 1);
        v += 4 + levels;
        n -= 4 + levels;
    }
    return start_values(p, page, v, n);
}

static ida_status take_v2(ida_parquet *p, const ida_parquet_page *page) {
    int64_t levels = page->level_bytes;
    if (page->repeat_bytes || levels < 0 || levels > page->packed || levels > page->unpacked || (levels && !p->meta.optional))
        return damaged(p, "sizes of levels");
    int64_t packed = page->packed - levels, n = page->unpacked - levels;
    if (levels) memcpy(p->unpacked, p->packed, (size_t)levels);
    if (page->compressed) {
        IDA_TRY(unpack(p, p->packed + levels, packed, p->unpacked + levels, n));
    } else {
        if (packed != n) return damaged(p, "two sizes of an unpacked page");
        if (n) memcpy(p->unpacked + levels, p->packed + levels, (size_t)n);
    }
    if (p->meta.optional) runs_start(&p->levels, p->unpacked, levels, 1);
    return start_values(p, page, p->unpacked + levels, n);
}

static ida_status next_page(ida_parquet *p) {
    ida_parquet_page page;
    if (p->next_page == p->at->end) return damaged(p, "fewer values than the row group has");
    IDA_TRY(read_page(p, &page));
    if (page.type == IDA_PARQUET_INDEX) return IDA_OK;
    if (page.type == IDA_PARQUET_DICTIONARY) return take_dictionary(p, &page);
    if (page.values > p->chunk_left) return damaged(p, "more values than the row group has");
    IDA_TRY(IDA_GROW(p->unpacked, &p->unpacked_cap, page.unpacked + 1, "Parquet page"));
    IDA_TRY(page.type == IDA_PARQUET_DATA ? take_v1(p, &page) : take_v2(p, &page));
    p->chunk_left -= p->left;
    return IDA_OK;
}

/* Makes left > 0, or *end. */
static ida_status fill(ida_parquet *p, bool *end) {
    *end = false;
    while (p->left == 0) {
        if (p->chunk_left == 0) {
            *end = p->chunk == p->meta.n_chunks;
            if (*end) {
                p->place = p->data_end + TAIL_BYTES;
                return IDA_OK;
            }
            p->at = &p->meta.chunks[p->chunk++];
            p->next_page = p->at->start;
            p->chunk_left = p->at->rows;
            p->has_dictionary = false;
        }
        IDA_TRY(next_page(p));
    }
    return IDA_OK;
}

static ida_status next_value(ida_parquet *p, const char **text, int64_t *n) {
    uint32_t level = 1, i;
    *text = NULL;
    *n = 0;
    if (p->meta.optional && !runs_next(&p->levels, &level)) return damaged(p, "definition levels");
    if (level && p->indexed) {
        if (!runs_next(&p->indices, &i) || i >= p->n_words) return damaged(p, "dictionary index");
        *text = (const char *)p->dictionary + p->word[i];
        *n = little32(p->dictionary + p->word[i] - 4);
    } else if (level) {
        int64_t room = p->value_end - p->value;
        if (room < 4 || little32(p->value) > room - 4) return damaged(p, "length of a value");
        *n = little32(p->value);
        *text = (const char *)p->value + 4;
        p->value += 4 + *n;
    }
    p->left--;
    if (p->left == 0 && !p->indexed && p->value != p->value_end) return damaged(p, "bytes after the last value");
    p->row++;
    return IDA_OK;
}

ida_status ida_parquet_next(ida_parquet *p, const char **text, int64_t *n, bool *end) {
    IDA_TRY(fill(p, end));
    return *end ? IDA_OK : next_value(p, text, n);
}

/* ---------------------------------------------------------------- file */

static ida_status read_footer(ida_parquet *p, int64_t max_footer) {
    uint8_t head[4], tail[TAIL_BYTES], *text = NULL;
    IDA_FAIL_IF(fseeko(p->file, 0, SEEK_END), IDA_E_UNSUPPORTED, "%s: a Parquet file must be a plain file, not a stream",
                p->path);
    int64_t size = (int64_t)ftello(p->file);
    IDA_FAIL_IF(size < 4 + TAIL_BYTES, IDA_E_FORMAT, "%s: %lld bytes are too few for a Parquet file", p->path, (long long)size);
    IDA_TRY(read_at(p, 0, head, 4));
    IDA_TRY(read_at(p, size - TAIL_BYTES, tail, TAIL_BYTES));
    IDA_FAIL_IF(memcmp(tail + 4, "PARE", 4) == 0, IDA_E_UNSUPPORTED, "%s: the Parquet file is encrypted", p->path);
    IDA_FAIL_IF(memcmp(head, "PAR1", 4) != 0, IDA_E_FORMAT, "%s: not a Parquet file (no PAR1 at its start)", p->path);
    IDA_FAIL_IF(memcmp(tail + 4, "PAR1", 4) != 0, IDA_E_FORMAT, "%s: no PAR1 at its end: the file is cut off, fetch it again",
                p->path);
    int64_t n = little32(tail);
    IDA_FAIL_IF(n > size - 4 - TAIL_BYTES, IDA_E_FORMAT, "%s: a footer of %lld bytes in a file of %lld", p->path, (long long)n,
                (long long)size);
    IDA_FAIL_IF(n > max_footer, IDA_E_UNSUPPORTED, "%s: the footer of %lld bytes is larger than %lld", p->path, (long long)n,
                (long long)max_footer);
    p->data_end = size - TAIL_BYTES - n;
    IDA_TRY(IDA_ALLOC(text, n, "Parquet footer"));
    ida_status st = read_at(p, p->data_end, text, n);
    if (!st) st = ida_parquet_meta_read(text, n, p->data_end, p->path, p->column, &p->meta);
    ida_free(text);
    p->data_end = size - TAIL_BYTES;
    return st;
}

ida_status ida_parquet_open(FILE *file, const char *name, const ida_parquet_options *o, ida_parquet **out) {
    ida_parquet *p = NULL;
    ida_status st = IDA_CALLOC(p, 1, "Parquet reader");
    if (st) {
        fclose(file);
        return st;
    }
    p->file = file;
    p->max_page = o->max_page_bytes ? o->max_page_bytes : DEFAULT_MAX_PAGE;
    p->path = ida_strdup(name);
    p->column = ida_strdup(o->column ? o->column : IDA_TEXT_KEY);
    if (!p->path || !p->column) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", name);
    IDA_TRY_GOTO(read_footer(p, o->max_footer_bytes ? o->max_footer_bytes : DEFAULT_MAX_FOOTER));
    *out = p;
    return IDA_OK;
out:
    ida_parquet_close(p);
    return st;
}

int64_t ida_parquet_rows(const ida_parquet *p) { return p->meta.rows; }
int64_t ida_parquet_row(const ida_parquet *p) { return p->row; }
int64_t ida_parquet_consumed(const ida_parquet *p) { return p->place; }

void ida_parquet_close(ida_parquet *p) {
    if (!p) return;
    if (p->file) fclose(p->file);
    ida_parquet_meta_free(&p->meta);
    ZSTD_freeDCtx(p->zstd);
    ida_free(p->path);
    ida_free(p->column);
    ida_free(p->packed);
    ida_free(p->unpacked);
    ida_free(p->dictionary);
    ida_free(p->word);
    ida_free(p);
}
