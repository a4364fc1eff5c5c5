/* acts.h - the work space of forward and backward. Internal to the model: others see ida_acts as opaque.
 *
 * Kept per layer when training: the residual stream before each half, the projections, the mixer's output, the gate's and
 * SwiGLU's inputs. Everything cheap is formed again in the backward pass by the same ops from the same inputs: norms, the way
 * from projection to core (stream), SwiGLU. RECOMPUTE keeps the residual stream before a layer only. FORWARD: all layers share
 * one set and the residual stream is one buffer. All arrays are on the device but where it says host. */
#ifndef IDA_MODEL_ACTS_H
#define IDA_MODEL_ACTS_H

#include "core/clock.h"
#include "model/model.h"
#include "model/shape.h"
#include "ops/device.h"

typedef struct ida_layer_acts {
    ida_act *x1, *x2;             /* [N,d] residual stream before the mixer, before the feed-forward; equal in FORWARD */
    ida_act *q0, *k0, *v0;        /* projections; q0 NULL without query */
    ida_act *o;                   /* core output [N,ow] */
    real *lse;                /* [N,H] softmax in training only */
    ida_act *g;                   /* W_g x [N,ow]; NULL without gate */
    ida_act *gate, *up;           /* [N,f] */
} ida_layer_acts;

/* Steps of one token a sequence come again and again with the same arguments: where the device can, one is recorded after some
 * op by op, which have the ops take what memory they need and which a short answer does with; those that follow replay it. */
enum { IDA_STEPS_BEFORE = 4 };
typedef struct ida_step_key { /* what a recording holds beside the addresses of these acts */
    const ida_model *model;
    const real *prep, *params, *state;
    const ida_act *matrices;
    int64_t n_seq;
} ida_step_key;
typedef struct ida_steps {
    ida_step_key key;
    ida_recording *recording;
    int64_t seen; /* with this key */
    bool off;     /* the device could not record them */
} ida_steps;

struct ida_acts {
    ida_config cfg;
    const ida_device *dev;
    int64_t n_tokens, n_seq, head_rows, wide_rows;
    ida_acts_kind kind;
    void *block;              /* the one allocation */
    ida_layer_acts *layers;   /* host [n_layers] */
    ida_act *x_last;              /* [N,d] residual stream after the last layer */

    /* Shared by all layers, valid between two ops only. */
    ida_act *xn;                            /* [N,d] normed input */
    real *rstd;                         /* [N] */
    ida_act *q, *k, *v;                     /* [N,qw] [N,kvw]: inputs of the core */
    real *no;                           /* [N,H] */
    ida_act *on, *y;                        /* [N,ow] normed o; gated o */
    ida_act *ff;                            /* [N,f] SiLU(gate) up */
    ida_act *logits, *rows;                 /* [head_rows, vocab], [head_rows, d] */
    real *wide;                         /* [wide_rows, vocab] logits on their way to the host; NULL on a host device */
    int32_t *ids, *targets;             /* [N] copies of the batch's; NULL on a host device, where the batch's own are used */
    real *losses, *host_losses;         /* [N]; host_losses: a host copy, NULL on a host device */

    /* Training only. */
    ida_act *dx, *dxn;                      /* [N,d] */
    ida_act *dff;                           /* [N,f] */
    ida_act *dq, *dk, *dv, *dt;             /* [N,d] [N,kv] [N,kv]; dt [N,ow]: the other side of ops that must not alias */
    ida_act *dy, *dgate;                    /* [N,ow] */

    real *next_state;                   /* training with carried state: the states after the step; taken at its first use */
    int64_t next_state_len;

    ida_steps steps;
    double seconds[IDA_N_PARTS], since;
    ida_part part;
    bool profile;
};

/* The time up to now goes to the running part, what follows to `p`. */
static inline void ida_part_begin(ida_acts *a, ida_part p) {
    if (a->profile) (void)ida_dev_sync(a->dev); /* a failure stays with the queue: the next wait reports it */
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
