/* rope.c - rotary position embedding, half-split pairs (i, i + D/2). */
#include "ops/ops.h"

#include <assert.h>
#include <math.h>

ida_status IDA_REF(rope)(const ida_device *dev, ida_act *ya, const ida_act *xa, const ida_seqs *seqs, int64_t h, int64_t d,
                         double theta, int sign) {
    (void)dev;
    real *y = ida_act_real(ya);
    const real *x = ida_act_real(xa);
    assert(d % 2 == 0);
    int64_t half = d / 2;
    for (int64_t i = 0; i < half; i++) {
        double freq = pow(theta, -2.0 * (double)i / (double)d);
        for (int64_t s = 0; s < seqs->n; s++)
            for (int64_t t = seqs->cu[s]; t < seqs->cu[s + 1]; t++) {
                double pos = (double)((seqs->pos0 ? seqs->pos0[s] : 0) + t - seqs->cu[s]);
                double c = cos(pos * freq), sn = sign < 0 ? -sin(pos * freq) : sin(pos * freq);
                for (int64_t j = 0; j < h; j++) {
                    int64_t at = (t * h + j) * d + i;
                    double a = (double)x[at], b = (double)x[at + half];
                    y[at] = (real)(a * c - b * sn);
                    y[at + half] = (real)(b * c + a * sn);
                }
            }
    }
    return IDA_OK;
}
