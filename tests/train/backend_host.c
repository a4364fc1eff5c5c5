/* backend_host.c - a backend whose device is this machine's memory and the ops of ref, so that what runs above a device with
 * memory of its own can be tried without a GPU. It counts what is held, and fails when it is told to (test_device.c).
 * Not here: proof that nobody on the host follows a device's pointer; a GPU gives that (tests/cuda). */
#include "backend_host.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "ops/backend.h"
#include "ops/device.h"

__attribute__((visibility("default"))) backend_host_control backend_host;
static ida_backend_host host;
static ida_ops table;

static ida_status fail(ida_status code, const char *text) { return host.fail(code, __FILE__, __LINE__, text); }
static ida_status broken(void) { return backend_host.broken ? fail(IDA_E_IO, "the device is lost") : IDA_OK; }

static ida_status give(const ida_device *dev, void **out, int64_t bytes, const char *what) {
    (void)dev;
    (void)what;
    IDA_TRY(broken());
    *out = NULL;
    if (backend_host.allocs++ == backend_host.fail_alloc) return fail(IDA_E_NOMEM, "the device is full");
    *out = malloc((size_t)bytes);
    if (!*out) return fail(IDA_E_NOMEM, "no memory for a device");
    memset(*out, 0xFF, (size_t)bytes); /* NaN */
    backend_host.live++;
    backend_host.bytes += (int64_t)malloc_usable_size(*out);
    if (backend_host.bytes > backend_host.peak) backend_host.peak = backend_host.bytes;
    return IDA_OK;
}
static void take_back(const ida_device *dev, void *p) {
    (void)dev;
    if (!p) return;
    backend_host.live--;
    backend_host.bytes -= (int64_t)malloc_usable_size(p);
    free(p);
}
static ida_status zero(const ida_device *dev, void *p, int64_t bytes) {
    (void)dev;
    IDA_TRY(broken());
    memset(p, 0, (size_t)bytes);
    return IDA_OK;
}
static ida_status copy(const ida_device *dev, void *to, const void *from, int64_t bytes) {
    (void)dev;
    IDA_TRY(broken());
    memcpy(to, from, (size_t)bytes);
    return IDA_OK;
}
static ida_status sync(const ida_device *dev) {
    (void)dev;
    return broken();
}
static ida_status available(const ida_device *dev, int64_t *left, int64_t *total) {
    (void)dev;
    *left = *total = backend_host.available;
    return IDA_OK;
}
static void used(const ida_device *dev, int64_t *now, int64_t *peak) {
    (void)dev;
    *now = backend_host.bytes;
    *peak = backend_host.peak;
}
static void reset_peak(const ida_device *dev) {
    (void)dev;
    backend_host.peak = backend_host.bytes;
}
static void close_nothing(const ida_device *dev) { (void)dev; }

/* An op of every layer and pass: the place where ops fail. */
static ida_status counted_linear_fwd(const ida_device *dev, act *y, const act *x, const act *w, const act *c, int64_t n,
                                     int64_t in, int64_t out) {
    IDA_TRY(broken());
    if (backend_host.products++ == backend_host.fail_product) {
        if (backend_host.break_there) backend_host.broken = true;
        IDA_TRY(broken());
        return fail(IDA_E_NOMEM, "the device is full");
    }
    return ida_ref_ops.linear_fwd(dev, y, x, w, c, n, in, out);
}
static ida_status guarded_sqsum(const ida_device *dev, double *sums, const real *x, const ida_span *spans, int64_t n) {
    IDA_TRY(broken());
    return ida_ref_ops.sqsum(dev, sums, x, spans, n);
}

static const ida_device_memory memory = {.alloc = give,
                                         .free = take_back,
                                         .zero = zero,
                                         .upload = copy,
                                         .download = copy,
                                         .copy = copy,
                                         .sync = sync,
                                         .available = available,
                                         .used = used,
                                         .reset_peak = reset_peak,
                                         .close = close_nothing};

static ida_status open_host(int ordinal, ida_dtype dtype, const ida_device **out) {
    static const ida_device device = {.ops = &table, .name = "host", .act_size = sizeof(float), .memory = &memory};
    if (ordinal != 0 || dtype != IDA_F32) return fail(IDA_E_UNSUPPORTED, "there is cuda:0 in f32");
    table = ida_ref_ops;
    table.linear_fwd = counted_linear_fwd;
    table.sqsum = guarded_sqsum;
    *out = &device;
    return IDA_OK;
}
static ida_status describe(char *json, size_t size) {
    if (size < 3) return fail(IDA_E_UNSUPPORTED, "no room");
    memcpy(json, "[]", 3);
    return IDA_OK;
}

__attribute__((visibility("default"))) ida_backend_entry_fn ida_cuda_backend;
const ida_backend *ida_cuda_backend(int abi, const ida_backend_host *from) {
    static ida_backend backend = {.abi = IDA_BACKEND_ABI, .open = open_host, .describe = describe};
    backend.n_ops = (int64_t)(sizeof(ida_ops) / sizeof(ida_embed_fwd_fn *));
    backend_host = (backend_host_control){.fail_alloc = -1, .fail_product = -1, .available = INT64_MAX};
    host = *from;
    return abi == IDA_BACKEND_ABI ? &backend : NULL;
}
