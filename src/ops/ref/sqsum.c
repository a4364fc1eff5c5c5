/* sqsum.c - sum of squares, for gradient norms. */
#include "ops/ops.h"

ida_status IDA_REF(sqsum)(const ida_device *dev, double *sums, const real *x, const ida_span *spans, int64_t n_spans) {
    (void)dev;
    for (int64_t k = 0; k < n_spans; k++) {
        const real *p = x + spans[k].at;
        double s = 0.0;
        for (int64_t i = 0; i < spans[k].n; i++) s += (double)p[i] * (double)p[i];
        sums[k] = s;
    }
    return IDA_OK;
}
