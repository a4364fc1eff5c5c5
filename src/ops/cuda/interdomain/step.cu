/* interdomain/step.cu - decoding: one token for each of S sequences (ops.h "interdomain" step). Bound by the state, which is read
 * and written once: a CTA takes a sequence and group, a warp takes whole rows of the state (re and im, keys and values), 16 bytes
 * a lane, and keeps them in registers from the key scores to the read-out of the values. Where sequences and groups are too few
 * to fill the chip, the rows of one are split over a cluster of CTAs (sm_90), which exchange the scores and the parts of o
 * through shared memory. Other sizes and unaligned states take a plain path. Not here: prep (ops/ref/ssm.c).
 * Invariant: sums have one order (scores by lanes, coefficients by fours of modes, o by pairs of modes), so that a sequence's
 * bits depend neither on its batch mates nor on the split. */
#include <cooperative_groups.h>

#include "ops/cuda/overlap.cuh"
#include "ops/cuda/vec.cuh"

enum { THREADS = 256, MOST_THREADS = 512, SLICE = 4, ANY_CTAS = 1056, CLUSTER = 4, SPLIT_BELOW = 66, DEFAULT_SHARED = 48 << 10 };

namespace {

struct step_params {
    int64_t n_seq, h, g, per, r, d, m, width, stride;
    int rows, split; /* rows of a CTA; CTAs of a task */
    float sign;      /* of the scores' imaginary part */
    float *re, *im;
    const void *q, *k, *v;
    void *o;
    ida_ssm_prep prep;
    float *work; /* plain path: 4 per M of each CTA */
};

/* Dynamic shared memory of a CTA, in floats: scores [2][modes], sums of slices [2][slices][rows], coefficients [2][rows], parts
 * of o [pairs][D]. `modes` covers the rows of all CTAs of the task. */
struct step_layout {
    int modes, slices, pairs, slice_at, coef_at, part_at, floats;
};
__host__ __device__ step_layout layout_of(const step_params *p) {
    step_layout l;
    l.modes = p->rows * p->split;
    l.slices = (int)((p->m + SLICE - 1) / SLICE);
    l.pairs = (int)((p->m + 1) / 2);
    l.slice_at = 2 * l.modes;
    l.coef_at = l.slice_at + 2 * l.slices * p->rows;
    l.part_at = (l.coef_at + 2 * p->rows + 3) / 4 * 4;
    l.floats = l.part_at + l.modes / 2 * (int)p->d;
    return l;
}

/* SPLIT: a cluster of CTAs, compiled for sm_90 only. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <bool SPLIT> VEC_DEV void everyone() {
    if (SPLIT) cooperative_groups::this_cluster().sync();
    else __syncthreads();
}
template <bool SPLIT> VEC_DEV float *shared_of(float *at, int rank) {
    return SPLIT ? cooperative_groups::this_cluster().map_shared_rank(at, (unsigned)rank) : at;
}
template <bool SPLIT> VEC_DEV void everyone_came() {
    if (SPLIT) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
template <bool SPLIT> VEC_DEV void everyone_is_here() {
    if (SPLIT) asm volatile("barrier.cluster.wait;" ::: "memory");
}
#else
template <bool SPLIT> VEC_DEV void everyone() { __syncthreads(); }
template <bool SPLIT> VEC_DEV float *shared_of(float *at, int) { return at; }
template <bool SPLIT> VEC_DEV void everyone_came() {
    if (SPLIT) __trap(); /* a build without sm_90a must not give wrong numbers */
}
template <bool SPLIT> VEC_DEV void everyone_is_here() {}
#endif

template <class T> VEC_DEV float4 four(const T *p) {
    return make_float4(to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3]));
}
VEC_DEV float dot4(float4 a, float4 b) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x))); }
/* x <- lam x + b z */
VEC_DEV void advance(float &re, float &im, float lr, float li, float br, float bi, float z) {
    const float r = fmaf(br, z, fmaf(-li, im, lr * re)), i = fmaf(bi, z, fmaf(lr, im, li * re));
    re = r, im = i;
}
VEC_DEV void advance4(float4 &re, float4 &im, float lr, float li, float br, float bi, float4 z) {
    advance(re.x, im.x, lr, li, br, bi, z.x);
    advance(re.y, im.y, lr, li, br, bi, z.y);
    advance(re.z, im.z, lr, li, br, bi, z.z);
    advance(re.w, im.w, lr, li, br, bi, z.w);
}
/* Re(c0 x0) + Re(c1 x1) */
VEC_DEV float pair_of(float2 c0, float re0, float im0, float2 c1, float re1, float im1) {
    return fmaf(-c1.y, im1, fmaf(c1.x, re1, fmaf(-c0.y, im0, c0.x * re0)));
}

/* coef_n = sum_m w(a_m) G_mn for the CTA's rows n. Between barriers of the caller. */
VEC_DEV void coefficients(const step_params *p, const step_layout *l, float *shared, int64_t g, int row0) {
    const int rows = p->rows, threads = (int)blockDim.x;
    const int64_t m = p->m;
    const float *gr = p->prep.g_re + g * m * m, *gi = p->prep.g_im + g * m * m;
    float *slice = shared + l->slice_at, *coef = shared + l->coef_at;
    for (int i = (int)threadIdx.x; i < l->slices * rows; i += threads) {
        const int s = i / rows, n = row0 + i % rows;
        float x[SLICE], y[SLICE], re = 0, im = 0;
#pragma unroll
        for (int k = 0; k < SLICE; k++) {
            const bool valid = s * SLICE + k < m && n < m;
            x[k] = valid ? gr[(s * SLICE + k) * m + n] : 0.0f;
            y[k] = valid ? gi[(s * SLICE + k) * m + n] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < SLICE; k++) {
            if (s * SLICE + k >= m) break;
            const float a = shared[s * SLICE + k], b = p->sign * shared[l->modes + s * SLICE + k];
            re = fmaf(-b, y[k], fmaf(a, x[k], re));
            im = fmaf(b, x[k], fmaf(a, y[k], im));
        }
        slice[i] = re;
        slice[l->slices * rows + i] = im;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * rows; i += threads) {
        const float *from = slice + i / rows * l->slices * rows + i % rows;
        float sum = 0;
        for (int s = 0; s < l->slices; s++) sum += from[s * rows];
        coef[i] = sum;
    }
    __syncthreads();
}

/* A lane's pieces of q; the columns of values meet zeros. */
template <class T, int NV> VEC_DEV void load_query(float4 (&qv)[NV], const T *q, int r, int lane) {
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = 4 * (lane + 32 * v);
        qv[v] = col < r ? four(q + col) : make_float4(0, 0, 0, 0);
    }
}

/* A warp's rows of the state from row `first` on, zeros past the last one. base: of the sequence and group. */
template <int ROWS, int NV>
VEC_DEV void load_state(float4 (&re)[ROWS][NV], float4 (&im)[ROWS][NV], const step_params &p, int64_t base, int first, int64_t m,
                        int width, int lane) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int v = 0; v < NV; v++) {
            const int col = 4 * (lane + 32 * v);
            const bool valid = first + i < m && col < width;
            const int64_t at = base + (int64_t)(first + i) * width + col;
            re[i][v] = valid ? *reinterpret_cast<const float4 *>(p.re + at) : make_float4(0, 0, 0, 0);
            im[i][v] = valid ? *reinterpret_cast<const float4 *>(p.im + at) : make_float4(0, 0, 0, 0);
        }
}
/* A warp's rows, of which there are `rows`. */
template <int ROWS, int NV>
VEC_DEV void store_state(float *to_re, float *to_im, const float4 (&re)[ROWS][NV], const float4 (&im)[ROWS][NV], int rows,
                         int width, int lane) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int v = 0; v < NV; v++) {
            const int col = 4 * (lane + 32 * v);
            if (i >= rows || col >= width) continue;
            *reinterpret_cast<float4 *>(to_re + i * width + col) = re[i][v];
            *reinterpret_cast<float4 *>(to_im + i * width + col) = im[i][v];
        }
}

/* ROWS rows a warp (even; 2 = split), NV pieces of 16 bytes a lane.
 * Phases: state, parameters and inputs are read; the state takes its step and, but for a cluster, goes back; then head by head the
 * scores, the coefficients of the rows, the parts of o, and their sum. */
template <class T, int ROWS, int NV>
__global__ void __launch_bounds__(MOST_THREADS) interdomain_step__rows(const __grid_constant__ step_params p) {
    constexpr bool SPLIT = ROWS == 2;
    extern __shared__ float4 shared4[];
    float *shared = reinterpret_cast<float *>(shared4);
    const step_layout l = layout_of(&p);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, rank = (int)(blockIdx.x % (unsigned)p.split);
    const int64_t task = blockIdx.x / (unsigned)p.split, s = task / p.g, g = task % p.g, m = p.m;
    const int row0 = rank * p.rows, first = row0 + warp * ROWS, r = (int)p.r, d = (int)p.d, width = (int)p.width;
    const int64_t base = s * p.stride + g * m * width;
    next_may_begin();
    everyone_came<SPLIT>();
    for (int64_t i = (int64_t)threadIdx.x * 32; i < m * m; i += (int64_t)blockDim.x * 32) { /* G to L2 beside the state */
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.prep.g_re + g * m * m + i));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.prep.g_im + g * m * m + i));
    }

    float4 re[ROWS][NV], im[ROWS][NV];
    load_state<ROWS, NV>(re, im, p, base, first, m, width, lane);
    float lr[ROWS], li[ROWS], br[ROWS], bi[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int64_t mode = g * m + (first + i < m ? first + i : 0);
        lr[i] = p.prep.lam_re[mode], li[i] = p.prep.lam_im[mode], br[i] = p.prep.b_re[mode], bi[i] = p.prep.b_im[mode];
    }
    inputs_are_there();
    float4 z[NV];
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = 4 * (lane + 32 * v);
        z[v] = col < r       ? four((const T *)p.k + task * r + col)
               : col < width ? four((const T *)p.v + task * d + col - r)
                             : make_float4(0, 0, 0, 0);
    }
    float4 qv[NV];
    load_query<T, NV>(qv, (const T *)p.q + (s * p.h + g * p.per) * r, r, lane);
    /* all loads before the first store: they may not pass it */
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (first + i >= m) continue;
#pragma unroll
        for (int v = 0; v < NV; v++) advance4(re[i][v], im[i][v], lr[i], li[i], br[i], bi[i], z[v]);
    }
    const int64_t at = base + (int64_t)first * width;
    if (!SPLIT) store_state<ROWS, NV>(p.re + at, p.im + at, re, im, (int)m - first, width, lane);
    everyone_is_here<SPLIT>();

    for (int64_t h = g * p.per; h < (g + 1) * p.per; h++) {
        if (h > g * p.per) load_query<T, NV>(qv, (const T *)p.q + (s * p.h + h) * r, r, lane);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float a = 0, b = 0;
#pragma unroll
            for (int v = 0; v < NV; v++) a += dot4(re[i][v], qv[v]), b += dot4(im[i][v], qv[v]);
            a = warp_sum(a), b = warp_sum(b);
            if (lane < (SPLIT ? p.split : 1)) { /* to every CTA of the task */
                float *to = shared_of<SPLIT>(shared, lane);
                to[first + i] = a;
                to[l.modes + first + i] = b;
            }
        }
        everyone<SPLIT>();
        coefficients(&p, &l, shared, g, row0);
        const float *coef = shared + l.coef_at;
        float *part = shared_of<SPLIT>(shared, 0) + l.part_at;
#pragma unroll
        for (int i = 0; i < ROWS; i += 2) {
            const int local = warp * ROWS + i;
            const float2 c0 = make_float2(coef[local], coef[p.rows + local]),
                         c1 = make_float2(coef[local + 1], coef[p.rows + local + 1]);
#pragma unroll
            for (int v = 0; v < NV; v++) {
                const int col = 4 * (lane + 32 * v);
                if (col < r || col >= width) continue;
                const float4 x0 = re[i][v], y0 = im[i][v], x1 = re[i + 1][v], y1 = im[i + 1][v];
                *reinterpret_cast<float4 *>(part + (first + i) / 2 * d + col - r) =
                    make_float4(pair_of(c0, x0.x, y0.x, c1, x1.x, y1.x), pair_of(c0, x0.y, y0.y, c1, x1.y, y1.y),
                                pair_of(c0, x0.z, y0.z, c1, x1.z, y1.z), pair_of(c0, x0.w, y0.w, c1, x1.w, y1.w));
            }
        }
        everyone<SPLIT>();
        if (rank > 0) continue;
        for (int j = (int)threadIdx.x; j < d; j += (int)blockDim.x) {
            float sum = 0;
#pragma unroll 8
            for (int i = 0; i < l.pairs; i++) sum += shared[l.part_at + i * d + j];
            from_float(sum, (T *)p.o + (s * p.h + h) * d + j);
        }
    }
    /* the barriers of a cluster wait for stores: after them */
    if (SPLIT) store_state<ROWS, NV>(p.re + at, p.im + at, re, im, (int)m - first, width, lane);
}

/* Any sizes, any alignment. */
template <class T> __global__ void __launch_bounds__(THREADS) interdomain_step__any(const __grid_constant__ step_params p) {
    const int64_t m = p.m, r = p.r, d = p.d, width = p.width;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    float *score = p.work + blockIdx.x * 4 * m, *coef = score + 2 * m;
    for (int64_t task = blockIdx.x; task < p.n_seq * p.g; task += gridDim.x) {
        const int64_t s = task / p.g, g = task % p.g, base = s * p.stride + g * m * width;
        for (int64_t i = warp; i < m; i += THREADS / 32) {
            const int64_t mode = g * m + i;
            const float lr = p.prep.lam_re[mode], li = p.prep.lam_im[mode], br = p.prep.b_re[mode], bi = p.prep.b_im[mode];
            float *re = p.re + base + i * width, *im = p.im + base + i * width;
            for (int64_t j = lane; j < width; j += 32)
                advance(re[j], im[j], lr, li, br, bi,
                        to_float(j < r ? ((const T *)p.k)[task * r + j] : ((const T *)p.v)[task * d + j - r]));
        }
        __syncthreads();
        for (int64_t h = g * p.per; h < (g + 1) * p.per; h++) {
            const T *q = (const T *)p.q + (s * p.h + h) * r;
            for (int64_t i = warp; i < m; i += THREADS / 32) {
                const float *re = p.re + base + i * width, *im = p.im + base + i * width;
                float a = 0, b = 0;
                for (int64_t j = lane; j < r; j += 32) {
                    a = fmaf(re[j], to_float(q[j]), a);
                    b = fmaf(im[j], to_float(q[j]), b);
                }
                a = warp_sum(a), b = warp_sum(b);
                if (lane == 0) score[i] = a, score[m + i] = p.sign * b;
            }
            __syncthreads();
            for (int64_t n = threadIdx.x; n < m; n += THREADS) {
                const float *gr = p.prep.g_re + g * m * m + n, *gi = p.prep.g_im + g * m * m + n;
                float x = 0, y = 0;
#pragma unroll 4
                for (int64_t i = 0; i < m; i++) {
                    const float a = score[i], b = score[m + i], u = gr[i * m], v = gi[i * m];
                    x = fmaf(-b, v, fmaf(a, u, x));
                    y = fmaf(b, u, fmaf(a, v, y));
                }
                coef[n] = x, coef[m + n] = y;
            }
            __syncthreads();
            for (int64_t j = threadIdx.x; j < d; j += THREADS) {
                const float *re = p.re + base + r + j, *im = p.im + base + r + j;
                float sum = 0;
#pragma unroll 4
                for (int64_t i = 0; i < m; i++) sum = fmaf(-coef[m + i], im[i * width], fmaf(coef[i], re[i * width], sum));
                from_float(sum, (T *)p.o + (s * p.h + h) * d + j);
            }
            __syncthreads();
        }
    }
}

template <class T, int ROWS, int NV> ida_status launch_rows(const ida_device *dev, step_params p) {
    const ida_cuda *c = ida_cuda_of(dev);
    const int64_t each = vec_div_up(p.m, p.split), warps = vec_div_up(each, ROWS);
    p.rows = (int)(warps * ROWS);
    const int bytes = layout_of(&p).floats * (int)sizeof(float);
    if (bytes > DEFAULT_SHARED) /* always the most there is: a recording may hold a launch of other sizes */
        IDA_CUDA_TRY(cudaFuncSetAttribute(interdomain_step__rows<T, ROWS, NV>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          c->most_shared));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(p.n_seq * p.g * p.split));
    config.blockDim = dim3((unsigned)(32 * warps));
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = c->stream;
    cudaLaunchAttribute attrs[1 + OVERLAP_ATTRS] = {};
    attrs[0].id = cudaLaunchAttributeClusterDimension;
    attrs[0].val.clusterDim.x = (unsigned)p.split, attrs[0].val.clusterDim.y = attrs[0].val.clusterDim.z = 1;
    config.attrs = attrs;
    config.numAttrs = p.split > 1 ? 1 : 0;
    may_overlap(dev, attrs, &config.numAttrs);
    return ida_cuda_status((int)cudaLaunchKernelEx(&config, interdomain_step__rows<T, ROWS, NV>, p), "interdomain_step", __FILE__,
                           __LINE__);
}

/* Whether a CTA, or each CTA of a cluster, can hold its rows in registers: 16 warps of the rows that launch_step gives them. */
bool fits_rows(const step_params *p, int split) {
    const int64_t most = MOST_THREADS / 32 * (split > 1 ? 2 : p->width > 128 ? 4 : 8);
    return p->width <= 256 && vec_div_up(p->m, split) <= most;
}

template <class T> ida_status launch_step(const ida_device *dev, step_params p) {
    const ida_cuda *c = ida_cuda_of(dev);
    const int64_t tasks = p.n_seq * p.g;
    const bool vectors = vec_aligned(p.re, p.im) && p.r % 4 == 0 && p.d % 4 == 0 && (p.stride % 4 == 0 || p.n_seq == 1),
               clusters = c->arch == 90; /* later chips run the code made for sm_80 */
    p.split = clusters && (tasks < SPLIT_BELOW || !fits_rows(&p, 1)) ? CLUSTER : 1;
    if (vectors && fits_rows(&p, p.split)) {
        if (p.width > 128) return p.split > 1 ? launch_rows<T, 2, 2>(dev, p) : launch_rows<T, 4, 2>(dev, p);
        return p.split > 1 ? launch_rows<T, 2, 1>(dev, p) : launch_rows<T, 8, 1>(dev, p);
    }
    const int64_t ctas = vec_min(tasks, ANY_CTAS);
    void *work;
    IDA_TRY(ida_cuda_scratch(dev, ctas * 4 * p.m * (int64_t)sizeof(float), &work));
    p.work = (float *)work;
    interdomain_step__any<T><<<(unsigned)ctas, THREADS, 0, c->stream>>>(p);
    return IDA_CUDA_LAUNCHED("interdomain_step");
}

} // namespace

extern "C" ida_status ida_cuda_interdomain_step(const ida_device *dev, const ida_interdomain_args *a, const ida_ssm_prep *prep,
                                                int64_t n_seq) {
    if (n_seq == 0) return IDA_OK;
    step_params p = {};
    p.n_seq = n_seq, p.h = a->h, p.g = a->g, p.per = a->h / a->g, p.r = a->r, p.d = a->d, p.m = a->m, p.width = a->r + a->d;
    p.stride = a->state_in.stride, p.re = a->state_in.re, p.im = a->state_in.im;
    p.sign = a->readout == IDA_READOUT_HERMITIAN ? -1.0f : 1.0f;
    p.q = a->q, p.k = a->k, p.v = a->v, p.o = a->o;
    p.prep = *prep;
    IDA_CUDA_ACT(dev, T, return launch_step<T>(dev, p));
    return IDA_OK;
}
