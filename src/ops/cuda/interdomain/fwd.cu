/* interdomain/fwd.cu - the tuned forward of the mixer core, narrow heads, and the pass that lays down the states for what takes
 * chunks by themselves: the backward, and both ways of wide heads (mixer.cuh).
 *
 * A CTA walks the chunks of a task. One warpgroup carries the state in registers and publishes X~ before each chunk in bf16;
 * two others take the chunks in turn and run the whole chain S, a, c, P, o from accumulator to operand without leaving
 * registers; a fourth loads the tiles. Invariant: chunk n of a task uses tile stage n % STAGES and state buffer n % 2; who gives
 * a stage back (EMPTY) has waited for it (FULL). */
#include "ops/cuda/interdomain/mixer.cuh"
#include "ops/cuda/tiles.h"

enum { STAGES = 3, TILE = 8192, STAGE = 3 * TILE, PANEL = 16384 }; /* PANEL: 128 rows */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* The chunks of a task in order, part by part. Empty sequences give one visit with rows = 0. first, last: of the part. */
typedef struct walk {
    int at, at_end, token, end, rows;
    bool first, last;
} walk;

IDA_DEV void walk_enter(walk *w, const mix_part *list) {
    if (w->at >= w->at_end) return;
    w->token = list[w->at].begin;
    w->end = list[w->at].end;
    w->first = true;
}
IDA_DEV void walk_size(walk *w) {
    const int left = w->end - w->token;
    w->rows = left < MIX_CHUNK ? left : MIX_CHUNK;
    w->last = left <= MIX_CHUNK;
}
IDA_DEV walk walk_list(const mix_part *list, int at, int at_end) {
    walk w;
    w.at = at, w.at_end = at_end;
    w.token = w.end = 0;
    walk_enter(&w, list);
    walk_size(&w);
    return w;
}
IDA_DEV walk walk_open(const mix_params *p, int run) {
    return walk_list(p->parts, (int)p->part_run0[run], (int)p->part_run0[run + 1]);
}
IDA_DEV bool walk_on(const walk *w) { return w->at < w->at_end; }
IDA_DEV void walk_next(walk *w, const mix_part *list) {
    if (w->last) {
        w->at++;
        walk_enter(w, list);
    } else {
        w->token += MIX_CHUNK;
        w->first = false;
    }
    walk_size(w);
}

/* The state of a warpgroup: re[], im[] hold rows m of [keys 0..63 | values 64..127]. */
typedef struct wg_state {
    float re[64], im[64];
} wg_state;

/* A thread's factors: rows row and row + 8, re then im. lam: a row of powers of mp modes, from the first of the state's. */
IDA_DEV float4 factors(const float *lam, int mp, int row) {
    return make_float4(lam[row], lam[row + 8], lam[mp + row], lam[mp + row + 8]);
}
IDA_DEV void state_scale(wg_state *x, float4 lam) {
    const float r0 = lam.x, r1 = lam.y, i0 = lam.z, i1 = lam.w;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const float lr = i & 2 ? r1 : r0, li = i & 2 ? i1 : i0, a = x->re[i], b = x->im[i];
        x->re[i] = a * lr - b * li;
        x->im[i] = a * li + b * lr;
    }
}

/* Column of accumulator element i in the state array, -1 outside. */
IDA_DEV int state_col(int i, int lane, const mix_params *p, int c0) {
    const int col = 8 * (i / 4) + 2 * (lane & 3) + (i & 1);
    if (col < 64) return c0 + col < p->r ? c0 + col : -1;
    return c0 + col - 64 < p->d ? (int)p->r + c0 + col - 64 : -1;
}
IDA_DEV void state_load(wg_state *x, const mix_params *p, int64_t s, const mix_vhead &of, int row, int lane) {
    const int64_t width = p->r + p->d, at = mix_state_at(&p->state_in, s, of.g, p->m * width);
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int m = of.m0 + row + (i & 2 ? 8 : 0), col = state_col(i, lane, p, of.c0);
        const bool valid = p->state_in.re && m < p->m && col >= 0;
        x->re[i] = valid ? p->state_in.re[at + m * width + col] : 0.0f;
        x->im[i] = valid ? p->state_in.im[at + m * width + col] : 0.0f;
    }
}
IDA_DEV void state_store(const wg_state *x, const mix_params *p, int64_t s, const mix_vhead &of, int row, int lane) {
    const int64_t width = p->r + p->d, at = mix_state_at(&p->state_out, s, of.g, p->m * width);
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int m = of.m0 + row + (i & 2 ? 8 : 0), col = state_col(i, lane, p, of.c0);
        if (m >= p->m || col < 0) continue;
        p->state_out.re[at + m * width + col] = x->re[i];
        p->state_out.im[at + m * width + col] = x->im[i];
    }
}
/* X~ before a part (or piece): the caller's state (scaled when tokens follow), or what the parts before it left; from NULL: zero
 * instead of that. */
IDA_DEV void state_enter(wg_state *x, const mix_params *p, const mix_part &part, const float *from, const mix_vhead &of,
                         const float *pw, int mp, int row, int thread) {
    if (part.index == 0) {
        state_load(x, p, part.seq, of, row, thread % 32);
        if (part.end > part.begin) state_scale(x, factors(pw + (MIX_CHUNK / 2 + 1 + MIX_CHUNK / 2) * 2 * mp, mp, row));
        return;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        x->re[i] = from ? from[i * 128 + thread] : 0.0f;
        x->im[i] = from ? from[(64 + i) * 128 + thread] : 0.0f;
    }
}
IDA_DEV const float *x_before(const mix_params *p, int at, int64_t v) { return p->x_part + (at * p->vh + v) * MIX_STATE; }
/* One half of the bf16 image: 0 keys, 1 values. */
template <int HALF> IDA_DEV void state_publish(uint32_t to, const wg_state *x, uint32_t place) {
    uint32_t p[16];
#pragma unroll
    for (int i = 0; i < 16; i++) p[i] = bf16_pair(x->re[32 * HALF + 2 * i], x->re[32 * HALF + 2 * i + 1]);
    st_packed(to + HALF * PANEL, place, p);
#pragma unroll
    for (int i = 0; i < 16; i++) p[i] = bf16_pair(x->im[32 * HALF + 2 * i], x->im[32 * HALF + 2 * i + 1]);
    st_packed(to + HALF * PANEL + TILE, place, p);
}
/* X^ = X~ + F~^T Z. f, kv: byte offsets from u; K and V are neighbouring tiles. */
IDA_DEV void state_add(wg_state *x, uint32_t u, int f, int kv) {
    touch(x->re);
    touch(x->im);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        mma_ss<1, 1>(x->re, desc_mn(u, f + kk * MN_STEP, TILE), desc_mn(u, kv + kk * MN_STEP, TILE), 1);
        mma_ss<1, 1>(x->im, desc_mn(u, f + TILE + kk * MN_STEP, TILE), desc_mn(u, kv + kk * MN_STEP, TILE), 1);
    }
    wg_commit();
    wg_wait<0>();
    touch(x->re);
    touch(x->im);
}

#endif

enum {
    FWD_F = 0,
    FWD_GG = FWD_F + 2 * TILE,
    FWD_E = FWD_GG + 2 * PANEL,
    FWD_X = FWD_E + 32768,
    FWD_STAGES = FWD_X + 2 * MIX_SLOT,
    FWD_BARS = FWD_STAGES + STAGES * STAGE,
    FWD_BYTES = FWD_BARS + 128 + 1024,
    FULL = 0,
    EMPTY = 8 * STAGES,
    X_FULL = 16 * STAGES,
    X_EMPTY = X_FULL + 16
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* A warp fills one kind of tile, chunk after chunk: which = 0 K, 1 V, 2 Q. Reports each chunk when its bytes have landed; two
 * are on their way at a time. */
IDA_DEV void load_role(const mix_params *p, uint32_t base, int stage_bytes, uint32_t bars, const mix_part *list, walk now,
                       const mix_vhead &of, int which, int lane) {
    const int64_t heads = which == 2 ? p->h : p->g, width = which == 1 ? p->d : p->r, stride = heads * width;
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)(which == 0   ? p->k
                                                        : which == 1 ? p->v
                                                                     : p->q) +
                                (which == 2 ? of.h : of.g) * width + of.c0;
    int n = 0, told = 0;
    for (; walk_on(&now); n++, walk_next(&now, list)) {
        const int stage = n % STAGES;
        if (n >= STAGES) {
            const uint32_t empty = bars + EMPTY + 8 * stage;
            const int parity = (n / STAGES - 1) & 1;
            if (told < n && !mbar_test(empty, parity)) {
                cp_wait<0>();
                fence_async();
                warp_arrive(bars + FULL + 8 * (told % STAGES), lane);
                told++;
            }
            mbar_wait(empty, parity);
        }
        load_tile(base + stage * stage_bytes + which * TILE, from + now.token * stride, stride, now.rows, (int)width - of.c0,
                  lane);
        cp_commit();
        if (told < n) {
            cp_wait<1>();
            fence_async();
            warp_arrive(bars + FULL + 8 * (told % STAGES), lane);
            told++;
        }
    }
    cp_wait<0>();
    fence_async();
    if (told < n) warp_arrive(bars + FULL + 8 * (told % STAGES), lane);
}

IDA_DEV void state_role(const mix_params *p, uint32_t base, int run, const mix_vhead &of, int thread) {
    const int warp = thread / 32, lane = thread % 32, row = 16 * warp + lane / 4, mp = MIX_TILE;
    const float *pw = p->t.pw + of.g * MIX_POWERS * 2 * mp;
    const uint32_t bars = base + FWD_BARS;
    const uint32_t place = frag_place(warp, lane);
    const bool keep = p->state_out.re && of.h % p->per == 0;
    bool ends = false;
    const float4 full = factors(pw + (MIX_CHUNK + MIX_CHUNK / 2) * 2 * mp, mp, row);
    wg_state x;
    int n = 0;
    for (walk now = walk_open(p, run); walk_on(&now); n++, walk_next(&now, p->parts)) {
        const int stage = n % STAGES;
        if (now.first) {
            state_enter(&x, p, p->parts[now.at], x_before(p, now.at, of.v), of, pw, mp, row, thread);
            ends = p->parts[now.at].last;
        }
        if (n >= 2) mbar_wait(bars + X_EMPTY + 8 * (n & 1), (n / 2 - 1) & 1);
        state_publish<0>(base + FWD_X + (n & 1) * MIX_SLOT, &x, place);
        state_publish<1>(base + FWD_X + (n & 1) * MIX_SLOT, &x, place);
        fence_async();
        warp_arrive(bars + X_FULL + 8 * (n & 1), lane);
        mbar_wait(bars + FULL + 8 * stage, (n / STAGES) & 1); /* also when unused: else EMPTY could count for the tile before */
        if (now.rows > 0 && (!now.last || (ends && keep))) {
            state_add(&x, base >> 4, FWD_F, FWD_STAGES + stage * STAGE);
            mbar_arrive(bars + EMPTY + 8 * stage);
            state_scale(&x, now.last && ends ? factors(pw + (now.rows - 1) * 2 * mp, mp, row) : full);
        } else {
            mbar_arrive(bars + EMPTY + 8 * stage);
        }
        if (now.last && ends && keep) state_store(&x, p, p->parts[now.at].seq, of, row, lane);
    }
}

IDA_DEV void output_role(const mix_params *p, const unsigned char *smem, uint32_t base, int run, int64_t h, int thread,
                         int parity) {
    const int warp = thread / 32, lane = thread % 32, xk = FWD_X + parity * MIX_SLOT, xv = xk + PANEL, f = FWD_F, gg = FWD_GG;
    const uint32_t bars = base + FWD_BARS, u = base >> 4;
    const float4 *e = reinterpret_cast<const float4 *>(smem + FWD_E);
    walk now = walk_open(p, run);
    for (int n = 0; walk_on(&now); n++, walk_next(&now, p->parts)) {
        if ((n & 1) != parity) continue;
        const int stage = n % STAGES;
        const int k = FWD_STAGES + stage * STAGE, v = k + TILE, q = v + TILE;
        float t[64], s[32], o[32];
        uint32_t pairs[32], low[16];
        mbar_wait(bars + FULL + 8 * stage, (n / STAGES) & 1);
        touch(s);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) mma_ss<0, 0>(s, desc_k(u, q + kk * K_STEP), desc_k(u, k + kk * K_STEP), kk > 0);
        wg_commit();
        mbar_wait(bars + X_FULL + 8 * parity, (n / 2) & 1);
        touch(t);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) mma_ss<0, 0>(t, desc_k(u, q + kk * K_STEP), desc_k(u, xk + kk * K_STEP), kk > 0);
        wg_commit();
        wg_wait<1>();
        touch(s);
        pack_tril(low, s, warp, lane);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) mma_rs<1>(t, low + 4 * kk, desc_mn(u, f + kk * MN_STEP, TILE), 1);
        wg_commit();
        wg_wait<0>();
        touch(t);
        times_e<false>(pairs, t, e, warp, lane);
        touch(t);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 8; kk++) mma_rs<0>(t, pairs + 4 * kk, desc_k(u, gg + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
        wg_commit();
        wg_wait<0>();
        touch(t);
        times_e<true>(pairs, t, e, warp, lane);
        touch(s);
        touch(o);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 8; kk++) mma_rs<0>(s, pairs + 4 * kk, desc_k(u, f + (kk / 4) * TILE + (kk % 4) * K_STEP), kk > 0);
        wg_commit();
#pragma unroll
        for (int kk = 0; kk < 8; kk++) mma_rs<1>(o, pairs + 4 * kk, desc_mn(u, xv + kk * MN_STEP, PANEL), kk > 0);
        wg_commit();
        wg_wait<1>();
        touch(s);
        pack_tril(low, s, warp, lane);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) mma_rs<1>(o, low + 4 * kk, desc_mn(u, v + kk * MN_STEP, TILE), 1);
        wg_commit();
        wg_wait<0>();
        touch(o);
        warp_arrive(bars + X_EMPTY + 8 * parity, lane);
        /* Q was read by this warpgroup alone: each warp turns its rows of the tile into o */
        pack_acc(low, o);
        bar_sync(1 + parity, 128);
        st_packed(base + q, frag_place(warp, lane), low);
        __syncwarp();
        store_rows<8>((__nv_bfloat16 *)p->o + (now.token * p->h + h) * p->d, p->h * p->d, base + q, 0, now.rows, (int)p->d, warp,
                      lane);
        mbar_arrive(bars + EMPTY + 8 * stage);
    }
}
#endif

__global__ void __launch_bounds__(512, 1) interdomain_fwd__tile64(const __grid_constant__ mix_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const uint32_t base = smem_at(smem), bars = base + FWD_BARS;
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    const mix_vhead of = {h, h, g, 0, 0};
    if (p.t.chunk[g] != MIX_CHUNK) return;
    copy16(smem + FWD_F, p.t.f16 + g * 2 * TILE, 2 * TILE, thread, 512);
    copy16(smem + FWD_GG, p.t.gg16 + g * 2 * PANEL, 2 * PANEL, thread, 512);
    copy16(smem + FWD_E, p.t.e + g * 2048, 32768, thread, 512);
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(bars + FULL + 8 * i, 3);
            mbar_init(bars + EMPTY + 8 * i, 256);
        }
        for (int i = 0; i < 2; i++) {
            mbar_init(bars + X_FULL + 8 * i, 4);
            mbar_init(bars + X_EMPTY + 8 * i, 4);
        }
    }
    fence_async();
    __syncthreads();
    if (wg == 0) {
        regs_more<168>();
        state_role(&p, base, run, of, thread);
    } else if (wg == 3) {
        regs_less<40>();
        if (thread < 480)
            load_role(&p, base + FWD_STAGES, STAGE, bars, p.parts, walk_open(&p, run), of, thread / 32 - 12, thread % 32);
    } else {
        regs_more<152>();
        output_role(&p, smem, base, run, h, thread % 128, wg - 1);
    }
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

/* ---- states in slots: slot0[s] + i = X~ before chunk i of sequence s; one more after its last chunk = X. */
enum {
    ST_F = 0,
    ST_X = 2 * TILE,
    ST_STAGES = ST_X + MIX_SLOT,
    ST_BARS = ST_STAGES + STAGES * 2 * TILE,
    ST_BYTES = ST_BARS + 128 + 1024
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
IDA_DEV void slot_store(const mix_params *p, uint32_t base, const wg_state *x, int slot, int64_t v, int thread) {
    /* by halves: one is filled while the other leaves */
    const uint32_t place = frag_place(thread / 32, thread % 32);
    unsigned char *to = p->slots + ((int64_t)slot * p->vh + v) * MIX_SLOT;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (thread == 0) bulk_wait_read<1>();
        bar_sync(1, 128);
        if (half == 0)
            state_publish<0>(base + ST_X, x, place);
        else
            state_publish<1>(base + ST_X, x, place);
        fence_async();
        bar_sync(1, 128);
        if (thread == 0) {
            bulk_store(to + half * PANEL, base + ST_X + half * PANEL, PANEL);
            bulk_commit();
        }
    }
}
IDA_DEV void slots_role(const mix_params *p, uint32_t base, int run, const mix_vhead &of, int thread) {
    const int row = 16 * (thread / 32) + thread % 32 / 4, mp = (int)p->mp;
    const float *pw = p->t.pw + of.g * MIX_POWERS * 2 * mp + of.m0;
    const uint32_t bars = base + ST_BARS;
    const bool keep = p->state_out.re && of.h % p->per == 0;
    const float4 full = factors(pw + (MIX_CHUNK + MIX_CHUNK / 2) * 2 * mp, mp, row);
    wg_state x;
    int slot = 0, n = 0;
    bool ends = false;
    for (walk now = walk_open(p, run); walk_on(&now); n++, walk_next(&now, p->parts)) {
        const int stage = n % STAGES;
        if (now.first) {
            state_enter(&x, p, p->parts[now.at], x_before(p, now.at, of.v), of, pw, mp, row, thread);
            ends = p->parts[now.at].last;
        }
        if (now.first) slot = p->parts[now.at].slot;
        slot_store(p, base, &x, slot++, of.v, thread);
        mbar_wait(bars + FULL + 8 * stage, (n / STAGES) & 1); /* as in state_role */
        if (now.rows > 0 && (!now.last || ends)) {
            state_add(&x, base >> 4, ST_F, ST_STAGES + stage * 2 * TILE);
            state_scale(&x, now.last ? factors(pw + (now.rows - 1) * 2 * mp, mp, row) : full);
            if (now.last) slot_store(p, base, &x, slot++, of.v, thread);
        }
        mbar_arrive(bars + EMPTY + 8 * stage);
        if (now.last && ends && keep) state_store(&x, p, p->parts[now.at].seq, of, row, thread % 32);
    }
    if (thread == 0) bulk_wait();
}
/* What a piece leaves of the state, to x_piece. */
IDA_DEV void piece_role(const mix_params *p, uint32_t base, int piece, const mix_vhead &of, int thread) {
    const int row = 16 * (thread / 32) + thread % 32 / 4, mp = (int)p->mp;
    const float *pw = p->t.pw + of.g * MIX_POWERS * 2 * mp + of.m0;
    const uint32_t bars = base + ST_BARS;
    const float4 full = factors(pw + (MIX_CHUNK + MIX_CHUNK / 2) * 2 * mp, mp, row);
    wg_state x;
    int n = 0;
    state_enter(&x, p, p->pieces[piece], NULL, of, pw, mp, row, thread);
    for (walk now = walk_list(p->pieces, piece, piece + 1); walk_on(&now); n++, walk_next(&now, p->pieces)) {
        const int stage = n % STAGES;
        mbar_wait(bars + FULL + 8 * stage, (n / STAGES) & 1);
        state_add(&x, base >> 4, ST_F, ST_STAGES + stage * 2 * TILE);
        mbar_arrive(bars + EMPTY + 8 * stage);
        state_scale(&x, full);
    }
    float *to = p->x_piece + (piece * p->vh + of.v) * MIX_STATE + thread;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        to[i * 128] = x.re[i];
        to[(64 + i) * 128] = x.im[i];
    }
}

/* The group's table of one block of modes, and the barriers, by all threads. */
IDA_DEV void states_set_up(const mix_params *p, unsigned char *smem, uint32_t base, const mix_vhead &of, int thread) {
    const uint32_t bars = base + ST_BARS;
    for (int i = 0; i < 2; i++)
        copy16(smem + ST_F + i * TILE, p->t.f16 + (of.g * 2 * p->mb + i * p->mb + of.m0 / MIX_TILE) * TILE, TILE, thread, 256);
    if (thread == 0)
        for (int i = 0; i < STAGES; i++) {
            mbar_init(bars + FULL + 8 * i, 2);
            mbar_init(bars + EMPTY + 8 * i, 128);
        }
    fence_async();
    __syncthreads();
}
#endif

/* A CTA is a run of parts and a virtual head. */
__global__ void __launch_bounds__(256, 2) interdomain_states__tile64(const __grid_constant__ mix_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.vh), wg = __shfl_sync(~0u, thread / 128, 0);
    const mix_vhead of = mix_vhead_of(&p, blockIdx.x % p.vh);
    const uint32_t base = smem_at(smem), bars = base + ST_BARS;
    if (p.t.chunk[of.g] != MIX_CHUNK) return;
    states_set_up(&p, smem, base, of, thread);
    if (wg == 0) {
        regs_more<208>();
        slots_role(&p, base, run, of, thread);
    } else {
        regs_less<40>();
        const walk way = walk_open(&p, run);
        if (thread < 192) load_role(&p, base + ST_STAGES, 2 * TILE, bars, p.parts, way, of, thread / 32 - 4, thread % 32);
    }
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}
/* A CTA is a piece and a virtual head. */
__global__ void __launch_bounds__(256, 2) interdomain_pieces__tile64(const __grid_constant__ mix_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const int thread = (int)threadIdx.x, piece = (int)(blockIdx.x / p.vh), wg = __shfl_sync(~0u, thread / 128, 0);
    const mix_vhead of = mix_vhead_of(&p, blockIdx.x % p.vh);
    const uint32_t base = smem_at(smem), bars = base + ST_BARS;
    if (p.t.chunk[of.g] != MIX_CHUNK) return;
    if (p.parts[p.pieces[piece].whole].last) return; /* nothing goes on from it */
    states_set_up(&p, smem, base, of, thread);
    if (wg == 0) {
        regs_more<208>();
        piece_role(&p, base, piece, of, thread);
    } else {
        regs_less<40>();
        const walk way = walk_list(p.pieces, piece, piece + 1);
        if (thread < 192) load_role(&p, base + ST_STAGES, 2 * TILE, bars, p.pieces, way, of, thread / 32 - 4, thread % 32);
    }
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

void mix_launch_fwd64(const mix_params *p, cudaStream_t stream) {
    cudaFuncSetAttribute(interdomain_fwd__tile64, cudaFuncAttributeMaxDynamicSharedMemorySize, FWD_BYTES);
    interdomain_fwd__tile64<<<(unsigned)(p->n_part_runs * p->h), 512, FWD_BYTES, stream>>>(*p);
}

void mix_launch_states64(const mix_params *p, cudaStream_t stream) {
    cudaFuncSetAttribute(interdomain_states__tile64, cudaFuncAttributeMaxDynamicSharedMemorySize, ST_BYTES);
    interdomain_states__tile64<<<(unsigned)(p->n_part_runs * p->vh), 256, ST_BYTES, stream>>>(*p);
}

void mix_launch_parts64(const mix_params *p, cudaStream_t stream) {
    cudaFuncSetAttribute(interdomain_pieces__tile64, cudaFuncAttributeMaxDynamicSharedMemorySize, ST_BYTES);
    interdomain_pieces__tile64<<<(unsigned)(p->n_pieces * p->vh), 256, ST_BYTES, stream>>>(*p);
    mix_launch_join(p, 0, stream);
}
