/* linear.c - matrix products with a weight. Many rows: OpenBLAS, one single-threaded call per tile of the output; tiles are
 * cut by shape, so a result does not depend on the thread count. Up to SMALL_N rows (decode): own dot products over the rows
 * of W, bound by the bandwidth that reads W; a row's result there does not depend on the other rows.
 * Not here: a GEMM of our own. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "ops/blas.h"
#include "ops/cpu/simd.h"

enum { SMALL_N = 8 };

typedef struct linear_args {
    float *y, *dx, *dw;
    const float *x, *w, *c, *dy;
    int64_t n, in, out;
    int64_t tm, tn, across; /* tile rows, columns, tiles per row of tiles */
    bool add;
} linear_args;

/* Tiles of an [m, n] output: 256 x 256, smaller where that leaves too few tasks. Returns the number of tiles. */
static int64_t cut_tiles(linear_args *a, int64_t m, int64_t n) {
    int64_t count;
    a->tm = ida_min(m, 256);
    a->tn = ida_min(n, 256);
    for (;;) {
        a->across = ida_div_up(n, a->tn);
        count = a->across * ida_div_up(m, a->tm);
        int64_t *larger = a->tm >= a->tn ? &a->tm : &a->tn;
        int64_t least = count < 12 ? 64 : 128;
        if (count >= 32 || *larger < 2 * least) return count;
        *larger = ida_div_up(*larger, 2);
    }
}

/* BLAS counts in int; the sizes were checked. */
static int as_int(int64_t v) {
    assert(v <= INT_MAX);
    return (int)v;
}

static ida_status check_sizes(int64_t n, int64_t in, int64_t out) {
    IDA_FAIL_IF(n > INT_MAX || in > INT_MAX || out > INT_MAX, IDA_E_UNSUPPORTED,
                "a product of %lld rows, %lld inputs and %lld outputs is too large: each is at most %d", (long long)n,
                (long long)in, (long long)out, INT_MAX);
    return IDA_OK;
}

static void fwd_tile(void *arg, int64_t task, int worker) {
    (void)worker;
    const linear_args *a = arg;
    int64_t i = task / a->across * a->tm, j = task % a->across * a->tn;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_int(ida_min(a->tm, a->n - i)), as_int(ida_min(a->tn, a->out - j)),
                as_int(a->in), 1.0f, a->x + i * a->in, as_int(a->in), a->w + j * a->in, as_int(a->in), a->c ? 1.0f : 0.0f,
                a->y + i * a->out + j, as_int(a->out));
}

static void dx_tile(void *arg, int64_t task, int worker) {
    (void)worker;
    const linear_args *a = arg;
    int64_t i = task / a->across * a->tm, j = task % a->across * a->tn;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_int(ida_min(a->tm, a->n - i)), as_int(ida_min(a->tn, a->in - j)),
                as_int(a->out), 1.0f, a->dy + i * a->out, as_int(a->out), a->w + j, as_int(a->in), a->add ? 1.0f : 0.0f,
                a->dx + i * a->in + j, as_int(a->in));
}

static void dw_tile(void *arg, int64_t task, int worker) {
    (void)worker;
    const linear_args *a = arg;
    int64_t i = task / a->across * a->tm, j = task % a->across * a->tn;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, as_int(ida_min(a->tm, a->out - i)), as_int(ida_min(a->tn, a->in - j)),
                as_int(a->n), 1.0f, a->dy + i, as_int(a->out), a->x + j, as_int(a->in), 1.0f, a->dw + i * a->in + j,
                as_int(a->in));
}

/* One row of W at a time: the memory is then one stream, which prefetchers follow best. CHAINS sums hide the latency of an FMA;
 * the order of additions is the same for any number of columns. */
#if IDA_VL == 16
enum { CHAINS = 4 };
#else
enum { CHAINS = 2 };
#endif
enum { COLS = 4 };

/* s[t] = w . x_t for `cols` rows x; cols is a constant at every call, so the loops unroll. */
IDA_INLINE void dots(int cols, float s[COLS], const float *w, const float *x, int64_t in) {
    vf acc[COLS][CHAINS];
    IDA_UNROLL
    for (int t = 0; t < cols; t++)
        IDA_UNROLL
        for (int c = 0; c < CHAINS; c++) acc[t][c] = vf_zero();
    int64_t i = 0;
    for (; i + CHAINS * IDA_VL <= in; i += CHAINS * IDA_VL)
        IDA_UNROLL
        for (int c = 0; c < CHAINS; c++) {
            vf wv = vf_load(w + i + c * IDA_VL);
            IDA_UNROLL
            for (int t = 0; t < cols; t++) acc[t][c] += wv * vf_load(x + t * in + i + c * IDA_VL);
        }
    for (; i < in; i += IDA_VL) {
        vf wv = vf_load_n(w + i, ida_min(IDA_VL, in - i));
        IDA_UNROLL
        for (int t = 0; t < cols; t++) acc[t][0] += wv * vf_load_n(x + t * in + i, ida_min(IDA_VL, in - i));
    }
    IDA_UNROLL
    for (int t = 0; t < cols; t++) {
        IDA_UNROLL
        for (int c = 1; c < CHAINS; c++) acc[t][0] += acc[t][c];
        s[t] = vf_hsum(acc[t][0]);
    }
}

static void small_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const linear_args *a = arg;
    int64_t end = ida_min(a->out, (task + 1) * a->tm);
    for (int64_t o = task * a->tm; o < end; o++) {
        const float *w = a->w + o * a->in;
        for (int64_t t0 = 0; t0 < a->n; t0 += COLS) {
            float s[COLS];
            const float *x = a->x + t0 * a->in;
            int64_t cols = ida_min(COLS, a->n - t0);
            switch (cols) {
            case 1: dots(1, s, w, x, a->in); break;
            case 2: dots(2, s, w, x, a->in); break;
            case 3: dots(3, s, w, x, a->in); break;
            default: dots(4, s, w, x, a->in); break;
            }
            for (int64_t t = 0; t < cols; t++) {
                float *y = a->y + (t0 + t) * a->out + o;
                *y = a->c ? a->c[(t0 + t) * a->out + o] + s[t] : s[t];
            }
        }
    }
}

ida_status IDA_CPU(linear_fwd)(const ida_device *dev, ida_act *ya, const ida_act *xa, const ida_matrix *wm, const ida_act *ca,
                               int64_t n) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *x = ida_act_real(xa), *w = ida_matrix_as(wm, IDA_TYPE_F32), *c = ida_act_real(ca);
    const int64_t in = wm->cols, out = wm->rows;
    if (n == 0) return IDA_OK;
    IDA_TRY(check_sizes(n, in, out));
    linear_args a = {.y = y, .x = x, .w = w, .c = c, .n = n, .in = in, .out = out};
    if (n <= SMALL_N) {
        a.tm = ida_task_rows(in);
        ida_parallel(ida_div_up(out, a.tm), small_rows, &a);
    } else {
        IDA_TRY(ida_blas_has_memory());
        if (c && c != y) memcpy(y, c, (size_t)(n * out) * sizeof *y);
        ida_parallel(cut_tiles(&a, n, out), fwd_tile, &a);
    }
    return IDA_OK;
}

/* y = x W^T:  dx = dy W,  dW = dy^T x. */
ida_status IDA_CPU(linear_bwd)(const ida_device *dev, ida_act *dxa, float *dw, const ida_act *dya, const ida_act *xa,
                               const ida_matrix *wm, int64_t n, bool add) {
    (void)dev;
    float *dx = ida_act_real(dxa);
    const float *dy = ida_act_real(dya), *x = ida_act_real(xa), *w = ida_matrix_as(wm, IDA_TYPE_F32);
    const int64_t in = wm->cols, out = wm->rows;
    if (n == 0) return IDA_OK;
    IDA_TRY(check_sizes(n, in, out));
    linear_args a = {.dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .n = n, .in = in, .out = out, .add = add};
    IDA_TRY(ida_blas_has_memory());
    if (dx) ida_parallel(cut_tiles(&a, n, in), dx_tile, &a);
    if (dw) ida_parallel(cut_tiles(&a, out, in), dw_tile, &a);
    return IDA_OK;
}
