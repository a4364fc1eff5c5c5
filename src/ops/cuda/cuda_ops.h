/* cuda_ops.h - what the files of this folder share: the device object, scratch, tables of a batch's sequences, errors, the two
 * element types. Every op of ops.def has its function ida_cuda_<op> here (the files are named as in ops/cpu); table.cu puts them
 * in the op table. Private to ops/cuda. C and CUDA.
 * Invariants: ops queue work on dev->stream and return; only sqsum, the downloads, and scratch or tables that grow wait. No float
 * atomics: bits depend on shapes, alignments and inputs only. Offsets are 64-bit. No op keeps a pointer after it returns, but in
 * a recording (recording.c). */
#ifndef IDA_OPS_CUDA_OPS_H
#define IDA_OPS_CUDA_OPS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "core/status.h"
#include "ops/device.h"
#include "ops/ops.h"

/* Sequences of a batch on the device. Valid until the next ida_cuda_seqs_of call on the device. */
typedef struct ida_cuda_seqs {
    int64_t n, n_tokens, longest;
    const int64_t *cu, *pos0;    /* device [S+1], [S]; pos0 all 0 where the batch has none */
    const int32_t *seq;          /* device [N]: sequence of each token */
} ida_cuda_seqs;

typedef struct ida_cuda {
    ida_device base;             /* first: a const ida_device * of this backend points to an ida_cuda */
    int ordinal, arch;           /* of the code that runs (arch.h): 90 = made for sm_90a, else 80 */
    int sms, most_shared;        /* multiprocessors; bytes of shared memory that a CTA can have, if the kernel asks */
    bool bf16;                   /* act is bf16; else float */
    cudaStream_t stream;
    void *cublaslt;              /* cublasLtHandle_t */
    void *priv;                  /* cuda_device.h: scratch block, sequence tables, plans */
} ida_cuda;

static inline ida_cuda *ida_cuda_of(const ida_device *dev) { return (ida_cuda *)(uintptr_t)dev; }

/* Scratch for one op: the same block every time, grown when needed, its content undefined; what an op got is valid until that
 * op's last kernel has run. One call per op entry (cut it up yourself at multiples of 256). 0 bytes give NULL. */
ida_status ida_cuda_scratch(const ida_device *dev, int64_t bytes, void **out);
/* Tables of seqs; uploaded once and kept while the same offsets come again. */
ida_status ida_cuda_seqs_of(const ida_device *dev, const ida_seqs *seqs, ida_cuda_seqs *out);

/* IDA_OK, or a failure from a cudaError_t: "cuda: WHAT: TEXT". Out of memory becomes IDA_E_NOMEM, the rest IDA_E_IO. */
ida_status ida_cuda_status(int error, const char *what, const char *file, int line);
#define IDA_CUDA_TRY(call) IDA_TRY(ida_cuda_status((int)(call), #call, __FILE__, __LINE__))
/* After a kernel launch. */
#define IDA_CUDA_LAUNCHED(what) ida_cuda_status((int)cudaGetLastError(), (what), __FILE__, __LINE__)

/* One entry per op. */
#define IDA_OP(name) ida_##name##_fn ida_cuda_##name;
#include "ops/ops.def"
#undef IDA_OP

#ifdef __cplusplus
}

#include <cuda_bf16.h>
/* Calls fn<T>(...) with T = __nv_bfloat16 or float, as the device's act is. */
#define IDA_CUDA_ACT(dev, T, ...)               \
    do {                                        \
        if (ida_cuda_of(dev)->bf16) {           \
            typedef __nv_bfloat16 T;            \
            __VA_ARGS__;                        \
        } else {                                \
            typedef float T;                    \
            __VA_ARGS__;                        \
        }                                       \
    } while (0)
#endif
#endif
