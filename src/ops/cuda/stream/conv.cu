/* conv.cu - causal depthwise convolution of width 4 alone: its channels are cut into heads of a width that the kernels of
 * stream.cuh know. Here: the states at both ends of the sequences, and their gradients. */
#include "ops/cuda/stream/stream.cuh"

namespace {

enum { THREADS = 128 };

/* A thread a sequence and channel: it has read all it needs before it writes, so state_out may be state_in. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    conv_fwd__final_states(float *state_out, const T *x, const float *state_in, int64_t stride, const int64_t *cu, int64_t d) {
    const int64_t c = (int64_t)blockIdx.y * THREADS + threadIdx.x, s = blockIdx.x;
    if (c >= d) return;
    const int64_t len = cu[s + 1] - cu[s];
    float v[3];
    for (int j = 0; j < 3; j++) {
        const int64_t t = len - 3 + j;
        v[j] = t >= 0 ? to_float(x[(cu[s] + t) * d + c]) : state_in ? state_in[s * stride + (t + 3) * d + c] : 0;
    }
    for (int j = 0; j < 3; j++) state_out[s * stride + j * d + c] = v[j];
}

/* Gradient of channel c's input at time u >= -3 of a sequence: the outputs that saw it, and its place in the final state. */
template <class T>
__device__ float input_grad(const T *dy, const float *dstate_out, const float4 &w, int64_t len, int64_t u, int64_t c,
                            int64_t d) {
    const float tap[TAPS] = {w.x, w.y, w.z, w.w};
    float g = 0;
    for (int k = 0; k < TAPS; k++) {
        const int64_t t = u + 3 - k;
        if (t >= 0 && t < len) g = fmaf(tap[k], to_float(dy[t * d + c]), g);
    }
    const int64_t j = u + 3 - len;
    return dstate_out && j >= 0 && j < 3 ? g + dstate_out[j * d + c] : g;
}

/* The gradients that a state takes part in: of the initial state, and of the last three inputs, written again. */
template <class T>
__global__ void __launch_bounds__(THREADS) conv_bwd__states(T *dx, float *dstate_in, const T *dy, const float *dstate_out,
                                                            const float *w, int64_t stride, const int64_t *cu, int64_t d) {
    const int64_t c = (int64_t)blockIdx.y * THREADS + threadIdx.x, s = blockIdx.x;
    if (c >= d) return;
    const int64_t len = cu[s + 1] - cu[s];
    const T *rows = dy + cu[s] * d;
    const float *last = dstate_out ? dstate_out + s * stride : NULL;
    const float4 tap = make_float4(w[c * 4], w[c * 4 + 1], w[c * 4 + 2], w[c * 4 + 3]);
    for (int j = 0; last && j < 3; j++)
        if (len - 3 + j >= 0) from_float(input_grad(rows, last, tap, len, len - 3 + j, c, d), dx + (cu[s] + len - 3 + j) * d + c);
    for (int j = 0; dstate_in && j < 3; j++) dstate_in[s * stride + j * d + c] = input_grad(rows, last, tap, len, j - 3, c, d);
}

dim3 state_grid(int64_t sequences, int64_t d) { return dim3((unsigned)sequences, (unsigned)vec_div_up(d, THREADS)); }

/* d channels as heads. */
void cut_heads(stream_call *c, int64_t d) {
    c->d = d % 64 == 0 ? 64 : d % 96 == 0 ? 96 : d % 32 == 0 ? 32 : d;
    c->h = c->d > 0 ? d / c->d : 0;
}

} // namespace

ida_status ida_conv_final_states(const ida_device *dev, float *state_out, const void *x, const float *state_in, int64_t stride,
                                 const ida_cuda_seqs *t, int64_t d) {
    IDA_CUDA_ACT(dev, T,
                 conv_fwd__final_states<T><<<state_grid(t->n, d), THREADS, 0, ida_cuda_of(dev)->stream>>>(
                     state_out, (const T *)x, state_in, stride, t->cu, d));
    return IDA_CUDA_LAUNCHED("final states of the convolution");
}

ida_status ida_cuda_conv_fwd(const ida_device *dev, ida_act *y, real *state_out, const ida_act *x, const real *w, const real *b,
                             const real *state_in, int64_t stride, const ida_seqs *seqs, int64_t d) {
    ida_cuda_seqs t = {};
    if (seqs->n == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &t));
    stream_call c = {};
    cut_heads(&c, d);
    c.parts = PART_CONV, c.n = t.n_tokens, c.cu = t.cu, c.pos0 = t.pos0, c.seq = t.seq;
    c.x = x, c.y = y, c.conv_w = w, c.conv_b = b, c.state_in = state_in, c.stride = stride;
    if (c.n > 0) IDA_TRY(stream_fwd_call(dev, &c));
    return state_out ? ida_conv_final_states(dev, state_out, x, state_in, stride, &t, d) : IDA_OK;
}

ida_status ida_cuda_conv_bwd(const ida_device *dev, const ida_conv_bwd_args *a, const ida_seqs *seqs) {
    ida_cuda_seqs t = {};
    if (seqs->n == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &t));
    stream_call c = {};
    cut_heads(&c, a->d);
    c.parts = PART_CONV, c.n = t.n_tokens, c.cu = t.cu, c.pos0 = t.pos0, c.seq = t.seq;
    c.x = a->x, c.dy = a->dy, c.dx = a->dx, c.conv_w = a->w, c.state_in = a->state_in, c.stride = a->stride;
    c.d_conv_w = a->dw, c.d_conv_b = a->db;
    if (c.n > 0) IDA_TRY(stream_bwd_call(dev, &c));
    if (!a->dstate_in && !a->dstate_out) return IDA_OK;
    IDA_CUDA_ACT(
        dev, T,
        conv_bwd__states<T><<<state_grid(t.n, a->d), THREADS, 0, ida_cuda_of(dev)->stream>>>(
            (T *)(void *)a->dx, a->dstate_in, (const T *)(const void *)a->dy, a->dstate_out, a->w, a->stride, t.cu, a->d));
    return IDA_CUDA_LAUNCHED("conv_bwd: states");
}
