/* cross_entropy.cu - negative log-likelihood of the target and, in place, its gradient. A block a row; the row is read once, kept
 * in shared memory as far as it fits (what does not is read again, mostly from the L2 cache), and written once. Exponentials are
 * summed in fp32 by thread, then over the block. A NaN or +inf among a row's logits makes its loss NaN. Invariant: sums depend on
 * vocab and the row's place modulo 16 bytes only, not on how much is kept. */
#include "ops/cuda/cuda_ops.h"

#include <assert.h>
#include <limits.h>

#include "ops/cuda/vec.cuh"

namespace {

/* NARROW threads, three blocks or two a multiprocessor, for rows up to NARROW_BYTES; else one block of WIDE. */
enum { NARROW = 512, WIDE = 1024, NARROW_BYTES = 112 << 10, DEPTH = 4 };

/* e^(x - base). Not folded into one multiply-add: base * log2(e) may overflow. */
VEC_DEV float exp_from(float x, float base) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - base) * 1.44269504f));
    return y;
}
/* Where the exponentials are taken from: the maximum, or 0 when there is nothing above -inf (-inf - -inf is NaN). */
VEC_DEV float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

/* sum = sum over what was seen of e^(x - base_of(top)). */
struct softmax_sum {
    float top, sum;
};
VEC_DEV void raise(softmax_sum &s, float top) {
    if (top > s.top) {
        s.sum *= exp_from(s.top, base_of(top));
        s.top = top;
    }
}
VEC_DEV softmax_sum block_softmax_sum(softmax_sum s, softmax_sum *shared) {
    const int lane = (int)threadIdx.x & 31, warps = (int)blockDim.x / 32;
    raise(s, warp_max(s.top));
    s.sum = warp_sum(s.sum);
    if (lane == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    s = lane < warps ? shared[lane] : softmax_sum{-INFINITY, 0.0f};
    raise(s, warp_max(s.top));
    s.sum = warp_sum(s.sum);
    return s;
}

/* A row: single elements up to a multiple of 16 bytes, whole pieces, the rest. Thread i has single element i. */
struct row_cut {
    int head, pieces, rest, singles;
    VEC_DEV int single(const row_cut &c, int i) { return i < c.head ? i : c.rest + i - c.head; }
};
template <class T> VEC_DEV row_cut cut_row(const T *row, int vocab) {
    row_cut c;
    c.head = min(vocab, (int)((16 - ((uintptr_t)row & 15)) & 15) / (int)sizeof(T));
    c.pieces = (vocab - c.head) / VEC<T>;
    c.rest = c.head + c.pieces * VEC<T>;
    c.singles = c.head + vocab - c.rest;
    return c;
}

template <class T> VEC_DEV void zero_row(T *row, const row_cut &c) {
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < c.pieces; i += (int)blockDim.x)
        *reinterpret_cast<uint4 *>(row + c.head + i * VEC<T>) = make_uint4(0, 0, 0, 0);
    if (tid < c.singles) from_float(0.0f, row + row_cut::single(c, tid));
}

/* The greatest number of COUNT pieces, -inf of none; NaN is passed over. */
template <int COUNT> VEC_DEV float greatest(const piece<float, 4> (&p)[COUNT]) {
    float top = -INFINITY;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        float v[4];
        unpack(p[k], v);
        top = fmaxf(top, fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
    }
    return top;
}
template <int COUNT> VEC_DEV float greatest(const piece<__nv_bfloat16, 8> (&p)[COUNT]) {
    __nv_bfloat162 top = __float2bfloat162_rn(-INFINITY);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const uint32_t w[4] = {p[k].raw.x, p[k].raw.y, p[k].raw.z, p[k].raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __nv_bfloat162 pair;
            memcpy(&pair, &w[i], sizeof pair);
            top = __hmax2(top, pair);
        }
    }
    return fmaxf(__low2float(top), __high2float(top));
}

/* Takes the pieces i, i + blockDim, .. up to DEPTH of them into s, and keeps those before `kept`. */
template <class T> VEC_DEV void take(softmax_sum &s, const T *body, int i, int pieces, uint4 *keep, int kept) {
    constexpr int V = VEC<T>;
    const uint32_t none = sizeof(T) == 2 ? 0xff80ff80u : 0xff800000u; /* -inf */
    piece<T, V> p[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        const int at = i + k * (int)blockDim.x;
        p[k].raw = make_uint4(none, none, none, none);
        if (at < pieces) p[k] = load_piece<V>(body + (int64_t)at * V);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
        if (i + k * (int)blockDim.x < kept) keep[i + k * (int)blockDim.x] = p[k].raw;
    raise(s, greatest(p));
    const float base = base_of(s.top);
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        if (i + k * (int)blockDim.x >= pieces) break;
        float v[V], sum = 0;
        unpack(p[k], v);
#pragma unroll
        for (int e = 0; e < V; e++) sum += exp_from(v[e], base);
        s.sum += sum;
    }
}

/* loss = log sum_v e^row_v - row_target:  drow_v = e^row_v / sum - [v = target].  kept: pieces of a row that the dynamic shared
 * memory holds. scale 0: losses only. */
template <class T, int THREADS> __global__ void __launch_bounds__(THREADS, THREADS == NARROW ? 3 : 1)
    cross_entropy__block_per_row(float *losses, T *logits, const int32_t *targets, int vocab, int kept, float scale) {
    constexpr int V = VEC<T>;
    extern __shared__ uint4 keep[];
    __shared__ softmax_sum shared[32];
    T *row = logits + (int64_t)blockIdx.x * vocab;
    const int target = targets[blockIdx.x], tid = (int)threadIdx.x, step = (int)blockDim.x;
    const row_cut c = cut_row(row, vocab);
    T *body = row + c.head;
    if (target < 0) {
        if (losses && tid == 0) losses[blockIdx.x] = 0;
        if (scale != 0) zero_row(row, c);
        return;
    }
    const float at_target = tid == 0 ? to_float(row[target]) : 0.0f; /* before the barrier: after it the row is written */
    const float single = tid < c.singles ? to_float(row[row_cut::single(c, tid)]) : -INFINITY;
    softmax_sum s = {-INFINITY, 0.0f};
    for (int i = tid; i < c.pieces; i += DEPTH * step) take(s, body, i, c.pieces, keep, kept);
    raise(s, single);
    if (tid < c.singles) s.sum += exp_from(single, base_of(s.top));
    s = block_softmax_sum(s, shared);
    if (losses && tid == 0) losses[blockIdx.x] = logf(s.sum) + (s.top - at_target);
    if (scale == 0) return;
    const float base = base_of(s.top), by = scale / s.sum;
#pragma unroll 2
    for (int i = tid; i < c.pieces; i += step) {
        piece<T, V> p;
        float v[V];
        if (i < kept) p.raw = keep[i];
        else p = load_piece<V>(body + (int64_t)i * V);
        unpack(p, v);
#pragma unroll
        for (int e = 0; e < V; e++) v[e] = exp_from(v[e], base) * by;
        const int in_piece = target - c.head - i * V;
        if (in_piece >= 0 && in_piece < V) {
#pragma unroll
            for (int e = 0; e < V; e++)
                if (e == in_piece) v[e] -= scale;
        }
        store_floats(body + (int64_t)i * V, v);
    }
    if (tid < c.singles) {
        const int at = row_cut::single(c, tid);
        from_float(exp_from(single, base) * by - (at == target ? scale : 0.0f), row + at);
    }
}

template <class T, int THREADS> ida_status launch(const ida_device *dev, float *losses, T *logits, const int32_t *targets,
                                                  int64_t n, int64_t vocab, double scale) {
    ida_cuda *c = ida_cuda_of(dev);
    const int64_t pieces = vocab / VEC<T>;
    /* At least one warp; no thread without a piece in rows shorter than a block's round. */
    const unsigned threads = (unsigned)vec_min(THREADS, vec_max(1, vec_div_up(pieces, 32)) * 32);
    int kept = 0;
    if (scale != 0) {
        kept = (int)vec_min(pieces, (c->most_shared - 1024) / 16); /* 1024: the kernel's own and the system's */
        IDA_CUDA_TRY(cudaFuncSetAttribute(cross_entropy__block_per_row<T, THREADS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          kept * 16));
    }
    cross_entropy__block_per_row<T, THREADS>
        <<<(unsigned)n, threads, (size_t)kept * 16, c->stream>>>(losses, logits, targets, (int)vocab, kept, (float)scale);
    return IDA_CUDA_LAUNCHED("cross_entropy");
}

} // namespace

ida_status ida_cuda_cross_entropy(const ida_device *dev, real *losses, ida_act *logits, const int32_t *targets, int64_t n,
                                  int64_t vocab, double scale) {
    ida_status st = IDA_OK;
    assert(vocab <= INT_MAX && n <= INT_MAX);
    if (n == 0) return IDA_OK;
    const bool narrow = ida_act_bytes(dev, vocab) <= NARROW_BYTES;
    if (narrow) IDA_CUDA_ACT(dev, T, st = launch<T, NARROW>(dev, losses, (T *)(void *)logits, targets, n, vocab, scale));
    else IDA_CUDA_ACT(dev, T, st = launch<T, WIDE>(dev, losses, (T *)(void *)logits, targets, n, vocab, scale));
    return st;
}
