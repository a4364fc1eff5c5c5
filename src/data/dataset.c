/* dataset.c - opening a set of token shards, ours or others', and reading tokens by position. Shards stay mapped; nothing is
 * copied. Rows are in rows.c. */
#include "data/dataset.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/shard.h"
#include "data/token_file.h"

struct ida_dataset {
    ida_manifest *m;            /* of a foreign set: made up, without shard entries */
    int64_t n_files;
    ida_token_file *file;
    int64_t *first;             /* [n_files+1]: stream position of the file's first token */
    ida_token_format format;
    bool indexed;               /* documents are told by an index, not by the separator */
    uint64_t hash;
};

static ida_status add_file(ida_dataset *d, const char *path) {
    IDA_TRY(ida_token_file_open(path, &d->format, &d->file[d->n_files]));
    int64_t n = d->file[d->n_files++].n;
    IDA_FAIL_IF(!ida_add64(d->first[d->n_files - 1], n, &d->first[d->n_files]), IDA_E_FORMAT, "%s: the token counts overflow",
                path);
    return IDA_OK;
}

static ida_status allocate(ida_dataset *d, int64_t files) {
    IDA_TRY(IDA_CALLOC(d->file, files, "shards"));
    return IDA_CALLOC(d->first, files + 1, "shard offsets");
}

/* ---------------------------------------------------------------- packed sets */

static ida_status open_shard(ida_dataset *d, const char *dir, int64_t i, bool verify) {
    const ida_shard_entry *e = &d->m->shards[i];
    char *path = ida_path_join(dir, e->name);
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "%s: out of memory", dir);
    d->format = IDA_TOKENS_LLMC;
    ida_status st = add_file(d, path);
    ida_free(path);
    IDA_TRY(st);
    const ida_token_file *f = &d->file[i];
    int width = ida_shard_width(d->m->vocab);
    IDA_FAIL_IF(f->width != width, IDA_E_FORMAT, "%s: holds %d-byte tokens, the vocabulary needs %d", f->path, f->width, width);
    IDA_FAIL_IF(f->n != e->tokens, IDA_E_FORMAT, "%s: holds %lld tokens, manifest.json tells %lld: pack the data again", f->path,
                (long long)f->n, (long long)e->tokens);
    if (!verify) return IDA_OK;
    uint64_t hash;
    int64_t size;
    IDA_TRY(ida_hash_file(f->path, &hash, &size));
    IDA_FAIL_IF(hash != e->xxh3, IDA_E_FORMAT,
                "%s: checksum %016llx, manifest.json tells %016llx: the file is damaged, pack the data again", f->path,
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
    IDA_TRY(allocate(d, d->m->n_shards));
    for (int64_t i = 0; i < d->m->n_shards; i++) IDA_TRY(open_shard(d, dir, i, verify));
    d->hash = list_hash(d->m);
    return IDA_OK;
}

/* ---------------------------------------------------------------- sets made by others */

/* The separator that these files are usually made with, when it is among their first tokens; -1 = none. */
static ida_status usual_separator(const ida_dataset *d, int64_t *separator) {
    enum { LOOK = 1 << 20, CHUNK = 4096 };
    int32_t ids[CHUNK];
    int64_t usual = d->n_files && d->file[0].width == 4 ? 128000 : 50256, total = d->first[d->n_files];
    *separator = -1;
    for (int64_t pos = 0; pos < total && pos < LOOK; pos += CHUNK) {
        int64_t n = total - pos < CHUNK ? total - pos : CHUNK;
        IDA_TRY(ida_dataset_read(d, pos, n, ids));
        for (int64_t i = 0; i < n; i++)
            if (ids[i] == usual) *separator = usual;
        if (*separator >= 0) return IDA_OK;
    }
    return IDA_OK;
}

static uint64_t files_hash(const ida_dataset *d) {
    XXH3_state_t s;
    XXH3_64bits_reset(&s);
    XXH3_64bits_update(&s, &d->m->separator, sizeof d->m->separator);
    for (int64_t i = 0; i < d->n_files; i++) {
        uint64_t h = ida_token_file_hash(&d->file[i]);
        XXH3_64bits_update(&s, &h, sizeof h);
    }
    return XXH3_64bits_digest(&s);
}

static ida_status describe_foreign(ida_dataset *d, const ida_dataset_options *o) {
    const ida_data_source *source = o->source;
    int wide = 0;
    d->indexed = d->format == IDA_TOKENS_MEGATRON;
    for (int64_t i = 0; i < d->n_files; i++) {
        d->m->documents += d->file[i].n_docs;
        if (d->file[i].width > wide) wide = d->file[i].width;
    }
    d->m->tokens = d->first[d->n_files];
    d->m->vocab = o->vocab ? o->vocab : wide > 2 ? INT32_MAX : 65536;
    d->m->separator = -1;
    IDA_FAIL_IF(source && source->has_separator && (source->separator < 0 || source->separator >= d->m->vocab), IDA_E_ARG,
                "separator %lld is outside the vocabulary (0..%lld)", (long long)source->separator, (long long)d->m->vocab - 1);
    if (source && source->has_separator && !d->indexed) d->m->separator = source->separator;
    else if (!d->indexed) IDA_TRY(usual_separator(d, &d->m->separator));
    d->hash = files_hash(d);
    return IDA_OK;
}

static ida_status open_foreign(ida_dataset *d, const ida_dataset_options *o, const char *path, bool val, bool own_path) {
    char **paths = NULL;
    int64_t n = 0;
    IDA_TRY(IDA_CALLOC(d->m, 1, "data set"));
    IDA_TRY(ida_token_format_parse(o->source ? o->source->format : NULL, &d->format));
    IDA_TRY(ida_token_files_find(path, val, own_path, &paths, &n));
    ida_status st = allocate(d, n);
    if (!st && n == 0 && (own_path || !val))
        st = ida_fail(IDA_E_IO, __FILE__, __LINE__,
                      "%s: no token shards there: neither manifest.json (made by `idattn data pack`) nor *.bin files",
                      path);
    for (int64_t i = 0; i < n && !st; i++) st = add_file(d, paths[i]); /* all are what the first is */
    ida_names_free(paths, n);
    IDA_TRY(st);
    return describe_foreign(d, o);
}

/* ---------------------------------------------------------------- both */

static bool has_manifest(const char *dir) {
    char *file = ida_path_join(dir, "manifest.json");
    bool has = file && ida_exists(file);
    ida_free(file);
    return has;
}

ida_status ida_dataset_open_as(const ida_dataset_options *o, const char *split, ida_dataset **out) {
    ida_dataset *d = NULL;
    IDA_FAIL_IF(!o->path || !*o->path, IDA_E_ARG, "no data folder given");
    IDA_FAIL_IF(strcmp(split, "train") != 0 && strcmp(split, "val") != 0, IDA_E_ARG, "split \"%.40s\" is neither train nor val",
                split);
    bool val = strcmp(split, "val") == 0, own_path = val && o->source && o->source->val;
    const char *path = own_path ? o->source->val : o->path;
    IDA_TRY(IDA_CALLOC(d, 1, "data set"));
    bool foreign = (o->source && o->source->format) || !has_manifest(path);
    ida_status st = foreign ? open_foreign(d, o, path, val, own_path) : open_set(d, path, split, o->verify);
    if (st) ida_dataset_close(d);
    else *out = d;
    return st;
}

ida_status ida_dataset_open(const char *dir, const char *split, bool verify, ida_dataset **out) {
    return ida_dataset_open_as(&(ida_dataset_options){.path = dir, .verify = verify}, split, out);
}

void ida_dataset_close(ida_dataset *d) {
    if (!d) return;
    for (int64_t i = 0; i < d->n_files; i++) ida_token_file_close(&d->file[i]);
    ida_free(d->file);
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

const char *ida_dataset_format(const ida_dataset *d) { return ida_token_format_name(d->format); }

/* The file that holds stream position pos (empty files hold none). */
static int64_t find_file(const ida_dataset *d, int64_t pos) {
    int64_t lo = 0, hi = d->n_files;
    while (lo + 1 < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (d->first[mid] <= pos) lo = mid; else hi = mid;
    }
    return lo;
}

ida_status ida_dataset_read(const ida_dataset *d, int64_t pos, int64_t n, int32_t *ids) {
    int64_t tokens = d->first[d->n_files];
    IDA_FAIL_IF(pos < 0 || n < 0 || n > tokens || pos > tokens - n, IDA_E_ARG,
                "data set read of %lld tokens at %lld: it has %lld",
                (long long)n, (long long)pos, (long long)tokens);
    if (n == 0) return IDA_OK;
    for (int64_t s = find_file(d, pos); n > 0; s++) {
        int64_t at = pos - d->first[s], take = d->first[s + 1] - pos;
        if (take > n) take = n;
        IDA_TRY(ida_token_file_read(&d->file[s], at, take, d->m->vocab, ids));
        pos += take;
        ids += take;
        n -= take;
    }
    return IDA_OK;
}

bool ida_dataset_indexed(const ida_dataset *d) { return d->indexed; }

int64_t ida_dataset_next_start(const ida_dataset *d, int64_t pos) {
    int64_t tokens = d->first[d->n_files];
    if (pos >= tokens) return tokens;
    for (int64_t s = find_file(d, pos); s < d->n_files; s++) {
        const ida_token_file *f = &d->file[s];
        int64_t at = pos > d->first[s] ? pos - d->first[s] : 0, lo = 0, hi = f->n_docs;
        /* the first document that starts at `at` or later; the last starts before the file's end, or is empty */
        while (lo < hi) {
            int64_t mid = lo + (hi - lo) / 2;
            if (ida_token_file_doc(f, mid) < at) lo = mid + 1; else hi = mid;
        }
        if (lo < f->n_docs && ida_token_file_doc(f, lo) < f->n) return d->first[s] + ida_token_file_doc(f, lo);
    }
    return tokens;
}

/* Documents that the index tells; empty ones hold nothing to look at. */
static ida_status indexed_docs(const ida_dataset *d, int64_t **list, int64_t *cap, int64_t *n) {
    int64_t total = d->m->tokens;
    for (int64_t pos = ida_dataset_next_start(d, 0); pos < total; pos = ida_dataset_next_start(d, pos + 1)) {
        IDA_TRY(IDA_GROW(*list, cap, *n + 2, "document starts"));
        (*list)[(*n)++] = pos;
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
    if (d->indexed) IDA_TRY_GOTO(indexed_docs(d, &list, &cap, &n));
    for (int64_t pos = 0; pos < total && !d->indexed; pos += CHUNK) {
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
