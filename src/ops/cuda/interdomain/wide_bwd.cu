/* interdomain/wide_bwd.cu - the tuned backward of wide heads (mixer.cuh): that of interdomain/bwd.cu in two stages, with X~
 * before each chunk in slots (interdomain_states__tile64) and, from stage to stage, links in device memory.
 *   chains, chunks in any order:  S, a, conj(c), B, P and dP, dconj(c), da, dT, dS; dG, dP^T B + S^T dT of dF~, moments of
 *     readers and writers. Links of a chunk and head: for the keys dT and dS, for the values B and P.
 *   scan (interdomain/wide_scan.cu), from the last chunk to the first:  what follows from dX^, the gradient of the state; dQ.
 * One block of modes: one kernel does the chains. Two: there is no room for both, and three kernels do a third each, with what is
 * in shared memory between the thirds laid down in p->halves: interdomain_halves__wide to a, interdomain_gram__wide to B,
 * interdomain_scores__wide the rest; the first two take a block of modes.
 * Invariant: between two barriers no tile is both written and read by different warps. */
#include "ops/cuda/interdomain/wide_bwd.cuh"

/* Warpgroup 0 does the column of S, warpgroup 1 that of dP (interdomain/bwd.cu), with tiles `SIDE` bytes further: dO, V and X_v
 * where the other has Q, K and X_k. */
template <int CB> struct chain_map {
    enum {
        F = 0,
        GG = F + 2 * TILE,
        E = GG + 2 * PANEL,
        MOMENT = E + 8192, /* 8 warps x 128 floats */
        SIDES = MOMENT + 4096,
        Q = SIDES,
        K = Q + CB * TILE,
        X = K + CB * TILE,
        LEFT = X + (CB - 1) * PANEL, /* the last of X; once it is read a, then B | dconj(c), then dT */
        LOW = LEFT + 2 * TILE,       /* low bytes of a | dconj(c), then P | dS. Right behind B | dT: a link is one copy */
        S = LOW + TILE,              /* S | dP */
        SIDE = S + TILE - SIDES,
        BAR = SIDES + 2 * SIDE, /* the last of X; all other tiles */
        BYTES = BAR + 64 + 1024
    };
};
/* What a third leaves of a block of modes on one side, in the order of chain_map: LEFT, LOW, S. */
enum { HALF = 4 * TILE };
static_assert(2 * 2 * HALF == mix_halves_bytes(2), "mixer.cuh gives a chunk and head its halves");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
IDA_DEV unsigned char *half_at(const mix_params *p, int slot, int64_t h, int b, int side) {
    return p->halves + (((slot * p->h + h) * 2 + b) * 2 + side) * HALF;
}

/* ---- loads, by one thread; v: of the first block of columns */
template <int CB> IDA_DEV void load_tiles(const mix_params *p, const mix_maps *maps, uint32_t base, int h, int g, int token,
                                          int slot, int64_t v) {
    typedef chain_map<CB> at;
    const uint32_t bar = base + at::BAR + 8;
    mbar_expect(bar, 4 * CB * TILE + 2 * (CB - 1) * PANEL);
#pragma unroll
    for (int c = 0; c < CB; c++) {
        tensor_load(base + at::Q + c * TILE, &maps->q, c * MIX_TILE, h, token, bar);
        tensor_load(base + at::K + c * TILE, &maps->k, c * MIX_TILE, g, token, bar);
        tensor_load(base + at::SIDE + at::Q + c * TILE, &maps->dout, c * MIX_TILE, h, token, bar);
        tensor_load(base + at::SIDE + at::K + c * TILE, &maps->v, c * MIX_TILE, g, token, bar);
    }
#pragma unroll
    for (int c = 0; c < CB - 1; c++)
        for (int side = 0; side < 2; side++)
            bulk_load(base + side * at::SIDE + at::X + c * PANEL, slot_at(p, slot, v + c, side), PANEL, bar);
}
template <int CB> IDA_DEV void load_last(const mix_params *p, uint32_t base, int slot, int64_t v) {
    typedef chain_map<CB> at;
    mbar_expect(base + at::BAR, 2 * PANEL);
    for (int side = 0; side < 2; side++)
        bulk_load(base + side * at::SIDE + at::LEFT, slot_at(p, slot, v + CB - 1, side), PANEL, base + at::BAR);
}

/* ---- the chains */
/* S, a | dP, dconj(c), their low bytes. Waits for the last of X; all else is there. */
template <int CB> IDA_DEV void chain_first(const chain *c, const e_tables *e, int phase) {
    typedef chain_map<CB> at;
    float s[32], t[64];
    uint32_t low[16], pairs[32];
    touch(s);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4 * CB; kk++) {
        const int of = (kk / 4) * TILE + (kk % 4) * K_STEP;
        mma_ss<0, 0>(s, desc_k(c->u_own, at::Q + of), desc_k(c->u_own, at::K + of), kk > 0);
    }
    wg_commit();
    mbar_wait(c->base + at::BAR, phase);
    touch(t);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4 * CB; kk++)
        mma_ss<0, 0>(t, desc_k(c->u_own, at::Q + (kk / 4) * TILE + (kk % 4) * K_STEP),
                     desc_k(c->u_own, at::X + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
    wg_commit();
    wg_wait<1>();
    touch(s);
    pack_tril(low, s, c->warp, c->lane);
    st_packed(c->own + at::S, c->place, low);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) mma_rs<1>(t, low + 4 * kk, desc_mn(c->u, at::F + kk * MN_STEP, TILE), 1);
    wg_commit();
    wg_wait<0>();
    touch(t);
    times_e_low(pairs, t, e, c->own + at::LOW, c->warp, c->lane, true);
    bar_sync(2 + c->wg, 128); /* X is read */
    st_packed(c->own + at::LEFT, c->place, pairs);
    st_packed(c->own + at::LEFT + TILE, c->place, pairs + 16);
    fence_async();
}

/* df (re | im columns) += dP^T B + S^T dT */
IDA_DEV void reader_grad(float (&df)[32], const chain *c, int left, int s, int side) {
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        mma_ss<1, 1>(df, desc_mn(c->u, side + s + kk * MN_STEP, TILE), desc_mn(c->u_tile, left + kk * MN_STEP, TILE), 1);
        mma_ss<1, 1>(df, desc_mn(c->u, s + kk * MN_STEP, TILE), desc_mn(c->u_tile, side + left + kk * MN_STEP, TILE), 1);
    }
}
/* Moments of the warps, [8][128] re | im, to those of a record. Before it a barrier. */
IDA_DEV void store_moments(float *mom, int64_t mp, const float *of_warps, int thread) {
    if (thread >= 128) return;
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += of_warps[i * 128 + thread];
    mom[thread / 64 * mp + thread % 64] = sum;
}

/* What a CTA walks: a run of chunks of head h (group g, v: its first virtual head here). left: chunks to go. */
typedef struct chain_run {
    int64_t h, g, v, left;
    chunk_walk next;
    int phase;
} chain_run;
template <int CB>
IDA_DEV chain_run chain_open(const mix_params *p, const mix_maps *maps, uint32_t base, int run, int64_t h, int64_t v, int thread) {
    chain_run r;
    r.h = h, r.g = h / p->per, r.v = v, r.left = chunk_run(p, run + 1) - chunk_run(p, run), r.phase = 0;
    r.next = chunk_open(p, chunk_run(p, run));
    if (thread == 0) {
        load_tiles<CB>(p, maps, base, (int)r.h, (int)r.g, r.next.token, r.next.slot, r.v);
        load_last<CB>(p, base, r.next.slot, r.v);
    }
    return r;
}
/* A chunk as far as a | dconj(c), and the tiles of the next one sent for. Returns its slot. */
template <int CB>
IDA_DEV int chain_begin(chain_run *r, const mix_params *p, const mix_maps *maps, chain *c, const e_tables *e, int thread) {
    typedef chain_map<CB> at;
    const int rows = r->next.rows, slot = r->next.slot;
    if (r->left > 1) chunk_next(p, &r->next);
    chain_opaque(c);
    mbar_wait(c->base + at::BAR + 8, r->phase);
    if (rows < MIX_CHUNK) {
        for (int side = 0; side < 2; side++) clear_rows<2 * CB>(c->base + side * at::SIDE + at::Q, rows, thread, THREADS);
        bar_sync(1, THREADS);
    }
    chain_first<CB>(c, e, r->phase);
    bar_sync(1, THREADS);
    if (r->left > 1 && thread == 0) {
        fence_async(); /* the rows cleared */
        load_tiles<CB>(p, maps, c->base, (int)r->h, (int)r->g, r->next.token, r->next.slot, r->v);
        for (int side = 0; side < 2; side++) bulk_prefetch(slot_at(p, r->next.slot, r->v + CB - 1, side), PANEL);
    }
    return slot;
}
/* pairs = B | dT by way of conj(c) | da; dG, and the moments of the warp. */
template <int CB>
IDA_DEV void chain_gram(uint32_t (&pairs)[32], float (&dg)[32], float *moment, const chain *c, const e_tables *e, bool hermitian) {
    typedef chain_map<CB> at;
    float t[64];
    uint32_t signed_a[16];
    touch(t);
    touch(dg);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 8; kk++)
        mma_ss<0, 0>(t, desc_k(c->u_own, at::LEFT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                     desc_k(c->u, at::GG + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
    wg_commit();
    gram_grad(dg, signed_a, c, at::LEFT, at::SIDE + at::LEFT, hermitian);
    wg_commit();
    wg_wait<1>();
    touch(t);
    back_e(pairs, moment, t, e, c->opp + at::LEFT, c->opp + at::LOW, c->place, c->warp, c->lane, true);
    wg_wait<0>();
    touch(dg);
}
/* P | dS from pairs = B | dT, and dF~. */
template <int CB> IDA_DEV void chain_last(const uint32_t (&pairs)[32], float (&df)[32], const chain *c) {
    typedef chain_map<CB> at;
    float s[32];
    uint32_t low[16];
    touch(s);
    touch(df);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 8; kk++)
        mma_rs<0>(s, pairs + 4 * kk, desc_k(c->u, at::F + (kk / 4) * TILE + (kk % 4) * K_STEP), kk > 0);
    wg_commit();
    reader_grad(df, c, at::LEFT, at::S, at::SIDE);
    wg_commit();
    wg_wait<1>();
    touch(s);
    pack_tril(low, s, c->warp, c->lane);
    st_packed(c->own + at::LOW, c->place, low);
    fence_async();
    wg_wait<0>();
    touch(df);
}

/* One block of modes: the whole of a chunk's chains. */
template <int CB>
IDA_DEV void chains_task(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int run, int64_t h, int wg,
                         int thread) {
    typedef chain_map<CB> at;
    const float4 *tables = reinterpret_cast<const float4 *>(smem + at::E);
    const e_tables e = {tables, tables + 256};
    float *moments = reinterpret_cast<float *>(smem + at::MOMENT);
    chain c = chain_at(base, at::SIDE, wg, thread);
    float df[32], dg[32];
#pragma unroll
    for (int i = 0; i < 32; i++) df[i] = dg[i] = 0;

    chain_run r = chain_open<CB>(p, maps, base, run, h, h * CB, thread);
    for (; r.left > 0; r.left--, r.phase ^= 1) {
        const int slot = chain_begin<CB>(&r, p, maps, &c, &e, thread);
        uint32_t pairs[32];
        chain_gram<CB>(pairs, dg, moments + (thread / 32) * 128, &c, &e, p->hermitian);
        bar_sync(1, THREADS);
        st_packed(c.own + at::LEFT, c.place, pairs);
        st_packed(c.own + at::LEFT + TILE, c.place, pairs + 16);
        fence_async();
        bar_sync(1, THREADS);
        chain_last<CB>(pairs, df, &c);
        bar_sync(1, THREADS);
        if (thread == 0) {
            bulk_store(link_at<1>(p, slot, h, 1), base + at::LEFT, wide_link<1>::BYTES);
            bulk_store(link_at<1>(p, slot, h, 0), base + at::SIDE + at::LEFT, wide_link<1>::BYTES);
            bulk_commit();
            bulk_wait_read<0>();
            if (r.left > 1) load_last<CB>(p, base, r.next.slot, r.v);
        }
    }
    if (thread == 0) bulk_wait();

    const spot here = chain_spot(&c);
    float *record = p->records + (run * p->h + h) * mix_record_floats(MIX_TILE), *to_dg = record + 64 * 128;
    store_acc(record + 64 * wg, 128, df, 64, 64, &here);
    store_gram(to_dg + wg * 4096, 64, dg, &c, p->hermitian);
    bar_sync(1, THREADS);
    store_moments(to_dg + 2 * 4096, MIX_TILE, moments, thread);
}

/* Two blocks of modes, first third: a | dconj(c) of block b, laid down with S | dP. */
template <int CB>
IDA_DEV void halves_task(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int run, int64_t h, int b,
                         int wg, int thread) {
    typedef chain_map<CB> at;
    const float4 *tables = reinterpret_cast<const float4 *>(smem + at::E);
    const e_tables e = {tables, tables + 256};
    chain c = chain_at(base, at::SIDE, wg, thread);
    chain_run r = chain_open<CB>(p, maps, base, run, h, (h * 2 + b) * CB, thread);
    for (; r.left > 0; r.left--, r.phase ^= 1) {
        const int slot = chain_begin<CB>(&r, p, maps, &c, &e, thread);
        if (thread == 0) {
            bulk_store(half_at(p, slot, h, b, 0), base + at::LEFT, HALF);
            bulk_store(half_at(p, slot, h, b, 1), base + at::SIDE + at::LEFT, HALF);
            bulk_commit();
            bulk_wait_read<0>();
            if (r.left > 1) load_last<CB>(p, base, r.next.slot, r.v);
        }
    }
    if (thread == 0) bulk_wait();
}

/* Powers of modes [m0, m0 + 64) of the group's mp, and the barriers, by all threads. */
template <int CB>
IDA_DEV void set_up(const mix_params *p, unsigned char *smem, uint32_t base, int64_t g, int m0, int mp, int thread) {
    typedef chain_map<CB> at;
    for (int i = thread; i < 1024; i += THREADS) reinterpret_cast<float *>(smem + at::MOMENT)[i] = 0;
    float4 *tables = reinterpret_cast<float4 *>(smem + at::E);
    e_fill(tables, tables + 256, p->t.pw + g * MIX_POWERS * 2 * mp + m0, mp, thread);
    if (thread == 0)
        for (int i = 0; i < 2; i++) mbar_init(base + at::BAR + 8 * i, 1);
    fence_async();
    __syncthreads();
}
#endif

/* A CTA is a run of chunks and a head. */
template <int CB> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_chains__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef chain_map<CB> at;
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    for (int i = 0; i < 2; i++) copy16(smem + at::F + i * TILE, p.t.f16 + (g * 2 + i) * TILE, TILE, thread, THREADS);
    copy16(smem + at::GG, p.t.gg16 + g * 2 * PANEL, 2 * PANEL, thread, THREADS);
    set_up<CB>(&p, smem, base, g, 0, MIX_TILE, thread);
    chains_task<CB>(&p, &maps, smem, base, run, h, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}
/* A CTA is a run of chunks, a head, and one of two blocks of modes. */
template <int CB> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_halves__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef chain_map<CB> at;
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / (p.h * 2)), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x / 2 % p.h, g = h / p.per;
    const int b = (int)(blockIdx.x % 2);
    if (p.t.chunk[g] != MIX_CHUNK) return;
    for (int i = 0; i < 2; i++) copy16(smem + at::F + i * TILE, p.t.f16 + ((g * 2 + i) * 2 + b) * TILE, TILE, thread, THREADS);
    set_up<CB>(&p, smem, base, g, b * MIX_TILE, 2 * MIX_TILE, thread);
    halves_task<CB>(&p, &maps, smem, base, run, h, b, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

/* ---- two blocks of modes, second third: conj(c), B | da, dT of block b from both blocks of a | dconj(c) */
enum {
    GR_GG = 0, /* of conj(c)_b: a panel for each 64 columns of a, re of both blocks, then im */
    GR_E = GR_GG + 4 * PANEL,
    GR_MOMENT = GR_E + 8192,
    GR_LEFT = GR_MOMENT + 4096, /* of block b, as in chain_map */
    GR_LOW = GR_LEFT + 2 * TILE,
    GR_S = GR_LOW + TILE,
    GR_OTHER = GR_S + TILE, /* a | dconj(c) of the other block */
    GR_SIDE = GR_OTHER + 2 * TILE - GR_LEFT,
    GR_BAR = GR_LEFT + 2 * GR_SIDE,
    GR_BYTES = GR_BAR + 64 + 1024
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
IDA_DEV void load_halves(const mix_params *p, uint32_t base, int slot, int64_t h, int b) {
    const uint32_t bar = base + GR_BAR;
    mbar_expect(bar, 2 * GR_SIDE);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        bulk_load(base + side * GR_SIDE + GR_LEFT, half_at(p, slot, h, b, side), HALF, bar);
        bulk_load(base + side * GR_SIDE + GR_OTHER, half_at(p, slot, h, 1 - b, side), 2 * TILE, bar);
    }
}
IDA_DEV void gram_task(const mix_params *p, unsigned char *smem, uint32_t base, int run, int64_t h, int b, int wg, int thread) {
    const float4 *tables = reinterpret_cast<const float4 *>(smem + GR_E);
    const e_tables e = {tables, tables + 256};
    float *moments = reinterpret_cast<float *>(smem + GR_MOMENT);
    chain c = chain_at(base, GR_SIDE, wg, thread);
    uint32_t u_gg = c.u + (uint32_t)(b * (PANEL / 16)), u_other = c.u + (uint32_t)((1 - b) * (PANEL / 16));
    float df[32], dg[32], dg_other[32]; /* dg_other: of the other block of a */
#pragma unroll
    for (int i = 0; i < 32; i++) df[i] = dg[i] = dg_other[i] = 0;
    int phase = 0;
    int64_t left = chunk_run(p, run + 1) - chunk_run(p, run);
    chunk_walk next = chunk_open(p, chunk_run(p, run));
    if (thread == 0) load_halves(p, base, next.slot, h, b);
    for (; left > 0; left--, phase ^= 1) {
        const int slot = next.slot;
        if (left > 1) chunk_next(p, &next);
        chain_opaque(&c), opaque(u_gg), opaque(u_other);
        mbar_wait(base + GR_BAR, phase);
        uint32_t pairs[32];
        {
            float t[64];
            uint32_t signed_a[16], signed_other[16];
            touch(t);
            touch(dg);
            touch(dg_other);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 8; kk++) {
                const int a = (kk / 4) * TILE + (kk % 4) * K_STEP, gg = GR_GG + (kk / 4) * 2 * PANEL + (kk % 4) * K_STEP;
                mma_ss<0, 0>(t, desc_k(c.u_own, GR_LEFT + a), desc_k(u_gg, gg), kk > 0);
                mma_ss<0, 0>(t, desc_k(c.u_own, GR_OTHER + a), desc_k(u_other, gg), 1);
            }
            wg_commit();
            gram_grad(dg, signed_a, &c, GR_LEFT, GR_SIDE + GR_LEFT, p->hermitian);
            gram_grad(dg_other, signed_other, &c, GR_OTHER, GR_SIDE + GR_LEFT, p->hermitian);
            wg_commit();
            wg_wait<1>();
            touch(t);
            back_e(pairs, moments + (thread / 32) * 128, t, &e, c.opp + GR_LEFT, c.opp + GR_LOW, c.place, c.warp, c.lane, true);
            wg_wait<0>();
            touch(dg);
            touch(dg_other);
        }
        bar_sync(1, THREADS);
        st_packed(c.own + GR_LEFT, c.place, pairs);
        st_packed(c.own + GR_LEFT + TILE, c.place, pairs + 16);
        fence_async();
        bar_sync(1, THREADS);
        if (thread == 0) {
            bulk_store(link_at<2>(p, slot, h, 1) + b * 2 * TILE, base + GR_LEFT, 2 * TILE);
            bulk_store(link_at<2>(p, slot, h, 0) + b * 2 * TILE, base + GR_SIDE + GR_LEFT, 2 * TILE);
            bulk_commit();
        }
        touch(df);
        wg_fence();
        reader_grad(df, &c, GR_LEFT, GR_S, GR_SIDE);
        wg_commit();
        wg_wait<0>();
        touch(df);
        bar_sync(1, THREADS);
        if (thread == 0) {
            bulk_wait_read<0>();
            fence_async();
            if (left > 1) load_halves(p, base, next.slot, h, b);
        }
    }
    if (thread == 0) bulk_wait();
    const int64_t mp = 2 * MIX_TILE, m0 = b * MIX_TILE, other = (1 - b) * MIX_TILE;
    const spot here = chain_spot(&c);
    float *record = p->records + (run * p->h + h) * mix_record_floats(mp), *to_dg = record + 64 * 2 * mp;
    store_acc(record + wg * mp + m0, 2 * mp, df, 64, 64, &here);
    store_gram(to_dg + (wg * mp + m0) * mp + m0, mp, dg, &c, p->hermitian);
    store_gram(to_dg + (wg * mp + other) * mp + m0, mp, dg_other, &c, p->hermitian);
    bar_sync(1, THREADS);
    store_moments(to_dg + 2 * mp * mp + m0, mp, moments, thread);
}
#endif

__global__ void __launch_bounds__(THREADS, 1) interdomain_gram__wide(const __grid_constant__ mix_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / (p.h * 2)), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x / 2 % p.h, g = h / p.per;
    const int b = (int)(blockIdx.x % 2);
    if (p.t.chunk[g] != MIX_CHUNK) return;
    for (int i = 0; i < 8; i++) /* rows re, im of block b of each panel */
        copy16(smem + GR_GG + i * TILE, p.t.gg16 + (g * 16 + i / 2 * 4 + i % 2 * 2 + b) * TILE, TILE, thread, THREADS);
    for (int i = thread; i < 1024; i += THREADS) reinterpret_cast<float *>(smem + GR_MOMENT)[i] = 0;
    float4 *tables = reinterpret_cast<float4 *>(smem + GR_E);
    e_fill(tables, tables + 256, p.t.pw + g * MIX_POWERS * 256 + b * MIX_TILE, 2 * MIX_TILE, thread);
    if (thread == 0) mbar_init(base + GR_BAR, 1);
    fence_async();
    __syncthreads();
    gram_task(&p, smem, base, run, h, b, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

/* ---- two blocks of modes, last third: P | dS, two stages */
enum {
    SC_F = 0, /* re of both blocks, im of both */
    SC_SIDES = SC_F + 4 * TILE,
    /* of a stage, B | dT (re, im of a block, then of the other), then P | dS */
    SC_LOW = 4 * TILE,
    SC_SIDE = SC_LOW + TILE,
    SC_BAR = SC_SIDES + 4 * SC_SIDE,
    SC_BYTES = SC_BAR + 64 + 1024
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
IDA_DEV void load_links(const mix_params *p, uint32_t base, int stage, int slot, int64_t h) {
    const uint32_t bar = base + SC_BAR + 8 * (uint32_t)stage, to = base + SC_SIDES + (uint32_t)(stage * 2 * SC_SIDE);
    mbar_expect(bar, 8 * TILE);
    for (int side = 0; side < 2; side++) bulk_load(to + side * SC_SIDE, link_at<2>(p, slot, h, 1 - side), 4 * TILE, bar);
}
IDA_DEV void scores_task(const mix_params *p, uint32_t base, int run, int64_t h, int wg, int thread) {
    const int warp = thread / 32 % 4, lane = thread % 32;
    const uint32_t place = frag_place(warp, lane), u = base >> 4;
    const int64_t count = chunk_run(p, run + 1) - chunk_run(p, run);
    chunk_walk next = chunk_open(p, chunk_run(p, run));
    if (thread == 0) load_links(p, base, 0, next.slot, h);
    for (int64_t n = 0; n < count; n++) {
        const int stage = (int)(n & 1), slot = next.slot;
        const uint32_t own = base + SC_SIDES + (uint32_t)((stage * 2 + wg) * SC_SIDE), u_own = own >> 4;
        if (n + 1 < count) {
            chunk_next(p, &next);
            if (thread == 0) load_links(p, base, 1 - stage, next.slot, h);
        }
        mbar_wait(base + SC_BAR + 8 * (uint32_t)stage, (int)(n >> 1 & 1));
        float s[32];
        uint32_t low[16];
        touch(s);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 16; kk++)
            mma_ss<0, 0>(s, desc_k(u_own, (kk / 4) * TILE + (kk % 4) * K_STEP),
                         desc_k(u, SC_F + (kk / 4 % 2 * 2 + kk / 8) * TILE + (kk % 4) * K_STEP), kk > 0);
        wg_commit();
        wg_wait<0>();
        touch(s);
        pack_tril(low, s, warp, lane);
        st_packed(own + SC_LOW, place, low);
        fence_async();
        bar_sync(1, THREADS);
        if (thread == 0) {
            for (int side = 0; side < 2; side++)
                bulk_store(link_at<2>(p, slot, h, 1 - side) + wide_link<2>::LOW,
                           base + SC_SIDES + (uint32_t)((stage * 2 + side) * SC_SIDE) + SC_LOW, TILE);
            bulk_commit();
            bulk_wait_read<1>(); /* of the other stage, which is written next */
        }
        bar_sync(1, THREADS);
    }
    if (thread == 0) bulk_wait();
}
#endif

__global__ void __launch_bounds__(THREADS, 1) interdomain_scores__wide(const __grid_constant__ mix_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    copy16(smem + SC_F, p.t.f16 + g * 4 * TILE, 4 * TILE, thread, THREADS);
    if (thread == 0)
        for (int i = 0; i < 2; i++) mbar_init(base + SC_BAR + 8 * i, 1);
    fence_async();
    __syncthreads();
    scores_task(&p, base, run, h, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

template <int CB> static void launch_chains(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    const int bytes = chain_map<CB>::BYTES;
    cudaFuncSetAttribute(interdomain_chains__wide<CB>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    interdomain_chains__wide<CB><<<(unsigned)(p->n_chunk_runs * p->h), THREADS, bytes, stream>>>(*p, *maps);
}
template <int CB> static void launch_thirds(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    const unsigned ctas = (unsigned)(p->n_chunk_runs * p->h);
    const int bytes = chain_map<CB>::BYTES;
    cudaFuncSetAttribute(interdomain_halves__wide<CB>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    interdomain_halves__wide<CB><<<ctas * 2, THREADS, bytes, stream>>>(*p, *maps);
    cudaFuncSetAttribute(interdomain_gram__wide, cudaFuncAttributeMaxDynamicSharedMemorySize, GR_BYTES);
    interdomain_gram__wide<<<ctas * 2, THREADS, GR_BYTES, stream>>>(*p);
    cudaFuncSetAttribute(interdomain_scores__wide, cudaFuncAttributeMaxDynamicSharedMemorySize, SC_BYTES);
    interdomain_scores__wide<<<ctas, THREADS, SC_BYTES, stream>>>(*p);
}

cudaError_t mix_launch_bwd_wide(const mix_params *p, int64_t n, cudaStream_t stream) {
    mix_maps maps;
    const cudaError_t status = mix_make_maps(&maps, p, n);
    if (status != cudaSuccess) return status;
    if (p->mb == 1) launch_chains<2>(p, &maps, stream);
    else if (p->cb == 1) launch_thirds<1>(p, &maps, stream);
    else launch_thirds<2>(p, &maps, stream);
    mix_launch_scan_wide(p, &maps, stream);
    return cudaGetLastError();
}
