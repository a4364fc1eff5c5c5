/* linear_few.h - products of few rows, as linear.cu calls them. */
#ifndef IDA_OPS_CUDA_LINEAR_FEW_H
#define IDA_OPS_CUDA_LINEAR_FEW_H

#include "ops/cuda/cuda_ops.h"

enum { IDA_LINEAR_FEW = 4 }; /* rows */

/* Whether ida_linear_few_fwd takes it. */
bool ida_linear_few(const ida_device *dev, const act *x, const act *w, int64_t n, int64_t in, int64_t out);
/* ida_linear_fwd_fn in bf16. */
ida_status ida_linear_few_fwd(const ida_device *dev, act *y, const act *x, const act *w, const act *c, int64_t n, int64_t in,
                              int64_t out);

#endif
