/* s4d/tables.cu - the ends of the mixers without a query: tables of a head before the scan, parameter gradients after it
 * (s4d.cuh). Exponents, discretisation and chain rule are in double and follow ops/ref. Invariant: every power is the
 * exponential of an exponent, never a product of powers; an entry too small is exactly 0. */
#include "ops/cuda/s4d/s4d.cuh"

#include "ops/cuda/ssm.cuh"
#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, ROWS = THREADS / 64, SLICES = 4 };

__device__ cplx c_add(cplx a, cplx b) { return {a.re + b.re, a.im + b.im}; }
__device__ cplx c_scale(double s, cplx a) { return {s * a.re, s * a.im}; }
__device__ cplx complex_at(const double *row, int64_t m, int64_t i) { return {row[i], row[m + i]}; }
__device__ cplx complex_at(const float *row, int64_t m, int64_t i) { return {(double)row[i], (double)row[m + i]}; }
__device__ void put(float *row, int64_t m, int64_t i, cplx v) { row[i] = (float)v.re, row[m + i] = (float)v.im; }

/* Element (row, col) of panels of 64 rows, in bf16 units (tiles.h). */
__device__ int64_t panel_index(int64_t row, int64_t col) {
    return col / 64 * 4096 + row * 64 + (((col % 64 / 8) ^ (row & 7)) * 8) + col % 8;
}
/* A complex number in bf16, to columns re and im of a row. */
__device__ void put16(unsigned char *panels, int64_t row, int64_t re, int64_t im, cplx v) {
    __nv_bfloat16 *to = reinterpret_cast<__nv_bfloat16 *>(panels);
    to[panel_index(row, re)] = __float2bfloat16_rn((float)v.re);
    to[panel_index(row, im)] = __float2bfloat16_rn((float)v.im);
}

struct coefs {
    cplx lam, b, c, log_lam; /* the angle of log_lam reduced to [-pi, pi] */
};
/* Lam, Bbar and c_i = sum_n w_n C_ni of mode i. */
__device__ coefs coefs_of(const s4d_params *p, int64_t h, int64_t i) {
    const mode q = mode_of(&p->ssm, h, p->m, i);
    coefs r = {c_exp(q.log_lam), bbar_of(&q, p->ssm.disc), {0, 0}, {q.log_lam.re, atan2(sin(q.log_lam.im), cos(q.log_lam.im))}};
#pragma unroll 16
    for (int64_t n = 0; n < p->m; n++) {
        const int64_t at = (h * p->m + n) * p->m + i;
        r.c = c_add(r.c, c_scale((double)p->w[h * p->m + n], {(double)p->ssm.c_re[at], (double)p->ssm.c_im[at]}));
    }
    return r;
}
__device__ void put_coefs(const s4d_params *p, int64_t h, int64_t i, const coefs *q) {
    double *to = p->coef + h * 6 * p->m + i;
    const cplx v[3] = {q->lam, q->b, q->c};
    for (int k = 0; k < 3; k++) to[2 * k * p->m] = v[k].re, to[(2 * k + 1) * p->m] = v[k].im;
}
__global__ void __launch_bounds__(THREADS) s4d_coefficients__thread_per_mode(const __grid_constant__ s4d_params p) {
    for (int64_t i = threadIdx.x; i < p.m; i += THREADS) {
        const coefs q = coefs_of(&p, blockIdx.x, i);
        put_coefs(&p, blockIdx.x, i, &q);
    }
}

/* Power n of mode i (beyond M: zeros) where the tables want it. Returns its part of K_n. */
__device__ double put_power(const s4d_params *p, int64_t h, int n, int64_t i, const coefs *q) {
    const int64_t m = p->m, m2 = 2 * m, row = (h * (S4D_CHUNK + 1) + n) * m2;
    const cplx v = i < m ? c_exp(c_scale((double)n, q->log_lam)) : cplx{0, 0}, f = c_mul(q->b, v), d = c_mul(q->c, v);
    if (i < m) {
        put(p->pw + row, m, i, v);
        if (n > 0) round_inwards(p->pw + row + i, p->pw + row + m + i, v.re, v.im);
        put(p->pw1 + row, m, i, c_scale((double)n, v));
        if (n < S4D_CHUNK) put(p->f + (h * S4D_CHUNK + n) * m2, m, i, f);
        if (n > 0) put(p->out + (h * S4D_CHUNK + n - 1) * m2, m, i, {d.re, -d.im});
    }
    if (p->tables16 && i < S4D_TILE) {
        unsigned char *to = p->tables16 + h * S4D_TABLES16, *half = to + S4D_U16 + i / 32 * S4D_HALF;
        const int64_t re = i % 32 / 8 * 16 + i % 8, im = re + 8;
        const int back = S4D_CHUNK - 1 - n;
        if (n > 0) {
            put16(to + S4D_D16, n - 1, 2 * i, 2 * i + 1, {d.re, -d.im});
            put16(half, n - 1, re, im, v);
            put16(half + S4D_PANEL, n - 1, re, im, c_scale((double)n, v));
        }
        if (n < S4D_CHUNK) {
            put16(to + S4D_F16, back, 2 * i, 2 * i + 1, f);
            put16(half + 2 * S4D_PANEL, back, re, im, v);
            put16(half + 3 * S4D_PANEL, back, re, im, c_scale((double)n, v));
        }
    }
    return c_mul(q->c, f).re;
}
/* Row i of T: K_lag on its diagonal (lag 64: zeros right of the main one). */
__device__ void put_kernel(const s4d_params *p, int64_t h, int lag, int i, float k) {
    float *to = p->kernel + (h * S4D_CHUNK + i) * S4D_CHUNK;
    __nv_bfloat16 *to16 = p->tables16 ? reinterpret_cast<__nv_bfloat16 *>(p->tables16 + h * S4D_TABLES16 + S4D_T16) : NULL;
    const int first = lag < S4D_CHUNK ? i - lag : i + 1, end = lag < S4D_CHUNK ? first + 1 : S4D_CHUNK;
    for (int col = first < 0 ? end : first; col < end; col++) {
        to[col] = lag < S4D_CHUNK ? k : 0.0f;
        if (to16) to16[panel_index(i, col)] = __float2bfloat16_rn(to[col]);
    }
}

/* A block makes ROWS powers of all modes of a head, 64 threads each. */
__global__ void __launch_bounds__(THREADS) s4d_tables__thread_per_power(const __grid_constant__ s4d_params p) {
    __shared__ double parts[THREADS / 32];
    const int64_t h = blockIdx.x, modes = p.tables16 && p.m < S4D_TILE ? (int64_t)S4D_TILE : p.m;
    const int row = (int)threadIdx.x / 64, n = (int)blockIdx.y * ROWS + row, thread = (int)threadIdx.x % 64;
    double k = 0;
    for (int64_t i = thread; i < modes && n <= S4D_CHUNK; i += 64) {
        coefs q = {};
        if (i < p.m) q = coefs_of(&p, h, i);
        if (i < p.m && n == 0) put_coefs(&p, h, i, &q);
        k += put_power(&p, h, n, i, &q);
    }
    k = warp_sum(k);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = k;
    __syncthreads();
    if (n <= S4D_CHUNK) put_kernel(&p, h, n, thread, (float)(parts[2 * row] + parts[2 * row + 1]));
}

/* x_part: what each part left from zero (a sequence's first: from the true start) becomes the state before the next: Lam^(64
 * L) of the state before it is added, L the chunks of a part; sums: and of x1, x1 <- Lam^n (x1 + n x). Which element a thread
 * holds: s4d/walk.cu (re at i, im at i + 1), s4d/sums.cu (re at i, im at i + 2, x1 32 further). Grid [tasks of a part, 16]: tasks
 * may be more than the 65535 that y can count. */
template <int WHICH> __global__ void __launch_bounds__(128) s4d_join__element_per_thread(const __grid_constant__ s4d_params p) {
    constexpr bool SUMS = WHICH == S4D_JOIN_SUMS;
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32, each = 2;
    const s4d_task t = s4d_task_of(&p, blockIdx.x, SUMS ? 2 : 1);
    const int64_t per = p.h * p.blocks, n = p.part_chunks * S4D_CHUNK;
    for (int k = 0; k < (SUMS ? 1 : each); k++) {
        const int pair = (int)blockIdx.y * (SUMS ? 1 : each) + k; /* SUMS: 16 pairs of x and of x1; else 32 */
        const int re = SUMS ? pair / 2 * 4 + pair % 2 : 2 * pair, im = re + (SUMS ? 2 : 1);
        const int64_t mode = SUMS ? 32 * t.half + 8 * warp + lane / 4 : pair / 2 * 4 + (lane & 3);
        cplx lam = {0, 0};
        if (mode < p.m) {
            const struct mode q = mode_of(&p.ssm, t.h, p.m, mode);
            lam = c_exp({(double)n * q.log_lam.re, (double)n * atan2(sin(q.log_lam.im), cos(q.log_lam.im))});
        }
        const float lr = (float)lam.re, li = (float)(WHICH == S4D_JOIN_BACKWARDS ? -lam.im : lam.im);
        float *at = p.x_part + blockIdx.x * S4D_STATE + thread;
        for (int64_t s = 0; s < p.n_seq; s++) {
            const int64_t parts = s4d_parts(p.cu[s + 1] - p.cu[s], p.span, p.part_chunks);
            float xr = 0, xi = 0, yr = 0, yi = 0;
            for (int64_t i = 0; i < parts; i++, at += per * S4D_STATE) {
                if (i == 0) continue;
                const float ar = xr, ai = xi, br = yr + (float)n * xr, bi = yi + (float)n * xi;
                xr = at[re * 128] + (i > 1 ? lr * ar - li * ai : 0.0f);
                xi = at[im * 128] + (i > 1 ? lr * ai + li * ar : 0.0f);
                at[re * 128] = xr, at[im * 128] = xi;
                if (!SUMS) continue;
                yr = at[(32 + re) * 128] + (i > 1 ? lr * br - li * bi : 0.0f);
                yi = at[(32 + im) * 128] + (i > 1 ? lr * bi + li * br : 0.0f);
                at[(32 + re) * 128] = yr, at[(32 + im) * 128] = yi;
            }
        }
    }
}

/* sums[h, which] = the head's records, in order. Grid [heads, pieces of a record, which]. */
__global__ void __launch_bounds__(THREADS) s4d_records__sum_in_order(const __grid_constant__ s4d_params p) {
    const int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x, h = blockIdx.x, which = blockIdx.z;
    if (i >= p.record) return;
    const double *from = p.records + (which * p.n_tasks + h * p.blocks) * p.record + i;
    double sum = 0;
    for (int64_t run = 0; run < p.n_runs; run++)
        for (int64_t block = 0; block < p.blocks; block++) sum += from[(run * p.h * p.blocks + block) * p.record];
    p.sums[(h * 2 + which) * p.record + i] = sum;
}

/* Gradients of c, Bbar and log Lam of a mode, sums of the chunk form aside from K. */
__device__ void from_states(const s4d_params *p, int64_t h, int64_t i, bool initial, cplx *dc, cplx *db, cplx *dlog) {
    const int64_t m = p->m, m2 = 2 * m;
    const double *s = p->sums + h * 2 * p->record, *s0 = s + p->record, *coef = p->coef + h * 6 * m;
    const cplx b = complex_at(coef + m2, m, i), c = complex_at(coef + 2 * m2, m, i), sum = complex_at(s, m, i);
    cplx left = c_conj_mul(b, complex_at(s + m2, m, i)); /* conj(c) of it is the gradient of log Lam */
    *dc = c_conj_mul(b, sum);
    *db = c_add(c_conj_mul(c, sum), complex_at(s + 2 * m2, m, i));
    *dlog = c_conj_mul(b, complex_at(s + 3 * m2, m, i));
    if (initial) {
        *dc = c_add(*dc, complex_at(s0, m, i));
        left = c_add(left, complex_at(s0 + m2, m, i));
        *dlog = c_add(*dlog, complex_at(s0 + 3 * m2, m, i));
    }
    *dlog = c_add(*dlog, c_conj_mul(c, left));
}
/* K_l = Re c Bbar Lam^l backwards: sum[0] = sum of dK_l conj(Lam^l), sum[1] the same weighted by l; SLICES lanes a mode, all
 * get it. */
__device__ void from_kernel(const s4d_params *p, int64_t h, int64_t i, int slice, cplx *sum) {
    const double *kernel = p->sums + h * 2 * p->record + 8 * p->m;
    sum[0] = sum[1] = {0, 0};
#pragma unroll 4
    for (int l = slice; l < S4D_CHUNK && i < p->m; l += SLICES) {
        const cplx v = complex_at(p->pw + (h * (S4D_CHUNK + 1) + l) * 2 * p->m, p->m, i),
                   t = {kernel[l] * v.re, -kernel[l] * v.im};
        sum[0] = c_add(sum[0], t);
        sum[1] = c_add(sum[1], c_scale((double)l, t));
    }
    for (int n = 1; n < SLICES; n *= 2)
        for (int k = 0; k < 2; k++) {
            sum[k].re += __shfl_xor_sync(~0u, sum[k].re, n);
            sum[k].im += __shfl_xor_sync(~0u, sum[k].im, n);
        }
}

/* A block a head: the chain to log_dt, a_log, a_imag, C and w. The gradients of c go to sums, in the place of S. */
__global__ void __launch_bounds__(THREADS)
    s4d_finish__block_per_head(const __grid_constant__ s4d_params p, bool sequential, bool initial) {
    __shared__ double shared[32];
    const int64_t h = blockIdx.x, m = p.m;
    double *s = p.sums + h * 2 * p.record, ddt = 0;
    const double *coef = p.coef + h * 6 * m;
    for (int64_t first = 0; first < m; first += THREADS / SLICES) {
        const int64_t i = first + threadIdx.x / SLICES;
        const int slice = (int)threadIdx.x % SLICES;
        cplx k[2];
        if (!sequential) from_kernel(&p, h, i, slice, k);
        if (slice != 0 || i >= m) continue;
        cplx dc = complex_at(s, m, i), db = complex_at(s + 2 * m, m, i), dlog = complex_at(s + 4 * m, m, i);
        if (!sequential) {
            const cplx b = complex_at(coef + 2 * m, m, i), c = complex_at(coef + 4 * m, m, i);
            from_states(&p, h, i, initial, &dc, &db, &dlog);
            dc = c_add(dc, c_conj_mul(b, k[0]));
            db = c_add(db, c_conj_mul(c, k[0]));
            dlog = c_add(dlog, c_conj_mul(c_mul(b, c), k[1]));
        }
        s[i] = dc.re, s[m + i] = dc.im; /* this thread alone reads them above */
        ddt += mode_bwd(&p.ssm, &p.dssm, h, m, i, dlog, db);
    }
    __syncthreads();
    ddt = block_sum(ddt, shared);
    if (threadIdx.x == 0) p.dssm.log_dt[h] = (float)((double)p.dssm.log_dt[h] + ddt);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll 4
    for (int64_t n = warp; n < m; n += THREADS / 32) { /* c_i = sum_n w_n C_ni */
        const double w = (double)p.w[h * m + n];
        double dw = 0;
        for (int64_t i = lane; i < m; i += 32) {
            const int64_t at = (h * m + n) * m + i;
            dw += (double)p.ssm.c_re[at] * s[i] + (double)p.ssm.c_im[at] * s[m + i];
            p.dssm.c_re[at] = (float)((double)p.dssm.c_re[at] + w * s[i]);
            p.dssm.c_im[at] = (float)((double)p.dssm.c_im[at] + w * s[m + i]);
        }
        dw = warp_sum(dw);
        if (lane == 0) p.dw[h * m + n] = (float)((double)p.dw[h * m + n] + dw);
    }
}

} // namespace

void s4d_launch_tables(const s4d_params *p, cudaStream_t stream) {
    if (p->pw) s4d_tables__thread_per_power<<<dim3((unsigned)p->h, S4D_CHUNK / ROWS + 1), THREADS, 0, stream>>>(*p);
    else s4d_coefficients__thread_per_mode<<<(unsigned)p->h, THREADS, 0, stream>>>(*p);
}

void s4d_launch_join(const s4d_params *p, int which, cudaStream_t stream) {
    const dim3 grid((unsigned)(p->h * p->blocks), 16);
    if (which == S4D_JOIN_FORWARDS) s4d_join__element_per_thread<S4D_JOIN_FORWARDS><<<grid, 128, 0, stream>>>(*p);
    else if (which == S4D_JOIN_BACKWARDS) s4d_join__element_per_thread<S4D_JOIN_BACKWARDS><<<grid, 128, 0, stream>>>(*p);
    else s4d_join__element_per_thread<S4D_JOIN_SUMS><<<grid, 128, 0, stream>>>(*p);
}

void s4d_launch_finish(const s4d_params *p, bool sequential, int runs, cudaStream_t stream) {
    const unsigned blocks = (unsigned)((p->record + THREADS - 1) / THREADS);
    s4d_records__sum_in_order<<<dim3((unsigned)p->h, blocks, (unsigned)runs), THREADS, 0, stream>>>(*p);
    s4d_finish__block_per_head<<<(unsigned)p->h, THREADS, 0, stream>>>(*p, sequential, runs > 1);
}
