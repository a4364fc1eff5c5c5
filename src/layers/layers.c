/* layers.c - the list of kinds, and what is computed from their rows. */
#include "layers/layer.h"

#include <math.h>
#include <string.h>

#include "idattn/config.h"

#define IDA_MIXER(number, symbol, name) extern const ida_layer_kind *const ida_layer_##symbol;
#define IDA_FEED_FORWARD(symbol) extern const ida_layer_kind *const ida_layer_##symbol;
#include "layers/layers.def"
#undef IDA_MIXER
#undef IDA_FEED_FORWARD

const ida_layer_kind *ida_mixer_layer(int mixer) {
    static const ida_layer_kind *const *const mixers[] = {
#define IDA_MIXER(number, symbol, name) [number] = &ida_layer_##symbol,
#define IDA_FEED_FORWARD(symbol)
#include "layers/layers.def"
#undef IDA_MIXER
#undef IDA_FEED_FORWARD
    };
    return mixer >= 0 && mixer < (int)(sizeof mixers / sizeof *mixers) ? *mixers[mixer] : NULL;
}

const char *const ida_mixer_names[] = {
#define IDA_MIXER(number, symbol, name) [number] = name,
#define IDA_FEED_FORWARD(symbol)
#include "layers/layers.def"
#undef IDA_MIXER
#undef IDA_FEED_FORWARD
    NULL};

const ida_layer_kind *ida_swiglu_layer(void) { return ida_layer_swiglu; }

void ida_layer_place(ida_layer *l, const ida_backbone *b, int64_t *state) {
    const ida_layer_kind *k = l->kind;
    l->dims = (ida_dims){0};
    *ida_dim_at(l, 'd') = b->d_model;
    k->dims(l);
    for (int i = 0; i < IDA_LAYER_STATES; i++) l->state[i] = -1;
    for (int i = 0; i < k->n_states; i++) {
        l->state[k->state[i].slot] = *state;
        *state += ida_layer_elements(l, k->state[i].shape);
    }
}

int64_t ida_layer_elements(const ida_layer *l, const char *shape) {
    int64_t n = 1;
    for (; *shape; shape++) n *= ida_dim(l, *shape);
    return n;
}

ida_start ida_start_normal(const ida_layer *l, const ida_backbone *b) {
    (void)l;
    return (ida_start){.law = IDA_LAW_NORMAL, .a = b->init_std};
}
ida_start ida_start_out(const ida_layer *l, const ida_backbone *b) {
    (void)l;
    return (ida_start){.law = IDA_LAW_NORMAL, .a = b->init_std / sqrt(2 * (double)b->n_layers)};
}
ida_start ida_start_one(const ida_layer *l, const ida_backbone *b) {
    (void)l, (void)b;
    return (ida_start){.law = IDA_LAW_CONST, .a = 1};
}
ida_start ida_start_zero(const ida_layer *l, const ida_backbone *b) {
    (void)l, (void)b;
    return (ida_start){.law = IDA_LAW_CONST, .a = 0};
}
ida_start ida_start_half(const ida_layer *l, const ida_backbone *b) {
    (void)l, (void)b;
    return (ida_start){.law = IDA_LAW_UNIFORM, .a = -0.5, .b = 1};
}

ida_status ida_product_bwd(const ida_layer_ctx *c, int slot, const ida_act *g, bool add) {
    return c->dev->ops->linear_bwd(c->dev, c->dxn, c->dw[slot], g, c->xn, &c->w[slot].matrix, c->n, add);
}
