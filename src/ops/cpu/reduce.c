/* reduce.c - the last step of a parameter gradient: partial sums of blocks onto the gradient, in block order. */
#include "ops/cpu/cpu_ops.h"

typedef struct reduce_args {
    float *dst;
    const float *partials;
    int64_t blocks, width;
} reduce_args;

enum { COLUMNS = 256 };

static void add_columns(void *arg, int64_t task, int worker) {
    (void)worker;
    const reduce_args *r = arg;
    int64_t end = ida_min(r->width, (task + 1) * COLUMNS);
    for (int64_t i = task * COLUMNS; i < end; i++) {
        double s = (double)r->dst[i];
        for (int64_t b = 0; b < r->blocks; b++) s += (double)r->partials[b * r->width + i];
        r->dst[i] = (float)s;
    }
}

void IDA_CPU(add_partials)(float *dst, const float *partials, int64_t blocks, int64_t width) {
    reduce_args r = {dst, partials, blocks, width};
    ida_parallel(ida_div_up(width, COLUMNS), add_columns, &r);
}
