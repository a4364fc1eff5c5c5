/* cudnn_sdpa.c - attention by cuDNN: engines and plans for the graphs of cudnn_graphs.c, and running them. Only equal sequences,
 * bf16, causal; attention.cu asks for no other.
 * Invariant: a plan depends on the shape, the device and the wish for determinism; what cuDNN refuses it refuses before anything
 * is queued. */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/cuda/attention/attention.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/attention/cudnn_graphs.h"

static void tell_once(atomic_bool *told, const char *what, const char *why) {
    if (!atomic_exchange(told, true)) ida_log("cuDNN is not used for attention%s: %s; our own kernels are", what, why);
}

#ifndef HAVE_CUDNN
static atomic_bool told_missing;
ida_status ida_cuda_cudnn_attention_fwd(const ida_device *dev, const ida_attention_args *a, int64_t n_seq, int64_t len,
                                        bool *done) {
    (void)dev, (void)a, (void)n_seq, (void)len;
    tell_once(&told_missing, "", "this build had no cuDNN headers");
    *done = false;
    return IDA_OK;
}
ida_status ida_cuda_cudnn_attention_bwd(const ida_device *dev, ida_act *dq, ida_act *dk, ida_act *dv, const ida_act *dout,
                                        const ida_attention_args *a, int64_t n_seq, int64_t len, bool deterministic,
                                        bool *done) {
    (void)dq, (void)dk, (void)dv, (void)dout, (void)deterministic;
    return ida_cuda_cudnn_attention_fwd(dev, a, n_seq, len, done);
}
void ida_cuda_cudnn_free(const ida_device *dev) { (void)dev; }
#else
static const cudnn_api *api; /* set by prepare; used with the lock held */

/* ---- plans */
/* More workspace than this part of the GPU's memory is refused: the deterministic backward pass keeps 2 bytes for each query,
 * key and head. */
enum { WORKSPACE_SHARE = 4 };
enum { MAX_CONFIGS = 16, MAX_PLANS = 32, MAX_HANDLES = 16 };

typedef struct plan {
    const ida_cuda *device; /* NULL: free */
    shape s;
    bool bwd, deterministic, stats;
    graph g; /* owns every descriptor; status tells whether cuDNN took it */
    desc run;
    int64_t workspace, most_workspace, too_much; /* too_much: the least that was refused; 0 = none was */
    cudnnStatus_t refusal; /* of the last configuration that could not be built */
} plan;

static bool is_deterministic(graph *g, desc config) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0, n_engines = 0;
    desc engine = graph_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
    if (g->status != CUDNN_STATUS_SUCCESS ||
        api->get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n_engines, &engine) !=
            CUDNN_STATUS_SUCCESS ||
        api->get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n,
                 notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* The first of the proposed configurations that can be built. */
static void choose(plan *p, cudnnHandle_t handle, desc operations, cudnnBackendHeurMode_t mode) {
    graph *g = &p->g;
    desc heuristics = graph_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics"), configs[MAX_CONFIGS];
    graph_set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    graph_set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    graph_finalize(g, heuristics, "heuristics");
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "heuristics");
    if (g->status != CUDNN_STATUS_SUCCESS) return;
    int64_t n = 0;
    graph_check(g, api->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &n, configs),
                "heuristics");
    for (int64_t i = 0; i < n && i < MAX_CONFIGS && g->status == CUDNN_STATUS_SUCCESS && !p->run; i++) {
        if (p->deterministic && !is_deterministic(g, configs[i])) continue;
        desc d = graph_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan");
        graph_set(g, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        graph_set_desc(g, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
        int64_t got = 0, bytes = 0;
        if (g->status != CUDNN_STATUS_SUCCESS) return;
        const cudnnStatus_t built = api->finalize(d);
        if (built != CUDNN_STATUS_SUCCESS) p->refusal = built;
        else if (api->get(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, &bytes) !=
                 CUDNN_STATUS_SUCCESS)
            continue;
        else if (bytes <= p->most_workspace) {
            p->run = d;
            p->workspace = bytes;
        } else if (p->too_much == 0 || bytes < p->too_much) p->too_much = bytes;
    }
}

static void build(plan *p, cudnnHandle_t handle) {
    graph *g = &p->g;
    size_t free_bytes, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) (void)cudaGetLastError();
    p->most_workspace = (int64_t)(total / WORKSPACE_SHARE);
    g->s = p->s;
    if (p->bwd) graph_build_bwd(g, p->deterministic);
    else graph_build_fwd(g, p->stats);
    desc operations = graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
    graph_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    graph_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    graph_finalize(g, operations, "operation graph");
    if (g->status == CUDNN_STATUS_SUCCESS) choose(p, handle, operations, CUDNN_HEUR_MODE_A);
    if (!p->run)
        graph_check(g, p->refusal ? p->refusal : CUDNN_STATUS_NOT_SUPPORTED,
                    p->deterministic ? "a deterministic engine" : "engine");
}

/* One lock for the handles, the plans and the runs: a handle serves one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const ida_cuda *device;
    cudnnHandle_t handle;
} handles[MAX_HANDLES];
static plan *plans[MAX_PLANS];
static int n_plans, next_victim;

static cudnnHandle_t handle_of(const ida_cuda *device) {
    int i = 0;
    while (i < MAX_HANDLES && handles[i].device && handles[i].device != device) i++;
    if (i == MAX_HANDLES) return NULL;
    if (!handles[i].device) {
        if (api->create_handle(&handles[i].handle) != CUDNN_STATUS_SUCCESS) return NULL;
        if (api->set_stream(handles[i].handle, device->stream) != CUDNN_STATUS_SUCCESS) {
            (void)api->destroy_handle(handles[i].handle);
            return NULL;
        }
        handles[i].device = device;
    }
    return handles[i].handle;
}

void ida_cuda_cudnn_free(const ida_device *dev) {
    const ida_cuda *device = ida_cuda_of(dev);
    pthread_mutex_lock(&lock);
    for (int i = n_plans - 1; i >= 0; i--) {
        if (plans[i]->device != device) continue;
        graph_drop(&plans[i]->g);
        free(plans[i]);
        plans[i] = plans[--n_plans];
    }
    for (int i = 0; i < MAX_HANDLES; i++) {
        if (handles[i].device != device) continue;
        (void)api->destroy_handle(handles[i].handle);
        handles[i].device = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static bool same(const plan *p, const plan *q) {
    return p->device == q->device && p->s.b == q->s.b && p->s.t == q->s.t && p->s.h == q->s.h && p->s.g == q->s.g &&
           p->s.d == q->s.d && p->bwd == q->bwd && p->deterministic == q->deterministic && p->stats == q->stats;
}

/* The plan for a key (its shape, device and flags); NULL out of memory. The oldest is dropped when there are too many. */
static plan *plan_of(const plan *key, cudnnHandle_t handle) {
    for (int i = 0; i < n_plans; i++)
        if (same(plans[i], key)) return plans[i];
    plan *p = malloc(sizeof *p);
    if (!p) return NULL;
    *p = *key;
    build(p, handle);
    if (p->g.status != CUDNN_STATUS_SUCCESS) graph_drop(&p->g);
    int at = n_plans;
    if (n_plans < MAX_PLANS) n_plans++;
    else {
        at = next_victim++ % MAX_PLANS;
        (void)cudaStreamSynchronize(plans[at]->device->stream); /* its kernels may still run */
        graph_drop(&plans[at]->g);
        free(plans[at]);
    }
    plans[at] = p;
    return p;
}

typedef struct binding {
    int64_t ids[16];
    void *at[16];
    int64_t n;
} binding;
static void bind(binding *b, int64_t id, const void *at) {
    b->ids[b->n] = id;
    b->at[b->n++] = (void *)(uintptr_t)at;
}

static ida_status run(plan *p, cudnnHandle_t handle, const binding *b, void *workspace) {
    desc v = NULL;
    cudnnStatus_t st = api->create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &v);
    if (st == CUDNN_STATUS_SUCCESS) st = api->set(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, b->n, b->ids);
    if (st == CUDNN_STATUS_SUCCESS) st = api->set(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, b->n, b->at);
    if (st == CUDNN_STATUS_SUCCESS) st = api->set(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (st == CUDNN_STATUS_SUCCESS) st = api->finalize(v);
    if (st == CUDNN_STATUS_SUCCESS) st = api->execute(handle, p->run, v);
    if (v) (void)api->destroy(v);
    IDA_FAIL_IF(st != CUDNN_STATUS_SUCCESS, IDA_E_IO, "cuDNN: attention %s failed: %s", p->bwd ? "backward" : "forward",
                api->error_text(st));
    return IDA_OK;
}

/* The plan, and the handle to run it with. *out NULL: cuDNN is missing or refuses. Called with the lock held. */
static ida_status prepare(plan key, plan **out, cudnnHandle_t *handle) {
    static atomic_bool told_missing, told_refused[2];
    const char *error;
    *out = NULL;
    api = cudnn_load(&error);
    if (!api) {
        tell_once(&told_missing, "", error);
        return IDA_OK;
    }
    *handle = handle_of(key.device);
    if (!*handle) {
        tell_once(&told_missing, "", "no handle could be made");
        return IDA_OK;
    }
    plan *p = plan_of(&key, *handle);
    IDA_FAIL_IF(!p, IDA_E_NOMEM, "attention: no memory for a cuDNN plan");
    if (p->g.status == CUDNN_STATUS_SUCCESS) {
        *out = p;
        return IDA_OK;
    }
    char why[500], more[160] = "";
    if (p->g.status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING)
        snprintf(more, sizeof more, "; it needs libnvrtc where the loader looks");
    else if (p->too_much > 0)
        snprintf(more, sizeof more, "; it wants %lld MiB of workspace, more than %lld MiB (1/%d of the GPU's memory)",
                 (long long)(p->too_much >> 20), (long long)(p->most_workspace >> 20), WORKSPACE_SHARE);
    snprintf(why, sizeof why, "version %zu refuses B=%lld T=%lld H=%lld G=%lld D=%lld at %s (%s)%s", api->version(),
             (long long)p->s.b, (long long)p->s.t, (long long)p->s.h, (long long)p->s.g, (long long)p->s.d, p->g.step,
             api->error_text(p->g.status), more);
    tell_once(&told_refused[key.bwd], key.bwd ? " backward" : " forward", why);
    return IDA_OK;
}

/* Scratch for a run. Where there is no room the plan is given up for good (its status), so that the choice does not change. */
static ida_status room(const ida_device *dev, plan *p, int64_t bytes, char **out) {
    static atomic_bool told;
    const ida_status st = ida_cuda_scratch(dev, bytes, (void **)out);
    if (st != IDA_E_NOMEM) return st;
    char why[80];
    snprintf(why, sizeof why, "no room for its %lld MiB of workspace", (long long)(bytes >> 20));
    tell_once(&told, p->bwd ? " backward" : " forward", why);
    graph_drop(&p->g);
    p->g.status = CUDNN_STATUS_ALLOC_FAILED;
    p->g.step = "workspace";
    *out = NULL;
    return IDA_OK;
}

static ida_status fwd(const ida_device *dev, const ida_attention_args *a, int64_t n_seq, int64_t len, bool *done) {
    const plan key = {.device = ida_cuda_of(dev), .s = {n_seq, len, a->h, a->g, a->d}, .stats = a->lse != NULL};
    cudnnHandle_t handle = NULL;
    plan *p;
    IDA_TRY(prepare(key, &p, &handle));
    if (!p) return IDA_OK;
    char *workspace;
    IDA_TRY(room(dev, p, p->workspace, &workspace));
    if (p->g.status != CUDNN_STATUS_SUCCESS) return IDA_OK;
    const float scale = (float)(1.0 / sqrt((double)a->d)), masked = api->version() < 91000 ? -FLT_MAX : -INFINITY;
    binding b = {.n = 0};
    bind(&b, ID_Q, a->q);
    bind(&b, ID_K, a->k);
    bind(&b, ID_V, a->v);
    bind(&b, ID_O, a->o);
    if (a->lse) bind(&b, ID_STATS, a->lse);
    bind(&b, ID_SCALE, &scale);
    bind(&b, ID_MASKED, &masked);
    IDA_TRY(run(p, handle, &b, workspace));
    *done = true;
    return IDA_OK;
}

typedef struct gradients {
    ida_act *dq, *dk, *dv;
    const ida_act *dout;
} gradients;

static ida_status bwd(const ida_device *dev, const gradients *x, const ida_attention_args *a, int64_t n_seq, int64_t len,
                      bool deterministic, bool *done) {
    const plan key = {
        .device = ida_cuda_of(dev), .s = {n_seq, len, a->h, a->g, a->d}, .bwd = true, .deterministic = deterministic};
    cudnnHandle_t handle = NULL;
    plan *p;
    IDA_TRY(prepare(key, &p, &handle));
    if (!p) return IDA_OK;
    const int64_t rows = n_seq * len * a->h * 4, sums = deterministic ? 0 : rows * a->d;
    const int64_t rows_at = (p->workspace + 255) / 256 * 256, sums_at = rows_at + (rows + 255) / 256 * 256;
    char *workspace;
    IDA_TRY(room(dev, p, sums_at + sums, &workspace));
    if (p->g.status != CUDNN_STATUS_SUCCESS) return IDA_OK;
    const float scale = (float)(1.0 / sqrt((double)a->d)), masked = api->version() < 91000 ? -FLT_MAX : -INFINITY, one = 1.0f;
    binding b = {.n = 0};
    bind(&b, ID_Q, a->q);
    bind(&b, ID_K, a->k);
    bind(&b, ID_V, a->v);
    bind(&b, ID_O, a->o);
    bind(&b, ID_STATS, a->lse);
    bind(&b, ID_DOUT, x->dout);
    bind(&b, ID_DQ, x->dq);
    bind(&b, ID_DK, x->dk);
    bind(&b, ID_DV, x->dv);
    bind(&b, ID_ROW_SUMS, workspace + rows_at);
    if (!deterministic) {
        bind(&b, ID_DQ_SUMS, workspace + sums_at);
        /* before 9.6 cuDNN added to it as it found it */
        if (api->version() < 90600) IDA_CUDA_TRY(cudaMemsetAsync(workspace + sums_at, 0, (size_t)sums, ida_cuda_of(dev)->stream));
    }
    bind(&b, ID_SCALE, &scale);
    bind(&b, ID_MASKED, &masked);
    bind(&b, ID_ONE, &one);
    IDA_TRY(run(p, handle, &b, workspace));
    *done = true;
    return IDA_OK;
}

ida_status ida_cuda_cudnn_attention_fwd(const ida_device *dev, const ida_attention_args *a, int64_t n_seq, int64_t len,
                                        bool *done) {
    *done = false;
    pthread_mutex_lock(&lock);
    const ida_status st = fwd(dev, a, n_seq, len, done);
    pthread_mutex_unlock(&lock);
    return st;
}

ida_status ida_cuda_cudnn_attention_bwd(const ida_device *dev, ida_act *dq, ida_act *dk, ida_act *dv, const ida_act *dout,
                                        const ida_attention_args *a, int64_t n_seq, int64_t len, bool deterministic,
                                        bool *done) {
    *done = false;
    const gradients x = {dq, dk, dv, dout};
    pthread_mutex_lock(&lock);
    const ida_status st = bwd(dev, &x, a, n_seq, len, deterministic, done);
    pthread_mutex_unlock(&lock);
    return st;
}
#endif
