/* shard.c - see shard.h. */
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/mem.h"

void ida_shard_header(int32_t header[256], int width, int64_t tokens) {
    memset(header, 0, IDA_SHARD_HEADER_BYTES);
    header[0] = width == 2 ? IDA_SHARD_MAGIC_16 : IDA_SHARD_MAGIC_32;
    header[1] = width == 2 ? IDA_SHARD_VERSION_16 : IDA_SHARD_VERSION_32;
    header[2] = (int32_t)tokens;
}

ida_status ida_shard_check(const uint8_t *data, int64_t size, const char *where, int width, int64_t *tokens) {
    int32_t head[3];
    IDA_FAIL_IF(size < IDA_SHARD_HEADER_BYTES, IDA_E_FORMAT, "%s: %lld bytes is too short for a token shard: pack the data again",
                where, (long long)size);
    memcpy(head, data, sizeof head);
    bool is16 = head[0] == IDA_SHARD_MAGIC_16 && head[1] == IDA_SHARD_VERSION_16;
    bool is32 = head[0] == IDA_SHARD_MAGIC_32 && head[1] == IDA_SHARD_VERSION_32;
    IDA_FAIL_IF(!is16 && !is32, IDA_E_FORMAT, "%s: not a token shard (magic %d, version %d)", where, head[0], head[1]);
    IDA_FAIL_IF((is16 ? 2 : 4) != width, IDA_E_FORMAT, "%s: holds %d-byte tokens, the vocabulary needs %d", where, is16 ? 2 : 4,
                width);
    IDA_FAIL_IF(head[2] < 0 || IDA_SHARD_HEADER_BYTES + (int64_t)head[2] * width != size, IDA_E_FORMAT,
                "%s: %lld bytes do not hold the %d tokens its header tells: pack the data again", where, (long long)size,
                    head[2]);
    *tokens = head[2];
    return IDA_OK;
}

static ida_status read_hash(const json_t *o, const char *where, const char *key, uint64_t *hash) {
    const char *s;
    char *end;
    IDA_TRY(ida_json_str(o, where, key, NULL, &s));
    IDA_FAIL_IF(strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16, IDA_E_FORMAT, "%s: \"%s\" is not 16 hexadecimal digits",
                where, key);
    *hash = strtoull(s, &end, 16);
    return IDA_OK;
}

static ida_status read_shard(const json_t *o, const char *where, ida_shard_entry *e, int64_t *total) {
    const char *name;
    IDA_TRY(ida_json_str(o, where, "name", NULL, &name));
    IDA_FAIL_IF(!*name || strchr(name, '/') || name[0] == '.', IDA_E_FORMAT, "%s: shard name \"%.80s\" is not a plain file name",
                where, name);
    IDA_TRY(ida_json_i64(o, where, "tokens", 0, IDA_SHARD_MAX_TOKENS, NULL, &e->tokens));
    IDA_TRY(read_hash(o, where, "xxh3", &e->xxh3));
    IDA_FAIL_IF(!ida_add64(*total, e->tokens, total), IDA_E_FORMAT, "%s: the token counts overflow", where);
    e->name = ida_strdup(name);
    IDA_FAIL_IF(!e->name, IDA_E_NOMEM, "%s: out of memory", where);
    return IDA_OK;
}

static ida_status read_manifest(const json_t *root, const char *where, const char *split, ida_manifest *m) {
    const char *format;
    int64_t version, total = 0;
    const int64_t zero = 0;
    IDA_TRY(ida_json_str(root, where, "format", NULL, &format));
    IDA_FAIL_IF(strcmp(format, IDA_MANIFEST_FORMAT) != 0, IDA_E_FORMAT, "%s: format \"%.40s\" is not \"" IDA_MANIFEST_FORMAT "\"",
                where, format);
    IDA_TRY(ida_json_i64(root, where, "version", 1, INT32_MAX, NULL, &version));
    IDA_FAIL_IF(version != IDA_MANIFEST_VERSION, IDA_E_UNSUPPORTED,
                "%s: version %lld is newer than this program reads (%d): update it", where,
                (long long)version, IDA_MANIFEST_VERSION);
    IDA_TRY(ida_json_i64(root, where, "vocab_size", 1, INT32_MAX, NULL, &m->vocab));
    IDA_TRY(read_hash(root, where, "tokenizer_hash", &m->tokenizer_hash));
    m->separator = -1;
    const json_t *sep = json_object_get(root, "separator");
    if (sep && !json_is_null(sep)) {
        const char *side;
        IDA_TRY(ida_json_i64(sep, where, "id", 0, m->vocab - 1, NULL, &m->separator));
        IDA_TRY(ida_json_str(sep, where, "side", NULL, &side));
        IDA_FAIL_IF(strcmp(side, "before") != 0, IDA_E_UNSUPPORTED,
                    "%s: separator side \"%.20s\" is not supported: it must be \"before\"", where, side);
    }
    const json_t *s = json_object_get(json_object_get(root, "splits"), split);
    IDA_FAIL_IF(!json_is_object(s), IDA_E_FORMAT, "%s: no split \"%s\"", where, split);
    IDA_TRY(ida_json_i64(s, where, "tokens", 0, INT64_MAX, NULL, &m->tokens));
    IDA_TRY(ida_json_i64(s, where, "documents", 0, m->tokens, &zero, &m->documents));
    IDA_TRY(ida_json_i64(s, where, "bytes", 0, INT64_MAX, &zero, &m->bytes));
    const json_t *list = json_object_get(s, "shards");
    IDA_FAIL_IF(!json_is_array(list), IDA_E_FORMAT, "%s: split \"%s\" has no list of shards", where, split);
    IDA_TRY(IDA_CALLOC(m->shards, (int64_t)json_array_size(list), "shard list"));
    for (; m->n_shards < (int64_t)json_array_size(list); m->n_shards++)
        IDA_TRY(read_shard(json_array_get(list, (size_t)m->n_shards), where, &m->shards[m->n_shards], &total));
    IDA_FAIL_IF(total != m->tokens, IDA_E_FORMAT, "%s: split \"%s\" tells %lld tokens, its shards hold %lld", where, split,
                (long long)m->tokens, (long long)total);
    return IDA_OK;
}

ida_status ida_manifest_read(const json_t *root, const char *where, const char *split, ida_manifest **out) {
    ida_manifest *m = NULL;
    IDA_FAIL_IF(!json_is_object(root), IDA_E_FORMAT, "%s: not a JSON object", where);
    IDA_TRY(IDA_CALLOC(m, 1, "manifest"));
    ida_status st = read_manifest(root, where, split, m);
    if (st) ida_manifest_free(m);
    else *out = m;
    return st;
}

void ida_manifest_free(ida_manifest *m) {
    if (!m) return;
    for (int64_t i = 0; i < m->n_shards; i++) ida_free(m->shards[i].name);
    ida_free(m->shards);
    ida_free(m);
}
