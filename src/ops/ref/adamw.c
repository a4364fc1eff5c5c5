/* adamw.c - one AdamW step with decoupled weight decay. */
#include "ops/ops.h"

#include <assert.h>
#include <math.h>

ida_status IDA_REF(adamw)(const ida_device *dev, real *p, real *m, real *v, const real *g, int64_t n, const ida_adamw_args *a) {
    (void)dev;
    assert(a->t >= 1 && a->eps >= IDA_LEAST_EPS);
    real *w = ida_act_real(a->w);
    double c1 = 1.0 - pow(a->beta1, (double)a->t), c2 = 1.0 - pow(a->beta2, (double)a->t);
    for (int64_t i = 0; i < n; i++) {
        double gi = a->gscale * (double)g[i];
        double mi = a->beta1 * (double)m[i] + (1.0 - a->beta1) * gi;
        double vi = a->beta2 * (double)v[i] + (1.0 - a->beta2) * gi * gi;
        double pi = (double)p[i];
        m[i] = (real)mi;
        v[i] = (real)vi;
        p[i] = (real)(pi - a->lr * (mi / c1 / (sqrt(vi / c2) + a->eps) + a->weight_decay * pi));
        if (w) w[i] = p[i];
    }
    return IDA_OK;
}
