/* cuda_device.h - what device.c, recording.c, seqs.cu, linear.cu, cudnn_sdpa.c and table.cu share behind ida_cuda.priv, and
 * overlap.cuh for the ops of a step. Other ops see cuda_ops.h only. */
#ifndef IDA_OPS_CUDA_DEVICE_H
#define IDA_OPS_CUDA_DEVICE_H

#include <pthread.h>

#include "ops/cuda/cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned memory that uploads pass through, cut into segments that are filled in turn. A segment's event is recorded when the next
 * one is begun, and waited for before the segment is written again. */
enum { IDA_CUDA_SEGMENTS = 8, IDA_CUDA_SEGMENT_BYTES = 2 << 20 };
typedef struct ida_cuda_staging {
    unsigned char *base;
    cudaEvent_t done[IDA_CUDA_SEGMENTS];
    int at;       /* segment being filled */
    int64_t used; /* bytes of it */
} ida_cuda_staging;

typedef struct ida_cuda_seq_cache ida_cuda_seq_cache; /* seqs.cu */
typedef struct ida_cuda_seq_entry ida_cuda_seq_entry; /* seqs.cu: the tables of one batch */
typedef struct ida_cuda_plans ida_cuda_plans;         /* linear.cu */

typedef struct ida_cuda_priv {
    pthread_mutex_t lock; /* recursive; held during every op and memory function: all share scratch, tables and staging */
    char label[16];       /* "cuda:0" */
    cudaMemPool_t pool;   /* NULL: cudaMalloc */
    void *scratch;
    int64_t scratch_bytes, scratch_moves; /* how often the block was given up for a larger one */
    ida_cuda_staging staging;
    void *gemm_workspace; /* cuBLASLt's own */
    ida_cuda_seq_cache *seqs;
    ida_cuda_seq_entry *recorded; /* the batch that is being recorded; NULL: none is */
    bool recorded_scratch;        /* an op of the recording uses scratch */
    ida_cuda_plans *plans;
    bool lone_product;            /* linear/few.cu: which of its sizes the last product had */
} ida_cuda_priv;

enum { IDA_CUDA_GEMM_WORKSPACE = 64 << 20 };

static inline ida_cuda_priv *ida_cuda_priv_of(const ida_device *dev) { return (ida_cuda_priv *)ida_cuda_of(dev)->priv; }

/* Every call from outside runs between these two: takes the lock and makes the device the calling thread's current one. */
ida_status ida_cuda_enter(const ida_device *dev);
void ida_cuda_leave(const ida_device *dev);

/* Memory of the device's pool, with a message that helps; queued uploads. Between enter and leave. */
void ida_cuda_free(const ida_device *dev, void *p);
ida_status ida_cuda_alloc(const ida_device *dev, void **out, int64_t bytes, const char *what);
ida_status ida_cuda_upload(const ida_device *dev, void *to, const void *from_host, int64_t bytes);

void ida_cuda_seqs_free(const ida_device *dev);
/* Tables of seqs outside of the cache, for a recording. */
ida_status ida_cuda_seqs_keep(const ida_device *dev, const ida_seqs *seqs, ida_cuda_seq_entry **out);
/* The positions of seqs take the place of theirs; the lengths must be the same. */
ida_status ida_cuda_seqs_reposition(const ida_device *dev, ida_cuda_seq_entry *e, const ida_seqs *seqs);
/* NULL is legal. */
void ida_cuda_seqs_drop(const ida_device *dev, ida_cuda_seq_entry *e);

/* recording.c: these entries of ida_device_memory. */
ida_status ida_cuda_record(const ida_device *dev, const ida_seqs *seqs);
ida_status ida_cuda_record_end(const ida_device *dev, bool good, ida_recording **out);
ida_status ida_cuda_replay(const ida_device *dev, ida_recording *r, const ida_seqs *seqs, bool *moved);
void ida_cuda_record_free(const ida_device *dev, ida_recording *r);

void ida_cuda_plans_free(const ida_device *dev);
void ida_cuda_cudnn_free(const ida_device *dev); /* cudnn_sdpa.c: its handle and plans; nothing may be queued any more */

/* Opens ordinal for act of dtype; the "devices" array of doctor as text. */
ida_status ida_cuda_open(int ordinal, ida_dtype dtype, const ida_device **out);
ida_status ida_cuda_describe(char *json, size_t size);

/* table.cu */
extern const ida_ops *const ida_cuda_op_table;
int64_t ida_cuda_n_ops(void);

#ifdef __cplusplus
}
#endif
#endif
