/* linear.c - matrix product with a weight [out,in]. Plain loops, double accumulation. */
#include "ops/ops.h"

#include "core/mem.h"

ida_status IDA_REF(linear_fwd)(const ida_device *dev, real *y, const real *x, const real *w,
                               const real *c, int64_t n, int64_t in, int64_t out) {
    (void)dev;
    for (int64_t t = 0; t < n; t++)
        for (int64_t o = 0; o < out; o++) {
            double s = c ? (double)c[t * out + o] : 0.0;
            for (int64_t i = 0; i < in; i++) s += (double)x[t * in + i] * (double)w[o * in + i];
            y[t * out + o] = (real)s;
        }
    return IDA_OK;
}

/* y = x W^T:  dx = dy W,  dW = dy^T x. */
ida_status IDA_REF(linear_bwd)(const ida_device *dev, real *dx, real *dw, const real *dy, const real *x, const real *w, int64_t n,
                               int64_t in, int64_t out, bool add) {
    (void)dev;
    double *row = NULL;
    IDA_TRY(IDA_ALLOC(row, in, "linear_bwd row"));
    for (int64_t t = 0; dx && t < n; t++) {
        for (int64_t i = 0; i < in; i++) row[i] = add ? (double)dx[t * in + i] : 0.0;
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++) row[i] += (double)dy[t * out + o] * (double)w[o * in + i];
        for (int64_t i = 0; i < in; i++) dx[t * in + i] = (real)row[i];
    }
    for (int64_t o = 0; dw && n > 0 && o < out; o++) {
        for (int64_t i = 0; i < in; i++) row[i] = (double)dw[o * in + i];
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < in; i++) row[i] += (double)dy[t * out + o] * (double)x[t * in + i];
        for (int64_t i = 0; i < in; i++) dw[o * in + i] = (real)row[i];
    }
    ida_free(row);
    return IDA_OK;
}
