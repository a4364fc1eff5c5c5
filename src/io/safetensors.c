/* safetensors.c - reader of untrusted safetensors files, and the values in them as float or double. The writer is in
 * safetensors_write.c.
 * Invariant: once a file is open, every tensor's bytes lie inside the map, follow each other without hole or overlap, and
 * their number is the product of the shape. Data may be unaligned and is read by memcpy. The format and this code are
 * little-endian. */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/json.h"
#include "core/mem.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor bytes are used as they lie in the file");

enum { MAX_DIMS = 8 };
#define MAX_HEADER INT64_C(100000000)

static const struct dtype_info { const char *name; ida_st_dtype dtype; int bits; } dtypes[] = {
    {"F64", IDA_ST_F64, 64},        {"F32", IDA_ST_F32, 32},        {"F16", IDA_ST_F16, 16},       {"BF16", IDA_ST_BF16, 16},
    {"I64", IDA_ST_I64, 64},        {"I32", IDA_ST_I32, 32},        {"U8", IDA_ST_U8, 8},          {"BOOL", IDA_ST_OTHER, 8},
    {"I8", IDA_ST_OTHER, 8},        {"I16", IDA_ST_OTHER, 16},      {"U16", IDA_ST_OTHER, 16},     {"U32", IDA_ST_OTHER, 32},
    {"U64", IDA_ST_OTHER, 64},      {"C64", IDA_ST_OTHER, 64},      {"F8_E4M3", IDA_ST_OTHER, 8},  {"F8_E5M2", IDA_ST_OTHER, 8},
    {"F8_E8M0", IDA_ST_OTHER, 8},   {"F8_E4M3FNUZ", IDA_ST_OTHER, 8}, {"F8_E5M2FNUZ", IDA_ST_OTHER, 8},
    {"F6_E2M3", IDA_ST_OTHER, 6},   {"F6_E3M2", IDA_ST_OTHER, 6},   {"F4", IDA_ST_OTHER, 4},
};

static const struct dtype_info *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

/* A whole number >= 0 out of array item i. */
static bool get_index(const json_t *array, size_t i, int64_t *v) {
    const json_t *x = json_array_get(array, i);
    if (!json_is_integer(x) || json_integer_value(x) < 0) return false;
    *v = json_integer_value(x);
    return true;
}

/* One header entry: type, shape and offsets that agree with each other. Its place in the file is checked by the caller. */
static ida_status parse_entry(const char *where, const char *name, const json_t *e, ida_st_tensor *t, int64_t *begin,
                              int64_t *end) {
    IDA_FAIL_IF(!json_is_object(e), IDA_E_FORMAT, "%s: the header entry of tensor \"%s\" is not an object", where, name);
    const json_t *dt = json_object_get(e, "dtype"), *shape = json_object_get(e, "shape"), *off = json_object_get(e,
                                                                                                                 "data_offsets");
    IDA_FAIL_IF(!json_is_string(dt) || !json_is_array(shape) || !json_is_array(off) || json_array_size(off) != 2, IDA_E_FORMAT,
                "%s: tensor \"%s\" needs a string dtype, an array shape and two data_offsets", where, name);
    const struct dtype_info *d = find_dtype(json_string_value(dt));
    IDA_FAIL_IF(!d, IDA_E_FORMAT, "%s: tensor \"%s\" has the unknown dtype \"%s\"", where, name, json_string_value(dt));
    IDA_FAIL_IF(json_array_size(shape) > MAX_DIMS, IDA_E_UNSUPPORTED, "%s: tensor \"%s\" has %zu dimensions, at most %d are read",
                where,
                name, json_array_size(shape), MAX_DIMS);
    t->dtype = d->dtype;
    t->ndim = (int)json_array_size(shape);
    t->numel = 1;
    for (int i = 0; i < t->ndim; i++)
        IDA_FAIL_IF(!get_index(shape, (size_t)i, &t->shape[i]) || !ida_mul64(t->numel, t->shape[i], &t->numel), IDA_E_FORMAT,
                    "%s: tensor \"%s\": dimension %d of its shape is not a number that fits", where, name, i);
    IDA_FAIL_IF(!get_index(off, 0, begin) || !get_index(off, 1, end) || *end < *begin, IDA_E_FORMAT,
                "%s: tensor \"%s\" has impossible data_offsets", where, name);
    int64_t bits;
    IDA_FAIL_IF(!ida_mul64(t->numel, d->bits, &bits) || bits % 8 != 0, IDA_E_FORMAT, "%s: tensor \"%s\": %" PRId64
                " elements of %s are not a whole number of bytes that fits", where, name, t->numel, d->name);
    t->bytes = bits / 8;
    IDA_FAIL_IF(*end - *begin != t->bytes, IDA_E_FORMAT, "%s: tensor \"%s\" takes %" PRId64
                " bytes by its data_offsets, %" PRId64 " by its shape", where, name, *end - *begin, t->bytes);
    return IDA_OK;
}

static ida_status parse_metadata(const char *where, json_t *meta, ida_st_file *f) {
    IDA_FAIL_IF(!json_is_object(meta), IDA_E_FORMAT, "%s: __metadata__ is not an object", where);
    int64_t n = (int64_t)json_object_size(meta);
    IDA_TRY(IDA_CALLOC(f->meta_keys, n, "safetensors metadata"));
    IDA_TRY(IDA_CALLOC(f->meta_values, n, "safetensors metadata"));
    const char *key;
    json_t *v;
    json_object_foreach(meta, key, v) {
        IDA_FAIL_IF(!json_is_string(v), IDA_E_FORMAT, "%s: __metadata__ \"%s\" is not a string", where, key);
        f->meta_keys[f->n_meta] = ida_strdup(key);
        f->meta_values[f->n_meta] = ida_strdup(json_string_value(v));
        f->n_meta++;
        IDA_FAIL_IF(!f->meta_keys[f->n_meta - 1] || !f->meta_values[f->n_meta - 1], IDA_E_NOMEM,
                    "out of memory for safetensors metadata");
    }
    return IDA_OK;
}

typedef struct span { int64_t begin, end; ida_st_tensor t; } span;

static int by_place(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

static int by_tensor_name(const void *a, const void *b, void *tensors) {
    const ida_st_tensor *t = tensors;
    return strcmp(t[*(const int64_t *)a].name, t[*(const int64_t *)b].name);
}

/* Tensors of the parsed header into f, in file order, with every place checked against the data section. */
static ida_status place_tensors(const char *where, json_t *header, const uint8_t *data, int64_t data_bytes, ida_st_file *f) {
    ida_status st = IDA_OK;
    span *spans = NULL;
    int64_t n = 0, at = 0;
    const char *name;
    json_t *e;
    IDA_TRY_GOTO(IDA_CALLOC(spans, (int64_t)json_object_size(header), "the safetensors header"));
    json_object_foreach(header, name, e) {
        if (strcmp(name, "__metadata__") == 0) {
            IDA_TRY_GOTO(parse_metadata(where, e, f));
            continue;
        }
        IDA_TRY_GOTO(parse_entry(where, name, e, &spans[n].t, &spans[n].begin, &spans[n].end));
        spans[n].t.name = ida_strdup(name);
        if (!spans[n].t.name) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for the safetensors header");
        n++;
    }
    if (n > 1) qsort(spans, (size_t)n, sizeof *spans, by_place);
    for (int64_t i = 0; i < n; i++) {
        if (spans[i].begin != at)
            IDA_FAIL_GOTO(IDA_E_FORMAT,
                          "%s: tensor \"%s\" begins at data byte %" PRId64 ", must follow the one before at %" PRId64, where,
                          spans[i].t.name, spans[i].begin, at);
        at = spans[i].end;
    }
    if (at != data_bytes)
        IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: the header describes %" PRId64 " bytes of data, the file has %" PRId64 "; it is %s",
                      where, at, data_bytes,
                      at > data_bytes ? "truncated" : "longer than it says");
    IDA_TRY_GOTO(IDA_CALLOC(f->tensors, n, "the safetensors header"));
    IDA_TRY_GOTO(IDA_CALLOC(f->by_name, n, "the safetensors header"));
    for (int64_t i = 0; i < n; i++) {
        f->tensors[i] = spans[i].t;
        f->tensors[i].data = data + spans[i].begin;
        f->by_name[i] = i;
        spans[i].t.name = NULL;
    }
    f->n = n;
    if (n > 1) qsort_r(f->by_name, (size_t)n, sizeof *f->by_name, by_tensor_name, f->tensors);
out:
    for (int64_t i = 0; i < n; i++) ida_free(spans[i].t.name);
    ida_free(spans);
    return st;
}

static ida_status parse(const uint8_t *data, int64_t size, const char *where, ida_st_file *f) {
    IDA_FAIL_IF(size < 8, IDA_E_FORMAT, "%s: %" PRId64 " bytes are too few for a safetensors file", where, size);
    uint64_t n;
    memcpy(&n, data, sizeof n);
    IDA_FAIL_IF(n > (uint64_t)MAX_HEADER, IDA_E_FORMAT,
                "%s: header length %" PRIu64 " is above the limit of %" PRId64 "; this is not a safetensors file", where, n,
                    MAX_HEADER);
    int64_t header = (int64_t)n;
    IDA_FAIL_IF(header > size - 8, IDA_E_FORMAT,
                "%s: the header takes %" PRId64 " bytes, the file has %" PRId64 " after its length; it is truncated",
                where, header, size - 8);
    IDA_FAIL_IF(header < 2 || data[8] != '{', IDA_E_FORMAT,
                "%s: the header does not begin with '{'; this is not a safetensors file", where);
    json_t *j = NULL;
    IDA_TRY(ida_json_parse((const char *)data + 8, (size_t)header, where, &j));
    ida_status st = place_tensors(where, j, data + 8 + header, size - 8 - header, f);
    json_decref(j);
    return st;
}

ida_status ida_st_parse(const uint8_t *data, int64_t size, const char *where, ida_st_file **out) {
    ida_st_file *f = NULL;
    IDA_TRY(IDA_CALLOC(f, 1, "a safetensors file"));
    f->path = ida_strdup(where);
    ida_status st = f->path ? parse(data, size, where, f) : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "out of memory for a path");
    if (st != IDA_OK) {
        ida_st_close(f);
        return st;
    }
    *out = f;
    return IDA_OK;
}

ida_status ida_st_open(const char *path, ida_st_file **out) {
    ida_map map;
    IDA_TRY(ida_map_open(path, &map));
    ida_st_file *f = NULL;
    ida_status st = ida_st_parse(map.data, map.size, path, &f);
    if (st != IDA_OK) {
        ida_map_close(&map);
        return st;
    }
    f->map = map;
    *out = f;
    return IDA_OK;
}

void ida_st_close(ida_st_file *f) {
    if (!f) return;
    for (int64_t i = 0; i < f->n; i++) ida_free(f->tensors[i].name);
    for (int64_t i = 0; i < f->n_meta; i++) {
        ida_free(f->meta_keys[i]);
        ida_free(f->meta_values[i]);
    }
    ida_free(f->tensors);
    ida_free(f->by_name);
    ida_free(f->meta_keys);
    ida_free(f->meta_values);
    ida_free(f->path);
    ida_map_close(&f->map);
    ida_free(f);
}

const ida_st_tensor *ida_st_find(const ida_st_file *f, const char *name) {
    int64_t lo = 0, hi = f->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        const ida_st_tensor *t = &f->tensors[f->by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) return t;
        if (c < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

const char *ida_st_meta(const ida_st_file *f, const char *key) {
    for (int64_t i = 0; i < f->n_meta; i++)
        if (strcmp(f->meta_keys[i], key) == 0) return f->meta_values[i];
    return NULL;
}

void ida_st_shape_text(int ndim, const int64_t *shape, char *text, size_t n) {
    size_t used = (size_t)snprintf(text, n, "[");
    for (int i = 0; i < ndim && used < n; i++) used += (size_t)snprintf(text + used, n - used, "%s%" PRId64, i ? "," : "",
                                                                        shape[i]);
    if (used < n) snprintf(text + used, n - used, "]");
}

ida_status ida_st_check(const ida_st_file *f, const char *name, int ndim, const int64_t *shape, const ida_st_tensor **out) {
    const ida_st_tensor *t = ida_st_find(f, name);
    IDA_FAIL_IF(!t, IDA_E_FORMAT, "%s: tensor \"%s\" is missing", f->path, name);
    bool same = t->ndim == ndim;
    for (int i = 0; same && i < ndim; i++) same = t->shape[i] == shape[i];
    if (!same) {
        char have[200], want[200];
        ida_st_shape_text(t->ndim, t->shape, have, sizeof have);
        ida_st_shape_text(ndim, shape, want, sizeof want);
        IDA_FAIL(IDA_E_FORMAT, "%s: tensor \"%s\" has shape %s, must be %s", f->path, name, have, want);
    }
    bool is_float = t->dtype == IDA_ST_F64 || t->dtype == IDA_ST_F32 || t->dtype == IDA_ST_F16 || t->dtype == IDA_ST_BF16;
    IDA_FAIL_IF(!is_float, IDA_E_UNSUPPORTED, "%s: tensor \"%s\" is not of a float type (F64, F32, F16, BF16)", f->path, name);
    *out = t;
    return IDA_OK;
}

/* IEEE half to float, exact: subnormals are scaled by a power of two, the rest is moved into place. */
static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 1023u, u;
    float f;
    if (e == 0) {
        f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    u = sign | ((e == 31 ? 255u : e + 112u) << 23) | (m << 13);
    memcpy(&f, &u, sizeof f);
    return f;
}

static float load_small(const ida_st_tensor *t, int64_t i) {
    uint16_t h;
    memcpy(&h, (const char *)t->data + i * 2, sizeof h);
    return t->dtype == IDA_ST_F16 ? half_to_float(h) : ida_bf16_to_f32(h);
}

ida_status ida_st_read_f32(const ida_st_file *f, const char *name, int ndim, const int64_t *shape, float *out) {
    const ida_st_tensor *t;
    IDA_TRY(ida_st_check(f, name, ndim, shape, &t));
    if (t->dtype == IDA_ST_F32) {
        if (t->bytes > 0) memcpy(out, t->data, (size_t)t->bytes);
    } else if (t->dtype == IDA_ST_F64) {
        for (int64_t i = 0; i < t->numel; i++) {
            double x;
            memcpy(&x, (const char *)t->data + i * 8, sizeof x);
            out[i] = (float)x;
        }
    } else {
        for (int64_t i = 0; i < t->numel; i++) out[i] = load_small(t, i);
    }
    return IDA_OK;
}

ida_status ida_st_read_f64(const ida_st_file *f, const char *name, int ndim, const int64_t *shape, double *out) {
    const ida_st_tensor *t;
    IDA_TRY(ida_st_check(f, name, ndim, shape, &t));
    if (t->dtype == IDA_ST_F64) {
        if (t->bytes > 0) memcpy(out, t->data, (size_t)t->bytes);
    } else if (t->dtype == IDA_ST_F32) {
        for (int64_t i = 0; i < t->numel; i++) {
            float x;
            memcpy(&x, (const char *)t->data + i * 4, sizeof x);
            out[i] = (double)x;
        }
    } else {
        for (int64_t i = 0; i < t->numel; i++) out[i] = (double)load_small(t, i);
    }
    return IDA_OK;
}
