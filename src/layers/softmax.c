/* softmax.c - causal softmax attention as a layer: the baseline with a cache that grows (docs/method.md section 3). */
#include "layers/attend.h"

static const ida_tensor_row tensors[] = {IDA_ROWS_QKV, IDA_ROW_O_NORM};
static const ida_buffer_row buffers[] = {IDA_BUFFERS_Q, {IDA_LSE, 'H', true, IDA_TRAINED, 0}, IDA_BUFFERS_KV};

static ida_attention_args args_of(const ida_layer_ctx *c, const ida_core_in *in) {
    const ida_attend_options *o = ida_attend_of(c->layer);
    return (ida_attention_args){.o = c->buf[IDA_O], .lse = c->buf[IDA_LSE], .q = in->q, .k = in->k, .v = in->v, .h = o->heads,
                                .g = o->groups, .d = o->head_dim};
}

static ida_status core(const ida_layer_ctx *c, const ida_core_in *in) {
    ida_attention_args x = args_of(c, in);
    x.k_cache = c->k_cache;
    x.v_cache = c->v_cache;
    return c->dev->ops->attention_fwd(c->dev, &x, c->seqs);
}

static ida_status core_bwd(const ida_layer_ctx *c, const ida_core_in *in, const ida_core_grads *g) {
    const ida_attention_args x = args_of(c, in);
    return c->dev->ops->attention_bwd(c->dev, g->dq, g->dk, g->dv, g->dout, &x, c->seqs);
}

/* Scores and values against (T + 1)/2 keys on average. */
static int64_t flops(const ida_layer *l, const ida_backbone *b) { return 2 * ida_dim(l, 'q') * (b->max_position + 1); }

static const ida_attend_kind softmax = {
    .layer = {.prefix = "self_attn.", .norm = "input_layernorm.weight",
              .caps = IDA_LAYER_CACHE, .part = IDA_PART_MIXER,
              .tensors = tensors, .n_tensors = sizeof tensors / sizeof *tensors,
              .buffers = buffers, .n_buffers = sizeof buffers / sizeof *buffers,
              .out = IDA_WO, .dy = IDA_DY,
              .dims = ida_attend_dims, .check = ida_attend_check, .flops = flops,
              .products = ida_attend_products, .forward = ida_attend_forward, .backward = ida_attend_backward},
    .core = core, .core_bwd = core_bwd,
};
const ida_layer_kind *const ida_layer_softmax = &softmax.layer;
