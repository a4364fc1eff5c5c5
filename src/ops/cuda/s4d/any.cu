/* s4d/any.cu - the chunk form of the mixers without a query for any M, R, D and chunk, in fp32 (s4d.cuh): plain loops over a
 * CTA's own scratch in device memory, blocks of S4D_COLS columns. Made to be right, not fast. Invariant: a CTA reads nothing
 * that another writes. */
#include "ops/cuda/s4d/s4d.cuh"

#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, COLS = S4D_COLS, TILE = S4D_CHUNK * COLS, WARPS = THREADS / 32 };

struct work {
    float *z, *u, *x, *x1, *g, *g1; /* two tiles [C, COLS]; states and what is made of dy [2 M, COLS] */
    const float *pw, *pw1, *f, *out, *kernel;
};

__device__ work work_open(const s4d_params *p, int64_t h) {
    work w;
    const int64_t m2 = 2 * p->m, state = m2 * COLS;
    w.z = p->work + blockIdx.x * p->work_each;
    w.u = w.z + TILE;
    w.x = w.u + TILE;
    w.x1 = w.x + state, w.g = w.x1 + state, w.g1 = w.g + state;
    w.pw = p->pw + h * (S4D_CHUNK + 1) * m2;
    w.pw1 = p->pw1 + h * (S4D_CHUNK + 1) * m2;
    w.f = p->f + h * S4D_CHUNK * m2;
    w.out = p->out + h * S4D_CHUNK * m2;
    w.kernel = p->kernel + h * S4D_CHUNK * S4D_CHUNK;
    return w;
}

/* out[i, :] (+)= sum_k a[i ai + k ak] b[k, :] for rows [ni, COLS], 4 x 4 at a time. Ends with a barrier. */
__device__ void gmm(float *out, int64_t ni, const float *a, int64_t ai, int64_t ak, const float *b, int64_t nk, bool add) {
    const int64_t tiles = (ni + 3) / 4 * (COLS / 4);
    for (int64_t tile = threadIdx.x; tile < tiles; tile += THREADS) {
        const int64_t i0 = tile / (COLS / 4) * 4, j0 = tile % (COLS / 4) * 4;
        const float *pa[4];
        float sum[4][4] = {};
        for (int u = 0; u < 4; u++) pa[u] = a + (i0 + u < ni ? i0 + u : ni - 1) * ai;
#pragma unroll 4
        for (int64_t k = 0; k < nk; k++) {
            const float4 y = *reinterpret_cast<const float4 *>(b + k * COLS + j0);
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const float x = pa[u][k * ak];
                sum[u][0] += x * y.x, sum[u][1] += x * y.y, sum[u][2] += x * y.z, sum[u][3] += x * y.w;
            }
        }
        for (int u = 0; u < 4 && i0 + u < ni; u++) {
            float4 *o = reinterpret_cast<float4 *>(out + (i0 + u) * COLS + j0);
            const float4 old = add ? *o : make_float4(0, 0, 0, 0);
            *o = make_float4(old.x + sum[u][0], old.y + sum[u][1], old.z + sum[u][2], old.w + sum[u][3]);
        }
    }
    __syncthreads();
}

template <typename T> __device__ void tile_load(float *to, const T *from, int64_t stride, int64_t rows, int64_t n) {
    for (int64_t i = threadIdx.x; i < rows * COLS; i += THREADS)
        to[i] = i % COLS < n ? to_float(from[i / COLS * stride + i % COLS]) : 0.0f;
}
template <typename T> __device__ void tile_store(T *to, const float *from, int64_t stride, int64_t rows, int64_t n) {
    for (int64_t i = threadIdx.x; i < rows * COLS; i += THREADS)
        if (i % COLS < n) from_float(from[i], to + i / COLS * stride + i % COLS);
}

/* A task's columns of a state array, zeros where there is none. */
__device__ void state_load(float *x, const s4d_params *p, const ida_state_ref *ref, const s4d_task *t, int64_t s) {
    const int64_t size = p->m * COLS, width = p->r + p->d, at = ref->re ? s4d_state_at(p, ref, t, s) : 0;
    for (int64_t i = threadIdx.x; i < size; i += THREADS) {
        const bool valid = ref->re && i % COLS < t->n;
        const int64_t e = at + i / COLS * width + i % COLS;
        x[i] = valid ? ref->re[e] : 0.0f;
        x[size + i] = valid ? ref->im[e] : 0.0f;
    }
    __syncthreads();
}
__device__ void state_store(const float *x, const s4d_params *p, const ida_state_ref *ref, const s4d_task *t, int64_t s) {
    const int64_t size = p->m * COLS, width = p->r + p->d;
    if (!ref->re) return;
    const int64_t at = s4d_state_at(p, ref, t, s);
    for (int64_t i = threadIdx.x; i < size; i += THREADS) {
        if (i % COLS >= t->n) continue;
        ref->re[at + i / COLS * width + i % COLS] = x[i];
        ref->im[at + i / COLS * width + i % COLS] = x[size + i];
    }
    __syncthreads();
}

/* x <- lam x, sign -1: conj(lam) x; lam a row of powers. */
__device__ void scale(float *x, const float *lam, int64_t m, float sign) {
    for (int64_t i = threadIdx.x; i < m * COLS; i += THREADS) {
        const float lr = lam[i / COLS], li = sign * lam[m + i / COLS], re = x[i], im = x[m * COLS + i];
        x[i] = re * lr - im * li;
        x[m * COLS + i] = re * li + im * lr;
    }
    __syncthreads();
}
/* x1 <- lam (x1 + e x), then x <- lam x: lam = Lam^e. */
__device__ void scale_both(float *x, float *x1, const float *lam, int64_t m, float e) {
    for (int64_t i = threadIdx.x; i < m * COLS; i += THREADS) {
        const float lr = lam[i / COLS], li = lam[m + i / COLS], re = x[i], im = x[m * COLS + i];
        const float re1 = x1[i] + e * re, im1 = x1[m * COLS + i] + e * im;
        x[i] = re * lr - im * li;
        x[m * COLS + i] = re * li + im * lr;
        x1[i] = re1 * lr - im1 * li;
        x1[m * COLS + i] = re1 * li + im1 * lr;
    }
    __syncthreads();
}

/* y = T z + D X, X <- Lam^rows X + F^T z; reverse: dz = T^T dy + F G, G <- conj(Lam)^rows G + D^T dy. */
template <typename T, bool REVERSE>
__global__ void __launch_bounds__(THREADS) s4d_walk__any(const __grid_constant__ s4d_params p) {
    const int64_t m2 = 2 * p.m, width = p.r + p.d;
    const ida_state_ref *from = REVERSE ? &p.dstate_out : &p.state_in, *to = REVERSE ? &p.dstate_in : &p.state_out;
    for (int64_t task = blockIdx.x; task < p.n_tasks; task += gridDim.x) {
        const s4d_task t = s4d_task_of(&p, task);
        const work w = work_open(&p, t.h);
        const T *k = (const T *)(t.key ? p.k : p.v);
        T *dk = (T *)(t.key ? p.dk : p.dv);
        const int64_t s_end = s4d_run_begin(&p, t.run + 1);
        for (int64_t s = s4d_run_begin(&p, t.run); s < s_end; s++) {
            const int64_t whole = p.span == S4D_TAIL ? (p.cu[s + 1] - p.cu[s]) / S4D_CHUNK * S4D_CHUNK : 0;
            const int64_t begin = p.cu[s] + whole, len = p.cu[s + 1] - begin, chunks = (len + p.chunk - 1) / p.chunk;
            state_load(w.x, &p, from, &t, s);
            for (int64_t i = 0; i < chunks; i++) {
                const int64_t chunk = REVERSE ? chunks - 1 - i : i, token = begin + chunk * p.chunk;
                const int64_t rows = len - chunk * p.chunk < p.chunk ? len - chunk * p.chunk : p.chunk;
                const float *lam = w.pw + rows * m2, *last = w.f + (rows - 1) * m2;
                if (REVERSE) tile_load(w.z, (const T *)p.dy + s4d_y_at(&p, &t, token), p.h * width, rows, t.n);
                else tile_load(w.z, k + s4d_z_at(&p, &t, token), p.h * t.half_width, rows, t.n);
                __syncthreads();
                gmm(w.u, rows, w.kernel, REVERSE ? 1 : S4D_CHUNK, REVERSE ? S4D_CHUNK : 1, w.z, rows, false);
                if (REVERSE) gmm(w.u, rows, last, -m2, 1, w.x, m2, true);
                else gmm(w.u, rows, w.out, m2, 1, w.x, m2, true);
                if (REVERSE) tile_store(dk + s4d_z_at(&p, &t, token), w.u, p.h * t.half_width, rows, t.n);
                else tile_store((T *)p.y + s4d_y_at(&p, &t, token), w.u, p.h * width, rows, t.n);
                scale(w.x, lam, p.m, REVERSE ? -1.0f : 1.0f);
                if (REVERSE) gmm(w.x, m2, w.out, 1, m2, w.z, rows, true);
                else gmm(w.x, m2, last, 1, -m2, w.z, rows, true);
            }
            state_store(w.x, &p, to, &t, s);
        }
    }
}

/* S and L of a chunk: conj of sum over columns of x g, and of x1 g + x g1. A warp a mode. */
__device__ void add_sums(double *record, const work *w, int64_t m) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t im = m * COLS;
    for (int64_t i = threadIdx.x / 32; i < m; i += WARPS) {
        const int64_t at = i * COLS + lane;
        const float xr = w->x[at], xi = w->x[im + at], yr = w->x1[at], yi = w->x1[im + at];
        const float gr = w->g[at], gi = w->g[im + at], hr = w->g1[at], hi = w->g1[im + at];
        const float sr = warp_sum(xr * gr - xi * gi), si = warp_sum(xr * gi + xi * gr);
        const float lr = warp_sum(yr * gr - yi * gi + (xr * hr - xi * hi)),
                    li = warp_sum(yr * gi + yi * gr + (xr * hi + xi * hr));
        if (lane != 0) continue;
        record[i] += (double)sr, record[m + i] -= (double)si;
        record[2 * m + i] += (double)lr, record[3 * m + i] -= (double)li;
    }
    __syncthreads();
}
/* R and R1: sum over columns of conj(x) g and conj(x1) g, g the gradient of the final state. */
__device__ void add_ends(double *record, const work *w, int64_t m) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t im = m * COLS;
    for (int64_t i = threadIdx.x / 32; i < m; i += WARPS) {
        const int64_t at = i * COLS + lane;
        const float xr = w->x[at], xi = w->x[im + at], yr = w->x1[at], yi = w->x1[im + at], gr = w->g[at], gi = w->g[im + at];
        const float ar = warp_sum(xr * gr + xi * gi), ai = warp_sum(xr * gi - xi * gr);
        const float br = warp_sum(yr * gr + yi * gi), bi = warp_sum(yr * gi - yi * gr);
        if (lane != 0) continue;
        record[4 * m + i] += (double)ar, record[5 * m + i] += (double)ai;
        record[6 * m + i] += (double)br, record[7 * m + i] += (double)bi;
    }
    __syncthreads();
}
/* Gradient of K_l: sum over i and columns of dy_i z_(i-l). Four threads a lag. dy in u. */
__device__ void add_kernel(double *kernel, const work *w, int64_t rows) {
    const int lag = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
    float sum = 0;
    for (int64_t i = lag; i < rows; i++)
        for (int j = part * (COLS / 4); j < (part + 1) * (COLS / 4); j++) sum += w->u[i * COLS + j] * w->z[(i - lag) * COLS + j];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (part == 0) kernel[lag] += (double)sum;
}

/* The forward walk of x and x1 beside dy: a task's record. initial: from the state given, without z. */
template <typename T>
__global__ void __launch_bounds__(THREADS) s4d_sums__any(const __grid_constant__ s4d_params p, bool initial) {
    const ida_state_ref none = {NULL, NULL, 0};
    const int64_t m2 = 2 * p.m, state = m2 * COLS;
    for (int64_t task = blockIdx.x; task < p.n_tasks; task += gridDim.x) {
        const s4d_task t = s4d_task_of(&p, task);
        const work w = work_open(&p, t.h);
        double *record = p.records + (task + (initial ? p.n_tasks : 0)) * p.record;
        for (int64_t i = threadIdx.x; i < p.record; i += THREADS) record[i] = 0;
        const int64_t s_end = s4d_run_begin(&p, t.run + 1);
        for (int64_t s = s4d_run_begin(&p, t.run); s < s_end; s++) {
            const int64_t end = p.cu[s + 1];
            for (int64_t i = threadIdx.x; i < state; i += THREADS) w.x1[i] = 0;
            state_load(w.x, &p, initial ? &p.state_in : &none, &t, s);
            for (int64_t token = p.cu[s]; token < end; token += p.chunk) {
                const int64_t rows = end - token < p.chunk ? end - token : p.chunk;
                tile_load(w.u, (const T *)p.dy + s4d_y_at(&p, &t, token), p.h * (p.r + p.d), rows, t.n);
                if (!initial)
                    tile_load(w.z, (const T *)(t.key ? p.k : p.v) + s4d_z_at(&p, &t, token), p.h * t.half_width, rows, t.n);
                __syncthreads();
                if (!initial) add_kernel(record + 4 * m2, &w, rows);
                gmm(w.g, m2, w.pw + m2, 1, m2, w.u, rows, false);
                gmm(w.g1, m2, w.pw1 + m2, 1, m2, w.u, rows, false);
                add_sums(record, &w, p.m);
                if (token + rows == end && !p.dstate_out.re) break;
                scale_both(w.x, w.x1, w.pw + rows * m2, p.m, (float)rows);
                if (initial) continue;
                gmm(w.x, m2, w.pw + (rows - 1) * m2, 1, -m2, w.z, rows, true);
                gmm(w.x1, m2, w.pw1 + (rows - 1) * m2, 1, -m2, w.z, rows, true);
            }
            if (!p.dstate_out.re) continue;
            state_load(w.g, &p, &p.dstate_out, &t, s);
            add_ends(record, &w, p.m);
        }
    }
}

} // namespace

int64_t s4d_any_work_floats(int64_t m, bool bwd) { return 2 * TILE + (bwd ? 4 : 1) * 2 * m * COLS; }

void s4d_launch_walk_any(const s4d_params *p, bool bf16, bool reverse, int ctas, cudaStream_t stream) {
    if (bf16 && reverse) s4d_walk__any<__nv_bfloat16, true><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else if (bf16) s4d_walk__any<__nv_bfloat16, false><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else if (reverse) s4d_walk__any<float, true><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else s4d_walk__any<float, false><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
}

void s4d_launch_sums_any(const s4d_params *p, bool bf16, bool initial, int ctas, cudaStream_t stream) {
    if (bf16) s4d_sums__any<__nv_bfloat16><<<(unsigned)ctas, THREADS, 0, stream>>>(*p, initial);
    else s4d_sums__any<float><<<(unsigned)ctas, THREADS, 0, stream>>>(*p, initial);
}
