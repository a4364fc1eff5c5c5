/* featmap.c - the feature map xi(x) = SiLU(x) / ||SiLU(x)|| per token and head (method step 4). */
#include "ops/ops.h"

#include <math.h>

ida_status IDA_REF(featmap_fwd)(const ida_device *dev, ida_act *ya, real *rinv, const ida_act *xa, int64_t n, int64_t h,
                                int64_t d, double eps) {
    (void)dev;
    real *y = ida_act_real(ya);
    const real *x = ida_act_real(xa);
    for (int64_t row = 0; row < n * h; row++) {
        const real *xr = x + row * d;
        double s = 0.0;
        for (int64_t i = 0; i < d; i++) {
            double v = (double)xr[i] / (1.0 + exp(-(double)xr[i]));
            s += v * v;
        }
        double r = 1.0 / sqrt(s + eps);
        rinv[row] = (real)r;
        for (int64_t i = 0; i < d; i++) y[row * d + i] = (real)((double)xr[i] / (1.0 + exp(-(double)xr[i])) * r);
    }
    return IDA_OK;
}

/* y = s / r, r = sqrt(sum s^2 + eps):  ds = (dy - y (y.dy)) / r;  s = x sig(x):  dx = ds sig (1 + x (1 - sig)). */
ida_status IDA_REF(featmap_bwd)(const ida_device *dev, ida_act *dxa, const ida_act *dya, const ida_act *xa, const real *rinv,
                                int64_t n, int64_t h, int64_t d) {
    (void)dev;
    real *dx = ida_act_real(dxa);
    const real *dy = ida_act_real(dya), *x = ida_act_real(xa);
    for (int64_t row = 0; row < n * h; row++) {
        const real *xr = x + row * d, *dyr = dy + row * d;
        double r = (double)rinv[row], dot = 0.0;
        for (int64_t i = 0; i < d; i++) dot += (double)xr[i] / (1.0 + exp(-(double)xr[i])) * r * (double)dyr[i];
        for (int64_t i = 0; i < d; i++) {
            double v = (double)xr[i], sig = 1.0 / (1.0 + exp(-v));
            dx[row * d + i] = (real)(r * ((double)dyr[i] - v * sig * r * dot) * sig * (1.0 + v * (1.0 - sig)));
        }
    }
    return IDA_OK;
}
