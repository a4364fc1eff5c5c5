/* tokenizer_json.c - reads HF tokenizer.json (docs/formats.md): the BPE model and the added tokens; what stands around them is
 * pipeline.c. The file is untrusted: sizes, ids, strings and references are checked; whatever would change ids and is not
 * implemented is refused by name. Writing is tokenizer_save.c. */
#include <string.h>

#include "core/json.h"
#include "core/mem.h"
#include "text/build.h"
#include "text/files.h"
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
    IDA_FAIL(IDA_E_UNSUPPORTED, "%s: %s is not supported", l->where, what);
}

static bool is_absent(const json_t *j) { return !j || json_is_null(j); }

static bool is_empty_text(const json_t *j) { return is_absent(j) || (json_is_string(j) && json_string_length(j) == 0); }

static bool is_text(const json_t *j, const char *s) { return json_is_string(j) && strcmp(json_string_value(j), s) == 0; }

static ida_status check_shell(loader *l, const json_t *root) {
    const json_t *version = json_object_get(root, "version");
    const bool no = false;
    if (!is_absent(version) && !is_text(version, "1.0")) return refuse(l, "a version other than \"1.0\"");
    if (!is_absent(json_object_get(root, "truncation"))) return refuse(l, "truncation");
    if (!is_absent(json_object_get(root, "padding"))) return refuse(l, "padding");
    const json_t *decoder = json_object_get(root, "decoder");
    if (json_is_object(decoder)) IDA_TRY(ida_json_bool(decoder, l->where, IDA_SAME_RANK_KEY, &no, &l->parts.same_rank));
    return ida_pipeline_parse(root, l->where, &l->parts.pipe);
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
    IDA_TRY(ida_json_bool(model, l->where, "byte_fallback", &no, &l->parts.byte_fallback));
    IDA_TRY(ida_json_bool(model, l->where, "fuse_unk", &no, &l->parts.fuse_unk));
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
        bool mapped = true;
        if (l->parts.pipe->byte_level) mapped = to_bytes(key, strlen(key), at, &n);
        else memcpy(at, key, n = strlen(key));
        l->flags[id] = (uint8_t)(IDA_TOKEN_USED | IDA_TOKEN_MODEL | (mapped ? 0 : IDA_TOKEN_RAW));
        l->strings[id] = at;
        l->lengths[id] = (int32_t)n;
        at += n;
    }
    l->parts.n_ids = max_id + 1;
    return IDA_OK;
}

/* A name that is in no vocabulary (GPT-2's own file has "") is never needed where all bytes have tokens. */
static ida_status read_unk(loader *l, const json_t *model) {
    const json_t *name = json_object_get(model, "unk_token");
    const json_t *id = json_is_string(name) ? json_object_get(l->vocab, json_string_value(name)) : NULL;
    IDA_FAIL_IF(!is_absent(name) && !json_is_string(name), IDA_E_FORMAT, "%s: unk_token is not a string", l->where);
    IDA_FAIL_IF(!is_empty_text(name) && !id && !l->parts.pipe->byte_level, IDA_E_FORMAT,
                "%s: unk_token \"%.60s\" is not in the vocabulary", l->where, json_string_value(name));
    l->parts.has_unk = id != NULL;
    if (id) l->parts.unk = (int32_t)json_integer_value(id);
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
        if (l->flags[id] & IDA_TOKEN_ADDED)
            IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: id %lld is given to two added tokens", l->where, (long long)id);
        l->flags[id] |= IDA_TOKEN_USED | IDA_TOKEN_ADDED;
        l->added[i].content = s;
        l->added[i].n = (int32_t)n;
        if (!known) {
            l->strings[id] = s;
            l->lengths[id] = (int32_t)n;
        }
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
    IDA_TRY_GOTO(read_unk(&l, model));
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
    l.parts.pipe = NULL;
    if (st) ida_fail_prefix(st, "%s", where);
out:
    ida_pipeline_free(l.parts.pipe);
    ida_free(l.strings);
    ida_free(l.lengths);
    ida_free(l.flags);
    ida_free(l.arena);
    ida_free(l.merges);
    ida_free(l.added);
    ida_buf_free(&l.joined);
    return st;
}

/* A SentencePiece model begins with the tag of its first piece, which in JSON is a newline: what follows the blanks decides. */
static bool is_sp_model(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", text[i]) && text[i]) i++;
    return n > 0 && text[0] == IDA_SP_MODEL_TAG && i < n && text[i] != '{';
}

ida_status ida_tokenizer_parse(const char *text, size_t n, const char *where, ida_tokenizer **out) {
    if (is_sp_model(text, n)) return ida_sp_model_parse((const uint8_t *)text, n, where, out);
    json_t *root = NULL;
    IDA_TRY(ida_json_parse(text, n, where, &root));
    ida_status st = from_json(root, where, out);
    json_decref(root);
    return st;
}
