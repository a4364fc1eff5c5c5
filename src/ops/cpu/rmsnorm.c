/* rmsnorm.c - root-mean-square normalisation of whole rows. Squares are summed in double: no overflow at any finite input. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/cpu/simd.h"

typedef struct rmsnorm_args {
    float *y, *rstd, *dx, *partials;
    const float *x, *g, *dy, *saved;
    int64_t n, d, rows;
    double eps;
} rmsnorm_args;

static void fwd_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const rmsnorm_args *a = arg;
    int64_t d = a->d, end = ida_min(a->n, (task + 1) * a->rows);
    for (int64_t t = task * a->rows; t < end; t++) {
        const float *x = a->x + t * d;
        float *y = a->y + t * d;
        float r = (float)(1.0 / sqrt(vd_sum_squares(x, d) / (double)d + a->eps));
        vf rv = vf_set1(r);
        a->rstd[t] = r;
        int64_t i = 0;
        for (; i + IDA_VL <= d; i += IDA_VL) vf_store(y + i, vf_load(x + i) * rv * vf_load(a->g + i));
        for (; i < d; i++) y[i] = x[i] * r * a->g[i];
    }
}

ida_status IDA_CPU(rmsnorm_fwd)(const ida_device *dev, ida_act *ya, float *rstd, const ida_act *xa, const float *g, int64_t n,
                                int64_t d, double eps) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *x = ida_act_real(xa);
    assert(eps >= IDA_LEAST_EPS);
    rmsnorm_args a = {.y = y, .rstd = rstd, .x = x, .g = g, .n = n, .d = d, .rows = ida_task_rows(d), .eps = eps};
    ida_parallel(ida_div_up(n, a.rows), fwd_rows, &a);
    return IDA_OK;
}

/* y_i = x_i r g_i:  dx_i += r (g_i dy_i - x_i r^2 mean_j(g_j dy_j x_j)),  dg_i = dy_i x_i r. */
static void bwd_row(float *dx, float *dg, const float *dy, const float *x, const float *g, float r, int64_t d) {
    vf dot = vf_zero();
    int64_t i = 0;
    for (; i + IDA_VL <= d; i += IDA_VL) dot += vf_load(g + i) * vf_load(dy + i) * vf_load(x + i);
    float s = vf_hsum(dot);
    for (; i < d; i++) s += g[i] * dy[i] * x[i];
    float c = s * r * r / (float)d;
    vf rv = vf_set1(r), cv = vf_set1(c);
    for (i = 0; i + IDA_VL <= d; i += IDA_VL) {
        vf xv = vf_load(x + i), dyv = vf_load(dy + i);
        vf_store(dx + i, vf_load(dx + i) + rv * (vf_load(g + i) * dyv - xv * cv));
        vf_store(dg + i, vf_load(dg + i) + dyv * xv * rv);
    }
    for (; i < d; i++) {
        dx[i] += r * (g[i] * dy[i] - x[i] * c);
        dg[i] += dy[i] * x[i] * r;
    }
}

static void bwd_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const rmsnorm_args *a = arg;
    int64_t d = a->d, end = ida_min(a->n, (task + 1) * a->rows);
    float *dg = a->partials + task * d;
    memset(dg, 0, (size_t)d * sizeof *dg);
    for (int64_t t = task * a->rows; t < end; t++) bwd_row(a->dx + t * d, dg, a->dy + t * d, a->x + t * d, a->g, a->saved[t], d);
}

ida_status IDA_CPU(rmsnorm_bwd)(const ida_device *dev, ida_act *dxa, float *dg, const ida_act *dya, const ida_act *xa,
                                const float *g, const float *rstd, int64_t n, int64_t d) {
    (void)dev;
    float *dx = ida_act_real(dxa);
    const float *dy = ida_act_real(dya), *x = ida_act_real(xa);
    if (n == 0) return IDA_OK;
    rmsnorm_args a = {.dx = dx, .dy = dy, .x = x, .g = g, .saved = rstd, .n = n, .d = d, .rows = ida_sum_rows(n, d)};
    int64_t blocks = ida_div_up(n, a.rows);
    IDA_TRY(IDA_ALLOC(a.partials, blocks * d, "rmsnorm_bwd partial sums"));
    ida_parallel(blocks, bwd_rows, &a);
    IDA_CPU(add_partials)(dg, a.partials, blocks, d);
    ida_free(a.partials);
    return IDA_OK;
}
