/* recording.c - ops queued once and run many times: a CUDA graph of what one thread queues between record and record_end. Not
 * here: what is worth recording (model/forward.c).
 * Invariants: the device's lock is held from record to record_end, so that no other thread's work gets in. A recording has the
 * addresses of its time; of those that the backend chooses only scratch can move, and then replay says so. */
#include "ops/cuda/cuda_device.h"

struct ida_recording {
    cudaGraphExec_t exec;
    ida_cuda_seq_entry *seqs;
    bool scratch; /* it uses some, */
    int64_t scratch_moves; /* that of this count */
};

ida_status ida_cuda_record(const ida_device *dev, const ida_seqs *seqs) {
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    ida_cuda_seq_entry *e = NULL;
    IDA_TRY(ida_cuda_enter(dev));
    ida_status st = ida_cuda_seqs_keep(dev, seqs, &e);
    if (st == IDA_OK)
        st = ida_cuda_status((int)cudaStreamBeginCapture(ida_cuda_of(dev)->stream, cudaStreamCaptureModeThreadLocal), "recording",
                             __FILE__, __LINE__);
    if (st == IDA_OK) {
        p->recorded = e; /* and the lock stays */
        p->recorded_scratch = false;
        return IDA_OK;
    }
    ida_cuda_seqs_drop(dev, e);
    ida_cuda_leave(dev);
    return st;
}

ida_status ida_cuda_record_end(const ida_device *dev, bool good, ida_recording **out) {
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    ida_cuda_seq_entry *seqs = p->recorded;
    cudaGraph_t graph = NULL;
    ida_recording *r = NULL;
    ida_status st = IDA_OK;
    *out = NULL;
    const cudaError_t e = cudaStreamEndCapture(ida_cuda_of(dev)->stream, &graph);
    p->recorded = NULL;
    if (good) st = ida_cuda_status((int)e, "the end of a recording", __FILE__, __LINE__);
    if (good && st == IDA_OK) st = IDA_CALLOC(r, 1, "a recording");
    if (good && st == IDA_OK)
        st = ida_cuda_status((int)cudaGraphInstantiate(&r->exec, graph, 0), "a recording's making", __FILE__, __LINE__);
    /* what it takes on the device it takes now, so that a run lacks nothing */
    if (good && st == IDA_OK)
        st = ida_cuda_status((int)cudaGraphUpload(r->exec, ida_cuda_of(dev)->stream), "a recording's upload", __FILE__, __LINE__);
    if (good && st == IDA_OK) {
        r->seqs = seqs;
        r->scratch = p->recorded_scratch;
        r->scratch_moves = p->scratch_moves;
        *out = r;
    } else {
        if (r && r->exec) (void)cudaGraphExecDestroy(r->exec);
        ida_free(r);
        ida_cuda_seqs_drop(dev, seqs);
    }
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    ida_cuda_leave(dev);
    return st;
}

ida_status ida_cuda_replay(const ida_device *dev, ida_recording *r, const ida_seqs *seqs, bool *moved) {
    IDA_TRY(ida_cuda_enter(dev));
    ida_status st = IDA_OK;
    *moved = r->scratch && r->scratch_moves != ida_cuda_priv_of(dev)->scratch_moves;
    if (!*moved) st = ida_cuda_seqs_reposition(dev, r->seqs, seqs);
    if (!*moved && st == IDA_OK)
        st = ida_cuda_status((int)cudaGraphLaunch(r->exec, ida_cuda_of(dev)->stream), "a recording's run", __FILE__, __LINE__);
    ida_cuda_leave(dev);
    return st;
}

void ida_cuda_record_free(const ida_device *dev, ida_recording *r) {
    if (!r || ida_cuda_enter(dev) != IDA_OK) return;
    (void)cudaStreamSynchronize(ida_cuda_of(dev)->stream);
    (void)cudaGraphExecDestroy(r->exec);
    ida_cuda_seqs_drop(dev, r->seqs);
    ida_free(r);
    (void)cudaGetLastError(); /* else the next launch would be blamed for it */
    ida_cuda_leave(dev);
}
