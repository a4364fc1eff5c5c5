/* featmap.cu - the feature map SiLU(x) / ||SiLU(x)|| alone, by the kernels of stream.cuh. */
#include "ops/cuda/stream/stream.cuh"

ida_status ida_cuda_featmap_fwd(const ida_device *dev, ida_act *y, real *rinv, const ida_act *x, int64_t n, int64_t h,
                                int64_t d, double eps) {
    stream_call c = {};
    c.parts = PART_MAP, c.n = n, c.h = h, c.d = d, c.x = x, c.y = y, c.l2_eps = (float)eps, c.stat = rinv;
    return n > 0 ? stream_fwd_call(dev, &c) : IDA_OK;
}

ida_status ida_cuda_featmap_bwd(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_act *x, const real *rinv,
                                int64_t n, int64_t h, int64_t d) {
    stream_call c = {};
    c.parts = PART_MAP, c.n = n, c.h = h, c.d = d, c.x = x, c.dy = dy, c.dx = dx, c.saved = rinv;
    return n > 0 ? stream_bwd_call(dev, &c) : IDA_OK;
}
