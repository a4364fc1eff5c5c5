/* inspect.c - ida_data_describe: reads a whole set of shards, against its manifest where it has one, and describes it: counts,
 * the lengths of documents (without separators), and some documents decoded. Memory: 16 bytes a document. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "data/shard.h"

#define T ida_inspect_options
static const ida_field rows[] = {
    IDA_ROW_TEXT(T, "path", path, NULL, "PATH", .flags = IDA_FIELD_REQUIRED | IDA_FIELD_ARGUMENT,
                 .help = "packed set, or llm.c, nanoGPT or Megatron shards"),
    IDA_ROWS_SOURCE(T),
    IDA_ROW_INT(T, "samples", samples, 3, 0, 1000000, .help = "documents shown of each split"),
    IDA_ROW_INT(T, "sample_tokens", sample_tokens, 64, 1, 1000000, .flags = IDA_FIELD_OR_DEFAULT,
                .help = "tokens shown of each"),
};
#undef T
const ida_fields ida_inspect_fields = IDA_FIELDS("inspect", "", ida_inspect_options, rows);

typedef struct lengths { int64_t n, *of, total; } lengths;

/* Smallest and largest id and the number of separators; reading checks every id. */
static ida_status scan(const ida_dataset *d, int64_t *lo, int64_t *hi, int64_t *separators) {
    enum { CHUNK = 1 << 16 };
    int32_t *ids = NULL;
    int64_t total = ida_dataset_tokens(d);
    ida_status st = IDA_OK;
    *lo = *hi = -1;
    *separators = 0;
    IDA_TRY(IDA_ALLOC(ids, CHUNK, "token buffer"));
    for (int64_t pos = 0; pos < total && !st; pos += CHUNK) {
        int64_t n = total - pos < CHUNK ? total - pos : CHUNK;
        st = ida_dataset_read(d, pos, n, ids);
        for (int64_t i = 0; i < n && !st; i++) {
            if (*lo < 0 || ids[i] < *lo) *lo = ids[i];
            if (ids[i] > *hi) *hi = ids[i];
            *separators += ids[i] == ida_dataset_separator(d);
        }
    }
    ida_free(ids);
    return st;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Only the first document may lack its separator: sets that put it behind. */
static ida_status measure(const ida_dataset *d, const int64_t *starts, int64_t n, lengths *l) {
    int32_t first = -1;
    IDA_TRY(IDA_ALLOC(l->of, n, "document lengths"));
    if (n) IDA_TRY(ida_dataset_read(d, 0, 1, &first));
    for (int64_t i = 0; i < n; i++) {
        bool led = !ida_dataset_indexed(d) && (i > 0 || first == ida_dataset_separator(d));
        l->of[i] = starts[i + 1] - starts[i] - led;
        l->total += l->of[i];
    }
    l->n = n;
    qsort(l->of, (size_t)n, sizeof *l->of, by_size);
    return IDA_OK;
}

static json_t *statistics(const lengths *l) {
    const int64_t last = l->n - 1;
    return json_pack("{s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "min", (json_int_t)l->of[0], "mean",
                     (double)l->total / (double)l->n, "p10",
                     (json_int_t)l->of[last / 10], "p50", (json_int_t)l->of[last / 2], "p90",
                         (json_int_t)l->of[last - last / 10], "p99",
                     (json_int_t)l->of[last - last / 100], "max", (json_int_t)l->of[last]);
}

/* Documents of 0 tokens, then of [1, 2), [2, 4), [4, 8) ... */
static json_t *histogram(const lengths *l) {
    json_t *list = json_array();
    for (int64_t i = 0, from = 0; i < l->n;) {
        int64_t to = from ? 2 * from : 1, docs = 0, tokens = 0;
        for (; i < l->n && l->of[i] < to; i++, docs++) tokens += l->of[i];
        if (docs || json_array_size(list))
            json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:I}", "from", (json_int_t)from, "below", (json_int_t)to,
                                                  "documents",
                                                  (json_int_t)docs, "tokens", (json_int_t)tokens));
        from = to;
    }
    return list;
}

static ida_status sample(const ida_dataset *d, const ida_tokenizer *t, int64_t document, int64_t from, int64_t to,
                         int64_t limit, json_t *list) {
    int32_t *ids = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int64_t n = to - from < limit ? to - from : limit;
    json_t *o = NULL, *id_list = json_array();
    ida_status st;
    IDA_TRY_GOTO(IDA_ALLOC(ids, n, "sample"));
    IDA_TRY_GOTO(ida_dataset_read(d, from, n, ids));
    for (int64_t i = 0; i < n; i++) json_array_append_new(id_list, json_integer(ids[i]));
    o = json_pack("{s:I, s:I, s:b, s:O}", "document", (json_int_t)document, "tokens", (json_int_t)(to - from), "cut",
                  n < to - from, "ids", id_list);
    if (t) IDA_TRY_GOTO(ida_tokenizer_decode(t, ids, n, false, &text, &bytes));
    if (t) json_object_set_new(o, "text", ida_json_text(text, bytes)); /* cut anywhere, of any bytes */
    if (json_array_append(list, o)) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for samples");
out:
    json_decref(o);
    json_decref(id_list);
    ida_string_free(text);
    ida_free(ids);
    return st;
}

static ida_status documents(const ida_dataset *d, const ida_inspect_options *o, const ida_tokenizer *t, json_t *s) {
    int64_t *starts = NULL, n = 0;
    lengths l = {0};
    json_t *samples = json_array();
    ida_status st;
    IDA_TRY_GOTO(ida_dataset_docs(d, &starts, &n));
    IDA_TRY_GOTO(measure(d, starts, n, &l));
    json_object_set_new(s, "documents", json_integer(n));
    if (n) json_object_set_new(s, "document_tokens", statistics(&l));
    if (n) json_object_set_new(s, "histogram", histogram(&l));
    int64_t want = o->samples < n ? o->samples : n;
    for (int64_t i = 0; i < want; i++) {
        int64_t k = (int64_t)((double)i / (double)want * (double)n);
        IDA_TRY_GOTO(sample(d, t, k, starts[k], starts[k + 1], o->sample_tokens, samples));
    }
    if (want) json_object_set(s, "samples", samples);
out:
    json_decref(samples);
    ida_free(starts);
    ida_free(l.of);
    return st;
}

static ida_status describe(const ida_inspect_options *o, const ida_tokenizer *t, const char *split, json_t *splits,
                           json_t *root) {
    const ida_dataset_options from = {.path = o->path, .source = &o->source, .vocab = t ? ida_tokenizer_vocab_size(t) : 0,
                                      .verify = true};
    ida_dataset *d = NULL;
    json_t *s = NULL;
    int64_t lo, hi, separators;
    char hex[17];
    ida_status st;
    IDA_TRY(ida_dataset_open_as(&from, split, &d));
    int64_t tokens = ida_dataset_tokens(d), bytes = ida_dataset_bytes(d), docs = ida_dataset_documents(d);
    IDA_TRY_GOTO(scan(d, &lo, &hi, &separators));
    if (docs && ida_dataset_separator(d) >= 0 && separators != docs)
        IDA_FAIL_GOTO(IDA_E_FORMAT,
                      "%s: split \"%s\" holds %lld separators, manifest.json tells %lld documents: pack the data again", o->path,
                      split, (long long)separators, (long long)docs);
    s = json_pack("{s:I, s:I, s:I, s:I}", "tokens", (json_int_t)tokens, "bytes", (json_int_t)bytes, "smallest_id",
                  (json_int_t)lo, "largest_id",
                  (json_int_t)hi);
    if (!s) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", o->path);
    if (tokens && bytes) json_object_set_new(s, "bytes_per_token", json_real((double)bytes / (double)tokens));
    IDA_TRY_GOTO(documents(d, o, t, s));
    json_object_set(splits, split, s);
    if (strcmp(split, "train") == 0) {
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)ida_dataset_tokenizer_hash(d));
        json_object_set_new(root, "format", json_string(ida_dataset_format(d)));
        json_object_set_new(root, "vocab_size", json_integer(ida_dataset_vocab(d)));
        json_object_set_new(root, "separator_id", json_integer(ida_dataset_separator(d)));
        if (ida_dataset_tokenizer_hash(d)) json_object_set_new(root, "tokenizer_hash", json_string(hex));
    }
out:
    json_decref(s);
    ida_dataset_close(d);
    return st;
}

/* What only the manifest knows. */
static ida_status add_manifest(const char *dir, json_t *root) {
    static const char *const keys[] = {"split", "duplicates", "bad_rows", "bad_row_list"};
    char *file = ida_path_join(dir, "manifest.json");
    json_t *manifest = NULL;
    IDA_FAIL_IF(!file, IDA_E_NOMEM, "%s: out of memory", dir);
    ida_status st = ida_exists(file) ? ida_json_load(file, IDA_MANIFEST_MAX_BYTES, &manifest) : IDA_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(manifest, keys[i])) json_object_set(root, keys[i], json_object_get(manifest, keys[i]));
    json_decref(manifest);
    ida_free(file);
    return st;
}

/* *t: the tokenizer of the set itself, NULL when there is none. */
static ida_status own_tokenizer(const char *dir, ida_tokenizer **t) {
    char *file = ida_path_join(dir, "tokenizer.json");
    IDA_FAIL_IF(!file, IDA_E_NOMEM, "%s: out of memory", dir);
    ida_status st = ida_exists(file) ? ida_tokenizer_load(file, t) : IDA_OK;
    ida_free(file);
    return st;
}

ida_status ida_data_describe(const ida_inspect_options *o, char **json) {
    IDA_NEED(o);
    IDA_NEED(json);
    IDA_NEED(o->path);
    IDA_TRY(ida_fields_check(&ida_inspect_fields, o));
    ida_inspect_options filled = *o;
    ida_fields_resolve(&ida_inspect_fields, &filled);
    json_t *root = json_pack("{s:o}", "dir", ida_json_string(o->path)), *splits = json_object();
    ida_tokenizer *own = NULL;
    char *text = NULL;
    ida_status st;
    if (!root || !splits) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", o->path);
    if (!o->tokenizer && o->samples) IDA_TRY_GOTO(own_tokenizer(o->path, &own));
    const ida_tokenizer *t = o->tokenizer ? o->tokenizer : own;
    IDA_TRY_GOTO(describe(&filled, t, "train", splits, root));
    IDA_TRY_GOTO(describe(&filled, t, "val", splits, root));
    IDA_TRY_GOTO(add_manifest(o->path, root));
    json_object_set(root, "splits", splits);
    text = ida_json_dump(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    if (!text) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", o->path);
    *json = text;
out:
    json_decref(root);
    json_decref(splits);
    ida_tokenizer_free(own);
    return st;
}

ida_status ida_data_inspect(const char *dir, char **json) {
    IDA_NEED(dir);
    return ida_data_describe(&(ida_inspect_options){.path = dir}, json);
}
