/* any_product.cuh - products of matrices of any size and stride in device memory by one CTA, for interdomain/any.cu: in fp32, and
 * on tensor cores from bf16 pairs. The split product takes x = hi + lo, hi = bf16(x), lo = bf16(x - hi), and sums hi hi' + hi lo'
 * + lo hi' in fp32: what it leaves out is 2^-16 of a product, and the range is that of fp32. Invariant: the order of a sum
 * depends on the sizes only. */
#ifndef IDA_OPS_CUDA_ANY_PRODUCT_CUH
#define IDA_OPS_CUDA_ANY_PRODUCT_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "ops/cuda/ptx.cuh"

enum { PRODUCT_THREADS = 256 };

/* Element (row, k) of an operand is at[row * row_step + k * k_step]. */
struct product_side {
    const float *at;
    int64_t row_step, k_step;
};

/* out[i,j] (+)= scale sum_k a(i,k) b(j,k), 4 x 4 at a time. Ends with a barrier. */
static __device__ __noinline__ void product(float *out, int64_t ldo, int64_t ni, int64_t nj, product_side a, product_side b,
                                            int64_t nk, bool add, float scale) {
    const int64_t ti = (ni + 3) / 4, tj = (nj + 3) / 4;
    for (int64_t tile = threadIdx.x; tile < ti * tj; tile += PRODUCT_THREADS) {
        const int64_t i0 = tile / tj * 4, j0 = tile % tj * 4;
        const float *pa[4], *pb[4];
        float sum[4][4] = {};
        for (int u = 0; u < 4; u++) {
            pa[u] = a.at + (i0 + u < ni ? i0 + u : ni - 1) * a.row_step;
            pb[u] = b.at + (j0 + u < nj ? j0 + u : nj - 1) * b.row_step;
        }
        for (int64_t k = 0; k < nk; k++) {
            float x[4], y[4];
            for (int u = 0; u < 4; u++) x[u] = pa[u][k * a.k_step], y[u] = pb[u][k * b.k_step];
            for (int u = 0; u < 4; u++)
                for (int t = 0; t < 4; t++) sum[u][t] += x[u] * y[t];
        }
        for (int u = 0; u < 4; u++)
            for (int t = 0; t < 4; t++) {
                if (i0 + u >= ni || j0 + t >= nj) continue;
                float *o = out + (i0 + u) * ldo + j0 + t;
                *o = (add ? *o : 0.0f) + scale * sum[u][t];
            }
    }
    __syncthreads();
}

/* Tiles of 64 rows of both sides, 32 k at a time; a row of a tile is 32 numbers and padding: eight rows meet all banks. */
enum { PRODUCT_ROWS = 64, PRODUCT_K = 32, PRODUCT_LD = 40, PRODUCT_EACH = PRODUCT_ROWS * PRODUCT_K / PRODUCT_THREADS };

struct product_tile {
    __nv_bfloat16 hi[PRODUCT_ROWS * PRODUCT_LD], lo[PRODUCT_ROWS * PRODUCT_LD];
};

/* A thread's elements of a tile: the first, and the way from one to the next; neighbours in memory go to neighbouring threads. */
struct product_share {
    int row, k, row_step, k_step;
};
static __device__ __forceinline__ product_share product_share_of(bool along_k) {
    const int t = (int)threadIdx.x;
    return along_k ? product_share{t / PRODUCT_K, t % PRODUCT_K, PRODUCT_THREADS / PRODUCT_K, 0}
                   : product_share{t % PRODUCT_ROWS, t / PRODUCT_ROWS, 0, PRODUCT_THREADS / PRODUCT_ROWS};
}
/* rows, depth: how many of either are there from the tile's corner on. */
static __device__ __forceinline__ void product_fetch(float (&x)[PRODUCT_EACH], const product_side &s, const product_share &own,
                                                     int64_t row0, int64_t k0, int64_t rows, int64_t depth) {
    const float *at = s.at + (row0 + own.row) * s.row_step + (k0 + own.k) * s.k_step;
    const int64_t step = own.row_step * s.row_step + own.k_step * s.k_step;
    const int n_rows = rows < PRODUCT_ROWS ? (int)rows : PRODUCT_ROWS, n_k = depth < PRODUCT_K ? (int)depth : PRODUCT_K;
#pragma unroll
    for (int u = 0; u < PRODUCT_EACH; u++)
        x[u] = own.row + u * own.row_step < n_rows && own.k + u * own.k_step < n_k ? at[u * step] : 0.0f;
}
static __device__ __forceinline__ void product_put(product_tile *tile, const float (&x)[PRODUCT_EACH], const product_share &own) {
    const int at = own.row * PRODUCT_LD + own.k, step = own.row_step * PRODUCT_LD + own.k_step;
#pragma unroll
    for (int u = 0; u < PRODUCT_EACH; u++) {
        const __nv_bfloat16 hi = __float2bfloat16_rn(x[u]);
        tile->hi[at + u * step] = hi;
        tile->lo[at + u * step] = __float2bfloat16_rn(x[u] - __bfloat162float(hi));
    }
}

/* A warp's 32 x 16 of the tile: rows 32 wi.. of a, 16 wj.. of b. */
static __device__ __forceinline__ void product_step(float (&c)[2][2][4], const product_tile *a, const product_tile *b, int wi,
                                                    int wj, int lane) {
    const int a_at = (32 * wi + lane % 16) * PRODUCT_LD + lane / 16 * 8,
              b_at = (16 * wj + lane / 16 * 8 + lane % 8) * PRODUCT_LD + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < PRODUCT_K; k += 16) {
        uint32_t ah[2][4], al[2][4], bh[4], bl[4];
        ldsm(bh, smem_at(b->hi + b_at + k));
        ldsm(bl, smem_at(b->lo + b_at + k));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ldsm(ah[i], smem_at(a->hi + a_at + 16 * i * PRODUCT_LD + k));
            ldsm(al[i], smem_at(a->lo + a_at + 16 * i * PRODUCT_LD + k));
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                mma(c[i][j], al[i], bh[2 * j], bh[2 * j + 1]);
                mma(c[i][j], ah[i], bl[2 * j], bl[2 * j + 1]);
                mma(c[i][j], ah[i], bh[2 * j], bh[2 * j + 1]);
            }
    }
}

/* The same product on tensor cores. Called by the whole CTA; ends with a barrier. */
static __device__ __noinline__ void product_split(float *out, int64_t ldo, int64_t ni, int64_t nj, product_side a, product_side b,
                                                  int64_t nk, bool add, float scale) {
    __shared__ __align__(16) product_tile tiles[2][2]; /* [turn][side] */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, wi = warp / 4, wj = warp % 4;
    const product_share a_own = product_share_of(a.k_step == 1), b_own = product_share_of(b.k_step == 1);
    int turn = 0; /* of the two sets of tiles: a set is written again only after a barrier that all passed since they read it */
    for (int64_t i0 = 0; i0 < ni; i0 += PRODUCT_ROWS)
        for (int64_t j0 = 0; j0 < nj; j0 += PRODUCT_ROWS) {
            float c[2][2][4] = {}, x[PRODUCT_EACH], y[PRODUCT_EACH];
            const bool busy = i0 + 32 * wi < ni && j0 + 16 * wj < nj;
            product_fetch(x, a, a_own, i0, 0, ni - i0, nk);
            product_fetch(y, b, b_own, j0, 0, nj - j0, nk);
            for (int64_t k = 0; k < nk; k += PRODUCT_K, turn ^= 1) {
                product_put(&tiles[turn][0], x, a_own);
                product_put(&tiles[turn][1], y, b_own);
                __syncthreads();
                const int64_t next = k + PRODUCT_K;
                if (next < nk) {
                    product_fetch(x, a, a_own, i0, next, ni - i0, nk - next);
                    product_fetch(y, b, b_own, j0, next, nj - j0, nk - next);
                }
                if (busy) product_step(c, &tiles[turn][0], &tiles[turn][1], wi, wj, lane);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int64_t row = i0 + 32 * wi + 16 * i + lane / 4 + e / 2 * 8,
                                      col = j0 + 16 * wj + 8 * j + lane % 4 * 2 + e % 2;
                        if (row >= ni || col >= nj) continue;
                        float *o = out + row * ldo + col;
                        *o = (add ? *o : 0.0f) + scale * c[i][j][e];
                    }
        }
    __syncthreads();
}

#endif
