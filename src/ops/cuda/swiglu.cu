/* swiglu.cu - y = SiLU(g) * u. Invariant: a thread reads all of its elements before it writes any, so aliases are safe. */
#include "ops/cuda/cuda_ops.h"

#include "ops/cuda/overlap.cuh"
#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, PIECES = 2 };

/* 1 / (1 + e^-x): 0 or 1 at the ends, never NaN for a number. For bf16 by the fast units (relative error below 1e-5 where it is
 * above 1e-20), for float to its last digits. */
template <class T> VEC_DEV float sigmoid(float x) {
    if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-x));
    else return 1.0f / (1.0f + expf(-x));
}

template <class T, int V> VEC_DEV void forward(T *y, const piece<T, V> &g, const piece<T, V> &u) {
    float gv[V], uv[V];
    unpack(g, gv);
    unpack(u, uv);
#pragma unroll
    for (int e = 0; e < V; e++) gv[e] = gv[e] * sigmoid<T>(gv[e]) * uv[e];
    store_floats(y, gv);
}

/* y = g sig(g) u:  dg = dy u sig (1 + g (1 - sig)),  du = dy g sig. */
template <class T, int V> VEC_DEV void backward(T *dg, T *du, const piece<T, V> &dy, const piece<T, V> &g, const piece<T, V> &u) {
    float d[V], gv[V], uv[V];
    unpack(dy, d);
    unpack(g, gv);
    unpack(u, uv);
#pragma unroll
    for (int e = 0; e < V; e++) {
        const float sig = sigmoid<T>(gv[e]);
        uv[e] = d[e] * (sig * (1.0f + gv[e] * (1.0f - sig))) * uv[e];
        gv[e] = d[e] * (gv[e] * sig);
    }
    store_floats(dg, uv);
    store_floats(du, gv);
}

/* PIECES pieces of V elements a thread, a block apart. The thread after the last whole piece does what is left, one by one. */
template <class T, int V> __global__ void __launch_bounds__(THREADS) swiglu_fwd__pieces(T *y, const T *g, const T *u, int64_t n) {
    next_may_begin();
    inputs_are_there();
    const int64_t first = (int64_t)blockIdx.x * (THREADS * PIECES) + threadIdx.x, pieces = n / V;
    piece<T, V> gp[PIECES], up[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int64_t i = first + k * THREADS;
        if (i < pieces) gp[k] = load_piece<V>(g + i * V), up[k] = load_piece<V>(u + i * V);
    }
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int64_t i = first + k * THREADS;
        if (i < pieces) forward(y + i * V, gp[k], up[k]);
        else if (V > 1 && i == pieces)
            for (int64_t j = pieces * V; j < n; j++) forward(y + j, load_piece<1>(g + j), load_piece<1>(u + j));
    }
}

template <class T, int V> __global__ void __launch_bounds__(THREADS)
    swiglu_bwd__pieces(T *dg, T *du, const T *dy, const T *g, const T *u, int64_t n) {
    const int64_t first = (int64_t)blockIdx.x * (THREADS * PIECES) + threadIdx.x, pieces = n / V;
    piece<T, V> dp[PIECES], gp[PIECES], up[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int64_t i = first + k * THREADS;
        if (i < pieces) dp[k] = load_piece<V>(dy + i * V), gp[k] = load_piece<V>(g + i * V), up[k] = load_piece<V>(u + i * V);
    }
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int64_t i = first + k * THREADS;
        if (i < pieces) backward(dg + i * V, du + i * V, dp[k], gp[k], up[k]);
        else if (V > 1 && i == pieces)
            for (int64_t j = pieces * V; j < n; j++)
                backward(dg + j, du + j, load_piece<1>(dy + j), load_piece<1>(g + j), load_piece<1>(u + j));
    }
}

/* One more than the whole pieces: the rest. */
unsigned grid_of(int64_t n, int v) { return (unsigned)vec_div_up(n / v + (n % v != 0), THREADS * PIECES); }

template <class T> void launch_fwd(const ida_device *dev, T *y, const T *g, const T *u, int64_t n) {
    constexpr int V = VEC<T>;
    if (vec_aligned(y, g, u)) launch_overlapping(dev, swiglu_fwd__pieces<T, V>, grid_of(n, V), THREADS, 0, y, g, u, n);
    else launch_overlapping(dev, swiglu_fwd__pieces<T, 1>, grid_of(n, 1), THREADS, 0, y, g, u, n);
}
template <class T> void launch_bwd(T *dg, T *du, const T *dy, const T *g, const T *u, int64_t n, cudaStream_t stream) {
    constexpr int V = VEC<T>;
    if (vec_aligned(dg, du, dy, g, u)) swiglu_bwd__pieces<T, V><<<grid_of(n, V), THREADS, 0, stream>>>(dg, du, dy, g, u, n);
    else swiglu_bwd__pieces<T, 1><<<grid_of(n, 1), THREADS, 0, stream>>>(dg, du, dy, g, u, n);
}

} // namespace

ida_status ida_cuda_swiglu_fwd(const ida_device *dev, ida_act *y, const ida_act *g, const ida_act *u, int64_t n) {
    if (n == 0) return IDA_OK;
    IDA_CUDA_ACT(dev, T,
                 launch_fwd(dev, (T *)(void *)y, (const T *)(const void *)g, (const T *)(const void *)u, n));
    return IDA_CUDA_LAUNCHED("swiglu_fwd");
}

ida_status ida_cuda_swiglu_bwd(const ida_device *dev, ida_act *dg, ida_act *du, const ida_act *dy, const ida_act *g,
                               const ida_act *u, int64_t n) {
    if (n == 0) return IDA_OK;
    IDA_CUDA_ACT(dev, T,
                 launch_bwd((T *)(void *)dg, (T *)(void *)du, (const T *)(const void *)dy, (const T *)(const void *)g,
                            (const T *)(const void *)u, n, ida_cuda_of(dev)->stream));
    return IDA_CUDA_LAUNCHED("swiglu_bwd");
}
