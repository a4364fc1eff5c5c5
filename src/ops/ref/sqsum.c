/* sqsum.c - sum of squares, for gradient norms. */
#include "ops/ops.h"

ida_status IDA_REF(sqsum)(const ida_device *dev, double *sum, const real *x, int64_t n) {
    (void)dev;
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    *sum = s;
    return IDA_OK;
}
