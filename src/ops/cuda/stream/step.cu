/* stream/step.cu - convolution, RoPE, feature map and head norm of batches whose sequences have one token each, and the
 * convolution's new state in the same pass: decoding. q, k and v go in one launch, the blocks of one after those of another. A
 * warp takes a head of a token; a lane holds the pairs of channels that RoPE turns, (i, i + D/2) for i = lane, lane + 32, ... Row
 * sums are in double, so that no finite row overflows.
 * Invariants: the state may be written where it is read: a lane has read its channels before it writes them. Every block has a
 * row, and so waits for the kernels ahead (overlap.cuh). */
#include <math.h>

#include "ops/cuda/overlap.cuh"
#include "ops/cuda/stream/stream.cuh"

namespace {

enum { WARPS = 4, MOST_HALF = 128 };

/* What channel i of sequence s has without the token: its last inputs, their sum, the tap that the token meets, and the head
 * norm's parameters. */
struct channel {
    float old[TAPS - 1], sum, tap, gain, bias;
};
VEC_DEV channel channel_of(const stream_call &c, int64_t s, int64_t head, int64_t at) {
    const int64_t i = head * c.d + at, width = c.h * c.d;
    channel a = {{0, 0, 0}, 0, 1, 1, 0};
    if (c.parts & PART_NORM) a.gain = c.gain[at], a.bias = c.bias ? c.bias[i] : 0.0f;
    if (!(c.parts & PART_CONV)) return a;
    const float *in = c.state_in ? c.state_in + s * c.stride + i : NULL, *w = c.conv_w + i * TAPS;
    a.sum = c.conv_b[i];
    a.tap = w[TAPS - 1];
#pragma unroll
    for (int k = 0; k < TAPS - 1; k++) {
        a.old[k] = in ? in[k * width] : 0.0f;
        a.sum = fmaf(w[k], a.old[k], a.sum);
    }
    return a;
}
/* The token's value after the convolution; the new state. */
template <class T> VEC_DEV float convolved(const stream_call &c, const channel &a, int64_t s, int64_t i, int64_t width) {
    const float x = to_float(((const T *)c.x)[s * width + i]);
    if (c.state_out) {
        float *to = c.state_out + s * c.stride + i;
        to[0] = a.old[1], to[width] = a.old[2], to[2 * width] = x;
    }
    return fmaf(a.tap, x, a.sum);
}

/* The streams of a launch. Those that are not there begin after the last block. */
struct step_calls {
    stream_call c[IDA_MOST_STREAMS];
    rope_freqs<MOST_HALF> freqs[IDA_MOST_STREAMS];
    unsigned first[IDA_MOST_STREAMS]; /* block */
};
static_assert(sizeof(step_calls) <= 4096, "more parameters than any driver takes");

/* PAIRS of channels a lane, or fewer. */
template <class T, int PAIRS> __global__ void __launch_bounds__(32 * WARPS)
    stream_fwd__steps(const __grid_constant__ step_calls calls) {
    next_may_begin();
    int which = 0;
#pragma unroll
    for (int i = 1; i < IDA_MOST_STREAMS; i++) which += blockIdx.x >= calls.first[i];
    const stream_call &c = calls.c[which];
    const rope_freqs<MOST_HALF> &freqs = calls.freqs[which];
    const int lane = (int)threadIdx.x & 31, half = (int)(c.d / 2);
    const int64_t row = (int64_t)(blockIdx.x - calls.first[which]) * WARPS + threadIdx.x / 32, s = row / c.h, head = row % c.h,
                  width = c.h * c.d;
    if (s >= c.n) return;
    channel before[PAIRS][2];
    float2 turn[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const int i = lane + 32 * p;
        if (i >= half) break;
        before[p][0] = channel_of(c, s, head, i);
        before[p][1] = channel_of(c, s, head, half + i);
        turn[p] = c.parts & PART_ROPE ? cos_sin((double)c.pos0[s] * freqs.f[i]) : make_float2(1, 0);
    }
    inputs_are_there();
    float v[PAIRS][2];
    double sum = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const int i = lane + 32 * p;
        if (i >= half) break;
        const float a = convolved<T>(c, before[p][0], s, head * c.d + i, width),
                    b = convolved<T>(c, before[p][1], s, head * c.d + half + i, width);
        v[p][0] = c.parts & PART_ROPE ? fmaf(a, turn[p].x, -b * turn[p].y) : a;
        v[p][1] = c.parts & PART_ROPE ? fmaf(b, turn[p].x, a * turn[p].y) : b;
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
            if (c.parts & PART_NORM) out = fmaf(out, before[p][e].gain, before[p][e].bias);
            from_float(out, y + at);
        }
    }
}

template <class T, int PAIRS> ida_status launch(const ida_device *dev, const step_calls &calls, unsigned blocks) {
    launch_overlapping(dev, stream_fwd__steps<T, PAIRS>, blocks, 32 * WARPS, 0, calls);
    return IDA_CUDA_LAUNCHED("stream_fwd, one token a sequence");
}

/* d: the widest. */
template <class T> ida_status launch_width(const ida_device *dev, const step_calls &calls, unsigned blocks, int64_t d) {
    switch (vec_div_up(d, 64)) {
    case 1: return launch<T, 1>(dev, calls, blocks);
    case 2: return launch<T, 2>(dev, calls, blocks);
    case 3: return launch<T, 3>(dev, calls, blocks);
    }
    return launch<T, 4>(dev, calls, blocks);
}

} // namespace

bool ida_stream_is_step(const stream_call *c, const ida_seqs *seqs) {
    return c->parts != 0 && c->d % 2 == 0 && c->d <= 2 * MOST_HALF && c->n <= INT32_MAX / c->h && c->n == seqs->n &&
           ida_seqs_one_token_each(seqs);
}

ida_status ida_stream_fwd_steps(const ida_device *dev, const stream_call *c, int n) {
    step_calls calls = {};
    int64_t blocks = 0, d = 0;
    for (int i = 0; i < IDA_MOST_STREAMS; i++) {
        calls.first[i] = (unsigned)blocks;
        if (i >= n) continue; /* begins after the last */
        calls.c[i] = c[i], calls.freqs[i] = stream_freqs<MOST_HALF>(&c[i]);
        blocks += vec_div_up(c[i].n * c[i].h, WARPS);
        d = vec_max(d, c[i].d);
    }
    IDA_CUDA_ACT(dev, T, return launch_width<T>(dev, calls, (unsigned)blocks, d));
}
