/* linear.c - matrix product with a weight [out,in]. Plain loops, double accumulation. */
#include "core/mem.h"
#include "ops/ref/row.h"

ida_status IDA_REF(linear_fwd)(const ida_device *dev, ida_act *ya, const ida_act *xa, const ida_matrix *w, const ida_act *ca,
                               int64_t n) {
    (void)dev;
    real *y = ida_act_real(ya), *room = NULL;
    const real *x = ida_act_real(xa), *c = ida_act_real(ca);
    const int64_t in = w->cols, out = w->rows;
    IDA_TRY(IDA_ALLOC(room, in, "linear_fwd row of the weight"));
    for (int64_t o = 0; o < out; o++) {
        const real *row = ida_matrix_row(w, o, room);
        for (int64_t t = 0; t < n; t++) {
            double s = c ? (double)c[t * out + o] : 0.0;
            for (int64_t i = 0; i < in; i++) s += (double)x[t * in + i] * (double)row[i];
            y[t * out + o] = (real)s;
        }
    }
    ida_free(room);
    return IDA_OK;
}

/* y = x W^T:  dx = dy W,  dW = dy^T x. */
ida_status IDA_REF(linear_bwd)(const ida_device *dev, ida_act *dxa, real *dw, const ida_act *dya, const ida_act *xa,
                               const ida_matrix *w, int64_t n, bool add) {
    (void)dev;
    real *dx = ida_act_real(dxa), *room = NULL;
    const real *dy = ida_act_real(dya), *x = ida_act_real(xa);
    const int64_t in = w->cols, n_out = w->rows;
    double *row = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(row, in, "linear_bwd row"));
    IDA_TRY_GOTO(IDA_ALLOC(room, in, "linear_bwd row of the weight"));
    for (int64_t t = 0; dx && t < n; t++) {
        for (int64_t i = 0; i < in; i++) row[i] = add ? (double)dx[t * in + i] : 0.0;
        for (int64_t o = 0; o < n_out; o++) {
            const real *wo = ida_matrix_row(w, o, room);
            for (int64_t i = 0; i < in; i++) row[i] += (double)dy[t * n_out + o] * (double)wo[i];
        }
        for (int64_t i = 0; i < in; i++) dx[t * in + i] = (real)row[i];
    }
    for (int64_t o = 0; dw && n > 0 && o < n_out; o++) {
        for (int64_t i = 0; i < in; i++) row[i] = (double)dw[o * in + i];
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < in; i++) row[i] += (double)dy[t * n_out + o] * (double)x[t * in + i];
        for (int64_t i = 0; i < in; i++) dw[o * in + i] = (real)row[i];
    }
out:
    ida_free(room);
    ida_free(row);
    return st;
}
