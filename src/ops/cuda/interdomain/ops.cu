/* interdomain/ops.cu - the chunk form of the mixer core as ops (ops.h "interdomain"): arguments, scratch and the stream handed to
 * the launchers of interdomain.h; a word to the log when the shapes miss the tuned path. The sequential form and the step are
 * interdomain/seq.cu and interdomain/step.cu. */
#include <atomic>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/interdomain/interdomain.h"

namespace {

/* Once per shape that comes after another one. */
void tell_generic(const ida_device *dev, const ida_interdomain_args *a) {
    static std::atomic<uint64_t> told{0};
    const uint64_t shape = 1 + (uint64_t)(a->r & 0xffff) + ((uint64_t)(a->d & 0xffff) << 16) + ((uint64_t)(a->m & 0xffff) << 32);
    if (told.exchange(shape) == shape) return;
    const ida_cuda *c = ida_cuda_of(dev);
    ida_log("mixer core: head size %lld x %lld, %lld modes%s: the generic path, many times slower (tuned: compute capability "
            "9.0, bf16, at most 128 modes, sizes up to 128 in multiples of 8, chunk 64)",
            (long long)a->r, (long long)a->d, (long long)a->m,
            c->arch != 90 ? " on this GPU"
            : !c->bf16  ? " in fp32"
                        : "");
}

ida_status arguments(const ida_device *dev, const ida_interdomain_args *a, const ida_interdomain_grads *g, const ida_seqs *seqs,
                     ida_cuda_interdomain *out) {
    IDA_FAIL_IF(seqs->cu[seqs->n] > IDA_CUDA_INTERDOMAIN_TOKENS, IDA_E_UNSUPPORTED,
                "mixer core: %lld tokens in one call; at most %lld: use smaller batches", (long long)seqs->cu[seqs->n],
                (long long)IDA_CUDA_INTERDOMAIN_TOKENS);
    ida_cuda_seqs tables;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &tables));
    *out = {};
    out->n_seq = seqs->n, out->cu = seqs->cu, out->cu_device = tables.cu;
    out->h = a->h, out->g = a->g, out->r = a->r, out->d = a->d, out->m = a->m, out->chunk = a->chunk;
    out->readout = a->readout, out->bf16 = ida_cuda_of(dev)->bf16, out->arch = ida_cuda_of(dev)->arch, out->ssm = a->ssm;
    out->q = a->q, out->k = a->k, out->v = a->v, out->o = a->o;
    out->state_in = a->state_in, out->state_out = a->state_out;
    if (g) {
        out->dout = g->dout, out->dq = g->dq, out->dk = g->dk, out->dv = g->dv;
        out->dstate_out = g->dstate_out, out->dstate_in = g->dstate_in, out->dssm = g->dssm;
    }
    if (seqs->cu[seqs->n] > 0 && !ida_cuda_interdomain_tuned(out)) tell_generic(dev, a);
    return IDA_OK;
}

ida_status scratch_of(const ida_device *dev, int64_t bytes, void **scratch) {
    IDA_FAIL_IF(bytes < 0, IDA_E_NOMEM, "mixer core: the size of its scratch overflows");
    return ida_cuda_scratch(dev, bytes, scratch);
}

} // namespace

extern "C" ida_status ida_cuda_interdomain_chunk_fwd(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs) {
    ida_cuda_interdomain p;
    void *scratch;
    if (seqs->n == 0) return IDA_OK;
    IDA_TRY(arguments(dev, a, NULL, seqs, &p));
    IDA_TRY(scratch_of(dev, ida_cuda_interdomain_fwd_scratch_bytes(&p), &scratch));
    return ida_cuda_status(ida_cuda_interdomain_fwd(&p, scratch, ida_cuda_of(dev)->stream), "interdomain_chunk_fwd", __FILE__,
                           __LINE__);
}

extern "C" ida_status ida_cuda_interdomain_chunk_bwd(const ida_device *dev, const ida_interdomain_args *a,
                                                     const ida_interdomain_grads *g, const ida_seqs *seqs) {
    ida_cuda_interdomain p;
    void *scratch;
    if (seqs->n == 0) return IDA_OK;
    IDA_TRY(arguments(dev, a, g, seqs, &p));
    IDA_TRY(scratch_of(dev, ida_cuda_interdomain_bwd_scratch_bytes(&p), &scratch));
    return ida_cuda_status(ida_cuda_interdomain_bwd(&p, scratch, ida_cuda_of(dev)->stream), "interdomain_chunk_bwd", __FILE__,
                           __LINE__);
}
