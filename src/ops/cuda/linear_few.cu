/* linear_few.cu - y = x W^T (+ c) for at most IDA_LINEAR_FEW rows of x in bf16: decoding, and the head of a prompt's last token.
 * Bound by the bytes of W, which are read once: a warp takes one row of W, or two, against all rows of x, 16 bytes a lane and
 * UNROLL of them on their way at once. Not here: all other products (linear.cu).
 * Invariant: a sum's order depends on `in` only, so that a row of y does not depend on the rows beside it. */
#include "ops/cuda/linear_few.h"

#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, V = VEC<__nv_bfloat16> };

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

/* N rows of x, R rows of W a warp. Lane l adds up the pieces l, l + 32, ... of a row in turn. */
template <int N, int R, int UNROLL> __global__ void __launch_bounds__(THREADS)
    linear__few_rows(__nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w, const __nv_bfloat16 *c, int64_t out,
                     int64_t in) {
    const int lane = (int)threadIdx.x & 31, pieces = (int)(in / V);
    const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * R;
    if (first >= out) return;
    const uint4 *rows[R], *xs = reinterpret_cast<const uint4 *>(x);
#pragma unroll
    for (int r = 0; r < R; r++) rows[r] = reinterpret_cast<const uint4 *>(w + (first + r < out ? first + r : out - 1) * in);
    float sum[R][N] = {};
    for (int at = lane; at < pieces; at += 32 * UNROLL) {
        uint4 ahead[UNROLL][R];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < R; r++)
                ahead[u][r] = at + 32 * u < pieces ? load_weights(rows[r] + at + 32 * u) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (at + 32 * u >= pieces) break;
            float a[R][V];
#pragma unroll
            for (int r = 0; r < R; r++) unpack(ahead[u][r], a[r]);
#pragma unroll
            for (int n = 0; n < N; n++) {
                float b[V];
                unpack(xs[(int64_t)n * pieces + at + 32 * u], b);
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int e = 0; e < V; e++) sum[r][n] = fmaf(a[r][e], b[e], sum[r][n]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float s = warp_sum(sum[r][n]);
            const int64_t at = (int64_t)n * out + first + r;
            if (lane == r * N + n && first + r < out) y[at] = __float2bfloat16_rn(c ? s + __bfloat162float(c[at]) : s);
        }
}

template <int N> ida_status launch(const ida_device *dev, __nv_bfloat16 *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w,
                                   const __nv_bfloat16 *c, int64_t in, int64_t out) {
    constexpr int R = N > 2 ? 2 : 1, UNROLL = N > 4 ? 2 : N > 2 ? 4 : 8;
    const int64_t blocks = vec_div_up(out, WARPS * R);
    linear__few_rows<N, R, UNROLL><<<(unsigned)blocks, THREADS, 0, ida_cuda_of(dev)->stream>>>(y, x, w, c, out, in);
    return IDA_CUDA_LAUNCHED("linear, few rows");
}

} // namespace

bool ida_linear_few(const ida_device *dev, const act *x, const act *w, int64_t n, int64_t in, int64_t out) {
    return ida_cuda_of(dev)->bf16 && n >= 1 && n <= IDA_LINEAR_FEW && in >= V && in % V == 0 && in <= INT32_MAX &&
           out <= (int64_t)INT32_MAX * WARPS && vec_aligned(x, w);
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
    case 4: return launch<4>(dev, y, x, w, c, in, out);
    case 5: return launch<5>(dev, y, x, w, c, in, out);
    case 6: return launch<6>(dev, y, x, w, c, in, out);
    case 7: return launch<7>(dev, y, x, w, c, in, out);
    default: return launch<8>(dev, y, x, w, c, in, out);
    }
}
