/* cudnn_graphs.h - what cudnn_graphs.c and cudnn_sdpa.c share: the library's functions, and the graphs of attention. HAVE_CUDNN
 * is defined where the build has cuDNN's headers; without them nothing else is here. Private to these two. C. */
#ifndef IDA_OPS_CUDA_CUDNN_GRAPHS_H
#define IDA_OPS_CUDA_CUDNN_GRAPHS_H

#if defined __has_include
#if __has_include(<cudnn_graph.h>)
#define HAVE_CUDNN 1
#endif
#endif

#ifdef HAVE_CUDNN
#include <cudnn_graph.h>
#include <stdbool.h>

typedef cudnnBackendDescriptor_t desc;
typedef struct cudnn_api {
    size_t (*version)(void);
    cudnnStatus_t (*create_handle)(cudnnHandle_t *);
    cudnnStatus_t (*destroy_handle)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    const char *(*error_text)(cudnnStatus_t);
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, desc *);
    cudnnStatus_t (*destroy)(desc);
    cudnnStatus_t (*finalize)(desc);
    cudnnStatus_t (*set)(desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);
    cudnnStatus_t (*get)(desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, desc, desc);
} cudnn_api;

/* The library, loaded at the first call; NULL, and *error, where there is none that serves. */
const cudnn_api *cudnn_load(const char **error);

typedef struct shape {
    int64_t b, t, h, g, d;
} shape;

/* Names of the tensors that a run supplies. */
enum { ID_Q = 1, ID_K, ID_V, ID_O, ID_STATS, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_ROW_SUMS, ID_DQ_SUMS };
enum { ID_SCALE = 20, ID_MASKED, ID_ONE, ID_VIRTUAL = 100 };
enum { MAX_DESCS = 256, MAX_OPS = 32 };

/* Everything made for one graph, in the order made. After the first failure (status) nothing more is made; `step` names it. */
typedef struct graph {
    shape s;
    desc all[MAX_DESCS], ops[MAX_OPS];
    int n, n_ops;
    int64_t next_id;
    cudnnStatus_t status;
    const char *step;
} graph;

void graph_check(graph *g, cudnnStatus_t status, const char *step);
desc graph_make(graph *g, cudnnBackendDescriptorType_t type, const char *step);
void graph_set(graph *g, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
               const void *value);
void graph_set_desc(graph *g, desc d, cudnnBackendAttributeName_t name, desc value);
void graph_finalize(graph *g, desc d, const char *step);
/* Frees what was made. */
void graph_drop(graph *g);

/* The operations for g->s. stats: lse is wanted. */
void graph_build_fwd(graph *g, bool stats);
void graph_build_bwd(graph *g, bool deterministic);
#endif
#endif
