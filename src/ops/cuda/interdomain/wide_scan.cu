/* interdomain/wide_scan.cu - the second stage of the wide backward (interdomain/wide_bwd.cu): along a sequence from its last
 * chunk to its first, with the gradient of the state in registers,
 *     dX^ = conj(Lam^e) dX~'   dK = dS^T Q + F~ dX^_k   dV = P^T dO + F~ dX^_v   dX~ = dX^ + [dT^T Q | B^T dO]
 * and K dX^_k^T + V dX^_v^T of dF~, the moments of the state and, as all for it is there, dQ = dS K + dT X_k^T. Keys and
 * values go by themselves: a CTA is a run of parts (or a piece), a head, a side and, with two blocks of modes, a block of
 * columns. Its two warpgroups have a virtual head each: the blocks of columns of one block of modes, or the other way round.
 * Invariant: between two barriers no tile is both written and read by different warps. */
#include "ops/cuda/interdomain/wide_bwd.cuh"

template <int MB> struct scan_map {
    enum {
        STAGES = 3 - MB,
        COLUMNS = 3 - MB, /* blocks of them here */
        F = 0,
        HAT = F + 2 * MB * TILE, /* dX^ of either warpgroup */
        RING = HAT + 2 * PANEL,
        /* of a stage */
        LINK = 0,
        LOW = LINK + wide_link<MB>::LOW,
        Q = LINK + wide_link<MB>::BYTES, /* Q | dO */
        K = Q + COLUMNS * TILE,          /* K | V */
        X = K + COLUMNS * TILE,
        STAGE = X + 2 * PANEL,
        BAR = RING + STAGES * STAGE, /* of the stages; of the state after a sequence */
        DONE = BAR + 32,             /* of the stages: how often a warpgroup was done with it */
        BYTES = BAR + 64 + 1024
    };
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Chunks of a list of parts (or pieces), from the last one's last to the first of `stop`. n < stop: no more. */
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

/* What a CTA has: c its first block of columns; v0 the virtual head of warpgroup 0, and from there to that of warpgroup 1. */
typedef struct scan_place {
    int64_t h, g, v0, v_step;
    int side, c;
} scan_place;

IDA_DEV void load_states(const mix_params *p, uint32_t to, uint32_t bar, int slot, const scan_place *is) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        bulk_load(to + (uint32_t)(i * PANEL), slot_at(p, slot, is->v0 + i * is->v_step, is->side), PANEL, bar);
}
/* Sends for a chunk. FULL false: only what dX~ needs. */
template <int MB, bool FULL>
IDA_DEV void load_chunk(const mix_params *p, const mix_maps *maps, uint32_t stage, uint32_t bar, const scan_place *is,
                        const back_walk *w) {
    typedef scan_map<MB> at;
    fence_async();
    mbar_expect(bar, FULL ? at::STAGE : at::LOW + at::COLUMNS * TILE);
    bulk_load(stage + at::LINK, link_at<MB>(p, w->slot, is->h, is->side), FULL ? wide_link<MB>::BYTES : wide_link<MB>::LOW, bar);
#pragma unroll
    for (int c = 0; c < at::COLUMNS; c++) {
        const int col = (is->c + c) * MIX_TILE;
        tensor_load(stage + at::Q + c * TILE, is->side ? &maps->dout : &maps->q, col, (int)is->h, w->token, bar);
        if (FULL) tensor_load(stage + at::K + c * TILE, is->side ? &maps->v : &maps->k, col, (int)is->g, w->token, bar);
    }
    if (FULL) load_states(p, stage + at::X, bar, w->slot, is);
}

/* Whether this is the second call of two. */
IDA_DEV bool last_done(uint32_t count) {
    uint32_t before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(count) : "memory");
    return before & 1;
}
/* Rows of bf16 of an accumulator of 64 / MB columns, through a tile. */
template <int MB>
IDA_DEV void rows_out(__nv_bfloat16 *to, int64_t stride, const float (&d)[32 / MB], uint32_t tile, uint32_t place, int rows,
                      int cols, const spot *at) {
    uint32_t t[16 / MB];
    pack_acc(t, d);
#pragma unroll
    for (int j = 0; j < 8 / MB; j += 2) st_frag(frag_at(tile, place, j), t + 2 * j);
    __syncwarp();
    store_rows<8 / MB>(to, stride, tile, 0, rows, cols, at->warp, at->lane);
    __syncwarp(); /* before the next dX^ */
}

/* FULL false: over one piece, from zero after every piece but a sequence's last, to x_piece. run: then the piece. */
template <int MB, bool FULL, int side>
IDA_DEV void scan_task(const mix_params *p, const mix_maps *maps, uint32_t base, int run, const scan_place *is, int wg,
                       int thread) {
    typedef scan_map<MB> map;
    const int mp = MB * MIX_TILE, centre = MIX_CHUNK / 2;
    spot at;
    at.wg = side, at.warp = thread / 32 % 4, at.lane = thread % 32, at.row = 16 * at.warp + at.lane / 4;
    at.m0 = MB == 2 ? wg * MIX_TILE : 0, at.c0 = (MB == 1 ? wg : is->c) * MIX_TILE;
    at.h = is->h, at.g = is->g, at.s = 0;
    const int warp = at.warp, lane = at.lane;
    const int64_t v = is->v0 + wg * is->v_step, width = side ? p->d : p->r;
    const float *pw = p->t.pw + at.g * MIX_POWERS * 2 * mp + at.m0;
    const mix_part *list = FULL ? p->parts : p->pieces;
    const int first = FULL ? (int)p->part_run0[run + 1] - 1 : run, stop = FULL ? (int)p->part_run0[run] : run;
    const uint32_t bar = base + map::BAR, bar_end = bar + 8 * map::STAGES, place = frag_place(warp, lane), u = base >> 4;
    const uint32_t hat = base + map::HAT + (uint32_t)(wg * PANEL), u_hat = u + (uint32_t)(wg * (PANEL / 16));
    grad_state dx;
    float df[64], moment[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 64; i++) df[i] = 0;

    back_walk ahead = {first, stop, 0, 0, 0};
    back_enter(&ahead, list);
    for (int i = 0; i < map::STAGES && ahead.n >= stop; i++) {
        if (thread == 0) load_chunk<MB, FULL>(p, maps, base + map::RING + i * map::STAGE, bar + 8 * i, is, &ahead);
        back_next(&ahead, list);
    }
    int stage = 0, phases = 0; /* bit i: of barrier i */
    for (int n = first; n >= stop; n--) {
        const mix_part part = list[n];
        const int len = part.end - part.begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
        const bool given = part.last && p->dstate_out.re && at.h % p->per == 0;
        at.s = part.seq;
        if (part.last || !FULL)
            grad_load(&dx, p, &at, given);
        else
            part_load(&dx, p->dx_part + (n * p->vh + v) * MIX_STATE, side, thread % 128);
        if (FULL && len > 0 && given) {
            bar_sync(1, THREADS);
            if (thread == 0) {
                fence_async();
                mbar_expect(bar_end, 2 * PANEL);
                load_states(p, base + map::HAT, bar_end, part.slot + n_chunks, is);
            }
            mbar_wait(bar_end, phases >> map::STAGES & 1);
            phases ^= 1 << map::STAGES;
            grad_moment(moment, &dx, hat, place, (float)(len - (n_chunks - 1) * MIX_CHUNK - 1 - centre));
        }
        for (int c = n_chunks - 1; c >= 0; c--) {
            const int token = part.begin + c * MIX_CHUNK, over = part.end - token, rows = over < MIX_CHUNK ? over : MIX_CHUNK;
            const uint32_t tiles = base + map::RING + (uint32_t)(stage * map::STAGE);
            grad_scale(&dx, pw + ((part.last && c == n_chunks - 1 ? rows - 1 - centre : MIX_CHUNK) + centre) * 2 * mp, mp,
                       at.row);
            if (FULL) {
                uint32_t t[16];
                pack_acc(t, dx.re);
                st_packed(hat, place, t);
                pack_acc(t, dx.im);
                st_packed(hat + TILE, place, t);
                fence_async();
                if (MB == 1) bar_sync(2 + wg, 128);
                else bar_sync(1, THREADS);
            }
            mbar_wait(bar + 8 * stage, phases >> stage & 1);
            phases ^= 1 << stage;
            if (rows < MIX_CHUNK) {
                clear_rows<2 * map::COLUMNS>(tiles + map::Q, rows, thread, THREADS);
                bar_sync(1, THREADS);
            }
            const uint32_t us = tiles >> 4, u_q = us + (uint32_t)(MB == 1 ? wg * (TILE / 16) : 0),
                           u_link = us + (uint32_t)(MB == 2 ? wg * (2 * TILE / 16) : 0);
            float out[32 / MB], dq[32 / MB]; /* MB = 2: of columns 32 wg.. */
            touch(out);
            touch(dq);
            touch(df);
            touch(dx.re);
            touch(dx.im);
            wg_fence();
            /* dX~ */
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                const uint64_t q = desc_mn(u_q, map::Q + kk * MN_STEP, TILE);
                mma_ss<1, 1>(dx.re, desc_mn(u_link, map::LINK + kk * MN_STEP, TILE), q, 1);
                mma_ss<1, 1>(dx.im, desc_mn(u_link, map::LINK + TILE + kk * MN_STEP, TILE), q, 1);
            }
            wg_commit();
            if (FULL) {
                /* dK | dV */
                const uint32_t col = (uint32_t)(MB == 2 ? wg * 4 : 0), u_hats = MB == 1 ? u_hat : u + col;
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<1, 1>(out, desc_mn(us, map::LOW + kk * MN_STEP, TILE), desc_mn(u_q + col, map::Q + kk * MN_STEP, TILE),
                                 kk > 0);
#pragma unroll
                for (int kk = 0; kk < 8 * MB; kk++)
                    mma_ss<0, 1>(out, desc_k(u, map::F + (kk / 4 % 2 * MB + kk / 8) * TILE + (kk % 4) * K_STEP),
                                 desc_mn(u_hats, map::HAT + kk * MN_STEP, PANEL), 1);
                /* dF~ */
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 0>(df, desc_k(u_q, map::K + kk * K_STEP), desc_k(u_hat, map::HAT + kk * K_STEP), 1);
                wg_commit();
            }
            if (FULL && side == 0) {
                const uint32_t u_col = us + (uint32_t)(wg * (MB == 1 ? TILE / 16 : 4)),
                               u_x = us + (uint32_t)(wg * (MB == 1 ? PANEL / 16 : 4));
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
                    mma_ss<0, 1>(dq, desc_k(us, map::LOW + kk * K_STEP), desc_mn(u_col, map::K + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
                for (int kk = 0; kk < 8 * MB; kk++)
                    mma_ss<0, 1>(dq, desc_k(us, map::LINK + (kk / 4) * TILE + (kk % 4) * K_STEP),
                                 desc_mn(u_x, map::X + kk * MN_STEP, PANEL), 1);
                wg_commit();
            }
            wg_wait<FULL ? (side == 0 ? 2 : 1) : 0>();
            touch(dx.re);
            touch(dx.im);
            if (FULL)
                grad_moment(moment, &dx, tiles + map::X + (uint32_t)(wg * PANEL), place,
                            (float)(c > 0 || part.index > 0 ? MIX_CHUNK : centre + 1));
            wg_wait<0>();
            touch(out);
            touch(dq);
            touch(df);
            if (MB == 1) bar_sync(2 + wg, 128);
            else bar_sync(1, THREADS);
            /* the warpgroup that is done last has the stage filled again */
            if (ahead.n >= stop) {
                if (thread % 128 == 0 && last_done(base + map::DONE + 4 * stage))
                    load_chunk<MB, FULL>(p, maps, tiles, bar + 8 * stage, is, &ahead);
                back_next(&ahead, list);
            }
            stage = stage + 1 < map::STAGES ? stage + 1 : 0;
            if (!FULL) continue;
            const int first_col = at.c0 + (MB == 2 ? 32 * wg : 0), cols = (int)width - first_col;
            const int64_t row0 = (token * p->h + at.h) * width + first_col, stride = p->h * width;
            /* through the warp's own rows of dX^, which nobody reads any more */
            if (side == 0)
                rows_out<MB>((__nv_bfloat16 *)p->dq + row0, stride, dq, hat + TILE, place, rows, cols, &at);
            if (p->per > 1)
                store_acc((side ? p->dv_head : p->dk_head) + row0, stride, out, rows, cols < 64 / MB ? cols : 64 / MB, &at);
            else
                rows_out<MB>((__nv_bfloat16 *)(side ? p->dv : p->dk) + row0, stride, out, hat, place, rows, cols, &at);
        }
        if (!FULL) part_store(p->x_piece + (n * p->vh + v) * MIX_STATE, &dx, side, thread % 128);
        if (!FULL || part.index > 0) continue;
        if (len > 0) grad_scale(&dx, pw + (2 * centre + 1) * 2 * mp, mp, at.row);
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

template <int MB, bool FULL> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_scan__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef scan_map<MB> map;
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int blocks = MB == 2 ? p.cb : 1;
    const unsigned of_side = gridDim.x / 2; /* the keys, which have dQ to do too, come first */
    const int64_t task = blockIdx.x % of_side, h = task / blocks % p.h;
    scan_place is;
    is.side = (int)(blockIdx.x / of_side), is.c = (int)(task % blocks), is.h = h, is.g = h / p.per;
    is.v0 = h * MB * p.cb + is.c, is.v_step = MB == 2 ? p.cb : 1;
    const int thread = (int)threadIdx.x, run = (int)(task / blocks / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    if (p.t.chunk[is.g] != MIX_CHUNK) return;
    if (!FULL && p.parts[p.pieces[run].whole].index == 0) return; /* nothing comes before it */
    copy16(smem + map::F, p.t.f16 + is.g * 2 * MB * TILE, 2 * MB * TILE, thread, THREADS);
    if (thread == 0)
        for (int i = 0; i <= map::STAGES; i++) {
            mbar_init(base + map::BAR + 8 * i, 1);
            *reinterpret_cast<uint32_t *>(smem + map::DONE + 4 * i) = 0;
        }
    fence_async();
    __syncthreads();
    if (is.side) scan_task<MB, FULL, 1>(&p, &maps, base, run, &is, wg, thread);
    else scan_task<MB, FULL, 0>(&p, &maps, base, run, &is, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

template <int MB> static void launch_scan(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    const unsigned each = (unsigned)(p->h * 2 * (MB == 2 ? p->cb : 1));
    const int bytes = scan_map<MB>::BYTES;
    cudaFuncSetAttribute(interdomain_scan__wide<MB, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(interdomain_scan__wide<MB, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (p->split) {
        interdomain_scan__wide<MB, false><<<(unsigned)p->n_pieces * each, THREADS, bytes, stream>>>(*p, *maps);
        mix_launch_join(p, 1, stream);
    }
    interdomain_scan__wide<MB, true><<<(unsigned)p->n_part_runs * each, THREADS, bytes, stream>>>(*p, *maps);
}

void mix_launch_scan_wide(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    if (p->mb == 1) launch_scan<1>(p, maps, stream);
    else launch_scan<2>(p, maps, stream);
}
