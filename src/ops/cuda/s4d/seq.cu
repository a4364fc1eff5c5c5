/* s4d/seq.cu - the mixers without a query token by token (ops.h "s4d"): the sequential truth, forward and backward, in double
 * whatever the element type; and the step of decoding, in fp32, which reads and writes each state once. No chunks, no tables
 * of powers. The sequential backward walks forwards for the parameters (derivatives of the state by log Lam and Bbar ride
 * along) and backwards for z and the states: it stores no states. Invariant: sums over modes and columns have a fixed order. */
#include "ops/cuda/s4d/s4d.cuh"

#include "ops/cuda/ssm.cuh"
#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, COLS = S4D_COLS, GROUPS = THREADS / COLS };

__device__ cplx plus(cplx a, cplx b, double s) { return {a.re + s * b.re, a.im + s * b.im}; }

/* A complex number of each (mode, column): [2, M, COLS]. A thread keeps one column of every GROUPS-th mode, and touches no
 * other. */
struct field {
    double *at;
    int64_t im;
};
__device__ cplx get(field f, int64_t i) { return {f.at[i], f.at[f.im + i]}; }
__device__ void set(field f, int64_t i, cplx v) { f.at[i] = v.re, f.at[f.im + i] = v.im; }

struct spot {
    s4d_task t;
    int lane, group;
    int64_t m;
    const double *coef;
    bool valid; /* the column exists */
};
__device__ spot spot_of(const s4d_params *p, int64_t task) {
    spot a;
    a.t = s4d_task_of(p, task);
    a.lane = (int)threadIdx.x % COLS, a.group = (int)threadIdx.x / COLS;
    a.m = p->m;
    a.coef = p->coef + a.t.h * 6 * p->m;
    a.valid = a.lane < a.t.n;
    return a;
}
__device__ field field_of(const s4d_params *p, int which) {
    return {p->work64 + blockIdx.x * p->work_each + which * 2 * p->m * COLS, p->m * COLS};
}
/* which: 0 Lam, 1 Bbar, 2 c */
__device__ cplx coef(const spot *a, int which, int64_t i) {
    return {a->coef[2 * which * a->m + i], a->coef[(2 * which + 1) * a->m + i]};
}
#define EACH_MODE(a, i) for (int64_t i = (a).group; i < (a).m; i += GROUPS)

__device__ void load(field x, const spot *a, const s4d_params *p, const ida_state_ref *ref, int64_t s) {
    const int64_t at = ref->re ? s4d_state_at(p, ref, &a->t, s) : 0, width = p->r + p->d;
    EACH_MODE(*a, i) {
        const int64_t e = at + i * width + a->lane;
        set(x, i * COLS + a->lane, ref->re && a->valid ? cplx{(double)ref->re[e], (double)ref->im[e]} : cplx{0, 0});
    }
}
__device__ void store(field x, const spot *a, const s4d_params *p, const ida_state_ref *ref, int64_t s) {
    if (!ref->re || !a->valid) return;
    const int64_t at = s4d_state_at(p, ref, &a->t, s), width = p->r + p->d;
    EACH_MODE(*a, i) {
        const cplx v = get(x, i * COLS + a->lane);
        ref->re[at + i * width + a->lane] = (float)v.re;
        ref->im[at + i * width + a->lane] = (float)v.im;
    }
}

/* The groups' parts of a column, in the first group. `turn` alternates between calls, so that one barrier a call is enough. */
__device__ double over_groups(double part, const spot *a, int turn) {
    __shared__ double parts[2][GROUPS][COLS];
    parts[turn][a->group][a->lane] = part;
    __syncthreads();
    double sum = 0;
    if (a->group == 0)
        for (int g = 0; g < GROUPS; g++) sum += parts[turn][g][a->lane];
    return sum;
}

template <typename T> __device__ double z_get(const spot *a, const s4d_params *p, int64_t token) {
    return a->valid ? (double)to_float(((const T *)(a->t.key ? p->k : p->v))[s4d_z_at(p, &a->t, token) + a->lane]) : 0.0;
}

template <typename T> __global__ void __launch_bounds__(THREADS) s4d_seq_fwd__mode_groups(const __grid_constant__ s4d_params p) {
    const field x = field_of(&p, 0);
    int turn = 0;
    for (int64_t task = blockIdx.x; task < p.n_tasks; task += gridDim.x) {
        const spot a = spot_of(&p, task);
        const int64_t s_end = s4d_run_begin(&p, a.t.run + 1);
        for (int64_t s = s4d_run_begin(&p, a.t.run); s < s_end; s++) {
            load(x, &a, &p, &p.state_in, s);
            for (int64_t token = p.cu[s]; token < p.cu[s + 1]; token++, turn ^= 1) {
                const double z = z_get<T>(&a, &p, token);
                double part = 0;
                EACH_MODE(a, i) {
                    const int64_t at = i * COLS + a.lane;
                    const cplx v = plus(c_mul(coef(&a, 0, i), get(x, at)), coef(&a, 1, i), z);
                    set(x, at, v);
                    part += c_mul(coef(&a, 2, i), v).re;
                }
                const double y = over_groups(part, &a, turn);
                if (a.group == 0 && a.valid) from_float((float)y, (T *)p.y + s4d_y_at(&p, &a.t, token) + a.lane);
            }
            store(x, &a, &p, &p.state_out, s);
        }
    }
}

/* Gradients of c, Bbar and log Lam of a sequence: x the state; by_log its derivative by log Lam; by_b that by Bbar. */
template <typename T> __device__ void parameters(const spot *a, const s4d_params *p, int64_t s) {
    const field x = field_of(p, 0), by_log = field_of(p, 1), by_b = field_of(p, 2), dc = field_of(p, 3), db = field_of(p, 4),
                dlog = field_of(p, 5);
    const ida_state_ref none = {NULL, NULL, 0};
    load(x, a, p, &p->state_in, s);
    load(by_log, a, p, &none, s);
    load(by_b, a, p, &none, s);
    for (int64_t token = p->cu[s]; token < p->cu[s + 1]; token++) {
        const double z = z_get<T>(a, p, token);
        const double dy = a->valid ? (double)to_float(((const T *)p->dy)[s4d_y_at(p, &a->t, token) + a->lane]) : 0.0;
        EACH_MODE(*a, i) {
            const int64_t at = i * COLS + a->lane;
            const cplx lam = coef(a, 0, i), c = coef(a, 2, i), decayed = c_mul(lam, get(x, at));
            const cplx vl = plus(c_mul(lam, get(by_log, at)), decayed, 1), vb = plus(c_mul(lam, get(by_b, at)), {1, 0}, z);
            const cplx v = plus(decayed, coef(a, 1, i), z), cl = c_mul(c, vl), cb = c_mul(c, vb);
            set(x, at, v);
            set(by_log, at, vl);
            set(by_b, at, vb);
            set(dc, at, plus(get(dc, at), {v.re, -v.im}, dy)); /* y = Re c x */
            set(db, at, plus(get(db, at), {cb.re, -cb.im}, dy));
            set(dlog, at, plus(get(dlog, at), {cl.re, -cl.im}, dy));
        }
    }
    if (!p->dstate_out.re) return;
    load(x, a, p, &p->dstate_out, s);
    EACH_MODE(*a, i) {
        const int64_t at = i * COLS + a->lane;
        const cplx g = get(x, at);
        set(db, at, plus(get(db, at), c_conj_mul(get(by_b, at), g), 1));
        set(dlog, at, plus(get(dlog, at), c_conj_mul(get(by_log, at), g), 1));
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) s4d_seq_bwd__mode_groups(const __grid_constant__ s4d_params p) {
    const field g = field_of(&p, 0);
    int turn = 0;
    for (int64_t task = blockIdx.x; task < p.n_tasks; task += gridDim.x) {
        const spot a = spot_of(&p, task);
        const int64_t s_end = s4d_run_begin(&p, a.t.run + 1);
        for (int which = 3; which < 6; which++) EACH_MODE(a, i) set(field_of(&p, which), i * COLS + a.lane, {0, 0});
        for (int64_t s = s4d_run_begin(&p, a.t.run); s < s_end; s++) {
            parameters<T>(&a, &p, s);
            load(g, &a, &p, &p.dstate_out, s);
            for (int64_t token = p.cu[s + 1] - 1; token >= p.cu[s]; token--, turn ^= 1) {
                const double dy = a.valid ? (double)to_float(((const T *)p.dy)[s4d_y_at(&p, &a.t, token) + a.lane]) : 0.0;
                double part = 0;
                EACH_MODE(a, i) {
                    const int64_t at = i * COLS + a.lane;
                    const cplx c = coef(&a, 2, i), v = plus(get(g, at), {c.re, -c.im}, dy);
                    part += c_conj_mul(coef(&a, 1, i), v).re;
                    set(g, at, c_conj_mul(coef(&a, 0, i), v));
                }
                const double dz = over_groups(part, &a, turn);
                T *to = (T *)(a.t.key ? p.dk : p.dv);
                if (a.group == 0 && a.valid) from_float((float)dz, to + s4d_z_at(&p, &a.t, token) + a.lane);
            }
            store(g, &a, &p, &p.dstate_in, s);
        }
        for (int which = 0; which < 3; which++) EACH_MODE(a, i) {
                const cplx v = get(field_of(&p, 3 + which), i * COLS + a.lane);
                const double re = warp_sum(v.re), im = warp_sum(v.im);
                double *to = p.records + task * p.record + 2 * which * p.m + i;
                if (a.lane == 0) to[0] = re, to[p.m] = im;
            }
    }
}

/* x <- Lam x + Bbar z, y = Re sum_m c_m x_m for one sequence, head and 32 columns: V columns of some modes a thread. */
struct step_params {
    int64_t n_tasks, blocks, h, r, d, m;
    ida_state_ref state;
    ida_ssm_prep prep;
    const void *k, *v;
    void *y;
};
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) s4d_step__column_blocks(const __grid_constant__ step_params p) {
    constexpr int LANES = COLS / V, PARTS = THREADS / LANES;
    __shared__ float parts[PARTS][COLS];
    const int lane = (int)threadIdx.x % LANES, part = (int)threadIdx.x / LANES;
    const int64_t width = p.r + p.d;
    for (int64_t task = blockIdx.x; task < p.n_tasks; task += gridDim.x) {
        const int64_t h = task / p.blocks % p.h, s = task / p.blocks / p.h, row = s * p.h + h, first = task % p.blocks * COLS;
        const int64_t col = first + lane * V, base = s * p.state.stride + h * p.m * width + col;
        const T *from = col < p.r ? (const T *)p.k + row * p.r + col : (const T *)p.v + row * p.d + col - p.r;
        float z[V] = {}, y[V] = {};
        if (col < width) /* V divides both halves */
            for (int e = 0; e < V; e++) z[e] = to_float(from[e]);
        if (col < width)
#pragma unroll 2
            for (int64_t i = part; i < p.m; i += PARTS) {
                const int64_t at = h * p.m + i;
                const float lr = p.prep.lam_re[at], li = p.prep.lam_im[at], br = p.prep.b_re[at], bi = p.prep.b_im[at];
                const float cr = p.prep.g_re[at], ci = p.prep.g_im[at];
                float *re = p.state.re + base + i * width, *im = p.state.im + base + i * width;
                float xr[V], xi[V];
                load_real(re, xr);
                load_real(im, xi);
#pragma unroll
                for (int e = 0; e < V; e++) {
                    const float a = xr[e], b = xi[e];
                    xr[e] = lr * a - li * b + br * z[e];
                    xi[e] = lr * b + li * a + bi * z[e];
                    y[e] += cr * xr[e] - ci * xi[e];
                }
                store_real(re, xr);
                store_real(im, xi);
            }
#pragma unroll
        for (int e = 0; e < V; e++) parts[part][lane * V + e] = y[e];
        __syncthreads();
        if (threadIdx.x < COLS && first + (int)threadIdx.x < width) {
            float sum = 0;
#pragma unroll 8
            for (int i = 0; i < PARTS; i++) sum += parts[i][threadIdx.x];
            from_float(sum, (T *)p.y + row * width + first + threadIdx.x);
        }
        __syncthreads();
    }
}

} // namespace

int64_t s4d_seq_work_doubles(int64_t m, bool bwd) { return (bwd ? 6 : 1) * 2 * m * COLS; }

void s4d_launch_seq(const s4d_params *p, bool bf16, bool backward, int ctas, cudaStream_t stream) {
    if (bf16 && backward) s4d_seq_bwd__mode_groups<__nv_bfloat16><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else if (bf16) s4d_seq_fwd__mode_groups<__nv_bfloat16><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else if (backward) s4d_seq_bwd__mode_groups<float><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
    else s4d_seq_fwd__mode_groups<float><<<(unsigned)ctas, THREADS, 0, stream>>>(*p);
}

ida_status ida_cuda_s4d_step(const ida_device *dev, const ida_s4d_args *a, const ida_ssm_prep *prep, int64_t n_seq) {
    const int64_t width = a->r + a->d;
    step_params p = {};
    p.blocks = vec_div_up(width, COLS), p.h = a->h, p.r = a->r, p.d = a->d, p.m = a->m;
    p.n_tasks = n_seq * a->h * p.blocks;
    if (p.n_tasks <= 0) return IDA_OK;
    p.state = a->state_in, p.prep = *prep, p.k = a->k, p.v = a->v, p.y = a->y;
    const bool vector = a->r % 4 == 0 && a->d % 4 == 0 && p.state.stride % 4 == 0 && vec_aligned(p.state.re, p.state.im);
    const unsigned ctas = (unsigned)vec_min(p.n_tasks, 1 << 20);
    const cudaStream_t stream = ida_cuda_of(dev)->stream;
    IDA_CUDA_ACT(dev, T, {
        if (vector) s4d_step__column_blocks<T, 4><<<ctas, THREADS, 0, stream>>>(p);
        else s4d_step__column_blocks<T, 1><<<ctas, THREADS, 0, stream>>>(p);
    });
    return IDA_CUDA_LAUNCHED("s4d_step");
}
