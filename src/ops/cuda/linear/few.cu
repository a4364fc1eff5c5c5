/* linear/few.cu - y = x W^T (+ c) for at most IDA_LINEAR_FEW rows of x in bf16: decoding, and the head of a prompt's last token.
 * In a step also with what stands before and after: x normalised by each CTA for itself, SiLU(gate) up of both sums.
 * Bound by the bytes of W, which are read once: a CTA a multiprocessor; a warp takes one row of W, or two, then the next of its
 * own, against all rows of x, which lie in shared memory. A thread's weights pass through slots of its own there, DEPTH steps of
 * 16 bytes on their way at any time, from one row to the next, and before x is there (overlap.cuh). Not here: all other products
 * (linear.cu).
 * Invariant: a sum's order depends on `in` only, so that a row of y depends neither on the rows beside it nor on `out`. */
#include "ops/cuda/linear/few.h"

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

/* PLAIN: y = x W^T (+ c). NORMED: of rmsnorm(x). GATED: so, and a warp's two rows of W are one of the gate and one of up. */
enum kind { PLAIN, NORMED, GATED };
/* Rows of W a warp, for N rows of x; columns of y that come of them. */
template <int N, kind K> constexpr int ROWS = K == GATED || N > 2 ? 2 : 1;
template <int N, kind K> constexpr int COLUMNS = K == GATED ? 1 : ROWS<N, K>;

/* Slots, x, but for PLAIN the sums of squares of each warp. R: rows of W a warp. */
template <int R, int DEPTH> int64_t shared_bytes(int64_t n, int64_t pieces, bool sums) {
    return (R * DEPTH * THREADS + n * pieces) * (int64_t)sizeof(uint4) + (sums ? n * 32 * (int64_t)sizeof(double) : 0);
}

struct few_params {
    __nv_bfloat16 *y;
    const __nv_bfloat16 *x, *c;
    const uint4 *w, *up; /* GATED: w is the gate's */
    const float *gain;
    double eps, inv_in;
    int out, pieces; /* of 16 bytes a row */
};

VEC_DEV void unpack(uint4 raw, float (&x)[V]) {
    piece<__nv_bfloat16, V> p;
    p.raw = raw;
    unpack(p, x);
}

/* What a lane reads of W: R rows at a time, every 32nd piece of each. */
struct walk {
    const uint4 *at; /* its next piece of the first row */
    int row, stride; /* the first row; from there to that of the next R */
    int i;           /* which piece of the row */
};

/* Queues the step's pieces for slot[r THREADS], as one group; nothing past the end of a row or of W. */
template <int R, kind KIND> VEC_DEV void fetch(walk &from, const few_params &p, uint4 *slot) {
    if (from.row < p.out) {
#pragma unroll
        for (int r = 0; r < R; r++) { /* past W's last row: that one, and no sum is written */
            const bool in = from.i < p.pieces;
            const uint4 *at = KIND == GATED ? (r ? p.up + (from.at - p.w) : from.at)
                                            : from.at + (from.row + r < p.out ? r * p.pieces : 0);
            cp_async<16>(smem_at(slot + r * THREADS), in ? at : p.w, in);
        }
        from.i += 32, from.at += 32;
        if (from.i - (int)(threadIdx.x & 31) >= p.pieces) {
            from.at += (int64_t)from.stride * p.pieces - from.i;
            from.i = (int)(threadIdx.x & 31), from.at += from.i, from.row += from.stride;
        }
    }
    cp_commit();
}

/* shared_x [N][pieces] = rmsnorm(x), rounded as rmsnorm's own output is. gains: those of the thread's first piece. A row's sum of
 * squares is one of doubles, which no finite row overflows. */
template <int N> VEC_DEV void normalize(uint4 *shared_x, double *shared_sums, const few_params &p, float (&gains)[V]) {
    const uint4 *x = reinterpret_cast<const uint4 *>(p.x);
    double sum[N] = {};
    float r[N];
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < p.pieces; i += THREADS)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float v[V];
            const uint4 raw = x[n * p.pieces + i];
            shared_x[n * p.pieces + i] = raw;
            unpack(raw, v);
#pragma unroll
            for (int e = 0; e < V; e++) sum[n] += (double)v[e] * (double)v[e];
        }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const double mean = fma(block_sum(sum[n], shared_sums + n * 32), p.inv_in, p.eps);
        r[n] = mean < 1e37 ? 1.0f / sqrtf((float)mean) : (float)(1.0 / sqrt(mean));
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < p.pieces; i += THREADS) {
        if (i >= THREADS) load_real<V>(p.gain + i * V, gains);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float v[V];
            unpack(shared_x[n * p.pieces + i], v);
#pragma unroll
            for (int e = 0; e < V; e++) v[e] = v[e] * r[n] * gains[e];
            store_floats(reinterpret_cast<__nv_bfloat16 *>(shared_x + n * p.pieces + i), v);
        }
    }
}

/* N rows of x, R rows of W a warp. Lane l adds up the pieces l, l + 32, ... of a row in turn. Shared memory: slots
 * [DEPTH][R][THREADS], x, sums. */
template <int N, int DEPTH, kind KIND> __global__ void __maxnreg__(N > 1 ? 64 : 48)
    linear__few_rows(const __grid_constant__ few_params p) {
    next_may_begin();
    extern __shared__ uint4 shared[];
    constexpr int R = ROWS<N, KIND>, OUTS = COLUMNS<N, KIND>;
    uint4 *slots = shared + threadIdx.x, *shared_x = shared + DEPTH * R * THREADS;
    const int lane = (int)threadIdx.x & 31, steps = (p.pieces + 31) / 32;
    const int first = (int)(threadIdx.x / 32 * gridDim.x + blockIdx.x) * OUTS, stride = (int)gridDim.x * WARPS * OUTS;
    walk ahead = {p.w + (int64_t)first * p.pieces + lane, first, stride, lane};
#pragma unroll 1
    for (int i = 0; i < DEPTH; i++) fetch<R, KIND>(ahead, p, slots + i * R * THREADS);
    if (KIND == PLAIN) {
        inputs_are_there();
        for (int i = (int)threadIdx.x; i < N * p.pieces; i += THREADS) shared_x[i] = reinterpret_cast<const uint4 *>(p.x)[i];
    } else {
        float gains[V] = {};
        if ((int)threadIdx.x < p.pieces) load_real<V>(p.gain + threadIdx.x * V, gains);
        inputs_are_there();
        normalize<N>(shared_x, reinterpret_cast<double *>(shared_x + N * p.pieces), p, gains);
    }
    __syncthreads();

    int slot = 0;
    for (int row = first; row < p.out; row += stride) {
        /* lane r N + n writes: column r of the warp's, row n of y */
        const int64_t mine = (int64_t)(lane % N) * p.out + row + lane / N;
        const bool writes = lane < OUTS * N && row + lane / N < p.out;
        const float add = KIND == PLAIN && p.c && writes ? __bfloat162float(p.c[mine]) : 0.0f;
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
                unpack(i < p.pieces ? shared_x[n * p.pieces + i] : make_uint4(0, 0, 0, 0), b);
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int e = 0; e < V; e++) sum[r][n] = fmaf(a[r][e], b[e], sum[r][n]);
            }
            fetch<R, KIND>(ahead, p, from);
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
        }
        float s = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float all[R];
#pragma unroll
            for (int r = 0; r < R; r++) all[r] = warp_sum(sum[r][n]);
            if (KIND == GATED) all[0] = all[0] / (1.0f + __expf(-all[0])) * all[R - 1];
#pragma unroll
            for (int r = 0; r < OUTS; r++)
                if (lane == r * N + n) s = all[r];
        }
        if (writes) p.y[mine] = __float2bfloat16_rn(s + add);
    }
}

template <int N, int DEPTH, kind KIND> ida_status launch_deep(const ida_device *dev, const few_params &p) {
    const ida_cuda *cuda = ida_cuda_of(dev);
    constexpr int R = ROWS<N, KIND>;
    const size_t bytes = (size_t)shared_bytes<R, DEPTH>(N, p.pieces, KIND != PLAIN);
    IDA_CUDA_TRY(cudaFuncSetAttribute(linear__few_rows<N, DEPTH, KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      cuda->most_shared));
    const unsigned blocks = (unsigned)vec_min(vec_div_up(p.out, COLUMNS<N, KIND>), cuda->sms);
    launch_overlapping(dev, linear__few_rows<N, DEPTH, KIND>, blocks, THREADS, bytes, p);
    return IDA_CUDA_LAUNCHED("linear, few rows");
}
template <int N, kind KIND> ida_status launch(const ida_device *dev, const few_params &p) {
    constexpr int R = ROWS<N, KIND>, LONG = LONE / R, SHORT = GUEST / R, LEAST = SHALLOW / R;
    const int most = ida_cuda_of(dev)->most_shared;
    ida_cuda_priv *priv = ida_cuda_priv_of(dev);
    priv->lone_product = !priv->lone_product;
    constexpr bool sums = KIND != PLAIN;
    if (priv->lone_product && shared_bytes<R, LONG>(N, p.pieces, sums) <= most) return launch_deep<N, LONG, KIND>(dev, p);
    if (shared_bytes<R, SHORT>(N, p.pieces, sums) <= most) return launch_deep<N, SHORT, KIND>(dev, p);
    return launch_deep<N, LEAST, KIND>(dev, p);
}
template <kind KIND> ida_status launch_rows(const ida_device *dev, const few_params &p, int64_t n) {
    switch (n) {
    case 1: return launch<1, KIND>(dev, p);
    case 2: return launch<2, KIND>(dev, p);
    case 3: return launch<3, KIND>(dev, p);
    default: return launch<4, KIND>(dev, p);
    }
}

} // namespace

bool ida_linear_few(const ida_device *dev, const ida_few_product *p) {
    const ida_cuda *cuda = ida_cuda_of(dev);
    return cuda->bf16 && p->n >= 1 && p->n <= IDA_LINEAR_FEW && p->in >= V && p->in % V == 0 && p->in <= 1 << 20 && p->out >= 1 &&
           p->out <= INT32_MAX / 2 && vec_aligned(p->x, p->w, p->gate_w, p->gain) &&
           shared_bytes<1, SHALLOW>(p->n, p->in / V, p->gain != NULL) <= cuda->most_shared;
}

ida_status ida_linear_few_fwd(const ida_device *dev, const ida_few_product *p) {
    const void *first = p->gate_w ? p->gate_w : p->w;
    const few_params k = {.y = (__nv_bfloat16 *)(void *)p->y,
                          .x = (const __nv_bfloat16 *)(const void *)p->x,
                          .c = (const __nv_bfloat16 *)(const void *)p->c,
                          .w = (const uint4 *)first,
                          .up = (const uint4 *)p->w,
                          .gain = p->gain,
                          .eps = p->eps,
                          .inv_in = 1 / (double)p->in,
                          .out = (int)p->out,
                          .pieces = (int)(p->in / V)};
    if (p->gate_w) return launch_rows<GATED>(dev, k, p->n);
    return p->gain ? launch_rows<NORMED>(dev, k, p->n) : launch_rows<PLAIN>(dev, k, p->n);
}
