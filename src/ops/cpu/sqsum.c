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
    int64_t from = task * TASK;
    a->partials[task] = vd_sum_squares(a->x + from, ida_min(a->n - from, TASK));
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
