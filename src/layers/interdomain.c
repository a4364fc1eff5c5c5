/* interdomain.c - Interdomain Attention as a layer, and single-query, which has the same core behind other streams
 * (docs/method.md sections 2 and 3). */
#include "layers/attend.h"

static const ida_tensor_row tensors[] = {IDA_ROWS_QKV, IDA_ROWS_CONV(Q, q), IDA_ROWS_CONV(K, k), IDA_ROWS_SSM, IDA_ROW_O_NORM};
static const ida_tensor_row single_query_tensors[] = {
    IDA_ROWS_QKV, IDA_ROWS_CONV(Q, q), IDA_ROWS_CONV(K, k), IDA_ROWS_CONV(V, v), IDA_ROWS_SSM, IDA_ROW_O_NORM};
static const ida_state_row state[] = {IDA_STATE_X, {IDA_TAIL_Q, "3q"}, {IDA_TAIL_K, "3k"}};
static const ida_state_row single_query_state[] = {IDA_STATE_X, {IDA_TAIL_Q, "3q"}, {IDA_TAIL_K, "3k"}, {IDA_TAIL_V, "3v"}};
static const ida_buffer_row buffers[] = {IDA_BUFFERS_Q, IDA_BUFFERS_KV};

static ida_interdomain_args args_of(const ida_layer_ctx *c, const ida_core_in *in) {
    const ida_attend_options *o = ida_attend_of(c->layer);
    return (ida_interdomain_args){.h = o->heads, .g = o->groups, .r = o->head_dim, .d = o->head_dim, .m = o->state_size,
                                  .readout = o->readout, .ssm = ida_ssm_of(c), .q = in->q, .k = in->k, .v = in->v,
                                  .o = c->buf[IDA_O], .state_in = ida_ssm_state(c, c->state_in)};
}

static ida_status core(const ida_layer_ctx *c, const ida_core_in *in) {
    ida_interdomain_args x = args_of(c, in);
    x.state_out = ida_ssm_state(c, c->state_out);
    if (!c->step) return c->dev->ops->interdomain_chunk_fwd(c->dev, &x, c->seqs);
    const ida_ssm_prep prep = ida_ssm_prep_at(c->layer, c->prep);
    return c->dev->ops->interdomain_step(c->dev, &x, &prep, c->seqs->n);
}

static ida_status core_bwd(const ida_layer_ctx *c, const ida_core_in *in, const ida_core_grads *g) {
    const ida_interdomain_args x = args_of(c, in);
    const ida_interdomain_grads d = {.dout = g->dout, .dq = g->dq, .dk = g->dk, .dv = g->dv, .dssm = ida_ssm_grads_of(c)};
    return c->dev->ops->interdomain_chunk_bwd(c->dev, &x, &d, c->seqs);
}

/* The chunk form of docs/method.md section 4 with C = 64: per query head 2CW + 8CM + 4MW + 8M^2, per group 4MW for the state. */
static int64_t flops(const ida_layer *l, const ida_backbone *b) {
    enum { CHUNK = 64 };
    const int64_t w = ida_dim(l, 'W'), m = ida_dim(l, 'M');
    (void)b;
    return ida_dim(l, 'H') * (2 * CHUNK * w + 8 * CHUNK * m + 4 * m * w + 8 * m * m) + ida_dim(l, 'G') * 4 * m * w;
}

static const ida_attend_kind interdomain = {
    .layer = IDA_SSM_LAYER(tensors, state, buffers, flops), .feature_q = true, .feature_k = true, .core = core, .core_bwd = core_bwd};
static const ida_attend_kind single_query = {.layer = IDA_SSM_LAYER(single_query_tensors, single_query_state, buffers, flops),
                                                 .feature_q = true, .core = core, .core_bwd = core_bwd};
const ida_layer_kind *const ida_layer_interdomain = &interdomain.layer, *const ida_layer_single_query = &single_query.layer;
