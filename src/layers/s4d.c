/* s4d.c - the mixers without a query as layers: s4d and dual-linear, one core behind other streams (docs/method.md section 3). */
#include "layers/attend.h"

static const ida_tensor_row tensors[] = {
    IDA_ROWS_KV, IDA_ROWS_CONV(K, k), IDA_ROWS_CONV(V, v), IDA_ROWS_SSM, IDA_ROW_READ_W, IDA_ROW_O_NORM};
static const ida_tensor_row dual_linear_tensors[] = {IDA_ROWS_KV, IDA_ROWS_CONV(K, k), IDA_ROWS_SSM, IDA_ROW_READ_W,
                                                     IDA_ROW_O_NORM};
static const ida_state_row state[] = {IDA_STATE_X, {IDA_TAIL_K, "3k"}, {IDA_TAIL_V, "3v"}};
static const ida_state_row dual_linear_state[] = {IDA_STATE_X, {IDA_TAIL_K, "3k"}};
static const ida_buffer_row buffers[] = {IDA_BUFFERS_KV};

static ida_s4d_args args_of(const ida_layer_ctx *c, const ida_core_in *in) {
    const ida_attend_options *o = ida_attend_of(c->layer);
    return (ida_s4d_args){.h = o->heads, .r = o->head_dim, .d = o->head_dim, .m = o->state_size, .ssm = ida_ssm_of(c), .k = in->k,
                          .v = in->v, .w = c->w[IDA_READ_W].vector, .y = c->buf[IDA_O],
                          .state_in = ida_ssm_state(c, c->state_in)};
}

static ida_status core(const ida_layer_ctx *c, const ida_core_in *in) {
    ida_s4d_args x = args_of(c, in);
    x.state_out = ida_ssm_state(c, c->state_out);
    if (!c->step) return c->dev->ops->s4d_chunk_fwd(c->dev, &x, c->seqs);
    const ida_ssm_prep prep = ida_ssm_prep_at(c->layer, c->prep);
    return c->dev->ops->s4d_step(c->dev, &x, &prep, c->seqs->n);
}

static ida_status core_bwd(const ida_layer_ctx *c, const ida_core_in *in, const ida_core_grads *g) {
    const ida_s4d_args x = args_of(c, in);
    const ida_s4d_grads d = {.dy = g->dout, .dk = g->dk, .dv = g->dv, .dw = c->dw[IDA_READ_W], .dssm = ida_ssm_grads_of(c)};
    return c->dev->ops->s4d_chunk_bwd(c->dev, &x, &d, c->seqs);
}

/* 2CW + 8MW per head (Toeplitz product in the chunk of C = 64, state out, state in). */
static int64_t flops(const ida_layer *l, const ida_backbone *b) {
    enum { CHUNK = 64 };
    (void)b;
    return ida_dim(l, 'H') * (2 * CHUNK * ida_dim(l, 'W') + 8 * ida_dim(l, 'M') * ida_dim(l, 'W'));
}

static const ida_attend_kind s4d = {
    .layer = IDA_SSM_LAYER(tensors, state, buffers, flops), .both_halves = true, .core = core, .core_bwd = core_bwd};
static const ida_attend_kind dual_linear = {.layer = IDA_SSM_LAYER(dual_linear_tensors, dual_linear_state, buffers, flops),
                                                .feature_k = true, .both_halves = true, .core = core, .core_bwd = core_bwd};
const ida_layer_kind *const ida_layer_s4d = &s4d.layer, *const ida_layer_dual_linear = &dual_linear.layer;
