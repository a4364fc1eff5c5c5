/* cast.c - between the two element types, which are one and the same on host devices. */
#include "ops/ops.h"

#include <string.h>

ida_status IDA_REF(to_act)(const ida_device *dev, act *y, const real *x, int64_t n) {
    (void)dev;
    if (n > 0) memcpy(y, x, (size_t)n * sizeof *y);
    return IDA_OK;
}

ida_status IDA_REF(from_act)(const ida_device *dev, real *y, const act *x, int64_t n) {
    (void)dev;
    if (n > 0) memcpy(y, x, (size_t)n * sizeof *y);
    return IDA_OK;
}
