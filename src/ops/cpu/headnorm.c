/* headnorm.c - RMSNorm of each head's row with a shared gain and a bias per head (method step 5). Tasks are blocks of tokens. */
#include "ops/cpu/cpu_ops.h"

#include <math.h>
#include <string.h>

#include "ops/cpu/simd.h"

typedef struct headnorm_args {
    float *y, *rstd, *dx, *partials;
    const float *x, *g, *b, *dy, *saved;
    int64_t n, h, d, rows;
    double eps;
} headnorm_args;

static void fwd_tokens(void *arg, int64_t task, int worker) {
    (void)worker;
    const headnorm_args *a = arg;
    int64_t d = a->d, h = a->h, end = ida_min(a->n, (task + 1) * a->rows) * h;
    for (int64_t row = task * a->rows * h; row < end; row++) {
        const float *x = a->x + row * d, *b = a->b ? a->b + row % h * d : NULL;
        float *y = a->y + row * d, r = (float)(1.0 / sqrt(vd_sum_squares(x, d) / (double)d + a->eps));
        vf rv = vf_set1(r);
        a->rstd[row] = r;
        int64_t i = 0;
        for (; i + IDA_VL <= d; i += IDA_VL)
            vf_store(y + i, vf_load(x + i) * rv * vf_load(a->g + i) + (b ? vf_load(b + i) : vf_zero()));
        for (; i < d; i++) y[i] = x[i] * r * a->g[i] + (b ? b[i] : 0.0f);
    }
}

ida_status IDA_CPU(headnorm_fwd)(const ida_device *dev, ida_act *ya, float *rstd, const ida_act *xa, const float *g,
                                 const float *b, int64_t n, int64_t h, int64_t d, double eps) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *x = ida_act_real(xa);
    headnorm_args a = {
        .y = y, .rstd = rstd, .x = x, .g = g, .b = b, .n = n, .h = h, .d = d, .rows = ida_task_rows(h * d), .eps = eps};
    ida_parallel(ida_div_up(n, a.rows), fwd_tokens, &a);
    return IDA_OK;
}

/* y_i = x_i r g_i + b_i:  dx_i = r (g_i dy_i - x_i r^2 mean_j(g_j dy_j x_j)),  dg_i = dy_i x_i r,  db_i = dy_i. */
static void bwd_row(float *dx, float *dg, float *db, const float *dy, const float *x, const float *g, float r, int64_t d) {
    vf dot = vf_zero();
    int64_t i = 0;
    for (; i + IDA_VL <= d; i += IDA_VL) dot += vf_load(g + i) * vf_load(dy + i) * vf_load(x + i);
    float s = vf_hsum(dot);
    for (; i < d; i++) s += g[i] * dy[i] * x[i];
    float c = s * r * r / (float)d;
    vf rv = vf_set1(r), cv = vf_set1(c);
    for (i = 0; i + IDA_VL <= d; i += IDA_VL) {
        vf xv = vf_load(x + i), dyv = vf_load(dy + i);
        vf_store(dx + i, rv * (vf_load(g + i) * dyv - xv * cv));
        vf_store(dg + i, vf_load(dg + i) + dyv * xv * rv);
        vf_store(db + i, vf_load(db + i) + dyv);
    }
    for (; i < d; i++) {
        float dyi = dy[i], xi = x[i];
        dx[i] = r * (g[i] * dyi - xi * c);
        dg[i] += dyi * xi * r;
        db[i] += dyi;
    }
}

/* Partial sums of a block: dg of each head apart ([H,D], fewer additions per sum), then db [H,D]. */
static void bwd_tokens(void *arg, int64_t task, int worker) {
    (void)worker;
    const headnorm_args *a = arg;
    int64_t d = a->d, h = a->h, end = ida_min(a->n, (task + 1) * a->rows) * h;
    float *dg = a->partials + task * 2 * h * d, *db = dg + h * d;
    memset(dg, 0, (size_t)(2 * h * d) * sizeof *dg);
    for (int64_t row = task * a->rows * h; row < end; row++) {
        int64_t at = row % h * d;
        bwd_row(a->dx + row * d, dg + at, db + at, a->dy + row * d, a->x + row * d, a->g, a->saved[row], d);
    }
}

ida_status IDA_CPU(headnorm_bwd)(const ida_device *dev, ida_act *dxa, float *dg, float *db, const ida_act *dya,
                                 const ida_act *xa, const float *g, const float *rstd, int64_t n, int64_t h, int64_t d) {
    (void)dev;
    float *dx = ida_act_real(dxa);
    const float *dy = ida_act_real(dya), *x = ida_act_real(xa);
    if (n == 0) return IDA_OK;
    headnorm_args a = {.dx = dx, .dy = dy, .x = x, .g = g, .saved = rstd, .n = n, .h = h, .d = d, .rows = ida_sum_rows(n, h * d)};
    int64_t blocks = ida_div_up(n, a.rows);
    float *sum = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(a.partials, blocks * 2 * h * d, "headnorm_bwd partial sums"));
    IDA_TRY_GOTO(IDA_CALLOC(sum, 2 * h * d, "headnorm_bwd sums"));
    ida_parallel(blocks, bwd_tokens, &a);
    IDA_CPU(add_partials)(sum, a.partials, blocks, 2 * h * d);
    for (int64_t i = 0; i < d; i++) {
        double s = (double)dg[i];
        for (int64_t j = 0; j < h; j++) s += (double)sum[j * d + i];
        dg[i] = (float)s;
    }
    for (int64_t i = 0; db && i < h * d; i++) db[i] += sum[h * d + i];
out:
    ida_free(sum);
    ida_free(a.partials);
    return st;
}
