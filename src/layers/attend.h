/* attend.h - what the mixers with keys and values share: projections to q, k, v, the streams from there to a core, and the way
 * from the core to W_out (docs/method.md sections 2 and 3). A kind of this family is a list of rows and a core.
 * Not here: a mixer of another build; that is a kind of its own, beside these. */
#ifndef IDA_LAYERS_ATTEND_H
#define IDA_LAYERS_ATTEND_H

#include "core/names.h"
#include "idattn/config.h"
#include "layers/layer.h"

typedef struct ida_attend_options {
    int64_t n_heads, n_kv_heads, head_dim; /* R = D = head_dim; 0 = d_model / n_heads */
    int64_t state_size;                    /* M */
    double rope_theta, l2_eps, dt_min, dt_max;
    bool rope, gate, output_norm;
    ida_basis basis;
    ida_discretization discretization;
    ida_readout readout;
    ida_c_init c_init;
} ida_attend_options;
static inline const ida_attend_options *ida_attend_of(const ida_layer *l) { return (const void *)l->options; }

/* Rows of these options in a table over T, whose members have the same names: the layer's own struct, and ida_config for what the
 * whole model has. P: what stands before a key. In the order of config.json. */
extern const char *const ida_basis_names[], *const ida_c_init_names[];
#define IDA_HEAD_ROWS(T, FLAGS) \
    IDA_ROW_INT(T, "num_attention_heads", n_heads, 0, 1, 65536, .flags = FLAGS, .help = "query heads of a layer"), \
    IDA_ROW_INT(T, "num_key_value_heads", n_kv_heads, 0, 1, 65536, .flags = IDA_FIELD_DERIVED, \
                .help = "groups of heads that share keys, values and state [num_attention_heads]")
#define IDA_ROPE_THETA_ROW(T) IDA_ROW_REAL(T, "rope_theta", rope_theta, 10000, 1, 1e18, .help = "base of the rotary embedding")
#define IDA_STATE_ROWS(T, P) \
    IDA_ROW_INT(T, P "state_size", state_size, 64, 1, 4096, .help = "M: complex basis functions of a head"), \
    IDA_ROW_ENUM(T, P "basis", basis, IDA_BASIS_S4D_LIN, ida_basis_names, .help = "initial poles"), \
    IDA_ROW_ENUM(T, P "discretization", discretization, IDA_DISC_ZOH, ida_disc_names, .help = "from poles to decay"), \
    IDA_ROW_ENUM(T, P "readout", readout, IDA_READOUT_HERMITIAN, ida_readout_names, \
                 .help = "product of query and key features"), \
    IDA_ROW_ENUM(T, P "c_init", c_init, IDA_C_NORMAL, ida_c_init_names, .help = "initial C")
#define IDA_OUTPUT_ROWS(T, P) \
    IDA_ROW_BOOL(T, P "rope", rope, true, .help = "rotary embedding on q and k"), \
    IDA_ROW_BOOL(T, P "gate", gate, false, .help = "SiLU gate on the output"), \
    IDA_ROW_BOOL(T, P "output_norm", output_norm, false, .help = "RMSNorm of each head's output")
#define IDA_STEP_ROWS(T, P) \
    IDA_ROW_REAL(T, P "l2_eps", l2_eps, 1e-6, IDA_LEAST_EPS, 1, .help = "under the root of the feature map"), \
    IDA_ROW_REAL(T, P "dt_min", dt_min, 1e-3, 1e-9, 100, .help = "least initial step"), \
    IDA_ROW_REAL(T, P "dt_max", dt_max, 1e-1, 1e-9, 100, .help = "largest initial step")
#define IDA_HEAD_DIM_ROW(T) IDA_ROW_INT(T, "head_dim", head_dim, 0, 1, 65536, .flags = IDA_FIELD_DERIVED, \
                                        .help = "width of a head's keys and values [hidden_size / num_attention_heads]")
extern const ida_fields ida_softmax_options, ida_scan_options; /* without and with the state-space side */

enum { IDA_MOST_WIDTH = 1 << 20 /* of all heads of a layer */ };

/* Slots. */
enum {
    IDA_WQ, IDA_WK, IDA_WV, IDA_WO, IDA_WG,
    IDA_CONV_QW, IDA_CONV_QB, IDA_CONV_KW, IDA_CONV_KB, IDA_CONV_VW, IDA_CONV_VB,
    IDA_GAIN_K, IDA_BIAS_K, IDA_GAIN_V, IDA_BIAS_V,           /* step 5 norms */
    IDA_LOG_DT, IDA_A_LOG, IDA_A_IMAG, IDA_C_RE, IDA_C_IM,
    IDA_READ_W,                                               /* read-out without query */
    IDA_GAIN_O,                                               /* output_norm */
};
enum { IDA_X_RE, IDA_X_IM, IDA_TAIL_Q, IDA_TAIL_K, IDA_TAIL_V };
enum {
    IDA_Q0, IDA_K0, IDA_V0, IDA_O, IDA_LSE, IDA_G,            /* kept: projections, core output, log-sum-exp, gate */
    IDA_Q, IDA_K, IDA_V, IDA_NO, IDA_ON, IDA_Y,               /* core inputs; normed o and its factor; gated o */
    IDA_DQ, IDA_DK, IDA_DV, IDA_DT, IDA_DY, IDA_DG,           /* DT: the other side of ops that must not alias */
};

/* Rows, in storage order: a kind lists those it has. */
#define IDA_GATE_ON offsetof(ida_attend_options, gate)
#define IDA_NORM_ON offsetof(ida_attend_options, output_norm)
#define IDA_MATRIX_ROW(slot, name, shape) {slot, name, shape, IDA_GROUP_MATRIX, ida_start_normal, 0, false}
#define IDA_ROWS_KV IDA_MATRIX_ROW(IDA_WK, "k_proj.weight", "kd"), IDA_MATRIX_ROW(IDA_WV, "v_proj.weight", "vd"), \
        {IDA_WO, "o_proj.weight", "do", IDA_GROUP_MATRIX, ida_start_out, 0, false}, \
        {IDA_WG, "g_proj.weight", "od", IDA_GROUP_MATRIX, ida_start_normal, IDA_GATE_ON, false}
#define IDA_ROWS_QKV IDA_MATRIX_ROW(IDA_WQ, "q_proj.weight", "qd"), IDA_ROWS_KV
#define IDA_ROWS_CONV(X, x) {IDA_CONV_##X##W, #x "_conv.weight", #x "14", IDA_GROUP_VECTOR, ida_start_half, 0, false}, \
        {IDA_CONV_##X##B, #x "_conv.bias", #x, IDA_GROUP_VECTOR, ida_start_half, 0, false}
#define IDA_ROWS_SSM {IDA_GAIN_K, "k_norm.weight", "R", IDA_GROUP_SSM, ida_start_one, 0, false}, \
        {IDA_BIAS_K, "k_norm.bias", "GR", IDA_GROUP_SSM, ida_start_zero, 0, false}, \
        {IDA_GAIN_V, "v_norm.weight", "D", IDA_GROUP_SSM, ida_start_one, 0, false}, \
        {IDA_BIAS_V, "v_norm.bias", "GD", IDA_GROUP_SSM, ida_start_zero, 0, false}, \
        {IDA_LOG_DT, "log_dt", "G", IDA_GROUP_SSM, ida_start_log_dt, 0, true}, \
        {IDA_A_LOG, "a_log", "GM", IDA_GROUP_SSM, ida_start_a_log, 0, true}, \
        {IDA_A_IMAG, "a_imag", "GM", IDA_GROUP_SSM, ida_start_own, 0, true}, \
        {IDA_C_RE, "c.real", "GMM", IDA_GROUP_SSM, ida_start_c, 0, true}, \
        {IDA_C_IM, "c.imag", "GMM", IDA_GROUP_SSM, ida_start_c, 0, true}
#define IDA_ROW_READ_W {IDA_READ_W, "w", "HM", IDA_GROUP_VECTOR, ida_start_w, 0, true}
#define IDA_ROW_O_NORM {IDA_GAIN_O, "o_norm.weight", "w", IDA_GROUP_VECTOR, ida_start_one, IDA_NORM_ON, false}
#define IDA_STATE_X {IDA_X_RE, "GMW"}, {IDA_X_IM, "GMW"}
#define IDA_KEEP(slot, width) {slot, width, false, IDA_KEPT, 0}
#define IDA_BUFFERS_Q IDA_KEEP(IDA_Q0, 'q'), {IDA_Q, 'q', false, IDA_WORK, 0}, {IDA_DQ, 'q', false, IDA_GRADIENT, 0}
#define IDA_BUFFERS_KV IDA_KEEP(IDA_K0, 'k'), IDA_KEEP(IDA_V0, 'v'), IDA_KEEP(IDA_O, 'o'), {IDA_G, 'o', false, IDA_KEPT, IDA_GATE_ON}, \
        {IDA_K, 'k', false, IDA_WORK, 0}, {IDA_V, 'v', false, IDA_WORK, 0}, {IDA_NO, 'H', true, IDA_WORK, IDA_NORM_ON}, \
        {IDA_ON, 'o', false, IDA_WORK, IDA_NORM_ON}, {IDA_Y, 'o', false, IDA_WORK, IDA_GATE_ON}, \
        {IDA_DK, 'k', false, IDA_GRADIENT, 0}, {IDA_DV, 'v', false, IDA_GRADIENT, 0}, {IDA_DT, 't', false, IDA_GRADIENT, 0}, \
        {IDA_DY, 'o', false, IDA_GRADIENT, 0}, {IDA_DG, 'o', false, IDA_GRADIENT, IDA_GATE_ON}

/* What a core reads, and what its gradient comes from and goes to. */
typedef struct ida_core_in { const ida_act *q, *k, *v; } ida_core_in;
typedef struct ida_core_grads { const ida_act *dout; ida_act *dq, *dk, *dv; } ida_core_grads;

/* A kind of the family: the object, and what the shared functions ask of it. */
typedef struct ida_attend_kind {
    ida_layer_kind layer;           /* first */
    bool feature_q, feature_k;      /* feature map on the way of q, of k */
    bool both_halves;               /* the output has the width of key and value, not of value only */
    /* o = core(q, k, v): the chunk form, or the step form where c->step. */
    ida_status (*core)(const ida_layer_ctx *c, const ida_core_in *in);
    ida_status (*core_bwd)(const ida_layer_ctx *c, const ida_core_in *in, const ida_core_grads *g);
} ida_attend_kind;
static inline const ida_attend_kind *ida_attend_kind_of(const ida_layer *l) { return (const void *)l->kind; }

/* q_proj stands first where there is one. */
static inline bool ida_attend_query(const ida_layer *l) { return l->kind->tensors[0].slot == IDA_WQ; }

/* Slots of an ida_layer_kind. */
void ida_attend_dims(ida_layer *l);
ida_status ida_attend_check(const ida_layer *l);
int ida_attend_products(const ida_layer_ctx *c, ida_product *p);
ida_status ida_attend_forward(const ida_layer_ctx *c, bool again, ida_act **y);
ida_status ida_attend_backward(const ida_layer_ctx *c);

/* The object of a kind with state-space parameters, but for its core. */
#define IDA_SSM_LAYER(tensors_, state_, buffers_, flops_) \
    {.prefix = "mixer.", .norm = "input_layernorm.weight", .part = IDA_PART_MIXER, \
     .options = &ida_scan_options, .tensors = tensors_, .n_tensors = sizeof tensors_ / sizeof *tensors_, .state = state_, \
     .n_states = sizeof state_ / sizeof *state_, .buffers = buffers_, .n_buffers = sizeof buffers_ / sizeof *buffers_, \
     .out = IDA_WO, .dy = IDA_DY, .dims = ida_attend_dims, .check = ida_attend_check, .flops = flops_, .init = ida_ssm_init, \
     .prep_len = ida_ssm_prep_len, .prepare = ida_ssm_make_prep, .products = ida_attend_products, \
     .forward = ida_attend_forward, .backward = ida_attend_backward}

/* ---- the state-space side of a layer (ssm.c): initial values, step constants, argument blocks */
ida_start ida_start_own(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_log_dt(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_a_log(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_c(const ida_layer *l, const ida_backbone *b);
ida_start ida_start_w(const ida_layer *l, const ida_backbone *b);
ida_status ida_ssm_init(const ida_layer *l, real *const *w);
int64_t ida_ssm_prep_len(const ida_layer *l);
void ida_ssm_make_prep(const ida_layer *l, const real *const *w, real *out);
ida_ssm_prep ida_ssm_prep_at(const ida_layer *l, const real *base);
ida_ssm ida_ssm_of(const ida_layer_ctx *c);
ida_ssm_grads ida_ssm_grads_of(const ida_layer_ctx *c);
ida_state_ref ida_ssm_state(const ida_layer_ctx *c, const real *block);

#endif
