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
/* A thread's place (bwd.cuh), and two operands more, in units of 16 bytes: the other side, and the 32 columns of dQ that this
 * warpgroup forms. */
typedef struct seat {
    chain c;
    uint32_t u_opp, u_column;
} seat;
IDA_DEV seat seat_at(uint32_t base, int wg, int thread) {
    seat s;
    s.c = chain_at(base, SIDE, wg, thread);
    s.u_opp = s.c.u + (uint32_t)((1 - wg) * (SIDE / 16)), s.u_column = s.c.u + (uint32_t)(wg * 4);
    return s;
}
IDA_DEV void seat_opaque(seat *s) {
    opaque(s->c.own), opaque(s->c.opp), opaque(s->c.u), opaque(s->c.u_own), opaque(s->u_opp), opaque(s->c.u_tile);
    opaque(s->u_column);
}

/* ---- products of a chunk: left of the bar what warpgroup 0 forms, right of it warpgroup 1 */
/* S | dP, the upper triangle zero, in bf16. u_q: where Q | dO count from. */
IDA_DEV void scores(uint32_t (&low)[16], const chain *c, uint32_t u_q) {
    float s[32];
    touch(s);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<0, 0>(s, desc_k(u_q, AT_Q + kk * K_STEP), desc_k(u_q, AT_K + kk * K_STEP), kk > 0);
    wg_commit();
    wg_wait<0>();
    touch(s);
    pack_tril(low, s, c->warp, c->lane);
}
/* T = S F~ + Q X~_k | dB = dP F~ + dO X~_v. u_x: where X~ counts from. */
IDA_DEV void read_state(float (&t)[64], const uint32_t (&low)[16], const chain *c, uint32_t u_q, uint32_t u_x) {
    touch(t);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<0, 0>(t, desc_k(u_q, AT_Q + kk * K_STEP), desc_k(u_x, AT_X + kk * K_STEP), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) mma_rs<1>(t, low + 4 * kk, desc_mn(c->u, AT_F + kk * MN_STEP, TILE), 1);
    wg_commit();
    wg_wait<0>();
    touch(t);
}
/* LEFT | RIGHT = pairs */
IDA_DEV void store_operand(const chain *c, const uint32_t (&pairs)[32]) {
    st_packed(c->own + AT_LEFT, c->place, pairs);
    st_packed(c->own + AT_LEFT + TILE, c->place, pairs + 16);
}
/* S, a | dP, dconj(c), and the low bytes of a | dconj(c). */
IDA_DEV void readers(const chain *c, const e_tables *e) {
    uint32_t pairs[32], low[16];
    float t[64];
    scores(low, c, c->u_own);
    st_packed(c->own + AT_S, c->place, low);
    read_state(t, low, c, c->u_own, c->u_own);
    times_e_low(pairs, t, e, c->own + AT_P, c->warp, c->lane, true);
    store_operand(c, pairs);
}
/* pairs = B | dT by way of conj(c) | da; dG, and the moments of the warp. */
IDA_DEV void gram(uint32_t (&pairs)[32], float (&dg)[32], float *moment, const chain *c, const e_tables *e, bool hermitian) {
    float t[64];
    uint32_t signed_a[16];
    touch(t);
    touch(dg);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 8; kk++)
        mma_ss<0, 0>(t, desc_k(c->u_own, AT_LEFT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                     desc_k(c->u, AT_GG + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
    wg_commit();
    gram_grad(dg, signed_a, c, AT_LEFT, AT_RIGHT, hermitian);
    wg_commit();
    wg_wait<0>();
    touch(t);
    touch(dg);
    back_e(pairs, moment, t, e, c->opp + AT_LEFT, c->opp + AT_P, c->place, c->warp, c->lane, true);
}
/* P | dS = tril(pairs F~^T) */
IDA_DEV void writers(const chain *c, const uint32_t (&pairs)[32]) {
    uint32_t low[16];
    float s[32];
    touch(s);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 8; kk++)
        mma_rs<0>(s, pairs + 4 * kk, desc_k(c->u, AT_F + (kk / 4) * TILE + (kk % 4) * K_STEP), kk > 0);
    wg_commit();
    wg_wait<0>();
    touch(s);
    pack_tril(low, s, c->warp, c->lane);
    st_packed(c->own + AT_P, c->place, low);
}
/* out = dK | dV; dq = dQ, columns 32 wg.. Queued only, as the next two. */
IDA_DEV void token_grads(float (&out)[32], float (&dq)[16], const seat *s) {
    const chain *c = &s->c;
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<1, 1>(out, desc_mn(s->u_opp, AT_P + kk * MN_STEP, TILE), desc_mn(c->u_own, AT_Q + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 8; kk++)
        mma_ss<0, 1>(out, desc_k(c->u, AT_F + (kk / 4) * TILE + (kk % 4) * K_STEP),
                     desc_mn(c->u_own, AT_HAT + kk * MN_STEP, PANEL), 1);
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<0, 1>(dq, desc_k(c->u, AT_DS + kk * K_STEP), desc_mn(s->u_column, AT_K + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 8; kk++)
        mma_ss<0, 1>(dq, desc_k(c->u, AT_RIGHT + (kk / 4) * TILE + (kk % 4) * K_STEP),
                     desc_mn(s->u_column, AT_X + kk * MN_STEP, PANEL), 1);
    wg_commit();
}
/* dX~_k | dX~_v */
IDA_DEV void state_grad(grad_state *dx, const seat *s, uint32_t u_q) {
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        const uint64_t q = desc_mn(u_q, AT_Q + kk * MN_STEP, TILE);
        mma_ss<1, 1>(dx->re, desc_mn(s->u_opp, AT_LEFT + kk * MN_STEP, TILE), q, 1);
        mma_ss<1, 1>(dx->im, desc_mn(s->u_opp, AT_LEFT + TILE + kk * MN_STEP, TILE), q, 1);
    }
    wg_commit();
}
/* dF~, re | im columns */
IDA_DEV void table_grad(float (&df)[32], const chain *c) {
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        mma_ss<1, 1>(df, desc_mn(c->u, AT_DP + kk * MN_STEP, TILE), desc_mn(c->u_tile, AT_LEFT + kk * MN_STEP, TILE), 1);
        mma_ss<1, 1>(df, desc_mn(c->u, AT_S + kk * MN_STEP, TILE), desc_mn(c->u_tile, AT_RIGHT + kk * MN_STEP, TILE), 1);
        mma_ss<0, 0>(df, desc_k(c->u, AT_K + kk * K_STEP), desc_k(c->u_tile, AT_HAT + kk * K_STEP), 1);
        mma_ss<0, 0>(df, desc_k(c->u, AT_V + kk * K_STEP), desc_k(c->u_tile, AT_HAT + PANEL + kk * K_STEP), 1);
    }
    wg_commit();
}

/* ---- a task: all gradients of a run of parts */
/* dQ, and dK | dV, of a chunk of `rows` tokens: through the warp's own rows of tiles that nobody reads any more. */
IDA_DEV void store_tokens(const mix_params *p, const chain *c, const spot *at, int token, int rows, const float (&out)[32],
                          const float (&dq)[16]) {
    uint32_t t[16];
    pack_acc(t, dq);
#pragma unroll
    for (int j = 0; j < 4; j += 2) st_frag(frag_at(c->own + AT_LEFT, c->place, j) ^ (uint32_t)(64 * c->wg), t + 2 * j);
    const int64_t width = c->wg ? p->d : p->r, head_row = token * p->h + at->h;
    if (p->per > 1) {
        store_acc((c->wg ? p->dv_head : p->dk_head) + head_row * width, p->h * width, out, rows, (int)width, at);
    } else {
        pack_acc(t, out);
        st_packed(c->own + AT_S, c->place, t);
    }
    __syncwarp();
    store_rows<4>((__nv_bfloat16 *)p->dq + head_row * p->r, p->h * p->r, c->own + AT_LEFT, 4 * c->wg, rows, (int)p->r, c->warp,
                  c->lane);
    if (p->per == 1)
        store_rows<8>((__nv_bfloat16 *)(c->wg ? p->dv : p->dk) + head_row * width, p->h * width, c->own + AT_S, 0, rows,
                      (int)width, c->warp, c->lane);
}
/* The task's record: dF~, dG, and the moments of the state and of the warps. */
IDA_DEV void store_record(const mix_params *p, unsigned char *smem, const chain *c, const spot *at, float (&df)[32],
                          float (&dg)[32], const float (&moment)[4], int thread) {
    float *record = p->records + blockIdx.x * mix_record_floats(64), *to_dg = record + 64 * 128,
          *mom = record + 64 * 128 + 2 * 4096;
    store_acc(record + 64 * c->wg, 128, df, 64, 64, at);
    store_gram(to_dg + c->wg * 4096, 64, dg, c, p->hermitian);
    float *state_moment = reinterpret_cast<float *>(smem + AT_X); /* [wg][128] */
    bar_sync(1, THREADS);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = moment[i];
        v += __shfl_xor_sync(~0u, v, 1);
        v += __shfl_xor_sync(~0u, v, 2);
        if ((c->lane & 3) == 0) state_moment[c->wg * 128 + (i / 2) * 64 + at->row + (i & 1) * 8] = v;
    }
    bar_sync(1, THREADS);
    if (thread >= 128) return;
    float sum = state_moment[thread] + state_moment[128 + thread];
    const float *rows = reinterpret_cast<const float *>(smem + AT_MOMENT);
    for (int i = 0; i < 8; i++) sum += rows[i * 128 + thread];
    mom[thread] = sum;
}

/* Phases of a part: the gradient of the state after it, and that state's moment; its chunks, each from its operands (readers, gram,
 * writers) by the products of all gradients to rows of dQ and dK | dV, while the next is loaded; the gradient of the first state. At
 * last the record. */
IDA_DEV void run_task(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int run, int64_t h, int wg,
                      int thread) {
    seat me = seat_at(base, wg, thread);
    chain *c = &me.c;
    spot at = chain_spot(c);
    at.h = h, at.g = h / p->per;
    const int centre = MIX_CHUNK / 2;
    const float *pw = p->t.pw + at.g * MIX_POWERS * 128;
    const e_tables e = {reinterpret_cast<const float4 *>(smem + AT_E), reinterpret_cast<const float4 *>(smem + AT_E) + 256};
    float *warp_moment = reinterpret_cast<float *>(smem + AT_MOMENT) + (thread / 32) * 128;
    const uint32_t bar = base + AT_BAR;
    grad_state dx;
    float df[32], dg[32], moment[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 32; i++) df[i] = dg[i] = 0;
    int phase = 0;

    for (int64_t n = p->part_run0[run + 1] - 1; n >= p->part_run0[run]; n--) {
        const mix_part part = p->parts[n];
        const int begin = part.begin, len = part.end - begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
        const bool given = part.last && p->dstate_out.re && at.h % p->per == 0;
        at.s = part.seq;
        if (part.last) grad_load(&dx, p, &at, given);
        else part_load(&dx, p->dx_part + (n * p->h + at.h) * MIX_STATE, wg, thread % 128);
        const unsigned char *slot = p->slots + ((int64_t)(part.slot + n_chunks) * p->h + at.h) * MIX_SLOT;
        if (len > 0 && given) {
            if (thread == 0) {
                fence_async();
                mbar_expect(bar, MIX_SLOT);
                bulk_load(base + AT_X, slot, MIX_SLOT, bar);
            }
            mbar_wait(bar, phase);
            phase ^= 1;
            grad_moment(moment, &dx, c->own + AT_X, c->place, (float)(len - (n_chunks - 1) * MIX_CHUNK - 1 - centre));
            bar_sync(1, THREADS);
        }
        for (int i = n_chunks - 1; i >= 0; i--) {
            const int token = begin + i * MIX_CHUNK, rows = len - i * MIX_CHUNK < MIX_CHUNK ? len - i * MIX_CHUNK : MIX_CHUNK;
            slot -= p->h * MIX_SLOT;
            if (i == n_chunks - 1 && thread == 0) load_chunk(p, maps, base, 0, (int)at.h, (int)at.g, token, slot, i > 0);
            seat_opaque(&me);
            grad_scale(&dx, pw + ((part.last && i == n_chunks - 1 ? rows - 1 - centre : MIX_CHUNK) + centre) * 128, MIX_TILE,
                       at.row);
            publish(c->own + AT_HAT, c->place, &dx);
            mbar_wait(bar, phase);
            phase ^= 1;
            if (rows < MIX_CHUNK) {
                clear_rows<4>(base + AT_Q, rows, thread, THREADS);
                bar_sync(1, THREADS);
            }
            uint32_t pairs[32];
            readers(c, &e);
            fence_async();
            bar_sync(1, THREADS);
            gram(pairs, dg, warp_moment, c, &e, p->hermitian);
            bar_sync(1, THREADS);
            store_operand(c, pairs);
            writers(c, pairs);
            fence_async();
            bar_sync(1, THREADS);

            float out[32], dq[16];
            touch(out);
            touch(dq);
            touch(df);
            touch(dx.re);
            touch(dx.im);
            wg_fence();
            token_grads(out, dq, &me);
            state_grad(&dx, &me, c->u_own);
            table_grad(df, c);
            wg_wait<1>();
            touch(out);
            touch(dq);
            touch(dx.re);
            touch(dx.im);
            grad_moment(moment, &dx, c->own + AT_X, c->place, (float)(i > 0 || part.index > 0 ? MIX_CHUNK : centre + 1));
            wg_wait<0>();
            touch(df);
            bar_sync(1, THREADS);
            if (i > 0 && thread == 0)
                load_chunk(p, maps, base, 0, (int)at.h, (int)at.g, token - MIX_CHUNK, slot - p->h * MIX_SLOT, i > 1);
            store_tokens(p, c, &at, token, rows, out, dq);
        }
        if (part.index > 0) continue;
        if (len > 0) grad_scale(&dx, pw + (2 * centre + 1) * 128, MIX_TILE, at.row);
        if (p->dstate_in.re) grad_store(&dx, p, &at);
    }
    store_record(p, smem, c, &at, df, dg, moment, thread);
}

/* ---- a piece: what it adds to dX~, from zero (from the end's gradient after a sequence's last), to x_piece. Two sets of tiles:
 * one is filled while the other is read. */
IDA_DEV void run_piece(const mix_params *p, const mix_maps *maps, unsigned char *smem, uint32_t base, int piece, int64_t h, int wg,
                       int thread) {
    seat me = seat_at(base, wg, thread);
    chain *c = &me.c;
    spot at = chain_spot(c);
    at.h = h, at.g = h / p->per;
    const int centre = MIX_CHUNK / 2;
    const float *pw = p->t.pw + at.g * MIX_POWERS * 128;
    const e_tables e = {reinterpret_cast<const float4 *>(smem + AT_E), reinterpret_cast<const float4 *>(smem + AT_E) + 256};
    const uint32_t bar = base + AT_BAR;
    grad_state dx;
    int phase = 0, set = 0; /* bit i of phase is that of set i */

    const mix_part part = p->pieces[piece];
    const int begin = part.begin, len = part.end - begin, n_chunks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
    at.s = part.seq;
    grad_load(&dx, p, &at, part.last && p->dstate_out.re && at.h % p->per == 0);
    const unsigned char *slot = p->slots + ((int64_t)(part.slot + n_chunks) * p->h + at.h) * MIX_SLOT;
    for (int i = n_chunks - 1; i >= 0; i--) {
        const int token = begin + i * MIX_CHUNK, rows = len - i * MIX_CHUNK < MIX_CHUNK ? len - i * MIX_CHUNK : MIX_CHUNK;
        slot -= p->h * MIX_SLOT;
        if (i == n_chunks - 1 && thread == 0) {
            load_chunk(p, maps, base, 0, (int)at.h, (int)at.g, token, slot, false);
            if (i > 0) load_chunk(p, maps, base, 1, (int)at.h, (int)at.g, token - MIX_CHUNK, slot - p->h * MIX_SLOT, i > 1);
        }
        seat_opaque(&me);
        grad_scale(&dx, pw + ((part.last && i == n_chunks - 1 ? rows - 1 - centre : MIX_CHUNK) + centre) * 128, MIX_TILE, at.row);
        mbar_wait(bar + 8 * set, (phase >> set) & 1);
        phase ^= 1 << set;
        if (rows < MIX_CHUNK) {
            clear_rows<4>(base + AT_Q + (set ? TILES_2 : 0), rows, thread, THREADS);
            bar_sync(1, THREADS);
        }
        const uint32_t u_q = c->u_own + (set ? TILES_2 / 16 : 0), u_x = c->u_own + (set ? X_2 / 16 : 0);
        uint32_t pairs[32];
        {
            uint32_t low[16];
            float t[64];
            scores(low, c, u_q);
            read_state(t, low, c, u_q, u_x);
            times_e_low(pairs, t, &e, 0, c->warp, c->lane, false);
        }
        {
            float t[64]; /* conj(c) | da */
            touch(t);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                mma_rs<0>(t, pairs + 4 * kk, desc_k(c->u, AT_GG + (kk / 4) * PANEL + (kk % 4) * K_STEP), kk > 0);
            wg_commit();
            wg_wait<0>();
            touch(t);
            back_e(pairs, NULL, t, &e, 0, 0, 0, c->warp, c->lane, false);
        }
        store_operand(c, pairs);
        fence_async();
        bar_sync(1, THREADS);

        touch(dx.re);
        touch(dx.im);
        wg_fence();
        state_grad(&dx, &me, u_q);
        wg_wait<0>();
        touch(dx.re);
        touch(dx.im);
        bar_sync(1, THREADS);
        if (i > 1 && thread == 0)
            load_chunk(p, maps, base, set, (int)at.h, (int)at.g, token - 2 * MIX_CHUNK, slot - 2 * p->h * MIX_SLOT, i > 2);
        set ^= 1;
    }
    part_store(p->x_piece + (piece * p->h + at.h) * MIX_STATE, &dx, wg, thread % 128);
}

/* The group's tables and the two barriers, by all threads. */
IDA_DEV void set_up(const mix_params *p, unsigned char *smem, uint32_t base, int64_t g, int thread) {
    copy16(smem + AT_F, p->t.f16 + g * 2 * TILE, 2 * TILE, thread, THREADS);
    copy16(smem + AT_GG, p->t.gg16 + g * 2 * PANEL, 2 * PANEL, thread, THREADS);
    for (int i = thread; i < 1024; i += THREADS) reinterpret_cast<float *>(smem + AT_MOMENT)[i] = 0;
    e_fill(reinterpret_cast<float4 *>(smem + AT_E), reinterpret_cast<float4 *>(smem + AT_E) + 256, p->t.pw + g * MIX_POWERS * 128,
           MIX_TILE, thread);
    if (thread == 0) {
        mbar_init(base + AT_BAR, 1);
        mbar_init(base + AT_BAR + 8, 1);
    }
    fence_async();
    __syncthreads();
}
#endif

/* A CTA is a task: a run of parts, and a head. */
__global__ void __launch_bounds__(THREADS, 1)
    interdomain_bwd__tile64(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, run = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    set_up(&p, smem, base, g, thread);
    run_task(&p, &maps, smem, base, run, h, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}
/* A CTA is a piece, and a head. */
__global__ void __launch_bounds__(THREADS, 1)
    interdomain_bwd_pieces__tile64(const __grid_constant__ mix_params p, const __grid_constant__ mix_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const uint32_t base = smem_at(smem);
    const int thread = (int)threadIdx.x, piece = (int)(blockIdx.x / p.h), wg = __shfl_sync(~0u, thread / 128, 0);
    const int64_t h = blockIdx.x % p.h, g = h / p.per;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    if (p.parts[p.pieces[piece].whole].index == 0) return; /* nothing comes before it */
    set_up(&p, smem, base, g, thread);
    run_piece(&p, &maps, smem, base, piece, h, wg, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

cudaError_t mix_launch_bwd64(const mix_params *p, int64_t n, cudaStream_t stream) {
    mix_maps maps;
    const cudaError_t status = mix_make_maps(&maps, p, n);
    if (status != cudaSuccess) return status;
    const unsigned ctas = (unsigned)(p->n_part_runs * p->h);
    cudaFuncSetAttribute(interdomain_bwd__tile64, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    cudaFuncSetAttribute(interdomain_bwd_pieces__tile64, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (p->split) {
        interdomain_bwd_pieces__tile64<<<(unsigned)(p->n_pieces * p->h), THREADS, BYTES, stream>>>(*p, maps);
        mix_launch_join(p, 1, stream);
    }
    interdomain_bwd__tile64<<<ctas, THREADS, BYTES, stream>>>(*p, maps);
    return cudaGetLastError();
}
