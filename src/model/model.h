/* model.h - the language model: one flat parameter block described by a table, forward, backward, and the per-sequence state.
 * Not here: files (io), loops (train), sampling (infer). The same source is compiled for double in the tests, where finite
 * differences prove the whole backward pass; so everything numeric is `real` and goes through the op table of the device.
 * Invariant: sizes first, then one allocation per kind (parameters, gradients, activations, state). */
#ifndef IDA_MODEL_H
#define IDA_MODEL_H

#include "idattn/model.h"
#include "model/blocks.h"
#include "ops/device.h"

const char *ida_group_name(ida_group g);

typedef struct ida_param {
    char name[96];          /* HF names: "model.layers.3.mixer.q_proj.weight" */
    int ndim;
    int64_t shape[4];
    int64_t numel, offset;  /* in elements, from the start of the block; offsets are multiples of 16 */
    ida_group group;
    int layer;              /* block; -1: embed_tokens, norm, lm_head */
    int part, slot;         /* residual part (blocks.h) and slot in it (layers/layer.h); slot -1: its norm's gain */
    ida_start start;
} ida_param;

typedef struct ida_param_table {
    ida_param *params;
    int64_t n, numel, block; /* numel: exact count; block: elements to allocate */
    int64_t norm, lm_head;   /* which they are; embed_tokens is 0, and lm_head too when tied */
} ida_param_table;
ida_status ida_param_table_build(const ida_config *cfg, ida_param_table *t);   /* ~0.1 ms, no weights */
void ida_param_table_free(ida_param_table *t);
const ida_param *ida_param_find(const ida_param_table *t, const char *name);   /* NULL when absent */

/* Initial values (docs/method.md end of section 3) into a block of t->block elements. Tensor i draws from stream INIT+i. */
ida_status ida_param_init(const ida_config *cfg, const ida_param_table *t, uint64_t seed, real *block);

/* Weights as the ops read them, by residual part. */
typedef struct ida_part_weights { real *gain; ida_weight w[IDA_LAYER_TENSORS]; } ida_part_weights;
typedef struct ida_weights_at {
    ida_part_weights *parts;             /* [n parts] */
    ida_matrix embed, lm_head;           /* the same one when tied */
    real *norm;
} ida_weights_at;
/* Gradients, or any other block of reals laid out as the parameters are. */
typedef struct ida_part_reals { real *gain; real *w[IDA_LAYER_TENSORS]; } ida_part_reals;
typedef struct ida_reals_at {
    ida_part_reals *parts;
    real *embed, *lm_head, *norm;
} ida_reals_at;

struct ida_model {
    ida_config cfg;
    char *config_text;                   /* the config.json it came from, for the keys of others; NULL: none */
    char *folder;                        /* it was loaded from; NULL: none */
    ida_layers layers;
    ida_param_table table;
    const ida_device *dev;
    real *params;                        /* [table.block], device; the masters */
    ida_act *matrices;                       /* [table.block], device: params rounded to act, read where a matrix is;
                                            params itself where act is real */
    bool owns_params;
    ida_weights_at w;
    real **prep;                         /* [n parts] constants of the step form; made by ida_model_prepare; NULL = none */
    real *prep_block;                    /* device */
};

/* Model around a parameter block on dev: allocates it (params NULL, uninitialised values) or borrows it. */
ida_status ida_model_new(const ida_config *cfg, const ida_device *dev, real *params, ida_model **out);
/* ida_model_create on dev: initial values of a seed, ready to step. */
ida_status ida_model_create_on(const ida_config *cfg, const ida_device *dev, uint64_t seed, ida_model **out);
/* Fills the masters and the matrices from a host block laid out by the table. */
ida_status ida_model_upload(ida_model *m, const real *host);
/* Initial values (ida_param_init) in the masters and the matrices, the same on every device: they are made on the host. */
ida_status ida_model_init(ida_model *m, uint64_t seed);
/* Whether the matrices are a copy of the masters. */
static inline bool ida_model_rounds(const ida_model *m) { return (const void *)m->matrices != (const void *)m->params; }
/* After the masters were written by other means: makes m->matrices again. */
ida_status ida_model_round(ida_model *m);
/* Pointers into blocks laid out by the table; `parts` has room for them. Matrices are taken from `matrices`, whose elements are of
 * the device's act_type. */
void ida_weights_bind(const ida_param_table *t, const ida_device *dev, real *block, ida_act *matrices, ida_weights_at *w);
void ida_reals_bind(const ida_param_table *t, real *block, ida_reals_at *r);
/* (Re)computes the step form's constants from the current weights. A model never prepared takes the chunk form for single
 * tokens. */
ida_status ida_model_prepare(ida_model *m);
/* XXH3-64 over what decides the model's outputs: the shape fields of the config and all weights as they are now. Never 0.
 * Reads every weight (fp32 build only). */
ida_status ida_model_hash(const ida_model *m, uint64_t *hash);

/* ---- state: one block per sequence, all layers, each laid out by the rows of its kind (interdomain: X re [G,M,W], X im, tails of
 * the convolutions [3,width]); layers with a cache keep keys and values, which grow. fp32 in the product. */
typedef struct ida_state {
    int64_t n_seq;
    int64_t *pos;                        /* [n_seq] tokens consumed */
    int64_t stride;                      /* elements per sequence in block */
    const ida_device *dev;               /* of block and caches; the rest is on the host */
    real *block;                         /* [n_seq, stride] */
    ida_act **k_cache, **v_cache;            /* [n_layers * n_seq]; NULL for layers without cache */
    int64_t n_layers;
    int64_t (*cache_width)[2];           /* [n_layers] elements of a token's key and value; 0 = no cache */
    int64_t cache_cap;                   /* tokens per sequence the caches hold now */
} ida_state;
ida_status ida_state_new(const ida_config *cfg, const ida_device *dev, int64_t n_seq, ida_state **out); /* zero state */
void ida_state_free(ida_state *s);
ida_status ida_state_zero(ida_state *s);
ida_status ida_state_reserve(ida_state *s, int64_t cap);         /* caches for cap tokens */
int64_t ida_state_cache_width(const ida_state *s);               /* elements that a token takes in all caches */
ida_status ida_state_copy(ida_state *dst, const ida_state *src);
/* A copy on another device; caches change their element type with it. One of the two devices is a host device. */
ida_status ida_state_move(const ida_config *cfg, const ida_state *src, const ida_device *dev, ida_state **out);

/* ---- running */
typedef struct ida_batch {
    int64_t n_tokens;
    const int32_t *ids;                  /* [n_tokens], host, each in [0, vocab): checked by the caller */
    const int32_t *targets;              /* [n_tokens], host, -1 = not scored; NULL when no loss is wanted */
    ida_seqs seqs;                       /* packed documents */
} ida_batch;

/* Work space for batches of up to n_tokens tokens and n_seq sequences. FORWARD: layers share one set. TRAINING: everything the
 * backward pass needs is kept, per layer. RECOMPUTE: as TRAINING, but only the residual stream at a layer's start is kept and the
 * rest is formed again in the backward pass (activation checkpointing): one more forward pass, the same bits. */
typedef struct ida_acts ida_acts;
typedef enum ida_acts_kind { IDA_ACTS_FORWARD, IDA_ACTS_TRAINING, IDA_ACTS_RECOMPUTE } ida_acts_kind;
/* What ida_acts_new takes on the device; *logits (NULL = not wanted): that part of it that holds blocks of logits. */
ida_status ida_acts_bytes(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                          int64_t *bytes, int64_t *logits);
ida_status ida_acts_new(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                        ida_acts **out);
void ida_acts_free(ida_acts *a);

/* losses and logits are on the host, everything else is on the model's device (acts and state must be of the same).
 * Forward. state NULL: every sequence starts from zero and nothing is kept; else state (n_seq = batch->seqs.n) is read and
 * advanced, and seqs.pos0 must be state->pos. losses [n_tokens] (NULL = not wanted) from batch->targets. logits: rows
 * logit_rows[0..n_rows) -> [n_rows, vocab] (NULL/0 = none). When every sequence has exactly one token and a state is given, the
 * step form runs. lm_head works on blocks of rows: the full [N, vocab] logits never exist. */
ida_status ida_model_forward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, real *losses,
                             real *logits, const int64_t *logit_rows, int64_t n_rows);
/* Training step half: forward with loss and backward. grads (laid out as params) are "+=": gradient of
 * loss_scale * sum of losses. *loss_sum = sum of losses over scored tokens, *n_scored their count. acts must be of a training
 * kind. grads is on the device. state as above (truncated: no gradient flows into it; the first call takes a second block of its
 * size; IDA_E_UNSUPPORTED with softmax layers). On failure the state is as it was. dx0 (NULL = not wanted): gradient at the
 * embedding output [N, d], on the device. */
ida_status ida_model_forward_backward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, double loss_scale,
                                      real *grads, double *loss_sum, int64_t *n_scored, ida_act *dx0);

/* Seconds spent per part since the last reset (layers/parts.h): filled by forward and backward. On a device with a queue only with
 * ida_acts_profile. */
void ida_acts_times(const ida_acts *a, double seconds[IDA_N_PARTS]);
void ida_acts_times_reset(ida_acts *a);
void ida_acts_profile(ida_acts *a, bool on);

#endif
