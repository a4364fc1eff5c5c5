/* swiglu.c - y = SiLU(g) * u. Invariant: element i is read before anything is written to index i, so aliases are safe. */
#include "ops/ops.h"

#include <math.h>

ida_status IDA_REF(swiglu_fwd)(const ida_device *dev, ida_act *ya, const ida_act *ga, const ida_act *ua, int64_t n) {
    (void)dev;
    real *y = ida_act_real(ya);
    const real *g = ida_act_real(ga), *u = ida_act_real(ua);
    for (int64_t i = 0; i < n; i++) y[i] = (real)((double)g[i] / (1.0 + exp(-(double)g[i])) * (double)u[i]);
    return IDA_OK;
}

/* y = g sig(g) u:  dg = dy u sig (1 + g (1 - sig)),  du = dy g sig. */
ida_status IDA_REF(swiglu_bwd)(const ida_device *dev, ida_act *dga, ida_act *dua, const ida_act *dya, const ida_act *ga,
                               const ida_act *ua, int64_t n) {
    (void)dev;
    real *dg = ida_act_real(dga), *du = ida_act_real(dua);
    const real *dy = ida_act_real(dya), *g = ida_act_real(ga), *u = ida_act_real(ua);
    for (int64_t i = 0; i < n; i++) {
        double a = (double)dy[i], v = (double)g[i], b = (double)u[i], sig = 1.0 / (1.0 + exp(-v));
        dg[i] = (real)(a * b * sig * (1.0 + v * (1.0 - sig)));
        du[i] = (real)(a * v * sig);
    }
    return IDA_OK;
}
