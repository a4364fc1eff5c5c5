/* interdomain.h - the mixer core on one CUDA device (ops.h "interdomain", chunk form): launchers that take device pointers, a
 * stream and scratch. They allocate nothing and do not wait for the device.
 *
 * Two paths. Tuned (sm_90, bf16, M, R, D <= 128, R and D multiples of 8, chunk 64): tensor cores, bf16 operands, fp32 sums and
 * state. Generic (all else, and groups whose decay wants a shorter chunk): any M, R, D; fp32 tensors in fp32, bf16 tensors with
 * fp32 operands as pairs of bf16 on tensor cores (2^-16 a product).
 * Invariant: no float atomics; the bits depend on the shapes and inputs only. */
#ifndef IDA_OPS_CUDA_INTERDOMAIN_H
#define IDA_OPS_CUDA_INTERDOMAIN_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most tokens of one call. */
enum { IDA_CUDA_INTERDOMAIN_TOKENS = 1 << 30 };

/* Every pointer but cu is to device memory. q, dout.. [N,H,R] etc. as in ops.h, of bf16 when `bf16`, else float; states and
 * parameters always float. cu [n_seq+1] is read before the call returns. cu_device: the same offsets in device memory; NULL: cu
 * is copied there at each call. */
typedef struct ida_cuda_interdomain {
    int64_t n_seq;
    const int64_t *cu, *cu_device;
    int64_t h, g, r, d, m, chunk;
    ida_readout readout;
    bool bf16;
    int arch; /* of the code that runs (arch.h) */
    ida_ssm ssm;
    const void *q, *k, *v;
    void *o;
    ida_state_ref state_in, state_out;
    /* backward */
    const void *dout;
    ida_state_ref dstate_out, dstate_in;
    void *dq, *dk, *dv;
    ida_ssm_grads dssm;
} ida_cuda_interdomain;

/* Whether these arguments take the tuned path (tensors off a multiple of 16 bytes do not). */
bool ida_cuda_interdomain_tuned(const ida_cuda_interdomain *a);

/* Bytes of scratch (256-byte aligned) a call needs; -1 on overflow. The content need not be kept between calls. */
int64_t ida_cuda_interdomain_fwd_scratch_bytes(const ida_cuda_interdomain *a);
int64_t ida_cuda_interdomain_bwd_scratch_bytes(const ida_cuda_interdomain *a);

/* o, state_out =.  stream: a cudaStream_t. Returns a cudaError_t (0 = launched). */
int ida_cuda_interdomain_fwd(const ida_cuda_interdomain *a, void *scratch, void *stream);
/* dq, dk, dv, dstate_in =; dssm +=.  state_out and o are not used. */
int ida_cuda_interdomain_bwd(const ida_cuda_interdomain *a, void *scratch, void *stream);

#ifdef __cplusplus
}
#endif
#endif
