/* rmsnorm.c - root-mean-square normalisation of whole rows. */
#include "ops/ops.h"

#include <assert.h>
#include <math.h>

#include "core/mem.h"

ida_status IDA_REF(rmsnorm_fwd)(const ida_device *dev, ida_act *ya, real *rstd, const ida_act *xa, const real *g, int64_t n,
                                int64_t d, double eps) {
    (void)dev;
    real *y = ida_act_real(ya);
    const real *x = ida_act_real(xa);
    assert(eps >= IDA_LEAST_EPS);
    for (int64_t t = 0; t < n; t++) {
        double s = 0.0;
        for (int64_t i = 0; i < d; i++) s += (double)x[t * d + i] * (double)x[t * d + i];
        double r = 1.0 / sqrt(s / (double)d + eps);
        rstd[t] = (real)r;
        for (int64_t i = 0; i < d; i++) y[t * d + i] = (real)((double)x[t * d + i] * r * (double)g[i]);
    }
    return IDA_OK;
}

/* y_i = x_i r g_i, r = (mean x^2 + eps)^-1/2:  dx_i = r (g_i dy_i - x_i r^2 mean_j(g_j dy_j x_j)),  dg_i = dy_i x_i r. */
ida_status IDA_REF(rmsnorm_bwd)(const ida_device *dev, ida_act *dxa, real *dg, const ida_act *dya, const ida_act *xa,
                                const real *g, const real *rstd, int64_t n, int64_t d) {
    (void)dev;
    real *dx = ida_act_real(dxa);
    const real *dy = ida_act_real(dya), *x = ida_act_real(xa);
    double *sum = NULL;
    if (n == 0) return IDA_OK;
    IDA_TRY(IDA_CALLOC(sum, d, "rmsnorm_bwd gain gradient"));
    for (int64_t t = 0; t < n; t++) {
        const real *xt = x + t * d, *dyt = dy + t * d;
        double r = (double)rstd[t], dot = 0.0;
        for (int64_t i = 0; i < d; i++) dot += (double)g[i] * (double)dyt[i] * (double)xt[i];
        double c = dot * r * r / (double)d;
        for (int64_t i = 0; i < d; i++) {
            dx[t * d + i] = (real)((double)dx[t * d + i] + r * ((double)g[i] * (double)dyt[i] - (double)xt[i] * c));
            sum[i] += (double)dyt[i] * (double)xt[i] * r;
        }
    }
    for (int64_t i = 0; i < d; i++) dg[i] = (real)((double)dg[i] + sum[i]);
    ida_free(sum);
    return IDA_OK;
}
