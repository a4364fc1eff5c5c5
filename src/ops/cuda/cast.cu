/* cast.cu - to_act and from_act: y = x rounded to nearest even. Where act is float they are copies. */
#include "ops/cuda/cuda_ops.h"

#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, PIECES = 2 };

/* PIECES pieces of V elements a thread, a block apart. The thread after the last whole piece does what is left, one by one. */
template <class To, class From, int V> __global__ void __launch_bounds__(THREADS) cast__pieces(To *y, const From *x, int64_t n) {
    const int64_t first = (int64_t)blockIdx.x * (THREADS * PIECES) + threadIdx.x, pieces = n / V;
    piece<From, V> p[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        if (first + k * THREADS < pieces) p[k] = load_piece<V>(x + (first + k * THREADS) * V);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int64_t i = first + k * THREADS;
        if (i < pieces) {
            float v[V];
            unpack(p[k], v);
            store_floats(y + i * V, v);
        } else if (V > 1 && i == pieces)
            for (int64_t j = pieces * V; j < n; j++) from_float(to_float(x[j]), y + j);
    }
}

template <class To, class From> ida_status run(const ida_device *dev, To *y, const From *x, int64_t n, const char *what) {
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    if (n == 0) return IDA_OK;
    const unsigned quads = (unsigned)vec_div_up(vec_div_up(n, 4), THREADS * PIECES),
                   singles = (unsigned)vec_div_up(n, THREADS * PIECES);
    if constexpr (sizeof(To) == sizeof(From))
        return ida_cuda_status((int)cudaMemcpyAsync(y, x, (size_t)n * sizeof *y, cudaMemcpyDeviceToDevice, stream), what,
                               __FILE__, __LINE__);
    if (vec_aligned(y, x)) cast__pieces<To, From, 4><<<quads, THREADS, 0, stream>>>(y, x, n);
    else cast__pieces<To, From, 1><<<singles, THREADS, 0, stream>>>(y, x, n);
    return IDA_CUDA_LAUNCHED(what);
}

} // namespace

ida_status ida_cuda_to_act(const ida_device *dev, ida_act *y, const real *x, int64_t n) {
    ida_status st = IDA_OK;
    IDA_CUDA_ACT(dev, T, st = run(dev, (T *)(void *)y, x, n, "to_act"));
    return st;
}

ida_status ida_cuda_from_act(const ida_device *dev, real *y, const ida_act *x, int64_t n) {
    ida_status st = IDA_OK;
    IDA_CUDA_ACT(dev, T, st = run(dev, y, (const T *)(const void *)x, n, "from_act"));
    return st;
}
