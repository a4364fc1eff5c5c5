/* params.c - the parameter table: name, shape, decay group and place of every tensor, and the pointers into a block laid out by
 * it. Not here: values (init.c). Invariant: the table is a pure function of the config; its order is the storage order of every
 * file and the numbering of the random streams, so a new tensor goes to the end of its layer's mixer. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "model/shape.h"

enum { MAX_LAYER_PARAMS = 32 };

const char *ida_group_name(ida_group g) {
    switch (g) {
    case IDA_GROUP_MATRIX: return "matrix";
    case IDA_GROUP_VECTOR: return "vector";
    case IDA_GROUP_SSM: break;
    }
    return "ssm";
}

typedef struct builder { ida_param_table *t; int layer; const char *prefix; } builder;

static void add(builder *b, const char *name, ida_group group, int ndim, int64_t s0, int64_t s1, int64_t s2) {
    ida_param *p = &b->t->params[b->t->n++];
    memset(p, 0, sizeof *p);
    if (b->layer < 0) snprintf(p->name, sizeof p->name, "%s", name);
    else snprintf(p->name, sizeof p->name, "model.layers.%d.%s%s", b->layer, b->prefix, name);
    p->ndim = ndim;
    p->shape[0] = s0;
    p->shape[1] = s1;
    p->shape[2] = s2;
    p->numel = s0 * (ndim > 1 ? s1 : 1) * (ndim > 2 ? s2 : 1);
    p->offset = b->t->block;
    p->group = group;
    p->layer = b->layer;
    b->t->numel += p->numel;
    b->t->block += ida_round16(p->numel);
}
static void add1(builder *b, const char *name, ida_group g, int64_t s0) { add(b, name, g, 1, s0, 0, 0); }
static void add2(builder *b, const char *name, ida_group g, int64_t s0, int64_t s1) { add(b, name, g, 2, s0, s1, 0); }
static void add_conv(builder *b, const char *weight, const char *bias, int64_t width) {
    add(b, weight, IDA_GROUP_VECTOR, 3, width, 1, 4);
    add1(b, bias, IDA_GROUP_VECTOR, width);
}

static void add_mixer(builder *b, const ida_config *c) {
    ida_shape s = ida_layer_shape(c, b->layer);
    int64_t d = c->d_model;
    b->prefix = s.softmax ? "self_attn." : "mixer.";
    if (s.query) add2(b, "q_proj.weight", IDA_GROUP_MATRIX, s.qw, d);
    add2(b, "k_proj.weight", IDA_GROUP_MATRIX, s.kvw, d);
    add2(b, "v_proj.weight", IDA_GROUP_MATRIX, s.kvw, d);
    add2(b, "o_proj.weight", IDA_GROUP_MATRIX, d, s.ow);
    if (c->gate) add2(b, "g_proj.weight", IDA_GROUP_MATRIX, s.ow, d);
    if (s.conv_q) add_conv(b, "q_conv.weight", "q_conv.bias", s.qw);
    if (s.conv_k) add_conv(b, "k_conv.weight", "k_conv.bias", s.kvw);
    if (s.conv_v) add_conv(b, "v_conv.weight", "v_conv.bias", s.kvw);
    if (!s.softmax) {
        add1(b, "k_norm.weight", IDA_GROUP_SSM, s.dh);
        add2(b, "k_norm.bias", IDA_GROUP_SSM, s.g, s.dh);
        add1(b, "v_norm.weight", IDA_GROUP_SSM, s.dh);
        add2(b, "v_norm.bias", IDA_GROUP_SSM, s.g, s.dh);
        add1(b, "log_dt", IDA_GROUP_SSM, s.g);
        add2(b, "a_log", IDA_GROUP_SSM, s.g, s.m);
        add2(b, "a_imag", IDA_GROUP_SSM, s.g, s.m);
        add(b, "c.real", IDA_GROUP_SSM, 3, s.g, s.m, s.m);
        add(b, "c.imag", IDA_GROUP_SSM, 3, s.g, s.m, s.m);
        if (s.linear) add2(b, "w", IDA_GROUP_VECTOR, s.h, s.m);
    }
    if (c->output_norm) add1(b, "o_norm.weight", IDA_GROUP_VECTOR, s.hw);
    b->prefix = "";
}

ida_status ida_param_table_build(const ida_config *c, ida_param_table *t) {
    ida_param_table r = {0};
    IDA_TRY(IDA_ALLOC(r.params, c->n_layers * MAX_LAYER_PARAMS + 3, "parameter table"));
    builder b = {&r, -1, ""};
    add2(&b, "model.embed_tokens.weight", IDA_GROUP_MATRIX, c->vocab_size, c->d_model);
    for (b.layer = 0; b.layer < c->n_layers; b.layer++) {
        add1(&b, "input_layernorm.weight", IDA_GROUP_VECTOR, c->d_model);
        add_mixer(&b, c);
        add1(&b, "post_attention_layernorm.weight", IDA_GROUP_VECTOR, c->d_model);
        add2(&b, "mlp.gate_proj.weight", IDA_GROUP_MATRIX, c->ffn_hidden, c->d_model);
        add2(&b, "mlp.up_proj.weight", IDA_GROUP_MATRIX, c->ffn_hidden, c->d_model);
        add2(&b, "mlp.down_proj.weight", IDA_GROUP_MATRIX, c->d_model, c->ffn_hidden);
    }
    b.layer = -1;
    add1(&b, "model.norm.weight", IDA_GROUP_VECTOR, c->d_model);
    if (!c->tie_embeddings) add2(&b, "lm_head.weight", IDA_GROUP_MATRIX, c->vocab_size, c->d_model);
    *t = r;
    return IDA_OK;
}

void ida_param_table_free(ida_param_table *t) {
    ida_free(t->params);
    *t = (ida_param_table){0};
}

const ida_param *ida_param_find(const ida_param_table *t, const char *name) {
    for (int64_t i = 0; i < t->n; i++)
        if (strcmp(t->params[i].name, name) == 0) return &t->params[i];
    return NULL;
}

typedef struct walk {
    const ida_param_table *t;
    int64_t at;
    real *block;
    act *matrices;
    int64_t matrix_size;
} walk;

/* Walks the tensors of one layer in the order of add_mixer: the next one is `p`'s when its name ends so. */
static real *take(walk *w, const char *suffix) {
    const ida_param *p = &w->t->params[w->at];
    size_t n = strlen(p->name), k = strlen(suffix);
    if (n < k || strcmp(p->name + n - k, suffix) != 0) return NULL;
    w->at++;
    if (p->group == IDA_GROUP_MATRIX) return (act *)(void *)((char *)w->matrices + p->offset * w->matrix_size);
    return w->block + p->offset;
}

void ida_model_bind(const ida_config *cfg, const ida_param_table *t, real *block, act *matrices, int64_t matrix_size,
                    ida_bound *w) {
    walk k = {.t = t, .block = block, .matrices = matrices, .matrix_size = matrix_size};
    w->embed = take(&k, "embed_tokens.weight");
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        ida_layer_weights x = {0};
        x.norm1 = take(&k, "input_layernorm.weight");
        x.wq = take(&k, ".q_proj.weight");
        x.wk = take(&k, ".k_proj.weight");
        x.wv = take(&k, ".v_proj.weight");
        x.wo = take(&k, ".o_proj.weight");
        x.wg = take(&k, ".g_proj.weight");
        x.conv_q_w = take(&k, ".q_conv.weight");
        x.conv_q_b = take(&k, ".q_conv.bias");
        x.conv_k_w = take(&k, ".k_conv.weight");
        x.conv_k_b = take(&k, ".k_conv.bias");
        x.conv_v_w = take(&k, ".v_conv.weight");
        x.conv_v_b = take(&k, ".v_conv.bias");
        x.gk = take(&k, ".k_norm.weight");
        x.bk = take(&k, ".k_norm.bias");
        x.gv = take(&k, ".v_norm.weight");
        x.bv = take(&k, ".v_norm.bias");
        x.log_dt = take(&k, ".log_dt");
        x.a_log = take(&k, ".a_log");
        x.a_imag = take(&k, ".a_imag");
        x.c_re = take(&k, ".c.real");
        x.c_im = take(&k, ".c.imag");
        x.w = take(&k, "mixer.w");
        x.onorm = take(&k, ".o_norm.weight");
        x.norm2 = take(&k, "post_attention_layernorm.weight");
        x.gate = take(&k, ".gate_proj.weight");
        x.up = take(&k, ".up_proj.weight");
        x.down = take(&k, ".down_proj.weight");
        w->layers[l] = x;
    }
    w->norm = take(&k, "model.norm.weight");
    w->lm_head = cfg->tie_embeddings ? w->embed : take(&k, "lm_head.weight");
}
