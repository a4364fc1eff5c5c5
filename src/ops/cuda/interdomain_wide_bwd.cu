/* interdomain_wide_bwd.cu - the tuned backward of wide heads (mixer.cuh): that of interdomain_bwd.cu in two stages, with X~
 * before each chunk in slots (interdomain_states__tile64) and, from stage to stage, links in device memory.
 *   chains, chunks in any order:  S, a, conj(c), B, P and dP, dconj(c), da, dT, dS; dQ; dG, dP^T B + S^T dT of dF~, moments of
 *     readers and writers. Links of a chunk and head: for the keys dT and dS, for the values B and P.
 *   scan, from the last chunk to the first, keys and values each by themselves:  dX~ = dX^ + dT^T Q | B^T dO,
 *     dK = dS^T Q + F~ dX^_k, dV = P^T dO + F~ dX^_v, K dX^_k^T | V dX^_v^T of dF~, moments of the state.
 * Invariant: between two barriers no tile is both written and read by different warps. */
#include "ops/cuda/interdomain_wide.cuh"

enum { THREADS = 256 };

/* ---- chains. Warpgroup 0 does the column of S, warpgroup 1 that of dP (interdomain_bwd.cu), with tiles SIDE bytes further:
 * dO, V and X_v where the other has Q, K and X_k. Both blocks of columns. */
enum {
    BLOCKS = 2,
    CH_F = 0,
    CH_GG = CH_F + 2 * TILE,
    CH_E = CH_GG + 2 * PANEL,
    CH_MOMENT = CH_E + 8192, /* 8 warps x 128 floats */
    CH_SIDES = CH_MOMENT + 4096,
    CH_Q = CH_SIDES,
    CH_LEFT = CH_Q,              /* once Q is read: a, then B | dconj(c), then dT */
    CH_P = CH_Q + BLOCKS * TILE, /* low bytes of a | dconj(c), then P | dS; right behind B | dT: a link is one copy */
    CH_S = CH_P + TILE,          /* S | dP, then dQ */
    CH_K = CH_S + TILE,
    CH_X = CH_K + BLOCKS * TILE,
    SIDE = CH_X + BLOCKS * PANEL - CH_SIDES,
    CH_BAR = CH_SIDES + 2 * SIDE, /* tiles, X_k, X_v */
    CH_BYTES = CH_BAR + 64 + 1024,
    LINK = 3 * TILE
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* side: 0 keys, 1 values */
IDA_DEV unsigned char *link_at(const mix_params *p, int slot, int64_t h, int side) {
    return p->links + ((slot * p->h + h) * 2 + side) * LINK;
}
IDA_DEV unsigned char *slot_at(const mix_params *p, int slot, int64_t h, int c, int side) {
    return p->slots + (slot * p->vh + h * BLOCKS + c) * MIX_SLOT + side * PANEL;
}

IDA_DEV void chain_tiles(const mix_maps *maps, uint32_t base, int h, int g, int token) {
    const uint32_t bar = base + CH_BAR;
    mbar_expect(bar, 4 * BLOCKS * TILE);
#pragma unroll
    for (int c = 0; c < BLOCKS; c++) {
        tensor_load(base + CH_Q + c * TILE, &maps->q, c * MIX_TILE, h, token, bar);
        tensor_load(base + CH_K + c * TILE, &maps->k, c * MIX_TILE, g, token, bar);
        tensor_load(base + SIDE + CH_Q + c * TILE, &maps->dout, c * MIX_TILE, h, token, bar);
        tensor_load(base + SIDE + CH_K + c * TILE, &maps->v, c * MIX_TILE, g, token, bar);
    }
}
IDA_DEV void chain_x(const mix_params *p, uint32_t base, int slot, int64_t h, int side) {
    const uint32_t bar = base + CH_BAR + 8 + 8 * side;
    mbar_expect(bar, BLOCKS * PANEL);
#pragma unroll
    for (int c = 0; c < BLOCKS; c++)
        bulk_load(base + side * SIDE + CH_X + c * PANEL, slot_at(p, slot, h, c, side), PANEL, bar);
}
/* To L2: what a chunk's chain_tiles and chain_x of the keys will ask for. */
IDA_DEV void chain_prefetch(const mix_params *p, const mix_maps *maps, int h, int g, int token, int slot) {
#pragma unroll
    for (int c = 0; c < BLOCKS; c++) {
        tensor_prefetch(&maps->q, c * MIX_TILE, h, token);
        tensor_prefetch(&maps->k, c * MIX_TILE, g, token);
        tensor_prefetch(&maps->dout, c * MIX_TILE, h, token);
        tensor_prefetch(&maps->v, c * MIX_TILE, g, token);
        bulk_prefetch(slot_at(p, slot, h, c, 0), PANEL);
    }
}
/* Rows of tiles past the sequence's end are another's: zeros instead. By 256 threads. */
template <int N> IDA_DEV void clear_rows(const uint32_t (&tiles)[N], int rows, int thread) {
    for (int i = rows * 8 + thread; i < 512; i += THREADS)
#pragma unroll
        for (int k = 0; k < N; k++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(tiles[k] + (uint32_t)(i * 16)), "r"(0) : "memory");
    fence_async();
}

IDA_DEV void chain_task(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int run, int64_t h, int wg,
                        int thread) {
    spot at;
    at.wg = wg, at.warp = thread / 32 % 4, at.lane = thread % 32, at.row = 16 * at.warp + at.lane / 4, at.m0 = at.c0 = 0;
    at.h = h, at.g = h / p->per, at.s = 0;
    const e_tables e = {reinterpret_cast<const float4 *>(smem + CH_E), reinterpret_cast<const float4 *>(smem + CH_E) + 256};
    float *warp_moment = reinterpret_cast<float *>(smem + CH_MOMENT) + (thread / 32) * 128;
    const int warp = at.warp, lane = at.lane;
    const uint32_t bar = base + CH_BAR, place = frag_place(warp, lane), place_t = frag_t_place(warp, lane);
    uint32_t own = base + wg * SIDE, opp = base + (1 - wg) * SIDE, u = base >> 4, u_own = u + wg * (SIDE / 16);
    uint32_t u_tile = u + wg * (TILE / 16), u_panel = u + wg * (PANEL / 16);
    float df[32], dg[32];
#pragma unroll
    for (int i = 0; i < 32; i++) df[i] = dg[i] = 0;
    int phase = 0;

    int64_t left = chunk_run(p, run + 1) - chunk_run(p, run);
    chunk_walk next = chunk_open(p, chunk_run(p, run));
    if (left > 0 && thread == 0) {
        chain_tiles(maps, base, (int)h, (int)at.g, next.token);
        chain_x(p, base, next.slot, h, 0);
        chain_x(p, base, next.slot, h, 1);
    }
    for (; left > 0; left--) {
        const int token = next.token, rows = next.rows, slot = next.slot;
        if (left > 1) chunk_next(p, &next);
        opaque(own), opaque(opp), opaque(u), opaque(u_own), opaque(u_tile), opaque(u_panel);
        mbar_wait(bar, phase);
        if (rows < MIX_CHUNK) {
            const uint32_t far = base + SIDE, tiles[8] = {base + CH_Q, base + CH_Q + TILE, base + CH_K, base + CH_K + TILE,
                                                          far + CH_Q,  far + CH_Q + TILE,  far + CH_K,  far + CH_K + TILE};
            clear_rows(tiles, rows, thread);
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
            for (int kk = 0; kk < 4 * BLOCKS; kk++) {
                const int of = (kk / 4) * TILE + (kk % 4) * K_STEP;
                mma_ss<0, 0>(s, desc_k(u_own, CH_Q + of), desc_k(u_own, CH_K + of), kk > 0);
            }
            wg_commit();
            mbar_wait(bar + 8, phase);
            if (wg) mbar_wait(bar + 16, phase);
            touch(t);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 4 * BLOCKS; kk++)
                mma_ss<0, 0>(t, desc_k(u_own, CH_Q + (kk / 4) * TILE + (kk % 4) * K_STEP),
                             desc_k(u_own, CH_X + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
            wg_commit();
            wg_wait<1>();
            touch(s);
            pack_tril(low, s, warp, lane);
            st_packed(own + CH_S, place, low);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 4; kk++) mma_rs<1>(t, low + 4 * kk, desc_mn(u, CH_F + kk * MN_STEP, TILE), 1);
            wg_commit();
            wg_wait<0>();
            touch(t);
            times_e_low(pairs, t, &e, own + CH_P, warp, lane, true);
            bar_sync(2 + wg, 128); /* its last reading of Q | dO */
            st_packed(own + CH_LEFT, place, pairs);
            st_packed(own + CH_LEFT + TILE, place, pairs + 16);
        }
        fence_async();
        bar_sync(1, THREADS);
        if (left > 1 && thread == 0) {
            chain_x(p, base, next.slot, h, 1);
            chain_prefetch(p, maps, (int)h, (int)at.g, next.token, next.slot);
        }

        /* conj(c) | da, the moments, and dG */
        {
            float t[64];
            touch(t);
            touch(dg);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                mma_ss<0, 0>(t, desc_k(u_own, CH_LEFT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                             desc_k(u, CH_GG + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
            wg_commit();
            /* re: a_re^T dc_re + sign a_im^T dc_im;  sign im: a_im^T dc_re - sign a_re^T dc_im. Signs go on A in registers */
            const uint32_t flip = (wg != 0) == (p->hermitian != 0) ? 0x80008000u : 0u;
            uint32_t signed_a[16];
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                ldsm_t(signed_a + 4 * kk, base + CH_LEFT + (1 - wg) * TILE + kk * MN_STEP + place_t);
#pragma unroll
                for (int i = 0; i < 4; i++) signed_a[4 * kk + i] ^= flip;
            }
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                mma_ss<1, 1>(dg, desc_mn(u_tile, CH_LEFT + kk * MN_STEP, TILE),
                             desc_mn(u, SIDE + CH_LEFT + kk * MN_STEP, TILE), 1);
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                mma_rs<1>(dg, signed_a + 4 * kk, desc_mn(u, SIDE + CH_LEFT + TILE + kk * MN_STEP, TILE), 1);
            wg_commit();
            wg_wait<0>();
            touch(t);
            touch(dg);
            back_e(pairs, warp_moment, t, &e, opp + CH_LEFT, opp + CH_P, place, warp, lane, true);
        }
        bar_sync(1, THREADS);

        /* B, P | dT, dS */
        st_packed(own + CH_LEFT, place, pairs);
        st_packed(own + CH_LEFT + TILE, place, pairs + 16);
        {
            float s[32];
            uint32_t low[16];
            touch(s);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                mma_rs<0>(s, pairs + 4 * kk, desc_k(u, CH_F + (kk / 4) * TILE + (kk % 4) * K_STEP), kk > 0);
            wg_commit();
            wg_wait<0>();
            touch(s);
            pack_tril(low, s, warp, lane);
            st_packed(own + CH_P, place, low);
        }
        fence_async();
        bar_sync(1, THREADS);
        if (thread == 0) {
            bulk_store(link_at(p, slot, h, 1), base + CH_LEFT, LINK);
            bulk_store(link_at(p, slot, h, 0), base + SIDE + CH_LEFT, LINK);
            bulk_commit();
        }

        float dq[32]; /* of the columns of block wg */
        touch(dq);
        touch(df);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            mma_ss<0, 1>(dq, desc_k(u, SIDE + CH_P + kk * K_STEP), desc_mn(u_tile, CH_K + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
        for (int kk = 0; kk < 8; kk++)
            mma_ss<0, 1>(dq, desc_k(u, SIDE + CH_LEFT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                         desc_mn(u_panel, CH_X + kk * MN_STEP, PANEL), 1);
        /* dF~, re | im columns */
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            mma_ss<1, 1>(df, desc_mn(u, SIDE + CH_S + kk * MN_STEP, TILE), desc_mn(u_tile, CH_LEFT + kk * MN_STEP, TILE), 1);
            mma_ss<1, 1>(df, desc_mn(u, CH_S + kk * MN_STEP, TILE), desc_mn(u_tile, SIDE + CH_LEFT + kk * MN_STEP, TILE), 1);
        }
        wg_commit();
        wg_wait<0>();
        touch(dq);
        touch(df);
        bar_sync(1, THREADS);
        if (thread == 0) {
            bulk_wait_read<0>(); /* the links */
            fence_async();
            if (left > 1) {
                chain_tiles(maps, base, (int)h, (int)at.g, next.token);
                chain_x(p, base, next.slot, h, 0);
            }
        }
        /* out: through the warp's own rows of a tile that nobody reads any more */
        uint32_t t[16];
        pack_acc(t, dq);
        st_packed(own + CH_S, place, t);
        __syncwarp();
        store_rows<8>((__nv_bfloat16 *)p->dq + (token * p->h + h) * p->r + wg * MIX_TILE, p->h * p->r, own + CH_S, 0, rows,
                      (int)p->r - wg * MIX_TILE, warp, lane);
        phase ^= 1;
    }

    float *record = p->records + blockIdx.x * mix_record_floats(MIX_TILE), *to_dg = record + 64 * 128 + wg * 4096,
          *mom = record + 64 * 128 + 2 * 4096;
    store_acc(record + 64 * wg, 128, df, 64, 64, &at);
#pragma unroll
    for (int i = 0; i < 32; i++) dg[i] = wg && !p->hermitian ? -dg[i] : dg[i];
    store_acc(to_dg, 64, dg, 64, 64, &at);
    bar_sync(1, THREADS);
    if (thread < 128) {
        float sum = 0;
        const float *of_warps = reinterpret_cast<const float *>(smem + CH_MOMENT);
        for (int i = 0; i < 8; i++) sum += of_warps[i * 128 + thread];
        mom[thread] = sum;
    }
    if (thread == 0) bulk_wait();
}
#endif

__global__ void __launch_bounds__(THREADS, 1)
    interdomain_chains__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    copy16(smem + CH_F, p.t.f16 + g * 2 * TILE, 2 * TILE, thread, THREADS);
    copy16(smem + CH_GG, p.t.gg16 + g * 2 * PANEL, 2 * PANEL, thread, THREADS);
    for (int i = thread; i < 1024; i += THREADS) reinterpret_cast<float *>(smem + CH_MOMENT)[i] = 0;
    e_fill(reinterpret_cast<float4 *>(smem + CH_E), reinterpret_cast<float4 *>(smem + CH_E) + 256, p.t.pw + g * MIX_POWERS * 128,
           MIX_TILE, thread);
    if (thread == 0)
        for (int i = 0; i < 3; i++) mbar_init(base + CH_BAR + 8 * i, 1);
    fence_async();
    __syncthreads();
    chain_task(&p, &maps, smem, base, run, h, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

/* ---- scan. A CTA is a run (or piece), a head and a side; warpgroup c has block c of the columns. */
enum {
    SC_F = 0,
    SC_HAT = SC_F + 2 * TILE, /* dX^ */
    SC_STAGES = SC_HAT + BLOCKS * PANEL,
    /* of a stage: dT, dS | B, P; Q | dO; K | V; X_k | X_v */
    ST_LINK = 0,
    ST_LOW = ST_LINK + 2 * TILE,
    ST_Q = ST_LINK + LINK,
    ST_K = ST_Q + BLOCKS * TILE,
    ST_X = ST_K + BLOCKS * TILE,
    STAGE = ST_X + BLOCKS * PANEL,
    SC_BAR = SC_STAGES + 2 * STAGE, /* of the stages; of the state after a sequence */
    SC_BYTES = SC_BAR + 64 + 1024
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Chunks of a list of parts (or pieces), from the last one's last to that of `stop`'s first. */
typedef struct back_walk {
    int n, stop, c, token, slot;
} back_walk;
IDA_DEV void back_enter(back_walk *w, const mix_part *list) {
    for (; w->n >= w->stop; w->n--) {
        const mix_part part = list[w->n];
        w->c = (part.end - part.begin + MIX_CHUNK - 1) / MIX_CHUNK - 1;
        w->token = part.begin + w->c * MIX_CHUNK, w->slot = part.slot + w->c;
        if (w->c >= 0) return;
    }
}
IDA_DEV void back_next(back_walk *w, const mix_part *list) {
    if (w->c > 0) {
        w->c--, w->token -= MIX_CHUNK, w->slot--;
    } else {
        w->n--;
        back_enter(w, list);
    }
}

/* Sends for a chunk. FULL false: only what dX~ needs. */
template <bool FULL>
IDA_DEV void scan_load(const mix_params *p, const mix_maps *maps, uint32_t stage, uint32_t bar, int64_t h, int side,
                       const back_walk *w) {
    const int g = (int)(h / p->per);
    fence_async();
    mbar_expect(bar, FULL ? STAGE : (2 + BLOCKS) * TILE);
    bulk_load(stage + ST_LINK, link_at(p, w->slot, h, side), FULL ? LINK : 2 * TILE, bar);
#pragma unroll
    for (int c = 0; c < BLOCKS; c++) {
        tensor_load(stage + ST_Q + c * TILE, side ? &maps->dout : &maps->q, c * MIX_TILE, (int)h, w->token, bar);
        if (!FULL) continue;
        tensor_load(stage + ST_K + c * TILE, side ? &maps->v : &maps->k, c * MIX_TILE, g, w->token, bar);
        bulk_load(stage + ST_X + c * PANEL, slot_at(p, w->slot, h, c, side), PANEL, bar);
    }
}

/* FULL false: over one piece, from zero after every piece but a sequence's last, to x_piece. run: then the piece. */
template <bool FULL>
IDA_DEV void scan_task(const mix_params *p, const mix_maps *maps, uint32_t base, int run, int64_t h, int side, int wg,
                       int thread) {
    spot at;
    at.wg = side, at.warp = thread / 32 % 4, at.lane = thread % 32, at.row = 16 * at.warp + at.lane / 4;
    at.m0 = 0, at.c0 = wg * MIX_TILE;
    at.h = h, at.g = h / p->per, at.s = 0;
    const int centre = MIX_CHUNK / 2, warp = at.warp, lane = at.lane;
    const int64_t v = h * BLOCKS + wg, width = side ? p->d : p->r;
    const float *pw = p->t.pw + at.g * MIX_POWERS * 128;
    const mix_part *list = FULL ? p->parts : p->pieces;
    const int first = FULL ? (int)p->part_run0[run + 1] - 1 : run, stop = FULL ? (int)p->part_run0[run] : run;
    const uint32_t bar = base + SC_BAR, place = frag_place(warp, lane), hat = base + SC_HAT + wg * PANEL, u = base >> 4;
    const uint32_t u_hat = u + wg * (PANEL / 16);
    grad_state dx;
    float df[64], moment[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 64; i++) df[i] = 0;

    back_walk ahead = {first, stop, 0, 0, 0};
    back_enter(&ahead, list);
    if (thread == 0)
        for (int i = 0; i < 2 && ahead.n >= stop; i++) {
            scan_load<FULL>(p, maps, base + SC_STAGES + i * STAGE, bar + 8 * i, h, side, &ahead);
            back_next(&ahead, list);
        }
    int stage = 0, phases = 0; /* bit i: of barrier i */
    for (int n = first; n >= stop; n--) {
        const mix_part part = list[n];
        const int len = part.end - part.begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
        const bool given = part.last && p->dstate_out.re && h % p->per == 0;
        at.s = part.seq;
        if (part.last || !FULL)
            grad_load(&dx, p, &at, given);
        else
            part_load(&dx, p->dx_part + (n * p->vh + v) * MIX_STATE, side, thread % 128);
        if (FULL && len > 0 && given) {
            bar_sync(1, THREADS);
            if (thread == 0) {
                fence_async();
                mbar_expect(bar + 16, BLOCKS * PANEL);
                for (int c = 0; c < BLOCKS; c++)
                    bulk_load(base + SC_HAT + c * PANEL, slot_at(p, part.slot + n_chunks, h, c, side), PANEL, bar + 16);
            }
            mbar_wait(bar + 16, phases >> 2 & 1);
            phases ^= 4;
            grad_moment(moment, &dx, hat, place, (float)(len - (n_chunks - 1) * MIX_CHUNK - 1 - centre));
        }
        for (int c = n_chunks - 1; c >= 0; c--) {
            const int token = part.begin + c * MIX_CHUNK, over = part.end - token, rows = over < MIX_CHUNK ? over : MIX_CHUNK;
            const uint32_t tiles = base + SC_STAGES + stage * STAGE;
            grad_scale(&dx, pw + ((part.last && c == n_chunks - 1 ? rows - 1 - centre : MIX_CHUNK) + centre) * 128, MIX_TILE,
                       at.row);
            if (FULL) {
                uint32_t t[16];
                pack_acc(t, dx.re);
                st_packed(hat, place, t);
                pack_acc(t, dx.im);
                st_packed(hat + TILE, place, t);
                fence_async();
                bar_sync(2 + wg, 128);
            }
            mbar_wait(bar + 8 * stage, phases >> stage & 1);
            phases ^= 1 << stage;
            if (rows < MIX_CHUNK) {
                const uint32_t some[4] = {tiles + ST_Q, tiles + ST_Q + TILE, tiles + ST_K, tiles + ST_K + TILE};
                clear_rows(some, rows, thread);
                bar_sync(1, THREADS);
            }
            const uint32_t us = tiles >> 4, u_tile = us + wg * (TILE / 16);
            float out[32];
            touch(out);
            touch(df);
            touch(dx.re);
            touch(dx.im);
            wg_fence();
            /* dX~ */
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                const uint64_t q = desc_mn(u_tile, ST_Q + kk * MN_STEP, TILE);
                mma_ss<1, 1>(dx.re, desc_mn(us, ST_LINK + kk * MN_STEP, TILE), q, 1);
                mma_ss<1, 1>(dx.im, desc_mn(us, ST_LINK + TILE + kk * MN_STEP, TILE), q, 1);
            }
            wg_commit();
            if (FULL) {
                /* dK | dV */
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<1, 1>(out, desc_mn(us, ST_LOW + kk * MN_STEP, TILE), desc_mn(u_tile, ST_Q + kk * MN_STEP, TILE),
                                 kk > 0);
#pragma unroll
                for (int kk = 0; kk < 8; kk++)
                    mma_ss<0, 1>(out, desc_k(u, SC_F + (kk / 4) * TILE + (kk % 4) * K_STEP),
                                 desc_mn(u_hat, SC_HAT + kk * MN_STEP, PANEL), 1);
                /* dF~ */
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 0>(df, desc_k(u_tile, ST_K + kk * K_STEP), desc_k(u_hat, SC_HAT + kk * K_STEP), 1);
                wg_commit();
            }
            wg_wait<FULL ? 1 : 0>();
            touch(dx.re);
            touch(dx.im);
            if (FULL)
                grad_moment(moment, &dx, tiles + ST_X + wg * PANEL, place,
                            (float)(c > 0 || part.index > 0 ? MIX_CHUNK : centre + 1));
            wg_wait<0>();
            touch(out);
            touch(df);
            bar_sync(1, THREADS);
            if (thread == 0 && ahead.n >= stop) {
                scan_load<FULL>(p, maps, tiles, bar + 8 * stage, h, side, &ahead);
                back_next(&ahead, list);
            }
            stage ^= 1;
            if (!FULL) continue;
            const int64_t head_row = token * p->h + h;
            if (p->per > 1) {
                store_acc((side ? p->dv_head : p->dk_head) + head_row * width + at.c0, p->h * width, out, rows,
                          (int)width - at.c0, &at);
                continue;
            }
            /* through the warp's own rows of dX^, which nobody reads any more */
            uint32_t t[16];
            pack_acc(t, out);
            st_packed(hat, place, t);
            __syncwarp();
            store_rows<8>((__nv_bfloat16 *)(side ? p->dv : p->dk) + head_row * width + at.c0, p->h * width, hat, 0, rows,
                          (int)width - at.c0, warp, lane);
        }
        if (!FULL) part_store(p->x_piece + (n * p->vh + v) * MIX_STATE, &dx, side, thread % 128);
        if (!FULL || part.index > 0) continue;
        if (len > 0) grad_scale(&dx, pw + (2 * centre + 1) * 128, MIX_TILE, at.row);
        if (p->dstate_in.re) grad_store(&dx, p, &at);
    }

    if (!FULL) return;
    float *record = p->scan_records + ((run * p->vh + v) * 2 + side) * MIX_SCAN_RECORD;
    store_acc(record, 128, df, 64, 128, &at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = moment[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if ((lane & 3) == 0) record[64 * 128 + (i / 2) * 64 + at.row + (i & 1) * 8] = sum;
    }
}
#endif

template <bool FULL> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_scan__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / (2 * p.h)), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x / 2 % p.h, g = h / p.per;
    const int side = (int)(blockIdx.x % 2);
    if (p.t.chunk[g] != MIX_CHUNK) return;
    if (!FULL && p.parts[p.pieces[run].whole].index == 0) return; /* nothing comes before it */
    copy16(smem + SC_F, p.t.f16 + g * 2 * TILE, 2 * TILE, thread, THREADS);
    if (thread == 0)
        for (int i = 0; i < 3; i++) mbar_init(base + SC_BAR + 8 * i, 1);
    fence_async();
    __syncthreads();
    scan_task<FULL>(&p, &maps, base, run, h, side, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

cudaError_t mix_launch_bwd_wide(const mix_params *p, int64_t n, cudaStream_t stream) {
    mix_maps maps;
    const cudaError_t status = mix_make_maps(&maps, p, n);
    if (status != cudaSuccess) return status;
    cudaFuncSetAttribute(interdomain_chains__wide, cudaFuncAttributeMaxDynamicSharedMemorySize, CH_BYTES);
    cudaFuncSetAttribute(interdomain_scan__wide<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, SC_BYTES);
    cudaFuncSetAttribute(interdomain_scan__wide<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, SC_BYTES);
    interdomain_chains__wide<<<(unsigned)(p->n_chunk_runs * p->h), THREADS, CH_BYTES, stream>>>(*p, maps);
    if (p->split) {
        interdomain_scan__wide<false><<<(unsigned)(p->n_pieces * p->h * 2), THREADS, SC_BYTES, stream>>>(*p, maps);
        mix_launch_join(p, 1, stream);
    }
    interdomain_scan__wide<true><<<(unsigned)(p->n_part_runs * p->h * 2), THREADS, SC_BYTES, stream>>>(*p, maps);
    return cudaGetLastError();
}
