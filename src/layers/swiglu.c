/* swiglu.c - the feed-forward layer: y = SiLU(W_gate n) * W_up n (docs/method.md section 3, backbone). */
#include "layers/layer.h"
#include "layers/swiglu.h"

enum { W_GATE, W_UP, W_DOWN };
enum { GATE, UP, FF, DFF };

static const ida_tensor_row tensors[] = {
    {W_GATE, "gate_proj.weight", "fd", IDA_GROUP_MATRIX, ida_start_normal, 0, false},
    {W_UP, "up_proj.weight", "fd", IDA_GROUP_MATRIX, ida_start_normal, 0, false},
    {W_DOWN, "down_proj.weight", "df", IDA_GROUP_MATRIX, ida_start_out, 0, false},
};
static const ida_buffer_row buffers[] = {
    {.slot = GATE, .width = 'f', .life = IDA_KEPT},
    {.slot = UP, .width = 'f', .life = IDA_KEPT},
    {.slot = FF, .width = 'f', .life = IDA_WORK},
    {.slot = DFF, .width = 'f', .life = IDA_GRADIENT},
};

static void dims(ida_layer *l) { *ida_dim_at(l, 'f') = ((const ida_swiglu_options *)(const void *)l->options)->hidden; }

/* A step keeps nothing: both products and the SwiGLU between them are one. */
static int products(const ida_layer_ctx *c, ida_product *p) {
    if (c->step) {
        p[0] = (ida_product){.y = c->buf[FF], .w = &c->w[W_UP].matrix, .gate = c->buf[GATE], .gate_w = &c->w[W_GATE].matrix};
        return 1;
    }
    p[0] = (ida_product){.y = c->buf[GATE], .w = &c->w[W_GATE].matrix};
    p[1] = (ida_product){.y = c->buf[UP], .w = &c->w[W_UP].matrix};
    return 2;
}

static ida_status forward(const ida_layer_ctx *c, bool again, ida_act **y) {
    (void)again;
    *y = c->buf[FF];
    if (c->step) return IDA_OK;
    return c->dev->ops->swiglu_fwd(c->dev, *y, c->buf[GATE], c->buf[UP], c->n * ida_dim(c->layer, 'f'));
}

static ida_status backward(const ida_layer_ctx *c) {
    const int64_t f = ida_dim(c->layer, 'f');
    ida_act *dgate = c->buf[DFF], *dup = c->buf[FF]; /* FF is spent */
    IDA_TRY(c->dev->ops->swiglu_bwd(c->dev, dgate, dup, c->buf[DFF], c->buf[GATE], c->buf[UP], c->n * f));
    ida_part_begin(c->parts, IDA_PART_GEMM);
    IDA_TRY(ida_product_bwd(c, W_GATE, dgate, false));
    return ida_product_bwd(c, W_UP, dup, true);
}

static const ida_layer_kind swiglu = {
    .prefix = "mlp.", .norm = "post_attention_layernorm.weight",
    .caps = IDA_LAYER_KEEPS_PRODUCTS, .part = IDA_PART_OTHER,
    .tensors = tensors, .n_tensors = sizeof tensors / sizeof *tensors,
    .buffers = buffers, .n_buffers = sizeof buffers / sizeof *buffers,
    .out = W_DOWN, .dy = DFF,
    .dims = dims, .products = products, .forward = forward, .backward = backward,
};
const ida_layer_kind *const ida_layer_swiglu = &swiglu;
