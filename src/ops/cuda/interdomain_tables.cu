/* interdomain_tables.cu - the ends of the mixer core: tables of a group before the scan, parameter gradients after it
 * (mixer.cuh). Exponents, discretisation and chain rule are in double and follow ops/ref/ssm.c. Invariant: every entry is finite
 * for finite parameters, padding is zero, and |Lam^n| <= 1 for n > 0 after rounding. */
#include "ops/cuda/mixer.cuh"

enum { THREADS = 256, TABLE_CTAS = 16, SLICES = 4 };

namespace {

struct cplx {
    double re, im;
};
__device__ cplx mul(cplx a, cplx b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
__device__ cplx conj_mul(cplx a, cplx b) { return {a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re}; }
__device__ cplx div(cplx a, cplx b) {
    const double n = b.re * b.re + b.im * b.im;
    const cplx t = conj_mul(b, a);
    return {t.re / n, t.im / n};
}

/* dt and |Re A| are kept in e^+-300, far outside use. NaN stays NaN. */
__device__ double exp_safe(double x) { return exp(x < -300 ? -300 : x > 300 ? 300 : x); }

struct mode {
    double dt;
    cplx a, log_lam;
};

__device__ mode mode_of(const mix_params *p, int64_t g, int64_t m) {
    mode r;
    r.dt = exp_safe((double)p->ssm.log_dt[g]);
    r.a = {-exp_safe((double)p->ssm.a_log[g * p->m + m]), (double)p->ssm.a_imag[g * p->m + m]};
    r.log_lam = {r.dt * r.a.re, r.dt * r.a.im};
    return r;
}
/* e^x - 1 with Re x <= 0: nothing cancels for small x. */
__device__ cplx expm1_c(cplx x) {
    const double sh = sin(0.5 * x.im);
    return {expm1(x.re) * cos(x.im) - 2 * sh * sh, exp(x.re) * sin(x.im)};
}
__device__ cplx exp_c(cplx x) {
    const double r = exp(x.re);
    return r == 0 ? cplx{0, 0} : cplx{r * cos(x.im), r * sin(x.im)};
}
__device__ cplx bbar_of(const mode *p, int disc) {
    switch (disc) {
    case IDA_DISC_ZOH: return div(expm1_c(p->log_lam), p->a);
    case IDA_DISC_EULER: return {p->dt, 0};
    case IDA_DISC_UNIT: return {1, 0};
    default: return {sqrt(-expm1(2 * p->log_lam.re)), 0};
    }
}

/* (re, im) rounded to float without leaving the unit disc. */
__device__ void round_inwards(float *re, float *im, double x, double y) {
    *re = (float)x;
    *im = (float)y;
    while ((double)*re * (double)*re + (double)*im * (double)*im > 1) {
        float *big = fabsf(*re) >= fabsf(*im) ? re : im;
        *big = nextafterf(*big, 0.0f);
    }
}

/* Element (row, col) of panels of `rows` rows, in bf16 units (tiles.h). */
__device__ int64_t panel_index(int64_t rows, int64_t row, int64_t col) {
    return col / 64 * rows * 64 + row * 64 + (((col % 64 / 8) ^ (row & 7)) * 8) + col % 8;
}

/* One power of one mode: its places in pw, F~ and E. */
__device__ void put_power(const mix_params *p, int64_t g, int64_t i, int64_t m, cplx log_lam, cplx b, int chunk) {
    const int64_t mp = p->mp, m2 = 2 * mp;
    const int centre = chunk / 2, n = (int)i - centre, j = centre - n;
    float re = 0, im = 0, fr = 0, fi = 0;
    if (m < p->m && n <= chunk) {
        const cplx v = exp_c({n * log_lam.re, n * log_lam.im}), f = mul(b, v);
        re = (float)v.re, im = (float)v.im;
        if (n > 0) round_inwards(&re, &im, v.re, v.im);
        fr = (float)f.re, fi = (float)f.im;
    }
    float *pw = p->t.pw + (g * MIX_POWERS + i) * m2 + m;
    pw[0] = re, pw[mp] = im;
    const int64_t row = j >= 0 && j < chunk ? j : -1;
    if (row >= 0) {
        float *f = p->t.f + (g * MIX_CHUNK + row) * m2 + m;
        f[0] = fr, f[mp] = fi;
    }
    if (!p->tuned) return;
    if (row >= 0) {
        __nv_bfloat16 *f16 = reinterpret_cast<__nv_bfloat16 *>(p->t.f16) + g * MIX_CHUNK * 128;
        f16[panel_index(64, row, m)] = __float2bfloat16_rn(fr);
        f16[panel_index(64, row, 64 + m)] = __float2bfloat16_rn(fi);
    }
    if (i >= MIX_CHUNK) return;
    const int64_t at = g * 2048 + (((i / 16) * 8 + m / 8) * 2 + i % 16 / 8) * 32 + i % 8 * 4 + m % 8 / 2;
    float *e = reinterpret_cast<float *>(p->t.e + at) + m % 2 * 2;
    e[0] = re, e[1] = im;
}

__device__ void put_gram(const mix_params *p, int64_t g, int64_t i, int64_t j) {
    const int64_t m = p->m, mp = p->mp, m2 = 2 * mp;
    const float sign = p->hermitian ? 1.0f : -1.0f;
    float re = 0, im = 0;
    if (i < m && j < m)
#pragma unroll 8
        for (int64_t n = 0; n < m; n++) {
            const int64_t a = (g * m + n) * m + i, b = (g * m + n) * m + j;
            const float ar = p->ssm.c_re[a], ai = -sign * p->ssm.c_im[a], br = p->ssm.c_re[b], bi = p->ssm.c_im[b];
            re += ar * br - ai * bi;
            im += ar * bi + ai * br;
        }
    const float v[2][2] = {{re, -im}, {sign * im, sign * re}};
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++) {
            const int64_t row = a * mp + i, col = b * mp + j;
            p->t.gg[(g * m2 + row) * m2 + col] = v[a][b];
            if (p->tuned)
                (reinterpret_cast<__nv_bfloat16 *>(p->t.gg16) + g * 128 * 128)[panel_index(128, row, col)] =
                    __float2bfloat16_rn(v[a][b]);
        }
}

__global__ void __launch_bounds__(THREADS) tables(const __grid_constant__ mix_params p) {
    __shared__ double fastest[THREADS];
    const int64_t g = blockIdx.x, mp = p.mp;
    const int thread = (int)threadIdx.x, step = THREADS * TABLE_CTAS, start = (int)blockIdx.y * THREADS + thread;
    double top = 0;
    for (int64_t m = thread; m < p.m; m += THREADS) {
        const mode q = mode_of(&p, g, m);
        if (!(-q.log_lam.re <= top)) top = -q.log_lam.re;
    }
    fastest[thread] = top;
    __syncthreads();
    for (int n = THREADS / 2; n > 0; n /= 2) {
        if (thread < n && !(fastest[thread + n] <= fastest[thread])) fastest[thread] = fastest[thread + n];
        __syncthreads();
    }
    int chunk = p.chunk_limit;
    while (chunk > 1 && !(fastest[0] * chunk / 2 <= MIX_MAX_NATS)) chunk /= 2;
    if (start == 0) p.t.chunk[g] = chunk;
    for (int64_t i = start; i < MIX_POWERS * mp; i += step) {
        const int64_t row = i / mp, m = i % mp;
        cplx b = {0, 0}, log_lam = {0, 0};
        if (m < p.m) {
            const mode q = mode_of(&p, g, m);
            b = bbar_of(&q, p.disc);
            log_lam = {q.log_lam.re, atan2(sin(q.log_lam.im), cos(q.log_lam.im))};
        }
        if (row == 0) p.t.b[g * 2 * mp + m] = b.re, p.t.b[(g * 2 + 1) * mp + m] = b.im;
        put_power(&p, g, row, m, log_lam, b, chunk);
    }
    for (int64_t i = start; i < mp * mp; i += step) put_gram(&p, g, i / mp, i % mp);
}

/* sums[g] = records of its runs and heads, in order. */
__global__ void __launch_bounds__(THREADS) reduce_records(const __grid_constant__ mix_params p) {
    const int64_t record = mix_record_floats(p.mp), g = blockIdx.y, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= record) return;
    double sum = 0;
    const int64_t runs = mix_record_runs(&p, g);
    for (int64_t run = 0; run < runs; run++)
        for (int64_t h = g * p.per; h < (g + 1) * p.per; h++) sum += (double)p.records[(run * p.h + h) * record + i];
    p.sums[g * record + i] = sum;
}

/* (dt Lam - Bbar) / A = dt^2 psi(x), x = dt A, psi(x) = sum_n n x^(n-1) / (n+1)!; the closed form cancels for small x. */
__device__ cplx zoh_db_da(const mode *p) {
    const cplx x = p->log_lam;
    if (x.re * x.re + x.im * x.im > 0.25) {
        const cplx e = exp_c(x), q = div(expm1_c(x), p->a);
        return div({p->dt * e.re - q.re, p->dt * e.im - q.im}, p->a);
    }
    cplx sum = {0, 0}, power = {1, 0};
    double factorial = 1;
    for (int n = 1; n <= 18; n++) {
        factorial *= n + 1;
        sum = {sum.re + n / factorial * power.re, sum.im + n / factorial * power.im};
        power = mul(power, x);
    }
    return {p->dt * p->dt * sum.re, p->dt * p->dt * sum.im};
}

/* One mode's gradients; returns its part of d log_dt. */
__device__ double mode_bwd(const mix_params *p, int64_t g, int64_t m, cplx dlog, cplx db) {
    const mode q = mode_of(p, g, m);
    double ddt = 0;
    cplx da = {0, 0};
    if (p->disc == IDA_DISC_ZOH) {
        ddt = conj_mul(exp_c(q.log_lam), db).re;
        da = conj_mul(zoh_db_da(&q), db);
    } else if (p->disc == IDA_DISC_EULER) {
        ddt = db.re;
    } else if (p->disc == IDA_DISC_NORM) {
        dlog.re -= db.re * exp(2 * q.log_lam.re) / bbar_of(&q, p->disc).re;
    }
    da = {da.re + q.dt * dlog.re, da.im + q.dt * dlog.im};
    ddt += conj_mul(q.a, dlog).re;
    p->dssm.a_log[g * p->m + m] += (float)(q.a.re * da.re);
    p->dssm.a_imag[g * p->m + m] += (float)da.im;
    return q.dt * ddt;
}

/* folded = dG + dG^H (hermitian) or dG + dG^T, re then im [mp, mp]: the one transposed reading. */
__global__ void __launch_bounds__(THREADS) fold(const __grid_constant__ mix_params p) {
    const int64_t mp = p.mp, record = mix_record_floats(mp), g = blockIdx.y, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= mp * mp) return;
    const double *dg = p.sums + g * record + 128 * mp, sign = p.hermitian ? 1 : -1;
    const int64_t flip = at % mp * mp + at / mp;
    double *to = p.folded + g * 2 * mp * mp;
    to[at] = dg[at] + dg[flip];
    to[mp * mp + at] = dg[mp * mp + at] - sign * dg[mp * mp + flip];
}

__global__ void __launch_bounds__(THREADS) finish(const __grid_constant__ mix_params p) {
    __shared__ double part[THREADS];
    const int64_t g = blockIdx.x, m = p.m, mp = p.mp, m2 = 2 * mp, record = mix_record_floats(mp);
    const double *df = p.sums + g * record, *folded = p.folded + g * 2 * mp * mp, *mom = df + 64 * m2 + 2 * mp * mp;
    if (blockIdx.y > 0) { /* G = C^H C: dC = C (dG + dG^H).  G = C^T C: dC = conj(C) (dG + dG^T) */
        const double sign = p.hermitian ? 1 : -1;
        for (int64_t at = (int64_t)(blockIdx.y - 1) * THREADS + threadIdx.x; at < m * m;
             at += (int64_t)(gridDim.y - 1) * THREADS) {
            const int64_t row = at / m, k = at % m;
            double re = 0, im = 0;
#pragma unroll 8
            for (int64_t i = 0; i < m; i++) {
                const double hr = folded[i * mp + k], hi = folded[mp * mp + i * mp + k];
                const double cr = (double)p.ssm.c_re[(g * m + row) * m + i],
                             ci = sign * (double)p.ssm.c_im[(g * m + row) * m + i];
                re += cr * hr - ci * hi;
                im += cr * hi + ci * hr;
            }
            p.dssm.c_re[g * m * m + at] += (float)re;
            p.dssm.c_im[g * m * m + at] += (float)im;
        }
        return;
    }
    const int chunk = p.t.chunk[g], centre = chunk / 2;
    double sum = 0;
    for (int64_t first = 0; first < m; first += THREADS / SLICES) { /* SLICES threads a mode, each every SLICES-th row */
        const int64_t i = first + threadIdx.x / SLICES;
        const int slice = (int)threadIdx.x % SLICES;
        double v[4] = {0, 0, 0, 0}; /* dBbar, log Lam */
        if (i < m)
#pragma unroll 4
            for (int j = slice; j < chunk; j += SLICES) {
                const cplx d = {df[j * m2 + i], df[j * m2 + mp + i]};
                const float *u = p.t.pw + (g * MIX_POWERS + 2 * centre - j) * m2 + i, *f = p.t.f + (g * MIX_CHUNK + j) * m2 + i;
                /* what the scan multiplied by, rounding and all: then the moments of readers and writers cancel as they should */
                cplx w = {(double)f[0], (double)f[mp]};
                if (p.tuned && chunk == MIX_CHUNK)
                    w = {(double)__bfloat162float(__float2bfloat16_rn(f[0])),
                         (double)__bfloat162float(__float2bfloat16_rn(f[mp]))};
                const cplx t = conj_mul({(double)u[0], (double)u[mp]}, d), s = conj_mul(w, d);
                v[0] += t.re, v[1] += t.im, v[2] += (centre - j) * s.re, v[3] += (centre - j) * s.im;
            }
        for (int n = SLICES / 2; n > 0; n /= 2)
            for (int k = 0; k < 4; k++) v[k] += __shfl_down_sync(~0u, v[k], n, SLICES);
        if (i < m && slice == 0) sum += mode_bwd(&p, g, i, {mom[i] + v[2], mom[mp + i] + v[3]}, {v[0], v[1]});
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int n = THREADS / 2; n > 0; n /= 2) {
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    if (threadIdx.x == 0) p.dssm.log_dt[g] += (float)part[0];
}

/* Between parts: X before part i+1 = what part i left from zero (part 0: from the true start) + Lam^(its tokens) X before part
 * i; and backwards the same with conj(Lam). What a part left lies where the result goes. Element (i, thread) of an accumulator
 * is row 16 (thread/32) + thread%32/4 + 8 if i & 2; which = 0: re i < 64, im i + 64; which = 1: two halves of re i < 32, im i +
 * 32. */
__global__ void __launch_bounds__(128) join(const __grid_constant__ mix_params p, int which) {
    const int64_t h = blockIdx.y, g = h / p.per;
    const int i = (int)blockIdx.x, thread = (int)threadIdx.x;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    const int64_t m = 16 * (thread / 32) + thread % 32 / 4 + (i & 2 ? 8 : 0);
    const int re = (which ? i / 32 * 64 + i % 32 : i) * 128 + thread, im = re + (which ? 32 : 64) * 128;
    double log_abs = 0, angle = 0;
    if (m < p.m) {
        const mode q = mode_of(&p, g, m);
        log_abs = q.log_lam.re;
        angle = atan2(sin(q.log_lam.im), cos(q.log_lam.im));
    }
    float *state = which ? p.dx_part : p.x_part;
    float xr = 0, xi = 0, lr = 0, li = 0;
    int tokens = -1;
    for (int n = 0; n < p.n_parts; n++) {
        const mix_part part = p.parts[which ? p.n_parts - 1 - n : n];
        const int at = which ? p.n_parts - 1 - n : n;
        if (which ? part.index == 0 : part.last) { /* nothing goes on from here */
            xr = xi = 0;
            continue;
        }
        const bool fresh = which ? part.last : part.index == 0;
        if (!fresh && part.end - part.begin != tokens) {
            tokens = part.end - part.begin;
            const cplx v = exp_c({tokens * log_abs, tokens * angle});
            lr = (float)v.re, li = (float)(which ? -v.im : v.im);
        }
        float *to = state + ((int64_t)(which ? at - 1 : at + 1) * p.h + h) * MIX_STATE;
        const float left_re = to[re], left_im = to[im];
        const float yr = fresh ? left_re : left_re + lr * xr - li * xi, yi = fresh ? left_im : left_im + lr * xi + li * xr;
        xr = yr, xi = yi;
        to[re] = xr, to[im] = xi;
    }
}

/* out[row, g, :] = sum over the heads of g of in[row, h, :]. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    reduce_heads(T *out, const float *in, int64_t rows, int64_t g, int64_t per, int64_t width) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * g * width; i += (int64_t)gridDim.x * THREADS) {
        const float *from = in + i / width * per * width + i % width;
        float sum = 0;
        for (int64_t h = 0; h < per; h++) sum += from[h * width];
        out[i] = (T)sum;
    }
}
__global__ void __launch_bounds__(THREADS) reduce_state_heads(const __grid_constant__ mix_params p) {
    const int64_t size = p.m * (p.r + p.d), all = p.n_seq * p.g * size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < 2 * all; i += (int64_t)gridDim.x * THREADS) {
        const int64_t part = i / all, at = i % all, s = at / (p.g * size), g = at / size % p.g, e = at % size;
        const float *from = p.dx_head + part * p.n_seq * p.h * size + (s * p.h + g * p.per) * size + e;
        float sum = 0;
        for (int64_t h = 0; h < p.per; h++) sum += from[h * size];
        (part ? p.dstate_in.im : p.dstate_in.re)[mix_state_at(&p.dstate_in, s, g, size) + e] = sum;
    }
}

} // namespace

void mix_launch_tables(const mix_params *p, cudaStream_t stream) {
    tables<<<dim3((unsigned)p->g, TABLE_CTAS), THREADS, 0, stream>>>(*p);
}

void mix_launch_join(const mix_params *p, int which, cudaStream_t stream) {
    join<<<dim3(64, (unsigned)p->h), 128, 0, stream>>>(*p, which);
}

void mix_launch_finish(const mix_params *p, bool bf16, int64_t n_tokens, cudaStream_t stream) {
    const int64_t record = mix_record_floats(p->mp);
    if (p->n_runs > 0) {
        reduce_records<<<dim3((unsigned)((record + THREADS - 1) / THREADS), (unsigned)p->g), THREADS, 0, stream>>>(*p);
        fold<<<dim3((unsigned)((p->mp * p->mp + THREADS - 1) / THREADS), (unsigned)p->g), THREADS, 0, stream>>>(*p);
        finish<<<dim3((unsigned)p->g, 1 + (unsigned)((p->m * p->m + THREADS - 1) / THREADS)), THREADS, 0, stream>>>(*p);
    }
    if (p->per == 1) return;
    if (n_tokens > 0 && bf16) {
        reduce_heads<<<1024, THREADS, 0, stream>>>((__nv_bfloat16 *)p->dk, p->dk_head, n_tokens, p->g, p->per, p->r);
        reduce_heads<<<1024, THREADS, 0, stream>>>((__nv_bfloat16 *)p->dv, p->dv_head, n_tokens, p->g, p->per, p->d);
    } else if (n_tokens > 0) {
        reduce_heads<<<1024, THREADS, 0, stream>>>((float *)p->dk, p->dk_head, n_tokens, p->g, p->per, p->r);
        reduce_heads<<<1024, THREADS, 0, stream>>>((float *)p->dv, p->dv_head, n_tokens, p->g, p->per, p->d);
    }
    if (p->dstate_in.re) reduce_state_heads<<<1024, THREADS, 0, stream>>>(*p);
}
