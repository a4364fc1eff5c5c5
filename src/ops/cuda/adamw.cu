/* adamw.cu - one AdamW step with decoupled weight decay; one pass over p, m, v, g, and the act copy of p. */
#include "ops/cuda/cuda_ops.h"

#include <assert.h>
#include <math.h>

#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256 };

/* step = lr / (1 - b1^t), v_scale = 1 / (1 - b2^t), decay = lr wd. b + b_low is beta to double's digits: near 1, the rounding of
 * beta to float is a part of 1 - beta that shows. */
struct step_args {
    float gscale, b1, b1_low, one_b1, b2, b2_low, one_b2, step, v_scale, eps, decay;
};

VEC_DEV void step_of(const step_args &a, float &p, float &m, float &v, float g) {
    g *= a.gscale;
    m = fmaf(a.b1, m, fmaf(a.b1_low, m, a.one_b1 * g));
    v = fmaf(a.b2, v, fmaf(a.b2_low, v, a.one_b2 * g * g));
    p = p - (a.step * m / (sqrtf(v * a.v_scale) + a.eps) + a.decay * p);
}

/* Four elements a thread. T: of w. WITH_COPY: w =. VECTOR: all arrays at multiples of 16 bytes. */
template <class T, bool WITH_COPY, bool VECTOR> __global__ void __launch_bounds__(THREADS)
    adamw__one_pass(float *p, float *m, float *v, const float *g, T *w, int64_t n, const step_args a) {
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (VECTOR && first + 4 <= n) {
        float pv[4], mv[4], vv[4], gv[4];
        load_real<4>(p + first, pv);
        load_real<4>(m + first, mv);
        load_real<4>(v + first, vv);
        load_real<4>(g + first, gv);
#pragma unroll
        for (int e = 0; e < 4; e++) step_of(a, pv[e], mv[e], vv[e], gv[e]);
        store_real<4>(p + first, pv);
        store_real<4>(m + first, mv);
        store_real<4>(v + first, vv);
        if (WITH_COPY) store_floats(w + first, pv);
        return;
    }
    for (int64_t i = first; i < first + 4 && i < n; i++) {
        float pv = p[i], mv = m[i], vv = v[i];
        step_of(a, pv, mv, vv, g[i]);
        p[i] = pv, m[i] = mv, v[i] = vv;
        if (WITH_COPY) from_float(pv, w + i);
    }
}

template <class T, bool WITH_COPY>
void launch(float *p, float *m, float *v, const float *g, T *w, int64_t n, const step_args &a, cudaStream_t stream) {
    const unsigned grid = (unsigned)vec_div_up(n, THREADS * 4);
    if (vec_aligned(p, m, v, g, w)) adamw__one_pass<T, WITH_COPY, true><<<grid, THREADS, 0, stream>>>(p, m, v, g, w, n, a);
    else adamw__one_pass<T, WITH_COPY, false><<<grid, THREADS, 0, stream>>>(p, m, v, g, w, n, a);
}

} // namespace

ida_status ida_cuda_adamw(const ida_device *dev, real *p, real *m, real *v, const real *g, int64_t n, const ida_adamw_args *o) {
    assert(o->t >= 1 && o->eps >= IDA_LEAST_EPS);
    if (n == 0) return IDA_OK;
    const double c1 = 1.0 - pow(o->beta1, (double)o->t), c2 = 1.0 - pow(o->beta2, (double)o->t);
    step_args a;
    a.gscale = (float)o->gscale;
    a.b1 = (float)o->beta1;
    a.b1_low = (float)(o->beta1 - (double)a.b1);
    a.one_b1 = (float)(1.0 - o->beta1);
    a.b2 = (float)o->beta2;
    a.b2_low = (float)(o->beta2 - (double)a.b2);
    a.one_b2 = (float)(1.0 - o->beta2);
    a.step = (float)(o->lr / c1);
    a.v_scale = (float)(1.0 / c2);
    a.eps = (float)o->eps;
    a.decay = (float)(o->lr * o->weight_decay);
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    if (o->w) IDA_CUDA_ACT(dev, T, launch<T, true>(p, m, v, g, (T *)(void *)o->w, n, a, stream));
    else launch<float, false>(p, m, v, g, NULL, n, a, stream);
    return IDA_CUDA_LAUNCHED("adamw");
}
