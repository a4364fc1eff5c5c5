/* pipeline.c - reads the four objects. See pipeline.h. */
#include "text/pipeline.h"

#include <string.h>

#include "core/json.h"
#include "core/mem.h"
#include "text/unicode.h"

enum { MAX_STEPS = 64, MAX_DEPTH = 8, MAX_TEMPLATE = 64 };
const char *const ida_pipeline_keys[4] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};

typedef struct reader {
    const char *where;
    ida_pipeline *p;
    int64_t decoders;
    bool fused, stripped;
} reader;
typedef ida_status part_fn(reader *r, const json_t *part, const char *type);

static ida_status refuse(const reader *r, const char *kind, const char *what) {
    IDA_FAIL(IDA_E_UNSUPPORTED, "%s: %s \"%.40s\" is not supported", r->where, kind, what);
}

static bool is_absent(const json_t *j) { return !j || json_is_null(j); }

static ida_status get_bool(const reader *r, const json_t *o, const char *key, bool def, bool *out) {
    return ida_json_bool(o, r->where, key, &def, out);
}

/* Calls fn on the part, or on every part of a (nested) Sequence. */
static ida_status each_part(reader *r, const json_t *part, const char *list, part_fn *fn, int depth) {
    if (is_absent(part)) return IDA_OK;
    const char *type = json_string_value(json_object_get(part, "type"));
    IDA_FAIL_IF(!type, IDA_E_FORMAT, "%s: an object in %s has no type", r->where, list);
    if (strcmp(type, "Sequence") != 0) return fn(r, part, type);
    const json_t *parts = json_object_get(part, list);
    IDA_FAIL_IF(!json_is_array(parts), IDA_E_FORMAT, "%s: a Sequence has no list \"%s\"", r->where, list);
    IDA_FAIL_IF(depth == MAX_DEPTH || json_array_size(parts) > MAX_STEPS, IDA_E_UNSUPPORTED, "%s: too many steps in %s", r->where,
                list);
    for (size_t i = 0; i < json_array_size(parts); i++) IDA_TRY(each_part(r, json_array_get(parts, i), list, fn, depth + 1));
    return IDA_OK;
}

static ida_status read_pattern(const reader *r, const json_t *o, ida_pattern *p) {
    const json_t *text = json_object_get(o, "String");
    bool regex = !text;
    if (regex) text = json_object_get(o, "Regex");
    IDA_FAIL_IF(!json_is_string(text) || json_object_size(o) != 1, IDA_E_FORMAT,
                "%s: a pattern is neither {\"String\"} nor {\"Regex\"}", r->where);
    ida_status st = (regex ? ida_pattern_regex : ida_pattern_string)(p, json_string_value(text), json_string_length(text));
    return st ? ida_fail_prefix(st, "%s", r->where) : IDA_OK;
}

static ida_status copy_string(const reader *r, const json_t *o, const char *key, char **text, size_t *n) {
    const json_t *s = json_object_get(o, key);
    IDA_FAIL_IF(!json_is_string(s), IDA_E_FORMAT, "%s: \"%s\" is missing or not a string", r->where, key);
    *n = json_string_length(s);
    IDA_TRY(IDA_ALLOC(*text, (int64_t)*n + 1, "pattern"));
    memcpy(*text, json_string_value(s), *n + 1);
    return IDA_OK;
}

static ida_status read_replace(const reader *r, const json_t *part, ida_norm_step *s) {
    IDA_TRY(copy_string(r, part, "content", &s->with, &s->n));
    return read_pattern(r, json_object_get(part, "pattern"), &s->find);
}

static ida_status read_normalizer(reader *r, const json_t *part, const char *type) {
    static const struct { const char *name; ida_norm_kind kind;
    } kinds[] = {{"NFC", IDA_NORM_NFC}, {"NFD", IDA_NORM_NFD}, {"NFKC", IDA_NORM_NFKC}, {"NFKD", IDA_NORM_NFKD},
                 {"Lowercase", IDA_NORM_LOWERCASE}, {"StripAccents", IDA_NORM_STRIP_ACCENTS}, {"Strip", IDA_NORM_STRIP},
                 {"Prepend", IDA_NORM_PREPEND}, {"Replace", IDA_NORM_REPLACE}};
    IDA_FAIL_IF(r->p->n_norm == MAX_STEPS, IDA_E_UNSUPPORTED, "%s: too many normalizers", r->where);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(type, kinds[i].name) != 0) continue;
        ida_norm_step *s = &r->p->norm[r->p->n_norm++];
        s->kind = kinds[i].kind;
        if (s->kind == IDA_NORM_STRIP) {
            IDA_TRY(get_bool(r, part, "strip_left", true, &s->left));
            return get_bool(r, part, "strip_right", true, &s->right);
        }
        if (s->kind == IDA_NORM_PREPEND) return copy_string(r, part, "prepend", &s->with, &s->n);
        return s->kind == IDA_NORM_REPLACE ? read_replace(r, part, s) : IDA_OK;
    }
    return refuse(r, "normalizer", type);
}

static ida_status next_pre(const reader *r, ida_pre_step **s) {
    IDA_FAIL_IF(r->p->n_pre == MAX_STEPS, IDA_E_UNSUPPORTED, "%s: too many pre-tokenizers", r->where);
    *s = &r->p->pre[r->p->n_pre++];
    return IDA_OK;
}

static ida_status read_behaviour(const reader *r, const json_t *part, const char *type, const char *def, ida_behaviour *out) {
    static const struct { const char *name; ida_behaviour kind; } names[] = {
        {"Removed", IDA_REMOVED}, {"Isolated", IDA_ISOLATED}, {"MergedWithPrevious", IDA_MERGED_WITH_PREVIOUS},
        {"MergedWithNext", IDA_MERGED_WITH_NEXT}, {"Contiguous", IDA_CONTIGUOUS}};
    const json_t *value = json_object_get(part, "behavior");
    const char *name = value ? json_string_value(value) : def;
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) != 0) continue;
        *out = names[i].kind;
        return IDA_OK;
    }
    IDA_FAIL(IDA_E_FORMAT, "%s: %s has the behavior \"%.40s\"", r->where, type, name ? name : "");
}

static ida_status read_split(const reader *r, const json_t *part) {
    ida_pre_step *s;
    IDA_TRY(next_pre(r, &s));
    IDA_TRY(read_pattern(r, json_object_get(part, "pattern"), &s->find));
    IDA_TRY(get_bool(r, part, "invert", false, &s->invert));
    IDA_TRY(read_behaviour(r, part, "Split", NULL, &s->behaviour));
    bool covers = ida_pattern_covers(&s->find);
    if (covers && s->behaviour == IDA_REMOVED && s->invert) s->behaviour = IDA_ISOLATED; /* nothing lies between matches */
    return IDA_OK;
}

static ida_status read_byte_level(reader *r, const json_t *part) {
    bool prefix, regex;
    ida_pre_step *s;
    IDA_TRY(get_bool(r, part, "add_prefix_space", true, &prefix));
    IDA_TRY(get_bool(r, part, "use_regex", true, &regex));
    r->p->byte_level = true;
    r->p->plain_gpt2 = regex && r->p->n_pre == 0;
    r->p->add_prefix_space = prefix;
    if (prefix) {
        IDA_TRY(next_pre(r, &s));
        s->kind = IDA_PRE_BLANK;
    }
    if (!regex) return IDA_OK;
    IDA_TRY(next_pre(r, &s));
    s->behaviour = IDA_ISOLATED;
    s->find.kind = IDA_PATTERN_GPT2;
    return IDA_OK;
}

static ida_status one_char(const reader *r, const json_t *part, const char *key, char out[8]) {
    const json_t *s = json_object_get(part, key);
    const char *text = json_string_value(s);
    uint32_t cp;
    IDA_FAIL_IF(!text || !*text || ida_utf8_decode((const uint8_t *)text, json_string_length(s), &cp) != json_string_length(s),
                IDA_E_FORMAT, "%s: \"%s\" is not one character", r->where, key);
    memcpy(out, text, json_string_length(s) + 1);
    return IDA_OK;
}

static ida_status read_prepend(const reader *r, const json_t *part, ida_prepend *out) {
    const char *scheme;
    IDA_TRY(ida_json_str(part, r->where, "prepend_scheme", "always", &scheme));
    if (strcmp(scheme, "always") == 0) *out = IDA_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0) *out = IDA_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0) *out = IDA_PREPEND_NEVER;
    else IDA_FAIL(IDA_E_FORMAT, "%s: prepend_scheme is \"%.40s\", not always, first or never", r->where, scheme);
    if (json_is_false(json_object_get(part, "add_prefix_space"))) *out = IDA_PREPEND_NEVER; /* files older than prepend_scheme */
    return IDA_OK;
}

static ida_status read_metaspace(const reader *r, const json_t *part) {
    ida_pre_step *s;
    char mark[8];
    IDA_TRY(next_pre(r, &s));
    s->kind = IDA_PRE_METASPACE;
    IDA_TRY(one_char(r, part, "replacement", mark));
    IDA_TRY(ida_pattern_string(&s->find, mark, strlen(mark)));
    IDA_TRY(read_prepend(r, part, &s->prepend));
    return get_bool(r, part, "split", true, &s->split);
}

static ida_status add_split(const reader *r, ida_pattern_kind kind, ida_behaviour behaviour, bool invert) {
    ida_pre_step *s;
    IDA_TRY(next_pre(r, &s));
    s->find.kind = kind;
    s->behaviour = behaviour;
    s->invert = invert;
    return IDA_OK;
}

static ida_status read_delimiter(const reader *r, const json_t *part) {
    ida_pre_step *s;
    char delimiter[8];
    IDA_TRY(next_pre(r, &s));
    s->behaviour = IDA_REMOVED;
    IDA_TRY(one_char(r, part, "delimiter", delimiter));
    return ida_pattern_string(&s->find, delimiter, strlen(delimiter));
}

/* What stands behind ByteLevel works on its spelling. */
static ida_status begin_spelling(const reader *r) {
    ida_pre_step *s;
    IDA_TRY(next_pre(r, &s));
    s->kind = IDA_PRE_BYTES;
    r->p->spelt = true;
    r->p->plain_gpt2 = false;
    return IDA_OK;
}

static ida_status read_pre_tokenizer(reader *r, const json_t *part, const char *type) {
    bool bytes = strcmp(type, "ByteLevel") == 0, individual;
    ida_behaviour behaviour;
    if (r->p->byte_level && (bytes || strcmp(type, "Metaspace") == 0)) return refuse(r, "pre-tokenizer after ByteLevel", type);
    if (bytes) return read_byte_level(r, part);
    if (r->p->byte_level && !r->p->spelt) IDA_TRY(begin_spelling(r));
    if (strcmp(type, "Split") == 0) return read_split(r, part);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(r, part);
    if (strcmp(type, "CharDelimiterSplit") == 0) return read_delimiter(r, part);
    if (strcmp(type, "WhitespaceSplit") == 0) return add_split(r, IDA_PATTERN_BLANK, IDA_REMOVED, false);
    if (strcmp(type, "Whitespace") == 0) return add_split(r, IDA_PATTERN_WORD, IDA_REMOVED, true);
    if (strcmp(type, "Punctuation") == 0) {
        IDA_TRY(read_behaviour(r, part, type, "Isolated", &behaviour));
        return add_split(r, IDA_PATTERN_PUNCTUATION, behaviour, false);
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        IDA_TRY(add_split(r, IDA_PATTERN_BLANK, IDA_REMOVED, false));
        return add_split(r, IDA_PATTERN_PUNCTUATION, IDA_ISOLATED, false);
    }
    if (strcmp(type, "Digits") != 0) return refuse(r, "pre-tokenizer", type);
    IDA_TRY(get_bool(r, part, "individual_digits", false, &individual));
    return add_split(r, IDA_PATTERN_DIGIT, individual ? IDA_ISOLATED : IDA_CONTIGUOUS, false);
}

static ida_status put_template_id(reader *r, const json_t *tokens, const char *name, bool after) {
    const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    IDA_FAIL_IF(!json_is_array(ids), IDA_E_FORMAT, "%s: special token \"%.40s\" of the template has no ids", r->where, name);
    int32_t *list = after ? r->p->after : r->p->before;
    int64_t *n = after ? &r->p->n_after : &r->p->n_before, count = (int64_t)json_array_size(ids);
    IDA_FAIL_IF(*n + count > MAX_TEMPLATE, IDA_E_UNSUPPORTED, "%s: the template has more than %d special tokens", r->where,
                MAX_TEMPLATE);
    if (!after) memmove(list + count, list, (size_t)*n * sizeof *list); /* a later template stands outside: its ids come first */
    for (int64_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        json_int_t v = json_integer_value(id);
        IDA_FAIL_IF(!json_is_integer(id) || v < 0 || v >= IDA_TOKENIZER_MAX_IDS, IDA_E_FORMAT,
                    "%s: special token \"%.40s\" of the template has a bad id", r->where, name);
        list[after ? *n + i : i] = (int32_t)v;
    }
    *n += count;
    return IDA_OK;
}

static ida_status read_template(reader *r, const json_t *part) {
    const json_t *single = json_object_get(part, "single"), *tokens = json_object_get(part, "special_tokens");
    size_t n = json_array_size(single), text = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *sequence = json_object_get(json_array_get(single, i), "Sequence");
        if (!sequence) continue;
        const char *id = json_string_value(json_object_get(sequence, "id"));
        if (!id || strcmp(id, "A") != 0 || text != n)
            return refuse(r, "post-processor", "TemplateProcessing without exactly one A");
        text = i;
    }
    if (text == n) return refuse(r, "post-processor", "TemplateProcessing without exactly one A");
    for (size_t k = 0; k < n; k++) {
        size_t i = k < text ? text - 1 - k : k; /* outwards from the text */
        if (i == text) continue;
        const char *name = json_string_value(json_object_get(json_object_get(json_array_get(single, i), "SpecialToken"), "id"));
        IDA_FAIL_IF(!name, IDA_E_FORMAT, "%s: the template has a part that is neither Sequence nor SpecialToken", r->where);
        IDA_TRY(put_template_id(r, tokens, name, i > text));
    }
    return IDA_OK;
}

static ida_status read_post(reader *r, const json_t *part, const char *type) {
    if (strcmp(type, "ByteLevel") == 0) return IDA_OK; /* only moves offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(r, part);
    return refuse(r, "post-processor", type);
}

static ida_status read_decoder(reader *r, const json_t *part, const char *type) {
    ida_pipeline *p = r->p;
    bool first = r->decoders++ == 0;
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Metaspace") == 0) {
        if (!first) return refuse(r, "decoder", "a Sequence that goes on with ByteLevel or Metaspace");
        p->decode = type[0] == 'B' ? IDA_DECODE_BYTE_LEVEL : IDA_DECODE_METASPACE;
        if (type[0] == 'B') return IDA_OK;
        ida_prepend prepend;
        IDA_TRY(read_prepend(r, part, &prepend));
        p->first_mark_dropped = prepend != IDA_PREPEND_NEVER;
        return one_char(r, part, "replacement", p->mark);
    }
    if (!first && p->decode != IDA_DECODE_CHAIN && strcmp(type, "Fuse") != 0)
        return refuse(r, "decoder", "a Sequence that begins with ByteLevel or Metaspace");
    if (strcmp(type, "Fuse") == 0) {
        r->fused = true;
        if (first) p->decode = IDA_DECODE_CHAIN;
        return IDA_OK;
    }
    p->decode = IDA_DECODE_CHAIN;
    if (strcmp(type, "Replace") == 0) {
        if (p->byte_fallback || r->fused || p->n_replace == MAX_STEPS)
            return refuse(r, "decoder", "Replace after ByteFallback or Fuse");
        return read_replace(r, part, &p->replace[p->n_replace++]);
    }
    if (strcmp(type, "ByteFallback") == 0) {
        if (r->fused) return refuse(r, "decoder", "ByteFallback after Fuse");
        p->byte_fallback = true;
        return IDA_OK;
    }
    if (strcmp(type, "Strip") != 0) return refuse(r, "decoder", type);
    const int64_t zero = 0;
    int64_t stop;
    if (!r->fused || r->stripped) return refuse(r, "decoder", "Strip without Fuse before it");
    r->stripped = true;
    IDA_TRY(ida_json_i64(part, r->where, "start", 0, 1 << 20, &zero, &p->strip_n));
    IDA_TRY(ida_json_i64(part, r->where, "stop", 0, 1 << 20, &zero, &stop));
    if (stop) return refuse(r, "decoder", "Strip with stop > 0");
    return one_char(r, part, "content", p->strip);
}

static ida_status parse(reader *r, const json_t *root) {
    ida_pipeline *p = r->p;
    const json_t *decoder = json_object_get(root, "decoder");
    IDA_TRY(IDA_CALLOC(p->norm, MAX_STEPS, "tokenizer steps"));
    IDA_TRY(IDA_CALLOC(p->pre, MAX_STEPS, "tokenizer steps"));
    IDA_TRY(IDA_CALLOC(p->replace, MAX_STEPS, "tokenizer steps"));
    IDA_TRY(IDA_ALLOC(p->before, MAX_TEMPLATE, "tokenizer template"));
    IDA_TRY(IDA_ALLOC(p->after, MAX_TEMPLATE, "tokenizer template"));
    IDA_TRY(each_part(r, json_object_get(root, "normalizer"), "normalizers", read_normalizer, 0));
    IDA_TRY(each_part(r, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer, 0));
    IDA_TRY(each_part(r, json_object_get(root, "post_processor"), "processors", read_post, 0));
    IDA_TRY(each_part(r, decoder, "decoders", read_decoder, 0));
    IDA_FAIL_IF(r->decoders == 0, IDA_E_UNSUPPORTED, "%s: a tokenizer without a decoder is not supported", r->where);
    IDA_FAIL_IF(p->byte_level != (p->decode == IDA_DECODE_BYTE_LEVEL), IDA_E_UNSUPPORTED,
                "%s: pre-tokenizer and decoder do not fit: both must be ByteLevel, or neither", r->where);
    p->plain_gpt2 = p->plain_gpt2 && p->n_norm == 0 && p->n_before == 0 && p->n_after == 0;
    for (int i = 0; i < 4; i++) {
        const json_t *part = json_object_get(root, ida_pipeline_keys[i]);
        char *text = is_absent(part) ? NULL : ida_json_dump(part, JSON_COMPACT | JSON_SORT_KEYS);
        p->source[i] = ida_strdup(text ? text : "null");
        bool lost = !p->source[i] || (!text && !is_absent(part));
        ida_free(text);
        IDA_FAIL_IF(lost, IDA_E_NOMEM, "%s: out of memory", r->where);
    }
    return IDA_OK;
}

ida_status ida_pipeline_parse(const json_t *root, const char *where, ida_pipeline **out) {
    reader r = {.where = where};
    IDA_TRY(IDA_CALLOC(r.p, 1, "tokenizer steps"));
    ida_status st = parse(&r, root);
    if (st) ida_pipeline_free(r.p);
    else *out = r.p;
    return st;
}

static void free_steps(ida_norm_step *s, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        ida_pattern_free(&s[i].find);
        ida_free(s[i].with);
    }
    ida_free(s);
}

void ida_pipeline_free(ida_pipeline *p) {
    if (!p) return;
    free_steps(p->norm, p->n_norm);
    free_steps(p->replace, p->n_replace);
    for (int64_t i = 0; i < p->n_pre; i++) ida_pattern_free(&p->pre[i].find);
    ida_free(p->pre);
    ida_free(p->before);
    ida_free(p->after);
    for (int i = 0; i < 4; i++) ida_free(p->source[i]);
    ida_free(p);
}
