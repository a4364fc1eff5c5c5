/* cast.c - between the two element types, which are one and the same on host devices. */
#include "ops/ops.h"

#include <string.h>

ida_status IDA_REF(to_act)(const ida_device *dev, ida_act *ya, const real *x, int64_t n) {
    (void)dev;
    real *y = ida_act_real(ya);
    if (n > 0) memcpy(y, x, (size_t)n * sizeof *y);
    return IDA_OK;
}

ida_status IDA_REF(from_act)(const ida_device *dev, real *y, const ida_act *xa, int64_t n) {
    (void)dev;
    const real *x = ida_act_real(xa);
    if (n > 0) memcpy(y, x, (size_t)n * sizeof *y);
    return IDA_OK;
}
