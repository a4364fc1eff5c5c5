/* run.h - what forward.c and backward.c share: one pass over the layers, and the parts that the backward pass forms again. */
#ifndef IDA_MODEL_RUN_H
#define IDA_MODEL_RUN_H

#include "model/acts.h"

typedef struct ida_run {
    const ida_model *m;
    ida_acts *a;
    const ida_batch *b;
    const int32_t *ids, *targets; /* of b, on the device */
    ida_seqs seqs;            /* of b, with pos0 from the state when there is one */
    ida_state *state;         /* NULL = all zero, nothing kept */
    real *state_out;          /* where the new states go: state->block, or next to it in training */
    bool step;
} ida_run;

/* Brings the batch to the device, then up to x_last. Positions in the state are not advanced yet. */
ida_status ida_run_layers(ida_run *r);
/* From x_last to xn, rstd. */
ida_status ida_run_final_norm(const ida_run *r);
/* Everything a layer keeps for its backward pass, from x1: all but SwiGLU and its product. */
ida_status ida_run_layer_kept(const ida_run *r, int64_t layer);

typedef struct ida_core_in { const ida_act *q, *k, *v; } ida_core_in;
/* The way from a projection to the core's q, k or v (which: 0, 1, 2). y == args.x where nothing is done on the way. first: the
 * forward pass, which leaves the new convolution state. */
ida_stream ida_run_stream(const ida_run *r, const ida_shape *s, int64_t layer, int which, bool first);
ida_status ida_run_core_inputs(const ida_run *r, const ida_shape *s, int64_t layer, bool first, ida_core_in *in);
/* The mixer's output as W_o sees it: normed and gated o. Either may be o itself. */
ida_status ida_run_output(const ida_run *r, const ida_shape *s, int64_t layer, ida_act **normed, ida_act **y);

/* Argument blocks of the ops that read or write state. */
ida_state_layout ida_run_state(const ida_run *r, int64_t layer);
ida_ssm ida_run_ssm(const ida_run *r, int64_t layer);
ida_interdomain_args ida_run_interdomain(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in,
                                         const ida_state_layout *l);
ida_s4d_args ida_run_s4d(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in, const ida_state_layout *l);

/* Part of a state block, NULL when the block or the part is not there. */
static inline real *ida_state_at(real *block, int64_t offset) { return block && offset >= 0 ? block + offset : NULL; }

#endif
