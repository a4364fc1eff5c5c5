/* shape.h - what each mixer is made of (docs/method.md section 3): the one table from which parameters, activations, state,
 * forward and backward take their widths. Not here: numbers that depend on anything but the config. */
#ifndef IDA_MODEL_SHAPE_H
#define IDA_MODEL_SHAPE_H

#include "idattn/config.h"

typedef struct ida_shape {
    ida_mixer_kind kind;
    bool softmax;                   /* key/value cache, no recurrence */
    bool linear;                    /* s4d, dual-linear: read-out without query, width R + D per head */
    bool query;                     /* has W_q */
    bool feat_q, feat_k;            /* feature map on q, on k */
    bool conv_q, conv_k, conv_v;
    int64_t h, g, dh, m;            /* query heads, groups, head width (= R = D), modes */
    int64_t qw, kvw;                /* width of q, and of k and v */
    int64_t hw, ow;                 /* width of o per head, and in all */
} ida_shape;

static inline ida_shape ida_layer_shape(const ida_config *c, int64_t layer) {
    ida_mixer_kind kind = (ida_mixer_kind)c->layer_mixer[layer];
    ida_shape s = {.kind = kind, .h = c->n_heads, .g = c->n_kv_heads, .dh = c->d_model / c->n_heads, .m = c->state_size};
    s.softmax = kind == IDA_MIXER_SOFTMAX;
    s.linear = kind == IDA_MIXER_S4D || kind == IDA_MIXER_DUAL_LINEAR;
    s.query = !s.linear;
    s.feat_q = kind == IDA_MIXER_INTERDOMAIN || kind == IDA_MIXER_SINGLE_QUERY;
    s.feat_k = kind == IDA_MIXER_INTERDOMAIN || kind == IDA_MIXER_DUAL_LINEAR;
    s.conv_q = s.feat_q;
    s.conv_k = !s.softmax;
    s.conv_v = kind == IDA_MIXER_SINGLE_QUERY || kind == IDA_MIXER_S4D;
    s.qw = s.h * s.dh;
    s.kvw = s.g * s.dh;
    s.hw = s.linear ? 2 * s.dh : s.dh;
    s.ow = s.h * s.hw;
    return s;
}

static inline bool ida_any_softmax(const ida_config *c) {
    for (int64_t l = 0; l < c->n_layers; l++)
        if (ida_layer_shape(c, l).softmax) return true;
    return false;
}

/* Where the parts of one layer's state lie, in elements from the start of a sequence's block; -1 where there is none. */
typedef struct ida_state_layout { int64_t x_re, x_im, conv_q, conv_k, conv_v, end; } ida_state_layout;

static inline ida_state_layout ida_layer_state(const ida_shape *s, int64_t start) {
    ida_state_layout l = {-1, -1, -1, -1, -1, start};
    if (s->softmax) return l;
    int64_t x = s->g * s->m * 2 * s->dh;
    l.x_re = start;
    l.x_im = start + x;
    l.end = start + 2 * x;
    if (s->conv_q) { l.conv_q = l.end; l.end += 3 * s->qw; }
    if (s->conv_k) { l.conv_k = l.end; l.end += 3 * s->kvw; }
    if (s->conv_v) { l.conv_v = l.end; l.end += 3 * s->kvw; }
    return l;
}

/* Buffers start at multiples of 16 elements (64 bytes of float). */
static inline int64_t ida_round16(int64_t n) { return (n + 15) / 16 * 16; }

#endif
