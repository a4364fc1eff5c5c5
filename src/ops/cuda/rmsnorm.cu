/* rmsnorm.cu - root-mean-square normalisation of whole rows. A row is read once and kept in registers: forward by a warp, or by a
 * block when it is wide; backward by a block that goes over many rows and keeps its part of dg. Widths that allow no 16-byte
 * pieces, and the widest, take the kernels __any_width. Invariants: no finite row overflows (a row whose fp32 sum of squares
 * leaves the middle of the range is summed again in double); which rows share a partial sum of dg depends on n and d only. */
#include "ops/cuda/cuda_ops.h"

#include <assert.h>
#include <limits.h>

#include "ops/cuda/overlap.cuh"
#include "ops/cuda/vec.cuh"

namespace {

enum { WARPS = 8, BLOCK = 512, ANY = 256, FEW = 16 /* rows */ };
/* What the backward's grid is cut for; numbers of the code, not of the device, so that sums are the same anywhere. */
enum { CHIP = 132, CHIP_WARPS = 32, BWD_ROWS = 4, FINISH_ROWS = 32 };

VEC_DEV float rstd_of(double mean, double eps) { return (float)(1.0 / sqrt(mean + eps)); }

/* K pieces a thread. WARP: a warp has the row, WARPS rows a block; else the block has it. */
template <class T, int K, bool WARP> __global__ void __launch_bounds__(WARP ? WARPS * 32 : BLOCK)
    rmsnorm_fwd__in_registers(T *y, float *rstd, const T *x, const float *g, int64_t n, int d, double eps) {
    constexpr int V = VEC<T>;
    __shared__ float shared[32];
    __shared__ double shared_double[32];
    const int at = WARP ? (int)threadIdx.x & 31 : (int)threadIdx.x, team = WARP ? 32 : (int)blockDim.x, pieces = d / V;
    const int64_t row = WARP ? (int64_t)blockIdx.x * WARPS + threadIdx.x / 32 : blockIdx.x;
    if (row >= n) return;
    constexpr bool AHEAD = !WARP && K == 1; /* gains are read before x is there */
    float gains[V];
    if (!WARP) { /* launched so that it may overlap */
        next_may_begin();
        if (AHEAD && at < pieces) load_real<V>(g + at * V, gains);
        inputs_are_there();
    }
    piece<T, V> p[K];
    float s = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int i = at + k * team;
        p[k].raw = make_uint4(0, 0, 0, 0);
        if (i < pieces) p[k] = load_piece<V>(x + row * d + i * V);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        float v[V];
        unpack(p[k], v);
#pragma unroll
        for (int e = 0; e < V; e++) s = fmaf(v[e], v[e], s);
    }
    s = WARP ? warp_sum(s) : block_sum(s, shared);
    float r = 1.0f / sqrtf(s / (float)d + (float)eps);
    if (!(s > 1e-25f && s < 1e37f)) {
        double w = 0;
#pragma unroll 1
        for (int k = 0; k < K; k++) {
            const int i = at + k * team;
            float v[V] = {};
            if (i < pieces) unpack(load_piece<V>(x + row * d + i * V), v);
#pragma unroll
            for (int e = 0; e < V; e++) w += (double)v[e] * (double)v[e];
        }
        r = rstd_of((WARP ? warp_sum(w) : block_sum(w, shared_double)) / d, eps);
    }
    if (at == 0) rstd[row] = r;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int i = at + k * team;
        if (i >= pieces) continue;
        float v[V];
        unpack(p[k], v);
        if (!AHEAD) load_real<V>(g + i * V, gains);
#pragma unroll
        for (int e = 0; e < V; e++) v[e] = v[e] * r * gains[e];
        store_floats(y + row * d + i * V, v);
    }
}

/* A warp a row. */
template <class T> __global__ void __launch_bounds__(WARPS * 32)
    rmsnorm_fwd__any_width(T *y, float *rstd, const T *x, const float *g, int64_t n, int64_t d, double eps) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x & 31;
    if (row >= n) return;
    double s = 0;
    for (int64_t i = lane; i < d; i += 32) {
        const double v = (double)to_float(x[row * d + i]);
        s += v * v;
    }
    const float r = rstd_of(warp_sum(s) / (double)d, eps);
    if (lane == 0) rstd[row] = r;
    for (int64_t i = lane; i < d; i += 32) from_float(to_float(x[row * d + i]) * r * g[i], y + row * d + i);
}

template <class T, int K> struct row_pieces {
    piece<T, VEC<T>> dy[K], x[K], dx[K];
    float r;
};
template <class T, int K>
VEC_DEV void load_row(row_pieces<T, K> &p, const T *dy, const T *x, const T *dx, const float *rstd, int64_t row, int d) {
    constexpr int V = VEC<T>;
    p.r = rstd[row];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int i = (int)threadIdx.x + k * (int)blockDim.x;
        if (i < d / V) {
            p.dy[k] = load_piece<V>(dy + row * d + i * V);
            p.x[k] = load_piece<V>(x + row * d + i * V);
            p.dx[k] = load_piece<V>(dx + row * d + i * V);
        }
    }
}

/* y_i = x_i r g_i:  dx_i += r (g_i dy_i - x_i r mean_j(g_j dy_j x_j r)),  dg_i = dy_i x_i r.
 * A block takes the rows blockIdx, + gridDim, ..; AHEAD: the next row is on its way while one is worked on.
 * partials [gridDim, d] =. */
template <class T, int K, bool AHEAD> __global__ void __launch_bounds__(BLOCK, K <= 2 ? 2 : 1)
    rmsnorm_bwd__in_registers(T *dx, float *partials, const T *dy, const T *x, const float *g, const float *rstd, int64_t n,
                              int d) {
    constexpr int V = VEC<T>;
    __shared__ float shared[2][32]; /* in turn: a row's sum is read while the next one's is written */
    const int tid = (int)threadIdx.x, team = (int)blockDim.x, pieces = d / V;
    float sum[K][V] = {};
    row_pieces<T, K> now, next;
    if (AHEAD) load_row(next, dy, x, dx, rstd, blockIdx.x, d);
    int turn = 0;
    for (int64_t row = blockIdx.x; row < n; row += gridDim.x, turn ^= 1) {
        if (AHEAD) {
            now = next;
            if (row + gridDim.x < n) load_row(next, dy, x, dx, rstd, row + gridDim.x, d);
        } else load_row(now, dy, x, dx, rstd, row, d);
        float dot = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (tid + k * team >= pieces) continue;
            float dyv[V], xv[V], gv[V];
            unpack(now.dy[k], dyv);
            unpack(now.x[k], xv);
            load_real<V>(g + (tid + k * team) * V, gv);
#pragma unroll
            for (int e = 0; e < V; e++) {
                const float t = dyv[e] * (xv[e] * now.r);
                sum[k][e] += t;
                dot = fmaf(gv[e], t, dot);
            }
        }
        const float c = block_sum(dot, shared[turn]) / (float)d;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = tid + k * team;
            if (i >= pieces) continue;
            float dyv[V], xv[V], gv[V], dxv[V];
            unpack(now.dy[k], dyv);
            unpack(now.x[k], xv);
            unpack(now.dx[k], dxv);
            load_real<V>(g + i * V, gv);
#pragma unroll
            for (int e = 0; e < V; e++) dxv[e] += now.r * (gv[e] * dyv[e] - xv[e] * now.r * c);
            store_floats(dx + row * d + i * V, dxv);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++)
        if (tid + k * team < pieces) store_real<V>(partials + (int64_t)blockIdx.x * d + (tid + k * team) * V, sum[k]);
}

/* The same, an element at a time, its part of dg in memory. */
template <class T> __global__ void __launch_bounds__(ANY)
    rmsnorm_bwd__any_width(T *dx, float *partials, const T *dy, const T *x, const float *g, const float *rstd, int64_t n,
                           int64_t d) {
    __shared__ float shared[2][32];
    float *sum = partials + blockIdx.x * d;
    for (int64_t i = threadIdx.x; i < d; i += ANY) sum[i] = 0;
    int turn = 0;
    for (int64_t row = blockIdx.x; row < n; row += gridDim.x, turn ^= 1) {
        const T *xr = x + row * d, *dyr = dy + row * d;
        T *dxr = dx + row * d;
        const float r = rstd[row];
        float dot = 0;
        for (int64_t i = threadIdx.x; i < d; i += ANY) dot += g[i] * (to_float(dyr[i]) * (to_float(xr[i]) * r));
        const float c = block_sum(dot, shared[turn]) / (float)d;
        for (int64_t i = threadIdx.x; i < d; i += ANY) {
            const float dyv = to_float(dyr[i]), xv = to_float(xr[i]) * r;
            sum[i] += dyv * xv;
            from_float(to_float(dxr[i]) + r * (g[i] * dyv - xv * c), dxr + i);
        }
    }
}

/* dg += the column sums of partials [rows, d], in a fixed order. 32 columns a block, FINISH_ROWS warps. */
__global__ void __launch_bounds__(32 * FINISH_ROWS)
    rmsnorm_bwd__add_partials(float *dg, const float *partials, int rows, int64_t d) {
    __shared__ double shared[FINISH_ROWS][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    const int64_t i = (int64_t)blockIdx.x * 32 + lane;
    double s = 0;
    if (i < d) {
#pragma unroll 8
        for (int row = warp; row < rows; row += FINISH_ROWS) s += (double)partials[row * d + i];
    }
    shared[warp][lane] = s;
    __syncthreads();
    if (warp != 0 || i >= d) return;
    for (int w = 1; w < FINISH_ROWS; w++) s += shared[w][lane];
    dg[i] = (float)((double)dg[i] + s);
}

template <class T> struct fwd_call {
    T *y;
    float *rstd;
    const T *x;
    const float *g;
    int64_t n, d;
    double eps;
    const ida_device *dev;
    cudaStream_t stream;
};
template <class T, int K> void fwd_by_warp(const fwd_call<T> &c) {
    rmsnorm_fwd__in_registers<T, K, true>
        <<<(unsigned)vec_div_up(c.n, WARPS), WARPS * 32, 0, c.stream>>>(c.y, c.rstd, c.x, c.g, c.n, (int)c.d, c.eps);
}
/* Whole warps with K pieces a thread. */
unsigned threads_of(int64_t pieces, int k) { return (unsigned)(vec_div_up(vec_div_up(pieces, k), 32) * 32); }
template <class T, int K> void fwd_by_block(const fwd_call<T> &c, int64_t pieces) {
    launch_overlapping(c.dev, rmsnorm_fwd__in_registers<T, K, false>, (unsigned)c.n, threads_of(pieces, K), 0, c.y, c.rstd, c.x,
                       c.g, c.n, (int)c.d, c.eps);
}

template <class T> void launch_fwd(const fwd_call<T> &c) {
    const int64_t pieces = c.d / VEC<T>;
    if (c.d % VEC<T> || pieces > 4 * BLOCK || !vec_aligned(c.y, c.x, c.g))
        rmsnorm_fwd__any_width<<<(unsigned)vec_div_up(c.n, WARPS), WARPS * 32, 0, c.stream>>>(c.y, c.rstd, c.x, c.g, c.n, c.d,
                                                                                              c.eps);
    else if (c.n <= FEW && pieces <= BLOCK) fwd_by_block<T, 1>(c, pieces); /* all that counts is how soon it is done */
    else if (pieces <= 32) fwd_by_warp<T, 1>(c);
    else if (pieces <= 64) fwd_by_warp<T, 2>(c);
    else if (pieces <= 96) fwd_by_warp<T, 3>(c);
    else if (pieces <= 128) fwd_by_warp<T, 4>(c);
    else if (pieces <= 192) fwd_by_warp<T, 6>(c);
    else if (pieces <= 256) fwd_by_warp<T, 8>(c);
    else if (pieces <= BLOCK) fwd_by_block<T, 1>(c, pieces);
    else if (pieces <= 2 * BLOCK) fwd_by_block<T, 2>(c, pieces);
    else fwd_by_block<T, 4>(c, pieces);
}

struct bwd_plan {
    int k; /* pieces a thread; 0: any width */
    unsigned blocks, threads;
};
template <class T> bwd_plan plan_bwd(const T *dx, const T *dy, const T *x, const float *g, int64_t n, int64_t d) {
    const int64_t pieces = d / VEC<T>;
    const bool any = d % VEC<T> || pieces > 4 * BLOCK || !vec_aligned(dx, dy, x, g);
    bwd_plan p;
    p.k = any ? 0 : pieces <= BLOCK ? 1 : pieces <= 2 * BLOCK ? 2 : 4;
    p.threads = any ? (unsigned)ANY : threads_of(pieces, p.k);
    /* one wave; with few rows, not more partial sums than a quarter of them */
    p.blocks = (unsigned)vec_min(CHIP * (CHIP_WARPS * 32 / p.threads), vec_div_up(n, BWD_ROWS));
    return p;
}

template <class T> ida_status run_bwd(const ida_device *dev, T *dx, float *dg, const T *dy, const T *x, const float *g,
                                      const float *rstd, int64_t n, int64_t d) {
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    const bwd_plan plan = plan_bwd(dx, dy, x, g, n, d);
    const unsigned blocks = plan.blocks, threads = plan.threads;
    float *partials = NULL;
    IDA_TRY(ida_cuda_scratch(dev, blocks * d * (int64_t)sizeof *partials, (void **)&partials));
    if (plan.k == 0) rmsnorm_bwd__any_width<<<blocks, ANY, 0, stream>>>(dx, partials, dy, x, g, rstd, n, d);
    else if (plan.k == 1)
        rmsnorm_bwd__in_registers<T, 1, true><<<blocks, threads, 0, stream>>>(dx, partials, dy, x, g, rstd, n, (int)d);
    else if (plan.k == 2)
        rmsnorm_bwd__in_registers<T, 2, false><<<blocks, threads, 0, stream>>>(dx, partials, dy, x, g, rstd, n, (int)d);
    else rmsnorm_bwd__in_registers<T, 4, false><<<blocks, threads, 0, stream>>>(dx, partials, dy, x, g, rstd, n, (int)d);
    IDA_TRY(IDA_CUDA_LAUNCHED("rmsnorm_bwd"));
    rmsnorm_bwd__add_partials<<<(unsigned)vec_div_up(d, 32), 32 * FINISH_ROWS, 0, stream>>>(dg, partials, (int)blocks, d);
    return IDA_CUDA_LAUNCHED("rmsnorm_bwd: sum of the gain gradient");
}

} // namespace

ida_status ida_cuda_rmsnorm_fwd(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, int64_t n,
                                int64_t d, double eps) {
    assert(n <= INT_MAX && eps >= IDA_LEAST_EPS);
    if (n == 0) return IDA_OK;
    IDA_CUDA_ACT(
        dev, T,
        launch_fwd(fwd_call<T>{(T *)(void *)y, rstd, (const T *)(const void *)x, g, n, d, eps, dev, ida_cuda_of(dev)->stream}));
    return IDA_CUDA_LAUNCHED("rmsnorm_fwd");
}

ida_status ida_cuda_rmsnorm_bwd(const ida_device *dev, ida_act *dx, real *dg, const ida_act *dy, const ida_act *x,
                                const real *g, const real *rstd, int64_t n, int64_t d) {
    ida_status st = IDA_OK;
    if (n == 0) return IDA_OK;
    IDA_CUDA_ACT(dev, T,
                 st = run_bwd(dev, (T *)(void *)dx, dg, (const T *)(const void *)dy, (const T *)(const void *)x, g, rstd, n, d));
    return st;
}
