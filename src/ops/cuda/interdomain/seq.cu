/* interdomain/seq.cu - the mixer core token by token (ops.h "interdomain" seq): the sequential truth on the GPU, any M, R, D,
 * every sum and the state in double, C itself and never G. Made to be right, not fast. One CTA takes one sequence (backward: a
 * run of them) of one group, with scratch of its own in device memory.
 * Invariant: a CTA's sums have one order whatever the number of CTAs; parameter gradients are summed over runs in order, and the
 * runs are a function of the shapes. */
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/ssm.cuh"
#include "ops/cuda/vec.cuh"

/* BLOCK: tokens between stored states of the backward pass. WANTED: runs times groups. */
enum { THREADS = 256, BLOCK = 64, CTAS = 264, WANTED = 528 };
static const int64_t MAX_SCRATCH = (int64_t)1 << 30; /* of states; one CTA may need more */

namespace {

struct seq_params {
    int64_t n_seq, h, g, r, d, m, runs, each;
    int hermitian;
    const int64_t *cu;
    ida_ssm ssm;
    const void *q, *k, *v, *dout;
    void *o, *dq, *dk, *dv;
    ida_state_ref state_in, state_out, dstate_out, dstate_in;
    ida_ssm_grads dssm;
    cplx *work, *records; /* records: dLam [M], dBbar [M], dC [M,M] of each run and group */
};

/* A CTA's scratch. x: states [n_x,M,W]. */
struct seq_work {
    cplx *lam, *b, *a, *s, *p, *dp, *ds, *da, *x, *dx, *block_x, *dlam, *db, *dc;
};

__host__ __device__ int64_t work_layout(seq_work *w, cplx *at, int64_t m, int64_t mw, int64_t n_x, int64_t n_blocks, bool bwd) {
    struct {
        cplx **p;
        int64_t n;
    } list[] = {{&w->lam, m},  {&w->b, m},  {&w->a, m},  {&w->s, m},         {&w->p, m},
                {&w->x, n_x * mw}, {&w->dp, m}, {&w->ds, m}, {&w->da, m}, {&w->dx, mw}, {&w->block_x, n_blocks * mw}};
    int64_t total = 0;
    for (int i = 0; i < (bwd ? 11 : 6); i++) {
        *list[i].p = at + total;
        total += list[i].n;
    }
    return total;
}

__host__ __device__ int64_t record_size(int64_t m) { return 2 * m + m * m; }

__device__ cplx add(cplx a, cplx b) { return {a.re + b.re, a.im + b.im}; }
__device__ cplx times(cplx a, double x) { return {a.re * x, a.im * x}; }
__device__ double re_conj_mul(cplx a, cplx b) { return a.re * b.re + a.im * b.im; }
__device__ cplx conj_of(cplx a) { return {a.re, -a.im}; }
__device__ cplx c_sum(cplx a) { return {warp_sum(a.re), warp_sum(a.im)}; }
__device__ cplx c_entry(const seq_params *p, int64_t g, int64_t n, int64_t i) {
    const int64_t at = (g * p->m + n) * p->m + i;
    return {(double)p->ssm.c_re[at], (double)p->ssm.c_im[at]};
}

/* Lam, Bbar. Ends with a barrier. */
__device__ void group_load(const seq_work *w, const seq_params *p, int64_t g) {
    for (int64_t i = threadIdx.x; i < p->m; i += THREADS) {
        const mode q = mode_of(&p->ssm, g, p->m, i);
        w->lam[i] = c_exp(q.log_lam);
        w->b[i] = bbar_of(&q, p->ssm.disc);
    }
    __syncthreads();
}

/* Elements of a state are always a thread's own: loading, stepping and copying need no barrier among themselves. */
__device__ void state_load(cplx *x, const ida_state_ref *ref, int64_t s, int64_t g, int64_t mw) {
    const int64_t at = ref->re ? s * ref->stride + g * mw : 0;
    for (int64_t e = threadIdx.x; e < mw; e += THREADS)
        x[e] = ref->re ? cplx{(double)ref->re[at + e], (double)ref->im[at + e]} : cplx{0, 0};
}
__device__ void state_store(const ida_state_ref *ref, const cplx *x, int64_t s, int64_t g, int64_t mw) {
    if (!ref->re) return;
    const int64_t at = s * ref->stride + g * mw;
    for (int64_t e = threadIdx.x; e < mw; e += THREADS) {
        ref->re[at + e] = (float)x[e].re;
        ref->im[at + e] = (float)x[e].im;
    }
}
/* Column j of z_t = [k_t ; v_t]. */
template <class T> __device__ double z_of(const seq_params *p, int64_t t, int64_t g, int64_t j) {
    const int64_t row = t * p->g + g;
    return (double)(j < p->r ? to_float(((const T *)p->k)[row * p->r + j]) : to_float(((const T *)p->v)[row * p->d + j - p->r]));
}
/* X = Lam X_prev + Bbar z^T */
template <class T>
__device__ void state_step(cplx *x, const cplx *prev, const seq_work *w, const seq_params *p, int64_t t, int64_t g) {
    const int64_t width = p->r + p->d;
    for (int64_t e = threadIdx.x; e < p->m * width; e += THREADS) {
        const int64_t i = e / width;
        x[e] = add(c_mul(w->lam[i], prev[e]), times(w->b[i], z_of<T>(p, t, g, e % width)));
    }
}

/* a = X_k q;  s = C a;  p = C^T w(s). Ends with a barrier. */
template <class T> __device__ void readout_coefs(const seq_work *w, const seq_params *p, const cplx *x, const T *q, int64_t g) {
    const int64_t m = p->m, width = p->r + p->d, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int64_t i = warp; i < m; i += THREADS / 32) {
        cplx sum = {0, 0};
        for (int64_t j = lane; j < p->r; j += 32) sum = add(sum, times(x[i * width + j], (double)to_float(q[j])));
        sum = c_sum(sum);
        if (lane == 0) w->a[i] = sum;
    }
    __syncthreads();
    for (int64_t n = warp; n < m; n += THREADS / 32) {
        cplx sum = {0, 0};
        for (int64_t i = lane; i < m; i += 32) sum = add(sum, c_mul(c_entry(p, g, n, i), w->a[i]));
        sum = c_sum(sum);
        if (lane == 0) w->s[n] = sum;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < m; i += THREADS) {
        cplx sum = {0, 0};
        for (int64_t n = 0; n < m; n++) sum = add(sum, c_mul(p->hermitian ? conj_of(w->s[n]) : w->s[n], c_entry(p, g, n, i)));
        w->p[i] = sum;
    }
    __syncthreads();
}

template <class T> __global__ void __launch_bounds__(THREADS)
    interdomain_seq_fwd__cta_per_sequence(const __grid_constant__ seq_params p) {
    const int64_t width = p.r + p.d, mw = p.m * width, per = p.h / p.g;
    seq_work w;
    work_layout(&w, p.work + blockIdx.x * p.each, p.m, mw, 1, 0, false);
    for (int64_t task = blockIdx.x; task < p.n_seq * p.g; task += gridDim.x) {
        const int64_t s = task / p.g, g = task % p.g;
        __syncthreads();
        group_load(&w, &p, g);
        state_load(w.x, &p.state_in, s, g, mw);
        for (int64_t t = p.cu[s]; t < p.cu[s + 1]; t++) {
            state_step<T>(w.x, w.x, &w, &p, t, g);
            __syncthreads();
            for (int64_t h = g * per; h < (g + 1) * per; h++) {
                readout_coefs<T>(&w, &p, w.x, (const T *)p.q + (t * p.h + h) * p.r, g);
                for (int64_t j = threadIdx.x; j < p.d; j += THREADS) {
                    double sum = 0;
                    for (int64_t i = 0; i < p.m; i++) {
                        const cplx c = w.p[i], x = w.x[i * width + p.r + j];
                        sum += c.re * x.re - c.im * x.im;
                    }
                    from_float((float)sum, (T *)p.o + (t * p.h + h) * p.d + j);
                }
                __syncthreads();
            }
        }
        state_store(&p.state_out, w.x, s, g, mw);
    }
}

/* One query's read-out backwards: adds to dx and dc, writes dq. Forward line above each derivative. Ends with a barrier. */
template <class T>
__device__ void readout_bwd(const seq_work *w, const seq_params *p, const cplx *x, const T *q, const T *dout, T *dq, int64_t g) {
    const int64_t m = p->m, r = p->r, d = p->d, width = r + d, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    readout_coefs<T>(w, p, x, q, g);
    /* o_j = Re sum_i p_i X_v[i,j] */
    for (int64_t i = warp; i < m; i += THREADS / 32) {
        cplx sum = {0, 0};
        for (int64_t j = lane; j < d; j += 32) {
            const double go = (double)to_float(dout[j]);
            const int64_t e = i * width + r + j;
            sum = add(sum, times(conj_of(x[e]), go));
            w->dx[e] = add(w->dx[e], times(conj_of(w->p[i]), go));
        }
        sum = c_sum(sum);
        if (lane == 0) w->dp[i] = sum;
    }
    __syncthreads();
    /* p_i = sum_n w(s_n) C_ni */
    for (int64_t n = warp; n < m; n += THREADS / 32) {
        cplx sum = {0, 0};
        for (int64_t i = lane; i < m; i += 32) sum = add(sum, c_conj_mul(c_entry(p, g, n, i), w->dp[i]));
        sum = c_sum(sum);
        if (lane == 0) w->ds[n] = p->hermitian ? conj_of(sum) : sum;
    }
    __syncthreads();
    /* and s_n = sum_i C_ni a_i */
    for (int64_t e = threadIdx.x; e < m * m; e += THREADS) {
        const int64_t n = e / m, i = e % m;
        const cplx ws = p->hermitian ? conj_of(w->s[n]) : w->s[n];
        w->dc[e] = add(w->dc[e], add(c_conj_mul(ws, w->dp[i]), c_conj_mul(w->a[i], w->ds[n])));
    }
    for (int64_t i = threadIdx.x; i < m; i += THREADS) {
        cplx sum = {0, 0};
        for (int64_t n = 0; n < m; n++) sum = add(sum, c_conj_mul(c_entry(p, g, n, i), w->ds[n]));
        w->da[i] = sum;
    }
    __syncthreads();
    /* a_i = sum_j X_k[i,j] q_j */
    for (int64_t j = threadIdx.x; j < r; j += THREADS) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++) sum += re_conj_mul(x[i * width + j], w->da[i]);
        from_float((float)sum, dq + j);
    }
    for (int64_t i = warp; i < m; i += THREADS / 32)
        for (int64_t j = lane; j < r; j += 32)
            w->dx[i * width + j] = add(w->dx[i * width + j], times(w->da[i], (double)to_float(q[j])));
    __syncthreads();
}

/* X = Lam X_prev + Bbar z^T backwards: dx becomes the gradient of X_prev. Ends with a barrier. */
template <class T> __device__ void step_bwd(const seq_work *w, const seq_params *p, const cplx *prev, int64_t t, int64_t g) {
    const int64_t m = p->m, width = p->r + p->d, warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = t * p->g + g;
    for (int64_t j = threadIdx.x; j < width; j += THREADS) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++) sum += re_conj_mul(w->b[i], w->dx[i * width + j]);
        from_float((float)sum, j < p->r ? (T *)p->dk + row * p->r + j : (T *)p->dv + row * p->d + j - p->r);
    }
    __syncthreads();
    for (int64_t i = warp; i < m; i += THREADS / 32) {
        cplx db = {0, 0}, dlam = {0, 0};
        for (int64_t j = lane; j < width; j += 32) {
            const cplx dx = w->dx[i * width + j];
            db = add(db, times(dx, z_of<T>(p, t, g, j)));
            dlam = add(dlam, c_conj_mul(prev[i * width + j], dx));
            w->dx[i * width + j] = c_conj_mul(w->lam[i], dx);
        }
        db = c_sum(db), dlam = c_sum(dlam);
        if (lane == 0) w->db[i] = add(w->db[i], db), w->dlam[i] = add(w->dlam[i], dlam);
    }
    __syncthreads();
}

/* One sequence of one group; w->dx holds the gradient of the final state on entry and of the initial one on exit. */
template <class T> __device__ void sequence_bwd(const seq_work *w, const seq_params *p, int64_t s, int64_t g) {
    const int64_t mw = p->m * (p->r + p->d), per = p->h / p->g, t0 = p->cu[s], n = p->cu[s + 1] - t0;
    for (int64_t i = 0; i < n; i++) { /* x [0] holds the initial state */
        if (i % BLOCK == 0)
            for (int64_t e = threadIdx.x; e < mw; e += THREADS) w->block_x[i / BLOCK * mw + e] = w->x[e];
        state_step<T>(w->x, w->x, w, p, t0 + i, g);
    }
    for (int64_t first = n > 0 ? (n - 1) / BLOCK * BLOCK : -1; first >= 0; first -= BLOCK) {
        const int64_t len = n - first < BLOCK ? n - first : BLOCK;
        for (int64_t e = threadIdx.x; e < mw; e += THREADS) w->x[e] = w->block_x[first / BLOCK * mw + e];
        for (int64_t i = 0; i < len; i++) state_step<T>(w->x + (i + 1) * mw, w->x + i * mw, w, p, t0 + first + i, g);
        __syncthreads();
        for (int64_t i = len - 1; i >= 0; i--) {
            const int64_t t = t0 + first + i;
            for (int64_t h = g * per; h < (g + 1) * per; h++) {
                const int64_t row = t * p->h + h;
                readout_bwd<T>(w, p, w->x + (i + 1) * mw, (const T *)p->q + row * p->r, (const T *)p->dout + row * p->d,
                               (T *)p->dq + row * p->r, g);
            }
            step_bwd<T>(w, p, w->x + i * mw, t, g);
        }
    }
}

template <class T> __global__ void __launch_bounds__(THREADS)
    interdomain_seq_bwd__cta_per_run(const __grid_constant__ seq_params p, int64_t n_x, int64_t n_blocks) {
    const int64_t mw = p.m * (p.r + p.d), size = record_size(p.m);
    seq_work w;
    work_layout(&w, p.work + blockIdx.x * p.each, p.m, mw, n_x, n_blocks, true);
    for (int64_t task = blockIdx.x; task < p.runs * p.g; task += gridDim.x) {
        const int64_t run = task / p.g, g = task % p.g;
        w.dlam = p.records + task * size, w.db = w.dlam + p.m, w.dc = w.db + p.m;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < size; i += THREADS) w.dlam[i] = {0, 0};
        group_load(&w, &p, g);
        for (int64_t s = p.n_seq * run / p.runs; s < p.n_seq * (run + 1) / p.runs; s++) {
            state_load(w.x, &p.state_in, s, g, mw);
            state_load(w.dx, &p.dstate_out, s, g, mw);
            __syncthreads();
            sequence_bwd<T>(&w, &p, s, g);
            state_store(&p.dstate_in, w.dx, s, g, mw);
            __syncthreads();
        }
    }
}

/* Sums over runs, and the chain rule. blockIdx.y 0: log_dt, a_log, a_imag; others: C. */
__global__ void __launch_bounds__(THREADS) interdomain_seq_finish__thread_per_entry(const __grid_constant__ seq_params p) {
    __shared__ double part[THREADS];
    const int64_t g = blockIdx.x, m = p.m, size = record_size(m), step = p.g * size;
    const cplx *records = p.records + g * size;
    if (blockIdx.y > 0) {
        for (int64_t e = (int64_t)(blockIdx.y - 1) * THREADS + threadIdx.x; e < m * m; e += (int64_t)(gridDim.y - 1) * THREADS) {
            cplx sum = {0, 0};
            for (int64_t run = 0; run < p.runs; run++) sum = add(sum, records[run * step + 2 * m + e]);
            p.dssm.c_re[g * m * m + e] = (float)((double)p.dssm.c_re[g * m * m + e] + sum.re);
            p.dssm.c_im[g * m * m + e] = (float)((double)p.dssm.c_im[g * m * m + e] + sum.im);
        }
        return;
    }
    double ddt = 0;
    for (int64_t i = threadIdx.x; i < m; i += THREADS) {
        cplx dlam = {0, 0}, db = {0, 0};
        for (int64_t run = 0; run < p.runs; run++) {
            dlam = add(dlam, records[run * step + i]);
            db = add(db, records[run * step + m + i]);
        }
        const mode q = mode_of(&p.ssm, g, m, i);
        ddt += mode_bwd(&p.ssm, &p.dssm, g, m, i, c_conj_mul(c_exp(q.log_lam), dlam), db);
    }
    part[threadIdx.x] = ddt;
    __syncthreads();
    for (int n = THREADS / 2; n > 0; n /= 2) {
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    if (threadIdx.x == 0) p.dssm.log_dt[g] = (float)((double)p.dssm.log_dt[g] + part[0]);
}

seq_params params_of(const ida_interdomain_args *a, const ida_cuda_seqs *seqs) {
    seq_params p = {};
    p.n_seq = seqs->n, p.cu = seqs->cu;
    p.h = a->h, p.g = a->g, p.r = a->r, p.d = a->d, p.m = a->m;
    p.hermitian = a->readout == IDA_READOUT_HERMITIAN;
    p.ssm = a->ssm, p.q = a->q, p.k = a->k, p.v = a->v, p.o = a->o;
    p.state_in = a->state_in, p.state_out = a->state_out;
    return p;
}

/* *ctas: as many as the tasks ask for and the scratch allows. records: in bytes, after the CTAs' own. */
ida_status scratch_of(const ida_device *dev, seq_params *p, int64_t tasks, int64_t records, unsigned *ctas) {
    int64_t each, all;
    IDA_FAIL_IF(__builtin_mul_overflow(p->each, (int64_t)sizeof(cplx), &each), IDA_E_NOMEM,
                "interdomain sequential scratch overflows");
    int64_t n = MAX_SCRATCH / each;
    n = vec_max(1, vec_min(n, vec_min(tasks, CTAS)));
    IDA_FAIL_IF(__builtin_mul_overflow(each, n, &all) || __builtin_add_overflow(all, records, &all), IDA_E_NOMEM,
                "interdomain sequential scratch overflows");
    void *mem;
    IDA_TRY(ida_cuda_scratch(dev, all, &mem));
    p->work = (cplx *)mem;
    p->records = p->work + n * p->each;
    *ctas = (unsigned)n;
    return IDA_OK;
}

} // namespace

extern "C" ida_status ida_cuda_interdomain_seq_fwd(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs) {
    ida_cuda_seqs tables;
    if (seqs->n == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &tables));
    seq_params p = params_of(a, &tables);
    seq_work w;
    unsigned ctas;
    p.each = work_layout(&w, NULL, a->m, a->m * (a->r + a->d), 1, 0, false);
    IDA_TRY(scratch_of(dev, &p, p.n_seq * p.g, 0, &ctas));
    IDA_CUDA_ACT(dev, T, (interdomain_seq_fwd__cta_per_sequence<T><<<ctas, THREADS, 0, ida_cuda_of(dev)->stream>>>(p)));
    return IDA_CUDA_LAUNCHED("interdomain_seq_fwd");
}

extern "C" ida_status ida_cuda_interdomain_seq_bwd(const ida_device *dev, const ida_interdomain_args *a,
                                                   const ida_interdomain_grads *gr, const ida_seqs *seqs) {
    ida_cuda_seqs tables;
    if (seqs->n == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &tables));
    seq_params p = params_of(a, &tables);
    p.dout = gr->dout, p.dq = gr->dq, p.dk = gr->dk, p.dv = gr->dv;
    p.dstate_out = gr->dstate_out, p.dstate_in = gr->dstate_in, p.dssm = gr->dssm;
    p.runs = vec_min(p.n_seq, vec_div_up(WANTED, p.g));
    const int64_t longest = tables.longest, n_x = vec_min(longest, BLOCK) + 1, n_blocks = vec_div_up(longest, BLOCK);
    const int64_t record_bytes = p.runs * p.g * record_size(p.m) * (int64_t)sizeof(cplx);
    seq_work w;
    unsigned ctas;
    p.each = work_layout(&w, NULL, a->m, a->m * (a->r + a->d), n_x, n_blocks, true);
    IDA_TRY(scratch_of(dev, &p, p.runs * p.g, record_bytes, &ctas));
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    IDA_CUDA_ACT(dev, T, (interdomain_seq_bwd__cta_per_run<T><<<ctas, THREADS, 0, stream>>>(p, n_x, n_blocks)));
    IDA_TRY(IDA_CUDA_LAUNCHED("interdomain_seq_bwd"));
    const dim3 grid((unsigned)p.g, 1 + (unsigned)vec_min(vec_div_up(p.m * p.m, THREADS), 1024));
    interdomain_seq_finish__thread_per_entry<<<grid, THREADS, 0, stream>>>(p);
    return IDA_CUDA_LAUNCHED("interdomain_seq_bwd");
}
