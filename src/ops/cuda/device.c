/* device.c - one CUDA device: opening it, its memory, copies, scratch, and what CUDA's errors become. No kernels here.
 * Invariants: all work of a device is queued on its one stream, so the order of calls is the order of work; host memory given to
 * an upload may change on return, host memory given to a download is filled on return. */
#include <stdio.h>
#include <string.h>

#include <cublasLt.h>

#include "ops/backend.h"
#include "ops/cuda/arch.h"
#include "ops/cuda/cuda_device.h"

#define MIB 1048576.0
#define GIB 1073741824.0
#define WHAT_TO_LOWER "lower micro_batch or seq_len, or set activation_checkpointing"

enum { ALIGN = 256, SCRATCH_STEP = 2 << 20, MIN_SM = 80 };

ida_status ida_cuda_status(int error, const char *what, const char *file, int line) {
    if (error == cudaSuccess) return IDA_OK;
    const char *text = cudaGetErrorString((cudaError_t)error);
    (void)cudaGetLastError(); /* else the next launch would be blamed for it */
    if (error != cudaErrorMemoryAllocation) return ida_fail(IDA_E_IO, file, line, "cuda: %s: %s", what, text);
    size_t free_bytes = 0, total = 0;
    (void)cudaMemGetInfo(&free_bytes, &total);
    return ida_fail(IDA_E_NOMEM, file, line, "cuda: %s: %s; %.1f of %.1f GiB are free; " WHAT_TO_LOWER, what, text,
                    (double)free_bytes / GIB, (double)total / GIB);
}

ida_status ida_cuda_enter(const ida_device *dev) {
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    pthread_mutex_lock(&p->lock);
    int current = -1;
    cudaError_t e = cudaGetDevice(&current);
    if (e == cudaSuccess && current != ida_cuda_of(dev)->ordinal) e = cudaSetDevice(ida_cuda_of(dev)->ordinal);
    if (e == cudaSuccess) return IDA_OK;
    pthread_mutex_unlock(&p->lock);
    return ida_cuda_status((int)e, p->label, __FILE__, __LINE__);
}
void ida_cuda_leave(const ida_device *dev) { pthread_mutex_unlock(&ida_cuda_priv_of(dev)->lock); }

ida_status ida_cuda_alloc(const ida_device *dev, void **out, int64_t bytes, const char *what) {
    *out = NULL;
    const ida_cuda *c = ida_cuda_of(dev);
    IDA_FAIL_IF(ida_cuda_priv_of(dev)->recorded, IDA_E_UNSUPPORTED, "%s: memory for %s is asked for in a recording",
                ida_cuda_priv_of(dev)->label, what);
    const cudaMemPool_t pool = ida_cuda_priv_of(dev)->pool;
    const cudaError_t e = pool ? cudaMallocFromPoolAsync(out, (size_t)bytes, pool, c->stream) : cudaMalloc(out, (size_t)bytes);
    if (e == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total);
        IDA_FAIL(IDA_E_NOMEM, "out of memory on %s: %lld bytes (%.1f MiB) for %s; %.1f MiB of %.1f MiB are free; " WHAT_TO_LOWER,
                 ida_cuda_priv_of(dev)->label, (long long)bytes, (double)bytes / MIB, what, (double)free_bytes / MIB,
                 (double)total / MIB);
    }
    return ida_cuda_status((int)e, what, __FILE__, __LINE__);
}

/* In stream order, so nothing is waited for: a session takes and returns its work space at every call. */
void ida_cuda_free(const ida_device *dev, void *p) {
    if (!p) return;
    if (ida_cuda_priv_of(dev)->pool) {
        (void)cudaFreeAsync(p, ida_cuda_of(dev)->stream);
        return;
    }
    (void)cudaStreamSynchronize(ida_cuda_of(dev)->stream);
    (void)cudaFree(p);
}

/* The device's pool keeps what was returned to it. Where there are no pools (some virtual machines) `pool` stays NULL. */
static ida_status open_pool(ida_cuda *c, ida_cuda_priv *p) {
    int pools = 0;
    IDA_CUDA_TRY(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, c->ordinal));
    if (!pools) return IDA_OK;
    uint64_t keep = UINT64_MAX;
    struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                     .location = {.type = cudaMemLocationTypeDevice, .id = c->ordinal}};
    IDA_CUDA_TRY(cudaMemPoolCreate(&p->pool, &props));
    IDA_CUDA_TRY(cudaMemPoolSetAttribute(p->pool, cudaMemPoolAttrReleaseThreshold, &keep));
    return IDA_OK;
}

static ida_status alloc(const ida_device *dev, void **out, int64_t bytes, const char *what) {
    IDA_TRY(ida_cuda_enter(dev));
    const ida_status st = ida_cuda_alloc(dev, out, bytes, what);
#ifdef IDA_DEBUG
    if (st == IDA_OK && cudaMemsetAsync(*out, 0xFF, (size_t)bytes, ida_cuda_of(dev)->stream) != cudaSuccess)
        (void)cudaGetLastError(); /* an aid only */
#endif
    ida_cuda_leave(dev);
    return st;
}

static void release(const ida_device *dev, void *p) {
    if (!p || ida_cuda_enter(dev) != IDA_OK) return;
    ida_cuda_free(dev, p);
    ida_cuda_leave(dev);
}

/* `call` is queued; its failure is named by `what`. */
#define GUARDED(dev, call, what)                                                                                                 \
    do {                                                                                                                         \
        IDA_TRY(ida_cuda_enter(dev));                                                                                            \
        const ida_status guarded_ = ida_cuda_status((int)(call), (what), __FILE__, __LINE__);                                    \
        ida_cuda_leave(dev);                                                                                                     \
        return guarded_;                                                                                                         \
    } while (0)

static ida_status zero(const ida_device *dev, void *p, int64_t bytes) {
    GUARDED(dev, cudaMemsetAsync(p, 0, (size_t)bytes, ida_cuda_of(dev)->stream), "zeroing memory");
}
static ida_status copy(const ida_device *dev, void *to, const void *from, int64_t bytes) {
    GUARDED(dev, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, ida_cuda_of(dev)->stream),
            "copying on the device");
}
static ida_status synchronize(const ida_device *dev) {
    GUARDED(dev, cudaStreamSynchronize(ida_cuda_of(dev)->stream), "work queued before");
}

static ida_status download(const ida_device *dev, void *host, const void *from, int64_t bytes) {
    IDA_TRY(ida_cuda_enter(dev));
    const cudaStream_t stream = ida_cuda_of(dev)->stream;
    cudaError_t e = cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    const ida_status st = ida_cuda_status((int)e, "copying to the host", __FILE__, __LINE__);
    ida_cuda_leave(dev);
    return st;
}

/* Begins the next segment once its earlier copies have left it. */
static cudaError_t next_segment(ida_cuda_staging *s, cudaStream_t stream) {
    const cudaError_t e = cudaEventRecord(s->done[s->at], stream);
    if (e != cudaSuccess) return e;
    s->at = (s->at + 1) % IDA_CUDA_SEGMENTS;
    s->used = 0;
    return cudaEventSynchronize(s->done[s->at]);
}

ida_status ida_cuda_upload(const ida_device *dev, void *to, const void *from_host, int64_t bytes) {
    ida_cuda_staging *s = &ida_cuda_priv_of(dev)->staging;
    const cudaStream_t stream = ida_cuda_of(dev)->stream;
    IDA_FAIL_IF(ida_cuda_priv_of(dev)->recorded, IDA_E_UNSUPPORTED, "%s: an upload in a recording", ida_cuda_priv_of(dev)->label);
    for (int64_t done = 0; done < bytes;) {
        if (s->used == IDA_CUDA_SEGMENT_BYTES) IDA_CUDA_TRY(next_segment(s, stream));
        const int64_t room = IDA_CUDA_SEGMENT_BYTES - s->used, n = bytes - done < room ? bytes - done : room;
        unsigned char *pinned = s->base + (int64_t)s->at * IDA_CUDA_SEGMENT_BYTES + s->used;
        memcpy(pinned, (const unsigned char *)from_host + done, (size_t)n);
        IDA_CUDA_TRY(cudaMemcpyAsync((unsigned char *)to + done, pinned, (size_t)n, cudaMemcpyHostToDevice, stream));
        s->used += (n + ALIGN - 1) / ALIGN * ALIGN;
        done += n;
    }
    return IDA_OK;
}
static ida_status upload(const ida_device *dev, void *to, const void *host, int64_t bytes) {
    IDA_TRY(ida_cuda_enter(dev));
    const ida_status st = ida_cuda_upload(dev, to, host, bytes);
    ida_cuda_leave(dev);
    return st;
}

/* A counter of the pool; -1 where it does not tell. */
static int64_t pool_bytes(const ida_device *dev, enum cudaMemPoolAttr attr) {
    const cudaMemPool_t pool = ida_cuda_priv_of(dev)->pool;
    uint64_t bytes = 0;
    if (!pool) return -1;
    if (cudaMemPoolGetAttribute(pool, attr, &bytes) == cudaSuccess) return (int64_t)bytes;
    (void)cudaGetLastError();
    return -1;
}

static ida_status available(const ida_device *dev, int64_t *free_bytes, int64_t *total_bytes) {
    size_t f = 0, t = 0;
    IDA_TRY(ida_cuda_enter(dev));
    const ida_status st = ida_cuda_status((int)cudaMemGetInfo(&f, &t), "asking for free memory", __FILE__, __LINE__);
    ida_cuda_leave(dev);
    const int64_t reserved = pool_bytes(dev, cudaMemPoolAttrReservedMemCurrent);
    const int64_t in_use = pool_bytes(dev, cudaMemPoolAttrUsedMemCurrent);
    *free_bytes = (int64_t)f + (in_use >= 0 && reserved > in_use ? reserved - in_use : 0);
    *total_bytes = (int64_t)t;
    return st;
}

/* As the pool counts, which may round sizes up. What is outside of it (the context, kernels, the libraries' own) is not counted;
 * without a pool nothing is. */
static void used(const ida_device *dev, int64_t *now, int64_t *peak) {
    *now = pool_bytes(dev, cudaMemPoolAttrUsedMemCurrent);
    *peak = pool_bytes(dev, cudaMemPoolAttrUsedMemHigh);
}
static void reset_peak(const ida_device *dev) {
    const cudaMemPool_t pool = ida_cuda_priv_of(dev)->pool;
    uint64_t zero = 0; /* the only value it takes: the mark becomes what is in use */
    if (pool && cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero) != cudaSuccess) (void)cudaGetLastError();
}

ida_status ida_cuda_scratch(const ida_device *dev, int64_t bytes, void **out) {
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    if (bytes > p->scratch_bytes) {
        IDA_FAIL_IF(p->recorded, IDA_E_UNSUPPORTED, "%s: scratch grows in a recording", p->label);
        p->scratch_moves++;
        ida_cuda_free(dev, p->scratch); /* first: both together may not fit */
        p->scratch = NULL;
        p->scratch_bytes = 0;
        IDA_FAIL_IF(bytes > INT64_MAX - SCRATCH_STEP, IDA_E_NOMEM, "the scratch of an op would need %lld bytes",
                    (long long)bytes);
        const int64_t size = (bytes + SCRATCH_STEP - 1) / SCRATCH_STEP * SCRATCH_STEP;
        IDA_TRY(ida_cuda_alloc(dev, &p->scratch, size, "the scratch of an op"));
        p->scratch_bytes = size;
    }
    if (p->recorded && bytes > 0) p->recorded_scratch = true;
    *out = bytes > 0 ? p->scratch : NULL;
#ifdef IDA_DEBUG
    if (bytes > 0) IDA_CUDA_TRY(cudaMemsetAsync(p->scratch, 0xFF, (size_t)bytes, ida_cuda_of(dev)->stream));
#endif
    return IDA_OK;
}

static void close_device(const ida_device *dev) {
    ida_cuda *c = ida_cuda_of(dev);
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    if (ida_cuda_enter(dev) == IDA_OK) {
        if (c->stream) (void)cudaStreamSynchronize(c->stream);
        ida_cuda_cudnn_free(dev);
        ida_cuda_plans_free(dev);
        ida_cuda_seqs_free(dev);
        if (c->cublaslt) (void)cublasLtDestroy((cublasLtHandle_t)c->cublaslt);
        ida_cuda_free(dev, p->gemm_workspace);
        ida_cuda_free(dev, p->scratch);
        for (int i = 0; i < IDA_CUDA_SEGMENTS; i++)
            if (p->staging.done[i]) (void)cudaEventDestroy(p->staging.done[i]);
        (void)cudaFreeHost(p->staging.base);
        if (c->stream) (void)cudaStreamSynchronize(c->stream);
        if (p->pool) (void)cudaMemPoolDestroy(p->pool);
        if (c->stream) (void)cudaStreamDestroy(c->stream);
        (void)cudaGetLastError();
        ida_cuda_leave(dev);
    }
    pthread_mutex_destroy(&p->lock);
    ida_free(p);
    ida_free(c);
}

static const ida_device_memory memory = {.alloc = alloc,
                                         .free = release,
                                         .zero = zero,
                                         .upload = upload,
                                         .download = download,
                                         .copy = copy,
                                         .sync = synchronize,
                                         .available = available,
                                         .used = used,
                                         .reset_peak = reset_peak,
                                         .record = ida_cuda_record,
                                         .record_end = ida_cuda_record_end,
                                         .replay = ida_cuda_replay,
                                         .record_free = ida_cuda_record_free,
                                         .close = close_device};

/* *n > 0 devices, or why there are none. */
static ida_status count_devices(int *n) {
    const cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        (void)cudaGetLastError();
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        IDA_FAIL_IF(driver == 0, IDA_E_UNSUPPORTED,
                    "no CUDA device: no NVIDIA driver is loaded (libcuda.so.1); install it, or use the cpu device");
        IDA_FAIL(IDA_E_UNSUPPORTED,
                 "the NVIDIA driver is too old: it supports CUDA %d.%d, the backend was built with %d.%d; update the driver, "
                 "or build with an older CUDA",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (e == cudaErrorNoDevice || (e == cudaSuccess && *n == 0)) {
        (void)cudaGetLastError();
        IDA_FAIL(IDA_E_UNSUPPORTED, "no CUDA device: the driver shows none (CUDA_VISIBLE_DEVICES?); use the cpu device");
    }
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        IDA_FAIL(IDA_E_UNSUPPORTED, "no CUDA device: %s (%s); see whether nvidia-smi works", cudaGetErrorString(e),
                 cudaGetErrorName(e));
    }
    return IDA_OK;
}

static ida_status make_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attr;
    IDA_FAIL_IF(pthread_mutexattr_init(&attr) != 0, IDA_E_NOMEM, "cannot make a lock");
    (void)pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    const int e = pthread_mutex_init(lock, &attr);
    (void)pthread_mutexattr_destroy(&attr);
    IDA_FAIL_IF(e != 0, IDA_E_NOMEM, "cannot make a lock");
    return IDA_OK;
}

/* Everything that close_device takes down again. */
static ida_status set_up(ida_cuda *c) {
    ida_cuda_priv *p = c->priv;
    IDA_CUDA_TRY(cudaSetDevice(c->ordinal));
    const int code = ida_cuda_code_arch(&c->arch);
    IDA_FAIL_IF(code == cudaErrorNoKernelImageForDevice, IDA_E_UNSUPPORTED,
                "%s: the CUDA backend was not compiled for this GPU: build it without NVARCH=", p->label);
    IDA_CUDA_TRY(code);
    IDA_CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    IDA_TRY(open_pool(c, p));
    IDA_CUDA_TRY(
        cudaHostAlloc((void **)&p->staging.base, (size_t)IDA_CUDA_SEGMENTS * IDA_CUDA_SEGMENT_BYTES, cudaHostAllocDefault));
    for (int i = 0; i < IDA_CUDA_SEGMENTS; i++)
        IDA_CUDA_TRY(cudaEventCreateWithFlags(&p->staging.done[i], cudaEventDisableTiming));
    IDA_TRY(ida_cuda_alloc(&c->base, &p->gemm_workspace, IDA_CUDA_GEMM_WORKSPACE, "the workspace of matrix products"));
    cublasLtHandle_t handle = NULL;
    const cublasStatus_t s = cublasLtCreate(&handle);
    IDA_FAIL_IF(s != CUBLAS_STATUS_SUCCESS, IDA_E_UNSUPPORTED, "%s: cuBLASLt does not start: %s", p->label,
                cublasLtGetStatusString(s));
    c->cublaslt = handle;
    return IDA_OK;
}

ida_status ida_cuda_open(int ordinal, ida_dtype dtype, const ida_device **out) {
    int n = 0;
    struct cudaDeviceProp prop;
    IDA_TRY(count_devices(&n));
    IDA_FAIL_IF(ordinal < 0 || ordinal >= n, IDA_E_ARG, "there is no cuda:%d: this machine has %d CUDA device%s, numbered from 0",
                ordinal, n, n == 1 ? "" : "s");
    IDA_CUDA_TRY(cudaGetDeviceProperties(&prop, ordinal));
    const int sm = prop.major * 10 + prop.minor;
    IDA_FAIL_IF(sm < MIN_SM, IDA_E_UNSUPPORTED, "cuda:%d (%s, sm_%d) is too old: sm_%d (A100, RTX 30) or newer is needed",
                ordinal, prop.name, sm, MIN_SM);
    ida_cuda *c = NULL;
    ida_cuda_priv *p = NULL;
    IDA_TRY(IDA_CALLOC(c, 1, "a CUDA device"));
    ida_status st = IDA_CALLOC(p, 1, "a CUDA device");
    if (st == IDA_OK) st = make_lock(&p->lock);
    if (st != IDA_OK) {
        ida_free(p);
        ida_free(c);
        return st;
    }
    const bool bf16 = dtype == IDA_BF16;
    c->base = (ida_device){
        .ops = ida_cuda_op_table, .name = bf16 ? "cuda-bf16" : "cuda-f32", .act_type = (ida_type)dtype, .memory = &memory};
    c->ordinal = ordinal;
    c->sms = prop.multiProcessorCount, c->most_shared = (int)prop.sharedMemPerBlockOptin;
    c->bf16 = bf16;
    c->priv = p;
    snprintf(p->label, sizeof p->label, "cuda:%d", ordinal);
    st = set_up(c);
    if (st != IDA_OK) {
        close_device(&c->base);
        return st;
    }
    *out = &c->base;
    return IDA_OK;
}

/* Appends what fits; false when it does not. */
static bool append(char **at, size_t *room, const char *text) {
    const size_t n = strlen(text);
    if (n >= *room) return false;
    memcpy(*at, text, n + 1);
    *at += n;
    *room -= n;
    return true;
}

ida_status ida_cuda_describe(char *json, size_t size) {
    int n = 0;
    IDA_TRY(count_devices(&n));
    char *at = json;
    bool fits = append(&at, &size, "[");
    for (int i = 0; i < n && fits; i++) {
        struct cudaDeviceProp prop;
        char entry[512], name[sizeof prop.name + 1];
        IDA_CUDA_TRY(cudaGetDeviceProperties(&prop, i));
        size_t k = 0;
        for (const char *s = prop.name; *s && k < sizeof name - 1; s++)
            if ((unsigned char)*s >= 0x20 && (unsigned char)*s < 0x7f && *s != '"' && *s != '\\') name[k++] = *s;
        name[k] = '\0';
        snprintf(entry, sizeof entry, "%s{\"name\": \"%s\", \"sm\": %d, \"memory_bytes\": %lld}", i ? ", " : "", name,
                 prop.major * 10 + prop.minor, (long long)prop.totalGlobalMem);
        fits = append(&at, &size, entry);
    }
    fits = fits && append(&at, &size, "]");
    IDA_FAIL_IF(!fits, IDA_E_UNSUPPORTED, "%d CUDA devices are more than can be described", n);
    return IDA_OK;
}
