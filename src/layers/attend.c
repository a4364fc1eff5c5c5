/* attend.c - the frame of the mixers with keys and values: products to q, k, v and the gate; a stream from each projection to the
 * core; the core; norm and gate on the way to W_out. Not here: cores (softmax.c, interdomain.c, s4d.c). */
#include "layers/attend.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

const char *const ida_basis_names[] = {
    [IDA_BASIS_S4D_INV] = "s4d-inv", [IDA_BASIS_S4D_LIN] = "s4d-lin", [IDA_BASIS_S4D_LEGS] = "s4d-legs", NULL};
const char *const ida_c_init_names[] = {
    [IDA_C_NORMAL] = "normal", [IDA_C_IDENTITY] = "identity", [IDA_C_WHITENED] = "whitened", NULL};

#define T ida_attend_options
static const ida_field softmax_rows[] = {IDA_HEAD_ROWS(T, 0), IDA_HEAD_DIM_ROW(T), IDA_ROPE_THETA_ROW(T), IDA_OUTPUT_ROWS(T, "")};
static const ida_field scan_rows[] = {IDA_HEAD_ROWS(T, 0), IDA_HEAD_DIM_ROW(T), IDA_ROPE_THETA_ROW(T), IDA_OUTPUT_ROWS(T, ""),
                                      IDA_STATE_ROWS(T, ""), IDA_STEP_ROWS(T, "")};
const ida_fields ida_softmax_options = IDA_FIELDS("softmax layer", "", T, softmax_rows);
const ida_fields ida_scan_options = IDA_FIELDS("state-space layer", "", T, scan_rows);
#undef T

void ida_attend_dims(ida_layer *l) {
    ida_attend_options *o = (void *)l->options;
    if (o->head_dim == 0) o->head_dim = ida_dim(l, 'd') / o->n_heads;
    const int64_t r = o->head_dim, w = ida_attend_kind_of(l)->both_halves ? 2 * r : r;
    const struct { char letter; int64_t size; } sizes[] = {
        {'H', o->n_heads}, {'G', o->n_kv_heads}, {'R', r}, {'D', r}, {'W', 2 * r}, {'M', o->state_size}, {'q', o->n_heads * r},
        {'k', o->n_kv_heads * r}, {'v', o->n_kv_heads * r}, {'w', w}, {'o', o->n_heads * w}, {'t', o->n_heads * most(r, w)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *ida_dim_at(l, sizes[i].letter) = sizes[i].size;
}

ida_status ida_attend_check(const ida_layer *l) {
    const ida_attend_options *o = ida_attend_of(l);
    IDA_FAIL_IF(!ida_attend_query(l) && o->n_kv_heads != o->n_heads, IDA_E_ARG,
                "num_key_value_heads is %lld, but layer %d is %s, which has no queries to share heads: set it to "
                "num_attention_heads (%lld)",
                (long long)o->n_kv_heads, l->block, l->name, (long long)o->n_heads);
    IDA_FAIL_IF(o->n_heads % o->n_kv_heads != 0, IDA_E_ARG,
                "layer %d: num_attention_heads %lld is not a multiple of num_key_value_heads %lld", l->block,
                (long long)o->n_heads, (long long)o->n_kv_heads);
    IDA_FAIL_IF(o->head_dim < 1, IDA_E_ARG, "layer %d: num_attention_heads %lld is above hidden_size %lld: give its head_dim",
                l->block, (long long)o->n_heads, (long long)ida_dim(l, 'd'));
    IDA_FAIL_IF(o->rope && o->head_dim % 2 != 0, IDA_E_ARG,
                "layer %d: the head width is %lld; rope needs it even (or set rope to false)", l->block, (long long)o->head_dim);
    IDA_FAIL_IF(o->dt_min > o->dt_max, IDA_E_ARG, "layer %d: dt_min %g is above dt_max %g", l->block, o->dt_min, o->dt_max);
    IDA_FAIL_IF(ida_dim(l, 'q') > IDA_MOST_WIDTH, IDA_E_ARG, "layer %d: its heads are %lld wide in all; the limit is %d", l->block,
                (long long)ida_dim(l, 'q'), IDA_MOST_WIDTH);
    return IDA_OK;
}

int ida_attend_products(const ida_layer_ctx *c, ida_product *p) {
    static const struct { int w, y; } rows[] = {{IDA_WQ, IDA_Q0}, {IDA_WK, IDA_K0}, {IDA_WV, IDA_V0}, {IDA_WG, IDA_G}};
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ida_matrix_at(c, rows[i].w))
            p[n++] = (ida_product){.y = c->buf[rows[i].y], .w = ida_matrix_at(c, rows[i].w)};
    return n;
}

/* The ways of q, k and v: where each begins and ends, and its slots. */
typedef struct way { int projection, to, weight, conv_w, conv_b, gain, bias, tail, grad; } way;
static const way ways[3] = {
    {IDA_Q0, IDA_Q, IDA_WQ, IDA_CONV_QW, IDA_CONV_QB, -1, -1, IDA_TAIL_Q, IDA_DQ},
    {IDA_K0, IDA_K, IDA_WK, IDA_CONV_KW, IDA_CONV_KB, IDA_GAIN_K, IDA_BIAS_K, IDA_TAIL_K, IDA_DK},
    {IDA_V0, IDA_V, IDA_WV, IDA_CONV_VW, IDA_CONV_VB, IDA_GAIN_V, IDA_BIAS_V, IDA_TAIL_V, IDA_DV},
};
static int first_way(const ida_layer_ctx *c) { return ida_matrix_at(c, IDA_WQ) ? 0 : 1; }

/* y == args.x where nothing is done on the way. again: the state is not written. */
static ida_stream stream_of(const ida_layer_ctx *c, int which, bool again) {
    const ida_attend_options *o = ida_attend_of(c->layer);
    const ida_attend_kind *kind = ida_attend_kind_of(c->layer);
    const way *s = &ways[which];
    const bool feature = which == 0 ? kind->feature_q : which == 1 && kind->feature_k;
    const int64_t tail = c->layer->state[s->tail];
    ida_stream t = {.y = c->buf[s->to],
                    .args = {.h = which == 0 ? o->n_heads : o->n_kv_heads, .d = o->head_dim, .x = c->buf[s->projection],
                             .conv_w = c->w[s->conv_w].vector, .conv_b = c->w[s->conv_b].vector, .norm_eps = c->backbone->norm_eps,
                             .l2_eps = feature ? o->l2_eps : 0, .rope_theta = o->rope && which < 2 ? o->rope_theta : 0}};
    ida_stream_args *x = &t.args;
    if (s->gain >= 0) {
        x->gain = c->w[s->gain].vector;
        x->bias = c->w[s->bias].vector;
    }
    x->state_in = ida_state_at(c->state_in, tail);
    x->state_out = again ? NULL : ida_state_at(c->state_out, tail);
    x->stride = c->stride;
    /* The op may not alias; nothing to do leaves the projection itself, which nobody writes to. */
    if (!x->conv_w && x->rope_theta == 0 && x->l2_eps == 0 && !x->gain) t.y = (ida_act *)(uintptr_t)x->x;
    return t;
}

/* Runs the streams, unless run is false: then it only tells where their ends are. */
static ida_status core_inputs(const ida_layer_ctx *c, bool again, bool run, ida_core_in *in) {
    ida_stream streams[IDA_MOST_STREAMS] = {0};
    ida_act *y[3] = {0};
    int n = 0;
    for (int i = first_way(c); i < 3; i++) {
        const ida_stream t = stream_of(c, i, again);
        if (t.y != t.args.x) streams[n++] = t;
        y[i] = t.y;
    }
    *in = (ida_core_in){y[0], y[1], y[2]};
    return run && n > 0 ? c->dev->ops->stream_fwd(c->dev, streams, n, c->seqs) : IDA_OK;
}

static ida_act *normed(const ida_layer_ctx *c) { return c->buf[c->w[IDA_GAIN_O].vector ? IDA_ON : IDA_O]; }

/* y = SiLU(W_g n) * norm(o), each part where the layer has it. */
static ida_status output(const ida_layer_ctx *c, ida_act **y) {
    const ida_ops *ops = c->dev->ops;
    const ida_layer *l = c->layer;
    const real *gain = c->w[IDA_GAIN_O].vector;
    if (gain)
        IDA_TRY(ops->headnorm_fwd(c->dev, c->buf[IDA_ON], c->buf[IDA_NO], c->buf[IDA_O], gain, NULL, c->n, ida_dim(l, 'H'),
                                  ida_dim(l, 'w'), c->backbone->norm_eps));
    *y = normed(c);
    if (!ida_matrix_at(c, IDA_WG)) return IDA_OK;
    *y = c->buf[IDA_Y];
    return ops->swiglu_fwd(c->dev, *y, c->buf[IDA_G], normed(c), c->n * ida_dim(l, 'o'));
}

ida_status ida_attend_forward(const ida_layer_ctx *c, bool again, ida_act **y) {
    ida_core_in in;
    IDA_TRY(core_inputs(c, again, true, &in));
    if (!again) IDA_TRY(ida_attend_kind_of(c->layer)->core(c, &in));
    return output(c, y);
}

/* From the core's inputs back to the projections, and through them. All share the buffer DT: each ends with its product into dxn
 * before the next begins. */
static ida_status streams_bwd(const ida_layer_ctx *c, ida_act *dt) {
    for (int i = first_way(c); i < 3; i++) {
        const way *s = &ways[i];
        const ida_stream t = stream_of(c, i, true);
        const ida_stream_grads grads = {.conv_w = c->dw[s->conv_w], .conv_b = c->dw[s->conv_b],
                                        .gain = s->gain >= 0 ? c->dw[s->gain] : NULL,
                                        .bias = s->bias >= 0 ? c->dw[s->bias] : NULL};
        const ida_act *g = c->buf[s->grad];
        ida_part_begin(c->parts, IDA_PART_MIXER);
        if (t.y != t.args.x) {
            IDA_TRY(c->dev->ops->stream_bwd(c->dev, dt, g, &t.args, &grads, c->seqs));
            g = dt;
        }
        ida_part_begin(c->parts, IDA_PART_GEMM);
        IDA_TRY(ida_product_bwd(c, s->weight, g, i > first_way(c)));
    }
    return IDA_OK;
}

ida_status ida_attend_backward(const ida_layer_ctx *c) {
    const ida_ops *ops = c->dev->ops;
    const ida_layer *l = c->layer;
    const int64_t ow = ida_dim(l, 'o');
    ida_act *dy = c->buf[IDA_DY], *dt = c->buf[IDA_DT];
    ida_core_in in;
    if (ida_matrix_at(c, IDA_WG)) IDA_TRY(ops->swiglu_bwd(c->dev, c->buf[IDA_DG], dy, dy, c->buf[IDA_G], normed(c), c->n * ow));
    if (c->w[IDA_GAIN_O].vector) {
        IDA_TRY(ops->headnorm_bwd(c->dev, dt, c->dw[IDA_GAIN_O], NULL, dy, c->buf[IDA_O], c->w[IDA_GAIN_O].vector, c->buf[IDA_NO],
                                  c->n, ida_dim(l, 'H'), ida_dim(l, 'w')));
        ida_act *x = dy;
        dy = dt;
        dt = x;
    }
    IDA_TRY(core_inputs(c, true, false, &in));
    const ida_core_grads g = {.dout = dy, .dq = c->buf[IDA_DQ], .dk = c->buf[IDA_DK], .dv = c->buf[IDA_DV]};
    IDA_TRY(ida_attend_kind_of(l)->core_bwd(c, &in, &g));
    IDA_TRY(streams_bwd(c, dt));
    ida_part_begin(c->parts, IDA_PART_GEMM);
    return ida_matrix_at(c, IDA_WG) ? ida_product_bwd(c, IDA_WG, c->buf[IDA_DG], true) : IDA_OK;
}
