/* interdomain/tables.cu - the ends of the mixer core: tables of a group and lists of work before the scan, parameter gradients
 * after it (mixer.cuh). Exponents, discretisation and chain rule are in double and follow ops/ref/ssm.c. Invariant: every entry
 * is finite for finite parameters, padding is zero, and |Lam^n| <= 1 for n > 0 after rounding. */
#include "ops/cuda/interdomain/mixer.cuh"
#include "ops/cuda/ssm.cuh"
#include "ops/cuda/vec.cuh"

/* MOST_Y: blocks of a grid along y. */
enum { THREADS = 256, TABLE_CTAS = 16, SLICES = 4, AHEAD = 4, MODES = 128, FINISH_CTAS = 1024, MOST_Y = 65535 };

namespace {

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
        const cplx v = c_exp({n * log_lam.re, n * log_lam.im}), f = c_mul(b, v);
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
        __nv_bfloat16 *f16 = reinterpret_cast<__nv_bfloat16 *>(p->t.f16) + g * MIX_CHUNK * m2;
        f16[panel_index(64, row, m)] = __float2bfloat16_rn(fr);
        f16[panel_index(64, row, mp + m)] = __float2bfloat16_rn(fi);
    }
    if (i >= MIX_CHUNK || p->wide) return;
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
                (reinterpret_cast<__nv_bfloat16 *>(p->t.gg16) + g * m2 * m2)[panel_index(m2, row, col)] =
                    __float2bfloat16_rn(v[a][b]);
        }
}

/* run0 [runs+1] <- n items cut into runs of consecutive ones; weight [n+1]: of all items before each. A run starts where its
 * share of the weight does, but leaves an item for each run after it, and takes one. All threads of one CTA. */
__device__ void cut_runs(int64_t *run0, int64_t runs, const int64_t *weight, int64_t n) {
    for (int64_t run = threadIdx.x; run < runs; run += THREADS) {
        int64_t low = 0, high = n;
        while (low < high) {
            const int64_t at = (low + high) / 2;
            if (weight[at] * runs >= run * weight[n]) high = at;
            else low = at + 1;
        }
        run0[run] = low - run;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t most = 0;
        for (int64_t run = 0; run < runs; run++) {
            if (run0[run] > most) most = run0[run];
            run0[run] = run + (most < n - runs ? most : n - runs);
        }
        run0[runs] = n;
    }
    __syncthreads();
}

/* x <- sum of x over the threads before this one; returns the sum over all. Two barriers. */
__device__ int64_t scan_before(int64_t *x, int64_t *shared) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t sum = *x, before = 0, all = 0;
    for (int n = 1; n < 32; n *= 2) {
        const int64_t y = __shfl_up_sync(~0u, sum, n);
        if (lane >= n) sum += y;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) {
        if (i < warp) before += shared[i];
        all += shared[i];
    }
    __syncthreads();
    *x = before + sum - *x;
    return all;
}

/* A sequence's parts and pieces from their places in the lists on; weight: of all parts before. */
__device__ void put_parts(const mix_params *p, int64_t s, int64_t slot, int64_t at, int64_t piece, int64_t weight) {
    const int64_t begin = p->cu[s], end = p->cu[s + 1], n = mix_chunks(end - begin), parts = mix_parts_of(n, p->part_chunks),
                  per = parts > 1 ? p->pre_per : 0;
    mix_part *to = const_cast<mix_part *>(p->parts), *to_piece = const_cast<mix_part *>(p->pieces);
    int64_t *weights = p->weights + p->n_seq + 1;
    for (int64_t i = 0; i < parts; i++) {
        const int64_t first = n * i / parts, count = n * (i + 1) / parts - first;
        for (int64_t j = 0; j <= per; j++) { /* the pieces, then the part */
            const bool whole = j == per;
            const int64_t a = whole ? first : first + count * j / per, b = whole ? first + count : first + count * (j + 1) / per;
            const bool last = i + 1 == parts && (whole || j + 1 == per);
            const mix_part part = {(int)(begin + a * MIX_CHUNK), (int)(last ? end : begin + b * MIX_CHUNK), (int)s,
                                   (int)(whole ? i : i * per + j), last, (int)(slot + a), (int)(at + i)};
            if (whole) to[at + i] = part;
            else to_piece[piece + i * per + j] = part;
        }
        weights[at + i] = weight + first + i;
    }
}

__device__ void make_lists(const mix_params *p) {
    __shared__ int64_t shared[THREADS / 32];
    int64_t chunks = 0, parts = 0, pieces = 0; /* of all sequences before this round */
    for (int64_t first = 0; first < p->n_seq; first += THREADS) {
        const int64_t s = first + threadIdx.x;
        const bool valid = s < p->n_seq;
        int64_t n = valid ? mix_chunks(p->cu[s + 1] - p->cu[s]) : 0, k = valid && p->tuned ? mix_parts_of(n, p->part_chunks) : 0,
                e = k > 1 ? k * p->pre_per : 0;
        const int64_t all_n = scan_before(&n, shared), all_k = scan_before(&k, shared), all_e = scan_before(&e, shared);
        if (valid) p->weights[s] = chunks + n + s;
        if (valid && p->tuned) put_parts(p, s, chunks + n + s, parts + k, pieces + e, chunks + n + parts + k);
        chunks += all_n, parts += all_k, pieces += all_e;
    }
    if (threadIdx.x == 0) p->weights[p->n_seq] = chunks + p->n_seq;
    if (threadIdx.x == 0 && p->tuned) p->weights[p->n_seq + 1 + parts] = chunks + parts;
    __syncthreads();
    cut_runs(const_cast<int64_t *>(p->run0), p->n_runs, p->weights, p->n_seq);
    if (p->tuned) cut_runs(const_cast<int64_t *>(p->part_run0), p->n_part_runs, p->weights + p->n_seq + 1, p->n_parts);
}

__global__ void __launch_bounds__(THREADS) interdomain_tables__ctas_per_group(const __grid_constant__ mix_params p) {
    __shared__ double fastest[THREADS];
    __shared__ cplx some_b[MODES], some_log[MODES];
    if (blockIdx.y == TABLE_CTAS) {
        if (blockIdx.x == 0) make_lists(&p);
        return;
    }
    const int64_t g = blockIdx.x, mp = p.mp;
    const int thread = (int)threadIdx.x, step = THREADS * TABLE_CTAS, start = (int)blockIdx.y * THREADS + thread;
    double top = 0;
    for (int64_t m = thread; m < p.m; m += THREADS) {
        const mode q = mode_of(&p.ssm, g, p.m, m);
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
    for (int64_t first = 0; first < mp; first += MODES) {
        const int64_t n = mp - first < MODES ? mp - first : MODES;
        __syncthreads();
        if (thread < n) {
            const int64_t m = first + thread;
            cplx b = {0, 0}, log_lam = {0, 0};
            if (m < p.m) {
                const mode q = mode_of(&p.ssm, g, p.m, m);
                b = bbar_of(&q, p.disc);
                log_lam = {q.log_lam.re, atan2(sin(q.log_lam.im), cos(q.log_lam.im))};
            }
            some_b[thread] = b, some_log[thread] = log_lam;
            if (blockIdx.y == 0) p.t.b[g * 2 * mp + m] = b.re, p.t.b[(g * 2 + 1) * mp + m] = b.im;
        }
        __syncthreads();
        for (int64_t i = start; i < MIX_POWERS * n; i += step)
            put_power(&p, g, i / n, first + i % n, some_log[i % n], some_b[i % n], chunk);
    }
    for (int64_t i = start; i < mp * mp; i += step) put_gram(&p, g, i / mp, i % mp);
}

/* Entry i of a record of group g as its scans leave it. */
__device__ double scans_sum(const mix_params *p, int64_t g, int64_t i) {
    const int64_t mp = p->mp, m2 = 2 * mp, blocks = p->mb * p->cb, in_f = MIX_CHUNK * m2, mom = in_f + 2 * mp * mp;
    if (i >= in_f && i < mom) return 0;
    const int64_t row = i < in_f ? i / m2 : MIX_CHUNK, col = i < in_f ? i % m2 : i - mom, m = col % mp;
    const int64_t e = row * 2 * MIX_TILE + col / mp * MIX_TILE + m % MIX_TILE;
    double sum = 0;
    for (int64_t run = 0; run < p->n_part_runs; run++)
        for (int64_t h = g * p->per; h < (g + 1) * p->per; h++)
            for (int64_t c = 0; c < p->cb; c++) {
                const int64_t v = run * p->vh + h * blocks + m / MIX_TILE * p->cb + c;
                for (int side = 0; side < 2; side++) sum += (double)p->scan_records[(v * 2 + side) * MIX_SCAN_RECORD + e];
            }
    return sum;
}

/* sums[g] = records of its runs and heads, in order. */
__global__ void __launch_bounds__(THREADS) interdomain_records__sum_in_order(const __grid_constant__ mix_params p) {
    const int64_t record = mix_record_floats(p.mp), i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= record) return;
    for (int64_t g = blockIdx.y; g < p.g; g += gridDim.y) {
        double sum = 0;
        const int64_t runs = mix_record_runs(&p, g);
        for (int64_t run = 0; run < runs; run++)
            for (int64_t h = g * p.per; h < (g + 1) * p.per; h++) sum += (double)p.records[(run * p.h + h) * record + i];
        if (p.wide && mix_tuned(&p, g)) sum += scans_sum(&p, g, i);
        p.sums[g * record + i] = sum;
    }
}

/* folded = dG + dG^H (hermitian) or dG + dG^T, re then im [mp, mp]: the one transposed reading. */
__global__ void __launch_bounds__(THREADS) interdomain_fold__transpose_and_add(const __grid_constant__ mix_params p) {
    const int64_t mp = p.mp, record = mix_record_floats(mp), at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= mp * mp) return;
    const int64_t flip = at % mp * mp + at / mp;
    for (int64_t g = blockIdx.y; g < p.g; g += gridDim.y) {
        const double *dg = p.sums + g * record + 128 * mp, sign = p.hermitian ? 1 : -1;
        double *to = p.folded + g * 2 * mp * mp;
        to[at] = dg[at] + dg[flip];
        to[mp * mp + at] = dg[mp * mp + at] - sign * dg[mp * mp + flip];
    }
}

__global__ void __launch_bounds__(THREADS) interdomain_finish__thread_per_entry(const __grid_constant__ mix_params p) {
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
                const cplx t = c_conj_mul({(double)u[0], (double)u[mp]}, d), s = c_conj_mul(w, d);
                v[0] += t.re, v[1] += t.im, v[2] += (centre - j) * s.re, v[3] += (centre - j) * s.im;
            }
        for (int n = SLICES / 2; n > 0; n /= 2)
            for (int k = 0; k < 4; k++) v[k] += __shfl_down_sync(~0u, v[k], n, SLICES);
        if (i < m && slice == 0) sum += mode_bwd(&p.ssm, &p.dssm, g, m, i, {mom[i] + v[2], mom[mp + i] + v[3]}, {v[0], v[1]});
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int n = THREADS / 2; n > 0; n /= 2) {
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    if (threadIdx.x == 0) p.dssm.log_dt[g] += (float)part[0];
}

/* Whether another part begins from where this piece's leaves off, and so the piece was walked. */
__device__ bool goes_on(const mix_params *p, int piece, int which) {
    const mix_part *part = p->parts + p->pieces[piece].whole;
    return which ? part->index > 0 : !part->last;
}

/* Between parts: X before piece i+1 = what piece i left from zero (the first: from the true start) + Lam^(its tokens) X before
 * piece i; and backwards the same with conj(Lam). Kept where parts meet. Element (i, thread) of an accumulator is row 16
 * (thread/32) + thread%32/4 + 8 if i & 2; which = 0: re i < 64, im i + 64; which = 1: two halves of re i < 32, im i + 32. */
__global__ void __launch_bounds__(128) interdomain_join__element_per_thread(const __grid_constant__ mix_params p, int which) {
    const int64_t v = blockIdx.y, g = v / (p.mb * p.cb) / p.per;
    const int i = (int)blockIdx.x, thread = (int)threadIdx.x, n = p.n_pieces;
    if (p.t.chunk[g] != MIX_CHUNK) return;
    const int64_t m = v / p.cb % p.mb * MIX_TILE + 16 * (thread / 32) + thread % 32 / 4 + (i & 2 ? 8 : 0);
    const int re = (which ? i / 32 * 64 + i % 32 : i) * 128 + thread, im = re + (which ? 32 : 64) * 128;
    double log_abs = 0, angle = 0;
    if (m < p.m) {
        const mode q = mode_of(&p.ssm, g, p.m, m);
        log_abs = q.log_lam.re;
        angle = atan2(sin(q.log_lam.im), cos(q.log_lam.im));
    }
    float *to = which ? p.dx_part : p.x_part;
    float xr = 0, xi = 0;
    int known[2] = {-1, -1}; /* two lengths of pieces are usual */
    float2 power[2] = {};
    for (int first = 0; first < n; first += AHEAD) {
        float left_re[AHEAD], left_im[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = which ? n - 1 - first - k : first + k;
            const bool wanted = first + k < n && goes_on(&p, at, which);
            const float *from = p.x_piece + ((int64_t)at * p.vh + v) * MIX_STATE;
            left_re[k] = wanted ? from[re] : 0.0f, left_im[k] = wanted ? from[im] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (first + k >= n) break;
            const int at = which ? n - 1 - first - k : first + k;
            if (!goes_on(&p, at, which)) continue;
            const mix_part piece = p.pieces[at];
            if (which ? piece.last : piece.index == 0) {
                xr = left_re[k], xi = left_im[k];
            } else {
                const int tokens = piece.end - piece.begin;
                if (tokens != known[0]) {
                    const int was = known[0];
                    const float2 old = power[0];
                    known[0] = known[1], power[0] = power[1];
                    known[1] = was, power[1] = old;
                    if (tokens != known[0]) {
                        const cplx v = c_exp({tokens * log_abs, tokens * angle});
                        known[0] = tokens, power[0] = make_float2((float)v.re, (float)(which ? -v.im : v.im));
                    }
                }
                const float lr = power[0].x, li = power[0].y, r = left_re[k] + lr * xr - li * xi;
                xi = left_im[k] + lr * xi + li * xr;
                xr = r;
            }
            if (which ? at % p.pre_per > 0 : at % p.pre_per < p.pre_per - 1) continue;
            float *out = to + ((int64_t)(which ? piece.whole - 1 : piece.whole + 1) * p.vh + v) * MIX_STATE;
            out[re] = xr, out[im] = xi;
        }
    }
}

/* state_in, packed. */
__global__ void __launch_bounds__(THREADS)
    interdomain_copy_states__element_per_thread(const __grid_constant__ mix_params p, float *copy) {
    const int64_t size = p.g * p.m * (p.r + p.d), all = p.n_seq * size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < 2 * all; i += (int64_t)gridDim.x * THREADS) {
        const int64_t e = i % all;
        copy[i] = (i < all ? p.state_in.re : p.state_in.im)[e / size * p.state_in.stride + e % size];
    }
}

/* out[row, g, :] = sum over the heads of g of in[row, h, :]. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    interdomain_heads__sum_in_order(T *out, const float *in, int64_t rows, int64_t g, int64_t per, int64_t width) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * g * width; i += (int64_t)gridDim.x * THREADS) {
        const float *from = in + i / width * per * width + i % width;
        float sum = 0;
        for (int64_t h = 0; h < per; h++) sum += from[h * width];
        out[i] = (T)sum;
    }
}
__global__ void __launch_bounds__(THREADS) interdomain_state_heads__sum_in_order(const __grid_constant__ mix_params p) {
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
    interdomain_tables__ctas_per_group<<<dim3((unsigned)p->g, TABLE_CTAS + 1), THREADS, 0, stream>>>(*p);
}

void mix_launch_join(const mix_params *p, int which, cudaStream_t stream) {
    interdomain_join__element_per_thread<<<dim3(64, (unsigned)p->vh), 128, 0, stream>>>(*p, which);
}

void mix_launch_copy_states(const mix_params *p, float *copy, cudaStream_t stream) {
    interdomain_copy_states__element_per_thread<<<1024, THREADS, 0, stream>>>(*p, copy);
}

template <typename T> static void launch_heads(const mix_params *p, int64_t n_tokens, cudaStream_t stream) {
    interdomain_heads__sum_in_order<<<1024, THREADS, 0, stream>>>((T *)p->dk, p->dk_head, n_tokens, p->g, p->per, p->r);
    interdomain_heads__sum_in_order<<<1024, THREADS, 0, stream>>>((T *)p->dv, p->dv_head, n_tokens, p->g, p->per, p->d);
}

void mix_launch_finish(const mix_params *p, bool bf16, int64_t n_tokens, cudaStream_t stream) {
    const unsigned g = (unsigned)p->g, g_y = (unsigned)vec_min(p->g, MOST_Y),
                   record = (unsigned)vec_div_up(mix_record_floats(p->mp), THREADS),
                   folded = (unsigned)vec_div_up(p->mp * p->mp, THREADS),
                   entries = (unsigned)vec_min(vec_div_up(p->m * p->m, THREADS), FINISH_CTAS);
    if (p->n_runs > 0) {
        interdomain_records__sum_in_order<<<dim3(record, g_y), THREADS, 0, stream>>>(*p);
        interdomain_fold__transpose_and_add<<<dim3(folded, g_y), THREADS, 0, stream>>>(*p);
        interdomain_finish__thread_per_entry<<<dim3(g, 1 + entries), THREADS, 0, stream>>>(*p);
    }
    if (p->per == 1) return;
    if (n_tokens > 0 && bf16) launch_heads<__nv_bfloat16>(p, n_tokens, stream);
    else if (n_tokens > 0) launch_heads<float>(p, n_tokens, stream);
    if (p->dstate_in.re) interdomain_state_heads__sum_in_order<<<1024, THREADS, 0, stream>>>(*p);
}
