/* dataset.c - opening a packed set and reading tokens by position. Shards stay mapped; nothing is copied. Rows are in rows.c. */
#include "data/dataset.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/shard.h"

struct ida_dataset {
    ida_manifest *m;
    char **path;        /* [n_shards] */
    ida_map *map;       /* [n_shards] */
    int64_t *first;     /* [n_shards+1]: stream position of the shard's first token */
    int width;
    uint64_t hash;
};

static ida_status open_shard(ida_dataset *d, const char *dir, int64_t i, bool verify) {
    const ida_shard_entry *e = &d->m->shards[i];
    int64_t tokens;
    d->path[i] = ida_path_join(dir, e->name);
    IDA_FAIL_IF(!d->path[i], IDA_E_NOMEM, "%s: out of memory", dir);
    IDA_TRY(ida_map_open(d->path[i], &d->map[i]));
    IDA_TRY(ida_shard_check(d->map[i].data, d->map[i].size, d->path[i], d->width, &tokens));
    IDA_FAIL_IF(tokens != e->tokens, IDA_E_FORMAT, "%s: holds %lld tokens, manifest.json tells %lld: pack the data again",
                d->path[i], (long long)tokens, (long long)e->tokens);
    d->first[i + 1] = d->first[i] + tokens;
    if (!verify) return IDA_OK;
    uint64_t hash;
    int64_t size;
    IDA_TRY(ida_hash_file(d->path[i], &hash, &size));
    IDA_FAIL_IF(hash != e->xxh3, IDA_E_FORMAT,
                "%s: checksum %016llx, manifest.json tells %016llx: the file is damaged, pack the data again", d->path[i],
                (unsigned long long)hash, (unsigned long long)e->xxh3);
    return IDA_OK;
}

static uint64_t list_hash(const ida_manifest *m) {
    XXH3_state_t s;
    XXH3_64bits_reset(&s);
    XXH3_64bits_update(&s, &m->vocab, sizeof m->vocab);
    XXH3_64bits_update(&s, &m->separator, sizeof m->separator);
    for (int64_t i = 0; i < m->n_shards; i++) {
        const ida_shard_entry *e = &m->shards[i];
        XXH3_64bits_update(&s, e->name, strlen(e->name) + 1);
        XXH3_64bits_update(&s, &e->tokens, sizeof e->tokens);
        XXH3_64bits_update(&s, &e->xxh3, sizeof e->xxh3);
    }
    return XXH3_64bits_digest(&s);
}

static ida_status open_set(ida_dataset *d, const char *dir, const char *split, bool verify) {
    char *file = ida_path_join(dir, "manifest.json");
    json_t *root = NULL;
    IDA_FAIL_IF(!file, IDA_E_NOMEM, "%s: out of memory", dir);
    ida_status st = ida_json_load(file, IDA_MANIFEST_MAX_BYTES, &root);
    if (!st) st = ida_manifest_read(root, file, split, &d->m);
    json_decref(root);
    ida_free(file);
    IDA_TRY(st);
    int64_t n = d->m->n_shards;
    IDA_TRY(IDA_CALLOC(d->path, n, "shard paths"));
    IDA_TRY(IDA_CALLOC(d->map, n, "shard maps"));
    IDA_TRY(IDA_CALLOC(d->first, n + 1, "shard offsets"));
    d->width = ida_shard_width(d->m->vocab);
    for (int64_t i = 0; i < n; i++) IDA_TRY(open_shard(d, dir, i, verify));
    d->hash = list_hash(d->m);
    return IDA_OK;
}

ida_status ida_dataset_open(const char *dir, const char *split, bool verify, ida_dataset **out) {
    ida_dataset *d = NULL;
    IDA_FAIL_IF(!dir || !*dir, IDA_E_ARG, "no data folder given");
    IDA_FAIL_IF(strcmp(split, "train") != 0 && strcmp(split, "val") != 0, IDA_E_ARG, "split \"%.40s\" is neither train nor val",
                split);
    IDA_FAIL_IF(!ida_is_dir(dir), IDA_E_IO, "%s: no such data folder: make it with `idattn data pack`", dir);
    IDA_TRY(IDA_CALLOC(d, 1, "data set"));
    ida_status st = open_set(d, dir, split, verify);
    if (st) ida_dataset_close(d);
    else *out = d;
    return st;
}

void ida_dataset_close(ida_dataset *d) {
    if (!d) return;
    for (int64_t i = 0; d->m && i < d->m->n_shards; i++) {
        if (d->map) ida_map_close(&d->map[i]);
        if (d->path) ida_free(d->path[i]);
    }
    ida_free(d->path);
    ida_free(d->map);
    ida_free(d->first);
    ida_manifest_free(d->m);
    ida_free(d);
}

int64_t ida_dataset_tokens(const ida_dataset *d) { return d->m->tokens; }
int64_t ida_dataset_bytes(const ida_dataset *d) { return d->m->bytes; }
int64_t ida_dataset_documents(const ida_dataset *d) { return d->m->documents; }
int64_t ida_dataset_vocab(const ida_dataset *d) { return d->m->vocab; }
int64_t ida_dataset_separator(const ida_dataset *d) { return d->m->separator; }
uint64_t ida_dataset_tokenizer_hash(const ida_dataset *d) { return d->m->tokenizer_hash; }
uint64_t ida_dataset_hash(const ida_dataset *d) { return d->hash; }

/* The shard that holds stream position pos (empty shards hold none). */
static int64_t find_shard(const ida_dataset *d, int64_t pos) {
    int64_t lo = 0, hi = d->m->n_shards;
    while (lo + 1 < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (d->first[mid] <= pos) lo = mid; else hi = mid;
    }
    return lo;
}

static ida_status bad_id(const ida_dataset *d, int64_t shard, int64_t at, int64_t id) {
    IDA_FAIL(IDA_E_FORMAT, "%s: token %lld is %lld, outside the vocabulary (0..%lld): pack the data again", d->path[shard],
             (long long)at, (long long)id,
             (long long)d->m->vocab - 1);
}

static ida_status read_shard(const ida_dataset *d, int64_t shard, int64_t at, int64_t n, int32_t *ids) {
    const uint8_t *p = d->map[shard].data + IDA_SHARD_HEADER_BYTES + at * d->width;
    uint32_t vocab = (uint32_t)d->m->vocab, id;
    for (int64_t i = 0; i < n; i++) {
        if (d->width == 2) {
            uint16_t v;
            memcpy(&v, p + 2 * i, sizeof v);
            id = v;
        } else {
            memcpy(&id, p + 4 * i, sizeof id);
        }
        if (id >= vocab) return bad_id(d, shard, at + i, (int64_t)id);
        ids[i] = (int32_t)id;
    }
    return IDA_OK;
}

ida_status ida_dataset_read(const ida_dataset *d, int64_t pos, int64_t n, int32_t *ids) {
    IDA_FAIL_IF(pos < 0 || n < 0 || n > d->m->tokens || pos > d->m->tokens - n, IDA_E_ARG,
                "data set read of %lld tokens at %lld: it has %lld",
                (long long)n, (long long)pos, (long long)d->m->tokens);
    if (n == 0) return IDA_OK;
    for (int64_t s = find_shard(d, pos); n > 0; s++) {
        int64_t at = pos - d->first[s], take = d->first[s + 1] - pos;
        if (take > n) take = n;
        IDA_TRY(read_shard(d, s, at, take, ids));
        pos += take;
        ids += take;
        n -= take;
    }
    return IDA_OK;
}

ida_status ida_dataset_docs(const ida_dataset *d, int64_t **starts, int64_t *n_docs) {
    enum { CHUNK = 1 << 16 };
    int64_t *list = NULL, cap = 0, n = 0, total = d->m->tokens;
    int32_t *ids = NULL;
    ida_status st;
    IDA_TRY_GOTO(IDA_ALLOC(ids, CHUNK, "token buffer"));
    IDA_TRY_GOTO(IDA_GROW(list, &cap, 1, "document starts"));
    for (int64_t pos = 0; pos < total; pos += CHUNK) {
        int64_t take = total - pos < CHUNK ? total - pos : CHUNK;
        IDA_TRY_GOTO(ida_dataset_read(d, pos, take, ids));
        for (int64_t i = 0; i < take; i++) {
            if (pos + i > 0 && ids[i] != d->m->separator) continue;
            IDA_TRY_GOTO(IDA_GROW(list, &cap, n + 2, "document starts"));
            list[n++] = pos + i;
        }
    }
    list[n] = total;
    *starts = list;
    *n_docs = n;
    list = NULL;
    st = IDA_OK;
out:
    ida_free(list);
    ida_free(ids);
    return st;
}
