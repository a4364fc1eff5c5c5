/* adamw.c - one AdamW step with decoupled weight decay; one pass over p, m, v, g. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/cpu/simd.h"

enum { TASK = 16384 };

typedef struct step_args {
    float *p, *m, *v;
    const float *g;
    int64_t n;
    float gscale, b1, b1_low, one_b1, b2, b2_low, one_b2, step, v_scale, eps, decay;
} step_args;

/* step = lr / (1 - b1^t), v_scale = 1 / (1 - b2^t), decay = lr wd. b + b_low is beta to double's digits: near 1, the rounding of
 * beta to float is a part of 1 - beta that shows. */
IDA_INLINE void step_vector(const step_args *a, vf *p, vf *m, vf *v, vf g) {
    g = g * vf_set1(a->gscale);
    *m = vf_set1(a->b1) * *m + (vf_set1(a->b1_low) * *m + vf_set1(a->one_b1) * g);
    *v = vf_set1(a->b2) * *v + (vf_set1(a->b2_low) * *v + vf_set1(a->one_b2) * g * g);
    vf denominator = vf_sqrt(*v * vf_set1(a->v_scale)) + vf_set1(a->eps);
    *p = *p - (vf_set1(a->step) * *m / denominator + vf_set1(a->decay) * *p);
}

static void step_block(void *arg, int64_t task, int worker) {
    (void)worker;
    const step_args *a = arg;
    int64_t i = task * TASK, end = ida_min(a->n, i + TASK);
    for (; i + IDA_VL <= end; i += IDA_VL) {
        vf p = vf_load(a->p + i), m = vf_load(a->m + i), v = vf_load(a->v + i);
        step_vector(a, &p, &m, &v, vf_load(a->g + i));
        vf_store(a->p + i, p);
        vf_store(a->m + i, m);
        vf_store(a->v + i, v);
    }
    if (i < end) {
        int64_t k = end - i;
        vf p = vf_load_n(a->p + i, k), m = vf_load_n(a->m + i, k), v = vf_load_n(a->v + i, k);
        step_vector(a, &p, &m, &v, vf_load_n(a->g + i, k));
        vf_store_n(a->p + i, p, k);
        vf_store_n(a->m + i, m, k);
        vf_store_n(a->v + i, v, k);
    }
}

ida_status IDA_CPU(adamw)(const ida_device *dev, float *p, float *m, float *v, const float *g, int64_t n,
                          const ida_adamw_args *o) {
    (void)dev;
    assert(o->t >= 1 && o->eps >= IDA_LEAST_EPS);
    double c1 = 1.0 - pow(o->beta1, (double)o->t), c2 = 1.0 - pow(o->beta2, (double)o->t);
    step_args a = {.p = p,
                   .m = m,
                   .v = v,
                   .g = g,
                   .n = n,
                   .gscale = (float)o->gscale,
                   .b1 = (float)o->beta1,
                   .b1_low = (float)(o->beta1 - (double)(float)o->beta1),
                   .one_b1 = (float)(1.0 - o->beta1),
                   .b2 = (float)o->beta2,
                   .b2_low = (float)(o->beta2 - (double)(float)o->beta2),
                   .one_b2 = (float)(1.0 - o->beta2),
                   .step = (float)(o->lr / c1),
                   .v_scale = (float)(1.0 / c2),
                   .eps = (float)o->eps,
                   .decay = (float)(o->lr * o->weight_decay)};
    ida_parallel(ida_div_up(n, TASK), step_block, &a);
    if (o->w && n > 0) memcpy(ida_act_real(o->w), p, (size_t)n * sizeof *p);
    return IDA_OK;
}
