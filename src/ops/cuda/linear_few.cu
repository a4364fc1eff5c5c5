/* linear_few.cu - y = x W^T (+ c) for at most IDA_LINEAR_FEW rows of x in bf16: decoding, and the head of a prompt's last token.
 * Bound by the bytes of W, which are read once: a warp takes one row of W, or two, against all rows of x, which lie in shared
 * memory; 16 bytes a lane, and DEPTH of them on their way at any time. Not here: all other products (linear.cu).
 * Invariant: a sum's order depends on `in` only, so that a row of y depends neither on the rows beside it nor on `out`. */
#include "ops/cuda/linear_few.h"

#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, V = VEC<__nv_bfloat16>, MOST_SHARED = 48 << 10 };

/* Read once: it need not stay in the first-level cache. */
VEC_DEV uint4 load_weights(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

VEC_DEV void unpack(uint4 raw, float (&x)[V]) {
    piece<__nv_bfloat16, V> p;
    p.raw = raw;
    unpack(p, x);
}

/* N rows of x, R rows of W a warp. Lane l adds up the pieces l, l + 32, ... of a row in turn. Shared memory: x. */
template <int N, int R, int DEPTH> __global__ void __launch_bounds__(THREADS)
    linear__few_rows(__nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w, const __nv_bfloat16 *c, int64_t out,
                     int64_t in) {
    extern __shared__ uint4 shared_x[];
    const int lane = (int)threadIdx.x & 31, pieces = (int)(in / V);
    const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * R; /* past the end: the last row, not written */
    const uint4 *rows[R];
    uint4 ahead[DEPTH][R];
#pragma unroll
    for (int r = 0; r < R; r++) rows[r] = reinterpret_cast<const uint4 *>(w + (first + r < out ? first + r : out - 1) * in);
#pragma unroll
    for (int u = 0; u < DEPTH; u++)
#pragma unroll
        for (int r = 0; r < R; r++)
            ahead[u][r] = lane + 32 * u < pieces ? load_weights(rows[r] + lane + 32 * u) : make_uint4(0, 0, 0, 0);
    for (int i = (int)threadIdx.x; i < N * pieces; i += THREADS) shared_x[i] = reinterpret_cast<const uint4 *>(x)[i];
    float add = 0; /* lane r N + n: of row r of W, row n of x */
    const int64_t mine = (int64_t)(lane % N) * out + first + lane / N;
    const bool writes = lane < R * N && first + lane / N < out;
    if (c && writes) add = __bfloat162float(c[mine]);
    __syncthreads();

    float sum[R][N] = {};
    for (int at = lane; at < pieces; at += 32 * DEPTH)
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            const int i = at + 32 * u, next = i + 32 * DEPTH;
            if (i >= pieces) break;
            float a[R][V];
#pragma unroll
            for (int r = 0; r < R; r++) {
                unpack(ahead[u][r], a[r]);
                if (next < pieces) ahead[u][r] = load_weights(rows[r] + next);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                float b[V];
                unpack(shared_x[n * pieces + i], b);
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int e = 0; e < V; e++) sum[r][n] = fmaf(a[r][e], b[e], sum[r][n]);
            }
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

template <int N> ida_status launch(const ida_device *dev, __nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w,
                                   const __nv_bfloat16 *c, int64_t in, int64_t out) {
    constexpr int R = N > 2 ? 2 : 1, DEPTH = N > 2 ? 4 : 8;
    const int64_t blocks = vec_div_up(out, WARPS * R), bytes = N * in * (int64_t)sizeof(__nv_bfloat16);
    linear__few_rows<N, R, DEPTH>
        <<<(unsigned)blocks, THREADS, (size_t)bytes, ida_cuda_of(dev)->stream>>>(y, x, w, c, out, in);
    return IDA_CUDA_LAUNCHED("linear, few rows");
}

} // namespace

bool ida_linear_few(const ida_device *dev, const act *x, const act *w, int64_t n, int64_t in, int64_t out) {
    return ida_cuda_of(dev)->bf16 && n >= 1 && n <= IDA_LINEAR_FEW && in >= V && in % V == 0 &&
           n * in <= MOST_SHARED / (int64_t)sizeof(__nv_bfloat16) && out >= 1 && out <= (int64_t)INT32_MAX * WARPS &&
           vec_aligned(x, w);
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
