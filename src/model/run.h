/* run.h - what forward.c, backward.c and recorded.c share: one pass over the layers. */
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

/* Brings ids and targets to the device. */
ida_status ida_run_upload(ida_run *r);
/* From the ids on the device up to x_last. Positions in the state are not advanced yet. */
ida_status ida_run_layers(const ida_run *r);
/* From x_last to xn, rstd. */
ida_status ida_run_final_norm(const ida_run *r);
/* Everything the layers of a block keep for their backward pass, from the residual stream before it. */
ida_status ida_run_block_kept(const ida_run *r, int64_t block);
/* The arguments of one layer's functions; without gradients. */
ida_layer_ctx ida_run_ctx(const ida_run *r, int64_t part);

/* A step as recorded.c has it: whether this call is one that a recording can give; the step. */
bool ida_run_recordable(const ida_run *r, const real *losses, const real *logits, const int64_t *logit_rows, int64_t n_rows);
ida_status ida_run_recorded(ida_run *r, real *logits);

#endif
