/* vec.cuh - 16-byte pieces of tensors as floats, and sums over warps and blocks, for the kernels that are bound by memory.
 * Private to ops/cuda. Invariant: a sum's order depends on the block's shape only. */
#ifndef IDA_OPS_CUDA_VEC_CUH
#define IDA_OPS_CUDA_VEC_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#define VEC_DEV static __device__ __forceinline__

/* Elements of 16 bytes. */
template <class T> constexpr int VEC = 16 / (int)sizeof(T);

/* V consecutive elements as they lie in memory: V = 1 anywhere, VEC<T> at a multiple of 16 bytes, 4 of bf16 (beside 16 bytes of a
 * parameter) at a multiple of 8. */
template <class T, int V> struct piece { uint4 raw; };
template <class T> struct piece<T, 1> { T raw; };
template <> struct piece<__nv_bfloat16, 4> { uint2 raw; };

template <int V, class T> VEC_DEV piece<T, V> load_piece(const T *p) {
    piece<T, V> r;
    r.raw = *reinterpret_cast<const decltype(r.raw) *>(p);
    return r;
}
template <class T, int V> VEC_DEV void store_piece(T *p, const piece<T, V> &v) {
    *reinterpret_cast<decltype(v.raw) *>(p) = v.raw;
}

VEC_DEV float to_float(float x) { return x; }
VEC_DEV float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
VEC_DEV void from_float(float x, float *y) { *y = x; }
VEC_DEV void from_float(float x, __nv_bfloat16 *y) { *y = __float2bfloat16_rn(x); }

VEC_DEV uint32_t bf16_pair(float lo, float hi) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}
VEC_DEV void unpack_pair(uint32_t bits, float *lo, float *hi) {
    *lo = __uint_as_float(bits << 16);
    *hi = __uint_as_float(bits & 0xffff0000u);
}

template <class T> VEC_DEV void unpack(const piece<T, 1> &p, float (&x)[1]) { x[0] = to_float(p.raw); }
VEC_DEV void unpack(const piece<float, 4> &p, float (&x)[4]) {
    x[0] = __uint_as_float(p.raw.x), x[1] = __uint_as_float(p.raw.y);
    x[2] = __uint_as_float(p.raw.z), x[3] = __uint_as_float(p.raw.w);
}
VEC_DEV void unpack(const piece<__nv_bfloat16, 8> &p, float (&x)[8]) {
    unpack_pair(p.raw.x, &x[0], &x[1]);
    unpack_pair(p.raw.y, &x[2], &x[3]);
    unpack_pair(p.raw.z, &x[4], &x[5]);
    unpack_pair(p.raw.w, &x[6], &x[7]);
}
VEC_DEV void unpack(const piece<__nv_bfloat16, 4> &p, float (&x)[4]) {
    unpack_pair(p.raw.x, &x[0], &x[1]);
    unpack_pair(p.raw.y, &x[2], &x[3]);
}

template <class T> VEC_DEV void pack(piece<T, 1> &p, const float (&x)[1]) { from_float(x[0], &p.raw); }
VEC_DEV void pack(piece<float, 4> &p, const float (&x)[4]) {
    p.raw = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
}
VEC_DEV void pack(piece<__nv_bfloat16, 8> &p, const float (&x)[8]) {
    p.raw = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
}
VEC_DEV void pack(piece<__nv_bfloat16, 4> &p, const float (&x)[4]) {
    p.raw = make_uint2(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]));
}

template <class T, int V> VEC_DEV void store_floats(T *p, const float (&x)[V]) {
    piece<T, V> v;
    pack(v, x);
    store_piece(p, v);
}

/* V floats of a parameter beside a piece of V elements; V > 1: at a multiple of 16 bytes. */
template <int V> VEC_DEV void load_real(const float *p, float (&x)[V]) {
    if constexpr (V == 1) x[0] = *p;
    else
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            const float4 v = *reinterpret_cast<const float4 *>(p + i);
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        }
}
template <int V> VEC_DEV void store_real(float *p, const float (&x)[V]) {
    if constexpr (V == 1) *p = x[0];
    else
#pragma unroll
        for (int i = 0; i < V; i += 4) *reinterpret_cast<float4 *>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

/* In every lane. All 32 lanes take part. */
template <class F> VEC_DEV F warp_sum(F x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
VEC_DEV float warp_max(float x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
/* In every thread of a one-dimensional block of whole warps. shared [32] is read until the caller's next barrier. */
template <class F> VEC_DEV F block_sum(F x, F *shared) {
    const int lane = (int)threadIdx.x & 31, warps = (int)blockDim.x / 32;
    x = warp_sum(x);
    if (warps == 1) return x;
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : (F)0);
}

static inline int64_t vec_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t vec_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t vec_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* Whether every pointer is at a multiple of 16 bytes; NULL is. */
static inline bool vec_aligned() { return true; }
template <class P, class... R> static inline bool vec_aligned(const P *p, const R *...rest) {
    return ((uintptr_t)p & 15) == 0 && vec_aligned(rest...);
}

#endif
