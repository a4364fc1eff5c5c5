/* run.h - what forward.c and backward.c share: one pass over the layers, and the parts that the backward pass forms again. */
#ifndef IDA_MODEL_RUN_H
#define IDA_MODEL_RUN_H

#include "model/acts.h"

typedef struct ida_run {
    const ida_model *m;
    ida_acts *a;
    const ida_batch *b;
    ida_seqs seqs;            /* of b, with pos0 from the state when there is one */
    ida_state *state;         /* NULL = all zero, nothing kept */
    real *state_out;          /* where the new states go: state->block, or next to it in training */
    bool step;
} ida_run;

/* Up to x_last. Positions in the state are not advanced yet. */
ida_status ida_run_layers(ida_run *r);

/* q, k, v of the core from the stored convolved projections (feature maps, head norms), and the pieces on the way. */
typedef struct ida_core_in { const real *q, *k, *v; } ida_core_in;
ida_status ida_run_core_inputs(const ida_run *r, const ida_shape *s, int64_t layer, ida_core_in *in);
/* The mixer's output as W_o sees it: normed and gated o. Either may be o itself. */
ida_status ida_run_output(const ida_run *r, const ida_shape *s, int64_t layer, real **normed, real **y);

/* Argument blocks of the ops that read or write state. */
ida_state_layout ida_run_state(const ida_run *r, int64_t layer);
ida_ssm ida_run_ssm(const ida_run *r, int64_t layer);
ida_interdomain_args ida_run_interdomain(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in,
                                         const ida_state_layout *l);
ida_s4d_args ida_run_s4d(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in, const ida_state_layout *l);

/* Part of a state block, NULL when the block or the part is not there. */
static inline real *ida_state_at(real *block, int64_t offset) { return block && offset >= 0 ? block + offset : NULL; }

#endif
