/* cudnn_graphs.c - cuDNN found at run time (libcudnn.so.9, by the loader's own rules), and the graphs that its fused attention
 * engines recognise. Not here: engines, plans and running them (cudnn_sdpa.c).
 *
 * A graph is a chain of matrix products, elementwise steps and row reductions over tensors [B, heads, T, D]; ours are packed [N,
 * heads, D], which is the same with other strides. Nothing of size T x T is stored, save where a deterministic backward pass
 * keeps it as bf16 in its workspace.
 * Invariant: a graph depends on the shape and the wish for determinism only. */
#include "ops/cuda/attention/cudnn_graphs.h"

#ifdef HAVE_CUDNN
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static cudnn_api api;
static char api_error[256];
static pthread_once_t api_once = PTHREAD_ONCE_INIT;

static void load_api(void) {
    void *lib = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *text = dlerror();
        snprintf(api_error, sizeof api_error, "%s", text ? text : "libcudnn.so.9 cannot be loaded");
        return;
    }
    const struct {
        void *to;
        const char *name;
    } functions[] = {{&api.version, "cudnnGetVersion"},
                     {&api.create_handle, "cudnnCreate"},
                     {&api.destroy_handle, "cudnnDestroy"},
                     {&api.set_stream, "cudnnSetStream"},
                     {&api.error_text, "cudnnGetErrorString"},
                     {&api.create, "cudnnBackendCreateDescriptor"},
                     {&api.destroy, "cudnnBackendDestroyDescriptor"},
                     {&api.finalize, "cudnnBackendFinalize"},
                     {&api.set, "cudnnBackendSetAttribute"},
                     {&api.get, "cudnnBackendGetAttribute"},
                     {&api.execute, "cudnnBackendExecute"}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(lib, functions[i].name);
        memcpy(functions[i].to, &symbol, sizeof symbol);
        if (!symbol) snprintf(api_error, sizeof api_error, "libcudnn.so.9 has no %s", functions[i].name);
    }
    if (!api_error[0] && api.version() < 90000)
        snprintf(api_error, sizeof api_error, "version %zu is older than 9.0", api.version());
}

const cudnn_api *cudnn_load(const char **error) {
    pthread_once(&api_once, load_api);
    *error = api_error;
    return api_error[0] ? NULL : &api;
}

/* ---- building */
void graph_check(graph *g, cudnnStatus_t status, const char *step) {
    if (g->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    g->status = status;
    g->step = step;
}

desc graph_make(graph *g, cudnnBackendDescriptorType_t type, const char *step) {
    desc d = NULL;
    if (g->status == CUDNN_STATUS_SUCCESS && g->n == MAX_DESCS) graph_check(g, CUDNN_STATUS_INTERNAL_ERROR, step);
    if (g->status == CUDNN_STATUS_SUCCESS) graph_check(g, api.create(type, &d), step);
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    g->all[g->n++] = d;
    return d;
}

void graph_set(graph *g, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
               const void *value) {
    if (g->status == CUDNN_STATUS_SUCCESS) graph_check(g, api.set(d, name, type, n, value), "attribute");
}
void graph_set_desc(graph *g, desc d, cudnnBackendAttributeName_t name, desc value) {
    graph_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}
void graph_finalize(graph *g, desc d, const char *step) {
    if (g->status == CUDNN_STATUS_SUCCESS) graph_check(g, api.finalize(d), step);
}

void graph_drop(graph *g) {
    while (g->n > 0) (void)api.destroy(g->all[--g->n]);
}

typedef struct layout {
    int64_t dim[4], stride[4];
} layout;

/* id 0: an intermediate that is never stored. */
static desc tensor(graph *g, int64_t id, cudnnDataType_t type, layout at, bool by_value) {
    const bool is_virtual = id == 0;
    const int64_t uid = is_virtual ? ID_VIRTUAL + g->next_id++ : id, alignment = 16;
    desc d = graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    graph_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    graph_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, at.dim);
    graph_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, at.stride);
    graph_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    graph_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    graph_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    graph_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    graph_finalize(g, d, "tensor");
    return d;
}

/* [B, heads, T, D] in our packed layout, and with the last two axes exchanged. */
static layout packed(const shape *s, int64_t heads) {
    return (layout){{s->b, heads, s->t, s->d}, {s->t * heads * s->d, s->d, heads * s->d, 1}};
}
static layout exchanged(layout at) {
    return (layout){{at.dim[0], at.dim[1], at.dim[3], at.dim[2]}, {at.stride[0], at.stride[1], at.stride[3], at.stride[2]}};
}
/* Intermediates: [B, H, T, width], dense. */
static layout dense(const shape *s, int64_t width) {
    return (layout){{s->b, s->h, s->t, width}, {s->h * s->t * width, s->t * width, width, 1}};
}
/* Our lse [N, H] as [B, H, T, 1]. */
static layout row_terms(const shape *s) { return (layout){{s->b, s->h, s->t, 1}, {s->t * s->h, 1, s->h, 1}}; }

static desc io(graph *g, int64_t id, int64_t heads) { return tensor(g, id, CUDNN_DATA_BFLOAT16, packed(&g->s, heads), false); }
static desc io_exchanged(graph *g, int64_t id, int64_t heads) {
    return tensor(g, id, CUDNN_DATA_BFLOAT16, exchanged(packed(&g->s, heads)), false);
}
static desc inner(graph *g, cudnnDataType_t type, int64_t width) { return tensor(g, 0, type, dense(&g->s, width), false); }
static desc constant(graph *g, int64_t id) { return tensor(g, id, CUDNN_DATA_FLOAT, (layout){{1, 1, 1, 1}, {1, 1, 1, 1}}, true); }

static void add_op(graph *g, desc op, const char *step) {
    graph_finalize(g, op, step);
    if (g->status == CUDNN_STATUS_SUCCESS && g->n_ops == MAX_OPS) graph_check(g, CUDNN_STATUS_INTERNAL_ERROR, step);
    if (g->status == CUDNN_STATUS_SUCCESS) g->ops[g->n_ops++] = op;
}

static desc matmul(graph *g, desc a, desc b, desc c) {
    const cudnnDataType_t sum = CUDNN_DATA_FLOAT;
    desc how = graph_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul");
    graph_set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sum);
    graph_finalize(g, how, "matmul");
    desc op = graph_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul");
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(g, op, "matmul");
    return c;
}

/* y = mode(x, b; t): b and t may be NULL; axis is for indices only. */
static desc pointwise(graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis, desc x, desc b, desc t,
                      desc y) {
    desc how = graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
    graph_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    graph_set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) graph_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    graph_finalize(g, how, "pointwise");
    desc op = graph_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise");
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) graph_set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) graph_set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op, "pointwise");
    return y;
}
static desc binary(graph *g, cudnnPointwiseMode_t mode, desc x, desc b, desc y) {
    return pointwise(g, mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, y);
}
static desc unary(graph *g, cudnnPointwiseMode_t mode, desc x, desc y) { return binary(g, mode, x, NULL, y); }

static desc reduce(graph *g, cudnnReduceTensorOp_t how_to, desc x, desc y) {
    const cudnnDataType_t sum = CUDNN_DATA_FLOAT;
    desc how = graph_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
    graph_set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sum);
    graph_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how_to);
    graph_finalize(g, how, "reduction");
    desc op = graph_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction");
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op, "reduction");
    return y;
}

static desc reshape(graph *g, desc x, desc y) {
    desc op = graph_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape");
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    graph_set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op, "reshape");
    return y;
}

/* scores where the key is not later than the query, else a constant */
static desc causal(graph *g, desc scores) {
    const int64_t t = g->s.t;
    desc row = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, scores, NULL, NULL, inner(g, CUDNN_DATA_INT32, t));
    desc column = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, scores, NULL, NULL, inner(g, CUDNN_DATA_INT32, t));
    desc kept = pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, row, column, NULL, inner(g, CUDNN_DATA_BOOLEAN, t));
    return pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, scores, constant(g, ID_MASKED), kept,
                     inner(g, CUDNN_DATA_FLOAT, t));
}

void graph_build_fwd(graph *g, bool stats) {
    const int64_t t = g->s.t, h = g->s.h;
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc s = matmul(g, io(g, ID_Q, h), io_exchanged(g, ID_K, g->s.g), inner(g, f32, t));
    s = binary(g, CUDNN_POINTWISE_MUL, s, constant(g, ID_SCALE), inner(g, f32, t));
    s = causal(g, s);
    desc top = reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, inner(g, f32, 1));
    desc e = unary(g, CUDNN_POINTWISE_EXP, binary(g, CUDNN_POINTWISE_SUB, s, top, inner(g, f32, t)), inner(g, f32, t));
    desc sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, inner(g, f32, 1));
    desc log_sum = unary(g, CUDNN_POINTWISE_LOG, sum, inner(g, f32, 1));
    binary(g, CUDNN_POINTWISE_ADD, top, log_sum, stats ? tensor(g, ID_STATS, f32, row_terms(&g->s), false) : inner(g, f32, 1));
    desc p = binary(g, CUDNN_POINTWISE_DIV, e, sum, inner(g, CUDNN_DATA_BFLOAT16, t));
    matmul(g, p, io(g, ID_V, g->s.g), io(g, ID_O, h));
}

/* x^T y summed over queries, into a gradient of `heads` heads: over the heads of each group too. */
static void key_gradient(graph *g, desc x, desc y, int64_t id) {
    const shape *s = &g->s;
    desc xt = reshape(g, x, tensor(g, 0, CUDNN_DATA_BFLOAT16, exchanged(dense(s, s->t)), false)), to = io(g, id, s->g);
    if (s->g == s->h) matmul(g, xt, y, to);
    else reduce(g, CUDNN_REDUCE_TENSOR_ADD, matmul(g, xt, y, inner(g, CUDNN_DATA_BFLOAT16, s->d)), to);
}

/* dq is one product in the deterministic form, whose engine keeps ds; else it is added up out of order in fp32. */
void graph_build_bwd(graph *g, bool deterministic) {
    const shape *s = &g->s;
    const int64_t t = s->t, h = s->h;
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc q = io(g, ID_Q, h), kt = io_exchanged(g, ID_K, s->g), vt = io_exchanged(g, ID_V, s->g), dout = io(g, ID_DOUT, h);
    desc stats = tensor(g, ID_STATS, f32, row_terms(s), false), scale = constant(g, ID_SCALE);

    desc rows = reduce(g, CUDNN_REDUCE_TENSOR_ADD, binary(g, CUDNN_POINTWISE_MUL, dout, io(g, ID_O, h), inner(g, f32, s->d)),
                       inner(g, f32, 1));
    rows = binary(g, CUDNN_POINTWISE_MUL, rows, constant(g, ID_ONE), tensor(g, ID_ROW_SUMS, f32, dense(s, 1), false));

    desc p = matmul(g, q, kt, inner(g, f32, t));
    p = binary(g, CUDNN_POINTWISE_MUL, p, scale, inner(g, f32, t));
    p = causal(g, binary(g, CUDNN_POINTWISE_SUB, p, stats, inner(g, f32, t)));
    p = unary(g, CUDNN_POINTWISE_EXP, p, inner(g, f32, t));
    key_gradient(g, p, dout, ID_DV);

    desc ds = matmul(g, dout, vt, inner(g, f32, t));
    ds = binary(g, CUDNN_POINTWISE_SUB, ds, rows, inner(g, f32, t));
    ds = binary(g, CUDNN_POINTWISE_MUL, ds, p, inner(g, f32, t));
    ds = binary(g, CUDNN_POINTWISE_MUL, ds, scale, inner(g, f32, t));
    key_gradient(g, ds, q, ID_DK);

    desc k = reshape(g, kt, tensor(g, 0, f32, packed(s, s->g), false));
    desc dq = io(g, ID_DQ, h);
    if (deterministic) matmul(g, ds, k, dq);
    else unary(g, CUDNN_POINTWISE_IDENTITY, matmul(g, ds, k, tensor(g, ID_DQ_SUMS, f32, dense(s, s->d), false)), dq);
}
#endif
