/* interdomain/bwd.cu - the tuned backward of the mixer core (mixer.cuh; docs/method.md "chunk form, backward"). A CTA walks the
 * chunks of a task from the last to the first; interdomain_states__tile64 left X~ before each of them.
 *     dP = tril(dO V^T)  dB = dP F~ + dO X~_v^T   dconj(c) = E dB          S = tril(Q K^T)  T = S F~ + Q X~_k   a = E T
 *     da = dconj(c) gg   dT = conj(E) da   dS = tril(dT F~^T)              conj(c) = a gg   B = conj(c E)       P = tril(B F~^T)
 * The two columns have one shape: warpgroup 1 does the left, warpgroup 0 the right. Then, split between them,
 *     dQ = dS K + dT X~_k^T   dK = dS^T Q + F~ dX^_k   dV = P^T dO + F~ dX^_v   dX~ = dX^ + [dT^T Q | B^T dO]
 *     dF~ += dP^T B + S^T dT + Z dX^^T   dG += a^T dconj(c)   dX^ = conj(Lam^e) dX~'
 * dX~, dF~ and dG stay in registers for the whole task; moments of log Lam are summed beside them (interdomain_bwd.c of ops/cpu).
 * Invariant: between two barriers no tile is both written and read by different warps. */
#include "ops/cuda/interdomain/bwd.cuh"

enum { THREADS = 256 };
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
    AT_BAR = AT_E + 8192, /* one for each of two sets of tiles */
    BYTES = AT_BAR + 64 + 1024,
    /* The pass for dX~ alone has no use for dX^ and for S to DS: there lies its second set of X and tiles. */
    X_2 = AT_HAT - AT_X,
    TILES_2 = AT_S - AT_Q
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* One thread sends for a chunk's tiles and the state before it, into set 0 or 1, and has the next chunk's moved to L2. */
IDA_DEV void load_chunk(const mix_params *p, const mix_maps *maps, uint32_t base, int set, int h, int g, int token,
                        const unsigned char *slot, bool more) {
    const uint32_t bar = base + AT_BAR + 8 * (uint32_t)set, tiles = base + (set ? TILES_2 : 0), x = base + (set ? X_2 : 0);
    fence_async();
    mbar_expect(bar, MIX_SLOT + 4 * TILE);
    tensor_load(tiles + AT_Q, &maps->q, 0, h, token, bar);
    tensor_load(tiles + AT_K, &maps->k, 0, g, token, bar);
    bulk_load(x + AT_X, slot, MIX_SLOT, bar);
    tensor_load(tiles + AT_GO, &maps->dout, 0, h, token, bar);
    tensor_load(tiles + AT_V, &maps->v, 0, g, token, bar);
    if (!more) return;
    tensor_prefetch(&maps->q, 0, h, token - MIX_CHUNK);
    tensor_prefetch(&maps->k, 0, g, token - MIX_CHUNK);
    tensor_prefetch(&maps->dout, 0, h, token - MIX_CHUNK);
    tensor_prefetch(&maps->v, 0, g, token - MIX_CHUNK);
    bulk_prefetch(slot - p->h * MIX_SLOT, MIX_SLOT);
}
/* FULL false: only what dX~ needs, over one piece, from zero after every piece but a sequence's last, to x_piece. run: then the
 * piece. */
template <bool FULL>
IDA_DEV void run_task(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int run, int64_t h, int wg,
                      int thread) {
    spot at;
    at.wg = wg, at.warp = thread / 32 % 4, at.lane = thread % 32, at.row = 16 * at.warp + at.lane / 4, at.m0 = at.c0 = 0;
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
    int phase = 0, set = 0; /* FULL: one set of tiles; else bit i of phase is that of set i */

    for (int64_t n = FULL ? p->part_run0[run + 1] - 1 : run; n >= (FULL ? p->part_run0[run] : run); n--) {
        const mix_part part = FULL ? p->parts[n] : p->pieces[n];
        const int begin = part.begin, len = part.end - begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
        const bool given = part.last && p->dstate_out.re && at.h % p->per == 0;
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
            if (c == n_chunks - 1 && thread == 0) {
                load_chunk(p, maps, base, 0, (int)at.h, (int)at.g, token, slot, FULL && c > 0);
                if (!FULL && c > 0)
                    load_chunk(p, maps, base, 1, (int)at.h, (int)at.g, token - MIX_CHUNK, slot - p->h * MIX_SLOT, c > 1);
            }
            opaque(own), opaque(opp), opaque(u), opaque(u_own), opaque(u_opp), opaque(u_tile), opaque(u_column);
            grad_scale(&dx, pw + ((part.last && c == n_chunks - 1 ? rows - 1 - centre : MIX_CHUNK) + centre) * 128, MIX_TILE,
                       at.row);
            if (FULL) {
                uint32_t t[16];
                pack_acc(t, dx.re);
                st_packed(own + AT_HAT, place, t);
                pack_acc(t, dx.im);
                st_packed(own + AT_HAT + TILE, place, t);
            }
            mbar_wait(bar + 8 * set, (phase >> set) & 1);
            phase ^= 1 << set;
            if (rows < MIX_CHUNK) {
                clear_rows<4>(base + AT_Q + (set ? TILES_2 : 0), rows, thread, THREADS);
                bar_sync(1, THREADS);
            }
            const uint32_t u_q = u_own + (set ? TILES_2 / 16 : 0), u_x = u_own + (set ? X_2 / 16 : 0);

            /* S, a | dP, dconj(c) */
            uint32_t pairs[32];
            {
                float s[32], t[64];
                uint32_t low[16];
                touch(s);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 0>(s, desc_k(u_q, AT_Q + kk * K_STEP), desc_k(u_q, AT_K + kk * K_STEP), kk > 0);
                wg_commit();
                wg_wait<0>();
                touch(s);
                pack_tril(low, s, warp, lane);
                if (FULL) st_packed(own + AT_S, place, low);
                touch(t);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 0>(t, desc_k(u_q, AT_Q + kk * K_STEP), desc_k(u_x, AT_X + kk * K_STEP), kk > 0);
#pragma unroll
                for (int kk = 0; kk < 4; kk++) mma_rs<1>(t, low + 4 * kk, desc_mn(u, AT_F + kk * MN_STEP, TILE), 1);
                wg_commit();
                wg_wait<0>();
                touch(t);
                times_e_low(pairs, t, &e, own + AT_P, warp, lane, FULL);
                if (FULL) {
                    st_packed(own + AT_LEFT, place, pairs);
                    st_packed(own + AT_LEFT + TILE, place, pairs + 16);
                }
            }
            if (FULL) {
                fence_async();
                bar_sync(1, THREADS);
            }

            /* conj(c) | da, the moments, and dG */
            {
                float t[64];
                touch(t);
                touch(dg);
                wg_fence();
#pragma unroll
                for (int kk = 0; kk < 8; kk++) {
                    const uint64_t gg = desc_k(u, AT_GG + (kk / 4) * PANEL + (kk % 4) * K_STEP);
                    if (FULL) mma_ss<0, 0>(t, desc_k(u_own, AT_LEFT + (kk / 4) * TILE + (kk % 4) * K_STEP), gg, kk > 0);
                    else mma_rs<0>(t, pairs + 4 * kk, gg, kk > 0);
                }
                wg_commit();
                if (FULL) {
                    /* re: a_re^T dc_re + sign a_im^T dc_im;  sign im: a_im^T dc_re - sign a_re^T dc_im. Signs go on A in
                     * registers */
                    const uint32_t flip = (wg != 0) == (p->hermitian != 0) ? 0x80008000u : 0u;
                    uint32_t signed_a[16];
#pragma unroll
                    for (int kk = 0; kk < 4; kk++) {
                        ldsm_t(signed_a + 4 * kk, base + AT_LEFT + (1 - wg) * TILE + kk * MN_STEP + place_t);
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
            if (FULL) bar_sync(1, THREADS);

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
                mma_ss<1, 1>(dx.re, desc_mn(u_opp, AT_LEFT + kk * MN_STEP, TILE), desc_mn(u_q, AT_Q + kk * MN_STEP, TILE), 1);
                mma_ss<1, 1>(dx.im, desc_mn(u_opp, AT_LEFT + TILE + kk * MN_STEP, TILE), desc_mn(u_q, AT_Q + kk * MN_STEP, TILE),
                             1);
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
            if (FULL && c > 0 && thread == 0)
                load_chunk(p, maps, base, 0, (int)at.h, (int)at.g, token - MIX_CHUNK, slot - p->h * MIX_SLOT, c > 1);
            if (!FULL) {
                if (c > 1 && thread == 0)
                    load_chunk(p, maps, base, set, (int)at.h, (int)at.g, token - 2 * MIX_CHUNK, slot - 2 * p->h * MIX_SLOT,
                               c > 2);
                set ^= 1;
                continue;
            }
            /* out: through the warp's own rows of tiles that nobody reads any more */
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
        if (!FULL) part_store(p->x_piece + (n * p->h + at.h) * MIX_STATE, &dx, wg, thread % 128);
        if (!FULL || part.index > 0) continue;
        if (len > 0) grad_scale(&dx, pw + (2 * centre + 1) * 128, MIX_TILE, at.row);
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

template <bool FULL> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_bwd__tile64(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    if (!FULL && p.parts[p.pieces[run].whole].index == 0) return; /* nothing comes before it */
    copy16(smem + AT_F, p.t.f16 + g * 2 * TILE, 2 * TILE, thread, THREADS);
    copy16(smem + AT_GG, p.t.gg16 + g * 2 * PANEL, 2 * PANEL, thread, THREADS);
    for (int i = thread; i < 1024; i += THREADS) reinterpret_cast<float *>(smem + AT_MOMENT)[i] = 0;
    e_fill(reinterpret_cast<float4 *>(smem + AT_E), reinterpret_cast<float4 *>(smem + AT_E) + 256, p.t.pw + g * MIX_POWERS * 128,
           MIX_TILE, thread);
    if (thread == 0) {
        mbar_init(base + AT_BAR, 1);
        mbar_init(base + AT_BAR + 8, 1);
    }
    fence_async();
    __syncthreads();
    run_task<FULL>(&p, &maps, smem, base, run, h, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

cudaError_t mix_launch_bwd64(const mix_params *p, int64_t n, cudaStream_t stream) {
    mix_maps maps;
    const cudaError_t status = mix_make_maps(&maps, p, n);
    if (status != cudaSuccess) return status;
    const unsigned ctas = (unsigned)(p->n_part_runs * p->h);
    cudaFuncSetAttribute(interdomain_bwd__tile64<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    cudaFuncSetAttribute(interdomain_bwd__tile64<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (p->split) {
        interdomain_bwd__tile64<false><<<(unsigned)(p->n_pieces * p->h), THREADS, BYTES, stream>>>(*p, maps);
        mix_launch_join(p, 1, stream);
    }
    interdomain_bwd__tile64<true><<<ctas, THREADS, BYTES, stream>>>(*p, maps);
    return cudaGetLastError();
}
