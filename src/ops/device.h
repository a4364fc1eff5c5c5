/* device.h - memory of a device, for the code above the ops: allocate, copy, zero. On a host device these are malloc, memcpy and
 * memset; on a CUDA device the work is queued in order with the ops, and copies to the host are finished when the call returns.
 * Not here: which device to take (backend.h). */
#ifndef IDA_OPS_DEVICE_H
#define IDA_OPS_DEVICE_H

#include <string.h>

#include "core/mem.h"
#include "ops/ops.h"

typedef struct ida_recording ida_recording; /* the device's own */

/* What a device with memory of its own supplies. */
struct ida_device_memory {
    /* *out: `bytes` > 0, aligned to 256 bytes, content undefined. IDA_E_NOMEM says how much was asked for what, and what is
     * free. */
    ida_status (*alloc)(const ida_device *dev, void **out, int64_t bytes, const char *what);
    void (*free)(const ida_device *dev, void *p);                             /* NULL is legal; waits for the ops that use p */
    ida_status (*zero)(const ida_device *dev, void *p, int64_t bytes);
    ida_status (*upload)(const ida_device *dev, void *to, const void *host, int64_t bytes); /* host may change on return */
    ida_status (*download)(const ida_device *dev, void *host, const void *from, int64_t bytes);
    ida_status (*copy)(const ida_device *dev, void *to, const void *from, int64_t bytes);   /* within the device; no overlap */
    ida_status (*sync)(const ida_device *dev);   /* waits; gives the error of anything queued before */
    ida_status (*available)(const ida_device *dev, int64_t *free_bytes, int64_t *total_bytes);
    /* Bytes given out now, to ops too, and the most since the last reset_peak; -1 where the device does not tell. */
    void (*used)(const ida_device *dev, int64_t *now, int64_t *peak);
    void (*reset_peak)(const ida_device *dev);
    /* Ops that come again with the same arguments, run by one call. record, when it returns IDA_OK, takes the device for the
     * calling thread until record_end, which must follow. The ops called between them do not run yet; only ops may be, none with
     * other seqs than these. record_end: *out, for the caller to free, when `good`; else nothing is kept. replay runs it with
     * the same lengths and the positions of `seqs`; *moved: the scratch it was recorded with is gone, nothing was queued. */
    ida_status (*record)(const ida_device *dev, const ida_seqs *seqs);
    ida_status (*record_end)(const ida_device *dev, bool good, ida_recording **out);
    ida_status (*replay)(const ida_device *dev, ida_recording *r, const ida_seqs *seqs, bool *moved);
    void (*record_free)(const ida_device *dev, ida_recording *r); /* NULL is legal; waits for its last run */
    void (*close)(const ida_device *dev);
};

static inline bool ida_on_host(const ida_device *dev) { return !dev->memory; }

static inline ida_status ida_dev_alloc(const ida_device *dev, void **out, int64_t n, int64_t size, const char *what) {
    if (ida_on_host(dev)) return ida_alloc(out, n, (size_t)size, what);
    int64_t bytes;
    IDA_FAIL_IF(!ida_mul64(n, size, &bytes), IDA_E_NOMEM, "%s: %lld elements overflow", what, (long long)n);
    return dev->memory->alloc(dev, out, bytes > 0 ? bytes : 1, what);
}
static inline void ida_dev_free(const ida_device *dev, void *p) {
    if (!p) return;
    if (ida_on_host(dev)) ida_free(p);
    else dev->memory->free(dev, p);
}
static inline ida_status ida_dev_zero(const ida_device *dev, void *p, int64_t bytes) {
    if (bytes <= 0) return IDA_OK;
    if (!ida_on_host(dev)) return dev->memory->zero(dev, p, bytes);
    memset(p, 0, (size_t)bytes);
    return IDA_OK;
}
static inline ida_status ida_dev_upload(const ida_device *dev, void *to, const void *host, int64_t bytes) {
    if (bytes <= 0) return IDA_OK;
    if (!ida_on_host(dev)) return dev->memory->upload(dev, to, host, bytes);
    memcpy(to, host, (size_t)bytes);
    return IDA_OK;
}
static inline ida_status ida_dev_download(const ida_device *dev, void *host, const void *from, int64_t bytes) {
    if (bytes <= 0) return IDA_OK;
    if (!ida_on_host(dev)) return dev->memory->download(dev, host, from, bytes);
    memcpy(host, from, (size_t)bytes);
    return IDA_OK;
}
static inline ida_status ida_dev_copy(const ida_device *dev, void *to, const void *from, int64_t bytes) {
    if (bytes <= 0) return IDA_OK;
    if (!ida_on_host(dev)) return dev->memory->copy(dev, to, from, bytes);
    memcpy(to, from, (size_t)bytes);
    return IDA_OK;
}
static inline ida_status ida_dev_sync(const ida_device *dev) { return ida_on_host(dev) ? IDA_OK : dev->memory->sync(dev); }
/* Allocated and zeroed. */
static inline ida_status ida_dev_calloc(const ida_device *dev, void **out, int64_t n, int64_t size, const char *what) {
    if (ida_on_host(dev)) return ida_calloc(out, n, (size_t)size, what);
    IDA_TRY(ida_dev_alloc(dev, out, n, size, what));
    ida_status st = ida_dev_zero(dev, *out, n * size);
    if (st != IDA_OK) {
        ida_dev_free(dev, *out);
        *out = NULL;
    }
    return st;
}
/* Bytes in use, and the most since the last reset; -1 = not known. A host device: all that core/mem.c gave out, whatever for. */
static inline void ida_dev_used(const ida_device *dev, int64_t *now, int64_t *peak) {
    if (ida_on_host(dev)) ida_mem_used(now, peak);
    else dev->memory->used(dev, now, peak);
}
static inline void ida_dev_reset_peak(const ida_device *dev) {
    if (ida_on_host(dev)) ida_mem_reset_peak();
    else dev->memory->reset_peak(dev);
}
#define IDA_DEV_ALLOC(dev, ptr, n, what) ida_dev_alloc((dev), (void **)&(ptr), (n), (int64_t)sizeof *(ptr), (what))
#define IDA_DEV_CALLOC(dev, ptr, n, what) ida_dev_calloc((dev), (void **)&(ptr), (n), (int64_t)sizeof *(ptr), (what))

#endif
