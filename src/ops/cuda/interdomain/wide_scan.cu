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
/* Send for a chunk: all of it; what dX~ needs. */
template <int MB> IDA_DEV void load_chunk(const mix_params *p, const mix_maps *maps, uint32_t stage, uint32_t bar,
                                          const scan_place *is, const back_walk *w) {
    typedef scan_map<MB> at;
    fence_async();
    mbar_expect(bar, at::STAGE);
    bulk_load(stage + at::LINK, link_at<MB>(p, w->slot, is->h, is->side), wide_link<MB>::BYTES, bar);
#pragma unroll
    for (int c = 0; c < at::COLUMNS; c++) {
        const int col = (is->c + c) * MIX_TILE;
        tensor_load(stage + at::Q + c * TILE, is->side ? &maps->dout : &maps->q, col, (int)is->h, w->token, bar);
        tensor_load(stage + at::K + c * TILE, is->side ? &maps->v : &maps->k, col, (int)is->g, w->token, bar);
    }
    load_states(p, stage + at::X, bar, w->slot, is);
}
template <int MB> IDA_DEV void load_links(const mix_params *p, const mix_maps *maps, uint32_t stage, uint32_t bar,
                                          const scan_place *is, const back_walk *w) {
    typedef scan_map<MB> at;
    fence_async();
    mbar_expect(bar, at::LOW + at::COLUMNS * TILE);
    bulk_load(stage + at::LINK, link_at<MB>(p, w->slot, is->h, is->side), wide_link<MB>::LOW, bar);
#pragma unroll
    for (int c = 0; c < at::COLUMNS; c++)
        tensor_load(stage + at::Q + c * TILE, is->side ? &maps->dout : &maps->q, (is->c + c) * MIX_TILE, (int)is->h, w->token,
                    bar);
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

/* What a thread of a scan knows: its place, the virtual head of its warpgroup, the powers of its modes, and where barriers and the
 * warpgroup's dX^ lie. u, u_hat: in units of 16 bytes (tiles.h). */
typedef struct scan_seat {
    spot at;
    int wg;
    int64_t v;
    const float *pw;
    uint32_t base, bar, place, hat, u, u_hat;
} scan_seat;
template <int MB>
IDA_DEV scan_seat seat_at(const mix_params *p, uint32_t base, const scan_place *is, int side, int wg, int thread) {
    typedef scan_map<MB> map;
    scan_seat s;
    s.at.wg = side, s.at.warp = thread / 32 % 4, s.at.lane = thread % 32, s.at.row = 16 * s.at.warp + s.at.lane / 4;
    s.at.m0 = MB == 2 ? wg * MIX_TILE : 0, s.at.c0 = (MB == 1 ? wg : is->c) * MIX_TILE;
    s.at.h = is->h, s.at.g = is->g, s.at.s = 0;
    s.wg = wg, s.v = is->v0 + wg * is->v_step;
    s.pw = p->t.pw + is->g * MIX_POWERS * 2 * MB * MIX_TILE + s.at.m0;
    s.base = base, s.bar = base + map::BAR, s.place = frag_place(s.at.warp, s.at.lane), s.u = base >> 4;
    s.hat = base + map::HAT + (uint32_t)(wg * PANEL), s.u_hat = s.u + (uint32_t)(wg * (PANEL / 16));
    return s;
}
/* For the threads that share dX^: with one block of modes those of a warpgroup, else all. */
template <int MB> IDA_DEV void scan_sync(int wg) {
    if (MB == 1) bar_sync(2 + wg, 128);
    else bar_sync(1, THREADS);
}
/* dX^ = conj(Lam^e) dX~' of a chunk of `rows` tokens; ends: the sequence ends with it. */
template <int MB> IDA_DEV void scan_scale(grad_state *dx, const scan_seat *s, bool ends, int rows) {
    const int mp = MB * MIX_TILE, centre = MIX_CHUNK / 2;
    grad_scale(dx, s->pw + ((ends ? rows - 1 - centre : MIX_CHUNK) + centre) * 2 * mp, mp, s->at.row);
}

/* ---- products of a chunk, queued only. us: its stage in units of 16 bytes */
/* dX~ = dX^ + [dT^T Q | B^T dO] */
template <int MB> IDA_DEV void state_grad(grad_state *dx, uint32_t us, int wg) {
    typedef scan_map<MB> map;
    const uint32_t u_q = us + (uint32_t)(MB == 1 ? wg * (TILE / 16) : 0), u_link = us + (uint32_t)(MB == 2 ? wg * (2 * TILE / 16) : 0);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        const uint64_t q = desc_mn(u_q, map::Q + kk * MN_STEP, TILE);
        mma_ss<1, 1>(dx->re, desc_mn(u_link, map::LINK + kk * MN_STEP, TILE), q, 1);
        mma_ss<1, 1>(dx->im, desc_mn(u_link, map::LINK + TILE + kk * MN_STEP, TILE), q, 1);
    }
    wg_commit();
}
/* out = dK | dV, and dF~ */
template <int MB> IDA_DEV void token_grads(float (&out)[32 / MB], float (&df)[64], const scan_seat *s, uint32_t us) {
    typedef scan_map<MB> map;
    const uint32_t u_q = us + (uint32_t)(MB == 1 ? s->wg * (TILE / 16) : 0);
    const uint32_t col = (uint32_t)(MB == 2 ? s->wg * 4 : 0), u_hats = MB == 1 ? s->u_hat : s->u + col;
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<1, 1>(out, desc_mn(us, map::LOW + kk * MN_STEP, TILE), desc_mn(u_q + col, map::Q + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 8 * MB; kk++)
        mma_ss<0, 1>(out, desc_k(s->u, map::F + (kk / 4 % 2 * MB + kk / 8) * TILE + (kk % 4) * K_STEP),
                     desc_mn(u_hats, map::HAT + kk * MN_STEP, PANEL), 1);
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<0, 0>(df, desc_k(u_q, map::K + kk * K_STEP), desc_k(s->u_hat, map::HAT + kk * K_STEP), 1);
    wg_commit();
}
template <int MB> IDA_DEV void query_grad(float (&dq)[32 / MB], uint32_t us, int wg) {
    typedef scan_map<MB> map;
    const uint32_t u_col = us + (uint32_t)(wg * (MB == 1 ? TILE / 16 : 4)), u_x = us + (uint32_t)(wg * (MB == 1 ? PANEL / 16 : 4));
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<0, 1>(dq, desc_k(us, map::LOW + kk * K_STEP), desc_mn(u_col, map::K + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 8 * MB; kk++)
        mma_ss<0, 1>(dq, desc_k(us, map::LINK + (kk / 4) * TILE + (kk % 4) * K_STEP),
                     desc_mn(u_x, map::X + kk * MN_STEP, PANEL), 1);
    wg_commit();
}

/* ---- a task */
/* dQ, and dK | dV, of a chunk of `rows` tokens: through the warp's own rows of dX^, which nobody reads any more. */
template <int MB, int side>
IDA_DEV void store_tokens(const mix_params *p, const scan_seat *s, int token, int rows, const float (&out)[32 / MB],
                          const float (&dq)[32 / MB]) {
    const spot *at = &s->at;
    const int64_t width = side ? p->d : p->r;
    const int first_col = at->c0 + (MB == 2 ? 32 * s->wg : 0), cols = (int)width - first_col;
    const int64_t row0 = (token * p->h + at->h) * width + first_col, stride = p->h * width;
    if (side == 0) rows_out<MB>((__nv_bfloat16 *)p->dq + row0, stride, dq, s->hat + TILE, s->place, rows, cols, at);
    if (p->per > 1)
        store_acc((side ? p->dv_head : p->dk_head) + row0, stride, out, rows, cols < 64 / MB ? cols : 64 / MB, at);
    else rows_out<MB>((__nv_bfloat16 *)(side ? p->dv : p->dk) + row0, stride, out, s->hat, s->place, rows, cols, at);
}
/* The task's record: dF~ and the moments of the state. */
IDA_DEV void store_record(const mix_params *p, const scan_seat *s, int run, int side, const float (&df)[64],
                          const float (&moment)[4]) {
    float *record = p->scan_records + ((run * p->vh + s->v) * 2 + side) * MIX_SCAN_RECORD;
    store_acc(record, 128, df, 64, 128, &s->at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = moment[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if ((s->at.lane & 3) == 0) record[64 * 128 + (i / 2) * 64 + s->at.row + (i & 1) * 8] = sum;
    }
}

/* All gradients of a run of parts. Phases of a part: the gradient of the state after it, and that state's moment; its chunks, each
 * from dX^ by the products to dX~, dQ and dK | dV, while the next are loaded; the gradient of the first state. At last the record. */
template <int MB, int side>
IDA_DEV void scan_task(const mix_params *p, const mix_maps *maps, uint32_t base, int run, const scan_place *is, int wg,
                       int thread) {
    typedef scan_map<MB> map;
    const int mp = MB * MIX_TILE, centre = MIX_CHUNK / 2;
    scan_seat me = seat_at<MB>(p, base, is, side, wg, thread);
    const int first = (int)p->part_run0[run + 1] - 1, stop = (int)p->part_run0[run];
    const uint32_t bar_end = me.bar + 8 * map::STAGES;
    grad_state dx;
    float df[64], moment[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 64; i++) df[i] = 0;

    back_walk ahead = {first, stop, 0, 0, 0};
    back_enter(&ahead, p->parts);
    for (int i = 0; i < map::STAGES && ahead.n >= stop; i++) {
        if (thread == 0) load_chunk<MB>(p, maps, base + map::RING + i * map::STAGE, me.bar + 8 * i, is, &ahead);
        back_next(&ahead, p->parts);
    }
    int stage = 0, phases = 0; /* bit i: of barrier i */
    for (int n = first; n >= stop; n--) {
        const mix_part part = p->parts[n];
        const int len = part.end - part.begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
        const bool given = part.last && p->dstate_out.re && me.at.h % p->per == 0;
        me.at.s = part.seq;
        if (part.last) grad_load(&dx, p, &me.at, given);
        else part_load(&dx, p->dx_part + (n * p->vh + me.v) * MIX_STATE, side, thread % 128);
        if (len > 0 && given) {
            bar_sync(1, THREADS);
            if (thread == 0) {
                fence_async();
                mbar_expect(bar_end, 2 * PANEL);
                load_states(p, base + map::HAT, bar_end, part.slot + n_chunks, is);
            }
            mbar_wait(bar_end, phases >> map::STAGES & 1);
            phases ^= 1 << map::STAGES;
            grad_moment(moment, &dx, me.hat, me.place, (float)(len - (n_chunks - 1) * MIX_CHUNK - 1 - centre));
        }
        for (int c = n_chunks - 1; c >= 0; c--) {
            const int token = part.begin + c * MIX_CHUNK, over = part.end - token, rows = over < MIX_CHUNK ? over : MIX_CHUNK;
            const uint32_t tiles = base + map::RING + (uint32_t)(stage * map::STAGE);
            scan_scale<MB>(&dx, &me, part.last && c == n_chunks - 1, rows);
            publish(me.hat, me.place, &dx);
            fence_async();
            scan_sync<MB>(wg);
            mbar_wait(me.bar + 8 * stage, phases >> stage & 1);
            phases ^= 1 << stage;
            if (rows < MIX_CHUNK) {
                clear_rows<2 * map::COLUMNS>(tiles + map::Q, rows, thread, THREADS);
                bar_sync(1, THREADS);
            }
            const uint32_t us = tiles >> 4;
            float out[32 / MB], dq[32 / MB]; /* MB = 2: of columns 32 wg.. */
            touch(out);
            touch(dq);
            touch(df);
            touch(dx.re);
            touch(dx.im);
            wg_fence();
            state_grad<MB>(&dx, us, wg);
            token_grads<MB>(out, df, &me, us);
            if (side == 0) query_grad<MB>(dq, us, wg);
            wg_wait<side == 0 ? 2 : 1>();
            touch(dx.re);
            touch(dx.im);
            grad_moment(moment, &dx, tiles + map::X + (uint32_t)(wg * PANEL), me.place,
                        (float)(c > 0 || part.index > 0 ? MIX_CHUNK : centre + 1));
            wg_wait<0>();
            touch(out);
            touch(dq);
            touch(df);
            scan_sync<MB>(wg);
            /* the warpgroup that is done last has the stage filled again */
            if (ahead.n >= stop) {
                if (thread % 128 == 0 && last_done(base + map::DONE + 4 * stage))
                    load_chunk<MB>(p, maps, tiles, me.bar + 8 * stage, is, &ahead);
                back_next(&ahead, p->parts);
            }
            stage = stage + 1 < map::STAGES ? stage + 1 : 0;
            store_tokens<MB, side>(p, &me, token, rows, out, dq);
        }
        if (part.index > 0) continue;
        if (len > 0) grad_scale(&dx, me.pw + (2 * centre + 1) * 2 * mp, mp, me.at.row);
        if (p->dstate_in.re) grad_store(&dx, p, &me.at);
    }
    store_record(p, &me, run, side, df, moment);
}

/* What one piece adds to dX~, from zero (from the end's gradient after a sequence's last), to x_piece. */
template <int MB, int side>
IDA_DEV void scan_piece(const mix_params *p, const mix_maps *maps, uint32_t base, int piece, const scan_place *is, int wg,
                        int thread) {
    typedef scan_map<MB> map;
    scan_seat me = seat_at<MB>(p, base, is, side, wg, thread);
    const mix_part part = p->pieces[piece];
    const int n_chunks = (part.end - part.begin + MIX_CHUNK - 1) / MIX_CHUNK;
    grad_state dx;

    back_walk ahead = {piece, piece, 0, 0, 0};
    back_enter(&ahead, p->pieces);
    for (int i = 0; i < map::STAGES && ahead.n >= piece; i++) {
        if (thread == 0) load_links<MB>(p, maps, base + map::RING + i * map::STAGE, me.bar + 8 * i, is, &ahead);
        back_next(&ahead, p->pieces);
    }
    int stage = 0, phases = 0; /* bit i: of barrier i */
    me.at.s = part.seq;
    grad_load(&dx, p, &me.at, part.last && p->dstate_out.re && me.at.h % p->per == 0);
    for (int c = n_chunks - 1; c >= 0; c--) {
        const int over = part.end - (part.begin + c * MIX_CHUNK), rows = over < MIX_CHUNK ? over : MIX_CHUNK;
        const uint32_t tiles = base + map::RING + (uint32_t)(stage * map::STAGE);
        scan_scale<MB>(&dx, &me, part.last && c == n_chunks - 1, rows);
        mbar_wait(me.bar + 8 * stage, phases >> stage & 1);
        phases ^= 1 << stage;
        if (rows < MIX_CHUNK) {
            clear_rows<2 * map::COLUMNS>(tiles + map::Q, rows, thread, THREADS);
            bar_sync(1, THREADS);
        }
        touch(dx.re);
        touch(dx.im);
        wg_fence();
        state_grad<MB>(&dx, tiles >> 4, wg);
        wg_wait<0>();
        touch(dx.re);
        touch(dx.im);
        scan_sync<MB>(wg);
        if (ahead.n >= piece) {
            if (thread % 128 == 0 && last_done(base + map::DONE + 4 * stage))
                load_links<MB>(p, maps, tiles, me.bar + 8 * stage, is, &ahead);
            back_next(&ahead, p->pieces);
        }
        stage = stage + 1 < map::STAGES ? stage + 1 : 0;
    }
    part_store(p->x_piece + (piece * p->vh + me.v) * MIX_STATE, &dx, side, thread % 128);
}

/* What this CTA has: the keys, which have dQ to do too, come first. *run: its run of parts, or its piece. */
template <int MB> IDA_DEV scan_place scan_place_of(const mix_params *p, int *run) {
    const int blocks = MB == 2 ? p->cb : 1;
    const unsigned of_side = gridDim.x / 2;
    const int64_t task = blockIdx.x % of_side, h = task / blocks % p->h;
    scan_place is;
    is.side = (int)(blockIdx.x / of_side), is.c = (int)(task % blocks), is.h = h, is.g = h / p->per;
    is.v0 = h * MB * p->cb + is.c, is.v_step = MB == 2 ? p->cb : 1;
    *run = (int)(task / blocks / p->h);
    return is;
}
/* The group's table and the barriers, by all threads. */
template <int MB> IDA_DEV void set_up(const mix_params *p, unsigned char *smem, uint32_t base, int64_t g, int thread) {
    typedef scan_map<MB> map;
    copy16(smem + map::F, p->t.f16 + g * 2 * MB * TILE, 2 * MB * TILE, thread, THREADS);
    if (thread == 0)
        for (int i = 0; i <= map::STAGES; i++) {
            mbar_init(base + map::BAR + 8 * i, 1);
            *reinterpret_cast<uint32_t *>(smem + map::DONE + 4 * i) = 0;
        }
    fence_async();
    __syncthreads();
}
#endif

template <int MB> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_scan__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    int run;
    const scan_place is = scan_place_of<MB>(&p, &run);
    const int thread = (int)threadIdx.x, wg = __shfl_sync(~0u, thread / 128, 0);
    if (p.t.chunk[is.g] != MIX_CHUNK) return;
    set_up<MB>(&p, smem, base, is.g, thread);
    if (is.side) scan_task<MB, 1>(&p, &maps, base, run, &is, wg, thread);
    else scan_task<MB, 0>(&p, &maps, base, run, &is, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}
template <int MB> __global__ void __launch_bounds__(THREADS, 1)
    interdomain_scan_pieces__wide(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    int piece;
    const scan_place is = scan_place_of<MB>(&p, &piece);
    const int thread = (int)threadIdx.x, wg = __shfl_sync(~0u, thread / 128, 0);
    if (p.t.chunk[is.g] != MIX_CHUNK) return;
    if (p.parts[p.pieces[piece].whole].index == 0) return; /* nothing comes before it */
    set_up<MB>(&p, smem, base, is.g, thread);
    if (is.side) scan_piece<MB, 1>(&p, &maps, base, piece, &is, wg, thread);
    else scan_piece<MB, 0>(&p, &maps, base, piece, &is, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

template <int MB> static void launch_scan(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    const unsigned each = (unsigned)(p->h * 2 * (MB == 2 ? p->cb : 1));
    const int bytes = scan_map<MB>::BYTES;
    cudaFuncSetAttribute(interdomain_scan__wide<MB>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(interdomain_scan_pieces__wide<MB>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (p->split) {
        interdomain_scan_pieces__wide<MB><<<(unsigned)p->n_pieces * each, THREADS, bytes, stream>>>(*p, *maps);
        mix_launch_join(p, 1, stream);
    }
    interdomain_scan__wide<MB><<<(unsigned)p->n_part_runs * each, THREADS, bytes, stream>>>(*p, *maps);
}

void mix_launch_scan_wide(const mix_params *p, const mix_maps *maps, cudaStream_t stream) {
    if (p->mb == 1) launch_scan<1>(p, maps, stream);
    else launch_scan<2>(p, maps, stream);
}
