/* rope.cu - rotary position embedding alone, by the kernels of stream.cuh. y may be x: a row is read by the warp that writes it,
 * before. */
#include <assert.h>

#include "ops/cuda/stream/stream.cuh"

ida_status ida_cuda_rope(const ida_device *dev, ida_act *y, const ida_act *x, const ida_seqs *seqs, int64_t h, int64_t d,
                         double theta, int sign) {
    ida_cuda_seqs t = {};
    assert(d % 2 == 0);
    if (seqs->n == 0 || seqs->cu[seqs->n] == 0) return IDA_OK;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &t));
    stream_call c = {};
    c.parts = PART_ROPE, c.n = t.n_tokens, c.h = h, c.d = d, c.cu = t.cu, c.pos0 = t.pos0, c.seq = t.seq;
    c.x = x, c.y = y, c.theta = theta, c.sign = sign;
    return stream_fwd_call(dev, &c);
}
