/* rdb_text.c - plain text out of an R lazy-load database, for the demo: the Debian package r-cran-janeaustenr keeps six novels in
 * one.
 * usage: rdb_text DATA.rdb OUT.txt
 * A database is records end to end: big-endian u32 length of the unpacked bytes, then a zlib stream (or '0' and the bytes as they
 * are). A record unpacks to R's XDR serialisation; character vectors are written, one string a line, other objects are passed
 * over. Runs of blank lines become one; a line with a form feed parts the vectors. Order: as in the file. The output appears when
 * whole. The file is untrusted: every read is bounds-checked. Not a general R reader. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MAX_FILE ((size_t)1 << 30)
#define MAX_RECORD ((size_t)1 << 28)

enum { TYPE_CHARSXP = 9, TYPE_STRSXP = 16, FLAG_BYTES = 0x2000, FLAG_LATIN1 = 0x4000 };

typedef struct cursor { const uint8_t *p; size_t n; } cursor;

static bool fail(const char *path, const char *what) {
    fprintf(stderr, "rdb_text: %s: %s\n", path, what);
    return false;
}

static bool take_u32(cursor *c, uint32_t *v) {
    if (c->n < 4) return false;
    *v = (uint32_t)c->p[0] << 24 | (uint32_t)c->p[1] << 16 | (uint32_t)c->p[2] << 8 | c->p[3];
    c->p += 4;
    c->n -= 4;
    return true;
}

static bool skip(cursor *c, size_t n) {
    if (c->n < n) return false;
    c->p += n;
    c->n -= n;
    return true;
}

static uint8_t *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    if (!f) {
        fail(path, strerror(errno));
        return NULL;
    }
    long size = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    if (size < 0 || (size_t)size > MAX_FILE || fseek(f, 0, SEEK_SET)) fail(path, "not a file, or larger than 1 GiB");
    else if (!(data = malloc((size_t)size + 1))) fail(path, "out of memory");
    else if (fread(data, 1, (size_t)size, f) != (size_t)size) {
        fail(path, "cannot read");
        free(data);
        data = NULL;
    } else *n = (size_t)size;
    fclose(f);
    return data;
}

/* Unpacks the record at c and moves past it. */
static uint8_t *next_record(const char *path, cursor *c, size_t *n) {
    uint32_t size;
    if (!take_u32(c, &size) || c->n < 1) {
        fail(path, "cut off inside a record");
        return NULL;
    }
    if (size > MAX_RECORD) {
        fail(path, "a record claims more than 256 MiB: not an R database, or a damaged one");
        return NULL;
    }
    uint8_t kind = c->p[0], *out = malloc((size_t)size + 1);
    if (!out) {
        fail(path, "out of memory");
        return NULL;
    }
    *n = size;
    if (kind == '0' && c->n > size) {
        memcpy(out, c->p + 1, size);
        skip(c, (size_t)size + 1);
        return out;
    }
    z_stream z = {.next_in = (Bytef *)(uintptr_t)c->p, .avail_in = (uInt)c->n, .next_out = out, .avail_out = (uInt)size + 1};
    int code = inflateInit(&z) == Z_OK ? inflate(&z, Z_FINISH) : Z_MEM_ERROR;
    bool whole = code == Z_STREAM_END && z.total_out == size;
    skip(c, c->n - z.avail_in);
    inflateEnd(&z);
    if (whole) return out;
    fail(path, kind == '2' || kind == 'Z' ? "a record is packed with bzip2 or xz: only zlib is read" :
         "a record is damaged or cut off");
    free(out);
    return NULL;
}

/* Header of a serialisation: "X\n", version 2 or 3, two R versions, and for 3 the encoding's name. */
static bool take_header(cursor *c) {
    uint32_t version, name;
    if (c->n < 2 || memcmp(c->p, "X\n", 2) != 0) return false;
    skip(c, 2);
    if (!take_u32(c, &version) || !skip(c, 8)) return false;
    return version == 2 || (version == 3 && take_u32(c, &name) && skip(c, name));
}

static bool put_latin1(FILE *out, const uint8_t *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (s[i] >= 0x80 && fputc(0xC0 | s[i] >> 6, out) == EOF) return false;
        if (fputc(s[i] >= 0x80 ? 0x80 | (s[i] & 0x3F) : s[i], out) == EOF) return false;
    }
    return true;
}

typedef struct state { bool latin1, part, started, empty; } state; /* part: a form feed goes before the first line */

/* One string as a line, without trailing blanks; a run of empty ones gives one empty line, none at the start. */
static bool put_line(FILE *out, const uint8_t *s, size_t n, state *st) {
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t' || s[n - 1] == '\r' || s[n - 1] == '\n')) n--;
    if (n == 0) {
        st->empty = true;
        return true;
    }
    if (!st->started && st->part && fputs("\f\n", out) == EOF) return false;
    if (st->started && st->empty && fputc('\n', out) == EOF) return false;
    st->empty = false;
    st->started = true;
    if (st->latin1 ? !put_latin1(out, s, n) : fwrite(s, 1, n, out) != n) return false;
    return fputc('\n', out) != EOF;
}

/* The record's text; *found counts vectors that held some. */
static bool put_vector(const char *path, const char *to, cursor c, FILE *out, size_t *found) {
    uint32_t flags, count, length;
    state st = {.part = *found > 0};
    if (!take_header(&c) || !take_u32(&c, &flags)) return fail(path, "a record is not an R object in XDR form");
    if ((flags & 0xFF) != TYPE_STRSXP) return true;
    if (!take_u32(&c, &count) || count > c.n / 8) return fail(path, "a character vector is longer than its record");
    for (uint32_t i = 0; i < count; i++) {
        if (!take_u32(&c, &flags) || (flags & 0xFF) != TYPE_CHARSXP || !take_u32(&c, &length)) return fail(path,
            "a character vector is cut off");
        size_t n = length == UINT32_MAX ? 0 : length; /* NA is an empty line */
        const uint8_t *s = c.p;
        if (!skip(&c, n)) return fail(path, "a string is longer than its record");
        if ((flags & FLAG_BYTES) || memchr(s, 0, n)) return fail(path, "a string is not text");
        st.latin1 = flags & FLAG_LATIN1;
        if (!put_line(out, s, n, &st)) return fail(to, strerror(errno));
    }
    *found += st.started;
    return true;
}

static bool convert(const char *from, const char *to, FILE *out) {
    size_t size = 0, found = 0;
    uint8_t *data = read_file(from, &size);
    cursor c = {data, size};
    bool ok = data != NULL;
    while (ok && c.n > 0) {
        size_t n = 0;
        uint8_t *record = next_record(from, &c, &n);
        ok = record && put_vector(from, to, (cursor){record, n}, out, &found);
        free(record);
    }
    if (ok && !found) ok = fail(from, "holds no character vector");
    free(data);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: rdb_text DATA.rdb OUT.txt\n");
        return 2;
    }
    size_t n = strlen(argv[2]) + 5;
    char *temporary = malloc(n);
    if (!temporary) return !fail(argv[2], "out of memory");
    snprintf(temporary, n, "%s.tmp", argv[2]);
    FILE *out = fopen(temporary, "wb");
    bool ok = out ? convert(argv[1], argv[2], out) : fail(temporary, strerror(errno));
    if (out && fclose(out) && ok) ok = fail(argv[2], strerror(errno));
    if (ok && rename(temporary, argv[2])) ok = fail(argv[2], strerror(errno));
    if (!ok && out) remove(temporary);
    free(temporary);
    return ok ? 0 : 1;
}
