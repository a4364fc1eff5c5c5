/* stream.cu - the fused op of q, k, v: which parts, and by which kernels (stream.cuh). */
#include <assert.h>
#include <limits.h>

#include "ops/cuda/stream/stream.cuh"

bool ida_stream_tuned(const ida_device *dev, const stream_call *c) {
    (void)dev;
    const bool width = c->d == 32 || c->d == 64 || c->d == 96 || c->d == 128 || c->d == 192 || c->d == 256;
    return width && c->h * c->d <= INT_MAX / TAPS && c->n <= INT_MAX && vec_aligned(c->x, c->y, c->dy, c->dx, c->conv_w);
}

static stream_call call_of(const ida_stream_args *a, const ida_seqs *seqs) {
    stream_call c = {};
    c.parts = (a->conv_w ? PART_CONV : 0) | (a->rope_theta > 0 ? PART_ROPE : 0) | (a->l2_eps > 0 ? PART_MAP : 0) |
              (a->gain ? PART_NORM : 0);
    c.n = seqs->n > 0 ? seqs->cu[seqs->n] : 0, c.h = a->h, c.d = a->d, c.x = a->x;
    c.conv_w = a->conv_w, c.conv_b = a->conv_b, c.state_in = a->state_in, c.stride = a->stride;
    c.theta = a->rope_theta, c.sign = 1, c.l2_eps = (float)a->l2_eps, c.norm_eps = (float)a->norm_eps;
    c.gain = a->gain, c.bias = a->bias;
    return c;
}

/* The sequences of calls that look along them. */
static ida_status give_seqs(const ida_device *dev, stream_call *c, int n, const ida_seqs *seqs, ida_cuda_seqs *t) {
    int parts = 0;
    for (int i = 0; i < n; i++) parts |= c[i].parts;
    if (!(parts & (PART_CONV | PART_ROPE)) || seqs->n == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, t));
    for (int i = 0; i < n; i++)
        if (c[i].parts & (PART_CONV | PART_ROPE)) c[i].cu = t->cu, c[i].pos0 = t->pos0, c[i].seq = t->seq;
    return IDA_OK;
}

/* One stream, its convolution's new state in a pass of its own. */
static ida_status forward(const ida_device *dev, const stream_call *c, const ida_cuda_seqs *t) {
    if (c->n > 0) IDA_TRY(stream_fwd_call(dev, c));
    return c->state_out && t->n > 0
               ? ida_conv_final_states(dev, c->state_out, c->x, c->state_in, c->stride, t, c->h * c->d)
               : IDA_OK;
}

ida_status ida_cuda_stream_fwd(const ida_device *dev, const ida_stream *streams, int n, const ida_seqs *seqs) {
    stream_call c[IDA_MOST_STREAMS];
    ida_cuda_seqs t = {};
    bool step[IDA_MOST_STREAMS];
    int steps = 0;
    assert(n >= 1 && n <= IDA_MOST_STREAMS);
    for (int i = 0; i < n; i++) {
        c[i] = call_of(&streams[i].args, seqs);
        c[i].y = streams[i].y;
        if (c[i].parts & PART_CONV) c[i].state_out = streams[i].args.state_out;
        steps += step[i] = ida_stream_is_step(&c[i], seqs);
    }
    IDA_TRY(give_seqs(dev, c, n, seqs, &t));
    if (steps == n) return ida_stream_fwd_steps(dev, c, n);
    for (int i = 0; i < n; i++)
        IDA_TRY(step[i] ? ida_stream_fwd_steps(dev, &c[i], 1) : forward(dev, &c[i], &t));
    return IDA_OK;
}

ida_status ida_cuda_stream_bwd(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_stream_args *a,
                               const ida_stream_grads *g, const ida_seqs *seqs) {
    stream_call c = call_of(a, seqs);
    ida_cuda_seqs t = {};
    if (c.n == 0) return IDA_OK;
    IDA_TRY(give_seqs(dev, &c, 1, seqs, &t));
    c.dx = dx, c.dy = dy;
    c.d_conv_w = g->conv_w, c.d_conv_b = g->conv_b, c.d_gain = g->gain, c.d_bias = g->bias;
    return stream_bwd_call(dev, &c);
}
