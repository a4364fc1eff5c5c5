/* s4d/walk.cu - the walk of the mixers without a query on tensor cores (s4d.cuh), forwards (y, state_out) or backwards (dz,
 * dstate_in). A CTA is one warpgroup with 64 columns of z. The state is kept transposed in registers, X^T [column, re and im
 * of the modes], so that
 *     y^T = z^T T^T + X^T D^T        X^T <- X^T Lam^64 + z^T F
 * take everything but the tables from registers: an accumulator in bf16 is the next product's operand. A warp touches its own
 * 16 columns only: it loads them, reads them transposed, and writes y over them; no barrier between warps. A sequence's last
 * chunk may be short only where no state meets it (zero before it, going backwards; unwanted after it, going forwards); else
 * s4d/any.cu does it (p.span).
 * Invariant: chunk n of a task uses tile n % STAGES; every chunk commits one group of copies. */
#include "ops/cuda/s4d/s4d.cuh"

#include "ops/cuda/tiles.h"

namespace {

enum {
    STAGES = 4,
    TILE = S4D_PANEL,
    AT_T = 0,
    AT_OUT = TILE,
    AT_IN = 3 * TILE,
    AT_STAGES = 5 * TILE,
    AT_LAM = AT_STAGES + STAGES * TILE
};
enum { BYTES = AT_LAM + 512 + 1024 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* The chunks of a run in order, at counting those of a sequence as they are visited. An empty sequence is one visit with
 * chunks = 0. */
struct walk {
    int s, s_end, begin, len, at, chunks, stop;
};
IDA_DEV void walk_enter(walk *w, const s4d_params *p) {
    w->at = 0;
    if (w->s >= w->s_end) return;
    w->begin = (int)p->cu[w->s];
    w->len = (int)p->cu[w->s + 1] - w->begin;
    w->chunks = w->stop = (int)s4d_chunks(w->len, p->span);
}
template <bool PARTS> IDA_DEV walk walk_open(const s4d_params *p, int64_t run, const s4d_part *part) {
    walk w = {};
    w.s = (int)(PARTS ? part->s : s4d_run_begin(p, run)), w.s_end = (int)(PARTS ? part->s + 1 : s4d_run_begin(p, run + 1));
    walk_enter(&w, p);
    if (PARTS) {
        w.at = (int)(part->index * p->part_chunks);
        if (w.stop > w.at + p->part_chunks) w.stop = w.at + (int)p->part_chunks;
    }
    return w;
}
IDA_DEV bool walk_on(const walk *w) { return w->s < w->s_end; }
template <bool PARTS> IDA_DEV void walk_next(walk *w, const s4d_params *p) {
    if (++w->at < (PARTS ? w->stop : w->chunks)) return;
    w->s++;
    if (!PARTS) walk_enter(w, p);
}
template <bool REVERSE> IDA_DEV int walk_first(const walk *w) { /* token of the chunk in its sequence */
    return (REVERSE && w->chunks > 0 ? w->chunks - 1 - w->at : w->at) * S4D_CHUNK;
}

/* A warp's 16 columns of a tensor and of tiles: rows of `stride` elements. */
struct columns {
    const __nv_bfloat16 *from;
    __nv_bfloat16 *to;
    int64_t from_stride, to_stride;
    uint32_t place; /* of the lane's piece in the first row it copies: lane / 2 */
    int row, piece;
    bool valid; /* its piece has columns */
};
/* rows tokens from `token` on into a tile, zeros below. */
IDA_DEV void columns_load(uint32_t tile, const columns *c, int64_t token, int rows) {
    const __nv_bfloat16 *at = c->from + (token + c->row) * c->from_stride;
#pragma unroll
    for (int i = 0; i < 4; i++, at += 16 * c->from_stride) {
        const bool valid = c->valid && c->row + 16 * i < rows;
        cp_async<16>(tile + c->place + (uint32_t)(i * 2048), valid ? at : c->from, valid);
    }
}
IDA_DEV void columns_store(uint32_t tile, const columns *c, int64_t token, int rows) {
    __nv_bfloat16 *at = c->to + (token + c->row) * c->to_stride;
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = ld_piece(tile, c->row + 16 * i, c->piece);
#pragma unroll
    for (int i = 0; i < 4; i++, at += 16 * c->to_stride)
        if (c->valid && c->row + 16 * i < rows) *reinterpret_cast<uint4 *>(at) = x[i];
}

/* Element i of a thread's state: part i & 1 (re, im) of mode 4 (i / 4) + lane % 4, column 16 warp + lane / 4 + 8 (i >> 1 & 1). */
IDA_DEV void state_load(float (&x)[64], const s4d_params *p, const ida_state_ref *ref, const s4d_task *t, int s, int col,
                        int lane) {
    const int width = (int)(p->r + p->d), m = ref->re ? (int)p->m : 0, n = (int)t->n;
    const int64_t at = ref->re ? s4d_state_at(p, ref, t, s) + (lane & 3) * width + col : 0;
    const float *re = ref->re + at, *im = ref->im + at;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const bool valid = i / 4 * 4 + (lane & 3) < m && col + (i & 2) * 4 < n;
        const int e = i / 4 * 4 * width + (i & 2) * 4;
        x[i] = valid ? re[e] : 0.0f;
        x[i + 1] = valid ? im[e] : 0.0f;
    }
}
IDA_DEV void state_store(const float (&x)[64], const s4d_params *p, const ida_state_ref *ref, const s4d_task *t, int s, int col,
                         int lane) {
    const int width = (int)(p->r + p->d), m = (int)p->m, n = (int)t->n;
    const int64_t at = s4d_state_at(p, ref, t, s) + (lane & 3) * width + col;
    float *re = ref->re + at, *im = ref->im + at;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int e = i / 4 * 4 * width + (i & 2) * 4;
        if (i / 4 * 4 + (lane & 3) >= m || col + (i & 2) * 4 >= n) continue;
        re[e] = x[i];
        im[e] = x[i + 1];
    }
}
/* The same as threads hold it. */
IDA_DEV void part_load(float (&x)[64], const float *from, int thread) {
#pragma unroll
    for (int i = 0; i < 64; i++) x[i] = from[i * 128 + thread];
}
IDA_DEV void part_store(float *to, const float (&x)[64], int thread) {
#pragma unroll
    for (int i = 0; i < 64; i++) to[i * 128 + thread] = x[i];
}
/* x <- lam x, conj(lam) x when REVERSE; lam: in shared memory, [64] by mode, two at a time as they are needed. */
template <bool REVERSE> IDA_DEV void state_scale(float (&x)[64], const float2 *lam, int lane) {
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const volatile float2 *at = lam + 4 * j + (lane & 3);
        const float lr = at->x, li = REVERSE ? -at->y : at->y;
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i += 2) {
            const float re = x[i], im = x[i + 1];
            x[i] = re * lr - im * li;
            x[i + 1] = re * li + im * lr;
        }
    }
}

/* y^T = z^T T^T + X^T D^T; reverse z^T T and F for D. Committed, not awaited. z, pairs: operands, to be left alone until then. */
template <bool REVERSE> IDA_DEV void output_begin(float (&y)[32], const uint32_t *z, const uint32_t *pairs, uint32_t u) {
    touch(y);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        if (REVERSE) mma_rs<1>(y, z + 4 * kk, desc_mn(u, AT_T + kk * MN_STEP, TILE), kk > 0);
        else mma_rs<0>(y, z + 4 * kk, desc_k(u, AT_T + kk * K_STEP), kk > 0);
    }
#pragma unroll
    for (int kk = 0; kk < 8; kk++) mma_rs<0>(y, pairs + 4 * kk, desc_k(u, AT_OUT + kk / 4 * TILE + kk % 4 * K_STEP), 1);
    wg_commit();
}
/* X^T += z^T F; reverse: D. */
IDA_DEV void update_begin(float (&x)[64], const uint32_t *z, uint32_t u) {
    touch(x);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) mma_rs<1>(x, z + 4 * kk, desc_mn(u, AT_IN + kk * MN_STEP, TILE), 1);
    wg_commit();
}
IDA_DEV void tile_read(uint32_t *z, uint32_t tile, uint32_t place) {
#pragma unroll
    for (int kk = 0; kk < 4; kk++) ldsm_t(z + 4 * kk, tile + (uint32_t)(kk * MN_STEP) + place);
}
IDA_DEV void output_end(float (&y)[32], uint32_t *pairs, uint32_t tile, uint32_t place, const columns *c, int64_t token,
                        int rows) {
    touch(y);
    pack_acc(pairs, y);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2) st_frag_t(tile + (uint32_t)(j * 1024) + place, pairs + 2 * j);
    __syncwarp();
    columns_store(tile, c, token, rows);
}
/* The head's tables and Lam^64, by all threads. */
template <bool REVERSE> IDA_DEV void set_up(const s4d_params *p, unsigned char *smem, float2 *lam, int64_t h, int thread) {
    const unsigned char *tables = p->tables16 + h * S4D_TABLES16;
    const float *pw = p->pw + h * (S4D_CHUNK + 1) * 2 * p->m;
    copy16(smem + AT_T, tables + S4D_T16, TILE, thread, 128);
    copy16(smem + AT_OUT, tables + (REVERSE ? S4D_F16 : S4D_D16), 2 * TILE, thread, 128);
    copy16(smem + AT_IN, tables + (REVERSE ? S4D_D16 : S4D_F16), 2 * TILE, thread, 128);
    for (int i = thread; i < 64; i += 128) {
        const float *full = pw + S4D_CHUNK * 2 * p->m;
        lam[i] = i < p->m ? make_float2(full[i], full[p->m + i]) : make_float2(0.0f, 0.0f);
    }
    fence_async();
    __syncthreads();
}
/* From z to y, or from dy to dz. */
template <bool REVERSE> IDA_DEV columns columns_of(const s4d_params *p, const s4d_task *t, int warp, int lane) {
    const int64_t z_stride = p->h * t->half_width, y_stride = p->h * (p->r + p->d), first = 16 * warp + 8 * (lane & 1);
    columns c;
    c.from = REVERSE ? (const __nv_bfloat16 *)p->dy + s4d_y_at(p, t, 0)
                     : (const __nv_bfloat16 *)(t->key ? p->k : p->v) + s4d_z_at(p, t, 0);
    c.to = REVERSE ? (__nv_bfloat16 *)(t->key ? p->dk : p->dv) + s4d_z_at(p, t, 0)
                   : (__nv_bfloat16 *)p->y + s4d_y_at(p, t, 0);
    c.valid = first < t->n;
    if (c.valid) c.from += first, c.to += first;
    c.from_stride = REVERSE ? y_stride : z_stride, c.to_stride = REVERSE ? z_stride : y_stride;
    c.row = lane / 2, c.piece = 2 * warp + (lane & 1);
    c.place = (uint32_t)(c.row * 128 + ((c.piece ^ (c.row & 7)) * 16));
    return c;
}
#endif

/* PASS: whole runs; the first pass over parts, that finds states only; the second. */
enum { WHOLE_RUNS, PART_STATES, PART_OUTPUTS };
template <bool REVERSE, int PASS>
__global__ void __launch_bounds__(128, 2) s4d_walk__tile64(const __grid_constant__ s4d_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const int thread = (int)threadIdx.x, warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32, col = 16 * warp + lane / 4;
    const uint32_t base = smem_at(smem), u = base >> 4, place = frag_t_place(warp, lane);
    const s4d_task t = s4d_task_of(&p, blockIdx.x);
    constexpr bool PARTS = PASS != WHOLE_RUNS;
    s4d_part part = {0, 0, 1};
    if (PARTS) part = s4d_part_of(&p, t.run);
    if (PASS == PART_STATES && part.index + 1 == part.n) return;
    float2 *lam = reinterpret_cast<float2 *>(smem + AT_LAM);
    set_up<REVERSE>(&p, smem, lam, t.h, thread);

    const ida_state_ref *enter = REVERSE ? &p.dstate_out : &p.state_in, *leave = REVERSE ? &p.dstate_in : &p.state_out;
    const columns c = columns_of<REVERSE>(&p, &t, warp, lane);
    const bool leaves = leave->re != NULL;

    walk ahead = walk_open<PARTS>(&p, t.run, &part), now = ahead;
    float x[64], y[32];
    uint32_t z[16], pairs[32];
    for (int n = 1 - STAGES; n < 0 || walk_on(&now); n++) {
        __syncwarp(); /* the tile that is loaded next has been stored by all lanes */
        if (walk_on(&ahead)) {
            const int token = walk_first<REVERSE>(&ahead);
            columns_load(base + AT_STAGES + (uint32_t)((n + STAGES - 1) % STAGES) * TILE, &c, ahead.begin + token,
                         ahead.len - token);
            walk_next<PARTS>(&ahead, &p);
        }
        cp_commit();
        if (n < 0) continue;
        const uint32_t tile = base + AT_STAGES + (uint32_t)(n % STAGES) * TILE;
        const int token = walk_first<REVERSE>(&now);
        /* the first of several parts keeps the state it starts from: where states are updated in place, the last part of the
         * second pass overwrites it */
        if (PASS == PART_OUTPUTS && n == 0 && part.n > 1) part_load(x, p.x_part + blockIdx.x * S4D_STATE, thread);
        else if (now.at == 0) state_load(x, &p, enter, &t, now.s, col, lane);
        else if (PASS == PART_STATES && n == 0)
#pragma unroll
            for (int i = 0; i < 64; i++) x[i] = 0;
        if (PASS == PART_STATES && now.at == 0) part_store(p.x_part + blockIdx.x * S4D_STATE, x, thread);
        cp_wait<STAGES - 1>();
        __syncwarp();
        if (PASS == PART_STATES) {
            tile_read(z, tile, place);
            state_scale<REVERSE>(x, lam, lane);
            update_begin(x, z, u);
            wg_wait<0>();
            touch(x);
        } else if (now.chunks > 0) {
            tile_read(z, tile, place);
            pack_acc(pairs, x);
            state_scale<REVERSE>(x, lam, lane);
            output_begin<REVERSE>(y, z, pairs, u);
            update_begin(x, z, u);
            wg_wait<1>();
            output_end(y, pairs, tile, place, &c, now.begin + token, now.len - token);
            wg_wait<0>();
            touch(x);
        }
        if (PASS != PART_STATES && leaves && now.at + 1 >= now.chunks) state_store(x, &p, leave, &t, now.s, col, lane);
        walk_next<PARTS>(&now, &p);
    }
    if (PASS == PART_STATES) part_store(p.x_part + (blockIdx.x + p.h * p.blocks) * S4D_STATE, x, thread);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

} // namespace

template <bool REVERSE, int PASS> static cudaError_t launch(const s4d_params *p, cudaStream_t stream) {
    const cudaError_t status =
        cudaFuncSetAttribute((const void *)s4d_walk__tile64<REVERSE, PASS>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (status == cudaSuccess) s4d_walk__tile64<REVERSE, PASS><<<(unsigned)p->n_tasks, 128, BYTES, stream>>>(*p);
    return status;
}
template <bool REVERSE> static cudaError_t launch_passes(const s4d_params *p, cudaStream_t stream) {
    if (p->part_chunks == 0) return launch<REVERSE, WHOLE_RUNS>(p, stream);
    const cudaError_t status = launch<REVERSE, PART_STATES>(p, stream);
    if (status != cudaSuccess) return status;
    s4d_launch_join(p, REVERSE ? S4D_JOIN_BACKWARDS : S4D_JOIN_FORWARDS, stream);
    return launch<REVERSE, PART_OUTPUTS>(p, stream);
}

cudaError_t s4d_launch_walk64(const s4d_params *p, bool reverse, cudaStream_t stream) {
    return reverse ? launch_passes<true>(p, stream) : launch_passes<false>(p, stream);
}
