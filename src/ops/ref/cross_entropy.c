/* cross_entropy.c - negative log-likelihood of the target and, in place, its gradient. */
#include "ops/ops.h"

#include <assert.h>
#include <math.h>

ida_status IDA_REF(cross_entropy)(const ida_device *dev, real *losses, ida_act *logitsa, const int32_t *targets, int64_t n,
                                  int64_t vocab, double scale) {
    (void)dev;
    real *logits = ida_act_real(logitsa);
    for (int64_t t = 0; t < n; t++) {
        real *row = logits + t * vocab;
        assert(targets[t] < vocab);
        if (targets[t] < 0) {
            if (losses) losses[t] = 0;
            for (int64_t v = 0; scale != 0.0 && v < vocab; v++) row[v] = 0;
            continue;
        }
        double top = -INFINITY, sum = 0.0;
        for (int64_t v = 0; v < vocab; v++)
            if ((double)row[v] > top) top = (double)row[v];
        for (int64_t v = 0; v < vocab; v++) sum += exp((double)row[v] - top);
        if (losses) losses[t] = (real)(log(sum) + top - (double)row[targets[t]]);
        /* loss = log sum_v e^row_v - row_target:  drow_v = e^row_v / sum - [v = target]. */
        for (int64_t v = 0; scale != 0.0 && v < vocab; v++)
            row[v] = (real)(scale * (exp((double)row[v] - top) / sum - (v == targets[t] ? 1.0 : 0.0)));
    }
    return IDA_OK;
}
