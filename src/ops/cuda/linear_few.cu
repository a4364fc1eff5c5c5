/* linear_few.cu - y = x W^T (+ c) for at most IDA_LINEAR_FEW rows of x in bf16: decoding, and the head of a prompt's last token.
 * Bound by the bytes of W, which are read once: a CTA a multiprocessor; a warp takes one row of W, or two, then the next of its
 * own, against all rows of x, which lie in shared memory. A thread's weights pass through slots of its own there, DEPTH steps of
 * 16 bytes on their way at any time, from one row to the next, and before x is there (overlap.cuh). Not here: all other products
 * (linear.cu).
 * Invariant: a sum's order depends on `in` only, so that a row of y depends neither on the rows beside it nor on `out`. */
#include "ops/cuda/linear_few.h"

#include "ops/cuda/overlap.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 512, WARPS = THREADS / 32, V = VEC<__nv_bfloat16> };
/* Steps of one row on their way. Products take turns: a multiprocessor of 227 KB has room for one LONE and one GUEST, not for two
 * LONE. So each has one CTA of the product that runs and one of the next, and equal shares end at the same time; with two CTAs of
 * one product here and none there, the largest took 1.6 times as long. (With several long rows of x the next one must wait.)
 * SHALLOW: where there is less shared memory. */
enum { LONE = 14, GUEST = 10, SHALLOW = 4 };

/* Slots and x. R: rows of W a warp. */
template <int R, int DEPTH> int64_t shared_bytes(int64_t n, int64_t in) {
    return R * DEPTH * THREADS * (int64_t)sizeof(uint4) + n * in * (int64_t)sizeof(__nv_bfloat16);
}
/* Rows of W a warp for n rows of x. */
constexpr int rows_for(int64_t n) { return n > 2 ? 2 : 1; }

VEC_DEV void unpack(uint4 raw, float (&x)[V]) {
    piece<__nv_bfloat16, V> p;
    p.raw = raw;
    unpack(p, x);
}

/* What a lane reads of W: R rows at a time, every 32nd piece of each. */
template <int R> struct walk {
    const uint4 *w, *at;  /* its next piece of the first row */
    int row, stride, out; /* the first row; from there to that of the next R */
    int i, pieces;        /* which piece of the row; of a row */
};

/* Queues the step's pieces for slot[r THREADS], as one group; nothing past the end of a row or of W. */
template <int R> VEC_DEV void fetch(walk<R> &from, uint4 *slot) {
    if (from.row < from.out) {
#pragma unroll
        for (int r = 0; r < R; r++) { /* past W's last row: that one, and no sum is written */
            const bool in = from.i < from.pieces;
            const uint4 *at = from.at + (from.row + r < from.out ? r * from.pieces : 0);
            cp_async<16>(smem_at(slot + r * THREADS), in ? at : from.w, in);
        }
        from.i += 32, from.at += 32;
        if (from.i - (int)(threadIdx.x & 31) >= from.pieces) {
            from.at += (int64_t)from.stride * from.pieces - from.i;
            from.i = (int)(threadIdx.x & 31), from.at += from.i, from.row += from.stride;
        }
    }
    cp_commit();
}

/* N rows of x, R rows of W a warp. Lane l adds up the pieces l, l + 32, ... of a row in turn. Shared memory: slots
 * [DEPTH][R][THREADS], x. */
template <int N, int R, int DEPTH> __global__ void __maxnreg__(N > 1 ? 64 : 48)
    linear__few_rows(__nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w, const __nv_bfloat16 *c, int out,
                     int pieces) {
    next_may_begin();
    extern __shared__ uint4 shared[];
    uint4 *slots = shared + threadIdx.x, *shared_x = shared + DEPTH * R * THREADS;
    const int lane = (int)threadIdx.x & 31, steps = (pieces + 31) / 32;
    const int first = (int)(threadIdx.x / 32 * gridDim.x + blockIdx.x) * R, stride = (int)gridDim.x * WARPS * R;
    const uint4 *weights = reinterpret_cast<const uint4 *>(w);
    walk<R> ahead = {weights, weights + (int64_t)first * pieces + lane, first, stride, out, lane, pieces};
#pragma unroll 1
    for (int i = 0; i < DEPTH; i++) fetch(ahead, slots + i * R * THREADS);
    inputs_are_there();
    for (int i = (int)threadIdx.x; i < N * pieces; i += THREADS) shared_x[i] = reinterpret_cast<const uint4 *>(x)[i];
    __syncthreads();

    int slot = 0;
    for (int row = first; row < out; row += stride) {
        /* lane r N + n writes: row r of W, row n of x */
        const int64_t mine = (int64_t)(lane % N) * out + row + lane / N;
        const bool writes = lane < R * N && row + lane / N < out;
        const float add = c && writes ? __bfloat162float(c[mine]) : 0.0f;
        float sum[R][N] = {};
#pragma unroll 1
        for (int step = 0, i = lane; step < steps; step++, i += 32) {
            cp_wait<DEPTH - 1>(); /* the oldest group: what this thread itself asked for is there */
            uint4 *from = slots + slot * R * THREADS;
            float a[R][V];
#pragma unroll
            for (int r = 0; r < R; r++) unpack(from[r * THREADS], a[r]);
#pragma unroll
            for (int n = 0; n < N; n++) {
                float b[V];
                unpack(i < pieces ? shared_x[n * pieces + i] : make_uint4(0, 0, 0, 0), b);
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int e = 0; e < V; e++) sum[r][n] = fmaf(a[r][e], b[e], sum[r][n]);
            }
            fetch(ahead, from);
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
        }
        float s = 0;
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float all = warp_sum(sum[r][n]);
                if (lane == r * N + n) s = all;
            }
        if (writes) y[mine] = __float2bfloat16_rn(s + add);
    }
}

template <int N, int DEPTH>
ida_status launch_deep(const ida_device *dev, __nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w,
                       const __nv_bfloat16 *c, int64_t in, int64_t out) {
    constexpr int R = rows_for(N);
    const ida_cuda *cuda = ida_cuda_of(dev);
    const size_t bytes = (size_t)shared_bytes<R, DEPTH>(N, in);
    IDA_CUDA_TRY(cudaFuncSetAttribute(linear__few_rows<N, R, DEPTH>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      cuda->most_shared));
    const unsigned blocks = (unsigned)vec_min(vec_div_up(out, R), cuda->sms);
    launch_overlapping(dev, linear__few_rows<N, R, DEPTH>, blocks, THREADS, bytes, y, x, w, c, (int)out, (int)(in / V));
    return IDA_CUDA_LAUNCHED("linear, few rows");
}
template <int N> ida_status launch(const ida_device *dev, __nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w,
                                   const __nv_bfloat16 *c, int64_t in, int64_t out) {
    constexpr int R = rows_for(N), LONG = LONE / R, SHORT = GUEST / R, LEAST = SHALLOW / R;
    const int most = ida_cuda_of(dev)->most_shared;
    ida_cuda_priv *priv = ida_cuda_priv_of(dev);
    priv->lone_product = !priv->lone_product;
    if (priv->lone_product && shared_bytes<R, LONG>(N, in) <= most) return launch_deep<N, LONG>(dev, y, x, w, c, in, out);
    if (shared_bytes<R, SHORT>(N, in) <= most) return launch_deep<N, SHORT>(dev, y, x, w, c, in, out);
    return launch_deep<N, LEAST>(dev, y, x, w, c, in, out);
}

} // namespace

bool ida_linear_few(const ida_device *dev, const act *x, const act *w, int64_t n, int64_t in, int64_t out) {
    const ida_cuda *cuda = ida_cuda_of(dev);
    return cuda->bf16 && n >= 1 && n <= IDA_LINEAR_FEW && in >= V && in % V == 0 && in <= 1 << 20 && out >= 1 &&
           out <= INT32_MAX / 2 && vec_aligned(x, w) && shared_bytes<1, SHALLOW>(n, in) <= cuda->most_shared;
}

ida_status ida_linear_few_fwd(const ida_device *dev, act *y_, const act *x_, const act *w_, const act *c_, int64_t n, int64_t in,
                              int64_t out) {
    __nv_bfloat16 *y = (__nv_bfloat16 *)(void *)y_;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)(const void *)x_, *w = (const __nv_bfloat16 *)(const void *)w_,
                        *c = (const __nv_bfloat16 *)(const void *)c_;
    switch (n) {
    case 1: return launch<1>(dev, y, x, w, c, in, out);
    case 2: return launch<2>(dev, y, x, w, c, in, out);
    case 3: return launch<3>(dev, y, x, w, c, in, out);
    default: return launch<4>(dev, y, x, w, c, in, out);
    }
}
