/* sqsum.c - sum of squares: blocks in double, then blocks in order. */
#include "ops/cpu/cpu_ops.h"

#include "ops/cpu/simd.h"

enum { TASK = 65536 };

typedef struct sqsum_args {
    const float *x;
    double *partials;
    int64_t n;
} sqsum_args;

static void sum_block(void *arg, int64_t task, int worker) {
    (void)worker;
    const sqsum_args *a = arg;
    int64_t i = task * TASK, end = ida_min(a->n, i + TASK);
    vd s0 = vd_zero(), s1 = vd_zero();
    for (; i + IDA_VL <= end; i += IDA_VL) {
        vd p = vd_loadf(a->x + i), q = vd_loadf(a->x + i + IDA_VDL);
        s0 += p * p;
        s1 += q * q;
    }
    double s = vd_hsum(s0 + s1);
    for (; i < end; i++) s += (double)a->x[i] * (double)a->x[i];
    a->partials[task] = s;
}

static ida_status sum_span(double *sum, const float *x, int64_t n) {
    int64_t blocks = ida_div_up(n, TASK);
    double few[64];
    sqsum_args a = {x, few, n};
    if (blocks > 64) IDA_TRY(IDA_ALLOC(a.partials, blocks, "sqsum partial sums"));
    ida_parallel(blocks, sum_block, &a);
    double s = 0.0;
    for (int64_t b = 0; b < blocks; b++) s += a.partials[b];
    if (a.partials != few) ida_free(a.partials);
    *sum = s;
    return IDA_OK;
}

ida_status IDA_CPU(sqsum)(const ida_device *dev, double *sums, const float *x, const ida_span *spans, int64_t n_spans) {
    (void)dev;
    for (int64_t i = 0; i < n_spans; i++) IDA_TRY(sum_span(&sums[i], x + spans[i].at, spans[i].n));
    return IDA_OK;
}
