/* linear/few.h - products of few rows, as linear.cu and project.cu call them. */
#ifndef IDA_OPS_CUDA_LINEAR_FEW_H
#define IDA_OPS_CUDA_LINEAR_FEW_H

#include "ops/cuda/cuda_ops.h"

enum { IDA_LINEAR_FEW = 4 }; /* rows */

/* y = x w^T (+ c); with gain: of rmsnorm(x); with gate_w (and gain): y = SiLU(xn gate_w^T) * (xn w^T). Shapes as in ops.h. */
typedef struct ida_few_product {
    ida_act *y;
    const ida_act *x, *c;
    const void *w, *gate_w; /* of act_type; c, gate_w, gain: NULL = none; c not with gain */
    const real *gain;
    double eps;
    int64_t n, in, out;
} ida_few_product;

/* Whether ida_linear_few_fwd takes it. */
bool ida_linear_few(const ida_device *dev, const ida_few_product *p);
ida_status ida_linear_few_fwd(const ida_device *dev, const ida_few_product *p);

#endif
