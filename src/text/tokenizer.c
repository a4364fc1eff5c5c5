/* tokenizer.c - the public calls on a finished tokenizer: text to ids, and what it knows of its tokens. Decoding is decoder.c,
 * loading tokenizer_load.c. */
#include <string.h>

#include "core/mem.h"
#include "text/encode.h"
#include "text/tables.h"

int64_t ida_tokenizer_vocab_size(const ida_tokenizer *t) { return t->n_ids; }
int64_t ida_tokenizer_eos(const ida_tokenizer *t) { return t->eos; }
uint64_t ida_tokenizer_hash(const ida_tokenizer *t) { return t->hash; }

const char *ida_tokenizer_piece(const ida_tokenizer *t, int64_t id, size_t *n_bytes, bool *is_special) {
    if (id < 0 || id >= t->n_ids || !(t->flags[id] & IDA_TOKEN_USED)) return NULL;
    if (n_bytes) *n_bytes = (size_t)(t->text_start[id + 1] - t->text_start[id]);
    if (is_special) *is_special = t->flags[id] & IDA_TOKEN_SPECIAL;
    return t->text + t->text_start[id];
}

int64_t ida_tokenizer_bos(const ida_tokenizer *t) { return t->pipe->n_before ? t->pipe->before[0] : -1; }

/* The template's ids around those of the text. A text that already begins with the first ones (typed, or put there by an earlier
 * step) keeps its own. */
static ida_status encode_around(const ida_tokenizer *t, ida_encoder *e, const char *text, size_t n_bytes, unsigned flags,
                                ida_ids *ids) {
    const ida_pipeline *p = t->pipe;
    bool around = flags & IDA_ENCODE_TEMPLATE;
    int64_t before = around ? p->n_before : 0, after = around ? p->n_after : 0;
    IDA_TRY(IDA_GROW(ids->id, &ids->cap, (int64_t)(n_bytes / 4) + 16 + before + after, "token ids"));
    if (before) memcpy(ids->id, p->before, (size_t)before * sizeof *ids->id);
    ids->n = before;
    IDA_TRY(ida_encoder_add(e, text, n_bytes, flags & IDA_ENCODE_SPECIAL, ids));
    if (before && ids->n >= 2 * before && memcmp(ids->id + before, p->before, (size_t)before * sizeof *ids->id) == 0) {
        ids->n -= before;
        memmove(ids->id, ids->id + before, (size_t)ids->n * sizeof *ids->id);
        ida_log("the text already begins with the token that starts a text; it is not added again");
    }
    if (after) {
        IDA_TRY(IDA_GROW(ids->id, &ids->cap, ids->n + after, "token ids"));
        memcpy(ids->id + ids->n, p->after, (size_t)after * sizeof *ids->id);
        ids->n += after;
    }
    return IDA_OK;
}

/* The tokenizer keeps one encoder for its callers; a second caller at the same moment takes a fresh one. */
ida_status ida_tokenizer_encode_as(const ida_tokenizer *ct, const char *text, size_t n_bytes, unsigned flags, int32_t **ids,
                                   int64_t *n_ids) {
    IDA_FAIL_IF(!ct, IDA_E_ARG, "t is NULL");
    IDA_FAIL_IF(!text && n_bytes > 0, IDA_E_ARG, "text is NULL, n_bytes %zu", n_bytes);
    IDA_NEED(ids);
    IDA_NEED(n_ids);
    ida_tokenizer *t = (ida_tokenizer *)(uintptr_t)ct;
    ida_ids list = {0};
    ida_encoder *e = NULL;
    ida_status st = IDA_OK;
    IDA_FAIL_IF(flags & ~(unsigned)(IDA_ENCODE_SPECIAL | IDA_ENCODE_TEMPLATE), IDA_E_ARG, "encode: unknown flags 0x%x", flags);
    bool owner = !__atomic_exchange_n(&t->lock, 1, __ATOMIC_ACQUIRE);
    if (owner && t->shared)
        e = t->shared;
    else {
        IDA_TRY_GOTO(ida_encoder_new(t, &e));
        if (owner) t->shared = e;
    }
    IDA_TRY_GOTO(encode_around(t, e, text, n_bytes, flags, &list));
    *ids = list.id;
    *n_ids = list.n;
    list.id = NULL;
out:
    ida_free(list.id);
    if (!owner) ida_encoder_free(e);
    if (owner) __atomic_store_n(&t->lock, 0, __ATOMIC_RELEASE);
    return st;
}

ida_status ida_tokenizer_encode(const ida_tokenizer *t, const char *text, size_t n_bytes, bool special, int32_t **ids,
                                int64_t *n_ids) {
    return ida_tokenizer_encode_as(t, text, n_bytes, special ? IDA_ENCODE_SPECIAL : 0, ids, n_ids);
}

void ida_ids_free(int32_t *ids) { ida_free(ids); }
