/* inspect.c - ida_data_inspect: reads a whole packed set against its manifest and describes it. */
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "data/shard.h"

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

static ida_status describe(const char *dir, const char *split, json_t *o, json_t *root) {
    ida_dataset *d = NULL;
    int64_t lo, hi, separators;
    IDA_TRY(ida_dataset_open(dir, split, true, &d));
    int64_t tokens = ida_dataset_tokens(d), bytes = ida_dataset_bytes(d), docs = ida_dataset_documents(d);
    ida_status st = scan(d, &lo, &hi, &separators);
    if (!st && docs && ida_dataset_separator(d) >= 0 && separators != docs)
        st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__,
                      "%s: split \"%s\" holds %lld separators, manifest.json tells %lld documents: pack the data again", dir,
                          split,
                      (long long)separators, (long long)docs);
    if (!st) {
        json_t *s = json_pack("{s:I, s:I, s:I, s:I, s:I}", "tokens", (json_int_t)tokens, "documents", (json_int_t)docs, "bytes",
                              (json_int_t)bytes,
                              "smallest_id", (json_int_t)lo, "largest_id", (json_int_t)hi);
        if (tokens && bytes) json_object_set_new(s, "bytes_per_token", json_real((double)bytes / (double)tokens));
        if (!s || json_object_set_new(o, split, s)) st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", dir);
        json_object_set_new(root, "vocab_size", json_integer(ida_dataset_vocab(d)));
        json_object_set_new(root, "separator_id", json_integer(ida_dataset_separator(d)));
        char hex[17];
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)ida_dataset_tokenizer_hash(d));
        json_object_set_new(root, "tokenizer_hash", json_string(hex));
    }
    ida_dataset_close(d);
    return st;
}

ida_status ida_data_inspect(const char *dir, char **json) {
    IDA_NEED(dir);
    IDA_NEED(json);
    json_t *root = json_pack("{s:s}", "dir", dir), *splits = json_object(), *manifest = NULL;
    char *file = ida_path_join(dir, "manifest.json"), *text = NULL;
    ida_status st;
    if (!root || !splits || !file) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", dir);
    IDA_TRY_GOTO(describe(dir, "train", splits, root));
    IDA_TRY_GOTO(describe(dir, "val", splits, root));
    IDA_TRY_GOTO(ida_json_load(file, IDA_MANIFEST_MAX_BYTES, &manifest));
    json_t *how = json_object_get(manifest, "split");
    if (how) json_object_set(root, "split", how);
    json_object_set(root, "splits", splits);
    text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    if (!text) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", dir);
    *json = text;
    st = IDA_OK;
out:
    json_decref(root);
    json_decref(splits);
    json_decref(manifest);
    ida_free(file);
    return st;
}
