/* acts.h - the work space of forward and backward. Internal to the model: others see ida_acts as opaque.
 *
 * Kept per layer when training: the residual stream before each half, the projections, their convolved and rotated forms, the
 * mixer's output, the gate's and SwiGLU's inputs. Everything cheap is formed again in the backward pass by the same ops from the
 * same inputs: norms, feature maps, head norms, SwiGLU. Without training all layers share one set and the residual stream is one
 * buffer. */
#ifndef IDA_MODEL_ACTS_H
#define IDA_MODEL_ACTS_H

#include "core/clock.h"
#include "model/model.h"
#include "model/shape.h"

typedef struct ida_layer_acts {
    real *x1, *x2;            /* [N,d] residual stream before the mixer, before the feed-forward; equal when not training */
    real *q0, *k0, *v0;       /* projections; q0 NULL without query */
    real *q, *k, *v;          /* after convolution and RoPE; where there is no convolution the same buffer as above */
    real *o, *lse;            /* core output [N,ow]; lse [N,H] softmax in training only */
    real *g;                  /* W_g x [N,ow]; NULL without gate */
    real *gate, *up;          /* [N,f] */
} ida_layer_acts;

struct ida_acts {
    ida_config cfg;
    int64_t n_tokens, n_seq, head_rows;
    bool training;
    real *block;              /* the one allocation */
    ida_layer_acts *layers;   /* [n_layers] */
    real *x_last;             /* [N,d] residual stream after the last layer */

    /* Shared by all layers, valid between two ops only. */
    real *xn, *rstd;                    /* [N,d] normed input, [N] */
    real *fq, *fk, *hk, *hv;            /* feature maps; normed k~, v~ */
    real *rq, *rk, *nk, *nv, *no;       /* their 1/r and rstd, [N,H] or [N,G] */
    real *on, *y;                       /* [N,ow] normed o; gated o */
    real *act;                          /* [N,f] */
    real *logits, *rows;                /* [head_rows, vocab], [head_rows, d] */

    /* Training only. */
    real *dx, *dxn;                     /* [N,d] */
    real *dact;                         /* [N,f] */
    real *dq, *dk, *dv, *dt;            /* [N,d] [N,kv] [N,kv]; dt [N,ow]: the other side of ops that must not alias */
    real *dy, *dgate;                   /* [N,ow] */

    real *next_state;                   /* training with carried state: the states after the step; taken at its first use */
    int64_t next_state_len;

    double seconds[IDA_N_PARTS], since;
    ida_part part;
};

/* The time up to now goes to the running part, what follows to `p`. */
static inline void ida_part_begin(ida_acts *a, ida_part p) {
    double now = ida_now();
    a->seconds[a->part] += now - a->since;
    a->since = now;
    a->part = p;
}
static inline void ida_parts_start(ida_acts *a) {
    a->since = ida_now();
    a->part = IDA_PART_OTHER;
}

#endif
