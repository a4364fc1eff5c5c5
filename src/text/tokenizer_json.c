/* tokenizer_json.c - HF tokenizer.json of the GPT-2 family, in and out (docs/formats.md). The file is untrusted: sizes, ids,
 * strings and references are checked; whatever would change ids and is not implemented is refused by name. */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

typedef struct loader {
    const char *where;
    const json_t *vocab;
    const char **strings;
    int32_t *lengths;
    uint8_t *flags;
    char *arena;            /* the bytes of all model tokens: never longer than their strings */
    int64_t n_merges, n_added;
    ida_merge *merges;
    ida_added *added;
    ida_buf joined;
    ida_tokenizer_parts parts;
} loader;

static ida_status refuse(const loader *l, const char *what) {
    IDA_FAIL(IDA_E_UNSUPPORTED, "%s: %s is not supported: only byte-level BPE of the GPT-2 family is read", l->where, what);
}

static bool is_absent(const json_t *j) { return !j || json_is_null(j); }

static bool is_empty_text(const json_t *j) { return is_absent(j) || (json_is_string(j) && json_string_length(j) == 0); }

static bool is_text(const json_t *j, const char *s) { return json_is_string(j) && strcmp(json_string_value(j), s) == 0; }

static ida_status check_kind(const loader *l, const json_t *root, const char *key, bool *present) {
    const json_t *o = json_object_get(root, key);
    *present = !is_absent(o);
    if (!*present) return IDA_OK;
    const char *type = json_string_value(json_object_get(o, "type"));
    if (type && strcmp(type, "ByteLevel") == 0) return IDA_OK;
    IDA_FAIL(IDA_E_UNSUPPORTED, "%s: %s of type \"%.40s\" is not supported: only ByteLevel (the GPT-2 family) is read", l->where,
             key, type ? type : "?");
}

static ida_status check_shell(loader *l, const json_t *root) {
    bool have;
    const json_t *version = json_object_get(root, "version");
    if (!is_absent(version) && !is_text(version, "1.0")) return refuse(l, "a version other than \"1.0\"");
    if (!is_absent(json_object_get(root, "truncation"))) return refuse(l, "truncation");
    if (!is_absent(json_object_get(root, "padding"))) return refuse(l, "padding");
    const json_t *norm = json_object_get(root, "normalizer");
    if (!is_absent(norm)) {
        const char *type = json_string_value(json_object_get(norm, "type"));
        IDA_FAIL(IDA_E_UNSUPPORTED, "%s: normalizer \"%.40s\" is not supported: it must be null", l->where, type ? type : "?");
    }
    IDA_TRY(check_kind(l, root, "pre_tokenizer", &have));
    if (!have) return refuse(l, "a missing pre_tokenizer");
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const bool yes = true, no = false;
    bool use_regex;
    IDA_TRY(ida_json_bool(pre, l->where, "use_regex", &yes, &use_regex));
    if (!use_regex) return refuse(l, "pre_tokenizer ByteLevel with use_regex false");
    IDA_TRY(ida_json_bool(pre, l->where, "add_prefix_space", &no, &l->parts.add_prefix_space));
    IDA_TRY(check_kind(l, root, "decoder", &have));
    if (!have) return refuse(l, "a missing decoder");
    return check_kind(l, root, "post_processor", &l->parts.byte_level_post);
}

static ida_status check_model(loader *l, const json_t *model) {
    const bool no = false;
    IDA_FAIL_IF(!json_is_object(model), IDA_E_FORMAT, "%s: no \"model\" object", l->where);
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    if (!is_absent(type) && !is_text(type, "BPE"))
        IDA_FAIL(IDA_E_UNSUPPORTED, "%s: model type \"%.40s\" is not supported: only BPE is read", l->where,
                 json_is_string(type) ? json_string_value(type) : "?");
    if (!is_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0)) return refuse(l, "dropout");
    if (!is_empty_text(json_object_get(model, "continuing_subword_prefix"))) return refuse(l, "continuing_subword_prefix");
    if (!is_empty_text(json_object_get(model, "end_of_word_suffix"))) return refuse(l, "end_of_word_suffix");
    return ida_json_bool(model, l->where, "ignore_merges", &no, &l->parts.ignore_merges);
}

static ida_status read_id(const loader *l, const json_t *j, const char *token, int64_t *id) {
    IDA_FAIL_IF(!json_is_integer(j), IDA_E_FORMAT, "%s: the id of token \"%.60s\" is not an integer", l->where, token);
    *id = json_integer_value(j);
    IDA_FAIL_IF(*id < 0 || *id >= IDA_TOKENIZER_MAX_IDS, IDA_E_FORMAT, "%s: id %lld of token \"%.60s\" is out of range (0..%lld)",
                l->where, (long long)*id, token, (long long)IDA_TOKENIZER_MAX_IDS - 1);
    return IDA_OK;
}

/* Bytes of a vocabulary string; false when a character stands for no byte (the UTF-8 is then copied). */
static bool to_bytes(const char *s, size_t n, char *out, size_t *made) {
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += ida_utf8_decode((const uint8_t *)s + i, n - i, &cp);
        int b = ida_char_byte(cp);
        if (b < 0) {
            memcpy(out, s, n);
            *made = n;
            return false;
        }
        out[k++] = (char)b;
    }
    *made = k;
    return true;
}

static ida_status read_vocab(loader *l, const json_t *vocab) {
    const char *key;
    json_t *value;
    int64_t max_id = -1, total = 0, id;
    IDA_FAIL_IF(!json_is_object(vocab) || json_object_size(vocab) == 0, IDA_E_FORMAT, "%s: model.vocab is missing or empty",
                l->where);
    l->vocab = vocab;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        IDA_TRY(read_id(l, value, key, &id));
        if (id > max_id) max_id = id;
        total += (int64_t)strlen(key);
    }
    int64_t cap = max_id + 1;
    for (int64_t i = 0; i < l->n_added; i++)
        if (l->added[i].id >= cap) cap = l->added[i].id + 1;
    IDA_TRY(IDA_CALLOC(l->strings, cap, "vocabulary"));
    IDA_TRY(IDA_CALLOC(l->lengths, cap, "vocabulary"));
    IDA_TRY(IDA_CALLOC(l->flags, cap, "vocabulary"));
    IDA_TRY(IDA_ALLOC(l->arena, total + 1, "vocabulary"));
    char *at = l->arena;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        id = json_integer_value(value);
        IDA_FAIL_IF(l->flags[id], IDA_E_FORMAT, "%s: id %lld is given to two tokens (\"%.60s\" is the second)", l->where,
                    (long long)id, key);
        size_t n;
        bool mapped = to_bytes(key, strlen(key), at, &n);
        l->flags[id] = (uint8_t)(IDA_TOKEN_USED | IDA_TOKEN_MODEL | (mapped ? 0 : IDA_TOKEN_RAW));
        l->strings[id] = at;
        l->lengths[id] = (int32_t)n;
        at += n;
    }
    l->parts.n_ids = max_id + 1;
    return IDA_OK;
}

/* Ids and flags first (they bound the id range), strings after the vocabulary is known. */
static ida_status read_added_head(loader *l, const json_t *list) {
    if (is_absent(list)) return IDA_OK;
    IDA_FAIL_IF(!json_is_array(list), IDA_E_FORMAT, "%s: added_tokens is not a list", l->where);
    IDA_TRY(IDA_CALLOC(l->added, (int64_t)json_array_size(list), "added tokens"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(o, "content"));
        IDA_FAIL_IF(!content || !*content, IDA_E_FORMAT, "%s: added_tokens[%zu] has no content", l->where, i);
        int64_t id;
        IDA_TRY(read_id(l, json_object_get(o, "id"), content, &id));
        ida_added *a = &l->added[i];
        const bool no = false;
        a->id = (int32_t)id;
        IDA_TRY(ida_json_bool(o, l->where, "special", &no, &a->special));
        const bool normalized = !a->special;
        IDA_TRY(ida_json_bool(o, l->where, "normalized", &normalized, &a->normalized));
        IDA_TRY(ida_json_bool(o, l->where, "single_word", &no, &a->single_word));
        IDA_TRY(ida_json_bool(o, l->where, "lstrip", &no, &a->lstrip));
        IDA_TRY(ida_json_bool(o, l->where, "rstrip", &no, &a->rstrip));
        l->n_added++;
    }
    return IDA_OK;
}

static ida_status read_added_strings(loader *l, const json_t *list) {
    json_t *seen = json_object();
    ida_status st = IDA_OK;
    if (!seen) IDA_FAIL(IDA_E_NOMEM, "%s: out of memory", l->where);
    for (int64_t i = 0; i < l->n_added; i++) {
        const json_t *content = json_object_get(json_array_get(list, (size_t)i), "content");
        const char *s = json_string_value(content);
        size_t n = json_string_length(content);
        int64_t id = l->added[i].id;
        const json_t *known = json_object_get(l->vocab, s);
        if (json_object_get(seen, s)) IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: added token \"%.60s\" is listed twice", l->where, s);
        if (json_object_set_new(seen, s, json_true())) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", l->where);
        if (known && json_integer_value(known) != id)
            IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: added token \"%.60s\" has id %lld, but the vocabulary gives it %lld", l->where, s,
                          (long long)id, (long long)json_integer_value(known));
        if (!known && (l->flags[id] & IDA_TOKEN_USED))
            IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: id %lld of added token \"%.60s\" belongs to another token", l->where,
                          (long long)id, s);
        if (known && ((size_t)l->lengths[id] != n || memcmp(l->strings[id], s, n) != 0))
            IDA_FAIL_GOTO(IDA_E_UNSUPPORTED,
                          "%s: added token \"%.60s\" is spelt with characters that stand for bytes in the vocabulary",
                          l->where, s);
        if (l->flags[id] & IDA_TOKEN_ADDED)
            IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: id %lld is given to two added tokens", l->where, (long long)id);
        l->flags[id] |= IDA_TOKEN_USED | IDA_TOKEN_ADDED;
        l->strings[id] = s;
        l->lengths[id] = (int32_t)n;
        if (id >= l->parts.n_ids) l->parts.n_ids = id + 1;
    }
out:
    json_decref(seen);
    return st;
}

static ida_status find_part(const loader *l, size_t row, const char *s, size_t n, const char *what, int32_t *id) {
    const json_t *v = json_object_getn(l->vocab, s, n);
    IDA_FAIL_IF(!v, IDA_E_FORMAT, "%s: merges[%zu]: %s \"%.*s\" is not in the vocabulary", l->where, row, what,
                (int)(n < 60 ? n : 60), s);
    *id = (int32_t)json_integer_value(v);
    return IDA_OK;
}

static ida_status read_merge(loader *l, size_t row, const json_t *m, ida_merge *out) {
    const char *a, *b;
    size_t na, nb;
    if (json_is_string(m)) {
        a = json_string_value(m);
        size_t n = json_string_length(m);
        const char *blank = memchr(a, ' ', n);
        IDA_FAIL_IF(!blank || memchr(blank + 1, ' ', n - (size_t)(blank + 1 - a)), IDA_E_FORMAT,
                    "%s: merges[%zu] \"%.60s\" is not two tokens with one blank between", l->where, row, a);
        na = (size_t)(blank - a);
        b = blank + 1;
        nb = n - na - 1;
    } else {
        const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
        IDA_FAIL_IF(json_array_size(m) != 2 || !json_is_string(x) || !json_is_string(y), IDA_E_FORMAT,
                    "%s: merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", l->where, row);
        a = json_string_value(x);
        na = json_string_length(x);
        b = json_string_value(y);
        nb = json_string_length(y);
    }
    l->joined.len = 0;
    IDA_TRY(ida_buf_add(&l->joined, a, na));
    IDA_TRY(ida_buf_add(&l->joined, b, nb));
    IDA_TRY(find_part(l, row, a, na, "token", &out->left));
    IDA_TRY(find_part(l, row, b, nb, "token", &out->right));
    return find_part(l, row, l->joined.data, na + nb, "merged token", &out->product);
}

static ida_status read_merges(loader *l, const json_t *merges) {
    IDA_FAIL_IF(!json_is_array(merges), IDA_E_FORMAT, "%s: model.merges is missing or not a list", l->where);
    size_t n = json_array_size(merges);
    IDA_TRY(IDA_ALLOC(l->merges, (int64_t)n, "merges"));
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i);
        if (json_is_string(m) && strncmp(json_string_value(m), "#version", 8) == 0) continue; /* header line of merges.txt */
        IDA_TRY(read_merge(l, i, m, &l->merges[l->n_merges]));
        l->n_merges++;
    }
    return IDA_OK;
}

static ida_status from_json(const json_t *root, const char *where, ida_tokenizer **out) {
    loader l = {.where = where};
    ida_status st;
    if (!json_is_object(root)) IDA_FAIL(IDA_E_FORMAT, "%s: not a JSON object", where);
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    IDA_TRY_GOTO(check_shell(&l, root));
    IDA_TRY_GOTO(check_model(&l, model));
    IDA_TRY_GOTO(read_added_head(&l, added));
    IDA_TRY_GOTO(read_vocab(&l, json_object_get(model, "vocab")));
    IDA_TRY_GOTO(read_added_strings(&l, added));
    IDA_TRY_GOTO(read_merges(&l, json_object_get(model, "merges")));
    l.parts.strings = l.strings;
    l.parts.lengths = l.lengths;
    l.parts.flags = l.flags;
    l.parts.n_merges = l.n_merges;
    l.parts.merges = l.merges;
    l.parts.n_added = l.n_added;
    l.parts.added = l.added;
    st = ida_tokenizer_build(&l.parts, out);
    if (st) ida_fail_prefix(st, "%s", where);
out:
    ida_free(l.strings);
    ida_free(l.lengths);
    ida_free(l.flags);
    ida_free(l.arena);
    ida_free(l.merges);
    ida_free(l.added);
    ida_buf_free(&l.joined);
    return st;
}

ida_status ida_tokenizer_parse(const char *text, size_t n, const char *where, ida_tokenizer **out) {
    json_t *root = NULL;
    IDA_TRY(ida_json_parse(text, n, where, &root));
    ida_status st = from_json(root, where, out);
    json_decref(root);
    return st;
}

/* PATH itself, or PATH/tokenizer.json when PATH is a folder. */
static ida_status file_path(const char *path, char **file) {
    *file = ida_is_dir(path) ? ida_path_join(path, "tokenizer.json") : ida_strdup(path);
    IDA_FAIL_IF(!*file, IDA_E_NOMEM, "%s: out of memory", path);
    return IDA_OK;
}

ida_status ida_tokenizer_load(const char *path, ida_tokenizer **out) {
    IDA_NEED(path);
    IDA_NEED(out);
    char *file;
    json_t *root = NULL;
    IDA_TRY(file_path(path, &file));
    ida_status st = ida_json_load(file, IDA_TOKENIZER_MAX_BYTES, &root);
    if (!st) st = from_json(root, file, out);
    json_decref(root);
    ida_free(file);
    return st;
}

static ida_status put_utf8(ida_buf *b, uint32_t cp) {
    char s[2] = {(char)(0xC0 | cp >> 6), (char)(0x80 | (cp & 63))};
    char c = (char)cp;
    return cp < 0x80 ? ida_buf_add(b, &c, 1) : ida_buf_add(b, s, 2);
}

static ida_status put_char(ida_buf *b, uint8_t c) {
    if (c == '"' || c == '\\') return ida_buf_addf(b, "\\%c", c);
    return c < 0x20 ? ida_buf_addf(b, "\\u%04x", c) : ida_buf_add(b, &c, 1);
}

/* A token's string, without the quotes: byte alphabet for model tokens, its UTF-8 for the rest. */
static ida_status put_token(ida_buf *b, const ida_tokenizer *t, int64_t id) {
    bool mapped = (t->flags[id] & IDA_TOKEN_MODEL) && !(t->flags[id] & IDA_TOKEN_RAW);
    for (int64_t i = t->start[id]; i < t->start[id + 1]; i++) {
        uint8_t c = (uint8_t)t->bytes[i];
        uint32_t cp = mapped ? ida_byte_char[c] : c;
        IDA_TRY(!mapped || cp < 0x80 ? put_char(b, (uint8_t)cp) : put_utf8(b, cp));
    }
    return IDA_OK;
}

/* Merges as "a b", which every version of HF reads, unless a part would be misread in that form. */
static bool needs_pairs(const ida_tokenizer *t) {
    static const char header[] = "#version";
    for (int64_t i = 0; i < t->n_merges; i++) {
        int32_t ab[2] = {t->merges[i].left, t->merges[i].right};
        for (int k = 0; k < 2; k++) {
            const char *s = t->bytes + t->start[ab[k]];
            int64_t n = t->start[ab[k] + 1] - t->start[ab[k]];
            if ((t->flags[ab[k]] & IDA_TOKEN_RAW) || n == 0 || (n >= 8 && memcmp(s, header, 8) == 0)) return true;
        }
    }
    return false;
}

static ida_status put_added(ida_buf *b, const ida_tokenizer *t) {
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
        const bool values[] = {a->single_word, a->lstrip, a->rstrip, a->normalized, a->special};
        IDA_TRY(ida_buf_addf(b, "%s\n    {\"id\": %d, \"content\": \"", i ? "," : "", a->id));
        for (int64_t k = t->start[a->id]; k < t->start[a->id + 1]; k++) IDA_TRY(put_char(b, (uint8_t)t->bytes[k]));
        IDA_TRY(ida_buf_addf(b, "\""));
        for (int k = 0; k < 5; k++) IDA_TRY(ida_buf_addf(b, ", \"%s\": %s", names[k], values[k] ? "true" : "false"));
        IDA_TRY(ida_buf_addf(b, "}"));
    }
    return IDA_OK;
}

static ida_status put_file(ida_buf *b, const ida_tokenizer *t) {
    char level[128];
    snprintf(level, sizeof level,
             "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": true, \"use_regex\": true}",
             t->add_prefix_space ? "true" : "false");
    IDA_TRY(ida_buf_addf(b, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ["));
    IDA_TRY(put_added(b, t));
    IDA_TRY(ida_buf_addf(b, "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n", level,
                         t->byte_level_post ? level : "null"));
    IDA_TRY(ida_buf_addf(b, "  \"decoder\": %s,\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n", level));
    IDA_TRY(ida_buf_addf(b, "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"));
    IDA_TRY(ida_buf_addf(b, "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"));
    IDA_TRY(ida_buf_addf(b, "    \"ignore_merges\": %s,\n    \"vocab\": {", t->ignore_merges ? "true" : "false"));
    const char *sep = "\n      \"";
    for (int64_t id = 0; id < t->n_ids; id++) {
        if (!(t->flags[id] & IDA_TOKEN_MODEL)) continue;
        IDA_TRY(ida_buf_addf(b, "%s", sep));
        IDA_TRY(put_token(b, t, id));
        IDA_TRY(ida_buf_addf(b, "\": %lld", (long long)id));
        sep = ",\n      \"";
    }
    IDA_TRY(ida_buf_addf(b, "\n    },\n    \"merges\": ["));
    bool pairs = needs_pairs(t);
    for (int64_t i = 0; i < t->n_merges; i++) {
        IDA_TRY(ida_buf_addf(b, "%s\n      %s\"", i ? "," : "", pairs ? "[" : ""));
        IDA_TRY(put_token(b, t, t->merges[i].left));
        IDA_TRY(ida_buf_addf(b, "%s", pairs ? "\", \"" : " "));
        IDA_TRY(put_token(b, t, t->merges[i].right));
        IDA_TRY(ida_buf_addf(b, "\"%s", pairs ? "]" : ""));
    }
    return ida_buf_addf(b, "\n    ]\n  }\n}\n");
}

ida_status ida_tokenizer_save(const ida_tokenizer *t, const char *path) {
    IDA_NEED(t);
    IDA_NEED(path);
    char *file;
    ida_buf b = {0};
    IDA_TRY(file_path(path, &file));
    ida_status st = put_file(&b, t);
    if (!st) st = ida_write_file(file, b.data, (size_t)b.len);
    ida_buf_free(&b);
    ida_free(file);
    return st;
}
