/* interdomain/any.cu - the mixer core for any M, R, D and any decay (mixer.cuh): plain loops over one CTA's own scratch in device
 * memory, in fp32, the same algebra as the tuned path. Made to be right, not fast. On the tuned path it takes the groups whose
 * decay wants a shorter chunk. Backward keeps one state per 64 tokens and forms those between again.
 * Products: of bf16 tensors on tensor cores, each fp32 operand as the sum of two bf16 numbers (any_product.cuh); of fp32 tensors
 * in fp32. Invariant: what a task leaves does not depend on the CTA that took it. */
#include "ops/cuda/interdomain/any_product.cuh"
#include "ops/cuda/interdomain/mixer.cuh"
#include "ops/cuda/vec.cuh"

enum { THREADS = PRODUCT_THREADS };

namespace {

struct work {
    int64_t c, mp, m2, r, d, w; /* chunk, centre = c / 2 */
    float *q, *k, *v, *go, *s, *p, *ds, *a, *b, *da, *db, *dk, *dv, *x, *dx, *hat, *starts, *blocks;
    const float *pw, *f, *gg;
    const double *bbar;
    float *df, *dg, *mom; /* the task's record */
};

__host__ __device__ int64_t work_layout(work *w, float *at, int64_t mp, int64_t r, int64_t d, int64_t blocks, bool bwd) {
    const int64_t m2 = 2 * mp, width = r + d, c = MIX_CHUNK;
    struct {
        float **p;
        int64_t n;
        bool bwd;
    } list[] = {
        {&w->q, c * r, false},
        {&w->k, c * r, false},
        {&w->v, c * d, false},
        {&w->go, c * d, false},
        {&w->s, c * c, false},
        {&w->p, c * c, false},
        {&w->a, c * m2, false},
        {&w->b, c * m2, false},
        {&w->x, m2 * width, false},
        {&w->ds, c * c, true},
        {&w->da, c * m2, true},
        {&w->db, c * m2, true},
        {&w->dk, c * r, true},
        {&w->dv, c * d, true},
        {&w->dx, m2 * width, true},
        {&w->hat, m2 * width, true},
        {&w->starts, (MIX_CHUNK + 1) * m2 * width, true},
        {&w->blocks, blocks * m2 * width, true},
    };
    int64_t total = 0;
    for (auto &e : list) {
        if (e.bwd && !bwd) continue;
        *e.p = at + total;
        total += (e.n + 3) / 4 * 4;
    }
    return total;
}

/* out (+)= scale a b, by product or product_split (any_product.cuh) as the tensors' type asks: a's columns and b's rows are summed
 * over, nk of them. */
struct matrix {
    float *at;
    int64_t ld, rows, cols;
};
template <typename T>
__device__ void gmm(matrix out, product_side a, product_side b, int64_t nk, bool add, float scale = 1.0f) {
    if (sizeof(T) == 2) product_split(out.at, out.ld, out.rows, out.cols, a, b, nk, add, scale);
    else product(out.at, out.ld, out.rows, out.cols, a, b, nk, add, scale);
}

__device__ void tril(float *s, int64_t rows) {
    for (int64_t i = threadIdx.x; i < rows * rows; i += THREADS)
        if (i % rows > i / rows) s[i] = 0;
    __syncthreads();
}

/* x <- x E or x conj(E), rows of complex numbers. */
__device__ void times_e(float *x, const work *w, int64_t rows, float sign) {
    for (int64_t i = threadIdx.x; i < rows * w->mp; i += THREADS) {
        const int64_t at = i / w->mp * w->m2 + i % w->mp;
        const float er = w->pw[at], ei = sign * w->pw[at + w->mp], re = x[at], im = x[at + w->mp];
        x[at] = re * er - im * ei;
        x[at + w->mp] = re * ei + im * er;
    }
    __syncthreads();
}

template <typename T> __device__ void load(float *to, const T *from, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = threadIdx.x; i < rows * cols; i += THREADS) to[i] = to_float(from[i / cols * stride + i % cols]);
}
template <typename T> __device__ void store(T *to, const float *from, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = threadIdx.x; i < rows * cols; i += THREADS) from_float(from[i], to + i / cols * stride + i % cols);
}

/* to = Lam^e (from + F~^T Z), row of Lam^e given. Ends with a barrier. */
template <typename T> __device__ void advance(float *to, const float *from, const work *w, int64_t rows, const float *lam) {
    for (int64_t i = threadIdx.x; i < w->m2 * w->w; i += THREADS) to[i] = from[i];
    __syncthreads();
    gmm<T>({to, w->w, w->m2, w->r}, {w->f, 1, w->m2}, {w->k, 1, w->r}, rows, true);
    gmm<T>({to + w->r, w->w, w->m2, w->d}, {w->f, 1, w->m2}, {w->v, 1, w->d}, rows, true);
    for (int64_t i = threadIdx.x; i < w->mp * w->w; i += THREADS) {
        const int64_t m = i / w->w;
        const float lr = lam[m], li = lam[w->mp + m], re = to[i], im = to[i + w->mp * w->w];
        to[i] = re * lr - im * li;
        to[i + w->mp * w->w] = re * li + im * lr;
    }
    __syncthreads();
}

/* A state array's entry times Lam^e (lam NULL = 1), or zeros. */
__device__ void state_load(float *x, const work *w, const ida_state_ref *ref, int64_t s, int64_t g, int64_t m, const float *lam) {
    const int64_t n = w->mp * w->w, at = ref->re ? mix_state_at(ref, s, g, m * w->w) : 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const int64_t mode = i / w->w;
        float re = 0, im = 0;
        if (ref->re && mode < m) re = ref->re[at + i], im = ref->im[at + i];
        const float lr = lam ? lam[mode] : 1.0f, li = lam ? lam[w->mp + mode] : 0.0f;
        x[i] = re * lr - im * li;
        x[i + n] = re * li + im * lr;
    }
    __syncthreads();
}

__device__ const float *power(const work *w, int64_t e) { return w->pw + (e + w->c / 2) * w->m2; }
__device__ int64_t exit_power(const work *w, int64_t rows, bool last) { return last ? rows - 1 - w->c / 2 : w->c; }

__device__ work work_open(const mix_params *p, int64_t g, bool bwd) {
    work w;
    work_layout(&w, p->work + blockIdx.x * p->work_floats, p->mp, p->r, p->d, p->work_blocks, bwd);
    w.c = p->t.chunk[g], w.mp = p->mp, w.m2 = 2 * p->mp, w.r = p->r, w.d = p->d, w.w = p->r + p->d;
    w.pw = p->t.pw + g * MIX_POWERS * w.m2;
    w.f = p->t.f + g * MIX_CHUNK * w.m2;
    w.gg = p->t.gg + g * w.m2 * w.m2;
    w.bbar = p->t.b + g * w.m2;
    return w;
}

template <typename T> __device__ void load_kv(const work *w, const mix_params *p, int64_t token, int64_t rows, int64_t g) {
    load(w->k, (const T *)p->k + (token * p->g + g) * p->r, p->g * p->r, rows, p->r);
    load(w->v, (const T *)p->v + (token * p->g + g) * p->d, p->g * p->d, rows, p->d);
    __syncthreads();
}

/* S, a and B of a chunk whose tiles are loaded; P too. x: X~ before it. */
template <typename T> __device__ void chunk_forward(const work *w, const float *x, int64_t rows) {
    gmm<T>({w->s, rows, rows, rows}, {w->q, w->r, 1}, {w->k, w->r, 1}, w->r, false);
    tril(w->s, rows);
    gmm<T>({w->a, w->m2, rows, w->m2}, {w->s, rows, 1}, {w->f, 1, w->m2}, rows, false);
    gmm<T>({w->a, w->m2, rows, w->m2}, {w->q, w->r, 1}, {x, w->w, 1}, w->r, true);
    times_e(w->a, w, rows, 1.0f);
    gmm<T>({w->b, w->m2, rows, w->m2}, {w->a, w->m2, 1}, {w->gg, 1, w->m2}, w->m2, false);
    times_e(w->b, w, rows, -1.0f);
    gmm<T>({w->p, rows, rows, rows}, {w->b, w->m2, 1}, {w->f, w->m2, 1}, w->m2, false);
    tril(w->p, rows);
}

template <typename T> __global__ void __launch_bounds__(THREADS, 2) interdomain_fwd__any(const __grid_constant__ mix_params p) {
    for (int64_t task = blockIdx.x; task < p.n_runs * p.h; task += gridDim.x) {
        const int64_t run = task / p.h, h = task % p.h, g = h / p.per;
        if (mix_tuned(&p, g)) continue;
        const work w = work_open(&p, g, false);
        const bool keep = p.state_out.re && h % p.per == 0;
        for (int64_t s = p.run0[run]; s < p.run0[run + 1]; s++) {
            const int64_t end = p.cu[s + 1];
            state_load(w.x, &w, &p.state_in, s, g, p.m, p.cu[s] < end ? power(&w, w.c / 2 + 1) : NULL);
            for (int64_t t = p.cu[s]; t < end; t += w.c) {
                const int64_t rows = end - t < w.c ? end - t : w.c;
                load(w.q, (const T *)p.q + (t * p.h + h) * p.r, p.h * p.r, rows, p.r);
                load_kv<T>(&w, &p, t, rows, g);
                chunk_forward<T>(&w, w.x, rows);
                gmm<T>({w.go, p.d, rows, p.d}, {w.p, rows, 1}, {w.v, 1, p.d}, rows, false);
                gmm<T>({w.go, p.d, rows, p.d}, {w.b, w.m2, 1}, {w.x + p.r, 1, w.w}, w.m2, true);
                store((T *)p.o + (t * p.h + h) * p.d, w.go, p.h * p.d, rows, p.d);
                advance<T>(w.x, w.x, &w, rows, power(&w, exit_power(&w, rows, t + rows == end)));
            }
            if (!keep) continue;
            const int64_t n = w.mp * w.w, at = mix_state_at(&p.state_out, s, g, p.m * w.w);
            for (int64_t i = threadIdx.x; i < p.m * w.w; i += THREADS) {
                p.state_out.re[at + i] = w.x[i];
                p.state_out.im[at + i] = w.x[i + n];
            }
            __syncthreads();
        }
    }
}

/* mom_m += sum_i weight_i conj(y_im) x_im over rows; weight = i - centre. */
__device__ void row_moment(const work *w, const float *y, const float *x, int64_t rows) {
    for (int64_t m = threadIdx.x; m < w->mp; m += THREADS) {
        float re = 0, im = 0;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = i * w->m2 + m;
            const float yr = y[at], yi = y[at + w->mp], xr = x[at], xi = x[at + w->mp], k = (float)(i - w->c / 2);
            re += k * (yr * xr + yi * xi);
            im += k * (yr * xi - yi * xr);
        }
        w->mom[m] += re;
        w->mom[w->mp + m] += im;
    }
    __syncthreads();
}

/* mom_m += e sum_w conj(x_mw) dx_mw, then dx <- conj(lam) dx. */
__device__ void gradient_scan(const work *w, const float *x, float *dx, const float *lam, int64_t e) {
    const int64_t n = w->mp * w->w;
    for (int64_t m = threadIdx.x; m < w->mp; m += THREADS) {
        float re = 0, im = 0;
        for (int64_t i = m * w->w; i < (m + 1) * w->w; i++) {
            re += x[i] * dx[i] + x[i + n] * dx[i + n];
            im += x[i] * dx[i + n] - x[i + n] * dx[i];
        }
        w->mom[m] += (float)e * re;
        w->mom[w->mp + m] += (float)e * im;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const int64_t m = i / w->w;
        const float lr = lam[m], li = lam[w->mp + m], re = dx[i], im = dx[i + n];
        dx[i] = lr * re + li * im;
        dx[i + n] = lr * im - li * re;
    }
    __syncthreads();
}

/* One chunk: dx is the gradient of the state after it (x_after), then of X~ before it (x). */
template <typename T>
__device__ void chunk_backward(const work *w, const mix_params *p, const float *x, const float *x_after, int64_t token,
                               int64_t rows, bool last, int64_t h) {
    const int64_t g = h / p->per, m2 = w->m2, mp = w->mp, r = w->r, d = w->d, width = w->w, e = exit_power(w, rows, last);
    load(w->q, (const T *)p->q + (token * p->h + h) * r, p->h * r, rows, r);
    load(w->go, (const T *)p->dout + (token * p->h + h) * d, p->h * d, rows, d);
    load_kv<T>(w, p, token, rows, g);
    gradient_scan(w, x_after, w->dx, power(w, e), e);
    for (int64_t i = threadIdx.x; i < m2 * width; i += THREADS) w->hat[i] = w->dx[i];
    chunk_forward<T>(w, x, rows);
    /* through X^ = X~ + F~^T Z */
    gmm<T>({w->dk, r, rows, r}, {w->f, m2, 1}, {w->hat, 1, width}, m2, false);
    gmm<T>({w->dv, d, rows, d}, {w->f, m2, 1}, {w->hat + r, 1, width}, m2, false);
    gmm<T>({w->df, m2, rows, m2}, {w->k, r, 1}, {w->hat, width, 1}, r, true);
    gmm<T>({w->df, m2, rows, m2}, {w->v, d, 1}, {w->hat + r, width, 1}, d, true);
    /* o = P V + B X~_v, P = tril(B F~^T) */
    gmm<T>({w->ds, rows, rows, rows}, {w->go, d, 1}, {w->v, d, 1}, d, false);
    tril(w->ds, rows);
    gmm<T>({w->dv, d, rows, d}, {w->p, 1, rows}, {w->go, 1, d}, rows, true);
    gmm<T>({w->db, m2, rows, m2}, {w->ds, rows, 1}, {w->f, 1, m2}, rows, false);
    gmm<T>({w->db, m2, rows, m2}, {w->go, d, 1}, {x + r, width, 1}, d, true);
    gmm<T>({w->df, m2, rows, m2}, {w->ds, 1, rows}, {w->b, 1, m2}, rows, true);
    gmm<T>({w->dx + r, width, m2, d}, {w->b, 1, m2}, {w->go, 1, d}, rows, true);
    /* B = conj(c E), conj(c) = a gg. conj(dB) B = conj(dconj(c)) conj(c) */
    row_moment(w, w->db, w->b, rows);
    times_e(w->db, w, rows, 1.0f);
    gmm<T>({w->da, m2, rows, m2}, {w->db, m2, 1}, {w->gg, 1, m2}, m2, false);
    const float sign = p->hermitian ? 1.0f : -1.0f;
    gmm<T>({w->dg, mp, mp, mp}, {w->a, 1, m2}, {w->db, 1, m2}, rows, true);
    gmm<T>({w->dg, mp, mp, mp}, {w->a + mp, 1, m2}, {w->db + mp, 1, m2}, rows, true, sign);
    gmm<T>({w->dg + mp * mp, mp, mp, mp}, {w->a + mp, 1, m2}, {w->db, 1, m2}, rows, true, sign);
    gmm<T>({w->dg + mp * mp, mp, mp, mp}, {w->a, 1, m2}, {w->db + mp, 1, m2}, rows, true, -1.0f);
    row_moment(w, w->a, w->da, rows);
    times_e(w->da, w, rows, -1.0f);
    /* T = S F~ + Q X~_k, S = tril(Q K^T) */
    gmm<T>({w->ds, rows, rows, rows}, {w->da, m2, 1}, {w->f, m2, 1}, m2, false);
    tril(w->ds, rows);
    gmm<T>({w->df, m2, rows, m2}, {w->s, 1, rows}, {w->da, 1, m2}, rows, true);
    gmm<T>({w->dx, width, m2, r}, {w->da, 1, m2}, {w->q, 1, r}, rows, true);
    gmm<T>({w->dk, r, rows, r}, {w->ds, 1, rows}, {w->q, 1, r}, rows, true);
    gmm<T>({w->go, r, rows, r}, {w->ds, rows, 1}, {w->k, 1, r}, rows, false);
    gmm<T>({w->go, r, rows, r}, {w->da, m2, 1}, {x, 1, width}, m2, true);
    store((T *)p->dq + (token * p->h + h) * r, w->go, p->h * r, rows, r);
    if (p->per > 1) {
        store(p->dk_head + (token * p->h + h) * r, w->dk, p->h * r, rows, r);
        store(p->dv_head + (token * p->h + h) * d, w->dv, p->h * d, rows, d);
    } else {
        store((T *)p->dk + (token * p->h + h) * r, w->dk, p->h * r, rows, r);
        store((T *)p->dv + (token * p->h + h) * d, w->dv, p->h * d, rows, d);
    }
    __syncthreads();
}

template <typename T> __device__ void sequence_backward(const work *w, const mix_params *p, int64_t s, int64_t h) {
    const int64_t g = h / p->per, begin = p->cu[s], len = p->cu[s + 1] - begin, state = w->m2 * w->w, n = w->mp * w->w;
    const ida_state_ref none = {NULL, NULL, 0};
    state_load(w->dx, w, h % p->per ? &none : &p->dstate_out, s, g, p->m, NULL);
    const int64_t n_blocks = (len + MIX_CHUNK - 1) / MIX_CHUNK;
    if (len > 0) state_load(w->blocks, w, &p->state_in, s, g, p->m, power(w, w->c / 2 + 1));
    for (int64_t i = 0; i < (n_blocks - 1) * MIX_CHUNK; i += w->c) {
        const int64_t block = i / MIX_CHUNK;
        load_kv<T>(w, p, begin + i, w->c, g);
        advance<T>(i % MIX_CHUNK + w->c == MIX_CHUNK ? w->blocks + (block + 1) * state : w->x,
                   i % MIX_CHUNK ? w->x : w->blocks + block * state, w, w->c, power(w, w->c));
    }
    for (int64_t block = n_blocks - 1; block >= 0; block--) {
        const int64_t first = block * MIX_CHUNK, size = len - first < MIX_CHUNK ? len - first : MIX_CHUNK,
                      chunks = (size + w->c - 1) / w->c;
        for (int64_t i = threadIdx.x; i < state; i += THREADS) w->starts[i] = w->blocks[block * state + i];
        __syncthreads();
        for (int64_t c = 0; c < chunks; c++) {
            const int64_t at = first + c * w->c, rows = len - at < w->c ? len - at : w->c;
            load_kv<T>(w, p, begin + at, rows, g);
            advance<T>(w->starts + (c + 1) * state, w->starts + c * state, w, rows,
                       power(w, exit_power(w, rows, at + rows == len)));
        }
        for (int64_t c = chunks - 1; c >= 0; c--) {
            const int64_t at = first + c * w->c, rows = len - at < w->c ? len - at : w->c;
            chunk_backward<T>(w, p, w->starts + c * state, w->starts + (c + 1) * state, begin + at, rows, at + rows == len, h);
        }
    }
    if (len > 0) gradient_scan(w, w->blocks, w->dx, power(w, w->c / 2 + 1), w->c / 2 + 1);
    const bool heads = p->per > 1;
    if (!p->dstate_in.re) return;
    const int64_t size = p->m * w->w, at = heads ? (s * p->h + h) * size : mix_state_at(&p->dstate_in, s, g, size);
    float *re = heads ? p->dx_head + at : p->dstate_in.re + at,
          *im = heads ? p->dx_head + p->n_seq * p->h * size + at : p->dstate_in.im + at;
    for (int64_t i = threadIdx.x; i < size; i += THREADS) {
        re[i] = w->dx[i];
        im[i] = w->dx[i + n];
    }
    __syncthreads();
}

template <typename T> __global__ void __launch_bounds__(THREADS, 2) interdomain_bwd__any(const __grid_constant__ mix_params p) {
    for (int64_t task = blockIdx.x; task < p.n_runs * p.h; task += gridDim.x) {
        const int64_t run = task / p.h, h = task % p.h, g = h / p.per, record = mix_record_floats(p.mp);
        if (mix_tuned(&p, g)) continue;
        work w = work_open(&p, g, true);
        w.df = p.records + task * record;
        w.dg = w.df + 64 * w.m2;
        w.mom = w.dg + 2 * w.mp * w.mp;
        for (int64_t i = threadIdx.x; i < record; i += THREADS) w.df[i] = 0;
        __syncthreads();
        for (int64_t s = p.run0[run]; s < p.run0[run + 1]; s++) sequence_backward<T>(&w, &p, s, h);
    }
}

} // namespace

int64_t mix_any_work_floats(const mix_params *p, int64_t blocks, bool bwd) {
    work w;
    return work_layout(&w, NULL, p->mp, p->r, p->d, blocks, bwd);
}

void mix_launch_fwd_any(const mix_params *p, bool bf16, int ctas, cudaStream_t stream) {
    if (bf16)
        interdomain_fwd__any<__nv_bfloat16><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else
        interdomain_fwd__any<float><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
}

void mix_launch_bwd_any(const mix_params *p, bool bf16, int ctas, cudaStream_t stream) {
    if (bf16)
        interdomain_bwd__any<__nv_bfloat16><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else
        interdomain_bwd__any<float><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
}
