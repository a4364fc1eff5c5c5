/* layer.h - a kind of layer as one object: its tensors, its state, its buffers as rows of tables, and the functions that run it.
 * A layer here is one residual part of a block, x + W_out y(W_1 n, W_2 n, ...) with n = RMSNorm(x): a token mixer or the SwiGLU.
 * The frame around it (norm, first products, last product) is the model's (model/forward.c, model/backward.c); a kind fills in
 * what is between. Kinds are listed in layers.def. Not here: which layers a model has (model/blocks.c), memory (model/acts.c).
 *
 * Rows name their sizes by letters (ida_dims), so a tensor's shape is "qd", a state's "GMW", a buffer's width "f". What a row
 * describes is found at its slot: w[slot], state[slot], buf[slot]; a layer that lacks the row has NULL or -1 there.
 * Invariant: a kind names no model, no config and no file. */
#ifndef IDA_LAYERS_LAYER_H
#define IDA_LAYERS_LAYER_H

#include "core/fields.h"
#include "layers/parts.h"
#include "ops/device.h"

enum { IDA_LAYER_OPTIONS = 120 /* bytes */, IDA_LAYER_TENSORS = 32, IDA_LAYER_STATES = 8, IDA_LAYER_BUFFERS = 24 };

/* What all layers of a model share. */
typedef struct ida_backbone {
    int64_t d_model, n_layers, max_position;
    double norm_eps, init_std;
} ida_backbone;

/* Sizes by letter; a digit is itself. The frame sets d = d_model; each kind sets its own. Letters of the mixers:
 *   H query heads, G groups, R and D widths of a head's key and value, M modes, W = R + D, q = H R, k = G R, v = G D,
 *   w width of a head's output, o = H w, t = the largest of q, k, v, o.   SwiGLU: f = hidden width. */
typedef struct ida_dims { int64_t at[58]; /* from 'A' to 'z' */ } ida_dims;

/* Decay groups (docs/method.md section 8). */
typedef enum ida_group {
    IDA_GROUP_MATRIX = 0,   /* weight decay, full learning rate: projections, SwiGLU, embeddings, lm_head */
    IDA_GROUP_VECTOR = 1,   /* no decay, full rate: RMSNorm gains of the backbone, convolutions, w of s4d */
    IDA_GROUP_SSM = 2,      /* no decay, rate capped: log_dt, a_log, a_imag, C, and gains and biases of method step 5 */
} ida_group;

typedef struct ida_layer ida_layer;

/* How a tensor's elements begin. normal: a N(0,1); uniform: a + b U(0,1); const: a; own: the kind's init fills them. */
typedef enum ida_law { IDA_LAW_NORMAL, IDA_LAW_UNIFORM, IDA_LAW_CONST, IDA_LAW_OWN } ida_law;
typedef struct ida_start { ida_law law; double a, b; } ida_start;

/* A parameter. Rows stand in storage order, which is the order of every file and the numbering of the random streams. */
typedef struct ida_tensor_row {
    int slot;
    const char *name;       /* after the kind's prefix: "q_proj.weight" */
    const char *shape;      /* letters, at most four */
    ida_group group;        /* of the optimiser; MATRIX tensors are read as stored weights, all others as real */
    ida_start (*start)(const ida_layer *l, const ida_backbone *b);
    size_t when;            /* offset of a bool in the options that must be set; 0 = always there */
    bool prepared;          /* prepare reads it */
} ida_tensor_row;

/* A part of the fixed state of one sequence, real; parts lie in this order. */
typedef struct ida_state_row { int slot; const char *shape; } ida_state_row;

/* A buffer of N rows. KEPT: from the forward to the backward pass. WORK: within one pass of this layer. GRADIENT: within its
 * backward pass. TRAINED: kept, but only where a backward pass follows. */
typedef enum ida_life { IDA_KEPT, IDA_TRAINED, IDA_WORK, IDA_GRADIENT } ida_life;
typedef struct ida_buffer_row {
    int slot;
    char width;             /* letter */
    bool real;              /* elements are real, else ida_act */
    ida_life life;
    size_t when;            /* as in ida_tensor_row */
} ida_buffer_row;

/* A weight as the ops read it: matrix for tensors of the MATRIX group, else vector; the other one has no data, or is NULL. */
typedef struct ida_weight { ida_matrix matrix; real *vector; } ida_weight;

/* One call of a layer. Pointers are to the device's memory. */
typedef struct ida_layer_ctx {
    const ida_device *dev;
    const ida_layer *layer;
    const ida_backbone *backbone;
    const ida_weight *w;            /* [IDA_LAYER_TENSORS] */
    real *const *dw;                /* gradients by the same slots; NULL in a forward pass */
    void *const *buf;               /* [IDA_LAYER_BUFFERS] */
    const ida_seqs *seqs;
    int64_t n;                      /* tokens */
    const real *state_in;           /* states before the batch: sequence s at + s * stride; NULL = all zero */
    real *state_out;                /* where the states after it go; NULL = not wanted */
    int64_t stride;
    ida_act *const *k_cache, *const *v_cache; /* of this layer, host arrays [S]; NULL = none */
    const real *prep;               /* constants of the step form */
    bool step;                      /* one token a sequence, with state */
    ida_act *xn, *dxn;                  /* [N,d] normed input; its gradient, which backward writes */
    ida_parts *parts;
} ida_layer_ctx;

enum {                              /* caps */
    IDA_LAYER_CACHE = 1,            /* its state grows: keys and values of every token, widths k and v */
    IDA_LAYER_KEEPS_PRODUCTS = 2,   /* after its products everything that backward needs is there */
};

typedef struct ida_layer_kind {
    const char *prefix, *norm;      /* of its tensors' names: "mixer."; the name of the gain: "input_layernorm.weight" */
    unsigned caps;
    const ida_fields *options;      /* of one layer, at most 32; a key of config.json, there maybe within "mixer" */
    ida_part part;                  /* which share of the time it counts to */
    const ida_tensor_row *tensors;
    const ida_state_row *state;     /* NULL = none */
    const ida_buffer_row *buffers;
    int n_tensors, n_states, n_buffers;
    int out, dy;                    /* slot of W_out; slot of the buffer that takes the gradient at y */
    /* Sizes from the layer's options into l->dims, where d is set; options that follow from others are filled in. */
    void (*dims)(ida_layer *l);
    /* Options that do not go together, of a layer with its sizes: IDA_E_ARG. Each is in its own range. NULL = all go. */
    ida_status (*check)(const ida_layer *l);
    /* Of one token, beside the products with W (model/info.c tells what counts). NULL = none. */
    int64_t (*flops)(const ida_layer *l, const ida_backbone *b);
    /* What the rows' laws cannot say; w: host pointers by slot. NULL = nothing. */
    ida_status (*init)(const ida_layer *l, real *const *w);
    /* Constants of the step form, made on the host once per model: how many, and from which tensors (w: host pointers by slot,
     * the `prepared` ones). NULL = none. */
    int64_t (*prep_len)(const ida_layer *l);
    void (*prepare)(const ida_layer *l, const real *const *w, real *out);
    /* The products that read xn: fills p [IDA_MOST_PRODUCTS], returns how many. */
    int (*products)(const ida_layer_ctx *c, ida_product *p);
    /* From the products to *y [N, width of W_out]. again: formed once more for the backward pass, from what was kept; the state
     * is not written. */
    ida_status (*forward)(const ida_layer_ctx *c, bool again, ida_act **y);
    /* From buf[dy], after forward(again), to c->dxn and the gradients of all tensors but W_out. */
    ida_status (*backward)(const ida_layer_ctx *c);
} ida_layer_kind;

/* A layer of a model. */
struct ida_layer {
    const ida_layer_kind *kind;
    const char *name;                            /* of the kind, as in config.json: "interdomain" */
    int block;                                   /* which block of the model it is in */
    ida_dims dims;
    int64_t state[IDA_LAYER_STATES];             /* by slot: elements from the start of a sequence's block; -1 = none */
    _Alignas(8) unsigned char options[IDA_LAYER_OPTIONS]; /* the kind's own struct */
};

/* The mixers, in the numbering of ida_mixer_kind; NULL past the last. */
extern const char *const ida_mixer_names[]; /* in the same numbering, then NULL */
const ida_layer_kind *ida_mixer_layer(int mixer);
const ida_layer_kind *ida_swiglu_layer(void);

static inline int64_t *ida_dim_at(ida_layer *l, char letter) { return &l->dims.at[letter - 'A']; }
static inline int64_t ida_dim(const ida_layer *l, char letter) { return letter <= '9' ? letter - '0' : l->dims.at[letter - 'A']; }
static inline bool ida_row_on(const ida_layer *l, size_t when) { return when == 0 || *(const bool *)(l->options + when); }
/* The layer of a kind with its options set: sizes, and the places of its state from *state on, which moves behind it. */
void ida_layer_place(ida_layer *l, const ida_backbone *b, int64_t *state);
int64_t ida_layer_elements(const ida_layer *l, const char *shape);

/* Starts that several kinds take. out: the products that end in the residual stream, init_std / sqrt(2 layers). */
ida_start ida_start_normal(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_out(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_one(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_zero(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_half(const ida_layer *l, const ida_backbone *b); /* uniform in [-0.5, 0.5): convolutions */

/* A stored weight of the call's layer; NULL where it has none. */
static inline const ida_matrix *ida_matrix_at(const ida_layer_ctx *c, int slot) {
    return c->w[slot].matrix.data ? &c->w[slot].matrix : NULL;
}

/* Part of a state block, NULL when the block or the part is not there. */
static inline real *ida_state_at(const real *block, int64_t offset) {
    return block && offset >= 0 ? (real *)(uintptr_t)block + offset : NULL;
}

/* dW += g^T xn and dxn = g W (or += when add) for one of the products. */
ida_status ida_product_bwd(const ida_layer_ctx *c, int slot, const ida_act *g, bool add);

#endif
