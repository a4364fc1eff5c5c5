/* interdomain_bwd.cuh - between the products of interdomain_bwd.cu: scaling an accumulator by E_i = Lam^(i-c) on the way to an
 * operand, there and back, and the moments of log Lam that are summed on the way back. Invariant: a moment takes the very bits
 * that the products take. */
#ifndef IDA_OPS_CUDA_INTERDOMAIN_BWD_CUH
#define IDA_OPS_CUDA_INTERDOMAIN_BWD_CUH

#include "ops/cuda/mixer.cuh"
#include "ops/cuda/tiles.h"

enum { TILE = 8192 }; /* bytes of a panel of 64 rows */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* E_i = Lam^(i-c) as a product: hi[i / 8] lo[i % 8], two modes (re, im) to a float4. lo [mode block][8][4], hi [8][mode
 * block][4]. */
typedef struct e_tables {
    const float4 *lo, *hi;
} e_tables;
IDA_DEV void e_fill(float4 *lo, float4 *hi, const float *pw, int thread) { /* 256 threads */
    const int q = thread % 4, a = thread / 4 % 8, b = thread / 32, m = 8 * b + 2 * q, n = 8 * a + 2 * q;
    const float *low = pw + (MIX_CHUNK / 2 + a) * 128 + m, *high = pw + 8 * b * 128 + n;
    lo[thread] = make_float4(low[0], low[64], low[1], low[65]);
    hi[thread] = make_float4(high[0], high[64], high[1], high[65]);
}
IDA_DEV float4 e_times(float4 a, float4 b) {
    return make_float4(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x, a.z * b.z - a.w * b.w, a.z * b.w + a.w * b.z);
}
/* A thread's E of mode block j: rows 16 warp + lane/4 and eight below. */
IDA_DEV void e_get(float4 (&w)[2], const e_tables *e, int warp, int lane, int j) {
    const float4 lo = e->lo[j * 32 + lane];
    w[0] = e_times(e->hi[(2 * warp * 8 + j) * 4 + (lane & 3)], lo);
    w[1] = e_times(e->hi[((2 * warp + 1) * 8 + j) * 4 + (lane & 3)], lo);
}
/* pairs <- t E in bf16, and the bits that it leaves out as bytes in shared memory (re 2, im 2 pieces of 16 bytes a thread). */
IDA_DEV void times_e_low(uint32_t *pairs, const float (&t)[64], const e_tables *e, uint32_t low, int warp, int lane,
                         bool wanted) {
    const uint32_t to = low + (uint32_t)((32 * warp + lane) * 16);
    uint32_t word[16];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float re[4], im[4];
        float4 both[2];
        e_get(both, e, warp, lane, j);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float4 w = both[half];
            const float xr = t[4 * j + 2 * half], yr = t[4 * j + 2 * half + 1], xi = t[4 * (j + 8) + 2 * half],
                        yi = t[4 * (j + 8) + 2 * half + 1];
            re[2 * half] = xr * w.x - xi * w.y, re[2 * half + 1] = yr * w.z - yi * w.w;
            im[2 * half] = xi * w.x + xr * w.y, im[2 * half + 1] = yi * w.z + yr * w.w;
            pairs[2 * j + half] = bf16_pair(re[2 * half], re[2 * half + 1]);
            pairs[2 * (j + 8) + half] = bf16_pair(im[2 * half], im[2 * half + 1]);
        }
        if (!wanted) continue;
        word[j] = low_bytes(re, pairs + 2 * j);
        word[8 + j] = low_bytes(im, pairs + 2 * (j + 8));
    }
    if (!wanted) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 2048), "r"(word[4 * i]), "r"(word[4 * i + 1]),
                     "r"(word[4 * i + 2]), "r"(word[4 * i + 3])
                     : "memory");
}

/* One mode's term at one row: w conj(y) x / conj(E), added to v. Padding has E = 0. */
IDA_DEV void moment_term(float &re, float &im, float w, float er, float ei, float yr, float yi, float xr, float xi) {
    const float size = er * er + ei * ei, s = size > 0.0f ? __fdividef(w, size) : 0.0f, fr = er * s, fi = ei * s;
    const float zr = yr * xr + yi * xi, zi = yr * xi - yi * xr;
    re += zr * fr - zi * fi;
    im += zr * fi + zi * fr;
}

/* pairs <- x conj(E) in bf16; moment_m += sum over rows i of (i - centre) conj(y_im) pairs_im / conj(E_im), y the other side's
 * a or dconj(c) with its low bytes. This is conj(T) dT or conj(dB) B with the very operands of the products that follow and went
 * before, so that what readers take and writers give stays in balance: the weights (i - centre) and (centre - j) then act as i -
 * j. */
IDA_DEV void back_e(uint32_t *pairs, float *moment, const float (&x)[64], const e_tables *e, uint32_t y, uint32_t low,
                    uint32_t place, int warp, int lane, bool wanted) {
    const float w0 = (float)(16 * warp + lane / 4 - MIX_CHUNK / 2);
    const bool up16 = lane & 16, up8 = lane & 8;
    const uint32_t from = low + (uint32_t)((32 * warp + lane) * 16);
    uint32_t low_re[4], low_im[4];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t pr[4], pi[4];
        if (wanted) {
            if (j % 4 == 0) {
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(low_re[0]), "=r"(low_re[1]), "=r"(low_re[2]), "=r"(low_re[3])
                             : "r"(from + j / 4 * 2048)
                             : "memory");
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(low_im[0]), "=r"(low_im[1]), "=r"(low_im[2]), "=r"(low_im[3])
                             : "r"(from + 4096 + j / 4 * 2048)
                             : "memory");
            }
            ldsm(pr, frag_at(y, place, j));
            ldsm(pi, frag_at(y + TILE, place, j));
        }
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const int k = j + b;
            float v[4] = {0, 0, 0, 0}; /* re, im of the first mode; of the second */
            float4 both[2];
            e_get(both, e, warp, lane, k);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float4 w = both[half];
                const float xr = x[4 * k + 2 * half], yr = x[4 * k + 2 * half + 1], xi = x[4 * (k + 8) + 2 * half],
                            yi = x[4 * (k + 8) + 2 * half + 1];
                const uint32_t re = bf16_pair(xr * w.x + xi * w.y, yr * w.z + yi * w.w),
                               im = bf16_pair(xi * w.x - xr * w.y, yi * w.z - yr * w.w);
                pairs[2 * k + half] = re;
                pairs[2 * (k + 8) + half] = im;
                if (!wanted) continue;
                const float2 out_re = unpack2(re), out_im = unpack2(im);
                const uint32_t hr = pr[2 * b + half], hi = pi[2 * b + half], lr = low_re[k % 4], li = low_im[k % 4];
                const float r0 = half ? with_low<2>(hr << 16, lr) : with_low<0>(hr << 16, lr),
                            r1 = half ? with_low<3>(hr & 0xffff0000u, lr) : with_low<1>(hr & 0xffff0000u, lr);
                const float i0 = half ? with_low<2>(hi << 16, li) : with_low<0>(hi << 16, li),
                            i1 = half ? with_low<3>(hi & 0xffff0000u, li) : with_low<1>(hi & 0xffff0000u, li);
                moment_term(v[0], v[1], w0 + 8.0f * (float)half, w.x, w.y, r0, i0, out_re.x, out_im.x);
                moment_term(v[2], v[3], w0 + 8.0f * (float)half, w.z, w.w, r1, i1, out_re.y, out_im.y);
            }
            if (!wanted) continue;
            float k0 = up16 ? v[2] : v[0], k1 = up16 ? v[3] : v[1];
            k0 += __shfl_xor_sync(~0u, up16 ? v[0] : v[2], 16);
            k1 += __shfl_xor_sync(~0u, up16 ? v[1] : v[3], 16);
            float sum = up8 ? k1 : k0;
            sum += __shfl_xor_sync(~0u, up8 ? k0 : k1, 8);
            sum += __shfl_xor_sync(~0u, sum, 4);
            if (!(lane & 4)) moment[(up8 ? 64 : 0) + 8 * k + 2 * (lane & 3) + (up16 ? 1 : 0)] += sum;
        }
    }
}

#endif
#endif
