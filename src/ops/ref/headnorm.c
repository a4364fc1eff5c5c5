/* headnorm.c - RMSNorm of each head's row with a gain shared by all heads and a bias per head (method step 5). */
#include "ops/ops.h"

#include <math.h>

#include "core/mem.h"

ida_status IDA_REF(headnorm_fwd)(const ida_device *dev, ida_act *ya, real *rstd, const ida_act *xa, const real *g,
                                 const real *b, int64_t n, int64_t h, int64_t d, double eps) {
    (void)dev;
    real *y = ida_act_real(ya);
    const real *x = ida_act_real(xa);
    for (int64_t row = 0; row < n * h; row++) {
        const real *xr = x + row * d, *br = b ? b + (row % h) * d : NULL;
        double s = 0.0;
        for (int64_t i = 0; i < d; i++) s += (double)xr[i] * (double)xr[i];
        double r = 1.0 / sqrt(s / (double)d + eps);
        rstd[row] = (real)r;
        for (int64_t i = 0; i < d; i++) y[row * d + i] = (real)((double)xr[i] * r * (double)g[i] + (br ? (double)br[i] : 0.0));
    }
    return IDA_OK;
}

/* y_i = x_i r g_i + b_i:  dx_i = r (g_i dy_i - x_i r^2 mean_j(g_j dy_j x_j)),  dg_i = dy_i x_i r,  db_i = dy_i. */
ida_status IDA_REF(headnorm_bwd)(const ida_device *dev, ida_act *dxa, real *dg, real *db, const ida_act *dya, const ida_act *xa,
                                 const real *g, const real *rstd, int64_t n, int64_t h, int64_t d) {
    (void)dev;
    real *dx = ida_act_real(dxa);
    const real *dy = ida_act_real(dya), *x = ida_act_real(xa);
    double *sum = NULL; /* dg [D], then db [H,D] */
    if (n == 0) return IDA_OK;
    IDA_TRY(IDA_CALLOC(sum, (h + 1) * d, "headnorm_bwd parameter gradients"));
    double *sum_b = sum + d;
    for (int64_t row = 0; row < n * h; row++) {
        const real *xr = x + row * d, *dyr = dy + row * d;
        double r = (double)rstd[row], dot = 0.0;
        for (int64_t i = 0; i < d; i++) dot += (double)g[i] * (double)dyr[i] * (double)xr[i];
        double c = dot * r * r / (double)d;
        for (int64_t i = 0; i < d; i++) {
            dx[row * d + i] = (real)(r * ((double)g[i] * (double)dyr[i] - (double)xr[i] * c));
            sum[i] += (double)dyr[i] * (double)xr[i] * r;
            sum_b[(row % h) * d + i] += (double)dyr[i];
        }
    }
    for (int64_t i = 0; i < d; i++) dg[i] = (real)((double)dg[i] + sum[i]);
    for (int64_t i = 0; db && i < h * d; i++) db[i] = (real)((double)db[i] + sum_b[i]);
    ida_free(sum);
    return IDA_OK;
}
