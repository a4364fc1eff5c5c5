/* attention.h - what the files of softmax attention share: what a kernel is told, and the launchers. Private to ops/cuda. C and
 * CUDA.
 *
 * Three ways to the same result: cuDNN (cudnn_sdpa.c: sequences of one length), tiles on tensor cores (attention/fwd.cu,
 * attention/bwd.cu: bf16, heads of a multiple of 8 up to 128), and plain fp32 tiles (attention/plain.cu: all the rest).
 * attention.cu chooses, and does the decode step.
 * Invariant: on our own kernels what a sequence gets depends on that sequence alone, never on the others of the batch. cuDNN is
 * taken or not by the shape of the batch, and never with a cache. */
#ifndef IDA_OPS_CUDA_ATTENTION_H
#define IDA_OPS_CUDA_ATTENTION_H

#include "ops/cuda/cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cuDNN on a batch of n_seq sequences of `len` tokens each, bf16. *done: false when cuDNN is missing or refuses (told once in the
 * log); nothing was queued then. deterministic: the same bits every time; without, the backward pass is faster and takes less
 * memory. */
ida_status ida_cuda_cudnn_attention_fwd(const ida_device *dev, const ida_attention_args *a, int64_t n_seq, int64_t len,
                                        bool *done);
ida_status ida_cuda_cudnn_attention_bwd(const ida_device *dev, ida_act *dq, ida_act *dk, ida_act *dv, const ida_act *dout,
                                        const ida_attention_args *a, int64_t n_seq, int64_t len, bool deterministic,
                                        bool *done);

#ifdef __cplusplus
}

enum { ATTN_GROUP = 64, ATTN_TILE = 128, ATTN_MAX_D = 128 };

/* Sequences with a cache, handed to a kernel by value: no table has to reach the device first. tile0: first tile (of queries, or
 * of keys in a decode step) of each. */
typedef struct attn_group {
    int n, tile0[ATTN_GROUP + 1], len[ATTN_GROUP], past[ATTN_GROUP];
    int64_t row0[ATTN_GROUP]; /* first token in q, k, v, o */
    void *k[ATTN_GROUP], *v[ATTN_GROUP];
} attn_group;

typedef struct attn_params {
    int h, g, per, d;
    float scale, scale2; /* 1/sqrt(D), and the same times log2(e) */
    int64_t n_seq, n_tokens;
    const int64_t *cu; /* device; NULL with a cache */
    const void *q, *k, *v, *dout;
    void *o, *dq, *dk, *dv;
    float *lse;
    float2 *rows; /* backward [H,N]: lse * log2(e), and dout . o */
} attn_params;

/* group NULL: the sequences of p->cu. */
ida_status attn_launch_fwd_tile(const ida_device *dev, const attn_params *p, const attn_group *group);
ida_status attn_launch_bwd_tile(const ida_device *dev, const attn_params *p);
ida_status attn_launch_bwd_rows(const ida_device *dev, const attn_params *p, bool vector);
ida_status attn_launch_fwd_plain(const ida_device *dev, const attn_params *p, const attn_group *group);
ida_status attn_launch_bwd_plain(const ida_device *dev, const attn_params *p);
/* Queries of one tile of the plain path; 0 where the chip's shared memory holds no tile of heads this wide. */
int attn_plain_tile(const ida_device *dev, int64_t d, bool bwd);
#endif
#endif
