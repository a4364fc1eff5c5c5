/* interdomain/wide_fwd.cu - the tuned forward of the mixer core, wide heads (mixer.cuh): what comes after the states. With blocks
 * of 64 modes b and of 64 columns c,
 *     S = tril(sum_c Q_c K_c^T)   a_b = E_b (S F~_b + sum_c Q_c X~_k,bc^T)   B_b = conj(E_b) sum_b' a_b' gg_b'b
 *     o_c = tril(sum_b B_b F~_b^T) V_c + sum_b B_b X~_v,bc
 *
 * A CTA takes a run of chunks of one head. Its warpgroups take the chunks in turn, each the whole chain from accumulator to
 * operand without leaving registers; tiles stream to them through one ring. Of chunk n it carries first what a needs (A), and,
 * after A of chunk n + LAG, what o needs (B): while one warpgroup is amid its chain, the ring holds tiles that another can use. */
#include "ops/cuda/interdomain/wide.cuh"

template <int MB> struct wide_fwd {
    enum {
        WORKERS = MB == 1 ? 3 : 2,
        STAGES = MB == 1 ? 10 : 11,
        REGS = MB == 1 ? 160 : 240,
        LAG = 1,
        THREADS = 128 * (WORKERS + 1),
        GG_BYTES = MB == 1 ? 32768 : 0, /* of one block of modes it stays, of two it streams */
        AT_F = 0,
        AT_GG = AT_F + 2 * MB * TILE,
        AT_E = AT_GG + GG_BYTES,
        AT_RING = AT_E + MB * 8192,
        AT_BARS = AT_RING + STAGES * RING_STAGE,
        BYTES = AT_BARS + ring_bars_bytes<STAGES>() + 1024
    };
    static_assert(LAG < WORKERS, "a warpgroup would wait for B behind its own next A");
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A chunk has so many items of either kind in the ring, in the order of filling; where they begin. */
template <int MB, int CB> struct chunk_items {
    enum { A = CB * (1 + MB) + (MB == 1 ? 0 : 2 * MB * MB), B = CB * MB + 1 };
};
template <int MB, int CB> IDA_DEV int items_a(int n) {
    const int lag = wide_fwd<MB>::LAG;
    return n * chunk_items<MB, CB>::A + (n > lag ? n - lag : 0) * chunk_items<MB, CB>::B;
}
template <int MB, int CB> IDA_DEV int items_b(int n, int count) {
    const int with = n + 1 + wide_fwd<MB>::LAG;
    return (with < count ? with : count) * chunk_items<MB, CB>::A + n * chunk_items<MB, CB>::B;
}

template <int MB, int CB, int N>
IDA_DEV int fill_a(const mix_params *p, const mix_maps *maps, ring<N> r, const chunk_walk *w, int h, int g, int at) {
    for (int c = 0; c < CB; c++, at++) {
        const uint32_t to = ring_open(r, at, 2 * TILE);
        tensor_load(to, &maps->q, MIX_TILE * c, h, w->token, ring_bar(r, at));
        tensor_load(to + TILE, &maps->k, MIX_TILE * c, g, w->token, ring_bar(r, at));
    }
    const unsigned char *x = p->slots + (w->slot * p->vh + (int64_t)h * MB * CB) * MIX_SLOT;
    for (int i = 0; i < MB * CB; i++, at++) bulk_load(ring_open(r, at, PANEL), x + i * MIX_SLOT, PANEL, ring_bar(r, at));
    if (MB == 1) return at;
    /* columns re, then im, of each block of a; rows re, im of a block of conj(c) */
    const unsigned char *gg = p->t.gg16 + (int64_t)g * 2 * MB * 2 * MB * TILE;
    for (int block = 0; block < MB; block++)
        for (int panel = 0; panel < 2 * MB; panel++, at++) {
            const uint32_t to = ring_open(r, at, 2 * TILE);
            bulk_load(to, gg + (panel * 2 * MB + block) * TILE, TILE, ring_bar(r, at));
            bulk_load(to + TILE, gg + (panel * 2 * MB + MB + block) * TILE, TILE, ring_bar(r, at));
        }
    return at;
}
template <int MB, int CB, int N>
IDA_DEV int fill_b(const mix_params *p, const mix_maps *maps, ring<N> r, const chunk_walk *w, int h, int g, int at) {
    const unsigned char *x = p->slots + (w->slot * p->vh + (int64_t)h * MB * CB) * MIX_SLOT + PANEL;
    for (int i = 0; i < MB * CB; i++, at++) bulk_load(ring_open(r, at, PANEL), x + i * MIX_SLOT, PANEL, ring_bar(r, at));
    const uint32_t to = ring_open(r, at, CB * TILE);
    for (int c = 0; c < CB; c++)
        tensor_load(to + (uint32_t)(c * TILE), &maps->v, MIX_TILE * c, g, w->token, ring_bar(r, at));
    return at + 1;
}
template <int MB, int CB, int N>
IDA_DEV void fill_role(const mix_params *p, const mix_maps *maps, ring<N> r, int64_t first, int count, int h, int g) {
    const int lag = wide_fwd<MB>::LAG;
    chunk_walk a = chunk_open(p, first), b = a;
    for (int n = 0, at = 0; n < count + lag; n++) {
        if (n < count) {
            at = fill_a<MB, CB>(p, maps, r, &a, h, g, at);
            chunk_next(p, &a);
        }
        if (n >= lag) {
            at = fill_b<MB, CB>(p, maps, r, &b, h, g, at);
            chunk_next(p, &b);
        }
    }
}

/* What a thread of a warpgroup knows: the ring and how far it has been seen filled, shared memory in units of 16 bytes (tiles.h). */
template <int N> struct out_seat {
    ring<N> r;
    int issued, warp, lane;
    uint32_t u;
};
/* S of a chunk, queued; q: the tiles of Q, behind which those of K lie. in_a: the first item of kind A. */
template <int CB, int N> IDA_DEV void out_scores(float (&s)[32], uint32_t (&q)[CB], out_seat<N> *me, int in_a) {
#pragma unroll
    for (int c = 0; c < CB; c++) q[c] = ring_tile(me->r, in_a + c, &me->issued, me->lane);
    touch(s);
    wg_fence();
#pragma unroll
    for (int c = 0; c < CB; c++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            mma_ss<0, 0>(s, desc_k(q[c], kk * K_STEP), desc_k(q[c], TILE + kk * K_STEP), c > 0 || kk > 0);
    wg_commit();
}
/* a = E (S F~ + Q X~_k), block by block; gives the items of kind A back, but for gg. */
template <int MB, int CB, int N>
IDA_DEV void out_readers(uint32_t (&a)[MB][32], float (&s)[32], const uint32_t (&q)[CB], const e_tables (&e)[MB],
                         out_seat<N> *me, int in_a) {
    const int in_x = in_a + CB;
    uint32_t low[16], x[CB];
#pragma unroll
    for (int b = 0; b < MB; b++) {
        float t[64];
#pragma unroll
        for (int c = 0; c < CB; c++) x[c] = ring_tile(me->r, in_x + b * CB + c, &me->issued, me->lane);
        touch(t);
        wg_fence();
#pragma unroll
        for (int c = 0; c < CB; c++)
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                mma_ss<0, 0>(t, desc_k(q[c], kk * K_STEP), desc_k(x[c], kk * K_STEP), c > 0 || kk > 0);
        wg_commit();
        if (b == 0) {
            wg_wait<1>();
            touch(s);
            pack_tril(low, s, me->warp, me->lane);
        }
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            mma_rs<1>(t, low + 4 * kk, desc_mn(me->u, wide_fwd<MB>::AT_F + b * TILE + kk * MN_STEP, MB * TILE), 1);
        wg_commit();
        wg_wait<0>();
        touch(t);
#pragma unroll
        for (int c = 0; c < CB; c++) {
            ring_give(me->r, in_x + b * CB + c, me->lane);
            if (b == MB - 1) ring_give(me->r, in_a + c, me->lane);
        }
        times_e_low(a[b], t, &e[b], 0, me->warp, me->lane, false);
    }
}
/* pairs = B by way of conj(c) = a gg. in_gg: the first item of gg, where it streams. */
template <int MB, int N>
IDA_DEV void out_gram(uint32_t (&pairs)[MB][32], const uint32_t (&a)[MB][32], const e_tables (&e)[MB], out_seat<N> *me, int in_gg) {
#pragma unroll
    for (int to = 0; to < MB; to++) {
        float t[64];
        uint32_t gg[2 * MB];
#pragma unroll
        for (int panel = 0; panel < 2 * MB; panel++)
            gg[panel] = MB == 1 ? me->u + (uint32_t)((wide_fwd<MB>::AT_GG + panel * PANEL) / 16)
                                : ring_tile(me->r, in_gg + to * 2 * MB + panel, &me->issued, me->lane);
        touch(t);
        wg_fence();
#pragma unroll
        for (int panel = 0; panel < 2 * MB; panel++)
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                mma_rs<0>(t, a[panel % MB] + 16 * (panel / MB) + 4 * kk, desc_k(gg[panel], kk * K_STEP), panel > 0 || kk > 0);
        wg_commit();
        wg_wait<0>();
        touch(t);
#pragma unroll
        for (int panel = 0; MB > 1 && panel < 2 * MB; panel++) ring_give(me->r, in_gg + to * 2 * MB + panel, me->lane);
        back_e(pairs[to], NULL, t, &e[to], 0, 0, 0, me->warp, me->lane, false);
    }
}
/* o = P V + B X~_v; s: P before its mask, queued by the caller; u_v: the tiles of V. */
template <int MB, int CB, int N>
IDA_DEV void out_columns(float (&o)[CB][32], float (&s)[32], const uint32_t (&pairs)[MB][32], const uint32_t (&x)[MB][CB],
                         uint32_t u_v, const out_seat<N> *me) {
    uint32_t low[16];
#pragma unroll
    for (int c = 0; c < CB; c++) touch(o[c]);
    wg_fence();
#pragma unroll
    for (int c = 0; c < CB; c++)
#pragma unroll
        for (int b = 0; b < MB; b++)
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                mma_rs<1>(o[c], pairs[b] + 4 * kk, desc_mn(x[b][c], kk * MN_STEP, TILE), b > 0 || kk > 0);
    wg_commit();
    wg_wait<1>();
    touch(s);
    pack_tril(low, s, me->warp, me->lane);
    wg_fence();
#pragma unroll
    for (int c = 0; c < CB; c++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++) mma_rs<1>(o[c], low + 4 * kk, desc_mn(u_v, c * TILE + kk * MN_STEP, TILE), 1);
    wg_commit();
    wg_wait<0>();
#pragma unroll
    for (int c = 0; c < CB; c++) touch(o[c]);
}

template <int MB, int CB, int N>
IDA_DEV void out_role(const mix_params *p, const unsigned char *smem, uint32_t base, ring<N> r, int64_t first, int count,
                      int64_t h, int wg, int thread) {
    typedef wide_fwd<MB> at;
    out_seat<N> me = {r, 0, thread / 32, thread % 32, base >> 4};
    const uint32_t place = frag_place(me.warp, me.lane);
    e_tables e[MB];
#pragma unroll
    for (int b = 0; b < MB; b++) {
        e[b].lo = reinterpret_cast<const float4 *>(smem + at::AT_E + b * 8192);
        e[b].hi = e[b].lo + 256;
    }
    chunk_walk now = chunk_open(p, first);
    for (int i = 0; i < wg; i++) chunk_next(p, &now);
    for (int n = wg; n < count; n += at::WORKERS) {
        const int in_a = items_a<MB, CB>(n), in_b = items_b<MB, CB>(n, count), in_v = in_b + MB * CB;
        uint32_t a[MB][32], pairs[MB][32], q[CB], x[MB][CB];
        float s[32], o[CB][32];
        out_scores<CB>(s, q, &me, in_a);
        out_readers<MB, CB>(a, s, q, e, &me, in_a);
        out_gram<MB>(pairs, a, e, &me, in_a + CB + MB * CB);
        touch(s); /* P before its mask */
        wg_fence();
#pragma unroll
        for (int b = 0; b < MB; b++)
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                mma_rs<0>(s, pairs[b] + 4 * kk, desc_k(me.u, at::AT_F + (kk / 4 * MB + b) * TILE + (kk % 4) * K_STEP),
                          b > 0 || kk > 0);
        wg_commit();
#pragma unroll
        for (int b = 0; b < MB; b++)
#pragma unroll
            for (int c = 0; c < CB; c++) x[b][c] = ring_tile(r, in_b + b * CB + c, &me.issued, me.lane);
        const uint32_t u_v = ring_tile(r, in_v, &me.issued, me.lane), v = u_v << 4;
        if (now.rows < MIX_CHUNK) {
            clear_rows<CB>(v, now.rows, thread, 128); /* P is zero there, but V need not be finite */
            bar_sync(1 + wg, 128);
        }
        out_columns<MB, CB>(o, s, pairs, x, u_v, &me);
#pragma unroll
        for (int i = 0; i < MB * CB; i++) ring_give(r, in_b + i, me.lane);
        /* V was read by this warpgroup alone: each warp turns its rows of the tile into o */
        bar_sync(1 + wg, 128);
        __nv_bfloat16 *to = (__nv_bfloat16 *)p->o + ((int64_t)now.token * p->h + h) * p->d;
#pragma unroll
        for (int c = 0; c < CB; c++) {
            uint32_t t[16];
            pack_acc(t, o[c]);
            st_packed(v + c * TILE, place, t);
            __syncwarp();
            store_rows<8>(to + MIX_TILE * c, p->h * p->d, v + c * TILE, 0, now.rows, (int)p->d - MIX_TILE * c, me.warp, me.lane);
        }
        fence_async();
        ring_give(r, in_v, me.lane);
        for (int i = 0; i < at::WORKERS; i++) chunk_next(p, &now);
    }
}
#endif

template <int MB, int CB> __global__ void __launch_bounds__(wide_fwd<MB>::THREADS, 1)
    interdomain_out__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef wide_fwd<MB> at;
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t run = blockIdx.x / p.h, h = blockIdx.x % p.h, g = h / p.per, first = chunk_run(&p, run);
    const int count = (int)(chunk_run(&p, run + 1) - first);
    const ring<at::STAGES> r = {base + at::AT_RING, base + at::AT_BARS};
    if (p.t.chunk[g] != MIX_CHUNK) return;
    copy16(smem + at::AT_F, p.t.f16 + g * 2 * MB * TILE, 2 * MB * TILE, thread, at::THREADS);
    if (at::GG_BYTES > 0) copy16(smem + at::AT_GG, p.t.gg16 + g * at::GG_BYTES, at::GG_BYTES, thread, at::THREADS);
    for (int b = 0; b < MB && thread < 256; b++) {
        float4 *lo = reinterpret_cast<float4 *>(smem + at::AT_E + b * 8192);
        e_fill(lo, lo + 256, p.t.pw + g * MIX_POWERS * 2 * p.mp + b * MIX_TILE, (int)p.mp, thread);
    }
    if (thread == 0) ring_init(r, 4);
    fence_async();
    __syncthreads();
    if (wg == at::WORKERS) {
        regs_less<24>();
        if (thread == 128 * at::WORKERS) fill_role<MB, CB>(&p, &maps, r, first, count, (int)h, (int)g);
    } else {
        regs_more<at::REGS>();
        out_role<MB, CB>(&p, smem, base, r, first, count, h, wg, thread % 128);
    }
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

template <int MB, int CB> static void launch(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    typedef wide_fwd<MB> at;
    cudaFuncSetAttribute(interdomain_out__wide<MB, CB>, cudaFuncAttributeMaxDynamicSharedMemorySize, at::BYTES);
    interdomain_out__wide<MB, CB><<<(unsigned)(p->n_chunk_runs * p->h), at::THREADS, at::BYTES, stream>>>(*p, *maps);
}

cudaError_t mix_launch_out_wide(const mix_params *p, int64_t n_tokens, cudaStream_t stream) {
    mix_maps maps;
    const cudaError_t status = mix_make_maps(&maps, p, n_tokens);
    if (status != cudaSuccess) return status;
    if (p->mb == 1) launch<1, 2>(p, &maps, stream);
    else if (p->cb == 1) launch<2, 1>(p, &maps, stream);
    else launch<2, 2>(p, &maps, stream);
    return cudaGetLastError();
}
