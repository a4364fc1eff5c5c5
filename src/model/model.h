/* model.h - the language model: one flat parameter block described by a table, forward, backward, and the per-sequence state.
 * Not here: files (io), loops (train), sampling (infer). The same source is compiled for double in the tests, where finite
 * differences prove the whole backward pass; so everything numeric is `real` and goes through the op table of the device.
 * Invariant: sizes first, then one allocation per kind (parameters, gradients, activations, state). */
#ifndef IDA_MODEL_H
#define IDA_MODEL_H

#include "idattn/model.h"
#include "ops/device.h"

/* Decay groups (docs/method.md section 8). */
typedef enum ida_group {
    IDA_GROUP_MATRIX = 0,   /* weight decay, full learning rate: projections, SwiGLU, embeddings, lm_head */
    IDA_GROUP_VECTOR = 1,   /* no decay, full rate: RMSNorm gains of the backbone, convolutions, w of s4d */
    IDA_GROUP_SSM = 2,      /* no decay, rate capped: log_dt, a_log, a_imag, C, and gains and biases of method step 5 */
} ida_group;
const char *ida_group_name(ida_group g);

typedef struct ida_param {
    char name[96];          /* HF names: "model.layers.3.mixer.q_proj.weight" */
    int ndim;
    int64_t shape[4];
    int64_t numel, offset;  /* in elements, from the start of the block; offsets are multiples of 16 */
    ida_group group;
    int layer;              /* -1: embed_tokens, norm, lm_head */
} ida_param;

typedef struct ida_param_table {
    ida_param *params;
    int64_t n, numel, block; /* numel: exact count; block: elements to allocate */
} ida_param_table;
ida_status ida_param_table_build(const ida_config *cfg, ida_param_table *t);   /* ~0.1 ms, no weights */
void ida_param_table_free(ida_param_table *t);
const ida_param *ida_param_find(const ida_param_table *t, const char *name);   /* NULL when absent */

/* Initial values (docs/method.md end of section 3) into a block of t->block elements. Tensor i draws from stream INIT+i. */
ida_status ida_param_init(const ida_config *cfg, const ida_param_table *t, uint64_t seed, real *block);

/* Where a layer's weights are: in a parameter block; NULL (data NULL) where the mixer has none. */
typedef struct ida_layer_weights {
    real *norm1, *norm2;                 /* input_layernorm, post_attention_layernorm [d] */
    ida_matrix wq, wk, wv, wo, wg;       /* [.., d]; k, v: [n_kv*dh, d]; wo [d, d] or [d, 2d]; wg gate */
    real *conv_q_w, *conv_q_b, *conv_k_w, *conv_k_b, *conv_v_w, *conv_v_b;
    real *gk, *bk, *gv, *bv;             /* step 5 norms: [dh], [G,dh] */
    real *log_dt, *a_log, *a_imag, *c_re, *c_im, *w; /* w: s4d and dual-linear read-out [H,M] */
    real *onorm;                         /* output_norm gain: [D] (linear read-out: [R+D]) */
    ida_matrix gate, up, down;           /* SwiGLU [f,d] [f,d] [d,f] */
} ida_layer_weights;
/* Weights as the ops read them. */
typedef struct ida_bound {
    ida_layer_weights *layers;           /* [n_layers] */
    ida_matrix embed, lm_head;           /* the same data when tied */
    real *norm;
} ida_bound;

/* The gradients of the same, by the same names, in a block laid out as the parameters are. */
typedef struct ida_layer_grads {
    real *norm1, *norm2, *wq, *wk, *wv, *wo, *wg, *conv_q_w, *conv_q_b, *conv_k_w, *conv_k_b, *conv_v_w, *conv_v_b, *gk, *bk, *gv,
        *bv, *log_dt, *a_log, *a_imag, *c_re, *c_im, *w, *onorm, *gate, *up, *down;
} ida_layer_grads;
typedef struct ida_grads {
    ida_layer_grads *layers;             /* [n_layers] */
    real *embed, *lm_head, *norm;
} ida_grads;

struct ida_model {
    ida_config cfg;
    char *config_text;                   /* the config.json it came from, for the keys of others; NULL: none */
    char *folder;                        /* it was loaded from; NULL: none */
    ida_param_table table;
    const ida_device *dev;
    real *params;                        /* [table.block], device; the masters */
    ida_act *matrices;                   /* [table.block], device: params rounded to act_type, read where a matrix is;
                                            params itself where that is real */
    bool owns_params;
    ida_bound w;
    ida_ssm_prep *prep;                  /* [n_layers] for the step form; made by ida_model_prepare */
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
/* Points m->w (w.layers has n_layers) into m->params and m->matrices. */
void ida_model_bind(ida_model *m);
/* Points `g` (g->layers has n_layers) into a block of gradients, laid out by the table. */
void ida_model_bind_grads(const ida_config *cfg, const ida_param_table *t, real *block, ida_grads *g);
/* (Re)computes the step form's constants from the current weights. A model never prepared takes the chunk form for single
 * tokens. */
ida_status ida_model_prepare(ida_model *m);
/* XXH3-64 over what decides the model's outputs: the shape fields of the config and all weights as they are now. Never 0.
 * Reads every weight (fp32 build only). */
ida_status ida_model_hash(const ida_model *m, uint64_t *hash);

/* ---- state: one block per sequence, all layers. Layout per layer: X re [G,M,W], X im [G,M,W], conv tails [3, width] each;
 * softmax layers keep a key/value cache that grows. fp32 in the product. */
typedef struct ida_state {
    int64_t n_seq;
    int64_t *pos;                        /* [n_seq] tokens consumed */
    int64_t stride;                      /* elements per sequence in block */
    const ida_device *dev;               /* of block and caches; the rest is on the host */
    real *block;                         /* [n_seq, stride] */
    ida_act **k_cache, **v_cache;            /* [n_layers * n_seq]; NULL for layers without cache */
    int64_t n_caches;                    /* n_layers * n_seq */
    int64_t cache_cap;                   /* tokens per sequence the caches hold now */
} ida_state;
int64_t ida_state_stride(const ida_config *cfg);                 /* elements of the fixed part */
ida_status ida_state_new(const ida_config *cfg, const ida_device *dev, int64_t n_seq, ida_state **out); /* zero state */
void ida_state_free(ida_state *s);
ida_status ida_state_zero(ida_state *s);
ida_status ida_state_reserve(const ida_config *cfg, ida_state *s, int64_t cap);  /* caches for cap tokens */
ida_status ida_state_copy(const ida_config *cfg, ida_state *dst, const ida_state *src);
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

/* Seconds spent per part since the last reset, for benches: filled by forward and backward. On a device with a queue only with
 * ida_acts_profile, which waits at the border of every part. */
typedef enum ida_part { IDA_PART_GEMM, IDA_PART_MIXER, IDA_PART_NORM, IDA_PART_HEAD, IDA_PART_OTHER, IDA_N_PARTS } ida_part;
void ida_acts_times(const ida_acts *a, double seconds[IDA_N_PARTS]);
void ida_acts_times_reset(ida_acts *a);
void ida_acts_profile(ida_acts *a, bool on);

#endif
