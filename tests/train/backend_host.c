/* backend_host.c - a backend whose device is this machine's memory and the ops of ref, so that what runs above a device with
 * memory of its own can be tried without a GPU. It counts what is held, and fails when it is told to (test_device.c). It records
 * the ops of a step with their arguments, so that a replay reads what these addresses hold by then, as a GPU's does.
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

/* ---- recordings */
enum { MOST_CALLS = 128, MOST_SEQS = 16 };
typedef struct call {
    ida_status (*run)(const ida_device *dev, const struct call *c, const ida_seqs *seqs);
    const void *p[4]; /* p[0] is written */
    ida_matrix w;
    real *stat;
    int64_t n[3];
    double eps;
    ida_stream streams[IDA_MOST_STREAMS];
    ida_interdomain_args interdomain;
    ida_s4d_args s4d;
    ida_ssm_prep prep;
} call;
struct ida_recording {
    call calls[MOST_CALLS];
    int64_t n, n_seq, cu[MOST_SEQS + 1], moves;
};
static ida_recording *recorded; /* between record and record_end */

static ida_act *written(const call *c) { return (ida_act *)(uintptr_t)c->p[0]; }
static ida_status not_recorded(void) {
    IDA_TRY(broken());
    return recorded ? fail(IDA_E_UNSUPPORTED, "not in a recording") : IDA_OK;
}
/* Runs now, or later. */
static ida_status queue(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    IDA_TRY(broken());
    if (!recorded) return c->run(dev, c, seqs);
    if (seqs && (seqs->n != recorded->n_seq || memcmp(seqs->cu, recorded->cu, (size_t)(seqs->n + 1) * sizeof *seqs->cu) != 0))
        return fail(IDA_E_UNSUPPORTED, "two batches in a recording");
    if (recorded->n == MOST_CALLS || recorded->n == backend_host.fail_recorded)
        return fail(IDA_E_NOMEM, "no room in a recording");
    recorded->calls[recorded->n++] = *c;
    return IDA_OK;
}

static ida_status run_embed(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.embed_fwd(dev, written(c), c->p[1], &c->w, c->n[0]);
}
static ida_status embed(const ida_device *dev, ida_act *y, const int32_t *ids, const ida_matrix *w, int64_t n) {
    return queue(dev, &(call){.run = run_embed, .p = {y, ids}, .w = *w, .n = {n}}, NULL);
}
static ida_status run_rmsnorm(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.rmsnorm_fwd(dev, written(c), c->stat, c->p[1], c->p[2], c->n[0], c->n[1], c->eps);
}
static ida_status rmsnorm(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, int64_t n, int64_t d,
                          double eps) {
    return queue(dev, &(call){.run = run_rmsnorm, .p = {y, x, g}, .stat = rstd, .n = {n, d}, .eps = eps}, NULL);
}
static ida_status run_headnorm(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.headnorm_fwd(dev, written(c), c->stat, c->p[1], c->p[2], c->p[3], c->n[0], c->n[1], c->n[2], c->eps);
}
static ida_status headnorm(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, const real *b,
                           int64_t n, int64_t h, int64_t d, double eps) {
    return queue(dev, &(call){.run = run_headnorm, .p = {y, x, g, b}, .stat = rstd, .n = {n, h, d}, .eps = eps}, NULL);
}
static ida_status run_stream(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    return ida_ref_ops.stream_fwd(dev, c->streams, (int)c->n[0], seqs);
}
static ida_status stream(const ida_device *dev, const ida_stream *streams, int n, const ida_seqs *seqs) {
    call c = {.run = run_stream, .n = {n}};
    memcpy(c.streams, streams, (size_t)n * sizeof *streams);
    return queue(dev, &c, seqs);
}
static ida_status run_swiglu(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.swiglu_fwd(dev, written(c), c->p[1], c->p[2], c->n[0]);
}
static ida_status swiglu(const ida_device *dev, ida_act *y, const ida_act *g, const ida_act *u, int64_t n) {
    return queue(dev, &(call){.run = run_swiglu, .p = {y, g, u}, .n = {n}}, NULL);
}
static ida_status run_interdomain(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.interdomain_step(dev, &c->interdomain, &c->prep, c->n[0]);
}
static ida_status interdomain(const ida_device *dev, const ida_interdomain_args *a, const ida_ssm_prep *prep, int64_t n_seq) {
    return queue(dev, &(call){.run = run_interdomain, .n = {n_seq}, .interdomain = *a, .prep = *prep}, NULL);
}
static ida_status run_s4d(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.s4d_step(dev, &c->s4d, &c->prep, c->n[0]);
}
static ida_status s4d(const ida_device *dev, const ida_s4d_args *a, const ida_ssm_prep *prep, int64_t n_seq) {
    return queue(dev, &(call){.run = run_s4d, .n = {n_seq}, .s4d = *a, .prep = *prep}, NULL);
}
static ida_status run_from_act(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    return ida_ref_ops.from_act(dev, c->stat, c->p[1], c->n[0]);
}
static ida_status from_act(const ida_device *dev, real *y, const ida_act *x, int64_t n) {
    return queue(dev, &(call){.run = run_from_act, .p = {NULL, x}, .stat = y, .n = {n}}, NULL);
}
/* An op of every layer and pass: the place where ops fail. */
static ida_status run_linear(const ida_device *dev, const call *c, const ida_seqs *seqs) {
    (void)seqs;
    if (backend_host.products++ == backend_host.fail_product) {
        if (backend_host.break_there) backend_host.broken = true;
        IDA_TRY(broken());
        return fail(IDA_E_NOMEM, "the device is full");
    }
    return ida_ref_ops.linear_fwd(dev, written(c), c->p[1], &c->w, c->p[2], c->n[0]);
}
static ida_status linear(const ida_device *dev, ida_act *y, const ida_act *x, const ida_matrix *w, const ida_act *c,
                         int64_t n) {
    return queue(dev, &(call){.run = run_linear, .p = {y, x, c}, .w = *w, .n = {n}}, NULL);
}

static ida_status record(const ida_device *dev, const ida_seqs *seqs) {
    (void)dev;
    backend_host.records++;
    IDA_TRY(not_recorded());
    if (backend_host.fail_record) return fail(IDA_E_NOMEM, "no room for a recording");
    if (seqs->n > MOST_SEQS) return fail(IDA_E_UNSUPPORTED, "too many sequences");
    recorded = calloc(1, sizeof *recorded);
    if (!recorded) return fail(IDA_E_NOMEM, "no memory for a recording");
    recorded->n_seq = seqs->n;
    recorded->moves = backend_host.moves;
    memcpy(recorded->cu, seqs->cu, (size_t)(seqs->n + 1) * sizeof *seqs->cu);
    backend_host.live++;
    return IDA_OK;
}
static void record_free(const ida_device *dev, ida_recording *r) {
    (void)dev;
    if (!r) return;
    backend_host.live--;
    free(r);
}
static ida_status record_end(const ida_device *dev, bool good, ida_recording **out) {
    const bool bad = good && backend_host.fail_record_end;
    *out = good && !bad ? recorded : NULL;
    if (!*out) record_free(dev, recorded);
    recorded = NULL;
    return bad ? fail(IDA_E_NOMEM, "no room for a recording") : IDA_OK;
}
static ida_status replay(const ida_device *dev, ida_recording *r, const ida_seqs *seqs, bool *moved) {
    IDA_TRY(not_recorded());
    *moved = r->moves != backend_host.moves;
    if (*moved) return IDA_OK;
    if (!seqs->pos0 || seqs->n != r->n_seq || memcmp(seqs->cu, r->cu, (size_t)(r->n_seq + 1) * sizeof *r->cu) != 0)
        return fail(IDA_E_UNSUPPORTED, "other lengths");
    backend_host.replays++;
    for (int64_t i = 0; i < r->n; i++) IDA_TRY(r->calls[i].run(dev, &r->calls[i], seqs));
    return IDA_OK;
}

/* ---- memory */
static ida_status give(const ida_device *dev, void **out, int64_t bytes, const char *what) {
    (void)dev;
    (void)what;
    IDA_TRY(not_recorded());
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
    if (recorded) abort();
    backend_host.live--;
    backend_host.bytes -= (int64_t)malloc_usable_size(p);
    free(p);
}
static ida_status zero(const ida_device *dev, void *p, int64_t bytes) {
    (void)dev;
    IDA_TRY(not_recorded());
    memset(p, 0, (size_t)bytes);
    return IDA_OK;
}
static ida_status copy(const ida_device *dev, void *to, const void *from, int64_t bytes) {
    (void)dev;
    IDA_TRY(not_recorded());
    memcpy(to, from, (size_t)bytes);
    return IDA_OK;
}
static ida_status sync(const ida_device *dev) {
    (void)dev;
    return not_recorded();
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
                                         .record = record,
                                         .record_end = record_end,
                                         .replay = replay,
                                         .record_free = record_free,
                                         .close = close_nothing};

static ida_status open_host(int ordinal, ida_dtype dtype, const ida_device **out) {
    static const ida_device device = {.ops = &table, .name = "host", .act_type = IDA_TYPE_F32, .memory = &memory};
    if (ordinal != 0 || dtype != IDA_F32) return fail(IDA_E_UNSUPPORTED, "there is cuda:0 in f32");
    table = ida_ref_ops;
    table.sqsum = guarded_sqsum;
    table.embed_fwd = embed;
    table.linear_fwd = linear;
    table.rmsnorm_fwd = rmsnorm;
    table.headnorm_fwd = headnorm;
    table.stream_fwd = stream;
    table.swiglu_fwd = swiglu;
    table.interdomain_step = interdomain;
    table.s4d_step = s4d;
    table.from_act = from_act;
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
    backend_host = (backend_host_control){.fail_alloc = -1, .fail_product = -1, .fail_recorded = -1, .available = INT64_MAX};
    host = *from;
    return abi == IDA_BACKEND_ABI ? &backend : NULL;
}
