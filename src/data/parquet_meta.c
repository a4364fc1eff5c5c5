/* parquet_meta.c - see parquet_meta.h. Unknown fields are skipped, as the format asks; what is needed must be there and agree. */
#include "data/parquet_meta.h"

#include <string.h>

#include "core/mem.h"
#include "data/thrift.h"

enum { REQUIRED = 0, OPTIONAL = 1, REPEATED = 2, BYTE_ARRAY = 6, CONVERTED_UTF8 = 0, CONVERTED_ENUM = 4, CONVERTED_JSON = 19 };

typedef struct footer {
    ida_thrift t;
    const char *where, *column;
    int64_t data_end;
    bool has_schema, has_groups, has_rows;
    int64_t chunks_cap;
    int64_t n_leaves, leaf;      /* leaf: the column's number among the leaves, -1 = not found */
    ida_parquet_meta *m;
} footer;

typedef struct element { int64_t type, repetition, children, converted; const uint8_t *name; int64_t name_n; } element;

static element read_element(ida_thrift *t) {
    element e = {.type = -1, .repetition = REQUIRED, .converted = -1};
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 1) e.type = ida_thrift_int(t, type);
        else if (id == 3) e.repetition = ida_thrift_int(t, type);
        else if (id == 4) e.name_n = ida_thrift_binary(t, type, &e.name);
        else if (id == 5) e.children = ida_thrift_int(t, type);
        else if (id == 6) e.converted = ida_thrift_int(t, type);
        else ida_thrift_skip(t, type);
    }
    return e;
}

static ida_status damaged(const footer *f, const char *what) {
    IDA_FAIL(IDA_E_FORMAT, "%s: damaged Parquet footer: %s: fetch the file again", f->where, what);
}

static ida_status take_column(footer *f, const element *e) {
    IDA_FAIL_IF(f->leaf >= 0, IDA_E_FORMAT, "%s: two columns are named \"%.80s\"", f->where, f->column);
    IDA_FAIL_IF(e->children > 0, IDA_E_UNSUPPORTED,
                "%s: column \"%.80s\" is nested: only flat text columns are read, choose another", f->where, f->column);
    IDA_FAIL_IF(e->repetition == REPEATED, IDA_E_UNSUPPORTED,
                "%s: column \"%.80s\" is repeated: only flat text columns are read, choose another", f->where, f->column);
    bool text = e->type == BYTE_ARRAY && (e->converted == -1 || e->converted == CONVERTED_UTF8 || e->converted == CONVERTED_ENUM
                                          || e->converted == CONVERTED_JSON);
    IDA_FAIL_IF(!text, IDA_E_UNSUPPORTED, "%s: column \"%.80s\" does not hold text (physical type %lld): choose another",
                f->where,
                f->column, (long long)e->type);
    IDA_FAIL_IF(e->repetition != REQUIRED && e->repetition != OPTIONAL, IDA_E_FORMAT, "%s: column \"%.80s\": repetition %lld",
                f->where, f->column, (long long)e->repetition);
    f->m->optional = e->repetition == OPTIONAL;
    f->leaf = f->n_leaves;
    return IDA_OK;
}

/* The schema is a tree in pre-order. Only children of the root are candidates; leaves are counted, as chunks come in their
 * order. */
static ida_status read_schema(footer *f, int type) {
    enum { MAX_DEPTH = 64 };
    int64_t left[MAX_DEPTH], n = ida_thrift_list(&f->t, type, IDA_THRIFT_STRUCT);
    int depth = 0;
    if (f->has_schema || n < 1) return damaged(f, "schema");
    f->has_schema = true;
    for (int64_t i = 0; i < n; i++) {
        element e = read_element(&f->t);
        if (f->t.bad || e.children < 0 || e.children > n) return damaged(f, "schema element");
        if (i == 0) {
            left[0] = e.children;
            continue;
        }
        while (depth > 0 && left[depth] == 0) depth--;
        if (left[depth] == 0) return damaged(f, "more schema elements than the tree has");
        left[depth]--;
        bool named = e.name_n == (int64_t)strlen(f->column) && memcmp(e.name, f->column, (size_t)e.name_n) == 0;
        if (depth == 0 && named) IDA_TRY(take_column(f, &e));
        if (e.children == 0) {
            f->n_leaves++;
        } else {
            if (++depth == MAX_DEPTH) return damaged(f, "schema nested too deep");
            left[depth] = e.children;
        }
    }
    for (; depth >= 0; depth--)
        if (left[depth]) return damaged(f, "fewer schema elements than the tree has");
    IDA_FAIL_IF(f->leaf < 0, IDA_E_ARG, "%s: no column \"%.80s\": name the one that holds the text", f->where, f->column);
    return IDA_OK;
}

typedef struct chunk_meta { int64_t type, codec, values, packed, data, dictionary; bool own_path; } chunk_meta;

static chunk_meta read_chunk_meta(footer *f) {
    ida_thrift *t = &f->t;
    chunk_meta c = {.type = -1, .codec = -1, .values = -1, .packed = -1, .data = -1, .dictionary = -1};
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 1) c.type = ida_thrift_int(t, type);
        else if (id == 3) {
            int64_t parts = ida_thrift_list(t, type, IDA_THRIFT_BINARY);
            for (int64_t i = 0; i < parts && !t->bad; i++) {
                const uint8_t *s;
                int64_t n = ida_thrift_binary(t, IDA_THRIFT_BINARY, &s);
                c.own_path = parts == 1 && !t->bad && n == (int64_t)strlen(f->column) && memcmp(s, f->column, (size_t)n) == 0;
            }
        } else if (id == 4) c.codec = ida_thrift_int(t, type);
        else if (id == 5) c.values = ida_thrift_int(t, type);
        else if (id == 7) c.packed = ida_thrift_int(t, type);
        else if (id == 9) c.data = ida_thrift_int(t, type);
        else if (id == 11) c.dictionary = ida_thrift_int(t, type);
        else ida_thrift_skip(t, type);
    }
    return c;
}

static ida_status check_codec(const footer *f, int64_t codec) {
    static const char *const names[] = {"none", "snappy", "gzip", "LZO", "brotli", "LZ4", "zstd", "LZ4_RAW"};
    if (codec == IDA_PARQUET_NONE || codec == IDA_PARQUET_SNAPPY || codec == IDA_PARQUET_GZIP || codec == IDA_PARQUET_ZSTD)
        return IDA_OK;
    bool known = codec >= 0 && codec < (int64_t)(sizeof names / sizeof *names);
    IDA_FAIL(known ? IDA_E_UNSUPPORTED : IDA_E_FORMAT,
             "%s: codec %s is not read: write the file with snappy, zstd, gzip or no compression", f->where,
             known ? names[codec] : "unknown");
}

/* One ColumnChunk; into *c when it is the column that is wanted. */
static ida_status read_chunk(footer *f, bool wanted, ida_parquet_chunk *c, int64_t *values) {
    ida_thrift *t = &f->t;
    chunk_meta meta = {0};
    bool has_meta = false, elsewhere = false, encrypted = false;
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 3 && wanted && type == IDA_THRIFT_STRUCT) {
            meta = read_chunk_meta(f);
            has_meta = true;
            continue;
        }
        elsewhere |= id == 1;
        encrypted |= id == 8 || id == 9;
        ida_thrift_skip(t, type);
    }
    if (t->bad) return damaged(f, "column chunk");
    if (!wanted) return IDA_OK;
    IDA_FAIL_IF(encrypted, IDA_E_UNSUPPORTED, "%s: column \"%.80s\" is encrypted", f->where, f->column);
    IDA_FAIL_IF(elsewhere, IDA_E_UNSUPPORTED, "%s: column \"%.80s\" is in another file", f->where, f->column);
    if (!has_meta || meta.type != BYTE_ARRAY || !meta.own_path) return damaged(f, "the column's description");
    IDA_TRY(check_codec(f, meta.codec));
    c->codec = (int)meta.codec;
    c->start = meta.dictionary > 0 && meta.dictionary < meta.data ? meta.dictionary : meta.data;
    *values = meta.values;
    bool inside = c->start >= 4 && meta.packed >= 0 && ida_add64(c->start, meta.packed, &c->end) && c->end <= f->data_end;
    return inside || meta.values == 0 ? IDA_OK : damaged(f, "the column's pages lie outside the file");
}

static ida_status read_group(footer *f) {
    ida_thrift *t = &f->t;
    ida_parquet_chunk c = {.rows = -1};
    int64_t values = -1;
    bool has_columns = false;
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 1) {
            int64_t n = ida_thrift_list(t, type, IDA_THRIFT_STRUCT);
            if (t->bad || has_columns || n != f->n_leaves) return damaged(f, "number of columns in a row group");
            has_columns = true;
            for (int64_t i = 0; i < n; i++) IDA_TRY(read_chunk(f, i == f->leaf, &c, &values));
        } else if (id == 3) c.rows = ida_thrift_int(t, type);
        else ida_thrift_skip(t, type);
    }
    if (t->bad || !has_columns || c.rows < 0 || values != c.rows) return damaged(f, "rows of a row group");
    if (c.rows == 0) return IDA_OK;
    IDA_TRY(IDA_GROW(f->m->chunks, &f->chunks_cap, f->m->n_chunks + 1, "row groups"));
    f->m->chunks[f->m->n_chunks++] = c;
    return IDA_OK;
}

static ida_status read_groups(footer *f, int type) {
    int64_t n = ida_thrift_list(&f->t, type, IDA_THRIFT_STRUCT);
    if (f->t.bad || !f->has_schema || f->has_groups) return damaged(f, "row groups");
    f->has_groups = true;
    for (int64_t i = 0; i < n; i++) IDA_TRY(read_group(f));
    return IDA_OK;
}

static ida_status read_footer(footer *f) {
    ida_thrift *t = &f->t;
    int64_t sum = 0;
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 2) IDA_TRY(read_schema(f, type));
        else if (id == 4) IDA_TRY(read_groups(f, type));
        else if (id == 3) {
            f->m->rows = ida_thrift_int(t, type);
            f->has_rows = true;
        } else ida_thrift_skip(t, type);
    }
    if (t->bad) return damaged(f, "it ends too early or holds what it must not");
    if (!f->has_schema || !f->has_rows || !f->has_groups) return damaged(f, "a part is missing");
    for (int64_t i = 0; i < f->m->n_chunks; i++)
        if (!ida_add64(sum, f->m->chunks[i].rows, &sum)) return damaged(f, "row counts");
    return sum == f->m->rows ? IDA_OK : damaged(f, "the row groups do not add up to its rows");
}

ida_status ida_parquet_meta_read(const uint8_t *p, int64_t n, int64_t data_end, const char *where, const char *column,
                                 ida_parquet_meta *m) {
    *m = (ida_parquet_meta){0};
    footer f = {.t = {p, p + n, false}, .where = where, .column = column, .data_end = data_end, .leaf = -1, .m = m};
    ida_status st = read_footer(&f);
    if (st) ida_parquet_meta_free(m);
    return st;
}

void ida_parquet_meta_free(ida_parquet_meta *m) {
    ida_free(m->chunks);
    *m = (ida_parquet_meta){0};
}

static void read_v1(ida_thrift *t, ida_parquet_page *page) {
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 1) page->values = ida_thrift_int(t, type);
        else if (id == 2) page->encoding = ida_thrift_int(t, type);
        else if (id == 3) page->level_encoding = ida_thrift_int(t, type);
        else ida_thrift_skip(t, type);
    }
}

static void read_dictionary(ida_thrift *t, ida_parquet_page *page) {
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 1) page->values = ida_thrift_int(t, type);
        else if (id == 2) page->encoding = ida_thrift_int(t, type);
        else ida_thrift_skip(t, type);
    }
}

static void read_v2(ida_thrift *t, ida_parquet_page *page) {
    int16_t id = 0;
    int type;
    while (ida_thrift_field(t, &id, &type)) {
        if (id == 1) page->values = ida_thrift_int(t, type);
        else if (id == 4) page->encoding = ida_thrift_int(t, type);
        else if (id == 5) page->level_bytes = ida_thrift_int(t, type);
        else if (id == 6) page->repeat_bytes = ida_thrift_int(t, type);
        else if (id == 7) page->compressed = ida_thrift_bool(t, type);
        else ida_thrift_skip(t, type);
    }
}

bool ida_parquet_page_read(const uint8_t *p, int64_t n, ida_parquet_page *page) {
    ida_thrift t = {p, p + n, false};
    *page = (ida_parquet_page){.type = -1, .packed = -1, .unpacked = -1, .values = -1, .encoding = -1, .level_encoding = -1,
                               .compressed = true};
    int16_t id = 0;
    int type, body = 0;
    while (ida_thrift_field(&t, &id, &type)) {
        bool inner = type == IDA_THRIFT_STRUCT;
        if (id == 1) page->type = ida_thrift_int(&t, type);
        else if (id == 2) page->unpacked = ida_thrift_int(&t, type);
        else if (id == 3) page->packed = ida_thrift_int(&t, type);
        else if (id == 4) {
            page->crc = (uint32_t)ida_thrift_int(&t, type);
            page->has_crc = true;
        } else if (id == 5 && inner) body = id, read_v1(&t, page);
        else if (id == 7 && inner) body = id, read_dictionary(&t, page);
        else if (id == 8 && inner) body = id, read_v2(&t, page);
        else ida_thrift_skip(&t, type);
    }
    page->header_bytes = t.p - p;
    static const int want[4] = {5, 0, 7, 8};
    bool typed = page->type == IDA_PARQUET_INDEX || (page->type >= 0 && page->type <= 3 && body == want[page->type]);
    bool sized = page->packed >= 0 && page->packed <= INT32_MAX && page->unpacked >= 0 && page->unpacked <= INT32_MAX;
    return !t.bad && typed && sized && (page->type == IDA_PARQUET_INDEX || (page->values >= 0 && page->values <= INT32_MAX));
}
