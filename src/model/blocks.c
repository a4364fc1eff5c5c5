/* blocks.c - the layers of a configuration. */
#include "model/blocks.h"

#include <string.h>

#include "core/mem.h"
#include "layers/attend.h"
#include "layers/swiglu.h"

enum { PARTS = 2 }; /* of a block: mixer, SwiGLU */

static ida_backbone backbone_of(const ida_config *c) {
    return (ida_backbone){.d_model = c->d_model, .n_layers = c->n_layers, .max_position = c->max_position,
                          .norm_eps = c->norm_eps, .init_std = c->init_std};
}

ida_layer ida_layers_mixer(const ida_config *c, int64_t block) {
    ida_layer l = {.kind = ida_mixer_layer(c->layer_mixer[block]), .block = (int)block};
    if (l.kind) l.name = ida_mixer_names[c->layer_mixer[block]];
    const ida_attend_options o = {
        .heads = c->n_heads, .groups = c->n_kv_heads, .head_dim = c->d_model / c->n_heads, .state_size = c->state_size,
        .rope_theta = c->rope_theta, .l2_eps = c->l2_eps, .norm_eps = c->norm_eps, .dt_min = c->dt_min, .dt_max = c->dt_max,
        .rope = c->rope, .gate = c->gate, .output_norm = c->output_norm, .discretization = c->discretization,
        .readout = c->readout, .basis = (int)c->basis, .c_init = (int)c->c_init};
    _Static_assert(sizeof o <= sizeof l.options, "options of a layer have IDA_LAYER_OPTIONS bytes");
    memcpy(l.options, &o, sizeof o);
    return l;
}

static ida_layer feed_forward(const ida_config *c, int64_t block) {
    ida_layer l = {.kind = ida_swiglu_layer(), .name = "swiglu", .block = (int)block};
    const ida_swiglu_options o = {.hidden = c->ffn_hidden};
    memcpy(l.options, &o, sizeof o);
    return l;
}

ida_status ida_layers_build(const ida_config *c, ida_layers *out) {
    ida_layers r = {.backbone = backbone_of(c), .n = PARTS * c->n_layers};
    IDA_TRY(IDA_ALLOC(r.at, r.n, "table of layers"));
    for (int64_t i = 0; i < r.n; i++) {
        r.at[i] = i % PARTS == 0 ? ida_layers_mixer(c, i / PARTS) : feed_forward(c, i / PARTS);
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
    for (int64_t i = 0; i < c->n_layers; i++) {
        const ida_layer l = ida_layers_mixer(c, i);
        IDA_FAIL_IF(!l.kind, IDA_E_ARG, "layer_mixers: layer %lld has mixer number %d, which is not known", (long long)i,
                    c->layer_mixer[i]);
        if (l.kind->check) IDA_TRY(l.kind->check(&l));
    }
    return IDA_OK;
}
