/* safetensors_write.c - the writer. Invariant: the bytes are those the reference writer makes of the same tensors and the
 * metadata in this order, and the file appears whole or not at all. */
#include <inttypes.h>
#include <string.h>

#include "core/json.h"
#include "core/mem.h"
#include "io/safetensors.h"

/* rank: place in the reference's order of types, which it writes from high to low. */
static const struct { const char *name; int64_t bytes; int rank; } kinds[] = {
    [IDA_ST_F64] = {"F64", 8, 5}, [IDA_ST_F32] = {"F32", 4, 4}, [IDA_ST_F16] = {"F16", 2, 1}, [IDA_ST_BF16] = {"BF16", 2, 2},
    [IDA_ST_I64] = {"I64", 8, 6}, [IDA_ST_I32] = {"I32", 4, 3}, [IDA_ST_U8] = {"U8", 1, 0},
};

static int in_file_order(const void *a, const void *b) {
    const ida_st_out *x = *(const ida_st_out *const *)a, *y = *(const ida_st_out *const *)b;
    if (kinds[x->dtype].rank != kinds[y->dtype].rank) return kinds[x->dtype].rank > kinds[y->dtype].rank ? -1 : 1;
    return strcmp(x->name, y->name);
}

static ida_status tensor_bytes(const char *path, const ida_st_out *t, int64_t *bytes) {
    IDA_FAIL_IF((unsigned)t->dtype >= sizeof kinds / sizeof kinds[0] || t->ndim < 0 || t->ndim > 8, IDA_E_ARG,
                "%s: tensor \"%s\" has a type or number of dimensions that is not written", path, t->name);
    int64_t n = kinds[t->dtype].bytes;
    for (int i = 0; i < t->ndim; i++)
        IDA_FAIL_IF(!ida_mul64(n, t->shape[i], &n), IDA_E_ARG, "%s: the shape of tensor \"%s\" does not fit", path, t->name);
    *bytes = n;
    return IDA_OK;
}

static ida_status add_string(ida_buf *b, const char *path, const char *s) {
    json_t *j = json_string(s);
    IDA_FAIL_IF(!j, IDA_E_ARG, "%s: a tensor name or metadata text is not UTF-8", path);
    char *quoted = ida_json_dump(j, JSON_ENCODE_ANY);
    json_decref(j);
    IDA_FAIL_IF(!quoted, IDA_E_NOMEM, "out of memory for the safetensors header");
    ida_status st = ida_buf_add(b, quoted, strlen(quoted));
    ida_free(quoted);
    return st;
}

static ida_status add_metadata(ida_buf *b, const char *path, const char *const *keys, const char *const *values, int64_t n) {
    IDA_TRY(ida_buf_addf(b, "{\"__metadata__\":{\"format\":\"pt\""));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k <= i; k++)
            IDA_FAIL_IF(strcmp(keys[i], k == i ? "format" : keys[k]) == 0, IDA_E_ARG, "%s: metadata key \"%s\" is given twice",
                        path, keys[i]);
        IDA_TRY(ida_buf_addf(b, ","));
        IDA_TRY(add_string(b, path, keys[i]));
        IDA_TRY(ida_buf_addf(b, ":"));
        IDA_TRY(add_string(b, path, values[i]));
    }
    return ida_buf_addf(b, "}");
}

/* The 8 length bytes and the JSON, padded with blanks so that the data begins at a multiple of 8. */
static ida_status make_header(ida_buf *b, const char *path, const ida_st_out *const *order, int64_t n, const char *const *keys,
                              const char *const *values, int64_t n_meta) {
    static const char zero[8];
    int64_t at = 0;
    IDA_TRY(ida_buf_add(b, zero, 8));
    IDA_TRY(add_metadata(b, path, keys, values, n_meta));
    for (int64_t i = 0; i < n; i++) {
        const ida_st_out *t = order[i];
        int64_t bytes, end;
        IDA_TRY(tensor_bytes(path, t, &bytes));
        IDA_FAIL_IF(!ida_add64(at, bytes, &end), IDA_E_ARG, "%s: the tensors do not fit in one file", path);
        IDA_FAIL_IF(strcmp(t->name, "__metadata__") == 0, IDA_E_ARG, "%s: no tensor may be named __metadata__", path);
        IDA_TRY(ida_buf_addf(b, ","));
        IDA_TRY(add_string(b, path, t->name));
        IDA_TRY(ida_buf_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", kinds[t->dtype].name));
        for (int d = 0; d < t->ndim; d++) IDA_TRY(ida_buf_addf(b, "%s%" PRId64, d ? "," : "", t->shape[d]));
        IDA_TRY(ida_buf_addf(b, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", at, end));
        at = end;
    }
    IDA_TRY(ida_buf_addf(b, "}"));
    while (b->len % 8 != 0) IDA_TRY(ida_buf_add(b, " ", 1));
    uint64_t len = (uint64_t)b->len - 8;
    memcpy(b->data, &len, sizeof len);
    return IDA_OK;
}

static ida_status order_tensors(const char *path, const ida_st_out *t, int64_t n, const ida_st_out **order) {
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes;
        IDA_TRY(tensor_bytes(path, &t[i], &bytes));
        order[i] = &t[i];
    }
    if (n > 1) qsort(order, (size_t)n, sizeof *order, in_file_order);
    return IDA_OK;
}

static int by_plain_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static ida_status refuse_duplicates(const char *path, const ida_st_out *t, int64_t n) {
    const char **names = NULL;
    ida_status st = IDA_OK;
    IDA_TRY(IDA_ALLOC(names, n, "tensor names"));
    for (int64_t i = 0; i < n; i++) names[i] = t[i].name;
    if (n > 1) qsort(names, (size_t)n, sizeof *names, by_plain_name);
    for (int64_t i = 1; i < n; i++)
        if (strcmp(names[i], names[i - 1]) == 0) IDA_FAIL_GOTO(IDA_E_ARG, "%s: tensor \"%s\" is given twice", path, names[i]);
out:
    ida_free(names);
    return st;
}

/* What lies on a device comes through `piece`. */
static ida_status put_tensor(ida_writer *w, const ida_st_out *t, int64_t bytes, char **piece) {
    if (!t->dev || ida_on_host(t->dev)) return ida_writer_put(w, t->data, (size_t)bytes);
    if (!*piece) IDA_TRY(IDA_ALLOC(*piece, IDA_ST_PIECE, "what goes from the device to a file"));
    for (int64_t at = 0; at < bytes; at += IDA_ST_PIECE) {
        const int64_t n = bytes - at < IDA_ST_PIECE ? bytes - at : IDA_ST_PIECE;
        IDA_TRY(ida_dev_download(t->dev, *piece, (const char *)t->data + at, n));
        IDA_TRY(ida_writer_put(w, *piece, (size_t)n));
    }
    return IDA_OK;
}

ida_status ida_st_write(const char *path, const ida_st_out *t, int64_t n, const char *const *meta_keys,
                        const char *const *meta_values,
                        int64_t n_meta) {
    ida_buf header = {0};
    const ida_st_out **order = NULL;
    ida_writer *w = NULL;
    char *piece = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(refuse_duplicates(path, t, n));
    IDA_TRY_GOTO(IDA_ALLOC(order, n, "the safetensors header"));
    IDA_TRY_GOTO(order_tensors(path, t, n, order));
    IDA_TRY_GOTO(make_header(&header, path, order, n, meta_keys, meta_values, n_meta));
    IDA_TRY_GOTO(ida_writer_open(path, &w));
    IDA_TRY_GOTO(ida_writer_put(w, header.data, (size_t)header.len));
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes = 0;
        IDA_TRY_GOTO(tensor_bytes(path, order[i], &bytes));
        IDA_TRY_GOTO(put_tensor(w, order[i], bytes, &piece));
    }
    st = ida_writer_commit(w);
    w = NULL;
out:
    ida_writer_abort(w);
    ida_buf_free(&header);
    ida_free(order);
    ida_free(piece);
    return st;
}
