/* tokenizer_save.c - writes HF tokenizer.json. What was read with a file comes back with the same meaning, so the content hash
 * stays. */
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "text/files.h"

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
    bool mapped = t->pipe->byte_level && (t->flags[id] & IDA_TOKEN_MODEL) && !(t->flags[id] & IDA_TOKEN_RAW);
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
            if ((t->flags[ab[k]] & IDA_TOKEN_RAW) || n == 0 || (!t->pipe->byte_level && memchr(s, ' ', (size_t)n)) ||
                (n >= 8 && memcmp(s, header, 8) == 0))
                return true;
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
        for (int32_t k = 0; k < a->n; k++) IDA_TRY(put_char(b, (uint8_t)a->content[k]));
        IDA_TRY(ida_buf_addf(b, "\""));
        for (int k = 0; k < 5; k++) IDA_TRY(ida_buf_addf(b, ", \"%s\": %s", names[k], values[k] ? "true" : "false"));
        IDA_TRY(ida_buf_addf(b, "}"));
    }
    return IDA_OK;
}

static ida_status put_file(ida_buf *b, const ida_tokenizer *t) {
    const char *const yes_no[] = {"false", "true"};
    IDA_TRY(ida_buf_addf(b, "{\n  \"version\": \"1.0\",\n"));
    IDA_TRY(ida_buf_addf(b, "  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ["));
    IDA_TRY(put_added(b, t));
    IDA_TRY(ida_buf_addf(b, "\n  ],\n"));
    for (int i = 0; i < 4; i++) IDA_TRY(ida_buf_addf(b, "  \"%s\": %s,\n", ida_pipeline_keys[i], t->pipe->source[i]));
    IDA_TRY(ida_buf_addf(b, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": %s",
                         t->unk < 0 ? "null" : "\""));
    if (t->unk >= 0) {
        IDA_TRY(put_token(b, t, t->unk));
        IDA_TRY(ida_buf_addf(b, "\""));
    }
    IDA_TRY(
        ida_buf_addf(b, ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": %s,\n",
                     yes_no[t->fuse_unk]));
    IDA_TRY(ida_buf_addf(b, "    \"byte_fallback\": %s,\n", yes_no[t->byte_fallback]));
    IDA_TRY(ida_buf_addf(b, "    \"ignore_merges\": %s,\n    \"vocab\": {", yes_no[t->ignore_merges]));
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
    ida_buf b = {0};
    char *file = ida_is_dir(path) ? ida_path_join(path, "tokenizer.json") : ida_strdup(path);
    IDA_FAIL_IF(!file, IDA_E_NOMEM, "%s: out of memory", path);
    ida_status st = put_file(&b, t);
    if (!st) st = ida_write_file(file, b.data, (size_t)b.len);
    ida_buf_free(&b);
    ida_free(file);
    return st;
}
