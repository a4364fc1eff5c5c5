/* params.c - the parameter table: name, shape, decay group and place of every tensor, and the pointers into a block laid out by
 * it. Not here: values (init.c). Invariant: the table is a pure function of the config; its order is the storage order of every
 * file and the numbering of the random streams, so a new tensor goes to the end of its layer's mixer. */
#include "model/model.h"

#include <stddef.h>
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

/* The tensors of a layer in the order of add_mixer: the end of the name, and the fields it is bound to. */
typedef struct binding { const char *suffix; size_t weight, grad; bool matrix; } binding;
#define VECTOR(suffix, field) {suffix, offsetof(ida_layer_weights, field), offsetof(ida_layer_grads, field), false}
#define MATRIX(suffix, field) {suffix, offsetof(ida_layer_weights, field), offsetof(ida_layer_grads, field), true}
static const binding bindings[] = {
    VECTOR("input_layernorm.weight", norm1),
    MATRIX(".q_proj.weight", wq),
    MATRIX(".k_proj.weight", wk),
    MATRIX(".v_proj.weight", wv),
    MATRIX(".o_proj.weight", wo),
    MATRIX(".g_proj.weight", wg),
    VECTOR(".q_conv.weight", conv_q_w),
    VECTOR(".q_conv.bias", conv_q_b),
    VECTOR(".k_conv.weight", conv_k_w),
    VECTOR(".k_conv.bias", conv_k_b),
    VECTOR(".v_conv.weight", conv_v_w),
    VECTOR(".v_conv.bias", conv_v_b),
    VECTOR(".k_norm.weight", gk),
    VECTOR(".k_norm.bias", bk),
    VECTOR(".v_norm.weight", gv),
    VECTOR(".v_norm.bias", bv),
    VECTOR(".log_dt", log_dt),
    VECTOR(".a_log", a_log),
    VECTOR(".a_imag", a_imag),
    VECTOR(".c.real", c_re),
    VECTOR(".c.imag", c_im),
    VECTOR("mixer.w", w),
    VECTOR(".o_norm.weight", onorm),
    VECTOR("post_attention_layernorm.weight", norm2),
    MATRIX(".gate_proj.weight", gate),
    MATRIX(".up_proj.weight", up),
    MATRIX(".down_proj.weight", down),
};
enum { N_BINDINGS = sizeof bindings / sizeof *bindings };

/* The next tensor of the table when its name ends so. */
static const ida_param *next(const ida_param_table *t, int64_t *at, const char *suffix) {
    if (*at == t->n) return NULL;
    const ida_param *p = &t->params[*at];
    size_t n = strlen(p->name), k = strlen(suffix);
    if (n < k || strcmp(p->name + n - k, suffix) != 0) return NULL;
    (*at)++;
    return p;
}

static ida_matrix matrix_at(const ida_model *m, const ida_param *p) {
    return ida_matrix_of(m->dev, ida_act_at(m->dev, m->matrices, p->offset), p->shape[0], p->shape[1]);
}

void ida_model_bind(ida_model *m) {
    const ida_param_table *t = &m->table;
    ida_bound *w = &m->w;
    int64_t at = 0;
    w->embed = matrix_at(m, next(t, &at, "embed_tokens.weight"));
    for (int64_t l = 0; l < m->cfg.n_layers; l++) {
        memset(&w->layers[l], 0, sizeof w->layers[l]);
        for (int i = 0; i < N_BINDINGS; i++) {
            const ida_param *p = next(t, &at, bindings[i].suffix);
            char *field = (char *)&w->layers[l] + bindings[i].weight;
            if (!p) continue;
            if (bindings[i].matrix) *(ida_matrix *)(void *)field = matrix_at(m, p);
            else *(real **)(void *)field = m->params + p->offset;
        }
    }
    w->norm = m->params + next(t, &at, "model.norm.weight")->offset;
    w->lm_head = m->cfg.tie_embeddings ? w->embed : matrix_at(m, next(t, &at, "lm_head.weight"));
}

void ida_model_bind_grads(const ida_config *cfg, const ida_param_table *t, real *block, ida_grads *g) {
    int64_t at = 0;
    g->embed = block + next(t, &at, "embed_tokens.weight")->offset;
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        memset(&g->layers[l], 0, sizeof g->layers[l]);
        for (int i = 0; i < N_BINDINGS; i++) {
            const ida_param *p = next(t, &at, bindings[i].suffix);
            if (p) *(real **)(void *)((char *)&g->layers[l] + bindings[i].grad) = block + p->offset;
        }
    }
    g->norm = block + next(t, &at, "model.norm.weight")->offset;
    g->lm_head = cfg->tie_embeddings ? g->embed : block + next(t, &at, "lm_head.weight")->offset;
}
