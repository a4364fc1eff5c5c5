/* interdomain_bwd.cu - the tuned backward of the mixer core (mixer.cuh; docs/method.md "chunk form, backward"). A CTA walks the
 * chunks of a task from the last to the first; states64 left X~ before each of them.
 *     dP = tril(dO V^T)  dB = dP F~ + dO X~_v^T   dconj(c) = E dB          S = tril(Q K^T)  T = S F~ + Q X~_k   a = E T
 *     da = dconj(c) gg   dT = conj(E) da   dS = tril(dT F~^T)              conj(c) = a gg   B = conj(c E)       P = tril(B F~^T)
 * The two columns have one shape: warpgroup 1 does the left, warpgroup 0 the right. Then, split between them,
 *     dQ = dS K + dT X~_k^T   dK = dS^T Q + F~ dX^_k   dV = P^T dO + F~ dX^_v   dX~ = dX^ + [dT^T Q | B^T dO]
 *     dF~ += dP^T B + S^T dT + Z dX^^T   dG += a^T dconj(c)   dX^ = conj(Lam^e) dX~'
 * dX~, dF~ and dG stay in registers for the whole task; moments of log Lam are summed beside them (interdomain_bwd.c of ops/cpu).
 * Invariant: between two barriers no tile is both written and read by different warps. */
#include "ops/cuda/mixer.cuh"
#include "ops/cuda/tiles.h"

enum { TILE = 8192, PANEL = 16384, THREADS = 256 };
/* What warpgroup 1 uses where warpgroup 0 uses X lies SIDE bytes after X. */
enum {
    SIDE = PANEL,
    AT_F = 0,
    AT_GG = AT_F + 2 * TILE,
    AT_HAT = AT_GG + 2 * PANEL, /* dX^: keys panel, values panel */
    AT_X = AT_HAT + 2 * PANEL,
    AT_Q = AT_X + 2 * PANEL,
    AT_K = AT_Q + TILE,
    AT_GO = AT_K + TILE,
    AT_V = AT_GO + TILE,
    AT_LEFT = AT_V + TILE,         /* a, then B */
    AT_RIGHT = AT_LEFT + 2 * TILE, /* dconj(c), then dT */
    AT_S = AT_RIGHT + 2 * TILE,
    AT_P = AT_S + TILE, /* P and DS: before that, low bytes of a and dconj(c) */
    AT_DP = AT_P + TILE,
    AT_DS = AT_DP + TILE,
    AT_MOMENT = AT_DS + TILE, /* 8 warps x 128 floats */
    AT_E = AT_MOMENT + 4096,  /* its two factors */
    AT_BAR = AT_E + 8192,
    BYTES = AT_BAR + 64 + 1024
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A warpgroup's half of dX~: 64 columns (keys or values), rows m of re and im. */
typedef struct grad_state {
    float re[32], im[32];
} grad_state;

typedef struct spot {
    int wg, warp, lane, row;
    int64_t h, g, s;
} spot;

IDA_DEV int64_t state_index(const mix_params *p, const spot *at, int i, bool *valid) {
    const int m = at->row + (i & 2 ? 8 : 0), col = 8 * (i / 4) + 2 * (at->lane & 3) + (i & 1);
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
/* dx <- conj(lam) dx */
IDA_DEV void grad_scale(grad_state *x, const float *lam, int row) {
    const float r0 = lam[row], r1 = lam[row + 8], i0 = lam[64 + row], i1 = lam[64 + row + 8];
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const float lr = i & 2 ? r1 : r0, li = i & 2 ? i1 : i0, a = x->re[i], b = x->im[i];
        x->re[i] = lr * a + li * b;
        x->im[i] = lr * b - li * a;
    }
}
/* moment (rows row, row+8; re, im) += e sum over this thread's columns of conj(X) dX; X in the panel of this half, in bf16 as
 * it was read: that keeps the balance of which back_e speaks. */
IDA_DEV void grad_moment(float (&moment)[4], const grad_state *dx, uint32_t panel, uint32_t place, float e) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t pr[4], pi[4];
        ld_frag(pr, frag_at(panel, place, j));
        ld_frag(pi, frag_at(panel + TILE, place, j));
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
            pairs[2 * j + half] = pack2(re[2 * half], re[2 * half + 1]);
            pairs[2 * (j + 8) + half] = pack2(im[2 * half], im[2 * half + 1]);
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
            ld_frag(pr, frag_at(y, place, j));
            ld_frag(pi, frag_at(y + TILE, place, j));
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
                const uint32_t re = pack2(xr * w.x + xi * w.y, yr * w.z + yi * w.w),
                               im = pack2(xi * w.x - xr * w.y, yi * w.z - yr * w.w);
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

/* One thread sends for a chunk's tiles and the state before it, and has the next chunk's moved to L2. */
IDA_DEV void load_chunk(const mix_params *p, const mix_maps *maps, uint32_t base, int h, int g, int token,
                        const unsigned char *slot, bool more) {
    const uint32_t bar = base + AT_BAR;
    fence_async();
    mbar_expect(bar, MIX_SLOT + 4 * TILE);
    tensor_load(base + AT_Q, &maps->q, h, token, bar);
    tensor_load(base + AT_K, &maps->k, g, token, bar);
    bulk_load(base + AT_X, slot, MIX_SLOT, bar);
    tensor_load(base + AT_GO, &maps->dout, h, token, bar);
    tensor_load(base + AT_V, &maps->v, g, token, bar);
    if (!more) return;
    tensor_prefetch(&maps->q, h, token - MIX_CHUNK);
    tensor_prefetch(&maps->k, g, token - MIX_CHUNK);
    tensor_prefetch(&maps->dout, h, token - MIX_CHUNK);
    tensor_prefetch(&maps->v, g, token - MIX_CHUNK);
    bulk_prefetch(slot - p->h * MIX_SLOT, MIX_SLOT);
}
/* Rows of the tiles past the sequence's end are another's: zeros instead. */
IDA_DEV void clear_rows(uint32_t base, int rows, int thread) {
    for (int i = rows * 8 + thread; i < 512; i += THREADS)
#pragma unroll
        for (int tile = 0; tile < 4; tile++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(base + AT_Q + (uint32_t)(tile * TILE + i * 16)), "r"(0)
                         : "memory");
    fence_async();
}

/* A 64-row accumulator in fp32 to rows of `stride` floats. */
IDA_DEV void store_acc(float *to, int64_t stride, const float (&d)[32], int rows, int cols, const spot *at) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int row = at->row + (i & 2 ? 8 : 0), col = 8 * (i / 4) + 2 * (at->lane & 3);
        if (row < rows && col < cols) *reinterpret_cast<float2 *>(to + row * stride + col) = make_float2(d[i], d[i + 1]);
    }
}
/* FULL false: only what dX~ needs, from zero after every part but a sequence's last, to dx_part; first parts are passed over. */
template <bool FULL>
IDA_DEV void run_task(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int run, int64_t h, int wg,
                      int thread) {
    spot at;
    at.wg = wg, at.warp = thread / 32 % 4, at.lane = thread % 32, at.row = 16 * at.warp + at.lane / 4;
    at.h = h, at.g = h / p->per, at.s = 0;
    const int centre = MIX_CHUNK / 2;
    const float *pw = p->t.pw + at.g * MIX_POWERS * 128;
    const e_tables e = {reinterpret_cast<const float4 *>(smem + AT_E), reinterpret_cast<const float4 *>(smem + AT_E) + 256};
    float *warp_moment = reinterpret_cast<float *>(smem + AT_MOMENT) + (thread / 32) * 128;
    const int warp = at.warp, lane = at.lane;
    const uint32_t bar = base + AT_BAR, place = frag_place(warp, lane), place_t = frag_t_place(warp, lane);
    /* base, this warpgroup's side of it and the other's; in bytes per thread, in units of 16 for descriptors */
    uint32_t own = base + wg * SIDE, opp = base + (1 - wg) * SIDE, u = base >> 4, u_own = u + wg * (SIDE / 16),
             u_opp = u + (1 - wg) * (SIDE / 16);
    uint32_t u_tile = u + wg * (TILE / 16), u_column = u + wg * 4;
    grad_state dx;
    float df[32], dg[32], moment[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 32; i++) df[i] = dg[i] = 0;
    int phase = 0;

    for (int64_t n = p->part_run0[run + 1] - 1; n >= p->part_run0[run]; n--) {
        const mix_part part = p->parts[n];
        const int begin = part.begin, len = part.end - begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
        const bool given = part.last && p->dstate_out.re && at.h % p->per == 0;
        if (!FULL && part.index == 0) continue;
        at.s = part.seq;
        if (part.last || !FULL)
            grad_load(&dx, p, &at, given);
        else
            part_load(&dx, p->dx_part + (n * p->h + at.h) * MIX_STATE, wg, thread % 128);
        const unsigned char *slot = p->slots + ((int64_t)(part.slot + n_chunks) * p->h + at.h) * MIX_SLOT;
        if (FULL && len > 0 && given) {
            if (thread == 0) {
                fence_async();
                mbar_expect(bar, MIX_SLOT);
                bulk_load(base + AT_X, slot, MIX_SLOT, bar);
            }
            mbar_wait(bar, phase);
            phase ^= 1;
            grad_moment(moment, &dx, own + AT_X, place, (float)(len - (n_chunks - 1) * MIX_CHUNK - 1 - centre));
            bar_sync(1, THREADS);
        }
        for (int c = n_chunks - 1; c >= 0; c--) {
            const int token = begin + c * MIX_CHUNK, rows = len - c * MIX_CHUNK < MIX_CHUNK ? len - c * MIX_CHUNK : MIX_CHUNK;
            slot -= p->h * MIX_SLOT;
            if (c == n_chunks - 1 && thread == 0) load_chunk(p, maps, base, (int)at.h, (int)at.g, token, slot, c > 0);
            opaque(own), opaque(opp), opaque(u), opaque(u_own), opaque(u_opp), opaque(u_tile), opaque(u_column);
            grad_scale(&dx, pw + ((part.last && c == n_chunks - 1 ? rows - 1 - centre : MIX_CHUNK) + centre) * 128, at.row);
            if (FULL) {
                uint32_t t[16];
                pack_acc(t, dx.re);
                st_packed(own + AT_HAT, place, t);
                pack_acc(t, dx.im);
                st_packed(own + AT_HAT + TILE, place, t);
            }
            mbar_wait(bar, phase);
            phase ^= 1;
            if (rows < MIX_CHUNK) {
                clear_rows(base, rows, thread);
                bar_sync(1, THREADS);
            }

            /* S, a | dP, dconj(c) */
            uint32_t pairs[32];
            {
                float s[32], t[64];
                uint32_t low[16];
                touch(s);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 0>(s, desc_k(u_own, AT_Q + kk * K_STEP), desc_k(u_own, AT_K + kk * K_STEP), kk > 0);
                wg_commit();
                wg_wait<0>();
                touch(s);
                pack_tril(low, s, warp, lane);
                st_packed(own + AT_S, place, low);
                touch(t);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 0>(t, desc_k(u_own, AT_Q + kk * K_STEP), desc_k(u_own, AT_X + kk * K_STEP), kk > 0);
#pragma unroll
                for (int kk = 0; kk < 4; kk++) mma_rs<1>(t, low + 4 * kk, desc_mn(u, AT_F + kk * MN_STEP, TILE), 1);
                wg_commit();
                wg_wait<0>();
                touch(t);
                times_e_low(pairs, t, &e, own + AT_P, warp, lane, FULL);
                st_packed(own + AT_LEFT, place, pairs);
                st_packed(own + AT_LEFT + TILE, place, pairs + 16);
            }
            fence_async();
            bar_sync(1, THREADS);

            /* conj(c) | da, the moments, and dG */
            {
                float t[64];
                touch(t);
                touch(dg);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 8; kk++)
                    mma_ss<0, 0>(t, desc_k(u_own, AT_LEFT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                                 desc_k(u, AT_GG + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
                wg_commit();
                if (FULL) {
                    /* re: a_re^T dc_re + sign a_im^T dc_im;  sign im: a_im^T dc_re - sign a_re^T dc_im. Signs go on A in
                     * registers */
                    const uint32_t flip = (wg != 0) == (p->hermitian != 0) ? 0x80008000u : 0u;
                    uint32_t signed_a[16];
#pragma unroll
                    for (int kk = 0; kk < 4; kk++) {
                        ld_frag_t(signed_a + 4 * kk, base + AT_LEFT + (1 - wg) * TILE + kk * MN_STEP + place_t);
#pragma unroll
                        for (int i = 0; i < 4; i++) signed_a[4 * kk + i] ^= flip;
                    }
                    wg_fence();
#pragma unroll
                    for (int kk = 0; kk < 4; kk++)
                        mma_ss<1, 1>(dg, desc_mn(u_tile, AT_LEFT + kk * MN_STEP, TILE), desc_mn(u, AT_RIGHT + kk * MN_STEP, TILE),
                                     1);
#pragma unroll
                    for (int kk = 0; kk < 4; kk++)
                        mma_rs<1>(dg, signed_a + 4 * kk, desc_mn(u, AT_RIGHT + TILE + kk * MN_STEP, TILE), 1);
                }
                wg_commit();
                wg_wait<0>();
                touch(t);
                touch(dg);
                back_e(pairs, warp_moment, t, &e, opp + AT_LEFT, opp + AT_P, place, warp, lane, FULL);
            }
            bar_sync(1, THREADS);

            /* B, P | dT, dS */
            st_packed(own + AT_LEFT, place, pairs);
            st_packed(own + AT_LEFT + TILE, place, pairs + 16);
            if (FULL) {
                float s[32];
                touch(s);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 8; kk++)
                    mma_rs<0>(s, pairs + 4 * kk, desc_k(u, AT_F + (kk / 4) * TILE + (kk % 4) * K_STEP), kk > 0);
                wg_commit();
                wg_wait<0>();
                touch(s);
                uint32_t low[16];
                pack_tril(low, s, warp, lane);
                st_packed(own + AT_P, place, low);
            }
            fence_async();
            bar_sync(1, THREADS);

            float out[32], dq[16];
            touch(out);
            touch(dq);
            touch(df);
            touch(dx.re);
            touch(dx.im);
            wg_fence();
            if (FULL) {
                /* dK | dV */
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<1, 1>(out, desc_mn(u_opp, AT_P + kk * MN_STEP, TILE), desc_mn(u_own, AT_Q + kk * MN_STEP, TILE),
                                 kk > 0);
#pragma unroll
                for (int kk = 0; kk < 8; kk++)
                    mma_ss<0, 1>(out, desc_k(u, AT_F + (kk / 4) * TILE + (kk % 4) * K_STEP),
                                 desc_mn(u_own, AT_HAT + kk * MN_STEP, PANEL), 1);
                    /* dQ, columns 32 wg.. */
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 1>(dq, desc_k(u, AT_DS + kk * K_STEP), desc_mn(u_column, AT_K + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
                for (int kk = 0; kk < 8; kk++)
                    mma_ss<0, 1>(dq, desc_k(u, AT_RIGHT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                                 desc_mn(u_column, AT_X + kk * MN_STEP, PANEL), 1);
                wg_commit();
            }
            /* dX~_k | dX~_v */
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                mma_ss<1, 1>(dx.re, desc_mn(u_opp, AT_LEFT + kk * MN_STEP, TILE), desc_mn(u_own, AT_Q + kk * MN_STEP, TILE), 1);
                mma_ss<1, 1>(dx.im, desc_mn(u_opp, AT_LEFT + TILE + kk * MN_STEP, TILE),
                             desc_mn(u_own, AT_Q + kk * MN_STEP, TILE), 1);
            }
            wg_commit();
            if (FULL) {
                /* dF~, re | im columns */
#pragma unroll
                for (int kk = 0; kk < 4; kk++) {
                    mma_ss<1, 1>(df, desc_mn(u, AT_DP + kk * MN_STEP, TILE), desc_mn(u_tile, AT_LEFT + kk * MN_STEP, TILE), 1);
                    mma_ss<1, 1>(df, desc_mn(u, AT_S + kk * MN_STEP, TILE), desc_mn(u_tile, AT_RIGHT + kk * MN_STEP, TILE), 1);
                    mma_ss<0, 0>(df, desc_k(u, AT_K + kk * K_STEP), desc_k(u_tile, AT_HAT + kk * K_STEP), 1);
                    mma_ss<0, 0>(df, desc_k(u, AT_V + kk * K_STEP), desc_k(u_tile, AT_HAT + PANEL + kk * K_STEP), 1);
                }
                wg_commit();
            }
            wg_wait<FULL ? 1 : 0>();
            touch(out);
            touch(dq);
            touch(dx.re);
            touch(dx.im);
            if (FULL) grad_moment(moment, &dx, own + AT_X, place, (float)(c > 0 || part.index > 0 ? MIX_CHUNK : centre + 1));
            wg_wait<0>();
            touch(df);
            bar_sync(1, THREADS);
            if (c > 0 && thread == 0)
                load_chunk(p, maps, base, (int)at.h, (int)at.g, token - MIX_CHUNK, slot - p->h * MIX_SLOT, c > 1);

            if (!FULL) continue;
            /* out: through tiles that the next chunk writes only after its first barrier */
            uint32_t t[16];
            pack_acc(t, dq);
#pragma unroll
            for (int j = 0; j < 4; j += 2) st_frag(frag_at(own + AT_LEFT, place, j) ^ (uint32_t)(64 * wg), t + 2 * j);
            const int64_t width = wg ? p->d : p->r, head_row = token * p->h + at.h;
            if (p->per > 1) {
                store_acc((wg ? p->dv_head : p->dk_head) + head_row * width, p->h * width, out, rows, (int)width, &at);
            } else {
                pack_acc(t, out);
                st_packed(own + AT_S, place, t);
            }
            __syncwarp();
            store_rows<4>((__nv_bfloat16 *)p->dq + head_row * p->r, p->h * p->r, own + AT_LEFT, 4 * wg, rows, (int)p->r, warp,
                          lane);
            if (p->per == 1)
                store_rows<8>((__nv_bfloat16 *)(wg ? p->dv : p->dk) + head_row * width, p->h * width, own + AT_S, 0, rows,
                              (int)width, warp, lane);
        }
        if (!FULL) part_store(p->dx_part + ((n - 1) * p->h + at.h) * MIX_STATE, &dx, wg, thread % 128);
        if (!FULL || part.index > 0) continue;
        if (len > 0) grad_scale(&dx, pw + (2 * centre + 1) * 128, at.row);
        if (p->dstate_in.re) grad_store(&dx, p, &at);
    }

    if (!FULL) return;
    /* the task's record */
    float *record = p->records + blockIdx.x * mix_record_floats(64), *to_dg = record + 64 * 128 + wg * 4096,
          *mom = record + 64 * 128 + 2 * 4096;
    store_acc(record + 64 * wg, 128, df, 64, 64, &at);
#pragma unroll
    for (int i = 0; i < 32; i++) dg[i] = wg && !p->hermitian ? -dg[i] : dg[i];
    store_acc(to_dg, 64, dg, 64, 64, &at);
    float *state_moment = reinterpret_cast<float *>(smem + AT_X); /* [wg][128] */
    bar_sync(1, THREADS);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = moment[i];
        v += __shfl_xor_sync(~0u, v, 1);
        v += __shfl_xor_sync(~0u, v, 2);
        if ((lane & 3) == 0) state_moment[wg * 128 + (i / 2) * 64 + at.row + (i & 1) * 8] = v;
    }
    bar_sync(1, THREADS);
    if (thread < 128) {
        float sum = state_moment[thread] + state_moment[128 + thread];
        const float *rows = reinterpret_cast<const float *>(smem + AT_MOMENT);
        for (int i = 0; i < 8; i++) sum += rows[i * 128 + thread];
        mom[thread] = sum;
    }
}
#endif

template <bool FULL>
__global__ void __launch_bounds__(THREADS, 1) bwd64(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    copy16(smem + AT_F, p.t.f16 + g * 2 * TILE, 2 * TILE, thread, THREADS);
    copy16(smem + AT_GG, p.t.gg16 + g * 2 * PANEL, 2 * PANEL, thread, THREADS);
    for (int i = thread; i < 1024; i += THREADS) reinterpret_cast<float *>(smem + AT_MOMENT)[i] = 0;
    e_fill(reinterpret_cast<float4 *>(smem + AT_E), reinterpret_cast<float4 *>(smem + AT_E) + 256, p.t.pw + g * MIX_POWERS * 128,
           thread);
    if (thread == 0) mbar_init(base + AT_BAR, 1);
    fence_async();
    __syncthreads();
    run_task<FULL>(&p, &maps, smem, base, run, h, wg, thread);
#endif
}

/* The driver's encoder, found at run time: nothing here links against libcuda. */
static cudaError_t make_map(CUtensorMap *map, const void *at, int64_t width, int64_t heads, int64_t n) {
    typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *found = NULL;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, NULL);
    if (status != cudaSuccess || !found) return status != cudaSuccess ? status : cudaErrorNotSupported;
    const cuuint64_t size[3] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)n};
    const cuuint64_t stride[2] = {(cuuint64_t)(width * 2), (cuuint64_t)(width * heads * 2)};
    const cuuint32_t box[3] = {64, 1, 64}, step[3] = {1, 1, 1};
    const CUresult r = ((encode_fn *)found)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)at, size, stride, box, step,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t mix_launch_bwd64(const mix_params *p, int64_t n, cudaStream_t stream) {
    mix_maps maps;
    cudaError_t status = make_map(&maps.q, p->q, p->r, p->h, n);
    if (status == cudaSuccess) status = make_map(&maps.k, p->k, p->r, p->g, n);
    if (status == cudaSuccess) status = make_map(&maps.v, p->v, p->d, p->g, n);
    if (status == cudaSuccess) status = make_map(&maps.dout, p->dout, p->d, p->h, n);
    if (status != cudaSuccess) return status;
    const unsigned ctas = (unsigned)(p->n_part_runs * p->h);
    cudaFuncSetAttribute(bwd64<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    cudaFuncSetAttribute(bwd64<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (p->split) {
        bwd64<false><<<ctas, THREADS, BYTES, stream>>>(*p, maps);
        mix_launch_join(p, 1, stream);
    }
    bwd64<true><<<ctas, THREADS, BYTES, stream>>>(*p, maps);
    return cudaGetLastError();
}
