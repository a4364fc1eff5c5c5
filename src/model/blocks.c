/* blocks.c - the layers of a configuration. */
#include "model/blocks.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "layers/swiglu.h"
#include "model/config.h"
#include "model/own.h"

enum { PARTS = 2 }; /* of a block: mixer, SwiGLU */

static ida_backbone backbone_of(const ida_config *c) {
    return (ida_backbone){.d_model = c->d_model, .n_layers = c->n_layers, .max_position = c->max_position,
                          .norm_eps = c->norm_eps, .init_std = c->init_std};
}

/* The row of the whole model for a layer's key: the same, or within "mixer". */
static const ida_field *model_row(const char *key) {
    char inner[64];
    const ida_field *f = ida_fields_find(&ida_config_fields, key);
    if (f) return f;
    snprintf(inner, sizeof inner, "mixer.%s", key);
    return ida_fields_find(&ida_config_fields, inner);
}

/* A mixer with the options of the whole model. Its keys are looked up by name: once for a run of blocks of one kind. */
static ida_layer model_mixer(const ida_config *c, int number) {
    ida_layer l = {.kind = ida_mixer_layer(number), .name = ida_mixer_names[number]};
    const ida_fields *t = l.kind->options;
    assert(t->bytes <= sizeof l.options && t->n <= 32);
    ida_fields_defaults(t, l.options);
    for (int64_t i = 0; i < t->n; i++) {
        const ida_field *from = model_row(t->rows[i].key);
        if (from) ida_field_copy(&t->rows[i], l.options, from, c);
    }
    return l;
}

/* *model: model_mixer of the kind met last; its kind is NULL at first. */
static ida_layer next_mixer(const ida_config *c, int64_t block, ida_layer *model) {
    const int number = c->layer_mixer[block];
    if (model->kind != ida_mixer_layer(number)) *model = model_mixer(c, number);
    ida_layer l = *model;
    l.block = (int)block;
    for (int64_t i = 0; i < l.kind->options->n; i++) {
        const void *base;
        const ida_field *own = ida_own_row(c, block, i, &base);
        if (own) ida_field_copy(own, l.options, own, base);
    }
    return l;
}

ida_layer ida_layers_mixer(const ida_config *c, int64_t block) {
    ida_layer model = {0};
    return next_mixer(c, block, &model);
}

static ida_layer feed_forward(const ida_config *c, int64_t block) {
    ida_layer l = {.kind = ida_swiglu_layer(), .name = "swiglu", .block = (int)block};
    const ida_swiglu_options o = {.hidden = c->ffn_hidden};
    memcpy(l.options, &o, sizeof o);
    return l;
}

ida_status ida_layers_build(const ida_config *c, ida_layers *out) {
    ida_layers r = {.backbone = backbone_of(c), .n = PARTS * c->n_layers, .per_block = PARTS};
    ida_layer model = {0};
    IDA_TRY(IDA_ALLOC(r.at, r.n, "table of layers"));
    for (int64_t i = 0; i < r.n; i++) {
        r.at[i] = i % PARTS == 0 ? next_mixer(c, i / PARTS, &model) : feed_forward(c, i / PARTS);
        ida_layer_place(&r.at[i], &r.backbone, &r.stride);
        if (i % PARTS == 0) r.caps |= r.at[i].kind->caps;
    }
    r.stride = ida_round16(r.stride);
    *out = r;
    return IDA_OK;
}

void ida_layers_free(ida_layers *l) {
    ida_free(l->at);
    *l = (ida_layers){0};
}

ida_status ida_layers_check(const ida_config *c) {
    const ida_backbone b = backbone_of(c);
    ida_layer model = {0};
    for (int64_t i = 0; i < c->n_layers; i++)
        IDA_FAIL_IF(!ida_mixer_layer(c->layer_mixer[i]), IDA_E_ARG, "layer_mixers: layer %lld has mixer number %d, which is not known",
                    (long long)i, c->layer_mixer[i]);
    IDA_TRY(ida_own_check(c));
    for (int64_t i = 0; i < c->n_layers; i++) {
        ida_layer l = next_mixer(c, i, &model);
        int64_t state = 0;
        ida_layer_place(&l, &b, &state);
        if (l.kind->check) IDA_TRY(l.kind->check(&l));
    }
    return IDA_OK;
}
