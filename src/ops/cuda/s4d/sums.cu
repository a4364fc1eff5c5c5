/* s4d/sums.cu - the sums behind the parameter gradients of the mixers without a query, on tensor cores (s4d.cuh). A CTA is one
 * warpgroup with 64 columns of z and dy and 32 modes; it walks forwards with x and its derivative x1 by log Lam in registers,
 * rows 16 w + i re and 16 w + 8 + i im of mode 8 w + i, so that a thread has one mode. Each chunk:
 *     g = U^T dy, g1 = U1^T dy (U = Lam^(i+1), U1 = (i+1) U);   S += x g, L += x1 g + x g1, without products of re and im in bf16
 *     dT += dy z^T (32 of its columns);   x1 <- Lam^C (x1 + C x) + V1^T z, x <- Lam^C x + V^T z (V = Lam^(C-1-j), V1 = (C-1-j) V)
 * Invariant: between two barriers no tile is both written and read by different warps. */
#include "ops/cuda/s4d/s4d.cuh"

#include "ops/cuda/tiles.h"

namespace {

enum { STAGES = 2, TILE = S4D_PANEL, AT_U = 0, AT_U1 = TILE, AT_V = 2 * TILE, AT_V1 = 3 * TILE, AT_STAGES = 4 * TILE };
enum { STAGE = 2 * TILE, BYTES = AT_STAGES + STAGES * STAGE + 1024 }; /* a stage: z, dy */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
struct tensor {
    const __nv_bfloat16 *from; /* the task's first column of token 0 */
    int64_t stride;
};
/* 128 threads: rows tokens from `token` on into rows shift.. of a tile, zeros around them. */
IDA_DEV void tile_load(uint32_t tile, const tensor *x, int64_t token, int rows, int shift, int cols, int thread) {
    const int row0 = thread / 8, piece = thread % 8;
    const __nv_bfloat16 *at = x->from + (token + row0 - shift) * x->stride + piece * 8;
    tile += (uint32_t)(row0 * 128 + ((piece ^ (row0 & 7)) * 16));
#pragma unroll
    for (int i = 0; i < 4; i++, at += 16 * x->stride) {
        const int row = row0 + 16 * i - shift;
        const bool valid = piece * 8 < cols && row >= 0 && row < rows;
        cp_async<16>(tile + (uint32_t)(i * 2048), valid ? at : x->from, valid);
    }
}

/* Element i of an accumulator of states: im when i & 2, column 8 (i / 4) + 2 (lane % 4) + (i & 1). */
IDA_DEV int column_of(int i, int lane) { return 8 * (i / 4) + 2 * (lane & 3) + (i & 1); }
IDA_DEV void state_load(float (&x)[32], const s4d_params *p, const ida_state_ref *ref, const s4d_task *t, int64_t s, int64_t mode,
                        int lane) {
    const int64_t at = ref->re && mode < p->m ? s4d_state_at(p, ref, t, s) + mode * (p->r + p->d) : 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int col = column_of(i, lane);
        const bool valid = ref->re && mode < p->m && col < t->n;
        x[i] = valid ? (i & 2 ? ref->im : ref->re)[at + col] : 0.0f;
    }
}
/* Sum over this thread's columns of a g (complex); sign -1: of conj(a) g. */
IDA_DEV void dot(float &re, float &im, const float (&a)[32], const float (&g)[32], float sign) {
    float sr = 0, si = 0;
#pragma unroll
    for (int i = 0; i < 32; i += 4)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float ar = a[i + e], ai = sign * a[i + 2 + e], gr = g[i + e], gi = g[i + 2 + e];
            sr += ar * gr - ai * gi;
            si += ar * gi + ai * gr;
        }
    re += sr;
    im += si;
}
/* x1 <- lam (x1 + e x), x <- lam x. */
IDA_DEV void scale_both(float (&x)[32], float (&x1)[32], float2 lam, float e) {
#pragma unroll
    for (int i = 0; i < 32; i += 4)
#pragma unroll
        for (int k = i; k < i + 2; k++) {
            const float re = x[k], im = x[k + 2], re1 = x1[k] + e * re, im1 = x1[k + 2] + e * im;
            x[k] = re * lam.x - im * lam.y;
            x[k + 2] = re * lam.y + im * lam.x;
            x1[k] = re1 * lam.x - im1 * lam.y;
            x1[k + 2] = re1 * lam.y + im1 * lam.x;
        }
}
/* x and x1 as threads hold them. */
IDA_DEV void part_load(float (&x)[32], float (&x1)[32], const float *from, int thread) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i] = from[i * 128 + thread];
        x1[i] = from[(32 + i) * 128 + thread];
    }
}
IDA_DEV void part_store(float *to, const float (&x)[32], const float (&x1)[32], int thread) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        to[i * 128 + thread] = x[i];
        to[(32 + i) * 128 + thread] = x1[i];
    }
}
IDA_DEV float2 power(const float *pw, int64_t m, int64_t mode) {
    return mode < m ? make_float2(pw[mode], pw[m + mode]) : make_float2(0.0f, 0.0f);
}
/* Over the four lanes of a mode, to the record. */
IDA_DEV void put(double *record, int64_t m, int64_t mode, float re, float im, int lane) {
    re += __shfl_xor_sync(~0u, re, 1);
    im += __shfl_xor_sync(~0u, im, 1);
    re += __shfl_xor_sync(~0u, re, 2);
    im += __shfl_xor_sync(~0u, im, 2);
    if ((lane & 3) != 0 || mode >= m) return;
    record[mode] = (double)re;
    record[m + mode] = (double)im;
}

/* g, g1 and dT of a chunk. */
IDA_DEV void products(float (&g)[32], float (&g1)[32], float (&dt)[16], uint32_t u, int z, int half) {
    const int dy = z + TILE;
    touch(g);
    touch(g1);
    touch(dt);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<1, 1>(g, desc_mn(u, AT_U + kk * MN_STEP, TILE), desc_mn(u, dy + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        mma_ss<1, 1>(g1, desc_mn(u, AT_U1 + kk * MN_STEP, TILE), desc_mn(u, dy + kk * MN_STEP, TILE), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) mma_ss<0, 0>(dt, desc_k(u, dy + kk * K_STEP), desc_k(u, z + half * 4096 + kk * K_STEP), 1);
    wg_commit();
    wg_wait<0>();
    touch(g);
    touch(g1);
    touch(dt);
}
/* x += V^T z, x1 += V1^T z. */
IDA_DEV void advance(float (&x)[32], float (&x1)[32], uint32_t u, int z) {
    touch(x);
    touch(x1);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        mma_ss<1, 1>(x, desc_mn(u, AT_V + kk * MN_STEP, TILE), desc_mn(u, z + kk * MN_STEP, TILE), 1);
        mma_ss<1, 1>(x1, desc_mn(u, AT_V1 + kk * MN_STEP, TILE), desc_mn(u, z + kk * MN_STEP, TILE), 1);
    }
    wg_commit();
    wg_wait<0>();
    touch(x);
    touch(x1);
}
/* dK_l += sums over the diagonals of dT's columns 32 half.. */
IDA_DEV void put_kernel(double *record, const float (&dt)[16], float *shared, int half, int warp, int lane, int thread) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) shared[(16 * warp + lane / 4 + (i & 2) * 4) * 33 + column_of(i, lane)] = dt[i];
    __syncthreads();
    if (thread >= S4D_CHUNK) return;
    double sum = 0;
    for (int row = 0; row < S4D_CHUNK; row++) {
        const int col = row - thread - 32 * half;
        if (col >= 0 && col < 32) sum += (double)shared[row * 33 + col];
    }
    record[thread] = sum;
}
/* Where a task's columns of z and dy are. */
struct inputs {
    tensor z, dy;
    int cols;
};
IDA_DEV inputs inputs_of(const s4d_params *p, const s4d_task *t) {
    const inputs in = {{(const __nv_bfloat16 *)(t->key ? p->k : p->v) + s4d_z_at(p, t, 0), p->h * t->half_width},
                       {(const __nv_bfloat16 *)p->dy + s4d_y_at(p, t, 0), p->h * (p->r + p->d)},
                       (int)t->n};
    return in;
}
/* Sends for z_rows rows of z and `rows` of dy, which a pass over states alone has no use for. */
template <bool DY> IDA_DEV void stage_load(uint32_t stage, const inputs *in, int64_t token, int z_rows, int rows, int thread) {
    tile_load(stage, &in->z, token, z_rows, 0, in->cols, thread);
    if (DY) tile_load(stage + TILE, &in->dy, token, rows, 0, in->cols, thread);
    cp_commit();
}
#endif

/* PASS: whole runs; the first pass over parts, which finds states only; the second.
 * Phases: tables and places; the sequences of the run, each chunk from its tile by products, sums and the step of x and x1; what a
 * final state's gradient adds; the record. */
enum { WHOLE_RUNS, PART_STATES, PART_SUMS };
template <int PASS>
__global__ void __launch_bounds__(128, 2) s4d_sums__tile64(const __grid_constant__ s4d_params p, bool initial) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char raw[];
    unsigned char *smem = raw + ((1024 - (smem_at(raw) & 1023)) & 1023);
    const int thread = (int)threadIdx.x, warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
    const uint32_t base = smem_at(smem), u = base >> 4;
    const s4d_task t = s4d_task_of(&p, blockIdx.x, 2);
    constexpr bool PARTS = PASS != WHOLE_RUNS;
    s4d_part part = {0, 0, 1};
    if (PARTS) part = s4d_part_of(&p, t.run);
    if (PASS == PART_STATES && part.index + 1 == part.n) return;
    const int64_t m = p.m, mode = 32 * t.half + 8 * warp + lane / 4;
    const float *pw = p.pw + t.h * (S4D_CHUNK + 1) * 2 * m;
    const ida_state_ref none = {NULL, NULL, 0};
    double *record = p.records + (blockIdx.x + (initial ? p.n_tasks : 0)) * p.record;
    copy16(smem, p.tables16 + t.h * S4D_TABLES16 + S4D_U16 + t.half * S4D_HALF, S4D_HALF, thread, 128);
    for (int64_t i = thread; i < p.record && PASS != PART_STATES; i += 128) record[i] = 0;
    const float2 full = power(pw + S4D_CHUNK * 2 * m, m, mode);
    const inputs in = inputs_of(&p, &t);
    float x[32], x1[32], dt[16], s_re = 0, s_im = 0, l_re = 0, l_im = 0, ends[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++) dt[i] = 0;
    int n = 0; /* chunks so far */
    const int64_t s_end = PARTS ? part.s + 1 : s4d_run_begin(&p, t.run + 1);
    for (int64_t s = PARTS ? part.s : s4d_run_begin(&p, t.run); s < s_end; s++) {
        int64_t begin = p.cu[s], end = p.cu[s + 1];
        const bool is_end = !PARTS || part.index + 1 == part.n; /* the sequence ends here */
        if (PARTS) begin += part.index * p.part_chunks * S4D_CHUNK;
        if (!is_end) end = begin + p.part_chunks * S4D_CHUNK;
        state_load(x, &p, initial && part.index == 0 ? &p.state_in : &none, &t, s, mode, lane);
#pragma unroll
        for (int i = 0; i < 32; i++) x1[i] = 0;
        if (PASS == PART_SUMS && part.index > 0) part_load(x, x1, p.x_part + blockIdx.x * S4D_STATE, thread);
        for (int64_t token = begin; token < end; token += S4D_CHUNK, n++) {
            const int rows = end - token < S4D_CHUNK ? (int)(end - token) : S4D_CHUNK, at = AT_STAGES + n % STAGES * STAGE;
            const bool last = token + rows == end;
            if (token == begin) { /* else the chunk before has sent for it */
                __syncthreads();
                stage_load<PASS != PART_STATES>(base + at, &in, token, initial ? 0 : rows, rows, thread);
            }
            cp_wait<0>();
            fence_async();
            __syncthreads(); /* the tile is there, and nobody reads the other any more */
            if (!last) {
                const int next = AT_STAGES + (n + 1) % STAGES * STAGE;
                const int64_t after = end - token - S4D_CHUNK;
                const int more = after < S4D_CHUNK ? (int)after : S4D_CHUNK;
                stage_load<PASS != PART_STATES>(base + next, &in, token + S4D_CHUNK, initial ? 0 : more, more, thread);
            }
            if (PASS != PART_STATES) {
                float g[32], g1[32];
                products(g, g1, dt, u, at, t.half);
                dot(s_re, s_im, x, g, 1.0f);
                dot(l_re, l_im, x1, g, 1.0f);
                dot(l_re, l_im, x, g1, 1.0f);
                if (last && !(is_end && p.dstate_out.re)) break;
            }
            if (rows < S4D_CHUNK) { /* powers count from the end: the tokens to the end of the tile */
                __syncthreads();
                tile_load(base + at, &in.z, token, initial ? 0 : rows, S4D_CHUNK - rows, in.cols, thread);
                cp_commit();
                cp_wait<0>();
                fence_async();
                __syncthreads();
            }
            scale_both(x, x1, rows < S4D_CHUNK ? power(pw + rows * 2 * m, m, mode) : full, (float)rows);
            advance(x, x1, u, at);
        }
        if (PASS == PART_STATES || !is_end || !p.dstate_out.re) continue;
        float g[32];
        state_load(g, &p, &p.dstate_out, &t, s, mode, lane);
        dot(ends[0], ends[1], x, g, -1.0f);
        dot(ends[2], ends[3], x1, g, -1.0f);
    }
    if (PASS == PART_STATES) {
        part_store(p.x_part + (blockIdx.x + p.h * p.blocks) * S4D_STATE, x, x1, thread);
        return;
    }
    put_kernel(record + 8 * m, dt, reinterpret_cast<float *>(smem + AT_STAGES), t.half, warp, lane, thread);
    put(record, m, mode, s_re, -s_im, lane);
    put(record + 2 * m, m, mode, l_re, -l_im, lane);
    put(record + 4 * m, m, mode, ends[0], ends[1], lane);
    put(record + 6 * m, m, mode, ends[2], ends[3], lane);
#else
    __trap(); /* not for this chip: a build without sm_90a must not leave its outputs unwritten */
#endif
}

} // namespace

template <int PASS> static cudaError_t launch(const s4d_params *p, bool initial, cudaStream_t stream) {
    const cudaError_t status =
        cudaFuncSetAttribute((const void *)s4d_sums__tile64<PASS>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (status == cudaSuccess) s4d_sums__tile64<PASS><<<(unsigned)p->n_tasks, 128, BYTES, stream>>>(*p, initial);
    return status;
}

cudaError_t s4d_launch_sums64(const s4d_params *p, bool initial, cudaStream_t stream) {
    if (p->part_chunks == 0) return launch<WHOLE_RUNS>(p, initial, stream);
    const cudaError_t status = launch<PART_STATES>(p, initial, stream);
    if (status != cudaSuccess) return status;
    s4d_launch_join(p, S4D_JOIN_SUMS, stream);
    return launch<PART_SUMS>(p, initial, stream);
}
