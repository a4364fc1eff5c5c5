/* token_file.c - see token_file.h. Megatron's index: "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 sequences, u64 documents + 1,
 * i32 lengths[], i64 byte offsets[], i64 first sequences of documents[], perhaps more. */
#include "data/token_file.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"
#include "data/shard.h"

enum { MEGATRON_HEADER = 34 };
const char *const ida_token_format_names[] = {[IDA_TOKENS_UNKNOWN] = "unknown",
                                              [IDA_TOKENS_LLMC] = "llmc",
                                              [IDA_TOKENS_NANOGPT] = "nanogpt",
                                              [IDA_TOKENS_MEGATRON] = "megatron",
                                              NULL};

ida_status ida_token_format_parse(const char *name, ida_token_format *f) {
    int i = name ? ida_names_find(ida_token_format_names, name) : IDA_TOKENS_UNKNOWN;
    *f = i > 0 ? (ida_token_format)i : IDA_TOKENS_UNKNOWN;
    if (!name || i > 0) return IDA_OK;
    char list[80];
    ida_names_join(ida_token_format_names, IDA_TOKENS_LLMC, NULL, list, sizeof list);
    IDA_FAIL(IDA_E_ARG, "token format \"%.40s\" is not one of %s", name, list);
}

const char *ida_token_format_name(ida_token_format f) { return ida_token_format_names[f]; }

static int64_t load64(const uint8_t *p) {
    int64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static bool ends_with(const char *s, const char *tail) { return ida_ends_with(s, strlen(s), tail); }

/* ---------------------------------------------------------------- opening */

static ida_status open_llmc(ida_token_file *t) {
    int32_t magic = 0;
    if (t->map.size >= IDA_SHARD_HEADER_BYTES) memcpy(&magic, t->map.data, sizeof magic);
    t->width = magic == IDA_SHARD_MAGIC_32 ? 4 : 2;
    IDA_TRY(ida_shard_check(t->map.data, t->map.size, t->path, t->width, &t->n));
    t->tokens = t->map.data + IDA_SHARD_HEADER_BYTES;
    return IDA_OK;
}

static ida_status open_nanogpt(ida_token_file *t) {
    IDA_FAIL_IF(t->map.size % 2, IDA_E_FORMAT, "%s: %lld bytes are not whole 16-bit tokens", t->path, (long long)t->map.size);
    t->width = 2;
    t->n = t->map.size / 2;
    t->tokens = t->map.data;
    return IDA_OK;
}

static ida_status damaged(const ida_token_file *t, const char *what) {
    IDA_FAIL(IDA_E_FORMAT, "%s: its Megatron index (.idx) does not fit: %s", t->path, what);
}

/* Sequences must follow each other without gaps, documents must be runs of them, and all of it must be the .bin file. */
static ida_status check_index(ida_token_file *t, const uint8_t *lengths) {
    int64_t at = 0, last = 0;
    for (int64_t i = 0; i < t->n_seqs; i++) {
        int32_t n;
        memcpy(&n, lengths + 4 * i, sizeof n);
        if (n < 0 || load64(t->seq_at + 8 * i) != at) return damaged(t, "sequences are not one after the other");
        at += (int64_t)n * t->width; /* at most 2^31 * 8 each, and fewer than 2^60 / 12 of them fit a file */
        if (at > t->map.size) return damaged(t, "sequences reach beyond the tokens");
    }
    if (at != t->map.size) return damaged(t, "there are more tokens than sequences");
    for (int64_t k = 0; k <= t->n_docs; k++) {
        int64_t first = load64(t->doc_first + 8 * k);
        if (first < last || first > t->n_seqs || (k == 0 && first)) return damaged(t, "documents are not runs of sequences");
        last = first;
    }
    return last == t->n_seqs ? IDA_OK : damaged(t, "sequences behind the last document");
}

static ida_status open_megatron(ida_token_file *t) {
    static const int width[9] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    const uint8_t *p = t->index.data;
    int64_t need, docs;
    if (t->index.size < MEGATRON_HEADER || memcmp(p, "MMIDIDX\0\0", 9) != 0) return damaged(t, "it does not start with MMIDIDX");
    IDA_FAIL_IF(load64(p + 9) != 1, IDA_E_UNSUPPORTED, "%s: Megatron index version %lld, 1 is read", t->path,
                (long long)load64(p + 9));
    IDA_FAIL_IF(p[17] > 8 || !width[p[17]], IDA_E_UNSUPPORTED, "%s: Megatron dtype %d does not hold ids", t->path, p[17]);
    t->width = width[p[17]];
    t->is_signed = p[17] >= 2 && p[17] <= 5;
    t->n_seqs = load64(p + 18);
    docs = load64(p + 26);
    if (t->n_seqs < 0 || t->n_seqs > t->index.size / 12 || docs < 1 || docs > t->index.size / 8) return damaged(t, "its counts");
    need = MEGATRON_HEADER + 12 * t->n_seqs + 8 * docs;
    if (need > t->index.size) return damaged(t, "it is cut off");
    t->n_docs = docs - 1;
    t->seq_at = p + MEGATRON_HEADER + 4 * t->n_seqs;
    t->doc_first = t->seq_at + 8 * t->n_seqs;
    t->n = t->map.size / t->width;
    t->tokens = t->map.data;
    return check_index(t, p + MEGATRON_HEADER);
}

static char *index_path(const char *bin) {
    return ida_asprintf("%.*s.idx", (int)(strlen(bin) - (ends_with(bin, ".bin") ? 4 : 0)), bin);
}

/* UNKNOWN stays UNKNOWN when nothing tells. */
static ida_token_format look(const ida_token_file *t, const char *index) {
    int32_t magic = 0;
    if (ida_exists(index)) return IDA_TOKENS_MEGATRON;
    if (t->map.size >= 4) memcpy(&magic, t->map.data, sizeof magic);
    return magic == IDA_SHARD_MAGIC_16 || magic == IDA_SHARD_MAGIC_32 ? IDA_TOKENS_LLMC : IDA_TOKENS_UNKNOWN;
}

static ida_status open_as(ida_token_file *t, ida_token_format *f) {
    char *index = index_path(t->path);
    ida_status st = IDA_OK;
    IDA_FAIL_IF(!index, IDA_E_NOMEM, "%s: out of memory", t->path);
    if (*f == IDA_TOKENS_UNKNOWN) *f = look(t, index);
    if (*f == IDA_TOKENS_MEGATRON) st = ida_map_open(index, &t->index);
    ida_free(index);
    IDA_TRY(st);
    if (*f == IDA_TOKENS_LLMC) return open_llmc(t);
    if (*f == IDA_TOKENS_NANOGPT) return open_nanogpt(t);
    if (*f == IDA_TOKENS_MEGATRON) return open_megatron(t);
    IDA_FAIL(IDA_E_FORMAT,
             "%s: neither an llm.c shard nor beside a Megatron .idx; headerless 16-bit ids are read with format nanogpt",
             t->path);
}

ida_status ida_token_file_open(const char *path, ida_token_format *f, ida_token_file *t) {
    *t = (ida_token_file){.path = ida_strdup(path)};
    IDA_FAIL_IF(!t->path, IDA_E_NOMEM, "%s: out of memory", path);
    ida_status st = ida_map_open(path, &t->map);
    if (!st) st = open_as(t, f);
    if (st) ida_token_file_close(t);
    return st;
}

void ida_token_file_close(ida_token_file *t) {
    ida_map_close(&t->map);
    ida_map_close(&t->index);
    ida_free(t->path);
    *t = (ida_token_file){0};
}

/* ---------------------------------------------------------------- reading */

/* An id of 8 bytes, or a negative one, is beyond any vocabulary when it does not fit. */
static uint64_t token_at(const ida_token_file *t, int64_t i) {
    const uint8_t *p = t->tokens + i * t->width;
    uint16_t a;
    uint32_t b;
    switch (t->width) {
    case 1: return t->is_signed && *p > INT8_MAX ? UINT64_MAX : *p;
    case 2: memcpy(&a, p, sizeof a); return t->is_signed && a > INT16_MAX ? UINT64_MAX : a;
    case 4: memcpy(&b, p, sizeof b); return t->is_signed && b > INT32_MAX ? UINT64_MAX : b;
    default: return (uint64_t)load64(p);
    }
}

ida_status ida_token_file_read(const ida_token_file *t, int64_t at, int64_t n, int64_t vocab, int32_t *ids) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t id = token_at(t, at + i);
        IDA_FAIL_IF(id >= (uint64_t)vocab, IDA_E_FORMAT,
                    "%s: token %lld is %lld, outside the vocabulary (0..%lld): pack the data again",
                    t->path, (long long)(at + i), (long long)id, (long long)vocab - 1);
        ids[i] = (int32_t)id;
    }
    return IDA_OK;
}

int64_t ida_token_file_doc(const ida_token_file *t, int64_t k) {
    int64_t seq = load64(t->doc_first + 8 * k);
    return seq == t->n_seqs ? t->n : load64(t->seq_at + 8 * seq) / t->width;
}

uint64_t ida_token_file_hash(const ida_token_file *t) {
    const int64_t sizes[2] = {t->map.size, t->index.size};
    XXH3_state_t s;
    XXH3_64bits_reset(&s);
    XXH3_64bits_update(&s, sizes, sizeof sizes);
    for (int i = 0; i < 2; i++) {
        const ida_map *m = i ? &t->index : &t->map;
        int64_t n = m->size < 4096 ? m->size : 4096;
        if (!n) continue;
        XXH3_64bits_update(&s, m->data, (size_t)n);
        XXH3_64bits_update(&s, m->data + m->size - n, (size_t)n);
    }
    return XXH3_64bits_digest(&s);
}

/* ---------------------------------------------------------------- finding */

enum { WORD_NONE, WORD_VAL, WORD_TEST };

static int split_of(const char *path) {
    static const struct { const char *word; int split; } words[] = {
        {"val", WORD_VAL}, {"valid", WORD_VAL}, {"validation", WORD_VAL}, {"test", WORD_TEST}};
    const char *s = strrchr(path, '/');
    for (s = s ? s + 1 : path; *s;) {
        size_t n = 0;
        while (isalpha((unsigned char)s[n])) n++;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (n == strlen(words[i].word) && strncmp(s, words[i].word, n) == 0) return words[i].split;
        s += n ? n : 1;
    }
    return WORD_NONE;
}

static ida_status keep(char ***list, int64_t *cap, int64_t *n, const char *path) {
    IDA_TRY(IDA_GROW(*list, cap, *n + 1, "shard paths"));
    (*list)[*n] = ida_strdup(path);
    IDA_FAIL_IF(!(*list)[*n], IDA_E_NOMEM, "%s: out of memory", path);
    ++*n;
    return IDA_OK;
}

static ida_status list_folder(const char *dir, char ***list, int64_t *cap, int64_t *n) {
    char **found = NULL;
    int64_t m = 0;
    ida_status st = ida_list_dir(dir, &found, &m);
    for (int64_t i = 0; i < m && !st; i++) {
        if (!ends_with(found[i], ".bin")) continue;
        char *path = ida_path_join(dir, found[i]);
        st = path ? keep(list, cap, n, path) : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", dir);
        ida_free(path);
    }
    ida_names_free(found, m);
    return st;
}

static ida_status list_pattern(const char *pattern, char ***list, int64_t *cap, int64_t *n) {
    glob_t g;
    int code = glob(pattern, 0, NULL, &g);
    IDA_FAIL_IF(code == GLOB_NOSPACE, IDA_E_NOMEM, "%s: out of memory", pattern);
    IDA_FAIL_IF(code, IDA_E_IO, "%s: no such file, folder or pattern of token shards", pattern);
    ida_status st = IDA_OK;
    for (size_t i = 0; i < g.gl_pathc && !st; i++)
        if (ends_with(g.gl_pathv[i], ".bin")) st = keep(list, cap, n, g.gl_pathv[i]);
    globfree(&g);
    return st;
}

/* The one file that `path` names, with .bin in place of .idx or behind a prefix; NULL when it names none. */
static char *single_file(const char *path) {
    char *bin = ida_asprintf("%.*s.bin", (int)(strlen(path) - (ends_with(path, ".idx") ? 4 : 0)), path);
    bool prefix = bin && ida_exists(bin) && (ends_with(path, ".idx") || !ida_exists(path));
    if (!prefix) ida_free(bin);
    if (prefix) return bin;
    return ida_exists(path) && !ida_is_dir(path) ? ida_strdup(path) : NULL;
}

/* Keeps the files of one split, in place. */
static int64_t choose(char **list, int64_t n, bool val, bool all) {
    int64_t kept = 0, named = 0;
    for (int64_t i = 0; i < n; i++) named += split_of(list[i]) == WORD_VAL;
    for (int64_t i = 0; i < n; i++) {
        int word = split_of(list[i]);
        bool wanted = val ? word == WORD_VAL || (all && !named) : word == WORD_NONE;
        if (wanted) list[kept++] = list[i];
        else ida_free(list[i]);
    }
    return kept;
}

ida_status ida_token_files_find(const char *path, bool val, bool all, char ***paths, int64_t *n) {
    char **list = NULL, *one = single_file(path);
    int64_t cap = 0, m = 0;
    ida_status st = IDA_GROW(list, &cap, 1, "shard paths");
    if (!st && one) {
        if (!val || all || split_of(one) == WORD_VAL) st = keep(&list, &cap, &m, one);
    } else if (!st) {
        st = ida_is_dir(path) ? list_folder(path, &list, &cap, &m) : list_pattern(path, &list, &cap, &m);
        if (!st) m = choose(list, m, val, all);
    }
    ida_free(one);
    if (st) {
        ida_names_free(list, m);
        return st;
    }
    *paths = list;
    *n = m;
    return IDA_OK;
}
