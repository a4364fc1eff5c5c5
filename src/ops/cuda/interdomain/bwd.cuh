/* interdomain/bwd.cuh - what the tuned backwards do between products: scaling an accumulator by E_i = Lam^(i-c) on the way to an
 * operand, there and back, the moments of log Lam that are summed on the way back, and the gradient of the state. Invariant: a
 * moment takes the very bits that the products take. */
#ifndef IDA_OPS_CUDA_INTERDOMAIN_BWD_CUH
#define IDA_OPS_CUDA_INTERDOMAIN_BWD_CUH

#include "ops/cuda/interdomain/mixer.cuh"
#include "ops/cuda/tiles.h"

enum { TILE = 8192, PANEL = 16384 }; /* bytes of a panel of 64 rows, of 128 */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* E_i = Lam^(i-c) as a product: hi[i / 8] lo[i % 8], two modes (re, im) to a float4. lo [mode block][8][4], hi [8][mode
 * block][4]. */
typedef struct e_tables {
    const float4 *lo, *hi;
} e_tables;
/* By 256 threads; pw: powers of a block of 64 modes, mp in all. */
IDA_DEV void e_fill(float4 *lo, float4 *hi, const float *pw, int mp, int thread) {
    const int q = thread % 4, a = thread / 4 % 8, b = thread / 32, m = 8 * b + 2 * q, n = 8 * a + 2 * q;
    const float *low = pw + (MIX_CHUNK / 2 + a) * 2 * mp + m, *high = pw + 8 * b * 2 * mp + n;
    lo[thread] = make_float4(low[0], low[mp], low[1], low[mp + 1]);
    hi[thread] = make_float4(high[0], high[mp], high[1], high[mp + 1]);
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

/* A warpgroup's half of dX~: 64 columns (keys or values), rows m of re and im. */
typedef struct grad_state {
    float re[32], im[32];
} grad_state;

/* Which of it a thread holds. wg: 0 keys, 1 values; m0, c0: first mode and column (mix_vhead). */
typedef struct spot {
    int wg, warp, lane, row, m0, c0;
    int64_t h, g, s;
} spot;

IDA_DEV int64_t state_index(const mix_params *p, const spot *at, int i, bool *valid) {
    const int m = at->m0 + at->row + (i & 2 ? 8 : 0), col = at->c0 + 8 * (i / 4) + 2 * (at->lane & 3) + (i & 1);
    *valid = m < p->m && col < (at->wg ? p->d : p->r);
    return m * (p->r + p->d) + (at->wg ? p->r : 0) + col;
}
IDA_DEV void grad_load(grad_state *x, const mix_params *p, const spot *at, bool given) {
    const int64_t base = given ? mix_state_at(&p->dstate_out, at->s, at->g, p->m * (p->r + p->d)) : 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        bool valid;
        const int64_t e = base + state_index(p, at, i, &valid);
        x->re[i] = given && valid ? p->dstate_out.re[e] : 0.0f;
        x->im[i] = given && valid ? p->dstate_out.im[e] : 0.0f;
    }
}
IDA_DEV void grad_store(const grad_state *x, const mix_params *p, const spot *at) {
    const int64_t size = p->m * (p->r + p->d);
    const bool heads = p->per > 1;
    const int64_t base = heads ? (at->s * p->h + at->h) * size : mix_state_at(&p->dstate_in, at->s, at->g, size);
    float *re = (heads ? p->dx_head : p->dstate_in.re) + base,
          *im = (heads ? p->dx_head + p->n_seq * p->h * size : p->dstate_in.im) + base;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        bool valid;
        const int64_t e = state_index(p, at, i, &valid);
        if (!valid) continue;
        re[e] = x->re[i];
        im[e] = x->im[i];
    }
}
/* The gradient between parts, in the order of accumulators. */
IDA_DEV void part_load(grad_state *x, const float *from, int wg, int thread) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        x->re[i] = from[(64 * wg + i) * 128 + thread];
        x->im[i] = from[(64 * wg + 32 + i) * 128 + thread];
    }
}
IDA_DEV void part_store(float *to, const grad_state *x, int wg, int thread) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        to[(64 * wg + i) * 128 + thread] = x->re[i];
        to[(64 * wg + 32 + i) * 128 + thread] = x->im[i];
    }
}
/* dx <- conj(lam) dx; lam: a row of powers of mp modes, from the first of dx's */
IDA_DEV void grad_scale(grad_state *x, const float *lam, int mp, int row) {
    const float r0 = lam[row], r1 = lam[row + 8], i0 = lam[mp + row], i1 = lam[mp + row + 8];
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const float lr = i & 2 ? r1 : r0, li = i & 2 ? i1 : i0, a = x->re[i], b = x->im[i];
        x->re[i] = lr * a + li * b;
        x->im[i] = lr * b - li * a;
    }
}
/* dX^ in bf16 as an operand: re, then im, a tile each. */
IDA_DEV void publish(uint32_t to, uint32_t place, const grad_state *x) {
    uint32_t t[16];
    pack_acc(t, x->re);
    st_packed(to, place, t);
    pack_acc(t, x->im);
    st_packed(to + TILE, place, t);
}
/* moment (rows row, row+8; re, im) += e sum over this thread's columns of conj(X) dX; X in the panel of this half, in bf16 as
 * it was read: that keeps the balance of which back_e speaks. */
IDA_DEV void grad_moment(float (&moment)[4], const grad_state *dx, uint32_t panel, uint32_t place, float e) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t pr[4], pi[4];
        ldsm(pr, frag_at(panel, place, j));
        ldsm(pi, frag_at(panel + TILE, place, j));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int d = 4 * j + 2 * i, half = i & 1;
            const float2 xr = unpack2(pr[i]), xi = unpack2(pi[i]);
            sum[half] += xr.x * dx->re[d] + xi.x * dx->im[d] + xr.y * dx->re[d + 1] + xi.y * dx->im[d + 1];
            sum[2 + half] += xr.x * dx->im[d] - xi.x * dx->re[d] + xr.y * dx->im[d + 1] - xi.y * dx->re[d + 1];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) moment[i] += e * sum[i];
}

/* A 64-row accumulator in fp32 to rows of `stride` floats. */
template <int N> IDA_DEV void store_acc(float *to, int64_t stride, const float (&d)[N], int rows, int cols, const spot *at) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        const int row = at->row + (i & 2 ? 8 : 0), col = 8 * (i / 4) + 2 * (at->lane & 3);
        if (row < rows && col < cols) *reinterpret_cast<float2 *>(to + row * stride + col) = make_float2(d[i], d[i + 1]);
    }
}

/* Where a thread is: base of shared memory, its warpgroup's side and the other's; u: units of 16 bytes (tiles.h). */
typedef struct chain {
    int wg, warp, lane;
    uint32_t base, own, opp, u, u_own, u_tile, place, place_t;
} chain;
IDA_DEV chain chain_at(uint32_t base, int side, int wg, int thread) {
    chain c;
    c.wg = wg, c.warp = thread / 32 % 4, c.lane = thread % 32;
    c.base = base, c.own = base + (uint32_t)(wg * side), c.opp = base + (uint32_t)((1 - wg) * side);
    c.u = base >> 4, c.u_own = c.u + (uint32_t)(wg * (side / 16)), c.u_tile = c.u + (uint32_t)(wg * (TILE / 16));
    c.place = frag_place(c.warp, c.lane), c.place_t = frag_t_place(c.warp, c.lane);
    return c;
}
IDA_DEV void chain_opaque(chain *c) { opaque(c->own), opaque(c->opp), opaque(c->u), opaque(c->u_own), opaque(c->u_tile); }
IDA_DEV spot chain_spot(const chain *c) {
    spot at = {};
    at.wg = c->wg, at.warp = c->warp, at.lane = c->lane, at.row = 16 * c->warp + c->lane / 4;
    return at;
}

/* dg (re | im) += a^T dconj(c): of a block of either, whose two tiles begin at a and d.
 * re: a_re^T dc_re + sign a_im^T dc_im;  sign im: a_im^T dc_re - sign a_re^T dc_im. Signs go on A in registers. */
IDA_DEV void gram_grad(float (&dg)[32], uint32_t (&signed_a)[16], const chain *c, int a, int d, bool hermitian) {
    const uint32_t flip = (c->wg != 0) == hermitian ? 0x80008000u : 0u;
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        ldsm_t(signed_a + 4 * kk, c->base + a + (1 - c->wg) * TILE + kk * MN_STEP + c->place_t);
#pragma unroll
        for (int i = 0; i < 4; i++) signed_a[4 * kk + i] ^= flip;
    }
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<1, 1>(dg, desc_mn(c->u_tile, a + kk * MN_STEP, TILE), desc_mn(c->u, d + kk * MN_STEP, TILE), 1);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) mma_rs<1>(dg, signed_a + 4 * kk, desc_mn(c->u, d + TILE + kk * MN_STEP, TILE), 1);
}
IDA_DEV void store_gram(float *to, int64_t stride, float (&dg)[32], const chain *c, bool hermitian) {
    const spot at = chain_spot(c);
#pragma unroll
    for (int i = 0; i < 32; i++) dg[i] = c->wg && !hermitian ? -dg[i] : dg[i];
    store_acc(to, stride, dg, 64, 64, &at);
}
#endif
#endif
