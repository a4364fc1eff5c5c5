/* headnorm.cu - RMSNorm of each head's row alone, by the kernels of stream.cuh. */
#include "ops/cuda/stream/stream.cuh"

ida_status ida_cuda_headnorm_fwd(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, const real *b,
                                 int64_t n, int64_t h, int64_t d, double eps) {
    stream_call c = {};
    c.parts = PART_NORM, c.n = n, c.h = h, c.d = d, c.x = x, c.y = y, c.norm_eps = (float)eps, c.gain = g, c.bias = b,
    c.stat = rstd;
    return n > 0 ? stream_fwd_call(dev, &c) : IDA_OK;
}

ida_status ida_cuda_headnorm_bwd(const ida_device *dev, ida_act *dx, real *dg, real *db, const ida_act *dy, const ida_act *x,
                                 const real *g, const real *rstd, int64_t n, int64_t h, int64_t d) {
    stream_call c = {};
    c.parts = PART_NORM, c.n = n, c.h = h, c.d = d, c.x = x, c.dy = dy, c.dx = dx, c.gain = g, c.saved = rstd, c.d_gain = dg,
    c.d_bias = db;
    return n > 0 ? stream_bwd_call(dev, &c) : IDA_OK;
}
