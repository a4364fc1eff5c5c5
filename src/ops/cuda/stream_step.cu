/* stream_step.cu - convolution, RoPE, feature map and head norm of batches whose sequences have one token each, and the
 * convolution's new state in the same pass: decoding. A warp takes a head of a token; a lane holds the pairs of channels that
 * RoPE turns, (i, i + D/2) for i = lane, lane + 32, ... Row sums are in double, so that no finite row overflows.
 * Invariant: the state may be written where it is read: a lane has read its channels before it writes them. */
#include <math.h>

#include "ops/cuda/stream.cuh"

namespace {

enum { WARPS = 4, MOST_HALF = 128 };

/* The convolution of channel i of sequence s, and its new state. */
template <class T> VEC_DEV float convolved(const stream_call &c, float *state_out, int64_t s, int64_t i, int64_t width) {
    const float x = to_float(((const T *)c.x)[s * width + i]);
    if (!(c.parts & PART_CONV)) return x;
    const float *in = c.state_in ? c.state_in + s * c.stride + i : NULL, *w = c.conv_w + i * TAPS;
    float old[TAPS - 1];
#pragma unroll
    for (int k = 0; k < TAPS - 1; k++) old[k] = in ? in[k * width] : 0.0f;
    if (state_out) {
        float *to = state_out + s * c.stride + i;
        to[0] = old[1], to[width] = old[2], to[2 * width] = x;
    }
    float a = c.conv_b[i];
#pragma unroll
    for (int k = 0; k < TAPS - 1; k++) a = fmaf(w[k], old[k], a);
    return fmaf(w[TAPS - 1], x, a);
}

/* PAIRS of channels a lane. */
template <class T, int PAIRS> __global__ void __launch_bounds__(32 * WARPS)
    stream_fwd__step(const __grid_constant__ stream_call c, float *state_out, const __grid_constant__ rope_freqs<MOST_HALF> freqs) {
    const int lane = (int)threadIdx.x & 31, half = (int)(c.d / 2);
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, s = row / c.h, head = row % c.h, width = c.h * c.d;
    if (s >= c.n) return;
    float v[PAIRS][2];
    double sum = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const int i = lane + 32 * p;
        if (i >= half) break;
        v[p][0] = convolved<T>(c, state_out, s, head * c.d + i, width);
        v[p][1] = convolved<T>(c, state_out, s, head * c.d + half + i, width);
        if (c.parts & PART_ROPE) {
            const float2 turn = cos_sin((double)c.pos0[s] * freqs.f[i]);
            const float a = v[p][0], b = v[p][1];
            v[p][0] = fmaf(a, turn.x, -b * turn.y);
            v[p][1] = fmaf(b, turn.x, a * turn.y);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (c.parts & PART_MAP) v[p][e] *= sigmoid(v[p][e]);
            sum += (double)v[p][e] * (double)v[p][e];
        }
    }
    double scale = 1;
    if (c.parts & (PART_MAP | PART_NORM)) {
        sum = warp_sum(sum);
        if (c.parts & PART_MAP) scale = 1 / sqrt(sum + (double)c.l2_eps);
        if (c.parts & PART_NORM) scale *= 1 / sqrt(sum * scale * scale / (double)c.d + (double)c.norm_eps);
    }
    T *y = (T *)c.y + row * c.d;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const int i = lane + 32 * p;
        if (i >= half) break;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int at = i + e * half;
            float out = (float)((double)v[p][e] * scale);
            if (c.parts & PART_NORM) out = fmaf(out, c.gain[at], c.bias ? c.bias[head * c.d + at] : 0.0f);
            from_float(out, y + at);
        }
    }
}

template <class T, int PAIRS> ida_status launch(const ida_device *dev, const stream_call *c, float *state_out) {
    const int64_t blocks = vec_div_up(c->n * c->h, WARPS);
    stream_fwd__step<T, PAIRS>
        <<<(unsigned)blocks, 32 * WARPS, 0, ida_cuda_of(dev)->stream>>>(*c, state_out, stream_freqs<MOST_HALF>(c));
    return IDA_CUDA_LAUNCHED("stream_fwd, one token a sequence");
}

template <class T> ida_status launch_width(const ida_device *dev, const stream_call *c, float *state_out) {
    switch (vec_div_up(c->d, 64)) {
    case 1: return launch<T, 1>(dev, c, state_out);
    case 2: return launch<T, 2>(dev, c, state_out);
    case 3: return launch<T, 3>(dev, c, state_out);
    }
    return launch<T, 4>(dev, c, state_out);
}

} // namespace

bool ida_stream_is_step(const stream_call *c, const ida_seqs *seqs) {
    return c->parts != 0 && c->d % 2 == 0 && c->d <= 2 * MOST_HALF && c->n <= INT32_MAX / c->h && c->n == seqs->n &&
           ida_seqs_one_token_each(seqs);
}

ida_status ida_stream_fwd_step(const ida_device *dev, const stream_call *c, float *state_out) {
    IDA_CUDA_ACT(dev, T, return launch_width<T>(dev, c, state_out));
}
