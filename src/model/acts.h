/* acts.h - the work space of forward and backward. Internal to the model: others see ida_acts as opaque.
 *
 * What a layer keeps for its backward pass, and what it needs only within a pass, are rows of its kind (layers/layer.h). With
 * TRAINING each layer has its own kept buffers. RECOMPUTE keeps the residual stream before a block only; FORWARD keeps nothing and
 * its residual stream is one buffer: then the layers of one block lie beside each other in memory that all blocks share, which is
 * as large as the largest of them needs. Buffers of one pass lie in one place for all layers. All arrays are on the device but
 * where it says host. */
#ifndef IDA_MODEL_ACTS_H
#define IDA_MODEL_ACTS_H

#include "model/model.h"
#include "ops/device.h"

typedef struct ida_part_acts {
    ida_act *x;                       /* [N,d] residual stream before the layer */
    void *buf[IDA_LAYER_BUFFERS]; /* by slot; NULL where the layer has none */
} ida_part_acts;

/* Steps of one token a sequence come again and again with the same arguments. The first ones run op by op: in them the ops take the
 * memory they need, and a short answer needs no more. Then, where the device can, a step is recorded, and those that follow
 * replay it (recorded.c). */
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
    ida_layers layers;
    ida_part_acts *parts;     /* host [layers.n] */
    ida_act *x_last;              /* [N,d] residual stream after the last layer */

    ida_act *xn;                            /* [N,d] normed input of the layer that runs */
    real *rstd;                         /* [N] */
    ida_act *logits, *rows;                 /* [head_rows, vocab], [head_rows, d] */
    real *wide;                         /* [wide_rows, vocab] logits on their way to the host; NULL on a host device */
    int32_t *ids, *targets;             /* [N] copies of the batch's; NULL on a host device, where the batch's own are used */
    real *losses, *host_losses;         /* [N]; host_losses: a host copy, NULL on a host device */
    ida_act *dx, *dxn;                      /* training only: [N,d] */

    real *next_state;                   /* training with carried state: the states after the step; taken at its first use */
    int64_t next_state_len;

    ida_steps steps;
    ida_parts times;
};

#endif
