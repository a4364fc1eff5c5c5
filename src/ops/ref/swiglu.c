/* swiglu.c - y = SiLU(g) * u. Invariant: element i is read before anything is written to index i, so aliases are safe. */
#include "ops/ops.h"

#include <math.h>

ida_status IDA_REF(swiglu_fwd)(const ida_device *dev, real *y, const real *g, const real *u, int64_t n) {
    (void)dev;
    for (int64_t i = 0; i < n; i++) y[i] = (real)((double)g[i] / (1.0 + exp(-(double)g[i])) * (double)u[i]);
    return IDA_OK;
}

/* y = g sig(g) u:  dg = dy u sig (1 + g (1 - sig)),  du = dy g sig. */
ida_status IDA_REF(swiglu_bwd)(const ida_device *dev, real *dg, real *du, const real *dy, const real *g, const real *u,
                               int64_t n) {
    (void)dev;
    for (int64_t i = 0; i < n; i++) {
        double a = (double)dy[i], v = (double)g[i], b = (double)u[i], sig = 1.0 / (1.0 + exp(-v));
        dg[i] = (real)(a * b * sig * (1.0 + v * (1.0 - sig)));
        du[i] = (real)(a * v * sig);
    }
    return IDA_OK;
}
