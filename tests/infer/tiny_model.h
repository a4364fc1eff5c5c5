/* tiny_model.h - small models for the inference tests: random ones of any mixer, and a scripted one that says given tokens. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include "core/mem.h"
#include "core/rng.h"
#include "model/model.h"
#include "text/build.h"

static inline ida_config tiny_config(ida_mixer_kind mixer) {
    ida_config c;
    assert_int_equal(ida_config_preset("tiny", mixer, &c), IDA_OK);
    c.vocab_size = 61;
    c.d_model = 32;
    c.ffn_hidden = 64;
    c.state_size = 8;
    c.init_std = 0.2; /* logits of order 1 */
    return c;
}

static inline ida_model *random_model(const ida_config *c, uint64_t seed) {
    ida_model *m = NULL;
    if (ida_model_create(c, seed, &m) != IDA_OK) fail_msg("%s", ida_last_error());
    return m;
}

static inline void random_ids(int32_t *ids, int64_t n, int64_t vocab, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(ida_uniform(seed, IDA_STREAM_TEST, (uint64_t)i) * (double)vocab);
}

static inline float *tensor(const ida_model *m, const char *name) {
    const ida_param *p = ida_param_find(&m->table, name);
    assert_non_null(p);
    return m->params + p->offset;
}

/* A model that answers id with next[id]: one-hot embeddings, layers that add nothing. vocab <= 320. */
static inline ida_model *scripted_model(int64_t vocab, const int32_t *next) {
    ida_config c = tiny_config(IDA_MIXER_INTERDOMAIN);
    c.vocab_size = vocab;
    c.d_model = 320;
    c.n_layers = 1;
    c.n_heads = c.n_kv_heads = 10;
    ida_model *m = random_model(&c, 1);
    memset(m->params, 0, (size_t)m->table.block * sizeof *m->params);
    float *embed = tensor(m, "model.embed_tokens.weight"), *norm = tensor(m, "model.norm.weight");
    float *head = tensor(m, "lm_head.weight");
    for (int64_t i = 0; i < c.d_model; i++) norm[i] = 1;
    for (int64_t i = 0; i < vocab; i++) {
        embed[i * c.d_model + i] = 1;
        if (next[i] >= 0) head[next[i] * c.d_model + i] = 10;
    }
    assert_int_equal(ida_model_prepare(m), IDA_OK);
    return m;
}

/* 256 bytes, then the given pieces, then <|endoftext|> as the last id. */
static inline ida_tokenizer *scripted_tokenizer(const char *const *pieces, int64_t n_pieces) {
    enum { MOST = 64 };
    static char bytes[256];
    const char *strings[256 + MOST + 1];
    int32_t lengths[256 + MOST + 1];
    uint8_t flags[256 + MOST + 1];
    int64_t n = 256 + n_pieces + 1;
    assert_true(n_pieces <= MOST);
    for (int64_t i = 0; i < n; i++) {
        if (i < 256) bytes[i] = (char)i;
        strings[i] = i < 256 ? &bytes[i] : i < n - 1 ? pieces[i - 256] : "<|endoftext|>";
        lengths[i] = i < 256 ? 1 : (int32_t)strlen(strings[i]);
        flags[i] = IDA_TOKEN_USED | (i < n - 1 ? IDA_TOKEN_MODEL : 0);
    }
    ida_added eos = { .id = (int32_t)(n - 1), .special = true };
    ida_tokenizer_parts p = { .n_ids = n, .strings = strings, .lengths = lengths, .flags = flags, .n_added = 1, .added = &eos };
    ida_tokenizer *t = NULL;
    if (ida_tokenizer_build(&p, &t) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_int_equal(ida_tokenizer_eos(t), n - 1);
    return t;
}

#endif
