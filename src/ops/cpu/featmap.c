/* featmap.c - the feature map xi(x) = SiLU(x) / ||SiLU(x)|| per token and head (method step 4). */
#include "ops/cpu/cpu_ops.h"

#include <math.h>

#include "ops/cpu/simd.h"

typedef struct featmap_args {
    float *y, *rinv, *dx;
    const float *x, *dy, *saved;
    int64_t n, d, rows; /* n counts heads of tokens */
    double eps;
} featmap_args;

static void fwd_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const featmap_args *a = arg;
    int64_t d = a->d, end = ida_min(a->n, (task + 1) * a->rows);
    for (int64_t row = task * a->rows; row < end; row++) {
        const float *x = a->x + row * d;
        float *y = a->y + row * d;
        vd sum = vd_zero();
        for (int64_t i = 0; i < d; i += IDA_VL) {
            int64_t m = ida_min(IDA_VL, d - i);
            vf s = vf_silu(vf_load_n(x + i, m)); /* silu(0) = 0: the lanes past the end add nothing */
            vd lo = vd_lo(s), hi = vd_hi(s);
            sum += lo * lo;
            sum += hi * hi;
            vf_store_n(y + i, s, m);
        }
        float r = (float)(1.0 / sqrt(vd_hsum(sum) + a->eps));
        vf rv = vf_set1(r);
        a->rinv[row] = r;
        int64_t i = 0;
        for (; i + IDA_VL <= d; i += IDA_VL) vf_store(y + i, vf_load(y + i) * rv);
        for (; i < d; i++) y[i] *= r;
    }
}

ida_status IDA_CPU(featmap_fwd)(const ida_device *dev, ida_act *ya, float *rinv, const ida_act *xa, int64_t n, int64_t h,
                                int64_t d, double eps) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *x = ida_act_real(xa);
    featmap_args a = {.y = y, .rinv = rinv, .x = x, .n = n * h, .d = d, .rows = ida_task_rows(d), .eps = eps};
    ida_parallel(ida_div_up(a.n, a.rows), fwd_rows, &a);
    return IDA_OK;
}

/* y = s / r, r = sqrt(sum s^2 + eps):  ds = (dy - y (y.dy)) / r;  s = x sig(x):  dx = ds sig (1 + x (1 - sig)). */
static void bwd_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const featmap_args *a = arg;
    int64_t d = a->d, end = ida_min(a->n, (task + 1) * a->rows);
    vf one = vf_set1(1.0f);
    for (int64_t row = task * a->rows; row < end; row++) {
        const float *x = a->x + row * d, *dy = a->dy + row * d;
        float *dx = a->dx + row * d, r = a->saved[row];
        vf dot = vf_zero();
        for (int64_t i = 0; i < d; i += IDA_VL) {
            int64_t m = ida_min(IDA_VL, d - i);
            dot += vf_silu(vf_load_n(x + i, m)) * vf_load_n(dy + i, m);
        }
        vf rv = vf_set1(r), c = vf_set1(vf_hsum(dot) * r * r);
        for (int64_t i = 0; i < d; i += IDA_VL) {
            int64_t m = ida_min(IDA_VL, d - i);
            vf xv = vf_load_n(x + i, m), sig = vf_sigmoid(xv);
            vf ds = rv * (vf_load_n(dy + i, m) - xv * sig * c);
            vf_store_n(dx + i, ds * sig * (one + xv * (one - sig)), m);
        }
    }
}

ida_status IDA_CPU(featmap_bwd)(const ida_device *dev, ida_act *dxa, const ida_act *dya, const ida_act *xa, const float *rinv,
                                int64_t n, int64_t h, int64_t d) {
    (void)dev;
    float *dx = ida_act_real(dxa);
    const float *dy = ida_act_real(dya), *x = ida_act_real(xa);
    featmap_args a = {.dx = dx, .dy = dy, .x = x, .saved = rinv, .n = n * h, .d = d, .rows = ida_task_rows(d)};
    ida_parallel(ida_div_up(a.n, a.rows), bwd_rows, &a);
    return IDA_OK;
}
