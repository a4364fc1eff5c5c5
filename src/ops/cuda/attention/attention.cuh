/* attention.cuh - building blocks of the attention kernels: finding a tile's sequence, tiles in shared memory.
 *
 * A tile is rows of DP bf16, each followed by 16 empty bytes: DP/8 is even, so the odd number of 16-byte pieces in a row spreads
 * any eight consecutive rows over all banks, and every ldmatrix address is a base plus a constant. Columns from D to DP and rows
 * past the end of the sequence are zeros.
 *
 * Fragments of m16n8k16 (lane l): accumulator c0,c1 at row l/4, columns 2(l%4)+{0,1}; c2,c3 eight rows below. Two neighbouring
 * accumulators, rounded to bf16, are an A operand. */
#ifndef IDA_OPS_CUDA_ATTENTION_CUH
#define IDA_OPS_CUDA_ATTENTION_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "ops/cuda/attention/attention.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/vec.cuh"

#define ATTN_DEV static __device__ __forceinline__
#define ATTN_LOG2E 1.4426950408889634f
#define ATTN_LN2 0.6931471805599453f

typedef __nv_bfloat16 bf16;

struct attn_none {};
template <bool CACHED> struct attn_group_of { typedef attn_none type; };
template <> struct attn_group_of<true> { typedef attn_group type; };

/* A tile of a sequence. k, v: the sequence's first key, group 0. */
template <class T> struct attn_place {
    int64_t row0;
    int tile, len, past;
    const T *k, *v;
};

/* Tile slots of the sequences of cu: sequence s owns slots from cu[s] / tile + s on, at least as many as it has tiles; the rest
 * are empty. So no table of tiles is needed. All lanes of a warp call it together. False: an empty slot. */
template <class T> ATTN_DEV bool attn_find(attn_place<T> &w, const attn_params &p, const attn_none &, int64_t slot, int shift) {
    int64_t lo = 0, n = p.n_seq;
    const int lane = (int)(threadIdx.x & 31);
    while (n > 1) {
        const int64_t step = (n + 31) / 32, s = lo + lane * step;
        const bool before = s < lo + n && (p.cu[s] >> shift) + s <= slot;
        const int64_t at = (31 - __clz((int)__ballot_sync(0xffffffffu, before))) * step;
        n = n - at < step ? n - at : step;
        lo += at;
    }
    w.row0 = p.cu[lo];
    const int64_t tile = slot - (w.row0 >> shift) - lo;
    w.len = (int)(p.cu[lo + 1] - w.row0);
    w.past = 0;
    w.tile = (int)tile;
    w.k = (const T *)p.k + w.row0 * p.g * p.d;
    w.v = (const T *)p.v + w.row0 * p.g * p.d;
    return tile << shift < w.len;
}
template <class T> ATTN_DEV bool attn_find(attn_place<T> &w, const attn_params &, const attn_group &g, int64_t slot, int) {
    int lo = 0, hi = g.n;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (g.tile0[mid] <= slot) lo = mid;
        else hi = mid;
    }
    w.row0 = g.row0[lo];
    w.tile = (int)slot - g.tile0[lo];
    w.len = g.len[lo];
    w.past = g.past[lo];
    w.k = (const T *)g.k[lo];
    w.v = (const T *)g.v[lo];
    return true;
}
static inline int64_t attn_slots(const attn_params *p, const attn_group *g, int shift) {
    return g ? g->tile0[g->n] : (p->n_tokens >> shift) + p->n_seq;
}

template <int DP> struct attn_tile {
    static_assert(DP % 16 == 0, "an even number of pieces");
    static constexpr int LD = DP + 8; /* elements from row to row */
    static constexpr int bytes(int rows) { return rows * LD * 2; }
};

/* ROWS rows from `from` on, `stride` elements apart, of which `valid` exist. A thread keeps its column: one running pointer. */
template <int ROWS, int DP, int THREADS>
ATTN_DEV void load_tile(uint32_t to, const bf16 *from, int64_t stride, int valid, int d) {
    constexpr int WIDE = DP <= 64 ? 8 : 16, STEP = THREADS / WIDE; /* threads along a row; rows at a time */
    static_assert(DP / 8 <= WIDE && ROWS % STEP == 0, "whole steps");
    const int r0 = (int)threadIdx.x / WIDE, c = (int)threadIdx.x % WIDE * 8;
    const bool wanted = c < d;
    const bf16 *src = from + r0 * stride + c;
    to += (uint32_t)(r0 * attn_tile<DP>::LD + c) * 2;
    if (DP / 8 < WIDE && c >= DP) return;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP) {
        const bool in = wanted && r0 + r < valid;
        cp_async<16>(to + (uint32_t)(r * attn_tile<DP>::LD) * 2, in ? src : from, in);
        src += STEP * stride;
    }
}

/* Byte offsets within a tile for a lane's ldmatrix address. A: 16 rows by 16 columns. B: 16 rows that are the columns n of the
 * product. BT (ldsm_t): 16 rows that are summed over. */
template <int DP> ATTN_DEV uint32_t lane_a() {
    const int l = (int)(threadIdx.x & 31);
    return (uint32_t)((l & 15) * attn_tile<DP>::LD + (l >> 4) * 8) * 2;
}
template <int DP> ATTN_DEV uint32_t lane_b() {
    const int l = (int)(threadIdx.x & 31);
    return (uint32_t)(((l & 7) + (l >> 4) * 8) * attn_tile<DP>::LD + (l >> 3 & 1) * 8) * 2;
}
template <int DP> ATTN_DEV uint32_t lane_bt() { return lane_a<DP>(); }
/* Byte offset of (row, column), multiples of 16 and 8. */
template <int DP> constexpr __device__ uint32_t tile_at(int row, int column) {
    return (uint32_t)(row * attn_tile<DP>::LD + column) * 2;
}

/* Two accumulators of 8 columns as an A operand of 16. */
ATTN_DEV void pack_a(uint32_t (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = bf16_pair(x[0], x[1]);
    a[1] = bf16_pair(x[2], x[3]);
    a[2] = bf16_pair(y[0], y[1]);
    a[3] = bf16_pair(y[2], y[3]);
}
ATTN_DEV float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
ATTN_DEV float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
ATTN_DEV float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* 16 rows of accumulators times f (a factor for each of the lane's two rows), to global memory through the warp's own rows of
 * shared memory: 16-byte stores. to: first row, `valid` rows exist. */
template <int DP> ATTN_DEV void store_rows16(const float (&x)[DP / 8][4], float f0, float f1, unsigned char *stage, bf16 *to,
                                             int64_t stride, int valid, int d) {
    constexpr int LD = attn_tile<DP>::LD, PIECES = DP / 8;
    const int lane = (int)(threadIdx.x & 31);
    bf16 *s = (bf16 *)stage;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < DP / 8; j++) {
        const int c = j * 8 + lane % 4 * 2;
        *(uint32_t *)(s + lane / 4 * LD + c) = bf16_pair(x[j][0] * f0, x[j][1] * f0);
        *(uint32_t *)(s + (lane / 4 + 8) * LD + c) = bf16_pair(x[j][2] * f1, x[j][3] * f1);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PIECES / 2; i++) {
        const int at = lane + i * 32, r = at / PIECES, c = at % PIECES * 8;
        if (r < valid && c < d) *(uint4 *)(to + r * stride + c) = *(const uint4 *)(s + r * LD + c);
    }
    __syncwarp();
}

/* Shared memory beyond 48 KiB has to be asked for. */
template <class K> static inline ida_status attn_allow_shared(K *kernel, int bytes) {
    if (bytes <= 48 * 1024) return IDA_OK;
    return ida_cuda_status((int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                           "attention: shared memory", __FILE__, __LINE__);
}

#endif
