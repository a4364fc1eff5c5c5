/* stream.cu - the fused op of q, k, v: which parts, and by which kernels (stream.cuh). */
#include <limits.h>

#include "ops/cuda/stream.cuh"

bool ida_stream_tuned(const ida_device *dev, const stream_call *c) {
    (void)dev;
    const bool width = c->d == 32 || c->d == 64 || c->d == 96 || c->d == 128 || c->d == 192 || c->d == 256;
    return width && c->h * c->d <= INT_MAX / TAPS && c->n <= INT_MAX && vec_aligned(c->x, c->y, c->dy, c->dx, c->conv_w);
}

static ida_status call_of(const ida_device *dev, stream_call *c, const ida_stream_args *a, const ida_seqs *seqs,
                          ida_cuda_seqs *t) {
    *c = stream_call{};
    c->parts = (a->conv_w ? PART_CONV : 0) | (a->rope_theta > 0 ? PART_ROPE : 0) | (a->l2_eps > 0 ? PART_MAP : 0) |
               (a->gain ? PART_NORM : 0);
    c->n = seqs->n > 0 ? seqs->cu[seqs->n] : 0, c->h = a->h, c->d = a->d, c->x = a->x;
    c->conv_w = a->conv_w, c->conv_b = a->conv_b, c->state_in = a->state_in, c->stride = a->stride;
    c->theta = a->rope_theta, c->sign = 1, c->l2_eps = (float)a->l2_eps, c->norm_eps = (float)a->norm_eps;
    c->gain = a->gain, c->bias = a->bias;
    if (!(c->parts & (PART_CONV | PART_ROPE)) || seqs->n == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, t));
    c->cu = t->cu, c->pos0 = t->pos0, c->seq = t->seq;
    return IDA_OK;
}

ida_status ida_cuda_stream_fwd(const ida_device *dev, act *y, const ida_stream_args *a, const ida_seqs *seqs) {
    stream_call c;
    ida_cuda_seqs t = {};
    IDA_TRY(call_of(dev, &c, a, seqs, &t));
    c.y = y;
    if (ida_stream_is_step(&c, seqs)) return ida_stream_fwd_step(dev, &c, c.parts & PART_CONV ? a->state_out : NULL);
    if (c.n > 0) IDA_TRY(stream_fwd_call(dev, &c));
    if (!(c.parts & PART_CONV) || !a->state_out || seqs->n == 0) return IDA_OK;
    return ida_conv_final_states(dev, a->state_out, a->x, a->state_in, a->stride, &t, a->h * a->d);
}

ida_status ida_cuda_stream_bwd(const ida_device *dev, act *dx, const act *dy, const ida_stream_args *a, const ida_stream_grads *g,
                               const ida_seqs *seqs) {
    stream_call c;
    ida_cuda_seqs t = {};
    IDA_TRY(call_of(dev, &c, a, seqs, &t));
    if (c.n == 0) return IDA_OK;
    c.dx = dx, c.dy = dy;
    c.d_conv_w = g->conv_w, c.d_conv_b = g->conv_b, c.d_gain = g->gain, c.d_bias = g->bias;
    return stream_bwd_call(dev, &c);
}
